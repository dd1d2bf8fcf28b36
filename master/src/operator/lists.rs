//! JSON answers with the lists that Mesos writes by hand: some lists are present even if empty, because clients index
//! them without a check.
//!
//! Invariant: large answers are not parsed again; missing lists are inserted before the closing brace of their
//! object.

use meseta_proto::json::{self, object_with_lists as whole};
use meseta_proto::media::{self, MediaType};
use meseta_proto::mesos::v1::master::event::Subscribed;
use meseta_proto::mesos::v1::master::response::{
    GetAgents, GetExecutors, GetFrameworks, GetState, GetTasks,
};
use meseta_proto::mesos::v1::master::{Event, Response};

/// The names of lists, each with a flag for empty ones, which the encoder leaves out.
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

/// The whole state, part by part.
fn whole_state(state: &GetState) -> Vec<u8> {
    let tasks = state.get_tasks.as_ref();
    let executors = state.get_executors.as_ref();
    let frameworks = state.get_frameworks.as_ref();
    let agents = state.get_agents.as_ref();
    json::object_of_parts([
        ("get_tasks", tasks.map(|part| whole(part, &of_tasks(part)))),
        (
            "get_executors",
            executors.map(|part| whole(part, &of_executors(part))),
        ),
        (
            "get_frameworks",
            frameworks.map(|part| whole(part, &of_frameworks(part))),
        ),
        (
            "get_agents",
            agents.map(|part| whole(part, &of_agents(part))),
        ),
    ])
}

/// The first event of an operator's stream in JSON.
pub(crate) fn subscribed(event: &Event) -> Vec<u8> {
    let subscribed = event.subscribed.as_ref();
    let Some(state) = subscribed.and_then(|subscribed| subscribed.get_state.as_ref()) else {
        return media::encode(MediaType::Json, event);
    };
    let rest = Subscribed {
        heartbeat_interval_seconds: subscribed
            .and_then(|subscribed| subscribed.heartbeat_interval_seconds),
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
pub(crate) fn response_json(response: &Response) -> Vec<u8> {
    let kind = response.r#type().as_str_name();
    let part = if let Some(agents) = &response.get_agents {
        whole(agents, &of_agents(agents))
    } else if let Some(frameworks) = &response.get_frameworks {
        whole(frameworks, &of_frameworks(frameworks))
    } else if let Some(executors) = &response.get_executors {
        whole(executors, &of_executors(executors))
    } else if let Some(tasks) = &response.get_tasks {
        whole(tasks, &of_tasks(tasks))
    } else if let Some(state) = &response.get_state {
        whole_state(state)
    } else {
        return media::encode(MediaType::Json, response);
    };
    json::response(kind, &part)
}

#[cfg(test)]
mod tests {
    use meseta_proto::mesos::v1::master::response::Type;
    use meseta_proto::mesos::v1::{AgentInfo, master::response::GetVersion};

    use super::*;

    fn text(response: &Response) -> String {
        String::from_utf8(response_json(response)).unwrap()
    }

    #[test]
    fn empty_lists_are_present() {
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
