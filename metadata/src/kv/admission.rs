//! What is checked of a call before anything is buffered, whichever engine it is for.

use base::limits::{KV_KEY_BYTES_MAX, KV_TRANSACTION_BYTES_MAX, KV_VALUE_BYTES_MAX};
use bytes::Bytes;

use super::{KeyRange, KvError};

/// First key that is not the caller's.
const KEYS_END: &[u8] = &[0xff];

/// Most bytes of write calls in one transaction, counting writes that replace each other. Bounds
/// the memory of a transaction that will be refused.
const BUFFERED_BYTES_MAX: usize = 4 * KV_TRANSACTION_BYTES_MAX;

/// The first error of calls that could not report theirs, and what others have buffered.
#[derive(Debug, Default)]
pub(super) struct Admission {
    failed: Option<KvError>,
    buffered_bytes: usize,
}

impl Admission {
    /// The error of an earlier call, for each read and for the commit.
    pub(super) fn check(&self) -> Result<(), KvError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Keeps an error, unless there is an earlier one.
    pub(super) fn fail(&mut self, error: KvError) {
        self.failed.get_or_insert(error);
    }

    /// Counts a write call's bytes. `false` if it must not be buffered.
    pub(super) fn admit(&mut self, key_bytes: usize, value_bytes: usize) -> bool {
        self.buffered_bytes = self
            .buffered_bytes
            .saturating_add(key_bytes)
            .saturating_add(value_bytes);
        if self.buffered_bytes > BUFFERED_BYTES_MAX {
            self.fail(KvError::Limit("transaction is too large"));
        }
        self.failed.is_none()
    }

    /// Checks and counts a write of one key, which takes `key_bytes` where it is stored. `false` if it
    /// must not be buffered.
    pub(super) fn admit_write(&mut self, key: &[u8], key_bytes: usize, value_bytes: usize) -> bool {
        if let Err(error) = check_key_is_ours(key) {
            self.fail(error);
        } else if key_bytes > KV_KEY_BYTES_MAX {
            self.fail(KvError::Limit("key is too long"));
        } else if value_bytes > KV_VALUE_BYTES_MAX {
            self.fail(KvError::Limit("value is too long"));
        }
        self.admit(key_bytes, value_bytes)
    }

    /// Counts a call on a range that was checked. None if there is nothing to do.
    pub(super) fn admit_range(&mut self, range: Result<KeyRange, KvError>) -> Option<KeyRange> {
        match range {
            Ok(range) => {
                let admitted = self.admit(range.start.len(), range.end.len());
                (admitted && range.start < range.end).then_some(range)
            }
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }
}

/// Whether a key is one that callers may use.
pub(super) fn check_key_is_ours(key: &[u8]) -> Result<(), KvError> {
    if key < KEYS_END {
        Ok(())
    } else {
        Err(outside())
    }
}

/// Checks a range; gives it as `stored` says of each bound, cut to a length that loses no key.
pub(super) fn check_range(
    range: &KeyRange,
    stored: impl Fn(&Bytes) -> Bytes,
) -> Result<KeyRange, KvError> {
    if range.start > range.end {
        return Err(KvError::Usage("range ends before it starts"));
    }
    if *range.end > *KEYS_END {
        return Err(outside());
    }
    let cut = |key: &Bytes| {
        let key = stored(key);
        key.slice(..key.len().min(KV_KEY_BYTES_MAX + 1))
    };
    Ok(KeyRange {
        start: cut(&range.start),
        end: cut(&range.end),
    })
}

fn outside() -> KvError {
    KvError::Limit("key is outside the caller's keys")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is written over again counts: memory is bounded before the commit can say no.
    #[test]
    fn what_is_buffered_is_bounded() {
        let mut admission = Admission::default();
        let value = KV_VALUE_BYTES_MAX;
        let fits = BUFFERED_BYTES_MAX / (1 + value);
        for _ in 0..fits {
            assert!(admission.admit_write(b"a", 1, value));
        }
        assert!(!admission.admit_write(b"a", 1, value));
        // Nothing after it is taken either, and the first error stays.
        assert!(!admission.admit_write(b"a", 1, 0));
        admission.fail(KvError::Usage("later"));
        let first = Err(KvError::Limit("transaction is too large"));
        assert_eq!(admission.check(), first);
    }

    #[test]
    fn keys_and_ranges_are_the_callers() {
        let range = |start: &'static [u8], end: &'static [u8]| KeyRange {
            start: Bytes::from_static(start),
            end: Bytes::from_static(end),
        };
        assert!(check_range(&range(b"a", b"\xff"), Bytes::clone).is_ok());
        assert!(check_range(&range(b"a", b"\xff\0"), Bytes::clone).is_err());
        assert!(check_range(&range(b"b", b"a"), Bytes::clone).is_err());
        let mut admission = Admission::default();
        assert!(admission.admit_write(b"\xfe", KV_KEY_BYTES_MAX, 0));
        assert!(!admission.admit_write(b"\xff", 1, 0));
        // A range without a key is nothing to do, and no error.
        let mut admission = Admission::default();
        assert!(admission.admit_range(Ok(range(b"a", b"a"))).is_none());
        assert_eq!(admission.check(), Ok(()));
    }
}
