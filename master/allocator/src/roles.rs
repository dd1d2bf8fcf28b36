//! The tree of roles: existing roles with their weights, quotas and consumption.
//!
//! A role exists while the role, or a role below it, has frameworks, a reservation, a weight or a quota. The amounts
//! of a role include those of its subtree. Invariants, per kind: `unsatisfied` of a role is the larger of the
//! shortfall of its own guarantee and the sum of the shortfalls below it, so a guarantee counts once on its path;
//! [`RoleTree::required`] is the sum of `unsatisfied` at the top.

use meseta_resources::Role;

use crate::bits::Bits;
use crate::slab::{Key, KeyMap, Slab, at};
use crate::sorter::{Kind, NodeKey, Sorter};

pub(crate) type RoleKey = Key;
pub(crate) type SlotKey = Key;

/// The name of a role's own frameworks among its sub-roles.
const OWN: &str = ".";

#[derive(Clone, Debug)]
pub(crate) struct RoleNode {
    pub(crate) role: Role,
    pub(crate) parent: Option<RoleKey>,
    pub(crate) children: u32,
    /// The number of children in the sorter.
    live_children: u32,
    pub(crate) node: NodeKey,
    /// The sorter node that stands for the role's own frameworks.
    pub(crate) own: NodeKey,
    /// Frameworks that are subscribed to the role, or hold resources of it.
    pub(crate) slots: Slab<SlotKey>,
    /// The slots that may get offers.
    pub(crate) active: Bits,
    pins: u32,
    pub(crate) weight: Option<f64>,
    pub(crate) quota: Option<RoleQuota>,
    /// The amounts reserved to the subtree on all agents.
    pub(crate) reserved: Vec<i64>,
    /// The unreserved, non-revocable amounts that the subtree is offered or uses.
    pub(crate) unreserved: Vec<i64>,
    unsatisfied: Vec<i64>,
    unsatisfied_below: Vec<i64>,
    /// Whether the limits leave too little for an offer; `None` if unknown.
    pub(crate) starved: Option<bool>,
    /// The number of frameworks in this role with a minimum of their own.
    pub(crate) own_minimums: u32,
}

/// A quota with interned names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoleQuota {
    pub(crate) guarantees: Vec<(Kind, i64)>,
    pub(crate) limits: Vec<(Kind, i64)>,
    pub(crate) legacy: bool,
}

fn find(amounts: &[(Kind, i64)], kind: Kind) -> Option<i64> {
    amounts
        .iter()
        .find(|entry| entry.0 == kind)
        .map(|entry| entry.1)
}

fn get(amounts: &[i64], kind: Kind) -> i64 {
    amounts.get(at(kind)).copied().unwrap_or(0)
}

fn slot(amounts: &mut Vec<i64>, kind: Kind) -> &mut i64 {
    if amounts.len() <= at(kind) {
        amounts.resize(at(kind) + 1, 0);
    }
    &mut amounts[at(kind)]
}

impl RoleNode {
    pub(crate) fn consumed(&self, kind: Kind) -> i64 {
        get(&self.reserved, kind).saturating_add(get(&self.unreserved, kind))
    }

    pub(crate) fn is_legacy(&self) -> bool {
        self.quota.as_ref().is_some_and(|quota| quota.legacy)
    }

    /// Whether the role is more than the owner of reserved classes.
    pub(crate) const fn exists(&self) -> bool {
        self.node != Key::MAX
    }

    fn guarantee(&self, kind: Kind) -> i64 {
        self.quota
            .as_ref()
            .and_then(|quota| find(&quota.guarantees, kind))
            .unwrap_or(0)
    }

    /// Whether anything except its children keeps the role in existence.
    fn is_in_use(&self) -> bool {
        self.slots.iter().next().is_some()
            || self.weight.is_some()
            || self.quota.is_some()
            || self.reserved.iter().any(|amount| *amount != 0)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct RoleTree {
    nodes: Slab<RoleNode>,
    by_name: KeyMap<Role>,
    /// The amounts that must be held back for guarantees, by kind.
    required: Vec<i64>,
    /// The number of roles with a quota; below, those with a guarantee and those with a limit.
    pub(crate) quotas: usize,
    pub(crate) guarantees: usize,
    pub(crate) limits: usize,
    /// The number of legacy guarantees that name each kind.
    legacy_guarantees: Vec<i64>,
}

impl std::ops::Index<RoleKey> for RoleTree {
    type Output = RoleNode;
    #[inline]
    fn index(&self, key: RoleKey) -> &RoleNode {
        &self.nodes[key]
    }
}

impl std::ops::IndexMut<RoleKey> for RoleTree {
    #[inline]
    fn index_mut(&mut self, key: RoleKey) -> &mut RoleNode {
        &mut self.nodes[key]
    }
}

impl RoleTree {
    pub(crate) fn find(&self, role: &Role) -> Option<RoleKey> {
        self.by_name.get(role).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (RoleKey, &RoleNode)> {
        self.nodes.iter()
    }

    /// Returns the role's key; creates the role and its ancestors if necessary. Call [`RoleTree::prune`] when done
    /// with the role.
    pub(crate) fn ensure(&mut self, sorter: &mut Sorter, role: &Role) -> RoleKey {
        if let Some(key) = self.find(role) {
            let key_node = &self.nodes[key];
            if key_node.node != Key::MAX {
                return key;
            }
        }
        let parent = role.parent().map(|parent| self.ensure(sorter, &parent));
        let above = parent.map_or(sorter.root(), |parent| self.nodes[parent].node);
        let name = role.as_str().rsplit('/').next().unwrap_or_default();
        let key = self.pin(role);
        self.nodes[key].pins -= 1;
        let node = sorter.add(above, name.into(), key);
        let own = sorter.add(node, OWN.into(), key);
        let entry = &mut self.nodes[key];
        (entry.node, entry.own) = (node, own);
        if let Some(parent) = parent {
            self.nodes[parent].live_children += 1;
        }
        key
    }

    /// Returns the role's key for a class reserved to the role, valid until [`RoleTree::unpin`]. A role that is only
    /// pinned is not in the sorter, and does not exist for other purposes.
    pub(crate) fn pin(&mut self, role: &Role) -> RoleKey {
        if let Some(key) = self.find(role) {
            self.nodes[key].pins += 1;
            return key;
        }
        let parent = role.parent().map(|parent| self.pin(&parent));
        if let Some(parent) = parent {
            self.nodes[parent].pins -= 1;
            self.nodes[parent].children += 1;
        }
        let key = self.nodes.insert(RoleNode {
            role: role.clone(),
            parent,
            children: 0,
            live_children: 0,
            node: Key::MAX,
            own: Key::MAX,
            slots: Slab::default(),
            active: Bits::default(),
            pins: 1,
            weight: None,
            quota: None,
            reserved: Vec::new(),
            unreserved: Vec::new(),
            unsatisfied: Vec::new(),
            unsatisfied_below: Vec::new(),
            starved: None,
            own_minimums: 0,
        });
        self.by_name.insert(role.clone(), key);
        key
    }

    pub(crate) fn unpin(&mut self, key: RoleKey) {
        self.nodes[key].pins = self.nodes[key].pins.saturating_sub(1);
        self.drop_unused(key);
    }

    /// Removes the role and its ancestors from the sorter, as far as nothing keeps them there.
    pub(crate) fn prune(&mut self, sorter: &mut Sorter, key: RoleKey) {
        let mut next = Some(key);
        while let Some(key) = next {
            let node = &self.nodes[key];
            if node.node == Key::MAX || node.is_in_use() || node.live_children > 0 {
                return;
            }
            sorter.remove(node.own);
            sorter.remove(node.node);
            next = node.parent;
            let node = &mut self.nodes[key];
            (node.node, node.own) = (Key::MAX, Key::MAX);
            if let Some(parent) = next {
                self.nodes[parent].live_children -= 1;
            }
            self.drop_unused(key);
        }
    }

    fn drop_unused(&mut self, key: RoleKey) {
        let mut next = Some(key);
        while let Some(key) = next {
            let node = &self.nodes[key];
            if node.pins > 0 || node.children > 0 || node.node != Key::MAX {
                return;
            }
            next = node.parent;
            if let Some(node) = self.nodes.remove(key) {
                self.by_name.remove(&node.role);
            }
            if let Some(parent) = next {
                self.nodes[parent].children -= 1;
            }
        }
    }

    /// The role and its ancestors, from the role upwards.
    #[inline]
    pub(crate) fn path(&self, key: RoleKey) -> impl Iterator<Item = RoleKey> + '_ {
        std::iter::successors(Some(key), |key| self.nodes[*key].parent)
    }

    #[inline]
    pub(crate) fn is_in_subtree(&self, key: RoleKey, ancestor: RoleKey) -> bool {
        key == ancestor || self.path(key).any(|node| node == ancestor)
    }

    /// Changes the consumption of a role, but not of its ancestors.
    pub(crate) fn consume(&mut self, key: RoleKey, kind: Kind, amount: i64) {
        let entry = slot(&mut self.nodes[key].unreserved, kind);
        *entry = entry.saturating_add(amount);
        self.nodes[key].starved = None;
    }

    /// Like [`RoleTree::consume`] for several kinds.
    #[inline]
    pub(crate) fn consume_all(&mut self, key: RoleKey, changes: &[(Kind, i64)]) {
        let node = &mut self.nodes[key];
        for (kind, amount) in changes {
            let entry = slot(&mut node.unreserved, *kind);
            *entry = entry.saturating_add(*amount);
        }
        node.starved = None;
    }

    /// Changes the reserved amount of a role and its ancestors.
    pub(crate) fn reserve(&mut self, key: RoleKey, kind: Kind, amount: i64) {
        let mut next = Some(key);
        while let Some(key) = next {
            let node = &mut self.nodes[key];
            let entry = slot(&mut node.reserved, kind);
            *entry = entry.saturating_add(amount);
            node.starved = None;
            next = node.parent;
        }
        self.refresh(key, kind);
    }

    /// Recomputes the unsatisfied amount of a kind from a role upwards.
    pub(crate) fn refresh(&mut self, key: RoleKey, kind: Kind) {
        if self.guarantees == 0 {
            return;
        }
        let mut next = Some(key);
        while let Some(key) = next {
            let node = &mut self.nodes[key];
            let missing = node.guarantee(kind).saturating_sub(node.consumed(kind));
            let now = missing.max(get(&node.unsatisfied_below, kind)).max(0);
            let before = std::mem::replace(slot(&mut node.unsatisfied, kind), now);
            if before != now {
                next = node.parent;
                let above = match next {
                    Some(parent) => slot(&mut self.nodes[parent].unsatisfied_below, kind),
                    None => slot(&mut self.required, kind),
                };
                *above = above.saturating_add(now).saturating_sub(before);
            } else {
                // The consumption counts for the ancestors too.
                next = node.parent;
            }
        }
    }

    /// The amount of a kind that must be held back for all guarantees.
    #[inline]
    pub(crate) fn required(&self, kind: Kind) -> i64 {
        get(&self.required, kind)
    }

    /// Whether a legacy quota guarantees an amount of the kind.
    pub(crate) fn has_legacy_guarantee(&self, kind: Kind) -> bool {
        get(&self.legacy_guarantees, kind) > 0
    }

    pub(crate) fn is_anything_required(&self) -> bool {
        self.required.iter().any(|amount| *amount > 0)
    }

    /// The amount of a kind that the limits on the path leave to a role; `None` without a limit.
    pub(crate) fn slack(&self, key: RoleKey, kind: Kind) -> Option<i64> {
        self.path(key)
            .filter_map(|key| self.own_slack(key, kind))
            .min()
    }

    /// The amount of a kind that the role's own limit leaves.
    pub(crate) fn own_slack(&self, key: RoleKey, kind: Kind) -> Option<i64> {
        let node = &self.nodes[key];
        let limit = find(&node.quota.as_ref()?.limits, kind)?;
        Some(limit.saturating_sub(node.consumed(kind)).max(0))
    }

    /// The lowest remaining limit of a kind on the path of a role.
    pub(crate) fn tightest(&self, key: RoleKey, kind: Kind) -> Option<(RoleKey, i64)> {
        self.path(key)
            .filter_map(|key| {
                let node = &self.nodes[key];
                Some((key, find(&node.quota.as_ref()?.limits, kind)?))
            })
            .min_by_key(|(key, limit)| limit.saturating_sub(self.nodes[*key].consumed(kind)))
    }

    /// The amount of a kind that a role may claim from guarantees: from its own, minus the part kept for roles below
    /// it; and from those of ancestors without an active framework, minus the part kept for other roles below them.
    pub(crate) fn claimable(&self, key: RoleKey, kind: Kind) -> i64 {
        let mut claim = 0;
        let mut reserved_by_path = 0;
        for above in self.path(key) {
            let node = &self.nodes[above];
            if above == key || node.active.is_empty() {
                let reserved_below = get(&node.unsatisfied_below, kind) - reserved_by_path;
                claim = claim.max(node.guarantee(kind) - node.consumed(kind) - reserved_below);
            }
            reserved_by_path = get(&node.unsatisfied, kind);
        }
        claim
    }

    /// The amount by which the required total would shrink if a role took as much as possible.
    pub(crate) fn creditable(&self, key: RoleKey, kind: Kind) -> i64 {
        let mut least = get(&self.nodes[key].unsatisfied_below, kind);
        let mut top = key;
        while let Some(parent) = self.nodes[top].parent {
            let below = get(&self.nodes[parent].unsatisfied_below, kind);
            least += below - get(&self.nodes[top].unsatisfied, kind);
            top = parent;
        }
        get(&self.nodes[top].unsatisfied, kind) - least
    }

    /// Whether a role may claim a part of any guarantee.
    pub(crate) fn has_claimable_guarantee(&self, key: RoleKey) -> bool {
        self.path(key).any(|above| {
            let quota = self.nodes[above].quota.as_ref();
            quota.is_some_and(|quota| {
                quota
                    .guarantees
                    .iter()
                    .any(|(kind, _)| self.claimable(key, *kind) > 0)
            })
        })
    }

    pub(crate) fn set_quota(&mut self, key: RoleKey, quota: Option<RoleQuota>) {
        let before = std::mem::replace(&mut self.nodes[key].quota, quota.clone());
        for (quota, add) in [(&before, false), (&quota, true)] {
            if let Some(quota) = quota {
                let step = |count: &mut usize, counts: bool| {
                    *count = count.saturating_add_signed(match (counts, add) {
                        (false, _) => 0,
                        (true, true) => 1,
                        (true, false) => -1,
                    });
                };
                step(&mut self.quotas, true);
                step(&mut self.limits, !quota.limits.is_empty() || quota.legacy);
                for (kind, _) in quota.guarantees.iter().filter(|_| quota.legacy) {
                    *slot(&mut self.legacy_guarantees, *kind) += if add { 1 } else { -1 };
                }
                // The number of guarantees shrinks last, so that the refresh below still runs.
                if add {
                    step(&mut self.guarantees, !quota.guarantees.is_empty());
                }
            }
        }
        self.nodes[key].starved = None;
        let kinds: Vec<Kind> = [&before, &quota]
            .into_iter()
            .flatten()
            .flat_map(|quota| quota.guarantees.iter().map(|entry| entry.0))
            .collect();
        for kind in kinds {
            self.refresh(key, kind);
        }
        if before.is_some_and(|quota| !quota.guarantees.is_empty()) {
            self.guarantees -= 1;
        }
    }
}
