//! Contents of files: bytes that do not compress and never repeat, and that tell where they belong.

use std::ops::Range;
use std::sync::LazyLock;

use base::Rng;

/// Unit of stamping, in bytes: a page, the smallest unit the kernel client writes.
pub(crate) const STAMP_BYTES: usize = 4096;

/// Longest content, in bytes: what one READ or WRITE carries at most.
pub(crate) const PATTERN_BYTES: usize = 1024 * 1024;

/// Pages of the pattern.
const PAGES: u64 = 256;

/// The unstamped bytes, drawn once.
static SOURCE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let rng = Rng::seeded(1);
    let pages = (0..PATTERN_BYTES / STAMP_BYTES).map(|_| rng.bytes::<STAMP_BYTES>());
    pages.flatten().collect()
});

const _: () = assert!(PATTERN_BYTES == 256 * STAMP_BYTES);

/// What tells one content from another: who wrote it, and which page of it this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the write, never used twice against one server.
    pub writer: u64,
    /// Number of the first page.
    pub page: u64,
}

/// 1 MiB of incompressible bytes. Each page is unlike every other, and after stamping unlike
/// every page stamped before: a server that shares equal chunks finds none.
#[derive(Debug, Clone)]
pub struct Pattern {
    bytes: Vec<u8>,
}

impl Pattern {
    /// The same bytes every time, so that client and echo server agree without talking.
    #[must_use]
    pub fn new() -> Self {
        let bytes = SOURCE.clone();
        Self { bytes }
    }

    /// The first `length` bytes (at most the whole).
    #[must_use]
    pub fn prefix(&self, length: usize) -> &[u8] {
        self.bytes.get(..length).unwrap_or(&self.bytes)
    }

    /// Where the content of `length` bytes at `page` is: content repeats every 1 MiB but for its
    /// stamps, and no write crosses such a border.
    fn place(page: u64, length: usize) -> Range<usize> {
        let page = usize::try_from(page % PAGES).unwrap_or(0);
        let start = page * STAMP_BYTES;
        start..start + length
    }

    /// Stamps `length` bytes and gives their place in the pattern.
    pub(crate) fn stamp(&mut self, stamp: Stamp, length: usize) -> Range<usize> {
        let place = Self::place(stamp.page, length);
        let content = self.bytes.get_mut(place.clone()).unwrap_or_default();
        debug_assert_eq!(content.len(), length, "content crosses a border");
        for (page, number) in content.chunks_mut(STAMP_BYTES).zip(stamp.page..) {
            if let Some(head) = page.first_chunk_mut::<16>() {
                *head = encode(stamp.writer, number);
            }
        }
        place
    }

    pub(crate) fn bytes(&self, place: Range<usize>) -> &[u8] {
        self.bytes.get(place).unwrap_or_default()
    }

    /// Whether `data` is what `stamp` gave for `stamp`.
    #[must_use]
    pub fn matches(&self, stamp: Stamp, data: &[u8]) -> bool {
        let expected = self.bytes(Self::place(stamp.page, data.len()));
        let pages = data
            .chunks(STAMP_BYTES)
            .zip(expected.chunks(STAMP_BYTES))
            .zip(stamp.page..);
        let mut compared = 0;
        for ((page, expected), number) in pages {
            let (Some((head, body)), Some((_, expected_body))) = (
                page.split_first_chunk::<16>(),
                expected.split_first_chunk::<16>(),
            ) else {
                return false;
            };
            if *head != encode(stamp.writer, number) || body != expected_body {
                return false;
            }
            compared += page.len();
        }
        compared == data.len()
    }
}

impl Default for Pattern {
    fn default() -> Self {
        Self::new()
    }
}

fn encode(writer: u64, page: u64) -> [u8; 16] {
    (u128::from(writer) << 64 | u128::from(page)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::{PATTERN_BYTES, Pattern, Stamp};

    #[test]
    fn content_matches_its_own_stamp_only() {
        let mut pattern = Pattern::new();
        let stamp = Stamp {
            writer: 7,
            page: 256,
        };
        let place = pattern.stamp(stamp, PATTERN_BYTES);
        let mut data = pattern.bytes(place).to_vec();
        assert!(pattern.matches(stamp, &data));
        let other = Stamp { page: 257, ..stamp };
        assert!(pattern.matches(other, &data[4096..8192]));
        assert!(!pattern.matches(other, &data[..4096]));
        pattern.stamp(Stamp { writer: 8, page: 1 }, 4096);
        assert!(
            pattern.matches(stamp, &data),
            "stamping changes nothing else"
        );
        data[PATTERN_BYTES - 1] ^= 1;
        assert!(!pattern.matches(stamp, &data));
    }
}
