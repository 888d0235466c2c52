//! Files of versions as JSON says them, and paths as texts from which their bytes come back.

use metadata::compare::What;
use metadata::lineage::{Blame as Blamed, Lines, NoLines, PathChanged};
use metadata::record::commit::CommitRecord;
use metadata::record::inode::InodeRecord;
use metadata::stat::FileKind;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::history::{Commit, kebab};
use crate::types::show_time;

/// A path with its bytes behind percent signs: everything but letters, digits and `-._~/`. What
/// `?path=` takes, exactly.
#[must_use]
pub fn escape_bytes(path: &[u8]) -> String {
    let mut escaped = String::with_capacity(path.len());
    for byte in path {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(byte) {
            escaped.push(char::from(*byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

/// The bytes of what [`escape_bytes`] gave; `None` if a percent sign is not followed by two
/// hexadecimal digits.
#[must_use]
pub fn unescape_bytes(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, behind) = rest.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok()?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = behind;
    }
    Some(bytes)
}

/// A path as a text for people and programs that need not be exact.
#[must_use]
pub fn text_of(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// The exact bytes, if the text does not say them.
#[must_use]
pub fn bytes_of(path: &[u8]) -> Option<String> {
    std::str::from_utf8(path)
        .is_err()
        .then(|| escape_bytes(path))
}

/// A path as somebody wrote it, as the engine has it: from the root directory, without slashes that
/// say nothing.
///
/// # Errors
///
/// Says what is no path.
pub fn parse_path(text: &[u8]) -> Result<Vec<u8>, String> {
    let names = text.split(|byte| *byte == b'/');
    let names: Vec<&[u8]> = names.filter(|name| *name != b".").collect();
    metadata::compare::parse_path(&names.join(&b'/')).map_err(|error| {
        let shown = show_bytes(text.get(..200).unwrap_or(text));
        format!("path {shown:?}: {error}: write it from the root directory, without ..")
    })
}

/// A path in quotation marks, as git reads it.
#[must_use]
pub fn in_git_quotes(path: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'"'];
    for byte in path {
        match byte {
            b'"' | b'\\' => quoted.extend([b'\\', *byte]),
            b' '..=b'~' => quoted.push(*byte),
            byte => quoted.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
        }
    }
    quoted.push(b'"');
    quoted
}

/// A path on a line of a terminal: control characters and bytes that are no UTF-8 are written out,
/// as in `a\xff`.
#[must_use]
pub fn show_bytes(path: &[u8]) -> String {
    let mut shown = String::with_capacity(path.len());
    for part in path.utf8_chunks() {
        for letter in part.valid().chars() {
            match letter {
                '\n' => shown.push_str("\\n"),
                '\r' => shown.push_str("\\r"),
                '\t' => shown.push_str("\\t"),
                control if control.is_control() => {
                    for byte in control.encode_utf8(&mut [0; 4]).bytes() {
                        shown.push_str(&format!("\\x{byte:02x}"));
                    }
                }
                letter => shown.push(letter),
            }
        }
        for byte in part.invalid() {
            shown.push_str(&format!("\\x{byte:02x}"));
        }
    }
    shown
}

/// What [`show_bytes`] shows of a path in an answer.
#[must_use]
pub fn show_path(path: &str, bytes: Option<&String>) -> String {
    match bytes.and_then(|bytes| unescape_bytes(bytes)) {
        Some(bytes) => show_bytes(&bytes),
        None => show_bytes(path.as_bytes()),
    }
}

/// `file`, `directory`, `symlink` and so on.
#[must_use]
pub fn kind_of(kind: FileKind) -> String {
    kebab(&format!("{kind:?}"))
}

/// Something in a version.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Entry {
    /// Its path from the root directory.
    pub path: String,
    /// The path's bytes, behind percent signs, if the path is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// `file`, `directory`, `symlink`, `block-device`, `char-device`, `fifo` or `socket`.
    pub kind: String,
    /// Permission bits, in decimal.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Bytes allocated; holes take none.
    pub used: u64,
    /// Hard links.
    pub links: u32,
    /// When its content was changed last.
    pub modified: String,
    /// The inode number: the same file has the same in all versions.
    pub inode: u64,
    /// Where a symbolic link leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The target's bytes, behind percent signs, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_bytes: Option<String>,
}

impl Entry {
    /// Describes what is at a path.
    #[must_use]
    pub fn new(path: &[u8], record: &InodeRecord) -> Self {
        let stat = &record.stat;
        let target = match stat.kind {
            FileKind::Symlink => record.inline.as_deref(),
            _ => None,
        };
        Self {
            path: text_of(path),
            path_bytes: bytes_of(path),
            kind: kind_of(stat.kind),
            mode: stat.mode,
            uid: stat.uid,
            gid: stat.gid,
            size: stat.size,
            used: stat.used,
            links: stat.nlink,
            modified: show_time(stat.mtime),
            inode: stat.inode.raw(),
            target: target.map(text_of),
            target_bytes: target.and_then(bytes_of),
        }
    }

    /// The path, exactly.
    #[must_use]
    pub fn exact_path(&self) -> Vec<u8> {
        let exact = self.path_bytes.as_deref().and_then(unescape_bytes);
        exact.unwrap_or_else(|| self.path.clone().into_bytes())
    }
}

/// What became of a path from one version to another.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ChangedPath {
    /// `added`, `removed`, `modified`, `renamed` or `type-changed`.
    pub what: String,
    /// The path then; for what was removed, the one it had.
    pub path: String,
    /// The path's bytes, behind percent signs, if the path is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// For what was renamed, the path it had.
    pub old_path: Option<String>,
    /// Its bytes, behind percent signs, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_path_bytes: Option<String>,
    /// `file`, `directory`, `symlink` and so on.
    pub kind: String,
    /// Its content differs; in the log of a directory, that of something in it.
    pub content: bool,
    /// Its permission bits differ.
    pub mode: bool,
    /// Its owner or group differs.
    pub owner: bool,
}

impl ChangedPath {
    /// Describes what happened, without what differs.
    #[must_use]
    pub fn new(what: What, path: &[u8], old_path: Option<&[u8]>, kind: FileKind) -> Self {
        Self {
            what: kebab(&format!("{what:?}")),
            path: text_of(path),
            path_bytes: bytes_of(path),
            old_path: old_path.map(text_of),
            old_path_bytes: old_path.and_then(bytes_of),
            kind: kind_of(kind),
            content: false,
            mode: false,
            owner: false,
        }
    }
}

/// What a commit did to a path.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PathChange {
    /// What became of it.
    #[serde(flatten)]
    pub changed: ChangedPath,
    /// So much differs in the commit that it was not looked for what of it is in the directory.
    pub unsure: bool,
}

impl From<PathChanged> for PathChange {
    fn from(changed: PathChanged) -> Self {
        let old_path = changed.old_path.as_deref();
        Self {
            changed: ChangedPath {
                content: changed.content,
                mode: changed.mode,
                owner: changed.owner,
                ..ChangedPath::new(changed.what, &changed.path, old_path, changed.kind)
            },
            unsure: changed.unsure,
        }
    }
}

/// A commit of the log of a path.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PathCommit {
    /// The commit.
    #[serde(flatten)]
    pub commit: Commit,
    /// What it did to the path.
    pub change: PathChange,
}

/// A commit that wrote something, in short.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Writer {
    /// Its id.
    pub commit: String,
    /// When it was made.
    pub time: String,
    /// The first line of its message.
    pub subject: String,
    /// The person or system on whose behalf.
    pub author: String,
    /// The agent.
    pub agent: String,
    /// The session.
    pub session: Option<String>,
    /// The run.
    pub run: String,
    /// The model.
    pub model: String,
    /// The tool call.
    pub tool_call: String,
}

/// Most bytes of a message that are told with a line.
const SUBJECT_BYTES_MAX: usize = 200;

impl Writer {
    fn new(id: base::CommitId, record: &CommitRecord) -> Self {
        let made = &record.provenance;
        let first = record.message.lines().next().unwrap_or_default();
        let end = first.floor_char_boundary(SUBJECT_BYTES_MAX);
        Self {
            commit: id.to_string(),
            time: show_time(record.time),
            subject: first.get(..end).unwrap_or_default().to_owned(),
            author: made.author.clone(),
            agent: made.agent.clone(),
            session: made.session.map(|session| session.to_string()),
            run: made.run.clone(),
            model: made.model.clone(),
            tool_call: made.tool_call.clone(),
        }
    }
}

/// Where lines are from.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Source {
    /// Who wrote them.
    #[serde(flatten)]
    pub writer: Writer,
    /// The path of the file there.
    pub path: String,
    /// The path's bytes, behind percent signs, if the path is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
}

/// Lines one after the other that are from one source.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub struct BlamedLines {
    /// The first of them, counted from 1.
    pub first: usize,
    /// How many.
    pub count: usize,
    /// Which of `sources`, counted from 0.
    pub source: usize,
    /// Where the first of them is in the file there, counted from 1.
    pub there: usize,
    /// The history was followed no further: an older commit may have written them.
    pub edge: bool,
}

/// Who wrote a file.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Blame {
    /// The commit of the version.
    pub version: String,
    /// The path.
    pub path: String,
    /// The path's bytes, behind percent signs, if the path is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// `file`, `directory`, `symlink` and so on.
    pub kind: String,
    /// Who made it; not known if `complete` is not set.
    pub created: Option<Writer>,
    /// Who changed it last: its content, its mode, its owner or its path.
    pub changed: Option<Writer>,
    /// Who wrote its content last.
    pub written: Option<Writer>,
    /// Its lines; none if it is not told by lines.
    pub lines: Option<Vec<BlamedLines>>,
    /// Why it is not told by lines.
    pub no_lines: Option<String>,
    /// Where lines are from.
    pub sources: Vec<Source>,
    /// Its history was followed to where it was made; else it is too long for one call.
    pub complete: bool,
}

impl Blame {
    /// Describes who wrote what is at a path of a version.
    #[must_use]
    pub fn new(version: base::CommitId, path: &[u8], blamed: Blamed) -> Self {
        let commits = &blamed.commits;
        let writer = |id: Option<base::CommitId>| {
            let id = id?;
            Some(Writer::new(id, &commits.get(&id)?.record))
        };
        let mut sources = Vec::new();
        let mut known = std::collections::HashMap::new();
        let (mut lines, mut no_lines) = (None, None);
        match &blamed.lines {
            Lines::Not(why) => no_lines = Some(why_not(*why)),
            Lines::Told(spans) => {
                let mut told = Vec::with_capacity(spans.len());
                for span in spans {
                    let source = *known.entry((span.commit, &span.path)).or_insert_with(|| {
                        let writer = writer(Some(span.commit));
                        sources.extend(writer.map(|writer| Source {
                            writer,
                            path: text_of(&span.path),
                            path_bytes: bytes_of(&span.path),
                        }));
                        sources.len().saturating_sub(1)
                    });
                    told.push(BlamedLines {
                        first: span.first + 1,
                        count: span.count,
                        source,
                        there: span.there + 1,
                        edge: span.is_edge,
                    });
                }
                lines = Some(told);
            }
        }
        Self {
            version: version.to_string(),
            path: text_of(path),
            path_bytes: bytes_of(path),
            kind: kind_of(blamed.record.stat.kind),
            created: writer(blamed.created),
            changed: writer(blamed.changed),
            written: writer(blamed.written),
            lines,
            no_lines,
            sources,
            complete: blamed.is_complete,
        }
    }
}

fn why_not(why: NoLines) -> String {
    use metadata::lineage::{LINES_MAX, TEXT_BYTES_MAX};
    match why {
        NoLines::Kind => "only files have lines".to_owned(),
        NoLines::Large => format!("the file has more than {TEXT_BYTES_MAX} bytes"),
        NoLines::Long => format!("the file has more than {LINES_MAX} lines"),
        NoLines::Binary => "the file is no text: it has NUL bytes".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_from_the_root() {
        for (text, path) in [
            (&b"//a/./b/"[..], &b"a/b"[..]),
            (b"./a", b"a"),
            (b"/", b""),
            (b".", b""),
            (b"a/\xff", b"a/\xff"),
        ] {
            assert_eq!(parse_path(text).as_deref(), Ok(path));
        }
        for wrong in [&b"a/../b"[..], b"a\0b", &[b'x'; 256]] {
            assert!(parse_path(wrong).is_err());
        }
    }

    #[test]
    fn bytes_come_back() {
        let all: Vec<u8> = (0..=255).collect();
        for bytes in [
            &all[..],
            b"",
            b"a b/c%d",
            "äöü/\u{1f600}".as_bytes(),
            b"\xff\xfe",
        ] {
            let escaped = escape_bytes(bytes);
            assert!(escaped.is_ascii());
            assert_eq!(unescape_bytes(&escaped).unwrap(), bytes);
        }
        assert_eq!(escape_bytes(b"a b/\xff"), "a%20b/%FF");
        for bad in ["%", "%1", "%zz", "a%+1", "%é"] {
            assert_eq!(unescape_bytes(bad), None, "{bad}");
        }
        assert_eq!(bytes_of("ä%".as_bytes()), None);
        assert_eq!(bytes_of(b"\xff%").as_deref(), Some("%FF%25"));
    }

    #[test]
    fn shown_paths_stay_on_their_line() {
        assert_eq!(show_bytes(b"a\n\xff\x1bb"), "a\\n\\xff\\x1bb");
        let bytes = Some("a%FF".to_owned());
        assert_eq!(show_path("a\u{fffd}", bytes.as_ref()), "a\\xff");
        assert_eq!(show_path("ä\t", None), "ä\\t");
    }
}
