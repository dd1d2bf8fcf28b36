//! The agent's description for the master: its identity and its capabilities.

use std::net::SocketAddr;

use meseta_daemon::hostname;
use meseta_proto::convert::{self, Format};
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::agent_info::capability::Type as Capability;

use crate::configuration::Configuration;
use crate::configuration::flags::Flags;

/// The capabilities of this agent, by Mesos's names.
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

/// Returns the name of an agent with these flags. It depends on flags alone: a changed route must not change the name
/// of an agent that starts again.
pub(crate) fn hostname_of(flags: &Flags) -> String {
    let given = flags.hostname.clone();
    given.unwrap_or_else(|| hostname::for_address(flags.advertise_ip.unwrap_or(flags.ip)))
}

/// The agent's description for its registration, without an id.
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
