//! Loading and evicting, one at a time.
//!
//! A call that misses something holds a permit from its first load until it has run with all it
//! needs. Cells are evicted only while nobody holds one: so no load is in vain, and a call that
//! needs many objects has them all in the end, however little memory there is. An eviction that
//! is wanted waits for those who load, and those who come later wait for it, so memory is bounded
//! by the limit and what the calls of one round need.

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::Session;
use super::state::State;

/// Calls that load at a time: enough to hide the store's latency, and few enough to bound what
/// their objects take beyond the session's limit.
const LOADERS_MAX: u32 = 64;

/// Who loads.
#[derive(Debug)]
pub(super) struct Loaders {
    permits: Semaphore,
}

impl Loaders {
    pub(super) fn new() -> Self {
        let permits = usize::try_from(LOADERS_MAX).unwrap_or(1);
        Self {
            permits: Semaphore::new(permits),
        }
    }

    /// Waits for evictions that are wanted, and keeps others off. Safe to drop.
    pub(super) async fn enter(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.permits.acquire().await.ok()
    }
}

impl Session {
    /// Evicts what is above the limit, now or as soon as nobody loads.
    pub(super) fn limit_memory(self: &Arc<Self>, state: &mut State) {
        let memory_max = self.shared.options.session_memory_bytes;
        if state.evicting || state.image.memory_bytes() <= memory_max {
            return;
        }
        if let Ok(_all) = self.loaders.permits.try_acquire_many(LOADERS_MAX) {
            return state.image.evict(memory_max / 4 * 3);
        }
        state.evicting = true;
        let session = Arc::clone(self);
        self.shared.tasks.spawn(async move {
            let all = session.loaders.permits.acquire_many(LOADERS_MAX).await;
            {
                let mut state = session.lock();
                state.evicting = false;
                if state.image.memory_bytes() > memory_max {
                    state.image.evict(memory_max / 4 * 3);
                }
            }
            drop(all);
        });
    }
}
