//! READ of one size, all over a file.

use std::sync::Arc;

use super::{Seat, Walk};
use crate::driver::{Progress, Workload};
use crate::nfs;
use crate::pattern::{STAMP_BYTES, Stamp};
use crate::rpc;
use crate::tree::{CONTENT_BYTES, CONTENT_WRITER, Tree};
use crate::{Error, Outgoing, Pattern};

#[derive(Debug)]
pub(super) struct Read {
    tree: Arc<Tree>,
    walk: Walk,
    count: u32,
}

impl Read {
    pub(super) fn new(tree: Arc<Tree>, seat: Seat, count: u32) -> Self {
        let places = usize::try_from(CONTENT_BYTES / u64::from(count)).unwrap_or(1);
        Self {
            tree,
            walk: Walk::new(places, seat),
            count,
        }
    }

    fn offset(&self, place: usize) -> u64 {
        u64::try_from(place).unwrap_or(0) * u64::from(self.count)
    }

    /// The file's content is the pattern over and over, stamped page by page.
    fn matches(&self, offset: u64, data: &[u8], pattern: &Pattern) -> bool {
        let stamp_bytes = u64::try_from(STAMP_BYTES).unwrap_or(1);
        let stamp = Stamp {
            writer: CONTENT_WRITER,
            page: offset / stamp_bytes,
        };
        pattern.matches(stamp, data)
    }
}

impl Workload for Read {
    fn call(&mut self, slot: usize, call: &mut Outgoing) {
        let place = self.walk.advance(slot);
        call.read(&self.tree.content, self.offset(place), self.count);
    }

    fn reply(&mut self, slot: usize, reply: &[u8], pattern: &Pattern) -> Result<Progress, Error> {
        let reply = nfs::read(rpc::results(reply)?)?;
        let offset = self.offset(self.walk.at(slot));
        let end = offset + u64::from(self.count);
        if u32::try_from(reply.data.len()).ok() != Some(self.count) {
            return Err(Error::Wrong(format!("READ at {offset} is short")));
        }
        if reply.eof != (end == CONTENT_BYTES) || reply.attributes.size != CONTENT_BYTES {
            return Err(Error::Wrong(format!("READ at {offset}: end or size")));
        }
        if !self.matches(offset, reply.data, pattern) {
            return Err(Error::Wrong(format!("READ at {offset} gives other bytes")));
        }
        Ok(Progress::Done(u64::from(self.count)))
    }
}
