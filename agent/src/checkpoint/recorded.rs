//! Records of earlier versions (`tests/recorded/checkpoints.txt`), which this version must read after an upgrade.

use std::fmt::Debug;

use meseta_proto::meseta::v1::ObeyedEpoch;
use meseta_proto::mesos::v1 as pb;
use meseta_tests::recorded_bytes::{recorded, with_unknown_fields};
use prost::Message;

use super::records::{
    AgentRecord, DrainRecord, ExecutorRecord, FrameworkRecord, KillCause, KillRequested, LogEntry,
    LogRecord, Started, TaskRecord,
};

fn agent_info() -> pb::AgentInfo {
    pb::AgentInfo {
        hostname: "node.example".to_owned(),
        port: Some(5051),
        id: Some(pb::AgentId {
            value: "M-S0".to_owned(),
        }),
        resources: vec![cpus(4.5)],
        ..pb::AgentInfo::default()
    }
}

fn cpus(value: f64) -> pb::Resource {
    pb::Resource {
        name: "cpus".to_owned(),
        r#type: pb::value::Type::Scalar.into(),
        scalar: Some(pb::value::Scalar { value }),
        ..pb::Resource::default()
    }
}

fn framework() -> pb::FrameworkInfo {
    pb::FrameworkInfo {
        user: "root".to_owned(),
        name: "web".to_owned(),
        failover_timeout: Some(60.0),
        ..pb::FrameworkInfo::default()
    }
}

fn task() -> TaskRecord {
    TaskRecord {
        info: pb::TaskInfo {
            name: "t".to_owned(),
            task_id: pb::TaskId {
                value: "t".to_owned(),
            },
            agent_id: pb::AgentId {
                value: "M-S0".to_owned(),
            },
            resources: vec![cpus(1.0)],
            ..pb::TaskInfo::default()
        },
        framework: framework(),
        accepted_unix_ns: 1_800_000_000_000_000_001,
        nested_container: Some("c.t".to_owned()),
        group: Some("g".to_owned()),
        group_size: 3,
    }
}

fn entries() -> Vec<(&'static str, LogEntry)> {
    let started = Started {
        supervisor: "100 5 boot".to_owned(),
        task_pid: 101,
        at_unix_ns: 7,
        uptime_ns: None,
    };
    let started_since_boot = Started {
        uptime_ns: Some(10),
        ..started.clone()
    };
    let killed = KillRequested {
        grace_ns: 3_000_000_000,
        at_unix_ns: 8,
        cause: KillCause::Drain.into(),
        uptime_ns: None,
        boot_id: None,
    };
    let killed_since_boot = KillRequested {
        uptime_ns: Some(11),
        boot_id: Some("boot".to_owned()),
        ..killed.clone()
    };
    let status = pb::TaskStatus {
        task_id: pb::TaskId {
            value: "t".to_owned(),
        },
        state: pb::TaskState::TaskRunning.into(),
        uuid: Some((0..16).collect()),
        timestamp: Some(1_800_000_000.5),
        ..pb::TaskStatus::default()
    };
    vec![
        ("log.started", LogEntry::Started(started)),
        ("log.started.uptime", LogEntry::Started(started_since_boot)),
        ("log.update", LogEntry::Update(status)),
        ("log.acknowledged", LogEntry::Acknowledged(vec![1; 16])),
        ("log.kill_requested", LogEntry::KillRequested(killed)),
        (
            "log.kill_requested.uptime",
            LogEntry::KillRequested(killed_since_boot),
        ),
        ("log.delivered", LogEntry::Delivered(9)),
    ]
}

/// Reads a record and compares it with the written value.
type Check = Box<dyn Fn(&[u8])>;

/// The records of one kind, as bytes by name, and their checks.
struct Records {
    written: Vec<(String, Vec<u8>)>,
    checks: Vec<Check>,
}

impl Records {
    fn add<M: Message + Default + PartialEq + Debug + 'static>(&mut self, name: &str, record: M) {
        self.written.push((name.to_owned(), record.encode_to_vec()));
        self.checks.push(Box::new(move |bytes| {
            assert_eq!(M::decode(bytes).expect("it is read"), record);
        }));
    }
}

#[test]
fn records_stay_compatible_across_versions() {
    let mut records = Records {
        written: Vec::new(),
        checks: Vec::new(),
    };
    let agent = |obeyed| AgentRecord {
        info: agent_info(),
        obeyed,
    };
    records.add("slave.info", agent(None));
    let obeyed = ObeyedEpoch {
        cluster_id: "3f0e".to_owned(),
        epoch: 7,
        master_id: Some("m7".to_owned()),
    };
    records.add("slave.info.obeyed", agent(Some(obeyed)));
    let config = pb::DrainConfig {
        mark_gone: Some(true),
        ..pb::DrainConfig::default()
    };
    records.add("drain.config", DrainRecord { config });
    let info = framework();
    records.add("framework.info", FrameworkRecord { info });
    records.add("task.info", task());
    let executor = ExecutorRecord {
        info: pb::ExecutorInfo {
            executor_id: pb::ExecutorId {
                value: "e".to_owned(),
            },
            resources: vec![cpus(0.1)],
            ..pb::ExecutorInfo::default()
        },
        framework: framework(),
    };
    records.add("executor.info", executor);
    for (name, entry) in entries() {
        records.add(name, LogRecord::from_entry(entry));
    }
    let recorded = recorded("checkpoints.txt", &records.written);
    for ((name, _), check) in records.written.iter().zip(&records.checks) {
        check(&recorded[name]);
        check(&with_unknown_fields(&recorded[name]));
    }
}
