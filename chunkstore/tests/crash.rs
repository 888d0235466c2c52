//! The local store in processes of its own: killed at any time, and on a device that is full.
//!
//! A test that needs such a process starts this binary again with the name of a child test and a
//! directory in the environment. Without the directory the child tests do nothing.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use base::{ChunkId, DomainId, SystemClock, Tasks};
use bytes::Bytes;
use chunkstore::local::{LocalOptions, LocalStore, Marked, PACK_BYTES_MIN, Thoroughness};
use chunkstore::{ChunkError, ChunkStore, Domain};

const DIR_VARIABLE: &str = "CHUNKSTORE_TEST_DIR";
const ROUND_VARIABLE: &str = "CHUNKSTORE_TEST_ROUND";
const KILL_ROUNDS: u64 = 20;
const WRITERS: u64 = 4;

const DOMAIN: Domain = Domain {
    id: DomainId::new(1),
    key: [1; 32],
};

fn open(dir: &Path, reserve_bytes: u64) -> LocalStore {
    let options = LocalOptions {
        pack_bytes: PACK_BYTES_MIN,
        reserve_bytes,
        ..LocalOptions::default()
    };
    LocalStore::open(dir, options, Arc::new(SystemClock::new())).expect("open the store")
}

/// Random content of up to 64 KiB, half of it made compressible.
fn content(seed: u64) -> Bytes {
    let hash = blake3::hash(&seed.to_be_bytes());
    let len = 1 + usize::from(u16::from_be_bytes([hash.as_bytes()[0], hash.as_bytes()[1]]));
    let mut bytes = vec![0; len];
    let random = if seed.is_multiple_of(2) { len } else { len / 4 };
    blake3::Hasher::new_keyed(hash.as_bytes())
        .finalize_xof()
        .fill(bytes.split_at_mut(random).0);
    bytes.into()
}

fn child_dir() -> Option<PathBuf> {
    std::env::var_os(DIR_VARIABLE).map(PathBuf::from)
}

/// Stores chunks until it is killed, and prints the seeds of those that are durable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_is_killed() {
    let Some(dir) = child_dir() else { return };
    let round: u64 = std::env::var(ROUND_VARIABLE).unwrap().parse().unwrap();
    let store = open(&dir, 0);
    let tasks = Tasks::new();
    for writer in 0..WRITERS {
        let store = store.clone();
        tasks.spawn(async move {
            let first = (round * WRITERS + writer) << 32;
            for batch in 0.. {
                let seeds: Vec<_> = (0..1 + batch % 4).map(|n| first + batch * 4 + n).collect();
                for seed in &seeds {
                    store.put(DOMAIN, content(*seed)).await.unwrap();
                }
                store.sync().await.unwrap();
                let mut out = std::io::stdout().lock();
                for seed in seeds {
                    writeln!(out, "durable {seed}").unwrap();
                }
                out.flush().unwrap();
            }
        });
    }
    tasks.join().await;
}

/// What was acknowledged after a sync is there after a kill, whenever that comes.
///
/// A kill keeps the page cache, so this shows that acknowledged chunks were written, not that
/// they were flushed.
#[tokio::test]
async fn acknowledged_chunks_survive_kills() {
    let dir = tempfile::tempdir().unwrap();
    let mut durable = Vec::new();
    for round in 0..KILL_ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_is_killed", "--nocapture"])
            .env(DIR_VARIABLE, dir.path())
            .env(ROUND_VARIABLE, round.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Killed after a number of lines that differs from round to round; what it printed
        // meanwhile counts too.
        let lines_wanted = 1 + round * 13 % 97;
        let mut lines = 0;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            let Some((_, seed)) = line.split_once("durable ") else {
                continue;
            };
            durable.push(seed.parse::<u64>().unwrap());
            lines += 1;
            if lines == lines_wanted {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(lines >= lines_wanted, "the child ended early");

        let store = open(dir.path(), 0);
        for seed in &durable {
            let content = content(*seed);
            let read = store.get(DOMAIN, DOMAIN.chunk_id(&content)).await;
            assert!(read.as_ref() == Ok(&content), "round {round}, seed {seed}");
        }
        let summary = store.verify(|_| ());
        assert_eq!((summary.damaged, summary.unreadable_packs), (0, 0));
        assert!(summary.intact >= u64::try_from(durable.len()).unwrap());
    }
}

/// Stores chunks and collects without pause until it is killed. Says of each chunk when it is
/// durable, and when it is given up, before it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_is_killed_while_it_collects() {
    let Some(dir) = child_dir() else { return };
    let round: u64 = std::env::var(ROUND_VARIABLE).unwrap().parse().unwrap();
    let store = open(&dir, 0);
    let mut live: Vec<u64> = Vec::new();
    let say = |what: &str, seeds: &[u64]| {
        let mut out = std::io::stdout().lock();
        for seed in seeds {
            writeln!(out, "{what} {seed}").unwrap();
        }
        out.flush().unwrap();
    };
    for batch in 0.. {
        let hold = store.hold();
        let seeds: Vec<_> = (0..60).map(|n| (round << 32) + batch * 60 + n).collect();
        for seed in &seeds {
            store.put(DOMAIN, content(*seed)).await.unwrap();
        }
        store.sync().await.unwrap();
        live.extend(&seeds);
        drop(hold);
        say("durable", &seeds);
        let (kept, dropped) = live.iter().partition(|seed| *seed % 3 == batch % 3);
        live = kept;
        say("dropped", &dropped);
        let marking = store.begin_collection().unwrap().try_settled().unwrap();
        for seed in &live {
            let id = DOMAIN.chunk_id(&content(*seed));
            assert_eq!(marking.mark(DOMAIN.id, id), Marked::Stored);
        }
        let mut sweep = marking.sweep(Thoroughness::High).await.unwrap();
        while sweep.step().await.unwrap().is_some() {
            say("step", &[batch]);
        }
    }
}

/// What was durable and not given up is there after a kill in the middle of a collection.
#[tokio::test]
async fn live_chunks_survive_kills_of_collections() {
    let mut steps_seen = 0;
    for round in 0..KILL_ROUNDS {
        // Each round begins with nothing: the child knows only what it stored itself.
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "child_that_is_killed_while_it_collects",
                "--nocapture",
            ])
            .env(DIR_VARIABLE, dir.path())
            .env(ROUND_VARIABLE, round.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let steps_wanted = 1 + round % 7;
        let (mut live, mut steps) = (std::collections::BTreeSet::new(), 0);
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["durable", seed] => drop(live.insert(seed.parse::<u64>().unwrap())),
                ["dropped", seed] => drop(live.remove(&seed.parse().unwrap())),
                ["step", _] => {
                    steps += 1;
                    if steps == steps_wanted {
                        child.kill().unwrap();
                    }
                }
                _ => {}
            }
        }
        child.wait().unwrap();
        assert!(steps >= steps_wanted, "the child ended early");
        steps_seen += steps;
        let store = open(dir.path(), 0);
        assert!(!live.is_empty());
        for seed in live {
            let content = content(seed);
            let read = store.get(DOMAIN, DOMAIN.chunk_id(&content)).await;
            assert!(read.as_ref() == Ok(&content), "round {round}, seed {seed}");
        }
        let summary = store.verify(|_| ());
        assert_eq!((summary.damaged, summary.unreadable_packs), (0, 0));
    }
    assert!(steps_seen >= KILL_ROUNDS);
}

/// Fills a small device, makes room, and goes on.
#[tokio::test]
async fn child_on_a_small_device() {
    let Some(dir) = child_dir() else { return };
    let ballast = dir.join("ballast");
    std::fs::write(&ballast, vec![0; 2 << 20]).unwrap();
    let store = open(&dir.join("packs"), 1 << 20);
    let clock = SystemClock::new();
    let mut stored: HashMap<ChunkId, Bytes> = HashMap::new();
    let mut seeds = 0..;
    for room in [true, false] {
        for seed in seeds.by_ref() {
            let content = content(seed);
            match store.put(DOMAIN, content.clone()).await {
                Ok(id) => stored.insert(id, content),
                Err(error) => {
                    assert_eq!(error, ChunkError::NoSpace);
                    let absent = store.get(DOMAIN, DOMAIN.chunk_id(&content)).await;
                    assert!(matches!(absent, Err(ChunkError::NotFound(_))));
                    break;
                }
            };
        }
        assert_eq!(store.available_bytes(), Some(0));
        store.sync().await.unwrap();
        assert_all(&store, &stored).await;
        if room {
            std::fs::remove_file(&ballast).unwrap();
            base::Clock::sleep(&clock, std::time::Duration::from_millis(150)).await;
            assert!(store.available_bytes().unwrap() > 0);
        }
    }
    drop(store);
    let store = open(&dir.join("packs"), 0);
    assert_all(&store, &stored).await;
    let summary = store.verify(|_| ());
    assert_eq!((summary.damaged, summary.unreadable_packs), (0, 0));
    println!("small device passed with {} chunks", stored.len());
}

async fn assert_all(store: &LocalStore, stored: &HashMap<ChunkId, Bytes>) {
    for (id, content) in stored {
        assert!(store.get(DOMAIN, *id).await.as_ref() == Ok(content));
    }
}

#[test]
fn a_full_tmpfs_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=8m none \"$1\"";
    let namespace = |script: &str| {
        let mut command = Command::new("unshare");
        command
            .args([
                "--user",
                "--map-root-user",
                "--mount",
                "sh",
                "-c",
                script,
                "sh",
            ])
            .arg(dir.path())
            .arg(std::env::current_exe().unwrap());
        command.output()
    };
    if !namespace(mount).is_ok_and(|output| output.status.success()) {
        println!("skipped: cannot mount a tmpfs in a namespace of its own");
        return;
    }
    let script = format!(
        "{mount} && {DIR_VARIABLE}=\"$1\" exec \"$2\" --exact child_on_a_small_device --nocapture"
    );
    let output = namespace(&script).unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.contains("small device passed"), "{out}");
}
