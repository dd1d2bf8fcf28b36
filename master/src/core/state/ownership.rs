//! The owners of framework ids, and the removed ids.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meseta_daemon::authentication::{Caller, LocalUser};
use meseta_resources::FrameworkId;

use super::framework::Terms;
use super::persisted::{FrameworkRecord, Recovered, RemovedRecord};
use super::removals::{RemovalGroup, Removals};
use crate::core::answer::Answer;
use crate::core::ids::{ConnectionId, ReplyId};

/// A subscription with parsed and checked terms.
#[derive(Debug)]
pub(in crate::core) struct Subscription {
    pub(in crate::core) connection: ConnectionId,
    pub(in crate::core) stream_id: String,
    pub(in crate::core) id: FrameworkId,
    pub(in crate::core) terms: Terms,
    pub(in crate::core) caller: Caller,
}

/// The known identity of a scheduler, which owns its framework's id.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::core) struct Identity {
    pub(in crate::core) principal: Option<String>,
    /// The user of this machine, if no principal is proven.
    pub(in crate::core) user: Option<u32>,
}

impl Identity {
    pub(in crate::core) fn from_terms(terms: &Terms, caller: &Caller) -> Self {
        Self {
            principal: terms.info.principal.clone(),
            user: user_of(caller),
        }
    }

    /// Whether the identity distinguishes anybody from others.
    pub(in crate::core) fn is_known(&self) -> bool {
        self.principal.is_some() || self.user.is_some()
    }
}

/// The user of this machine that a scheduler runs as, if only the kernel identifies the scheduler.
pub(in crate::core) fn user_of(caller: &Caller) -> Option<u32> {
    match caller.user {
        Some(LocalUser::Id(user)) => Some(user),
        Some(LocalUser::Unknown) | None => None,
    }
}

#[derive(Debug)]
pub(in crate::core) struct Owner {
    pub(in crate::core) identity: Identity,
    /// The time since the Unix epoch from which there was no contact with the framework, and no agent reported it.
    pub(in crate::core) absent: Option<Duration>,
    /// Whether the entry exists only for a subscription that is not answered yet.
    pub(in crate::core) is_tentative: bool,
}

impl Owner {
    pub(in crate::core) fn record(&self, id: &FrameworkId) -> FrameworkRecord {
        FrameworkRecord {
            framework_id: id.to_string(),
            principal: self.identity.principal.clone(),
            user: self.identity.user,
            absent: self.absent,
        }
    }
}

/// The owners of framework ids, and the removed ids.
#[derive(Debug, Default)]
pub(in crate::core) struct Ownership {
    /// The owners in the registry after all pending writes.
    pub(in crate::core) owners: BTreeMap<FrameworkId, Owner>,
    pub(in crate::core) removals: Removals,
    /// Removals that are not written to the registry yet; the next write takes them all.
    pub(in crate::core) unwritten: BTreeMap<FrameworkId, RemovedRecord>,
    pub(in crate::core) forgotten: BTreeSet<FrameworkId>,
    /// Whether a write of earlier removals is pending.
    pub(in crate::core) is_writing: bool,
    /// Answers to send when the pending write is durable.
    pub(in crate::core) answers: Vec<(ReplyId, Answer)>,
    /// Answers to send when the unwritten removals are durable.
    pub(in crate::core) unwritten_answers: Vec<(ReplyId, Answer)>,
    /// Frameworks whose principal neither the registry nor one of its agents has confirmed.
    pub(in crate::core) unproven: BTreeSet<FrameworkId>,
    /// Subscriptions that wait for the registry.
    pub(in crate::core) subscribing: BTreeMap<ConnectionId, FrameworkId>,
}

impl Ownership {
    pub(in crate::core) fn recovered(recovered: &Recovered) -> Self {
        let owner = |record: &FrameworkRecord| {
            let id = FrameworkId::new(&record.framework_id).ok()?;
            let owner = Owner {
                identity: Identity {
                    principal: record.principal.clone(),
                    user: record.user,
                },
                absent: record.absent,
                is_tentative: false,
            };
            Some((id, owner))
        };
        let owners: BTreeMap<_, _> = recovered.frameworks.iter().filter_map(owner).collect();
        let mut removed: Vec<_> = recovered.removed_frameworks.iter().collect();
        removed.sort_by_key(|record| record.since);
        let (mut removals, mut forgotten) = (Removals::default(), BTreeSet::new());
        for record in removed {
            let id = FrameworkId::new(&record.framework_id).ok();
            // A removal deletes the owner. If an earlier master left both, the framework was forgotten and came back.
            if let Some(id) = id.filter(|id| !owners.contains_key(id)) {
                forgotten.extend(removals.insert(id, RemovalGroup::from_record(record)));
            }
        }
        Self {
            owners,
            removals,
            forgotten,
            ..Self::default()
        }
    }

    /// Whether a framework has been removed, by this master or an earlier one.
    pub(in crate::core) fn is_removed(&self, id: &FrameworkId) -> bool {
        self.removals.contains(id)
    }

    /// The owner of an id in the registry.
    pub(in crate::core) fn owner_of(&self, id: &FrameworkId) -> Option<&Identity> {
        self.owners.get(id).map(|owner| &owner.identity)
    }

    /// The local user of an id in the registry.
    pub(in crate::core) fn user_of(&self, id: &FrameworkId) -> Option<u32> {
        self.owners.get(id)?.identity.user
    }

    /// All ids in the registry.
    pub(in crate::core) fn known(&self) -> impl Iterator<Item = &FrameworkId> {
        self.owners.keys().chain(self.removals.ids())
    }

    /// Removes and returns a waiting subscription, because its stream has ended, or it was decided.
    pub(in crate::core) fn take_subscription(
        &mut self,
        connection: ConnectionId,
    ) -> Option<FrameworkId> {
        self.subscribing.remove(&connection)
    }

    pub(in crate::core) fn is_subscribing(&self, id: &FrameworkId) -> bool {
        self.subscribing.values().any(|waiting| waiting == id)
    }
}
