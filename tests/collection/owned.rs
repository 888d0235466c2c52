//! What a process of a model has in memory of its sessions.

use std::cell::RefCell;
use std::collections::BTreeMap;

use base::{Epoch, Rng, SessionId};
use metadata::keyspace;
use metadata::kv::Version;
use metadata::layers::{LayerId, Layers};
use metadata::record::session::SessionRecord;
use metadata::record::workspace::{TenantRecord, WorkspaceRecord};
use metadata::session::{Owned, session_layers, tree_of};
use metadata::tree::Trees;

#[derive(Debug)]
struct Held {
    epoch: Epoch,
    generation: u32,
    /// Of the last commit of a flush. `None` if the owner record has to be read.
    version: Option<Version>,
    /// A flush is in flight.
    is_flushing: bool,
    /// Layers are folded.
    is_folding: bool,
}

/// The sessions that a process owns.
#[derive(Debug, Default)]
pub(crate) struct Sessions(RefCell<BTreeMap<SessionId, Held>>);

impl Sessions {
    pub(crate) fn own(&self, owned: &Owned) {
        let held = Held {
            epoch: owned.fence.epoch(),
            generation: owned.session.generation,
            version: None,
            is_flushing: false,
            is_folding: false,
        };
        self.0.borrow_mut().insert(owned.fence.session(), held);
    }

    /// `None` if it was not owned.
    pub(crate) fn lose(&self, id: SessionId) -> Option<()> {
        self.0.borrow_mut().remove(&id).map(|_| ())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.borrow().len()
    }

    pub(crate) fn ids(&self) -> Vec<SessionId> {
        self.0.borrow().keys().copied().collect()
    }

    /// One of them, the one with the last key more often than others.
    pub(crate) fn pick(&self, rng: &Rng) -> Option<SessionId> {
        let mut ids = self.ids();
        ids.sort_by_key(|id| keyspace::session_meta(*id));
        match pick(rng, 2) {
            0 => ids.last().copied(),
            _ => (!ids.is_empty()).then(|| ids[index(rng, ids.len())]),
        }
    }

    pub(crate) fn version(&self, id: SessionId) -> Option<(Epoch, Option<Version>)> {
        let sessions = self.0.borrow();
        sessions.get(&id).map(|held| (held.epoch, held.version))
    }

    pub(crate) fn note(&self, id: SessionId, version: Option<Version>) {
        if let Some(held) = self.0.borrow_mut().get_mut(&id) {
            held.version = version;
        }
    }

    /// The open layer, if no other flush is in flight. [`Sessions::flushed`] ends it.
    pub(crate) fn begin_flush(&self, id: SessionId) -> Option<u32> {
        let mut sessions = self.0.borrow_mut();
        let held = sessions.get_mut(&id).filter(|held| !held.is_flushing)?;
        held.is_flushing = true;
        Some(held.generation)
    }

    pub(crate) fn flushed(&self, id: SessionId, generation: u32) {
        if let Some(held) = self.0.borrow_mut().get_mut(&id) {
            held.is_flushing = false;
            held.generation = generation;
        }
    }

    pub(crate) fn begin_fold(&self, id: SessionId) -> Option<Epoch> {
        let mut sessions = self.0.borrow_mut();
        let held = sessions.get_mut(&id).filter(|held| !held.is_folding)?;
        held.is_folding = true;
        Some(held.epoch)
    }

    pub(crate) fn folded(&self, id: SessionId) {
        if let Some(held) = self.0.borrow_mut().get_mut(&id) {
            held.is_folding = false;
        }
    }
}

pub(crate) fn pick(rng: &Rng, below: u64) -> u64 {
    rng.u64() % below
}

pub(crate) fn index(rng: &Rng, below: usize) -> usize {
    usize::try_from(pick(rng, u64::try_from(below).unwrap())).unwrap()
}

/// Puts a layer on the list of those that are frozen, and opens another.
pub(crate) fn freeze_layer(record: &mut SessionRecord, id: SessionId, generation: u32) {
    let layer = LayerId {
        session: id,
        generation,
    };
    record.frozen.insert(0, layer);
    record.generation = generation + 1;
}

/// Where a session's image is.
pub(crate) fn layers_of(
    trees: &dyn Trees,
    (tenant, workspace): (&TenantRecord, &WorkspaceRecord),
    id: SessionId,
    record: &SessionRecord,
) -> Layers {
    let tree = tree_of(trees, record.tenant, tenant, workspace);
    session_layers(id, record, workspace, tree)
}
