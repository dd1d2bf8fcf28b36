//! Subscriptions: new, repeated, or in place of another scheduler.
//!
//! An invalid subscription gets one ERROR event on an open stream, as in Mesos. Invariant: a framework id has at most
//! one live stream.

use std::collections::BTreeSet;
use std::sync::Arc;

use meseta_daemon::authentication::Caller;
use meseta_proto::mesos::v1::scheduler::event;
use meseta_proto::mesos::v1::{self};
use meseta_proto::{Invalid, invalid};
use meseta_resources::{FrameworkId, Role};
use prost::Message as _;

use super::ownership::PRINCIPAL_BYTES_MAX;
use crate::core::answer::Answer;
use crate::core::authorization;
use crate::core::config::HEARTBEAT_INTERVAL;
use crate::core::effect::Output;
use crate::core::ids::ConnectionId;
use crate::core::input::SubscribeRequest;
use crate::core::master::MasterCore;
use crate::core::state::constraints::Constraints;
use crate::core::state::framework::{self, Capabilities, Framework, Link, Terms, valid_roles};
use crate::core::state::ownership::{Subscription, user_of};
use crate::core::timers::Timer;
use crate::core::validation::call::{self, Subscribe};
use crate::core::wire::event_of;

/// The number of roles of one framework.
const ROLES_PER_FRAMEWORK_MAX: usize = 10_000;

impl MasterCore {
    pub(in crate::core) fn subscribe(&mut self, request: SubscribeRequest) {
        let SubscribeRequest {
            connection,
            stream_id,
            call,
            caller,
        } = request;
        self.counters.call("subscribe");
        let name = call.info.name.clone();
        let result = self.understand(*call, &caller);
        let result = result.and_then(|terms| Ok((self.identify(&terms, &caller)?, terms)));
        match result {
            Ok((id, terms)) => self.admit(Subscription {
                connection,
                stream_id,
                id,
                terms,
                caller,
            }),
            Err(answer) => {
                caller.audit("SUBSCRIBE", &name, answer.outcome());
                self.refuse_subscription(connection, answer.outcome());
            }
        }
    }

    pub(super) fn refuse_subscription(
        &mut self,
        connection: ConnectionId,
        text: impl Into<String>,
    ) {
        let text = text.into();
        tracing::info!(%connection, reason = %text, "subscription refused");
        self.end_stream(connection, text, "subscription refused");
    }

    /// Creates or updates the framework, and connects its stream.
    pub(super) fn admit_now(&mut self, subscription: Subscription) {
        let Subscription {
            connection,
            stream_id,
            id,
            terms,
            caller,
        } = subscription;
        let name = terms.info.name.clone();
        let result = if self.frameworks.contains_key(&id) {
            self.update(&id, terms).map(drop)
        } else {
            self.create(id.clone(), terms)
        };
        let outcome = result.as_ref().err().map_or(id.as_str(), Invalid::as_str);
        caller.audit("SUBSCRIBE", &name, outcome);
        match result {
            Ok(()) => self.connect(&id, connection, stream_id, &caller),
            Err(invalid) => self.refuse_subscription(connection, invalid),
        }
    }

    /// Sends an ERROR event as the last event of a stream.
    pub(super) fn end_stream(
        &mut self,
        connection: ConnectionId,
        text: String,
        reason: &'static str,
    ) {
        let mut error = event_of(event::Type::Error);
        error.error = Some(event::Error { message: text });
        self.event_to(connection, error);
        self.effects
            .emit(Output::CloseScheduler { connection, reason });
    }

    /// Checks everything that does not depend on the framework's history.
    fn understand(&self, mut call: Subscribe, caller: &Caller) -> Result<Terms, Answer> {
        authorization::take_name(&mut call.info, caller)?;
        let roles = self.check_info(&call.info)?;
        let approver = authorization::of_framework(&call.info, caller);
        authorization::roles(&approver, &roles)?;
        self.check_size(&call)?;
        check_offer_filters(&call.info)?;
        let suppressed = suppressed_roles(&roles, &call.suppressed_roles)?;
        if let Some(constraints) = &call.offer_constraints {
            check_constrained(constraints, &roles)?;
        }
        Ok(Terms {
            capabilities: Capabilities::from_framework(&call.info),
            info: Arc::new(call.info),
            roles,
            suppressed,
            offer_constraints: call.offer_constraints,
        })
    }

    /// Checks a framework's info, and returns its roles.
    fn check_info(&self, info: &v1::FrameworkInfo) -> Result<BTreeSet<Role>, Invalid> {
        if info.principal.as_ref().map_or(0, String::len) > PRINCIPAL_BYTES_MAX {
            return Err(invalid!(
                "'FrameworkInfo.principal' is longer than {PRINCIPAL_BYTES_MAX} bytes"
            ));
        }
        let roles = valid_roles(info)?;
        if roles.len() > ROLES_PER_FRAMEWORK_MAX {
            return Err(invalid!(
                "A framework may have at most {ROLES_PER_FRAMEWORK_MAX} roles, not {}",
                roles.len()
            ));
        }
        let id = call::id_of(info);
        if !id.is_empty() {
            FrameworkId::new(id).map_err(Invalid::from_error)?;
        }
        if framework::failover_timeout(info).is_none() {
            return Err(invalid!(
                "The framework failover_timeout ({}) is invalid",
                info.failover_timeout.unwrap_or_default()
            ));
        }
        if let Some(allowed) = &self.config.roles {
            let unknown: Vec<_> = roles
                .iter()
                .filter(|role| !allowed.contains(*role))
                .map(Role::as_str)
                .collect();
            if !unknown.is_empty() {
                return Err(invalid!(
                    "Roles {{ {} }} are not present in the master's --roles",
                    unknown.join(", ")
                ));
            }
        }
        if info.user == "root" && !self.config.root_submissions {
            return Err(invalid!(
                "User 'root' is not allowed to run frameworks without --root_submissions set"
            ));
        }
        Ok(roles)
    }

    /// Refuses a framework whose info exceeds the limit of one framework.
    fn check_size(&self, call: &Subscribe) -> Result<(), Invalid> {
        let constraints = call.offer_constraints.as_ref();
        let constraints = constraints.map_or(0, |constraints| constraints.bytes());
        let memory = &self.config.memory;
        for (what, bytes, max) in [
            ("FrameworkInfo", call.info.encoded_len(), memory.info),
            (
                "framework's offer constraints",
                constraints,
                memory.constraints,
            ),
        ] {
            if bytes > max {
                return Err(invalid!(
                    "The {what} would take {bytes} bytes; the limit is {max}: shorten it, or raise \
                     the master's --memory_budget"
                ));
            }
        }
        Ok(())
    }

    fn create(&mut self, id: FrameworkId, mut terms: Terms) -> Result<(), Invalid> {
        Arc::make_mut(&mut terms.info).id = Some((&id).into());
        self.framework_info_usage
            .check(None, &terms, self.config.memory.terms)?;
        self.allocator.add_framework(&id, &terms)?;
        tracing::info!(framework_id = %id, name = %terms.info.name.escape_debug(), "framework added");
        let framework = Framework::new(id.clone(), terms, self.now.unix);
        self.framework_info_usage.add(&framework);
        self.frameworks.insert(id.clone(), framework);
        self.note_unproven_owner(&id);
        Ok(())
    }

    /// Updates a framework's terms, and returns whether they have changed; a refused update changes nothing.
    fn update(&mut self, id: &FrameworkId, mut terms: Terms) -> Result<bool, Invalid> {
        let Some(framework) = self.frameworks.get_mut(id) else {
            return Err(invalid!("Framework cannot be found"));
        };
        let old = &framework.terms.info;
        if old.principal != terms.info.principal {
            return Err(invalid!("Changing framework's principal is not allowed."));
        }
        // An agent's report alone does not bind the framework.
        if framework.told_by.is_none() {
            let info = Arc::make_mut(&mut terms.info);
            info.user.clone_from(&old.user);
            info.checkpoint = old.checkpoint;
        }
        let changed = *old != terms.info;
        let max = self.config.memory.terms;
        self.framework_info_usage
            .check(Some(&*framework), &terms, max)?;
        self.allocator.update_framework(id, &terms)?;
        if let Some(framework) = self.frameworks.get_mut(id) {
            self.framework_info_usage.remove(framework);
            framework.terms = terms;
            framework.told_by = None;
            self.framework_info_usage.add(framework);
        }
        Ok(changed)
    }

    /// Connects the framework to this stream, and disconnects the former one.
    fn connect(
        &mut self,
        id: &FrameworkId,
        connection: ConnectionId,
        stream_id: String,
        caller: &Caller,
    ) {
        let recorded = self.ownership.user_of(id);
        let Some(framework) = self.frameworks.get_mut(id) else {
            return;
        };
        framework.approver = authorization::of_framework(&framework.terms.info, caller);
        // Root may replace the scheduler of a user's framework, which still belongs to that user.
        framework.user = framework.user.or(recorded).or_else(|| user_of(caller));
        let previous = framework.connection();
        let is_new = framework.generation == 0 && framework.link == Link::Disconnected;
        framework.link = Link::Subscribed {
            connection,
            stream_id,
        };
        framework.generation += 1;
        if let Some(timer) = framework.failover.take() {
            self.timers.cancel(timer);
        }
        framework.reregistered = (!is_new).then_some(self.now.unix);
        framework.counters().call("subscribe");
        self.schedulers.insert(connection, id.clone());
        if let Some(previous) = previous {
            self.end_stream(
                previous,
                "Framework failed over".to_owned(),
                "framework failed over",
            );
            self.schedulers.remove(&previous);
        }
        self.framework_deadlines.clear(id, &mut self.effects);
        // Requests from the former stream get their answers on the new one.
        self.reconciliations.restart(id);
        self.discard_offers(id);
        let activated = self.allocator.activate_framework(id);
        self.agreed("activating a framework", activated);
        self.allocate_due = true;

        let mut subscribed = event_of(event::Type::Subscribed);
        subscribed.subscribed = Some(event::Subscribed {
            framework_id: id.into(),
            heartbeat_interval_seconds: Some(HEARTBEAT_INTERVAL.as_secs_f64()),
            master_info: Some(self.config.identity.to_wire()),
        });
        self.event_to(connection, subscribed);
        self.beat(id.clone(), connection);
        // The agents repeat the unacknowledged updates at once.
        self.broadcast_info(id);
        self.publish_framework(id, is_new);
        tracing::info!(framework_id = %id, %connection, "framework subscribed");
    }

    /// Changes a framework's info without a new stream.
    pub(in crate::core) fn update_framework(
        &mut self,
        id: &FrameworkId,
        call: Subscribe,
        caller: &Caller,
    ) -> Answer {
        let Some(framework) = self.frameworks.get(id) else {
            return Answer::BadRequest("Framework cannot be found".to_owned());
        };
        let terms = match self.understand(call, caller) {
            Ok(terms) => terms,
            Err(answer) => return answer,
        };
        for (field, old, new) in [
            (
                "user",
                framework.terms.info.user.clone(),
                terms.info.user.clone(),
            ),
            (
                "checkpoint",
                framework
                    .terms
                    .info
                    .checkpoint
                    .unwrap_or_default()
                    .to_string(),
                terms.info.checkpoint.unwrap_or_default().to_string(),
            ),
        ] {
            if old != new {
                return Answer::BadRequest(format!(
                    "Updating 'FrameworkInfo.{field}' is unsupported; attempted to update from \
                     '{old}' to '{new}'"
                ));
            }
        }
        let left: Vec<Role> = framework
            .terms
            .roles
            .difference(&terms.roles)
            .cloned()
            .collect();
        match self.update(id, terms) {
            Ok(changed) => {
                if changed {
                    self.broadcast_info(id);
                }
                self.publish_framework(id, false);
                self.rescind_offers_of_roles(id, &left);
                self.allocate_due = true;
                Answer::Done
            }
            Err(invalid) => invalid.into(),
        }
    }

    /// Handles the end of a stream.
    pub(in crate::core) fn scheduler_gone(&mut self, connection: ConnectionId) {
        self.ownership.take_subscription(connection);
        let Some(id) = self.schedulers.remove(&connection) else {
            return;
        };
        let Some(framework) = self.frameworks.get_mut(&id) else {
            return;
        };
        if framework.connection() != Some(connection) {
            return;
        }
        self.reconciliations.forget(&id);
        framework.link = Link::Disconnected;
        framework.generation += 1;
        let generation = framework.generation;
        let timeout = framework.failover_timeout();
        self.discard_offers(&id);
        self.recheck_drains_of(&id);
        let deactivated = self.allocator.deactivate_framework(&id);
        self.agreed("deactivating a framework", deactivated);
        self.publish_framework(&id, false);
        tracing::info!(framework_id = %id, timeout_secs = timeout.as_secs_f64(), "framework disconnected");
        let timer = self.timers.set(
            self.now.moment + timeout,
            Timer::Failover {
                framework: id.clone(),
                generation,
            },
        );
        if let Some(framework) = self.frameworks.get_mut(&id) {
            framework.failover = Some(timer);
        }
        if !timeout.is_zero() {
            let deadline = self.now.unix.saturating_add(timeout);
            self.framework_deadlines
                .note(&id, deadline, &mut self.effects);
        }
        self.allocate_due = true;
    }
}

fn check_constrained(constraints: &Constraints, roles: &BTreeSet<Role>) -> Result<(), Invalid> {
    for role in constraints.message().role_constraints.keys() {
        if !roles.contains(role.as_str()) {
            return Err(invalid!(
                "Offer constraints specify `role_constraints` for a role '{role}' not contained in \
                 the set of roles"
            ));
        }
    }
    Ok(())
}

/// Refuses too many `min_allocatable_resources` of a role, since each of its offers is compared with them.
fn check_offer_filters(info: &v1::FrameworkInfo) -> Result<(), Invalid> {
    /// The number of quantities in all alternatives: schedulers request two or three resources, in a few
    /// alternatives.
    const QUANTITIES_PER_ROLE_MAX: usize = 64;
    for (role, filter) in &info.offer_filters {
        let minimum = filter.min_allocatable_resources.as_ref();
        let alternatives = minimum.into_iter().flat_map(|all| &all.quantities);
        let number: usize = alternatives.map(|one| one.quantities.len()).sum();
        if number > QUANTITIES_PER_ROLE_MAX {
            return Err(invalid!(
                "'min_allocatable_resources' of role '{}' has {number} quantities; at most \
                 {QUANTITIES_PER_ROLE_MAX} are taken",
                role.escape_debug()
            ));
        }
    }
    Ok(())
}

fn suppressed_roles(roles: &BTreeSet<Role>, names: &[String]) -> Result<BTreeSet<Role>, Invalid> {
    let unknown: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| !roles.contains(*name))
        .collect();
    if !unknown.is_empty() {
        return Err(invalid!(
            "Suppressed roles {{ {} }} are not contained in the set of roles",
            unknown.join(", ")
        ));
    }
    Ok(roles
        .iter()
        .filter(|role| names.iter().any(|name| name == role.as_str()))
        .cloned()
        .collect())
}
