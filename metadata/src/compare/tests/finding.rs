//! Paths as people write them, and looking through directories.

use std::collections::BTreeSet;

use super::*;
use crate::stat::FileKind;

#[test]
fn paths_are_read_strictly() {
    let cases: [(&[u8], Option<&[u8]>); 9] = [
        (b"", Some(b"")),
        (b"/", Some(b"")),
        (b"//a///b/", Some(b"a/b")),
        (b"\xff/...", Some(b"\xff/...")),
        (b"a/../b", None),
        (b"./a", None),
        (b"a\0", None),
        (&[b'x'; 256], None),
        (&[b'x', b'/'].repeat(PATH_BYTES_MAX), None),
    ];
    for (text, path) in cases {
        assert_eq!(
            parse_path(text).ok().as_deref(),
            path,
            "{}",
            text.escape_ascii()
        );
    }
    let within = |path: &str, top: &str| is_within(path.as_bytes(), top.as_bytes());
    assert!(within("a/b", "a") && within("a", "a") && within("a", "") && within("", ""));
    assert!(!within("ab", "a") && !within("a", "a/b") && !within("b/a", "a"));
}

#[test]
fn what_a_path_leads_to_is_told() {
    run(async {
        let mut world = World::new();
        let script = ["mkdir d", "write d/f x", "symlink d/l f"];
        world.script(&script).await;
        let root = world.freeze().await;
        let snapshot = world.snapshot(root);
        for (path, found) in [
            ("", FileKind::Directory),
            ("d/f", FileKind::File),
            ("/d//l", FileKind::Symlink),
        ] {
            let Ok(Resolved::Found(record)) = snapshot.resolve(path.as_bytes()).await else {
                panic!("{path}");
            };
            assert_eq!(record.stat.kind, found);
        }
        for path in ["x", "d/x", "x/y"] {
            let resolved = snapshot.resolve(path.as_bytes()).await;
            assert_eq!(resolved, Ok(Resolved::Missing), "{path}");
        }
        for (path, bytes, kind) in [
            ("d/f/x", 3, FileKind::File),
            ("d/l/x/y", 3, FileKind::Symlink),
        ] {
            let resolved = snapshot.resolve(path.as_bytes()).await;
            assert_eq!(resolved, Ok(Resolved::Through { bytes, kind }), "{path}");
        }
    });
}

async fn all(mut finder: Finder) -> Vec<Found> {
    let mut found = Vec::new();
    while let Some(one) = finder.next().await.unwrap() {
        found.push(one);
    }
    found
}

#[test]
fn everything_is_found_from_everywhere() {
    run(async {
        let mut world = World::new();
        let mut lines = Vec::new();
        for path in ["a", "a/b", "a/b/c", "a/d", "e"] {
            lines.push(format!("mkdir {path}"));
            lines.extend((0..3).map(|number| format!("write {path}/f{number} x")));
        }
        // More than is read ahead.
        lines.extend((0..400).map(|number| format!("write e/many{number} x")));
        lines.push("ln e/many0 a/link".into());
        world.script(&lines).await;
        let root = world.freeze().await;
        let snapshot = world.snapshot(root);
        let made = |line: &String| {
            let mut words = line.split(' ').skip(1);
            let (one, two) = (words.next().unwrap(), words.next().unwrap_or_default());
            if line.starts_with("ln") { two } else { one }
                .as_bytes()
                .to_vec()
        };
        let wanted: BTreeSet<Vec<u8>> = lines.iter().map(made).collect();

        let found = all(Finder::new(snapshot.clone(), InodeId::ROOT, b"")).await;
        let paths: BTreeSet<Vec<u8>> = found.iter().map(|one| one.path.clone()).collect();
        assert_eq!(paths, wanted);
        assert_eq!(paths.len(), found.len());
        for (at, one) in found.iter().enumerate() {
            if let Some(slash) = one.path.iter().rposition(|byte| *byte == b'/') {
                let dir = &one.path[..slash];
                assert!(found[..at].iter().any(|above| above.path == dir), "{one:?}");
            }
            let on = Finder::after(snapshot.clone(), InodeId::ROOT, b"", &one.path).await;
            assert_eq!(all(on.unwrap().unwrap()).await, found[at + 1..]);
        }
        // Below a directory.
        let dir = snapshot.lookup(b"a/b").await.unwrap().unwrap().stat.inode;
        let below = all(Finder::new(snapshot.clone(), dir, b"a/b")).await;
        assert_eq!(below.len(), 7);
        assert!(below.iter().all(|one| is_within(&one.path, b"a/b")));
        for (at, one) in below.iter().enumerate() {
            let on = Finder::after(snapshot.clone(), dir, b"a/b", &one.path).await;
            assert_eq!(all(on.unwrap().unwrap()).await, below[at + 1..]);
        }
        for bad in ["", "a/b", "a/x", "e/f0/x", "x"] {
            let none = Finder::after(snapshot.clone(), dir, b"a/b", bad.as_bytes()).await;
            assert!(none.unwrap().is_none(), "{bad}");
        }
    });
}

#[test]
fn counting_ends_where_it_is_told() {
    run(async {
        let mut world = World::new();
        world
            .script(&["write a 1", "write b 22", "write c 333"])
            .await;
        let root = world.freeze().await;
        let roots = (Root::EMPTY, root);
        for (limit, files, more) in [(2, 2, true), (3, 3, false)] {
            let counted = count(&world.tree, &world.hasher, roots, limit)
                .await
                .unwrap();
            assert_eq!(
                (counted.statistics.added.files, counted.more),
                (files, more)
            );
        }
    });
}

/// All of it is in memory, and still nobody is kept waiting for its end.
#[test]
fn long_work_lets_others_in() {
    run(async {
        let mut world = World::new();
        let lines: Vec<String> = (0..1000)
            .map(|number| format!("write f{number} x"))
            .collect();
        world.script(&lines).await;
        let root = world.freeze().await;
        let snapshot = world.snapshot(root);
        // Whatever has to be read has been read.
        let find = || all(Finder::new(snapshot.clone(), InodeId::ROOT, b""));
        find().await;
        let (found, turned) = turns(find()).await;
        assert_eq!(found.len(), 1000);
        assert!(turned >= 3, "{turned}");
        let roots = (Root::EMPTY, root);
        let differing = || changes(&world, roots, Options::default());
        differing().await;
        let (found, turned) = turns(differing()).await;
        assert_eq!(found.len(), 1000);
        assert!(turned >= 3, "{turned}");
    });
}
