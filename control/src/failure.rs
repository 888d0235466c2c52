//! Why a command failed, cut by exit code.

use std::fmt::Display;

/// A failed command. The message says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What kind of failure it is; decides the exit code.
    pub kind: FailureKind,
    /// What happened and what to do.
    pub message: String,
}

/// Kinds of failure: what a script that runs the command would do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// It does not work, and trying again will not help.
    Error,
    /// The command line or the configuration is wrong.
    Usage,
    /// Something else is in the way: it exists, it is in use.
    Conflict,
    /// There is no such thing.
    NotFound,
    /// It is not allowed.
    Denied,
    /// It may work later.
    Retry,
    /// A disk is full, or a quota is used up.
    NoSpace,
}

impl Failure {
    /// A failure of this kind.
    pub fn new(kind: FailureKind, message: impl Display) -> Self {
        Self {
            kind,
            message: message.to_string(),
        }
    }

    /// A failure without a better kind.
    pub fn error(message: impl Display) -> Self {
        Self::new(FailureKind::Error, message)
    }

    /// A failure of the system, of the kind that its error tells.
    pub fn io(doing: impl Display, error: &std::io::Error) -> Self {
        use std::io::ErrorKind;
        let kind = match error.kind() {
            ErrorKind::PermissionDenied => FailureKind::Denied,
            ErrorKind::NotFound => FailureKind::NotFound,
            ErrorKind::AddrInUse | ErrorKind::AlreadyExists => FailureKind::Conflict,
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => FailureKind::NoSpace,
            _ => FailureKind::Error,
        };
        Self::new(kind, format_args!("{doing}: {error}"))
    }

    /// The process's exit code: 1 error, 2 usage, 3 conflict, 4 not found, 5 denied, 6 retry.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            FailureKind::Error | FailureKind::NoSpace => 1,
            FailureKind::Usage => 2,
            FailureKind::Conflict => 3,
            FailureKind::NotFound => 4,
            FailureKind::Denied => 5,
            FailureKind::Retry => 6,
        }
    }
}
