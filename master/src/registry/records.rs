//! The registry's records as bytes, and which keys a mutation touches.
//!
//! Keys are `kind/name`, values protobuf. A record may gain optional fields; a change that an
//! older master would misread raises [`FORMAT`] instead.

use std::time::Duration;

use meseta_allocator::Quota;
use meseta_resources::{ResourceName, Role, Scalar};
use prost::Message;

use crate::core::{AgentRecord, DeadlineRecord, Mutation, Recovered, UnreachableRecord};

/// The version of the layout as a whole.
pub(super) const FORMAT: u32 = 1;

pub(super) const META_KEY: &str = "meta";
const AGENT: &str = "agent/";
const UNREACHABLE: &str = "unreachable/";
const GONE: &str = "gone/";
const DEADLINE: &str = "framework-deadline/";
const WEIGHTS_KEY: &str = "weights";
const QUOTA: &str = "quota/";

#[derive(Clone, PartialEq, Message)]
pub(super) struct Meta {
    #[prost(uint32, tag = "1")]
    pub(super) format: u32,
    #[prost(uint64, tag = "2")]
    pub(super) epoch: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Agent {
    /// `mesos.v1.AgentInfo`.
    #[prost(bytes = "bytes", tag = "1")]
    info: bytes::Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct Unreachable {
    #[prost(uint64, tag = "1")]
    since_unix_ms: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Deadline {
    #[prost(uint64, tag = "1")]
    deadline_unix_ms: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Weights {
    #[prost(message, repeated, tag = "1")]
    weights: Vec<Weight>,
}

#[derive(Clone, PartialEq, Message)]
struct Weight {
    #[prost(string, tag = "1")]
    role: String,
    #[prost(double, tag = "2")]
    weight: f64,
}

#[derive(Clone, PartialEq, Message)]
struct StoredQuota {
    #[prost(message, repeated, tag = "1")]
    guarantees: Vec<Amount>,
    #[prost(message, repeated, tag = "2")]
    limits: Vec<Amount>,
    /// The guarantee is the limit of everything.
    #[prost(bool, tag = "3")]
    legacy: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Amount {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int64, tag = "2")]
    millis: i64,
}

impl StoredQuota {
    fn of(quota: &Quota) -> Self {
        let amount = |(name, amount): (&ResourceName, Scalar)| Amount {
            name: name.to_string(),
            millis: amount.millis(),
        };
        Self {
            guarantees: quota.guarantees.iter().map(amount).collect(),
            limits: quota.limits.iter().map(amount).collect(),
            legacy: quota.legacy,
        }
    }

    fn quota(self) -> Quota {
        fn amounts(stored: Vec<Amount>) -> impl Iterator<Item = (ResourceName, Scalar)> {
            stored.into_iter().filter_map(|amount| {
                let name = ResourceName::new(&amount.name).ok()?;
                Some((name, Scalar::from_millis(amount.millis)))
            })
        }
        Quota {
            guarantees: amounts(self.guarantees).collect(),
            limits: amounts(self.limits).collect(),
            legacy: self.legacy,
        }
    }
}

/// One key to write, or to delete when there is no value.
pub(super) struct Write {
    pub(super) key: String,
    pub(super) value: Option<Vec<u8>>,
}

impl Write {
    fn put(key: String, value: &impl Message) -> Self {
        Self {
            key,
            value: Some(value.encode_to_vec()),
        }
    }

    fn delete(key: String) -> Self {
        Self { key, value: None }
    }
}

/// The writes that make up a mutation.
pub(super) fn writes(mutation: &Mutation) -> Vec<Write> {
    match mutation {
        Mutation::PutAgent(AgentRecord { agent_id, info }) => vec![
            Write::put(format!("{AGENT}{agent_id}"), &Agent { info: info.clone() }),
            Write::delete(format!("{UNREACHABLE}{agent_id}")),
        ],
        Mutation::MarkUnreachable(UnreachableRecord { agent_id, since }) => vec![
            Write::delete(format!("{AGENT}{agent_id}")),
            Write::put(
                format!("{UNREACHABLE}{agent_id}"),
                &Unreachable {
                    since_unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
                },
            ),
        ],
        Mutation::RemoveAgent { agent_id } => vec![
            Write::delete(format!("{AGENT}{agent_id}")),
            Write::delete(format!("{UNREACHABLE}{agent_id}")),
        ],
        Mutation::PruneUnreachable { agent_ids } => agent_ids
            .iter()
            .map(|agent_id| Write::delete(format!("{UNREACHABLE}{agent_id}")))
            .collect(),
        Mutation::UpdateQuota(changes) => changes
            .iter()
            .map(|(role, quota)| {
                let key = format!("{QUOTA}{role}");
                if quota.is_default() {
                    Write::delete(key)
                } else {
                    Write::put(key, &StoredQuota::of(quota))
                }
            })
            .collect(),
        Mutation::PutDeadline(DeadlineRecord {
            framework_id,
            deadline,
        }) => vec![Write::put(
            format!("{DEADLINE}{framework_id}"),
            &Deadline {
                deadline_unix_ms: u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX),
            },
        )],
        Mutation::RemoveDeadlines { framework_ids } => framework_ids
            .iter()
            .map(|framework_id| Write::delete(format!("{DEADLINE}{framework_id}")))
            .collect(),
        Mutation::PutWeights(weights) => vec![Write::put(
            WEIGHTS_KEY.to_owned(),
            &Weights {
                weights: weights
                    .iter()
                    .map(|(role, weight)| Weight {
                        role: role.clone(),
                        weight: *weight,
                    })
                    .collect(),
            },
        )],
    }
}

/// Adds a stored record to what has been recovered. Kinds that a later version added are skipped.
pub(super) fn read(
    recovered: &mut Recovered,
    key: &str,
    value: &[u8],
) -> Result<(), prost::DecodeError> {
    if let Some(agent_id) = key.strip_prefix(AGENT) {
        let agent = Agent::decode(value)?;
        recovered.agents.push(AgentRecord {
            agent_id: agent_id.to_owned(),
            info: agent.info,
        });
    } else if let Some(agent_id) = key.strip_prefix(UNREACHABLE) {
        let unreachable = Unreachable::decode(value)?;
        recovered.unreachable.push(UnreachableRecord {
            agent_id: agent_id.to_owned(),
            since: Duration::from_millis(unreachable.since_unix_ms),
        });
    } else if let Some(agent_id) = key.strip_prefix(GONE) {
        recovered.gone.push(agent_id.to_owned());
    } else if let Some(role) = key.strip_prefix(QUOTA) {
        let quota = StoredQuota::decode(value)?.quota();
        if let Ok(role) = Role::new(role) {
            recovered.quotas.push((role, quota));
        }
    } else if let Some(framework_id) = key.strip_prefix(DEADLINE) {
        let deadline = Deadline::decode(value)?;
        recovered.deadlines.push(DeadlineRecord {
            framework_id: framework_id.to_owned(),
            deadline: Duration::from_millis(deadline.deadline_unix_ms),
        });
    } else if key == WEIGHTS_KEY {
        let weights = Weights::decode(value)?;
        recovered.weights = Some(
            weights
                .weights
                .into_iter()
                .map(|weight| (weight.role, weight.weight))
                .collect(),
        );
    }
    Ok(())
}
