//! The allocator's state and its construction.
//!
//! `maintenance` and `recovery` know this file, and this file knows them: each has a part of the state, and the calls
//! of [`Allocator`] on that part. `maintenance` and `agents` know each other as well: an agent contains its
//! maintenance.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use meseta_resources::{AgentId, FrameworkId, Moment, ResourceName, Role};

use crate::agents::{Agent, AgentKey};
use crate::bits::Bits;
use crate::bundle::ClassKey;
use crate::class::Classes;
use crate::error::Error;
use crate::filter_index::FilterIndex;
use crate::framework::{Framework, FrameworkKey, Minimum, Slot};
use crate::profile::Profiles;
use crate::recovery::Recovery;
use crate::rng::Rng;
use crate::roles::{RoleKey, RoleTree, SlotKey};
use crate::slab::{KeyMap, Slab};
use crate::sorter::{Kind, Sorter};
use crate::spec::Options;

/// The number of levels of a role; each costs a little on every allocation.
pub(crate) const ROLE_LEVELS_MAX: usize = 32;
/// With more roles, an index finds the framework's slot in a role; below, a linear search is faster.
const SLOTS_SEARCHED_MAX: usize = 16;
/// The longest life of a filter: 365 days.
pub(crate) const REFUSE_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The allocator; see the crate. A clone is an independent allocator in the same state.
#[derive(Clone, Debug)]
pub struct Allocator {
    pub(crate) options: Options,
    pub(crate) classes: Classes,
    pub(crate) roles: RoleTree,
    pub(crate) sorter: Sorter,
    pub(crate) agents: Slab<Agent>,
    pub(crate) agent_keys: KeyMap<AgentId>,
    pub(crate) frameworks: Slab<Framework>,
    pub(crate) framework_keys: KeyMap<FrameworkId>,
    pub(crate) slots: Slab<Slot>,
    pub(crate) filters: FilterIndex,
    pub(crate) minimum: Minimum,
    pub(crate) profiles: Profiles,
    /// The number of slots with a minimum of their own.
    pub(crate) minimum_overrides: usize,
    /// The number of slots with offer constraints.
    pub(crate) constrained: usize,
    pub(crate) gpus: Kind,
    pub(crate) cpus: Kind,
    pub(crate) mem: Kind,
    /// The non-revocable resources of all agents, by kind; below, the statically reserved part of them.
    pub(crate) capacity: Vec<i64>,
    pub(crate) static_capacity: Vec<i64>,
    /// The free amounts on offerable agents, unreserved and not revocable, by kind.
    pub(crate) headroom: Vec<i64>,
    /// Agents that may have more to offer.
    pub(crate) dirty: Bits,
    pub(crate) all_dirty: bool,
    /// Agents with resources declined since the last tick.
    pub(crate) deferred: Bits,
    /// Agents with resources held back for a quota.
    pub(crate) held_back: Bits,
    /// Agents that are scheduled for maintenance.
    pub(crate) maintained: Bits,
    /// Scheduled agents whose holders still have to get an inverse offer.
    pub(crate) inverse_due: Bits,
    /// The agent at which the next round of inverse offers begins.
    pub(crate) inverse_next: AgentKey,
    /// Whether resources were returned or a quota changed since the last cycle.
    pub(crate) relaxed: bool,
    /// Shared volumes offered in the running cycle.
    pub(crate) offered_shared: Vec<(AgentKey, ClassKey)>,
    pub(crate) whitelist: Option<BTreeSet<Arc<str>>>,
    pub(crate) recovery: Option<Recovery>,
    pub(crate) rng: Rng,
    pub(crate) cycles: u64,
    /// Buffers of the accounting.
    pub(crate) changes: Vec<(Kind, i64)>,
    pub(crate) regular_changes: Vec<(Kind, i64)>,
}

impl Allocator {
    #[must_use]
    pub fn new(options: Options) -> Self {
        let mut classes = Classes::default();
        let gpus = classes.kind(&ResourceName::gpus());
        let cpus = classes.kind(&ResourceName::cpus());
        let mem = classes.kind(&ResourceName::mem());
        let minimum = Minimum::interned(&mut classes, &options.min_allocatable);
        let mut sorter = Sorter::new();
        for name in &options.fairness_excluded {
            let kind = classes.kind(name);
            sorter.set_excluded(kind, true);
        }
        classes.keep_kinds();
        Self {
            rng: Rng::new(options.seed),
            options,
            classes,
            roles: RoleTree::default(),
            sorter,
            agents: Slab::default(),
            agent_keys: KeyMap::default(),
            frameworks: Slab::default(),
            framework_keys: KeyMap::default(),
            slots: Slab::default(),
            filters: FilterIndex::default(),
            minimum,
            profiles: Profiles::default(),
            minimum_overrides: 0,
            constrained: 0,
            gpus,
            cpus,
            mem,
            capacity: Vec::new(),
            static_capacity: Vec::new(),
            headroom: Vec::new(),
            dirty: Bits::default(),
            all_dirty: false,
            deferred: Bits::default(),
            held_back: Bits::default(),
            maintained: Bits::default(),
            inverse_due: Bits::default(),
            inverse_next: 0,
            relaxed: false,
            offered_shared: Vec::new(),
            whitelist: None,
            recovery: None,
            cycles: 0,
            changes: Vec::new(),
            regular_changes: Vec::new(),
        }
    }

    #[must_use]
    pub const fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn agent_key(&self, agent: &AgentId) -> Result<AgentKey, Error> {
        let key = self.agent_keys.get(agent).copied();
        key.ok_or_else(|| Error::UnknownAgent(agent.clone()))
    }

    /// Finds a framework that was added. A framework known only from agents is unknown here.
    pub(crate) fn framework_key(&self, framework: &FrameworkId) -> Result<FrameworkKey, Error> {
        let key = self.framework_keys.get(framework).copied();
        key.filter(|key| self.frameworks[*key].added)
            .ok_or_else(|| Error::UnknownFramework(framework.clone()))
    }

    pub(crate) fn slot_of(&self, framework: FrameworkKey, role: RoleKey) -> Option<SlotKey> {
        let framework = &self.frameworks[framework];
        // For the few roles of most frameworks, a linear search is faster.
        if framework.slots.len() <= SLOTS_SEARCHED_MAX {
            let mut slots = framework.slots.iter().copied();
            return slots.find(|slot| self.slots[*slot].role == role);
        }
        framework.slot_by_role.get(&role).copied()
    }

    /// Finds the framework's slot by the role's name.
    pub(crate) fn slot_of_name(&self, framework: FrameworkKey, role: &Role) -> Option<SlotKey> {
        let slots = &self.frameworks[framework].slots;
        // The same as in `slot_of`.
        if slots.len() <= SLOTS_SEARCHED_MAX {
            let mut slots = slots.iter().copied();
            return slots.find(|slot| self.roles[self.slots[*slot].role].role == *role);
        }
        self.slot_of(framework, self.roles.find(role)?)
    }

    /// The end of a filter set now. A filter lasts at least until the next tick is over.
    pub(crate) fn filter_end(&self, now: Moment, refuse: Duration) -> Moment {
        now + refuse.min(REFUSE_MAX).max(self.options.allocation_interval)
    }

    /// Checks that the allocator accepts a role.
    ///
    /// # Errors
    /// If the role has too many levels.
    pub fn check_role(role: &Role) -> Result<(), Error> {
        let depth = role.components().count();
        if depth > ROLE_LEVELS_MAX {
            return Err(Error::RoleTooDeep {
                role: role.clone(),
                depth,
                max: ROLE_LEVELS_MAX,
            });
        }
        Ok(())
    }
}
