//! The side index of a pack that is written no more: what a scan would find, in one small file.
//!
//! Magic `HFPI`, version 1, three zero bytes, the pack's number (4 bytes), the number of entries
//! (4 bytes), the length of the pack (8 bytes); then for each entry domain (8), id (32), offset (4)
//! and stored bytes (4), where the top bit of the last marks a damaged record; then the blake3
//! hash of all this. Numbers are big-endian. A file that is not exactly so is not used, and made
//! anew from the pack.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::Path;

use base::files::open_regular;
use base::{ChunkId, DomainId};

use super::pack::{PACK_HEADER_BYTES, PackEntry, record_bytes, sidecar_path};

const PREAMBLE: [u8; 8] = *b"HFPI\x01\0\0\0";
const CHECK_BYTES: usize = 32;
const DAMAGED: u32 = 1 << 31;

/// Longest side index that is read. A pack of 64 MiB full of one-byte chunks needs 40 MiB.
const SIDECAR_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// What a side index says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sidecar {
    pub(crate) pack: u32,
    /// Length of the pack up to the end of its last record.
    pub(crate) pack_bytes: u64,
    pub(crate) entries: Vec<PackEntry>,
}

impl Sidecar {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = PREAMBLE.to_vec();
        let count = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        bytes.extend_from_slice(&self.pack.to_be_bytes());
        bytes.extend_from_slice(&count.to_be_bytes());
        bytes.extend_from_slice(&self.pack_bytes.to_be_bytes());
        for entry in &self.entries {
            let mark = if entry.damaged { DAMAGED } else { 0 };
            bytes.extend_from_slice(&entry.domain.raw().to_be_bytes());
            bytes.extend_from_slice(entry.id.as_bytes());
            bytes.extend_from_slice(&entry.offset.to_be_bytes());
            bytes.extend_from_slice(&(entry.stored_bytes | mark).to_be_bytes());
        }
        let check = blake3::hash(&bytes);
        bytes.extend_from_slice(check.as_bytes());
        bytes
    }

    /// Reads a side index. `None` if it is not exactly as `encode` makes them.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (checked, check) = bytes.split_last_chunk::<CHECK_BYTES>()?;
        if blake3::hash(checked) != *check {
            return None;
        }
        let mut fields = Fields(checked.strip_prefix(&PREAMBLE)?);
        let pack = fields.u32()?;
        let count = fields.u32()?;
        let pack_bytes = u64::from_be_bytes(fields.take()?);
        let mut entries = Vec::new();
        let mut free = u64::from(PACK_HEADER_BYTES);
        for _ in 0..count {
            let entry = fields.entry()?;
            if u64::from(entry.offset) < free {
                return None;
            }
            free = u64::from(entry.offset) + record_bytes(entry.stored_bytes);
            entries.push(entry);
        }
        (fields.0.is_empty() && free <= pack_bytes).then_some(Self {
            pack,
            pack_bytes,
            entries,
        })
    }

    /// Reads the side index of `pack`. `None` if there is no good one.
    pub(crate) fn load(dir: &Path, pack: u32) -> Option<Self> {
        let mut bytes = Vec::new();
        open_regular(&sidecar_path(dir, pack))
            .ok()?
            .take(SIDECAR_BYTES_MAX)
            .read_to_end(&mut bytes)
            .ok()?;
        Self::decode(&bytes).filter(|sidecar| sidecar.pack == pack)
    }

    /// Writes the side index. A torn one is recognised, so it is not flushed.
    pub(crate) fn store(&self, dir: &Path) -> io::Result<()> {
        let path = sidecar_path(dir, self.pack);
        let unfinished = path.with_extension("idx.new");
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&unfinished)
            .and_then(|mut file| file.write_all(&self.encode()))
            .and_then(|()| std::fs::rename(&unfinished, &path));
        if written.is_err() {
            // A remainder is overwritten by the next attempt, so a failure here changes nothing.
            drop(std::fs::remove_file(&unfinished));
        }
        written
    }
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const LEN: usize>(&mut self) -> Option<[u8; LEN]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn entry(&mut self) -> Option<PackEntry> {
        let domain = DomainId::new(u64::from_be_bytes(self.take()?));
        let id = ChunkId::new(self.take()?);
        let offset = self.u32()?;
        let stored_and_damaged = self.u32()?;
        Some(PackEntry {
            domain,
            id,
            offset,
            stored_bytes: stored_and_damaged & !DAMAGED,
            damaged: stored_and_damaged & DAMAGED != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sidecar() -> Sidecar {
        let entry = PackEntry {
            domain: DomainId::new(1),
            id: ChunkId::new([2; 32]),
            offset: 64,
            stored_bytes: 5,
            damaged: false,
        };
        let damaged = PackEntry {
            offset: 149,
            damaged: true,
            ..entry
        };
        Sidecar {
            pack: 3,
            pack_bytes: 234,
            entries: vec![entry, damaged],
        }
    }

    #[test]
    fn golden_bytes_of_version_1() {
        let bytes = sidecar().encode();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let id = "02".repeat(32);
        let checked = format!(
            "48465049010000000000000300000002{pack_bytes}\
             0000000000000001{id}0000004000000005\
             0000000000000001{id}0000009580000005",
            pack_bytes = "00000000000000ea",
        );
        assert_eq!(hex.strip_prefix(&checked).map(str::len), Some(64));
        assert_eq!(Sidecar::decode(&bytes), Some(sidecar()));
    }

    proptest! {
        #[test]
        fn every_change_is_noticed(at in 0_usize..152, bit in 0_u32..8) {
            let mut bytes = sidecar().encode();
            prop_assert_eq!(bytes.len(), 152);
            bytes[at] ^= 1_u8 << bit;
            prop_assert_eq!(Sidecar::decode(&bytes), None);
            prop_assert_eq!(Sidecar::decode(&sidecar().encode()[..at]), None);
        }

        /// What carries a right check may still be nonsense.
        #[test]
        fn decode_is_total(fields in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut bytes = PREAMBLE.to_vec();
            bytes.extend_from_slice(&fields);
            let check = blake3::hash(&bytes);
            bytes.extend_from_slice(check.as_bytes());
            if let Some(sidecar) = Sidecar::decode(&bytes) {
                prop_assert_eq!(sidecar.encode(), bytes);
            }
        }
    }
}
