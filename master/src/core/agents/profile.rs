//! An agent's description of itself, and its registry record.

use std::collections::BTreeMap;
use std::sync::Arc;

use meseta_proto::meseta::v1 as meseta;
use meseta_proto::mesos::v1::agent_info::capability::Type as Capability;
use meseta_proto::mesos::v1::{self, AgentInfo};
use meseta_proto::schema;
use meseta_proto::{Invalid, invalid};
use meseta_resources::{AgentId, ResourceName, Resources, Scalar, Value, usual_ip};
use prost::Message;

use crate::core::state::agent::{AgentProfile, RecoveredAgent};
use crate::core::state::persisted::AgentRecord;
use crate::core::state::resource_size;
use crate::core::wire;

/// The longest frame for an agent in bytes, even if the agent accepts longer ones.
const FRAME_BYTES_MAX: u64 = 64 << 20;

/// Parses an agent's description of itself.
pub(in crate::core) fn profile(
    id: AgentId,
    mut register: meseta::Register,
) -> Result<AgentProfile, Invalid> {
    /// The longest possible hostname.
    const HOSTNAME_BYTES_MAX: usize = 255;
    // A returning agent includes its id as well, so the id counts in the size from the first registration on.
    register.agent_info.id = Some((&id).into());
    let message_bytes = schema::bytes_of(&register);
    let frame_bytes_max = register.frame_bytes_max.unwrap_or(FRAME_BYTES_MAX);
    let info = register.agent_info;
    if info.hostname.is_empty() || info.hostname.len() > HOSTNAME_BYTES_MAX {
        return Err(invalid!("the agent's hostname is empty or too long"));
    }
    let mut total = wire::from_wire(&info.resources)
        .map_err(Invalid::within("the agent's resources are invalid"))?;
    if !register.checkpointed_resources.is_empty() {
        let checkpointed = wire::from_wire(&register.checkpointed_resources).map_err(
            Invalid::within("the agent's checkpointed resources are invalid"),
        )?;
        total = total
            .with_checkpointed(&checkpointed)
            .map_err(Invalid::within(
                "checkpointed resources are not among the agent's",
            ))?;
    }
    check_sums(&total)?;
    // Computed like for operations, so that the difference of each operation is correct.
    let checkpointed = register.checkpointed_resources.iter();
    let checkpointed: usize = checkpointed.map(schema::bytes_of).sum();
    let bytes = message_bytes + resource_size::decoded_bytes(&total).saturating_sub(checkpointed);
    let address = register.address.unwrap_or_else(|| v1::Address {
        hostname: Some(info.hostname.clone()),
        ip: None,
        port: info.port.unwrap_or(5051),
    });
    let address = v1::Address {
        ip: address.ip.as_deref().map(usual_ip),
        ..address
    };
    let capabilities = register
        .capabilities
        .iter()
        .filter_map(|capability| Capability::try_from(capability.r#type?).ok())
        .collect();
    Ok(AgentProfile {
        id,
        info_bytes: info.encoded_len(),
        bytes,
        reserved_bytes: resource_size::reserved_bytes(&total),
        frame_bytes_max: usize::try_from(frame_bytes_max.min(FRAME_BYTES_MAX)).unwrap_or_default(),
        info,
        version: register.version,
        capabilities,
        address,
        total,
    })
}

/// Checks that the sum of each name fits a scalar, however many resources divide it, because the amounts of thousands
/// of agents are added.
pub(super) fn check_sums(total: &Resources) -> Result<(), Invalid> {
    let mut sums: BTreeMap<&ResourceName, i64> = BTreeMap::new();
    for resource in total {
        if let Value::Scalar(amount) = resource.value() {
            let sum = sums.entry(resource.name()).or_default();
            *sum = sum.saturating_add(amount.millis());
        }
    }
    match sums
        .into_iter()
        .find(|(_, sum)| *sum > Scalar::LIMIT.millis())
    {
        Some((name, _)) => Err(invalid!(
            "the agent has more than {} of '{}', over all reservations and volumes",
            Scalar::LIMIT,
            name.as_str().escape_debug()
        )),
        None => Ok(()),
    }
}

/// The registry's record of an agent.
pub(in crate::core) fn record(profile: &AgentProfile) -> AgentRecord {
    AgentRecord {
        agent_id: profile.id.to_string(),
        info: profile.info.encode_to_vec().into(),
    }
}

/// An agent from its registry record.
pub(in crate::core) fn recovered_agent(
    record: &AgentRecord,
) -> Result<(AgentId, RecoveredAgent), Invalid> {
    let id = AgentId::new(&record.agent_id).map_err(Invalid::from_error)?;
    let info = AgentInfo::decode(record.info.clone()).map_err(Invalid::from_error)?;
    let agent = RecoveredAgent {
        info: Arc::new(info),
        encoded: record.info.clone(),
        removal_pending: false,
        was_unreachable: false,
    };
    Ok((id, agent))
}
