//! What of an agent's free resources a framework may be offered now: capabilities, reservations, quota
//! and headroom in one pass.
//!
//! Entered through [`Allocator::compose`], by the cycle and by explain alike, so that what is explained
//! is what happens. Nothing is changed here.

use meseta_resources::{ItemSet, Range, Ranges};

use crate::Allocator;
use crate::agents::AgentKey;
use crate::bundle::{Bundle, ClassKey, Items};
use crate::class::{Class, Classes};
use crate::filters::Visibility;
use crate::framework::{Framework, Slot};
use crate::roles::{RoleKey, RoleTree, SlotKey};
use crate::slab::Slab;
use crate::sorter::Kind;

/// Of the two passes of a cycle.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Up to the guarantees, and what fits beside it.
    Guarantees,
    /// Everything that no guarantee needs.
    Rest,
}

/// What came of composing an offer.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Composed {
    /// A limit or the headroom made it smaller.
    pub(crate) cut: Option<Cut>,
    /// Something of it counts toward a guarantee.
    pub(crate) serves_guarantee: bool,
}

/// What made an offer smaller.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Limit(Kind),
    Headroom(Kind),
    /// The role's legacy quota gives it nothing more.
    Legacy,
}

/// What one offer has taken of a kind so far.
#[derive(Copy, Clone, Debug)]
struct Taken {
    kind: Kind,
    guaranteed: i64,
    burst: i64,
    /// Free, of what is counted.
    of: i64,
}

/// Lets filters ask what a framework could be offered.
pub(crate) struct Sight<'a> {
    pub(crate) classes: &'a Classes,
    pub(crate) roles: &'a RoleTree,
    pub(crate) slots: &'a Slab<Slot>,
    pub(crate) frameworks: &'a Slab<Framework>,
}

impl Visibility for Sight<'_> {
    fn sees(&self, slot: SlotKey, class: ClassKey) -> bool {
        let slot = &self.slots[slot];
        let framework = &self.frameworks[slot.framework];
        sees(self.roles, framework, slot.role, &self.classes[class])
    }
}

#[inline]
fn sees(roles: &RoleTree, framework: &Framework, role: RoleKey, class: &Class) -> bool {
    if class.regular && !class.shared {
        return true;
    }
    let capabilities = framework.capabilities;
    (!class.shared || capabilities.shared_resources)
        && (!class.revocable || capabilities.revocable_resources)
        && (!class.refined || capabilities.reservation_refinement)
        && class
            .owner
            .is_none_or(|owner| roles.is_in_subtree(role, owner))
}

impl Allocator {
    /// Fills `offer` with what the slot could be offered on the agent; see the module.
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
        let mut composed = Composed::default();
        let mut taken: Vec<Taken> = Vec::new();
        for (key, amount) in &entry.free.scalars {
            let class = &self.classes[*key];
            if !sees(&self.roles, framework, slot.role, class)
                || (class.shared && self.offered_shared.contains(&(agent, *key)))
            {
                continue;
            }
            if !class.regular || !quota {
                offer.scalars.push((*key, *amount));
                continue;
            }
            if closed {
                composed.cut = Some(Cut::Legacy);
                continue;
            }
            let given = self.ration(slot.role, class, *amount, stage, &mut taken, &mut composed);
            if given > 0 {
                offer.scalars.push((*key, given));
            }
        }
        composed.serves_guarantee = taken.iter().any(|taken| taken.guaranteed > 0);
        for (key, items) in &entry.free.items {
            let class = &self.classes[*key];
            if !sees(&self.roles, framework, slot.role, class) {
                continue;
            }
            if !class.regular || !quota {
                offer.items.push((*key, items.clone()));
            } else if closed {
                composed.cut = Some(Cut::Legacy);
            } else if let Some(part) = self.part_of(items, &taken) {
                offer.items.push((*key, part));
            }
        }
        composed
    }

    /// How much of a regular scalar a role may have.
    fn ration(
        &self,
        role: RoleKey,
        class: &Class,
        amount: i64,
        stage: Stage,
        taken: &mut Vec<Taken>,
        composed: &mut Composed,
    ) -> i64 {
        let kind = class.kind;
        let at = taken
            .iter()
            .position(|taken| taken.kind == kind)
            .unwrap_or_else(|| {
                taken.push(Taken {
                    kind,
                    guaranteed: 0,
                    burst: 0,
                    of: 0,
                });
                taken.len() - 1
            });
        let taken = &mut taken[at];
        let whole = |amount: i64| amount - amount % class.unit;
        let slack = self.roles.slack(role, kind);
        let slack = slack.map_or(i64::MAX, |slack| slack - taken.guaranteed - taken.burst);
        let guaranteed = match stage {
            Stage::Guarantees => {
                let claim = self.roles.claim(role, kind) - taken.guaranteed;
                whole(amount.min(claim).min(slack).max(0))
            }
            Stage::Rest => 0,
        };
        let rest = amount - guaranteed;
        let surplus = self
            .surplus_for(role, kind, stage)
            .saturating_sub(taken.burst);
        let burst = whole(rest.min(slack - guaranteed).min(surplus).max(0));
        taken.guaranteed += guaranteed;
        taken.burst += burst;
        taken.of += amount;
        if burst < rest {
            let by_limit = slack - guaranteed <= surplus;
            composed.cut = Some(if by_limit {
                Cut::Limit(kind)
            } else {
                Cut::Headroom(kind)
            });
        }
        guaranteed + burst
    }

    /// What a role may have of a kind beyond its claim. As long as the surplus could make an offer of its
    /// own, what the role takes of the guarantees of roles above it does not diminish that: both what is
    /// free and what is kept back shrink.
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

    /// Ports and the like go with cpus and memory: an offer that was cut down to a part of both gets the
    /// larger part of them, so that the next one finds some too.
    fn part_of(&self, items: &Items, taken: &[Taken]) -> Option<Items> {
        let with = taken
            .iter()
            .filter(|taken| taken.kind == self.cpus || taken.kind == self.mem);
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

    /// Whether filters compare ports and the like by their number: where those are shared out, it is
    /// chance which ones an offer has.
    pub(crate) fn counts_items(&self) -> bool {
        self.roles.quotas > 0 && self.options.share_items
    }

    /// Whether an offer is worth making.
    pub(crate) fn is_allocatable(&self, slot: SlotKey, offer: &Bundle) -> bool {
        let minimum = self.slots[slot].minimum.as_ref().unwrap_or(&self.minimum);
        !offer.is_empty() && minimum.is_met(|kind| self.quantity(offer, kind))
    }

    /// How much of a kind there is, ranges and sets by their members, a shared volume once.
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

    /// Whether the framework may hear of the agent at all.
    pub(crate) fn mismatch(&self, agent: AgentKey, slot: SlotKey) -> Option<Mismatch> {
        let (entry, slot) = (&self.agents[agent], &self.slots[slot]);
        let capabilities = self.frameworks[slot.framework].capabilities;
        if slot
            .excluded
            .as_ref()
            .is_some_and(|excluded| excluded.contains(agent))
        {
            Some(Mismatch::Constraint)
        } else if entry.has_gpus && self.options.filter_gpu_resources && !capabilities.gpu_resources
        {
            Some(Mismatch::Gpus)
        } else if entry.is_remote && !capabilities.region_aware {
            Some(Mismatch::Region)
        } else if capabilities.multi_role && !entry.facts.capabilities.multi_role {
            Some(Mismatch::MultiRole)
        } else if slot.is_nested && !entry.facts.capabilities.hierarchical_role {
            Some(Mismatch::HierarchicalRole)
        } else {
            None
        }
    }
}

/// Why a framework never hears of an agent.
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
