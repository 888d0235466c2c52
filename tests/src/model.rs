//! A filesystem in memory, as plain as it can be: what every other one is compared with.
//!
//! Written from POSIX, RFC 1813 and what the Linux server does where both leave it open. Whole
//! contents are byte vectors; link counts, parents and usage are counted anew each time. It is not
//! asked what a call will do, it judges what a call did: it checks an [`Answer`] against its own
//! state and then makes the same change to it. Where the specifications leave a choice (which of
//! two errors, which inode number) it takes what it was given, if that is one of the choices.
//!
//! Data that no COMMIT has confirmed may be lost by a crash, block by block, but nothing else may
//! take its place: the model keeps the states a file may fall back to ([`Model::recover`]).

mod content;
mod entries;
mod files;
mod recover;
mod rights;

use std::collections::{BTreeMap, BTreeSet};

use base::{Caller, InodeId, Timestamp};
use bytes::Bytes;
use metadata::FsError;
use metadata::stat::{Before, Device, FileKind, Stat, Wcc};

use crate::subject::{Answer, Call, Op};
use content::File;

/// Size that directories show.
const DIRECTORY_BYTES: u64 = 4096;
/// Longest name.
const NAME_BYTES_MAX: usize = 255;
/// Longest symbolic link target.
const TARGET_BYTES_MAX: usize = 4096;

/// What is judged: `Err` says what was wrong.
pub type Verdict = Result<(), String>;

/// What the model needs to know about the session.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Size of a file's blocks, in bytes: the unit in which unconfirmed data may be lost.
    pub block_bytes: u64,
    /// Largest file, in bytes.
    pub file_bytes_max: u64,
    /// Most bytes allocated.
    pub bytes_max: u64,
    /// Most inodes.
    pub inodes_max: u64,
    /// Nothing may be changed.
    pub read_only: bool,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Model {
    limits: Limits,
    nodes: BTreeMap<InodeId, Node>,
    /// Every inode number there ever was.
    born: BTreeSet<InodeId>,
    /// Cookies of names, as learned from listings.
    cookies: BTreeMap<Vec<u8>, u64>,
}

#[derive(Clone, Debug)]
struct Node {
    mode: u32,
    uid: u32,
    gid: u32,
    atime: Timestamp,
    mtime: Timestamp,
    ctime: Timestamp,
    /// Of an EXCLUSIVE create that no SETATTR followed.
    verifier: Option<[u8; 8]>,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    File(File),
    Dir(BTreeMap<Vec<u8>, InodeId>),
    Symlink(Bytes),
    Special(FileKind, Device),
}

impl Node {
    fn kind(&self) -> FileKind {
        match &self.body {
            Body::File(_) => FileKind::File,
            Body::Dir(_) => FileKind::Directory,
            Body::Symlink(_) => FileKind::Symlink,
            Body::Special(kind, _) => *kind,
        }
    }

    fn is_dir(&self) -> bool {
        matches!(self.body, Body::Dir(_))
    }

    fn entries(&self) -> Option<&BTreeMap<Vec<u8>, InodeId>> {
        match &self.body {
            Body::Dir(entries) => Some(entries),
            _ => None,
        }
    }
}

/// Gathers why a call has to fail, and why it may.
#[derive(Debug, Default)]
struct Faults {
    must: Vec<FsError>,
    may: Vec<FsError>,
}

impl Faults {
    /// The call has to fail with `error` (or another such error) if `failed`.
    fn must(&mut self, failed: bool, error: FsError) {
        if failed {
            self.must.push(error);
        }
    }

    /// The call may fail with `error` if `failed`; also beside an error it must fail with.
    fn may(&mut self, failed: bool, error: FsError) {
        if failed {
            self.may.push(error);
        }
    }

    /// The reply, if the call was right to succeed; `None` if it was right to fail.
    fn settle<'a, T>(&self, got: &'a Result<T, FsError>) -> Result<Option<&'a T>, String> {
        match got {
            Ok(reply) if self.must.is_empty() => Ok(Some(reply)),
            Ok(_) => Err(format!("succeeded; expected one of {:?}", self.must)),
            Err(error) if self.must.contains(error) || self.may.contains(error) => Ok(None),
            Err(error) => Err(format!(
                "failed with {error:?}; expected {:?} or perhaps {:?}",
                self.must, self.may
            )),
        }
    }
}

/// Judges a call that can only fail with `error`.
fn fails<T>(error: FsError, got: &Result<T, FsError>) -> Verdict {
    let faults = Faults {
        must: vec![error],
        may: Vec::new(),
    };
    faults.settle(got).map(|_| ())
}

/// Fails with `message` unless `holds`.
fn ensure(holds: bool, message: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(message()) }
}

impl Model {
    /// A filesystem that holds nothing but its root.
    #[must_use]
    pub fn new(limits: Limits, root: &Stat) -> Self {
        let node = Node {
            mode: root.mode,
            uid: root.uid,
            gid: root.gid,
            atime: root.atime,
            mtime: root.mtime,
            ctime: root.ctime,
            verifier: None,
            body: Body::Dir(BTreeMap::new()),
        };
        Self {
            limits,
            nodes: BTreeMap::from([(InodeId::ROOT, node)]),
            born: BTreeSet::from([InodeId::ROOT]),
            cookies: BTreeMap::new(),
        }
    }

    /// Judges what a call did, and does the same.
    ///
    /// # Errors
    ///
    /// The answer is not one that the call may have.
    #[expect(clippy::too_many_lines, reason = "a table: one arm per operation")]
    pub fn judge(&mut self, call: &Call, answer: &Answer) -> Verdict {
        let (caller, now) = (&call.caller, call.now);
        match (&call.op, answer) {
            (Op::Getattr { inode }, Answer::Attributes(got)) => self.getattr(*inode, got),
            (
                Op::Setattr {
                    inode,
                    attrs,
                    guard,
                },
                Answer::Changed(got),
            ) => self.setattr(caller, now, *inode, (*attrs, *guard), got),
            (Op::Lookup { dir, name }, Answer::Found(got)) => self.lookup(caller, *dir, name, got),
            (Op::Access { inode }, Answer::Access(got)) => self.access(caller, *inode, got),
            (Op::Readlink { inode }, Answer::Target(got)) => self.readlink(*inode, got),
            (
                Op::Read {
                    inode,
                    offset,
                    count,
                },
                Answer::Data(got),
            ) => self.read(caller, *inode, (*offset, *count), got),
            (
                Op::Write {
                    inode,
                    offset,
                    data,
                    stable,
                },
                Answer::Changed(got),
            ) => {
                self.write(caller, now, *inode, (*offset, data), got)?;
                if *stable && got.is_ok() {
                    self.settle(*inode);
                }
                Ok(())
            }
            (Op::Commit { inode }, Answer::Committed(got)) => self.commit(*inode, got),
            (Op::Create { dir, name, how }, Answer::Created(got)) => {
                self.create(caller, now, (*dir, name.as_ref()), how, got)
            }
            (
                Op::Make {
                    dir,
                    name,
                    node,
                    attrs,
                },
                Answer::Created(got),
            ) => self.make(caller, now, (*dir, name.as_ref()), (node, attrs), got),
            (Op::Remove { dir, name }, Answer::Removed(got)) => {
                self.remove(caller, now, (*dir, name.as_ref()), got)
            }
            (Op::Rmdir { dir, name }, Answer::Removed(got)) => {
                self.rmdir(caller, now, (*dir, name.as_ref()), got)
            }
            (
                Op::Rename {
                    from_dir,
                    from_name,
                    to_dir,
                    to_name,
                },
                Answer::Renamed(got),
            ) => self.rename(
                caller,
                now,
                (*from_dir, from_name.as_ref()),
                (*to_dir, to_name.as_ref()),
                got,
            ),
            (Op::Link { inode, dir, name }, Answer::Linked(got)) => {
                self.link(caller, now, *inode, (*dir, name.as_ref()), got)
            }
            (Op::List { dir, cookie, count }, Answer::Listed(got)) => {
                self.list(caller, *dir, (*cookie, *count), got)
            }
            (op, answer) => Err(format!("{op:?} was answered by {answer:?}")),
        }
    }

    /// All inodes, with their kinds.
    pub fn inodes(&self) -> impl Iterator<Item = (InodeId, FileKind)> {
        self.nodes.iter().map(|(inode, node)| (*inode, node.kind()))
    }

    /// The kind of `inode`, if it exists.
    #[must_use]
    pub fn kind(&self, inode: InodeId) -> Option<FileKind> {
        self.nodes.get(&inode).map(Node::kind)
    }

    /// Names in `dir`, with what they lead to.
    pub fn names(&self, dir: InodeId) -> impl Iterator<Item = (&[u8], InodeId)> {
        self.nodes
            .get(&dir)
            .and_then(Node::entries)
            .into_iter()
            .flatten()
            .map(|(name, inode)| (name.as_slice(), *inode))
    }

    /// Size of a file, in bytes.
    #[must_use]
    pub fn size(&self, inode: InodeId) -> u64 {
        self.nodes.get(&inode).map_or(0, Self::size_of)
    }

    /// The ctime of `inode`, if it exists.
    #[must_use]
    pub fn ctime(&self, inode: InodeId) -> Option<Timestamp> {
        self.nodes.get(&inode).map(|node| node.ctime)
    }

    /// Makes the session read-only, or writable again.
    pub fn set_read_only(&mut self, read_only: bool) {
        self.limits.read_only = read_only;
    }

    fn node(&self, inode: InodeId) -> Option<&Node> {
        self.nodes.get(&inode)
    }

    fn size_of(node: &Node) -> u64 {
        let length = match &node.body {
            Body::File(file) => file.content.len(),
            Body::Dir(_) => return DIRECTORY_BYTES,
            Body::Symlink(target) => target.len(),
            Body::Special(..) => 0,
        };
        u64::try_from(length).unwrap_or(u64::MAX)
    }

    /// Least and most bytes a node may say it has allocated.
    fn used_of(&self, node: &Node) -> (u64, u64) {
        match &node.body {
            Body::File(file) => file.content.used(self.limits.block_bytes),
            _ => (0, 0),
        }
    }

    /// Links of a node: names of a file, and for a directory `.` and the `..` of its children.
    fn links_of(&self, inode: InodeId, node: &Node) -> u32 {
        let count = if let Some(entries) = node.entries() {
            2 + entries
                .values()
                .filter(|child| self.node(**child).is_some_and(Node::is_dir))
                .count()
        } else {
            self.nodes
                .values()
                .filter_map(Node::entries)
                .flat_map(BTreeMap::values)
                .filter(|child| **child == inode)
                .count()
        };
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// The directory that holds directory `dir`; the root holds itself.
    fn parent_of(&self, dir: InodeId) -> InodeId {
        self.nodes
            .iter()
            .find(|(_, node)| {
                node.entries()
                    .is_some_and(|entries| entries.values().any(|child| *child == dir))
            })
            .map_or(InodeId::ROOT, |(parent, _)| *parent)
    }

    /// Attributes as they should be; `used` is the least it may be.
    fn stat(&self, inode: InodeId) -> Option<Stat> {
        let node = self.node(inode)?;
        let device = match &node.body {
            Body::Special(_, device) => *device,
            _ => Device::default(),
        };
        Some(Stat {
            inode,
            kind: node.kind(),
            mode: node.mode,
            nlink: self.links_of(inode, node),
            uid: node.uid,
            gid: node.gid,
            size: Self::size_of(node),
            used: self.used_of(node).0,
            device,
            atime: node.atime,
            mtime: node.mtime,
            ctime: node.ctime,
        })
    }

    /// What weak cache consistency says of the state before a call.
    fn before(&self, inode: InodeId) -> Option<Before> {
        self.stat(inode).map(|stat| Before::from(&stat))
    }

    /// Judges attributes shown for `inode`.
    fn check_stat(&self, inode: InodeId, got: &Stat) -> Verdict {
        let expected = self
            .stat(inode)
            .ok_or_else(|| format!("attributes of {inode:?}, which does not exist"))?;
        let (least, most) = self.node(inode).map_or((0, 0), |node| self.used_of(node));
        ensure((least..=most).contains(&got.used), || {
            format!("{inode:?} uses {}, expected {least}..={most}", got.used)
        })?;
        let expected = Stat {
            used: got.used,
            ..expected
        };
        ensure(expected == *got, || {
            format!("attributes\n  got      {got:?}\n  expected {expected:?}")
        })
    }

    /// Judges attributes that a reply shows beside its result.
    ///
    /// # Errors
    ///
    /// They are not those of the inode.
    pub fn check_shown(&self, stat: &Stat) -> Verdict {
        self.check_stat(stat.inode, stat)
    }

    /// Judges both sides of a change of `inode` that has been made here too.
    fn check_wcc(&self, inode: InodeId, before: Option<Before>, got: &Wcc) -> Verdict {
        ensure(before == Some(got.before), || {
            format!(
                "{inode:?} before\n  got      {:?}\n  expected {before:?}",
                got.before
            )
        })?;
        self.check_stat(inode, &got.after)
    }

    /// Least and most bytes allocated in all files.
    fn used(&self) -> (u64, u64) {
        self.nodes.values().fold((0, 0), |(least, most), node| {
            let (low, high) = self.used_of(node);
            (least + low, most + high)
        })
    }

    /// Marks a change of a node at `now`: its ctime goes up by at least a nanosecond.
    fn touch(&mut self, inode: InodeId, now: Timestamp) {
        if let Some(node) = self.nodes.get_mut(&inode) {
            node.ctime = now.max(node.ctime.tick());
            node.confirm_attributes();
        }
    }

    /// Marks a change of a directory's entries.
    fn touch_entries(&mut self, dir: InodeId, now: Timestamp) {
        self.touch(dir, now);
        if let Some(node) = self.nodes.get_mut(&dir) {
            node.mtime = node.ctime;
        }
    }

    /// Judges a usage total.
    ///
    /// # Errors
    ///
    /// It is not one that the files may add up to.
    pub fn check_usage(&self, bytes: u64, inodes: u64) -> Verdict {
        let (least, most) = self.used();
        ensure((least..=most).contains(&bytes), || {
            format!("usage is {bytes} bytes, expected {least}..={most}")
        })?;
        let count = u64::try_from(self.nodes.len()).unwrap_or(u64::MAX);
        ensure(inodes == count, || {
            format!("usage is {inodes} inodes, expected {count}")
        })
    }

    fn getattr(&self, inode: InodeId, got: &Result<Stat, FsError>) -> Verdict {
        match got {
            Ok(stat) => self.check_stat(inode, stat),
            Err(error) if self.node(inode).is_none() => {
                fails(FsError::Stale, &Err::<(), _>(*error))
            }
            Err(error) => Err(format!("failed with {error:?}")),
        }
    }

    /// Whether `caller` owns a node, or need not.
    fn owns(node: &Node, caller: &Caller) -> bool {
        caller.uid == 0 || caller.uid == node.uid
    }
}
