//! Reads: values, ranges, selectors.

use foundationdb::options::StreamingMode;
use foundationdb::{KeySelector, RangeOption};
use futures_util::TryStreamExt;

use crate::rig::{Rig, code, text};

/// The names of the keys of a range read, without the case's prefix.
async fn names(rig: &Rig, option: RangeOption<'_>) -> Vec<String> {
    let transaction = rig.begin();
    let pairs = transaction.get_ranges_keyvalues(option, false);
    let pairs: Vec<_> = pairs.try_collect().await.unwrap();
    let name = |key: &[u8]| String::from_utf8(key[rig.prefix.len()..].to_vec()).unwrap();
    pairs.iter().map(|pair| name(pair.key())).collect()
}

fn range(rig: &Rig, from: &str, to: &str) -> RangeOption<'static> {
    RangeOption::from((rig.key(from), rig.key(to)))
}

pub(crate) async fn values_and_absence(rig: &mut Rig) {
    rig.put(&[("a", "1"), ("empty", "")]).await;
    assert_eq!(rig.value("a").await.as_deref(), Some("1"));
    assert_eq!(rig.value("empty").await.as_deref(), Some(""));
    assert_eq!(rig.value("b").await, None);
    let transaction = rig.begin();
    transaction.clear(&rig.key("a"));
    assert!(transaction.commit().await.is_ok());
    assert_eq!(rig.value("a").await, None);
}

pub(crate) async fn own_writes_are_read_back(rig: &mut Rig) {
    rig.put(&[("a", "1"), ("b", "2"), ("c", "3")]).await;
    let transaction = rig.begin();
    transaction.set(&rig.key("a"), b"new");
    transaction.clear(&rig.key("b"));
    transaction.set(&rig.key("bb"), b"added");
    for snapshot in [false, true] {
        let value = async |name| text(&transaction, &rig.key(name), snapshot).await.unwrap();
        assert_eq!(value("a").await.as_deref(), Some("new"));
        assert_eq!(value("b").await, None);
        let pairs = transaction
            .get_range(&range(rig, "a", "z"), 1, snapshot)
            .await
            .unwrap();
        let values: Vec<&[u8]> = pairs
            .iter()
            .map(foundationdb::future::FdbKeyValue::value)
            .collect();
        assert_eq!(values, [&b"new"[..], b"added", b"3"]);
        assert!(!pairs.more());
    }
    drop(transaction);
    assert_eq!(
        rig.value("a").await.as_deref(),
        Some("1"),
        "nothing was committed"
    );
}

pub(crate) async fn ranges_forwards_backwards_and_limited(rig: &mut Rig) {
    rig.put(&[("a", ""), ("b", "x"), ("c", ""), ("d", "")])
        .await;
    assert_eq!(names(rig, range(rig, "a", "d")).await, ["a", "b", "c"]);
    assert_eq!(
        names(rig, range(rig, "a", "d").rev()).await,
        ["c", "b", "a"]
    );
    assert_eq!(names(rig, range(rig, "b", "b")).await, [""; 0]);
    let limited = RangeOption {
        limit: Some(2),
        ..range(rig, "a", "z")
    };
    assert_eq!(names(rig, limited.clone()).await, ["a", "b"]);
    assert_eq!(names(rig, limited.rev()).await, ["d", "c"]);
}

pub(crate) async fn every_mode_reads_a_long_range_whole(rig: &mut Rig) {
    let transaction = rig.begin();
    for number in 0..500 {
        transaction.set(&rig.key(&format!("{number:04}")), &[b'v'; 100]);
    }
    assert!(transaction.commit().await.is_ok());
    for mode in [
        StreamingMode::WantAll,
        StreamingMode::Iterator,
        StreamingMode::Small,
        StreamingMode::Medium,
        StreamingMode::Large,
        StreamingMode::Serial,
    ] {
        let option = RangeOption {
            mode,
            ..range(rig, "0", "9")
        };
        let all = names(rig, option.clone()).await;
        assert_eq!(all.len(), 500, "{mode:?}");
        assert!(all.is_sorted());
        let mut backwards = names(rig, option.rev()).await;
        backwards.reverse();
        assert_eq!(all, backwards, "{mode:?}");
    }
    let transaction = rig.begin();
    let small = RangeOption {
        mode: StreamingMode::Small,
        ..range(rig, "0", "9")
    };
    let page = transaction.get_range(&small, 1, true).await.unwrap();
    assert!(page.more() && !page.is_empty() && page.len() < 100);
    let exact = RangeOption {
        mode: StreamingMode::Exact,
        limit: Some(400),
        ..range(rig, "0", "9")
    };
    assert_eq!(
        transaction.get_range(&exact, 1, true).await.unwrap().len(),
        400
    );
}

pub(crate) async fn selectors(rig: &mut Rig) {
    rig.put(&[("b", ""), ("d", ""), ("f", "")]).await;
    let transaction = rig.begin();
    // Own writes count too.
    transaction.set(&rig.key("h"), b"");
    transaction.clear(&rig.key("d"));
    let at =
        |name: &str, or_equal, offset| KeySelector::new(rig.key(name).into(), or_equal, offset);
    for (selector, expected) in [
        (at("b", false, 1), "b"),
        (at("b", true, 1), "f"),
        (at("c", false, 1), "f"),
        (at("b", true, 0), "b"),
        (at("g", false, 0), "f"),
        (at("h", false, 0), "f"),
        (at("h", false, -1), "b"),
        (at("a", false, 3), "h"),
        (at("z", true, -2), "b"),
    ] {
        for snapshot in [true, false] {
            let key = transaction.get_key(&selector, snapshot).await.unwrap();
            let found = String::from_utf8_lossy(&key).into_owned();
            assert_eq!(*key, *rig.key(expected), "{selector:?} gives {found}");
        }
    }
    let from = RangeOption {
        begin: at("z", false, -1),
        end: at("b", true, 3),
        ..RangeOption::default()
    };
    let page = transaction.get_range(&from, 1, false).await.unwrap();
    let keys: Vec<&[u8]> = page
        .iter()
        .map(foundationdb::future::FdbKeyValue::key)
        .collect();
    assert_eq!(keys.first().copied(), Some(&rig.key("f")[..]));
    if rig.emulator.is_some() {
        // Nothing else is in the cluster.
        let past = transaction.get_key(&at("h", true, 5), true).await.unwrap();
        assert_eq!(*past, *b"\xff");
        let before = transaction
            .get_key(&at("b", false, -3), true)
            .await
            .unwrap();
        assert_eq!(*before, *b"");
    }
}

pub(crate) async fn keys_outside_are_refused(rig: &mut Rig) {
    let transaction = rig.begin();
    assert_eq!(code(transaction.get(b"\xff\x01", false).await), 2004);
    assert_eq!(code(transaction.get(b"a", true).await), 0, "reads go on");
    transaction.set(b"\xff\x01", b"");
    let committed = crate::rig::commit(transaction).await;
    assert_eq!(committed, Err(2004));
}

pub(crate) async fn wrong_range_reads_are_refused(rig: &mut Rig) {
    let transaction = rig.begin();
    let exact = RangeOption {
        mode: StreamingMode::Exact,
        ..range(rig, "a", "b")
    };
    assert_eq!(code(transaction.get_range(&exact, 1, false).await), 2210);
    let iterator = RangeOption {
        mode: StreamingMode::Iterator,
        ..range(rig, "a", "b")
    };
    assert_eq!(code(transaction.get_range(&iterator, 0, false).await), 2000);
    transaction.clear_range(&rig.key("b"), &rig.key("a"));
    assert_eq!(code(transaction.get(&rig.key("a"), false).await), 2005);
}
