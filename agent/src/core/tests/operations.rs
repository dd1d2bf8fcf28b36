//! Operations: durable before they are reported, reported until acknowledged, carried out once.

use std::time::Duration;

use meseta_proto::convert::{self, Format};
use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::agent_frame::Message as FromAgent;
use meseta_proto::meseta::v1::master_frame::Message as ToAgent;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::OperationState;
use meseta_resources::{
    Disk, Operation, Persistence, Reservation, Resource, ResourceParts, Resources, Role, Volume,
    VolumeMode,
};

use super::simulation::{Simulation, registered, task};

const SECOND: Duration = Duration::from_secs(1);

fn reserved(text: &str) -> Resources {
    let role = Role::new("dev").unwrap();
    let plain = Resources::parse(text, &Role::star()).unwrap();
    plain
        .push_reservation(&Reservation::dynamic(role, None))
        .unwrap()
}

fn volume(text: &str, id: &str) -> Resource {
    volume_of(reserved(text).iter().next().unwrap(), id)
}

fn volume_of(disk: &Resource, id: &str) -> Resource {
    Resource::new(ResourceParts {
        name: disk.name().clone(),
        value: disk.value().clone(),
        allocation_role: None,
        reservations: disk.reservations().to_vec(),
        disk: Some(Disk {
            persistence: Some(Persistence {
                id: id.into(),
                principal: None,
            }),
            volume: Some(Volume {
                container_path: "data".to_owned(),
                host_path: None,
                mode: VolumeMode::ReadWrite,
            }),
            source: None,
        }),
        revocable: false,
        shared: false,
        provider_id: None,
    })
    .unwrap()
}

fn reserve(text: &str) -> Operation {
    Operation::Reserve {
        source: Vec::new(),
        resources: reserved(text).iter().cloned().collect(),
    }
}

fn apply(operation: &Operation, number: u8) -> ToAgent {
    ToAgent::ApplyOperation(wire::ApplyOperation {
        framework_id: None,
        operation: convert::to_operation(operation),
        operation_uuid: uuid(number),
        resource_version_uuid: None,
    })
}

fn uuid(number: u8) -> pb::Uuid {
    pb::Uuid {
        value: vec![number; 16],
    }
}

fn acknowledge(update: &wire::OperationUpdate) -> ToAgent {
    ToAgent::AcknowledgeOperation(wire::AcknowledgeOperation {
        operation_uuid: update.operation_uuid.clone(),
        status_uuid: update.status.uuid.clone().unwrap().value,
    })
}

impl Simulation {
    fn told_updates(&mut self) -> Vec<wire::OperationUpdate> {
        std::mem::take(&mut self.frames)
            .into_iter()
            .filter_map(|frame| match frame {
                FromAgent::OperationUpdate(update) => Some(update),
                _ => None,
            })
            .collect()
    }

    /// Advances the time, with a master that pings.
    fn live(&mut self, time: Duration) {
        let end = self.now.moment + time;
        while self.now.moment < end {
            let left = end.saturating_since(self.now.moment);
            self.advance(left.min(30 * SECOND));
            self.ping(1);
        }
    }

    fn total(&self) -> Resources {
        self.core.snapshot().resources
    }

    /// Reregisters the agent and returns its reregistration.
    fn back(&mut self, unknown: Vec<pb::Uuid>) -> wire::Reregister {
        self.link_up();
        let report = std::mem::take(&mut self.frames)
            .into_iter()
            .find_map(|frame| match frame {
                FromAgent::Reregister(report) => Some(report),
                _ => None,
            })
            .expect("it identifies itself");
        let ToAgent::Registered(mut message) = registered() else {
            panic!("another message");
        };
        message.unknown_operations = unknown;
        self.tell(ToAgent::Registered(message));
        report
    }
}

fn state(update: &wire::OperationUpdate) -> OperationState {
    update.status.state()
}

#[test]
fn finished_operation_is_durable() {
    let mut simulation = Simulation::registered();
    let before = simulation.total();
    simulation.quick_disk = false;
    simulation.tell(apply(&reserve("cpus:1"), 1));
    assert!(
        simulation.told_updates().is_empty(),
        "the disk has not answered"
    );
    assert_eq!(simulation.total(), before, "nor is it shown");
    simulation.flush(1);
    let told = simulation.told_updates();
    assert_eq!(state(&told[0]), OperationState::OperationFinished);
    let converted = convert::resources(&told[0].status.converted_resources).unwrap();
    assert_eq!(converted, reserved("cpus:1"));
    assert!(simulation.total().contains(&reserved("cpus:1")));
}

#[test]
fn crash_before_write_undoes_operation() {
    let mut simulation = Simulation::registered();
    let before = simulation.total();
    simulation.quick_disk = false;
    simulation.tell(apply(&reserve("cpus:1"), 1));
    simulation.crash(false);
    simulation.quick_disk = true;
    let report = simulation.back(vec![uuid(1)]);
    assert!(report.operations.is_empty());
    assert!(report.register.checkpointed_resources.is_empty());
    assert_eq!(simulation.total(), before);
    let told = simulation.told_updates();
    assert_eq!(state(&told[0]), OperationState::OperationDropped);
    assert_eq!(told[0].operation_uuid, uuid(1));
}

#[test]
fn an_update_is_repeated_until_acknowledged() {
    let mut simulation = Simulation::registered();
    simulation.tell(apply(&reserve("cpus:1"), 1));
    let first = simulation.told_updates().pop().unwrap();
    for pause in [10, 20, 40] {
        simulation.live((pause - 1) * SECOND);
        assert!(simulation.told_updates().is_empty(), "not before {pause} s");
        simulation.live(SECOND);
        let again = simulation.told_updates().pop().unwrap();
        assert_eq!(again.status.uuid, first.status.uuid);
    }
    // Neither of these acknowledges the operation.
    let mut wrong = first.clone();
    wrong.status.uuid = Some(uuid(9));
    simulation.tell(acknowledge(&wrong));
    let mut other = first.clone();
    other.operation_uuid = uuid(8);
    simulation.tell(acknowledge(&other));
    simulation.live(80 * SECOND);
    assert_eq!(simulation.told_updates().len(), 1);
    simulation.tell(acknowledge(&first));
    simulation.live(1000 * SECOND);
    assert!(simulation.told_updates().is_empty());
    // The acknowledgement is durable too.
    simulation.crash(false);
    assert!(simulation.back(Vec::new()).operations.is_empty());
    assert!(simulation.told_updates().is_empty());
    assert!(simulation.total().contains(&reserved("cpus:1")));
}

#[test]
fn unacknowledged_operation_is_resent_after_restart() {
    let mut simulation = Simulation::registered();
    simulation.tell(apply(&reserve("cpus:1"), 1));
    let first = simulation.told_updates().pop().unwrap();
    simulation.crash(false);
    let report = simulation.back(Vec::new());
    let held = convert::resources(&report.register.checkpointed_resources).unwrap();
    assert_eq!(held, reserved("cpus:1"));
    assert_eq!(report.operations.len(), 1);
    let again = simulation.told_updates().pop().unwrap();
    assert_eq!(again.status.uuid, first.status.uuid);
    assert_eq!(state(&again), OperationState::OperationFinished);
}

#[test]
fn an_operation_is_done_once() {
    let mut simulation = Simulation::registered();
    simulation.tell(apply(&reserve("cpus:1"), 1));
    let after = simulation.total();
    simulation.tell(apply(&reserve("cpus:1"), 1));
    assert_eq!(simulation.total(), after);
    let told = simulation.told_updates();
    assert_eq!(told.len(), 2, "and told again");
    assert_eq!(told[0], told[1]);
}

#[test]
fn impossible_operation_changes_nothing() {
    let mut simulation = Simulation::registered();
    let before = simulation.total();
    simulation.tell(apply(&reserve("cpus:1000"), 1));
    simulation.tell(apply(&Operation::Destroy(vec![volume("disk:1", "no")]), 2));
    simulation.tell(ToAgent::ApplyOperation(wire::ApplyOperation {
        operation_uuid: uuid(3),
        ..wire::ApplyOperation::default()
    }));
    let told = simulation.told_updates();
    let states: Vec<_> = told.iter().map(state).collect();
    assert_eq!(states, [OperationState::OperationDropped; 3]);
    assert!(
        told[0]
            .status
            .message()
            .contains("does not contain cpus:1000")
    );
    assert_eq!(simulation.total(), before);
}

#[test]
fn unmakeable_volume_fails_alone() {
    let mut simulation = Simulation::registered();
    let role = Role::new(&format!("dev/{}/{}", "x".repeat(200), "x".repeat(99))).unwrap();
    let disk = Resources::parse("disk:10", &Role::star()).unwrap();
    let disk = disk.push_reservation(&Reservation::dynamic(role, None));
    let disk = disk.unwrap().iter().next().unwrap().clone();
    let reserve_disk = Operation::Reserve {
        source: Vec::new(),
        resources: vec![disk.clone()],
    };
    simulation.tell(apply(&reserve_disk, 1));
    let reserved_total = simulation.total();
    let create = Operation::Create(vec![volume_of(&disk, "v")]);
    simulation.tell(apply(&create, 2));
    simulation.tell(apply(&reserve("cpus:1"), 3));
    let told = simulation.told_updates();
    let states: Vec<_> = told.iter().map(state).collect();
    assert_eq!(
        states,
        [
            OperationState::OperationFinished,
            OperationState::OperationFailed,
            OperationState::OperationFinished
        ]
    );
    let why = told[1].status.message();
    assert!(why.contains("304 bytes"), "{why}");
    assert!(reserved_total.contains_resource(&disk));
    assert!(simulation.total().contains_resource(&disk));
    assert!(simulation.total().contains(&reserved("cpus:1")));
}

#[test]
fn unacknowledged_operations_are_bounded_in_bytes() {
    let mut simulation = Simulation::registered();
    let mut finished = 0;
    for number in 0..30 {
        let ToAgent::ApplyOperation(mut message) = apply(&reserve("cpus:0.1"), number) else {
            panic!("another message");
        };
        message.operation.id = Some(pb::OperationId {
            value: "x".repeat(1 << 20),
        });
        simulation.tell(ToAgent::ApplyOperation(message));
        let told = simulation.told_updates().pop().unwrap();
        match state(&told) {
            OperationState::OperationFinished => finished += 1,
            OperationState::OperationDropped => break,
            other => panic!("{other:?}"),
        }
    }
    assert!((1..16).contains(&finished), "{finished}");
}

#[test]
fn static_reservation_is_never_moved() {
    let mut simulation = Simulation::registered();
    simulation.configured = "cpus:4;mem:1024;disk:100;cpus(ads):1";
    simulation.crash(false);
    simulation.back(Vec::new());
    let before = simulation.total();
    let source = before.filtered(Resource::is_reserved);
    let moved = Operation::Reserve {
        source: source.iter().cloned().collect(),
        resources: reserved("cpus:1").iter().cloned().collect(),
    };
    simulation.tell(apply(&moved, 1));
    let told = simulation.told_updates().pop().unwrap();
    assert_eq!(state(&told), OperationState::OperationDropped);
    assert_eq!(simulation.total(), before);
}

#[test]
fn misfit_holdings_are_kept_with_data() {
    let mut simulation = Simulation::registered();
    let data = volume("disk:60", "v");
    simulation.tell(apply(&reserve("cpus:4;disk:60"), 1));
    simulation.tell(apply(&Operation::Create(vec![data.clone()]), 2));
    let dir = simulation.work_dir().join("volumes/roles/dev/v");
    let before = simulation.total();
    // The same amount as before, but for another role.
    simulation.configured = "cpus:2;mem:1024;disk:40;cpus(ads):2;disk(ads):60";
    simulation.crash(false);
    simulation.back(Vec::new());
    assert!(simulation.total().to_checkpoint().is_empty());
    simulation.tell(apply(&reserve("mem:10"), 3));
    simulation.crash(false);
    simulation.back(Vec::new());
    assert_eq!(simulation.total().to_checkpoint(), reserved("mem:10"));
    assert!(dir.is_dir(), "the data waits");
    simulation.configured = "cpus:4;mem:1024;disk:100";
    simulation.crash(false);
    simulation.back(Vec::new());
    let both = before.to_checkpoint() + &reserved("mem:10");
    assert_eq!(simulation.total().to_checkpoint(), both);
    assert!(simulation.total().contains_resource(&data));
}

#[test]
fn volume_directories_follow_their_records() {
    let mut simulation = Simulation::registered();
    let dir = simulation.work_dir().join("volumes/roles/dev/v");
    let data = volume("disk:1", "v");
    simulation.tell(apply(&reserve("disk:1"), 1));
    simulation.tell(apply(&Operation::Create(vec![data.clone()]), 2));
    assert!(dir.is_dir());
    std::fs::write(dir.join("file"), "data").unwrap();
    simulation.crash(false);
    simulation.back(Vec::new());
    assert!(dir.join("file").is_file());
    assert!(simulation.total().contains_resource(&data));
    simulation.tell(apply(&Operation::Destroy(vec![data.clone()]), 3));
    assert!(!dir.exists());
    simulation.tell(apply(&Operation::Create(vec![data]), 4));
    assert!(dir.is_dir() && !dir.join("file").exists(), "a new one");
}

#[test]
fn task_on_missing_resources_is_dropped() {
    let mut simulation = Simulation::registered();
    let mut task = task("t");
    let missing = reserved("cpus:1").allocate(&Role::new("dev").unwrap());
    task.resources = convert::to_resources(&missing, Format::PostRefinement).unwrap();
    simulation.run(task);
    let update = simulation.take_updates().pop().unwrap();
    assert_eq!(
        update.status.reason(),
        pb::task_status::Reason::ResourcesUnknown
    );
}

#[test]
fn damaged_holdings_allow_start_and_data() {
    let mut simulation = Simulation::registered();
    let data = volume("disk:1", "v");
    simulation.tell(apply(&reserve("disk:1"), 1));
    simulation.tell(apply(&Operation::Create(vec![data]), 2));
    let meta = simulation.work_dir().join("meta");
    let record = meta.join("resources/resources_and_operations.state");
    let copy = meta.join("resources_and_operations.copy");
    let before = simulation.total().to_checkpoint();
    assert!(!before.is_empty());
    std::fs::write(&record, b"MSTR nonsense").unwrap();
    simulation.crash(false);
    simulation.back(Vec::new());
    assert_eq!(
        simulation.total().to_checkpoint(),
        before,
        "there is a copy"
    );
    for damaged in [&record, &copy] {
        std::fs::write(damaged, b"MSTR nonsense").unwrap();
    }
    simulation.crash(false);
    simulation.back(Vec::new());
    assert!(simulation.total().to_checkpoint().is_empty());
    let kept = std::fs::read_dir(meta.join("quarantine")).expect("made");
    let mut names = kept.flatten().map(|entry| entry.file_name());
    let record = "resources_and_operations.state";
    assert!(names.any(|name| name.to_string_lossy().starts_with(record)));
    let dir = simulation.work_dir().join("volumes/roles/dev/v");
    assert!(dir.is_dir(), "the data waits for an operator");
}
