//! Appends records to packs and keeps track of what is durable.
//!
//! After a failed flush nothing written since the last good one may be taken as stored: the kernel
//! may have marked its pages clean without writing them. Such chunks leave the index, so that a
//! `put` stores them again, and their packs are written no more. Callers whose `put` had returned
//! cannot be told one by one, so no later flush succeeds while any of these chunks is lost: each is
//! either found again by a `put`, or rescued by reading it back, checking it, and appending it to
//! a new pack.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use super::device::{Device, chunk_error};
use super::index::{Index, Key};
use super::pack::{PACK_HEADER_BYTES, PackEntry, PackFiles, record_bytes};
use super::sidecar::Sidecar;
use crate::ChunkError;
use crate::chunk::{HEADER_BYTES, Place, Record};

/// A pack that was written by this process and is not sealed.
#[derive(Debug)]
pub(crate) struct OpenPack {
    pub(crate) number: u32,
    pub(crate) file: Arc<File>,
    /// Where the next record goes.
    pub(crate) end: u32,
    pub(crate) entries: Vec<PackEntry>,
    /// How many of the entries are durable.
    pub(crate) synced_entries: usize,
    /// Where the last durable record ends.
    pub(crate) synced_end: u32,
}

impl OpenPack {
    fn unsynced(&self) -> &[PackEntry] {
        self.entries.get(self.synced_entries..).unwrap_or_default()
    }

    fn is_synced(&self) -> bool {
        self.unsynced().is_empty()
    }

    fn sidecar(self) -> Sidecar {
        Sidecar {
            pack: self.number,
            pack_bytes: u64::from(self.end),
            entries: self.entries,
        }
    }
}

/// What is shared with readers.
#[derive(Debug)]
pub(crate) struct Shelf {
    pub(crate) device: Device,
    /// The directory, locked for this process.
    pub(crate) dir: File,
    pub(crate) packs: PackFiles,
    pub(crate) index: Index,
}

/// The end of the store where records are added. Kept under one lock.
#[derive(Debug)]
pub(crate) struct Writer {
    pack_bytes: u32,
    next_number: u32,
    active: Option<OpenPack>,
    /// Full packs that still have to be flushed and sealed.
    rolled: Vec<OpenPack>,
    /// Packs whose flush failed, kept until nothing of them is lost.
    failed: Vec<OpenPack>,
    /// Chunks of the failed packs that are not durable, with the packs' numbers.
    lost: HashMap<Key, (u32, PackEntry)>,
    /// Whether a pack was created since the directory was flushed.
    dir_changed: bool,
}

/// What one flush has to make durable.
#[derive(Debug)]
pub(crate) struct Batch {
    dir_changed: bool,
    packs: Vec<BatchPack>,
}

#[derive(Debug)]
struct BatchPack {
    number: u32,
    file: Arc<File>,
    end: u32,
    entries: usize,
}

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.packs.is_empty() && !self.dir_changed
    }

    /// Flushes all of it. Called without the writer's lock.
    pub(crate) fn flush(&self, shelf: &Shelf) -> Result<(), ChunkError> {
        for pack in &self.packs {
            shelf
                .device
                .flush(&pack.file)
                .map_err(|error| chunk_error("flush pack", &error))?;
        }
        if self.dir_changed {
            (shelf.device)
                .flush_dir(&shelf.dir)
                .map_err(|error| chunk_error("flush directory of packs", &error))?;
        }
        Ok(())
    }
}

impl Writer {
    pub(crate) fn new(pack_bytes: u32, next_number: u32, active: Option<OpenPack>) -> Self {
        Self {
            pack_bytes,
            next_number,
            active,
            rolled: Vec::new(),
            failed: Vec::new(),
            lost: HashMap::new(),
            dir_changed: false,
        }
    }

    /// How many full packs wait to be flushed.
    pub(crate) fn rolled_count(&self) -> usize {
        self.rolled.len()
    }

    /// The packs that are not sealed, or whose content is in doubt.
    pub(crate) fn unsealed(&self) -> Vec<u32> {
        (self.active.iter().chain(&self.rolled).chain(&self.failed))
            .map(|pack| pack.number)
            .collect()
    }

    /// The pack that records are appended to, and its length.
    pub(crate) fn active(&self) -> Option<(u32, u32)> {
        self.active.as_ref().map(|pack| (pack.number, pack.end))
    }

    /// Takes a pack as full if it is the one that records are appended to: the next flush seals it.
    pub(crate) fn roll(&mut self, number: u32) {
        self.rolled
            .extend(self.active.take_if(|pack| pack.number == number));
    }

    /// A number for a pack that somebody else writes.
    pub(crate) fn take_number(&mut self) -> Result<u32, ChunkError> {
        let number = self.next_number;
        self.next_number = (number.checked_add(1))
            .ok_or_else(|| ChunkError::Unavailable("pack numbers are used up".into()))?;
        Ok(number)
    }

    /// The entries of the packs that are not sealed.
    pub(crate) fn open_entries(&self) -> Vec<(u32, Vec<PackEntry>)> {
        (self.active.iter().chain(&self.rolled))
            .map(|pack| (pack.number, pack.entries.clone()))
            .collect()
    }

    /// Appends a record and indexes it. After an error nothing of it is stored.
    pub(crate) fn append(&mut self, shelf: &Shelf, record: &Record) -> Result<(), ChunkError> {
        let len = record_bytes(record.header.stored_bytes);
        self.roll_if_full(len);
        let mut pack = match self.active.take() {
            Some(pack) => pack,
            None => self.create_pack(shelf)?,
        };
        let place = Place {
            pack: pack.number,
            offset: pack.end,
        };
        let start = u64::from(pack.end);
        let header = record.header.encode(place);
        let body_start = start + u64::try_from(HEADER_BYTES).unwrap_or(u64::MAX);
        let written = (shelf.device)
            .write_at(&pack.file, &header, start)
            .and_then(|()| (shelf.device).write_at(&pack.file, &record.body, body_start));
        if let Err(error) = written {
            match pack.file.set_len(start) {
                Ok(()) => self.active = Some(pack),
                // What is after `end` stays; nothing more is written to this pack.
                Err(_) => self.rolled.push(pack),
            }
            return Err(chunk_error("append to pack", &error));
        }
        let entry = PackEntry {
            domain: record.header.domain,
            id: record.header.id,
            offset: place.offset,
            stored_bytes: record.header.stored_bytes,
            damaged: false,
        };
        pack.end = u32::try_from(start + len).unwrap_or(u32::MAX);
        pack.entries.push(entry);
        self.active = Some(pack);
        shelf.index.insert(entry.key(), entry.location(place.pack));
        self.lost.remove(&entry.key());
        Ok(())
    }

    fn roll_if_full(&mut self, len: u64) {
        let limit = u64::from(self.pack_bytes);
        let next = self.next_number;
        let full = |pack: &mut OpenPack| {
            let over = !pack.entries.is_empty() && u64::from(pack.end) + len > limit;
            // Of two records of a chunk the one in the later pack counts when the store is opened,
            // so what is written last must be in the last pack.
            over || next.checked_sub(1) != Some(pack.number)
        };
        self.rolled.extend(self.active.take_if(full));
    }

    fn create_pack(&mut self, shelf: &Shelf) -> Result<OpenPack, ChunkError> {
        let number = self.take_number()?;
        let file = (shelf.packs)
            .create(&shelf.device, number)
            .map_err(|error| chunk_error("create pack", &error))?;
        self.dir_changed = true;
        Ok(OpenPack {
            number,
            file: Arc::new(file),
            end: PACK_HEADER_BYTES,
            entries: Vec::new(),
            synced_entries: 0,
            synced_end: PACK_HEADER_BYTES,
        })
    }

    /// What has to be flushed so that every record appended so far is durable.
    ///
    /// # Errors
    ///
    /// `Unavailable` or `NoSpace` while chunks of an earlier, failed flush are lost.
    pub(crate) fn begin_flush(&mut self, shelf: &Shelf) -> Result<Batch, ChunkError> {
        self.rescue(shelf)?;
        let unsynced_active = self.active.iter().filter(|pack| !pack.is_synced());
        let packs = (self.rolled.iter().chain(unsynced_active))
            .map(|pack| BatchPack {
                number: pack.number,
                file: Arc::clone(&pack.file),
                end: pack.end,
                entries: pack.entries.len(),
            })
            .collect();
        Ok(Batch {
            dir_changed: std::mem::take(&mut self.dir_changed),
            packs,
        })
    }

    /// Takes note that `batch` is durable. Returns side indexes to be written.
    pub(crate) fn flush_succeeded(&mut self, batch: &Batch) -> Vec<Sidecar> {
        for pack in self.rolled.iter_mut().chain(&mut self.active) {
            let flushed = (batch.packs.iter()).find(|flushed| flushed.number == pack.number);
            if let Some(flushed) = flushed {
                pack.synced_entries = flushed.entries;
                pack.synced_end = flushed.end;
            }
        }
        let flushed = |pack: &mut OpenPack| {
            pack.is_synced() && batch.packs.iter().any(|of| of.number == pack.number)
        };
        self.rolled
            .extract_if(.., flushed)
            .map(OpenPack::sidecar)
            .collect()
    }

    /// Takes note that nothing since the last good flush is durable.
    pub(crate) fn flush_failed(&mut self, shelf: &Shelf) {
        self.dir_changed = true;
        let packs: Vec<_> = self.rolled.drain(..).chain(self.active.take()).collect();
        for pack in packs {
            for entry in pack.unsynced() {
                let place = entry.location(pack.number).place;
                if shelf.index.remove_at(entry.key(), place) {
                    self.lost.insert(entry.key(), (pack.number, *entry));
                }
            }
            self.failed.push(pack);
        }
        tracing::error!(
            chunks = self.lost.len(),
            "flush of chunks failed; storing them again"
        );
        // Readers find the chunks again at once. What cannot be rescued now is tried again when
        // the next flush begins, which also reports it.
        drop(self.rescue(shelf));
    }

    /// Stores lost chunks again, as far as they can be read back whole.
    fn rescue(&mut self, shelf: &Shelf) -> Result<(), ChunkError> {
        let lost: Vec<_> = self.lost.values().copied().collect();
        for (pack, entry) in lost {
            let read = shelf.packs.read(entry.location(pack));
            let Ok(Some((header, body))) = read else {
                continue;
            };
            if header.id == entry.id && header.matches_body(&body) {
                self.append(shelf, &Record { header, body })?;
            }
        }
        if !self.lost.is_empty() {
            return Err(ChunkError::Unavailable(format!(
                "{} chunks were lost by a failed flush",
                self.lost.len()
            )));
        }
        for pack in self.failed.drain(..) {
            settle(pack, shelf);
        }
        Ok(())
    }
}

/// Cuts a pack whose flush failed back to what is durable, so that a restart does not take for
/// stored what only the page cache holds. Best effort: the device fails anyway.
fn settle(mut pack: OpenPack, shelf: &Shelf) {
    pack.entries.truncate(pack.synced_entries);
    pack.end = pack.synced_end;
    let number = pack.number;
    let settled = (pack.file.set_len(u64::from(pack.end)))
        .and_then(|()| pack.sidecar().store(shelf.packs.dir()));
    if let Err(error) = settled {
        tracing::warn!(pack = number, %error, "pack of a failed flush was not cut back");
    }
}
