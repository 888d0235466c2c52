//! `conflicts`: what the session has unresolved, and what clashed at the last publish. `resolve`: takes a
//! line with what is to become of one of them.

use std::collections::VecDeque;
use std::sync::Arc;

use base::SessionId;
use bytes::Bytes;
use metadata::FsError;
use metadata::conflicts::{ConflictId, PAGE_MAX, parse_id, show_id};
use metadata::merge::Side;
use metadata::ops::Take;
use metadata::record::conflict::ConflictKind;
use parking_lot::Mutex;

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
        let (gateway, tenant, id) = (&self.shared, self.record.tenant, self.id());
        // The same call again means the same conflict.
        let begun = gateway.begun.of(id, message);
        let which = begun.map_or(which, |begun| Which::Id(begun.id));
        let error = match gateway.resolve_conflict(tenant, id, which, take).await {
            Ok(resolved) => {
                gateway.begun.forget(id);
                let kind = resolved.conflict.unresolved.conflict.kind;
                return Ok(said_of(kind, resolved.left));
            }
            Err(error) => error,
        };
        if let ResolveError::Unknown { id: conflict, kind } = error {
            let begun = Begun { id: conflict, kind };
            gateway.begun.remember(id, message, begun);
            return Err(Trouble::Unavailable);
        }
        // The same call again, whose answer did not arrive, or was not known.
        if matches!(error, ResolveError::NotFound) {
            if let Some(begun) = begun {
                let left = gateway.count_conflicts(id).await;
                let left = left.map_err(|error| Trouble::from(&error))?;
                gateway.begun.forget(id);
                return Ok(said_of(begun.kind, left));
            }
            if self.was_done(Object::Resolve, message) {
                let said = self.present_text(Object::Resolve).await?.content;
                return Ok(Done::succeeded(said));
            }
        }
        match Trouble::from(&error) {
            Trouble::Unavailable => Err(Trouble::Unavailable),
            Trouble::Fail(status) => {
                gateway.begun.forget(id);
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

/// What is said of a conflict that was resolved.
fn said_of(kind: ConflictKind, left: u64) -> Done {
    let mut page = Page::default();
    page.line("resolved", kind.word());
    page.line("left", &left.to_string());
    Done::succeeded(page.finish(""))
}

/// Most resolutions that are remembered because nobody knows what came of them.
const BEGUN_MAX: usize = 64;

/// A resolution of which it is not known whether it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Begun {
    id: ConflictId,
    kind: ConflictKind,
}

/// Messages to `resolve` of which it is not known what they came to, one of a session, the oldest first. They
/// come again, also when the session has been taken over anew.
#[derive(Debug, Default)]
pub(crate) struct BegunMessages(Mutex<VecDeque<(SessionId, Vec<u8>, Begun)>>);

impl BegunMessages {
    /// What this message has begun.
    fn of(&self, session: SessionId, message: &[u8]) -> Option<Begun> {
        let messages = self.0.lock();
        let mut same = messages
            .iter()
            .filter(|(of, said, _)| (*of, &said[..]) == (session, message));
        same.next().map(|(_, _, begun)| *begun)
    }

    fn remember(&self, session: SessionId, message: &[u8], begun: Begun) {
        let mut messages = self.0.lock();
        messages.retain(|(of, ..)| *of != session);
        if messages.len() >= BEGUN_MAX {
            messages.pop_front();
        }
        messages.push_back((session, message.to_vec(), begun));
    }

    /// What came of it is known, or somebody says something else.
    pub(super) fn forget(&self, session: SessionId) {
        self.0.lock().retain(|(of, ..)| *of != session);
    }
}

/// The lines that tell of a conflict: its kind and where it is now, and below where the other version is.
pub(super) fn listed_lines(listed: &ListedConflict) -> Vec<u8> {
    let mut lines = conflict_line(listed.unresolved.conflict.kind, listed.path());
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
    let which = match (path.strip_prefix(b"\""), path.strip_prefix(b"id:")) {
        (Some(quoted), _) => Which::Path(unquoted(quoted.strip_suffix(b"\"")?)?),
        (None, Some(id)) => Which::Id(parse_id(str::from_utf8(id).ok()?)?),
        // A line for each: the next one would be lost if this one failed.
        (None, None) if path.is_empty() || path.contains(&b'\n') => return None,
        (None, None) => Which::Path(path.to_vec()),
    };
    match &which {
        // In no name, and what nobody wrote of a message.
        Which::Path(path) if path.contains(&0) => None,
        _ => Some((take, which)),
    }
}

/// What `push_path` shows in quotation marks. None if it would not show that.
fn unquoted(quoted: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = quoted.iter().copied();
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
    fn few_messages_are_remembered() {
        let begun = |number: u64| Begun {
            id: u128::from(number).to_be_bytes(),
            kind: ConflictKind::Content,
        };
        let messages = BegunMessages::default();
        let session = SessionId::new(1);
        messages.remember(session, b"ours f", begun(1));
        assert_eq!(messages.of(session, b"ours f"), Some(begun(1)));
        assert_eq!(messages.of(session, b"ours g"), None);
        assert_eq!(messages.of(SessionId::new(2), b"ours f"), None);
        messages.remember(session, b"ours g", begun(2));
        assert_eq!(messages.of(session, b"ours f"), None);
        for number in 0..u64::try_from(BEGUN_MAX).unwrap() {
            messages.remember(SessionId::new(10 + number), b"", begun(number));
        }
        assert_eq!(messages.of(session, b"ours g"), None);
        assert_eq!(messages.0.lock().len(), BEGUN_MAX);
        messages.forget(SessionId::new(11));
        assert_eq!(messages.of(SessionId::new(11), b""), None);
        assert_eq!(messages.of(SessionId::new(12), b""), Some(begun(2)));
    }

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
            b"",
            b" a",
            b"  ",
            b"a ",
            b"id:f",
            b"id:07070707070707070707070707070707",
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
        // One blank, and then the path.
        let read = parse(b"file  a");
        assert_eq!(read, Some((Take::File, Which::Path(b" a".to_vec()))));
        for wrong in [
            &b""[..],
            b"ours",
            b"ours ",
            b"ours \n",
            b"ours id:f",
            b"ours id:",
            b"ours \"",
            b"ours \"\\000\"",
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
