//! `meseta kill`: ends a task that `meseta execute` has started.

use anyhow::bail;
use clap::Args;
use serde_json::Value;

use super::request::FRAMEWORK_PREFIX;
use super::{MasterFlag, inline, items, server, task, teardown, text};
use crate::terminal;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The task's id, or a unique part of the id (see `meseta tasks`).
    task: String,
    #[command(flatten)]
    master: MasterFlag,
}

/// Ends a task with its framework: each framework of `meseta execute` has one task, and ends with it.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let master = &options.master.master;
    let found = task::find(master, &options.task)?;
    let id = text(&found, "id");
    let frameworks = server::get_json(master, "/frameworks")?;
    let framework = whose(&found, items(&frameworks, "frameworks"))?;
    teardown::end(master, &framework)?;
    terminal::say(&format!("task {id} is killed"));
    Ok(())
}

/// Returns the framework to end with the task, if allowed.
fn whose(task: &Value, frameworks: &[Value]) -> anyhow::Result<String> {
    let (id, framework) = (text(task, "id"), text(task, "framework_id"));
    let Some(known) = frameworks.iter().find(|one| text(one, "id") == framework) else {
        bail!("task {id} has ended: its framework {framework} is gone");
    };
    let name = text(known, "name");
    let live = items(known, "tasks").len();
    if !name.starts_with(FRAMEWORK_PREFIX) {
        bail!(
            "task {id} belongs to framework {framework} ({}), and only the framework can end its \
             tasks; `meseta teardown {framework}` ends the framework and its {live} tasks",
            inline(known, "name")
        );
    }
    Ok(framework)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn kill_ends_only_frameworks_of_execute() {
        let frameworks = [
            json!({"id": "F1", "name": "meseta execute: web", "tasks": [{}]}),
            json!({"id": "F2", "name": "marathon", "tasks": [{}, {}]}),
        ];
        let of =
            |framework: &str| whose(&json!({"id": "t", "framework_id": framework}), &frameworks);
        assert_eq!(of("F1").expect("its own"), "F1");
        let refusal = of("F2").expect_err("another's").to_string();
        assert!(
            refusal.contains("`meseta teardown F2` ends the framework and its 2 tasks"),
            "{refusal}"
        );
        let refusal = of("F3").expect_err("gone").to_string();
        assert!(refusal.contains("has ended"), "{refusal}");
    }
}
