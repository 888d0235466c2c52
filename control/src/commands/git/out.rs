//! From commits to a git repository.

use std::collections::{HashMap, HashSet};
use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};

use super::{AUTHOR_PAIR, COMMITTER_PAIR, git, not_started, output};
use crate::cli_transfer::ExportArgs;
use crate::client::{Client, Part};
use crate::commands::bundle::{all_refs, history, parents_first};
use crate::commands::partial::Partial;
use crate::commands::{client, escape};
use crate::failure::{Failure, FailureKind};
use crate::files::{Progress, unreadable};
use crate::history::Commit;
use crate::output as print;
use crate::reading::{escape_bytes, in_git_quotes};
use crate::tar::{Kind, Member, Reader};

/// The branch of git where the version is no name.
const BRANCH: &str = "main";

/// Bytes of a file that are asked for at a time.
const PART_BYTES: u64 = 16 << 20;

/// What is written to `git fast-import`.
struct Stream<W: Write> {
    to: BufWriter<W>,
    progress: Progress,
    /// Devices and the like, which git does not have.
    left_out: u64,
    /// Where they are, in this commit.
    without: HashSet<Vec<u8>>,
    /// Asks for what is found under another name only.
    client: Client,
    /// The commit's files, for that.
    content: String,
}

/// Why a commit does not get to git.
enum Broken {
    /// Git takes no more, and says why.
    Git(std::io::Error),
    /// It does not come.
    Download(Failure),
}

impl From<std::io::Error> for Broken {
    fn from(error: std::io::Error) -> Self {
        Self::Git(error)
    }
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Self {
        Self::Download(failure)
    }
}

pub(in crate::commands) fn export(args: &ExportArgs, json: bool) -> Result<(), Failure> {
    let client = client(&args.server)?;
    let branch = branch_of(&client, args)?;
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
    let written = dest.begin().and_then(|()| {
        let left_out = write(&client, args, (dest.path(), &branch), &commits)?;
        Ok((left_out, dest.settle(&branch)?))
    });
    let (left_out, head) = dest.end(written)?;
    if left_out > 0 {
        print::note(&format!(
            "{left_out} devices, pipes, sockets and `.git` were left out: git has none of them"
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
fn branch_of(client: &Client, args: &ExportArgs) -> Result<String, Failure> {
    let checked = |branch: &str| {
        let checked = output(git(Path::new(".")).args(["check-ref-format", "--branch", branch]));
        checked.map(|_| branch.to_owned()).map_err(|_| {
            let message =
                format!("{branch:?} is no name of a branch for git: say another with --git-branch");
            Failure::new(FailureKind::Usage, message)
        })
    };
    if let Some(branch) = &args.git_branch {
        return checked(branch);
    }
    let refs = all_refs(client, &args.workspace)?;
    if refs.iter().any(|found| found.name == args.version) {
        return checked(&args.version);
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
    New(Partial),
}

impl<'a> Dest<'a> {
    fn open(dest: &'a Path) -> Result<Self, Failure> {
        if dest.symlink_metadata().is_err() {
            return Partial::directory(dest, 0o777).map(Self::New);
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
            Self::New(partial) => partial.path(),
        }
    }

    /// Makes the repository, if there was none.
    fn begin(&self) -> Result<(), Failure> {
        match self {
            Self::There(_) => Ok(()),
            Self::New(partial) => output(git(partial.path()).args(["init", "-q"])).map(drop),
        }
    }

    /// After all is written; gives the id that the branch is at.
    fn settle(&self, branch: &str) -> Result<String, Failure> {
        let path = self.path();
        let reference = format!("refs/heads/{branch}");
        let head = output(git(path).args(["rev-parse", "--verify", &reference]))?;
        if let Self::New(_) = self {
            output(git(path).args(["symbolic-ref", "HEAD", &reference]))?;
            output(git(path).args(["reset", "-q", "--hard"]))?;
        }
        Ok(String::from_utf8_lossy(&head).trim().to_owned())
    }

    /// A new one is put in its place, or removed if something failed.
    fn end<T>(self, written: Result<T, Failure>) -> Result<T, Failure> {
        match self {
            Self::There(_) => written,
            Self::New(partial) => partial.end(written, false),
        }
    }
}

fn write(
    client: &Client,
    args: &ExportArgs,
    (dest, branch): (&Path, &str),
    commits: &[Commit],
) -> Result<u64, Failure> {
    let child = git(dest)
        .args(["fast-import", "--quiet", "--date-format=raw-permissive"])
        // What it says is told apart.
        .env("LC_ALL", "C")
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
        without: HashSet::new(),
        client: client.clone(),
        content: String::new(),
    };
    let mut marks: HashMap<&str, usize> = HashMap::new();
    for (number, commit) in commits.iter().enumerate() {
        let parents: Vec<usize> = (commit.parents.iter())
            .filter_map(|parent| marks.get(parent.as_str()).copied())
            .collect();
        let call = |what: &str| {
            let workspace = escape(&args.workspace);
            format!("/v1/workspaces/{workspace}/{what}?version={}", commit.id)
        };
        stream.content = call("content");
        let begun = stream.begin(branch, number + 1, commit, &parents);
        let taken = client.download(&call("export"), move |from, _| {
            let given = begun
                .map_err(Broken::Git)
                .and_then(|()| stream.files(&mut Reader::new(from)));
            Ok((stream, given))
        });
        let broken = match taken {
            Ok((back, Ok(()))) => {
                stream = back;
                marks.insert(&commit.id, number + 1);
                continue;
            }
            // Git is told of no end, and what it says of that is not the reason.
            Ok((_, Err(Broken::Download(failure)))) | Err(failure) => {
                super::super::transfer::why_broken(client, &call("export"), failure)
            }
            Ok((stream, Err(Broken::Git(error)))) => {
                drop(stream);
                return Err(said_by(&mut child, Some(&error)));
            }
        };
        end(&mut child);
        return Err(broken);
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

/// Why git ended early.
fn said_by(child: &mut Child, error: Option<&std::io::Error>) -> Failure {
    let mut said = Vec::new();
    if let Some(from) = &mut child.stderr {
        // Whatever can be read of it.
        drop(from.take(1 << 16).read_to_end(&mut said));
    }
    end(child);
    let said = String::from_utf8_lossy(&said);
    let said = said.trim();
    match error {
        Some(error) if said.is_empty() => Failure::io("give a commit to git", error),
        _ => {
            // The branch has commits that the exported ones do not come from.
            let is_conflict = said.contains("Not updating");
            let kind = if is_conflict {
                FailureKind::Conflict
            } else {
                FailureKind::Error
            };
            Failure::new(kind, format_args!("git: {said}"))
        }
    }
}

fn end(child: &mut Child) {
    drop(child.kill());
    drop(child.wait());
}

/// Whether a path leads into what git keeps of its own.
fn is_gits(path: &[u8]) -> bool {
    let mut names = path.split(|byte| *byte == b'/');
    names.any(|name| name.eq_ignore_ascii_case(b".git"))
}

/// Whether a path is all of what git keeps of its own in some directory.
fn is_gits_own(path: &[u8]) -> bool {
    let above = path.iter().rposition(|byte| *byte == b'/');
    is_gits(path) && !is_gits(path.get(..above.unwrap_or(0)).unwrap_or_default())
}

/// Git's line about who made a commit, and when.
fn person(commit: &Commit, pair: &str) -> String {
    // Anybody can say such a pair, of anything.
    if let Some(line) = commit.pairs.get(pair).filter(|line| is_person(line)) {
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

/// Whether git takes this for who and when: `NAME <ADDRESS> SECONDS ZONE`.
fn is_person(line: &str) -> bool {
    let parts = line.split_once('<').and_then(|(name, rest)| {
        let (address, when) = rest.split_once("> ")?;
        let (seconds, zone) = when.split_once(' ')?;
        Some((name, address, seconds, zone))
    });
    let Some((name, address, seconds, zone)) = parts else {
        return false;
    };
    let is_number = |text: &str, digits_max: usize| {
        (1..=digits_max).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let is_plain = |text: &str| {
        let is_odd = |letter: char| letter.is_control() || matches!(letter, '<' | '>');
        !text.contains(is_odd)
    };
    let zone = zone.strip_prefix(['+', '-']);
    let has_space = name.is_empty() || name.ends_with(' ');
    has_space
        && is_plain(name)
        && is_plain(address)
        && is_number(seconds, 15)
        && zone.is_some_and(|zone| is_number(zone, 9))
}

impl<W: Write> Stream<W> {
    fn begin(
        &mut self,
        branch: &str,
        mark: usize,
        commit: &Commit,
        parents: &[usize],
    ) -> std::io::Result<()> {
        self.without.clear();
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

    fn files<R: Read>(&mut self, from: &mut Reader<R>) -> Result<(), Broken> {
        let mut later = Vec::new();
        while let Some(member) = from.next().map_err(|error| unreadable(&error))? {
            self.progress.name();
            if is_gits(&member.path) {
                self.left_out += u64::from(is_gits_own(&member.path));
                continue;
            }
            let path = in_git_quotes(&member.path);
            match &member.kind {
                Kind::Directory => {}
                Kind::File { size } => {
                    let mode = if member.mode & 0o100 == 0 { 644 } else { 755 };
                    self.line(&[format!("M 100{mode} inline ").as_bytes(), &path])?;
                    self.content(*size, from)?;
                }
                Kind::Symlink(target) => {
                    self.line(&[b"M 120000 inline ", &path])?;
                    self.line(&[format!("data {}", target.len()).as_bytes()])?;
                    self.line(&[target])?;
                }
                Kind::Link(first) if self.without.contains(first) => self.left_out += 1,
                // Not now: the server waits for nobody who takes nothing of the archive.
                Kind::Link(first) if is_gits(first) => later.push(member),
                Kind::Link(first) => self.line(&[b"C ", &in_git_quotes(first), b" ", &path])?,
                Kind::Kept => {
                    let why = "the server leaves out what was asked for";
                    return Err(Failure::error(why).into());
                }
                Kind::CharDevice(_) | Kind::BlockDevice(_) | Kind::Fifo | Kind::Socket => {
                    self.without.insert(member.path);
                    self.left_out += 1;
                }
            }
        }
        for member in &later {
            self.outside(member)?;
        }
        Ok(self.to.flush()?)
    }

    /// A file whose first name is one of those that git does not take: its content has not come.
    fn outside(&mut self, member: &Member) -> Result<(), Broken> {
        let path = in_git_quotes(&member.path);
        let call = format!("{}&path={}", self.content, escape_bytes(&member.path));
        let client = self.client.clone();
        let size = match client.copy(&call, 0..1, |_| Ok(true)) {
            Ok(part) => part.map_or(0, |part| part.total),
            // It is no file.
            Err(failure) if failure.kind == FailureKind::Usage => {
                self.left_out += 1;
                return Ok(());
            }
            Err(failure) => return Err(failure.into()),
        };
        let mode = if member.mode & 0o100 == 0 { 644 } else { 755 };
        self.line(&[format!("M 100{mode} inline ").as_bytes(), &path])?;
        self.line(&[format!("data {size}").as_bytes()])?;
        let mut at = 0;
        while at < size {
            let mut given = Ok(());
            let part = client.copy(
                &call,
                at..at.saturating_add(PART_BYTES).min(size),
                |bytes| {
                    self.progress.add(bytes.len());
                    given = self.to.write_all(bytes);
                    Ok(given.is_ok())
                },
            )?;
            given?;
            match part {
                Some(Part {
                    bytes,
                    broken: None,
                    ..
                }) if bytes > 0 => at += bytes,
                part => {
                    let why = part.and_then(|part| part.broken).unwrap_or_default();
                    let message = format!("the server broke off ({why}): export again");
                    return Err(Failure::new(FailureKind::Retry, message).into());
                }
            }
        }
        Ok(self.line(&[])?)
    }

    fn line(&mut self, parts: &[&[u8]]) -> std::io::Result<()> {
        for part in parts {
            self.to.write_all(part)?;
        }
        self.to.write_all(b"\n")
    }

    fn content<R: Read>(&mut self, size: u64, from: &mut Reader<R>) -> Result<(), Broken> {
        self.line(&[format!("data {size}").as_bytes()])?;
        let mut at = 0;
        while let Some((offset, data)) = from.data().map_err(|error| unreadable(&error))? {
            self.zeros(offset - at)?;
            self.to.write_all(&data)?;
            self.progress.add(data.len());
            at = offset + u64::try_from(data.len()).unwrap_or(0);
        }
        self.zeros(size.saturating_sub(at))?;
        Ok(self.line(&[])?)
    }

    fn zeros(&mut self, count: u64) -> std::io::Result<()> {
        std::io::copy(&mut std::io::repeat(0).take(count), &mut self.to).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tar;
    use crate::told::Told;
    use base::Timestamp;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn what_git_keeps_of_its_own_counts_once() {
        for own in [&b".git"[..], b"a/.git", b"a/b/.GIT"] {
            assert!(is_gits_own(own), "{own:?}");
        }
        let others = [
            &b".git/x.git"[..],
            b".git/modules/.git",
            b"a.git",
            b"a/b",
            b"",
        ];
        for other in others {
            assert!(!is_gits_own(other), "{other:?}");
        }
    }

    /// An archive that knows whether it has been read to its end.
    struct Archive(std::io::Cursor<Vec<u8>>, Arc<AtomicBool>);

    impl Read for Archive {
        fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
            let read = self.0.read(to)?;
            self.1.fetch_or(read == 0, Ordering::SeqCst);
            Ok(read)
        }
    }

    /// Bug: such a file was asked for while its archive waited, for which the server has no patience.
    #[test]
    fn nothing_else_is_asked_for_before_the_archive_ends() {
        let member = |path: &str, kind: Kind| Member {
            path: path.into(),
            kind,
            mode: 0o644,
            uid: 0,
            gid: 0,
            mtime: Timestamp::EPOCH,
            atime: None,
        };
        let link = Kind::Link(b".git/f".to_vec());
        let mut bytes = Vec::new();
        for (path, kind) in [
            (".git", Kind::Directory),
            (".git/f", Kind::File { size: 0 }),
            (".git/x.git", Kind::File { size: 0 }),
            ("a", link),
            ("b", Kind::Symlink(b"target".to_vec())),
        ] {
            bytes.extend(tar::header(&member(path, kind), &[]));
        }
        bytes.extend(tar::END);
        let is_read = Arc::new(AtomicBool::new(false));
        let archive = Archive(std::io::Cursor::new(bytes), Arc::clone(&is_read));
        let server = Told::new(move |_, _| {
            let is_read = is_read.load(Ordering::SeqCst);
            (if is_read { 416 } else { 500 }, "{}".into())
        });
        let mut stream = Stream {
            to: BufWriter::new(Vec::new()),
            progress: Progress::new("received"),
            left_out: 0,
            without: HashSet::new(),
            client: server.client(),
            content: "/content?version=v".into(),
        };
        let given = stream.files(&mut Reader::new(archive));
        let Ok(()) = given else {
            panic!("it is asked for too early");
        };
        assert_eq!(stream.left_out, 1);
        let written = String::from_utf8(stream.to.into_inner().unwrap()).unwrap();
        let wanted = "M 120000 inline \"b\"\ndata 6\ntarget\nM 100644 inline \"a\"\ndata 0\n\n";
        assert_eq!(written, wanted);
        assert_eq!(server.heard(), ["GET /content?version=v&path=a"]);
    }

    #[test]
    fn only_what_git_reads_is_said_of_people() {
        for line in [
            "Ann O'Nym <ann@example.org> 1700000000 +0530",
            "<> 0 -0000",
            "A  B <a b> 1 +1",
        ] {
            assert!(is_person(line), "{line}");
        }
        for line in [
            "",
            "x",
            "Ann",
            "Ann <ann@example.org>",
            "Ann <ann@example.org> ",
            "Ann <ann@example.org> now +0000",
            "Ann <ann@example.org> 1700000000",
            "Ann <ann@example.org> 1700000000 0530",
            "Ann <ann@example.org> 1700000000 +0530 ",
            "Ann <ann@example.org> 99999999999999999999 +0000",
            "Ann<ann@example.org> 1 +0000",
            "Ann <a> <b> 1 +0000",
            "An>n <a> 1 +0000",
            "Ann <a> 1 +0000\nM 644 inline x",
            "Ann <a\n> 1 +0000",
        ] {
            assert!(!is_person(line), "{line}");
        }
    }
}
