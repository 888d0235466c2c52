//! READDIRPLUS from the first entry to the last: each name once, with handle and attributes.

use std::sync::Arc;

use super::Seat;
use crate::driver::{Progress, Workload};
use crate::many::file_number;
use crate::nfs::{self, Entry, Position};
use crate::rpc;
use crate::tree::{LISTING_BYTES, Tree};
use crate::{Error, Outgoing, Pattern};

/// One listing in progress.
#[derive(Debug, Clone)]
struct Reader {
    position: Position,
    seen: Vec<bool>,
    count: usize,
}

#[derive(Debug)]
pub(super) struct Listing {
    tree: Arc<Tree>,
    readers: Vec<Reader>,
}

impl Listing {
    pub(super) fn new(tree: Arc<Tree>, seat: Seat) -> Self {
        let reader = Reader {
            position: Position::default(),
            seen: vec![false; tree.files.len()],
            count: 0,
        };
        Self {
            tree,
            readers: vec![reader; seat.depth],
        }
    }
}

impl Reader {
    fn take(&mut self, tree: &Tree, entry: &Entry<'_>) -> Result<(), Error> {
        if matches!(entry.name, b"." | b"..") {
            return Ok(());
        }
        let wrong = |what: &str| {
            let name = String::from_utf8_lossy(entry.name).into_owned();
            Error::Wrong(format!("listing: {name}: {what}"))
        };
        let number = file_number(entry.name).ok_or_else(|| wrong("never created"))?;
        let (Some(file), Some(seen)) = (tree.files.get(number), self.seen.get_mut(number)) else {
            return Err(wrong("never created"));
        };
        if *seen {
            return Err(wrong("listed twice"));
        }
        *seen = true;
        self.count += 1;
        let known = file.attributes;
        if entry.attributes != Some(known) || entry.fileid != known.fileid || !entry.has_handle {
            return Err(wrong("handle or attributes missing or wrong"));
        }
        Ok(())
    }
}

impl Workload for Listing {
    fn start(&mut self, slot: usize) -> bool {
        match self.readers.get_mut(slot) {
            Some(reader) => {
                reader.position = Position::default();
                reader.seen.fill(false);
                reader.count = 0;
                true
            }
            None => false,
        }
    }

    fn call(&mut self, slot: usize, call: &mut Outgoing) {
        if let Some(reader) = self.readers.get(slot) {
            call.readdirplus(&self.tree.many, reader.position, LISTING_BYTES);
        }
    }

    fn reply(&mut self, slot: usize, reply: &[u8], _: &Pattern) -> Result<Progress, Error> {
        let Some(reader) = self.readers.get_mut(slot) else {
            return Err(Error::Stream("a reply for no slot"));
        };
        let next = nfs::listed(rpc::results(reply)?, |entry| {
            reader.take(&self.tree, &entry)
        })?;
        if let Some(position) = next {
            reader.position = position;
            return Ok(Progress::More);
        }
        if reader.count != self.tree.files.len() {
            let count = reader.count;
            return Err(Error::Wrong(format!(
                "listing: it ends after {count} names"
            )));
        }
        Ok(Progress::Done(0))
    }
}
