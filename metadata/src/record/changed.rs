//! What changed from outside in a session: paths that clients of it have to look at anew.

use bytes::Bytes;

use super::{Reader, RecordError, Writer};

const VERSION: u8 = 1;

/// Most paths that one exchange tells one by one.
pub const CHANGED_PATHS_MAX: usize = 10_000;

/// Most bytes of paths that one exchange tells.
pub const CHANGED_BYTES_MAX: usize = 1 << 20;

/// Longest path that is told, in bytes: what Linux takes in one call.
pub const CHANGED_PATH_BYTES_MAX: usize = 4096;

/// Bytes of paths in one record; well below the store's limit for values.
const RECORD_BYTES: usize = 24 * 1024;

const _: () = assert!(RECORD_BYTES * 2 < base::limits::KV_VALUE_BYTES_MAX);

/// What changed: everything, or these paths. Paths are relative to the root directory, whose own is
/// empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangedPaths {
    /// More than is told one by one.
    Everything,
    /// These, in no order.
    These(Vec<Vec<u8>>),
}

impl Default for ChangedPaths {
    fn default() -> Self {
        Self::These(Vec::new())
    }
}

impl ChangedPaths {
    /// Adds a path; too many become [`ChangedPaths::Everything`].
    pub fn add(&mut self, path: Vec<u8>) {
        let Self::These(paths) = self else {
            return;
        };
        let is_long = path.len() > CHANGED_PATH_BYTES_MAX;
        paths.push(path);
        if is_long || paths.len() > CHANGED_PATHS_MAX {
            *self = Self::Everything;
        }
    }

    /// Adds all of `other`.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        match other {
            Self::Everything => Self::Everything,
            Self::These(paths) => {
                for path in paths {
                    self.add(path);
                }
                self
            }
        }
    }

    /// Each path once.
    #[must_use]
    pub fn without_doubles(mut self) -> Self {
        if let Self::These(paths) = &mut self {
            paths.sort_unstable();
            paths.dedup();
        }
        self
    }

    /// The records that say it.
    #[must_use]
    pub fn into_records(self) -> Vec<ChangedRecord> {
        let bytes = |paths: &[Vec<u8>]| paths.iter().map(Vec::len).sum::<usize>();
        let paths = match self {
            Self::These(paths) if bytes(&paths) <= CHANGED_BYTES_MAX => paths,
            _ => return vec![ChangedRecord(Self::Everything)],
        };
        let mut records = Vec::new();
        let (mut some, mut bytes) = (Vec::new(), 0);
        for path in paths {
            if bytes + path.len() > RECORD_BYTES && !some.is_empty() {
                records.push(ChangedRecord(Self::These(std::mem::take(&mut some))));
                bytes = 0;
            }
            bytes += path.len() + 4;
            some.push(path);
        }
        if !some.is_empty() {
            records.push(ChangedRecord(Self::These(some)));
        }
        records
    }
}

/// Part of what one exchange changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedRecord(pub ChangedPaths);

impl ChangedRecord {
    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        match &self.0 {
            ChangedPaths::Everything => to.u8(1),
            ChangedPaths::These(paths) => {
                to.u8(0);
                to.u32(u32::try_from(paths.len()).unwrap_or(u32::MAX));
                for path in paths {
                    to.bytes(path);
                }
            }
        }
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, VERSION)?;
        let paths = if from.flag()? {
            ChangedPaths::Everything
        } else {
            let mut paths = Vec::new();
            for _ in 0..from.u32()? {
                let path = from.bytes()?;
                if path.len() > CHANGED_PATH_BYTES_MAX || path.contains(&0) {
                    return Err(RecordError::Field("path"));
                }
                paths.push(path.to_vec());
            }
            if paths.is_empty() {
                return Err(RecordError::Field("number of paths"));
            }
            ChangedPaths::These(paths)
        };
        from.end()?;
        Ok(Self(paths))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_bytes() {
        let these = |paths: &[&[u8]]| {
            ChangedRecord(ChangedPaths::These(
                paths.iter().map(|path| path.to_vec()).collect(),
            ))
        };
        for (record, bytes) in [
            (ChangedRecord(ChangedPaths::Everything), vec![1, 1]),
            (
                these(&[b"a/\xff", b""]),
                vec![1, 0, 0, 0, 0, 2, 0, 0, 0, 3, b'a', b'/', 0xff, 0, 0, 0, 0],
            ),
        ] {
            assert_eq!(record.encode(), bytes);
            assert_eq!(ChangedRecord::decode(&bytes), Ok(record));
        }
        let refused = |bytes: &[u8], what| {
            assert_eq!(ChangedRecord::decode(bytes), Err(RecordError::Field(what)));
        };
        refused(&[1, 0, 0, 0, 0, 0], "number of paths");
        refused(&[1, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0], "path");
        refused(&[1, 2], "flag");
    }

    /// All that was added is in the records, which the store takes; or they say everything.
    #[test]
    fn paths_are_split_and_bounded() {
        let mut changed = ChangedPaths::default();
        assert!(changed.clone().into_records().is_empty());
        let long = |letter: u8| vec![letter; CHANGED_PATH_BYTES_MAX];
        let paths: Vec<Vec<u8>> = (b'a'..=b'y').map(long).chain([b"x".to_vec()]).collect();
        for path in &paths {
            changed.add(path.clone());
        }
        let mut all = Vec::new();
        for record in changed.clone().into_records() {
            let bytes = record.encode();
            assert!(bytes.len() <= base::limits::KV_VALUE_BYTES_MAX);
            let ChangedPaths::These(some) = ChangedRecord::decode(&bytes).unwrap().0 else {
                panic!("it is not everything");
            };
            all.extend(some);
        }
        assert_eq!(all, paths);
        for letter in 1..=255 {
            changed.add(long(letter));
        }
        let everything = [ChangedRecord(ChangedPaths::Everything)];
        assert_eq!(changed.into_records(), everything);
        let mut longer = ChangedPaths::default();
        longer.add(vec![b'x'; CHANGED_PATH_BYTES_MAX + 1]);
        assert_eq!(longer, ChangedPaths::Everything);
        let mut many = ChangedPaths::default();
        for _ in 0..CHANGED_PATHS_MAX {
            many.add(b"p".to_vec());
        }
        assert!(matches!(many, ChangedPaths::These(_)));
        let one = ChangedPaths::These(vec![b"p".to_vec()]);
        assert_eq!(
            one.clone().and(ChangedPaths::Everything),
            ChangedPaths::Everything
        );
        assert_eq!(one.clone().and(ChangedPaths::default()), one);
        many = many.and(one);
        assert_eq!(many, ChangedPaths::Everything);
    }

    proptest! {
        #[test]
        fn decode_is_total(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let bytes = [&[VERSION], &bytes[..]].concat();
            if let Ok(record) = ChangedRecord::decode(&bytes) {
                prop_assert_eq!(record.encode(), bytes);
            }
        }
    }
}
