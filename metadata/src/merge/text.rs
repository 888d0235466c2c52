//! Merging texts by lines.

use std::ops::Range;

use bytes::Bytes;

use crate::lines::{self, Hunk};
pub(super) use crate::text::is_text;

/// One side: its lines, and how they differ from base.
#[derive(Debug)]
struct Side<'a> {
    lines: Vec<&'a [u8]>,
    hunks: Vec<Hunk>,
}

/// Merges two texts that came from `base`, if no region was changed by both in different ways.
/// Regions that touch count as one: nothing says in which order they belong.
///
/// A function of the texts alone. What has hardly a line to go by counts as changed as a whole, so the
/// time is bounded: about a second for texts of a megabyte that are made to be slow.
#[must_use]
pub fn merge_texts(base: &[u8], ours: &[u8], theirs: &[u8]) -> Option<Bytes> {
    merge(base, ours, theirs).map(Bytes::from)
}

fn merge(base: &[u8], ours: &[u8], theirs: &[u8]) -> Option<Vec<u8>> {
    let base_lines = lines::split(base);
    let ours = Side::new(&base_lines, ours);
    let theirs = Side::new(&base_lines, theirs);
    let mut merged = Vec::with_capacity(base.len());
    // The first base line that is not yet merged, and the next hunk of each side.
    let (mut at, mut next) = (0, [0, 0]);
    while let Some(start) = first_start(&ours, &theirs, next) {
        append(&mut merged, base_lines.get(at..start)?);
        let (end, after) = region(&ours, &theirs, start, next);
        let texts = [
            ours.text(next[0]..after[0], start..end)?,
            theirs.text(next[1]..after[1], start..end)?,
        ];
        let text = match (after[0] > next[0], after[1] > next[1]) {
            (true, false) => texts[0],
            (false, true) => texts[1],
            _ if texts[0] == texts[1] => texts[0],
            _ => return None,
        };
        append(&mut merged, text);
        (at, next) = (end, after);
    }
    append(&mut merged, base_lines.get(at..)?);
    // A last line without an end must not run into what another side put after it.
    is_whole(&base_lines, &ours.lines, &theirs.lines, &merged).then_some(merged)
}

/// Whether every line of the merged text is a line of a side: none was joined to another.
fn is_whole(base: &[&[u8]], ours: &[&[u8]], theirs: &[&[u8]], merged: &[u8]) -> bool {
    let last = |lines: &[&[u8]]| lines.last().is_some_and(|line| !line.ends_with(b"\n"));
    if ![base, ours, theirs].into_iter().any(last) {
        return true;
    }
    let known: std::collections::HashSet<&[u8]> =
        base.iter().chain(ours).chain(theirs).copied().collect();
    lines::split(merged).iter().all(|line| known.contains(line))
}

/// Where the next hunk of either side begins, in base lines.
fn first_start(ours: &Side<'_>, theirs: &Side<'_>, next: [usize; 2]) -> Option<usize> {
    let start = |side: &Side<'_>, at: usize| side.hunks.get(at).map(|hunk| hunk.before.start);
    [start(ours, next[0]), start(theirs, next[1])]
        .into_iter()
        .flatten()
        .min()
}

/// The end of the region that begins at `start`, in base lines, and for each side the first hunk
/// after it.
fn region(
    ours: &Side<'_>,
    theirs: &Side<'_>,
    start: usize,
    next: [usize; 2],
) -> (usize, [usize; 2]) {
    let (mut end, mut after) = (start, next);
    loop {
        let before = after;
        for (side, after) in [ours, theirs].into_iter().zip(&mut after) {
            while let Some(hunk) = side.hunks.get(*after)
                && hunk.before.start <= end
            {
                end = end.max(hunk.before.end);
                *after += 1;
            }
        }
        if after == before {
            return (end, after);
        }
    }
}

impl<'a> Side<'a> {
    fn new(base: &[&'a [u8]], text: &'a [u8]) -> Self {
        let lines = lines::split(text);
        let hunks = lines::diff(base, &lines);
        Self { lines, hunks }
    }

    /// This side's lines in place of the base lines `region`, in which its hunks `hunks` lie.
    fn text(&self, hunks: Range<usize>, region: Range<usize>) -> Option<&[&'a [u8]]> {
        let shift = |base: usize, hunk: Option<&Hunk>| match hunk {
            // Between hunks a side has base's lines, at another place.
            Some(hunk) => base + hunk.after.end - hunk.before.end,
            None => base,
        };
        let before = hunks.start.checked_sub(1);
        let last = hunks.end.checked_sub(1);
        let start = shift(region.start, before.and_then(|at| self.hunks.get(at)));
        let end = shift(region.end, last.and_then(|at| self.hunks.get(at)));
        self.lines.get(start..end)
    }
}

fn append(merged: &mut Vec<u8>, lines: &[&[u8]]) {
    for line in lines {
        merged.extend_from_slice(line);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn merged(base: &str, ours: &str, theirs: &str) -> Option<String> {
        let merged = merge(base.as_bytes(), ours.as_bytes(), theirs.as_bytes());
        merged.map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn texts_are_merged_where_only_one_side_changed() {
        let base = "1\n2\n3\n4\n5\n6\n";
        let cases: [(&str, &str, Option<&str>); 9] = [
            (
                "1\nA\n3\n4\n5\n6\n",
                "1\n2\n3\n4\nB\n6\n",
                Some("1\nA\n3\n4\nB\n6\n"),
            ),
            (
                "0\n1\n2\n3\n4\n5\n6\n",
                "1\n2\n3\n4\n5\n6\n7\n",
                Some("0\n1\n2\n3\n4\n5\n6\n7\n"),
            ),
            ("1\n3\n4\n5\n6\n", "1\n2\n3\n4\n6\n", Some("1\n3\n4\n6\n")),
            // Both did the same.
            (
                "1\nA\n3\n4\n5\n6\n",
                "1\nA\n3\n4\nB\n6\n",
                Some("1\nA\n3\n4\nB\n6\n"),
            ),
            // The same line.
            ("1\nA\n3\n4\n5\n6\n", "1\nB\n3\n4\n5\n6\n", None),
            // Lines side by side.
            ("1\nA\n3\n4\n5\n6\n", "1\n2\nB\n4\n5\n6\n", None),
            // Inserted at one place.
            ("1\n2\nA\n3\n4\n5\n6\n", "1\n2\nB\n3\n4\n5\n6\n", None),
            ("1\n2\n3\n4\n5\n6\nA\n", "1\n2\n3\n4\n5\n6\nB\n", None),
            // All gone, and one changed.
            ("", "1\n2\n3\n4\n5\nB\n", None),
        ];
        for (ours, theirs, expected) in cases {
            assert_eq!(
                merged(base, ours, theirs).as_deref(),
                expected,
                "{ours:?} {theirs:?}"
            );
            assert_eq!(
                merged(base, theirs, ours).as_deref(),
                expected,
                "{theirs:?} {ours:?}"
            );
        }
    }

    #[test]
    fn a_last_line_without_an_end_is_a_line() {
        assert_eq!(
            merged("1\n2\n3", "0\n2\n3", "1\n2\n4").as_deref(),
            Some("0\n2\n4")
        );
        assert_eq!(
            merged("1\n2\n3", "1\n2\n3\n", "1\n2\n3").as_deref(),
            Some("1\n2\n3\n")
        );
        assert_eq!(merged("1\n2\n3", "1\n2\n3\n4", "1\n2\n5"), None);
        assert!(is_text(b"a\xff\n") && !is_text(b"a\0"));
    }

    fn texts() -> impl Strategy<Value = String> {
        (proptest::collection::vec(0..5_u8, 0..12), any::<bool>()).prop_map(|(lines, ends)| {
            let mut text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            if !ends {
                text.pop();
            }
            text
        })
    }

    proptest! {
        #[test]
        fn merging_is_lawful(base in texts(), ours in texts(), theirs in texts()) {
            prop_assert_eq!(merged(&base, &ours, &base), Some(ours.clone()));
            prop_assert_eq!(merged(&base, &base, &theirs), Some(theirs.clone()));
            prop_assert_eq!(merged(&base, &ours, &ours), Some(ours.clone()));
            let both = merged(&base, &ours, &theirs);
            prop_assert_eq!(&both, &merged(&base, &theirs, &ours));
            // No line is made up or joined from two.
            for line in both.unwrap_or_default().split_inclusive('\n') {
                let known = [&base, &ours, &theirs];
                prop_assert!(known.iter().any(|text| text.split_inclusive('\n').any(|it| it == line)));
            }
        }

        #[test]
        fn edits_apart_merge(
            lines in proptest::collection::vec(0..1000_u32, 8..40),
            at in any::<proptest::sample::Index>(),
        ) {
            // Distinct lines, so that the diff cannot be seen in another way.
            let lines: Vec<String> = lines.iter().enumerate().map(|(at, it)| format!("{at} {it}\n")).collect();
            let (first, second) = (at.index(lines.len() - 3), at.index(lines.len() - 3) + 2);
            let edit = |edits: &[(usize, &str)]| {
                let mut lines = lines.clone();
                for (at, text) in edits {
                    lines[*at] = (*text).to_owned();
                }
                lines.concat()
            };
            let (ours, theirs) = (edit(&[(first, "A\n")]), edit(&[(second, "B\n")]));
            let both = edit(&[(first, "A\n"), (second, "B\n")]);
            prop_assert_eq!(merged(&lines.concat(), &ours, &theirs), Some(both));
        }
    }

    /// Texts made to be slow are merged in a time that a test can wait for.
    #[test]
    fn large_texts_without_common_order_end() {
        let text = |step: usize| -> Vec<u8> {
            (0..100_000)
                .flat_map(|at| format!("{}\n", at * step % 99_991).into_bytes())
                .collect()
        };
        let (base, ours, theirs) = (text(1), text(7919), text(104_729));
        assert_eq!(merge(&base, &ours, &base), Some(ours.clone()));
        assert_eq!(merge(&base, &ours, &theirs), None);
    }
}
