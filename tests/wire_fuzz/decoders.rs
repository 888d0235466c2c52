//! The decoders alone, round by round.

use base::{InodeId, SessionId};
use nfs_gateway::FileHandle;
use nfs_gateway::wire::nfs3::WireHandle;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::answer::{drive, keys};
use crate::corpus::{corpus, flip, mutate, setting};
use crate::memory::{alone, memory_of};

/// Rounds of mutation unless the environment says otherwise.
const ROUNDS: u64 = 50_000;

/// Memory the decoders may need whatever was sent: the receive buffer, twice while it grows.
const DECODE_BYTES_FIXED: isize = 64 * 1024;

/// Memory the decoders may need for each byte sent: the room for four times as much that is made
/// for the rest of a record, rounded up as a vector does, and the buffer it replaces.
const DECODE_BYTES_FACTOR: isize = 16;

#[tokio::test]
async fn the_corpus_comes_to_what_it_says() {
    let _alone = alone().await;
    for sample in corpus() {
        for step in [1, 5, 4096, usize::MAX] {
            let outcome = drive(&keys(), &sample.stream, step);
            assert_eq!(outcome, sample.outcome, "{}", sample.name);
        }
    }
}

#[tokio::test]
async fn mutated_streams_neither_panic_nor_cost_memory() {
    let _alone = alone().await;
    let samples = corpus();
    let keys = keys();
    let (seed, rounds) = (
        setting("WIRE_FUZZ_SEED", 1),
        setting("WIRE_FUZZ_ROUNDS", ROUNDS),
    );
    let mut outcomes = std::collections::BTreeMap::<String, u64>::new();
    for round in 0..rounds {
        let mut rng = ChaCha8Rng::seed_from_u64(seed.wrapping_add(round.wrapping_mul(0x9e37)));
        let stream = mutate(&mut rng, &samples);
        let step = [usize::MAX, 1 << 12, 100, 7][rng.random_range(0..4)];
        let work = || std::panic::catch_unwind(|| drive(&keys, &stream, step));
        let (outcome, memory) = memory_of(work);
        let Ok(outcome) = outcome else {
            panic!("seed {seed}, round {round} panics");
        };
        let sent = isize::try_from(stream.len()).unwrap();
        assert!(
            memory <= DECODE_BYTES_FIXED + DECODE_BYTES_FACTOR * sent,
            "seed {seed}, round {round}: {memory} bytes for a stream of {sent}"
        );
        let first = outcome.split([';', ':', ' ']).next().unwrap_or_default();
        *outcomes.entry(first.to_owned()).or_default() += 1;
    }
    // If one of these is never reached the fuzzer has lost its way.
    for kind in [
        "nfs", "mount", "garbage", "denied", "refused", "no", "error", "waiting",
    ] {
        assert!(outcomes.contains_key(kind), "{kind}: {outcomes:?}");
    }
}

#[test]
fn mutated_handles_are_stale() {
    let keys = keys();
    let handle = FileHandle {
        flags: 1,
        session: SessionId::new(2),
        revocation: 3,
        snapshot: [4; 16],
        inode: InodeId::ROOT,
    };
    let signed = keys.sign(&handle);
    assert_eq!(keys.verify(signed.wire()), Ok(handle));
    let mut rng = ChaCha8Rng::seed_from_u64(setting("WIRE_FUZZ_SEED", 1));
    let rounds = setting("WIRE_FUZZ_ROUNDS", ROUNDS);
    for _ in 0..rounds {
        let mut bytes = signed.as_bytes().to_vec();
        for _ in 0..rng.random_range(1..4) {
            let at = rng.random_range(0..bytes.len());
            flip(&mut rng, &mut bytes, at);
        }
        if rng.random_ratio(1, 8) {
            bytes.truncate(rng.random_range(0..bytes.len()));
        }
        let is_changed = bytes != signed.as_bytes();
        let verified = keys.verify(WireHandle(&bytes));
        assert_eq!(verified.is_err(), is_changed, "{bytes:?}");
    }
}
