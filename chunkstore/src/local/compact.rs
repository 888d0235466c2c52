//! Rewriting packs of which little is live.
//!
//! What is live is copied to a new pack, which is made durable; only then the index leads there,
//! and only then the old packs go. Whatever stops it in between leaves every live chunk in the old
//! packs, in the new one, or in both. No lock is held during I/O.

use std::fs::File;

use super::Shared;
use super::collect::{Freed, Pack};
use super::device::chunk_error;
use super::index::Key;
use super::pack::{PACK_HEADER_BYTES, PackEntry, record_bytes};
use super::sidecar::Sidecar;
use crate::ChunkError;
use crate::chunk::{HEADER_BYTES, Place};

/// A pack that takes copies.
struct Target {
    number: u32,
    file: File,
    end: u32,
    entries: Vec<PackEntry>,
    /// Where each entry comes from.
    moves: Vec<(Key, Place)>,
}

impl Shared {
    /// Copies what is live in `packs` to a new one and removes them. Blocks.
    ///
    /// Without room for the copies everything stays as it is, and no error is reported.
    pub(super) fn rewrite(&self, packs: &[Pack]) -> Result<Freed, ChunkError> {
        let number = self.writer.lock().take_number()?;
        let result = self.copy_all(number, packs);
        let (target, emptied) = match result {
            Ok(copied) => copied,
            Err(error) => {
                self.abandon(number);
                return match error {
                    ChunkError::NoSpace => Ok(without_room(packs)),
                    error => Err(error),
                };
            }
        };
        let mut freed = Freed {
            copied_bytes: u64::from(target.end - PACK_HEADER_BYTES),
            ..Freed::default()
        };
        self.switch(target);
        for pack in emptied {
            self.remove_pack(&pack)?;
            freed.packs_rewritten += 1;
            freed.freed_bytes += pack.file_bytes;
        }
        freed.freed_bytes =
            (freed.freed_bytes).saturating_sub(freed.copied_bytes + u64::from(PACK_HEADER_BYTES));
        Ok(freed)
    }

    /// Copies, and makes the copies durable. Gives the packs from which all was copied.
    fn copy_all(&self, number: u32, packs: &[Pack]) -> Result<(Target, Vec<Pack>), ChunkError> {
        let device = &self.shelf.device;
        let file = (self.shelf.packs)
            .create(device, number)
            .map_err(|error| chunk_error("create pack for copies", &error))?;
        let mut target = Target {
            number,
            file,
            end: PACK_HEADER_BYTES,
            entries: Vec::new(),
            moves: Vec::new(),
        };
        let mut emptied = Vec::new();
        for pack in packs {
            if self.copy_pack(pack, &mut target)? {
                emptied.push(*pack);
            }
        }
        #[cfg(test)]
        if self.mutation == Some(super::collect::Mutation::RemoveBeforeDurable) {
            return Ok((target, emptied));
        }
        device
            .flush(&target.file)
            .map_err(|error| chunk_error("flush copies", &error))?;
        (device.flush_dir(&self.shelf.dir))
            .map_err(|error| chunk_error("flush directory of packs", &error))?;
        Ok((target, emptied))
    }

    /// Copies what is live in one pack. Whether that is all of it: a record that cannot be read
    /// keeps its pack.
    fn copy_pack(&self, pack: &Pack, target: &mut Target) -> Result<bool, ChunkError> {
        let entries = (self.verifier().entries(pack.number))
            .map_err(|error| chunk_error("list the chunks of a pack", &error))?;
        let mut complete = true;
        for entry in entries {
            let from = entry.location(pack.number);
            let Some(known) = self.shelf.index.find(entry.key()) else {
                continue;
            };
            if known.place != from.place {
                continue;
            }
            let read = (self.shelf.packs.read(from))
                .map_err(|error| chunk_error("read a chunk to copy", &error))?;
            let whole = read.filter(|(header, body)| {
                let named = (header.domain, header.id) == (entry.domain, entry.id);
                named && header.matches_body(body)
            });
            let Some((header, body)) = whole else {
                tracing::error!(id = %entry.id, pack = pack.number, "chunk is damaged; its pack stays");
                self.shelf.index.mark_damaged(entry.key(), from.place);
                complete = false;
                continue;
            };
            let place = Place {
                pack: target.number,
                offset: target.end,
            };
            let start = u64::from(target.end);
            let body_start = start + u64::try_from(HEADER_BYTES).unwrap_or(u64::MAX);
            (self.shelf.device)
                .write_at(&target.file, &header.encode(place), start)
                .and_then(|()| (self.shelf.device).write_at(&target.file, &body, body_start))
                .map_err(|error| chunk_error("copy a chunk", &error))?;
            target.entries.push(PackEntry {
                offset: place.offset,
                damaged: false,
                ..entry
            });
            target.moves.push((entry.key(), from.place));
            target.end = u32::try_from(start + record_bytes(entry.stored_bytes))
                .map_err(|_| ChunkError::Unavailable("pack of copies is too long".into()))?;
        }
        Ok(complete)
    }

    /// Lets the index lead to the copies.
    fn switch(&self, target: Target) {
        for (entry, (key, from)) in target.entries.iter().zip(&target.moves) {
            let to = entry.location(target.number).place;
            // If it lies elsewhere by now the copy is not needed.
            self.shelf.index.relocate(*key, *from, to);
        }
        let copied = u64::from(target.end - PACK_HEADER_BYTES);
        (self.stored_bytes).fetch_add(copied, std::sync::atomic::Ordering::Relaxed);
        self.free.forget();
        let sidecar = Sidecar {
            pack: target.number,
            pack_bytes: u64::from(target.end),
            entries: target.entries,
        };
        if let Err(error) = sidecar.store(self.shelf.packs.dir()) {
            tracing::warn!(pack = sidecar.pack, %error, "side index was not written");
        }
    }

    /// Removes a pack of copies that did not come about.
    fn abandon(&self, number: u32) {
        if let Err(error) = self.shelf.packs.remove(&self.shelf.device, number) {
            // The next collection removes it: nothing leads to it.
            tracing::warn!(pack = number, %error, "pack of copies was not removed");
        }
        self.free.forget();
    }
}

fn without_room(packs: &[Pack]) -> Freed {
    Freed {
        packs_without_room: u64::try_from(packs.len()).unwrap_or(u64::MAX),
        ..Freed::default()
    }
}
