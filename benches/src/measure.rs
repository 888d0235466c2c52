//! Measuring how long single things take, and printing what came of it.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use base::Clock;
use serde::Serialize;

use crate::Error;

/// Some durations, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spread {
    /// The median; the longer one of the two in the middle.
    pub p50_ms: f64,
    /// What one in a hundred exceeds.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

impl Spread {
    /// Sums durations up; zeros if there are none.
    #[must_use]
    pub fn of(mut durations: Vec<Duration>) -> Self {
        durations.sort_unstable();
        let at = |percent: usize| {
            let place = (durations.len().saturating_sub(1) * percent).div_ceil(100);
            durations
                .get(place)
                .map_or(0.0, |duration| duration.as_secs_f64() * 1000.0)
        };
        Self {
            p50_ms: at(50),
            p99_ms: at(99),
            max_ms: at(100),
        }
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        format!(
            "p50 {:>8.3} ms, p99 {:>8.3} ms, max {:>8.3} ms",
            self.p50_ms, self.p99_ms, self.max_ms
        )
    }
}

/// Runs `what`, and tells how long it took.
///
/// # Errors
///
/// Those of `what`.
pub fn timed<T>(
    clock: &dyn Clock,
    what: impl FnOnce() -> Result<T, Error>,
) -> Result<(Duration, T), Error> {
    let start = clock.monotonic();
    let value = what()?;
    Ok((clock.monotonic().saturating_sub(start), value))
}

/// Prints `rows` as JSON, or each as `text` says it.
///
/// # Errors
///
/// Standard output takes no more.
pub fn print<R: Serialize>(
    rows: &[R],
    json: bool,
    text: impl Fn(&R) -> String,
) -> Result<(), Error> {
    let mut report = if json {
        serde_json::to_string_pretty(rows).map_err(|error| Error::Setup(error.to_string()))?
    } else {
        rows.iter().map(text).collect()
    };
    report.push('\n');
    std::io::stdout()
        .write_all(report.as_bytes())
        .map_err(Error::io("print the report"))
}

/// How the program `name` ends; an error is told on standard error.
#[must_use]
pub fn exit_code(name: &str, result: Result<(), Error>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to do if standard error is closed.
            drop(writeln!(std::io::stderr(), "{name}: {error}"));
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_durations_that_were_there() {
        let ms = |all: &[u64]| all.iter().copied().map(Duration::from_millis).collect();
        let of = |all: &[u64]| {
            let spread = Spread::of(ms(all));
            [spread.p50_ms, spread.p99_ms, spread.max_ms].map(|ms| format!("{ms:.0}"))
        };
        assert_eq!(of(&[]), ["0", "0", "0"]);
        assert_eq!(of(&[7]), ["7", "7", "7"]);
        assert_eq!(of(&[4, 1, 3, 2]), ["3", "4", "4"]);
        assert_eq!(of(&[5, 4, 1, 3, 2]), ["3", "5", "5"]);
        let many: Vec<u64> = (0..=1000).collect();
        assert_eq!(of(&many), ["500", "990", "1000"]);
    }
}
