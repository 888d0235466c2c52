//! Patterns for names, as shells have them: `*`, `?`, `[a-z]`, `[!a-z]`, and `\` before what is
//! meant as it stands. They are about bytes; `?` stands for one character of UTF-8, or one byte that
//! is none.

/// Longest pattern, in bytes: no name is longer.
const PATTERN_BYTES_MAX: usize = 1024;

/// A pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Glob(Vec<Part>);

/// A text that is no pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum GlobError {
    #[error("the pattern is longer than {PATTERN_BYTES_MAX} bytes")]
    TooLong,
    #[error("a [ in the pattern has no ]; put a \\ before it if it is meant as it stands")]
    Open,
    #[error("the pattern ends with a \\")]
    Escape,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Byte(u8),
    Any,
    Many,
    /// One character in one of these ranges, or in none of them.
    Set(Vec<(char, char)>, bool),
}

impl Glob {
    pub(super) fn new(text: &[u8]) -> Result<Self, GlobError> {
        if text.len() > PATTERN_BYTES_MAX {
            return Err(GlobError::TooLong);
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((first, behind)) = rest.split_first() {
            rest = behind;
            match first {
                b'*' => {
                    if parts.last() != Some(&Part::Many) {
                        parts.push(Part::Many);
                    }
                }
                b'?' => parts.push(Part::Any),
                b'\\' => {
                    let (next, behind) = rest.split_first().ok_or(GlobError::Escape)?;
                    parts.push(Part::Byte(*next));
                    rest = behind;
                }
                b'[' => {
                    let (set, behind) = set(rest)?;
                    parts.push(set);
                    rest = behind;
                }
                byte => parts.push(Part::Byte(*byte)),
            }
        }
        Ok(Self(parts))
    }

    /// Whether a name is as the pattern says. Takes at most as many steps as the lengths of both
    /// multiplied.
    pub(super) fn fits(&self, name: &[u8]) -> bool {
        let (mut parts, mut rest) = (self.0.as_slice(), name);
        // What the last `*` takes can still become longer.
        let mut retry: Option<(&[Part], &[u8])> = None;
        loop {
            let step = match parts.split_first() {
                Some((Part::Many, behind)) => {
                    retry = Some((behind, rest));
                    parts = behind;
                    continue;
                }
                Some((part, behind)) => part.take(rest).map(|left| (behind, left)),
                None if rest.is_empty() => return true,
                None => None,
            };
            match step {
                Some((behind, left)) => (parts, rest) = (behind, left),
                None => match retry {
                    Some((behind, from)) if !from.is_empty() => {
                        let (_, from) = character(from);
                        retry = Some((behind, from));
                        (parts, rest) = (behind, from);
                    }
                    _ => return false,
                },
            }
        }
    }
}

impl Part {
    /// Takes what it stands for off the front.
    fn take<'a>(&self, text: &'a [u8]) -> Option<&'a [u8]> {
        if text.is_empty() {
            return None;
        }
        let (found, behind) = character(text);
        match self {
            Self::Byte(byte) => text.strip_prefix(&[*byte]),
            Self::Any | Self::Many => Some(behind),
            Self::Set(ranges, is_negated) => {
                let mut ranges = ranges.iter();
                let is_in = |found: char| ranges.any(|(from, to)| (*from..=*to).contains(&found));
                (found.is_some_and(is_in) != *is_negated).then_some(behind)
            }
        }
    }
}

/// The first character of a text that is not empty, if it is UTF-8, and what is behind it.
fn character(text: &[u8]) -> (Option<char>, &[u8]) {
    let head = text.get(..4).unwrap_or(text);
    let valid = head.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    match valid.chars().next() {
        Some(found) => (
            Some(found),
            text.get(found.len_utf8()..).unwrap_or_default(),
        ),
        None => (None, text.get(1..).unwrap_or_default()),
    }
}

/// Reads a set behind its `[`.
fn set(text: &[u8]) -> Result<(Part, &[u8]), GlobError> {
    let negated = text.strip_prefix(b"!").or_else(|| text.strip_prefix(b"^"));
    let mut rest = negated.unwrap_or(text);
    let mut ranges: Vec<(char, char)> = Vec::new();
    let mut is_first = true;
    loop {
        if let Some(behind) = rest.strip_prefix(b"]").filter(|_| !is_first) {
            return Ok((Part::Set(ranges, negated.is_some()), behind));
        }
        is_first = false;
        let (from, behind) = member(rest)?;
        rest = behind;
        let mut to = from;
        if let Some(behind) = rest
            .strip_prefix(b"-")
            .filter(|behind| !behind.starts_with(b"]"))
        {
            (to, rest) = member(behind)?;
        }
        ranges.push((from, to));
    }
}

fn member(text: &[u8]) -> Result<(char, &[u8]), GlobError> {
    let text = text.strip_prefix(b"\\").unwrap_or(text);
    if text.is_empty() {
        return Err(GlobError::Open);
    }
    let (found, behind) = character(text);
    // A byte that is no UTF-8 is in no set.
    Ok((found.unwrap_or('\u{fffd}'), behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_as_in_shells() {
        let cases: [(&str, &[&str], &[&str]); 12] = [
            ("", &[""], &["a"]),
            ("*", &["", "a", "..."], &[]),
            ("*.rs", &["a.rs", ".rs", "a.rs.rs"], &["a.rsx", "rs"]),
            ("a*b*c", &["abc", "axxbxbc"], &["ab", "acb"]),
            ("?", &["a", "ä", "\u{1f600}"], &["", "ab"]),
            ("[a-c]x", &["ax", "cx"], &["dx", "x"]),
            ("[!a-c]x", &["dx", "äx"], &["ax", "x"]),
            ("[]-]", &["]", "-"], &["a"]),
            ("[a-]", &["a", "-"], &["b"]),
            ("[ä-ü]", &["ö"], &["o"]),
            ("\\*\\[", &["*["], &["a["]),
            ("[\\]]", &["]"], &["\\"]),
        ];
        for (pattern, fitting, others) in cases {
            let glob = Glob::new(pattern.as_bytes()).unwrap();
            for name in fitting {
                assert!(glob.fits(name.as_bytes()), "{pattern} {name}");
            }
            for name in others {
                assert!(!glob.fits(name.as_bytes()), "{pattern} {name}");
            }
        }
        assert!(Glob::new(b"a\xff?").unwrap().fits(b"a\xff\xfe"));
        assert!(Glob::new(b"[!a]").unwrap().fits(b"\xff"));
        for (pattern, error) in [
            ("[", GlobError::Open),
            ("[a", GlobError::Open),
            ("[]", GlobError::Open),
            ("[a-", GlobError::Open),
            ("a\\", GlobError::Escape),
            (&"x".repeat(2000), GlobError::TooLong),
        ] {
            assert_eq!(Glob::new(pattern.as_bytes()), Err(error), "{pattern}");
        }
    }

    #[test]
    fn no_pattern_takes_long() {
        let pattern = "*a".repeat(500);
        let glob = Glob::new(pattern.as_bytes()).unwrap();
        assert!(!glob.fits(&[b'a'; 255]));
        assert!(!glob.fits(&[b'b'; 255]));
    }
}
