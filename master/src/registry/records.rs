//! The registry's records as bytes, and which keys a mutation touches.
//!
//! Keys are `kind/name`, values protobuf. A record may gain optional fields; a change that an
//! older master would misread raises [`FORMAT`] instead.

use std::time::Duration;

use prost::Message;

use crate::core::{AgentRecord, Mutation, Recovered, UnreachableRecord};

/// The version of the layout as a whole.
pub(super) const FORMAT: u32 = 1;

pub(super) const META_KEY: &str = "meta";
const AGENT: &str = "agent/";
const UNREACHABLE: &str = "unreachable/";
const GONE: &str = "gone/";
const WEIGHTS_KEY: &str = "weights";

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
