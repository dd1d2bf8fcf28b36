//! The `meseta frameworks` verb: the subscribed schedulers and their resources.

use serde_json::Value;

use super::{ListOptions, amount, items, show, text};

pub(crate) fn run(options: &ListOptions) -> anyhow::Result<()> {
    let headings = [
        "ID", "NAME", "STATE", "ROLES", "TASKS", "CPUS", "MEM MB", "OFFERS",
    ];
    show(options, "/frameworks", "frameworks", &headings, row)
}

fn row(framework: &Value) -> Vec<String> {
    let flag = |key| framework.get(key).and_then(Value::as_bool).unwrap_or(false);
    let state = match (flag("connected"), flag("active")) {
        (true, true) => "active",
        (true, false) => "inactive",
        (false, _) => "disconnected",
    };
    vec![
        text(framework, "id"),
        text(framework, "name"),
        state.to_owned(),
        roles(framework),
        items(framework, "tasks").len().to_string(),
        amount(framework, "used_resources", "cpus"),
        amount(framework, "used_resources", "mem"),
        items(framework, "offers").len().to_string(),
    ]
}

/// Returns `roles` of a framework with several, or `role` of one without that capability.
fn roles(framework: &Value) -> String {
    let roles: Vec<_> = items(framework, "roles")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    if roles.is_empty() {
        text(framework, "role")
    } else {
        roles.join(",")
    }
}
