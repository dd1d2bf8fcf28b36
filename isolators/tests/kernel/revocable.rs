//! Containers with revocable CPUs on the real kernel: beside the others, held together, frozen.

use std::fs;
use std::path::PathBuf;

use libtest_mimic::Failed;
use meseta_isolators::{ContainerSpec, Controller, Limit};

use crate::Test;
use crate::site::{Site, check, same};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("revocable_containers_share_a_parent", parent),
    ("a_throttle_binds_containers_with_higher_limits", throttle),
    ("a_frozen_container_stands_still_and_goes_on", freeze),
];

fn lent(site: &Site, container: &str, command: &str, limit: Option<u64>) -> ContainerSpec {
    let mut spec = site.spec(container, command);
    spec.demand.cpus_revocable = true;
    spec.demand.cpus_limit = limit.map(Limit::At);
    spec
}

fn dir(site: &Site, spec: &ContainerSpec, controller: Controller) -> Result<PathBuf, Failed> {
    let groups = site.with(|containers| containers.groups(&spec.name));
    let group = groups.of(controller).ok_or("no group")?;
    Ok(group.dir.to_path_buf())
}

fn parent(site: &Site) -> Result<(), Failed> {
    let regular = site.spec("regular", "exec sleep 1000");
    let revocable = lent(site, "lent", "exec sleep 1000", None);
    let (one, other) = (site.launch(&regular)?, site.launch(&revocable)?);
    let (plain, below) = (
        dir(site, &regular, Controller::Cpu)?,
        dir(site, &revocable, Controller::Cpu)?,
    );
    let shared = plain.parent().ok_or("no parent")?.join(".revocable");
    same(below.parent(), Some(shared.as_path()))?;
    let weight = |file: &str| fs::read_to_string(shared.join(file)).unwrap_or_default();
    if shared.join("cpu.idle").exists() {
        same(weight("cpu.idle").trim(), "1")?;
    }
    // The restarted agent finds both, each where it is.
    site.close();
    site.open(|_| ())?;
    let found = site.with(|containers| containers.recover())?;
    same(found.len(), 2)?;
    check(found.iter().all(|one| one.supervisor.is_some()), || {
        format!("{found:?}")
    })?;
    same(dir(site, &revocable, Controller::Cpu)?, below)?;
    // What was low becomes equal again when that is asked for.
    site.close();
    site.open(|options| options.revocable_cpu_low_priority = false)?;
    if shared.join("cpu.idle").exists() {
        same(weight("cpu.idle").trim(), "0")?;
    }
    let file = if shared.join("cpu.shares").exists() {
        "cpu.shares"
    } else {
        "cpu.weight"
    };
    check(weight(file).trim().parse::<u64>()? >= 100, || weight(file))?;
    site.destroy(&regular, &one)?;
    site.destroy(&revocable, &other)
}

/// The quota in force on a group, in thousandths of a processor.
fn quota(site: &Site, spec: &ContainerSpec) -> Result<Option<f64>, Failed> {
    let usage =
        site.with(|containers| containers.usage(&spec.name, None, std::time::Duration::ZERO))?;
    Ok(usage.cpu.limit_cpus)
}

fn throttle(site: &Site) -> Result<(), Failed> {
    let wide = lent(site, "wide", "exec sleep 1000", Some(1500));
    let launched = site.launch(&wide)?;
    let throttled = |millis| site.with(|containers| containers.throttle_revocable(millis));
    same(throttled(Some(250))?, true)?;
    let group = dir(site, &wide, Controller::Cpu)?;
    let is_v1 = group.join("cpu.cfs_quota_us").exists();
    let held = group.parent().ok_or("no parent")?;
    let read = |file: &str| fs::read_to_string(held.join(file)).unwrap_or_default();
    if is_v1 {
        same(read("cpu.cfs_quota_us").trim(), "25000")?;
        same(quota(site, &wide)?, Some(0.25))?;
    } else {
        same(read("cpu.max").trim(), "25000 100000")?;
        same(quota(site, &wide)?, Some(1.5))?;
    }
    // One that comes now, with a limit above the throttle, is launched all the same.
    let late = lent(site, "late", "exec sleep 1000", Some(1000));
    let late_launched = site.launch(&late)?;
    same(throttled(Some(500))?, true)?;
    same(throttled(None)?, true)?;
    for (spec, limit) in [(&wide, 1.5), (&late, 1.0)] {
        site.with(|containers| containers.update(&spec.name, &spec.demand))?;
        same(quota(site, spec)?, Some(limit))?;
    }
    let squeezed = site.with(|containers| containers.squeeze_revocable(Some(64 << 20)))?;
    same(squeezed, true)?;
    site.with(|containers| containers.squeeze_revocable(None))?;
    site.destroy(&wide, &launched)?;
    site.destroy(&late, &late_launched)
}

fn freeze(site: &Site) -> Result<(), Failed> {
    let spec = lent(site, "c", "while :; do echo tick; sleep 0.01; done", None);
    let launched = site.launch(&spec)?;
    site.wait_output(&spec, "tick")?;
    let freeze = |frozen| site.with(|containers| containers.freeze(&spec.name, frozen));
    same(freeze(true)?, true)?;
    let read = |file: &str| {
        let dir = dir(site, &spec, Controller::Freezer).unwrap_or_default();
        fs::read_to_string(dir.join(file)).unwrap_or_default()
    };
    site.eventually("frozen", || {
        read("freezer.state").trim() == "FROZEN" || read("cgroup.events").contains("frozen 1")
    })?;
    same(
        site.with(|containers| containers.is_frozen(&spec.name)),
        Some(true),
    )?;
    let before = site.output(&spec).len();
    same(freeze(false)?, true)?;
    site.eventually("it goes on", || site.output(&spec).len() > before)?;
    same(
        site.with(|containers| containers.is_frozen(&spec.name)),
        Some(false),
    )?;
    // What is frozen can be ended.
    freeze(true)?;
    site.destroy(&spec, &launched)
}
