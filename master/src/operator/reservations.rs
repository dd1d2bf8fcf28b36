//! The calls that reserve, unreserve, create and destroy volumes, as operations.

use meseta_proto::mesos::v1;
use meseta_proto::mesos::v1::master::Call;
use meseta_proto::mesos::v1::master::call::Type as CallType;
use meseta_proto::mesos::v1::offer::{Operation, operation};

/// The change of an agent's resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Reserve,
    Unreserve,
    Create,
    Destroy,
}

impl Change {
    /// The operation for this change.
    pub(crate) fn operation(
        self,
        resources: Vec<v1::Resource>,
        source: Vec<v1::Resource>,
    ) -> Operation {
        let mut operation = Operation::default();
        let kind = match self {
            Self::Reserve => {
                operation.reserve = Some(operation::Reserve { source, resources });
                operation::Type::Reserve
            }
            Self::Unreserve => {
                operation.unreserve = Some(operation::Unreserve { resources });
                operation::Type::Unreserve
            }
            Self::Create => {
                operation.create = Some(operation::Create { volumes: resources });
                operation::Type::Create
            }
            Self::Destroy => {
                operation.destroy = Some(operation::Destroy { volumes: resources });
                operation::Type::Destroy
            }
        };
        operation.r#type = Some(kind.into());
        operation
    }
}

/// The agent and the operation of a call, or the name of a missing part.
pub(crate) fn of_call(kind: CallType, call: Call) -> Result<(String, Operation), &'static str> {
    let typed = |kind: operation::Type| Operation {
        r#type: Some(kind.into()),
        ..Operation::default()
    };
    Ok(match kind {
        CallType::ReserveResources => {
            let body = call.reserve_resources.ok_or("reserve_resources")?;
            let operation = Change::Reserve.operation(body.resources, body.source);
            (body.agent_id.value, operation)
        }
        CallType::UnreserveResources => {
            let body = call.unreserve_resources.ok_or("unreserve_resources")?;
            let operation = Change::Unreserve.operation(body.resources, Vec::new());
            (body.agent_id.value, operation)
        }
        CallType::CreateVolumes => {
            let body = call.create_volumes.ok_or("create_volumes")?;
            let operation = Change::Create.operation(body.volumes, Vec::new());
            (body.agent_id.value, operation)
        }
        CallType::DestroyVolumes => {
            let body = call.destroy_volumes.ok_or("destroy_volumes")?;
            let operation = Change::Destroy.operation(body.volumes, Vec::new());
            (body.agent_id.value, operation)
        }
        CallType::GrowVolume => {
            let body = call.grow_volume.ok_or("grow_volume")?;
            let mut operation = typed(operation::Type::GrowVolume);
            operation.grow_volume = Some(operation::GrowVolume {
                volume: body.volume,
                addition: body.addition,
            });
            (body.agent_id.ok_or("agent_id")?.value, operation)
        }
        CallType::ShrinkVolume => {
            let body = call.shrink_volume.ok_or("shrink_volume")?;
            let mut operation = typed(operation::Type::ShrinkVolume);
            operation.shrink_volume = Some(operation::ShrinkVolume {
                volume: body.volume,
                subtract: body.subtract,
            });
            (body.agent_id.ok_or("agent_id")?.value, operation)
        }
        _ => return Err("type"),
    })
}
