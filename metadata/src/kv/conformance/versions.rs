//! Read versions: known ones, unknown ones, old ones.

use std::time::Duration;

use base::limits::KV_TRANSACTION_AGE_MS_MAX;

use super::super::{Isolation, KeyRange, KvError, Version};
use super::{Subject, key, outcome};

pub(super) async fn reads_at_a_known_version(subject: &Subject) {
    let first = subject.put(&[("a", b"1")]).await.version;
    let second = subject.put(&[("a", b"2")]).await.version;
    assert!(second > first);
    for (version, expected) in [(first, b"1"), (second, b"2")] {
        let mut transaction = subject.begin();
        transaction.set_read_version(version);
        assert_eq!(transaction.read_version().await, Ok(version));
        let value = transaction.get(&key("a"), Isolation::Serializable).await;
        assert_eq!(value.expect("get").as_deref(), Some(&expected[..]));
        transaction.set(&key("b"), b"");
        let expected = if version == first {
            Err(KvError::Conflict)
        } else {
            Ok(())
        };
        assert_eq!(outcome(transaction).await, expected, "read at {version:?}");
    }
    // The pattern of a fenced flush: no read at all, but a conflict if the fence was written.
    for (fenced, expected) in [(false, Ok(())), (true, Err(KvError::Conflict))] {
        let version = subject.put(&[("fence", b"")]).await.version;
        subject.put(&[("other", b"")]).await;
        if fenced {
            subject.put(&[("fence", b"new")]).await;
        }
        let mut flush = subject.begin();
        flush.set_read_version(version);
        flush.add_read_conflict_range(&KeyRange::key(&key("fence")));
        flush.set(&key("data"), b"");
        assert_eq!(outcome(flush).await, expected, "fenced {fenced}");
    }
}

pub(super) async fn unknown_versions_are_refused(subject: &Subject) {
    let version = subject.put(&[("a", b"1")]).await.version;
    let future = Version(version.0.saturating_add(1 << 40));
    let mut reader = subject.begin();
    reader.set_read_version(future);
    let value = reader.get(&key("a"), Isolation::Serializable).await;
    assert_eq!(value, Err(KvError::VersionTooOld));
    let mut writer = subject.begin();
    writer.set_read_version(future);
    writer.add_read_conflict_range(&KeyRange::key(&key("a")));
    writer.set(&key("b"), b"");
    assert_eq!(outcome(writer).await, Err(KvError::VersionTooOld));
}

pub(super) async fn old_versions_are_refused(subject: &Subject) {
    let age = Duration::from_millis(KV_TRANSACTION_AGE_MS_MAX);
    let version = subject.put(&[("a", b"1")]).await.version;
    let reader = subject.begin();
    let mut writer = subject.begin();
    let mut blind = subject.begin();
    let mut read_only = subject.begin();
    for transaction in [&reader, &writer, &blind, &read_only] {
        let value = transaction.get(&key("a"), Isolation::Snapshot).await;
        assert!(value.is_ok());
    }
    subject.pass(age / 2).await;
    subject.put(&[("a", b"2")]).await;
    let value = reader.get(&key("a"), Isolation::Serializable).await;
    // In real time nobody knows how long that was; and a store may forget a version before its time.
    if subject.clock.is_some() || value != Err(KvError::VersionTooOld) {
        let value = value.expect("half the age is not too old");
        assert_eq!(value.as_deref(), Some(&b"1"[..]));
    }
    subject.pass(age).await;
    let value = reader.get(&key("a"), Isolation::Serializable).await;
    assert_eq!(value, Err(KvError::VersionTooOld), "read");
    writer.add_read_conflict_range(&KeyRange::key(&key("x")));
    writer.set(&key("b"), b"");
    assert_eq!(outcome(writer).await, Err(KvError::VersionTooOld), "commit");
    blind.set(&key("b"), b"blind");
    assert_eq!(outcome(blind).await, Ok(()), "a blind write has no age");
    let value = read_only.get(&key("a"), Isolation::Snapshot).await;
    assert_eq!(value, Err(KvError::VersionTooOld), "snapshot read");
    read_only.add_read_conflict_range(&KeyRange::key(&key("x")));
    assert_eq!(
        outcome(read_only).await,
        Ok(()),
        "a read-only commit has no age"
    );
    // A version named by the caller ages from when it was made.
    let mut named = subject.begin();
    named.set_read_version(version);
    named.add_read_conflict_range(&KeyRange::key(&key("x")));
    named.set(&key("b"), b"");
    assert_eq!(outcome(named).await, Err(KvError::VersionTooOld), "named");
    assert_eq!(subject.value("b").await.as_deref(), Some(&b"blind"[..]));
}
