//! Maintenance and draining: what operators may ask for, what agents and frameworks see of it, and that it
//! outlives the master.

use meseta_proto::mesos::v1::agent_info::capability::Type as AgentCapability;
use meseta_proto::mesos::v1::maintenance::{Schedule, Window};
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_proto::mesos::v1::{DurationInfo, MachineId, TimeInfo, Unavailability};

use super::*;

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

pub(in crate::core::tests) fn schedule(windows: Vec<Window>) -> Request {
    Request::UpdateSchedule(Box::new(Schedule { windows }))
}

pub(in crate::core::tests) fn down(machines: Vec<MachineId>) -> Request {
    Request::StartMaintenance(machines)
}

fn up(machines: Vec<MachineId>) -> Request {
    Request::StopMaintenance(machines)
}

/// An agent that can be drained.
fn drainable(world: &mut World, port: i32) -> Node {
    let mut register = register(port, "cpus:4;mem:1024");
    register.capabilities = vec![v1::agent_info::Capability {
        r#type: Some(AgentCapability::AgentDraining.into()),
    }];
    let connection = world.handshake(agent_frame::Message::Register(register.clone()));
    let id = world.registered(connection).agent_id.value;
    Node {
        connection,
        id,
        register,
    }
}

fn drain(node: &Node, mark_gone: bool) -> Request {
    Request::DrainAgent {
        agent_id: node.id.clone(),
        max_grace: Some(SECOND),
        mark_gone,
    }
}

fn deactivate(node: &Node) -> Request {
    Request::DeactivateAgent {
        agent_id: node.id.clone(),
    }
}

fn reactivate(node: &Node) -> Request {
    Request::ReactivateAgent {
        agent_id: node.id.clone(),
    }
}

fn gone(node: &Node) -> Request {
    Request::MarkAgentGone {
        agent_id: node.id.clone(),
    }
}

fn drain_state(world: &mut World, node: &Node) -> Option<bool> {
    let snapshot = world.core.snapshot();
    let mut agents = snapshot.agents.iter();
    let agent = agents.find(|agent| agent.id().as_str() == node.id)?;
    let deactivation = agent.deactivation.as_ref()?;
    Some(deactivation.drain.as_ref()?.drained)
}

fn is_sent(world: &mut World, node: &Node, matches: fn(&master_frame::Message) -> bool) -> bool {
    world.take_frames(node.connection).iter().any(matches)
}

fn is_drain(frame: &master_frame::Message) -> bool {
    matches!(frame, master_frame::Message::Drain(_))
}

fn is_shutdown(frame: &master_frame::Message) -> bool {
    matches!(frame, master_frame::Message::Shutdown(_))
}

#[test]
fn a_schedule_that_makes_no_sense_is_refused() {
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
    assert!(world.unwritten.is_empty());
    assert_eq!(world.administer(schedule(Vec::new())), Answer::Done);
}

#[test]
fn a_scheduled_agent_is_offered_with_its_window() {
    let mut world = World::new();
    world.agent(1, "cpus:4;mem:1024");
    let scheduler = world.subscribe(framework("f", &["dev"]));
    assert_eq!(world.offers(&scheduler)[0].unavailability, None);
    let expected = window(vec![node_machine()]);
    assert_eq!(
        world.administer(schedule(vec![expected.clone()])),
        Answer::Done
    );
    let events = world.take_events(scheduler.connection);
    assert!(events.iter().any(|event| event.rescind.is_some()));
    let offers: Vec<_> = events
        .into_iter()
        .filter_map(|event| event.offers)
        .flat_map(|offers| offers.offers)
        .collect();
    assert_eq!(offers[0].unavailability, Some(expected.unavailability));
    // Called off, it is offered as before.
    world.administer(schedule(Vec::new()));
    let offers = world.offers(&scheduler);
    assert_eq!(offers[0].unavailability, None);
}

#[test]
fn a_machine_goes_down_and_up_again_and_stays_down_meanwhile() {
    let mut world = World::new();
    let node = world.agent(1, "cpus:4;mem:1024");
    let scheduler = world.subscribe(framework("f", &["dev"]));
    let offers = world.offers(&scheduler);
    let tasks = vec![task(&node, "t", "cpus:1;mem:64")];
    world.call(&scheduler, accept(&[&offers[0]], tasks));
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
    assert_eq!(world.administer(down(all.clone())), Answer::Done);
    assert!(is_sent(&mut world, &node, is_shutdown));
    let updates = world.updates(&scheduler);
    assert_eq!(states(&updates), [TaskState::TaskLost]);
    assert_eq!(updates[0].reason(), Reason::AgentRemoved);
    let message = rejection(world.administer(down(all.clone())));
    assert!(message.ends_with("is not in DRAINING mode and cannot be brought down"));
    let message = rejection(world.administer(schedule(Vec::new())));
    assert!(message.ends_with("is deactivated and cannot be removed from the schedule"));
    // Whoever comes from there is sent away, also by the next master.
    let mut world = world.restart();
    let connection = world.handshake(agent_frame::Message::Register(node.register.clone()));
    assert!(world.take_frames(connection).iter().any(is_shutdown));
    assert_eq!(world.administer(up(all)), Answer::Done);
    let snapshot = world.core.snapshot();
    assert!(snapshot.maintenance.schedule.windows.is_empty());
    assert!(snapshot.maintenance.down.is_empty());
    world.agent(1, "cpus:4;mem:1024");
}

#[test]
fn a_machine_may_be_named_by_host_alone() {
    let mut world = World::new();
    world.agent(1, "cpus:4;mem:1024");
    let scheduler = world.subscribe(framework("f", &["dev"]));
    world.offers(&scheduler);
    world.administer(schedule(vec![window(vec![machine("NODE.example", "")])]));
    assert!(world.offers(&scheduler)[0].unavailability.is_some());
}

#[test]
fn an_empty_agent_is_drained_at_once_and_stays_so() {
    let mut world = World::new();
    let node = drainable(&mut world, 1);
    let scheduler = world.subscribe(framework("f", &["dev"]));
    world.offers(&scheduler);
    assert_eq!(
        rejection(world.administer(reactivate(&node))),
        "Agent is not deactivated"
    );
    assert_eq!(world.administer(drain(&node, false)), Answer::Done);
    assert_eq!(drain_state(&mut world, &node), Some(true));
    let events = world.take_events(scheduler.connection);
    assert!(events.iter().any(|event| event.rescind.is_some()));
    world.live(5 * SECOND, &[&node]);
    assert!(world.offers(&scheduler).is_empty());
    let mut world = world.restart();
    let node = world.reregister(&node, Vec::new(), Vec::new());
    assert_eq!(drain_state(&mut world, &node), Some(true));
    let scheduler = world.subscribe(framework("f", &["dev"]));
    assert!(world.offers(&scheduler).is_empty());
    assert_eq!(world.administer(reactivate(&node)), Answer::Done);
    assert_eq!(world.offers(&scheduler).len(), 1);
    assert_eq!(drain_state(&mut world, &node), None);
}

#[test]
fn an_agent_with_tasks_is_drained_when_the_last_is_acknowledged() {
    let mut world = World::new();
    let node = drainable(&mut world, 1);
    let scheduler = world.subscribe(framework("f", &["dev"]));
    let offers = world.offers(&scheduler);
    let tasks = vec![task(&node, "t", "cpus:1;mem:64")];
    world.call(&scheduler, accept(&[&offers[0]], tasks));
    world.update(&node, &scheduler, "t", TaskState::TaskRunning, 1);
    world.acknowledge(&node, &scheduler, "t", 1);
    world.take_frames(node.connection);
    assert_eq!(world.administer(drain(&node, false)), Answer::Done);
    assert!(is_sent(&mut world, &node, is_drain));
    assert_eq!(drain_state(&mut world, &node), Some(false));
    assert_eq!(
        rejection(world.administer(reactivate(&node))),
        "Agent is still in the DRAINING state"
    );
    // A master that starts meanwhile goes on with it.
    let mut world = world.restart();
    let connection = world.handshake(agent_frame::Message::Reregister(report(
        &node,
        vec![running(&node, &scheduler, "t", "cpus:1;mem:64", "dev")],
        vec![World::with_id(framework("f", &["dev"]), &scheduler.id)],
    )));
    assert!(world.take_frames(connection).iter().any(is_drain));
    let node = Node { connection, ..node };
    let info = World::with_id(framework("f", &["dev"]), &scheduler.id);
    let scheduler = world.subscribe(info);
    world.update(&node, &scheduler, "t", TaskState::TaskKilled, 2);
    assert_eq!(drain_state(&mut world, &node), Some(false));
    world.acknowledge(&node, &scheduler, "t", 2);
    assert_eq!(drain_state(&mut world, &node), Some(true));
}

#[test]
fn an_agent_can_be_gone_when_it_is_drained() {
    let mut world = World::new();
    let node = drainable(&mut world, 1);
    assert_eq!(world.administer(drain(&node, true)), Answer::Done);
    assert!(is_sent(&mut world, &node, is_shutdown));
    assert_eq!(world.registry.gone[0].0, node.id);
    assert!(world.registry.deactivations.is_empty());
    assert!(world.core.agents.is_empty());
    let connection = world.handshake(agent_frame::Message::Reregister(report(
        &node,
        Vec::new(),
        Vec::new(),
    )));
    assert!(world.take_frames(connection).iter().any(is_shutdown));
}

#[test]
fn an_agent_that_is_away_is_drained_when_it_is_back() {
    let mut world = World::new();
    let node = drainable(&mut world, 1);
    world.input(Input::AgentGone {
        connection: node.connection,
    });
    let with_task = World::restart;
    let mut world = with_task(world);
    // Expected, then unreachable.
    assert_eq!(world.administer(drain(&node, false)), Answer::Done);
    world.advance(601 * SECOND);
    assert!(!world.core.unreachable_agents.is_empty());
    let node = world.reregister(&node, Vec::new(), Vec::new());
    assert_eq!(drain_state(&mut world, &node), Some(true));
}

#[test]
fn draining_and_maintenance_exclude_each_other() {
    let mut world = World::new();
    let node = drainable(&mut world, 1);
    let scheduler = world.subscribe(framework("f", &["dev"]));
    let offers = world.offers(&scheduler);
    let tasks = vec![task(&node, "t", "cpus:1;mem:64")];
    world.call(&scheduler, accept(&[&offers[0]], tasks));
    world.administer(schedule(vec![window(vec![node_machine()])]));
    let message = rejection(world.administer(drain(&node, false)));
    assert!(message.contains("maintenance schedule"), "{message}");
    world.administer(schedule(Vec::new()));
    assert_eq!(world.administer(drain(&node, false)), Answer::Done);
    let message = rejection(world.administer(schedule(vec![window(vec![node_machine()])])));
    assert!(message.contains("is being drained"), "{message}");
}

#[test]
fn a_deactivated_agent_keeps_its_tasks_and_gets_no_more() {
    let mut world = World::new();
    let node = world.agent(1, "cpus:4;mem:1024");
    let scheduler = world.subscribe(framework("f", &["dev"]));
    let offers = world.offers(&scheduler);
    let tasks = vec![task(&node, "t", "cpus:1;mem:64")];
    world.call(&scheduler, accept(&[&offers[0]], tasks));
    world.offers(&scheduler);
    assert_eq!(world.administer(deactivate(&node)), Answer::Done);
    assert!(!is_sent(&mut world, &node, is_drain));
    world.take_events(scheduler.connection);
    world.live(3 * SECOND, &[&node]);
    assert!(world.offers(&scheduler).is_empty());
    assert_eq!(world.core.agents.values().next().unwrap().tasks.len(), 1);
    // A new connection changes nothing about it.
    let tasks = vec![running(&node, &scheduler, "t", "cpus:1;mem:64", "dev")];
    let info = World::with_id(framework("f", &["dev"]), &scheduler.id);
    let node = world.reregister(&node, tasks, vec![info]);
    world.live(3 * SECOND, &[&node]);
    assert!(world.offers(&scheduler).is_empty());
    assert_eq!(world.administer(reactivate(&node)), Answer::Done);
    assert_eq!(world.offers(&scheduler).len(), 1);
}

#[test]
fn an_agent_marked_gone_takes_its_tasks_for_good() {
    let mut world = World::new();
    let node = world.agent(1, "cpus:4;mem:1024");
    let plain = world.subscribe(framework("plain", &["dev"]));
    let offers = world.offers(&plain);
    let tasks = vec![task(&node, "a", "cpus:1;mem:64")];
    world.call(&plain, accept(&[&offers[0]], tasks));
    let offers = world.offers(&plain);
    let offers: Vec<&v1::Offer> = offers.iter().collect();
    world.call(&plain, decline(&offers, 60.0));
    let precise = world.subscribe(aware(framework("precise", &["ops"])));
    let offers = world.offers(&precise);
    let tasks = vec![task(&node, "b", "cpus:1;mem:64")];
    world.call(&precise, accept(&[&offers[0]], tasks));
    for scheduler in [&plain, &precise] {
        world.take_events(scheduler.connection);
    }
    assert_eq!(world.administer(gone(&node)), Answer::Done);
    assert!(is_sent(&mut world, &node, is_shutdown));
    let updates = world.updates(&plain);
    assert_eq!(states(&updates), [TaskState::TaskLost]);
    let updates = world.updates(&precise);
    assert_eq!(states(&updates), [TaskState::TaskGoneByOperator]);
    assert_eq!(updates[0].reason(), Reason::AgentRemovedByOperator);
    // Again is no error, and who was never there is one.
    assert_eq!(world.administer(gone(&node)), Answer::Done);
    let nobody = Request::MarkAgentGone {
        agent_id: "nosuch".to_owned(),
    };
    assert_eq!(
        world.administer(nobody),
        Answer::NotFound("Agent 'nosuch' not found".to_owned())
    );
    for request in [drain(&node, false), deactivate(&node)] {
        let message = rejection(world.administer(request));
        assert!(message.contains("was marked gone"), "{message}");
    }
    assert_eq!(world.core.snapshot().gone_agents.len(), 1);
    let mut world = world.restart();
    let connection = world.handshake(agent_frame::Message::Reregister(report(
        &node,
        Vec::new(),
        Vec::new(),
    )));
    assert!(world.take_frames(connection).iter().any(is_shutdown));
}

#[test]
fn tasks_of_an_unreachable_agent_are_gone_with_it() {
    let mut world = World::new();
    let node = world.agent(1, "cpus:4;mem:1024");
    let scheduler = world.subscribe(aware(framework("f", &["dev"])));
    let offers = world.offers(&scheduler);
    let tasks = vec![task(&node, "t", "cpus:1;mem:64")];
    world.call(&scheduler, accept(&[&offers[0]], tasks));
    world.advance(120 * SECOND);
    assert!(!world.core.unreachable_agents.is_empty());
    world.take_events(scheduler.connection);
    assert_eq!(world.administer(gone(&node)), Answer::Done);
    let updates = world.updates(&scheduler);
    assert_eq!(states(&updates), [TaskState::TaskGoneByOperator]);
    assert!(world.core.unreachable_agents.is_empty());
}

#[test]
fn while_an_agent_is_being_marked_nothing_else_is_done_to_it() {
    let mut world = World::new();
    let node = drainable(&mut world, 1);
    world.writes_at_once = false;
    world.input(Input::Administer {
        reply: ReplyId(1_000),
        request: Box::new(gone(&node)),
        approver: world.caller.approver.clone(),
    });
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
