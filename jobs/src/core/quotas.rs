//! The decision whether the quota of a role, or the size of the agents, keeps the tasks of a job waiting, from the master's
//! data.
//!
//! The master cuts offers to the remaining quota, so that every agent seems short of the resources beyond the quota.
//! Entered through [`Quotas::in_the_way`]. Knows nothing of offers: an unknown quota keeps no task waiting.

use std::collections::{BTreeMap, BTreeSet};

use meseta_resources::{ResourceLimits, ResourceQuantities, Scalar};

use crate::placement::{self, Why};
use crate::spec::JobSpec;

/// The limits of roles and their consumption; roles without limits have no entry. Also the largest amounts of the agents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    roles: BTreeMap<String, RoleQuota>,
    /// The largest amount of each resource on one agent; `None` while no agents are known.
    largest: Option<ResourceQuantities>,
}

/// The limit of a role and the roles below it, with their usage and reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleQuota {
    pub limits: ResourceLimits,
    pub consumed: ResourceQuantities,
}

/// The limits that keep a task of a job waiting, on whichever agent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Limited {
    pub(super) text: String,
    /// The resources that the limits are of.
    names: BTreeSet<String>,
}

/// The change of a role's consumption before the launch of the task in question.
#[derive(Clone, Debug, Default)]
pub(super) struct Change {
    /// Tasks of the job that are launched before the task in question.
    pub(super) more: usize,
    /// The resources of tasks that end before.
    pub(super) freed: ResourceQuantities,
}

impl FromIterator<(String, RoleQuota)> for Quotas {
    fn from_iter<T: IntoIterator<Item = (String, RoleQuota)>>(quotas: T) -> Self {
        Self {
            roles: quotas.into_iter().collect(),
            largest: None,
        }
    }
}

impl Quotas {
    /// Sets the maximum of each resource on one agent.
    #[must_use]
    pub fn with_largest(self, largest: Option<ResourceQuantities>) -> Self {
        Self { largest, ..self }
    }

    /// Returns the excess of a task that is larger than every agent.
    fn beyond_agents(&self, needed: &ResourceQuantities) -> Option<Limited> {
        const PORTS: &str = "ports";
        let largest = self.largest.as_ref()?;
        let beyond = needed.iter().filter(|(name, amount)| {
            name.as_str() != PORTS && *amount > largest.get(name.as_str())
        });
        let (mut texts, mut names) = (Vec::new(), BTreeSet::new());
        for (name, amount) in beyond {
            names.insert(name.to_string());
            let most = largest.get(name.as_str());
            texts.push(match most == Scalar::default() {
                true => format!("it needs {amount} {name}, and no agent has any"),
                false => format!("it needs {amount} {name}, and the largest agent has {most}"),
            });
        }
        (!texts.is_empty()).then(|| Limited {
            text: texts.join("; "),
            names,
        })
    }

    /// Returns the quotas of a role and of the roles above it that a reader may see.
    #[must_use]
    pub fn seen_of(&self, role: &str, sees: impl Fn(&str) -> bool) -> Self {
        let seen = roles_of(role).filter(|role| sees(role));
        let seen = seen.filter_map(|role| Some((role.to_owned(), self.roles.get(role)?.clone())));
        Self {
            roles: seen.collect(),
            largest: self.largest.clone(),
        }
    }

    /// Returns the limits of a job's role, and of the roles above it, that another task of the job would exceed.
    pub(super) fn in_the_way(
        &self,
        spec: &JobSpec,
        change: impl FnOnce() -> Change,
    ) -> Option<Limited> {
        let quotas = roles_of(&spec.role).filter_map(|role| Some((role, self.roles.get(role)?)));
        let quotas: Vec<_> = quotas.collect();
        if quotas.is_empty() && self.largest.is_none() {
            return None;
        }
        let needed = placement::counted_by_quota(spec);
        if let Some(beyond) = self.beyond_agents(&needed) {
            return Some(beyond);
        }
        let change = change();
        let more = i64::try_from(change.more).unwrap_or(i64::MAX);
        let (mut texts, mut names) = (Vec::new(), BTreeSet::new());
        for (role, quota) in quotas {
            for (name, needed) in needed.iter() {
                let consumed = quota.consumed.get(name.as_str());
                let Some(limit) = quota.limits.get(name.as_str()) else {
                    continue;
                };
                let of_tasks = needed.millis().saturating_mul(more.saturating_add(1));
                let before = consumed.floor_sub(change.freed.get(name.as_str()));
                if before.saturating_add(Scalar::from_millis(of_tasks)) <= limit {
                    continue;
                }
                names.insert(name.to_string());
                texts.push(format!(
                    "role '{role}' has {consumed} {name} of its limit of {limit}, and a task needs {needed}"
                ));
            }
        }
        (!texts.is_empty()).then(|| Limited {
            text: texts.join("; "),
            names,
        })
    }
}

impl Limited {
    /// Whether an offer lacks only the limited resources, as all offers do.
    pub(super) fn explains(&self, why: &Why) -> bool {
        match why {
            Why::Short { missing, .. } => missing
                .iter()
                .all(|(name, _)| self.names.contains(name.as_str())),
            _ => false,
        }
    }
}

/// Returns a role and the roles above it.
fn roles_of(role: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(role), |role| Some(role.rsplit_once('/')?.0))
}

#[cfg(test)]
mod tests {
    use meseta_resources::ResourceName;

    use super::*;
    use crate::file::from_toml;
    use crate::spec::Volume;

    fn quota(limits: &[(&str, f64)], consumed: &[(&str, f64)]) -> RoleQuota {
        let amount = |(name, amount): &(&str, f64)| {
            let name = ResourceName::new(name).expect("a name");
            (name, Scalar::from_f64(*amount).expect("an amount"))
        };
        RoleQuota {
            limits: limits.iter().map(amount).collect(),
            consumed: consumed.iter().map(amount).collect(),
        }
    }

    fn spec(rest: &str) -> JobSpec {
        let text = format!(
            "name = \"a\"\nrole = \"eng/web\"\n{rest}\n[task]\ncommand = \"true\"\n[resources]\ncpus = 0.1\nmem = \"16MB\"\n"
        );
        from_toml(&text).expect("a job")
    }

    fn text(quotas: &Quotas, spec: &JobSpec, change: &Change) -> Option<String> {
        Some(quotas.in_the_way(spec, || change.clone())?.text)
    }

    #[test]
    fn only_the_exceeded_limit_is_named() {
        let consumed = [("cpus", 0.3), ("mem", 48.0)];
        let own = quota(&[("cpus", 0.3), ("mem", 128.0)], &consumed);
        let quotas: Quotas = [("eng/web".to_owned(), own)].into_iter().collect();
        let (spec, none) = (spec(""), Change::default());
        let told = "role 'eng/web' has 0.3 cpus of its limit of 0.3, and a task needs 0.1";
        assert_eq!(text(&quotas, &spec, &none).as_deref(), Some(told));
        // Tasks that end make room, and tasks launched before take it.
        let freed = [(ResourceName::cpus(), Scalar::from_millis(200))];
        let mut change = Change {
            more: 1,
            freed: freed.into_iter().collect(),
        };
        assert_eq!(text(&quotas, &spec, &change), None);
        change.more = 2;
        assert_eq!(text(&quotas, &spec, &change).as_deref(), Some(told));
        // The quota of another role does not matter.
        let mut other = spec;
        other.role = "eng".to_owned();
        assert_eq!(text(&quotas, &other, &none), None);
    }

    #[test]
    fn too_large_task_is_reported_immediately() {
        let amounts = |amounts: &[(&str, f64)]| quota(&[], amounts).consumed;
        let largest = amounts(&[("cpus", 0.05), ("mem", 64.0)]);
        let quotas = Quotas::default().with_largest(Some(largest));
        let (small, none) = (spec(""), Change::default());
        assert_eq!(
            text(&quotas, &small, &none).as_deref(),
            Some("it needs 0.1 cpus, and the largest agent has 0.05")
        );
        // The reader's view of roles does not matter here.
        let seen = quotas.seen_of("eng/web", |_| false);
        assert!(text(&seen, &small, &none).is_some());
        let enough = amounts(&[("cpus", 0.1), ("mem", 16.0)]);
        let quotas = Quotas::default().with_largest(Some(enough.clone()));
        assert_eq!(text(&quotas, &spec("ports = [\"http\"]"), &none), None);
        let mut with_gpus = spec("");
        with_gpus.task.requests.insert("gpus".to_owned(), 1.0);
        assert_eq!(
            text(&quotas, &with_gpus, &none).as_deref(),
            Some("it needs 1 gpus, and no agent has any")
        );
        assert_eq!(text(&Quotas::default(), &with_gpus, &none), None);
    }

    #[test]
    fn parent_limits_apply_except_revocable_cpus() {
        let above = quota(&[("cpus", 1.0)], &[("cpus", 0.95)]);
        let quotas: Quotas = [("eng".to_owned(), above)].into_iter().collect();
        let none = Change::default();
        let told = "role 'eng' has 0.95 cpus of its limit of 1, and a task needs 0.1";
        assert_eq!(text(&quotas, &spec(""), &none).as_deref(), Some(told));
        // A reader of the role learns nothing about a parent role that it may not see.
        let seen = quotas.seen_of("eng/web", |role| role == "eng/web");
        assert_eq!(text(&seen, &spec(""), &none), None);
        assert_eq!(quotas.seen_of("eng/web", |_| true), quotas);
        assert_eq!(quotas.seen_of("ops", |_| true), Quotas::default());
        // A volume's disk counts like the task's own.
        let disk = quota(&[("disk", 9.0)], &[]);
        let disk: Quotas = [("eng/web".to_owned(), disk)].into_iter().collect();
        let mut with_volume = spec("");
        assert_eq!(text(&disk, &with_volume, &none), None);
        with_volume.volume = Some(Volume {
            size_mb: 10.0,
            path: "data".to_owned(),
        });
        assert!(text(&disk, &with_volume, &none).is_some());
        let best_effort = spec("best_effort = true");
        assert_eq!(text(&quotas, &best_effort, &none), None);
    }
}
