//! Patterns for names, as shells have them: `*`, `?`, `[a-z]`, `[!a-z]`, and `\` before what is
//! meant as it stands. They are about characters; a byte that is no UTF-8 counts as one, that is in
//! no set.
//!
//! Whoever may ask chooses both the pattern and the names, so matching is bounded: a set is looked
//! up by halves, what is shorter than the pattern is not tried, and steps are counted.

/// Longest pattern, in bytes: no name is longer.
const PATTERN_BYTES_MAX: usize = 1024;

/// What a byte that is no UTF-8 is, beyond all characters.
const BYTES: u32 = 0x11_0000;

/// A pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Glob {
    parts: Vec<Part>,
    /// Characters of the shortest name that fits.
    shortest: usize,
}

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
    One(u32),
    Any,
    Many,
    /// One character in one of these ranges, which are in order and apart, or in none of them.
    Set(Vec<(u32, u32)>, bool),
}

impl Glob {
    pub(super) fn new(text: &[u8]) -> Result<Self, GlobError> {
        if text.len() > PATTERN_BYTES_MAX {
            return Err(GlobError::TooLong);
        }
        let text: Vec<u32> = characters(text).collect();
        let mut parts = Vec::new();
        let mut rest = text.as_slice();
        while let Some((first, behind)) = rest.split_first() {
            rest = behind;
            match char::from_u32(*first) {
                Some('*') => {
                    if parts.last() != Some(&Part::Many) {
                        parts.push(Part::Many);
                    }
                }
                Some('?') => parts.push(Part::Any),
                Some('\\') => {
                    let (next, behind) = rest.split_first().ok_or(GlobError::Escape)?;
                    parts.push(Part::One(*next));
                    rest = behind;
                }
                Some('[') => {
                    let (set, behind) = set(rest)?;
                    parts.push(set);
                    rest = behind;
                }
                _ => parts.push(Part::One(*first)),
            }
        }
        let shortest = parts.iter().filter(|part| **part != Part::Many).count();
        Ok(Self { parts, shortest })
    }

    /// Whether a name is as the pattern says. Adds to `steps` how many it took: at most as many as
    /// the name's length squared, and a few.
    pub(super) fn fits(&self, name: &[u8], steps: &mut u64) -> bool {
        *steps += u64::try_from(name.len()).unwrap_or(u64::MAX);
        if name.len() < self.shortest {
            return false;
        }
        let name: Vec<u32> = characters(name).collect();
        if name.len() < self.shortest {
            return false;
        }
        let (mut parts, mut rest) = (self.parts.as_slice(), name.as_slice());
        // What the last `*` takes can still become longer.
        let mut retry: Option<(&[Part], &[u32])> = None;
        loop {
            *steps += 1;
            let step = match parts.split_first() {
                Some((Part::Many, behind)) => {
                    retry = Some((behind, rest));
                    parts = behind;
                    continue;
                }
                Some((part, behind)) => match rest.split_first() {
                    Some((next, left)) => part.is(*next).then_some((behind, left)),
                    // A longer `*` would leave even less.
                    None => return false,
                },
                None if rest.is_empty() => return true,
                None => None,
            };
            let again = retry.and_then(|(behind, from)| Some((behind, from.get(1..)?)));
            match (step, again) {
                (Some((behind, left)), _) => (parts, rest) = (behind, left),
                (None, Some((behind, from))) => {
                    retry = again;
                    // Nothing follows the last `*`: it takes all.
                    rest = if behind.is_empty() { &[] } else { from };
                    parts = behind;
                }
                (None, None) => return false,
            }
        }
    }
}

impl Part {
    /// Whether it stands for a character.
    fn is(&self, found: u32) -> bool {
        match self {
            Self::One(one) => *one == found,
            Self::Any | Self::Many => true,
            Self::Set(ranges, is_negated) => {
                let before = ranges.partition_point(|(from, _)| *from <= found);
                let last = before.checked_sub(1).and_then(|index| ranges.get(index));
                let is_in = last.is_some_and(|(_, to)| found <= *to) && found < BYTES;
                is_in != *is_negated
            }
        }
    }
}

/// The characters of a text, and what is beyond them for bytes that are no UTF-8.
fn characters(text: &[u8]) -> impl Iterator<Item = u32> {
    text.utf8_chunks().flat_map(|chunk| {
        let valid = chunk.valid().chars().map(u32::from);
        let bytes = chunk.invalid().iter().map(|byte| BYTES + u32::from(*byte));
        valid.chain(bytes)
    })
}

/// Reads a set behind its `[`.
fn set(text: &[u32]) -> Result<(Part, &[u32]), GlobError> {
    let is = |found: &u32, letter: char| *found == u32::from(letter);
    let negated = text
        .split_first()
        .filter(|(first, _)| is(first, '!') || is(first, '^'));
    let mut rest = negated.map_or(text, |(_, behind)| behind);
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    let mut is_first = true;
    loop {
        if let Some((first, behind)) = rest.split_first()
            && is(first, ']')
            && !is_first
        {
            return Ok((Part::Set(in_order(ranges), negated.is_some()), behind));
        }
        is_first = false;
        let (from, behind) = member(rest)?;
        rest = behind;
        let mut to = from;
        if let Some((dash, behind)) = rest.split_first()
            && is(dash, '-')
            && !behind.first().is_some_and(|next| is(next, ']'))
        {
            (to, rest) = member(behind)?;
        }
        ranges.push((from, to));
    }
}

fn member(text: &[u32]) -> Result<(u32, &[u32]), GlobError> {
    let (first, behind) = text.split_first().ok_or(GlobError::Open)?;
    if *first == u32::from('\\') {
        let (next, behind) = behind.split_first().ok_or(GlobError::Open)?;
        return Ok((*next, behind));
    }
    Ok((*first, behind))
}

/// The same ranges, in order and apart.
fn in_order(mut ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    ranges.retain(|(from, to)| from <= to);
    ranges.sort_unstable();
    let mut apart: Vec<(u32, u32)> = Vec::new();
    for (from, to) in ranges {
        match apart.last_mut() {
            Some((_, end)) if from <= *end => *end = to.max(*end),
            _ => apart.push((from, to)),
        }
    }
    apart
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
                assert!(glob.fits(name.as_bytes(), &mut 0), "{pattern} {name}");
            }
            for name in others {
                assert!(!glob.fits(name.as_bytes(), &mut 0), "{pattern} {name}");
            }
        }
        assert!(Glob::new(b"a\xff?").unwrap().fits(b"a\xff\xfe", &mut 0));
        assert!(Glob::new(b"[!a]").unwrap().fits(b"\xff", &mut 0));
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
        let set = format!("*[{}]*x", "b-c".repeat(300));
        let patterns = [
            "*a".repeat(500),
            format!("*{}b", "a".repeat(127)),
            format!("*{}b", "?".repeat(127)),
            "?".repeat(1000),
            set,
        ];
        for pattern in patterns {
            let glob = Glob::new(pattern.as_bytes()).unwrap();
            for name in [[b'a'; 255], [b'b'; 255]] {
                let mut steps = 0;
                glob.fits(&name, &mut steps);
                assert!(steps <= 40_000, "{pattern}: {steps}");
            }
            assert!(!glob.fits(&[b'c'; 255], &mut 0) || pattern.contains('?'));
        }
    }

    /// As the definition has it, however long that takes.
    fn fits(parts: &[Part], name: &[u32]) -> bool {
        match (parts.split_first(), name.split_first()) {
            (None, None) => true,
            (Some((Part::Many, behind)), next) => {
                fits(behind, name) || next.is_some_and(|(_, left)| fits(parts, left))
            }
            (Some((part, behind)), Some((next, left))) => part.is(*next) && fits(behind, left),
            _ => false,
        }
    }

    #[test]
    fn fast_is_as_slow() {
        let letters = |mut number: usize, from: &str, length: usize| {
            let from: Vec<char> = from.chars().collect();
            let mut text = String::new();
            for _ in 0..length {
                text.push(from[number % from.len()]);
                number /= from.len();
            }
            text
        };
        for pattern in 0..4096 {
            let glob = Glob::new(letters(pattern, "ab*?", 6).as_bytes()).unwrap();
            for name in 0..32 {
                let name = letters(name, "ab", 5);
                let units: Vec<u32> = name.chars().map(u32::from).collect();
                let fast = glob.fits(name.as_bytes(), &mut 0);
                assert_eq!(fast, fits(&glob.parts, &units), "{glob:?} {name}");
            }
        }
    }
}
