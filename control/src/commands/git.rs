//! Histories of git repositories, in and out. Calls the program `git`, which has to be there.

mod into;
mod out;

pub(super) use into::import;
pub(super) use out::export;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::failure::{Failure, FailureKind};

/// The pair that says which commit of git one was.
const COMMIT_PAIR: &str = "git.commit";

/// The pair with git's line about the author: name, address, time, zone.
const AUTHOR_PAIR: &str = "git.author";

/// The pair with git's line about the committer.
const COMMITTER_PAIR: &str = "git.committer";

/// `git` in a repository.
fn git(repository: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(repository);
    // What a hook of git or a user has set is about another repository.
    for name in [
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_OBJECT_DIRECTORY",
    ] {
        command.env_remove(name);
    }
    command
}

fn not_started(error: &std::io::Error) -> Failure {
    let message = format!("run git: {error}; install git, it is needed for --git");
    Failure::new(FailureKind::Error, message)
}

/// What `git` prints.
fn output(command: &mut Command) -> Result<Vec<u8>, Failure> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| not_started(&error))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim();
    Err(Failure::error(format_args!("git: {said}")))
}

/// Text that a commit here may say: what is no UTF-8 and control characters but line breaks and tabs
/// are replaced.
fn plain(bytes: &[u8], is_line: bool) -> String {
    let text = String::from_utf8_lossy(bytes);
    let is_kept =
        |letter: char| !letter.is_control() || (!is_line && matches!(letter, '\n' | '\r' | '\t'));
    let letters = text.chars();
    letters
        .map(|letter| {
            if is_kept(letter) {
                letter
            } else {
                char::REPLACEMENT_CHARACTER
            }
        })
        .collect()
}

/// As much of a text as fits. Whether all of it did.
fn fitting(mut text: String, bytes_max: usize) -> (String, bool) {
    if text.len() <= bytes_max {
        return (text, true);
    }
    let mut end = bytes_max;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    (text, false)
}

/// `git cat-file --batch`: gives objects by their ids.
struct Objects {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

/// An object that is being read.
struct Object {
    kind: String,
    size: u64,
}

impl Objects {
    fn open(repository: &Path) -> Result<Self, Failure> {
        let child = git(repository)
            .args(["cat-file", "--batch"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.map_err(|error| not_started(&error))?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let from = from.ok_or_else(|| Failure::error("git gives nothing"))?;
        Ok(Self {
            child,
            to,
            from: BufReader::new(from),
        })
    }

    /// Asks for an object. Its content is then read by [`Objects::content`].
    fn ask(&mut self, id: &str) -> Result<Object, Failure> {
        let failed = |error: std::io::Error| Failure::io("ask git for an object", &error);
        if let Some(to) = &mut self.to {
            to.write_all(format!("{id}\n").as_bytes()).map_err(failed)?;
        }
        let mut line = String::new();
        self.from.read_line(&mut line).map_err(failed)?;
        let mut words = line.split_whitespace().skip(1);
        let (kind, size) = (
            words.next(),
            words.next().and_then(|size| size.parse().ok()),
        );
        match (kind, size) {
            (Some(kind), Some(size)) => Ok(Object {
                kind: kind.to_owned(),
                size,
            }),
            _ => Err(Failure::error(format_args!(
                "git does not have object {id}: is the clone whole?"
            ))),
        }
    }

    /// Gives the content of what was asked for to `each`.
    fn content(
        &mut self,
        size: u64,
        mut each: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::io("read an object of git", &error);
        let mut buffer = vec![0; 256 * 1024];
        let mut rest = size;
        while rest > 0 {
            let some = usize::try_from(rest)
                .unwrap_or(buffer.len())
                .min(buffer.len());
            let part = buffer.get_mut(..some).unwrap_or_default();
            self.from.read_exact(part).map_err(failed)?;
            each(part)?;
            rest -= u64::try_from(some).unwrap_or(rest);
        }
        let mut newline = [0];
        self.from.read_exact(&mut newline).map_err(failed)
    }

    /// The content of something small.
    fn all(&mut self, id: &str, bytes_max: u64) -> Result<(String, Vec<u8>), Failure> {
        let Object { kind, size } = self.ask(id)?;
        if size > bytes_max {
            let message = format!("{kind} {id} has {size} bytes, of at most {bytes_max}");
            return Err(Failure::error(message));
        }
        let mut bytes = Vec::new();
        self.content(size, |part| {
            bytes.extend_from_slice(part);
            Ok(())
        })?;
        Ok((kind, bytes))
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        // It ends when there is nothing more to ask.
        self.to = None;
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_made_to_fit() {
        assert_eq!(plain(b"a\x1bb\n\xff", false), "a\u{fffd}b\n\u{fffd}");
        assert_eq!(plain(b"a\nb", true), "a\u{fffd}b");
        assert_eq!(fitting("aé".into(), 2), ("a".into(), false));
        assert_eq!(fitting("aé".into(), 3), ("aé".into(), true));
    }
}
