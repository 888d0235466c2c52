//! Finds out at start what a directory of packs holds.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::files::{open_regular, open_regular_with};

use super::device::Device;
use super::index::Index;
use super::pack::{
    PackEntry, PackFiles, PackHeader, Scan, pack_number, pack_path, read_pack_header, record_bytes,
    scan, sidecar_path, write_pack_header,
};
use super::sidecar::Sidecar;
use super::writer::{OpenPack, Shelf, Writer};

/// Why a local store did not open. Nothing that was there has been replaced.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory or a file in it could not be used, or another process has the store open.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A pack is not one of ours, or of another release.
    #[error(
        "{}: not a pack of this release; use the release that wrote it, or restore it from a backup",
        path.display()
    )]
    NotAPack {
        /// Which.
        path: PathBuf,
    },
}

/// What was found.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) shelf: Shelf,
    pub(crate) writer: Writer,
    /// Bytes of all records.
    pub(crate) stored_bytes: u64,
}

/// Opens the directory, makes it if it is missing, and reads what the packs hold.
pub(crate) fn open(path: &Path, pack_bytes: u32) -> Result<Opened, OpenError> {
    let dir = prepare(path)?;
    let shelf = Shelf {
        device: Device::default(),
        dir,
        packs: PackFiles::new(path.to_owned()),
        index: Index::new(),
    };
    let numbers = numbers_in(path).map_err(at(path))?;
    remove_orphans(path, &numbers).map_err(at(path))?;
    let newest = numbers.last().copied();
    let mut stored_bytes = 0;
    let mut active = None;
    for number in numbers {
        let pack = pack_path(path, number);
        let entries = match load_sealed(path, number).map_err(at(&pack))? {
            Some(sidecar) => sidecar.entries,
            None if Some(number) == newest => {
                let pack = reopen(&shelf, &pack, number)?;
                let entries = pack.entries.clone();
                active = Some(pack);
                entries
            }
            None => seal(&shelf, &pack, number)?,
        };
        for entry in &entries {
            stored_bytes += record_bytes(entry.stored_bytes);
            (shelf.index).insert_found(entry.key(), entry.location(number));
        }
    }
    // A pack that the last process created may be known to the directory's pages only.
    shelf.dir.sync_all().map_err(at(path))?;
    let next_number = newest.map_or(0, |newest| newest.saturating_add(1));
    Ok(Opened {
        writer: Writer::new(pack_bytes, next_number, active),
        shelf,
        stored_bytes,
    })
}

/// Makes and locks the directory. The lock lasts as long as the file is open.
fn prepare(path: &Path) -> Result<File, OpenError> {
    std::fs::create_dir_all(path).map_err(at(path))?;
    lock(path)
}

/// Locks the directory. The lock lasts as long as the file is open.
pub(crate) fn lock(path: &Path) -> Result<File, OpenError> {
    let dir = File::open(path).map_err(at(path))?;
    dir.try_lock().map_err(io::Error::from).map_err(at(path))?;
    Ok(dir)
}

pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Io {
        path: path.clone(),
        source,
    }
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

/// Removes side indexes whose packs a collection has removed.
fn remove_orphans(path: &Path, numbers: &[u32]) -> io::Result<()> {
    for entry in std::fs::read_dir(path)? {
        let name = entry?.file_name();
        let number = (name.to_str())
            .and_then(|name| name.strip_suffix(".idx"))
            .and_then(|stem| pack_number(&format!("{stem}.dat")));
        if let Some(number) = number.filter(|number| numbers.binary_search(number).is_err()) {
            tracing::info!(
                pack = number,
                "removing the side index of a pack that is gone"
            );
            std::fs::remove_file(sidecar_path(path, number))?;
        }
    }
    Ok(())
}

/// The side index of a pack, if it is good and the pack is as long as it says.
pub(crate) fn load_sealed(path: &Path, number: u32) -> io::Result<Option<Sidecar>> {
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
fn seal(shelf: &Shelf, path: &Path, number: u32) -> Result<Vec<PackEntry>, OpenError> {
    let file = open_regular(path).map_err(at(path))?;
    let (scan, _) = scan_ours(&file, path, number)?;
    if scan.end < scan.file_bytes {
        tracing::warn!(
            pack = number,
            bytes = scan.file_bytes - scan.end,
            "pack has a torn tail, which is not used"
        );
    }
    // The last process may have written what no flush has covered.
    shelf.device.flush(&file).map_err(at(path))?;
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
fn reopen(shelf: &Shelf, path: &Path, number: u32) -> Result<OpenPack, OpenError> {
    let file = open_regular_with(path, OpenOptions::new().read(true).write(true));
    let file = file.map_err(at(path))?;
    let (scan, header) = scan_ours(&file, path, number)?;
    if scan.end < scan.file_bytes {
        tracing::warn!(
            pack = number,
            bytes = scan.file_bytes - scan.end,
            "cutting a torn tail off a pack"
        );
        file.set_len(scan.end).map_err(at(path))?;
    }
    if header != PackHeader::Ours {
        tracing::warn!(pack = number, "writing a pack's header anew");
        write_pack_header(&shelf.device, &file, number).map_err(at(path))?;
    }
    shelf.device.flush(&file).map_err(at(path))?;
    let end = u32::try_from(scan.end)
        .map_err(io::Error::other)
        .map_err(at(path))?;
    Ok(OpenPack {
        number,
        file: Arc::new(file),
        end,
        synced_entries: scan.entries.len(),
        synced_end: end,
        entries: scan.entries,
    })
}

/// Scans a file, unless it is no pack of this release.
pub(crate) fn scan_ours(
    file: &File,
    path: &Path,
    number: u32,
) -> Result<(Scan, PackHeader), OpenError> {
    let not_a_pack = || OpenError::NotAPack {
        path: path.to_owned(),
    };
    let header = read_pack_header(file, number).map_err(at(path))?;
    if header == PackHeader::OtherVersion {
        return Err(not_a_pack());
    }
    let scan = scan(file, number).map_err(at(path))?;
    // A damaged header alone does not matter, but then the records must tell.
    if header == PackHeader::Unknown && scan.entries.is_empty() {
        return Err(not_a_pack());
    }
    warn_of_gaps(number, scan.gaps);
    Ok((scan, header))
}

fn warn_of_gaps(number: u32, gaps: u32) {
    if gaps > 0 {
        tracing::warn!(pack = number, gaps, "pack has damaged records");
    }
}
