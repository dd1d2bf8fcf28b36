//! The differences between two versions of a job, field by field.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::super::{items, text};
use super::api::{self, Scheduler};

/// Returns both versions, and each field that differs, with its values.
pub(super) fn compare(
    scheduler: &Scheduler,
    name: &str,
    (from, to): (Option<u64>, Option<u64>),
) -> anyhow::Result<Value> {
    let inspect = |version: Option<u64>| scheduler.get(&api::file_path(name, version)?);
    let later = inspect(to)?;
    let number = later.get("version").and_then(Value::as_u64);
    let number = number.context("the scheduler's answer lacks the job's version")?;
    let from = match from {
        Some(from) => from,
        None => {
            let history = scheduler.get(&format!("{}/history", api::path(name)?))?;
            before(&history, number)
                .with_context(|| format!("job {name} has no version before {number}"))?
        }
    };
    let earlier = inspect(Some(from))?;
    let (Some(old), Some(new)) = (earlier.get("job"), later.get("job")) else {
        bail!("the scheduler's answer is not a job");
    };
    Ok(json!({ "from": from, "to": number, "changes": changes(old, new) }))
}

/// Returns the last version before another one.
fn before(history: &Value, version: u64) -> Option<u64> {
    let known = items(history, "versions").iter();
    let known = known.filter_map(|one| one.get("version")?.as_u64());
    known.filter(|one| *one < version).max()
}

/// Returns the differing fields, by their paths.
fn changes(old: &Value, new: &Value) -> Vec<Value> {
    let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
    flatten("", old, &mut before);
    flatten("", new, &mut after);
    let mut fields: Vec<&String> = before.keys().chain(after.keys()).collect();
    fields.sort_unstable();
    fields.dedup();
    let differ = fields
        .into_iter()
        .filter(|field| before.get(*field) != after.get(*field));
    let change = |field: &String| {
        let (from, to) = (before.get(field), after.get(field));
        json!({ "field": field, "from": from, "to": to })
    };
    differ.map(change).collect()
}

fn flatten<'a>(path: &str, value: &'a Value, into: &mut BTreeMap<String, &'a Value>) {
    let Value::Object(fields) = value else {
        into.insert(path.to_owned(), value);
        return;
    };
    for (name, value) in fields {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        flatten(&path, value, into);
    }
}

pub(super) fn lines(differences: &Value) -> Vec<String> {
    let [from, to] = ["from", "to"].map(|key| text(differences, key));
    let changes = items(differences, "changes");
    if changes.is_empty() {
        return vec![format!("versions {from} and {to} are the same")];
    }
    let mut lines = vec![format!("version {from} -> version {to}:")];
    lines.extend(
        changes
            .iter()
            .map(|change| format!("  {}", super::show::change_line(change))),
    );
    lines
}

#[cfg(test)]
mod tests {
    use super::super::super::canned::server_with;
    use super::*;

    #[test]
    fn versions_differ_by_their_fields() {
        let file = |version: u64, command: &str, env: Value| json!({ "version": version, "job": { "name": "web", "count": 2, "task": { "command": command, "env": env } } });
        let history = json!({ "versions": [{ "version": 1 }, { "version": 3 }, { "version": 4 }] });
        let (address, _asked) = server_with(&[
            ("GET /v1/jobs/web/history", 200, history),
            (
                "GET /v1/jobs/web/file?version=1",
                200,
                file(1, "a", json!({})),
            ),
            (
                "GET /v1/jobs/web/file?version=3",
                200,
                file(3, "a", json!({ "X": "1" })),
            ),
            ("GET /v1/jobs/web/file", 200, file(4, "b", json!({}))),
        ]);
        let scheduler = Scheduler::at(&address).expect("a scheduler");
        let told = |versions| lines(&compare(&scheduler, "web", versions).expect("an answer"));
        assert_eq!(
            told((None, None)),
            [
                "version 3 -> version 4:",
                "  task.command: a -> b",
                "  task.env.X: 1 -> absent"
            ]
        );
        assert_eq!(
            told((Some(1), Some(3))),
            ["version 1 -> version 3:", "  task.env.X: absent -> 1"]
        );
        assert_eq!(told((Some(1), Some(1))), ["versions 1 and 1 are the same"]);
    }
}
