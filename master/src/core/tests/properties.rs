//! Arbitrary sequences of calls and accidents: the core never panics, and its records always agree.

use proptest::prelude::*;

use super::operator::maintenance;
use super::*;
use crate::core::tests::tasks::groups::{accept_all, executor, group};
use meseta_allocator::InverseAnswer;

/// A random event; its numbers choose among the objects that exist at that moment.
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
    /// Schedules the agents' machine, cancels that, brings it down, or brings it up.
    Maintain(u8),
    AnswerInverse(u8, bool, u8),
}

/// Names that hostile clients could choose.
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

/// Every call with names, each with this one in every field.
fn nonsense_calls(name: &str) -> Vec<Action> {
    let task_id = task_id(name);
    let agent_id = agent_id(name);
    let executor_id = executor_id(name);
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

/// Frames of a registered agent about unknown objects.
fn nonsense_frames(name: &str) -> Vec<AgentMessage> {
    let framework_id = framework_id(name);
    let executor_id = executor_id(name);
    vec![
        AgentMessage::StatusUpdate(meseta::StatusUpdate {
            framework_id: framework_id.clone(),
            status: TaskStatus {
                task_id: task_id(name),
                state: 99,
                ..TaskStatus::default()
            },
            latest_state: Some(-1),
        }),
        AgentMessage::ExecutorExited(meseta::ExecutorExited {
            framework_id: framework_id.clone(),
            executor_id: executor_id.clone(),
            status: None,
        }),
        AgentMessage::ExecutorMessage(meseta::ExecutorMessage {
            framework_id,
            executor_id,
            data: Vec::new(),
        }),
        AgentMessage::Pong(meseta::Pong {
            sequence: u64::MAX,
            ..meseta::Pong::default()
        }),
        AgentMessage::Register(meseta::Register::default()),
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

impl Participants {
    fn node(&self, number: u8) -> Option<Node> {
        pick(&self.nodes, number)
    }

    fn scheduler(&self, number: u8) -> Option<Scheduler> {
        pick(&self.schedulers, number)
    }

    fn owner(&self, framework: &v1::FrameworkId) -> Option<Scheduler> {
        let owns = |scheduler: &&Scheduler| scheduler.id == framework.value;
        self.schedulers.iter().find(owns).cloned()
    }

    /// The framework that accepts an offer: usually its owner, sometimes another.
    fn taker(&self, number: u8, offer: &v1::Offer) -> Option<Scheduler> {
        let scheduler = self.scheduler(number)?;
        let owner = self.owner(&offer.framework_id);
        let owner = owner.filter(|_| !number.is_multiple_of(8));
        Some(owner.unwrap_or(scheduler))
    }

    fn node_of(&self, offer: &v1::Offer) -> Option<Node> {
        let is_here = |node: &&Node| node.id == offer.agent_id.value;
        self.nodes.iter().find(is_here).cloned()
    }

    /// Records the current offers.
    fn read(&mut self, world: &mut World) {
        for event in world.events.values().flatten() {
            let offers = event.offers.iter().flat_map(|event| &event.offers);
            self.offers.extend(offers.cloned());
            let asked = event.inverse_offers.iter();
            let asked = asked.flat_map(|event| &event.inverse_offers);
            self.inverse_offers.extend(asked.cloned());
        }
        world.events.clear();
        let surplus = self.inverse_offers.len().saturating_sub(16);
        self.inverse_offers.drain(..surplus);
        let surplus = self.offers.len().saturating_sub(32);
        self.offers.drain(..surplus);
    }
}

/// Launches a group of two tasks under one of three executors, by the offer's owner or another framework.
fn launch_group(world: &mut World, all: &Participants, (f, o): (u8, u8), name: u8) -> Option<()> {
    let offer = pick(&all.offers, o)?;
    let caller = all.taker(f, &offer)?;
    let node = all.node_of(&offer)?;
    let executor = v1::ExecutorInfo {
        resources: wire("cpus:0.1;mem:32;disk:1"),
        ..executor(&caller, &format!("e{}", name % 3))
    };
    let tasks = vec![
        task(&node, &format!("g{}", name % 16), "cpus:0.5;mem:32"),
        task(&node, &format!("g{}", name % 5), "cpus:0.2;mem:16"),
    ];
    world.call(&caller, accept_all(&offer, vec![group(executor, tasks)]));
    Some(())
}

/// Reregisters the agent, with the tasks that the master knows or with none.
fn come_back(world: &mut World, all: &mut Participants, node: &Node, with_tasks: bool) {
    let snapshot = world.core.snapshot();
    let agents = snapshot.agents.iter();
    let mut known = agents.filter(|agent| with_tasks && agent.id().as_str() == node.id);
    let tasks = known
        .next()
        .into_iter()
        .flat_map(|agent| agent.tasks.values());
    let reported = tasks.map(|task| v1::Task {
        resources: to_wire(&task.resources, Format::PostRefinement),
        ..task.to_wire()
    });
    let infos = snapshot.frameworks.iter().map(|one| (*one.info).clone());
    let back = world.reregister(node, reported.collect(), infos.collect());
    for old in all.nodes.iter_mut().filter(|old| old.id == back.id) {
        old.connection = back.connection;
    }
}

/// Carries out a step; skips a step about a missing object.
fn play(world: &mut World, all: &mut Participants, step: Step) -> Option<()> {
    match step {
        Step::Register(port) => {
            let resources = "cpus:4;mem:512;disk:64;ports:[1-9]";
            let register = register(i32::from(port % 4), resources);
            let connection = world.handshake(AgentMessage::Register(register.clone()));
            let frames = world.take_frames(connection).into_iter();
            let mut ids = frames.filter_map(|frame| match frame {
                MasterMessage::Registered(registered) => Some(registered.agent_id.value),
                _ => None,
            });
            let id = ids.next()?;
            all.nodes.push(Node {
                connection,
                id,
                register,
            });
        }
        Step::AgentGone(a) => world.lose_agent(&all.node(a)?),
        Step::Reregister(a, with_tasks) => {
            let node = all.node(a)?;
            come_back(world, all, &node, with_tasks);
        }
        Step::Unregister(a) => world.unregister(&all.node(a)?),
        Step::Subscribe(role) => {
            let role = ["a", "b", "a/c"][usize::from(role % 3)];
            all.schedulers
                .push(world.subscribe(framework("f", &[role])));
        }
        Step::Resubscribe(f) => {
            let id = all.scheduler(f)?.id;
            let info = World::with_id(aware(framework("f", &["a"])), &id);
            let connection = world.try_subscribe(info);
            for old in all.schedulers.iter_mut().filter(|old| old.id == id) {
                old.connection = connection;
                old.stream = format!("stream-{connection}");
            }
        }
        Step::SchedulerGone(f) => world.lose_stream(&all.scheduler(f)?),
        Step::Accept(f, o, name) => {
            let offer = pick(&all.offers, o)?;
            let caller = all.taker(f, &offer)?;
            let node = all.node_of(&offer)?;
            let large = "cpus:1;mem:32;ports:[1-2]";
            let tasks = vec![
                task(&node, &format!("t{}", name % 16), large),
                task(&node, &format!("t{}", name % 5), "cpus:0.3;mem:16"),
            ];
            world.call(&caller, accept(&[&offer], tasks));
        }
        Step::Group(f, o, name) => launch_group(world, all, (f, o), name)?,
        Step::ExecutorExited(a, f, name) => {
            let exited = meseta::ExecutorExited {
                framework_id: framework_id(&all.scheduler(f)?.id),
                executor_id: executor_id(&format!("e{}", name % 3)),
                status: Some(0),
            };
            world.say(&all.node(a)?, AgentMessage::ExecutorExited(exited));
        }
        Step::Update(f, t, s) => {
            let states = [
                TaskState::TaskStarting,
                TaskState::TaskRunning,
                TaskState::TaskFinished,
                TaskState::TaskFailed,
            ];
            let (scheduler, node) = (all.scheduler(f)?, all.node(t)?);
            let state = states[usize::from(s) % states.len()];
            world.update(&node, &scheduler, &format!("t{}", t % 16), state, s % 8);
        }
        Step::Advance(seconds) => world.advance(Duration::from_secs(seconds.into())),
        Step::FrameNonsense(a, name) => {
            let node = all.node(a)?;
            for frame in nonsense_frames(&name) {
                world.say(&node, frame);
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
                _ => Administration::StopMaintenance(machines),
            });
        }
        Step::Answer(a) => world.pong(&all.node(a)?),
        calls => {
            let (caller, actions) = actions(all, calls)?;
            for action in actions {
                world.call(&caller, action);
            }
        }
    }
    Some(())
}

/// The steps that are calls of a framework.
fn actions(all: &Participants, step: Step) -> Option<(Scheduler, Vec<Action>)> {
    let roles = Vec::new();
    Some(match step {
        Step::UpdateFramework(f, role) => {
            let scheduler = all.scheduler(f)?;
            let role = ["a", "b", "../c", ""][usize::from(role % 4)];
            let call = Subscribe {
                info: World::with_id(framework("g", &[role]), &scheduler.id),
                suppressed_roles: vec![role.to_owned()],
                offer_constraints: None,
            };
            (scheduler, vec![Action::UpdateFramework(Box::new(call))])
        }
        Step::Decline(o, seconds) => {
            let offer = pick(&all.offers, o)?;
            let owner = all.owner(&offer.framework_id)?;
            (owner, vec![decline(&[&offer], seconds)])
        }
        Step::Revive(f) => (all.scheduler(f)?, vec![Action::Revive { roles }]),
        Step::Suppress(f) => (all.scheduler(f)?, vec![Action::Suppress { roles }]),
        Step::Kill(f, t) => (all.scheduler(f)?, vec![kill(&format!("t{}", t % 16))]),
        Step::Acknowledge(f, t, u) => {
            let action = Action::Acknowledge {
                agent_id: all.node(t)?.id,
                task_id: format!("t{}", t % 16),
                uuid: [u % 8; 16],
            };
            (all.scheduler(f)?, vec![action])
        }
        Step::Reconcile(f) => {
            let some = reconcile(&[("t1", None), ("t2", Some("nowhere"))]);
            (all.scheduler(f)?, vec![reconcile(&[]), some])
        }
        Step::Teardown(f) => (all.scheduler(f)?, vec![Action::Teardown]),
        Step::CallNonsense(f, name) => (all.scheduler(f)?, nonsense_calls(&name)),
        Step::AnswerInverse(o, accepts, seconds) => {
            let offer = pick(&all.inverse_offers, o)?;
            let mut schedulers = all.schedulers.iter();
            let owns = |s: &&Scheduler| s.id == offer.framework_id.value || o % 8 == 0;
            let owner = schedulers.find(owns)?.clone();
            let answer = match accepts {
                true => InverseAnswer::Accept,
                false => InverseAnswer::Decline,
            };
            let ids = vec![offer.id.clone(); 2];
            let refuse_seconds = Some(f64::from(seconds % 60));
            let filters = Some(v1::Filters { refuse_seconds });
            let action = Action::AnswerInverseOffers {
                answer,
                ids,
                filters,
            };
            (owner, vec![action])
        }
        other => unreachable!("{other:?} is no call"),
    })
}

proptest! {
    #[test]
    fn the_books_agree_whatever_happens(steps in prop::collection::vec(step(), 1..80)) {
        let mut world = World::new();
        world.refusals_change_nothing = true;
        let mut participants = Participants::default();
        for step in steps {
            let _done = play(&mut world, &mut participants, step);
            participants.read(&mut world);
        }
    }

    #[test]
    fn same_inputs_give_same_effects(steps in prop::collection::vec(step(), 1..40)) {
        let run = || {
            let mut world = World::new();
            let mut participants = Participants::default();
            for step in steps.clone() {
                let _done = play(&mut world, &mut participants, step);
                participants.read(&mut world);
            }
            format!("{:?}", world.core.snapshot())
        };
        prop_assert_eq!(run(), run());
    }
}
