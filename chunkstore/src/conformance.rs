//! What every store must do. Each back end runs this suite in its tests.

use std::sync::Arc;

use base::limits::CHUNK_BYTES_MAX;
use base::{ChunkId, DomainId};
use bytes::Bytes;

use crate::{ChunkError, ChunkStore, Domain};

const DOMAIN: Domain = Domain {
    id: DomainId::new(1),
    key: [1; 32],
};

const OTHER_DOMAIN: Domain = Domain {
    id: DomainId::new(2),
    key: [2; 32],
};

/// Contents that are stored at the same time.
const CONCURRENT_PUTS: u32 = 64;

/// Runs all cases on `store`, which must be empty.
///
/// # Panics
///
/// If the store does not conform.
pub async fn run(store: Arc<dyn ChunkStore>) {
    unknown_chunks_are_not_found(&*store).await;
    contents_of_all_sizes_come_back(&*store).await;
    too_large_content_is_refused(&*store).await;
    equal_content_has_one_name(&*store).await;
    domains_are_apart(&*store).await;
    cached_never_lies(&*store).await;
    concurrent_calls_agree(store).await;
}

async fn unknown_chunks_are_not_found(store: &dyn ChunkStore) {
    let id = ChunkId::new([0xab; 32]);
    assert_eq!(store.get(DOMAIN, id).await, Err(ChunkError::NotFound(id)));
    assert_eq!(store.cached(DOMAIN, id), None);
    assert_eq!(store.sync().await, Ok(()), "an empty store syncs");
}

async fn contents_of_all_sizes_come_back(store: &dyn ChunkStore) {
    let sizes = [
        0,
        1,
        79,
        80,
        4096,
        16 * 1024,
        128 * 1024 + 1,
        CHUNK_BYTES_MAX,
    ];
    for size in sizes {
        for content in [zeros(size), text(size), random(size)] {
            let id = put(store, DOMAIN, &content).await;
            assert_eq!(id, DOMAIN.chunk_id(&content));
            assert_content(store, DOMAIN, id, &content).await;
        }
    }
    assert_eq!(store.sync().await, Ok(()));
    for size in sizes {
        for content in [zeros(size), text(size), random(size)] {
            assert_content(store, DOMAIN, DOMAIN.chunk_id(&content), &content).await;
        }
    }
}

async fn too_large_content_is_refused(store: &dyn ChunkStore) {
    let content = zeros(CHUNK_BYTES_MAX + 1);
    let id = DOMAIN.chunk_id(&content);
    let refused = Err(ChunkError::TooLarge(content.len()));
    assert_eq!(store.put(DOMAIN, content).await, refused);
    assert_eq!(store.get(DOMAIN, id).await, Err(ChunkError::NotFound(id)));
}

async fn equal_content_has_one_name(store: &dyn ChunkStore) {
    let content = text(1000);
    let first = put(store, DOMAIN, &content).await;
    let second = put(store, DOMAIN, &content).await;
    assert_eq!(first, second);
}

async fn domains_are_apart(store: &dyn ChunkStore) {
    let content = Bytes::from_static(b"only in one domain");
    let id = put(store, DOMAIN, &content).await;
    let absent = Err(ChunkError::NotFound(id));
    assert_eq!(store.get(OTHER_DOMAIN, id).await, absent);
    assert_eq!(store.cached(OTHER_DOMAIN, id), None);
    let other = put(store, OTHER_DOMAIN, &content).await;
    assert_ne!(id, other, "names must not tell what other domains hold");
    assert_content(store, OTHER_DOMAIN, other, &content).await;
}

async fn cached_never_lies(store: &dyn ChunkStore) {
    let content = random(5000);
    let id = put(store, DOMAIN, &content).await;
    for _ in 0..3 {
        if let Some(cached) = store.cached(DOMAIN, id) {
            assert_eq!(cached, content);
        }
        assert_content(store, DOMAIN, id, &content).await;
    }
}

async fn concurrent_calls_agree(store: Arc<dyn ChunkStore>) {
    let tasks = base::Tasks::new();
    for number in 0..CONCURRENT_PUTS {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            // Every content is put by four tasks.
            let content = Bytes::from((number / 4).to_be_bytes().repeat(3000));
            let id = put(&*store, DOMAIN, &content).await;
            assert_content(&*store, DOMAIN, id, &content).await;
            assert_eq!(store.sync().await, Ok(()));
            assert_content(&*store, DOMAIN, id, &content).await;
        });
    }
    tasks.join().await;
    // A task that panicked ended early; then its content may be missing.
    for number in 0..CONCURRENT_PUTS {
        let content = Bytes::from((number / 4).to_be_bytes().repeat(3000));
        assert_content(&*store, DOMAIN, DOMAIN.chunk_id(&content), &content).await;
    }
}

async fn put(store: &dyn ChunkStore, domain: Domain, content: &Bytes) -> ChunkId {
    let stored = store.put(domain, content.clone()).await;
    let id = domain.chunk_id(content);
    assert_eq!(stored, Ok(id), "put {} bytes", content.len());
    id
}

async fn assert_content(store: &dyn ChunkStore, domain: Domain, id: ChunkId, content: &Bytes) {
    let read = store.get(domain, id).await;
    // Not `assert_eq`, which would print a mebibyte.
    assert!(
        read.as_ref() == Ok(content),
        "get {} bytes: {:?}",
        content.len(),
        read.map(|read| read.len())
    );
}

fn zeros(len: usize) -> Bytes {
    vec![0; len].into()
}

fn text(len: usize) -> Bytes {
    b"it was a dark and stormy night; "
        .iter()
        .copied()
        .cycle()
        .take(len)
        .collect()
}

fn random(len: usize) -> Bytes {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    bytes.into()
}
