//! Random transactions, interleaved, against a serial execution.

use std::collections::BTreeMap;

use base::Rng;

use super::super::{KvError, Transaction, Version};
use super::Subject;
use super::steps::{Answer, More, Step};

/// Transactions that run at a time.
const RUNNING: u64 = 4;

/// Steps of all transactions of one seed.
const STEPS: usize = 600;

/// Seeds, each a history of its own.
const SEEDS: u64 = 12;

/// Few and close, so that transactions meet.
const NAMES: &[&str] = &["a", "b", "c", "ca", "cb", "d", "e", "f"];

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A transaction and what it did so far.
struct Running {
    transaction: Box<dyn Transaction>,
    read_version: Version,
    steps: Vec<(Step, Answer)>,
}

/// Every state of the store, by the version that made it and the place in its batch.
struct History {
    states: Vec<([u8; 10], Map)>,
}

impl History {
    fn newest(&self) -> &Map {
        self.states.last().map(|(_, map)| map).expect("never empty")
    }

    /// The state that a read at `version` sees.
    fn at(&self, version: Version) -> &Map {
        let states = self.states.iter().rev();
        let mut made =
            states.filter(|(stamp, _)| stamp.split_at(8).0 <= &version.0.to_be_bytes()[..]);
        made.next().map(|(_, map)| map).expect("never empty")
    }
}

pub(super) async fn transactions_are_serializable(subject: &Subject) {
    let mut committed = 0_usize;
    let mut conflicts = 0_usize;
    for seed in 0..SEEDS {
        subject.clear_all().await;
        let (some, others) = run_seed(subject, seed).await;
        committed += some;
        conflicts += others;
    }
    assert!(committed > 100 && conflicts > 20, "{committed} {conflicts}");
}

async fn run_seed(subject: &Subject, seed: u64) -> (usize, usize) {
    let rng = Rng::seeded(seed);
    // Nothing to write is a read-only commit; its version is that of the cleared store.
    let start = subject.put(&[]).await;
    let mut history = History {
        states: vec![(stamp_of(start.version), Map::new())],
    };
    let mut running: Vec<Running> = Vec::new();
    let mut conflicts = 0;
    for _ in 0..STEPS {
        let slot = rng.u64() % RUNNING;
        let slot = usize::try_from(slot).unwrap_or(0);
        let Some(mut one) = (slot < running.len()).then(|| running.swap_remove(slot)) else {
            let transaction = subject.begin();
            let read_version = transaction.read_version().await.expect("read version");
            running.push(Running {
                transaction,
                read_version,
                steps: Vec::new(),
            });
            continue;
        };
        if !rng.u64().is_multiple_of(6) {
            let step = random_step(&rng);
            let answer = step.run(&mut *one.transaction).await.expect("step");
            one.steps.push((step, answer));
            running.push(one);
            continue;
        }
        let told = format!("seed {seed}: {:?}", one.steps);
        check_reads(&one, history.at(one.read_version), Which::All, &told);
        match one.transaction.commit().await {
            Err(error) => {
                assert_eq!(error, KvError::Conflict, "{told}");
                conflicts += 1;
            }
            Ok(result) if result.stamp == [0; 10] => assert_eq!(result.version, one.read_version),
            Ok(result) => {
                // What it read must still be true at the moment it took effect.
                let after = replay(&one.steps, history.newest(), Which::Serializable, &told);
                history.states.push((result.stamp, after));
            }
        }
        let expected: Vec<_> = history.newest().clone().into_iter().collect();
        assert_eq!(subject.all().await, expected, "{told}");
    }
    (history.states.len(), conflicts)
}

/// Which answers a replay compares.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    All,
    Serializable,
}

fn check_reads(one: &Running, state: &Map, which: Which, told: &str) {
    replay(&one.steps, state, which, told);
}

/// Runs the steps alone on `state`, compares their answers, and gives the state after.
fn replay(steps: &[(Step, Answer)], state: &Map, which: Which, told: &str) -> Map {
    let mut state = state.clone();
    for (step, answer) in steps {
        let expected = apply(step, &mut state);
        let snapshot = matches!(step, Step::GetSnapshot(_) | Step::RangeSnapshot(..));
        if which == Which::All || !snapshot {
            assert_eq!(*answer, expected, "{step:?} of {told}");
        }
    }
    state
}

fn apply(step: &Step, state: &mut Map) -> Answer {
    match *step {
        Step::Get(name) | Step::GetSnapshot(name) => {
            return Answer::Value(state.get(name.as_bytes()).cloned());
        }
        Step::Range(start, end, pairs) | Step::RangeSnapshot(start, end, pairs) => {
            let found = part(state, start, end);
            let more = if found.len() >= pairs {
                More::Yes
            } else {
                More::No
            };
            return Answer::Pairs(found.into_iter().take(pairs).collect(), more);
        }
        Step::RangeReverse(start, end, pairs) => {
            let found = part(state, start, end);
            let more = if found.len() >= pairs {
                More::Yes
            } else {
                More::No
            };
            return Answer::Pairs(found.into_iter().rev().take(pairs).collect(), more);
        }
        Step::Set(name, value) => {
            state.insert(name.into(), vec![value]);
        }
        Step::Clear(name) => {
            state.remove(name.as_bytes());
        }
        Step::ClearRange(start, end) => {
            state.retain(|name, _| !(start.as_bytes()..end.as_bytes()).contains(&name.as_slice()));
        }
        Step::Add(name, operand) => {
            let value = state.entry(name.into()).or_insert_with(|| vec![0]);
            *value = vec![value.first().map_or(0, |byte| byte.wrapping_add(operand))];
        }
        Step::CompareAndClear(name, operand) => {
            if state
                .get(name.as_bytes())
                .is_some_and(|value| **value == [operand])
            {
                state.remove(name.as_bytes());
            }
        }
        Step::ReadConflict(..) | Step::WriteConflict(..) => {}
    }
    Answer::Nothing
}

fn part(state: &Map, start: &str, end: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    state
        .range(start.as_bytes().to_vec()..end.as_bytes().to_vec())
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn random_step(rng: &Rng) -> Step {
    let pick = |count: u64| usize::try_from(rng.u64() % count).unwrap_or(0);
    let names = u64::try_from(NAMES.len()).unwrap_or(1);
    let name = || NAMES.get(pick(names)).copied().unwrap_or("a");
    let ends = || {
        let (one, other) = (name(), name());
        (one.min(other), one.max(other))
    };
    let value = || u8::try_from(rng.u64() % 4).unwrap_or(0);
    match pick(14) {
        0 | 1 => Step::Get(name()),
        2 => Step::GetSnapshot(name()),
        3 => {
            let (start, end) = ends();
            Step::Range(start, end, pick(3) + 1)
        }
        4 => {
            let (start, end) = ends();
            Step::RangeReverse(start, end, pick(3) + 1)
        }
        5 => {
            let (start, end) = ends();
            Step::RangeSnapshot(start, end, pick(3) + 1)
        }
        6..=8 => Step::Set(name(), value()),
        9 => Step::Clear(name()),
        10 => {
            let (start, end) = ends();
            Step::ClearRange(start, end)
        }
        11 | 12 => Step::Add(name(), value()),
        _ => Step::CompareAndClear(name(), value()),
    }
}

fn stamp_of(version: Version) -> [u8; 10] {
    let mut stamp = [0; 10];
    let (high, _) = stamp.split_at_mut(8);
    high.copy_from_slice(&version.0.to_be_bytes());
    stamp
}
