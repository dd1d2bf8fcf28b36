//! The reasons why a task does not fit in an offer, in the words of `meseta explain`.

use std::fmt;

use meseta_resources::ResourceQuantities;

use crate::spec::{Constraint, Rule};

/// An obstacle between a job and an offer.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    OtherRole {
        offered: String,
        needed: String,
    },
    /// The agent is in another region than the master, and the job names no regions.
    OtherRegion {
        region: String,
    },
    Constraint {
        constraint: Constraint,
        /// The agent's value, or `None` if it has no such attribute.
        value: Option<String>,
    },
    /// The value already has the maximum of tasks that the constraint permits.
    Full {
        attribute: String,
        value: String,
        most: u32,
    },
    Short {
        missing: ResourceQuantities,
        needed: ResourceQuantities,
        /// Whether the CPUs must be revocable.
        is_revocable: bool,
    },
    /// No offer contains the volume of the instance.
    NoVolume {
        id: String,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherRole { offered, needed } => {
                write!(
                    f,
                    "the offer is for role {offered}, the job is in role {needed}"
                )
            }
            Self::OtherRegion { region } => {
                write!(
                    f,
                    "the agent is in region {region}, another one than the master's: a constraint on @region lets tasks run there"
                )
            }
            Self::Constraint { constraint, value } => {
                let attribute = &constraint.attribute;
                match value {
                    Some(value) => write!(
                        f,
                        "{attribute} is {value}, which has to {}",
                        Has(&constraint.rule)
                    ),
                    None => write!(
                        f,
                        "the agent has no {attribute}, which has to {}",
                        Has(&constraint.rule)
                    ),
                }
            }
            Self::Full {
                attribute,
                value,
                most,
            } => write!(
                f,
                "{attribute} {value} has {most} tasks of the job, which is as many as it allows"
            ),
            Self::Short {
                missing,
                needed,
                is_revocable,
            } => {
                let revocable = if *is_revocable {
                    " with revocable cpus"
                } else {
                    ""
                };
                write!(f, "short of {missing} (needs {needed}{revocable})")
            }
            Self::NoVolume { id } => {
                write!(
                    f,
                    "no offer has volume {id}; it is on an agent that is away or used"
                )
            }
        }
    }
}

/// A rule, as shown after "has to".
struct Has<'a>(&'a Rule);

impl fmt::Display for Has<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Rule::Equals(value) => write!(f, "be {value}"),
            Rule::NotEquals(value) => write!(f, "be other than {value}"),
            Rule::In(values) => write!(f, "be one of {}", values.join(", ")),
            Rule::Matches(pattern) => write!(f, "match {pattern}"),
            Rule::Exists | Rule::Distinct(_) | Rule::Spread => f.write_str("be there"),
            Rule::NotExists => f.write_str("be absent"),
        }
    }
}
