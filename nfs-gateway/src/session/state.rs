//! What a session's lock protects, and the guard that keeps the gateway's books.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use base::{Clock, InodeId};
use metadata::image::{Image, Totals};
use metadata::layers::Layers;
use metadata::record::changed::ChangedPaths;
use metadata::session::{Fence, StoredReply};
use parking_lot::MutexGuard;

use super::changing::{Waited, Waiting};
use super::exchange::{Held, Wanted};
use super::freeze::Freezer;
use super::holds::Holds;
use super::replies::Calls;
use super::{Parked, Session};

/// For how long changes are refused after the metadata store had no room for some. Then the next
/// one tries again.
const FULL_PAUSE: Duration = Duration::from_secs(1);

/// Files whose losses are remembered one by one.
const LOST_FILES_MAX: usize = 1024;

/// What the session's lock protects.
#[derive(Debug)]
pub(super) struct State {
    pub(super) image: Image,
    /// Where the image is stored.
    pub(super) layers: Arc<Layers>,
    /// Nothing is in the open layer. `false` if that is not known.
    pub(super) open_is_empty: bool,
    /// About how many bytes were flushed to the open layer since it was opened, or the session taken
    /// over, or a fold of it begun.
    pub(super) open_bytes: usize,
    /// Who waits for the open layer to be frozen.
    pub(super) freezers: Vec<Freezer>,
    /// An exchange that waits for its flush.
    pub(super) exchange: Option<Wanted>,
    /// Calls that wait for an exchange.
    pub(super) held: Held,
    pub(super) calls: Calls,
    pub(super) parked: Vec<Parked>,
    /// Changes of our own that wait until they are durable.
    pub(super) waiting: Waiting,
    /// Replies that the next flush stores.
    pub(super) replies: Vec<StoredReply>,
    /// What changes of our own have changed; the next flush stores it.
    pub(super) told: ChangedPaths,
    /// The right to flush; away while a flush runs.
    pub(super) fence: Option<Fence>,
    /// Totals as of the last flush.
    pub(super) durable_totals: Totals,
    /// The session is no longer ours, or we no longer know its state.
    pub(super) lost: bool,
    /// Counts losses of buffered data; part of the write verifier.
    pub(super) losses: u64,
    /// Which writes were lost.
    pub(super) lost_writes: LostWrites,
    /// Counts how often the image was set back to what is stored. What was begun before is not
    /// finished after it, but begun anew.
    pub(super) generation: u64,
    /// Changes are refused until then: the metadata store had no room.
    full_until: Option<Duration>,
    /// Counts how often those who waited for a flush were hung up on.
    pub(super) stalls: u64,
    /// An eviction waits for calls that load.
    pub(super) evicting: bool,
    /// Buffered bytes that the gateway's budget knows of.
    budgeted: usize,
    /// Keep chunks whose references wait for a flush from being collected.
    pub(super) holds: Holds,
}

impl State {
    pub(super) fn new(
        image: Image,
        calls: Calls,
        fence: Fence,
        totals: Totals,
        layers: Layers,
    ) -> Self {
        Self {
            image,
            layers: Arc::new(layers),
            open_is_empty: false,
            open_bytes: 0,
            freezers: Vec::new(),
            exchange: None,
            held: Held::default(),
            calls,
            parked: Vec::new(),
            waiting: Waiting::default(),
            replies: Vec::new(),
            told: ChangedPaths::default(),
            fence: Some(fence),
            durable_totals: totals,
            lost: false,
            losses: 0,
            lost_writes: LostWrites::default(),
            generation: 0,
            full_until: None,
            stalls: 0,
            evicting: false,
            budgeted: 0,
            holds: Holds::default(),
        }
    }

    /// Nothing waits, runs or would be lost.
    pub(super) fn is_quiet(&self) -> bool {
        self.image.is_clean()
            && self.parked.is_empty()
            && self.replies.is_empty()
            && self.calls.is_idle()
            && self.fence.is_some()
    }

    /// Whether buffered bytes have changed since the budget was last told.
    pub(super) fn owes_budget(&self) -> bool {
        self.image.buffered_bytes() != self.budgeted
    }

    /// Sets the image back to what is stored, because the store has no room for more. Returns the
    /// replies that waited for what is lost.
    pub(super) fn set_back(&mut self, now: Duration) -> Vec<Parked> {
        self.waiting.tell(Waited::SetBack);
        self.image.reset(self.durable_totals);
        self.replies.clear();
        self.told = ChangedPaths::default();
        self.generation += 1;
        self.losses += 1;
        self.lost_writes.lose_all(self.image.last_write());
        self.full_until = Some(now.saturating_add(FULL_PAUSE));
        std::mem::take(&mut self.parked)
    }

    /// Whether the store had no room a moment ago.
    pub(super) fn is_full(&self, clock: &dyn Clock) -> bool {
        // Every call asks: the clock is read only if there is something to compare it with.
        self.full_until
            .is_some_and(|until| clock.monotonic() < until)
    }
}

/// Which writes have been given up, by their numbers.
#[derive(Debug, Default)]
pub(super) struct LostWrites {
    /// Those up to this one, of every file.
    all_until: u64,
    /// Those up to this one, of these files.
    of: HashMap<InodeId, u64>,
}

impl LostWrites {
    pub(super) fn lose_all(&mut self, until: u64) {
        self.all_until = until;
        self.of.clear();
    }

    pub(super) fn lose(&mut self, inode: InodeId, until: u64) {
        if self.of.len() >= LOST_FILES_MAX {
            // Whoever waits for another file's write is told that it is lost: it is sent again.
            self.lose_all(until);
        } else {
            self.of.insert(inode, until);
        }
    }

    /// Whether a write of a file that was not stored yet has been given up.
    pub(super) fn contains(&self, inode: InodeId, write: u64) -> bool {
        let of = self.of.get(&inode).copied().unwrap_or_default();
        write <= self.all_until.max(of)
    }
}

/// The state, locked. Letting go of it tells the gateway's budget what is buffered, so that nothing
/// that changes the image can forget to.
pub(super) struct Locked<'a> {
    session: &'a Session,
    state: MutexGuard<'a, State>,
}

impl Session {
    pub(super) fn lock(&self) -> Locked<'_> {
        Locked {
            session: self,
            state: self.state.lock(),
        }
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let state = &mut *self.state;
        // What a lost session still holds is nobody's: whoever owns it now has its own.
        let buffered = if state.lost {
            0
        } else {
            state.image.buffered_bytes()
        };
        if buffered != state.budgeted {
            self.session
                .shared
                .buffered_changed(state.budgeted, buffered);
            state.budgeted = buffered;
        }
    }
}
