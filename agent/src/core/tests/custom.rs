//! Executors of frameworks: their protocol, and all the ways in which they end.

use std::time::Duration;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::agent_frame::Message as FromAgent;
use meseta_proto::meseta::v1::master_frame::Message as ToAgent;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{
    TaskDropped, TaskFailed, TaskFinished, TaskGone, TaskKilled, TaskLost, TaskRunning,
};
use meseta_proto::mesos::v1::executor::event::Type;
use meseta_proto::mesos::v1::executor::{Event, call};
use meseta_proto::mesos::v1::framework_info::capability::Type as FrameworkCapability;
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_resources::{ContainerId, ExecutorId, FrameworkId};

use super::simulation::{
    FRAMEWORK, Seen, Simulation, framework_id, registered, scalar, task, task_id,
};
use crate::byte_semaphore::{ByteSemaphore, Permit, UNACKNOWLEDGED_BYTES};
use crate::core::{ConnectionId, Exit, Input, State};

const SECOND: Duration = Duration::from_secs(1);
pub(super) const EXECUTOR: &str = "e";

pub(super) fn executor_id() -> pb::ExecutorId {
    pb::ExecutorId {
        value: EXECUTOR.to_owned(),
    }
}

pub(super) fn executor_info(kind: pb::executor_info::Type) -> pb::ExecutorInfo {
    pb::ExecutorInfo {
        r#type: Some(kind.into()),
        executor_id: executor_id(),
        framework_id: Some(framework_id()),
        command: (kind == pb::executor_info::Type::Custom).then(|| pb::CommandInfo {
            value: Some("./executor".to_owned()),
            ..pb::CommandInfo::default()
        }),
        resources: vec![scalar("cpus", 0.1), scalar("mem", 32.0)],
        ..pb::ExecutorInfo::default()
    }
}

pub(super) fn custom(id: &str) -> pb::TaskInfo {
    let info = executor_info(pb::executor_info::Type::Custom);
    pb::TaskInfo {
        command: None,
        executor: Some(Box::new(info)),
        ..task(id)
    }
}

pub(super) fn status(task: &str, state: pb::TaskState, uuid: u8) -> pb::TaskStatus {
    pb::TaskStatus {
        task_id: task_id(task),
        state: state.into(),
        source: Some(Source::Executor.into()),
        uuid: Some(vec![uuid; 16]),
        ..pb::TaskStatus::default()
    }
}

fn ids() -> (FrameworkId, ExecutorId) {
    (
        FrameworkId::new(FRAMEWORK).expect("an id"),
        ExecutorId::new(EXECUTOR).expect("an id"),
    )
}

impl Simulation {
    fn run_custom(&mut self, id: &str, launch_executor: bool) {
        self.run_in_executor(custom(id), launch_executor);
    }

    /// Runs a task in its own executor, up to the start of the executor.
    pub(super) fn started_custom(&mut self, task: pb::TaskInfo) -> ContainerId {
        self.run(task);
        let container = self.launched();
        self.start(&container);
        container
    }

    pub(super) fn subscribe(&mut self, connection: u64, subscribe: call::Subscribe) {
        let (framework, executor) = ids();
        self.step(Input::ExecutorSubscribed {
            connection: ConnectionId(connection),
            framework,
            executor,
            permits: std::iter::repeat_with(|| Some(Permit::default()))
                .take(subscribe.unacknowledged_updates.len())
                .collect(),
            subscribe: Box::new(subscribe),
            permit: Default::default(),
        });
    }

    pub(super) fn tells(&mut self, status: pb::TaskStatus) {
        self.tells_in(status, Permit::default());
    }

    fn tells_in(&mut self, status: pb::TaskStatus, permit: Permit) {
        let (framework, executor) = ids();
        self.step(Input::ExecutorUpdate {
            framework,
            executor,
            status: Box::new(status),
            permit,
        });
    }

    /// Takes the events sent to the executor on a stream.
    pub(super) fn told(&mut self, connection: u64) -> Vec<Event> {
        let seen = std::mem::take(&mut self.seen);
        let mut told = Vec::new();
        for one in seen {
            match one {
                Seen::Told(ConnectionId(to), event) if to == connection => told.push(event),
                other => self.seen.push(other),
            }
        }
        told
    }

    /// Answers the requested resizes. Returns their memory in MB.
    pub(super) fn resize(&mut self, failed: Option<&str>) -> Vec<u64> {
        let mut sizes = Vec::new();
        while let Some(at) = self
            .seen
            .iter()
            .position(|seen| matches!(seen, Seen::Resize(..)))
        {
            let Seen::Resize(container, demand, _) = self.seen.remove(at) else {
                unreachable!("just found");
            };
            sizes.push(demand.mem_bytes.unwrap_or_default() >> 20);
            self.step(Input::Resized {
                container,
                failed: failed.map(str::to_owned),
            });
        }
        sizes
    }

    /// An executor that is subscribed on stream 1, with the delivered task `a`.
    pub(super) fn with_executor() -> (Self, ContainerId) {
        let mut simulation = Self::registered();
        let container = simulation.started_custom(custom("a"));
        simulation.subscribe(1, call::Subscribe::default());
        assert_eq!(kinds(&simulation.told(1)), [Type::Subscribed, Type::Launch]);
        (simulation, container)
    }
}

pub(super) fn kinds(events: &[Event]) -> Vec<Type> {
    events.iter().map(Event::r#type).collect()
}

fn exits(frames: &[FromAgent]) -> usize {
    let exited = |frame: &&FromAgent| matches!(frame, FromAgent::ExecutorExited(_));
    frames.iter().filter(exited).count()
}

#[test]
fn executor_gets_subscribed_then_task() {
    let mut simulation = Simulation::registered();
    simulation.run_custom("a", true);
    let container = simulation.launched();
    // The executor may subscribe before the core learns of its start.
    simulation.subscribe(1, call::Subscribe::default());
    assert_eq!(kinds(&simulation.told(1)), [Type::Subscribed]);
    simulation.start(&container);
    let events = simulation.told(1);
    assert_eq!(kinds(&events), [Type::Launch]);
    let launch = events[0].launch.as_ref().expect("a launch");
    assert_eq!(launch.task.task_id.value, "a");
    assert!(launch.task.executor.is_some());
}

#[test]
fn update_is_durable_before_acknowledgement() {
    let (mut simulation, _) = Simulation::with_executor();
    simulation.quick_disk = false;
    simulation.tells(status("a", TaskRunning, 1));
    assert!(simulation.told(1).is_empty());
    assert!(simulation.take_updates().is_empty());
    simulation.flush(usize::MAX);
    simulation.quick_disk = true;
    assert_eq!(kinds(&simulation.told(1)), [Type::Acknowledged]);
    let update = simulation.take_updates().remove(0).status;
    assert_eq!(update.uuid.as_deref(), Some(&[1; 16][..]));
    assert_eq!(update.source(), Source::Executor);
    assert_eq!(update.executor_id.clone().expect("an id").value, EXECUTOR);
    let container = update.container_status.clone().expect("a container");
    let address = &container.network_infos[0].ip_addresses[0];
    assert_eq!(address.ip_address.as_deref(), Some("127.0.0.1"));
    // The same update again: no second update, but another acknowledgement.
    simulation.acknowledge(&update);
    simulation.tells(status("a", TaskRunning, 1));
    assert_eq!(kinds(&simulation.told(1)), [Type::Acknowledged]);
    assert!(simulation.take_updates().is_empty());
}

#[test]
fn container_resizes_before_launch_and_end() {
    let (mut simulation, _) = Simulation::with_executor();
    assert_eq!(simulation.resize(None), [0_u64; 0]);
    simulation.run_custom("b", false);
    assert!(simulation.told(1).is_empty());
    // 32 MB of its own, 64 MB for each task.
    assert_eq!(simulation.resize(None), [160]);
    assert_eq!(kinds(&simulation.told(1)), [Type::Launch]);
    simulation.tells(status("b", TaskFinished, 2));
    assert!(simulation.take_updates().is_empty());
    assert!(simulation.told(1).is_empty());
    assert_eq!(simulation.resize(None), [96]);
    assert_eq!(simulation.take_updates()[0].status.state(), TaskFinished);
    assert_eq!(kinds(&simulation.told(1)), [Type::Acknowledged]);
}

/// The resources of a container also bound its disk and its ports.
#[test]
fn shrunk_container_drops_ended_tasks_resources() {
    let (mut simulation, _) = Simulation::with_executor();
    simulation.run_custom("b", false);
    simulation.resize(None);
    simulation.tells(status("b", TaskFinished, 2));
    let Some(Seen::Resize(_, demand, resources)) = simulation.seen.last() else {
        panic!("not resized: {:?}", simulation.seen.last());
    };
    assert_eq!(demand.mem_bytes.map(|bytes| bytes >> 20), Some(96));
    let mem = resources.mem().expect("memory");
    assert_eq!(mem.to_string(), "96", "{resources}");
}

#[test]
fn terminal_update_keeps_permit_until_acknowledged() {
    let semaphore = ByteSemaphore::new(UNACKNOWLEDGED_BYTES);
    let take = || semaphore.try_take("f", "executor", 8 << 20);
    let (mut simulation, _) = Simulation::with_executor();
    simulation.run_custom("b", false);
    simulation.resize(None);
    simulation.tells_in(status("b", TaskFinished, 2), take().expect("room"));
    assert!(take().is_none(), "the container is not smaller yet");
    simulation.resize(None);
    let end = simulation.take_updates().remove(0).status;
    assert!(take().is_none(), "it is told and not acknowledged");
    simulation.acknowledge(&end);
    assert!(take().is_some());
}

#[test]
fn resent_updates_wait_for_room() {
    let (mut simulation, _) = Simulation::with_executor();
    let repeat = |simulation: &mut Simulation, uuid, permit| {
        let (framework, executor) = ids();
        simulation.step(Input::ExecutorSubscribed {
            connection: ConnectionId(1),
            framework,
            executor,
            subscribe: Box::new(call::Subscribe {
                unacknowledged_updates: vec![call::Update {
                    status: status("a", TaskRunning, uuid),
                }],
                unacknowledged_tasks: vec![custom("a")],
            }),
            permit: Default::default(),
            permits: vec![permit],
        });
        kinds(&simulation.told(1))
    };
    assert_eq!(repeat(&mut simulation, 1, None), [Type::Subscribed]);
    assert!(simulation.take_updates().is_empty());
    let taken = [Type::Subscribed, Type::Acknowledged];
    assert_eq!(repeat(&mut simulation, 1, Some(Permit::default())), taken);
    assert_eq!(simulation.take_updates().len(), 1);
    // An update that is already here needs no room.
    assert_eq!(repeat(&mut simulation, 1, None), taken);
    assert!(simulation.take_updates().is_empty());
}

#[test]
fn failed_growth_destroys_container_and_tasks() {
    for (aware, state) in [(false, TaskLost), (true, TaskGone)] {
        let mut simulation = Simulation::registered();
        if aware {
            simulation.capabilities = vec![FrameworkCapability::PartitionAware];
        }
        let container = simulation.started_custom(custom("a"));
        simulation.subscribe(1, call::Subscribe::default());
        simulation.run_custom("b", false);
        simulation.resize(Some("no memory"));
        assert_eq!(simulation.kills(), [Duration::ZERO]);
        simulation.end(&container, Exit::Signal(9));
        let told = simulation.acknowledge_all();
        assert_eq!(told.len(), 2);
        for status in told {
            assert_eq!(status.state(), state);
            assert_eq!(status.reason(), Reason::ContainerUpdateFailed);
        }
    }
}

#[test]
fn executor_exit_ends_tasks_and_notifies() {
    let (mut simulation, container) = Simulation::with_executor();
    simulation.tells(status("a", TaskRunning, 1));
    simulation.acknowledge_all();
    simulation.frames.clear();
    simulation.end(&container, Exit::Code(3));
    assert_eq!(exits(&simulation.frames), 1);
    let FromAgent::ExecutorExited(exited) = simulation
        .frames
        .iter()
        .find(|frame| matches!(frame, FromAgent::ExecutorExited(_)))
        .expect("an exit")
    else {
        unreachable!("just found");
    };
    assert_eq!(exited.status, Some(3 << 8));
    let told = simulation.acknowledge_all();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].state(), TaskFailed);
    assert_eq!(told[0].reason(), Reason::ExecutorTerminated);
    assert_eq!(told[0].source(), Source::Agent);
    assert!(simulation.core.snapshot().frameworks.is_empty());
    assert!(simulation.image().frameworks.is_empty());
}

#[test]
fn memory_limit_is_reported_per_task() {
    let (mut simulation, container) = Simulation::with_executor();
    simulation.out_of_memory(container, 160.0);
    let told = simulation.acknowledge_all();
    assert_eq!(told[0].reason(), Reason::ContainerLimitationMemory);
    assert!(told[0].limitation.is_some());
}

#[test]
fn kill_of_delivered_task_reaches_executor() {
    let (mut simulation, _) = Simulation::with_executor();
    simulation.kill("a", Some(7 * SECOND));
    let events = simulation.told(1);
    assert_eq!(kinds(&events), [Type::Kill]);
    let policy = events[0].kill.as_ref().and_then(|kill| kill.kill_policy);
    assert!(policy.is_some_and(|policy| policy.grace_period.is_some()));
    simulation.step(Input::ExecutorGone {
        connection: ConnectionId(1),
    });
    simulation.kill("a", None);
    simulation.subscribe(
        2,
        call::Subscribe {
            unacknowledged_tasks: vec![custom("a")],
            ..call::Subscribe::default()
        },
    );
    assert_eq!(kinds(&simulation.told(2)), [Type::Subscribed, Type::Kill]);
}

#[test]
fn undelivered_killed_task_never_arrives() {
    let mut simulation = Simulation::registered();
    let container = simulation.started_custom(custom("a"));
    simulation.kill("a", None);
    assert!(simulation.acknowledge_all().is_empty());
    assert_eq!(simulation.resize(None), [32]);
    simulation.assert_only_told(TaskKilled, Reason::TaskKilledDuringLaunch);
    simulation.subscribe(1, call::Subscribe::default());
    assert_eq!(kinds(&simulation.told(1)), [Type::Shutdown]);
    simulation.advance(6 * SECOND);
    assert_eq!(simulation.kills(), [Duration::ZERO]);
    simulation.end(&container, Exit::Signal(9));
    assert!(simulation.core.snapshot().frameworks.is_empty());
}

/// The agent accepted the kill, and crashed before the container was smaller.
#[test]
fn kill_of_queued_task_survives_restart() {
    let mut simulation = Simulation::registered();
    simulation.started_custom(custom("a"));
    simulation.run_custom("b", false);
    assert_eq!(simulation.resize(None), [160]);
    simulation.kill("a", None);
    simulation.kill("a", None);
    simulation.seen.clear();
    simulation.crash(false);
    simulation.subscribe(1, call::Subscribe::default());
    assert_eq!(simulation.resize(None), [160 - 64]);
    simulation.register();
    simulation.assert_only_told(TaskKilled, Reason::TaskKilledDuringLaunch);
    let told = simulation.told(1);
    assert_eq!(kinds(&told), [Type::Subscribed, Type::Launch]);
    let launched = told[1].launch.as_ref().expect("a task");
    assert_eq!(launched.task.task_id.value, "b");
}

#[test]
fn executor_registration_timeout_destroys_container() {
    let mut simulation = Simulation::registered();
    let container = simulation.started_custom(custom("a"));
    simulation.advance(60 * SECOND);
    assert_eq!(simulation.kills(), [Duration::ZERO]);
    simulation.end(&container, Exit::Signal(9));
    simulation.assert_only_told(TaskFailed, Reason::ExecutorRegistrationTimeout);
}

#[test]
fn launch_failure_fails_task_frees_executor() {
    let mut simulation = Simulation::registered();
    simulation.run_custom("a", true);
    let container = simulation.launched();
    simulation.launch_fails(container, "no such user");
    assert_eq!(exits(&simulation.frames), 1);
    simulation.assert_only_told(TaskFailed, Reason::ContainerLaunchFailed);
    assert!(simulation.core.snapshot().frameworks.is_empty());
}

#[test]
fn task_for_gone_executor_is_dropped() {
    let mut simulation = Simulation::registered();
    simulation.capabilities = vec![FrameworkCapability::PartitionAware];
    simulation.run_custom("a", false);
    assert_eq!(exits(&simulation.frames), 1);
    simulation.assert_only_told(TaskDropped, Reason::ExecutorTerminated);
}

#[test]
fn messages_go_both_ways() {
    let (mut simulation, _) = Simulation::with_executor();
    let message = wire::ExecutorMessage {
        framework_id: framework_id(),
        executor_id: executor_id(),
        data: vec![0, 1, 2],
    };
    simulation.tell(ToAgent::ExecutorMessage(message.clone()));
    let events = simulation.told(1);
    assert_eq!(kinds(&events), [Type::Message]);
    assert_eq!(events[0].message.as_ref().expect("one").data, [0, 1, 2]);
    let (framework, executor) = ids();
    simulation.step(Input::ExecutorMessage {
        framework,
        executor,
        data: vec![9],
        permit: Default::default(),
    });
    let sent = simulation.frames.last().cloned();
    let expected = wire::ExecutorMessage {
        data: vec![9],
        ..message.clone()
    };
    assert_eq!(sent, Some(FromAgent::ExecutorMessage(expected)));
    // A message to a disconnected executor is counted, not kept.
    simulation.step(Input::ExecutorGone {
        connection: ConnectionId(1),
    });
    simulation.tell(ToAgent::ExecutorMessage(message));
    let counters = simulation.core.snapshot().counters;
    assert_eq!(counters.valid_framework_messages, 2);
    assert_eq!(counters.invalid_framework_messages, 1);
}

#[test]
fn executor_resends_unacknowledged_after_restart() {
    let (mut simulation, _) = Simulation::with_executor();
    simulation.tells(status("a", TaskRunning, 1));
    simulation.told(1);
    simulation.take_updates();
    simulation.crash(false);
    // Registration waits for the executor.
    assert_eq!(simulation.link, None);
    assert_eq!(simulation.core.state(), State::Disconnected);
    let finished = status("a", TaskFinished, 2);
    simulation.subscribe(
        1,
        call::Subscribe {
            unacknowledged_tasks: Vec::new(),
            unacknowledged_updates: vec![
                call::Update {
                    status: status("a", TaskRunning, 1),
                },
                call::Update { status: finished },
            ],
        },
    );
    // The volumes of the container are unknown: it gets its required volumes, and then fewer.
    assert_eq!(simulation.resize(None), [96, 32]);
    let events = kinds(&simulation.told(1));
    assert_eq!(events[0], Type::Subscribed);
    assert_eq!(
        events
            .iter()
            .filter(|kind| **kind == Type::Acknowledged)
            .count(),
        2
    );
    simulation.register();
    let told = simulation.told_states();
    assert_eq!(told, [TaskRunning, TaskFinished]);
}

#[test]
fn absent_executor_is_destroyed_after_restart() {
    let (mut simulation, container) = Simulation::with_executor();
    simulation.tells(status("a", TaskRunning, 1));
    simulation.acknowledge_all();
    simulation.crash(false);
    simulation.advance(SECOND);
    assert_eq!(simulation.link, None);
    simulation.advance(2 * SECOND);
    assert!(simulation.link.is_some());
    assert_eq!(simulation.kills().last(), Some(&Duration::ZERO));
    simulation.register();
    simulation.end(&container, Exit::Signal(9));
    simulation.assert_only_told(TaskLost, Reason::ExecutorReregistrationTimeout);
}

#[test]
fn lost_task_dropped_queued_task_delivered() {
    let (mut simulation, _) = Simulation::with_executor();
    simulation.run_custom("b", false);
    simulation.crash(false);
    // The executor never got `a`, and `b` was not sent yet.
    simulation.subscribe(1, call::Subscribe::default());
    simulation.resize(None);
    simulation.register();
    let told = simulation.acknowledge_all();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].task_id.value, "a");
    assert_eq!(told[0].state(), TaskLost);
    assert_eq!(told[0].reason(), Reason::AgentRestarted);
    let launched: Vec<_> = simulation
        .told(1)
        .into_iter()
        .filter_map(|event| event.launch)
        .map(|launch| launch.task.task_id.value)
        .collect();
    assert_eq!(launched, ["b"]);
}

/// The executor's updates of the task were acknowledged, so that it does not name the task after its return.
#[test]
fn task_with_damaged_log_is_killed() {
    for kept_bytes in [12, 40] {
        let (mut simulation, _) = Simulation::with_executor();
        simulation.tells(status("a", TaskRunning, 1));
        simulation.acknowledge_all();
        simulation.told(1);
        let key = simulation.image().frameworks[0].runs[0].key.clone();
        let log = simulation.work_dir().join(format!(
            "meta/slaves/{}/frameworks/{}/executors/{}/runs/{}/tasks/a/task.updates",
            key.agent, key.framework, key.executor, key.container
        ));
        let bytes = std::fs::read(&log).expect("a log");
        std::fs::write(&log, &bytes[..kept_bytes]).expect("cut");
        simulation.crash(false);
        simulation.subscribe(1, call::Subscribe::default());
        simulation.resize(None);
        simulation.register();
        simulation.assert_only_told(TaskFailed, Reason::AgentRestarted);
        let told = kinds(&simulation.told(1));
        assert_eq!(told[..2], [Type::Subscribed, Type::Kill], "{kept_bytes}");
    }
}

#[test]
fn tasks_end_with_executor_during_downtime() {
    let (mut simulation, container) = Simulation::with_executor();
    simulation.tells(status("a", TaskRunning, 1));
    simulation.acknowledge_all();
    simulation.machine.remove(&container);
    simulation.restart();
    simulation.assert_only_told(TaskFailed, Reason::AgentRestarted);
    assert!(simulation.image().frameworks.is_empty());
}

#[test]
fn second_stream_replaces_the_first() {
    let (mut simulation, _) = Simulation::with_executor();
    let known = call::Subscribe {
        unacknowledged_tasks: vec![custom("a")],
        ..call::Subscribe::default()
    };
    simulation.subscribe(2, known);
    assert!(simulation.saw(|seen| matches!(seen, Seen::HungUp(ConnectionId(1)))));
    // The end of the first stream has no effect any more.
    simulation.step(Input::ExecutorGone {
        connection: ConnectionId(1),
    });
    simulation.kill("a", None);
    assert_eq!(kinds(&simulation.told(2)), [Type::Subscribed, Type::Kill]);
}

/// As in Mesos: a second terminal update after the acknowledgement of the first is passed on and acknowledged.
#[test]
fn duplicate_terminal_update_after_ack() {
    let (mut simulation, _) = Simulation::with_executor();
    simulation.tells(status("a", TaskFinished, 1));
    simulation.resize(None);
    assert_eq!(simulation.acknowledge_all().len(), 1);
    simulation.told(1);
    simulation.tells(status("a", TaskKilled, 2));
    let told = simulation.acknowledge_all();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].state(), TaskKilled);
    assert_eq!(kinds(&simulation.told(1)), [Type::Acknowledged]);
}

#[test]
fn update_for_foreign_task_is_dropped() {
    let (mut simulation, _) = Simulation::with_executor();
    simulation.tells(status("unknown", TaskRunning, 1));
    assert!(simulation.take_updates().is_empty());
    assert_eq!(
        simulation.core.snapshot().counters.invalid_status_updates,
        1
    );
}

#[test]
fn executor_exit_is_sent_after_registration() {
    let mut simulation = Simulation::registered();
    let container = simulation.started_custom(custom("t"));
    simulation.subscribe(1, call::Subscribe::default());
    simulation.link_down();
    simulation.frames.clear();
    simulation.link_up();
    let reports = |frame: &FromAgent| matches!(frame, FromAgent::Reregister(report) if report.executors.len() == 1);
    assert!(simulation.frames.iter().any(reports));
    simulation.end(&container, Exit::Code(3));
    assert_eq!(
        exits(&simulation.frames),
        0,
        "nothing is said before the answer"
    );
    simulation.tell(registered());
    assert_eq!(exits(&simulation.frames), 1);
    // The next registration does not name the executor any more.
    simulation.link_down();
    simulation.link_up();
    simulation.tell(registered());
    assert_eq!(exits(&simulation.frames), 1);
}

#[test]
fn refused_launch_reports_executor_exit() {
    let mut simulation = Simulation::registered();
    simulation.step(Input::Disk(crate::checkpoint::DiskCondition::Full));
    simulation.frames.clear();
    simulation.run_custom("t", true);
    let gone = |simulation: &Simulation| {
        let exited = simulation.frames.iter().filter_map(|frame| match frame {
            FromAgent::ExecutorExited(exited) => Some(exited.executor_id.value.as_str()),
            _ => None,
        });
        exited.filter(|id| *id == EXECUTOR).count()
    };
    assert_eq!(gone(&simulation), 1, "{:?}", simulation.frames);
    // A task for another agent, which is the first of its executor; and a task of a known executor.
    simulation.step(Input::Disk(crate::checkpoint::DiskCondition::Writable));
    let mut stray = custom("u");
    stray.agent_id.value = "another".to_owned();
    simulation.run_in_executor(stray.clone(), true);
    assert_eq!(gone(&simulation), 2, "{:?}", simulation.frames);
    simulation.started_custom(custom("v"));
    simulation.run_in_executor(stray, false);
    assert_eq!(gone(&simulation), 2, "the executor of v lives");
}

#[test]
fn early_relaunch_reports_executor_exit() {
    let (mut simulation, container) = Simulation::with_executor();
    simulation.end(&container, Exit::Code(0));
    assert_eq!(exits(&simulation.frames), 1);
    simulation.run_custom("b", true);
    assert_eq!(exits(&simulation.frames), 2, "{:?}", simulation.frames);
    let told = simulation.acknowledge_all();
    assert_eq!(told[1].state(), TaskLost);
    assert_eq!(told[1].reason(), Reason::ExecutorTerminated);
}
