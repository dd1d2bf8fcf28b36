//! `meseta offers`: what lies with a framework and waits for its answer.

use std::process::ExitCode;

use serde_json::Value;

use super::{ListOptions, amount, items, server, table, text};

pub(crate) fn run(options: &ListOptions) -> anyhow::Result<ExitCode> {
    let body = server::get_json(&options.master.master, "/frameworks")?;
    let offers: Vec<&Value> = items(&body, "frameworks")
        .iter()
        .flat_map(|framework| items(framework, "offers"))
        .collect();
    if options.json {
        table::print_json(&Value::Array(offers.into_iter().cloned().collect()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let headings = [
        "ID",
        "ROLE",
        "FRAMEWORK",
        "AGENT",
        "CPUS",
        "MEM MB",
        "DISK MB",
        "PORTS",
    ];
    table::print(&headings, offers.into_iter().map(row).collect());
    Ok(ExitCode::SUCCESS)
}

fn row(offer: &Value) -> Vec<String> {
    let role = offer
        .get("allocation_info")
        .map_or("-".to_owned(), |info| text(info, "role"));
    let ports = offer
        .get("resources")
        .map_or("-".to_owned(), |r| text(r, "ports"));
    vec![
        text(offer, "id"),
        role,
        text(offer, "framework_id"),
        text(offer, "slave_id"),
        amount(offer, "resources", "cpus"),
        amount(offer, "resources", "mem"),
        amount(offer, "resources", "disk"),
        ports,
    ]
}
