use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;

use super::pack::{PACK_HEADER_BYTES, pack_path, sidecar_path};
use super::*;

const DOMAIN: Domain = Domain {
    id: DomainId::new(1),
    key: [1; 32],
};

fn clock() -> Arc<dyn Clock> {
    Arc::new(base::SystemClock::new())
}

fn open(dir: &tempfile::TempDir) -> LocalStore {
    LocalStore::open(dir.path(), LocalOptions::default(), clock()).unwrap()
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
    assert_eq!(store.shared.shelf.index.len(), chunks.len());
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
    let again = LocalStore::open(dir.path(), LocalOptions::default(), clock());
    assert!(matches!(again, Err(OpenError::Io { .. })));
    drop(store);
    open(&dir);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms() {
    let dir = tempfile::tempdir().unwrap();
    crate::conformance::run(Arc::new(open(&dir))).await;
}

fn unavailable<T: std::fmt::Debug>(result: Result<T, ChunkError>) {
    assert!(
        matches!(result, Err(ChunkError::Unavailable(_))),
        "{result:?}"
    );
}

fn small_packs() -> LocalOptions {
    LocalOptions {
        pack_bytes: PACK_BYTES_MIN,
        ..LocalOptions::default()
    }
}

/// Puts `count` random contents of 256 KiB, which is seven to a pack of the smallest size.
async fn fill(store: &LocalStore, count: u64) -> Vec<(ChunkId, Bytes)> {
    let mut chunks = Vec::new();
    for seed in 0..count {
        let content = random_bytes(seed, 256 * 1024);
        chunks.push((store.put(DOMAIN, content.clone()).await.unwrap(), content));
    }
    chunks
}

async fn assert_all(store: &LocalStore, chunks: &[(ChunkId, Bytes)]) {
    for (id, content) in chunks {
        assert!(store.get(DOMAIN, *id).await.as_ref() == Ok(content));
    }
}

fn flip(path: &Path, at: u64) {
    let mut bytes = fs::read(path).unwrap();
    bytes[usize::try_from(at).unwrap()] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn a_torn_tail_is_cut_off_wherever_it_is_torn() {
    let dir = tempfile::tempdir().unwrap();
    let path = pack_path(dir.path(), 0);
    let store = open(&dir);
    let first = store.put(DOMAIN, random_bytes(1, 50)).await.unwrap();
    let second = store.put(DOMAIN, random_bytes(2, 70)).await.unwrap();
    let last_start = fs::metadata(&path).unwrap().len();
    let last = store.put(DOMAIN, random_bytes(3, 90)).await.unwrap();
    store.sync().await.unwrap();
    drop(store);
    let whole = fs::read(&path).unwrap();

    let start = usize::try_from(last_start).unwrap();
    for len in start..whole.len() {
        for zeros_to_end in [false, true] {
            let mut torn = whole[..len].to_vec();
            if zeros_to_end {
                torn.resize(whole.len(), 0);
            }
            fs::write(&path, torn).unwrap();
            let store = open(&dir);
            assert!(store.get(DOMAIN, first).await.is_ok());
            assert!(store.get(DOMAIN, second).await.is_ok());
            let header_whole = len >= start + crate::chunk::HEADER_BYTES;
            if zeros_to_end && header_whole {
                // A record as long as it should be is damaged, not torn, and stays.
                assert_eq!(
                    store.get(DOMAIN, last).await,
                    Err(ChunkError::Corrupt(last))
                );
            } else {
                assert_eq!(
                    store.get(DOMAIN, last).await,
                    Err(ChunkError::NotFound(last))
                );
                assert_eq!(fs::metadata(&path).unwrap().len(), last_start);
            }
            // It can be stored again, and is found again.
            store.put(DOMAIN, random_bytes(3, 90)).await.unwrap();
            assert!(store.get(DOMAIN, last).await.is_ok());
            drop(store);
            assert!(open(&dir).get(DOMAIN, last).await.is_ok(), "torn at {len}");
        }
    }
}

#[tokio::test]
async fn a_pack_torn_in_its_header_is_used_anew() {
    for len in 0..PACK_HEADER_BYTES {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            pack_path(dir.path(), 0),
            vec![0; usize::try_from(len).unwrap()],
        )
        .unwrap();
        let store = open(&dir);
        let id = store.put(DOMAIN, random_bytes(1, 50)).await.unwrap();
        store.sync().await.unwrap();
        drop(store);
        assert!(open(&dir).get(DOMAIN, id).await.is_ok());
    }
}

/// Whatever byte is damaged, each chunk reads as it was, or reports an error, and the others are
/// not touched by it.
#[tokio::test]
async fn a_flipped_byte_damages_one_chunk_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = pack_path(dir.path(), 0);
    let store = open(&dir);
    let mut ids = Vec::new();
    for seed in 0..3 {
        ids.push(store.put(DOMAIN, random_bytes(seed, 40)).await.unwrap());
    }
    store.sync().await.unwrap();
    drop(store);
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        fs::write(&path, &whole).unwrap();
        flip(&path, u64::try_from(at).unwrap());
        let record = at.checked_sub(64).map(|at| at / 120);
        let in_header = at.checked_sub(64).is_some_and(|at| at % 120 < 80);
        let store = open(&dir);
        for (number, id) in ids.iter().enumerate() {
            let read = store.get(DOMAIN, *id).await;
            if record != Some(number) {
                assert!(read.is_ok(), "byte {at}, chunk {number}: {read:?}");
            } else if in_header {
                assert_eq!(read, Err(ChunkError::NotFound(*id)), "byte {at}");
            } else {
                assert_eq!(read, Err(ChunkError::Corrupt(*id)), "byte {at}");
            }
        }
    }
}

#[tokio::test]
async fn a_damaged_chunk_is_corrupt_until_it_is_put_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path(), small_packs(), clock()).unwrap();
    let chunks = fill(&store, 10).await;
    store.sync().await.unwrap();
    assert!(sidecar_path(dir.path(), 0).exists());
    // In a sealed pack: one in the header of the first record, one in the body of the third.
    let record = 256 * 1024 + 80;
    flip(&pack_path(dir.path(), 0), 64 + 20);
    flip(&pack_path(dir.path(), 0), 64 + 2 * record + 1000);

    let summary = store.verify(|_| ());
    assert_eq!((summary.intact, summary.damaged), (8, 2));
    for damaged in [0, 2] {
        let (id, content) = &chunks[damaged];
        assert_eq!(store.get(DOMAIN, *id).await, Err(ChunkError::Corrupt(*id)));
        assert!(!store.contains(DOMAIN.id, *id));
        store.put(DOMAIN, content.clone()).await.unwrap();
    }
    assert_all(&store, &chunks).await;
    store.sync().await.unwrap();
    drop(store);
    let store = LocalStore::open(dir.path(), small_packs(), clock()).unwrap();
    assert_all(&store, &chunks).await;
    let summary = store.verify(|_| ());
    assert_eq!((summary.intact, summary.damaged), (10, 0));
}

#[tokio::test]
async fn side_indexes_are_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path(), small_packs(), clock()).unwrap();
    let chunks = fill(&store, 20).await;
    store.sync().await.unwrap();
    drop(store);
    let sidecars: Vec<_> = (0..3)
        .map(|number| sidecar_path(dir.path(), number))
        .collect();
    let good = fs::read(&sidecars[0]).unwrap();
    assert!(sidecars[1].exists() && !sidecars[2].exists());
    flip(&sidecars[0], 50);
    fs::remove_file(&sidecars[1]).unwrap();

    let store = LocalStore::open(dir.path(), small_packs(), clock()).unwrap();
    assert_all(&store, &chunks).await;
    assert_eq!(fs::read(&sidecars[0]).unwrap(), good);
    assert!(sidecars[1].exists());
    let mut seen = Vec::new();
    let summary = store.verify(|chunk| seen.push(chunk.id));
    assert_eq!(summary.intact, 20);
    let ids: Vec<_> = chunks.iter().map(|(id, _)| *id).collect();
    assert_eq!(seen, ids);
}

#[tokio::test]
async fn a_full_device_keeps_what_it_has_and_works_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let before = store.put(DOMAIN, random_bytes(1, 500)).await.unwrap();
    let len = fs::metadata(pack_path(dir.path(), 0)).unwrap().len();
    let space = &store.shared.shelf.device.faults.space;
    for left in [0, 1, 79, 80, 81, 579] {
        space.store(left, SeqCst);
        let refused = store.put(DOMAIN, random_bytes(2, 500)).await;
        assert_eq!(refused, Err(ChunkError::NoSpace), "{left} bytes left");
        assert_eq!(fs::metadata(pack_path(dir.path(), 0)).unwrap().len(), len);
        assert!(store.get(DOMAIN, before).await.is_ok());
        store.sync().await.unwrap();
    }
    space.store(u64::MAX, SeqCst);
    let after = store.put(DOMAIN, random_bytes(2, 500)).await.unwrap();
    store.sync().await.unwrap();
    drop(store);
    let store = open(&dir);
    assert!(store.get(DOMAIN, before).await.is_ok());
    assert!(store.get(DOMAIN, after).await.is_ok());
}

#[tokio::test]
async fn a_full_device_takes_no_new_pack() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let space = &store.shared.shelf.device.faults.space;
    space.store(10, SeqCst);
    let refused = store.put(DOMAIN, random_bytes(1, 500)).await;
    assert_eq!(refused, Err(ChunkError::NoSpace));
    assert!(!pack_path(dir.path(), 0).exists());
    space.store(u64::MAX, SeqCst);
    store.put(DOMAIN, random_bytes(1, 500)).await.unwrap();
    store.sync().await.unwrap();
}

#[tokio::test]
async fn after_a_failed_flush_chunks_are_stored_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let durable = store.put(DOMAIN, random_bytes(1, 500)).await.unwrap();
    store.sync().await.unwrap();
    let durable_len = fs::metadata(pack_path(dir.path(), 0)).unwrap().len();
    let unsynced = store.put(DOMAIN, random_bytes(2, 500)).await.unwrap();
    (store.shared.shelf.device.faults.failing_flushes).store(1, SeqCst);
    unavailable(store.sync().await);
    // Read back and appended to a new pack; the old one is cut back.
    assert!(store.get(DOMAIN, durable).await.is_ok());
    assert!(store.get(DOMAIN, unsynced).await.is_ok());
    let location = store.shared.whole(Key::new(DOMAIN.id, unsynced)).unwrap();
    assert_eq!(location.place.pack, 1);
    assert_eq!(
        fs::metadata(pack_path(dir.path(), 0)).unwrap().len(),
        durable_len
    );
    store.sync().await.unwrap();
    drop(store);
    let store = open(&dir);
    assert!(store.get(DOMAIN, durable).await.is_ok());
    assert!(store.get(DOMAIN, unsynced).await.is_ok());
}

#[tokio::test]
async fn no_flush_succeeds_while_chunks_are_lost() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let lost = store.put(DOMAIN, random_bytes(1, 500)).await.unwrap();
    // The page is dropped: what comes back from the device is not what was written.
    flip_in_place(&pack_path(dir.path(), 0), 64 + 80 + 5);
    (store.shared.shelf.device.faults.failing_flushes).store(1, SeqCst);
    unavailable(store.sync().await);
    assert_eq!(
        store.get(DOMAIN, lost).await,
        Err(ChunkError::NotFound(lost))
    );
    // Others cannot take a later flush for theirs.
    store.put(DOMAIN, random_bytes(2, 500)).await.unwrap();
    unavailable(store.sync().await);
    unavailable(store.sync().await);
    // Whoever put it puts it again.
    store.put(DOMAIN, random_bytes(1, 500)).await.unwrap();
    store.sync().await.unwrap();
    assert!(store.get(DOMAIN, lost).await.is_ok());
}

#[tokio::test]
async fn rescue_waits_for_space() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let id = store.put(DOMAIN, random_bytes(1, 500)).await.unwrap();
    let faults = &store.shared.shelf.device.faults;
    faults.failing_flushes.store(1, SeqCst);
    faults.space.store(0, SeqCst);
    unavailable(store.sync().await);
    assert_eq!(store.sync().await, Err(ChunkError::NoSpace));
    faults.space.store(u64::MAX, SeqCst);
    store.sync().await.unwrap();
    assert!(store.get(DOMAIN, id).await.is_ok());
}

/// Flips a byte without replacing the file.
fn flip_in_place(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_syncs_share_flushes() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let tasks = base::Tasks::new();
    for seed in 0..200 {
        let store = store.clone();
        tasks.spawn(async move {
            // Half of the contents are put twice.
            let content = random_bytes(seed % 150, 3000);
            let id = store.put(DOMAIN, content.clone()).await.unwrap();
            store.sync().await.unwrap();
            assert!(store.get(DOMAIN, id).await.as_ref() == Ok(&content));
        });
    }
    tasks.join().await;
    assert_eq!(store.shared.shelf.index.len(), 150);
    assert_eq!(store.stored_bytes(), 150 * 3080);
    assert_eq!(store.counters().dedup_hits.count(), 50);
    let flushes = store.counters().syncs.count();
    assert!((1..200).contains(&flushes), "{flushes} flushes");
}

/// A caller that waits while a flush runs is not served by that flush.
#[tokio::test]
async fn a_waiting_sync_gets_a_flush_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let running = Arc::clone(&store.shared.flushed).lock_owned().await;
    // As if a flush had begun before this put.
    store.shared.flushes_begun.fetch_add(1, SeqCst);
    store.put(DOMAIN, random_bytes(1, 10)).await.unwrap();
    let both = async { tokio::join!(store.sync(), store.sync()) };
    let finish = async {
        tokio::task::yield_now().await;
        let mut running = running;
        running.number = 1;
    };
    let ((first, second), ()) = tokio::join!(both, finish);
    assert_eq!((first, second), (Ok(()), Ok(())));
    assert_eq!(store.counters().syncs.count(), 1);
    assert_eq!(store.shared.flushed.lock().await.number, 2);
}

#[tokio::test]
async fn a_backlog_of_full_packs_is_flushed() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path(), small_packs(), clock()).unwrap();
    let chunks = fill(&store, 140).await;
    assert!(store.counters().syncs.count() >= 1);
    assert!(store.shared.writer.lock().rolled_count() <= ROLLED_PACKS_MAX);
    assert_all(&store, &chunks).await;
}

#[tokio::test]
async fn available_bytes_keep_the_reserve() {
    let dir = tempfile::tempdir().unwrap();
    let open = |reserve_bytes| {
        let options = LocalOptions {
            reserve_bytes,
            ..LocalOptions::default()
        };
        LocalStore::open(dir.path(), options, clock()).unwrap()
    };
    let store = open(0);
    assert!(store.available_bytes().unwrap() > 0);
    drop(store);
    assert_eq!(open(u64::MAX).available_bytes(), Some(0));
}

/// What another release or another program wrote is refused and left as it is.
#[tokio::test]
async fn files_that_are_no_packs_of_ours_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = pack_path(dir.path(), 0);
    let store = open(&dir);
    store.put(DOMAIN, random_bytes(1, 50)).await.unwrap();
    store.sync().await.unwrap();
    drop(store);
    let mut newer = fs::read(&path).unwrap();
    newer[4] = 2;
    let check = blake3::hash(&newer[..32]);
    newer[32..64].copy_from_slice(check.as_bytes());
    for foreign in [newer, b"a letter ".repeat(100)] {
        fs::write(&path, &foreign).unwrap();
        let refused = LocalStore::open(dir.path(), LocalOptions::default(), clock());
        assert!(matches!(refused, Err(OpenError::NotAPack { .. })));
        assert_eq!(fs::read(&path).unwrap(), foreign);
    }
}

/// All files of a directory, with what is in them.
fn content_of(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| (path.clone(), fs::read(&path).unwrap()))
        .collect();
    files.sort();
    files
}

#[tokio::test]
async fn a_look_at_a_store_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path(), small_packs(), clock()).unwrap();
    let chunks = fill(&store, 17).await;
    store.sync().await.unwrap();
    assert!(matches!(
        LocalReader::open(dir.path()),
        Err(OpenError::Io { .. })
    ));
    drop(store);
    let reader = LocalReader::open(dir.path()).unwrap();
    assert!(chunks.iter().all(|(id, _)| reader.contains(DOMAIN.id, *id)));
    assert_eq!((reader.torn(), reader.unreadable()), (&[][..], &[][..]));
    drop(reader);

    // A torn tail, a pack without a side index, damage, and what is no pack.
    let packs = open::numbers_in(dir.path()).unwrap();
    let (first, last) = (packs[0], *packs.last().unwrap());
    assert!(packs.len() > 2);
    let tail = [
        &fs::read(pack_path(dir.path(), last)).unwrap()[..],
        b"HFtorn",
    ]
    .concat();
    fs::write(pack_path(dir.path(), last), tail).unwrap();
    fs::remove_file(sidecar_path(dir.path(), first)).unwrap();
    flip(&pack_path(dir.path(), first), 300);
    fs::write(pack_path(dir.path(), last + 1), vec![7; 5000]).unwrap();
    fs::create_dir(pack_path(dir.path(), last + 2)).unwrap();
    let before = content_of(dir.path());
    let reader = LocalReader::open(dir.path()).unwrap();
    let counts = reader.verify(Some(&|_| vec![[8; 32], DOMAIN.key]), |_| ());
    assert_eq!((counts.intact, counts.damaged), (16, 1));
    let counts = reader.verify(None, |_| ());
    assert_eq!(content_of(dir.path()), before);
    assert_eq!(
        counts,
        VerifyCounts {
            intact: 16,
            damaged: 1,
            unreadable_packs: 2
        }
    );
    let torn = TornTail {
        path: pack_path(dir.path(), last),
        bytes: 6,
    };
    assert_eq!(reader.torn(), [torn]);
    let unreadable: Vec<_> = reader.unreadable().iter().map(|pack| &pack.path).collect();
    assert_eq!(
        unreadable,
        [
            &pack_path(dir.path(), last + 1),
            &pack_path(dir.path(), last + 2)
        ]
    );
    // With another key than theirs no chunk has its name; in a domain that is not known that cannot
    // be told.
    let counts = reader.verify(Some(&|_| Vec::new()), |_| ());
    assert_eq!((counts.intact, counts.damaged), (16, 1));
    let counts = reader.verify(Some(&|_| vec![[8; 32]]), |_| ());
    assert_eq!((counts.intact, counts.damaged), (0, 17));
    assert!(
        chunks
            .iter()
            .all(|(id, _)| !reader.contains(DOMAIN.id, *id))
    );
    assert!(LocalReader::open(&dir.path().join("nothing")).is_err());
    assert!(!dir.path().join("nothing").exists());
}

/// A pipe in a pack's place would be waited for.
#[tokio::test]
async fn a_pipe_is_no_pack() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open(dir.path(), small_packs(), clock()).unwrap();
    let chunks = fill(&store, 3).await;
    store.sync().await.unwrap();
    drop(store);
    let pipe = pack_path(dir.path(), 77);
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, fifo, mode, 0).unwrap();
    let reader = LocalReader::open(dir.path()).unwrap();
    assert_eq!(reader.unreadable()[0].path, pipe);
    assert_eq!(reader.unreadable()[0].why, "not a regular file");
    assert!(chunks.iter().all(|(id, _)| reader.contains(DOMAIN.id, *id)));
    drop(reader);
    let refused = LocalStore::open(dir.path(), small_packs(), clock()).unwrap_err();
    assert!(
        refused.to_string().contains("not a regular file"),
        "{refused}"
    );
}
