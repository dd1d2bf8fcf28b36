//! A slow and simple model of the allocator that shares no code with it: it stores maps of `Resources` and computes
//! everything else on demand.

use std::collections::{BTreeMap, BTreeSet};

use meseta_allocator::{Allocation, FrameworkCapabilities, Quota};
use meseta_resources::{AgentId, FrameworkId, Moment, Resource, Resources, Role, Scalar};

pub(crate) const KINDS: [&str; 3] = ["cpus", "mem", "disk"];

#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) agents: BTreeMap<AgentId, ModelAgent>,
    pub(crate) frameworks: BTreeMap<FrameworkId, ModelFramework>,
    /// The held resources, unallocated, by agent, framework and role.
    pub(crate) held: BTreeMap<(AgentId, FrameworkId, Role), Resources>,
    pub(crate) filters: Vec<Filter>,
    pub(crate) weights: BTreeMap<Role, f64>,
    pub(crate) quotas: BTreeMap<Role, Quota>,
    /// The number of allocations, by role including its subtree, by a role's own frameworks, and by framework.
    counts: BTreeMap<Counted, u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Counted {
    Subtree(Role),
    Own(Role),
    Slot(Role, FrameworkId),
}

#[derive(Clone, Debug)]
pub(crate) struct ModelAgent {
    pub(crate) total: Resources,
    pub(crate) active: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct ModelFramework {
    pub(crate) roles: BTreeSet<Role>,
    pub(crate) suppressed: BTreeSet<Role>,
    pub(crate) capabilities: FrameworkCapabilities,
    pub(crate) active: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Filter {
    pub(crate) framework: FrameworkId,
    pub(crate) role: Role,
    pub(crate) agent: AgentId,
    pub(crate) refused: Resources,
    pub(crate) expiry: Moment,
}

fn is_regular(resource: &Resource) -> bool {
    resource.is_unreserved() && !resource.is_revocable()
}

fn amount(resources: &Resources, kind: &str) -> i64 {
    resources.scalar(kind).map_or(0, Scalar::millis)
}

impl Model {
    /// The free resources of an agent, computed from totals and holdings alone.
    pub(crate) fn free(&self, agent: &AgentId) -> Resources {
        let mut free = self.agents[agent].total.clone();
        for ((_, _, _), held) in self.held.iter().filter(|(key, _)| key.0 == *agent) {
            free -= &held.unshared();
        }
        free
    }

    /// Records an allocation of the allocator.
    pub(crate) fn hold(&mut self, allocation: &Allocation) {
        let Allocation {
            framework,
            agent,
            role,
            resources,
        } = allocation;
        let key = (agent.clone(), framework.clone(), role.clone());
        *self.held.entry(key).or_default() += resources.unallocate();
        let mut counted = vec![
            Counted::Own(role.clone()),
            Counted::Slot(role.clone(), framework.clone()),
        ];
        counted.push(Counted::Subtree(role.clone()));
        counted.extend(role.ancestors().map(Counted::Subtree));
        for node in counted {
            *self.counts.entry(node).or_default() += 1;
        }
    }

    /// Drops counts of roles, and of frameworks in roles, that no longer exist.
    pub(crate) fn tidy(&mut self, now: Moment) {
        self.held.retain(|_, held| !held.is_empty());
        self.filters.retain(|filter| filter.expiry >= now);
        let slots: BTreeSet<(Role, FrameworkId)> = self.slots().collect();
        let roles = self.existing_roles(&slots);
        self.counts.retain(|node, _| match node {
            Counted::Subtree(role) | Counted::Own(role) => roles.contains(role),
            Counted::Slot(role, framework) => slots.contains(&(role.clone(), framework.clone())),
        });
    }

    fn slots(&self) -> impl Iterator<Item = (Role, FrameworkId)> {
        let subscribed = self.frameworks.iter().flat_map(|(id, framework)| {
            framework
                .roles
                .iter()
                .map(|role| (role.clone(), id.clone()))
        });
        subscribed.chain(
            self.held
                .keys()
                .map(|(_, framework, role)| (role.clone(), framework.clone())),
        )
    }

    fn existing_roles(&self, slots: &BTreeSet<(Role, FrameworkId)>) -> BTreeSet<Role> {
        let mut roles: BTreeSet<Role> = slots.iter().map(|slot| slot.0.clone()).collect();
        roles.extend(
            self.weights
                .iter()
                .filter(|entry| *entry.1 != 1.0)
                .map(|entry| entry.0.clone()),
        );
        roles.extend(self.quotas.keys().cloned());
        for agent in self.agents.values() {
            roles.extend(agent.total.scalars().reservations().into_keys());
        }
        let ancestors: Vec<Role> = roles.iter().flat_map(Role::ancestors).collect();
        roles.extend(ancestors);
        roles
    }

    fn total(&self, kind: &str) -> i64 {
        self.agents
            .values()
            .map(|agent| amount(&agent.total, kind))
            .sum()
    }

    /// The amount of a kind held by the owners that `is_theirs` accepts; a shared volume counts once per agent.
    fn allocated(&self, kind: &str, is_theirs: impl Fn(&Role, &FrameworkId) -> bool) -> i64 {
        let mut by_agent: BTreeMap<&AgentId, (i64, BTreeSet<String>)> = BTreeMap::new();
        for ((agent, framework, role), held) in &self.held {
            if is_theirs(role, framework) {
                let (sum, volumes) = by_agent.entry(agent).or_default();
                *sum += amount(&held.unshared(), kind);
                for volume in held.shared().iter().filter(|volume| volume.name() == kind) {
                    if volumes.insert(volume.to_string()) {
                        *sum += volume.scalar().map_or(0, Scalar::millis);
                    }
                }
            }
        }
        by_agent.values().map(|entry| entry.0).sum()
    }

    fn share(&self, is_theirs: impl Fn(&Role, &FrameworkId) -> bool, weight: f64) -> f64 {
        let mut dominant = 0.0_f64;
        for kind in ["cpus", "mem", "disk", "gpus"] {
            let total = self.total(kind);
            if total > 0 {
                let part = self.allocated(kind, &is_theirs) as f64 / total as f64;
                dominant = dominant.max(part);
            }
        }
        dominant / weight
    }

    pub(crate) fn is_subscribed(&self, framework: &FrameworkId, role: &Role) -> bool {
        self.frameworks.get(framework).is_some_and(|framework| {
            framework.active
                && framework.roles.contains(role)
                && !framework.suppressed.contains(role)
        })
    }

    /// Roles with their frameworks in the order of weighted DRF, by a full sort.
    pub(crate) fn order(&self) -> Vec<(Role, Vec<FrameworkId>)> {
        let active: BTreeSet<Role> = self
            .frameworks
            .iter()
            .flat_map(|(id, framework)| framework.roles.iter().map(move |role| (id, role)))
            .filter(|(id, role)| self.is_subscribed(id, role))
            .map(|(_, role)| role.clone())
            .collect();
        let mut order = Vec::new();
        self.descend(None, &active, &mut order);
        order
    }

    /// The roles right below `parent` (or the role itself), each with its share, sorted.
    fn descend(
        &self,
        parent: Option<&Role>,
        active: &BTreeSet<Role>,
        order: &mut Vec<(Role, Vec<FrameworkId>)>,
    ) {
        let count = |node: &Counted| self.counts.get(node).copied().unwrap_or(0);
        // Share, count, name, and whether it is the parent's own frameworks.
        let mut siblings: Vec<(f64, u64, String, Role, bool)> = Vec::new();
        let mut children: BTreeSet<Role> = BTreeSet::new();
        for role in active {
            let line = std::iter::once(role.clone()).chain(role.ancestors());
            children.extend(line.filter(|node| node.parent().as_ref() == parent));
        }
        for child in children {
            let weight = self.weights.get(&child).copied().unwrap_or(1.0);
            let share = self.share(|role, _| role.is_in_subtree_of(&child), weight);
            let name = child.components().last().unwrap_or_default().to_string();
            siblings.push((
                share,
                count(&Counted::Subtree(child.clone())),
                name,
                child,
                false,
            ));
        }
        if let Some(own) = parent.filter(|parent| active.contains(*parent)) {
            let share = self.share(|role, _| role == own, 1.0);
            siblings.push((
                share,
                count(&Counted::Own(own.clone())),
                ".".into(),
                own.clone(),
                true,
            ));
        }
        siblings.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        for (_, _, _, role, own) in siblings {
            if own {
                let frameworks = self.members(&role);
                order.push((role, frameworks));
            } else {
                self.descend(Some(&role), active, order);
            }
        }
    }

    fn members(&self, role: &Role) -> Vec<FrameworkId> {
        let ids = self
            .frameworks
            .keys()
            .filter(|id| self.is_subscribed(id, role));
        let mut members: Vec<(f64, u64, &FrameworkId)> = ids
            .map(|id| {
                let share = self.share(|other, framework| other == role && framework == id, 1.0);
                let slot = Counted::Slot(role.clone(), id.clone());
                (share, self.counts.get(&slot).copied().unwrap_or(0), id)
            })
            .collect();
        members.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(b.2)));
        members.into_iter().map(|member| member.2.clone()).collect()
    }

    /// The offer of an agent to a framework without any quota; `None` if the offer is empty.
    pub(crate) fn offer(
        &self,
        now: Moment,
        agent: &AgentId,
        framework: &FrameworkId,
        role: &Role,
        offered_shared: &Resources,
    ) -> Option<Resources> {
        let capabilities = self.frameworks[framework].capabilities;
        let total = &self.agents[agent].total;
        if !self.agents[agent].active || (total.has("gpus") && !capabilities.gpu_resources) {
            return None;
        }
        let offer = self.free(agent).filtered(|resource| {
            resource.is_allocatable_to(role)
                && (capabilities.revocable_resources || !resource.is_revocable())
                && (capabilities.reservation_refinement || !resource.needs_reservation_stack())
                && (!resource.is_shared()
                    || (capabilities.shared_resources
                        && !offered_shared.contains_resource(resource)))
        });
        self.is_worth_offering(now, agent, framework, role, &offer)
            .then_some(offer)
    }

    fn is_worth_offering(
        &self,
        now: Moment,
        agent: &AgentId,
        framework: &FrameworkId,
        role: &Role,
        offer: &Resources,
    ) -> bool {
        let enough = amount(offer, "cpus") >= 10 || amount(offer, "mem") >= 32_000;
        let refused = self.filters.iter().any(|filter| {
            filter.agent == *agent
                && filter.framework == *framework
                && filter.role == *role
                && filter.expiry >= now
                && filter.refused.contains(offer)
        });
        enough && !refused
    }

    // Quota, by definition.

    pub(crate) fn consumed(&self, role: &Role, kind: &str) -> i64 {
        let reserved: i64 = self
            .agents
            .values()
            .flat_map(|agent| agent.total.reservations())
            .filter(|(owner, _)| owner.is_in_subtree_of(role))
            .map(|(_, reserved)| amount(&reserved, kind))
            .sum();
        let mut used = 0;
        for ((_, _, other), held) in &self.held {
            if other.is_in_subtree_of(role) {
                used += amount(&held.filtered(is_regular), kind);
            }
        }
        reserved + used
    }

    fn guarantee(&self, role: &Role, kind: &str) -> i64 {
        self.quotas
            .get(role)
            .map_or(0, |quota| quota.guarantees.get(kind).millis())
    }

    /// The shortfall of the guarantees of a role and those below it; each unit counts once on a path.
    pub(crate) fn unsatisfied(&self, role: &Role, kind: &str) -> i64 {
        let missing = self.guarantee(role, kind) - self.consumed(role, kind);
        missing.max(self.unsatisfied_below(role, kind)).max(0)
    }

    pub(crate) fn unsatisfied_below(&self, role: &Role, kind: &str) -> i64 {
        let mut children: BTreeSet<Role> = BTreeSet::new();
        for with_quota in self.quotas.keys() {
            let line = std::iter::once(with_quota.clone()).chain(with_quota.ancestors());
            children.extend(line.filter(|node| node.parent().as_ref() == Some(role)));
        }
        children
            .iter()
            .map(|child| self.unsatisfied(child, kind))
            .sum()
    }

    pub(crate) fn required(&self, kind: &str) -> i64 {
        let top = |role: &Role| role.ancestors().last().unwrap_or_else(|| role.clone());
        let tops: BTreeSet<Role> = self.quotas.keys().map(top).collect();
        tops.iter().map(|role| self.unsatisfied(role, kind)).sum()
    }

    /// The free amount on offerable agents that may serve guarantees.
    pub(crate) fn headroom(&self, kind: &str) -> i64 {
        let active = self.agents.iter().filter(|(_, agent)| agent.active);
        active
            .map(|(id, _)| amount(&self.free(id).unshared().filtered(is_regular), kind))
            .sum()
    }

    /// The amount of a kind that the limits on its path leave to a role.
    pub(crate) fn slack(&self, role: &Role, kind: &str) -> i64 {
        std::iter::once(role.clone())
            .chain(role.ancestors())
            .filter_map(|node| {
                let limit = self.quotas.get(&node)?.limits.get(kind)?;
                Some(limit.millis() - self.consumed(&node, kind))
            })
            .min()
            .unwrap_or(i64::MAX)
    }

    /// The regular part of an allocation, of a kind.
    pub(crate) fn regular(resources: &Resources, kind: &str) -> i64 {
        amount(&resources.filtered(is_regular), kind)
    }
}
