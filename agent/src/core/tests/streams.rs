//! Status updates: the scenarios of Mesos's tests for its status update manager, by name.

use std::sync::Arc;
use std::time::Duration;

use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{TaskFailed, TaskFinished, TaskRunning, TaskStarting};
use meseta_resources::{FrameworkId, Moment, TaskId};

use super::simulation::{Simulation, task};
use crate::byte_semaphore::{ByteSemaphore, Permit, UNACKNOWLEDGED_BYTES};
use crate::checkpoint::LogEntry;
use crate::core::update_streams::ABSENT_OF_FRAMEWORK_MAX;
use crate::core::{
    Acknowledged, Exit, Pushed, RETRY_INTERVAL_MAX, RETRY_INTERVAL_MIN, StatusUpdates, StreamKey,
};

fn states(updates: &[meseta_proto::meseta::v1::StatusUpdate]) -> Vec<pb::TaskState> {
    updates.iter().map(|update| update.status.state()).collect()
}

#[test]
fn checkpoint_status_update() {
    let mut simulation = Simulation::with_started_task();
    let starting = simulation.take_updates().remove(0).status;
    simulation.acknowledge(&starting);
    let image = simulation.image();
    let log = &image.frameworks[0].runs[0].tasks[0].log;
    let kinds: Vec<_> = log
        .iter()
        .map(|entry| match entry {
            LogEntry::Started(_) => "started".to_owned(),
            LogEntry::Update(status) => status.state().as_str_name().to_owned(),
            LogEntry::Acknowledged(uuid) if Some(uuid) == starting.uuid.as_ref() => {
                "ack".to_owned()
            }
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, ["started", "TASK_STARTING", "TASK_RUNNING", "ack"]);
}

#[test]
fn retry_status_update() {
    let mut simulation = Simulation::with_started_task();
    assert_eq!(states(&simulation.take_updates()), [TaskStarting]);
    simulation.advance(RETRY_INTERVAL_MIN - Duration::from_nanos(1));
    assert!(simulation.take_updates().is_empty());
    simulation.advance(Duration::from_nanos(1));
    assert_eq!(states(&simulation.take_updates()), [TaskStarting]);
    // 20, 40, ... seconds, and never more than ten minutes.
    let mut pause = RETRY_INTERVAL_MIN;
    for _ in 0..10 {
        pause = (pause * 2).min(RETRY_INTERVAL_MAX);
        // The master keeps pinging; otherwise the agent would give it up.
        let nearly = pause - Duration::from_nanos(1);
        keep_alive(&mut simulation, nearly);
        assert!(simulation.take_updates().is_empty());
        simulation.advance(Duration::from_nanos(1));
        assert_eq!(
            states(&simulation.take_updates()),
            [TaskStarting],
            "after {pause:?}"
        );
    }
    assert_eq!(pause, RETRY_INTERVAL_MAX);
}

fn keep_alive(simulation: &mut Simulation, mut time: Duration) {
    while !time.is_zero() {
        let part = time.min(Duration::from_secs(15));
        simulation.advance(part);
        time -= part;
        simulation.ping(1);
    }
}

#[test]
fn retries_restart_when_master_returns() {
    let mut simulation = Simulation::with_started_task();
    simulation.advance(Duration::from_secs(31));
    assert_eq!(states(&simulation.take_updates()).len(), 3);
    simulation.link_down();
    simulation.advance(Duration::from_secs(60));
    assert!(
        simulation.take_updates().is_empty(),
        "nothing is sent to nobody"
    );
    simulation.register();
    assert_eq!(states(&simulation.take_updates()), [TaskStarting]);
    simulation.advance(Duration::from_secs(10));
    assert_eq!(states(&simulation.take_updates()), [TaskStarting]);
}

#[test]
fn ignore_duplicate_status_update_ack() {
    let mut simulation = Simulation::with_started_task();
    let starting = simulation.take_updates().remove(0).status;
    simulation.acknowledge(&starting);
    assert_eq!(states(&simulation.take_updates()), [TaskRunning]);
    simulation.acknowledge(&starting);
    simulation.end(&simulation.launched(), Exit::Code(0));
    assert!(
        simulation.take_updates().is_empty(),
        "RUNNING is not acknowledged"
    );
}

#[test]
fn ignore_unexpected_status_update_ack() {
    let mut simulation = Simulation::with_started_task();
    simulation.take_updates();
    simulation.acknowledge_uuid("t", vec![7; 16]);
    simulation.acknowledge_uuid("t", Vec::new());
    simulation.acknowledge_uuid("other", vec![7; 16]);
    assert!(simulation.take_updates().is_empty());
}

#[test]
fn latest_task_state() {
    let (mut simulation, container) = Simulation::launching();
    simulation.start(&container);
    simulation.end(&container, Exit::Code(0));
    simulation.take_updates();
    simulation.advance(RETRY_INTERVAL_MIN);
    let again = simulation.take_updates();
    assert_eq!(states(&again), [TaskStarting]);
    assert_eq!(again[0].latest_state, Some(TaskFinished.into()));
}

fn key() -> StreamKey {
    StreamKey {
        framework: FrameworkId::new("F").expect("an id"),
        task: TaskId::new("t").expect("an id"),
    }
}

fn status(state: pb::TaskState, uuid: u8) -> pb::TaskStatus {
    pb::TaskStatus {
        state: state.into(),
        uuid: Some(vec![uuid; 16]),
        ..pb::TaskStatus::default()
    }
}

fn resumed() -> StatusUpdates {
    let mut updates = StatusUpdates::new(1 << 20);
    updates.resume(Moment::ORIGIN);
    updates
}

fn push(updates: &mut StatusUpdates, state: pb::TaskState, uuid: u8) -> Pushed {
    updates.push(Moment::ORIGIN, &key(), status(state, uuid), Arc::default())
}

fn acknowledge(updates: &mut StatusUpdates, uuid: u8) -> Acknowledged {
    updates.acknowledge(Moment::ORIGIN, &key(), &[uuid; 16])
}

#[test]
fn duplicate_update_before_ack() {
    let mut updates = resumed();
    assert_eq!(push(&mut updates, TaskRunning, 1), Pushed::Send);
    assert_eq!(push(&mut updates, TaskRunning, 1), Pushed::Duplicate);
    assert_eq!(acknowledge(&mut updates, 1), Acknowledged::Next);
    assert_eq!(push(&mut updates, TaskRunning, 1), Pushed::Duplicate);
}

#[test]
fn only_check_updates_are_bounded() {
    const BYTES_MAX: usize = 64 << 10;
    let mut updates = StatusUpdates::new(BYTES_MAX);
    let of_check = |uuid: u8| pb::TaskStatus {
        reason: Some(pb::task_status::Reason::TaskHealthCheckStatusUpdated.into()),
        message: Some("x".repeat(20 << 10)),
        ..status(TaskRunning, uuid)
    };
    let key_of = |task: &str| StreamKey {
        task: TaskId::new(task).expect("an id"),
        ..key()
    };
    let mut push =
        |task: &str, status| updates.push(Moment::ORIGIN, &key_of(task), status, Arc::default());
    for task in ["a", "b"] {
        assert_eq!(push(task, of_check(1)), Pushed::Waits);
    }
    let told = ["c", "d"].map(|task| push(task, of_check(1)));
    assert!(told.contains(&Pushed::Full), "of whatever task");
    assert_eq!(push("a", status(TaskRunning, 2)), Pushed::Waits);
    let end = pb::TaskStatus {
        state: TaskFailed.into(),
        ..of_check(3)
    };
    assert_eq!(
        push("a", end),
        Pushed::Waits,
        "an end is no word of a check"
    );
    // An acknowledged or forgotten update leaves its room to others.
    updates.acknowledge(Moment::ORIGIN, &key_of("a"), &[1; 16]);
    updates.remove(&key_of("b"));
    updates.remove_framework(&key().framework);
    for task in ["e", "f"] {
        let pushed = updates.push(Moment::ORIGIN, &key_of(task), of_check(1), Arc::default());
        assert_eq!(pushed, Pushed::Waits);
    }
}

#[test]
fn duplicated_terminal_status_update() {
    let mut updates = resumed();
    assert_eq!(push(&mut updates, TaskFinished, 1), Pushed::Send);
    let second = push(&mut updates, TaskFailed, 2);
    assert_eq!(second, Pushed::AfterTerminal);
}

#[test]
fn duplicate_terminal_update_after_ack() {
    let mut updates = resumed();
    push(&mut updates, TaskFinished, 1);
    assert_eq!(acknowledge(&mut updates, 1), Acknowledged::Closed);
    // The stream is gone. A further update of the task is accepted, and the master keeps the first.
    assert_eq!(push(&mut updates, TaskFailed, 2), Pushed::Send);
    assert_eq!(acknowledge(&mut updates, 2), Acknowledged::Closed);
    assert_eq!(acknowledge(&mut updates, 2), Acknowledged::Unknown);
    assert_eq!(updates.next_due(), None);
}

#[test]
fn new_scheduler_gets_updates_again() {
    use meseta_proto::meseta::v1 as wire;
    let mut simulation = Simulation::with_started_task();
    simulation.take_updates();
    let framework = simulation.framework();
    simulation.tell(wire::master_frame::Message::UpdateFramework(
        wire::UpdateFramework { framework },
    ));
    assert_eq!(states(&simulation.take_updates()), [TaskStarting]);
}

#[tokio::test]
async fn update_holds_permit_until_acknowledged() {
    let semaphore = ByteSemaphore::new(UNACKNOWLEDGED_BYTES);
    let take = async || -> Arc<Permit> {
        let taken = semaphore.take("f", "executor", 8 << 20).await;
        taken.expect("room, or a place to wait for it").into()
    };
    let is_free = async || {
        tokio::select! {
            biased;
            _ = take() => true,
            () = std::future::ready(()) => false,
        }
    };
    let key = key();
    let status = |uuid: u8| status(TaskRunning, uuid);
    let now = Moment::ORIGIN;
    let mut updates = StatusUpdates::new(1 << 20);
    updates.push(now, &key, status(1), take().await);
    assert!(!is_free().await, "it is not acknowledged");
    updates.acknowledge(now, &key, &[1; 16]);
    assert!(is_free().await);
    updates.push(now, &key, status(1), take().await);
    assert!(is_free().await, "it is not kept here");
    updates.push(now, &key, status(3), take().await);
    updates.remove_framework(&key.framework);
    assert!(is_free().await, "it is forgotten");
}

/// Every task of the framework is refused; the framework reads the updates and acknowledges nothing.
#[test]
fn unacknowledged_refusals_are_bounded() {
    let mut simulation = Simulation::registered();
    let refused = |number: usize| {
        let mut info = task(&format!("t{number}"));
        info.agent_id.value = "another".to_owned();
        info
    };
    const REFUSED: usize = ABSENT_OF_FRAMEWORK_MAX + 1000;
    for number in 0..REFUSED {
        simulation.run(refused(number));
    }
    assert_eq!(simulation.take_updates().len(), REFUSED, "each was told");
    simulation.link_down();
    simulation.advance(Duration::from_secs(60));
    simulation.register();
    let kept = simulation.take_updates();
    assert_eq!(kept.len(), ABSENT_OF_FRAMEWORK_MAX);
    // An acknowledged update makes room.
    simulation.acknowledge(&kept[0].status);
    simulation.run(refused(REFUSED));
    simulation.take_updates();
    simulation.link_down();
    simulation.advance(Duration::from_secs(60));
    simulation.register();
    let kept = simulation.take_updates();
    let is_last = |update: &meseta_proto::meseta::v1::StatusUpdate| {
        update.status.task_id.value == format!("t{REFUSED}")
    };
    assert_eq!(kept.len(), ABSENT_OF_FRAMEWORK_MAX);
    assert!(kept.iter().any(is_last));
}

#[test]
fn quotes_in_refusals_are_truncated() {
    let mut simulation = Simulation::registered();
    let mut info = task("t");
    info.agent_id.value = "é".repeat(1 << 20);
    simulation.run(info);
    let told = simulation.take_updates().remove(0).status;
    assert_eq!(told.message().chars().count(), 1024);
}

/// An executor sends updates like those of a check, and its framework acknowledges nothing.
#[test]
fn executor_updates_spare_check_room() {
    let semaphore = ByteSemaphore::new(UNACKNOWLEDGED_BYTES);
    let permit = semaphore.try_take("f", "executor", 60 << 10);
    let mut updates = StatusUpdates::new(64 << 10);
    let of_check = |bytes: usize, uuid: u8| pb::TaskStatus {
        reason: Some(pb::task_status::Reason::TaskHealthCheckStatusUpdated.into()),
        message: Some("x".repeat(bytes)),
        ..status(TaskRunning, uuid)
    };
    let key_of = |framework: &str| StreamKey {
        framework: FrameworkId::new(framework).expect("an id"),
        ..key()
    };
    let now = Moment::ORIGIN;
    let permit = permit.expect("room").into();
    let told = updates.push(now, &key_of("A"), of_check(60 << 10, 1), permit);
    assert_eq!(told, Pushed::Waits);
    let told = updates.push_own(now, &key_of("B"), of_check(10 << 10, 1));
    assert_eq!(told, Pushed::Waits);
    // Nor does a framework take all the room from the others.
    let mut told = (2..).map(|uuid| {
        let key = StreamKey {
            task: TaskId::new(&uuid.to_string()).expect("an id"),
            ..key_of("B")
        };
        updates.push_own(now, &key, of_check(10 << 10, uuid))
    });
    assert!(told.any(|told| told == Pushed::Full));
    drop(told);
    let told = updates.push_own(now, &key_of("C"), of_check(10 << 10, 1));
    assert_eq!(told, Pushed::Waits);
}
