//! The data directory: who uses it, and what it is.
//!
//! | file | content |
//! |------|---------|
//! | `LOCK` | locked by the server that uses the directory; its process id |
//! | `FORMAT` | what the directory is, and its version |
//! | `meta.redb` | the metadata store |
//! | `meta.redb.seen` | the newest commit to it that was acknowledged |
//! | `metadata.json` | that the metadata is elsewhere, and whose it is there |
//! | `chunks.json` | that file content is elsewhere, and where |
//! | `chunks/` | file content |
//! | `cache/` | content that was read from an object store, and may be removed |
//! | `api-token` | the token of commands on this machine |
//! | `session.json` | the session that `holdfast up` serves, and its mount ticket |
//! | `control.json` | how to reach the server, while it runs |

mod tier;

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use base::files::{open_regular, open_regular_with};
use base::{SessionId, Told};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, FailureKind};
use crate::place::Place;

/// Version of the directory's layout. A release opens directories of its own version only.
pub const LAYOUT_VERSION: u32 = 1;

/// Largest of the small files, in bytes.
const SMALL_FILE_BYTES_MAX: u64 = 64 * 1024;

const LOCK: &str = "LOCK";
const FORMAT: &str = "FORMAT";
const METADATA: &str = "meta.redb";
const ELSEWHERE: &str = "metadata.json";
const TIER: &str = "chunks.json";
const API_TOKEN: &str = "api-token";
const SESSION: &str = "session.json";
const CONTROL: &str = "control.json";

/// What the file `FORMAT` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Format {
    /// Always [`Format::WHAT`].
    what: String,
    version: u32,
}

impl Format {
    const WHAT: &'static str = "holdfast data directory";
}

/// That the metadata is not in the directory but in FoundationDB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// Name of the installation, as the store has it in its format record.
    pub installation: [u8; 16],
}

/// What the file `metadata.json` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ElsewhereFile {
    /// Always [`ElsewhereFile::PLACE`].
    place: String,
    /// 32 hexadecimal digits.
    installation: String,
}

impl ElsewhereFile {
    const PLACE: &'static str = "foundationdb";
}

/// How to reach a running server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlFile {
    /// Where the API is, as `IP:PORT`.
    pub api_address: String,
    /// The token to use it.
    pub api_token: String,
    /// The server's process.
    pub pid: u32,
    /// The session that `holdfast up` serves.
    pub session: Option<String>,
    /// Its mount path.
    pub mount_path: Option<String>,
    /// Server and path, as `mount` takes it.
    pub mount_source: Option<String>,
}

/// The session that `holdfast up` serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionFile {
    /// The session.
    pub session: String,
    /// The text of its mount ticket; the store holds its hash only.
    pub ticket: String,
}

/// A data directory that this process, and no other, uses.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Takes the directory for a server, and makes it if there is none.
    ///
    /// # Errors
    ///
    /// It cannot be used: another server does, it is something else, or of another version.
    pub fn open_or_create(path: &Path) -> Result<Self, Failure> {
        match DirBuilder::new().recursive(true).mode(0o700).create(path) {
            Ok(()) => check_fresh(path)?,
            Err(error) => return Err(cannot("make", path, &error)),
        }
        let dir = Self::lock(path, &at(path, LOCK))?;
        let is_ours = dir.check_format()?;
        dir.check_chunks()?;
        if !is_ours {
            // It may have been there, open to others; they would see the keys in the store.
            std::fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(|error| {
                Failure::io(
                    format_args!("close {} to other users", path.display()),
                    &error,
                )
            })?;
            let format = Format {
                what: Format::WHAT.into(),
                version: LAYOUT_VERSION,
            };
            dir.write_json(FORMAT, &format)?;
        }
        Ok(dir)
    }

    /// Takes a directory that has been used, to look at it: nothing in it is changed.
    ///
    /// # Errors
    ///
    /// There is none, a server uses it, it is of another version, or its metadata store is missing.
    pub fn look_at(path: &Path) -> Result<Self, Failure> {
        require_used(path)?;
        // A copy may have come without the lock. What locks as well is the directory itself.
        let lock = open_regular(&at(path, LOCK))
            .or_else(|_| File::open(path))
            .map_err(|error| cannot("read", path, &error))?;
        take_lock(path, &lock)?;
        let dir = Self {
            path: path.to_owned(),
            _lock: lock,
        };
        dir.check_used()?;
        Ok(dir)
    }

    /// Takes a directory that has been used, to change it.
    ///
    /// # Errors
    ///
    /// As [`DataDir::look_at`].
    pub fn open(path: &Path) -> Result<Self, Failure> {
        require_used(path)?;
        let dir = Self::lock(path, &at(path, LOCK))?;
        dir.check_used()?;
        Ok(dir)
    }

    /// Refuses a directory without a metadata store: opening that would make it.
    fn check_used(&self) -> Result<(), Failure> {
        self.check_format()?;
        if self.metadata().exists() || self.elsewhere()?.is_some() {
            return Ok(());
        }
        let message = format!(
            "{} holds nothing yet: its first server has not come as far",
            self.path.display()
        );
        Err(Failure::new(FailureKind::NotFound, message))
    }

    fn lock(path: &Path, lock_path: &Path) -> Result<Self, Failure> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut lock = open_regular_with(lock_path, options.mode(0o600))
            .map_err(|error| cannot("write to", path, &error))?;
        take_lock(path, &lock)?;
        let pid = std::process::id();
        lock.set_len(0)
            .and_then(|()| writeln!(lock, "{pid}"))
            .map_err(|error| cannot("write to", path, &error))?;
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// Whether the directory says that it is ours. One of another version is refused.
    fn check_format(&self) -> Result<bool, Failure> {
        let Some(format) = read_json::<Format>(&self.at(FORMAT))? else {
            return Ok(false);
        };
        let shown = self.path.display();
        if format.what != Format::WHAT {
            let message = format!("{shown} belongs to something else: choose another directory");
            return Err(Failure::error(message));
        }
        if format.version != LAYOUT_VERSION {
            let found = format.version;
            let message = format!(
                "data directory {shown} has version {found}, this release uses version \
                 {LAYOUT_VERSION}: use a release for version {found}; nothing was changed"
            );
            return Err(Failure::error(message));
        }
        // The token is made in the metadata store, so that was there. A new one in its place would
        // hide that everything is gone.
        let is_lost = !self.metadata().exists() && self.elsewhere()?.is_none();
        if self.at(API_TOKEN).exists() && is_lost {
            let message = format!(
                "{} is missing: restore the data directory from a backup, or use another \
                 --data-dir; nothing was changed",
                self.metadata().display()
            );
            return Err(Failure::error(message));
        }
        Ok(true)
    }

    /// Whether the directory of file content is there, if a server has made it before. A new one in
    /// its place would hide that the content is gone.
    fn check_chunks(&self) -> Result<(), Failure> {
        let chunks = self.chunks();
        // A start makes it before the token.
        if chunks.exists() || !self.at(API_TOKEN).exists() || self.at(TIER).exists() {
            return Ok(());
        }
        let message = format!(
            "{} is missing: the content of files is lost with it. Restore the data directory from a \
             backup; or, if you know that there was no file content, make an empty directory of that \
             name. Nothing was changed",
            chunks.display()
        );
        Err(Failure::error(message))
    }

    /// Whether a first start has come to its end, which made all there has to be.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.at(API_TOKEN).exists()
    }

    /// The metadata store's file.
    #[must_use]
    pub fn metadata(&self) -> PathBuf {
        self.at(METADATA)
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whose metadata elsewhere is that of this directory; none if it is in the directory.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn elsewhere(&self) -> Result<Option<Elsewhere>, Failure> {
        let path = self.at(ELSEWHERE);
        let Some(file) = read_json::<ElsewhereFile>(&path)? else {
            return Ok(None);
        };
        let digits = file.installation.as_str();
        let number = u128::from_str_radix(digits, 16);
        match number {
            Ok(number) if file.place == ElsewhereFile::PLACE && digits.len() == 32 => {
                let installation = number.to_be_bytes();
                Ok(Some(Elsewhere { installation }))
            }
            _ => Err(damaged(&path, &"it names no installation in FoundationDB")),
        }
    }

    /// Keeps that the metadata is elsewhere.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn keep_elsewhere(&self, elsewhere: &Elsewhere) -> Result<(), Failure> {
        let file = ElsewhereFile {
            place: ElsewhereFile::PLACE.into(),
            installation: format!("{:032x}", u128::from_be_bytes(elsewhere.installation)),
        };
        self.write_json(ELSEWHERE, &file)
    }

    /// Refuses a place that is not where this directory's metadata is: there it would begin with
    /// nothing.
    ///
    /// # Errors
    ///
    /// Says where it is.
    pub fn check_place(&self, place: &Place) -> Result<(), Failure> {
        let shown = self.path.display();
        let is_elsewhere = self.elsewhere()?.is_some();
        let message = match place {
            Place::Embedded if is_elsewhere => format!(
                "the metadata of data directory {shown} is in FoundationDB: say where with --metadata \
                 fdb:FILE, or use another --data-dir"
            ),
            Place::Fdb(_) if self.metadata().exists() => format!(
                "the metadata of data directory {shown} is in its {METADATA}: leave out --metadata \
                 {place}, or use another --data-dir"
            ),
            Place::Embedded | Place::Fdb(_) => return Ok(()),
        };
        Err(Failure::new(FailureKind::Conflict, message))
    }

    /// The directory of what was read from an object store.
    #[must_use]
    pub fn cache(&self) -> PathBuf {
        self.at("cache")
    }

    /// The directory of file content.
    #[must_use]
    pub fn chunks(&self) -> PathBuf {
        self.at("chunks")
    }

    /// The token of commands on this machine, if there is one yet.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn api_token(&self) -> Result<Option<String>, Failure> {
        Ok(read_small(&self.at(API_TOKEN))?.map(|text| text.trim().to_owned()))
    }

    /// Keeps the token.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn keep_api_token(&self, token: &str) -> Result<(), Failure> {
        self.write(API_TOKEN, token.as_bytes())
    }

    /// The session that `holdfast up` serves, if there is one yet.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn session(&self) -> Result<Option<SessionFile>, Failure> {
        let file: Option<SessionFile> = read_json(&self.at(SESSION))?;
        let id = file.as_ref().map(|file| file.session.parse::<SessionId>());
        if let Some(Err(error)) = id {
            return Err(damaged(&self.at(SESSION), &error));
        }
        Ok(file)
    }

    /// Keeps the session.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn keep_session(&self, session: &SessionFile) -> Result<(), Failure> {
        self.write_json(SESSION, session)
    }

    /// Says how to reach this server.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn keep_control(&self, control: &ControlFile) -> Result<(), Failure> {
        self.write_json(CONTROL, control)
    }

    /// Says that no server runs any more.
    pub fn remove_control(&self) {
        if let Err(error) = std::fs::remove_file(self.at(CONTROL))
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(error = %Told(&error), "remove {CONTROL}");
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        at(&self.path, name)
    }

    fn write_json<T: Serialize>(&self, name: &str, value: &T) -> Result<(), Failure> {
        let bytes = serde_json::to_vec(value)
            .map_err(|error| Failure::error(format_args!("write {name}: {error}")))?;
        self.write(name, &bytes)
    }

    /// Replaces a small file. It is complete and durable, or as it was.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Failure> {
        let (path, temporary) = (self.at(name), self.at(&temporary(name)));
        let write = || {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&temporary)?;
            file.write_all(bytes)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            std::fs::rename(&temporary, &path)?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(|error| {
            // A remainder is overwritten by the next attempt, so a failure here changes nothing.
            drop(std::fs::remove_file(&temporary));
            Failure::io(format_args!("write {}", path.display()), &error)
        })
    }
}

/// How to reach the server that uses the directory `path`, if one runs.
///
/// # Errors
///
/// The file cannot be read.
pub fn read_control(path: &Path) -> Result<Option<ControlFile>, Failure> {
    read_json(&at(path, CONTROL))
}

/// Refuses what is no data directory, before anything is made in it.
fn require_used(path: &Path) -> Result<(), Failure> {
    let there = at(path, FORMAT).try_exists();
    if there.map_err(|error| cannot("read", path, &error))? {
        return Ok(());
    }
    check_not_beheaded(path)?;
    let message = format!(
        "{} is not a Holdfast data directory: name one with --data-dir",
        path.display()
    );
    Err(Failure::new(FailureKind::NotFound, message))
}

/// Refuses a directory that has all but the file that says what it is.
fn check_not_beheaded(path: &Path) -> Result<(), Failure> {
    let (format, metadata) = (at(path, FORMAT), at(path, METADATA));
    if format.exists() || !metadata.exists() {
        return Ok(());
    }
    Err(Failure::error(format_args!(
        "{} is missing, and {} is there: without it nobody knows which release may open the data \
         directory. Restore it from a backup of this directory; nothing was changed",
        format.display(),
        metadata.display()
    )))
}

/// Refuses a directory that something else has filled, before anything is written to it.
fn check_fresh(path: &Path) -> Result<(), Failure> {
    check_not_beheaded(path)?;
    let entries = std::fs::read_dir(path).map_err(|error| cannot("read", path, &error))?;
    for entry in entries {
        let entry = entry.map_err(|error| cannot("read", path, &error))?;
        let name = entry.file_name();
        // What a first start leaves that ended early.
        let is_start = name == LOCK || name == temporary(FORMAT).as_str();
        if !is_start && !at(path, FORMAT).exists() {
            let message = format!(
                "{} is neither empty nor a Holdfast data directory (it holds {}): choose another \
                 with --data-dir",
                path.display(),
                name.display()
            );
            return Err(Failure::new(FailureKind::Conflict, message));
        }
    }
    Ok(())
}

/// Why the directory cannot be used, and what to do.
fn cannot(verb: &str, path: &Path, error: &std::io::Error) -> Failure {
    let shown = path.display();
    let todo = match error.kind() {
        ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
            let message = format!(
                "{verb} data directory {shown}: it, or what should be a directory above it, is a \
                 file; name a directory with --data-dir ({error})"
            );
            return Failure::new(FailureKind::Conflict, message);
        }
        ErrorKind::PermissionDenied => "run as the user that it belongs to",
        ErrorKind::ReadOnlyFilesystem => "its file system is mounted read-only: mount it writable",
        ErrorKind::NotFound => "make the directories above it",
        _ => "mend this",
    };
    let failure = Failure::io(format_args!("{verb} data directory {shown}"), error);
    Failure::new(
        failure.kind,
        format_args!("{failure}; {todo}, or choose another with --data-dir"),
    )
}

fn take_lock(path: &Path, lock: &File) -> Result<(), Failure> {
    let exclusive = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    match rustix::fs::flock(lock, exclusive) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(in_use(path, lock)),
        Err(error) => {
            let doing = format_args!("lock data directory {}", path.display());
            Err(Failure::io(doing, &error.into()))
        }
    }
}

fn in_use(path: &Path, lock: &File) -> Failure {
    let mut pid = String::new();
    let mut bounded = lock.take(32);
    // Only to name the process; without it the message still tells what to do.
    let who = match bounded.read_to_string(&mut pid) {
        Ok(_) if !pid.trim().is_empty() => format!("process {}", pid.trim()),
        _ => "another process".to_owned(),
    };
    let message = format!(
        "data directory {} is in use by {who}: stop that server first, or use another --data-dir",
        path.display()
    );
    Failure::new(FailureKind::Conflict, message)
}

fn at(path: &Path, name: &str) -> PathBuf {
    path.join(name)
}

fn temporary(name: &str) -> String {
    format!("{name}.new")
}

fn read_small(path: &Path) -> Result<Option<String>, Failure> {
    let read = || {
        let mut text = String::new();
        open_regular(path)?
            .take(SMALL_FILE_BYTES_MAX)
            .read_to_string(&mut text)?;
        Ok::<_, std::io::Error>(text)
    };
    match read() {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == ErrorKind::InvalidData => Err(damaged(path, &error)),
        Err(error) => Err(Failure::io(format_args!("read {}", path.display()), &error)),
    }
}

fn damaged(path: &Path, why: &dyn std::fmt::Display) -> Failure {
    let todo = match path.file_name().and_then(|name| name.to_str()) {
        Some(SESSION) => {
            "restore it from a backup, or move it away: then `holdfast up` makes a new session. The \
             old one and its files are still there: `holdfast session ls` lists it, and `holdfast \
             session ticket` makes a mount path for it"
        }
        Some(API_TOKEN) => "move it away: the next start makes a new token",
        Some(CONTROL) => "restart the server, which writes it anew",
        _ => "restore it from a backup",
    };
    Failure::error(format_args!(
        "{} is damaged: {why}; {todo}; nothing was changed",
        path.display()
    ))
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Failure> {
    let Some(text) = read_small(path)? else {
        return Ok(None);
    };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|error| damaged(path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_made_used_and_found_again() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b");
        assert_eq!(
            DataDir::look_at(&path).unwrap_err().kind,
            FailureKind::NotFound
        );
        let dir = DataDir::open_or_create(&path).unwrap();
        let second = DataDir::open_or_create(&path).unwrap_err();
        assert_eq!(second.kind, FailureKind::Conflict);
        let pid = format!("process {}:", std::process::id());
        assert!(second.message.contains(&pid), "{second}");
        let file = SessionFile {
            session: "0000000000000001".into(),
            ticket: "t".into(),
        };
        assert_eq!(dir.session(), Ok(None));
        dir.keep_session(&file).unwrap();
        dir.keep_api_token("token").unwrap();
        std::fs::write(dir.metadata(), "x").unwrap();
        drop(dir);
        let dir = DataDir::look_at(&path).unwrap();
        assert_eq!(dir.session(), Ok(Some(file)));
        assert_eq!(dir.api_token(), Ok(Some("token".into())));
    }

    #[test]
    fn nobody_else_can_read_a_directory_that_was_open() {
        let root = tempfile::tempdir().unwrap();
        std::fs::set_permissions(root.path(), Permissions::from_mode(0o755)).unwrap();
        drop(DataDir::open_or_create(root.path()).unwrap());
        let mode = std::fs::metadata(root.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn what_is_not_ours_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let refused = DataDir::open_or_create(root.path()).unwrap_err();
        assert_eq!(refused.kind, FailureKind::Conflict);
        assert!(refused.message.contains("it holds file"), "{refused}");
        assert!(DataDir::open_or_create(&file).is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"x");
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn another_version_and_a_damaged_format_are_named() {
        let root = tempfile::tempdir().unwrap();
        drop(DataDir::open_or_create(root.path()).unwrap());
        let format = root.path().join(FORMAT);
        let newer = r#"{"what":"holdfast data directory","version":2}"#;
        std::fs::write(&format, newer).unwrap();
        let refused = DataDir::open_or_create(root.path()).unwrap_err();
        assert!(
            refused
                .message
                .contains("has version 2, this release uses version 1")
        );
        assert_eq!(std::fs::read_to_string(&format).unwrap(), newer);
        std::fs::write(&format, "{").unwrap();
        let damaged = DataDir::open_or_create(root.path()).unwrap_err();
        assert!(damaged.message.contains("FORMAT is damaged"), "{damaged}");
        std::fs::write(&format, b"\xff\xfe").unwrap();
        let damaged = DataDir::open_or_create(root.path()).unwrap_err();
        assert!(damaged.message.contains("FORMAT is damaged"), "{damaged}");
    }

    #[test]
    fn a_lost_format_is_named() {
        let root = tempfile::tempdir().unwrap();
        let dir = DataDir::open_or_create(root.path()).unwrap();
        std::fs::write(dir.metadata(), "x").unwrap();
        drop(dir);
        std::fs::remove_file(root.path().join(FORMAT)).unwrap();
        for refused in [
            DataDir::open_or_create(root.path()).unwrap_err(),
            DataDir::look_at(root.path()).unwrap_err(),
            DataDir::open(root.path()).unwrap_err(),
        ] {
            assert_eq!(refused.kind, FailureKind::Error);
            assert!(refused.message.contains("FORMAT is missing"), "{refused}");
        }
        assert!(!root.path().join(FORMAT).exists());
    }

    #[test]
    fn metadata_stays_where_it_is() {
        let root = tempfile::tempdir().unwrap();
        let fdb = Place::Fdb(None);
        let here = DataDir::open_or_create(&root.path().join("here")).unwrap();
        for place in [&Place::Embedded, &fdb] {
            assert_eq!(here.check_place(place), Ok(()), "nothing is anywhere yet");
        }
        std::fs::write(here.metadata(), "x").unwrap();
        assert_eq!(here.check_place(&Place::Embedded), Ok(()));
        let refused = here.check_place(&fdb).unwrap_err();
        assert_eq!(refused.kind, FailureKind::Conflict);
        assert!(refused.message.contains("is in its meta.redb"), "{refused}");
        let path = root.path().join("there");
        let there = DataDir::open_or_create(&path).unwrap();
        let mut installation = [0x2a; 16];
        installation[0] = 0;
        let elsewhere = Elsewhere { installation };
        there.keep_elsewhere(&elsewhere).unwrap();
        there.keep_api_token("token").unwrap();
        std::fs::create_dir(there.chunks()).unwrap();
        drop(there);
        let there = DataDir::open_or_create(&path).unwrap();
        assert_eq!(there.elsewhere(), Ok(Some(elsewhere)));
        assert_eq!(there.check_place(&fdb), Ok(()));
        let refused = there.check_place(&Place::Embedded).unwrap_err();
        assert!(refused.message.contains("is in FoundationDB"), "{refused}");
        drop(there);
        assert!(DataDir::look_at(&path).is_ok());
        for wrong in [
            r#"{"place":"foundationdb","installation":"+a"}"#,
            r#"{"place":"elsewhere","installation":"00000000000000000000000000000000"}"#,
        ] {
            std::fs::write(path.join(ELSEWHERE), wrong).unwrap();
            let damaged = DataDir::look_at(&path).unwrap_err();
            assert!(
                damaged.message.contains("metadata.json is damaged"),
                "{damaged}"
            );
        }
    }

    #[test]
    fn a_lost_metadata_store_is_not_replaced() {
        let root = tempfile::tempdir().unwrap();
        let dir = DataDir::open_or_create(root.path()).unwrap();
        std::fs::write(dir.metadata(), "x").unwrap();
        dir.keep_api_token("token").unwrap();
        let metadata = dir.metadata();
        drop(dir);
        std::fs::remove_file(&metadata).unwrap();
        for refused in [
            DataDir::open_or_create(root.path()).unwrap_err(),
            DataDir::look_at(root.path()).unwrap_err(),
        ] {
            assert!(refused.message.contains("is missing: restore"), "{refused}");
        }
        assert!(!metadata.exists());
    }
}
