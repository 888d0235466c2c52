//! The shared chunk store on a real S3 server that is busy, slow, cut off and gone for a while.
#![allow(missing_docs)]

#[cfg(test)]
mod server;

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use base::{ChunkId, Clock, DomainId, Rng, SystemClock, Tasks};
    use bytes::Bytes;
    use chunkstore::shared::calls::Verb;
    use chunkstore::shared::connect::{Target, connect};
    use chunkstore::shared::disk::DiskCache;
    use chunkstore::shared::ledger::{ChunkKey, Place};
    use chunkstore::shared::memory_ledger::MemoryLedger;
    use chunkstore::shared::objects::{ObjectError, ObjectOptions, Objects};
    use chunkstore::shared::{KnownCycle, SharedOptions, SharedParts, SharedStore, pack};
    use chunkstore::{ChunkError, ChunkStore, Domain};

    use super::server::{BUCKET, Faults, KEY, S3, SECRET};

    const DOMAIN: Domain = Domain {
        id: DomainId::new(1),
        key: [1; 32],
    };

    /// Looks at something that comes by itself, each a fiftieth of a second apart.
    const LOOKS_MAX: u32 = 1500;

    fn clock() -> Arc<dyn Clock> {
        Arc::new(SystemClock::new())
    }

    async fn sleep(millis: u64) {
        clock().sleep(Duration::from_millis(millis)).await;
    }

    async fn until(what: &str, is_so: impl Fn() -> bool) {
        for _ in 0..LOOKS_MAX {
            if is_so() {
                return;
            }
            sleep(20).await;
        }
        panic!("never: {what}");
    }

    fn use_options() -> ObjectOptions {
        ObjectOptions {
            get_time: Duration::from_secs(4),
            put_time: Duration::from_secs(20),
            pause: Duration::from_millis(10),
            pause_max: Duration::from_millis(100),
            tries: 14,
            part_bytes: 5 << 20,
            ..ObjectOptions::default()
        }
    }

    fn target(s3: &S3, prefix: &str, more: &[(&str, &str)]) -> Target {
        let endpoint = format!("http://{}", s3.address);
        let all = [
            ("aws_endpoint", endpoint.as_str()),
            ("aws_access_key_id", KEY),
            ("aws_secret_access_key", SECRET),
            ("aws_region", "us-east-1"),
            ("aws_allow_http", "true"),
        ];
        let options = all.iter().chain(more);
        Target {
            url: format!("s3://{BUCKET}/{prefix}"),
            options: options
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect(),
            use_options: use_options(),
        }
    }

    fn objects(target: &Target) -> Objects {
        let rng = Arc::new(Rng::system().unwrap());
        connect(target, clock(), rng).unwrap()
    }

    fn options() -> SharedOptions {
        SharedOptions {
            linger: Duration::from_millis(50),
            pack_bytes: 1 << 20,
            adopt_after: Duration::from_secs(3600),
            full_time: Duration::from_secs(20),
            ..SharedOptions::default()
        }
    }

    struct Process {
        store: SharedStore,
        tasks: Tasks,
    }

    impl Drop for Process {
        fn drop(&mut self) {
            self.tasks.begin_shutdown();
        }
    }

    async fn process(
        ledger: &Arc<MemoryLedger>,
        s3: &S3,
        options: SharedOptions,
        disk: Option<&Path>,
    ) -> Process {
        let tasks = Tasks::new();
        let disk = disk.map(|dir| Arc::new(DiskCache::open(dir, 64 << 20).unwrap()));
        let parts = SharedParts {
            ledger: Arc::<MemoryLedger>::clone(ledger),
            cycles: Arc::new(KnownCycle::default()),
            objects: Some(Arc::new(objects(&target(s3, "p", &[])))),
            disk,
            clock: clock(),
            tasks: tasks.clone(),
        };
        let store = SharedStore::open(parts, options).await.unwrap();
        Process { store, tasks }
    }

    fn random(seed: u64, len: usize) -> Bytes {
        let mut bytes = vec![0; len];
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(&seed.to_be_bytes())
            .finalize_xof()
            .fill(&mut bytes);
        bytes.into()
    }

    fn key(content: &Bytes) -> ChunkKey {
        ChunkKey {
            domain: DOMAIN.id,
            id: DOMAIN.chunk_id(content),
        }
    }

    fn contents(from: u64, count: u64, len: usize) -> Vec<Bytes> {
        (from..from + count).map(|seed| random(seed, len)).collect()
    }

    async fn put_all(store: &SharedStore, contents: &[Bytes]) -> Vec<ChunkId> {
        let mut ids = Vec::new();
        for content in contents {
            ids.push(store.put(DOMAIN, content.clone()).await.unwrap());
        }
        ids
    }

    async fn read_all(store: &SharedStore, contents: &[Bytes]) {
        for content in contents {
            let read = store.get(DOMAIN, key(content).id).await;
            assert!(
                read.as_ref() == Ok(content),
                "{:?}",
                read.map(|it| it.len())
            );
        }
    }

    fn is_packed(ledger: &MemoryLedger, contents: &[Bytes]) -> bool {
        contents.iter().all(|content| {
            let location = ledger.location(key(content)).unwrap();
            matches!(location.place, Place::Pack { .. })
        })
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn conforms_and_packs_explain_themselves() {
        let s3 = S3::start(1).await;
        let ledger = Arc::default();
        let one = process(&ledger, &s3, options(), None).await;
        chunkstore::conformance::run(Arc::new(one.store.clone())).await;
        let large = contents(1000, 100, 128 << 10);
        put_all(&one.store, &large).await;
        one.store.sync().await.unwrap();
        until("all is packed", || is_packed(&ledger, &large)).await;
        let two = process(&ledger, &s3, options(), None).await;
        read_all(&two.store, &large).await;
        let mut listed = 0;
        for path in s3.packs("p") {
            let bytes = std::fs::read(&path).unwrap();
            let (id, lines) = pack::index(&bytes).unwrap();
            assert!(path.ends_with(id.to_string()));
            listed += lines.len();
            for line in lines {
                let location = ledger.location(line.key).unwrap();
                let (pack, offset) = (id, line.offset);
                assert_eq!(location.place, Place::Pack { pack, offset });
            }
        }
        assert!(listed > 100, "{listed}");
    }

    /// A sync is done although no write to the object store is, and what was staged is packed once writes go
    /// on.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_sync_does_not_wait_for_the_object_store() {
        let s3 = S3::start(2).await;
        s3.hold_puts(true);
        let ledger = Arc::default();
        let one = process(&ledger, &s3, options(), None).await;
        let all = contents(0, 30, 100_000);
        for content in &all {
            put_all(&one.store, std::slice::from_ref(content)).await;
            one.store.sync().await.unwrap();
        }
        until("a write has come", || s3.calls().0 > 0).await;
        assert!(s3.packs("p").is_empty());
        assert!(!is_packed(&ledger, &all[..1]));
        let two = process(&ledger, &s3, options(), None).await;
        read_all(&two.store, &all).await;
        s3.hold_puts(false);
        until("all is packed", || is_packed(&ledger, &all)).await;
        until("nothing is staged", || one.store.staged_bytes() == 0).await;
        read_all(&two.store, &all).await;
    }

    /// Busy, cut, lost and slow answers: all content is right, and nothing fails for good.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn faults_are_survived() {
        let s3 = S3::start(3).await;
        s3.set_faults(Faults {
            busy: 150,
            cut: 150,
            lost: 80,
            slow: 20,
        });
        let ledger = Arc::default();
        let one = process(&ledger, &s3, options(), None).await;
        let all = contents(0, 120, 60_000);
        for part in all.chunks(20) {
            put_all(&one.store, part).await;
            one.store.sync().await.unwrap();
        }
        until("all is packed", || is_packed(&ledger, &all)).await;
        let two = process(&ledger, &s3, options(), None).await;
        read_all(&two.store, &all).await;
        let counters = two.store.objects().unwrap().counters();
        assert!(
            counters.retries.count() > 10,
            "{}",
            counters.retries.count()
        );
        assert!(counters.of(Verb::Get).failed.count() > 10);
        let packed: usize = s3.packs("p").len();
        let known = ledger.packs().len();
        assert_eq!(
            packed, known,
            "no pack is stored twice, whatever answers are lost"
        );
    }

    /// What is slow is asked for once more, and the answer that comes first is taken.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn slow_reads_are_hedged() {
        let s3 = S3::start(4).await;
        let ledger = Arc::default();
        let one = process(&ledger, &s3, options(), None).await;
        let all = contents(0, 200, 10_000);
        put_all(&one.store, &all).await;
        one.store.sync().await.unwrap();
        until("all is packed", || is_packed(&ledger, &all)).await;
        let two = process(&ledger, &s3, options(), None).await;
        read_all(&two.store, &all[..100]).await;
        s3.set_faults(Faults {
            slow: 60,
            ..Faults::default()
        });
        read_all(&two.store, &all[100..]).await;
        let counters = two.store.objects().unwrap().counters();
        let (hedges, won) = (counters.hedges.count(), counters.hedges_won.count());
        assert!(won > 0 && hedges >= won, "{won} of {hedges}");
        assert!(hedges <= 200 / 10 + 8, "{hedges}: they are for few calls");
    }

    /// Neighbours come with few calls, also while they are asked for one by one, and each once.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn neighbours_are_fetched_together() {
        let s3 = S3::start(11).await;
        let ledger = Arc::default();
        let one = process(&ledger, &s3, options(), None).await;
        let all = contents(0, 100, 100_000);
        put_all(&one.store, &all).await;
        one.store.sync().await.unwrap();
        until("all is packed", || is_packed(&ledger, &all)).await;
        let two = process(&ledger, &s3, options(), None).await;
        let ids: Vec<_> = all.iter().map(|content| key(content).id).collect();
        let before = s3.calls().1;
        let (fetched, ()) = tokio::join!(two.store.prefetch(DOMAIN, ids.clone()), async {
            tokio::task::yield_now().await;
            read_all(&two.store, &all).await;
        });
        fetched.unwrap();
        let calls = s3.calls().1 - before;
        assert!(calls < 30, "{calls} calls for 100 chunks");
        let objects = two.store.objects().unwrap();
        let received = objects.counters().received_bytes.count();
        assert!(received < 11_000_000, "{received} bytes");
    }

    /// The object store is gone: what is cached is read, also after a restart, writes go on as long as staging
    /// has room and end with an error then. When it is back all is packed, and nothing is lost.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_outage_loses_nothing() {
        let s3 = S3::start(5).await;
        let (ledger, disk): (Arc<MemoryLedger>, _) = (Arc::default(), tempfile::tempdir().unwrap());
        let options = SharedOptions {
            staging_bytes_max: 3 << 20,
            full_time: Duration::from_millis(400),
            ..options()
        };
        let one = process(&ledger, &s3, options, Some(disk.path())).await;
        let old = contents(0, 20, 100_000);
        put_all(&one.store, &old).await;
        one.store.sync().await.unwrap();
        until("all is packed", || is_packed(&ledger, &old)).await;
        read_all(&one.store, &old).await;
        let kept = || one.store.disk().unwrap().counters.writes.count() >= 20;
        until("all is on disk", kept).await;
        drop(one);
        s3.set_down(true);
        let one = process(&ledger, &s3, options, Some(disk.path())).await;
        read_all(&one.store, &old).await;
        assert_eq!(one.store.disk().unwrap().counters.hits.count(), 20);
        let (mut new, mut refused) = (Vec::new(), 0);
        for seed in 100..160 {
            let content = random(seed, 100_000);
            match one.store.put(DOMAIN, content.clone()).await {
                Ok(_) => {}
                Err(ChunkError::Unavailable(_)) => refused += 1,
                Err(other) => panic!("{other}"),
            }
            match one.store.sync().await {
                Ok(()) => new.push(content),
                Err(ChunkError::Unavailable(_)) => refused += 1,
                Err(other) => panic!("{other}"),
            }
            if refused > 3 {
                break;
            }
        }
        assert!(new.len() >= 25, "{} fit into staging", new.len());
        assert!(refused > 3, "staging has an end");
        assert!(ledger_staged(&one) <= 3 << 20);
        read_all(&one.store, &new).await;
        s3.set_down(false);
        one.store.sync().await.unwrap();
        until("all is packed", || is_packed(&ledger, &new)).await;
        let two = process(&ledger, &s3, options, None).await;
        read_all(&two.store, &old).await;
        read_all(&two.store, &new).await;
    }

    fn ledger_staged(process: &Process) -> u64 {
        process.store.staged_bytes()
    }

    /// Without room in staging a sync goes through the object store.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_does_not_fit_into_staging_goes_past_it() {
        let s3 = S3::start(6).await;
        let ledger: Arc<MemoryLedger> = Arc::default();
        let options = SharedOptions {
            staging_bytes_max: 0,
            ..options()
        };
        let one = process(&ledger, &s3, options, None).await;
        let all = contents(0, 30, 100_000);
        put_all(&one.store, &all).await;
        one.store.sync().await.unwrap();
        assert!(is_packed(&ledger, &all));
        let stored = s3.packs("p").len();
        let two = process(&ledger, &s3, options, None).await;
        put_all(&two.store, &all).await;
        two.store.touch(DOMAIN.id, key(&all[0]).id);
        two.store.sync().await.unwrap();
        assert_eq!(two.store.counters().dedup_hits.count(), 30);
        assert_eq!(s3.packs("p").len(), stored, "nothing is stored twice");
        read_all(&two.store, &all).await;
    }

    /// What a process that is gone has left staged is packed by another one.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_left_behind_is_adopted() {
        let s3 = S3::start(7).await;
        s3.set_down(true);
        let ledger: Arc<MemoryLedger> = Arc::default();
        let one = process(&ledger, &s3, options(), None).await;
        let all = contents(0, 30, 50_000);
        put_all(&one.store, &all).await;
        one.store.sync().await.unwrap();
        drop(one);
        s3.set_down(false);
        let options = SharedOptions {
            adopt_after: Duration::from_millis(50),
            ..options()
        };
        let two = process(&ledger, &s3, options, None).await;
        until("all is packed", || is_packed(&ledger, &all)).await;
        assert_eq!(two.store.pack_counters().adopted.count(), 30);
        read_all(&two.store, &all).await;
    }

    /// A large pack goes in parts, and is there whole.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn large_packs_go_in_parts() {
        let s3 = S3::start(8).await;
        s3.set_faults(Faults {
            busy: 100,
            lost: 100,
            ..Faults::default()
        });
        let ledger: Arc<MemoryLedger> = Arc::default();
        let options = SharedOptions {
            pack_bytes: 12 << 20,
            linger: Duration::from_secs(2),
            packers: 1,
            ..options()
        };
        let one = process(&ledger, &s3, options, None).await;
        let all = contents(0, 15, 900_000);
        put_all(&one.store, &all).await;
        one.store.sync().await.unwrap();
        until("all is packed", || is_packed(&ledger, &all)).await;
        s3.set_faults(Faults::default());
        let longest = s3
            .packs("p")
            .into_iter()
            .map(|path| path.metadata().unwrap().len());
        assert!(longest.max().unwrap() > 10 << 20);
        let two = process(&ledger, &s3, options, None).await;
        read_all(&two.store, &all).await;
    }

    /// What is damaged is never given out: read once more from below, else told.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn damage_is_found() {
        let s3 = S3::start(9).await;
        let (ledger, disk): (Arc<MemoryLedger>, _) = (Arc::default(), tempfile::tempdir().unwrap());
        let one = process(&ledger, &s3, options(), Some(disk.path())).await;
        let content = random(1, 50_000);
        put_all(&one.store, std::slice::from_ref(&content)).await;
        one.store.sync().await.unwrap();
        until("it is packed", || {
            is_packed(&ledger, std::slice::from_ref(&content))
        })
        .await;
        until("it is on disk", || one.store.disk().unwrap().bytes() > 0).await;
        let id = key(&content).id;
        let shard = disk.path().join(&id.to_string()[..2]);
        let file = std::fs::read_dir(shard)
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
        std::fs::write(&file, "damaged").unwrap();
        assert_eq!(one.store.get(DOMAIN, id).await, Ok(content));
        assert_eq!(one.store.disk().unwrap().counters.damaged.count(), 1);
        let path = s3.packs("p").pop().unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[100] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let two = process(&ledger, &s3, options(), None).await;
        assert_eq!(
            two.store.get(DOMAIN, id).await,
            Err(ChunkError::Corrupt(id))
        );
        std::fs::remove_file(&path).unwrap();
        assert_eq!(
            two.store.get(DOMAIN, id).await,
            Err(ChunkError::Corrupt(id))
        );
    }

    /// What is in the way at a start is told apart.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_prefix_is_claimed_or_the_reason_told() {
        let s3 = S3::start(10).await;
        let own = objects(&target(&s3, "own", &[]));
        let missing = own.claim("one", true).await;
        assert!(
            matches!(missing, Err(ObjectError::Missing(_))),
            "{missing:?}"
        );
        assert_eq!(own.claim("one", false).await, Ok(()));
        assert_eq!(own.claim("one", true).await, Ok(()));
        let other = own.claim("two", false).await;
        assert!(matches!(other, Err(ObjectError::Exists(_))), "{other:?}");
        let wrong = [("aws_secret_access_key", "wrong")];
        let wrong = objects(&target(&s3, "own", &wrong))
            .claim("one", true)
            .await;
        assert!(matches!(wrong, Err(ObjectError::Refused(_))), "{wrong:?}");
        let mut elsewhere = target(&s3, "own", &[]);
        elsewhere.url = "s3://nowhere/own".into();
        let nowhere = objects(&elsewhere).claim("one", false).await;
        assert!(
            matches!(nowhere, Err(ObjectError::Missing(_))),
            "{nowhere:?}"
        );
        s3.set_down(true);
        let down = own.claim("one", true).await;
        assert!(matches!(down, Err(ObjectError::Unavailable(_))), "{down:?}");
    }
}
