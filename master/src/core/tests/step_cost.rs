//! The cost of an event depends on its objects, not on the cluster: the tests count the entries that the core reads.

use meseta_proto::mesos::v1::agent_info::capability::Type as AgentCapability;
use meseta_proto::mesos::v1::maintenance::Schedule;
use meseta_proto::mesos::v1::quota::QuotaConfig;
use meseta_proto::mesos::v1::{MachineId, value};
use meseta_resources::work_counter::entries_counted;

use super::*;
use crate::core::tests::operator::maintenance::{down, machine, schedule, window};
use crate::core::tests::tasks::groups::{accept_all, executor, group};

/// A cluster of agents reserved to the role `crowd`, and of one each to `a` and `b`.
struct Cluster {
    world: World,
    nodes: Vec<Node>,
    reserved: [Node; 2],
}

/// The registration of an agent with this number, on a machine of its own.
fn registration(number: usize, resources: &str) -> meseta::Register {
    let mut register = register(5051, resources);
    let host = format!("node-{number}.example");
    let ip = format!(
        "10.{}.{}.{}",
        number >> 16,
        (number >> 8) & 255,
        number & 255
    );
    register.agent_info.hostname.clone_from(&host);
    register.capabilities = vec![v1::agent_info::Capability {
        r#type: Some(AgentCapability::AgentDraining.into()),
    }];
    register.address = Some(v1::Address {
        hostname: Some(host),
        ip: Some(ip),
        port: 5051,
    });
    register
}

/// A task on resources reserved for a role.
fn reserved_task(node: &Node, id: &str, role: &str) -> v1::TaskInfo {
    task(node, id, &format!("cpus({role}):0.01;mem({role}):1"))
}

fn host(number: usize) -> MachineId {
    machine(&format!("Node-{number}.example"), "")
}

/// Applies an input and the registry's answers to it; leaves offers for later.
fn take_in(world: &mut World, input: Input) {
    let mut next = Some(input);
    while let Some(input) = next.take() {
        for effect in world.core.step_in_burst(world.now, input) {
            match effect {
                Effect::Persist { lsn, .. } => next = Some(Input::Persisted { lsn }),
                Effect::Output { output, .. } => world.deliver(output),
            }
        }
    }
}

fn register_on(world: &mut World, register: meseta::Register) -> Node {
    let connection = ConnectionId(world.number());
    let message = Box::new(AgentMessage::Register(register.clone()));
    let input = Input::AgentFrame {
        connection,
        message,
    };
    take_in(world, input);
    let id = world.registered(connection).agent_id.value;
    Node {
        connection,
        id,
        register,
    }
}

impl Cluster {
    fn from_agents(agents: usize) -> Self {
        let mut world = World::configured(config());
        let mut node = |number, resources| register_on(&mut world, registration(number, resources));
        let reserved = [
            node(agents, "cpus(a):64;mem(a):65536;disk(a):1024"),
            node(agents + 1, "cpus(b):64;mem(b):65536;disk(b):1024"),
        ];
        let nodes = (0..agents).map(|number| node(number, "cpus(crowd):1;mem(crowd):64"));
        Self {
            nodes: nodes.collect(),
            reserved,
            world,
        }
    }

    fn take_in(&mut self, input: Input) {
        take_in(&mut self.world, input);
    }

    /// Makes the offers that are due.
    fn settle(&mut self) {
        self.world.carry_out(Input::Tick);
    }

    /// The number of entries read for an input.
    fn cost(&mut self, input: Input) -> u64 {
        self.settle();
        let before = entries_counted();
        self.take_in(input);
        entries_counted() - before
    }

    fn frame(&mut self, message: AgentMessage) -> Input {
        Input::AgentFrame {
            connection: ConnectionId(self.world.number()),
            message: Box::new(message),
        }
    }

    fn subscription(&mut self, info: v1::FrameworkInfo) -> Input {
        let connection = ConnectionId(self.world.number());
        Input::Subscribe(SubscribeRequest {
            connection,
            stream_id: format!("stream-{connection}"),
            call: Box::new(Subscribe {
                info,
                suppressed_roles: Vec::new(),
                offer_constraints: None,
            }),
            caller: Caller::default(),
        })
    }

    fn subscribe(&mut self, info: v1::FrameworkInfo) -> Scheduler {
        let input = self.subscription(info);
        let connection = ConnectionId(self.world.next);
        self.take_in(input);
        let events = self.world.take_events(connection);
        let subscribed = events.iter().find_map(|event| event.subscribed.as_ref());
        Scheduler {
            connection,
            stream: format!("stream-{connection}"),
            id: subscribed.unwrap().framework_id.value.clone(),
        }
    }

    fn request(&mut self, administration: Administration) -> Input {
        Input::Request {
            reply: ReplyId(self.world.number()),
            request: Request::Administer {
                administration: Box::new(administration),
                approver: Caller::default().approver,
            },
        }
    }

    fn action(&mut self, scheduler: &Scheduler, action: Action) -> Input {
        Input::Request {
            reply: ReplyId(self.world.number()),
            request: Request::Call {
                framework_id: scheduler.id.clone(),
                stream_id: Some(scheduler.stream.clone()),
                action: Box::new(action),
                caller: Caller::default(),
            },
        }
    }

    /// The unanswered offers of a framework.
    fn offers(&mut self, scheduler: &Scheduler) -> Vec<v1::Offer> {
        self.settle();
        let events = self.world.events.remove(&scheduler.connection);
        let offers = events
            .into_iter()
            .flatten()
            .filter_map(|event| event.offers);
        offers.flat_map(|offers| offers.offers).collect()
    }

    /// An input that launches operations on a framework's reserved agent.
    fn launch(&mut self, tenant: &Scheduler, operations: Vec<v1::offer::Operation>) -> Input {
        let revive = self.action(tenant, Action::Revive { roles: Vec::new() });
        self.take_in(revive);
        let offer = self.offers(tenant).pop().unwrap();
        self.action(tenant, accept_all(&offer, operations))
    }
}

/// The cost of each kind of event in a cluster with this many agents, in which everything else grows in proportion.
fn costs(agents: usize) -> BTreeMap<&'static str, u64> {
    let mut cluster = Cluster::from_agents(agents);
    let mut costs = BTreeMap::new();
    let [of_a, of_b] = cluster.reserved.clone();
    let crowd = cluster.subscribe(framework("crowd", &["crowd"]));
    let offers = cluster.offers(&crowd);
    assert_eq!(offers.len(), agents);
    let a = cluster.subscribe(framework("a", &["a"]));
    let b = cluster.subscribe(framework("b", &["b"]));
    let run = launch(vec![reserved_task(&of_b, "t", "b")]);
    let input = cluster.launch(&b, vec![run]);
    cluster.take_in(input);
    // A tenth of all agents has a task and is drained.
    let by_agent: BTreeMap<_, _> = offers
        .iter()
        .map(|offer| (&offer.agent_id.value, offer))
        .collect();
    for node in &cluster.nodes.clone()[..agents / 10] {
        let offer = by_agent[&node.id];
        let run = vec![reserved_task(node, &node.id, "crowd")];
        let input = cluster.action(&crowd, accept(&[offer], run));
        cluster.take_in(input);
        let drain = cluster.request(Administration::DrainAgent {
            agent_id: node.id.clone(),
            max_grace: None,
            mark_gone: false,
        });
        cluster.take_in(drain);
    }
    let pong = Input::AgentFrame {
        connection: of_a.connection,
        message: Box::new(AgentMessage::Pong(meseta::Pong {
            sequence: 1,
            ..meseta::Pong::default()
        })),
    };
    costs.insert("a pong while agents are drained", cluster.cost(pong));

    let plan: Vec<MachineId> = (agents / 2..agents / 2 + 20).map(host).collect();
    let input = cluster.request(schedule(vec![window(plan.clone())]));
    costs.insert("a schedule of twenty machines", cluster.cost(input));
    let input = cluster.request(down(plan[..3].to_vec()));
    costs.insert("three machines down", cluster.cost(input));

    // Schedules most of the cluster, with a part of it down.
    let all: Vec<MachineId> = (agents / 5..agents).map(host).collect();
    let windows = all.chunks(50).map(|some| window(some.to_vec())).collect();
    let input = cluster.request(Administration::UpdateSchedule(Box::new(Schedule {
        windows,
    })));
    cluster.take_in(input);
    cluster.settle();

    let new = registration(agents + 7, "cpus(crowd):1;mem(crowd):64");
    let input = cluster.frame(AgentMessage::Register(new));
    costs.insert("a registration", cluster.cost(input));
    let last = cluster.nodes.last().cloned().unwrap();
    let gone = Input::AgentGone {
        connection: last.connection,
    };
    costs.insert("a disconnection", cluster.cost(gone));
    let input = cluster.frame(AgentMessage::Reregister(report(
        &last,
        Vec::new(),
        Vec::new(),
    )));
    costs.insert("a return", cluster.cost(input));

    // An executor that has more tasks in a larger cluster.
    let pod = v1::ExecutorInfo {
        resources: wire("cpus(a):0.1;mem(a):32;disk(a):8"),
        ..executor(&a, "pod")
    };
    let small = |number: usize| reserved_task(&of_a, &format!("t-{number}"), "a");
    let tasks: Vec<_> = (0..agents / 20).map(small).collect();
    let groups = tasks.into_iter().map(|task| group(pod.clone(), vec![task]));
    let input = cluster.launch(&a, groups.collect());
    cluster.take_in(input);
    let more = group(pod, vec![small(agents)]);
    let input = cluster.launch(&a, vec![more]);
    costs.insert("a group", cluster.cost(input));
    let tasks = cluster.world.core.frameworks[a.id.as_str()].tasks.len();
    assert_eq!(tasks, agents / 20 + 1, "all of them run");

    let amounts = |cpus: f64| BTreeMap::from([("cpus".to_owned(), value::Scalar { value: cpus })]);
    let quota = |role: &str, cpus: f64| QuotaConfig {
        role: role.to_owned(),
        guarantees: BTreeMap::new(),
        limits: amounts(cpus),
    };
    let configs = vec![quota("crowd", 1e9), quota("a", 1e9), quota("other", 1.0)];
    let input = cluster.request(Administration::UpdateQuota {
        force: false,
        configs,
    });
    costs.insert("a quota of three roles", cluster.cost(input));

    let gone = Input::SchedulerGone {
        connection: b.connection,
    };
    costs.insert("a framework that disconnects", cluster.cost(gone));
    let info = World::with_id(framework("b", &["b"]), &b.id);
    let input = cluster.subscription(info);
    let connection = ConnectionId(cluster.world.next);
    costs.insert("a subscription", cluster.cost(input));
    let b = Scheduler {
        connection,
        stream: format!("stream-{connection}"),
        id: b.id,
    };
    let input = cluster.action(&b, Action::Teardown);
    costs.insert("a teardown", cluster.cost(input));
    let refused = cluster.world.answers.values();
    let refused: Vec<_> = refused
        .filter(|answer| !matches!(answer, Answer::Done | Answer::Accepted))
        .collect();
    assert!(refused.is_empty(), "{refused:?}");
    costs
}

#[test]
fn event_cost_is_independent_of_size() {
    let (small, large) = (costs(1_000), costs(20_000));
    let grown: Vec<_> = small
        .iter()
        .filter(|(what, few)| large[*what] * 10 > **few * 11)
        .map(|(what, few)| format!("{what}: {few}, then {}", large[what]))
        .collect();
    assert!(grown.is_empty(), "{grown:#?}");
    assert!(small.values().all(|cost| *cost > 0), "{small:?}");
}
