//! The owners of framework ids, across restarts of the master.
//!
//! The registry stores a framework's principal, or its local user without a proven principal, before the framework
//! gets its id and until the framework is removed; removals are stored too. While agents of the registry are still
//! expected, an id unknown to the registry, as after an upgrade, may be claimed, but the claim yields to the report
//! of the first of these agents. Invariant: an id in the registry goes to its principal only, and no agent outside
//! the registry takes an id from anybody.

use std::time::Duration;

use meseta_daemon::authentication::{Caller, LocalUser};
use meseta_proto::{Invalid, invalid};
use meseta_resources::FrameworkId;

use crate::core::answer::Answer;
use crate::core::config::FRAMEWORKS_MAX;
use crate::core::effect::Output;
use crate::core::ids::ReplyId;
use crate::core::master::MasterCore;
use crate::core::state::framework::{Framework, Link, Terms};
use crate::core::state::ownership::{Identity, Owner, Subscription};
use crate::core::state::pending::Pending;
use crate::core::state::persisted::{Mutation, RemovedRecord};
use crate::core::state::removals::RemovalGroup;
use crate::core::validation::call;

/// The longest principal in bytes: the registry stores each, and a longer one is a mistake.
pub(super) const PRINCIPAL_BYTES_MAX: usize = 4_096;

/// The stored length of a removed framework's principal in bytes. Owners whose principals share this prefix share one
/// part of the limit of removals.
const REMOVED_PRINCIPAL_BYTES_MAX: usize = 255;

const NOT_ITS_PRINCIPAL: &str = "Changing framework's principal is not allowed.";

const NOT_ITS_USER: &str = "The framework id is that of a framework of another user of this machine: \
    subscribe as that user, or as root";

/// Whether a scheduler without a proven name may replace one that runs as `owner` on this machine. On this machine
/// only the kernel distinguishes users; root is trusted, and schedulers on other machines have no user here.
fn is_its_user(owner: Option<u32>, caller: Option<LocalUser>) -> bool {
    match (owner, caller) {
        (Some(owner), Some(LocalUser::Id(user))) => user == owner || user == 0,
        (Some(_), Some(LocalUser::Unknown)) => false,
        (None, _) | (_, None) => true,
    }
}

fn beginning(principal: &str) -> String {
    principal[..principal.floor_char_boundary(REMOVED_PRINCIPAL_BYTES_MAX)].to_owned()
}

impl MasterCore {
    /// Determines the id of a subscription, if the scheduler may have it.
    pub(super) fn identify(
        &mut self,
        terms: &Terms,
        caller: &Caller,
    ) -> Result<FrameworkId, Invalid> {
        let id = call::id_of(&terms.info);
        if !id.is_empty() {
            let id = FrameworkId::new(id).map_err(Invalid::from_error)?;
            return self.check_owner(&id, terms, caller).map(|()| id);
        }
        self.check_framework_limit(terms)?;
        let id = self.issued_ids.assign_framework();
        id.map_err(Invalid::from_error)
    }

    fn check_framework_limit(&self, terms: &Terms) -> Result<(), Invalid> {
        let known = self.frameworks.len() + self.ownership.subscribing.len();
        self.framework_info_usage
            .check_number(terms, known, FRAMEWORKS_MAX)
    }

    /// Refuses an id to everybody except its owner: a principal, or a user of this machine.
    fn check_owner(&self, id: &FrameworkId, terms: &Terms, caller: &Caller) -> Result<(), Invalid> {
        if self.ownership.is_removed(id) {
            return Err(invalid!("Framework has been removed"));
        }
        if self.issued_ids.is_future_framework(id) {
            return Err(invalid!(
                "The framework id '{id}' has not been given to anybody yet: subscribe without an id \
                 to get one"
            ));
        }
        let claimed = terms.info.principal.as_deref();
        let owner = self.ownership.owner_of(id);
        if owner.is_some_and(|owner| owner.principal.as_deref() != claimed) {
            return Err(NOT_ITS_PRINCIPAL.into());
        }
        if !is_its_user(self.ownership.user_of(id), caller.user) {
            return Err(NOT_ITS_USER.into());
        }
        match self.frameworks.get(id) {
            Some(known) if known.terms.info.principal.as_deref() != claimed => {
                Err(NOT_ITS_PRINCIPAL.into())
            }
            Some(known) if !is_its_user(known.user, caller.user) => Err(NOT_ITS_USER.into()),
            Some(_) => Ok(()),
            None => self.check_framework_limit(terms),
        }
    }

    /// Admits a subscription: at once, or when the registry has stored the owner of the id.
    pub(super) fn admit(&mut self, subscription: Subscription) {
        if !self.must_be_stored(&subscription) {
            self.admit_now(subscription);
            return;
        }
        let connection = subscription.connection;
        if self.effects.is_busy() {
            // No ERROR event, because the scheduler should subscribe again.
            let reason = "the registry is busy";
            self.effects
                .emit(Output::CloseScheduler { connection, reason });
            return;
        }
        let id = subscription.id.clone();
        let identity = Identity::from_terms(&subscription.terms, &subscription.caller);
        self.ownership.subscribing.insert(connection, id.clone());
        let pending = Pending::Subscribe(Box::new(subscription));
        let is_new = !self.ownership.owners.contains_key(&id);
        self.put_owner(&id, identity, pending);
        if let Some(owner) = self.ownership.owners.get_mut(&id) {
            owner.is_tentative |= is_new;
        }
    }

    /// Whether the registry must store the owner before the framework gets its subscription.
    fn must_be_stored(&self, subscription: &Subscription) -> bool {
        let (id, info) = (&subscription.id, &subscription.terms.info);
        let identity = Identity::from_terms(&subscription.terms, &subscription.caller);
        if !identity.is_known() {
            return false;
        }
        if let Some(owner) = self.ownership.owners.get(id) {
            let is_news = owner.identity.user.is_none() && identity.user.is_some();
            return is_news || self.ownership.is_subscribing(id);
        }
        let is_new = call::id_of(info).is_empty();
        let is_proven = self.frameworks.contains_key(id) && !self.ownership.unproven.contains(id);
        is_new || is_proven || !self.absent_agents.expects_any()
    }

    /// Admits a subscription whose owner is now in the registry.
    pub(in crate::core) fn subscription_stored(&mut self, subscription: Subscription) {
        let (connection, id) = (subscription.connection, subscription.id.clone());
        if self.ownership.take_subscription(connection).is_some() {
            match self.check_owner(&id, &subscription.terms, &subscription.caller) {
                Ok(()) => self.admit_now(subscription),
                Err(invalid) => self.refuse_subscription(connection, invalid),
            }
        }
        if self.frameworks.contains_key(&id)
            && let Some(owner) = self.ownership.owners.get_mut(&id)
        {
            owner.is_tentative = false;
        }
        self.disown_if_unused(&id);
    }

    /// Removes the registry's record of a framework that never subscribed successfully.
    fn disown_if_unused(&mut self, id: &FrameworkId) {
        let owner = self.ownership.owners.get(id);
        let is_tentative = owner.is_some_and(|owner| owner.is_tentative);
        if is_tentative && !self.frameworks.contains_key(id) && !self.ownership.is_subscribing(id) {
            self.ownership.owners.remove(id);
            let framework_ids = vec![id.to_string()];
            let removal = Mutation::RemoveFrameworks { framework_ids };
            self.effects.persist(removal, Pending::Nothing);
        }
    }

    /// Stores the owner of an id. Root may replace the scheduler of a user's framework, which still belongs to that
    /// user.
    fn put_owner(&mut self, id: &FrameworkId, mut identity: Identity, then: Pending) {
        let before = self.ownership.owners.get(id);
        identity.user = before
            .and_then(|owner| owner.identity.user)
            .or(identity.user);
        let owner = Owner {
            identity,
            absent: None,
            is_tentative: before.is_some_and(|owner| owner.is_tentative),
        };
        let record = owner.record(id);
        let ownership = &mut self.ownership;
        ownership.owners.insert(id.clone(), owner);
        ownership.unproven.remove(id);
        // A pending removal of a forgotten framework would be written after the owner, and delete it.
        ownership.unwritten.remove(id);
        ownership.forgotten.remove(id);
        self.effects.persist(Mutation::PutFramework(record), then);
    }

    /// Records a framework that claims its id itself.
    pub(super) fn note_unproven_owner(&mut self, id: &FrameworkId) {
        let is_known = self.ownership.owners.contains_key(id);
        if is_known {
            self.set_absent(id, None);
        } else if self.absent_agents.expects_any() {
            self.ownership.unproven.insert(id.clone());
        }
    }

    /// Records a framework that an agent reported.
    pub(in crate::core) fn note_reported(&mut self, id: &FrameworkId, is_expected: bool) {
        if self.ownership.owners.contains_key(id) {
            self.set_absent(id, None);
        } else if !is_expected {
            self.ownership.unproven.insert(id.clone());
        }
    }

    /// Whether the tasks that an agent reports under an id belong to the framework with this id. `told` is the
    /// principal known to the agent; `is_expected` marks an agent of the registry.
    pub(in crate::core) fn is_its_owners(
        &mut self,
        id: &FrameworkId,
        told: Option<&str>,
        is_expected: bool,
    ) -> bool {
        // Agents know no principal for tasks from before the framework had one.
        let Some(told) = told else {
            return true;
        };
        let owner = self.ownership.owner_of(id);
        if let Some(owner) = owner.and_then(|owner| owner.principal.as_deref()) {
            return owner == told;
        }
        let Some(framework) = self.frameworks.get(id) else {
            return true;
        };
        let known = framework.terms.info.principal.as_deref();
        if known == Some(told) {
            if is_expected {
                self.confirm_owner(id);
            }
            return true;
        }
        if is_expected && self.ownership.unproven.contains(id) {
            self.evict(id);
            return true;
        }
        known.is_none()
    }

    /// Confirms the owner, because no recovered agent is left that could contradict it.
    fn confirm_owner(&mut self, id: &FrameworkId) {
        if self.effects.is_busy() || !self.ownership.unproven.remove(id) {
            return;
        }
        let framework = self.frameworks.get(id);
        let subscribed = framework.filter(|framework| framework.link != Link::Recovered);
        let identity = subscribed.map(|framework| Identity {
            principal: framework.terms.info.principal.clone(),
            user: framework.user,
        });
        if let Some(identity) = identity.filter(Identity::is_known) {
            self.put_owner(id, identity, Pending::Nothing);
        }
    }

    /// Ends a framework whose id belongs to another principal, as a recovered agent reports. The tasks that the wrong
    /// owner launched run on other agents and end, because a missing agent got no tasks.
    fn evict(&mut self, id: &FrameworkId) {
        tracing::warn!(framework_id = %id, "a framework id was claimed that is another principal's");
        let framework = self.frameworks.get(id);
        if let Some(connection) = framework.and_then(Framework::connection) {
            let text = "The framework id is that of another principal".to_owned();
            self.end_stream(connection, text, "the id is another principal's");
        }
        self.end_framework(id, "its id is another principal's");
        self.ownership.unproven.remove(id);
    }

    /// Confirms owners that no agent has contradicted, once no recovered agent is expected any more.
    pub(in crate::core) fn confirm_unproven_owners(&mut self) {
        if self.absent_agents.expects_any() {
            return;
        }
        let unproven: Vec<_> = self.ownership.unproven.iter().cloned().collect();
        for id in unproven {
            self.confirm_owner(&id);
        }
    }

    /// Records the removal of a framework: nobody gets its id again. The owner is `identity`, unless the registry has
    /// another.
    pub(in crate::core) fn note_removal(
        &mut self,
        id: &FrameworkId,
        identity: Identity,
        by_operator: bool,
    ) {
        let ownership = &mut self.ownership;
        ownership.unproven.remove(id);
        let owner = ownership.owners.remove(id);
        if ownership.removals.contains(id) {
            return;
        }
        let owner = owner.map_or(identity, |owner| owner.identity);
        let record = RemovedRecord {
            framework_id: id.to_string(),
            since: self.now.unix,
            principal: owner.principal.as_deref().map(beginning),
            user: owner.user,
            by_operator,
        };
        let group = RemovalGroup::from_record(&record);
        ownership.unwritten.insert(id.clone(), record);
        // The id may have been forgotten, and have come back, during earlier pending removals.
        ownership.forgotten.remove(id);
        let forgotten = ownership.removals.insert(id.clone(), group);
        ownership.forgotten.extend(forgotten);
        if !ownership.is_writing {
            self.write_removals();
        }
    }

    /// Answers a call that removed a framework once the registry has the removal. Otherwise another scheduler could get the id
    /// again after a failover, although the caller has its answer.
    pub(in crate::core) fn reply_once_removed(&mut self, reply: ReplyId, answer: Answer) {
        let ownership = &mut self.ownership;
        if !ownership.unwritten.is_empty() {
            ownership.unwritten_answers.push((reply, answer));
        } else if ownership.is_writing {
            ownership.answers.push((reply, answer));
        } else {
            self.reply(reply, answer);
        }
    }

    /// Handles the durability of the pending removals.
    pub(in crate::core) fn removals_stored(&mut self) {
        let answers = std::mem::take(&mut self.ownership.unwritten_answers);
        for (reply, answer) in std::mem::replace(&mut self.ownership.answers, answers) {
            self.reply(reply, answer);
        }
        self.write_removals();
    }

    /// Writes the removals. Thousands of frameworks may end at once, so all their removals are one mutation, and the
    /// next is written when that is durable.
    fn write_removals(&mut self) {
        let ownership = &mut self.ownership;
        ownership.is_writing = !ownership.unwritten.is_empty();
        if !ownership.is_writing {
            return;
        }
        let removed = std::mem::take(&mut ownership.unwritten);
        let forgotten = std::mem::take(&mut ownership.forgotten);
        let removals = Mutation::EndFrameworks {
            removed: removed.into_values().collect(),
            forgotten: forgotten.iter().map(ToString::to_string).collect(),
        };
        self.effects.persist(removals, Pending::Removals);
    }

    /// Forgets the owners of frameworks without contact for as long as lost agents are stored.
    pub(in crate::core) fn collect_owners(&mut self) {
        self.confirm_unproven_owners();
        let now = self.now.unix;
        let age = self.config.registry_max_agent_age;
        let (mut missing, mut old) = (Vec::new(), Vec::new());
        for (id, owner) in &self.ownership.owners {
            if self.frameworks.contains_key(id) || self.ownership.is_subscribing(id) {
                continue;
            }
            match owner.absent {
                None => missing.push(id.clone()),
                Some(since) if since.saturating_add(age) < now => old.push(id.clone()),
                Some(_) => {}
            }
        }
        for id in missing {
            self.set_absent(&id, Some(now));
        }
        if old.is_empty() || self.effects.is_busy() {
            return;
        }
        for id in &old {
            self.ownership.owners.remove(id);
        }
        let framework_ids = old.iter().map(ToString::to_string).collect();
        let removal = Mutation::RemoveFrameworks { framework_ids };
        self.effects.persist(removal, Pending::Nothing);
    }

    fn set_absent(&mut self, id: &FrameworkId, absent: Option<Duration>) {
        let can_persist = !self.effects.is_busy();
        let Some(owner) = self.ownership.owners.get_mut(id) else {
            return;
        };
        if owner.absent == absent || !can_persist {
            return;
        }
        owner.absent = absent;
        let record = owner.record(id);
        self.effects
            .persist(Mutation::PutFramework(record), Pending::Nothing);
    }
}
