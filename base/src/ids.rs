//! Identifiers. Each is a type of its own, so that a swapped argument does not compile.

use std::fmt;

macro_rules! id_u64 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// Wraps a raw number read from a store, a handle or a command line.
            #[must_use]
            pub const fn new(raw: u64) -> Self {
                Self(raw)
            }

            /// The raw number.
            #[must_use]
            pub const fn raw(self) -> u64 {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = std::num::ParseIntError;

            /// Parses what [`fmt::Display`] prints: hexadecimal digits.
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                u64::from_str_radix(text, 16).map(Self)
            }
        }
    };
}

id_u64!(
    /// Owner of workspaces: the unit of quota, keys and deduplication.
    TenantId
);
id_u64!(
    /// A named history of commits.
    WorkspaceId
);
id_u64!(
    /// A mutable view of a workspace.
    SessionId
);
id_u64!(
    /// One incarnation of a gateway process; a restarted gateway has a new one.
    GatewayId
);
id_u64!(
    /// Counts the owners a session has had. Only a takeover raises it.
    Epoch
);
id_u64!(
    /// An inode number: unique in its workspace for ever, never reused. Also the NFS file id.
    InodeId
);
id_u64!(
    /// A deduplication domain: chunks are shared inside it and never across. By default one
    /// per tenant, with the same number.
    DomainId
);

impl TenantId {
    /// The tenant `default`, which exists from the first start.
    pub const DEFAULT: Self = Self(1);
}

impl InodeId {
    /// The root directory of every filesystem image.
    pub const ROOT: Self = Self(1);
}

impl Epoch {
    /// The epoch of the next owner.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Name of a chunk: the keyed blake3 hash of its plain bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId([u8; 32]);

impl ChunkId {
    /// Wraps a hash.
    #[must_use]
    pub const fn new(hash: [u8; 32]) -> Self {
        Self(hash)
    }

    /// The hash.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkId({self})")
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_print_and_parse_as_hexadecimal() {
        let id = SessionId::new(0xdead_beef);
        assert_eq!(id.to_string(), "00000000deadbeef");
        assert_eq!("00000000deadbeef".parse::<SessionId>().unwrap(), id);
        assert!("xyz".parse::<SessionId>().is_err());
    }
}
