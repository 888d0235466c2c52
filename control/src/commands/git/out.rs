//! From commits to a git repository.

use std::collections::HashMap;
use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};

use super::{AUTHOR_PAIR, COMMITTER_PAIR, git, not_started, output};
use crate::cli_transfer::ExportArgs;
use crate::commands::bundle::{history, parents_first};
use crate::commands::transfer::{beside, put_in_place};
use crate::commands::{client, escape};
use crate::failure::{Failure, FailureKind};
use crate::files::{Progress, unreadable};
use crate::history::Commit;
use crate::output as print;
use crate::reading::in_git_quotes;
use crate::tar::{Kind, Reader};

/// The branch of git where the version is no branch's name.
const BRANCH: &str = "main";

/// What is written to `git fast-import`.
struct Stream {
    to: BufWriter<ChildStdin>,
    progress: Progress,
    /// Devices and the like, which git does not have.
    left_out: u64,
}

pub(in crate::commands) fn export(args: &ExportArgs, json: bool) -> Result<(), Failure> {
    let client = client(&args.server)?;
    let branch = branch_of(args)?;
    let commits = if args.history {
        let all = history(&client, &args.workspace, &args.version)?;
        let all = all.into_iter().map(|commit| (commit.id.clone(), commit));
        parents_first(all.collect())
    } else {
        let call = format!(
            "/v1/workspaces/{}/commit?version={}",
            escape(&args.workspace),
            escape(&args.version)
        );
        let commit: Commit = client.get(&call)?;
        vec![Commit {
            parents: Vec::new(),
            ..commit
        }]
    };
    let dest = Dest::open(&args.dest)?;
    let written = write(&client, args, (dest.path(), &branch), &commits);
    let (left_out, head) = match written.and_then(|left_out| Ok((left_out, dest.settle(&branch)?)))
    {
        Ok(done) => done,
        Err(failure) => {
            dest.drop_new();
            return Err(failure);
        }
    };
    if left_out > 0 {
        print::note(&format!(
            "{left_out} devices, pipes, sockets and `.git` were left out: git has none"
        ));
    }
    let count = commits.len();
    if json {
        return print::json(&serde_json::json!({
            "commits": count, "branch": branch, "git_commit": head, "left_out": left_out,
        }));
    }
    print::text(&format!(
        "{count} commits\nbranch {branch} of git is at {head}"
    ))
}

/// The branch of git that is written.
fn branch_of(args: &ExportArgs) -> Result<String, Failure> {
    if let Some(branch) = &args.git_branch {
        let checked = output(git(Path::new(".")).args(["check-ref-format", "--branch", branch]));
        return checked.map(|_| branch.clone()).map_err(|_| {
            let message = format!("{branch:?} is no name of a branch for git");
            Failure::new(FailureKind::Usage, message)
        });
    }
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
    let is_name = args.version.chars().all(is_plain) && !args.version.starts_with('-');
    let name = if is_name {
        args.version.as_str()
    } else {
        BRANCH
    };
    Ok(name.to_owned())
}

/// The repository that is written to.
enum Dest<'a> {
    There(&'a Path),
    /// It has another name until it is complete.
    New(&'a Path, std::path::PathBuf),
}

impl<'a> Dest<'a> {
    fn open(dest: &'a Path) -> Result<Self, Failure> {
        if dest.symlink_metadata().is_err() {
            let partial = beside(dest)?;
            let made = std::fs::create_dir(&partial);
            made.map_err(|error| {
                Failure::io(format_args!("make directory {}", partial.display()), &error)
            })?;
            output(git(&partial).args(["init", "-q"]))?;
            return Ok(Self::New(dest, partial));
        }
        let is_own = output(git(dest).args(["rev-parse", "--git-dir"]));
        let is_own = is_own.is_ok_and(|found| matches!(found.as_slice(), b".git\n" | b".\n"));
        if !is_own {
            let dest = dest.display();
            let message = format!("{dest} is there and no git repository: name another");
            return Err(Failure::new(FailureKind::Conflict, message));
        }
        Ok(Self::There(dest))
    }

    fn path(&self) -> &Path {
        match self {
            Self::There(dest) => dest,
            Self::New(_, partial) => partial,
        }
    }

    /// After all is written; gives the id that the branch is at.
    fn settle(&self, branch: &str) -> Result<String, Failure> {
        let path = self.path();
        let reference = format!("refs/heads/{branch}");
        let head = output(git(path).args(["rev-parse", "--verify", &reference]))?;
        if let Self::New(dest, partial) = self {
            output(git(path).args(["symbolic-ref", "HEAD", &reference]))?;
            output(git(path).args(["reset", "-q", "--hard"]))?;
            put_in_place(partial, dest, false)?;
        }
        Ok(String::from_utf8_lossy(&head).trim().to_owned())
    }

    fn drop_new(&self) {
        if let Self::New(_, partial) = self {
            drop(std::fs::remove_dir_all(partial));
        }
    }
}

fn write(
    client: &crate::client::Client,
    args: &ExportArgs,
    (dest, branch): (&Path, &str),
    commits: &[Commit],
) -> Result<u64, Failure> {
    let child = git(dest)
        .args(["fast-import", "--quiet", "--date-format=raw-permissive"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|error| not_started(&error))?;
    let to = child
        .stdin
        .take()
        .ok_or_else(|| Failure::error("git takes nothing"))?;
    let mut stream = Stream {
        to: BufWriter::new(to),
        progress: Progress::new("received"),
        left_out: 0,
    };
    let mut marks: HashMap<&str, usize> = HashMap::new();
    for (number, commit) in commits.iter().enumerate() {
        let parents: Vec<usize> = (commit.parents.iter())
            .filter_map(|parent| marks.get(parent.as_str()).copied())
            .collect();
        let begun = stream.begin(branch, number + 1, commit, &parents);
        let call = format!(
            "/v1/workspaces/{}/export?version={}",
            escape(&args.workspace),
            commit.id
        );
        let taken = begun
            .map_err(|error| Failure::io("give a commit to git", &error))
            .and_then(|()| {
                client.download(&call, move |from, _| {
                    stream.files(&mut Reader::new(from))?;
                    Ok(stream)
                })
            });
        stream = match taken {
            Ok(stream) => stream,
            Err(failure) => return Err(said_by(&mut child, Some(failure))),
        };
        marks.insert(&commit.id, number + 1);
    }
    let left_out = stream.left_out;
    let ended = stream
        .to
        .write_all(b"done\n")
        .and_then(|()| stream.to.flush());
    drop(stream);
    let status = child.wait().map_err(|error| not_started(&error))?;
    if ended.is_err() || !status.success() {
        return Err(said_by(&mut child, None));
    }
    Ok(left_out)
}

/// Why git ended early, if it did.
fn said_by(child: &mut Child, or: Option<Failure>) -> Failure {
    let mut said = String::new();
    if let Some(from) = &mut child.stderr {
        // Whatever can be read of it.
        drop(from.take(1 << 16).read_to_string(&mut said));
    }
    drop(child.kill());
    drop(child.wait());
    match or {
        Some(failure) if said.trim().is_empty() => failure,
        _ => Failure::new(FailureKind::Conflict, format_args!("git: {}", said.trim())),
    }
}

/// Git's line about who made a commit, and when.
fn person(commit: &Commit, pair: &str) -> String {
    if let Some(line) = commit.pairs.get(pair) {
        return line.clone();
    }
    let seconds = commit
        .time
        .parse::<jiff::Timestamp>()
        .map_or(0, jiff::Timestamp::as_second);
    let names = [&commit.author, &commit.agent];
    let name = names.into_iter().find(|name| !name.is_empty());
    let name = name.map_or("holdfast", |name| name.as_str());
    match name.split_once('<') {
        Some((name, rest)) if rest.ends_with('>') && !rest.contains('<') => {
            format!("{}<{rest} {seconds} +0000", name.replace('>', ""))
        }
        _ => format!("{} <> {seconds} +0000", name.replace(['<', '>'], "")),
    }
}

impl Stream {
    fn begin(
        &mut self,
        branch: &str,
        mark: usize,
        commit: &Commit,
        parents: &[usize],
    ) -> std::io::Result<()> {
        let (author, committer) = (person(commit, AUTHOR_PAIR), person(commit, COMMITTER_PAIR));
        if mark == 1 {
            writeln!(self.to, "feature done")?;
        }
        if parents.is_empty() && mark > 1 {
            // Else the branch's last commit would be its parent.
            writeln!(self.to, "reset refs/heads/{branch}")?;
        }
        writeln!(self.to, "commit refs/heads/{branch}\nmark :{mark}")?;
        writeln!(self.to, "author {author}\ncommitter {committer}")?;
        writeln!(self.to, "data {}", commit.message.len())?;
        writeln!(self.to, "{}", commit.message)?;
        for (number, parent) in parents.iter().enumerate() {
            let word = if number == 0 { "from" } else { "merge" };
            writeln!(self.to, "{word} :{parent}")?;
        }
        writeln!(self.to, "deleteall")
    }

    fn files<R: Read>(&mut self, from: &mut Reader<R>) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::io("give a file to git", &error);
        while let Some(member) = from.next().map_err(|error| unreadable(&error))? {
            self.progress.name();
            let is_own = |name: &[u8]| name.eq_ignore_ascii_case(b".git");
            if member.path.split(|byte| *byte == b'/').any(is_own) {
                self.left_out += u64::from(member.path.ends_with(b".git"));
                continue;
            }
            let path = in_git_quotes(&member.path);
            match &member.kind {
                Kind::Directory => {}
                Kind::File { size } => {
                    let mode = if member.mode & 0o100 == 0 { 644 } else { 755 };
                    self.line(&[format!("M 100{mode} inline ").as_bytes(), &path])
                        .map_err(failed)?;
                    self.content(*size, from)?;
                }
                Kind::Symlink(target) => {
                    self.line(&[b"M 120000 inline ", &path]).map_err(failed)?;
                    self.line(&[format!("data {}", target.len()).as_bytes()])
                        .map_err(failed)?;
                    self.line(&[target]).map_err(failed)?;
                }
                Kind::Link(first) => {
                    self.line(&[b"C ", &in_git_quotes(first), b" ", &path])
                        .map_err(failed)?;
                }
                Kind::Kept => {
                    return Err(Failure::error("the server leaves out what was asked for"));
                }
                Kind::CharDevice(_) | Kind::BlockDevice(_) | Kind::Fifo | Kind::Socket => {
                    self.left_out += 1;
                }
            }
        }
        self.to.flush().map_err(failed)
    }

    fn line(&mut self, parts: &[&[u8]]) -> std::io::Result<()> {
        for part in parts {
            self.to.write_all(part)?;
        }
        self.to.write_all(b"\n")
    }

    fn content<R: Read>(&mut self, size: u64, from: &mut Reader<R>) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::io("give a file to git", &error);
        self.line(&[format!("data {size}").as_bytes()])
            .map_err(failed)?;
        let mut at = 0;
        while let Some((offset, data)) = from.data().map_err(|error| unreadable(&error))? {
            self.zeros(offset - at).map_err(failed)?;
            self.to.write_all(&data).map_err(failed)?;
            self.progress.add(data.len());
            at = offset + u64::try_from(data.len()).unwrap_or(0);
        }
        self.zeros(size.saturating_sub(at)).map_err(failed)?;
        self.line(&[]).map_err(failed)
    }

    fn zeros(&mut self, count: u64) -> std::io::Result<()> {
        std::io::copy(&mut std::io::repeat(0).take(count), &mut self.to).map(drop)
    }
}
