//! `conflicts`: what the session has unresolved, and what clashed at the last publish. `resolve`: takes a
//! line with what is to become of one of them.

use std::sync::Arc;

use bytes::Bytes;
use metadata::FsError;
use metadata::conflicts::{PAGE_MAX, parse_id, show_id};
use metadata::merge::Side;
use metadata::ops::Take;

use super::text::{Page, conflict_line, push_path};
use super::trouble::Trouble;
use super::verbs::Done;
use super::{Object, Session};
use crate::history::{ListedConflict, ResolveError, Which};

/// How it is said what is to become of a conflict.
const USAGE: &str =
    "write ours, theirs, both or file, a blank, and the path as .holdfast/conflicts has it";

impl Session {
    /// What the session has unresolved, then what clashed at the last publish.
    pub(super) async fn conflicts_text(self: &Arc<Self>) -> Result<Bytes, Trouble> {
        let clashed = self.inside.state.lock().conflicts.clone();
        let mut page = Page::default();
        let mut after = None;
        loop {
            let listed = self
                .shared
                .session_conflicts(self.record.tenant, self.id(), after, PAGE_MAX)
                .await
                .map_err(|error| Trouble::from(&error))?;
            if after.is_none() && !listed.items.is_empty() {
                page.push(b"unresolved here, to be settled with .holdfast/resolve:\n");
            }
            let all_fit = listed.items.iter().all(|it| page.push(&listed_lines(it)));
            after = listed.items.last().map(|last| last.unresolved.id);
            if !listed.more || !all_fit {
                break;
            }
        }
        if after.is_some() && !clashed.is_empty() {
            page.push(b"clashed at the last publish:\n");
        }
        page.push(&clashed);
        Ok(page.finish("... and more: holdfast conflicts ls tells all\n"))
    }

    /// Resolves a conflict of the session.
    pub(super) async fn resolve(self: &Arc<Self>, message: &[u8]) -> Result<Done, Trouble> {
        let Some((take, which)) = parse(message) else {
            return Ok(Done::failed(FsError::Invalid, USAGE));
        };
        let (tenant, id) = (self.record.tenant, self.id());
        let error = match self.shared.resolve_conflict(tenant, id, which, take).await {
            Ok(resolved) => {
                let mut page = Page::default();
                page.line(
                    "resolved",
                    resolved.conflict.unresolved.conflict.kind.word(),
                );
                page.line("left", &resolved.left.to_string());
                return Ok(Done {
                    said: page.finish(""),
                    conflicts: Bytes::new(),
                    status: None,
                });
            }
            Err(error) => error,
        };
        // The same call again, whose answer did not arrive.
        if matches!(error, ResolveError::NotFound) && self.was_done(Object::Resolve, message) {
            return Ok(Done {
                said: self.present_text(Object::Resolve).await?.content,
                conflicts: Bytes::new(),
                status: None,
            });
        }
        match Trouble::from(&error) {
            Trouble::Unavailable => Err(Trouble::Unavailable),
            Trouble::Fail(status) => {
                let mut page = Page::default();
                page.push(&Done::failed(status, &error.to_string()).said);
                if let ResolveError::Several(several) = &error {
                    for (id, kind) in several {
                        page.line(kind.word(), &format!("id:{}", show_id(id)));
                    }
                }
                Ok(Done {
                    said: page.finish(""),
                    conflicts: Bytes::new(),
                    status: Some(status),
                })
            }
        }
    }
}

/// The lines that tell of a conflict: its kind and its path, and below where the other version is.
fn listed_lines(listed: &ListedConflict) -> Vec<u8> {
    let mut lines = conflict_line(&listed.unresolved.conflict);
    if let Some(aside) = &listed.located.aside {
        lines.extend_from_slice(format!("{:<17} ", "  beside it").as_bytes());
        push_path(&mut lines, aside);
        lines.push(b'\n');
    }
    lines
}

/// What is to become of which conflict: a word, a blank, and a path, or `id:` and an id.
fn parse(message: &[u8]) -> Option<(Take, Which)> {
    let message = message.strip_suffix(b"\n").unwrap_or(message);
    let at = message.iter().position(|byte| *byte == b' ')?;
    let (word, path) = (message.get(..at)?, message.get(at + 1..)?);
    let take = match word {
        b"ours" => Take::Side(Side::Ours),
        b"theirs" => Take::Side(Side::Theirs),
        b"both" => Take::Both,
        b"file" => Take::File,
        _ => return None,
    };
    let path = unquoted(path.trim_ascii_start())?;
    // A line for each: the next one would be lost if this one failed.
    if path.is_empty() || path.contains(&0) {
        return None;
    }
    let id = path
        .strip_prefix(b"id:")
        .and_then(|id| str::from_utf8(id).ok());
    match id.and_then(parse_id) {
        Some(id) => Some((take, Which::Id(id))),
        None => Some((take, Which::Path(path))),
    }
}

/// A path as `conflicts` shows it. None if it is several lines or its quotation marks are wrong.
fn unquoted(shown: &[u8]) -> Option<Vec<u8>> {
    let Some(quoted) = shown.strip_prefix(b"\"") else {
        return (!shown.contains(&b'\n')).then(|| shown.to_vec());
    };
    let mut bytes = quoted.strip_suffix(b"\"")?.iter().copied();
    let mut path = Vec::new();
    while let Some(byte) = bytes.next() {
        path.push(match byte {
            b'\\' => match bytes.next()? {
                b'n' => b'\n',
                b't' => b'\t',
                special @ (b'"' | b'\\') => special,
                first @ b'0'..=b'3' => {
                    let mut value = first - b'0';
                    for _ in 0..2 {
                        let digit = bytes.next().filter(|digit| (b'0'..=b'7').contains(digit))?;
                        value = value * 8 + (digit - b'0');
                    }
                    value
                }
                _ => return None,
            },
            b'"' | b'\n' => return None,
            byte => byte,
        });
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_are_shown() {
        for path in [
            &b"f"[..],
            b"a b/c",
            b"\xff\xfe",
            b"a\nb",
            b"a\"\\b",
            b"\x01\x7f\t",
            b"a -> b",
        ] {
            let mut line = b"theirs ".to_vec();
            push_path(&mut line, path);
            let read = Some((Take::Side(Side::Theirs), Which::Path(path.to_vec())));
            assert_eq!(parse(&line), read);
            line.push(b'\n');
            assert_eq!(parse(&line), read);
        }
        let id = [7; 16];
        let line = format!("both id:{}", show_id(&id));
        assert_eq!(parse(line.as_bytes()), Some((Take::Both, Which::Id(id))));
        for wrong in [
            &b""[..],
            b"ours",
            b"ours ",
            b"mine f",
            b"ours a\nours b\n",
            b"ours \"a",
            b"ours \"a\\x\"",
            b"ours \"a\"b\"",
            b"ours \"a\\40",
        ] {
            assert_eq!(parse(wrong), None, "{:?}", String::from_utf8_lossy(wrong));
        }
    }
}
