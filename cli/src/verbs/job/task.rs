//! The task of a job that a name and an index mean.

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::super::{inline, items, text};

const RUNNING: &str = "TASK_RUNNING";

/// Returns the task whose output to read: a running one, or else the newest, from the history if it has ended.
pub(super) fn newest(
    job: &Value,
    index: Option<u32>,
    history: impl FnOnce() -> anyhow::Result<Value>,
) -> anyhow::Result<String> {
    if !items(job, "tasks").iter().any(|task| is_meant(task, index)) {
        return last_of(&history()?, job, index);
    }
    let since = |task: &Value| {
        task.get("since")
            .and_then(Value::as_f64)
            .unwrap_or_default()
    };
    let mut tasks = of_index(job, index)?;
    // Running tasks come first, by index; then the newest.
    tasks.sort_by(|one, other| {
        let order = runs(other).cmp(&runs(one));
        order.then_with(|| match runs(one) {
            true => index_of(one).cmp(&index_of(other)),
            false => since(other).total_cmp(&since(one)),
        })
    });
    id(tasks.first().copied(), job)
}

/// Returns the task in which a command runs.
pub(super) fn running(job: &Value, index: Option<u32>) -> anyhow::Result<String> {
    let mut tasks = of_index(job, index)?;
    tasks.retain(|task| runs(task));
    if tasks.is_empty() {
        bail!(
            "no task of job {} runs; `meseta job status {0}` shows its tasks",
            text(job, "name")
        );
    }
    id(tasks.into_iter().min_by_key(|task| index_of(task)), job)
}

/// Returns the last task that the events of a job name.
fn last_of(history: &Value, job: &Value, index: Option<u32>) -> anyhow::Result<String> {
    let events = items(history, "events").iter().rev();
    let mut ids = events.filter_map(|event| event.get("task_id")?.as_str());
    let is_meant = |id: &&str| index.is_none_or(|index| index_in(id) == Some(index));
    if let Some(id) = ids.find(is_meant) {
        return Ok(id.to_owned());
    }
    let of = index.map(|index| format!(" of index {index}"));
    bail!(
        "job {} has no task{}, and its history since the scheduler's start lists no task; \
         `meseta tasks` lists ended tasks, for `meseta logs`",
        text(job, "name"),
        of.unwrap_or_default()
    )
}

/// Returns the index in a task's id: `JOB.VERSION.RUN.INDEX.ATTEMPT`.
fn index_in(id: &str) -> Option<u32> {
    id.rsplit('.').nth(1)?.parse().ok()
}

fn is_meant(task: &Value, index: Option<u32>) -> bool {
    index.is_none_or(|index| index_of(task) == u64::from(index))
}

fn of_index(job: &Value, index: Option<u32>) -> anyhow::Result<Vec<&Value>> {
    let tasks = items(job, "tasks").iter();
    let tasks: Vec<&Value> = tasks.filter(|task| is_meant(task, index)).collect();
    match (tasks.is_empty(), index) {
        (false, _) => Ok(tasks),
        (true, Some(index)) => bail!("job {} has no task of index {index}", text(job, "name")),
        (true, None) => bail!(
            "job {} has no task: {}",
            text(job, "name"),
            inline(job, "why")
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
            "the scheduler's answer does not name the task of job {}",
            text(job, "name")
        )
    })
}
