//! Metrics as Prometheus reads them. `docs/metrics.md` lists the same names; a test compares.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Distribution, Histogram};
use chunkstore::cached::CachedStore;
use chunkstore::shared::SharedStore;
use chunkstore::shared::calls::{BUCKETS_MILLIS, ObjectCounters, Verb};
use chunkstore::shared::disk::DiskCache;
use metadata::kv::calls::KvCalls;
use nfs_gateway::{Gateway, ProcedureCounts};

use crate::collector::{Collector, Counters};
use crate::tier::Content;

/// What counts.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) content: Content,
    pub(crate) cached: Arc<CachedStore>,
    pub(crate) collector: Arc<Collector>,
    /// Calls to a metadata store on a network.
    pub(crate) metadata: Option<Arc<KvCalls>>,
}

impl Counted {
    /// A count of the collector.
    fn collections(&self, count: fn(&Counters) -> &AtomicU64) -> f64 {
        load(count(self.collector.counters()))
    }

    /// How long calls to FoundationDB took; nothing without.
    fn fdb_took(&self, histogram: fn(&KvCalls) -> &Histogram) -> Distribution {
        let calls = self.metadata.as_deref();
        calls.map_or_else(Distribution::default, |calls| histogram(calls).read())
    }

    /// A number of the cache on disk; 0 without.
    fn disk(&self, count: fn(&DiskCache) -> u64) -> f64 {
        let disk = self.content.shared().and_then(SharedStore::disk);
        number(disk.map_or(0, count))
    }

    /// A count of calls to an object store; 0 without.
    fn object(&self, count: fn(&ObjectCounters) -> u64) -> f64 {
        let objects = self.content.objects();
        number(objects.map_or(0, |objects| count(objects.counters())))
    }

    /// A count of calls to FoundationDB; 0 without.
    fn fdb(&self, count: fn(&KvCalls) -> u64) -> f64 {
        number(self.metadata.as_deref().map_or(0, count))
    }
}

/// A name, and what is written behind it.
struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: Value,
}

/// What a metric tells.
enum Value {
    /// One number.
    Number(fn(&Counted) -> f64),
    /// How long something took.
    Took(fn(&Counted) -> Distribution),
    /// A number for each procedure and outcome.
    Outcomes,
    /// How long each procedure took.
    ProceduresTook,
}

/// How long something took.
const fn took(
    name: &'static str,
    help: &'static str,
    value: fn(&Counted) -> Distribution,
) -> Metric {
    Metric {
        name,
        kind: "histogram",
        help,
        value: Value::Took(value),
    }
}

const fn counter(name: &'static str, help: &'static str, value: fn(&Counted) -> f64) -> Metric {
    Metric {
        name,
        kind: "counter",
        help,
        value: Value::Number(value),
    }
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&Counted) -> f64) -> Metric {
    Metric {
        name,
        kind: "gauge",
        help,
        value: Value::Number(value),
    }
}

/// Prometheus takes floating point only; counts beyond 2^53 lose their last digits.
fn number(count: u64) -> f64 {
    #[expect(clippy::as_conversions, reason = "there is no other way to a float")]
    let float = count as f64;
    float
}

fn load(count: &AtomicU64) -> f64 {
    number(count.load(Ordering::Relaxed))
}

fn size(count: usize) -> f64 {
    number(u64::try_from(count).unwrap_or(u64::MAX))
}

const METRICS: &[Metric] = &[
    Metric {
        name: "holdfast_nfs_requests_total",
        kind: "counter",
        help: "NFS and MOUNT calls by `procedure` and `outcome`.",
        value: Value::Outcomes,
    },
    Metric {
        name: "holdfast_nfs_request_seconds",
        kind: "histogram",
        help: "How long they took by `procedure`, from when a call was read to its reply.",
        value: Value::ProceduresTook,
    },
    gauge("holdfast_gateway_sessions", "Sessions in memory.", |g| {
        size(g.gateway.sessions_in_memory())
    }),
    gauge(
        "holdfast_gateway_dirty_bytes",
        "File data in memory that is in no store yet.",
        |g| size(g.gateway.buffered_bytes()),
    ),
    counter("holdfast_gateway_calls_total", "NFS calls taken.", |g| {
        number(g.gateway.counters().calls.value())
    }),
    counter(
        "holdfast_gateway_slow_calls_total",
        "Calls that memory could not answer.",
        |g| number(g.gateway.counters().slow_calls.value()),
    ),
    counter(
        "holdfast_gateway_loads_total",
        "Loads of parts of a session from the store.",
        |g| number(g.gateway.counters().loads.value()),
    ),
    counter(
        "holdfast_gateway_freezes_total",
        "Open layers frozen, for forks and snapshots.",
        |g| number(g.gateway.counters().freezes.value()),
    ),
    counter(
        "holdfast_gateway_folds_total",
        "Times frozen layers became a tree.",
        |g| number(g.gateway.counters().folds.value()),
    ),
    counter(
        "holdfast_gateway_exchanges_total",
        "Times a restore or a sync gave a live session another image.",
        |g| number(g.gateway.counters().exchanges.value()),
    ),
    counter(
        "holdfast_gateway_takeovers_total",
        "Sessions taken into memory.",
        |g| number(g.gateway.counters().takeovers.value()),
    ),
    took(
        "holdfast_gateway_takeover_seconds",
        "How long it took to find a session and take it into memory.",
        |g| g.gateway.counters().takeover_took.read(),
    ),
    counter(
        "holdfast_gateway_retired_total",
        "Sessions dropped from memory after being idle.",
        |g| number(g.gateway.counters().retired.value()),
    ),
    counter(
        "holdfast_gateway_flushes_total",
        "Groups of changes sent to the metadata store.",
        |g| number(g.gateway.counters().flushes.value()),
    ),
    counter(
        "holdfast_gateway_flush_failures_total",
        "Flushes that failed and made the session be loaded anew.",
        |g| number(g.gateway.counters().flush_failures.value()),
    ),
    counter(
        "holdfast_gateway_flushes_refused_total",
        "Groups of changes that the metadata store had no room for; they were refused.",
        |g| number(g.gateway.counters().flushes_refused.value()),
    ),
    took(
        "holdfast_gateway_flush_seconds",
        "How long flushes took.",
        |g| g.gateway.counters().flush_took.read(),
    ),
    counter(
        "holdfast_gateway_fenced_total",
        "Flushes refused because another gateway owns the session.",
        |g| number(g.gateway.counters().fenced.value()),
    ),
    counter(
        "holdfast_gateway_replayed_total",
        "Calls answered with the reply of an earlier copy.",
        |g| number(g.gateway.counters().replayed.value()),
    ),
    counter(
        "holdfast_gateway_replayed_from_store_total",
        "Calls answered with a reply that this process found in the store.",
        |g| number(g.gateway.counters().replayed_from_store.value()),
    ),
    counter(
        "holdfast_gateway_duplicates_running_total",
        "Copies of calls that were still running.",
        |g| number(g.gateway.counters().duplicates_running.value()),
    ),
    counter(
        "holdfast_gateway_stale_handles_total",
        "Calls with a handle that is not, or no longer, good.",
        |g| number(g.gateway.counters().stale_handles.value()),
    ),
    counter(
        "holdfast_gateway_forged_handles_total",
        "Handles that this installation never signed.",
        |g| number(g.gateway.handles_rejected()),
    ),
    counter("holdfast_gateway_mounts_total", "Mounts granted.", |g| {
        number(g.gateway.counters().mounts.value())
    }),
    counter(
        "holdfast_gateway_mounts_refused_total",
        "Mounts refused.",
        |g| number(g.gateway.counters().mounts_refused.value()),
    ),
    counter(
        "holdfast_gateway_discarded_total",
        "Files whose unwritten data was given up for want of space.",
        |g| number(g.gateway.counters().discarded.value()),
    ),
    counter(
        "holdfast_gateway_corrupt_total",
        "Stored data found damaged.",
        |g| number(g.gateway.counters().corrupt.value()),
    ),
    counter(
        "holdfast_gateway_passed_on_total",
        "Calls passed on to the gateway that has their session.",
        |g| number(g.gateway.counters().passed_on.value()),
    ),
    took(
        "holdfast_gateway_passed_on_seconds",
        "How long the replies to them took to come back.",
        |g| g.gateway.counters().passed_on_took.read(),
    ),
    counter(
        "holdfast_gateway_passed_back_total",
        "Calls that came back from there without a reply, and were asked again.",
        |g| number(g.gateway.counters().passed_back.value()),
    ),
    counter(
        "holdfast_gateway_lapses_total",
        "Times the lease had lapsed before it was renewed.",
        |g| number(g.gateway.counters().lapses.value()),
    ),
    counter(
        "holdfast_gateway_lease_waits_total",
        "Calls that waited for the lease to be renewed.",
        |g| number(g.gateway.counters().lease_waits.value()),
    ),
    counter(
        "holdfast_gateway_notices_total",
        "Notices of other gateways that were obeyed.",
        |g| number(g.gateway.counters().notices.value()),
    ),
    counter(
        "holdfast_gateway_taken_from_living_total",
        "Sessions taken from a gateway that lives and cannot be reached.",
        |g| number(g.gateway.counters().taken_from_living.value()),
    ),
    counter(
        "holdfast_gateway_let_go_total",
        "Sessions let go of while draining, for other gateways to take.",
        |g| number(g.gateway.counters().let_go.value()),
    ),
    gauge(
        "holdfast_gateway_others",
        "Other gateways on the same metadata that are alive.",
        |g| size(g.gateway.others_alive()),
    ),
    gauge(
        "holdfast_gateway_lease",
        "1 while the lease holds, or the metadata is not shared; 0 while calls wait for it.",
        |g| number(u64::from(g.gateway.holds_lease())),
    ),
    gauge(
        "holdfast_transport_connections",
        "Open NFS connections.",
        |g| number(g.gateway.transport().open()),
    ),
    gauge(
        "holdfast_transport_held_bytes",
        "Memory for calls and replies, beyond 64 KiB a connection.",
        |g| size(g.gateway.transport().held_bytes.value()),
    ),
    gauge(
        "holdfast_transport_receiving_bytes",
        "Memory for calls that are still arriving, beyond 32 KiB a connection.",
        |g| size(g.gateway.transport().receiving_bytes.value()),
    ),
    counter(
        "holdfast_transport_accepted_total",
        "NFS connections accepted.",
        |g| number(g.gateway.transport().accepted.value()),
    ),
    counter(
        "holdfast_transport_accept_errors_total",
        "Times accepting a connection failed.",
        |g| number(g.gateway.transport().accept_errors.value()),
    ),
    counter(
        "holdfast_transport_crowded_total",
        "Times all places for NFS connections were taken, so that the next one had to wait.",
        |g| number(g.gateway.transport().crowded.value()),
    ),
    counter(
        "holdfast_transport_received_bytes_total",
        "Bytes received from clients.",
        |g| number(g.gateway.transport().received_bytes.value()),
    ),
    counter(
        "holdfast_transport_sent_bytes_total",
        "Bytes sent to clients.",
        |g| number(g.gateway.transport().sent_bytes.value()),
    ),
    counter("holdfast_transport_replies_total", "Replies sent.", |g| {
        number(g.gateway.transport().replies.value())
    }),
    counter(
        "holdfast_transport_replies_dropped_total",
        "Replies that came when their connection was gone.",
        |g| number(g.gateway.transport().replies_dropped.value()),
    ),
    counter(
        "holdfast_transport_paused_total",
        "Times a connection was not read for a while because a limit was reached.",
        |g| number(g.gateway.transport().paused.value()),
    ),
    counter(
        "holdfast_transport_ended_garbage_total",
        "Connections closed because their bytes were no calls.",
        |g| number(g.gateway.transport().ended_garbage.value()),
    ),
    counter(
        "holdfast_transport_ended_panic_total",
        "Connections closed because a call panicked: report a bug.",
        |g| number(g.gateway.transport().ended_panic.value()),
    ),
    counter(
        "holdfast_transport_ended_slow_total",
        "Connections closed because calls or replies moved too slowly.",
        |g| {
            let ended = g.gateway.transport();
            number(ended.ended_slow_record.value() + ended.ended_slow_replies.value())
        },
    ),
    counter(
        "holdfast_transport_ended_idle_total",
        "Connections closed because nothing was asked for a long time.",
        |g| number(g.gateway.transport().ended_idle.value()),
    ),
    counter(
        "holdfast_transport_proxied_total",
        "Connections that balancers made for clients.",
        |g| number(g.gateway.transport().proxied.value()),
    ),
    counter(
        "holdfast_transport_ended_proxy_total",
        "Connections refused because a PROXY header was missing, wrong or not expected.",
        |g| number(g.gateway.transport().ended_proxy.value()),
    ),
    gauge(
        "holdfast_chunkstore_chunks",
        "Chunks stored in the data directory.",
        |g| number(g.content.chunks()),
    ),
    gauge(
        "holdfast_chunkstore_stored_bytes",
        "Bytes that packs of chunks in the data directory take.",
        |g| number(g.content.pack_bytes()),
    ),
    counter(
        "holdfast_chunkstore_syncs_total",
        "Times chunks were made durable.",
        |g| number(g.content.syncs()),
    ),
    counter(
        "holdfast_chunkstore_cache_hits_total",
        "Reads of chunks answered from memory.",
        |g| number(g.cached.hits()),
    ),
    counter(
        "holdfast_chunkstore_cache_misses_total",
        "Reads of chunks that had to ask the store.",
        |g| number(g.cached.misses()),
    ),
    gauge(
        "holdfast_chunkstore_holds",
        "Write-backs that keep collections waiting.",
        |g| number(g.content.holds()),
    ),
    counter(
        "holdfast_chunkstore_collections_total",
        "Collections of content that nothing refers to, also those that ended early.",
        |g| g.collections(|it| &it.collections),
    ),
    counter(
        "holdfast_chunkstore_collection_failures_total",
        "Collections that ended early.",
        |g| g.collections(|it| &it.failures),
    ),
    counter(
        "holdfast_chunkstore_collection_seconds_total",
        "Time spent in collections.",
        |g| g.collections(|it| &it.micros) / 1e6,
    ),
    gauge(
        "holdfast_chunkstore_live_bytes",
        "Bytes of chunks that files refer to, as of the last collection.",
        |g| g.collections(|it| &it.live_bytes),
    ),
    counter(
        "holdfast_chunkstore_freed_bytes_total",
        "Bytes that collections gave back to the device.",
        |g| g.collections(|it| &it.freed_bytes),
    ),
    counter(
        "holdfast_chunkstore_copied_bytes_total",
        "Bytes that collections copied to give back others.",
        |g| g.collections(|it| &it.copied_bytes),
    ),
    gauge(
        "holdfast_chunkstore_staged_bytes",
        "Bytes of shared chunks in the metadata store, as last heard.",
        |g| number(g.content.of_shared(SharedStore::staged_bytes)),
    ),
    gauge(
        "holdfast_chunkstore_queued_bytes",
        "Bytes of shared chunks in memory that are not durable yet.",
        |g| {
            number(
                g.content
                    .of_shared(|shared| shared.queued_bytes().try_into().unwrap_or(u64::MAX)),
            )
        },
    ),
    counter(
        "holdfast_chunkstore_ledger_commits_total",
        "Transactions that brought shared chunks to the metadata store.",
        |g| {
            number(
                g.content
                    .of_shared(|shared| shared.shared_counters().transactions.count()),
            )
        },
    ),
    gauge(
        "holdfast_chunkstore_backlog_bytes",
        "Bytes of staged chunks that this server has to bring to the object store.",
        |g| {
            number(
                g.content
                    .of_shared(|shared| shared.backlog_bytes().try_into().unwrap_or(u64::MAX)),
            )
        },
    ),
    counter(
        "holdfast_chunkstore_packed_total",
        "Packs brought to the object store.",
        |g| {
            number(
                g.content
                    .of_shared(|shared| shared.pack_counters().packs.count()),
            )
        },
    ),
    counter(
        "holdfast_chunkstore_packed_bytes_total",
        "Bytes of them.",
        |g| {
            number(
                g.content
                    .of_shared(|shared| shared.pack_counters().bytes.count()),
            )
        },
    ),
    counter(
        "holdfast_chunkstore_pack_failures_total",
        "Times a pack could not be stored, and waited to be tried again.",
        |g| {
            number(
                g.content
                    .of_shared(|shared| shared.pack_counters().failures.count()),
            )
        },
    ),
    counter(
        "holdfast_chunkstore_adopted_total",
        "Chunks that other servers had left staged.",
        |g| {
            number(
                g.content
                    .of_shared(|shared| shared.pack_counters().adopted.count()),
            )
        },
    ),
    gauge(
        "holdfast_chunkstore_disk_cache_bytes",
        "Bytes of the cache of object content on disk.",
        |g| g.disk(DiskCache::bytes),
    ),
    counter(
        "holdfast_chunkstore_disk_cache_hits_total",
        "Reads of chunks answered from the cache on disk.",
        |g| g.disk(|disk| disk.counters.hits.count()),
    ),
    counter(
        "holdfast_chunkstore_disk_cache_misses_total",
        "Reads of chunks that the cache on disk did not have.",
        |g| g.disk(|disk| disk.counters.misses.count()),
    ),
    counter(
        "holdfast_chunkstore_disk_cache_damaged_total",
        "Chunks in the cache on disk that were damaged, and dropped.",
        |g| g.disk(|disk| disk.counters.damaged.count()),
    ),
    counter(
        "holdfast_object_retries_total",
        "Calls to the object store that were made again.",
        |g| g.object(|calls| calls.retries.count()),
    ),
    counter(
        "holdfast_object_hedges_total",
        "Second reads of what was slow to come from the object store.",
        |g| g.object(|calls| calls.hedges.count()),
    ),
    counter(
        "holdfast_object_hedges_won_total",
        "Second reads that came first.",
        |g| g.object(|calls| calls.hedges_won.count()),
    ),
    counter(
        "holdfast_object_received_bytes_total",
        "Bytes that came from the object store.",
        |g| g.object(|calls| calls.received_bytes.count()),
    ),
    counter(
        "holdfast_object_sent_bytes_total",
        "Bytes that went to the object store.",
        |g| g.object(|calls| calls.sent_bytes.count()),
    ),
    counter(
        "holdfast_chunkstore_missing_total",
        "Shared chunks that files refer to and that are not stored: run `holdfast check`.",
        |g| {
            number(
                g.content
                    .of_shared(|shared| shared.shared_counters().missing.count()),
            )
        },
    ),
    counter(
        "holdfast_fdb_reads_total",
        "Reads of FoundationDB, and questions for its version.",
        |g| g.fdb(|calls| calls.reads.read().count()),
    ),
    took(
        "holdfast_fdb_read_seconds",
        "How long reads of FoundationDB took.",
        |g| g.fdb_took(|calls| &calls.reads),
    ),
    counter(
        "holdfast_fdb_commits_total",
        "Commits of changes to FoundationDB.",
        |g| g.fdb(|calls| calls.commits.read().count()),
    ),
    took(
        "holdfast_fdb_commit_seconds",
        "How long commits to FoundationDB took.",
        |g| g.fdb_took(|calls| &calls.commits),
    ),
    counter(
        "holdfast_fdb_conflicts_total",
        "FoundationDB transactions that another one got in the way of; they run again.",
        |g| g.fdb(KvCalls::conflicts),
    ),
    counter(
        "holdfast_fdb_too_old_total",
        "FoundationDB calls at a version that is too old; they run again.",
        |g| g.fdb(KvCalls::too_old),
    ),
    counter(
        "holdfast_fdb_unknown_total",
        "FoundationDB commits whose outcome was unknown, and was then looked up.",
        |g| g.fdb(KvCalls::unknown),
    ),
    counter(
        "holdfast_fdb_unavailable_total",
        "FoundationDB calls that the cluster could not serve; they run again.",
        |g| g.fdb(KvCalls::unavailable),
    ),
    counter(
        "holdfast_fdb_refused_total",
        "FoundationDB calls over a limit or against a rule: report a bug.",
        |g| g.fdb(KvCalls::refused),
    ),
];

/// What is counted of calls to an object store, by verb.
const LABELLED: [(&str, &str, &str); 2] = [
    (
        "holdfast_object_calls_total",
        "counter",
        "Calls to the object store, each try by itself, by `verb` and `outcome` (`done`, `failed`, `late`).",
    ),
    (
        "holdfast_object_call_seconds",
        "histogram",
        "How long calls to the object store took, by `verb`.",
    ),
];

fn labelled(counted: &Counted, text: &mut String) {
    let Some(objects) = counted.content.objects() else {
        return;
    };
    let counters = objects.counters();
    let [(calls, ..), (seconds, ..)] = LABELLED;
    for (name, kind, help) in LABELLED {
        text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        for verb in Verb::ALL {
            let (of, verb) = (counters.of(verb), verb.name());
            if name == calls {
                for (outcome, count) in [
                    ("done", &of.done),
                    ("failed", &of.failed),
                    ("late", &of.late),
                ] {
                    let count = count.count();
                    text.push_str(&format!(
                        "{calls}{{verb=\"{verb}\",outcome=\"{outcome}\"}} {count}\n"
                    ));
                }
                continue;
            }
            let mut below = 0;
            let ends = BUCKETS_MILLIS.map(|end| format!("{}", number(end) / 1e3));
            let ends = ends.iter().map(String::as_str).chain(["+Inf"]);
            for (end, bucket) in ends.zip(&of.buckets) {
                below += bucket.count();
                text.push_str(&format!(
                    "{seconds}_bucket{{verb=\"{verb}\",le=\"{end}\"}} {below}\n"
                ));
            }
            let sum = number(of.micros.count()) / 1e6;
            text.push_str(&format!(
                "{seconds}_sum{{verb=\"{verb}\"}} {sum}\n{seconds}_count{{verb=\"{verb}\"}} {below}\n"
            ));
        }
    }
}

/// All metrics.
pub(crate) fn text(counted: &Counted) -> String {
    let calls = counted.gateway.transport().calls.read();
    let mut text = String::with_capacity(METRICS.len() * 160);
    for metric in METRICS {
        let (name, help, kind) = (metric.name, metric.help, metric.kind);
        text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        match metric.value {
            Value::Number(value) => {
                let value = value(counted);
                text.push_str(&format!("{name} {value}\n"));
            }
            Value::Took(value) => push_took(&mut text, name, "", &value(counted)),
            Value::Outcomes => push_outcomes(&mut text, name, &calls),
            Value::ProceduresTook => {
                for procedure in calls.iter().filter(|it| it.took.count() > 0) {
                    let label = format!("procedure=\"{}\"", procedure.name);
                    push_took(&mut text, name, &label, &procedure.took);
                }
            }
        }
    }
    labelled(counted, &mut text);
    text
}

/// The calls of each procedure. Outcomes that have not come up are left out, but for the good one: what
/// grows from nothing is not seen to grow.
fn push_outcomes(text: &mut String, name: &str, calls: &[ProcedureCounts]) {
    for procedure in calls {
        for (outcome, count) in &procedure.outcomes {
            if *count == 0 && *outcome != "ok" {
                continue;
            }
            let labels = format!("procedure=\"{}\",outcome=\"{outcome}\"", procedure.name);
            text.push_str(&format!("{name}{{{labels}}} {count}\n"));
        }
    }
}

/// A histogram, as Prometheus wants it: each bucket has what is in the smaller ones, too.
fn push_took(text: &mut String, name: &str, label: &str, took: &Distribution) {
    let (comma, own) = match label {
        "" => ("", String::new()),
        label => (",", format!("{{{label}}}")),
    };
    for (micros, count) in took.cumulative() {
        let bound = number(micros) / 1e6;
        text.push_str(&format!(
            "{name}_bucket{{{label}{comma}le=\"{bound}\"}} {count}\n"
        ));
    }
    let (count, sum) = (took.count(), number(took.micros()) / 1e6);
    text.push_str(&format!(
        "{name}_bucket{{{label}{comma}le=\"+Inf\"}} {count}\n{name}_sum{own} {sum}\n{name}_count{own} {count}\n"
    ));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_documentation_lists_the_same_metrics() {
        let documented: Vec<String> = include_str!("../../docs/metrics.md")
            .lines()
            .filter(|line| line.starts_with("| `holdfast_"))
            .map(ToOwned::to_owned)
            .collect();
        let counted: Vec<String> = METRICS
            .iter()
            .map(|metric| format!("| `{}` | {} | {} |", metric.name, metric.kind, metric.help))
            .chain(LABELLED.map(|(name, kind, help)| format!("| `{name}` | {kind} | {help} |")))
            .collect();
        assert_eq!(documented, counted);
    }

    #[test]
    fn a_histogram_is_written_as_prometheus_reads_it() {
        let histogram = Histogram::default();
        for micros in [50, 1_500_000, 30_000_000] {
            histogram.observe(Duration::from_micros(micros));
        }
        let mut text = String::new();
        push_took(
            &mut text,
            "a_seconds",
            "procedure=\"read\"",
            &histogram.read(),
        );
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 18 + 3);
        assert_eq!(
            lines[0],
            "a_seconds_bucket{procedure=\"read\",le=\"0.00005\"} 1"
        );
        assert_eq!(
            lines[14..],
            [
                "a_seconds_bucket{procedure=\"read\",le=\"2\"} 2",
                "a_seconds_bucket{procedure=\"read\",le=\"5\"} 2",
                "a_seconds_bucket{procedure=\"read\",le=\"10\"} 2",
                "a_seconds_bucket{procedure=\"read\",le=\"20\"} 2",
                "a_seconds_bucket{procedure=\"read\",le=\"+Inf\"} 3",
                "a_seconds_sum{procedure=\"read\"} 31.50005",
                "a_seconds_count{procedure=\"read\"} 3",
            ]
        );
        let mut text = String::new();
        push_took(&mut text, "a_seconds", "", &histogram.read());
        assert!(
            text.starts_with("a_seconds_bucket{le=\"0.00005\"} 1\n"),
            "{text}"
        );
        assert!(
            text.ends_with("a_seconds_sum 31.50005\na_seconds_count 3\n"),
            "{text}"
        );
    }
}
