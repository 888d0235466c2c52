//! What flushes carry, however an archive is made.

use base::{DomainId, GatewayId, ManualClock, Rng};

use super::*;
use crate::kv::memory::MemoryKv;
use crate::session::{Taker, take_over};
use crate::store::NewWorkspace;
use crate::tree::{MemoryNodes, MemoryTrees, TreeKeys, Trees};

const ATTRIBUTES: Attributes = Attributes {
    mode: 0o644,
    uid: 1,
    gid: 2,
    mtime: Timestamp::new(1, 2),
    atime: Timestamp::new(3, 4),
};

/// An import by somebody who flushes when there is enough to flush, as time stands still.
struct World {
    import: Import,
    flushes: usize,
}

impl World {
    async fn new() -> Self {
        Self::after(None).await
    }

    /// An import that is compared with what another of the same keys has made.
    async fn after(old: Option<Snapshot>) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::new(1_000_000, 0)));
        let kv: Arc<dyn Kv> = Arc::new(MemoryKv::new(clock.clone()));
        let rng = Arc::new(Rng::seeded(1));
        let store = Store::open(Arc::clone(&kv), clock, rng).await.unwrap();
        let new = NewWorkspace {
            name: "w".into(),
            root: (0o777, 0, 0),
        };
        let workspace = store.create_workspace(TenantId::DEFAULT, new).await;
        let id = workspace.unwrap().id;
        let opened = store.open_staging(TenantId::DEFAULT, id, ("", None), 60);
        let session = opened.await.unwrap();
        let trees = MemoryTrees::new(Arc::new(MemoryNodes::new()));
        let owned = take_over(
            kv.as_ref(),
            &trees,
            session,
            Taker::alone(GatewayId::new(1), 1),
        )
        .await;
        let now = Timestamp::new(1_000_000, 0);
        let import = Import::begin(kv, store, owned.unwrap(), old, now).await;
        Self {
            import: import.unwrap(),
            flushes: 0,
        }
    }

    /// All that was made, which was not flushed yet.
    async fn made(mut self) -> Snapshot {
        assert_eq!(self.flushes, 0);
        self.import.write_held().await.unwrap();
        let keys = TreeKeys::new(DomainId::new(1), &[1; 32], &[2; 32]);
        let tree = MemoryTrees::new(Arc::new(MemoryNodes::new())).open(keys);
        let changes = self.import.changes.keys();
        let pairs: Vec<_> = changes
            .filter_map(|(key, value)| Some((key, value?)))
            .collect();
        let built = tree.build(pairs).await.unwrap();
        Snapshot::new(tree, self.import.hasher, built.root)
    }

    async fn made_one(&mut self) {
        if self.import.pending_bytes() >= FLUSH_BYTES {
            self.import.flush().await.unwrap();
            self.flushes += 1;
        }
    }

    async fn file(&mut self, path: &str, content: Bytes) {
        let file = self.import.file(path.as_bytes(), ATTRIBUTES).await.unwrap();
        self.import.small(file, content).await.unwrap();
        self.made_one().await;
    }

    async fn link(&mut self, path: &str, target: Bytes) {
        let special = Special::Symlink(target);
        let made = self.import.special(path.as_bytes(), ATTRIBUTES, special);
        made.await.unwrap();
        self.made_one().await;
    }
}

#[tokio::test]
async fn many_files_that_live_in_their_attributes_fit_flushes() {
    let mut world = World::new().await;
    let content = Bytes::from(vec![7; 4096]);
    for number in 0..5_000 {
        world.file(&format!("file {number}"), content.clone()).await;
        world.link(&format!("link {number}"), content.clone()).await;
    }
    world.import.flush().await.unwrap();
    // 40 MiB by 4 MiB.
    assert!((9..=13).contains(&world.flushes), "{}", world.flushes);
}

#[tokio::test]
async fn many_long_names_fit_flushes() {
    let mut world = World::new().await;
    world.file("first", Bytes::new()).await;
    for number in 0..20_000 {
        let path = format!("{number:0>255}");
        let linked = world.import.link(path.as_bytes(), b"first");
        linked.await.unwrap();
        world.made_one().await;
    }
    world.import.flush().await.unwrap();
    assert!(world.flushes > 0);
}

#[tokio::test]
async fn directories_that_stay_in_memory_do_not_wait_for_a_flush() {
    let mut world = World::new().await;
    let mut number = 0;
    while world.import.held.len() < 16 * 1024 {
        let path = format!("directory {number}");
        let made = world.import.directory(path.as_bytes(), ATTRIBUTES);
        made.await.unwrap();
        world.made_one().await;
        number += 1;
    }
    world.import.flush().await.unwrap();
    assert_eq!(world.import.held.len(), 16 * 1024);
    assert_eq!(world.import.pending_bytes(), 0);
    let before = world.flushes;
    for number in 0..1000 {
        world.file(&format!("file {number}"), Bytes::new()).await;
    }
    assert_eq!(world.flushes, before);
}

#[tokio::test]
async fn what_waits_is_what_a_flush_writes() {
    let mut world = World::new().await;
    world.file("d/e/f", Bytes::from_static(b"content")).await;
    world.import.directory(b"d", ATTRIBUTES).await.unwrap();
    let linked = world.import.link(b"d/g", b"d/e/f");
    linked.await.unwrap();
    let sum: usize = world.import.held.values().map(|held| held.waiting).sum();
    assert_eq!(world.import.waiting, sum);
    for (inode, held) in &world.import.held {
        let (key, value) = (keys::inode(*inode), held.record.encode());
        // As the layer's keys are: with a prefix of 13 bytes, and a conflict range each.
        let cost = 3 * (key.len() + 13) + 65 + value.len();
        let counted = held.waiting;
        assert!((cost..cost + 64).contains(&counted), "{counted} for {cost}");
    }
    world.import.flush().await.unwrap();
    assert_eq!(world.import.pending_bytes(), 0);
}

#[tokio::test]
async fn a_path_costs_its_length_to_remember() {
    const DEPTH: usize = 2000;
    let mut world = World::new().await;
    let path = vec!["d"; DEPTH].join("/");
    world
        .import
        .directory(path.as_bytes(), ATTRIBUTES)
        .await
        .unwrap();
    let remembered = world.import.dirs.bytes();
    assert!(remembered <= DEPTH * 100, "{remembered}");
    // It is found again, by whatever way it is named.
    let again = format!("./{}/", path.replace('/', "//"));
    let file = format!("{again}f");
    world.file(&file[..], Bytes::new()).await;
    let target = format!("{path}/f");
    let linked = world.import.link(b"l", target.as_bytes());
    linked.await.unwrap();
    assert_eq!(world.import.dirs.bytes(), remembered);
    assert_eq!(world.import.usage.inodes, u64::try_from(DEPTH).unwrap() + 1);
}

#[tokio::test]
async fn what_has_several_names_is_not_kept() {
    let mut before = World::new().await;
    before.file("a", Bytes::from_static(b"before")).await;
    before.import.link(b"b", b"a").await.unwrap();
    before.file("c", Bytes::from_static(b"alone")).await;
    let mut world = World::after(Some(before.made().await)).await;
    assert!(world.import.keep(b"c").await.unwrap().is_none());
    // The other name would have this content, though it was said to be as it was.
    world.file("a", Bytes::from_static(b"after")).await;
    for path in [b"b", b"d"] {
        let error = world.import.keep(path).await.unwrap_err();
        assert!(matches!(error, ImportError::Refused { .. }), "{error}");
    }
    let error = world.import.keep(b"b").await.unwrap_err().to_string();
    assert!(error.contains("several names"), "{error}");
}
