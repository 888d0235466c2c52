//! Watches.

use futures_util::FutureExt;

use crate::rig::{Rig, code, commit};

pub(crate) async fn fire_when_the_value_changes(rig: &mut Rig) {
    rig.put(&[("a", "1")]).await;
    let transaction = rig.begin();
    let watch = transaction.watch(&rig.key("a"));
    let of_own_write = {
        transaction.set(&rig.key("b"), b"own");
        transaction.watch(&rig.key("b"))
    };
    commit(transaction).await.unwrap();
    rig.put(&[("other", "")]).await;
    rig.put(&[("a", "1")]).await;
    let mut watch = Box::pin(watch.fuse());
    assert!((&mut watch).now_or_never().is_none(), "the same value");
    rig.put(&[("a", "2")]).await;
    assert_eq!(code(watch.await), 0);
    rig.put(&[("b", "another")]).await;
    assert_eq!(code(of_own_write.await), 0);
    // What changed between the read version and the commit fires at once.
    let transaction = rig.begin();
    let late = transaction.watch(&rig.key("a"));
    transaction.get_read_version().await.unwrap();
    rig.put(&[("a", "3")]).await;
    commit(transaction).await.unwrap();
    assert_eq!(code(late.await), 0);
}

pub(crate) async fn fail_with_their_transaction(rig: &mut Rig) {
    rig.put(&[("a", "1")]).await;
    let mut transaction = rig.begin();
    let watch = transaction.watch(&rig.key("a"));
    transaction.reset();
    assert_eq!(code(watch.await), 1025);
    let watch = transaction.watch(&rig.key("a"));
    drop(transaction);
    assert_eq!(code(watch.await), 1025);
    let transaction = rig.begin();
    transaction.get(&rig.key("a"), false).await.unwrap();
    transaction.set(&rig.key("a"), b"3");
    let watch = transaction.watch(&rig.key("a"));
    rig.put(&[("a", "2")]).await;
    assert_eq!(commit(transaction).await, Err(1020));
    assert_eq!(code(watch.await), 1020);
}
