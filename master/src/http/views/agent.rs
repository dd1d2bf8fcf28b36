//! Agents, which Mesos calls slaves here.

use std::sync::Arc;

use meseta_proto::convert;
use meseta_proto::mesos::v1::{AgentInfo, DomainInfo, DrainInfo};
use meseta_proto::v0::{AttributesView, Full, Reserved, ReservedFull, Summary};
use meseta_resources::{AgentId, Attributes, Resources};
use serde::{Serialize, Serializer};

use super::super::pieces::{Document, list, text};
use super::{AGENT_BYTES, between_lists, write};
use crate::core::{AgentView, Drain, Snapshot};

/// The summary of resources that the view itself holds.
#[derive(Debug)]
pub(super) struct Owned(pub(super) Resources);

impl Serialize for Owned {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Summary(&self.0).serialize(serializer)
    }
}

#[derive(Debug)]
struct OwnedFull(Resources);

impl Serialize for OwnedFull {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Full(&self.0).serialize(serializer)
    }
}

#[derive(Debug)]
struct OwnedAttributes(Attributes);

impl Serialize for OwnedAttributes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        AttributesView(&self.0).serialize(serializer)
    }
}

fn attributes(info: &AgentInfo) -> OwnedAttributes {
    OwnedAttributes(convert::attributes(&info.attributes).unwrap_or_default())
}

/// One agent.
#[derive(Debug, Serialize)]
pub(super) struct Agent<'a> {
    id: &'a str,
    hostname: &'a str,
    port: i32,
    attributes: OwnedAttributes,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<&'a DomainInfo>,
    pid: String,
    registered_time: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reregistered_time: Option<f64>,
    resources: Summary<'a>,
    used_resources: Summary<'a>,
    offered_resources: Summary<'a>,
    reserved_resources: Reserved<'a>,
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
    pub(super) fn of(agent: &'a AgentView) -> Self {
        let profile = &agent.profile;
        let draining = agent.deactivation.as_ref().filter(|d| d.drain.is_some());
        let drain = draining.and_then(|deactivation| deactivation.drain.as_ref());
        Self {
            id: profile.id.as_str(),
            hostname: &profile.info.hostname,
            port: profile.address.port,
            attributes: attributes(&profile.info),
            domain: profile.info.domain.as_ref(),
            pid: profile.pid(),
            registered_time: agent.registered.as_secs_f64(),
            reregistered_time: agent.reregistered.map(|time| time.as_secs_f64()),
            resources: Summary(&profile.total),
            used_resources: Summary(&agent.digest().used),
            offered_resources: Summary(&agent.offered),
            reserved_resources: Reserved(&profile.total),
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

/// One agent with its resources in full.
#[derive(Debug, Serialize)]
struct FullAgent<'a> {
    #[serde(flatten)]
    agent: Agent<'a>,
    reserved_resources_full: ReservedFull<'a>,
    unreserved_resources_full: OwnedFull,
    used_resources_full: Full<'a>,
    offered_resources_full: Full<'a>,
}

impl<'a> FullAgent<'a> {
    fn of(agent: &'a AgentView) -> Self {
        Self {
            agent: Agent::of(agent),
            reserved_resources_full: ReservedFull(&agent.profile.total),
            unreserved_resources_full: OwnedFull(agent.profile.total.unreserved()),
            used_resources_full: Full(&agent.digest().used),
            offered_resources_full: Full(&agent.offered),
        }
    }
}

/// An agent of the registry that has not come back.
#[derive(Debug, Serialize)]
pub(super) struct RecoveredAgent<'a> {
    id: &'a str,
    hostname: &'a str,
    port: i32,
    attributes: OwnedAttributes,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<&'a DomainInfo>,
}

impl<'a> RecoveredAgent<'a> {
    pub(super) fn of((id, info): &'a (AgentId, Arc<AgentInfo>)) -> Self {
        Self {
            id: id.as_str(),
            hostname: &info.hostname,
            port: info.port.unwrap_or(5051),
            attributes: attributes(info),
            domain: info.domain.as_ref(),
        }
    }
}

/// `/slaves`.
pub(in super::super) fn slaves(snapshot: &Snapshot, id: Option<&str>) -> Document {
    /// An agent with its resources in full.
    const FULL_BYTES: usize = 2_000;
    let wanted = |candidate: &AgentId| id.is_none_or(|id| candidate.as_str() == id);
    let agents = snapshot.agents.iter().filter(|agent| wanted(agent.id()));
    let agents: Vec<Arc<AgentView>> = agents.cloned().collect();
    let recovered = snapshot.recovered_agents.iter();
    let recovered: Vec<_> = recovered.filter(|(id, _)| wanted(id)).cloned().collect();
    Document::of(vec![
        text("{\"slaves\":["),
        list(agents.len(), FULL_BYTES, move |index, out| {
            write(out, &agents.get(index).map(|agent| FullAgent::of(agent)));
        }),
        between_lists("recovered_slaves"),
        list(recovered.len(), AGENT_BYTES, move |index, out| {
            write(out, &recovered.get(index).map(RecoveredAgent::of));
        }),
        text("]}"),
    ])
}
