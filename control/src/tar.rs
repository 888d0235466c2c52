//! The archive format in which trees go in and out: tar as POSIX has it (pax), with what GNU tar adds
//! for sparse files. Written by hand because every byte that comes in may be hostile, and names,
//! holes and times are to be exact.
//!
//! Read: ustar, pax headers, GNU's long names, numbers in base 256, sparse files as GNU tar (`S`)
//! and pax (0.1 and 1.0) have them. Written: ustar with pax headers where ustar does not say it all.
//! A socket, which tar has no kind for, is an empty file with the pax record `HOLDFAST.kind=socket`.

mod pax;
mod read;
mod write;

use base::Timestamp;
use metadata::stat::Device;

pub(crate) use read::Reader;
pub(crate) use write::{END, about, header, padding};

/// What an archive is made of, in bytes.
const BLOCK: usize = 512;

/// The same.
const BLOCK_U64: u64 = 512;

/// Longest pax or long-name header that is read, in bytes.
const EXTENSION_BYTES_MAX: u64 = 1 << 20;

/// Longest path, in bytes: as in `metadata::compare`.
const PATH_BYTES_MAX: usize = metadata::compare::PATH_BYTES_MAX;

/// Most parts of a sparse file that are told apart: 16 bytes of memory each.
pub(crate) const EXTENTS_MAX: usize = 1 << 16;

/// Key of the pax record that tells a socket.
const KIND_KEY: &str = "HOLDFAST.kind";

/// Key of the pax record that tells [`Kind::Kept`].
const KEEP_KEY: &str = "HOLDFAST.keep";

/// Key of the record of a pax global header that says what the commit is to say, in JSON.
const ABOUT_KEY: &str = "HOLDFAST.about";

/// Something that an archive holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Where it is, as the archive says.
    pub(crate) path: Vec<u8>,
    /// What it is.
    pub(crate) kind: Kind,
    /// Permission bits, at most `0o7777`.
    pub(crate) mode: u32,
    /// Owner.
    pub(crate) uid: u32,
    /// Group.
    pub(crate) gid: u32,
    /// Last change of content.
    pub(crate) mtime: Timestamp,
    /// Last access, if the archive says.
    pub(crate) atime: Option<Timestamp>,
}

/// What something in an archive is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A file.
    File {
        /// Bytes, holes included.
        size: u64,
    },
    /// What the version before has at this path, attributes and all; no directory.
    Kept,
    /// A directory.
    Directory,
    /// A symbolic link to this.
    Symlink(Vec<u8>),
    /// Another name of what is at this path of the archive.
    Link(Vec<u8>),
    /// A character device.
    CharDevice(Device),
    /// A block device.
    BlockDevice(Device),
    /// A pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// A part of a file that is no hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Where it begins, in bytes.
    pub(crate) offset: u64,
    /// Its bytes.
    pub(crate) length: u64,
}

/// Why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TarError {
    /// It ends too soon.
    #[error(
        "the archive is cut off{}",
        place(.0)
    )]
    Truncated(Option<Vec<u8>>),
    /// It is not as it should be.
    #[error("{}{}", whose(.path), .why)]
    Malformed {
        /// At which member.
        path: Option<Vec<u8>>,
        /// In what way, and what to do.
        why: String,
    },
    /// What it is read from fails.
    #[error("read the archive: {0}")]
    Io(std::io::Error),
}

fn place(path: &Option<Vec<u8>>) -> String {
    path.as_ref()
        .map_or_else(String::new, |path| format!(" in {}", shown(path)))
}

fn whose(path: &Option<Vec<u8>>) -> String {
    path.as_ref()
        .map_or_else(String::new, |path| format!("{}: ", shown(path)))
}

/// A path in a message.
pub(crate) fn shown(path: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(path))
}

impl TarError {
    fn new(path: Option<&[u8]>, why: impl Into<String>) -> Self {
        Self::Malformed {
            path: path.map(<[u8]>::to_vec),
            why: why.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Cursor;

    /// What a member is written with, and what comes back of it.
    type Content = (Member, Vec<(u64, Vec<u8>)>);

    fn len(bytes: &[u8]) -> u64 {
        u64::try_from(bytes.len()).unwrap()
    }

    fn write(members: &[Content]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (member, parts) in members {
            let extents: Vec<Extent> = parts
                .iter()
                .map(|(offset, data)| Extent {
                    offset: *offset,
                    length: len(data),
                })
                .collect();
            bytes.extend(header(member, &extents));
            let mut length = 0;
            for (_, data) in parts {
                bytes.extend(data);
                length += len(data);
            }
            bytes.extend(padding(length));
        }
        bytes.extend(END);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Vec<Content>, TarError> {
        let mut reader = Reader::new(Cursor::new(bytes));
        let mut found = Vec::new();
        while let Some(member) = reader.next()? {
            let mut parts: Vec<(u64, Vec<u8>)> = Vec::new();
            while let Some((offset, data)) = reader.data()? {
                match parts.last_mut() {
                    Some((start, last)) if *start + len(last) == offset => {
                        last.extend(data);
                    }
                    _ => parts.push((offset, data)),
                }
            }
            found.push((member, parts));
        }
        Ok(found)
    }

    fn member(path: &[u8], kind: Kind) -> Member {
        Member {
            path: path.to_vec(),
            kind,
            mode: 0o4755,
            uid: 7,
            gid: 8,
            mtime: Timestamp::new(1_700_000_000, 123_456_789),
            atime: None,
        }
    }

    fn kinds() -> impl Strategy<Value = Kind> {
        let device =
            (any::<u32>(), any::<u32>()).prop_map(|(major, minor)| Device { major, minor });
        let text = || proptest::collection::vec(1_u8..=255, 1..300);
        prop_oneof![
            Just(Kind::Directory),
            text().prop_map(Kind::Symlink),
            text().prop_map(Kind::Link),
            device.clone().prop_map(Kind::CharDevice),
            device.prop_map(Kind::BlockDevice),
            Just(Kind::Fifo),
            Just(Kind::Socket),
            Just(Kind::Kept),
        ]
    }

    fn members() -> impl Strategy<Value = Content> {
        let parts = proptest::collection::vec((1_u64..5000, 1_usize..3000), 0..6);
        let kind = prop_oneof![
            kinds().prop_map(|kind| (kind, Vec::new())),
            (parts, 0_u64..3000, any::<bool>()).prop_map(|(parts, tail, dense)| {
                let (mut at, mut content) = (0, Vec::new());
                for (gap, length) in parts {
                    if !dense {
                        at += gap;
                    }
                    let data = vec![b'x'; length];
                    match content.last_mut() {
                        Some((_, last)) if dense => Vec::extend(last, data),
                        _ => content.push((at, data)),
                    }
                    at += u64::try_from(length).unwrap();
                }
                let size = if dense { at } else { at + tail };
                (Kind::File { size }, content)
            }),
        ];
        let time = (0..1_u64 << 40, 0..1_000_000_000_u32)
            .prop_map(|(seconds, nanos)| Timestamp::new(seconds, nanos));
        (
            proptest::collection::vec(1_u8..=255, 1..400),
            kind,
            0..0o10000_u32,
            (any::<u32>(), any::<u32>()),
            (time.clone(), proptest::option::of(time)),
        )
            .prop_map(|(mut path, (kind, parts), mode, (uid, gid), times)| {
                // A slash at the end is how a directory says that it is one.
                while path.last() == Some(&b'/') {
                    path.pop();
                }
                path.push(b'p');
                let member = Member {
                    path,
                    kind,
                    mode,
                    uid,
                    gid,
                    mtime: times.0,
                    atime: times.1,
                };
                (member, parts)
            })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(members in proptest::collection::vec(members(), 0..6)) {
            let bytes = write(&members);
            prop_assert_eq!(bytes.len() % BLOCK, 0);
            prop_assert_eq!(read(&bytes).unwrap(), members);
        }

        #[test]
        fn what_is_cut_off_is_noticed(members in proptest::collection::vec(members(), 1..3), part in 0..1000_usize) {
            let bytes = write(&members);
            // The second block of zeros may be missing.
            let length = (bytes.len() - BLOCK) * part / 1000;
            prop_assert!(matches!(read(&bytes[..length]), Err(TarError::Truncated(_))));
        }

        #[test]
        fn whatever_comes_is_read_or_refused(
            members in proptest::collection::vec(members(), 1..3),
            changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..20),
        ) {
            let mut bytes = write(&members);
            for (at, byte) in changes {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            drop(read(&bytes));
        }

        #[test]
        fn any_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 1..2000)) {
            prop_assert!(read(&bytes).is_err());
        }
    }

    #[test]
    fn other_programs_headers_are_understood() {
        let mut bytes = write(&[(
            member(b"f", Kind::File { size: 2 }),
            vec![(0, b"hi".to_vec())],
        )]);
        // What comes first is a pax header for the nanoseconds; the last digits of the checksum
        // are not what the bytes add up to any more.
        bytes[148] ^= 1;
        let error = read(&bytes).unwrap_err().to_string();
        assert!(error.contains("checksum"), "{error}");
        let mut trailing = write(&[]);
        trailing.extend(write(&[(member(b"g", Kind::Fifo), vec![])]));
        let error = read(&trailing).unwrap_err().to_string();
        assert!(error.contains("after its end"), "{error}");
    }
}
