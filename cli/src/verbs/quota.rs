//! The `meseta quota` verb: the guarantees and limits of roles, and their consumption.

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
    /// The guaranteed resources, e.g. `cpus:12;mem:6144`.
    #[arg(long, default_value = "", value_name = "RESOURCES")]
    guarantee: String,
    /// The maximum resources; resources that are not named have no limit. Default: the guarantee.
    #[arg(long, value_name = "RESOURCES")]
    limit: Option<String>,
    /// Set the quota even if the cluster has less, or the role already uses more.
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let master = &options.master.master;
    match &options.action {
        None => list(options)?,
        Some(Action::Set(set)) => {
            let call = set.call()?;
            // A user who may not view the roles may still set a quota.
            let roles = server::get_json(master, "/roles").unwrap_or_default();
            server::operate(master, &call)?;
            terminal::say(&format!("quota of role '{}' set", set.role));
            let notes = set.notes(master, &roles, call.update_quota.as_ref());
            for note in notes {
                terminal::say(&note);
            }
            let configs = call.update_quota.map(|update| update.quota_configs);
            let config = configs.unwrap_or_default().into_iter().next();
            if let Some(missing) = config.and_then(|config| unusable(&config.guarantees)) {
                terminal::say(&format!(
                    "note: the guarantee has no {missing}: none is kept back, and the role may \
                     get its guarantee without {missing}"
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

/// Returns a warning if all guarantees together exceed the agents.
fn overcommitment(roles: &[Value], config: &QuotaConfig, agents: &[Value]) -> Option<String> {
    let sum_on_agents = |name: &str| -> f64 {
        let amount = |agent: &Value| agent.get("resources")?.get(name)?.as_f64();
        agents.iter().filter_map(amount).sum()
    };
    let others = |name: &str| -> f64 {
        // A nested role takes its guarantee from its parent's.
        let is_top = |role: &&Value| !super::text(role, "name").contains('/');
        let others = roles.iter().filter(is_top);
        let others = others.filter(|role| super::text(role, "name") != config.role);
        let amount = |role: &Value| role.pointer("/quota/guarantee")?.get(name)?.as_f64();
        others.filter_map(amount).sum()
    };
    let is_top = !config.role.contains('/');
    let missing = config.guarantees.iter().filter_map(|(name, guarantee)| {
        let (guaranteed, there) = (
            guarantee.value + if is_top { others(name) } else { 0.0 },
            sum_on_agents(name),
        );
        (guaranteed > there).then(|| format!("{guaranteed} {name} of {there}"))
    });
    let missing: Vec<String> = missing.collect();
    (!missing.is_empty()).then(|| {
        format!(
            "warning: all guarantees together are {}: until more agents join, roles without an unmet guarantee may get \
             no offers",
            missing.join(", ")
        )
    })
}

/// Returns a warning if a role uses more than its new limits.
fn overuse(role: &Value, config: &QuotaConfig) -> Option<String> {
    let over = config.limits.iter().filter_map(|(name, limit)| {
        let consumed = role.pointer("/quota/consumed")?.get(name)?.as_f64()?;
        (consumed > limit.value).then(|| format!("{consumed} {name} of {}", limit.value))
    });
    let over: Vec<String> = over.collect();
    (!over.is_empty()).then(|| {
        format!(
            "warning: the role uses {}: its tasks continue, and it gets no more of these until \
             it is below its limit",
            over.join(", ")
        )
    })
}

/// Returns the resource that every task needs, if the guarantee names only the other one.
fn unusable(guarantees: &BTreeMap<String, Scalar>) -> Option<&'static str> {
    let names = |name| guarantees.contains_key(name);
    match (names("cpus"), names("mem")) {
        (true, false) => Some("mem"),
        (false, true) => Some("cpus"),
        (true, true) | (false, false) => None,
    }
}

/// The semantics in which the guarantee limits all resources.
const SEED: &str = "seed";
/// The semantics of Mesos 1.12.
const HEAD: &str = "head";

/// Returns the semantics of a role's quota, or `None` without a quota.
fn semantics(role: &Value) -> Option<&str> {
    role.pointer("/quota/semantics")?.as_str()
}

impl Set {
    /// Returns notes on effects that the amounts alone do not show.
    fn notes(
        &self,
        master: &str,
        roles: &Value,
        update: Option<&call::UpdateQuota>,
    ) -> Vec<String> {
        let roles = items(roles, "roles");
        let known = roles
            .iter()
            .find(|role| super::text(role, "name") == self.role);
        let mut notes = Vec::new();
        if known.and_then(semantics) == Some(SEED) {
            notes.push(format!(
                "note: the semantics of this quota changed from {SEED} to {HEAD}. Before, the guarantee was the limit of \
                 everything that is neither reserved nor revocable, and others got nothing that would have made \
                 the guarantee unusable. Now only the named resources are kept back and limited: the role may get more of \
                 the others, and other roles may be offered memory without cpus while the guarantee is unmet. To keep the \
                 former semantics, remove the quota and POST it to /quota"
            ));
        }
        let Some(config) = update.and_then(|update| update.quota_configs.first()) else {
            return notes;
        };
        if !self.force {
            return notes;
        }
        let agents = server::get_json(master, "/slaves").unwrap_or_default();
        notes.extend(overcommitment(roles, config, items(&agents, "slaves")));
        notes.extend(known.and_then(|role| overuse(role, config)));
        notes
    }

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
                "{flag}={text}: quota applies to scalars, and '{}' is not a scalar",
                resource.name()
            );
        };
        let value = amount.to_f64();
        amounts.insert(resource.name().to_string(), Scalar { value });
    }
    Ok(amounts)
}

/// Returns the amounts that a text sets to zero, as `gpus:0`: a parsed amount of 0 leaves no resource.
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
    let headings = [
        "ROLE",
        "RESOURCE",
        "GUARANTEE",
        "LIMIT",
        "USED",
        "OFFERED",
        "SEMANTICS",
    ];
    table::print(&headings, rows);
    Ok(())
}

/// Returns one row for each resource with a guarantee or limit.
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
                semantics(role).unwrap_or(HEAD).to_owned(),
            ]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a limit of 0 was treated as unlimited.
    #[test]
    fn zero_limit_is_a_limit() {
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
    fn semantics_change_and_overcommitment_are_noted() {
        let set = Set {
            role: "eng".to_owned(),
            guarantee: "cpus:1000".to_owned(),
            limit: None,
            force: true,
        };
        let call = set.call().expect("a call").update_quota.expect("of quota");
        let config = &call.quota_configs[0];
        let agents = [serde_json::json!({"resources": {"cpus": 4.0, "mem": 64.0}})];
        let roles = [
            serde_json::json!({"name": "eng", "quota": {"semantics": "seed", "guarantee": {"cpus": 2.0},
                "consumed": {"cpus": 3.0}}}),
            serde_json::json!({"name": "ads", "quota": {"guarantee": {"cpus": 1.0}}}),
            serde_json::json!({"name": "ads/web", "quota": {"guarantee": {"cpus": 1.0}}}),
        ];
        assert_eq!(semantics(&roles[0]), Some("seed"));
        let warning = overcommitment(&roles, config, &agents).expect("too much");
        assert!(warning.contains("1001 cpus of 4"), "{warning}");
        assert_eq!(overuse(&roles[0], config), None);
        let listed = serde_json::json!({"roles": roles});
        // Port 1 has no listener: the resources of the cluster are unknown, and the note about the change comes
        // nevertheless.
        let notes = Set {
            force: false,
            ..set
        }
        .notes("127.0.0.1:1", &listed, Some(&call));
        assert!(
            notes.len() == 1 && notes[0].contains("changed from seed to head"),
            "{notes:?}"
        );
        let small = QuotaConfig {
            limits: amounts("--limit", "cpus:1").expect("amounts"),
            ..QuotaConfig::default()
        };
        assert!(
            overuse(&roles[0], &small)
                .expect("over")
                .contains("3 cpus of 1")
        );
    }

    #[test]
    fn guarantee_without_memory_is_noted() {
        let of = |text: &str| unusable(&amounts("--guarantee", text).expect("valid"));
        assert_eq!(of("cpus:4"), Some("mem"));
        assert_eq!(of("mem:64;disk:5"), Some("cpus"));
        assert_eq!(of("cpus:4;mem:64"), None);
        assert_eq!(of("disk:5"), None);
    }
}
