//! Trees out.

use std::collections::VecDeque;
use std::ops::Range;

use base::{InodeId, Name, TenantId};
use bytes::Bytes;
use metadata::compare::{FilePieces, LongPath, PATH_BYTES_MAX, Snapshot, SnapshotError, Source};
use metadata::record::entry::Entry;
use metadata::record::inode::InodeRecord;
use metadata::stat::FileKind;
use metadata::store::CommitInfo;

use super::TransferError;
use crate::gateway::Gateway;
use crate::history::{Versions, part_of};

/// Entries of a directory that are read at a time.
const PAGE: usize = 500;

/// Reads all that a commit has: directories before what is in them, files before their further names.
///
/// Memory is bounded by the depth of the tree. Further names are told at the end, by a second walk,
/// so that no list of files with several names is needed.
#[derive(Debug)]
pub struct Exporting {
    commit: CommitInfo,
    snapshot: Snapshot,
    versions: Versions,
    path: Vec<u8>,
    levels: Vec<Level>,
    /// What is the same in this version is told to be.
    since: Option<Snapshot>,
    /// The root was told.
    has_begun: bool,
    /// Something has further names, which the second walk tells.
    has_links: bool,
    /// This is the second walk.
    is_second: bool,
}

/// Something that a commit has.
#[derive(Clone, Debug)]
pub struct Found {
    /// Names from the root on, with `/` between them. Empty for the root.
    pub path: Vec<u8>,
    /// Its attributes.
    pub record: InodeRecord,
    /// For a further name: the path under which it was told before.
    pub link_to: Option<Vec<u8>>,
    /// It is the same, with all its attributes and content, in the version that was given to compare
    /// with. Never for directories.
    pub is_kept: bool,
}

/// A directory that is being read.
#[derive(Debug)]
struct Level {
    dir: InodeId,
    /// The directory at the same path in the version that is compared with.
    since: Option<InodeId>,
    /// Length of its path.
    path: usize,
    page: VecDeque<(Name, Entry, InodeRecord)>,
    after: Option<Name>,
    more: bool,
}

impl Gateway {
    /// Begins to read what a version of a workspace has. What `since` has as well is told to be kept.
    ///
    /// # Errors
    ///
    /// See [`TransferError`]; `NotFound` for the workspace or the version.
    pub async fn begin_export(
        &self,
        tenant: TenantId,
        workspace: &str,
        version: &str,
        since: Option<&str>,
    ) -> Result<Exporting, TransferError> {
        let workspace = self.store.workspace_by_name(tenant, workspace).await?;
        let commit = self.store.resolve_version(workspace.id, version).await?;
        let versions = self.versions(tenant, &workspace).await?;
        let since = match since {
            Some(since) => {
                let since = self.store.resolve_version(workspace.id, since).await?;
                Some(versions.of(&since))
            }
            None => None,
        };
        Ok(Exporting {
            snapshot: versions.of(&commit),
            since,
            commit,
            versions,
            path: Vec::new(),
            levels: Vec::new(),
            has_begun: false,
            has_links: false,
            is_second: false,
        })
    }
}

impl Level {
    fn new(dir: InodeId, path: usize, since: Option<InodeId>) -> Self {
        Self {
            dir,
            since,
            path,
            page: VecDeque::new(),
            after: None,
            more: true,
        }
    }
}

impl Exporting {
    /// The commit.
    #[must_use]
    pub fn commit(&self) -> &CommitInfo {
        &self.commit
    }

    /// The next thing; `None` after the last.
    ///
    /// # Errors
    ///
    /// See [`TransferError`].
    ///
    /// # Cancellation
    ///
    /// Not cancel-safe: something may be left out then.
    pub async fn next(&mut self) -> Result<Option<Found>, TransferError> {
        if !self.has_begun {
            self.has_begun = true;
            self.enter_root();
            let root = self.snapshot.attributes(InodeId::ROOT).await?;
            let record = root.ok_or_else(|| damaged(InodeId::ROOT, "is missing"))?;
            return Ok(Some(Found {
                path: Vec::new(),
                record,
                link_to: None,
                is_kept: false,
            }));
        }
        loop {
            let Some((dir, name, entry, record)) = self.step().await? else {
                if self.is_second || !self.has_links {
                    return Ok(None);
                }
                self.is_second = true;
                self.enter_root();
                continue;
            };
            let is_dir = record.stat.is_dir();
            let before = self.before(&name).await?;
            if is_dir {
                let before = before.filter(|before| before.kind == FileKind::Directory);
                let before = before.map(|before| before.inode);
                let level = Level::new(entry.inode, self.path.len(), before);
                self.levels.push(level);
            }
            let is_first = record.link.as_ref() == Some(&(dir, name));
            if !is_dir && !is_first {
                self.has_links = true;
                if self.is_second {
                    let first = self.snapshot.paths_of(entry.inode).next().await?;
                    let first = first.ok_or_else(|| damaged(entry.inode, "has no name"))?;
                    return Ok(Some(self.found(record, Some(first))));
                }
            } else if !self.is_second {
                let mut found = self.found(record, None);
                if !is_dir && let Some(before) = before {
                    found.is_kept = self.is_same(&found.record, before.inode).await?;
                }
                return Ok(Some(found));
            }
        }
    }

    fn enter_root(&mut self) {
        let since = self.since.as_ref().map(|_| InodeId::ROOT);
        self.levels.push(Level::new(InodeId::ROOT, 0, since));
    }

    /// What the version that is compared with has under a name of the current directory.
    async fn before(&self, name: &Name) -> Result<Option<Entry>, TransferError> {
        let dir = self.levels.last().and_then(|level| level.since);
        match (&self.since, dir) {
            (Some(since), Some(dir)) if !self.is_second => {
                Ok(since.entry(dir, name.as_bytes()).await?)
            }
            _ => Ok(None),
        }
    }

    /// Whether something is there with the same attributes and content. What has several names is
    /// told anew: its other names are told after it.
    async fn is_same(&self, record: &InodeRecord, before: InodeId) -> Result<bool, TransferError> {
        let Some(since) = &self.since else {
            return Ok(false);
        };
        let Some(old) = since.attributes(before).await? else {
            return Ok(false);
        };
        let what = |record: &InodeRecord| {
            let stat = record.stat;
            (
                (stat.kind, stat.mode, stat.uid, stat.gid, stat.nlink),
                (stat.size, stat.used, stat.device, stat.atime, stat.mtime),
                record.inline.clone(),
            )
        };
        if what(record) != what(&old) || record.stat.nlink != 1 {
            return Ok(false);
        }
        let mut pieces = self.pieces(record, 0..u64::MAX);
        let mut others = self.versions.pieces(since, &old, 0..u64::MAX);
        loop {
            let (piece, other) = (pieces.next().await?, others.next().await?);
            if piece != other {
                return Ok(false);
            }
            if piece.is_none() {
                return Ok(true);
            }
        }
    }

    fn found(&self, record: InodeRecord, link_to: Option<Vec<u8>>) -> Found {
        Found {
            path: self.path.clone(),
            record,
            link_to,
            is_kept: false,
        }
    }

    /// The next entry of the directory that was entered last, or of those above it. Its path is then
    /// `self.path`.
    async fn step(&mut self) -> Result<Option<(InodeId, Name, Entry, InodeRecord)>, TransferError> {
        loop {
            let Some(level) = self.levels.last_mut() else {
                return Ok(None);
            };
            if let Some((name, entry, record)) = level.page.pop_front() {
                let dir = level.dir;
                self.path.truncate(level.path);
                if !self.path.is_empty() {
                    self.path.push(b'/');
                }
                self.path.extend_from_slice(name.as_bytes());
                // Also where directories hang in a circle.
                if self.path.len() > PATH_BYTES_MAX {
                    let long = LongPath::new(entry.inode, &self.path);
                    return Err(SnapshotError::PathTooLong(long).into());
                }
                return Ok(Some((dir, name, entry, record)));
            }
            if !level.more {
                self.levels.pop();
                continue;
            }
            let listing = self
                .snapshot
                .list(level.dir, level.after.as_ref(), PAGE)
                .await?;
            level.more = listing.more;
            level.after = listing.entries.last().map(|(name, _)| name.clone());
            let inodes: Vec<InodeId> = listing
                .entries
                .iter()
                .map(|(_, entry)| entry.inode)
                .collect();
            let records = self.snapshot.attributes_of(&inodes).await?;
            for ((name, entry), record) in listing.entries.into_iter().zip(records) {
                let what = "has a name and no attributes";
                let record = record.ok_or_else(|| damaged(entry.inode, what))?;
                level.page.push_back((name, entry, record));
            }
        }
    }

    /// Where the content of a part of a file is.
    #[must_use]
    pub fn pieces(&self, record: &InodeRecord, range: Range<u64>) -> FilePieces {
        self.versions.pieces(&self.snapshot, record, range)
    }

    /// `length` bytes of a piece of content, which is no hole.
    ///
    /// # Errors
    ///
    /// See [`TransferError`].
    pub async fn content(&self, source: &Source, length: u64) -> Result<Bytes, TransferError> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        match source {
            Source::Hole => Ok(Bytes::from(vec![0; length])),
            Source::Bytes(bytes) => Ok(bytes.clone()),
            Source::Chunk { id, offset } => {
                let Versions { chunks, domain, .. } = &self.versions;
                let chunk = chunks.get(*domain, *id).await?;
                let part = part_of(&chunk, *offset, length);
                // A block never claims more than its chunk has; if it does, zeros are what is read.
                if part.len() == length {
                    return Ok(part);
                }
                let mut part = part.to_vec();
                part.resize(length, 0);
                Ok(part.into())
            }
        }
    }
}

fn damaged(inode: InodeId, what: &'static str) -> SnapshotError {
    SnapshotError::Damaged { inode, what }
}
