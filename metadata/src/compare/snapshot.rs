//! The files of one snapshot: what `ls`, `cat` and `find` need.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use base::{InodeId, Name};
use bytes::Bytes;

use super::content::FilePieces;
use super::paths::Paths;
use super::{Place, SnapshotError};
use crate::image::NameHasher;
use crate::keyspace::KeyError;
use crate::keyspace::image::{self as keys, ImageKey};
use crate::kv::KeyRange;
use crate::record::RecordError;
use crate::record::entry::Entry;
use crate::record::inode::InodeRecord;
use crate::tree::{Root, Scan, Tree};

/// One snapshot of a workspace. Cloning shares everything.
#[derive(Clone, Debug)]
pub struct Snapshot {
    tree: Tree,
    hasher: NameHasher,
    root: Root,
}

/// Part of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Names and what they lead to, in the order of the names' hashes.
    pub entries: Vec<(Name, Entry)>,
    /// There is more after the last of them.
    pub more: bool,
}

impl Snapshot {
    /// The snapshot with this root. `hasher` is that of the workspace.
    #[must_use]
    pub fn new(tree: Tree, hasher: NameHasher, root: Root) -> Self {
        Self { tree, hasher, root }
    }

    /// The tree's root.
    #[must_use]
    pub fn root(&self) -> Root {
        self.root
    }

    /// Attributes of an inode; `None` if the snapshot has no such inode.
    ///
    /// # Errors
    ///
    /// The tree cannot be read, or the record is damaged.
    pub async fn attributes(&self, inode: InodeId) -> Result<Option<InodeRecord>, SnapshotError> {
        let value = self.tree.get(self.root, &keys::inode(inode)).await?;
        value.map(|value| decode(inode, &value)).transpose()
    }

    /// Attributes of many inodes, in their order: what a page of a listing needs.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::attributes`].
    pub async fn attributes_of(
        &self,
        inodes: &[InodeId],
    ) -> Result<Vec<Option<InodeRecord>>, SnapshotError> {
        let sorted: BTreeSet<InodeId> = inodes.iter().copied().collect();
        let wanted: Vec<Vec<u8>> = sorted.iter().copied().map(keys::inode).collect();
        let values = self.tree.get_many(self.root, &wanted).await?;
        let found: BTreeMap<InodeId, Option<Bytes>> = sorted.into_iter().zip(values).collect();
        let record = |inode: &InodeId| {
            let value = found.get(inode).and_then(Option::as_ref);
            value.map(|value| decode(*inode, value)).transpose()
        };
        inodes.iter().map(record).collect()
    }

    /// What `name` in `dir` leads to; `None` if there is no such name or no such directory.
    ///
    /// # Errors
    ///
    /// The tree cannot be read, or the record is damaged.
    pub async fn entry(&self, dir: InodeId, name: &[u8]) -> Result<Option<Entry>, SnapshotError> {
        let key = keys::entry(dir, self.hasher.hash(name), name);
        let value = self.tree.get(self.root, &key).await?;
        value.map(|value| decode_entry(dir, &value)).transpose()
    }

    /// Attributes of what is at `path`: names from the root directory on, with `/` between them.
    /// Slashes too many do not matter. Symbolic links are not followed; `.` and `..` are no names.
    ///
    /// # Errors
    ///
    /// The tree cannot be read, or something is damaged.
    pub async fn lookup(&self, path: &[u8]) -> Result<Option<InodeRecord>, SnapshotError> {
        let mut at = self.attributes(InodeId::ROOT).await?;
        let names = path.split(|byte| *byte == b'/');
        for name in names.filter(|name| !name.is_empty()) {
            let Some(dir) = at.filter(|at| at.stat.is_dir()) else {
                return Ok(None);
            };
            let dir = dir.stat.inode;
            let Some(entry) = self.entry(dir, name).await? else {
                return Ok(None);
            };
            at = Some(self.named(entry.inode).await?);
        }
        Ok(at)
    }

    /// At most `limit` entries of a directory, those after the name `after`, which need not exist.
    /// None for what is no directory.
    ///
    /// # Errors
    ///
    /// The tree cannot be read, or something is damaged.
    pub async fn list(
        &self,
        dir: InodeId,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Listing, SnapshotError> {
        let mut range = keys::entries_from(dir, 0);
        if let Some(name) = after {
            let name = name.as_bytes();
            range.start = KeyRange::key(&keys::entry(dir, self.hasher.hash(name), name)).end;
        }
        let mut scan = self.tree.scan(self.root, &range);
        let mut listing = Listing::default();
        while let Some((key, value)) = scan.next().await? {
            if listing.entries.len() >= limit {
                listing.more = true;
                break;
            }
            let ImageKey::Entry { name, .. } = keys::decode(&key)? else {
                return Err(KeyError::WrongTable.into());
            };
            listing.entries.push((name, decode_entry(dir, &value)?));
        }
        Ok(listing)
    }

    /// All paths of an inode, one for each hard link, the first link's first. Nothing is read
    /// before the first is asked for.
    #[must_use]
    pub fn paths_of(&self, inode: InodeId) -> Paths {
        Paths::new(self.clone(), inode)
    }

    /// Where the content of a file, or the target of a symbolic link, is from: the part in
    /// `range`, as far as there is any. `record` is what [`Snapshot::attributes`] or
    /// [`Snapshot::lookup`] gave, `block_bytes` the workspace's. Other kinds have no content.
    #[must_use]
    pub fn read(&self, record: &InodeRecord, block_bytes: u32, range: Range<u64>) -> FilePieces {
        FilePieces::new(self, record, block_bytes, range)
    }

    /// The value of an image key, as it is stored.
    pub(crate) async fn value(&self, key: &[u8]) -> Result<Option<Bytes>, SnapshotError> {
        Ok(self.tree.get(self.root, key).await?)
    }

    /// Attributes of an inode that something leads to.
    pub(super) async fn named(&self, inode: InodeId) -> Result<InodeRecord, SnapshotError> {
        let what = "has a name and no attributes";
        let found = self.attributes(inode).await?;
        found.ok_or(SnapshotError::Damaged { inode, what })
    }

    /// All keys of an inode.
    pub(crate) fn all_of(&self, inode: InodeId) -> Scan {
        self.tree.scan(self.root, &keys::inode_range(inode))
    }

    /// Further links of an inode.
    pub(crate) fn links(&self, inode: InodeId) -> LinkScan {
        LinkScan(self.tree.scan(self.root, &keys::links(inode)))
    }

    /// Blocks `first..=last` of a file.
    pub(crate) fn blocks(&self, inode: InodeId, first: u32, last: u32) -> Scan {
        let range = keys::blocks(inode, first, last);
        self.tree.scan(self.root, &range)
    }
}

/// Reads further links in order.
#[derive(Debug)]
pub(crate) struct LinkScan(Scan);

impl LinkScan {
    /// The next one. Safe to drop.
    pub(crate) async fn next(&mut self) -> Result<Option<Place>, SnapshotError> {
        let Some((key, _)) = self.0.next().await? else {
            return Ok(None);
        };
        match keys::decode(&key)? {
            ImageKey::Link { parent, name, .. } => Ok(Some((parent, name))),
            _ => Err(KeyError::WrongTable.into()),
        }
    }
}

/// A block and its index, from its key and its value.
pub(super) fn decode_block(
    key: &[u8],
    value: &Bytes,
) -> Result<(u32, crate::image::Block), SnapshotError> {
    match keys::decode(key)? {
        ImageKey::Block { inode, index } => {
            let block = crate::record::block::decode(value);
            Ok((index, block.map_err(record_error(inode))?))
        }
        _ => Err(KeyError::WrongTable.into()),
    }
}

/// Attributes from their value.
pub(super) fn decode(inode: InodeId, value: &[u8]) -> Result<InodeRecord, SnapshotError> {
    InodeRecord::decode(inode, value).map_err(record_error(inode))
}

fn decode_entry(dir: InodeId, value: &[u8]) -> Result<Entry, SnapshotError> {
    Entry::decode(value).map_err(record_error(dir))
}

fn record_error(inode: InodeId) -> impl FnOnce(RecordError) -> SnapshotError {
    move |error| SnapshotError::Record { inode, error }
}
