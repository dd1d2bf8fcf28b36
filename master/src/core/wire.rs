//! Conversion of resources between messages and the internal types.

use meseta_proto::Invalid;
use meseta_proto::convert;
use meseta_proto::mesos::v1;
use meseta_proto::mesos::v1::scheduler::{Event, event};
use meseta_resources::{Resources, Role};

pub use meseta_proto::convert::Format;

/// Parses resources of any format. Errors have the wording of Mesos.
pub(super) fn from_wire(resources: &[v1::Resource]) -> Result<Resources, Invalid> {
    convert::resources(resources).map_err(Invalid::from_error)
}

/// The format that a framework understands.
pub(in crate::core) fn format_of(capabilities: convert::FrameworkCapabilities) -> Format {
    if capabilities.reservation_refinement {
        Format::PostRefinement
    } else {
        Format::PreRefinement
    }
}

/// Writes resources. Leaves out resources that the older format cannot express: a framework with only that format
/// could not use them.
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

/// An event of this type, without a body.
pub(super) fn event_of(kind: event::Type) -> Event {
    Event {
        r#type: Some(kind.into()),
        ..Event::default()
    }
}

/// Parses the resources of a task or executor, and allocates them to the offer's role.
pub(in crate::core) fn allocated(
    resources: &[v1::Resource],
    role: &Role,
) -> Result<Resources, Invalid> {
    Ok(allocate(&from_wire(resources)?, role))
}

/// Allocates all unallocated resources to a role.
pub(in crate::core) fn allocate(resources: &Resources, role: &Role) -> Resources {
    let resources = resources.iter();
    let allocated = resources.map(|resource| match resource.allocation_role() {
        Some(_) => resource.clone(),
        None => resource.clone().with_allocation(Some(role.clone())),
    });
    allocated.collect()
}

/// Writes resources for the agent, which knows only the newer format.
pub(in crate::core) fn for_agent(resources: &Resources) -> Vec<v1::Resource> {
    to_wire(resources, Format::PostRefinement)
}
