//! Reads every chunk of a store, for a check of the whole of it.

use std::collections::HashSet;
use std::io;

use base::{ChunkId, DomainId};

use super::index::Index;
use super::pack::{PackEntry, PackFiles, record_bytes, scan};
use super::sidecar::Sidecar;
use super::{LocalStore, Shared};

/// What [`LocalStore::verify`] found of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The chunk's domain.
    pub domain: DomainId,
    /// Its name.
    pub id: ChunkId,
    /// Whether its record is intact and its content can be unpacked; and, if names were to be
    /// checked, has the chunk's name.
    pub intact: bool,
    /// What its record takes in its pack, in bytes.
    pub record_bytes: u64,
}

/// The keys that the names of a domain's chunks are made with; none for a domain that is not known,
/// whose names cannot be checked.
pub type NameKeys<'a> = &'a dyn Fn(DomainId) -> Vec<[u8; 32]>;

/// The sum of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyCounts {
    /// Chunks that are intact.
    pub intact: u64,
    /// Chunks that are not, or could not be read.
    pub damaged: u64,
    /// Packs whose list of chunks could not be read. Their chunks were not looked at.
    pub unreadable_packs: u64,
}

impl LocalStore {
    /// Reads every chunk and calls `report` for each, in the order they were written. Blocks for
    /// long.
    ///
    /// Needs no domain's key: records carry a check of their own. That a chunk's content has the
    /// chunk's name is checked only by `get`. Chunks put meanwhile may be missed, and packs that a
    /// collection removes meanwhile count as unreadable. What is damaged
    /// is stored anew by the next `put` of its content.
    pub fn verify(&self, mut report: impl FnMut(Verified)) -> VerifyCounts {
        let shared = &self.shared;
        let mut counts = VerifyCounts::default();
        let open = shared.writer.lock().open_entries();
        let open_numbers: HashSet<u32> = open.iter().map(|(number, _)| *number).collect();
        let numbers = super::open::numbers_in(shared.shelf.packs.dir()).unwrap_or_else(|error| {
            tracing::error!(%error, "packs cannot be listed");
            counts.unreadable_packs += 1;
            Vec::new()
        });
        for number in numbers {
            if open_numbers.contains(&number) {
                continue;
            }
            (shared.verifier()).sealed_pack(number, &mut counts, &mut report);
        }
        for (number, entries) in open {
            (shared.verifier()).pack(number, &entries, &mut counts, &mut report);
        }
        counts
    }
}

impl Shared {
    pub(super) fn verifier(&self) -> Verifier<'_> {
        Verifier {
            packs: &self.shelf.packs,
            index: &self.shelf.index,
            names: None,
        }
    }
}

/// Reads packs.
#[derive(Clone, Copy)]
pub(crate) struct Verifier<'a> {
    pub(crate) packs: &'a PackFiles,
    pub(crate) index: &'a Index,
    /// To compare the content of each chunk with its name.
    pub(crate) names: Option<NameKeys<'a>>,
}

impl Verifier<'_> {
    /// Reads the chunks of a pack that is not written, as [`Verifier::pack`] does.
    pub(crate) fn sealed_pack(
        self,
        number: u32,
        counts: &mut VerifyCounts,
        report: &mut dyn FnMut(Verified),
    ) {
        match self.entries(number) {
            Ok(entries) => self.pack(number, &entries, counts, report),
            Err(error) => {
                tracing::error!(pack = number, %error, "pack cannot be read");
                counts.unreadable_packs += 1;
            }
        }
    }

    /// What a pack that is not written says it holds.
    pub(crate) fn entries(self, number: u32) -> io::Result<Vec<PackEntry>> {
        if let Some(sidecar) = Sidecar::load(self.packs.dir(), number) {
            return Ok(sidecar.entries);
        }
        let file = self.packs.file(number)?;
        Ok(scan(&file, number)?.entries)
    }

    /// Reads the chunks of a pack that the index looks for there.
    pub(crate) fn pack(
        self,
        number: u32,
        entries: &[PackEntry],
        counts: &mut VerifyCounts,
        report: &mut dyn FnMut(Verified),
    ) {
        for entry in entries {
            let place = entry.location(number).place;
            let indexed = self.index.find(entry.key());
            if indexed.is_none_or(|location| location.place != place) {
                // Stored again elsewhere, where it is checked.
                continue;
            }
            let intact = self.is_intact(number, entry);
            if intact {
                counts.intact += 1;
            } else {
                // The index may have changed since; then nothing is marked.
                self.index.mark_damaged(entry.key(), place);
                counts.damaged += 1;
            }
            report(Verified {
                domain: entry.domain,
                id: entry.id,
                intact,
                record_bytes: record_bytes(entry.stored_bytes),
            });
        }
    }

    fn is_intact(self, number: u32, entry: &PackEntry) -> bool {
        let read = self.packs.read(entry.location(number));
        read.ok().flatten().is_some_and(|(header, body)| {
            header.domain == entry.domain
                && header.id == entry.id
                && header.matches_body(&body)
                && (header.plain(body)).is_some_and(|plain| self.is_named(entry, &plain))
        })
    }

    /// Whether content has the chunk's name, as far as that is to be checked.
    fn is_named(self, entry: &PackEntry, plain: &[u8]) -> bool {
        let Some(names) = self.names else {
            return true;
        };
        let keys = names(entry.domain);
        let id = entry.id.as_bytes();
        let has_name = |key: &[u8; 32]| blake3::keyed_hash(key, plain).as_bytes() == id;
        keys.is_empty() || keys.iter().any(has_name)
    }
}
