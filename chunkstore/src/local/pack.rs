//! Pack files: records one after another.
//!
//! A pack starts with a header of 64 bytes: magic `HFPK`, version 1, three zero bytes, the pack's
//! number (4 bytes, big-endian), twenty zero bytes, and the blake3 hash of these 32 bytes. The
//! records follow without gaps.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::files::open_regular;
use base::{ChunkId, DomainId};
use bytes::Bytes;

use super::device::Device;
use super::index::{Key, Location};
use crate::chunk::{HEADER_BYTES, Header, MAGIC, Place};

/// Length of a pack's header.
pub(crate) const PACK_HEADER_BYTES: u32 = 64;

const PACK_MAGIC: [u8; 4] = *b"HFPK";
const PACK_VERSION: u8 = 1;

/// Pack files kept open for reading. Together with what is being written this stays well below
/// the usual limit of 1024 files of a process.
const OPEN_PACKS_MAX: usize = 256;

/// Bytes searched at a time for the next record after a damaged one.
const SEARCH_BYTES: usize = 64 * 1024;

/// One record of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackEntry {
    pub(crate) domain: DomainId,
    pub(crate) id: ChunkId,
    pub(crate) offset: u32,
    pub(crate) stored_bytes: u32,
    pub(crate) damaged: bool,
}

impl PackEntry {
    pub(crate) fn key(&self) -> Key {
        Key::new(self.domain, self.id)
    }

    pub(crate) fn location(&self, pack: u32) -> Location {
        Location {
            place: Place {
                pack,
                offset: self.offset,
            },
            stored_bytes: self.stored_bytes,
            damaged: self.damaged,
        }
    }
}

/// Length of a record whose body takes `stored_bytes`.
pub(crate) fn record_bytes(stored_bytes: u32) -> u64 {
    u64::try_from(HEADER_BYTES).unwrap_or(u64::MAX) + u64::from(stored_bytes)
}

/// The path of a pack.
pub(crate) fn pack_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("pack-{number:08x}.dat"))
}

/// The path of a pack's side index.
pub(crate) fn sidecar_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("pack-{number:08x}.idx"))
}

/// The number of the pack whose file has this name.
pub(crate) fn pack_number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("pack-")?.strip_suffix(".dat")?;
    let number = u32::from_str_radix(digits, 16).ok()?;
    (format!("{number:08x}") == digits).then_some(number)
}

/// Writes the header of a pack.
pub(crate) fn write_pack_header(device: &Device, file: &File, number: u32) -> io::Result<()> {
    let header = pack_header(number);
    device.write_at(file, &header, 0)
}

/// What is where a pack's header should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PackHeader {
    /// The header of this pack.
    Ours,
    /// An intact header of another format version.
    OtherVersion,
    /// Nothing, or zeros: the machine stopped while the pack was made.
    Missing,
    /// Something else: damage, or a file that is no pack.
    Unknown,
}

/// Looks at the start of a file.
pub(crate) fn read_pack_header(file: &File, number: u32) -> io::Result<PackHeader> {
    let expected = pack_header(number);
    let mut found = vec![0; expected.len()];
    match file.read_exact_at(&mut found, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Ok(PackHeader::Missing);
        }
        other => other?,
    }
    if found == expected {
        return Ok(PackHeader::Ours);
    }
    if found.iter().all(|byte| *byte == 0) {
        return Ok(PackHeader::Missing);
    }
    let intact = found
        .split_last_chunk::<32>()
        .is_some_and(|(checked, check)| blake3::hash(checked) == *check);
    if intact && found.starts_with(&PACK_MAGIC) && found.get(4) != expected.get(4) {
        return Ok(PackHeader::OtherVersion);
    }
    Ok(PackHeader::Unknown)
}

fn pack_header(number: u32) -> Vec<u8> {
    let mut header = PACK_MAGIC.to_vec();
    header.extend_from_slice(&[PACK_VERSION, 0, 0, 0]);
    header.extend_from_slice(&number.to_be_bytes());
    header.extend_from_slice(&[0; 20]);
    let check = blake3::hash(&header);
    header.extend_from_slice(check.as_bytes());
    header
}

/// The packs of a directory, opened for reading as needed.
#[derive(Debug)]
pub(crate) struct PackFiles {
    dir: PathBuf,
    open: quick_cache::sync::Cache<u32, Arc<File>>,
}

impl PackFiles {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            open: quick_cache::sync::Cache::new(OPEN_PACKS_MAX),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn file(&self, number: u32) -> io::Result<Arc<File>> {
        self.open.get_or_insert_with(&number, || {
            open_regular(&pack_path(&self.dir, number)).map(Arc::new)
        })
    }

    /// Creates a pack with its header. Leaves nothing behind if that fails.
    pub(crate) fn create(&self, device: &Device, number: u32) -> io::Result<File> {
        let path = pack_path(&self.dir, number);
        let file = device.create(&path)?;
        if let Err(error) = write_pack_header(device, &file, number) {
            // An empty pack left behind does no harm, so a failure here changes nothing.
            drop(std::fs::remove_file(&path));
            return Err(error);
        }
        Ok(file)
    }

    /// Removes a pack and its side index. Nothing may be indexed in it any more.
    ///
    /// A side index that is left without its pack is removed when the store is opened, so that a
    /// later pack of that number cannot be taken for it.
    pub(crate) fn remove(&self, device: &Device, number: u32) -> io::Result<()> {
        device.remove(&pack_path(&self.dir, number))?;
        self.forget(number);
        device.remove(&sidecar_path(&self.dir, number))
    }

    /// Closes a pack, so that its space is given back once it is removed.
    pub(crate) fn forget(&self, number: u32) {
        self.open.remove(&number);
    }

    /// Reads the record at `location`. `None` if what is there is not a whole record, or has
    /// another length.
    pub(crate) fn read(&self, location: Location) -> io::Result<Option<(Header, Bytes)>> {
        let file = self.file(location.place.pack)?;
        let Ok(len) = usize::try_from(record_bytes(location.stored_bytes)) else {
            return Ok(None);
        };
        let mut record = vec![0; len];
        match file.read_exact_at(&mut record, u64::from(location.place.offset)) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            other => other?,
        }
        let record = Bytes::from(record);
        let Some(header) = record
            .first_chunk()
            .and_then(|header| Header::decode(header, location.place))
            .filter(|header| header.stored_bytes == location.stored_bytes)
        else {
            return Ok(None);
        };
        Ok(Some((header, record.slice(HEADER_BYTES..))))
    }
}

/// What a scan of a pack found.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) entries: Vec<PackEntry>,
    /// Where the last complete record ends.
    pub(crate) end: u64,
    /// Length of the file. What lies beyond `end` is a torn tail.
    pub(crate) file_bytes: u64,
    /// Stretches between records that are not records.
    pub(crate) gaps: u32,
}

/// Finds the records of a pack by reading all of it.
///
/// A record is complete if its header is right and the file is long enough for its body; with a
/// wrong body it is reported as damaged. After a damaged header the search goes on at the next
/// record that is right in header and body.
pub(crate) fn scan(file: &File, number: u32) -> io::Result<Scan> {
    let mut scan = Scan {
        entries: Vec::new(),
        end: u64::from(PACK_HEADER_BYTES),
        file_bytes: file.metadata()?.len(),
        gaps: 0,
    };
    // An offset is stored in 32 bits; no pack is written that long.
    while let Ok(offset) = u32::try_from(scan.end) {
        let mut entry = entry_at(file, number, offset, scan.file_bytes)?;
        if entry.is_none() {
            entry = next_whole_entry(file, number, offset, scan.file_bytes)?;
            scan.gaps += u32::from(entry.is_some());
        }
        let Some(entry) = entry else { break };
        scan.end = u64::from(entry.offset) + record_bytes(entry.stored_bytes);
        scan.entries.push(entry);
    }
    Ok(scan)
}

/// The record at `offset`, if its header is right and its body fits the file.
fn entry_at(
    file: &File,
    number: u32,
    offset: u32,
    file_bytes: u64,
) -> io::Result<Option<PackEntry>> {
    let start = u64::from(offset);
    if start + record_bytes(0) > file_bytes {
        return Ok(None);
    }
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, start)?;
    let place = Place {
        pack: number,
        offset,
    };
    let Some(header) = Header::decode(&header, place) else {
        return Ok(None);
    };
    if start + record_bytes(header.stored_bytes) > file_bytes {
        return Ok(None);
    }
    // Bounded by the largest chunk: the header was checked.
    let mut body = vec![0; usize::try_from(header.stored_bytes).map_err(io::Error::other)?];
    file.read_exact_at(&mut body, start + record_bytes(0))?;
    Ok(Some(PackEntry {
        domain: header.domain,
        id: header.id,
        offset,
        stored_bytes: header.stored_bytes,
        damaged: !header.matches_body(&body),
    }))
}

/// The first record after `offset` that is right in header and body.
fn next_whole_entry(
    file: &File,
    number: u32,
    offset: u32,
    file_bytes: u64,
) -> io::Result<Option<PackEntry>> {
    let mut window = vec![0; SEARCH_BYTES];
    let mut start = u64::from(offset) + 1;
    while start + record_bytes(0) <= file_bytes {
        let len = file.read_at(&mut window, start)?;
        let Some(read) = window.get(..len).filter(|read| read.len() >= MAGIC.len()) else {
            break;
        };
        for (position, bytes) in (0_u64..).zip(read.windows(MAGIC.len())) {
            if bytes != MAGIC {
                continue;
            }
            let Ok(candidate) = u32::try_from(start + position) else {
                return Ok(None);
            };
            let entry = entry_at(file, number, candidate, file_bytes)?;
            if let Some(entry) = entry.filter(|entry| !entry.damaged) {
                return Ok(Some(entry));
            }
        }
        // The windows overlap so that no magic is cut in two.
        start += u64::try_from(read.len() - (MAGIC.len() - 1)).map_err(io::Error::other)?;
    }
    Ok(None)
}
