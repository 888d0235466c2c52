//! An image that differs in little from one that was checked: what differs is checked, and what
//! leads there from what does not.
//!
//! What is said of an inode is in its own keys, which are adjacent, and in the names and inodes that
//! these name. So each inode of which any key differs is read and checked as in a walk over all. The
//! rest is as it was, and right, but for names: an entry that is gone may have been the name of an
//! inode that still says so, and a name that an inode does not have any more may still be an entry.

use std::collections::BTreeSet;

use base::{InodeId, Name};
use bytes::Bytes;

use super::Checker;
use super::image::{View, Walk};
use crate::image::{Body, Usage};
use crate::keyspace::image::{self as keys, ImageKey};
use crate::kv::{KeyRange, KvError};
use crate::layers::{Base, ImageError, ImageScan, Item, LayerScan, Layers};
use crate::record::block;
use crate::record::entry::Entry;
use crate::record::inode::InodeRecord;
use crate::tree::Change;

/// Most inodes and names that are remembered of what differs. Beyond this the whole image is read.
const CHANGES_MAX: usize = 200_000;

/// What differs between an image and one that was checked.
#[derive(Clone, Debug)]
pub(super) enum Changed {
    /// Too much, or there is none to compare with.
    Everything,
    /// This.
    Some(Changes),
}

/// What differs, by inode.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    /// Inodes of which a key differs.
    inodes: BTreeSet<InodeId>,
    gone: Vec<Gone>,
    is_over: bool,
}

/// A name that was.
#[derive(Clone, Debug)]
struct Gone {
    inode: InodeId,
    dir: InodeId,
    name: Name,
    from: Side,
}

/// Which side said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// The directory, which does not lead there any more.
    Directory,
    /// The inode, which has another name now, or is gone.
    Inode,
}

impl Changes {
    pub(super) fn finish(self) -> Changed {
        if self.is_over {
            Changed::Everything
        } else {
            Changed::Some(self)
        }
    }

    /// Takes note of a key that differs.
    pub(super) fn add(&mut self, key: &ImageKey, change: &Change) {
        self.add_values(key, change.old.as_ref(), change.new.as_ref());
    }

    fn add_values(&mut self, key: &ImageKey, old: Option<&Bytes>, new: Option<&Bytes>) {
        if self.inodes.len() + self.gone.len() >= CHANGES_MAX {
            *self = Self {
                is_over: true,
                ..Self::default()
            };
        }
        if self.is_over {
            return;
        }
        self.inodes.insert(key.inode());
        let Some(old) = old else {
            return;
        };
        // What cannot be decoded was told of where it was.
        let gone = match key {
            ImageKey::Inode(inode) => {
                let link = |value: &Bytes| InodeRecord::decode(*inode, value).ok()?.link;
                let (before, after) = (link(old), new.and_then(link));
                let before = before.filter(|before| after.as_ref() != Some(before));
                before.map(|(dir, name)| Gone {
                    inode: *inode,
                    dir,
                    name,
                    from: Side::Inode,
                })
            }
            ImageKey::Link {
                inode,
                parent,
                name,
            } if new.is_none() => Some(Gone {
                inode: *inode,
                dir: *parent,
                name: name.clone(),
                from: Side::Inode,
            }),
            ImageKey::Entry { dir, name, .. } => {
                let child = |value: &Bytes| Entry::decode(value).ok().map(|entry| entry.inode);
                let (before, after) = (child(old), new.and_then(child));
                let before = before.filter(|before| Some(*before) != after);
                before.map(|inode| Gone {
                    inode,
                    dir: *dir,
                    name: name.clone(),
                    from: Side::Directory,
                })
            }
            _ => None,
        };
        self.gone.extend(gone);
    }
}

impl Checker<'_> {
    /// What the layers of a session change of the base below them.
    pub(super) async fn changes_of_layers(&self, layers: &Layers) -> Result<Changed, KvError> {
        let mut changes = Changes::default();
        let mut scan = LayerScan::new(self.reader.kv(), layers.all());
        loop {
            let item = match scan.next().await {
                Ok(Some(item)) => item,
                Ok(None) => return Ok(changes.finish()),
                Err(ImageError::Kv(error)) => return Err(error),
                // Told where the layer is read; here, that not all of it is known.
                Err(_) => return Ok(Changed::Everything),
            };
            if changes.is_over {
                return Ok(Changed::Everything);
            }
            let noted = note_item(&mut changes, layers.base(), item).await;
            match noted {
                Ok(()) => {}
                Err(ImageError::Kv(error)) => return Err(error),
                Err(_) => return Ok(Changed::Everything),
            }
        }
    }

    /// Checks what is different in an image. `false` if it cannot be read. `usage` is what the image
    /// that it was compared with uses; the walk's own becomes what this one uses.
    pub(super) async fn check_changes(
        &mut self,
        walk: &mut Walk,
        changes: &Changes,
        usage: Usage,
    ) -> Result<bool, KvError> {
        walk.usage = usage;
        self.check_given_out(walk, changes).await?;
        for inode in &changes.inodes {
            self.take_off(walk, *inode).await?;
            let kv = self.reader.kv();
            let range = keys::inode_range(*inode);
            let scan = match &walk.view {
                View::Layers(layers) => ImageScan::within(kv, layers, &range),
                View::Base(base) => ImageScan::of_base_within(kv, base, &range),
            };
            if !self.walk_scan(walk, scan).await? {
                return Ok(false);
            }
        }
        for gone in &changes.gone {
            match gone.from {
                Side::Directory if !changes.inodes.contains(&gone.inode) => {
                    self.check_still_named(walk, gone).await?;
                }
                Side::Inode if !changes.inodes.contains(&gone.dir) => {
                    self.check_still_listed(walk, gone).await?;
                }
                Side::Directory | Side::Inode => {}
            }
        }
        Ok(true)
    }

    /// That the chunks are there which a session's own changes name, where its image cannot be read.
    pub(super) async fn check_own_chunks(&mut self, walk: &Walk) -> Result<(), KvError> {
        let (View::Layers(layers), Some(exists)) = (&walk.view, self.options.chunk_exists) else {
            return Ok(());
        };
        let from = self.report.problems.len();
        let mut scan = LayerScan::new(self.reader.kv(), layers.all());
        loop {
            let item = match scan.next().await {
                Ok(Some(item)) => item,
                Ok(None) => break,
                Err(ImageError::Kv(error)) => return Err(error),
                // Told where the layer is read.
                Err(_) => continue,
            };
            let Item::Put(ImageKey::Block { inode, index }, _, value) = item else {
                continue;
            };
            let block = block::decode(&value).map(|block| block.body);
            if let Ok(Body::Chunk { id, .. }) = block
                && !exists(walk.domain, id)
            {
                let what = format!("block {index} needs chunk {id}, which is missing or damaged");
                self.inode_problem(walk, inode, what);
                self.is_damaged = true;
            }
        }
        self.name_paths(walk, from).await
    }

    /// Takes what an inode of the base uses off the sum.
    async fn take_off(&self, walk: &mut Walk, inode: InodeId) -> Result<(), KvError> {
        let View::Layers(layers) = &walk.view else {
            return Ok(());
        };
        let value = match layers.base().get(&keys::inode(inode)).await {
            Ok(value) => value,
            Err(ImageError::Kv(error)) => return Err(error),
            Err(_) => None,
        };
        let record = value.and_then(|value| InodeRecord::decode(inode, &value).ok());
        if let Some(record) = record {
            walk.usage.bytes = walk.usage.bytes.saturating_sub(record.stat.used);
            if inode != InodeId::ROOT {
                walk.usage.inodes = walk.usage.inodes.saturating_sub(1);
            }
        }
        Ok(())
    }

    /// That the base has no inode with a number that the session may give out.
    async fn check_given_out(&mut self, walk: &Walk, changes: &Changes) -> Result<(), KvError> {
        let numbers = walk.flush.totals.numbers;
        let View::Layers(layers) = &walk.view else {
            return Ok(());
        };
        if numbers.next >= numbers.end {
            return Ok(());
        }
        let range = KeyRange {
            start: keys::inode(InodeId::new(numbers.next)).into(),
            end: keys::inode(InodeId::new(numbers.end)).into(),
        };
        let mut scan = ImageScan::of_base_within(self.reader.kv(), layers.base(), &range);
        // What cannot be read has been told of.
        if let Ok(Some((key, _))) = scan.next().await
            && !changes.inodes.contains(&key.inode())
        {
            let what = "has a number that the session would give out again";
            self.inode_problem(walk, key.inode(), what);
        }
        Ok(())
    }

    /// An entry that is gone: whether what it led to says that it is still there.
    async fn check_still_named(&mut self, walk: &Walk, gone: &Gone) -> Result<(), KvError> {
        let Some(record) = self.inode_record(walk, gone.inode).await? else {
            return Ok(());
        };
        let is_first = (record.link.as_ref())
            .is_some_and(|(dir, name)| *dir == gone.dir && *name == gone.name);
        let further = keys::link(gone.inode, gone.dir, &gone.name);
        if is_first || self.image_value(walk, &further).await?.is_some() {
            self.check_link(walk, gone.inode, gone.dir, &gone.name)
                .await?;
        }
        Ok(())
    }

    /// A name that an inode does not have any more: whether a directory says that it has.
    async fn check_still_listed(&mut self, walk: &Walk, gone: &Gone) -> Result<(), KvError> {
        let hash = walk.hasher.hash(gone.name.as_bytes());
        let key = keys::entry(gone.dir, hash, gone.name.as_bytes());
        let value = self.image_value(walk, &key).await?;
        let entry = value.and_then(|value| Entry::decode(&value).ok());
        if let Some(entry) = entry.filter(|entry| entry.inode == gone.inode) {
            self.check_entry(walk, gone.dir, &gone.name, entry).await?;
        }
        Ok(())
    }
}

/// Takes note of what layers say over a base.
async fn note_item(changes: &mut Changes, base: &Base, item: Item) -> Result<(), ImageError> {
    match item {
        Item::Put(decoded, key, value) => {
            let old = base.get(&key).await?;
            changes.add_values(&decoded, old.as_ref(), Some(&value));
        }
        Item::Remove(key) => {
            let decoded = keys::decode(&key)?;
            let old = base.get(&key).await?;
            changes.add_values(&decoded, old.as_ref(), None);
        }
        Item::Cut(inode, first) => {
            let key = ImageKey::Cut { inode, first };
            changes.add_values(&key, None, None);
        }
        Item::RemoveInode(inode) => {
            changes.add_values(&ImageKey::Inode(inode), None, None);
            if let Base::Tree { tree, root } = base {
                let mut scan = tree.scan(*root, &keys::inode_range(inode));
                while let Some((key, old)) = scan.next().await? {
                    changes.add_values(&keys::decode(&key)?, Some(&old), None);
                }
            }
        }
    }
    Ok(())
}
