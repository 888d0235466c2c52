use base::limits::CHUNK_BYTES_MAX;
use base::{Rng, SystemClock};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};

use super::memory_ledger::MemoryLedger;
use super::objects::ObjectOptions;
use super::*;
use crate::ChunkError;

const DOMAIN: Domain = Domain {
    id: DomainId::new(1),
    key: [1; 32],
};

/// With an object store in memory, and nothing that packs behind.
async fn open_with_objects(
    ledger: &Arc<MemoryLedger>,
    store: &Arc<InMemory>,
    staging_bytes_max: u64,
) -> SharedStore {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let objects = Objects::new(
        Arc::<InMemory>::clone(store),
        None,
        Path::default(),
        ObjectOptions::default(),
        Arc::clone(&clock),
        Arc::new(Rng::system().unwrap()),
    );
    let options = SharedOptions {
        staging_bytes_max,
        packers: 0,
        full_time: Duration::from_secs(2),
        ..SharedOptions::default()
    };
    let parts = SharedParts {
        ledger: Arc::<MemoryLedger>::clone(ledger),
        cycles: Arc::new(KnownCycle::default()),
        objects: Some(Arc::new(objects)),
        disk: None,
        clock,
        tasks: Tasks::new(),
    };
    SharedStore::open(parts, options).await.unwrap()
}

async fn open(ledger: &Arc<MemoryLedger>) -> SharedStore {
    let options = SharedOptions {
        queue_bytes_max: 1 << 20,
        ..SharedOptions::default()
    };
    let parts = SharedParts {
        ledger: Arc::<MemoryLedger>::clone(ledger),
        cycles: Arc::new(KnownCycle::default()),
        objects: None,
        disk: None,
        clock: Arc::new(SystemClock::new()),
        tasks: Tasks::new(),
    };
    SharedStore::open(parts, options).await.unwrap()
}

fn key(content: &Bytes) -> ChunkKey {
    ChunkKey {
        domain: DOMAIN.id,
        id: DOMAIN.chunk_id(content),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms() {
    let store = open(&Arc::default()).await;
    crate::conformance::run(Arc::new(store)).await;
}

#[tokio::test]
async fn what_one_has_synced_another_reads() {
    let ledger = Arc::default();
    let (one, two) = (open(&ledger).await, open(&ledger).await);
    let content = Bytes::from_static(b"shared");
    let id = one.put(DOMAIN, content.clone()).await.unwrap();
    assert_eq!(two.get(DOMAIN, id).await, Err(ChunkError::NotFound(id)));
    one.sync().await.unwrap();
    assert_eq!(two.get(DOMAIN, id).await, Ok(content.clone()));
    two.put(DOMAIN, content.clone()).await.unwrap();
    two.sync().await.unwrap();
    assert_eq!(two.counters().dedup_hits.count(), 1);
    assert_eq!(two.counters().stored_bytes.count(), 0);
    ledger.spoil(key(&content), Bytes::from_static(b"other"));
    assert_eq!(two.get(DOMAIN, id).await, Err(ChunkError::Corrupt(id)));
}

/// A collection by another process takes what has an older cycle; whoever puts or touches raises it,
/// also if it knows the chunk, and stores anew what is gone.
#[tokio::test]
async fn puts_and_touches_raise_the_cycle_or_store_anew() {
    let ledger: Arc<MemoryLedger> = Arc::default();
    let store = open(&ledger).await;
    let [put, touched, gone] = [&b"put"[..], b"touched", b"gone"].map(Bytes::from_static);
    for content in [&put, &touched, &gone] {
        store.put(DOMAIN, content.clone()).await.unwrap();
    }
    store.sync().await.unwrap();
    let transactions = || store.shared_counters().transactions.count();
    assert_eq!(transactions(), 1);
    store.put(DOMAIN, put.clone()).await.unwrap();
    store.touch(DOMAIN.id, key(&touched).id);
    store.sync().await.unwrap();
    assert_eq!(transactions(), 1, "known in this cycle");
    let hold = store.hold();
    let cycle = ledger.begin_cycle();
    // Something tells: here, another chunk.
    store.put(DOMAIN, Bytes::from_static(b"x")).await.unwrap();
    store.sync().await.unwrap();
    assert!(!store.is_released_before(cycle));
    drop(hold);
    assert!(store.is_released_before(cycle));
    let young = store.hold();
    assert!(store.is_released_before(cycle));
    store.put(DOMAIN, put.clone()).await.unwrap();
    store.touch(DOMAIN.id, key(&touched).id);
    store.sync().await.unwrap();
    assert_eq!(ledger.sweep(cycle), 1);
    assert_eq!(ledger.location(key(&put)).unwrap().cycle, cycle);
    assert_eq!(ledger.location(key(&touched)).unwrap().cycle, cycle);
    store.put(DOMAIN, gone.clone()).await.unwrap();
    store.sync().await.unwrap();
    assert_eq!(store.get(DOMAIN, key(&gone).id).await, Ok(gone));
    let lost = ChunkId::new([9; 32]);
    store.touch(DOMAIN.id, lost);
    store.sync().await.unwrap();
    assert_eq!(store.shared_counters().missing.count(), 1);
    assert_eq!(store.holds(), 1);
    drop(young);
}

/// What a failed sync did not store is readable, and the next one stores it.
#[tokio::test]
async fn a_failed_sync_loses_nothing() {
    let ledger: Arc<MemoryLedger> = Arc::default();
    let store = open(&ledger).await;
    let contents: Vec<Bytes> = (0..6_u8)
        .map(|number| {
            vec![number; CHUNK_BYTES_MAX / 4]
                .into_iter()
                .rev()
                .collect()
        })
        .collect();
    let mut ids = Vec::new();
    ledger.fail(2);
    for content in &contents {
        ids.push(store.put(DOMAIN, content.clone()).await.unwrap());
    }
    store.touch(DOMAIN.id, ids[0]);
    let failed = store.sync().await;
    assert!(matches!(failed, Err(ChunkError::Unavailable(_))));
    for (content, id) in contents.iter().zip(&ids) {
        assert_eq!(store.get(DOMAIN, *id).await.unwrap(), content);
    }
    ledger.fail(0);
    store.sync().await.unwrap();
    assert_eq!(store.queued_bytes(), 0);
    for content in &contents {
        assert!(ledger.location(key(content)).is_some());
    }
}

/// Without a ledger that answers, puts end with an error once enough waits in memory.
#[tokio::test]
async fn memory_is_bounded() {
    let ledger: Arc<MemoryLedger> = Arc::default();
    let store = open(&ledger).await;
    ledger.fail(u32::MAX);
    let mut refused = 0;
    for number in 0..40_u64 {
        let mut content = vec![0; 100_000];
        let seed = number.to_be_bytes();
        blake3::Hasher::new()
            .update(&seed)
            .finalize_xof()
            .fill(&mut content);
        match store.put(DOMAIN, content.into()).await {
            Ok(_) => {}
            Err(ChunkError::Unavailable(_)) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(refused > 20, "{refused}");
    assert!(store.queued_bytes() < (1 << 20) + 200_000);
    ledger.fail(0);
    store.sync().await.unwrap();
    assert_eq!(store.queued_bytes(), 0);
}

/// A sync past staging that ends for want of time has raised nothing that the next one forgets.
#[tokio::test]
async fn touches_of_a_batch_that_is_cut_off_are_repeated() {
    let ledger: Arc<MemoryLedger> = Arc::default();
    let content = Bytes::from_static(b"touched");
    let first = open(&ledger).await;
    first.put(DOMAIN, content.clone()).await.unwrap();
    first.sync().await.unwrap();
    let cycle = ledger.begin_cycle();
    let store = open_with_objects(&ledger, &Arc::default(), 0).await;
    store.touch(DOMAIN.id, key(&content).id);
    store.put(DOMAIN, Bytes::from_static(b"x")).await.unwrap();
    ledger.hold(true);
    let cut_off = store.sync().await;
    assert!(matches!(cut_off, Err(ChunkError::Unavailable(_))));
    ledger.hold(false);
    store.sync().await.unwrap();
    assert_eq!(ledger.location(key(&content)).unwrap().cycle, cycle);
}

/// A batch whose task ends without its end fails, loses nothing, and is in the way of none that comes later.
#[tokio::test]
async fn a_batch_that_panics_is_tried_again() {
    let ledger: Arc<MemoryLedger> = Arc::default();
    let store = open(&ledger).await;
    let content = Bytes::from_static(b"put");
    store.put(DOMAIN, content.clone()).await.unwrap();
    ledger.panic_once();
    let failed = store.sync().await;
    assert!(matches!(failed, Err(ChunkError::Unavailable(_))));
    assert!(ledger.location(key(&content)).is_none());
    store.sync().await.unwrap();
    assert!(ledger.location(key(&content)).is_some());
    assert_eq!(store.queued_bytes(), 0);
}

/// Content that was lost is stored anew by the next put of it, once a read has found that out.
#[tokio::test]
async fn what_is_lost_is_stored_anew_by_a_put() {
    let ledger: Arc<MemoryLedger> = Arc::default();
    let objects: Arc<InMemory> = Arc::default();
    let content = Bytes::from_static(b"lost");
    // Past staging, so that it is in a pack at once.
    let store = open_with_objects(&ledger, &objects, 0).await;
    let id = store.put(DOMAIN, content.clone()).await.unwrap();
    store.sync().await.unwrap();
    let place = ledger.location(key(&content)).unwrap().place;
    let Place::Pack { pack, .. } = place else {
        panic!("{place:?}");
    };
    store.objects().unwrap().delete(pack).await.unwrap();
    assert_eq!(store.get(DOMAIN, id).await, Err(ChunkError::Corrupt(id)));
    for _ in 0..2 {
        store.put(DOMAIN, content.clone()).await.unwrap();
        store.sync().await.unwrap();
        assert_eq!(store.get(DOMAIN, id).await, Ok(content.clone()));
        // And so what is damaged in the ledger.
        ledger.spoil(key(&content), Bytes::from_static(b"other"));
        assert_eq!(store.get(DOMAIN, id).await, Err(ChunkError::Corrupt(id)));
    }
}

/// A pack that ends too early is damage, and no outage.
#[tokio::test]
async fn a_pack_that_is_cut_short_is_damaged() {
    let ledger: Arc<MemoryLedger> = Arc::default();
    let objects: Arc<InMemory> = Arc::default();
    let content = Bytes::from_static(b"in a pack");
    let store = open_with_objects(&ledger, &objects, 0).await;
    let id = store.put(DOMAIN, content.clone()).await.unwrap();
    store.sync().await.unwrap();
    let name = ledger.packs()[0].0.to_string();
    let path = Path::from(format!("packs/{}/{name}", &name[..2]));
    let whole = objects.get(&path).await.unwrap().bytes().await.unwrap();
    for len in [50, 0] {
        let cut = PutPayload::from(whole.slice(..len));
        objects.put(&path, cut).await.unwrap();
        assert_eq!(store.get(DOMAIN, id).await, Err(ChunkError::Corrupt(id)));
    }
}
