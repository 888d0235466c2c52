//! What is missing, damaged or wrong is told, with its name.

use super::*;

/// Reads everything in every way; what goes wrong first.
async fn read_all(setup: &Setup, root: Root) -> Result<(), TreeError> {
    let mut scan = Scan::all(setup.tree.nodes.clone(), root);
    while scan.next().await?.is_some() {}
    Ok(())
}

#[test]
fn a_missing_or_damaged_node_is_named() {
    run(async {
        let setup = Setup::small();
        let root = setup.build(&image_of(60)).await;
        let levels = setup.levels(root).await;
        assert!(levels.len() > 2, "deep enough");
        let nodes: Vec<Node> = levels.into_iter().flatten().collect();
        for node in nodes {
            let (id, bytes) = (node.id(), node.bytes().clone());
            let key = node.first_key().to_vec();
            let mut flipped = bytes.to_vec();
            *flipped.last_mut().unwrap() ^= 1;
            let mut error = NodeError::Id;
            for stored in [
                None,
                Some(flipped),
                Some(Vec::new()),
                Some(vec![0; 100_000]),
            ] {
                let wanted = match &stored {
                    None => TreeError::Missing(id),
                    Some(_) => TreeError::Damaged { id, error },
                };
                setup.store.damage(id, stored.clone().map(Bytes::from));
                assert_eq!(read_all(&setup, root).await, Err(wanted.clone()));
                assert_eq!(setup.tree.get(root, &key).await, Err(wanted.clone()));
                assert_eq!(
                    setup.tree.get_many(root, &[&key]).await,
                    Err(wanted.clone())
                );
                assert_eq!(setup.tree.verify(root).await, Err(wanted.clone()));
                assert!(wanted.to_string().contains(&id.to_string()));
                let mut diff = setup.tree.diff(Root::EMPTY, root);
                let told = loop {
                    match diff.next().await {
                        Ok(Some(_)) => {}
                        other => break other,
                    }
                };
                assert_eq!(told, Err(wanted.clone()));
                let edited = setup.tree.apply(root, [(&key, Some(b"other"))]).await;
                assert_eq!(edited, Err(wanted));
                setup.store.damage(id, None);
                setup.store.put(id, bytes.clone()).await.unwrap();
                error = NodeError::Id;
            }
            assert_eq!(read_all(&setup, root).await, Ok(()));
        }
    });
}

/// Stores a node as it is given, under its right id.
async fn store(setup: &Setup, level: u8, entries: &[(&[u8], &[u8], Counters)]) -> Node {
    let mut builder = node::NodeBuilder::new(level);
    for (key, value, counters) in entries {
        builder.push(key, value, *counters);
    }
    let node = builder.finish(&tree_keys());
    setup.tree.nodes.put(&node).await.unwrap();
    node
}

fn one() -> Counters {
    Counters {
        entries: 1,
        ..Counters::default()
    }
}

#[test]
fn a_parent_that_lies_is_found_out() {
    run(async {
        let setup = Setup::small();
        let a = store(&setup, 0, &[(b"a", b"", one())]).await;
        let b = store(&setup, 0, &[(b"b", b"", one())]).await;
        let entry = a.entry();
        let mut more = b.entry();
        let last = more.len() - 3;
        more[last] = 2;
        let two = Counters {
            entries: 2,
            ..Counters::default()
        };
        let parent = |what| NodeError::Parent(what);
        let same = b.entry();
        for (level, key, value, counters, error) in [
            (1, &b"aa"[..], &same, one(), parent("first key")),
            (1, b"b", &more, two, parent("count")),
            (2, b"b", &same, one(), parent("level")),
        ] {
            let children: [(&[u8], &[u8], Counters); 2] =
                [(b"a", &entry, one()), (key, value, counters)];
            let node = store(&setup, level, &children).await;
            let root = Root(Some(node.id()));
            let found = setup.tree.get(root, b"zz").await;
            assert_eq!(found, Err(TreeError::Damaged { id: b.id(), error }));
        }
    });
}

#[test]
fn a_tree_of_another_shape_is_found_out() {
    run(async {
        let setup = Setup::small();
        let a = store(&setup, 0, &[(b"a", b"", one())]).await;
        let b = store(&setup, 0, &[(b"b", b"", one())]).await;
        // Two small leaves where one would do: it reads, and is not what the content gives.
        let (first, second) = (a.entry(), b.entry());
        let node = store(&setup, 1, &[(b"a", &first, one()), (b"b", &second, one())]).await;
        let root = Root(Some(node.id()));
        assert_eq!(read_all(&setup, root).await, Ok(()));
        let map = setup.content(root).await;
        let wanted = setup.build(&map).await.id().unwrap();
        let found = node.id();
        let verified = setup.tree.verify(root).await;
        assert_eq!(verified, Err(TreeError::Misshapen { found, wanted }));
        // A chain that leads to a single child is refused at once.
        let chain = store(&setup, 1, &[(b"a", &first, one())]).await;
        let error = NodeError::Form("a root with a single child");
        let id = chain.id();
        let found = setup.tree.get(Root(Some(id)), b"a").await;
        assert_eq!(found, Err(TreeError::Damaged { id, error }));
    });
}

/// A store that fails after so many puts, or at the sync.
#[derive(Debug)]
struct Failing {
    inner: MemoryNodes,
    puts_left: std::sync::atomic::AtomicU64,
    fails_sync: bool,
}

impl NodeStore for Failing {
    fn get(&self, id: NodeId) -> NodeFuture<'_, Bytes> {
        self.inner.get(id)
    }

    fn put(&self, id: NodeId, bytes: Bytes) -> NodeFuture<'_, ()> {
        let left = self.puts_left.load(std::sync::atomic::Ordering::Relaxed);
        if left == 0 {
            return Box::pin(async { Err(TreeError::NoSpace) });
        }
        self.puts_left
            .store(left - 1, std::sync::atomic::Ordering::Relaxed);
        self.inner.put(id, bytes)
    }

    fn sync(&self) -> NodeFuture<'_, ()> {
        if self.fails_sync {
            return Box::pin(async { Err(TreeError::Unavailable("so it is".into())) });
        }
        self.inner.sync()
    }
}

/// No root is given out before all its nodes are stored and durable.
#[test]
fn a_failing_store_gives_no_root() {
    run(async {
        let map = image_of(60);
        let needed = {
            let setup = Setup::small();
            setup.tree.build(&map).await.unwrap().written.nodes
        };
        for puts in 0..=needed {
            for fails_sync in [false, true] {
                let store = Arc::new(Failing {
                    inner: MemoryNodes::new(),
                    puts_left: puts.into(),
                    fails_sync,
                });
                let tree = Tree::small(store, Arc::new(NodeCache::new(0)), tree_keys());
                let built = tree.build(&map).await;
                assert_eq!(
                    built.is_ok(),
                    puts == needed && !fails_sync,
                    "{puts} {fails_sync}"
                );
            }
        }
    });
}

/// A caller that goes on after a failure gets no version that lacks what failed.
#[test]
fn an_editor_that_failed_makes_no_version() {
    run(async {
        let map = image_of(60);
        let store = Arc::new(Failing {
            inner: MemoryNodes::new(),
            puts_left: 3.into(),
            fails_sync: false,
        });
        let tree = Tree::small(store.clone(), Arc::new(NodeCache::new(0)), tree_keys());
        let mut editor = tree.edit(Root::EMPTY).await.unwrap();
        let mut failures = Vec::new();
        for (key, value) in &map {
            if let Err(error) = editor.put(key, value).await {
                failures.push(error);
                store
                    .puts_left
                    .store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let (first, rest) = failures.split_first().unwrap();
        assert_eq!(*first, TreeError::NoSpace);
        assert!(rest.iter().all(|error| *error == TreeError::Broken));
        assert_eq!(editor.finish().await, Err(TreeError::Broken));
    });
}
