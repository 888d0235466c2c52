//! Versionstamps.

use super::super::{AtomicOp, Isolation, KeyRange, KvError, RangeLimit, Transaction};
use super::{PREFIX, Subject, key, outcome, pairs, range};

/// `prefix`, ten bytes for the stamp, `suffix`, and where the stamp goes.
fn operand(prefix: &[u8], suffix: &[u8]) -> Vec<u8> {
    let offset = u32::try_from(prefix.len()).expect("a short prefix");
    [prefix, &[0; 10], suffix, &offset.to_le_bytes()].concat()
}

pub(super) async fn stamps_are_those_of_the_commit(subject: &Subject) {
    let mut transaction = subject.begin();
    let stamped = operand(b"before", b"after");
    transaction.atomic(AtomicOp::SetVersionstampedValue, &key("value"), &stamped);
    let stamped = operand(&key("key/"), b"/end");
    transaction.atomic(AtomicOp::SetVersionstampedKey, &stamped, b"v");
    let committed = transaction.commit().await.expect("commit");
    let (version, _) = committed.stamp.split_at(8);
    assert_eq!(version, committed.version.0.to_be_bytes());
    let value = [b"before", &committed.stamp[..], b"after"].concat();
    assert_eq!(subject.value("value").await, Some(value));
    let name = [b"key/", &committed.stamp[..], b"/end"].concat();
    assert_eq!(subject.value(name).await.as_deref(), Some(&b"v"[..]));
    let next = subject.put(&[("x", b"")]).await;
    assert!(next.stamp > committed.stamp);
}

pub(super) async fn stamped_keys_sort_in_commit_order(subject: &Subject) {
    let mut stamps = Vec::new();
    for _ in 0..5 {
        let mut transaction = subject.begin();
        let log = operand(&key("log/"), b"");
        transaction.atomic(AtomicOp::SetVersionstampedKey, &log, b"");
        stamps.push(transaction.commit().await.expect("commit").stamp);
    }
    let stored = subject.all().await.into_iter().map(|(name, _)| name);
    let expected = stamps.iter().map(|stamp| [b"log/", &stamp[..]].concat());
    assert!(stored.eq(expected), "the log is in commit order");
}

pub(super) async fn stamped_keys_are_unreadable_until_the_commit(subject: &Subject) {
    subject.put(&[("a", b"1"), ("c", b"3")]).await;
    let mut transaction = subject.begin();
    let stamped = operand(b"", b"");
    transaction.atomic(AtomicOp::SetVersionstampedValue, &key("b"), &stamped);
    let is_unreadable = async |transaction: &dyn Transaction, name: &str| {
        let value = transaction.get(&key(name), Isolation::Snapshot).await;
        matches!(value, Err(KvError::Usage(_)))
    };
    assert!(is_unreadable(&*transaction, "b").await);
    assert!(!is_unreadable(&*transaction, "a").await);
    let all = KeyRange::prefix(PREFIX);
    let limits = |pairs, reverse| RangeLimit {
        reverse,
        ..RangeLimit::pairs(pairs)
    };
    for reverse in [false, true] {
        let whole = transaction.get_range(&all, limits(9, reverse), Isolation::Snapshot);
        assert!(matches!(whole.await, Err(KvError::Usage(_))), "{reverse}");
        // A page that ends before the unreadable key does not touch it.
        let part = pairs(&*transaction, &all, limits(1, reverse)).await;
        assert_eq!(part.len(), 1);
    }
    transaction.set(&key("b"), b"plain");
    assert!(is_unreadable(&*transaction, "b").await, "also after a set");
    transaction.clear(&key("b"));
    assert!(
        !is_unreadable(&*transaction, "b").await,
        "but not after a clear"
    );
    let stamped = operand(&key("log/"), b"");
    transaction.atomic(AtomicOp::SetVersionstampedKey, &stamped, b"v");
    let log = range("log/", "log0");
    let log = transaction.get_range(&log, limits(9, false), Isolation::Snapshot);
    assert!(matches!(log.await, Err(KvError::Usage(_))));
    transaction.clear_range(&range("log/", "log0"));
    transaction
        .commit()
        .await
        .expect("failed reads harm nothing");
    let names: Vec<Vec<u8>> = subject
        .all()
        .await
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names, [b"a", b"c"], "the cleared log entry is not written");
}

pub(super) async fn wrong_placeholders_are_refused(subject: &Subject) {
    let outside = [&[0; 10][..], &1_u32.to_le_bytes()].concat();
    let huge = [&[0; 10][..], &u32::MAX.to_le_bytes()].concat();
    for wrong in [&b""[..], &b"abc"[..], &outside, &huge] {
        let mut transaction = subject.begin();
        transaction.atomic(AtomicOp::SetVersionstampedValue, &key("k"), wrong);
        let result = outcome(transaction).await;
        assert!(matches!(result, Err(KvError::Usage(_))), "value {wrong:?}");
        let mut transaction = subject.begin();
        transaction.atomic(AtomicOp::SetVersionstampedKey, wrong, b"v");
        let result = outcome(transaction).await;
        assert!(result.is_err(), "key {wrong:?}");
    }
    assert!(subject.all().await.is_empty());
}

pub(super) async fn stamped_keys_conflict_with_readers_of_their_range(subject: &Subject) {
    let mut reader = subject.begin();
    let log = pairs(&*reader, &range("log/", "log0"), RangeLimit::pairs(9)).await;
    assert!(log.is_empty());
    reader.set(&key("seen"), b"nothing");
    let mut writer = subject.begin();
    let stamped = operand(&key("log/"), b"");
    writer.atomic(AtomicOp::SetVersionstampedKey, &stamped, b"v");
    writer.commit().await.expect("commit");
    assert_eq!(outcome(reader).await, Err(KvError::Conflict));
}
