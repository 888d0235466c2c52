//! Signing and verifying file handles.

use std::hint::black_box;

use base::{InodeId, SessionId};
use criterion::{Criterion, criterion_group, criterion_main};
use nfs_gateway::{FileHandle, HandleKey, HandleKeys};

fn handles(c: &mut Criterion) {
    let keys = HandleKeys::new(HandleKey::new(1, [1; 32]), None);
    let handle = FileHandle {
        flags: 0,
        session: SessionId::new(1),
        revocation: 1,
        snapshot: [0; 16],
        inode: InodeId::ROOT,
    };
    c.bench_function("sign handle", |b| {
        b.iter(|| black_box(keys.sign(black_box(&handle))));
    });
    let signed = keys.sign(&handle);
    c.bench_function("verify handle", |b| {
        b.iter(|| black_box(keys.verify(black_box(signed.wire()))));
    });
}

criterion_group!(benches, handles);
criterion_main!(benches);
