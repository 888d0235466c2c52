//! What `ls`, `cat` and `find` at a snapshot need.

use std::ops::Range;

use super::world::BLOCK_BYTES;
use super::*;
use crate::record::inode::InodeRecord;
use crate::stat::FileKind;

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

impl World {
    pub(super) fn snapshot(&self, root: Root) -> Snapshot {
        Snapshot::new(self.tree.clone(), self.hasher.clone(), root)
    }

    /// Content as its pieces make it up.
    pub(super) async fn content(
        &self,
        snapshot: &Snapshot,
        record: &InodeRecord,
        range: Range<u64>,
    ) -> Vec<u8> {
        let start = range.start;
        let mut pieces = snapshot.read(record, BLOCK_BYTES, range);
        let mut content = Vec::new();
        while let Some(piece) = pieces.next().await.unwrap() {
            assert_eq!(piece.offset, start + u64::try_from(content.len()).unwrap());
            assert!(piece.length > 0);
            let length = index(piece.length);
            match piece.source {
                Source::Hole => content.resize(content.len() + length, 0),
                Source::Bytes(bytes) => {
                    assert_eq!(bytes.len(), length);
                    content.extend_from_slice(&bytes);
                }
                Source::Chunk { id, offset } => {
                    let offset = usize::try_from(offset).unwrap();
                    content.extend_from_slice(&self.chunks[&id][offset..offset + length]);
                }
            }
        }
        content
    }
}

/// Equal names mean equal content, whatever the file: also a hole is not a file of zeros.
#[test]
fn content_has_a_name() {
    run(async {
        let mut world = World::new();
        world
            .script(&[
                "write a hello",
                "write b hello",
                "write c hellO",
                "write d",
                "cut d 100000",
                "fill e 0+70000",
                "fill f 0+70000",
                "fill g 0+70001",
                "write h",
            ])
            .await;
        let root = world.freeze().await;
        let snapshot = world.snapshot(root);
        let mut ids = Vec::new();
        for path in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            let record = snapshot.lookup(path.as_bytes()).await.unwrap().unwrap();
            let pieces = snapshot.read(&record, BLOCK_BYTES, 0..u64::MAX);
            ids.push(pieces.id().await.unwrap());
        }
        assert_eq!((ids[0], ids[4]), (ids[1], ids[5]));
        let different: std::collections::HashSet<_> = ids.iter().collect();
        assert_eq!(different.len(), 6);
    });
}

#[test]
fn content_is_made_up_of_pieces() {
    run(async {
        let x = |count: usize| vec![b'x'; count];
        let zeros = |count: usize| vec![0; count];
        let cases: [(&[&str], Vec<u8>); 9] = [
            (&["write f"], vec![]),
            (&["write f hello"], b"hello".to_vec()),
            (&["write f hello", "cut f 8"], b"hello\0\0\0".to_vec()),
            (&["write f hello", "cut f 2"], b"he".to_vec()),
            (&["cut f 100000"], zeros(100_000)),
            (&["fill f 0+70000"], x(70_000)),
            (&["fill f 90000+50"], [zeros(90_000), x(50)].concat()),
            (
                &[
                    "fill f 0+33000",
                    "cut f 20000",
                    "cut f 100000",
                    "fill f 70000+10000",
                ],
                [x(20_000), zeros(50_000), x(10_000), zeros(20_000)].concat(),
            ),
            // A chunk with patches over it.
            (
                &["cut f 32768", "fill f 0+20000", "fill f 30000+5"],
                [x(20_000), zeros(10_000), x(5), zeros(2763)].concat(),
            ),
        ];
        for (script, wanted) in cases {
            let mut world = World::new();
            world.script(&["write f"]).await;
            let mut root = Root::EMPTY;
            // Each line is written back before the next.
            for line in script {
                world.script(&[line]).await;
                root = world.freeze().await;
            }
            let snapshot = world.snapshot(root);
            let record = snapshot.lookup(b"f").await.unwrap().unwrap();
            let size = u64::try_from(wanted.len()).unwrap();
            assert_eq!(record.stat.size, size, "{script:?}");
            let ranges = [0, 1, 7, 19_999, 32_768, 65_537, size / 2, size, size + 9];
            for start in ranges {
                for end in ranges.into_iter().chain([u64::MAX]) {
                    let found = world.content(&snapshot, &record, start..end).await;
                    let inside = start.min(end).min(size)..end.min(size);
                    let part = &wanted[index(inside.start)..index(inside.end)];
                    assert!(found == part, "{script:?}, {start}..{end}");
                }
            }
        }
    });
}

#[test]
fn a_hole_of_any_size_is_one_piece() {
    run(async {
        let mut world = World::new();
        world.script(&["fill f 0+1", "cut f 140000000000000"]).await;
        let root = world.freeze().await;
        let snapshot = world.snapshot(root);
        let record = snapshot.lookup(b"f").await.unwrap().unwrap();
        let mut pieces = snapshot.read(&record, BLOCK_BYTES, 0..u64::MAX);
        let mut lengths = Vec::new();
        while let Some(piece) = pieces.next().await.unwrap() {
            lengths.push(piece.length);
        }
        assert!(lengths.len() <= 3, "{lengths:?}");
        assert_eq!(lengths.iter().sum::<u64>(), 140_000_000_000_000);
    });
}

#[test]
fn paths_lead_to_inodes_and_back() {
    run(async {
        let mut world = World::new();
        let script = [
            "mkdir d",
            "mkdir d/e",
            "write d/e/f 1",
            "ln d/e/f g",
            "ln g d/h",
            "symlink d/s e",
        ];
        world.script(&script).await;
        let root = world.freeze().await;
        let snapshot = world.snapshot(root);
        let find = async |path: &str| {
            let found = snapshot.lookup(path.as_bytes()).await.unwrap();
            found.map(|record| record.stat.inode)
        };
        for path in ["", "/", "d", "d/e", "/d//e/", "d/e/f", "g", "d/h", "d/s"] {
            let inode = world.find(path).await.unwrap();
            assert_eq!(find(path).await, Some(inode), "{path}");
            let mut paths = snapshot.paths_of(inode);
            let mut found = Vec::new();
            while let Some(path) = paths.next().await.unwrap() {
                found.push(String::from_utf8(path).unwrap());
            }
            assert_eq!(paths.next().await, Ok(None));
            let plain: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
            assert!(found.contains(&plain.join("/")), "{path}: {found:?}");
            let is_linked = ["d/e/f", "g", "d/h"].contains(&path);
            assert_eq!(found.len(), if is_linked { 3 } else { 1 });
        }
        let long = "x".repeat(300);
        for path in [
            "x", "d/x", "g/", "g/x", "d/s/f", ".", "d/..", "d/e/f/x", &long,
        ] {
            let wanted = (path == "g/").then_some(world.find("g").await.unwrap());
            assert_eq!(find(path).await, wanted, "{path}");
        }
        let none = InodeId::new(77);
        assert_eq!(snapshot.paths_of(none).next().await, Ok(None));
        assert_eq!(snapshot.attributes(none).await, Ok(None));
        let empty = world.snapshot(Root::EMPTY);
        assert_eq!(empty.lookup(b"").await, Ok(None));
        assert_eq!(empty.paths_of(InodeId::ROOT).next().await, Ok(None));
    });
}

#[test]
fn a_directory_is_listed_in_pages() {
    run(async {
        let mut world = World::new();
        world
            .script(&["mkdir d", "mkdir d/sub", "write d/sub/x", "write e"])
            .await;
        for number in 0..30 {
            world.script(&[format!("write d/{number}")]).await;
        }
        let root = world.freeze().await;
        let snapshot = world.snapshot(root);
        let dir = world.find("d").await.unwrap();
        for page in [1, 2, 7, 31, 100] {
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let listing = snapshot.list(dir, after.as_ref(), page).await.unwrap();
                assert!(listing.entries.len() <= page);
                after = listing.entries.last().map(|(name, _)| name.clone());
                found.extend(listing.entries);
                if !listing.more {
                    break;
                }
            }
            assert_eq!(found.len(), 31);
            let inodes: Vec<InodeId> = found.iter().map(|(_, entry)| entry.inode).collect();
            let records = snapshot.attributes_of(&inodes).await.unwrap();
            for ((name, entry), record) in found.iter().zip(records) {
                let path = format!("d/{name}");
                assert_eq!(entry.inode, world.find(&path).await.unwrap());
                assert_eq!(entry.kind == FileKind::Directory, path == "d/sub");
                assert_eq!(record.unwrap().link, Some((dir, name.clone())));
            }
        }
        // A name that is not there any more leads on all the same.
        let gone = Name::new(b"gone").unwrap();
        let rest = snapshot.list(dir, Some(&gone), 100).await.unwrap().entries;
        let hash = |name: &Name| world.hasher.hash(name.as_bytes());
        let behind = snapshot.list(dir, None, 100).await.unwrap().entries;
        let behind: Vec<_> = behind
            .into_iter()
            .filter(|(name, _)| hash(name) > hash(&gone))
            .collect();
        assert_eq!(rest, behind);
        let file = world.find("e").await.unwrap();
        assert_eq!(snapshot.list(file, None, 9).await, Ok(Listing::default()));
        let unknown = [InodeId::new(9), dir, InodeId::new(9)];
        let records = snapshot.attributes_of(&unknown).await.unwrap();
        let known: Vec<bool> = records.iter().map(Option::is_some).collect();
        assert_eq!(known, [false, true, false]);
    });
}
