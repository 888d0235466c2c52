//! Mending what does not fit together after each identity was judged by itself: names in
//! directories that are gone, directories in a loop, two identities under one name.

use std::collections::HashSet;

use base::limits::NAME_BYTES_MAX;
use base::{InodeId, Name};

use super::report::Found;
use super::slots::Slot;
use super::{Merge, MergeError, Object, Origin, Side};
use crate::keyspace::image as keys;
use crate::record::conflict::{ConflictKind, Resolution};
use crate::stat::FileKind;

/// Names tried beside one that is taken.
const NAMES_TRIED_MAX: u32 = 1_000;

impl Merge<'_> {
    /// Gives an identity these names, and takes note of what that breaks.
    pub(super) fn claim(&mut self, identity: InodeId, names: Vec<usize>) {
        let Some(object) = self.objects.get_mut(&identity) else {
            return;
        };
        let old = std::mem::replace(&mut object.names, names.clone());
        let (is_dir, excused) = (object.is_dir(), object.excused);
        for slot in old {
            if let Some(slot) = self.slots.get_mut(slot) {
                slot.claims.retain(|claim| *claim != identity);
            }
        }
        if is_dir && !names.is_empty() {
            self.queues.moved.push_back(identity);
        }
        for at in names {
            let Some(slot) = self.slots.get_mut(at) else {
                continue;
            };
            slot.claims.push(identity);
            if slot.claims.len() > 1 {
                self.queues.contested.push_back(at);
            }
            if self.objects.get(&slot.dir).is_some_and(|dir| !dir.alive) {
                let queue = if excused {
                    &mut self.queues.excused
                } else {
                    &mut self.queues.orphaned
                };
                queue.push_back(slot.dir);
            }
        }
    }

    /// Mends everything.
    pub(super) async fn repair(&mut self) -> Result<(), MergeError> {
        // Directories that are known to hang below the root. None of them moves any more: only
        // what is in a loop is moved back, and what is brought back was in no path.
        let mut safe = HashSet::from([InodeId::ROOT]);
        loop {
            if let Some(dir) = self.queues.orphaned.pop_front() {
                self.tell_deleted(dir).await?;
                self.bring_back(dir)?;
            } else if let Some(dir) = self.queues.excused.pop_front() {
                self.bring_back(dir)?;
            } else if let Some(dir) = self.queues.moved.pop_front() {
                self.untangle(dir, &mut safe).await?;
            } else if let Some(slot) = self.queues.contested.pop_front() {
                self.separate(slot).await?;
            } else {
                return Ok(());
            }
        }
    }

    /// The side that has a directory which is not in the result; none if it is.
    fn side_of_deleted(&self, dir: InodeId) -> Result<Option<Side>, MergeError> {
        let Some(object) = self.objects.get(&dir).filter(|object| !object.alive) else {
            return Ok(None);
        };
        match (object.exists.ours, object.exists.theirs) {
            (true, _) => Ok(Some(Side::Ours)),
            (false, true) => Ok(Some(Side::Theirs)),
            (false, false) => Err(MergeError::Damaged("a name in no directory")),
        }
    }

    /// Records that something was put into a directory that the other side deleted.
    async fn tell_deleted(&mut self, dir: InodeId) -> Result<(), MergeError> {
        if let Some(side) = self.side_of_deleted(dir)? {
            let resolution = Resolution::of(side);
            let found = self.found_of(ConflictKind::DirectoryDeleted, resolution, dir);
            let found = found.await?;
            self.found.push(found);
        }
        Ok(())
    }

    /// Brings a deleted directory back for what is in it.
    fn bring_back(&mut self, dir: InodeId) -> Result<(), MergeError> {
        if let Some(side) = self.side_of_deleted(dir)?
            && let Some(object) = self.objects.get_mut(&dir)
        {
            object.alive = true;
            object.excused = true;
            let names = object.held.of(side).clone();
            self.claim(dir, names);
        }
        Ok(())
    }

    /// Undoes moves until a directory hangs below the root.
    async fn untangle(
        &mut self,
        start: InodeId,
        safe: &mut HashSet<InodeId>,
    ) -> Result<(), MergeError> {
        let mut path = Vec::new();
        let mut seen = HashSet::new();
        let mut at = start;
        while !safe.contains(&at) {
            if !seen.insert(at) {
                return self.undo_a_move(start, at, &path).await;
            }
            path.push(at);
            let place = self.main_place(at).await?;
            (at, _) = place.ok_or(MergeError::Damaged("a directory without a name"))?;
        }
        safe.extend(path);
        Ok(())
    }

    /// Undoes one move in the loop that `path` enters at `entry`.
    async fn undo_a_move(
        &mut self,
        start: InodeId,
        entry: InodeId,
        path: &[InodeId],
    ) -> Result<(), MergeError> {
        let preferred = self.preferred;
        let is_others = |identity: &&InodeId| {
            let object = self.objects.get(identity);
            object.is_some_and(|it| *it.exists.of(preferred) && it.names != *it.held.of(preferred))
        };
        let in_loop = path.iter().skip_while(|at| **at != entry);
        let moved = in_loop.filter(is_others).max().copied();
        // One side alone has no loop, so one of the moves is the other's.
        let moved = moved.ok_or(MergeError::Damaged("directories in a loop"))?;
        let found = self.found_of(ConflictKind::Cycle, self.one_side(), moved);
        let found = found.await?;
        self.found.push(found);
        let names = self.objects.get(&moved).map(|it| it.held.of(preferred));
        self.claim(moved, names.cloned().unwrap_or_default());
        self.queues.moved.push_front(start);
        Ok(())
    }

    /// Leaves a name to one of the two that want it.
    async fn separate(&mut self, at: usize) -> Result<(), MergeError> {
        let Some(slot) = self.slots.get(at) else {
            return Ok(());
        };
        let [a, b] = slot.claims.as_slice() else {
            return Ok(());
        };
        let (ours, theirs) = if slot.holds(Origin::Of(Side::Ours), *a) {
            (*a, *b)
        } else {
            (*b, *a)
        };
        let is_dir = |identity| self.objects.get(&identity).is_some_and(|it| it.is_dir());
        let dirs = (is_dir(ours), is_dir(theirs));
        let winner = match (dirs, self.preferred) {
            ((true, false), _) | ((true, true) | (false, false), Side::Ours) => Side::Ours,
            ((false, true), _) | ((true, true) | (false, false), Side::Theirs) => Side::Theirs,
        };
        let identities = super::Pair { ours, theirs };
        let loser = *identities.of(winner.other());
        let aside = if self.takes_one() && dirs == (false, false) {
            self.drop_claim(loser, at).await?;
            None
        } else {
            Some((loser, self.put_aside(loser, winner.other(), at).await?))
        };
        self.tell_contest(at, identities, winner, aside).await
    }

    /// Records that two identities wanted one name.
    async fn tell_contest(
        &mut self,
        slot: usize,
        identities: super::Pair<InodeId>,
        winner: Side,
        aside: Option<(InodeId, usize)>,
    ) -> Result<(), MergeError> {
        let (winning, losing) = (identities.of(winner), identities.of(winner.other()));
        let object = |identity: &InodeId| self.objects.get(identity);
        let kinds = (
            object(winning).and_then(|it| it.kind),
            object(losing).and_then(|it| it.kind),
        );
        let is_new = |identity| object(identity).is_some_and(|it| !it.exists_in_base);
        let both_new = is_new(winning) && is_new(losing);
        let kept = [losing, winning]
            .into_iter()
            .find_map(|identity| object(identity)?.kept);
        let resolution = match aside {
            Some(_) => Resolution::KeptBoth,
            None => self.one_side(),
        };
        let mine = (self.told_version(Origin::Of(Side::Ours), identities.ours)).await?;
        let other = (self.told_version(Origin::Of(Side::Theirs), identities.theirs)).await?;
        let found = kept.and_then(|at| self.found.get_mut(at));
        // Under a second name it is another one, with something else aside.
        if let Some(found) = found.filter(|found| found.aside.is_none()) {
            // The same conflict: one side put something else where the other has a changed object.
            if kinds.0 != kinds.1 {
                found.kind = ConflictKind::Type;
            }
            found.identity = *winning;
            found.slot = Some(slot);
            found.aside = aside;
            found.resolution = resolution;
            found.ours = found.ours.take().or(mine);
            found.theirs = found.theirs.take().or(other);
            return Ok(());
        }
        let is_dir = |kind| kind == Some(FileKind::Directory);
        let base = match self.told_version(Origin::Base, *losing).await? {
            Some(version) => Some(version),
            None => self.told_version(Origin::Base, *winning).await?,
        };
        self.found.push(Found {
            kind: match both_new {
                _ if is_dir(kinds.0) != is_dir(kinds.1) => ConflictKind::DirectoryName,
                true => ConflictKind::CreateCreate,
                false => ConflictKind::NameTaken,
            },
            resolution,
            identity: *winning,
            slot: Some(slot),
            aside,
            base,
            ours: mine,
            theirs: other,
        });
        Ok(())
    }

    /// Takes a name away from an identity that is no directory. Without another name it goes back
    /// to where the preferred side has it, or goes.
    async fn drop_claim(&mut self, identity: InodeId, at: usize) -> Result<(), MergeError> {
        let has_others = !self.untouched_names(identity).await?.is_empty();
        let preferred = self.preferred;
        let Some(object) = self.objects.get_mut(&identity) else {
            return Ok(());
        };
        let mut names = object.names.clone();
        names.retain(|slot| *slot != at);
        if names.is_empty() && !has_others {
            object.alive = *object.exists.of(preferred);
            if object.alive {
                names.clone_from(object.held.of(preferred));
            }
        }
        self.claim(identity, names);
        Ok(())
    }

    /// Gives an identity a name with a suffix instead of one. Returns the new slot.
    async fn put_aside(
        &mut self,
        identity: InodeId,
        side: Side,
        at: usize,
    ) -> Result<usize, MergeError> {
        let place = self.slots.get(at).map(|it| (it.dir, it.name.clone()));
        let (dir, name) = place.ok_or(MergeError::Damaged("no such slot"))?;
        let aside = self.add_aside(dir, &name, side).await?;
        let names = self.objects.get(&identity).map(|it| it.names.clone());
        let mut names = names.unwrap_or_default();
        for slot in &mut names {
            if *slot == at {
                *slot = aside;
            }
        }
        self.claim(identity, names);
        Ok(aside)
    }

    /// A new slot beside `name` for something of `side`.
    pub(super) async fn add_aside(
        &mut self,
        dir: InodeId,
        name: &Name,
        side: Side,
    ) -> Result<usize, MergeError> {
        let label = self.source.options.labels.of(side).suffix(side);
        for attempt in 0..NAMES_TRIED_MAX {
            let suffix = match attempt {
                0 => label.clone(),
                _ => format!("{label}.{attempt}"),
            };
            let candidate = with_suffix(name, &suffix)?;
            if !self.is_taken(dir, &candidate).await? {
                self.objects
                    .entry(dir)
                    .or_insert_with(Object::untouched_dir);
                return Ok(self.slots.add(Slot {
                    dir,
                    name: candidate,
                    base: None,
                    ours: None,
                    theirs: None,
                    claims: Vec::new(),
                }));
            }
        }
        Err(MergeError::NoName)
    }

    /// Whether any image or the result has a name.
    async fn is_taken(&self, dir: InodeId, name: &Name) -> Result<bool, MergeError> {
        if self.slots.find(dir, name).is_some() {
            return Ok(true);
        }
        let hash = self.source.options.hasher.hash(name.as_bytes());
        for side in Side::BOTH {
            let inode = self.identities.inode(side, dir);
            let key = keys::entry(inode, hash, name.as_bytes());
            if self.source.views.of(side).get(&key).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A name with a suffix. If both together are too long, a hash stands for the end of the name.
fn with_suffix(name: &Name, suffix: &str) -> Result<Name, MergeError> {
    let bytes = name.as_bytes();
    let mut made = bytes.to_vec();
    if bytes.len() + suffix.len() > NAME_BYTES_MAX {
        let hash = blake3::hash(bytes).to_hex();
        let hash = hash.as_str().get(..16).unwrap_or_default();
        let mut keep = NAME_BYTES_MAX.saturating_sub(suffix.len() + 1 + hash.len());
        // Not within a character.
        if let Ok(text) = std::str::from_utf8(bytes) {
            keep = text.floor_char_boundary(keep);
        }
        made.truncate(keep);
        made.push(b'~');
        made.extend_from_slice(hash.as_bytes());
    }
    made.extend_from_slice(suffix.as_bytes());
    Name::new(&made).map_err(|_| MergeError::NoName)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_fit_and_tell_names_apart() {
        let name = |bytes: &[u8]| Name::new(bytes).unwrap();
        let short = with_suffix(&name(b"f"), "~theirs.1").unwrap();
        assert_eq!(short.as_bytes(), b"f~theirs.1");
        let exact = with_suffix(&name(&[b'x'; 246]), "~theirs.1").unwrap();
        assert_eq!(exact.as_bytes(), [&[b'x'; 246][..], b"~theirs.1"].concat());
        let mut long = vec![b'x'; 255];
        let one = with_suffix(&name(&long), "~theirs.1").unwrap();
        long[254] = b'y';
        let other = with_suffix(&name(&long), "~theirs.1").unwrap();
        assert_ne!(one, other);
        for made in [one, other] {
            assert_eq!(made.as_bytes().len(), 255);
            assert!(made.as_bytes().ends_with(b"~theirs.1"));
        }
        let wide = "\u{20ac}".repeat(85);
        let made = with_suffix(&name(wide.as_bytes()), "~theirs.1").unwrap();
        assert!(std::str::from_utf8(made.as_bytes()).is_ok());
        assert!(with_suffix(&name(&[0xff; 255]), "~theirs.1").is_ok());
    }
}
