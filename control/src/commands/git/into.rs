//! From a git repository to commits.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::Path;

use base::Timestamp;
use metadata::record::commit::{MESSAGE_BYTES_MAX, PAIR_VALUE_BYTES_MAX, PARENTS_MAX};
use rustix::process::{getegid, geteuid};

use super::{AUTHOR_PAIR, COMMIT_PAIR, COMMITTER_PAIR, Objects, fitting, git, output, plain};
use crate::cli_transfer::ImportArgs;
use crate::client::Client;
use crate::commands::bundle::{all_refs, history, history_beyond};
use crate::commands::holding::Holding;
use crate::commands::transfer::{begin, put};
use crate::commands::{client, escape};
use crate::failure::{Failure, FailureKind};
use crate::files::Progress;
use crate::history::{Checkpoint, Commit, CreateRef, Ref, short};
use crate::output as print;
use crate::tar::{self, Extent, Kind, Member};
use crate::transfer::Imported;

/// Largest commit object that is read, in bytes.
const COMMIT_BYTES_MAX: u64 = 16 << 20;

/// Longest target of a symbolic link, in bytes.
const TARGET_BYTES_MAX: u64 = 4096;

/// Longest author that a commit here says, in bytes.
const AUTHOR_BYTES_MAX: usize = 256;

const TREE: u32 = 0o040_000;
const SYMLINK: u32 = 0o120_000;
const MODULE: u32 = 0o160_000;

/// A commit of git.
struct GitCommit {
    id: String,
    parents: Vec<String>,
}

/// What a tree of git has at a path.
#[derive(Clone, PartialEq, Eq)]
struct GitEntry {
    mode: u32,
    id: String,
}

/// Files and directories of a commit, directories before what is in them.
type GitTree = Vec<(Vec<u8>, GitEntry)>;

/// Ids of commits here, by those of git.
type Known = HashMap<String, String>;

/// What is counted on the way.
#[derive(Clone, Copy, Default)]
struct Notes {
    /// Messages that were too long.
    cut: u64,
    /// Submodules, which become empty directories.
    modules: u64,
    /// Commits with more than every commit has: signatures, encodings.
    adorned: u64,
}

pub(in crate::commands) fn import(args: &ImportArgs, json: bool) -> Result<(), Failure> {
    let tip = tip(&args.path, args.git_ref.as_deref())?;
    let commits = list(&args.path, &tip)?;
    let client = client(&args.server)?;
    let there = all_refs(&client, &args.workspace)?;
    let (mut known, head) = known(&client, args, &there, &commits)?;
    // A branch that is there moves with a commit that comes in, and with nothing else.
    if head.is_some() && known.get(&tip) != head.as_ref() {
        known.remove(&tip);
    }
    let fresh: Vec<GitCommit> = commits
        .into_iter()
        .filter(|commit| !known.contains_key(&commit.id))
        .collect();
    let mut holding = Holding::new(&args.workspace, "`holdfast import --git`", &tip)?;
    let brought = bring(&client, args, (&fresh, &tip), (&mut known, &mut holding));
    let made = brought.and_then(|notes| match known.get(&tip) {
        // Another branch had it all.
        Some(commit) if head.is_none() && fresh.is_empty() => {
            make_branch(&client, args, commit).map(|()| notes)
        }
        _ => Ok(notes),
    });
    let notes = match made {
        Ok(notes) => notes,
        Err(failure) => {
            holding.give_up(&client);
            return Err(failure);
        }
    };
    holding.done(&client);
    report(args, fresh.len(), (&tip, known.get(&tip)), notes, json)
}

/// The commit that is to be brought in, with all that it comes from.
fn tip(repository: &Path, revision: Option<&str>) -> Result<String, Failure> {
    let shown = repository.display();
    if let Err(error) = std::fs::metadata(repository) {
        return Err(Failure::io(format_args!("look at {shown}"), &error));
    }
    let wrong = |message: String| Err(Failure::new(FailureKind::Usage, message));
    if !repository.is_dir() {
        return wrong(format!("{shown} is no directory: name a git repository"));
    }
    // What it says is told apart.
    let found = output(
        git(repository)
            .args(["rev-parse", "--git-dir"])
            .env("LC_ALL", "C"),
    );
    match found {
        Err(failure) if failure.message.contains("not a git repository") => {
            return wrong(format!(
                "{shown} is not a git repository: name one, or import its files without --git"
            ));
        }
        found => found?,
    };
    let name = revision.unwrap_or("HEAD");
    let id = output(git(repository).args([
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        &format!("{name}^{{commit}}"),
    ]));
    match id {
        // Git takes `^NAME`, too: all but that.
        Ok(id) if !id.starts_with(b"^") => {
            return Ok(String::from_utf8_lossy(&id).trim().to_owned());
        }
        _ => {}
    }
    let refs = output(git(repository).args(["for-each-ref", "--count=1"]))?;
    if refs.is_empty() && revision.is_none() {
        return wrong(format!(
            "{shown} has no commits yet: there is nothing to import"
        ));
    }
    if name.contains("..") || name.starts_with('^') {
        return wrong(format!(
            "{name:?} is a range: name one commit, which comes with all that it comes from; what the \
             workspace has already is not brought in again"
        ));
    }
    let message =
        format!("{shown} has no commit {name:?}: say with --git-ref what is to be imported");
    Err(Failure::new(FailureKind::NotFound, message))
}

fn make_branch(client: &Client, args: &ImportArgs, commit: &str) -> Result<(), Failure> {
    let create = CreateRef {
        name: args.branch.clone(),
        version: commit.to_owned(),
        tag: false,
        protected: false,
    };
    let path = format!("/v1/workspaces/{}/refs", escape(&args.workspace));
    client.post_for_nothing(&path, &create)
}

/// Brings in commits, parents first.
fn bring(
    client: &Client,
    args: &ImportArgs,
    (fresh, tip): (&[GitCommit], &str),
    (known, holding): (&mut Known, &mut Holding),
) -> Result<Notes, Failure> {
    let mut notes = Notes::default();
    let mut objects = Objects::open(&args.path)?;
    // The tree of the commit before is most often that of the next one's parent.
    let mut before: Option<(String, GitTree)> = None;
    let line = print::ProgressLine;
    for (number, commit) in fresh.iter().enumerate() {
        let about = about(&mut objects, commit, &mut notes)?;
        let tree = tree(&args.path, &commit.id)?;
        let base = match (commit.parents.first(), before) {
            (None, _) => GitTree::new(),
            (Some(parent), Some((id, tree))) if *parent == id => tree,
            (Some(parent), _) => self::tree(&args.path, parent)?,
        };
        let packing = Packing {
            objects,
            progress: Progress::new("sent"),
            tree,
            before: base.into_iter().collect(),
            time: about.1,
            notes,
        };
        let call = call(args, commit, known, commit.id == tip);
        line.show(&format!("commit {} of {}", number + 1, fresh.len()));
        let (give, back) = std::sync::mpsc::sync_channel(1);
        let about = serde_json::to_string(&about.0).unwrap_or_default();
        let imported: Imported = client.upload(&call, move |to| {
            begin(to, &about)?;
            let packed = packing.all(to)?;
            give.try_send(packed)
                .map_err(|error| Failure::error(format_args!("read on: {error}")))
        })?;
        let packed = back
            .try_recv()
            .map_err(|error| Failure::error(format_args!("read on: {error}")))?;
        (objects, notes) = (packed.objects, packed.notes);
        before = Some((commit.id.clone(), packed.tree));
        holding.add(client, &imported)?;
        known.insert(commit.id.clone(), imported.commit.id);
    }
    Ok(notes)
}

fn report(
    args: &ImportArgs,
    count: usize,
    (tip, commit): (&str, Option<&String>),
    notes: Notes,
    json: bool,
) -> Result<(), Failure> {
    let commit = commit.cloned().unwrap_or_default();
    if notes.cut > 0 {
        print::note(&format!(
            "{} texts were too long here, and were cut",
            notes.cut
        ));
    }
    if notes.modules > 0 {
        print::note(&format!(
            "{} submodules are empty directories",
            notes.modules
        ));
    }
    if notes.adorned > 0 {
        print::note(&format!(
            "{} commits have signatures, encodings or the like, which are left out: they, and what \
             comes from them, have other ids when they are exported to git",
            notes.adorned
        ));
    }
    if json {
        return print::json(&serde_json::json!({
            "commits": count, "branch": args.branch, "commit": commit, "git_commit": tip,
            "cut": notes.cut, "submodules": notes.modules, "adorned": notes.adorned,
        }));
    }
    let branch = &args.branch;
    print::text(&format!(
        "{count} commits\nbranch {branch} is at {}, which is {tip} in git",
        short(&commit)
    ))
}

/// All commits of a revision, parents first.
fn list(repository: &Path, revision: &str) -> Result<Vec<GitCommit>, Failure> {
    let mut command = git(repository);
    command.args([
        "rev-list",
        "--topo-order",
        "--reverse",
        "--parents",
        "--end-of-options",
        revision,
        "--",
    ]);
    let listed = output(&mut command)?;
    let listed = String::from_utf8_lossy(&listed);
    let mut commits = Vec::new();
    for line in listed.lines() {
        let mut ids = line.split(' ').map(str::to_owned);
        let Some(id) = ids.next() else { continue };
        let parents: Vec<String> = ids.collect();
        if parents.len() > PARENTS_MAX {
            let message = format!(
                "commit {id} has {} parents, of at most {PARENTS_MAX}",
                parents.len()
            );
            return Err(Failure::error(message));
        }
        commits.push(GitCommit { id, parents });
    }
    Ok(commits)
}

/// Commits that the workspace has already, and where the branch is.
fn known(
    client: &Client,
    args: &ImportArgs,
    there: &[Ref],
    commits: &[GitCommit],
) -> Result<(Known, Option<String>), Failure> {
    let (workspace, branch) = (&args.workspace, &args.branch);
    let head = there.iter().find(|found| found.name == *branch);
    let head = head.map(|found| found.commit.clone());
    let mut known = Known::new();
    let mut seen = HashSet::new();
    if let Some(head) = &head {
        for commit in history(client, workspace, head)? {
            seen.insert(commit.id.clone());
            if let Some(id) = commit.pairs.get(COMMIT_PAIR) {
                known.insert(id.clone(), commit.id);
            }
        }
        let is_part = commits
            .iter()
            .any(|commit| known.get(&commit.id) == Some(head));
        if !is_part {
            let message = format!(
                "branch {branch:?} has commits that this history does not come from: import to \
                 another branch"
            );
            return Err(Failure::new(FailureKind::Conflict, message));
        }
    }
    if commits.iter().all(|commit| known.contains_key(&commit.id)) {
        return Ok((known, head));
    }
    let mut others: HashMap<String, Vec<Commit>> = HashMap::new();
    for found in there {
        if seen.contains(&found.commit) {
            continue;
        }
        let is_known = |id: &str| seen.contains(id);
        for commit in history_beyond(client, workspace, &found.commit, is_known)? {
            seen.insert(commit.id.clone());
            if let Some(id) = commit.pairs.get(COMMIT_PAIR) {
                others.entry(id.clone()).or_default().push(commit);
            }
        }
    }
    share(&mut known, &others, commits);
    Ok((known, head))
}

/// Takes commits of other branches for those of git that they say they were. Anybody can say that of
/// any commit; so one is taken only if what it comes from was taken, too.
fn share(known: &mut Known, others: &HashMap<String, Vec<Commit>>, commits: &[GitCommit]) {
    // Parents come first.
    for commit in commits {
        if known.contains_key(&commit.id) {
            continue;
        }
        let parents = commit.parents.iter().map(|parent| known.get(parent));
        let parents: Option<Vec<&String>> = parents.collect();
        let same = others.get(&commit.id).into_iter().flatten();
        let same = parents.and_then(|parents| {
            let mut same = same.filter(|other| other.parents.iter().eq(parents.iter().copied()));
            same.next().map(|other| other.id.clone())
        });
        if let Some(id) = same {
            known.insert(commit.id.clone(), id);
        }
    }
}

fn call(args: &ImportArgs, commit: &GitCommit, known: &Known, is_tip: bool) -> String {
    let parents = commit.parents.iter().filter_map(|parent| known.get(parent));
    let parents: Vec<&str> = parents.map(String::as_str).collect();
    let workspace = escape(&args.workspace);
    let mut call = format!(
        "/v1/workspaces/{workspace}/import?about_inside=true&parents={}",
        parents.join(",")
    );
    if is_tip {
        call.push_str(&format!("&branch={}", escape(&args.branch)));
    }
    call
}

/// What a commit is to say here, and its committer's time.
fn about(
    objects: &mut Objects,
    commit: &GitCommit,
    notes: &mut Notes,
) -> Result<(Checkpoint, Timestamp), Failure> {
    let (kind, bytes) = objects.all(&commit.id, COMMIT_BYTES_MAX)?;
    if kind != "commit" {
        return Err(Failure::error(format_args!(
            "{} is a {kind}, no commit",
            commit.id
        )));
    }
    let end = bytes.windows(2).position(|pair| pair == b"\n\n");
    let (head, message) = bytes.split_at(end.unwrap_or(bytes.len()));
    let line = |key: &str| {
        let mut lines = head.split(|byte| *byte == b'\n');
        let line = lines.find_map(|line| line.strip_prefix(key.as_bytes()));
        plain(line.unwrap_or_default(), true)
    };
    let (author, committer) = (line("author "), line("committer "));
    let is_usual = |line: &[u8]| {
        let key = line.split(|byte| *byte == b' ').next().unwrap_or_default();
        matches!(key, b"tree" | b"parent" | b"author" | b"committer")
    };
    let is_adorned = !head.split(|byte| *byte == b'\n').all(is_usual);
    notes.adorned += u64::from(is_adorned);
    let mut fit = |text: String, bytes_max| {
        let (text, is_whole) = fitting(text, bytes_max);
        notes.cut += u64::from(!is_whole);
        text
    };
    let who = author.rsplitn(3, ' ').nth(2).unwrap_or_default().to_owned();
    let time = committer
        .rsplit(' ')
        .nth(1)
        .and_then(|time| time.parse().ok());
    let message = plain(message.get(2..).unwrap_or_default(), false);
    let pairs = [
        (COMMIT_PAIR, commit.id.clone()),
        (AUTHOR_PAIR, author),
        (COMMITTER_PAIR, committer),
    ];
    let about = Checkpoint {
        message: fit(message, MESSAGE_BYTES_MAX),
        author: fit(who, AUTHOR_BYTES_MAX),
        pairs: pairs
            .into_iter()
            .map(|(key, value)| (key.to_owned(), fit(value, PAIR_VALUE_BYTES_MAX)))
            .collect(),
        ..Checkpoint::default()
    };
    Ok((about, Timestamp::new(time.unwrap_or(0), 0)))
}

/// What a commit has.
fn tree(repository: &Path, commit: &str) -> Result<GitTree, Failure> {
    let listed =
        output(git(repository).args(["ls-tree", "-r", "-t", "-z", "--full-tree", commit]))?;
    let mut tree = GitTree::new();
    for line in listed
        .split(|byte| *byte == 0)
        .filter(|line| !line.is_empty())
    {
        let wrong = || {
            Failure::error(format_args!(
                "git lists {:?}",
                String::from_utf8_lossy(line)
            ))
        };
        let tab = line
            .iter()
            .position(|byte| *byte == b'\t')
            .ok_or_else(wrong)?;
        let (about, path) = line.split_at(tab);
        let about = String::from_utf8_lossy(about);
        let mut words = about.split(' ');
        let mode = words
            .next()
            .and_then(|mode| u32::from_str_radix(mode, 8).ok());
        let (Some(mode), Some(id)) = (mode, words.nth(1)) else {
            return Err(wrong());
        };
        let entry = GitEntry {
            mode,
            id: id.to_owned(),
        };
        tree.push((path.get(1..).unwrap_or_default().to_vec(), entry));
    }
    Ok(tree)
}

/// Makes an archive of a commit: what the parent has as well is only said to be kept.
struct Packing {
    objects: Objects,
    progress: Progress,
    tree: GitTree,
    before: HashMap<Vec<u8>, GitEntry>,
    time: Timestamp,
    notes: Notes,
}

impl Packing {
    fn all(mut self, to: &mut dyn Write) -> Result<Self, Failure> {
        let tree = std::mem::take(&mut self.tree);
        for (path, entry) in &tree {
            self.progress.name();
            self.one(to, path, entry)?;
        }
        self.tree = tree;
        put(to, &tar::END)?;
        Ok(self)
    }

    fn one(&mut self, to: &mut dyn Write, path: &[u8], entry: &GitEntry) -> Result<(), Failure> {
        let before = self.before.get(path);
        match entry.mode {
            TREE | MODULE => {
                self.notes.modules += u64::from(entry.mode == MODULE);
                let is_dir = |mode: u32| matches!(mode, TREE | MODULE);
                // One that was there keeps its times; an empty one has nothing that makes it.
                if entry.mode == TREE && before.is_some_and(|before| is_dir(before.mode)) {
                    return Ok(());
                }
                self.header(to, path, Kind::Directory, 0o755, &[])
            }
            _ if before == Some(entry) => self.header(to, path, Kind::Kept, 0, &[]),
            SYMLINK => {
                let (_, target) = self.objects.all(&entry.id, TARGET_BYTES_MAX)?;
                self.header(to, path, Kind::Symlink(target), 0o777, &[])
            }
            mode => {
                let size = self.objects.ask(&entry.id)?.size;
                let all = Extent {
                    offset: 0,
                    length: size,
                };
                let extents: Vec<Extent> = (size > 0).then_some(all).into_iter().collect();
                self.header(to, path, Kind::File { size }, mode & 0o777, &extents)?;
                let progress = &mut self.progress;
                self.objects.content(size, |part| {
                    progress.add(part.len());
                    put(to, part)
                })?;
                put(to, tar::padding(size))
            }
        }
    }

    fn header(
        &self,
        to: &mut dyn Write,
        path: &[u8],
        kind: Kind,
        mode: u32,
        extents: &[Extent],
    ) -> Result<(), Failure> {
        let member = Member {
            path: path.to_vec(),
            kind,
            mode,
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
            mtime: self.time,
            atime: None,
        };
        put(to, &tar::header(&member, extents))
    }
}
