//! A file that is only read. What the engine writes, as it does when it opens and closes a file,
//! stays in memory and is forgotten.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileExt;

use parking_lot::Mutex;
use redb::StorageBackend;

/// Length of a piece of what was written, in bytes.
const PIECE_BYTES: usize = 4096;

/// Most pieces kept: the engine writes a little for each gigabyte of the file.
const PIECES_MAX: usize = 64 * 1024;

/// The file, and what was written instead of to it.
#[derive(Debug)]
pub(super) struct Shadow {
    file: File,
    written: Mutex<Written>,
}

#[derive(Debug)]
struct Written {
    /// Length of the whole, in bytes.
    len: u64,
    /// What of the file is still seen: it was cut here, perhaps to grow again.
    file_len: u64,
    pieces: HashMap<u64, Box<[u8]>>,
}

impl Shadow {
    /// A shadow of `file`, which is open for reading.
    pub(super) fn new(file: File) -> Result<Self, Error> {
        let len = file.metadata()?.len();
        let written = Written {
            len,
            file_len: len,
            pieces: HashMap::new(),
        };
        Ok(Self {
            file,
            written: Mutex::new(written),
        })
    }

    /// Calls `each` for the parts of `len` bytes at `offset`, with the number of the piece, where
    /// the part begins in it, and where it lies among the bytes.
    fn parts(
        offset: u64,
        len: usize,
        mut each: impl FnMut(u64, usize, std::ops::Range<usize>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let piece_bytes = u64::try_from(PIECE_BYTES).map_err(Error::other)?;
        let mut done = 0;
        while done < len {
            let at = offset + u64::try_from(done).map_err(Error::other)?;
            let begin = usize::try_from(at % piece_bytes).map_err(Error::other)?;
            let end = len.min(done + PIECE_BYTES - begin);
            each(at / piece_bytes, begin, done..end)?;
            done = end;
        }
        Ok(())
    }

    /// The file's own bytes at `offset`; zeros where it has none.
    fn read_file(&self, file_len: u64, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        out.fill(0);
        let there = file_len.saturating_sub(offset);
        let there = usize::try_from(there).map_or(out.len(), |there| there.min(out.len()));
        match out.get_mut(..there) {
            Some(out) => self.file.read_exact_at(out, offset),
            None => Ok(()),
        }
    }
}

impl StorageBackend for Shadow {
    fn len(&self) -> Result<u64, Error> {
        Ok(self.written.lock().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let written = self.written.lock();
        let end = offset.checked_add(u64::try_from(out.len()).map_err(Error::other)?);
        if end.is_none_or(|end| end > written.len) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.read_file(written.file_len, offset, out)?;
        if written.pieces.is_empty() {
            return Ok(());
        }
        Self::parts(offset, out.len(), |number, begin, place| {
            let piece = written.pieces.get(&number).and_then(|piece| {
                let len = place.len();
                piece.get(begin..begin + len)
            });
            if let (Some(piece), Some(out)) = (piece, out.get_mut(place)) {
                out.copy_from_slice(piece);
            }
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        let mut written = self.written.lock();
        if len < written.len {
            let piece_bytes = u64::try_from(PIECE_BYTES).map_err(Error::other)?;
            let (last, keep) = (len / piece_bytes, len % piece_bytes);
            let keep = usize::try_from(keep).map_err(Error::other)?;
            written.pieces.retain(|number, _| *number <= last);
            if let Some(cut) = written.pieces.get_mut(&last) {
                cut.iter_mut().skip(keep).for_each(|byte| *byte = 0);
            }
            written.file_len = written.file_len.min(len);
        }
        written.len = len;
        Ok(())
    }

    fn sync_data(&self) -> Result<(), Error> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let mut written = self.written.lock();
        let file_len = written.file_len;
        Self::parts(offset, data.len(), |number, begin, place| {
            if !written.pieces.contains_key(&number) {
                if written.pieces.len() >= PIECES_MAX {
                    return Err(Error::other(
                        "too much was written to a file that is only read",
                    ));
                }
                let mut piece = vec![0; PIECE_BYTES].into_boxed_slice();
                let start = number * u64::try_from(PIECE_BYTES).map_err(Error::other)?;
                self.read_file(file_len, start, &mut piece)?;
                written.pieces.insert(number, piece);
            }
            let len = place.len();
            let piece = written.pieces.get_mut(&number);
            let part = piece.and_then(|piece| piece.get_mut(begin..begin + len));
            if let (Some(part), Some(data)) = (part, data.get(place)) {
                part.copy_from_slice(data);
            }
            Ok(())
        })?;
        let end = offset + u64::try_from(data.len()).map_err(Error::other)?;
        written.len = written.len.max(end);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Change {
        Write(u16, Vec<u8>),
        SetLen(u16),
    }

    fn change() -> impl Strategy<Value = Change> {
        let bytes = proptest::collection::vec(any::<u8>(), 1..9000);
        prop_oneof![
            3 => (0..20_000_u16, bytes).prop_map(|(at, bytes)| Change::Write(at, bytes)),
            1 => (0..30_000_u16).prop_map(Change::SetLen),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// It reads as the file would after the changes, and the file is as it was.
        #[test]
        fn changes_are_seen_and_not_made(
            len in 0..25_000_usize,
            changes in proptest::collection::vec(change(), 0..12),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("file");
            let before: Vec<u8> = (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect();
            std::fs::write(&path, &before).unwrap();
            let shadow = Shadow::new(File::open(&path).unwrap()).unwrap();
            let mut model = before.clone();
            for change in changes {
                match change {
                    Change::Write(at, bytes) => {
                        shadow.write(u64::from(at), &bytes).unwrap();
                        let at = usize::from(at);
                        model.resize(model.len().max(at + bytes.len()), 0);
                        model[at..at + bytes.len()].copy_from_slice(&bytes);
                    }
                    Change::SetLen(len) => {
                        shadow.set_len(u64::from(len)).unwrap();
                        model.resize(usize::from(len), 0);
                    }
                }
                prop_assert_eq!(shadow.len().unwrap(), u64::try_from(model.len()).unwrap());
                let mut read = vec![9; model.len()];
                shadow.read(0, &mut read).unwrap();
                prop_assert!(read == model);
                let from = model.len() / 3;
                shadow.read(u64::try_from(from).unwrap(), &mut read[from..]).unwrap();
                prop_assert!(read == model);
                let beyond = shadow.read(u64::try_from(from).unwrap(), &mut vec![0; model.len() + 1]);
                prop_assert!(beyond.is_err());
            }
            prop_assert_eq!(std::fs::read(&path).unwrap(), before);
        }
    }
}
