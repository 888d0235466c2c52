//! FoundationDB's error codes, as far as they occur here.

use std::ffi::CStr;

/// An error code of the C API. 0 means success.
pub type Code = i32;

macro_rules! codes {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        $(
            #[doc = concat!("FoundationDB's ", stringify!($code), ".")]
            pub const $name: Code = $code;
        )*

        /// What `fdb_get_error` says.
        #[must_use]
        pub fn text(code: Code) -> &'static CStr {
            match code {
                0 => c"Success",
                $($code => $text,)*
                _ => c"UNKNOWN_ERROR",
            }
        }
    };
}

codes! {
    TRANSACTION_TOO_OLD = 1007, c"Transaction is too old to perform reads or be committed";
    FUTURE_VERSION = 1009, c"Request for future version";
    NOT_COMMITTED = 1020, c"Transaction not committed due to conflict with another transaction";
    COMMIT_UNKNOWN_RESULT = 1021, c"Transaction may or may not have committed";
    OPERATION_CANCELLED = 1101, c"Asynchronous operation cancelled";
    TRANSACTION_CANCELLED = 1025, c"Operation aborted because the transaction was cancelled";
    TIMED_OUT = 1031, c"Operation aborted because the transaction timed out";
    TOO_MANY_WATCHES = 1032, c"Too many watches set";
    ACCESSED_UNREADABLE = 1036, c"Read or wrote an unreadable key";
    PROCESS_BEHIND = 1037, c"Storage process does not have recent mutations";
    DATABASE_LOCKED = 1038, c"Database is locked";
    CLUSTER_VERSION_CHANGED = 1039, c"The protocol version of the cluster has changed";
    COMMIT_PROXY_MEMORY_LIMIT = 1042, c"Commit proxy commit memory limit exceeded";
    BATCH_THROTTLED = 1051, c"Batch GRV request rate limit exceeded";
    GRV_PROXY_MEMORY_LIMIT = 1078, c"GRV proxy memory limit exceeded";
    TAG_THROTTLED = 1213, c"Transaction tag is being throttled";
    NO_CLUSTER_FILE = 1515, c"No cluster file found in current directory or default location";
    CLIENT_INVALID_OPERATION = 2000, c"Invalid API call";
    KEY_OUTSIDE_LEGAL_RANGE = 2004, c"Key outside legal range";
    INVERTED_RANGE = 2005, c"Range begin key larger than end key";
    INVALID_OPTION_VALUE = 2006, c"Option set with an invalid value";
    INVALID_OPTION = 2007, c"Option not valid in this context";
    NETWORK_NOT_SETUP = 2008, c"Action not possible before the network is configured";
    NETWORK_ALREADY_SETUP = 2009, c"Network can be configured only once";
    READ_VERSION_ALREADY_SET = 2010, c"Transaction already has a read version set";
    VERSION_INVALID = 2011, c"Version not valid";
    RANGE_LIMITS_INVALID = 2012, c"Range limits not valid";
    USED_DURING_COMMIT = 2017, c"Operation issued while a commit was outstanding";
    INVALID_MUTATION_TYPE = 2018, c"Unrecognized atomic mutation type";
    NO_COMMIT_VERSION = 2021, c"Transaction is read-only and therefore does not have a commit version";
    NETWORK_CANNOT_BE_RESTARTED = 2025, c"Network loop cannot be restarted";
    TRANSACTION_TOO_LARGE = 2101, c"Transaction exceeds byte limit";
    KEY_TOO_LARGE = 2102, c"Key length exceeds limit";
    VALUE_TOO_LARGE = 2103, c"Value length exceeds limit";
    CONNECTION_STRING_INVALID = 2104, c"Connection string invalid";
    UNSUPPORTED_OPERATION = 2108, c"Operation is not supported";
    API_VERSION_UNSET = 2200, c"API version is not set";
    API_VERSION_ALREADY_SET = 2201, c"API version may be set only once";
    API_VERSION_INVALID = 2202, c"API version not valid";
    API_VERSION_NOT_SUPPORTED = 2203, c"API version not supported";
    EXACT_MODE_WITHOUT_LIMITS = 2210, c"EXACT streaming mode requires limits, but none were given";
    UNKNOWN_ERROR = 4000, c"An unknown error occurred";
    INTERNAL_ERROR = 4100, c"An internal error occurred";
}

/// Whether the transaction may have been committed.
#[must_use]
pub fn is_maybe_committed(code: Code) -> bool {
    matches!(code, COMMIT_UNKNOWN_RESULT | CLUSTER_VERSION_CHANGED)
}

/// Whether the transaction was not committed and may be run again.
#[must_use]
pub fn is_retryable_not_committed(code: Code) -> bool {
    matches!(
        code,
        NOT_COMMITTED
            | TRANSACTION_TOO_OLD
            | FUTURE_VERSION
            | DATABASE_LOCKED
            | COMMIT_PROXY_MEMORY_LIMIT
            | GRV_PROXY_MEMORY_LIMIT
            | PROCESS_BEHIND
            | BATCH_THROTTLED
            | TAG_THROTTLED
    )
}

/// Whether `on_error` runs the transaction again.
#[must_use]
pub fn is_retryable(code: Code) -> bool {
    is_maybe_committed(code) || is_retryable_not_committed(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predicates_are_disjoint_and_leave_out_what_may_still_land() {
        for code in 0..5000 {
            assert!(!(is_maybe_committed(code) && is_retryable_not_committed(code)));
        }
        assert!(is_retryable(COMMIT_UNKNOWN_RESULT) && is_retryable(NOT_COMMITTED));
        assert!(!is_retryable(TIMED_OUT) && !is_retryable(TRANSACTION_CANCELLED));
        assert_eq!(
            text(1020).to_bytes(),
            b"Transaction not committed due to conflict with another transaction"
        );
        assert_eq!(text(77).to_bytes(), b"UNKNOWN_ERROR");
    }
}
