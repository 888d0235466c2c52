//! FoundationDB's limits, to the byte.

use base::limits::{KV_KEY_BYTES_MAX, KV_TRANSACTION_BYTES_MAX, KV_VALUE_BYTES_MAX};
use bytes::Bytes;

use super::super::{AtomicOp, Isolation, KeyRange, KvError, RangeLimit, Transaction};
use super::{PREFIX, Subject, key, outcome, range};

/// A key of `len` bytes.
fn long_key(len: usize) -> Vec<u8> {
    let mut key = key("");
    key.resize(len, b'x');
    key
}

async fn ends(subject: &Subject, write: impl FnOnce(&mut dyn Transaction)) -> Result<(), KvError> {
    let mut transaction = subject.begin();
    write(&mut *transaction);
    outcome(transaction).await
}

fn is_limit(result: &Result<(), KvError>) -> bool {
    matches!(result, Err(KvError::Limit(_)))
}

pub(super) async fn keys_and_values(subject: &Subject) {
    let longest = long_key(KV_KEY_BYTES_MAX);
    let too_long = long_key(KV_KEY_BYTES_MAX + 1);
    let largest = vec![1; KV_VALUE_BYTES_MAX];
    let too_large = vec![1; KV_VALUE_BYTES_MAX + 1];
    let result = ends(subject, |t| t.set(&longest, &largest)).await;
    assert_eq!(result, Ok(()));
    let stored = subject.begin().get(&longest, Isolation::Serializable).await;
    assert_eq!(
        stored.map(|value| value.map(|value| value.len())),
        Ok(Some(KV_VALUE_BYTES_MAX))
    );
    assert!(is_limit(&ends(subject, |t| t.set(&too_long, b"")).await));
    assert!(is_limit(
        &ends(subject, |t| t.set(&key("v"), &too_large)).await
    ));
    let result = ends(subject, |t| t.atomic(AtomicOp::Add, &key("v"), &too_large)).await;
    assert!(is_limit(&result));
    let result = ends(subject, |t| t.atomic(AtomicOp::Add, &too_long, &[1])).await;
    assert!(is_limit(&result));
    // Nothing can be under a key that is too long, so that it is absent and easily cleared.
    let absent = subject
        .begin()
        .get(&too_long, Isolation::Serializable)
        .await;
    assert_eq!(absent, Ok(None));
    assert_eq!(ends(subject, |t| t.clear(&too_long)).await, Ok(()));
    let from_longest = KeyRange {
        start: Bytes::from(long_key(3 * KV_KEY_BYTES_MAX)),
        end: KeyRange::prefix(PREFIX).end,
    };
    assert_eq!(
        ends(subject, |t| t.clear_range(&from_longest)).await,
        Ok(())
    );
    assert_eq!(
        subject.all().await.len(),
        1,
        "the range starts after the longest key"
    );
    // Other writes of a transaction with an error are not made either.
    let result = ends(subject, |t| {
        t.set(&key("fine"), b"");
        t.set(&too_long, b"");
        t.set(&key("also-fine"), b"");
    });
    assert!(is_limit(&result.await));
    assert_eq!(subject.value("fine").await, None);
}

pub(super) async fn foreign_keys(subject: &Subject) {
    let foreign = KeyRange {
        start: Bytes::from(key("a")),
        end: Bytes::from_static(b"\xff\0"),
    };
    assert!(is_limit(&ends(subject, |t| t.set(b"\xff", b"")).await));
    assert!(is_limit(
        &ends(subject, |t| t.set(b"\xff\xff/x", b"")).await
    ));
    assert!(is_limit(&ends(subject, |t| t.clear(b"\xff/x")).await));
    assert!(is_limit(
        &ends(subject, |t| t.atomic(AtomicOp::Add, b"\xff", b"")).await
    ));
    assert!(is_limit(&ends(subject, |t| t.clear_range(&foreign)).await));
    assert!(is_limit(
        &ends(subject, |t| t.add_read_conflict_range(&foreign)).await
    ));
    assert!(is_limit(
        &ends(subject, |t| t.add_write_conflict_range(&foreign)).await
    ));
    let read = subject.begin().get(b"\xff", Isolation::Snapshot).await;
    assert!(is_limit(&read.map(|_| ())));
    let transaction = subject.begin();
    let read = transaction.get_range(&foreign, RangeLimit::pairs(1), Isolation::Snapshot);
    assert!(is_limit(&read.await.map(|_| ())));
    // A range may end where the foreign keys start.
    let to_the_end = KeyRange {
        start: KeyRange::prefix(PREFIX).end,
        end: Bytes::from_static(b"\xff"),
    };
    let read = transaction.get_range(&to_the_end, RangeLimit::pairs(1), Isolation::Snapshot);
    assert!(read.await.is_ok());
}

pub(super) async fn transactions(subject: &Subject) {
    let value = vec![0; KV_VALUE_BYTES_MAX];
    let values = KV_TRANSACTION_BYTES_MAX / KV_VALUE_BYTES_MAX;
    let result = ends(subject, |t| {
        for index in 0..values {
            t.set(&key(index.to_string()), &value);
        }
    });
    assert!(is_limit(&result.await), "keys count too");
    let result = ends(subject, |t| {
        for index in 0..values - 1 {
            t.set(&key(index.to_string()), &value);
        }
    });
    assert_eq!(result.await, Ok(()));
    // Values read do not count; conflict ranges do.
    let transaction = subject.begin();
    for index in 0..values - 1 {
        let name = key(index.to_string());
        let value = transaction.get(&name, Isolation::Serializable).await;
        assert!(value.is_ok_and(|value| value.is_some()));
    }
    let mut transaction = transaction;
    transaction.set(&key("small"), b"");
    assert_eq!(outcome(transaction).await, Ok(()));
    let ranges = KV_TRANSACTION_BYTES_MAX / (2 * KV_KEY_BYTES_MAX) + 1;
    let long_range = |index: usize| {
        let mut start = key(format!("{index:06}"));
        start.resize(KV_KEY_BYTES_MAX, b'x');
        KeyRange::key(&start)
    };
    for write in [false, true] {
        let result = ends(subject, |t| {
            t.set(&key("small"), b"");
            for index in 0..ranges {
                if write {
                    t.add_write_conflict_range(&long_range(index));
                } else {
                    t.add_read_conflict_range(&long_range(index));
                }
            }
        });
        assert!(is_limit(&result.await), "conflict ranges, write {write}");
    }
    assert_eq!(
        ends(subject, |t| t.clear_range(&range("", "z"))).await,
        Ok(())
    );
}

pub(super) async fn wrong_uses(subject: &Subject) {
    let is_usage = |result: &Result<(), KvError>| matches!(result, Err(KvError::Usage(_)));
    let inverted = range("b", "a");
    assert!(is_usage(&ends(subject, |t| t.clear_range(&inverted)).await));
    assert!(is_usage(
        &ends(subject, |t| t.add_read_conflict_range(&inverted)).await
    ));
    assert!(is_usage(
        &ends(subject, |t| t.add_write_conflict_range(&inverted)).await
    ));
    let transaction = subject.begin();
    let read = transaction.get_range(&inverted, RangeLimit::pairs(1), Isolation::Snapshot);
    assert!(is_usage(&read.await.map(|_| ())));
    let whole = range("a", "b");
    let read = transaction.get_range(&whole, RangeLimit::pairs(0), Isolation::Snapshot);
    assert!(is_usage(&read.await.map(|_| ())));
    let mut transaction = subject.begin();
    let version = transaction.read_version().await.expect("read version");
    transaction.set_read_version(version);
    transaction.set(&key("a"), b"");
    assert!(
        is_usage(&outcome(transaction).await),
        "version set too late"
    );
}
