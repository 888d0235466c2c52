//! What the cluster does wrong, and when: decided by a seed and by how often it was asked, so that
//! a run with the same seed and the same calls in the same order repeats itself.
//!
//! A specification is a list of `NAME=PERCENT%` (at random), `NAME@N` (the Nth time, counted from 1)
//! and `NAME@NxCOUNT` (COUNT times from the Nth on), separated by commas or white space. `:MS` after
//! it says how long the fault takes where it takes time. `none` is the empty list.

use std::fmt;

/// A way to go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A commit is done and its result unknown (1021).
    UnknownApplied,
    /// A commit is not done and its result unknown (1021).
    UnknownDropped,
    /// A commit conflicts (1020), and the next one to three after it.
    Conflict,
    /// A read or a commit is too old (1007).
    TooOld,
    /// A read is of a future version (1009).
    Future,
    /// The server that a read asks is behind (1037).
    Behind,
    /// A commit waits before it is done, whether or not the client still waits for it.
    Straggle,
    /// An answer comes late, and later than answers to calls after it.
    Delay,
    /// A range read is cut to one to three pairs.
    Cut,
    /// A recovery before a transaction gets its read version: versions jump by 10^8, and older ones
    /// are too old.
    Jump,
    /// A watch fires although nothing has changed.
    Watch,
    /// Nothing is heard for a while.
    Unreachable,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 12] = [
        Self::UnknownApplied,
        Self::UnknownDropped,
        Self::Conflict,
        Self::TooOld,
        Self::Future,
        Self::Behind,
        Self::Straggle,
        Self::Delay,
        Self::Cut,
        Self::Jump,
        Self::Watch,
        Self::Unreachable,
    ];

    /// Its name in specifications.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::UnknownApplied => "unknown-applied",
            Self::UnknownDropped => "unknown-dropped",
            Self::Conflict => "conflict",
            Self::TooOld => "too-old",
            Self::Future => "future",
            Self::Behind => "behind",
            Self::Straggle => "straggle",
            Self::Delay => "delay",
            Self::Cut => "cut",
            Self::Jump => "jump",
            Self::Watch => "watch",
            Self::Unreachable => "unreachable",
        }
    }

    /// How long it takes if the specification does not say, in milliseconds.
    fn usual_ms(self) -> u64 {
        match self {
            Self::Straggle => 400,
            Self::Unreachable => 300,
            Self::Delay => 20,
            _ => 0,
        }
    }
}

/// When a fault happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// With this many chances in a million.
    Chance(u64),
    /// So many times from the so manyth time on.
    At { first: u64, count: u64 },
}

#[derive(Clone, Debug)]
struct Rule {
    fault: Fault,
    when: When,
    ms: u64,
}

/// The faults of a run.
#[derive(Clone, Debug)]
pub struct Faults {
    seed: u64,
    rules: Vec<Rule>,
    tallies: Vec<Tally>,
}

/// How often a fault was asked for and happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    asked: u64,
    happened: u64,
}

/// A fault that happens now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Happening {
    /// A number that the seed gives, to choose details by.
    pub random: u64,
    /// How long it takes, in milliseconds.
    pub ms: u64,
}

impl Faults {
    /// No faults.
    #[must_use]
    pub fn none(seed: u64) -> Self {
        Self {
            seed,
            rules: Vec::new(),
            tallies: vec![Tally::default(); Fault::ALL.len()],
        }
    }

    /// Reads a specification.
    ///
    /// # Errors
    ///
    /// Says which part is wrong.
    pub fn parse(seed: u64, text: &str) -> Result<Self, String> {
        let mut faults = Self::none(seed);
        let parts = text.split(|c: char| c == ',' || c.is_whitespace());
        for part in parts.filter(|part| !part.is_empty() && *part != "none") {
            let rule = Rule::parse(part).ok_or_else(|| {
                let names: Vec<&str> = Fault::ALL.iter().map(|fault| fault.name()).collect();
                let names = names.join(", ");
                format!("fault '{part}': expected NAME=PERCENT%, NAME@N or NAME@NxCOUNT, each with :MS or without; names are {names}")
            })?;
            faults.rules.push(rule);
        }
        Ok(faults)
    }

    /// Whether `fault` happens this time.
    pub fn decide(&mut self, fault: Fault) -> Option<Happening> {
        let index = Fault::ALL.iter().position(|known| *known == fault)?;
        let tally = self.tallies.get_mut(index)?;
        tally.asked += 1;
        let salt = u64::try_from(index).unwrap_or_default();
        let random = mix(self.seed ^ mix(salt + 1) ^ mix(tally.asked << 8));
        let rule = self.rules.iter().find(|rule| {
            rule.fault == fault
                && match rule.when {
                    When::Chance(chances) => random % 1_000_000 < chances,
                    When::At { first, count } => {
                        tally.asked >= first && tally.asked - first < count
                    }
                }
        })?;
        tally.happened += 1;
        Some(Happening {
            random: mix(random),
            ms: rule.ms,
        })
    }

    /// A number below 1000 for the `n`th commit, by the seed.
    #[must_use]
    pub fn gap(&self, n: u64) -> u64 {
        mix(self.seed ^ mix(n)) % 1000
    }
}

/// How often each fault has happened: `NAME COUNT`, a line each.
impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (fault, tally) in Fault::ALL.iter().zip(&self.tallies) {
            writeln!(f, "{} {}", fault.name(), tally.happened)?;
        }
        Ok(())
    }
}

impl Rule {
    fn parse(part: &str) -> Option<Self> {
        let (part, ms) = match part.split_once(':') {
            Some((part, ms)) => (part, Some(ms.parse().ok()?)),
            None => (part, None),
        };
        let (name, when) = if let Some((name, percent)) = part.split_once('=') {
            (name, When::Chance(chances(percent.strip_suffix('%')?)?))
        } else {
            let (name, times) = part.split_once('@')?;
            let (first, count) = times.split_once('x').unwrap_or((times, "1"));
            let first = first.parse().ok().filter(|first| *first > 0)?;
            let count = count.parse().ok()?;
            (name, When::At { first, count })
        };
        let fault = *Fault::ALL.iter().find(|fault| fault.name() == name)?;
        Some(Self {
            fault,
            when,
            ms: ms.unwrap_or_else(|| fault.usual_ms()),
        })
    }
}

/// Chances in a million, from a percentage with at most four decimals.
fn chances(percent: &str) -> Option<u64> {
    let (whole, part) = percent.split_once('.').unwrap_or((percent, ""));
    if part.len() > 4 {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let part: u64 = format!("{part:0<4}").parse().ok()?;
    let chances = whole.checked_mul(10_000)?.checked_add(part)?;
    (chances <= 1_000_000).then_some(chances)
}

/// A number that looks random: the last step of `SplitMix64`.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seed: u64, text: &str, fault: Fault, times: usize) -> Vec<Option<Happening>> {
        let mut faults = Faults::parse(seed, text).unwrap();
        (0..times).map(|_| faults.decide(fault)).collect()
    }

    #[test]
    fn a_seed_decides_everything() {
        let first = run(7, "cut=20%", Fault::Cut, 500);
        assert_eq!(first, run(7, "cut=20%", Fault::Cut, 500));
        assert_ne!(first, run(8, "cut=20%", Fault::Cut, 500));
        let happened = first.iter().flatten().count();
        assert!((60..140).contains(&happened), "{happened} of 500 at 20 %");
        assert!(
            run(7, "cut=20%", Fault::Jump, 500)
                .iter()
                .all(Option::is_none)
        );
    }

    #[test]
    fn named_times_are_kept_and_counted() {
        let mut faults = Faults::parse(1, "straggle@2x3:55, too-old@1").unwrap();
        let times: Vec<bool> = (0..6)
            .map(|_| {
                faults
                    .decide(Fault::Straggle)
                    .is_some_and(|happening| happening.ms == 55)
            })
            .collect();
        assert_eq!(times, [false, true, true, true, false, false]);
        assert!(faults.decide(Fault::TooOld).is_some());
        assert!(faults.to_string().contains("straggle 3\n"));
        assert!(faults.to_string().contains("too-old 1\n"));
    }

    #[test]
    fn wrong_specifications_are_refused() {
        for wrong in [
            "cut",
            "cut=5",
            "cut=101%",
            "cut@0",
            "nothing=1%",
            "cut@1xx",
            "cut=1%:x",
            "cut=0.00001%",
        ] {
            assert!(Faults::parse(0, wrong).is_err(), "{wrong}");
        }
        for right in ["", "none", "cut=0.5%,jump=100%", "delay=3%:7\nwatch@9"] {
            assert!(Faults::parse(0, right).is_ok(), "{right}");
        }
    }
}
