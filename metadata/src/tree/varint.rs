//! Numbers of variable length: seven bits a byte, low bits first, the top bit says that more follow.
//! The shortest form is the only one.

/// Longest number, in bytes.
const BYTES_MAX: usize = 10;

/// Appends `value`.
pub(super) fn put(to: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            to.push(low & 0x7f);
            return;
        }
        to.push(low | 0x80);
    }
}

/// The number that `from` begins with, and the rest. `None` if there is none in its shortest form.
pub(super) fn take(from: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    let mut shift = 0_u32;
    for (at, byte) in from.iter().enumerate().take(BYTES_MAX) {
        let part = u64::from(byte & 0x7f);
        let placed = part.checked_shl(shift)?;
        if placed >> shift != part {
            return None;
        }
        value |= placed;
        if byte & 0x80 == 0 {
            let shortest = part != 0 || at == 0;
            return shortest.then_some((value, from.get(at + 1..)?));
        }
        shift += 7;
    }
    None
}

/// As [`take`], as a length.
pub(super) fn take_len(from: &[u8]) -> Option<(usize, &[u8])> {
    let (value, rest) = take(from)?;
    Some((usize::try_from(value).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(value: u64) {
        let mut bytes = Vec::new();
        put(&mut bytes, value);
        let bits = usize::try_from(u64::BITS - value.leading_zeros()).unwrap();
        assert_eq!(bytes.len(), bits.div_ceil(7).max(1), "{value}");
        bytes.push(0x55);
        assert_eq!(take(&bytes), Some((value, &[0x55][..])));
    }

    #[test]
    fn edges_round_trip() {
        for bits in 0..64 {
            check(1 << bits);
            check((1 << bits) - 1);
        }
        check(u64::MAX);
    }

    #[test]
    fn longer_forms_are_refused() {
        for bytes in [&[0x80, 0][..], &[0xff, 0x80, 0], &[0x80], &[], &[0xff; 11]] {
            assert_eq!(take(bytes), None, "{bytes:?}");
        }
        // Two to the power of 64.
        let mut over = vec![0x80; 9];
        over.push(2);
        assert_eq!(take(&over), None);
    }

    proptest! {
        #[test]
        fn any_number_round_trips(value in any::<u64>()) {
            check(value);
        }

        #[test]
        fn what_is_taken_is_what_would_be_put(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            if let Some((value, rest)) = take(&bytes) {
                let mut again = Vec::new();
                put(&mut again, value);
                again.extend_from_slice(rest);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
