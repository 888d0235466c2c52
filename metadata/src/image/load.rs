//! Putting into the image what was read from the store.
//!
//! What the image holds already is newer than anything read and is never overwritten.

use std::collections::BTreeSet;

use base::{InodeId, Name};

use super::Image;
use super::block::Block;
use super::cell::{Cell, Content, Slot};
use crate::record::entry::Entry;
use crate::record::inode::InodeRecord;

/// A directory entry as read from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedEntry {
    /// Hash of the name.
    pub hash: u64,
    /// The name.
    pub name: Name,
    /// What it leads to.
    pub entry: Entry,
}

impl Image {
    /// Installs an inode that was read, or that it does not exist.
    pub fn install_inode(&mut self, inode: InodeId, record: Option<InodeRecord>) {
        if self.cells.contains_key(&inode) {
            return;
        }
        let slot = match record {
            Some(record) => {
                Slot::Live(Box::new(Cell::from_record(record, self.config.block_bytes)))
            }
            None => Slot::Gone { changed: 0 },
        };
        self.blocks_total += slot.weight().1;
        self.cells.insert(inode, slot);
    }

    /// Installs all entries of `dir` whose hashes are in `first..=last`.
    pub fn install_entries(
        &mut self,
        dir: InodeId,
        first: u64,
        last: u64,
        found: Vec<LoadedEntry>,
    ) {
        if let Some(Slot::Live(cell)) = self.cells.get_mut(&dir)
            && let Content::Dir(data) = &mut cell.content
        {
            self.entries_total += data.install(first, last, found);
        }
    }

    /// Installs all blocks of `inode` in `first..=last`.
    pub fn install_blocks(
        &mut self,
        inode: InodeId,
        first: u32,
        last: u32,
        found: Vec<(u32, Block)>,
    ) {
        if let Some(Slot::Live(cell)) = self.cells.get_mut(&inode)
            && let Content::File(data) = &mut cell.content
        {
            self.blocks_total += data.install(first, last, found);
        }
    }

    /// Installs the further hard links of `inode`.
    pub fn install_links(&mut self, inode: InodeId, found: BTreeSet<(InodeId, Name)>) {
        if let Some(Slot::Live(cell)) = self.cells.get_mut(&inode)
            && cell.further_links.is_none()
        {
            cell.further_links = Some(found);
        }
    }
}
