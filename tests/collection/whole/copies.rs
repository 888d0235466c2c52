//! What the model knows: whole copies of trees, and what merges and restores make of them, path by path.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use base::{Rng, SessionId};
use metadata::merge::Policy;

/// Two files in each directory.
pub(super) const PATHS: [&str; 6] = ["a", "b", "d/a", "d/b", "e/a", "e/b"];

/// Directories, which are always there.
pub(super) const DIRECTORIES: [&str; 2] = ["d", "e"];

/// Bytes of a file: two blocks, each a chunk; the first has one of a few contents, the second its own.
const BLOCK_BYTES: usize = 128 * 1024;
const END_BYTES: usize = 20_000;
const BEGINNINGS: u64 = 3;

/// The content of a file that was made and not written.
pub(super) const EMPTY: u64 = u64::MAX;

/// A whole copy of a tree: the number of each file's content.
pub(super) type Copied = BTreeMap<&'static str, u64>;

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let rng = Rng::seeded(seed);
    let words = (0..bytes / 8).flat_map(|_| rng.u64().to_be_bytes());
    words.collect()
}

static BEGINNING: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let each = 0..BEGINNINGS;
    each.map(|number| noise(1 + number, BLOCK_BYTES)).collect()
});

pub(super) fn content(number: u64) -> Vec<u8> {
    if number == EMPTY {
        return Vec::new();
    }
    let beginning = usize::try_from(number % BEGINNINGS).unwrap();
    let mut content = BEGINNING[beginning].clone();
    content.extend(noise(1000 + number, END_BYTES - 8));
    content.extend(number.to_be_bytes());
    content
}

/// The number of a content, if it is one.
pub(super) fn number_in(data: &[u8]) -> Option<u64> {
    let number = match data.last_chunk() {
        Some(end) => u64::from_be_bytes(*end),
        None => EMPTY,
    };
    (content(number) == data).then_some(number)
}

/// What a merge comes to; `None` if something clashes and the policy is to fail.
pub(super) fn merged(
    base: &Copied,
    ours: &Copied,
    theirs: &Copied,
    policy: Policy,
) -> Option<Copied> {
    let mut merged = Copied::new();
    for path in PATHS {
        let [b, o, t] = [base, ours, theirs].map(|tree| tree.get(path).copied());
        let taken = if o == b {
            t
        } else if t == b || o == t || policy == Policy::Ours {
            o
        } else if policy == Policy::Theirs {
            t
        } else {
            return None;
        };
        merged.extend(taken.map(|number| (path, number)));
    }
    Some(merged)
}

/// What a restore of `paths` makes of a tree; of all of it if there are none.
pub(super) fn restored(tree: &Copied, version: &Copied, paths: &[&str]) -> Copied {
    if paths.is_empty() {
        return version.clone();
    }
    let is_in = |file: &str| {
        paths.iter().any(|path| {
            let rest = file.strip_prefix(path);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    };
    let others = tree.iter().filter(|(file, _)| !is_in(file));
    let taken = version.iter().filter(|(file, _)| is_in(file));
    others
        .chain(taken)
        .map(|(file, number)| (*file, *number))
        .collect()
}

/// A commit as the model looks for merge bases.
#[derive(Clone, Debug)]
pub(super) struct Node<Id, Time> {
    pub(super) parents: Vec<Id>,
    pub(super) time: Time,
    /// The session that made it.
    pub(super) by: Option<SessionId>,
}

/// What two versions came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin<Id> {
    Commit(Id),
    Empty,
    /// Nothing that is known: they cannot be merged.
    Unknown,
}

/// The newest of the best common ancestors of what a session stands on and another commit, by the words
/// of `docs/design/0004-history.md`. Without one they come from the empty version if the session itself
/// began with it, or both did.
pub(super) fn origin_of<Id: Copy + Ord, Time: Copy + Ord>(
    graph: &BTreeMap<Id, Node<Id, Time>>,
    (by, session): (SessionId, Id),
    other: Id,
) -> Origin<Id> {
    let ancestors = |of: Id| {
        let (mut all, mut next) = (BTreeSet::new(), vec![of]);
        while let Some(id) = next.pop() {
            if all.insert(id) {
                next.extend(&graph[&id].parents);
            }
        }
        all
    };
    let (of_session, of_other) = (ancestors(session), ancestors(other));
    let common: BTreeSet<Id> = of_session.intersection(&of_other).copied().collect();
    let best = common.iter().filter(|id| {
        let mut others = common.iter().filter(|other| other != id);
        !others.any(|other| ancestors(*other).contains(id))
    });
    if let Some(newest) = best.max_by_key(|id| graph[id].time) {
        return Origin::Commit(*newest);
    }
    let beginnings = |of: &BTreeSet<Id>| -> BTreeSet<SessionId> {
        let nodes = of.iter().map(|id| &graph[id]);
        let first = nodes.filter(|node| node.parents.is_empty());
        first.filter_map(|node| node.by).collect()
    };
    let (ours, theirs) = (beginnings(&of_session), beginnings(&of_other));
    if ours.contains(&by) || (!ours.is_empty() && !theirs.is_empty()) {
        return Origin::Empty;
    }
    Origin::Unknown
}
