//! Which commits wrote a file: by line, and as a whole.
//!
//! From the commit on, lines are passed to parents: all of them to one that has the same content;
//! else to each parent in turn those that its text has, by a diff. What nobody takes, the commit
//! wrote. Commits are taken latest first, so all that is passed to one has come before it is taken.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{CommitId, InodeId, Timestamp};
use bytes::Bytes;

use super::{Before, FRONTIER_MAX, Lineage, LineageError, Target};
use crate::compare::Snapshot;
use crate::merge::{ContentError, MergeFuture};
use crate::record::inode::InodeRecord;
use crate::stat::FileKind;
use crate::store::CommitInfo;
use crate::text::{hunks, is_text, lines};

/// Largest text that is told by lines, in bytes: source code is smaller.
pub const TEXT_BYTES_MAX: u64 = 1024 * 1024;

/// Most lines of a text that is told by lines.
pub const LINES_MAX: usize = 100_000;

/// Most commits that are looked at.
const LOOKED_AT_MAX: usize = 10_000;

/// Most texts that are read.
const TEXTS_MAX: usize = 1000;

/// Texts that are compared in no time to speak of.
const QUICK_BYTES_MAX: usize = 16 * 1024;

/// Texts are kept for what waits while no more than so many versions wait.
const KEPT_MAX: usize = 16;

/// The content of a file, or why there is none.
pub type TextFuture<'a> = MergeFuture<'a, Bytes, ContentError>;

/// Reads content.
pub trait Texts: Send + Sync {
    /// All content of a file of a snapshot, which is at most [`TEXT_BYTES_MAX`] bytes.
    fn read<'a>(&'a self, snapshot: &'a Snapshot, record: &'a InodeRecord) -> TextFuture<'a>;
}

/// Who wrote a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blame {
    /// The file at the commit that was asked for.
    pub record: InodeRecord,
    /// The commit that changed it last: its content, its mode, its owner or its path.
    pub changed: Option<CommitId>,
    /// The commit that wrote its content last.
    pub written: Option<CommitId>,
    /// The commit that made it. Not known if `is_complete` is not set.
    pub created: Option<CommitId>,
    /// By lines.
    pub lines: Lines,
    /// All commits that are named, by id.
    pub commits: BTreeMap<CommitId, CommitInfo>,
    /// The history was followed to where the file was made. Else it is too long for one call.
    pub is_complete: bool,
}

/// A file by lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lines {
    /// Runs of lines, in order and without gaps.
    Told(Vec<Span>),
    /// It is not told by lines.
    Not(NoLines),
}

/// Why a file is not told by lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLines {
    /// It is no regular file.
    Kind,
    /// It is larger than [`TEXT_BYTES_MAX`].
    Large,
    /// It has more than [`LINES_MAX`] lines.
    Long,
    /// It is no text.
    Binary,
}

/// Lines one after the other that one commit wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first of them, counted from 0.
    pub first: usize,
    /// How many.
    pub count: usize,
    /// The commit.
    pub commit: CommitId,
    /// The path of the file there.
    pub path: Arc<[u8]>,
    /// Where the first of them is in the file there, counted from 0.
    pub there: usize,
    /// The history was followed no further: an older commit may have written them.
    pub is_edge: bool,
}

/// Lines that are looked for.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: usize,
    count: usize,
    there: usize,
}

/// A version of the file, and the lines of the last one that are from it or older.
#[derive(Debug)]
struct Suspect {
    target: Target,
    runs: Vec<Run>,
    text: Option<Bytes>,
}

/// What a blame has come to.
#[derive(Debug, Default)]
struct Work {
    waiting: BTreeMap<(Timestamp, CommitId), (CommitInfo, BTreeMap<InodeId, Suspect>)>,
    spans: Vec<Span>,
    commits: BTreeMap<CommitId, CommitInfo>,
    changed: Option<CommitId>,
    written: Option<CommitId>,
    created: Option<CommitId>,
    texts: usize,
}

impl Work {
    fn add(&mut self, commit: CommitInfo, suspect: Suspect) -> Result<(), LineageError> {
        let key = (commit.record.time, commit.id);
        let keep = self.waiting.len() < KEPT_MAX;
        let (_, suspects) = self.waiting.entry(key).or_insert((commit, BTreeMap::new()));
        match suspects.get_mut(&suspect.target.record.stat.inode) {
            Some(known) => known.runs.extend(suspect.runs),
            None => {
                let mut suspect = suspect;
                suspect.text = suspect.text.filter(|_| keep);
                suspects.insert(suspect.target.record.stat.inode, suspect);
            }
        }
        let all: usize = self.waiting.values().map(|(_, some)| some.len()).sum();
        if all > FRONTIER_MAX {
            return Err(LineageError::TooWide);
        }
        Ok(())
    }

    fn name(&mut self, commit: &CommitInfo) -> CommitId {
        let known = self.commits.entry(commit.id);
        known.or_insert_with(|| commit.clone()).id
    }

    /// Says that a commit wrote lines, or that they are from it or older.
    fn tell(&mut self, commit: &CommitInfo, path: &[u8], runs: &[Run], is_edge: bool) {
        if runs.is_empty() {
            return;
        }
        let id = self.name(commit);
        let path: Arc<[u8]> = path.into();
        self.spans.extend(runs.iter().map(|run| Span {
            first: run.first,
            count: run.count,
            commit: id,
            path: Arc::clone(&path),
            there: run.there,
            is_edge,
        }));
    }

    /// All spans in order, what belongs together joined.
    fn finish(mut self, record: InodeRecord, reason: Option<NoLines>) -> Blame {
        let is_complete = self.waiting.is_empty();
        for (commit, suspects) in std::mem::take(&mut self.waiting).into_values() {
            for suspect in suspects.into_values() {
                self.tell(&commit, &suspect.target.path, &suspect.runs, true);
            }
        }
        self.spans.sort_by_key(|span| span.first);
        let mut joined: Vec<Span> = Vec::new();
        for span in self.spans {
            match joined.last_mut() {
                Some(last)
                    if last.commit == span.commit
                        && last.path == span.path
                        && last.is_edge == span.is_edge
                        && last.first + last.count == span.first
                        && last.there + last.count == span.there =>
                {
                    last.count += span.count;
                }
                _ => joined.push(span),
            }
        }
        Blame {
            record,
            changed: self.changed,
            written: self.written,
            created: self.created.filter(|_| is_complete),
            lines: reason.map_or(Lines::Told(joined), Lines::Not),
            commits: self.commits,
            is_complete,
        }
    }
}

impl Lineage {
    /// Who wrote the file at `path` of a commit. A directory is told as a whole, without what is in
    /// it. Looks at a bounded number of commits and texts.
    ///
    /// # Errors
    ///
    /// [`LineageError::Missing`], [`LineageError::TooWide`]; or something cannot be read.
    ///
    /// # Cancellation
    ///
    /// Safe to drop.
    pub async fn blame(
        &self,
        commit: CommitInfo,
        path: &[u8],
        texts: &dyn Texts,
    ) -> Result<Blame, LineageError> {
        let snapshot = self.snapshot(&commit);
        let found = snapshot.lookup(path).await?;
        let record = found.ok_or(LineageError::Missing)?;
        let mut work = Work::default();
        let (text, reason) = match why_not(&record) {
            Some(reason) => (None, Some(reason)),
            None => {
                let text = texts.read(&snapshot, &record).await?;
                let reason = why_not_text(&text);
                (Some(text), reason)
            }
        };
        let text = text.filter(|_| reason.is_none());
        let count = text.as_ref().map_or(0, |text| lines(text).len());
        let whole = Run {
            first: 0,
            count,
            there: 0,
        };
        let first = Suspect {
            target: Target {
                record: record.clone(),
                path: path.to_vec(),
            },
            runs: Some(whole).filter(|_| count > 0).into_iter().collect(),
            text,
        };
        work.add(commit, first)?;
        for _ in 0..LOOKED_AT_MAX {
            if work.texts >= TEXTS_MAX {
                break;
            }
            let Some((_, (commit, suspects))) = work.waiting.pop_last() else {
                break;
            };
            for suspect in suspects.into_values() {
                self.pass(&mut work, &commit, suspect, texts).await?;
                // What is in memory is told without a wait: others want the thread as well.
                tokio::task::yield_now().await;
            }
        }
        Ok(work.finish(record, reason))
    }

    /// Passes the lines of one version to where they are from.
    async fn pass(
        &self,
        work: &mut Work,
        commit: &CommitInfo,
        mut suspect: Suspect,
        texts: &dyn Texts,
    ) -> Result<(), LineageError> {
        let before = self
            .before(commit, &suspect.target, usize::MAX, None)
            .await?;
        let is_same = matches!(before.as_slice(), [only] if only.is_same);
        if !is_same && work.changed.is_none() {
            work.changed = Some(work.name(commit));
        }
        let has_content = |one: &Before| {
            let origin = one.origin.as_ref();
            origin.is_some_and(|origin| {
                !origin.content && origin.record.stat.kind == suspect.target.record.stat.kind
            })
        };
        if let Some(at) = before.iter().position(has_content) {
            let taken = before.into_iter().nth(at);
            let runs = std::mem::take(&mut suspect.runs);
            return hand_on(work, taken, runs, suspect.text);
        }
        if work.written.is_none() {
            work.written = Some(work.name(commit));
        }
        if before.iter().all(|one| one.origin.is_none()) {
            // The last one that is found is the oldest.
            work.created = Some(work.name(commit));
        }
        let mut runs = std::mem::take(&mut suspect.runs);
        let mut is_followed = false;
        for one in before {
            let Some(origin) = &one.origin else {
                continue;
            };
            let (mut passed, mut text) = (Vec::new(), None);
            if !runs.is_empty() {
                let snapshot = self.snapshot(&one.commit);
                text = read(work, &snapshot, &origin.record, texts).await?;
                if let Some(old) = &text {
                    if suspect.text.is_none() {
                        let snapshot = self.snapshot(commit);
                        suspect.text = read(work, &snapshot, &suspect.target.record, texts).await?;
                    }
                    let new = suspect.text.clone().unwrap_or_default();
                    (passed, runs) = share_aside(old.clone(), new, runs).await?;
                }
            }
            // One at least, to find where the file was made.
            if !is_followed || !passed.is_empty() {
                is_followed = true;
                hand_on(work, Some(one), passed, text)?;
            }
        }
        work.tell(commit, &suspect.target.path, &runs, false);
        Ok(())
    }
}

/// Lets lines wait at a parent.
fn hand_on(
    work: &mut Work,
    to: Option<Before>,
    runs: Vec<Run>,
    text: Option<Bytes>,
) -> Result<(), LineageError> {
    let Some((commit, origin)) = to.and_then(|one| Some((one.commit, one.origin?))) else {
        return Ok(());
    };
    let target = Target {
        record: origin.record,
        path: origin.path,
    };
    work.add(commit, Suspect { target, runs, text })
}

/// The text of a version; `None` if it is none, or too large.
async fn read(
    work: &mut Work,
    snapshot: &Snapshot,
    record: &InodeRecord,
    texts: &dyn Texts,
) -> Result<Option<Bytes>, LineageError> {
    if why_not(record).is_some() {
        return Ok(None);
    }
    work.texts += 1;
    let text = texts.read(snapshot, record).await?;
    Ok(Some(text).filter(|text| why_not_text(text).is_none()))
}

fn why_not(record: &InodeRecord) -> Option<NoLines> {
    match record.stat.kind {
        FileKind::File if record.stat.size > TEXT_BYTES_MAX => Some(NoLines::Large),
        FileKind::File => None,
        _ => Some(NoLines::Kind),
    }
}

fn why_not_text(text: &[u8]) -> Option<NoLines> {
    if !is_text(text) {
        Some(NoLines::Binary)
    } else if lines(text).len() > LINES_MAX {
        Some(NoLines::Long)
    } else {
        None
    }
}

/// As [`share`]; where that may take long, beside what the runtime's threads do.
async fn share_aside(
    old: Bytes,
    new: Bytes,
    runs: Vec<Run>,
) -> Result<(Vec<Run>, Vec<Run>), LineageError> {
    if old.len().max(new.len()) <= QUICK_BYTES_MAX {
        return Ok(share(&old, &new, &runs));
    }
    let shared = tokio::task::spawn_blocking(move || share(&old, &new, &runs));
    shared.await.map_err(|source| {
        let (what, source) = ("compare two versions of a file", source.into());
        ContentError { what, source }.into()
    })
}

/// Shares lines of the text `new` out: those that `old` has, with where they are there; and the
/// others.
fn share(old: &[u8], new: &[u8], runs: &[Run]) -> (Vec<Run>, Vec<Run>) {
    let (old, new) = (lines(old), lines(new));
    // Where lines are the same, and by how much they moved.
    let mut same = Vec::new();
    let (mut old_at, mut new_at) = (0, 0);
    for hunk in hunks(&old, &new) {
        same.push((new_at..hunk.after.start, old_at));
        (old_at, new_at) = (hunk.before.end, hunk.after.end);
    }
    same.push((new_at..new.len(), old_at));
    let (mut passed, mut kept) = (Vec::new(), Vec::new());
    for run in runs.iter().copied() {
        let mut rest = run;
        // Runs may overlap where several versions were made of one.
        let next = same.partition_point(|(lines, _)| lines.end <= run.there);
        for (lines, start) in same.get(next..).unwrap_or_default() {
            if rest.count == 0 || lines.start >= rest.there + rest.count {
                break;
            }
            let changed = lines.start.saturating_sub(rest.there);
            rest = split(rest, changed, |run| kept.push(run));
            let shared = (lines.end - rest.there).min(rest.count);
            let there = start + (rest.there - lines.start);
            rest = split(rest, shared, |run| passed.push(Run { there, ..run }));
        }
        split(rest, rest.count, |run| kept.push(run));
    }
    (passed, kept)
}

/// Takes the first lines off a run.
fn split(run: Run, count: usize, take: impl FnOnce(Run)) -> Run {
    if count > 0 {
        take(Run { count, ..run });
    }
    Run {
        first: run.first + count,
        count: run.count - count,
        there: run.there + count,
    }
}
