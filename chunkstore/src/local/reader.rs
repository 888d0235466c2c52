//! A directory of packs as it is: everything is read, nothing is written, made, cut or flushed.

use std::fs::File;
use std::path::{Path, PathBuf};

use base::files::open_regular;
use base::{ChunkId, DomainId};
use bytes::Bytes;

use super::device::chunk_error;
use super::index::{Index, Key};
use super::open::{OpenError, at, load_sealed, lock, numbers_in, scan_ours};
use super::pack::{PackEntry, PackFiles, pack_path, record_bytes};
use super::verify::{NameKeys, Verified, Verifier, VerifyCounts};
use crate::{ChunkError, Domain};

/// A store that is looked at while nobody uses it.
#[derive(Debug)]
pub struct LocalReader {
    /// The directory, locked for this process.
    _dir: File,
    packs: PackFiles,
    index: Index,
    /// Packs with a good side index, which is read again when it is needed.
    sealed: Vec<u32>,
    /// The other packs, and what they hold.
    scanned: Vec<(u32, Vec<PackEntry>)>,
    /// Of all records.
    stored_bytes: u64,
    torn: Vec<TornTail>,
    unreadable: Vec<UnreadablePack>,
}

/// The remainder of a record that was being written when a server was stopped. Nobody was told
/// that it is stored. The next server does not use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// The pack that ends in it.
    pub path: PathBuf,
    /// How long it is, in bytes.
    pub bytes: u64,
}

/// A pack that could not be read, or is none of this release. What it holds is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadablePack {
    /// Which.
    pub path: PathBuf,
    /// Why.
    pub why: String,
}

impl LocalReader {
    /// Looks at the store in `directory`. Blocks while packs without a side index are read.
    ///
    /// # Errors
    ///
    /// The directory cannot be listed, or another process has the store open. A pack that cannot
    /// be read is no error: see [`LocalReader::unreadable`].
    pub fn open(directory: &Path) -> Result<Self, OpenError> {
        let mut reader = Self {
            _dir: lock(directory)?,
            packs: PackFiles::new(directory.to_owned()),
            index: Index::new(),
            sealed: Vec::new(),
            scanned: Vec::new(),
            stored_bytes: 0,
            torn: Vec::new(),
            unreadable: Vec::new(),
        };
        for number in numbers_in(directory).map_err(at(directory))? {
            if let Err(error) = reader.look_at(directory, number) {
                let (path, why) = match error {
                    OpenError::Io { path, source } => (path, source.to_string()),
                    OpenError::NotAPack { path } => (path, "not a pack of this release".into()),
                };
                reader.unreadable.push(UnreadablePack { path, why });
            }
        }
        Ok(reader)
    }

    fn look_at(&mut self, directory: &Path, number: u32) -> Result<(), OpenError> {
        let path = pack_path(directory, number);
        let file = open_regular(&path).map_err(at(&path))?;
        if let Some(sidecar) = load_sealed(directory, number).map_err(at(&path))? {
            self.add(number, &sidecar.entries);
            self.sealed.push(number);
            return Ok(());
        }
        let (scan, _) = scan_ours(&file, &path, number)?;
        if scan.end < scan.file_bytes {
            let bytes = scan.file_bytes - scan.end;
            self.torn.push(TornTail { path, bytes });
        }
        self.add(number, &scan.entries);
        self.scanned.push((number, scan.entries));
        Ok(())
    }

    fn add(&mut self, number: u32, entries: &[PackEntry]) {
        for entry in entries {
            self.stored_bytes += record_bytes(entry.stored_bytes);
            (self.index).insert_found(entry.key(), entry.location(number));
        }
    }

    /// What all records take, in bytes.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// Whether a chunk of that name is stored and not known to be damaged. No I/O.
    #[must_use]
    pub fn contains(&self, domain: DomainId, id: ChunkId) -> bool {
        let found = self.index.find(Key::new(domain, id));
        found.is_some_and(|location| !location.damaged)
    }

    /// The content of a chunk, verified against its name. Blocks.
    ///
    /// # Errors
    ///
    /// [`ChunkError::NotFound`], [`ChunkError::Corrupt`], or the device fails.
    pub fn get(&self, domain: Domain, id: ChunkId) -> Result<Bytes, ChunkError> {
        let found = self.index.find(Key::new(domain.id, id));
        let location = found.ok_or(ChunkError::NotFound(id))?;
        let read = self.packs.read(location);
        let read = read.map_err(|error| chunk_error("read from pack", &error))?;
        read.and_then(|(header, body)| header.content(domain, id, body))
            .ok_or(ChunkError::Corrupt(id))
    }

    /// What the next server will not use, although it is no damage.
    #[must_use]
    pub fn torn(&self) -> &[TornTail] {
        &self.torn
    }

    /// Packs that could not be read.
    #[must_use]
    pub fn unreadable(&self) -> &[UnreadablePack] {
        &self.unreadable
    }

    /// Reads every chunk and calls `report` for each, in the order they were written. Blocks for
    /// long.
    ///
    /// Needs no domain's key: records carry a check of their own. That a chunk's content has the
    /// chunk's name is checked with `names` only. What is damaged is not [`LocalReader::contains`]
    /// from then on.
    pub fn verify(
        &self,
        names: Option<NameKeys<'_>>,
        mut report: impl FnMut(Verified),
    ) -> VerifyCounts {
        let verifier = Verifier {
            packs: &self.packs,
            index: &self.index,
            names,
        };
        let mut counts = VerifyCounts {
            unreadable_packs: u64::try_from(self.unreadable.len()).unwrap_or(u64::MAX),
            ..VerifyCounts::default()
        };
        for number in &self.sealed {
            verifier.sealed_pack(*number, &mut counts, &mut report);
        }
        for (number, entries) in &self.scanned {
            verifier.pack(*number, entries, &mut counts, &mut report);
        }
        counts
    }
}
