//! From paths to places, and entering what is new.

use std::collections::HashMap;

use base::{InodeId, Name, NameError};

use super::{Import, ImportError, Place, entry_of, refused};
use crate::compare::PATH_BYTES_MAX;
use crate::keyspace::image as keys;
use crate::record::entry::Entry;
use crate::stat::FileKind;

/// Bytes of names of directories that are remembered.
const CACHE_BYTES_MAX: usize = 8 << 20;

/// What remembering one costs beside its path, roughly.
const CACHE_ENTRY_BYTES: usize = 64;

/// Directories that are made for one path between two flushes. With the longest names they are a part
/// of what a transaction takes.
pub const DIRS_AT_ONCE_MAX: usize = 1000;

/// Directories by the directory they are in and their name there: so a path costs its length,
/// however deep it is.
#[derive(Debug, Default)]
pub(super) struct DirCache {
    known: HashMap<Place, InodeId>,
    bytes: usize,
}

impl DirCache {
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn insert(&mut self, place: Place, dir: InodeId) {
        if self.bytes > CACHE_BYTES_MAX {
            self.known.clear();
            self.bytes = 0;
        }
        let bytes = place.1.as_bytes().len() + CACHE_ENTRY_BYTES;
        if self.known.insert(place, dir).is_none() {
            self.bytes += bytes;
        }
    }
}

/// The names of a path. `.` and slashes too many do not matter.
pub(super) fn split(path: &[u8]) -> Result<Vec<Name>, ImportError> {
    if path.len() > PATH_BYTES_MAX {
        let short = path.get(..64).unwrap_or_default();
        let why =
            format!("the path that begins so has more than {PATH_BYTES_MAX} bytes: shorten it");
        return Err(refused(short, why));
    }
    if path.first() == Some(&b'/') {
        let why = "its path begins with '/': archives hold paths from their own root; pack it \
                   again without `-P`";
        return Err(refused(path, why));
    }
    let names = path.split(|byte| *byte == b'/');
    let names = names.filter(|name| !matches!(*name, b"" | b"."));
    names
        .map(|name| {
            Name::new(name).map_err(|error| match error {
                NameError::TooLong => {
                    let length = name.len();
                    let why =
                        format!("a name in it has {length} bytes, of at most 255: shorten it");
                    refused(path, why)
                }
                NameError::Dots => refused(
                    path,
                    "'..' in it leads out of the tree: pack it again without",
                ),
                NameError::NotAllowed => refused(path, "a name in it has a NUL in it"),
            })
        })
        .collect()
}

fn join(names: &[Name]) -> Vec<u8> {
    let names: Vec<&[u8]> = names.iter().map(Name::as_bytes).collect();
    names.join(&b'/')
}

impl Import {
    /// Makes directories above a path that are missing, at most [`DIRS_AT_ONCE_MAX`] of them, and says
    /// whether that was all: else a flush may be due, and the next call goes on. A path with
    /// [`DIRS_AT_ONCE_MAX`] names needs no such call.
    ///
    /// # Errors
    ///
    /// As [`Import::directory`].
    ///
    /// # Cancellation
    ///
    /// As [`Import::directory`].
    pub async fn parents(&mut self, path: &[u8]) -> Result<bool, ImportError> {
        let mut names = split(path)?;
        names.pop();
        let made = self.walk_some(&names, DIRS_AT_ONCE_MAX).await?;
        Ok(made.is_some())
    }

    /// The directory at a path; it and those above it are made if they are missing.
    pub(super) async fn walk(&mut self, names: &[Name]) -> Result<InodeId, ImportError> {
        let dir = self.walk_some(names, usize::MAX).await?;
        Ok(dir.unwrap_or(InodeId::ROOT))
    }

    /// As [`Import::walk`]; `None` if more than `most` would have to be made.
    async fn walk_some(
        &mut self,
        names: &[Name],
        mut most: usize,
    ) -> Result<Option<InodeId>, ImportError> {
        let mut dir = InodeId::ROOT;
        for (at, name) in names.iter().enumerate() {
            let place = (dir, name.clone());
            if let Some(known) = self.dirs.known.get(&place) {
                dir = *known;
                continue;
            }
            dir = match self.entry(dir, name).await? {
                Some(entry) if entry.kind == FileKind::Directory => entry.inode,
                Some(_) => {
                    let why = "something else is there where a directory is needed: the archive \
                               has two things of this name; leave one out";
                    let path = join(names.get(..=at).unwrap_or_default());
                    return Err(refused(&path, why));
                }
                None if most == 0 => return Ok(None),
                None => {
                    most -= 1;
                    self.make_dir(place.clone()).await?
                }
            };
            self.dirs.insert(place, dir);
        }
        Ok(Some(dir))
    }

    /// What is at a path, if anything.
    pub(super) async fn find(&mut self, names: &[Name]) -> Result<Option<Entry>, ImportError> {
        let mut at = Entry {
            inode: InodeId::ROOT,
            kind: FileKind::Directory,
        };
        for name in names {
            if at.kind != FileKind::Directory {
                return Ok(None);
            }
            let place = (at.inode, name.clone());
            if let Some(known) = self.dirs.known.get(&place) {
                at.inode = *known;
                continue;
            }
            match self.entry(at.inode, name).await? {
                Some(entry) => at = entry,
                None => return Ok(None),
            }
            if at.kind == FileKind::Directory {
                self.dirs.insert(place, at.inode);
            }
        }
        Ok(Some(at))
    }

    async fn entry(&mut self, dir: InodeId, name: &Name) -> Result<Option<Entry>, ImportError> {
        let name = name.as_bytes();
        let key = keys::entry(dir, self.hasher.hash(name), name);
        let value = self.value(&key).await?;
        Ok(value.map(|value| Entry::decode(&value)).transpose()?)
    }

    /// Where something new of this path goes: nothing is there.
    pub(super) async fn place(
        &mut self,
        path: &[u8],
        kind: FileKind,
    ) -> Result<Place, ImportError> {
        let mut names = split(path)?;
        let Some(name) = names.pop() else {
            return Err(refused(
                path,
                "only a directory can be the root of the tree",
            ));
        };
        let parent = self.walk(&names).await?;
        match self.entry(parent, &name).await? {
            None => Ok((parent, name)),
            Some(found) => {
                let why = match (found.kind, kind) {
                    (FileKind::Directory, _) => "a directory is there already",
                    _ => "it is in the archive twice",
                };
                let why =
                    format!("{why}: leave one out (`tar --delete`), or unpack and pack again");
                Err(refused(path, why))
            }
        }
    }

    /// A directory that no attributes were told of yet.
    async fn make_dir(&mut self, (parent, name): Place) -> Result<InodeId, ImportError> {
        let record = self
            .new_record(&(parent, name.clone()), FileKind::Directory)
            .await?;
        let entry = entry_of(&record);
        self.hold_new(record)?;
        self.enter(parent, &name, entry).await?;
        self.dirs_made += 1;
        Ok(entry.inode)
    }

    /// Puts an entry into a directory and counts it there.
    pub(super) async fn enter(
        &mut self,
        parent: InodeId,
        name: &Name,
        entry: Entry,
    ) -> Result<(), ImportError> {
        let bytes = name.as_bytes();
        let key = keys::entry(parent, self.hasher.hash(bytes), bytes);
        self.set(key, entry.encode());
        self.change(parent, |dir| {
            dir.entries += 1;
            if entry.kind == FileKind::Directory {
                let links = dir.stat.nlink.checked_add(1);
                dir.stat.nlink = links.ok_or_else(|| {
                    refused(
                        bytes,
                        "its directory has as many directories as there can be",
                    )
                })?;
            }
            Ok(())
        })
        .await
    }
}
