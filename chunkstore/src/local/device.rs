//! The few calls that change a device, and what their errors mean.
//!
//! They are gathered here so that tests can make them fail as a device does, and so that a test
//! knows what a power failure would take.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::ChunkError;

/// Writes and flushes files.
#[derive(Debug, Default)]
pub(crate) struct Device {
    #[cfg(test)]
    pub(crate) faults: Faults,
}

impl Device {
    /// Writes all of `bytes` at `offset`. After an error some of them may have been written.
    pub(crate) fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        #[cfg(test)]
        self.faults.before_write(file, bytes, offset)?;
        file.write_all_at(bytes, offset)
    }

    /// Makes the content of `file` durable.
    pub(crate) fn flush(&self, file: &File) -> io::Result<()> {
        #[cfg(test)]
        self.faults.before_flush()?;
        file.sync_data()?;
        #[cfg(test)]
        self.faults.flushed(file)?;
        Ok(())
    }

    /// Makes the names in a directory durable.
    pub(crate) fn flush_dir(&self, dir: &File) -> io::Result<()> {
        dir.sync_all()?;
        #[cfg(test)]
        self.faults.created.lock().clear();
        Ok(())
    }

    /// Creates a file.
    pub(crate) fn create(&self, path: &Path) -> io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        #[cfg(test)]
        self.faults.created.lock().push(path.to_owned());
        Ok(file)
    }

    /// Removes a file; one that is gone already is no error.
    pub(crate) fn remove(&self, path: &Path) -> io::Result<()> {
        #[cfg(test)]
        self.faults.before_remove()?;
        match std::fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

/// What a caller is told of a failed device call.
pub(crate) fn chunk_error(doing: &str, error: &io::Error) -> ChunkError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ChunkError::NoSpace,
        _ => ChunkError::Unavailable(format!("{doing}: {error}")),
    }
}

/// Faults that a test asked for.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Faults {
    /// How many of the next flushes fail.
    pub(crate) failing_flushes: std::sync::atomic::AtomicU32,
    /// Bytes that can still be written.
    pub(crate) space: std::sync::atomic::AtomicU64,
    /// How many files can still be removed.
    pub(crate) removals: std::sync::atomic::AtomicU64,
    /// What was written and not flushed: file number, offset, length.
    unflushed: parking_lot::Mutex<Vec<(u64, u64, u64)>>,
    /// Files whose names are not durable.
    created: parking_lot::Mutex<Vec<std::path::PathBuf>>,
}

#[cfg(test)]
impl Default for Faults {
    fn default() -> Self {
        Self {
            failing_flushes: 0.into(),
            space: u64::MAX.into(),
            removals: u64::MAX.into(),
            unflushed: parking_lot::Mutex::default(),
            created: parking_lot::Mutex::default(),
        }
    }
}

#[cfg(test)]
impl Faults {
    fn before_write(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        use std::sync::atomic::Ordering::SeqCst;
        let len = u64::try_from(bytes.len()).unwrap();
        let space = self.space.load(SeqCst);
        if space < len {
            // A full device takes what fits.
            file.write_all_at(&bytes[..usize::try_from(space).unwrap()], offset)?;
            self.space.store(0, SeqCst);
            return Err(io::ErrorKind::StorageFull.into());
        }
        if space != u64::MAX {
            self.space.store(space - len, SeqCst);
        }
        let number = std::os::unix::fs::MetadataExt::ino(&file.metadata()?);
        self.unflushed.lock().push((number, offset, len));
        Ok(())
    }

    fn before_remove(&self) -> io::Result<()> {
        use std::sync::atomic::Ordering::SeqCst;
        let left = self.removals.load(SeqCst);
        if left == 0 {
            return Err(io::Error::other("injected"));
        }
        if left != u64::MAX {
            self.removals.store(left - 1, SeqCst);
        }
        Ok(())
    }

    fn flushed(&self, file: &File) -> io::Result<()> {
        let number = std::os::unix::fs::MetadataExt::ino(&file.metadata()?);
        self.unflushed.lock().retain(|(of, ..)| *of != number);
        Ok(())
    }

    /// What a power failure leaves behind at worst: removed files are gone, files whose names were
    /// not flushed too, and what was not flushed of the others reads as zeros.
    pub(crate) fn cut_power(&self, dir: &Path) {
        for path in self.created.lock().drain(..) {
            // It may have been removed again.
            drop(std::fs::remove_file(path));
        }
        let unflushed = std::mem::take(&mut *self.unflushed.lock());
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let file = File::options().read(true).write(true).open(path).unwrap();
            let found = std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap());
            let len = file.metadata().unwrap().len();
            for (_, offset, count) in unflushed.iter().filter(|(of, ..)| *of == found) {
                let end = (offset + count).min(len);
                let zeros = vec![0; usize::try_from(end.saturating_sub(*offset)).unwrap()];
                file.write_all_at(&zeros, *offset).unwrap();
            }
        }
    }

    fn before_flush(&self) -> io::Result<()> {
        use std::sync::atomic::Ordering::SeqCst;
        let failing = self.failing_flushes.load(SeqCst);
        if failing > 0 {
            self.failing_flushes.store(failing - 1, SeqCst);
            return Err(io::Error::other("injected"));
        }
        Ok(())
    }
}
