//! The `meseta offers` verb: the offers that wait for a framework's answer.

use serde_json::Value;

use super::{ListOptions, amount, items, list_all, server, text};

pub(crate) fn run(options: &ListOptions) -> anyhow::Result<()> {
    options.watch.run(|| show_once(options))
}

fn show_once(options: &ListOptions) -> anyhow::Result<()> {
    let body = server::get_json(&options.master.master, "/frameworks")?;
    let offers = items(&body, "frameworks").iter();
    let offers = offers.flat_map(|framework| items(framework, "offers"));
    let offers: Vec<Value> = offers.cloned().collect();
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
    list_all(options.json, &headings, &offers, row)
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
