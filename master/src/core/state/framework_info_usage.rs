//! The number of frameworks and the memory taken by their infos and offer constraints, by principal.
//!
//! Invariant: no principal may use more frameworks or memory than remain for all others. Frameworks without a
//! principal count as those of one principal, and frameworks reported by agents as nobody's.

use std::collections::BTreeMap;

use meseta_proto::{Invalid, invalid};

use super::framework::{Framework, Terms};

/// The usage of one principal.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    frameworks: usize,
    bytes: usize,
}

/// The number of frameworks and the size of their infos, by principal.
#[derive(Debug, Default)]
pub(in crate::core) struct FrameworkInfoUsage {
    all: usize,
    by_principal: BTreeMap<String, Usage>,
    /// The number of frameworks that agents reported and that have not subscribed themselves.
    told_by_agents: usize,
}

fn principal(terms: &Terms) -> &str {
    terms.info.principal.as_deref().unwrap_or_default()
}

impl FrameworkInfoUsage {
    pub(in crate::core) fn all(&self) -> usize {
        self.all
    }

    /// Checks that new terms may replace those of the framework, if it exists. Shorter terms are always allowed.
    pub(in crate::core) fn check(
        &self,
        framework: Option<&Framework>,
        terms: &Terms,
        max: usize,
    ) -> Result<(), Invalid> {
        let bytes = terms.bytes();
        let before = framework.map_or(0, |framework| framework.terms.bytes());
        if bytes <= before {
            return Ok(());
        }
        let all = (self.all + bytes).saturating_sub(before);
        if all > max {
            return Err(invalid!(
                "The infos of all frameworks together would take {all} bytes; the limit is {max}: raise the master's --memory_budget"
            ));
        }
        let own = self.by_principal.get(principal(terms));
        let own_before = framework.filter(|framework| framework.told_by.is_none());
        let own = (own.map_or(0, |own| own.bytes) + bytes)
            .saturating_sub(own_before.map_or(0, |_| before));
        let left = max - all;
        if own > left && own > bytes {
            return Err(invalid!(
                "The infos of the principal's frameworks would take {own} bytes, which leaves {left} for all others: raise the master's --memory_budget"
            ));
        }
        Ok(())
    }

    /// Checks that one more framework fits the limits.
    pub(in crate::core) fn check_number(
        &self,
        terms: &Terms,
        known: usize,
        max: usize,
    ) -> Result<(), Invalid> {
        let left = max.saturating_sub(known + 1);
        if known >= max {
            return Err(invalid!(
                "This master has {max} frameworks and takes no more"
            ));
        }
        let own = self.by_principal.get(principal(terms));
        let own = own.map_or(1, |own| own.frameworks + 1);
        if own > left && own > 1 {
            return Err(invalid!(
                "The principal would have {own} frameworks, which leaves {left} for all others: tear some down"
            ));
        }
        Ok(())
    }

    pub(in crate::core) fn add(&mut self, framework: &Framework) {
        let bytes = framework.terms.bytes();
        self.all += bytes;
        if framework.told_by.is_some() {
            self.told_by_agents += bytes;
            return;
        }
        let name = principal(&framework.terms).to_owned();
        let own = self.by_principal.entry(name).or_default();
        own.frameworks += 1;
        own.bytes += bytes;
    }

    pub(in crate::core) fn remove(&mut self, framework: &Framework) {
        let bytes = framework.terms.bytes();
        self.all = self.all.saturating_sub(bytes);
        if framework.told_by.is_some() {
            self.told_by_agents = self.told_by_agents.saturating_sub(bytes);
            return;
        }
        let name = principal(&framework.terms);
        if let Some(own) = self.by_principal.get_mut(name) {
            own.frameworks = own.frameworks.saturating_sub(1);
            own.bytes = own.bytes.saturating_sub(bytes);
            if own.frameworks == 0 {
                self.by_principal.remove(name);
            }
        }
    }

    /// The sum of the parts.
    #[cfg(test)]
    pub(in crate::core) fn of_parts(&self) -> usize {
        let own = self.by_principal.values().map(|own| own.bytes);
        own.sum::<usize>() + self.told_by_agents
    }
}
