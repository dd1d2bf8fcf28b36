//! The messages that the tests send, and the parsing of the answers.

use std::borrow::Borrow;

use super::*;

pub(super) fn config() -> Config {
    Config::new(Identity {
        id: "m".to_owned(),
        hostname: "master.example".to_owned(),
        ip: Ipv4Addr::LOCALHOST.into(),
        port: 5050,
        cluster: None,
        version: "1.12.0".to_owned(),
        build: Default::default(),
        domain: None,
    })
}

pub(super) fn parse(text: &str) -> Resources {
    convert::parse_resources(text, &Role::star()).unwrap()
}

pub(super) fn wire(text: &str) -> Vec<v1::Resource> {
    to_wire(&parse(text), Format::PostRefinement)
}

pub(super) fn framework(name: &str, roles: &[&str]) -> v1::FrameworkInfo {
    let kinds = [
        CapabilityType::MultiRole,
        CapabilityType::ReservationRefinement,
    ];
    v1::FrameworkInfo {
        user: "alice".to_owned(),
        name: name.to_owned(),
        roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        failover_timeout: Some(60.0),
        capabilities: kinds
            .map(|kind| Capability {
                r#type: Some(kind.into()),
            })
            .to_vec(),
        ..v1::FrameworkInfo::default()
    }
}

/// The framework of tests that need only one.
pub(super) fn plain() -> v1::FrameworkInfo {
    framework("f", &["dev"])
}

/// The framework's info with its id.
pub(super) fn info_of(scheduler: &Scheduler) -> v1::FrameworkInfo {
    World::with_id(plain(), &scheduler.id)
}

pub(super) fn aware_info_of(scheduler: &Scheduler) -> v1::FrameworkInfo {
    aware(info_of(scheduler))
}

pub(super) fn aware(info: v1::FrameworkInfo) -> v1::FrameworkInfo {
    capable(info, CapabilityType::PartitionAware)
}

pub(super) fn capable(mut info: v1::FrameworkInfo, kind: CapabilityType) -> v1::FrameworkInfo {
    let r#type = Some(kind.into());
    info.capabilities.push(Capability { r#type });
    info
}

pub(super) fn register(port: i32, resources: &str) -> meseta::Register {
    meseta::Register {
        agent_info: v1::AgentInfo {
            hostname: "node.example".to_owned(),
            port: Some(port),
            resources: wire(resources),
            ..v1::AgentInfo::default()
        },
        version: "0.1.0".to_owned(),
        address: Some(v1::Address {
            hostname: Some("node.example".to_owned()),
            ip: Some("10.0.0.1".to_owned()),
            port,
        }),
        ..meseta::Register::default()
    }
}

pub(super) fn task_id(id: &str) -> v1::TaskId {
    let value = id.to_owned();
    v1::TaskId { value }
}

pub(super) fn framework_id(id: &str) -> v1::FrameworkId {
    let value = id.to_owned();
    v1::FrameworkId { value }
}

pub(super) fn agent_id(id: &str) -> v1::AgentId {
    let value = id.to_owned();
    v1::AgentId { value }
}

pub(super) fn executor_id(id: &str) -> v1::ExecutorId {
    let value = id.to_owned();
    v1::ExecutorId { value }
}

pub(super) fn task(node: &Node, id: &str, resources: &str) -> v1::TaskInfo {
    task_on(&node.id, id, resources)
}

pub(super) fn task_on(agent: &str, id: &str, resources: &str) -> v1::TaskInfo {
    v1::TaskInfo {
        name: id.to_owned(),
        task_id: task_id(id),
        agent_id: agent_id(agent),
        resources: wire(resources),
        command: Some(v1::CommandInfo {
            value: Some("sleep 1".to_owned()),
            ..v1::CommandInfo::default()
        }),
        ..v1::TaskInfo::default()
    }
}

pub(super) fn ids_of<O: Borrow<v1::Offer>>(offers: &[O]) -> Vec<v1::OfferId> {
    offers
        .iter()
        .map(|offer| offer.borrow().id.clone())
        .collect()
}

pub(super) fn launch(tasks: Vec<v1::TaskInfo>) -> v1::offer::Operation {
    v1::offer::Operation {
        r#type: Some(v1::offer::operation::Type::Launch.into()),
        launch: Some(v1::offer::operation::Launch { task_infos: tasks }),
        ..v1::offer::Operation::default()
    }
}

pub(super) fn accept<O: Borrow<v1::Offer>>(offers: &[O], tasks: Vec<v1::TaskInfo>) -> Action {
    Action::Accept(call::Accept {
        offer_ids: ids_of(offers),
        operations: vec![launch(tasks)],
        filters: None,
    })
}

pub(super) fn decline<O: Borrow<v1::Offer>>(offers: &[O], seconds: f64) -> Action {
    Action::Decline(call::Decline {
        offer_ids: ids_of(offers),
        filters: Some(v1::Filters {
            refuse_seconds: Some(seconds),
        }),
    })
}

pub(super) fn kill(task: &str) -> Action {
    Action::Kill(call::Kill {
        task_id: task_id(task),
        ..call::Kill::default()
    })
}

pub(super) fn reconcile(tasks: &[(&str, Option<&str>)]) -> Action {
    let task = |(task, agent): &(&str, Option<&str>)| call::reconcile::Task {
        task_id: task_id(task),
        agent_id: agent.map(agent_id),
    };
    Action::Reconcile(call::Reconcile {
        tasks: tasks.iter().map(task).collect(),
    })
}

pub(super) fn report(
    node: &Node,
    tasks: Vec<v1::Task>,
    frameworks: Vec<v1::FrameworkInfo>,
) -> meseta::Reregister {
    let mut register = node.register.clone();
    register.agent_info.id = Some(agent_id(&node.id));
    meseta::Reregister {
        register,
        tasks: tasks.iter().map(prost::Message::encode_to_vec).collect(),
        frameworks,
        ..meseta::Reregister::default()
    }
}

/// An agent's record in the registry.
pub(super) fn agent_record(id: &str, port: i32) -> AgentRecord {
    let info = register(port, "cpus:1").agent_info;
    AgentRecord {
        agent_id: id.to_owned(),
        info: prost::Message::encode_to_vec(&info).into(),
    }
}

pub(super) fn unreachable_record(id: &str, since_secs: u64) -> UnreachableRecord {
    UnreachableRecord {
        agent_id: id.to_owned(),
        since: Duration::from_secs(since_secs),
        hostname: String::new(),
    }
}

/// The registry's record of a framework of the principal `ada`.
pub(super) fn record_of_ada(id: &str) -> FrameworkRecord {
    FrameworkRecord {
        framework_id: id.to_owned(),
        principal: Some("ada".to_owned()),
        user: None,
        absent: None,
    }
}

/// An agent of a former master.
pub(super) fn node_of_before(id: &str, port: i32) -> Node {
    Node {
        connection: ConnectionId(0),
        id: id.to_owned(),
        register: register(port, "cpus:1;mem:64"),
    }
}

/// A framework of a former master.
pub(super) fn framework_of_before(id: &str) -> Scheduler {
    Scheduler {
        connection: ConnectionId(0),
        stream: String::new(),
        id: id.to_owned(),
    }
}

/// A running task in an agent's report.
pub(super) fn running(
    node: &Node,
    scheduler: &Scheduler,
    id: &str,
    resources: &str,
    role: &str,
) -> v1::Task {
    let resources = parse(resources).allocate(&Role::new(role).unwrap());
    v1::Task {
        name: id.to_owned(),
        task_id: task_id(id),
        framework_id: framework_id(&scheduler.id),
        agent_id: agent_id(&node.id),
        state: TaskState::TaskRunning.into(),
        status_update_state: Some(TaskState::TaskRunning.into()),
        resources: to_wire(&resources, Format::PostRefinement),
        ..v1::Task::default()
    }
}

pub(super) fn states(updates: &[TaskStatus]) -> Vec<TaskState> {
    updates.iter().map(TaskStatus::state).collect()
}

pub(super) fn kinds(events: &[Event]) -> Vec<event::Type> {
    events.iter().map(Event::r#type).collect()
}

pub(super) fn offers_in(events: Vec<Event>) -> Vec<v1::Offer> {
    let offers = events.into_iter().filter_map(|event| event.offers);
    offers.flat_map(|offers| offers.offers).collect()
}

/// The field of the first event that has it.
pub(super) fn first<T>(events: &[Event], of: impl Fn(&Event) -> Option<&T>) -> &T {
    events.iter().find_map(of).unwrap()
}

pub(super) fn total(offers: &[v1::Offer]) -> Resources {
    offers
        .iter()
        .map(|offer| convert::resources(&offer.resources).unwrap().unallocate())
        .fold(Resources::new(), |sum, resources| sum + resources)
}

/// The reason for refusing an operator's request.
pub(super) fn rejection(answer: Answer) -> String {
    match answer {
        Answer::BadRequest(message) => message,
        other => panic!("{other:?}"),
    }
}

/// The message of a conflict: the resources are missing or in use.
pub(super) fn conflict(answer: Answer) -> String {
    match answer {
        Answer::Conflict(message) => message,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
pub(super) fn assert_says(text: impl AsRef<str>, part: &str) {
    let text = text.as_ref();
    assert!(text.contains(part), "{text:?} does not say {part:?}");
}

pub(super) fn total_of(offer: &v1::Offer) -> Resources {
    total(std::slice::from_ref(offer))
}
