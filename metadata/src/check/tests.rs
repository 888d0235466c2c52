//! A store that was used at random is clean; one that was damaged is not, and says where.

use std::collections::HashSet;
use std::sync::Arc;

use base::{Caller, ManualClock, Rng, TenantId};
use bytes::Bytes;

use super::*;
use crate::error::{FsError, Miss, OpError, OpResult};
use crate::image::{Block, BlockJob, Image, ImageConfig, Piece};
use crate::keyspace::{self, image as keys};
use crate::kv::memory::MemoryKv;
use crate::kv::{Isolation, KeyRange};
use crate::layers::{Base, Layers};
use crate::ops::{self, Context, How, Node};
use crate::record::conflict::{Conflict, ConflictKind, Place, Resolution, Sources};
use crate::record::entry::Entry;
use crate::record::inode::InodeRecord;
use crate::record::operation::{Action, Cause};
use crate::record::reference::{RefChange, RefKind, RefLogRecord, RefName, RefState};
use crate::session::{
    Fence, FlushBatch, FlushError, OwnError, StoredReply, Taker, fold, frozen, load, take_over,
};
use crate::stat::{FileKind, SetAttrs};
use crate::store::{ForkSession, NewCommit, NewWorkspace, OpenSession, Store};
use crate::tree::{Edited, MemoryNodes, MemoryTrees};
use base::{CommitId, GatewayId, InodeId, Name};

/// A session that is used without a gateway.
struct World {
    kv: Arc<dyn Kv>,
    clock: Arc<ManualClock>,
    store: Store,
    workspace: WorkspaceId,
    session: SessionId,
    layers: Layers,
    nodes: Arc<MemoryNodes>,
    fence: Fence,
    image: Image,
    domain_key: [u8; 32],
    chunks: HashSet<ChunkId>,
    replies: u32,
    /// Inodes that were made; some are gone.
    made: Vec<InodeId>,
}

impl World {
    async fn new() -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::new(1_000_000, 0)));
        let kv: Arc<dyn Kv> = Arc::new(MemoryKv::new(clock.clone()));
        let rng = Arc::new(Rng::seeded(1));
        let store = Store::open(Arc::clone(&kv), clock.clone(), rng)
            .await
            .unwrap();
        let new = NewWorkspace {
            name: "w".into(),
            root: (0o777, 0, 0),
        };
        let workspace = store
            .create_workspace(TenantId::DEFAULT, new)
            .await
            .unwrap();
        let open = OpenSession::new("w");
        let opened = store.open_session(TenantId::DEFAULT, open).await.unwrap();
        let session = opened.session.id;
        let nodes = Arc::new(MemoryNodes::new());
        let owned = take_over(
            kv.as_ref(),
            &MemoryTrees::new(Arc::clone(&nodes)),
            session,
            Taker::alone(GatewayId::new(7), 1),
        )
        .await
        .unwrap();
        let config = ImageConfig {
            name_key: owned.workspace.name_key,
            block_bytes: owned.workspace.block_bytes,
            bytes_max: u64::MAX,
            inodes_max: u64::MAX,
            read_only: false,
        };
        Self {
            clock,
            store,
            workspace: workspace.id,
            session,
            layers: owned.layers,
            nodes,
            fence: owned.fence,
            image: Image::new(config, owned.totals),
            domain_key: owned.tenant.domain_key,
            chunks: HashSet::new(),
            replies: 0,
            made: vec![InodeId::ROOT],
            kv,
        }
    }

    /// Runs an operation, loading what it misses.
    async fn run<T>(&mut self, op: impl Fn(&mut Image) -> OpResult<T>) -> Result<T, FsError> {
        loop {
            let (result, _) = self.image.run(&op);
            match result {
                Ok(value) => return Ok(value),
                Err(OpError::Fs(error)) => return Err(error),
                Err(OpError::Miss(Miss::InodeNumbers)) => {
                    let numbers = self.store.allocate_inodes(self.workspace).await.unwrap();
                    self.image.add_numbers(numbers);
                }
                Err(OpError::Miss(miss)) => {
                    let loaded = load(self.kv.as_ref(), &self.layers, miss).await.unwrap();
                    loaded.unwrap().install(&mut self.image);
                }
            }
        }
    }

    /// Makes all buffered data and changes durable.
    async fn flush(&mut self) {
        self.flush_and(false).await;
    }

    async fn flush_and(&mut self, freeze: bool) {
        for inode in self.image.dirty_inodes() {
            loop {
                let (_, _) = self.image.run(|image| image.settle_small(inode));
                let Some(job) = self.image.begin_write(inode, 1 << 20) else {
                    break;
                };
                let stored = job.blocks.iter().map(|job| self.store_block(job)).collect();
                self.image.run(|image| image.finish_write(inode, stored));
            }
        }
        let applied = self.image.applied();
        let (changes, totals) = self.image.take_changes();
        self.replies += 1;
        let batch = FlushBatch {
            freeze,
            changes,
            totals,
            replies: vec![StoredReply {
                xid: self.replies,
                hash: [1; 16],
                reply: Bytes::from_static(b"reply"),
            }],
            forgotten: Vec::new(),
            told: Vec::new(),
            exchange: None,
        };
        self.fence
            .flush(self.kv.as_ref(), &self.layers, &batch)
            .await
            .unwrap();
        self.image.set_durable(applied);
        if freeze {
            self.layers = frozen(&self.layers);
        }
    }

    /// Makes a tree of what has been flushed.
    async fn tree(&self) -> Edited {
        let layers: Vec<_> = self.layers.all().collect();
        let folded = fold(self.kv.as_ref(), &layers, self.layers.base(), |_| {});
        folded.await.unwrap()
    }

    /// Makes all durable, and a tree of it the session's base.
    async fn snapshot(&mut self) -> Root {
        self.flush_and(true).await;
        let (frozen, base) = (self.layers.frozen().to_vec(), self.layers.base().clone());
        let folded = fold(self.kv.as_ref(), &frozen, &base, |_| {});
        let root = folded.await.unwrap().root;
        let owner = (GatewayId::new(7), self.fence.epoch());
        let before = (frozen.as_slice(), base.root());
        let replaced = (self.store).replace_layers(self.session, owner, before, root);
        assert_eq!(replaced.await, Ok(true));
        let tree = base.tree().clone();
        self.layers = Layers::new(self.layers.open(), Vec::new(), Base::Tree { tree, root });
        root
    }

    /// A session with the same image.
    async fn fork(&self) -> SessionId {
        let fork = ForkSession {
            read_only: false,
            identity: None,
            agent: String::new(),
            run: String::new(),
            ttl_seconds: None,
        };
        let forked = self
            .store
            .fork_session(TenantId::DEFAULT, self.session, fork);
        forked.await.unwrap().session.id
    }

    fn store_block(&mut self, job: &BlockJob) -> (u32, Block) {
        if let Some(block) = job.base.absorb(&job.over) {
            return (job.index, block);
        }
        let end = job.base.end().max(job.over.end());
        let mut content = Vec::new();
        for piece in job.base.pieces(0, end, [Some(&job.over), None]) {
            match piece {
                Piece::Bytes(bytes) => content.extend_from_slice(&bytes),
                // What chunks hold does not matter here.
                other => content.resize(content.len() + usize::try_from(other.len()).unwrap(), 0),
            }
        }
        let id = ChunkId::new(*blake3::keyed_hash(&self.domain_key, &content).as_bytes());
        self.chunks.insert(id);
        (job.index, Block::chunk(id, end))
    }

    async fn check(&self) -> Report {
        let exists = |_: DomainId, id: ChunkId| self.chunks.contains(&id);
        let trees = MemoryTrees::new(Arc::clone(&self.nodes));
        let options = CheckOptions {
            trees: Some(&trees),
            chunk_exists: Some(&exists),
            progress: None,
        };
        check(self.kv.as_ref(), options).await.unwrap()
    }

    /// Changes a stored value.
    async fn damage(&self, key: &[u8], value: Option<&[u8]>) {
        let mut txn = self.kv.begin();
        match value {
            Some(value) => txn.set(key, value),
            None => txn.clear(key),
        }
        txn.commit().await.unwrap();
    }

    fn image_key(&self, key: &[u8]) -> Vec<u8> {
        [&keyspace::delta(self.session, 1), key].concat()
    }

    async fn make(&mut self, dir: InodeId, name: &[u8], node: Option<Node>) -> InodeId {
        let (caller, now) = (Caller::root(), self.clock_now());
        let attrs = SetAttrs::default();
        let made = self
            .run(|image| {
                let cx = Context {
                    caller: &caller,
                    now,
                };
                match &node {
                    Some(node) => ops::make(image, cx, dir, name, node, attrs),
                    None => ops::create(image, cx, dir, name, How::Guarded(attrs)),
                }
            })
            .await
            .unwrap();
        made.object.inode
    }

    async fn write(&mut self, inode: InodeId, offset: u64, data: Bytes) {
        let (caller, now) = (Caller::root(), self.clock_now());
        self.run(|image| {
            let cx = Context {
                caller: &caller,
                now,
            };
            ops::write(image, cx, inode, offset, &data)
        })
        .await
        .unwrap();
    }

    fn clock_now(&self) -> Timestamp {
        use base::Clock;
        self.clock.advance(std::time::Duration::from_millis(1));
        self.clock.wall()
    }

    /// A small tree with one of everything.
    async fn furnish(&mut self) -> (InodeId, InodeId) {
        let dir = self
            .make(InodeId::ROOT, b"dir", Some(Node::Directory))
            .await;
        let file = self.make(dir, b"file", None).await;
        self.write(file, 100_000, Bytes::from(vec![1; 200_000]))
            .await;
        let small = self.make(dir, b"small", None).await;
        self.write(small, 0, Bytes::from_static(b"hello")).await;
        let target = Node::Symlink(Bytes::from_static(b"dir/file"));
        self.make(InodeId::ROOT, b"link", Some(target)).await;
        let (caller, now) = (Caller::root(), self.clock_now());
        self.run(|image| {
            let cx = Context {
                caller: &caller,
                now,
            };
            ops::link(image, cx, file, InodeId::ROOT, b"other")
        })
        .await
        .unwrap();
        self.flush().await;
        (dir, file)
    }

    /// Two commits, a branch that moved, one that is gone, and their logs.
    async fn remember(&self) -> (CommitId, CommitId) {
        let (store, workspace) = (&self.store, self.workspace);
        let made = self.tree().await;
        let new = |message: &str, parents| NewCommit {
            usage: Usage {
                bytes: made.counters.bytes,
                inodes: made.counters.inodes - 1,
            },
            parents,
            message: message.into(),
            ..NewCommit::of_tree(made.root.name())
        };
        let one = store
            .put_commit(workspace, new("1", vec![]))
            .await
            .unwrap()
            .id;
        let two = store
            .put_commit(workspace, new("2", vec![one]))
            .await
            .unwrap()
            .id;
        let at = |commit| RefState {
            commit,
            kind: RefKind::Branch,
            protected: false,
        };
        let (main, gone) = (RefName::main(), RefName::new("gone").unwrap());
        for name in [&main, &gone] {
            let made = store.create_ref(workspace, name, at(one), Cause::Asked);
            made.await.unwrap();
        }
        let moved = store.move_ref(workspace, &main, one, two, Cause::Asked);
        moved.await.unwrap();
        store.delete_ref(workspace, &gone, one).await.unwrap();
        (one, two)
    }
}

fn problems(report: &Report) -> String {
    report
        .problems
        .iter()
        .map(|problem| format!("{problem}\n"))
        .collect()
}

/// Does something random; what fails is part of it.
async fn step(world: &mut World, rng: &Rng) {
    let caller = Caller::root();
    let now = world.clock_now();
    let pick = |of: u64| rng.u64() % of;
    let choose = |from: &[InodeId]| {
        // Of the newest mostly.
        let newest = from.len().saturating_sub(12);
        let from = if pick(3) == 0 { from } else { &from[newest..] };
        from[usize::try_from(pick(u64::try_from(from.len()).unwrap())).unwrap()]
    };
    let (dir, other_dir) = (choose(&world.made), choose(&world.made));
    let node = choose(&world.made);
    let names = [b"a", b"b", b"c", b"d", b"e", b"f"];
    let name = names[usize::try_from(pick(6)).unwrap()].as_slice();
    let other_name = names[usize::try_from(pick(6)).unwrap()].as_slice();
    let (what, offset) = (pick(12), pick(600_000));
    let data = Bytes::from(vec![7; usize::try_from(1 + pick(40_000)).unwrap()]);
    let attrs = SetAttrs::default();
    let result = world
        .run(|image| {
            let cx = Context {
                caller: &caller,
                now,
            };
            match what {
                0 => ops::make(image, cx, dir, name, &Node::Directory, attrs).map(made),
                1 | 2 => ops::create(image, cx, dir, name, How::Guarded(attrs)).map(made),
                3 => ops::make(image, cx, dir, name, &Node::Fifo, attrs).map(made),
                4 => ops::link(image, cx, node, dir, name).map(nothing),
                5 => ops::remove(image, cx, dir, name).map(nothing),
                6 => ops::rmdir(image, cx, dir, name).map(nothing),
                7 => ops::rename(image, cx, dir, name, other_dir, other_name).map(nothing),
                8 => {
                    let attrs = SetAttrs {
                        size: Some(offset / 2),
                        ..attrs
                    };
                    ops::set_attributes(image, cx, node, attrs, None).map(nothing)
                }
                9 => {
                    ops::write(image, cx, node, 0, &data.slice(..data.len().min(100))).map(nothing)
                }
                _ => ops::write(image, cx, node, offset, &data).map(nothing),
            }
        })
        .await;
    world.made.extend(result.ok().flatten());
}

fn made(created: ops::Created) -> Option<InodeId> {
    Some(created.object.inode)
}

fn nothing<T>(_: T) -> Option<InodeId> {
    None
}

#[tokio::test]
async fn what_was_used_at_random_is_clean() {
    let mut seen = Counts::default();
    for seed in 0..12 {
        let rng = Rng::seeded(seed);
        let mut world = World::new().await;
        for round in 0..40 {
            for _ in 0..20 {
                step(&mut world, &rng).await;
            }
            match rng.u64() % 8 {
                0 => drop(world.snapshot().await),
                1 => world.flush_and(true).await,
                _ => world.flush().await,
            }
            if round % 20 == 19 {
                world.fork().await;
            }
            if rng.u64().is_multiple_of(3) {
                world.image.evict(0);
            }
            let report = world.check().await;
            assert!(
                report.is_clean(),
                "seed {seed} round {round}: {}",
                problems(&report)
            );
        }
        let counts = world.check().await.counts;
        assert_eq!((counts.sessions, counts.workspaces), (3, 1));
        seen.trees += counts.trees;
        seen.inodes += counts.inodes;
        seen.entries += counts.entries;
        seen.blocks += counts.blocks;
        seen.chunks += counts.chunks;
    }
    // Some sessions end up with nearly nothing; all together have a little of everything.
    assert!(seen.inodes > 60 && seen.entries > 60, "{seen:?}");
    assert!(seen.chunks > 20 && seen.blocks > seen.chunks, "{seen:?}");
    assert!(seen.trees > 12, "{seen:?}");
}

#[tokio::test]
async fn a_new_store_and_a_closed_session_are_clean() {
    let mut world = World::new().await;
    assert!(world.check().await.is_clean());
    world.furnish().await;
    let report = world.check().await;
    assert!(report.is_clean(), "{}", problems(&report));
    assert_eq!(report.counts.chunks, 3);
    let owner_key = keyspace::session_owner(world.session);
    let owner = (world.kv.begin().get(&owner_key, Isolation::Snapshot))
        .await
        .unwrap()
        .unwrap();
    world
        .store
        .close_session(TenantId::DEFAULT, world.session)
        .await
        .unwrap();
    let report = world.check().await;
    assert!(report.is_clean(), "{}", problems(&report));
    world.damage(&owner_key, Some(&owner)).await;
    let said = problems(&world.check().await);
    assert!(said.contains("owner of session"), "{said}");
}

/// Nothing of a closed session is left, whoever writes to it meanwhile or afterwards.
#[tokio::test]
async fn a_closed_session_leaves_nothing_and_stays_closed() {
    let mut world = World::new().await;
    world.furnish().await;
    let id = world.session;
    let left = async |world: &World| {
        let txn = world.kv.begin();
        let mut left = 0;
        for range in [
            keyspace::session_all(id),
            keyspace::delta_all(id),
            keyspace::tickets_of(id),
        ] {
            let limit = crate::kv::RangeLimit::pairs(10);
            let page = txn.get_range(&range, limit, Isolation::Snapshot).await;
            left += page.unwrap().pairs.len();
        }
        left
    };
    let close = async |world: &World| world.store.close_session(TenantId::DEFAULT, id).await;
    assert!(left(&world).await > 3);
    // Two closes at once, and one that comes later.
    let (first, second) = tokio::join!(close(&world), close(&world));
    assert!(first.is_ok() || second.is_ok(), "{first:?} {second:?}");
    assert!(close(&world).await.is_err());
    assert_eq!(left(&world).await, 0);

    // The owner has not heard of it: with what it last knew, and after looking again.
    for _ in 0..2 {
        let (changes, totals) = world.image.take_changes();
        let batch = FlushBatch {
            changes,
            totals,
            replies: Vec::new(),
            forgotten: Vec::new(),
            told: Vec::new(),
            freeze: false,
            exchange: None,
        };
        let flushed = world.fence.flush(world.kv.as_ref(), &world.layers, &batch);
        assert!(matches!(flushed.await, Err(FlushError::Fenced)));
    }
    let trees = MemoryTrees::default();
    let taken = take_over(
        world.kv.as_ref(),
        &trees,
        id,
        Taker::alone(GatewayId::new(7), 1),
    )
    .await;
    assert!(matches!(taken, Err(OwnError::NotFound)));
    assert_eq!(left(&world).await, 0);
    assert!(world.check().await.is_clean());
}

/// Removing any key at all is noticed, and so is a byte too many in any value.
#[tokio::test]
async fn any_missing_or_damaged_key_is_noticed() {
    let mut world = World::new().await;
    world.furnish().await;
    world.remember().await;
    let counts = world.check().await.counts;
    assert_eq!((counts.commits, counts.refs, counts.operations), (2, 1, 5));
    let all = KeyRange {
        start: Bytes::new(),
        end: Bytes::from_static(&[0xff]),
    };
    let txn = world.kv.begin();
    let page = txn
        .get_range(
            &all,
            crate::kv::RangeLimit::pairs(1000),
            Isolation::Snapshot,
        )
        .await
        .unwrap();
    assert!(!page.more && page.pairs.len() > 20);
    for (key, value) in page.pairs {
        let decoded = keyspace::decode(&key).unwrap();
        // Nothing else tells that there was an owner, a reply, or a token.
        let alone = matches!(decoded, keyspace::Key::Owner(_) | keyspace::Key::Reply(..));
        world.damage(&key, None).await;
        let report = world.check().await;
        assert_eq!(report.is_clean(), alone, "without {decoded:?}");
        let long = [&value[..], &[0]].concat();
        world.damage(&key, Some(&long)).await;
        let report = world.check().await;
        let index = matches!(
            decoded,
            keyspace::Key::SessionOf(..) | keyspace::Key::TicketOf(..)
        );
        assert_eq!(report.is_clean(), index, "longer {decoded:?}");
        world.damage(&key, Some(&value)).await;
    }
    assert!(world.check().await.is_clean());
    world.damage(b"zzz", Some(b"")).await;
    let report = world.check().await;
    assert!(problems(&report).contains("key zzz: key belongs to no known table"));
}

/// Changes one value, checks, and changes it back.
async fn told(world: &World, key: &[u8], value: &[u8], parts: &[&str]) {
    let txn = world.kv.begin();
    let before = txn.get(key, Isolation::Snapshot).await.unwrap();
    world.damage(key, Some(value)).await;
    let said = problems(&world.check().await);
    for part in parts {
        assert!(said.contains(part), "{said} does not say {part}");
    }
    world.damage(key, before.as_deref()).await;
    assert!(world.check().await.is_clean());
}

#[tokio::test]
async fn history_that_contradicts_itself_is_told() {
    let world = World::new().await;
    let (one, two) = world.remember().await;
    let (store, workspace) = (&world.store, world.workspace);
    let commit = |id| keyspace::commit(workspace, id);
    let second = store.commit(workspace, two).await.unwrap().record;
    let parts = [&*format!("content is that of commit {two}")];
    told(&world, &commit(one), &second.encode(), &parts).await;
    let first = store.commit(workspace, one).await.unwrap().record;
    let mut late = first.clone();
    late.time = second.time;
    let parts = [&*format!("its parent {one} is not earlier")];
    told(&world, &commit(one), &late.encode(), &parts).await;
    let alien = keyspace::commit(WorkspaceId::new(9), one);
    told(
        &world,
        &alien,
        &first.encode(),
        &["the workspace does not exist"],
    )
    .await;

    let main = store.reference(workspace, &RefName::main()).await.unwrap();
    let key = keyspace::reference(workspace, "main");
    let mut record = main.record;
    record.state.commit = CommitId::new([7; 32]);
    let parts = ["which is missing", "is not what its log says"];
    told(&world, &key, &record.encode(), &parts).await;
    record = main.record;
    record.updated = record.updated.tick();
    told(
        &world,
        &key,
        &record.encode(),
        &["is not what its log says"],
    )
    .await;
    let odd = keyspace::reference(workspace, "a b");
    let parts = ["cannot be called so", "is not what its log says"];
    told(&world, &odd, &main.record.encode(), &parts).await;

    let log = store.operations(workspace, None, 10).await.unwrap();
    let moved = log[1].clone();
    let Action::RefChanged { change, .. } = &moved.record.action else {
        panic!("{moved:?}");
    };
    assert_eq!(change.verb(), "move");
    // A change that does not start where the one before ended.
    let mut other = moved.record.clone();
    other.action = Action::RefChanged {
        change: RefChange {
            before: None,
            ..change.clone()
        },
        cause: Cause::Asked,
    };
    let key = keyspace::operation_log(workspace, moved.time, moved.id);
    told(&world, &key, &other.encode(), &["does not say so"]).await;
    let hash = keyspace::ref_name_hash("gone");
    let key = keyspace::ref_log(workspace, &hash, moved.time);
    let entry = RefLogRecord {
        name: RefName::main(),
        operation: moved.id,
        state: change.after,
    };
    let parts = ["is in the log of another ref"];
    told(&world, &key, &entry.encode(), &parts).await;
    let number = keyspace::operation(workspace, moved.id);
    let elsewhen = keyspace::encode_time(moved.time.tick());
    let parts = ["its number leads nowhere", "cannot be found by its number"];
    told(&world, &number, &elsewhen, &parts).await;
}

/// The attributes of an inode, as they are stored.
async fn stored(world: &World, inode: InodeId) -> InodeRecord {
    let key = world.image_key(&keys::inode(inode));
    let txn = world.kv.begin();
    let value = txn.get(&key, Isolation::Snapshot).await.unwrap().unwrap();
    InodeRecord::decode(inode, &value[1..]).unwrap()
}

fn tagged(value: &[u8]) -> Vec<u8> {
    [&[1], value].concat()
}

#[tokio::test]
async fn contradicting_attributes_are_told() {
    let mut world = World::new().await;
    let (dir, file) = world.furnish().await;
    let key = |inode| world.image_key(&keys::inode(inode));
    let mut changed = stored(&world, file).await;
    changed.stat.used += 4096;
    changed.stat.nlink = 9;
    changed.stat.size = 150_000;
    let parts = [
        "says 9 links, has 2",
        "bytes are used",
        "goes beyond",
        "says that it uses",
    ];
    told(&world, &key(file), &tagged(&changed.encode()), &parts).await;

    // A directory that hangs in itself.
    let mut changed = stored(&world, dir).await;
    changed.link = Some((dir, Name::new(b"x").unwrap()));
    let parts = [
        "hangs in a circle",
        "which knows no such name",
        "is not in directory",
    ];
    told(&world, &key(dir), &tagged(&changed.encode()), &parts).await;
    changed.link = Some((InodeId::ROOT, Name::new(b"dir").unwrap()));
    changed.entries = 5;
    let parts = ["says 5 entries, has 2"];
    told(&world, &key(dir), &tagged(&changed.encode()), &parts).await;
}

#[tokio::test]
async fn keys_that_lead_nowhere_are_told() {
    let mut world = World::new().await;
    let (dir, file) = world.furnish().await;
    let entry = Entry {
        inode: InodeId::new(1 << 30),
        kind: FileKind::File,
    };
    let stray = world.image_key(&keys::entry(dir, 5, b"stray"));
    let parts = [
        "is not where its name belongs",
        "which does not exist",
        "says 2 entries",
    ];
    told(&world, &stray, &tagged(&entry.encode()), &parts).await;
    told(&world, &stray, &[0], &["is marked as removed"]).await;

    let gone = crate::record::block::encode(&Block::chunk(ChunkId::new([3; 32]), 131_072));
    let block = world.image_key(&keys::block(file, 1));
    told(&world, &block, &tagged(&gone), &["which is missing"]).await;

    let record = tagged(&stored(&world, file).await.encode());
    let inode = keys::inode(file);
    let alien = [&keyspace::delta(world.session, 2)[..], &inode].concat();
    told(&world, &alien, &record, &["is not in use"]).await;
    let orphan = [&keyspace::delta(SessionId::new(9), 1)[..], &inode].concat();
    told(&world, &orphan, b"x", &["has files but no record"]).await;
    let counter = keyspace::inodes(world.workspace);
    let parts = ["was never given out", "did not give it"];
    told(&world, &counter, &(1_u64 << 20).to_le_bytes(), &parts).await;
}

#[tokio::test]
async fn conflicts_are_read_and_lie_where_they_belong() {
    let mut world = World::new().await;
    world.furnish().await;
    let conflict = Conflict {
        kind: ConflictKind::Content,
        resolution: Resolution::Ours,
        place: Place {
            inode: InodeId::ROOT,
            path: Bytes::new(),
        },
        aside: None,
        base: None,
        ours: None,
        theirs: None,
        sources: Sources::default(),
    };
    let value = conflict.encode();
    let key = world.image_key(&keys::conflict(&Conflict::id(&value)));
    let elsewhere = world.image_key(&keys::conflict(&[7; 16]));
    let parts = ["a conflict is not where its content belongs"];
    told(&world, &elsewhere, &tagged(&value), &parts).await;
    let parts = ["conflict: record is truncated"];
    told(&world, &key, &tagged(&value[..9]), &parts).await;
    let alien = world.image_key(&keys::inode(keys::RECORDS));
    let record = stored(&world, InodeId::ROOT).await;
    let parts = ["has a number that was never given out"];
    told(&world, &alien, &tagged(&record.encode()), &parts).await;

    world.damage(&key, Some(&tagged(&value))).await;
    let report = world.check().await;
    assert!(report.is_clean(), "{}", problems(&report));
    let block = world.image_key(&keys::block(keys::RECORDS, 0));
    let hole = crate::record::block::encode(&Block::inline(Bytes::from_static(b"x")));
    told(
        &world,
        &block,
        &tagged(&hole),
        &["has content but no attributes"],
    )
    .await;
}

mod changes;
mod trees;
