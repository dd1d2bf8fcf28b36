//! A silent disk: kills and the end of the process do not wait for it, and the master learns of it.

use std::time::Duration;

use meseta_proto::meseta::v1::agent_frame::Message as FromAgent;

use super::simulation::{Seen, Simulation};
use crate::checkpoint::DiskCondition;
use crate::core::{ExitReason, Input};

const SECOND: Duration = Duration::from_secs(1);

/// The supervisor may have failed as well, or have ended before the kill.
#[test]
fn overdue_container_destroyed_despite_hung_disk() {
    let (mut simulation, container) = Simulation::with_task();
    simulation.quick_disk = false;
    simulation.kill("t", None);
    simulation.advance(SECOND * 4);
    let destroyed = |seen: &Seen| matches!(seen, Seen::Destroy(one) if *one == container);
    assert!(simulation.saw(destroyed));
}

/// Nothing waits for a disk that is known to be silent.
#[test]
fn kill_is_immediate_despite_silent_disk() {
    let (mut simulation, _) = Simulation::with_task();
    simulation.quick_disk = false;
    simulation.step(Input::Disk(DiskCondition::Silent));
    simulation.kill("t", None);
    assert_eq!(simulation.kills(), [SECOND * 3]);
}

#[test]
fn agent_stops_although_its_disk_hangs() {
    let (mut simulation, _) = Simulation::with_task();
    simulation.quick_disk = false;
    simulation.kill("t", None);
    simulation.step(Input::Stop { kill_tasks: false });
    let stopped = |seen: &Seen| matches!(seen, Seen::Exit(ExitReason::Stopped));
    simulation.advance(SECOND * 4);
    assert!(!simulation.saw(stopped), "the last writes may still come");
    simulation.advance(SECOND);
    assert!(simulation.saw(stopped));
}

/// A master that took the agent anew offered it until the answer to its first ping.
#[test]
fn silent_disk_is_reported_before_ping() {
    let mut simulation = Simulation::registered();
    let told = |simulation: &mut Simulation| -> Vec<_> {
        let frames = std::mem::take(&mut simulation.frames).into_iter();
        let pongs = frames.filter_map(|frame| match frame {
            FromAgent::Pong(pong) => Some((pong.sequence, pong.disk_silent)),
            _ => None,
        });
        pongs.collect()
    };
    assert_eq!(told(&mut simulation), []);
    simulation.step(Input::Disk(DiskCondition::Silent));
    assert_eq!(told(&mut simulation), [(0, Some(true))]);
    simulation.link_down();
    simulation.advance(SECOND * 60);
    simulation.register();
    assert_eq!(told(&mut simulation), [(0, Some(true))]);
    simulation.step(Input::Disk(DiskCondition::Writable));
    assert_eq!(told(&mut simulation), [(0, None)]);
}

/// The limit of this simulated agent is ten minutes.
#[test]
fn silent_disk_is_reported_until_bound() {
    let mut simulation = Simulation::registered();
    let pong = |simulation: &mut Simulation, sequence| {
        simulation.frames.clear();
        simulation.ping(sequence);
        simulation.frames.iter().find_map(|frame| match frame {
            FromAgent::Pong(pong) => Some(pong.disk_silent),
            _ => None,
        })
    };
    assert_eq!(pong(&mut simulation, 1), Some(None));
    simulation.step(Input::Disk(DiskCondition::Silent));
    for sequence in 2..40 {
        assert_eq!(pong(&mut simulation, sequence), Some(Some(true)));
        simulation.advance(Duration::from_secs(15));
    }
    simulation.ping(40);
    simulation.advance(Duration::from_secs(30));
    assert_eq!(pong(&mut simulation, 41), None, "it is given up");
    // The master marks the agent unreachable and ends the connection.
    simulation.seen.clear();
    simulation.link_down();
    simulation.advance(Duration::from_secs(3600));
    let connected = |seen: &Seen| matches!(seen, Seen::Connect);
    assert!(!simulation.saw(connected));
    simulation.step(Input::Disk(DiskCondition::Writable));
    assert!(simulation.saw(connected));
    simulation.register();
    assert_eq!(pong(&mut simulation, 1), Some(None));
}
