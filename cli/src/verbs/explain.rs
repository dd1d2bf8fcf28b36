//! `meseta explain`: the reason why a framework or role gets no offer of an agent.

use anyhow::{anyhow, bail};
use clap::Args;
use meseta_resources::ResourceQuantities;
use serde_json::Value;

use super::{MasterFlag, agents, framework, inline, items, lenient, server, table, text};
use crate::terminal;

/// The number of frameworks that are listed if the user specified none.
const LISTED_MAX: usize = 10;

/// The text for a cluster without agents: no other obstacle counts before this one.
pub(super) const NO_AGENTS: &str = "the cluster has no agents, so nothing can be offered: start agents with `meseta agent` \
                                    and this master in --master; `meseta agents` shows those that are away";

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The framework's id, or a unique part of the id. Default: the only subscribed framework, unless --role is
    /// given.
    #[arg(long)]
    framework: Option<String>,
    /// A role: explain all its frameworks.
    #[arg(long)]
    role: Option<String>,
    /// The agent's id, or its host name if the name is unique. Default: every agent.
    #[arg(long)]
    agent: Option<String>,
    /// The resources that a task needs, as for `meseta execute --resources`: show the missing resources of each
    /// agent.
    #[arg(long, value_name = "RESOURCES")]
    needs: Option<String>,
    #[command(flatten)]
    master: MasterFlag,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    watch: super::watch::WatchFlag,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    options.watch.run(|| show_once(options))
}

fn show_once(options: &Options) -> anyhow::Result<()> {
    let framework = match (&options.framework, &options.role) {
        (None, None) => Some(only_framework(&options.master.master)?),
        (Some(requested), _) => Some(framework(&options.master.master, requested)?),
        (None, Some(_)) => None,
    };
    let agent = options.agent.as_ref();
    let agent = agent.map(|requested| agent_here(&options.master.master, requested));
    let agent = agent.transpose()?;
    let given = [
        ("framework_id", &framework),
        ("role", &options.role),
        ("slave_id", &agent),
    ];
    let query: Vec<String> = given
        .iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", server::encoded(value.as_ref()?))))
        .collect();
    let path = format!("/explain?{}", query.join("&"));
    let needed = options.needs.as_deref();
    let needed = needed.map(|text| lenient::some_resources("--needs", text));
    let needed = needed.transpose()?.map(|needed| needed.quantities());
    let mut body = server::get_json(&options.master.master, &path)?;
    if let Some(needed) = &needed {
        note_missing(&mut body, needed);
    }
    if options.json {
        terminal::print_json(&body)?;
    } else {
        let rows: Vec<_> = items(&body, "explanations").iter().map(row).collect();
        if rows.is_empty() && body.get("agents").and_then(Value::as_u64) == Some(0) {
            bail!("{NO_AGENTS}");
        }
        if rows.is_empty() {
            if let Some(framework) = &framework {
                bail!(
                    "framework {framework} is subscribed to no role, so it waits for no offer; `meseta frameworks` lists \
                     the roles of each"
                );
            }
            let of = options.role.as_ref();
            let of = of.map_or_else(String::new, |role| format!(" to role {role:?}"));
            bail!(
                "no framework is subscribed{of}, so no framework waits for an offer; `meseta frameworks` lists the subscribed ones"
            );
        }
        table::print_wrapped(
            &["FRAMEWORK", "ROLE", "AGENT", "WOULD BE OFFERED", "BECAUSE"],
            rows,
        );
    }
    Ok(())
}

/// Adds to each explanation the missing amounts, first in its reason.
fn note_missing(body: &mut Value, needed: &ResourceQuantities) {
    let explanations = body.get_mut("explanations").and_then(Value::as_array_mut);
    for explanation in explanations.into_iter().flatten() {
        let Some(missing) = missing(explanation, needed) else {
            continue;
        };
        let reason = text(explanation, "reason");
        let told = format!("short of {missing} (needs {needed}): {reason}");
        explanation["reason"] = told.into();
        explanation["missing"] = missing.to_string().into();
    }
}

/// Returns the amounts needed beyond the available ones; `None` if nothing is missing, or if the explanation is not about
/// amounts.
fn missing(explanation: &Value, needed: &ResourceQuantities) -> Option<ResourceQuantities> {
    let available: ResourceQuantities = explanation.get("available")?.as_str()?.parse().ok()?;
    Some(needed - &available).filter(|missing| !missing.is_empty())
}

/// Returns the agent that an id, a part of an id, or a host name means.
fn agent_here(master: &str, requested: &str) -> anyhow::Result<String> {
    let body = server::get_json(master, "/slaves")?;
    let found = agents::find(items(&body, "slaves").iter(), requested)?;
    Ok(found.unwrap_or_else(|| requested.to_owned()))
}

/// Returns the only framework, for a command without one.
fn only_framework(master: &str) -> anyhow::Result<String> {
    let body = server::get_json(master, "/frameworks")?;
    match items(&body, "frameworks") {
        [] => {
            if items(&server::get_json(master, "/slaves")?, "slaves").is_empty() {
                bail!(
                    "no framework is subscribed, so no framework waits for an offer; besides, {NO_AGENTS}"
                );
            }
            bail!("no framework is subscribed, so no framework waits for an offer")
        }
        [one] => Ok(text(one, "id")),
        several => Err(ambiguous(several)),
    }
}

/// Lists the frameworks of which one has to be named, each on a line.
fn ambiguous(frameworks: &[Value]) -> anyhow::Error {
    let list = frameworks.iter().take(LISTED_MAX);
    let list = list.map(|one| {
        let (id, name) = (inline(one, "id"), inline(one, "name"));
        format!("\n  --framework={id} ({name})")
    });
    anyhow!(
        "{} frameworks are subscribed: say which one with --framework, or all of a role with --role \
         (`meseta roles`){}",
        frameworks.len(),
        list.collect::<String>()
    )
}

fn row(explanation: &Value) -> Vec<String> {
    vec![
        text(explanation, "framework_id"),
        text(explanation, "role"),
        text(explanation, "slave_id"),
        match text(explanation, "offer").as_str() {
            "{}" => "-".to_owned(),
            offer => offer.to_owned(),
        },
        text(explanation, "reason"),
    ]
}

#[cfg(test)]
mod tests {
    use meseta_resources::{Resources, Role};
    use serde_json::json;

    use super::*;

    /// A framework's name made a line of its own among those of others.
    #[test]
    fn names_of_frameworks_forge_no_line() {
        let name = "a)\n  --framework=mine (trusted";
        let all = [
            json!({"id": "f1", "name": name}),
            json!({"id": "f2", "name": "b"}),
        ];
        let told = ambiguous(&all).to_string();
        assert_eq!(told.lines().count(), 3, "{told}");
        assert!(
            told.contains(r"(a)\n  --framework=mine (trusted)"),
            "{told}"
        );
    }

    #[test]
    fn missing_resources_come_first() {
        let needed = Resources::parse("cpus:1;mem:64", &Role::star()).unwrap();
        let mut body = json!({"explanations": [
            {"available": "cpus:0.5; mem:512; ports:9", "reason": "its limit"},
            {"available": "{}", "reason": "nothing is free"},
            {"available": "cpus:1; mem:64", "reason": "others may come first"},
            {"available": null, "reason": "the framework has suppressed offers"},
        ]});
        note_missing(&mut body, &needed.quantities());
        assert_eq!(
            body["explanations"],
            json!([
                {"available": "cpus:0.5; mem:512; ports:9", "missing": "cpus:0.5",
                 "reason": "short of cpus:0.5 (needs cpus:1; mem:64): its limit"},
                {"available": "{}", "missing": "cpus:1; mem:64",
                 "reason": "short of cpus:1; mem:64 (needs cpus:1; mem:64): nothing is free"},
                {"available": "cpus:1; mem:64", "reason": "others may come first"},
                {"available": null, "reason": "the framework has suppressed offers"},
            ])
        );
    }
}
