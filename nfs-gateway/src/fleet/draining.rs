//! Letting go of sessions, so that others take them without waiting for anything.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use metadata::session::let_go;

use crate::gateway::Gateway;
use crate::session::Session;

/// How long a session's calls in progress and unwritten data may take before it is kept after all.
const SESSION_PATIENCE: Duration = Duration::from_secs(10);

/// Pause between two looks whether a session is quiet.
const LOOK_PAUSE: Duration = Duration::from_millis(2);

/// Sessions that are let go at a time.
const AT_A_TIME: usize = 32;

impl Gateway {
    /// Takes no further sessions, and lets go of those it has, if there is another gateway that takes
    /// them. Calls that come here are passed on to it from then on. Returns how many sessions are left
    /// here.
    ///
    /// # Cancellation
    ///
    /// Safe: the sessions that were not let go of are kept.
    pub async fn drain(self: &Arc<Self>) -> usize {
        let Some(fleet) = &self.fleet else {
            return self.sessions_in_memory();
        };
        fleet.draining.store(true, Ordering::SeqCst);
        if let Err(error) = self.renew(fleet).await {
            tracing::warn!(error = %base::Told(&error), "other gateways do not know yet that this one drains");
        }
        if !self.has_heir(fleet) {
            tracing::info!("there is no other gateway that takes sessions");
            return self.sessions_in_memory();
        }
        let mut sessions = self.open_sessions();
        while !sessions.is_empty() && !self.tasks.is_shutting_down() {
            let some = sessions.split_off(sessions.len().saturating_sub(AT_A_TIME));
            let leaving = some.iter().map(|session| self.part_with(session));
            for (session, is_gone) in some.iter().zip(join_all(leaving).await) {
                if !is_gone {
                    tracing::warn!(session = %session.id(), "session is too busy to be let go of");
                }
            }
        }
        self.open_sessions().len()
    }

    /// Lets go of a session; `false` if it was not quiet for long, and is kept.
    async fn part_with(self: &Arc<Self>, session: &Arc<Session>) -> bool {
        let id = session.id();
        if !self.begin_leaving(session) {
            return true;
        }
        let is_quiet = self.wait_until_quiet(session).await;
        if is_quiet {
            let gone = let_go(self.kv.as_ref(), id, self.id, session.epoch()).await;
            if let Err(error) = gone {
                // The next gateway waits until our lease is gone.
                tracing::warn!(session = %id, error = %base::Told(&error), "session was not let go of");
            }
            self.counters.let_go.count();
        }
        self.end_leaving(id, (!is_quiet).then(|| Arc::clone(session)));
        is_quiet
    }

    async fn wait_until_quiet(&self, session: &Arc<Session>) -> bool {
        let began = self.clock.monotonic();
        loop {
            session.write_back_all();
            if session.retire_if_unused() {
                return true;
            }
            let is_over = self.clock.monotonic().saturating_sub(began) > SESSION_PATIENCE;
            if is_over || self.tasks.is_shutting_down() {
                return false;
            }
            self.clock.sleep(LOOK_PAUSE).await;
        }
    }

    /// Leaves the others: whoever asks for a session of ours need not wait. For the end of a gateway,
    /// when it answers no more calls.
    pub(crate) async fn leave(&self) {
        let Some(fleet) = &self.fleet else { return };
        fleet.renewals.begin_shutdown();
        fleet.renewals.join().await;
        fleet.holds_until_ms.store(0, Ordering::SeqCst);
        let member = fleet.member.lock().await;
        fleet.has_left.store(true, Ordering::SeqCst);
        if let Err(error) = member.leave(self.kv.as_ref()).await {
            tracing::warn!(error = %base::Told(&error), "the lease was not removed: others wait until it has lapsed");
        }
    }
}
