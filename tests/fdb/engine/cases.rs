//! The cases.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base::limits::{FDB_PREFIX_BYTES_MAX, FDB_TIMEOUT_DEFAULT};
use base::{Clock, Rng, SystemClock, TenantId};
use bytes::Bytes;
use metadata::kv::conformance::{Subject, suite};
use metadata::kv::fdb::{FdbKv, FdbOptions, NetworkOptions, OpenError, stop_network};
use metadata::kv::{AtomicOp, Isolation, KeyRange, Kv, KvError, RangeLimit, Version};
use metadata::store::{NewWorkspace, Store, StoreError};
use metadata::transact::{Budget, Earlier, Transactor};

use super::emulator::Emulator;

/// Every fault that a client has to live with, often.
const ALL_FAULTS: &str = "unknown-applied=5%,unknown-dropped=5%,conflict=5%,too-old=5%,future=2%,\
                          behind=2%,straggle=2%:50,delay=10%:5,cut=30%,jump=1%";

/// The suite has transactions that become too old, and are to say that.
const SUITE_TIMEOUT: Duration = Duration::from_secs(30);

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

fn options(emulator: &Emulator) -> FdbOptions {
    FdbOptions {
        cluster_file: Some(emulator.file()),
        ..FdbOptions::default()
    }
}

async fn open(options: &FdbOptions) -> FdbKv {
    FdbKv::open(options, clock()).await.unwrap()
}

async fn put(kv: &FdbKv, key: &[u8], value: &[u8]) -> Version {
    let mut txn = kv.begin();
    txn.set(key, value);
    txn.commit().await.unwrap().version
}

async fn value(kv: &FdbKv, key: &[u8]) -> Option<Bytes> {
    kv.begin().get(key, Isolation::Snapshot).await.unwrap()
}

pub(super) async fn wrong_options_are_told() {
    let root = tempfile::tempdir().unwrap();
    let missing = root.path().join("missing");
    let empty = root.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    for (path, told) in [
        (&missing, "No such file"),
        (&empty, "it is empty"),
        (&root.path().to_owned(), "not a regular file"),
    ] {
        let options = FdbOptions {
            cluster_file: Some(path.clone()),
            ..FdbOptions::default()
        };
        let error = FdbKv::open(&options, clock()).await.unwrap_err();
        assert!(matches!(error, OpenError::ClusterFile { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains(told), "{error}");
        assert!(error.contains(path.to_str().unwrap()), "{error}");
    }
    let named = |path: &PathBuf| Some(path.clone());
    for network in [
        NetworkOptions {
            tls_certificate: named(&missing),
            ..NetworkOptions::default()
        },
        NetworkOptions {
            tls_key: named(&missing),
            ..NetworkOptions::default()
        },
        NetworkOptions {
            tls_certificate: named(&empty),
            tls_ca: named(&missing),
            ..NetworkOptions::default()
        },
    ] {
        let options = FdbOptions {
            network,
            ..FdbOptions::default()
        };
        let error = FdbKv::open(&options, clock()).await.unwrap_err();
        assert!(matches!(error, OpenError::TlsFile { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains(missing.to_str().unwrap()), "{error}");
    }
    for prefix in [vec![0xff], vec![b'x'; FDB_PREFIX_BYTES_MAX + 2]] {
        let options = FdbOptions {
            prefix,
            ..FdbOptions::default()
        };
        let error = FdbKv::open(&options, clock()).await.unwrap_err();
        assert!(matches!(error, OpenError::Options(_)), "{error}");
    }
}

pub(super) async fn a_silent_cluster_is_not_waited_for_long() {
    // A port that nobody listens on, as it was somebody's a moment ago.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("fdb.cluster");
    std::fs::write(&file, format!("test:test@{address}\n")).unwrap();
    let options = FdbOptions {
        cluster_file: Some(file),
        open_timeout: Duration::from_millis(300),
        ..FdbOptions::default()
    };
    let error = FdbKv::open(&options, clock()).await.unwrap_err();
    assert!(matches!(error, OpenError::Unavailable { .. }), "{error}");
}

pub(super) async fn one_network_for_all_stores() {
    let emulator = Emulator::start(1, "none");
    let first = open(&options(&emulator)).await;
    let second = open(&options(&emulator)).await;
    put(&first, b"a", b"1").await;
    assert_eq!(value(&second, b"a").await.as_deref(), Some(&b"1"[..]));
    let mut other = options(&emulator);
    other.network.tls_verify_peers = Some("Check.Valid=1".into());
    let error = FdbKv::open(&other, clock()).await.unwrap_err();
    assert!(matches!(error, OpenError::Network(_)), "{error}");
}

pub(super) async fn prefixes_do_not_see_each_other() {
    let emulator = Emulator::start(1, "none");
    let with = |prefix: &str| FdbOptions {
        prefix: prefix.into(),
        ..options(&emulator)
    };
    let (one, two) = (open(&with("one/")).await, open(&with("two/")).await);
    let all = open(&options(&emulator)).await;
    put(&one, b"k", b"1").await;
    put(&two, b"k", b"2").await;
    let mut txn = one.begin();
    let stamped = [&b"log/"[..], &[0; 10], &4_u32.to_le_bytes()].concat();
    txn.atomic(AtomicOp::SetVersionstampedKey, &stamped, b"v");
    let stamp = txn.commit().await.unwrap().stamp;
    let logged = [&b"log/"[..], &stamp].concat();
    assert_eq!(value(&one, &logged).await.as_deref(), Some(&b"v"[..]));
    assert_eq!(value(&all, b"one/k").await.as_deref(), Some(&b"1"[..]));
    let everything = KeyRange::prefix(b"");
    for (reverse, first) in [(false, &b"k"[..]), (true, &logged)] {
        let limit = RangeLimit {
            reverse,
            ..RangeLimit::pairs(10)
        };
        let txn = one.begin();
        let page = txn.get_range(&everything, limit, Isolation::Serializable);
        let page = page.await.unwrap();
        assert_eq!(page.pairs.len(), 2);
        assert_eq!(*page.pairs[0].0, *first);
    }
    // A key that is too long with the prefix only.
    let mut txn = one.begin();
    txn.set(&[b'x'; 9_997], b"");
    assert!(matches!(txn.commit().await, Err(KvError::Limit(_))));
    let mut txn = one.begin();
    txn.clear_range(&everything);
    txn.commit().await.unwrap();
    assert_eq!(value(&one, b"k").await, None);
    assert_eq!(value(&two, b"k").await.as_deref(), Some(&b"2"[..]));
}

pub(super) async fn what_the_trait_has_beyond_the_library() {
    let emulator = Emulator::start(1, "none");
    let kv = open(&options(&emulator)).await;
    let version = put(&kv, b"a", b"1").await;
    // A commit of reads tells the version that they were read at.
    let txn = kv.begin();
    assert!(txn.get(b"a", Isolation::Serializable).await.is_ok());
    let read = txn.read_version().await.unwrap();
    let committed = txn.commit().await.unwrap();
    assert_eq!((committed.version, committed.stamp), (read, [0; 10]));
    let committed = kv.begin().commit().await.unwrap();
    assert!(committed.version >= version, "{committed:?}");
    // One that was told by another handle's commit is not known to a new process; here it is to
    // the handle that made it.
    let mut named = kv.begin();
    named.set_read_version(version);
    assert_eq!(named.commit().await.unwrap().version, version);
    let mut future = kv.begin();
    future.set_read_version(Version(version.0 + (1 << 40)));
    future.add_read_conflict_range(&KeyRange::key(b"a"));
    future.set(b"b", b"");
    assert_eq!(future.commit().await, Err(KvError::VersionTooOld));
    assert_eq!(value(&kv, b"b").await, None);
    // A commit that only makes others conflict.
    let mut reader = kv.begin();
    assert!(reader.get(b"a", Isolation::Serializable).await.is_ok());
    reader.set(b"c", b"");
    let mut other = kv.begin();
    other.add_write_conflict_range(&KeyRange::key(b"a"));
    let committed = other.commit().await.unwrap();
    assert!(committed.version > read);
    assert_eq!(reader.commit().await, Err(KvError::Conflict));
    assert_eq!(kv.available_bytes(), None);
}

pub(super) async fn calls_are_counted_by_how_they_end() {
    let emulator = Emulator::start(1, "none");
    let kv = open(&options(&emulator)).await;
    let mut loser = kv.begin();
    assert!(loser.get(b"a", Isolation::Serializable).await.is_ok());
    put(&kv, b"a", b"").await;
    loser.set(b"b", b"");
    assert_eq!(loser.commit().await, Err(KvError::Conflict));
    let mut wrong = kv.begin();
    wrong.set(b"\xff", b"");
    assert!(wrong.commit().await.is_err());
    let calls = kv.calls();
    let counts = (calls.reads.read().count(), calls.commits.read().count());
    assert_eq!(counts, (1, 2));
    assert_eq!((calls.conflicts(), calls.refused()), (1, 1));
    assert_eq!(
        (calls.unknown(), calls.unavailable(), calls.too_old()),
        (0, 0, 0)
    );
}

/// A commit that its client saw time out lands later: it was told as unknown, not as failed.
pub(super) async fn commits_that_may_land_late_are_unknown() {
    let mut emulator = Emulator::start(1, "none");
    let short = FdbOptions {
        timeout: Duration::from_millis(200),
        ..options(&emulator)
    };
    let (kv, patient) = (open(&short).await, open(&options(&emulator)).await);
    emulator.tell("faults straggle@1:600");
    let mut txn = kv.begin();
    txn.set(b"late", b"1");
    assert_eq!(txn.commit().await, Err(KvError::OutcomeUnknown));
    assert_eq!(kv.calls().unknown(), 1);
    for _ in 0..100 {
        if value(&patient, b"late").await.is_some() {
            return;
        }
        clock().sleep(Duration::from_millis(50)).await;
    }
    unreachable!("the commit never landed");
}

/// Bug: with the default settings a transaction that timed out had no time left to be looked up.
pub(super) async fn a_commit_that_times_out_is_looked_up() {
    let mut emulator = Emulator::start(1, "none");
    let transactor = transactor(open(&options(&emulator)).await);
    let behind = FDB_TIMEOUT_DEFAULT + Duration::from_millis(300);
    emulator.tell(&format!("faults straggle@1:{}", behind.as_millis()));
    let runs = AtomicU32::new(0);
    let runs = &runs;
    let looked_up: Result<(), KvError> = transactor
        .transact(Budget::default(), |txn, earlier| {
            Box::pin(async move {
                let run = runs.fetch_add(1, Ordering::Relaxed);
                let found = txn.get(b"once", Isolation::Serializable).await?;
                assert_eq!(earlier == Earlier::Unknown, run > 0);
                if found.is_none() {
                    txn.set(b"once", b"");
                }
                Ok(())
            })
        })
        .await;
    assert_eq!(looked_up, Ok(()));
    assert!(runs.load(Ordering::Relaxed) > 1, "it ran once only");
}

pub(super) async fn the_suite_of_all_engines(faults: &str) {
    let emulator = Emulator::start(7, faults);
    let options = FdbOptions {
        timeout: SUITE_TIMEOUT,
        ..options(&emulator)
    };
    suite(async || Subject {
        kv: Arc::new(open(&options).await),
        clock: None,
    })
    .await;
}

/// Without a prefix, for the longest keys would be too long with one: below `conformance/`, which is
/// cleared.
pub(super) async fn the_suite_on_a_real_cluster(file: PathBuf) {
    let options = FdbOptions {
        cluster_file: Some(file),
        timeout: SUITE_TIMEOUT,
        ..FdbOptions::default()
    };
    suite(async || Subject {
        kv: Arc::new(open(&options).await),
        clock: None,
    })
    .await;
    let mut txn = open(&options).await.begin();
    txn.clear_range(&KeyRange::prefix(metadata::kv::conformance::PREFIX));
    txn.commit().await.unwrap();
}

fn transactor(kv: FdbKv) -> Transactor {
    Transactor::new(Arc::new(kv), clock(), Arc::new(Rng::system().unwrap()))
}

/// Budget that outlasts any streak of faults.
const PATIENT: Budget = Budget {
    attempts_max: 1_000,
    time_max: Duration::from_secs(60),
};

/// Each addition happens once, whatever its commits said.
pub(super) async fn counts_survive_all_faults() {
    const ADDITIONS: u64 = 150;
    let mut emulator = Emulator::start(11, ALL_FAULTS);
    let kv = open(&options(&emulator)).await;
    let calls = Arc::clone(kv.calls());
    let transactor = transactor(kv);
    for number in 0..ADDITIONS {
        let mark = [&b"mark/"[..], &number.to_be_bytes()].concat();
        let mark = &mark;
        let added: Result<(), KvError> = transactor
            .transact(PATIENT, |txn, earlier| {
                Box::pin(async move {
                    let done = txn.get(mark, Isolation::Serializable).await?;
                    if earlier == Earlier::Unknown && done.is_some() {
                        return Ok(());
                    }
                    txn.set(mark, b"");
                    txn.atomic(AtomicOp::Add, b"count", &1_u64.to_le_bytes());
                    Ok(())
                })
            })
            .await;
        added.unwrap();
    }
    emulator.tell("faults none");
    let read: Result<_, KvError> = transactor
        .transact(PATIENT, |txn, _| {
            Box::pin(async move { txn.get(b"count", Isolation::Serializable).await })
        })
        .await;
    let count = u64::from_le_bytes(read.unwrap().unwrap()[..].try_into().unwrap());
    assert_eq!(count, ADDITIONS);
    let met = [
        calls.conflicts(),
        calls.too_old(),
        calls.unknown(),
        calls.unavailable(),
    ];
    assert!(met.iter().all(|count| *count > 0), "faults met: {met:?}");
}

/// Names are given once, and what was made is there.
pub(super) async fn the_store_survives_all_faults() {
    const WORKSPACES: usize = 12;
    let mut emulator = Emulator::start(13, ALL_FAULTS);
    let rng = Arc::new(Rng::system().unwrap());
    let with = FdbOptions {
        prefix: b"holdfast/".to_vec(),
        ..options(&emulator)
    };
    let kv: Arc<dyn Kv> = Arc::new(open(&with).await);
    let store = Store::open(kv, clock(), Arc::clone(&rng)).await.unwrap();
    for number in 0..WORKSPACES {
        let new = || NewWorkspace {
            name: format!("w{number}"),
            root: (0o755, 0, 0),
        };
        store
            .create_workspace(TenantId::DEFAULT, new())
            .await
            .unwrap();
        let again = store.create_workspace(TenantId::DEFAULT, new()).await;
        assert!(matches!(again, Err(StoreError::Exists { .. })), "{again:?}");
    }
    let format = store.format().await.unwrap();
    drop(store);
    emulator.tell("faults none");
    let kv: Arc<dyn Kv> = Arc::new(open(&with).await);
    let opened = Store::open_as(Arc::clone(&kv), clock(), rng, [1; 16]).await;
    assert_eq!(
        opened.unwrap().format().await,
        Ok(format),
        "it keeps its name"
    );
    let report = metadata::check::check(&*kv, metadata::check::CheckOptions::default());
    let report = report.await.unwrap();
    assert!(report.is_clean(), "{report:?}");
}

pub(super) fn the_network_ends_once() {
    stop_network();
    stop_network();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let emulator = Emulator::start(1, "none");
    let error = runtime.block_on(FdbKv::open(&options(&emulator), clock()));
    assert!(matches!(error, Err(OpenError::Network(_))), "{error:?}");
}
