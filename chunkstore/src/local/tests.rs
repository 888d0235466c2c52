use super::*;
use crate::cached::CachedStore;
use crate::conformance;
use base::SystemClock;

const DOMAIN: Domain = Domain {
    id: DomainId::new(1),
    key: [1; 32],
};

fn open(directory: &Path) -> LocalStore {
    let options = LocalOptions {
        pack_bytes: 256 * 1024,
        ..LocalOptions::default()
    };
    LocalStore::open(directory, options, Arc::new(SystemClock::new())).unwrap()
}

/// Content that does not compress.
fn content(number: u8) -> Bytes {
    let mut bytes = vec![0; 3000];
    blake3::Hasher::new()
        .update(&[number])
        .finalize_xof()
        .fill(&mut bytes);
    Bytes::from(bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    let directory = tempfile::tempdir().unwrap();
    conformance::suite(Arc::new(open(directory.path()))).await;
    conformance::suite(Arc::new(crate::memory::MemoryStore::new())).await;
    let directory = tempfile::tempdir().unwrap();
    let store = CachedStore::new(Arc::new(open(directory.path())), 1 << 20);
    conformance::suite(Arc::new(store)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_there_after_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let mut ids = Vec::new();
    {
        let store = open(directory.path());
        for number in 0..200 {
            ids.push(store.put(DOMAIN, content(number)).await.unwrap());
        }
        store.sync().await.unwrap();
    }
    assert!(pack_numbers(directory.path()).unwrap().len() > 1);
    let store = open(directory.path());
    for (number, id) in (0..200).zip(ids) {
        assert_eq!(store.get(DOMAIN, id).await.unwrap(), content(number));
    }
    let mut all = 0;
    store.verify(|chunk| {
        assert!(chunk.intact);
        all += 1;
    });
    assert_eq!(all, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tail_torn_anywhere_loses_nothing_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = pack_path(directory.path(), 1);
    let (first, second, before, after);
    {
        let store = open(directory.path());
        first = store.put(DOMAIN, content(1)).await.unwrap();
        store.sync().await.unwrap();
        before = std::fs::metadata(&path).unwrap().len();
        second = store.put(DOMAIN, content(2)).await.unwrap();
        store.sync().await.unwrap();
        after = std::fs::metadata(&path).unwrap().len();
    }
    let whole = std::fs::read(&path).unwrap();
    for cut in before..after {
        let mut torn = whole.clone();
        torn.truncate(usize::try_from(cut).unwrap());
        std::fs::write(&path, &torn).unwrap();
        check_torn(directory.path(), first, second).await;
        // The same length, but the end was never written.
        torn.resize(whole.len(), 0);
        if torn != whole {
            std::fs::write(&path, &torn).unwrap();
            check_torn(directory.path(), first, second).await;
        }
    }
}

async fn check_torn(directory: &Path, first: ChunkId, second: ChunkId) {
    let store = open(directory);
    assert_eq!(store.get(DOMAIN, first).await.unwrap(), content(1));
    assert_eq!(
        store.get(DOMAIN, second).await,
        Err(ChunkError::NotFound(second))
    );
    // A put really stores it again.
    assert_eq!(store.put(DOMAIN, content(2)).await.unwrap(), second);
    assert_eq!(store.get(DOMAIN, second).await.unwrap(), content(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_is_noticed_and_stays_where_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let first = store.put(DOMAIN, content(1)).await.unwrap();
    let second = store.put(DOMAIN, content(2)).await.unwrap();
    let path = pack_path(directory.path(), 1);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8 + HEADER_BYTES + 5] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let damaged = store.get(DOMAIN, first).await;
    assert_eq!(damaged, Err(ChunkError::Corrupt(first)));
    assert_eq!(store.get(DOMAIN, second).await.unwrap(), content(2));
    let mut intact = 0;
    store.verify(|chunk| intact += u32::from(chunk.intact));
    assert_eq!(intact, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn records_after_a_damaged_header_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let mut ids = Vec::new();
    {
        let store = open(directory.path());
        for number in 0..200 {
            ids.push(store.put(DOMAIN, content(number)).await.unwrap());
        }
        store.sync().await.unwrap();
    }
    let path = pack_path(directory.path(), 1);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8 + 20] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let store = open(directory.path());
    assert_eq!(
        store.get(DOMAIN, ids[0]).await,
        Err(ChunkError::NotFound(ids[0]))
    );
    for (number, id) in (1..200).zip(&ids[1..]) {
        assert_eq!(store.get(DOMAIN, *id).await.unwrap(), content(number));
    }
}

/// The last pack is checked for a torn tail. Damage in front of good records is none.
#[tokio::test(flavor = "multi_thread")]
async fn damage_in_the_last_pack_costs_one_chunk_and_nothing_after_it() {
    for place in [8 + 20, 8 + HEADER_BYTES + 5] {
        let directory = tempfile::tempdir().unwrap();
        let mut ids = Vec::new();
        {
            let store = open(directory.path());
            for number in 0..20 {
                ids.push(store.put(DOMAIN, content(number)).await.unwrap());
            }
            store.sync().await.unwrap();
        }
        let path = pack_path(directory.path(), 1);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[place] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let store = open(directory.path());
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        assert_eq!(
            store.get(DOMAIN, ids[0]).await,
            Err(ChunkError::NotFound(ids[0]))
        );
        for (number, id) in (1..20).zip(&ids[1..]) {
            assert_eq!(store.get(DOMAIN, *id).await.unwrap(), content(number));
        }
        // A put really stores it again, behind the others.
        assert_eq!(store.put(DOMAIN, content(0)).await.unwrap(), ids[0]);
        drop(store);
        let store = open(directory.path());
        for (number, id) in (0..20).zip(&ids) {
            assert_eq!(store.get(DOMAIN, *id).await.unwrap(), content(number));
        }
    }
}

#[test]
fn a_foreign_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(pack_path(directory.path(), 1), b"something else").unwrap();
    let clock = Arc::new(SystemClock::new());
    let refused = LocalStore::open(directory.path(), LocalOptions::default(), clock);
    assert!(matches!(refused, Err(OpenError::NotAPack { .. })));
}
