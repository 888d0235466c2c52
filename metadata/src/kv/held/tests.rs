use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use base::{ManualClock, Timestamp};

use super::*;
use crate::kv::conformance::{self, Subject};
use crate::kv::memory::MemoryKv;

/// The oldest hold; 0 if there is none.
#[derive(Debug, Default)]
struct Oldest(AtomicU64);

impl Admission for Oldest {
    fn is_asked(&self) -> bool {
        self.0.load(SeqCst) > 0
    }

    fn allows(&self, record: &CycleRecord) -> bool {
        self.0.load(SeqCst) >= record.floor
    }
}

struct World {
    inner: Arc<MemoryKv>,
    kv: HeldKv,
    oldest: Arc<Oldest>,
}

fn world() -> World {
    let inner = Arc::new(MemoryKv::new(Arc::new(ManualClock::new(Timestamp::EPOCH))));
    let oldest = Arc::new(Oldest::default());
    let admission: Arc<dyn Admission> = Arc::<Oldest>::clone(&oldest);
    World {
        kv: HeldKv::new(Arc::<MemoryKv>::clone(&inner), admission),
        inner,
        oldest,
    }
}

impl World {
    async fn raise_to(&self, floor: u64) {
        let record = CycleRecord {
            cycle: floor,
            floor,
            ..CycleRecord::default()
        };
        let mut txn = self.inner.begin();
        txn.set(&keyspace::cycle(), &record.encode());
        txn.commit().await.unwrap();
    }

    async fn write(&self) -> Result<Version, KvError> {
        let mut txn = self.kv.begin();
        txn.set(b"key", b"value");
        txn.commit().await.map(|committed| committed.version)
    }

    /// As a flush does, after a commit at `version`.
    async fn write_behind(&self, version: Version) -> Result<Version, KvError> {
        let mut txn = self.kv.begin();
        txn.set_read_version(Version(version.0 - self.kv.versions_behind()));
        txn.set(b"key", b"value");
        txn.commit().await.map(|committed| committed.version)
    }
}

#[tokio::test]
async fn it_is_a_store() {
    let open = async || {
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        let inner = Arc::new(MemoryKv::new(clock.clone()));
        // A blind write has no age only as long as there is nothing to decide.
        let oldest = Oldest::default();
        Subject {
            kv: Arc::new(HeldKv::new(inner, Arc::new(oldest))),
            clock: Some(clock),
        }
    };
    conformance::suite(open).await;
}

#[tokio::test]
async fn nothing_is_committed_under_a_hold_below_the_floor() {
    let world = world();
    world.raise_to(5).await;
    world.write().await.unwrap();
    for (oldest, expected) in [(4, Err(KvError::Outlived)), (5, Ok(())), (6, Ok(()))] {
        world.oldest.0.store(oldest, SeqCst);
        assert_eq!(world.write().await.map(drop), expected, "{oldest}");
        // What a gateway says of itself is not asked about.
        let mut txn = world.kv.begin();
        txn.set(&keyspace::lease(base::GatewayId::new(1)), b"lease");
        txn.commit().await.unwrap();
        // Reads are free.
        let txn = world.kv.begin();
        txn.get(b"key", Isolation::Serializable).await.unwrap();
        txn.commit().await.unwrap();
    }
}

#[tokio::test]
async fn a_floor_that_is_raised_meanwhile_is_met() {
    let world = world();
    world.raise_to(1).await;
    world.oldest.0.store(1, SeqCst);
    let mut txn = world.kv.begin();
    txn.get(b"other", Isolation::Serializable).await.unwrap();
    txn.set(b"key", b"value");
    world.raise_to(2).await;
    assert_eq!(txn.commit().await, Err(KvError::Conflict));
    assert_eq!(world.write().await, Err(KvError::Outlived));
}

#[tokio::test]
async fn what_is_known_of_the_floor_is_as_good_as_reading_it() {
    let world = world();
    world.raise_to(1).await;
    world.oldest.0.store(1, SeqCst);
    let mut version = world.write().await.unwrap();
    for _ in 0..3 {
        version = world.write_behind(version).await.unwrap();
    }
    let known = world.kv.shared.known.lock().unwrap();
    assert_eq!(known.0, Version(version.0 - 1));
    world.raise_to(2).await;
    let late = world.write_behind(version).await;
    assert_eq!(late, Err(KvError::Conflict));
    world.oldest.0.store(2, SeqCst);
    world.write().await.unwrap();
    // At a version of which nothing is known it is read.
    world.raise_to(3).await;
    let version = world.inner.begin().read_version().await.unwrap();
    let late = world.write_behind(Version(version.0 + 1)).await;
    assert_eq!(late, Err(KvError::Outlived));
}
