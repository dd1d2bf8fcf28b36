//! `meseta tasks`: what runs and what has ended, newest first.

use std::process::ExitCode;

use serde_json::Value;

use super::{ListOptions, amount, items, show, text};

pub(crate) fn run(options: &ListOptions) -> anyhow::Result<ExitCode> {
    let headings = [
        "ID",
        "NAME",
        "STATE",
        "CPUS",
        "MEM MB",
        "FRAMEWORK",
        "AGENT",
        "HEALTHY",
    ];
    show(options, "/tasks?limit=-1", "tasks", &headings, row)?;
    Ok(ExitCode::SUCCESS)
}

fn row(task: &Value) -> Vec<String> {
    let healthy = items(task, "statuses")
        .last()
        .map_or("-".to_owned(), |s| text(s, "healthy"));
    vec![
        text(task, "id"),
        text(task, "name"),
        text(task, "state"),
        amount(task, "resources", "cpus"),
        amount(task, "resources", "mem"),
        text(task, "framework_id"),
        text(task, "slave_id"),
        healthy,
    ]
}
