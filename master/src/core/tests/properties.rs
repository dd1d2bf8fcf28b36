//! Arbitrary sequences of calls and accidents: nothing panics, the books always agree.

use proptest::prelude::*;

use super::operator::maintenance;
use super::*;
use meseta_allocator::InverseAnswer;

/// One thing that may happen; numbers choose among what there is at that moment.
#[derive(Clone, Debug)]
enum Step {
    Register(u8),
    AgentGone(u8),
    Reregister(u8, bool),
    Unregister(u8),
    Subscribe(u8),
    Resubscribe(u8),
    SchedulerGone(u8),
    Accept(u8, u8, u8),
    Group(u8, u8, u8),
    ExecutorExited(u8, u8, u8),
    UpdateFramework(u8, u8),
    Decline(u8, f64),
    Revive(u8),
    Suppress(u8),
    Kill(u8, u8),
    Update(u8, u8, u8),
    Acknowledge(u8, u8, u8),
    Reconcile(u8),
    Teardown(u8),
    Advance(u16),
    Answer(u8),
    CallNonsense(u8, String),
    FrameNonsense(u8, String),
    /// Schedules the agents' machine, calls that off, takes it down, brings it up.
    Maintain(u8),
    AnswerInverse(u8, bool, u8),
}

/// Names as hostile clients choose them.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just("..".to_owned()),
        Just("a/../b".to_owned()),
        Just("x".repeat(300)),
        Just("t1".to_owned()),
        Just("m-S0".to_owned()),
        Just("m-O0".to_owned()),
        any::<String>(),
    ]
}

/// Every call that takes names, with this one in every place.
fn nonsense_calls(name: &str) -> Vec<Action> {
    let task_id = v1::TaskId {
        value: name.to_owned(),
    };
    let agent_id = v1::AgentId {
        value: name.to_owned(),
    };
    let executor_id = v1::ExecutorId {
        value: name.to_owned(),
    };
    let offer_ids = vec![
        v1::OfferId {
            value: name.to_owned()
        };
        2
    ];
    let mut info = v1::TaskInfo {
        task_id: task_id.clone(),
        agent_id: agent_id.clone(),
        ..v1::TaskInfo::default()
    };
    info.resources = wire("cpus:1");
    info.resources[0].name = name.to_owned();
    vec![
        Action::Kill(call::Kill {
            task_id: task_id.clone(),
            agent_id: Some(agent_id.clone()),
            kill_policy: None,
        }),
        Action::Acknowledge {
            agent_id: name.to_owned(),
            task_id: name.to_owned(),
            uuid: [0; 16],
        },
        reconcile(&[(name, Some(name)), (name, None)]),
        Action::Decline(call::Decline {
            offer_ids: offer_ids.clone(),
            filters: None,
        }),
        Action::Accept(call::Accept {
            offer_ids,
            operations: vec![launch(vec![info])],
            filters: None,
        }),
        Action::Shutdown(call::Shutdown {
            executor_id: executor_id.clone(),
            agent_id: agent_id.clone(),
        }),
        Action::Message(call::Message {
            agent_id,
            executor_id,
            data: vec![0; 10],
        }),
        Action::Revive {
            roles: vec![name.to_owned()],
        },
        Action::Suppress {
            roles: vec![name.to_owned()],
        },
    ]
}

/// Frames of a registered agent about what is not there.
fn nonsense_frames(name: &str) -> Vec<agent_frame::Message> {
    let framework_id = v1::FrameworkId {
        value: name.to_owned(),
    };
    let executor_id = v1::ExecutorId {
        value: name.to_owned(),
    };
    vec![
        agent_frame::Message::StatusUpdate(meseta::StatusUpdate {
            framework_id: framework_id.clone(),
            status: TaskStatus {
                task_id: v1::TaskId {
                    value: name.to_owned(),
                },
                state: 99,
                ..TaskStatus::default()
            },
            latest_state: Some(-1),
        }),
        agent_frame::Message::ExecutorExited(meseta::ExecutorExited {
            framework_id: framework_id.clone(),
            executor_id: executor_id.clone(),
            status: None,
        }),
        agent_frame::Message::ExecutorMessage(meseta::ExecutorMessage {
            framework_id,
            executor_id,
            data: Vec::new(),
        }),
        agent_frame::Message::Pong(meseta::Pong { sequence: u64::MAX }),
        agent_frame::Message::Register(meseta::Register::default()),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let n = || any::<u8>();
    prop_oneof![
        2 => n().prop_map(Step::Register),
        1 => n().prop_map(Step::AgentGone),
        2 => (n(), any::<bool>()).prop_map(|(a, b)| Step::Reregister(a, b)),
        1 => n().prop_map(Step::Unregister),
        2 => n().prop_map(Step::Subscribe),
        1 => n().prop_map(Step::Resubscribe),
        1 => n().prop_map(Step::SchedulerGone),
        8 => (n(), n(), n()).prop_map(|(a, b, c)| Step::Accept(a, b, c)),
        4 => (n(), n(), n()).prop_map(|(a, b, c)| Step::Group(a, b, c)),
        2 => (n(), n(), n()).prop_map(|(a, b, c)| Step::ExecutorExited(a, b, c)),
        1 => (n(), n()).prop_map(|(a, b)| Step::UpdateFramework(a, b)),
        2 => (n(), prop_oneof![Just(0.0), Just(5.0), Just(-1.0), Just(f64::NAN), Just(1e300)])
            .prop_map(|(a, b)| Step::Decline(a, b)),
        1 => n().prop_map(Step::Revive),
        1 => n().prop_map(Step::Suppress),
        1 => (n(), n()).prop_map(|(a, b)| Step::Kill(a, b)),
        8 => (n(), n(), n()).prop_map(|(a, b, c)| Step::Update(a, b, c)),
        4 => (n(), n(), n()).prop_map(|(a, b, c)| Step::Acknowledge(a, b, c)),
        1 => n().prop_map(Step::Reconcile),
        1 => n().prop_map(Step::Teardown),
        3 => (0..120_u16).prop_map(Step::Advance),
        3 => n().prop_map(Step::Answer),
        2 => (n(), name()).prop_map(|(a, b)| Step::CallNonsense(a, b)),
        2 => (n(), name()).prop_map(|(a, b)| Step::FrameNonsense(a, b)),
        2 => n().prop_map(Step::Maintain),
        2 => (n(), any::<bool>(), n()).prop_map(|(a, b, c)| Step::AnswerInverse(a, b, c)),
    ]
}

#[derive(Default)]
struct Participants {
    nodes: Vec<Node>,
    schedulers: Vec<Scheduler>,
    offers: Vec<v1::Offer>,
    inverse_offers: Vec<v1::InverseOffer>,
}

fn pick<T: Clone>(all: &[T], number: u8) -> Option<T> {
    if all.is_empty() {
        return None;
    }
    all.get(usize::from(number) % all.len()).cloned()
}

/// A group of two under one of three executors, by the offer's owner or somebody else.
fn launch_group(world: &mut World, participants: &Participants, (f, o): (u8, u8), name: u8) {
    let (Some(scheduler), Some(offer)) = (
        pick(&participants.schedulers, f),
        pick(&participants.offers, o),
    ) else {
        return;
    };
    let is_owner = |scheduler: &&Scheduler| scheduler.id == offer.framework_id.value;
    let owner = participants.schedulers.iter().find(is_owner).cloned();
    let caller = if f % 8 == 0 {
        scheduler
    } else {
        owner.unwrap_or(scheduler)
    };
    let is_here = |node: &&Node| node.id == offer.agent_id.value;
    let Some(node) = participants.nodes.iter().find(is_here) else {
        return;
    };
    let operation = v1::offer::Operation {
        r#type: Some(v1::offer::operation::Type::LaunchGroup.into()),
        launch_group: Some(v1::offer::operation::LaunchGroup {
            executor: v1::ExecutorInfo {
                executor_id: v1::ExecutorId {
                    value: format!("e{}", name % 3),
                },
                framework_id: Some(v1::FrameworkId {
                    value: caller.id.clone(),
                }),
                r#type: Some(v1::executor_info::Type::Default.into()),
                resources: wire("cpus:0.1;mem:32;disk:1"),
                ..v1::ExecutorInfo::default()
            },
            task_group: v1::TaskGroupInfo {
                tasks: vec![
                    task(node, &format!("g{}", name % 16), "cpus:0.5;mem:32"),
                    task(node, &format!("g{}", name % 5), "cpus:0.2;mem:16"),
                ],
            },
        }),
        ..v1::offer::Operation::default()
    };
    let accept = Action::Accept(call::Accept {
        offer_ids: vec![offer.id.clone()],
        operations: vec![operation],
        filters: None,
    });
    world.call(&caller, accept);
}

fn play(world: &mut World, participants: &mut Participants, step: Step) {
    let states = [
        TaskState::TaskStarting,
        TaskState::TaskRunning,
        TaskState::TaskFinished,
        TaskState::TaskFailed,
    ];
    match step {
        Step::Register(port) => {
            let port = i32::from(port % 4);
            let connection = world.handshake(agent_frame::Message::Register(register(
                port,
                "cpus:4;mem:512;disk:64;ports:[1-9]",
            )));
            let frames = world.take_frames(connection);
            let id = frames.iter().find_map(|frame| match frame {
                master_frame::Message::Registered(registered) => {
                    Some(registered.agent_id.value.clone())
                }
                _ => None,
            });
            if let Some(id) = id {
                let register = register(port, "cpus:4;mem:512;disk:64;ports:[1-9]");
                participants.nodes.push(Node {
                    connection,
                    id,
                    register,
                });
            }
        }
        Step::AgentGone(a) => {
            if let Some(node) = pick(&participants.nodes, a) {
                world.input(Input::AgentGone {
                    connection: node.connection,
                });
            }
        }
        Step::Reregister(a, with_tasks) => {
            if let Some(node) = pick(&participants.nodes, a) {
                let snapshot = world.core.snapshot();
                let known = snapshot
                    .agents
                    .iter()
                    .find(|agent| agent.id().as_str() == node.id);
                let tasks = known.filter(|_| with_tasks).map(|agent| {
                    agent
                        .tasks
                        .values()
                        .map(|task| {
                            let mut wire = task.to_wire();
                            wire.resources = to_wire(&task.resources, Format::PostRefinement);
                            wire
                        })
                        .collect()
                });
                let infos = snapshot
                    .frameworks
                    .iter()
                    .map(|framework| (*framework.info).clone())
                    .collect();
                let node = world.reregister(&node, tasks.unwrap_or_default(), infos);
                for old in &mut participants.nodes {
                    if old.id == node.id {
                        old.connection = node.connection;
                    }
                }
            }
        }
        Step::Unregister(a) => {
            if let Some(node) = pick(&participants.nodes, a) {
                let reason = String::new();
                world.say(
                    &node,
                    agent_frame::Message::Unregister(meseta::Unregister { reason }),
                );
            }
        }
        Step::Subscribe(role) => {
            let role = ["a", "b", "a/c"][usize::from(role % 3)];
            let scheduler = world.subscribe(framework("f", &[role]));
            participants.schedulers.push(scheduler);
        }
        Step::Resubscribe(f) => {
            if let Some(scheduler) = pick(&participants.schedulers, f) {
                let connection = world
                    .try_subscribe(World::with_id(aware(framework("f", &["a"])), &scheduler.id));
                for old in &mut participants.schedulers {
                    if old.id == scheduler.id {
                        old.connection = connection;
                        old.stream = format!("stream-{connection}");
                    }
                }
            }
        }
        Step::SchedulerGone(f) => {
            if let Some(scheduler) = pick(&participants.schedulers, f) {
                world.input(Input::SchedulerGone {
                    connection: scheduler.connection,
                });
            }
        }
        Step::Accept(f, o, name) => {
            let offer = pick(&participants.offers, o);
            if let (Some(scheduler), Some(offer)) = (pick(&participants.schedulers, f), offer) {
                let owner = participants
                    .schedulers
                    .iter()
                    .find(|s| s.id == offer.framework_id.value)
                    .cloned();
                // Mostly the owner, sometimes somebody else.
                let caller = if f % 8 == 0 {
                    scheduler
                } else {
                    owner.unwrap_or(scheduler)
                };
                if let Some(node) = participants
                    .nodes
                    .iter()
                    .find(|node| node.id == offer.agent_id.value)
                    .cloned()
                {
                    let tasks = vec![
                        task(
                            &node,
                            &format!("t{}", name % 16),
                            "cpus:1;mem:32;ports:[1-2]",
                        ),
                        task(&node, &format!("t{}", name % 5), "cpus:0.3;mem:16"),
                    ];
                    world.call(&caller, accept(&[&offer], tasks));
                }
            }
        }
        Step::Group(f, o, name) => launch_group(world, participants, (f, o), name),
        Step::ExecutorExited(a, f, name) => {
            let nodes = (
                pick(&participants.nodes, a),
                pick(&participants.schedulers, f),
            );
            if let (Some(node), Some(scheduler)) = nodes {
                let exited = meseta::ExecutorExited {
                    framework_id: v1::FrameworkId {
                        value: scheduler.id,
                    },
                    executor_id: v1::ExecutorId {
                        value: format!("e{}", name % 3),
                    },
                    status: Some(0),
                };
                world.say(&node, agent_frame::Message::ExecutorExited(exited));
            }
        }
        Step::UpdateFramework(f, role) => {
            if let Some(scheduler) = pick(&participants.schedulers, f) {
                let role = ["a", "b", "../c", ""][usize::from(role % 4)];
                let info = World::with_id(framework("g", &[role]), &scheduler.id);
                let call = Subscribe {
                    info,
                    suppressed_roles: vec![role.to_owned()],
                    offer_constraints: None,
                };
                world.call(&scheduler, Action::UpdateFramework(Box::new(call)));
            }
        }
        Step::Decline(o, seconds) => {
            if let Some(offer) = pick(&participants.offers, o)
                && let Some(owner) = participants
                    .schedulers
                    .iter()
                    .find(|s| s.id == offer.framework_id.value)
                    .cloned()
            {
                world.call(&owner, decline(&[&offer], seconds));
            }
        }
        Step::Revive(f) => {
            if let Some(scheduler) = pick(&participants.schedulers, f) {
                world.call(&scheduler, Action::Revive { roles: Vec::new() });
            }
        }
        Step::Suppress(f) => {
            if let Some(scheduler) = pick(&participants.schedulers, f) {
                world.call(&scheduler, Action::Suppress { roles: Vec::new() });
            }
        }
        Step::Kill(f, t) => {
            if let Some(scheduler) = pick(&participants.schedulers, f) {
                let task_id = v1::TaskId {
                    value: format!("t{}", t % 16),
                };
                world.call(
                    &scheduler,
                    Action::Kill(call::Kill {
                        task_id,
                        ..call::Kill::default()
                    }),
                );
            }
        }
        Step::Update(f, t, s) => {
            if let Some(scheduler) = pick(&participants.schedulers, f)
                && let Some(node) = pick(&participants.nodes, t)
            {
                let state = states[usize::from(s) % states.len()];
                world.update(&node, &scheduler, &format!("t{}", t % 16), state, s % 8);
            }
        }
        Step::Acknowledge(f, t, u) => {
            if let Some(scheduler) = pick(&participants.schedulers, f)
                && let Some(node) = pick(&participants.nodes, t)
            {
                let action = Action::Acknowledge {
                    agent_id: node.id,
                    task_id: format!("t{}", t % 16),
                    uuid: [u % 8; 16],
                };
                world.call(&scheduler, action);
            }
        }
        Step::Reconcile(f) => {
            if let Some(scheduler) = pick(&participants.schedulers, f) {
                world.call(&scheduler, reconcile(&[]));
                world.call(
                    &scheduler,
                    reconcile(&[("t1", None), ("t2", Some("nowhere"))]),
                );
            }
        }
        Step::Teardown(f) => {
            if let Some(scheduler) = pick(&participants.schedulers, f) {
                world.call(&scheduler, Action::Teardown);
            }
        }
        Step::Advance(seconds) => world.advance(Duration::from_secs(seconds.into())),
        Step::CallNonsense(f, name) => {
            if let Some(scheduler) = pick(&participants.schedulers, f) {
                for action in nonsense_calls(&name) {
                    world.call(&scheduler, action);
                }
            }
        }
        Step::FrameNonsense(a, name) => {
            if let Some(node) = pick(&participants.nodes, a) {
                for frame in nonsense_frames(&name) {
                    world.say(&node, frame);
                }
            }
        }
        Step::Maintain(how) => {
            let machines = vec![maintenance::node_machine()];
            world.administer(match how % 8 {
                0..=3 => {
                    let mut window = maintenance::window(machines);
                    window.unavailability.start.nanoseconds += i64::from(how);
                    maintenance::schedule(vec![window])
                }
                4 | 5 => maintenance::schedule(Vec::new()),
                6 => maintenance::down(machines),
                _ => Request::StopMaintenance(machines),
            });
        }
        Step::AnswerInverse(o, accepts, seconds) => {
            if let Some(offer) = pick(&participants.inverse_offers, o)
                && let Some(owner) = participants
                    .schedulers
                    .iter()
                    .find(|s| s.id == offer.framework_id.value || o % 8 == 0)
                    .cloned()
            {
                let answer = if accepts {
                    InverseAnswer::Accept
                } else {
                    InverseAnswer::Decline
                };
                world.call(
                    &owner,
                    Action::AnswerInverseOffers {
                        answer,
                        ids: vec![offer.id.clone(); 2],
                        filters: Some(v1::Filters {
                            refuse_seconds: Some(f64::from(seconds % 60)),
                        }),
                    },
                );
            }
        }
        Step::Answer(a) => {
            if let Some(node) = pick(&participants.nodes, a) {
                world.pong(&node);
            }
        }
    }
    let mut offers = Vec::new();
    for events in world.events.values() {
        offers.extend(
            events
                .iter()
                .filter_map(|event| event.offers.as_ref())
                .flat_map(|o| o.offers.clone()),
        );
    }
    participants.offers.extend(offers);
    let asked = world.events.values().flatten();
    let asked = asked.filter_map(|event| event.inverse_offers.as_ref());
    participants
        .inverse_offers
        .extend(asked.flat_map(|asked| asked.inverse_offers.clone()));
    let surplus = participants.inverse_offers.len().saturating_sub(16);
    participants.inverse_offers.drain(..surplus);
    world.events.clear();
    let surplus = participants.offers.len().saturating_sub(32);
    participants.offers.drain(..surplus);
}

proptest! {
    #[test]
    fn the_books_agree_whatever_happens(steps in prop::collection::vec(step(), 1..80)) {
        let mut world = World::new();
        world.refusals_change_nothing = true;
        let mut participants = Participants::default();
        for step in steps {
            play(&mut world, &mut participants, step);
        }
    }

    #[test]
    fn the_same_inputs_have_the_same_effects(steps in prop::collection::vec(step(), 1..40)) {
        let run = || {
            let mut world = World::new();
            let mut participants = Participants::default();
            for step in steps.clone() {
                play(&mut world, &mut participants, step);
            }
            format!("{:?}", world.core.snapshot())
        };
        prop_assert_eq!(run(), run());
    }
}
