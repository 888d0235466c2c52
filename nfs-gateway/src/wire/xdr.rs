//! XDR (RFC 4506): the encoding below RPC and NFS.

use base::Timestamp;
use bytes::Bytes;
use nfsserve::xdr::XDR;

/// Every item takes a multiple of this many bytes.
const UNIT_BYTES: usize = 4;

/// Payloads below this size are copied out of the record: holding on to a small slice would keep
/// a whole receive buffer alive, and the copy is cheaper than that.
pub const PAYLOAD_SHARED_BYTES_MIN: usize = 8 * 1024;

/// Why bytes are not what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XdrError {
    /// The data ends before the value does.
    #[error("the data ends too early")]
    Short,
    /// A length is above the limit of its field.
    #[error("a length is above its limit")]
    TooLong,
    /// Padding bytes are not zero.
    #[error("padding is not zero")]
    Padding,
    /// A number is none of the values its field may have.
    #[error("a value is outside its range")]
    Value,
    /// The data goes on after the last value.
    #[error("bytes are left over")]
    Trailing,
}

/// A value that can be read from a record, borrowing from it.
pub trait Decode<'a>: Sized {
    /// Reads one value.
    ///
    /// # Errors
    ///
    /// If the bytes are not an encoding of such a value.
    fn decode(from: &mut XdrReader<'a>) -> Result<Self, XdrError>;
}

/// A value that can be written.
pub trait Encode {
    /// Appends the value.
    fn encode(&self, to: &mut XdrWriter);
}

/// Reads values from a record, front to back. Allocates nothing.
#[derive(Clone, Debug)]
pub struct XdrReader<'a> {
    record: &'a Bytes,
    rest: &'a [u8],
}

impl<'a> XdrReader<'a> {
    /// A reader at the start of `record`.
    #[must_use]
    pub fn new(record: &'a Bytes) -> Self {
        Self {
            record,
            rest: record,
        }
    }

    /// A reader of `part`, which this reader returned: opaque data with a structure of its own.
    #[must_use]
    pub const fn within(&self, part: &'a [u8]) -> Self {
        Self {
            record: self.record,
            rest: part,
        }
    }

    /// How many bytes have not been read yet.
    #[must_use]
    pub const fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Reads an unsigned integer.
    ///
    /// # Errors
    ///
    /// If fewer than four bytes are left.
    pub fn u32(&mut self) -> Result<u32, XdrError> {
        self.array().map(u32::from_be_bytes)
    }

    /// Reads an unsigned hyper integer.
    ///
    /// # Errors
    ///
    /// If fewer than eight bytes are left.
    pub fn u64(&mut self) -> Result<u64, XdrError> {
        self.array().map(u64::from_be_bytes)
    }

    /// Reads a boolean, which is 0 or 1 and nothing else.
    ///
    /// # Errors
    ///
    /// If four bytes are not left, or are another number.
    pub fn bool(&mut self) -> Result<bool, XdrError> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(XdrError::Value),
        }
    }

    /// Reads fixed-length opaque data whose length is a multiple of four.
    ///
    /// # Errors
    ///
    /// If fewer than `N` bytes are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], XdrError> {
        const { assert!(N.is_multiple_of(UNIT_BYTES)) };
        let (array, rest) = self.rest.split_first_chunk().ok_or(XdrError::Short)?;
        self.rest = rest;
        Ok(*array)
    }

    /// Reads variable-length opaque data of at most `bytes_max` bytes.
    ///
    /// # Errors
    ///
    /// If the length is above the limit or the data, or the padding is not zero.
    pub fn opaque(&mut self, bytes_max: usize) -> Result<&'a [u8], XdrError> {
        let claimed = usize::try_from(self.u32()?).map_err(|_| XdrError::TooLong)?;
        if claimed > bytes_max {
            return Err(XdrError::TooLong);
        }
        let (data, rest) = self.rest.split_at_checked(claimed).ok_or(XdrError::Short)?;
        let (padding, rest) = rest
            .split_at_checked(padding_bytes(claimed))
            .ok_or(XdrError::Short)?;
        if padding.iter().any(|byte| *byte != 0) {
            return Err(XdrError::Padding);
        }
        self.rest = rest;
        Ok(data)
    }

    /// Reads variable-length opaque data that will outlive the call. Big data is a slice of the
    /// record's own buffer; data below [`PAYLOAD_SHARED_BYTES_MIN`] is copied.
    ///
    /// # Errors
    ///
    /// As [`XdrReader::opaque`].
    pub fn payload(&mut self, bytes_max: usize) -> Result<Bytes, XdrError> {
        let data = self.opaque(bytes_max)?;
        if data.len() < PAYLOAD_SHARED_BYTES_MIN {
            return Ok(Bytes::copy_from_slice(data));
        }
        Ok(self.record.slice_ref(data))
    }

    /// Reads an optional value: a boolean, and the value if it is true.
    ///
    /// # Errors
    ///
    /// If the boolean is not one, or `value` fails.
    pub fn option<T>(
        &mut self,
        value: impl FnOnce(&mut Self) -> Result<T, XdrError>,
    ) -> Result<Option<T>, XdrError> {
        if self.bool()? {
            return value(self).map(Some);
        }
        Ok(None)
    }

    /// Reads an NFS time: seconds and nanoseconds, 32 bits each.
    ///
    /// # Errors
    ///
    /// If fewer than eight bytes are left.
    pub fn time(&mut self) -> Result<Timestamp, XdrError> {
        let seconds = self.u32()?;
        Ok(Timestamp::new(u64::from(seconds), self.u32()?))
    }

    /// Ends the reading.
    ///
    /// # Errors
    ///
    /// If bytes are left over.
    pub const fn finish(self) -> Result<(), XdrError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(XdrError::Trailing)
        }
    }
}

/// Appends values to a growing buffer. Writing never fails.
#[derive(Clone, Debug, Default)]
pub struct XdrWriter {
    bytes: Vec<u8>,
}

impl XdrWriter {
    /// An empty writer with room for `bytes` bytes.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(bytes),
        }
    }

    /// How many bytes have been written.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing has been written.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What has been written.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Takes the bytes out.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Writes an unsigned integer.
    pub fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// Writes an unsigned hyper integer.
    pub fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// Writes a boolean.
    pub fn bool(&mut self, value: bool) {
        self.u32(u32::from(value));
    }

    /// Writes a length or a count.
    pub fn length(&mut self, length: usize) {
        self.u32(u32::try_from(length).unwrap_or(u32::MAX));
    }

    /// Writes fixed-length opaque data, padded.
    pub fn fixed(&mut self, data: &[u8]) {
        self.bytes.extend_from_slice(data);
        let padded = self.bytes.len() + padding_bytes(data.len());
        self.bytes.resize(padded, 0);
    }

    /// Writes variable-length opaque data: its length, and the data padded.
    pub fn opaque(&mut self, data: &[u8]) {
        self.length(data.len());
        self.fixed(data);
    }

    /// Appends bytes that are encoded already.
    pub fn raw(&mut self, encoded: &[u8]) {
        self.bytes.extend_from_slice(encoded);
    }

    /// Writes one of the protocol crate's values.
    pub fn protocol(&mut self, value: &impl XDR) {
        value
            .serialize(&mut self.bytes)
            .expect("a vector takes every write");
    }

    /// Overwrites four bytes at `offset` with `value`, for a field known only later.
    pub fn patch_u32(&mut self, offset: usize, value: u32) {
        if let Some(field) = self
            .bytes
            .get_mut(offset..)
            .and_then(<[u8]>::first_chunk_mut)
        {
            *field = value.to_be_bytes();
        }
    }

    /// Drops everything after the first `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        self.bytes.truncate(length);
    }
}

impl Encode for () {
    fn encode(&self, _: &mut XdrWriter) {}
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, to: &mut XdrWriter) {
        to.bool(self.is_some());
        if let Some(value) = self {
            value.encode(to);
        }
    }
}

impl<T: Encode> Encode for &T {
    fn encode(&self, to: &mut XdrWriter) {
        (*self).encode(to);
    }
}

impl<A: Encode, B: Encode> Encode for (A, B) {
    fn encode(&self, to: &mut XdrWriter) {
        self.0.encode(to);
        self.1.encode(to);
    }
}

/// How many zero bytes follow `length` bytes of opaque data.
#[must_use]
pub const fn padding_bytes(length: usize) -> usize {
    (UNIT_BYTES - length % UNIT_BYTES) % UNIT_BYTES
}

/// A value of fixed size, built on the stack and appended in one piece.
#[derive(Debug)]
pub(crate) struct XdrArray<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> XdrArray<N> {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: [0; N],
            at: 0,
        }
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.put(value.to_be_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.put(value.to_be_bytes());
    }

    pub(crate) const fn bytes(&self) -> &[u8; N] {
        &self.bytes
    }

    fn put<const M: usize>(&mut self, value: [u8; M]) {
        if let Some(field) = self
            .bytes
            .get_mut(self.at..)
            .and_then(<[u8]>::first_chunk_mut)
        {
            *field = value;
        }
        self.at += M;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn opaque_data_is_checked() {
        let cases = [
            (&[0, 0, 0, 0][..], Ok(&b""[..])),
            (&[0, 0, 0, 1, b'a', 0, 0, 0], Ok(b"a")),
            (&[0, 0, 0, 4, 1, 2, 3, 4], Ok(&[1, 2, 3, 4])),
            (&[0, 0, 0, 1, b'a', 0, 0, 1], Err(XdrError::Padding)),
            (&[0, 0, 0, 1, b'a', 0, 0], Err(XdrError::Short)),
            (&[0xff; 12], Err(XdrError::TooLong)),
            (&[0, 0, 0], Err(XdrError::Short)),
        ];
        for (bytes, expected) in cases {
            let record = Bytes::copy_from_slice(bytes);
            assert_eq!(XdrReader::new(&record).opaque(8), expected, "{bytes:?}");
        }
    }

    #[test]
    fn only_zero_and_one_are_booleans() {
        for (number, expected) in [(0, Ok(false)), (1, Ok(true)), (2, Err(XdrError::Value))] {
            let record = Bytes::copy_from_slice(&u32::to_be_bytes(number));
            assert_eq!(XdrReader::new(&record).bool(), expected);
        }
    }

    #[test]
    fn a_big_payload_shares_the_record_and_a_small_one_does_not() {
        for (size, shared) in [
            (PAYLOAD_SHARED_BYTES_MIN, true),
            (PAYLOAD_SHARED_BYTES_MIN - 4, false),
        ] {
            let mut writer = XdrWriter::default();
            writer.opaque(&vec![7; size]);
            let record = Bytes::from(writer.into_bytes());
            let payload = XdrReader::new(&record).payload(usize::MAX).unwrap();
            assert_eq!(payload.len(), size);
            assert_eq!(record.as_ptr_range().contains(&payload.as_ptr()), shared);
        }
    }

    #[test]
    fn left_over_bytes_are_an_error() {
        let record = Bytes::from_static(&[0; 8]);
        let mut reader = XdrReader::new(&record);
        reader.u32().unwrap();
        assert_eq!(reader.clone().finish(), Err(XdrError::Trailing));
        reader.u32().unwrap();
        assert_eq!(reader.finish(), Ok(()));
    }

    proptest! {
        /// What is written is read back, and takes a multiple of four bytes.
        #[test]
        fn values_round_trip(
            number in any::<u32>(),
            hyper in any::<u64>(),
            flag in any::<bool>(),
            data in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut writer = XdrWriter::default();
            writer.u32(number);
            writer.opaque(&data);
            writer.u64(hyper);
            writer.bool(flag);
            let record = Bytes::from(writer.into_bytes());
            prop_assert!(record.len().is_multiple_of(UNIT_BYTES));
            let mut reader = XdrReader::new(&record);
            prop_assert_eq!(reader.u32(), Ok(number));
            prop_assert_eq!(reader.opaque(64), Ok(data.as_slice()));
            prop_assert_eq!(reader.u64(), Ok(hyper));
            prop_assert_eq!(reader.bool(), Ok(flag));
            prop_assert_eq!(reader.finish(), Ok(()));
        }
    }
}
