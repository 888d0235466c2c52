//! Names of inodes: the first in the attributes, further ones under their own keys.

use std::collections::BTreeSet;

use base::{InodeId, Name};
use bytes::Bytes;

use super::Image;
use super::cell::{Cell, Content};
use super::dir::DirData;
use crate::error::{FsError, Miss, OpResult};
use crate::keyspace::image as keys;
use crate::ops::Node;
use crate::stat::Stat;

impl Image {
    /// The parent of a directory; the root is its own.
    pub(crate) fn parent(&mut self, dir: InodeId) -> OpResult<InodeId> {
        Ok(self
            .cell(dir)?
            .link
            .as_ref()
            .map_or(dir, |(parent, _)| *parent))
    }

    /// The first name of an inode; none of the root.
    pub(crate) fn first_link(&mut self, inode: InodeId) -> OpResult<Option<(InodeId, Name)>> {
        Ok(self.cell(inode)?.link.clone())
    }

    /// The target of a symbolic link.
    pub(crate) fn symlink_target(&mut self, inode: InodeId) -> OpResult<Bytes> {
        match &self.cell(inode)?.content {
            Content::Symlink(target) => Ok(target.clone()),
            _ => Err(FsError::Invalid.into()),
        }
    }

    /// The verifier of an EXCLUSIVE create that no SETATTR has settled.
    pub(crate) fn verifier(&mut self, inode: InodeId) -> OpResult<Option<[u8; 8]>> {
        Ok(self.cell(inode)?.verifier)
    }

    /// Forgets that verifier; the caller updates the attributes after it.
    pub(crate) fn settle_verifier(&mut self, inode: InodeId) {
        self.known(inode).verifier = None;
    }

    /// Misses unless all names of `inode` are known.
    pub(crate) fn require_links(&mut self, inode: InodeId) -> OpResult<()> {
        if self.cell(inode)?.further_links.is_some() {
            return Ok(());
        }
        Err(Miss::Links(inode).into())
    }

    /// Puts a new regular file into the image.
    pub(crate) fn insert_file(
        &mut self,
        stat: Stat,
        link: (InodeId, Name),
        verifier: Option<[u8; 8]>,
    ) {
        let mut cell = Cell::new_file(stat, link);
        cell.verifier = verifier;
        self.insert_cell(cell);
    }

    /// Puts any other new object into the image.
    pub(crate) fn insert_node(&mut self, mut stat: Stat, link: (InodeId, Name), node: &Node) {
        let content = match node {
            Node::Directory => {
                stat.size = super::DIRECTORY_BYTES;
                Content::Dir(DirData::empty())
            }
            Node::Symlink(target) => {
                stat.size = u64::try_from(target.len()).unwrap_or(u64::MAX);
                Content::Symlink(target.clone())
            }
            Node::BlockDevice(_) | Node::CharDevice(_) | Node::Fifo | Node::Socket => {
                Content::Nothing
            }
        };
        self.insert_cell(Cell::new(stat, link, content));
    }

    /// Adds a further name; the caller updates the attributes after it.
    pub(crate) fn push_link(&mut self, inode: InodeId, link: (InodeId, Name)) {
        self.changes
            .set(keys::link(inode, link.0, &link.1), Bytes::new());
        self.changed = true;
        self.known(inode)
            .further_links
            .get_or_insert_with(BTreeSet::new)
            .insert(link);
    }

    /// Takes a name away; if it was the first another takes its place.
    pub(crate) fn drop_link(&mut self, inode: InodeId, dir: InodeId, name: &Name) {
        let cell = self.known(inode);
        let is_first = cell
            .link
            .as_ref()
            .is_some_and(|(at, first)| *at == dir && first == name);
        let further = cell.further_links.get_or_insert_with(BTreeSet::new);
        let gone = if is_first {
            let next = further.pop_first();
            cell.link = next.clone().or(cell.link.take());
            next
        } else {
            let link = (dir, name.clone());
            further.remove(&link);
            Some(link)
        };
        if let Some((parent, name)) = gone {
            self.changes.remove(keys::link(inode, parent, &name));
            self.changed = true;
        }
    }

    /// Replaces a name by another; the caller updates the attributes after it.
    pub(crate) fn move_link(
        &mut self,
        inode: InodeId,
        from: (InodeId, &Name),
        to: (InodeId, &Name),
    ) {
        let cell = self.known(inode);
        let is_first = cell
            .link
            .as_ref()
            .is_some_and(|(at, first)| *at == from.0 && first == from.1);
        if is_first {
            cell.link = Some((to.0, to.1.clone()));
            return;
        }
        self.drop_link(inode, from.0, from.1);
        self.push_link(inode, (to.0, to.1.clone()));
    }
}
