//! A resource in the format of messages, and the rules by which it becomes a [`Resource`].
//!
//! Messages come in two formats: the older one has a `role` and a `reservation`, the newer one a stack of `reservations`;
//! answers of endpoints have both, and then they must agree. Readers of messages fill in a [`RawResource`] without checks;
//! all checks are here.

use crate::disk::{DiskSource, Persistence, Volume};
use crate::id::check_directory_name;
use crate::text::repeated;
use crate::{
    Disk, DiskSourceKind, EmptyName, IdError, InvertedRange, Labels, Range, Ranges, Reservation,
    ReservationKind, Resource, ResourceError, ResourceName, ResourceParts, ResourceProviderId,
    Role, RoleError, Scalar, ScalarError, Value, ValueKind,
};

/// The fields of the message; `None` if absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawResource {
    pub provider_id: Option<String>,
    pub name: String,
    /// The type; `None` also for an unknown number.
    pub kind: Option<ValueKind>,
    pub scalar: Option<f64>,
    pub ranges: Option<Vec<(u64, u64)>>,
    pub set: Option<Vec<String>>,
    pub role: Option<String>,
    pub allocation_role: Option<String>,
    pub reservation: Option<RawReservation>,
    pub reservations: Vec<RawReservation>,
    pub disk: Option<RawDisk>,
    pub revocable: bool,
    pub shared: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawReservation {
    pub kind: Option<RawReservationKind>,
    pub role: Option<String>,
    pub principal: Option<String>,
    pub labels: Labels,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RawReservationKind {
    Unknown,
    Static,
    Dynamic,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawDisk {
    pub persistence: Option<Persistence>,
    pub volume: Option<Volume>,
    pub source: Option<RawDiskSource>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawDiskSource {
    /// The kind of the source; `None` for UNKNOWN.
    pub kind: Option<DiskSourceKind>,
    /// The outer option is the presence of the message, the inner one that of its root.
    pub path: Option<Option<String>>,
    pub mount: Option<Option<String>>,
    pub vendor: Option<String>,
    pub id: Option<String>,
    pub metadata: Labels,
    pub profile: Option<String>,
}

/// Errors of converting a message to a resource.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RawResourceError {
    #[error(transparent)]
    Name(#[from] EmptyName),
    #[error("Invalid resource type; it must be SCALAR, RANGES or SET")]
    InvalidType,
    #[error("Unsupported resource type: a resource cannot be TEXT")]
    UnsupportedType,
    #[error("Invalid {0} resource: exactly the field '{0}' must be set")]
    WrongField(&'static str),
    #[error("Invalid scalar resource: {0}")]
    Scalar(#[from] ScalarError),
    #[error("Invalid ranges resource: {0}")]
    InvertedRange(#[from] InvertedRange),
    #[error("Invalid ranges resource: overlapping ranges: {0} and {1}")]
    OverlappingRanges(Range, Range),
    #[error("Invalid set resource: duplicated elements: '{0}' is there twice")]
    DuplicateItem(String),
    #[error("Unsupported 'DiskInfo.Source.Type'; it must be PATH, MOUNT, BLOCK or RAW")]
    UnknownSource,
    #[error("{field} should not be set for {kind} disk source")]
    SourceField {
        field: &'static str,
        kind: DiskSourceKind,
    },
    #[error(transparent)]
    Role(#[from] RoleError),
    #[error(transparent)]
    Id(#[from] IdError),
    #[error("'Resource.ReservationInfo.{0}' must not be set for the 'Resource.reservation' field")]
    LegacyField(&'static str),
    #[error("Invalid reservation: role \"*\" cannot be dynamically reserved")]
    LegacyStar,
    #[error("Invalid reservation: 'Resource.ReservationInfo.{0}' field must be set.")]
    MissingField(&'static str),
    #[error("Unsupported 'Resource.ReservationInfo.Type'; it must be STATIC or DYNAMIC")]
    UnknownReservation,
    #[error(
        "Invalid resource format: 'Resource.role' field with '{role}' does not match the role \
         '{reserved}' in 'Resource.reservations'"
    )]
    RoleMismatch { role: String, reserved: Role },
    #[error(
        "Invalid resource format: 'Resource.reservation' must not be set if the single reservation \
         in 'Resource.reservations' is STATIC"
    )]
    LegacyBesideStatic,
    #[error(
        "Invalid resource format: 'Resource.role' and 'Resource.reservation' must either be both \
         set or both not set if the single reservation in 'Resource.reservations' is DYNAMIC"
    )]
    HalfLegacy,
    #[error(
        "Invalid resource format: 'Resource.reservation.{0}' field does not match the {0} in \
         'Resource.reservations'"
    )]
    LegacyMismatch(&'static str),
    #[error(
        "Invalid resource format: '{0}' must not be set if there is more than one reservation in \
         'Resource.reservations'"
    )]
    LegacyBesideRefined(&'static str),
    #[error(transparent)]
    Resource(#[from] ResourceError),
}

impl RawResource {
    /// Reserves resources that name no role, in either format, to this role. Intended for resources that an operator wrote.
    pub fn set_default_role(&mut self, role: &Role) {
        if self.role.is_none() && self.reservations.is_empty() {
            self.role = Some(role.to_string());
        }
    }

    fn value(&self) -> Result<Value, RawResourceError> {
        let fields = (&self.scalar, &self.ranges, &self.set);
        match self.kind.ok_or(RawResourceError::InvalidType)? {
            ValueKind::Scalar => match fields {
                (Some(scalar), None, None) => Ok(Scalar::quantity_from_f64(*scalar)?.into()),
                _ => Err(RawResourceError::WrongField("scalar")),
            },
            ValueKind::Ranges => match fields {
                (None, Some(ranges), None) => Ok(disjoint(ranges)?.into()),
                _ => Err(RawResourceError::WrongField("ranges")),
            },
            ValueKind::Set => match fields {
                (None, None, Some(items)) => match repeated(items) {
                    Some(item) => Err(RawResourceError::DuplicateItem(item.into())),
                    None => Ok(Value::Set(items.iter().map(String::as_str).collect())),
                },
                _ => Err(RawResourceError::WrongField("set")),
            },
            ValueKind::Text => Err(RawResourceError::UnsupportedType),
        }
    }

    /// The stack, from the format that is present.
    fn stack(&self) -> Result<Vec<Reservation>, RawResourceError> {
        if self.reservations.is_empty() {
            return self.legacy_stack();
        }
        let stack: Vec<Reservation> = self
            .reservations
            .iter()
            .map(RawReservation::entry)
            .collect::<Result<_, _>>()?;
        match stack.as_slice() {
            [single] => self.check_agreement(single)?,
            _ if self.role.is_some() => {
                return Err(RawResourceError::LegacyBesideRefined("Resource.role"));
            }
            _ if self.reservation.is_some() => {
                return Err(RawResourceError::LegacyBesideRefined(
                    "Resource.reservation",
                ));
            }
            _ => {}
        }
        Ok(stack)
    }

    fn legacy_stack(&self) -> Result<Vec<Reservation>, RawResourceError> {
        let role = Role::new(self.role.as_deref().unwrap_or("*"))?;
        let Some(reservation) = &self.reservation else {
            return Ok(if role.is_star() {
                Vec::new()
            } else {
                vec![Reservation::fixed(role)]
            });
        };
        if reservation.kind.is_some() {
            return Err(RawResourceError::LegacyField("type"));
        }
        if reservation.role.is_some() {
            return Err(RawResourceError::LegacyField("role"));
        }
        if role.is_star() {
            return Err(RawResourceError::LegacyStar);
        }
        let dynamic = Reservation::dynamic(role, reservation.principal.as_deref());
        Ok(vec![Reservation {
            labels: reservation.labels.clone(),
            ..dynamic
        }])
    }

    /// Checks that both formats, if present, describe the same reservation.
    fn check_agreement(&self, single: &Reservation) -> Result<(), RawResourceError> {
        if let Some(role) = &self.role
            && single.role != role.as_str()
        {
            return Err(RawResourceError::RoleMismatch {
                role: role.clone(),
                reserved: single.role.clone(),
            });
        }
        match (single.kind, &self.reservation) {
            (ReservationKind::Static, Some(_)) => Err(RawResourceError::LegacyBesideStatic),
            (ReservationKind::Static, None) => Ok(()),
            (ReservationKind::Dynamic, legacy) if legacy.is_some() != self.role.is_some() => {
                Err(RawResourceError::HalfLegacy)
            }
            (ReservationKind::Dynamic, None) => Ok(()),
            (ReservationKind::Dynamic, Some(legacy)) => {
                // Writers of both formats treat an absent and an empty principal alike.
                let principal = single.principal.as_deref().unwrap_or_default();
                if legacy.principal.as_deref().unwrap_or_default() != principal {
                    Err(RawResourceError::LegacyMismatch("principal"))
                } else if legacy.labels != single.labels {
                    Err(RawResourceError::LegacyMismatch("labels"))
                } else {
                    Ok(())
                }
            }
        }
    }
}

impl RawReservation {
    fn entry(&self) -> Result<Reservation, RawResourceError> {
        let kind = match self.kind.ok_or(RawResourceError::MissingField("type"))? {
            RawReservationKind::Static => ReservationKind::Static,
            RawReservationKind::Dynamic => ReservationKind::Dynamic,
            RawReservationKind::Unknown => return Err(RawResourceError::UnknownReservation),
        };
        let role = self
            .role
            .as_deref()
            .ok_or(RawResourceError::MissingField("role"))?;
        Ok(Reservation {
            kind,
            role: Role::new(role)?,
            principal: self.principal.as_deref().map(Into::into),
            labels: self.labels.clone(),
        })
    }
}

/// Converts ranges; adjacent ones are fine, overlapping ones are a mistake.
fn disjoint(ranges: &[(u64, u64)]) -> Result<Ranges, RawResourceError> {
    let mut sorted = ranges
        .iter()
        .map(|(begin, end)| Range::new(*begin, *end))
        .collect::<Result<Vec<_>, _>>()?;
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0].overlaps(pair[1])) {
        Some(pair) => Err(RawResourceError::OverlappingRanges(pair[0], pair[1])),
        None => Ok(Ranges::new(sorted)),
    }
}

impl RawDiskSource {
    fn check(self) -> Result<DiskSource, RawResourceError> {
        let kind = self.kind.ok_or(RawResourceError::UnknownSource)?;
        let root = match kind {
            DiskSourceKind::Path => self.path.flatten(),
            DiskSourceKind::Mount => self.mount.flatten(),
            DiskSourceKind::Block | DiskSourceKind::Raw => {
                for (field, set) in [("Mount", &self.mount), ("Path", &self.path)] {
                    if set.is_some() {
                        return Err(RawResourceError::SourceField { field, kind });
                    }
                }
                None
            }
        };
        Ok(DiskSource {
            kind,
            root,
            vendor: self.vendor,
            id: self.id,
            metadata: self.metadata,
            profile: self.profile,
        })
    }
}

impl RawDisk {
    fn check(self) -> Result<Disk, RawResourceError> {
        if let Some(persistence) = &self.persistence {
            check_directory_name("Persistence ID", &persistence.id)?;
        }
        let source = self.source.map(RawDiskSource::check).transpose()?;
        Ok(Disk {
            persistence: self.persistence,
            volume: self.volume,
            source,
        })
    }
}

impl TryFrom<RawResource> for Resource {
    type Error = RawResourceError;
    fn try_from(raw: RawResource) -> Result<Self, RawResourceError> {
        let name = ResourceName::new(&raw.name)?;
        let value = raw.value()?;
        if raw.disk.is_some() && name != crate::name::DISK {
            return Err(ResourceError::DiskInfoOnOther(name).into());
        }
        let reservations = raw.stack()?;
        Ok(Self::new(ResourceParts {
            name,
            value,
            allocation_role: raw.allocation_role.as_deref().map(Role::new).transpose()?,
            reservations,
            disk: raw.disk.map(RawDisk::check).transpose()?,
            revocable: raw.revocable,
            shared: raw.shared,
            provider_id: raw
                .provider_id
                .as_deref()
                .map(ResourceProviderId::new)
                .transpose()?,
        })?)
    }
}
