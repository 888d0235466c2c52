//! Version expressions: what people write where a version is wanted.
//!
//! ```text
//! version  = start { step }
//! start    = ref | commit id, or 4 and more of its first digits | time
//!          | [ ref ] "@{" time "}"                        a ref as of a time; `main` if left out
//! step     = "~" [ n ]                                    n first parents up
//!          | "^" [ n ]                                    the nth parent; "^0" is the commit itself
//! time     = "now" | "today" | "yesterday"
//!          | n unit "ago" | "last" ( unit | weekday )
//!          | date [ ( "T" | " " ) time of day [ zone ] ]  RFC 3339; seconds and zone may be left out
//! ```
//!
//! All times are UTC. A date alone is its beginning, and so is `today`. `yesterday`, `2 days ago` and
//! `last tuesday` keep the time of day; `last tuesday` is before today. Instead of blanks, `.`, `_`
//! and `-` may stand between words (`3-hours-ago`), so that a time can be part of a path.
//!
//! A text that is the name of a ref means that ref, even if it could be the digits of an id too. A
//! ref cannot be called what reads as a whole id or as a time.
//!
//! Parsing knows no store and is total; [`crate::store::Store::resolve_version`] finds the commit.

use std::fmt;
use std::str::FromStr;

use base::{CommitId, Timestamp};
use jiff::civil::{DateTime, Weekday};
use jiff::tz::TimeZone;

use crate::record::commit::PARENTS_MAX;
use crate::record::reference::{RefName, RefNameError};

/// Longest version expression, in bytes.
pub const VERSION_BYTES_MAX: usize = 512;

/// Fewest digits of an id that stand for it.
pub const PREFIX_DIGITS_MIN: usize = 4;

/// Digits of a whole id.
const ID_DIGITS: usize = 64;

/// Most steps of an expression.
const STEPS_MAX: usize = 32;

/// Most parents that one step goes up: each is a read.
const ANCESTORS_MAX: u32 = 10_000;

/// Seconds of a day.
const DAY: u64 = 86_400;

/// What a version may be, as part of an error.
pub const ACCEPTED: &str = "a version is a branch or tag, a commit id or at least 4 of its first \
    digits, or a time such as 2026-11-24T10:00Z, yesterday, 3 hours ago, last tuesday or \
    main@{2026-11-24T10:00Z}; ~N and ^N after it go to its ancestors";

/// A time as RFC 3339 says, in seconds: it is read as the same second.
#[must_use]
pub fn show_time(time: Timestamp) -> String {
    let seconds = i64::try_from(time.seconds()).ok();
    let shown = seconds.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    // Beyond the year 9999 there is no such form.
    shown.map_or_else(|| format!("@{}", time.seconds()), |time| time.to_string())
}

/// A text that is not a version expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no version: {why}. {accepted}", accepted = Sentence(ACCEPTED))]
pub struct VersionError {
    /// The text, or the part of it that is wrong.
    pub text: String,
    /// What is wrong.
    pub why: Wrong,
}

/// What is wrong with a version expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// Nothing is there.
    #[error("it is empty")]
    Empty,
    /// It is too long.
    #[error("it is longer than {VERSION_BYTES_MAX} bytes")]
    Long,
    /// It can be none of what a version is.
    #[error("it is no time and no id, and no ref can be called so: {0}")]
    Name(RefNameError),
    /// What is before `@{` cannot be a ref.
    #[error("no ref can be called what is before '@{{': {0}")]
    NameBeforeTime(RefNameError),
    /// `@{` without `}` at its end.
    #[error("'@{{' needs a '}}' where the time ends")]
    Brace,
    /// A step that is none, or goes too far.
    #[error(
        "after ~ comes a number of parents up to {ANCESTORS_MAX}, after ^ which parent, up to \
         {PARENTS_MAX}, or nothing; at most {STEPS_MAX} of them"
    )]
    Step,
    /// No time.
    #[error("{0}")]
    Time(TimeError),
}

/// A text that is not a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// It is none of the forms.
    #[error("it is no time")]
    Unknown,
    /// It has the form of a date and is none.
    #[error("there is no such date or time of day")]
    Impossible,
    /// It is before 1970, or too far away to reckon with.
    #[error("the time is before 1970, or too far away")]
    Range,
}

/// Upper-cases the first letter.
struct Sentence(&'static str);

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut letters = self.0.chars();
        for first in letters.next().into_iter().flat_map(char::to_uppercase) {
            write!(f, "{first}")?;
        }
        f.write_str(letters.as_str())
    }
}

/// The first digits of a commit's id: 4 to 64, lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdPrefix(String);

/// Where an expression starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// A whole id.
    Id(CommitId),
    /// A ref, or if there is none of that name, the digits of an id.
    Name(RefName, Option<IdPrefix>),
    /// A ref as of a time.
    At(RefName, Time),
}

/// A step to an ancestor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// So many first parents up.
    Up(u32),
    /// The parent of that number, the first being 1; 0 is the commit itself.
    Parent(usize),
}

/// A version expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Where it starts.
    pub start: Start,
    /// Where it goes from there.
    pub steps: Vec<Step>,
}

/// A length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// So many seconds.
    Seconds(u32),
    /// So many months of the calendar.
    Months(u32),
}

/// A time, some of which depend on when they are said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// When it is said.
    Now,
    /// The beginning of the day on which it is said.
    Today,
    /// So many of these lengths ago.
    Ago(u32, Unit),
    /// The last such day that is over, at this time of day.
    Last(Weekday),
    /// That very time.
    At(Timestamp),
}

impl FromStr for Version {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let error = |why| VersionError {
            text: text.chars().take(VERSION_BYTES_MAX).collect(),
            why,
        };
        if text.is_empty() {
            return Err(error(Wrong::Empty));
        }
        if text.len() > VERSION_BYTES_MAX {
            return Err(error(Wrong::Long));
        }
        // Neither names nor times have these characters.
        let (start, steps) = match text.find(['~', '^']) {
            Some(at) => text.split_at_checked(at).unwrap_or((text, "")),
            None => (text, ""),
        };
        Ok(Self {
            start: start.parse().map_err(error)?,
            steps: parse_steps(steps).ok_or_else(|| error(Wrong::Step))?,
        })
    }
}

impl FromStr for Start {
    type Err = Wrong;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(Wrong::Empty);
        }
        if let Some((name, rest)) = text.split_once("@{") {
            let time = rest.strip_suffix('}').ok_or(Wrong::Brace)?;
            let name = match name {
                "" => RefName::main(),
                name => RefName::new(name).map_err(Wrong::NameBeforeTime)?,
            };
            return Ok(Self::At(name, time.parse().map_err(Wrong::Time)?));
        }
        if Time::is_like(text) {
            let time = text.parse().map_err(Wrong::Time)?;
            return Ok(Self::At(RefName::main(), time));
        }
        if let Ok(id) = text.parse() {
            return Ok(Self::Id(id));
        }
        let name = RefName::new(text).map_err(Wrong::Name)?;
        Ok(Self::Name(name, text.parse().ok()))
    }
}

/// Steps, if that is what the text is.
fn parse_steps(text: &str) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let after = rest.strip_prefix(['~', '^'])?;
        let digits = after
            .find(|letter: char| !letter.is_ascii_digit())
            .unwrap_or(after.len());
        let (number, next) = after.split_at_checked(digits)?;
        let number = match number {
            "" => 1,
            number => number.parse::<u32>().ok()?,
        };
        let step = if rest.starts_with('~') {
            (number <= ANCESTORS_MAX).then_some(Step::Up(number))
        } else {
            let number = usize::try_from(number).ok()?;
            (number <= PARENTS_MAX).then_some(Step::Parent(number))
        };
        steps.push(step?);
        if steps.len() > STEPS_MAX {
            return None;
        }
        rest = next;
    }
    Some(steps)
}

impl IdPrefix {
    /// The digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first and the last id that begin with these digits.
    #[must_use]
    pub fn bounds(&self) -> (CommitId, CommitId) {
        let filled = |with: char| {
            let digits: String = self
                .0
                .chars()
                .chain(std::iter::repeat(with))
                .take(ID_DIGITS)
                .collect();
            // They are digits, and there are 64 of them.
            digits.parse().unwrap_or(CommitId::new([0; 32]))
        };
        (filled('0'), filled('f'))
    }
}

/// A text that is not the beginning of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the beginning of a commit id is {PREFIX_DIGITS_MIN} to {ID_DIGITS} hexadecimal digits")]
pub struct PrefixError;

impl FromStr for IdPrefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let good = (PREFIX_DIGITS_MIN..=ID_DIGITS).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        good.then(|| Self(text.to_ascii_lowercase()))
            .ok_or(PrefixError)
    }
}

impl FromStr for Time {
    type Err = TimeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if text.len() > VERSION_BYTES_MAX {
            Err(TimeError::Unknown)
        } else if is_like_date(text) {
            parse_date(text).map(Self::At)
        } else {
            parse_words(text).ok_or(TimeError::Unknown)
        }
    }
}

impl Time {
    /// Whether a text is a time, or so much like one that it can be nothing else.
    #[must_use]
    pub fn is_like(text: &str) -> bool {
        is_like_date(text) || parse_words(text).is_some()
    }

    /// The time that is meant if it is said at `now`.
    ///
    /// # Errors
    ///
    /// It would be before 1970, or too far away.
    pub fn at(self, now: Timestamp) -> Result<Timestamp, TimeError> {
        let back = |seconds: u64| {
            let left = now.seconds().checked_sub(seconds);
            let left = left.ok_or(TimeError::Range)?;
            Ok(Timestamp::new(left, now.nanos()))
        };
        match self {
            Self::Now => Ok(now),
            Self::At(time) => Ok(time),
            Self::Today => Ok(Timestamp::new(now.seconds() - now.seconds() % DAY, 0)),
            Self::Ago(count, Unit::Seconds(unit)) => back(u64::from(count) * u64::from(unit)),
            Self::Ago(count, Unit::Months(unit)) => {
                let months = i64::from(count) * i64::from(unit);
                let span = jiff::Span::new()
                    .try_months(months)
                    .map_err(|_| TimeError::Range)?;
                let then = to_jiff(now)?.to_zoned(TimeZone::UTC).checked_sub(span);
                from_jiff(then.map_err(|_| TimeError::Range)?.timestamp())
            }
            Self::Last(day) => {
                let today = to_jiff(now)?.to_zoned(TimeZone::UTC).weekday();
                let days = u64::from(today.since(day).unsigned_abs());
                back(if days == 0 { 7 } else { days } * DAY)
            }
        }
    }
}

/// A time as RFC 3339 has it, in UTC.
#[must_use]
pub fn rfc3339(time: Timestamp) -> String {
    match to_jiff(time) {
        Ok(time) => time.to_string(),
        // Beyond the year 9999.
        Err(_) => format!("second {time} since 1970"),
    }
}

fn to_jiff(time: Timestamp) -> Result<jiff::Timestamp, TimeError> {
    let seconds = i64::try_from(time.seconds()).map_err(|_| TimeError::Range)?;
    let nanos = i32::try_from(time.nanos()).map_err(|_| TimeError::Range)?;
    jiff::Timestamp::new(seconds, nanos).map_err(|_| TimeError::Range)
}

fn from_jiff(time: jiff::Timestamp) -> Result<Timestamp, TimeError> {
    let seconds = u64::try_from(time.as_second()).map_err(|_| TimeError::Range)?;
    let nanos = u32::try_from(time.subsec_nanosecond()).map_err(|_| TimeError::Range)?;
    Ok(Timestamp::new(seconds, nanos))
}

/// Whether a text begins with a date, and what follows can only be meant as a time of day.
fn is_like_date(text: &str) -> bool {
    let text = text.trim().as_bytes();
    let Some((date, rest)) = text.split_at_checked(10) else {
        return false;
    };
    let is_date = date.iter().enumerate().all(|(at, byte)| match at {
        4 | 7 => *byte == b'-',
        _ => byte.is_ascii_digit(),
    });
    let is_rest = match rest {
        [] => true,
        [b'T' | b't' | b' ', next, ..] => next.is_ascii_digit(),
        _ => false,
    };
    is_date && is_rest
}

fn parse_date(text: &str) -> Result<Timestamp, TimeError> {
    // No zone by its name: what it means changes with the machine.
    let plain = |byte: u8| {
        byte.is_ascii_digit()
            || matches!(
                byte,
                b'-' | b'+' | b':' | b'.' | b',' | b' ' | b'T' | b't' | b'Z' | b'z'
            )
    };
    if !text.bytes().all(plain) {
        return Err(TimeError::Impossible);
    }
    let day = text.get(10..).unwrap_or_default();
    let has_zone = day.contains(['Z', 'z', '+', '-']);
    let parsed = if has_zone {
        text.parse::<jiff::Timestamp>()
    } else {
        text.parse::<DateTime>()
            .and_then(|date| date.to_zoned(TimeZone::UTC))
            .map(|zoned| zoned.timestamp())
    };
    from_jiff(parsed.map_err(|_| TimeError::Impossible)?)
}

fn parse_words(text: &str) -> Option<Time> {
    // Longer ones are not, and need no splitting.
    if text.len() > 64 {
        return None;
    }
    let lower = text.to_ascii_lowercase();
    let words: Vec<&str> = if lower.contains(char::is_whitespace) {
        lower.split_whitespace().collect()
    } else {
        lower.split(['.', '_', '-']).collect()
    };
    match *words.as_slice() {
        ["now"] => Some(Time::Now),
        ["today"] => Some(Time::Today),
        ["yesterday"] => Some(Time::Ago(1, parse_unit("day")?)),
        ["last", word] => parse_weekday(word)
            .map(Time::Last)
            .or_else(|| Some(Time::Ago(1, parse_unit(word)?))),
        [count, unit, "ago"] => {
            let count = match count {
                "a" | "an" | "one" => 1,
                digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                    digits.parse().ok()?
                }
                _ => return None,
            };
            Some(Time::Ago(count, parse_unit(unit)?))
        }
        _ => None,
    }
}

fn parse_unit(word: &str) -> Option<Unit> {
    Some(match word.strip_suffix('s').unwrap_or(word) {
        "second" | "sec" => Unit::Seconds(1),
        "minute" | "min" => Unit::Seconds(60),
        "hour" => Unit::Seconds(3600),
        "day" => Unit::Seconds(86_400),
        "week" => Unit::Seconds(7 * 86_400),
        "month" => Unit::Months(1),
        "year" => Unit::Months(12),
        _ => return None,
    })
}

fn parse_weekday(word: &str) -> Option<Weekday> {
    Some(match word {
        "monday" | "mon" => Weekday::Monday,
        "tuesday" | "tue" => Weekday::Tuesday,
        "wednesday" | "wed" => Weekday::Wednesday,
        "thursday" | "thu" => Weekday::Thursday,
        "friday" | "fri" => Weekday::Friday,
        "saturday" | "sat" => Weekday::Saturday,
        "sunday" | "sun" => Weekday::Sunday,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
