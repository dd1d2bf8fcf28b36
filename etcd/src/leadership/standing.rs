//! The present rights of a daemon, for code that answers requests.

use tokio::sync::watch;

use super::{Fence, ProvenLeader, Role};

/// The header of answers of a daemon that may not act: the answer may be older than that of another daemon. The value is the
/// reason.
pub const STALE_HEADER: &str = "meseta-stale";

/// The role of a daemon, and the end of its right to act in it.
#[derive(Clone, Debug)]
pub struct Standing {
    pub role: watch::Receiver<Role>,
    pub fence: Fence,
    /// True if the daemon may send clients to the leader.
    pub proven: ProvenLeader,
}

/// The destination of a request that this daemon does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// The leader, at this address.
    Leader(String),
    /// The leader has not proven its identity.
    Unproven,
    /// No leader is known.
    Nobody,
    /// This daemon leads and is still reading its records.
    Recovering,
}

impl Standing {
    /// The role. The watched value is updated now and then, while the fence closes by the clock: a process that was stopped
    /// detects its end here, before it answers any request.
    #[must_use]
    pub fn now(&self) -> Role {
        match &*self.role.borrow() {
            Role::Leading if !self.fence.is_open() => Role::fenced(),
            role => role.clone(),
        }
    }

    /// The reason why this leader may not act at the moment, if there is one.
    #[must_use]
    pub fn suspended(&self) -> Option<String> {
        match self.now() {
            Role::Suspended { reason } => Some(reason),
            Role::Following(_) | Role::Recovering | Role::Leading => None,
        }
    }

    /// Returns the daemon that answers requests, if that is another daemon.
    #[must_use]
    pub fn elsewhere(&self) -> Option<Elsewhere> {
        match &*self.role.borrow() {
            Role::Leading | Role::Suspended { .. } => None,
            Role::Following(Some(leader)) if !self.proven.is(leader) => Some(Elsewhere::Unproven),
            Role::Following(Some(leader)) => Some(Elsewhere::Leader(leader.address.clone())),
            Role::Following(None) => Some(Elsewhere::Nobody),
            Role::Recovering => Some(Elsewhere::Recovering),
        }
    }

    /// The address of the leader, if known and proven; `own` is the address of this daemon.
    #[must_use]
    pub fn leader(&self, own: &str) -> Option<String> {
        match &*self.role.borrow() {
            Role::Following(leader) => leader
                .as_ref()
                .filter(|leader| self.proven.is(leader))
                .map(|leader| leader.address.clone()),
            Role::Recovering | Role::Leading | Role::Suspended { .. } => Some(own.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::leadership::Leader;
    use crate::leadership::fence::BootTime;

    #[test]
    fn expired_lease_suspends_before_role_changes() {
        let (_role, role) = watch::channel(Role::Leading);
        let fence = Fence::closed();
        let standing = Standing {
            role,
            fence: fence.clone(),
            proven: ProvenLeader::any(),
        };
        assert_eq!(standing.now(), Role::fenced());
        assert!(standing.suspended().is_some());
        fence.extend(BootTime::now().after(Duration::from_secs(3_600)));
        assert_eq!(standing.now(), Role::Leading);
        assert_eq!(standing.suspended(), None);
    }

    #[test]
    fn standing_names_the_known_leader() {
        let (role, told) = watch::channel(Role::Following(None));
        let standing = Standing {
            role: told,
            fence: Fence::closed(),
            proven: ProvenLeader::any(),
        };
        assert_eq!(standing.elsewhere(), Some(Elsewhere::Nobody));
        assert_eq!(standing.leader("me:1"), None);
        role.send_replace(Role::Following(Some(Leader {
            address: "b:2".to_owned(),
            ..Leader::default()
        })));
        let there = Elsewhere::Leader("b:2".to_owned());
        assert_eq!(standing.elsewhere(), Some(there));
        role.send_replace(Role::Recovering);
        assert_eq!(standing.elsewhere(), Some(Elsewhere::Recovering));
        assert_eq!(standing.leader("me:1").as_deref(), Some("me:1"));
        role.send_replace(Role::fenced());
        assert_eq!(standing.elsewhere(), None);
    }
}
