//! A second witness of the newest acknowledged version, in a small file beside the store.
//!
//! The engine keeps two commits in its header and takes the older one if the newer is not whole:
//! right after a crash in the middle of a commit, but an acknowledged commit would be lost without
//! a word if the newer one is damaged later. The witness tells the two cases apart. It is written
//! after a commit is durable and before anybody hears of it, so it never claims what the store may
//! rightly not have; and it is not flushed, so it costs next to nothing. What was written survives
//! the process. It need not survive a power failure: then it may be older than the last commit,
//! and claims less.
//!
//! The file has two slots, written in turn, each in a sector of its own: magic `HFKW`, format 1,
//! three zero bytes, the version (8 bytes, big-endian), and the blake3 hash of these 16 bytes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use base::files::{open_regular, open_regular_with};

use super::super::Version;

/// Distance of the slots: what a device writes whole or not at all.
const SLOT_BYTES: u64 = 512;

const PREAMBLE: [u8; 8] = *b"HFKW\x01\0\0\0";
const CHECKED_BYTES: usize = 16;
const RECORD_BYTES: usize = CHECKED_BYTES + 32;

/// The witness of a store.
#[derive(Debug)]
pub(super) struct Witness {
    path: PathBuf,
    /// `None` if it could not be opened; then nothing is witnessed.
    file: Option<File>,
    /// Whether the last write failed, which is told once.
    failing: bool,
}

impl Witness {
    /// Opens the witness at `path`, and makes it if it is missing. Gives the version that was
    /// acknowledged, if it knows one.
    ///
    /// A witness that cannot be read or made is no reason not to open the store.
    pub(super) fn open(path: PathBuf) -> (Self, Option<Version>) {
        let (file, version) = match open_and_read(&path) {
            Ok((file, version)) => (Some(file), version),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "open the metadata store's witness");
                (None, None)
            }
        };
        let witness = Self {
            path,
            file,
            failing: false,
        };
        (witness, version)
    }

    /// Reads the witness at `path`, if there is one, and leaves it as it is.
    pub(super) fn look(path: PathBuf) -> (Self, Option<Version>) {
        let version = match open_regular(&path) {
            Ok(file) => newest(&file).unwrap_or_else(|error| {
                tracing::warn!(path = %path.display(), %error, "read the metadata store's witness");
                None
            }),
            Err(_) => None,
        };
        let witness = Self {
            path,
            file: None,
            failing: false,
        };
        (witness, version)
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes note that `version` is durable. Called before anybody hears of it.
    ///
    /// A failure makes the store no less durable; the witness then claims less than it could.
    pub(super) fn note(&mut self, version: Version) {
        let Some(file) = &self.file else {
            return;
        };
        let written = file.write_all_at(&encode(version), version.0 % 2 * SLOT_BYTES);
        if let Err(error) = &written
            && !self.failing
        {
            tracing::warn!(path = %self.path.display(), %error, "write the metadata store's witness");
        }
        self.failing = written.is_err();
    }

    /// Makes what was noted durable.
    pub(super) fn sync(&self) {
        if let Some(Err(error)) = self.file.as_ref().map(File::sync_data) {
            tracing::warn!(path = %self.path.display(), %error, "sync the metadata store's witness");
        }
    }
}

fn open_and_read(path: &Path) -> io::Result<(File, Option<Version>)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file = open_regular_with(path, &mut options)?;
    if file.metadata()?.len() == 0 {
        // All the space it will ever need, while there is some.
        let slots = [[0; RECORD_BYTES]; 2];
        for (slot, at) in slots.iter().zip([0, SLOT_BYTES]) {
            file.write_all_at(slot, at)?;
        }
        return Ok((file, None));
    }
    let newest = newest(&file)?;
    Ok((file, newest))
}

/// The newest version in the slots that are whole.
fn newest(file: &File) -> io::Result<Option<Version>> {
    let mut newest = None;
    for at in [0, SLOT_BYTES] {
        let mut record = [0; RECORD_BYTES];
        match file.read_exact_at(&mut record, at) {
            Ok(()) => newest = newest.max(decode(&record)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(error),
        }
    }
    Ok(newest)
}

fn encode(version: Version) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    let checked = PREAMBLE.into_iter().chain(version.0.to_be_bytes());
    for (to, from) in record.iter_mut().zip(checked) {
        *to = from;
    }
    if let Some((checked, check)) = record.split_first_chunk_mut::<CHECKED_BYTES>() {
        check.copy_from_slice(blake3::hash(checked).as_bytes());
    }
    record
}

fn decode(record: &[u8; RECORD_BYTES]) -> Option<Version> {
    let (checked, check) = record.split_first_chunk::<CHECKED_BYTES>()?;
    if blake3::hash(checked).as_bytes() != check {
        return None;
    }
    let version = checked.strip_prefix(&PREAMBLE)?;
    Some(Version(u64::from_be_bytes(version.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_of_format_1() {
        let record = encode(Version(0x0102));
        assert_eq!(&record[..16], b"HFKW\x01\0\0\0\0\0\0\0\0\0\x01\x02");
        assert_eq!(decode(&record), Some(Version(0x0102)));
        for at in 0..RECORD_BYTES {
            let mut damaged = record;
            damaged[at] ^= 0x10;
            assert_eq!(decode(&damaged), None);
        }
    }

    #[test]
    fn the_newest_whole_slot_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w");
        let open = || Witness::open(path.clone());
        let (mut witness, version) = open();
        assert_eq!(version, None);
        let bytes = std::fs::metadata(&path).unwrap().len();
        for number in 1..6 {
            witness.note(Version(number));
            assert_eq!(open().1, Some(Version(number)));
        }
        witness.sync();
        assert_eq!(
            std::fs::metadata(&path).unwrap().len(),
            bytes,
            "no more space"
        );
        let whole = std::fs::read(&path).unwrap();
        // Slot 1 holds version 5, slot 0 version 4.
        for (at, version) in [(515, Some(4)), (3, Some(5))] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(open().1, version.map(Version));
        }
        std::fs::write(&path, b"nonsense").unwrap();
        assert_eq!(open().1, None);
        let (mut nowhere, version) = Witness::open(dir.path().join("no/such/dir"));
        assert_eq!(version, None);
        nowhere.note(Version(1));
        nowhere.sync();
    }
}
