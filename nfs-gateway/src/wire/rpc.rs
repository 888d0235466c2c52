//! ONC RPC version 2 (RFC 5531): call headers, credentials and reply headers.

use base::{Caller, limits};
use bytes::Bytes;

use super::procedure::{NFS_PROGRAM, NFS_VERSION};
use super::reply::{Reply, ReplyWriter};
use super::xdr::{XdrError, XdrReader, XdrWriter};

/// The only version of RPC.
const RPC_VERSION: u32 = 2;

const MESSAGE_CALL: u32 = 0;
const MESSAGE_REPLY: u32 = 1;

const REPLY_ACCEPTED: u32 = 0;
const REPLY_DENIED: u32 = 1;

const DENIED_RPC_MISMATCH: u32 = 0;
const DENIED_AUTH_ERROR: u32 = 1;

const FLAVOR_NONE: u32 = 0;
const FLAVOR_SYS: u32 = 1;
const FLAVOR_TLS: u32 = 7;

/// Longest body of a credential or verifier (RFC 5531, section 8.2).
const AUTH_BYTES_MAX: usize = 400;

/// Longest machine name in AUTH_SYS (RFC 5531, appendix A).
const MACHINE_NAME_BYTES_MAX: usize = 255;

/// Most supplementary groups in AUTH_SYS (RFC 5531, appendix A).
pub const GROUPS_MAX: usize = 16;

const _: () = assert!(AUTH_BYTES_MAX < limits::RECORD_BYTES_MAX);

/// A call of NFS's NULL procedure, by nobody: a whole record without its mark.
#[must_use]
pub fn null_call(xid: u32) -> Bytes {
    let mut call = XdrWriter::with_capacity(40);
    let header = [xid, MESSAGE_CALL, RPC_VERSION, NFS_PROGRAM, NFS_VERSION, 0];
    for word in header.into_iter().chain([FLAVOR_NONE, 0, FLAVOR_NONE, 0]) {
        call.u32(word);
    }
    call.into_bytes().into()
}

/// One call: its header, and a reader at its arguments.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// The transaction id, which the reply repeats.
    pub xid: u32,
    /// Whom the call is for.
    pub program: u32,
    /// Which version of it.
    pub version: u32,
    /// What it is to do.
    pub procedure: u32,
    /// Who asks.
    pub credential: Credential<'a>,
    /// The arguments, not read yet.
    pub args: XdrReader<'a>,
}

/// Who asks, as the call says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential<'a> {
    /// AUTH_NONE: nobody in particular.
    None,
    /// AUTH_SYS: what the client's kernel says.
    Sys(SysCredential<'a>),
}

/// An AUTH_SYS credential (RFC 5531, appendix A).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SysCredential<'a> {
    /// What the client calls itself. Not to be trusted.
    pub machine: &'a [u8],
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    groups: [u32; GROUPS_MAX],
    group_count: usize,
}

impl SysCredential<'_> {
    /// Supplementary groups.
    #[must_use]
    pub fn groups(&self) -> &[u32] {
        self.groups.get(..self.group_count).unwrap_or_default()
    }
}

impl Credential<'_> {
    /// The identity the credential names, before any squashing; nothing for AUTH_NONE.
    #[must_use]
    pub fn caller(&self) -> Option<Caller> {
        match self {
            Self::None => None,
            Self::Sys(sys) => Some(Caller {
                uid: sys.uid,
                gid: sys.gid,
                groups: sys.groups().to_vec(),
            }),
        }
    }
}

/// Why a record is not a call that can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Not a call at all, or cut off in its header: there is nobody to answer.
    #[error("the record is no RPC call: {0}")]
    NotACall(#[from] XdrError),
    /// A call to be refused with `why`.
    #[error("the call is denied: {why:?}")]
    Denied {
        /// The call's transaction id.
        xid: u32,
        /// What to answer.
        why: Denial,
    },
}

/// Why a call is denied before anybody looks at what it wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// Not version 2 of RPC.
    RpcMismatch,
    /// AUTH_BADCRED: the credential is broken.
    BadCredential,
    /// AUTH_BADVERF: the verifier is broken.
    BadVerifier,
    /// AUTH_REJECTEDCRED: a flavour that is not served.
    RejectedCredential,
    /// AUTH_TOOWEAK: the answer to a probe for TLS, which is not served. The client takes any
    /// denial to mean so; after this one Linux gives the probe up at once, after the others it
    /// repeats it.
    TooWeak,
}

impl Denial {
    const fn auth_status(self) -> u32 {
        match self {
            Self::RpcMismatch | Self::BadCredential => 1,
            Self::RejectedCredential => 2,
            Self::BadVerifier => 3,
            Self::TooWeak => 5,
        }
    }
}

/// Why an accepted call was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The program is not served here.
    ProgramUnavailable,
    /// The program is served, in other versions.
    ProgramMismatch {
        /// Lowest version served.
        low: u32,
        /// Highest version served.
        high: u32,
    },
    /// The program has no such procedure.
    ProcedureUnavailable,
    /// The arguments cannot be decoded.
    GarbageArguments,
    /// The server failed. Linux tries twice more and then reports EIO.
    SystemError,
}

/// Reads the header of a call.
///
/// # Errors
///
/// [`CallError::NotACall`] closes the connection, [`CallError::Denied`] is answered with
/// [`denied`].
pub fn decode_call(record: &Bytes) -> Result<Call<'_>, CallError> {
    let mut reader = XdrReader::new(record);
    let xid = reader.u32()?;
    if reader.u32()? != MESSAGE_CALL {
        return Err(CallError::NotACall(XdrError::Value));
    }
    if reader.u32()? != RPC_VERSION {
        let why = Denial::RpcMismatch;
        return Err(CallError::Denied { xid, why });
    }
    let program = reader.u32()?;
    let version = reader.u32()?;
    let procedure = reader.u32()?;
    let denied = |why| CallError::Denied { xid, why };
    let credential = decode_credential(&mut reader).map_err(denied)?;
    decode_verifier(&mut reader).map_err(denied)?;
    Ok(Call {
        xid,
        program,
        version,
        procedure,
        credential,
        args: reader,
    })
}

fn decode_credential<'a>(reader: &mut XdrReader<'a>) -> Result<Credential<'a>, Denial> {
    let broken = |_: XdrError| Denial::BadCredential;
    let flavor = reader.u32().map_err(broken)?;
    let body = reader.opaque(AUTH_BYTES_MAX).map_err(broken)?;
    match flavor {
        FLAVOR_NONE => Ok(Credential::None),
        FLAVOR_SYS => decode_sys(reader.within(body))
            .map(Credential::Sys)
            .map_err(broken),
        FLAVOR_TLS => Err(Denial::TooWeak),
        _ => Err(Denial::RejectedCredential),
    }
}

fn decode_sys<'a>(mut reader: XdrReader<'a>) -> Result<SysCredential<'a>, XdrError> {
    let _stamp = reader.u32()?;
    let machine = reader.opaque(MACHINE_NAME_BYTES_MAX)?;
    let uid = reader.u32()?;
    let gid = reader.u32()?;
    let group_count = usize::try_from(reader.u32()?).map_err(|_| XdrError::TooLong)?;
    let mut groups = [0; GROUPS_MAX];
    let named = groups.get_mut(..group_count).ok_or(XdrError::TooLong)?;
    for group in named {
        *group = reader.u32()?;
    }
    reader.finish()?;
    Ok(SysCredential {
        machine,
        uid,
        gid,
        groups,
        group_count,
    })
}

/// The verifier of a call carries nothing with the flavours served here, but has a limit.
fn decode_verifier(reader: &mut XdrReader<'_>) -> Result<(), Denial> {
    let broken = |_: XdrError| Denial::BadVerifier;
    let _flavor = reader.u32().map_err(broken)?;
    reader.opaque(AUTH_BYTES_MAX).map_err(broken)?;
    Ok(())
}

/// Begins the reply to a call that was executed, whatever its result.
#[must_use]
pub fn success(xid: u32) -> ReplyWriter {
    ReplyWriter::begin(|to| accepted(to, xid, 0))
}

/// The reply to a call that was executed, from the [`Reply::body`] of an earlier one.
#[must_use]
pub fn repeated(xid: u32, body: &[u8]) -> Reply {
    let mut reply = success(xid);
    reply.body().raw(body);
    reply.finish()
}

/// The reply to a call that was not executed.
#[must_use]
pub fn refused(xid: u32, why: Refusal) -> Reply {
    let reply = ReplyWriter::begin(|to| match why {
        Refusal::ProgramUnavailable => accepted(to, xid, 1),
        Refusal::ProgramMismatch { low, high } => {
            accepted(to, xid, 2);
            to.u32(low);
            to.u32(high);
        }
        Refusal::ProcedureUnavailable => accepted(to, xid, 3),
        Refusal::GarbageArguments => accepted(to, xid, 4),
        Refusal::SystemError => accepted(to, xid, 5),
    });
    reply.finish()
}

/// The reply to a call that was denied.
#[must_use]
pub fn denied(xid: u32, why: Denial) -> Reply {
    let reply = ReplyWriter::begin(|to| {
        to.u32(xid);
        to.u32(MESSAGE_REPLY);
        to.u32(REPLY_DENIED);
        if why == Denial::RpcMismatch {
            to.u32(DENIED_RPC_MISMATCH);
            to.u32(RPC_VERSION);
            to.u32(RPC_VERSION);
        } else {
            to.u32(DENIED_AUTH_ERROR);
            to.u32(why.auth_status());
        }
    });
    reply.finish()
}

fn accepted(to: &mut XdrWriter, xid: u32, status: u32) {
    to.u32(xid);
    to.u32(MESSAGE_REPLY);
    to.u32(REPLY_ACCEPTED);
    to.u32(FLAVOR_NONE);
    to.u32(0);
    to.u32(status);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_null_call_is_one_of_nfs() {
        let record = null_call(1);
        let words = [1, 0, 2, 100_003, 3, 0, 0, 0, 0, 0].map(u32::to_be_bytes);
        assert_eq!(record, words.concat());
        let call = decode_call(&record).unwrap();
        let target = super::super::procedure::Target::of(&call);
        let null = super::super::procedure::Procedure::Null;
        assert_eq!(target, Ok(super::super::procedure::Target::Nfs(null)));
    }

    /// A call of NFS GETATTR with this credential, whose arguments are four zero bytes.
    fn call(rpc_version: u32, flavor: u32, credential: &[u8]) -> Bytes {
        let mut writer = XdrWriter::default();
        for word in [7, MESSAGE_CALL, rpc_version, 100_003, 3, 1, flavor] {
            writer.u32(word);
        }
        writer.opaque(credential);
        for word in [FLAVOR_NONE, 0, 0] {
            writer.u32(word);
        }
        Bytes::from(writer.into_bytes())
    }

    fn sys(machine: &[u8], groups: &[u32]) -> Vec<u8> {
        let mut writer = XdrWriter::default();
        writer.u32(99);
        writer.opaque(machine);
        writer.u32(1000);
        writer.u32(100);
        writer.length(groups.len());
        for group in groups {
            writer.u32(*group);
        }
        writer.into_bytes()
    }

    fn why(record: &Bytes) -> Option<Denial> {
        match decode_call(record) {
            Err(CallError::Denied { xid: 7, why }) => Some(why),
            _ => None,
        }
    }

    #[test]
    fn a_call_with_unix_credentials_is_read() {
        let record = call(2, FLAVOR_SYS, &sys(b"sandbox", &[5, 6]));
        let call = decode_call(&record).unwrap();
        assert_eq!((call.xid, call.program, call.procedure), (7, 100_003, 1));
        let caller = call.credential.caller().unwrap();
        assert_eq!((caller.uid, caller.gid), (1000, 100));
        assert_eq!(caller.groups, [5, 6]);
        assert_eq!(call.args.remaining(), 4);
    }

    #[test]
    fn broken_and_foreign_credentials_are_denied() {
        let sixteen = [1; GROUPS_MAX];
        let seventeen = [1; GROUPS_MAX + 1];
        let mut huge_count = sys(b"m", &[]);
        let count_at = huge_count.len() - 4;
        huge_count[count_at..].copy_from_slice(&[0xff; 4]);
        let cases = [
            (call(3, FLAVOR_NONE, b""), Some(Denial::RpcMismatch)),
            (call(2, FLAVOR_NONE, b""), None),
            (call(2, FLAVOR_NONE, &[0; 404]), Some(Denial::BadCredential)),
            (call(2, FLAVOR_SYS, &sys(&[b'm'; 255], &sixteen)), None),
            (
                call(2, FLAVOR_SYS, &sys(&[b'm'; 256], &[])),
                Some(Denial::BadCredential),
            ),
            (
                call(2, FLAVOR_SYS, &sys(b"m", &seventeen)),
                Some(Denial::BadCredential),
            ),
            (
                call(2, FLAVOR_SYS, &huge_count),
                Some(Denial::BadCredential),
            ),
            (call(2, FLAVOR_SYS, b""), Some(Denial::BadCredential)),
            (call(2, 2, b""), Some(Denial::RejectedCredential)),
            (call(2, 6, b""), Some(Denial::RejectedCredential)),
            (call(2, FLAVOR_TLS, b""), Some(Denial::TooWeak)),
        ];
        for (record, expected) in cases {
            assert_eq!(why(&record), expected, "{record:?}");
        }
    }

    #[test]
    fn what_is_no_call_has_nobody_to_answer() {
        for record in [&[][..], &[0; 3], &[0, 0, 0, 7], &[0, 0, 0, 7, 0, 0, 0, 1]] {
            let record = Bytes::from_static(record);
            assert!(matches!(decode_call(&record), Err(CallError::NotACall(_))));
        }
    }

    #[test]
    fn reply_headers_are_these_bytes() {
        let words = |reply: Reply| -> Vec<u32> {
            let bytes = reply.to_vec();
            let words = bytes.chunks(4).map(|word| word.try_into().unwrap());
            words.map(u32::from_be_bytes).collect()
        };
        let mark = |bytes: u32| 0x8000_0000 | bytes;
        let mismatch = Refusal::ProgramMismatch { low: 3, high: 3 };
        let cases = [
            (success(7).finish(), vec![mark(24), 7, 1, 0, 0, 0, 0]),
            (
                repeated(7, &[0, 0, 0, 9]),
                vec![mark(28), 7, 1, 0, 0, 0, 0, 9],
            ),
            (
                refused(7, Refusal::ProgramUnavailable),
                vec![mark(24), 7, 1, 0, 0, 0, 1],
            ),
            (refused(7, mismatch), vec![mark(32), 7, 1, 0, 0, 0, 2, 3, 3]),
            (
                refused(7, Refusal::ProcedureUnavailable),
                vec![mark(24), 7, 1, 0, 0, 0, 3],
            ),
            (
                refused(7, Refusal::GarbageArguments),
                vec![mark(24), 7, 1, 0, 0, 0, 4],
            ),
            (
                refused(7, Refusal::SystemError),
                vec![mark(24), 7, 1, 0, 0, 0, 5],
            ),
            (
                denied(7, Denial::RpcMismatch),
                vec![mark(24), 7, 1, 1, 0, 2, 2],
            ),
            (denied(7, Denial::TooWeak), vec![mark(20), 7, 1, 1, 1, 5]),
        ];
        for (reply, expected) in cases {
            assert_eq!(words(reply), expected);
        }
    }

    #[test]
    fn data_follows_the_header_padded() {
        for size in [0, 1, 4, 1023, 1024, 1025, 4096, 4099] {
            let halves = [vec![1; size / 2], vec![2; size - size / 2]];
            let reply = success(7).finish_with(halves.iter().cloned().map(Bytes::from).collect());
            let bytes = reply.to_vec();
            assert_eq!(bytes.len(), reply.wire_bytes());
            let record = Bytes::from(bytes).slice(28..);
            let mut reader = XdrReader::new(&record);
            assert_eq!(reader.opaque(8192), Ok(halves.concat().as_slice()));
            assert_eq!(reader.finish(), Ok(()));
        }
    }
}
