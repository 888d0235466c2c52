//! Atomic operations on values. Byte for byte what FoundationDB's storage servers compute.

use std::cmp::Ordering;

use bytes::Bytes;

use super::super::AtomicOp;

/// The value after `op`. The result of a number operation is as long as its operand, as in
/// FoundationDB: longer values are cut, shorter ones extended with zeros.
pub(super) fn apply(op: AtomicOp, current: Option<&Bytes>, operand: &Bytes) -> Option<Bytes> {
    let Some(current) = current else {
        return match op {
            AtomicOp::CompareAndClear => None,
            _ => Some(operand.clone()),
        };
    };
    let kept = || Some(resized(current, operand.len()));
    match op {
        AtomicOp::Add => Some(sum(current, operand)),
        AtomicOp::Max => match compare_numbers(operand, current) {
            Ordering::Less => kept(),
            Ordering::Equal | Ordering::Greater => Some(operand.clone()),
        },
        AtomicOp::Min => match compare_numbers(operand, current) {
            Ordering::Greater => kept(),
            Ordering::Equal | Ordering::Less => Some(operand.clone()),
        },
        AtomicOp::ByteMax => Some(current.max(operand).clone()),
        AtomicOp::CompareAndClear => (current != operand).then(|| current.clone()),
        // Both replace whatever was there; the caller has filled in the stamp.
        AtomicOp::SetVersionstampedKey | AtomicOp::SetVersionstampedValue => Some(operand.clone()),
    }
}

/// `value` cut or extended with zeros to `len` bytes.
fn resized(value: &Bytes, len: usize) -> Bytes {
    if value.len() == len {
        return value.clone();
    }
    let mut bytes = value.to_vec();
    bytes.resize(len, 0);
    Bytes::from(bytes)
}

/// Little-endian sum, as long as `operand`; a carry out of it is lost.
fn sum(current: &Bytes, operand: &Bytes) -> Bytes {
    let mut carry = false;
    let augend = current.iter().copied().chain(std::iter::repeat(0));
    operand
        .iter()
        .zip(augend)
        .map(|(a, b)| {
            let (partial, over) = a.overflowing_add(b);
            let (byte, over_again) = partial.overflowing_add(u8::from(carry));
            carry = over || over_again;
            byte
        })
        .collect()
}

/// Compares as little-endian numbers, looking only at the first `operand.len()` bytes of
/// `current`.
fn compare_numbers(operand: &Bytes, current: &Bytes) -> Ordering {
    let current = resized(current, operand.len());
    operand.iter().rev().cmp(current.iter().rev())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(op: AtomicOp, current: Option<&[u8]>, operand: &[u8], expected: Option<&[u8]>) {
        let current = current.map(Bytes::copy_from_slice);
        let operand = Bytes::copy_from_slice(operand);
        let result = apply(op, current.as_ref(), &operand);
        assert_eq!(
            result.as_deref(),
            expected,
            "{op:?} {current:?} {operand:?}"
        );
    }

    #[test]
    fn results_are_foundationdbs() {
        use AtomicOp::{Add, ByteMax, CompareAndClear, Max, Min};
        check(Add, None, &[1, 0], Some(&[1, 0]));
        check(Add, Some(&[255, 0]), &[1, 0], Some(&[0, 1]));
        check(Add, Some(&[255]), &[1, 0], Some(&[0, 1]));
        check(Add, Some(&[1, 2, 3]), &[1, 1], Some(&[2, 3]));
        check(Add, Some(&[255, 255]), &[1, 0], Some(&[0, 0]));
        check(Add, Some(&[7]), &[], Some(&[]));
        check(Max, Some(&[0, 1]), &[255, 0], Some(&[0, 1]));
        check(Max, Some(&[5]), &[4, 1], Some(&[4, 1]));
        check(Max, Some(&[5]), &[4, 0], Some(&[5, 0]));
        check(Max, Some(&[5, 9]), &[4], Some(&[5]));
        check(Max, None, &[0], Some(&[0]));
        check(Min, Some(&[0, 1]), &[255, 0], Some(&[255, 0]));
        check(Min, Some(&[5]), &[4, 1], Some(&[5, 0]));
        check(Min, None, &[9], Some(&[9]));
        check(ByteMax, Some(b"b"), b"a", Some(b"b"));
        check(ByteMax, Some(b"b"), b"ba", Some(b"ba"));
        check(CompareAndClear, Some(b"x"), b"x", None);
        check(CompareAndClear, Some(b"y"), b"x", Some(b"y"));
        check(CompareAndClear, None, b"x", None);
    }
}
