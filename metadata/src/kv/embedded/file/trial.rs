//! Changes of the file that are not made yet.
//!
//! Opening the file may make the engine repair it: it goes back to an older commit and writes over
//! the newer one. Until it is known that this loses nothing, what it writes is held in memory, so
//! that a file that is refused is left as it was.

use redb::StorageBackend;
use redb::backends::FileBackend;

/// Bytes that are held at most. A repair writes the header a few times.
const HELD_BYTES_MAX: usize = 16 << 20;

/// A change that waits.
#[derive(Debug)]
pub(super) enum Change {
    Write(u64, Vec<u8>),
    SetLen(u64),
    Sync,
}

/// Changes in the order in which they are to be made.
#[derive(Debug, Default)]
pub(super) struct Trial {
    changes: Vec<Change>,
    bytes: usize,
}

impl Trial {
    /// Holds a change.
    pub(super) fn hold(&mut self, change: Change) -> Result<(), std::io::Error> {
        if let Change::Write(_, data) = &change {
            self.bytes += data.len();
        }
        if self.bytes > HELD_BYTES_MAX {
            return Err(std::io::Error::other("opening the file writes too much"));
        }
        self.changes.push(change);
        Ok(())
    }

    /// The changes.
    pub(super) fn into_changes(self) -> Vec<Change> {
        self.changes
    }

    /// The length of `file` with the changes made.
    pub(super) fn len(&self, file: &FileBackend) -> Result<u64, std::io::Error> {
        let mut len = file.len()?;
        for change in &self.changes {
            match change {
                Change::SetLen(new) => len = *new,
                Change::Write(offset, data) => len = len.max(end(*offset, data.len())),
                Change::Sync => {}
            }
        }
        Ok(len)
    }

    /// Reads `file` with the changes made.
    pub(super) fn read(
        &self,
        file: &FileBackend,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), std::io::Error> {
        if end(offset, out.len()) > self.len(file)? {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        out.fill(0);
        let stored = usize::try_from(file.len()?.saturating_sub(offset)).unwrap_or(usize::MAX);
        let stored = stored.min(out.len());
        if let Some(out) = out.get_mut(..stored)
            && !out.is_empty()
        {
            file.read(offset, out)?;
        }
        for change in &self.changes {
            match change {
                Change::Write(at, data) => overlay(out, offset, data, *at),
                Change::SetLen(len) => {
                    let from = usize::try_from(len.saturating_sub(offset)).unwrap_or(usize::MAX);
                    if let Some(cut) = out.get_mut(from..) {
                        cut.fill(0);
                    }
                }
                Change::Sync => {}
            }
        }
        Ok(())
    }
}

fn end(offset: u64, len: usize) -> u64 {
    offset.saturating_add(u64::try_from(len).unwrap_or(u64::MAX))
}

/// Copies the part of `data`, which lies at `at`, that falls into `out`, which lies at `offset`.
fn overlay(out: &mut [u8], offset: u64, data: &[u8], at: u64) {
    let skip = |to: u64, from: u64| usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX);
    let to = out.get_mut(skip(at, offset)..).unwrap_or_default();
    let from = data.get(skip(offset, at)..).unwrap_or_default();
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A trial shows the file as it will be.
        #[test]
        fn reads_show_the_changes(
            stored in proptest::collection::vec(any::<u8>(), 0..40),
            changes in proptest::collection::vec(
                (0..50_u64, proptest::option::of(proptest::collection::vec(any::<u8>(), 1..20))),
                0..6,
            ),
            offset in 0..60_u64,
            len in 0..30_usize,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("f");
            std::fs::write(&path, &stored).unwrap();
            let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
            let file = FileBackend::new(file).unwrap();
            let mut trial = Trial::default();
            let mut model = stored;
            for (at, data) in changes {
                let start = usize::try_from(at).unwrap();
                match data {
                    Some(data) => {
                        model.resize(model.len().max(start + data.len()), 0);
                        model[start..start + data.len()].copy_from_slice(&data);
                        trial.hold(Change::Write(at, data)).unwrap();
                    }
                    None => {
                        model.resize(start, 0);
                        trial.hold(Change::SetLen(at)).unwrap();
                    }
                }
            }
            trial.hold(Change::Sync).unwrap();
            prop_assert_eq!(trial.len(&file).unwrap(), u64::try_from(model.len()).unwrap());
            let mut out = vec![9; len];
            let read = trial.read(&file, offset, &mut out);
            let start = usize::try_from(offset).unwrap();
            match model.get(start..start + len) {
                Some(expected) => {
                    read.unwrap();
                    prop_assert_eq!(out, expected);
                }
                None => prop_assert!(read.is_err()),
            }
        }
    }

    #[test]
    fn what_is_held_is_bounded() {
        let mut trial = Trial::default();
        trial
            .hold(Change::Write(0, vec![0; HELD_BYTES_MAX]))
            .unwrap();
        assert!(trial.hold(Change::Write(0, vec![0])).is_err());
    }
}
