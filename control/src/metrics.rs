//! Metrics as Prometheus reads them. `docs/metrics.md` lists the same names; a test compares.

use nfs_gateway::Gateway;

/// One number.
struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&Gateway) -> f64,
}

const fn counter(name: &'static str, help: &'static str, value: fn(&Gateway) -> f64) -> Metric {
    let kind = "counter";
    Metric {
        name,
        kind,
        help,
        value,
    }
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&Gateway) -> f64) -> Metric {
    let kind = "gauge";
    Metric {
        name,
        kind,
        help,
        value,
    }
}

/// Prometheus takes floating point only; counts beyond 2^53 lose their last digits.
fn number(count: u64) -> f64 {
    #[expect(clippy::as_conversions, reason = "there is no other way to a float")]
    let float = count as f64;
    float
}

fn size(count: usize) -> f64 {
    number(u64::try_from(count).unwrap_or(u64::MAX))
}

const METRICS: &[Metric] = &[
    gauge("holdfast_gateway_sessions", "Sessions in memory.", |g| {
        size(g.sessions_in_memory())
    }),
    gauge(
        "holdfast_gateway_dirty_bytes",
        "File data in memory that is in no store yet.",
        |g| size(g.buffered_bytes()),
    ),
    counter("holdfast_gateway_calls_total", "NFS calls taken.", |g| {
        number(g.counters().calls.value())
    }),
    counter(
        "holdfast_gateway_slow_calls_total",
        "Calls that memory could not answer.",
        |g| number(g.counters().slow_calls.value()),
    ),
    counter(
        "holdfast_gateway_loads_total",
        "Loads of parts of a session from the store.",
        |g| number(g.counters().loads.value()),
    ),
    counter(
        "holdfast_gateway_takeovers_total",
        "Sessions taken into memory.",
        |g| number(g.counters().takeovers.value()),
    ),
    counter(
        "holdfast_gateway_retired_total",
        "Sessions dropped from memory after being idle.",
        |g| number(g.counters().retired.value()),
    ),
    counter(
        "holdfast_gateway_flushes_total",
        "Groups of changes sent to the metadata store.",
        |g| number(g.counters().flushes.value()),
    ),
    counter(
        "holdfast_gateway_flush_failures_total",
        "Flushes that failed and made the session be loaded anew.",
        |g| number(g.counters().flush_failures.value()),
    ),
    counter(
        "holdfast_gateway_flush_seconds_total",
        "Time spent in flushes.",
        |g| number(g.counters().flush_micros()) / 1e6,
    ),
    counter(
        "holdfast_gateway_fenced_total",
        "Flushes refused because another gateway owns the session.",
        |g| number(g.counters().fenced.value()),
    ),
    counter(
        "holdfast_gateway_replayed_total",
        "Calls answered with the reply of an earlier copy.",
        |g| number(g.counters().replayed.value()),
    ),
    counter(
        "holdfast_gateway_replayed_from_store_total",
        "Calls answered with a reply that this process found in the store.",
        |g| number(g.counters().replayed_from_store.value()),
    ),
    counter(
        "holdfast_gateway_duplicates_running_total",
        "Copies of calls that were still running.",
        |g| number(g.counters().duplicates_running.value()),
    ),
    counter(
        "holdfast_gateway_stale_handles_total",
        "Calls with a handle that is not, or no longer, good.",
        |g| number(g.counters().stale_handles.value()),
    ),
    counter(
        "holdfast_gateway_forged_handles_total",
        "Handles that this installation never signed.",
        |g| number(g.handles_rejected()),
    ),
    counter("holdfast_gateway_mounts_total", "Mounts granted.", |g| {
        number(g.counters().mounts.value())
    }),
    counter(
        "holdfast_gateway_mounts_refused_total",
        "Mounts refused.",
        |g| number(g.counters().mounts_refused.value()),
    ),
    counter(
        "holdfast_gateway_discarded_total",
        "Files whose unwritten data was given up for want of space.",
        |g| number(g.counters().discarded.value()),
    ),
    counter(
        "holdfast_gateway_corrupt_total",
        "Stored data found damaged.",
        |g| number(g.counters().corrupt.value()),
    ),
    gauge(
        "holdfast_transport_connections",
        "Open NFS connections.",
        |g| number(g.transport().open()),
    ),
    counter(
        "holdfast_transport_accepted_total",
        "NFS connections accepted.",
        |g| number(g.transport().accepted.value()),
    ),
    counter(
        "holdfast_transport_accept_errors_total",
        "Times accepting a connection failed.",
        |g| number(g.transport().accept_errors.value()),
    ),
    counter(
        "holdfast_transport_received_bytes_total",
        "Bytes received from clients.",
        |g| number(g.transport().received_bytes.value()),
    ),
    counter(
        "holdfast_transport_sent_bytes_total",
        "Bytes sent to clients.",
        |g| number(g.transport().sent_bytes.value()),
    ),
    counter("holdfast_transport_replies_total", "Replies sent.", |g| {
        number(g.transport().replies.value())
    }),
    counter(
        "holdfast_transport_replies_dropped_total",
        "Replies that came when their connection was gone.",
        |g| number(g.transport().replies_dropped.value()),
    ),
    counter(
        "holdfast_transport_paused_total",
        "Times a connection was not read for a while because a limit was reached.",
        |g| number(g.transport().paused.value()),
    ),
    counter(
        "holdfast_transport_ended_garbage_total",
        "Connections closed because their bytes were no calls.",
        |g| number(g.transport().ended_garbage.value()),
    ),
    counter(
        "holdfast_transport_ended_panic_total",
        "Connections closed because a call panicked: report a bug.",
        |g| number(g.transport().ended_panic.value()),
    ),
    counter(
        "holdfast_transport_ended_slow_total",
        "Connections closed because calls or replies moved too slowly.",
        |g| {
            let ended = g.transport();
            number(ended.ended_slow_record.value() + ended.ended_slow_replies.value())
        },
    ),
    counter(
        "holdfast_transport_ended_idle_total",
        "Connections closed because nothing was asked for a long time.",
        |g| number(g.transport().ended_idle.value()),
    ),
];

/// All metrics of `gateway`.
pub(crate) fn text(gateway: &Gateway) -> String {
    let mut text = String::with_capacity(METRICS.len() * 160);
    for metric in METRICS {
        let (name, value) = (metric.name, (metric.value)(gateway));
        let (help, kind) = (metric.help, metric.kind);
        text.push_str(&format!(
            "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n"
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_lists_the_same_metrics() {
        let documented: Vec<String> = include_str!("../../docs/metrics.md")
            .lines()
            .filter(|line| line.starts_with("| `"))
            .map(ToOwned::to_owned)
            .collect();
        let counted: Vec<String> = METRICS
            .iter()
            .map(|metric| format!("| `{}` | {} | {} |", metric.name, metric.kind, metric.help))
            .collect();
        assert_eq!(documented, counted);
    }
}
