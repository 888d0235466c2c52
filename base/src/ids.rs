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
    /// An entry of a workspace's operation log.
    OperationId
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

macro_rules! id_hash {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 32]);

        impl $name {
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

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                for byte in self.0 {
                    write!(f, "{byte:02x}")?;
                }
                Ok(())
            }
        }

        impl std::str::FromStr for $name {
            type Err = HashError;

            /// Parses what [`fmt::Display`] prints: 64 hexadecimal digits, of either case.
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                parse_hash(text).map(Self).ok_or(HashError)
            }
        }
    };
}

id_hash!(
    /// Name of a tree node: the keyed blake3 hash of its bytes.
    NodeId
);
id_hash!(
    /// Name of a commit: the blake3 hash of its canonical encoding.
    CommitId
);

/// A text that is no hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not 64 hexadecimal digits")]
pub struct HashError;

fn parse_hash(text: &str) -> Option<[u8; 32]> {
    let (digits, rest) = text.as_bytes().as_chunks::<2>();
    let digits: &[[u8; 2]; 32] = digits.try_into().ok()?;
    if !rest.is_empty() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut hash = [0; 32];
    for (byte, [high, low]) in hash.iter_mut().zip(digits) {
        *byte = u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()?;
    }
    Some(hash)
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

    #[test]
    fn hashes_print_and_parse_as_64_digits() {
        let mut hash = [0xa5; 32];
        hash[0] = 0x01;
        let id = CommitId::new(hash);
        let text = id.to_string();
        assert_eq!(text, format!("01{}", "a5".repeat(31)));
        assert_eq!(text.parse(), Ok(id));
        assert_eq!(text.to_uppercase().parse(), Ok(id));
        let node = NodeId::new(hash);
        assert_eq!(format!("{node:?}"), format!("NodeId({text})"));
        for bad in [
            "",
            "01",
            &text[1..],
            &format!("{text}0"),
            &format!("+{}", &text[1..]),
        ] {
            assert_eq!(bad.parse::<NodeId>(), Err(HashError), "{bad}");
        }
        assert_eq!("ü".repeat(32).parse::<NodeId>(), Err(HashError));
    }
}
