//! Several processes on one cluster.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use foundationdb::Database;

use crate::rig::{Rig, pass};

const TEST: &str = "tests::cluster";
const COUNTS: u64 = 30;

/// What another process does.
pub(crate) async fn play(role: &str, rig: &Rig) {
    match role {
        "count" => count(rig).await,
        "hold" => {
            let transaction = rig.begin();
            transaction.get(&rig.key("held"), false).await.unwrap();
            transaction.set(&rig.key("held"), b"never");
            let _watch = transaction.watch(&rig.key("held"));
            transaction.get(&rig.key("held"), false).await.unwrap();
            rig.put(&[("ready", "1")]).await;
            // Until it is killed, or its parent is gone.
            pass(30_000).await;
        }
        _ => panic!("no such role: {role}"),
    }
}

async fn count(rig: &Rig) {
    let key = rig.key("count");
    let key = key.as_slice();
    for _ in 0..COUNTS {
        let run = rig.db.run(async |transaction, _| {
            let value = transaction.get(key, false).await?;
            let count = value.map_or(0, |value| u64::from_le_bytes((*value).try_into().unwrap()));
            transaction.set(key, &(count + 1).to_le_bytes());
            Ok(())
        });
        run.await.unwrap();
    }
}

pub(crate) async fn two_processes_and_this_one_count_together(rig: &mut Rig) {
    let others = [0; 2].map(|_| other_process("count", rig));
    count(rig).await;
    for mut other in others {
        assert!(other.wait().unwrap().success());
    }
    let value = rig
        .begin()
        .get(&rig.key("count"), false)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(*value, (3 * COUNTS).to_le_bytes());
}

pub(crate) async fn a_killed_process_harms_nobody(rig: &mut Rig) {
    let mut other = other_process("hold", rig);
    for _ in 0..1000 {
        if rig.value("ready").await.is_some() {
            break;
        }
        pass(10).await;
    }
    assert!(rig.value("ready").await.is_some());
    other.kill().unwrap();
    assert!(!other.wait().unwrap().success());
    rig.put(&[("held", "mine")]).await;
    assert_eq!(rig.value("held").await.as_deref(), Some("mine"));
    if let Some(emulator) = &mut rig.emulator {
        for _ in 0..1000 {
            if emulator.count("transactions") == 0 {
                return;
            }
            pass(10).await;
        }
        panic!("its transaction is kept");
    }
}

/// Runs this test binary again for `role`, as another process with the same cluster.
fn other_process(role: &str, rig: &Rig) -> Child {
    let mut arguments: Vec<OsString> = vec![TEST.into(), "--exact".into()];
    arguments.push("--nocapture".into());
    Command::new(std::env::current_exe().unwrap())
        .args(arguments)
        .env("FDB_TESTS_ROLE", role)
        .env("FDB_TESTS_FILE", &rig.file)
        .env(
            "FDB_TESTS_PREFIX",
            String::from_utf8(rig.prefix.clone()).unwrap(),
        )
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// What another process is for, and its rig; `None` in the first one.
pub(crate) fn role() -> Option<(String, PathBuf, Vec<u8>)> {
    let role = std::env::var("FDB_TESTS_ROLE").ok()?;
    let file = std::env::var_os("FDB_TESTS_FILE").map(PathBuf::from)?;
    let prefix = std::env::var("FDB_TESTS_PREFIX").ok()?;
    Some((role, file, prefix.into_bytes()))
}

/// Does `work` as another process.
pub(crate) fn start<F: Future<Output = ()>>(
    file: &Path,
    prefix: Vec<u8>,
    work: impl FnOnce(Rig) -> F,
) {
    // SAFETY: the guard is dropped at the end of this function, and nothing forks.
    #[expect(unsafe_code, reason = "the crate's only way to start its network")]
    let network = unsafe { foundationdb::boot() };
    let db = Database::from_path(file.to_str().unwrap()).unwrap();
    let rig = Rig {
        db,
        prefix,
        emulator: None,
        file: file.to_owned(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(work(rig));
    drop(network);
}
