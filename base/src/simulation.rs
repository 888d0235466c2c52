//! What a simulation of several processes in one controls: whether a process lives, and which rules
//! it keeps.
//!
//! Without the feature `testing` there is nothing to control: every rule is kept.

#[cfg(feature = "testing")]
mod process;

#[cfg(feature = "testing")]
pub use process::Process;
#[cfg(feature = "testing")]
pub(crate) use process::inherited;

/// A rule that a simulation leaves out to see that it then fails. The rules are those of
/// `docs/design/0015-fleet.md` and `docs/design/0001-session-engine.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Answering from memory needs a lease.
    Lease,
    /// After a lapse a gateway looks whether its sessions are still its own.
    Look,
    /// Who takes a session from a gateway that lives waits until that has given it up.
    Wait,
    /// A gateway is dead only while its lease has the counter that was seen for so long.
    Counter,
    /// A flush commits only while its gateway owns the session.
    Fence,
    /// Who takes a session over knows the replies that were stored.
    StoredReplies,
    /// A call that was passed on is not passed on.
    PassedOnce,
    /// A call that has waited is dropped if its connection has ended meanwhile.
    Ended,
    /// What has a hold of a cycle below the floor commits nothing
    /// (`docs/design/0016-fleet-collection.md`, as those below).
    Floor,
    /// A root that is copied during a collection is told.
    Grey,
    /// A collection ends its marking only when all that was told is walked, serializably.
    MarkingEnd,
    /// A chunk that was put or touched in the current cycle is not taken.
    Young,
    /// A put or touch raises the cycle of a chunk that it finds.
    Raise,
    /// A collector whose turn it is no more takes nothing.
    Turn,
}

#[cfg(feature = "testing")]
thread_local! {
    static LEFT_OUT: std::cell::Cell<Option<Rule>> = const { std::cell::Cell::new(None) };
}

/// Leaves a rule out on this thread from now on.
#[cfg(feature = "testing")]
pub fn leave_out(rule: Option<Rule>) {
    LEFT_OUT.set(rule);
}

/// Whether a rule is kept. It is, but in a simulation that is to fail.
#[must_use]
#[inline]
pub fn is_kept(rule: Rule) -> bool {
    #[cfg(feature = "testing")]
    return LEFT_OUT.get() != Some(rule);
    #[cfg(not(feature = "testing"))]
    {
        let _: Rule = rule;
        true
    }
}
