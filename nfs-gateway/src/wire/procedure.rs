//! Whom a call is for.

use super::rpc::{Call, Refusal};

/// The program number of NFS.
pub const NFS_PROGRAM: u32 = nfsserve::nfs::PROGRAM;

/// The only version of NFS served.
pub const NFS_VERSION: u32 = nfsserve::nfs::VERSION;

/// The program number of the MOUNT protocol.
pub const MOUNT_PROGRAM: u32 = 100_005;

/// The only version of the MOUNT protocol served.
pub const MOUNT_VERSION: u32 = 3;

macro_rules! procedures {
    ($(#[$doc:meta])* $name:ident { $($(#[$item_doc:meta])* $item:ident = $number:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$item_doc])* $item,)*
        }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$item),*];

            /// The procedure with this number.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$item),)*
                    _ => None,
                }
            }

            /// The number on the wire.
            #[must_use]
            pub const fn number(self) -> u32 {
                match self {
                    $(Self::$item => $number,)*
                }
            }

            /// The name, in lower case, for logs and metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$item => $text,)*
                }
            }
        }
    };
}

procedures! {
    /// The procedures of NFS version 3 (RFC 1813, section 3.3).
    Procedure {
        /// Does nothing: a ping.
        Null = 0, "null";
        /// Attributes of an object.
        Getattr = 1, "getattr";
        /// Changes attributes.
        Setattr = 2, "setattr";
        /// Finds a name in a directory.
        Lookup = 3, "lookup";
        /// What the caller may do with an object.
        Access = 4, "access";
        /// The target of a symbolic link.
        Readlink = 5, "readlink";
        /// Reads from a file.
        Read = 6, "read";
        /// Writes to a file.
        Write = 7, "write";
        /// Makes a file.
        Create = 8, "create";
        /// Makes a directory.
        Mkdir = 9, "mkdir";
        /// Makes a symbolic link.
        Symlink = 10, "symlink";
        /// Makes a FIFO, a socket or a device node.
        Mknod = 11, "mknod";
        /// Removes a name that is not a directory's.
        Remove = 12, "remove";
        /// Removes an empty directory.
        Rmdir = 13, "rmdir";
        /// Moves a name.
        Rename = 14, "rename";
        /// Makes a further name of an object.
        Link = 15, "link";
        /// Lists a directory.
        Readdir = 16, "readdir";
        /// Lists a directory with attributes and handles.
        Readdirplus = 17, "readdirplus";
        /// Space of a filesystem.
        Fsstat = 18, "fsstat";
        /// Limits of a filesystem.
        Fsinfo = 19, "fsinfo";
        /// Rules for names.
        Pathconf = 20, "pathconf";
        /// Makes earlier writes durable.
        Commit = 21, "commit";
    }
}

procedures! {
    /// The procedures of MOUNT version 3 (RFC 1813, section 5.2).
    MountProcedure {
        /// Does nothing: a ping.
        Null = 0, "mount_null";
        /// The root handle for a path.
        Mnt = 1, "mount_mnt";
        /// Who has mounted what.
        Dump = 2, "mount_dump";
        /// A client no longer uses a path.
        Umnt = 3, "mount_umnt";
        /// A client no longer uses any path.
        Umntall = 4, "mount_umntall";
        /// What can be mounted.
        Export = 5, "mount_export";
    }
}

impl Procedure {
    /// Whether repeating the call may do something else than the call did: whether its reply has
    /// to be kept for retransmissions. WRITE is not among them: the same bytes at the same place.
    #[must_use]
    pub const fn is_repeatable(self) -> bool {
        match self {
            Self::Null
            | Self::Getattr
            | Self::Lookup
            | Self::Access
            | Self::Readlink
            | Self::Read
            | Self::Write
            | Self::Readdir
            | Self::Readdirplus
            | Self::Fsstat
            | Self::Fsinfo
            | Self::Pathconf
            | Self::Commit => true,
            Self::Setattr
            | Self::Create
            | Self::Mkdir
            | Self::Symlink
            | Self::Mknod
            | Self::Remove
            | Self::Rmdir
            | Self::Rename
            | Self::Link => false,
        }
    }
}

/// A procedure of one of the programs served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// NFS version 3.
    Nfs(Procedure),
    /// MOUNT version 3.
    Mount(MountProcedure),
}

impl Target {
    /// How many there are.
    pub const COUNT: usize = Procedure::ALL.len() + MountProcedure::ALL.len();

    /// All of them, in the order of [`Target::index`].
    pub fn all() -> impl Iterator<Item = Self> {
        let nfs = Procedure::ALL.iter().copied().map(Self::Nfs);
        nfs.chain(MountProcedure::ALL.iter().copied().map(Self::Mount))
    }

    /// Its place among all, from 0.
    #[must_use]
    pub fn index(self) -> usize {
        let (first, number) = match self {
            Self::Nfs(procedure) => (0, procedure.number()),
            Self::Mount(procedure) => (Procedure::ALL.len(), procedure.number()),
        };
        first + usize::try_from(number).unwrap_or(0)
    }

    /// The name, in lower case, for logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nfs(procedure) => procedure.name(),
            Self::Mount(procedure) => procedure.name(),
        }
    }

    /// Whom the call in `record` is for, by the fixed part of its header; nothing if it is for nobody
    /// here. The rest of the call may still be wrong.
    #[must_use]
    pub fn peek(record: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_be_bytes(*record.get(at..)?.first_chunk()?));
        let (message, procedure) = (word(4)?, word(20)?);
        match (message, word(12)?, word(16)?) {
            (0, NFS_PROGRAM, NFS_VERSION) => Procedure::from_number(procedure).map(Self::Nfs),
            (0, MOUNT_PROGRAM, MOUNT_VERSION) => {
                MountProcedure::from_number(procedure).map(Self::Mount)
            }
            _ => None,
        }
    }

    /// Whom `call` is for.
    ///
    /// # Errors
    ///
    /// What to refuse the call with, if it is for nobody here. NFSACL (100227) and NLM (100021)
    /// are not served; clients ask and go on without.
    pub fn of(call: &Call<'_>) -> Result<Self, Refusal> {
        match (call.program, call.version) {
            (NFS_PROGRAM, NFS_VERSION) => Procedure::from_number(call.procedure)
                .map(Self::Nfs)
                .ok_or(Refusal::ProcedureUnavailable),
            (MOUNT_PROGRAM, MOUNT_VERSION) => MountProcedure::from_number(call.procedure)
                .map(Self::Mount)
                .ok_or(Refusal::ProcedureUnavailable),
            (NFS_PROGRAM | MOUNT_PROGRAM, _) => Err(Refusal::ProgramMismatch {
                low: NFS_VERSION,
                high: NFS_VERSION,
            }),
            _ => Err(Refusal::ProgramUnavailable),
        }
    }
}

const _: () = assert!(NFS_VERSION == MOUNT_VERSION);

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::wire::rpc::Credential;
    use crate::wire::xdr::XdrReader;

    #[test]
    fn numbers_are_consecutive_and_complete() {
        for (number, procedure) in (0..).zip(Procedure::ALL) {
            assert_eq!(procedure.number(), number);
            assert_eq!(Procedure::from_number(number), Some(*procedure));
        }
        assert_eq!(Procedure::ALL.len(), 22);
        assert_eq!(MountProcedure::ALL.len(), 6);
    }

    #[test]
    fn targets_are_numbered_and_found_in_records() {
        for (at, target) in Target::all().enumerate() {
            assert_eq!(target.index(), at);
            let (program, procedure) = match target {
                Target::Nfs(procedure) => (100_003, procedure.number()),
                Target::Mount(procedure) => (100_005, procedure.number()),
            };
            let record = [9, 0, 2, program, 3, procedure].map(u32::to_be_bytes);
            assert_eq!(Target::peek(&record.concat()), Some(target));
            assert_eq!(Target::peek(&record.concat()[..23]), None);
        }
        assert_eq!(Target::all().count(), Target::COUNT);
        for words in [[9, 1, 2, 100_003, 3, 1], [9, 0, 2, 100_227, 3, 1]] {
            assert_eq!(Target::peek(&words.map(u32::to_be_bytes).concat()), None);
        }
    }

    #[test]
    fn calls_find_their_target_or_are_refused() {
        let mismatch = Refusal::ProgramMismatch { low: 3, high: 3 };
        let cases = [
            ((100_003, 3, 21), Ok(Target::Nfs(Procedure::Commit))),
            ((100_003, 3, 22), Err(Refusal::ProcedureUnavailable)),
            ((100_003, 4, 0), Err(mismatch)),
            ((100_003, 2, 0), Err(mismatch)),
            ((100_005, 3, 1), Ok(Target::Mount(MountProcedure::Mnt))),
            ((100_005, 3, 6), Err(Refusal::ProcedureUnavailable)),
            ((100_005, 1, 0), Err(mismatch)),
            ((100_227, 3, 0), Err(Refusal::ProgramUnavailable)),
            ((100_021, 4, 0), Err(Refusal::ProgramUnavailable)),
            ((100_000, 2, 3), Err(Refusal::ProgramUnavailable)),
        ];
        let record = Bytes::new();
        for ((program, version, procedure), expected) in cases {
            let call = Call {
                xid: 1,
                program,
                version,
                procedure,
                credential: Credential::None,
                args: XdrReader::new(&record),
            };
            assert_eq!(Target::of(&call), expected);
        }
    }
}
