//! Pipelined bulk work outside of measurements: creating, filling and removing files.

use std::sync::Arc;
use std::time::Duration;

use base::Clock;

use crate::connection::Connection;
use crate::driver::{Plan, Progress, Workload, drive};
use crate::nfs::{self, Handle, Place, READ_BYTES_MAX, UNSTABLE, Write};
use crate::pattern::{STAMP_BYTES, Stamp};
use crate::rpc;
use crate::tree::File;
use crate::{Error, Outgoing, Pattern};

/// Calls in flight: enough for a server to commit in groups.
const DEPTH: usize = 64;

/// Runs a workload to its own end; any failure is an error.
///
/// # Errors
///
/// If an operation fails.
pub fn run(
    connection: &mut Connection,
    workload: &mut dyn Workload,
    clock: &Arc<dyn Clock>,
) -> Result<(), Error> {
    let plan = Plan {
        depth: DEPTH,
        count_from: Duration::ZERO,
        until: Duration::MAX,
        operations_max: u64::MAX,
    };
    let tally = drive(connection, workload, &plan, clock)?;
    match tally.first_error {
        Some(error) => Err(Error::Setup(format!("preparing or clearing up: {error}"))),
        None => Ok(()),
    }
}

/// Hands out the numbers below a count, one a slot at a time.
#[derive(Debug)]
struct Ticket {
    next: usize,
    count: usize,
    taken: Vec<usize>,
}

impl Ticket {
    fn new(count: usize) -> Self {
        Self {
            next: 0,
            count,
            taken: vec![0; DEPTH],
        }
    }

    fn take(&mut self, slot: usize) -> bool {
        if self.next >= self.count {
            return false;
        }
        if let Some(taken) = self.taken.get_mut(slot) {
            *taken = self.next;
        }
        self.next += 1;
        true
    }

    fn of(&self, slot: usize) -> usize {
        self.taken.get(slot).copied().unwrap_or(0)
    }
}

/// Name of the file with a number.
fn file_name(number: usize) -> Vec<u8> {
    format!("file-{number:07}").into_bytes()
}

/// The number in a name that `file_name` made.
pub(crate) fn file_number(name: &[u8]) -> Option<usize> {
    let digits = name.strip_prefix(b"file-")?;
    let mut number: usize = 0;
    for digit in digits {
        let value = usize::from(digit.checked_sub(b'0').filter(|value| *value < 10)?);
        number = number.checked_mul(10)?.checked_add(value)?;
    }
    (file_name(number) == name).then_some(number)
}

/// Creates empty files in one directory.
#[derive(Debug)]
pub struct CreateMany {
    directory: Handle,
    ticket: Ticket,
    /// Number of the first file.
    first: usize,
    /// Empty if the files are not to be remembered.
    files: Vec<Option<File>>,
}

impl CreateMany {
    /// Creates `count` files and forgets them.
    #[must_use]
    pub fn new(directory: Handle, count: usize) -> Self {
        Self {
            directory,
            ticket: Ticket::new(count),
            first: 0,
            files: Vec::new(),
        }
    }

    /// Names them by numbers from `first` on.
    #[must_use]
    pub fn starting_at(self, first: usize) -> Self {
        Self { first, ..self }
    }

    /// Creates `count` files and remembers their handles and attributes.
    pub(crate) fn keeping(directory: Handle, count: usize) -> Self {
        let mut many = Self::new(directory, count);
        many.files.resize_with(count, || None);
        many
    }

    pub(crate) fn into_files(self) -> Result<Vec<File>, Error> {
        let files: Option<Vec<File>> = self.files.into_iter().collect();
        files.ok_or_else(|| Error::Setup("not all files were created".into()))
    }
}

impl Workload for CreateMany {
    fn start(&mut self, slot: usize) -> bool {
        self.ticket.take(slot)
    }

    fn call(&mut self, slot: usize, call: &mut Outgoing) {
        let number = self.first + self.ticket.of(slot);
        let name = file_name(number);
        let place = Place {
            directory: &self.directory,
            name: &name,
        };
        // Modes differ, so that one file's attributes cannot pass for another's.
        let low = u32::try_from(number % 0o100).unwrap_or(0);
        call.create(place, 0o600 | low);
    }

    fn reply(&mut self, slot: usize, reply: &[u8], _: &Pattern) -> Result<Progress, Error> {
        let (handle, attributes) = nfs::created(rpc::results(reply)?, nfs::CREATE)?;
        let number = self.ticket.of(slot);
        if let Some(place) = self.files.get_mut(number) {
            let name = file_name(self.first + number);
            *place = Some(File {
                name,
                handle,
                attributes,
            });
        }
        Ok(Progress::Done(0))
    }
}

/// Removes files from one directory.
#[derive(Debug)]
pub(crate) struct RemoveMany {
    directory: Handle,
    ticket: Ticket,
    names: Vec<Vec<u8>>,
}

impl RemoveMany {
    pub(crate) fn new(directory: Handle, names: Vec<Vec<u8>>) -> Self {
        Self {
            directory,
            ticket: Ticket::new(names.len()),
            names,
        }
    }
}

impl Workload for RemoveMany {
    fn start(&mut self, slot: usize) -> bool {
        self.ticket.take(slot)
    }

    fn call(&mut self, slot: usize, call: &mut Outgoing) {
        let name = self.names.get(self.ticket.of(slot));
        call.remove(Place {
            directory: &self.directory,
            name: name.map_or(b"".as_slice(), Vec::as_slice),
        });
    }

    fn reply(&mut self, _: usize, reply: &[u8], _: &Pattern) -> Result<Progress, Error> {
        nfs::removed(rpc::results(reply)?, nfs::REMOVE)?;
        Ok(Progress::Done(0))
    }
}

/// Fills a file with stamped content, 1 MiB a WRITE.
#[derive(Debug)]
pub(crate) struct FillFile {
    file: Handle,
    ticket: Ticket,
    stamp: Stamp,
    verifier: Option<[u8; 8]>,
}

/// Bytes of one WRITE.
const FILL_BYTES: u32 = 1024 * 1024;

impl FillFile {
    /// `bytes` is a multiple of 1 MiB.
    pub(crate) fn new(file: Handle, bytes: u64, stamp: Stamp) -> Self {
        let writes = usize::try_from(bytes / u64::from(FILL_BYTES)).unwrap_or(0);
        Self {
            file,
            ticket: Ticket::new(writes),
            stamp,
            verifier: None,
        }
    }

    pub(crate) fn commit(&self, connection: &mut Connection) -> Result<(), Error> {
        let verifier = connection.call(|call| call.commit(&self.file), nfs::committed)?;
        if self.verifier.is_some_and(|earlier| earlier != verifier) {
            return Err(Error::Setup(
                "the server restarted while filling a file".into(),
            ));
        }
        Ok(())
    }
}

impl Workload for FillFile {
    fn start(&mut self, slot: usize) -> bool {
        self.ticket.take(slot)
    }

    fn call(&mut self, slot: usize, call: &mut Outgoing) {
        let number = u64::try_from(self.ticket.of(slot)).unwrap_or(0);
        let pages = u64::try_from(READ_BYTES_MAX / STAMP_BYTES).unwrap_or(0);
        let write = Write {
            offset: number * u64::from(FILL_BYTES),
            count: FILL_BYTES,
            stable: UNSTABLE,
            stamp: Stamp {
                writer: self.stamp.writer,
                page: self.stamp.page + number * pages,
            },
        };
        call.write(&self.file, write);
    }

    fn reply(&mut self, _: usize, reply: &[u8], _: &Pattern) -> Result<Progress, Error> {
        let reply = nfs::written(rpc::results(reply)?)?;
        if reply.count != FILL_BYTES {
            return Err(Error::Wrong("a WRITE was cut short".into()));
        }
        self.verifier.get_or_insert(reply.verifier);
        Ok(Progress::Done(0))
    }
}

/// Finds a file by its number.
///
/// # Errors
///
/// If the call fails, or there is no such file.
pub fn find(connection: &mut Connection, directory: &Handle, number: usize) -> Result<(), Error> {
    let name = file_name(number);
    let place = Place {
        directory,
        name: &name,
    };
    connection.call(
        |call| call.lookup(place),
        |reply| nfs::found(reply).map(drop),
    )
}

/// Finds a directory by its name.
///
/// # Errors
///
/// If the call fails, or there is no such directory.
pub fn find_directory(
    connection: &mut Connection,
    directory: &Handle,
    name: &[u8],
) -> Result<Handle, Error> {
    let place = Place { directory, name };
    connection.call(
        |call| call.lookup(place),
        |reply| {
            let (handle, _) = nfs::found(reply)?;
            Ok(Handle::of(handle))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::{file_name, file_number};

    #[test]
    fn names_carry_their_number() {
        for number in [0, 7, 999, 1_000_000, 12_345_678] {
            assert_eq!(file_number(&file_name(number)), Some(number));
        }
        for name in ["file-", "file-1", "file-000000x", "other"] {
            assert_eq!(file_number(name.as_bytes()), None, "{name}");
        }
    }
}
