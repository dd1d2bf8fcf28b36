//! A hash of all state that a call may change: equal before and after a failed call, and after an addition and its
//! removal.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use crate::Allocator;

impl Allocator {
    /// The hash; see the module. The hash does not depend on the order in which names first appeared, nor on the
    /// number of cycles.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.describe().hash(&mut hasher);
        hasher.finish()
    }

    /// The state as text, line by line in a fixed order, to find differences between two allocators.
    #[must_use]
    pub fn describe(&self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        lines.push(format!("total {}", self.total()));
        lines.push(format!("whitelist {:?}", self.whitelist));
        lines.push(format!("recovery {:?}", self.recovery));
        for role in self.roles() {
            lines.push(format!("role {role:?}"));
        }
        for (key, agent) in self.agents.iter() {
            let resources = |bundle| self.classes.resources(bundle, None);
            let id = &agent.id;
            lines.push(format!(
                "agent {id} {:?} active {} listed {} total {:?} free {:?}",
                agent.facts,
                agent.active,
                agent.whitelisted,
                resources(&agent.total),
                resources(&agent.free)
            ));
            lines.push(format!("agent {id} maintenance {:?}", agent.maintenance));
            lines.push(format!(
                "agent {id} dirty {} deferred {}",
                self.dirty.contains(key),
                self.deferred.contains(key)
            ));
            for holding in &agent.holdings {
                lines.push(format!(
                    "agent {id} held by {} {:?}",
                    self.name_of(holding.slot),
                    resources(&holding.resources)
                ));
            }
            for (slot, refused, expiry) in agent.filters.iter(&self.filters) {
                lines.push(format!(
                    "agent {id} refused by {} {:?} {expiry:?}",
                    self.name_of(slot),
                    resources(refused)
                ));
            }
        }
        for (_, framework) in self.frameworks.iter() {
            lines.push(format!(
                "framework {} {:?} active {} added {}",
                framework.id, framework.capabilities, framework.active, framework.added
            ));
            for key in &framework.slots {
                let slot = &self.slots[*key];
                lines.push(format!(
                    "slot {} subscribed {} suppressed {} minimum {:?} constraints {:?} share {} count {}",
                    self.name_of(*key),
                    slot.subscribed,
                    slot.suppressed,
                    slot.minimum,
                    slot.constraints,
                    self.sorter.share_of(slot.node),
                    self.sorter.count(slot.node)
                ));
            }
        }
        lines.sort_unstable();
        lines
    }

    fn name_of(&self, slot: crate::roles::SlotKey) -> String {
        let slot = &self.slots[slot];
        format!(
            "{} in {}",
            self.frameworks[slot.framework].id, self.roles[slot.role].role
        )
    }
}
