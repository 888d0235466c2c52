use std::fs;
use std::sync::atomic::Ordering::SeqCst;

use super::pack::{PACK_HEADER_BYTES, pack_path, sidecar_path};
use super::*;

const DOMAIN: Domain = Domain {
    id: DomainId::new(1),
    key: [1; 32],
};

fn open(dir: &tempfile::TempDir) -> LocalStore {
    LocalStore::open(dir.path(), LocalOptions::default()).unwrap()
}

/// Content that does not compress, so that the lengths on the device are known.
fn random_bytes(seed: u64, len: usize) -> Bytes {
    let mut bytes = vec![0; len];
    blake3::Hasher::new()
        .update(&seed.to_be_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes.into()
}

#[tokio::test]
async fn what_was_synced_is_there_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let mut chunks = Vec::new();
    let store = open(&dir);
    for seed in 0..20 {
        let content = random_bytes(seed, 1000 * usize::try_from(seed).unwrap());
        chunks.push((store.put(DOMAIN, content.clone()).await.unwrap(), content));
    }
    store.sync().await.unwrap();
    let stored = store.stored_bytes();
    drop(store);
    let store = open(&dir);
    assert_eq!(store.stored_bytes(), stored);
    assert_eq!(store.chunk_count(), chunks.len());
    for (id, content) in chunks {
        assert_eq!(store.get(DOMAIN, id).await.unwrap(), content);
        assert!(store.contains(DOMAIN.id, id));
        assert_eq!(store.put(DOMAIN, content).await.unwrap(), id);
    }
    assert_eq!(store.stored_bytes(), stored);
    assert_eq!(store.counters().dedup_hits.count(), 20);
}

#[tokio::test]
async fn a_directory_is_open_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let again = LocalStore::open(dir.path(), LocalOptions::default());
    assert!(matches!(again, Err(ChunkError::Unavailable(_))));
    drop(store);
    open(&dir);
}
