//! Every store against the one suite, and against crashes.

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::sync::Arc;
    use std::time::Duration;

    use base::{Clock, ManualClock, Rng, SystemClock, Timestamp};
    use metadata::kv::conformance::{Subject, suite};
    use metadata::kv::embedded::{EmbeddedKv, EmbeddedOptions};
    use metadata::kv::faulty::{CrashPoint, FaultRates, FaultyKv};
    use metadata::kv::memory::MemoryKv;
    use metadata::kv::{AtomicOp, Isolation, Kv, KvError, Version};
    use metadata::transact::{Budget, Earlier, Transactor};

    /// Where the process to be killed finds its store.
    const CHILD_STORE: &str = "CONFORMANCE_CHILD_STORE";

    /// Processes killed.
    const KILLS: u32 = 20;

    /// Longest life of a process before it is killed, in milliseconds.
    const LIFE_MS_MAX: u64 = 250;

    /// Writers of such a process.
    const WRITERS: u8 = 8;

    fn manual_clock() -> Arc<ManualClock> {
        Arc::new(ManualClock::new(Timestamp::EPOCH))
    }

    fn embedded(path: &Path, clock: Arc<dyn Clock>) -> EmbeddedKv {
        let options = EmbeddedOptions {
            keeps_size: true,
            ..EmbeddedOptions::default()
        };
        EmbeddedKv::open(path, &options, clock).unwrap()
    }

    #[tokio::test]
    async fn memory() {
        suite(async || {
            let clock = manual_clock();
            Subject {
                kv: Arc::new(MemoryKv::new(clock.clone())),
                clock: Some(clock),
            }
        })
        .await;
    }

    /// Each check finds what the one before left, in a store that was reopened.
    #[tokio::test]
    async fn memory_reopened() {
        let clock = manual_clock();
        let last = std::cell::RefCell::new(MemoryKv::new(clock.clone()));
        suite(async || {
            let reopened = last.borrow().reopen();
            last.replace(reopened.clone());
            Subject {
                kv: Arc::new(reopened),
                clock: Some(clock.clone()),
            }
        })
        .await;
    }

    #[tokio::test]
    async fn embedded_reopened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.kv");
        suite(async || {
            let clock = manual_clock();
            Subject {
                kv: Arc::new(embedded(&path, clock.clone())),
                clock: Some(clock),
            }
        })
        .await;
    }

    /// Several threads on one store, in real time.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn embedded_in_real_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.kv");
        let kv: Arc<dyn Kv> = Arc::new(embedded(&path, Arc::new(SystemClock::new())));
        suite(async || Subject {
            kv: Arc::clone(&kv),
            clock: None,
        })
        .await;
    }

    async fn number(kv: &dyn Kv, key: &[u8]) -> u64 {
        let value = kv.begin().get(key, Isolation::Serializable).await.unwrap();
        value.map_or(0, |value| {
            u64::from_le_bytes(value.as_ref().try_into().unwrap())
        })
    }

    /// The process that is killed. Does nothing unless it was started to be.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn crash_child() {
        let Some(path) = std::env::var_os(CHILD_STORE) else {
            return;
        };
        let kv = Arc::new(embedded(Path::new(&path), Arc::new(SystemClock::new())));
        let tasks = base::Tasks::new();
        for writer in 0..WRITERS {
            let kv = Arc::clone(&kv);
            tasks.spawn(async move {
                loop {
                    let count = count_up(&*kv, writer).await;
                    // One write, so that a kill does not tear a line from the middle.
                    let line = format!("acknowledged {writer} {count}\n");
                    std::io::stderr().write_all(line.as_bytes()).unwrap();
                }
            });
        }
        tasks.join().await;
    }

    /// Raises the writer's counter and its copy, and the sum of all.
    async fn count_up(kv: &dyn Kv, writer: u8) -> u64 {
        let (counter, copy) = ([b'c', writer], [b'd', writer]);
        let mut transaction = kv.begin();
        let value = transaction
            .get(&counter, Isolation::Serializable)
            .await
            .unwrap();
        let value = value.map_or(0, |value| {
            u64::from_le_bytes(value.as_ref().try_into().unwrap())
        });
        let next = (value + 1).to_le_bytes();
        transaction.set(&counter, &next);
        transaction.set(&copy, &next);
        transaction.atomic(AtomicOp::Add, b"sum", &1_u64.to_le_bytes());
        transaction.commit().await.unwrap();
        value + 1
    }

    /// What was acknowledged is there after `kill -9`, and of every transaction all or nothing.
    #[tokio::test]
    async fn acknowledged_commits_survive_kills() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.kv");
        let clock = SystemClock::new();
        let rng = Rng::seeded(9);
        let mut acknowledged = [0_u64; 8];
        let mut version = Version(0);
        for kill in 0..KILLS {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "tests::crash_child", "--nocapture"])
                .env(CHILD_STORE, &path)
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            clock
                .sleep(Duration::from_millis(rng.u64() % LIFE_MS_MAX))
                .await;
            child.kill().unwrap();
            let mut told = String::new();
            child
                .stderr
                .take()
                .unwrap()
                .read_to_string(&mut told)
                .unwrap();
            assert!(!child.wait().unwrap().success());
            for line in told.lines() {
                let words: Vec<&str> = line.split(' ').collect();
                let ["acknowledged", writer, count] = words[..] else {
                    panic!("kill {kill}: the process said {line}");
                };
                acknowledged[writer.parse::<usize>().unwrap()] = count.parse().unwrap();
            }
            let kv = embedded(&path, Arc::new(SystemClock::new()));
            let now = kv.begin().read_version().await.unwrap();
            assert!(now >= version, "kill {kill}: versions go backwards");
            version = now;
            let mut sum = 0;
            for writer in 0..WRITERS {
                let count = number(&kv, &[b'c', writer]).await;
                let known = acknowledged[usize::from(writer)];
                assert!(
                    count >= known,
                    "kill {kill}: {known} was acknowledged, {count} is there"
                );
                assert!(count <= known + 1, "kill {kill}: one at a time");
                assert_eq!(
                    number(&kv, &[b'd', writer]).await,
                    count,
                    "kill {kill}: torn"
                );
                acknowledged[usize::from(writer)] = count;
                sum += count;
            }
            assert_eq!(number(&kv, b"sum").await, sum, "kill {kill}: torn");
        }
        assert!(
            acknowledged.iter().all(|count| *count > 0),
            "{acknowledged:?}"
        );
    }

    /// Moves one between two accounts, exactly once for each id.
    async fn transfer(on: &Transactor, id: u64) -> Result<(), KvError> {
        let record = &[&b"done/"[..], &id.to_be_bytes()].concat();
        on.transact(Budget::default(), |transaction, earlier| {
            Box::pin(async move {
                let done = transaction.get(record, Isolation::Serializable).await?;
                if done.is_some() {
                    assert_eq!(
                        earlier,
                        Earlier::Unknown,
                        "only a retry finds its own record"
                    );
                    return Ok(());
                }
                transaction.set(record, b"");
                transaction.atomic(AtomicOp::Add, b"from", &u64::MAX.to_le_bytes());
                transaction.atomic(AtomicOp::Add, b"to", &1_u64.to_le_bytes());
                Ok(())
            })
        })
        .await
    }

    /// A crash on either side of every commit of a run: what was answered stays, what was not is
    /// settled by asking again.
    #[tokio::test]
    async fn crashes_at_every_commit_boundary() {
        const TRANSFERS: u64 = 6;
        for crash_at in 0..TRANSFERS {
            for point in [CrashPoint::Before, CrashPoint::After] {
                let clock = Arc::new(SystemClock::new());
                let mut memory = MemoryKv::new(clock.clone());
                let faulty = FaultyKv::new(Arc::new(memory.clone()), 0, FaultRates::default());
                let rng = Arc::new(Rng::seeded(crash_at));
                let on = Transactor::new(Arc::new(faulty.clone()), clock, rng);
                faulty.crash_at(crash_at, point);
                let short = async |id| {
                    let record = &[&b"done/"[..], &u64::to_be_bytes(id)].concat();
                    on.kv().begin().get(record, Isolation::Serializable).await
                };
                for id in 0..TRANSFERS {
                    if id == crash_at {
                        // The process that asked is gone as well; its successor asks again.
                        let mut lost = on.kv().begin();
                        lost.set(&[&b"done/"[..], &id.to_be_bytes()].concat(), b"");
                        lost.atomic(AtomicOp::Add, b"from", &u64::MAX.to_le_bytes());
                        lost.atomic(AtomicOp::Add, b"to", &1_u64.to_le_bytes());
                        assert_eq!(
                            lost.commit().await.map(|_| ()),
                            Err(KvError::OutcomeUnknown)
                        );
                        memory = memory.reopen();
                        faulty.revive(Arc::new(memory.clone()));
                        let made = short(id).await.unwrap().is_some();
                        assert_eq!(made, point == CrashPoint::After);
                        if made {
                            continue;
                        }
                    }
                    transfer(&on, id).await.unwrap();
                }
                assert_eq!(number(&memory, b"to").await, TRANSFERS);
                assert_eq!(
                    number(&memory, b"from").await,
                    0_u64.wrapping_sub(TRANSFERS)
                );
            }
        }
    }
}
