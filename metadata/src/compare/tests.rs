//! Comparisons tell what a person would who looks at both versions.

use std::task::{Context, Poll, Waker};

use super::*;
use crate::record::commit::{Statistics, Volume};
use crate::tree::Root;
use world::World;

mod cost;
mod finding;
pub(crate) mod naive;
pub(crate) mod random;
mod reading;
pub(crate) mod world;

fn run<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.build().unwrap().block_on(test)
}

/// What a future comes to, and how often it let others have the thread.
pub(crate) async fn turns<T>(work: impl Future<Output = T>) -> (T, usize) {
    // Not those turns that the runtime makes it take.
    let mut work = std::pin::pin!(tokio::task::unconstrained(work));
    let mut turns = 0;
    loop {
        let mut context = Context::from_waker(Waker::noop());
        match work.as_mut().poll(&mut context) {
            Poll::Ready(result) => return (result, turns),
            Poll::Pending => turns += 1,
        }
        tokio::task::yield_now().await;
    }
}

async fn changes(world: &World, roots: (Root, Root), options: Options) -> Vec<PathChange> {
    let mut comparison = compare(&world.tree, &world.hasher, roots, options);
    let mut changes = Vec::new();
    while let Some(change) = comparison.next().await.unwrap() {
        changes.push(change);
    }
    changes
}

/// A change in one line: what, paths, and what of it differs.
fn line(change: &PathChange) -> String {
    let text = |path: &[u8]| match path {
        [] => ".".to_owned(),
        path => String::from_utf8(path.to_vec()).unwrap(),
    };
    let mut line = format!("{:?} ", change.what);
    if let Some(path) = &change.old_path {
        line += &format!("{} -> ", text(path));
    }
    line += &text(&change.path);
    let flags = [
        (change.content, "content"),
        (change.mode, "mode"),
        (change.owner, "owner"),
        (change.times && change.what == What::Modified, "times"),
        (change.linked, "linked"),
        (change.replaced.is_some(), "replaced"),
        (
            change.replaced.is_some_and(|replaced| replaced.remains),
            "remains",
        ),
    ];
    for (is_set, flag) in flags {
        line += &if is_set {
            format!(" {flag}")
        } else {
            String::new()
        };
    }
    if change.further > 0 {
        line += &format!(" +{}", change.further);
    }
    line
}

/// Cases, one a line: what is done before the old snapshot, what after it, what is told, and the
/// counts of added, changed and removed files and bytes.
async fn check(cases: &str) {
    for case in cases.lines().map(str::trim).filter(|case| !case.is_empty()) {
        let fields: Vec<&str> = case.split('|').map(str::trim).collect();
        let [before, after, expected, counts] = fields[..] else {
            panic!("{case}");
        };
        let parts = |field: &'static str, text: &str| {
            let parts = text.split(field).map(|part| part.trim().to_owned());
            parts
                .filter(|part| !part.is_empty())
                .collect::<Vec<String>>()
        };
        let mut world = World::new();
        world.script(&parts(";", before)).await;
        let old = world.freeze().await;
        world.script(&parts(";", after)).await;
        let new = world.freeze().await;
        let found = changes(&world, (old, new), Options::default()).await;
        // Shown wherever something else is.
        let without_times = |change: &PathChange| line(change).replace(" times", "");
        let mut found: Vec<String> = found.iter().map(without_times).collect();
        let mut expected = parts(",", expected);
        // The order of inodes is checked elsewhere.
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "{case}");
        let counted = statistics(&world.tree, &world.hasher, Some(old), new).await;
        assert_eq!(counts_of(counted.unwrap()), counts, "{case}");
    }
}

fn counts_of(statistics: Statistics) -> String {
    let text = |volume: Volume| format!("{}:{}", volume.files, volume.bytes);
    let Statistics {
        added,
        changed,
        removed,
    } = statistics;
    format!("+{} *{} -{}", text(added), text(changed), text(removed))
}

#[test]
fn single_files() {
    run(check(
        "
        | write f hi | Added f | +1:2 *0:0 -0:0
        write f hi | rm f | Removed f | +0:0 *0:0 -1:2
        write f hi | write f hello | Modified f content | +0:0 *1:5 -0:0
        fill f 0+70000 | fill f 40000+9 | Modified f content | +0:0 *1:70000 -0:0
        fill f 0+70000 | cut f 10 | Modified f content | +0:0 *1:10 -0:0
        write f | cut f 1000000 | Modified f content | +0:0 *1:1000000 -0:0
        write f hi | chmod f 600 | Modified f mode | +0:0 *1:0 -0:0
        write f hi | chown f 7 | Modified f owner | +0:0 *1:0 -0:0
        write f hi | mv f g | Renamed f -> g | +0:0 *1:0 -0:0
        write f hi | mv f g; write g ho; chmod g 600 | Renamed f -> g content mode | +0:0 *1:2 -0:0
        write f hi | touch f | | +0:0 *0:0 -0:0
        write f hi | mv f g; mv g f | | +0:0 *0:0 -0:0
        | chmod / 700 | Modified . mode | +0:0 *1:0 -0:0
        symlink s a | rm s; symlink s b | Modified s content replaced | +0:0 *1:1 -0:0
        dev d 1 | rm d; dev d 2 | Modified d content replaced | +0:0 *1:0 -0:0
        ",
    ));
}

/// Renames are known by inode. The same made again is nothing that anybody sees.
#[test]
fn what_stands_at_a_path_in_place_of_something_else() {
    run(check(
        "
        write f old | save f longer | Modified f content replaced | +0:0 *1:6 -0:0
        write f old | rm f; write f new | Modified f content replaced | +0:0 *1:3 -0:0
        fill f 0+40000 | rm f; fill f 0+40000; chmod f 600 | Modified f mode replaced | +0:0 *1:0 -0:0
        fill f 0+40000 | rm f; fill f 0+39000; cut f 40000 | Modified f content replaced | +0:0 *1:40000 -0:0
        write f same | save f same | | +0:0 *0:0 -0:0
        fill f 0+40000 | save f; fill f 0+40000 | | +0:0 *0:0 -0:0
        fill f 40000+9; cut f 90000 | rm f; fill f 7+9; cut f 90000 | Modified f content replaced | +0:0 *1:90000 -0:0
        write f x | rm f; mkdir f | TypeChanged f content mode replaced | +0:0 *1:0 -0:0
        mkdir f; write f/g x | rmtree f; symlink f abc | TypeChanged f content mode replaced, Removed f/g | +0:0 *1:3 -1:1
        write f 1 | mv f f.bak; write f 22 | Renamed f -> f.bak, Added f | +1:2 *1:0 -0:0
        write f 1; write g 22 | mv f g | Renamed f -> g replaced | +0:0 *1:0 -1:2
        write f 1; write g 22 | mv f h; mv g f; mv h g | Renamed f -> g, Renamed g -> f | +0:0 *2:0 -0:0
        ",
    ));
}

const TREE: &str = "mkdir d; mkdir d/e; write d/e/f 1; write d/g 2";

/// What moved with its directory is no change. What is under the same path in a directory that was
/// made anew is what was there; unless the old directory is elsewhere.
#[test]
fn directories() {
    let cases = "
        | TREE | Added d, Added d/e, Added d/e/f, Added d/g | +4:2 *0:0 -0:0
        TREE | rmtree d | Removed d, Removed d/e, Removed d/e/f, Removed d/g | +0:0 *0:0 -4:2
        TREE | mv d h | Renamed d -> h | +0:0 *1:0 -0:0
        TREE | mv d h; write h/e/f 3; mv h/g g | Renamed d -> h, Modified h/e/f content, Renamed d/g -> g | +0:0 *3:1 -0:0
        TREE | mkdir z; mv d/e z/y; mv z x | Added x, Renamed d/e -> x/y | +1:0 *1:0 -0:0
        TREE | touch d; chmod d/e 700; write d/e/h 1 | Modified d/e mode, Added d/e/h | +1:1 *1:0 -0:0
        TREE | rmtree d; mkdir d; mkdir d/e; write d/e/f 33; write d/h 4 | Modified d/e/f content replaced, Removed d/g, Added d/h | +1:1 *1:2 -1:1
        TREE | mv d o; mkdir d; mkdir d/e; mv o/e/f d/e/f; rmtree o | Removed d/g | +0:0 *0:0 -1:1
        TREE | mv d o; mkdir d; mkdir d/e; mv o/e/f d/e/f; rmtree o; write d/e/f 99 | Modified d/e/f content, Removed d/g | +0:0 *1:2 -1:1
        TREE | mv d o; mkdir d; write d/g 2 | Renamed d -> o, Added d, Added d/g | +2:1 *1:0 -0:0
        TREE | rmtree d/e; mv d d2; mkdir d; mv d2 d/e | Removed d/e, Removed d/e/f, Renamed d -> d/e, Added d | +1:0 *1:0 -2:1
        ";
    run(check(&cases.replace("TREE", TREE)));
}

/// A save breaks a link, and the other name is as it was.
#[test]
fn hard_links() {
    let cases = "
        | THREE | Added a +2 | +3:1 *0:0 -0:0
        THREE | rm a; rm b; rm c | Removed a +2 | +0:0 *0:0 -3:1
        write a 1 | ln a b; ln a c | Added b linked +1 | +2:0 *0:0 -0:0
        THREE | rm a | Removed a linked | +0:0 *0:0 -1:0
        THREE | rm b; rm c | Removed b linked +1 | +0:0 *0:0 -2:0
        THREE | write b 22 | Modified a content +2 | +0:0 *3:2 -0:0
        THREE | write b 22; mv b d | Modified a content +1, Renamed b -> d content | +0:0 *3:2 -0:0
        THREE | write b 22; mv a d; rm c | Modified b content, Renamed a -> d content, Removed c content linked | +0:0 *2:2 -1:0
        THREE | mv a d; mv b e | Renamed a -> d +1 | +0:0 *2:0 -0:0
        TWO | mv a z; ln b aa; write b 22 | Modified b content, Renamed a -> z content, Added aa content linked | +1:0 *2:2 -0:0
        THREE | rm a; ln b a | | +0:0 *0:0 -0:0
        TWO | save a 22 | Modified a content replaced remains | +0:0 *1:2 -0:0
        TWO | save b 22 | Modified b content replaced remains | +0:0 *1:2 -0:0
        TWO | save a 22; write b 333 | Modified a content replaced remains, Modified b content | +0:0 *2:5 -0:0
        write a 1; write b 22 | rm b; ln a b | Modified b content replaced | +0:0 *1:1 -0:0
        write a 1; write b 1 | rm b; ln a b | | +0:0 *0:0 -0:0
        write a 1; ln a c; write b 22; ln b d | mv a b | Renamed a -> b replaced remains | +0:0 *1:0 -1:0
        ";
    let cases = cases.replace("THREE", "write a 1; ln a b; ln b c");
    run(check(&cases.replace("TWO", "write a 1; ln a b")));
}

#[test]
fn times_are_a_change_if_they_are_asked_for() {
    run(async {
        let mut world = World::new();
        let before = [
            "write f 1",
            "mkdir d",
            "mkdir e",
            "write e/f 1",
            "write g 1",
        ];
        world.script(&before).await;
        let old = world.freeze().await;
        world
            .script(&["touch f", "touch d", "touch e", "rm e/f", "save g 1"])
            .await;
        let new = world.freeze().await;
        let found = changes(
            &world,
            (old, new),
            Options {
                times: true,
                ..Options::default()
            },
        )
        .await;
        let found: Vec<String> = found.iter().map(line).collect();
        let expected = [
            "Modified f times",
            "Modified d times",
            "Removed e/f",
            "Modified g times replaced",
        ];
        assert_eq!(found, expected);
    });
}

#[test]
fn everything_is_new_against_nothing() {
    run(async {
        let mut world = World::new();
        let empty = world.freeze().await;
        world
            .script(&["mkdir d", "write d/f 123", "symlink s abcd"])
            .await;
        let new = world.freeze().await;
        for (old, root) in [(Some(empty), empty), (None, Root::EMPTY)] {
            let counted = statistics(&world.tree, &world.hasher, old, new)
                .await
                .unwrap();
            assert_eq!(counted.added, Volume { files: 3, bytes: 7 });
            assert_eq!((counted.changed, counted.removed), Default::default());
            let found = changes(&world, (new, root), Options::default()).await;
            let found: Vec<String> = found.iter().map(line).collect();
            assert_eq!(found, ["Removed d", "Removed d/f", "Removed s"]);
        }
        assert_eq!(changes(&world, (new, new), Options::default()).await, []);
    });
}

/// All fields, once.
#[test]
fn a_replaced_file_names_both_inodes() {
    run(async {
        let mut world = World::new();
        world.script(&["mkdir d", "write d/f 1"]).await;
        let was = world.find("d/f").await.unwrap();
        let old = world.freeze().await;
        world
            .script(&["rm d/f", "symlink d/f target", "chown d/f 5"])
            .await;
        let is = world.find("d/f").await.unwrap();
        let new = world.freeze().await;
        let expected = PathChange {
            what: What::TypeChanged,
            path: b"d/f".to_vec(),
            old_path: None,
            inode: is,
            kind: crate::stat::FileKind::Symlink,
            replaced: Some(Replaced {
                inode: was,
                kind: crate::stat::FileKind::File,
                size: 1,
                remains: false,
            }),
            content: true,
            mode: true,
            owner: true,
            times: true,
            old_size: Some(1),
            new_size: Some(6),
            further: 0,
            linked: false,
        };
        assert_eq!(
            changes(&world, (old, new), Options::default()).await,
            [expected]
        );
        assert_ne!(is, InodeId::ROOT);
    });
}
