//! Changes as text, in the form that `git diff` has: what `git apply` and `patch` take.

use bytes::Bytes;
use metadata::compare::{PathChange, Snapshot, What};
use metadata::lineage::TEXT_BYTES_MAX;
use metadata::record::inode::InodeRecord;
use metadata::stat::FileKind;
use metadata::text::{is_text, unified};
use nfs_gateway::Versions;

use crate::reading::{in_git_quotes, kind_of};
use crate::status::ApiError;

/// Most bytes of text in one answer, about: a further change is not told then.
const TEXTS_BYTES_MAX: usize = 6 << 20;

/// Most bytes of files that are read for one answer.
const READ_BYTES_MAX: u64 = 256 << 20;

/// Makes texts of changes, as many as an answer may have.
pub(super) struct Patches<'a> {
    versions: &'a Versions,
    old: &'a Snapshot,
    new: &'a Snapshot,
    text_bytes: usize,
    read_bytes: u64,
    /// The last text says only that content differs.
    is_partial: bool,
}

/// One side of a change.
struct Side<'a> {
    snapshot: &'a Snapshot,
    record: InodeRecord,
    path: &'a [u8],
}

impl<'a> Patches<'a> {
    pub(super) fn new(versions: &'a Versions, old: &'a Snapshot, new: &'a Snapshot) -> Self {
        Self {
            versions,
            old,
            new,
            text_bytes: 0,
            read_bytes: 0,
            is_partial: false,
        }
    }

    /// The text of a change, and whether there is content that it does not tell; `None` if the answer
    /// has enough of them.
    pub(super) async fn of(
        &mut self,
        change: &PathChange,
    ) -> Result<Option<(Vec<u8>, bool)>, ApiError> {
        self.is_partial = false;
        if self.text_bytes >= TEXTS_BYTES_MAX || self.read_bytes >= READ_BYTES_MAX {
            return Ok(None);
        }
        let (old, new) = sides((self.old, self.new), change).await?;
        let mut patch = Vec::new();
        let mut over = None;
        if let Some(replaced) = change.replaced.filter(|_| change.what == What::Renamed) {
            over = side(self.old, replaced.inode, &change.path).await?;
        }
        match (&old, &new) {
            // As git has it: one is removed, the other is added.
            (Some(_), Some(_)) if change.what == What::TypeChanged => {
                self.write(old.as_ref(), None, &mut patch).await?;
                self.write(None, new.as_ref(), &mut patch).await?;
            }
            // What it was renamed over is still there where this is applied.
            (Some(_), Some(is)) if over.is_some() => {
                self.write(old.as_ref(), None, &mut patch).await?;
                let over = over.as_ref();
                if over.is_some_and(|over| over.record.stat.kind != is.record.stat.kind) {
                    self.write(over, None, &mut patch).await?;
                    self.write(None, new.as_ref(), &mut patch).await?;
                } else {
                    self.write(over, new.as_ref(), &mut patch).await?;
                }
            }
            _ => self.write(old.as_ref(), new.as_ref(), &mut patch).await?,
        }
        if change.further > 0 {
            let further = format!("and {} further names of this file", change.further);
            note(&mut patch, further.as_bytes());
        }
        self.text_bytes += patch.len();
        Ok(Some((patch, self.is_partial)))
    }

    async fn write(
        &mut self,
        old: Option<&Side<'_>>,
        new: Option<&Side<'_>>,
        to: &mut Vec<u8>,
    ) -> Result<(), ApiError> {
        let Some(either) = new.or(old) else {
            return Ok(());
        };
        let (old_path, new_path) = (old.unwrap_or(either).path, new.unwrap_or(either).path);
        // Git knows no directories.
        let is_dir = |side: &Side<'_>| side.record.stat.is_dir();
        if [old, new].into_iter().flatten().all(is_dir) {
            note(to, &describe(old, new));
            return Ok(());
        }
        let (before, after) = (self.content(old).await?, self.content(new).await?);
        let mode = |side: Option<&Side<'_>>| side.map(|side| git_mode(&side.record));
        let modes = (mode(old), mode(new));
        let is_same = before.is_some() && before == after;
        if is_same && modes.0 == modes.1 && old_path == new_path {
            // Nor modes and owners that are no more than this.
            note(to, &describe(old, new));
            return Ok(());
        }
        let (a, b) = (quoted(b"a/", old_path), quoted(b"b/", new_path));
        line(to, &[b"diff --git ", &a, b" ", &b]);
        match modes {
            (None, Some(mode)) => line(to, &[b"new file mode ", mode.as_bytes()]),
            (Some(mode), None) => line(to, &[b"deleted file mode ", mode.as_bytes()]),
            (Some(before), Some(after)) if before != after => {
                line(to, &[b"old mode ", before.as_bytes()]);
                line(to, &[b"new mode ", after.as_bytes()]);
            }
            _ => {}
        }
        if old_path != new_path {
            line(to, &[b"rename from ", &quoted(b"", old_path)]);
            line(to, &[b"rename to ", &quoted(b"", new_path)]);
        }
        let none: &[u8] = b"/dev/null";
        let names = (
            if old.is_some() { &a } else { none },
            if new.is_some() { &b } else { none },
        );
        self.is_partial |= !write_content(names, (before, after), to).await?;
        Ok(())
    }

    /// What a side holds: nothing where it is not; `None` if it is too large.
    async fn content(&mut self, side: Option<&Side<'_>>) -> Result<Option<Bytes>, ApiError> {
        let Some(side) = side else {
            return Ok(Some(Bytes::new()));
        };
        let read = self
            .versions
            .read_whole(side.snapshot, &side.record, TEXT_BYTES_MAX)
            .await?;
        let length = read.as_ref().map_or(0, Bytes::len);
        self.read_bytes += u64::try_from(length).unwrap_or(u64::MAX);
        Ok(match side.record.stat.kind {
            FileKind::File | FileKind::Symlink => read,
            // Its size is none of content.
            _ => Some(Bytes::new()),
        })
    }
}

/// How the content of two files differs, and whether that was told. What is `None` is too large.
async fn write_content(
    (a, b): (&[u8], &[u8]),
    contents: (Option<Bytes>, Option<Bytes>),
    to: &mut Vec<u8>,
) -> Result<bool, ApiError> {
    match contents {
        (Some(before), Some(after)) if before == after => {}
        (Some(before), Some(after)) if is_plain(&before) && is_plain(&after) => {
            line(to, &[b"--- ", a]);
            line(to, &[b"+++ ", b]);
            // Long texts take long: beside what the runtime's threads do.
            let told = tokio::task::spawn_blocking(move || {
                let mut told = Vec::new();
                unified(&before, &after, &mut told);
                told
            });
            let told = told
                .await
                .map_err(|_| ApiError::not_ready("the texts could not be compared: try again"))?;
            to.extend_from_slice(&told);
        }
        (Some(_), Some(_)) => {
            line(to, &[b"Binary files ", a, b" and ", b, b" differ"]);
            return Ok(false);
        }
        _ => {
            let why = format!(" are not compared: over {TEXT_BYTES_MAX} bytes");
            line(to, &[b"Files ", a, b" and ", b, why.as_bytes()]);
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether it is text that an answer in JSON can tell byte by byte.
fn is_plain(content: &[u8]) -> bool {
    is_text(content) && std::str::from_utf8(content).is_ok()
}

/// What is compared.
async fn sides<'s>(
    (old, new): (&'s Snapshot, &'s Snapshot),
    change: &'s PathChange,
) -> Result<(Option<Side<'s>>, Option<Side<'s>>), ApiError> {
    let inode_before = match change.replaced {
        // What it replaced is compared with; a rename is told of the inode itself.
        Some(replaced) if change.what != What::Renamed => replaced.inode,
        _ => change.inode,
    };
    let old_path = change.old_path.as_deref().unwrap_or(&change.path);
    let before = match change.what {
        What::Added => None,
        _ => side(old, inode_before, old_path).await?,
    };
    let after = match change.what {
        What::Removed => None,
        _ => side(new, change.inode, &change.path).await?,
    };
    Ok((before, after))
}

async fn side<'s>(
    snapshot: &'s Snapshot,
    inode: base::InodeId,
    path: &'s [u8],
) -> Result<Option<Side<'s>>, ApiError> {
    let record = snapshot.attributes(inode).await?;
    Ok(record.map(|record| Side {
        snapshot,
        record,
        path,
    }))
}

/// What happened, for people, where git has no words for it.
fn describe(old: Option<&Side<'_>>, new: Option<&Side<'_>>) -> Vec<u8> {
    let path = |side: &Side<'_>| quoted(b"", side.path);
    let kind = |side: &Side<'_>| format!("{} ", kind_of(side.record.stat.kind)).into_bytes();
    let (old, new) = match (old, new) {
        (Some(old), Some(new)) => (old, new),
        (None, Some(new)) => return [kind(new), path(new), b" is new".to_vec()].concat(),
        (Some(old), None) => return [kind(old), path(old), b" is removed".to_vec()].concat(),
        (None, None) => return Vec::new(),
    };
    let mut text = [kind(new), path(new), b":".to_vec()].concat();
    if old.path != new.path {
        text.extend([b" was ".to_vec(), path(old)].concat());
    }
    let (was, is) = (&old.record.stat, &new.record.stat);
    if was.mode != is.mode {
        text.extend(format!(" mode {:04o} -> {:04o}", was.mode, is.mode).into_bytes());
    }
    if (was.uid, was.gid) != (is.uid, is.gid) {
        let owners = format!(" owner {}:{} -> {}:{}", was.uid, was.gid, is.uid, is.gid);
        text.extend(owners.into_bytes());
    }
    text
}

/// A line that programs pass over.
fn note(to: &mut Vec<u8>, text: &[u8]) {
    line(to, &[b"# ", text]);
}

fn line(to: &mut Vec<u8>, parts: &[&[u8]]) {
    for part in parts {
        to.extend_from_slice(part);
    }
    to.push(b'\n');
}

/// The mode as git has it, which knows only whether the owner may execute.
fn git_mode(record: &InodeRecord) -> String {
    let stat = &record.stat;
    match stat.kind {
        FileKind::Symlink => "120000".to_owned(),
        FileKind::File if stat.mode & 0o100 != 0 => "100755".to_owned(),
        FileKind::File => "100644".to_owned(),
        FileKind::Directory => "040000".to_owned(),
        FileKind::BlockDevice => format!("06{:04o}", stat.mode),
        FileKind::CharDevice => format!("02{:04o}", stat.mode),
        FileKind::Fifo => format!("01{:04o}", stat.mode),
        FileKind::Socket => format!("14{:04o}", stat.mode),
    }
}

/// A path as git writes it: in quotes, with octal bytes, if it has bytes that would not be read
/// back.
fn quoted(prefix: &[u8], path: &[u8]) -> Vec<u8> {
    let is_plain = std::str::from_utf8(path).is_ok_and(|text| {
        !text
            .chars()
            .any(|c| c.is_control() || c == '"' || c == '\\')
    });
    let path = [prefix, path].concat();
    if is_plain { path } else { in_git_quotes(&path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_as_git_does() {
        assert_eq!(quoted(b"a/", "ä b".as_bytes()), "a/ä b".as_bytes());
        assert_eq!(quoted(b"a/", b"x\xff\n\"\\"), b"\"a/x\\377\\012\\\"\\\\\"");
    }
}
