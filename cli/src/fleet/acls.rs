//! The ACLs of a small fleet, in Mesos's format.
//!
//! Invariant: actions without an entry are forbidden, for any address of a daemon; added entries come last, so that an
//! operator's own entries are examined first.

use anyhow::{Context as _, ensure};
use meseta_access::{Acls, Action};
use serde_json::{Map, Value, json};

use super::file_names::ACLS;
use super::names::{ADMIN, JOBS, NODE, PROMETHEUS, Principal};

/// The actions of a framework in its roles and the roles below them.
const BY_ROLE: [Action; 6] = [
    Action::RegisterFramework,
    Action::ReserveResources,
    Action::CreateVolume,
    Action::ResizeVolume,
    Action::GetQuota,
    Action::ViewRole,
];
/// The actions of a framework on objects that it created itself.
const BY_OWNER: [Action; 3] = [
    Action::TeardownFramework,
    Action::UnreserveResources,
    Action::DestroyVolume,
];
/// The actions of a framework as its users, and on tasks that run as them.
const BY_USER: [Action; 15] = [
    Action::RunTask,
    Action::ViewFramework,
    Action::ViewTask,
    Action::ViewExecutor,
    Action::AccessSandbox,
    Action::LaunchNestedContainerAsUser,
    Action::LaunchNestedContainerUnderParent,
    Action::LaunchNestedContainerSessionAsUser,
    Action::LaunchNestedContainerSessionUnderParent,
    Action::KillNestedContainer,
    Action::WaitNestedContainer,
    Action::RemoveNestedContainer,
    Action::AttachContainerInput,
    Action::AttachContainerOutput,
    Action::ViewContainer,
];

/// The endpoints for readers of metrics.
const METRICS: [&str; 2] = ["/metrics", "/metrics/snapshot"];

/// Returns the rules of a fleet without its own frameworks.
pub(super) fn basic() -> Map<String, Value> {
    let mut rules = Map::new();
    rules.insert("permissive".to_owned(), json!(false));
    for action in Action::ALL {
        let who = match action {
            Action::RegisterAgent => NODE,
            _ => ADMIN,
        };
        push(&mut rules, *action, who, json!({"type": "ANY"}));
    }
    let metrics = json!({"values": METRICS});
    push(&mut rules, Action::GetEndpoint, PROMETHEUS, metrics);
    rules
}

/// Adds the permissions of a framework's principal.
pub(super) fn allow(rules: &mut Map<String, Value>, principal: &Principal) -> anyhow::Result<()> {
    let below = |role: &String| [role.clone(), format!("{role}/%")];
    // The role `*` has no roles below it.
    let roles: Vec<String> = principal
        .roles
        .iter()
        .flat_map(|role| match role.as_str() {
            "*" => vec!["*".to_owned()],
            _ => below(role).to_vec(),
        })
        .collect();
    let values = json!({ "values": roles });
    allow_in(rules, &principal.name, &values, &principal.users)
}

/// Adds the permissions of the job scheduler: jobs may be in any role, and their tasks run as these users.
pub(super) fn allow_jobs(rules: &mut Map<String, Value>, users: &[String]) -> anyhow::Result<()> {
    allow_in(rules, JOBS, &json!({"type": "ANY"}), users)
}

/// Permits jobs of a principal to run as its users, and the principal to view the scheduler, which runs as `job_user`: the
/// visible tasks are those of its own users.
pub(super) fn allow_jobs_of(
    rules: &mut Map<String, Value>,
    principal: &Principal,
    job_user: &str,
) -> anyhow::Result<()> {
    check_lists(rules)?;
    for action in BY_USER {
        push(rules, action, JOBS, json!({ "values": principal.users }));
    }
    let scheduler = json!({ "values": [job_user] });
    push(rules, Action::ViewFramework, &principal.name, scheduler);
    Ok(())
}

fn check_lists(rules: &Map<String, Value>) -> anyhow::Result<()> {
    for action in Action::ALL {
        let list = rules.get(action.key());
        ensure!(
            list.is_none_or(Value::is_array),
            "`{}` in {ACLS} is not a list",
            action.key()
        );
    }
    Ok(())
}

fn allow_in(
    rules: &mut Map<String, Value>,
    name: &str,
    roles: &Value,
    users: &[String],
) -> anyhow::Result<()> {
    check_lists(rules)?;
    for (actions, values) in [
        (&BY_ROLE[..], roles.clone()),
        (&BY_OWNER[..], json!({"values": [name]})),
        (&BY_USER[..], json!({ "values": users })),
    ] {
        for action in actions {
            push(rules, *action, name, values.clone());
        }
    }
    Ok(())
}

fn push(rules: &mut Map<String, Value>, action: Action, principal: &str, objects: Value) {
    let entry = json!({
        "principals": {"values": [principal]}, action.object_key(): objects,
    });
    let list = rules
        .entry(action.key())
        .or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(list) = list {
        list.push(entry);
    }
}

/// Parses a file of rules, which may have been edited since its creation.
pub(super) fn parse(text: &str) -> anyhow::Result<Map<String, Value>> {
    Acls::parse(text).with_context(|| format!("failed to parse the rules in {ACLS}"))?;
    serde_json::from_str(text).with_context(|| format!("{ACLS} is not JSON"))
}

/// Formats one list per line, or several lines for a long list, for people.
pub(super) fn pretty(rules: &Map<String, Value>) -> anyhow::Result<String> {
    let mut lines = Vec::new();
    for (key, value) in rules {
        let text = match value {
            Value::Array(entries) => {
                let entries = entries
                    .iter()
                    .map(|entry| serde_json::to_string(entry).map(|text| format!("    {text}")));
                let entries = entries.collect::<Result<Vec<_>, _>>()?;
                format!("  \"{key}\": [\n{}\n  ]", entries.join(",\n"))
            }
            other => format!("  \"{key}\": {other}"),
        };
        lines.push(text);
    }
    let text = format!("{{\n{}\n}}\n", lines.join(",\n"));
    Acls::parse(&text).context("failed to check the new rules")?;
    Ok(text)
}
