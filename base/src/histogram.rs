//! How long things took, counted in buckets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets, in microseconds. What took longer than the last is in a bucket of its own.
pub const BUCKET_MICROS: [u64; 18] = [
    50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000,
];

/// One for each bound, and one for what took longer.
const BUCKETS: usize = BUCKET_MICROS.len() + 1;

/// Counts how long something took. Cheap: two additions to memory that is shared.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    micros: AtomicU64,
}

impl Histogram {
    /// Counts something that took `took`.
    pub fn observe(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let at = BUCKET_MICROS.partition_point(|bound| *bound < micros);
        if let Some(bucket) = self.buckets.get(at) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// What was counted so far.
    #[must_use]
    pub fn read(&self) -> Distribution {
        let mut read = Distribution::default();
        read.add(self);
        read
    }
}

/// What a histogram had counted when it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    buckets: [u64; BUCKETS],
    micros: u64,
}

impl Distribution {
    /// Adds what `histogram` has counted.
    pub fn add(&mut self, histogram: &Histogram) {
        for (sum, bucket) in self.buckets.iter_mut().zip(&histogram.buckets) {
            *sum += bucket.load(Ordering::Relaxed);
        }
        let micros = histogram.micros.load(Ordering::Relaxed);
        self.micros = self.micros.saturating_add(micros);
    }

    /// How many things were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// How long they took together, in microseconds.
    #[must_use]
    pub const fn micros(&self) -> u64 {
        self.micros
    }

    /// The bounds in microseconds, each with how many things took no longer.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut sum = 0;
        BUCKET_MICROS
            .iter()
            .zip(&self.buckets)
            .map(move |(bound, count)| {
                sum += count;
                (*bound, sum)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_part_of_their_bucket() {
        let histogram = Histogram::default();
        for micros in [0, 50, 51, 100, 20_000_000, 20_000_001] {
            histogram.observe(Duration::from_micros(micros));
        }
        let read = histogram.read();
        assert_eq!(read.count(), 6);
        assert_eq!(read.micros(), 40_000_202);
        let cumulative: Vec<_> = read.cumulative().collect();
        assert_eq!(cumulative[..3], [(50, 2), (100, 4), (200, 4)]);
        assert_eq!(cumulative[17], (20_000_000, 5));
    }

    #[test]
    fn bounds_grow() {
        assert!(BUCKET_MICROS.is_sorted_by(|before, after| before < after));
    }

    #[test]
    fn histograms_add_up() {
        let histogram = Histogram::default();
        histogram.observe(Duration::from_micros(70));
        let mut read = histogram.read();
        read.add(&histogram);
        assert_eq!((read.count(), read.micros()), (2, 140));
        histogram.observe(Duration::MAX);
        assert_eq!(histogram.read().count(), 2);
    }
}
