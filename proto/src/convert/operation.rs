//! Operations on reservations and volumes.

use meseta_resources as res;
use meseta_resources::{RawResourceError, ScalarError};

use super::resource::{Format, ResourcesError, resource, to_resource};
use crate::mesos::v1;
use crate::mesos::v1::offer::{Operation, operation};

/// The error that a message is not an operation on reservations or volumes.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum OperationError {
    #[error("Unknown operation type")]
    UnknownType,
    #[error("{0} is not an operation on reservations or volumes")]
    Other(&'static str),
    #[error("Expecting '{0}' to be present")]
    Missing(&'static str),
    #[error("{0}")]
    Resources(ResourcesError),
    #[error("Invalid 'shrink_volume.subtract': {0}")]
    Subtract(ScalarError),
}

/// Converts a message to an operation, with resources in any format.
pub fn operation(message: &Operation) -> Result<res::Operation, OperationError> {
    use OperationError::{Missing, Other, UnknownType};
    use operation::Type;
    let kind = message.r#type.and_then(|kind| Type::try_from(kind).ok());
    Ok(match kind.ok_or(UnknownType)? {
        Type::Unknown => return Err(UnknownType),
        kind @ (Type::Launch | Type::LaunchGroup | Type::CreateDisk | Type::DestroyDisk) => {
            return Err(Other(kind.as_str_name()));
        }
        Type::Reserve => {
            let body = message.reserve.as_ref().ok_or(Missing("reserve"))?;
            res::Operation::Reserve {
                source: all(&body.source)?,
                resources: all(&body.resources)?,
            }
        }
        Type::Unreserve => {
            let body = message.unreserve.as_ref().ok_or(Missing("unreserve"))?;
            res::Operation::Unreserve(all(&body.resources)?)
        }
        Type::Create => {
            let body = message.create.as_ref().ok_or(Missing("create"))?;
            res::Operation::Create(all(&body.volumes)?)
        }
        Type::Destroy => {
            let body = message.destroy.as_ref().ok_or(Missing("destroy"))?;
            res::Operation::Destroy(all(&body.volumes)?)
        }
        Type::GrowVolume => {
            let body = message.grow_volume.as_ref();
            let body = body.ok_or(Missing("grow_volume"))?;
            res::Operation::Grow {
                volume: one(&body.volume)?,
                addition: one(&body.addition)?,
            }
        }
        Type::ShrinkVolume => {
            let body = message.shrink_volume.as_ref();
            let body = body.ok_or(Missing("shrink_volume"))?;
            res::Operation::Shrink {
                volume: one(&body.volume)?,
                subtract: res::Scalar::from_f64(body.subtract.value)
                    .map_err(OperationError::Subtract)?,
            }
        }
    })
}

fn all(messages: &[v1::Resource]) -> Result<Vec<res::Resource>, OperationError> {
    messages
        .iter()
        .enumerate()
        .map(|(index, message)| read(index, message))
        .collect()
}

fn one(message: &v1::Resource) -> Result<res::Resource, OperationError> {
    read(0, message)
}

fn read(index: usize, message: &v1::Resource) -> Result<res::Resource, OperationError> {
    let failed = |reason: RawResourceError| {
        OperationError::Resources(ResourcesError {
            index,
            name: message.name.clone(),
            reason,
        })
    };
    resource(message).map_err(failed)
}

/// Converts an operation to a message, without an id, its resources in the format of v1.
#[must_use]
pub fn to_operation(operation: &res::Operation) -> Operation {
    use operation::Type;
    let write = |resource: &res::Resource| {
        // A stack can express every reservation.
        to_resource(resource, Format::PostRefinement).unwrap_or_default()
    };
    let all = |resources: &[res::Resource]| resources.iter().map(write).collect();
    let mut message = Operation::default();
    let kind = match operation {
        res::Operation::Reserve { source, resources } => {
            message.reserve = Some(operation::Reserve {
                source: all(source),
                resources: all(resources),
            });
            Type::Reserve
        }
        res::Operation::Unreserve(resources) => {
            message.unreserve = Some(operation::Unreserve {
                resources: all(resources),
            });
            Type::Unreserve
        }
        res::Operation::Create(volumes) => {
            message.create = Some(operation::Create {
                volumes: all(volumes),
            });
            Type::Create
        }
        res::Operation::Destroy(volumes) => {
            message.destroy = Some(operation::Destroy {
                volumes: all(volumes),
            });
            Type::Destroy
        }
        res::Operation::Grow { volume, addition } => {
            message.grow_volume = Some(operation::GrowVolume {
                volume: write(volume),
                addition: write(addition),
            });
            Type::GrowVolume
        }
        res::Operation::Shrink { volume, subtract } => {
            message.shrink_volume = Some(operation::ShrinkVolume {
                volume: write(volume),
                subtract: v1::value::Scalar {
                    value: subtract.to_f64(),
                },
            });
            Type::ShrinkVolume
        }
    };
    message.r#type = Some(kind.into());
    message
}
