//! The loop against a store with faults.

use base::{ManualClock, SystemClock, Tasks, Timestamp};
use parking_lot::Mutex;

use super::*;
use crate::kv::faulty::{FaultRates, FaultyKv};
use crate::kv::memory::MemoryKv;

fn transactor(kv: Arc<dyn Kv>) -> Transactor {
    let rng = Arc::new(Rng::seeded(1));
    Transactor::new(kv, Arc::new(SystemClock::new()), rng)
}

fn memory() -> MemoryKv {
    MemoryKv::new(Arc::new(SystemClock::new()))
}

/// Sets a key, blindly.
async fn set(on: &Transactor, budget: Budget, key: &[u8]) -> Result<Committed, KvError> {
    on.transact_at(budget, |transaction, _| {
        Box::pin(async move {
            transaction.set(key, b"");
            Ok(())
        })
    })
    .await
    .map(|((), committed)| committed)
}

/// Adds one to a counter, exactly once for each id.
async fn increment(on: &Transactor, id: &str) -> Result<u64, KvError> {
    let budget = Budget {
        attempts_max: 1000,
        ..Budget::default()
    };
    let record = format!("done/{id}").into_bytes();
    let record = &record;
    on.transact(budget, |transaction, earlier| {
        Box::pin(async move {
            if earlier == Earlier::Unknown
                && let Some(result) = transaction.get(record, Isolation::Serializable).await?
            {
                return Ok(number(&result));
            }
            let value = transaction.get(b"n", Isolation::Serializable).await?;
            let value = value.map_or(0, |value| number(&value)) + 1;
            transaction.set(b"n", &value.to_le_bytes());
            transaction.set(record, &value.to_le_bytes());
            Ok(value)
        })
    })
    .await
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().unwrap())
}

#[tokio::test]
async fn every_increment_counts_once_whatever_fails() {
    let inner = memory();
    let faulty = FaultyKv::new(Arc::new(inner.clone()), 3, FaultRates::all(40));
    let on = transactor(Arc::new(faulty.clone()));
    let tasks = Tasks::new();
    for task in 0..4 {
        let on = on.clone();
        tasks.spawn(async move {
            for index in 0..25 {
                increment(&on, &format!("{task}/{index}")).await.unwrap();
            }
        });
    }
    tasks.join().await;
    faulty.set_rates(FaultRates::default());
    let stored = inner.dump();
    let (_, total) = stored.iter().find(|(key, _)| **key == *b"n").unwrap();
    assert_eq!(number(total), 100);
    assert_eq!(stored.len(), 101);
}

#[tokio::test]
async fn the_flag_stays_after_an_unknown_outcome() {
    let faulty = FaultyKv::new(Arc::new(memory()), 0, FaultRates::default());
    let on = transactor(Arc::new(faulty.clone()));
    let seen = Mutex::new(Vec::new());
    let fate = |unknown_applied, conflict| FaultRates {
        unknown_applied,
        conflict,
        ..FaultRates::default()
    };
    let (faulty, seen_by) = (&faulty, &seen);
    let result: Result<(), KvError> = on
        .transact(Budget::default(), |transaction, earlier| {
            Box::pin(async move {
                let attempt = seen_by.lock().len();
                seen_by.lock().push(earlier);
                // First unknown though applied, then a conflict, then well.
                faulty.set_rates(match attempt {
                    0 => fate(1000, 0),
                    1 => fate(0, 1000),
                    _ => fate(0, 0),
                });
                transaction.set(b"a", b"");
                Ok(())
            })
        })
        .await;
    assert_eq!(result, Ok(()));
    let expected = [Earlier::Failed, Earlier::Unknown, Earlier::Unknown];
    assert_eq!(*seen.lock(), expected);
}

#[tokio::test]
async fn the_budget_bounds_the_loop() {
    let conflict = FaultRates {
        conflict: 1000,
        ..FaultRates::default()
    };
    let unknown = FaultRates {
        unknown_not_applied: 1000,
        ..FaultRates::default()
    };
    let few = Budget {
        attempts_max: 3,
        ..Budget::default()
    };
    let short = Budget {
        attempts_max: u32::MAX,
        time_max: Duration::from_millis(20),
    };
    let cases = [
        (conflict, KvError::Conflict),
        (unknown, KvError::OutcomeUnknown),
    ];
    for (rates, expected) in cases {
        for budget in [few, short] {
            let faulty = FaultyKv::new(Arc::new(memory()), 0, rates);
            let on = transactor(Arc::new(faulty.clone()));
            assert_eq!(set(&on, budget, b"a").await, Err(expected.clone()));
            if budget == few {
                assert_eq!(faulty.commits(), 3);
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Refused {
    Kv(KvError),
    Exists,
}

impl From<KvError> for Refused {
    fn from(error: KvError) -> Self {
        Self::Kv(error)
    }
}

impl TransactError for Refused {
    fn as_kv(&self) -> Option<&KvError> {
        match self {
            Self::Kv(error) => Some(error),
            Self::Exists => None,
        }
    }
}

#[tokio::test]
async fn errors_that_nothing_heals_end_the_loop_at_once() {
    let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
    let kv = MemoryKv::new(clock.clone());
    // The clock stands still, so that any pause would hang.
    let on = Transactor::new(Arc::new(kv.clone()), clock, Arc::new(Rng::seeded(0)));
    let create = async || {
        on.transact(Budget::default(), |transaction, _| {
            Box::pin(async move {
                let found = transaction.get(b"a", Isolation::Serializable).await?;
                if found.is_some() {
                    return Err(Refused::Exists);
                }
                transaction.set(b"a", b"");
                Ok(())
            })
        })
        .await
    };
    assert_eq!(create().await, Ok(()));
    assert_eq!(create().await, Err(Refused::Exists));
    kv.set_available_bytes(Some(0));
    let full = set(&on, Budget::default(), b"b").await;
    assert_eq!(full, Err(KvError::NoSpace));
    let refused = set(&on, Budget::default(), b"\xff").await;
    assert!(matches!(refused, Err(KvError::Limit(_))));
}

#[tokio::test]
async fn the_commit_version_is_told() {
    let kv = memory();
    let on = transactor(Arc::new(kv.clone()));
    let committed = set(&on, Budget::default(), b"a").await.unwrap();
    assert_eq!(committed.version, kv.version());
}
