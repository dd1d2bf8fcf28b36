//! Messages, ids and values for the tests of the core.

use std::time::Duration;

use meseta_isolators::{BootId, ProcessIdentity};
use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::master_frame::Message as ToAgent;
use meseta_proto::mesos::v1 as pb;

pub(super) const AGENT: &str = "S0";
pub(super) const FRAMEWORK: &str = "F";
pub(super) const PING_TIMEOUT: Duration = Duration::from_secs(75);
pub(super) const BOOT: &str = "boot";

pub(super) fn states(told: &[pb::TaskStatus]) -> Vec<pb::TaskState> {
    told.iter().map(pb::TaskStatus::state).collect()
}

pub(super) fn registered() -> ToAgent {
    ToAgent::Registered(wire::Registered {
        agent_id: pb::AgentId {
            value: AGENT.to_owned(),
        },
        total_ping_timeout_seconds: PING_TIMEOUT.as_secs_f64(),
        unknown_tasks: Vec::new(),
        unknown_operations: Vec::new(),
        master_info: None,
    })
}

pub(super) fn identity(number: usize) -> ProcessIdentity {
    ProcessIdentity {
        pid: 100 + i32::try_from(number).expect("few"),
        start_ticks: 5,
        boot_id: BootId::from_text(BOOT),
    }
}

pub(super) fn framework_id() -> pb::FrameworkId {
    pb::FrameworkId {
        value: FRAMEWORK.to_owned(),
    }
}

pub(super) fn task_id(id: &str) -> pb::TaskId {
    pb::TaskId {
        value: id.to_owned(),
    }
}

pub(super) fn duration(duration: Duration) -> pb::DurationInfo {
    pb::DurationInfo {
        nanoseconds: i64::try_from(duration.as_nanos()).expect("a short time"),
    }
}

pub(super) fn scalar(name: &str, value: f64) -> pb::Resource {
    pb::Resource {
        name: name.to_owned(),
        r#type: pb::value::Type::Scalar.into(),
        scalar: Some(pb::value::Scalar { value }),
        ..pb::Resource::default()
    }
}

pub(super) fn task(id: &str) -> pb::TaskInfo {
    pb::TaskInfo {
        name: id.to_owned(),
        task_id: task_id(id),
        agent_id: pb::AgentId {
            value: AGENT.to_owned(),
        },
        resources: vec![scalar("cpus", 1.0), scalar("mem", 64.0)],
        command: Some(pb::CommandInfo {
            value: Some("true".to_owned()),
            ..pb::CommandInfo::default()
        }),
        ..pb::TaskInfo::default()
    }
}
