//! Encoding and decoding image keys and records, and hashing names.

use std::hint::black_box;

use base::InodeId;
use criterion::{Criterion, criterion_group, criterion_main};
use metadata::image::NameHasher;
use metadata::keyspace::image;

fn keys(c: &mut Criterion) {
    let hasher = NameHasher::new([1; 32]);
    let name = b"a-typical-file-name.rs";
    c.bench_function("hash name", |b| {
        b.iter(|| black_box(hasher.hash(black_box(name))));
    });
    let hash = hasher.hash(name);
    c.bench_function("encode entry key", |b| {
        b.iter(|| black_box(image::entry(black_box(InodeId::ROOT), hash, name)));
    });
    let key = image::entry(InodeId::ROOT, hash, name);
    c.bench_function("decode entry key", |b| {
        b.iter(|| black_box(image::decode(black_box(&key))));
    });
}

criterion_group!(benches, keys);
criterion_main!(benches);
