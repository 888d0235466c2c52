//! Each fault of the emulator. A real cluster does not do them to order.

use std::cell::RefCell;

use foundationdb::options::{ConflictRangeType, MutationType, TransactionOption};
use foundationdb::{FdbError, FdbResult, RangeOption, Transaction};
use futures_util::TryStreamExt;
use futures_util::future::join_all;

use crate::rig::{Rig, code, commit, pass, text};

/// All faults that do not depend on time, often.
const MANY: &str = "unknown-applied=10% unknown-dropped=10% conflict=5% too-old=3% future=3% behind=3% \
                    cut=50% jump=5%";

/// All faults.
const ALL: &str = "unknown-applied=5% unknown-dropped=5% conflict=5% too-old=2% future=2% behind=2% \
                   cut=50% jump=3% straggle=5%:60 delay=20%:10 unreachable=0.5%:40";

pub(crate) async fn applied_but_unknown(rig: &mut Rig) {
    let transaction = rig.begin();
    let stamp = transaction.get_versionstamp();
    let watch = transaction.watch(&rig.key("a"));
    transaction.set(&rig.key("a"), b"1");
    assert_eq!(commit(transaction).await, Err(1021));
    assert_eq!(code(stamp.await), 1021);
    assert_eq!(code(watch.await), 1021);
    assert_eq!(rig.value("a").await.as_deref(), Some("1"));
    assert_eq!(rig.emulator().count("unknown-applied"), 1);
}

pub(crate) async fn dropped_and_unknown(rig: &mut Rig) {
    let transaction = rig.begin();
    transaction.set(&rig.key("a"), b"1");
    assert_eq!(commit(transaction).await, Err(1021));
    assert_eq!(rig.value("a").await, None);
    rig.put(&[("a", "2")]).await;
    assert_eq!(rig.value("a").await.as_deref(), Some("2"));
}

pub(crate) async fn bursts_of_conflicts(rig: &mut Rig) {
    let mut outcomes = Vec::new();
    for number in 0..8 {
        let transaction = rig.begin();
        transaction.set(&rig.key(&number.to_string()), b"1");
        outcomes.push(commit(transaction).await.err().unwrap_or(0));
    }
    let failed = outcomes.iter().filter(|code| **code == 1020).count();
    assert!((2..=4).contains(&failed), "{outcomes:?}");
    assert_eq!(outcomes[..3], [0, 1020, 1020], "{outcomes:?}");
    assert_eq!(
        outcomes[1 + failed..].iter().sum::<i32>(),
        0,
        "{outcomes:?}"
    );
    assert_eq!(rig.value("1").await, None);
}

pub(crate) async fn too_old(rig: &mut Rig) {
    let transaction = rig.begin();
    assert_eq!(code(text(&transaction, &rig.key("a"), false).await), 1007);
    let transaction = transaction
        .on_error(FdbError::from_code(1007))
        .await
        .unwrap();
    assert_eq!(code(text(&transaction, &rig.key("a"), false).await), 0);
    transaction.set(&rig.key("a"), b"1");
    assert_eq!(commit(transaction).await, Err(1007));
    assert_eq!(rig.value("a").await, None);
}

pub(crate) async fn of_the_future_and_behind(rig: &mut Rig) {
    let transaction = rig.begin();
    assert_eq!(code(transaction.get_read_version().await), 1009);
    assert_eq!(code(transaction.get_read_version().await), 0);
    assert_eq!(code(text(&transaction, &rig.key("a"), true).await), 1037);
    assert_eq!(code(text(&transaction, &rig.key("a"), true).await), 0);
    // And without a fault.
    let version = rig.put(&[("a", "")]).await;
    let early = rig.begin();
    early.set_read_version(version + 1_000_000_000);
    assert_eq!(code(early.get(&rig.key("a"), false).await), 1009);
}

pub(crate) async fn a_read_version_ages(rig: &mut Rig) {
    rig.put(&[("a", "1")]).await;
    let reader = rig.begin();
    assert_eq!(code(reader.get(&rig.key("a"), true).await), 0);
    let writer = rig.begin();
    assert_eq!(code(writer.get(&rig.key("a"), false).await), 0);
    writer.set(&rig.key("b"), b"");
    rig.emulator().tell("advance 4000");
    assert_eq!(code(reader.get(&rig.key("a"), true).await), 0);
    rig.emulator().tell("advance 2000");
    assert_eq!(code(reader.get(&rig.key("a"), true).await), 1007);
    assert_eq!(commit(writer).await, Err(1007));
}

/// A commit that its client has given up.
async fn give_up(rig: &Rig, transaction: Transaction) {
    transaction.set(&rig.key("late"), b"1");
    transaction
        .set_option(TransactionOption::Timeout(50))
        .unwrap();
    assert_eq!(commit(transaction).await, Err(1031));
    assert_eq!(rig.value("late").await, None);
}

pub(crate) async fn a_straggler_lands_after_the_timeout(rig: &mut Rig) {
    give_up(rig, rig.begin()).await;
    for _ in 0..1000 {
        if rig.value("late").await.is_some() {
            return;
        }
        pass(10).await;
    }
    panic!("it never lands");
}

pub(crate) async fn a_straggler_is_fenced(rig: &mut Rig) {
    rig.put(&[("fence", "1")]).await;
    let transaction = rig.begin();
    text(&transaction, &rig.key("fence"), false).await.unwrap();
    give_up(rig, transaction).await;
    rig.put(&[("fence", "2")]).await;
    assert_eq!(rig.emulator().count("straggle"), 1);
    pass(600).await;
    assert_eq!(rig.value("late").await, None);
}

pub(crate) async fn answers_come_late_and_out_of_order(rig: &mut Rig) {
    let names: Vec<String> = (0..30).map(|number| format!("{number:02}")).collect();
    let pairs: Vec<(&str, &str)> = names.iter().map(|name| (&**name, &**name)).collect();
    rig.put(&pairs).await;
    let transaction = rig.begin();
    let order = RefCell::new(Vec::new());
    let reads = names.iter().map(|name| {
        let read = transaction.get(&rig.key(name), false);
        let order = &order;
        async move {
            let value = read.await.unwrap().unwrap();
            assert_eq!(*value, *name.as_bytes());
            order.borrow_mut().push(name.clone());
        }
    });
    join_all(reads).await;
    let mut order = order.into_inner();
    assert_ne!(order, names);
    order.sort();
    assert_eq!(order, names);
}

pub(crate) async fn ranges_are_cut(rig: &mut Rig) {
    let names: Vec<String> = (0..40).map(|number| format!("{number:02}")).collect();
    let pairs: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "")).collect();
    rig.put(&pairs).await;
    for reverse in [false, true] {
        let transaction = rig.begin();
        let range = RangeOption {
            reverse,
            ..RangeOption::from((rig.key("0"), rig.key("9")))
        };
        let pages = transaction.get_ranges(range, false).try_collect::<Vec<_>>();
        let pages = pages.await.unwrap();
        let lengths: Vec<usize> = pages.iter().map(|page| page.len()).collect();
        assert!(lengths.iter().all(|length| *length <= 3), "{lengths:?}");
        assert!(
            lengths.iter().any(|length| *length != lengths[0]),
            "{lengths:?}"
        );
        assert_eq!(lengths.iter().sum::<usize>(), 40);
    }
}

pub(crate) async fn a_recovery_makes_versions_jump(rig: &mut Rig) {
    let old = rig.begin();
    let before = old.get_read_version().await.unwrap();
    old.add_conflict_range(&rig.key("a"), &rig.key("b"), ConflictRangeType::Read)
        .unwrap();
    old.set(&rig.key("a"), b"old");
    let after = rig.begin().get_read_version().await.unwrap();
    assert!(after >= before + 100_000_000, "{before} to {after}");
    assert_eq!(commit(old).await, Err(1007));
    let version = rig.put(&[("a", "new")]).await;
    assert!(version > after);
    assert_eq!(rig.value("a").await.as_deref(), Some("new"));
}

pub(crate) async fn a_watch_fires_for_nothing(rig: &mut Rig) {
    rig.put(&[("a", "1")]).await;
    let transaction = rig.begin();
    let watch = transaction.watch(&rig.key("a"));
    commit(transaction).await.unwrap();
    assert_eq!(code(watch.await), 0);
    assert_eq!(rig.value("a").await.as_deref(), Some("1"));
}

pub(crate) async fn unreachable_for_a_while(rig: &mut Rig) {
    rig.put(&[("a", "1")]).await;
    let mut transaction = rig.begin_with([TransactionOption::Timeout(60)]);
    let read = transaction.get(&rig.key("a"), false);
    assert_eq!(code(read.await), 1031);
    transaction.reset();
    assert_eq!(
        code(transaction.get(&rig.key("a"), false).await),
        0,
        "it waits"
    );
}

pub(crate) async fn a_lost_server(rig: &mut Rig) {
    let transaction = rig.begin();
    transaction.set(&rig.key("a"), b"1");
    let stamp = transaction.get_versionstamp();
    let committing = transaction.commit();
    // It has arrived when a later call is answered.
    assert_eq!(rig.value("a").await, None);
    rig.emulator = None;
    let failed = committing.await.err().map(FdbError::from);
    assert_eq!(failed.map(FdbError::code), Some(1021));
    assert_eq!(code(stamp.await), 1021);
    let mut transaction = rig.begin();
    let patience = TransactionOption::Timeout(150);
    transaction.set_option(patience).unwrap();
    // It waits for the cluster, and begins anew if it was reached just before it went.
    let ended = loop {
        let read = transaction.get(&rig.key("a"), false).await;
        let error = read.err().unwrap();
        match transaction.on_error(error).await {
            Ok(again) => transaction = again,
            Err(error) => break error.code(),
        }
    };
    assert_eq!(ended, 1031);
    // For the clearing at the end.
    *rig = Rig::start(1, "none");
}

/// What happens to a client that does the same calls, one after another.
async fn log(seed: u64) -> Vec<String> {
    let rig = Rig::start(seed, MANY);
    let mut log = Vec::new();
    for number in 0..150_u32 {
        let name = (number % 7).to_string();
        let transaction = rig.begin();
        let version = transaction.get_read_version().await.map_err(FdbError::code);
        let range = RangeOption::from((rig.key(""), rig.key("9")));
        let page = transaction.get_range(&range, 1, false).await;
        let page = page
            .map(|page| (page.len(), page.more()))
            .map_err(FdbError::code);
        transaction.set(&rig.key(&name), &number.to_le_bytes());
        log.push(format!(
            "{version:?} {page:?} {:?}",
            commit(transaction).await
        ));
    }
    log
}

pub(crate) async fn a_seed_repeats_itself(_: &mut Rig) {
    let first = log(5).await;
    assert_eq!(first, log(5).await);
    assert_ne!(first, log(6).await);
    let all = first.join("\n");
    for seen in [
        "Err(1021)",
        "Err(1020)",
        "Err(1007)",
        "Err(1009)",
        "Err(1037)",
        "(1, true)",
    ] {
        assert!(all.contains(seen), "{seen} never happens");
    }
}

/// Adds one and leaves a mark, unless the mark is there from an attempt that was thought lost.
async fn add_once(rig: &Rig, transaction: &Transaction, mark: &[u8]) -> FdbResult<()> {
    if transaction.get(mark, false).await?.is_none() {
        transaction.set(mark, b"");
        let one = 1_u64.to_le_bytes();
        transaction.atomic_op(&rig.key("count"), &one, MutationType::Add);
    }
    Ok(())
}

pub(crate) async fn counts_survive_everything(_: &mut Rig) {
    for seed in 0..3 {
        let mut rig = Rig::start(seed, ALL);
        let shared = &rig;
        let tasks = (0..5).map(async |task| {
            for number in 0..20 {
                let mark = shared.key(&format!("marks/{task}/{number:02}"));
                let mut transaction = shared.begin();
                loop {
                    let error = match add_once(shared, &transaction, &mark).await {
                        Ok(()) => match transaction.commit().await {
                            Ok(_) => break,
                            Err(error) => {
                                transaction = error.on_error().await.unwrap();
                                continue;
                            }
                        },
                        Err(error) => error,
                    };
                    transaction = transaction.on_error(error).await.unwrap();
                }
            }
        });
        join_all(tasks).await;
        rig.emulator().tell("faults none");
        let reader = rig.begin();
        let count = reader.get(&rig.key("count"), false).await.unwrap().unwrap();
        assert_eq!(*count, 100_u64.to_le_bytes(), "seed {seed}");
        let marks = RangeOption::from((rig.key("marks/"), rig.key("marks0")));
        let marks = reader
            .get_ranges_keyvalues(marks, false)
            .try_collect::<Vec<_>>();
        assert_eq!(marks.await.unwrap().len(), 100, "seed {seed}");
    }
}
