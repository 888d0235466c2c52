//! Two snapshots, and what in one stands where something else stood in the other.
//!
//! A directory has a *counterpart* in the other snapshot: itself, if it is there; else the
//! directory of the same name in its parent's counterpart, if that is in one snapshot only, too. So
//! counterparts come in pairs, and a directory that was removed and made anew is one. A place (a
//! name in a directory) is the same in both snapshots if the directories are counterparts.

use std::collections::{BTreeSet, HashMap};

use base::InodeId;
use base::limits::LINKS_MAX;

use super::snapshot::Snapshot;
use super::{Place, SnapshotError};
use crate::record::inode::InodeRecord;
use crate::stat::FileKind;

/// Levels of directories made anew within each other through which counterparts are looked for.
const LEVELS_MAX: usize = 1024;

/// Counterparts that are remembered.
const KNOWN_MAX: usize = 1 << 16;

/// One of two snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Old,
    New,
}

/// Counterparts by directory, each with how many directories from this one up are in one snapshot
/// only.
type Counterparts = HashMap<InodeId, (Option<InodeId>, usize)>;

/// Two snapshots of one workspace.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) old: Snapshot,
    pub(super) new: Snapshot,
    /// Counterparts of directories of the old snapshot.
    in_new: Counterparts,
    /// Counterparts of directories of the new snapshot.
    in_old: Counterparts,
    /// Names of the inode that was asked for last.
    last: Option<(InodeId, Names)>,
    /// Counterparts that are remembered each way, about.
    pub(super) known_max: usize,
}

/// Names that an inode has in one snapshot only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    /// Places in the old snapshot, that of the first link first.
    pub(super) gone: Vec<Place>,
    /// Places in the new snapshot, that of the first link first.
    pub(super) come: Vec<Place>,
}

impl Names {
    /// How many of the names became other names: the first of `gone` the first of `come`, and so on.
    pub(super) fn renamed(&self) -> usize {
        self.gone.len().min(self.come.len())
    }

    fn new(
        first: (Option<&Place>, Option<&Place>),
        removed: &BTreeSet<Place>,
        added: &BTreeSet<Place>,
    ) -> Self {
        // A first link may have been a further one before, or become one.
        let only = |first: Option<&Place>,
                    further: &BTreeSet<Place>,
                    other: Option<&Place>,
                    others: &BTreeSet<Place>| {
            let all = first.into_iter().chain(further);
            all.filter(|place| Some(*place) != other && !others.contains(place))
                .cloned()
                .collect()
        };
        Self {
            gone: only(first.0, removed, first.1, added),
            come: only(first.1, added, first.0, removed),
        }
    }
}

impl Pair {
    pub(super) fn new(old: Snapshot, new: Snapshot) -> Self {
        Self {
            old,
            new,
            in_new: Counterparts::new(),
            in_old: Counterparts::new(),
            last: None,
            known_max: KNOWN_MAX,
        }
    }

    /// How many counterparts are remembered.
    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.in_new.len() + self.in_old.len()
    }

    /// The counterpart of a directory of the snapshot `from`. Safe to drop.
    async fn counterpart(
        &mut self,
        from: Side,
        dir: InodeId,
    ) -> Result<Option<InodeId>, SnapshotError> {
        let (here, there, known) = match from {
            Side::Old => (&self.old, &self.new, &mut self.in_new),
            Side::New => (&self.new, &self.old, &mut self.in_old),
        };
        if known.len() >= self.known_max {
            known.clear();
        }
        let mut at = dir;
        let mut below = Vec::new();
        let (mut found, mut levels) = loop {
            if let Some(known) = known.get(&at) {
                break *known;
            }
            if there.attributes(at).await?.is_some() {
                known.insert(at, (Some(at), 0));
                break (Some(at), 0);
            }
            // The root has no name, and directories may hang in a circle.
            let link = here.named(at).await?.link;
            let Some((parent, name)) = link.filter(|_| below.len() < LEVELS_MAX) else {
                break (None, 0);
            };
            below.push((at, name));
            at = parent;
        };
        for (at, name) in below.iter().rev() {
            levels += 1;
            found = match found.filter(|_| levels <= LEVELS_MAX) {
                Some(dir) => {
                    let entry = there.entry(dir, name.as_bytes()).await?;
                    match entry.filter(|entry| entry.kind == FileKind::Directory) {
                        Some(entry) if here.attributes(entry.inode).await?.is_none() => {
                            Some(entry.inode)
                        }
                        _ => None,
                    }
                }
                None => None,
            };
            known.insert(*at, (found, levels));
        }
        Ok(found)
    }

    /// What the other snapshot has at a place of the snapshot `from`: the place there, and the
    /// inode. Safe to drop.
    pub(super) async fn across(
        &mut self,
        from: Side,
        (dir, name): &Place,
    ) -> Result<Option<(Place, InodeId)>, SnapshotError> {
        let Some(dir) = self.counterpart(from, *dir).await? else {
            return Ok(None);
        };
        let there = match from {
            Side::Old => &self.new,
            Side::New => &self.old,
        };
        let entry = there.entry(dir, name.as_bytes()).await?;
        Ok(entry.map(|entry| ((dir, name.clone()), entry.inode)))
    }

    /// Names of an inode that are in one snapshot only. `removed` and `added` are its further links
    /// that are. Safe to drop.
    pub(super) async fn names(
        &mut self,
        old: Option<&InodeRecord>,
        new: Option<&InodeRecord>,
        removed: &BTreeSet<Place>,
        added: &BTreeSet<Place>,
    ) -> Result<Names, SnapshotError> {
        let first = |record: Option<&InodeRecord>| record.and_then(|record| record.link.clone());
        let (old, new) = (first(old), first(new));
        let mut names = Names::new((old.as_ref(), new.as_ref()), removed, added);
        if names.renamed() == 0 {
            return Ok(names);
        }
        // A name in a directory that was made anew is the same name.
        let come: BTreeSet<Place> = names.come.iter().cloned().collect();
        let mut same = BTreeSet::new();
        for place in &names.gone {
            let dir = self.counterpart(Side::Old, place.0).await?;
            let there = dir.map(|dir| (dir, place.1.clone()));
            if let Some(there) = there.filter(|there| come.contains(there)) {
                same.insert(place.clone());
                same.insert(there);
            }
        }
        names.gone.retain(|place| !same.contains(place));
        names.come.retain(|place| !same.contains(place));
        Ok(names)
    }

    /// What stood at a place of the new snapshot, if that is not told where it is now: it is gone,
    /// or has lost just this name. Safe to drop.
    pub(super) async fn replaced(
        &mut self,
        place: &Place,
    ) -> Result<Option<(InodeRecord, Option<InodeRecord>)>, SnapshotError> {
        let Some((before, inode)) = self.across(Side::New, place).await? else {
            return Ok(None);
        };
        let old = self.old.named(inode).await?;
        let Some(new) = self.new.attributes(inode).await? else {
            return Ok(Some((old, None)));
        };
        if self.last.as_ref().is_none_or(|(last, _)| *last != inode) {
            let (removed, added) = self.further(&old, &new).await?;
            let names = self.names(Some(&old), Some(&new), &removed, &added).await?;
            self.last = Some((inode, names));
        }
        let Some((_, names)) = &self.last else {
            return Ok(None);
        };
        let mut lost = names.gone.iter().skip(names.renamed());
        Ok(lost.any(|lost| *lost == before).then_some((old, Some(new))))
    }

    /// Further links that an inode of both snapshots has in one only.
    async fn further(
        &self,
        old: &InodeRecord,
        new: &InodeRecord,
    ) -> Result<(BTreeSet<Place>, BTreeSet<Place>), SnapshotError> {
        let (mut removed, mut added) = (BTreeSet::new(), BTreeSet::new());
        let inode = old.stat.inode;
        // A directory counts other links.
        if old.stat.is_dir() || old.stat.nlink.max(new.stat.nlink) <= 1 {
            return Ok((removed, added));
        }
        let (mut olds, mut news) = (self.old.links(inode), self.new.links(inode));
        let mut heads = (olds.next().await?, news.next().await?);
        loop {
            let take_old = match &heads {
                (None, None) => return Ok((removed, added)),
                (Some(old), Some(new)) if old == new => {
                    heads = (olds.next().await?, news.next().await?);
                    continue;
                }
                (Some(old), Some(new)) => old < new,
                (old, None) => old.is_some(),
                (None, Some(_)) => false,
            };
            if take_old {
                add_name(&mut removed, inode, heads.0.take())?;
                heads.0 = olds.next().await?;
            } else {
                add_name(&mut added, inode, heads.1.take())?;
                heads.1 = news.next().await?;
            }
        }
    }
}

/// Remembers a further link.
///
/// # Errors
///
/// There are more than any inode may have.
pub(super) fn add_name(
    names: &mut BTreeSet<Place>,
    inode: InodeId,
    place: Option<Place>,
) -> Result<(), SnapshotError> {
    names.extend(place);
    let links_max = usize::try_from(LINKS_MAX).unwrap_or(usize::MAX);
    if names.len() > links_max {
        let what = "has too many names";
        return Err(SnapshotError::Damaged { inode, what });
    }
    Ok(())
}
