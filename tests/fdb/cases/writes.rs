//! Writes: atomic operations, versionstamps, limits.

use foundationdb::options::{MutationType, TransactionOption};

use crate::rig::{Rig, code, commit};

pub(crate) async fn atomic_operations(rig: &mut Rig) {
    let number = |value: u32| value.to_le_bytes();
    rig.put(&[("gone", "x"), ("kept", "y"), ("text", "b")])
        .await;
    let key = rig.key("n");
    for _ in 0..3 {
        let transaction = rig.begin();
        transaction.atomic_op(&key, &number(300), MutationType::Add);
        transaction.atomic_op(&rig.key("max"), &number(7), MutationType::Max);
        transaction.atomic_op(&rig.key("min"), &number(7), MutationType::Min);
        commit(transaction).await.unwrap();
    }
    let transaction = rig.begin();
    transaction.atomic_op(&key, &number(1), MutationType::Add);
    transaction.atomic_op(&rig.key("max"), &number(256), MutationType::Max);
    transaction.atomic_op(&rig.key("min"), &number(256), MutationType::Min);
    transaction.atomic_op(&rig.key("text"), b"a", MutationType::ByteMax);
    transaction.atomic_op(&rig.key("gone"), b"x", MutationType::CompareAndClear);
    transaction.atomic_op(&rig.key("kept"), b"x", MutationType::CompareAndClear);
    let own = transaction.get(&key, false).await.unwrap().unwrap();
    assert_eq!(*own, number(901), "read back");
    commit(transaction).await.unwrap();
    let reader = rig.begin();
    for (name, expected) in [
        ("n", Some(&number(901)[..])),
        ("max", Some(&number(256))),
        ("min", Some(&number(7))),
        ("text", Some(b"b")),
        ("gone", None),
        ("kept", Some(b"y")),
    ] {
        let value = reader.get(&rig.key(name), false).await.unwrap();
        assert_eq!(value.as_deref(), expected, "{name}");
    }
}

pub(crate) async fn sizes_are_limited(rig: &mut Rig) {
    let long_key = [&rig.prefix[..], &[b'k'; 10_000]].concat();
    let cases: [(&[u8], usize, Result<(), i32>); 4] = [
        (&long_key[..10_000], 1, Ok(())),
        (&long_key[..10_001], 1, Err(2102)),
        (&long_key[..100], 100_000, Ok(())),
        (&long_key[..100], 100_001, Err(2103)),
    ];
    for (key, bytes, expected) in cases {
        let transaction = rig.begin();
        transaction.set(key, &vec![b'v'; bytes]);
        let outcome = commit(transaction).await.map(drop);
        assert_eq!(outcome, expected, "{} and {bytes}", key.len());
    }
    let transaction = rig.begin();
    for number in 0..101 {
        transaction.set(&rig.key(&number.to_string()), &[b'v'; 100_000]);
    }
    assert_eq!(commit(transaction).await, Err(2101));
    assert_eq!(rig.value("0").await, None);
    // What waits for a commit that is refused before it is sent fails with it.
    let transaction = rig.begin();
    transaction.set(&long_key, b"");
    let stamp = transaction.get_versionstamp();
    assert_eq!(commit(transaction).await, Err(2102));
    assert_eq!(code(stamp.await), 2102);
}

pub(crate) async fn a_size_limit_is_kept(rig: &mut Rig) {
    for (bytes, expected) in [(100, Ok(())), (5000, Err(2101))] {
        let transaction = rig.begin_with([TransactionOption::SizeLimit(4000)]);
        transaction.set(&rig.key("a"), &vec![b'v'; bytes]);
        let size = transaction.get_approximate_size().await.unwrap();
        assert!(size >= i64::try_from(bytes).unwrap(), "{size}");
        assert_eq!(commit(transaction).await.map(drop), expected);
    }
    let refused = rig.begin().set_option(TransactionOption::SizeLimit(10));
    assert_eq!(code(refused), 2006);
}

pub(crate) async fn versionstamps(rig: &mut Rig) {
    let transaction = rig.begin();
    let stamp = transaction.get_versionstamp();
    let mut key = rig.key("k/");
    let offset = u32::try_from(key.len()).unwrap();
    key.extend([0; 10]);
    key.extend(offset.to_le_bytes());
    transaction.atomic_op(&key, b"by key", MutationType::SetVersionstampedKey);
    let value = [&[b'<'][..], &[0; 10], b">", &1_u32.to_le_bytes()].concat();
    transaction.atomic_op(&rig.key("v"), &value, MutationType::SetVersionstampedValue);
    let version = commit(transaction).await.unwrap();
    let stamp = stamp.await.unwrap();
    assert_eq!(stamp[..8], version.to_be_bytes());
    let reader = rig.begin();
    let key = [&rig.key("k/")[..], &stamp].concat();
    let by_key = reader.get(&key, false).await.unwrap();
    assert_eq!(by_key.as_deref(), Some(&b"by key"[..]));
    let value = reader.get(&rig.key("v"), false).await.unwrap();
    assert_eq!(
        value.as_deref(),
        Some(&[b"<", &stamp[..], b">"].concat()[..])
    );
    // A place outside the operand.
    let transaction = rig.begin();
    let wrong = [&[0; 10][..], &1_u32.to_le_bytes()].concat();
    transaction.atomic_op(&rig.key("v"), &wrong, MutationType::SetVersionstampedValue);
    assert_eq!(commit(transaction).await, Err(2000));
}

pub(crate) async fn stamped_writes_cannot_be_read(rig: &mut Rig) {
    let transaction = rig.begin();
    let operand = [&[0; 10][..], &0_u32.to_le_bytes()].concat();
    transaction.atomic_op(
        &rig.key("v"),
        &operand,
        MutationType::SetVersionstampedValue,
    );
    assert_eq!(code(transaction.get(&rig.key("v"), true).await), 1036);
    assert_eq!(code(transaction.get(&rig.key("w"), true).await), 0);
    commit(transaction).await.unwrap();
}
