//! Which identities are in the result, and under which names.

use std::collections::VecDeque;

use base::InodeId;

use super::report::Found;
use super::{Merge, MergeError, Object, Origin, Policy, Side};
use crate::record::conflict::{ConflictKind, Resolution};

/// Names for the result.
struct Names {
    names: Vec<usize>,
    conflict: Option<ConflictKind>,
}

impl Merge<'_> {
    /// Decides for each identity by itself. What does not fit together is mended later.
    pub(super) async fn survive(&mut self) -> Result<(), MergeError> {
        let identities: Vec<InodeId> = self.objects.keys().copied().collect();
        let mut kept = VecDeque::new();
        for identity in identities.iter().copied() {
            let Some(object) = self.objects.get(&identity) else {
                continue;
            };
            match (object.exists.ours, object.exists.theirs) {
                (false, false) => {}
                (true, true) => self.survive_both(identity).await?,
                (true, false) => self.survive_one(identity, Side::Ours, &mut kept).await?,
                (false, true) => self.survive_one(identity, Side::Theirs, &mut kept).await?,
            }
        }
        self.keep_subtrees(kept);
        for identity in identities {
            let names = self.objects.get(&identity).map(|it| it.names.clone());
            self.claim(identity, names.unwrap_or_default());
        }
        Ok(())
    }

    /// An identity that both sides have.
    async fn survive_both(&mut self, identity: InodeId) -> Result<(), MergeError> {
        let Some(object) = self.objects.get(&identity) else {
            return Ok(());
        };
        let names = if object.is_dir() {
            self.directory_name(object)
        } else {
            let merged = self.merge_names(object);
            if merged.names.is_empty() && !self.has_other_names(identity, object).await? {
                Names {
                    names: object.held.of(self.preferred).clone(),
                    conflict: Some(ConflictKind::Links),
                }
            } else {
                merged
            }
        };
        if let Some(kind) = names.conflict {
            let found = self.found_of(kind, self.one_side(), identity).await?;
            self.found.push(found);
        }
        if let Some(object) = self.objects.get_mut(&identity) {
            object.alive = true;
            object.names = names.names;
        }
        Ok(())
    }

    /// A directory has one name.
    fn directory_name(&self, object: &Object) -> Names {
        let (base, ours, theirs) = (&object.held_in_base, &object.held.ours, &object.held.theirs);
        let (names, conflict) = if theirs == base || theirs == ours {
            (ours, None)
        } else if ours == base {
            (theirs, None)
        } else {
            let kind = ConflictKind::RenameRename;
            (object.held.of(self.preferred), Some(kind))
        };
        let names = names.clone();
        Names { names, conflict }
    }

    /// Anything else has a set of names.
    fn merge_names(&self, object: &Object) -> Names {
        let (base, ours, theirs) = (&object.held_in_base, &object.held.ours, &object.held.theirs);
        // Slots are held in their order.
        let has = |held: &[usize], at: &usize| held.binary_search(at).is_ok();
        let added = |here: &[usize], there: &[usize]| -> Vec<usize> {
            let new = here.iter().filter(|at| !has(base, at) && !has(there, at));
            new.copied().collect()
        };
        let both: Vec<usize> = (ours.iter().filter(|at| has(theirs, at)))
            .copied()
            .collect();
        let mut new = (added(ours, theirs), added(theirs, ours));
        if self.preferred == Side::Theirs {
            new = (new.1, new.0);
        }
        let (preferred, mut other) = new;
        // A name that both took away, and for which each gave another: the object was renamed twice.
        let gone = base
            .iter()
            .filter(|at| !has(ours, at) && !has(theirs, at))
            .count();
        let renamed_twice = gone.min(preferred.len()).min(other.len());
        other.drain(..renamed_twice);
        let mut names = [both, preferred, other].concat();
        names.sort_unstable();
        Names {
            names,
            conflict: (renamed_twice > 0).then_some(ConflictKind::RenameRename),
        }
    }

    /// Whether an identity has names that no side changed.
    async fn has_other_names(
        &self,
        identity: InodeId,
        object: &Object,
    ) -> Result<bool, MergeError> {
        if identity == InodeId::ROOT {
            return Ok(true);
        }
        let (_, record) = self.side_version(Side::Ours, identity).await?;
        let changed = u64::try_from(object.held.ours.len()).unwrap_or(u64::MAX);
        Ok(u64::from(record.stat.nlink) > changed)
    }

    /// An identity that only `side` has: new there, or deleted by the other.
    async fn survive_one(
        &mut self,
        identity: InodeId,
        side: Side,
        kept: &mut VecDeque<(InodeId, Side)>,
    ) -> Result<(), MergeError> {
        let Some(object) = self.objects.get(&identity) else {
            return Ok(());
        };
        let names = object.held.of(side).clone();
        let mut alive = true;
        if object.exists_in_base {
            let kind = if self.is_edited(side, identity).await? {
                ConflictKind::EditDelete
            } else if object.is_renamed(side) {
                ConflictKind::RenameDelete
            } else {
                return Ok(());
            };
            alive = !self.takes_one() || self.preferred == side;
            let found = self.found_of(kind, self.one_side(), identity).await?;
            let found = Found {
                resolution: match self.source.options.policy {
                    // The one version there is.
                    Policy::KeepBoth | Policy::Fail => Resolution::of(side),
                    Policy::Ours | Policy::Theirs => found.resolution,
                },
                ..found
            };
            self.found.push(found);
            if alive {
                kept.push_back((identity, side));
            }
        }
        let conflict = self.found.len().checked_sub(1);
        if let Some(object) = self.objects.get_mut(&identity)
            && alive
        {
            object.alive = true;
            object.names = names;
            object.excused = object.exists_in_base;
            object.kept = conflict.filter(|_| object.exists_in_base);
        }
        Ok(())
    }

    /// Whether a side changed content, mode, owner or group. Times are no edit.
    async fn is_edited(&self, side: Side, identity: InodeId) -> Result<bool, MergeError> {
        let (inode, record) = self.side_version(side, identity).await?;
        let Some((old_inode, old)) = self.version(Origin::Base, identity).await? else {
            return Ok(true);
        };
        let of = |record: &crate::record::inode::InodeRecord| {
            (record.stat.mode, record.stat.uid, record.stat.gid)
        };
        if of(&record) != of(&old) {
            return Ok(true);
        }
        let here = (Origin::Of(side), inode, &record);
        let before = (Origin::Base, old_inode, &old);
        Ok(!self.is_same_content(here, before).await?)
    }

    /// Keeps what a kept directory holds on the side that has it, though the other deleted it.
    fn keep_subtrees(&mut self, mut kept: VecDeque<(InodeId, Side)>) {
        while let Some((dir, side)) = kept.pop_front() {
            let children: Vec<InodeId> = (self.slots.in_dir(dir))
                .filter_map(|slot| slot.held(Origin::Of(side)))
                .map(|entry| entry.inode)
                .collect();
            for child in children {
                let Some(object) = self.objects.get_mut(&child) else {
                    continue;
                };
                if object.alive || object.exists.of(side) == &object.exists.of(side.other()).clone()
                {
                    continue;
                }
                object.alive = true;
                object.excused = true;
                object.names = object.held.of(side).clone();
                kept.push_back((child, side));
            }
        }
    }

    /// How a conflict ends in which only one version can be taken.
    pub(super) fn one_side(&self) -> Resolution {
        Resolution::of(self.preferred)
    }
}

impl Resolution {
    pub(super) fn of(side: Side) -> Self {
        match side {
            Side::Ours => Self::Ours,
            Side::Theirs => Self::Theirs,
        }
    }
}
