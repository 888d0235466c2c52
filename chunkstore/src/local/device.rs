//! The few calls that change a device, and what their errors mean.
//!
//! They are gathered here so that tests can make them fail as a device does.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

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
        file.sync_data()
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
}

#[cfg(test)]
impl Default for Faults {
    fn default() -> Self {
        Self {
            failing_flushes: 0.into(),
            space: u64::MAX.into(),
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
        Ok(())
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
