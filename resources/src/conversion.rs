//! The effect of operations on reservations and volumes on an agent's resources: consumed resources become produced ones.
//!
//! Each operation has a constructor of [`Conversion`], and [`Conversion::apply`] carries it out. Invariant: the produced
//! resources have the quantities of the consumed ones. Permissions are not checked here.

use crate::disk::VolumeMode;
use crate::stack::common_reservations;
use crate::{
    Disk, DiskSourceKind, NotContained, ReservationError, ReservationKind, Resource, Resources,
    Scalar, Value,
};

/// A step of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversion {
    consumed: Resources,
    produced: Resources,
    /// The resource that must be absent afterwards: the destroyed volume.
    gone: Option<Resource>,
}

/// Errors of an impossible operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConversionError {
    #[error(transparent)]
    Reservation(#[from] ReservationError),
    #[error("{0} is not a persistent volume: it needs disk.persistence with an id")]
    NotPersistent(Resource),
    #[error("{0} is not reserved: only a reserved disk can become a persistent volume")]
    NotReserved(Resource),
    #[error("{0} has no volume: disk.volume with a container_path must say where it is mounted")]
    NoVolume(Resource),
    #[error("{0} names a host_path; a persistent volume must not")]
    HostPath(Resource),
    #[error("{0} is mounted read-only; a persistent volume must be RW")]
    ReadOnly(Resource),
    #[error("{0} is revocable: what can be taken back can be neither reserved nor made a volume")]
    Revocable(Resource),
    #[error("{0} is a volume, whose data is kept for its role: destroy the volume first")]
    VolumePresent(Resource),
    #[error(
        "{0} would change a static reservation: that is the agent's own, from its --resources, and \
         neither made nor moved at run time"
    )]
    Static(Resource),
    #[error("{0} is shared and cannot be resized")]
    Shared(Resource),
    #[error("{0} cannot be divided and so cannot be shrunk")]
    Indivisible(Resource),
    #[error("{addition} cannot be added to {volume}: {why}")]
    Addition {
        volume: Resource,
        addition: Resource,
        why: &'static str,
    },
    #[error(
        "{subtract} cannot be taken from {volume}: it must be more than 0 and less than the volume"
    )]
    Subtract { volume: Resource, subtract: Scalar },
    #[error(
        "the source has {before}, the target {after}: a reservation does not change quantities"
    )]
    QuantitiesDiffer { before: Resources, after: Resources },
    #[error(
        "{0} and {1} have different reservations: all resources of one side need the same reservations"
    )]
    StacksDiffer(Resource, Resource),
    #[error(transparent)]
    NotContained(#[from] NotContained),
    #[error("Persistent volume {0} cannot be removed: other shared copies of it remain")]
    CopiesRemain(Resource),
}

impl Conversion {
    /// A conversion of the consumed into the produced resources, without checks.
    #[must_use]
    pub const fn new(consumed: Resources, produced: Resources) -> Self {
        Self {
            consumed,
            produced,
            gone: None,
        }
    }

    #[must_use]
    pub const fn consumed(&self) -> &Resources {
        &self.consumed
    }

    #[must_use]
    pub const fn produced(&self) -> &Resources {
        &self.produced
    }

    /// This step on unallocated resources.
    #[must_use]
    pub fn unallocate(&self) -> Self {
        Self {
            consumed: self.consumed.unallocate(),
            produced: self.produced.unallocate(),
            gone: self.gone.clone().map(|gone| gone.with_allocation(None)),
        }
    }

    /// RESERVE: takes the resources with the last reservation popped, and produces `target`.
    ///
    /// # Errors
    /// When a resource of `target` is not dynamically reserved, is revocable, or is a volume.
    pub fn reserve(target: &Resources) -> Result<Self, ConversionError> {
        for resource in target {
            check_dynamic(resource)?;
            check_no_volume(resource)?;
        }
        Ok(Self::new(target.pop_reservation()?, target.clone()))
    }

    /// RESERVE with an explicit source: replaces the reservations of `source` by those of `target`.
    ///
    /// # Errors
    /// When either side is not reserved alike throughout, has volumes, or the quantities differ, or when a static reservation
    /// would change.
    pub fn rereserve(source: &Resources, target: &Resources) -> Result<Self, ConversionError> {
        for resource in target {
            check_dynamic(resource)?;
        }
        check_alike(source)?;
        check_alike(target)?;
        check_changes(source, target)?;
        let (before, after) = (source.to_unreserved(), target.to_unreserved());
        if before != after {
            return Err(ConversionError::QuantitiesDiffer { before, after });
        }
        Ok(Self::new(source.clone(), target.clone()))
    }

    /// UNRESERVE: pops the last reservation of each resource.
    ///
    /// # Errors
    /// When a resource is not dynamically reserved, or is still a volume.
    pub fn unreserve(resources: &Resources) -> Result<Self, ConversionError> {
        for resource in resources {
            check_dynamic(resource)?;
            check_no_volume(resource)?;
        }
        Ok(Self::new(resources.clone(), resources.pop_reservation()?))
    }

    /// CREATE: makes a volume on the disk that it will occupy.
    ///
    /// # Errors
    /// When `volume` is not a reserved persistent volume with a mount point, read-write.
    pub fn create(volume: &Resource) -> Result<Self, ConversionError> {
        let stripped = strip(volume)?;
        if volume.is_unreserved() {
            return Err(ConversionError::NotReserved(volume.clone()));
        }
        if volume.is_revocable() {
            return Err(ConversionError::Revocable(volume.clone()));
        }
        let mount = volume.disk().and_then(|disk| disk.volume.as_ref());
        let mount = mount.ok_or_else(|| ConversionError::NoVolume(volume.clone()))?;
        if mount.host_path.is_some() {
            return Err(ConversionError::HostPath(volume.clone()));
        }
        if mount.mode != VolumeMode::ReadWrite {
            return Err(ConversionError::ReadOnly(volume.clone()));
        }
        Ok(Self::new(stripped.into(), volume.clone().into()))
    }

    /// DESTROY: gives the disk of a volume back.
    ///
    /// # Errors
    /// When `volume` is not a persistent volume.
    pub fn destroy(volume: &Resource) -> Result<Self, ConversionError> {
        let stripped = strip(volume)?;
        Ok(Self {
            consumed: volume.clone().into(),
            produced: stripped.into(),
            gone: Some(volume.clone()),
        })
    }

    /// GROW_VOLUME: adds a stretch of the same disk to a volume.
    ///
    /// # Errors
    /// When the volume is shared or the addition is not of the disk that the volume is on.
    pub fn grow(volume: &Resource, addition: &Resource) -> Result<Self, ConversionError> {
        let size = resizable(volume)?;
        let refused = |why| ConversionError::Addition {
            volume: volume.clone(),
            addition: addition.clone(),
            why,
        };
        let more = addition.scalar().filter(|more| more.is_positive());
        let more = more.ok_or_else(|| refused("there must be more than 0"))?;
        if strip(volume)?.compare_thing(addition).is_ne() || addition.is_exclusive() {
            return Err(refused(
                "both must be of the same disk, with the same reservation and allocation",
            ));
        }
        let grown = volume.with_value(Value::Scalar(size + more));
        let consumed = [volume.clone(), addition.clone()].into_iter().collect();
        Ok(Self::new(consumed, grown.into()))
    }

    /// SHRINK_VOLUME: gives a part of a volume's disk back.
    ///
    /// # Errors
    /// When the volume is shared or indivisible, or not larger than the subtracted amount.
    pub fn shrink(volume: &Resource, subtract: Scalar) -> Result<Self, ConversionError> {
        let size = resizable(volume)?;
        let stripped = strip(volume)?;
        if stripped.is_exclusive() {
            return Err(ConversionError::Indivisible(volume.clone()));
        }
        if !subtract.is_positive() || subtract >= size {
            return Err(ConversionError::Subtract {
                volume: volume.clone(),
                subtract,
            });
        }
        let kept = volume.with_value(Value::Scalar(size - subtract));
        let freed = stripped.with_value(Value::Scalar(subtract));
        Ok(Self::new(
            volume.clone().into(),
            [kept, freed].into_iter().collect(),
        ))
    }

    /// # Errors
    /// When `resources` do not contain the consumed resources, or copies of a destroyed volume remain.
    pub fn apply(&self, resources: &Resources) -> Result<Resources, ConversionError> {
        let mut result = resources.clone();
        self.apply_to(&mut result)?;
        Ok(result)
    }

    /// Applies the step in place, visiting few of very many resources.
    ///
    /// # Errors
    /// As [`Conversion::apply`]; `resources` may then lack the consumed resources.
    pub(crate) fn apply_to(&self, resources: &mut Resources) -> Result<(), ConversionError> {
        resources.try_sub_assign(&self.consumed)?;
        if let Some(volume) = &self.gone
            && resources.contains_resource(volume)
        {
            return Err(ConversionError::CopiesRemain(volume.clone()));
        }
        *resources += &self.produced;
        Ok(())
    }
}

fn check_dynamic(resource: &Resource) -> Result<(), ConversionError> {
    if resource.is_revocable() {
        return Err(ConversionError::Revocable(resource.clone()));
    }
    if !resource.is_dynamically_reserved() {
        return Err(ReservationError::NotDynamic(resource.to_string()).into());
    }
    Ok(())
}

fn check_alike(resources: &Resources) -> Result<(), ConversionError> {
    let mut all = resources.iter();
    let Some(first) = all.next() else {
        return Ok(());
    };
    match all.find(|resource| resource.reservations() != first.reservations()) {
        Some(other) => Err(ConversionError::StacksDiffer(first.clone(), other.clone())),
        None => Ok(()),
    }
}

/// Refuses persistent volumes: a volume stays with its role.
fn check_no_volume(resource: &Resource) -> Result<(), ConversionError> {
    if resource.is_persistent_volume() {
        return Err(ConversionError::VolumePresent(resource.clone()));
    }
    Ok(())
}

/// Checks that the popped and the pushed reservations are dynamic, and that the resources hold no volume.
fn check_changes(source: &Resources, target: &Resources) -> Result<(), ConversionError> {
    let both = || source.iter().chain(target.iter());
    let common = common_reservations(both());
    for resource in both() {
        check_no_volume(resource)?;
        let mut changed = resource.reservations().iter().skip(common);
        if changed.any(|one| one.kind == ReservationKind::Static) {
            return Err(ConversionError::Static(resource.clone()));
        }
    }
    Ok(())
}

/// The disk that a volume occupies.
fn strip(volume: &Resource) -> Result<Resource, ConversionError> {
    let disk = volume.disk().filter(|disk| disk.persistence.is_some());
    let disk = disk.ok_or_else(|| ConversionError::NotPersistent(volume.clone()))?;
    let source = disk.source.clone();
    let bare = source.map(|source| Disk {
        source: Some(source),
        ..Disk::default()
    });
    Ok(volume.with_disk(bare, false))
}

fn resizable(volume: &Resource) -> Result<Scalar, ConversionError> {
    if volume.is_shared() {
        return Err(ConversionError::Shared(volume.clone()));
    }
    if volume.is_disk_of(DiskSourceKind::Mount) {
        return Err(ConversionError::Indivisible(volume.clone()));
    }
    volume
        .scalar()
        .ok_or_else(|| ConversionError::NotPersistent(volume.clone()))
}
