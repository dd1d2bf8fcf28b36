//! The `meseta agents` verb: the registered agents, their addresses, and their allocation.

use anyhow::bail;
use meseta_daemon::calendar;
use serde_json::Value;

use super::{ListOptions, amount, ids, items, server, table, text};
use crate::terminal;

pub(crate) fn run(options: &ListOptions) -> anyhow::Result<()> {
    options.watch.run(|| show_once(options))
}

fn show_once(options: &ListOptions) -> anyhow::Result<()> {
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
    let body = server::get_json(&options.master.master, "/slaves")?;
    let agents = items(&body, "slaves");
    let lost = |list: &str, word: &str, time: &str| -> Vec<Value> {
        let lost = items(&body, list).iter();
        lost.map(|agent| {
            let mut agent = agent.clone();
            let since = agent.get(time).and_then(Value::as_f64).unwrap_or_default();
            agent["state"] = format!("{word} since {}", calendar::utc(since)).into();
            agent
        })
        .collect()
    };
    let unreachable = lost("unreachable_slaves", "unreachable", "unreachable_time");
    let gone = lost("gone_slaves", "gone", "gone_time");
    if options.json {
        let all = [agents, &unreachable, &gone].concat();
        return terminal::print_json(&Value::Array(all));
    }
    let awaited = items(&body, "recovered_slaves");
    let awaited = awaited.iter().map(|agent| row(agent, "awaited"));
    let rows = agents.iter().map(|agent| row(agent, state(agent)));
    let lost = unreachable.iter().chain(&gone).map(lost_row);
    table::print(&headings, rows.chain(awaited).chain(lost).collect());
    Ok(())
}

/// Returns the id of the agent with this id or a unique part of it, or with this host name if no other agent has it.
pub(super) fn find<'a>(
    agents: impl Iterator<Item = &'a Value> + Clone,
    query: &str,
) -> anyhow::Result<Option<String>> {
    if agents.clone().any(|agent| text(agent, "id") == query) {
        return Ok(Some(query.to_owned()));
    }
    let mut named = agents
        .clone()
        .filter(|agent| text(agent, "hostname") == query);
    match (named.next(), named.next()) {
        (Some(_), Some(_)) => {
            bail!("several agents have the host name {query:?}: give an id from `meseta agents`")
        }
        (Some(one), None) => Ok(Some(text(one, "id"))),
        (None, _) => {
            let ids = agents.filter_map(|agent| agent.get("id")?.as_str());
            ids::resolve(ids, query, "agents")
        }
    }
}

/// Returns the id of the agent that `query` means, among all in `/slaves`: a whole id in any list; else a present or
/// awaited agent, since a host whose agent is back under another id means the new one; else a lost one.
pub(super) fn find_anywhere(listed: &Value, query: &str) -> anyhow::Result<Option<String>> {
    let list = |name| items(listed, name).iter();
    let here = list("slaves").chain(list("recovered_slaves"));
    let lost = list("unreachable_slaves").chain(list("gone_slaves"));
    if lost.clone().any(|agent| text(agent, "id") == query) {
        return Ok(Some(query.to_owned()));
    }
    match find(here, query)? {
        None => find(lost, query),
        found => Ok(found),
    }
}

/// Returns why the agent with this whole id is absent, if `/slaves` lists it as absent.
pub(super) fn absence(listed: &Value, id: &str) -> Option<&'static str> {
    let lists = [
        ("recovered_slaves", "awaited since the master began to lead"),
        ("unreachable_slaves", "unreachable"),
        ("gone_slaves", "gone"),
    ];
    let is_it = |agent: &Value| text(agent, "id") == id;
    let mut lists = lists.into_iter();
    let (_, absence) = lists.find(|(list, _)| items(listed, list).iter().any(is_it))?;
    Some(absence)
}

/// Returns the state in one word; an operator's action takes precedence over the state of the network.
fn state(agent: &Value) -> &'static str {
    let flag = |key| agent.get(key).and_then(Value::as_bool).unwrap_or(false);
    match agent.pointer("/drain_info/state").and_then(Value::as_str) {
        Some("DRAINING") => return "draining",
        Some("DRAINED") => return "drained",
        _ => {}
    }
    match (flag("active"), flag("deactivated")) {
        (_, true) => "deactivated",
        (true, false) => "active",
        (false, false) => "disconnected",
    }
}

fn row(agent: &Value, state: &str) -> Vec<String> {
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

/// Returns the row of an absent agent: only its place, and the time since when it is away, are known.
fn lost_row(agent: &Value) -> Vec<String> {
    let mut row = vec!["-".to_owned(); 8];
    for (at, key) in [(0, "id"), (1, "hostname"), (3, "state")] {
        if agent.get(key).is_some() {
            row[at] = text(agent, key);
        }
    }
    row
}

/// Returns `used/total` of a scalar resource.
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Regression: `mark-gone m1-S1` ended m1-S10 while m1-S1 was unreachable.
    #[test]
    fn whole_id_matches_its_agent_everywhere() {
        let agent = |id: &str, hostname: &str| json!({"id": id, "hostname": hostname});
        let listed = json!({
            "slaves": [agent("m1-S10", "b"), agent("m2-S3", "m1-S4")],
            "recovered_slaves": [agent("m1-S11", "c")],
            "unreachable_slaves": [agent("m1-S1", "a"), agent("m1-S4", "d"), agent("m1-S3", "b")],
            "gone_slaves": [agent("m1-S2", "")],
        });
        for (query, expected) in [
            ("m1-S1", Some("m1-S1")),
            ("S1", Some("m1-S1")),
            ("m1-S2", Some("m1-S2")),
            ("m1-S11", Some("m1-S11")),
            // The id is the host name of another agent.
            ("m1-S4", Some("m1-S4")),
            // Both agents have the host name, and one of them is present.
            ("b", Some("m1-S10")),
            ("a", Some("m1-S1")),
            ("m1-S5", None),
        ] {
            let found = find_anywhere(&listed, query).expect(query);
            assert_eq!(found.as_deref(), expected, "{query}");
        }
    }

    #[test]
    fn drained_agent_is_shown_as_drained() {
        let agent = |drain: Value, active: bool, deactivated: bool| json!({"active": active, "deactivated": deactivated, "drain_info": drain});
        let none = Value::Null;
        for (agent, expected) in [
            (agent(none.clone(), true, false), "active"),
            (agent(none.clone(), false, false), "disconnected"),
            (agent(none, false, true), "deactivated"),
            (agent(json!({"state": "DRAINING"}), false, true), "draining"),
            (agent(json!({"state": "DRAINED"}), false, true), "drained"),
        ] {
            assert_eq!(state(&agent), expected, "{agent}");
        }
    }

    #[test]
    fn agents_match_id_or_unique_name() {
        let agents = [("m-S0", "a"), ("m-S1", "b"), ("m-S2", "b")]
            .map(|(id, name)| json!({"id": id, "hostname": name}));
        let found = |query| find(agents.iter(), query);
        assert_eq!(found("m-S1").ok().flatten().as_deref(), Some("m-S1"));
        assert_eq!(found("S1").ok().flatten().as_deref(), Some("m-S1"));
        assert_eq!(found("a").ok().flatten().as_deref(), Some("m-S0"));
        assert_eq!(found("c").ok().flatten(), None);
        assert!(found("b").is_err());
    }
}
