//! A session that is told what to do in lines of text, and whose image becomes snapshots.

use std::collections::HashMap;
use std::sync::Arc;

use base::{Caller, ChunkId, Clock, DomainId, ManualClock, SessionId, Timestamp};
use bytes::Bytes;

use crate::error::{FsError, Miss, OpError, OpResult};
use crate::image::{Block, BlockJob, Image, ImageConfig, InodeNumbers, NameHasher, Piece, Totals};
use crate::kv::Kv;
use crate::kv::memory::MemoryKv;
use crate::layers::{Base, LayerId, Layers};
use crate::ops::{self, Context, How, Node};
use crate::record::inode::InodeRecord;
use crate::session::{fold, load};
use crate::stat::{Device, SetAttrs, SetTime};
use crate::tree::{MemoryNodes, MemoryTrees, Root, Tree, TreeKeys, Trees};
use base::InodeId;

pub(crate) const BLOCK_BYTES: u32 = 32 * 1024;

const NAME_KEY: [u8; 32] = [3; 32];

pub(crate) struct World {
    kv: Arc<dyn Kv>,
    clock: Arc<ManualClock>,
    layers: Layers,
    image: Image,
    pub(crate) nodes: Arc<MemoryNodes>,
    pub(crate) keys: TreeKeys,
    pub(crate) tree: Tree,
    pub(crate) hasher: NameHasher,
    pub(crate) chunks: HashMap<ChunkId, Vec<u8>>,
}

impl World {
    pub(crate) fn new() -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::new(1_000_000, 0)));
        let keys = TreeKeys::new(DomainId::new(1), &[1; 32], &[2; 32]);
        let nodes = Arc::new(MemoryNodes::new());
        let tree = MemoryTrees::new(Arc::clone(&nodes)).open(keys.clone());
        let base = Base::Empty {
            tree: tree.clone(),
            root: InodeRecord::root((0o755, 0, 0), Timestamp::default()).into(),
        };
        let open = LayerId {
            session: SessionId::new(1),
            generation: 1,
        };
        let config = ImageConfig {
            name_key: NAME_KEY,
            block_bytes: BLOCK_BYTES,
            bytes_max: u64::MAX,
            inodes_max: u64::MAX,
            read_only: false,
        };
        let totals = Totals {
            numbers: InodeNumbers {
                next: 1 << 20,
                end: u64::MAX,
            },
            ..Totals::default()
        };
        Self {
            kv: Arc::new(MemoryKv::new(clock.clone())),
            clock,
            layers: Layers::new(open, Vec::new(), base),
            image: Image::new(config, totals),
            nodes,
            keys,
            tree,
            hasher: NameHasher::new(NAME_KEY),
            chunks: HashMap::new(),
        }
    }

    async fn run<T>(
        &mut self,
        op: impl Fn(&mut Image, Context<'_>) -> OpResult<T>,
    ) -> Result<T, FsError> {
        self.clock.advance(std::time::Duration::from_millis(1));
        let (caller, now) = (Caller::root(), self.clock.wall());
        loop {
            let cx = Context {
                caller: &caller,
                now,
            };
            let (result, _) = self.image.run(|image| op(image, cx));
            let miss: Miss = match result {
                Ok(value) => return Ok(value),
                Err(OpError::Fs(error)) => return Err(error),
                Err(OpError::Miss(miss)) => miss,
            };
            let loaded = load(self.kv.as_ref(), &self.layers, miss).await.unwrap();
            loaded.unwrap().install(&mut self.image);
        }
    }

    /// The image as it is now, as a tree.
    pub(crate) async fn freeze(&mut self) -> Root {
        for inode in self.image.dirty_inodes() {
            loop {
                let (_, _) = self.image.run(|image| image.settle_small(inode));
                let Some(job) = self.image.begin_write(inode, 1 << 20) else {
                    break;
                };
                let stored = job.blocks.iter().map(|job| self.store(job)).collect();
                self.image.run(|image| image.finish_write(inode, stored));
            }
        }
        let (applied, (changes, _)) = (self.image.applied(), self.image.take_changes());
        let mut txn = self.kv.begin();
        self.layers.write(txn.as_mut(), &changes);
        txn.commit().await.unwrap();
        self.image.set_durable(applied);
        let open = self.layers.open();
        let frozen = self.layers.freeze(LayerId {
            generation: open.generation + 1,
            ..open
        });
        let folded = fold(self.kv.as_ref(), frozen.frozen(), frozen.base(), |_| {});
        let root = folded.await.unwrap().root;
        let base = Base::Tree {
            tree: self.tree.clone(),
            root,
        };
        self.layers = Layers::new(frozen.open(), Vec::new(), base);
        root
    }

    fn store(&mut self, job: &BlockJob) -> (u32, Block) {
        if let Some(block) = job.base.absorb(&job.over) {
            return (job.index, block);
        }
        let end = job.base.end().max(job.over.end());
        let mut content = Vec::new();
        for piece in job.base.pieces(0, end, [Some(&job.over), None]) {
            match piece {
                Piece::Zero(length) => {
                    content.resize(content.len() + usize::try_from(length).unwrap(), 0);
                }
                Piece::Bytes(bytes) => content.extend_from_slice(&bytes),
                Piece::Chunk { id, offset, length } => {
                    let (offset, length) = (
                        usize::try_from(offset).unwrap(),
                        usize::try_from(length).unwrap(),
                    );
                    content.extend_from_slice(&self.chunks[&id][offset..offset + length]);
                }
            }
        }
        let id = ChunkId::new(*blake3::hash(&content).as_bytes());
        self.chunks.insert(id, content);
        (job.index, Block::chunk(id, end))
    }

    /// The inode at a path.
    pub(crate) async fn find(&mut self, path: &str) -> Result<InodeId, FsError> {
        let mut at = InodeId::ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let lookup =
                |image: &mut Image, cx: Context<'_>| ops::lookup(image, cx, at, name.as_bytes());
            at = self.run(lookup).await?.object.inode;
        }
        Ok(at)
    }

    /// The directory of a path, and the name in it.
    async fn place<'a>(&mut self, path: &'a str) -> Result<(InodeId, &'a [u8]), FsError> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.find(dir).await?, name.as_bytes()))
    }

    /// Does what a script says, a line at a time, and fails where a line fails.
    pub(crate) async fn script(&mut self, lines: &[impl AsRef<str>]) {
        for line in lines {
            let line = line.as_ref();
            let done = self.line(line).await;
            done.unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    /// Does what a line says: a word, a path, and a word more.
    pub(crate) async fn line(&mut self, line: &str) -> Result<(), FsError> {
        let mut words = line.split(' ');
        let (what, path) = (words.next().unwrap(), words.next().unwrap());
        let rest = words.next().unwrap_or_default();
        match what {
            // Truncates and writes.
            "write" => {
                let inode = self.open(path).await?;
                let attrs = SetAttrs {
                    size: Some(0),
                    ..SetAttrs::default()
                };
                self.set(inode, attrs).await?;
                self.write(inode, 0, Bytes::copy_from_slice(rest.as_bytes()))
                    .await
            }
            // As an editor does it: a new file in place of the old.
            "save" => {
                let new = format!("{path}~");
                Box::pin(self.line(&format!("write {new} {rest}"))).await?;
                Box::pin(self.line(&format!("mv {new} {path}"))).await
            }
            // So many bytes, at an offset.
            "fill" => {
                let inode = self.open(path).await?;
                let (offset, count) = rest.split_once('+').unwrap();
                let data = vec![b'x'; count.parse().unwrap()];
                self.write(inode, offset.parse().unwrap(), data.into())
                    .await
            }
            "mkdir" => self.make(path, Node::Directory).await,
            "fifo" => self.make(path, Node::Fifo).await,
            "symlink" => {
                let target = Bytes::copy_from_slice(rest.as_bytes());
                self.make(path, Node::Symlink(target)).await
            }
            "dev" => {
                let device = Device {
                    major: 1,
                    minor: rest.parse().unwrap(),
                };
                self.make(path, Node::CharDevice(device)).await
            }
            "cut" | "chmod" | "chown" | "touch" => self.change(what, path, rest).await,
            _ => self.names(what, path, rest).await,
        }
    }

    async fn change(&mut self, what: &str, path: &str, rest: &str) -> Result<(), FsError> {
        let mut attrs = SetAttrs::default();
        match what {
            "cut" => attrs.size = Some(rest.parse().unwrap()),
            "chmod" => attrs.mode = Some(u32::from_str_radix(rest, 8).unwrap()),
            "chown" => attrs.uid = Some(rest.parse().unwrap()),
            _ => attrs.mtime = SetTime::Now,
        }
        let inode = self.find(path).await?;
        self.set(inode, attrs).await
    }

    async fn names(&mut self, what: &str, path: &str, rest: &str) -> Result<(), FsError> {
        let (dir, name) = self.place(path).await?;
        match what {
            "ln" => {
                let inode = self.find(path).await?;
                let (to, other) = self.place(rest).await?;
                let link =
                    |image: &mut Image, cx: Context<'_>| ops::link(image, cx, inode, to, other);
                self.run(link).await.map(|_| ())
            }
            "mv" => {
                let (to, other) = self.place(rest).await?;
                let rename = |image: &mut Image, cx: Context<'_>| {
                    ops::rename(image, cx, dir, name, to, other)
                };
                self.run(rename).await.map(|_| ())
            }
            "rm" => self
                .run(|image, cx| ops::remove(image, cx, dir, name))
                .await
                .map(|_| ()),
            "rmdir" => self
                .run(|image, cx| ops::rmdir(image, cx, dir, name))
                .await
                .map(|_| ()),
            "rmtree" => {
                let inode = self.find(path).await?;
                let mut names = Vec::new();
                let listed = self
                    .run(|image, cx| {
                        let mut found = Vec::new();
                        ops::list(image, cx, inode, 0, |_, entries| {
                            found.extend(entries.iter().map(|(name, _)| name.to_string()));
                            true
                        })?;
                        Ok(found)
                    })
                    .await;
                names.extend(listed?);
                for name in names {
                    let path = format!("{path}/{name}");
                    let removed = Box::pin(self.line(&format!("rm {path}"))).await;
                    if removed == Err(FsError::IsDirectory) {
                        Box::pin(self.line(&format!("rmtree {path}"))).await?;
                    }
                }
                Box::pin(self.line(&format!("rmdir {path}"))).await
            }
            other => panic!("what is {other}?"),
        }
    }

    async fn open(&mut self, path: &str) -> Result<InodeId, FsError> {
        let (dir, name) = self.place(path).await?;
        let how = How::Unchecked(SetAttrs::default());
        let created = self
            .run(|image, cx| ops::create(image, cx, dir, name, how))
            .await?;
        Ok(created.object.inode)
    }

    async fn write(&mut self, inode: InodeId, offset: u64, data: Bytes) -> Result<(), FsError> {
        let written = self.run(|image, cx| ops::write(image, cx, inode, offset, &data));
        written.await.map(|_| ())
    }

    async fn set(&mut self, inode: InodeId, attrs: SetAttrs) -> Result<(), FsError> {
        let set = self.run(|image, cx| ops::set_attributes(image, cx, inode, attrs, None));
        set.await.map(|_| ())
    }

    async fn make(&mut self, path: &str, node: Node) -> Result<(), FsError> {
        let (dir, name) = self.place(path).await?;
        let attrs = SetAttrs::default();
        let made = self.run(|image, cx| ops::make(image, cx, dir, name, &node, attrs));
        made.await.map(|_| ())
    }
}
