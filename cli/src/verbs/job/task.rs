//! Which task of a job is meant by a name and an index.

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::super::{items, text};

const RUNNING: &str = "TASK_RUNNING";

/// The task to read the output of: one that runs, or else the newest.
pub(super) fn newest(job: &Value, index: Option<u32>) -> anyhow::Result<String> {
    let since = |task: &Value| {
        task.get("since")
            .and_then(Value::as_f64)
            .unwrap_or_default()
    };
    let mut tasks = of_index(job, index)?;
    // Running ones first, by index; then the newest.
    tasks.sort_by(|one, other| {
        let order = runs(other).cmp(&runs(one));
        order.then_with(|| match runs(one) {
            true => index_of(one).cmp(&index_of(other)),
            false => since(other).total_cmp(&since(one)),
        })
    });
    id(tasks.first().copied(), job)
}

/// The task to run a command in.
pub(super) fn running(job: &Value, index: Option<u32>) -> anyhow::Result<String> {
    let mut tasks = of_index(job, index)?;
    tasks.retain(|task| runs(task));
    if tasks.is_empty() {
        bail!(
            "no task of job {} runs; `meseta job status {0}` shows them",
            text(job, "name")
        );
    }
    id(tasks.into_iter().min_by_key(|task| index_of(task)), job)
}

fn of_index(job: &Value, index: Option<u32>) -> anyhow::Result<Vec<&Value>> {
    let tasks = items(job, "tasks").iter();
    let is_meant = |task: &&Value| index.is_none_or(|index| index_of(task) == u64::from(index));
    let tasks: Vec<&Value> = tasks.filter(is_meant).collect();
    match (tasks.is_empty(), index) {
        (false, _) => Ok(tasks),
        (true, Some(index)) => bail!("job {} has no task of index {index}", text(job, "name")),
        (true, None) => bail!(
            "job {} has no task: {}",
            text(job, "name"),
            text(job, "why")
        ),
    }
}

fn runs(task: &Value) -> bool {
    text(task, "state") == RUNNING
}

fn index_of(task: &Value) -> u64 {
    task.get("index")
        .and_then(Value::as_u64)
        .unwrap_or_default()
}

fn id(task: Option<&Value>, job: &Value) -> anyhow::Result<String> {
    let id = task.and_then(|task| task.get("task_id")?.as_str());
    id.map(str::to_owned).with_context(|| {
        format!(
            "the scheduler does not name the task of job {}",
            text(job, "name")
        )
    })
}
