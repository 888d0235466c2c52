//! Sizes, durations and addresses as people write them: `256MiB`, `5m`, `10.0.0.0/24`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use nfs_gateway::{Network, NetworkError};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// A length of time, in whole seconds or milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(pub Duration);

/// An IP address, or a range of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses(pub Network);

/// Text that is no size or no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not a size.
    #[error("{0:?} is not a size: write a whole number and B, KiB, MiB, GiB or TiB, as in 256MiB")]
    Size(String),
    /// Not a duration.
    #[error("{0:?} is not a duration: write a whole number and ms, s, m, h or d, as in 5m")]
    Period(String),
}

const SIZES: [(&str, u64); 5] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// Units in milliseconds. `ms` stands before `m` and `s`, which it ends or begins with.
const PERIODS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

/// `text` as a whole number and one of `units`, multiplied out.
fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    units.iter().find_map(|(unit, factor)| {
        let number = text.strip_suffix(unit)?.trim_end();
        // `u64::from_str` takes a sign.
        if !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        number.parse::<u64>().ok()?.checked_mul(*factor)
    })
}

/// `number` in the largest of `units` that divides it; `units` from large to small.
fn show<'u>(number: u64, units: impl Iterator<Item = &'u (&'u str, u64)>) -> String {
    for (unit, factor) in units {
        if number >= *factor && number.is_multiple_of(*factor) {
            return format!("{}{unit}", number / factor);
        }
    }
    "0".into()
}

impl FromStr for Size {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        parse(text.trim(), &SIZES)
            .map(Self)
            .ok_or_else(|| UnitError::Size(text.into()))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("0B"),
            bytes => f.write_str(&show(bytes, SIZES.iter())),
        }
    }
}

impl FromStr for Period {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        parse(text.trim(), &PERIODS)
            .map(|millis| Self(Duration::from_millis(millis)))
            .ok_or_else(|| UnitError::Period(text.into()))
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX) {
            0 => f.write_str("0s"),
            millis => f.write_str(&show(millis, PERIODS.iter().rev())),
        }
    }
}

impl FromStr for Addresses {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        text.parse().map(Self)
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! as_text {
    ($type:ty) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from)?
                    .parse()
                    .map_err(serde::de::Error::custom)
            }
        }
    };
}

as_text!(Size);
as_text!(Period);
as_text!(Addresses);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes) in [
            ("0B", 0),
            ("12B", 12),
            ("3KiB", 3072),
            ("256MiB", 256 << 20),
        ] {
            assert_eq!(text.parse::<Size>(), Ok(Size(bytes)));
            assert_eq!(Size(bytes).to_string(), text);
        }
        assert_eq!("1024 MiB".parse::<Size>().unwrap().to_string(), "1GiB");
        for bad in ["", "12", "B", "-1B", "+1B", "1.5GiB", "99999999TiB", "1GB"] {
            assert_eq!(bad.parse::<Size>(), Err(UnitError::Size(bad.into())));
        }
    }

    #[test]
    fn periods_are_read_and_written() {
        for (text, millis) in [("5ms", 5), ("7s", 7000), ("5m", 300_000), ("2h", 7_200_000)] {
            assert_eq!(text.parse(), Ok(Period(Duration::from_millis(millis))));
            assert_eq!(Period(Duration::from_millis(millis)).to_string(), text);
        }
        for bad in ["", "5", "m", "-5s", "1y", "99999999999999999999s"] {
            assert_eq!(bad.parse::<Period>(), Err(UnitError::Period(bad.into())));
        }
    }
}
