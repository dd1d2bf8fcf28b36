//! Errors of calls, classified by the possible reactions of a caller.

use tonic::{Code, Status};

/// Errors of calls to etcd.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The call got no answer, so it may or may not have taken effect: the caller may repeat it if that does no harm.
    #[error("etcd does not answer: {0}")]
    Unavailable(String),
    /// Writes are refused until the alarm NOSPACE is disarmed; the call took no effect.
    #[error(
        "etcd is out of space and takes no writes: compact and defragment it, then disarm its alarm"
    )]
    OutOfSpace,
    /// The revision asked for is no longer kept; the call took no effect.
    #[error("etcd has compacted the requested revision")]
    Compacted,
    /// User, password or permission are wrong; the call took no effect.
    #[error("etcd refuses access: {0}")]
    Denied(String),
    /// The lease is unknown or has expired; the call took no effect.
    #[error("the lease does not exist in etcd")]
    LeaseGone,
    /// Any other refusal of etcd; the call took no effect.
    #[error("etcd refuses the request: {0}")]
    Refused(String),
}

impl Error {
    /// Whether the same call may succeed later, with or without an operator's help.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::OutOfSpace)
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        let message = status.message();
        match status.code() {
            Code::ResourceExhausted if message.contains("space exceeded") => Self::OutOfSpace,
            Code::OutOfRange if message.contains("compacted") => Self::Compacted,
            Code::NotFound if message.contains("lease not found") => Self::LeaseGone,
            Code::Unauthenticated | Code::PermissionDenied => Self::Denied(message.to_owned()),
            Code::InvalidArgument if message.contains("auth") || message.contains("user name") => {
                Self::Denied(message.to_owned())
            }
            Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Unknown
            | Code::Internal
            | Code::Aborted
            | Code::DataLoss
            | Code::ResourceExhausted => Self::Unavailable(text(&status)),
            _ => Self::Refused(text(&status)),
        }
    }
}

/// The message with its causes, which name the unreachable address.
fn text(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_status_maps_to_error_kind() {
        let of = |code, message: &str| Error::from(Status::new(code, message));
        let full = "etcdserver: mvcc: database space exceeded";
        assert_eq!(of(Code::ResourceExhausted, full), Error::OutOfSpace);
        let compacted = "etcdserver: mvcc: required revision has been compacted";
        assert_eq!(of(Code::OutOfRange, compacted), Error::Compacted);
        let lease = "etcdserver: requested lease not found";
        assert_eq!(of(Code::NotFound, lease), Error::LeaseGone);
        for (code, message) in [
            (Code::Unauthenticated, "etcdserver: invalid auth token"),
            (Code::PermissionDenied, "etcdserver: permission denied"),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
            ),
        ] {
            assert!(matches!(of(code, message), Error::Denied(_)), "{message}");
            assert!(!of(code, message).is_passing(), "{message}");
        }
        for (code, message) in [
            (Code::Unavailable, "etcdserver: no leader"),
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::DeadlineExceeded, "Timeout expired"),
            (Code::ResourceExhausted, "etcdserver: too many requests"),
        ] {
            assert!(of(code, message).is_passing(), "{message}");
        }
        let duplicate = "etcdserver: duplicate key given in txn request";
        let error = of(Code::InvalidArgument, duplicate);
        assert_eq!(error, Error::Refused(duplicate.to_owned()));
    }
}
