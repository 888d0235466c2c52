//! Opening files that must be what their names say.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a file of ours as `options` say, if it is a regular file.
///
/// Anybody may have put something else in its place. A pipe would be waited for without end, so the
/// file is opened without waiting; for a regular file that makes no difference.
///
/// # Errors
///
/// `InvalidInput` if it is not a regular file; else as [`OpenOptions::open`].
pub fn open_regular_with(path: &Path, options: &mut OpenOptions) -> Result<File, Error> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits();
    // Bits of flags fit, whatever the sign of the type.
    let flags = i32::from_ne_bytes(flags.to_ne_bytes());
    let other = || Error::new(ErrorKind::InvalidInput, "not a regular file");
    let file = options.custom_flags(flags).open(path).map_err(|error| {
        // A pipe that nobody reads, or a socket.
        let is_other = error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error());
        if is_other { other() } else { error }
    })?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(other())
    }
}

/// Opens a file of ours for reading, if it is a regular file.
///
/// # Errors
///
/// As [`open_regular_with`].
pub fn open_regular(path: &Path) -> Result<File, Error> {
    open_regular_with(path, OpenOptions::new().read(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "x").unwrap();
        assert!(open_regular(&path).is_ok());
        let pipe = dir.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for path in [pipe.as_path(), dir.path()] {
            let refused = open_regular(path).unwrap_err();
            assert_eq!(refused.to_string(), "not a regular file");
        }
        let options = &mut OpenOptions::new();
        assert!(open_regular_with(&pipe, options.read(true).write(true)).is_err());
        let written = open_regular_with(&pipe, OpenOptions::new().write(true)).unwrap_err();
        assert_eq!(written.to_string(), "not a regular file");
        assert!(open_regular(&dir.path().join("none")).is_err());
    }
}
