//! Resources, in the formats before and after reservation refinement.

use std::collections::BTreeMap;

use meseta_resources as res;
use meseta_resources::{
    DiskSourceKind, InvertedRange, Label, ParseError, RawDisk, RawDiskSource, RawReservation,
    RawReservationKind, RawResource, RawResourceError, ReservationKind, Resources, Role,
    ScalarError, ValueKind, VolumeMode,
};

use crate::json;
use crate::mesos::v1;
use crate::mesos::v1::resource::disk_info::source;
use crate::mesos::v1::resource::reservation_info;
use crate::mesos::v1::resource::{
    AllocationInfo, DiskInfo, ReservationInfo, RevocableInfo, SharedInfo, disk_info,
};
use crate::mesos::v1::{value, volume};

/// The format of written reservations.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Format {
    /// The fields `role` and `reservation`: for frameworks and agents that support nothing else.
    PreRefinement,
    /// The stack `reservations` alone: everywhere in v1.
    PostRefinement,
    /// Both formats, where the old one can express the reservation: answers of the v0 endpoints.
    Endpoint,
}

/// A resource with more than one reservation, or with a static one that has a principal or labels, for a receiver that knows
/// neither.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} has a reservation that the format before refinement cannot say")]
pub struct NotRepresentable(pub res::Resource);

/// A resource among several is invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("Resource '{name}' is invalid: {reason}")]
pub struct ResourcesError {
    pub index: usize,
    pub name: String,
    pub reason: RawResourceError,
}

/// Errors of parsing resources that an operator wrote.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ResourcesTextError {
    #[error(transparent)]
    Text(ParseError),
    #[error("this is one JSON object: write a list of resources, [{{...}}]")]
    JsonObject,
    #[error("{0}")]
    Json(json::Error),
    #[error(transparent)]
    Resource(ResourcesError),
}

/// Parses an operator's list of resources: `name(role):value;...`, or a JSON array of resources. Resources without a role are
/// reserved to `default_role`.
pub fn parse_resources(text: &str, default_role: &Role) -> Result<Resources, ResourcesTextError> {
    if text.trim_start().starts_with('{') {
        return Err(ResourcesTextError::JsonObject);
    }
    if !text.trim_start().starts_with('[') {
        return Resources::parse(text, default_role).map_err(ResourcesTextError::Text);
    }
    let messages: Vec<v1::Resource> =
        json::many_from_slice(text.as_bytes()).map_err(ResourcesTextError::Json)?;
    let raw = messages.iter().map(|message| {
        let mut raw = raw_resource(message);
        raw.set_default_role(default_role);
        raw
    });
    collect(raw).map_err(ResourcesTextError::Resource)
}

pub fn resource(message: &v1::Resource) -> Result<res::Resource, RawResourceError> {
    res::Resource::try_from(raw_resource(message))
}

/// The sum of all resources; empty ones vanish.
pub fn resources(messages: &[v1::Resource]) -> Result<Resources, ResourcesError> {
    collect(messages.iter().map(raw_resource))
}

fn collect(raw: impl Iterator<Item = RawResource>) -> Result<Resources, ResourcesError> {
    raw.enumerate()
        .map(|(index, raw)| {
            let name = raw.name.clone();
            res::Resource::try_from(raw).map_err(|reason| ResourcesError {
                index,
                name,
                reason,
            })
        })
        .collect()
}

/// The message's fields, without checks.
#[must_use]
pub fn raw_resource(message: &v1::Resource) -> RawResource {
    RawResource {
        provider_id: message.provider_id.as_ref().map(|id| id.value.clone()),
        name: message.name.clone(),
        kind: value::Type::try_from(message.r#type).ok().map(kind),
        scalar: message.scalar.as_ref().map(|scalar| scalar.value),
        ranges: message.ranges.as_ref().map(|ranges| {
            ranges
                .range
                .iter()
                .map(|range| (range.begin, range.end))
                .collect()
        }),
        set: message.set.as_ref().map(|set| set.item.clone()),
        role: message.role.clone(),
        allocation_role: message
            .allocation_info
            .as_ref()
            .and_then(|info| info.role.clone()),
        reservation: message.reservation.as_ref().map(raw_reservation),
        reservations: message.reservations.iter().map(raw_reservation).collect(),
        disk: message.disk.as_deref().map(raw_disk),
        revocable: message.revocable.is_some(),
        shared: message.shared.is_some(),
    }
}

fn kind(kind: value::Type) -> ValueKind {
    match kind {
        value::Type::Scalar => ValueKind::Scalar,
        value::Type::Ranges => ValueKind::Ranges,
        value::Type::Set => ValueKind::Set,
        value::Type::Text => ValueKind::Text,
    }
}

fn raw_reservation(message: &ReservationInfo) -> RawReservation {
    let kind = |number: i32| match reservation_info::Type::try_from(number) {
        Ok(reservation_info::Type::Unknown) => Some(RawReservationKind::Unknown),
        Ok(reservation_info::Type::Static) => Some(RawReservationKind::Static),
        Ok(reservation_info::Type::Dynamic) => Some(RawReservationKind::Dynamic),
        Err(_) => None,
    };
    RawReservation {
        kind: message.r#type.and_then(kind),
        role: message.role.clone(),
        principal: message.principal.clone(),
        labels: labels(message.labels.as_ref()),
    }
}

fn labels(message: Option<&v1::Labels>) -> res::Labels {
    let labels = message.map_or(&[][..], |message| &message.labels);
    labels
        .iter()
        .map(|label| Label {
            key: label.key.clone(),
            value: label.value.clone(),
        })
        .collect()
}

fn raw_disk(message: &DiskInfo) -> RawDisk {
    RawDisk {
        persistence: message
            .persistence
            .as_ref()
            .map(|persistence| res::Persistence {
                id: persistence.id.as_str().into(),
                principal: persistence.principal.as_deref().map(Into::into),
            }),
        volume: message.volume.as_ref().map(|volume| res::Volume {
            container_path: volume.container_path.clone(),
            host_path: volume.host_path.clone(),
            mode: match volume.mode() {
                volume::Mode::Rw => VolumeMode::ReadWrite,
                volume::Mode::Ro => VolumeMode::ReadOnly,
            },
        }),
        source: message.source.as_ref().map(|source| RawDiskSource {
            kind: match source.r#type() {
                source::Type::Unknown => None,
                source::Type::Path => Some(DiskSourceKind::Path),
                source::Type::Mount => Some(DiskSourceKind::Mount),
                source::Type::Block => Some(DiskSourceKind::Block),
                source::Type::Raw => Some(DiskSourceKind::Raw),
            },
            path: source.path.as_ref().map(|path| path.root.clone()),
            mount: source.mount.as_ref().map(|mount| mount.root.clone()),
            vendor: source.vendor.clone(),
            id: source.id.clone(),
            metadata: labels(source.metadata.as_ref()),
            profile: source.profile.clone(),
        }),
    }
}

/// Converts every resource to a message; a shared volume becomes as many messages as it has copies.
pub fn to_resources(
    resources: &Resources,
    format: Format,
) -> Result<Vec<v1::Resource>, NotRepresentable> {
    let mut out = Vec::with_capacity(resources.len());
    for resource in resources {
        let message = to_resource(resource, format)?;
        let copies = if resource.is_shared() {
            resources.count(resource)
        } else {
            1
        };
        out.extend((0..copies).map(|_| message.clone()));
    }
    Ok(out)
}

/// Fails only for [`Format::PreRefinement`].
pub fn to_resource(
    resource: &res::Resource,
    format: Format,
) -> Result<v1::Resource, NotRepresentable> {
    let mut out = v1::Resource {
        provider_id: resource.provider_id().map(Into::into),
        name: resource.name().as_str().to_owned(),
        allocation_info: resource.allocation_role().map(|role| AllocationInfo {
            role: Some(role.to_string()),
        }),
        disk: resource.disk().map(to_disk).map(Box::new),
        revocable: resource.is_revocable().then(RevocableInfo::default),
        shared: resource.is_shared().then(SharedInfo::default),
        ..Default::default()
    };
    match resource.value() {
        res::Value::Scalar(scalar) => {
            out.set_type(value::Type::Scalar);
            out.scalar = Some(value::Scalar {
                value: scalar.to_f64(),
            });
        }
        res::Value::Ranges(ranges) => {
            out.set_type(value::Type::Ranges);
            out.ranges = Some(to_ranges(ranges));
        }
        res::Value::Set(set) => {
            out.set_type(value::Type::Set);
            out.set = Some(value::Set {
                item: set.iter().map(str::to_owned).collect(),
            });
        }
    }
    if format == Format::PreRefinement && resource.needs_reservation_stack() {
        return Err(NotRepresentable(resource.clone()));
    }
    let stack = resource.reservations();
    if format != Format::PreRefinement {
        out.reservations = stack.iter().map(to_reservation).collect();
    }
    if format != Format::PostRefinement {
        match stack {
            [] => out.role = Some("*".to_owned()),
            [single] => {
                out.role = Some(single.role.to_string());
                out.reservation =
                    (single.kind == ReservationKind::Dynamic).then(|| ReservationInfo {
                        r#type: None,
                        role: None,
                        ..to_reservation(single)
                    });
            }
            _ => {}
        }
    }
    Ok(out)
}

fn to_reservation(reservation: &res::Reservation) -> ReservationInfo {
    let kind = match reservation.kind {
        ReservationKind::Static => reservation_info::Type::Static,
        ReservationKind::Dynamic => reservation_info::Type::Dynamic,
    };
    ReservationInfo {
        r#type: Some(kind.into()),
        role: Some(reservation.role.to_string()),
        principal: reservation.principal.as_deref().map(str::to_owned),
        labels: to_labels(&reservation.labels),
    }
}

fn to_labels(labels: &res::Labels) -> Option<v1::Labels> {
    let label = |label: &Label| v1::Label {
        key: label.key.clone(),
        value: label.value.clone(),
    };
    (!labels.is_empty()).then(|| v1::Labels {
        labels: labels.iter().map(label).collect(),
    })
}

fn to_disk(disk: &res::Disk) -> DiskInfo {
    DiskInfo {
        persistence: disk
            .persistence
            .as_ref()
            .map(|persistence| disk_info::Persistence {
                id: persistence.id.to_string(),
                principal: persistence.principal.as_deref().map(str::to_owned),
            }),
        volume: disk.volume.as_ref().map(|volume| v1::Volume {
            container_path: volume.container_path.clone(),
            host_path: volume.host_path.clone(),
            mode: match volume.mode {
                VolumeMode::ReadWrite => volume::Mode::Rw.into(),
                VolumeMode::ReadOnly => volume::Mode::Ro.into(),
            },
            ..Default::default()
        }),
        source: disk.source.as_ref().map(to_source),
    }
}

fn to_source(source: &res::DiskSource) -> disk_info::Source {
    let root = source.root.clone();
    let mut out = disk_info::Source {
        vendor: source.vendor.clone(),
        id: source.id.clone(),
        metadata: to_labels(&source.metadata),
        profile: source.profile.clone(),
        ..Default::default()
    };
    out.set_type(match source.kind {
        DiskSourceKind::Path => source::Type::Path,
        DiskSourceKind::Mount => source::Type::Mount,
        DiskSourceKind::Block => source::Type::Block,
        DiskSourceKind::Raw => source::Type::Raw,
    });
    match source.kind {
        DiskSourceKind::Path => out.path = root.map(|root| source::Path { root: Some(root) }),
        DiskSourceKind::Mount => out.mount = root.map(|root| source::Mount { root: Some(root) }),
        DiskSourceKind::Block | DiskSourceKind::Raw => {}
    }
    out
}

pub(super) fn ranges(message: &value::Ranges) -> Result<res::Ranges, InvertedRange> {
    message
        .range
        .iter()
        .map(|range| res::Range::new(range.begin, range.end))
        .collect()
}

pub(super) fn to_ranges(ranges: &res::Ranges) -> value::Ranges {
    let range = ranges.iter().map(|range| value::Range {
        begin: range.begin(),
        end: range.end(),
    });
    value::Ranges {
        range: range.collect(),
    }
}

/// Amounts by name, in the format of quotas and filters.
pub fn quantities(
    message: &BTreeMap<String, value::Scalar>,
) -> Result<res::ResourceQuantities, (String, ScalarError)> {
    let mut out = res::ResourceQuantities::default();
    for (name, scalar) in message {
        let amount = res::Scalar::quantity_from_f64(scalar.value)
            .map_err(|reason| (name.clone(), reason))?;
        // An amount without a name is ignored.
        if let Ok(name) = res::ResourceName::new(name) {
            out.set(&name, amount);
        }
    }
    Ok(out)
}
