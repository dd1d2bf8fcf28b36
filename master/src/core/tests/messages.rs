//! The messages that the tests send, and what they read from those that come back.

use super::*;

pub(super) fn config() -> Config {
    Config::new(Identity {
        id: "m".to_owned(),
        hostname: "master.example".to_owned(),
        ip: Ipv4Addr::LOCALHOST,
        port: 5050,
        cluster: None,
        version: "1.12.0".to_owned(),
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

pub(super) fn aware(mut info: v1::FrameworkInfo) -> v1::FrameworkInfo {
    info.capabilities.push(Capability {
        r#type: Some(CapabilityType::PartitionAware.into()),
    });
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

pub(super) fn task(node: &Node, id: &str, resources: &str) -> v1::TaskInfo {
    v1::TaskInfo {
        name: id.to_owned(),
        task_id: v1::TaskId {
            value: id.to_owned(),
        },
        agent_id: v1::AgentId {
            value: node.id.clone(),
        },
        resources: wire(resources),
        command: Some(v1::CommandInfo {
            value: Some("sleep 1".to_owned()),
            ..v1::CommandInfo::default()
        }),
        ..v1::TaskInfo::default()
    }
}

pub(super) fn launch(tasks: Vec<v1::TaskInfo>) -> v1::offer::Operation {
    v1::offer::Operation {
        r#type: Some(v1::offer::operation::Type::Launch.into()),
        launch: Some(v1::offer::operation::Launch { task_infos: tasks }),
        ..v1::offer::Operation::default()
    }
}

pub(super) fn accept(offers: &[&v1::Offer], tasks: Vec<v1::TaskInfo>) -> Action {
    Action::Accept(call::Accept {
        offer_ids: offers.iter().map(|offer| offer.id.clone()).collect(),
        operations: vec![launch(tasks)],
        filters: None,
    })
}

pub(super) fn decline(offers: &[&v1::Offer], seconds: f64) -> Action {
    Action::Decline(call::Decline {
        offer_ids: offers.iter().map(|offer| offer.id.clone()).collect(),
        filters: Some(v1::Filters {
            refuse_seconds: Some(seconds),
        }),
    })
}

pub(super) fn reconcile(tasks: &[(&str, Option<&str>)]) -> Action {
    let task = |(task, agent): &(&str, Option<&str>)| call::reconcile::Task {
        task_id: v1::TaskId {
            value: (*task).to_owned(),
        },
        agent_id: agent.map(|agent| v1::AgentId {
            value: agent.to_owned(),
        }),
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
    register.agent_info.id = Some(v1::AgentId {
        value: node.id.clone(),
    });
    meseta::Reregister {
        register,
        tasks,
        frameworks,
        ..meseta::Reregister::default()
    }
}

/// A task as an agent reports it.
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
        task_id: v1::TaskId {
            value: id.to_owned(),
        },
        framework_id: v1::FrameworkId {
            value: scheduler.id.clone(),
        },
        agent_id: v1::AgentId {
            value: node.id.clone(),
        },
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

pub(super) fn total(offers: &[v1::Offer]) -> Resources {
    offers
        .iter()
        .map(|offer| convert::resources(&offer.resources).unwrap().unallocate())
        .fold(Resources::new(), |sum, resources| sum + resources)
}

/// Why an operator's request was refused.
pub(super) fn rejection(answer: Answer) -> String {
    match answer {
        Answer::BadRequest(message) => message,
        other => panic!("{other:?}"),
    }
}
