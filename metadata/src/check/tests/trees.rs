//! Trees of sessions and commits, whole and damaged.

use super::*;

/// A session and a fork with the same base, over which one has changed something, and a commit of it.
async fn with_history() -> (World, SessionId, CommitId, Root) {
    let mut world = World::new().await;
    let (dir, _) = world.furnish().await;
    for number in 0..400 {
        let name = format!("{number:0200}");
        world.make(dir, name.as_bytes(), None).await;
    }
    let root = world.snapshot().await;
    let (commit, _) = world.remember().await;
    let fork = world.fork().await;
    world.make(dir, b"later", None).await;
    world.flush().await;
    (world, fork, commit, root)
}

/// A base and a commit's tree are read once, and all is well.
#[tokio::test]
async fn trees_are_read_once() {
    let (world, _, _, root) = with_history().await;
    let counts = world.check().await.counts;
    let reads = world.nodes.gets();
    assert!(world.check().await.is_clean());
    let reads = world.nodes.gets() - reads;
    assert_eq!((counts.trees, counts.sessions, counts.commits), (1, 2, 2));
    let id = root.id().unwrap();
    assert!(
        world
            .layers
            .base()
            .tree()
            .counters(root)
            .await
            .unwrap()
            .entries
            > 800
    );
    // The session that has changes over it does not share what was read.
    for _ in 0..10 {
        world.fork().await;
    }
    let before = world.nodes.gets();
    let report = world.check().await;
    assert!(report.is_clean(), "{}", problems(&report));
    assert_eq!(world.nodes.gets() - before, reads, "{id}");
}

/// A node that is missing or flipped is told with every session and commit that has it.
#[tokio::test]
async fn damaged_nodes_are_told_with_who_has_them() {
    let (world, fork, commit, root) = with_history().await;
    let mut walk = world.layers.base().tree().walk(root);
    let mut nodes = Vec::new();
    while let Some(node) = walk.next(|_| false).await.unwrap() {
        nodes.push(node.id());
    }
    assert!(nodes.len() > 3);
    for id in nodes {
        let right = world.nodes.peek(id).unwrap();
        let mut flipped = right.bytes.to_vec();
        flipped[40] ^= 1;
        for (bytes, what) in [(None, "is missing"), (Some(flipped.into()), "is damaged")] {
            world.nodes.damage(id, None);
            if bytes.is_some() {
                let nodes: &dyn crate::tree::NodeStore = &*world.nodes;
                nodes.put(id, right.bytes.clone()).await.unwrap();
                world.nodes.damage(id, bytes);
            }
            let said = problems(&world.check().await);
            for of in [
                format!("session {}", world.session),
                format!("session {fork}"),
                format!("commit {commit} of workspace {}", world.workspace),
            ] {
                let part = format!("{of}: tree node {id} {what}");
                assert!(said.contains(&part), "{said} does not say {part}");
            }
        }
        world.nodes.damage(id, None);
        let nodes: &dyn crate::tree::NodeStore = &*world.nodes;
        nodes.put(id, right.bytes).await.unwrap();
        assert!(world.check().await.is_clean());
    }
}

/// What a commit says, and what its image is.
#[tokio::test]
async fn contradicting_commits_are_told() {
    let (mut world, fork, _, root) = with_history().await;
    let put = async |world: &World, root: Root, (usage, conflicts)| {
        let new = NewCommit {
            usage,
            conflicts,
            message: "x".into(),
            ..NewCommit::of_tree(root.name())
        };
        let made = world.store.put_commit(world.workspace, new).await;
        let id = made.unwrap().id;
        let said = problems(&world.check().await);
        let key = keyspace::commit(world.workspace, id);
        world.damage(&key, None).await;
        assert!(world.check().await.is_clean());
        assert!(said.contains(&format!("commit {id}")), "{said}");
        said
    };
    let wrong = Usage {
        bytes: 1,
        inodes: 2,
    };
    let said = put(&world, root, (wrong, 3)).await;
    let part = "says that its image holds 3 conflicts, but it holds 0";
    assert!(said.contains(part), "{said}");
    assert!(said.contains("says that its image uses 1 bytes"), "{said}");
    // Chunks that are gone.
    let chunks = std::mem::take(&mut world.chunks);
    let said = problems(&world.check().await);
    assert!(said.contains("which is missing"), "{said}");
    world.chunks = chunks;
    // A tree that is right, and no image.
    let tree = world.layers.base().tree().clone();
    let inode = world.made.last().copied().unwrap_or(InodeId::ROOT);
    let attributes = tree.get(root, &keys::inode(InodeId::ROOT)).await.unwrap();
    let orphan = [
        (keys::inode(InodeId::ROOT), attributes.unwrap()),
        (keys::block(InodeId::new(77), 0), Bytes::from_static(&[9])),
    ];
    let built = tree.build(orphan).await.unwrap();
    let usage = Usage {
        bytes: built.counters.bytes,
        inodes: built.counters.inodes - 1,
    };
    let said = put(&world, built.root, (usage, 0)).await;
    for part in [
        "inode 000000000000004d",
        "has content but no attributes",
        "block 0",
    ] {
        assert!(said.contains(part), "{said} does not say {part}");
    }
    // A cut and a damaged key have no place in a tree.
    for (key, part) in [
        (keys::cut(inode, 3), "belongs into a layer"),
        (vec![1], "tree holds key"),
    ] {
        let built = tree.build([(key, Bytes::new())]).await.unwrap();
        let usage = Usage {
            bytes: built.counters.bytes,
            inodes: built.counters.inodes.saturating_sub(1),
        };
        let said = put(&world, built.root, (usage, 0)).await;
        assert!(said.contains(part), "{said}");
    }
    // A fork that has nothing but the base says how much that is.
    let flush = keyspace::session_flush(fork);
    let said = crate::record::session::FlushRecord::default();
    let parts = [&*format!("session {fork}"), "says that it uses 0 bytes"];
    told(&world, &flush, &said.encode(), &parts).await;
}
