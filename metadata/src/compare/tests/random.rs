//! Random histories, compared with the naive comparison and with what the paths show.

use std::collections::{BTreeMap, BTreeSet};

use base::Rng;

use super::naive::{Whole, expected};
use super::*;
use crate::stat::FileKind;

/// How often links are made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    Never,
    Sometimes,
    Often,
}

/// A random line for [`World::line`].
fn random_line(rng: &Rng, links: Links) -> String {
    let pick = |of: u64| rng.u64() % of;
    let name = || ["a", "b", "c"][usize::try_from(pick(3)).unwrap()];
    let path = || {
        let mut path = name().to_owned();
        for _ in 0..pick(if links == Links::Often { 2 } else { 4 }) {
            path += &format!("/{}", name());
        }
        path
    };
    let (one, two, number) = (path(), path(), pick(4));
    if links == Links::Often && pick(3) == 0 {
        return match pick(3) {
            0 => format!("mv {one}{number} {two}{}", pick(4)),
            _ => format!("ln {one} {two}{number}"),
        };
    }
    match pick(22) {
        0..4 => format!("mkdir {one}"),
        4..6 => format!("write {one} {number}"),
        6..8 => format!("save {one} {number}"),
        8 => format!("fill {one} {}+{}", number * 20_000, 1 + number * 30_000),
        9 => format!("cut {one} {}", number * 25_000),
        10..14 => format!("mv {one} {two}"),
        14 => format!("rmtree {one}"),
        15..17 => format!("rm {one}"),
        17 => format!("chmod {one} {}", 600 + number),
        18 => format!("touch {one}"),
        19 if links != Links::Never => format!("ln {one} {two}"),
        20 if links != Links::Never => format!("ln {one} {one}{number}"),
        19 => format!("symlink {one} {number}"),
        20 => format!("dev {one} {number}"),
        _ => format!("chown {one} {number}"),
    }
}

/// Snapshots of a random history, and what was done.
pub(crate) async fn history(seed: u64, links: Links) -> (World, Vec<Root>, Vec<String>) {
    let rng = Rng::seeded(seed);
    let (mut world, mut roots, mut script) = (World::new(), Vec::new(), Vec::new());
    for lines in [60, 6, 25] {
        for _ in 0..lines {
            let line = random_line(&rng, links);
            if world.line(&line).await.is_ok() {
                script.push(line);
            }
        }
        roots.push(world.freeze().await);
        script.push("-".into());
    }
    (world, roots, script)
}

/// All pairs of three, in both orders.
const PAIRS: [(usize, usize); 6] = [(0, 1), (1, 2), (0, 2), (1, 0), (2, 1), (2, 0)];

#[test]
fn a_comparison_tells_what_the_naive_one_tells() {
    run(async {
        let mut seen = BTreeMap::new();
        let links = [Links::Never, Links::Sometimes, Links::Often];
        for seed in 0..240 {
            let (world, roots, script) =
                history(seed, links[usize::try_from(seed % 3).unwrap()]).await;
            let options = Options {
                times: seed % 4 == 0,
                ..Options::default()
            };
            for (old, new) in PAIRS {
                let (old, new) = (roots[old], roots[new]);
                let wholes = (
                    Whole::read(&world, old).await,
                    Whole::read(&world, new).await,
                );
                let wanted = expected(&wholes.0, &wholes.1, options);
                let found = changes_remembering(&world, (old, new), options, seed).await;
                let lines = |changes: &[PathChange]| changes.iter().map(line).collect::<Vec<_>>();
                let (lined, wanted_lines) = (lines(&found), lines(&wanted));
                assert_eq!(lined, wanted_lines, "seed {seed}: {script:#?}");
                assert_eq!(found, wanted, "seed {seed}: {script:#?}");
                assert!(found.is_sorted_by_key(|change| change.inode));
                check_counts(&world, (old, new), (&wholes.0, &wholes.1), seed).await;
                for change in found {
                    let replaced = change.replaced.map(|replaced| replaced.remains);
                    let further = change.further > 0;
                    let kind = (change.what, replaced, change.linked, further);
                    *seen.entry(kind).or_insert(0) += 1;
                }
            }
        }
        // What the histories have to have shown, so that the comparison means something.
        for what in [What::Added, What::Removed, What::Renamed, What::Modified] {
            for further in [false, true] {
                let times = seen
                    .get(&(what, None, false, further))
                    .copied()
                    .unwrap_or(0);
                assert!(times > 0, "{what:?}, further {further}: {seen:?}");
            }
        }
        for what in [What::Modified, What::TypeChanged, What::Renamed] {
            for remains in [false, true] {
                let some = seen.get(&(what, Some(remains), false, false));
                assert!(some.is_some(), "{what:?}, remains {remains}: {seen:?}");
            }
        }
        for what in [What::Added, What::Removed] {
            assert!(
                seen.contains_key(&(what, None, true, false)),
                "{what:?}: {seen:?}"
            );
        }
    });
}

/// The changes, found with caches that are sometimes too small for anything.
async fn changes_remembering(
    world: &World,
    roots: (Root, Root),
    options: Options,
    seed: u64,
) -> Vec<PathChange> {
    let mut comparison = compare(&world.tree, &world.hasher, roots, options);
    if seed % 5 > 2 {
        comparison.pair.known_max = 1;
        comparison.old_paths.bytes_max = 1;
        comparison.new_paths.bytes_max = 70;
    }
    let mut changes = Vec::new();
    while let Some(change) = comparison.next().await.unwrap() {
        changes.push(change);
    }
    changes
}

/// The counts tell how many names there are more.
async fn check_counts(world: &World, roots: (Root, Root), wholes: (&Whole, &Whole), seed: u64) {
    let counted = statistics(&world.tree, &world.hasher, Some(roots.0), roots.1).await;
    let counted = counted.unwrap();
    let names = |whole: &Whole| u64::try_from(whole.entries.len()).unwrap();
    assert_eq!(
        names(wholes.0) + counted.added.files,
        names(wholes.1) + counted.removed.files,
        "seed {seed}"
    );
}

/// What a path shows.
type Shown = (FileKind, u32, u32, Vec<u8>);

/// Everything by path.
async fn paths(world: &World, root: Root) -> BTreeMap<Vec<u8>, Shown> {
    let whole = Whole::read(world, root).await;
    let snapshot = world.snapshot(root);
    let mut paths = BTreeMap::new();
    for record in whole.records.values() {
        let shown = (
            record.stat.kind,
            record.stat.mode,
            record.stat.uid,
            match record.stat.kind {
                FileKind::CharDevice => record.stat.device.minor.to_be_bytes().to_vec(),
                _ => world.content(&snapshot, record, 0..u64::MAX).await,
            },
        );
        let first = record.link.iter().cloned().map(Some);
        let first = first.chain((record.stat.inode == InodeId::ROOT).then_some(None));
        paths.extend(first.map(|place| (whole.path(place.as_ref()), shown.clone())));
    }
    paths
}

/// The path above, and the name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let at = path.iter().rposition(|byte| *byte == b'/');
    at.map_or((&[], path), |at| (&path[..at], &path[at + 1..]))
}

/// Where in the old snapshot a path of the new one comes from, as the changes tell.
fn origin(path: &[u8], changes: &BTreeMap<Vec<u8>, &PathChange>) -> Option<Vec<u8>> {
    let told = changes.get(path).copied();
    match told.map(|change| (change.what, &change.old_path)) {
        Some((What::Added, _)) => return None,
        Some((_, Some(old_path))) => return Some(old_path.clone()),
        _ if path.is_empty() => return Some(Vec::new()),
        _ => {}
    }
    let (dir, name) = split(path);
    let mut path = origin(dir, changes)?;
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    Some(path)
}

/// Without hard links: from the old paths and the changes follow the new paths and what they show,
/// and no change could be left out.
#[test]
fn the_changes_lead_from_the_old_paths_to_the_new() {
    run(async {
        let mut told = 0;
        for seed in 1000..1080 {
            let (world, roots, script) = history(seed, Links::Never).await;
            for (old, new) in PAIRS {
                let found = changes(&world, (roots[old], roots[new]), Options::default()).await;
                let (old, new) = (
                    paths(&world, roots[old]).await,
                    paths(&world, roots[new]).await,
                );
                told += found.len();
                explain(&old, &new, &found, &format!("seed {seed}: {script:#?}"));
            }
        }
        assert!(told > 1000, "{told}");
    });
}

fn explain(
    old: &BTreeMap<Vec<u8>, Shown>,
    new: &BTreeMap<Vec<u8>, Shown>,
    found: &[PathChange],
    context: &str,
) {
    let text = |path: &[u8]| String::from_utf8(path.to_vec()).unwrap();
    let (removed, is): (Vec<&PathChange>, Vec<&PathChange>) = found
        .iter()
        .partition(|change| change.what == What::Removed);
    let count = is.len();
    let is: BTreeMap<Vec<u8>, &PathChange> = is
        .into_iter()
        .map(|change| (change.path.clone(), change))
        .collect();
    assert_eq!(is.len(), count, "a path is told once: {context}");
    let mut origins = BTreeSet::new();
    let mut replaced = 0;
    for (path, shown) in new {
        let change = is.get(path).copied();
        let from = origin(path, &is);
        let Some(from) = from else {
            let added = change.is_some_and(|change| change.what == What::Added);
            assert!(added, "{}: {context}", text(path));
            continue;
        };
        let was = old.get(&from);
        let was = was.unwrap_or_else(|| panic!("{} was not there: {context}", text(&from)));
        let differs = (was.3 != shown.3, was.1 != shown.1, was.2 != shown.2);
        let what = change.map(|change| change.what);
        match change {
            None => assert_eq!(was, shown, "{}: {context}", text(path)),
            Some(change) => {
                let told = (change.content, change.mode, change.owner);
                // Content may be told to differ if it was written anew.
                let content = told.0 || !differs.0;
                assert!(content, "{}: {context}", text(path));
                assert_eq!((told.1, told.2), (differs.1, differs.2), "{context}");
                let typed = what == Some(What::TypeChanged);
                assert_eq!(typed, was.0 != shown.0, "{}: {context}", text(path));
                let is_renamed = what == Some(What::Renamed);
                replaced += usize::from(is_renamed && change.replaced.is_some());
                let seen = is_renamed || told != (false, false, false);
                assert!(seen, "{} is no change: {context}", text(path));
            }
        }
        assert!(origins.insert(from), "{context}");
    }
    let removed: BTreeSet<&[u8]> = removed.iter().map(|change| &change.path[..]).collect();
    for path in old.keys().filter(|path| !origins.contains(*path)) {
        if !removed.contains(&path[..]) {
            // Something was renamed over it.
            replaced = replaced
                .checked_sub(1)
                .unwrap_or_else(|| panic!("{} is not told: {context}", text(path)));
        }
    }
    assert_eq!(replaced, 0, "{context}");
    let gone = removed.iter().filter(|path| origins.contains(**path));
    assert_eq!(gone.count(), 0, "removed and still there: {context}");
}
