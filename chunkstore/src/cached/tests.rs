use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::Semaphore;

use super::*;
use crate::memory::MemoryStore;

const DOMAIN: Domain = Domain {
    id: DomainId::new(1),
    key: [1; 32],
};

/// Counts reads, and lets them go on one permit each.
#[derive(Debug)]
struct GatedStore {
    inner: MemoryStore,
    reads: AtomicU32,
    gate: Semaphore,
}

impl GatedStore {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryStore::new(),
            reads: AtomicU32::new(0),
            gate: Semaphore::new(0),
        })
    }
}

impl ChunkStore for GatedStore {
    fn put(&self, domain: Domain, content: Bytes) -> ChunkFuture<'_, ChunkId> {
        self.inner.put(domain, content)
    }

    fn sync(&self) -> ChunkFuture<'_, ()> {
        self.inner.sync()
    }

    fn get(&self, domain: Domain, id: ChunkId) -> ChunkFuture<'_, Bytes> {
        Box::pin(async move {
            self.reads.fetch_add(1, Ordering::SeqCst);
            self.gate.acquire().await.unwrap().forget();
            self.inner.get(domain, id).await
        })
    }

    fn cached(&self, _domain: Domain, _id: ChunkId) -> Option<Bytes> {
        None
    }
}

#[tokio::test]
async fn put_warms_the_cache() {
    let inner = GatedStore::new();
    let store = CachedStore::new(inner.clone(), 1 << 20);
    let id = store.put(DOMAIN, Bytes::from_static(b"x")).await.unwrap();
    assert_eq!(store.cached(DOMAIN, id).unwrap(), b"x".as_slice());
    assert_eq!(store.get(DOMAIN, id).await.unwrap(), b"x".as_slice());
    assert_eq!(inner.reads.load(Ordering::SeqCst), 0);
    assert_eq!(store.counters().hits.count(), 2);
}

#[tokio::test]
async fn readers_of_one_chunk_share_one_read() {
    let inner = GatedStore::new();
    let id = inner.put(DOMAIN, Bytes::from_static(b"x")).await.unwrap();
    let store = CachedStore::new(inner.clone(), 1 << 20);
    assert_eq!(store.cached(DOMAIN, id), None);
    let readers = async {
        tokio::join!(
            store.get(DOMAIN, id),
            store.get(DOMAIN, id),
            store.get(DOMAIN, id)
        )
    };
    let opener = async {
        tokio::task::yield_now().await;
        inner.gate.add_permits(1);
    };
    let ((a, b, c), ()) = tokio::join!(readers, opener);
    for content in [a, b, c] {
        assert_eq!(content.unwrap(), b"x".as_slice());
    }
    assert_eq!(inner.reads.load(Ordering::SeqCst), 1);
    assert_eq!(store.counters().misses.count(), 1);
}

#[tokio::test]
async fn a_reader_that_gives_up_does_not_stop_the_others() {
    let inner = GatedStore::new();
    let id = inner.put(DOMAIN, Bytes::from_static(b"x")).await.unwrap();
    let store = CachedStore::new(inner.clone(), 1 << 20);
    {
        let mut first = store.get(DOMAIN, id);
        let pending =
            std::future::poll_fn(|cx| std::task::Poll::Ready(first.as_mut().poll(cx).is_pending()));
        assert!(pending.await);
    }
    inner.gate.add_permits(1);
    assert_eq!(store.get(DOMAIN, id).await.unwrap(), b"x".as_slice());
}

#[tokio::test]
async fn a_failed_read_is_not_cached() {
    let inner = GatedStore::new();
    let store = CachedStore::new(inner.clone(), 1 << 20);
    let id = DOMAIN.chunk_id(b"x");
    inner.gate.add_permits(2);
    assert_eq!(store.get(DOMAIN, id).await, Err(ChunkError::NotFound(id)));
    inner.put(DOMAIN, Bytes::from_static(b"x")).await.unwrap();
    assert_eq!(store.get(DOMAIN, id).await.unwrap(), b"x".as_slice());
}

#[tokio::test]
async fn the_cache_keeps_to_its_size() {
    let bytes: u64 = 4 << 20;
    let inner = Arc::new(MemoryStore::new());
    let store = CachedStore::new(inner, usize::try_from(bytes).unwrap());
    for number in 0..256_u32 {
        let content = Bytes::from(number.to_be_bytes().repeat(16 * 1024));
        let id = store.put(DOMAIN, content.clone()).await.unwrap();
        assert_eq!(store.get(DOMAIN, id).await.unwrap(), content);
        assert!(store.cached_bytes() <= bytes);
    }
    assert!(store.cached_bytes() > bytes / 2);
}

#[tokio::test]
async fn the_largest_chunk_can_be_cached() {
    // Large enough in all that no single shard is too small for it.
    let store = CachedStore::new(Arc::new(MemoryStore::new()), 64 << 20);
    let content = Bytes::from(vec![7; base::limits::CHUNK_BYTES_MAX]);
    let id = store.put(DOMAIN, content.clone()).await.unwrap();
    assert_eq!(store.cached(DOMAIN, id), Some(content));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms() {
    for bytes in [0, 1 << 20, 64 << 20] {
        let inner = Arc::new(MemoryStore::new());
        crate::conformance::run(Arc::new(CachedStore::new(inner, bytes))).await;
    }
}
