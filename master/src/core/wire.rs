//! Resources between messages and the vocabulary, as the core needs them.

use meseta_proto::convert;
use meseta_proto::mesos::v1;
use meseta_resources::Resources;

pub use meseta_proto::convert::Format;

/// Reads resources of any format; what is wrong with them is told in Mesos's words.
pub(super) fn from_wire(resources: &[v1::Resource]) -> Result<Resources, String> {
    convert::resources(resources).map_err(|error| error.to_string())
}

/// Writes resources. What the format before refinement cannot say is left out: whoever speaks only
/// that could not use it.
#[must_use]
pub fn to_wire(resources: &Resources, format: Format) -> Vec<v1::Resource> {
    match convert::to_resources(resources, format) {
        Ok(messages) => messages,
        Err(_) => resources
            .iter()
            .filter_map(|resource| convert::to_resource(resource, format).ok())
            .collect(),
    }
}

/// What an agent has when some of it was reserved or made into volumes since it started first.
pub(super) fn apply_checkpointed(
    total: &Resources,
    checkpointed: &Resources,
) -> Result<Resources, String> {
    let mut result = total.clone();
    for resource in checkpointed {
        let plain = resource.to_unreserved();
        let plain = Resources::from(meseta_resources::Resource::plain(
            plain.name().clone(),
            plain.value().clone(),
        ));
        if result.contains(&Resources::from(resource.clone())) {
            continue;
        }
        result = result.checked_sub(&plain).map_err(|error| {
            format!("checkpointed resources are not among the agent's: {error}")
        })?;
        result += resource;
    }
    Ok(result)
}
