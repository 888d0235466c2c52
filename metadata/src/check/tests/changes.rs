//! Images of which only what differs is read.

use super::*;
use crate::keyspace::image::ImageKey;

/// A commit of a tree, on top of another or of nothing.
async fn put(world: &World, root: Root, parent: Option<CommitId>) -> CommitId {
    let counters = world.layers.base().tree().counters(root).await.unwrap();
    let new = NewCommit {
        usage: Usage {
            bytes: counters.bytes,
            inodes: counters.inodes.saturating_sub(1),
        },
        parents: parent.into_iter().collect(),
        ..NewCommit::of_tree(root.name())
    };
    world
        .store
        .put_commit(world.workspace, new)
        .await
        .unwrap()
        .id
}

/// A session on a base with one of everything.
async fn furnished() -> (World, Root) {
    let mut world = World::new().await;
    let (dir, file) = world.furnish().await;
    world.make(dir, b"sub", Some(Node::Directory)).await;
    let (caller, now) = (Caller::root(), world.clock_now());
    world
        .run(|image| {
            let cx = Context {
                caller: &caller,
                now,
            };
            ops::link(image, cx, file, dir, b"third")
        })
        .await
        .unwrap();
    let root = world.snapshot().await;
    (world, root)
}

/// Values that a key may have instead of its own.
fn instead(key: &ImageKey, value: &Bytes, inodes: &[InodeId]) -> Vec<Option<Bytes>> {
    let mut all = vec![None];
    match key {
        ImageKey::Inode(inode) => {
            let record = InodeRecord::decode(*inode, value).unwrap();
            let mut other = record.clone();
            other.entries += 1;
            all.push(Some(other.encode()));
            let mut other = record.clone();
            other.stat.nlink += 1;
            all.push(Some(other.encode()));
            for parent in inodes {
                let mut other = record.clone();
                other.link = Some((*parent, Name::new(b"file").unwrap()));
                all.push(Some(other.encode()));
            }
        }
        ImageKey::Entry { .. } => {
            let entry = Entry::decode(value).unwrap();
            for inode in inodes {
                let other = Entry {
                    inode: *inode,
                    ..entry
                };
                all.push(Some(other.encode()));
            }
        }
        ImageKey::Block { .. } => {
            let gone = Block::chunk(ChunkId::new([3; 32]), 131_072);
            all.push(Some(crate::record::block::encode(&gone)));
        }
        _ => {}
    }
    all
}

/// Whatever is changed in an image, it is told of what differs if and only if it is told of the whole;
/// in a commit on top of another, and in a session over its base.
#[tokio::test]
async fn what_differs_is_checked_like_the_whole() {
    let (world, root) = furnished().await;
    let tree = world.layers.base().tree().clone();
    let mut pairs = Vec::new();
    let mut scan = tree.scan(root, &KeyRange::prefix(&[0]));
    while let Some(pair) = scan.next().await.unwrap() {
        pairs.push(pair);
    }
    let inode = |(key, _): &(Bytes, Bytes)| keys::decode(key).unwrap().inode();
    let mut inodes: Vec<InodeId> = pairs.iter().map(inode).collect();
    inodes.dedup();
    assert!(world.check().await.is_clean());
    let (mut wrong, mut right) = (0, 0);
    for (key, value) in &pairs {
        let decoded = keys::decode(key).unwrap();
        for other in instead(&decoded, value, &inodes) {
            let edited = tree.apply(root, [(key, other.clone())]).await.unwrap();
            if edited.root == root {
                continue;
            }
            // Alone, with nothing to compare it with: commits are read before sessions.
            let alone = put(&world, edited.root, None).await;
            let whole = world.check().await.is_clean();
            world
                .damage(&keyspace::commit(world.workspace, alone), None)
                .await;
            let first = put(&world, root, None).await;
            let second = put(&world, edited.root, Some(first)).await;
            let report = world.check().await;
            assert_eq!(report.is_clean(), whole, "{decoded:?} {other:?}");
            assert!(!problems(&report).contains(&format!("{first}")));
            for commit in [second, first] {
                let key = keyspace::commit(world.workspace, commit);
                world.damage(&key, None).await;
            }
            let open = [&keyspace::delta(world.session, 2)[..], key].concat();
            let tagged = match &other {
                Some(other) => [&[1], &other[..]].concat(),
                None => vec![0],
            };
            world.damage(&open, Some(&tagged)).await;
            let said = world.check().await;
            world.damage(&open, None).await;
            // What it says of its usage is wrong as well, if only that.
            assert!(whole || !said.is_clean(), "{decoded:?} {other:?}");
            wrong += u32::from(!whole);
            right += u32::from(whole);
        }
    }
    assert!(wrong > 50 && right < 5, "{wrong} {right}");
    assert!(world.check().await.is_clean());
}

/// A check costs what is distinct in trees, not the number of commits times the size of each.
#[tokio::test]
async fn a_check_reads_what_commits_share_once() {
    let mut world = World::new().await;
    let (dir, _) = world.furnish().await;
    let mut dirs = Vec::new();
    for number in 0..40 {
        let name = format!("{number:0100}");
        let sub = world
            .make(dir, name.as_bytes(), Some(Node::Directory))
            .await;
        for file in 0..10 {
            let name = format!("{file:0200}");
            world.make(sub, name.as_bytes(), None).await;
        }
        dirs.push(sub);
    }
    let root = world.snapshot().await;
    let mut last = put(&world, root, None).await;
    let before = world.nodes.gets();
    assert!(world.check().await.is_clean());
    let one = world.nodes.gets() - before;
    for number in 0..40_u64 {
        let name = format!("x{number}");
        world.make(dirs[3], name.as_bytes(), None).await;
        let root = world.snapshot().await;
        last = put(&world, root, Some(last)).await;
    }
    let before = world.nodes.gets();
    let report = world.check().await;
    assert!(report.is_clean(), "{}", problems(&report));
    assert_eq!(report.counts.trees, 41);
    let all = world.nodes.gets() - before;
    // Without sharing it would be 41 times as much. There is no cache here, so that each of the names
    // in the directory that changes is looked up from the root.
    assert!(all < 9 * one, "{one} {all}");
}

/// Who uses a damaged node or chunk is told with the paths.
#[tokio::test]
async fn uses_of_what_is_damaged_are_told() {
    let (mut world, root) = furnished().await;
    let first = put(&world, root, None).await;
    world.make(InodeId::ROOT, b"later", None).await;
    let later = world.snapshot().await;
    let second = put(&world, later, Some(first)).await;
    let report = world.check().await;
    assert!(report.is_clean() && report.uses.is_empty());
    let chunks = std::mem::take(&mut world.chunks);
    let report = world.check().await;
    let said = problems(&report);
    // Told where it is, and of all that have it.
    assert!(
        said.contains("(\"dir/file\"): block 0 needs chunk"),
        "{said}"
    );
    for of in [
        format!("commit {first} of workspace {}", world.workspace),
        format!("commit {second} of workspace {}", world.workspace),
        format!("session {}", world.session),
    ] {
        let used = (report.uses.iter()).filter(|used| used.of == of);
        let paths: Vec<_> = used.map(|used| used.path.clone().unwrap()).collect();
        assert!(paths.contains(&b"dir/file".to_vec()), "{of}: {paths:?}");
    }
    assert_eq!(report.uses_left_out, 0);
    world.chunks = chunks;
    // A session's own changes are looked at also where its base cannot be read.
    let file = world.make(InodeId::ROOT, b"own", None).await;
    world.write(file, 0, Bytes::from(vec![7; 100_000])).await;
    world.flush().await;
    let id = later.id().unwrap();
    let right = world.nodes.peek(id).unwrap();
    world.nodes.damage(id, None);
    let chunks = std::mem::take(&mut world.chunks);
    let said = problems(&world.check().await);
    let part = format!("session {}, inode {file} (\"own\"): block 0", world.session);
    assert!(said.contains(&part), "{said}");
    world.chunks = chunks;
    let nodes: &dyn crate::tree::NodeStore = &*world.nodes;
    nodes.put(id, right.bytes).await.unwrap();
    let id = root.id().unwrap();
    world.nodes.damage(id, None);
    let report = world.check().await;
    let used = report.uses.iter().find(|used| used.what.contains("node"));
    assert!(used.is_some(), "{report:?}");
}
