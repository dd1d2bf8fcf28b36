//! What a task's resources and limits mean to the kernel side.

use std::collections::BTreeMap;

use meseta_isolators::{Demand, Limit};
use meseta_proto::mesos::v1 as pb;
use meseta_resources::Resources;

const BYTES_PER_MEGABYTE: u64 = 1024 * 1024;
const MILLIS: u64 = 1000;

/// Which limits the isolators in use can hold.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Enforceable {
    /// `cgroups/cpu` is on.
    pub cpus: bool,
    /// `cgroups/mem` is on.
    pub mem: bool,
}

/// Requests and limits of a task that runs alone in its container, or why they make no sense.
pub(super) fn demand(
    resources: &Resources,
    limits: &BTreeMap<String, pb::value::Scalar>,
    enforceable: Enforceable,
) -> Result<Demand, String> {
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
            _ => return Err(format!("no limit can be set on '{name}'")),
        };
        if !enforced {
            return Err(format!(
                "this agent cannot enforce a limit on '{name}': its isolation has no cgroups/{}",
                if name == "cpus" { "cpu" } else { "mem" }
            ));
        }
        let Some(request) = request else {
            return Err(format!("a limit on '{name}' needs a request for it"));
        };
        let limit = read_limit(name, value)?;
        if let Limit::At(amount) = limit
            && amount < request
        {
            return Err(format!("the limit on '{name}' is below what was requested"));
        }
        if name == "cpus" {
            demand.cpus_limit = Some(limit);
        } else {
            demand.mem_limit = Some(limit);
        }
    }
    Ok(demand)
}

/// Limits beyond this many units are as good as none, and stay exact in a double.
const LIMIT_UNITS_MAX: f64 = 1e12;

fn read_limit(name: &str, value: f64) -> Result<Limit, String> {
    if value.is_nan() || value < 0.0 {
        return Err(format!("the limit on '{name}' is {value}"));
    }
    if value > LIMIT_UNITS_MAX {
        return Ok(Limit::Unlimited);
    }
    let scalar = meseta_resources::Scalar::from_f64(value)
        .map_err(|error| format!("the limit on '{name}' is no quantity: {error}"))?;
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

fn megabytes_to_bytes(millis: u64) -> u64 {
    // Divided first where the product would overflow: beyond 10^13 MB nobody counts the rest.
    millis.checked_mul(BYTES_PER_MEGABYTE).map_or(
        (millis / MILLIS).saturating_mul(BYTES_PER_MEGABYTE),
        |bytes| bytes / MILLIS,
    )
}
