//! The present role of a daemon.

use meseta_resources::HostPort;
use serde::{Deserialize, Serialize};

/// The record of a daemon in etcd, for the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// The id of this start of the daemon.
    pub id: String,
    pub hostname: String,
    /// The address and port at which others reach the daemon.
    pub address: String,
    pub version: String,
}

/// The longest address: a name of 253 bytes, which DNS allows, a colon and a port.
const ADDRESS_BYTES_MAX: usize = 253 + 6;

impl Leader {
    /// Returns true if the address is a host and a port, without a part that a URL would read as a user, a path or a query.
    pub(super) fn has_address(&self) -> bool {
        self.address.len() <= ADDRESS_BYTES_MAX && self.address.parse::<HostPort>().is_ok()
    }
}

/// The role of a daemon, in one value that all parts of the daemon watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Another daemon leads, or no leader is known.
    Following(Option<Leader>),
    /// The daemon leads and is reading the registry.
    Recovering,
    Leading,
    /// The daemon may not act, because it cannot renew its lease or write to the registry; it may still be the leader.
    Suspended {
        reason: String,
    },
}

impl Role {
    /// All values of [`Self::name`].
    pub const NAMES: [&str; 4] = ["following", "recovering", "leading", "suspended"];

    /// The name of the role in metrics and answers.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Following(_) => "following",
            Self::Recovering => "recovering",
            Self::Leading => "leading",
            Self::Suspended { .. } => "suspended",
        }
    }

    /// The status line for a service manager, with the kind of daemon and its store; `None` for an acting leader, which has more
    /// to report.
    pub fn status(&self, daemon: &str, store: &str) -> Option<String> {
        match self {
            Self::Leading => None,
            Self::Following(Some(leader)) => Some(format!("Following {}", leader.address)),
            Self::Following(None) => Some(format!("Following; no {daemon} leads")),
            Self::Recovering => Some(format!("Leading; reading the {store}")),
            Self::Suspended { reason } => Some(format!("Suspended: {reason}")),
        }
    }

    /// Whether this daemon holds the leadership, as far as it knows.
    pub fn is_elected(&self) -> bool {
        !matches!(self, Self::Following(_))
    }

    /// The role of a leader whose own clock shows the end of its lease.
    pub fn fenced() -> Self {
        Self::Suspended {
            reason: "failed to renew its lease in etcd".to_owned(),
        }
    }
}
