//! The `meseta top` verb: allocated, used, slack and revocable cpus and memory, by agent and executor.
//!
//! The verb queries the agents themselves, twice within a second: the usage is the difference.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::server::AgentAddress;
use super::{MasterFlag, items, lenient, number, server, table, text};
use crate::terminal;

/// Agents that are queried, one after the other; the others are counted in the output.
const AGENTS_MAX: usize = 100;
const BYTES_PER_MB: f64 = 1024.0 * 1024.0;

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    master: MasterFlag,
    /// Time between the two samples.
    #[arg(long, default_value = "2secs", value_parser = lenient::duration)]
    interval: Duration,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// A line of the table.
#[derive(Debug, Default, PartialEq)]
struct Row {
    agent: String,
    executor: String,
    allocated: f64,
    used: Option<f64>,
    revocable: f64,
    mem_allocated: f64,
    mem_used: Option<f64>,
}

impl Row {
    /// Returns the allocated but unused amount, of regular work only.
    fn slack(&self) -> Option<f64> {
        let promised = self.allocated - self.revocable;
        (promised > 0.0).then_some(())?;
        self.used.map(|used| (promised - used).max(0.0))
    }
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let agents = server::get_json(&options.master.master, "/slaves")?;
    let (agents, left_out) = asked(&agents);
    let mut is_whole = left_out == 0;
    if !is_whole {
        terminal::note!(
            "meseta: {left_out} more agents left out: at most {AGENTS_MAX} are \
            queried at a time"
        );
    }
    let mut troubles = BTreeMap::new();
    let before = sample(&agents, &mut troubles);
    std::thread::sleep(options.interval);
    let after = sample(&agents, &mut troubles);
    let mut rows = Vec::new();
    for (id, address) in &agents {
        let state = address.get_json("/state");
        let trouble = state.as_ref().err().or(troubles.get(id));
        if let Some(error) = trouble {
            terminal::note!("meseta: agent {id} at {}: {error:#}", address.address);
            is_whole = false;
        }
        let Ok(state) = state else { continue };
        let empty = Value::Null;
        let readings = (
            before.get(id).unwrap_or(&empty),
            after.get(id).unwrap_or(&empty),
        );
        rows.extend(rows_of(id, &state, readings));
    }
    if options.json {
        let rows = rows.iter().map(|row| as_json(row, &rows));
        terminal::print_json(&Value::Array(rows.collect()))?;
    } else {
        print(&rows);
    }
    Ok(if is_whole {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Returns the agents of `/slaves` to query, and the number of the others.
fn asked(listed: &Value) -> (Vec<(String, AgentAddress)>, usize) {
    let all = items(listed, "slaves");
    let asked = all.iter().take(AGENTS_MAX);
    let asked =
        asked.filter_map(|agent| Some((text(agent, "id"), AgentAddress::from_agent(agent)?)));
    (asked.collect(), all.len().saturating_sub(AGENTS_MAX))
}

/// Returns the statistics of each agent that answers, and notes the errors of the others.
fn sample(
    agents: &[(String, AgentAddress)],
    troubles: &mut BTreeMap<String, anyhow::Error>,
) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for (id, address) in agents {
        match address.get_json("/monitor/statistics") {
            Ok(statistics) => {
                all.insert(id.clone(), statistics);
            }
            Err(error) => {
                troubles.insert(id.clone(), error);
            }
        }
    }
    all
}

/// Returns the agent's own row, then those of its executors. Missing readings are null.
fn rows_of(id: &str, state: &Value, (before, after): (&Value, &Value)) -> Vec<Row> {
    let mut rows = Vec::new();
    for framework in items(state, "frameworks") {
        for executor in items(framework, "executors") {
            let name = text(executor, "id");
            let framework = text(framework, "id");
            let reading = |all: &Value| statistics(all, &framework, &name);
            let (first, last) = (reading(before), reading(after));
            let revocable = number(executor, "resources", "cpus_revocable");
            rows.push(Row {
                agent: id.to_owned(),
                executor: name,
                allocated: number(executor, "resources", "cpus") + revocable,
                used: first
                    .zip(last.as_ref())
                    .and_then(|(first, last)| rate(&first, last)),
                revocable,
                mem_allocated: number(executor, "resources", "mem")
                    + number(executor, "resources", "mem_revocable"),
                mem_used: last.and_then(|last| {
                    last.get("mem_rss_bytes")?
                        .as_f64()
                        .map(|bytes| bytes / BYTES_PER_MB)
                }),
            });
        }
    }
    let sum = |of: fn(&Row) -> f64| total(rows.iter().map(of));
    let is_rate_known = before.is_array() && after.is_array();
    let agent = Row {
        agent: id.to_owned(),
        executor: "(all)".to_owned(),
        allocated: sum(|row| row.allocated),
        used: is_rate_known.then(|| sum(|row| row.used.unwrap_or(0.0))),
        revocable: number(state, "oversubscribed_resources", "cpus_revocable"),
        mem_allocated: sum(|row| row.mem_allocated),
        mem_used: after
            .is_array()
            .then(|| sum(|row| row.mem_used.unwrap_or(0.0))),
    };
    rows.insert(0, agent);
    rows
}

/// Returns one executor's part of an agent's statistics.
pub(super) fn statistics(all: &Value, framework: &str, executor: &str) -> Option<Value> {
    let is_it = |one: &&Value| {
        text(one, "framework_id") == framework && text(one, "executor_id") == executor
    };
    all.as_array()?
        .iter()
        .find(is_it)?
        .get("statistics")
        .cloned()
}

/// Returns the processors used between two readings; `None` if both are the same reading.
fn rate(first: &Value, last: &Value) -> Option<f64> {
    let number = |reading: &Value, key: &str| reading.get(key).and_then(Value::as_f64);
    let spent = |reading: &Value| {
        Some(number(reading, "cpus_user_time_secs")? + number(reading, "cpus_system_time_secs")?)
    };
    let elapsed = number(last, "timestamp")? - number(first, "timestamp")?;
    let spent = spent(last)? - spent(first)?;
    (elapsed > 0.0).then(|| (spent / elapsed).max(0.0))
}

fn print(rows: &[Row]) {
    let headings = [
        "AGENT",
        "EXECUTOR",
        "CPUS ALLOCATED",
        "USED",
        "SLACK",
        "REVOCABLE",
        "MEM MB ALLOCATED",
        "USED",
    ];
    let shown = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    let cells = rows.iter().map(|row| {
        vec![
            row.agent.clone(),
            row.executor.clone(),
            shown(Some(row.allocated)),
            shown(row.used),
            shown(slack(row, rows)),
            shown(Some(row.revocable)),
            format!("{:.0}", row.mem_allocated),
            row.mem_used
                .map_or("-".to_owned(), |used| format!("{used:.0}")),
        ]
    });
    table::print(&headings, cells.collect());
}

/// Returns the slack of a row; an agent's is the sum over its executors, if known.
fn slack(row: &Row, rows: &[Row]) -> Option<f64> {
    if row.executor != "(all)" {
        return row.slack();
    }
    row.used?;
    let own = rows
        .iter()
        .filter(|one| one.agent == row.agent && one.executor != "(all)");
    Some(total(own.filter_map(Row::slack)))
}

/// Returns the sum, which is 0 for no values; the standard library returns -0, which would be printed as such.
fn total(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, |sum, value| sum + value)
}

fn as_json(row: &Row, rows: &[Row]) -> Value {
    serde_json::json!({
        "agent": row.agent,
        "executor": row.executor,
        "cpus_allocated": row.allocated,
        "cpus_used": row.used,
        "cpus_slack": slack(row, rows),
        "cpus_revocable": row.revocable,
        "mem_mb_allocated": row.mem_allocated,
        "mem_mb_used": row.mem_used,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn slack_is_unused_regular_allocation() {
        let executor = |id: &str, cpus: Value| json!({"id": id, "resources": cpus});
        let state = json!({
            "oversubscribed_resources": {"cpus_revocable": 1.5},
            "frameworks": [{"id": "f", "executors": [
                executor("regular", json!({"cpus": 2.0, "mem": 64.0})),
                executor("revocable", json!({"cpus_revocable": 1.0, "mem": 32.0})),
            ]}],
        });
        let reading = |id: &str, at: f64, spent: f64| {
            json!({
                "framework_id": "f", "executor_id": id,
                "statistics": {"timestamp": at, "cpus_user_time_secs": spent,
                               "cpus_system_time_secs": 0.0, "mem_rss_bytes": 2_097_152},
            })
        };
        let before = json!([
            reading("regular", 10.0, 1.0),
            reading("revocable", 10.0, 1.0)
        ]);
        let after = json!([
            reading("regular", 12.0, 1.5),
            reading("revocable", 12.0, 3.0)
        ]);
        let rows = rows_of("S0", &state, (&before, &after));
        assert_eq!(rows[1].used, Some(0.25));
        assert_eq!(rows[1].slack(), Some(1.75));
        assert_eq!((rows[2].used, rows[2].slack()), (Some(1.0), None));
        assert_eq!((rows[0].allocated, rows[0].revocable), (3.0, 1.5));
        assert_eq!(slack(&rows[0], &rows), Some(1.75));
        // Regression: JSON had 0.25, since oversubscribed resources counted as regular allocation.
        assert_eq!(as_json(&rows[0], &rows)["cpus_slack"], json!(1.75));
        assert_eq!(rows[1].mem_used, Some(2.0));
    }

    #[test]
    fn idle_agent_uses_positive_zero() {
        let rows = rows_of("S0", &json!({"frameworks": []}), (&json!([]), &json!([])));
        let idle = [
            Some(rows[0].allocated),
            rows[0].used,
            slack(&rows[0], &rows),
            rows[0].mem_used,
        ];
        for value in idle {
            assert_eq!(value.map(f64::to_bits), Some(0.0_f64.to_bits()));
        }
    }

    #[test]
    fn unreadable_usage_is_not_guessed() {
        let state = json!({"frameworks": [{"id": "f", "executors": [
            {"id": "e", "resources": {"cpus": 1.0}}]}]});
        let rows = rows_of("S0", &state, (&Value::Null, &Value::Null));
        for row in &rows {
            let known = (row.used, slack(row, &rows), row.mem_used);
            assert_eq!(known, (None, None, None), "{}", row.executor);
        }
    }

    #[test]
    fn unqueried_agents_are_counted() {
        let agents = |count: usize| {
            let all = (0..count).map(|index| json!({"id": index, "pid": "slave(1)@a:5051"}));
            json!({"slaves": all.collect::<Vec<_>>()})
        };
        for (count, expected) in [(0, (0, 0)), (100, (100, 0)), (103, (100, 3))] {
            let (asked, left_out) = asked(&agents(count));
            assert_eq!((asked.len(), left_out), expected);
        }
    }
}
