//! A filesystem over a map, driven by the real operations.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use base::{Caller, ChunkId, InodeId, Name, Timestamp};
use bytes::Bytes;

use crate::error::{FsError, Miss, OpError, OpResult};
use crate::image::{Block, Image, ImageConfig, InodeNumbers, LoadedEntry, Piece, Totals, Usage};
use crate::keyspace::image::{self as keys, ImageKey};
use crate::kv::KeyRange;
use crate::ops::{self, Context, How, Node};
use crate::record::block;
use crate::record::entry::Entry;
use crate::record::inode::InodeRecord;
use crate::stat::{FileKind, SetAttrs, SetTime};

pub(super) const NAME_KEY: [u8; 32] = [7; 32];
pub(super) const BLOCK_BYTES: u32 = 16_384;
pub(super) const NUMBERS: u64 = 1 << 20;

pub(super) type Pairs = BTreeMap<Vec<u8>, Bytes>;
pub(super) type Chunks = Arc<Mutex<HashMap<ChunkId, Bytes>>>;

/// A filesystem.
#[derive(Debug)]
pub(super) struct Fs {
    pub(super) store: Pairs,
    pub(super) totals: Totals,
    image: Image,
    pub(super) chunks: Chunks,
    pub(super) now: u64,
}

fn config() -> ImageConfig {
    ImageConfig {
        name_key: NAME_KEY,
        block_bytes: BLOCK_BYTES,
        bytes_max: u64::MAX,
        inodes_max: u64::MAX,
        read_only: false,
    }
}

pub(super) fn index(number: u32) -> usize {
    usize::try_from(number).unwrap()
}

impl Fs {
    pub(super) fn new() -> Self {
        let time = Timestamp::new(1000, 0);
        let root = InodeRecord::root((0o755, 0, 0), time);
        let store = Pairs::from([(keys::inode(InodeId::ROOT), root.encode())]);
        Self::over(store, Usage::default(), Chunks::default(), 1, 2000)
    }

    pub(super) fn over(store: Pairs, usage: Usage, chunks: Chunks, block: u64, now: u64) -> Self {
        let numbers = InodeNumbers {
            next: block * NUMBERS,
            end: (block + 1) * NUMBERS,
        };
        let totals = Totals { usage, numbers };
        Self {
            image: Image::new(config(), totals),
            store,
            totals,
            chunks,
            now,
        }
    }

    /// Another session that goes on from here, with its own inode numbers.
    pub(super) fn fork(&mut self, block: u64) -> Self {
        self.flush();
        let (store, chunks) = (self.store.clone(), Arc::clone(&self.chunks));
        let now = self.now + 100_000 * block;
        Self::over(store, self.totals.usage, chunks, block, now)
    }

    /// Runs an operation, loading what it misses.
    pub(super) fn run<T>(
        &mut self,
        op: impl Fn(&mut Image, Context<'_>) -> OpResult<T>,
    ) -> Result<T, FsError> {
        self.now += 1;
        let caller = Caller::root();
        let now = Timestamp::new(self.now, 0);
        loop {
            let (result, _) = self.image.run(|image| {
                let caller = &caller;
                op(image, Context { caller, now })
            });
            match result {
                Ok(value) => return Ok(value),
                Err(OpError::Fs(error)) => return Err(error),
                Err(OpError::Miss(miss)) => self.load(miss),
            }
        }
    }

    fn load(&mut self, miss: Miss) {
        let range = |range: &KeyRange| -> Vec<(ImageKey, Bytes)> {
            let pairs = self.store.range(range.start.to_vec()..range.end.to_vec());
            pairs
                .map(|(key, value)| (keys::decode(key).unwrap(), value.clone()))
                .collect()
        };
        match miss {
            Miss::Inode(inode) => {
                let value = self.store.get(&keys::inode(inode));
                let record = value.map(|value| InodeRecord::decode(inode, value).unwrap());
                self.image.install_inode(inode, record);
            }
            Miss::Entries { dir, .. } => {
                let entry = |(key, value): (ImageKey, Bytes)| match key {
                    ImageKey::Entry { hash, name, .. } => LoadedEntry {
                        hash,
                        name,
                        entry: Entry::decode(&value).unwrap(),
                    },
                    other => panic!("{other:?} among entries"),
                };
                let found = range(&keys::entries_from(dir, 0))
                    .into_iter()
                    .map(entry)
                    .collect();
                self.image.install_entries(dir, 0, u64::MAX, found);
            }
            Miss::Blocks { inode, first, last } => {
                let found = range(&keys::blocks(inode, first, last)).into_iter();
                let found = found.map(|(key, value)| match key {
                    ImageKey::Block { index, .. } => (index, block::decode(&value).unwrap()),
                    other => panic!("{other:?} among blocks"),
                });
                let found = found.collect();
                self.image.install_blocks(inode, first, last, found);
            }
            Miss::Links(inode) => {
                let found = range(&keys::links(inode)).into_iter();
                let found: BTreeSet<(InodeId, Name)> = found
                    .map(|(key, _)| match key {
                        ImageKey::Link { parent, name, .. } => (parent, name),
                        other => panic!("{other:?} among links"),
                    })
                    .collect();
                self.image.install_links(inode, found);
            }
            Miss::InodeNumbers => panic!("out of numbers"),
        }
    }

    /// Writes everything to the map.
    pub(super) fn flush(&mut self) {
        for inode in self.image.dirty_inodes() {
            loop {
                self.image.run(|image| image.settle_small(inode));
                let Some(job) = self.image.begin_write(inode, usize::MAX) else {
                    break;
                };
                let mut stored = Vec::new();
                for job in job.blocks {
                    let end = job.base.end().max(job.over.end());
                    let pieces = job.base.pieces(0, end, [Some(&job.over), None]);
                    stored.push((
                        job.index,
                        store_chunk(&self.chunks, join(&self.chunks, &pieces)),
                    ));
                }
                self.image.run(|image| image.finish_write(inode, stored));
            }
        }
        let applied = self.image.applied();
        let (changes, totals) = self.image.take_changes();
        for part in changes.clears() {
            let range = part.range();
            let inside = |key: &[u8]| range.start <= *key && *key < *range.end;
            self.store.retain(|key, _| !inside(key));
        }
        for (key, value) in changes.keys() {
            match value {
                Some(value) => self.store.insert(key.to_vec(), value.clone()),
                None => self.store.remove(key),
            };
        }
        self.totals = totals;
        self.image.set_durable(applied);
    }

    pub(super) fn inode(&mut self, path: &str) -> Result<InodeId, FsError> {
        let mut at = InodeId::ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let found = self.run(|image, cx| ops::lookup(image, cx, at, part.as_bytes()))?;
            at = found.object.inode;
        }
        Ok(at)
    }

    fn place<'p>(&mut self, path: &'p str) -> Result<(InodeId, &'p [u8]), FsError> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.inode(dir)?, name.as_bytes()))
    }

    fn make(&mut self, path: &str, node: &Node) -> Result<InodeId, FsError> {
        let (dir, name) = self.place(path)?;
        let attrs = SetAttrs::default();
        let made = self.run(|image, cx| ops::make(image, cx, dir, name, node, attrs))?;
        Ok(made.object.inode)
    }

    pub(super) fn mkdir(&mut self, path: &str) -> Result<InodeId, FsError> {
        self.make(path, &Node::Directory)
    }

    pub(super) fn fifo(&mut self, path: &str) -> Result<InodeId, FsError> {
        self.make(path, &Node::Fifo)
    }

    pub(super) fn symlink(&mut self, path: &str, target: &str) -> Result<InodeId, FsError> {
        self.make(
            path,
            &Node::Symlink(Bytes::copy_from_slice(target.as_bytes())),
        )
    }

    /// Writes a file anew, in place if it exists.
    pub(super) fn write(&mut self, path: &str, content: impl AsRef<[u8]>) -> Result<(), FsError> {
        let (dir, name) = self.place(path)?;
        let attrs = SetAttrs {
            size: Some(0),
            ..SetAttrs::default()
        };
        let made =
            self.run(|image, cx| ops::create(image, cx, dir, name, How::Unchecked(attrs)))?;
        if made.object.kind != FileKind::File {
            return Err(FsError::Exists);
        }
        self.write_at(made.object.inode, 0, content.as_ref())
    }

    fn write_at(&mut self, inode: InodeId, offset: u64, content: &[u8]) -> Result<(), FsError> {
        let data = Bytes::copy_from_slice(content);
        self.run(|image, cx| ops::write(image, cx, inode, offset, &data).map(drop))
    }

    /// Writes into a file.
    pub(super) fn patch(&mut self, path: &str, offset: u64, content: &[u8]) -> Result<(), FsError> {
        let inode = self.inode(path)?;
        self.write_at(inode, offset, content)
    }

    /// Writes a file as editors do: a new one, renamed over the old one.
    pub(super) fn save(&mut self, path: &str, content: impl AsRef<[u8]>) -> Result<(), FsError> {
        let temporary = format!("{path}.tmp");
        self.write(&temporary, content)?;
        self.mv(&temporary, path)
    }

    pub(super) fn mv(&mut self, from: &str, to: &str) -> Result<(), FsError> {
        let ((from_dir, from), (to_dir, to)) = (self.place(from)?, self.place(to)?);
        self.run(|image, cx| ops::rename(image, cx, from_dir, from, to_dir, to).map(drop))
    }

    pub(super) fn ln(&mut self, from: &str, to: &str) -> Result<(), FsError> {
        let inode = self.inode(from)?;
        let (dir, name) = self.place(to)?;
        self.run(|image, cx| ops::link(image, cx, inode, dir, name).map(drop))
    }

    pub(super) fn rm(&mut self, path: &str) -> Result<(), FsError> {
        let (dir, name) = self.place(path)?;
        self.run(|image, cx| ops::remove(image, cx, dir, name).map(drop))
    }

    pub(super) fn rmdir(&mut self, path: &str) -> Result<(), FsError> {
        let (dir, name) = self.place(path)?;
        self.run(|image, cx| ops::rmdir(image, cx, dir, name).map(drop))
    }

    /// Removes a tree.
    pub(super) fn rm_rf(&mut self, path: &str) -> Result<(), FsError> {
        for name in self.names(path)? {
            self.rm_rf(&format!("{path}/{name}"))?;
        }
        match self.rmdir(path) {
            Err(FsError::NotDirectory) => self.rm(path),
            done => done,
        }
    }

    /// The names in a directory; none if it is something else.
    fn names(&mut self, path: &str) -> Result<Vec<String>, FsError> {
        let dir = self.inode(path)?;
        self.flush();
        let mut names: Vec<String> = (entries(&self.store, dir).into_iter())
            .map(|(name, _)| name.to_string())
            .collect();
        names.sort();
        Ok(names)
    }

    fn set(&mut self, path: &str, attrs: SetAttrs) -> Result<(), FsError> {
        let inode = self.inode(path)?;
        self.run(|image, cx| ops::set_attributes(image, cx, inode, attrs, None).map(drop))
    }

    pub(super) fn chmod(&mut self, path: &str, mode: u32) -> Result<(), FsError> {
        let mode = Some(mode);
        self.set(
            path,
            SetAttrs {
                mode,
                ..SetAttrs::default()
            },
        )
    }

    pub(super) fn chown(&mut self, path: &str, uid: u32, gid: u32) -> Result<(), FsError> {
        let (uid, gid) = (Some(uid), Some(gid));
        self.set(
            path,
            SetAttrs {
                uid,
                gid,
                ..SetAttrs::default()
            },
        )
    }

    pub(super) fn truncate(&mut self, path: &str, size: u64) -> Result<(), FsError> {
        let size = Some(size);
        self.set(
            path,
            SetAttrs {
                size,
                ..SetAttrs::default()
            },
        )
    }

    pub(super) fn touch(&mut self, path: &str, seconds: u64) -> Result<(), FsError> {
        let mtime = SetTime::To(Timestamp::new(seconds, 0));
        self.set(
            path,
            SetAttrs {
                mtime,
                ..SetAttrs::default()
            },
        )
    }

    /// Everything, by path.
    pub(super) fn tree(&mut self) -> BTreeMap<String, Seen> {
        self.flush();
        let mut tree = BTreeMap::new();
        let mut left = vec![(String::new(), InodeId::ROOT)];
        while let Some((path, inode)) = left.pop() {
            let record = self.record(inode);
            if record.stat.is_dir() {
                for (name, entry) in entries(&self.store, inode) {
                    let below = match path.as_str() {
                        "" => name.to_string(),
                        _ => format!("{path}/{name}"),
                    };
                    left.push((below, entry.inode));
                }
            }
            let content = content_of(&self.store, &self.chunks, &record);
            let seen = Seen { record, content };
            tree.insert(path, seen);
        }
        tree
    }

    pub(super) fn record(&self, inode: InodeId) -> InodeRecord {
        let value = self.store.get(&keys::inode(inode));
        InodeRecord::decode(inode, value.unwrap_or_else(|| panic!("no {inode}"))).unwrap()
    }

    /// The tree as lines of text.
    pub(super) fn lines(&mut self) -> Vec<String> {
        let tree = self.tree();
        let line = |(path, seen): (&String, &Seen)| seen.line(path);
        tree.iter().skip(1).map(line).collect()
    }
}

/// A path's object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) record: InodeRecord,
    pub(super) content: Vec<u8>,
}

impl Seen {
    fn line(&self, path: &str) -> String {
        let stat = &self.record.stat;
        let text = String::from_utf8_lossy(&self.content);
        let mut line = match stat.kind {
            FileKind::Directory => format!("{path}/"),
            FileKind::File if text.len() > 60 => format!("{path} = {} bytes", text.len()),
            FileKind::File => format!("{path} = {}", text.replace('\n', "|")),
            FileKind::Symlink => format!("{path} -> {text}"),
            _ => format!("{path} {:?}", stat.kind),
        };
        let usual = match stat.kind {
            FileKind::Directory => 0o755,
            FileKind::Symlink => 0o777,
            _ => 0o644,
        };
        if stat.mode != usual {
            line += &format!(" {:o}", stat.mode);
        }
        if (stat.uid, stat.gid) != (0, 0) {
            line += &format!(" {}:{}", stat.uid, stat.gid);
        }
        if stat.nlink > 1 && !stat.is_dir() {
            line += &format!(" x{}", stat.nlink);
        }
        line
    }

    /// What must be the same whichever side is ours: everything but numbers.
    pub(super) fn without_numbers(mut self) -> Self {
        self.record.link = None;
        self.record.stat.inode = InodeId::ROOT;
        // It depends on how content came to be where it is stored.
        self.record.inline = None;
        self
    }
}

fn entries(store: &Pairs, dir: InodeId) -> Vec<(Name, Entry)> {
    let range = keys::entries_from(dir, 0);
    let pairs = store.range(range.start.to_vec()..range.end.to_vec());
    pairs
        .map(|(key, value)| match keys::decode(key).unwrap() {
            ImageKey::Entry { name, .. } => (name, Entry::decode(value).unwrap()),
            other => panic!("{other:?} among entries"),
        })
        .collect()
}

fn join(chunks: &Chunks, pieces: &[Piece]) -> Vec<u8> {
    let mut content = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Zero(length) => content.resize(content.len() + index(*length), 0),
            Piece::Bytes(bytes) => content.extend_from_slice(bytes),
            Piece::Chunk { id, offset, length } => {
                let chunk = chunks.lock().unwrap()[id].clone();
                content.extend_from_slice(&chunk[index(*offset)..index(offset + length)]);
            }
        }
    }
    content
}

pub(super) fn store_chunk(chunks: &Chunks, content: Vec<u8>) -> Block {
    let id = ChunkId::new(*blake3::hash(&content).as_bytes());
    let bytes = u32::try_from(content.len()).unwrap();
    chunks.lock().unwrap().insert(id, content.into());
    Block::chunk(id, bytes)
}

/// The content of a file, or the target of a link.
pub(super) fn content_of(store: &Pairs, chunks: &Chunks, record: &InodeRecord) -> Vec<u8> {
    let size = usize::try_from(record.stat.size).unwrap();
    match record.stat.kind {
        FileKind::File => {}
        FileKind::Symlink => return record.inline.clone().unwrap().to_vec(),
        _ => return Vec::new(),
    }
    let mut content = record.inline.clone().unwrap_or_default().to_vec();
    content.resize(size, 0);
    let range = keys::blocks_from(record.stat.inode, 0);
    for (key, value) in store.range(range.start.to_vec()..range.end.to_vec()) {
        let ImageKey::Block { index: at, .. } = keys::decode(key).unwrap() else {
            panic!("not a block: {key:?}");
        };
        let block = block::decode(value).unwrap();
        let part = join(chunks, &block.pieces(0, block.end(), [None, None]));
        let start = index(at) * index(BLOCK_BYTES);
        content[start..start + part.len()].copy_from_slice(&part);
    }
    content
}
