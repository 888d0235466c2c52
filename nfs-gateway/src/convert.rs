//! Between the attributes of files and those of the protocol.

use metadata::ops::Access;
use metadata::stat::{self, FileKind, SetAttrs, Stat};

use crate::wire::nfs3::{self as wire, Fattr, WccAttr, access};

/// `fattr3` of an object in the filesystem `fsid`.
#[must_use]
pub(crate) fn fattr(stat: &Stat, fsid: u64) -> Fattr {
    Fattr {
        kind: kind_to_wire(stat.kind),
        mode: stat.mode,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        size: stat.size,
        used: stat.used,
        rdev: wire::Device {
            major: stat.device.major,
            minor: stat.device.minor,
        },
        fsid,
        fileid: stat.inode.raw(),
        atime: stat.atime,
        mtime: stat.mtime,
        ctime: stat.ctime,
    }
}

/// `wcc_data` of a change.
#[must_use]
pub(crate) fn wcc(wcc: &stat::Wcc, fsid: u64) -> wire::Wcc {
    let before = &wcc.before;
    wire::Wcc {
        before: Some(WccAttr {
            size: before.size,
            mtime: before.mtime,
            ctime: before.ctime,
        }),
        after: Some(fattr(&wcc.after, fsid)),
    }
}

/// `wcc_data` of an object that was not changed.
#[must_use]
pub(crate) fn unchanged(stat: Option<Stat>, fsid: u64) -> wire::Wcc {
    wire::Wcc {
        before: None,
        after: stat.map(|stat| fattr(&stat, fsid)),
    }
}

/// The attributes that a client wants set.
#[must_use]
pub(crate) fn set_attrs(attributes: &wire::SetAttributes) -> SetAttrs {
    SetAttrs {
        mode: attributes.mode,
        uid: attributes.uid,
        gid: attributes.gid,
        size: attributes.size,
        atime: set_time(attributes.atime),
        mtime: set_time(attributes.mtime),
    }
}

/// The access bits among `asked` that are granted.
#[must_use]
pub(crate) fn access_bits(granted: Access, asked: u32) -> u32 {
    let bits = [
        (granted.read, access::READ),
        (granted.lookup, access::LOOKUP),
        (granted.modify, access::MODIFY),
        (granted.extend, access::EXTEND),
        (granted.delete, access::DELETE),
        (granted.execute, access::EXECUTE),
    ];
    let all = bits
        .iter()
        .filter(|(has, _)| *has)
        .fold(0, |sum, (_, bit)| sum | bit);
    all & asked
}

fn kind_to_wire(kind: FileKind) -> wire::FileKind {
    match kind {
        FileKind::File => wire::FileKind::Regular,
        FileKind::Directory => wire::FileKind::Directory,
        FileKind::Symlink => wire::FileKind::Symlink,
        FileKind::BlockDevice => wire::FileKind::BlockDevice,
        FileKind::CharDevice => wire::FileKind::CharacterDevice,
        FileKind::Fifo => wire::FileKind::Fifo,
        FileKind::Socket => wire::FileKind::Socket,
    }
}

fn set_time(time: wire::SetTime) -> stat::SetTime {
    match time {
        wire::SetTime::Keep => stat::SetTime::Keep,
        wire::SetTime::ToServerTime => stat::SetTime::Now,
        wire::SetTime::To(time) => stat::SetTime::To(time),
    }
}
