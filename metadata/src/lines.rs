//! Which lines differ between two texts, in a time that is bounded whatever the texts are.
//!
//! Lines that both have exactly once, in one order, are paired first; so are those of what is between
//! two of these pairs, and so on. What is left has no such lines. It is compared by Myers' algorithm,
//! whose time grows with the product of the lengths, as long as that is small. Else all of it counts
//! as changed: a coarser answer, and a right one.

use std::collections::HashMap;
use std::ops::Range;

use imara_diff::{Algorithm, Diff, InternedInput};

/// Most pairs of lines that are considered in one part: about a tenth of a second's work.
const PART_PAIRS_MAX: usize = 1 << 24;

/// Most pairs of lines that are considered in all.
const PAIRS_MAX: usize = 1 << 26;

/// How often parts are divided by lines that they have once.
const DEPTH_MAX: u32 = 16;

/// Lines of `after` in place of lines of `before`; one of both may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hunk {
    /// Lines that are replaced, from 0.
    pub before: Range<usize>,
    /// Lines that replace them.
    pub after: Range<usize>,
}

/// Lines of a text, with their ends.
#[must_use]
pub fn split(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').collect()
}

/// What turns `before` into `after`: hunks in order, with equal lines between each two. A function of
/// the two texts alone.
#[must_use]
pub fn diff(before: &[&[u8]], after: &[&[u8]]) -> Vec<Hunk> {
    let mut numbers = HashMap::new();
    let mut number = |line| {
        let next = numbers.len();
        *numbers.entry(line).or_insert(next)
    };
    let before: Vec<usize> = before.iter().copied().map(&mut number).collect();
    let after: Vec<usize> = after.iter().copied().map(&mut number).collect();
    let mut search = Search {
        before: &before,
        after: &after,
        seen: vec![Seen::default(); numbers.len()],
        pairs_left: PAIRS_MAX,
        hunks: Vec::new(),
    };
    search.run();
    search.hunks
}

/// A part of both texts that is still to be compared.
#[derive(Clone, Debug)]
struct Part {
    before: Range<usize>,
    after: Range<usize>,
    depth: u32,
}

/// Where a line is in a part.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    before: u32,
    after: u32,
    at: usize,
}

#[derive(Debug)]
struct Search<'a> {
    before: &'a [usize],
    after: &'a [usize],
    /// By line; all zero between parts.
    seen: Vec<Seen>,
    pairs_left: usize,
    hunks: Vec<Hunk>,
}

impl Search<'_> {
    fn run(&mut self) {
        let whole = Part {
            before: 0..self.before.len(),
            after: 0..self.after.len(),
            depth: 0,
        };
        // The last is the next: parts are looked at from front to back.
        let mut parts = vec![whole];
        while let Some(part) = parts.pop() {
            let part = self.trimmed(part);
            if part.before.is_empty() || part.after.is_empty() {
                self.add(part.before, part.after);
                continue;
            }
            let pairs = if part.depth < DEPTH_MAX {
                self.unique_pairs(&part)
            } else {
                Vec::new()
            };
            if pairs.is_empty() {
                self.compare(part);
            } else {
                parts.extend(between(&part, &pairs).into_iter().rev());
            }
        }
    }

    fn lines(&self, part: &Part) -> (&[usize], &[usize]) {
        (
            self.before.get(part.before.clone()).unwrap_or_default(),
            self.after.get(part.after.clone()).unwrap_or_default(),
        )
    }

    /// Without the lines that are equal at its beginning and its end.
    fn trimmed(&self, part: Part) -> Part {
        let (before, after) = self.lines(&part);
        let equal = |(one, other): &(&usize, &usize)| one == other;
        let head = before.iter().zip(after).take_while(equal).count();
        let (before, after) = (
            before.get(head..).unwrap_or_default(),
            after.get(head..).unwrap_or_default(),
        );
        let backwards = before.iter().rev().zip(after.iter().rev());
        let tail = backwards.take_while(equal).count();
        Part {
            before: part.before.start + head..part.before.end - tail,
            after: part.after.start + head..part.after.end - tail,
            depth: part.depth,
        }
    }

    /// Places of lines that are once in both, as many as are in one order.
    fn unique_pairs(&mut self, part: &Part) -> Vec<(usize, usize)> {
        let (before, after) = (self.before, self.after);
        let before = before.get(part.before.clone()).unwrap_or_default();
        let after = after.get(part.after.clone()).unwrap_or_default();
        for line in before {
            if let Some(seen) = self.seen.get_mut(*line) {
                seen.before = seen.before.saturating_add(1);
            }
        }
        for (at, line) in after.iter().enumerate() {
            if let Some(seen) = self.seen.get_mut(*line) {
                seen.after = seen.after.saturating_add(1);
                seen.at = part.after.start + at;
            }
        }
        let pairs: Vec<(usize, usize)> = before
            .iter()
            .enumerate()
            .filter_map(|(at, line)| {
                let seen = self.seen.get(*line)?;
                let is_unique = seen.before == 1 && seen.after == 1;
                is_unique.then_some((part.before.start + at, seen.at))
            })
            .collect();
        for line in before.iter().chain(after) {
            if let Some(seen) = self.seen.get_mut(*line) {
                *seen = Seen::default();
            }
        }
        longest_rising(&pairs)
    }

    /// Compares what has no lines of its own to go by.
    fn compare(&mut self, part: Part) {
        let pairs = part.before.len().saturating_mul(part.after.len());
        if pairs > PART_PAIRS_MAX.min(self.pairs_left) {
            self.add(part.before, part.after);
            return;
        }
        self.pairs_left -= pairs;
        let (before, after) = self.lines(&part);
        let mut input = InternedInput::default();
        input.update_before(before.iter().copied());
        input.update_after(after.iter().copied());
        let shift = |range: Range<u32>, by: usize| by + index(range.start)..by + index(range.end);
        let found: Vec<Hunk> = Diff::compute(Algorithm::Myers, &input)
            .hunks()
            .map(|hunk| Hunk {
                before: shift(hunk.before, part.before.start),
                after: shift(hunk.after, part.after.start),
            })
            .collect();
        for hunk in found {
            self.add(hunk.before, hunk.after);
        }
    }

    /// Adds a hunk behind the others; what touches is one.
    fn add(&mut self, before: Range<usize>, after: Range<usize>) {
        if before.is_empty() && after.is_empty() {
            return;
        }
        match self.hunks.last_mut() {
            Some(last) if last.before.end == before.start && last.after.end == after.start => {
                last.before.end = before.end;
                last.after.end = after.end;
            }
            _ => self.hunks.push(Hunk { before, after }),
        }
    }
}

/// What lies before, between and behind pairs of equal lines.
fn between(part: &Part, pairs: &[(usize, usize)]) -> Vec<Part> {
    let (mut before, mut after) = (part.before.start, part.after.start);
    let mut parts = Vec::with_capacity(pairs.len() + 1);
    let end = (part.before.end, part.after.end);
    for (to_before, to_after) in pairs.iter().copied().chain([end]) {
        if to_before > before || to_after > after {
            parts.push(Part {
                before: before..to_before,
                after: after..to_after,
                depth: part.depth + 1,
            });
        }
        (before, after) = (to_before + 1, to_after + 1);
    }
    parts
}

/// A longest sequence of pairs both of whose places rise; their first places rise already.
fn longest_rising(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    // For each length the pair with the lowest place that a sequence of that length ends with, and
    // for each pair the one before it.
    let mut ends: Vec<usize> = Vec::new();
    let mut previous: Vec<Option<usize>> = Vec::with_capacity(pairs.len());
    let place = |pair: usize| pairs.get(pair).map_or(0, |pair| pair.1);
    for (number, pair) in pairs.iter().enumerate() {
        let length = ends.partition_point(|end| place(*end) < pair.1);
        previous.push(length.checked_sub(1).and_then(|at| ends.get(at).copied()));
        match ends.get_mut(length) {
            Some(end) => *end = number,
            None => ends.push(number),
        }
    }
    let mut rising = Vec::with_capacity(ends.len());
    let mut at = ends.last().copied();
    while let Some(number) = at {
        rising.extend(pairs.get(number));
        at = previous.get(number).copied().flatten();
    }
    rising.reverse();
    rising
}

fn index(line: u32) -> usize {
    usize::try_from(line).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `before` with the hunks done to it.
    fn patched<'a>(before: &[&'a [u8]], after: &[&'a [u8]], hunks: &[Hunk]) -> Vec<&'a [u8]> {
        let (mut lines, mut at) = (Vec::new(), 0);
        for hunk in hunks {
            lines.extend(&before[at..hunk.before.start]);
            assert_eq!(lines.len(), hunk.after.start, "equal lines are left out");
            lines.extend(&after[hunk.after.clone()]);
            at = hunk.before.end;
        }
        lines.extend(&before[at..]);
        lines
    }

    fn check(before: &[u8], after: &[u8]) -> Vec<Hunk> {
        let (before, after) = (split(before), split(after));
        let hunks = diff(&before, &after);
        assert_eq!(patched(&before, &after, &hunks), after);
        for hunk in &hunks {
            assert!(!hunk.before.is_empty() || !hunk.after.is_empty());
        }
        for pair in hunks.windows(2) {
            assert!(pair[0].before.end < pair[1].before.start);
        }
        hunks
    }

    #[test]
    fn changes_are_found_where_they_are() {
        let hunks = check(b"1\n2\n3\n4\n5\n", b"1\nA\n3\n4\nB\n5\n");
        let expected = [(1..2, 1..2), (4..4, 4..5)];
        let expected = expected.map(|(before, after)| Hunk { before, after });
        assert_eq!(hunks, expected);
        // Lines that are there more than once are told apart by those that are not.
        let hunks = check(b"a\n}\n\nb\n}\n\n", b"a\n}\n\nnew\n}\n\nb\n}\n\n");
        assert_eq!(hunks.len(), 1);
        assert_eq!(hunks[0].after.len(), 3);
        assert!(check(b"", b"").is_empty());
        assert!(check(b"x\ny", b"x\ny").is_empty());
        assert_eq!(check(b"x\ny", b"").len(), 1);
    }

    /// Bug: texts of a megabyte took minutes, ordinary ones among them.
    #[test]
    fn texts_made_to_be_slow_are_compared_soon() {
        const LINES: usize = 100_000;
        let text = |line: &dyn Fn(usize) -> String| (0..LINES).map(line).collect::<String>();
        let same = text(&|_| "a\n".into());
        let every_other = text(&|at| (if at % 2 == 0 { "a\n" } else { "b\n" }).into());
        let third = text(&|at| (if at % 3 == 0 { "c\n" } else { "a\n" }).into());
        let numbered = text(&|at| format!("{at}\n"));
        let half = text(&|at| format!("{}{at}\n", if at % 2 == 0 { "new " } else { "" }));
        let mixed = text(&|at| format!("{}\n", at * 7919 % LINES));
        let few = text(&|at| format!("{}\n", at * 7919 % 99_991 % 100));
        let texts = [same, every_other, third, numbered, half, mixed, few];
        for (before, after) in [(0, 1), (1, 2), (6, 5), (6, 1), (3, 5)] {
            check(texts[before].as_bytes(), texts[after].as_bytes());
        }
        // What can be seen is seen.
        assert_eq!(
            check(texts[3].as_bytes(), texts[4].as_bytes()).len(),
            LINES / 2
        );
    }

    proptest! {
        #[test]
        fn hunks_lead_from_one_text_to_the_other(
            before in proptest::collection::vec(0..6_u8, 0..30),
            after in proptest::collection::vec(0..6_u8, 0..30),
        ) {
            let text = |lines: &[u8]| -> String { lines.iter().map(|line| format!("{line}\n")).collect() };
            check(text(&before).as_bytes(), text(&after).as_bytes());
        }

        #[test]
        fn edits_among_distinct_lines_are_exact(
            edits in proptest::collection::btree_set(0..200_usize, 0..20),
        ) {
            let before: String = (0..200).map(|at| format!("{at}\n")).collect();
            let after: String = (0..200)
                .map(|at| if edits.contains(&at) { format!("new {at}\n") } else { format!("{at}\n") })
                .collect();
            let hunks = check(before.as_bytes(), after.as_bytes());
            let changed: usize = hunks.iter().map(|hunk| hunk.before.len()).sum();
            prop_assert_eq!(changed, edits.len());
        }
    }
}
