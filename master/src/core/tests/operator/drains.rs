//! Drains whose last tasks and operations nobody acknowledges.

use meseta_proto::mesos::v1::agent_info::capability::Type as AgentCapability;

use super::maintenance::{drain, drain_state, drainable};
use super::*;
use crate::core::config::FRAMEWORK_RETURN_TIME;
use crate::core::tests::operations::{named, register_capable, reserve, reserved};

/// Nobody acknowledges for a disconnected framework, such as that of `meseta execute --detach`.
#[test]
fn drain_ends_despite_unacknowledged_end() {
    for leaves_first in [false, true] {
        let (mut world, node) = drainable();
        let mut info = plain();
        info.failover_timeout = Some(3_600.0);
        let scheduler = world.subscribe(info);
        world.launch_next(&scheduler, "t", "cpus:1;mem:64");
        if leaves_first {
            world.lose_stream(&scheduler);
        }
        world.administer_done(drain(&node, false));
        world.update(&node, &scheduler, "t", TaskState::TaskKilled, 1);
        if !leaves_first {
            assert_eq!(drain_state(&mut world, &node), Some(false));
            world.lose_stream(&scheduler);
        }
        assert_eq!(drain_state(&mut world, &node), Some(true));
    }
}

/// A framework that has not come back to a new master acknowledges nothing either; for a while it may be on its way.
#[test]
fn drain_ends_without_absent_framework() {
    for returns in [false, true] {
        let (mut world, node) = drainable();
        let mut info = plain();
        info.failover_timeout = Some(3_600.0);
        let scheduler = world.subscribe(info);
        world.launch_next(&scheduler, "t", "cpus:1;mem:64");
        world.update(&node, &scheduler, "t", TaskState::TaskRunning, 1);
        world.acknowledge(&node, &scheduler, "t", 1);
        world.administer_done(drain(&node, false));
        let mut world = world.restart();
        let info = info_of(&scheduler);
        let node = world.return_running(&node, &scheduler, vec![info.clone()]);
        world.update(&node, &scheduler, "t", TaskState::TaskKilled, 2);
        world.live(FRAMEWORK_RETURN_TIME - 10 * SECOND, &[&node]);
        assert_eq!(drain_state(&mut world, &node), Some(false));
        let back = returns.then(|| world.subscribe(info));
        world.live(20 * SECOND, &[&node]);
        assert_eq!(drain_state(&mut world, &node), Some(!returns));
        if let Some(scheduler) = back {
            world.acknowledge(&node, &scheduler, "t", 2);
            assert_eq!(drain_state(&mut world, &node), Some(true));
        }
    }
}

#[test]
fn drain_ends_despite_unacknowledged_operation() {
    for leaves_first in [false, true] {
        let mut world = World::new();
        let mut register = register_capable(5051, "cpus:4;mem:1024");
        let r#type = Some(AgentCapability::AgentDraining.into());
        register
            .capabilities
            .push(v1::agent_info::Capability { r#type });
        let node = world.agent_that_says(register);
        let mut info = plain();
        info.failover_timeout = Some(3_600.0);
        let scheduler = world.subscribe(info);
        let offer = world.next_offer(&scheduler);
        let mine = reserved(&parse("cpus:1"), "dev", None);
        world.do_all(&scheduler, &offer, vec![named(reserve(&mine), "r")]);
        world.administer_done(drain(&node, false));
        assert_eq!(drain_state(&mut world, &node), Some(false), "under way");
        if leaves_first {
            world.lose_stream(&scheduler);
            assert_eq!(drain_state(&mut world, &node), Some(false), "under way");
        }
        assert_eq!(world.finish(&node), 1);
        if !leaves_first {
            assert_eq!(drain_state(&mut world, &node), Some(false));
            world.lose_stream(&scheduler);
        }
        assert_eq!(drain_state(&mut world, &node), Some(true));
    }
}

#[test]
fn drain_waits_for_running_task() {
    let (mut world, node) = drainable();
    let mut info = plain();
    info.failover_timeout = Some(3_600.0);
    let scheduler = world.subscribe(info);
    world.launch_next(&scheduler, "t", "cpus:1;mem:64");
    world.update(&node, &scheduler, "t", TaskState::TaskRunning, 1);
    world.administer_done(drain(&node, false));
    world.lose_stream(&scheduler);
    assert_eq!(drain_state(&mut world, &node), Some(false));
    world.update(&node, &scheduler, "t", TaskState::TaskKilled, 2);
    assert_eq!(drain_state(&mut world, &node), Some(true));
}
