//! Containers with revocable CPUs on the real kernel: beside regular ones, throttled together, frozen.

use std::fs;
use std::path::PathBuf;

use libtest_mimic::Failed;
use meseta_isolators::{ContainerSpec, Controller, Limit, TaskIsolation};

use crate::Test;
use crate::test_node::{TestNode, same};

pub(crate) const TESTS: &[(&str, Test)] = tests![
    revocable_containers_share_a_parent,
    a_throttle_binds_containers_with_higher_limits,
    a_throttle_binds_what_is_nested_with_a_limit_of_its_own,
    a_frozen_container_stands_still_and_goes_on,
];

fn oversubscribed(
    test_node: &TestNode,
    container: &str,
    command: &str,
    limit: Option<u64>,
) -> ContainerSpec {
    let mut spec = test_node.spec(container, command);
    spec.demand.cpus_revocable = true;
    spec.demand.cpus_limit = limit.map(Limit::At);
    spec
}

fn dir(
    test_node: &TestNode,
    spec: &ContainerSpec,
    controller: Controller,
) -> Result<PathBuf, Failed> {
    let groups = test_node.groups(&spec.name);
    let group = groups.get(controller).ok_or("no group")?;
    Ok(group.dir.to_path_buf())
}

fn revocable_containers_share_a_parent(test_node: &TestNode) -> Result<(), Failed> {
    let regular = test_node.spec("regular", "exec sleep 1000");
    let revocable = oversubscribed(test_node, "revocable", "exec sleep 1000", None);
    let (one, other) = (test_node.launch(&regular)?, test_node.launch(&revocable)?);
    let (plain, below) = (
        dir(test_node, &regular, Controller::Cpu)?,
        dir(test_node, &revocable, Controller::Cpu)?,
    );
    let shared = plain.parent().ok_or("no parent")?.join(".revocable");
    same(below.parent(), Some(shared.as_path()))?;
    let weight = |file: &str| fs::read_to_string(shared.join(file)).unwrap_or_default();
    if shared.join("cpu.idle").exists() {
        same(weight("cpu.idle").trim(), "1")?;
    }
    // The restarted agent finds both, each in its group.
    test_node.close();
    test_node.open(|_| ())?;
    let found = test_node.with(|containers| containers.recover())?;
    same(found.len(), 2)?;
    check!(
        found.iter().all(|one| one.supervisor.is_some()),
        "{found:?}"
    );
    same(dir(test_node, &revocable, Controller::Cpu)?, below)?;
    // A low priority becomes normal again when the options change.
    test_node.close();
    test_node.open(|options| options.revocable_cpu_low_priority = false)?;
    if shared.join("cpu.idle").exists() {
        same(weight("cpu.idle").trim(), "0")?;
    }
    let file = if shared.join("cpu.shares").exists() {
        "cpu.shares"
    } else {
        "cpu.weight"
    };
    check!(
        weight(file).trim().parse::<u64>()? >= 100,
        "{}",
        weight(file)
    );
    test_node.destroy(&regular, &one)?;
    test_node.destroy(&revocable, &other)
}

/// The quota in force on a group, in thousandths of a processor.
fn quota(test_node: &TestNode, spec: &ContainerSpec) -> Result<Option<f64>, Failed> {
    Ok(test_node.usage(spec)?.cpu.limit_cpus)
}

fn a_throttle_binds_containers_with_higher_limits(test_node: &TestNode) -> Result<(), Failed> {
    let wide = oversubscribed(test_node, "wide", "exec sleep 1000", Some(1500));
    let launched = test_node.launch(&wide)?;
    let throttled = |millis| test_node.with(|containers| containers.throttle_revocable(millis));
    same(throttled(Some(250))?, true)?;
    let group = dir(test_node, &wide, Controller::Cpu)?;
    let is_v1 = group.join("cpu.cfs_quota_us").exists();
    let held = group.parent().ok_or("no parent")?;
    let read = |file: &str| fs::read_to_string(held.join(file)).unwrap_or_default();
    if is_v1 {
        same(read("cpu.cfs_quota_us").trim(), "25000")?;
        same(quota(test_node, &wide)?, Some(0.25))?;
    } else {
        same(read("cpu.max").trim(), "25000 100000")?;
        same(quota(test_node, &wide)?, Some(1.5))?;
    }
    // A new container with a limit above the throttle is launched all the same.
    let late = oversubscribed(test_node, "late", "exec sleep 1000", Some(1000));
    let late_launched = test_node.launch(&late)?;
    same(throttled(Some(500))?, true)?;
    same(throttled(None)?, true)?;
    for (spec, limit) in [(&wide, 1.5), (&late, 1.0)] {
        test_node.with(|containers| containers.update(&spec.name, &spec.demand))?;
        same(quota(test_node, spec)?, Some(limit))?;
    }
    let squeezed =
        test_node.with(|containers| containers.limit_revocable_memory(Some(64 << 20)))?;
    same(squeezed, true)?;
    test_node.with(|containers| containers.limit_revocable_memory(None))?;
    test_node.destroy(&wide, &launched)?;
    test_node.destroy(&late, &late_launched)
}

/// Regression: between the throttle and the limit there is a container without either.
fn a_throttle_binds_what_is_nested_with_a_limit_of_its_own(
    test_node: &TestNode,
) -> Result<(), Failed> {
    let outer = oversubscribed(test_node, "outer", "exec sleep 1000", None);
    let launched = test_node.launch(&outer)?;
    test_node.with(|containers| containers.throttle_revocable(Some(500)))?;
    let inner = oversubscribed(test_node, "outer+in", "exec sleep 1000", Some(2000));
    let own = TaskIsolation {
        own_limits: true,
        ..TaskIsolation::default()
    };
    let nested = test_node.launch_with(&inner, &own)?;
    let is_v1 = dir(test_node, &inner, Controller::Cpu)?
        .join("cpu.cfs_quota_us")
        .exists();
    let held = if is_v1 { 0.5 } else { 2.0 };
    same(quota(test_node, &inner)?, Some(held))?;
    let verify = || test_node.with(|containers| containers.verify(&inner.name, &inner.demand));
    same(verify()?, Vec::new())?;
    test_node.with(|containers| containers.throttle_revocable(None))?;
    test_node.with(|containers| containers.update(&inner.name, &inner.demand))?;
    same(quota(test_node, &inner)?, Some(2.0))?;
    test_node.destroy(&inner, &nested)?;
    test_node.destroy(&outer, &launched)
}

fn a_frozen_container_stands_still_and_goes_on(test_node: &TestNode) -> Result<(), Failed> {
    let spec = oversubscribed(
        test_node,
        "c",
        "while :; do echo tick; sleep 0.01; done",
        None,
    );
    let launched = test_node.launch(&spec)?;
    test_node.wait_output(&spec, "tick")?;
    let freeze = |frozen| test_node.with(|containers| containers.freeze(&spec.name, frozen));
    same(freeze(true)?, true)?;
    let read = |file: &str| {
        let dir = dir(test_node, &spec, Controller::Freezer).unwrap_or_default();
        fs::read_to_string(dir.join(file)).unwrap_or_default()
    };
    test_node.eventually("frozen", || {
        read("freezer.state").trim() == "FROZEN" || read("cgroup.events").contains("frozen 1")
    })?;
    same(
        test_node.with(|containers| containers.is_frozen(&spec.name)),
        Some(true),
    )?;
    let before = test_node.output(&spec).len();
    same(freeze(false)?, true)?;
    test_node.eventually("it goes on", || test_node.output(&spec).len() > before)?;
    same(
        test_node.with(|containers| containers.is_frozen(&spec.name)),
        Some(false),
    )?;
    // The agent does not thaw a container that an operator has frozen.
    let by_hand = dir(test_node, &spec, Controller::Freezer)?;
    let is_v1 = by_hand.join("freezer.state").exists();
    let (file, value) = if is_v1 {
        ("freezer.state", "FROZEN")
    } else {
        ("cgroup.freeze", "1")
    };
    fs::write(by_hand.join(file), value)?;
    same(freeze(false)?, true)?;
    same(
        test_node.with(|containers| containers.is_frozen(&spec.name)),
        Some(true),
    )?;
    // A frozen container can be destroyed.
    freeze(true)?;
    test_node.destroy(&spec, &launched)
}
