//! ONC RPC (RFC 5531) as a client needs it: call headers and accepted replies.

use crate::Error;
use crate::xdr::Decoder;

/// Marks the last fragment of a record.
pub(crate) const LAST_FRAGMENT: u32 = 1 << 31;

/// Longest reply accepted, in bytes: a 1 MiB READ and generous headers.
pub(crate) const RECORD_BYTES_MAX: usize = 1024 * 1024 + 64 * 1024;

/// Longest body of a credential or verifier, in bytes (RFC 5531).
const AUTH_BYTES_MAX: usize = 400;

const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;

/// A remote procedure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Procedure {
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) number: u32,
    pub(crate) name: &'static str,
}

/// The words of a call between its number and its credentials.
pub(crate) fn call_header(procedure: Procedure) -> [u32; 5] {
    [
        CALL,
        RPC_VERSION,
        procedure.program,
        procedure.version,
        procedure.number,
    ]
}

/// AUTH_SYS as root on a machine named `load`, and an empty verifier.
pub(crate) fn credentials() -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect();
    let mut bytes: Vec<u8> = words(&[AUTH_SYS, 28, 0, 4]);
    bytes.extend_from_slice(b"load");
    let rest: Vec<u8> = words(&[0, 0, 1, 0, AUTH_NONE, 0]);
    bytes.extend(rest);
    bytes
}

/// The results of an accepted call, given the reply after its number.
pub(crate) fn results(reply: &[u8]) -> Result<Decoder<'_>, Error> {
    let mut decoder = Decoder::new(reply);
    if decoder.u32()? != REPLY {
        return Err(Error::Malformed("not a reply"));
    }
    if decoder.u32()? != 0 {
        return Err(Error::Refused(denial(&mut decoder)?));
    }
    decoder.u32()?;
    decoder.opaque(AUTH_BYTES_MAX)?;
    let reason = match decoder.u32()? {
        0 => return Ok(decoder),
        1 => "PROG_UNAVAIL",
        2 => "PROG_MISMATCH",
        3 => "PROC_UNAVAIL",
        4 => "GARBAGE_ARGS",
        5 => "SYSTEM_ERR",
        _ => return Err(Error::Malformed("an unknown accept status")),
    };
    Err(Error::Refused(reason.into()))
}

fn denial(decoder: &mut Decoder<'_>) -> Result<String, Error> {
    Ok(match decoder.u32()? {
        0 => "RPC_MISMATCH".into(),
        1 => format!("AUTH_ERROR {}", decoder.u32()?),
        _ => return Err(Error::Malformed("an unknown reject status")),
    })
}

#[cfg(test)]
mod tests {
    use super::{credentials, results};

    #[test]
    fn credentials_name_their_own_length() {
        let bytes = credentials();
        // Flavour and length, 28 bytes of body, empty verifier.
        assert_eq!(bytes.len(), 8 + 28 + 8);
    }

    #[test]
    fn refusals_are_told_from_results() {
        let words = |words: &[u32]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_be_bytes()).collect()
        };
        assert!(results(&words(&[1, 0, 0, 0, 0])).is_ok());
        let text = results(&words(&[1, 0, 0, 0, 3])).unwrap_err().to_string();
        assert!(text.contains("PROC_UNAVAIL"), "{text}");
        let text = results(&words(&[1, 1, 1, 5])).unwrap_err().to_string();
        assert!(text.contains("AUTH_ERROR 5"), "{text}");
        assert!(results(&words(&[1, 0, 0, 401, 0])).is_err());
    }
}
