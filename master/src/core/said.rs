//! What frameworks say of themselves, in bytes, by principal.
//!
//! Invariant: no principal has more than is left for the others, so that one of them cannot use up what all may say;
//! frameworks without a principal count as those of one, and those that agents tell of as nobody's.

use std::collections::BTreeMap;

use super::framework::{Framework, Terms};

/// Bytes of terms.
#[derive(Debug, Default)]
pub(super) struct Said {
    all: usize,
    by_principal: BTreeMap<String, usize>,
    /// Of frameworks that have not subscribed themselves.
    told_by_agents: usize,
}

fn principal(terms: &Terms) -> &str {
    terms.info.principal.as_deref().unwrap_or_default()
}

impl Said {
    pub(super) fn all(&self) -> usize {
        self.all
    }

    /// Whether terms may take the place of what is known of their framework, if there is one. Saying less is
    /// always allowed.
    pub(super) fn check(
        &self,
        framework: Option<&Framework>,
        terms: &Terms,
        max: usize,
    ) -> Result<(), String> {
        let bytes = terms.bytes();
        let before = framework.map_or(0, |framework| framework.terms.bytes());
        if bytes <= before {
            return Ok(());
        }
        let all = (self.all + bytes).saturating_sub(before);
        if all > max {
            return Err(format!(
                "All frameworks together would take {all} bytes for what they say of themselves; at \
                 most {max} are kept: raise the master's --memory_budget"
            ));
        }
        let own = self.by_principal.get(principal(terms));
        let own_before = framework.filter(|framework| framework.told_by.is_none());
        let own =
            (own.map_or(0, |own| *own) + bytes).saturating_sub(own_before.map_or(0, |_| before));
        let left = max - all;
        if own > left && own > bytes {
            return Err(format!(
                "The frameworks of the principal would take {own} bytes for what they say of \
                 themselves, which leaves {left} to all others: raise the master's --memory_budget"
            ));
        }
        Ok(())
    }

    pub(super) fn add(&mut self, framework: &Framework) {
        let bytes = framework.terms.bytes();
        self.all += bytes;
        if framework.told_by.is_some() {
            self.told_by_agents += bytes;
            return;
        }
        let name = principal(&framework.terms).to_owned();
        *self.by_principal.entry(name).or_default() += bytes;
    }

    pub(super) fn remove(&mut self, framework: &Framework) {
        let bytes = framework.terms.bytes();
        self.all = self.all.saturating_sub(bytes);
        if framework.told_by.is_some() {
            self.told_by_agents = self.told_by_agents.saturating_sub(bytes);
            return;
        }
        let name = principal(&framework.terms);
        if let Some(own) = self.by_principal.get_mut(name) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                self.by_principal.remove(name);
            }
        }
    }

    /// The sum of the parts.
    #[cfg(test)]
    pub(super) fn of_parts(&self) -> usize {
        self.by_principal.values().sum::<usize>() + self.told_by_agents
    }
}
