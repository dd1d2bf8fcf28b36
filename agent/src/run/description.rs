//! What the agent tells the master of itself: who it is, and what it can do.

use std::net::SocketAddr;

use meseta_daemon::hostname;
use meseta_proto::convert::{self, Format};
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::agent_info::capability::Type as Capability;

use crate::configuration::Configuration;
use crate::configuration::flags::Flags;

/// What this agent can do, as Mesos names it.
pub(super) const CAPABILITIES: &[Capability] = &[
    Capability::MultiRole,
    Capability::HierarchicalRole,
    Capability::ReservationRefinement,
    Capability::ResourceProvider,
    Capability::ResizeVolume,
    Capability::AgentOperationFeedback,
    Capability::AgentDraining,
    Capability::TaskResourceLimits,
];

/// Returns the name that an agent with these flags is known by. It depends on flags alone: a route that comes or goes
/// must not change the name of an agent that starts again.
pub(crate) fn hostname_of(flags: &Flags) -> String {
    let given = flags.hostname.clone();
    given.unwrap_or_else(|| hostname::of(flags.advertise_ip.unwrap_or(flags.ip)))
}

/// The agent as it registers, without an id.
pub(super) fn agent_info(
    flags: &Flags,
    configuration: &Configuration,
    resources: &meseta_resources::Resources,
    advertised: SocketAddr,
) -> pb::AgentInfo {
    pb::AgentInfo {
        hostname: hostname_of(flags),
        port: Some(i32::from(advertised.port())),
        resources: convert::to_resources(resources, Format::PostRefinement).unwrap_or_default(),
        attributes: configuration.attributes.clone(),
        domain: configuration.domain.clone(),
        ..pb::AgentInfo::default()
    }
}
