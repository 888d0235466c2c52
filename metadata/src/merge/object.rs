//! An identity in the merge, and what the images say of it.

use std::collections::BTreeMap;

use base::limits::MERGE_TEXT_BYTES_MAX;
use base::{InodeId, Name};
use bytes::Bytes;

use super::view::scan_all;
use super::{Merge, MergeError, Origin, Pair, Side};
use crate::keyspace::image::{self as keys, ImageKey};
use crate::record::inode::InodeRecord;
use crate::stat::FileKind;

/// An identity that differs, or whose names differ.
#[derive(Debug, Default)]
pub(super) struct Object {
    /// What it is, if it has a name that differs.
    pub(super) kind: Option<FileKind>,
    pub(super) exists_in_base: bool,
    pub(super) exists: Pair<bool>,
    /// Slots in which base has it.
    pub(super) held_in_base: Vec<usize>,
    /// Slots in which a side has it.
    pub(super) held: Pair<Vec<usize>>,
    /// Whether it is in the result.
    pub(super) alive: bool,
    /// Slots that it has in the result. Names that no side changed are not among them.
    pub(super) names: Vec<usize>,
    /// A conflict tells why it is where it is.
    pub(super) excused: bool,
    /// The conflict by which it was kept, though the other side deleted it.
    pub(super) kept: Option<usize>,
    /// Attributes and content where both sides have a say.
    pub(super) settled: Option<Box<Settled>>,
    /// Its number in the result, if not the usual one.
    pub(super) number: Option<InodeId>,
}

/// What became of an object that is not simply one side's.
#[derive(Debug)]
pub(super) struct Settled {
    /// Attributes; links and counts are filled in later.
    pub(super) record: InodeRecord,
    pub(super) body: Body,
}

/// Where content comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// An inode of a side.
    Of(Side, InodeId),
    /// A text merged from both.
    Merged(Bytes),
}

impl Object {
    pub(super) const ORIGINS: [Origin; 3] = [
        Origin::Base,
        Origin::Of(Side::Ours),
        Origin::Of(Side::Theirs),
    ];

    /// A directory that no side changed.
    pub(super) fn untouched_dir() -> Self {
        Self {
            kind: Some(FileKind::Directory),
            exists_in_base: true,
            exists: Pair {
                ours: true,
                theirs: true,
            },
            alive: true,
            ..Self::default()
        }
    }

    pub(super) fn held(&self, origin: Origin) -> &Vec<usize> {
        match origin {
            Origin::Base => &self.held_in_base,
            Origin::Of(side) => self.held.of(side),
        }
    }

    pub(super) fn held_mut(&mut self, origin: Origin) -> &mut Vec<usize> {
        match origin {
            Origin::Base => &mut self.held_in_base,
            Origin::Of(side) => self.held.of_mut(side),
        }
    }

    pub(super) fn is_dir(&self) -> bool {
        self.kind == Some(FileKind::Directory)
    }

    pub(super) fn is_on_both(&self) -> bool {
        self.exists.ours && self.exists.theirs
    }

    /// Whether a side renamed it, linked it or removed a name of it.
    pub(super) fn is_renamed(&self, side: Side) -> bool {
        self.held.of(side) != &self.held_in_base
    }
}

/// An inode of an image with its attributes.
pub(super) type Read<'a> = (Origin, InodeId, &'a InodeRecord);

impl Merge<'_> {
    /// The attributes of a side's inode.
    pub(super) async fn inode_record(
        &self,
        side: Side,
        inode: InodeId,
    ) -> Result<Option<InodeRecord>, MergeError> {
        let changes = self.source.changes;
        let (here, there) = (
            changes.of(side).records.get(&inode),
            changes.of(side.other()).records.get(&inode),
        );
        let value = match (here, there) {
            (Some(change), _) => change.new.clone(),
            // Unchanged on this side.
            (None, Some(change)) => change.old.clone(),
            (None, None) => {
                let view = self.source.views.of(side);
                view.get(&keys::inode(inode)).await?
            }
        };
        Ok(value
            .map(|value| InodeRecord::decode(inode, &value))
            .transpose()?)
    }

    /// The inode and attributes of an identity in an image, if it is there.
    pub(super) async fn version(
        &self,
        origin: Origin,
        identity: InodeId,
    ) -> Result<Option<(InodeId, InodeRecord)>, MergeError> {
        let record = match origin {
            Origin::Of(side) => {
                let inode = self.identities.inode(side, identity);
                return Ok(self
                    .inode_record(side, inode)
                    .await?
                    .map(|record| (inode, record)));
            }
            Origin::Base => {
                let changes = self.source.changes;
                let of = |side| changes.of(side).records.get(&identity);
                match of(Side::Ours).or_else(|| of(Side::Theirs)) {
                    Some(change) => {
                        let value = change.old.as_ref();
                        value
                            .map(|value| InodeRecord::decode(identity, value))
                            .transpose()?
                    }
                    // The same everywhere.
                    None => self.inode_record(Side::Ours, identity).await?,
                }
            }
        };
        Ok(record.map(|record| (identity, record)))
    }

    /// The version of an identity that must be there.
    pub(super) async fn side_version(
        &self,
        side: Side,
        identity: InodeId,
    ) -> Result<(InodeId, InodeRecord), MergeError> {
        let version = self.version(Origin::Of(side), identity).await?;
        version.ok_or(MergeError::Damaged("an inode without attributes"))
    }

    /// The blocks of an image's inode at all indices at which a side changed that inode.
    pub(super) fn changed_blocks(&self, origin: Origin, inode: InodeId) -> BTreeMap<u32, Bytes> {
        let changes = self.source.changes;
        let mut blocks: BTreeMap<u32, Option<&Bytes>> = BTreeMap::new();
        for side in Side::BOTH {
            for (index, change) in changes.of(side).blocks.get(&inode).into_iter().flatten() {
                match origin {
                    Origin::Of(other) if other == side => {
                        blocks.insert(*index, change.new.as_ref());
                    }
                    // What a side did not change is as in base.
                    _ => {
                        blocks.entry(*index).or_insert(change.old.as_ref());
                    }
                }
            }
        }
        blocks
            .into_iter()
            .filter_map(|(index, value)| Some((index, value?.clone())))
            .collect()
    }

    /// All blocks of a side's inode.
    pub(super) async fn all_blocks(
        &self,
        side: Side,
        inode: InodeId,
    ) -> Result<BTreeMap<u32, Bytes>, MergeError> {
        let changes = self.source.changes;
        if changes.of(side).is_new(inode) || changes.of(side.other()).is_gone(inode) {
            return Ok(self.changed_blocks(Origin::Of(side), inode));
        }
        let view = *self.source.views.of(side);
        let mut blocks = BTreeMap::new();
        for (key, value) in scan_all(view, &keys::blocks_from(inode, 0)).await? {
            if let ImageKey::Block { index, .. } = keys::decode(&key)? {
                blocks.insert(index, value);
            }
        }
        Ok(blocks)
    }

    /// Whether two inodes, or one in two images, have the same content.
    pub(super) async fn is_same_content(
        &self,
        a: Read<'_>,
        b: Read<'_>,
    ) -> Result<bool, MergeError> {
        let (one, other) = (a.2, b.2);
        if one.stat.kind != other.stat.kind || one.stat.device != other.stat.device {
            return Ok(false);
        }
        match one.stat.kind {
            FileKind::File => {}
            FileKind::Symlink => return Ok(one.inline == other.inline),
            _ => return Ok(true),
        }
        if one.stat.size != other.stat.size {
            return Ok(false);
        }
        let stored = one.inline == other.inline
            && self.changed_blocks(a.0, a.1) == self.changed_blocks(b.0, b.1);
        if stored {
            return Ok(true);
        }
        // Stored in another way, it may still be the same.
        match (self.small_content(a).await?, self.small_content(b).await?) {
            (Some(one), Some(other)) => Ok(one == other),
            _ => Ok(false),
        }
    }

    /// The content of a file, if it is small enough to be read.
    pub(super) async fn small_content(&self, read: Read<'_>) -> Result<Option<Bytes>, MergeError> {
        let (origin, inode, record) = read;
        let size = usize::try_from(record.stat.size).unwrap_or(usize::MAX);
        if size > MERGE_TEXT_BYTES_MAX {
            return Ok(None);
        }
        let content = match &record.inline {
            Some(inline) if inline.len() == size => inline.clone(),
            Some(inline) => {
                let mut padded = inline.to_vec();
                padded.resize(size, 0);
                padded.into()
            }
            None if size == 0 => Bytes::new(),
            None => self.source.content.read(origin, inode, record).await?,
        };
        if content.len() == size {
            Ok(Some(content))
        } else {
            Err(MergeError::Damaged("content is not as long as its file"))
        }
    }

    /// All names of a side's inode, the first one first, with directories as the side has them.
    pub(super) async fn side_names(
        &self,
        side: Side,
        record: &InodeRecord,
    ) -> Result<Vec<(InodeId, Name)>, MergeError> {
        let mut names: Vec<(InodeId, Name)> = record.link.iter().cloned().collect();
        if record.stat.is_dir() || record.stat.nlink <= 1 {
            return Ok(names);
        }
        let view = *self.source.views.of(side);
        for (key, _) in scan_all(view, &keys::links(record.stat.inode)).await? {
            if let ImageKey::Link { parent, name, .. } = keys::decode(&key)? {
                names.push((parent, name));
            }
        }
        Ok(names)
    }

    /// The names of ours that no side changed, as identities of directories and names.
    pub(super) async fn untouched_names(
        &self,
        identity: InodeId,
    ) -> Result<Vec<(InodeId, Name)>, MergeError> {
        let Some((_, record)) = self.version(Origin::Of(Side::Ours), identity).await? else {
            return Ok(Vec::new());
        };
        let mut names = self.side_names(Side::Ours, &record).await?;
        for (dir, _) in &mut names {
            *dir = self.identities.identity(Side::Ours, *dir);
        }
        names.retain(|(dir, name)| self.slots.find(*dir, name).is_none());
        Ok(names)
    }

    /// A place of an identity in the result: the slot it has, or a name that nobody changed. If it
    /// is not in the result, where it was.
    pub(super) async fn main_place(
        &self,
        identity: InodeId,
    ) -> Result<Option<(InodeId, Name)>, MergeError> {
        let place = |at: &usize| {
            let slot = self.slots.get(*at)?;
            Some((slot.dir, slot.name.clone()))
        };
        let object = self.objects.get(&identity);
        if let Some(found) = object.and_then(|it| it.names.iter().find_map(place)) {
            return Ok(Some(found));
        }
        if let Some(found) = self.untouched_names(identity).await?.into_iter().next() {
            return Ok(Some(found));
        }
        let held = |object: &Object| {
            let origins = Object::ORIGINS.into_iter().rev();
            origins
                .flat_map(|origin| object.held(origin).clone())
                .find_map(|at| place(&at))
        };
        Ok(object.and_then(held))
    }
}
