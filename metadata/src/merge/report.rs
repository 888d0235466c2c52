//! Conflicts as they are found, and as they are told.

use base::{InodeId, Name};
use bytes::Bytes;

use super::{Merge, MergeError, Origin, Side};
use crate::record::conflict::{Conflict, ConflictKind, PATH_BYTES_MAX, Place, Resolution, Version};

/// What stands for the front of a path that is too long.
const CUT: &[u8] = b"...";

/// A conflict as it was found: places have no paths yet.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) kind: ConflictKind,
    pub(super) resolution: Resolution,
    /// What is where it belongs.
    pub(super) identity: InodeId,
    /// The slot in dispute, if it is about a name.
    pub(super) slot: Option<usize>,
    /// What was put aside, and its new slot.
    pub(super) aside: Option<(InodeId, usize)>,
    pub(super) base: Option<Version>,
    pub(super) ours: Option<Version>,
    pub(super) theirs: Option<Version>,
}

impl Merge<'_> {
    /// A conflict about one identity.
    pub(super) async fn found_of(
        &self,
        kind: ConflictKind,
        resolution: Resolution,
        identity: InodeId,
    ) -> Result<Found, MergeError> {
        Ok(Found {
            kind,
            resolution,
            identity,
            slot: None,
            aside: None,
            base: self.told_version(Origin::Base, identity).await?,
            ours: (self.told_version(Origin::Of(Side::Ours), identity)).await?,
            theirs: (self.told_version(Origin::Of(Side::Theirs), identity)).await?,
        })
    }

    /// What an image has of an identity, as a conflict tells it.
    pub(super) async fn told_version(
        &self,
        origin: Origin,
        identity: InodeId,
    ) -> Result<Option<Version>, MergeError> {
        let version = self.version(origin, identity).await?;
        Ok(version.map(|(inode, record)| Version::new(inode, record)))
    }

    /// All conflicts, in the order of their paths.
    pub(super) async fn report(&self) -> Result<Vec<Conflict>, MergeError> {
        let mut conflicts = Vec::with_capacity(self.found.len());
        for found in &self.found {
            let place = self.told_place(found.identity, found.slot).await?;
            let aside = match found.aside {
                Some((identity, slot)) => Some(self.told_place(identity, Some(slot)).await?),
                None => None,
            };
            conflicts.push(Conflict {
                kind: found.kind,
                resolution: found.resolution,
                place,
                aside,
                base: found.base.clone(),
                ours: found.ours.clone(),
                theirs: found.theirs.clone(),
                sources: self.source.options.sources,
            });
        }
        conflicts.sort_by(|a, b| {
            (&a.place.path, a.kind, a.place.inode).cmp(&(&b.place.path, b.kind, b.place.inode))
        });
        Ok(conflicts)
    }

    async fn told_place(
        &self,
        identity: InodeId,
        slot: Option<usize>,
    ) -> Result<Place, MergeError> {
        let slot = slot.and_then(|at| self.slots.get(at));
        let place = match slot {
            Some(slot) => Some((slot.dir, slot.name.clone())),
            None => self.main_place(identity).await?,
        };
        Ok(Place {
            inode: self.told_number(identity),
            path: self.path(place).await?,
        })
    }

    /// The path of a place, from the root.
    async fn path(&self, place: Option<(InodeId, Name)>) -> Result<Bytes, MergeError> {
        let mut parts: Vec<Name> = Vec::new();
        let (mut at, mut bytes) = (place, 0);
        while let Some((dir, name)) = at {
            bytes += name.as_bytes().len() + 1;
            // Also if what is gone hung in a loop, this ends.
            if bytes > PATH_BYTES_MAX - CUT.len() {
                let mut path = CUT.to_vec();
                append(&mut path, &parts);
                return Ok(path.into());
            }
            parts.push(name);
            at = if dir == InodeId::ROOT {
                None
            } else {
                self.main_place(dir).await?
            };
        }
        let mut path = Vec::with_capacity(bytes);
        append(&mut path, &parts);
        Ok(path.into())
    }
}

/// Appends parts of a path, the last of which is the first.
fn append(path: &mut Vec<u8>, parts: &[Name]) {
    for part in parts.iter().rev() {
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(part.as_bytes());
    }
}
