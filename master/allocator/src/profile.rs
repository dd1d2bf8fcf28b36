//! Profiles: the minimum and the capabilities that exclude a framework from an agent, whatever quotas and filters
//! say.
//!
//! Most slots share a few profiles, so a cycle checks each profile once for an agent and then skips all roles with
//! unsuited profiles. Invariant: a profile that is unsuited now stays unsuited while the agent's free resources
//! shrink; a role with an unknown profile is never skipped.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Allocator;
use crate::agents::AgentKey;
use crate::framework::Minimum;
use crate::roles::{RoleKey, SlotKey};
use crate::slab::{Key, Slab, at};
use crate::spec::FrameworkCapabilities;

pub(crate) type ProfileKey = Key;

/// The profile of a sorter node whose frameworks changed since the last check.
pub(crate) const UNKNOWN: ProfileKey = Key::MAX;
/// The profile of a sorter node whose frameworks have different profiles, or constraints.
const DIFFERENT: ProfileKey = Key::MAX - 1;

/// The number of a role's frameworks compared to find out whether all have one profile.
const COMPARED_MAX: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Profile {
    /// The framework's own minimum, if it has one.
    minimum: Option<Arc<Minimum>>,
    /// The capabilities that exclude agents.
    capabilities: FrameworkCapabilities,
    is_nested: bool,
}

/// The profiles in use, without duplicates.
#[derive(Clone, Debug, Default)]
pub(crate) struct Profiles {
    entries: Slab<(Arc<Profile>, usize)>,
    keys: BTreeMap<Arc<Profile>, ProfileKey>,
}

impl Profiles {
    fn acquire(&mut self, profile: Profile) -> ProfileKey {
        if let Some(key) = self.keys.get(&profile) {
            self.entries[*key].1 += 1;
            return *key;
        }
        let profile = Arc::new(profile);
        let key = self.entries.insert((profile.clone(), 1));
        self.keys.insert(profile, key);
        key
    }

    fn release(&mut self, key: ProfileKey) {
        let entry = &mut self.entries[key];
        entry.1 -= 1;
        if entry.1 == 0
            && let Some((profile, _)) = self.entries.remove(key)
        {
            self.keys.remove(&profile);
        }
    }
}

/// The profiles unsuited for the visited agent, filled on demand.
#[derive(Debug, Default)]
pub(crate) struct Suitability {
    visit: u32,
    /// By profile: the visit of the last check, and its result.
    known: Vec<(u32, bool)>,
}

impl Suitability {
    /// Starts the visit of another agent.
    pub(crate) fn start(&mut self) {
        self.visit += 1;
    }

    #[inline]
    pub(crate) fn is_unsuited(&mut self, profile: ProfileKey, look: impl FnOnce() -> bool) -> bool {
        if profile >= DIFFERENT {
            return false;
        }
        if self.known.len() <= at(profile) {
            self.known.resize(at(profile) + 1, (0, false));
        }
        let (visit, unsuited) = &mut self.known[at(profile)];
        if *visit != self.visit {
            (*visit, *unsuited) = (self.visit, look());
        }
        *unsuited
    }
}

impl Allocator {
    /// Whether no framework with the profile can use the free resources of the agent.
    pub(crate) fn is_unsuited(&self, agent: AgentKey, profile: ProfileKey) -> bool {
        let (profile, free) = (&self.profiles.entries[profile].0, &self.agents[agent].free);
        let minimum = profile.minimum.as_deref().unwrap_or(&self.minimum);
        self.lacks_capability(agent, profile.capabilities, profile.is_nested)
            .is_some()
            || !minimum.is_met(&self.classes, |kind| self.quantity(free, kind))
    }

    /// Finds the profile of a slot whose minimum, constraints or framework may have changed.
    pub(crate) fn update_profile(&mut self, slot: SlotKey) {
        let entry = &self.slots[slot];
        let capabilities = self.frameworks[entry.framework].capabilities;
        let profile = Profile {
            minimum: entry.minimum.clone(),
            capabilities: FrameworkCapabilities {
                gpu_resources: capabilities.gpu_resources,
                multi_role: capabilities.multi_role,
                region_aware: capabilities.region_aware,
                ..FrameworkCapabilities::default()
            },
            is_nested: entry.is_nested,
        };
        let (before, role) = (entry.profile, entry.role);
        // The new profile first, so that an equal one keeps its key.
        let now = self.profiles.acquire(profile);
        self.slots[slot].profile = Some(now);
        if let Some(before) = before {
            self.profiles.release(before);
        }
        self.forget_profile_of(role);
    }

    pub(crate) fn drop_profile(&mut self, profile: Option<ProfileKey>) {
        if let Some(profile) = profile {
            self.profiles.release(profile);
        }
    }

    /// Marks the profile of a role as unknown after a change of its frameworks.
    pub(crate) fn forget_profile_of(&mut self, role: RoleKey) {
        let own = self.roles[role].own;
        for node in [own]
            .into_iter()
            .chain(self.roles.path(role).map(|role| self.roles[role].node))
        {
            if node != Key::MAX {
                self.sorter.set_profile(node, UNKNOWN);
            }
        }
    }

    /// Records the common profile of a role's frameworks, if it is unknown.
    pub(crate) fn note_profile_of(&mut self, role: RoleKey) {
        let entry = &self.roles[role];
        let (own, node) = (entry.own, entry.node);
        if self.sorter.profile(own) != UNKNOWN {
            return;
        }
        let profile_of = |local: Key| {
            let slot = &self.slots[entry.slots[local]];
            slot.profile.filter(|_| slot.excluded.is_none())
        };
        let mut active = entry.active.iter();
        let first = active.next().and_then(profile_of);
        let are_alike = active
            .by_ref()
            .take(COMPARED_MAX)
            .all(|local| profile_of(local) == first);
        let profile = first.filter(|_| are_alike && active.next().is_none());
        let profile = profile.unwrap_or(DIFFERENT);
        self.sorter.set_profile(own, profile);
        if self.sorter.order(node).len() == 1 {
            self.sorter.set_profile(node, profile);
        }
    }
}
