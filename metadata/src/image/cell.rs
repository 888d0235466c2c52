//! One inode in memory.

use std::collections::BTreeSet;

use base::{InodeId, Name};
use bytes::Bytes;

use super::block::{Block, Body};
use super::dir::DirData;
use super::file::FileData;
use crate::record::inode::InodeRecord;
use crate::stat::{FileKind, Stat};
use base::limits::INLINE_FILE_BYTES_MAX;

/// What the image knows of an inode number.
#[derive(Debug)]
pub(super) enum Slot {
    /// It exists.
    Live(Box<Cell>),
    /// It does not exist; the number of the change that removed it.
    Gone {
        /// 0 if it was never there.
        changed: u64,
    },
}

/// One inode in memory.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) stat: Stat,
    /// First link; only the root has none.
    pub(crate) link: Option<(InodeId, Name)>,
    /// Further links, once loaded.
    pub(crate) further_links: Option<BTreeSet<(InodeId, Name)>>,
    pub(crate) verifier: Option<[u8; 8]>,
    pub(crate) content: Content,
    /// Number of the last change a flush must write.
    pub(crate) changed: u64,
    /// Used since the last eviction looked.
    pub(crate) recent: bool,
}

/// What an inode holds.
#[derive(Debug)]
pub(crate) enum Content {
    File(FileData),
    Dir(DirData),
    Symlink(Bytes),
    Nothing,
}

impl Slot {
    /// Whether it was used since the last call.
    pub(super) fn take_recent(&mut self) -> bool {
        match self {
            Self::Live(cell) => std::mem::take(&mut cell.recent),
            Self::Gone { .. } => false,
        }
    }

    /// Whether dropping it loses nothing.
    pub(super) fn is_evictable(&self, durable: u64) -> bool {
        match self {
            Self::Live(cell) => {
                let at_rest = |file: &FileData| file.is_clean() && !file.in_flight;
                cell.changed <= durable && cell.file().is_none_or(at_rest)
            }
            Self::Gone { changed } => *changed <= durable,
        }
    }

    /// Entries and blocks it holds.
    pub(super) fn weight(&self) -> (usize, usize) {
        match self {
            Self::Live(cell) => cell.weight(),
            Self::Gone { .. } => (0, 0),
        }
    }
}

impl Cell {
    /// A new inode with nothing in it.
    pub(crate) fn new(stat: Stat, link: (InodeId, Name), content: Content) -> Self {
        Self {
            stat,
            link: Some(link),
            further_links: Some(BTreeSet::new()),
            verifier: None,
            content,
            changed: 0,
            recent: true,
        }
    }

    /// An inode as it was stored.
    pub(super) fn from_record(record: InodeRecord, block_bytes: u32) -> Self {
        let stat = record.stat;
        let content = match stat.kind {
            FileKind::File => {
                Content::File(FileData::from_record(&stat, record.inline, block_bytes))
            }
            FileKind::Directory => Content::Dir(DirData::from_record(record.entries)),
            FileKind::Symlink => Content::Symlink(record.inline.unwrap_or_default()),
            FileKind::BlockDevice | FileKind::CharDevice | FileKind::Fifo | FileKind::Socket => {
                Content::Nothing
            }
        };
        // One link, or a directory's, means that no further links are stored.
        let single = stat.nlink <= 1 || stat.is_dir();
        Self {
            stat,
            link: record.link,
            further_links: single.then(BTreeSet::new),
            verifier: record.verifier,
            content,
            changed: 0,
            recent: true,
        }
    }

    /// The inode as a flush stores it: without what is only buffered.
    pub(super) fn record(&self) -> InodeRecord {
        let mut stat = self.stat;
        let mut entries = 0;
        let inline = match &self.content {
            Content::File(file) => {
                stat.size = file.stable_size;
                stat.used = file.stable_used;
                file.inline_content()
            }
            Content::Dir(dir) => {
                entries = dir.count;
                None
            }
            Content::Symlink(target) => Some(target.clone()),
            Content::Nothing => None,
        };
        InodeRecord {
            stat,
            entries,
            link: self.link.clone(),
            verifier: self.verifier,
            inline,
        }
    }

    /// Decides anew whether a file's content lives in its attribute record. If that changes, says
    /// whether block 0 must now be under its own key (`true`) or must no longer be (`false`).
    pub(super) fn settle_inline(&mut self) -> Option<bool> {
        let Content::File(file) = &mut self.content else {
            return None;
        };
        let fits = match file.blocks.get(&0) {
            Some(Block {
                body: Body::Inline(bytes),
                patches,
                ..
            }) => {
                patches.is_empty() && bytes.len() <= INLINE_FILE_BYTES_MAX && file.blocks.len() == 1
            }
            _ => false,
        };
        let max = u64::try_from(INLINE_FILE_BYTES_MAX).unwrap_or(u64::MAX);
        let inline = fits && file.stable_size <= max;
        if inline == file.inline {
            return None;
        }
        file.inline = inline;
        Some(!inline)
    }

    /// The stored form of a block, if there is one.
    pub(super) fn encode_block(&self, index: u32) -> Option<Bytes> {
        let block = self.file()?.blocks.get(&index)?;
        (!block.is_hole()).then(|| crate::record::block::encode(block))
    }

    pub(super) fn file(&self) -> Option<&FileData> {
        match &self.content {
            Content::File(file) => Some(file),
            _ => None,
        }
    }

    pub(super) fn weight(&self) -> (usize, usize) {
        match &self.content {
            Content::File(file) => (0, file.blocks.len()),
            Content::Dir(dir) => (dir.in_memory(), 0),
            Content::Symlink(_) | Content::Nothing => (0, 0),
        }
    }
}
