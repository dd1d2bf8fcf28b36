//! A framework's parsed offer constraints: the agents that it accepts, by role.
//!
//! Built outside the core where a call is parsed, because compiling patterns is slow. Invariants: a framework's
//! constraints and patterns are limited in number, because each is checked against every agent; a repeated pattern is
//! compiled once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use meseta_allocator::{Constraint, OfferConstraints, Pattern, Predicate, Selector};
use meseta_proto::mesos::v1::scheduler as message;
use meseta_proto::{Invalid, invalid};
use meseta_resources::Role;
use prost::Message as _;

/// The number of constraints of one framework, in all roles and groups.
const CONSTRAINTS_MAX: usize = 1_000;
/// The number of different patterns among them.
const PATTERNS_MAX: usize = 64;
/// The memory limit of all compiled patterns together, in bytes. A fixed limit, since patterns are compiled before
/// the check of other limits. Most patterns take less than a thousandth of it.
const PATTERNS_BYTES_MAX: usize = 16 << 20;
/// The number of tables checked for one agent, all constraints together: most patterns have one table.
const TABLES_MAX: usize = 2_048;

/// The constraints of one framework.
#[derive(Debug)]
pub struct Constraints {
    message: message::OfferConstraints,
    /// The compiled rules, or an error message for the framework.
    rules: Result<BTreeMap<Role, OfferConstraints>, Invalid>,
    patterns: Usage,
}

/// The number of different patterns, and their compiled size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    count: usize,
    bytes: usize,
}

impl Constraints {
    /// Compiles the patterns. Slow for large patterns.
    #[must_use]
    pub fn from_message(message: message::OfferConstraints) -> Self {
        let mut patterns = Patterns::within(PATTERNS_BYTES_MAX);
        let rules = rules(&message, &mut patterns);
        let patterns = Usage {
            count: patterns.compiled.len(),
            bytes: patterns.bytes,
        };
        Self {
            message,
            rules,
            patterns,
        }
    }

    /// The original message of the framework.
    #[must_use]
    pub fn message(&self) -> &message::OfferConstraints {
        &self.message
    }

    /// The rules by role, or the reason why they are invalid.
    pub(super) fn rules(&self) -> Result<&BTreeMap<Role, OfferConstraints>, Invalid> {
        self.rules.as_ref().map_err(Clone::clone)
    }

    /// The approximate memory taken by the constraints.
    #[must_use]
    pub(in crate::core) fn bytes(&self) -> usize {
        self.message.encoded_len() * 2 + self.patterns.bytes
    }
}

/// The patterns of a call, each compiled once.
#[derive(Debug)]
struct Patterns<'a> {
    compiled: HashMap<&'a str, Pattern>,
    tables: usize,
    bytes: usize,
    bytes_max: usize,
}

impl<'a> Patterns<'a> {
    fn within(bytes_max: usize) -> Self {
        Self {
            compiled: HashMap::new(),
            tables: 0,
            bytes: 0,
            bytes_max,
        }
    }

    /// Returns a pattern; compiles it if necessary.
    fn get(&mut self, text: &'a str) -> Result<Pattern, Invalid> {
        if let Some(known) = self.compiled.get(text).cloned() {
            return self.count_use(known);
        }
        if self.compiled.len() >= PATTERNS_MAX {
            return Err(invalid!(
                "Offer constraints contain more than {PATTERNS_MAX} different patterns: join them \
                 with '|'"
            ));
        }
        let pattern = Pattern::new(text).map_err(Invalid::from_error)?;
        self.bytes += pattern.bytes();
        if self.bytes > self.bytes_max {
            return Err(invalid!(
                "The patterns of offer constraints take more than {} bytes compiled: use simpler ones",
                self.bytes_max
            ));
        }
        let pattern = self.count_use(pattern)?;
        self.compiled.insert(text, pattern.clone());
        Ok(pattern)
    }

    /// Counts the tables of a pattern for each constraint that uses it.
    fn count_use(&mut self, pattern: Pattern) -> Result<Pattern, Invalid> {
        self.tables += pattern.tables();
        if self.tables > TABLES_MAX {
            return Err(invalid!(
                "The patterns of offer constraints have more than {TABLES_MAX} alternatives that may stand anywhere, in all \
                 constraints together: write '.*(a|b).*' in place of '.*a.*|.*b.*'"
            ));
        }
        Ok(pattern)
    }
}

fn rules<'a>(
    message: &'a message::OfferConstraints,
    patterns: &mut Patterns<'a>,
) -> Result<BTreeMap<Role, OfferConstraints>, Invalid> {
    let groups = message
        .role_constraints
        .values()
        .flat_map(|role| &role.groups);
    let number: usize = groups.map(|group| group.attribute_constraints.len()).sum();
    if number > CONSTRAINTS_MAX {
        return Err(invalid!(
            "Offer constraints consist of {number} attribute constraints; at most \
             {CONSTRAINTS_MAX} are taken: match several values with one pattern"
        ));
    }
    let mut rules = BTreeMap::new();
    for (role, constraints) in &message.role_constraints {
        let role = Role::new(role).map_err(Invalid::from_error)?;
        rules.insert(role, of_role(constraints, patterns)?);
    }
    Ok(rules)
}

fn of_role<'a>(
    constraints: &'a message::offer_constraints::RoleConstraints,
    patterns: &mut Patterns<'a>,
) -> Result<OfferConstraints, Invalid> {
    if constraints.groups.is_empty() {
        return Err(invalid!("RoleConstraints must contain at least one group"));
    }
    let mut groups = Vec::new();
    for group in &constraints.groups {
        if group.attribute_constraints.is_empty() {
            return Err(invalid!(
                "RoleConstraints group must contain at least one constraint"
            ));
        }
        let group: Result<Vec<_>, _> = group
            .attribute_constraints
            .iter()
            .map(|one| constraint(one, patterns))
            .collect();
        groups.push(group?);
    }
    Ok(OfferConstraints { groups })
}

fn constraint<'a>(
    constraint: &'a message::AttributeConstraint,
    patterns: &mut Patterns<'a>,
) -> Result<Constraint, Invalid> {
    use message::attribute_constraint::predicate::Predicate as Wire;
    use message::attribute_constraint::selector::{PseudoattributeType, Selector as WireSelector};
    let selector = match &constraint.selector.selector {
        Some(WireSelector::AttributeName(name)) => Selector::Attribute(name.as_str().into()),
        Some(WireSelector::PseudoattributeType(kind)) => {
            match PseudoattributeType::try_from(*kind) {
                Ok(PseudoattributeType::Hostname) => Selector::Hostname,
                Ok(PseudoattributeType::Region) => Selector::Region,
                Ok(PseudoattributeType::Zone) => Selector::Zone,
                Ok(PseudoattributeType::Unknown) | Err(_) => {
                    return Err(invalid!("Unknown pseudoattribute in an offer constraint"));
                }
            }
        }
        None => return Err(invalid!("An offer constraint must have a selector")),
    };
    let predicate = match &constraint.predicate.predicate {
        Some(Wire::Exists(_)) => Predicate::Exists,
        Some(Wire::NotExists(_)) => Predicate::NotExists,
        Some(Wire::TextEquals(text)) => Predicate::TextEquals(text.value.as_str().into()),
        Some(Wire::TextNotEquals(text)) => Predicate::TextNotEquals(text.value.as_str().into()),
        Some(Wire::TextMatches(text)) => Predicate::TextMatches(patterns.get(&text.regex)?),
        Some(Wire::TextNotMatches(text)) => Predicate::TextNotMatches(patterns.get(&text.regex)?),
        None => return Err(invalid!("An offer constraint must have a predicate")),
    };
    Ok(Constraint {
        selector,
        predicate,
    })
}

/// Compiles the constraints of a call, if it has any.
pub(in crate::core) fn understood(
    given: Option<message::OfferConstraints>,
) -> Option<Arc<Constraints>> {
    given.map(|message| Arc::new(Constraints::from_message(message)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::attribute_constraint::{Predicate as Of, Selector as By, predicate, selector};
    use message::offer_constraints::RoleConstraints;
    use message::offer_constraints::role_constraints::Group;

    fn matches(regex: &str) -> message::AttributeConstraint {
        let matches = predicate::TextMatches {
            regex: regex.to_owned(),
        };
        message::AttributeConstraint {
            selector: By {
                selector: Some(selector::Selector::AttributeName("rack".to_owned())),
            },
            predicate: Of {
                predicate: Some(predicate::Predicate::TextMatches(matches)),
            },
        }
    }

    fn from_constraints(constraints: impl Iterator<Item = String>) -> Constraints {
        let group = Group {
            attribute_constraints: constraints.map(|regex| matches(&regex)).collect(),
        };
        let role = RoleConstraints {
            groups: vec![group],
        };
        Constraints::from_message(message::OfferConstraints {
            role_constraints: BTreeMap::from([("dev".to_owned(), role)]),
        })
    }

    #[test]
    fn repeated_pattern_is_compiled_once() {
        let constraints = from_constraints((0..1_000).map(|number| format!("r{}", number % 2)));
        let rules = constraints.rules().unwrap();
        assert_eq!(rules["dev"].groups[0].len(), 1_000);
        assert_eq!(constraints.patterns.count, 2);
        assert!(constraints.bytes() < 200 * 1024);
    }

    #[test]
    fn refuses_excess_constraints_before_compiling() {
        let many = from_constraints((0..100_000).map(|number| format!("r{number}")));
        let error = many.rules().unwrap_err();
        assert!(
            error.as_str().contains("100000 attribute constraints"),
            "{error}"
        );
        assert_eq!(many.patterns, Usage::default(), "nothing was compiled");
        let patterns = from_constraints((0..=PATTERNS_MAX).map(|number| format!("r{number}")));
        let error = patterns.rules().unwrap_err();
        assert!(error.as_str().contains("different patterns"), "{error}");
        let large = from_constraints(["(x{100}){100}{100}".to_owned()].into_iter());
        assert!(large.rules().is_err(), "too large when compiled");
        let mut patterns = Patterns::within(PATTERNS_BYTES_MAX);
        patterns.tables = TABLES_MAX - 1;
        assert!(patterns.get("r0").is_ok());
        let error = patterns.get("r0").unwrap_err();
        assert!(error.as_str().contains("2048 alternatives"), "{error}");
        let small = Pattern::new("r0").unwrap().bytes();
        let mut patterns = Patterns::within(3 * small);
        let compiled = ["r0", "r1", "r0", "r2", "r3"].map(|text| patterns.get(text).is_ok());
        assert_eq!(compiled, [true, true, true, true, false]);
    }
}
