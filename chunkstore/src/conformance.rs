//! The suite that every chunk store passes (feature `testing`).

use std::sync::Arc;

use base::{ChunkId, DomainId};
use bytes::Bytes;

use crate::{ChunkError, ChunkStore, Domain};

/// Runs the suite on a store that holds nothing.
///
/// # Panics
///
/// If the store breaks a promise.
pub async fn suite(store: Arc<dyn ChunkStore>) {
    let one = Domain {
        id: DomainId::new(1),
        key: [1; 32],
    };
    let two = Domain {
        id: DomainId::new(2),
        key: [2; 32],
    };
    let contents: Vec<Bytes> = [0, 1, 100, 16 * 1024, 128 * 1024, 1024 * 1024]
        .into_iter()
        .flat_map(|length: usize| {
            let mixed = (0..length)
                .map(|at| ((at * at) >> 7).to_le_bytes()[0])
                .collect::<Vec<u8>>();
            [Bytes::from(vec![b'z'; length]), Bytes::from(mixed)]
        })
        .collect();
    let mut ids = Vec::new();
    for content in &contents {
        let id = store.put(one, content.clone()).await.expect("put");
        assert_eq!(id, one.chunk_id(content), "the name is the keyed hash");
        assert_eq!(
            store.put(one, content.clone()).await.expect("put again"),
            id
        );
        ids.push(id);
    }
    store.sync().await.expect("sync");
    for (id, content) in ids.iter().zip(&contents) {
        assert_eq!(&store.get(one, *id).await.expect("get"), content);
        assert_eq!(
            store.get(two, *id).await,
            Err(ChunkError::NotFound(*id)),
            "domains are apart"
        );
        assert!(
            store
                .cached(one, *id)
                .is_none_or(|cached| cached == *content)
        );
    }
    let missing = ChunkId::new([9; 32]);
    assert_eq!(
        store.get(one, missing).await,
        Err(ChunkError::NotFound(missing))
    );
    let large = Bytes::from(vec![0; base::limits::CHUNK_BYTES_MAX + 1]);
    assert!(matches!(
        store.put(one, large).await,
        Err(ChunkError::TooLarge(_))
    ));
    concurrent(&store, two).await;
}

async fn concurrent(store: &Arc<dyn ChunkStore>, domain: Domain) {
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8_u8 {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            for round in 0..20_u8 {
                // Half of the content is the same in all tasks.
                let byte = if round % 2 == 0 {
                    round
                } else {
                    round.wrapping_add(task * 20)
                };
                let content = Bytes::from(vec![byte; 20_000]);
                let id = store.put(domain, content.clone()).await.expect("put");
                store.sync().await.expect("sync");
                assert_eq!(store.get(domain, id).await.expect("get"), content);
            }
        });
    }
    while let Some(result) = tasks.join_next().await {
        result.expect("task");
    }
}
