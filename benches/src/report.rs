//! What a run reports, for people and for programs.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::driver::Tally;

/// One call of an operation and its size on the wire, record marks not counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Name of the procedure.
    pub call: String,
    /// Length of the call, in bytes.
    pub request_bytes: usize,
    /// Length of the reply, in bytes.
    pub reply_bytes: usize,
}

/// One load and what it showed.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Name of the load.
    pub procedure: String,
    /// Operations that were counted; an operation is one call or a fixed sequence of calls.
    pub operations: u64,
    /// Operations and checks after the run that failed.
    pub errors: u64,
    /// The first of them.
    pub first_error: Option<String>,
    /// Time in which the counted operations ran.
    pub seconds: f64,
    /// Operations a second.
    pub operations_per_second: f64,
    /// Calls a second.
    pub calls_per_second: f64,
    /// Content moved, in 10^6 bytes a second.
    pub megabytes_per_second: f64,
    /// Median latency of an operation, in microseconds.
    pub p50_us: f64,
    /// Latency that one operation in a hundred exceeds, in microseconds.
    pub p99_us: f64,
    /// Longest latency, in microseconds.
    pub max_us: f64,
    /// Processor time of the load generator itself.
    pub client_cpu_seconds: f64,
    /// Calls of one operation with their sizes: the input of `load --echo --sizes`.
    pub steps: Vec<Step>,
}

/// A whole run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Address of the server.
    pub target: String,
    /// Connections.
    pub connections: usize,
    /// Calls in flight on each.
    pub depth: usize,
    /// The loads in the order they ran.
    pub results: Vec<Row>,
}

/// The part of a report that tells sizes.
#[derive(Debug, Clone, Deserialize)]
pub struct Sizes {
    /// The loads of the report.
    pub results: Vec<LoadSizes>,
}

/// Sizes of the calls of one load.
#[derive(Debug, Clone, Deserialize)]
pub struct LoadSizes {
    /// Name of the load.
    pub procedure: String,
    /// Calls of one operation.
    pub steps: Vec<Step>,
}

impl Row {
    /// Sums up what all connections saw; counting began at `count_from`.
    #[must_use]
    pub fn new(procedure: &str, tallies: Vec<Tally>, count_from: Duration, cpu: Duration) -> Self {
        let mut tallies = tallies.into_iter();
        let Some(mut sum) = tallies.next() else {
            return Self::empty(procedure);
        };
        for tally in tallies {
            // All histograms have the same bounds, so adding cannot fail.
            let _ = sum.latency_ns.add(&tally.latency_ns);
            sum.calls += tally.calls;
            sum.bytes += tally.bytes;
            sum.errors += tally.errors;
            sum.first_error = sum.first_error.or(tally.first_error);
            sum.last = sum.last.max(tally.last);
        }
        let seconds = sum.last.saturating_sub(count_from).as_secs_f64();
        let per_second = |count| {
            if seconds > 0.0 {
                float(count) / seconds
            } else {
                0.0
            }
        };
        let micros = |nanos| float(nanos) / 1000.0;
        Self {
            operations: sum.latency_ns.len(),
            errors: sum.errors,
            seconds,
            operations_per_second: per_second(sum.latency_ns.len()),
            calls_per_second: per_second(sum.calls),
            megabytes_per_second: per_second(sum.bytes) / 1e6,
            p50_us: micros(sum.latency_ns.value_at_quantile(0.5)),
            p99_us: micros(sum.latency_ns.value_at_quantile(0.99)),
            max_us: micros(sum.latency_ns.max()),
            client_cpu_seconds: cpu.as_secs_f64(),
            first_error: sum.first_error,
            steps: sum.steps,
            ..Self::empty(procedure)
        }
    }

    fn empty(procedure: &str) -> Self {
        Self {
            procedure: procedure.into(),
            operations: 0,
            errors: 0,
            first_error: None,
            seconds: 0.0,
            operations_per_second: 0.0,
            calls_per_second: 0.0,
            megabytes_per_second: 0.0,
            p50_us: 0.0,
            p99_us: 0.0,
            max_us: 0.0,
            client_cpu_seconds: 0.0,
            steps: Vec::new(),
        }
    }
}

impl Report {
    /// Failures of all loads.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.results.iter().map(|row| row.errors).sum()
    }

    /// A table for people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "{}: {} connections, {} calls in flight on each\n{:<20} {:>10} {:>10} {:>9} {:>10} {:>10} {:>10} {:>6} {:>7}\n",
            self.target,
            self.connections,
            self.depth,
            "load",
            "ops/s",
            "calls/s",
            "MB/s",
            "p50 us",
            "p99 us",
            "max us",
            "cpu",
            "errors"
        );
        for row in &self.results {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{:<20} {:>10.1} {:>10.0} {:>9.1} {:>10.1} {:>10.1} {:>10.1} {:>6.2} {:>7}",
                row.procedure,
                row.operations_per_second,
                row.calls_per_second,
                row.megabytes_per_second,
                row.p50_us,
                row.p99_us,
                row.max_us,
                row.client_cpu_seconds,
                row.errors
            );
            if let Some(error) = &row.first_error {
                let _ = writeln!(text, "  first error: {error}");
            }
        }
        text
    }
}

/// A count as a floating-point number, rounded above 2^53.
#[must_use]
pub fn float(count: u64) -> f64 {
    Duration::from_secs(count).as_secs_f64()
}
