use base::Caller;
use bytes::Bytes;

use super::*;
use crate::ops::{self, Context, How};
use crate::record::inode::InodeRecord;
use crate::stat::{FileKind, SetAttrs};

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
    let root = InodeRecord::root((0o755, 0, 0), Timestamp::new(1, 0));
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

fn set_size(image: &mut Image, inode: InodeId, size: u64) {
    let caller = Caller::root();
    let cx = Context {
        caller: &caller,
        now: Timestamp::new(4, 0),
    };
    let attrs = SetAttrs {
        size: Some(size),
        ..SetAttrs::default()
    };
    image
        .run(|image| ops::set_attributes(image, cx, inode, attrs, None))
        .0
        .unwrap();
}

fn store(job: WriteJob) -> Vec<(u32, Block)> {
    let store = |job: BlockJob| (job.index, job.base.absorb(&job.over).unwrap());
    job.blocks.into_iter().map(store).collect()
}

/// All bytes of a file whose content is in memory.
fn content(image: &mut Image, inode: InodeId, offset: u64) -> Vec<u8> {
    let caller = Caller::root();
    let cx = Context {
        caller: &caller,
        now: Timestamp::new(5, 0),
    };
    let (read, _) = image.run(|image| ops::read(image, cx, inode, offset, 100_000));
    let mut bytes = Vec::new();
    for piece in read.unwrap().pieces {
        match piece {
            Piece::Zero(length) => bytes.resize(bytes.len() + usize::try_from(length).unwrap(), 0),
            Piece::Bytes(part) => bytes.extend_from_slice(&part),
            Piece::Chunk { .. } => panic!("no chunk was made"),
        }
    }
    bytes
}

/// A write-back of which a truncation left nothing still runs: what is written and settled after
/// the truncation must outlive its end.
#[test]
fn a_write_back_that_was_cut_away_ends_without_harm() {
    let mut image = image();
    let inode = file(&mut image);
    write(&mut image, inode, 0, 100);
    let job = image.begin_write(inode, usize::MAX).unwrap();
    set_size(&mut image, inode, 0);
    assert!(image.is_writing(inode));
    write(&mut image, inode, 0, 3);
    assert!(image.begin_write(inode, usize::MAX).is_none());
    assert!(!image.run(|image| image.settle_small(inode)).0);
    image.run(|image| image.finish_write(inode, store(job)));
    assert!(image.run(|image| image.settle_small(inode)).0);
    assert_eq!(content(&mut image, inode, 0), [7; 3]);
}

/// Blocks are numbered up to `u32::MAX`, so there is one after which no other can be.
#[test]
fn a_cut_in_the_last_block_keeps_what_is_before_it() {
    let mut image = image();
    let inode = file(&mut image);
    let last = image.file_bytes_max() - 4096;
    write(&mut image, inode, last, 10);
    image.run(|image| image.settle_small(inode));
    set_size(&mut image, inode, last + 20);
    set_size(&mut image, inode, last + 15);
    assert_eq!(content(&mut image, inode, last)[..10], [7; 10]);
    let (changes, _) = image.take_changes();
    let key = crate::keyspace::image::block(inode, u32::MAX);
    assert!(
        changes
            .keys()
            .any(|(at, value)| at == key && value.is_some())
    );
    assert!(
        changes
            .clears()
            .iter()
            .all(|part| *part.range().start > *key)
    );
}

/// Data that could not be stored is gone, and the file says so by times that do not go back when
/// it is loaded anew.
#[test]
fn discarded_data_leaves_a_recorded_change() {
    let mut image = image();
    let inode = file(&mut image);
    write(&mut image, inode, 0, 100);
    let shown = image.peek(inode).unwrap();
    let ((), ran) = image.run(|image| image.discard_unwritten(inode));
    let left = image.peek(inode).unwrap();
    assert!(ran.changed && left.ctime > shown.ctime);
    assert_eq!((left.size, left.used, image.buffered_bytes()), (0, 0, 0));
    let (changes, _) = image.take_changes();
    let key = crate::keyspace::image::inode(inode);
    let (_, value) = changes.keys().find(|(at, _)| *at == key).unwrap();
    assert_eq!(
        InodeRecord::decode(inode, value.unwrap()).unwrap().stat,
        left
    );
}

/// Overwriting needs no room, also where a page is not full or the quota is used up.
#[test]
fn overwriting_succeeds_at_the_quota() {
    let mut image = image();
    let inode = file(&mut image);
    write(&mut image, inode, 0, 3 * 4096);
    image.config.bytes_max = 3 * 4096;
    write(&mut image, inode, 100, 4096);
    image.config.bytes_max = 4096;
    write(&mut image, inode, 5000, 10);
    let caller = Caller::root();
    let cx = Context {
        caller: &caller,
        now: Timestamp::new(6, 0),
    };
    let data = Bytes::from_static(b"x");
    let (more, _) = image.run(|image| ops::write(image, cx, inode, 3 * 4096, &data));
    assert_eq!(more.unwrap_err(), FsError::QuotaExceeded.into());
}

/// What a full store refuses is taken back, with everything buffered; the rest stays in memory.
#[test]
fn a_reset_keeps_what_is_stored() {
    let mut image = image();
    let kept = file(&mut image);
    write(&mut image, kept, 0, 100);
    image.run(|image| image.settle_small(kept));
    let (_, totals) = image.take_changes();
    image.set_durable(image.applied());
    let memory = image.memory_bytes();
    let before = (image.usage(), image.evictions());

    let caller = Caller::root();
    let cx = Context {
        caller: &caller,
        now: Timestamp::new(4, 0),
    };
    let how = How::Guarded(SetAttrs::default());
    let made = image.run(|image| ops::create(image, cx, InodeId::ROOT, b"g", how));
    let lost = made.0.unwrap().object.inode;
    write(&mut image, lost, 0, 50_000);
    assert_ne!(image.usage(), before.0);
    image.reset(totals);

    assert_eq!(image.usage(), before.0);
    assert!(image.evictions() > before.1);
    assert!(image.is_clean());
    assert!(image.memory_bytes() < memory, "the root has changed");
    let look = |image: &mut Image, inode| image.run(|image| ops::getattr(image, inode)).0;
    assert_eq!(look(&mut image, kept).unwrap().size, 100);
    for inode in [lost, InodeId::ROOT] {
        let miss = Miss::Inode(inode);
        assert_eq!(look(&mut image, inode), Err(miss.into()));
    }
}
