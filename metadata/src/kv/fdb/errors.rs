//! What FoundationDB's errors mean for whoever calls: `docs/foundationdb.md` has the same table.

use foundationdb::FdbError;

use super::super::KvError;

/// What a call did that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// It asked for something: whatever failed, nothing was written.
    Read,
    /// It sent a commit: unless the error says that nothing was written, it may have been.
    Commit,
}

/// Commits that are refused before anything is written, so that they run again. Beside these the
/// library names more, by its own list.
const CONFLICT: i32 = 1020;
const TOO_OLD: i32 = 1007;
const FUTURE_VERSION: i32 = 1009;
const TIMED_OUT: i32 = 1031;
const UNREADABLE: i32 = 1036;
const LOCKED: i32 = 1038;
const NO_CLUSTER_FILE: i32 = 1515;
const TRANSACTION_TOO_LARGE: i32 = 2101;
const KEY_TOO_LARGE: i32 = 2102;
const VALUE_TOO_LARGE: i32 = 2103;
const OUTSIDE_LEGAL_RANGE: i32 = 2004;

/// Errors of a wrong use of the library: found before anything is sent.
const USAGE: std::ops::RangeInclusive<i32> = 2000..=2299;

/// Turns an error of the library into one of the store.
pub(super) fn kv_error(error: FdbError, call: Call) -> KvError {
    let code = error.code();
    // Asked last: the library is not called for what is known.
    kind(code, call, || error.is_retryable_not_committed()).unwrap_or_else(|| {
        let message = format!(
            "FoundationDB: {} (error {code}){}",
            error.message(),
            todo(code)
        );
        KvError::Unavailable(message)
    })
}

/// The error, unless it is that the store cannot serve.
fn kind(code: i32, call: Call, not_committed: impl FnOnce() -> bool) -> Option<KvError> {
    Some(match code {
        CONFLICT => KvError::Conflict,
        TOO_OLD | FUTURE_VERSION => KvError::VersionTooOld,
        UNREADABLE => KvError::Usage("versionstamped key is read before the commit"),
        TRANSACTION_TOO_LARGE => KvError::Limit("transaction is too large"),
        KEY_TOO_LARGE => KvError::Limit("key is too long"),
        VALUE_TOO_LARGE => KvError::Limit("value is too long"),
        OUTSIDE_LEGAL_RANGE => KvError::Limit("key is outside the caller's keys"),
        LOCKED => return None,
        code if USAGE.contains(&code) => KvError::Usage("the FoundationDB client refused the call"),
        _ if call == Call::Read || not_committed() => return None,
        // Known to be unknown, as 1021, or not known at all: it may have happened, and a commit that
        // timed out or was cancelled may still happen.
        _ => KvError::OutcomeUnknown,
    })
}

/// What a person does about an error.
fn todo(code: i32) -> &'static str {
    match code {
        TIMED_OUT => {
            ": look with `fdbcli` whether the cluster is available, and whether this machine reaches \
             its processes; with TLS, whether its files fit the cluster's: the client says what is wrong \
             in its trace files only (fdb_trace_dir)"
        }
        LOCKED => {
            ": an operator has locked the database, or a restore runs; unlock it when that is done"
        }
        NO_CLUSTER_FILE => ": name the cluster file",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing that may have been written is told as not written.
    #[test]
    fn commits_are_unknown_unless_the_error_says_no() {
        let never = || false;
        for code in [1021, 1039, 1031, 1025, 1101, 1026, 1500, 4100, 9999] {
            let unknown = Some(KvError::OutcomeUnknown);
            assert_eq!(kind(code, Call::Commit, never), unknown, "{code}");
            assert_eq!(kind(code, Call::Read, never), None, "{code}");
        }
        for code in [1037, 1042, 1051, 1078, 1213] {
            assert_eq!(kind(code, Call::Commit, || true), None, "{code}");
        }
        assert_eq!(kind(LOCKED, Call::Commit, never), None);
    }

    #[test]
    fn what_runs_again_and_what_is_a_bug_are_told_apart() {
        for call in [Call::Read, Call::Commit] {
            let of = |code| kind(code, call, || unreachable!("known without the library"));
            assert_eq!(of(1007), Some(KvError::VersionTooOld));
            assert_eq!(of(1009), Some(KvError::VersionTooOld));
            assert_eq!(of(1020), Some(KvError::Conflict));
            assert!(matches!(of(1036), Some(KvError::Usage(_))));
            assert!(matches!(of(2017), Some(KvError::Usage(_))));
            assert!(matches!(of(2101), Some(KvError::Limit(_))));
            assert!(matches!(of(2004), Some(KvError::Limit(_))));
        }
    }
}
