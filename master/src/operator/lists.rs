//! Answers in JSON as Mesos writes them by hand: some lists are there also when nothing is in them, and clients
//! index them without asking.
//!
//! Invariant: large answers are not taken apart; what is missing is put before the brace that ends its object.

use meseta_proto::WireMessage;
use meseta_proto::media::{self, MediaType};
use meseta_proto::mesos::v1::master::event::Subscribed;
use meseta_proto::mesos::v1::master::response::{
    GetAgents, GetExecutors, GetFrameworks, GetState, GetTasks,
};
use meseta_proto::mesos::v1::master::{Event, Response};

/// Whether a list of this name is empty, and so not written by itself.
type Lists = Vec<(&'static str, bool)>;

fn of_agents(message: &GetAgents) -> Lists {
    vec![
        ("agents", message.agents.is_empty()),
        ("recovered_agents", message.recovered_agents.is_empty()),
    ]
}

fn of_frameworks(message: &GetFrameworks) -> Lists {
    vec![
        ("frameworks", message.frameworks.is_empty()),
        (
            "completed_frameworks",
            message.completed_frameworks.is_empty(),
        ),
    ]
}

fn of_executors(message: &GetExecutors) -> Lists {
    vec![("executors", message.executors.is_empty())]
}

fn of_tasks(message: &GetTasks) -> Lists {
    vec![
        ("tasks", message.tasks.is_empty()),
        ("unreachable_tasks", message.unreachable_tasks.is_empty()),
        ("completed_tasks", message.completed_tasks.is_empty()),
    ]
}

/// An object with its empty lists.
fn whole<M: WireMessage>(message: &M, lists: Lists) -> Vec<u8> {
    let mut body = media::encode(MediaType::Json, message);
    for (name, is_empty) in lists {
        if is_empty && body.pop() == Some(b'}') {
            if body.len() > 1 {
                body.push(b',');
            }
            body.extend_from_slice(format!("\"{name}\":[]}}").as_bytes());
        }
    }
    body
}

/// Everything, part by part.
fn whole_state(state: &GetState) -> Vec<u8> {
    let parts = [
        (
            "get_tasks",
            state
                .get_tasks
                .as_ref()
                .map(|part| whole(part, of_tasks(part))),
        ),
        (
            "get_executors",
            state
                .get_executors
                .as_ref()
                .map(|part| whole(part, of_executors(part))),
        ),
        (
            "get_frameworks",
            state
                .get_frameworks
                .as_ref()
                .map(|part| whole(part, of_frameworks(part))),
        ),
        (
            "get_agents",
            state
                .get_agents
                .as_ref()
                .map(|part| whole(part, of_agents(part))),
        ),
    ];
    let mut body = b"{".to_vec();
    for (name, part) in parts {
        let Some(part) = part else { continue };
        if body.len() > 1 {
            body.push(b',');
        }
        body.extend_from_slice(format!("\"{name}\":").as_bytes());
        body.extend_from_slice(&part);
    }
    body.push(b'}');
    body
}

/// The first event of an operator's stream in JSON.
pub(crate) fn subscribed(event: &Event) -> Vec<u8> {
    let told = event.subscribed.as_ref();
    let Some(state) = told.and_then(|told| told.get_state.as_ref()) else {
        return media::encode(MediaType::Json, event);
    };
    let rest = Subscribed {
        heartbeat_interval_seconds: told.and_then(|told| told.heartbeat_interval_seconds),
        ..Subscribed::default()
    };
    let mut body = b"{\"type\":\"SUBSCRIBED\",\"subscribed\":{\"get_state\":".to_vec();
    body.extend_from_slice(&whole_state(state));
    let rest = media::encode(MediaType::Json, &rest);
    if let Some(rest) = rest.strip_prefix(b"{").filter(|rest| rest.len() > 1) {
        body.push(b',');
        body.extend_from_slice(rest);
        body.push(b'}');
    } else {
        body.extend_from_slice(b"}}");
    }
    body
}

/// A response in JSON.
pub(crate) fn json(response: &Response) -> Vec<u8> {
    let kind = response.r#type().as_str_name();
    let field = kind.to_lowercase();
    let part = if let Some(agents) = &response.get_agents {
        whole(agents, of_agents(agents))
    } else if let Some(frameworks) = &response.get_frameworks {
        whole(frameworks, of_frameworks(frameworks))
    } else if let Some(executors) = &response.get_executors {
        whole(executors, of_executors(executors))
    } else if let Some(tasks) = &response.get_tasks {
        whole(tasks, of_tasks(tasks))
    } else if let Some(state) = &response.get_state {
        whole_state(state)
    } else {
        return media::encode(MediaType::Json, response);
    };
    let mut body = format!("{{\"type\":\"{kind}\",\"{field}\":").into_bytes();
    body.extend_from_slice(&part);
    body.push(b'}');
    body
}

#[cfg(test)]
mod tests {
    use meseta_proto::mesos::v1::master::response::Type;
    use meseta_proto::mesos::v1::{AgentInfo, master::response::GetVersion};

    use super::*;

    fn text(response: &Response) -> String {
        String::from_utf8(json(response)).unwrap()
    }

    #[test]
    fn empty_lists_are_there_and_full_ones_once() {
        let agents = GetAgents {
            recovered_agents: vec![AgentInfo {
                hostname: "node".to_owned(),
                ..AgentInfo::default()
            }],
            ..GetAgents::default()
        };
        let response = Response {
            r#type: Some(Type::GetAgents.into()),
            get_agents: Some(agents.clone()),
            ..Response::default()
        };
        assert_eq!(
            text(&response),
            r#"{"type":"GET_AGENTS","get_agents":{"recovered_agents":[{"hostname":"node","port":5051}],"agents":[]}}"#
        );
        let state = Response {
            r#type: Some(Type::GetState.into()),
            get_state: Some(GetState {
                get_tasks: Some(GetTasks::default()),
                get_executors: Some(GetExecutors::default()),
                get_frameworks: Some(GetFrameworks::default()),
                get_agents: Some(agents),
            }),
            ..Response::default()
        };
        let shown: serde_json::Value = serde_json::from_str(&text(&state)).unwrap();
        assert_eq!(
            shown["get_state"]["get_tasks"]["completed_tasks"],
            serde_json::json!([])
        );
        assert_eq!(
            shown["get_state"]["get_executors"],
            serde_json::json!({"executors": []})
        );
        assert_eq!(
            shown["get_state"]["get_agents"]["agents"],
            serde_json::json!([])
        );
        let version = Response {
            r#type: Some(Type::GetVersion.into()),
            get_version: Some(GetVersion::default()),
            ..Response::default()
        };
        assert!(text(&version).starts_with(r#"{"type":"GET_VERSION","get_version":"#));
    }
}
