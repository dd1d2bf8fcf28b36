//! A single resource: a value and all properties that distinguish it from other values of the same name.
//!
//! A [`Resource`] is valid by construction ([`Resource::new`] holds the rules; [`crate::RawResource`] has those that concern
//! the wire format). All but the value and the allocation is an identity behind one pointer, shared by everything derived
//! from the same resource: most comparisons end with that pointer, and a clone copies it.

use std::cmp::Ordering;
use std::fmt;
use std::sync::{Arc, LazyLock};

use crate::name::{DISK, GPUS, WELL_KNOWN};
use crate::reservation::{check_push, check_stack};
use crate::{
    Disk, DiskSourceKind, Reservation, ReservationError, ReservationKind, ResourceName,
    ResourceProviderId, Role, Scalar, Value, ValueKind,
};

/// A resource; see the module. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Resource {
    identity: Arc<Identity>,
    allocation_role: Option<Role>,
    value: Value,
}

/// The parts from which [`Resource::new`] makes a [`Resource`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceParts {
    pub name: ResourceName,
    pub value: Value,
    pub allocation_role: Option<Role>,
    /// The stack, bottom first.
    pub reservations: Vec<Reservation>,
    pub disk: Option<Disk>,
    pub revocable: bool,
    pub shared: bool,
    pub provider_id: Option<ResourceProviderId>,
}

impl ResourceParts {
    /// A resource with only a name and a value: unreserved, unallocated.
    #[must_use]
    pub fn plain(name: ResourceName, value: Value) -> Self {
        Self {
            name,
            value,
            allocation_role: None,
            reservations: Vec::new(),
            disk: None,
            revocable: false,
            shared: false,
            provider_id: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Identity {
    name: ResourceName,
    reservations: Vec<Reservation>,
    disk: Option<Disk>,
    revocable: bool,
    shared: bool,
    provider_id: Option<ResourceProviderId>,
}

impl Identity {
    fn plain(name: ResourceName) -> Arc<Self> {
        static SHARED: LazyLock<[Arc<Identity>; 5]> = LazyLock::new(|| {
            [
                ResourceName::cpus(),
                ResourceName::disk(),
                ResourceName::gpus(),
                ResourceName::mem(),
                ResourceName::ports(),
            ]
            .map(|name| Arc::new(Identity::bare(name)))
        });
        debug_assert!(
            SHARED
                .iter()
                .zip(WELL_KNOWN)
                .all(|(known, name)| known.name == name)
        );
        match ResourceName::well_known(name.as_str()) {
            Some(index) => SHARED[index].clone(),
            None => Arc::new(Self::bare(name)),
        }
    }

    fn bare(name: ResourceName) -> Self {
        Self {
            name,
            reservations: Vec::new(),
            disk: None,
            revocable: false,
            shared: false,
            provider_id: None,
        }
    }

    /// The shared identity if one exists, else this one.
    fn share(self) -> Arc<Self> {
        let plain = self.reservations.is_empty()
            && self.disk.is_none()
            && !self.revocable
            && !self.shared
            && self.provider_id.is_none();
        if plain {
            Self::plain(self.name)
        } else {
            Arc::new(self)
        }
    }
}

/// Errors of building a resource from parts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResourceError {
    #[error("Invalid scalar resource: value < 0: {name} is {value}")]
    NegativeScalar { name: ResourceName, value: Scalar },
    #[error("DiskInfo should not be set for {0} resource; only for 'disk'")]
    DiskInfoOnOther(ResourceName),
    #[error("{field} should not be set for {kind} disk source; only for PATH and MOUNT")]
    RootOnDevice {
        field: &'static str,
        kind: DiskSourceKind,
    },
    #[error(transparent)]
    Reservation(#[from] ReservationError),
    #[error("Resource {0} cannot be shared; only 'disk' can")]
    CannotBeShared(ResourceName),
    #[error("Only persistent volumes can be shared")]
    SharedNotPersistent,
    #[error("The '{GPUS}' resource must be a non-negative integer, not {0}")]
    FractionalGpus(Scalar),
}

impl Resource {
    /// # Errors
    /// When the parts contradict a rule; the error says which.
    pub fn new(parts: ResourceParts) -> Result<Self, ResourceError> {
        let ResourceParts {
            name,
            value,
            allocation_role,
            reservations,
            disk,
            revocable,
            shared,
            provider_id,
        } = parts;
        if let Some(scalar) = value.as_scalar()
            && scalar.is_negative()
        {
            return Err(ResourceError::NegativeScalar {
                name,
                value: scalar,
            });
        }
        if let Some(disk) = &disk {
            if name != DISK {
                return Err(ResourceError::DiskInfoOnOther(name));
            }
            if let Some(source) = &disk.source
                && matches!(source.kind, DiskSourceKind::Block | DiskSourceKind::Raw)
                && source.root.is_some()
            {
                return Err(ResourceError::RootOnDevice {
                    field: "Root",
                    kind: source.kind,
                });
            }
        }
        check_stack(&reservations)?;
        if shared {
            if name != DISK {
                return Err(ResourceError::CannotBeShared(name));
            }
            if disk.as_ref().is_none_or(|disk| disk.persistence.is_none()) {
                return Err(ResourceError::SharedNotPersistent);
            }
        }
        let identity = Identity {
            name,
            reservations,
            disk,
            revocable,
            shared,
            provider_id,
        };
        Ok(Self {
            identity: identity.share(),
            allocation_role,
            value,
        })
    }

    /// An unreserved, unallocated resource; a negative scalar becomes zero.
    #[must_use]
    pub fn plain(name: ResourceName, value: Value) -> Self {
        let value = match value {
            Value::Scalar(scalar) => Value::Scalar(scalar.max(Scalar::ZERO)),
            other => other,
        };
        Self {
            identity: Identity::plain(name),
            allocation_role: None,
            value,
        }
    }

    #[must_use]
    pub fn cpus(scalar: Scalar) -> Self {
        Self::plain(ResourceName::cpus(), scalar.into())
    }

    /// An amount of memory, in megabytes.
    #[must_use]
    pub fn mem(scalar: Scalar) -> Self {
        Self::plain(ResourceName::mem(), scalar.into())
    }

    #[must_use]
    pub fn into_parts(self) -> ResourceParts {
        let identity = Arc::unwrap_or_clone(self.identity);
        ResourceParts {
            name: identity.name,
            value: self.value,
            allocation_role: self.allocation_role,
            reservations: identity.reservations,
            disk: identity.disk,
            revocable: identity.revocable,
            shared: identity.shared,
            provider_id: identity.provider_id,
        }
    }

    #[must_use]
    pub fn name(&self) -> &ResourceName {
        &self.identity.name
    }

    #[must_use]
    pub fn value(&self) -> &Value {
        &self.value
    }

    #[must_use]
    pub fn kind(&self) -> ValueKind {
        self.value.kind()
    }

    #[must_use]
    pub fn scalar(&self) -> Option<Scalar> {
        self.value.as_scalar()
    }

    #[must_use]
    pub fn allocation_role(&self) -> Option<&Role> {
        self.allocation_role.as_ref()
    }

    /// The stack, bottom first.
    #[must_use]
    pub fn reservations(&self) -> &[Reservation] {
        &self.identity.reservations
    }

    /// The top of the stack.
    #[must_use]
    pub fn reservation(&self) -> Option<&Reservation> {
        self.identity.reservations.last()
    }

    /// The reservation role: the role at the top of the stack.
    #[must_use]
    pub fn reservation_role(&self) -> Option<&Role> {
        self.reservation().map(|reservation| &reservation.role)
    }

    #[must_use]
    pub fn disk(&self) -> Option<&Disk> {
        self.identity.disk.as_ref()
    }

    #[must_use]
    pub fn provider_id(&self) -> Option<&ResourceProviderId> {
        self.identity.provider_id.as_ref()
    }

    #[must_use]
    pub fn is_revocable(&self) -> bool {
        self.identity.revocable
    }

    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.identity.shared
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.value.is_empty()
    }

    #[must_use]
    pub fn is_reserved(&self) -> bool {
        !self.is_unreserved()
    }

    #[must_use]
    pub fn is_unreserved(&self) -> bool {
        self.identity.reservations.is_empty()
    }

    #[must_use]
    pub fn is_reserved_to(&self, role: &Role) -> bool {
        self.reservation_role() == Some(role)
    }

    /// Whether the top of the stack is dynamic.
    #[must_use]
    pub fn is_dynamically_reserved(&self) -> bool {
        self.reservation()
            .is_some_and(|top| top.kind == ReservationKind::Dynamic)
    }

    #[must_use]
    pub fn has_refined_reservations(&self) -> bool {
        self.identity.reservations.len() > 1
    }

    /// Whether only a stack of reservations can express the reservation: the fields `role` and `reservation` have one reservation
    /// at most, and only the role of a static one.
    #[must_use]
    pub fn needs_reservation_stack(&self) -> bool {
        match &self.identity.reservations[..] {
            [] => false,
            [single] => {
                let is_static = single.kind == ReservationKind::Static;
                is_static && (single.principal.is_some() || !single.labels.is_empty())
            }
            _ => true,
        }
    }

    /// Whether a framework of `role` may be offered this: unreserved, or reserved to the role or to one of its ancestors.
    #[must_use]
    pub fn is_allocatable_to(&self, role: &Role) -> bool {
        self.reservation_role()
            .is_none_or(|owner| role.is_in_subtree_of(owner))
    }

    #[must_use]
    pub fn is_persistent_volume(&self) -> bool {
        self.disk().is_some_and(|disk| disk.persistence.is_some())
    }

    #[must_use]
    pub fn is_disk_of(&self, kind: DiskSourceKind) -> bool {
        self.disk()
            .and_then(|disk| disk.source.as_ref())
            .is_some_and(|source| source.kind == kind)
    }

    /// Whether this is indivisible: volumes, file systems, devices.
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        self.disk().is_some_and(Disk::is_exclusive)
    }

    /// A copy of the resource with another value.
    #[must_use]
    pub fn with_value(&self, value: Value) -> Self {
        Self {
            identity: Arc::clone(&self.identity),
            allocation_role: self.allocation_role.clone(),
            value,
        }
    }

    /// Applies [`Resource::with_value`] and [`Resource::with_allocation`] at once.
    #[must_use]
    pub fn with_value_for(&self, value: Value, role: Option<Role>) -> Self {
        Self {
            identity: Arc::clone(&self.identity),
            allocation_role: role,
            value,
        }
    }

    /// Whether both share one identity behind one pointer. True only for the same thing; may also be false for the same thing,
    /// see [`Resource::is_same_thing_as`].
    #[must_use]
    pub fn shares_identity_with(&self, that: &Self) -> bool {
        Arc::ptr_eq(&self.identity, &that.identity)
    }

    /// Whether this is another thing than `that`, and comes before `that` in a collection.
    #[must_use]
    pub fn precedes(&self, that: &Self) -> bool {
        self.compare_thing(that).is_lt()
    }

    /// Whether both are amounts of the same thing, regardless of their allocation.
    #[must_use]
    pub fn is_same_thing_as(&self, that: &Self) -> bool {
        Arc::ptr_eq(&self.identity, &that.identity) || self.identity == that.identity
    }

    /// Changes the allocation to a role or to none.
    #[must_use]
    pub fn with_allocation(mut self, role: Option<Role>) -> Self {
        self.allocation_role = role;
        self
    }

    pub(crate) fn set_allocation(&mut self, role: Option<Role>) {
        self.allocation_role = role;
    }

    /// # Errors
    /// When the reservation is not allowed on top of the stack.
    pub fn push_reservation(&self, reservation: Reservation) -> Result<Self, ReservationError> {
        check_push(self.reservation(), &reservation)?;
        Ok(self.change(|identity| identity.reservations.push(reservation)))
    }

    /// # Errors
    /// When there is no reservation to pop.
    pub fn pop_reservation(&self) -> Result<Self, ReservationError> {
        if self.is_unreserved() {
            return Err(ReservationError::NotReserved(self.to_string()));
        }
        Ok(self.change(|identity| drop(identity.reservations.pop())))
    }

    #[must_use]
    pub fn to_unreserved(&self) -> Self {
        if self.is_unreserved() {
            return self.clone();
        }
        self.change(|identity| identity.reservations.clear())
    }

    /// A copy of the resource, marked as revocable or not.
    #[must_use]
    pub fn with_revocable(&self, revocable: bool) -> Self {
        if self.is_revocable() == revocable {
            return self.clone();
        }
        self.change(|identity| identity.revocable = revocable)
    }

    pub(crate) fn with_disk(&self, disk: Option<Disk>, shared: bool) -> Self {
        self.change(|identity| {
            identity.disk = disk;
            identity.shared = shared;
        })
    }

    fn change(&self, change: impl FnOnce(&mut Identity)) -> Self {
        let mut identity = Identity::clone(&self.identity);
        change(&mut identity);
        Self {
            identity: identity.share(),
            allocation_role: self.allocation_role.clone(),
            value: self.value.clone(),
        }
    }

    /// Cuts a scalar down to `target`; false for a larger indivisible resource: ranges, sets and whole disks.
    pub fn shrink_to(&mut self, target: Scalar) -> bool {
        match &mut self.value {
            Value::Scalar(scalar) if *scalar <= target => true,
            Value::Scalar(scalar)
                if !self.identity.disk.as_ref().is_some_and(Disk::is_exclusive) =>
            {
                *scalar = target.max(Scalar::ZERO);
                true
            }
            Value::Scalar(_) => false,
            Value::Ranges(_) | Value::Set(_) => self.value.quantity() <= target,
        }
    }

    /// # Errors
    /// When this is a fractional number of `gpus`.
    pub fn check_gpus(&self) -> Result<(), ResourceError> {
        match self.scalar() {
            Some(scalar) if *self.name() == GPUS && !scalar.is_integral() => {
                Err(ResourceError::FractionalGpus(scalar))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn value_mut(&mut self) -> &mut Value {
        &mut self.value
    }

    /// Whether the two are values of the very same thing, if that is visible from shared identities alone.
    pub(crate) fn is_same_at_a_glance(&self, that: &Self) -> bool {
        Arc::ptr_eq(&self.identity, &that.identity)
            && self.kind() == that.kind()
            && self.allocation_role == that.allocation_role
    }

    /// Orders by everything but the value: equal means the same thing in any amount. Indivisible resources are ordered by their
    /// value too.
    pub(crate) fn compare_thing(&self, that: &Self) -> Ordering {
        let identity = if Arc::ptr_eq(&self.identity, &that.identity) {
            Ordering::Equal
        } else {
            self.identity
                .name
                .compare(&that.identity.name)
                .then_with(|| self.identity.cmp(&that.identity))
        };
        identity
            .then_with(|| self.kind().cmp(&that.kind()))
            .then_with(|| self.allocation_role.cmp(&that.allocation_role))
            .then_with(|| {
                if self.is_exclusive() {
                    self.value.cmp(&that.value)
                } else {
                    Ordering::Equal
                }
            })
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())?;
        if let Some(role) = &self.allocation_role {
            write!(f, "(allocated: {role})")?;
        }
        if self.is_reserved() {
            let entries = self.reservations().iter().map(|entry| format!("({entry})"));
            f.write_str("(reservations: [")?;
            crate::display::separated(f, entries, ",")?;
            f.write_str("])")?;
        }
        if let Some(disk) = self.disk() {
            write!(f, "[{disk}]")?;
        }
        if self.is_revocable() {
            f.write_str("{REV}")?;
        }
        if self.is_shared() {
            f.write_str("<SHARED>")?;
        }
        write!(f, ":{}", self.value)
    }
}

crate::display::debug_as_display!(Resource);
