//! File handles: everything a call needs to find its session, signed.
//!
//! 56 bytes, integers big-endian:
//!
//! | bytes | field |
//! | --- | --- |
//! | 0 | version, 1 |
//! | 1 | key id |
//! | 2..4 | flags |
//! | 4..12 | session |
//! | 12..16 | revocation epoch |
//! | 16..32 | selector: 0 for the live tree, ones for `.holdfast`, else the first 16 bytes of a commit's id |
//! | 32..40 | inode |
//! | 40..56 | first half of the keyed blake3 hash of bytes 0..40 |
//!
//! The tag is checked before anything else is believed, in constant time. Two keys are live, so
//! that keys can be changed while clients hold handles.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{CommitId, InodeId, SessionId};

use crate::wire::nfs3::{HANDLE_BYTES_MAX, WireHandle};

/// A handle's size on the wire.
pub const HANDLE_BYTES: usize = SIGNED_BYTES + TAG_BYTES;

/// The only version there is.
const HANDLE_VERSION: u8 = 1;

const SIGNED_BYTES: usize = 40;
const TAG_BYTES: usize = 16;

const _: () = assert!(HANDLE_BYTES <= HANDLE_BYTES_MAX);

/// What a handle says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileHandle {
    /// Properties of the mount that the handle belongs to. Their meaning is the session's.
    pub flags: u16,
    /// The session.
    pub session: SessionId,
    /// The session's revocation epoch when the handle was made: raising the session's makes all
    /// its handles stale.
    pub revocation: u32,
    /// Which tree: the bytes of a [`Selector`].
    pub snapshot: [u8; 16],
    /// The object.
    pub inode: InodeId,
}

/// Which tree an object is in: the live one, `.holdfast`, or that of a commit
/// (`docs/design/0008-in-the-mount.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Selector([u8; SELECTOR_BYTES]);

const SELECTOR_BYTES: usize = 16;

/// File ids in `.holdfast` have this bit, and no number of an inode reaches it.
const FILE_ID_INSIDE: u64 = 1 << 61;

/// File ids in the trees of commits have this bit.
const FILE_ID_OF_COMMIT: u64 = 1 << 62;

impl Selector {
    /// The live tree.
    pub const LIVE: Self = Self([0; SELECTOR_BYTES]);

    /// `.holdfast` itself.
    pub const INSIDE: Self = Self([0xff; SELECTOR_BYTES]);

    /// The selector in a handle.
    #[must_use]
    pub const fn new(bytes: [u8; SELECTOR_BYTES]) -> Self {
        Self(bytes)
    }

    /// The tree of a commit.
    #[must_use]
    pub fn of_commit(commit: CommitId) -> Self {
        let first = commit.as_bytes().first_chunk();
        Self(*first.expect("an id is longer than a selector"))
    }

    /// The bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; SELECTOR_BYTES] {
        &self.0
    }

    /// Whether it is the live tree.
    #[must_use]
    pub fn is_live(self) -> bool {
        self == Self::LIVE
    }

    /// The file id of an inode: in the live tree its number. Those of different trees differ,
    /// because programs take files with one id for one file.
    #[must_use]
    pub fn file_id(self, inode: InodeId) -> u64 {
        if self.is_live() {
            return inode.raw();
        }
        if self == Self::INSIDE {
            return FILE_ID_INSIDE | inode.raw();
        }
        let first = self.0.first_chunk();
        let salt = u64::from_be_bytes(*first.expect("a selector is longer than a number"));
        FILE_ID_OF_COMMIT | ((inode.raw() ^ salt) & (FILE_ID_OF_COMMIT - 1))
    }
}

/// A signed handle, ready for the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SignedHandle([u8; HANDLE_BYTES]);

impl SignedHandle {
    /// The bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; HANDLE_BYTES] {
        &self.0
    }

    /// The handle as results carry it.
    #[must_use]
    pub const fn wire(&self) -> WireHandle<'_> {
        WireHandle(&self.0)
    }
}

impl fmt::Debug for SignedHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A handle is a capability: it does not belong in a log.
        f.write_str("SignedHandle")
    }
}

/// The handle is none of ours: forged, cut, or signed with a key that is gone. NFS3ERR_STALE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the file handle is stale")]
pub struct Stale;

/// A secret that signs handles, and the number handles name it by.
#[derive(Clone, PartialEq, Eq)]
pub struct HandleKey {
    id: u8,
    secret: [u8; blake3::KEY_LEN],
}

impl HandleKey {
    /// Wraps a secret. Gateways of one fleet have the same.
    #[must_use]
    pub const fn new(id: u8, secret: [u8; blake3::KEY_LEN]) -> Self {
        Self { id, secret }
    }

    /// The number handles name it by.
    #[must_use]
    pub const fn id(&self) -> u8 {
        self.id
    }

    fn tag(&self, signed: &[u8; SIGNED_BYTES]) -> [u8; TAG_BYTES] {
        let hash = blake3::keyed_hash(&self.secret, signed);
        let first = hash.as_bytes().first_chunk();
        *first.expect("a hash is longer than a tag")
    }
}

impl fmt::Debug for HandleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HandleKey({})", self.id)
    }
}

/// The keys that are live: one signs, and the one before still verifies.
#[derive(Debug)]
pub struct HandleKeys {
    current: HandleKey,
    previous: Option<HandleKey>,
    rejected: AtomicU64,
}

impl HandleKeys {
    /// Keys of which the first signs. Ids should differ; with equal ids only the first verifies.
    #[must_use]
    pub const fn new(current: HandleKey, previous: Option<HandleKey>) -> Self {
        Self {
            current,
            previous,
            rejected: AtomicU64::new(0),
        }
    }

    /// The keys after a change: `next` signs, the one that signed so far still verifies, and
    /// handles of the one before that are stale.
    #[must_use]
    pub fn rotated(&self, next: HandleKey) -> Self {
        Self {
            current: next,
            previous: Some(self.current.clone()),
            rejected: AtomicU64::new(self.rejected()),
        }
    }

    /// Signs `handle` with the current key.
    #[must_use]
    pub fn sign(&self, handle: &FileHandle) -> SignedHandle {
        let signed = handle.encode(self.current.id);
        let tag = self.current.tag(&signed);
        let mut bytes = [0; HANDLE_BYTES];
        let fields = signed.iter().chain(&tag);
        for (byte, field) in bytes.iter_mut().zip(fields) {
            *byte = *field;
        }
        SignedHandle(bytes)
    }

    /// Reads a handle that came over the wire, if it is one of ours.
    ///
    /// # Errors
    ///
    /// If it is not, whatever the reason. Counted.
    pub fn verify(&self, handle: WireHandle<'_>) -> Result<FileHandle, Stale> {
        self.checked(handle.0).ok_or_else(|| {
            self.rejected.fetch_add(1, Ordering::Relaxed);
            Stale
        })
    }

    /// How many handles were not ours.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    fn checked(&self, bytes: &[u8]) -> Option<FileHandle> {
        let (signed, tag) = bytes.split_first_chunk::<SIGNED_BYTES>()?;
        let tag = <&[u8; TAG_BYTES]>::try_from(tag).ok()?;
        let [version, key_id, ..] = *signed;
        if version != HANDLE_VERSION {
            return None;
        }
        let key = [Some(&self.current), self.previous.as_ref()]
            .into_iter()
            .flatten()
            .find(|key| key.id == key_id)?;
        let is_ours = comparable(&key.tag(signed)) == comparable(tag);
        is_ours.then(|| FileHandle::decode(signed)).flatten()
    }
}

impl FileHandle {
    fn encode(&self, key_id: u8) -> [u8; SIGNED_BYTES] {
        let mut bytes = [0; SIGNED_BYTES];
        let fields = [HANDLE_VERSION, key_id]
            .into_iter()
            .chain(self.flags.to_be_bytes())
            .chain(self.session.raw().to_be_bytes())
            .chain(self.revocation.to_be_bytes())
            .chain(self.snapshot)
            .chain(self.inode.raw().to_be_bytes());
        for (byte, field) in bytes.iter_mut().zip(fields) {
            *byte = field;
        }
        bytes
    }

    fn decode(bytes: &[u8; SIGNED_BYTES]) -> Option<Self> {
        let (_, rest) = bytes.split_first_chunk::<2>()?;
        let (flags, rest) = rest.split_first_chunk()?;
        let (session, rest) = rest.split_first_chunk()?;
        let (revocation, rest) = rest.split_first_chunk()?;
        let (snapshot, rest) = rest.split_first_chunk()?;
        let (inode, _) = rest.split_first_chunk()?;
        Some(Self {
            flags: u16::from_be_bytes(*flags),
            session: SessionId::new(u64::from_be_bytes(*session)),
            revocation: u32::from_be_bytes(*revocation),
            snapshot: *snapshot,
            inode: InodeId::new(u64::from_be_bytes(*inode)),
        })
    }
}

/// A tag as a hash, whose comparison takes the same time wherever the bytes differ.
fn comparable(tag: &[u8; TAG_BYTES]) -> blake3::Hash {
    let mut bytes = [0; blake3::OUT_LEN];
    for (byte, from) in bytes.iter_mut().zip(tag) {
        *byte = *from;
    }
    blake3::Hash::from_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HANDLE: FileHandle = FileHandle {
        flags: 0x0102,
        session: SessionId::new(0x1112_1314_1516_1718),
        revocation: 0x2122_2324,
        snapshot: [0x33; 16],
        inode: InodeId::new(0x4142_4344_4546_4748),
    };

    fn keys(current: u8, previous: Option<u8>) -> HandleKeys {
        let key = |id| HandleKey::new(id, [id; 32]);
        HandleKeys::new(key(current), previous.map(key))
    }

    #[test]
    fn a_handle_is_these_bytes() {
        let signed = keys(9, None).sign(&HANDLE);
        let (fields, tag) = signed.as_bytes().split_at(SIGNED_BYTES);
        assert_eq!(
            fields,
            [
                1, 9, 0x01, 0x02, // version, key, flags
                0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, // session
                0x21, 0x22, 0x23, 0x24, // revocation epoch
                0x33, 0x33, 0x33, 0x33, 0x33, 0x33, 0x33, 0x33, // snapshot
                0x33, 0x33, 0x33, 0x33, 0x33, 0x33, 0x33, 0x33, //
                0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, // inode
            ]
        );
        assert_eq!(
            tag,
            [
                83, 114, 139, 96, 71, 93, 187, 167, 88, 131, 123, 179, 205, 217, 241, 148
            ]
        );
    }

    #[test]
    fn file_ids_of_different_trees_differ() {
        let commits = [1_u8, 2].map(|byte| Selector::of_commit(CommitId::new([byte; 32])));
        let [one, two] = commits;
        let mut seen = std::collections::HashSet::new();
        for number in [1, 2, 3, 1 << 20, 1 << 40] {
            for selector in [Selector::LIVE, Selector::INSIDE, one, two] {
                let id = selector.file_id(InodeId::new(number));
                assert!(seen.insert(id), "{selector:?} {number}");
                // Some programs take it for a signed number.
                assert!(id < 1 << 63);
            }
        }
        assert_eq!(Selector::LIVE.file_id(InodeId::new(7)), 7);
        assert_eq!(one.as_bytes(), &[1; 16]);
    }

    #[test]
    fn two_keys_are_live_and_a_third_is_not() {
        let first = keys(1, None);
        let handle = first.sign(&HANDLE);
        let second = first.rotated(HandleKey::new(2, [2; 32]));
        assert_eq!(second.verify(handle.wire()), Ok(HANDLE));
        assert_eq!(second.verify(second.sign(&HANDLE).wire()), Ok(HANDLE));
        let third = second.rotated(HandleKey::new(3, [3; 32]));
        assert_eq!(third.verify(handle.wire()), Err(Stale));
        assert_eq!(third.rejected(), 1);
    }

    #[test]
    fn the_same_id_with_another_secret_is_stale() {
        let handle = keys(1, None).sign(&HANDLE);
        let foreign = HandleKeys::new(HandleKey::new(1, [7; 32]), None);
        assert_eq!(foreign.verify(handle.wire()), Err(Stale));
    }

    #[test]
    fn secrets_are_not_printed() {
        let keys = keys(5, None);
        let printed = format!("{keys:?} {:?}", keys.sign(&HANDLE));
        assert!(!printed.contains("5, 5"), "{printed}");
    }

    proptest! {
        /// Every handle is read back as it was.
        #[test]
        fn handles_round_trip(
            flags in any::<u16>(),
            session in any::<u64>(),
            revocation in any::<u32>(),
            snapshot in any::<[u8; 16]>(),
            inode in any::<u64>(),
        ) {
            let session = SessionId::new(session);
            let inode = InodeId::new(inode);
            let handle = FileHandle { flags, session, revocation, snapshot, inode };
            let keys = keys(1, Some(2));
            prop_assert_eq!(keys.verify(keys.sign(&handle).wire()), Ok(handle));
        }

        /// No bit of a handle can be changed, and no other length will do.
        #[test]
        fn a_changed_handle_is_stale(bit in 0..HANDLE_BYTES * 8, length in 0..80_usize) {
            let keys = keys(1, Some(2));
            let mut bytes = keys.sign(&HANDLE).as_bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(keys.verify(WireHandle(&bytes)), Err(Stale));
            let mut bytes = keys.sign(&HANDLE).as_bytes().to_vec();
            bytes.resize(length, 0);
            let expected = if length == HANDLE_BYTES { Ok(HANDLE) } else { Err(Stale) };
            prop_assert_eq!(keys.verify(WireHandle(&bytes)), expected);
        }

        /// Bytes from outside never panic.
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            prop_assert_eq!(keys(1, None).verify(WireHandle(&bytes)), Err(Stale));
        }
    }
}
