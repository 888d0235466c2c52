//! The files a run works on: made through NFS in a directory of their own, removed through NFS.

use std::sync::Arc;

use base::{Clock, Rng};

use crate::connection::Connection;
use crate::many::{self, CreateMany, FillFile, RemoveMany};
use crate::nfs::{self, Attributes, Handle, Place, Position};
use crate::pattern::Stamp;
use crate::workload::Kind;
use crate::{Error, Outgoing};

/// Files in the directory that is listed and looked up in.
pub const FILES: usize = 1000;

/// Size of the file that is read, in bytes.
pub const CONTENT_BYTES: u64 = 64 * 1024 * 1024;

/// Stamp of the file that is read.
pub(crate) const CONTENT_WRITER: u64 = 0;

/// Most names one round of clearing a directory takes in.
const NAMES_MAX: usize = 65_536;

/// Most levels of directories that are cleared; a run makes two.
const LEVELS_MAX: usize = 3;

/// Size of a READDIRPLUS reply, in bytes, as the kernel client begins.
pub(crate) const LISTING_BYTES: u32 = 64 * 1024;

/// One of the many files.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) name: Vec<u8>,
    pub(crate) handle: Handle,
    pub(crate) attributes: Attributes,
}

/// The files of a run.
#[derive(Debug)]
pub struct Tree {
    root: Handle,
    name: String,
    pub(crate) top: Handle,
    pub(crate) many: Handle,
    pub(crate) files: Vec<File>,
    pub(crate) content: Handle,
}

impl Tree {
    /// Makes what `kinds` need, in a new directory under `root`.
    ///
    /// # Errors
    ///
    /// If a call fails.
    pub fn plant(
        connection: &mut Connection,
        root: Handle,
        kinds: &[Kind],
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let number = Rng::system().map_err(Error::io("draw a name"))?.u64();
        let name = format!("load-{number:016x}");
        let top = connection.mkdir(&root, name.as_bytes())?;
        let mut tree = Self {
            root,
            name,
            many: top.clone(),
            content: top.clone(),
            top,
            files: Vec::new(),
        };
        if let Err(error) = tree.grow(connection, kinds, clock) {
            // The first error is the one to tell; clearing up is tried all the same.
            drop(tree.fell(connection, clock));
            return Err(error);
        }
        Ok(tree)
    }

    fn grow(
        &mut self,
        connection: &mut Connection,
        kinds: &[Kind],
        clock: &Arc<dyn Clock>,
    ) -> Result<(), Error> {
        if kinds.iter().any(|kind| kind.wants_files()) {
            self.many = connection.mkdir(&self.top, b"many")?;
            let mut create = CreateMany::keeping(self.many.clone(), FILES);
            many::run(connection, &mut create, clock)?;
            self.files = create.into_files()?;
        }
        if kinds.iter().any(|kind| kind.wants_content()) {
            self.content = connection.create(&self.top, b"content")?;
            let stamp = Stamp {
                writer: CONTENT_WRITER,
                page: 0,
            };
            let mut fill = FillFile::new(self.content.clone(), CONTENT_BYTES, stamp);
            many::run(connection, &mut fill, clock)?;
            fill.commit(connection)?;
        }
        Ok(())
    }

    /// Removes everything made.
    ///
    /// # Errors
    ///
    /// If a call fails; what is left has a name that begins with `load-`.
    pub fn fell(&self, connection: &mut Connection, clock: &Arc<dyn Clock>) -> Result<(), Error> {
        clear(connection, &self.top, LEVELS_MAX, clock)?;
        connection.rmdir(&self.root, self.name.as_bytes())
    }
}

/// Removes what is in `directory`, with at most `levels` levels of directories.
fn clear(
    connection: &mut Connection,
    directory: &Handle,
    levels: usize,
    clock: &Arc<dyn Clock>,
) -> Result<(), Error> {
    if levels == 0 {
        return Err(Error::Setup("directories nest deeper than was made".into()));
    }
    loop {
        let (files, directories) = list(connection, directory)?;
        if files.is_empty() && directories.is_empty() {
            return Ok(());
        }
        let mut remove = RemoveMany::new(directory.clone(), files);
        many::run(connection, &mut remove, clock)?;
        for name in directories {
            let inner = connection.find(directory, &name)?;
            clear(connection, &inner, levels - 1, clock)?;
            connection.rmdir(directory, &name)?;
        }
    }
}

type Names = Vec<Vec<u8>>;

/// Names of files and of directories, at most `NAMES_MAX` and a reply more.
fn list(connection: &mut Connection, directory: &Handle) -> Result<(Names, Names), Error> {
    let mut files = Names::new();
    let mut directories = Names::new();
    let mut position = Position::default();
    while files.len() + directories.len() < NAMES_MAX {
        let next = connection.call(
            |call| call.readdirplus(directory, position, LISTING_BYTES),
            |decoder| {
                nfs::listed(decoder, |entry| {
                    let kind = entry.attributes.map(|attributes| attributes.kind);
                    match (entry.name, kind) {
                        (b"." | b"..", _) => {}
                        (name, Some(nfs::DIRECTORY)) => directories.push(name.to_vec()),
                        (name, _) => files.push(name.to_vec()),
                    }
                    Ok(())
                })
            },
        )?;
        match next {
            Some(next) => position = next,
            None => break,
        }
    }
    Ok((files, directories))
}

impl Connection {
    /// Makes a directory.
    ///
    /// # Errors
    ///
    /// If the call fails.
    pub fn mkdir(&mut self, directory: &Handle, name: &[u8]) -> Result<Handle, Error> {
        let place = Place { directory, name };
        self.call(
            |call| call.mkdir(place),
            |decoder| nfs::created(decoder, nfs::MKDIR),
        )
        .map(|(handle, _)| handle)
    }

    /// Makes an empty file.
    pub(crate) fn create(&mut self, directory: &Handle, name: &[u8]) -> Result<Handle, Error> {
        let place = Place { directory, name };
        self.call(
            |call| call.create(place, 0o644),
            |decoder| nfs::created(decoder, nfs::CREATE),
        )
        .map(|(handle, _)| handle)
    }

    fn find(&mut self, directory: &Handle, name: &[u8]) -> Result<Handle, Error> {
        let place = Place { directory, name };
        self.call(
            |call: &mut Outgoing| call.lookup(place),
            |mut decoder| {
                nfs::status(&mut decoder, nfs::LOOKUP)?;
                Handle::decode(&mut decoder)
            },
        )
    }

    fn rmdir(&mut self, directory: &Handle, name: &[u8]) -> Result<(), Error> {
        let place = Place { directory, name };
        self.call(
            |call| call.rmdir(place),
            |decoder| nfs::removed(decoder, nfs::RMDIR),
        )
    }

    /// Counts the names in a directory, `.` and `..` not among them.
    pub(crate) fn count_names(&mut self, directory: &Handle) -> Result<usize, Error> {
        let (files, directories) = list(self, directory)?;
        Ok(files.len() + directories.len())
    }

    /// Reads back what `stamp` was written over, and compares.
    pub(crate) fn check_content(
        &mut self,
        file: &Handle,
        offset: u64,
        count: u32,
        stamp: Stamp,
    ) -> Result<(), Error> {
        let same = self.call_with_pattern(
            |call| call.read(file, offset, count),
            |decoder, pattern| {
                let reply = nfs::read(decoder)?;
                let whole = u32::try_from(reply.data.len()).ok() == Some(count);
                Ok(whole && pattern.matches(stamp, reply.data))
            },
        )?;
        if same {
            return Ok(());
        }
        Err(Error::Wrong(format!(
            "{count} bytes at {offset} are not what was written and acknowledged"
        )))
    }
}
