//! What a transaction sees.

use super::super::{AtomicOp, Isolation, KeyRange, RangeLimit};
use super::{PREFIX, Subject, key, outcome, pairs, range, short};

pub(super) async fn own_writes_are_read_back(subject: &Subject) {
    subject
        .put(&[("a", b"1"), ("b", b"2"), ("c", b"3"), ("n", &[5, 0])])
        .await;
    let mut transaction = subject.begin();
    transaction.set(&key("a"), b"own");
    transaction.clear(&key("b"));
    transaction.clear_range(&range("c", "d"));
    transaction.set(&key("cc"), b"after the clear");
    transaction.atomic(AtomicOp::Add, &key("n"), &[1, 0]);
    transaction.atomic(AtomicOp::Add, &key("c"), &[9]);
    let expected: [(&str, Option<&[u8]>); 6] = [
        ("a", Some(b"own")),
        ("b", None),
        ("c", Some(&[9])),
        ("cc", Some(b"after the clear")),
        ("n", Some(&[6, 0])),
        ("nothing", None),
    ];
    for (name, expected) in expected {
        for isolation in [Isolation::Serializable, Isolation::Snapshot] {
            let value = transaction.get(&key(name), isolation).await.expect("get");
            assert_eq!(value.as_deref(), expected, "own {name}");
        }
    }
    transaction.commit().await.expect("commit");
    for (name, expected) in expected {
        assert_eq!(subject.value(name).await.as_deref(), expected, "{name}");
    }
}

pub(super) async fn nothing_shows_before_the_commit(subject: &Subject) {
    subject.put(&[("a", b"old")]).await;
    let reader = subject.begin();
    let before = reader.read_version().await.expect("read version");
    let mut dropped = subject.begin();
    dropped.set(&key("a"), b"dropped");
    drop(dropped);
    let mut writer = subject.begin();
    writer.set(&key("a"), b"new");
    assert_eq!(subject.value("a").await.as_deref(), Some(&b"old"[..]));
    let committed = writer.commit().await.expect("commit");
    assert!(committed.version > before);
    assert_eq!(subject.value("a").await.as_deref(), Some(&b"new"[..]));
    let again = reader.get(&key("a"), Isolation::Serializable).await;
    let again = again.expect("get at the old version");
    assert_eq!(again.as_deref(), Some(&b"old"[..]), "reads repeat");
    assert_eq!(reader.read_version().await.expect("read version"), before);
    let read_only = reader.commit().await.expect("a read-only commit succeeds");
    assert_eq!(read_only.version, before);
}

pub(super) async fn range_reads_merge_stored_and_own_pairs(subject: &Subject) {
    let stored: Vec<String> = (0..20).map(|n| format!("k{n:02}")).collect();
    let stored: Vec<(&str, &[u8])> = stored.iter().map(|name| (&**name, &b"s"[..])).collect();
    subject.put(&stored).await;
    let mut transaction = subject.begin();
    transaction.set(&key("k03"), b"o");
    transaction.set(&key("k035"), b"o");
    transaction.clear(&key("k05"));
    transaction.clear_range(&range("k07", "k10"));
    transaction.set(&key("k08"), b"o");
    transaction.set(&key("j"), b"o");
    transaction.set(&key("z"), b"o");
    transaction.atomic(AtomicOp::CompareAndClear, &key("k11"), b"s");
    transaction.atomic(AtomicOp::ByteMax, &key("k12"), b"t");
    transaction.atomic(AtomicOp::CompareAndClear, &key("x"), b"s");
    let expected: Vec<(Vec<u8>, Vec<u8>)> = [
        "j:o", "k00:s", "k01:s", "k02:s", "k03:o", "k035:o", "k04:s", "k06:s", "k08:o", "k10:s",
        "k12:t", "k13:s", "k14:s", "k15:s", "k16:s", "k17:s", "k18:s", "k19:s", "z:o",
    ]
    .iter()
    .filter_map(|pair| pair.split_once(':'))
    .map(|(name, value)| (name.into(), value.into()))
    .collect();
    let everything = KeyRange::prefix(PREFIX);
    let all = pairs(&*transaction, &everything, RangeLimit::pairs(100)).await;
    assert_eq!(all, expected);
    let backwards = RangeLimit {
        reverse: true,
        ..RangeLimit::pairs(100)
    };
    let mut reversed = pairs(&*transaction, &everything, backwards).await;
    reversed.reverse();
    assert_eq!(reversed, expected, "backwards");
    let part = pairs(&*transaction, &range("k035", "k12"), RangeLimit::pairs(100)).await;
    let inside = expected
        .iter()
        .filter(|(name, _)| (&b"k035"[..]..&b"k12"[..]).contains(&name.as_slice()));
    assert_eq!(part, inside.cloned().collect::<Vec<_>>(), "part");
    let empty = pairs(&*transaction, &range("k", "k"), RangeLimit::pairs(100)).await;
    assert!(empty.is_empty());
    transaction.commit().await.expect("commit");
    assert_eq!(subject.all().await, expected, "committed");
}

pub(super) async fn pages_continue_where_they_ended(subject: &Subject) {
    let names: Vec<String> = (0..25).map(|n| format!("p{n:02}")).collect();
    let stored: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &[7; 100][..])).collect();
    subject.put(&stored).await;
    let transaction = subject.begin();
    let by_bytes = RangeLimit {
        bytes: 300,
        ..RangeLimit::pairs(usize::MAX)
    };
    let one_byte = RangeLimit {
        bytes: 1,
        ..RangeLimit::pairs(3)
    };
    for limit in [RangeLimit::pairs(4), by_bytes, one_byte] {
        for reverse in [false, true] {
            let limit = RangeLimit { reverse, ..limit };
            let mut rest = KeyRange::prefix(PREFIX);
            let mut seen = Vec::new();
            loop {
                let page = transaction
                    .get_range(&rest, limit, Isolation::Serializable)
                    .await
                    .expect("get range");
                assert!(page.pairs.len() <= limit.pairs);
                assert!(page.pairs.len() < 20, "the page is cut");
                seen.extend(page.pairs.iter().map(|(key, _)| short(key)));
                if !page.more {
                    break;
                }
                let (last, _) = page.pairs.last().expect("a page that is cut has a pair");
                if reverse {
                    rest.end = last.clone();
                } else {
                    rest.start = KeyRange::key(last).end;
                }
            }
            if reverse {
                seen.reverse();
            }
            let expected: Vec<Vec<u8>> = names.iter().map(|name| name.clone().into()).collect();
            assert_eq!(seen, expected, "{limit:?}");
        }
    }
}

pub(super) async fn atomic_operations_apply_in_order(subject: &Subject) {
    subject
        .put(&[
            ("add", &[250]),
            ("max", &[3]),
            ("min", &[3]),
            ("gone", b"x"),
        ])
        .await;
    let mut transaction = subject.begin();
    for _ in 0..3 {
        transaction.atomic(AtomicOp::Add, &key("add"), &[2, 0]);
    }
    transaction.atomic(AtomicOp::Max, &key("max"), &[2]);
    transaction.atomic(AtomicOp::Max, &key("max"), &[9]);
    transaction.atomic(AtomicOp::Min, &key("min"), &[7]);
    transaction.atomic(AtomicOp::Min, &key("min"), &[1]);
    transaction.atomic(AtomicOp::CompareAndClear, &key("gone"), b"x");
    transaction.atomic(AtomicOp::Add, &key("gone"), &[1]);
    transaction.atomic(AtomicOp::Add, &key("new"), &[4]);
    transaction.set(&key("set"), &[1]);
    transaction.atomic(AtomicOp::Add, &key("set"), &[1]);
    outcome(transaction).await.expect("commit");
    let expected: [(&str, &[u8]); 6] = [
        ("add", &[0, 1]),
        ("max", &[9]),
        ("min", &[1]),
        ("gone", &[1]),
        ("new", &[4]),
        ("set", &[2]),
    ];
    for (name, expected) in expected {
        assert_eq!(
            subject.value(name).await.as_deref(),
            Some(expected),
            "{name}"
        );
    }
}
