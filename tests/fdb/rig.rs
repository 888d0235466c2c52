//! A cluster to test with, and what every case needs of it.

use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::pin::Pin;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use foundationdb::options::TransactionOption;
use foundationdb::{Database, FdbError, FdbResult, Transaction};

/// The file of a real cluster.
const REAL: &str = "HOLDFAST_FDB_CLUSTER_FILE";

/// Runs only the cases whose name contains this.
const ONLY: &str = "HOLDFAST_FDB_CASE";

/// How long a case may take, whatever goes wrong: its transactions fail after it.
const PATIENCE_MS: i32 = 20_000;

/// How long a case may take in all.
const CASE_MS_MAX: u64 = 60_000;

/// A future of a case.
pub(crate) type Running<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A case: its name, the faults it wants, what it does.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) faults: &'static str,
    pub(crate) run: for<'a> fn(&'a mut Rig) -> Running<'a>,
}

/// Cases from functions: `cases![module::function, module::other => "faults", ..]`.
macro_rules! cases {
    ($($($part:ident)::+ $(=> $faults:literal)?),* $(,)?) => {
        vec![$({
            #[allow(unused_mut, unused_assignments)]
            let mut faults = "none";
            $(faults = $faults;)?
            $crate::rig::Case {
                name: stringify!($($part)::+),
                faults,
                run: |rig| Box::pin($($part)::+(rig)),
            }
        }),*]
    };
}
pub(crate) use cases;

/// One cluster, and a part of its keys.
pub(crate) struct Rig {
    pub(crate) db: Database,
    pub(crate) prefix: Vec<u8>,
    pub(crate) emulator: Option<Emulator>,
    pub(crate) file: PathBuf,
}

/// The server of an emulated cluster. It ends with this.
pub(crate) struct Emulator {
    child: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    _directory: tempfile::TempDir,
}

/// The file of the real cluster, if there is one.
fn real() -> Option<PathBuf> {
    std::env::var_os(REAL).map(PathBuf::from)
}

/// Runs cases one after another, each on a cluster of its own (or all on the real one).
pub(crate) fn run_all(cases: &[Case]) {
    let only = std::env::var(ONLY).unwrap_or_default();
    // SAFETY: the guard is dropped at the end of this function, and nothing forks but by exec.
    #[expect(unsafe_code, reason = "the crate's only way to start its network")]
    let network = unsafe { foundationdb::boot() };
    check_library();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut failed = Vec::new();
    let mut run = 0;
    for case in cases {
        let name = case.name.replace(' ', "");
        if !name.contains(&only) {
            continue;
        }
        if real().is_some() && case.faults != "none" {
            continue;
        }
        println!("case {name}");
        run += 1;
        let mut rig = Rig::start(1, case.faults);
        let done = catch_unwind(AssertUnwindSafe(|| {
            runtime.block_on(async {
                // Nothing should wait for ever, but what is tested may.
                tokio::select! {
                    () = (case.run)(&mut rig) => {}
                    () = pass(CASE_MS_MAX) => panic!("the case does not end"),
                }
            });
        }));
        // Also after a failure: a real cluster is left as it was.
        let cleared = catch_unwind(AssertUnwindSafe(|| runtime.block_on(rig.clear())));
        if done.and(cleared).is_err() {
            failed.push(name);
        }
    }
    drop(network);
    assert!(run > 0 || real().is_some(), "no case contains '{only}'");
    assert!(failed.is_empty(), "failed: {failed:#?}");
}

/// The library that is loaded is the one that is meant.
fn check_library() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps
        .lines()
        .find(|line| line.contains("libfdb_c.so"))
        .unwrap();
    let emulated = line.contains(built().to_str().unwrap());
    assert_eq!(emulated, real().is_none(), "loaded {line}");
}

/// Where the tests were built, and what was built with them.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().to_owned()
}

/// A file that was built with the tests.
fn beside(name: &str) -> PathBuf {
    let file = built().join(name);
    assert!(
        file.exists(),
        "{} is missing: run tests/fdb/run",
        file.display()
    );
    file
}

impl Rig {
    /// A new cluster with these faults, or a new part of the real one.
    pub(crate) fn start(seed: u64, faults: &str) -> Self {
        static RIGS: AtomicU32 = AtomicU32::new(0);
        let number = RIGS.fetch_add(1, Ordering::Relaxed);
        let random = base::Rng::system().unwrap().u64();
        let prefix = format!("holdfast-test/{random:016x}/{number}/").into_bytes();
        let (emulator, file) = match real() {
            Some(file) => (None, file),
            None => {
                let (emulator, file) = Emulator::start(seed, faults);
                (Some(emulator), file)
            }
        };
        let db = Database::from_path(file.to_str().unwrap()).unwrap();
        Self {
            db,
            prefix,
            emulator,
            file,
        }
    }

    /// A transaction that gives up some day.
    pub(crate) fn begin(&self) -> Transaction {
        let transaction = self.db.create_trx().unwrap();
        transaction
            .set_option(TransactionOption::Timeout(PATIENCE_MS))
            .unwrap();
        transaction
    }

    /// A transaction with options.
    pub(crate) fn begin_with(
        &self,
        options: impl IntoIterator<Item = TransactionOption>,
    ) -> Transaction {
        let transaction = self.begin();
        for option in options {
            transaction.set_option(option).unwrap();
        }
        transaction
    }

    /// A key of this case.
    pub(crate) fn key(&self, name: &str) -> Vec<u8> {
        [&self.prefix, name.as_bytes()].concat()
    }

    /// Sets keys; the version.
    pub(crate) async fn put(&self, pairs: &[(&str, &str)]) -> i64 {
        loop {
            let transaction = self.begin();
            for (key, value) in pairs {
                transaction.set(&self.key(key), value.as_bytes());
            }
            match transaction.commit().await {
                Ok(committed) => return committed.committed_version().unwrap(),
                Err(error) => drop(error.on_error().await.unwrap()),
            }
        }
    }

    /// The value of a key, as text.
    pub(crate) async fn value(&self, name: &str) -> Option<String> {
        let mut transaction = self.begin();
        loop {
            match text(&transaction, &self.key(name), false).await {
                Ok(value) => return value,
                Err(error) => transaction = transaction.on_error(error).await.unwrap(),
            }
        }
    }

    /// The emulator; only for cases with faults, which a real cluster does not run.
    pub(crate) fn emulator(&mut self) -> &mut Emulator {
        self.emulator.as_mut().unwrap()
    }

    async fn clear(&self) {
        let mut transaction = self.begin();
        loop {
            transaction.clear_range(&self.prefix, &self.key("\u{10ffff}"));
            match transaction.commit().await {
                Ok(_) => return,
                Err(error) => transaction = error.on_error().await.unwrap(),
            }
        }
    }
}

impl Emulator {
    fn start(seed: u64, faults: &str) -> (Self, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("fdb.cluster");
        let mut child = Command::new(beside("fdb-emulator-server"))
            .args([
                "--seed",
                &seed.to_string(),
                "--faults",
                faults,
                "--cluster-file",
            ])
            .arg(&file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut answers = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        answers.read_line(&mut line).unwrap();
        assert!(line.contains('@'), "the server says: {line}");
        let commands = child.stdin.take();
        let emulator = Self {
            child,
            commands,
            answers,
            _directory: directory,
        };
        (emulator, file)
    }

    /// Has the server obey a line; what it says before its "ok".
    pub(crate) fn tell(&mut self, line: &str) -> String {
        writeln!(self.commands.as_mut().unwrap(), "{line}").unwrap();
        let mut said = String::new();
        loop {
            let mut line = String::new();
            assert!(
                self.answers.read_line(&mut line).unwrap() > 0,
                "the server has ended"
            );
            assert!(!line.starts_with("error"), "{line}");
            if line == "ok\n" {
                return said;
            }
            said.push_str(&line);
        }
    }

    /// How often something has happened.
    pub(crate) fn count(&mut self, name: &str) -> u64 {
        let report = self.tell("report");
        let mut lines = report.lines().filter_map(|line| line.split_once(' '));
        let (_, count) = lines.find(|(of, _)| *of == name).unwrap();
        count.parse().unwrap()
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // It ends when its input does.
        self.commands = None;
        self.child.wait().unwrap();
    }
}

/// The value of a key in a transaction, as text.
pub(crate) async fn text(
    transaction: &Transaction,
    key: &[u8],
    snapshot: bool,
) -> FdbResult<Option<String>> {
    let value = transaction.get(key, snapshot).await?;
    Ok(value.map(|value| String::from_utf8(value.to_vec()).unwrap()))
}

/// Commits: the version, or the error's code.
pub(crate) async fn commit(transaction: Transaction) -> Result<i64, i32> {
    match transaction.commit().await {
        Ok(committed) => Ok(committed.committed_version().unwrap()),
        Err(error) => Err(FdbError::from(error).code()),
    }
}

/// The code of a result's error.
pub(crate) fn code<T>(result: FdbResult<T>) -> i32 {
    result.err().map_or(0, FdbError::code)
}

/// Lets time pass.
pub(crate) async fn pass(ms: u64) {
    let clock = base::SystemClock::new();
    base::Clock::sleep(&clock, Duration::from_millis(ms)).await;
}
