//! Finds out at start what a directory of packs holds.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::device::{Device, chunk_error};
use super::index::Index;
use super::pack::{
    PACK_HEADER_BYTES, PackEntry, PackFiles, has_pack_header, pack_number, pack_path, record_bytes,
    scan, write_pack_header,
};
use super::sidecar::Sidecar;
use super::writer::{OpenPack, Shelf, Writer};
use crate::ChunkError;

/// What was found.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) shelf: Shelf,
    pub(crate) writer: Writer,
    /// Bytes of all records.
    pub(crate) stored_bytes: u64,
    /// Held as long as the store is open.
    pub(crate) lock: File,
}

/// Opens the directory, makes it if it is missing, and reads what the packs hold.
pub(crate) fn open(path: &Path, pack_bytes: u32) -> Result<Opened, ChunkError> {
    let lock = prepare(path)?;
    read_packs(path, pack_bytes, lock).map_err(|error| chunk_error("open packs", &error))
}

/// Makes and locks the directory.
fn prepare(path: &Path) -> Result<File, ChunkError> {
    let lock = std::fs::create_dir_all(path)
        .and_then(|()| {
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(path.join("lock"))
        })
        .map_err(|error| chunk_error("open directory of packs", &error))?;
    lock.try_lock()
        .map_err(|error| ChunkError::Unavailable(format!("lock directory of packs: {error}")))?;
    Ok(lock)
}

fn read_packs(path: &Path, pack_bytes: u32, lock: File) -> io::Result<Opened> {
    let shelf = Shelf {
        device: Device::default(),
        dir: File::open(path)?,
        packs: PackFiles::new(path.to_owned()),
        index: Index::new(),
    };
    let numbers = numbers_in(path)?;
    let newest = numbers.last().copied();
    let mut stored_bytes = 0;
    let mut active = None;
    for number in numbers {
        let entries = match load_sealed(path, number)? {
            Some(sidecar) => sidecar.entries,
            None if Some(number) == newest => {
                let pack = reopen(&shelf, number)?;
                let entries = pack.entries.clone();
                active = Some(pack);
                entries
            }
            None => seal(&shelf, number)?,
        };
        for entry in &entries {
            stored_bytes += record_bytes(entry.stored_bytes);
            (shelf.index).insert_found(entry.key(), entry.location(number));
        }
    }
    // A pack that the last process created may be known to the directory's pages only.
    shelf.dir.sync_all()?;
    let next_number = newest.map_or(0, |newest| newest.saturating_add(1));
    Ok(Opened {
        writer: Writer::new(pack_bytes, next_number, active),
        shelf,
        stored_bytes,
        lock,
    })
}

/// The numbers of the packs in a directory, in order.
pub(crate) fn numbers_in(path: &Path) -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(path)? {
        numbers.extend(entry?.file_name().to_str().and_then(pack_number));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// The side index of a pack, if it is good and the pack is as long as it says.
fn load_sealed(path: &Path, number: u32) -> io::Result<Option<Sidecar>> {
    let Some(sidecar) = Sidecar::load(path, number) else {
        return Ok(None);
    };
    let file_bytes = std::fs::metadata(pack_path(path, number))?.len();
    if file_bytes < sidecar.pack_bytes {
        tracing::warn!(pack = number, "pack is shorter than its side index says");
        return Ok(None);
    }
    Ok(Some(sidecar))
}

/// Scans a pack that was full and has no good side index, and gives it one.
fn seal(shelf: &Shelf, number: u32) -> io::Result<Vec<PackEntry>> {
    let file = File::open(pack_path(shelf.packs.dir(), number))?;
    let scan = scan(&file, number)?;
    warn_of_gaps(number, scan.gaps);
    if scan.end < scan.file_bytes {
        tracing::warn!(
            pack = number,
            bytes = scan.file_bytes - scan.end,
            "pack has a torn tail, which is not used"
        );
    }
    // The last process may have written what no flush has covered.
    shelf.device.flush(&file)?;
    let sidecar = Sidecar {
        pack: number,
        pack_bytes: scan.end.min(scan.file_bytes),
        entries: scan.entries,
    };
    if let Err(error) = sidecar.store(shelf.packs.dir()) {
        tracing::warn!(pack = number, %error, "side index was not written");
    }
    Ok(sidecar.entries)
}

/// Scans the newest pack and makes it ready to be appended to.
fn reopen(shelf: &Shelf, number: u32) -> io::Result<OpenPack> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(pack_path(shelf.packs.dir(), number))?;
    let scan = scan(&file, number)?;
    warn_of_gaps(number, scan.gaps);
    if scan.end < scan.file_bytes {
        tracing::warn!(
            pack = number,
            bytes = scan.file_bytes - scan.end,
            "cutting a torn tail off a pack"
        );
        file.set_len(scan.end)?;
    }
    if !has_pack_header(&file, number)? {
        if !scan.entries.is_empty() {
            tracing::warn!(pack = number, "writing a damaged pack header anew");
        }
        write_pack_header(&shelf.device, &file, number)?;
    }
    shelf.device.flush(&file)?;
    let end = u32::try_from(scan.end).map_err(io::Error::other)?;
    Ok(OpenPack {
        number,
        file: Arc::new(file),
        end: end.max(PACK_HEADER_BYTES),
        synced_entries: scan.entries.len(),
        synced_end: end,
        entries: scan.entries,
    })
}

fn warn_of_gaps(number: u32, gaps: u32) {
    if gaps > 0 {
        tracing::warn!(pack = number, gaps, "pack has damaged records");
    }
}
