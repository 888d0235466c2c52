//! What the files in `.holdfast` say. Lines for people that scripts can read, too: a word, blanks, and
//! a value.

use std::sync::Arc;

use base::CommitId;
use bytes::Bytes;
use metadata::compare::{Options, PathChange, SnapshotError, What, compare};
use metadata::image::NameHasher;
use metadata::record::changed::ChangedPaths;
use metadata::record::conflict::ConflictKind;
use metadata::record::reference::{RefKind, RefName};
use metadata::store::{
    Changed, CommitInfo, LogFilter, LogHeads, LogQuery, SessionInfo, StoreError, Walk,
};
use metadata::tree::Root;
use metadata::version::show_time;

use super::trouble::Trouble;
use super::{Object, Session, Text};

/// Most bytes of a text.
pub(super) const TEXT_BYTES_MAX: usize = 128 * 1024;

/// Kept for saying that a text was cut.
const NOTE_BYTES_MAX: usize = 256;

/// Most commits that the log shows.
const COMMITS_MAX: usize = 100;

/// Most bytes that the log shows of a commit's message.
const MESSAGE_BYTES_SHOWN: usize = 2048;

/// Most refs that the status shows.
const REFS_MAX: usize = 100;

/// Changes that the diff looks at: far more than fit.
const CHANGES_MAX: usize = 20_000;

/// What a diff was made from: numbers of the last change, of the last write and of the image, and the
/// commit it was compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Basis {
    applied: u64,
    writes: u64,
    generation: u64,
    commit: Option<CommitId>,
}

/// A text with a limit.
#[derive(Debug, Default)]
pub(super) struct Page {
    bytes: Vec<u8>,
    is_full: bool,
}

impl Page {
    /// Adds a part, or nothing if it does not fit; then nothing fits any more.
    pub(super) fn push(&mut self, part: &[u8]) -> bool {
        let fits = self.bytes.len() + part.len() <= TEXT_BYTES_MAX - NOTE_BYTES_MAX;
        if fits && !self.is_full {
            self.bytes.extend_from_slice(part);
        } else {
            self.is_full = true;
        }
        !self.is_full
    }

    /// Adds a line with a word and a value, whatever is in the value.
    pub(super) fn line(&mut self, word: &str, value: &str) -> bool {
        let value: String = value.chars().flat_map(harmless).collect();
        self.push(format!("{word:<11} {value}\n").as_bytes())
    }

    /// The whole; if it was cut, with a note.
    pub(super) fn finish(mut self, note: &str) -> Bytes {
        if self.is_full {
            self.bytes.extend_from_slice(note.as_bytes());
        }
        self.bytes.into()
    }
}

/// Where a session stands.
struct Standing {
    session: SessionInfo,
    branch: RefName,
    /// Where its branch is.
    head: Option<CommitId>,
}

impl Session {
    /// A text as it was looked up last, or made now if it never was.
    pub(super) async fn present_text(self: &Arc<Self>, object: Object) -> Result<Text, Trouble> {
        match self.inside.held(object) {
            Some(text) => Ok(text),
            None => self.fresh_text(object).await,
        }
    }

    /// A text as of now.
    pub(super) async fn fresh_text(self: &Arc<Self>, object: Object) -> Result<Text, Trouble> {
        let mut basis = None;
        let content = match object {
            Object::Status => self.status_text().await?,
            Object::Log => self.log_text().await?,
            Object::Diff => {
                let now = self.basis().await?;
                if let Some(held) = self.inside.held(object)
                    && held.basis == Some(now)
                {
                    return Ok(held);
                }
                basis = Some(now);
                self.diff_text(now.commit).await?
            }
            Object::Conflicts => self.conflicts_text().await?,
            Object::Changed => self.changed_text().await?,
            Object::Publish | Object::Checkpoint | Object::Resolve => {
                match self.inside.held(object) {
                    Some(held) => return Ok(held),
                    None => Bytes::new(),
                }
            }
            Object::Top | Object::At => return Err(metadata::FsError::IsDirectory.into()),
        };
        let now = self.shared.clock.wall();
        Ok(self.inside.keep(object, content, basis, now))
    }

    /// What changed from outside, with a NUL after each path. If that is too long for a text,
    /// everything may have changed.
    pub(super) async fn changed_text(&self) -> Result<Bytes, Trouble> {
        let changed = self.shared.changed(self.record.tenant, self.id()).await?;
        let list = changed.list();
        if list.len() <= TEXT_BYTES_MAX {
            return Ok(list.into());
        }
        let everything = Changed {
            paths: ChangedPaths::Everything,
            ..changed
        };
        Ok(everything.list().into())
    }

    async fn standing(&self) -> Result<Standing, Trouble> {
        let store = &self.shared.store;
        let session = store.session(self.record.tenant, self.id()).await?;
        let named = RefName::new(&session.record.branch);
        let branch = named.unwrap_or_else(|_| RefName::main());
        let head = match store.reference(session.record.workspace, &branch).await {
            Ok(found) => Some(found.record.state.commit),
            Err(StoreError::NotFound { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Standing {
            session,
            branch,
            head,
        })
    }

    async fn status_text(&self) -> Result<Bytes, Trouble> {
        let store = &self.shared.store;
        let at = self.standing().await?;
        let record = &at.session.record;
        let workspace = store.workspace(record.workspace).await?;
        let id = |commit: Option<CommitId>| {
            commit.map_or_else(|| "none".to_owned(), |commit| commit.to_string())
        };
        let mut page = Page::default();
        page.line("session", &self.id().to_string());
        page.line("workspace", &workspace.record.name);
        for (word, value) in [("agent", &record.agent), ("run", &record.run)] {
            if !value.is_empty() {
                page.line(word, value);
            }
        }
        let access = if record.read_only {
            "read-only"
        } else {
            "read-write"
        };
        page.line("access", access);
        page.line("branch", at.branch.as_str());
        page.line("branch-at", &id(at.head));
        page.line("commit", &id(record.commit));
        if let Some(commit) = record.commit {
            let stored = store.commit(record.workspace, commit).await?.record;
            page.line("conflicts", &stored.conflicts.to_string());
        }
        let refs = store.refs(record.workspace, None, REFS_MAX + 1).await?;
        for found in refs.iter().take(REFS_MAX) {
            let state = found.record.state;
            let kind = match state.kind {
                RefKind::Branch => "branch",
                RefKind::Tag => "tag",
            };
            let value = format!("{} {kind} {}", state.commit, found.name.as_str());
            page.line("ref", &value);
        }
        if refs.len() > REFS_MAX {
            page.line("more", "holdfast ref ls tells all refs");
        }
        Ok(page.finish("more        holdfast ref ls tells all refs\n"))
    }

    async fn log_text(&self) -> Result<Bytes, Trouble> {
        let at = self.standing().await?;
        let own = at.session.record.commit;
        let heads: Vec<String> = [at.head, own.filter(|own| at.head != Some(*own))]
            .into_iter()
            .flatten()
            .map(|commit| commit.to_string())
            .collect();
        let Ok(heads) = heads.join(",").parse::<LogHeads>() else {
            // There are none.
            return Ok(Bytes::new());
        };
        let query = LogQuery {
            heads,
            walk: Walk::AllParents,
            filter: LogFilter::default(),
            limit: COMMITS_MAX,
        };
        let workspace = at.session.record.workspace;
        let found = self.shared.store.log(workspace, query).await?;
        let mut page = Page::default();
        for commit in &found.commits {
            let mut marks = Vec::new();
            if Some(commit.id) == at.head {
                marks.push(at.branch.as_str());
            }
            if Some(commit.id) == own {
                marks.push("this session");
            }
            if !page.push(described(commit, &marks).as_bytes()) {
                break;
            }
        }
        page.is_full |= found.next.is_some();
        Ok(page.finish("... and older ones: holdfast log\n"))
    }

    /// What a diff made now would be made from.
    async fn basis(&self) -> Result<Basis, Trouble> {
        let store = &self.shared.store;
        let session = store.session(self.record.tenant, self.id()).await?;
        let state = self.lock();
        Ok(Basis {
            applied: state.image.applied(),
            writes: state.image.last_write(),
            generation: state.generation,
            commit: session.record.commit,
        })
    }

    /// What the session has changed since the commit that it stands on.
    async fn diff_text(self: &Arc<Self>, since: Option<CommitId>) -> Result<Bytes, Trouble> {
        let (store, workspace) = (&self.shared.store, self.record.workspace);
        // The tree is the session's base, but for how long?
        let _hold = self.shared.chunks.hold();
        let root = self.shared.snapshot(self.id()).await?;
        let config = store.workspace(workspace).await?.record;
        let tree = self.shared.tree(self.record.tenant, &config).await?;
        let before = match since {
            Some(commit) => {
                let commit = store.commit(workspace, commit).await?;
                commit.record.root()
            }
            None => Root::default(),
        };
        let hasher = NameHasher::new(config.name_key);
        let mut changes = compare(&tree, &hasher, (before, root), Options::default());
        let mut page = Page::default();
        for looked_at in 0.. {
            if looked_at == CHANGES_MAX {
                page.is_full = true;
            }
            let fits = match changes.next().await {
                Ok(Some(change)) => page.push(&change_line(&change)),
                Ok(None) => break,
                Err(SnapshotError::PathTooLong(long)) => page.line("?", &long.to_string()),
                Err(error) => return Err(error.into()),
            };
            if !fits {
                break;
            }
        }
        Ok(page.finish("... and more: publish or checkpoint, then holdfast diff\n"))
    }
}

/// A commit as people read it.
fn described(commit: &CommitInfo, marks: &[&str]) -> String {
    let record = &commit.record;
    let made = &record.provenance;
    let mut page = Page::default();
    let marks = if marks.is_empty() {
        String::new()
    } else {
        format!(" ({})", marks.join(", "))
    };
    page.push(format!("commit {}{marks}\n", commit.id).as_bytes());
    if record.parents.len() > 1 {
        let parents: Vec<String> = record.parents.iter().map(ToString::to_string).collect();
        page.line("merge", &parents.join(" "));
    }
    let session = made.session.map(|session| session.to_string());
    for (word, value) in [
        ("author", made.author.as_str()),
        ("agent", &made.agent),
        ("run", &made.run),
        ("session", session.as_deref().unwrap_or_default()),
        ("model", &made.model),
        ("call", &made.tool_call),
    ] {
        if !value.is_empty() {
            page.line(word, value);
        }
    }
    page.line("date", &show_time(record.time));
    let counts = record.statistics;
    let files = format!(
        "{} added, {} changed, {} removed",
        counts.added.files, counts.changed.files, counts.removed.files
    );
    page.line("files", &files);
    if record.conflicts > 0 {
        page.line("conflicts", &record.conflicts.to_string());
    }
    page.push(b"\n");
    let mut room = MESSAGE_BYTES_SHOWN;
    for line in record.message.lines() {
        let fits = |(at, letter): &(usize, char)| at + letter.len_utf8() <= room;
        let letters = line.char_indices().take_while(fits);
        let shown: String = letters.flat_map(|(_, letter)| harmless(letter)).collect();
        let is_cut = line.len() > room;
        let more = if is_cut { "..." } else { "" };
        page.push(format!("    {shown}{more}\n").as_bytes());
        if is_cut {
            break;
        }
        room = room.saturating_sub(line.len() + 1);
    }
    if !record.message.is_empty() {
        page.push(b"\n");
    }
    String::from_utf8_lossy(&page.bytes).into_owned()
}

/// A letter for what happened, and the path.
fn change_line(change: &PathChange) -> Vec<u8> {
    let letter = match change.what {
        What::Added => b'A',
        What::Removed => b'D',
        What::Modified => b'M',
        What::Renamed => b'R',
        What::TypeChanged => b'T',
    };
    let mut line = vec![letter, b' ', b' '];
    if let Some(old) = &change.old_path {
        push_path(&mut line, old);
        line.extend_from_slice(b" -> ");
    }
    push_path(&mut line, &change.path);
    line.push(b'\n');
    line
}

/// A conflict: what kind, and where.
pub(super) fn conflict_line(kind: ConflictKind, path: &[u8]) -> Vec<u8> {
    let mut line = format!("{:<17} ", kind.word()).into_bytes();
    push_path(&mut line, path);
    line.push(b'\n');
    line
}

/// Adds a path as it is; in quotation marks, with what is special as in C, if that could be taken for
/// something else.
pub(super) fn push_path(line: &mut Vec<u8>, path: &[u8]) {
    let special = |byte: &u8| byte.is_ascii_control() || matches!(byte, b'"' | b'\\');
    let arrow = path.windows(4).any(|part| part == b" -> ");
    let begins = path.is_empty() || path.starts_with(b" ") || path.starts_with(b"id:");
    if !arrow && !begins && !path.iter().any(special) {
        return line.extend_from_slice(path);
    }
    line.push(b'"');
    for byte in path {
        match byte {
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\t' => line.extend_from_slice(b"\\t"),
            b'"' | b'\\' => line.extend_from_slice(&[b'\\', *byte]),
            byte if byte.is_ascii_control() => {
                line.extend_from_slice(format!("\\{byte:03o}").as_bytes());
            }
            byte => line.push(*byte),
        }
    }
    line.push(b'"');
}

/// A letter that a terminal takes for nothing else.
fn harmless(letter: char) -> impl Iterator<Item = char> {
    let is_plain = !letter.is_control() || letter == '\t';
    let escaped = (!is_plain).then(|| letter.escape_default());
    let plain = is_plain.then_some(letter);
    plain.into_iter().chain(escaped.into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_exact_and_never_two_things() {
        for (path, shown) in [
            (&b"plain name"[..], &b"plain name"[..]),
            (b"bytes\xff\xfe", b"bytes\xff\xfe"),
            (b"a\nb", b"\"a\\nb\""),
            (b"tab\there", b"\"tab\\there\""),
            (b"\x1b[2J", b"\"\\033[2J\""),
            (b"say \"x\"", b"\"say \\\"x\\\"\""),
            (b"back\\slash", b"\"back\\\\slash\""),
            (b"a -> b", b"\"a -> b\""),
            (b"", b"\"\""),
            (b" a", b"\" a\""),
            (b"id:a", b"\"id:a\""),
            (b"a id:", b"a id:"),
        ] {
            let mut line = Vec::new();
            push_path(&mut line, path);
            assert_eq!(line, shown, "{path:?}");
        }
    }

    #[test]
    fn a_page_is_cut_at_a_part_and_says_so() {
        let mut page = Page::default();
        let part = [b'x'; 1000];
        let mut parts = 0;
        while page.push(&part) {
            parts += 1;
        }
        // What comes later is left out, too, though it would fit.
        assert!(!page.push(b"y"));
        let text = page.finish("cut\n");
        assert_eq!(text.len(), parts * 1000 + 4);
        assert!(text.len() <= TEXT_BYTES_MAX);
        assert!(text.ends_with(b"xcut\n"));
        let mut short = Page::default();
        assert!(short.line("agent", "two\nlines\u{1b}"));
        assert_eq!(short.finish("cut\n"), "agent       two\\nlines\\u{1b}\n");
    }
}
