//! `metadata::Image` as a subject: the smallest engine around it that can crash.
//!
//! A map plays the store. Flushes take effect in two steps, so that calls run while one is under
//! way; what the image misses is loaded from the map in pages of random size, sometimes long before
//! it is asked for; data is written back by hand. Nothing here waits or runs at the same time as
//! anything else: the order of events is the workload's.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use base::{ChunkId, InodeId, Name, Timestamp};
use bytes::Bytes;
use metadata::image::{
    Block, BlockJob, Changes, Image, ImageConfig, InodeNumbers, LoadedEntry, Piece, Ran, Totals,
    Usage, WriteJob,
};
use metadata::keyspace::image::{self as keys, ImageKey};
use metadata::kv::KeyRange;
use metadata::ops::{self, Access, Context, Created, Found, How, Linked, Node, Removed, Renamed};
use metadata::record::entry::Entry;
use metadata::record::inode::InodeRecord;
use metadata::stat::{Device, FileKind, SetAttrs, Stat, Wcc};
use metadata::{FsError, Miss, OpError, OpResult};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::subject::{ListReply, Listed, ReadReply, Subject};

/// What the map that plays the store holds.
pub type Store = BTreeMap<Vec<u8>, Bytes>;

/// Loads for one operation after which it is taken to loop.
const LOADS_MAX: u32 = 1_000;
/// Loads kept back to be installed later.
const EARLY_LOADS_MAX: usize = 4;
/// First inode number given out.
const FIRST_NUMBER: u64 = 2;
/// Times of the root when nobody has changed it.
const ROOT_TIME: Timestamp = Timestamp::new(1_000, 0);

/// The attributes of a root directory that nobody has changed.
#[must_use]
pub fn root_stat() -> Stat {
    Stat {
        inode: InodeId::ROOT,
        kind: FileKind::Directory,
        mode: 0o777,
        nlink: 2,
        uid: 0,
        gid: 0,
        size: crate::model::Model::directory_bytes(),
        used: 0,
        device: Device::default(),
        atime: ROOT_TIME,
        mtime: ROOT_TIME,
        ctime: ROOT_TIME,
    }
}

/// A flush that has begun.
#[derive(Debug)]
struct Flush {
    changes: Changes,
    totals: Totals,
    applied: u64,
}

/// Something read from the store and not installed yet.
#[derive(Debug)]
struct EarlyLoad {
    evictions: u64,
    what: Loaded,
}

#[derive(Debug)]
enum Loaded {
    Inode(InodeId, Option<Box<InodeRecord>>),
    Entries(InodeId, u64, u64, Vec<LoadedEntry>),
    Blocks(InodeId, u32, u32, Vec<(u32, Block)>),
    Links(InodeId, BTreeSet<(InodeId, Name)>),
}

/// A write-back that was begun, with the state of the file it began from.
#[derive(Debug)]
struct Writing {
    job: WriteJob,
    version: u64,
}

/// An image over a map.
#[derive(Debug)]
pub struct ImageSubject {
    image: Image,
    config: ImageConfig,
    hash_bits: Option<u32>,
    store: Store,
    totals: Totals,
    chunks: HashMap<ChunkId, Bytes>,
    flush: Option<Flush>,
    writing: BTreeMap<InodeId, Writing>,
    early: Vec<EarlyLoad>,
    next_numbers: u64,
    rng: ChaCha8Rng,
    ran: Ran,
    complaints: Vec<String>,
}

impl ImageSubject {
    /// An empty filesystem; with `hash_bits` its name hashes have so few bits that names collide.
    #[must_use]
    pub fn new(config: ImageConfig, hash_bits: Option<u32>, seed: u64) -> Self {
        let totals = Totals {
            usage: Usage {
                bytes: 0,
                inodes: 1,
            },
            numbers: InodeNumbers {
                next: FIRST_NUMBER,
                end: FIRST_NUMBER,
            },
        };
        Self {
            image: new_image(&config, totals, hash_bits),
            config,
            hash_bits,
            store: Store::new(),
            totals,
            chunks: HashMap::new(),
            flush: None,
            writing: BTreeMap::new(),
            early: Vec::new(),
            next_numbers: FIRST_NUMBER,
            rng: ChaCha8Rng::seed_from_u64(seed),
            ran: Ran {
                durable_after: 0,
                changed: false,
            },
            complaints: Vec::new(),
        }
    }

    /// The image.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// What is durable.
    #[must_use]
    pub fn durable(&self) -> (&Store, &Totals) {
        (&self.store, &self.totals)
    }

    /// What the last call's reply has to wait for.
    #[must_use]
    pub fn ran(&self) -> Ran {
        self.ran
    }

    /// Broken promises seen since the last call of this.
    pub fn take_complaints(&mut self) -> Vec<String> {
        std::mem::take(&mut self.complaints)
    }

    /// Begins a flush, unless one is under way. Returns whether it did.
    pub fn begin_flush(&mut self) -> bool {
        if self.flush.is_some() {
            return false;
        }
        let (changes, totals) = self.image.take_changes();
        if changes.bytes() == 0 && !changes.is_empty() {
            self.complain("changes weigh nothing");
        }
        self.flush = Some(Flush {
            changes,
            totals,
            applied: self.image.applied(),
        });
        true
    }

    /// Completes the flush that is under way. Returns whether there was one.
    pub fn finish_flush(&mut self) -> bool {
        let Some(flush) = self.flush.take() else {
            return false;
        };
        self.apply(&flush);
        self.image.set_durable(flush.applied);
        true
    }

    /// Loses everything that is not durable. The flush that is under way takes effect first if
    /// `finish_flush`, otherwise it never happened.
    pub fn crash(&mut self, finish_flush: bool, read_only: bool) {
        if let Some(flush) = self.flush.take()
            && finish_flush
        {
            self.apply(&flush);
        }
        self.writing.clear();
        self.early.clear();
        self.config.read_only = read_only;
        self.image = new_image(&self.config, self.totals, self.hash_bits);
    }

    fn apply(&mut self, flush: &Flush) {
        for part in flush.changes.clears() {
            let range = part.range();
            let doomed: Vec<Vec<u8>> = self.scan(&range).map(|(key, _)| key.to_vec()).collect();
            for key in doomed {
                self.store.remove(&key);
            }
        }
        for (key, value) in flush.changes.keys() {
            match value {
                Some(value) => self.store.insert(key.to_vec(), value.clone()),
                None => self.store.remove(key),
            };
        }
        self.totals = flush.totals;
    }

    /// Drops what is durable from memory until about `target` bytes are left.
    pub fn evict(&mut self, target: usize) {
        self.image.evict(target);
    }

    /// Settles what is small of a file. Returns whether nothing of it is unwritten now.
    pub fn settle_small(&mut self, inode: InodeId) -> bool {
        let (all, _) = self.image.run(|image| image.settle_small(inode));
        if all && self.image.has_unwritten(inode) {
            self.complain("settled all of a file that has unwritten data");
        }
        all
    }

    /// Begins a write-back of a file in state `version`, if it has something to write and none is
    /// under way.
    pub fn begin_write(&mut self, inode: InodeId, version: u64, bytes_max: usize) {
        let Some(job) = self.image.begin_write(inode, bytes_max) else {
            return;
        };
        if job.blocks.is_empty() {
            self.complain("a write-back of nothing");
        }
        let job = Writing { job, version };
        if self.writing.insert(inode, job).is_some() {
            self.complain("two write-backs of one file");
        }
    }

    /// Files with a write-back under way.
    #[must_use]
    pub fn writing(&self) -> Vec<InodeId> {
        self.writing.keys().copied().collect()
    }

    /// Completes a write-back. Returns the blocks it stored, and the file's state they are from.
    pub fn finish_write(&mut self, inode: InodeId) -> Option<(Vec<u64>, u64)> {
        let Writing { job, version } = self.writing.remove(&inode)?;
        let stored: Vec<(u32, Block)> = job
            .blocks
            .iter()
            .map(|job| (job.index, self.store_block(job)))
            .collect();
        let indices = stored.iter().map(|(at, _)| u64::from(*at)).collect();
        let ((), _) = self.image.run(|image| image.finish_write(inode, stored));
        Some((indices, version))
    }

    /// Gives a write-back up.
    pub fn abandon_write(&mut self, inode: InodeId) {
        if self.writing.remove(&inode).is_some() {
            self.image.abandon_write(inode);
        }
    }

    /// Gives a file's unwritten data up, as after a full disk. Returns whether there was any.
    pub fn discard(&mut self, inode: InodeId) -> bool {
        self.abandon_write(inode);
        let unwritten = self.image.has_unwritten(inode);
        let ((), ran) = self.image.run(|image| image.discard_unwritten(inode));
        if ran.changed != unwritten {
            self.complain("a loss was not recorded");
        }
        unwritten
    }

    fn store_block(&mut self, job: &BlockJob) -> Block {
        if let Some(block) = job.base.absorb(&job.over)
            && self.rng.random_bool(0.5)
        {
            return block;
        }
        let end = job.base.end().max(job.over.end());
        let pieces = job.base.pieces(0, end, [Some(&job.over), None]);
        let content = self.join(&pieces);
        let mut name = [0; 32];
        let number = u64::try_from(self.chunks.len()).unwrap_or(u64::MAX);
        if let Some(head) = name.first_chunk_mut() {
            *head = number.to_be_bytes();
        }
        let id = ChunkId::new(name);
        self.chunks.insert(id, content);
        Block::chunk(id, end)
    }

    /// The bytes that pieces stand for.
    fn join(&mut self, pieces: &[Piece]) -> Bytes {
        let mut joined = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Zero(length) => joined.resize(joined.len() + index(*length), 0),
                Piece::Bytes(bytes) => joined.extend_from_slice(bytes),
                Piece::Chunk { id, offset, length } => {
                    let range = index(*offset)..index(*offset) + index(*length);
                    match self.chunks.get(id).and_then(|chunk| chunk.get(range)) {
                        Some(part) => joined.extend_from_slice(part),
                        None => self.complaints.push(format!("no such part: {piece:?}")),
                    }
                }
            }
        }
        Bytes::from(joined)
    }

    fn complain(&mut self, what: &str) {
        self.complaints.push(what.to_owned());
    }

    /// Runs an operation, and loads what it misses until it answers.
    fn run<T>(
        &mut self,
        mut operation: impl FnMut(&mut Image) -> OpResult<T>,
    ) -> Result<T, FsError> {
        for _ in 0..LOADS_MAX {
            let (result, ran) = self.image.run(&mut operation);
            self.ran = ran;
            if ran.durable_after > self.image.applied() {
                self.complain("a reply waits for a change that never happened");
            }
            match result {
                Ok(reply) => return Ok(reply),
                Err(OpError::Fs(error)) => {
                    if ran.changed {
                        self.complain("a failed operation changed the image");
                    }
                    return Err(error);
                }
                Err(OpError::Miss(miss)) => {
                    if ran.changed {
                        self.complain("an operation that missed something changed the image");
                    }
                    self.load(miss);
                }
            }
        }
        self.complain("an operation misses without end");
        Err(FsError::Corrupt)
    }

    fn scan(&self, range: &KeyRange) -> impl Iterator<Item = (&[u8], &Bytes)> {
        let bounds = range.start.to_vec()..range.end.to_vec();
        self.store
            .range(bounds)
            .map(|(key, value)| (key.as_slice(), value))
    }

    /// Loads what is missed.
    fn load(&mut self, miss: Miss) {
        if miss == Miss::InodeNumbers {
            let next = self.next_numbers;
            self.next_numbers += self.rng.random_range(1..20);
            let end = self.next_numbers;
            self.image.add_numbers(InodeNumbers { next, end });
            return;
        }
        match self.fetch(miss) {
            Ok(loaded) => self.install(loaded),
            Err(error) => self.complaints.push(error),
        }
    }

    /// Reads something from the store now, to install it later.
    pub fn load_early(&mut self, miss: Miss) {
        if self.early.len() < EARLY_LOADS_MAX {
            match self.fetch(miss) {
                Ok(what) => self.early.push(EarlyLoad {
                    evictions: self.image.evictions(),
                    what,
                }),
                Err(error) => self.complaints.push(error),
            }
        }
    }

    /// Installs what was read early, if it may still be installed.
    pub fn install_early(&mut self) {
        for EarlyLoad { evictions, what } in std::mem::take(&mut self.early) {
            if evictions == self.image.evictions() {
                self.install(what);
            }
        }
    }

    fn install(&mut self, loaded: Loaded) {
        match loaded {
            Loaded::Inode(inode, record) => self.image.install_inode(inode, record.map(|it| *it)),
            Loaded::Entries(dir, first, last, found) => {
                self.image.install_entries(dir, first, last, found);
            }
            Loaded::Blocks(inode, first, last, found) => {
                self.image.install_blocks(inode, first, last, found);
            }
            Loaded::Links(inode, found) => self.image.install_links(inode, found),
        }
    }

    fn fetch(&mut self, miss: Miss) -> Result<Loaded, String> {
        match miss {
            Miss::Inode(inode) => self.fetch_inode(inode),
            Miss::Entries { dir, from } => self.fetch_entries(dir, from),
            Miss::Blocks { inode, first, last } => {
                let missed = first;
                let first = first.saturating_sub(self.rng.random_range(0..2));
                // Perhaps not all that is missed, or more.
                let last = match self.rng.random_range(0..3) {
                    0 => missed,
                    more => last.saturating_add(more),
                };
                let mut found = Vec::new();
                for (key, value) in self.scan(&keys::blocks(inode, first, last)) {
                    if let Ok(ImageKey::Block { index, .. }) = keys::decode(key) {
                        let block = metadata::record::block::decode(value);
                        found.push((index, block.map_err(|error| error.to_string())?));
                    }
                }
                Ok(Loaded::Blocks(inode, first, last, found))
            }
            Miss::Links(inode) => {
                let mut found = BTreeSet::new();
                for (key, _) in self.scan(&keys::links(inode)) {
                    if let Ok(ImageKey::Link { parent, name, .. }) = keys::decode(key) {
                        found.insert((parent, name));
                    }
                }
                Ok(Loaded::Links(inode, found))
            }
            Miss::Conflict(_) => Err("nothing resolves conflicts here".to_owned()),
            Miss::InodeNumbers => Err("inode numbers are not in the store".to_owned()),
        }
    }

    fn fetch_inode(&self, inode: InodeId) -> Result<Loaded, String> {
        let record = match self.store.get(&keys::inode(inode)) {
            Some(value) => Some(
                InodeRecord::decode(inode, value).map_err(|error| format!("{inode:?}: {error}"))?,
            ),
            None if inode == InodeId::ROOT => Some(InodeRecord {
                stat: root_stat(),
                entries: 0,
                link: None,
                verifier: None,
                inline: None,
            }),
            None => None,
        };
        Ok(Loaded::Inode(inode, record.map(Box::new)))
    }

    fn fetch_entries(&mut self, dir: InodeId, from: u64) -> Result<Loaded, String> {
        let page = self.rng.random_range(1..6_usize);
        let mut found: Vec<LoadedEntry> = Vec::new();
        let mut last = u64::MAX;
        for (key, value) in self.scan(&keys::entries_from(dir, from)) {
            let Ok(ImageKey::Entry { hash, name, .. }) = keys::decode(key) else {
                return Err(format!("not an entry: {key:?}"));
            };
            // Names with one hash are not split.
            if let Some(before) = found.last()
                && found.len() >= page
                && before.hash != hash
            {
                last = before.hash;
                break;
            }
            let entry = Entry::decode(value).map_err(|error| error.to_string())?;
            found.push(LoadedEntry { hash, name, entry });
        }
        Ok(Loaded::Entries(dir, from, last, found))
    }

    /// Stores all data of a file and makes it durable, as COMMIT has to. The caller has seen to
    /// it that no write-back of the file and no flush is under way.
    pub fn store_all(&mut self, inode: InodeId) {
        while !self.settle_small(inode) {
            self.begin_write(inode, 0, usize::MAX);
            if self.finish_write(inode).is_none() {
                self.complain("a file's data cannot be written");
                return;
            }
        }
    }
}

fn new_image(config: &ImageConfig, totals: Totals, hash_bits: Option<u32>) -> Image {
    let mut image = Image::new(config.clone(), totals);
    if let Some(bits) = hash_bits {
        image.coarsen_names(bits);
    }
    image
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl Subject for ImageSubject {
    fn getattr(&mut self, _: Context<'_>, inode: InodeId) -> Result<Stat, FsError> {
        self.run(|image| ops::getattr(image, inode))
    }

    fn setattr(
        &mut self,
        cx: Context<'_>,
        inode: InodeId,
        attrs: SetAttrs,
        guard: Option<Timestamp>,
    ) -> Result<Wcc, FsError> {
        self.run(|image| ops::set_attributes(image, cx, inode, attrs, guard))
    }

    fn lookup(&mut self, cx: Context<'_>, dir: InodeId, name: &[u8]) -> Result<Found, FsError> {
        self.run(|image| ops::lookup(image, cx, dir, name))
    }

    fn access(&mut self, cx: Context<'_>, inode: InodeId) -> Result<(Access, Stat), FsError> {
        self.run(|image| ops::access(image, cx, inode))
    }

    fn readlink(&mut self, _: Context<'_>, inode: InodeId) -> Result<(Bytes, Stat), FsError> {
        self.run(|image| ops::readlink(image, inode))
    }

    fn read(
        &mut self,
        cx: Context<'_>,
        inode: InodeId,
        offset: u64,
        count: u32,
    ) -> Result<ReadReply, FsError> {
        let read = self.run(|image| ops::read(image, cx, inode, offset, count))?;
        let data = self.join(&read.pieces);
        if data.len() != index(read.count) {
            self.complain("pieces do not add up to the count");
        }
        Ok(ReadReply {
            file: read.file,
            data,
            end: read.end,
        })
    }

    fn write(
        &mut self,
        cx: Context<'_>,
        inode: InodeId,
        offset: u64,
        data: &Bytes,
        stable: bool,
    ) -> Result<Wcc, FsError> {
        let written = self.run(|image| ops::write(image, cx, inode, offset, data))?;
        if stable {
            let ran = self.ran;
            self.commit(cx, inode)?;
            self.ran = ran;
            let after = self.getattr(cx, inode)?;
            return Ok(Wcc {
                before: written.file.before,
                after,
            });
        }
        Ok(written.file)
    }

    fn commit(&mut self, cx: Context<'_>, inode: InodeId) -> Result<(), FsError> {
        self.getattr(cx, inode)?;
        self.abandon_write(inode);
        self.store_all(inode);
        self.finish_flush();
        self.begin_flush();
        self.finish_flush();
        Ok(())
    }

    fn create(
        &mut self,
        cx: Context<'_>,
        dir: InodeId,
        name: &[u8],
        how: How,
    ) -> Result<Created, FsError> {
        self.run(|image| ops::create(image, cx, dir, name, how))
    }

    fn make(
        &mut self,
        cx: Context<'_>,
        dir: InodeId,
        name: &[u8],
        node: &Node,
        attrs: SetAttrs,
    ) -> Result<Created, FsError> {
        self.run(|image| ops::make(image, cx, dir, name, node, attrs))
    }

    fn remove(&mut self, cx: Context<'_>, dir: InodeId, name: &[u8]) -> Result<Removed, FsError> {
        self.run(|image| ops::remove(image, cx, dir, name))
    }

    fn rmdir(&mut self, cx: Context<'_>, dir: InodeId, name: &[u8]) -> Result<Removed, FsError> {
        self.run(|image| ops::rmdir(image, cx, dir, name))
    }

    fn rename(
        &mut self,
        cx: Context<'_>,
        (from_dir, from_name): (InodeId, &[u8]),
        (to_dir, to_name): (InodeId, &[u8]),
    ) -> Result<Renamed, FsError> {
        self.run(|image| ops::rename(image, cx, from_dir, from_name, to_dir, to_name))
    }

    fn link(
        &mut self,
        cx: Context<'_>,
        inode: InodeId,
        dir: InodeId,
        name: &[u8],
    ) -> Result<Linked, FsError> {
        self.run(|image| ops::link(image, cx, inode, dir, name))
    }

    fn list(
        &mut self,
        cx: Context<'_>,
        dir: InodeId,
        cookie: u64,
        count: usize,
    ) -> Result<ListReply, FsError> {
        let with_attributes: bool = self.rng.random();
        let mut entries: Vec<Listed> = Vec::new();
        let mut differs = None;
        let listing = self.run(|image| {
            entries.clear();
            let mut take = |hash, group: &[(Name, Entry)]| {
                // Names with one cookie are not split, so that none is lost between two replies.
                if !entries.is_empty() && entries.len() + group.len() > count {
                    return false;
                }
                entries.extend(group.iter().map(|(name, entry)| Listed {
                    cookie: metadata::image::cookie_of(hash),
                    name: name.as_bytes().to_vec(),
                    inode: entry.inode,
                    kind: Some(entry.kind),
                }));
                true
            };
            if !with_attributes {
                return ops::list(image, cx, dir, cookie, take);
            }
            ops::list_with(image, cx, dir, cookie, |hash, group, peek| {
                for (_, entry) in group {
                    let kind = peek.stat(entry.inode).map(|stat| stat.map(|it| it.kind));
                    if kind.is_some_and(|kind| kind != Some(entry.kind)) {
                        differs = Some(*entry);
                    }
                }
                take(hash, group)
            })
        })?;
        if let Some(entry) = differs {
            self.complain(&format!("{entry:?} is something else"));
        }
        Ok(ListReply {
            dir: listing.dir,
            parent: Some(listing.parent),
            entries,
            end: listing.end,
        })
    }
}
