//! The operators' event stream: the core's events in the form of Mesos.

use std::sync::Arc;

use meseta_access::Approver;
use meseta_proto::mesos::v1::master::{Event, event};

use super::{agent, lone_framework, state, task};
use crate::core::{HEARTBEAT_INTERVAL, OperatorEvent, Snapshot};
use crate::stream_event::StreamEvent;

fn typed(kind: event::Type) -> Event {
    Event {
        r#type: Some(kind.into()),
        ..Event::default()
    }
}

/// The first event, with the whole state.
pub(crate) fn subscribed(snapshot: &Snapshot, has_state: bool) -> Event {
    Event {
        subscribed: Some(event::Subscribed {
            get_state: has_state.then(|| state(snapshot)),
            heartbeat_interval_seconds: Some(HEARTBEAT_INTERVAL.as_secs_f64()),
        }),
        ..typed(event::Type::Subscribed)
    }
}

pub(crate) fn heartbeat() -> Event {
    typed(event::Type::Heartbeat)
}

/// The stream event for a change of the cluster.
pub(crate) fn event(note: OperatorEvent) -> Arc<StreamEvent> {
    use event::Type;
    let task_user = match &note {
        OperatorEvent::TaskUpdated { task_user, .. } => task_user.clone(),
        _ => None,
    };
    let event = match note {
        OperatorEvent::TaskAdded(record) => Event {
            task_added: Some(event::TaskAdded {
                task: task(&record),
            }),
            ..typed(Type::TaskAdded)
        },
        OperatorEvent::TaskUpdated {
            framework_id,
            status,
            state,
            task_user: _,
        } => Event {
            task_updated: Some(event::TaskUpdated {
                framework_id: framework_id.into(),
                status: *status,
                state: state.into(),
            }),
            ..typed(Type::TaskUpdated)
        },
        OperatorEvent::AgentAdded(view) => Event {
            agent_added: Some(event::AgentAdded {
                agent: agent(&view, &Approver::default()),
            }),
            ..typed(Type::AgentAdded)
        },
        OperatorEvent::AgentRemoved(id) => Event {
            agent_removed: Some(event::AgentRemoved {
                agent_id: id.into(),
            }),
            ..typed(Type::AgentRemoved)
        },
        OperatorEvent::FrameworkAdded(view) => Event {
            framework_added: Some(event::FrameworkAdded {
                framework: lone_framework(&view),
            }),
            ..typed(Type::FrameworkAdded)
        },
        OperatorEvent::FrameworkUpdated(view) => Event {
            framework_updated: Some(event::FrameworkUpdated {
                framework: lone_framework(&view),
            }),
            ..typed(Type::FrameworkUpdated)
        },
        OperatorEvent::FrameworkRemoved(info) => Event {
            framework_removed: Some(event::FrameworkRemoved {
                framework_info: (*info).clone(),
            }),
            ..typed(Type::FrameworkRemoved)
        },
    };
    Arc::new(StreamEvent { event, task_user })
}
