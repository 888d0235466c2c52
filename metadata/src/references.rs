//! Every chunk that the store refers to: what a collection must keep.
//!
//! The roots are the deltas of all sessions, the trees that are their bases, and the trees of all
//! commits, and are read in this order. Whatever else comes to refer to chunks is added to
//! [`References`], and must follow the rules of `docs/design/0002-collection.md`: a reference that is
//! made while a walk runs is made under a hold, by a `put` or with a `touch`; a root that is copied
//! meanwhile is added to the walk.
//!
//! A tree's nodes are chunks too. Each is visited once, whoever names it: their ids are all that is
//! remembered, 40 to 80 bytes for each of some 15 KiB of trees.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use base::{ChunkId, CommitId, DomainId, NodeId, SessionId, TenantId, WorkspaceId};
use bytes::Bytes;

use crate::image::Body;
use crate::keyspace::image::{self as keys, ImageKey};
use crate::keyspace::{self, Key};
use crate::kv::{Isolation, KeyRange, Kv, KvError, RangeLimit, Transaction};
use crate::layers::{LayerId, untag};
use crate::record::block;
use crate::record::commit::CommitRecord;
use crate::record::session::SessionRecord;
use crate::record::workspace::{TenantRecord, WorkspaceRecord};
use crate::store::GreyRoot;
use crate::tree::{Node, Root, Tree, TreeError, TreeKeys, Trees, Walk};

/// Keys read in one transaction.
const PAGE: usize = 1000;

/// Most sessions read in one transaction: each is a read of its own.
const SESSIONS_MAX: usize = 100;

/// Most nodes read in one step: about as many references as a page of keys has.
const NODES_MAX: usize = 16;

/// Why not every reference is known. Nothing may then be collected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// The store failed; a later try may succeed.
    #[error("read references to chunks: {0}")]
    Kv(#[from] KvError),
    /// A record is damaged or of another release, so that what it refers to is not known.
    #[error("{what} is damaged: {why}; `holdfast check` tells more")]
    Corrupt {
        /// Which.
        what: String,
        /// In what way.
        why: String,
    },
    /// A tree cannot be read, so that what it refers to is not known.
    #[error("{of}: {error}; `holdfast check` tells more")]
    Tree {
        /// What has it.
        of: Referrer,
        /// Why.
        #[source]
        error: TreeError,
    },
}

impl ReferenceError {
    /// Whether a later try may do better.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Kv(KvError::Corrupt(_)) | Self::Corrupt { .. } => false,
            Self::Kv(_) => true,
            Self::Tree { error, .. } => matches!(error, TreeError::Unavailable(_)),
        }
    }
}

/// What has a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Referrer {
    /// A session, as its base.
    Session(SessionId),
    /// A commit.
    Commit(CommitId),
    /// A session or a commit that was made while the walk ran.
    Copy,
}

impl fmt::Display for Referrer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session(id) => write!(f, "session {id}"),
            Self::Commit(id) => write!(f, "commit {id}"),
            Self::Copy => write!(f, "a new session or commit"),
        }
    }
}

/// What a walk has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReferenceCounts {
    /// Keys read.
    pub keys: u64,
    /// References of files to chunks: in deltas, and in nodes, each of which counts once.
    pub references: u64,
    /// Nodes of trees, each once.
    pub nodes: u64,
}

/// A walk over every reference to a chunk, step by step.
///
/// Each step that reads keys is a transaction of its own. So a reference that exists all the time is
/// seen, and one that is made or removed meanwhile may be seen or not. A chunk that is referred to
/// more than once is named more than once.
#[derive(Debug)]
pub struct References {
    trees: Arc<dyn Trees>,
    page: usize,
    phase: Phase,
    /// Trees that were found and not walked. Those of one page, and copies.
    found: VecDeque<Found>,
    /// Copies, by now.
    added: HashSet<GreyRoot>,
    walk: Option<TreeWalk>,
    visited: HashMap<DomainId, HashSet<NodeId>>,
    /// The workspace of the last tree.
    opened: Option<(WorkspaceId, Opened)>,
    counts: ReferenceCounts,
    /// Commits that are taken for gone.
    excluded: HashSet<(WorkspaceId, CommitId)>,
    /// Their trees, as far as they were met.
    left_out: Vec<Found>,
}

/// What is left of the records that refer to something.
#[derive(Clone, Debug)]
enum Phase {
    Deltas(KeyRange),
    Sessions(KeyRange),
    Commits(KeyRange),
    Done,
}

/// A tree that is to be walked.
#[derive(Clone, Copy, Debug)]
struct Found {
    of: Referrer,
    /// As the session says.
    tenant: Option<TenantId>,
    workspace: WorkspaceId,
    root: Root,
}

/// The trees of a workspace.
#[derive(Clone, Debug)]
struct Opened {
    tenant: TenantId,
    domain: DomainId,
    tree: Tree,
}

#[derive(Debug)]
struct TreeWalk {
    of: Referrer,
    domain: DomainId,
    walk: Walk,
}

impl References {
    /// A walk from the start. Nodes are read from `trees`.
    #[must_use]
    pub fn new(trees: Arc<dyn Trees>) -> Self {
        Self::with_page(trees, PAGE)
    }

    /// A walk that reads up to `page` keys in a step, at least one.
    #[must_use]
    pub fn with_page(trees: Arc<dyn Trees>, page: usize) -> Self {
        Self {
            trees,
            page: page.max(1),
            phase: Phase::Deltas(keyspace::all_deltas()),
            found: VecDeque::new(),
            added: HashSet::new(),
            walk: None,
            visited: HashMap::new(),
            opened: None,
            counts: ReferenceCounts::default(),
            excluded: HashSet::new(),
            left_out: Vec::new(),
        }
    }

    /// A walk as it would be without these commits. [`References::add_left_out`] walks their trees
    /// after all others.
    #[must_use]
    pub fn without(
        trees: Arc<dyn Trees>,
        commits: impl IntoIterator<Item = (WorkspaceId, CommitId)>,
    ) -> Self {
        Self {
            excluded: commits.into_iter().collect(),
            ..Self::new(trees)
        }
    }

    /// Lets the next steps walk the trees of the commits that were left out, as far as nothing else has
    /// them. Tells whether there are any.
    pub fn add_left_out(&mut self) -> bool {
        self.found.extend(self.left_out.drain(..));
        !self.found.is_empty()
    }

    /// What has been seen by now.
    #[must_use]
    pub fn counts(&self) -> ReferenceCounts {
        self.counts
    }

    /// Adds roots that were copied while the walk ran: the next steps walk their trees. Tells whether
    /// there are any that were not added before; they alone are more to do.
    pub fn add(&mut self, copied: impl IntoIterator<Item = GreyRoot>) -> bool {
        let mut is_more = false;
        for grey in copied {
            if self.added.insert(grey) {
                is_more = true;
                self.found.push_back(Found {
                    of: Referrer::Copy,
                    tenant: None,
                    workspace: grey.workspace,
                    root: grey.root,
                });
            }
        }
        is_more
    }

    /// Calls `each` for the references of the next step: chunks of files, and nodes under the name
    /// that they have as chunks. Tells whether there are more steps.
    ///
    /// # Errors
    ///
    /// See [`ReferenceError`]. After an error the walk is of no use.
    ///
    /// # Cancellation
    ///
    /// Safe to drop: what was not told is read again.
    pub async fn next(
        &mut self,
        kv: &dyn Kv,
        mut each: impl FnMut(DomainId, ChunkId) + Send,
    ) -> Result<bool, ReferenceError> {
        if self.walk.is_some() {
            self.walk_on(&mut each).await?;
        } else if let Some(found) = self.found.front().copied() {
            self.walk = self.begin_walk(kv, found).await?;
            self.found.pop_front();
        } else {
            self.phase = match &self.phase {
                Phase::Deltas(range) => {
                    let range = range.clone();
                    let rest = self.deltas(kv, &range, &mut each).await?;
                    rest.map_or(Phase::Sessions(keyspace::all_sessions()), Phase::Deltas)
                }
                Phase::Sessions(range) => {
                    let range = range.clone();
                    let rest = self.sessions(kv, range).await?;
                    rest.map_or(Phase::Commits(keyspace::all_commits()), Phase::Sessions)
                }
                Phase::Commits(range) => {
                    let range = range.clone();
                    let rest = self.commits(kv, &range).await?;
                    rest.map_or(Phase::Done, Phase::Commits)
                }
                Phase::Done => Phase::Done,
            };
        }
        let is_done = matches!(self.phase, Phase::Done);
        Ok(!is_done || self.walk.is_some() || !self.found.is_empty())
    }

    /// Reads a page of deltas; gives what is left.
    async fn deltas(
        &mut self,
        kv: &dyn Kv,
        range: &KeyRange,
        each: &mut (impl FnMut(DomainId, ChunkId) + Send),
    ) -> Result<Option<KeyRange>, ReferenceError> {
        let txn = kv.begin();
        // Never committed: nothing to conflict with.
        let page = txn
            .get_range(range, RangeLimit::pairs(self.page), Isolation::Snapshot)
            .await?;
        let mut domain: Option<(LayerId, DomainId)> = None;
        let mut references = Vec::new();
        for (key, stored) in &page.pairs {
            let Some((layer, id)) = reference(key, stored)? else {
                continue;
            };
            let owner = match domain {
                Some((of, owner)) if of == layer => owner,
                _ => domain_of(txn.as_ref(), layer).await?,
            };
            domain = Some((layer, owner));
            references.push((owner, id));
        }
        self.count_keys(page.pairs.len());
        for (owner, id) in references {
            self.counts.references += 1;
            each(owner, id);
        }
        Ok(rest(range, page.pairs.last(), page.more))
    }

    /// Finds the bases of some sessions; gives what is left.
    async fn sessions(
        &mut self,
        kv: &dyn Kv,
        mut range: KeyRange,
    ) -> Result<Option<KeyRange>, ReferenceError> {
        let txn = kv.begin();
        let mut found = Vec::new();
        for _ in 0..self.page.min(SESSIONS_MAX) {
            // Never committed: nothing to conflict with. The first key of a session is its record.
            let first = txn
                .get_range(&range, RangeLimit::pairs(1), Isolation::Snapshot)
                .await?;
            let Some((key, value)) = first.pairs.first() else {
                self.found.extend(found);
                return Ok(None);
            };
            self.count_keys(1);
            let corrupt = |why: String| corrupt_key(key, why);
            let decoded = keyspace::decode(key).map_err(|why| corrupt(why.to_string()))?;
            let Key::Meta(id) = decoded else {
                return Err(corrupt("its session has no record".to_owned()));
            };
            let record = SessionRecord::decode(value).map_err(|why| corrupt_session(id, why))?;
            found.extend(record.base.map(|root| Found {
                of: Referrer::Session(id),
                tenant: Some(record.tenant),
                workspace: record.workspace,
                root,
            }));
            range.start = keyspace::session_all(id).end;
        }
        self.found.extend(found);
        Ok(Some(range))
    }

    /// Finds the trees of a page of commits; gives what is left.
    async fn commits(
        &mut self,
        kv: &dyn Kv,
        range: &KeyRange,
    ) -> Result<Option<KeyRange>, ReferenceError> {
        // Never committed: nothing to conflict with.
        let page = kv
            .begin()
            .get_range(range, RangeLimit::pairs(self.page), Isolation::Snapshot)
            .await?;
        for (key, value) in &page.pairs {
            let corrupt = |why: String| corrupt_key(key, why);
            let decoded = keyspace::decode(key).map_err(|why| corrupt(why.to_string()))?;
            let Key::Commit(workspace, id) = decoded else {
                return Err(corrupt("it is not of a commit".to_owned()));
            };
            let record = CommitRecord::decode(value).map_err(|why| ReferenceError::Corrupt {
                what: format!("commit {id}"),
                why: why.to_string(),
            })?;
            let found = Found {
                of: Referrer::Commit(id),
                tenant: None,
                workspace,
                root: record.root(),
            };
            if self.excluded.contains(&(workspace, id)) {
                self.left_out.push(found);
            } else {
                self.found.push_back(found);
            }
        }
        self.count_keys(page.pairs.len());
        Ok(rest(range, page.pairs.last(), page.more))
    }

    /// `None` if what has the tree was removed with its workspace since it was found.
    async fn begin_walk(
        &mut self,
        kv: &dyn Kv,
        found: Found,
    ) -> Result<Option<TreeWalk>, ReferenceError> {
        let opened = match &self.opened {
            Some((workspace, opened)) if *workspace == found.workspace => opened.clone(),
            _ => match self.open(kv, found).await? {
                Some(opened) => opened,
                None => return Ok(None),
            },
        };
        self.opened = Some((found.workspace, opened.clone()));
        if found.tenant.is_some_and(|tenant| tenant != opened.tenant) {
            return Err(ReferenceError::Corrupt {
                what: found.of.to_string(),
                why: "it is of another tenant than its workspace".to_owned(),
            });
        }
        Ok(Some(TreeWalk {
            of: found.of,
            domain: opened.domain,
            walk: opened.tree.walk(found.root),
        }))
    }

    async fn open(&self, kv: &dyn Kv, found: Found) -> Result<Option<Opened>, ReferenceError> {
        let corrupt = |what: String, why: String| ReferenceError::Corrupt { what, why };
        let (of, id) = (found.of, found.workspace);
        let what = || format!("workspace {id} of {of}");
        let missing = || "it has no record".to_owned();
        let txn = kv.begin();
        // Never committed: nothing to conflict with.
        let record = txn
            .get(&keyspace::workspace(id), Isolation::Snapshot)
            .await?;
        let Some(record) = record else {
            // A workspace goes last of all it has, and nothing is added to it meanwhile.
            if is_there(txn.as_ref(), found).await? {
                return Err(corrupt(what(), missing()));
            }
            return Ok(None);
        };
        let workspace =
            WorkspaceRecord::decode(&record).map_err(|why| corrupt(what(), why.to_string()))?;
        let what = || format!("tenant {} of {of}", workspace.tenant);
        let record = txn
            .get(&keyspace::tenant(workspace.tenant), Isolation::Snapshot)
            .await?;
        let record = record.ok_or_else(|| corrupt(what(), missing()))?;
        let tenant =
            TenantRecord::decode(&record).map_err(|why| corrupt(what(), why.to_string()))?;
        let domain = DomainId::new(workspace.tenant.raw());
        let keys = TreeKeys::new(domain, &tenant.domain_key, &workspace.name_key);
        Ok(Some(Opened {
            tenant: workspace.tenant,
            domain,
            tree: self.trees.open(keys),
        }))
    }

    /// Reads some nodes of the tree that is walked.
    async fn walk_on(
        &mut self,
        each: &mut (impl FnMut(DomainId, ChunkId) + Send),
    ) -> Result<(), ReferenceError> {
        let Some(TreeWalk { of, domain, walk }) = &mut self.walk else {
            return Ok(());
        };
        let (of, domain) = (*of, *domain);
        let visited = self.visited.entry(domain).or_default();
        for _ in 0..NODES_MAX.min(self.page) {
            let next = walk.next(|id| visited.contains(&id)).await;
            let next = next.map_err(|error| ReferenceError::Tree { of, error })?;
            let Some(node) = next else {
                self.walk = None;
                return Ok(());
            };
            visited.insert(node.id());
            self.counts.nodes += 1;
            each(domain, ChunkId::new(*node.id().as_bytes()));
            self.counts.references += leaf_references(of, &node, |id| each(domain, id))?;
        }
        Ok(())
    }

    fn count_keys(&mut self, keys: usize) {
        self.counts.keys += u64::try_from(keys).unwrap_or(u64::MAX);
    }
}

/// Whether what was found to have a tree is still there. A copy is of a workspace that was there.
async fn is_there(txn: &dyn Transaction, found: Found) -> Result<bool, ReferenceError> {
    let key = match found.of {
        Referrer::Session(id) => keyspace::session_meta(id),
        Referrer::Commit(id) => keyspace::commit(found.workspace, id),
        Referrer::Copy => return Ok(false),
    };
    // Never committed: nothing to conflict with.
    Ok(txn.get(&key, Isolation::Snapshot).await?.is_some())
}

/// Calls `each` for the chunks that a leaf refers to, and counts them.
fn leaf_references(
    of: Referrer,
    node: &Node,
    mut each: impl FnMut(ChunkId),
) -> Result<u64, ReferenceError> {
    let corrupt = |why: String| ReferenceError::Corrupt {
        what: format!("tree node {} of {of}", node.id()),
        why,
    };
    let mut references = 0;
    let mut entries = node.leaf_entries();
    while let Some((key, value)) = entries.next_entry() {
        let key = keys::decode(key).map_err(|why| corrupt(why.to_string()))?;
        if let ImageKey::Block { .. } = key {
            let block = block::decode(&value).map_err(|why| corrupt(why.to_string()))?;
            if let Body::Chunk { id, .. } = block.body {
                references += 1;
                each(id);
            }
        }
    }
    Ok(references)
}

/// What is left of a range after a page.
fn rest(range: &KeyRange, last: Option<&(Bytes, Bytes)>, more: bool) -> Option<KeyRange> {
    let (last, _) = last.filter(|_| more)?;
    Some(KeyRange {
        start: KeyRange::key(last).end,
        end: range.end.clone(),
    })
}

fn corrupt_key(key: &Bytes, why: String) -> ReferenceError {
    ReferenceError::Corrupt {
        what: format!("key {}", key.escape_ascii()),
        why,
    }
}

fn corrupt_session(session: SessionId, why: impl fmt::Display) -> ReferenceError {
    ReferenceError::Corrupt {
        what: format!("session {session}"),
        why: why.to_string(),
    }
}

/// The layer and the chunk that a stored pair refers to, if it does.
fn reference(key: &Bytes, stored: &Bytes) -> Result<Option<(LayerId, ChunkId)>, ReferenceError> {
    let corrupt = |why: String| corrupt_key(key, why);
    let decoded = keyspace::decode(key).map_err(|why| corrupt(why.to_string()))?;
    let Key::Delta(session, generation, ImageKey::Block { .. }) = decoded else {
        return Ok(None);
    };
    // A tombstone refers to nothing; what it hides is a key of its own.
    let Some(value) = untag(stored).map_err(|why| corrupt(why.to_string()))? else {
        return Ok(None);
    };
    let block = block::decode(&value).map_err(|why| corrupt(why.to_string()))?;
    Ok(match block.body {
        Body::Chunk { id, .. } => {
            let layer = LayerId {
                session,
                generation,
            };
            Some((layer, id))
        }
        Body::Empty | Body::Inline(_) => None,
    })
}

/// The domain of a layer's chunks, read in the transaction that found its blocks: a layer goes with
/// the last session that lists it. That need not be the one that wrote it.
async fn domain_of(txn: &dyn Transaction, layer: LayerId) -> Result<DomainId, ReferenceError> {
    let (session, generation) = (layer.session, layer.generation);
    // Never committed: nothing to conflict with.
    let mut record = txn
        .get(&keyspace::session_meta(session), Isolation::Snapshot)
        .await?;
    if record.is_none() {
        let users = keyspace::layer_users(session, generation);
        let users = txn
            .get_range(&users, RangeLimit::pairs(1), Isolation::Snapshot)
            .await?;
        if let Some((key, _)) = users.pairs.first()
            && let Ok(Key::LayerUser(_, _, user)) = keyspace::decode(key)
        {
            record = txn
                .get(&keyspace::session_meta(user), Isolation::Snapshot)
                .await?;
        }
    }
    let record = record.ok_or_else(|| corrupt_session(session, "it has files and no record"))?;
    let record = SessionRecord::decode(&record).map_err(|why| corrupt_session(session, why))?;
    Ok(DomainId::new(record.tenant.raw()))
}

#[cfg(test)]
mod tests;
