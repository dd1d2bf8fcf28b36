//! Quota: set by the legacy call, updated, removed.
//!
//! The checks have the order of Mesos, so that a request with several faults gets the same answer.

use std::collections::BTreeMap;

use meseta_access::{Action, Approver};
use meseta_allocator::{OfferView, Outstanding, Quota, check_quota_tree, guaranteed};
use meseta_proto::convert;
use meseta_proto::mesos::v1::quota::{QuotaConfig, QuotaRequest};
use meseta_proto::mesos::v1::{self, value};
use meseta_proto::{Invalid, invalid};
use meseta_resources::work_counter::count_entries;
use meseta_resources::{ResourceLimits, ResourceName, ResourceQuantities, Role, Scalar};

use super::refused;
use crate::core::answer::Answer;
use crate::core::config::QuotaSemantics;
use crate::core::ids::ReplyId;
use crate::core::master::MasterCore;
use crate::core::state::offer::Offer;
use crate::core::state::pending::{OperatorPending, Pending, Rescind};
use crate::core::state::persisted::Mutation;

/// A trillion: a larger amount is a mistake.
const AMOUNT_MAX: f64 = 1_000_000_000_000.0;
/// An exabyte in megabytes: a larger amount is a mistake.
const MEGABYTES_MAX: f64 = 1_099_511_627_776.0;

impl MasterCore {
    pub(super) fn set_quota(
        &mut self,
        reply: ReplyId,
        request: &QuotaRequest,
        approver: &Approver,
    ) -> Result<(), Answer> {
        const FAILED: &str = "Failed to validate set quota request";
        let semantics = self.config.quota_semantics;
        let (role, guarantees) = requested(request).map_err(Invalid::within(FAILED))?;
        if role.is_star() && semantics == QuotaSemantics::Seed {
            return Err(refused(format!(
                "{FAILED}: Quota is not supported for the default role '*'"
            )));
        }
        self.check_known(&role).map_err(Invalid::within(FAILED))?;
        if self.policies.requested_quotas().contains_key(&role) {
            return Err(refused(format!(
                "{FAILED}: Cannot set quota for role '{role}' which already has quota"
            )));
        }
        let quota = legacy_quota(&guarantees, semantics);
        let mut new_quotas = self.policies.requested_quotas().clone();
        new_quotas.insert(role.clone(), quota.clone());
        check_tree(&new_quotas).map_err(Invalid::within(FAILED))?;
        may_update(approver, &role)?;
        let total = guaranteed(&new_quotas);
        let capacity = self
            .allocator
            .quota_capacity(semantics == QuotaSemantics::Seed);
        let exceeded = (!capacity.contains(&total)).then(|| {
            format!("Total quota guarantees '{total}' exceed cluster capacity '{capacity}'")
        });
        let force = request.force.unwrap_or_default();
        if let Some(exceeded) = exceeded.as_ref().filter(|_| !force) {
            return Err(Answer::Conflict(format!(
                "Quota guarantees overcommit the cluster (use 'force' to bypass this check): \
                 {exceeded}"
            )));
        }
        if exceeded.is_some() {
            warn_of_overcommitment(&total, &capacity);
        }
        let answer = exceeded.map_or(Answer::Done, |exceeded| {
            Answer::Warned(format!(
                "Quota of role '{role}' is set. {exceeded}: until more agents join, roles \
                 without an unmet guarantee may get no offers"
            ))
        });
        let request = guarantees.into_iter().collect();
        let rescind = Rescind::Request(role.clone(), request);
        self.store_quota(reply, vec![(role, quota)], rescind, answer);
        Ok(())
    }

    pub(super) fn remove_quota(
        &mut self,
        reply: ReplyId,
        role: &str,
        approver: &Approver,
    ) -> Result<(), Answer> {
        let role = Role::new(role).map_err(Invalid::from_error)?;
        self.check_known(&role)?;
        let mut new_quotas = self.policies.requested_quotas().clone();
        if new_quotas.remove(&role).is_none() {
            return Err(refused(format!("Role '{role}' has no quota set")));
        }
        check_tree(&new_quotas)?;
        may_update(approver, &role)?;
        let changes = vec![(role, Quota::default())];
        self.store_quota(reply, changes, Rescind::Nothing, Answer::Done);
        Ok(())
    }

    pub(super) fn update_quota(
        &mut self,
        reply: ReplyId,
        force: bool,
        configs: &[QuotaConfig],
    ) -> Result<(), Answer> {
        const BYPASS: &str = "(use 'force' flag to bypass this check)";
        const INVALID: &str = "Invalid QuotaConfig";
        let mut new_quotas = self.policies.requested_quotas().clone();
        let mut changes = Vec::new();
        for config in configs {
            let (role, quota) = configured(config).map_err(Invalid::within(INVALID))?;
            self.check_known(&role).map_err(Invalid::within(INVALID))?;
            // The consumption with all offers of the role is available, and seldom exceeds the limit.
            if !force && !quota.limits.allows(&self.allocator.consumption(&role)) {
                let consumed = self.consumption(&role);
                if !quota.limits.allows(&consumed) {
                    return Err(refused(format!(
                        "{INVALID}: Role '{role}' is already consuming '{consumed}'; this is more than the \
                         requested limits '{}' {BYPASS}",
                        quota.limits
                    )));
                }
            }
            if quota.is_default() {
                new_quotas.remove(&role);
            } else {
                new_quotas.insert(role.clone(), quota.clone());
            }
            changes.push((role, quota));
        }
        check_tree(&new_quotas).map_err(Invalid::within(INVALID))?;
        let total = guaranteed(&new_quotas);
        let capacity = self.allocator.quota_capacity(false);
        if !capacity.contains(&total) {
            if !force {
                return Err(refused(format!(
                    "{INVALID}: total quota guarantees '{total}' exceed cluster capacity '{capacity}' {BYPASS}"
                )));
            }
            warn_of_overcommitment(&total, &capacity);
        }
        for (role, quota) in &changes {
            self.warn_of_new_semantics(role, quota);
        }
        self.store_quota(reply, changes, Rescind::Changes, Answer::Done);
        Ok(())
    }

    /// Logs that a quota whose guarantee limits everything is replaced by one that limits only the named resources.
    fn warn_of_new_semantics(&self, role: &Role, quota: &Quota) {
        let before = self.policies.requested_quotas().get(role);
        if before.is_some_and(|before| before.legacy) && !quota.legacy && !quota.is_default() {
            tracing::warn!(
                %role,
                "the semantics of a quota change from seed to head: only the named resources are kept back and limited \
                 from now on, and other roles may be offered memory without cpus while the guarantee is unmet"
            );
        }
    }

    /// The consumption that counts against a role's limits: the unreserved resources of tasks, and the reservations;
    /// offers do not count.
    fn consumption(&self, role: &Role) -> ResourceQuantities {
        let mut consumed = self.allocator.consumption(role);
        for offer in self.all_offers() {
            if offer.role.is_in_subtree_of(role) {
                let resources = offer.resources.unreserved().unrevocable();
                consumed -= &resources.scalar_quantities();
            }
        }
        consumed
    }

    /// All outstanding offers, ordered by id.
    fn all_offers(&self) -> impl Iterator<Item = &Offer> + Clone {
        self.offers.values().map(|offer| {
            count_entries(1);
            &**offer
        })
    }

    /// Stores allowed changes, and sends `answer` once they are durable.
    fn store_quota(
        &mut self,
        reply: ReplyId,
        changes: Vec<(Role, Quota)>,
        rescind: Rescind,
        answer: Answer,
    ) {
        self.policies.request_quotas(&changes);
        self.effects.persist(
            Mutation::UpdateQuota(changes.clone()),
            Pending::Operator(OperatorPending::Quota {
                reply,
                changes,
                rescind,
                answer,
            }),
        );
    }

    pub(super) fn quota_stored(
        &mut self,
        reply: ReplyId,
        changes: Vec<(Role, Quota)>,
        rescind: &Rescind,
        answer: Answer,
    ) {
        for (role, quota) in &changes {
            let updated = self.allocator.update_quota(role, quota);
            self.agreed("updating a quota", updated);
            tracing::info!(%role, guarantees = %quota.guarantees, limits = %quota.limits, "quota changed");
        }
        self.policies.apply_quotas(&changes);
        match rescind {
            Rescind::Nothing => {}
            Rescind::Request(role, request) => {
                let offers = self.outstanding();
                let plan = self.allocator.rescind_for_request(role, request, &offers);
                plan.iter().for_each(|offer| self.rescind(offer));
            }
            Rescind::Changes => {
                for (role, quota) in &changes {
                    let offers = self.all_offers().map(|offer| OfferView {
                        id: &offer.id,
                        role: &offer.role,
                        resources: &offer.resources,
                    });
                    let plan = self.allocator.rescind_for_quota(role, quota, offers);
                    plan.iter().for_each(|offer| self.rescind(offer));
                }
            }
        }
        self.allocate_due = true;
        self.reply(reply, answer);
    }

    /// A copy of the outstanding offers.
    pub(super) fn outstanding(&self) -> Vec<Outstanding> {
        self.all_offers().map(Outstanding::from).collect()
    }
}

fn warn_of_overcommitment(total: &ResourceQuantities, capacity: &ResourceQuantities) {
    tracing::warn!(
        guaranteed = %total,
        %capacity,
        "quota guarantees exceed the cluster: until more agents join, roles without an unmet guarantee may \
         get no offers"
    );
}

fn check_tree(quotas: &BTreeMap<Role, Quota>) -> Result<(), Invalid> {
    check_quota_tree(quotas).map_err(Invalid::within("The quota hierarchy would not be sound"))
}

/// Checks that an operator may change a role's quota.
fn may_update(approver: &Approver, role: &Role) -> Result<(), Answer> {
    let decision = approver.check(Action::UpdateQuota, Some(role.as_str()));
    decision.map_err(|forbidden| Answer::Forbidden(forbidden.to_string()))
}

/// A legacy quota: the guarantee is also the limit, of the named resources or of everything.
fn legacy_quota(guarantees: &BTreeMap<ResourceName, Scalar>, semantics: QuotaSemantics) -> Quota {
    let amounts = || guarantees.iter().map(|(name, n)| (name.clone(), *n));
    Quota {
        guarantees: amounts().collect(),
        limits: amounts().collect::<ResourceLimits>(),
        legacy: semantics == QuotaSemantics::Seed,
    }
}

/// Parses the role and amounts of a legacy request.
fn requested(request: &QuotaRequest) -> Result<(Role, BTreeMap<ResourceName, Scalar>), Invalid> {
    let role = Role::new(request.role.as_deref().unwrap_or_default())
        .map_err(Invalid::within("QuotaInfo with invalid role"))?;
    if request.guarantee.is_empty() {
        return Err(invalid!("QuotaInfo with empty 'guarantee'"));
    }
    let mut guarantees = BTreeMap::new();
    for message in &request.guarantee {
        if message.r#type != i32::from(value::Type::Scalar) {
            return Err(invalid!("QuotaInfo must not include non-scalar resources"));
        }
        let is_reserved = message.reservation.is_some()
            || !message.reservations.is_empty()
            || message.role.as_deref().is_some_and(|role| role != "*");
        if is_reserved {
            return Err(invalid!("QuotaInfo must not contain any ReservationInfo"));
        }
        if message.disk.is_some() {
            return Err(invalid!("QuotaInfo must not contain DiskInfo"));
        }
        if message.revocable.is_some() {
            return Err(invalid!("QuotaInfo must not contain RevocableInfo"));
        }
        if message.shared.is_some() {
            return Err(invalid!("QuotaInfo must not contain SharedInfo"));
        }
        if message.allocation_info.is_some() {
            return Err(invalid!("QuotaInfo must not contain AllocationInfo"));
        }
        let amount = amount(message)?;
        let name = ResourceName::new(&message.name).map_err(Invalid::from_error)?;
        if guarantees.insert(name.clone(), amount).is_some() {
            return Err(invalid!(
                "QuotaInfo contains duplicate resource name '{name}'"
            ));
        }
    }
    Ok((role, guarantees))
}

fn amount(message: &v1::Resource) -> Result<Scalar, Invalid> {
    let value = message.scalar.as_ref().map_or(0.0, |scalar| scalar.value);
    in_range(&message.name, value)?;
    let resource = convert::resource(message)
        .map_err(|error| format!("Resource '{}' is invalid: {error}", message.name))?;
    Ok(resource.scalar().unwrap_or_default())
}

fn in_range(name: &str, value: f64) -> Result<(), Invalid> {
    if !(value.is_finite() && (value == 0.0 || value.is_normal()) && value >= 0.0) {
        return Err(invalid!(
            "the amount of '{name}' must be a number of 0 or more, not {value}"
        ));
    }
    let is_megabytes = name == "mem" || name == "disk";
    if is_megabytes && value > MEGABYTES_MAX {
        return Err(invalid!(
            "'{name}': {value} MB: values greater than 1 exabyte (1099511627776) are not supported"
        ));
    }
    if !is_megabytes && value > AMOUNT_MAX {
        return Err(invalid!(
            "'{name}': {value}: values greater than 1 trillion (1000000000000) are not supported"
        ));
    }
    Ok(())
}

/// Parses the role and quota of a request in the newer form.
fn configured(config: &QuotaConfig) -> Result<(Role, Quota), Invalid> {
    let role = Role::new(&config.role).map_err(Invalid::within("Invalid 'role'"))?;
    let guarantees: ResourceQuantities = amounts("guarantees", &config.guarantees)?
        .into_iter()
        .collect();
    let limits: ResourceLimits = amounts("limits", &config.limits)?.into_iter().collect();
    if !limits.allows(&guarantees) {
        return Err(invalid!(
            "'QuotaConfig.guarantees' {{ {} }} is not contained within the 'QuotaConfig.limits' \
             {{ {} }}",
            spaced(guarantees.iter()),
            spaced(limits.iter())
        ));
    }
    let quota = Quota {
        guarantees,
        limits,
        legacy: false,
    };
    Ok((role, quota))
}

fn amounts(
    part: &str,
    amounts: &BTreeMap<String, value::Scalar>,
) -> Result<Vec<(ResourceName, Scalar)>, Invalid> {
    let mut read = Vec::with_capacity(amounts.len());
    for (name, scalar) in amounts {
        let place = format_args!("Invalid 'QuotaConfig.{part}'");
        in_range(name, scalar.value).map_err(Invalid::within(place))?;
        let amount = Scalar::quantity_from_f64(scalar.value).map_err(Invalid::within(place))?;
        let name = ResourceName::new(name).map_err(Invalid::within(place))?;
        read.push((name, amount));
    }
    Ok(read)
}

fn spaced<'a>(amounts: impl Iterator<Item = (&'a ResourceName, Scalar)>) -> String {
    let parts: Vec<String> = amounts
        .map(|(name, amount)| format!("{name}: {amount}"))
        .collect();
    parts.join(", ")
}
