//! Reads every chunk of a store, for a check of the whole of it.

use std::collections::HashSet;
use std::sync::Arc;

use base::{ChunkId, DomainId};

use super::pack::{PackEntry, scan};
use super::sidecar::Sidecar;
use super::{LocalStore, Shared};
use crate::ChunkError;

/// What a check found out about one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkStatus {
    /// The record is what was written, and its content can be unpacked.
    Good,
    /// The record is not what was written.
    Damaged,
    /// The device did not give the record. It may do so another time.
    Unreadable,
}

/// One chunk of a store that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedChunk {
    /// The chunk's domain.
    pub domain: DomainId,
    /// The chunk's name.
    pub id: ChunkId,
    /// Length of the stored content, after compression and without header.
    pub stored_bytes: u32,
    /// What was found.
    pub status: ChunkStatus,
}

/// The sum of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckSummary {
    /// Chunks that are good.
    pub good: u64,
    /// Chunks that are damaged.
    pub damaged: u64,
    /// Chunks that could not be read.
    pub unreadable: u64,
}

impl LocalStore {
    /// Reads every chunk and calls `progress` for each, in the order they were written.
    ///
    /// Needs no domain's key: records carry a check of their own. That a chunk's content has the
    /// chunk's name is checked only by `get`. Chunks put meanwhile may be missed. What is damaged
    /// is stored anew by the next `put` of its content.
    ///
    /// # Errors
    ///
    /// `Unavailable` if packs cannot be listed or read at all.
    ///
    /// # Cancellation
    ///
    /// Safe to drop; the check then goes on to its end in the background.
    pub async fn verify<P>(&self, mut progress: P) -> Result<CheckSummary, ChunkError>
    where
        P: FnMut(CheckedChunk) + Send + 'static,
    {
        let shared = Arc::clone(&self.shared);
        super::blocking(move || shared.verify(&mut progress)).await
    }
}

impl Shared {
    fn verify(&self, progress: &mut dyn FnMut(CheckedChunk)) -> Result<CheckSummary, ChunkError> {
        let failed = |error| super::chunk_error("check packs", &error);
        let mut summary = CheckSummary::default();
        let open = self.writer.lock().open_entries();
        let open_numbers: HashSet<u32> = open.iter().map(|(number, _)| *number).collect();
        let numbers = super::open::numbers_in(self.shelf.packs.dir()).map_err(failed)?;
        for number in numbers {
            if open_numbers.contains(&number) {
                continue;
            }
            let entries = match Sidecar::load(self.shelf.packs.dir(), number) {
                Some(sidecar) => sidecar.entries,
                None => {
                    let file = self.shelf.packs.file(number).map_err(failed)?;
                    scan(&file, number).map_err(failed)?.entries
                }
            };
            self.verify_pack(number, &entries, &mut summary, progress);
        }
        for (number, entries) in open {
            self.verify_pack(number, &entries, &mut summary, progress);
        }
        Ok(summary)
    }

    fn verify_pack(
        &self,
        number: u32,
        entries: &[PackEntry],
        summary: &mut CheckSummary,
        progress: &mut dyn FnMut(CheckedChunk),
    ) {
        for entry in entries {
            let place = entry.location(number).place;
            let indexed = self.shelf.index.find(entry.key());
            if indexed.is_none_or(|location| location.place != place) {
                // Stored again elsewhere, where it is checked.
                continue;
            }
            let status = self.verify_entry(number, entry);
            match status {
                ChunkStatus::Good => summary.good += 1,
                ChunkStatus::Damaged => {
                    // The index may have changed since; then nothing is marked.
                    self.shelf.index.mark_damaged(entry.key(), place);
                    summary.damaged += 1;
                }
                ChunkStatus::Unreadable => summary.unreadable += 1,
            }
            progress(CheckedChunk {
                domain: entry.domain,
                id: entry.id,
                stored_bytes: entry.stored_bytes,
                status,
            });
        }
    }

    fn verify_entry(&self, number: u32, entry: &PackEntry) -> ChunkStatus {
        let Ok(read) = self.shelf.packs.read(entry.location(number)) else {
            return ChunkStatus::Unreadable;
        };
        let good = read.is_some_and(|(header, body)| {
            header.domain == entry.domain
                && header.id == entry.id
                && header.matches_body(&body)
                && header.plain(body).is_some()
        });
        if good {
            ChunkStatus::Good
        } else {
            ChunkStatus::Damaged
        }
    }
}
