//! Layers show what one map with the same history would.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{DomainId, ManualClock, Name, Timestamp};
use proptest::prelude::*;

use super::*;
use crate::keyspace::image as keys;
use crate::kv::Kv;
use crate::kv::memory::MemoryKv;
use crate::session::fold;
use crate::tree::{MemoryTrees, TreeKeys, Trees};

const INODES: u64 = 5;
const BLOCKS: u32 = 8;

#[derive(Clone, Debug)]
enum Step {
    Attributes(u64),
    Block(u64, u32),
    NoBlock(u64, u32),
    Cut(u64, u32),
    Entry(u64, u8),
    NoEntry(u64, u8),
    Gone(u64),
    /// A record of the image itself.
    Conflict(u8),
    NoConflict(u8),
    /// What was done so far is written.
    Flush,
    Freeze,
    /// The frozen layers become a tree.
    Fold,
    /// From here on another session, over the frozen layers of this one.
    Fork,
    /// Back to an earlier session.
    Switch(usize),
}

fn steps() -> impl Strategy<Value = Step> {
    let inode = || 1..=INODES;
    let block = || 0..BLOCKS;
    prop_oneof![
        3 => inode().prop_map(Step::Attributes),
        4 => (inode(), block()).prop_map(|(inode, block)| Step::Block(inode, block)),
        2 => (inode(), block()).prop_map(|(inode, block)| Step::NoBlock(inode, block)),
        3 => (inode(), block()).prop_map(|(inode, block)| Step::Cut(inode, block)),
        3 => (inode(), 0..4_u8).prop_map(|(inode, name)| Step::Entry(inode, name)),
        2 => (inode(), 0..4_u8).prop_map(|(inode, name)| Step::NoEntry(inode, name)),
        1 => inode().prop_map(Step::Gone),
        2 => (0..3_u8).prop_map(Step::Conflict),
        1 => (0..3_u8).prop_map(Step::NoConflict),
        6 => Just(Step::Flush),
        2 => Just(Step::Freeze),
        2 => Just(Step::Fold),
        1 => Just(Step::Fork),
        1 => (0..4_usize).prop_map(Step::Switch),
    ]
}

/// A session and the one map that it should look like.
struct World {
    layers: Layers,
    changes: Changes,
    model: BTreeMap<Vec<u8>, Bytes>,
    /// Inodes whose numbers are used up.
    gone: BTreeSet<u64>,
}

impl World {
    fn set(&mut self, key: Vec<u8>, value: Bytes) {
        self.model.insert(key.clone(), value.clone());
        self.changes.set(key, value);
    }

    fn remove(&mut self, key: Vec<u8>) {
        self.model.remove(&key);
        self.changes.remove(key);
    }

    fn clear(&mut self, part: Clear) {
        let range = part.range();
        self.model.retain(|key, _| !range.contains(key));
        self.changes.clear(part);
    }

    fn step(&mut self, step: &Step, value: Bytes) {
        let alive = |inode: &u64| !self.gone.contains(inode);
        match step {
            Step::Attributes(inode) if alive(inode) => {
                self.set(keys::inode(InodeId::new(*inode)), value);
            }
            Step::Block(inode, block) if alive(inode) => {
                let content = crate::image::Block::inline(value);
                let record = crate::record::block::encode(&content);
                self.set(keys::block(InodeId::new(*inode), *block), record);
            }
            Step::NoBlock(inode, block) if alive(inode) => {
                self.remove(keys::block(InodeId::new(*inode), *block));
            }
            Step::Cut(inode, block) if alive(inode) => {
                self.clear(Clear::Blocks(InodeId::new(*inode), *block));
            }
            Step::Entry(inode, name) if alive(inode) => {
                self.set(entry(*inode, *name), value);
            }
            Step::NoEntry(inode, name) if alive(inode) => {
                self.remove(entry(*inode, *name));
            }
            Step::Conflict(id) => self.set(keys::conflict(&[*id; 16]), value),
            Step::NoConflict(id) => self.remove(keys::conflict(&[*id; 16])),
            // The root stays.
            Step::Gone(inode) if *inode > 1 && self.gone.insert(*inode) => {
                self.clear(Clear::Inode(InodeId::new(*inode)));
            }
            _ => {}
        }
    }

    async fn flush(&mut self, kv: &dyn Kv) {
        let mut txn = kv.begin();
        self.layers
            .write(txn.as_mut(), &std::mem::take(&mut self.changes));
        txn.commit().await.unwrap();
    }

    fn freeze(&mut self) {
        let open = self.layers.open();
        self.layers = self.layers.freeze(LayerId {
            generation: open.generation + 1,
            ..open
        });
    }

    /// What the model has in a range.
    fn expected(&self, range: &KeyRange) -> Vec<(Bytes, Bytes)> {
        let inside = self.model.iter().filter(|(key, _)| range.contains(key));
        inside
            .map(|(key, value)| (Bytes::copy_from_slice(key), value.clone()))
            .collect()
    }

    async fn verify(&self, kv: &dyn Kv) {
        for inode in (1..=INODES).filter(|inode| !self.gone.contains(inode)) {
            let id = InodeId::new(inode);
            let txn = kv.begin();
            let key = keys::inode(id);
            let found = self.layers.get(txn.as_ref(), &key).await.unwrap();
            assert_eq!(
                found.as_ref(),
                self.model.get(&key),
                "attributes of {inode}"
            );
            for page in [1, 2, 100] {
                self.verify_pages(kv, id, page).await;
            }
        }
        let txn = kv.begin();
        let range = keys::conflicts();
        let found = self.layers.scan(txn.as_ref(), &range, 100).await.unwrap();
        assert_eq!(found.pairs, self.expected(&range), "conflicts");
        self.verify_all(kv).await;
    }

    async fn verify_pages(&self, kv: &dyn Kv, inode: InodeId, page: usize) {
        let txn = kv.begin();
        let mut range = keys::entries_from(inode, 0);
        let (whole, mut found) = (range.clone(), Vec::new());
        loop {
            let part = self.layers.scan(txn.as_ref(), &range, page).await.unwrap();
            found.extend(part.pairs);
            let Some(last) = part.covered_to else { break };
            range.start = KeyRange::key(&last).end;
        }
        assert_eq!(found, self.expected(&whole), "entries of {inode}");
        for first in 0..BLOCKS {
            let mut found = Vec::new();
            let mut from = Some(first);
            while let Some(at) = from {
                let span = (at, BLOCKS + 1);
                let scan = self.layers.scan_blocks(txn.as_ref(), inode, span, page);
                let part = scan.await.unwrap();
                found.extend(part.pairs);
                from = part
                    .covered_to
                    .map(|last| match keys::decode(&last).unwrap() {
                        keys::ImageKey::Block { index, .. } => index + 1,
                        other => panic!("{other:?} among blocks"),
                    });
            }
            let expected = self.expected(&keys::blocks_from(inode, first));
            assert_eq!(found, expected, "blocks of {inode} from {first}");
        }
    }

    /// The whole image, and the frozen part of it as a change of the base.
    async fn verify_all(&self, kv: &dyn Kv) {
        let mut image = BTreeMap::new();
        let mut whole = self.layers.base().tree().scan(
            self.layers.base().root().unwrap_or_default(),
            &KeyRange {
                start: Bytes::new(),
                end: Bytes::from_static(&[0xff; 8]),
            },
        );
        if self.layers.base().root().is_none() {
            image.insert(
                keys::inode(InodeId::ROOT),
                InodeRecord::root((0o755, 0, 0), Timestamp::default()).encode(),
            );
        }
        while let Some((key, value)) = whole.next().await.unwrap() {
            image.insert(key.to_vec(), value);
        }
        let mut scan = LayerScan::new(kv, self.layers.all());
        let mut last = Vec::new();
        while let Some(item) = scan.next().await.unwrap() {
            let at = match item {
                Item::Put(_, key, value) => {
                    image.insert(key.to_vec(), value);
                    key.to_vec()
                }
                Item::Remove(key) => {
                    image.remove(&*key);
                    key.to_vec()
                }
                Item::RemoveInode(inode) => {
                    image.retain(|key, _| !keys::inode_range(inode).contains(key));
                    keys::inode(inode)
                }
                Item::Cut(inode, first) => {
                    image.retain(|key, _| !keys::blocks_from(inode, first).contains(key));
                    keys::cut(inode, first)
                }
            };
            assert!(last < at, "in order");
            last = at;
        }
        assert_eq!(image, self.model);
        let mut scan = ImageScan::new(kv, &self.layers);
        let mut seen = BTreeMap::new();
        while let Some((key, value)) = scan.next().await.unwrap() {
            let before = seen.insert(format!("{key:?}"), value);
            assert_eq!(before, None, "{key:?} comes twice");
        }
        let decoded = |key: &[u8]| format!("{:?}", keys::decode(key).unwrap());
        let expected = self
            .model
            .iter()
            .map(|(key, value)| (decoded(key), value.clone()));
        assert_eq!(seen, expected.collect());
    }

    /// Folds the frozen layers; their image stays what it was.
    async fn fold(&mut self, kv: &dyn Kv) {
        let layers = &self.layers;
        let folded = fold(kv, layers.frozen(), layers.base(), |_| {})
            .await
            .unwrap();
        let tree = layers.base().tree().clone();
        tree.verify(folded.root).await.unwrap();
        let base = Base::Tree {
            tree,
            root: folded.root,
        };
        self.layers = Layers::new(layers.open(), Vec::new(), base);
    }
}

fn empty(root: InodeRecord) -> Base {
    let keys = TreeKeys::new(DomainId::new(1), &[1; 32], &[2; 32]);
    Base::Empty {
        tree: MemoryTrees::default().open(keys),
        root: root.into(),
    }
}

fn entry(inode: u64, name: u8) -> Vec<u8> {
    let name = Name::new(&[b'a' + name]).unwrap();
    let hash = u64::from(name.as_bytes()[0]);
    keys::entry(InodeId::new(inode), hash, name.as_bytes())
}

async fn run(steps: &[Step]) {
    let clock = Arc::new(ManualClock::new(Timestamp::new(1_000_000, 0)));
    let kv: Arc<dyn Kv> = Arc::new(MemoryKv::new(clock));
    let root = InodeRecord::root((0o755, 0, 0), Timestamp::default());
    let session = |number| LayerId {
        session: SessionId::new(number),
        generation: 1,
    };
    let first = World {
        model: BTreeMap::from([(keys::inode(InodeId::ROOT), root.encode())]),
        layers: Layers::new(session(1), Vec::new(), empty(root)),
        changes: Changes::default(),
        gone: BTreeSet::new(),
    };
    let mut worlds = vec![first];
    let mut current = 0;
    for (number, step) in steps.iter().enumerate() {
        match step {
            Step::Flush => worlds[current].flush(kv.as_ref()).await,
            Step::Freeze => {
                worlds[current].flush(kv.as_ref()).await;
                worlds[current].freeze();
            }
            Step::Fold => worlds[current].fold(kv.as_ref()).await,
            Step::Fork => {
                let source = &mut worlds[current];
                source.flush(kv.as_ref()).await;
                source.freeze();
                let open = session(u64::try_from(worlds.len() + 1).unwrap());
                let source = &worlds[current];
                let fork = World {
                    layers: Layers::new(
                        open,
                        source.layers.frozen().to_vec(),
                        source.layers.base().clone(),
                    ),
                    changes: Changes::default(),
                    model: source.model.clone(),
                    gone: source.gone.clone(),
                };
                worlds.push(fork);
                current = worlds.len() - 1;
            }
            Step::Switch(to) => current = to % worlds.len(),
            step => {
                let value = Bytes::from(format!("{number}"));
                worlds[current].step(step, value);
            }
        }
    }
    for world in &mut worlds {
        world.flush(kv.as_ref()).await;
        world.verify(kv.as_ref()).await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever is written, cut, removed, frozen and forked: each session sees its own history.
    #[test]
    fn layers_are_one_map(steps in proptest::collection::vec(steps(), 0..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(run(&steps));
    }
}
