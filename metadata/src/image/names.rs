//! Where a name stands in its directory: the hash from which its cookie is made.

/// First cookie of an entry: 0 means the start, 1 and 2 are `.` and `..`.
pub const COOKIE_FIRST: u64 = 3;

/// Hashes have 62 bits, so that cookies stay below 2^63.
const HASH_BITS: u32 = 62;

/// Hashes names under a workspace's secret, so that nobody can choose names that collide.
#[derive(Clone)]
pub struct NameHasher {
    key: [u8; 32],
    /// Bits of the hash that count: all, but in tests of names that collide.
    mask: u64,
}

impl NameHasher {
    /// A hasher with this secret.
    #[must_use]
    pub fn new(key: [u8; 32]) -> Self {
        Self {
            key,
            mask: u64::MAX,
        }
    }

    /// A hasher that keeps only the first `bits` bits, so that names collide.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn coarse(key: [u8; 32], bits: u32) -> Self {
        let dropped = HASH_BITS.saturating_sub(bits);
        Self {
            key,
            mask: u64::MAX << dropped,
        }
    }

    /// The 62-bit hash of a name.
    #[must_use]
    pub fn hash(&self, name: &[u8]) -> u64 {
        let hash = blake3::keyed_hash(&self.key, name);
        let first = hash.as_bytes().first_chunk().copied().unwrap_or_default();
        (u64::from_be_bytes(first) >> (64 - HASH_BITS)) & self.mask
    }
}

impl std::fmt::Debug for NameHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NameHasher").finish_non_exhaustive()
    }
}

/// The cookie of an entry whose name has this hash.
#[must_use]
pub fn cookie_of(hash: u64) -> u64 {
    hash + COOKIE_FIRST
}

/// The first hash after the entry with this cookie; any number is taken.
#[must_use]
pub fn hash_after(cookie: u64) -> u64 {
    cookie.saturating_add(1).saturating_sub(COOKIE_FIRST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_positive_signed_numbers_and_depend_on_the_secret() {
        let one = NameHasher::new([1; 32]);
        let other = NameHasher::new([2; 32]);
        for name in [&b"a"[..], b"b", b"\xff", &[7; 255]] {
            assert!(cookie_of(one.hash(name)) < 1 << 63);
            assert_ne!(one.hash(name), other.hash(name));
            assert_eq!(hash_after(cookie_of(one.hash(name))), one.hash(name) + 1);
        }
        assert_eq!(hash_after(2), 0);
    }
}
