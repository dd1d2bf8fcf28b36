//! `meseta quota`: what roles are guaranteed and limited to, and how much of it they use.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use meseta_proto::convert;
use meseta_proto::mesos::v1::master::{Call, call};
use meseta_proto::mesos::v1::quota::QuotaConfig;
use meseta_proto::mesos::v1::value::Scalar;
use meseta_resources::Role;
use serde_json::Value;

use super::{MasterFlag, call_of, items, server, table};
use crate::terminal;

/// Without an action: a table of all quotas.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    master: MasterFlag,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Set or replace the quota of a role.
    Set(Set),
    /// Remove the quota of a role.
    Remove {
        /// The role.
        role: String,
    },
}

#[derive(Debug, Args)]
struct Set {
    /// The role, e.g. `eng` or `eng/backend`.
    role: String,
    /// What is kept for the role, e.g. `cpus:12;mem:6144`.
    #[arg(long, default_value = "", value_name = "RESOURCES")]
    guarantee: String,
    /// What the role gets at most; what is not named is not limited. Default: the guarantee.
    #[arg(long, value_name = "RESOURCES")]
    limit: Option<String>,
    /// Set it although the cluster has not that much, or the role uses more already.
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let master = &options.master.master;
    match &options.action {
        None => list(options)?,
        Some(Action::Set(set)) => {
            let call = set.call()?;
            server::operate(master, &call)?;
            terminal::say(&format!("quota of role '{}' set", set.role));
            let configs = call.update_quota.map(|update| update.quota_configs);
            let config = configs.unwrap_or_default().into_iter().next();
            if let Some(missing) = config.and_then(|config| unusable(&config.guarantees)) {
                terminal::say(&format!(
                    "note: no {missing} is guaranteed: it is not kept back, and the role may get its guarantee \
                     without any {missing} to use it with"
                ));
            }
        }
        Some(Action::Remove { role }) => {
            let call = Call {
                remove_quota: Some(call::RemoveQuota { role: role.clone() }),
                ..call_of(call::Type::RemoveQuota)
            };
            server::operate(master, &call)?;
            terminal::say(&format!("quota of role '{role}' removed"));
        }
    }
    Ok(())
}

/// What no task can do without, if a guarantee names the other one alone.
fn unusable(guarantees: &BTreeMap<String, Scalar>) -> Option<&'static str> {
    let names = |name| guarantees.contains_key(name);
    match (names("cpus"), names("mem")) {
        (true, false) => Some("mem"),
        (false, true) => Some("cpus"),
        (true, true) | (false, false) => None,
    }
}

impl Set {
    fn call(&self) -> anyhow::Result<Call> {
        let guarantees = amounts("--guarantee", &self.guarantee)?;
        let limits = match &self.limit {
            Some(limit) => {
                let mut limits = amounts("--limit", limit)?;
                limits.extend(zeroes(limit));
                limits
            }
            None => guarantees.clone(),
        };
        if guarantees.is_empty() && limits.is_empty() {
            bail!("give --guarantee, --limit or both, e.g. --guarantee='cpus:4;mem:1024'");
        }
        let config = QuotaConfig {
            role: self.role.clone(),
            guarantees,
            limits,
        };
        Ok(Call {
            update_quota: Some(call::UpdateQuota {
                force: Some(self.force),
                quota_configs: vec![config],
            }),
            ..call_of(call::Type::UpdateQuota)
        })
    }
}

fn amounts(flag: &str, text: &str) -> anyhow::Result<BTreeMap<String, Scalar>> {
    let resources =
        convert::parse_resources(text, &Role::star()).with_context(|| format!("{flag}={text}"))?;
    let mut amounts = BTreeMap::new();
    for resource in &resources {
        let Some(amount) = resource.scalar() else {
            bail!(
                "{flag}={text}: quota is for scalars, and '{}' is not one",
                resource.name()
            );
        };
        let value = amount.to_f64();
        amounts.insert(resource.name().to_string(), Scalar { value });
    }
    Ok(amounts)
}

/// What a text forbids wholly, as `gpus:0` does: of resources nothing is left of an amount of 0.
fn zeroes(text: &str) -> impl Iterator<Item = (String, Scalar)> + '_ {
    let amounts = text.split(';').filter_map(|one| one.split_once(':'));
    let amounts = amounts.filter(|(_, amount)| amount.trim().parse() == Ok(0.0));
    amounts.map(|(name, _)| (name.trim().to_owned(), Scalar { value: 0.0 }))
}

fn list(options: &Options) -> anyhow::Result<()> {
    let body = server::get_json(&options.master.master, "/roles")?;
    let has_quota = |role: &&Value| {
        let quota = role.get("quota");
        let set = |part: &str| {
            let amounts = quota.and_then(|quota| quota.get(part));
            amounts
                .and_then(Value::as_object)
                .is_some_and(|amounts| !amounts.is_empty())
        };
        set("guarantee") || set("limit")
    };
    let roles: Vec<&Value> = items(&body, "roles").iter().filter(has_quota).collect();
    if options.json {
        return terminal::print_json(&Value::Array(roles.into_iter().cloned().collect()));
    }
    let rows = roles.iter().flat_map(|role| rows(role)).collect();
    let headings = ["ROLE", "RESOURCE", "GUARANTEE", "LIMIT", "USED", "OFFERED"];
    table::print(&headings, rows);
    Ok(())
}

/// One row for each resource that is guaranteed or limited.
fn rows(role: &Value) -> Vec<Vec<String>> {
    let amount = |path: &str, name: &str| {
        role.pointer(path)
            .and_then(|amounts| amounts.get(name))
            .and_then(Value::as_f64)
    };
    let mut names: Vec<&String> = ["/quota/guarantee", "/quota/limit"]
        .iter()
        .filter_map(|path| role.pointer(path)?.as_object())
        .flat_map(|amounts| amounts.keys())
        .collect();
    names.sort_unstable();
    names.dedup();
    let shown = |value: Option<f64>, none: &str| {
        value.map_or_else(|| none.to_owned(), |value| format!("{value}"))
    };
    names
        .into_iter()
        .map(|name| {
            vec![
                super::text(role, "name"),
                name.clone(),
                shown(amount("/quota/guarantee", name), "-"),
                shown(amount("/quota/limit", name), "none"),
                shown(amount("/quota/consumed", name), "0"),
                shown(amount("/offered", name), "0"),
            ]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit of 0 was taken for none.
    #[test]
    fn a_limit_of_nothing_is_a_limit() {
        let limits = |limit: &str| {
            let set = Set {
                role: "eng".to_owned(),
                guarantee: String::new(),
                limit: Some(limit.to_owned()),
                force: false,
            };
            let call = set.call().expect("a call").update_quota.expect("of quota");
            let limits = call.quota_configs[0].limits.clone();
            let limits = limits
                .into_iter()
                .map(|(name, amount)| (name, amount.value));
            limits.collect::<Vec<_>>()
        };
        assert_eq!(limits("gpus:0"), [("gpus".to_owned(), 0.0)]);
        let mixed = [("cpus".to_owned(), 4.0), ("gpus".to_owned(), 0.0)];
        assert_eq!(limits("cpus:4; gpus:0.0"), mixed);
    }

    #[test]
    fn a_guarantee_without_memory_or_cpus_is_remarked_on() {
        let of = |text: &str| unusable(&amounts("--guarantee", text).expect("valid"));
        assert_eq!(of("cpus:4"), Some("mem"));
        assert_eq!(of("mem:64;disk:5"), Some("cpus"));
        assert_eq!(of("cpus:4;mem:64"), None);
        assert_eq!(of("disk:5"), None);
    }
}
