//! A filesystem under test, as seen by its clients.
//!
//! The workload makes [`Call`]s, [`perform`] runs them on a [`Subject`], and the model judges the
//! [`Answer`]. Types are those of `metadata`; the model shares no rule with it.

use base::{Caller, InodeId, Timestamp};
use bytes::Bytes;
use metadata::FsError;
use metadata::ops::{Access, Context, Created, Found, How, Linked, Node, Removed, Renamed};
use metadata::stat::{FileKind, SetAttrs, Stat, Wcc};

/// One call of a client.
#[derive(Clone, Debug)]
pub struct Call {
    /// Who calls.
    pub caller: Caller,
    /// The server's time of day while it runs.
    pub now: Timestamp,
    /// What is called.
    pub op: Op,
}

/// An operation and its arguments.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the arguments are those of RFC 1813")]
pub enum Op {
    Getattr {
        inode: InodeId,
    },
    Setattr {
        inode: InodeId,
        attrs: SetAttrs,
        guard: Option<Timestamp>,
    },
    Lookup {
        dir: InodeId,
        name: Bytes,
    },
    Access {
        inode: InodeId,
    },
    Readlink {
        inode: InodeId,
    },
    Read {
        inode: InodeId,
        offset: u64,
        count: u32,
    },
    Write {
        inode: InodeId,
        offset: u64,
        data: Bytes,
        stable: bool,
    },
    Commit {
        inode: InodeId,
    },
    Create {
        dir: InodeId,
        name: Bytes,
        how: How,
    },
    Make {
        dir: InodeId,
        name: Bytes,
        node: Node,
        attrs: SetAttrs,
    },
    Remove {
        dir: InodeId,
        name: Bytes,
    },
    Rmdir {
        dir: InodeId,
        name: Bytes,
    },
    Rename {
        from_dir: InodeId,
        from_name: Bytes,
        to_dir: InodeId,
        to_name: Bytes,
    },
    Link {
        inode: InodeId,
        dir: InodeId,
        name: Bytes,
    },
    List {
        dir: InodeId,
        cookie: u64,
        count: usize,
    },
}

impl Op {
    /// The inode the operation is about, if it is about one only.
    #[must_use]
    pub fn subject(&self) -> Option<InodeId> {
        match self {
            Self::Getattr { inode }
            | Self::Setattr { inode, .. }
            | Self::Access { inode }
            | Self::Readlink { inode }
            | Self::Read { inode, .. }
            | Self::Write { inode, .. }
            | Self::Commit { inode } => Some(*inode),
            Self::Lookup { dir, .. }
            | Self::Create { dir, .. }
            | Self::Make { dir, .. }
            | Self::Remove { dir, .. }
            | Self::Rmdir { dir, .. }
            | Self::List { dir, .. } => Some(*dir),
            Self::Rename { .. } | Self::Link { .. } => None,
        }
    }
}

/// What READ gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadReply {
    /// The file.
    pub file: Stat,
    /// The data.
    pub data: Bytes,
    /// Whether the data reaches the end of the file.
    pub end: bool,
}

/// One entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Where to go on after it.
    pub cookie: u64,
    /// The name.
    pub name: Vec<u8>,
    /// What it leads to.
    pub inode: InodeId,
    /// The kind of that, if the listing tells.
    pub kind: Option<FileKind>,
}

/// What READDIR or READDIRPLUS gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListReply {
    /// The directory.
    pub dir: Stat,
    /// What `..` leads to, if the listing told.
    pub parent: Option<InodeId>,
    /// The entries, without `.` and `..`.
    pub entries: Vec<Listed>,
    /// Whether there are no more.
    pub end: bool,
}

/// A filesystem under test: one method for each operation.
pub trait Subject {
    /// GETATTR.
    fn getattr(&mut self, cx: Context<'_>, inode: InodeId) -> Result<Stat, FsError>;

    /// SETATTR.
    fn setattr(
        &mut self,
        cx: Context<'_>,
        inode: InodeId,
        attrs: SetAttrs,
        guard: Option<Timestamp>,
    ) -> Result<Wcc, FsError>;

    /// LOOKUP.
    fn lookup(&mut self, cx: Context<'_>, dir: InodeId, name: &[u8]) -> Result<Found, FsError>;

    /// ACCESS.
    fn access(&mut self, cx: Context<'_>, inode: InodeId) -> Result<(Access, Stat), FsError>;

    /// READLINK.
    fn readlink(&mut self, cx: Context<'_>, inode: InodeId) -> Result<(Bytes, Stat), FsError>;

    /// READ.
    fn read(
        &mut self,
        cx: Context<'_>,
        inode: InodeId,
        offset: u64,
        count: u32,
    ) -> Result<ReadReply, FsError>;

    /// WRITE; `stable` asks for FILE_SYNC, otherwise UNSTABLE.
    fn write(
        &mut self,
        cx: Context<'_>,
        inode: InodeId,
        offset: u64,
        data: &Bytes,
        stable: bool,
    ) -> Result<Wcc, FsError>;

    /// COMMIT of the whole file.
    fn commit(&mut self, cx: Context<'_>, inode: InodeId) -> Result<(), FsError>;

    /// CREATE.
    fn create(
        &mut self,
        cx: Context<'_>,
        dir: InodeId,
        name: &[u8],
        how: How,
    ) -> Result<Created, FsError>;

    /// MKDIR, SYMLINK or MKNOD.
    fn make(
        &mut self,
        cx: Context<'_>,
        dir: InodeId,
        name: &[u8],
        node: &Node,
        attrs: SetAttrs,
    ) -> Result<Created, FsError>;

    /// REMOVE.
    fn remove(&mut self, cx: Context<'_>, dir: InodeId, name: &[u8]) -> Result<Removed, FsError>;

    /// RMDIR.
    fn rmdir(&mut self, cx: Context<'_>, dir: InodeId, name: &[u8]) -> Result<Removed, FsError>;

    /// RENAME.
    fn rename(
        &mut self,
        cx: Context<'_>,
        from: (InodeId, &[u8]),
        to: (InodeId, &[u8]),
    ) -> Result<Renamed, FsError>;

    /// LINK.
    fn link(
        &mut self,
        cx: Context<'_>,
        inode: InodeId,
        dir: InodeId,
        name: &[u8],
    ) -> Result<Linked, FsError>;

    /// READDIR or READDIRPLUS: about `count` entries after `cookie`.
    fn list(
        &mut self,
        cx: Context<'_>,
        dir: InodeId,
        cookie: u64,
        count: usize,
    ) -> Result<ListReply, FsError>;
}

/// What a call gave.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "named after the operations")]
pub enum Answer {
    Attributes(Result<Stat, FsError>),
    Changed(Result<Wcc, FsError>),
    Found(Result<Found, FsError>),
    Access(Result<(Access, Stat), FsError>),
    Target(Result<(Bytes, Stat), FsError>),
    Data(Result<ReadReply, FsError>),
    Committed(Result<(), FsError>),
    Created(Result<Created, FsError>),
    Removed(Result<Removed, FsError>),
    Renamed(Result<Renamed, FsError>),
    Linked(Result<Linked, FsError>),
    Listed(Result<ListReply, FsError>),
}

impl Answer {
    /// Why the call failed, if it did.
    #[must_use]
    pub fn error(&self) -> Option<FsError> {
        match self {
            Self::Attributes(result) => result.as_ref().err().copied(),
            Self::Changed(result) => result.as_ref().err().copied(),
            Self::Found(result) => result.as_ref().err().copied(),
            Self::Access(result) => result.as_ref().err().copied(),
            Self::Target(result) => result.as_ref().err().copied(),
            Self::Data(result) => result.as_ref().err().copied(),
            Self::Committed(result) => result.as_ref().err().copied(),
            Self::Created(result) => result.as_ref().err().copied(),
            Self::Removed(result) => result.as_ref().err().copied(),
            Self::Renamed(result) => result.as_ref().err().copied(),
            Self::Linked(result) => result.as_ref().err().copied(),
            Self::Listed(result) => result.as_ref().err().copied(),
        }
    }

    /// All attributes that the reply shows, after the call.
    #[must_use]
    pub fn attributes(&self) -> Vec<Stat> {
        match self {
            Self::Attributes(Ok(stat))
            | Self::Access(Ok((_, stat)))
            | Self::Target(Ok((_, stat))) => vec![*stat],
            Self::Changed(Ok(wcc)) => vec![wcc.after],
            Self::Found(Ok(found)) => vec![found.object, found.dir],
            Self::Data(Ok(read)) => vec![read.file],
            Self::Created(Ok(created)) => vec![created.object, created.dir.after],
            Self::Removed(Ok(removed)) => vec![removed.dir.after],
            Self::Renamed(Ok(renamed)) => vec![renamed.from.after, renamed.to.after],
            Self::Linked(Ok(linked)) => vec![linked.object, linked.dir.after],
            Self::Listed(Ok(listed)) => vec![listed.dir],
            _ => Vec::new(),
        }
    }
}

/// Runs a call.
pub fn perform(subject: &mut impl Subject, call: &Call) -> Answer {
    let cx = Context {
        caller: &call.caller,
        now: call.now,
    };
    match &call.op {
        Op::Getattr { inode } => Answer::Attributes(subject.getattr(cx, *inode)),
        Op::Setattr {
            inode,
            attrs,
            guard,
        } => Answer::Changed(subject.setattr(cx, *inode, *attrs, *guard)),
        Op::Lookup { dir, name } => Answer::Found(subject.lookup(cx, *dir, name)),
        Op::Access { inode } => Answer::Access(subject.access(cx, *inode)),
        Op::Readlink { inode } => Answer::Target(subject.readlink(cx, *inode)),
        Op::Read {
            inode,
            offset,
            count,
        } => Answer::Data(subject.read(cx, *inode, *offset, *count)),
        Op::Write {
            inode,
            offset,
            data,
            stable,
        } => Answer::Changed(subject.write(cx, *inode, *offset, data, *stable)),
        Op::Commit { inode } => Answer::Committed(subject.commit(cx, *inode)),
        Op::Create { dir, name, how } => Answer::Created(subject.create(cx, *dir, name, *how)),
        Op::Make {
            dir,
            name,
            node,
            attrs,
        } => Answer::Created(subject.make(cx, *dir, name, node, *attrs)),
        Op::Remove { dir, name } => Answer::Removed(subject.remove(cx, *dir, name)),
        Op::Rmdir { dir, name } => Answer::Removed(subject.rmdir(cx, *dir, name)),
        Op::Rename {
            from_dir,
            from_name,
            to_dir,
            to_name,
        } => Answer::Renamed(subject.rename(cx, (*from_dir, from_name), (*to_dir, to_name))),
        Op::Link { inode, dir, name } => Answer::Linked(subject.link(cx, *inode, *dir, name)),
        Op::List { dir, cookie, count } => Answer::Listed(subject.list(cx, *dir, *cookie, *count)),
    }
}

/// A filesystem under test that takes any operation.
pub trait Asks {
    /// Runs an operation.
    fn ask(&mut self, cx: Context<'_>, op: Op) -> Answer;
}

/// Takes the result out of an answer of the right kind.
macro_rules! answer {
    ($answer:expr, $kind:ident) => {
        match $answer {
            Answer::$kind(result) => result,
            _ => Err(FsError::Corrupt),
        }
    };
}

impl<T: Asks> Subject for T {
    fn getattr(&mut self, cx: Context<'_>, inode: InodeId) -> Result<Stat, FsError> {
        answer!(self.ask(cx, Op::Getattr { inode }), Attributes)
    }

    fn setattr(
        &mut self,
        cx: Context<'_>,
        inode: InodeId,
        attrs: SetAttrs,
        guard: Option<Timestamp>,
    ) -> Result<Wcc, FsError> {
        let op = Op::Setattr {
            inode,
            attrs,
            guard,
        };
        answer!(self.ask(cx, op), Changed)
    }

    fn lookup(&mut self, cx: Context<'_>, dir: InodeId, name: &[u8]) -> Result<Found, FsError> {
        let name = Bytes::copy_from_slice(name);
        answer!(self.ask(cx, Op::Lookup { dir, name }), Found)
    }

    fn access(&mut self, cx: Context<'_>, inode: InodeId) -> Result<(Access, Stat), FsError> {
        answer!(self.ask(cx, Op::Access { inode }), Access)
    }

    fn readlink(&mut self, cx: Context<'_>, inode: InodeId) -> Result<(Bytes, Stat), FsError> {
        answer!(self.ask(cx, Op::Readlink { inode }), Target)
    }

    fn read(
        &mut self,
        cx: Context<'_>,
        inode: InodeId,
        offset: u64,
        count: u32,
    ) -> Result<ReadReply, FsError> {
        let op = Op::Read {
            inode,
            offset,
            count,
        };
        answer!(self.ask(cx, op), Data)
    }

    fn write(
        &mut self,
        cx: Context<'_>,
        inode: InodeId,
        offset: u64,
        data: &Bytes,
        stable: bool,
    ) -> Result<Wcc, FsError> {
        let op = Op::Write {
            inode,
            offset,
            data: data.clone(),
            stable,
        };
        answer!(self.ask(cx, op), Changed)
    }

    fn commit(&mut self, cx: Context<'_>, inode: InodeId) -> Result<(), FsError> {
        answer!(self.ask(cx, Op::Commit { inode }), Committed)
    }

    fn create(
        &mut self,
        cx: Context<'_>,
        dir: InodeId,
        name: &[u8],
        how: How,
    ) -> Result<Created, FsError> {
        let name = Bytes::copy_from_slice(name);
        answer!(self.ask(cx, Op::Create { dir, name, how }), Created)
    }

    fn make(
        &mut self,
        cx: Context<'_>,
        dir: InodeId,
        name: &[u8],
        node: &Node,
        attrs: SetAttrs,
    ) -> Result<Created, FsError> {
        let op = Op::Make {
            dir,
            name: Bytes::copy_from_slice(name),
            node: node.clone(),
            attrs,
        };
        answer!(self.ask(cx, op), Created)
    }

    fn remove(&mut self, cx: Context<'_>, dir: InodeId, name: &[u8]) -> Result<Removed, FsError> {
        let name = Bytes::copy_from_slice(name);
        answer!(self.ask(cx, Op::Remove { dir, name }), Removed)
    }

    fn rmdir(&mut self, cx: Context<'_>, dir: InodeId, name: &[u8]) -> Result<Removed, FsError> {
        let name = Bytes::copy_from_slice(name);
        answer!(self.ask(cx, Op::Rmdir { dir, name }), Removed)
    }

    fn rename(
        &mut self,
        cx: Context<'_>,
        from: (InodeId, &[u8]),
        to: (InodeId, &[u8]),
    ) -> Result<Renamed, FsError> {
        let op = Op::Rename {
            from_dir: from.0,
            from_name: Bytes::copy_from_slice(from.1),
            to_dir: to.0,
            to_name: Bytes::copy_from_slice(to.1),
        };
        answer!(self.ask(cx, op), Renamed)
    }

    fn link(
        &mut self,
        cx: Context<'_>,
        inode: InodeId,
        dir: InodeId,
        name: &[u8],
    ) -> Result<Linked, FsError> {
        let name = Bytes::copy_from_slice(name);
        answer!(self.ask(cx, Op::Link { inode, dir, name }), Linked)
    }

    fn list(
        &mut self,
        cx: Context<'_>,
        dir: InodeId,
        cookie: u64,
        count: usize,
    ) -> Result<ListReply, FsError> {
        answer!(self.ask(cx, Op::List { dir, cookie, count }), Listed)
    }
}
