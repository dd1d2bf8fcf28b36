//! An index of filters: the owners of filters, their number, and the next expiry on each agent.
//!
//! The agents store the filters themselves ([`crate::filters`]). Invariant: the count of a framework is the number of
//! filters of all its keys that are not retired.

use std::collections::BTreeSet;
use std::time::Duration;

use meseta_resources::Moment;

use crate::framework::FrameworkKey;
use crate::roles::{RoleKey, SlotKey};
use crate::slab::{Key, KeyMap, Slab};

/// The key shared by a slot's filters until they are cleared.
pub(crate) type FilterKey = Key;

/// The number of agents listed for one key; for a key with filters on more agents, all agents are scanned.
const AGENTS_LISTED_MAX: usize = 16;
/// The number of filters of one framework in all roles on all agents that last as long as requested. A framework that
/// declines all of 10,000 agents in 100 roles has this many; one with more has thousands of roles.
pub(crate) const ENTRIES_OF_FRAMEWORK_MAX: usize = 1_000_000;
/// The longest life of a filter beyond this number. It equals the default of a framework that names no duration, so a
/// framework with that many filters stores no more than one that uses the default.
const REFUSE_ABOVE_MAX: Duration = Duration::from_secs(5);

/// The framework and role behind a filter key.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    /// `None` after the filters were cleared.
    pub(crate) slot: Option<SlotKey>,
    framework: FrameworkKey,
    pub(crate) role: RoleKey,
    pub(crate) local: Key,
    entries: usize,
    /// Agents with filters of the key, now or earlier, as far as they are listed.
    agents: Vec<Key>,
}

impl Owner {
    fn list(&mut self, agent: Key) {
        if self.agents.len() <= AGENTS_LISTED_MAX && !self.agents.contains(&agent) {
            self.agents.push(agent);
        }
    }
}

/// The owners of filters, and the expiry of the filters of each agent.
#[derive(Clone, Debug, Default)]
pub(crate) struct FilterIndex {
    owners: Slab<Owner>,
    /// The number of uncleared filters of each framework that has any.
    pub(crate) of_frameworks: KeyMap<FrameworkKey, usize>,
    expiries: BTreeSet<(Moment, Key)>,
}

impl FilterIndex {
    pub(crate) fn new_owner(
        &mut self,
        slot: SlotKey,
        framework: FrameworkKey,
        role: RoleKey,
        local: Key,
    ) -> FilterKey {
        self.owners.insert(Owner {
            slot: Some(slot),
            framework,
            role,
            local,
            entries: 0,
            agents: Vec::new(),
        })
    }

    /// The actual life of a filter for a requested duration.
    pub(crate) fn refuse_time(&self, framework: FrameworkKey, refuse: Duration) -> Duration {
        match self.of_frameworks.get(&framework) {
            Some(entries) if *entries >= ENTRIES_OF_FRAMEWORK_MAX => refuse.min(REFUSE_ABOVE_MAX),
            _ => refuse,
        }
    }

    /// Records a new filter of the key on an agent.
    pub(crate) fn add_entry(&mut self, key: FilterKey, agent: Key) {
        let owner = &mut self.owners[key];
        owner.entries += 1;
        owner.list(agent);
        *self.of_frameworks.entry(owner.framework).or_default() += 1;
    }

    fn remove_of_framework(&mut self, framework: FrameworkKey, number: usize) {
        let left = self.of_frameworks.get_mut(&framework).map(|entries| {
            *entries = entries.saturating_sub(number);
            *entries
        });
        if left == Some(0) {
            self.of_frameworks.remove(&framework);
        }
    }

    pub(crate) fn owner(&self, key: FilterKey) -> &Owner {
        &self.owners[key]
    }

    /// The number of filters of a key on all agents.
    pub(crate) fn count(&self, key: FilterKey) -> usize {
        self.owners[key].entries
    }

    /// The agents with filters of a key; `None` if they are many.
    pub(crate) fn agents(&self, key: FilterKey) -> Option<&[Key]> {
        let agents = self.owners[key].agents.as_slice();
        (agents.len() <= AGENTS_LISTED_MAX).then_some(agents)
    }

    /// Retires the key: its entries are dead from now on.
    pub(crate) fn retire(&mut self, key: FilterKey) {
        let owner = &mut self.owners[key];
        owner.slot = None;
        let (framework, entries) = (owner.framework, owner.entries);
        self.remove_of_framework(framework, entries);
        self.drop_if_done(key);
    }

    /// Records that a filter of the key was dropped.
    pub(crate) fn release(&mut self, key: FilterKey) {
        let owner = &mut self.owners[key];
        owner.entries -= 1;
        if owner.slot.is_some() {
            let framework = owner.framework;
            self.remove_of_framework(framework, 1);
        }
        self.drop_if_done(key);
    }

    fn drop_if_done(&mut self, key: FilterKey) {
        if self.owners[key].slot.is_none() && self.owners[key].entries == 0 {
            self.owners.remove(key);
        }
    }

    /// The time at which the next filter expires.
    pub(crate) fn next_expiry(&self) -> Option<Moment> {
        self.expiries.first().map(|entry| entry.0)
    }

    /// Removes and returns an agent with a filter that expired before `now`. The caller drops the agent's expired
    /// filters.
    pub(crate) fn pop_expired(&mut self, now: Moment) -> Option<Key> {
        let first = *self.expiries.first()?;
        (first.0 < now).then(|| {
            self.expiries.remove(&first);
            first.1
        })
    }

    /// Changes the time of an agent's next filter expiry.
    pub(crate) fn reschedule(&mut self, agent: Key, before: Moment, after: Moment) {
        if before != after {
            self.expiries.remove(&(before, agent));
            if after != Moment::NEVER {
                self.expiries.insert((after, agent));
            }
        }
    }
}
