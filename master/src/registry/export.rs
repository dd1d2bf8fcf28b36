//! The content of a registry as JSON for people.

use std::time::Duration;

use meseta_proto::json as wire;
use meseta_proto::mesos::v1::AgentInfo;
use meseta_proto::schema::WireMessage;
use prost::Message;
use serde_json::{Map, Value, json};

use crate::core::{Deactivation, Drain, Recovered};

/// The whole registry; times are seconds since the Unix epoch.
pub(super) fn readable(recovered: &Recovered) -> Value {
    let seconds = |time: Duration| time.as_secs_f64();
    let named = |all: &[(String, Duration)]| -> Value {
        let all = all.iter();
        let entries = all.map(|(id, since)| json!({ "id": id, "since": seconds(*since) }));
        entries.collect()
    };
    let agents = recovered.agents.iter().map(|agent| {
        let info = AgentInfo::decode(agent.info.clone());
        let info = info.map_or(Value::Null, |info| of_message(&info));
        json!({ "id": agent.agent_id, "info": info })
    });
    let unreachable = recovered.unreachable.iter().map(|agent| {
        json!({
            "id": agent.agent_id,
            "since": seconds(agent.since),
            "hostname": agent.hostname,
        })
    });
    let frameworks = recovered.frameworks.iter().map(|framework| {
        json!({
            "id": framework.framework_id,
            "principal": framework.principal,
            "user": framework.user,
            "absent_since": framework.absent.map(seconds),
        })
    });
    let removed = recovered.removed_frameworks.iter().map(|framework| {
        json!({
            "id": framework.framework_id,
            "since": seconds(framework.since),
            "principal": framework.principal,
            "user": framework.user,
            "by_operator": framework.by_operator,
        })
    });
    let deadlines = recovered.deadlines.iter().map(
        |deadline| json!({ "id": deadline.framework_id, "deadline": seconds(deadline.deadline) }),
    );
    let quotas = recovered.quotas.iter().map(|(role, quota)| {
        let guarantees = quota.guarantees.iter();
        let limits = quota.limits.iter();
        json!({
            "role": role.as_str(),
            "guarantees": amounts(guarantees.map(|(name, amount)| (name.as_str(), amount.to_f64()))),
            "limits": amounts(limits.map(|(name, limit)| (name.as_str(), limit.to_f64()))),
        })
    });
    let weights = recovered.weights.as_ref().map(|weights| {
        amounts(
            weights
                .iter()
                .map(|(role, weight)| (role.as_str(), *weight)),
        )
    });
    let deactivations = recovered.deactivations.iter();
    let down = recovered.maintenance.down.iter().map(of_message);
    json!({
        "epoch": recovered.epoch,
        "agents": agents.collect::<Value>(),
        "unreachable_agents": unreachable.collect::<Value>(),
        "gone_agents": named(&recovered.gone),
        "deactivated_agents": deactivations.map(deactivated).collect::<Value>(),
        "frameworks": frameworks.collect::<Value>(),
        "framework_deadlines": deadlines.collect::<Value>(),
        "removed_frameworks": removed.collect::<Value>(),
        "quotas": quotas.collect::<Value>(),
        "weights": weights,
        "maintenance": {
            "schedule": of_message(&recovered.maintenance.schedule),
            "down": down.collect::<Value>(),
        },
    })
}

fn amounts<'a>(all: impl Iterator<Item = (&'a str, f64)>) -> Value {
    let all = all.map(|(name, amount)| (name.to_owned(), json!(amount)));
    Value::Object(all.collect::<Map<_, _>>())
}

fn deactivated((id, deactivation): &(String, Deactivation)) -> Value {
    let drain = |drain: &Drain| {
        json!({
            "max_grace_seconds": drain.max_grace.map(|grace| grace.as_secs_f64()),
            "mark_gone": drain.mark_gone,
            "drained": drain.drained,
        })
    };
    json!({
        "id": id,
        "since": deactivation.since.as_secs_f64(),
        "drain": deactivation.drain.as_ref().map(drain),
    })
}

fn of_message<M: WireMessage>(message: &M) -> Value {
    serde_json::from_slice(&wire::to_vec(message)).unwrap_or_default()
}
