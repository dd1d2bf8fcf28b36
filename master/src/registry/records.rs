//! The registry's records as bytes, and the keys of each mutation.
//!
//! Keys are `kind/name`, values protobuf. A record may gain optional fields; a change that an older master would
//! misread raises [`FORMAT`] instead.

use std::time::Duration;

use meseta_allocator::Quota;
use meseta_etcd::store::Write;
use meseta_proto::mesos::v1::MachineId;
use meseta_proto::mesos::v1::maintenance::Schedule;
use meseta_resources::{ResourceName, Role, Scalar};
use prost::Message;

use super::content::StoredContent;
use crate::core::{
    AgentRecord, Deactivation, DeadlineRecord, Drain, FrameworkRecord, Maintenance, Mutation,
    Recovered, RemovedRecord, UnreachableRecord,
};

/// The version of the layout as a whole.
pub(super) const FORMAT: u32 = 1;

pub(super) const META_KEY: &str = "meta";
/// The key of the raised epoch, above the epochs that agents have obeyed. A separate record, because the meta is
/// written only at the start.
pub(super) const EPOCH_KEY: &str = "epoch";
const AGENT: &str = "agent/";
const UNREACHABLE: &str = "unreachable/";
const GONE: &str = "gone/";
const FRAMEWORK: &str = "framework/";
/// The prefix of frameworks without a principal, which older masters ignore.
const NAMELESS: &str = "framework-nameless/";
const REMOVED: &str = "framework-removed/";
const DEADLINE: &str = "framework-deadline/";
const WEIGHTS_KEY: &str = "weights";
const QUOTA: &str = "quota/";
const DEACTIVATION: &str = "deactivation/";
const MAINTENANCE_KEY: &str = "maintenance";

/// Whether this version reads records of this kind.
pub(super) fn is_known(key: &str) -> bool {
    const KINDS: [&str; 9] = [
        AGENT,
        UNREACHABLE,
        GONE,
        FRAMEWORK,
        NAMELESS,
        REMOVED,
        DEADLINE,
        QUOTA,
        DEACTIVATION,
    ];
    let is_single = [WEIGHTS_KEY, MAINTENANCE_KEY, EPOCH_KEY].contains(&key);
    is_single || KINDS.iter().any(|kind| key.starts_with(kind))
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Meta {
    #[prost(uint32, tag = "1")]
    pub(super) format: u32,
    #[prost(uint64, tag = "2")]
    pub(super) epoch: u64,
    /// The id that the marker beside the file has as well; empty if an older master wrote last.
    #[prost(string, tag = "3")]
    pub(super) id: String,
    /// The checksum over all other records; `None` if an older master wrote last.
    #[prost(message, optional, tag = "4")]
    pub(super) content: Option<StoredContent>,
}

#[derive(Clone, PartialEq, Message)]
struct RaisedEpoch {
    #[prost(uint64, tag = "1")]
    epoch: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Agent {
    /// The agent's info, an encoded `mesos.v1.AgentInfo`.
    #[prost(bytes = "bytes", tag = "1")]
    info: bytes::Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct Unreachable {
    #[prost(uint64, tag = "1")]
    since_unix_ms: u64,
    #[prost(string, tag = "2")]
    hostname: String,
}

/// The time of an end.
#[derive(Clone, PartialEq, Message)]
struct Ended {
    #[prost(uint64, tag = "1")]
    since_unix_ms: u64,
}

/// A removed framework. Newer versions store the owner, because they limit removals by owner.
#[derive(Clone, PartialEq, Message)]
struct RemovedFramework {
    #[prost(uint64, tag = "1")]
    since_unix_ms: u64,
    #[prost(string, optional, tag = "2")]
    principal: Option<String>,
    /// The user of the master's machine, if no principal was proven.
    #[prost(uint32, optional, tag = "3")]
    user: Option<u32>,
    #[prost(bool, tag = "4")]
    by_operator: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Framework {
    #[prost(string, tag = "1")]
    principal: String,
    #[prost(uint64, optional, tag = "2")]
    absent_since_unix_ms: Option<u64>,
    /// The user of the master's machine, if no principal is proven.
    #[prost(uint32, optional, tag = "3")]
    user: Option<u32>,
    /// Whether the user really has the number [`OVERFLOW_USER`].
    #[prost(bool, tag = "4")]
    is_overflow_user: bool,
}

/// The user number that the kernel shows for all users to a master in a user namespace. Earlier masters, whose unit
/// had a user namespace, stored this number as a user; it identifies nobody.
const OVERFLOW_USER: u32 = 65_534;

impl Framework {
    fn record(&self, id: &str, principal: Option<String>) -> FrameworkRecord {
        let user = self.user;
        FrameworkRecord {
            framework_id: id.to_owned(),
            principal,
            user: user.filter(|user| *user != OVERFLOW_USER || self.is_overflow_user),
            absent: self.absent_since_unix_ms.map(Duration::from_millis),
        }
    }
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
    /// Whether the guarantee limits everything.
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
    fn from_quota(quota: &Quota) -> Self {
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

#[derive(Clone, PartialEq, Message)]
struct StoredMaintenance {
    #[prost(message, required, tag = "1")]
    schedule: Schedule,
    #[prost(message, repeated, tag = "2")]
    down: Vec<MachineId>,
}

#[derive(Clone, PartialEq, Message)]
struct StoredDeactivation {
    #[prost(uint64, tag = "1")]
    since_unix_ms: u64,
    #[prost(message, optional, tag = "2")]
    drain: Option<StoredDrain>,
}

#[derive(Clone, PartialEq, Message)]
struct StoredDrain {
    #[prost(uint64, optional, tag = "1")]
    max_grace_ns: Option<u64>,
    #[prost(bool, tag = "2")]
    mark_gone: bool,
    #[prost(bool, tag = "3")]
    drained: bool,
}

impl StoredDeactivation {
    fn from_deactivation(deactivation: &Deactivation) -> Self {
        Self {
            since_unix_ms: millis(deactivation.since),
            drain: deactivation.drain.as_ref().map(|drain| StoredDrain {
                max_grace_ns: drain
                    .max_grace
                    .map(|grace| u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX)),
                mark_gone: drain.mark_gone,
                drained: drain.drained,
            }),
        }
    }

    fn deactivation(self) -> Deactivation {
        Deactivation {
            since: Duration::from_millis(self.since_unix_ms),
            drain: self.drain.map(|drain| Drain {
                max_grace: drain.max_grace_ns.map(Duration::from_nanos),
                mark_gone: drain.mark_gone,
                drained: drain.drained,
            }),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn remove_agent(agent_id: &str) -> [Write; 3] {
    [AGENT, UNREACHABLE, DEACTIVATION].map(|kind| Write::delete(format!("{kind}{agent_id}")))
}

/// The writes of a mutation.
pub(super) fn writes(mutation: &Mutation) -> Vec<Write> {
    match mutation {
        Mutation::PutAgent(AgentRecord { agent_id, info }) => vec![
            Write::put(format!("{AGENT}{agent_id}"), &Agent { info: info.clone() }),
            Write::delete(format!("{UNREACHABLE}{agent_id}")),
        ],
        Mutation::RaiseEpoch { epoch } => {
            let raised = RaisedEpoch { epoch: *epoch };
            vec![Write::put(EPOCH_KEY.to_owned(), &raised)]
        }
        Mutation::MarkUnreachable(record) => vec![
            Write::delete(format!("{AGENT}{}", record.agent_id)),
            put_unreachable(record),
        ],
        Mutation::RemoveAgent { agent_id } => remove_agent(agent_id).into(),
        Mutation::RemoveAgents { agent_ids } => {
            let all = agent_ids.iter();
            all.flat_map(|agent_id| remove_agent(agent_id)).collect()
        }
        Mutation::PruneUnreachable { agent_ids } => agent_ids
            .iter()
            .flat_map(|agent_id| [UNREACHABLE, DEACTIVATION].map(|kind| (kind, agent_id)))
            .map(|(kind, agent_id)| Write::delete(format!("{kind}{agent_id}")))
            .collect(),
        Mutation::UpdateQuota(changes) => changes
            .iter()
            .map(|(role, quota)| {
                let key = format!("{QUOTA}{role}");
                if quota.is_default() {
                    Write::delete(key)
                } else {
                    Write::put(key, &StoredQuota::from_quota(quota))
                }
            })
            .collect(),
        Mutation::PutFramework(record) => put_framework(record).into(),
        Mutation::RemoveFrameworks { framework_ids } => {
            let mut writes = deletions(FRAMEWORK, framework_ids);
            writes.extend(deletions(NAMELESS, framework_ids));
            writes
        }
        Mutation::EndFrameworks { removed, forgotten } => {
            let put = |record: &RemovedRecord| {
                let owner = |kind| Write::delete(format!("{kind}{}", record.framework_id));
                [owner(FRAMEWORK), owner(NAMELESS), put_removed(record)]
            };
            let mut writes: Vec<Write> = removed.iter().flat_map(put).collect();
            writes.extend(deletions(REMOVED, forgotten));
            writes
        }
        Mutation::PutDeadline(DeadlineRecord {
            framework_id,
            deadline,
        }) => vec![Write::put(
            format!("{DEADLINE}{framework_id}"),
            &Deadline {
                deadline_unix_ms: u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX),
            },
        )],
        Mutation::RemoveDeadlines { framework_ids } => deletions(DEADLINE, framework_ids),
        Mutation::PutMaintenance(maintenance) => vec![Write::put(
            MAINTENANCE_KEY.to_owned(),
            &StoredMaintenance {
                schedule: maintenance.schedule.clone(),
                down: maintenance.down.clone(),
            },
        )],
        Mutation::PutDeactivation {
            agent_id,
            deactivation,
        } => {
            let key = format!("{DEACTIVATION}{agent_id}");
            vec![match deactivation {
                Some(deactivation) => {
                    Write::put(key, &StoredDeactivation::from_deactivation(deactivation))
                }
                None => Write::delete(key),
            }]
        }
        Mutation::MarkGone { agent_id, since } => vec![
            Write::delete(format!("{AGENT}{agent_id}")),
            Write::delete(format!("{UNREACHABLE}{agent_id}")),
            Write::delete(format!("{DEACTIVATION}{agent_id}")),
            put_ended(format!("{GONE}{agent_id}"), *since),
        ],
        Mutation::PruneGone { agent_ids } => deletions(GONE, agent_ids),
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

fn deletions(kind: &str, names: &[String]) -> Vec<Write> {
    let keys = names.iter().map(|name| format!("{kind}{name}"));
    keys.map(Write::delete).collect()
}

fn put_ended(key: String, since: Duration) -> Write {
    let since_unix_ms = millis(since);
    Write::put(key, &Ended { since_unix_ms })
}

fn put_removed(record: &RemovedRecord) -> Write {
    let removed = RemovedFramework {
        since_unix_ms: millis(record.since),
        principal: record.principal.clone(),
        user: record.user,
        by_operator: record.by_operator,
    };
    Write::put(format!("{REMOVED}{}", record.framework_id), &removed)
}

fn put_unreachable(record: &UnreachableRecord) -> Write {
    let unreachable = Unreachable {
        since_unix_ms: millis(record.since),
        hostname: record.hostname.clone(),
    };
    Write::put(format!("{UNREACHABLE}{}", record.agent_id), &unreachable)
}

/// Stores a framework, and deletes its removal.
fn put_framework(record: &FrameworkRecord) -> [Write; 2] {
    let framework = Framework {
        principal: record.principal.clone().unwrap_or_default(),
        absent_since_unix_ms: record.absent.map(millis),
        user: record.user,
        is_overflow_user: record.user == Some(OVERFLOW_USER),
    };
    let kind = match record.principal {
        Some(_) => FRAMEWORK,
        None => NAMELESS,
    };
    let id = &record.framework_id;
    [
        Write::put(format!("{kind}{id}"), &framework),
        Write::delete(format!("{REMOVED}{id}")),
    ]
}

/// The epoch in a record of [`EPOCH_KEY`].
pub(super) fn raised_epoch(value: &[u8]) -> Result<u64, prost::DecodeError> {
    Ok(RaisedEpoch::decode(value)?.epoch)
}

/// Adds a stored record to the recovered state. Skips kinds of later versions.
pub(super) fn read(
    recovered: &mut Recovered,
    key: &str,
    value: &[u8],
) -> Result<(), prost::DecodeError> {
    if key == EPOCH_KEY {
        recovered.epoch = recovered.epoch.max(raised_epoch(value)?);
    } else if let Some(agent_id) = key.strip_prefix(AGENT) {
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
            hostname: unreachable.hostname,
        });
    } else if let Some(agent_id) = key.strip_prefix(GONE) {
        let gone = Ended::decode(value)?;
        let since = Duration::from_millis(gone.since_unix_ms);
        recovered.gone.push((agent_id.to_owned(), since));
    } else if let Some(agent_id) = key.strip_prefix(DEACTIVATION) {
        let deactivation = StoredDeactivation::decode(value)?.deactivation();
        let entry = (agent_id.to_owned(), deactivation);
        recovered.deactivations.push(entry);
    } else if key == MAINTENANCE_KEY {
        let stored = StoredMaintenance::decode(value)?;
        recovered.maintenance = Maintenance {
            schedule: stored.schedule,
            down: stored.down,
        };
    } else if let Some(role) = key.strip_prefix(QUOTA) {
        let quota = StoredQuota::decode(value)?.quota();
        if let Ok(role) = Role::new(role) {
            recovered.quotas.push((role, quota));
        }
    } else if let Some(framework_id) = key.strip_prefix(FRAMEWORK) {
        let framework = Framework::decode(value)?;
        let principal = Some(framework.principal.clone());
        let record = framework.record(framework_id, principal);
        recovered.frameworks.push(record);
    } else if let Some(framework_id) = key.strip_prefix(NAMELESS) {
        let framework = Framework::decode(value)?;
        recovered
            .frameworks
            .push(framework.record(framework_id, None));
    } else if let Some(framework_id) = key.strip_prefix(REMOVED) {
        let removed = RemovedFramework::decode(value)?;
        recovered.removed_frameworks.push(RemovedRecord {
            framework_id: framework_id.to_owned(),
            since: Duration::from_millis(removed.since_unix_ms),
            principal: removed.principal,
            user: removed.user,
            by_operator: removed.by_operator,
        });
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

/// The state that a starting master reads after these mutations.
#[cfg(test)]
pub(crate) fn read_back(mutations: &[Mutation]) -> Recovered {
    let mut stored = std::collections::BTreeMap::new();
    for write in mutations.iter().flat_map(writes) {
        match write.value {
            Some(value) => stored.insert(write.key, value),
            None => stored.remove(&write.key),
        };
    }
    let mut recovered = Recovered::default();
    for (key, value) in &stored {
        read(&mut recovered, key, value).expect("what was just written");
    }
    recovered
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The owner of a framework that an earlier master stored as the overflow user is determined again.
    #[test]
    fn mapped_overflow_user_is_a_user() {
        let record = FrameworkRecord {
            framework_id: "f".to_owned(),
            principal: None,
            user: Some(OVERFLOW_USER),
            absent: None,
        };
        let [stored, _] = put_framework(&record);
        let users = |value: &[u8]| {
            let mut recovered = Recovered::default();
            read(&mut recovered, &stored.key, value).expect("a record");
            recovered.frameworks[0].user
        };
        assert_eq!(
            users(stored.value.as_deref().expect("a value")),
            record.user
        );
        let earlier = Framework {
            user: record.user,
            ..Framework::default()
        };
        assert_eq!(users(&earlier.encode_to_vec()), None);
    }
}
