//! Numbers of connections, replies and registry writes, and the uuids of updates and operations.

use std::fmt;

/// A connection, numbered by the shell; no number is used twice in one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A request that waits for the core's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplyId(pub u64);

/// The position of a mutation in the order of the registry's writes; starts at 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The size of a UUID on the wire.
pub(in crate::core) const UUID_BYTES: usize = 16;

/// The uuid of an operation, here and on its agent.
pub type OperationUuid = [u8; UUID_BYTES];
