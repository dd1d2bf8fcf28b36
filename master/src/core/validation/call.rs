//! The validation of a scheduler's call by itself, without knowledge of the cluster.
//!
//! Entered through [`check`]; the messages are those of Mesos, because clients match them. Invariant: an [`Action`]
//! has its body, and its uuids have 16 bytes.

use std::sync::Arc;

use meseta_allocator::InverseAnswer;
use meseta_proto::mesos::v1::scheduler::{self, call};
use meseta_proto::mesos::v1::{self};

use crate::core::ids::UUID_BYTES;
use crate::core::state::constraints::{self, Constraints};

/// The request of a framework for a stream.
#[derive(Debug)]
pub struct Subscribe {
    pub info: v1::FrameworkInfo,
    pub suppressed_roles: Vec<String>,
    pub offer_constraints: Option<Arc<Constraints>>,
}

/// A call of a subscribed scheduler.
#[derive(Debug)]
pub enum Action {
    Teardown,
    Accept(call::Accept),
    Decline(call::Decline),
    /// The inverse offers that were accepted or declined.
    AnswerInverseOffers {
        answer: InverseAnswer,
        ids: Vec<v1::OfferId>,
        filters: Option<v1::Filters>,
    },
    Revive {
        roles: Vec<String>,
    },
    Suppress {
        roles: Vec<String>,
    },
    Kill(call::Kill),
    Shutdown(call::Shutdown),
    Acknowledge {
        agent_id: String,
        task_id: String,
        uuid: [u8; UUID_BYTES],
    },
    AcknowledgeOperationStatus {
        agent_id: String,
        operation_id: String,
        uuid: [u8; UUID_BYTES],
    },
    Reconcile(call::Reconcile),
    ReconcileOperations(call::ReconcileOperations),
    Message(call::Message),
    Request,
    UpdateFramework(Box<Subscribe>),
    /// The value of Mesos's enum for unknown types.
    Unknown,
}

/// A valid call: a subscription, or an action of a subscribed framework.
#[derive(Debug)]
pub enum Checked {
    Subscribe(Box<Subscribe>),
    Other {
        framework_id: String,
        action: Box<Action>,
    },
}

/// The error of an invalid call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    #[error("Expecting '{0}' to be present")]
    Missing(&'static str),
    #[error("'framework_id' differs from 'subscribe.framework_info.id'")]
    FrameworkIdDiffers,
    #[error("'framework_id' differs from 'update_framework.framework_info.id'")]
    UpdatedFrameworkIdDiffers,
    #[error("Not a valid UUID")]
    Uuid,
}

/// Checks a decoded call. Slow with offer constraints.
pub fn check(message: scheduler::Call) -> Result<Checked, CallError> {
    use call::Type;
    let kind = message.r#type.and_then(|kind| Type::try_from(kind).ok());
    let kind = kind.ok_or(CallError::Missing("type"))?;
    let framework_id = message.framework_id.as_ref().map(|id| id.value.clone());
    if kind == Type::Subscribe {
        let body = message.subscribe.ok_or(CallError::Missing("subscribe"))?;
        if id_of(&body.framework_info) != framework_id.as_deref().unwrap_or_default() {
            return Err(CallError::FrameworkIdDiffers);
        }
        return Ok(Checked::Subscribe(Box::new(Subscribe {
            info: body.framework_info,
            suppressed_roles: body.suppressed_roles,
            offer_constraints: constraints::understood(body.offer_constraints),
        })));
    }
    let framework_id = framework_id.ok_or(CallError::Missing("framework_id"))?;
    let action = action(kind, &framework_id, message)?;
    Ok(Checked::Other {
        framework_id,
        action: Box::new(action),
    })
}

fn action(
    kind: call::Type,
    framework_id: &str,
    message: scheduler::Call,
) -> Result<Action, CallError> {
    use CallError::Missing;
    use call::Type;
    Ok(match kind {
        Type::Unknown | Type::Subscribe => Action::Unknown,
        Type::Teardown => Action::Teardown,
        Type::Accept => Action::Accept(message.accept.ok_or(Missing("accept"))?),
        Type::Decline => Action::Decline(message.decline.ok_or(Missing("decline"))?),
        Type::AcceptInverseOffers => {
            let body = message
                .accept_inverse_offers
                .ok_or(Missing("accept_inverse_offers"))?;
            Action::AnswerInverseOffers {
                answer: InverseAnswer::Accept,
                ids: body.inverse_offer_ids,
                filters: body.filters,
            }
        }
        Type::DeclineInverseOffers => {
            let body = message
                .decline_inverse_offers
                .ok_or(Missing("decline_inverse_offers"))?;
            Action::AnswerInverseOffers {
                answer: InverseAnswer::Decline,
                ids: body.inverse_offer_ids,
                filters: body.filters,
            }
        }
        Type::Revive => Action::Revive {
            roles: message
                .revive
                .map(|revive| revive.roles)
                .unwrap_or_default(),
        },
        Type::Suppress => Action::Suppress {
            roles: message
                .suppress
                .map(|suppress| suppress.roles)
                .unwrap_or_default(),
        },
        Type::Kill => Action::Kill(message.kill.ok_or(Missing("kill"))?),
        Type::Shutdown => Action::Shutdown(message.shutdown.ok_or(Missing("shutdown"))?),
        Type::Acknowledge => {
            let body = message.acknowledge.ok_or(Missing("acknowledge"))?;
            Action::Acknowledge {
                uuid: body
                    .uuid
                    .as_slice()
                    .try_into()
                    .map_err(|_| CallError::Uuid)?,
                agent_id: body.agent_id.value,
                task_id: body.task_id.value,
            }
        }
        Type::AcknowledgeOperationStatus => {
            let body = message
                .acknowledge_operation_status
                .ok_or(Missing("acknowledge_operation_status"))?;
            let uuid = body.uuid.as_slice().try_into();
            Action::AcknowledgeOperationStatus {
                uuid: uuid.map_err(|_| CallError::Uuid)?,
                agent_id: body.agent_id.ok_or(Missing("agent_id"))?.value,
                operation_id: body.operation_id.value,
            }
        }
        Type::Reconcile => Action::Reconcile(message.reconcile.ok_or(Missing("reconcile"))?),
        Type::ReconcileOperations => Action::ReconcileOperations(
            message
                .reconcile_operations
                .ok_or(Missing("reconcile_operations"))?,
        ),
        Type::Message => Action::Message(message.message.ok_or(Missing("message"))?),
        Type::Request => {
            message.request.ok_or(Missing("request"))?;
            Action::Request
        }
        Type::UpdateFramework => {
            let body = message
                .update_framework
                .ok_or(Missing("update_framework"))?;
            if id_of(&body.framework_info) != framework_id {
                return Err(CallError::UpdatedFrameworkIdDiffers);
            }
            Action::UpdateFramework(Box::new(Subscribe {
                info: body.framework_info,
                suppressed_roles: body.suppressed_roles,
                offer_constraints: constraints::understood(body.offer_constraints),
            }))
        }
    })
}

/// The framework id in an info; empty without an id.
pub(in crate::core) fn id_of(info: &v1::FrameworkInfo) -> &str {
    info.id.as_ref().map_or("", |id| id.value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(kind: call::Type) -> scheduler::Call {
        scheduler::Call {
            r#type: Some(kind.into()),
            framework_id: Some(v1::FrameworkId {
                value: "f".to_owned(),
            }),
            ..scheduler::Call::default()
        }
    }

    #[test]
    fn every_missing_part_is_named() {
        use call::Type;
        let text = |call| check(call).unwrap_err().to_string();
        assert_eq!(
            text(scheduler::Call::default()),
            "Expecting 'type' to be present"
        );
        let unknown = scheduler::Call {
            r#type: Some(99),
            ..scheduler::Call::default()
        };
        assert_eq!(text(unknown), "Expecting 'type' to be present");
        let mut revive = typed(Type::Revive);
        revive.framework_id = None;
        assert_eq!(text(revive), "Expecting 'framework_id' to be present");
        for (kind, part) in [
            (Type::Subscribe, "subscribe"),
            (Type::Accept, "accept"),
            (Type::Decline, "decline"),
            (Type::Kill, "kill"),
            (Type::Shutdown, "shutdown"),
            (Type::Acknowledge, "acknowledge"),
            (Type::Reconcile, "reconcile"),
            (Type::Message, "message"),
            (Type::Request, "request"),
            (Type::UpdateFramework, "update_framework"),
        ] {
            assert_eq!(
                text(typed(kind)),
                format!("Expecting '{part}' to be present")
            );
        }
        for kind in [Type::Revive, Type::Suppress, Type::Teardown] {
            assert!(check(typed(kind)).is_ok(), "{kind:?} needs no body");
        }
    }

    #[test]
    fn uuids_have_sixteen_bytes() {
        for (length, good) in [(0, false), (15, false), (16, true), (17, false)] {
            let mut call = typed(call::Type::Acknowledge);
            call.acknowledge = Some(call::Acknowledge {
                uuid: vec![1; length],
                ..call::Acknowledge::default()
            });
            assert_eq!(check(call).is_ok(), good, "{length}");
        }
    }

    #[test]
    fn subscribe_framework_ids_must_match() {
        let mut call = typed(call::Type::Subscribe);
        call.subscribe = Some(call::Subscribe::default());
        assert_eq!(
            check(call.clone()).unwrap_err(),
            CallError::FrameworkIdDiffers
        );
        call.framework_id = Some(v1::FrameworkId::default());
        assert!(check(call).is_ok(), "an empty id is no id");
    }
}
