//! The verbs for operators and newcomers: each uses the daemons' public APIs.

mod address;
pub(crate) mod agents;
#[cfg(test)]
mod canned;
pub(crate) mod credential;
pub(crate) mod doctor;
pub(crate) mod exec;
pub(crate) mod execute;
pub(crate) mod explain;
pub(crate) mod frameworks;
mod hints;
pub(crate) mod identity;
mod ids;
pub(crate) mod images;
pub(crate) mod job;
pub(crate) mod kill;
pub(crate) mod lenient;
pub(crate) mod logs;
mod masters;
pub(crate) mod names;
pub(crate) mod nodes;
pub(crate) mod offers;
mod operations;
mod outcome;
mod output;
pub(crate) mod quota;
mod request;
pub(crate) mod reservations;
mod reserved;
pub(crate) mod roles;
mod sandbox;
mod scheduler;
mod server;
pub(crate) mod table;
pub(crate) mod task;
pub(crate) mod tasks;
pub(crate) mod teardown;
pub(crate) mod top;
pub(crate) mod volumes;
mod watch;

use clap::Args;
use meseta_daemon::advertised::usual_master;
use meseta_proto::mesos::v1::AgentId;
use meseta_proto::mesos::v1::master::{Call, call};
use serde_json::Value;

use crate::terminal;

/// The master's address: a flag of every verb.
#[derive(Debug, Clone, Args)]
pub(crate) struct MasterFlag {
    /// The master, as `host:port` or `https://host:port`. List several masters with commas; the verb finds the
    /// leader.
    #[arg(
        long,
        global = true,
        env = "MESETA_MASTER",
        default_value = usual_master(),
        value_parser = masters::parse
    )]
    pub(crate) master: String,
    // The field is read from the command line by `identity::install`, for the whole process.
    #[command(flatten)]
    identity: identity::IdentityFlags,
}

impl MasterFlag {
    /// Returns the principal of the user, for fields that name a reserver or creator.
    fn principal(&self) -> Option<&str> {
        self.identity.principal()
    }
}

/// Flags of a verb that lists things.
#[derive(Debug, Args)]
pub(crate) struct ListOptions {
    #[command(flatten)]
    master: MasterFlag,
    /// Print the master's JSON instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    watch: watch::WatchFlag,
}

/// Gets `path` from the master and prints `list`, an array in it, as a table or as received.
fn show(
    options: &ListOptions,
    path: &str,
    list: &str,
    headings: &[&str],
    row: impl Fn(&Value) -> Vec<String>,
) -> anyhow::Result<()> {
    options.watch.run(|| {
        let body = server::get_json(&options.master.master, path)?;
        list_all(options.json, headings, items(&body, list), &row)
    })
}

/// Prints the objects, as a table or as JSON.
fn list_all(
    is_json: bool,
    headings: &[&str],
    all: &[Value],
    row: impl Fn(&Value) -> Vec<String>,
) -> anyhow::Result<()> {
    if is_json {
        return terminal::print_json(&Value::Array(all.to_vec()));
    }
    table::print(headings, all.iter().map(row).collect());
    Ok(())
}

/// Returns a call of the master's v1 API, still without a body.
fn call_of(kind: call::Type) -> Call {
    Call {
        r#type: Some(kind.into()),
        ..Call::default()
    }
}

fn agent_id(value: &str) -> AgentId {
    AgentId {
        value: value.to_owned(),
    }
}

/// Returns the array under `key`, or an empty slice if it is absent.
fn items<'a>(body: &'a Value, key: &str) -> &'a [Value] {
    body.get(key)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// Returns the text under `key`, or a dash if there is none.
fn text(body: &Value, key: &str) -> String {
    match body.get(key) {
        Some(Value::String(text)) if !text.is_empty() => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        Some(Value::Bool(flag)) => if *flag { "yes" } else { "no" }.to_owned(),
        _ => "-".to_owned(),
    }
}

/// The text of a field as a part of a message: on one line, whatever others have put there.
fn inline(body: &Value, key: &str) -> String {
    terminal::one_line(&text(body, key)).into_owned()
}

/// Returns the number under `key` of the object `group`.
fn number(body: &Value, group: &str, key: &str) -> f64 {
    let value = body.get(group).and_then(|g| g.get(key));
    value.and_then(Value::as_f64).unwrap_or(0.0)
}

/// Returns the amount in its shortest form.
fn amount(body: &Value, group: &str, key: &str) -> String {
    number(body, group, key).to_string()
}

/// Returns the framework that an id or a part of an id means.
fn framework(master: &str, requested: &str) -> anyhow::Result<String> {
    let body = server::get_json(master, "/frameworks")?;
    let all = items(&body, "frameworks").iter();
    let ids = all.filter_map(|one| one.get("id")?.as_str());
    let found = ids::resolve(ids, requested, "frameworks")?;
    // The master may know more ids than it lists, and reports unknown ones.
    Ok(found.unwrap_or_else(|| requested.to_owned()))
}
