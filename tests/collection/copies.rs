//! The real gateway and its clients, histories, policies and removed workspaces, with a collection after
//! each step, against a model that keeps whole copies: what a session shows, and what each commit had.
//!
//! Nothing that anybody can ask for is lost, and in the end nothing is stored any more.

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::Path;
    use std::sync::{Arc, LazyLock};
    use std::time::Duration;

    use base::{Clock, CommitId, DomainId, Rng, SessionId, Tasks, TenantId, WorkspaceId};
    use chunkstore::ChunkStore;
    use chunkstore::local::{LocalOptions, LocalStore, Marked, Thoroughness};
    use metadata::check::{CheckOptions, check};
    use metadata::kv::Kv;
    use metadata::kv::memory::MemoryKv;
    use metadata::merge::Policy;
    use metadata::record::reference::RefName;

    use metadata::references::References;
    use metadata::store::{ForkSession, NewWorkspace, OpenSession, Opened, Removal, Store};
    use nfs_gateway::{About, ChunkTrees, Engines, Gateway, GatewayOptions};
    use nfs3_client::tokio::{TokioConnector, TokioIo};
    use nfs3_client::{Nfs3Connection, Nfs3ConnectionBuilder};
    use nfs3_types::nfs3::{
        CREATE3args, LOOKUP3args, Nfs3Option, Nfs3Result, READ3args, REMOVE3args, WRITE3args,
        createhow3, diropargs3, filename3, nfs_fh3, nfsstat3, sattr3, stable_how,
    };
    use nfs3_types::xdr_codec::Opaque;
    use tokio::net::{TcpListener, TcpStream};

    use crate::model::keeping::{ShiftedClock, set_policy};

    const TENANT: TenantId = TenantId::DEFAULT;
    /// Too large to live in the metadata store.
    const FILE_BYTES: usize = 40_000;
    /// Few, so that what was removed is soon put again.
    const CONTENTS: u64 = 9;
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    const BRANCHES: [&str; 2] = ["main", "other"];
    const SESSIONS_MAX: usize = 5;
    const STEPS: u32 = 120;

    /// A whole copy: the number of each file's content.
    type Copied = BTreeMap<&'static str, u64>;

    static ALL: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
        let content = |number| {
            let rng = Rng::seeded(number + 1);
            let words = (0..FILE_BYTES / 8).flat_map(|_| rng.u64().to_be_bytes());
            words.collect()
        };
        (0..CONTENTS).map(content).collect()
    });

    fn content(number: u64) -> &'static [u8] {
        &ALL[usize::try_from(number).unwrap()]
    }

    /// A session as one client has it mounted.
    struct Mounted {
        id: SessionId,
        mount: Nfs3Connection<TokioIo<TcpStream>>,
        files: Copied,
    }

    impl Mounted {
        fn place<'a>(&self, name: &'a str) -> diropargs3<'a> {
            diropargs3 {
                dir: self.mount.root_nfs_fh3(),
                name: filename3(Opaque::borrowed(name.as_bytes())),
            }
        }

        async fn write(&mut self, name: &'static str, number: u64) {
            let args = CREATE3args {
                where_: self.place(name),
                how: createhow3::UNCHECKED(sattr3::default()),
            };
            let file = match self.mount.create(&args).await.unwrap().unwrap().obj {
                Nfs3Option::Some(file) => file,
                Nfs3Option::None => panic!("no handle"),
            };
            let data = content(number);
            let args = WRITE3args {
                file,
                offset: 0,
                count: u32::try_from(data.len()).unwrap(),
                stable: stable_how::FILE_SYNC,
                data: Opaque::borrowed(data),
            };
            self.mount.write(&args).await.unwrap().unwrap();
            self.files.insert(name, number);
        }

        async fn remove(&mut self, name: &'static str) {
            let object = self.place(name);
            let removed = self.mount.remove(&REMOVE3args { object }).await.unwrap();
            assert_eq!(
                matches!(removed, Nfs3Result::Ok(_)),
                self.files.remove(name).is_some()
            );
        }

        async fn find(&mut self, name: &str) -> Result<Option<nfs_fh3>, nfsstat3> {
            let what = self.place(name);
            match self.mount.lookup(&LOOKUP3args { what }).await.unwrap() {
                Nfs3Result::Ok(found) => Ok(Some(found.object)),
                Nfs3Result::Err((nfsstat3::NFS3ERR_NOENT, _)) => Ok(None),
                Nfs3Result::Err((status, _)) => Err(status),
            }
        }

        /// What it shows.
        async fn look(&mut self) -> Result<Copied, String> {
            let mut files = Copied::new();
            for name in NAMES {
                let found = self.find(name).await;
                let Some(file) = found.map_err(|status| format!("{name}: {status:?}"))? else {
                    continue;
                };
                let args = READ3args {
                    file,
                    offset: 0,
                    count: u32::try_from(FILE_BYTES).unwrap(),
                };
                let data = match self.mount.read(&args).await.unwrap() {
                    Nfs3Result::Ok(read) => read.data.to_vec(),
                    Nfs3Result::Err((status, _)) => return Err(format!("{name}: {status:?}")),
                };
                let number = (0..CONTENTS).find(|number| content(*number) == data);
                files.insert(
                    name,
                    number.ok_or_else(|| format!("{name} has other content"))?,
                );
            }
            Ok(files)
        }
    }

    struct World {
        kv: Arc<dyn Kv>,
        clock: Arc<ShiftedClock>,
        store: Store,
        local: LocalStore,
        gateway: Arc<Gateway>,
        address: std::net::SocketAddr,
        tasks: Tasks,
        rng: Rng,
        /// How many workspaces there were.
        generation: u32,
        workspace: WorkspaceId,
        sessions: Vec<Mounted>,
        commits: BTreeMap<CommitId, Copied>,
        /// Merges, commits that were let go, removed workspaces.
        done: [u64; 3],
        /// Collections take commits for gone, which they must not.
        forgets: bool,
    }

    impl World {
        async fn start(dir: &Path, seed: u64) -> Self {
            let clock = Arc::<ShiftedClock>::default();
            let shared: Arc<dyn Clock> = Arc::<ShiftedClock>::clone(&clock);
            let rng = Arc::new(Rng::seeded(seed));
            let kv: Arc<dyn Kv> = Arc::new(MemoryKv::new(Arc::clone(&shared)));
            let store = Store::open(Arc::clone(&kv), Arc::clone(&shared), Arc::clone(&rng));
            let store = store.await.unwrap();
            let options = LocalOptions {
                pack_bytes: 0,
                reserve_bytes: 0,
                ..LocalOptions::default()
            };
            let local = LocalStore::open(dir, options, Arc::clone(&shared)).unwrap();
            let chunks: Arc<dyn ChunkStore> = Arc::new(local.clone());
            let engines = Engines {
                kv: Arc::clone(&kv),
                chunks,
                clock: shared,
                rng,
            };
            let gateway = Gateway::new(GatewayOptions::default(), engines, store.clone());
            let gateway = gateway.await.unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let tasks = Tasks::new();
            let serving = Arc::clone(&gateway);
            tasks.spawn(async move { serving.serve(listener).await });
            let mut world = Self {
                kv,
                clock,
                store,
                local,
                gateway,
                address,
                tasks,
                rng: Rng::seeded(seed + 100),
                generation: 0,
                workspace: WorkspaceId::new(1),
                sessions: Vec::new(),
                commits: BTreeMap::new(),
                done: [0; 3],
                forgets: false,
            };
            world.new_workspace().await;
            world
        }

        async fn new_workspace(&mut self) {
            self.generation += 1;
            let new = NewWorkspace {
                name: format!("w{}", self.generation % 2),
                root: (0o777, 0, 0),
            };
            let made = self.store.create_workspace(TENANT, new).await.unwrap();
            set_policy(&self.store, made.id).await;
            self.workspace = made.id;
            let opened = self.open(None, false).await;
            self.sessions.push(self.mount(opened, Copied::new()).await);
        }

        async fn open(&self, version: Option<CommitId>, read_only: bool) -> Opened {
            let open = OpenSession {
                read_only,
                version: version.map(|version| version.to_string()),
                ..OpenSession::new(format!("w{}", self.generation % 2))
            };
            self.store.open_session(TENANT, open).await.unwrap()
        }

        async fn mount(&self, opened: Opened, files: Copied) -> Mounted {
            let host = self.address.ip().to_string();
            let path = format!("/{}", opened.ticket);
            let mount = Nfs3ConnectionBuilder::new(TokioConnector, host, path)
                .connect_from_privileged_port(false)
                .mount_port(self.address.port())
                .nfs3_port(self.address.port())
                .mount()
                .await
                .unwrap();
            Mounted {
                id: opened.session.id,
                mount,
                files,
            }
        }

        fn pick(&self, below: usize) -> usize {
            usize::try_from(self.rng.u64() % u64::try_from(below.max(1)).unwrap()).unwrap()
        }

        async fn close(&self, id: SessionId) {
            self.store.close_session(TENANT, id).await.unwrap();
            self.gateway.drop_session(id);
        }

        /// What a commit has, as somebody sees it who opens a session at it.
        async fn look_at(&self, commit: CommitId) -> Result<Copied, String> {
            let opened = self.open(Some(commit), true).await;
            let mut session = self.mount(opened, Copied::new()).await;
            let files = session.look().await;
            self.close(session.id).await;
            files
        }

        async fn heads(&self) -> BTreeMap<&'static str, CommitId> {
            let mut heads = BTreeMap::new();
            for name in BRANCHES {
                let name_of = RefName::new(name).unwrap();
                if let Ok(found) = self.store.reference(self.workspace, &name_of).await {
                    heads.insert(name, found.record.state.commit);
                }
            }
            heads
        }

        /// Commits that branches and sessions need.
        async fn needed(&self) -> BTreeSet<CommitId> {
            let mut next: Vec<CommitId> = self.heads().await.into_values().collect();
            let sessions = self.store.sessions(TENANT, None, None, 100).await.unwrap();
            let of_this = sessions
                .into_iter()
                .filter(|session| session.record.workspace == self.workspace);
            next.extend(of_this.filter_map(|session| session.record.commit));
            let mut needed = BTreeSet::new();
            while let Some(id) = next.pop() {
                if needed.insert(id) {
                    let commit = self.store.commit(self.workspace, id).await.unwrap();
                    next.extend(commit.record.parents);
                }
            }
            needed
        }

        async fn publish(&mut self, at: usize, branch: &str) {
            let id = self.sessions[at].id;
            let branch = RefName::new(branch).unwrap();
            let published = self
                .gateway
                .publish(TENANT, id, About::default(), Some(branch), Policy::Theirs)
                .await
                .unwrap();
            let files = self.sessions[at].files.clone();
            self.commits.insert(published.commit.id, files);
            if !self.commits.contains_key(&published.head) {
                // A merge: what it has now it has for ever.
                let merged = self.look_at(published.head).await.unwrap();
                self.commits.insert(published.head, merged);
                self.done[0] += 1;
            }
        }

        async fn step(&mut self) {
            let at = self.pick(self.sessions.len());
            let id = self.sessions[at].id;
            let name = NAMES[self.pick(NAMES.len())];
            let branch = BRANCHES[self.pick(BRANCHES.len())];
            match self.pick(20) {
                0..6 => {
                    let number = self.rng.u64() % CONTENTS;
                    self.sessions[at].write(name, number).await;
                }
                6 | 7 => self.sessions[at].remove(name).await,
                8 | 9 if self.sessions.len() < SESSIONS_MAX => {
                    let fork = ForkSession {
                        read_only: false,
                        identity: None,
                        agent: String::new(),
                        run: String::new(),
                        ttl_seconds: None,
                    };
                    let forked = self.gateway.fork(TENANT, id, fork).await.unwrap();
                    let files = self.sessions[at].files.clone();
                    let forked = self.mount(forked, files).await;
                    self.sessions.push(forked);
                }
                10 | 11 if self.sessions.len() < SESSIONS_MAX => {
                    let needed: Vec<_> = self.needed().await.into_iter().collect();
                    if let Some(commit) = needed.get(self.pick(needed.len())) {
                        let opened = self.open(Some(*commit), false).await;
                        let files = self.commits[commit].clone();
                        let opened = self.mount(opened, files).await;
                        self.sessions.push(opened);
                    }
                }
                12..15 => self.publish(at, branch).await,
                15 => {
                    let made = self.gateway.checkpoint(TENANT, id, About::default());
                    let made = made.await.unwrap();
                    let files = self.sessions[at].files.clone();
                    self.commits.insert(made.commit.id, files);
                }
                16 if self.sessions.len() > 1 => {
                    drop(self.sessions.remove(at));
                    self.close(id).await;
                }
                17 if self.pick(2) == 0 => {
                    if let Some(head) = self.heads().await.get(branch) {
                        let branch = RefName::new(branch).unwrap();
                        let gone = self.store.delete_ref(self.workspace, &branch, *head);
                        gone.await.unwrap();
                    }
                }
                17 | 18 => {
                    let seconds = 3000 + self.rng.u64() % 3000;
                    self.clock.put_on(seconds);
                }
                19 if self.pick(4) == 0 => self.replace_workspace().await,
                _ => {}
            }
        }

        /// Removes the workspace, with collections in between, and goes on in a new one.
        async fn replace_workspace(&mut self) {
            let name = format!("w{}", self.generation % 2);
            let deletion = self
                .store
                .delete_workspace(TENANT, &name, true)
                .await
                .unwrap();
            let mut gone = std::mem::take(&mut self.sessions);
            self.commits.clear();
            self.new_workspace().await;
            loop {
                match self.store.remove_deleted(&deletion, 7).await.unwrap() {
                    Removal::Sessions(sessions) => {
                        for id in sessions {
                            self.close(id).await;
                        }
                    }
                    Removal::Removed(_) => {
                        if self.pick(4) == 0 {
                            assert_eq!(self.collect().await, 0);
                        }
                    }
                    Removal::Done => break,
                }
            }
            for session in &mut gone {
                assert!(
                    session.look().await.is_err(),
                    "a removed session shows files"
                );
            }
            self.done[2] += 1;
        }

        /// As `control`'s collector: first what policies let go. Gives what is missing.
        async fn collect(&mut self) -> u64 {
            let mut expired = self.store.expired(self.workspace).await.unwrap();
            self.store.remove_old_entries(&expired).await.unwrap();
            while !expired.commits().is_empty() {
                let removed = self.store.remove_expired(&mut expired).await.unwrap();
                self.done[1] += removed.unwrap();
            }
            let grey = self.store.grey_roots();
            let begun = self.local.begin_collection().unwrap();
            let marking = begun.settled(Duration::from_secs(60)).await.unwrap();
            let trees = ChunkTrees::new(Arc::new(self.local.clone()), 0);
            let forgotten = self.commits.keys().filter(|_| self.forgets);
            let forgotten = forgotten.map(|id| (self.workspace, *id));
            let mut references = References::without(Arc::new(trees), forgotten);
            let mut missing = 0;
            let mut mark = |domain: DomainId, id| {
                missing += u64::from(marking.mark(domain, id) == Marked::Missing);
            };
            while references.next(self.kv.as_ref(), &mut mark).await.unwrap()
                || references.add(grey.take())
            {}
            let mut sweep = marking.sweep(Thoroughness::High).await.unwrap();
            while sweep.step().await.unwrap().is_some() {}
            missing
        }

        /// One session, and one commit that is needed, are what they were.
        async fn verify(&mut self) -> Result<(), String> {
            let at = self.pick(self.sessions.len());
            let session = &mut self.sessions[at];
            let shown = session.look().await?;
            if shown != session.files {
                return Err(format!("session: {shown:?}, not {:?}", session.files));
            }
            let needed: Vec<_> = self.needed().await.into_iter().collect();
            if let Some(commit) = needed.get(self.pick(needed.len())) {
                let shown = self.look_at(*commit).await?;
                let wanted = &self.commits[commit];
                if shown != *wanted {
                    return Err(format!("commit {commit}: {shown:?}, not {wanted:?}"));
                }
            }
            Ok(())
        }

        /// Everything is sound; and when all is removed, nothing is stored.
        async fn end(mut self) -> [u64; 3] {
            self.sessions.clear();
            self.gateway.shutdown().await;
            self.tasks.join().await;
            let local = self.local.clone();
            let exists = |domain, id| local.contains(domain, id);
            let trees = ChunkTrees::new(Arc::new(local.clone()), 1 << 20);
            let options = CheckOptions {
                trees: Some(&trees),
                chunk_exists: Some(&exists),
                progress: None,
            };
            let report = check(self.kv.as_ref(), options).await.unwrap();
            assert!(report.is_clean(), "{report:?}");
            let name = format!("w{}", self.generation % 2);
            let deletion = self
                .store
                .delete_workspace(TENANT, &name, true)
                .await
                .unwrap();
            loop {
                match self.store.remove_deleted(&deletion, 500).await.unwrap() {
                    Removal::Sessions(sessions) => {
                        for id in sessions {
                            self.store.close_session(TENANT, id).await.unwrap();
                        }
                    }
                    Removal::Removed(_) => {}
                    Removal::Done => break,
                }
            }
            assert_eq!(self.collect().await, 0);
            assert_eq!(self.local.counts().chunks, 0, "something is left");
            self.done
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn whole_copies_are_what_anybody_sees() {
        let mut done = [0; 3];
        for seed in 0..4 {
            let dir = tempfile::tempdir().unwrap();
            let mut world = World::start(dir.path(), seed).await;
            for number in 0..STEPS {
                world.step().await;
                assert_eq!(world.collect().await, 0, "seed {seed}, step {number}");
                let verified = world.verify().await;
                verified.unwrap_or_else(|why| panic!("seed {seed}, step {number}: {why}"));
            }
            for (sum, count) in done.iter_mut().zip(world.end().await) {
                *sum += count;
            }
        }
        // It has been put to the test.
        assert!(done.iter().all(|done| *done > 3), "{done:?}");
    }

    /// A collection that forgets commits is found out.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_lost_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let mut world = World::start(dir.path(), 1).await;
        for _ in 0..30 {
            world.step().await;
        }
        world.sessions[0].write("a", CONTENTS - 1).await;
        world.publish(0, "main").await;
        let published = world.needed().await;
        assert!(!published.is_empty());
        // Nothing but commits has it any more.
        for at in 0..world.sessions.len() {
            for name in NAMES {
                world.sessions[at].write(name, 0).await;
            }
            // Nor has a base.
            let id = world.sessions[at].id;
            world.gateway.snapshot(id).await.unwrap();
        }
        world.forgets = true;
        world.collect().await;
        let mut lost = 0;
        for commit in published {
            lost += u32::from(world.look_at(commit).await != Ok(world.commits[&commit].clone()));
        }
        assert!(lost > 0);
    }
}
