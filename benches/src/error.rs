//! What can go wrong while measuring.

/// Why a call, a connection or a run failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection or a file failed; the connection cannot go on.
    #[error("{context}: {source}")]
    Io {
        /// What was being done.
        context: &'static str,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The stream of replies lost its framing; the connection cannot go on.
    #[error("broken reply stream: {0}")]
    Stream(&'static str),
    /// A reply does not decode.
    #[error("malformed reply: {0}")]
    Malformed(&'static str),
    /// The server refused the call at the RPC level.
    #[error("call refused at the RPC level: {0}")]
    Refused(String),
    /// The server answered with an NFS or MOUNT status other than success.
    #[error("{call} answered status {status} ({name})", name = status_name(*status))]
    Status {
        /// Name of the procedure.
        call: &'static str,
        /// The status as on the wire.
        status: u32,
    },
    /// The reply decodes but says something that is not so.
    #[error("wrong answer: {0}")]
    Wrong(String),
    /// The options or the surroundings do not allow the run.
    #[error("{0}")]
    Setup(String),
}

impl Error {
    /// Names what was being done when the operating system failed.
    pub fn io(context: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { context, source }
    }

    /// Whether the connection is unusable after this error.
    #[must_use]
    pub fn ends_connection(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Stream(_) | Self::Setup(_))
    }
}

/// The name RFC 1813 gives a status.
fn status_name(status: u32) -> &'static str {
    match status {
        1 => "PERM",
        2 => "NOENT",
        5 => "IO",
        13 => "ACCES",
        17 => "EXIST",
        20 => "NOTDIR",
        21 => "ISDIR",
        22 => "INVAL",
        27 => "FBIG",
        28 => "NOSPC",
        30 => "ROFS",
        63 => "NAMETOOLONG",
        66 => "NOTEMPTY",
        69 => "DQUOT",
        70 => "STALE",
        10001 => "BADHANDLE",
        10003 => "BAD_COOKIE",
        10004 => "NOTSUPP",
        10005 => "TOOSMALL",
        10006 => "SERVERFAULT",
        10008 => "JUKEBOX",
        _ => "see RFC 1813",
    }
}
