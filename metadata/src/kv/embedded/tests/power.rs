//! Power losses, made up from a record of what the store did to its device.
//!
//! What was synced is there. Of what was written after, each sector is there or not, at random.

use super::*;
use crate::kv::AtomicOp;

/// Unit that a device writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// Power losses made up from one run.
const LOSSES: usize = 60;

/// Commits of the run.
const COMMITS: u64 = 60;

/// Keys of each commit.
const KEYS: u8 = 5;

/// A commit is acknowledged when so many changes are recorded.
struct Acknowledged {
    commit: u64,
    version: Version,
    changes: usize,
}

/// The device after `changes`, of which those after the last sync may have got lost.
pub(super) fn after_loss(start: &[u8], changes: &[DiskChange], rng: &base::Rng) -> Vec<u8> {
    let synced = changes
        .iter()
        .rposition(|change| matches!(change, DiskChange::Sync))
        .unwrap_or(0);
    let mut image = start.to_vec();
    for (index, change) in changes.iter().enumerate() {
        let is_lost = || index > synced && rng.u64().is_multiple_of(2);
        match change {
            DiskChange::Sync => {}
            DiskChange::SetLen(len) => {
                if !is_lost() {
                    image.resize(usize::try_from(*len).unwrap(), 0);
                }
            }
            DiskChange::Write(offset, bytes) => {
                let offset = usize::try_from(*offset).unwrap();
                for (sector, bytes) in bytes.chunks(SECTOR_BYTES).enumerate() {
                    if is_lost() {
                        continue;
                    }
                    let from = offset + sector * SECTOR_BYTES;
                    let to = from + bytes.len();
                    if image.len() < to {
                        image.resize(to, 0);
                    }
                    image[from..to].copy_from_slice(bytes);
                }
            }
        }
    }
    image
}

/// Makes the witness claim most: as if it had been flushed at once.
pub(super) fn witness_claims(ground: &Ground, version: Option<Version>) {
    let seen = ground.dir.path().join("store.kv.seen");
    drop(std::fs::remove_file(&seen));
    if let Some(version) = version {
        witness::Witness::open(seen).0.note(version);
    }
}

/// Commits in groups of changing size, and notes when each was acknowledged.
async fn run(kv: &EmbeddedKv, faults: &DiskFaults) -> Vec<Acknowledged> {
    let acknowledged = Mutex::new(Vec::new());
    let mut next = 0;
    while next < COMMITS {
        let group = next..(next + 1 + next % 4).min(COMMITS);
        next = group.end;
        let commits = group.map(|commit| {
            let acknowledged = &acknowledged;
            async move {
                let mut transaction = kv.begin();
                for key in 0..KEYS {
                    // Spread, so that a commit touches several pages.
                    let key = [&[key], &commit.to_be_bytes()[..]].concat();
                    transaction.set(&key, &[7; 900]);
                }
                transaction.atomic(AtomicOp::Add, b"count", &1_u64.to_le_bytes());
                let version = transaction.commit().await.unwrap().version;
                acknowledged.lock().push(Acknowledged {
                    commit,
                    version,
                    changes: faults.recorded(),
                });
            }
        });
        join_all(commits).await;
    }
    acknowledged.into_inner()
}

/// The commits that are in the store, each whole.
async fn stored(kv: &EmbeddedKv, told: &str) -> Vec<u64> {
    let mut found = Vec::new();
    for commit in 0..COMMITS {
        let mut keys = 0;
        for key in 0..KEYS {
            let key = [&[key], &commit.to_be_bytes()[..]].concat();
            keys += u8::from(get(kv, &key).await.unwrap().is_some());
        }
        assert!([0, KEYS].contains(&keys), "{told}: commit {commit} is torn");
        if keys > 0 {
            found.push(commit);
        }
    }
    let count = get(kv, b"count").await.unwrap();
    let count = count.map_or(0, |count| {
        u64::from_le_bytes(count.as_ref().try_into().unwrap())
    });
    assert_eq!(count, u64::try_from(found.len()).unwrap(), "{told}");
    found
}

#[tokio::test]
async fn acknowledged_commits_survive_power_losses() {
    let ground = Ground::new();
    drop(ground.open());
    let start = std::fs::read(ground.path()).unwrap();
    ground.faults.record();
    let kv = ground.open();
    let acknowledged = run(&kv, &ground.faults).await;
    drop(kv);
    let changes = ground.faults.take_recorded();
    let rng = base::Rng::seeded(11);
    let mut kept = Vec::new();
    for loss in 0..LOSSES {
        let cut = usize::try_from(rng.u64()).unwrap() % changes.len();
        let image = after_loss(&start, &changes[..cut], &rng);
        std::fs::write(ground.path(), image).unwrap();
        let until = acknowledged.iter().filter(|one| one.changes <= cut);
        witness_claims(&ground, until.map(|one| one.version).max());
        let told = format!("loss {loss} after {cut} of {} changes", changes.len());
        let kv = ground.try_open();
        let kv = kv.unwrap_or_else(|error| panic!("{told}: {error}"));
        let found = stored(&kv, &told).await;
        for one in &acknowledged {
            let must = one.changes <= cut;
            assert!(
                !must || found.contains(&one.commit),
                "{told}: commit {} is lost",
                one.commit
            );
        }
        kept.push(found.len());
        set(&kv, b"after", b"1").await.unwrap();
    }
    kept.sort_unstable();
    kept.dedup();
    assert!(kept.len() > 10, "losses at many points: {kept:?}");
}
