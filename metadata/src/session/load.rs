//! Answering what an operation missed.

use std::collections::BTreeSet;

use base::{InodeId, Name};
use bytes::Bytes;

use crate::conflicts::ConflictId;
use crate::error::Miss;
use crate::image::{Block, Image, LoadedEntry};
use crate::keyspace::image::{self as keys, ImageKey};
use crate::kv::Kv;
use crate::layers::{ImageError, Layers};
use crate::record::RecordError;
use crate::record::entry::Entry;
use crate::record::inode::InodeRecord;

/// Directory entries read at a time: a listing's page, and cheap enough for one name.
const ENTRIES_PAGE: usize = 512;

/// Block map entries read at a time.
const BLOCKS_PAGE: usize = 1024;

/// What was read, to be installed into the image.
#[derive(Debug)]
pub enum Loaded {
    /// An inode, or that there is none.
    Inode(InodeId, Option<Box<InodeRecord>>),
    /// All entries of a directory with hashes in a span.
    Entries {
        /// The directory.
        dir: InodeId,
        /// First hash covered.
        first: u64,
        /// Last hash covered.
        last: u64,
        /// What is there.
        found: Vec<LoadedEntry>,
    },
    /// All blocks of a file in a span.
    Blocks {
        /// The file.
        inode: InodeId,
        /// First block covered.
        first: u32,
        /// Last block covered.
        last: u32,
        /// What is there.
        found: Vec<(u32, Block)>,
    },
    /// All further links of an inode.
    Links(InodeId, BTreeSet<(InodeId, Name)>),
    /// Whether a conflict is there.
    Conflict(ConflictId, bool),
}

impl Loaded {
    /// Puts what was read into the image.
    pub fn install(self, image: &mut Image) {
        match self {
            Self::Inode(inode, record) => image.install_inode(inode, record.map(|record| *record)),
            Self::Entries {
                dir,
                first,
                last,
                found,
            } => {
                image.install_entries(dir, first, last, found);
            }
            Self::Blocks {
                inode,
                first,
                last,
                found,
            } => {
                image.install_blocks(inode, first, last, found);
            }
            Self::Links(inode, found) => image.install_links(inode, found),
            Self::Conflict(id, is_there) => image.install_conflict(id, is_there),
        }
    }
}

/// Reads what `miss` names, and a little beyond. `Ok(None)` means that the image cannot answer it:
/// inode numbers come from the workspace.
///
/// # Errors
///
/// The store fails or stored data is damaged.
///
/// # Cancellation
///
/// Safe to drop.
pub async fn load(kv: &dyn Kv, layers: &Layers, miss: Miss) -> Result<Option<Loaded>, ImageError> {
    Ok(Some(match miss {
        Miss::Inode(inode) => load_inode(kv, layers, inode).await?,
        Miss::Entries { dir, from } => load_entries(kv, layers, dir, from).await?,
        Miss::Blocks { inode, first, last } => load_blocks(kv, layers, inode, first, last).await?,
        Miss::Links(inode) => load_links(kv, layers, inode).await?,
        Miss::Conflict(id) => {
            let found = layers
                .get(kv.begin().as_ref(), &keys::conflict(&id))
                .await?;
            Loaded::Conflict(id, found.is_some())
        }
        Miss::InodeNumbers => return Ok(None),
    }))
}

async fn load_inode(kv: &dyn Kv, layers: &Layers, inode: InodeId) -> Result<Loaded, ImageError> {
    let txn = kv.begin();
    let record = match layers.get(txn.as_ref(), &keys::inode(inode)).await? {
        Some(value) => Some(Box::new(InodeRecord::decode(inode, &value)?)),
        None => None,
    };
    Ok(Loaded::Inode(inode, record))
}

async fn load_entries(
    kv: &dyn Kv,
    layers: &Layers,
    dir: InodeId,
    from: u64,
) -> Result<Loaded, ImageError> {
    let txn = kv.begin();
    let range = keys::entries_from(dir, from);
    let mut pairs_max = ENTRIES_PAGE;
    loop {
        let scanned = layers.scan(txn.as_ref(), &range, pairs_max).await?;
        let last = match &scanned.covered_to {
            None => u64::MAX,
            Some(key) => match keys::decode(key)? {
                // The page may end within a group of equal hashes, which then is not covered.
                ImageKey::Entry { hash, .. } if hash > from => hash - 1,
                ImageKey::Entry { .. } => {
                    pairs_max *= 2;
                    continue;
                }
                _ => return Err(RecordError::Field("directory entry key").into()),
            },
        };
        let mut found = Vec::with_capacity(scanned.pairs.len());
        for (key, value) in &scanned.pairs {
            let ImageKey::Entry { hash, name, .. } = keys::decode(key)? else {
                return Err(RecordError::Field("directory entry key").into());
            };
            if hash <= last {
                found.push(LoadedEntry {
                    hash,
                    name,
                    entry: Entry::decode(value)?,
                });
            }
        }
        return Ok(Loaded::Entries {
            dir,
            first: from,
            last,
            found,
        });
    }
}

async fn load_blocks(
    kv: &dyn Kv,
    layers: &Layers,
    inode: InodeId,
    first: u32,
    last: u32,
) -> Result<Loaded, ImageError> {
    let txn = kv.begin();
    // Read ahead to the end of the page, so that a sequential reader misses once in a while.
    let page = u32::try_from(BLOCKS_PAGE).unwrap_or(u32::MAX);
    let last = last.max(first.saturating_add(page - 1));
    let scanned = layers
        .scan_blocks(txn.as_ref(), inode, (first, last), BLOCKS_PAGE)
        .await?;
    let mut found = Vec::with_capacity(scanned.pairs.len());
    for (key, value) in &scanned.pairs {
        found.push((block_index(key)?, crate::record::block::decode(value)?));
    }
    let last = match &scanned.covered_to {
        None => last,
        Some(key) => block_index(key)?,
    };
    Ok(Loaded::Blocks {
        inode,
        first,
        last,
        found,
    })
}

fn block_index(key: &Bytes) -> Result<u32, ImageError> {
    match keys::decode(key)? {
        ImageKey::Block { index, .. } => Ok(index),
        _ => Err(RecordError::Field("block key").into()),
    }
}

async fn load_links(kv: &dyn Kv, layers: &Layers, inode: InodeId) -> Result<Loaded, ImageError> {
    let txn = kv.begin();
    let mut range = keys::links(inode);
    let mut links = BTreeSet::new();
    loop {
        let scanned = layers.scan(txn.as_ref(), &range, ENTRIES_PAGE).await?;
        for (key, _) in &scanned.pairs {
            let ImageKey::Link { parent, name, .. } = keys::decode(key)? else {
                return Err(RecordError::Field("link key").into());
            };
            links.insert((parent, name));
        }
        let Some(last) = scanned.covered_to else {
            return Ok(Loaded::Links(inode, links));
        };
        let mut next = last.to_vec();
        next.push(0);
        range.start = next.into();
    }
}
