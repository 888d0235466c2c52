//! Who imports while a server is killed again and again: archives into one workspace, and what that
//! has as bundles into another.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::server::{Api, Server, binary};

/// Where archives go, and where bundles go.
const TAKEN: &str = "taken";
const MIRROR: &str = "mirror";

/// Directories of a tree; each import changes one.
const DIRECTORIES: u64 = 8;

/// Files of a directory: small ones, whose content is in the metadata store. All together they are more than
/// an import keeps in memory, so a kill finds some of them stored and some not.
const FILES: u64 = 180;
const SMALL_BYTES: usize = 4000;

/// One more, which has a chunk.
const LARGE_BYTES: usize = 40_000;

/// Between two looks whether a workspace is removed.
const PAUSE: Duration = Duration::from_millis(100);

/// Exit codes of `holdfast`.
const RETRY: i32 = 6;
const NOT_FOUND: i32 = 4;

type Tree = BTreeMap<PathBuf, Vec<u8>>;

/// A branch that imports move: the number of the tree that it has for certain, and of the one that it may
/// have; 0 if it is not there.
#[derive(Debug, Default)]
struct Branch {
    has: u64,
    may_have: Option<u64>,
    /// Imports that were told to be done, that a kill cut off, and those of them that took place.
    done: u32,
    cut_off: u32,
    came_about: u32,
}

/// Imports until the server is gone, and knows what was.
pub(crate) struct Importer {
    dir: PathBuf,
    bundles: TempDir,
    taken: Branch,
    mirror: Branch,
    /// Commits of [`TAKEN`] by the number of their tree.
    commits: HashMap<u64, String>,
    /// Sessions of imports that kills left.
    left: usize,
}

impl std::fmt::Debug for Importer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Importer")
            .field("archives", &self.taken)
            .field("bundles", &self.mirror)
            .field("sessions_left", &self.left)
            .finish()
    }
}

/// What a tree of this number has. Some files of a directory come and go.
fn tree(number: u64) -> Tree {
    let mut tree = Tree::new();
    for directory in 0..DIRECTORIES {
        // The last number up to this whose turn it was; the first made them all.
        let behind = (number + DIRECTORIES - directory) % DIRECTORIES;
        let last = number.saturating_sub(behind).max(1);
        let content = |file: u64, bytes: usize| {
            let words = [last.to_be_bytes(), (directory << 32 | file).to_be_bytes()];
            words.concat().repeat(bytes / 16)
        };
        let name = |file: &str| PathBuf::from(format!("d{directory}/{file}"));
        for file in 0..FILES + last % 3 {
            let small = content(file, SMALL_BYTES);
            tree.insert(name(&format!("small-{file:03}")), small);
        }
        tree.insert(name("large"), content(1 << 20, LARGE_BYTES));
    }
    tree
}

fn archive(tree: &Tree) -> Vec<u8> {
    let mut bytes = Vec::new();
    for directory in 0..DIRECTORIES {
        bytes.extend(header(&format!("d{directory}/"), b'5', 0));
    }
    for (path, content) in tree {
        bytes.extend(header(path.to_str().unwrap(), b'0', content.len()));
        bytes.extend(content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.extend([0; 1024]);
    bytes
}

/// A header of ustar.
fn header(name: &str, kind: u8, bytes: usize) -> [u8; 512] {
    let mut block = [0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..107].copy_from_slice(if kind == b'5' { b"0000755" } else { b"0000644" });
    block[108..115].copy_from_slice(b"0000000");
    block[116..123].copy_from_slice(b"0000000");
    block[124..135].copy_from_slice(format!("{bytes:011o}").as_bytes());
    block[136..147].copy_from_slice(b"00000000001");
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    block[148..156].copy_from_slice(b"        ");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block
}

fn holdfast(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    for (name, _) in std::env::vars() {
        if name.starts_with("HOLDFAST_") {
            command.env_remove(name);
        }
    }
    let command = command.args(arguments).arg("--data-dir").arg(dir);
    command.output().unwrap()
}

/// What a command prints in JSON.
fn printed(dir: &Path, arguments: &[&str]) -> Value {
    let output = holdfast(dir, &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Nothing is wrong with what is stored, every byte read.
pub(crate) fn check_data(dir: &Path) {
    let checked = holdfast(dir, &["check", "--deep"]);
    assert!(checked.status.success(), "{checked:?}");
}

impl Branch {
    /// An import begins.
    fn try_to_have(&mut self, number: u64) {
        self.may_have = Some(number);
    }

    fn came(&mut self) {
        self.has = self.may_have.take().unwrap_or(self.has);
        self.done += 1;
    }

    /// What a kill left of it: the old, or the new.
    fn look(&mut self, workspace: &str, found: Option<&Tree>) {
        let old = (self.has > 0).then(|| tree(self.has));
        let may_have = self.may_have.take();
        self.cut_off += u32::from(may_have.is_some());
        if found == old.as_ref() {
            return;
        }
        let new = may_have.filter(|number| found == Some(&tree(*number)));
        let Some(new) = new else {
            let shape: Option<Vec<_>> = found.map(|tree| tree.keys().take(9).collect());
            let files = found.map(Tree::len);
            panic!("{workspace} has {files:?} files, {shape:?}, not {self:?} or {may_have:?}");
        };
        self.has = new;
        self.came_about += 1;
    }
}

impl Importer {
    pub(crate) fn new(dir: &Path, server: &Server) -> Self {
        for name in [TAKEN, MIRROR] {
            server.make("/v1/workspaces", &json!({ "name": name }));
        }
        Self {
            dir: dir.to_owned(),
            bundles: tempfile::tempdir().unwrap(),
            taken: Branch::default(),
            mirror: Branch::default(),
            commits: HashMap::new(),
            left: 0,
        }
    }

    /// Imports until the server is gone; `count` is how many times.
    pub(crate) fn work(&mut self, api: &Api, count: &AtomicU64) {
        let before = self.done();
        while self.step(api).is_some() {
            count.store(u64::from(self.done() - before), SeqCst);
        }
    }

    fn done(&self) -> u32 {
        self.taken.done + self.mirror.done
    }

    /// `None` if the server is gone.
    fn step(&mut self, api: &Api) -> Option<()> {
        // What comes as a bundle first: a kill may have left it behind.
        if self.taken.has == self.mirror.has {
            let number = self.taken.has + 1;
            self.taken.try_to_have(number);
            let path = format!("/v1/workspaces/{TAKEN}/import");
            let (status, answer) = api.send("POST", &path, archive(&tree(number))).ok()?;
            if status == 503 {
                return Some(());
            }
            assert_eq!(status, 201, "{answer}");
            self.taken.came();
            return Some(());
        }
        let path = format!("/v1/workspaces/{TAKEN}/commit?version=main");
        let (status, commit) = api.call("GET", &path, &Value::Null).ok()?;
        assert_eq!(status, 200, "{commit}");
        let id = commit["id"].as_str().unwrap().to_owned();
        self.commits.insert(self.taken.has, id);
        self.carry(api)
    }

    /// Brings what archives brought to the other workspace.
    fn carry(&mut self, api: &Api) -> Option<()> {
        let file = self.bundles.path().join("carried.bundle");
        let file = file.to_str().unwrap();
        let range = match self.mirror.has {
            0 => "main".to_owned(),
            has => format!("{}..main", self.commits[&has]),
        };
        let bundle = ["bundle", &range, file, "--workspace", TAKEN, "--force"];
        if !self.is_done(api, &bundle)? {
            return Some(());
        }
        self.mirror.try_to_have(self.taken.has);
        if self.is_done(api, &["unbundle", file, "--workspace", MIRROR])? {
            self.mirror.came();
        }
        Some(())
    }

    /// Whether a command has done it; not if the server is too busy. `None` if the server is gone.
    fn is_done(&self, api: &Api, arguments: &[&str]) -> Option<bool> {
        let output = holdfast(&self.dir, arguments);
        if output.status.success() {
            return Some(true);
        }
        let asked = api.call("GET", "/v1/workspaces", &Value::Null);
        asked.ok()?;
        let is_busy = output.status.code() == Some(RETRY);
        assert!(is_busy, "{arguments:?}: {output:?}");
        Some(false)
    }

    /// Sees what a kill left.
    pub(crate) fn look(&mut self) {
        let taken = self.exported(TAKEN);
        self.taken.look(TAKEN, taken.as_ref());
        let mirror = self.exported(MIRROR);
        self.mirror.look(MIRROR, mirror.as_ref());
        self.left = self.left.max(staged(&self.dir).len());
    }

    /// What the branch of a workspace has; `None` if there is none.
    fn exported(&self, workspace: &str) -> Option<Tree> {
        let to = tempfile::tempdir().unwrap();
        let out = to.path().join("out");
        let arguments = ["export", "main", out.to_str().unwrap()];
        let exported = holdfast(
            &self.dir,
            &[&arguments[..], &["--workspace", workspace]].concat(),
        );
        if exported.status.code() == Some(NOT_FOUND) {
            return None;
        }
        assert!(exported.status.success(), "{exported:?}");
        let mut tree = Tree::new();
        for directory in std::fs::read_dir(&out).unwrap() {
            for file in std::fs::read_dir(directory.unwrap().path()).unwrap() {
                let path = file.unwrap().path();
                let content = std::fs::read(&path).unwrap();
                tree.insert(path.strip_prefix(&out).unwrap().to_owned(), content);
            }
        }
        Some(tree)
    }

    /// Else this shows nothing.
    pub(crate) fn was_cut_off(&self) {
        let (taken, mirror) = (&self.taken, &self.mirror);
        let is_enough = taken.done > 0 && mirror.done > 0 && taken.cut_off + mirror.cut_off > 0;
        assert!(is_enough && self.left > 0, "{self:?}");
    }
}

/// Sessions that imports left.
fn staged(dir: &Path) -> Vec<String> {
    let sessions = printed(dir, &["session", "ls"]);
    let staged = sessions.as_array().unwrap().iter();
    let staged = staged.filter(|session| session["agent"] == "holdfast-import");
    let ids = staged.map(|session| {
        assert!(session["expires"].is_string(), "{session} never ends");
        session["id"].as_str().unwrap().to_owned()
    });
    ids.collect()
}

/// Collects; gives how many chunks are needed and how many were not.
fn collected(dir: &Path) -> (u64, u64) {
    let run = printed(dir, &["gc"]);
    assert_eq!(run["state"], "done", "{run}");
    let count = |name: &str| run[name].as_u64().unwrap();
    (count("live_chunks"), count("dead_chunks"))
}

/// Lets what broken imports left end, as it would by itself, and removes one workspace after the other. All
/// that nothing needs is collected, and in the end there is nothing.
pub(crate) fn free_all(dir: &Path) {
    for id in staged(dir) {
        printed(dir, &["session", "close", &id]);
    }
    collected(dir);
    let (mut live, dead) = collected(dir);
    assert_eq!(dead, 0, "a second collection finds what the first left");
    for workspace in [TAKEN, MIRROR, "default"] {
        printed(dir, &["workspace", "delete", workspace, "--yes", "--force"]);
        while printed(dir, &["workspace", "ls", "--removing"]) != json!([]) {
            thread::park_timeout(PAUSE);
        }
        collected(dir);
        let (now, dead) = collected(dir);
        assert!(
            now < live && dead == 0,
            "{workspace}: {now} of {live}, {dead}"
        );
        live = now;
    }
    assert_eq!(live, 0, "something is left");
}
