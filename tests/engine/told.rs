//! Calls and answers as a trace tells them.

use system_tests::subject::{Answer, Call, Op};

use crate::codec::Reply;

/// Characters shown of a call.
const CALL_CHARS: usize = 200;

/// A call in one line.
pub(crate) fn describe(call: &Call) -> String {
    let op = match &call.op {
        Op::Write {
            inode,
            offset,
            data,
            stable,
        } => {
            let (count, first) = (data.len(), data.first());
            format!("Write {inode:?} at {offset}, {count} bytes from {first:?}, stable {stable}")
        }
        op => format!("{op:?}").chars().take(CALL_CHARS).collect(),
    };
    format!("uid {} at {}: {op}", call.caller.uid, call.now)
}

/// What a call came to, in one line.
pub(crate) fn outcome(reply: &Reply) -> String {
    match (reply.answer.error(), &reply.answer) {
        (Some(error), _) => format!("{error:?}"),
        (None, Answer::Created(Ok(created))) => format!("made {:?}", created.object.inode),
        _ => match reply.verifier {
            Some(verifier) => format!("ok, verifier {:02x}{:02x}", verifier[0], verifier[1]),
            None => "ok".to_owned(),
        },
    }
}
