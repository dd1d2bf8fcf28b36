//! Composing: the part of an agent's free resources that a framework may be offered now, by capabilities,
//! reservations, quota and headroom in one pass.
//!
//! Both the cycle and explain enter through [`Allocator::compose`], so that an explanation matches the next offer.
//! Composing changes nothing.

use meseta_resources::{ItemSet, Range, Ranges};

use crate::Allocator;
use crate::agents::AgentKey;
use crate::bundle::{Bundle, ClassKey, Items};
use crate::class::{Class, Classes};
use crate::filters::Visibility;
use crate::framework::{Framework, Slot};
use crate::roles::{RoleKey, RoleTree, SlotKey};
use crate::slab::{Slab, at};
use crate::sorter::Kind;
use crate::spec::FrameworkCapabilities;

/// The two passes of a cycle.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Serves the guarantees, and adds the resources that fit beside them.
    Guarantees,
    /// Offers everything that no guarantee needs.
    Rest,
}

/// The result of composing an offer.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Composed {
    /// The limit or headroom that made the offer smaller.
    pub(crate) reduction: Option<Reduction>,
    /// Whether the offer holds nothing of the kind that `reduction` names.
    gives_nothing: bool,
    /// Whether a part of the offer counts toward a guarantee.
    pub(crate) serves_guarantee: bool,
}

/// The reason why an offer is smaller.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    Limit(Kind),
    Headroom(Kind),
    /// The role's legacy quota allows no more.
    Legacy,
}

/// The amounts of one kind in the offer so far.
#[derive(Copy, Clone, Debug)]
struct OfferedAmount {
    kind: Kind,
    guaranteed: i64,
    burst: i64,
    /// The free amount of the counted classes.
    of: i64,
}

/// The part of an agent's cpus and memory that legacy guarantees leave. An offer takes at most this part of every
/// other kind too, so that the resources held back stay usable.
#[derive(Copy, Clone, Debug)]
struct Share {
    /// The kind with the smallest part left.
    kind: Kind,
    left: i64,
    of: i64,
    /// Whether the role's limit leaves less than the guarantees do.
    by_limit: bool,
}

impl Share {
    fn part(self, amount: i64) -> i64 {
        let part = i128::from(amount) * i128::from(self.left) / i128::from(self.of);
        i64::try_from(part).unwrap_or(amount)
    }

    const fn reduction(self) -> Reduction {
        match self.by_limit {
            true => Reduction::Limit(self.kind),
            false => Reduction::Headroom(self.kind),
        }
    }

    fn is_smaller(self, other: Self) -> bool {
        i128::from(self.left) * i128::from(other.of) < i128::from(other.left) * i128::from(self.of)
    }
}

/// A free regular scalar of an agent.
#[derive(Copy, Clone)]
struct FreeScalar<'a> {
    class: &'a Class,
    amount: i64,
    share: Option<Share>,
}

/// Gives filters access to the resources that a framework could be offered.
pub(crate) struct OfferVisibility<'a> {
    pub(crate) classes: &'a Classes,
    pub(crate) roles: &'a RoleTree,
    pub(crate) slots: &'a Slab<Slot>,
    pub(crate) frameworks: &'a Slab<Framework>,
}

impl Visibility for OfferVisibility<'_> {
    fn may_offer(&self, slot: SlotKey, class: ClassKey) -> bool {
        let slot = &self.slots[slot];
        let framework = &self.frameworks[slot.framework];
        may_offer(self.roles, framework, slot.role, &self.classes[class])
    }
}

#[inline]
fn may_offer(roles: &RoleTree, framework: &Framework, role: RoleKey, class: &Class) -> bool {
    if class.regular && !class.shared {
        return true;
    }
    let capabilities = framework.capabilities;
    (!class.shared || capabilities.shared_resources)
        && (!class.revocable || capabilities.revocable_resources)
        && (!class.stacked || capabilities.reservation_refinement)
        && class
            .owner
            .is_none_or(|owner| roles.is_in_subtree(role, owner))
}

impl Allocator {
    /// Fills `offer` with the resources that the slot could be offered on the agent; see the module.
    pub(crate) fn compose(
        &self,
        agent: AgentKey,
        slot: SlotKey,
        stage: Stage,
        offer: &mut Bundle,
    ) -> Composed {
        let entry = &self.agents[agent];
        let quota = self.roles.quotas > 0;
        if !entry.is_mixed && !quota {
            offer.clone_from(&entry.free);
            return Composed::default();
        }
        offer.clear();
        let slot = &self.slots[slot];
        let framework = &self.frameworks[slot.framework];
        let legacy = quota
            && self
                .roles
                .path(slot.role)
                .any(|role| self.roles[role].is_legacy());
        let closed = legacy && stage == Stage::Rest;
        let share = match stage {
            Stage::Rest => self.usable_share(agent, slot.role),
            Stage::Guarantees => None,
        };
        let mut composed = Composed::default();
        let mut offered: Vec<OfferedAmount> = Vec::new();
        for (key, amount) in &entry.free.scalars {
            let class = &self.classes[*key];
            if !may_offer(&self.roles, framework, slot.role, class)
                || (class.shared && self.offered_shared.contains(&(agent, *key)))
            {
                continue;
            }
            if !class.regular || !quota {
                offer.scalars.push((*key, *amount));
                continue;
            }
            if closed {
                composed.reduction = Some(Reduction::Legacy);
                continue;
            }
            let free_scalar = FreeScalar {
                class,
                amount: *amount,
                share,
            };
            let given = self.ration(slot.role, &free_scalar, stage, &mut offered, &mut composed);
            if given > 0 {
                offer.scalars.push((*key, given));
            }
        }
        composed.serves_guarantee = offered.iter().any(|offered| offered.guaranteed > 0);
        for (key, items) in &entry.free.items {
            let class = &self.classes[*key];
            if !may_offer(&self.roles, framework, slot.role, class) {
                continue;
            }
            if !class.regular || !quota {
                offer.items.push((*key, items.clone()));
            } else if closed {
                composed.reduction = Some(Reduction::Legacy);
            } else if let Some(share) = share.filter(|share| share.left == 0) {
                composed.reduction = Some(share.reduction());
            } else if let Some(part) = self.part_of(items, &offered) {
                offer.items.push((*key, part));
            }
        }
        composed
    }

    /// The [`Share`] of an agent, or `None` without a legacy guarantee. The share still holds in the cycle that
    /// satisfies the last guarantee, so that the remainder never grows within a cycle.
    fn usable_share(&self, agent: AgentKey, role: RoleKey) -> Option<Share> {
        let mut smallest: Option<Share> = None;
        for kind in [self.cpus, self.mem] {
            if !self.roles.has_legacy_guarantee(kind) {
                continue;
            }
            let surplus = match self.surplus_for(role, kind, Stage::Rest) {
                // No guarantee holds anything back: all free resources of the cluster are left.
                i64::MAX => self.headroom.get(at(kind)).copied().unwrap_or(0),
                surplus => surplus,
            };
            // A role at its limit for this kind takes nothing of the rest either, in no cycle.
            let slack = self.roles.slack(role, kind).unwrap_or(i64::MAX);
            let left = surplus.min(slack);
            let free = self.agents[agent].free.scalars.iter();
            let regular = free.filter(|(class, _)| {
                let class = &self.classes[*class];
                class.regular && class.kind == kind
            });
            let of: i64 = regular.map(|(_, amount)| *amount).sum();
            // An agent without this kind cannot use the amounts held back on other agents.
            let of = of.max(1);
            let share = Share {
                kind,
                left: left.min(of),
                of,
                by_limit: slack < surplus,
            };
            if smallest.is_none_or(|smallest| share.is_smaller(smallest)) {
                smallest = Some(share);
            }
        }
        smallest
    }

    /// The amount of a regular scalar that a role may have.
    fn ration(
        &self,
        role: RoleKey,
        free_scalar: &FreeScalar<'_>,
        stage: Stage,
        offered: &mut Vec<OfferedAmount>,
        composed: &mut Composed,
    ) -> i64 {
        let FreeScalar {
            class,
            amount,
            share,
        } = *free_scalar;
        let kind = class.kind;
        let at = offered
            .iter()
            .position(|offered| offered.kind == kind)
            .unwrap_or_else(|| {
                offered.push(OfferedAmount {
                    kind,
                    guaranteed: 0,
                    burst: 0,
                    of: 0,
                });
                offered.len() - 1
            });
        let offered = &mut offered[at];
        let whole = |amount: i64| amount - amount % class.unit;
        let slack = self.roles.slack(role, kind);
        let slack = slack.map_or(i64::MAX, |slack| slack - offered.guaranteed - offered.burst);
        let guaranteed = match stage {
            Stage::Guarantees => {
                let claim = self.roles.claimable(role, kind) - offered.guaranteed;
                whole(amount.min(claim).min(slack).max(0))
            }
            Stage::Rest => 0,
        };
        let rest = amount - guaranteed;
        let surplus = self
            .surplus_for(role, kind, stage)
            .saturating_sub(offered.burst);
        let part = share.map_or(i64::MAX, |share| share.part(rest));
        let burst = whole(rest.min(slack - guaranteed).min(surplus).min(part).max(0));
        offered.guaranteed += guaranteed;
        offered.burst += burst;
        offered.of += amount;
        // An exhausted kind blocks the offer, whatever remains of the later kinds.
        let gives_nothing = guaranteed + burst == 0;
        if burst < rest && (gives_nothing || !composed.gives_nothing) {
            composed.gives_nothing = gives_nothing;
            composed.reduction = Some(match share {
                _ if slack - guaranteed <= surplus.min(part) => Reduction::Limit(kind),
                Some(share) if part < surplus => share.reduction(),
                _ => Reduction::Headroom(kind),
            });
        }
        guaranteed + burst
    }

    /// The amount of a kind that a role may have beyond its claim. While the surplus is large enough for an offer of
    /// its own, the guarantees that the role takes from roles above it do not reduce this amount: the free and the
    /// required amount shrink together.
    fn surplus_for(&self, role: RoleKey, kind: Kind, stage: Stage) -> i64 {
        let surplus = self.surplus(kind);
        let shared =
            stage == Stage::Rest && surplus > 0 && surplus < i64::MAX && !self.is_surplus_starved();
        if shared {
            surplus.saturating_add(self.roles.creditable(role, kind))
        } else {
            surplus
        }
    }

    /// The part of ports and similar resources for an offer. They follow cpus and memory: an offer reduced to a part
    /// of both gets the larger part of them, so that the next offer finds some too.
    fn part_of(&self, items: &Items, offered: &[OfferedAmount]) -> Option<Items> {
        let with = offered
            .iter()
            .filter(|offered| offered.kind == self.cpus || offered.kind == self.mem);
        let largest = with.max_by(|a, b| {
            let (left, right) = (a.guaranteed + a.burst, b.guaranteed + b.burst);
            (i128::from(left) * i128::from(b.of)).cmp(&(i128::from(right) * i128::from(a.of)))
        });
        let Some(largest) = largest.filter(|_| self.options.share_items) else {
            return Some(items.clone());
        };
        let (given, of) = (
            i128::from(largest.guaranteed + largest.burst),
            i128::from(largest.of),
        );
        if given == of {
            return Some(items.clone());
        }
        if given == 0 {
            return None;
        }
        let count = i128::from(items.quantity() / 1000);
        let part = (count * given + of - 1) / of;
        Some(first_of(items, u64::try_from(part).unwrap_or(u64::MAX)))
    }

    /// Whether filters compare ports and similar resources by their number: when shares of them are offered, an offer
    /// holds arbitrary members.
    pub(crate) fn counts_items(&self) -> bool {
        self.roles.quotas > 0 && self.options.share_items
    }

    /// Whether an offer meets the minimum.
    pub(crate) fn is_allocatable(&self, slot: SlotKey, offer: &Bundle) -> bool {
        let minimum = self.slots[slot].minimum.as_deref().unwrap_or(&self.minimum);
        !offer.is_empty() && minimum.is_met(&self.classes, |kind| self.quantity(offer, kind))
    }

    /// The amount of a kind in a bundle: ranges and sets count by members, a shared volume counts once.
    pub(crate) fn quantity(&self, bundle: &Bundle, kind: Kind) -> i64 {
        let scalars = bundle.scalars.iter().map(|(class, amount)| {
            let class = &self.classes[*class];
            match (class.kind == kind, class.shared) {
                (false, _) => 0,
                (true, true) => class.unit,
                (true, false) => *amount,
            }
        });
        let items = bundle.items.iter().map(|(class, items)| {
            if self.classes[*class].kind == kind {
                items.quantity()
            } else {
                0
            }
        });
        scalars.sum::<i64>() + items.sum::<i64>()
    }

    /// The reason why the framework cannot get offers of the agent, if any.
    pub(crate) fn mismatch(&self, agent: AgentKey, slot: SlotKey) -> Option<Mismatch> {
        let slot = &self.slots[slot];
        let capabilities = self.frameworks[slot.framework].capabilities;
        if slot
            .excluded
            .as_ref()
            .is_some_and(|excluded| excluded.contains(agent))
        {
            return Some(Mismatch::Constraint);
        }
        self.lacks_capability(agent, capabilities, slot.is_nested)
    }

    /// The missing capability that excludes frameworks with these capabilities from an agent, if any.
    pub(crate) fn lacks_capability(
        &self,
        agent: AgentKey,
        capabilities: FrameworkCapabilities,
        is_nested: bool,
    ) -> Option<Mismatch> {
        let entry = &self.agents[agent];
        if entry.has_gpus && self.options.filter_gpu_resources && !capabilities.gpu_resources {
            Some(Mismatch::Gpus)
        } else if entry.is_remote && !capabilities.region_aware {
            Some(Mismatch::Region)
        } else if capabilities.multi_role && !entry.facts.capabilities.multi_role {
            Some(Mismatch::MultiRole)
        } else if is_nested && !entry.facts.capabilities.hierarchical_role {
            Some(Mismatch::HierarchicalRole)
        } else {
            None
        }
    }
}

/// The reason why a framework never gets offers of an agent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mismatch {
    Constraint,
    Gpus,
    Region,
    MultiRole,
    HierarchicalRole,
}

/// The first members, in order.
fn first_of(items: &Items, count: u64) -> Items {
    match items {
        Items::Ranges(ranges) => {
            let mut left = count;
            let mut kept = Vec::new();
            for range in ranges.iter() {
                if left == 0 {
                    break;
                }
                let size = range.count().min(left);
                left -= size;
                let end = range.begin().saturating_add(size - 1);
                kept.extend(Range::new(range.begin(), end));
            }
            Items::Ranges(Ranges::new(kept))
        }
        Items::Set(set) => {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            Items::Set(set.iter().take(count).collect::<ItemSet>())
        }
    }
}
