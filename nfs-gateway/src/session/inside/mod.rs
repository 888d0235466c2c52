//! `.holdfast`: history inside the mount (`docs/design/0008-in-the-mount.md`).
//!
//! | file | what |
//! | --- | --- |
//! | `directory.rs` | the procedures on `.holdfast` and what is directly in it |
//! | `text.rs` | what `status`, `log`, `diff` and `changed` say |
//! | `verbs.rs` | `publish`, `checkpoint`, and acknowledging `changed` |
//! | `resolving.rs` | what `conflicts` says, and `resolve` |
//! | `commit.rs` | trees of commits, below `at` |
//! | `trouble.rs` | why a call gets no result of its own |
//!
//! The lock in [`Inside`] is taken for a moment, under the session's or without it; no other is taken
//! under it.

mod commit;
mod directory;
mod resolving;
mod text;
mod trouble;
mod verbs;

use std::collections::HashMap;
use std::sync::Arc;

use base::{InodeId, Timestamp};
use bytes::Bytes;
use metadata::FsError;
use metadata::image::DIRECTORY_BYTES;
use metadata::stat::{Device, FileKind, Stat};
use parking_lot::Mutex;

use self::text::Basis;
use self::trouble::Trouble;
use self::verbs::Verb;
use super::slow::{PATIENCE, PAUSE};
use super::{Recipient, Request, Session};
use crate::gateway::decode_request;
use crate::handle::Selector;
use crate::procedures;
use crate::wire::reply::Reply;

pub(crate) use commit::OpenCommits;
pub(crate) use resolving::BegunMessages;

/// The name in the root directory.
pub(crate) const NAME: &[u8] = b".holdfast";

/// What is in `.holdfast`, and the directory itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Object {
    /// `.holdfast`.
    Top,
    /// `at`, below which versions are.
    At,
    /// What the session is and stands on.
    Status,
    /// The newest commits.
    Log,
    /// What the session has changed.
    Diff,
    /// What clashed.
    Conflicts,
    /// Takes a message, and publishes.
    Publish,
    /// Takes a message, and makes a checkpoint.
    Checkpoint,
    /// What changed from outside; takes the position up to which that was seen to.
    Changed,
    /// Takes what is to become of a conflict of the session.
    Resolve,
}

impl Object {
    /// All, in the order of a listing.
    const ALL: [Self; 10] = [
        Self::Top,
        Self::At,
        Self::Changed,
        Self::Checkpoint,
        Self::Conflicts,
        Self::Diff,
        Self::Log,
        Self::Publish,
        Self::Resolve,
        Self::Status,
    ];

    /// Its name in `.holdfast`.
    fn name(self) -> &'static str {
        match self {
            Self::Top => "",
            Self::At => "at",
            Self::Status => "status",
            Self::Log => "log",
            Self::Diff => "diff",
            Self::Conflicts => "conflicts",
            Self::Publish => "publish",
            Self::Checkpoint => "checkpoint",
            Self::Changed => "changed",
            Self::Resolve => "resolve",
        }
    }

    /// Its number. In handles of clients: never another one.
    fn number(self) -> u64 {
        match self {
            Self::Top => 1,
            Self::At => 2,
            Self::Status => 3,
            Self::Log => 4,
            Self::Diff => 5,
            Self::Conflicts => 6,
            Self::Publish => 7,
            Self::Checkpoint => 8,
            Self::Changed => 9,
            Self::Resolve => 10,
        }
    }

    /// Its inode, of a series that begins when the client had better forget the one before.
    fn inode(self, series: u64) -> InodeId {
        let series = series & (u64::MAX >> SERIES_SHIFT);
        InodeId::new(series << OBJECT_BITS | self.number())
    }

    /// The object of an inode, whatever the series.
    fn of(inode: InodeId) -> Option<Self> {
        let number = inode.raw() & ((1 << OBJECT_BITS) - 1);
        Self::ALL.into_iter().find(|it| it.number() == number)
    }

    fn named(name: &[u8]) -> Option<Self> {
        let is_it = |object: &Self| *object != Self::Top && object.name().as_bytes() == name;
        Self::ALL.into_iter().find(is_it)
    }

    fn is_dir(self) -> bool {
        matches!(self, Self::Top | Self::At)
    }

    /// Whether it takes messages.
    fn is_verb(self) -> bool {
        matches!(
            self,
            Self::Publish | Self::Checkpoint | Self::Changed | Self::Resolve
        )
    }
}

/// Bits of an inode number that say which object it is.
const OBJECT_BITS: u32 = 8;

/// What a series loses in front, so that an inode number stays below 2^61.
const SERIES_SHIFT: u32 = OBJECT_BITS + 3;

/// A text, as it is read.
#[derive(Clone, Debug, Default)]
struct Text {
    content: Bytes,
    /// Since when it says this.
    changed: Timestamp,
    /// From what it was made, if it need not be made again while that is so.
    basis: Option<Basis>,
}

/// What is in memory of a session's `.holdfast`. All of it can be made anew but what the last publish
/// came to, and messages that are not committed.
#[derive(Debug)]
pub(crate) struct Inside {
    state: Mutex<State>,
    /// Held while something is published.
    publishing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// The last time that anything was said to have changed at. Of the directories, too.
    time: Timestamp,
    texts: HashMap<Object, Text>,
    verbs: HashMap<Object, Verb>,
    /// Conflicts of the last publish.
    conflicts: Bytes,
    /// Of the inodes of files that take messages. The Linux client tells of a failed `close` again at
    /// later ones of the same inode, until somebody calls fsync.
    series: u64,
}

impl State {
    /// A time at which nothing was said to have changed yet.
    fn later(&mut self, now: Timestamp) -> Timestamp {
        self.time = now.max(self.time.tick());
        self.time
    }

    fn verb(&mut self, object: Object) -> &mut Verb {
        self.verbs.entry(object).or_default()
    }

    /// Lets files that take messages be found as new inodes.
    fn begin_series(&mut self, now: Timestamp) {
        self.series = now.millis().max(self.series.saturating_add(1));
    }
}

impl Inside {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            state: Mutex::new(State {
                time: now,
                series: now.millis(),
                ..State::default()
            }),
            publishing: tokio::sync::Mutex::new(()),
        }
    }

    /// The attributes of `.holdfast`.
    pub(crate) fn top(&self) -> Stat {
        self.directory(Object::Top)
    }

    /// The inode under which an object is found now.
    fn inode(&self, object: Object) -> InodeId {
        if object.is_verb() {
            object.inode(self.state.lock().series)
        } else {
            object.inode(0)
        }
    }

    fn directory(&self, object: Object) -> Stat {
        let inode = object.inode(0);
        let time = self.state.lock().time;
        Stat {
            // `at` is the only directory in `.holdfast`, and what is in `at` is not listed.
            nlink: if object == Object::Top { 3 } else { 2 },
            kind: FileKind::Directory,
            ..stat(inode, 0o555, DIRECTORY_BYTES, time)
        }
    }

    /// Says of the directories that they have changed, so that clients trust no name in them.
    fn touch_directories(&self, now: Timestamp) {
        self.state.lock().later(now);
    }

    fn held(&self, object: Object) -> Option<Text> {
        self.state.lock().texts.get(&object).cloned()
    }

    /// Keeps a text that was made. If it says what the one before says it has not changed.
    fn keep(&self, object: Object, content: Bytes, basis: Option<Basis>, now: Timestamp) -> Text {
        let mut state = self.state.lock();
        let changed = match state.texts.get(&object) {
            Some(held) if held.content == content => held.changed,
            _ => state.later(now),
        };
        let text = Text {
            content,
            changed,
            basis,
        };
        state.texts.insert(object, text.clone());
        text
    }
}

/// Attributes of what is no directory.
fn stat(inode: InodeId, mode: u32, size: u64, time: Timestamp) -> Stat {
    Stat {
        inode,
        kind: FileKind::File,
        mode,
        nlink: 1,
        uid: 0,
        gid: 0,
        size,
        used: size,
        device: Device::default(),
        atime: time,
        mtime: time,
        ctime: time,
    }
}

impl Session {
    /// Runs a call on an object that is not in the live tree, on a task of its own.
    pub(super) fn go_inside(self: &Arc<Self>, record: Bytes, to: Recipient) {
        let session = Arc::clone(self);
        self.used();
        self.shared
            .tasks
            .spawn(async move { session.run_inside(record, to).await });
    }

    async fn run_inside(self: Arc<Self>, record: Bytes, to: Recipient) {
        let Some(decoded) = decode_request(&record, &self.shared) else {
            return self.hang_up(to);
        };
        let request = decoded.request(&record);
        let clock = &self.shared.clock;
        let began = clock.monotonic();
        loop {
            if self.lock().lost {
                return self.go_elsewhere(record.clone(), to);
            }
            let error = match self.inside_once(&request).await {
                Ok(reply) => return self.deliver(reply, to),
                Err(Trouble::Fail(error)) => error,
                Err(Trouble::Unavailable) => {
                    if clock.monotonic().saturating_sub(began) > PATIENCE {
                        return self.hang_up(to);
                    }
                    clock.sleep(PAUSE).await;
                    continue;
                }
            };
            return self.deliver(failed(&request, error), to);
        }
    }

    async fn inside_once(self: &Arc<Self>, request: &Request<'_>) -> Result<Reply, Trouble> {
        if request.selector == Selector::INSIDE {
            let object = Object::of(request.objects.first).ok_or(FsError::Stale)?;
            self.run_on_object(request, object).await
        } else {
            self.run_on_commit(request).await
        }
    }
}

/// The reply of a failed call, without attributes.
fn failed(request: &Request<'_>, error: FsError) -> Reply {
    procedures::failed(request.call.xid, request.nfs, error, (None, None), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_found_by_name_and_number() {
        for object in Object::ALL {
            for series in [0, 1, 1_700_000_000_000, u64::MAX] {
                let inode = object.inode(series);
                assert_eq!(Object::of(inode), Some(object));
                assert!(inode.raw() < 1 << 61);
            }
            let named = Object::named(object.name().as_bytes());
            assert_eq!(named, (object != Object::Top).then_some(object));
        }
        assert_eq!(Object::of(InodeId::new(11)), None);
        assert_eq!(Object::named(b"STATUS"), None);
    }

    #[test]
    fn a_text_changes_exactly_when_its_content_does() {
        let inside = Inside::new(Timestamp::new(100, 0));
        let keep = |content: &'static str, now| {
            let content = Bytes::from_static(content.as_bytes());
            let kept = inside.keep(Object::Log, content, None, Timestamp::new(now, 0));
            kept.changed
        };
        let first = keep("one", 101);
        assert_eq!(keep("one", 102), first);
        let second = keep("two", 103);
        assert!(second > first);
        // A clock that goes backwards shows no time twice.
        let third = keep("one", 50);
        assert!(third > second);
        let before = inside.top().ctime;
        inside.touch_directories(Timestamp::new(60, 0));
        assert!(inside.top().ctime > before);
    }
}
