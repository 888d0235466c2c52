//! Futures of the C API: completed once, with one callback that runs once.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::codes::{self, Code};

/// What a future gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing but success.
    Done,
    /// A number.
    Number(i64),
    /// A key.
    Key(Bytes),
    /// A value, if there is one.
    Value(Option<Bytes>),
    /// Part of a range, and whether there may be more.
    Pairs(Vec<(Bytes, Bytes)>, bool),
    /// Addresses of servers.
    Addresses(Vec<String>),
}

/// Value or error.
pub type Outcome = Result<Value, Code>;

type Hook = Box<dyn FnOnce() + Send>;

/// A future. Completing it again does nothing.
#[derive(Default)]
pub struct Future {
    outcome: OnceLock<Outcome>,
    hooks: Mutex<Hooks>,
}

#[derive(Default)]
struct Hooks {
    /// What the caller wants to be called.
    callback: Option<Hook>,
    /// What to do if the caller gives the future up.
    abandoned: Option<Hook>,
}

impl std::fmt::Debug for Future {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Future").field(&self.outcome).finish()
    }
}

impl Future {
    /// A future that waits.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A future that is ready.
    #[must_use]
    pub fn ready(outcome: Outcome) -> Arc<Self> {
        let future = Self::new();
        future.complete(outcome);
        future
    }

    /// The outcome, if it is there. It stays where it is as long as the future.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.get()
    }

    /// Completes the future and runs its callback. Call it without locks.
    pub fn complete(&self, outcome: Outcome) {
        let callback = {
            let mut hooks = self.hooks.lock();
            if self.outcome.set(outcome).is_err() {
                return;
            }
            hooks.abandoned = None;
            hooks.callback.take()
        };
        if let Some(callback) = callback {
            callback();
        }
    }

    /// Runs `callback` when the future is ready, at once if it is. `false` if it has one already.
    pub fn set_callback(&self, callback: Hook) -> bool {
        let at_once = {
            let mut hooks = self.hooks.lock();
            if self.outcome.get().is_none() {
                if hooks.callback.is_some() {
                    return false;
                }
                hooks.callback = Some(callback);
                None
            } else {
                Some(callback)
            }
        };
        if let Some(callback) = at_once {
            callback();
        }
        true
    }

    /// What to do if the caller gives the future up before it is ready.
    pub fn when_abandoned(&self, hook: Hook) {
        let mut hooks = self.hooks.lock();
        if self.outcome.get().is_none() {
            hooks.abandoned = Some(hook);
        }
    }

    /// The caller gives the future up: it fails, unless it is ready.
    pub fn abandon(&self) {
        let hook = self.hooks.lock().abandoned.take();
        self.complete(Err(codes::OPERATION_CANCELLED));
        if let Some(hook) = hook {
            hook();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn counter() -> (Arc<AtomicUsize>, impl Fn() -> Hook) {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        (count, move || {
            let count = Arc::clone(&counted);
            Box::new(move || {
                count.fetch_add(1, Ordering::SeqCst);
            })
        })
    }

    #[test]
    fn a_callback_runs_once_whatever_comes_first() {
        let (count, hook) = counter();
        let future = Future::new();
        assert!(future.set_callback(hook()));
        assert!(!future.set_callback(hook()), "a second callback");
        assert_eq!(count.load(Ordering::SeqCst), 0);
        future.complete(Ok(Value::Number(1)));
        future.complete(Ok(Value::Number(2)));
        future.abandon();
        assert_eq!(count.load(Ordering::SeqCst), 1);
        assert_eq!(future.outcome(), Some(&Ok(Value::Number(1))));
        assert!(future.set_callback(hook()), "of a ready future");
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn giving_up_runs_both_hooks_once() {
        let (called, callback) = counter();
        let (gone, abandoned) = counter();
        let future = Future::new();
        future.when_abandoned(abandoned());
        assert!(future.set_callback(callback()));
        future.abandon();
        future.abandon();
        future.complete(Ok(Value::Done));
        assert_eq!(called.load(Ordering::SeqCst), 1);
        assert_eq!(gone.load(Ordering::SeqCst), 1);
        assert_eq!(future.outcome(), Some(&Err(codes::OPERATION_CANCELLED)));
        let kept = Future::new();
        kept.when_abandoned(abandoned());
        kept.complete(Ok(Value::Done));
        kept.abandon();
        assert_eq!(
            gone.load(Ordering::SeqCst),
            1,
            "a ready future is not given up"
        );
    }
}
