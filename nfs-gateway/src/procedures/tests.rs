//! `.holdfast` in the root, also where the tree has an entry of that name.

use base::{Caller, Timestamp};
use metadata::image::{ImageConfig, InodeNumbers, LoadedEntry, NameHasher, Totals};
use metadata::ops::{self, How};
use metadata::record::entry::Entry;
use metadata::record::inode::InodeRecord;
use metadata::stat::{FileKind, SetAttrs};

use super::*;
use crate::handle::HandleKey;
use crate::wire::args::{NameArgs, ReaddirArgs, ReaddirplusArgs};

const NOW: Timestamp = Timestamp::new(1_000, 0);
const NAME_KEY: [u8; 32] = [7; 32];

fn root_record(entries: u64) -> InodeRecord {
    InodeRecord {
        entries,
        ..InodeRecord::root((0o777, 0, 0), NOW)
    }
}

/// An image with a root directory of so many entries, of which none are loaded.
fn image(entries: u64) -> Image {
    let config = ImageConfig {
        name_key: NAME_KEY,
        block_bytes: 4096,
        bytes_max: 1 << 30,
        inodes_max: 1 << 20,
        read_only: false,
    };
    let totals = Totals {
        numbers: InodeNumbers {
            next: 100,
            end: 200,
        },
        ..Totals::default()
    };
    let mut image = Image::new(config, totals);
    image.install_inode(InodeId::ROOT, Some(root_record(entries)));
    image
}

fn run(image: &mut Image, call: &NfsCall<'_>) -> Step {
    let view = View {
        keys: Arc::new(HandleKeys::new(HandleKey::new(1, [1; 32]), None)),
        session: SessionId::new(5),
        revocation: 0,
        flags: 0,
        fsid: 5,
        verifier: [0; 8],
        selector: Selector::LIVE,
    };
    let inside = Inside::new(NOW);
    let caller = Caller::root();
    let objects = Objects {
        first: InodeId::ROOT,
        second: InodeId::ROOT,
    };
    let (step, _) = image.run(|image| {
        let scope = Scope {
            xid: 1,
            image,
            cx: Context {
                caller: &caller,
                now: NOW,
            },
            view: &view,
            space: Space {
                available: None,
                refuses: false,
            },
            inside: Some(&inside),
        };
        execute(scope, call, objects)
    });
    step
}

fn listings() -> [NfsCall<'static>; 2] {
    let dir = WireHandle(&[]);
    [
        NfsCall::Readdir(ReaddirArgs {
            dir,
            cookie: 2,
            verifier: [0; 8],
            count: 4096,
        }),
        NfsCall::Readdirplus(ReaddirplusArgs {
            dir,
            cookie: 2,
            verifier: [0; 8],
            dir_count: 4096,
            max_count: 4096,
        }),
    ]
}

fn contains(reply: &Reply, name: &[u8]) -> bool {
    reply.body().windows(name.len()).any(|part| part == name)
}

#[test]
fn an_entry_of_that_name_is_hidden() {
    let mut image = image(0);
    let caller = Caller::root();
    let cx = Context {
        caller: &caller,
        now: NOW,
    };
    for name in [&b"before"[..], inside::NAME, b"behind"] {
        let how = How::Guarded(SetAttrs::default());
        image.run(|image| ops::create(image, cx, InodeId::ROOT, name, how).unwrap());
    }
    for call in listings() {
        let Step::Reply(reply) = run(&mut image, &call) else {
            panic!("{call:?}");
        };
        assert!(contains(&reply, b"before") && contains(&reply, b"behind"));
        assert!(!contains(&reply, inside::NAME), "{call:?}");
    }
    // The name leads elsewhere, and nothing takes the entry away.
    let args = NameArgs {
        dir: WireHandle(&[]),
        name: inside::NAME,
    };
    let Step::Reply(found) = run(&mut image, &NfsCall::Lookup(args)) else {
        panic!("no reply");
    };
    let attributes = Selector::INSIDE.file_id(InodeId::new(1)).to_be_bytes();
    assert!(contains(&found, &attributes));
    let Step::Reply(refused) = run(&mut image, &NfsCall::Remove(args)) else {
        panic!("no reply");
    };
    assert_eq!(refused.body().first_chunk(), Some(&30_u32.to_be_bytes()));
    let other = NameArgs {
        name: b".holdfas",
        ..args
    };
    let Step::Reply(missing) = run(&mut image, &NfsCall::Lookup(other)) else {
        panic!("no reply");
    };
    assert_eq!(missing.body().first_chunk(), Some(&2_u32.to_be_bytes()));
}

/// A reply without an entry that is not the last would end a listing: if the only entry at hand is
/// hidden, more are loaded.
#[test]
fn a_listing_goes_on_behind_a_hidden_entry() {
    let hash = NameHasher::new(NAME_KEY).hash(inside::NAME);
    let entry = Entry {
        inode: InodeId::new(50),
        kind: FileKind::File,
    };
    for call in listings() {
        let mut image = image(2);
        let hidden = LoadedEntry {
            hash,
            name: base::Name::new(inside::NAME).unwrap(),
            entry,
        };
        image.install_entries(InodeId::ROOT, 0, hash, vec![hidden]);
        let from = hash + 1;
        let Step::Load(misses) = run(&mut image, &call) else {
            panic!("{call:?}");
        };
        let dir = InodeId::ROOT;
        assert_eq!(misses, [Miss::Entries { dir, from }]);
        image.install_entries(InodeId::ROOT, from, u64::MAX, Vec::new());
        let Step::Reply(reply) = run(&mut image, &call) else {
            panic!("{call:?}");
        };
        assert!(!contains(&reply, inside::NAME));
    }
}
