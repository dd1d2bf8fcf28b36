//! Agents, which Mesos names slaves here.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use meseta_access::Approver;
use meseta_proto::convert;
use meseta_proto::mesos::v1::{AgentInfo, DomainInfo, DrainInfo};
use meseta_proto::v0::{AttributesView, Full, Reserved, ReservedFull, Summary};
use meseta_resources::{AgentId, HostPort, Resources};
use serde::{Serialize, Serializer};

use super::agent_selection::{AgentSelection, Told, standing};
use super::{AGENT_BYTES, between_lists, write};
use crate::chunked_response::{Document, list, text};
use crate::core::{AgentProfile, AgentView, Drain, Snapshot, UnreachableAgent};
use crate::view_filter;

/// A summary of owned resources.
#[derive(Debug)]
pub(super) struct Owned(pub(super) Resources);

impl Serialize for Owned {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Summary(&self.0).serialize(serializer)
    }
}

/// Writes all details of resources.
fn full<S: Serializer>(resources: &Resources, serializer: S) -> Result<S::Ok, S::Error> {
    Full(resources).serialize(serializer)
}

fn reserved<S: Serializer>(resources: &Resources, serializer: S) -> Result<S::Ok, S::Error> {
    Reserved(resources).serialize(serializer)
}

fn reserved_full<S: Serializer>(resources: &Resources, serializer: S) -> Result<S::Ok, S::Error> {
    ReservedFull(resources).serialize(serializer)
}

fn attributes<S: Serializer>(info: &AgentInfo, serializer: S) -> Result<S::Ok, S::Error> {
    let attributes = convert::attributes(&info.attributes).unwrap_or_default();
    AttributesView(&attributes).serialize(serializer)
}

#[derive(Debug, Serialize)]
pub(super) struct Agent<'a> {
    id: &'a str,
    hostname: &'a str,
    port: i32,
    #[serde(serialize_with = "attributes")]
    attributes: &'a AgentInfo,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<&'a DomainInfo>,
    pid: String,
    registered_time: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reregistered_time: Option<f64>,
    resources: Summary<'a>,
    used_resources: Summary<'a>,
    offered_resources: Summary<'a>,
    #[serde(serialize_with = "reserved")]
    reserved_resources: Cow<'a, Resources>,
    unreserved_resources: Owned,
    active: bool,
    deactivated: bool,
    version: &'a str,
    capabilities: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drain_info: Option<DrainInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    estimated_drain_start_time_seconds: Option<f64>,
}

impl<'a> Agent<'a> {
    /// An agent as the viewer may see it.
    pub(super) fn from_agent(agent: &'a AgentView, viewer: &Approver) -> Self {
        let profile = &agent.profile;
        let draining = agent.deactivation.as_ref().filter(|d| d.drain.is_some());
        let drain = draining.and_then(|deactivation| deactivation.drain.as_ref());
        Self {
            id: profile.id.as_str(),
            hostname: &profile.info.hostname,
            port: profile.address.port,
            attributes: &profile.info,
            domain: profile.info.domain.as_ref(),
            pid: profile.pid(),
            registered_time: agent.registered.as_secs_f64(),
            reregistered_time: agent.reregistered.map(|time| time.as_secs_f64()),
            resources: Summary(&profile.total),
            used_resources: Summary(agent.used_total()),
            offered_resources: Summary(&agent.offered),
            reserved_resources: view_filter::reserved(&profile.total, viewer),
            unreserved_resources: Owned(profile.total.unreserved()),
            active: agent.is_active(),
            deactivated: agent.deactivation.is_some(),
            version: &profile.version,
            capabilities: profile
                .capabilities
                .iter()
                .map(|kind| kind.as_str_name())
                .collect(),
            drain_info: drain.map(Drain::to_wire),
            estimated_drain_start_time_seconds: draining
                .map(|deactivation| deactivation.since.as_secs_f64()),
        }
    }
}

/// An agent with the details of its resources.
#[derive(Debug, Serialize)]
struct FullAgent<'a> {
    #[serde(flatten)]
    agent: Agent<'a>,
    #[serde(serialize_with = "reserved_full")]
    reserved_resources_full: Cow<'a, Resources>,
    #[serde(serialize_with = "full")]
    unreserved_resources_full: Cow<'a, Resources>,
    #[serde(serialize_with = "full")]
    used_resources_full: Cow<'a, Resources>,
    #[serde(serialize_with = "full")]
    offered_resources_full: Cow<'a, Resources>,
}

impl<'a> FullAgent<'a> {
    fn from_agent(agent: &'a AgentView, viewer: &Approver) -> Self {
        let total = &agent.profile.total;
        Self {
            agent: Agent::from_agent(agent, viewer),
            reserved_resources_full: view_filter::resources(total, viewer),
            unreserved_resources_full: Cow::Owned(total.unreserved()),
            used_resources_full: view_filter::resources(agent.used_total(), viewer),
            offered_resources_full: view_filter::resources(&agent.offered, viewer),
        }
    }
}

/// An agent of the registry that has not come back.
#[derive(Debug, Serialize)]
pub(super) struct RecoveredAgent<'a> {
    id: &'a str,
    hostname: &'a str,
    port: i32,
    #[serde(serialize_with = "attributes")]
    attributes: &'a AgentInfo,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<&'a DomainInfo>,
}

impl<'a> RecoveredAgent<'a> {
    pub(super) fn from_registry((id, info): &'a (AgentId, Arc<AgentInfo>)) -> Self {
        Self {
            id: id.as_str(),
            hostname: &info.hostname,
            port: Self::port(info),
            attributes: info,
            domain: info.domain.as_ref(),
        }
    }

    /// The agent's port, or the default port of Mesos.
    fn port(info: &AgentInfo) -> i32 {
        info.port.unwrap_or(5051)
    }
}

/// Answers requests for `/slaves`.
pub(crate) fn slaves(snapshot: &Snapshot, mut selection: AgentSelection) -> Document {
    /// The approximate size of an agent with its resources in full, in bytes.
    const FULL_BYTES: usize = 2_000;
    let agents = snapshot.agents.iter().filter(|agent| {
        let AgentProfile { info, address, .. } = &*agent.profile;
        selection.takes(agent.id(), || {
            let address = HostPort::of_message(&info.hostname, address.port).to_string();
            Told::new(agent.id(), &address, standing(agent)).with_attributes(info)
        })
    });
    let agents: Vec<Arc<AgentView>> = agents.cloned().collect();
    let recovered = snapshot.recovered_agents.iter().filter(|(id, info)| {
        selection.takes(id, || {
            let address =
                HostPort::of_message(&info.hostname, RecoveredAgent::port(info)).to_string();
            Told::new(id, &address, "recovered").with_attributes(info)
        })
    });
    let recovered: Vec<_> = recovered.cloned().collect();
    let unreachable = snapshot.unreachable_agents.iter();
    let unreachable = unreachable.filter(|(id, agent)| {
        selection.takes(id, || Told::new(id, &agent.hostname, "unreachable"))
    });
    let unreachable: Vec<Lost> = unreachable.map(Lost::unreachable).collect();
    let gone = snapshot.gone_agents.iter();
    let gone = gone.filter(|(id, _)| selection.takes(id, || Told::new(id, "", "gone")));
    let gone: Vec<Lost> = gone.map(Lost::gone).collect();
    let viewer = snapshot.viewer.clone();
    let mut parts = vec![
        text("{\"slaves\":["),
        list(agents.len(), FULL_BYTES, move |index, out| {
            let agent = agents.get(index);
            write(
                out,
                &agent.map(|agent| FullAgent::from_agent(agent, &viewer)),
            );
        }),
        between_lists("recovered_slaves"),
        list(recovered.len(), AGENT_BYTES, move |index, out| {
            write(
                out,
                &recovered.get(index).map(RecoveredAgent::from_registry),
            );
        }),
    ];
    // Mesos has no such lists: they are present only if they are not empty.
    for (name, lost) in [("unreachable_slaves", unreachable), ("gone_slaves", gone)] {
        if !lost.is_empty() {
            parts.push(between_lists(name));
            parts.push(list(lost.len(), LOST_BYTES, move |index, out| {
                write(out, &lost.get(index));
            }));
        }
    }
    parts.push(match selection.total() {
        Some(total) => text(format!("],\"total\":{total}}}")),
        None => text("]}"),
    });
    Document::from_first(parts)
}

/// The approximate size of an unreachable or gone agent in a list, in bytes.
const LOST_BYTES: usize = 150;

/// An unreachable or gone agent.
#[derive(Serialize)]
struct Lost {
    id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    hostname: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    unreachable_time: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gone_time: Option<f64>,
}

impl Lost {
    fn unreachable((id, agent): &(AgentId, UnreachableAgent)) -> Self {
        Self {
            id: id.to_string(),
            hostname: agent.hostname.clone(),
            unreachable_time: Some(agent.since.as_secs_f64()),
            gone_time: None,
        }
    }

    fn gone((id, since): &(AgentId, Duration)) -> Self {
        Self {
            id: id.to_string(),
            hostname: String::new(),
            unreachable_time: None,
            gone_time: Some(since.as_secs_f64()),
        }
    }
}
