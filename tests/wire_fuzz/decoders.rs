//! The decoders alone, round by round.

use base::{InodeId, SessionId};
use nfs_gateway::FileHandle;
use nfs_gateway::wire::nfs3::WireHandle;
use nfs_gateway::wire::proxy::{HEADER_BYTES_MAX, Header, Progress, header_for, parse};
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

/// Reads a header as a connection does: never more than is said to be missing.
fn read_header(stream: &[u8]) -> Result<Option<Header>, String> {
    let mut read = 0;
    loop {
        match parse(stream.get(..read).unwrap()) {
            Ok(Progress::Whole(header)) => return Ok(Some(header)),
            Ok(Progress::Missing(missing)) => {
                assert!(missing > 0 && read + missing <= HEADER_BYTES_MAX);
                // They come in two parts.
                let first = read + missing.div_ceil(2);
                if let Some(begun) = stream.get(..first) {
                    let progress = parse(begun);
                    assert!(
                        progress.is_err()
                            || first == read + missing
                            || progress == Ok(Progress::Missing(missing / 2)),
                        "{begun:?}"
                    );
                }
                read += missing;
            }
            Err(error) => return Err(error.to_string()),
        }
        if read > stream.len() {
            return Ok(None);
        }
    }
}

#[test]
fn mutated_proxy_headers_are_read_to_their_end_or_refused() {
    let mut rng = ChaCha8Rng::seed_from_u64(setting("WIRE_FUZZ_SEED", 1));
    let mut seen = std::collections::BTreeMap::<String, u64>::new();
    for _ in 0..setting("WIRE_FUZZ_ROUNDS", ROUNDS) {
        let client = ["192.0.2.1:700", "[2001:db8::1]:700"][rng.random_range(0..2)];
        let mut header = header_for(client.parse().unwrap());
        // TLVs, of which some are as long as they say.
        for _ in 0..rng.random_range(0..3) {
            let length = rng.random_range(0..6u8);
            header.extend([rng.random_range(0..6), 0, length]);
            header.extend((0..length).map(|_| rng.random::<u8>()));
            header[15] = header[15].wrapping_add(3 + length);
        }
        if rng.random_ratio(1, 4) {
            // A health check.
            header[12] = 0x20;
        }
        for _ in 0..rng.random_range(0..3) {
            let at = rng.random_range(12..header.len());
            flip(&mut rng, &mut header, at);
        }
        header.extend([0x80, 0, 0, 40]);
        let read = match read_header(&header) {
            Ok(Some(Header::Local)) => "local".to_owned(),
            Ok(Some(Header::Client(_))) => "client".to_owned(),
            Ok(None) => "missing".to_owned(),
            Err(error) => error,
        };
        *seen.entry(read).or_default() += 1;
    }
    for what in [
        "local", "client", "missing", "TLV", "checksum", "version", "command", "family",
    ] {
        assert!(
            seen.keys().any(|read| read.contains(what)),
            "{what}: {seen:?}"
        );
    }
}
