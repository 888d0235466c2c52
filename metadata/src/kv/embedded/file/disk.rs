//! The device under the file, with room for injected errors in tests.

use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;
use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

use super::super::EmbeddedOptions;
use super::trial::{Change, Trial};

#[cfg(any(test, feature = "testing"))]
pub use faults::{DiskChange, DiskFaults};

/// A file, perhaps with faults. Cloning shares it.
#[derive(Clone, Debug)]
pub(super) struct Disk(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: FileBackend,
    /// Changes that are not made yet.
    trial: Mutex<Option<Trial>>,
    #[cfg(any(test, feature = "testing"))]
    faults: Option<Arc<DiskFaults>>,
}

impl Disk {
    /// Wraps an open file.
    #[cfg_attr(not(any(test, feature = "testing")), expect(unused_variables))]
    pub(super) fn new(file: FileBackend, options: &EmbeddedOptions) -> Self {
        Self(Arc::new(Inner {
            file,
            trial: Mutex::new(None),
            #[cfg(any(test, feature = "testing"))]
            faults: options.faults.clone(),
        }))
    }

    /// Makes no change from here on, but holds them.
    pub(super) fn begin_trial(&self) {
        *self.0.trial.lock() = Some(Trial::default());
    }

    /// Makes the changes that are held, and further ones at once.
    pub(super) fn end_trial(&self) -> Result<(), std::io::Error> {
        // The lock is held meanwhile: nobody else uses the file yet.
        let mut trial = self.0.trial.lock();
        let changes = trial.take().map(Trial::into_changes).unwrap_or_default();
        let made = changes.into_iter().try_for_each(|change| match change {
            Change::Write(offset, data) => self.0.write(offset, &data),
            Change::SetLen(len) => self.0.set_len(len),
            Change::Sync => self.0.sync_data(),
        });
        if made.is_err() {
            // What follows a change that failed must not be made.
            *trial = Some(Trial::default());
        }
        made
    }
}

impl Inner {
    fn set_len(&self, len: u64) -> Result<(), std::io::Error> {
        self.before_change()?;
        self.file.set_len(len)?;
        #[cfg(any(test, feature = "testing"))]
        self.note(|| DiskChange::SetLen(len));
        Ok(())
    }

    fn sync_data(&self) -> Result<(), std::io::Error> {
        self.before_change()?;
        self.file.sync_data()?;
        #[cfg(any(test, feature = "testing"))]
        self.note(|| DiskChange::Sync);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), std::io::Error> {
        self.before_change()?;
        self.file.write(offset, data)?;
        #[cfg(any(test, feature = "testing"))]
        self.note(|| DiskChange::Write(offset, data.to_vec()));
        Ok(())
    }

    #[cfg(any(test, feature = "testing"))]
    fn before_change(&self) -> Result<(), std::io::Error> {
        self.faults
            .as_ref()
            .map_or(Ok(()), |faults| faults.change())
    }

    #[cfg(any(test, feature = "testing"))]
    fn before_read(&self) -> Result<(), std::io::Error> {
        self.faults.as_ref().map_or(Ok(()), |faults| faults.read())
    }

    #[cfg(any(test, feature = "testing"))]
    fn note(&self, change: impl FnOnce() -> DiskChange) {
        if let Some(faults) = &self.faults {
            faults.note(change);
        }
    }

    #[cfg(not(any(test, feature = "testing")))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps)]
    fn before_change(&self) -> Result<(), std::io::Error> {
        Ok(())
    }

    #[cfg(not(any(test, feature = "testing")))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps)]
    fn before_read(&self) -> Result<(), std::io::Error> {
        Ok(())
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64, std::io::Error> {
        match &*self.0.trial.lock() {
            Some(trial) => trial.len(&self.0.file),
            None => self.0.file.len(),
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), std::io::Error> {
        self.0.before_read()?;
        if let Some(trial) = &*self.0.trial.lock() {
            return trial.read(&self.0.file, offset, out);
        }
        self.0.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> Result<(), std::io::Error> {
        if let Some(trial) = &mut *self.0.trial.lock() {
            return trial.hold(Change::SetLen(len));
        }
        self.0.set_len(len)
    }

    fn sync_data(&self) -> Result<(), std::io::Error> {
        if let Some(trial) = &mut *self.0.trial.lock() {
            return trial.hold(Change::Sync);
        }
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), std::io::Error> {
        if let Some(trial) = &mut *self.0.trial.lock() {
            return trial.hold(Change::Write(offset, data.to_vec()));
        }
        self.0.write(offset, data)
    }

    fn close(&self) -> Result<(), std::io::Error> {
        self.0.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.0.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.file.query_lock_range(start, end)
    }
}

#[cfg(any(test, feature = "testing"))]
mod faults {
    use std::io::Error;

    use parking_lot::Mutex;

    /// A change of a device.
    #[derive(Clone, Debug)]
    pub enum DiskChange {
        /// Bytes at an offset.
        Write(u64, Vec<u8>),
        /// A new length.
        SetLen(u64),
        /// All changes before have become durable.
        Sync,
    }

    /// Errors for a device to have, for tests.
    #[derive(Debug, Default)]
    pub struct DiskFaults {
        plan: Mutex<Plan>,
    }

    #[derive(Debug, Default)]
    struct Plan {
        changes: u64,
        hits: u64,
        /// After how many changes the device fails, for how many, and with which error.
        failing: Option<(u64, u64, i32)>,
        reads: Option<i32>,
        recorded: Option<Vec<DiskChange>>,
    }

    impl DiskFaults {
        /// Changes (writes, resizes, syncs) that were asked for so far.
        #[must_use]
        pub fn changes(&self) -> u64 {
            self.plan.lock().changes
        }

        /// Changes that failed so far.
        #[must_use]
        pub fn hits(&self) -> u64 {
            self.plan.lock().hits
        }

        /// Lets `after` more changes succeed and the `count` that follow fail with the system
        /// error `errno`.
        pub fn fail_changes(&self, after: u64, count: u64, errno: i32) {
            let mut plan = self.plan.lock();
            let from = plan.changes.saturating_add(after);
            plan.failing = Some((from, from.saturating_add(count), errno));
        }

        /// Lets all reads of the device fail with the system error `errno`.
        pub fn fail_reads(&self, errno: i32) {
            self.plan.lock().reads = Some(errno);
        }

        /// Lets everything succeed again.
        pub fn heal(&self) {
            let mut plan = self.plan.lock();
            plan.failing = None;
            plan.reads = None;
        }

        /// Records all changes from here on, so that a power loss can be made up from them.
        pub fn record(&self) {
            self.plan.lock().recorded = Some(Vec::new());
        }

        /// How many changes were recorded.
        #[must_use]
        pub fn recorded(&self) -> usize {
            self.plan.lock().recorded.as_ref().map_or(0, Vec::len)
        }

        /// Ends the recording and gives it.
        #[must_use]
        pub fn take_recorded(&self) -> Vec<DiskChange> {
            self.plan.lock().recorded.take().unwrap_or_default()
        }

        pub(super) fn note(&self, change: impl FnOnce() -> DiskChange) {
            if let Some(recorded) = &mut self.plan.lock().recorded {
                recorded.push(change());
            }
        }

        pub(super) fn change(&self) -> Result<(), Error> {
            let mut plan = self.plan.lock();
            let this = plan.changes;
            plan.changes = this.saturating_add(1);
            match plan.failing {
                Some((from, to, errno)) if (from..to).contains(&this) => {
                    plan.hits = plan.hits.saturating_add(1);
                    Err(Error::from_raw_os_error(errno))
                }
                _ => Ok(()),
            }
        }

        pub(super) fn read(&self) -> Result<(), Error> {
            match self.plan.lock().reads {
                Some(errno) => Err(Error::from_raw_os_error(errno)),
                None => Ok(()),
            }
        }
    }
}
