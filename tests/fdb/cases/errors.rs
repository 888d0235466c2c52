//! Errors, retries, timeouts, the end of transactions.

use foundationdb::options::{DatabaseOption, TransactionOption};
use foundationdb::{Database, FdbError};

use crate::rig::{Rig, code, commit, pass, text};

pub(crate) async fn predicates_and_texts(_: &mut Rig) {
    for (code, retryable, maybe) in [
        (1007, true, false),
        (1009, true, false),
        (1020, true, false),
        (1021, true, true),
        (1037, true, false),
        (1039, true, true),
        (1025, false, false),
        (1031, false, false),
        (2101, false, false),
    ] {
        let error = FdbError::from_code(code);
        assert_eq!(error.is_retryable(), retryable, "{code}");
        assert_eq!(error.is_maybe_committed(), maybe, "{code}");
        assert_eq!(
            error.is_retryable_not_committed(),
            retryable && !maybe,
            "{code}"
        );
    }
    let text = FdbError::from_code(1031).message();
    assert_eq!(text, "Operation aborted because the transaction timed out");
}

pub(crate) async fn a_reset_forgets(rig: &mut Rig) {
    let mut transaction = rig.begin();
    transaction.set(&rig.key("a"), b"1");
    let stamp = transaction.get_versionstamp();
    transaction.reset();
    assert_eq!(code(stamp.await), 1025);
    assert_eq!(
        text(&transaction, &rig.key("a"), false).await.unwrap(),
        None
    );
    transaction.set(&rig.key("b"), b"2");
    assert!(commit(transaction).await.is_ok());
    assert_eq!(rig.value("a").await, None);
    assert_eq!(rig.value("b").await.as_deref(), Some("2"));
}

pub(crate) async fn a_timeout_ends_everything_until_the_reset(rig: &mut Rig) {
    let mut transaction = rig.begin_with([TransactionOption::Timeout(30)]);
    let waiting = transaction.on_error(FdbError::from_code(1020)).await;
    transaction = waiting.expect("a retry in time");
    transaction.set(&rig.key("a"), b"1");
    pass(60).await;
    assert_eq!(code(transaction.get(&rig.key("a"), false).await), 1031);
    assert_eq!(
        code(transaction.on_error(FdbError::from_code(1020)).await),
        1031
    );
    let mut transaction = rig.begin_with([TransactionOption::Timeout(1)]);
    pass(20).await;
    assert_eq!(code(transaction.get_read_version().await), 1031);
    transaction.reset();
    assert_eq!(code(transaction.get_read_version().await), 0);
}

pub(crate) async fn a_retry_limit_is_kept_by_retries_and_not_by_a_reset(rig: &mut Rig) {
    let mut transaction = rig.begin_with([
        TransactionOption::RetryLimit(2),
        TransactionOption::MaxRetryDelay(5),
    ]);
    for _ in 0..2 {
        transaction = transaction
            .on_error(FdbError::from_code(1020))
            .await
            .unwrap();
    }
    assert_eq!(
        code(transaction.on_error(FdbError::from_code(1020)).await),
        1020
    );
    let mut transaction = rig.begin_with([TransactionOption::RetryLimit(0)]);
    transaction.reset();
    transaction
        .set_option(TransactionOption::Timeout(20_000))
        .unwrap();
    for _ in 0..3 {
        transaction = transaction
            .on_error(FdbError::from_code(1007))
            .await
            .unwrap();
    }
}

pub(crate) async fn on_error_does_not_retry_what_may_still_land(rig: &mut Rig) {
    for fatal in [1031, 1025, 2000, 2101] {
        let transaction = rig.begin();
        transaction.set(&rig.key("a"), b"1");
        let failed = transaction.on_error(FdbError::from_code(fatal)).await;
        assert_eq!(code(failed), fatal);
    }
    let transaction = rig.begin();
    transaction.set(&rig.key("a"), b"1");
    let transaction = transaction
        .on_error(FdbError::from_code(1021))
        .await
        .unwrap();
    assert_eq!(commit(transaction).await, Ok(-1), "writes are gone");
    assert_eq!(rig.value("a").await, None);
}

pub(crate) async fn database_defaults_hold_for_new_transactions(rig: &mut Rig) {
    let db = Database::from_path(rig.file.to_str().unwrap()).unwrap();
    db.set_option(DatabaseOption::TransactionRetryLimit(1))
        .unwrap();
    db.set_option(DatabaseOption::TransactionTimeout(20_000))
        .unwrap();
    db.set_option(DatabaseOption::TransactionMaxRetryDelay(5))
        .unwrap();
    let mut transaction = db.create_trx().unwrap();
    for _ in 0..2 {
        // A reset gives the defaults again.
        transaction = transaction
            .on_error(FdbError::from_code(1020))
            .await
            .unwrap();
        transaction.reset();
    }
    transaction = transaction
        .on_error(FdbError::from_code(1020))
        .await
        .unwrap();
    assert_eq!(
        code(transaction.on_error(FdbError::from_code(1020)).await),
        1020
    );
}

pub(crate) async fn cancelled_transactions(rig: &mut Rig) {
    let transaction = rig.begin();
    transaction.set(&rig.key("a"), b"1");
    let stamp = transaction.get_versionstamp();
    let cancelled = transaction.cancel();
    assert_eq!(code(stamp.await), 1025);
    let transaction = cancelled.reset();
    assert_eq!(
        text(&transaction, &rig.key("a"), false).await.unwrap(),
        None
    );
    // A future that is dropped before it is ready harms nobody.
    for _ in 0..50 {
        let read = transaction.get(&rig.key("a"), false);
        drop(read);
    }
    assert_eq!(
        text(&transaction, &rig.key("a"), false).await.unwrap(),
        None
    );
    // Reads that outlive their transaction fail, and are not lost.
    let read = rig.begin().get(&rig.key("a"), false);
    let ended = code(read.await);
    assert!(ended == 1025 || ended == 0, "{ended}");
}

pub(crate) async fn used_after_the_commit(rig: &mut Rig) {
    let transaction = rig.begin();
    transaction.set(&rig.key("a"), b"1");
    let committed = transaction.commit().await.unwrap();
    let version = committed.committed_version().unwrap();
    let transaction = committed.reset();
    assert!(transaction.get_read_version().await.unwrap() >= version);
    let twice = rig.begin();
    twice.set_read_version(version);
    twice.set_read_version(version);
    assert_eq!(code(twice.get(&rig.key("a"), true).await), 2010);
}
