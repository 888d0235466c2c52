//! A gateway and its clients while chunks are collected all the time.
//!
//! The rules of `docs/design/0002-collection.md`, as the session engine keeps them: the gateway is
//! the real one, its clients come over loopback, and one collection follows the other. Without the
//! holds of write-backs the same run loses data.

#[cfg(test)]
mod copies;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod gates;
#[cfg(test)]
mod model;
#[cfg(test)]
mod naming;
#[cfg(test)]
mod owned;
#[cfg(test)]
mod whole;

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
    use std::time::Duration;

    use base::{
        ChunkId, Clock, DomainId, ManualClock, Rng, SessionId, SystemClock, Tasks, TenantId,
        Timestamp,
    };
    use bytes::Bytes;
    use chunkstore::faulty::{Call, Effect, FaultyStore};
    use chunkstore::local::{LocalOptions, LocalStore, Marked, Thoroughness};
    use chunkstore::{ChunkError, ChunkFuture, ChunkStore, Domain, Hold};
    use metadata::check::{CheckOptions, check};
    use metadata::image::Usage;
    use metadata::keyspace::{Key, decode};
    use metadata::kv::Kv;
    use metadata::kv::memory::MemoryKv;
    use metadata::record::commit::{Provenance, Statistics};

    use metadata::references::{ReferenceError, References};
    use metadata::store::{ForkSession, NewCommit, NewWorkspace, OpenSession, Store};
    use metadata::tree::{MemoryTrees, Root, TreeKeys, Trees};
    use nfs_gateway::{ChunkTrees, Engines, Gateway, GatewayOptions};
    use nfs3_client::tokio::{TokioConnector, TokioIo};
    use nfs3_client::{Nfs3Connection, Nfs3ConnectionBuilder};
    use nfs3_types::nfs3::{
        COMMIT3args, CREATE3args, Nfs3Option, Nfs3Result, READ3args, REMOVE3args, SETATTR3args,
        WRITE3args, createhow3, diropargs3, filename3, nfs_fh3, nfsstat3, sattr3, sattrguard3,
        stable_how,
    };
    use nfs3_types::xdr_codec::Opaque;
    use system_tests::hooked_kv::{HookedKv, Hooks};
    use tokio::net::{TcpListener, TcpStream};

    /// One block, and too large to live in the metadata store.
    const FILE_BYTES: usize = 64 * 1024;
    /// Few, so that what was removed is soon put again.
    const CONTENTS: u64 = 6;
    const FILES: u64 = 5;
    const CLIENTS: u64 = 3;
    const CALLS: u64 = 250;

    type Mount = Nfs3Connection<TokioIo<TcpStream>>;

    /// Which rules the session engine keeps.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Rules {
        All,
        NoHolds,
        NoTouches,
    }

    /// A chunk store that a session engine without holds or touches would see.
    #[derive(Debug)]
    struct Without(Rules, Arc<dyn ChunkStore>);

    impl ChunkStore for Without {
        fn put(&self, domain: Domain, content: Bytes) -> ChunkFuture<'_, ChunkId> {
            self.1.put(domain, content)
        }

        fn sync(&self) -> ChunkFuture<'_, ()> {
            self.1.sync()
        }

        fn get(&self, domain: Domain, id: ChunkId) -> ChunkFuture<'_, Bytes> {
            self.1.get(domain, id)
        }

        fn cached(&self, domain: Domain, id: ChunkId) -> Option<Bytes> {
            self.1.cached(domain, id)
        }

        fn hold(&self) -> Hold {
            match self.0 {
                Rules::NoHolds => Hold::none(),
                Rules::All | Rules::NoTouches => self.1.hold(),
            }
        }

        fn touch(&self, domain: DomainId, id: ChunkId) {
            if self.0 != Rules::NoTouches {
                self.1.touch(domain, id);
            }
        }
    }

    /// Where transactions that make sessions stop before they are committed.
    #[derive(Debug, Default)]
    struct Stop {
        is_closed: AtomicBool,
        waiting: AtomicU64,
    }

    /// One transaction, which may make a session.
    #[derive(Clone, Debug)]
    struct Making {
        makes_session: bool,
        forks: Arc<Stop>,
    }

    impl Hooks for Making {
        fn sees_set(&mut self, key: &[u8]) {
            self.makes_session |= matches!(decode(key), Ok(Key::SessionOf(..)));
        }

        async fn before_commit(&mut self) {
            if self.makes_session {
                self.forks.waiting.fetch_add(1, SeqCst);
                while self.forks.is_closed.load(SeqCst) {
                    tokio::task::yield_now().await;
                }
                self.forks.waiting.fetch_sub(1, SeqCst);
            }
        }
    }

    /// A gateway on a local chunk store without a cache, so that reads go to the packs.
    struct World {
        kv: Arc<dyn Kv>,
        /// Stops transactions that make sessions.
        forks: Arc<Stop>,
        store: Store,
        session: SessionId,
        local: LocalStore,
        /// What the gateway sees.
        chunks: Arc<dyn ChunkStore>,
        faulty: Arc<FaultyStore>,
        gateway: Arc<Gateway>,
        address: std::net::SocketAddr,
        path: String,
        tasks: Tasks,
    }

    fn open_local(dir: &Path) -> LocalStore {
        let options = LocalOptions {
            pack_bytes: 0,
            reserve_bytes: 0,
            ..LocalOptions::default()
        };
        LocalStore::open(dir, options, Arc::new(SystemClock::new())).unwrap()
    }

    impl World {
        async fn start(dir: &Path, rules: Rules) -> Self {
            Self::start_with(dir, rules, Arc::new(SystemClock::new())).await
        }

        /// Faults are delayed by `pace`.
        async fn start_with(dir: &Path, rules: Rules, pace: Arc<dyn Clock>) -> Self {
            let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
            let rng = Arc::new(Rng::seeded(3));
            let forks = Arc::<Stop>::default();
            let making = Making {
                makes_session: false,
                forks: Arc::clone(&forks),
            };
            let memory = Arc::new(MemoryKv::new(Arc::clone(&clock)));
            let kv: Arc<dyn Kv> = Arc::new(HookedKv::new(memory, making));
            let store = Store::open(Arc::clone(&kv), Arc::clone(&clock), Arc::clone(&rng));
            let store = store.await.unwrap();
            let new = NewWorkspace {
                name: "w".into(),
                root: (0o777, 0, 0),
            };
            store
                .create_workspace(TenantId::DEFAULT, new)
                .await
                .unwrap();
            let open = OpenSession::new("w");
            let opened = store.open_session(TenantId::DEFAULT, open).await.unwrap();
            let local = open_local(dir);
            let inner: Arc<dyn ChunkStore> = Arc::new(local.clone());
            let faulty = Arc::new(FaultyStore::new(inner, pace));
            let without = Arc::<FaultyStore>::clone(&faulty);
            let chunks: Arc<dyn ChunkStore> = Arc::new(Without(rules, without));
            let engines = Engines {
                kv: Arc::clone(&kv),
                chunks: Arc::clone(&chunks),
                clock,
                rng,
            };
            let gateway = Gateway::new(GatewayOptions::default(), engines, store.clone());
            let gateway = gateway.await.unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let tasks = Tasks::new();
            let serving = Arc::clone(&gateway);
            tasks.spawn(async move { serving.serve(listener).await });
            Self {
                kv,
                forks,
                store,
                session: opened.session.id,
                local,
                chunks,
                faulty,
                gateway,
                address,
                path: format!("/{}", opened.ticket),
                tasks,
            }
        }

        async fn mount(&self) -> Mount {
            let host = self.address.ip().to_string();
            Nfs3ConnectionBuilder::new(TokioConnector, host, self.path.clone())
                .connect_from_privileged_port(false)
                .mount_port(self.address.port())
                .nfs3_port(self.address.port())
                .mount()
                .await
                .unwrap()
        }

        fn historian(&self) -> Historian {
            Historian {
                gateway: Arc::clone(&self.gateway),
                store: self.store.clone(),
                chunks: Arc::clone(&self.chunks),
                session: self.session,
                made: Arc::new([AtomicU64::new(0), AtomicU64::new(0)]),
            }
        }

        async fn stop(self) -> (Arc<dyn Kv>, LocalStore) {
            self.gateway.shutdown().await;
            self.tasks.join().await;
            (self.kv, self.local)
        }
    }

    /// What one collection found to be missing, or `None` if it did not go through.
    async fn collect(kv: &dyn Kv, store: &Store, local: &LocalStore) -> Option<u64> {
        let grey = store.grey_roots();
        let begun = local.begin_collection().unwrap();
        let marking = begun.settled(Duration::from_secs(60)).await?;
        let trees = ChunkTrees::new(Arc::new(local.clone()), 0);
        let mut references = References::new(Arc::new(trees));
        let mut missing = 0;
        let mut mark = |domain: DomainId, id: ChunkId| {
            missing += u64::from(marking.mark(domain, id) == Marked::Missing);
        };
        loop {
            match references.next(kv, &mut mark).await {
                Ok(true) => {}
                Ok(false) if references.add(grey.take()) => {}
                Ok(false) => break,
                // A node is missing.
                Err(ReferenceError::Tree { .. }) => return Some(1),
                Err(error) => panic!("{error}"),
            }
        }
        let mut sweep = marking.sweep(Thoroughness::High).await.unwrap();
        while sweep.step().await.unwrap().is_some() {}
        Some(missing)
    }

    fn content(number: u64) -> Vec<u8> {
        let rng = Rng::seeded(number + 1);
        let words = (0..FILE_BYTES / 8).flat_map(|_| rng.u64().to_be_bytes());
        words.collect()
    }

    fn place<'a>(mount: &Mount, name: &'a str) -> diropargs3<'a> {
        diropargs3 {
            dir: mount.root_nfs_fh3(),
            name: filename3(Opaque::borrowed(name.as_bytes())),
        }
    }

    async fn create(mount: &mut Mount, name: &str) -> nfs_fh3 {
        let args = CREATE3args {
            where_: place(mount, name),
            how: createhow3::UNCHECKED(sattr3::default()),
        };
        match mount.create(&args).await.unwrap().unwrap().obj {
            Nfs3Option::Some(handle) => handle,
            Nfs3Option::None => panic!("no handle"),
        }
    }

    async fn write(
        mount: &mut Mount,
        file: &nfs_fh3,
        offset: u64,
        data: &[u8],
        stable: stable_how,
    ) -> Result<(), nfsstat3> {
        let args = WRITE3args {
            file: file.clone(),
            offset,
            count: u32::try_from(data.len()).unwrap(),
            stable,
            data: Opaque::borrowed(data),
        };
        match mount.write(&args).await.unwrap() {
            Nfs3Result::Ok(_) => Ok(()),
            Nfs3Result::Err((status, _)) => Err(status),
        }
    }

    async fn truncate(mount: &mut Mount, file: &nfs_fh3, size: u64) -> Result<(), nfsstat3> {
        let args = SETATTR3args {
            object: file.clone(),
            new_attributes: sattr3 {
                size: Nfs3Option::Some(size),
                ..sattr3::default()
            },
            guard: sattrguard3::None,
        };
        match mount.setattr(&args).await.unwrap() {
            Nfs3Result::Ok(_) => Ok(()),
            Nfs3Result::Err((status, _)) => Err(status),
        }
    }

    async fn read(mount: &mut Mount, file: &nfs_fh3) -> Result<Vec<u8>, nfsstat3> {
        let args = READ3args {
            file: file.clone(),
            offset: 0,
            count: u32::try_from(FILE_BYTES).unwrap(),
        };
        match mount.read(&args).await.unwrap() {
            Nfs3Result::Ok(read) => Ok(read.data.to_vec()),
            Nfs3Result::Err((status, _)) => Err(status),
        }
    }

    /// Each call does to a file what any client may. Tells of what must not be.
    async fn client(mut mount: Mount, seed: u64) -> Result<(), String> {
        let rng = Rng::seeded(seed);
        let pick = |below: u64| rng.u64() % below;
        let contents: Vec<_> = (0..CONTENTS).map(content).collect();
        for call in 0..CALLS {
            let name = format!("f{}", pick(FILES));
            let file = create(&mut mount, &name).await;
            let failed = |doing: &str, status: nfsstat3| match status {
                // Another client removed it.
                nfsstat3::NFS3ERR_STALE => Ok(()),
                status => Err(format!("client {seed}, call {call}: {doing}: {status:?}")),
            };
            let content = &contents[usize::try_from(pick(CONTENTS)).unwrap()];
            let done = match pick(10) {
                0..4 => write(&mut mount, &file, 0, content, stable_how::FILE_SYNC).await,
                4 => {
                    // A part, over what is stored.
                    let part = &content[20_000..60_000];
                    write(&mut mount, &file, 20_000, part, stable_how::FILE_SYNC).await
                }
                5 => {
                    let written = write(&mut mount, &file, 0, content, stable_how::UNSTABLE).await;
                    let args = COMMIT3args {
                        file,
                        offset: 0,
                        count: 0,
                    };
                    match mount.commit(&args).await.unwrap() {
                        Nfs3Result::Ok(_) => written,
                        Nfs3Result::Err((status, _)) => Err(status),
                    }
                }
                6 => {
                    let size = [0, 7, 30_000][usize::try_from(pick(3)).unwrap()];
                    truncate(&mut mount, &file, size).await
                }
                7 => {
                    let args = REMOVE3args {
                        object: place(&mount, &name),
                    };
                    match mount.remove(&args).await.unwrap() {
                        Nfs3Result::Ok(_) | Nfs3Result::Err((nfsstat3::NFS3ERR_NOENT, _)) => Ok(()),
                        Nfs3Result::Err((status, _)) => Err(status),
                    }
                }
                _ => match read(&mut mount, &file).await {
                    // What was written, whole or in parts, or a hole.
                    Ok(data) => {
                        let known = |at: usize| {
                            data[at] == 0 || contents.iter().any(|one| one[at] == data[at])
                        };
                        assert!((0..data.len()).step_by(97).all(known));
                        Ok(())
                    }
                    Err(status) => Err(status),
                },
            };
            done.or_else(|status| failed(&name, status))?;
        }
        Ok(())
    }

    /// Who forks the session, and commits it and its forks, again and again.
    struct Historian {
        gateway: Arc<Gateway>,
        store: Store,
        chunks: Arc<dyn ChunkStore>,
        session: SessionId,
        /// Forks and commits.
        made: Arc<[AtomicU64; 2]>,
    }

    impl Historian {
        /// Tells of what must not be.
        async fn run(&self, seed: u64, until: Tasks) -> Result<(), String> {
            let rng = Rng::seeded(seed);
            let mut sessions = vec![self.session];
            while !until.is_shutting_down() {
                let at = usize::try_from(rng.u64()).unwrap() % sessions.len();
                let session = sessions[at];
                match rng.u64() % 5 {
                    0 | 1 if sessions.len() < 4 => sessions.push(self.fork(session).await?),
                    2 if at > 0 => {
                        sessions.remove(at);
                        let closed = self.store.close_session(TenantId::DEFAULT, session);
                        closed.await.unwrap();
                        self.gateway.drop_session(session);
                    }
                    // Each commit keeps its content for good, and little is collected then.
                    3 if self.made[1].load(SeqCst) < 4 => self.commit(session).await?,
                    _ => drop(self.snapshot(session).await?),
                }
            }
            Ok(())
        }

        async fn snapshot(&self, session: SessionId) -> Result<Root, String> {
            let made = self.gateway.snapshot(session).await;
            made.map_err(|error| format!("snapshot: {error}"))
        }

        async fn fork(&self, source: SessionId) -> Result<SessionId, String> {
            let fork = ForkSession {
                read_only: false,
                identity: None,
                agent: String::new(),
                run: String::new(),
                ttl_seconds: None,
            };
            let forked = self.gateway.fork(TenantId::DEFAULT, source, fork).await;
            self.made[0].fetch_add(1, SeqCst);
            let forked = forked.map_err(|error| format!("fork: {error}"))?;
            Ok(forked.session.id)
        }

        async fn commit(&self, session: SessionId) -> Result<(), String> {
            let hold = self.chunks.hold();
            let root = self.snapshot(session).await?;
            let tenant = self.store.tenant(TenantId::DEFAULT).await.unwrap();
            let workspace = self.store.workspace_by_name(TenantId::DEFAULT, "w").await;
            let workspace = workspace.unwrap();
            let domain = DomainId::new(TenantId::DEFAULT.raw());
            let keys = TreeKeys::new(domain, &tenant.domain_key, &workspace.record.name_key);
            let tree = ChunkTrees::new(Arc::clone(&self.chunks), 0).open(keys);
            let counters = tree.counters(root).await;
            let counters = counters.map_err(|error| format!("commit: {error}"))?;
            let new = NewCommit {
                tree: root.name(),
                usage: Usage {
                    bytes: counters.bytes,
                    // The root directory does not count.
                    inodes: counters.inodes - 1,
                },
                parents: Vec::new(),
                statistics: Statistics::default(),
                conflicts: 0,
                message: String::new(),
                provenance: Provenance::default(),
            };
            self.store.put_commit(workspace.id, new).await.unwrap();
            self.made[1].fetch_add(1, SeqCst);
            drop(hold);
            Ok(())
        }
    }

    /// Everything that is stored is as it should be.
    async fn assert_sound(dir: &Path, kv: &dyn Kv) {
        let local = open_local(dir);
        let exists = |domain, id| local.contains(domain, id);
        let trees = ChunkTrees::new(Arc::new(local.clone()), 1 << 20);
        let options = CheckOptions {
            trees: Some(&trees),
            chunk_exists: Some(&exists),
            progress: None,
        };
        let report = check(kv, options).await.unwrap();
        assert!(report.is_clean(), "{report:?}");
        let verified = local.verify(|_| ());
        assert_eq!((verified.damaged, verified.unreadable_packs), (0, 0));
    }

    /// Clients and collections at once. Gives how many collections there were, or what was lost.
    async fn run(dir: &Path, rules: Rules, seed: u64) -> Result<u64, String> {
        let world = World::start(dir, rules).await;
        // Time between a put and its reference.
        world.faulty.delay(Call::Sync, Duration::from_millis(1));
        let (collecting, clients) = (Tasks::new(), Tasks::new());
        let (collections, lost) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        {
            let (kv, local) = (Arc::clone(&world.kv), world.local.clone());
            let store = world.store.clone();
            let (until, collections, lost) = (
                collecting.clone(),
                Arc::clone(&collections),
                Arc::clone(&lost),
            );
            collecting.spawn(async move {
                while !until.is_shutting_down() {
                    let missing = collect(kv.as_ref(), &store, &local).await;
                    lost.fetch_add(missing.unwrap_or(0), SeqCst);
                    collections.fetch_add(u64::from(missing.is_some()), SeqCst);
                }
            });
        }
        let historian = world.historian();
        let made = Arc::clone(&historian.made);
        let told = Arc::new(std::sync::Mutex::new(None));
        {
            let (until, told) = (collecting.clone(), Arc::clone(&told));
            collecting.spawn(async move {
                if let Err(what) = historian.run(seed, until).await {
                    *told.lock().unwrap() = Some(what);
                }
            });
        }
        for number in 0..CLIENTS {
            let mount = world.mount().await;
            let told = Arc::clone(&told);
            clients.spawn(async move {
                if let Err(what) = client(mount, seed * 100 + number).await {
                    *told.lock().unwrap() = Some(what);
                }
            });
        }
        clients.join().await;
        collecting.begin_shutdown();
        collecting.join().await;
        let told = told.lock().unwrap().take();
        let store = world.store.clone();
        let (kv, local) = world.stop().await;
        assert_eq!(local.holds(), 0, "a hold was forgotten");
        if let Some(what) = told {
            return Err(what);
        }
        match lost.load(SeqCst) + collect(kv.as_ref(), &store, &local).await.unwrap() {
            0 => {}
            lost => return Err(format!("{lost} chunks are missing")),
        }
        drop(local);
        assert_sound(dir, kv.as_ref()).await;
        let made: Vec<u64> = made.iter().map(|made| made.load(SeqCst)).collect();
        assert!(
            made.iter().all(|made| *made > 0),
            "forks, commits: {made:?}"
        );
        Ok(collections.load(SeqCst))
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_in_use_is_collected() {
        let mut collections = 0;
        for seed in 0..3 {
            let dir = tempfile::tempdir().unwrap();
            collections += run(dir.path(), Rules::All, seed).await.unwrap();
        }
        assert!(collections > 30, "{collections}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn without_holds_something_is_lost() {
        for seed in 0..20 {
            let dir = tempfile::tempdir().unwrap();
            if run(dir.path(), Rules::NoHolds, seed).await.is_err() {
                return;
            }
        }
        panic!("twenty runs without holds lost nothing");
    }

    /// A write over a part of a block reads what is there. That may leave the file meanwhile, and
    /// be collected if nobody touched it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_a_write_is_based_on_stays_until_it_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let pace = Arc::new(ManualClock::new(Timestamp::EPOCH));
        let world =
            World::start_with(dir.path(), Rules::All, Arc::<ManualClock>::clone(&pace)).await;
        let (mut one, mut other) = (world.mount().await, world.mount().await);
        let file = create(&mut one, "f").await;
        let written = write(&mut one, &file, 0, &content(1), stable_how::FILE_SYNC).await;
        assert_eq!(written, Ok(()));
        let begun = world.local.begin_collection().unwrap();
        let marking = begun.try_settled().unwrap();
        world.faulty.delay(Call::Get, Duration::from_secs(1));
        let over = content(2);
        let writing = write(
            &mut one,
            &file,
            10_000,
            &over[..40_000],
            stable_how::FILE_SYNC,
        );
        let collecting = async {
            while world.local.holds() == 0 {
                tokio::task::yield_now().await;
            }
            truncate(&mut other, &file, 0).await.unwrap();
            let mut references = References::new(Arc::new(MemoryTrees::default()));
            let mut mark = |domain, id| assert_eq!(marking.mark(domain, id), Marked::Stored);
            while references.next(world.kv.as_ref(), &mut mark).await.unwrap() {}
            assert_eq!(references.counts().references, 0);
            let mut sweep = marking.sweep(Thoroughness::High).await.unwrap();
            while sweep.step().await.unwrap().is_some() {}
            pace.advance(Duration::from_secs(2));
        };
        let (written, ()) = tokio::join!(writing, collecting);
        assert_eq!(written, Ok(()));
        drop((one, other));
        world.stop().await;
    }

    /// Between the moment at which a fork reads its source and the end of its transaction no
    /// collection begins to read references; also if whoever asked for the fork has gone.
    #[tokio::test]
    async fn a_collection_waits_for_forks_that_began_before() {
        for is_dropped in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let world = World::start(dir.path(), Rules::All).await;
            let mut mount = world.mount().await;
            create(&mut mount, "f").await;
            world.gateway.snapshot(world.session).await.unwrap();
            assert_eq!(world.local.holds(), 0);
            let grey = world.store.grey_roots();
            world.forks.is_closed.store(true, SeqCst);
            let historian = world.historian();
            let session = world.session;
            let mut forking = Box::pin(async move { historian.fork(session).await });
            while world.forks.waiting.load(SeqCst) == 0 {
                tokio::select! {
                    forked = &mut forking => panic!("{forked:?}"),
                    () = tokio::task::yield_now() => {}
                }
            }
            assert_eq!(grey.take().len(), 1);
            assert_eq!(world.local.holds(), 1);
            let begun = world.local.begin_collection().unwrap();
            let begun = begun.try_settled().unwrap_err();
            let forked = if is_dropped {
                drop(forking);
                None
            } else {
                Some(forking)
            };
            let begun = begun.try_settled().unwrap_err();
            world.forks.is_closed.store(false, SeqCst);
            if let Some(forking) = forked {
                forking.await.unwrap();
            }
            assert!(begun.settled(Duration::from_secs(60)).await.is_some());
            let sessions = world.store.sessions(TenantId::DEFAULT, None, None, 9).await;
            assert_eq!(sessions.unwrap().len(), 2);
            drop(mount);
            world.stop().await;
        }
    }

    /// What is left of a session when a fold begins after the marks were taken away, and nothing is
    /// walked: all of the new tree, or what it copies references of is gone.
    async fn lost_without_a_walk(rules: Rules) -> u64 {
        let dir = tempfile::tempdir().unwrap();
        let world = World::start(dir.path(), rules).await;
        let mut mount = world.mount().await;
        let file = create(&mut mount, "f").await;
        let written = write(&mut mount, &file, 0, &content(1), stable_how::FILE_SYNC).await;
        assert_eq!(written, Ok(()));
        world.gateway.freeze(world.session).await.unwrap();
        let marking = world.local.begin_collection().unwrap();
        let marking = marking.try_settled().unwrap();
        world.gateway.snapshot(world.session).await.unwrap();
        let mut sweep = marking.sweep(Thoroughness::High).await.unwrap();
        while sweep.step().await.unwrap().is_some() {}
        drop(sweep);
        let missing = collect(world.kv.as_ref(), &world.store, &world.local).await;
        drop(mount);
        world.stop().await;
        missing.unwrap()
    }

    #[tokio::test]
    async fn a_fold_touches_what_it_copies_references_of() {
        assert_eq!(lost_without_a_walk(Rules::All).await, 0);
        assert_eq!(lost_without_a_walk(Rules::NoTouches).await, 1);
    }

    /// A chunk that is gone when it is read may have been collected after the file changed: the
    /// call looks at the file again. One that the file still names is lost.
    #[tokio::test]
    async fn a_read_that_finds_its_chunk_gone_looks_again() {
        let dir = tempfile::tempdir().unwrap();
        let world = World::start(dir.path(), Rules::All).await;
        let mut mount = world.mount().await;
        let file = create(&mut mount, "f").await;
        let written = write(&mut mount, &file, 0, &content(1), stable_how::FILE_SYNC).await;
        assert_eq!(written, Ok(()));
        let gone = ChunkError::NotFound(ChunkId::new([9; 32]));
        let fail = |times| {
            world
                .faulty
                .fail(Call::Get, gone.clone(), Effect::Nothing, times);
        };
        fail(1);
        assert_eq!(read(&mut mount, &file).await, Ok(content(1)));
        fail(2);
        let lost = read(&mut mount, &file).await;
        assert_eq!(lost, Err(nfsstat3::NFS3ERR_IO));
        assert_eq!(read(&mut mount, &file).await, Ok(content(1)));
        drop(mount);
        world.stop().await;
    }
}
