//! `publish` and `checkpoint`: files that take a message, and whose `close` says whether it worked.
//! `changed` takes a number in the same way.
//!
//! A client writes a short file in one stable WRITE, or in several that are not and a COMMIT. Either
//! is answered when the publish is done, with its status. Any of them may come again.

use std::sync::Arc;

use base::InodeId;
use bytes::Bytes;
use metadata::FsError;
use metadata::merge::Policy;
use metadata::record::commit::MESSAGE_BYTES_MAX;

use super::resolving::listed_lines;
use super::text::{Page, conflict_line};
use super::trouble::Trouble;
use super::{Object, Request, Session, Text};
use crate::history::{About, HistoryError, Outcome, Published};
use crate::wire::args::{SetattrArgs, WriteArgs};
use crate::wire::nfs3::{Stability, Wcc};
use crate::wire::reply::Reply;
use crate::wire::results::{self, CommitOk, WccOk, WriteOk};

/// Most bytes of a message that is being written, with line breaks at its end.
const WRITTEN_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;

/// What is said of a longer one.
const TOO_LONG: &str = "the message is longer than 32 KiB";

/// A file that takes messages.
#[derive(Debug, Default)]
pub(super) struct Verb {
    /// What was written and has led to nothing yet.
    message: Option<Message>,
    /// What the last message came to.
    last: Option<FsError>,
    /// The last message, if it was carried out.
    done: Option<Vec<u8>>,
    /// A message was too long, and more of it may come, in any order, until a COMMIT has said so or the
    /// file is truncated. Who finds the file anew, as the inode of this series or a later one, writes another.
    over_before: Option<u64>,
}

impl Verb {
    /// Whether a WRITE to this inode may be of a message: the rest of one that was too long is none.
    fn takes(&self, object: Object, inode: InodeId) -> Result<(), FsError> {
        match self.over_before {
            Some(series) if inode < object.inode(series) => Err(FsError::Invalid),
            _ => Ok(()),
        }
    }
}

/// A message as far as it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Message {
    /// Where in the file it begins: who appends begins behind the text that is shown.
    start: u64,
    bytes: Vec<u8>,
}

impl Message {
    /// What came before, and what a WRITE brings.
    fn with(before: Option<&Self>, offset: u64, data: &Bytes) -> Result<Self, FsError> {
        let before = before.map_or((offset, &[][..]), |it| (it.start, &it.bytes));
        let start = before.0.min(offset);
        let shift = |at: u64| usize::try_from(at - start).map_err(|_| FsError::TooLarge);
        let parts = [(shift(before.0)?, before.1), (shift(offset)?, data)];
        let ends = parts.map(|(at, part)| at.saturating_add(part.len()));
        let end = ends.into_iter().max().unwrap_or_default();
        if end > WRITTEN_BYTES_MAX {
            return Err(FsError::TooLarge);
        }
        // What nobody wrote is zeros, and no message.
        let mut bytes = vec![0; end];
        for (at, part) in parts {
            for (byte, from) in bytes.iter_mut().skip(at).zip(part) {
                *byte = *from;
            }
        }
        Ok(Self { start, bytes })
    }
}

/// What a message came to.
pub(super) struct Done {
    /// What the file says then.
    pub(super) said: Bytes,
    /// What clashed.
    pub(super) conflicts: Bytes,
    pub(super) status: Option<FsError>,
}

impl Done {
    pub(super) fn succeeded(said: Bytes) -> Self {
        Self {
            said,
            conflicts: Bytes::new(),
            status: None,
        }
    }

    pub(super) fn failed(status: FsError, why: &str) -> Self {
        let mut page = Page::default();
        page.line("failed", why);
        Self {
            said: page.finish(""),
            conflicts: Bytes::new(),
            status: Some(status),
        }
    }
}

impl Session {
    /// WRITE.
    pub(super) async fn write_verb(
        self: &Arc<Self>,
        request: &Request<'_>,
        object: Object,
        args: &WriteArgs<'_>,
    ) -> Result<Reply, Trouble> {
        let committed = if args.data.is_empty() {
            args.stability
        } else if args.stability == Stability::Unstable {
            let is_too_long = {
                let mut state = self.inside.state.lock();
                let verb = state.verb(object);
                verb.takes(object, request.objects.first)?;
                verb.message = Message::with(verb.message.as_ref(), args.offset, &args.data).ok();
                verb.message.is_none()
            };
            if is_too_long {
                return Err(self.too_long(object).into());
            }
            Stability::Unstable
        } else {
            let _one_at_a_time = self.inside.publishing.lock().await;
            let inode = request.objects.first;
            self.inside.state.lock().verb(object).takes(object, inode)?;
            let before = self.take_message(object);
            let Ok(message) = Message::with(before.as_ref(), args.offset, &args.data) else {
                return Err(self.too_long(object).into());
            };
            // What this call brings comes again with it.
            self.carry_out(object, &message, before).await?;
            Stability::FileSync
        };
        let verifier = self.verifier(&self.lock());
        Ok(results::ok(
            request.call.xid,
            &WriteOk {
                wcc: Wcc::default(),
                count: u32::try_from(args.data.len()).unwrap_or(u32::MAX),
                committed,
                verifier,
            },
        ))
    }

    /// COMMIT.
    pub(super) async fn commit_verb(
        self: &Arc<Self>,
        request: &Request<'_>,
        object: Object,
    ) -> Result<Reply, Trouble> {
        {
            let _one_at_a_time = self.inside.publishing.lock().await;
            match self.take_message(object) {
                Some(message) => {
                    self.carry_out(object, &message, Some(message.clone()))
                        .await?;
                }
                // It came before, or there was no message.
                None => self.last_status(object)?,
            }
        }
        let verifier = self.verifier(&self.lock());
        Ok(results::ok(
            request.call.xid,
            &CommitOk {
                wcc: Wcc::default(),
                verifier,
            },
        ))
    }

    /// SETATTR: what an `open` sends that truncates. It makes the file empty.
    pub(super) fn set_verb(
        &self,
        request: &Request<'_>,
        object: Object,
        args: &SetattrArgs<'_>,
    ) -> Result<Reply, Trouble> {
        let asked = &args.attributes;
        if asked.mode.is_some() || asked.uid.is_some() || asked.gid.is_some() {
            return Err(FsError::NotPermitted.into());
        }
        match asked.size {
            // What a client sends that knows the file to be empty already.
            None => {
                let mut state = self.inside.state.lock();
                let verb = state.verb(object);
                (verb.message, verb.over_before) = (None, None);
            }
            Some(0) => self.empty_verb(object),
            Some(_) => return Err(FsError::Invalid.into()),
        }
        let wcc = Wcc::default();
        Ok(results::ok(request.call.xid, &WccOk { wcc }))
    }

    /// Forgets a message and what the last one came to.
    pub(super) fn empty_verb(&self, object: Object) {
        let now = self.shared.clock.wall();
        if object == Object::Resolve {
            self.shared.begun.forget(self.id());
        }
        let mut state = self.inside.state.lock();
        state.verbs.insert(object, Verb::default());
        let changed = state.later(now);
        let text = Text {
            changed,
            ..Text::default()
        };
        state.texts.insert(object, text);
    }

    fn take_message(&self, object: Object) -> Option<Message> {
        self.inside.state.lock().verb(object).message.take()
    }

    /// Says that a message is too long. Nothing of it is kept.
    fn too_long(&self, object: Object) -> FsError {
        let why = match object {
            Object::Publish | Object::Checkpoint => TOO_LONG,
            _ => "what was written is too long",
        };
        self.settle(object, Done::failed(FsError::Invalid, why), None);
        let mut state = self.inside.state.lock();
        state.verb(object).over_before = Some(state.series);
        FsError::Invalid
    }

    fn last_status(&self, object: Object) -> Result<(), FsError> {
        let mut state = self.inside.state.lock();
        let verb = state.verb(object);
        // Whoever wrote too much is told now.
        verb.over_before = None;
        verb.last.map_or(Ok(()), Err)
    }

    /// Whether this message was carried out, and none since.
    pub(super) fn was_done(&self, object: Object, message: &[u8]) -> bool {
        let state = self.inside.state.lock();
        let done = state.verbs.get(&object).and_then(|verb| verb.done.as_ref());
        done.is_some_and(|done| done == message)
    }

    /// Does what the file is for. If it has to be tried again `kept` waits for that.
    async fn carry_out(
        self: &Arc<Self>,
        object: Object,
        message: &Message,
        kept: Option<Message>,
    ) -> Result<(), Trouble> {
        let done = match self.run_verb(object, &message.bytes).await {
            Ok(done) => done,
            Err(trouble) => {
                let mut state = self.inside.state.lock();
                let verb = state.verbs.entry(object).or_default();
                if verb.message.is_none() {
                    verb.message = kept;
                }
                return Err(trouble);
            }
        };
        let status = done.status;
        let carried_out = status.is_none().then(|| message.bytes.clone());
        self.settle(object, done, carried_out);
        status.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Keeps what a message came to.
    fn settle(&self, object: Object, done: Done, carried_out: Option<Vec<u8>>) {
        let now = self.shared.clock.wall();
        let mut state = self.inside.state.lock();
        let verb = state.verb(object);
        verb.last = done.status;
        verb.done = carried_out;
        if object == Object::Publish {
            state.conflicts = done.conflicts;
        }
        // Also if it says the same again: the client has what it wrote for the content.
        let changed = state.later(now);
        if done.status.is_some() {
            state.begin_series(now);
        }
        let text = Text {
            content: done.said,
            changed,
            basis: None,
        };
        state.texts.insert(object, text);
    }

    /// `Err` only if it has to be tried again.
    async fn run_verb(self: &Arc<Self>, object: Object, message: &[u8]) -> Result<Done, Trouble> {
        if object == Object::Resolve {
            return self.resolve(message).await;
        }
        let message = match text_of(message) {
            Ok(message) => message,
            Err(why) => return Ok(Done::failed(FsError::Invalid, why)),
        };
        let (gateway, tenant, id) = (&self.shared, self.record.tenant, self.id());
        if object == Object::Changed {
            return self.acknowledge(message).await;
        }
        let about = About {
            message: message.to_owned(),
            ..About::default()
        };
        let done = if object == Object::Publish {
            let published = gateway.publish(tenant, id, about, None, Policy::Fail).await;
            published.map(|published| told(&published))
        } else {
            let made = gateway.checkpoint(tenant, id, about).await;
            made.map(|made| {
                let mut page = Page::default();
                let outcome = if made.is_new { "new" } else { "unchanged" };
                page.line("checkpoint", outcome);
                page.line("commit", &made.commit.id.to_string());
                Done::succeeded(page.finish(""))
            })
        };
        match done {
            Ok(done) => Ok(done),
            Err(error) => match Trouble::from(&error) {
                Trouble::Unavailable => Err(Trouble::Unavailable),
                Trouble::Fail(status) => self.refused(status, &error).await,
            },
        }
    }
}

impl Session {
    /// What is said of a message that was refused.
    async fn refused(
        self: &Arc<Self>,
        status: FsError,
        error: &HistoryError,
    ) -> Result<Done, Trouble> {
        let mut done = Done::failed(status, &error.to_string());
        let mut clashes = Page::default();
        match error {
            HistoryError::Conflicts { conflicts, .. } => {
                for it in conflicts {
                    clashes.push(&conflict_line(it.kind, &it.place.path));
                }
            }
            // As `resolve` takes them.
            HistoryError::Unresolved { conflicts, .. } => {
                let first = &conflicts.first;
                let listed = self.shared.locate_conflicts(self.id(), first).await;
                for it in &listed.map_err(|error| Trouble::from(&error))? {
                    clashes.push(&listed_lines(it));
                }
            }
            _ => return Ok(done),
        }
        let clashes = clashes.finish("... and more\n");
        let mut page = Page::default();
        page.push(&done.said);
        page.push(&clashes);
        done.said = page.finish("... and more: .holdfast/conflicts\n");
        // Those that the session has are listed anyway.
        if matches!(error, HistoryError::Conflicts { .. }) {
            done.conflicts = clashes;
        }
        Ok(done)
    }

    /// Drops what changed from outside up to the position in `message`. It may come again.
    async fn acknowledge(&self, message: &str) -> Result<Done, Trouble> {
        let Ok(position) = message.trim().parse() else {
            let why = "write the number that the list has behind /position=";
            return Ok(Done::failed(FsError::Invalid, why));
        };
        let (tenant, id) = (self.record.tenant, self.id());
        let done = self.shared.acknowledge_changed(tenant, id, position).await;
        match done.as_ref().map_err(Trouble::from) {
            Ok(()) => Ok(Done::succeeded(self.changed_text().await?)),
            Err(Trouble::Unavailable) => Err(Trouble::Unavailable),
            Err(Trouble::Fail(status)) => Ok(Done::failed(status, "it was not acknowledged")),
        }
    }
}

/// The message, without line breaks at its end.
fn text_of(written: &[u8]) -> Result<&str, &'static str> {
    let text = std::str::from_utf8(written).map_err(|_| "the message is not UTF-8")?;
    let text = text.trim_end_matches(['\n', '\r']);
    let plain = |letter: char| !letter.is_control() || matches!(letter, '\n' | '\r' | '\t');
    if text.len() > MESSAGE_BYTES_MAX {
        return Err(TOO_LONG);
    }
    if !text.chars().all(plain) {
        return Err("the message has control characters that are no line breaks and no tabs");
    }
    Ok(text)
}

fn told(published: &Published) -> Done {
    let outcome = match published.outcome {
        Outcome::Created => "created",
        Outcome::FastForward => "fast-forward",
        Outcome::Merged => "merged",
        Outcome::UpToDate => "up-to-date",
    };
    let mut page = Page::default();
    page.line("published", outcome);
    page.line("branch", published.branch.as_str());
    page.line("branch-at", &published.head.to_string());
    page.line("commit", &published.commit.id.to_string());
    // With any conflicts it would have failed.
    Done::succeeded(page.finish(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(parts: &[(u64, &str)]) -> Result<Message, FsError> {
        let mut message = None;
        for (offset, part) in parts {
            let data = Bytes::copy_from_slice(part.as_bytes());
            message = Some(Message::with(message.as_ref(), *offset, &data)?);
        }
        Ok(message.unwrap())
    }

    #[test]
    fn a_message_is_put_together_from_what_comes() {
        for (parts, start, whole) in [
            (&[(0, "one")][..], 0, "one"),
            (&[(0, "one"), (3, " two")], 0, "one two"),
            // In another order, and again.
            (&[(3, " two"), (0, "one"), (0, "one")], 0, "one two"),
            // Behind what the file shows.
            (&[(117, "appended")], 117, "appended"),
            (&[(0, "first"), (0, "12")], 0, "12rst"),
        ] {
            let message = written(parts).unwrap();
            assert_eq!(
                (message.start, &message.bytes[..]),
                (start, whole.as_bytes())
            );
        }
        let gap = written(&[(0, "a"), (3, "b")]).unwrap();
        assert_eq!(gap.bytes, b"a\0\0b");
        assert!(text_of(&gap.bytes).is_err());
    }

    #[test]
    fn a_message_is_bounded() {
        let long = "x".repeat(WRITTEN_BYTES_MAX);
        assert!(written(&[(0, &long)]).is_ok());
        for parts in [
            &[(1, &*long), (0, "y")][..],
            &[(0, "a"), (u64::MAX, "b")],
            &[(u64::MAX, "b"), (0, "a")],
        ] {
            assert_eq!(written(parts), Err(FsError::TooLarge));
        }
    }

    #[test]
    fn messages_are_text() {
        assert_eq!(text_of(b"said\n"), Ok("said"));
        assert_eq!(text_of(b"two\n\nlines\r\n\n"), Ok("two\n\nlines"));
        assert_eq!(text_of(b""), Ok(""));
        assert!(text_of(b"\xff").is_err());
        assert!(text_of(b"\x1b[2J").is_err());
        let long = "x".repeat(MESSAGE_BYTES_MAX + 1);
        assert!(text_of(long.as_bytes()).is_err());
        assert!(text_of(&long.as_bytes()[1..]).is_ok());
    }
}
