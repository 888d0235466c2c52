//! Which files use what is damaged or missing, of all sessions and commits.
//!
//! Nothing here is read unless something is damaged. Then each node is read once more, to know what
//! leads to damage; what does not is passed over. A node that cannot be read takes its files along: its
//! first and last key tell which inodes, and names that lead to these are looked for in the rest of the
//! tree.

use std::collections::{BTreeMap, HashMap};

use base::{ChunkId, DomainId, InodeId, NodeId};
use bytes::Bytes;

use super::image::Walk;
use super::report::{Report, USES_MAX, Use};
use super::{Checker, Owner};
use crate::compare::Snapshot;
use crate::image::{Body, NameHasher};
use crate::keyspace::image::{self as keys, ImageKey};
use crate::kv::KvError;
use crate::record::block;
use crate::record::entry::Entry;
use crate::tree::{BadPlace, Survey, Tree};

/// Most files that are told of one node, and most places that are told of one tree.
const PLACES_MAX: usize = 20;

/// Longest way up to the root directory that is followed.
const DEPTH_MAX: usize = 4096;

/// Files that are told of one node that cannot be read: each a path if it is known.
type Files = Vec<Option<Vec<u8>>>;

/// A node that cannot be read, and the inodes that it has or may have.
#[derive(Clone, Copy, Debug)]
struct Lost {
    id: NodeId,
    first: InodeId,
    last: InodeId,
}

impl Checker<'_> {
    /// Adds the paths to the problems from `from` on, as far as they can be found.
    pub(super) async fn name_paths(&mut self, walk: &Walk, from: usize) -> Result<(), KvError> {
        for at in from..self.report.problems.len() {
            let inode = (self.report.problems.get(at)).and_then(|problem| problem.inode);
            let Some(inode) = inode else {
                continue;
            };
            let path = self.path_of(walk, inode).await?;
            if let (Some(path), Some(problem)) = (path, self.report.problems.get_mut(at)) {
                let path = String::from_utf8_lossy(&path);
                problem.place.push_str(&format!(" ({path:?})"));
            }
        }
        Ok(())
    }

    /// The path of an inode in the image that is read, by its first link and that of each directory
    /// above it.
    async fn path_of(&self, walk: &Walk, inode: InodeId) -> Result<Option<Vec<u8>>, KvError> {
        let (mut at, mut names) = (inode, Vec::new());
        while at != InodeId::ROOT {
            let record = self.inode_record(walk, at).await?;
            let Some((parent, name)) = record.and_then(|record| record.link) else {
                return Ok(None);
            };
            if names.len() == DEPTH_MAX {
                return Ok(None);
            }
            names.push(name);
            at = parent;
        }
        let names: Vec<&[u8]> = names.iter().rev().map(|name| name.as_bytes()).collect();
        Ok(Some(names.join(&b'/')))
    }

    /// Tells who uses what is damaged, if anything is.
    pub(super) async fn tell_uses(&mut self) -> Result<(), KvError> {
        if !self.is_damaged {
            return Ok(());
        }
        let owners = std::mem::take(&mut self.owners);
        let mut surveys: HashMap<DomainId, Survey> = HashMap::new();
        let mut files: BTreeMap<NodeId, Files> = BTreeMap::new();
        // Sessions come last and are asked for first: they are in use.
        for owner in owners.iter().rev() {
            let Some((record, tree)) = self.trees_of(owner.workspace).await? else {
                continue;
            };
            let domain = tree.domain();
            let exists = self.options.chunk_exists;
            let mut is_bad = |key: &[u8], value: &Bytes| {
                bad_chunk(key, value)
                    .is_some_and(|(_, id)| exists.is_some_and(|exists| !exists(domain, id)))
            };
            let survey = surveys.entry(domain).or_default();
            let surveyed = tree.survey(owner.root, survey, &mut is_bad).await;
            // One that cannot be read at all has been told of.
            if !surveyed.unwrap_or(false) {
                continue;
            }
            if self.report.uses.len() >= USES_MAX {
                self.report.uses_left_out += 1;
                continue;
            }
            let mut places = Vec::new();
            let listed = tree
                .bad_places(owner.root, survey, &mut is_bad, &mut |place| {
                    places.push(place);
                    places.len() <= PLACES_MAX
                })
                .await;
            drop(listed);
            let hasher = NameHasher::new(record.name_key);
            let mut told = Told {
                tree: &tree,
                snapshot: Snapshot::new(tree.clone(), hasher, owner.root),
                owner: *owner,
                report: &mut self.report,
                files: &mut files,
            };
            told.all(places).await;
        }
        Ok(())
    }
}

/// What is told of one session or commit.
struct Told<'a> {
    tree: &'a Tree,
    snapshot: Snapshot,
    owner: Owner,
    report: &'a mut Report,
    /// Of each node, as its first user has them.
    files: &'a mut BTreeMap<NodeId, Files>,
}

impl Told<'_> {
    async fn all(&mut self, places: Vec<BadPlace>) {
        let is_more = places.len() > PLACES_MAX;
        for place in places.into_iter().take(PLACES_MAX) {
            match place {
                BadPlace::Entry(key, value) => {
                    if let Some((inode, id)) = bad_chunk(&key, &value) {
                        let path = self.path(inode).await;
                        self.note(path, format!("chunk {id}"));
                    }
                }
                BadPlace::Node {
                    id, first, next, ..
                } => {
                    let lost = Lost {
                        id,
                        first: inode_in(Some(&first)).unwrap_or(InodeId::new(0)),
                        last: inode_in(next.as_ref()).unwrap_or(InodeId::new(u64::MAX)),
                    };
                    for path in self.files_of(lost).await {
                        self.note(path, format!("tree node {id}"));
                    }
                }
            }
        }
        self.report.uses_left_out += u64::from(is_more);
    }

    fn note(&mut self, path: Option<Vec<u8>>, what: String) {
        if self.report.uses.len() >= USES_MAX {
            return;
        }
        let one = Use {
            of: self.owner.of.to_string(),
            path,
            what,
        };
        // A file has a chunk more than once where it repeats itself.
        if self.report.uses.last() != Some(&one) {
            self.report.uses.push(one);
        }
    }

    /// The first path of an inode.
    async fn path(&self, inode: InodeId) -> Option<Vec<u8>> {
        self.snapshot.paths_of(inode).next().await.ok().flatten()
    }

    /// The files that a node has, by the names that lead to them; one without a path if none is found.
    async fn files_of(&mut self, lost: Lost) -> Files {
        if let Some(files) = self.files.get(&lost.id) {
            return files.clone();
        }
        let mut names = Vec::new();
        let read = self
            .tree
            .each_readable(self.owner.root, &mut |key, value| {
                if let Ok(ImageKey::Entry { dir, name, .. }) = keys::decode(key)
                    && let Ok(entry) = Entry::decode(value)
                    && (lost.first..=lost.last).contains(&entry.inode)
                {
                    names.push((dir, name));
                }
                names.len() < PLACES_MAX
            })
            .await;
        drop(read);
        let mut files = Vec::new();
        if lost.first <= InodeId::ROOT && InodeId::ROOT <= lost.last {
            files.push(Some(Vec::new()));
        }
        for (dir, name) in names {
            // The directory's own way up may be lost, too; its name is better than nothing.
            let above = match dir {
                InodeId::ROOT => Some(Vec::new()),
                dir => self.path(dir).await,
            };
            let mut path = above.unwrap_or_else(|| b"...".to_vec());
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
            files.push(Some(path));
        }
        if files.is_empty() {
            files.push(None);
        }
        self.files.insert(lost.id, files.clone());
        files
    }
}

/// The file and the chunk of a block that has one.
fn bad_chunk(key: &[u8], value: &Bytes) -> Option<(InodeId, ChunkId)> {
    let Ok(ImageKey::Block { inode, .. }) = keys::decode(key) else {
        return None;
    };
    match block::decode(value).ok()?.body {
        Body::Chunk { id, .. } => Some((inode, id)),
        Body::Empty | Body::Inline(_) => None,
    }
}

fn inode_in(key: Option<&Bytes>) -> Option<InodeId> {
    let raw = key?.first_chunk::<8>()?;
    Some(InodeId::new(u64::from_be_bytes(*raw)))
}
