//! Writing headers.

use super::{ABOUT_KEY, BLOCK, BLOCK_U64, Extent, KEEP_KEY, KIND_KEY, Kind, Member, pax};

/// What an archive ends with.
pub(crate) const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];

/// Zeros.
static ZEROS: [u8; BLOCK] = [0; BLOCK];

/// Largest number of eight octal digits less one, as in the fields of owners.
const OCTAL_7_MAX: u64 = 0o7_777_777;

/// Largest number in the fields of sizes and times.
const OCTAL_11_MAX: u64 = 0o77_777_777_777;

/// What comes after `length` bytes of content.
pub(crate) fn padding(length: u64) -> &'static [u8] {
    let short = (BLOCK_U64 - length % BLOCK_U64) % BLOCK_U64;
    let short = usize::try_from(short).unwrap_or(0);
    ZEROS.get(..short).unwrap_or_default()
}

/// All that comes before the content of a member. `extents` are the parts of a file that are no holes,
/// in order and apart from each other: what follows is their content, one after the other, and
/// [`padding`] for all of it.
pub(crate) fn header(member: &Member, extents: &[Extent]) -> Vec<u8> {
    let mut records = Vec::new();
    let mut path = member.path.clone();
    if member.kind == Kind::Directory && path.last() != Some(&b'/') {
        path.push(b'/');
    }
    let (target, mut size) = match &member.kind {
        Kind::Symlink(target) | Kind::Link(target) => (target.as_slice(), 0),
        Kind::File { size } => (&b""[..], *size),
        _ => (&b""[..], 0),
    };
    let is_text = std::str::from_utf8(&path).is_ok() && std::str::from_utf8(target).is_ok();
    if !is_text {
        pax::push(&mut records, "hdrcharset", b"BINARY");
    }
    let map = sparse_map(&member.kind, extents);
    if let Some(map) = &map {
        pax::push(&mut records, "GNU.sparse.major", b"1");
        pax::push(&mut records, "GNU.sparse.minor", b"0");
        pax::push(&mut records, "GNU.sparse.name", &path);
        pax::push(
            &mut records,
            "GNU.sparse.realsize",
            size.to_string().as_bytes(),
        );
        path = b"GNUSparseFile.0/file".to_vec();
        let stored = extents.iter().map(|extent| extent.length);
        size = stored.fold(length_of(map), u64::saturating_add);
    }
    // A name that ustar takes for itself needs no record.
    if path.len() > 100 {
        pax::push(&mut records, "path", &path);
    }
    if target.len() > 100 {
        pax::push(&mut records, "linkpath", target);
    }
    if size > OCTAL_11_MAX {
        pax::push(&mut records, "size", size.to_string().as_bytes());
    }
    for (key, id) in [("uid", member.uid), ("gid", member.gid)] {
        if u64::from(id) > OCTAL_7_MAX {
            pax::push(&mut records, key, id.to_string().as_bytes());
        }
    }
    let mtime = member.mtime;
    if mtime.nanos() != 0 || mtime.seconds() > OCTAL_11_MAX {
        pax::push(&mut records, "mtime", pax::time(mtime).as_bytes());
    }
    if let Some(atime) = member.atime {
        pax::push(&mut records, "atime", pax::time(atime).as_bytes());
    }
    if member.kind == Kind::Socket {
        pax::push(&mut records, KIND_KEY, b"socket");
    }
    if member.kind == Kind::Kept {
        pax::push(&mut records, KEEP_KEY, b"1");
    }
    let mut bytes = Vec::with_capacity(4 * BLOCK);
    if !records.is_empty() {
        let length = length_of(&records);
        let about = Fields::new(b"PaxHeaders/file", b'x', length);
        bytes.extend_from_slice(&about.encode());
        bytes.extend_from_slice(&records);
        bytes.extend_from_slice(padding(length));
    }
    bytes.extend_from_slice(&fields(member, &path, target, size).encode());
    bytes.extend(map.unwrap_or_default());
    bytes
}

/// A header before all others: what the commit is to say, in JSON.
pub(crate) fn about(json: &str) -> Vec<u8> {
    let mut records = Vec::new();
    pax::push(&mut records, ABOUT_KEY, json.as_bytes());
    let length = length_of(&records);
    let mut bytes = Fields::new(b"PaxHeaders/about", b'g', length)
        .encode()
        .to_vec();
    bytes.extend_from_slice(&records);
    bytes.extend_from_slice(padding(length));
    bytes
}

fn length_of(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// The map of a file that has holes, as it stands before the content.
fn sparse_map(kind: &Kind, extents: &[Extent]) -> Option<Vec<u8>> {
    let Kind::File { size } = *kind else {
        return None;
    };
    let is_dense = match extents {
        [] => size == 0,
        [one] => one.offset == 0 && one.length == size,
        _ => false,
    };
    if is_dense {
        return None;
    }
    // A hole at the end is told by an empty part there.
    let end = extents.last().map_or(0, |last| last.offset + last.length);
    let tail = (end < size).then_some(Extent {
        offset: size,
        length: 0,
    });
    let parts = || extents.iter().chain(&tail);
    let mut map = format!("{}\n", parts().count());
    for part in parts() {
        map.push_str(&format!("{}\n{}\n", part.offset, part.length));
    }
    let mut map = map.into_bytes();
    let short = padding(length_of(&map));
    map.extend_from_slice(short);
    Some(map)
}

/// Fields of a header.
struct Fields<'a> {
    path: &'a [u8],
    flag: u8,
    size: u64,
    target: &'a [u8],
    mode: u32,
    ids: (u64, u64),
    mtime: u64,
    device: (u32, u32),
}

fn fields<'a>(member: &'a Member, path: &'a [u8], target: &'a [u8], size: u64) -> Fields<'a> {
    let none = (0, 0);
    let (flag, device) = match &member.kind {
        Kind::File { .. } | Kind::Kept | Kind::Socket => (b'0', none),
        Kind::Link(_) => (b'1', none),
        Kind::Symlink(_) => (b'2', none),
        Kind::CharDevice(device) => (b'3', (device.major, device.minor)),
        Kind::BlockDevice(device) => (b'4', (device.major, device.minor)),
        Kind::Directory => (b'5', none),
        Kind::Fifo => (b'6', none),
    };
    Fields {
        target,
        mode: member.mode,
        ids: (u64::from(member.uid), u64::from(member.gid)),
        mtime: member.mtime.seconds(),
        device,
        ..Fields::new(path, flag, size)
    }
}

impl<'a> Fields<'a> {
    fn new(path: &'a [u8], flag: u8, size: u64) -> Self {
        Self {
            path,
            flag,
            size,
            target: b"",
            mode: 0o644,
            ids: (0, 0),
            mtime: 0,
            device: (0, 0),
        }
    }

    fn encode(&self) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        put(&mut block, 0..100, self.path);
        put(&mut block, 100..108, &octal(u64::from(self.mode), 7));
        put(&mut block, 108..116, &octal(self.ids.0.min(OCTAL_7_MAX), 7));
        put(&mut block, 116..124, &octal(self.ids.1.min(OCTAL_7_MAX), 7));
        put(
            &mut block,
            124..136,
            &octal(self.size.min(OCTAL_11_MAX), 11),
        );
        put(
            &mut block,
            136..148,
            &octal(self.mtime.min(OCTAL_11_MAX), 11),
        );
        put(&mut block, 148..156, &[b' '; 8]);
        put(&mut block, 156..157, &[self.flag]);
        put(&mut block, 157..257, self.target);
        put(&mut block, 257..265, b"ustar\x0000");
        put(&mut block, 329..337, &device_number(self.device.0));
        put(&mut block, 337..345, &device_number(self.device.1));
        let sum = block.iter().map(|byte| u64::from(*byte)).sum();
        let mut sum = octal(sum, 6);
        sum.push(0);
        put(&mut block, 148..155, &sum);
        block
    }
}

fn put(block: &mut [u8; BLOCK], at: std::ops::Range<usize>, value: &[u8]) {
    if let Some(field) = block.get_mut(at) {
        for (to, from) in field.iter_mut().zip(value) {
            *to = *from;
        }
    }
}

fn octal(number: u64, digits: usize) -> Vec<u8> {
    format!("{number:0digits$o}").into_bytes()
}

/// A device number, in base 256 where octal digits do not do.
fn device_number(number: u32) -> Vec<u8> {
    if u64::from(number) <= OCTAL_7_MAX {
        return octal(u64::from(number), 7);
    }
    let mut bytes = vec![0x80, 0, 0, 0];
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes
}
