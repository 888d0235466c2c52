//! Points in time as files carry them.

use std::fmt;

/// Nanoseconds in a second.
const NANOS_PER_SECOND: u32 = 1_000_000_000;

/// A point in time: seconds and nanoseconds since 1970-01-01T00:00:00Z.
///
/// Ordered. NFSv3 carries 32-bit seconds; the conversion clamps, so times stay ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    seconds: u64,
    nanos: u32,
}

impl Timestamp {
    /// 1970-01-01T00:00:00Z.
    pub const EPOCH: Self = Self {
        seconds: 0,
        nanos: 0,
    };

    /// A point in time; `nanos` beyond a second are carried over.
    #[must_use]
    pub const fn new(seconds: u64, nanos: u32) -> Self {
        // u32 to u64 widens; `u64::from` is not const.
        #[expect(clippy::as_conversions)]
        let carry = (nanos / NANOS_PER_SECOND) as u64;
        Self {
            seconds: seconds.saturating_add(carry),
            nanos: nanos % NANOS_PER_SECOND,
        }
    }

    /// Whole seconds since the epoch.
    #[must_use]
    pub const fn seconds(self) -> u64 {
        self.seconds
    }

    /// Nanoseconds within the second.
    #[must_use]
    pub const fn nanos(self) -> u32 {
        self.nanos
    }

    /// The next representable point: one nanosecond later.
    #[must_use]
    pub const fn tick(self) -> Self {
        Self::new(self.seconds, self.nanos + 1)
    }

    /// Milliseconds since the epoch, saturating.
    #[must_use]
    pub fn millis(self) -> u64 {
        self.seconds
            .saturating_mul(1000)
            .saturating_add(u64::from(self.nanos / 1_000_000))
    }

    /// This point `seconds` later, saturating.
    #[must_use]
    pub const fn plus_seconds(self, seconds: u64) -> Self {
        Self {
            seconds: self.seconds.saturating_add(seconds),
            nanos: self.nanos,
        }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.seconds, self.nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_carries_into_the_seconds() {
        let last = Timestamp::new(7, NANOS_PER_SECOND - 1);
        assert_eq!(last.tick(), Timestamp::new(8, 0));
        assert!(last.tick() > last);
    }
}
