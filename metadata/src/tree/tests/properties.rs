//! The tree is a function of its content, and reads like a map.

use super::*;

/// Keys as images have them, from few inodes, so that keys meet.
fn a_key() -> impl Strategy<Value = Vec<u8>> {
    let name = proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'b'), Just(0xff)], 1..4);
    let tail = prop_oneof![
        2 => Just(None),
        3 => (0..8_u64, name).prop_map(|(hash, name)| Some((hash << 59, name))),
        3 => (0..6_u64).prop_map(|block| Some((block, Vec::new()))),
    ];
    (0..60_u64, tail).prop_map(|(inode, tail)| {
        let inode = InodeId::new(inode);
        match tail {
            None => image::inode(inode),
            Some((block, name)) if name.is_empty() => {
                image::block(inode, u32::try_from(block).unwrap())
            }
            Some((hash, name)) => image::entry(inode, hash, &name),
        }
    })
}

fn a_value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => (any::<u8>(), 0..60_usize).prop_map(|(byte, length)| vec![byte; length]),
        2 => (0..1_u64 << 40).prop_map(attributes),
        1 => (any::<u8>(), 200..900_usize).prop_map(|(byte, length)| vec![byte; length]),
    ]
}

fn a_map(entries: std::ops::Range<usize>) -> impl Strategy<Value = Map> {
    proptest::collection::btree_map(a_key(), a_value(), entries)
}

/// How a delta is drawn for a map.
#[derive(Clone, Debug)]
enum Draw {
    /// Keys anywhere.
    Scattered(Vec<(Vec<u8>, Option<Vec<u8>>)>),
    /// A run of neighbours: each changed, removed, or preceded by a new one.
    Clustered(prop::sample::Index, Vec<(u8, Vec<u8>)>),
    /// All but a few in a part of the map removed.
    Removed(prop::sample::Index, prop::sample::Index, usize),
    /// Right at the first and last keys of nodes.
    Boundaries(Vec<(prop::sample::Index, u8, Vec<u8>)>),
}

fn a_draw() -> impl Strategy<Value = Draw> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        3 => proptest::collection::vec((a_key(), proptest::option::of(a_value())), 0..40)
            .prop_map(Draw::Scattered),
        3 => (index(), proptest::collection::vec((any::<u8>(), a_value()), 1..40))
            .prop_map(|(from, edits)| Draw::Clustered(from, edits)),
        2 => (index(), index(), 1..40_usize).prop_map(|(from, to, keep)| Draw::Removed(from, to, keep)),
        3 => proptest::collection::vec((index(), any::<u8>(), a_value()), 1..12)
            .prop_map(Draw::Boundaries),
    ]
}

/// A key between `key` and the one before: as near as can be.
fn just_before(key: &[u8]) -> Vec<u8> {
    let mut before = key.to_vec();
    match before.pop() {
        Some(last) if last > 0 => before.extend([last - 1, 0xff]),
        _ => {}
    }
    before
}

fn edit(key: &[u8], what: u8, value: Vec<u8>) -> (Vec<u8>, Option<Vec<u8>>) {
    match what % 4 {
        0 => (key.to_vec(), None),
        1 => (key.to_vec(), Some(value)),
        2 => ([key, &[0]].concat(), Some(value)),
        _ => (just_before(key), Some(value)),
    }
}

/// A delta for a map whose nodes begin at `starts`.
fn draw(draw: Draw, map: &Map, starts: &[Vec<u8>]) -> Delta {
    let keys: Vec<&Vec<u8>> = map.keys().collect();
    match draw {
        Draw::Scattered(edits) => edits.into_iter().collect(),
        _ if keys.is_empty() => Delta::new(),
        Draw::Clustered(from, edits) => {
            let from = from.index(keys.len());
            let run = keys[from..].iter().zip(edits);
            run.map(|(key, (what, value))| edit(key, what, value))
                .collect()
        }
        Draw::Removed(from, to, keep) => {
            let (from, to) = (from.index(keys.len()), to.index(keys.len() + 1));
            let part = &keys[from.min(to)..from.max(to)];
            let removed = part
                .iter()
                .enumerate()
                .filter(|(index, _)| index % keep != keep - 1);
            removed.map(|(_, key)| ((*key).clone(), None)).collect()
        }
        Draw::Boundaries(edits) => edits
            .into_iter()
            .filter_map(|(index, what, value)| {
                let start = starts.get(index.index(starts.len().max(1)))?;
                let last = map.range::<Vec<u8>, _>(..start).next_back();
                let key = last
                    .map(|(key, _)| key)
                    .filter(|_| what & 4 == 0)
                    .unwrap_or(start);
                Some(edit(key, what, value))
            })
            .collect(),
    }
}

async fn starts_of_nodes(setup: &Setup, root: Root) -> Vec<Vec<u8>> {
    let levels = setup.levels(root).await;
    let firsts = levels
        .iter()
        .flatten()
        .map(|node| node.first_key().to_vec());
    firsts.collect()
}

async fn draws(setup: &Setup, root: Root, map: &Map, how: Draw) -> Delta {
    draw(how, map, &starts_of_nodes(setup, root).await)
}

/// What the counters should be.
fn count(map: &Map) -> Counters {
    let each = map.iter().map(|(key, value)| measure(key, value));
    each.fold(Counters::default(), Counters::plus)
}

fn map_diff(old: &Map, new: &Map) -> Vec<Change> {
    let bytes = |value: Option<&Vec<u8>>| value.map(|value| Bytes::copy_from_slice(value));
    let changes = between(old, new).into_keys().map(|key| Change {
        old: bytes(old.get(&key)),
        new: bytes(new.get(&key)),
        key: key.into(),
    });
    changes.collect()
}

async fn tree_diff(setup: &Setup, old: Root, new: Root) -> Vec<Change> {
    let (mut diff, mut changes) = (setup.tree.diff(old, new), Vec::new());
    while let Some(change) = diff.next().await.unwrap() {
        changes.push(change);
    }
    assert_eq!(diff.next().await, Ok(None));
    changes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever is done in whatever order: each version reads as its model did, for ever, and its
    /// root is that of the content.
    #[test]
    fn versions_are_immutable_and_canonical(
        map in prop_oneof![3 => a_map(0..500), 1 => a_map(0..12)],
        drawn in proptest::collection::vec(a_draw(), 1..5),
    ) {
        run(async {
            let setup = Setup::small();
            let mut versions = vec![(setup.build(&map).await, map)];
            for how in drawn {
                let (root, map) = versions.last().unwrap();
                let delta = draws(&setup, *root, map, how).await;
                let map = applied(map, &delta);
                let edited = setup.tree.apply(*root, edits(&delta)).await.unwrap();
                assert_eq!(edited.counters, count(&map));
                assert_eq!(setup.tree.counters(edited.root).await, Ok(count(&map)));
                versions.push((edited.root, map));
            }
            let fresh = Setup::small();
            for (root, map) in &versions {
                assert_eq!(*root, fresh.build(map).await, "of {} keys", map.len());
                assert_eq!(setup.content(*root).await, *map);
                assert_eq!(setup.tree.verify(*root).await, Ok(count(map)));
            }
            let (last, now) = versions.last().unwrap();
            for (root, map) in &versions {
                // Straight from each version to the last, and back.
                assert_eq!(setup.apply(*root, &between(map, now)).await, *last);
                assert_eq!(setup.apply(*last, &between(now, map)).await, *root);
                assert_eq!(tree_diff(&setup, *root, *last).await, map_diff(map, now));
                assert_eq!(tree_diff(&setup, *last, *root).await, map_diff(now, map));
            }
        });
    }

    /// One key at a time in any order gives what all at once give.
    #[test]
    fn the_order_of_edits_does_not_matter(
        map in a_map(1..120),
        order in any::<u64>(),
    ) {
        run(async {
            let setup = Setup::small();
            let mut keys: Vec<&Vec<u8>> = map.keys().collect();
            keys.sort_by_key(|key| SplitRule::new([0; 32]).ends_hash(order, key));
            let mut root = Root::EMPTY;
            for key in &keys {
                let delta = Delta::from([((*key).clone(), Some(map[*key].clone()))]);
                root = setup.apply(root, &delta).await;
            }
            assert_eq!(root, setup.build(&map).await);
            for key in &keys {
                root = setup.apply(root, &Delta::from([((*key).clone(), None)])).await;
            }
            assert_eq!(root, Root::EMPTY);
        });
    }

    #[test]
    fn ranges_and_keys_read_like_a_map(
        map in a_map(0..400),
        asked in proptest::collection::btree_set(a_key(), 0..60),
        ends in (a_key(), a_key()),
    ) {
        run(async {
            let setup = Setup::small();
            let root = setup.build(&map).await;
            let range = KeyRange {
                start: ends.0.clone().into(),
                end: ends.1.clone().into(),
            };
            let mut scan = setup.tree.scan(root, &range);
            let wanted = map.iter().filter(|(key, _)| range.contains(key));
            for (key, value) in wanted {
                let (found, found_value) = scan.next().await.unwrap().unwrap();
                assert_eq!((&found[..], &found_value[..]), (&key[..], &value[..]));
            }
            assert_eq!(scan.next().await, Ok(None));
            assert_eq!(scan.next().await, Ok(None));
            let asked: BTreeSet<&Vec<u8>> = asked.iter().chain(map.keys().step_by(3)).collect();
            let asked: Vec<&Vec<u8>> = asked.into_iter().collect();
            let values = setup.tree.get_many(root, &asked).await.unwrap();
            for (key, value) in asked.iter().zip(values) {
                let wanted = map.get(*key).map(|value| Bytes::copy_from_slice(value));
                assert_eq!(setup.tree.get(root, key).await.unwrap(), wanted);
                assert_eq!(value, wanted);
            }
        });
    }

    #[test]
    fn three_ways_differ_like_maps(
        base in a_map(0..400),
        ours in a_draw(),
        theirs in a_draw(),
        both in a_draw(),
    ) {
        run(async {
            let setup = Setup::small();
            let root = setup.build(&base).await;
            let both = draws(&setup, root, &base, both).await;
            let mut sides = Vec::new();
            for how in [ours, theirs] {
                let delta = draws(&setup, root, &base, how).await;
                let map = applied(&applied(&base, &delta), &both);
                sides.push((setup.build(&map).await, map));
            }
            let (our_root, ours) = &sides[0];
            let (their_root, theirs) = &sides[1];
            let keys: BTreeSet<Vec<u8>> = between(&base, ours)
                .into_keys()
                .chain(between(&base, theirs).into_keys())
                .collect();
            let mut diff = setup.tree.diff3(root, *our_root, *their_root);
            for key in keys {
                let value = |map: &Map| map.get(&key).map(|value| Bytes::copy_from_slice(value));
                let wanted = ThreeWay {
                    key: Bytes::copy_from_slice(&key),
                    base: value(&base),
                    ours: value(ours),
                    theirs: value(theirs),
                };
                assert_eq!(diff.next().await, Ok(Some(wanted)));
            }
            assert_eq!(diff.next().await, Ok(None));
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// The same with nodes of the usual size, and a cache.
    #[test]
    fn usual_nodes_are_canonical(
        files in 500..2500_u64,
        drawn in proptest::collection::vec(a_draw(), 1..4),
        large in proptest::collection::vec((a_key(), 1000..VALUE_BYTES_MAX + 1), 0..20),
    ) {
        run(async {
            let setup = Setup::usual();
            let mut map = image_of(files);
            map.extend(large.into_iter().map(|(key, length)| (key, vec![5; length])));
            let mut root = setup.build(&map).await;
            for how in drawn {
                let delta = draws(&setup, root, &map, how).await;
                map = applied(&map, &delta);
                root = setup.apply(root, &delta).await;
            }
            assert_eq!(root, Setup::usual().build(&map).await);
            assert_eq!(setup.content(root).await, map);
            assert_eq!(setup.tree.verify(root).await, Ok(count(&map)));
            for node in setup.levels(root).await.iter().flatten() {
                assert!(node.bytes().len() <= NODE_BYTES_MAX);
            }
        });
    }
}

/// The root of a certain image, pinned: should it change, all trees stored so far would be
/// misshapen.
#[test]
fn the_root_of_an_image_is_pinned() {
    run(async {
        let setup = Setup::usual();
        let root = setup.build(&image_of(1000)).await;
        let levels: Vec<usize> = setup.levels(root).await.iter().map(Vec::len).collect();
        assert_eq!(levels, [12, 1]);
        assert_eq!(
            root.id().unwrap().to_string(),
            "c9d1dd14abfa483cbadcc3577f05e188ad93136e06fa8d9fbbeb82a0333b88d1"
        );
    });
}

/// What is cut off before the only node of a tree leaves that node where it is, and must not lose it.
#[test]
fn a_node_before_the_only_node_keeps_it() {
    run(async {
        let setup = Setup::small();
        for length in (0..1500).step_by(25) {
            let mut map = Map::from([(b"b".to_vec(), vec![1; 20])]);
            let root = setup.build(&map).await;
            let delta = Delta::from([(b"a".to_vec(), Some(vec![2; length]))]);
            map = applied(&map, &delta);
            let edited = setup.apply(root, &delta).await;
            assert_eq!(setup.content(edited).await, map, "{length}");
            assert_eq!(edited, setup.build(&map).await, "{length}");
        }
    });
}

#[test]
fn no_content_is_a_root_too() {
    run(async {
        let setup = Setup::small();
        assert_eq!(setup.build(&Map::new()).await, Root::EMPTY);
        assert_eq!(setup.store.puts() + setup.store.syncs(), 0);
        assert_eq!(
            setup.tree.counters(Root::EMPTY).await,
            Ok(Counters::default())
        );
        assert_eq!(setup.tree.get(Root::EMPTY, b"k").await, Ok(None));
        assert_eq!(
            setup.tree.verify(Root::EMPTY).await,
            Ok(Counters::default())
        );
        assert_eq!(setup.content(Root::EMPTY).await, Map::new());
        let map = image_of(10);
        let root = setup.build(&map).await;
        assert_eq!(tree_diff(&setup, Root::EMPTY, root).await.len(), map.len());
        assert_eq!(
            setup.apply(root, &between(&map, &Map::new())).await,
            Root::EMPTY
        );
        for root in [root, Root::EMPTY] {
            assert_eq!(Root::from_bytes(root.to_bytes()), root);
        }
    });
}

#[test]
fn what_cannot_be_stored_is_refused() {
    run(async {
        let setup = Setup::small();
        let mut editor = setup.tree.edit(Root::EMPTY).await.unwrap();
        editor.put(b"b", b"").await.unwrap();
        for key in [b"b", b"a"] {
            assert_eq!(editor.put(key, b"").await, Err(TreeError::Order));
            assert_eq!(editor.remove(key).await, Err(TreeError::Order));
        }
        let (key, value) = ([b'c'; KEY_BYTES_MAX + 1], vec![0; VALUE_BYTES_MAX + 1]);
        assert_eq!(editor.put(&key, b"").await, Err(TreeError::TooLong));
        assert_eq!(editor.put(b"c", &value).await, Err(TreeError::TooLong));
        let (key, value) = (&key[1..], &value[1..]);
        editor.put(key, value).await.unwrap();
        let root = editor.finish().await.unwrap().root;
        assert_eq!(
            setup.tree.get(root, key).await.unwrap().as_deref(),
            Some(value)
        );
        let asked = setup.tree.get_many(root, &[b"b", b"a"]).await;
        assert_eq!(asked, Err(TreeError::Order));
    });
}

/// Different secrets cut at different places and give other names.
#[test]
fn secrets_matter() {
    run(async {
        let (map, mut roots, mut cuts) = (image_of(600), BTreeSet::new(), BTreeSet::new());
        for keys in [([1; 32], [2; 32]), ([9; 32], [2; 32]), ([1; 32], [9; 32])] {
            let store = Arc::new(MemoryNodes::new());
            let keys = TreeKeys::new(DomainId::new(1), &keys.0, &keys.1);
            let tree = Tree::small(store.clone(), Arc::new(NodeCache::new(0)), keys);
            let setup = Setup { tree, store };
            let root = setup.build(&map).await;
            roots.insert(root.to_bytes());
            cuts.insert(starts_of_nodes(&setup, root).await);
        }
        assert_eq!((roots.len(), cuts.len()), (3, 2));
    });
}
