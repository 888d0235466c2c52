//! A filesystem over a map, driven by the real operations, and merges of three of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use base::{
    Caller, ChunkId, DomainId, InodeId, ManualClock, Name, Rng, SessionId, TenantId, Timestamp,
};
use bytes::Bytes;

use crate::check::{CheckOptions, check};
use crate::error::{FsError, Miss, OpError, OpResult};
use crate::image::{
    Block, Image, ImageConfig, InodeNumbers, LoadedEntry, NameHasher, Piece, Totals, Usage,
};
use crate::keyspace;
use crate::keyspace::image::{self as keys, ImageKey};
use crate::kv::memory::MemoryKv;
use crate::kv::{Isolation, KeyRange, Kv};
use crate::layers::{ImageError, Scanned};
use crate::merge::{
    Content, ContentError, Difference, Differences, ImageView, MergeError, MergeFuture, MergeInput,
    MergeOptions, Merged, Origin, Pair, Policy, ShortId, conflicts, merge,
};
use crate::ops::{self, Context, How, Node};
use crate::record::entry::Entry;
use crate::record::inode::InodeRecord;
use crate::record::session::{FlushRecord, Identity};
use crate::record::workspace::WorkspaceRecord;
use crate::record::{block, conflict::Conflict};
use crate::stat::{Device, FileKind, SetAttrs, SetTime, Stat};
use crate::store::{NewWorkspace, OpenSession, Store};

pub(super) const NAME_KEY: [u8; 32] = [7; 32];
pub(super) const BLOCK_BYTES: u32 = 16_384;
const NUMBERS: u64 = 1 << 20;

type Pairs = BTreeMap<Vec<u8>, Bytes>;
type Chunks = Arc<Mutex<HashMap<ChunkId, Bytes>>>;

/// A filesystem.
#[derive(Debug)]
pub(super) struct Fs {
    pub(super) store: Pairs,
    pub(super) totals: Totals,
    image: Image,
    chunks: Chunks,
    now: u64,
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

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap()
}

impl Fs {
    pub(super) fn new() -> Self {
        let time = Timestamp::new(1000, 0);
        let root = InodeRecord {
            stat: Stat {
                inode: InodeId::ROOT,
                kind: FileKind::Directory,
                mode: 0o755,
                nlink: 2,
                uid: 0,
                gid: 0,
                size: 4096,
                used: 0,
                device: Device::default(),
                atime: time,
                mtime: time,
                ctime: time,
            },
            entries: 0,
            link: None,
            verifier: None,
            inline: None,
        };
        let store = Pairs::from([(keys::inode(InodeId::ROOT), root.encode())]);
        Self::over(store, Usage::default(), Chunks::default(), 1, 2000)
    }

    fn over(store: Pairs, usage: Usage, chunks: Chunks, block: u64, now: u64) -> Self {
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
    fn run<T>(
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

fn store_chunk(chunks: &Chunks, content: Vec<u8>) -> Block {
    let id = ChunkId::new(*blake3::hash(&content).as_bytes());
    let bytes = u32::try_from(content.len()).unwrap();
    chunks.lock().unwrap().insert(id, content.into());
    Block::chunk(id, bytes)
}

/// The content of a file, or the target of a link.
fn content_of(store: &Pairs, chunks: &Chunks, record: &InodeRecord) -> Vec<u8> {
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

/// A map as an image that cannot change.
#[derive(Debug)]
struct View<'a>(&'a Pairs);

impl ImageView for View<'_> {
    fn get<'a>(&'a self, key: &'a [u8]) -> MergeFuture<'a, Option<Bytes>, ImageError> {
        Box::pin(async { Ok(self.0.get(key).cloned()) })
    }

    /// Short pages, so that reading goes on over their ends.
    fn scan<'a>(
        &'a self,
        range: &'a KeyRange,
        pairs_max: usize,
    ) -> MergeFuture<'a, Scanned, ImageError> {
        let mut pairs = self.0.range(range.start.to_vec()..range.end.to_vec());
        let page: Vec<(Bytes, Bytes)> = pairs
            .by_ref()
            .take(pairs_max.min(2))
            .map(|(key, value)| (Bytes::copy_from_slice(key), value.clone()))
            .collect();
        let covered_to = pairs.next().and(page.last().map(|(key, _)| key.clone()));
        Box::pin(async {
            Ok(Scanned {
                pairs: page,
                covered_to,
            })
        })
    }
}

/// Differences of two maps.
#[derive(Debug)]
struct Between(std::vec::IntoIter<Difference>);

impl Between {
    fn new(base: &Pairs, side: &Pairs) -> Self {
        let all: BTreeSet<&Vec<u8>> = base.keys().chain(side.keys()).collect();
        let difference = |key: &Vec<u8>| {
            let (old, new) = (base.get(key).cloned(), side.get(key).cloned());
            let key = Bytes::copy_from_slice(key);
            (old != new).then_some(Difference { key, old, new })
        };
        let found: Vec<Difference> = all.into_iter().filter_map(difference).collect();
        Self(found.into_iter())
    }
}

impl Differences for Between {
    fn next(&mut self) -> MergeFuture<'_, Option<Difference>, ImageError> {
        Box::pin(async { Ok(self.0.next()) })
    }
}

/// Content of the three maps.
#[derive(Debug)]
pub(super) struct Files<'a> {
    base: &'a Pairs,
    sides: Pair<&'a Pairs>,
    chunks: &'a Chunks,
}

/// The content of three filesystems.
pub(super) fn files<'a>(base: &'a Fs, ours: &'a Fs, theirs: &'a Fs) -> Files<'a> {
    Files {
        base: &base.store,
        sides: Pair {
            ours: &ours.store,
            theirs: &theirs.store,
        },
        chunks: &base.chunks,
    }
}

impl Content for Files<'_> {
    fn read<'a>(
        &'a self,
        origin: Origin,
        inode: InodeId,
        record: &'a InodeRecord,
    ) -> MergeFuture<'a, Bytes, ContentError> {
        let store = match origin {
            Origin::Base => self.base,
            Origin::Of(side) => self.sides.of(side),
        };
        assert_eq!(record.stat.inode, inode);
        assert_eq!(store.get(&keys::inode(inode)), Some(&record.encode()));
        Box::pin(async { Ok(content_of(store, self.chunks, record).into()) })
    }

    fn store(&self, content: Bytes) -> MergeFuture<'_, Vec<(u32, Block)>, ContentError> {
        let parts = content.chunks(index(BLOCK_BYTES)).enumerate();
        let blocks = parts.map(|(at, part)| {
            (
                u32::try_from(at).unwrap(),
                store_chunk(self.chunks, part.to_vec()),
            )
        });
        let blocks = blocks.collect();
        Box::pin(async { Ok(blocks) })
    }
}

pub(super) fn options(policy: Policy) -> MergeOptions {
    MergeOptions {
        policy,
        hasher: NameHasher::new(NAME_KEY),
        labels: Pair {
            ours: ShortId::new("o1").unwrap(),
            theirs: ShortId::new("t1").unwrap(),
        },
        unite_execute_bits: false,
    }
}

/// Runs a future that never waits.
pub(super) fn now<T>(future: impl Future<Output = T>) -> T {
    use futures_util::FutureExt;
    future.now_or_never().expect("maps do not wait")
}

/// Merges, and says nothing of the result.
pub(super) fn try_merge(
    base: &mut Fs,
    ours: &mut Fs,
    theirs: &mut Fs,
    options: &MergeOptions,
    numbers: &mut InodeNumbers,
) -> Result<Merged, MergeError> {
    for fs in [&mut *base, ours, theirs] {
        fs.flush();
    }
    let (our_view, their_view) = (View(&ours.store), View(&theirs.store));
    let files = files(base, ours, theirs);
    let differences = || {
        (
            Between::new(&base.store, &ours.store),
            Between::new(&base.store, &theirs.store),
        )
    };
    let input = |differences: &mut (Between, Between), act: &mut dyn FnMut(MergeInput<'_>)| {
        act(MergeInput {
            views: Pair {
                ours: &our_view,
                theirs: &their_view,
            },
            differences: Pair {
                ours: &mut differences.0,
                theirs: &mut differences.1,
            },
            content: &files,
        });
    };
    let (mut warned, mut merged) = (None, None);
    input(&mut differences(), &mut |input| {
        warned = Some(now(conflicts(input, options)));
    });
    input(&mut differences(), &mut |input| {
        merged = Some(now(merge(input, options, numbers)));
    });
    let (warned, merged) = (warned.unwrap(), merged.unwrap()?);
    // A warning says what the merge says, but for inodes that are not made yet.
    let known = |conflicts: &[Conflict]| -> Vec<Conflict> {
        let mut conflicts = conflicts.to_vec();
        for aside in conflicts.iter_mut().filter_map(|it| it.aside.as_mut()) {
            aside.inode = InodeId::ROOT;
        }
        conflicts
    };
    assert_eq!(known(&warned?), known(&merged.conflicts));
    Ok(merged)
}

/// Merges, and checks that the result is sound. Conflicts are compared with those in the image.
pub(super) fn merge_with(
    base: &mut Fs,
    ours: &mut Fs,
    theirs: &mut Fs,
    options: &MergeOptions,
) -> (Fs, Merged) {
    for fs in [&mut *base, ours, theirs] {
        fs.flush();
    }
    // Numbers that none of the three has.
    let number = |key: &Vec<u8>| keys::decode(key).unwrap().inode().raw();
    let stores = [&base.store, &ours.store, &theirs.store].into_iter();
    let block = 1 + stores.flat_map(Pairs::keys).map(number).max().unwrap() / NUMBERS;
    let mut numbers = InodeNumbers {
        next: block * NUMBERS,
        end: (block + 1) * NUMBERS,
    };
    let merged = try_merge(base, ours, theirs, options, &mut numbers).unwrap();
    let mut store = ours.store.clone();
    for (key, value) in &merged.delta {
        let before = match value {
            Some(value) => store.insert(key.to_vec(), value.clone()),
            None => store.remove(&key[..]),
        };
        assert_ne!(
            before.as_ref(),
            value.as_ref(),
            "{:?} did not change",
            keys::decode(key)
        );
    }
    let usage = Usage {
        bytes: ours
            .totals
            .usage
            .bytes
            .checked_add_signed(merged.bytes)
            .unwrap(),
        inodes: ours
            .totals
            .usage
            .inodes
            .checked_add_signed(merged.inodes)
            .unwrap(),
    };
    let chunks = Arc::clone(&ours.chunks);
    let now = ours.now.max(theirs.now);
    let mut result = Fs::over(store, usage, chunks, block + 1, now);
    assert_sound(&mut result);
    if options.policy == Policy::KeepBoth {
        let key = |conflict: &Conflict| keys::conflict(&Conflict::id(&conflict.encode()));
        for conflict in &merged.conflicts {
            let stored = &result.store[&key(conflict)];
            assert_eq!(&Conflict::decode(stored).unwrap(), conflict);
        }
    }
    // Without a result there are no places in it.
    let placed = merged
        .conflicts
        .iter()
        .filter(|_| options.policy != Policy::Fail);
    for conflict in placed {
        let told = [Some(&conflict.place), conflict.aside.as_ref()];
        for place in told.into_iter().flatten() {
            let path = String::from_utf8_lossy(&place.path).into_owned();
            if result.store.contains_key(&keys::inode(place.inode)) {
                assert_eq!(result.inode(&path), Ok(place.inode), "{conflict:?}");
            }
        }
    }
    (result, merged)
}

/// Conflicts as lines of text.
pub(super) fn told(merged: &Merged) -> Vec<String> {
    let line = |conflict: &Conflict| {
        let path = |path: &Bytes| String::from_utf8_lossy(path).into_owned();
        let mut line = format!("{} {}", conflict.kind.word(), path(&conflict.place.path));
        if let Some(aside) = &conflict.aside {
            line += &format!(" beside {}", path(&aside.path));
        }
        let has = |version: bool, letter: &str| {
            if version {
                letter.to_owned()
            } else {
                "-".into()
            }
        };
        let versions = has(conflict.base.is_some(), "b")
            + &has(conflict.ours.is_some(), "o")
            + &has(conflict.theirs.is_some(), "t");
        format!("{line} {versions} {:?}", conflict.resolution)
    };
    merged.conflicts.iter().map(line).collect()
}

/// Whether the real check finds nothing wrong with an image that is a session's.
pub(super) fn assert_sound(fs: &mut Fs) {
    fs.flush();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let problems = runtime.block_on(problems(fs));
    assert!(problems.is_empty(), "{problems}\n{:#?}", fs.lines());
}

async fn problems(fs: &Fs) -> String {
    let clock = Arc::new(ManualClock::new(Timestamp::new(1_000_000, 0)));
    let kv: Arc<dyn Kv> = Arc::new(MemoryKv::new(clock.clone()));
    let store = Store::open(Arc::clone(&kv), clock, Arc::new(Rng::seeded(1)))
        .await
        .unwrap();
    let new = NewWorkspace {
        name: "w".into(),
        root: (0o755, 0, 0),
    };
    let workspace = store
        .create_workspace(TenantId::DEFAULT, new)
        .await
        .unwrap();
    let open = OpenSession {
        workspace: "w".into(),
        read_only: false,
        identity: Identity::Passthrough,
        agent: String::new(),
        run: String::new(),
        ttl_seconds: None,
    };
    let opened = store.open_session(TenantId::DEFAULT, open).await.unwrap();
    let session: SessionId = opened.session.id;
    let mut txn = kv.begin();
    let key = keyspace::workspace(workspace.id);
    let value = txn.get(&key, Isolation::Snapshot).await.unwrap().unwrap();
    let record = WorkspaceRecord {
        name_key: NAME_KEY,
        block_bytes: BLOCK_BYTES,
        ..WorkspaceRecord::decode(&value).unwrap()
    };
    txn.set(&key, &record.encode());
    txn.set(
        &keyspace::inodes(workspace.id),
        &(1_u64 << 40).to_le_bytes(),
    );
    let key = keyspace::session_flush(session);
    let value = txn.get(&key, Isolation::Snapshot).await.unwrap();
    let flush = value.map(|value| FlushRecord::decode(&value).unwrap());
    let flush = FlushRecord {
        totals: Totals {
            usage: fs.totals.usage,
            numbers: InodeNumbers::default(),
        },
        ..flush.unwrap_or_default()
    };
    txn.set(&key, &flush.encode());
    let prefix = keyspace::delta(session, 1);
    for (key, value) in &fs.store {
        txn.set(&[&prefix[..], key].concat(), &[&[1], &value[..]].concat());
    }
    txn.commit().await.unwrap();
    let chunks = fs.chunks.lock().unwrap().clone();
    let exists = |_: DomainId, id: ChunkId| chunks.contains_key(&id);
    let options = CheckOptions {
        trees: None,
        chunk_exists: Some(&exists),
        progress: None,
    };
    let report = check(kv.as_ref(), options).await.unwrap();
    report.problems.iter().map(|it| format!("{it}\n")).collect()
}
