//! The faults of the cluster.

use anyhow::Context as _;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// The leader gets SIGKILL.
    LeaderKilled,
    /// The leader's host is cut off from all others.
    LeaderIsolated,
    /// Packets from the leader's host to etcd are lost.
    LostToEtcd,
    /// Packets from etcd to the leader's host are lost.
    LostFromEtcd,
    /// The leader gets SIGSTOP and, later, SIGCONT.
    LeaderStopped,
    /// The leader's lease is revoked in etcd.
    LeaseRevoked,
    /// The leader gets SIGTERM.
    LeaderShutDown,
    /// A member of etcd gets SIGKILL: the leader, of three.
    EtcdMemberKilled,
    /// SIGKILL for all members of etcd.
    EtcdAway,
    /// etcd has no space left.
    EtcdFull,
    /// etcd forgets its history.
    EtcdCompacted,
    /// etcd receives an earlier state.
    EtcdRestored,
}

/// The names on the command line, with the number of times in the usual plan.
const NAMES: &[(Fault, &str, usize)] = &[
    (Fault::LeaderKilled, "kill", 30),
    (Fault::LeaderIsolated, "isolate", 10),
    (Fault::LostToEtcd, "lost-to-etcd", 10),
    (Fault::LostFromEtcd, "lost-from-etcd", 10),
    (Fault::LeaderStopped, "stop", 10),
    (Fault::LeaseRevoked, "revoke", 5),
    (Fault::LeaderShutDown, "shutdown", 5),
    (Fault::EtcdMemberKilled, "etcd-kill", 3),
    (Fault::EtcdAway, "etcd-away", 1),
    (Fault::EtcdFull, "etcd-full", 1),
    (Fault::EtcdCompacted, "etcd-compact", 2),
    (Fault::EtcdRestored, "etcd-restore", 0),
];

impl Fault {
    pub(crate) fn name(self) -> &'static str {
        let found = NAMES.iter().find(|(fault, ..)| *fault == self);
        found.map_or("?", |(_, name, _)| name)
    }

    pub(crate) fn named(name: &str) -> anyhow::Result<Self> {
        let found = NAMES.iter().find(|(_, known, _)| *known == name);
        let names = || NAMES.iter().map(|(_, name, _)| *name).collect::<Vec<_>>();
        let (fault, ..) = found.with_context(|| {
            format!(
                "no fault is called {name}; there are {}",
                names().join(", ")
            )
        })?;
        Ok(*fault)
    }

    pub(crate) fn usual_plan() -> Vec<(Self, usize)> {
        NAMES
            .iter()
            .map(|(fault, _, count)| (*fault, *count))
            .collect()
    }

    /// Whether another start of a master must lead after the fault.
    pub(crate) fn deposes(self) -> bool {
        !matches!(
            self,
            Self::EtcdMemberKilled
                | Self::EtcdAway
                | Self::EtcdFull
                | Self::EtcdCompacted
                | Self::EtcdRestored
        )
    }
}
