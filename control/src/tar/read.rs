//! Reading archives.

use std::io::{ErrorKind, Read};

use base::Timestamp;
use metadata::stat::Device;

use super::{
    ABOUT_KEY, BLOCK, BLOCK_U64, EXTENSION_BYTES_MAX, EXTENTS_MAX, Extent, KEEP_KEY, KIND_KEY,
    Kind, Member, PATH_BYTES_MAX, TarError, pax,
};

/// Content given at a time, in bytes.
const DATA_BYTES: u64 = 128 * 1024;

/// Longest target of a symbolic link, in bytes.
const TARGET_BYTES_MAX: usize = base::limits::SYMLINK_BYTES_MAX;

/// Reads an archive from its beginning to its end. Memory is bounded whatever comes.
#[derive(Debug)]
pub(crate) struct Reader<R> {
    from: R,
    /// Records of pax global headers.
    global: Records,
    /// Parts of the current file that are not read, the next one last.
    extents: Vec<Extent>,
    /// Bytes of the current member that are not read, without padding.
    stored: u64,
    /// Its padding.
    padding: u64,
    /// The current member.
    path: Option<Vec<u8>>,
    /// Records that say what files here do not have.
    ignored: u64,
    about: Option<String>,
    /// A header was read.
    has_begun: bool,
}

/// What pax headers and long names say of the next member.
#[derive(Clone, Debug, Default)]
struct Records {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<Timestamp>,
    atime: Option<Timestamp>,
    is_socket: bool,
    is_kept: bool,
    about: Option<String>,
    sparse: Sparse,
}

/// What pax headers say of a sparse file.
#[derive(Clone, Debug, Default)]
struct Sparse {
    major: Option<u64>,
    name: Option<Vec<u8>>,
    size: Option<u64>,
    map: Option<Vec<Extent>>,
}

impl<R: Read> Reader<R> {
    /// Reads what `from` gives.
    pub(crate) fn new(from: R) -> Self {
        Self {
            from,
            global: Records::default(),
            extents: Vec::new(),
            stored: 0,
            padding: 0,
            path: None,
            ignored: 0,
            about: None,
            has_begun: false,
        }
    }

    /// What the commit is to say, if the very first header tells it: whoever sends an archive can put
    /// that there, before all that others have put into it.
    pub(crate) fn about(&self) -> Option<&str> {
        self.about.as_deref()
    }

    /// What it is read from.
    pub(crate) fn into_inner(self) -> R {
        self.from
    }

    /// How many extended attributes and the like were left out.
    pub(crate) fn ignored(&self) -> u64 {
        self.ignored
    }

    /// The next member; `None` after the last. Content that was not asked for is passed.
    pub(crate) fn next(&mut self) -> Result<Option<Member>, TarError> {
        while self.data()?.is_some() {}
        self.skip(self.stored)?;
        self.skip(self.padding)?;
        (self.stored, self.padding) = (0, 0);
        let mut records = self.global.clone();
        let mut is_extended = false;
        loop {
            let Some(block) = self.block()? else {
                if is_extended {
                    return Err(TarError::Truncated(self.path.take()));
                }
                return self.end().map(|()| None);
            };
            let raw = Raw::parse(&block, self.path.as_deref())?;
            is_extended = true;
            let is_first = !std::mem::replace(&mut self.has_begun, true);
            match raw.flag {
                b'x' => self.extension(raw.size).and_then(|bytes| {
                    let ignored = records.read(&bytes)?;
                    self.ignored += ignored;
                    Ok(())
                })?,
                b'g' => {
                    let bytes = self.extension(raw.size)?;
                    let mut global = std::mem::take(&mut self.global);
                    self.ignored += global.read(&bytes)?;
                    // Of the archive, not of its members. Further on nobody looks at it.
                    let about = global.about.take();
                    if is_first {
                        self.about = about;
                    }
                    self.global = global.clone();
                    records = global;
                }
                b'L' => records.path = Some(until_nul(self.extension(raw.size)?)),
                b'K' => records.target = Some(until_nul(self.extension(raw.size)?)),
                _ => return self.member(&block, raw, records).map(Some),
            }
        }
    }

    /// The next part of the current file's content, and where it is; `None` after the last.
    pub(crate) fn data(&mut self) -> Result<Option<(u64, Vec<u8>)>, TarError> {
        loop {
            let Some(extent) = self.extents.last_mut() else {
                return Ok(None);
            };
            if extent.length == 0 {
                self.extents.pop();
                continue;
            }
            let length = extent.length.min(DATA_BYTES);
            let offset = extent.offset;
            extent.offset += length;
            extent.length -= length;
            self.stored = self.stored.saturating_sub(length);
            let mut data = vec![0; usize::try_from(length).unwrap_or(0)];
            self.fill(&mut data)?;
            return Ok(Some((offset, data)));
        }
    }

    fn fill(&mut self, to: &mut [u8]) -> Result<(), TarError> {
        self.from
            .read_exact(to)
            .map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => TarError::Truncated(self.path.clone()),
                _ => TarError::Io(error),
            })
    }

    fn skip(&mut self, mut length: u64) -> Result<(), TarError> {
        let mut rest = [0; BLOCK];
        while length > 0 {
            let some = usize::try_from(length).unwrap_or(BLOCK).min(BLOCK);
            if let Some(to) = rest.get_mut(..some) {
                self.fill(to)?;
            }
            length -= u64::try_from(some).unwrap_or(length);
        }
        Ok(())
    }

    /// The next header; `None` if it is zeros.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        let mut block = [0; BLOCK];
        self.fill(&mut block)?;
        Ok((block != [0; BLOCK]).then_some(block))
    }

    /// After the first block of zeros: nothing else may come.
    fn end(&mut self) -> Result<(), TarError> {
        let mut rest = [0; 16 * BLOCK];
        loop {
            let read = match self.from.read(&mut rest) {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(TarError::Io(error)),
            };
            let is_zero = |byte: &u8| *byte == 0;
            if !rest.iter().take(read).all(is_zero) {
                let why = "the archive has something after its end: if several were put together, \
                           import each, or unpack and pack them again";
                return Err(TarError::new(None, why));
            }
        }
    }

    /// The content of a header that describes the next member.
    fn extension(&mut self, size: u64) -> Result<Vec<u8>, TarError> {
        if size > EXTENSION_BYTES_MAX {
            let why =
                format!("an extended header has {size} bytes, of at most {EXTENSION_BYTES_MAX}");
            return Err(TarError::new(self.path.as_deref(), why));
        }
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        self.fill(&mut bytes)?;
        self.skip((BLOCK_U64 - size % BLOCK_U64) % BLOCK_U64)?;
        Ok(bytes)
    }

    fn member(
        &mut self,
        block: &[u8; BLOCK],
        raw: Raw,
        records: Records,
    ) -> Result<Member, TarError> {
        let sparse = records.sparse;
        let path = sparse.name.or(records.path).unwrap_or(raw.path);
        self.path = Some(path.clone());
        let refuse = |why: String| TarError::new(Some(&path), why);
        if path.len() > PATH_BYTES_MAX {
            let path = path.get(..100).unwrap_or_default();
            let why = format!("its path has more than {PATH_BYTES_MAX} bytes: shorten it");
            return Err(TarError::new(Some(path), why));
        }
        let target = records.target.unwrap_or(raw.target);
        let stored = records.size.unwrap_or(raw.size);
        let (is_socket, is_kept) = (records.is_socket, records.is_kept);
        let kind = match raw.flag {
            b'0' | 0 if is_socket => Kind::Socket,
            b'0' | 0 if is_kept => Kind::Kept,
            flag => kind_of(flag, &path, (stored, target), raw.device).map_err(refuse)?,
        };
        let is_file = matches!(kind, Kind::File { .. });
        let id = |said: Option<u64>, raw: u64| {
            let id = u32::try_from(said.unwrap_or(raw));
            id.map_err(|_| refuse("its owner or group is no number of 32 bits".into()))
        };
        let (uid, gid) = (id(records.uid, raw.uid)?, id(records.gid, raw.gid)?);
        // How a directory says that it is one.
        let slashes = if kind == Kind::Directory {
            path.iter()
                .skip(1)
                .rev()
                .take_while(|byte| **byte == b'/')
                .count()
        } else {
            0
        };
        self.padding = (BLOCK_U64 - stored % BLOCK_U64) % BLOCK_U64;
        self.stored = stored;
        let kind = if is_file {
            let size = self.begin_file(block, raw.flag, (sparse.major, sparse.size, sparse.map))?;
            Kind::File { size }
        } else {
            self.extents.clear();
            kind
        };
        let mut path = path;
        path.truncate(path.len() - slashes);
        Ok(Member {
            path,
            kind,
            mode: raw.mode,
            uid,
            gid,
            mtime: records.mtime.unwrap_or(raw.mtime),
            atime: records.atime,
        })
    }

    /// Finds out where the content of a file belongs; gives its size.
    fn begin_file(
        &mut self,
        block: &[u8; BLOCK],
        flag: u8,
        (major, said, map): (Option<u64>, Option<u64>, Option<Vec<Extent>>),
    ) -> Result<u64, TarError> {
        let (mut extents, size) = if flag == b'S' {
            self.gnu_map(block)?
        } else if let Some(map) = map {
            (map, said)
        } else if major == Some(1) {
            (self.pax_map()?, said)
        } else if major.is_some() || said.is_some() {
            let why = "it is a sparse file of a form that is not known here: pack it again with \
                       `tar --format=pax --sparse`";
            return Err(TarError::new(self.path.as_deref(), why));
        } else {
            let all = Extent {
                offset: 0,
                length: self.stored,
            };
            (vec![all], Some(self.stored))
        };
        let (mut end, mut sum) = (0_u64, 0_u64);
        for extent in &extents {
            let next = extent.offset.checked_add(extent.length);
            let size = size.unwrap_or(0);
            match next.filter(|next| extent.offset >= end && *next <= size) {
                Some(next) => end = next,
                None => return Err(self.bad_map()),
            }
            sum += extent.length;
        }
        if sum != self.stored {
            return Err(self.bad_map());
        }
        extents.reverse();
        self.extents = extents;
        size.ok_or_else(|| self.bad_map())
    }

    fn bad_map(&self) -> TarError {
        let why = "the map of its holes contradicts itself; make the archive anew";
        TarError::new(self.path.as_deref(), why)
    }

    /// The map in a header of GNU's, and in those after it.
    fn gnu_map(&mut self, block: &[u8; BLOCK]) -> Result<(Vec<Extent>, Option<u64>), TarError> {
        let mut extents = Vec::new();
        let size = number(field(block, 483, 12));
        self.gnu_extents(field(block, 386, 96), &mut extents)?;
        let mut more = field(block, 482, 1) != [0];
        while more {
            let mut next = [0; BLOCK];
            self.fill(&mut next)?;
            self.gnu_extents(field(&next, 0, 504), &mut extents)?;
            more = field(&next, 504, 1) != [0];
        }
        Ok((extents, size))
    }

    fn gnu_extents(&self, from: &[u8], extents: &mut Vec<Extent>) -> Result<(), TarError> {
        for pair in from.chunks_exact(24) {
            let (offset, length) = pair.split_at(12);
            // Unused places are zeros.
            if offset.first() == Some(&0) {
                break;
            }
            let (Some(offset), Some(length)) = (number(offset), number(length)) else {
                return Err(self.bad_map());
            };
            self.push_extent(extents, Extent { offset, length })?;
        }
        Ok(())
    }

    /// The map before the content, as pax has it since version 1.0.
    fn pax_map(&mut self) -> Result<Vec<Extent>, TarError> {
        let mut lines = Lines::default();
        let count = self.map_number(&mut lines)?;
        let mut extents = Vec::new();
        for _ in 0..count {
            let (offset, length) = (self.map_number(&mut lines)?, self.map_number(&mut lines)?);
            self.push_extent(&mut extents, Extent { offset, length })?;
        }
        Ok(extents)
    }

    fn push_extent(&self, extents: &mut Vec<Extent>, extent: Extent) -> Result<(), TarError> {
        // The empty one at the end tells a hole there.
        if extent.length > 0 {
            extents.push(extent);
        }
        if extents.len() > EXTENTS_MAX {
            let why = format!("it has more than {EXTENTS_MAX} holes: pack it without --sparse");
            return Err(TarError::new(self.path.as_deref(), why));
        }
        Ok(())
    }

    fn map_number(&mut self, lines: &mut Lines) -> Result<u64, TarError> {
        let mut digits = Vec::new();
        loop {
            let Some(byte) = lines.next() else {
                if self.stored < BLOCK_U64 {
                    return Err(self.bad_map());
                }
                let mut block = [0; BLOCK];
                self.fill(&mut block)?;
                self.stored -= BLOCK_U64;
                *lines = Lines {
                    block,
                    at: 0,
                    has: true,
                };
                continue;
            };
            if byte == b'\n' {
                let number = pax::parse_number(&digits).filter(|_| !digits.is_empty());
                return number.ok_or_else(|| self.bad_map());
            }
            digits.push(byte);
            if digits.len() > 20 {
                return Err(self.bad_map());
            }
        }
    }
}

/// What a flag says, and a path that ends as only those of directories do.
fn kind_of(
    flag: u8,
    path: &[u8],
    (stored, target): (u64, Vec<u8>),
    device: Device,
) -> Result<Kind, String> {
    Ok(match flag {
        // Old archives have no other sign of a directory.
        b'0' | 0 if path.last() == Some(&b'/') && stored == 0 => Kind::Directory,
        b'0' | 0 | b'7' | b'S' => Kind::File { size: stored },
        b'1' => Kind::Link(target),
        b'2' if target.len() > TARGET_BYTES_MAX => {
            return Err(format!(
                "the link's target has more than {TARGET_BYTES_MAX} bytes"
            ));
        }
        b'2' => Kind::Symlink(target),
        b'3' => Kind::CharDevice(device),
        b'4' => Kind::BlockDevice(device),
        b'5' => Kind::Directory,
        b'6' => Kind::Fifo,
        other => {
            return Err(format!(
                "it is of kind '{}', which is not known here: pack it again with \
                 `tar --format=pax`",
                char::from(other).escape_default()
            ));
        }
    })
}

/// A block of a map.
struct Lines {
    block: [u8; BLOCK],
    at: usize,
    has: bool,
}

impl Default for Lines {
    fn default() -> Self {
        Self {
            block: [0; BLOCK],
            at: 0,
            has: false,
        }
    }
}

impl Lines {
    fn next(&mut self) -> Option<u8> {
        let byte = self.block.get(self.at).copied().filter(|_| self.has);
        self.at += 1;
        byte
    }
}

impl Records {
    /// Takes in a pax header. Gives how many records say what files here do not have.
    fn read(&mut self, bytes: &[u8]) -> Result<u64, TarError> {
        let mut ignored = 0;
        pax::parse(bytes, |key, value| {
            let wrong = || {
                let key = String::from_utf8_lossy(key);
                TarError::new(
                    None,
                    format!("pax record {key:?} says what it cannot; make the archive anew"),
                )
            };
            let number = || pax::parse_number(value).filter(|_| !value.is_empty());
            let time = || pax::parse_time(value).ok_or_else(wrong).map(Some);
            let whole = || number().ok_or_else(wrong).map(Some);
            // An empty value takes back what a global header says.
            match key {
                b"path" => self.path = some(value),
                b"linkpath" => self.target = some(value),
                b"size" => self.size = whole()?,
                b"uid" => self.uid = whole()?,
                b"gid" => self.gid = whole()?,
                b"mtime" => self.mtime = time()?,
                b"atime" => self.atime = time()?,
                b"GNU.sparse.major" => self.sparse.major = whole()?,
                b"GNU.sparse.name" => self.sparse.name = some(value),
                b"GNU.sparse.realsize" | b"GNU.sparse.size" => self.sparse.size = whole()?,
                b"GNU.sparse.map" => self.sparse.map = Some(short_map(value).ok_or_else(wrong)?),
                _ if key == KEEP_KEY.as_bytes() => self.is_kept = value == b"1",
                _ if key == ABOUT_KEY.as_bytes() => {
                    let text = std::str::from_utf8(value).map_err(|_| wrong())?;
                    self.about = Some(text.to_owned());
                }
                _ if key == KIND_KEY.as_bytes() => self.is_socket = value == b"socket",
                _ if key.starts_with(b"SCHILY.") || key.starts_with(b"LIBARCHIVE.xattr") => {
                    ignored += 1;
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(ignored)
    }
}

fn some(value: &[u8]) -> Option<Vec<u8>> {
    (!value.is_empty()).then(|| value.to_vec())
}

/// The map of version 0.1: numbers with commas between them.
fn short_map(value: &[u8]) -> Option<Vec<Extent>> {
    let numbers: Option<Vec<u64>> = value
        .split(|byte| *byte == b',')
        .map(|digits| pax::parse_number(digits).filter(|_| !digits.is_empty()))
        .collect();
    let numbers = numbers?;
    let pairs = numbers.chunks_exact(2);
    if !pairs.remainder().is_empty() || numbers.len() > 2 * EXTENTS_MAX {
        return None;
    }
    let extent = |pair: &[u64]| match *pair {
        [offset, length] => Some(Extent { offset, length }),
        _ => None,
    };
    Some(
        pairs
            .filter_map(extent)
            .filter(|extent| extent.length > 0)
            .collect(),
    )
}

fn until_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.iter().position(|byte| *byte == 0);
    bytes.truncate(end.unwrap_or(bytes.len()));
    bytes
}

/// A header as it stands there.
#[derive(Debug)]
struct Raw {
    path: Vec<u8>,
    flag: u8,
    mode: u32,
    uid: u64,
    gid: u64,
    size: u64,
    mtime: Timestamp,
    target: Vec<u8>,
    device: Device,
}

fn field(block: &[u8; BLOCK], at: usize, length: usize) -> &[u8] {
    block.get(at..at + length).unwrap_or_default()
}

impl Raw {
    fn parse(block: &[u8; BLOCK], before: Option<&[u8]>) -> Result<Self, TarError> {
        let sum = |at: (usize, &u8)| {
            let is_sum = (148..156).contains(&at.0);
            u64::from(if is_sum { b' ' } else { *at.1 })
        };
        let sum: u64 = block.iter().enumerate().map(sum).sum();
        if number(field(block, 148, 8)) != Some(sum) {
            let what = match before {
                Some(path) => format!("the header after {} is damaged", super::shown(path)),
                None => "this is no tar archive, or its first header is damaged".to_owned(),
            };
            let why = format!("{what} (wrong checksum); plain, .gz and .zst archives are read");
            return Err(TarError::new(None, why));
        }
        let mut path = until_nul(field(block, 0, 100).to_vec());
        // GNU's own form has other things where the prefix is.
        let prefix = until_nul(field(block, 345, 155).to_vec());
        if field(block, 257, 6) == b"ustar\0" && !prefix.is_empty() {
            path = [prefix, path].join(&b'/');
        }
        let shown = path.clone();
        let read = |at, length, what: &str| {
            let read = number(field(block, at, length));
            read.ok_or_else(|| TarError::new(Some(&shown), format!("its {what} is no number")))
        };
        let device = |at| u32::try_from(number(field(block, at, 8)).unwrap_or(0)).unwrap_or(0);
        let mode = read(100, 8, "mode")? & 0o7777;
        Ok(Self {
            flag: field(block, 156, 1).first().copied().unwrap_or(0),
            mode: u32::try_from(mode).unwrap_or(0),
            uid: read(108, 8, "owner")?,
            gid: read(116, 8, "group")?,
            size: read(124, 12, "size")?,
            mtime: Timestamp::new(number(field(block, 136, 12)).unwrap_or(0), 0),
            target: until_nul(field(block, 157, 100).to_vec()),
            device: Device {
                major: device(329),
                minor: device(337),
            },
            path,
        })
    }
}

/// A number: octal digits, or in base 256. An empty field is zero. What is below zero, a time before
/// 1970, is none.
fn number(field: &[u8]) -> Option<u64> {
    match field.first() {
        Some(0x80) => {
            let mut number = 0_u64;
            for byte in field.iter().skip(1) {
                number = number.checked_mul(256)?.checked_add(u64::from(*byte))?;
            }
            Some(number)
        }
        Some(0x81..) => None,
        _ => {
            let text = std::str::from_utf8(field).ok()?;
            let digits = text.trim_matches(|letter| matches!(letter, ' ' | '\0'));
            if digits.is_empty() {
                return Some(0);
            }
            let is_octal = digits.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
            u64::from_str_radix(digits, 8).ok().filter(|_| is_octal)
        }
    }
}
