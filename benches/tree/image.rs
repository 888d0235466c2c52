//! A made-up filesystem image with the keys and sizes of a real one.

use base::{ChunkId, InodeId, Name, Timestamp};
use bytes::Bytes;
use metadata::image::{Block, Body, NameHasher};
use metadata::keyspace::image;
use metadata::record::block;
use metadata::record::entry::Entry;
use metadata::record::inode::InodeRecord;
use metadata::stat::{Device, FileKind, Stat};

/// Files of a directory, and directories in one.
const FANOUT: u64 = 10;

/// Inode numbers from one directory to the next: itself and its files.
const STRIDE: u64 = FANOUT + 1;

/// Where a new session's inode numbers begin.
const SESSION: u64 = 1 << 40;

/// A key and its value.
pub(crate) type Pair = (Vec<u8>, Bytes);

/// What the values look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Records {
    /// The records that Holdfast stores: 232 bytes of keys and values a file.
    Stored,
    /// Lengths as in the simulation that the design was made with: 138 bytes a file.
    Simulated,
}

/// Numbers that look random, always the same.
#[derive(Clone, Debug)]
pub(crate) struct Stream(u64);

impl Stream {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next().checked_rem(end).unwrap_or_default()
    }
}

/// An image: directories with ten files and ten directories each, files of one block. A directory
/// and its files have inode numbers that follow each other, as if made one after the other.
#[derive(Clone)]
pub(crate) struct Image {
    pub(crate) files: u64,
    records: Records,
    hasher: NameHasher,
}

impl Image {
    pub(crate) fn new(files: u64, records: Records) -> Self {
        Self {
            files,
            records,
            hasher: NameHasher::new([3; 32]),
        }
    }

    fn dirs(&self) -> u64 {
        self.files.div_ceil(FANOUT).max(1)
    }

    fn dir(number: u64) -> InodeId {
        InodeId::new(1 + number * STRIDE)
    }

    fn file(number: u64) -> InodeId {
        InodeId::new(2 + number / FANOUT * STRIDE + number % FANOUT)
    }

    /// All keys and values, in order.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = Pair> + Send + '_ {
        (0..self.dirs()).flat_map(move |dir| {
            let mut pairs = vec![self.attributes(Self::dir(dir), FileKind::Directory, 0)];
            let files = dir * FANOUT..((dir + 1) * FANOUT).min(self.files);
            let dirs = dir * FANOUT + 1..(dir * FANOUT + FANOUT + 1).min(self.dirs());
            for file in files.clone() {
                pairs.push(self.entry(Self::dir(dir), Self::file(file), FileKind::File));
            }
            for below in dirs {
                pairs.push(self.entry(Self::dir(dir), Self::dir(below), FileKind::Directory));
            }
            for file in files {
                pairs.push(self.attributes(Self::file(file), FileKind::File, 0));
                pairs.push(self.block(Self::file(file), 0));
            }
            pairs.sort();
            pairs
        })
    }

    /// Attributes of an inode, as of change `change`.
    fn attributes(&self, inode: InodeId, kind: FileKind, change: u64) -> Pair {
        let mut noise = Stream::new(inode.raw() ^ change << 48);
        let key = image::inode(inode);
        if self.records == Records::Simulated {
            return (key, self.random(36, &mut noise));
        }
        let time = |noise: &mut Stream| {
            let nanos = u32::try_from(noise.below(1_000_000_000)).unwrap_or_default();
            Timestamp::new(1_780_000_000 + noise.below(1 << 20), nanos)
        };
        let created = time(&mut noise);
        let size = if kind == FileKind::File {
            noise.below(100_000)
        } else {
            4096
        };
        let record = InodeRecord {
            stat: Stat {
                inode,
                kind,
                mode: 0o644,
                nlink: 1,
                uid: 1000,
                gid: 1000,
                size,
                used: size.next_multiple_of(4096),
                device: Device::default(),
                atime: created,
                mtime: created,
                ctime: time(&mut noise),
            },
            entries: 0,
            link: Some((Self::dir(inode.raw() / STRIDE), self.name(inode))),
            verifier: None,
            inline: None,
        };
        (key, record.encode())
    }

    /// A name of about ten bytes.
    fn name(&self, inode: InodeId) -> Name {
        let text = format!("{:08x}.rs", Stream::new(inode.raw()).next() >> 32);
        Name::new(text.as_bytes()).expect("hexadecimal digits are a name")
    }

    fn entry(&self, dir: InodeId, inode: InodeId, kind: FileKind) -> Pair {
        let name = self.name(inode);
        let key = image::entry(dir, self.hasher.hash(name.as_bytes()), name.as_bytes());
        (key, Entry { inode, kind }.encode())
    }

    /// A block that is a chunk; chunks of different changes differ.
    fn block(&self, inode: InodeId, change: u64) -> Pair {
        let mut noise = Stream::new(inode.raw() ^ change << 48 ^ 1 << 47);
        let key = image::block(inode, 0);
        if self.records == Records::Simulated {
            return (key, self.random(34, &mut noise));
        }
        let id: Vec<u8> = (0..4).flat_map(|_| noise.next().to_be_bytes()).collect();
        let id = id.first_chunk().copied().unwrap_or_default();
        let bytes = 128 * 1024;
        let chunk = Block {
            body: Body::Chunk {
                id: ChunkId::new(id),
                bytes,
            },
            valid: bytes,
            ..Block::default()
        };
        (key, block::encode(&chunk))
    }

    fn random(&self, length: usize, noise: &mut Stream) -> Bytes {
        let bytes = std::iter::repeat_with(|| noise.next().to_be_bytes()).flatten();
        bytes.take(length).collect()
    }

    /// Attributes of `count` files anywhere, changed.
    pub(crate) fn updates(&self, count: u64, noise: &mut Stream) -> Vec<Pair> {
        let change = 1 + noise.below(1000);
        sorted((0..count).map(|_| {
            let file = Self::file(noise.below(self.files));
            self.attributes(file, FileKind::File, change)
        }))
    }

    /// `count` new entries in directories anywhere.
    pub(crate) fn inserts(&self, count: u64, noise: &mut Stream) -> Vec<Pair> {
        sorted((0..count).map(|_| {
            let dir = Self::dir(noise.below(self.dirs()));
            self.entry(
                dir,
                InodeId::new(SESSION + noise.below(1 << 40)),
                FileKind::File,
            )
        }))
    }

    /// What a session of an agent leaves: in each of `dirs` directories ten new files and about five
    /// old ones written to. 40.8 keys a directory.
    pub(crate) fn session(&self, dirs: u64, noise: &mut Stream) -> Vec<Pair> {
        let mut pairs = Vec::new();
        for number in 0..dirs {
            let dir = noise.below(self.dirs());
            pairs.push(self.attributes(Self::dir(dir), FileKind::Directory, 1));
            for new in 0..FANOUT {
                let file = InodeId::new(SESSION + number * FANOUT + new);
                pairs.push(self.entry(Self::dir(dir), file, FileKind::File));
                pairs.push(self.attributes(file, FileKind::File, 1));
                pairs.push(self.block(file, 1));
            }
            let first = dir * FANOUT;
            let written = if number % 10 == 9 { 4 } else { 5 };
            for file in (first..first + written).filter(|file| *file < self.files) {
                pairs.push(self.attributes(Self::file(file), FileKind::File, 1));
                pairs.push(self.block(Self::file(file), 1));
            }
        }
        sorted(pairs)
    }
}

/// In order, each key once.
fn sorted(pairs: impl IntoIterator<Item = Pair>) -> Vec<Pair> {
    let map: std::collections::BTreeMap<_, _> = pairs.into_iter().collect();
    map.into_iter().collect()
}
