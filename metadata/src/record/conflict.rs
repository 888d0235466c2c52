//! What a merge could not decide.

use base::{CommitId, InodeId};
use bytes::Bytes;

use super::inode::InodeRecord;
use super::{Reader, RecordError, Writer};
use crate::stat::FileKind;

/// Version of a record that names no commit.
const VERSION: u8 = 1;
/// Version of a record that names commits.
const VERSION_WITH_SOURCES: u8 = 2;
const HAS_ASIDE: u8 = 1;
const HAS_BASE: u8 = 2;
const HAS_OURS: u8 = 4;
const HAS_THEIRS: u8 = 8;
const HAS_BASE_COMMIT: u8 = 16;
const HAS_OUR_COMMIT: u8 = 32;
const HAS_THEIR_COMMIT: u8 = 64;
const OBJECTS: u8 = HAS_ASIDE | HAS_BASE | HAS_OURS | HAS_THEIRS;
const SOURCES: u8 = HAS_BASE_COMMIT | HAS_OUR_COMMIT | HAS_THEIR_COMMIT;

/// Longest path in a record, in bytes (PATH_MAX of Linux). A longer one loses its front.
pub const PATH_BYTES_MAX: usize = 4096;

/// What kind of conflict it is: a row of the table in `docs/design/0005-merge.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConflictKind {
    /// Both changed a file's content.
    Content,
    /// One changed an object, the other deleted it.
    EditDelete,
    /// Both renamed an object, to different names.
    RenameRename,
    /// One renamed an object, the other deleted it.
    RenameDelete,
    /// Both made an object of one name.
    CreateCreate,
    /// Two objects came to one name, at least one by a rename.
    NameTaken,
    /// A directory and something else came to one name.
    DirectoryName,
    /// One deleted a directory, the other put something into it.
    DirectoryDeleted,
    /// Directories were moved into one another.
    Cycle,
    /// Each removed another of the object's last names.
    Links,
    /// Both changed mode, owner or group.
    Attributes,
    /// Both changed the target of a symbolic link.
    Target,
    /// One changed an object, the other put something of another type in its place.
    Type,
}

/// How a conflict was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resolution {
    /// Both versions are in the result.
    KeptBoth,
    /// Our version is in the result.
    Ours,
    /// Their version is in the result.
    Theirs,
}

/// A place in the result.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The inode there. 0 if the merge was not carried out, so that it has none yet.
    pub inode: InodeId,
    /// Its path from the root, without a slash in front. If the object is not in the result, the
    /// path it had where it last was. A path that is too long begins with `...`.
    pub path: Bytes,
}

/// An object as one side has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Its inode on that side.
    pub inode: InodeId,
    /// Its attributes, its first name, and the target of a link. Never a file's content.
    pub record: InodeRecord,
}

/// The commits that a merge was of. They are named, not held: a commit may be gone when its name is
/// read here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// What both sides came from; none if that was an empty workspace.
    pub base: Option<CommitId>,
    /// Our side; none if it was no commit.
    pub ours: Option<CommitId>,
    /// Their side; none if it was no commit.
    pub theirs: Option<CommitId>,
}

/// A conflict of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// What kind it is.
    pub kind: ConflictKind,
    /// How it was settled.
    pub resolution: Resolution,
    /// What is where it belongs.
    pub place: Place,
    /// What was put beside it under another name.
    pub aside: Option<Place>,
    /// The object in base, if it was there.
    pub base: Option<Version>,
    /// What ours has.
    pub ours: Option<Version>,
    /// What theirs has.
    pub theirs: Option<Version>,
    /// The commits that were merged.
    pub sources: Sources,
}

impl ConflictKind {
    /// All kinds.
    pub const ALL: [Self; 13] = [
        Self::Content,
        Self::EditDelete,
        Self::RenameRename,
        Self::RenameDelete,
        Self::CreateCreate,
        Self::NameTaken,
        Self::DirectoryName,
        Self::DirectoryDeleted,
        Self::Cycle,
        Self::Links,
        Self::Attributes,
        Self::Target,
        Self::Type,
    ];

    /// A word for people and scripts.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Content => "content",
            Self::EditDelete => "edit-delete",
            Self::RenameRename => "rename-rename",
            Self::RenameDelete => "rename-delete",
            Self::CreateCreate => "create-create",
            Self::NameTaken => "name-taken",
            Self::DirectoryName => "directory-name",
            Self::DirectoryDeleted => "directory-deleted",
            Self::Cycle => "cycle",
            Self::Links => "links",
            Self::Attributes => "attributes",
            Self::Target => "target",
            Self::Type => "type",
        }
    }

    /// Numbers are stored: never reused for something else.
    fn number(self) -> u8 {
        match self {
            Self::Content => 1,
            Self::EditDelete => 2,
            Self::RenameRename => 3,
            Self::RenameDelete => 4,
            Self::CreateCreate => 5,
            Self::NameTaken => 6,
            Self::DirectoryName => 7,
            Self::DirectoryDeleted => 8,
            Self::Cycle => 9,
            Self::Links => 10,
            Self::Attributes => 11,
            Self::Target => 12,
            Self::Type => 13,
        }
    }
}

impl Conflict {
    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let commits = self.sources.commits();
        let named = commits.into_iter().filter(|(_, commit)| commit.is_some());
        let sources = named.fold(0, |flags, (flag, _)| flags | flag);
        let mut to = Writer::new(match sources {
            0 => VERSION,
            _ => VERSION_WITH_SOURCES,
        });
        to.u8(self.kind.number());
        to.u8(match self.resolution {
            Resolution::KeptBoth => 1,
            Resolution::Ours => 2,
            Resolution::Theirs => 3,
        });
        let mut flags = sources;
        for (flag, present) in [
            (HAS_ASIDE, self.aside.is_some()),
            (HAS_BASE, self.base.is_some()),
            (HAS_OURS, self.ours.is_some()),
            (HAS_THEIRS, self.theirs.is_some()),
        ] {
            flags |= if present { flag } else { 0 };
        }
        to.u8(flags);
        for place in [Some(&self.place), self.aside.as_ref()]
            .into_iter()
            .flatten()
        {
            to.u64(place.inode.raw());
            to.bytes(&place.path);
        }
        for version in [&self.base, &self.ours, &self.theirs].into_iter().flatten() {
            to.u64(version.inode.raw());
            to.bytes(&version.record.encode());
        }
        for commit in commits.into_iter().filter_map(|(_, commit)| commit) {
            to.raw(commit.as_bytes());
        }
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let has_sources = record.first() == Some(&VERSION_WITH_SOURCES);
        let (version, known) = match has_sources {
            true => (VERSION_WITH_SOURCES, OBJECTS | SOURCES),
            false => (VERSION, OBJECTS),
        };
        let mut from = Reader::new(record, version)?;
        let number = from.u8()?;
        let kind = (ConflictKind::ALL.into_iter())
            .find(|kind| kind.number() == number)
            .ok_or(RecordError::Field("kind of conflict"))?;
        let resolution = match from.u8()? {
            1 => Resolution::KeptBoth,
            2 => Resolution::Ours,
            3 => Resolution::Theirs,
            _ => return Err(RecordError::Field("resolution")),
        };
        let flags = from.u8()?;
        if flags & !known != 0 || has_sources != (flags & SOURCES != 0) {
            return Err(RecordError::Field("flags"));
        }
        let place = Place::decode(&mut from)?;
        let aside = (flags & HAS_ASIDE != 0).then(|| Place::decode(&mut from));
        let aside = aside.transpose()?;
        let mut version = |flag| {
            let found = (flags & flag != 0).then(|| Version::decode(&mut from));
            found.transpose()
        };
        let (base, ours, theirs) = (version(HAS_BASE)?, version(HAS_OURS)?, version(HAS_THEIRS)?);
        let mut commit = |flag| -> Result<Option<CommitId>, RecordError> {
            let found = (flags & flag != 0).then(|| from.array());
            Ok(found.transpose()?.map(CommitId::new))
        };
        let sources = Sources {
            base: commit(HAS_BASE_COMMIT)?,
            ours: commit(HAS_OUR_COMMIT)?,
            theirs: commit(HAS_THEIR_COMMIT)?,
        };
        from.end()?;
        Ok(Self {
            kind,
            resolution,
            place,
            aside,
            base,
            ours,
            theirs,
            sources,
        })
    }

    /// The id under which a conflict with this encoding is stored.
    #[must_use]
    pub fn id(encoded: &[u8]) -> [u8; 16] {
        let hash = blake3::hash(encoded);
        hash.as_bytes().first_chunk().copied().unwrap_or_default()
    }
}

impl Sources {
    /// Its commits, with their flags, in the order in which they are stored.
    fn commits(&self) -> [(u8, Option<CommitId>); 3] {
        [
            (HAS_BASE_COMMIT, self.base),
            (HAS_OUR_COMMIT, self.ours),
            (HAS_THEIR_COMMIT, self.theirs),
        ]
    }
}

impl Place {
    fn decode(from: &mut Reader<'_>) -> Result<Self, RecordError> {
        let inode = InodeId::new(from.u64()?);
        let path = from.bytes()?;
        if path.len() > PATH_BYTES_MAX {
            return Err(RecordError::Field("path"));
        }
        Ok(Self {
            inode,
            path: Bytes::copy_from_slice(path),
        })
    }
}

impl Version {
    /// A version of an object with these attributes.
    #[must_use]
    pub fn new(inode: InodeId, mut record: InodeRecord) -> Self {
        if record.stat.kind == FileKind::File {
            record.inline = None;
        }
        record.stat.inode = inode;
        Self { inode, record }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, RecordError> {
        let inode = InodeId::new(from.u64()?);
        let record = InodeRecord::decode(inode, from.bytes()?)?;
        if record.stat.kind == FileKind::File && record.inline.is_some() {
            return Err(RecordError::Field("content in a conflict"));
        }
        Ok(Self { inode, record })
    }
}

#[cfg(test)]
mod tests {
    use base::{Name, Timestamp};
    use proptest::prelude::*;

    use super::*;
    use crate::stat::{Device, Stat};

    fn version(inode: u64) -> Version {
        let inode = InodeId::new(inode);
        let record = InodeRecord {
            stat: Stat {
                inode,
                kind: FileKind::File,
                mode: 0o644,
                nlink: 1,
                uid: 1,
                gid: 2,
                size: 3,
                used: 4096,
                device: Device::default(),
                atime: Timestamp::new(1, 2),
                mtime: Timestamp::new(3, 4),
                ctime: Timestamp::new(5, 6),
            },
            entries: 0,
            link: Some((InodeId::ROOT, Name::new(b"f").unwrap())),
            verifier: None,
            inline: Some(Bytes::from_static(b"abc")),
        };
        Version::new(inode, record)
    }

    fn conflict() -> Conflict {
        Conflict {
            kind: ConflictKind::Content,
            resolution: Resolution::KeptBoth,
            place: Place {
                inode: InodeId::new(9),
                path: Bytes::from_static(b"d/f"),
            },
            aside: Some(Place {
                inode: InodeId::new(10),
                path: Bytes::from_static(b"d/f~theirs.1"),
            }),
            base: None,
            ours: Some(version(9)),
            theirs: Some(version(11)),
            sources: Sources::default(),
        }
    }

    fn with_sources() -> Conflict {
        Conflict {
            sources: Sources {
                base: None,
                ours: Some(CommitId::new([5; 32])),
                theirs: Some(CommitId::new([6; 32])),
            },
            ..conflict()
        }
    }

    #[test]
    fn golden_bytes() {
        let mut bytes = vec![1, 1, 1, HAS_ASIDE | HAS_OURS | HAS_THEIRS];
        bytes.extend(9_u64.to_be_bytes());
        bytes.extend([0, 0, 0, 3]);
        bytes.extend(b"d/f");
        bytes.extend(10_u64.to_be_bytes());
        bytes.extend([0, 0, 0, 12]);
        bytes.extend(b"d/f~theirs.1");
        for version in [version(9), version(11)] {
            let record = version.record.encode();
            bytes.extend(version.inode.raw().to_be_bytes());
            bytes.extend(u32::try_from(record.len()).unwrap().to_be_bytes());
            bytes.extend(&record);
        }
        assert_eq!(conflict().encode(), bytes);
        assert_eq!(Conflict::decode(&bytes), Ok(conflict()));
        // With commits.
        bytes[0] = 2;
        bytes[3] |= HAS_OUR_COMMIT | HAS_THEIR_COMMIT;
        bytes.extend([[5; 32], [6; 32]].concat());
        assert_eq!(with_sources().encode(), bytes);
        assert_eq!(Conflict::decode(&bytes), Ok(with_sources()));
        assert_eq!(Conflict::id(b"x"), blake3::hash(b"x").as_bytes()[..16]);
        let numbers: Vec<u8> = ConflictKind::ALL.iter().map(|it| it.number()).collect();
        assert_eq!(numbers, (1..=13).collect::<Vec<u8>>());
    }

    type Damage = fn(&mut Vec<u8>);

    #[test]
    fn what_cannot_be_is_refused() {
        let with = |change: Damage| {
            let mut bytes = conflict().encode().to_vec();
            change(&mut bytes);
            Conflict::decode(&bytes)
        };
        let cases: [(Damage, RecordError); 7] = [
            (|bytes| bytes[0] = 3, RecordError::Version(3)),
            // That version names commits, and no other does.
            (|bytes| bytes[0] = 2, RecordError::Field("flags")),
            (
                |bytes| bytes[1] = 14,
                RecordError::Field("kind of conflict"),
            ),
            (|bytes| bytes[2] = 0, RecordError::Field("resolution")),
            (|bytes| bytes[3] |= 16, RecordError::Field("flags")),
            (|bytes| bytes.push(0), RecordError::Trailing),
            (
                |bytes| bytes.truncate(bytes.len() - 1),
                RecordError::Truncated,
            ),
        ];
        for (change, error) in cases {
            assert_eq!(with(change), Err(error));
        }
        let mut long = conflict();
        long.place.path = Bytes::from(vec![b'x'; PATH_BYTES_MAX + 1]);
        let error = RecordError::Field("path");
        assert_eq!(Conflict::decode(&long.encode()), Err(error));
        let mut content = conflict();
        content.ours = content.ours.map(|mut ours| {
            ours.record.inline = Some(Bytes::from_static(b"abc"));
            ours
        });
        let error = RecordError::Field("content in a conflict");
        assert_eq!(Conflict::decode(&content.encode()), Err(error));
    }

    proptest! {
        #[test]
        fn a_changed_byte_never_panics(at in 0..400_usize, byte in any::<u8>()) {
            let mut bytes = with_sources().encode().to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(decoded) = Conflict::decode(&bytes) {
                prop_assert_eq!(decoded.encode(), bytes);
            }
        }

        #[test]
        fn decode_is_total(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for version in [VERSION, VERSION_WITH_SOURCES] {
                let mut versioned = vec![version];
                versioned.extend(&bytes);
                if let Ok(decoded) = Conflict::decode(&versioned) {
                    prop_assert_eq!(decoded.encode(), versioned);
                }
            }
        }
    }
}
