//! The network thread: it completes futures and keeps time. A process has one, once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::OnceLock;
use std::time::Duration;

use base::{Clock, SystemClock};
use parking_lot::{Condvar, Mutex};

use crate::codes::{self, Code};

/// Newest version of the API that is offered.
pub const API_VERSION_MAX: i32 = 730;

/// Oldest version of the API that is offered: what changed with it is not imitated.
const API_VERSION_MIN: i32 = 700;

type Work = Box<dyn FnOnce() + Send>;

/// The process's network.
pub struct Network {
    clock: SystemClock,
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    api_version: Option<i32>,
    phase: Phase,
    now: VecDeque<Work>,
    later: BTreeMap<(Duration, u64), Work>,
    timers: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    New,
    SetUp,
    Running,
    Stopping,
    Stopped,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let phase = self.state.lock().phase;
        f.debug_struct("Network")
            .field("phase", &phase)
            .finish_non_exhaustive()
    }
}

/// The network of this process.
pub fn network() -> &'static Network {
    static NETWORK: OnceLock<Network> = OnceLock::new();
    NETWORK.get_or_init(Network::new)
}

impl Network {
    fn new() -> Self {
        Self {
            clock: SystemClock::new(),
            state: Mutex::default(),
            more: Condvar::new(),
        }
    }

    /// Time since some fixed point.
    pub fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Chooses the version of the API; once.
    ///
    /// # Errors
    ///
    /// It is chosen already, or not offered.
    pub fn select_api(&self, version: i32, header: i32) -> Result<(), Code> {
        let mut state = self.state.lock();
        if state.api_version.is_some() {
            return Err(codes::API_VERSION_ALREADY_SET);
        }
        if version > header {
            return Err(codes::API_VERSION_INVALID);
        }
        if !(API_VERSION_MIN..=API_VERSION_MAX).contains(&version) {
            return Err(codes::API_VERSION_NOT_SUPPORTED);
        }
        state.api_version = Some(version);
        Ok(())
    }

    /// Sets the network up; once.
    ///
    /// # Errors
    ///
    /// No version of the API is chosen, or the network is set up already.
    pub fn set_up(&self) -> Result<(), Code> {
        let mut state = self.state.lock();
        if state.api_version.is_none() {
            return Err(codes::API_VERSION_UNSET);
        }
        match state.phase {
            Phase::New => {
                state.phase = Phase::SetUp;
                Ok(())
            }
            Phase::SetUp | Phase::Running => Err(codes::NETWORK_ALREADY_SETUP),
            Phase::Stopping | Phase::Stopped => Err(codes::NETWORK_CANNOT_BE_RESTARTED),
        }
    }

    /// Whether databases may be made.
    ///
    /// # Errors
    ///
    /// The network is not set up.
    pub fn check_set_up(&self) -> Result<(), Code> {
        match self.state.lock().phase {
            Phase::New => Err(codes::NETWORK_NOT_SETUP),
            _ => Ok(()),
        }
    }

    /// Completes futures until it is stopped.
    ///
    /// # Errors
    ///
    /// The network is not set up, or has run already.
    pub fn run(&self) -> Result<(), Code> {
        let mut state = self.state.lock();
        match state.phase {
            Phase::SetUp => state.phase = Phase::Running,
            Phase::Stopping => {}
            Phase::New => return Err(codes::NETWORK_NOT_SETUP),
            Phase::Running | Phase::Stopped => return Err(codes::NETWORK_CANNOT_BE_RESTARTED),
        }
        loop {
            if state.phase == Phase::Stopping {
                state.phase = Phase::Stopped;
                return Ok(());
            }
            let now = self.clock.monotonic();
            if let Some(due) = state.later.first_entry()
                && due.key().0 <= now
            {
                let work = due.remove();
                state.now.push_back(work);
            }
            if let Some(work) = state.now.pop_front() {
                parking_lot::MutexGuard::unlocked(&mut state, work);
                continue;
            }
            let wait = match state.later.first_key_value() {
                Some(((due, _), _)) => due.saturating_sub(now),
                None => Duration::from_secs(3600),
            };
            self.more.wait_for(&mut state, wait);
        }
    }

    /// Lets [`Self::run`] return.
    ///
    /// # Errors
    ///
    /// The network is not set up.
    pub fn stop(&self) -> Result<(), Code> {
        let mut state = self.state.lock();
        match state.phase {
            Phase::New => return Err(codes::NETWORK_NOT_SETUP),
            Phase::SetUp | Phase::Running => state.phase = Phase::Stopping,
            Phase::Stopping | Phase::Stopped => {}
        }
        self.more.notify_all();
        Ok(())
    }

    /// Runs `work` on the network thread, unless that has ended: then it never runs.
    pub fn post(&self, work: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        if state.phase != Phase::Stopped {
            state.now.push_back(Box::new(work));
            self.more.notify_one();
        }
    }

    /// Runs `work` on the network thread after `delay`, as [`Self::post`] does.
    pub fn after(&self, delay: Duration, work: impl FnOnce() + Send + 'static) {
        let due = self.clock.monotonic() + delay;
        let mut state = self.state.lock();
        if state.phase == Phase::Stopped {
            return;
        }
        state.timers += 1;
        let name = (due, state.timers);
        state.later.insert(name, Box::new(work));
        self.more.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_network_runs_once_and_in_order() {
        let network = Arc::new(Network::new());
        assert_eq!(network.set_up(), Err(codes::API_VERSION_UNSET));
        assert_eq!(
            network.select_api(740, 730),
            Err(codes::API_VERSION_INVALID)
        );
        assert_eq!(
            network.select_api(740, 740),
            Err(codes::API_VERSION_NOT_SUPPORTED)
        );
        assert_eq!(network.select_api(730, 730), Ok(()));
        assert_eq!(
            network.select_api(730, 730),
            Err(codes::API_VERSION_ALREADY_SET)
        );
        assert_eq!(network.run(), Err(codes::NETWORK_NOT_SETUP));
        assert_eq!(network.stop(), Err(codes::NETWORK_NOT_SETUP));
        assert_eq!(network.check_set_up(), Err(codes::NETWORK_NOT_SETUP));
        assert_eq!(network.set_up(), Ok(()));
        assert_eq!(network.set_up(), Err(codes::NETWORK_ALREADY_SETUP));
        let order = Arc::new(Mutex::new(Vec::new()));
        for (delay, name) in [(3, "c"), (1, "b")] {
            let (order, stopped) = (Arc::clone(&order), Arc::clone(&network));
            network.after(Duration::from_millis(delay), move || {
                order.lock().push(name);
                if name == "c" {
                    stopped.stop().unwrap();
                }
            });
        }
        let first = Arc::clone(&order);
        network.post(move || first.lock().push("a"));
        assert_eq!(network.run(), Ok(()));
        assert_eq!(*order.lock(), ["a", "b", "c"]);
        assert_eq!(network.run(), Err(codes::NETWORK_CANNOT_BE_RESTARTED));
        assert_eq!(network.set_up(), Err(codes::NETWORK_CANNOT_BE_RESTARTED));
    }
}
