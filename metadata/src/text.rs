//! Texts by lines: what differs between two of them, and how that is written.

use std::ops::Range;

pub use crate::lines::{Hunk, split as lines};

/// Unchanged lines that are shown around changed ones.
const CONTEXT_LINES: usize = 3;

/// Whether content is taken for text: it has no NUL byte. An archive of texts is none, also if it
/// is valid UTF-8.
#[must_use]
pub fn is_text(content: &[u8]) -> bool {
    !content.contains(&0)
}

/// What differs between two texts, in order, as people like to read it. Takes a bounded time.
#[must_use]
pub fn hunks(before: &[&[u8]], after: &[&[u8]]) -> Vec<Hunk> {
    let mut hunks = crate::lines::diff(before, after);
    // A line stays between two hunks.
    let next = hunks.iter().skip(1).map(|hunk| hunk.before.start - 1);
    let limits: Vec<usize> = next.chain([before.len()]).collect();
    for (hunk, limit) in hunks.iter_mut().zip(limits) {
        slide(hunk, limit, before, after);
    }
    hunks
}

/// Of the places where the same lines may be said to have come or gone, the last: a function that was
/// added begins with its head then, and not with the end of the one before it.
fn slide(hunk: &mut Hunk, limit: usize, before: &[&[u8]], after: &[&[u8]]) {
    let (lines, moved) = match (hunk.before.is_empty(), hunk.after.is_empty()) {
        (true, false) => (after, &hunk.after),
        (false, true) => (before, &hunk.before),
        _ => return,
    };
    let rest = |from: usize| lines.get(from..).unwrap_or_default().iter();
    let equal = rest(moved.start).zip(rest(moved.end));
    let room = limit.saturating_sub(hunk.before.end);
    let by = equal
        .take_while(|(one, other)| one == other)
        .take(room)
        .count();
    for range in [&mut hunk.before, &mut hunk.after] {
        *range = range.start + by..range.end + by;
    }
}

/// Appends the hunks of a unified diff, with three lines around them; nothing if the texts are the
/// same. What `patch` and `git apply` take, behind a head that names the files.
pub fn unified(before: &[u8], after: &[u8], to: &mut Vec<u8>) {
    let (before, after) = (lines(before), lines(after));
    let hunks = hunks(&before, &after);
    let mut rest = hunks.as_slice();
    while let Some((first, _)) = rest.split_first() {
        let together = together(rest);
        let (group, later) = rest.split_at(together);
        rest = later;
        let Some(last) = group.last() else {
            return;
        };
        // As many unchanged lines on both sides: there are none fewer before than after.
        let lead = first.before.start.min(CONTEXT_LINES);
        let trail = (before.len() - last.before.end).min(CONTEXT_LINES);
        let old = first.before.start - lead..last.before.end + trail;
        let new = first.after.start - lead..last.after.end + trail;
        let head = format!("@@ -{} +{} @@\n", numbers(&old), numbers(&new));
        to.extend_from_slice(head.as_bytes());
        let mut at = old.start;
        for hunk in group {
            append(to, b' ', before.get(at..hunk.before.start));
            append(to, b'-', before.get(hunk.before.clone()));
            append(to, b'+', after.get(hunk.after.clone()));
            at = hunk.before.end;
        }
        append(to, b' ', before.get(at..old.end));
    }
}

/// How many of the first hunks are so near each other that they are told as one.
fn together(hunks: &[Hunk]) -> usize {
    let gaps = hunks.windows(2).take_while(|pair| match pair {
        [one, two] => two.before.start - one.before.end <= 2 * CONTEXT_LINES,
        _ => false,
    });
    gaps.count() + 1
}

/// Line numbers as a unified diff has them.
fn numbers(lines: &Range<usize>) -> String {
    match lines.len() {
        // The line before.
        0 => format!("{},0", lines.start),
        1 => format!("{}", lines.start + 1),
        count => format!("{},{count}", lines.start + 1),
    }
}

fn append(to: &mut Vec<u8>, sign: u8, lines: Option<&[&[u8]]>) {
    for line in lines.unwrap_or_default() {
        to.push(sign);
        to.extend_from_slice(line);
        if !line.ends_with(b"\n") {
            to.extend_from_slice(b"\n\\ No newline at end of file\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn told(before: &str, after: &str) -> String {
        let mut told = Vec::new();
        unified(before.as_bytes(), after.as_bytes(), &mut told);
        String::from_utf8(told).unwrap()
    }

    #[test]
    fn differences_are_written_as_diff_does() {
        let lines = |range: Range<u32>| -> String { range.map(|at| format!("{at}\n")).collect() };
        assert_eq!(told("a\n", "a\n"), "");
        assert_eq!(told("", "a\nb\n"), "@@ -0,0 +1,2 @@\n+a\n+b\n");
        assert_eq!(told("a\n", ""), "@@ -1 +0,0 @@\n-a\n");
        assert_eq!(
            told("a\nb", "a\nc"),
            "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n\
             \\ No newline at end of file\n"
        );
        let old = lines(0..30);
        let near = old.replace("10\n", "x\n").replace("17\n", "y\n");
        assert_eq!(
            told(&old, &near),
            "@@ -8,14 +8,14 @@\n 7\n 8\n 9\n-10\n+x\n 11\n 12\n 13\n 14\n 15\n 16\n-17\n+y\n 18\n \
             19\n 20\n"
        );
        let apart = old.replace("\n10\n", "\n").replace("18\n", "18\ny\n");
        assert_eq!(
            told(&old, &apart),
            "@@ -8,7 +8,6 @@\n 7\n 8\n 9\n-10\n 11\n 12\n 13\n@@ -17,6 +16,7 @@\n 16\n 17\n 18\n+y\n \
             19\n 20\n 21\n"
        );
    }

    /// Applies a unified diff, strictly.
    fn apply(before: &str, diff: &str) -> String {
        let old: Vec<&str> = before.split_inclusive('\n').collect();
        let (mut out, mut at) = (String::new(), 0);
        let mut lines = diff.split_inclusive('\n').peekable();
        while let Some(line) = lines.next() {
            if let Some(head) = line.strip_prefix("@@ -") {
                let (start, _) = head.split_once(' ').unwrap();
                let (start, count) = start.split_once(',').unwrap_or((start, "1"));
                let start: usize = start.parse().unwrap();
                let start = if count == "0" { start } else { start - 1 };
                out.extend(old[at..start].iter().copied());
                at = start;
                continue;
            }
            let (sign, mut text) = line.split_at(1);
            if lines.peek().is_some_and(|next| next.starts_with('\\')) {
                text = text.strip_suffix('\n').unwrap();
                lines.next();
            }
            if sign != "+" {
                assert_eq!(old[at], text);
                at += 1;
            }
            if sign != "-" {
                out.push_str(text);
            }
        }
        out.extend(old[at..].iter().copied());
        out
    }

    fn texts() -> impl Strategy<Value = String> {
        (proptest::collection::vec(0..4_u8, 0..40), any::<bool>()).prop_map(|(lines, ends)| {
            let mut text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            if !ends {
                text.pop();
            }
            text
        })
    }

    proptest! {
        #[test]
        fn applying_a_difference_gives_the_text_after(before in texts(), after in texts()) {
            prop_assert_eq!(apply(&before, &told(&before, &after)), after);
        }
    }
}
