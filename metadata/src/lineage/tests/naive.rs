//! The same questions, answered from the states alone, one line at a time.

use std::collections::BTreeSet;

use base::CommitId;

use super::model::{History, State, inside};
use crate::store::Walk;
use crate::text::{hunks, lines};

/// The directory of the old state that is where a directory of the new one is.
fn counterpart(old: &State, new: &State, dir: u64) -> Option<u64> {
    if dir == 1 || old.nodes.contains_key(&dir) {
        return Some(dir);
    }
    let node = &new.nodes[&dir];
    let above = counterpart(old, new, node.parent)?;
    let there = old.at(above, &node.name)?;
    (old.is_dir(there) && !new.nodes.contains_key(&there)).then_some(there)
}

/// What an inode was.
fn origin(old: &State, new: &State, inode: u64) -> Option<u64> {
    if inode == 1 || old.nodes.contains_key(&inode) {
        return Some(inode);
    }
    let node = &new.nodes[&inode];
    let dir = counterpart(old, new, node.parent)?;
    let there = old.at(dir, &node.name)?;
    (!new.nodes.contains_key(&there)).then_some(there)
}

fn text(state: &State, inode: u64) -> Option<&Vec<u8>> {
    state.nodes.get(&inode)?.text.as_ref()
}

fn is_same(old: &State, was: u64, new: &State, is: u64) -> bool {
    text(old, was) == text(new, is) && old.path(was) == new.path(is)
}

/// Whether what is in a directory is the same.
fn is_same_inside(old: &State, was: u64, new: &State, is: u64) -> bool {
    let (olds, news) = (inside(old, was), inside(new, is));
    let same = |path: &String, inode: u64| match origin(old, new, inode) {
        Some(before) => olds.get(path) == Some(&before) && text(old, before) == text(new, inode),
        None => false,
    };
    news.iter().all(|(path, inode)| same(path, *inode))
        && olds.keys().all(|path| news.contains_key(path))
}

pub(super) fn log(history: &History, at: usize, inode: u64, walk: Walk) -> Vec<CommitId> {
    let (mut seen, mut shown) = (BTreeSet::new(), BTreeSet::new());
    let mut todo = vec![(at, inode)];
    while let Some((at, inode)) = todo.pop() {
        if !seen.insert((at, inode)) {
            continue;
        }
        let new = history.state(at);
        let followed = match walk {
            Walk::AllParents => history.parents(at),
            Walk::FirstParent => history.parents(at).get(..1).unwrap_or_default(),
        };
        let origins: Vec<(usize, u64)> = (followed.iter())
            .filter_map(|parent| {
                let before = origin(history.state(*parent), new, inode)?;
                Some((*parent, before))
            })
            .collect();
        let same = origins.iter().find(|(parent, before)| {
            let old = history.state(*parent);
            is_same(old, *before, new, inode)
                && (!new.is_dir(inode) || is_same_inside(old, *before, new, inode))
        });
        match same {
            Some(same) => todo.push(*same),
            None => {
                shown.insert(at);
                todo.extend(origins);
            }
        }
    }
    let mut shown: Vec<CommitId> = shown.into_iter().map(|at| history.id(at)).collect();
    shown.sort_by_key(|id| std::cmp::Reverse(order(history, *id)));
    shown
}

/// Commits in the order of their times and ids.
fn order(history: &History, id: CommitId) -> (usize, CommitId) {
    let at = (0..history.len()).find(|at| history.id(*at) == id).unwrap();
    (depth(history, at), id)
}

/// The clock stands still: a commit is one nanosecond after the latest of its parents.
fn depth(history: &History, at: usize) -> usize {
    let above = history.parents(at).iter();
    above
        .map(|parent| depth(history, *parent) + 1)
        .max()
        .unwrap_or(0)
}

/// The commits that changed a file last, and wrote it last.
pub(super) fn last(
    history: &History,
    at: usize,
    inode: u64,
) -> (Option<CommitId>, Option<CommitId>) {
    let follow = |is_enough: &dyn Fn(&State, u64, &State, u64) -> bool| {
        let (mut at, mut inode) = (at, inode);
        loop {
            let new = history.state(at);
            let of = |parent: &usize| {
                let before = origin(history.state(*parent), new, inode)?;
                Some((*parent, before))
            };
            let origins: Vec<_> = history.parents(at).iter().filter_map(of).collect();
            let fits = |fits: &dyn Fn(&State, u64, &State, u64) -> bool| {
                let mut all = origins.iter();
                all.find(|(parent, before)| fits(history.state(*parent), *before, new, inode))
            };
            match fits(&is_same).or_else(|| fits(is_enough)) {
                Some(next) => (at, inode) = *next,
                None => return Some(history.id(at)),
            }
        }
    };
    let written = follow(&|old, was, new, is| text(old, was) == text(new, is));
    (follow(&is_same), written)
}

/// The commits that may have made a file.
pub(super) fn creations(history: &History, at: usize, inode: u64) -> BTreeSet<Option<CommitId>> {
    let (mut seen, mut made) = (BTreeSet::new(), BTreeSet::new());
    let mut todo = vec![(at, inode)];
    while let Some((at, inode)) = todo.pop() {
        if !seen.insert((at, inode)) {
            continue;
        }
        let new = history.state(at);
        let of = |parent: &usize| {
            let before = origin(history.state(*parent), new, inode)?;
            Some((*parent, before))
        };
        let origins: Vec<_> = history.parents(at).iter().filter_map(of).collect();
        if origins.is_empty() {
            made.insert(Some(history.id(at)));
        }
        todo.extend(origins);
    }
    made
}

/// The commit that wrote a line, the path there, and the line's number there.
pub(super) fn line(
    history: &History,
    (at, inode): (usize, u64),
    line: usize,
) -> (CommitId, Vec<u8>, usize) {
    let new = history.state(at);
    let of = |parent: &usize| {
        let before = origin(history.state(*parent), new, inode)?;
        Some((*parent, before))
    };
    let origins: Vec<(usize, u64)> = history.parents(at).iter().filter_map(of).collect();
    let is_all_same =
        |(parent, before): &&(usize, u64)| is_same(history.state(*parent), *before, new, inode);
    let has_content = |(parent, before): &&(usize, u64)| {
        text(history.state(*parent), *before) == text(new, inode)
    };
    let whole = origins
        .iter()
        .find(is_all_same)
        .or_else(|| origins.iter().find(has_content));
    if let Some(next) = whole {
        return self::line(history, *next, line);
    }
    for (parent, before) in &origins {
        let Some(old) = text(history.state(*parent), *before) else {
            continue;
        };
        let is = text(new, inode).unwrap();
        let mut moved = Some(line);
        for hunk in hunks(&lines(old), &lines(is)) {
            if hunk.after.contains(&line) {
                moved = None;
            } else if hunk.after.end <= line && moved.is_some() {
                moved = Some(line - hunk.after.end + hunk.before.end);
            }
        }
        if let Some(line) = moved {
            return self::line(history, (*parent, *before), line);
        }
    }
    (history.id(at), new.path(inode).into_bytes(), line)
}
