use base::Caller;
use bytes::Bytes;

use super::*;
use crate::ops::{self, Context, How};
use crate::record::inode::InodeRecord;
use crate::stat::{Device, FileKind, SetAttrs};

fn image() -> Image {
    let config = ImageConfig {
        name_key: [1; 32],
        block_bytes: 4096,
        bytes_max: 1 << 40,
        inodes_max: 1000,
        read_only: false,
    };
    let numbers = InodeNumbers {
        next: 100,
        end: 200,
    };
    let mut image = Image::new(
        config,
        Totals {
            usage: Usage::default(),
            numbers,
        },
    );
    let time = Timestamp::new(1, 0);
    let stat = Stat {
        inode: InodeId::ROOT,
        kind: FileKind::Directory,
        mode: 0o755,
        nlink: 2,
        uid: 0,
        gid: 0,
        size: DIRECTORY_BYTES,
        used: 0,
        device: Device::default(),
        atime: time,
        mtime: time,
        ctime: time,
    };
    let root = InodeRecord {
        stat,
        entries: 0,
        link: None,
        verifier: None,
        inline: None,
    };
    image.install_inode(InodeId::ROOT, Some(root));
    image
}

fn file(image: &mut Image) -> InodeId {
    let caller = Caller::root();
    let cx = Context {
        caller: &caller,
        now: Timestamp::new(2, 0),
    };
    let how = How::Guarded(SetAttrs::default());
    let (created, _) = image.run(|image| ops::create(image, cx, InodeId::ROOT, b"f", how));
    created.unwrap().object.inode
}

fn write(image: &mut Image, inode: InodeId, offset: u64, length: usize) {
    let caller = Caller::root();
    let cx = Context {
        caller: &caller,
        now: Timestamp::new(3, 0),
    };
    let data = Bytes::from(vec![7; length]);
    image
        .run(|image| ops::write(image, cx, inode, offset, &data))
        .0
        .unwrap();
}

/// A COMMIT waits for what was written before it, and not for what comes after.
#[test]
fn writes_are_unwritten_until_settled_or_stored() {
    let mut image = image();
    let inode = file(&mut image);
    write(&mut image, inode, 0, 7);
    let first = image.last_write();
    assert!(image.has_unwritten_until(inode, first));
    assert!(image.run(|image| image.settle_small(inode)).0);
    assert!(!image.has_unwritten_until(inode, first));
    write(&mut image, inode, 4096, 4096 * 40);
    let second = image.last_write();
    let job = image.begin_write(inode, usize::MAX).unwrap();
    write(&mut image, inode, 0, 4);
    assert!(image.has_unwritten_until(inode, second));
    let stored = job
        .blocks
        .into_iter()
        .map(|job| (job.index, job.base.absorb(&job.over).unwrap()));
    let stored = stored.collect();
    image.run(|image| image.finish_write(inode, stored));
    assert!(!image.has_unwritten_until(inode, second));
    assert!(image.has_unwritten_until(inode, image.last_write()));
}

/// A wide range is loaded part by part: each miss names the first part that is missing.
#[test]
fn a_miss_of_blocks_names_the_first_gap() {
    let mut image = image();
    let inode = InodeId::new(50);
    let stat = Stat {
        inode,
        kind: FileKind::File,
        size: 4096 * 100,
        ..image.peek(InodeId::ROOT).unwrap()
    };
    let link = Some((InodeId::ROOT, base::Name::new(b"g").unwrap()));
    let record = InodeRecord {
        stat,
        entries: 0,
        link,
        verifier: None,
        inline: None,
    };
    image.install_inode(inode, Some(record));
    let miss = |image: &mut Image| image.require_blocks(inode, 0, 4096 * 100);
    let blocks = |first| {
        Err(Miss::Blocks {
            inode,
            first,
            last: 99,
        }
        .into())
    };
    assert_eq!(miss(&mut image), blocks(0));
    image.install_blocks(inode, 0, 9, Vec::new());
    assert_eq!(miss(&mut image), blocks(10));
    image.install_blocks(inode, 10, 200, Vec::new());
    assert_eq!(miss(&mut image), Ok(()));
}
