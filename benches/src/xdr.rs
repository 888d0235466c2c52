//! Reading XDR (RFC 4506) in place, with every length checked before it is used.

use crate::Error;

/// A cursor over the bytes of a reply.
#[derive(Debug, Clone)]
pub(crate) struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Exactly `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(Error::Malformed("ends early"))?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn bool(&mut self) -> Result<bool, Error> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Error::Malformed("a boolean is neither 0 nor 1")),
        }
    }

    /// Bytes of a length that the sender names, at most `bytes_max`, with their padding.
    pub(crate) fn opaque(&mut self, bytes_max: usize) -> Result<&'a [u8], Error> {
        let length = usize::try_from(self.u32()?).map_err(|_| Error::Malformed("a huge length"))?;
        if length > bytes_max {
            return Err(Error::Malformed("an opaque is longer than allowed"));
        }
        let padded = length.next_multiple_of(4);
        let (body, rest) = self
            .rest
            .split_at_checked(padded)
            .ok_or(Error::Malformed("an opaque ends early"))?;
        self.rest = rest;
        let (body, padding) = body
            .split_at_checked(length)
            .ok_or(Error::Malformed("an opaque ends early"))?;
        if padding.iter().any(|byte| *byte != 0) {
            return Err(Error::Malformed("padding is not zero"));
        }
        Ok(body)
    }

    /// All bytes must have been used.
    pub(crate) fn end(&self) -> Result<(), Error> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Error::Malformed("bytes are left over"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Decoder;

    #[test]
    fn an_opaque_is_bounded_padded_and_zero_filled() {
        let good = [0, 0, 0, 3, 1, 2, 3, 0];
        assert_eq!(Decoder::new(&good).opaque(3).unwrap(), [1, 2, 3]);
        assert!(Decoder::new(&good).opaque(2).is_err());
        assert!(Decoder::new(&[0, 0, 0, 3, 1, 2, 3, 9]).opaque(3).is_err());
        assert!(Decoder::new(&[0, 0, 0, 3, 1, 2, 3]).opaque(3).is_err());
        assert!(
            Decoder::new(&[0xff, 0xff, 0xff, 0xff])
                .opaque(usize::MAX)
                .is_err()
        );
    }
}
