//! The thread that writes the file.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Clock, SystemClock};

use super::super::core::{Batch, Store, Window};
use super::super::{Committed, KvError, Version};
use super::Shared;
use super::file::{Failure, File, FileLock, Newest, Settings};
use super::queue::{Pending, Work};
use super::space::FileUse;
use super::witness::Witness;
use crate::kv::core::RangeSet;

/// Pause before the file is reopened after an error.
const REOPEN_PAUSE_MIN: Duration = Duration::from_millis(50);

/// Longest pause between two attempts to reopen the file.
const REOPEN_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Free disk space below which no commit that adds anything is tried, in bytes. Trying would
/// only cost the file being reopened.
const FREE_BYTES_MIN: u64 = 1 << 20;

/// Free disk space that a batch may take, per byte it writes: pages are copied when changed.
const FREE_BYTES_PER_BYTE: u64 = 4;

/// Pause between two looks whether the file should be made smaller. The device may have become
/// full of something else, so that no commit comes.
const SHRINK_LOOK_PAUSE: Duration = Duration::from_secs(2);

/// Pause before the file is made smaller again.
const SHRINK_PAUSE: Duration = Duration::from_secs(10);

struct Writer {
    shared: Arc<Shared>,
    settings: Settings,
    /// The open file; `None` after an error, until it is open again.
    file: Option<File>,
    witness: Witness,
    window: Window,
    newest: Version,
    /// A batch of which only the file knows whether it is there, and what it wrote.
    doubtful: Option<(Version, RangeSet)>,
    pause: Duration,
    reopen_at: Duration,
    /// When to look next whether the file should be made smaller.
    shrink_look_at: Duration,
    /// What the file was after it had been made smaller.
    shrunk: Option<FileUse>,
    /// Real time, also under a simulated clock: it only paces attempts.
    clock: SystemClock,
    _lock: FileLock,
}

/// The commits of a batch, not yet told to those who wait.
type Outcomes = Vec<(Pending, Result<Committed, KvError>)>;

/// Starts the thread. It ends when the queue is closed and empty.
pub(super) fn start(
    shared: Arc<Shared>,
    settings: Settings,
    file: File,
    (lock, mut witness): (FileLock, Witness),
    newest: Version,
) -> Result<JoinHandle<()>, std::io::Error> {
    witness.note(newest);
    let mut writer = Writer {
        shared,
        settings,
        file: Some(file),
        witness,
        window: Window::new(newest),
        newest,
        doubtful: None,
        pause: REOPEN_PAUSE_MIN,
        reopen_at: Duration::ZERO,
        shrink_look_at: Duration::ZERO,
        shrunk: None,
        clock: SystemClock::new(),
        _lock: lock,
    };
    std::thread::Builder::new()
        .name("kv-writer".to_owned())
        .spawn(move || {
            let guard = AbandonQueue(Arc::clone(&writer.shared));
            writer.run();
            drop(guard);
        })
}

/// Lets nobody wait for a thread that is gone.
struct AbandonQueue(Arc<Shared>);

impl Drop for AbandonQueue {
    fn drop(&mut self) {
        self.0.queue.abandon();
        self.0.versions.write().withdraw();
    }
}

impl Writer {
    fn run(&mut self) {
        loop {
            let patience = match self.file {
                Some(_) => SHRINK_LOOK_PAUSE,
                None => self.pause,
            };
            match self.shared.queue.take(patience) {
                Work::Group(group) => {
                    self.look_after_file();
                    self.commit(group);
                }
                Work::Nothing => self.look_after_file(),
                Work::Close => break,
            }
            self.look_after_size();
        }
        if let Some(file) = self.file.take() {
            self.shared.versions.write().withdraw();
            if let Err(failure) = file.close() {
                tracing::warn!(error = %failure.into_error(), "close metadata store");
            }
            self.witness.sync();
        }
    }

    /// Reopens the file if it is closed or has failed, and it is time to.
    fn look_after_file(&mut self) {
        if self.file.as_ref().is_some_and(File::has_failed) {
            self.take_down(KvError::Unavailable("read error of the device".to_owned()));
            self.reopen();
        } else if self.file.is_none() && self.clock.monotonic() >= self.reopen_at {
            self.reopen();
        }
    }

    /// Makes the file smaller if the device needs that, now and then.
    fn look_after_size(&mut self) {
        let now = self.clock.monotonic();
        if now < self.shrink_look_at || !self.settings.may_shrink() {
            return;
        }
        self.shrink_look_at = now.saturating_add(SHRINK_LOOK_PAUSE);
        let Some(before) = self.shared.space.to_shrink() else {
            return;
        };
        let is_worth_it = self.shrunk.is_none_or(|last| before.is_looser_than(last));
        if is_worth_it && let Some(file) = self.file.take() {
            self.shrink(file, before);
            self.shrink_look_at = self.clock.monotonic().saturating_add(SHRINK_PAUSE);
        }
    }

    /// Makes the file smaller. Reads fail meanwhile, and run again.
    fn shrink(&mut self, mut file: File, before: FileUse) {
        let why = KvError::Unavailable("metadata store is being made smaller".to_owned());
        *self.shared.down.lock() = Some(why);
        self.shared.versions.write().withdraw();
        let shrunk = file.shrink().and_then(|()| file.newest());
        self.shared.space.refresh();
        match shrunk {
            Ok(newest) => {
                let now = self.shared.now();
                let mut versions = self.shared.versions.write();
                versions.restore(newest.version, now, newest.snapshot);
                drop(versions);
                *self.shared.down.lock() = None;
                self.file = Some(file);
                self.shrunk = self.shared.space.file_use();
                let bytes = self.shrunk.map(|after| after.file_bytes);
                tracing::info!(
                    before = before.file_bytes,
                    after = bytes,
                    "made the metadata store's file smaller"
                );
            }
            Err(failure) => {
                // Nothing was written but what was there.
                let error = failure.into_error();
                tracing::warn!(%error, "make the metadata store's file smaller");
                file.give_up();
                self.take_down(error);
                self.reopen();
            }
        }
    }

    fn commit(&mut self, group: Vec<Pending>) {
        let Some(file) = self.file.take() else {
            let error = self.shared.why_down();
            for pending in group {
                answer(pending, Err(error.clone()));
            }
            return;
        };
        let mut batch = Batch::new(Version(self.newest.0 + 1));
        let mut outcomes = self.resolve(&mut batch, group);
        if batch.is_empty() {
            self.file = Some(file);
        } else {
            self.make_durable(file, batch, &mut outcomes);
        }
        // Only now: who conflicted must find what it conflicted with when it reads again.
        for (pending, outcome) in outcomes {
            answer(pending, outcome);
        }
    }

    /// Accepts into `batch` what may commit.
    fn resolve(&self, batch: &mut Batch, group: Vec<Pending>) -> Outcomes {
        let now = self.shared.now();
        let full = self.is_full(&group);
        let stored = self.shared.latest();
        let mut decide = |pending: &Pending| {
            if full && pending.request.adds_values() {
                return Err(KvError::NoSpace);
            }
            batch.check(&self.window, &pending.request, now)?;
            let (_, stored) = stored.as_ref().map_err(Clone::clone)?;
            batch.accept(&pending.request, stored)
        };
        group
            .into_iter()
            .map(|pending| {
                let outcome = decide(&pending);
                (pending, outcome)
            })
            .collect()
    }

    fn is_full(&self, group: &[Pending]) -> bool {
        let Some(free) = self.shared.space.free_bytes() else {
            return false;
        };
        let bytes: usize = group.iter().map(|pending| pending.request.bytes).sum();
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        free < FREE_BYTES_MIN.saturating_add(bytes.saturating_mul(FREE_BYTES_PER_BYTE))
    }

    fn make_durable(&mut self, mut file: File, batch: Batch, outcomes: &mut Outcomes) {
        let version = batch.version();
        let (conflicts, writes) = batch.into_parts();
        let mut may_repeat = true;
        let failed = loop {
            let written = file.write(version, &writes).and_then(|()| {
                // The batch is in the file by now, so that an error no longer says it is not.
                file.newest().map_err(Failure::into_unsure)
            });
            let failure = match written {
                Ok(newest) => return self.publish(file, newest, &conflicts),
                Err(failure) => failure,
            };
            file.give_up();
            let Err(error) = self.recover(failure, version, &conflicts) else {
                return;
            };
            match self.file.take() {
                Some(reopened) if may_repeat && error == KvError::NoSpace => {
                    may_repeat = false;
                    match self.with_pages_collected(reopened) {
                        Some(reopened) => file = reopened,
                        None => break error,
                    }
                }
                reopened => {
                    self.file = reopened;
                    break error;
                }
            }
        };
        for (_, outcome) in outcomes.iter_mut().filter(|(_, outcome)| outcome.is_ok()) {
            *outcome = Err(failed.clone());
        }
    }

    fn publish(&mut self, file: File, newest: Newest, conflicts: &RangeSet) {
        let now = self.shared.now();
        self.shared.space.set_stored_bytes(newest.bytes);
        self.file = Some(file);
        self.newest = newest.version;
        // Before anybody is answered.
        self.witness.note(newest.version);
        let floor = {
            let mut versions = self.shared.versions.write();
            versions.publish(newest.version, now, newest.snapshot);
            versions.floor()
        };
        self.window.add(conflicts, newest.version);
        self.window.expire(floor, conflicts.len());
    }

    /// After a failed write: finds out what became of it, from the file if that can be opened.
    /// `Ok` if it was made after all; then the rest is as after any commit.
    fn recover(
        &mut self,
        failure: Failure,
        version: Version,
        conflicts: &RangeSet,
    ) -> Result<(), KvError> {
        let unsure = failure.is_unsure();
        let error = failure.into_error();
        tracing::error!(%error, "write metadata store");
        self.doubtful = unsure.then(|| (version, conflicts.clone()));
        self.take_down(error.clone());
        self.reopen();
        match (&self.file, unsure) {
            (Some(_), true) if self.newest >= version => Ok(()),
            (None, true) => Err(KvError::OutcomeUnknown),
            _ => Err(error),
        }
    }

    /// Lets the file use pages again that were waiting for it. They may be all that is missing,
    /// since a commit takes new pages before it gives old ones back.
    fn with_pages_collected(&mut self, file: File) -> Option<File> {
        match file.collect_pages() {
            Ok(()) => Some(file),
            Err(failure) => {
                file.give_up();
                self.take_down(failure.into_error());
                self.reopen();
                None
            }
        }
    }

    /// Closes the file for now. Reads fail with `why` until it is open again.
    fn take_down(&mut self, why: KvError) {
        *self.shared.down.lock() = Some(why);
        self.shared.versions.write().withdraw();
        self.shared.space.refresh();
        self.pause = REOPEN_PAUSE_MIN;
        if let Some(file) = self.file.take() {
            file.give_up();
        }
    }

    fn reopen(&mut self) {
        match self.try_reopen() {
            Ok(()) => {
                *self.shared.down.lock() = None;
                tracing::info!(version = self.newest.0, "metadata store is open again");
            }
            Err(error) => {
                tracing::warn!(%error, "reopen metadata store");
                *self.shared.down.lock() = Some(error);
                self.reopen_at = self.clock.monotonic().saturating_add(self.pause);
                self.pause = self.pause.saturating_mul(2).min(REOPEN_PAUSE_MAX);
            }
        }
    }

    fn try_reopen(&mut self) -> Result<(), KvError> {
        let file = File::reopen(&self.settings, self.newest).map_err(KvError::from)?;
        let newest = file.newest().map_err(Failure::into_error)?;
        let version = newest.version;
        self.witness.note(version);
        let doubtful = self.doubtful.take();
        if let Some((doubted, conflicts)) = doubtful
            && version >= doubted
        {
            self.window.add(&conflicts, doubted);
        }
        let now = self.shared.now();
        self.shared.space.set_stored_bytes(newest.bytes);
        let mut versions = self.shared.versions.write();
        versions.restore(version, now, newest.snapshot);
        drop(versions);
        self.newest = version;
        self.file = Some(file);
        Ok(())
    }
}

fn answer(pending: Pending, outcome: Result<Committed, KvError>) {
    // Whoever waited may have been dropped; the commit stands all the same.
    let _nobody = pending.reply.send(outcome);
}
