//! The operations that make a volume for an instance, adapt its reservation, and release both: pure.

use meseta_resources::{
    Disk, Label, Labels, Operation, Persistence, Reservation, Resource, Resources, Role,
    Volume as Mount, VolumeMode,
};

use super::input::NamedOperation;
use super::volume::{Step, operation_id};
use crate::placement::{Placement, VOLUME_LABEL, reserved_for, volume_in};
use crate::spec::JobSpec;
use crate::task_info::{INDEX_LABEL, JOB_LABEL};

/// Bytes that the operations of one instance add to an ACCEPT, beside the texts that its task contains too.
pub(super) const OPERATIONS_BYTES: usize = 8_192;

/// Returns the reservation for an instance, or `None` if the role permits no reservation.
pub(super) fn reservation_of(
    (job, index): (&str, u32),
    id: &str,
    role: &str,
    principal: Option<&str>,
) -> Option<Reservation> {
    let role = Role::new(role).ok()?;
    let label = |key: &str, value: String| Label {
        key: key.to_owned(),
        value: Some(value),
    };
    let labels = vec![
        label(JOB_LABEL, job.to_owned()),
        label(INDEX_LABEL, index.to_string()),
        label(VOLUME_LABEL, id.to_owned()),
    ];
    Some(Reservation {
        labels: Labels::new(labels),
        ..Reservation::dynamic(role, principal)
    })
}

/// The resources to launch an instance with, and the operations before the launch.
pub(super) struct Prepared {
    pub(super) resources: Resources,
    pub(super) operations: Vec<NamedOperation>,
    /// Whether the operations reserve further resources.
    pub(super) reserves: bool,
}

/// Returns the maximum number of resources that the operations of [`prepare`] name.
pub(super) fn named_at_most(placement: &Placement) -> usize {
    let surplus = placement.returned.as_ref();
    let surplus = surplus.map_or(0, |returned| returned.surplus.len());
    placement.resources.len() + 2 * placement.new_volume.len() + surplus
}

/// Returns how many resources the operations name.
pub(super) fn named_by(operations: &[NamedOperation]) -> usize {
    let named = operations.iter().map(|named| match &named.operation {
        Operation::Reserve { source, resources } => source.len() + resources.len(),
        Operation::Unreserve(resources)
        | Operation::Create(resources)
        | Operation::Destroy(resources) => resources.len(),
        _ => 0,
    });
    named.sum()
}

/// Reserves the reservable resources of the task, creates the volume if it is new, and unreserves surplus resources.
pub(super) fn prepare(
    placement: &Placement,
    spec: &JobSpec,
    id: &str,
    attempt: u128,
    reservation: Option<&Reservation>,
) -> Prepared {
    let (mut resources, mut reserved) = (Resources::new(), Vec::new());
    let mut reserve = |resource: &Resource| {
        let is_scalar = resource.scalar().is_some() && !resource.is_revocable();
        let pushed = reservation
            .filter(|_| is_scalar)
            .and_then(|reservation| resource.push_reservation(reservation.clone()).ok());
        match pushed {
            Some(pushed) => {
                reserved.push(pushed.clone());
                pushed
            }
            // Ports change from task to task, and resources of the agent's `--resources` are already reserved.
            None => resource.clone(),
        }
    };
    for resource in &placement.resources {
        resources.insert(reserve(resource));
    }
    let disks: Vec<Resource> = placement.new_volume.iter().map(&mut reserve).collect();
    let mut created = Vec::new();
    for disk in disks {
        created.extend(with_volume(disk, spec, id, reservation));
    }
    for volume in &created {
        resources.insert(volume.clone());
    }
    let reserves = !reserved.is_empty();
    let mut operations = Vec::new();
    let mut named = |step: Step, number: Option<u128>, operation: Operation| {
        operations.push(NamedOperation {
            id: operation_id(id, step, number),
            operation,
        });
    };
    let reserve = |resources| Operation::Reserve {
        source: Vec::new(),
        resources,
    };
    if let Some(returned) = &placement.returned {
        let surplus = returned.surplus.iter().cloned();
        let is_own = |one: &Resource| reserved_for(one) == Some(id);
        let surplus = surplus.filter(|one| one.is_dynamically_reserved() && is_own(one));
        let surplus: Vec<_> = surplus.collect();
        if !surplus.is_empty() {
            named(Step::Reduce, Some(attempt), Operation::Unreserve(surplus));
        }
        if reserves {
            named(Step::Enlarge, Some(attempt), reserve(reserved));
        }
        resources += &returned.used;
        resources.insert(returned.volume.clone());
    } else {
        if reserves {
            named(Step::Reserve, None, reserve(reserved));
        }
        named(Step::Create, None, Operation::Create(created));
    }
    Prepared {
        resources,
        operations,
        reserves,
    }
}

/// Returns the volume made of a disk, or `None` if the disk cannot become a volume.
fn with_volume(
    disk: Resource,
    spec: &JobSpec,
    id: &str,
    reservation: Option<&Reservation>,
) -> Option<Resource> {
    let volume = spec.volume.as_ref()?;
    let mut parts = disk.into_parts();
    parts.disk = Some(Disk {
        persistence: Some(Persistence {
            id: id.into(),
            principal: reservation.and_then(|reservation| reservation.principal.clone()),
        }),
        volume: Some(Mount {
            container_path: volume.path.clone(),
            host_path: None,
            mode: VolumeMode::ReadWrite,
        }),
        source: None,
    });
    Resource::new(parts).ok()
}

/// Returns the disk that is left after a volume is destroyed.
fn without_volume(volume: &Resource) -> Option<Resource> {
    let mut parts = volume.clone().into_parts();
    parts.disk = None;
    Resource::new(parts).ok()
}

/// Unreserves the resources of an instance; destroys its volume too, if requested.
pub(super) fn release(
    id: &str,
    held: &Resources,
    destroys: bool,
    number: u64,
) -> Vec<NamedOperation> {
    let mut operations = Vec::new();
    let mut named = |step: Step, operation: Operation| {
        operations.push(NamedOperation {
            id: operation_id(id, step, Some(number.into())),
            operation,
        });
    };
    let is_plain = |one: &&Resource| !one.is_persistent_volume();
    let mut rest: Vec<Resource> = held.iter().filter(is_plain).cloned().collect();
    if let Some(volume) = volume_in(held, id).filter(|_| destroys) {
        rest.extend(without_volume(&volume));
        named(Step::Destroy, Operation::Destroy(vec![volume]));
    }
    // Resources that an operator has reserved stay reserved, even if the volume was made of them.
    rest.retain(|one| one.is_dynamically_reserved() && reserved_for(one) == Some(id));
    if !rest.is_empty() {
        named(Step::Unreserve, Operation::Unreserve(rest));
    }
    operations
}
