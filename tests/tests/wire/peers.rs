//! Agents and masters of neighbouring versions: the bytes of their frames (`tests/recorded/frames.txt`).

use meseta_proto::json;
use meseta_proto::meseta::v1::{self as meseta, agent_frame, master_frame};
use meseta_proto::meseta::v1::{AgentFrame, MasterFrame};
use meseta_proto::mesos::v1 as mesos;
use meseta_proto::{WireMessage, protobuf};
use meseta_tests::recorded_bytes::{recorded, with_unknown_fields};

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        frames_are_compatible_across_versions;
}

/// Parses a message from its JSON.
fn parsed<T: WireMessage>(text: &str) -> T {
    json::from_slice(text.as_bytes()).expect("a message")
}

fn register() -> meseta::Register {
    parsed(
        r#"{
        "agent_info": {"hostname": "node.example", "port": 5051, "id": {"value": "M-S0"},
            "resources": [{"name": "cpus", "type": "SCALAR", "scalar": {"value": 4.5}}],
            "attributes": [{"name": "rack", "type": "TEXT", "text": {"value": "r1"}}]},
        "version": "1.12.0",
        "checkpointed_resources": [{"name": "disk", "type": "SCALAR", "scalar": {"value": 8},
            "reservations": [{"type": "DYNAMIC", "role": "ads", "principal": "ops"}],
            "disk": {"persistence": {"id": "p1", "principal": "ops"},
                     "volume": {"mode": "RW", "container_path": "data"}}}],
        "capabilities": [{"type": "MULTI_ROLE"}],
        "address": {"hostname": "node.example", "ip": "10.0.0.1", "port": 5051},
        "frame_bytes_max": 67108864}"#,
    )
}

fn reregister() -> meseta::Reregister {
    let report: meseta::Reregister = parsed(
        r#"{
        "register": {"agent_info": {"hostname": "node.example"}, "version": "1.12.0"},
        "executors": [{"executor_id": {"value": "e"}, "framework_id": {"value": "M-0000"}}],
        "frameworks": [{"user": "root", "name": "web", "id": {"value": "M-0000"}}]}"#,
    );
    let task: mesos::Task = parsed(
        r#"{
        "name": "t", "task_id": {"value": "t"}, "framework_id": {"value": "M-0000"},
        "agent_id": {"value": "M-S0"}, "state": "TASK_RUNNING",
        "resources": [{"name": "cpus", "type": "SCALAR", "scalar": {"value": 1}}]}"#,
    );
    meseta::Reregister {
        register: register(),
        tasks: vec![prost::Message::encode_to_vec(&task)],
        ..report
    }
}

fn agent_messages() -> Vec<(&'static str, agent_frame::Message)> {
    use agent_frame::Message;
    vec![
        ("agent.register", Message::Register(register())),
        ("agent.reregister", Message::Reregister(reregister())),
        (
            "agent.reregister.obeyed",
            Message::Reregister(meseta::Reregister {
                register: meseta::Register {
                    obeyed: Some(meseta::ObeyedEpoch {
                        cluster_id: "3f0e".to_owned(),
                        epoch: 7,
                        master_id: Some("m7".to_owned()),
                    }),
                    ..register()
                },
                ..reregister()
            }),
        ),
        (
            "agent.reregister_part",
            Message::ReregisterPart(meseta::ReregisterPart {
                register: Some(register()),
                tasks: reregister().tasks,
                ..meseta::ReregisterPart::default()
            }),
        ),
        (
            "agent.unregister",
            Message::Unregister(parsed(r#"{"reason": "r"}"#)),
        ),
        ("agent.pong", Message::Pong(parsed(r#"{"sequence": 300}"#))),
        (
            "agent.status_update",
            Message::StatusUpdate(parsed(
                r#"{
                "framework_id": {"value": "M-0000"}, "latest_state": "TASK_FAILED",
                "status": {"task_id": {"value": "t"}, "state": "TASK_RUNNING", "source": "SOURCE_EXECUTOR",
                    "agent_id": {"value": "M-S0"}, "timestamp": 1800000000.5, "uuid": "AAECAwQFBgcICQoLDA0ODw==",
                    "container_status": {"container_id": {"value": "c"}}}}"#,
            )),
        ),
        (
            "agent.executor_exited",
            Message::ExecutorExited(parsed(
                r#"{"framework_id": {"value": "M-0000"}, "executor_id": {"value": "e"}, "status": 256}"#,
            )),
        ),
        (
            "agent.executor_message",
            Message::ExecutorMessage(parsed(
                r#"{"framework_id": {"value": "M-0000"}, "executor_id": {"value": "e"}, "data": "AAE="}"#,
            )),
        ),
        (
            "agent.agent_update",
            Message::AgentUpdate(parsed(
                r#"{"oversubscribed": {"resources": [
                {"name": "cpus", "type": "SCALAR", "scalar": {"value": 2}, "revocable": {}}]}}"#,
            )),
        ),
        (
            "agent.operation_update",
            Message::OperationUpdate(parsed(
                r#"{"framework_id": {"value": "M-0000"},
                "status": {"state": "OPERATION_FINISHED"}, "operation_uuid": {"value": "AAE="}}"#,
            )),
        ),
    ]
}

fn registered() -> meseta::Registered {
    parsed(
        r#"{"agent_id": {"value": "M-S0"}, "total_ping_timeout_seconds": 75,
        "unknown_tasks": [{"framework_id": {"value": "M-0000"}, "task_id": {"value": "t"}, "partition_aware": true}],
        "master_info": {"id": "m7", "ip": 16777343, "port": 5050, "hostname": "master.example"},
        "unknown_operations": [{"value": "AAE="}]}"#,
    )
}

fn master_messages() -> Vec<(&'static str, Option<&'static str>, master_frame::Message)> {
    use master_frame::Message;
    let task = r#"{"framework": {"user": "root", "name": "web", "id": {"value": "M-0000"}},
        "task": {"name": "t", "task_id": {"value": "t"}, "agent_id": {"value": "M-S0"},
            "resources": [{"name": "cpus", "type": "SCALAR", "scalar": {"value": 1}}],
            "command": {"value": "sleep 1", "environment": {"variables": [{"name": "A", "value": "b"}]}}},
        "launch_executor": true, "accepted_time": 1800000000.25}"#;
    let group = r#"{"framework": {"user": "root", "name": "web"}, "executor": {"executor_id": {"value": "e"}},
        "task_group": {"tasks": [{"name": "t", "task_id": {"value": "t"}, "agent_id": {"value": "M-S0"}}]},
        "launch_executor": false}"#;
    let task_of = r#"{"framework_id": {"value": "M-0000"}, "task_id": {"value": "t"}}"#;
    let executor = r#"{"framework_id": {"value": "M-0000"}, "executor_id": {"value": "e"}}"#;
    let acknowledge = meseta::Acknowledge {
        uuid: (0..16).collect(),
        ..parsed::<meseta::Acknowledge>(
            r#"{"framework_id": {"value": "M-0000"}, "task_id": {"value": "t"}, "uuid": ""}"#,
        )
    };
    vec![
        ("master.registered", None, Message::Registered(registered())),
        (
            "master.registered.cluster",
            Some("3f0e"),
            Message::Registered(registered()),
        ),
        (
            "master.ping",
            None,
            Message::Ping(parsed(r#"{"sequence": 300, "connected": true}"#)),
        ),
        ("master.run_task", None, Message::RunTask(parsed(task))),
        (
            "master.run_task_group",
            None,
            Message::RunTaskGroup(parsed(group)),
        ),
        ("master.kill_task", None, Message::KillTask(parsed(task_of))),
        (
            "master.acknowledge",
            None,
            Message::Acknowledge(acknowledge),
        ),
        (
            "master.shutdown_executor",
            None,
            Message::ShutdownExecutor(parsed(executor)),
        ),
        (
            "master.shutdown_framework",
            None,
            Message::ShutdownFramework(parsed(r#"{"framework_id": {"value": "M-0000"}}"#)),
        ),
        (
            "master.update_framework",
            None,
            Message::UpdateFramework(parsed(r#"{"framework": {"user": "root", "name": "web"}}"#)),
        ),
        (
            "master.apply_operation",
            None,
            Message::ApplyOperation(parsed(
                r#"{"operation": {"type": "RESERVE", "reserve": {"resources": [
                {"name": "cpus", "type": "SCALAR", "scalar": {"value": 1},
                 "reservations": [{"type": "DYNAMIC", "role": "ads"}]}]}}, "operation_uuid": {"value": "AAE="}}"#,
            )),
        ),
        (
            "master.acknowledge_operation",
            None,
            Message::AcknowledgeOperation(parsed(
                r#"{"operation_uuid": {"value": "AAE="}, "status_uuid": "AAI="}"#,
            )),
        ),
        (
            "master.drain",
            None,
            Message::Drain(parsed(
                r#"{"config": {"max_grace_period": {"nanoseconds": 5000000000}, "mark_gone": true}}"#,
            )),
        ),
        (
            "master.shutdown",
            None,
            Message::Shutdown(parsed(r#"{"reason": "r"}"#)),
        ),
        (
            "master.refused",
            None,
            Message::Refused(parsed(r#"{"reason": "r", "permanent": true}"#)),
        ),
    ]
}

/// Checks that a message is read from the bytes of its name, with and without the additions of a later version.
fn is_read<T: WireMessage + PartialEq + std::fmt::Debug>(name: &str, bytes: &[u8], expected: &T) {
    for bytes in [bytes.to_vec(), with_unknown_fields(bytes)] {
        let read: T = protobuf::from_slice(&bytes).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert_eq!(read, *expected, "{name}");
    }
}

fn frames_are_compatible_across_versions() {
    let agent = agent_messages().into_iter().map(|(name, message)| {
        let message = Some(message);
        (name, AgentFrame { message })
    });
    let agent: Vec<_> = agent.collect();
    let master = master_messages()
        .into_iter()
        .map(|(name, cluster, message)| {
            let frame = MasterFrame {
                epoch: 7,
                message: Some(message),
                cluster_id: cluster.map(str::to_owned),
            };
            (name, frame)
        });
    let master: Vec<_> = master.collect();
    let mut written: Vec<_> = agent
        .iter()
        .map(|(name, frame)| ((*name).to_owned(), protobuf::to_vec(frame)))
        .collect();
    written.extend(
        master
            .iter()
            .map(|(name, frame)| ((*name).to_owned(), protobuf::to_vec(frame))),
    );
    let recorded = recorded("frames.txt", &written);
    for (name, frame) in &agent {
        is_read(name, &recorded[*name], frame);
    }
    for (name, frame) in &master {
        is_read(name, &recorded[*name], frame);
    }
}
