//! Where sessions are: in memory, being looked for, or with another gateway.

use std::sync::Arc;
use std::time::Duration;

use base::simulation::{Rule, is_kept};
use base::{SessionId, Told};
use bytes::Bytes;
use metadata::kv::KvError;
use metadata::session::OwnError;
use tokio::sync::{Notify, oneshot};

use super::{Gateway, decode_request, stale};
use crate::connection::CallGuard;
use crate::fleet::{Fleet, Place, Route};
use crate::session::Session;

/// How long a call waits for its session to be taken over before its connection is closed.
const TAKEOVER_PATIENCE: Duration = Duration::from_secs(20);

/// Pause after the first try to take a session over. It doubles with each: a takeover writes, and
/// a store that is full or down is not helped by being asked often.
const TAKEOVER_PAUSE: Duration = Duration::from_millis(50);

/// Longest pause between tries to take a session over.
const TAKEOVER_PAUSE_MAX: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) enum Slot {
    Open(Arc<Session>),
    /// It is being looked for or taken over, or let go of; these calls wait.
    Opening(Opening),
    /// Another gateway serves it.
    Elsewhere(Route),
}

#[derive(Debug)]
pub(super) struct Opening {
    pub(super) waiting: Vec<(Bytes, CallGuard)>,
    done: Arc<Notify>,
    /// Another gateway has taken it meanwhile, or the store's records have changed: it has to be looked
    /// for anew.
    is_void: bool,
    /// The lapses of the lease when it began. After a further one it is void, too.
    lapses: u64,
    /// The session, while it is let go of.
    leaving: Option<Arc<Session>>,
}

impl Drop for Opening {
    /// Whoever still waits when nobody fills the place any more is not left waiting.
    fn drop(&mut self) {
        self.done.notify_waiters();
        for (_, guard) in self.waiting.drain(..) {
            guard.close();
        }
    }
}

/// Empties the place where calls wait if who was to fill it does not come to that.
struct Filling {
    gateway: Arc<Gateway>,
    id: SessionId,
    is_filled: bool,
}

impl Drop for Filling {
    fn drop(&mut self) {
        if !self.is_filled {
            drop(self.gateway.fill(self.id, None));
        }
    }
}

impl Gateway {
    /// What is known of a session does not hold any more; the session, if it is in memory.
    pub(crate) fn void(&self, id: SessionId) -> Option<Arc<Session>> {
        let mut sessions = self.sessions.write();
        match sessions.get_mut(&id) {
            Some(Slot::Open(session)) => return Some(Arc::clone(session)),
            Some(Slot::Opening(opening)) => {
                opening.is_void = true;
                return opening.leaving.clone();
            }
            Some(Slot::Elsewhere(_)) => {
                sessions.remove(&id);
            }
            None => {}
        }
        None
    }

    /// Forgets where a session is, if it is not here.
    pub(crate) fn forget_route(&self, id: SessionId) {
        let mut sessions = self.sessions.write();
        if let Some(Slot::Elsewhere(_)) = sessions.get(&id) {
            sessions.remove(&id);
        }
    }

    /// The sessions in memory, also those that are being let go of.
    pub(crate) fn held_sessions(&self) -> Vec<Arc<Session>> {
        let sessions = self.sessions.read();
        let held = sessions.values().filter_map(|slot| match slot {
            Slot::Open(session) => Some(Arc::clone(session)),
            Slot::Opening(opening) => opening.leaving.clone(),
            Slot::Elsewhere(_) => None,
        });
        held.collect()
    }

    /// Forgets where sessions are.
    pub(crate) fn forget_routes(&self, which: impl Fn(&Route) -> bool) {
        let is_kept = |slot: &Slot| !matches!(slot, Slot::Elsewhere(route) if which(route));
        self.sessions.write().retain(|_, slot| is_kept(slot));
    }

    /// Further calls of a session wait from now on. `false` if it is not served any more.
    pub(crate) fn begin_leaving(&self, session: &Arc<Session>) -> bool {
        let mut sessions = self.sessions.write();
        let slot = sessions.get_mut(&session.id());
        let Some(slot) = slot else { return false };
        if !matches!(slot, Slot::Open(open) if Arc::ptr_eq(open, session)) {
            return false;
        }
        let mut opening = self.opening(Vec::new());
        opening.leaving = Some(Arc::clone(session));
        *slot = Slot::Opening(opening);
        true
    }

    /// Calls that have waited are asked again: here if the session was kept, else of whoever has it. What
    /// was lost meanwhile is not kept.
    pub(crate) fn end_leaving(self: &Arc<Self>, id: SessionId, kept: Option<Arc<Session>>) {
        let kept = kept.filter(|session| !session.is_lost());
        let waiting = self.fill(id, kept.map(Slot::Open));
        for (record, guard) in waiting {
            self.redispatch(&record, guard);
        }
    }

    pub(super) fn opening(&self, waiting: Vec<(Bytes, CallGuard)>) -> Opening {
        let lapses = self.fleet.as_ref().map_or(0, Fleet::lapses);
        Opening {
            waiting,
            done: Arc::default(),
            is_void: false,
            lapses,
            leaving: None,
        }
    }

    /// Puts something in the place where calls wait; returns the calls.
    fn fill(&self, id: SessionId, slot: Option<Slot>) -> Vec<(Bytes, CallGuard)> {
        let mut sessions = self.sessions.write();
        let before = match slot {
            Some(slot) => sessions.insert(id, slot),
            None => sessions.remove(&id),
        };
        match before {
            Some(Slot::Opening(mut opening)) => std::mem::take(&mut opening.waiting),
            _ => Vec::new(),
        }
    }

    pub(super) fn begin_takeover(&self, id: SessionId) {
        let Some(gateway) = self.this.upgrade() else {
            return;
        };
        self.tasks.spawn(async move {
            // Whoever waits has been told.
            drop(gateway.settle(id, false).await);
        });
    }

    /// Finds out where a session is, or takes it over, with patience for a store that fails.
    async fn look_for(self: &Arc<Self>, id: SessionId, insists: bool) -> Result<Place, OwnError> {
        let began = self.clock.monotonic();
        let mut pause = TAKEOVER_PAUSE;
        loop {
            match self.find(id, insists).await {
                Err(OwnError::Kv(error))
                    if self.clock.monotonic().saturating_sub(began) < TAKEOVER_PATIENCE =>
                {
                    tracing::debug!(session = %id, error = %Told(&error), "takeover is tried again");
                    self.clock.sleep(pause).await;
                    pause = (pause * 2).min(TAKEOVER_PAUSE_MAX);
                }
                result => {
                    if matches!(result, Ok(Place::Here(_))) {
                        let took = self.clock.monotonic().saturating_sub(began);
                        self.counters.takeover_took.observe(took);
                    }
                    return result;
                }
            }
        }
    }

    /// Looks for a session in whose place calls wait, and lets them go on.
    async fn settle(self: &Arc<Self>, id: SessionId, insists: bool) -> Result<Place, OwnError> {
        let mut filling = Filling {
            gateway: Arc::clone(self),
            id,
            is_filled: false,
        };
        loop {
            let result = self.look_for(id, insists).await;
            if let Some(result) = self.settled(id, result) {
                filling.is_filled = true;
                return result;
            }
        }
    }

    /// Puts what was found in the place where calls wait. `None` if it does not hold any more.
    fn settled(
        self: &Arc<Self>,
        id: SessionId,
        result: Result<Place, OwnError>,
    ) -> Option<Result<Place, OwnError>> {
        let slot = result.as_ref().ok().map(|place| match place {
            Place::Here(session) => Slot::Open(Arc::clone(session)),
            Place::Elsewhere(route) => Slot::Elsewhere(route.clone()),
        });
        let waiting = {
            let mut sessions = self.sessions.write();
            if let Some(Slot::Opening(opening)) = sessions.get_mut(&id) {
                let lapses = self.fleet.as_ref().map_or(0, Fleet::lapses);
                if (opening.is_void || opening.lapses != lapses) && result.is_ok() {
                    opening.is_void = false;
                    opening.lapses = lapses;
                    return None;
                }
            }
            let before = match slot {
                Some(slot) => sessions.insert(id, slot),
                None => sessions.remove(&id),
            };
            match before {
                Some(Slot::Opening(mut opening)) => std::mem::take(&mut opening.waiting),
                _ => Vec::new(),
            }
        };
        for (record, guard) in waiting {
            self.go_on(&result, &record, guard);
        }
        Some(result)
    }

    /// What becomes of a call that has waited for its session.
    fn go_on(self: &Arc<Self>, result: &Result<Place, OwnError>, record: &Bytes, guard: CallGuard) {
        match result {
            // It was passed on already. Who did that looks again.
            Ok(Place::Elsewhere(_)) if is_passed_on(&guard) => guard.close(),
            Ok(_) => self.redispatch(record, guard),
            Err(OwnError::NotFound) => {
                self.counters.stale_handles.count();
                match decode_request(record, self) {
                    Some(decoded) => guard.send(stale(&decoded)),
                    None => guard.close(),
                }
            }
            Err(error) => {
                tracing::warn!(?error, "takeover failed");
                guard.close();
            }
        }
    }

    /// The session, from memory or taken over, also from a gateway that lives.
    pub(crate) async fn session(self: &Arc<Self>, id: SessionId) -> Result<Arc<Session>, OwnError> {
        match self.place(id, true).await? {
            Place::Here(session) => Ok(session),
            // Not with what was asked for.
            Place::Elsewhere(_) => Err(OwnError::Kv(KvError::Conflict)),
        }
    }

    /// Where the session is: in memory, taken over, or with another gateway. `insists` if it must be
    /// here.
    pub(crate) async fn place(
        self: &Arc<Self>,
        id: SessionId,
        insists: bool,
    ) -> Result<Place, OwnError> {
        if !self.wait_for_lease().await {
            let why = "this gateway's lease has lapsed and is not renewed";
            return Err(OwnError::Kv(KvError::Unavailable(why.into())));
        }
        loop {
            let opening = {
                let mut sessions = self.sessions.write();
                match sessions.get(&id) {
                    Some(Slot::Open(session)) => return Ok(Place::Here(Arc::clone(session))),
                    Some(Slot::Elsewhere(route)) if !insists => {
                        return Ok(Place::Elsewhere(route.clone()));
                    }
                    Some(Slot::Opening(opening)) => {
                        Some(Arc::clone(&opening.done).notified_owned())
                    }
                    Some(Slot::Elsewhere(_)) | None => {
                        sessions.insert(id, Slot::Opening(self.opening(Vec::new())));
                        None
                    }
                }
            };
            match opening {
                Some(done) => done.await,
                None => return self.settle_aside(id, insists).await,
            }
        }
    }

    /// Settles a place as a task of its own: others wait for it, also if who began it is gone.
    async fn settle_aside(
        self: &Arc<Self>,
        id: SessionId,
        insists: bool,
    ) -> Result<Place, OwnError> {
        let (tell, told) = oneshot::channel();
        let gateway = Arc::clone(self);
        self.tasks.spawn(async move {
            // Nobody has to wait for it any more.
            drop(tell.send(gateway.settle(id, insists).await));
        });
        told.await.unwrap_or_else(|_| {
            let why = "the server is shutting down";
            Err(OwnError::Kv(KvError::Unavailable(why.into())))
        })
    }
}

fn is_passed_on(guard: &CallGuard) -> bool {
    guard.connection().is_link() && is_kept(Rule::PassedOnce)
}

#[cfg(test)]
mod tests;
