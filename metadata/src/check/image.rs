//! The files of a session or a commit. All keys of an inode are adjacent, attributes first; what leads from one
//! inode to another is looked up from both ends.

use std::collections::HashSet;
use std::fmt;

use base::limits::{INLINE_BLOCK_BYTES_MAX, INLINE_FILE_BYTES_MAX, PATCH_BYTES_MAX, PATCHES_MAX};
use base::{CommitId, DomainId, InodeId, Name, SessionId, WorkspaceId};
use bytes::Bytes;

use super::changes::Changed;
use super::{Checker, Owner, Remedy};
use crate::image::{Block, Body, NameHasher, Usage, allocated};
use crate::keyspace;
use crate::keyspace::image::{self as keys, ImageKey};
use crate::kv::KvError;
use crate::layers::{Base, ImageError, ImageScan, Layers};
use crate::record::commit::CommitRecord;
use crate::record::conflict::Conflict;
use crate::record::entry::Entry;
use crate::record::inode::InodeRecord;
use crate::record::session::{FlushRecord, SessionRecord};
use crate::record::workspace::{TenantRecord, WorkspaceRecord};
use crate::record::{RecordError, block};
use crate::session::{session_layers, tree_of};
use crate::stat::FileKind;
use crate::tree::{NoTrees, Root, Tree};

/// Directories that are remembered to hang below the root. Beyond this many they are looked up
/// again and again, which is slow and right.
const KNOWN_MAX: usize = 4_000_000;

/// What has an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Session(SessionId),
    Commit(WorkspaceId, CommitId),
}

/// Where an image is.
pub(super) enum View {
    Layers(Layers),
    /// Nothing is over it.
    Base(Base),
}

/// A walk over the files of one image.
pub(super) struct Walk {
    pub(super) of: Of,
    pub(super) view: View,
    pub(super) hasher: NameHasher,
    block_bytes: u64,
    pub(super) domain: DomainId,
    pub(super) flush: FlushRecord,
    /// First inode number that the workspace has not given out.
    numbers_end: u64,
    pub(super) usage: Usage,
    /// Directories known to hang below the root.
    known: HashSet<InodeId>,
}

/// What was seen of the inode whose keys are being read.
struct Seen {
    inode: InodeId,
    record: Option<InodeRecord>,
    entries: u64,
    subdirs: u64,
    links: u64,
    used: u64,
    blocks: u64,
    conflicts: u64,
}

impl fmt::Display for Of {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session(id) => write!(f, "session {id}"),
            Self::Commit(workspace, id) => write!(f, "commit {id} of workspace {workspace}"),
        }
    }
}

impl Of {
    pub(super) fn remedy(self) -> Remedy {
        match self {
            Self::Session(_) => Remedy::Session,
            Self::Commit(..) => Remedy::Store,
        }
    }
}

impl Checker<'_> {
    /// A session's files, and the tree below its layers.
    pub(super) async fn check_image(
        &mut self,
        id: SessionId,
        record: &SessionRecord,
        workspace: &WorkspaceRecord,
    ) -> Result<(), KvError> {
        let Some(tree) = self.tree_of(record, workspace).await? else {
            return Ok(());
        };
        let place = (Of::Session(id), record.workspace);
        if let Some(root) = record.base {
            let owner = Owner {
                of: place.0,
                workspace: place.1,
                root,
            };
            let like = self.tree_of_commit(record).await?;
            let checked = self.check_tree(owner, (workspace, &tree), like).await?;
            if checked.is_none() {
                let layers = session_layers(id, record, workspace, tree);
                let view = View::Layers(layers);
                let walk = self.begin_walk(place, workspace, view).await?;
                return self.check_own_chunks(&walk).await;
            }
        }
        let layers = session_layers(id, record, workspace, tree);
        let base = layers.base().root().map(|root| (place.1, root));
        let base = base.and_then(|base| self.images.get(&base).copied());
        let changed = match base {
            Some(_) => self.changes_of_layers(&layers).await?,
            None => Changed::Everything,
        };
        let mut walk = self
            .begin_walk(place, workspace, View::Layers(layers))
            .await?;
        let flush = self.reader.get(&keyspace::session_flush(id)).await?;
        // One that cannot be decoded is told where it is read.
        let flush = flush.and_then(|value| FlushRecord::decode(&value).ok());
        walk.flush = flush.unwrap_or_default();
        let from = self.report.problems.len();
        let is_read = match (&changed, base) {
            (Changed::Some(changes), Some(usage)) => {
                self.check_changes(&mut walk, changes, usage).await?
            }
            _ => self.walk_image(&mut walk).await?,
        };
        self.name_paths(&walk, from).await?;
        if is_read {
            self.check_totals(id, &walk, record);
        }
        Ok(())
    }

    /// The tree of the commit that a session stands on.
    async fn tree_of_commit(&self, record: &SessionRecord) -> Result<Option<Root>, KvError> {
        let Some(id) = record.commit else {
            return Ok(None);
        };
        let key = keyspace::commit(record.workspace, id);
        let value = self.reader.get(&key).await?;
        let commit = value.and_then(|value| CommitRecord::decode(&value).ok());
        Ok(commit.map(|commit| commit.root()))
    }

    /// The files of an image that is a tree and nothing else. `false` if not all was read.
    pub(super) async fn check_base_image(
        &mut self,
        (of, workspace): (Of, WorkspaceId),
        record: &WorkspaceRecord,
        base: Base,
        changed: Changed,
    ) -> Result<bool, KvError> {
        let view = View::Base(base);
        let mut walk = self.begin_walk((of, workspace), record, view).await?;
        let from = self.report.problems.len();
        let is_read = match changed {
            Changed::Everything => self.walk_image(&mut walk).await?,
            Changed::Some(changes) => {
                let none = Usage::default();
                self.check_changes(&mut walk, &changes, none).await?
            }
        };
        self.name_paths(&walk, from).await?;
        Ok(is_read)
    }

    /// Goes through all keys of an image. `false` if it cannot be read.
    async fn walk_image(&mut self, walk: &mut Walk) -> Result<bool, KvError> {
        let kv = self.reader.kv();
        let scan = match &walk.view {
            View::Layers(layers) => ImageScan::new(kv, layers),
            View::Base(base) => ImageScan::of_base(kv, base),
        };
        self.walk_scan(walk, scan).await
    }

    /// Goes through some inodes of an image. `false` if they cannot be read.
    pub(super) async fn walk_scan(
        &mut self,
        walk: &mut Walk,
        mut scan: ImageScan<'_>,
    ) -> Result<bool, KvError> {
        let mut seen: Option<Seen> = None;
        loop {
            let (key, value) = match scan.next().await {
                Ok(None) => break,
                Ok(Some(pair)) => pair,
                Err(ImageError::Kv(error)) => return Err(error),
                // Told where the layer or the tree is read.
                Err(ImageError::Record(_) | ImageError::Key(_)) => continue,
                Err(ImageError::Tree(error)) => {
                    let of = walk.of;
                    self.report
                        .add(of.to_string(), error.to_string(), of.remedy());
                    return Ok(false);
                }
            };
            let inode = key.inode();
            if seen.as_ref().is_none_or(|seen| seen.inode != inode)
                && let Some(before) = seen.replace(Seen::new(inode))
            {
                self.check_inode(walk, before).await?;
            }
            if let Some(seen) = &mut seen {
                self.check_pair(walk, seen, key, &value).await?;
            }
            self.progressed();
        }
        if let Some(last) = seen {
            self.check_inode(walk, last).await?;
        }
        Ok(true)
    }

    /// The trees of a session's workspace. A damaged tenant is told where it is read.
    async fn tree_of(
        &self,
        record: &SessionRecord,
        workspace: &WorkspaceRecord,
    ) -> Result<Option<Tree>, KvError> {
        let found = self.reader.get(&keyspace::tenant(record.tenant)).await?;
        let tenant = found.and_then(|value| TenantRecord::decode(&value).ok());
        let trees = match self.options.trees {
            Some(trees) => trees,
            None if record.base.is_some() => return Ok(None),
            None => &NoTrees,
        };
        Ok(tenant.map(|tenant| tree_of(trees, record.tenant, &tenant, workspace)))
    }

    async fn begin_walk(
        &self,
        (of, id): (Of, WorkspaceId),
        workspace: &WorkspaceRecord,
        view: View,
    ) -> Result<Walk, KvError> {
        let counter = self.reader.get(&keyspace::inodes(id)).await?;
        let counter = counter.and_then(|value| (*value).try_into().map(u64::from_le_bytes).ok());
        Ok(Walk {
            of,
            view,
            hasher: NameHasher::new(workspace.name_key),
            block_bytes: u64::from(workspace.block_bytes),
            domain: DomainId::new(workspace.tenant.raw()),
            flush: FlushRecord::default(),
            numbers_end: counter.unwrap_or(0),
            usage: Usage::default(),
            known: HashSet::new(),
        })
    }

    async fn check_pair(
        &mut self,
        walk: &Walk,
        seen: &mut Seen,
        key: ImageKey,
        value: &Bytes,
    ) -> Result<(), KvError> {
        match key {
            ImageKey::Inode(inode) => {
                self.report.counts.inodes += 1;
                let decoded = InodeRecord::decode(inode, value);
                seen.record = self.image_record(walk, inode, "attributes", decoded);
            }
            ImageKey::Entry { dir, hash, name } => {
                self.report.counts.entries += 1;
                seen.entries += 1;
                if hash != walk.hasher.hash(name.as_bytes()) {
                    let what = format!("entry {name:?} is not where its name belongs");
                    self.inode_problem(walk, dir, what);
                }
                let place = format!("entry {name:?}");
                let entry = self.image_record(walk, dir, &place, Entry::decode(value));
                if let Some(entry) = entry {
                    seen.subdirs += u64::from(entry.kind == FileKind::Directory);
                    self.check_entry(walk, dir, &name, entry).await?;
                }
            }
            ImageKey::Block { inode, index } => {
                self.report.counts.blocks += 1;
                seen.blocks += 1;
                let place = format!("block {index}");
                let block = self.image_record(walk, inode, &place, block::decode(value));
                if let Some(block) = block {
                    seen.used += allocated(Some(&block), [None, None]);
                    self.check_block(walk, seen, index, &block);
                }
            }
            ImageKey::Link {
                inode,
                parent,
                name,
            } => {
                seen.links += 1;
                if !value.is_empty() {
                    self.inode_problem(walk, inode, format!("link {name:?} holds something"));
                }
                let first = seen.record.as_ref().and_then(|record| record.link.as_ref());
                if first.is_some_and(|(at, other)| *at == parent && *other == name) {
                    self.inode_problem(walk, inode, format!("link {name:?} is counted twice"));
                }
                self.check_link(walk, inode, parent, &name).await?;
            }
            // Told before, as an item of its own.
            ImageKey::Cut { .. } => {}
            ImageKey::Conflict(id) => {
                let decoded = Conflict::decode(value);
                self.image_record(walk, keys::RECORDS, "conflict", decoded);
                if Conflict::id(value) != id {
                    let what = "a conflict is not where its content belongs";
                    self.inode_problem(walk, keys::RECORDS, what);
                }
                seen.conflicts += 1;
            }
        }
        Ok(())
    }

    /// From a directory to what an entry leads to, and back.
    pub(super) async fn check_entry(
        &mut self,
        walk: &Walk,
        dir: InodeId,
        name: &Name,
        entry: Entry,
    ) -> Result<(), KvError> {
        let child = entry.inode;
        let Some(record) = self.inode_record(walk, child).await? else {
            let what = format!("entry {name:?} leads to inode {child}, which does not exist");
            self.inode_problem(walk, dir, what);
            return Ok(());
        };
        if record.stat.kind != entry.kind {
            let (said, is) = (entry.kind, record.stat.kind);
            let what = format!("entry {name:?} says {said:?}, but inode {child} is a {is:?}");
            self.inode_problem(walk, dir, what);
        }
        let is_first = record
            .link
            .is_some_and(|(at, first)| at == dir && first == *name);
        let further = keys::link(child, dir, name);
        if !is_first && self.image_value(walk, &further).await?.is_none() {
            let what = format!("entry {name:?} leads to inode {child}, which knows no such name");
            self.inode_problem(walk, dir, what);
        }
        Ok(())
    }

    /// From an inode to the entry that a name of it is.
    pub(super) async fn check_link(
        &mut self,
        walk: &Walk,
        inode: InodeId,
        parent: InodeId,
        name: &Name,
    ) -> Result<(), KvError> {
        let hash = walk.hasher.hash(name.as_bytes());
        let key = keys::entry(parent, hash, name.as_bytes());
        // What cannot be decoded is told where the directory is read.
        let leads_here = self
            .image_value(walk, &key)
            .await?
            .is_some_and(|value| Entry::decode(&value).map_or(true, |entry| entry.inode == inode));
        if !leads_here {
            let what = format!("its name {name:?} is not in directory {parent}");
            self.inode_problem(walk, inode, what);
        } else if matches!(walk.view, View::Layers(_))
            && self
                .image_value(walk, &keys::inode(parent))
                .await?
                .is_none()
        {
            // With its attributes a layer hides all of an inode, and names it no more.
            let what = format!("its name {name:?} is in directory {parent}, which does not exist");
            self.inode_problem(walk, inode, what);
        }
        Ok(())
    }

    fn check_block(&mut self, walk: &Walk, seen: &Seen, index: u32, block: &Block) {
        let inode = seen.inode;
        let mut problem = |what: String| {
            (self.report).add_of(walk.of, inode, format!("block {index} {what}"));
        };
        let end = u64::from(block.end());
        let size = seen
            .record
            .as_ref()
            .map_or(u64::MAX, |record| record.stat.size);
        if block.is_hole() {
            problem("holds nothing".into());
        } else if end > walk.block_bytes {
            problem(format!(
                "is {end} bytes long, of at most {}",
                walk.block_bytes
            ));
        } else if (u64::from(index) * walk.block_bytes).saturating_add(end) > size {
            problem(format!("goes beyond the file's {size} bytes"));
        }
        if block.patches.bytes() > PATCH_BYTES_MAX || block.patches.len() > PATCHES_MAX {
            problem("has too many patches".into());
        }
        match &block.body {
            Body::Empty => {}
            Body::Inline(bytes) if bytes.len() > INLINE_BLOCK_BYTES_MAX => {
                problem(format!(
                    "holds {} bytes that belong into a chunk",
                    bytes.len()
                ));
            }
            Body::Inline(_) => {}
            Body::Chunk { id, bytes } => {
                if u64::from(*bytes) > walk.block_bytes {
                    problem(format!("has a chunk of {bytes} bytes"));
                }
                let exists = self.options.chunk_exists;
                if exists.is_some_and(|exists| !exists(walk.domain, *id)) {
                    problem(format!("needs chunk {id}, which is missing or damaged"));
                    self.is_damaged = true;
                }
                self.report.counts.chunks += 1;
            }
        }
    }

    /// After the last key of an inode: whether its attributes say what was seen.
    async fn check_inode(&mut self, walk: &mut Walk, seen: Seen) -> Result<(), KvError> {
        let inode = seen.inode;
        let Some(record) = &seen.record else {
            if seen.is_records() {
                return Ok(());
            }
            self.inode_problem(walk, inode, "has content but no attributes");
            return Ok(());
        };
        let inline = match record.stat.kind {
            FileKind::File => record.inline.clone(),
            _ => None,
        };
        let used = match inline {
            Some(content) => seen.used + allocated(Some(&Block::inline(content)), [None, None]),
            None => seen.used,
        };
        for what in seen.contradictions(record, used) {
            self.inode_problem(walk, inode, what);
        }
        walk.usage.bytes = walk.usage.bytes.saturating_add(record.stat.used);
        if inode != InodeId::ROOT {
            walk.usage.inodes += 1;
            self.check_number(walk, inode);
        }
        match &record.link {
            Some((parent, name)) if inode != InodeId::ROOT => {
                self.check_link(walk, inode, *parent, name).await?;
            }
            None if inode == InodeId::ROOT => {}
            Some(_) => self.inode_problem(walk, inode, "the root directory has a name"),
            None => self.inode_problem(walk, inode, "has no name"),
        }
        if record.stat.is_dir() {
            self.check_hangs(walk, inode, record).await?;
        }
        Ok(())
    }

    fn check_number(&mut self, walk: &Walk, inode: InodeId) {
        let numbers = walk.flush.totals.numbers;
        let number = inode.raw();
        if number >= walk.numbers_end || number < base::limits::INODE_BLOCK {
            self.inode_problem(walk, inode, "has a number that was never given out");
        } else if (numbers.next..numbers.end).contains(&number) {
            let what = "has a number that the session would give out again";
            self.inode_problem(walk, inode, what);
        }
    }

    /// Whether a directory hangs below the root: goes up until something known.
    async fn check_hangs(
        &mut self,
        walk: &mut Walk,
        inode: InodeId,
        record: &InodeRecord,
    ) -> Result<(), KvError> {
        let mut passed = HashSet::new();
        let (mut at, mut link) = (inode, record.link.clone());
        while at != InodeId::ROOT && !walk.known.contains(&at) {
            if !passed.insert(at) {
                self.inode_problem(walk, inode, "hangs in a circle, not below the root");
                return Ok(());
            }
            let Some((parent, _)) = link else {
                self.inode_problem(walk, inode, "does not hang below the root");
                return Ok(());
            };
            let above = self.inode_record(walk, parent).await?;
            let Some(above) = above.filter(|above| above.stat.is_dir()) else {
                let what = format!("hangs below {parent}, which is no directory");
                self.inode_problem(walk, inode, what);
                return Ok(());
            };
            (at, link) = (parent, above.link);
        }
        if walk.known.len() < KNOWN_MAX {
            walk.known.extend(passed);
        }
        Ok(())
    }

    fn check_totals(&mut self, id: SessionId, walk: &Walk, record: &SessionRecord) {
        let totals = walk.flush.totals;
        if totals.usage != walk.usage {
            let (said, is) = (totals.usage, walk.usage);
            let what = format!(
                "says that it uses {} bytes and {} inodes, but uses {} and {}",
                said.bytes, said.inodes, is.bytes, is.inodes
            );
            self.session_problem(id, what);
        }
        let numbers = totals.numbers;
        if numbers.next > numbers.end || numbers.end > walk.numbers_end {
            let what = "may give out inode numbers that its workspace did not give it";
            self.session_problem(id, what);
        }
        if numbers.next < numbers.end {
            self.numbers.push((record.workspace, numbers, id));
        }
    }

    /// The attributes of an inode. What cannot be decoded is told where it is read, and taken for
    /// missing here.
    pub(super) async fn inode_record(
        &self,
        walk: &Walk,
        inode: InodeId,
    ) -> Result<Option<InodeRecord>, KvError> {
        let value = self.image_value(walk, &keys::inode(inode)).await?;
        Ok(value.and_then(|value| InodeRecord::decode(inode, &value).ok()))
    }

    /// The value of an image key. One that cannot be read is told where its layer is, and taken
    /// for missing here.
    pub(super) async fn image_value(
        &self,
        walk: &Walk,
        key: &[u8],
    ) -> Result<Option<Bytes>, KvError> {
        let txn = self.reader.kv().begin();
        let value = match &walk.view {
            View::Layers(layers) => layers.get(txn.as_ref(), key).await,
            View::Base(base) => base.get(key).await,
        };
        match value {
            Ok(value) => Ok(value),
            Err(ImageError::Kv(error)) => Err(error),
            Err(ImageError::Record(_) | ImageError::Key(_) | ImageError::Tree(_)) => Ok(None),
        }
    }

    fn image_record<T>(
        &mut self,
        walk: &Walk,
        inode: InodeId,
        what: &str,
        decoded: Result<T, RecordError>,
    ) -> Option<T> {
        decoded
            .map_err(|error| self.inode_problem(walk, inode, format!("{what}: {error}")))
            .ok()
    }

    pub(super) fn inode_problem(&mut self, walk: &Walk, inode: InodeId, what: impl Into<String>) {
        self.report.add_of(walk.of, inode, what);
    }
}

impl Seen {
    fn new(inode: InodeId) -> Self {
        Self {
            inode,
            record: None,
            entries: 0,
            subdirs: 0,
            links: 0,
            used: 0,
            blocks: 0,
            conflicts: 0,
        }
    }

    /// Whether these are an image's own records and nothing else.
    fn is_records(&self) -> bool {
        let of_an_inode = self.entries + self.links + self.blocks;
        self.inode == keys::RECORDS && self.conflicts > 0 && of_an_inode == 0
    }

    /// Where attributes say something else than was seen.
    fn contradictions(&self, record: &InodeRecord, used: u64) -> Vec<String> {
        let stat = &record.stat;
        let is_root = self.inode == InodeId::ROOT;
        let mut found = Vec::new();
        let mut unless = |holds: bool, what: String| {
            if !holds {
                found.push(what);
            }
        };
        unless(
            record.entries == self.entries,
            format!("says {} entries, has {}", record.entries, self.entries),
        );
        let names = if stat.is_dir() {
            2 + self.subdirs
        } else {
            self.links + u64::from(record.link.is_some())
        };
        unless(
            u64::from(stat.nlink) == names,
            format!("says {} links, has {names}", stat.nlink),
        );
        unless(
            stat.used == used,
            format!("says {} bytes are used, has {used}", stat.used),
        );
        unless(
            stat.is_dir() || self.entries == 0,
            "is no directory, but has entries".into(),
        );
        unless(
            !stat.is_dir() || self.links == 0,
            "is a directory with further names".into(),
        );
        let is_file = stat.kind == FileKind::File;
        unless(
            is_file || self.blocks == 0,
            "is no file, but has blocks".into(),
        );
        unless(
            is_file || record.verifier.is_none(),
            "is no file, but has a verifier".into(),
        );
        unless(
            stat.is_dir() || !is_root,
            "is the root, but no directory".into(),
        );
        let inline = record
            .inline
            .as_ref()
            .map(|content| u64::try_from(content.len()).unwrap_or(u64::MAX));
        let inline_max = u64::try_from(INLINE_FILE_BYTES_MAX).unwrap_or(u64::MAX);
        let inline_fits = match (stat.kind, inline) {
            (FileKind::File, None) => true,
            (FileKind::File, Some(bytes)) => self.blocks == 0 && bytes <= inline_max.min(stat.size),
            (FileKind::Symlink, Some(bytes)) => bytes == stat.size && bytes > 0,
            (_, inline) => inline.is_none() && stat.kind != FileKind::Symlink,
        };
        unless(inline_fits, "has content that does not fit it".into());
        found
    }
}
