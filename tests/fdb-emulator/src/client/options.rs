//! Options: those that do something here, those that may be set and do nothing, and all others,
//! which are refused rather than ignored.

use std::time::Duration;

use crate::codes::{self, Code};

/// Greatest delay before a retry, unless an option says otherwise.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(1);

/// Most bytes of a transaction, and the greatest value of the option.
pub const SIZE_LIMIT_MAX: u64 = 10_000_000;

/// Fewest that the option may ask for.
const SIZE_LIMIT_MIN: u64 = 32;

/// What the options of a transaction say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Time after which the transaction fails.
    pub timeout: Option<Duration>,
    /// Most retries.
    pub retry_limit: Option<u64>,
    /// Greatest delay before a retry.
    pub retry_delay_max: Duration,
    /// Most bytes.
    pub size_limit: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: None,
            retry_limit: None,
            retry_delay_max: RETRY_DELAY_MAX,
            size_limit: SIZE_LIMIT_MAX,
        }
    }
}

/// What an option does to those of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Timeout, retry limit, delay or size: the options have changed.
    Changed,
    /// Nothing that could be seen here.
    None,
}

impl Options {
    /// Sets an option of a transaction, by its number in the C API.
    ///
    /// # Errors
    ///
    /// The option is not known or not imitated, or its value is wrong.
    pub fn set(&mut self, option: i32, value: &[u8]) -> Result<Effect, Code> {
        match option {
            500 => {
                let ms = natural(value)?;
                self.timeout = (ms > 0).then(|| Duration::from_millis(ms));
            }
            501 => {
                let limit = number(value)?;
                self.retry_limit = match limit {
                    -1 => None,
                    limit => Some(u64::try_from(limit).map_err(|_| codes::INVALID_OPTION_VALUE)?),
                };
            }
            502 => self.retry_delay_max = Duration::from_millis(natural(value)?),
            503 => {
                let limit = natural(value)?;
                if !(SIZE_LIMIT_MIN..=SIZE_LIMIT_MAX).contains(&limit) {
                    return Err(codes::INVALID_OPTION_VALUE);
                }
                self.size_limit = limit;
            }
            // Risks that are not taken here, addresses, caches, priorities, logging, locks, tags.
            10
            | 20
            | 21
            | 23
            | 52
            | 110
            | 200
            | 201
            | 301
            | 302
            | 303
            | 304
            | 401..=406
            | 507..=511
            | 600
            | 700
            | 702
            | 800
            | 801 => {
                return Ok(Effect::None);
            }
            _ => return Err(codes::INVALID_OPTION),
        }
        Ok(Effect::Changed)
    }

    /// Sets an option of a database: a default of its transactions.
    ///
    /// # Errors
    ///
    /// As [`Self::set`].
    pub fn set_default(&mut self, option: i32, value: &[u8]) -> Result<Effect, Code> {
        match option {
            500..=503 => self.set(option, value),
            10 | 20 | 21 | 22 | 26 | 405 | 504 | 505 => Ok(Effect::None),
            _ => Err(codes::INVALID_OPTION),
        }
    }
}

/// Whether a network option is known. None does anything here.
///
/// # Errors
///
/// It is not.
pub fn check_network(option: i32) -> Result<(), Code> {
    match option {
        10 | 20 | 30..=48 | 49..=54 | 60..=72 | 80..=83 | 90 | 91 | 1000..=1002 => Ok(()),
        _ => Err(codes::INVALID_OPTION),
    }
}

fn number(value: &[u8]) -> Result<i64, Code> {
    let bytes: [u8; 8] = value.try_into().map_err(|_| codes::INVALID_OPTION_VALUE)?;
    Ok(i64::from_le_bytes(bytes))
}

fn natural(value: &[u8]) -> Result<u64, Code> {
    u64::try_from(number(value)?).map_err(|_| codes::INVALID_OPTION_VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked_and_what_is_not_imitated_is_refused() {
        let mut options = Options::default();
        let set =
            |options: &mut Options, option, value: i64| options.set(option, &value.to_le_bytes());
        assert_eq!(set(&mut options, 500, 20), Ok(Effect::Changed));
        assert_eq!(options.timeout, Some(Duration::from_millis(20)));
        assert_eq!(set(&mut options, 500, 0), Ok(Effect::Changed));
        assert_eq!(options.timeout, None);
        assert_eq!(set(&mut options, 501, 3), Ok(Effect::Changed));
        assert_eq!(options.retry_limit, Some(3));
        assert_eq!(set(&mut options, 501, -2), Err(codes::INVALID_OPTION_VALUE));
        assert_eq!(set(&mut options, 503, 31), Err(codes::INVALID_OPTION_VALUE));
        assert_eq!(options.set(500, &[1]), Err(codes::INVALID_OPTION_VALUE));
        assert_eq!(
            options.set(30, &[]),
            Err(codes::INVALID_OPTION),
            "no write conflict"
        );
        assert_eq!(
            options.set(51, &[]),
            Err(codes::INVALID_OPTION),
            "no own writes"
        );
        assert_eq!(options.set_default(701, &[]), Err(codes::INVALID_OPTION));
        assert_eq!(check_network(7), Err(codes::INVALID_OPTION));
    }
}
