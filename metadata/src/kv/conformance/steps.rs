//! Transactions as data, so that a check is a line of a table.

use super::super::{AtomicOp, Isolation, KvError, RangeLimit, Transaction};
use super::{key, range, short};

/// One call on a transaction. Names are below the suite's prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Get(&'static str),
    GetSnapshot(&'static str),
    /// Start, end, most pairs.
    Range(&'static str, &'static str, usize),
    /// The same from the end.
    RangeReverse(&'static str, &'static str, usize),
    RangeSnapshot(&'static str, &'static str, usize),
    Set(&'static str, u8),
    Clear(&'static str),
    ClearRange(&'static str, &'static str),
    Add(&'static str, u8),
    CompareAndClear(&'static str, u8),
    ReadConflict(&'static str, &'static str),
    WriteConflict(&'static str, &'static str),
}

/// What a step returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Nothing,
    Value(Option<Vec<u8>>),
    Pairs(Vec<(Vec<u8>, Vec<u8>)>, More),
}

/// Whether a page said that more may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum More {
    Yes,
    No,
}

impl Step {
    /// Makes the call.
    pub(super) async fn run(&self, transaction: &mut dyn Transaction) -> Result<Answer, KvError> {
        match *self {
            Self::Get(name) => get(transaction, name, Isolation::Serializable).await,
            Self::GetSnapshot(name) => get(transaction, name, Isolation::Snapshot).await,
            Self::Range(start, end, pairs) => {
                let limit = RangeLimit::pairs(pairs);
                page(transaction, (start, end), limit, Isolation::Serializable).await
            }
            Self::RangeReverse(start, end, pairs) => {
                let limit = RangeLimit {
                    reverse: true,
                    ..RangeLimit::pairs(pairs)
                };
                page(transaction, (start, end), limit, Isolation::Serializable).await
            }
            Self::RangeSnapshot(start, end, pairs) => {
                let limit = RangeLimit::pairs(pairs);
                page(transaction, (start, end), limit, Isolation::Snapshot).await
            }
            Self::Set(name, value) => {
                transaction.set(&key(name), &[value]);
                Ok(Answer::Nothing)
            }
            Self::Clear(name) => {
                transaction.clear(&key(name));
                Ok(Answer::Nothing)
            }
            Self::ClearRange(start, end) => {
                transaction.clear_range(&range(start, end));
                Ok(Answer::Nothing)
            }
            Self::Add(name, operand) => {
                transaction.atomic(AtomicOp::Add, &key(name), &[operand]);
                Ok(Answer::Nothing)
            }
            Self::CompareAndClear(name, operand) => {
                transaction.atomic(AtomicOp::CompareAndClear, &key(name), &[operand]);
                Ok(Answer::Nothing)
            }
            Self::ReadConflict(start, end) => {
                transaction.add_read_conflict_range(&range(start, end));
                Ok(Answer::Nothing)
            }
            Self::WriteConflict(start, end) => {
                transaction.add_write_conflict_range(&range(start, end));
                Ok(Answer::Nothing)
            }
        }
    }
}

async fn get(
    transaction: &dyn Transaction,
    name: &str,
    isolation: Isolation,
) -> Result<Answer, KvError> {
    let value = transaction.get(&key(name), isolation).await?;
    Ok(Answer::Value(value.map(|value| value.to_vec())))
}

async fn page(
    transaction: &dyn Transaction,
    (start, end): (&str, &str),
    limit: RangeLimit,
    isolation: Isolation,
) -> Result<Answer, KvError> {
    let page = transaction
        .get_range(&range(start, end), limit, isolation)
        .await?;
    let pairs = page.pairs.into_iter();
    let pairs = pairs.map(|(key, value)| (short(&key), value.to_vec()));
    let more = if page.more { More::Yes } else { More::No };
    Ok(Answer::Pairs(pairs.collect(), more))
}
