//! Resolving a conflict that a merge has left in the image.
//!
//! One resolution is one change: at most one name moves or goes, or one inode gets attributes, and
//! the record goes with it. What would take more is refused, and says what to do in the mount first.

use base::{InodeId, Name};

use super::{Context, remove, rename, rmdir};
use crate::conflicts::ConflictId;
use crate::error::{FsError, OpError, OpResult};
use crate::image::Image;
use crate::merge::Side;
use crate::record::changed::ChangedPaths;
use crate::record::conflict::{Conflict, ConflictKind, Place, Resolution, Version};
use crate::record::inode::InodeRecord;
use crate::stat::{FileKind, Stat};

/// Longest path that is told, in bytes. One that is longer is not told.
const PATH_BYTES_MAX: usize = 64 * 1024;

/// What is to become of a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// What this side had.
    Side(Side),
    /// All that is there stays as it is.
    Both,
    /// What is now under the name in dispute, or that nothing is there; what was put aside goes.
    File,
}

/// Where the side that is taken has the object that makes room, where a conflict is about two
/// different objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Home {
    /// That side does not have it: it goes.
    Nowhere,
    /// There.
    At(InodeId, Name),
    /// That is not known, because the commit is gone, or no one name.
    Unknown,
}

impl Home {
    /// Where a side has an object, by its attributes in the commit; none if it does not have it.
    #[must_use]
    pub fn of(record: Option<&InodeRecord>) -> Self {
        match record {
            None => Self::Nowhere,
            Some(record) => match &record.link {
                Some((dir, name)) if has_one_name(&record.stat) => Self::At(*dir, name.clone()),
                // It would take more than one step.
                _ => Self::Unknown,
            },
        }
    }
}

/// A conflict to be resolved.
#[derive(Clone, Debug)]
pub struct Resolve<'a> {
    /// Its id.
    pub id: ConflictId,
    /// What it is.
    pub conflict: &'a Conflict,
    /// What is to become of it.
    pub take: Take,
    /// Of the object that [`making_room`] names.
    pub home: Home,
}

/// Why a conflict was not resolved so. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The image does not hold the conflict, or no longer.
    #[error("there is no such conflict; it may have been resolved already")]
    NotThere,
    /// The version has been written to since the merge.
    #[error("that version has been changed since the merge: `file` takes what is there now")]
    Changed,
    /// The version is not there any more.
    #[error("that version is not there any more: `file` takes what is there now")]
    Gone,
    /// The directory that it belongs to is gone, or the name is no more.
    #[error(
        "the directory that this version belongs to is not there: put it where it is wanted in the \
         mount, then take `file`"
    )]
    NoPlace,
    /// The name that it belongs to is taken by something else.
    #[error(
        "the name that this version belongs to is taken: mend that in the mount, then take `file`"
    )]
    Taken,
    /// A directory with something in it would go.
    #[error(
        "a directory that is not empty would go: remove it or move it in the mount, then try again"
    )]
    NotEmpty,
    /// A directory would take the place of something else, or something else that of a directory.
    #[error(
        "a directory and something else cannot change places: move or remove what is there in the \
         mount, then try again"
    )]
    Types,
    /// A directory would come to be inside itself.
    #[error("the directory would come to be inside itself: mend it in the mount, then take `file`")]
    Loop,
    /// An object with several names would lose or change only one of them.
    #[error(
        "it has further hard links, which would not change with it: mend it in the mount, then take \
         `file`"
    )]
    Linked,
    /// Two objects, each of which has a place of its own on the side that is taken.
    #[error(
        "what is there is another object, which that side has elsewhere: move it there in the mount, \
         then try again"
    )]
    Elsewhere,
    /// What the side had is not known well enough.
    #[error(
        "it is not known what that side had: mend it in the mount, then take `both`, which leaves \
         everything as it is"
    )]
    Unknown,
}

/// Where the objects of a conflict are now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Located {
    /// Path of what is in its place, from the root, without a slash in front; none if that is gone.
    pub path: Option<Vec<u8>>,
    /// Path of what was put aside; none if there is no such thing.
    pub aside: Option<Vec<u8>>,
}

/// Why a resolution ended early.
enum Stop {
    Op(OpError),
    Refused(Refusal),
}

impl From<OpError> for Stop {
    fn from(error: OpError) -> Self {
        Self::Op(error)
    }
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// A name in a directory, and what it leads to.
#[derive(Clone, Debug)]
struct Spot {
    dir: InodeId,
    name: Name,
    inode: Option<InodeId>,
}

/// The object that makes room if `take` is done: its inode, and the side whose commit says where it
/// belongs then. None if the conflict is about one object.
#[must_use]
pub fn making_room(conflict: &Conflict, take: Take) -> Option<(InodeId, Side)> {
    let aside = conflict.aside.as_ref()?;
    if is_one_object(conflict.kind) {
        return None;
    }
    let winner = side_in_place(conflict);
    match take {
        Take::Both => None,
        Take::Side(side) if side != winner => Some((conflict.place.inode, side)),
        Take::Side(_) | Take::File => Some((aside.inode, winner)),
    }
}

/// Finds where the objects of a conflict are now, also after renames. `None` if the image does not hold the
/// conflict, or no longer.
///
/// # Errors
///
/// None but misses.
pub fn locate(
    image: &mut Image,
    id: &ConflictId,
    conflict: &Conflict,
) -> OpResult<Option<Located>> {
    if !image.has_conflict(id)? {
        return Ok(None);
    }
    let mut located = Located::default();
    if conflict.place.inode == InodeId::ROOT {
        located.path = Some(Vec::new());
    } else if let Some((spot, _)) = find(image, &conflict.place)? {
        located.path = path_of(image, &spot)?;
    }
    if let Some(aside) = &conflict.aside
        && let Some((spot, _)) = find(image, aside)?
    {
        located.aside = path_of(image, &spot)?;
    }
    Ok(Some(located))
}

/// What is at a path from the root, without a slash in front; none if nothing is there.
///
/// # Errors
///
/// None but misses.
pub fn at_path(image: &mut Image, path: &[u8]) -> OpResult<Option<InodeId>> {
    if path.is_empty() {
        return Ok(Some(InodeId::ROOT));
    }
    Ok(walk(image, path)?.and_then(|spot| spot.inode))
}

/// The paths that a resolution may change, as they are before it: those of its objects, those that
/// they may get, and the directories that these are in.
///
/// # Errors
///
/// None but misses.
pub fn touched(image: &mut Image, asked: &Resolve<'_>) -> OpResult<ChangedPaths> {
    let conflict = asked.conflict;
    let mut spots: Vec<Spot> = walk(image, &conflict.place.path)?.into_iter().collect();
    let aside = conflict.aside.as_ref();
    for place in [Some(&conflict.place), aside].into_iter().flatten() {
        spots.extend(spot_of(image, place)?);
    }
    let home = match &asked.home {
        Home::At(dir, name) => Some((*dir, name.clone())),
        Home::Nowhere | Home::Unknown => None,
    };
    let versions = [&conflict.ours, &conflict.theirs].into_iter().flatten();
    let links = versions.filter_map(|version| version.record.link.clone());
    for (dir, name) in links.chain(home) {
        if alive(image, dir)?.is_some_and(|stat| stat.is_dir()) {
            let inode = image.entry(dir, name.as_bytes())?.map(|entry| entry.inode);
            spots.push(Spot { dir, name, inode });
        }
    }
    let mut paths = ChangedPaths::default();
    if conflict.place.inode == InodeId::ROOT {
        paths.add(Vec::new());
    }
    for spot in spots {
        if let Some(inode) = spot.inode
            && alive(image, inode)?.is_some_and(|stat| !has_one_name(&stat))
        {
            // Its other names are nowhere listed here.
            return Ok(ChangedPaths::Everything);
        }
        // No client has a path so long; what is there is found again by its directory.
        let Some(path) = path_of(image, &spot)? else {
            return Ok(ChangedPaths::Everything);
        };
        let dir = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        paths.add(path.get(..dir).unwrap_or_default().to_vec());
        paths.add(path);
    }
    Ok(paths.without_doubles())
}

/// Resolves a conflict and takes its record out of the image.
///
/// # Errors
///
/// `ReadOnly`. The inner result says why it is not done.
pub fn resolve(
    image: &mut Image,
    cx: Context<'_>,
    asked: &Resolve<'_>,
) -> OpResult<Result<(), Refusal>> {
    image.require_writable()?;
    if !image.has_conflict(&asked.id)? {
        return Ok(Err(Refusal::NotThere));
    }
    match act(image, cx, asked) {
        Ok(()) => {}
        Err(Stop::Refused(refusal)) => return Ok(Err(refusal)),
        Err(Stop::Op(error)) => return Err(error),
    }
    image.forget_conflict(&asked.id);
    Ok(Ok(()))
}

/// Makes the one change that a resolution needs, if any.
fn act(image: &mut Image, cx: Context<'_>, asked: &Resolve<'_>) -> Result<(), Stop> {
    let conflict = asked.conflict;
    match (asked.take, &conflict.aside) {
        (Take::Both, _) | (Take::File, None) => Ok(()),
        (Take::File, Some(aside)) => displace(image, cx, asked, aside),
        (Take::Side(side), Some(aside)) if side == side_in_place(conflict) => {
            let (_, stat) = find(image, &conflict.place)?.ok_or(Refusal::Gone)?;
            require_unchanged(conflict, side, &stat)?;
            displace(image, cx, asked, aside)
        }
        (Take::Side(side), Some(aside)) => {
            let (spot, stat) = find(image, aside)?.ok_or(Refusal::Gone)?;
            require_unchanged(conflict, side, &stat)?;
            put_in_place(image, cx, asked, (&spot, &stat))
        }
        (Take::Side(side), None) => take_one(image, cx, conflict, side),
    }
}

/// Takes a side of a conflict about one object of which there is one version.
fn take_one(
    image: &mut Image,
    cx: Context<'_>,
    conflict: &Conflict,
    side: Side,
) -> Result<(), Stop> {
    let found = find(image, &conflict.place)?;
    match conflict.kind {
        ConflictKind::EditDelete | ConflictKind::RenameDelete | ConflictKind::DirectoryDeleted => {
            match (version(conflict, side), found) {
                (Some(_), Some((_, stat))) => require_unchanged(conflict, side, &stat),
                (Some(_), None) => Err(Refusal::Gone.into()),
                (None, Some((spot, stat))) => {
                    require_one_name(&stat)?;
                    take_away(image, cx, &spot)
                }
                // Somebody has removed it.
                (None, None) => Ok(()),
            }
        }
        ConflictKind::RenameRename | ConflictKind::Links | ConflictKind::Cycle => {
            let (spot, stat) = found.ok_or(Refusal::Gone)?;
            if side == side_in_place(conflict) {
                return Ok(());
            }
            let version = version(conflict, side).ok_or(Refusal::Unknown)?;
            require_one_name(&stat)?;
            require_one_name(&version.record.stat)?;
            let link = version.record.link.clone().ok_or(Refusal::Unknown)?;
            move_to(image, cx, &spot, link)
        }
        ConflictKind::Attributes => set_disputed(image, cx, conflict, side),
        ConflictKind::Content
        | ConflictKind::Target
        | ConflictKind::CreateCreate
        | ConflictKind::NameTaken
        | ConflictKind::DirectoryName
        | ConflictKind::Type => Err(Refusal::Unknown.into()),
    }
}

/// Sets the attributes that both sides changed to what one of them had.
fn set_disputed(
    image: &mut Image,
    cx: Context<'_>,
    conflict: &Conflict,
    side: Side,
) -> Result<(), Stop> {
    let inode = conflict.place.inode;
    let now = alive(image, inode)?.ok_or(Refusal::Gone)?;
    let (Some(ours), Some(theirs)) = (&conflict.ours, &conflict.theirs) else {
        return Err(Refusal::Unknown.into());
    };
    let taken = match side {
        Side::Ours => &ours.record.stat,
        Side::Theirs => &theirs.record.stat,
    };
    let chosen = |field: fn(&Stat) -> u32| {
        let (ours, theirs) = (field(&ours.record.stat), field(&theirs.record.stat));
        let base = conflict.base.as_ref().map(|it| field(&it.record.stat));
        let is_disputed = ours != theirs && base != Some(ours) && base != Some(theirs);
        if is_disputed {
            field(taken)
        } else {
            field(&now)
        }
    };
    let wanted = (
        chosen(|stat| stat.mode),
        chosen(|stat| stat.uid),
        chosen(|stat| stat.gid),
    );
    if wanted != (now.mode, now.uid, now.gid) {
        image.update(inode, |stat| {
            (stat.mode, stat.uid, stat.gid) = wanted;
            stat.ctime = Image::next_time(cx.now, stat.ctime);
        });
    }
    Ok(())
}

/// Puts what was aside under the name in dispute, and over what is there.
fn put_in_place(
    image: &mut Image,
    cx: Context<'_>,
    asked: &Resolve<'_>,
    (from, stat): (&Spot, &Stat),
) -> Result<(), Stop> {
    let conflict = asked.conflict;
    let to = spot_of(image, &conflict.place)?.ok_or(Refusal::NoPlace)?;
    let mut attributes = (stat.mode, stat.uid, stat.gid);
    if let Some(inode) = to.inode {
        let now = image.stat(inode)?;
        let is_its = inode == conflict.place.inode;
        if is_one_object(conflict.kind) {
            require_one_name(&now)?;
            if is_its {
                attributes = merged_attributes(conflict, stat, &now);
            }
        } else if is_its && !loses_one_name(asked, &now)? {
            match asked.home {
                Home::Nowhere => {}
                Home::At(..) => return Err(Refusal::Elsewhere.into()),
                Home::Unknown => return Err(Refusal::Unknown.into()),
            }
        }
    }
    let (name, to_name) = (from.name.as_bytes(), to.name.as_bytes());
    told(rename(image, cx, from.dir, name, to.dir, to_name).map(drop))?;
    if attributes != (stat.mode, stat.uid, stat.gid) {
        image.update(stat.inode, |stat| {
            (stat.mode, stat.uid, stat.gid) = attributes;
        });
    }
    Ok(())
}

/// Mode, owner and group of a version that takes the place of another of the same object: its own,
/// but for what its side had not changed, which is as it is there `now`.
fn merged_attributes(conflict: &Conflict, own: &Stat, now: &Stat) -> (u32, u32, u32) {
    let merged = |field: fn(&Stat) -> u32| {
        let base = conflict.base.as_ref().map(|it| field(&it.record.stat));
        match base == Some(field(own)) {
            true => field(now),
            false => field(own),
        }
    };
    (
        merged(|stat| stat.mode),
        merged(|stat| stat.uid),
        merged(|stat| stat.gid),
    )
}

/// Takes what was put aside out of the way: to where the side that is taken has it, or altogether.
fn displace(
    image: &mut Image,
    cx: Context<'_>,
    asked: &Resolve<'_>,
    aside: &Place,
) -> Result<(), Stop> {
    // Whoever has removed it has done that.
    let Some((spot, stat)) = find(image, aside)? else {
        return Ok(());
    };
    if is_one_object(asked.conflict.kind) || loses_one_name(asked, &stat)? {
        return take_away(image, cx, &spot);
    }
    match &asked.home {
        Home::Nowhere => take_away(image, cx, &spot),
        Home::At(dir, name) => move_to(image, cx, &spot, (*dir, name.clone())),
        Home::Unknown => Err(Refusal::Unknown.into()),
    }
}

/// Moves a name to another, which must be free.
fn move_to(
    image: &mut Image,
    cx: Context<'_>,
    from: &Spot,
    (dir, name): (InodeId, Name),
) -> Result<(), Stop> {
    if (from.dir, &from.name) == (dir, &name) {
        return Ok(());
    }
    let parent = alive(image, dir)?.filter(Stat::is_dir);
    parent.ok_or(Refusal::NoPlace)?;
    if image.entry(dir, name.as_bytes())?.is_some() {
        return Err(Refusal::Taken.into());
    }
    let (from_name, to_name) = (from.name.as_bytes(), name.as_bytes());
    told(rename(image, cx, from.dir, from_name, dir, to_name).map(drop))
}

/// Removes a name, and the object with its last one.
fn take_away(image: &mut Image, cx: Context<'_>, spot: &Spot) -> Result<(), Stop> {
    let is_dir = match spot.inode {
        Some(inode) => image.stat(inode)?.is_dir(),
        None => return Ok(()),
    };
    let name = spot.name.as_bytes();
    let removed = match is_dir {
        true => rmdir(image, cx, spot.dir, name),
        false => remove(image, cx, spot.dir, name),
    };
    told(removed.map(drop))
}

/// What an operation failed with, as a refusal if it says something about the conflict.
fn told(result: OpResult<()>) -> Result<(), Stop> {
    result.map_err(|error| match error {
        OpError::Fs(FsError::NotEmpty) => Refusal::NotEmpty.into(),
        OpError::Fs(FsError::IsDirectory | FsError::NotDirectory) => Refusal::Types.into(),
        OpError::Fs(FsError::Invalid) => Refusal::Loop.into(),
        error => error.into(),
    })
}

/// Fails if the object of a version has been written to since the merge. A merge gives a file that
/// it does not merge by lines the modification time of a side, and every write a later one.
fn require_unchanged(conflict: &Conflict, side: Side, now: &Stat) -> Result<(), Stop> {
    let Some(version) = version(conflict, side) else {
        return Ok(());
    };
    let then = &version.record.stat;
    let versions = [&conflict.base, &conflict.ours, &conflict.theirs];
    let mut times = versions
        .into_iter()
        .flatten()
        .map(|version| version.record.stat.mtime);
    let same = now.kind == then.kind
        && (now.kind != FileKind::File
            || now.size == then.size && times.any(|time| time == now.mtime));
    if same {
        Ok(())
    } else {
        Err(Refusal::Changed.into())
    }
}

/// Fails if an object has more names than the one that would change.
fn require_one_name(stat: &Stat) -> Result<(), Stop> {
    if has_one_name(stat) {
        Ok(())
    } else {
        Err(Refusal::Linked.into())
    }
}

/// Whether the object that makes room has further names, and is to keep them. If a side has deleted
/// it, that side is not taken by one name alone.
fn loses_one_name(asked: &Resolve<'_>, stat: &Stat) -> Result<bool, Stop> {
    let may_be_deleted = matches!(
        asked.conflict.kind,
        ConflictKind::EditDelete | ConflictKind::RenameDelete | ConflictKind::Type
    );
    if may_be_deleted && !matches!(asked.home, Home::At(..)) {
        require_one_name(stat)?;
    }
    Ok(!has_one_name(stat))
}

fn has_one_name(stat: &Stat) -> bool {
    stat.is_dir() || stat.nlink <= 1
}

fn version(conflict: &Conflict, side: Side) -> Option<&Version> {
    match side {
        Side::Ours => conflict.ours.as_ref(),
        Side::Theirs => conflict.theirs.as_ref(),
    }
}

/// Whether both versions are of one object, of which the one that was put aside is a copy.
fn is_one_object(kind: ConflictKind) -> bool {
    matches!(kind, ConflictKind::Content | ConflictKind::Target)
}

/// The side whose version is under the name in dispute.
#[must_use]
pub fn side_in_place(conflict: &Conflict) -> Side {
    let Some(aside) = &conflict.aside else {
        return match conflict.resolution {
            Resolution::Ours | Resolution::KeptBoth => Side::Ours,
            Resolution::Theirs => Side::Theirs,
        };
    };
    let is = |version: &Option<Version>| {
        let inode = version.as_ref().map(|version| version.inode);
        inode == Some(aside.inode)
    };
    match (is(&conflict.ours), is(&conflict.theirs)) {
        (true, false) => Side::Theirs,
        (false, true) => Side::Ours,
        // One object on both sides: the suffix tells.
        _ => {
            let name = aside.path.rsplit(|byte| *byte == b'/').next();
            let name = String::from_utf8_lossy(name.unwrap_or_default());
            match (name.rfind("~ours."), name.rfind("~theirs.")) {
                (Some(ours), theirs) if Some(ours) > theirs => Side::Theirs,
                _ => Side::Ours,
            }
        }
    }
}

/// The attributes of an inode, if it is there.
fn alive(image: &mut Image, inode: InodeId) -> OpResult<Option<Stat>> {
    match image.stat(inode) {
        Ok(stat) => Ok(Some(stat)),
        Err(OpError::Fs(FsError::Stale)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Where the object of a place is now, with its attributes; none if it is gone.
fn find(image: &mut Image, place: &Place) -> OpResult<Option<(Spot, Stat)>> {
    let Some(stat) = alive(image, place.inode)? else {
        return Ok(None);
    };
    let spot = spot_of(image, place)?;
    Ok(spot.map(|spot| (spot, stat)))
}

/// Where the object of a place is now; if it is gone, what is at its path.
fn spot_of(image: &mut Image, place: &Place) -> OpResult<Option<Spot>> {
    let walked = walk(image, &place.path)?;
    let is_there = |spot: &Spot| spot.inode == Some(place.inode);
    if walked.as_ref().is_some_and(is_there) || alive(image, place.inode)?.is_none() {
        return Ok(walked);
    }
    let link = image.first_link(place.inode)?;
    Ok(link.map(|(dir, name)| Spot {
        dir,
        name,
        inode: Some(place.inode),
    }))
}

/// The name at the end of a path; none if there is no such directory.
fn walk(image: &mut Image, path: &[u8]) -> OpResult<Option<Spot>> {
    let mut dir = InodeId::ROOT;
    let mut parts = path.split(|byte| *byte == b'/').peekable();
    while let Some(part) = parts.next() {
        let Ok(name) = Name::new(part) else {
            return Ok(None);
        };
        let entry = image.entry(dir, part)?;
        if parts.peek().is_none() {
            let inode = entry.map(|entry| entry.inode);
            return Ok(Some(Spot { dir, name, inode }));
        }
        match entry.filter(|entry| entry.kind == FileKind::Directory) {
            Some(entry) => dir = entry.inode,
            None => return Ok(None),
        }
    }
    Ok(None)
}

/// The path of a name; none if it is too long.
fn path_of(image: &mut Image, spot: &Spot) -> OpResult<Option<Vec<u8>>> {
    let mut parts = vec![spot.name.clone()];
    let (mut at, mut bytes) = (spot.dir, spot.name.as_bytes().len());
    while let Some((dir, name)) = image.first_link(at)? {
        bytes += 1 + name.as_bytes().len();
        // Also where directories hang in a circle.
        if bytes > PATH_BYTES_MAX {
            return Ok(None);
        }
        parts.push(name);
        at = dir;
    }
    let names: Vec<&[u8]> = parts.iter().rev().map(Name::as_bytes).collect();
    Ok(Some(names.join(&b'/')))
}
