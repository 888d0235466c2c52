//! Conflicts of trees and of layers are listed in pages.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{DomainId, InodeId, ManualClock, SessionId, Tasks, Timestamp};

use super::*;
use crate::image::{Changes, Clear};
use crate::kv::memory::MemoryKv;
use crate::layers::{Base, LayerId};
use crate::record::conflict::{ConflictKind, Place, Resolution, Sources};
use crate::tree::{MemoryNodes, NodeCache, TreeKeys};

fn conflict(number: u64) -> Conflict {
    Conflict {
        kind: ConflictKind::Content,
        resolution: Resolution::KeptBoth,
        place: Place {
            inode: InodeId::new(number),
            path: Bytes::from(format!("f{number}")),
        },
        aside: None,
        base: None,
        ours: None,
        theirs: None,
        sources: Sources::default(),
    }
}

/// The image keys of so many conflicts, with others before and after them.
fn pairs(count: u64) -> BTreeMap<Vec<u8>, Bytes> {
    let stored = |number| {
        let value = conflict(number).encode();
        (keys::conflict(&Conflict::id(&value)), value)
    };
    let mut pairs: BTreeMap<_, _> = (0..count).map(stored).collect();
    pairs.insert(keys::inode(InodeId::ROOT), Bytes::from_static(b"other"));
    pairs
}

fn tree() -> Tree {
    let keys = TreeKeys::new(DomainId::new(1), &[1; 32], &[2; 32]);
    let cache = Arc::new(NodeCache::new(1 << 20));
    Tree::new(Arc::new(MemoryNodes::new()), cache, keys, Tasks::new())
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(test);
}

#[test]
fn a_snapshot_tells_its_conflicts_in_pages() {
    run(async {
        let tree = tree();
        let stored = pairs(7);
        let root = tree.build(&stored).await.unwrap().root;
        let whole = list(&tree, root, None, PAGE_MAX).await.unwrap().items;
        let ids: Vec<Vec<u8>> = whole.iter().map(|it| keys::conflict(&it.id)).collect();
        let expected: Vec<Vec<u8>> = stored.keys().take(7).cloned().collect();
        assert_eq!(ids, expected);
        assert_eq!(count(&tree, root).await.unwrap(), 7);
        for limit in [1, 3, 7, 8] {
            let (mut after, mut told) = (None, Vec::new());
            loop {
                let page = list(&tree, root, after, limit).await.unwrap();
                assert!(page.items.len() <= limit);
                after = page.items.last().map(|last| last.id);
                told.extend(page.items);
                if !page.more {
                    break;
                }
            }
            assert_eq!(told, whole, "pages of {limit}");
        }
        assert_eq!(count(&tree, Root::EMPTY).await.unwrap(), 0);
    });
}

#[test]
fn layers_hide_what_was_resolved() {
    run(async {
        let kv = MemoryKv::new(Arc::new(ManualClock::new(Timestamp::new(1, 0))));
        let tree = tree();
        let stored = pairs(5);
        let root = tree.build(&stored).await.unwrap().root;
        let whole = list(&tree, root, None, PAGE_MAX).await.unwrap().items;
        let layer = |generation| LayerId {
            session: SessionId::new(1),
            generation,
        };
        let base = Base::Tree { tree, root };
        let mut layers = Layers::new(layer(1), Vec::new(), base);
        // One is resolved in a frozen layer, one in the open one, where another is added.
        for (resolved, added) in [(0, None), (3, Some(9))] {
            let mut changes = Changes::default();
            changes.remove(keys::conflict(&whole[resolved].id));
            if let Some(number) = added {
                let value = conflict(number).encode();
                changes.set(keys::conflict(&Conflict::id(&value)), value);
            }
            // Nothing else of an image is under that number.
            assert!(!changes.clears().contains(&Clear::Inode(keys::RECORDS)));
            let mut txn = kv.begin();
            layers.write(txn.as_mut(), &changes);
            txn.commit().await.unwrap();
            if added.is_none() {
                layers = layers.freeze(layer(2));
            }
        }
        let mut expected: Vec<Conflict> = [1, 2, 4]
            .iter()
            .map(|at: &usize| whole[*at].conflict.clone())
            .chain([conflict(9)])
            .collect();
        let by_path = |one: &Conflict, other: &Conflict| one.place.path.cmp(&other.place.path);
        expected.sort_by(by_path);
        for limit in [1, 2, 4, 5] {
            let (mut after, mut told) = (None, Vec::new());
            loop {
                let page = in_layers(&kv, &layers, after, limit).await.unwrap();
                assert!(page.items.len() <= limit);
                after = page.items.last().map(|last| last.id);
                told.extend(page.items.into_iter().map(|it| it.conflict));
                if !page.more {
                    break;
                }
            }
            told.sort_by(by_path);
            assert_eq!(told, expected, "pages of {limit}");
        }
        for (at, it) in whole.into_iter().enumerate() {
            let one = one_in_layers(&kv, &layers, it.id).await.unwrap();
            assert_eq!(one, [1, 2, 4].contains(&at).then_some(it));
        }
    });
}

#[test]
fn ids_are_read_and_written() {
    let id = [0x0a; 16];
    assert_eq!(show_id(&id), "0a".repeat(16));
    assert_eq!(parse_id(&show_id(&id)), Some(id));
    for bad in [
        "",
        "0a",
        &"0a".repeat(17),
        &"xx".repeat(16),
        &"+0".repeat(16),
    ] {
        assert_eq!(parse_id(bad), None, "{bad}");
    }
}
