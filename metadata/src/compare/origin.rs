//! What one file of a snapshot was in another: a comparison of one path, which costs a few lookups.

use base::{InodeId, Name};

use super::group::{Flags, blocks_differ};
use super::pair::{Pair, Side};
use super::paths::DirPaths;
use super::snapshot::Snapshot;
use super::{Place, SnapshotError};
use crate::record::inode::InodeRecord;
use crate::stat::FileKind;

/// What a file was in an older snapshot, and what of it differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its attributes there: those of the same inode; or of the one that stood in its place and
    /// that it replaced.
    pub record: InodeRecord,
    /// Its path there. Of several the same, if that is one of them, else the first link's.
    pub path: Vec<u8>,
    /// The content differs. Content that was written anew may be the same.
    pub content: bool,
    /// The permission bits differ.
    pub mode: bool,
    /// The owner or the group differs.
    pub owner: bool,
}

/// What the file `record`, which the snapshot `new` has at `path`, was in `old`: by the rules of
/// [`compare`](super::compare), without looking at anything else. `None` if it is a new one.
///
/// # Errors
///
/// A tree cannot be read, something is damaged, or a path is too long.
pub async fn origin(
    old: &Snapshot,
    new: &Snapshot,
    record: &InodeRecord,
    path: &[u8],
) -> Result<Option<Origin>, SnapshotError> {
    let inode = record.stat.inode;
    let mut pair = Pair::new(old.clone(), new.clone());
    let (was, old_path) = match old.attributes(inode).await? {
        Some(was) => (was, path_in(old, inode, path).await?),
        None => {
            let Some(place) = place_of(new, path).await? else {
                return Ok(None);
            };
            let Some((was, _)) = pair.replaced(&place).await? else {
                return Ok(None);
            };
            let Some((before, inode)) = pair.across(Side::New, &place).await? else {
                return Ok(None);
            };
            let path = DirPaths::new().path(old, inode, &before).await?;
            (was, path)
        }
    };
    let mut flags = Flags::default();
    // Every change of an inode leaves another time of change: equal records have equal content.
    if was != *record {
        flags = Flags::between(&was, record);
        if !flags.content && record.stat.kind == FileKind::File {
            flags.content = blocks_differ(&pair, &was, record).await?;
        }
    }
    Ok(Some(Origin {
        record: was,
        path: old_path,
        content: flags.content,
        mode: flags.mode,
        owner: flags.owner,
    }))
}

/// A path of an inode that is in the snapshot: `wanted` if it leads there, else that of the first
/// link.
///
/// # Errors
///
/// The tree cannot be read, something is damaged, or the path is too long.
pub async fn path_in(
    snapshot: &Snapshot,
    inode: InodeId,
    wanted: &[u8],
) -> Result<Vec<u8>, SnapshotError> {
    let there = snapshot.lookup(wanted).await?;
    if there.is_some_and(|record| record.stat.inode == inode) {
        return Ok(wanted.to_vec());
    }
    let what = "has no name";
    let first = snapshot.paths_of(inode).next().await?;
    first.ok_or(SnapshotError::Damaged { inode, what })
}

/// The name in a directory that a path is; `None` for the root.
async fn place_of(snapshot: &Snapshot, path: &[u8]) -> Result<Option<Place>, SnapshotError> {
    let at = path.iter().rposition(|byte| *byte == b'/');
    let (dir, name) = match at.and_then(|at| path.split_at_checked(at)) {
        Some((dir, name)) => (dir, name.get(1..).unwrap_or_default()),
        None => (&[][..], path),
    };
    let (Ok(name), Some(dir)) = (Name::new(name), snapshot.lookup(dir).await?) else {
        return Ok(None);
    };
    Ok(Some((dir.stat.inode, name)))
}
