//! Validation of operations: the rules of Mesos, in its order and wording.
//!
//! Entered through [`validate`]. The check covers whether the operation is possible on any resources, not whether the
//! resources are available.

use std::collections::BTreeSet;

use meseta_proto::mesos::v1::agent_info::capability::Type as Capability;
use meseta_proto::{Invalid, invalid};
use meseta_resources::{
    Conversion, ConversionError, DiskSourceKind, ID_BYTES_MAX, Operation, Reservation, Resource,
    Resources, Role, Scalar, VolumeMode, common_reservations,
};

use crate::core::state::agent::Agent;
use crate::core::state::framework::Framework;
use crate::core::state::operation::RESOURCES_PER_OPERATION_MAX;
use crate::core::state::resource_size::check_texts;

/// The principal that makes the request.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct Requester<'a> {
    /// The principal that its reservations and volumes must name, if it has one.
    pub(in crate::core) principal: Option<&'a str>,
    /// The framework, or `None` for an operator.
    pub(in crate::core) framework: Option<&'a Framework>,
}

/// Checks an operation. A framework's resources are allocated, and an operator's are not.
pub(in crate::core) fn validate(
    operation: &Operation,
    requester: Requester<'_>,
    agent: &Agent,
) -> Result<(), Invalid> {
    check_count(operation)?;
    match operation {
        Operation::Reserve { source, resources } => {
            check_texts(resources)?;
            check_each(resources)?;
            check_all(source).map_err(Invalid::within("Invalid source"))?;
            if !source.is_empty() {
                check_source(source, resources)?;
            }
            check_provider(resources)?;
            let kept = match source.as_slice() {
                [] => None,
                source => Some(common_reservations(source.iter().chain(resources))),
            };
            for resource in resources {
                check_reserve(resource, kept, requester, agent)?;
            }
            check_roles(resources, requester)
                .map_err(Invalid::within("Invalid reservation resources"))
        }
        Operation::Unreserve(resources) => {
            check_each(resources)?;
            check_provider(resources)?;
            resources.iter().try_for_each(check_unreserve)
        }
        Operation::Create(volumes) => {
            check_texts(volumes)?;
            check_each(volumes)?;
            check_provider(volumes)?;
            check_volumes(volumes)?;
            check_unique(&agent.profile.total, volumes)?;
            for volume in volumes {
                check_create(volume, requester, agent)?;
            }
            check_roles(volumes, requester).map_err(Invalid::within("Invalid volume resources"))
        }
        Operation::Destroy(volumes) => {
            check_each(volumes)?;
            check_provider(volumes)?;
            check_volumes(volumes)?;
            check_creators(volumes, agent)?;
            check_destroy(volumes, agent)
        }
        Operation::Grow { volume, addition } => {
            check_texts([volume])?;
            check_creators(std::slice::from_ref(volume), agent)?;
            check_grow(volume, addition, agent)
        }
        Operation::Shrink { volume, subtract } => {
            check_texts([volume])?;
            check_creators(std::slice::from_ref(volume), agent)?;
            check_shrink(volume, *subtract, agent)
        }
    }
}

/// A rule of Meseta: one operation may name a limited number of resources.
fn check_count(operation: &Operation) -> Result<(), Invalid> {
    let count = match operation {
        Operation::Reserve { source, resources } => source.len() + resources.len(),
        Operation::Unreserve(resources) => resources.len(),
        Operation::Create(volumes) | Operation::Destroy(volumes) => volumes.len(),
        Operation::Grow { .. } | Operation::Shrink { .. } => 2,
    };
    if count > RESOURCES_PER_OPERATION_MAX {
        return Err(invalid!(
            "It names {count} resources, and one operation may name at most \
             {RESOURCES_PER_OPERATION_MAX}: divide it"
        ));
    }
    Ok(())
}

/// Checks the rules for each resource of RESERVE, UNRESERVE, CREATE and DESTROY.
fn check_each(resources: &[Resource]) -> Result<(), Invalid> {
    check_all(resources).map_err(Invalid::within("Invalid resources"))
}

fn check_all(resources: &[Resource]) -> Result<(), Invalid> {
    for resource in resources {
        let gpus = resource.check_gpus();
        gpus.map_err(Invalid::within("Invalid 'gpus' resource"))?;
        check_disk(resource).map_err(Invalid::within("Invalid DiskInfo"))?;
        if resource.is_dynamically_reserved() && resource.is_revocable() {
            return Err(invalid!(
                "Invalid ReservationInfo: Dynamically reserved resource {resource} cannot be \
                 created from revocable resources"
            ));
        }
    }
    Ok(())
}

fn check_disk(resource: &Resource) -> Result<(), Invalid> {
    let Some(disk) = resource.disk() else {
        return Ok(());
    };
    if disk.persistence.is_none() {
        return if disk.volume.is_some() {
            Err(invalid!("Non-persistent volume not supported"))
        } else if disk.source.is_none() {
            Err(invalid!("DiskInfo is set but empty"))
        } else {
            Ok(())
        };
    }
    if resource.is_revocable() {
        return Err(invalid!(
            "Persistent volumes cannot be created from revocable resources"
        ));
    }
    if resource.is_unreserved() {
        return Err(invalid!(
            "Persistent volumes cannot be created from unreserved resources"
        ));
    }
    match &disk.volume {
        None => Err(invalid!(
            "Expecting 'volume' to be set for persistent volume"
        )),
        Some(volume) if volume.host_path.is_some() => Err(invalid!(
            "Expecting 'host_path' to be unset for persistent volume"
        )),
        Some(_) => Ok(()),
    }
}

/// Checks that all resources belong to the agent itself, or to a single provider.
fn check_provider(resources: &[Resource]) -> Result<(), Invalid> {
    let providers: BTreeSet<Option<&str>> = resources
        .iter()
        .map(|resource| resource.provider_id().map(|id| id.as_str()))
        .collect();
    match providers.len() {
        0 => Err(invalid!("Invalid resources: No resources are named")),
        1 => Ok(()),
        _ if providers.contains(&None) => Err(invalid!(
            "Invalid resources: Some resources have a resource provider and some do not"
        )),
        _ => {
            let ids: Vec<&str> = providers.into_iter().flatten().collect();
            Err(invalid!(
                "Invalid resources: The resources have multiple resource providers: {}",
                ids.join(", ")
            ))
        }
    }
}

fn check_source(source: &[Resource], target: &[Resource]) -> Result<(), Invalid> {
    check_alike(source).map_err(Invalid::within("Invalid source"))?;
    check_alike(target).map_err(Invalid::within("Invalid resources"))?;
    let plain = |resources: &[Resource]| {
        let all: Resources = resources.iter().cloned().collect();
        all.to_unreserved()
    };
    let (before, after) = (plain(source), plain(target));
    if before != after {
        return Err(invalid!(
            "Source and target resources should refer to identical resource quantities: {before} \
             vs. {after}"
        ));
    }
    let all = |resources: &[Resource]| resources.iter().cloned().collect();
    let moved = Conversion::rereserve(&all(source), &all(target));
    moved.map(drop).map_err(Invalid::from_error)
}

fn check_alike(resources: &[Resource]) -> Result<(), Invalid> {
    let Some(first) = resources.first() else {
        return Err(invalid!("Resource cannot be empty"));
    };
    if resources
        .iter()
        .all(|resource| resource.reservations() == first.reservations())
    {
        return Ok(());
    }
    let all: Resources = resources.iter().cloned().collect();
    Err(invalid!("Mixed reservations are not supported: {all}"))
}

/// Checks a resource to reserve. `kept` is the number of its former reservations; by default all but the last.
fn check_reserve(
    resource: &Resource,
    kept: Option<usize>,
    requester: Requester<'_>,
    agent: &Agent,
) -> Result<(), Invalid> {
    let top = resource.reservation();
    let Some(top) = top.filter(|_| resource.is_dynamically_reserved()) else {
        return Err(invalid!("Resource {resource} is not dynamically reserved"));
    };
    if !agent.profile.has(Capability::HierarchicalRole) && top.role.as_str().contains('/') {
        return Err(invalid!(
            "Resource {resource} with reservation for hierarchical role '{}' cannot be reserved on \
             an agent without HIERARCHICAL_ROLE capability",
            top.role
        ));
    }
    if !agent.profile.has(Capability::ReservationRefinement) && resource.has_refined_reservations()
    {
        return Err(invalid!(
            "Resource {resource} with reservation refinement cannot be reserved on an agent \
             without RESERVATION_REFINEMENT capability"
        ));
    }
    if resource.is_persistent_volume() {
        return Err(Invalid::from_error(ConversionError::VolumePresent(
            resource.clone(),
        )));
    }
    if let Some(principal) = requester.principal {
        let stack = resource.reservations();
        let kept = kept.unwrap_or_else(|| stack.len().saturating_sub(1));
        for pushed in stack.iter().skip(kept) {
            check_reserver(pushed, principal)?;
        }
    }
    let allocated = resource.allocation_role();
    match (requester.framework, allocated) {
        (Some(framework), Some(allocated)) => check_own_role(&top.role, allocated, framework),
        (Some(_), None) => Err(invalid!(
            "A reserve operation was attempted on unallocated resource {resource}, but frameworks \
             can only perform reservations on allocated resources"
        )),
        (None, Some(_)) => Err(invalid!(
            "A reserve operation was attempted with an allocated resource, but \
                                the operator API only allows reservations to be made to \
                                unallocated resources"
        )),
        (None, None) => Ok(()),
    }
}

/// Checks that the principal of a new reservation is the requester's own.
fn check_reserver(pushed: &Reservation, principal: &str) -> Result<(), Invalid> {
    match pushed.principal.as_deref() {
        None => Err(invalid!(
            "A reserve operation was attempted by principal '{principal}', but there is a \
             reserved resource in the request with no principal set"
        )),
        Some(reserver) if reserver != principal => Err(invalid!(
            "A reserve operation was attempted by authenticated principal '{principal}', \
             which does not match a reserved resource in the request with principal \
             '{reserver}'"
        )),
        Some(_) => Ok(()),
    }
}

/// Checks that a framework reserves for the role of the offer.
fn check_own_role(role: &Role, allocated: &Role, framework: &Framework) -> Result<(), Invalid> {
    if role != allocated {
        return Err(invalid!(
            "A reserve operation was attempted for a resource with role '{role}', but the resource \
             was allocated to role '{allocated}'"
        ));
    }
    if !framework.terms.roles.contains(allocated) {
        let roles: Vec<&str> = framework.terms.roles.iter().map(Role::as_str).collect();
        return Err(invalid!(
            "A reserve operation was attempted for a resource allocated to role '{allocated}', but \
             the framework only has roles '{{ {} }}'",
            roles.join(", ")
        ));
    }
    Ok(())
}

/// Checks that all resources of a framework are allocated to one role.
fn check_roles(resources: &[Resource], requester: Requester<'_>) -> Result<(), Invalid> {
    if requester.framework.is_none() {
        return Ok(());
    }
    let mut roles = resources.iter().map(Resource::allocation_role);
    let Some(first) = roles.next() else {
        return Ok(());
    };
    let unallocated = || "The resources are not allocated to a role".to_owned();
    let first = first.ok_or_else(unallocated)?;
    for role in roles {
        let role = role.ok_or_else(unallocated)?;
        if role != first {
            return Err(invalid!(
                "The resources have multiple allocation roles ('{role}' and '{first}') but only \
                 one allocation role is allowed"
            ));
        }
    }
    Ok(())
}

fn check_unreserve(resource: &Resource) -> Result<(), Invalid> {
    if !resource.is_dynamically_reserved() {
        return Err(invalid!("Resource {resource} is not dynamically reserved"));
    }
    if resource.is_persistent_volume() {
        return Err(invalid!(
            "A dynamically reserved persistent volume {resource} cannot be unreserved directly. \
             Please destroy the persistent volume first then unreserve the resource"
        ));
    }
    Ok(())
}

fn check_volumes(volumes: &[Resource]) -> Result<(), Invalid> {
    let mut volumes = volumes.iter();
    let checked = volumes.try_for_each(check_volume);
    checked.map_err(Invalid::within("Not a persistent volume"))
}

fn check_volume(volume: &Resource) -> Result<(), Invalid> {
    let Some(disk) = volume.disk() else {
        return Err(invalid!("Resource {volume} does not have DiskInfo"));
    };
    if disk.persistence.is_none() {
        return Err(invalid!("'persistence' is not set in DiskInfo"));
    }
    match &disk.volume {
        None => Err(invalid!(
            "Expecting 'volume' to be set for persistent volume"
        )),
        Some(mount) if mount.mode == VolumeMode::ReadOnly => {
            Err(invalid!("Read-only persistent volume not supported"))
        }
        Some(_) => Ok(()),
    }
}

/// Checks that a volume's id is unique within its role on the agent.
fn check_unique(total: &Resources, volumes: &[Resource]) -> Result<(), Invalid> {
    let existing = total.persistent_volumes();
    let mut seen = BTreeSet::new();
    for volume in existing.iter().chain(volumes) {
        let persistence = volume.disk().and_then(|disk| disk.persistence.as_ref());
        let (Some(role), Some(persistence)) = (volume.reservation_role(), persistence) else {
            continue;
        };
        if !seen.insert((role, &*persistence.id)) {
            return Err(invalid!(
                "Persistence ID '{}' is not unique",
                persistence.id
            ));
        }
    }
    Ok(())
}

fn check_create(volume: &Resource, requester: Requester<'_>, agent: &Agent) -> Result<(), Invalid> {
    if let Some(framework) = requester.framework
        && volume.is_shared()
        && !framework.terms.capabilities.shared_resources
    {
        return Err(invalid!(
            "Create volume operation for '{volume}' has been attempted by framework '{}' with no \
             SHARED_RESOURCES capability",
            framework.id
        ));
    }
    let role = volume.reservation_role().map_or("*", Role::as_str);
    if role.len() > ID_BYTES_MAX {
        return Err(invalid!(
            "A volume cannot be created for a role of {} bytes: its folder is named after the role, \
             and a name has at most {ID_BYTES_MAX}",
            role.len()
        ));
    }
    if !agent.profile.has(Capability::HierarchicalRole) && role.contains('/') {
        return Err(invalid!(
            "Volume {volume} with reservation for hierarchical role '{role}' cannot be created on \
             an agent without HIERARCHICAL_ROLE capability"
        ));
    }
    if !agent.profile.has(Capability::ReservationRefinement) && volume.has_refined_reservations() {
        return Err(invalid!(
            "Volume {volume} with reservation refinement cannot be created on an agent without \
             RESERVATION_REFINEMENT capability"
        ));
    }
    let Some(principal) = requester.principal else {
        return Ok(());
    };
    let persistence = volume.disk().and_then(|disk| disk.persistence.as_ref());
    match persistence.and_then(|persistence| persistence.principal.as_deref()) {
        None => Err(invalid!(
            "Create volume operation attempted by principal '{principal}', but there is a volume \
             in the operation with no principal set in 'disk.persistence'"
        )),
        Some(creator) if creator != principal => Err(invalid!(
            "Create volume operation attempted by authenticated principal '{principal}', which \
             does not match a volume in the operation with principal '{creator}' set in \
             'disk.persistence'"
        )),
        Some(_) => Ok(()),
    }
}

/// Refuses volumes with a wrong creator: the right to a volume belongs to its creator, and the creator in the request
/// is the one that was authorized.
fn check_creators(volumes: &[Resource], agent: &Agent) -> Result<(), Invalid> {
    let creator = |volume: &Resource| {
        let persistence = volume.disk()?.persistence.as_ref()?;
        persistence.principal.clone()
    };
    let existing = || {
        agent
            .profile
            .total
            .iter()
            .filter(|one| one.needs_checkpoint())
    };
    let is_right = |volume: &Resource| {
        let named = creator(volume);
        named.is_none()
            || existing().any(|there| there.is_same_thing_as(volume) && creator(there) == named)
    };
    if volumes.iter().all(is_right) {
        Ok(())
    } else {
        Err(invalid!("Persistent volumes not found"))
    }
}

fn check_destroy(volumes: &[Resource], agent: &Agent) -> Result<(), Invalid> {
    let existing = &agent.profile.total;
    let bare = |volume: &Resource| volume.clone().with_allocation(None);
    if !volumes
        .iter()
        .all(|volume| existing.contains_resource(&bare(volume)))
    {
        return Err(invalid!("Persistent volumes not found"));
    }
    // Only a shared volume can be in use and offered at the same time.
    let used: Vec<Resources> = agent.used.values().map(Resources::unallocate).collect();
    let is_used = |volume: &Resource| {
        let volume = bare(volume);
        used.iter().any(|used| used.contains_resource(&volume))
    };
    if volumes.iter().any(is_used) {
        return Err(invalid!("Persistent volumes in use"));
    }
    Ok(())
}

fn check_grow(volume: &Resource, addition: &Resource, agent: &Agent) -> Result<(), Invalid> {
    if !addition.scalar().is_some_and(Scalar::is_positive) {
        return Err(invalid!(
            "The size of 'GrowVolume.addition' field must be greater than zero"
        ));
    }
    if volume.provider_id().is_some() {
        return Err(invalid!(
            "Growing a volume from a resource provider is not supported"
        ));
    }
    check_volume(volume).map_err(Invalid::within(
        "Invalid persistent volume in the 'GrowVolume.volume' field",
    ))?;
    if volume.is_shared() {
        return Err(invalid!(
            "Growing a shared persistent volume is not supported"
        ));
    }
    if Conversion::grow(volume, addition).is_err() {
        return Err(invalid!(
            "Incompatible resources in the 'GrowVolume.volume' and 'GrowVolume.addition' fields"
        ));
    }
    if !agent.profile.has(Capability::ResizeVolume) {
        return Err(invalid!(
            "Volume {volume} cannot be grown on an agent without RESIZE_VOLUME capability"
        ));
    }
    Ok(())
}

fn check_shrink(volume: &Resource, subtract: Scalar, agent: &Agent) -> Result<(), Invalid> {
    if !subtract.is_positive() {
        return Err(invalid!(
            "Value of 'ShrinkVolume.subtract' must be greater than zero"
        ));
    }
    if volume.scalar().is_none_or(|size| size <= subtract) {
        return Err(invalid!(
            "Value of 'ShrinkVolume.subtract' must be smaller than the size of \
                    'ShrinkVolume.volume'"
        ));
    }
    if volume.provider_id().is_some() {
        return Err(invalid!(
            "Shrinking a volume from a resource provider is not supported"
        ));
    }
    if volume.is_disk_of(DiskSourceKind::Mount) {
        return Err(invalid!(
            "Shrinking a volume on a MOUNT disk is not supported"
        ));
    }
    check_volume(volume).map_err(Invalid::within(
        "Invalid persistent volume in the 'ShrinkVolume.volume' field",
    ))?;
    if volume.is_shared() {
        return Err(invalid!(
            "Shrinking a shared persistent volume is not supported"
        ));
    }
    if !agent.profile.has(Capability::ResizeVolume) {
        return Err(invalid!(
            "Volume {volume} cannot be shrunk on an agent without RESIZE_VOLUME capability"
        ));
    }
    Ok(())
}
