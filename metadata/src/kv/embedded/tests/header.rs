//! Damage to the file after a kill: the last acknowledged commit is there, or the store says that it
//! is not, and leaves the file as it is.

use super::*;

/// Length of the engine's header: 64 bytes and two commit slots.
const HEADER_BYTES: usize = 320;

const COMMITS: u64 = 7;

/// A store as a kill leaves it, with its witness.
struct Killed {
    store: Vec<u8>,
    witness: Vec<u8>,
}

fn seen(ground: &Ground) -> PathBuf {
    ground.dir.path().join("store.kv.seen")
}

/// Where syncs cost nothing, if there is such a place: these tests open hundreds of stores.
fn in_memory() -> Ground {
    let mut ground = Ground::new();
    if let Ok(dir) = tempfile::tempdir_in("/dev/shm") {
        ground.dir = dir;
    }
    ground
}

async fn killed() -> Killed {
    let ground = in_memory();
    let kv = ground.open();
    for commit in 1..=COMMITS {
        // More than a page, so that each commit has pages of its own.
        let mut transaction = kv.begin();
        for key in 0..40_u64 {
            let key = [commit.to_be_bytes(), key.to_be_bytes()].concat();
            transaction.set(&key, &[9; 300]);
        }
        let committed = transaction.commit().await.unwrap();
        assert_eq!(committed.version, Version(commit));
    }
    // What the process has written so far is what a kill leaves.
    Killed {
        store: std::fs::read(ground.path()).unwrap(),
        witness: std::fs::read(seen(&ground)).unwrap(),
    }
}

/// How a store opened.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// With this many commits.
    Commits(u64),
    /// Refused as damaged, and left as it was.
    Refused(String),
}

async fn outcome(ground: &Ground, store: &[u8], witness: Option<&[u8]>) -> Outcome {
    std::fs::write(ground.path(), store).unwrap();
    match witness {
        Some(witness) => std::fs::write(seen(ground), witness).unwrap(),
        // There may be none.
        None => drop(std::fs::remove_file(seen(ground))),
    }
    let kv = match ground.try_open() {
        Ok(kv) => kv,
        Err(OpenError::Corrupt { reason, .. }) => {
            let left = std::fs::read(ground.path()).unwrap();
            assert!(left == store, "the file was changed: {reason}");
            return Outcome::Refused(reason);
        }
        Err(error) => panic!("{error}"),
    };
    let mut commits = 0;
    for commit in 1..=COMMITS {
        let key = [commit.to_be_bytes(), 7_u64.to_be_bytes()].concat();
        commits += u64::from(get(&kv, &key).await.unwrap().is_some());
    }
    Outcome::Commits(commits)
}

/// Each byte of the header, in one way or another, and each page that is in use.
fn damages(whole: &[u8]) -> Vec<Vec<u8>> {
    let mut places: Vec<(usize, u8)> = (0..HEADER_BYTES)
        .zip([0x01, 0x80, 0xff, 0x10, 0x06].into_iter().cycle())
        .collect();
    for (page, bytes) in whole.chunks(4096).enumerate().skip(1) {
        if let Some(at) = bytes.iter().position(|byte| *byte == 9) {
            places.push((page * 4096 + at, 0x01));
        }
    }
    let damage = |(at, mask): (usize, u8)| {
        let mut bytes = whole.to_vec();
        bytes[at] ^= mask;
        bytes
    };
    places.into_iter().map(damage).collect()
}

#[tokio::test]
async fn damage_after_a_kill_never_loses_an_acknowledged_commit_silently() {
    let killed = killed().await;
    let ground = in_memory();
    let whole = outcome(&ground, &killed.store, Some(&killed.witness)).await;
    assert_eq!(whole, Outcome::Commits(COMMITS));
    let (mut opened, mut refused, mut older, mut silent) = (0, 0, 0, 0);
    for damaged in damages(&killed.store) {
        match outcome(&ground, &damaged, Some(&killed.witness)).await {
            Outcome::Commits(commits) => {
                assert_eq!(commits, COMMITS);
                opened += 1;
            }
            Outcome::Refused(reason) => {
                refused += 1;
                if reason.contains("commit 7 was acknowledged") {
                    assert!(reason.contains("to go on") && reason.contains("store.kv.seen"));
                    older += 1;
                }
            }
        }
        // The witness is what makes the difference.
        let without = outcome(&ground, &damaged, None).await;
        silent += u32::from(without == Outcome::Commits(COMMITS - 1));
    }
    assert!(opened > 50 && refused > 100, "{opened}, {refused}");
    assert_eq!(older, silent);
    assert!(older > 100, "{older}");
}

/// Whoever accepts the loss goes on with what is left.
#[tokio::test]
async fn a_refused_store_opens_without_its_witness() {
    let killed = killed().await;
    let ground = in_memory();
    let mut damaged = killed.store.clone();
    // A field of each slot; only one slot is the newest.
    let mut refused = 0;
    for at in [64 + 20, 192 + 20] {
        damaged.clone_from(&killed.store);
        damaged[at] ^= 1;
        if outcome(&ground, &damaged, Some(&killed.witness)).await == Outcome::Commits(COMMITS) {
            continue;
        }
        refused += 1;
        std::fs::remove_file(seen(&ground)).unwrap();
        let kv = ground.open();
        let committed = set(&kv, b"after", b"1").await.unwrap();
        assert_eq!(committed.version, Version(COMMITS));
        kv.close();
        assert!(get(&ground.open(), b"after").await.unwrap().is_some());
    }
    assert_eq!(refused, 1);
}

/// A damaged, older or missing witness is no reason to refuse a good store.
#[tokio::test]
async fn a_bad_witness_stops_nothing() {
    let killed = killed().await;
    let ground = in_memory();
    let mut older = killed.witness.clone();
    older[512..].fill(0);
    let all = Outcome::Commits(COMMITS);
    for witness in [&older[..], b"", b"nonsense", &[0xff; 4096]] {
        assert_eq!(outcome(&ground, &killed.store, Some(witness)).await, all);
        // And is a good one afterwards.
        let witness = std::fs::read(seen(&ground)).unwrap();
        let (_, version) = witness::Witness::open(seen(&ground));
        assert_eq!(version, Some(Version(COMMITS)), "{}", witness.len());
    }
}

/// A store that is gone is not made anew over a witness of what was in it.
#[tokio::test]
async fn a_store_that_is_missing_is_not_replaced() {
    let killed = killed().await;
    let ground = in_memory();
    std::fs::write(seen(&ground), &killed.witness).unwrap();
    let refused = ground.try_open().unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("7 commits to it were acknowledged"),
        "{refused}"
    );
    assert!(!ground.path().exists());
}
