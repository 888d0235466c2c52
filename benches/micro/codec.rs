//! Decoding calls and encoding replies.

use std::hint::black_box;

use base::{InodeId, SessionId, Timestamp};
use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use nfs_gateway::wire::args::NfsCall;
use nfs_gateway::wire::nfs3::{Device, Fattr, FileKind};
use nfs_gateway::wire::procedure::Procedure;
use nfs_gateway::wire::results::{self, GetattrOk};
use nfs_gateway::wire::rpc;
use nfs_gateway::{FileHandle, HandleKey, HandleKeys};

fn fattr() -> Fattr {
    let time = Timestamp::new(1, 2);
    Fattr {
        kind: FileKind::Regular,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        size: 4096,
        used: 4096,
        rdev: Device::default(),
        fsid: 1,
        fileid: 2,
        atime: time,
        mtime: time,
        ctime: time,
    }
}

/// The record of a GETATTR call with an AUTH_SYS credential.
fn getattr_call() -> Bytes {
    let keys = HandleKeys::new(HandleKey::new(1, [1; 32]), None);
    let handle = keys.sign(&FileHandle {
        flags: 0,
        session: SessionId::new(1),
        revocation: 1,
        snapshot: [0; 16],
        inode: InodeId::ROOT,
    });
    let mut record = Vec::new();
    for word in [7_u32, 0, 2, 100_003, 3, 1, 1, 24, 0, 3] {
        record.extend(word.to_be_bytes());
    }
    record.extend(b"abc\0");
    for word in [0_u32, 0, 0, 0, 0, 56] {
        record.extend(word.to_be_bytes());
    }
    record.extend(handle.as_bytes());
    Bytes::from(record)
}

fn codec(c: &mut Criterion) {
    let record = getattr_call();
    c.bench_function("decode GETATTR call", |b| {
        b.iter(|| {
            let call = rpc::decode_call(black_box(&record)).expect("a call");
            let args = NfsCall::decode(Procedure::Getattr, call.args.clone()).expect("arguments");
            black_box(args.handle());
        });
    });
    let result = GetattrOk {
        attributes: fattr(),
    };
    c.bench_function("encode GETATTR reply", |b| {
        b.iter(|| black_box(results::ok(black_box(7), black_box(&result))));
    });
}

criterion_group!(benches, codec);
criterion_main!(benches);
