use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

use base::SystemClock;
use bytes::Bytes;

use super::*;
use crate::local::LocalOptions;
use crate::local::open::numbers_in;
use crate::{ChunkStore, Domain};

const DOMAIN: Domain = Domain {
    id: DomainId::new(1),
    key: [1; 32],
};

/// Packs of a few records, so that little happens in one.
const PACK_BYTES: u32 = 1500;

fn open(dir: &Path, mutation: Option<Mutation>) -> LocalStore {
    open_with(dir, mutation, PACK_BYTES)
}

fn open_with(dir: &Path, mutation: Option<Mutation>, pack_bytes: u32) -> LocalStore {
    let options = LocalOptions {
        reserve_bytes: 0,
        ..LocalOptions::default()
    };
    let clock = Arc::new(SystemClock::new());
    let mut shared = LocalStore::open_shared(dir, pack_bytes, options, clock).unwrap();
    shared.mutation = mutation;
    LocalStore {
        shared: Arc::new(shared),
    }
}

/// One of the contents that are put: different lengths, incompressible.
fn content(number: usize) -> Bytes {
    let mut bytes = vec![0; 40 + 37 * number];
    blake3::Hasher::new()
        .update(&number.to_be_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes.into()
}

fn id(number: usize) -> ChunkId {
    DOMAIN.chunk_id(&content(number))
}

async fn put(store: &LocalStore, numbers: impl IntoIterator<Item = usize>) {
    for number in numbers {
        store.put(DOMAIN, content(number)).await.unwrap();
    }
    store.sync().await.unwrap();
}

/// A whole collection that keeps `live`.
async fn collect(store: &LocalStore, live: &[usize], how: Thoroughness) -> (Survey, Freed) {
    let begun = store.begin_collection().unwrap();
    let marking = begun.try_settled().unwrap();
    for number in live {
        assert_eq!(marking.mark(DOMAIN.id, id(*number)), Marked::Stored);
    }
    let survey = marking.survey();
    let mut sweep = marking.sweep(how).await.unwrap();
    let mut freed = Freed::default();
    while let Some(more) = sweep.step().await.unwrap() {
        freed.add(more);
    }
    assert_eq!(sweep.survey().live_chunks, survey.live_chunks);
    (survey, freed)
}

fn file_bytes(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let packs = files.filter(|file| file.path().extension().unwrap() == "dat");
    packs.map(|file| file.metadata().unwrap().len()).sum()
}

#[tokio::test]
async fn what_is_dead_gives_its_space_back_and_what_is_live_stays() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), None);
    put(&store, 0..40).await;
    let before = file_bytes(dir.path());
    let live = [3, 17, 30];
    let (survey, freed) = collect(&store, &live, Thoroughness::Usual).await;
    assert_eq!((survey.live_chunks, survey.dead_chunks), (3, 37));
    assert!(freed.packs_removed > 0 && freed.packs_rewritten > 0);
    let after = file_bytes(dir.path());
    assert_eq!(before - after, freed.freed_bytes);
    assert!(after < survey.live_bytes * 3, "{after} bytes stay");
    assert_eq!(store.stored_bytes(), after - 64 * packs(dir.path()));
    assert_exactly(&store, &live).await;
    drop(store);
    assert_exactly(&open(dir.path(), None), &live).await;
}

/// The store holds these of the first forty contents, and nothing that is damaged.
async fn assert_exactly(store: &LocalStore, live: &[usize]) {
    for number in 0..40 {
        let read = store.get(DOMAIN, id(number)).await;
        if live.contains(&number) {
            assert_eq!(read, Ok(content(number)));
        } else {
            assert_eq!(read, Err(ChunkError::NotFound(id(number))));
        }
    }
    let checked = store.verify(|_| ());
    let intact = u64::try_from(live.len()).unwrap();
    assert_eq!((checked.intact, checked.damaged), (intact, 0));
    assert_eq!(checked.unreadable_packs, 0);
}

fn packs(dir: &Path) -> u64 {
    u64::try_from(numbers_in(dir).unwrap().len()).unwrap()
}

#[tokio::test]
async fn one_collection_runs_at_a_time_and_one_that_is_dropped_takes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), None);
    put(&store, 0..10).await;
    let begun = store.begin_collection().unwrap();
    assert!(store.begin_collection().is_none());
    drop(begun);
    let marking = store.begin_collection().unwrap().try_settled().unwrap();
    assert_eq!(marking.survey().dead_chunks, 10);
    assert_eq!(marking.mark(DOMAIN.id, id(11)), Marked::Missing);
    drop(marking);
    for number in 0..10 {
        assert!(store.get(DOMAIN, id(number)).await.is_ok());
    }
    // The next one has forgotten what the last one marked.
    assert_eq!(
        collect(&store, &[2], Thoroughness::Usual)
            .await
            .0
            .dead_chunks,
        9
    );
}

#[tokio::test]
async fn a_collection_waits_for_older_holds_and_gives_up() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), None);
    let hold = store.hold();
    assert_eq!(store.holds(), 1);
    let begun = store.begin_collection().unwrap();
    assert!(begun.settled(Duration::from_millis(1)).await.is_none());
    let begun = store.begin_collection().unwrap();
    let young = store.hold();
    let (settled, ()) = tokio::join!(begun.settled(Duration::MAX), async {
        tokio::task::yield_now().await;
        drop(hold);
    });
    assert!(settled.is_some());
    drop(young);
}

/// What is read while its pack is rewritten is found at its new place; what is read after its pack
/// was removed is not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_never_fail_while_packs_are_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with(dir.path(), None, 8 * PACK_BYTES);
    let live = [1, 9, 14, 22, 31];
    let tasks = base::Tasks::new();
    let reads = Arc::new(std::sync::atomic::AtomicU64::new(0));
    put(&store, 0..40).await;
    for _ in 0..3 {
        let (store, until, reads) = (store.clone(), tasks.clone(), Arc::clone(&reads));
        tasks.spawn(async move {
            while !until.is_shutting_down() {
                for number in live {
                    assert_eq!(store.get(DOMAIN, id(number)).await, Ok(content(number)));
                    reads.fetch_add(1, SeqCst);
                }
            }
        });
    }
    let mut rewritten = 0;
    for round in 0..40 {
        put(&store, 0..40).await;
        let enough = reads.load(SeqCst) + 20;
        // Every other time more is live, which is copied along and is dead the next time.
        let more = [32, 34, 36, 38].into_iter().filter(|_| round % 2 == 0);
        let marked: Vec<_> = live.into_iter().chain(more).collect();
        let (_, freed) = collect(&store, &marked, Thoroughness::High).await;
        rewritten += freed.packs_rewritten;
        while reads.load(SeqCst) < enough {
            tokio::task::yield_now().await;
        }
    }
    tasks.begin_shutdown();
    tasks.join().await;
    assert!(rewritten >= 20, "{rewritten}");
    assert_exactly(&store, &live).await;
}

/// A full device: packs without live chunks go, the rest stays as it is until there is room.
#[tokio::test]
async fn without_room_for_copies_dead_packs_are_removed_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), None);
    put(&store, 0..40).await;
    let space = &store.shared.shelf.device.faults.space;
    for left in [0, 64, 100, 300] {
        space.store(left, SeqCst);
        let (_, freed) = collect(&store, &[5, 20, 39], Thoroughness::High).await;
        assert!(freed.packs_without_room > 0 && freed.packs_rewritten == 0);
        assert_eq!(freed.packs_removed > 0, left == 0, "{left}");
    }
    space.store(u64::MAX, SeqCst);
    assert!(
        collect(&store, &[5, 20, 39], Thoroughness::High)
            .await
            .1
            .packs_rewritten
            > 0
    );
    assert_exactly(&store, &[5, 20, 39]).await;
}

/// A pack stays as long as a chunk in it cannot be read.
#[tokio::test]
async fn a_damaged_chunk_keeps_its_pack() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), None);
    put(&store, 0..20).await;
    let location = store.shared.whole(Key::new(DOMAIN.id, id(4))).unwrap();
    let path = pack_path(dir.path(), location.place.pack);
    let mut bytes = std::fs::read(&path).unwrap();
    let body = usize::try_from(location.place.offset).unwrap() + 80;
    bytes[body] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let (_, freed) = collect(&store, &[4, 19], Thoroughness::High).await;
    assert!(freed.packs_removed > 0);
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    let damaged = store.get(DOMAIN, id(4)).await;
    assert_eq!(damaged, Err(ChunkError::Corrupt(id(4))));
    let marking = store.begin_collection().unwrap().try_settled().unwrap();
    assert_eq!(marking.mark(DOMAIN.id, id(4)), Marked::Damaged);
    assert_eq!(marking.mark(DOMAIN.id, id(19)), Marked::Stored);
    marking.sweep(Thoroughness::High).await.unwrap();
    // What is put again lies in the last pack, so that it is what a restart finds.
    put(&store, [4]).await;
    drop(store);
    let store = open(dir.path(), None);
    for number in [4, 19] {
        assert_eq!(store.get(DOMAIN, id(number)).await, Ok(content(number)));
    }
}

/// A number may be used again after a restart. A side index that was left must not be taken for
/// that of the new pack.
#[tokio::test]
async fn a_side_index_without_a_pack_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), None);
    put(&store, 0..12).await;
    let last = numbers_in(dir.path()).unwrap().last().copied().unwrap();
    let orphan = crate::local::pack::sidecar_path(dir.path(), last - 1);
    let kept = std::fs::read(&orphan).unwrap();
    collect(&store, &[], Thoroughness::Usual).await;
    assert_eq!(packs(dir.path()), 0);
    std::fs::write(&orphan, kept).unwrap();
    drop(store);
    drop(open(dir.path(), None));
    assert!(!orphan.exists());
}

/// Packs of a time when packs were longer are rewritten as well.
#[tokio::test]
async fn packs_longer_than_new_ones_are_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with(dir.path(), None, 100 * PACK_BYTES);
    put(&store, 0..40).await;
    drop(store);
    let store = open(dir.path(), None);
    let live: Vec<_> = (0..40).filter(|number| number % 2 == 0).collect();
    let before = file_bytes(dir.path());
    let (survey, freed) = collect(&store, &live, Thoroughness::High).await;
    assert!(survey.live_bytes > u64::from(PACK_BYTES) * 2);
    assert_eq!((freed.packs_rewritten, freed.packs_without_room), (1, 0));
    assert_eq!(before - file_bytes(dir.path()), freed.freed_bytes);
    assert_exactly(&store, &live).await;
}

/// Small packs, as restarts and collections leave them, are joined.
#[tokio::test]
async fn small_packs_are_joined() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with(dir.path(), None, 4 * PACK_BYTES);
    let live: Vec<_> = (0..8).collect();
    for number in &live {
        put(&store, [*number]).await;
        let (pack, _) = store.shared.writer.lock().active().unwrap();
        store.shared.writer.lock().roll(pack);
        store.sync().await.unwrap();
    }
    assert_eq!(packs(dir.path()), 8);
    collect(&store, &live, Thoroughness::Usual).await;
    assert_eq!(packs(dir.path()), 1);
    let (_, freed) = collect(&store, &live, Thoroughness::Usual).await;
    assert_eq!(freed, Freed::default(), "once is enough");
    assert_exactly(&store, &live).await;
}

mod model;
