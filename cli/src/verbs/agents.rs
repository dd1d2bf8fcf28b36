//! `meseta agents`: who is registered, where, and how full.

use std::process::ExitCode;

use serde_json::Value;

use super::{ListOptions, amount, show, text};

pub(crate) fn run(options: &ListOptions) -> anyhow::Result<ExitCode> {
    let headings = [
        "ID",
        "HOSTNAME",
        "ADDRESS",
        "STATE",
        "CPUS",
        "MEM MB",
        "DISK MB",
        "ATTRIBUTES",
    ];
    show(options, "/slaves", "slaves", &headings, row)?;
    Ok(ExitCode::SUCCESS)
}

fn row(agent: &Value) -> Vec<String> {
    let flag = |key| agent.get(key).and_then(Value::as_bool).unwrap_or(false);
    let state = match (flag("active"), flag("deactivated")) {
        (_, true) => "deactivated",
        (true, false) => "active",
        (false, false) => "disconnected",
    };
    let address = text(agent, "pid");
    let address = address.rsplit('@').next().unwrap_or("-").to_owned();
    vec![
        text(agent, "id"),
        text(agent, "hostname"),
        address,
        state.to_owned(),
        used(agent, "cpus"),
        used(agent, "mem"),
        used(agent, "disk"),
        attributes(agent),
    ]
}

/// `used/total` of one scalar resource.
fn used(agent: &Value, name: &str) -> String {
    format!(
        "{}/{}",
        amount(agent, "used_resources", name),
        amount(agent, "resources", name)
    )
}

fn attributes(agent: &Value) -> String {
    let Some(object) = agent.get("attributes").and_then(Value::as_object) else {
        return "-".to_owned();
    };
    let pairs: Vec<_> = object
        .iter()
        .map(|(name, value)| match value {
            Value::String(text) => format!("{name}:{text}"),
            other => format!("{name}:{other}"),
        })
        .collect();
    if pairs.is_empty() {
        "-".to_owned()
    } else {
        pairs.join(";")
    }
}
