//! Pax headers: records `LENGTH KEY=VALUE\n`.

use base::Timestamp;

use super::TarError;

/// Appends a record.
pub(super) fn push(to: &mut Vec<u8>, key: &str, value: &[u8]) {
    // The length counts its own digits.
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    to.extend_from_slice(length.to_string().as_bytes());
    to.push(b' ');
    to.extend_from_slice(key.as_bytes());
    to.push(b'=');
    to.extend_from_slice(value);
    to.push(b'\n');
}

/// A time as a record has it.
pub(super) fn time(time: Timestamp) -> String {
    if time.nanos() == 0 {
        time.seconds().to_string()
    } else {
        let text = time.to_string();
        text.trim_end_matches('0').to_owned()
    }
}

/// The time that a record says. What is before 1970 becomes 1970, as files here cannot be older.
pub(super) fn parse_time(value: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(value).ok()?;
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let (seconds, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if seconds.is_empty() || !all_digits(seconds) || !all_digits(fraction) {
        return None;
    }
    let seconds = seconds.parse().ok()?;
    let nanos: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    let nanos = nanos.parse().ok()?;
    if is_negative {
        return Some(Timestamp::EPOCH);
    }
    Some(Timestamp::new(seconds, nanos))
}

/// A whole number, as a record has it.
pub(super) fn parse_number(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse().ok()
    } else {
        None
    }
}

/// Calls `each` for all records.
pub(super) fn parse<'a>(
    mut bytes: &'a [u8],
    mut each: impl FnMut(&'a [u8], &'a [u8]) -> Result<(), TarError>,
) -> Result<(), TarError> {
    let broken = || TarError::new(None, "a pax header of the archive is damaged; make it anew");
    while !bytes.is_empty() {
        let space = bytes.iter().position(|byte| *byte == b' ');
        let digits = space.and_then(|at| bytes.get(..at)).ok_or_else(broken)?;
        let length = parse_number(digits).and_then(|length| usize::try_from(length).ok());
        let length = length.filter(|_| !digits.is_empty()).ok_or_else(broken)?;
        let (record, rest) = bytes.split_at_checked(length).ok_or_else(broken)?;
        let record = record.get(digits.len() + 1..).ok_or_else(broken)?;
        let record = record.strip_suffix(b"\n").ok_or_else(broken)?;
        let equals = record.iter().position(|byte| *byte == b'=');
        let equals = equals.ok_or_else(broken)?;
        let (key, value) = record.split_at_checked(equals).ok_or_else(broken)?;
        each(key, value.get(1..).unwrap_or_default())?;
        bytes = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_count_themselves() {
        for value in [0, 1, 88, 89, 90, 91, 985, 986, 987, 988, 989] {
            let mut bytes = Vec::new();
            push(&mut bytes, "path", &vec![b'x'; value]);
            let said: String = bytes
                .iter()
                .take_while(|byte| **byte != b' ')
                .map(|byte| char::from(*byte))
                .collect();
            assert_eq!(said, bytes.len().to_string());
        }
    }

    #[test]
    fn times_are_read() {
        let cases: [(&[u8], Option<Timestamp>); 8] = [
            (b"1", Some(Timestamp::new(1, 0))),
            (b"1.5", Some(Timestamp::new(1, 500_000_000))),
            (b"1.123456789999", Some(Timestamp::new(1, 123_456_789))),
            (b"-1.5", Some(Timestamp::EPOCH)),
            (b"", None),
            (b".5", None),
            (b"1e5", None),
            (b"99999999999999999999999", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_time(text), expected, "{}", text.escape_ascii());
        }
    }
}
