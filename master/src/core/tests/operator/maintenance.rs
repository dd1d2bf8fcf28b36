//! Maintenance and draining: requests of operators, their effects on agents and frameworks, and their survival of a
//! master's end.

use meseta_proto::mesos::v1::agent_info::capability::Type as AgentCapability;
use meseta_proto::mesos::v1::maintenance::{Schedule, Window};
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_proto::mesos::v1::{DurationInfo, MachineId, TimeInfo, Unavailability};

use super::*;
use crate::core::tests::agents::malicious::refused;

pub(in crate::core::tests) fn machine(hostname: &str, ip: &str) -> MachineId {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    MachineId {
        hostname: given(hostname),
        ip: given(ip),
    }
}

/// The machine of every agent in these tests.
pub(in crate::core::tests) fn node_machine() -> MachineId {
    machine("node.example", "10.0.0.1")
}

pub(in crate::core::tests) fn window(machines: Vec<MachineId>) -> Window {
    Window {
        machine_ids: machines,
        unavailability: Unavailability {
            start: TimeInfo {
                nanoseconds: 1_900_000_000_000_000_000,
            },
            duration: Some(DurationInfo {
                nanoseconds: 3_600_000_000_000,
            }),
        },
    }
}

pub(in crate::core::tests) fn schedule(windows: Vec<Window>) -> Administration {
    Administration::UpdateSchedule(Box::new(Schedule { windows }))
}

pub(in crate::core::tests) fn down(machines: Vec<MachineId>) -> Administration {
    Administration::StartMaintenance(machines)
}

fn up(machines: Vec<MachineId>) -> Administration {
    Administration::StopMaintenance(machines)
}

/// An agent that can be drained.
pub(super) fn drainable() -> (World, Node) {
    let mut world = World::new();
    let mut register = register(5051, "cpus:4;mem:1024");
    let r#type = Some(AgentCapability::AgentDraining.into());
    register.capabilities = vec![v1::agent_info::Capability { r#type }];
    let node = world.agent_that_says(register);
    (world, node)
}

pub(super) fn drain(node: &Node, mark_gone: bool) -> Administration {
    Administration::DrainAgent {
        agent_id: node.id.clone(),
        max_grace: Some(SECOND),
        mark_gone,
    }
}

fn deactivate(node: &Node) -> Administration {
    Administration::DeactivateAgent {
        agent_id: node.id.clone(),
    }
}

fn reactivate(node: &Node) -> Administration {
    Administration::ReactivateAgent {
        agent_id: node.id.clone(),
    }
}

fn gone(node: &Node) -> Administration {
    Administration::MarkAgentGone {
        agent_id: node.id.clone(),
    }
}

pub(super) fn drain_state(world: &mut World, node: &Node) -> Option<bool> {
    let snapshot = world.core.snapshot();
    let mut agents = snapshot.agents.iter();
    let agent = agents.find(|agent| agent.id().as_str() == node.id)?;
    let deactivation = agent.deactivation.as_ref()?;
    Some(deactivation.drain.as_ref()?.drained)
}

#[test]
fn invalid_maintenance_schedule_is_refused() {
    let mut world = World::new();
    let mut negative = window(vec![node_machine()]);
    negative.unavailability.duration = Some(DurationInfo { nanoseconds: -1 });
    for (windows, text) in [
        (
            vec![window(Vec::new())],
            "List of machines in the maintenance window is empty",
        ),
        (
            vec![window(vec![machine("", "")])],
            "Both 'hostname' and 'ip' for a machine are empty",
        ),
        (
            vec![window(vec![machine("a", "x")])],
            "Failed to parse IPv4: x",
        ),
        (vec![negative], "Unavailability 'duration' is negative"),
        (
            vec![
                window(vec![machine("127.0.0.1", "127.0.0.1")]),
                window(vec![machine("127.0.0.1", "127.0.0.1")]),
            ],
            "Machine '{\"hostname\":\"127.0.0.1\",\"ip\":\"127.0.0.1\"}' appears more than once in \
             the schedule",
        ),
    ] {
        assert_eq!(rejection(world.administer(schedule(windows))), text);
    }
    let add = |machines: Vec<MachineId>| Administration::AddWindow(Box::new(window(machines)));
    let long = |number: usize, bytes: usize| machine(&format!("{number:0bytes$}"), "");
    let text = "The 'hostname' of a machine has more than 255 bytes";
    assert_eq!(rejection(world.administer(add(vec![long(0, 256)]))), text);
    let many = |numbers: std::ops::Range<usize>| numbers.map(|number| long(number, 255)).collect();
    world.administer_done(add(many(0..12_000)));
    let answer = rejection(world.administer(add(many(12_000..25_000))));
    assert!(answer.contains("6291456 bytes"), "{answer}");
    assert!(world.unwritten.is_empty());
    world.administer_done(schedule(Vec::new()));
}

#[test]
fn machines_are_named_by_ipv6_address() {
    let mut world = World::new();
    let twice = schedule(vec![window(vec![
        machine("", "fd00::7"),
        machine("", "FD00:0::7"),
    ])]);
    let text = rejection(world.administer(twice));
    assert!(text.contains("appears more than once"), "{text}");
    world.administer_done(schedule(vec![window(vec![machine("", "fd00::7")])]));
}

#[test]
fn concurrent_windows_are_both_scheduled() {
    let mut world = World::new();
    let [one, other] = ["one", "other"].map(|name| window(vec![machine(name, "")]));
    let add = |window: &Window| Administration::AddWindow(Box::new(window.clone()));
    // The registry has neither window when the other is requested.
    world.writes_at_once = false;
    world.administer_as(ReplyId(101), add(&one));
    world.administer_as(ReplyId(102), add(&other));
    world.write();
    world.writes_at_once = true;
    let scheduled = &world.core.snapshot().maintenance.schedule.windows;
    assert_eq!(*scheduled, [one.clone(), other]);
    let text = "Machine '{\"hostname\":\"one\"}' appears more than once in the schedule";
    assert_eq!(rejection(world.administer(add(&one))), text);
}

#[test]
fn scheduled_agent_offers_carry_unavailability() {
    let (mut world, _, scheduler) = World::with_framework(plain(), "cpus:4;mem:1024");
    assert_eq!(world.offers(&scheduler)[0].unavailability, None);
    let expected = window(vec![node_machine()]);
    world.administer_done(schedule(vec![expected.clone()]));
    let events = world.take_events(scheduler.connection);
    assert!(events.iter().any(|event| event.rescind.is_some()));
    let offers = &first(&events, |event| event.offers.as_ref()).offers;
    assert_eq!(offers[0].unavailability, Some(expected.unavailability));
    // After cancellation the agent is offered as before.
    world.administer(schedule(Vec::new()));
    let offers = world.offers(&scheduler);
    assert_eq!(offers[0].unavailability, None);
}

#[test]
fn machine_goes_down_and_up() {
    let (mut world, node, scheduler) = World::with_framework(plain(), "cpus:4;mem:1024");
    world.launch_next(&scheduler, "t", "cpus:1;mem:64");
    let all = vec![node_machine()];
    let not_listed = "Machine '{\"hostname\":\"node.example\",\"ip\":\"10.0.0.1\"}' is not part of \
                      a maintenance schedule";
    assert_eq!(rejection(world.administer(down(all.clone()))), not_listed);
    assert_eq!(rejection(world.administer(up(all.clone()))), not_listed);
    assert_eq!(
        rejection(world.administer(down(Vec::new()))),
        "List of machines is empty"
    );
    world.administer(schedule(vec![window(all.clone())]));
    let message = rejection(world.administer(up(all.clone())));
    assert!(message.ends_with("is not in DOWN mode and cannot be brought up"));
    world.take_events(scheduler.connection);
    world.administer_done(down(all.clone()));
    assert!(sent!(world, node.connection, Shutdown));
    let updates = world.updates(&scheduler);
    assert_eq!(states(&updates), [TaskState::TaskLost]);
    assert_eq!(updates[0].reason(), Reason::AgentRemoved);
    let message = rejection(world.administer(down(all.clone())));
    assert!(message.ends_with("is not in DRAINING mode and cannot be brought down"));
    let message = rejection(world.administer(schedule(Vec::new())));
    assert!(message.ends_with("is deactivated and cannot be removed from the schedule"));
    // Agents of that machine are refused, also by the next master.
    let mut world = world.restart();
    let connection = world.handshake(AgentMessage::Register(node.register.clone()));
    assert!(sent!(world, connection, Shutdown));
    world.administer_done(up(all));
    let snapshot = world.core.snapshot();
    assert!(snapshot.maintenance.schedule.windows.is_empty());
    assert!(snapshot.maintenance.down.is_empty());
    world.agent(1, "cpus:4;mem:1024");
}

#[test]
fn refuses_agent_while_machine_goes_down() {
    for returns in [false, true] {
        let mut world = World::new();
        let node = world.agent(5051, "cpus:4;mem:1024");
        if returns {
            world = world.restart();
        } else {
            world.unregister(&node);
        }
        let scheduler = world.subscribe(plain());
        world.administer_done(schedule(vec![window(vec![node_machine()])]));
        let come = |world: &mut World| match returns {
            true => world.return_empty(&node).connection,
            false => world.handshake(AgentMessage::Register(node.register.clone())),
        };
        world.writes_at_once = false;
        world.administer_as(ReplyId(1_000), down(vec![node_machine()]));
        let early = come(&mut world);
        let refusal = refused(&mut world, early).expect("a refusal");
        assert_says(&refusal.reason, "is being brought down");
        assert!(!refusal.permanent, "it is told more when it comes again");
        world.write();
        assert_eq!(world.answers[&ReplyId(1_000)], Answer::Done);
        assert!(world.core.agents.is_empty());
        assert!(world.offers(&scheduler).is_empty());
        let late = come(&mut world);
        assert!(sent!(world, late, Shutdown));
    }
}

#[test]
fn machine_is_matched_by_hostname_alone() {
    let (mut world, _, scheduler) = World::with_framework(plain(), "cpus:4;mem:1024");
    world.offers(&scheduler);
    world.administer(schedule(vec![window(vec![machine("NODE.example", "")])]));
    assert!(world.offers(&scheduler)[0].unavailability.is_some());
}

#[test]
fn empty_agent_is_drained_immediately() {
    let (mut world, node) = drainable();
    let scheduler = world.subscribe(plain());
    world.offers(&scheduler);
    assert_eq!(
        rejection(world.administer(reactivate(&node))),
        "Agent is not deactivated"
    );
    world.administer_done(drain(&node, false));
    assert_eq!(drain_state(&mut world, &node), Some(true));
    assert!(world.rescinded(&scheduler) > 0);
    world.live(5 * SECOND, &[&node]);
    assert!(world.offers(&scheduler).is_empty());
    let mut world = world.restart();
    let node = world.return_empty(&node);
    assert_eq!(drain_state(&mut world, &node), Some(true));
    let scheduler = world.subscribe(plain());
    assert!(world.offers(&scheduler).is_empty());
    world.administer_done(reactivate(&node));
    assert_eq!(world.offers(&scheduler).len(), 1);
    assert_eq!(drain_state(&mut world, &node), None);
}

#[test]
fn agent_drains_after_last_task_acknowledged() {
    let (mut world, node) = drainable();
    let scheduler = world.subscribe(plain());
    world.launch_next(&scheduler, "t", "cpus:1;mem:64");
    world.update(&node, &scheduler, "t", TaskState::TaskRunning, 1);
    world.acknowledge(&node, &scheduler, "t", 1);
    world.take_frames(node.connection);
    world.administer_done(drain(&node, false));
    assert!(sent!(world, node.connection, Drain));
    assert_eq!(drain_state(&mut world, &node), Some(false));
    assert_eq!(
        rejection(world.administer(reactivate(&node))),
        "Agent is still in the DRAINING state"
    );
    // A master that starts meanwhile continues the drain.
    let mut world = world.restart();
    let info = info_of(&scheduler);
    let node = world.return_running(&node, &scheduler, vec![info.clone()]);
    assert!(sent!(world, node.connection, Drain));
    let scheduler = world.subscribe(info);
    world.update(&node, &scheduler, "t", TaskState::TaskKilled, 2);
    assert_eq!(drain_state(&mut world, &node), Some(false));
    world.acknowledge(&node, &scheduler, "t", 2);
    assert_eq!(drain_state(&mut world, &node), Some(true));
}

/// The framework may keep its executor as long as it likes.
#[test]
fn idle_executor_does_not_delay_drain() {
    for mark_gone in [false, true] {
        let (mut world, node) = drainable();
        let scheduler = world.subscribe(plain());
        let offer = world.offers(&scheduler).pop().unwrap();
        let mut with_executor = task(&node, "t", "cpus:1;mem:64");
        with_executor.command = None;
        with_executor.executor = Some(Box::new(v1::ExecutorInfo {
            executor_id: executor_id("e"),
            command: Some(v1::CommandInfo::default()),
            ..v1::ExecutorInfo::default()
        }));
        world.call_accepted(&scheduler, accept(&[&offer], vec![with_executor]));
        world.update(&node, &scheduler, "t", TaskState::TaskRunning, 1);
        world.acknowledge(&node, &scheduler, "t", 1);
        world.administer_done(drain(&node, mark_gone));
        assert_eq!(drain_state(&mut world, &node), Some(false));
        world.update(&node, &scheduler, "t", TaskState::TaskKilled, 2);
        world.acknowledge(&node, &scheduler, "t", 2);
        if mark_gone {
            assert_eq!(world.registry.gone.len(), 1);
            continue;
        }
        assert_eq!(drain_state(&mut world, &node), Some(true));
        let agent = &world.core.agents[&node.agent_id()];
        assert_eq!(agent.executors.len(), 1, "it has not ended");
        world.administer_done(reactivate(&node));
        assert_eq!(world.offers(&scheduler).len(), 1);
    }
}

#[test]
fn drained_agent_can_be_marked_gone() {
    let (mut world, node) = drainable();
    world.administer_done(drain(&node, true));
    assert!(sent!(world, node.connection, Shutdown));
    assert_eq!(world.registry.gone[0].0, node.id);
    assert!(world.registry.deactivations.is_empty());
    assert!(world.core.agents.is_empty());
    let connection = world.return_empty(&node).connection;
    assert!(sent!(world, connection, Shutdown));
}

#[test]
fn absent_agent_drains_after_return() {
    let (mut world, node) = drainable();
    world.lose_agent(&node);
    let mut world = world.restart();
    // First expected, then unreachable.
    world.administer_done(drain(&node, false));
    world.advance(601 * SECOND);
    assert!(world.core.absent_agents.unreachable().len() > 0);
    let node = world.return_empty(&node);
    assert_eq!(drain_state(&mut world, &node), Some(true));
}

#[test]
fn draining_and_maintenance_exclude_each_other() {
    let (mut world, node) = drainable();
    let scheduler = world.subscribe(plain());
    world.launch_next(&scheduler, "t", "cpus:1;mem:64");
    world.administer(schedule(vec![window(vec![node_machine()])]));
    let message = rejection(world.administer(drain(&node, false)));
    assert_says(&message, "maintenance schedule");
    world.administer(schedule(Vec::new()));
    world.administer_done(drain(&node, false));
    let message = rejection(world.administer(schedule(vec![window(vec![node_machine()])])));
    assert_says(&message, "is being drained");
}

#[test]
fn deactivated_agent_keeps_tasks_without_offers() {
    let (mut world, node, scheduler) = World::with_framework(plain(), "cpus:4;mem:1024");
    world.launch_next(&scheduler, "t", "cpus:1;mem:64");
    world.offers(&scheduler);
    world.administer_done(deactivate(&node));
    assert!(!sent!(world, node.connection, Drain));
    world.take_events(scheduler.connection);
    world.live(3 * SECOND, &[&node]);
    assert!(world.offers(&scheduler).is_empty());
    assert_eq!(world.core.agents.values().next().unwrap().tasks.len(), 1);
    // A new connection does not affect the drain.
    let node = world.return_running(&node, &scheduler, vec![info_of(&scheduler)]);
    world.live(3 * SECOND, &[&node]);
    assert!(world.offers(&scheduler).is_empty());
    world.administer_done(reactivate(&node));
    assert_eq!(world.offers(&scheduler).len(), 1);
}

#[test]
fn agent_marked_gone_loses_tasks() {
    let (mut world, node, plain) =
        World::with_framework(framework("plain", &["dev"]), "cpus:4;mem:1024");
    world.launch_next(&plain, "a", "cpus:1;mem:64");
    let offers = world.offers(&plain);
    world.call(&plain, decline(&offers, 60.0));
    let precise = world.subscribe(aware(framework("precise", &["ops"])));
    world.launch_next(&precise, "b", "cpus:1;mem:64");
    for scheduler in [&plain, &precise] {
        world.take_events(scheduler.connection);
    }
    world.administer_done(gone(&node));
    assert!(sent!(world, node.connection, Shutdown));
    let updates = world.updates(&plain);
    assert_eq!(states(&updates), [TaskState::TaskLost]);
    let updates = world.updates(&precise);
    assert_eq!(states(&updates), [TaskState::TaskGoneByOperator]);
    assert_eq!(updates[0].reason(), Reason::AgentRemovedByOperator);
    // A repetition succeeds, and an unknown agent is an error.
    world.administer_done(gone(&node));
    let nobody = Administration::MarkAgentGone {
        agent_id: "nosuch".to_owned(),
    };
    assert_eq!(
        world.administer(nobody),
        Answer::NotFound("Agent 'nosuch' not found".to_owned())
    );
    for request in [drain(&node, false), deactivate(&node)] {
        let message = rejection(world.administer(request));
        assert_says(&message, "was marked gone");
    }
    assert_eq!(world.core.snapshot().gone_agents.len(), 1);
    let mut world = world.restart();
    let connection = world.return_empty(&node).connection;
    assert!(sent!(world, connection, Shutdown));
}

#[test]
fn unreachable_tasks_become_gone_with_agent() {
    let (mut world, node, scheduler) = World::with_framework(aware(plain()), "cpus:4;mem:1024");
    world.launch_next(&scheduler, "t", "cpus:1;mem:64");
    world.advance(120 * SECOND);
    assert!(world.core.absent_agents.unreachable().len() > 0);
    world.take_events(scheduler.connection);
    world.administer_done(gone(&node));
    let updates = world.updates(&scheduler);
    assert_eq!(states(&updates), [TaskState::TaskGoneByOperator]);
    assert!(world.core.absent_agents.unreachable().len() == 0);
}

#[test]
fn marking_agent_excludes_other_requests() {
    let (mut world, node) = drainable();
    world.writes_at_once = false;
    world.administer_as(ReplyId(1_000), gone(&node));
    assert!(matches!(
        world.administer(gone(&node)),
        Answer::Unavailable(_)
    ));
    assert!(matches!(
        world.administer(drain(&node, false)),
        Answer::Conflict(_)
    ));
    world.write();
    assert_eq!(world.answers[&ReplyId(1_000)], Answer::Done);
}

/// An agent with the task `t`: unreachable, or expected by a master that was restarted.
fn away(is_unreachable: bool) -> (World, Node, Scheduler) {
    let (mut world, node, scheduler) = World::with_running_task(aware(plain()));
    if is_unreachable {
        world.advance(120 * SECOND);
        assert!(world.core.absent_agents.unreachable().len() > 0);
        return (world, node, scheduler);
    }
    let mut world = world.restart();
    let scheduler = world.subscribe(aware_info_of(&scheduler));
    assert!(world.core.absent_agents.expects_any());
    (world, node, scheduler)
}

#[test]
fn agent_returning_during_marking_stays_gone() {
    for is_unreachable in [true, false] {
        let (mut world, node, scheduler) = away(is_unreachable);
        world.writes_at_once = false;
        world.administer_as(ReplyId(1_000), gone(&node));
        let early = world.return_running(&node, &scheduler, vec![aware_info_of(&scheduler)]);
        let refusal = refused(&mut world, early.connection).expect("a refusal");
        assert_says(&refusal.reason, "is being marked gone");
        assert!(!refusal.permanent, "it is told more when it comes again");
        world.write();
        assert_eq!(world.answers[&ReplyId(1_000)], Answer::Done);
        let late = world.return_running(&node, &scheduler, vec![aware_info_of(&scheduler)]);
        world.write();
        assert!(sent!(world, late.connection, Shutdown));
        assert!(world.core.agents.is_empty() && world.core.absent_agents.unreachable().len() == 0);
        assert!(world.registry.agents.is_empty() && world.registry.unreachable.is_empty());
        assert_eq!(world.registry.gone.len(), 1);
    }
}

#[test]
fn marking_gone_prevents_marking_unreachable() {
    let (mut world, node, _) = away(false);
    world.advance(590 * SECOND);
    world.writes_at_once = false;
    world.administer_as(ReplyId(1_000), gone(&node));
    world.advance(20 * SECOND);
    world.write();
    assert!(world.registry.unreachable.is_empty());
    assert_eq!(world.registry.gone.len(), 1);
}

/// A deactivated, unreachable agent in a cluster whose registry soon drops unreachable agents.
fn deactivated_and_unreachable() -> (World, Node) {
    let mut world = World::with_config(|config| config.registry_max_agent_count = 0);
    let node = world.agent(5051, "cpus:4;mem:1024");
    world.administer_done(deactivate(&node));
    world.advance(100 * SECOND);
    assert_eq!(world.lost(), 1);
    world.writes_at_once = false;
    (world, node)
}

#[test]
fn pruning_keeps_deactivation_of_returning_agent() {
    for prunes_first in [false, true] {
        let (mut world, node) = deactivated_and_unreachable();
        if prunes_first {
            world.advance(900 * SECOND);
            assert_eq!(world.unwritten.len(), 1, "the agent is to be pruned");
        }
        world.return_empty(&node);
        world.advance(900 * SECOND);
        world.writes_at_once = true;
        world.write();
        let id = node.agent_id();
        assert!(world.core.agents.contains_key(&id), "{prunes_first}");
        assert!(!world.core.may_be_offered(&id), "{prunes_first}");
        assert_eq!(world.registry.deactivations.len(), 1, "{prunes_first}");
    }
}

#[test]
fn drain_behind_removal_is_refused() {
    for is_pruned in [false, true] {
        let (mut world, node) = if is_pruned {
            let (mut world, node) = deactivated_and_unreachable();
            world.advance(900 * SECOND);
            (world, node)
        } else {
            let (mut world, node) = drainable();
            world.writes_at_once = false;
            world.unregister(&node);
            (world, node)
        };
        for request in [drain(&node, false), deactivate(&node)] {
            let answer = world.administer(request);
            let Answer::Conflict(message) = answer else {
                panic!("{answer:?}");
            };
            assert_says(&message, "is being removed");
        }
        world.write();
        assert!(world.registry.deactivations.is_empty());
        assert!(world.core.policies.has_no_deactivations());
    }
}

#[test]
fn unregistering_drained_agent_leaves_no_deactivation() {
    let (mut world, node) = drainable();
    let scheduler = world.subscribe(plain());
    world.launch_next(&scheduler, "t", "cpus:1;mem:64");
    world.administer_done(drain(&node, false));
    world.writes_at_once = false;
    world.unregister(&node);
    world.update(&node, &scheduler, "t", TaskState::TaskKilled, 1);
    world.acknowledge(&node, &scheduler, "t", 1);
    world.writes_at_once = true;
    world.write();
    assert!(world.core.agents.is_empty());
    assert!(world.registry.deactivations.is_empty());
    assert!(world.core.policies.has_no_deactivations());
}

#[test]
fn drain_excludes_maintenance_of_absent_agent() {
    for is_unreachable in [false, true] {
        let (world, node) = drainable();
        let mut world = world.restart();
        if is_unreachable {
            world.advance(601 * SECOND);
            assert_eq!(world.lost(), 1);
        }
        let scheduled = || schedule(vec![window(vec![node_machine()])]);
        world.administer_done(scheduled());
        let message = rejection(world.administer(drain(&node, false)));
        assert_says(&message, "maintenance schedule");
        world.administer_done(schedule(Vec::new()));
        world.administer_done(drain(&node, false));
        let message = rejection(world.administer(scheduled()));
        assert_says(&message, "is being drained");
        let elsewhere = schedule(vec![window(vec![machine("other.example", "")])]);
        world.administer_done(elsewhere);
    }
}

/// The master does not know the address of an absent agent, nor that its machine is scheduled.
#[test]
fn returning_draining_agent_gets_no_maintenance() {
    let (mut world, node) = drainable();
    let scheduler = world.subscribe(plain());
    world.launch_next(&scheduler, "t", "cpus:1;mem:64");
    let info = info_of(&scheduler);
    let mut world = world.restart();
    world.administer_done(schedule(vec![window(vec![machine("", "10.0.0.1")])]));
    world.administer_done(drain(&node, false));
    let scheduler = world.subscribe(info.clone());
    let node = world.return_running(&node, &scheduler, vec![info]);
    assert_eq!(drain_state(&mut world, &node), Some(false));
    world.live(5 * SECOND, &[&node]);
    let told = world.take_events(scheduler.connection);
    assert!(told.iter().all(|event| event.inverse_offers.is_none()));
}
