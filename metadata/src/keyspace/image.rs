//! Keys of a filesystem image: the same in deltas and trees.

use base::{InodeId, Name};

use super::{KeyError, KeyReader};
use crate::kv::KeyRange;

const ATTRIBUTES: u8 = 0;
const ENTRY: u8 = 1;
const BLOCK: u8 = 2;
const LINK: u8 = 4;
const CONFLICT: u8 = 5;

/// The inode under whose number the image's own records are. It is never given out.
pub const RECORDS: InodeId = InodeId::new(0);

/// A decoded image key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageKey {
    /// Attributes of an inode.
    Inode(InodeId),
    /// An entry of a directory.
    Entry {
        /// The directory.
        dir: InodeId,
        /// Hash of the name.
        hash: u64,
        /// The name.
        name: Name,
    },
    /// A block of a file.
    Block {
        /// The file.
        inode: InodeId,
        /// Index of the block.
        index: u32,
    },
    /// A further hard link.
    Link {
        /// The inode.
        inode: InodeId,
        /// The directory that holds the link.
        parent: InodeId,
        /// The link's name.
        name: Name,
    },
    /// Blocks of lower layers are gone from here on.
    Cut {
        /// The file.
        inode: InodeId,
        /// The first block that is gone.
        first: u32,
    },
    /// A conflict of a merge, by its id.
    Conflict([u8; 16]),
}

impl ImageKey {
    /// The inode whose key it is.
    #[must_use]
    pub fn inode(&self) -> InodeId {
        match self {
            Self::Inode(inode)
            | Self::Block { inode, .. }
            | Self::Link { inode, .. }
            | Self::Cut { inode, .. } => *inode,
            Self::Entry { dir, .. } => *dir,
            Self::Conflict(_) => RECORDS,
        }
    }
}

fn key(inode: InodeId, part: u8, tail: &[&[u8]]) -> Vec<u8> {
    let mut key = Vec::with_capacity(9 + tail.iter().map(|field| field.len()).sum::<usize>());
    key.extend_from_slice(&inode.raw().to_be_bytes());
    key.push(part);
    for field in tail {
        key.extend_from_slice(field);
    }
    key
}

/// Attributes of `inode`.
#[must_use]
pub fn inode(inode: InodeId) -> Vec<u8> {
    key(inode, ATTRIBUTES, &[])
}

/// Whether `key` is that of the attributes of an inode.
#[must_use]
pub fn is_inode(key: &[u8]) -> bool {
    key.split_last_chunk::<9>().is_some_and(|(before, key)| {
        let [inode @ .., part] = key;
        before.is_empty() && *part == ATTRIBUTES && *inode != [0; 8]
    })
}

/// Everything of `inode`.
#[must_use]
pub fn inode_range(inode: InodeId) -> KeyRange {
    KeyRange::prefix(&inode.raw().to_be_bytes())
}

/// Entry `name` of `dir`.
#[must_use]
pub fn entry(dir: InodeId, hash: u64, name: &[u8]) -> Vec<u8> {
    key(dir, ENTRY, &[&hash.to_be_bytes(), name])
}

/// Entries of `dir` from hash `from` on.
#[must_use]
pub fn entries_from(dir: InodeId, from: u64) -> KeyRange {
    let start = key(dir, ENTRY, &[&from.to_be_bytes()]);
    KeyRange {
        start: start.into(),
        end: key(dir, ENTRY + 1, &[]).into(),
    }
}

/// Block `index` of `inode`.
#[must_use]
pub fn block(inode: InodeId, index: u32) -> Vec<u8> {
    key(inode, BLOCK, &[&index.to_be_bytes()])
}

/// Blocks of `inode` from `first` on.
#[must_use]
pub fn blocks_from(inode: InodeId, first: u32) -> KeyRange {
    KeyRange {
        start: block(inode, first).into(),
        end: key(inode, BLOCK + 1, &[]).into(),
    }
}

/// Blocks `first..=last` of `inode`.
#[must_use]
pub fn blocks(inode: InodeId, first: u32, last: u32) -> KeyRange {
    let mut range = blocks_from(inode, first);
    if let Some(next) = last.checked_add(1) {
        range.end = block(inode, next).into();
    }
    range
}

/// The further link `name` in `parent` of `inode`.
#[must_use]
pub fn link(inode: InodeId, parent: InodeId, name: &Name) -> Vec<u8> {
    key(inode, LINK, &[&parent.raw().to_be_bytes(), name.as_bytes()])
}

/// All further links of `inode`.
#[must_use]
pub fn links(inode: InodeId) -> KeyRange {
    KeyRange::prefix(&key(inode, LINK, &[]))
}

/// The mark that blocks of `inode` from `first` on are gone in the layers below.
#[must_use]
pub fn cut(inode: InodeId, first: u32) -> Vec<u8> {
    key(inode, ATTRIBUTES, &[&first.to_be_bytes()])
}

/// The marks of cuts of `inode` at `first` and after it.
#[must_use]
pub fn cuts_from(inode: InodeId, first: u32) -> KeyRange {
    KeyRange {
        start: cut(inode, first).into(),
        end: key(inode, ATTRIBUTES + 1, &[]).into(),
    }
}

/// The conflict `id`.
#[must_use]
pub fn conflict(id: &[u8; 16]) -> Vec<u8> {
    key(RECORDS, CONFLICT, &[id])
}

/// All conflicts.
#[must_use]
pub fn conflicts() -> KeyRange {
    KeyRange::prefix(&key(RECORDS, CONFLICT, &[]))
}

/// Decodes an image key.
///
/// # Errors
///
/// The bytes are not an image key.
pub fn decode(bytes: &[u8]) -> Result<ImageKey, KeyError> {
    let mut fields = KeyReader::new(bytes);
    let inode = InodeId::new(fields.u64()?);
    let name = |tail: &[u8]| Name::new(tail).map_err(|_| KeyError::BadName);
    Ok(match fields.u8()? {
        ATTRIBUTES if fields.0.is_empty() => ImageKey::Inode(inode),
        // After the attributes and before the blocks, so that a reader in key order knows.
        ATTRIBUTES => {
            let first = fields.u32()?;
            fields.end()?;
            ImageKey::Cut { inode, first }
        }
        ENTRY => {
            let hash = fields.u64()?;
            ImageKey::Entry {
                dir: inode,
                hash,
                name: name(fields.tail())?,
            }
        }
        BLOCK => {
            let index = fields.u32()?;
            fields.end()?;
            ImageKey::Block { inode, index }
        }
        LINK => {
            let parent = InodeId::new(fields.u64()?);
            ImageKey::Link {
                inode,
                parent,
                name: name(fields.tail())?,
            }
        }
        CONFLICT if inode == RECORDS => {
            let id = fields.array()?;
            fields.end()?;
            ImageKey::Conflict(id)
        }
        _ => return Err(KeyError::WrongTable),
    })
}
