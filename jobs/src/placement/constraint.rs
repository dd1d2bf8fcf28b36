//! The rules that an agent meets or not, independently of placed tasks.

use std::collections::BTreeMap;

use super::{Offer, Placed, Why};
use crate::spec::{Constraint, JobSpec, Rule};

/// The attribute that has the region of an agent.
const REGION: &str = "@region";

/// An agent, from the view of constraints.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    agent_id: &'a str,
    hostname: &'a str,
    attributes: &'a BTreeMap<String, String>,
}

impl<'a> From<&'a Offer> for Place<'a> {
    fn from(offer: &'a Offer) -> Self {
        Self {
            agent_id: &offer.agent_id,
            hostname: &offer.hostname,
            attributes: &offer.attributes,
        }
    }
}

impl<'a> From<&'a Placed> for Place<'a> {
    fn from(placed: &'a Placed) -> Self {
        Self {
            agent_id: &placed.agent_id,
            hostname: &placed.hostname,
            attributes: &placed.attributes,
        }
    }
}

impl<'a> Place<'a> {
    /// Returns the value of an attribute, or of a built-in one.
    #[must_use]
    pub fn value(self, attribute: &str) -> Option<&'a str> {
        match attribute {
            "@hostname" => Some(self.hostname),
            "@agent_id" => Some(self.agent_id),
            name => self.attributes.get(name).map(String::as_str),
        }
    }
}

/// The role and the rules of a job.
#[derive(Debug)]
pub(super) struct Rules<'a> {
    role: &'a str,
    /// Whether a rule names regions; otherwise the tasks stay in the master's region.
    names_region: bool,
    constraints: &'a [Constraint],
}

impl<'a> Rules<'a> {
    pub(super) fn new(spec: &'a JobSpec) -> Self {
        Self {
            role: &spec.role,
            names_region: spec.constraints.iter().any(|one| one.attribute == REGION),
            constraints: &spec.constraints,
        }
    }

    /// # Errors
    /// The first rule that the agent of the offer does not meet.
    pub(super) fn check(&self, offer: &Offer) -> Result<(), Why> {
        if !offer.role.is_empty() && offer.role != self.role {
            return Err(Why::OtherRole {
                offered: offer.role.clone(),
                needed: self.role.to_owned(),
            });
        }
        if offer.is_remote && !self.names_region {
            return Err(Why::OtherRegion {
                region: offer.attributes.get(REGION).cloned().unwrap_or_default(),
            });
        }
        for constraint in self.constraints {
            let value = Place::from(offer).value(&constraint.attribute);
            if !is_met(&constraint.rule, value) {
                return Err(Why::Constraint {
                    constraint: constraint.clone(),
                    value: value.map(str::to_owned),
                });
            }
        }
        Ok(())
    }
}

fn is_met(rule: &Rule, value: Option<&str>) -> bool {
    match (rule, value) {
        (Rule::Equals(expected), Some(value)) => value == expected,
        (Rule::NotEquals(other), value) => value != Some(other.as_str()),
        (Rule::In(values), Some(value)) => values.iter().any(|one| one == value),
        (Rule::Matches(pattern), Some(value)) => pattern.is_match(value),
        (Rule::Exists | Rule::Distinct(_), value) => value.is_some(),
        (Rule::NotExists, value) => value.is_none(),
        (Rule::Spread, _) => true,
        (Rule::Equals(_) | Rule::In(_) | Rule::Matches(_), None) => false,
    }
}
