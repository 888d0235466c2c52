//! Who conflicts with whom.

use super::super::{AtomicOp, Isolation, KvError};
use super::steps::Step::{
    Add, Clear, ClearRange, CompareAndClear, Get, GetSnapshot, Range, RangeReverse, RangeSnapshot,
    ReadConflict, Set, WriteConflict,
};
use super::steps::{Answer, Step};
use super::{Subject, key};

/// Whether a transaction commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    Commits,
    Conflicts,
}

/// One transaction runs its steps, then another commits its own, then the first commits.
struct Case {
    /// What the first does. It also sets an unrelated key, so that it is checked at all.
    first: &'static [Step],
    /// What the other does in between.
    other: &'static [Step],
    /// How the first ends.
    ends: Ends,
}

const fn case(first: &'static [Step], other: &'static [Step], ends: Ends) -> Case {
    Case { first, other, ends }
}

use Ends::{Commits, Conflicts};

/// Stored before each case: b, d, f, h, all 1.
const STORED: &[&str] = &["b", "d", "f", "h"];

const CASES: &[Case] = &[
    // A key.
    case(&[Get("b")], &[Set("b", 2)], Conflicts),
    case(&[Get("b")], &[Set("c", 2)], Commits),
    case(&[Get("b")], &[Clear("b")], Conflicts),
    case(&[Get("b")], &[ClearRange("a", "c")], Conflicts),
    case(&[Get("b")], &[ClearRange("b\0", "z")], Commits),
    case(&[Get("b")], &[Add("b", 1)], Conflicts),
    case(&[Get("b")], &[WriteConflict("a", "c")], Conflicts),
    // The same value again is a write.
    case(&[Get("b")], &[Set("b", 1)], Conflicts),
    // A key that is not there.
    case(&[Get("c")], &[Set("c", 1)], Conflicts),
    case(&[Get("c")], &[Clear("c")], Conflicts),
    case(&[Get("c")], &[CompareAndClear("c", 9)], Conflicts),
    // Snapshot reads are not checked.
    case(&[GetSnapshot("b")], &[Set("b", 2)], Commits),
    case(&[RangeSnapshot("a", "z", 9)], &[Set("c", 2)], Commits),
    case(&[GetSnapshot("b"), Get("b")], &[Set("b", 2)], Conflicts),
    // Blind writes never conflict.
    case(&[Set("b", 3)], &[Set("b", 2)], Commits),
    case(&[Clear("b")], &[Set("b", 2)], Commits),
    case(&[ClearRange("a", "z")], &[Set("b", 2)], Commits),
    case(&[Add("b", 3)], &[Set("b", 2)], Commits),
    case(&[Add("b", 3)], &[Add("b", 2)], Commits),
    // Reading back what was written.
    case(&[Set("b", 3), Get("b")], &[Set("b", 2)], Commits),
    case(&[Clear("b"), Get("b")], &[Set("b", 2)], Commits),
    case(&[ClearRange("a", "c"), Get("b")], &[Set("b", 2)], Commits),
    case(
        &[Set("b", 3), Add("b", 1), Get("b")],
        &[Set("b", 2)],
        Commits,
    ),
    case(
        &[ClearRange("a", "c"), Add("b", 1), Get("b")],
        &[Set("b", 2)],
        Commits,
    ),
    // ... which depends on the stored value after an atomic operation.
    case(&[Add("b", 3), Get("b")], &[Set("b", 2)], Conflicts),
    case(&[Add("b", 3), GetSnapshot("b")], &[Set("b", 2)], Commits),
    // A read before the own write counts.
    case(&[Get("b"), Set("b", 3)], &[Set("b", 2)], Conflicts),
    // Ranges: changes, phantoms, removals, and what lies outside.
    case(&[Range("a", "e", 9)], &[Set("b", 2)], Conflicts),
    case(&[Range("a", "e", 9)], &[Set("c", 2)], Conflicts),
    case(&[Range("a", "e", 9)], &[Clear("d")], Conflicts),
    case(&[Range("a", "e", 9)], &[Clear("c")], Conflicts),
    case(&[Range("a", "e", 9)], &[Set("a", 2)], Conflicts),
    case(&[Range("a", "e", 9)], &[Set("e", 2)], Commits),
    case(&[Range("a", "e", 9)], &[ClearRange("e", "z")], Commits),
    case(&[Range("a", "e", 9)], &[ClearRange("d\0", "z")], Conflicts),
    case(&[Range("i", "j", 9)], &[Set("ii", 2)], Conflicts),
    // Only the part that was returned counts: to its last key if the page was cut.
    case(&[Range("a", "z", 2)], &[Set("d", 2)], Conflicts),
    case(&[Range("a", "z", 2)], &[Set("c", 2)], Conflicts),
    case(&[Range("a", "z", 2)], &[Set("d\0", 2)], Commits),
    case(&[Range("a", "z", 2)], &[Set("f", 2)], Commits),
    case(&[Range("a", "z", 9)], &[Set("y", 2)], Conflicts),
    case(&[RangeReverse("a", "z", 2)], &[Set("f", 2)], Conflicts),
    case(&[RangeReverse("a", "z", 2)], &[Set("y", 2)], Conflicts),
    case(&[RangeReverse("a", "z", 2)], &[Set("e", 2)], Commits),
    case(&[RangeReverse("a", "z", 2)], &[Set("d", 2)], Commits),
    case(&[RangeReverse("a", "z", 9)], &[Set("a", 2)], Conflicts),
    // Own writes inside a range that is read.
    case(&[Set("b", 3), Range("a", "e", 9)], &[Set("b", 2)], Commits),
    case(
        &[Set("b", 3), Range("a", "e", 9)],
        &[Set("d", 2)],
        Conflicts,
    ),
    case(
        &[Set("b", 3), Range("a", "e", 9)],
        &[Set("b\0", 2)],
        Conflicts,
    ),
    case(
        &[Add("b", 3), Range("a", "e", 9)],
        &[Set("b", 2)],
        Conflicts,
    ),
    case(
        &[ClearRange("a", "c"), Range("a", "e", 9)],
        &[Set("b", 2)],
        Commits,
    ),
    case(
        &[ClearRange("a", "c"), Range("a", "e", 9)],
        &[Set("c", 2)],
        Conflicts,
    ),
    case(
        &[ClearRange("c", "z"), Range("a", "z", 1)],
        &[Set("c", 2)],
        Commits,
    ),
    // Explicit ranges.
    case(&[ReadConflict("a", "c")], &[Set("b", 2)], Conflicts),
    case(&[ReadConflict("a", "c")], &[Set("c", 2)], Commits),
    case(&[ReadConflict("b", "b")], &[Set("b", 2)], Commits),
    case(
        &[Set("b", 3), ReadConflict("a", "c")],
        &[Set("b", 2)],
        Commits,
    ),
    case(
        &[Set("b", 3), ReadConflict("a", "c")],
        &[Set("a", 2)],
        Conflicts,
    ),
    case(
        &[ReadConflict("a", "c"), Set("b", 3)],
        &[Set("b", 2)],
        Conflicts,
    ),
    case(
        &[ReadConflict("a", "c")],
        &[WriteConflict("b", "z")],
        Conflicts,
    ),
    case(&[WriteConflict("a", "c")], &[Set("b", 2)], Commits),
    // Both read and write the same key.
    case(
        &[Get("b"), Set("b", 3)],
        &[Get("b"), Set("b", 2)],
        Conflicts,
    ),
];

pub(super) async fn table(subject: &Subject) {
    for (index, case) in CASES.iter().enumerate() {
        let stored: Vec<(&str, &[u8])> = STORED.iter().map(|name| (*name, &[1][..])).collect();
        subject.clear_all().await;
        subject.put(&stored).await;
        let told = format!("case {index}: {:?}, {:?}", case.first, case.other);
        let mut first = subject.begin();
        first.read_version().await.expect("read version");
        run(case.first, &mut *first).await;
        let mut other = subject.begin();
        run(case.other, &mut *other).await;
        other.commit().await.expect("the other commits");
        first.set(&key("unrelated"), b"");
        let ends = match first.commit().await {
            Ok(_) => Commits,
            Err(KvError::Conflict) => Conflicts,
            Err(error) => unreachable!("{told}: {error}"),
        };
        assert_eq!(ends, case.ends, "{told}");
    }
}

async fn run(steps: &[Step], transaction: &mut dyn super::super::Transaction) -> Vec<Answer> {
    let mut answers = Vec::new();
    for step in steps {
        answers.push(step.run(transaction).await.expect("step"));
    }
    answers
}

pub(super) async fn write_skew_is_refused(subject: &Subject) {
    subject
        .put(&[("on-call/1", b"y"), ("on-call/2", b"y")])
        .await;
    let mut first = subject.begin();
    let mut second = subject.begin();
    for transaction in [&first, &second] {
        let staff = super::range("on-call/", "on-call0");
        let limit = super::RangeLimit::pairs(10);
        let staff = transaction.get_range(&staff, limit, Isolation::Serializable);
        assert_eq!(staff.await.expect("get range").pairs.len(), 2);
    }
    first.clear(&key("on-call/1"));
    second.clear(&key("on-call/2"));
    first.commit().await.expect("commit");
    assert_eq!(super::outcome(second).await, Err(KvError::Conflict));
    assert_eq!(subject.all().await.len(), 1);
}

/// Increments by reading and writing, with retries, all at once.
pub(super) async fn concurrent_increments_all_count(subject: &Subject) {
    const WRITERS: u64 = 8;
    const EACH: u64 = 10;
    let increment = || async {
        loop {
            let mut transaction = subject.begin();
            let value = transaction.get(&key("n"), Isolation::Serializable).await;
            let value = value.expect("get").map_or(0, |value| number(&value));
            transaction.set(&key("n"), &(value + 1).to_le_bytes());
            match super::outcome(transaction).await {
                Ok(()) => return,
                Err(error) => assert_eq!(error, KvError::Conflict),
            }
        }
    };
    let writer = || async {
        for _ in 0..EACH {
            increment().await;
        }
    };
    futures_util::future::join_all((0..WRITERS).map(|_| writer())).await;
    let total = subject.value("n").await.map(|value| number(&value));
    assert_eq!(total, Some(WRITERS * EACH));
}

/// Additions need no retry.
pub(super) async fn concurrent_blind_additions_all_count(subject: &Subject) {
    const WRITERS: u64 = 40;
    let add = || async {
        let mut transaction = subject.begin();
        transaction.atomic(AtomicOp::Add, &key("n"), &1_u64.to_le_bytes());
        transaction.commit().await.expect("a blind write commits")
    };
    let commits = futures_util::future::join_all((0..WRITERS).map(|_| add())).await;
    let total = subject.value("n").await.map(|value| number(&value));
    assert_eq!(total, Some(WRITERS));
    let mut stamps: Vec<[u8; 10]> = commits.iter().map(|committed| committed.stamp).collect();
    stamps.sort_unstable();
    stamps.dedup();
    assert_eq!(
        stamps.len(),
        commits.len(),
        "every commit has its own stamp"
    );
}

fn number(value: &[u8]) -> u64 {
    value.try_into().map_or(0, u64::from_le_bytes)
}
