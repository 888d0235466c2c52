//! How much is read and written.

use super::*;

/// Reads of the store that `work` makes.
async fn reads<T>(setup: &Setup, work: impl Future<Output = T>) -> (u64, T) {
    let before = setup.store.gets();
    let done = work.await;
    (setup.store.gets() - before, done)
}

#[test]
fn nodes_are_stored_after_what_is_below_them_and_durable_before_the_root() {
    run(async {
        let setup = Setup::small();
        let mut map = image_of(300);
        let first = setup.build(&map).await;
        assert_eq!(setup.store.syncs(), 1);
        let keys: Vec<Vec<u8>> = map.keys().cloned().collect();
        for key in keys.iter().step_by(50) {
            map.insert(key.clone(), vec![1; 70]);
        }
        let before = setup.content(first).await;
        let second = setup.apply(first, &between(&before, &map)).await;
        assert_eq!(setup.store.syncs(), 2);
        for root in [first, second] {
            for node in setup.levels(root).await.iter().flatten() {
                let stored = setup.store.peek(node.id()).unwrap();
                assert!(stored.durable);
                for child in node.children() {
                    let child = setup.store.peek(child).unwrap();
                    assert!(
                        child.number < stored.number,
                        "a child came after its parent"
                    );
                }
            }
        }
    });
}

#[test]
fn a_delta_that_changes_nothing_writes_nothing() {
    run(async {
        let setup = Setup::small();
        let map = image_of(200);
        let root = setup.build(&map).await;
        let (puts, syncs) = (setup.store.puts(), setup.store.syncs());
        let mut delta: Delta = map
            .iter()
            .map(|(key, value)| (key.clone(), Some(value.clone())))
            .collect();
        delta.insert(b"absent".to_vec(), None);
        delta.insert(vec![0], None);
        let edited = setup.tree.apply(root, edits(&delta)).await.unwrap();
        assert_eq!((edited.root, edited.written), (root, Written::default()));
        assert_eq!((setup.store.puts(), setup.store.syncs()), (puts, syncs));
    });
}

/// One changed key: a lookup reads a path, an edit writes about a path, a comparison reads what is
/// not shared.
#[test]
fn work_is_in_proportion_to_the_change() {
    run(async {
        let setup = Setup::small();
        let map = image_of(3000);
        let root = setup.build(&map).await;
        let levels: Vec<u64> = setup
            .levels(root)
            .await
            .iter()
            .map(|level| level.len().try_into().unwrap())
            .collect();
        let (height, total) = (
            u64::try_from(levels.len()).unwrap(),
            levels.iter().sum::<u64>(),
        );
        assert!(height >= 4 && total > 2000, "{levels:?}");
        let keys: Vec<Vec<u8>> = map.keys().cloned().collect();
        let (mut written_all, mut read_all) = (0, 0);
        for key in keys.iter().step_by(keys.len() / 100) {
            let (read, found) = reads(&setup, setup.tree.get(root, key)).await;
            assert_eq!(found.unwrap().as_deref(), Some(&map[key][..]));
            assert_eq!(read, height);
            let delta = Delta::from([(key.clone(), Some(b"changed".to_vec()))]);
            let edited = setup.tree.apply(root, edits(&delta)).await.unwrap();
            written_all += edited.written.nodes;
            let (read, changes) = reads(&setup, async {
                let mut diff = setup.tree.diff(root, edited.root);
                let mut changes = 0;
                while diff.next().await.unwrap().is_some() {
                    changes += 1;
                }
                changes
            })
            .await;
            assert_eq!(changes, 1);
            // Every node that was written, the same number of old ones, and those beside them where
            // nodes are cut elsewhere.
            assert!(
                read <= 3 * edited.written.nodes + 2,
                "{read} for {:?}",
                edited.written
            );
            read_all += read;
        }
        // On average a path and a little more: nodes beside it are cut anew now and then.
        assert!(
            written_all <= 100 * height * 3 / 2,
            "{written_all}, height {height}"
        );
        assert!(read_all <= 100 * height * 3, "{read_all}, height {height}");
    });
}

/// Comparisons with many changes read in proportion too, far less than everything.
#[test]
fn a_comparison_skips_what_is_shared() {
    run(async {
        let setup = Setup::small();
        let map = image_of(3000);
        let root = setup.build(&map).await;
        let total: usize = setup.levels(root).await.iter().map(Vec::len).sum();
        let keys: Vec<Vec<u8>> = map.keys().cloned().collect();
        for (from, count, step) in [(100, 300, 1), (0, 30, 300), (5000, 500, 2)] {
            let mut delta = Delta::new();
            for (index, key) in keys.iter().skip(from).step_by(step).take(count).enumerate() {
                let value = (index % 3 > 0).then(|| vec![3; index % 50]);
                delta.insert(key.clone(), value);
                delta.insert([key, &b"x"[..]].concat(), Some(b"new".to_vec()));
            }
            let edited = setup.tree.apply(root, edits(&delta)).await.unwrap();
            let (read, changes) = reads(&setup, async {
                let mut diff = setup.tree.diff(root, edited.root);
                let mut changes = 0;
                while diff.next().await.unwrap().is_some() {
                    changes += 1;
                }
                changes
            })
            .await;
            assert_eq!(changes, between(&map, &applied(&map, &delta)).len());
            let total = u64::try_from(total).unwrap();
            assert!(
                read <= 3 * edited.written.nodes,
                "{read} for {:?}",
                edited.written
            );
            assert!(read < total / 2, "{read} of {total}");
        }
    });
}

#[test]
fn a_scan_reads_its_range_and_little_more() {
    run(async {
        let setup = Setup::small();
        let map = image_of(1000);
        let root = setup.build(&map).await;
        let levels = setup.levels(root).await;
        let height = u64::try_from(levels.len()).unwrap();
        // The keys of one leaf, exactly.
        let leaf = &levels[0][levels[0].len() / 2];
        let next = &levels[0][levels[0].len() / 2 + 1];
        let range = KeyRange {
            start: Bytes::copy_from_slice(leaf.first_key()),
            end: Bytes::copy_from_slice(next.first_key()),
        };
        let (read, count) = reads(&setup, async {
            let (mut scan, mut count) = (setup.tree.scan(root, &range), 0);
            while scan.next().await.unwrap().is_some() {
                count += 1;
            }
            count
        })
        .await;
        assert_eq!(count, leaf.count());
        // The next leaf may be read to see that it begins the next range.
        assert!(read <= height + 2, "{read}, height {height}");
        // Everything: each node once.
        let total: usize = levels.iter().map(Vec::len).sum();
        let (read, content) = reads(&setup, setup.content(root)).await;
        assert_eq!(content, map);
        assert_eq!(read, u64::try_from(total).unwrap());
    });
}

#[test]
fn inner_nodes_stay_in_memory_when_leaves_pass_through() {
    run(async {
        let store = Arc::new(MemoryNodes::new());
        let map = image_of(3000);
        let inner: u64 = {
            let tree = Tree::small(store.clone(), Arc::new(NodeCache::new(0)), tree_keys());
            let root = tree.build(&map).await.unwrap().root;
            let setup = Setup {
                tree,
                store: store.clone(),
            };
            let levels = setup.levels(root).await;
            levels[1..]
                .iter()
                .flatten()
                .map(|node| node.bytes().len() + 192)
                .sum::<usize>()
                .try_into()
                .unwrap()
        };
        // Room for the inner nodes in their part, and for few of the leaves.
        let cache = Arc::new(NodeCache::new(usize::try_from(inner * 4 * 5 / 4).unwrap()));
        let tree = Tree::small(store.clone(), cache.clone(), tree_keys());
        let setup = Setup { tree, store };
        let root = setup.build(&map).await;
        for _ in 0..2 {
            assert_eq!(setup.content(root).await.len(), map.len());
        }
        let (held_inner, held_leaves) = cache.cached_bytes();
        assert!(held_inner >= inner, "{held_inner} of {inner}");
        assert!(held_leaves > 0);
        for key in map.keys().step_by(97) {
            let (read, found) = reads(&setup, setup.tree.get(root, key)).await;
            assert!(found.unwrap().is_some());
            assert!(read <= 1, "{read} reads");
        }
    });
}

/// A reader that stops in the middle holds up nobody, and drops what it asked for.
#[test]
fn paused_readers_are_in_nobodys_way() {
    run(async {
        let setup = Setup::small();
        let map = image_of(500);
        let root = setup.build(&map).await;
        let mut scans: Vec<Scan> = (0..5)
            .map(|_| Scan::all(setup.tree.nodes.clone(), root))
            .collect();
        for scan in &mut scans {
            for _ in 0..40 {
                scan.next().await.unwrap().unwrap();
            }
        }
        assert_eq!(setup.content(root).await, map);
        drop(scans);
        assert_eq!(setup.content(root).await, map);
    });
}

/// What was walked and skipped is what collection needs: each node once, none below a skipped one.
#[test]
fn a_walk_sees_every_node_once_and_skips() {
    run(async {
        let setup = Setup::small();
        let map = image_of(300);
        let first = setup.build(&map).await;
        let key = map.keys().nth(100).unwrap().clone();
        let second = setup.apply(first, &Delta::from([(key, None)])).await;
        let mut seen = BTreeSet::new();
        let mut walked = Vec::new();
        for root in [first, second, Root::EMPTY] {
            let mut walk = setup.tree.walk(root);
            let mut count = 0_u64;
            while let Some(node) = walk.next(|id| seen.contains(&id)).await.unwrap() {
                assert!(seen.insert(node.id()), "walked twice");
                count += 1;
            }
            walked.push(count);
        }
        assert_eq!(
            u64::try_from(setup.store.count()).unwrap(),
            walked[0] + walked[1]
        );
        assert!(walked[1] < walked[0] / 4 && walked[2] == 0, "{walked:?}");
    });
}
