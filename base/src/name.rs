//! What a directory entry may be called.

use std::fmt;

use crate::limits::NAME_BYTES_MAX;

/// A directory entry's name: 1 to 255 bytes without `/` and NUL, neither `.` nor `..`.
///
/// Names are bytes. They need not be UTF-8 and are never normalised.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<[u8]>);

/// Why bytes are not a [`Name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Longer than 255 bytes.
    #[error("name is longer than {NAME_BYTES_MAX} bytes")]
    TooLong,
    /// Empty, or contains `/` or NUL.
    #[error("name is empty or contains '/' or NUL")]
    NotAllowed,
    /// `.` or `..`, which every directory has already.
    #[error("name is '.' or '..'")]
    Dots,
}

impl Name {
    /// Checks and copies `bytes`.
    ///
    /// # Errors
    ///
    /// Says why the bytes cannot be a name.
    pub fn new(bytes: &[u8]) -> Result<Self, NameError> {
        Self::check(bytes)?;
        Ok(Self(bytes.into()))
    }

    /// Checks `bytes` without copying them.
    ///
    /// # Errors
    ///
    /// As [`Name::new`].
    pub fn check(bytes: &[u8]) -> Result<(), NameError> {
        match bytes {
            [] => Err(NameError::NotAllowed),
            b"." | b".." => Err(NameError::Dots),
            _ if bytes.len() > NAME_BYTES_MAX => Err(NameError::TooLong),
            _ if bytes.iter().any(|byte| matches!(byte, b'/' | 0)) => Err(NameError::NotAllowed),
            _ => Ok(()),
        }
    }

    /// The name's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::borrow::Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name(\"{}\")", self.0.escape_ascii())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        let cases: [(&[u8], Result<(), NameError>); 9] = [
            (b"a", Ok(())),
            (b"\xff\xfe", Ok(())),
            (b"...", Ok(())),
            (&[b'x'; 255], Ok(())),
            (&[b'x'; 256], Err(NameError::TooLong)),
            (b"", Err(NameError::NotAllowed)),
            (b"a/b", Err(NameError::NotAllowed)),
            (b"a\0", Err(NameError::NotAllowed)),
            (b"..", Err(NameError::Dots)),
        ];
        for (bytes, expected) in cases {
            assert_eq!(Name::new(bytes).map(|_| ()), expected, "{bytes:?}");
        }
    }
}
