//! Commits: who conflicts with whom, and what a commit tells.

use foundationdb::RangeOption;
use foundationdb::options::{ConflictRangeType, MutationType};
use futures_util::future::join_all;

use crate::rig::{Rig, code, commit, text};

pub(crate) async fn read_only_commits(rig: &mut Rig) {
    let version = rig.put(&[("a", "1")]).await;
    let transaction = rig.begin();
    let stamp = transaction.get_versionstamp();
    let read = transaction.get_read_version().await.unwrap();
    assert!(read >= version);
    text(&transaction, &rig.key("a"), false).await.unwrap();
    rig.put(&[("a", "2")]).await;
    assert_eq!(commit(transaction).await, Ok(-1), "no conflict, no version");
    assert_eq!(code(stamp.await), 2021);
}

pub(crate) async fn conflicts(rig: &mut Rig) {
    rig.put(&[("a", "1")]).await;
    let (first, second) = (rig.begin(), rig.begin());
    for transaction in [&first, &second] {
        text(transaction, &rig.key("a"), false).await.unwrap();
        transaction.set(&rig.key("a"), b"2");
    }
    let stamp = second.get_versionstamp();
    assert!(commit(first).await.is_ok());
    assert_eq!(commit(second).await, Err(1020));
    assert_eq!(code(stamp.await), 1020);
}

pub(crate) async fn snapshot_reads_and_own_keys_do_not_conflict(rig: &mut Rig) {
    rig.put(&[("a", "1")]).await;
    let snapshot = rig.begin();
    text(&snapshot, &rig.key("a"), true).await.unwrap();
    snapshot.set(&rig.key("b"), b"");
    let own = rig.begin();
    own.get_read_version().await.unwrap();
    own.set(&rig.key("a"), b"own");
    text(&own, &rig.key("a"), false).await.unwrap();
    rig.put(&[("a", "2")]).await;
    assert!(commit(snapshot).await.is_ok());
    assert!(commit(own).await.is_ok());
    assert_eq!(rig.value("a").await.as_deref(), Some("own"));
}

/// The crate asks so whether the network runs.
pub(crate) async fn a_read_version_set_by_hand_is_told_unseen(rig: &mut Rig) {
    let transaction = rig.begin();
    transaction.set_read_version(42);
    assert_eq!(transaction.get_read_version().await.unwrap(), 42);
    rig.db.perform_no_op().await.unwrap();
    let read = code(transaction.get(&rig.key("a"), false).await);
    // Too old to read at, or, in a cluster that was just made, not there yet.
    assert!(read == 1007 || read == 1009, "{read}");
}

/// The pattern of a fenced flush: no read, a known version, one conflict key.
pub(crate) async fn conflict_ranges_at_a_known_version(rig: &mut Rig) {
    for (fenced, expected) in [(false, None), (true, Some(1020))] {
        let version = rig.put(&[("fence", "")]).await;
        rig.put(&[("other", "")]).await;
        if fenced {
            rig.put(&[("fence", "new")]).await;
        }
        let flush = rig.begin();
        flush.set_read_version(version);
        let (start, end) = (rig.key("fence"), rig.key("fence\0"));
        flush
            .add_conflict_range(&start, &end, ConflictRangeType::Read)
            .unwrap();
        flush.set(&rig.key("data"), b"");
        assert_eq!(commit(flush).await.err(), expected, "fenced {fenced}");
    }
    // A write conflict range alone makes others conflict.
    let reader = rig.begin();
    text(&reader, &rig.key("x"), false).await.unwrap();
    reader.set(&rig.key("y"), b"");
    let writer = rig.begin();
    writer
        .add_conflict_range(&rig.key("x"), &rig.key("x\0"), ConflictRangeType::Write)
        .unwrap();
    assert!(commit(writer).await.unwrap() > 0);
    assert_eq!(commit(reader).await, Err(1020));
    let inverted = rig.begin();
    let refused =
        inverted.add_conflict_range(&rig.key("b"), &rig.key("a"), ConflictRangeType::Read);
    assert_eq!(code(refused), 2005);
}

pub(crate) async fn blind_writes_do_not_conflict(rig: &mut Rig) {
    let (first, second) = (rig.begin(), rig.begin());
    for transaction in [&first, &second] {
        transaction.get_read_version().await.unwrap();
        transaction.atomic_op(&rig.key("n"), &1_u64.to_le_bytes(), MutationType::Add);
    }
    let earlier = commit(first).await.unwrap();
    assert!(commit(second).await.unwrap() > earlier);
    let value = rig
        .begin()
        .get(&rig.key("n"), false)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(*value, 2_u64.to_le_bytes());
}

pub(crate) async fn a_range_read_conflicts_over_what_it_returned(rig: &mut Rig) {
    rig.put(&[("a", ""), ("b", ""), ("c", ""), ("d", "")]).await;
    for (written, expected) in [("aa", Some(1020)), ("d", None)] {
        let transaction = rig.begin();
        let two = RangeOption {
            limit: Some(2),
            ..RangeOption::from((rig.key("a"), rig.key("z")))
        };
        transaction.get_range(&two, 1, false).await.unwrap();
        transaction.set(&rig.key("other"), b"");
        rig.put(&[(written, "new")]).await;
        assert_eq!(commit(transaction).await.err(), expected, "{written}");
    }
}

pub(crate) async fn the_metadata_version(rig: &mut Rig) {
    if rig.emulator.is_none() {
        // One key for the whole cluster, which others may use: not a test's to write.
        return;
    }
    let reader = rig.begin();
    assert_eq!(reader.get_metadata_version(false).await.unwrap(), None);
    reader.set(&rig.key("a"), b"");
    let writer = rig.begin();
    writer.update_metadata_version();
    assert_eq!(code(writer.get_metadata_version(false).await), 1036);
    let version = commit(writer).await.unwrap();
    assert_eq!(commit(reader).await, Err(1020));
    let later = rig.begin();
    assert_eq!(
        later.get_metadata_version(true).await.unwrap(),
        Some(version)
    );
    let before = rig.begin();
    before.set_read_version(later.get_read_version().await.unwrap());
    rig.put(&[("b", "")]).await;
    let again = rig.begin();
    again.update_metadata_version();
    commit(again).await.unwrap();
    assert_eq!(
        before.get_metadata_version(true).await.unwrap(),
        Some(version)
    );
}

pub(crate) async fn increments_of_many_transactions_all_count(rig: &mut Rig) {
    let rig = &*rig;
    let tasks = (0..10).map(async |_| {
        for _ in 0..20 {
            let key = rig.key("count");
            let key = key.as_slice();
            let run = rig.db.run(async |transaction, _| {
                let value = transaction.get(key, false).await?;
                let count =
                    value.map_or(0, |value| u64::from_le_bytes((*value).try_into().unwrap()));
                transaction.set(key, &(count + 1).to_le_bytes());
                Ok(())
            });
            run.await.unwrap();
        }
    });
    join_all(tasks).await;
    let value = rig
        .begin()
        .get(&rig.key("count"), false)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(*value, 200_u64.to_le_bytes());
}
