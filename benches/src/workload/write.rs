//! WRITE FILE_SYNC, and WRITE UNSTABLE with COMMIT; what was acknowledged is read back at the end.

use super::{LARGE_BYTES, Seat, Writers};
use crate::connection::Connection;
use crate::driver::{Progress, Workload};
use crate::nfs::{self, FILE_SYNC, Handle, UNSTABLE, Write};
use crate::pattern::{STAMP_BYTES, Stamp};
use crate::rpc;
use crate::tree::Tree;
use crate::{Error, Outgoing, Pattern};

/// Places each slot writes in turn, so that every place has one writer at a time.
const PLACES_PER_SLOT: usize = 4;

/// WRITEs before a COMMIT.
const BATCH_WRITES: usize = 8;

/// Content of a batch, in bytes.
pub(super) const BATCH_BYTES: u64 = 8 * 1024 * 1024;

/// A place in a file and what was last acknowledged there.
#[derive(Debug, Clone, Copy)]
struct Region {
    offset: u64,
    sent: Stamp,
    acknowledged: Option<Stamp>,
}

impl Region {
    fn new(number: usize, count: u32) -> Self {
        let offset = u64::try_from(number).unwrap_or(0) * u64::from(count);
        let page = offset / u64::try_from(STAMP_BYTES).unwrap_or(1);
        Self {
            offset,
            sent: Stamp { writer: 0, page },
            acknowledged: None,
        }
    }

    /// The next WRITE here. Until it is acknowledged the content is unknown.
    fn write(&mut self, writer: u64, count: u32, stable: u32) -> Write {
        self.sent.writer = writer;
        self.acknowledged = None;
        Write {
            offset: self.offset,
            count,
            stable,
            stamp: self.sent,
        }
    }

    fn check(&self, connection: &mut Connection, file: &Handle, count: u32) -> Result<(), Error> {
        match self.acknowledged {
            Some(stamp) => connection.check_content(file, self.offset, count, stamp),
            None => Ok(()),
        }
    }
}

fn check_reply(reply: &nfs::WriteReply, region: &Region, count: u32) -> Result<(), Error> {
    if reply.count != count {
        return Err(Error::Wrong(format!("WRITE took {} bytes", reply.count)));
    }
    if reply.attributes.size < region.offset + u64::from(count) {
        return Err(Error::Wrong("the size after WRITE is too small".into()));
    }
    Ok(())
}

#[derive(Debug)]
pub(super) struct WriteSync {
    file: Handle,
    count: u32,
    writers: Writers,
    regions: Vec<Region>,
    rounds: Vec<usize>,
}

impl WriteSync {
    pub(super) fn new(
        tree: &Tree,
        connection: &mut Connection,
        seat: Seat,
        count: u32,
    ) -> Result<Self, Error> {
        let name = format!("sync-{count}-{}", seat.connection);
        let places = 0..seat.depth * PLACES_PER_SLOT;
        Ok(Self {
            file: connection.create(&tree.top, name.as_bytes())?,
            count,
            writers: Writers::new()?,
            regions: places.map(|place| Region::new(place, count)).collect(),
            rounds: vec![0; seat.depth],
        })
    }

    fn region(&mut self, slot: usize) -> Option<&mut Region> {
        let round = self.rounds.get(slot)?;
        let place = slot * PLACES_PER_SLOT + round % PLACES_PER_SLOT;
        self.regions.get_mut(place)
    }
}

impl Workload for WriteSync {
    fn start(&mut self, slot: usize) -> bool {
        match self.rounds.get_mut(slot) {
            Some(round) => {
                *round += 1;
                true
            }
            None => false,
        }
    }

    fn call(&mut self, slot: usize, call: &mut Outgoing) {
        let writer = self.writers.next();
        let count = self.count;
        let write = self
            .region(slot)
            .map(|region| region.write(writer, count, FILE_SYNC));
        if let Some(write) = write {
            call.write(&self.file, write);
        }
    }

    fn reply(&mut self, slot: usize, reply: &[u8], _: &Pattern) -> Result<Progress, Error> {
        let reply = nfs::written(rpc::results(reply)?)?;
        if reply.committed != FILE_SYNC {
            return Err(Error::Wrong("a FILE_SYNC WRITE is not committed".into()));
        }
        let count = self.count;
        if let Some(region) = self.region(slot) {
            check_reply(&reply, region, count)?;
            region.acknowledged = Some(region.sent);
        }
        Ok(Progress::Done(u64::from(count)))
    }

    fn verify(&mut self, connection: &mut Connection) -> Result<(), Error> {
        self.regions
            .iter()
            .try_for_each(|region| region.check(connection, &self.file, self.count))
    }
}

/// A file of one slot, and how far its batch is.
#[derive(Debug)]
struct Batch {
    file: Handle,
    regions: Vec<Region>,
    done: usize,
    verifier: Option<[u8; 8]>,
}

#[derive(Debug)]
pub(super) struct WriteCommit {
    batches: Vec<Batch>,
    writers: Writers,
}

impl WriteCommit {
    pub(super) fn new(tree: &Tree, connection: &mut Connection, seat: Seat) -> Result<Self, Error> {
        let mut batches = Vec::with_capacity(seat.depth);
        for slot in 0..seat.depth {
            let name = format!("commit-{}-{slot}", seat.connection);
            batches.push(Batch {
                file: connection.create(&tree.top, name.as_bytes())?,
                regions: (0..BATCH_WRITES)
                    .map(|place| Region::new(place, LARGE_BYTES))
                    .collect(),
                done: 0,
                verifier: None,
            });
        }
        Ok(Self {
            batches,
            writers: Writers::new()?,
        })
    }
}

impl Batch {
    fn written(&mut self, reply: &nfs::WriteReply) -> Result<(), Error> {
        if let Some(region) = self.regions.get(self.done) {
            check_reply(reply, region, LARGE_BYTES)?;
        }
        self.done += 1;
        let verifier = *self.verifier.get_or_insert(reply.verifier);
        check_verifier(verifier, reply.verifier)
    }

    fn committed(&mut self, verifier: [u8; 8]) -> Result<(), Error> {
        check_verifier(self.verifier.unwrap_or(verifier), verifier)?;
        for region in &mut self.regions {
            region.acknowledged = Some(region.sent);
        }
        Ok(())
    }
}

/// Another verifier means the server may have lost the data, which it has no reason to here.
fn check_verifier(earlier: [u8; 8], now: [u8; 8]) -> Result<(), Error> {
    if earlier == now {
        return Ok(());
    }
    Err(Error::Wrong("the write verifier changed".into()))
}

impl Workload for WriteCommit {
    fn start(&mut self, slot: usize) -> bool {
        match self.batches.get_mut(slot) {
            Some(batch) => {
                batch.done = 0;
                batch.verifier = None;
                true
            }
            None => false,
        }
    }

    fn call(&mut self, slot: usize, call: &mut Outgoing) {
        let Some(batch) = self.batches.get_mut(slot) else {
            return;
        };
        match batch.regions.get_mut(batch.done) {
            Some(region) => {
                let write = region.write(self.writers.next(), LARGE_BYTES, UNSTABLE);
                call.write(&batch.file, write);
            }
            None => call.commit(&batch.file),
        }
    }

    fn reply(&mut self, slot: usize, reply: &[u8], _: &Pattern) -> Result<Progress, Error> {
        let results = rpc::results(reply)?;
        let Some(batch) = self.batches.get_mut(slot) else {
            return Err(Error::Stream("a reply for no slot"));
        };
        if batch.done < BATCH_WRITES {
            batch.written(&nfs::written(results)?)?;
            return Ok(Progress::More);
        }
        batch.committed(nfs::committed(results)?)?;
        Ok(Progress::Done(BATCH_BYTES))
    }

    fn verify(&mut self, connection: &mut Connection) -> Result<(), Error> {
        for batch in &self.batches {
            for region in &batch.regions {
                region.check(connection, &batch.file, LARGE_BYTES)?;
            }
        }
        Ok(())
    }
}
