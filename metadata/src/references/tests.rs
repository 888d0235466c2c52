use std::collections::BTreeSet;

use base::{InodeId, ManualClock, Timestamp};

use super::*;
use crate::image::Block;
use crate::keyspace::image as keys;
use crate::kv::memory::MemoryKv;
use crate::record::session::{Identity, SessionState};
use crate::tree::{MemoryNodes, MemoryTrees};

fn session_record(tenant: u64) -> SessionRecord {
    SessionRecord {
        tenant: TenantId::new(tenant),
        workspace: WorkspaceId::new(1),
        state: SessionState::Open,
        read_only: false,
        identity: Identity::Passthrough,
        generation: 1,
        revocation: 0,
        frozen: Vec::new(),
        base: None,
        commit: None,
        branch: String::new(),
        frozen_usage: crate::image::Usage::default(),
        agent: String::new(),
        run: String::new(),
        created: Timestamp::EPOCH,
        expires: None,
    }
}

fn kv() -> MemoryKv {
    MemoryKv::new(Arc::new(ManualClock::new(Timestamp::EPOCH)))
}

fn chunk(number: u64) -> ChunkId {
    let mut id = [0; 32];
    for (to, from) in id.iter_mut().zip(number.to_be_bytes()) {
        *to = from;
    }
    ChunkId::new(id)
}

fn delta_key(session: u64, generation: u32, image: &[u8]) -> Vec<u8> {
    let mut key = keyspace::delta(SessionId::new(session), generation);
    key.extend_from_slice(image);
    key
}

fn stored(block: &Block) -> Vec<u8> {
    let mut value = vec![1];
    value.extend_from_slice(&block::encode(block));
    value
}

async fn set(kv: &dyn Kv, pairs: &[(Vec<u8>, Vec<u8>)]) {
    let mut txn = kv.begin();
    for (key, value) in pairs {
        txn.set(key, value);
    }
    txn.commit().await.unwrap();
}

async fn walk(kv: &dyn Kv) -> Result<(BTreeSet<(u64, ChunkId)>, ReferenceCounts), ReferenceError> {
    let mut seen = BTreeSet::new();
    let mut references = References::new(Arc::new(MemoryTrees::default()));
    while references
        .next(kv, |domain, id| {
            seen.insert((domain.raw(), id));
        })
        .await?
    {}
    Ok((seen, references.counts()))
}

/// Blocks of all sessions, tenants and generations; patched and cut ones too. Over several pages.
#[tokio::test]
async fn every_reference_is_seen_under_its_domain() {
    let kv = kv();
    let mut expected = BTreeSet::new();
    for session in 1..=5_u64 {
        let tenant = 1 + session % 2;
        let meta = keyspace::session_meta(SessionId::new(session));
        let mut pairs = vec![(meta, session_record(tenant).encode().to_vec())];
        for index in 0..700_u32 {
            let number = session * 1000 + u64::from(index);
            let mut block = Block::chunk(chunk(number), 100);
            match index % 3 {
                0 => block.cut(7),
                1 => block.patches.insert(5, Bytes::from_static(b"x")),
                _ => {}
            }
            let generation = 1 + index % 2;
            let key = keys::block(InodeId::new(9), index);
            pairs.push((delta_key(session, generation, &key), stored(&block)));
            expected.insert((tenant, chunk(number)));
        }
        // What refers to nothing.
        let inline = Block::inline(Bytes::from_static(b"x"));
        for (index, value) in [(900, vec![0]), (901, stored(&inline))] {
            let key = keys::block(InodeId::new(9), index);
            pairs.push((delta_key(session, 1, &key), value));
        }
        set(&kv, &pairs).await;
    }
    let (seen, counts) = walk(&kv).await.unwrap();
    assert_eq!(seen, expected);
    // And the records of the sessions.
    assert_eq!((counts.keys, counts.references), (5 * 702 + 5, 5 * 700));
    assert_eq!(counts.nodes, 0);
    assert_eq!(
        walk(&self::kv()).await.unwrap().1,
        ReferenceCounts::default()
    );
}

/// What cannot be read may refer to anything.
#[tokio::test]
async fn nothing_damaged_is_passed_over() {
    let block = delta_key(1, 1, &keys::block(InodeId::new(2), 3));
    let value = stored(&Block::chunk(chunk(1), 10));
    let meta = keyspace::session_meta(SessionId::new(1));
    let record = session_record(1).encode().to_vec();
    let mut misplaced = block.clone();
    misplaced[1] ^= 1;
    let cases = [
        (vec![(block.clone(), value.clone())], "no record"),
        (
            vec![(block.clone(), value.clone()), (meta.clone(), vec![9])],
            "session",
        ),
        (
            vec![
                (block.clone(), value[..9].to_vec()),
                (meta.clone(), record.clone()),
            ],
            "key d",
        ),
        (
            vec![(block.clone(), vec![7]), (meta.clone(), record.clone())],
            "key d",
        ),
        (
            vec![(misplaced, value.clone()), (meta.clone(), record.clone())],
            "key d",
        ),
        (
            vec![
                (delta_key(1, 1, b"short"), value.clone()),
                (meta.clone(), record.clone()),
            ],
            "key d",
        ),
    ];
    for (pairs, part) in cases {
        let kv = kv();
        set(&kv, &pairs).await;
        let refused = walk(&kv).await.unwrap_err();
        assert!(
            matches!(refused, ReferenceError::Corrupt { .. }),
            "{refused}"
        );
        assert!(refused.to_string().contains(part), "{refused}");
    }
    let kv = kv();
    set(&kv, &[(block, value), (meta, record)]).await;
    assert_eq!(walk(&kv).await.unwrap().0.len(), 1);
}

/// Sessions and commits of two tenants, and the trees they have.
struct Forest {
    kv: MemoryKv,
    nodes: Arc<MemoryNodes>,
    trees: Arc<dyn Trees>,
}

const NAME_KEY: [u8; 32] = [9; 32];

impl Forest {
    async fn new() -> Self {
        let nodes = Arc::new(MemoryNodes::new());
        let trees = Arc::new(MemoryTrees::new(Arc::clone(&nodes)));
        let kv = kv();
        let mut pairs = Vec::new();
        for number in 1..=2_u8 {
            let tenant = TenantRecord {
                name: format!("t{number}"),
                bytes_max: 1,
                inodes_max: 1,
                domain_key: [number; 32],
                created: Timestamp::EPOCH,
            };
            let workspace = WorkspaceRecord {
                tenant: TenantId::new(u64::from(number)),
                name: "w".into(),
                block_bytes: 65_536,
                name_key: NAME_KEY,
                root: (0o777, 0, 0),
                created: Timestamp::EPOCH,
            };
            let id = u64::from(number);
            pairs.push((
                keyspace::tenant(TenantId::new(id)),
                tenant.encode().to_vec(),
            ));
            let key = keyspace::workspace(WorkspaceId::new(id));
            pairs.push((key, workspace.encode().to_vec()));
        }
        set(&kv, &pairs).await;
        Self { kv, nodes, trees }
    }

    fn tree(&self, tenant: u8) -> Tree {
        let domain = DomainId::new(u64::from(tenant));
        self.trees
            .open(TreeKeys::new(domain, &[tenant; 32], &NAME_KEY))
    }

    /// A tree with these chunks, one a block, and something that is no chunk.
    async fn plant(&self, tenant: u8, chunks: std::ops::Range<u64>) -> Root {
        let first = chunks.start;
        let mut pairs = Vec::new();
        for number in chunks {
            let index = u32::try_from(number - first).unwrap();
            let value = block::encode(&Block::chunk(chunk(number), 100));
            pairs.push((keys::block(InodeId::new(9), index), value.to_vec()));
        }
        let inline = Block::inline(Bytes::from_static(b"x"));
        let key = keys::block(InodeId::new(10), 0);
        pairs.push((key, block::encode(&inline).to_vec()));
        self.tree(tenant).build(pairs).await.unwrap().root
    }

    async fn session(&self, id: u64, tenant: u64, base: Root) {
        let record = SessionRecord {
            workspace: WorkspaceId::new(tenant),
            base: Some(base),
            ..session_record(tenant)
        };
        let key = keyspace::session_meta(SessionId::new(id));
        let flush = keyspace::session_flush(SessionId::new(id));
        // Nothing that matters here, and in the way.
        let pairs = [(key, record.encode().to_vec()), (flush, vec![1])];
        set(&self.kv, &pairs).await;
    }

    async fn commit(&self, tenant: u64, tree: Root) -> Vec<u8> {
        let record = CommitRecord {
            tree: tree.id().unwrap(),
            usage: crate::image::Usage::default(),
            parents: Vec::new(),
            time: Timestamp::EPOCH,
            statistics: crate::record::commit::Statistics::default(),
            conflicts: 0,
            message: String::new(),
            provenance: crate::record::commit::Provenance::default(),
        };
        let key = keyspace::commit(WorkspaceId::new(tenant), record.id());
        set(&self.kv, &[(key.clone(), record.encode().to_vec())]).await;
        key
    }

    /// What a walk in steps of `page` tells, how often, and what it counts.
    async fn walk(&self, page: usize) -> Result<(Told, ReferenceCounts), ReferenceError> {
        let mut references = References::with_page(Arc::clone(&self.trees), page);
        let mut told = Told::new();
        while told_by(&mut references, &self.kv, &mut told).await? {}
        Ok((told, references.counts()))
    }

    /// The nodes below a root, as chunks.
    async fn nodes(&self, tenant: u8, root: Root) -> Vec<(u64, ChunkId)> {
        let mut walk = self.tree(tenant).walk(root);
        let mut nodes = Vec::new();
        while let Some(node) = walk.next(|_| false).await.unwrap() {
            nodes.push((u64::from(tenant), ChunkId::new(*node.id().as_bytes())));
        }
        nodes
    }
}

type Told = std::collections::BTreeMap<(u64, ChunkId), u64>;

async fn told_by(
    references: &mut References,
    kv: &dyn Kv,
    told: &mut Told,
) -> Result<bool, ReferenceError> {
    let each = |domain: DomainId, id| *told.entry((domain.raw(), id)).or_default() += 1;
    references.next(kv, each).await
}

#[tokio::test]
async fn trees_are_walked_once_whoever_has_them() {
    let forest = Forest::new().await;
    let base = forest.plant(1, 0..3000).await;
    let changed = block::encode(&Block::chunk(chunk(9000), 100));
    let delta = [(keys::block(InodeId::new(9), 1500), Some(changed))];
    let edited = forest.tree(1).apply(base, delta).await.unwrap().root;
    // The same content in another domain has other nodes.
    let elsewhere = forest.plant(2, 0..3000).await;
    for id in 1..=4 {
        forest.session(id, 1, base).await;
    }
    forest.session(5, 2, elsewhere).await;
    forest.commit(1, edited).await;
    forest.commit(1, base).await;
    for page in [1, 3, 1000] {
        let (told, counts) = forest.walk(page).await.unwrap();
        let mut nodes = BTreeSet::new();
        for (tenant, root) in [(1, base), (1, edited), (2, elsewhere)] {
            nodes.extend(forest.nodes(tenant, root).await);
        }
        assert_eq!(usize::try_from(counts.nodes).unwrap(), nodes.len());
        assert!(nodes.iter().all(|node| told.get(node) == Some(&1)));
        let chunks = (0..3000).map(chunk);
        for id in chunks.chain([chunk(9000)]) {
            assert!(told.contains_key(&(1, id)), "{id}");
        }
        assert!(told.contains_key(&(2, chunk(7))) && !told.contains_key(&(2, chunk(9000))));
        // Once, but for the leaf that differs, and the chunks of that.
        let in_one_leaf = 6001..6400;
        assert!(in_one_leaf.contains(&counts.references), "{counts:?}");
        assert_eq!(counts.keys, 5 + 2, "{counts:?}");
    }
}

/// A walk that is over goes on with what is added, and does nothing twice.
#[tokio::test]
async fn copies_are_walked_afterwards() {
    let forest = Forest::new().await;
    let base = forest.plant(1, 0..100).await;
    let copied = forest.plant(1, 100..200).await;
    forest.session(1, 1, base).await;
    let mut references = References::new(Arc::clone(&forest.trees));
    let mut told = Told::new();
    while told_by(&mut references, &forest.kv, &mut told)
        .await
        .unwrap()
    {}
    assert!(told.contains_key(&(1, chunk(99))) && !told.contains_key(&(1, chunk(100))));
    let grey = GreyRoot {
        workspace: WorkspaceId::new(1),
        root: copied,
    };
    assert!(references.add([grey]));
    while told_by(&mut references, &forest.kv, &mut told)
        .await
        .unwrap()
    {}
    assert!(told.contains_key(&(1, chunk(100))) && told.contains_key(&(1, chunk(199))));
    assert!(!references.add([grey]));
    assert!(
        !told_by(&mut references, &forest.kv, &mut told)
            .await
            .unwrap()
    );
}

/// What a tree that cannot be read refers to is not known, and who has it is told.
#[tokio::test]
async fn a_tree_that_cannot_be_read_is_an_error() {
    let forest = Forest::new().await;
    let base = forest.plant(1, 0..3000).await;
    let other = forest.plant(1, 5000..5100).await;
    forest.session(7, 1, base).await;
    let commit = forest.commit(1, other).await;
    let fails = async |parts: &[&str]| {
        let refused = forest.walk(1000).await.unwrap_err();
        assert!(!refused.is_transient(), "{refused}");
        for part in parts {
            assert!(refused.to_string().contains(part), "{refused}");
        }
    };
    let leaf = forest.nodes(1, base).await.last().copied().unwrap().1;
    let leaf = NodeId::new(*leaf.as_bytes());
    let right = forest.nodes.peek(leaf).unwrap().bytes;
    let mut flipped = right.to_vec();
    flipped[50] ^= 1;
    forest.nodes.damage(leaf, Some(flipped.into()));
    fails(&["session 0000000000000007", &leaf.to_string(), "damaged"]).await;
    forest.nodes.damage(leaf, Some(right));
    forest.walk(1000).await.unwrap();
    forest.nodes.damage(other.id().unwrap(), None);
    fails(&["commit ", &other.id().unwrap().to_string(), "missing"]).await;
    set(&forest.kv, &[(commit, vec![1])]).await;
    fails(&["commit "]).await;
}

/// Values that are no blocks, in keys that are, may refer to anything; so may keys that are none.
#[tokio::test]
async fn a_leaf_with_damaged_entries_is_an_error() {
    for pair in [
        (keys::block(InodeId::new(9), 0), vec![200]),
        (b"short".to_vec(), vec![]),
    ] {
        let forest = Forest::new().await;
        let root = forest.tree(1).build([pair]).await.unwrap().root;
        forest.session(7, 1, root).await;
        let refused = forest.walk(1000).await.unwrap_err();
        assert!(refused.to_string().contains("tree node"), "{refused}");
    }
}

/// Records that lead to no tree, and a session without one.
#[tokio::test]
async fn damaged_owners_of_trees_are_errors() {
    let of = |id| keyspace::session_meta(SessionId::new(id));
    let cases = [
        (of(1), vec![9], "session 0000000000000001"),
        (
            keyspace::session_owner(SessionId::new(3)),
            vec![1],
            "no record",
        ),
        (
            keyspace::workspace(WorkspaceId::new(1)),
            vec![9],
            "workspace 0000000000000001 of session",
        ),
        (
            keyspace::tenant(TenantId::new(1)),
            vec![9],
            "tenant 0000000000000001 of session",
        ),
    ];
    for (key, value, part) in cases {
        let forest = Forest::new().await;
        let base = forest.plant(1, 0..10).await;
        forest.session(1, 1, base).await;
        forest.walk(1000).await.unwrap();
        set(&forest.kv, &[(key, value)]).await;
        let refused = forest.walk(1000).await.unwrap_err();
        assert!(refused.to_string().contains(part), "{refused}");
    }
    let forest = Forest::new().await;
    let base = forest.plant(1, 0..10).await;
    let record = SessionRecord {
        workspace: WorkspaceId::new(2),
        base: Some(base),
        ..session_record(1)
    };
    set(&forest.kv, &[(of(1), record.encode().to_vec())]).await;
    let refused = forest.walk(1000).await.unwrap_err();
    assert!(refused.to_string().contains("another tenant"), "{refused}");
}
