//! NULL, GETATTR, LOOKUP, ACCESS: calls that memory should answer.

use std::sync::Arc;

use super::{Seat, Walk};
use crate::driver::{Progress, Workload};
use crate::nfs::{self, ACCESS_ASKED, ACCESS_READ_WRITE, Attributes, Place};
use crate::rpc;
use crate::tree::{File, Tree};
use crate::{Error, Outgoing, Pattern};

#[derive(Debug)]
pub(super) struct Null;

impl Workload for Null {
    fn call(&mut self, _: usize, call: &mut Outgoing) {
        call.null();
    }

    fn reply(&mut self, _: usize, reply: &[u8], _: &Pattern) -> Result<Progress, Error> {
        rpc::results(reply)?.end()?;
        Ok(Progress::Done(0))
    }
}

/// The files of the tree and where each slot is among them.
#[derive(Debug)]
struct Files {
    tree: Arc<Tree>,
    walk: Walk,
}

impl Files {
    fn new(tree: Arc<Tree>, seat: Seat) -> Self {
        let walk = Walk::new(tree.files.len(), seat);
        Self { tree, walk }
    }

    fn next(&mut self, slot: usize) -> Option<&File> {
        let number = self.walk.advance(slot);
        self.tree.files.get(number)
    }

    fn current(&self, slot: usize) -> Result<&File, Error> {
        let file = self.tree.files.get(self.walk.at(slot));
        file.ok_or_else(|| Error::Setup("the tree has no files".into()))
    }
}

/// Nobody changes the files, so all that was true at their creation stays true.
fn check(file: &File, attributes: Attributes) -> Result<(), Error> {
    if attributes == file.attributes {
        return Ok(());
    }
    Err(Error::Wrong(format!(
        "attributes of an unchanged file are {attributes:?}, were {:?}",
        file.attributes
    )))
}

#[derive(Debug)]
pub(super) struct Getattr {
    files: Files,
}

impl Getattr {
    pub(super) fn new(tree: Arc<Tree>, seat: Seat) -> Self {
        let files = Files::new(tree, seat);
        Self { files }
    }
}

impl Workload for Getattr {
    fn call(&mut self, slot: usize, call: &mut Outgoing) {
        if let Some(file) = self.files.next(slot) {
            call.getattr(&file.handle);
        }
    }

    fn reply(&mut self, slot: usize, reply: &[u8], _: &Pattern) -> Result<Progress, Error> {
        let attributes = nfs::attributes(rpc::results(reply)?)?;
        check(self.files.current(slot)?, attributes)?;
        Ok(Progress::Done(0))
    }
}

#[derive(Debug)]
pub(super) struct Lookup {
    files: Files,
}

impl Lookup {
    pub(super) fn new(tree: Arc<Tree>, seat: Seat) -> Self {
        let files = Files::new(tree, seat);
        Self { files }
    }
}

impl Workload for Lookup {
    fn call(&mut self, slot: usize, call: &mut Outgoing) {
        let tree = Arc::clone(&self.files.tree);
        if let Some(file) = self.files.next(slot) {
            call.lookup(Place {
                directory: &tree.many,
                name: &file.name,
            });
        }
    }

    fn reply(&mut self, slot: usize, reply: &[u8], _: &Pattern) -> Result<Progress, Error> {
        let (handle, attributes) = nfs::found(rpc::results(reply)?)?;
        let file = self.files.current(slot)?;
        if !file.handle.is(handle) {
            return Err(Error::Wrong(
                "LOOKUP gives another handle than CREATE".into(),
            ));
        }
        check(file, attributes)?;
        Ok(Progress::Done(0))
    }
}

#[derive(Debug)]
pub(super) struct Access {
    files: Files,
}

impl Access {
    pub(super) fn new(tree: Arc<Tree>, seat: Seat) -> Self {
        let files = Files::new(tree, seat);
        Self { files }
    }
}

impl Workload for Access {
    fn call(&mut self, slot: usize, call: &mut Outgoing) {
        if let Some(file) = self.files.next(slot) {
            call.access(&file.handle);
        }
    }

    fn reply(&mut self, slot: usize, reply: &[u8], _: &Pattern) -> Result<Progress, Error> {
        let (attributes, granted) = nfs::granted(rpc::results(reply)?)?;
        check(self.files.current(slot)?, attributes)?;
        let too_few = granted & ACCESS_READ_WRITE != ACCESS_READ_WRITE;
        let too_many = granted & !ACCESS_ASKED != 0;
        if too_few || too_many {
            return Err(Error::Wrong(format!("root is granted {granted:#x}")));
        }
        Ok(Progress::Done(0))
    }
}
