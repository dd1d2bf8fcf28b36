//! What a daemon is at the moment.

use meseta_resources::HostPort;
use serde::{Deserialize, Serialize};

/// What a daemon tells the others of itself in etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// Of this start of the daemon.
    pub id: String,
    pub hostname: String,
    /// Where others reach it: an address and a port.
    pub address: String,
    pub version: String,
}

impl Leader {
    /// Returns true if the address is a host and a port, without a part that a URL would read as a user, a path or a query.
    pub(super) fn has_address(&self) -> bool {
        self.address.parse::<HostPort>().is_ok()
    }
}

/// What a daemon is, in one value that all parts of it watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Another daemon leads, or nobody is known to.
    Following(Option<Leader>),
    /// It leads and reads the registry.
    Recovering,
    Leading,
    /// It may not act, because it cannot renew its lease or write to the registry; it may be the leader still.
    Suspended {
        reason: String,
    },
}

impl Role {
    /// All that [`Self::name`] may be.
    pub const NAMES: [&str; 4] = ["following", "recovering", "leading", "suspended"];

    /// The word for it in metrics and answers.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Following(_) => "following",
            Self::Recovering => "recovering",
            Self::Leading => "leading",
            Self::Suspended { .. } => "suspended",
        }
    }

    /// One line for a service manager, of a daemon of this kind and what it keeps; none for one that leads and acts, which
    /// has more to say.
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

    /// Of a leader whose lease has ended for itself.
    pub fn fenced() -> Self {
        Self::Suspended {
            reason: "its lease in etcd could not be renewed".to_owned(),
        }
    }
}
