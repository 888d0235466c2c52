//! A service without files: decodes every call and says what it came to.

use bytes::{BufMut, Bytes};
use nfs_gateway::wire::args::NfsCall;
use nfs_gateway::wire::mount::{self, MountCall};
use nfs_gateway::wire::procedure::{MountProcedure, Procedure, Target};
use nfs_gateway::wire::record::RecordReader;
use nfs_gateway::wire::reply::Reply;
use nfs_gateway::wire::results;
use nfs_gateway::wire::rpc::{self, CallError};
use nfs_gateway::wire::xdr::XdrError;
use nfs_gateway::{HandleKey, HandleKeys};
use nfsserve::nfs::nfsstat3;

pub(crate) fn keys() -> HandleKeys {
    HandleKeys::new(HandleKey::new(1, [1; 32]), None)
}

/// What one record comes to: what to answer, if anything, and in words.
pub(crate) fn answer(keys: &HandleKeys, record: &Bytes) -> (Option<Reply>, String) {
    let call = match rpc::decode_call(record) {
        Ok(call) => call,
        Err(CallError::NotACall(_)) => return (None, "no call".to_owned()),
        Err(CallError::Denied { xid, why }) => {
            return (Some(rpc::denied(xid, why)), format!("denied {why:?}"));
        }
    };
    let xid = call.xid;
    let result = match Target::of(&call) {
        Err(why) => return (Some(rpc::refused(xid, why)), format!("refused {why:?}")),
        Ok(Target::Nfs(procedure)) => answer_nfs(keys, xid, procedure, &call),
        Ok(Target::Mount(procedure)) => answer_mount(xid, procedure, &call),
    };
    match result {
        Ok((reply, words)) => (Some(reply), words),
        Err((name, error)) => {
            let reply = rpc::refused(xid, rpc::Refusal::GarbageArguments);
            (Some(reply), format!("garbage {name}: {error}"))
        }
    }
}

type Answer = Result<(Reply, String), (&'static str, XdrError)>;

fn answer_nfs(keys: &HandleKeys, xid: u32, procedure: Procedure, call: &rpc::Call<'_>) -> Answer {
    let name = procedure.name();
    let decoded = NfsCall::decode(procedure, call.args.clone()).map_err(|error| (name, error))?;
    if let NfsCall::Write(args) = &decoded {
        assert!(args.data.len() <= base::limits::READ_BYTES_MAX);
    }
    let reply = match decoded.handle() {
        None => results::null(xid),
        // That a forged handle would be taken is beyond any fuzzer, unless the check is broken.
        Some(handle) => {
            assert!(keys.verify(handle).is_err(), "a forged handle was taken");
            results::failed(xid, nfsstat3::NFS3ERR_STALE, &())
        }
    };
    Ok((reply, format!("nfs {name}")))
}

fn answer_mount(xid: u32, procedure: MountProcedure, call: &rpc::Call<'_>) -> Answer {
    let name = procedure.name();
    let decoded = MountCall::decode(procedure, call.args.clone()).map_err(|error| (name, error))?;
    let reply = match decoded {
        MountCall::Mnt(_) => mount::denied(xid, mount::MountError::AccessDenied),
        MountCall::Dump | MountCall::Export => mount::empty_list(xid),
        MountCall::Null | MountCall::Umnt(_) | MountCall::Umntall => mount::done(xid),
    };
    Ok((reply, format!("mount {name}")))
}

/// Feeds a stream to the decoders in reads of at most `step` bytes; says what it came to.
pub(crate) fn drive(keys: &HandleKeys, stream: &[u8], step: usize) -> String {
    let mut reader = RecordReader::new();
    let mut outcome = String::new();
    let mut rest = stream;
    loop {
        loop {
            match reader.take() {
                Ok(None) => break,
                Ok(Some(record)) => {
                    let (reply, words) = answer(keys, &record);
                    if let Some(reply) = reply {
                        assert_eq!(reply.wire_bytes() % 4, 0);
                        assert_eq!(reply.to_vec().get(4..8), record.get(..4));
                    }
                    outcome.push_str(&words);
                    outcome.push_str("; ");
                }
                Err(error) => return format!("{outcome}error: {error}"),
            }
        }
        if rest.is_empty() {
            let end = if reader.is_inside_record() {
                "waiting"
            } else {
                "end"
            };
            return outcome + end;
        }
        let mut room = reader.room();
        let taken = room.remaining_mut().min(step).min(rest.len());
        let (now, later) = rest.split_at(taken);
        room.put_slice(now);
        rest = later;
    }
}
