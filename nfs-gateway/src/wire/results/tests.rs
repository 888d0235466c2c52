//! Results are checked by an independent implementation of the protocol's types: it has to read
//! what we write, to its end, and to write the same bytes again.

use std::fmt::Debug;

use base::limits;
use bytes::Bytes;
use nfs3_types::nfs3 as peer;
use nfs3_types::xdr_codec::{Pack, Unpack};
use proptest::prelude::*;

use super::*;
use crate::wire::nfs3::{Device, FileKind, WccAttr};

const XID: u32 = 7;

const FATTR: Fattr = Fattr {
    kind: FileKind::Fifo,
    mode: 1,
    nlink: 2,
    uid: 3,
    gid: 4,
    size: 5,
    used: 6,
    rdev: Device { major: 7, minor: 8 },
    fsid: 9,
    fileid: 10,
    atime: Timestamp::new(11, 12),
    mtime: Timestamp::new(13, 14),
    ctime: Timestamp::new(15, 16),
};

const WCC: Wcc = Wcc {
    before: Some(WccAttr {
        size: 17,
        mtime: Timestamp::new(18, 19),
        ctime: Timestamp::new(20, 21),
    }),
    after: Some(FATTR),
};

const HANDLE: WireHandle<'_> = WireHandle(&[0xab; 56]);

/// Takes a reply's status and the rest of its result, as the independent implementation sees it.
fn read_back<T: Pack + Unpack>(reply: &Reply) -> (u32, T) {
    let bytes = reply.to_vec();
    let length = u32::try_from(bytes.len() - 4).unwrap();
    assert_eq!(bytes[..4], (0x8000_0000 | length).to_be_bytes());
    let (status, body) = bytes[28..].split_first_chunk().unwrap();
    let (value, used) = T::unpack(&mut &*body).unwrap();
    assert_eq!(used, body.len(), "bytes are left over");
    let mut again = Vec::new();
    value.pack(&mut again).unwrap();
    assert_eq!(again, body);
    (u32::from_be_bytes(*status), value)
}

/// Checks a good result, and what the independent implementation prints of it.
fn check<T: Pack + Unpack + Debug>(reply: &Reply, expected: &str) {
    let (status, value) = read_back::<T>(reply);
    assert_eq!(status, 0);
    let printed = format!("{value:?}");
    assert!(printed.contains(expected), "{printed}");
}

#[test]
fn attributes_are_in_order() {
    let attributes = FATTR;
    check::<peer::GETATTR3resok>(
        &ok(XID, &GetattrOk { attributes }),
        "fattr3 { type_: NF3FIFO, mode: 1, nlink: 2, uid: 3, gid: 4, size: 5, used: 6, \
         rdev: specdata3 { specdata1: 7, specdata2: 8 }, fsid: 9, fileid: 10, \
         atime: nfstime3 { seconds: 11, nseconds: 12 }, \
         mtime: nfstime3 { seconds: 13, nseconds: 14 }, \
         ctime: nfstime3 { seconds: 15, nseconds: 16 } }",
    );
    check::<peer::SETATTR3resok>(
        &ok(XID, &WccOk { wcc: WCC }),
        "wcc_data { before: Some(wcc_attr { size: 17, \
         mtime: nfstime3 { seconds: 18, nseconds: 19 }, \
         ctime: nfstime3 { seconds: 20, nseconds: 21 } }), after: Some(fattr3",
    );
}

#[test]
fn results_about_one_object() {
    let attributes = Some(FATTR);
    let lookup = LookupOk {
        object: HANDLE,
        attributes,
        dir: None,
    };
    check::<peer::LOOKUP3resok>(&ok(XID, &lookup), "dir_attributes: None");
    let access = AccessOk {
        attributes,
        access: 0x1f,
    };
    check::<peer::ACCESS3resok>(&ok(XID, &access), "access: 31");
    let readlink = ReadlinkOk {
        attributes: None,
        target: b"abc",
    };
    check::<peer::READLINK3resok<'_>>(&ok(XID, &readlink), "[97, 98, 99]");
    let write = WriteOk {
        wcc: WCC,
        count: 30,
        committed: Stability::DataSync,
        verifier: [1, 2, 3, 4, 5, 6, 7, 8],
    };
    check::<peer::WRITE3resok>(
        &ok(XID, &write),
        "count: 30, committed: DATA_SYNC, verf: writeverf3([1, 2, 3, 4, 5, 6, 7, 8])",
    );
    let commit = CommitOk {
        wcc: WCC,
        verifier: [8; 8],
    };
    check::<peer::COMMIT3resok>(&ok(XID, &commit), "writeverf3([8, 8, 8, 8, 8, 8, 8, 8])");
}

#[test]
fn results_that_change_a_directory() {
    let create = CreateOk {
        object: Some(HANDLE),
        attributes: Some(FATTR),
        dir: WCC,
    };
    check::<peer::CREATE3resok>(&ok(XID, &create), "obj: Some(");
    check::<peer::MKDIR3resok>(&ok(XID, &create), "");
    check::<peer::SYMLINK3resok>(&ok(XID, &create), "");
    check::<peer::MKNOD3resok>(&ok(XID, &create), "");
    check::<peer::REMOVE3resok>(&ok(XID, &WccOk { wcc: WCC }), "");
    check::<peer::RMDIR3resok>(&ok(XID, &WccOk { wcc: WCC }), "");
    let rename = RenameOk {
        from_dir: WCC,
        to_dir: Wcc::default(),
    };
    check::<peer::RENAME3resok>(&ok(XID, &rename), "todir_wcc: wcc_data { before: None");
    let link = LinkOk {
        attributes: None,
        dir: WCC,
    };
    check::<peer::LINK3resok>(&ok(XID, &link), "file_attributes: None");
}

#[test]
fn results_about_the_filesystem() {
    let fsstat = FsstatOk {
        attributes: None,
        total_bytes: 1,
        free_bytes: 2,
        available_bytes: 3,
        total_files: 4,
        free_files: 5,
        available_files: 6,
        invariant_seconds: 7,
    };
    check::<peer::FSSTAT3resok>(
        &ok(XID, &fsstat),
        "tbytes: 1, fbytes: 2, abytes: 3, tfiles: 4, ffiles: 5, afiles: 6, invarsec: 7",
    );
    let fsinfo = FsinfoOk {
        attributes: Some(FATTR),
        read_bytes: 1,
        write_bytes: 2,
        multiple_bytes: 3,
        readdir_bytes: 4,
        file_bytes_max: 5,
        time_delta: Timestamp::new(0, 1),
    };
    check::<peer::FSINFO3resok>(
        &ok(XID, &fsinfo),
        "rtmax: 1, rtpref: 1, rtmult: 3, wtmax: 2, wtpref: 2, wtmult: 3, dtpref: 4, \
         maxfilesize: 5, time_delta: nfstime3 { seconds: 0, nseconds: 1 }, properties: 27",
    );
    let pathconf = PathconfOk {
        attributes: None,
        links_max: 1,
        name_bytes_max: 2,
    };
    check::<peer::PATHCONF3resok>(
        &ok(XID, &pathconf),
        "linkmax: 1, name_max: 2, no_trunc: true, chown_restricted: true, \
         case_insensitive: false, case_preserving: true",
    );
}

#[test]
fn errors_carry_what_the_procedure_has_room_for() {
    let stale = nfsstat3::NFS3ERR_STALE;
    let attributes = Some(FATTR);
    let plain = failed(XID, stale, &());
    assert_eq!(plain.body(), [0, 0, 0, 70]);
    let one = failed(XID, stale, &attributes);
    assert_eq!(read_back::<peer::LOOKUP3resfail>(&one).0, 70);
    assert_eq!(read_back::<peer::READ3resfail>(&one).0, 70);
    let wcc = failed(XID, stale, &WCC);
    assert_eq!(read_back::<peer::SETATTR3resfail>(&wcc).0, 70);
    assert_eq!(read_back::<peer::CREATE3resfail>(&wcc).0, 70);
    let two = failed(XID, stale, &(WCC, Wcc::default()));
    assert_eq!(read_back::<peer::RENAME3resfail>(&two).0, 70);
    let link = failed(XID, nfsstat3::NFS3ERR_JUKEBOX, &(attributes, WCC));
    assert_eq!(read_back::<peer::LINK3resfail>(&link).0, 10_008);
}

#[test]
fn data_is_sent_from_where_it_is() {
    for size in [1, 5, 1020, 4097] {
        let block = Bytes::from(vec![3; size]);
        let data = Payload::from_iter([block.clone(), Bytes::from_static(b"tail")]);
        let result = ReadOk {
            attributes: Some(FATTR),
            eof: true,
        };
        let reply = read(XID, &result, data);
        let is_shared = reply.pieces().any(|piece| piece.as_ptr() == block.as_ptr());
        assert_eq!(is_shared, size > 1020);
        let (_, value) = read_back::<peer::READ3resok<'_>>(&reply);
        assert_eq!(value.data.0, [&block[..], b"tail"].concat());
        assert_eq!(usize::try_from(value.count), Ok(size + 4));
    }
}

#[test]
fn a_listing_ends_where_the_limit_is() {
    let entry = |index: u64| (index, format!("name-{index}"));
    let list = |count: u32| {
        let mut list = DirListWriter::readdir(XID, Some(&FATTR), [1; 8], count);
        for (index, name) in (1..=100).map(entry) {
            let name = name.as_bytes();
            let (fileid, cookie) = (index, index + 10);
            if !list.push(&DirEntry {
                fileid,
                name,
                cookie,
            }) {
                break;
            }
        }
        list.finish(true)
    };
    let mut previous = 0;
    for count in 0..5000 {
        let Ok(reply) = list(count) else {
            assert_eq!(previous, 0, "{count}");
            continue;
        };
        let result_bytes = reply.wire_bytes() - 32;
        assert!(result_bytes <= usize::try_from(count).unwrap());
        let (_, value) = read_back::<peer::READDIR3resok<'_>>(&reply);
        let entries = value.reply.entries.0;
        assert!(entries.len() >= previous.max(1));
        assert_eq!(value.reply.eof, entries.len() == 100);
        previous = entries.len();
    }
    assert_eq!(previous, 100);
}

#[test]
fn an_empty_directory_is_an_empty_list() {
    let list = DirListWriter::readdir(XID, None, [0; 8], 512);
    let reply = list.finish(true).unwrap();
    check::<peer::READDIR3resok<'_>>(&reply, "eof: true");
    let list = DirListWriter::readdir(XID, None, [0; 8], 512);
    assert_eq!(list.finish(false).unwrap_err(), TooSmall);
}

#[test]
fn entries_can_be_taken_back_together() {
    let mut list = DirListWriter::readdir(XID, None, [0; 8], 512);
    let entry = |cookie| DirEntry {
        fileid: 1,
        name: b"n",
        cookie,
    };
    assert!(list.push(&entry(5)));
    let position = list.position();
    assert!(list.push(&entry(6)));
    list.undo_to(position);
    assert!(!list.push(&entry(7)));
    assert_eq!(list.entries(), 1);
    let reply = list.finish(true).unwrap();
    check::<peer::READDIR3resok<'_>>(&reply, "cookie: 5 }]), eof: false");
}

proptest! {
    /// A READDIRPLUS reply stays within both limits, and is whole.
    #[test]
    fn listings_with_attributes_stay_within_limits(
        names in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..256), 0..40),
        dir_count in 0..4096_u32,
        max_count in 0..16_384_u32,
    ) {
        let mut list = DirListWriter::readdirplus(XID, Some(&FATTR), [1; 8], dir_count, max_count);
        for (cookie, name) in (1..).zip(&names) {
            let plus = DirEntryPlus { attributes: Some(FATTR), object: Some(HANDLE) };
            if !list.push_plus(&DirEntry { fileid: cookie, name, cookie }, &plus) {
                break;
            }
        }
        let entries = list.entries();
        if let Ok(reply) = list.finish(true) {
            prop_assert!(reply.wire_bytes() - 32 <= usize::try_from(max_count).unwrap());
            let (_, value) = read_back::<peer::READDIRPLUS3resok<'_>>(&reply);
            let listed = value.reply.entries.0;
            prop_assert_eq!(listed.len(), entries);
            prop_assert_eq!(value.reply.eof, entries == names.len());
            let name_bytes: usize = listed.iter().map(|entry| 24 + entry.name.0.0.len()).sum();
            prop_assert!(entries == 1 || name_bytes <= usize::try_from(dir_count).unwrap());
        } else {
            prop_assert_eq!(entries, 0);
        }
    }

    /// However much the client asks for, a reply is bounded.
    #[test]
    fn listings_are_bounded(more in 0..1_000_000_u32) {
        let count = u32::MAX - more;
        let mut list = DirListWriter::readdir(XID, None, [0; 8], count);
        let name = [b'n'; limits::NAME_BYTES_MAX];
        while list.push(&DirEntry { fileid: 1, name: &name, cookie: 1 }) {}
        let reply = list.finish(false).unwrap();
        prop_assert!(reply.wire_bytes() <= limits::READ_BYTES_MAX + 32);
    }
}
