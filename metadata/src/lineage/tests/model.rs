//! Snapshots made of a plain map of inodes, and histories of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::{
    CommitId, DomainId, InodeId, ManualClock, Name, NodeId, Rng, TenantId, Timestamp, WorkspaceId,
};
use bytes::Bytes;

use super::super::{Lineage, TextFuture, Texts};
use crate::compare::Snapshot;
use crate::image::NameHasher;
use crate::keyspace::image as keys;
use crate::kv::memory::MemoryKv;
use crate::record::entry::Entry;
use crate::record::inode::InodeRecord;
use crate::stat::{Device, FileKind, Stat};
use crate::store::{NewCommit, NewWorkspace, Store};
use crate::tree::{MemoryNodes, MemoryTrees, Tree, TreeKeys, Trees};

pub(super) struct World {
    pub(super) store: Store,
    pub(super) workspace: WorkspaceId,
    pub(super) lineage: Lineage,
    tree: Tree,
    hasher: NameHasher,
    texts_read: AtomicUsize,
}

impl World {
    pub(super) async fn new() -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::new(1_000_000, 0)));
        let kv = Arc::new(MemoryKv::new(clock.clone()));
        let store = Store::open(kv, clock, Arc::new(Rng::seeded(1)))
            .await
            .unwrap();
        let new = NewWorkspace {
            name: "w".into(),
            root: (0o777, 0, 0),
        };
        let workspace = store.create_workspace(TenantId::DEFAULT, new).await;
        let workspace = workspace.unwrap().id;
        let keys = TreeKeys::new(DomainId::new(1), &[1; 32], &[2; 32]);
        let tree = MemoryTrees::new(Arc::new(MemoryNodes::new())).open(keys);
        let hasher = NameHasher::new([3; 32]);
        Self {
            lineage: Lineage::new(store.clone(), workspace, tree.clone(), hasher.clone()),
            store,
            workspace,
            tree,
            hasher,
            texts_read: AtomicUsize::new(0),
        }
    }

    pub(super) fn texts_read(&self) -> usize {
        self.texts_read.load(Ordering::Relaxed)
    }
}

impl Texts for World {
    fn read<'a>(&'a self, _: &'a Snapshot, record: &'a InodeRecord) -> TextFuture<'a> {
        self.texts_read.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move { Ok(record.inline.clone().unwrap()) })
    }
}

/// A file or a directory.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) parent: u64,
    pub(super) name: String,
    /// `None` for a directory.
    pub(super) text: Option<Vec<u8>>,
    changed: u64,
}

/// All files and directories but the root, whose number is 1.
#[derive(Clone)]
pub(super) struct State {
    pub(super) nodes: BTreeMap<u64, Node>,
    next: Arc<AtomicUsize>,
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            nodes: BTreeMap::new(),
            next: Arc::new(AtomicUsize::new(10)),
        }
    }

    fn tick(&self) -> u64 {
        u64::try_from(self.next.fetch_add(1, Ordering::Relaxed)).unwrap()
    }

    pub(super) fn at(&self, parent: u64, name: &str) -> Option<u64> {
        let mut nodes = self.nodes.iter();
        let found = nodes.find(|(_, node)| node.parent == parent && node.name == name);
        found.map(|(inode, _)| *inode)
    }

    pub(super) fn find(&self, path: &str) -> Option<u64> {
        let mut names = path.split('/').filter(|name| !name.is_empty());
        names.try_fold(1, |dir, name| self.at(dir, name))
    }

    pub(super) fn path(&self, inode: u64) -> String {
        match self.nodes.get(&inode) {
            None => String::new(),
            Some(node) if node.parent == 1 => node.name.clone(),
            Some(node) => format!("{}/{}", self.path(node.parent), node.name),
        }
    }

    pub(super) fn is_dir(&self, inode: u64) -> bool {
        self.nodes
            .get(&inode)
            .is_none_or(|node| node.text.is_none())
    }

    fn place<'a>(&self, path: &'a str) -> Option<(u64, &'a str)> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.find(dir)?;
        self.is_dir(dir).then_some((dir, name))
    }

    fn make(&mut self, path: &str, text: Option<Vec<u8>>) -> Option<u64> {
        let (parent, name) = self.place(path)?;
        let inode = self.tick();
        let node = Node {
            parent,
            name: name.to_owned(),
            text,
            changed: self.tick(),
        };
        self.nodes.insert(inode, node);
        Some(inode)
    }

    /// Writes a file, which is made if there is none.
    pub(super) fn write(&mut self, path: &str, text: &[u8]) -> InodeId {
        let inode = match self.find(path) {
            Some(inode) => {
                let changed = self.tick();
                let node = self.nodes.get_mut(&inode).unwrap();
                node.text = Some(text.to_vec());
                node.changed = changed;
                inode
            }
            None => self.make(path, Some(text.to_vec())).unwrap(),
        };
        InodeId::new(inode)
    }

    fn below(&self, inode: u64) -> Vec<u64> {
        let mut all = vec![inode];
        let mut at = 0;
        while at < all.len() {
            let dir = all[at];
            let inside = self.nodes.iter().filter(|(_, node)| node.parent == dir);
            all.extend(inside.map(|(inode, _)| *inode));
            at += 1;
        }
        all
    }

    /// Removes what is at a path, and all below it.
    pub(super) fn remove(&mut self, path: &str) {
        if let Some(inode) = self.find(path).filter(|inode| *inode != 1) {
            for inode in self.below(inode) {
                self.nodes.remove(&inode);
            }
        }
    }

    /// Renames over whatever is there.
    pub(super) fn rename(&mut self, from: &str, to: &str) {
        let (Some(inode), Some((dir, name))) = (self.find(from), self.place(to)) else {
            return;
        };
        if inode == 1 || self.below(inode).contains(&dir) || self.find(to) == Some(inode) {
            return;
        }
        if self
            .find(to)
            .is_some_and(|over| self.below(over).contains(&inode))
        {
            return;
        }
        self.remove(to);
        let changed = self.tick();
        let node = self.nodes.get_mut(&inode).unwrap();
        (node.parent, node.name, node.changed) = (dir, name.to_owned(), changed);
    }

    fn record(&self, inode: u64, node: Option<&Node>) -> InodeRecord {
        let text = node.and_then(|node| node.text.clone());
        let changed = Timestamp::new(node.map_or(1, |node| node.changed), 0);
        let size = text.as_ref().map_or(4096, Vec::len);
        InodeRecord {
            stat: Stat {
                inode: InodeId::new(inode),
                kind: match text {
                    Some(_) => FileKind::File,
                    None => FileKind::Directory,
                },
                mode: 0o755,
                nlink: 1,
                uid: 0,
                gid: 0,
                size: u64::try_from(size).unwrap(),
                used: 0,
                device: Device::default(),
                atime: Timestamp::default(),
                mtime: changed,
                ctime: changed,
            },
            entries: 0,
            link: node.map(|node| {
                let name = Name::new(node.name.as_bytes()).unwrap();
                (InodeId::new(node.parent), name)
            }),
            verifier: None,
            inline: text.map(Bytes::from),
        }
    }

    async fn root(&self, world: &World) -> NodeId {
        let mut pairs = BTreeMap::new();
        let root = self.record(1, None);
        pairs.insert(keys::inode(InodeId::ROOT), root.encode());
        for (inode, node) in &self.nodes {
            let record = self.record(*inode, Some(node));
            let entry = Entry {
                inode: record.stat.inode,
                kind: record.stat.kind,
            };
            let name = node.name.as_bytes();
            let key = keys::entry(InodeId::new(node.parent), world.hasher.hash(name), name);
            pairs.insert(key, entry.encode());
            pairs.insert(keys::inode(record.stat.inode), record.encode());
        }
        let root = world.tree.build(pairs).await.unwrap().root;
        root.name()
    }
}

/// Commits, each after its parents.
pub(super) struct History {
    commits: Vec<(CommitId, State, Vec<usize>)>,
}

impl History {
    pub(super) fn new() -> Self {
        Self {
            commits: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.commits.len()
    }

    pub(super) fn id(&self, at: usize) -> CommitId {
        self.commits[at].0
    }

    pub(super) fn state(&self, at: usize) -> &State {
        &self.commits[at].1
    }

    pub(super) fn parents(&self, at: usize) -> &[usize] {
        &self.commits[at].2
    }

    pub(super) fn text(&self, at: usize, inode: u64) -> Option<Vec<u8>> {
        self.state(at).nodes.get(&inode)?.text.clone()
    }

    pub(super) fn is_dir(&self, at: usize, inode: u64) -> bool {
        self.state(at).is_dir(inode)
    }

    /// Everything in a commit.
    pub(super) fn paths(&self, at: usize) -> Vec<(u64, Vec<u8>)> {
        let state = self.state(at);
        let all = [1].into_iter().chain(state.nodes.keys().copied());
        all.map(|inode| (inode, state.path(inode).into_bytes()))
            .collect()
    }

    pub(super) async fn commit(
        &mut self,
        world: &World,
        state: &State,
        parents: &[usize],
    ) -> CommitId {
        let new = NewCommit {
            parents: parents.iter().map(|at| self.id(*at)).collect(),
            message: format!("{}", self.len()),
            ..NewCommit::of_tree(state.root(world).await)
        };
        let made = world.store.put_commit(world.workspace, new).await.unwrap();
        let commit = (made.id, state.clone(), parents.to_vec());
        self.commits.push(commit);
        made.id
    }

    /// A history of so many commits, a third of them merges.
    pub(super) async fn random(rng: &Rng, count: usize) -> (World, Self) {
        let world = World::new().await;
        let mut history = Self::new();
        let pick = |of: usize| usize::try_from(rng.u64()).unwrap_or(usize::MAX) % of;
        let mut state = State::new();
        for _ in 0..12 {
            random_change(&mut state, &pick);
        }
        history.commit(&world, &state, &[]).await;
        while history.len() < count {
            let near = history.len().min(4);
            let one = history.len() - 1 - pick(near);
            let two = history.len() - 1 - pick(near);
            let mut parents = vec![one];
            let mut state = history.state(one).clone();
            if one != two && pick(3) == 0 {
                parents.push(two);
                merge(&mut state, history.state(two), &pick);
            }
            if parents.len() == 1 || pick(3) == 0 {
                for _ in 0..=pick(4) {
                    random_change(&mut state, &pick);
                }
            }
            history.commit(&world, &state, &parents).await;
        }
        (world, history)
    }
}

/// Takes over some of what another state has.
fn merge(ours: &mut State, theirs: &State, pick: &impl Fn(usize) -> usize) {
    for (inode, node) in &theirs.nodes {
        let choice = pick(4);
        let is_free = ours.at(node.parent, &node.name).is_none();
        match ours.nodes.get_mut(inode) {
            Some(own) if own.text.is_some() && node.text.is_some() => match choice {
                0 => {}
                1 => (own.text, own.changed) = (node.text.clone(), node.changed),
                _ => {
                    let mut text = own.text.take().unwrap();
                    let half = text.iter().filter(|byte| **byte == b'\n').count() / 2;
                    let keep = text.split_inclusive(|byte| *byte == b'\n').take(half);
                    text = keep.collect::<Vec<_>>().concat();
                    text.extend_from_slice(node.text.as_ref().unwrap());
                    own.text = Some(text);
                    own.changed += 1_000_000;
                }
            },
            Some(_) => {}
            None if choice > 0 && is_free => {
                let is_there = node.parent == 1 || ours.nodes.contains_key(&node.parent);
                if is_there && ours.is_dir(node.parent) {
                    ours.nodes.insert(*inode, node.clone());
                }
            }
            None => {}
        }
    }
}

fn random_change(state: &mut State, pick: &impl Fn(usize) -> usize) {
    let dirs: Vec<String> = [1]
        .into_iter()
        .chain(state.nodes.keys().copied())
        .filter(|inode| state.is_dir(*inode))
        .map(|inode| state.path(inode))
        .filter(|path| path.len() < 6)
        .collect();
    let path = || {
        let dir = &dirs[pick(dirs.len())];
        let name = ["a", "b", "c", "d"][pick(4)];
        if dir.is_empty() {
            name.to_owned()
        } else {
            format!("{dir}/{name}")
        }
    };
    let (one, two) = (path(), path());
    let is_file = |path: &str| state.find(path).is_some_and(|inode| !state.is_dir(inode));
    match pick(12) {
        0 if state.find(&one).is_none() => {
            state.make(&one, None);
        }
        1 => state.remove(&one),
        2 | 3 => state.rename(&one, &two),
        // As an editor does it.
        4 | 5 if is_file(&one) => {
            let inode = state.find(&one).unwrap();
            let text = edited(state.nodes[&inode].text.clone().unwrap(), pick);
            state.remove(&one);
            state.make(&one, Some(text));
        }
        _ if is_file(&one) => {
            let inode = state.find(&one).unwrap();
            let text = edited(state.nodes[&inode].text.clone().unwrap(), pick);
            state.write(&one, &text);
        }
        6..12 if state.find(&one).is_none() => {
            let text = (0..pick(8)).map(|_| format!("{}\n", pick(5)));
            let text: String = text.collect();
            state.write(&one, text.as_bytes());
        }
        _ => {}
    }
}

/// Some lines are others.
fn edited(text: Vec<u8>, pick: &impl Fn(usize) -> usize) -> Vec<u8> {
    let mut lines: Vec<Vec<u8>> = text
        .split_inclusive(|byte| *byte == b'\n')
        .map(<[u8]>::to_vec)
        .collect();
    let new = format!("{}\n", pick(50)).into_bytes();
    let at = pick(lines.len() + 1);
    match pick(3) {
        0 if at < lines.len() => lines[at] = new,
        1 if at < lines.len() && pick(2) == 0 => {
            lines.remove(at);
        }
        _ => lines.insert(at, new),
    }
    lines.concat()
}

/// Inodes below a directory, by the path from there.
pub(super) fn inside(state: &State, dir: u64) -> BTreeMap<String, u64> {
    let top = state.path(dir);
    let below: BTreeSet<u64> = state
        .below(dir)
        .into_iter()
        .filter(|at| *at != dir)
        .collect();
    let relative = |inode: u64| state.path(inode)[top.len()..].to_owned();
    below
        .into_iter()
        .map(|inode| (relative(inode), inode))
        .collect()
}
