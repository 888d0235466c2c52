//! CREATE, WRITE, REMOVE: the life of a temporary file.

use super::{SMALL_BYTES, Seat, Writers};
use crate::connection::Connection;
use crate::driver::{Progress, Workload};
use crate::nfs::{self, FILE_SYNC, Handle, Place, Write};
use crate::pattern::Stamp;
use crate::rpc;
use crate::tree::Tree;
use crate::{Error, Outgoing, Pattern};

/// Where a slot is in the life of its file.
#[derive(Debug, Clone)]
enum Stage {
    Create,
    Write(Handle),
    Remove,
}

#[derive(Debug)]
struct Life {
    stage: Stage,
    name: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Cycle {
    directory: Handle,
    lives: Vec<Life>,
    writers: Writers,
    started: u64,
    failed: u64,
}

impl Cycle {
    pub(super) fn new(tree: &Tree, connection: &mut Connection, seat: Seat) -> Result<Self, Error> {
        let name = format!("cycle-{}", seat.connection);
        let mut lives = Vec::new();
        lives.resize_with(seat.depth, || Life {
            stage: Stage::Create,
            name: Vec::new(),
        });
        Ok(Self {
            directory: connection.mkdir(&tree.top, name.as_bytes())?,
            lives,
            writers: Writers::new()?,
            started: 0,
            failed: 0,
        })
    }
}

impl Life {
    fn advance(&mut self, reply: &[u8]) -> Result<Progress, Error> {
        let results = rpc::results(reply)?;
        match self.stage {
            Stage::Create => {
                let (handle, attributes) = nfs::created(results, nfs::CREATE)?;
                if attributes.kind != nfs::REGULAR || attributes.size != 0 {
                    return Err(Error::Wrong("CREATE made no empty file".into()));
                }
                self.stage = Stage::Write(handle);
                Ok(Progress::More)
            }
            Stage::Write(_) => {
                let reply = nfs::written(results)?;
                let size = reply.attributes.size;
                if reply.count != SMALL_BYTES || size != u64::from(SMALL_BYTES) {
                    return Err(Error::Wrong("WRITE took or shows another size".into()));
                }
                if reply.committed != FILE_SYNC {
                    return Err(Error::Wrong("a FILE_SYNC WRITE is not committed".into()));
                }
                self.stage = Stage::Remove;
                Ok(Progress::More)
            }
            Stage::Remove => {
                nfs::removed(results, nfs::REMOVE)?;
                Ok(Progress::Done(u64::from(SMALL_BYTES)))
            }
        }
    }
}

impl Workload for Cycle {
    fn start(&mut self, slot: usize) -> bool {
        let Some(life) = self.lives.get_mut(slot) else {
            return false;
        };
        self.started += 1;
        life.stage = Stage::Create;
        life.name = format!("{slot}-{}", self.started).into_bytes();
        true
    }

    fn call(&mut self, slot: usize, call: &mut Outgoing) {
        let Some(life) = self.lives.get(slot) else {
            return;
        };
        let place = Place {
            directory: &self.directory,
            name: &life.name,
        };
        match &life.stage {
            Stage::Create => call.create(place, 0o644),
            Stage::Remove => call.remove(place),
            Stage::Write(handle) => {
                let stamp = Stamp {
                    writer: self.writers.next(),
                    page: 0,
                };
                let write = Write {
                    offset: 0,
                    count: SMALL_BYTES,
                    stable: FILE_SYNC,
                    stamp,
                };
                call.write(handle, write);
            }
        }
    }

    fn reply(&mut self, slot: usize, reply: &[u8], _: &Pattern) -> Result<Progress, Error> {
        let Some(life) = self.lives.get_mut(slot) else {
            return Err(Error::Stream("a reply for no slot"));
        };
        let progress = life.advance(reply);
        if progress.is_err() {
            self.failed += 1;
        }
        progress
    }

    fn verify(&mut self, connection: &mut Connection) -> Result<(), Error> {
        let left = connection.count_names(&self.directory)?;
        // A cycle that failed may have left its file; one that succeeded may not.
        if u64::try_from(left).unwrap_or(u64::MAX) > self.failed {
            return Err(Error::Wrong(format!(
                "{left} removed names are still there"
            )));
        }
        Ok(())
    }
}
