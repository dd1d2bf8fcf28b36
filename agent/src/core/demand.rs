//! Converts a task's resources and limits to kernel limits.

use std::collections::BTreeMap;

use meseta_isolators::{Demand, Limit};
use meseta_proto::Invalid;
use meseta_proto::mesos::v1 as pb;
use meseta_resources::Resources;

use super::states::is_terminal;
use crate::checkpoint::{LogEntry, RunImage};

const BYTES_PER_MEGABYTE: u64 = 1024 * 1024;
const MILLIS: u64 = 1000;

/// The limits that the isolators in use can enforce.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Enforceable {
    /// Whether the isolator `cgroups/cpu` is on.
    pub cpus: bool,
    /// Whether the isolator `cgroups/mem` is on.
    pub mem: bool,
}

/// Requests and limits of a task alone in its container, or the reason why they are invalid.
pub(super) fn demand(
    resources: &Resources,
    limits: &BTreeMap<String, pb::value::Scalar>,
    enforceable: Enforceable,
) -> Result<Demand, Invalid> {
    let cpus_millis = resources.cpus().map_or(0, |cpus| unsigned(cpus.millis()));
    let mem_bytes = resources
        .mem()
        .map(|mem| megabytes_to_bytes(unsigned(mem.millis())));
    let mut demand = Demand {
        cpus_millis,
        cpus_revocable: resources.revocable().cpus().is_some(),
        mem_bytes,
        ..Demand::default()
    };
    for (name, limit) in limits {
        let value = limit.value;
        let (enforced, request) = match name.as_str() {
            "cpus" => (enforceable.cpus, Some(cpus_millis)),
            "mem" => (enforceable.mem, mem_bytes),
            _ => return Err(format!("no limit can be set on '{name}'").into()),
        };
        if !enforced {
            return Err(format!(
                "this agent cannot enforce a limit on '{name}': its isolation has no cgroups/{}",
                if name == "cpus" { "cpu" } else { "mem" }
            )
            .into());
        }
        let Some(request) = request else {
            return Err(format!("a limit on '{name}' needs a request for it").into());
        };
        let limit = read_limit(name, value)?;
        if let Limit::At(amount) = limit
            && amount < request
        {
            return Err(format!("the limit on '{name}' is below the request").into());
        }
        if name == "cpus" {
            demand.cpus_limit = Some(limit);
        } else {
            demand.mem_limit = Some(limit);
        }
    }
    Ok(demand)
}

/// The total demand of all tasks in a container. If a task has a ceiling, the total ceiling is the sum of the ceilings
/// and of the requests of the other tasks. A task with an infinite ceiling removes the total ceiling.
pub(super) fn combined(demands: impl IntoIterator<Item = Demand>) -> Demand {
    let mut demands = demands.into_iter();
    let Some(mut sum) = demands.next() else {
        return Demand::default();
    };
    for other in demands {
        sum = Demand {
            cpus_limit: add_limits(
                (sum.cpus_limit, sum.cpus_millis),
                (other.cpus_limit, other.cpus_millis),
            ),
            mem_limit: add_limits(
                (sum.mem_limit, sum.mem_bytes.unwrap_or_default()),
                (other.mem_limit, other.mem_bytes.unwrap_or_default()),
            ),
            cpus_partly_limited: sum.cpus_partly_limited
                || other.cpus_partly_limited
                || is_mixed(&sum, &other),
            cpus_millis: sum.cpus_millis.saturating_add(other.cpus_millis),
            cpus_revocable: sum.cpus_revocable || other.cpus_revocable,
            mem_bytes: match (sum.mem_bytes, other.mem_bytes) {
                (None, None) => None,
                (one, two) => Some(
                    one.unwrap_or_default()
                        .saturating_add(two.unwrap_or_default()),
                ),
            },
            pids_limit: sum.pids_limit.or(other.pids_limit),
        };
    }
    sum
}

/// Whether the cpus are revocable, if all demands agree; `None` if they differ.
pub(super) fn kind_of_cpus(demands: impl Iterator<Item = Demand>) -> Option<bool> {
    let with_cpus = demands.filter(|demand| demand.cpus_millis > 0);
    let mut kinds = with_cpus.map(|demand| demand.cpus_revocable);
    let first = kinds.next()?;
    kinds.all(|kind| kind == first).then_some(first)
}

/// Whether one of the two has a CPU ceiling and the other has none but uses processors.
fn is_mixed(one: &Demand, other: &Demand) -> bool {
    let free = |demand: &Demand| demand.cpus_limit.is_none() && demand.cpus_millis > 0;
    (one.cpus_limit.is_some() && free(other)) || (other.cpus_limit.is_some() && free(one))
}

fn add_limits(one: (Option<Limit>, u64), other: (Option<Limit>, u64)) -> Option<Limit> {
    let at = |(limit, request): (Option<Limit>, u64)| match limit {
        Some(Limit::At(limit)) => Some(limit),
        Some(Limit::Unlimited) => None,
        None => Some(request),
    };
    match (one.0, other.0) {
        (None, None) => None,
        _ => Some(match (at(one), at(other)) {
            (Some(one), Some(other)) => Limit::At(one.saturating_add(other)),
            _ => Limit::Unlimited,
        }),
    }
}

/// The demand of a recovered task, which was validated when the agent accepted it.
pub fn demand_of_task(task: &pb::TaskInfo) -> Demand {
    read_demand(&task.resources, &task.limits)
}

/// The demand of a recovered run's container at its launch.
pub fn demand_of_run(run: &RunImage) -> Demand {
    let own = run.executor.as_ref();
    let own = own.map(|own| read_demand(&own.record.info.resources, &BTreeMap::new()));
    let over = |log: &[LogEntry]| {
        let mut log = log.iter();
        log.any(|entry| matches!(entry, LogEntry::Update(status) if is_terminal(status.state)))
    };
    let live = run.tasks.iter().filter(|task| !over(&task.log));
    let tasks = live.map(|task| demand_of_task(&task.record.info));
    combined(own.into_iter().chain(tasks))
}

fn read_demand(resources: &[pb::Resource], limits: &BTreeMap<String, pb::value::Scalar>) -> Demand {
    let all = Enforceable {
        cpus: true,
        mem: true,
    };
    meseta_proto::convert::resources(resources)
        .map_err(Invalid::from_error)
        .and_then(|resources| demand(&resources, limits, all))
        .unwrap_or_default()
}

/// The largest finite limit. Larger limits are practically infinite, and this value is exact in a double.
const LIMIT_UNITS_MAX: f64 = 1e12;

fn read_limit(name: &str, value: f64) -> Result<Limit, Invalid> {
    if value.is_nan() || value < 0.0 {
        return Err(format!("the limit on '{name}' is {value}").into());
    }
    if value > LIMIT_UNITS_MAX {
        return Ok(Limit::Unlimited);
    }
    let scalar = meseta_resources::Scalar::from_f64(value)
        .map_err(|error| format!("the limit on '{name}' is not a quantity: {error}"))?;
    let millis = unsigned(scalar.millis());
    Ok(Limit::At(if name == "cpus" {
        millis
    } else {
        megabytes_to_bytes(millis)
    }))
}

fn unsigned(millis: i64) -> u64 {
    u64::try_from(millis).unwrap_or(0)
}

/// Converts thousandths of a megabyte to whole bytes.
pub(crate) fn megabytes_to_bytes(millis: u64) -> u64 {
    // Divides first where the product would overflow: beyond 10^13 MB the remainder does not matter.
    millis.checked_mul(BYTES_PER_MEGABYTE).map_or(
        (millis / MILLIS).saturating_mul(BYTES_PER_MEGABYTE),
        |bytes| bytes / MILLIS,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_cpus(cpus_millis: u64, cpus_limit: Option<Limit>) -> Demand {
        Demand {
            cpus_millis,
            cpus_limit,
            mem_bytes: Some(cpus_millis),
            ..Demand::default()
        }
    }

    #[test]
    fn invalid_limits_refused_infinite_limits_dropped() {
        let resources = Resources::parse("cpus:0.5;mem:64", &Default::default()).expect("sound");
        let all = Enforceable {
            cpus: true,
            mem: true,
        };
        let limited = |name: &str, value: f64| {
            let limits = BTreeMap::from([(name.to_owned(), pb::value::Scalar { value })]);
            demand(&resources, &limits, all)
        };
        for name in ["cpus", "mem"] {
            for value in [
                f64::NAN,
                f64::NEG_INFINITY,
                -1.0,
                -0.001,
                0.0,
                0.1,
                f64::MIN_POSITIVE,
            ] {
                let refused = limited(name, value).expect_err("it makes no sense");
                assert!(refused.to_string().contains(name), "{value}: {refused}");
            }
            for value in [f64::INFINITY, f64::MAX, 1e13] {
                let demand = limited(name, value).expect("as good as none");
                let limit = if name == "cpus" {
                    demand.cpus_limit
                } else {
                    demand.mem_limit
                };
                assert_eq!(limit, Some(Limit::Unlimited), "{value}");
            }
        }
        assert_eq!(
            limited("cpus", 0.5).expect("sound").cpus_limit,
            Some(Limit::At(500))
        );
        limited("disk", 1.0).expect_err("there is no such limit");
    }

    #[test]
    fn group_sums_requests_and_set_ceilings() {
        let sum = combined([with_cpus(100, None), with_cpus(500, None)]);
        assert_eq!(sum, with_cpus(600, None));
        let limited = combined([with_cpus(100, None), with_cpus(500, Some(Limit::At(900)))]);
        let partly = Demand {
            cpus_partly_limited: true,
            ..with_cpus(600, Some(Limit::At(1000)))
        };
        assert_eq!(limited, partly);
        let all = combined([
            with_cpus(100, Some(Limit::At(100))),
            with_cpus(500, Some(Limit::At(900))),
        ]);
        assert_eq!(all, with_cpus(600, Some(Limit::At(1000))));
        // A task without a processor request has nothing to limit.
        assert!(
            !combined([with_cpus(0, None), with_cpus(500, Some(Limit::At(900)))])
                .cpus_partly_limited
        );
        let free = combined([with_cpus(100, Some(Limit::Unlimited)), limited]);
        assert_eq!(free.cpus_limit, Some(Limit::Unlimited));
        assert_eq!(combined([]), Demand::default());
    }
}
