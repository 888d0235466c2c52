use super::*;
use crate::wire::nfs3::SetTime;
use crate::wire::xdr::XdrWriter;

/// Arguments, written word by word.
#[derive(Default)]
struct Arguments(XdrWriter);

impl Arguments {
    fn words(mut self, words: &[u32]) -> Self {
        for word in words {
            self.0.u32(*word);
        }
        self
    }

    fn hyper(mut self, number: u64) -> Self {
        self.0.u64(number);
        self
    }

    fn opaque(mut self, data: &[u8]) -> Self {
        self.0.opaque(data);
        self
    }

    fn bytes(self) -> Bytes {
        Bytes::from(self.0.into_bytes())
    }
}

fn args() -> Arguments {
    Arguments::default()
}

/// Checks what `bytes` decode to, and that no prefix and no continuation of them decodes.
fn check(procedure: Procedure, bytes: Bytes, expected: NfsCall<'_>) {
    let decoded = NfsCall::decode(procedure, XdrReader::new(&bytes));
    assert_eq!(decoded, Ok(expected));
    for length in 0..bytes.len() {
        let cut = bytes.slice(..length);
        let decoded = NfsCall::decode(procedure, XdrReader::new(&cut));
        assert_eq!(
            decoded,
            Err(XdrError::Short),
            "{procedure:?} cut at {length}"
        );
    }
    let longer = Bytes::from([&bytes[..], &[0; 4]].concat());
    let decoded = NfsCall::decode(procedure, XdrReader::new(&longer));
    assert_eq!(decoded, Err(XdrError::Trailing), "{procedure:?}");
}

const H: WireHandle<'_> = WireHandle(&[1, 2, 3, 4, 5]);
const D: WireHandle<'_> = WireHandle(&[6; 64]);
const PLACE: NameArgs<'_> = NameArgs {
    dir: D,
    name: b"name",
};
const NOTHING: &[u32] = &[0; 6];
const MODE: &[u32] = &[1, 0o755, 0, 0, 0, 0, 0];

fn mode_only() -> SetAttributes {
    SetAttributes {
        mode: Some(0o755),
        ..SetAttributes::default()
    }
}

#[test]
fn procedures_that_take_a_handle() {
    let object = ObjectArgs { object: H };
    let bytes = || args().opaque(H.0).bytes();
    check(Procedure::Null, Bytes::new(), NfsCall::Null);
    check(Procedure::Getattr, bytes(), NfsCall::Getattr(object));
    check(Procedure::Readlink, bytes(), NfsCall::Readlink(object));
    check(Procedure::Fsstat, bytes(), NfsCall::Fsstat(object));
    check(Procedure::Fsinfo, bytes(), NfsCall::Fsinfo(object));
    check(Procedure::Pathconf, bytes(), NfsCall::Pathconf(object));
    let bytes = args().opaque(H.0).words(&[0x3f]).bytes();
    let expected = AccessArgs {
        object: H,
        access: 0x3f,
    };
    check(Procedure::Access, bytes, NfsCall::Access(expected));
}

#[test]
fn procedures_that_take_names() {
    let bytes = || args().opaque(D.0).opaque(b"name").bytes();
    check(Procedure::Lookup, bytes(), NfsCall::Lookup(PLACE));
    check(Procedure::Remove, bytes(), NfsCall::Remove(PLACE));
    check(Procedure::Rmdir, bytes(), NfsCall::Rmdir(PLACE));
    let to = NameArgs {
        dir: H,
        name: b"other",
    };
    let bytes = args()
        .opaque(D.0)
        .opaque(b"name")
        .opaque(H.0)
        .opaque(b"other");
    let expected = RenameArgs { from: PLACE, to };
    check(Procedure::Rename, bytes.bytes(), NfsCall::Rename(expected));
    let bytes = args().opaque(H.0).opaque(D.0).opaque(b"name");
    let expected = LinkArgs {
        object: H,
        place: PLACE,
    };
    check(Procedure::Link, bytes.bytes(), NfsCall::Link(expected));
}

#[test]
fn procedures_that_set_and_make() {
    let place = || args().opaque(D.0).opaque(b"name");
    let attributes = mode_only();
    let bytes = args().opaque(H.0).words(MODE).words(&[1, 7, 8]).bytes();
    let expected = SetattrArgs {
        object: H,
        attributes,
        guard: Some(Timestamp::new(7, 8)),
    };
    check(Procedure::Setattr, bytes, NfsCall::Setattr(expected));
    let verifier = [0, 0, 0, 5, 0, 0, 0, 6];
    for (words, how) in [
        ([&[0], MODE].concat(), CreateHow::Unchecked(attributes)),
        ([&[1], MODE].concat(), CreateHow::Guarded(attributes)),
        (vec![2, 5, 6], CreateHow::Exclusive(verifier)),
    ] {
        let expected = CreateArgs { place: PLACE, how };
        let bytes = place().words(&words).bytes();
        check(Procedure::Create, bytes, NfsCall::Create(expected));
    }
    let expected = MkdirArgs {
        place: PLACE,
        attributes,
    };
    let bytes = place().words(MODE).bytes();
    check(Procedure::Mkdir, bytes, NfsCall::Mkdir(expected));
    let expected = SymlinkArgs {
        place: PLACE,
        attributes: SetAttributes::default(),
        target: b"../target",
    };
    let bytes = place().words(NOTHING).opaque(b"../target").bytes();
    check(Procedure::Symlink, bytes, NfsCall::Symlink(expected));
}

#[test]
fn mknod_takes_what_its_kind_needs() {
    let device = Device { major: 8, minor: 1 };
    let none = Device::default();
    for (words, kind, attributes, device) in [
        (vec![7], FileKind::Fifo, true, none),
        (vec![6], FileKind::Socket, true, none),
        (vec![3], FileKind::BlockDevice, true, device),
        (vec![4], FileKind::CharacterDevice, true, device),
        (vec![1], FileKind::Regular, false, none),
        (vec![2], FileKind::Directory, false, none),
    ] {
        let mut bytes = args().opaque(D.0).opaque(b"name").words(&words);
        if attributes {
            bytes = bytes.words(MODE);
        }
        if device != none {
            bytes = bytes.words(&[device.major, device.minor]);
        }
        let attributes = if attributes {
            mode_only()
        } else {
            SetAttributes::default()
        };
        let expected = MknodArgs {
            place: PLACE,
            kind,
            attributes,
            device,
        };
        check(Procedure::Mknod, bytes.bytes(), NfsCall::Mknod(expected));
    }
}

#[test]
fn procedures_that_move_data() {
    let bytes = args().opaque(H.0).hyper(9).words(&[4096]).bytes();
    let (file, offset, count) = (H, 9, 4096);
    let expected = ReadArgs {
        file,
        offset,
        count,
    };
    check(Procedure::Read, bytes.clone(), NfsCall::Read(expected));
    let expected = CommitArgs {
        file,
        offset,
        count,
    };
    check(Procedure::Commit, bytes, NfsCall::Commit(expected));
    let bytes = args().opaque(H.0).hyper(9).words(&[5, 2]).opaque(b"bytes");
    let expected = WriteArgs {
        file,
        offset,
        stability: Stability::FileSync,
        data: Bytes::from_static(b"bytes"),
    };
    check(Procedure::Write, bytes.bytes(), NfsCall::Write(expected));
    let dir = D;
    let (cookie, verifier) = (77, [0, 0, 0, 1, 0, 0, 0, 2]);
    let list = || args().opaque(D.0).hyper(cookie).words(&[1, 2]);
    let expected = ReaddirArgs {
        dir,
        cookie,
        verifier,
        count: 512,
    };
    let bytes = list().words(&[512]).bytes();
    check(Procedure::Readdir, bytes, NfsCall::Readdir(expected));
    let expected = ReaddirplusArgs {
        dir,
        cookie,
        verifier,
        dir_count: 512,
        max_count: 8192,
    };
    let bytes = list().words(&[512, 8192]).bytes();
    check(
        Procedure::Readdirplus,
        bytes,
        NfsCall::Readdirplus(expected),
    );
}

#[test]
fn impossible_values_are_errors() {
    let long_handle = args().opaque(&[1; 65]);
    let no_bool = args().opaque(H.0).words(&[2, 0, 0, 0, 0, 0, 0]);
    let no_time = args().opaque(H.0).words(&[0, 0, 0, 0, 3, 0, 0]);
    let no_how = args().opaque(D.0).opaque(b"n").words(&[3, 0, 0]);
    let no_kind = args().opaque(D.0).opaque(b"n").words(&[8]);
    let no_stability = args().opaque(H.0).hyper(0).words(&[1, 3]).opaque(b"x");
    let counts_differ = args().opaque(H.0).hyper(0).words(&[2, 0]).opaque(b"x");
    let long_name = args().opaque(D.0).opaque(&[b'n'; WIRE_NAME_BYTES_MAX + 1]);
    let cases = [
        (Procedure::Getattr, long_handle, XdrError::TooLong),
        (Procedure::Setattr, no_bool, XdrError::Value),
        (Procedure::Setattr, no_time, XdrError::Value),
        (Procedure::Create, no_how, XdrError::Value),
        (Procedure::Mknod, no_kind, XdrError::Value),
        (Procedure::Write, no_stability, XdrError::Value),
        (Procedure::Write, counts_differ, XdrError::Value),
        (Procedure::Lookup, long_name, XdrError::TooLong),
    ];
    for (procedure, arguments, error) in cases {
        let bytes = arguments.bytes();
        let decoded = NfsCall::decode(procedure, XdrReader::new(&bytes));
        assert_eq!(decoded, Err(error), "{procedure:?}");
    }
}

#[test]
fn names_that_are_too_long_for_a_name_still_decode() {
    let bytes = args().opaque(D.0).opaque(&[b'n'; 300]).bytes();
    let decoded = NfsCall::decode(Procedure::Lookup, XdrReader::new(&bytes)).unwrap();
    assert!(matches!(decoded, NfsCall::Lookup(args) if args.name.len() == 300));
    assert_eq!(decoded.handle(), Some(D));
    let times = SetAttributes {
        mtime: SetTime::To(Timestamp::new(u64::from(u32::MAX), 1)),
        ..SetAttributes::default()
    };
    let bytes = args()
        .opaque(H.0)
        .words(&[0, 0, 0, 0, 0, 2, u32::MAX, 1, 0])
        .bytes();
    let decoded = NfsCall::decode(Procedure::Setattr, XdrReader::new(&bytes)).unwrap();
    assert!(matches!(decoded, NfsCall::Setattr(args) if args.attributes == times));
}
