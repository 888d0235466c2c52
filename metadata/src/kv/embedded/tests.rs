//! The suite on the store in a file, and what only a file can show.

mod header;
mod power;
mod shrink;

use base::{ManualClock, SystemClock, Timestamp};
use bytes::Bytes;
use futures_util::future::join_all;

use super::*;
use crate::kv::conformance::{Subject, suite};
use crate::kv::{Isolation, KeyRange, RangeLimit};

/// Bug: what the device made of a value while the store was open was taken for it.
#[tokio::test]
async fn a_value_that_is_damaged_meanwhile_is_an_error() {
    const VALUES: u8 = 200;
    let key = |number: u8| vec![b'k', number];
    let value = |number: u8| vec![number; 3000];
    let ground = Ground::new();
    let kv = ground.open();
    for number in 0..VALUES {
        set(&kv, &key(number), &value(number)).await.unwrap();
    }
    drop(kv);
    let options = EmbeddedOptions {
        cache_bytes: 0,
        ..ground.options.clone()
    };
    let kv = EmbeddedKv::open(&ground.path(), &options, Arc::new(SystemClock::new())).unwrap();
    let mut bytes = std::fs::read(ground.path()).unwrap();
    let (hurt, mut hits) = (7, 0);
    for at in 0..bytes.len() - 100 {
        if bytes[at..at + 100] == [hurt; 100] {
            bytes[at + 50] ^= 1;
            hits += 1;
        }
    }
    assert!(hits > 0);
    // Over the file that is open, as a device would.
    let file = std::fs::OpenOptions::new().write(true).open(ground.path());
    std::os::unix::fs::FileExt::write_all_at(&file.unwrap(), &bytes, 0).unwrap();
    for number in 0..VALUES {
        let found = get(&kv, &key(number)).await;
        if number == hurt {
            assert!(matches!(found, Err(KvError::Corrupt(_))), "{found:?}");
        } else {
            assert_eq!(found.unwrap().unwrap(), value(number));
        }
    }
    let whole = KeyRange {
        start: vec![b'k'].into(),
        end: vec![b'l'].into(),
    };
    let page = kv.begin();
    let page = page.get_range(&whole, RangeLimit::pairs(1000), Isolation::Snapshot);
    assert!(matches!(page.await, Err(KvError::Corrupt(_))));
    // Writing it anew mends it.
    set(&kv, &key(hurt), &value(1)).await.unwrap();
    assert_eq!(get(&kv, &key(hurt)).await.unwrap().unwrap(), value(1));
}

/// No space left on device.
const ENOSPC: i32 = 28;

/// Input/output error.
const EIO: i32 = 5;

struct Ground {
    dir: tempfile::TempDir,
    options: EmbeddedOptions,
    faults: Arc<DiskFaults>,
}

impl Ground {
    fn new() -> Self {
        let faults = Arc::new(DiskFaults::default());
        Self {
            dir: tempfile::tempdir().unwrap(),
            options: EmbeddedOptions {
                cache_bytes: 4 << 20,
                faults: Some(Arc::clone(&faults)),
                ..EmbeddedOptions::default()
            },
            faults,
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("store.kv")
    }

    fn try_open(&self) -> Result<EmbeddedKv, OpenError> {
        EmbeddedKv::open(&self.path(), &self.options, Arc::new(SystemClock::new()))
    }

    fn open(&self) -> EmbeddedKv {
        self.try_open().unwrap()
    }
}

async fn set(kv: &dyn Kv, key: &[u8], value: &[u8]) -> Result<Committed, KvError> {
    let mut transaction = kv.begin();
    transaction.set(key, value);
    transaction.commit().await
}

async fn get(kv: &dyn Kv, key: &[u8]) -> Result<Option<Bytes>, KvError> {
    kv.begin().get(key, Isolation::Serializable).await
}

/// Reads once the store answers again. A sync may take seconds on a busy machine.
async fn settled(kv: &dyn Kv, key: &[u8]) -> Option<Bytes> {
    let clock = SystemClock::new();
    for _ in 0..6000 {
        match get(kv, key).await {
            Ok(value) => return value,
            Err(KvError::Unavailable(_) | KvError::NoSpace) => {}
            Err(error) => panic!("{error}"),
        }
        clock.sleep(Duration::from_millis(10)).await;
    }
    panic!("the store did not come back");
}

#[tokio::test]
async fn embedded_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let count = std::cell::Cell::new(0);
    suite(async || {
        count.set(count.get() + 1);
        let path = dir.path().join(format!("{}.kv", count.get()));
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        let kv = EmbeddedKv::open(&path, &EmbeddedOptions::default(), clock.clone()).unwrap();
        Subject {
            kv: Arc::new(kv),
            clock: Some(clock),
        }
    })
    .await;
}

#[tokio::test]
async fn content_and_versions_outlive_the_process() {
    let ground = Ground::new();
    let mut last = Version(0);
    for round in 0..4_u8 {
        let kv = ground.open();
        let version = kv.begin().read_version().await.unwrap();
        assert_eq!(version, last, "a reopened store is at its last version");
        let committed = set(&kv, &[round], &[round]).await.unwrap();
        assert!(committed.version > last);
        last = committed.version;
        for old in 0..=round {
            assert_eq!(get(&kv, &[old]).await.unwrap().as_deref(), Some(&[old][..]));
        }
    }
}

#[tokio::test]
async fn a_closed_store_refuses_and_finishes() {
    let ground = Ground::new();
    let kv = Arc::new(ground.open());
    let held = kv.begin();
    assert_eq!(held.get(b"a", Isolation::Serializable).await, Ok(None));
    let tasks = base::Tasks::new();
    let finished = Arc::new(Mutex::new(Vec::new()));
    for index in 0..50_u8 {
        let (kv, finished) = (Arc::clone(&kv), Arc::clone(&finished));
        tasks.spawn(async move {
            match set(&*kv, &[index], b"").await {
                Ok(_) => finished.lock().push(index),
                Err(error) => assert!(matches!(error, KvError::Unavailable(_)), "{error}"),
            }
        });
    }
    tokio::task::yield_now().await;
    kv.close();
    kv.close();
    tasks.join().await;
    let finished = finished.lock().clone();
    assert!(matches!(
        set(&*kv, b"a", b"").await,
        Err(KvError::Unavailable(_))
    ));
    assert!(matches!(
        get(&*kv, b"a").await,
        Err(KvError::Unavailable(_))
    ));
    // An old snapshot may answer from memory, or not at all, but not wrongly.
    let old = held.get(b"a", Isolation::Serializable).await;
    assert!(matches!(old, Ok(None) | Err(KvError::Unavailable(_))));
    let kv = ground.open();
    for index in 0..50_u8 {
        let stored = get(&kv, &[index]).await.unwrap().is_some();
        assert_eq!(stored, finished.contains(&index), "commit {index}");
    }
}

#[test]
fn a_second_opener_is_told() {
    let ground = Ground::new();
    let first = ground.open();
    assert!(matches!(ground.try_open(), Err(OpenError::InUse { .. })));
    drop(first);
    assert!(ground.try_open().is_ok());
}

#[test]
fn a_missing_directory_is_an_io_error() {
    let ground = Ground::new();
    let path = ground.dir.path().join("no/such/dir");
    let opened = EmbeddedKv::open(&path, &ground.options, Arc::new(SystemClock::new()));
    assert!(matches!(opened, Err(OpenError::Io { .. })));
}

/// A store of a few hundred keys in a file that was closed in order.
async fn filled(ground: &Ground) -> Vec<u8> {
    let kv = ground.open();
    let mut transaction = kv.begin();
    for index in 0..400_u32 {
        transaction.set(&index.to_be_bytes(), &[7; 200]);
    }
    transaction.commit().await.unwrap();
    kv.close();
    std::fs::read(ground.path()).unwrap()
}

/// Opens the file as it is and reads all of it.
async fn read_all(ground: &Ground) -> Result<usize, KvError> {
    let kv = ground.try_open()?;
    let transaction = kv.begin();
    let everything = KeyRange::prefix(b"");
    let limit = RangeLimit::pairs(10_000);
    let page = transaction.get_range(&everything, limit, Isolation::Snapshot);
    Ok(page.await?.pairs.len())
}

#[tokio::test]
async fn damage_is_told_and_not_made_good() {
    let ground = Ground::new();
    let whole = filled(&ground).await;
    let page_of = |needle: &[u8]| {
        let found = whole.windows(needle.len()).position(|part| part == needle);
        found.unwrap()
    };
    let leaf = page_of(&[7; 200]);
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        bytes
    };
    let cases = [
        ("empty", Vec::new()),
        ("no database", b"something else entirely".repeat(100)),
        ("zeros", vec![0; whole.len()]),
        ("a flipped byte of the magic", flipped(0)),
        ("a flipped byte of a value", flipped(leaf + 3)),
        ("half", whole[..whole.len() / 2].to_vec()),
        ("one page", whole[..4096].to_vec()),
    ];
    for (name, bytes) in cases {
        std::fs::write(ground.path(), &bytes).unwrap();
        let result = read_all(&ground).await;
        assert!(
            matches!(result, Err(KvError::Corrupt(_))),
            "{name}: {result:?}"
        );
        let after = std::fs::metadata(ground.path()).unwrap().len();
        assert!(
            after >= u64::try_from(bytes.len()).unwrap(),
            "{name}: not replaced"
        );
    }
    std::fs::write(ground.path(), &whole).unwrap();
    assert_eq!(read_all(&ground).await, Ok(400));
}

/// Whatever bytes are wrong, opening and reading end with an answer.
#[tokio::test]
async fn random_damage_never_panics_through() {
    let ground = Ground::new();
    let whole = filled(&ground).await;
    let rng = base::Rng::seeded(5);
    let pick = |below: usize| usize::try_from(rng.u64()).unwrap() % below;
    for verify in [true, false] {
        let ground = Ground {
            options: EmbeddedOptions {
                verify_on_open: verify,
                ..ground.options.clone()
            },
            dir: tempfile::tempdir().unwrap(),
            faults: Arc::clone(&ground.faults),
        };
        for round in 0..30 {
            let mut bytes = whole.clone();
            // Most of the file is unused, so aim at the part that is not.
            for _ in 0..20 {
                let at = pick(bytes.len());
                let near = bytes[at..].iter().position(|byte| *byte != 0);
                bytes[at + near.unwrap_or(0)] = u8::try_from(rng.u64() % 256).unwrap();
            }
            std::fs::write(ground.path(), &bytes).unwrap();
            match read_all(&ground).await {
                Ok(count) => assert!(!verify || count == 400, "round {round}: {count} keys"),
                Err(KvError::Corrupt(_) | KvError::Unavailable(_)) => {}
                Err(error) => panic!("round {round}: {error}"),
            }
        }
    }
}

/// A commit while the device fails one of its changes: the change after `after` others, and
/// `count - 1` that follow. Gives its outcome; `None` if it had no such change.
async fn commit_on_failing_device(
    after: u64,
    count: u64,
    errno: i32,
) -> Option<Result<(), KvError>> {
    const KEYS: u8 = 6;
    let ground = Ground::new();
    let kv = ground.open();
    set(&kv, b"before", b"1").await.unwrap();
    let mut held = kv.begin();
    assert_eq!(held.get(b"x\0", Isolation::Serializable).await, Ok(None));
    held.set(b"held", b"");
    ground.faults.fail_changes(after, count, errno);
    // Large enough for the file to grow.
    let mut transaction = kv.begin();
    for index in 0..KEYS {
        transaction.set(&[b'x', index], &[1; 100_000]);
    }
    let result = transaction.commit().await.map(|_| ());
    ground.faults.heal();
    if ground.faults.hits() == 0 {
        assert_eq!(result, Ok(()));
        return None;
    }
    let told = format!("errno {errno}, change {after}, {count}: {result:?}");
    assert!(settled(&kv, b"before").await.is_some(), "{told}");
    let mut stored = 0;
    for index in 0..KEYS {
        stored += u8::from(get(&kv, &[b'x', index]).await.unwrap().is_some());
    }
    match &result {
        Ok(()) => assert_eq!(stored, KEYS, "{told}"),
        Err(KvError::OutcomeUnknown) => assert!([0, KEYS].contains(&stored), "{told}: {stored}"),
        Err(_) => assert_eq!(stored, 0, "{told}"),
    }
    // A write that was made conflicts, also if nobody knew for a while.
    match held.commit().await {
        Ok(_) => assert_eq!(stored, 0, "{told}"),
        Err(KvError::Conflict) => assert_eq!(stored, KEYS, "{told}"),
        Err(error) => assert_eq!(error, KvError::VersionTooOld, "{told}"),
    }
    set(&kv, b"after", b"1").await.unwrap();
    kv.close();
    let kv = ground.open();
    let first = get(&kv, b"x\0").await.unwrap();
    assert_eq!(first.is_some(), stored > 0, "{told}: after a restart");
    assert!(get(&kv, b"after").await.unwrap().is_some(), "{told}");
    Some(result)
}

/// Fails each change of the device that a commit makes, in turn: for a while, or once.
#[tokio::test]
async fn every_failed_write_is_told_truly_and_recovered_from() {
    let unavailable = |result: &KvError| matches!(result, KvError::Unavailable(_));
    for errno in [ENOSPC, EIO] {
        for count in [u64::MAX, 1] {
            let (mut failed, mut unknown) = (0, 0);
            for after in 0.. {
                match commit_on_failing_device(after, count, errno).await {
                    None => break,
                    Some(Ok(())) => {}
                    Some(Err(KvError::OutcomeUnknown)) => unknown += 1,
                    Some(Err(KvError::NoSpace)) => {
                        assert_eq!(errno, ENOSPC);
                        failed += 1;
                    }
                    Some(Err(error)) => {
                        assert!(errno == EIO && unavailable(&error), "{error}");
                        failed += 1;
                    }
                }
            }
            // A device that was full for a moment is tried again before anyone is told.
            let hidden = errno == ENOSPC && count == 1;
            assert_eq!(failed > 5, !hidden, "{failed}");
            if count == 1 {
                // The file could be reopened, and told.
                assert_eq!(unknown, 0);
            }
        }
    }
}

#[tokio::test]
async fn a_full_device_is_served_from_until_there_is_space() {
    let ground = Ground::new();
    let kv = ground.open();
    set(&kv, b"before", b"1").await.unwrap();
    ground.faults.fail_changes(0, u64::MAX, ENOSPC);
    for _ in 0..3 {
        let result = set(&kv, b"during", b"1").await;
        assert!(
            matches!(result, Err(KvError::NoSpace | KvError::OutcomeUnknown)),
            "{result:?}"
        );
    }
    ground.faults.heal();
    assert!(settled(&kv, b"before").await.is_some());
    set(&kv, b"after", b"1").await.unwrap();
}

#[tokio::test]
async fn failed_reads_heal_without_a_restart() {
    let ground = Ground::new();
    filled(&ground).await;
    let kv = ground.open();
    kv.close();
    let ground = Ground {
        options: EmbeddedOptions {
            verify_on_open: false,
            cache_bytes: 0,
            ..ground.options.clone()
        },
        ..ground
    };
    let kv = ground.open();
    ground.faults.fail_reads(EIO);
    let key = 7_u32.to_be_bytes();
    let result = get(&kv, &key).await;
    assert!(matches!(result, Err(KvError::Unavailable(_))), "{result:?}");
    ground.faults.heal();
    assert!(settled(&kv, &key).await.is_some());
    set(&kv, b"after", b"1").await.unwrap();
}

/// What queued while a sync ran is made durable by the next one.
#[tokio::test]
async fn concurrent_commits_share_syncs() {
    let ground = Ground::new();
    let kv = ground.open();
    let commits = (0..200_u32).map(|index| {
        let key = index.to_be_bytes();
        let kv = &kv;
        async move { set(kv, &key, b"").await.unwrap().version }
    });
    let mut versions = join_all(commits).await;
    versions.sort_unstable();
    versions.dedup();
    assert!(
        versions.len() < 20,
        "{} syncs for 200 commits",
        versions.len()
    );
}

#[tokio::test]
async fn space_is_told_less_the_reserve() {
    let ground = Ground::new();
    let with_reserve = |reserve_bytes| {
        let options = EmbeddedOptions {
            reserve_bytes,
            ..ground.options.clone()
        };
        let clock = Arc::new(SystemClock::new());
        EmbeddedKv::open(&ground.path(), &options, clock).unwrap()
    };
    let free = with_reserve(0).available_bytes().unwrap();
    assert!(free > 0);
    let less = with_reserve(free / 2).available_bytes().unwrap();
    assert!(less < free / 4 * 3, "{less} of {free}");
    assert_eq!(with_reserve(u64::MAX).available_bytes(), Some(0));
}

#[tokio::test]
async fn stored_bytes_are_counted() {
    let ground = Ground::new();
    let expected = [
        (vec![("a", Some(100)), ("bb", Some(10))], 113),
        (vec![("a", Some(50)), ("c", None)], 63),
        (vec![("bb", None)], 51),
    ];
    for (writes, expected) in expected {
        let kv = ground.open();
        let mut transaction = kv.begin();
        for (key, len) in writes {
            match len {
                Some(len) => transaction.set(key.as_bytes(), &vec![0; len]),
                None => transaction.clear(key.as_bytes()),
            }
        }
        transaction.commit().await.unwrap();
        assert_eq!(kv.stored_bytes(), expected);
    }
    let kv = ground.open();
    assert_eq!(kv.stored_bytes(), 51, "after a restart");
    let mut transaction = kv.begin();
    transaction.clear_range(&KeyRange::prefix(b""));
    transaction.set(b"a", b"1");
    transaction.commit().await.unwrap();
    assert_eq!(kv.stored_bytes(), 2);
}
