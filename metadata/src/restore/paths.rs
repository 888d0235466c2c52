//! Paths of an image made as another has them (docs/design/0012-outside.md, invariants 9 and 10).
//!
//! First the names below the paths at which the images differ are found: from what differs of the
//! trees, upwards. Then both images are walked down to them, and where two different things are at a
//! name, all that is below each is walked. So there are names *here*, which the session has and the
//! walk has seen, and names *there*, of the version. What is only here is lost, what is only there
//! is gained, and from that all keys follow (`write.rs`).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use base::limits::RESTORE_NAMES_MAX;
use base::{ChunkId, InodeId, Name};

use super::write::write;
use super::{RestoreError, Rules, whole};
use crate::compare::{Snapshot, SnapshotError};
use crate::image::{InodeNumbers, NameHasher};
use crate::keyspace::image::{self as keys, ImageKey};
use crate::record::inode::InodeRecord;
use crate::stat::FileKind;
use crate::tree::{Root, Tree};

/// A name in a directory.
pub(super) type Place = (InodeId, Name);

/// Places that lead to each inode.
pub(super) type Places = BTreeMap<InodeId, BTreeSet<Place>>;

/// Entries of a directory read at a time.
const PAGE: usize = 512;

/// Deeper than any path; only damage leads further.
const DEPTH_MAX: u32 = 1 << 20;

/// Makes the tree that `from` has to become to have at `paths` (relative to the root directory, whose
/// own is empty) and below what `to` has there. It is durable afterwards. It is `from` if nothing
/// differs that counts. New inodes get their numbers from `numbers`.
///
/// `touch` is called as by [`super::whole`], and the caller holds the chunk store, too.
///
/// # Errors
///
/// See [`RestoreError`]. Nothing but unused nodes is left then.
///
/// # Cancellation
///
/// Safe to drop, as after an error.
pub async fn paths(
    (tree, hasher): (&Tree, &NameHasher),
    (from, to): (Root, Root),
    paths: &[Vec<u8>],
    rules: Rules,
    numbers: &mut InodeNumbers,
    touch: impl FnMut(ChunkId) + Send,
) -> Result<Root, RestoreError> {
    if paths.iter().any(Vec::is_empty) {
        return Ok(whole(tree, (from, to), rules, touch).await?);
    }
    let snapshot = |root| Snapshot::new(tree.clone(), hasher.clone(), root);
    let mut work = Work {
        here: Side::new(snapshot(from)),
        there: Side::new(snapshot(to)),
        marks: Marks::default(),
        names: 0,
        copies: BTreeMap::new(),
    };
    work.mark(tree, (from, to)).await?;
    work.walk(paths).await?;
    work.find_copies(numbers).await?;
    write(&work, (tree, from), hasher, rules, touch).await
}

/// What is known of one of the images.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) snapshot: Snapshot,
    /// The paths to restore, as places of this image.
    roots: HashSet<Place>,
    /// Names that the walk has seen. A path to restore is in the session's directory in both.
    pub(super) seen: Places,
    /// Directories known to be below the paths, or not to be.
    inside: HashMap<InodeId, bool>,
    /// Directories whose own names are marked.
    climbed: HashSet<InodeId>,
}

/// What differs between the images.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// Names in directories at which something differs, or below which.
    names: HashMap<InodeId, BTreeSet<Name>>,
    /// Inodes whose blocks differ.
    pub(super) blocks: HashSet<InodeId>,
}

/// A restore under way.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) here: Side,
    pub(super) there: Side,
    pub(super) marks: Marks,
    /// Names held in memory.
    names: usize,
    /// Numbers of what is there and here elsewhere.
    pub(super) copies: BTreeMap<InodeId, InodeId>,
}

/// The images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Here,
    There,
}

impl Side {
    fn new(snapshot: Snapshot) -> Self {
        Self {
            snapshot,
            roots: HashSet::new(),
            seen: Places::new(),
            inside: HashMap::new(),
            climbed: HashSet::new(),
        }
    }

    /// All names of an inode, of which `record` are the attributes.
    pub(super) async fn places(
        &self,
        inode: InodeId,
        record: &InodeRecord,
    ) -> Result<BTreeSet<Place>, SnapshotError> {
        let mut places: BTreeSet<Place> = record.link.iter().cloned().collect();
        if record.stat.nlink > 1 && !record.stat.is_dir() {
            let mut further = self.snapshot.links(inode);
            while let Some(place) = further.next().await? {
                places.insert(place);
            }
        }
        Ok(places)
    }

    /// Those of the places that are not below the paths.
    async fn outside(&mut self, places: BTreeSet<Place>) -> Result<BTreeSet<Place>, SnapshotError> {
        let mut outside = BTreeSet::new();
        for place in places {
            if !self.is_inside(&place).await? {
                outside.insert(place);
            }
        }
        Ok(outside)
    }

    async fn is_inside(&mut self, place: &Place) -> Result<bool, SnapshotError> {
        let mut passed = Vec::new();
        let mut at = place.clone();
        let mut answer = None;
        for _ in 0..DEPTH_MAX {
            let dir = at.0;
            if self.roots.contains(&at) {
                answer = Some(true);
            } else if dir == InodeId::ROOT {
                answer = Some(false);
            } else {
                answer = self.inside.get(&dir).copied();
            }
            if answer.is_some() {
                break;
            }
            passed.push(dir);
            at = self.own_place(dir).await?;
        }
        let what = "is in a directory that is in itself";
        let answer = answer.ok_or(SnapshotError::Damaged {
            inode: place.0,
            what,
        })?;
        self.inside
            .extend(passed.into_iter().map(|dir| (dir, answer)));
        Ok(answer)
    }

    /// The name of a directory other than the root.
    async fn own_place(&self, dir: InodeId) -> Result<Place, SnapshotError> {
        let what = "has no name";
        let record = self.snapshot.attributes(dir).await?;
        let link = record.and_then(|record| record.link);
        link.ok_or(SnapshotError::Damaged { inode: dir, what })
    }
}

impl Work {
    fn side(&mut self, which: Which) -> &mut Side {
        match which {
            Which::Here => &mut self.here,
            Which::There => &mut self.there,
        }
    }

    fn count_name(&mut self) -> Result<(), RestoreError> {
        self.names += 1;
        if self.names > RESTORE_NAMES_MAX {
            return Err(RestoreError::TooLarge);
        }
        Ok(())
    }

    /// Marks all names at which the images differ, and the directories above them.
    async fn mark(&mut self, tree: &Tree, (from, to): (Root, Root)) -> Result<(), RestoreError> {
        let mut diff = tree.diff(from, to);
        let mut last = None;
        while let Some(change) = diff.next().await? {
            let key = keys::decode(&change.key).map_err(SnapshotError::from)?;
            let inode = key.inode();
            match key {
                ImageKey::Entry { dir, name, .. } => {
                    self.mark_name((dir, name))?;
                    self.climb(dir).await?;
                    continue;
                }
                ImageKey::Conflict(_) => continue,
                ImageKey::Block { .. } => {
                    self.marks.blocks.insert(inode);
                }
                ImageKey::Inode(_) | ImageKey::Link { .. } | ImageKey::Cut { .. } => {}
            }
            if last.replace(inode) == Some(inode) {
                continue;
            }
            for which in [Which::Here, Which::There] {
                let side = self.side(which);
                let Some(record) = side.snapshot.attributes(inode).await? else {
                    continue;
                };
                for place in side.places(inode, &record).await? {
                    let dir = place.0;
                    self.mark_name(place)?;
                    self.climb(dir).await?;
                }
            }
        }
        Ok(())
    }

    fn mark_name(&mut self, (dir, name): Place) -> Result<(), RestoreError> {
        if self.marks.names.entry(dir).or_default().insert(name) {
            self.count_name()?;
        }
        Ok(())
    }

    /// Marks the names that lead to a directory, in both images.
    async fn climb(&mut self, dir: InodeId) -> Result<(), RestoreError> {
        for which in [Which::Here, Which::There] {
            let mut at = dir;
            while at != InodeId::ROOT && self.side(which).climbed.insert(at) {
                let record = self.side(which).snapshot.attributes(at).await?;
                let Some(place) = record.and_then(|record| record.link) else {
                    break;
                };
                at = place.0;
                self.mark_name(place)?;
            }
        }
        Ok(())
    }

    /// Walks from each path down to what differs.
    async fn walk(&mut self, paths: &[Vec<u8>]) -> Result<(), RestoreError> {
        let mut sorted: Vec<&Vec<u8>> = paths.iter().collect();
        sorted.sort_unstable();
        let mut taken: Vec<&Vec<u8>> = Vec::new();
        let mut pairs = Vec::new();
        for path in sorted {
            let is_below = |above: &&Vec<u8>| {
                path.strip_prefix(above.as_slice())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
            };
            if !taken.iter().any(is_below) {
                pairs.push(self.begin(path).await?);
                taken.push(path);
            }
        }
        while let Some((place, here, there)) = pairs.pop() {
            self.pair(place, here, there, &mut pairs).await?;
        }
        Ok(())
    }

    /// What both images have at a path.
    async fn begin(&mut self, path: &[u8]) -> Result<Pair, RestoreError> {
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (
                path.get(..slash).unwrap_or_default(),
                path.get(slash + 1..).unwrap_or_default(),
            ),
            None => (&[][..], path),
        };
        let no_path = || RestoreError::NoPath {
            path: path.to_vec(),
        };
        let place = Name::new(name).map_err(|_| no_path())?;
        let mut found = Vec::new();
        let mut dirs = Vec::new();
        for which in [Which::Here, Which::There] {
            let side = self.side(which);
            let dir = side.snapshot.lookup(parent).await?;
            let dir = dir
                .filter(|dir| dir.stat.is_dir())
                .map(|dir| dir.stat.inode);
            let entry = match dir {
                Some(dir) => side.snapshot.entry(dir, name).await?,
                None => None,
            };
            if let Some(dir) = dir {
                side.roots.insert((dir, place.clone()));
            }
            dirs.push(dir);
            found.push(entry.map(|entry| (entry.inode, entry.kind)));
        }
        let (here, there) = (
            found.first().copied().flatten(),
            found.last().copied().flatten(),
        );
        match (dirs.first().copied().flatten(), there) {
            _ if here.is_none() && there.is_none() => Err(no_path()),
            (Some(dir), _) => Ok(((dir, place), here, there)),
            (None, _) => Err(RestoreError::NoParent {
                path: path.to_vec(),
                parent: parent.to_vec(),
            }),
        }
    }

    /// Notes what both images have at a place, and what is below it.
    async fn pair(
        &mut self,
        place: Place,
        here: Found,
        there: Found,
        pairs: &mut Vec<Pair>,
    ) -> Result<(), RestoreError> {
        for (which, found) in [(Which::Here, here), (Which::There, there)] {
            if let Some((inode, _)) = found {
                self.see(which, inode, place.clone())?;
            }
        }
        if let (Some((inode, FileKind::Directory)), Some((other, _))) = (here, there)
            && inode == other
        {
            let names = self.marks.names.get(&inode).cloned().unwrap_or_default();
            for name in names {
                let found = |entry: crate::record::entry::Entry| (entry.inode, entry.kind);
                let (here, there) = (&self.here.snapshot, &self.there.snapshot);
                let here = here.entry(inode, name.as_bytes()).await?.map(found);
                let there = there.entry(inode, name.as_bytes()).await?.map(found);
                if here.is_some() || there.is_some() {
                    pairs.push(((inode, name), here, there));
                }
            }
            return Ok(());
        }
        if here == there {
            return Ok(());
        }
        for (which, found) in [(Which::Here, here), (Which::There, there)] {
            if let Some((inode, FileKind::Directory)) = found {
                self.see_all(which, inode).await?;
            }
        }
        Ok(())
    }

    fn see(&mut self, which: Which, inode: InodeId, place: Place) -> Result<(), RestoreError> {
        if self
            .side(which)
            .seen
            .entry(inode)
            .or_default()
            .insert(place)
        {
            self.count_name()?;
        }
        Ok(())
    }

    /// Notes everything below a directory.
    async fn see_all(&mut self, which: Which, dir: InodeId) -> Result<(), RestoreError> {
        let mut dirs = vec![dir];
        while let Some(dir) = dirs.pop() {
            let mut after = None;
            loop {
                let side = self.side(which);
                let listing = side.snapshot.list(dir, after.as_ref(), PAGE).await?;
                after = listing.entries.last().map(|(name, _)| name.clone());
                for (name, entry) in listing.entries {
                    self.see(which, entry.inode, (dir, name))?;
                    if entry.kind == FileKind::Directory {
                        dirs.push(entry.inode);
                    }
                }
                if !listing.more {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Gives numbers to copies of what is now elsewhere.
    async fn find_copies(&mut self, numbers: &mut InodeNumbers) -> Result<(), RestoreError> {
        let inodes: Vec<InodeId> = self.there.seen.keys().copied().collect();
        for inode in inodes {
            if !self.is_copied(inode).await? {
                continue;
            }
            if numbers.next >= numbers.end {
                return Err(RestoreError::NoNumbers);
            }
            self.copies.insert(inode, InodeId::new(numbers.next));
            numbers.next += 1;
        }
        Ok(())
    }

    /// Whether what the version has is, in the session, something that lives on elsewhere.
    async fn is_copied(&mut self, inode: InodeId) -> Result<bool, RestoreError> {
        let Some(here) = self.here.snapshot.attributes(inode).await? else {
            return Ok(false);
        };
        let places = self.here.places(inode, &here).await?;
        let outside = self.here.outside(places).await?;
        if outside.is_empty() {
            return Ok(false);
        }
        let what = "has a name and no attributes";
        let found = self.there.snapshot.attributes(inode).await?;
        let there = found.ok_or(SnapshotError::Damaged { inode, what })?;
        let places = self.there.places(inode, &there).await?;
        let was_outside = self.there.outside(places).await?;
        if outside.intersection(&was_outside).next().is_some() {
            // One file with a name inside and one outside, as it was.
            return Ok(false);
        }
        let is_at = |side: &Side| side.seen.get(&inode).cloned().unwrap_or_default();
        let stays = is_at(&self.there).is_subset(&is_at(&self.here));
        let is_same = !self.marks.blocks.contains(&inode) && !differs_but_links(&here, &there);
        Ok(!(stays && is_same))
    }
}

/// What is at a name.
type Found = Option<(InodeId, FileKind)>;

/// A place, with what is there in the session and in the version.
type Pair = (Place, Found, Found);

/// Whether records of an inode differ in more than its names.
fn differs_but_links(here: &InodeRecord, there: &InodeRecord) -> bool {
    let mut like = there.clone();
    like.stat.nlink = here.stat.nlink;
    like.link.clone_from(&here.link);
    super::differs(here, &like)
}
