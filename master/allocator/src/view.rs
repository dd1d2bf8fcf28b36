//! Read access for metrics and tests: shares, totals, quota, filters.

use std::collections::BTreeMap;

use meseta_resources::{
    AgentId, FrameworkId, ResourceLimits, ResourceQuantities, Resources, Role, Scalar,
};

use crate::Allocator;
use crate::bits::Bits;
use crate::error::Error;
use crate::quota::Quota;
use crate::roles::{RoleKey, RoleNode};
use crate::slab::at;
use crate::sorter::NodeKey;

/// Dominant shares, divided by weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shares {
    /// The shares of roles, including their subtrees.
    pub roles: BTreeMap<Role, f64>,
    /// The shares of frameworks within their roles.
    pub frameworks: BTreeMap<(Role, FrameworkId), f64>,
}

/// The state of a role.
#[derive(Clone, Debug, PartialEq)]
pub struct RoleView {
    pub role: Role,
    pub weight: f64,
    pub quota: Quota,
    /// The amount that counts toward guarantees and limits: the reservations of the subtree, and the other resources
    /// that the subtree is offered or uses.
    pub consumed: ResourceQuantities,
    pub reserved: ResourceQuantities,
    /// The resources that the subtree is offered or uses, reserved or not.
    pub allocated: ResourceQuantities,
    /// The total of all agents.
    pub filters: usize,
    pub frameworks: Vec<FrameworkId>,
}

/// The metrics of a role with frameworks.
#[derive(Clone, Debug, PartialEq)]
pub struct RoleGauges {
    pub role: Role,
    /// The role's dominant share, divided by its weight.
    pub share: f64,
    /// The number of filters of the role's frameworks.
    pub filters: usize,
}

impl Allocator {
    /// The metrics of each role with frameworks, in no particular order.
    #[must_use]
    pub fn gauges(&self) -> Vec<RoleGauges> {
        let used = self.roles.iter().filter(|(_, node)| {
            let mut slots = node.slots.iter();
            node.exists() && slots.next().is_some()
        });
        used.map(|(_, node)| {
            let slots = node.slots.iter().map(|(_, slot)| &self.slots[*slot]);
            RoleGauges {
                role: node.role.clone(),
                share: self.sorter.share_of(node.node),
                filters: slots.map(|slot| self.filters.count(slot.filters)).sum(),
            }
        })
        .collect()
    }

    fn named(&self, amounts: impl Iterator<Item = (u32, i64)>) -> ResourceQuantities {
        let some = amounts.filter(|(_, amount)| *amount != 0);
        let named = some
            .map(|(kind, amount)| (self.classes.name(kind).clone(), Scalar::from_millis(amount)));
        named.collect()
    }

    /// The total of all agents.
    #[must_use]
    pub fn total(&self) -> ResourceQuantities {
        self.named((0..self.kinds()).map(|kind| (kind, self.sorter.total(kind))))
    }

    fn kinds(&self) -> u32 {
        self.classes.kinds()
    }

    /// The resources of all agents that are offered or in use.
    #[must_use]
    pub fn allocated(&self) -> ResourceQuantities {
        let top = self
            .roles
            .iter()
            .filter(|(_, node)| node.parent.is_none() && node.exists());
        let mut all = ResourceQuantities::new();
        for (_, node) in top {
            all += &self.named(self.sorter.allocations(node.node));
        }
        all
    }

    /// The number of cycles so far.
    #[must_use]
    pub const fn cycles(&self) -> u64 {
        self.cycles
    }

    #[must_use]
    pub fn shares(&self) -> Shares {
        let mut shares = Shares::default();
        for (_, node) in self.roles.iter().filter(|(_, node)| node.exists()) {
            shares
                .roles
                .insert(node.role.clone(), self.sorter.share_of(node.node));
            for (_, slot) in node.slots.iter() {
                let slot = &self.slots[*slot];
                let id = self.frameworks[slot.framework].id.clone();
                shares
                    .frameworks
                    .insert((node.role.clone(), id), self.sorter.share_of(slot.node));
            }
        }
        shares
    }

    /// The existing roles, ordered by name.
    #[must_use]
    pub fn roles(&self) -> Vec<RoleView> {
        let existing = self.roles.iter().filter(|(_, node)| node.exists());
        let mut roles: Vec<RoleView> = existing.map(|(key, node)| self.view(key, node)).collect();
        roles.sort_by(|a, b| a.role.cmp(&b.role));
        roles
    }

    /// Returns a role, if it exists.
    #[must_use]
    pub fn role(&self, role: &Role) -> Option<RoleView> {
        let key = self.roles.find(role)?;
        let node = &self.roles[key];
        node.exists().then(|| self.view(key, node))
    }

    fn view(&self, key: RoleKey, node: &RoleNode) -> RoleView {
        let quota = self.quota_of(node);
        let slots = || node.slots.iter().map(|(_, slot)| &self.slots[*slot]);
        let mut frameworks: Vec<FrameworkId> = slots()
            .map(|slot| self.frameworks[slot.framework].id.clone())
            .collect();
        frameworks.sort_unstable();
        RoleView {
            role: node.role.clone(),
            weight: node.weight.unwrap_or(1.0),
            quota,
            consumed: self
                .named((0..self.kinds()).map(|kind| (kind, self.roles[key].consumed(kind)))),
            reserved: self.named((0..).zip(node.reserved.iter().copied())),
            allocated: self.named(self.sorter.allocations(node.node)),
            filters: slots().map(|slot| self.filters.count(slot.filters)).sum(),
            frameworks,
        }
    }

    fn quota_of(&self, node: &RoleNode) -> Quota {
        let Some(quota) = &node.quota else {
            return Quota::default();
        };
        let limits = quota.limits.iter().map(|(kind, limit)| {
            (
                self.classes.name(*kind).clone(),
                Scalar::from_millis(*limit),
            )
        });
        Quota {
            guarantees: self.named(quota.guarantees.iter().copied()),
            limits: limits.collect::<ResourceLimits>(),
            legacy: quota.legacy,
        }
    }

    /// The quotas of all roles that have one.
    #[must_use]
    pub fn quotas(&self) -> BTreeMap<Role, Quota> {
        let with_quota = self.roles.iter().filter(|(_, node)| node.quota.is_some());
        with_quota
            .map(|(_, node)| (node.role.clone(), self.quota_of(node)))
            .collect()
    }

    /// The agents that a framework's constraints exclude, by subscribed role, at most `at_most` for all roles
    /// together.
    ///
    /// # Errors
    /// For an unknown framework.
    pub fn excluded(
        &self,
        framework: &FrameworkId,
        at_most: usize,
    ) -> Result<BTreeMap<Role, Vec<AgentId>>, Error> {
        let key = self.framework_key(framework)?;
        let mut left = at_most;
        let mut excluded = BTreeMap::new();
        for slot in self.frameworks[key].slots.iter() {
            let slot = &self.slots[*slot];
            if !slot.subscribed {
                continue;
            }
            let agents = slot.excluded.iter().flat_map(Bits::iter).take(left);
            let mut agents: Vec<AgentId> =
                agents.map(|agent| self.agents[agent].id.clone()).collect();
            left -= agents.len();
            agents.sort_unstable();
            excluded.insert(self.roles[slot.role].role.clone(), agents);
        }
        Ok(excluded)
    }

    /// The capacity that the capacity heuristic compares with quota: the non-revocable scalars of all agents, with or
    /// without static reservations.
    #[must_use]
    pub fn quota_capacity(&self, without_static_reservations: bool) -> ResourceQuantities {
        let mut capacity = ResourceQuantities::new();
        for (kind, all) in (0..).zip(&self.capacity) {
            let reserved = self.static_capacity.get(at(kind)).copied().unwrap_or(0);
            let left_out = if without_static_reservations {
                reserved
            } else {
                0
            };
            if *all > left_out {
                let amount = Scalar::from_millis(all - left_out);
                capacity.set(self.classes.name(kind), amount);
            }
        }
        capacity
    }

    /// The total guarantee without that of one role; a nested guarantee is part of its parent's.
    #[must_use]
    pub fn guaranteed(&self, except: Option<&Role>) -> ResourceQuantities {
        let mut quotas = self.quotas();
        if let Some(role) = except {
            quotas.remove(role);
        }
        crate::quota::guaranteed(&quotas)
    }

    /// The free resources of an agent.
    ///
    /// # Errors
    /// For an unknown agent.
    pub fn available(&self, agent: &AgentId) -> Result<Resources, Error> {
        let key = self.agent_key(agent)?;
        Ok(self.classes.resources(&self.agents[key].free, None))
    }

    /// The total of an agent.
    ///
    /// # Errors
    /// For an unknown agent.
    pub fn agent_total(&self, agent: &AgentId) -> Result<Resources, Error> {
        let key = self.agent_key(agent)?;
        Ok(self.classes.resources(&self.agents[key].total, None))
    }

    /// The resources that frameworks hold on an agent, offered or in use.
    ///
    /// # Errors
    /// For an unknown agent.
    pub fn held(&self, agent: &AgentId) -> Result<BTreeMap<FrameworkId, Resources>, Error> {
        let key = self.agent_key(agent)?;
        let mut held: BTreeMap<FrameworkId, Resources> = BTreeMap::new();
        for holding in &self.agents[key].holdings {
            let slot = &self.slots[holding.slot];
            let role = &self.roles[slot.role].role;
            let id = self.frameworks[slot.framework].id.clone();
            *held.entry(id).or_default() += self.classes.resources(&holding.resources, Some(role));
        }
        Ok(held)
    }

    #[must_use]
    pub fn agents(&self) -> Vec<AgentId> {
        let mut ids: Vec<AgentId> = self
            .agents
            .iter()
            .map(|(_, agent)| agent.id.clone())
            .collect();
        ids.sort_unstable();
        ids
    }

    #[must_use]
    pub fn contains_agent(&self, agent: &AgentId) -> bool {
        self.agent_keys.contains_key(agent)
    }

    /// The active roles in the order of the next offers, each with its active frameworks in their order. A random
    /// sorter draws a new order each time.
    pub fn order(&mut self) -> Vec<(Role, Vec<FrameworkId>)> {
        self.sorter.settle();
        let mut order = Vec::new();
        if self.options.role_sorter == crate::SorterKind::Random {
            let active = self
                .roles
                .iter()
                .filter(|(_, node)| !node.active.is_empty());
            let nodes: Vec<NodeKey> = active.map(|(_, node)| node.own).collect();
            for node in self.rng.weighted_shuffle(&self.sorter, &nodes) {
                order.push(self.members(node));
            }
        } else {
            self.walk_order(self.sorter.root(), &mut order);
        }
        order
    }

    fn members(&self, own: NodeKey) -> (Role, Vec<FrameworkId>) {
        let slots = self
            .sorter
            .order(own)
            .iter()
            .map(|slot| self.sorter.tag(*slot));
        let id = |slot| self.frameworks[self.slots[slot].framework].id.clone();
        (
            self.roles[self.sorter.tag(own)].role.clone(),
            slots.map(id).collect(),
        )
    }

    fn walk_order(&self, node: NodeKey, order: &mut Vec<(Role, Vec<FrameworkId>)>) {
        for child in self.sorter.order(node) {
            let role = &self.roles[self.sorter.tag(*child)];
            if role.own == *child {
                let slots = self
                    .sorter
                    .order(*child)
                    .iter()
                    .map(|slot| self.sorter.tag(*slot));
                let id = |slot| self.frameworks[self.slots[slot].framework].id.clone();
                order.push((role.role.clone(), slots.map(id).collect()));
            } else {
                self.walk_order(*child, order);
            }
        }
    }

    /// An estimate of the memory that the agents take, in bytes: for the benchmark.
    #[must_use]
    pub fn agent_bytes(&self) -> usize {
        self.agents.iter().map(|(_, agent)| agent.bytes()).sum()
    }
}
