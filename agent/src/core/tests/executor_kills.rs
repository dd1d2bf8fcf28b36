//! Kills of tasks that run in the executors of frameworks, while the disk or the agent fails.

use std::time::Duration;

use meseta_proto::mesos::v1::TaskState::TaskRunning;
use meseta_proto::mesos::v1::executor::{call, event::Type};

use super::custom::{custom, kinds, status};
use super::simulation::Simulation;

const SECOND: Duration = Duration::from_secs(1);

fn back_with_a() -> call::Subscribe {
    call::Subscribe {
        unacknowledged_tasks: vec![custom("a")],
        ..call::Subscribe::default()
    }
}

#[test]
fn hung_disk_delays_no_executor_kill() {
    let (mut simulation, _) = Simulation::with_executor();
    simulation.quick_disk = false;
    simulation.tells(status("a", TaskRunning, 1));
    simulation.kill("a", Some(7 * SECOND));
    assert!(simulation.told(1).is_empty(), "it is not written yet");
    simulation.advance(2 * SECOND);
    let told = simulation.told(1);
    assert_eq!(kinds(&told), [Type::Kill]);
    let kill = told[0].kill.as_ref().expect("a kill");
    let grace = kill.kill_policy.expect("its policy").grace_period;
    assert_eq!(grace.expect("a grace").nanoseconds, 7_000_000_000);
    simulation.advance(60 * SECOND);
    assert!(simulation.told(1).is_empty(), "once is enough");
    simulation.flush(usize::MAX);
    assert_eq!(kinds(&simulation.told(1)), [Type::Acknowledged, Type::Kill]);
}

/// On a stream without the SUBSCRIBED event yet.
#[test]
fn kill_event_follows_subscribed_event() {
    let (mut simulation, _) = Simulation::with_executor();
    simulation.quick_disk = false;
    simulation.tells(status("a", TaskRunning, 1));
    simulation.subscribe(2, back_with_a());
    simulation.kill("a", None);
    simulation.advance(10 * SECOND);
    assert!(simulation.told(2).is_empty());
    // Flushes the update, but not the kill.
    simulation.flush(1);
    assert_eq!(kinds(&simulation.told(2)), [Type::Subscribed]);
    simulation.advance(2 * SECOND);
    assert_eq!(kinds(&simulation.told(2)), [Type::Kill]);
}

#[test]
fn unread_kill_is_resent_after_restart() {
    let (mut simulation, _) = Simulation::with_executor();
    simulation.kill("a", None);
    assert_eq!(kinds(&simulation.told(1)), [Type::Kill]);
    simulation.crash(false);
    simulation.subscribe(2, back_with_a());
    assert_eq!(kinds(&simulation.told(2)), [Type::Subscribed, Type::Kill]);
}

#[test]
fn repeated_kill_is_written_once() {
    let (mut simulation, _) = Simulation::with_executor();
    simulation.quick_disk = false;
    simulation.kill("a", None);
    let bytes = simulation.pending_bytes();
    simulation.kill("a", None);
    assert_eq!(simulation.pending_bytes(), bytes);
    simulation.kill("a", Some(SECOND));
    assert!(simulation.pending_bytes() > bytes);
}
