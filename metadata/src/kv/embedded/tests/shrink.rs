//! The file gives space back while it is open.

use super::power::{after_loss, witness_claims};
use super::*;

/// Values that fill the file.
const VALUES: u32 = 4000;

/// Every how many of them is kept.
const KEPT: u32 = 200;

/// More than the rest takes, and much less than the whole, in bytes.
const SMALL_BYTES: u64 = 4 << 20;

/// Power losses made up from one run.
const LOSSES: usize = 40;

/// Looks at something that comes by itself, each [`LOOK_PAUSE`] apart.
const LOOKS_MAX: usize = 600;
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// A store whose device is always short of space.
fn short_of_space() -> Ground {
    let ground = Ground::new();
    Ground {
        options: EmbeddedOptions {
            reserve_bytes: u64::MAX,
            ..ground.options.clone()
        },
        ..ground
    }
}

fn key(index: u32) -> [u8; 4] {
    index.to_be_bytes()
}

async fn fill(kv: &EmbeddedKv) {
    for first in (0..VALUES).step_by(400) {
        let mut transaction = kv.begin();
        for index in first..first + 400 {
            transaction.set(&key(index), &[7; 3000]);
        }
        transaction.commit().await.unwrap();
    }
}

/// Removes all but some, in one commit.
async fn remove_most(kv: &EmbeddedKv) {
    let mut transaction = kv.begin();
    for index in (0..VALUES).filter(|index| index % KEPT != 0) {
        transaction.clear(&key(index));
    }
    transaction.commit().await.unwrap();
}

async fn until_small(ground: &Ground) {
    let clock = SystemClock::new();
    for _ in 0..LOOKS_MAX {
        if std::fs::metadata(ground.path()).unwrap().len() < SMALL_BYTES {
            return;
        }
        clock.sleep(LOOK_PAUSE).await;
    }
    let bytes = std::fs::metadata(ground.path()).unwrap().len();
    panic!("the file keeps its {bytes} bytes");
}

async fn assert_rest(kv: &EmbeddedKv, told: &str) {
    for index in (0..VALUES).step_by(50) {
        let value = settled(kv, &key(index)).await;
        let expected = (index % KEPT == 0).then_some(&[7; 3000][..]);
        assert_eq!(value.as_deref(), expected, "{told}: value {index}");
    }
}

#[tokio::test]
async fn removed_content_goes_back_to_a_device_that_is_short() {
    let ground = short_of_space();
    let kv = ground.open();
    fill(&kv).await;
    let reader = kv.begin();
    reader.get(&key(0), Isolation::Snapshot).await.unwrap();
    remove_most(&kv).await;
    // Somebody who reads meanwhile neither keeps the space nor reads something wrong.
    until_small(&ground).await;
    let read = reader.get(&key(1), Isolation::Snapshot).await;
    assert_eq!(read, Err(KvError::VersionTooOld));
    assert_rest(&kv, "shrunk").await;
    set(&kv, b"after", b"1").await.unwrap();
    drop(kv);
    let kv = ground.open();
    assert_rest(&kv, "reopened").await;
    assert!(get(&kv, b"after").await.unwrap().is_some());
}

#[tokio::test]
async fn a_device_with_space_lets_the_file_be() {
    let ground = Ground::new();
    let options = EmbeddedOptions {
        reserve_bytes: 0,
        ..ground.options.clone()
    };
    let path = ground.path();
    let space = Space::new(&path, 0, Arc::new(SystemClock::new()));
    let kv = EmbeddedKv::open(&path, &options, Arc::new(SystemClock::new())).unwrap();
    fill(&kv).await;
    let device = rustix::fs::statvfs(path.parent().unwrap()).unwrap();
    let device_is_short = device.f_bavail < device.f_blocks / 20;
    let short = Space::new(&path, u64::MAX, Arc::new(SystemClock::new()));
    for (stored, is_due) in [(0, true), (kv.stored_bytes(), false)] {
        short.set_stored_bytes(stored);
        assert_eq!(short.to_shrink().is_some(), is_due, "{stored} bytes stored");
        space.set_stored_bytes(stored);
        // The device of the test may itself be short.
        assert_eq!(space.to_shrink().is_some(), is_due && device_is_short);
    }
}

/// Fails each change of the device that a shrink makes, in turn.
#[tokio::test]
async fn a_shrink_that_fails_loses_nothing() {
    let ground = Ground::new();
    let kv = ground.open();
    fill(&kv).await;
    remove_most(&kv).await;
    let version = kv.begin().read_version().await.unwrap();
    // What a kill would leave, since closing the file makes it smaller, too.
    let large = std::fs::read(ground.path()).unwrap();
    drop(kv);
    let (mut failed, mut hits) = (0, 0);
    for after in 0.. {
        std::fs::write(ground.path(), &large).unwrap();
        let settings = Settings::new(&ground.path(), &ground.options);
        let mut file = File::open_or_create(&settings).unwrap().0;
        let errno = if after % 2 == 0 { EIO } else { ENOSPC };
        ground.faults.fail_changes(after, 1, errno);
        let shrunk = file.shrink();
        ground.faults.heal();
        file.give_up();
        let file = File::reopen(&settings, version).unwrap();
        assert_eq!(file.newest().unwrap().version, version);
        file.close().unwrap();
        let kv = ground.open();
        assert_rest(&kv, &format!("change {after}")).await;
        if shrunk.is_ok() && ground.faults.hits() == hits {
            break;
        }
        hits = ground.faults.hits();
        failed += u32::from(shrunk.is_err());
    }
    assert!(failed > 5, "{failed} changes failed");
}

#[tokio::test]
async fn power_losses_while_the_file_shrinks_lose_nothing() {
    let ground = short_of_space();
    let kv = ground.open();
    fill(&kv).await;
    drop(kv);
    let start = std::fs::read(ground.path()).unwrap();
    let kv = ground.open();
    ground.faults.record();
    remove_most(&kv).await;
    let acknowledged = ground.faults.recorded();
    let version = kv.shared.versions.read().newest();
    until_small(&ground).await;
    drop(kv);
    let changes = ground.faults.take_recorded();
    let cuts = changes
        .iter()
        .filter(|change| matches!(change, DiskChange::SetLen(len) if *len < SMALL_BYTES))
        .count();
    assert!(cuts > 0, "the file was cut");
    let rng = base::Rng::seeded(12);
    let after = changes.len() - acknowledged;
    for loss in 0..LOSSES {
        let cut = acknowledged + usize::try_from(rng.u64()).unwrap() % after;
        std::fs::write(ground.path(), after_loss(&start, &changes[..cut], &rng)).unwrap();
        witness_claims(&ground, Some(version));
        let told = format!("loss {loss} after {cut} of {} changes", changes.len());
        let kv = ground.try_open();
        let kv = kv.unwrap_or_else(|error| panic!("{told}: {error}"));
        assert_rest(&kv, &told).await;
        drop(kv);
    }
}
