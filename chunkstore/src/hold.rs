//! Holds: how users of chunks keep a collection from taking what they are about to refer to.
//!
//! `docs/design/0002-collection.md` has the argument. In short: holds carry the number of the
//! collection cycle in which they were taken. A collection begins a cycle and looks at references
//! only when every hold of an earlier cycle is gone; so whatever was put under those is referred
//! to by then, or never will be. What is put or touched later is marked when that happens.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// While this lives, no chunk is collected that was put or touched since it was taken.
///
/// Taken before the first `put` of a job, and kept until the references to what was put are
/// durable, or given up for good. A hold that is kept for long delays collections.
#[derive(Debug, Default)]
#[must_use = "a hold that is dropped holds nothing"]
pub struct Hold(Option<Held>);

#[derive(Debug)]
struct Held {
    holds: Arc<Holds>,
    cycle: u64,
}

impl Hold {
    /// The hold of a store that collects nothing.
    pub const fn none() -> Self {
        Self(None)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(held) = self.0.take() {
            held.holds.release(held.cycle);
        }
    }
}

/// The holds of a store.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    state: Mutex<State>,
    /// Told when the last hold of a cycle is gone.
    released: Notify,
}

#[derive(Debug, Default)]
struct State {
    cycle: u64,
    /// How many holds each cycle has; none is zero.
    held: BTreeMap<u64, u64>,
}

impl Holds {
    pub(crate) fn take(self: &Arc<Self>) -> Hold {
        // Under the lock that begins cycles.
        let mut state = self.state.lock();
        let cycle = state.cycle;
        *state.held.entry(cycle).or_default() += 1;
        Hold(Some(Held {
            holds: Arc::clone(self),
            cycle,
        }))
    }

    /// A hold of a cycle whose number others give: the current one, asked for under the lock, so that none
    /// is taken that [`Holds::settled`] has not seen.
    pub(crate) fn take_in(self: &Arc<Self>, current: impl FnOnce() -> u64) -> Hold {
        let mut state = self.state.lock();
        let cycle = current();
        *state.held.entry(cycle).or_default() += 1;
        Hold(Some(Held {
            holds: Arc::clone(self),
            cycle,
        }))
    }

    fn release(&self, cycle: u64) {
        let mut state = self.state.lock();
        let Some(count) = state.held.get_mut(&cycle) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            state.held.remove(&cycle);
            drop(state);
            self.released.notify_waiters();
        }
    }

    /// Begins a cycle and gives its number.
    pub(crate) fn begin_cycle(&self) -> u64 {
        let mut state = self.state.lock();
        state.cycle += 1;
        state.cycle
    }

    /// Whether all holds that are older than `cycle` are gone.
    pub(crate) fn are_released_before(&self, cycle: u64) -> bool {
        let state = self.state.lock();
        state
            .held
            .first_key_value()
            .is_none_or(|(oldest, _)| *oldest >= cycle)
    }

    /// Waits until that is so. Safe to drop.
    pub(crate) async fn released_before(&self, cycle: u64) {
        loop {
            let released = self.released.notified();
            if self.are_released_before(cycle) {
                return;
            }
            released.await;
        }
    }

    /// The oldest cycle that has a hold.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let state = self.state.lock();
        state.held.first_key_value().map(|(oldest, _)| *oldest)
    }

    /// A cycle of which there is no older hold, now or later: at most the current one, which never
    /// becomes less.
    pub(crate) fn settled(&self, current: impl FnOnce() -> u64) -> u64 {
        let state = self.state.lock();
        let current = current();
        let oldest = state.held.first_key_value().map(|(oldest, _)| *oldest);
        oldest.map_or(current, |oldest| oldest.min(current))
    }

    /// How many holds there are.
    pub(crate) fn count(&self) -> u64 {
        self.state.lock().held.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cycle_waits_for_older_holds_only() {
        let holds = Arc::new(Holds::default());
        let (one, two) = (holds.take(), holds.take());
        let cycle = holds.begin_cycle();
        let young = holds.take();
        assert_eq!(holds.count(), 3);
        drop(one);
        assert!(!holds.are_released_before(cycle));
        let (waited, ()) = tokio::join!(holds.released_before(cycle), async {
            tokio::task::yield_now().await;
            drop(two);
        });
        let () = waited;
        assert!(holds.are_released_before(cycle));
        assert!(!holds.are_released_before(cycle + 1));
        drop(young);
        assert!(holds.are_released_before(cycle + 1));
        drop(Hold::none());
    }

    #[test]
    fn holds_are_of_cycles_that_others_tell() {
        let holds = Arc::new(Holds::default());
        assert_eq!((holds.oldest(), holds.settled(|| 4)), (None, 4));
        let old = holds.take_in(|| 4);
        let young = holds.take_in(|| 6);
        assert_eq!((holds.oldest(), holds.settled(|| 6)), (Some(4), 4));
        drop(old);
        assert_eq!((holds.oldest(), holds.settled(|| 7)), (Some(6), 6));
        assert_eq!(holds.settled(|| 5), 5);
        drop(young);
        assert_eq!((holds.oldest(), holds.settled(|| 7)), (None, 7));
    }
}
