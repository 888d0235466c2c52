//! What a call was answered with, as one word for metrics and logs. It is read from the reply, so it is
//! the same for replies that are made, repeated, or come from another gateway.

/// A `nfsstat3` (RFC 1813, section 2.6) or `mountstat3` (section 5.1.5): where both have a number it
/// means the same. The first is the most frequent.
const STATUSES: [(u32, &str); 29] = [
    (0, "ok"),
    (1, "perm"),
    (2, "noent"),
    (5, "io"),
    (6, "nxio"),
    (13, "acces"),
    (17, "exist"),
    (18, "xdev"),
    (19, "nodev"),
    (20, "notdir"),
    (21, "isdir"),
    (22, "inval"),
    (27, "fbig"),
    (28, "nospc"),
    (30, "rofs"),
    (31, "mlink"),
    (63, "nametoolong"),
    (66, "notempty"),
    (69, "dquot"),
    (70, "stale"),
    (71, "remote"),
    (10_001, "badhandle"),
    (10_002, "not_sync"),
    (10_003, "bad_cookie"),
    (10_004, "notsupp"),
    (10_005, "toosmall"),
    (10_006, "serverfault"),
    (10_007, "badtype"),
    (10_008, "jukebox"),
];

/// Outcomes that are no status of a procedure. The first five are those of RPC, in its order, from 1.
const OTHERS: [&str; 8] = [
    "prog_unavail",
    "prog_mismatch",
    "proc_unavail",
    "garbage_args",
    "system_err",
    "denied",
    "hung_up",
    "other",
];

const DENIED: usize = 5;
const HUNG_UP: usize = 6;
const OTHER: usize = 7;

const MESSAGE_REPLY: u32 = 1;
const REPLY_ACCEPTED: u32 = 0;
const REPLY_DENIED: u32 = 1;

/// Longest verifier (RFC 5531, section 8.2), in bytes.
const VERIFIER_BYTES_MAX: usize = 400;

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome(usize);

impl Outcome {
    /// How many there are.
    pub const COUNT: usize = STATUSES.len() + OTHERS.len();

    /// The procedure did what was asked.
    pub const OK: Self = Self(0);

    /// There was no reply.
    pub const HUNG_UP: Self = Self::other(HUNG_UP);

    const fn other(index: usize) -> Self {
        Self(STATUSES.len() + index)
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(Self)
    }

    /// Its place among all, from 0.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0
    }

    /// The name, in lower case, for logs and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        let status = STATUSES.get(self.0).map(|(_, name)| *name);
        let other = || OTHERS.get(self.0.checked_sub(STATUSES.len())?).copied();
        status.or_else(other).unwrap_or("other")
    }

    /// The outcome with this status.
    #[must_use]
    pub fn of_status(status: u32) -> Self {
        let known = STATUSES.iter().position(|(number, _)| *number == status);
        known.map_or(Self::other(OTHER), Self)
    }

    /// The outcome that a reply tells of; `message` is the RPC message, or its begin up to the status.
    #[must_use]
    pub fn of_message(message: &[u8]) -> Self {
        Self::told(message).unwrap_or(Self::other(OTHER))
    }

    fn told(message: &[u8]) -> Option<Self> {
        if word(message, 4)? != MESSAGE_REPLY {
            return None;
        }
        match word(message, 8)? {
            REPLY_ACCEPTED => {}
            REPLY_DENIED => return Some(Self::other(DENIED)),
            _ => return None,
        }
        let verifier_bytes = usize::try_from(word(message, 16)?).ok()?;
        if verifier_bytes > VERIFIER_BYTES_MAX {
            return None;
        }
        let at = 20 + verifier_bytes.next_multiple_of(4);
        match word(message, at)? {
            // Without a result, as that of NULL, there is nothing that failed.
            0 => Some(word(message, at + 4).map_or(Self::OK, Self::of_status)),
            refusal @ 1..=5 => Some(Self::other(usize::try_from(refusal).ok()? - 1)),
            _ => None,
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_be_bytes(*word))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use nfsserve::nfs::nfsstat3;

    use super::*;
    use crate::wire::mount::{self, MountError};
    use crate::wire::reply::Reply;
    use crate::wire::rpc::{self, Denial, Refusal};
    use crate::wire::{nfs3::WireHandle, results};

    /// The outcome of a reply, which is the same if another gateway made it.
    fn name(reply: &Reply) -> &'static str {
        let record = Bytes::from(reply.to_vec().split_off(4));
        let passed_on = Reply::of_record(record);
        assert_eq!(passed_on.outcome(), reply.outcome());
        reply.outcome().name()
    }

    #[test]
    fn each_kind_of_reply_tells_its_outcome() {
        let read = results::ReadOk {
            attributes: None,
            eof: true,
        };
        let data = |bytes: usize| [Bytes::from(vec![2; bytes])].into_iter().collect();
        let failed = |status| results::failed(7, status, &());
        let refused = |why| rpc::refused(7, why);
        let mismatch = Refusal::ProgramMismatch { low: 3, high: 3 };
        let cases = [
            (results::null(7), "ok"),
            (results::ok(7, &()), "ok"),
            (results::read(7, &read, data(9)), "ok"),
            (results::read(7, &read, data(100_000)), "ok"),
            (failed(nfsstat3::NFS3ERR_NOENT), "noent"),
            (failed(nfsstat3::NFS3ERR_STALE), "stale"),
            (failed(nfsstat3::NFS3ERR_NOSPC), "nospc"),
            (failed(nfsstat3::NFS3ERR_JUKEBOX), "jukebox"),
            (refused(Refusal::ProgramUnavailable), "prog_unavail"),
            (refused(mismatch), "prog_mismatch"),
            (refused(Refusal::ProcedureUnavailable), "proc_unavail"),
            (refused(Refusal::GarbageArguments), "garbage_args"),
            (refused(Refusal::SystemError), "system_err"),
            (rpc::denied(7, Denial::TooWeak), "denied"),
            (rpc::denied(7, Denial::RpcMismatch), "denied"),
            (mount::granted(7, WireHandle(&[9; 4])), "ok"),
            (mount::denied(7, MountError::AccessDenied), "acces"),
            (mount::denied(7, MountError::ServerFault), "serverfault"),
            (mount::done(7), "ok"),
            (mount::empty_list(7), "ok"),
        ];
        for (reply, outcome) in cases {
            assert_eq!(name(&reply), outcome, "{reply:?}");
        }
    }

    #[test]
    fn a_repeated_reply_has_the_outcome_of_the_first() {
        for status in [nfsstat3::NFS3_OK, nfsstat3::NFS3ERR_EXIST] {
            let first = results::failed(7, status, &());
            let again = rpc::repeated(8, first.body());
            assert_eq!(again.outcome(), first.outcome());
        }
        let stored = rpc::repeated(8, &17_u32.to_be_bytes());
        assert_eq!(stored.outcome().name(), "exist");
    }

    #[test]
    fn what_is_no_reply_is_something_else() {
        let reply = results::failed(7, nfsstat3::NFS3ERR_IO, &()).to_vec();
        let message = &reply[4..];
        for length in 0..24 {
            assert_eq!(Outcome::of_message(&message[..length]).name(), "other");
        }
        assert_eq!(Outcome::of_message(&[0xff; 64]).name(), "other");
        assert_eq!(Outcome::of_status(3).name(), "other");
        // With a verifier, as another implementation may send one.
        let words = [7, 1, 0, 6, 5, 0, 0, 0, 70].map(u32::to_be_bytes);
        assert_eq!(Outcome::of_message(&words.concat()).name(), "stale");
    }

    #[test]
    fn outcomes_have_names_of_their_own() {
        let names: std::collections::HashSet<_> = Outcome::all().map(Outcome::name).collect();
        assert_eq!(names.len(), Outcome::COUNT);
        assert_eq!(Outcome::OK.name(), "ok");
        assert_eq!(Outcome::HUNG_UP.name(), "hung_up");
    }
}
