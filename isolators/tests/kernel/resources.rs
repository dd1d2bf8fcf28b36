//! Further resources on the real kernel: devices, cpusets, disks, memory that shrinks, ports, networks.

use std::fs;
use std::os::unix::fs::MetadataExt;

use libtest_mimic::Failed;
use meseta_isolators::cgroup::{Groups, Version};
use meseta_isolators::isolator::Observed;
use meseta_isolators::{
    Breach, ContainerSpec, Controller, Demand, DiskArea, DriftKind, Host, Isolation, Isolator,
    KnobWrite, Limit, Listeners, NodeOptions, PortInspection, PortRange, Shrink, TaskIsolation,
};

use crate::Test;
use crate::probe;
use crate::test_node::{TestNode, argv, same};

pub(crate) const TESTS: &[(&str, Test)] = tests![
    devices_are_denied_but_for_the_list,
    cpuset_is_the_parents_or_the_operators,
    block_io_is_counted,
    cgroups_all_is_all_that_is_here,
    shared_memory_is_its_own_and_bounded,
    a_network_of_its_own_has_loopback,
    listening_ports_are_found_and_judged,
    disk_use_is_measured_and_judged,
    files_without_a_name_are_measured,
    memory_is_lowered_where_nobody_dies_of_it,
    revocable_containers_may_be_idle,
    limits_are_compared_after_a_restart,
    an_isolator_of_the_callers_own_is_applied,
];

/// The tests that need the v2 tree beside or instead of v1.
pub(crate) const V2_TESTS: &[(&str, Test)] = tests![
    devices_are_denied_by_a_program,
    huge_pages_have_a_ceiling,
    perf_event_needs_no_hierarchy_of_its_own,
];

const MB: u64 = 1 << 20;

fn probe_command(test_node: &TestNode, spec: &mut ContainerSpec, what: &str) -> Result<(), Failed> {
    spec.command = argv(test_node.probe()?, &["probe", probe::MARK, what]);
    Ok(())
}

/// A file of the container's group.
fn knob(
    test_node: &TestNode,
    spec: &ContainerSpec,
    of: Controller,
    file: &str,
) -> Result<String, Failed> {
    let groups = test_node.groups(&spec.name);
    let group = groups.get(of).ok_or("no group")?;
    let path = group.dir.join(file);
    let text = fs::read_to_string(&path).map_err(|error| format!("{path:?}: {error}"))?;
    Ok(text.trim().to_owned())
}

fn devices_are_denied_but_for_the_list(test_node: &TestNode) -> Result<(), Failed> {
    let node = NodeOptions {
        devices: vec!["c 1:11 r".parse()?],
        ..NodeOptions::default()
    };
    let command = "head -c 1 /dev/zero | wc -c; mknod disk b 7 99 && echo made; \
        head -c 1 disk 2>&1 | grep -o 'not permitted'; : <>/dev/kmsg && echo kmsg";
    test_node.open_more("cgroups/devices", &NodeOptions::default())?;
    let spec = test_node.spec("usual", command);
    test_node.prints(&spec, "1\nmade\nnot permitted\n")?;
    fs::remove_file(test_node.sandbox().join("disk"))?;
    test_node.open_more("cgroups/devices", &node)?;
    let spec = test_node.spec(
        "more",
        "head -c 0 /dev/kmsg && echo read; (: >/dev/kmsg) || echo kept",
    );
    test_node.prints(&spec, "read\nkept\n")
}

/// Denies devices by a program on a machine whose device hierarchy is invisible to us.
fn devices_are_denied_by_a_program(test_node: &TestNode) -> Result<(), Failed> {
    let mut host: Host = test_node.host().clone();
    host.v1
        .retain(|tree| !tree.controllers.contains(&Controller::Devices));
    let other = TestNode::new(host, true)?;
    let result = devices_are_denied_but_for_the_list(&other);
    other.finish()?;
    result
}

fn cpuset_is_the_parents_or_the_operators(test_node: &TestNode) -> Result<(), Failed> {
    test_node.open_more("cgroups/cpuset", &NodeOptions::default())?;
    let spec = test_node.spec("usual", "grep Cpus_allowed_list /proc/self/status");
    let ours = fs::read_to_string("/proc/self/status")?;
    let line = |text: &str| {
        text.lines()
            .find(|one| one.starts_with("Cpus_allowed_list"))
            .map(str::to_owned)
    };
    same(line(&test_node.run(&spec)?.1), line(&ours))?;
    let node = NodeOptions {
        cpuset_cpus: Some("0".to_owned()),
        cpuset_mems: Some("0".to_owned()),
        ..NodeOptions::default()
    };
    test_node.open_more("cgroups/cpuset", &node)?;
    let spec = test_node.spec("one", "grep Cpus_allowed_list /proc/self/status");
    test_node.prints(&spec, "Cpus_allowed_list:\t0\n")
}

fn block_io_is_counted(test_node: &TestNode) -> Result<(), Failed> {
    test_node.open_more("cgroups/blkio", &NodeOptions::default())?;
    let gate = test_node.gate()?;
    let command = "read line <gate; dd if=/dev/zero of=file bs=1M count=4 oflag=direct 2>/dev/null; \
        echo written; exec sleep 1000";
    let spec = test_node.spec("c", command);
    let launched = test_node.launch(&spec)?;
    let groups = test_node.groups(&spec.name);
    let group = groups.get(Controller::Blkio).ok_or("no group")?;
    let device = fs::metadata(test_node.sandbox())?.dev();
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    if major == 0 {
        return Err("the sandbox is on no block device".into());
    }
    if group.version == Version::V1 {
        // Without a rule v1 counts nothing, and then the figure must be absent.
        same(test_node.usage(&spec)?.io.write_bytes, None)?;
        let rule = format!("{major}:{minor} 1073741824");
        fs::write(group.dir.join("blkio.throttle.write_bps_device"), rule)?;
    }
    fs::write(gate, "\n")?;
    test_node.wait_output(&spec, "written")?;
    let io = test_node.usage(&spec)?.io;
    check!(
        io.write_bytes.is_some_and(|bytes| bytes >= 4 * MB),
        "{io:?}"
    );
    check!(io.writes.is_some_and(|count| count > 0), "{io:?}");
    test_node.destroy(&spec, &launched)
}

fn cgroups_all_is_all_that_is_here(test_node: &TestNode) -> Result<(), Failed> {
    let isolation = Isolation::parse("cgroups/all,namespaces/pid,namespaces/mnt")?;
    check!(isolation.has("cgroups/mem"), "not meant by all");
    let resolved = isolation.resolved(test_node.host());
    check!(
        !resolved.names().any(|name| name == "cgroups/all"),
        "{resolved:?}"
    );
    // Huge pages have a test of their own, since on v2 the whole tree must enable them.
    let names: Vec<_> = resolved
        .names()
        .filter(|name| *name != "cgroups/hugetlb")
        .collect();
    test_node.open_custom(
        Isolation::parse(&names.join(","))?,
        &NodeOptions::default(),
        Vec::new(),
    )?;
    let spec = test_node.spec("c", "cat /proc/self/cgroup");
    let output = test_node.run(&spec)?.1;
    for controller in [Controller::Cpuset, Controller::Blkio, Controller::Devices] {
        let mut trees = test_node.host().v1.iter();
        if !trees.any(|tree| tree.controllers.contains(&controller)) {
            continue;
        }
        let line = format!(
            ":{}:/{}/agent/c",
            controller.name(),
            test_node.root().display()
        );
        check!(output.contains(&line), "no {line} in {output}");
    }
    Ok(())
}

fn shared_memory_is_its_own_and_bounded(test_node: &TestNode) -> Result<(), Failed> {
    test_node.open_more("filesystem/shm", &NodeOptions::default())?;
    let ours = tempfile::NamedTempFile::new_in("/dev/shm")?;
    let command = "ls /dev/shm | wc -l; head -c 2097152 /dev/zero >/dev/shm/x || echo full; \
        stat -c %s:%a /dev/shm/x /dev/shm | tr '\\n' ' '";
    let spec = test_node.spec("c", command);
    let task = TaskIsolation {
        shm_bytes: Some(MB),
        ..TaskIsolation::default()
    };
    let output = test_node.run_with(&spec, &task)?.1;
    check!(output.starts_with("0\nfull\n1048576:644 "), "{output}");
    check!(output.contains(":1777"), "{output}");
    drop(ours);
    Ok(())
}

fn a_network_of_its_own_has_loopback(test_node: &TestNode) -> Result<(), Failed> {
    test_node.open_more("namespaces/net", &NodeOptions::default())?;
    let mut spec = test_node.spec("c", "");
    probe_command(test_node, &mut spec, "loopback")?;
    test_node.prints(&spec, "through lo\n")
}

fn listening_ports_are_found_and_judged(test_node: &TestNode) -> Result<(), Failed> {
    for (own_network, names, act) in [
        (false, "network/ports", "listen"),
        (false, "network/ports", "listen-by-thread"),
        (true, "network/ports,namespaces/net", "listen"),
        (true, "network/ports,namespaces/net", "listen-by-thread"),
    ] {
        test_node.open_more(names, &NodeOptions::default())?;
        let mut spec = test_node.spec(&format!("{act}-{own_network}"), "");
        probe_command(test_node, &mut spec, act)?;
        let launched = test_node.launch(&spec)?;
        test_node.wait_output(&spec, "\n")?;
        let port: u16 = test_node
            .output(&spec)
            .trim()
            .trim_start_matches("port ")
            .parse()?;
        let listeners = Listeners::default();
        let inspect = |allocated: Option<&[PortRange]>| {
            let ports = allocated.map(|allocated| PortInspection {
                allocated,
                listeners: &listeners,
            });
            test_node.with(|containers| {
                containers.inspect(&spec.name, Some(&launched.supervisor), &[], ports)
            })
        };
        let given = PortRange {
            first: port,
            last: port,
        };
        same(inspect(None)?.breaches, Vec::new())?;
        same(inspect(Some(&[given]))?.breaches, Vec::new())?;
        let found = inspect(Some(&[]))?;
        if own_network {
            same(found.breaches, Vec::new())?;
        } else {
            same(found.listening, vec![port])?;
            let name = &spec.name;
            let message =
                format!("Container {name} is listening on unallocated port(s): [{port}-{port}]");
            let ports = vec![given];
            same(found.breaches, vec![Breach::Ports { ports, message }])?;
        }
        test_node.destroy(&spec, &launched)?;
    }
    Ok(())
}

fn disk_use_is_measured_and_judged(test_node: &TestNode) -> Result<(), Failed> {
    test_node.open_more("disk/du", &NodeOptions::default())?;
    let sandbox = test_node.sandbox().join("box");
    fs::create_dir_all(sandbox.join("volume"))?;
    let mut spec = test_node.spec(
        "c",
        "head -c 3145728 /dev/zero >file; head -c 9000000 /dev/zero >volume/file",
    );
    spec.working_dir = sandbox.clone();
    test_node.run(&spec)?;
    let area = |quota| DiskArea {
        path: sandbox.clone(),
        quota_bytes: Some(quota),
        excluded: vec![sandbox.join("volume")],
    };
    let inspect = |areas: &[DiskArea]| {
        test_node.with(|containers| containers.inspect(&spec.name, None, areas, None))
    };
    let found = inspect(&[area(4 * MB)])?;
    same(found.breaches, Vec::new())?;
    let used = found.disk.first().map_or(0, |usage| usage.used_bytes);
    check!((3 * MB..4 * MB).contains(&used), "{used}");
    let gone = DiskArea {
        path: sandbox.join("gone"),
        ..area(1)
    };
    let found = inspect(&[gone, area(2 * MB)])?;
    let Some(Breach::Disk { message, .. }) = found.breaches.first() else {
        return Err("no breach".into());
    };
    same(
        message.clone(),
        format!("Disk usage ({used}B) exceeds quota ({}B)", 2 * MB),
    )
}

/// Regression: a task that unlinked its file could use any amount of the disk.
fn files_without_a_name_are_measured(test_node: &TestNode) -> Result<(), Failed> {
    test_node.open_more("disk/du", &NodeOptions::default())?;
    let sandbox = test_node.sandbox().join("a box");
    fs::create_dir_all(&sandbox)?;
    let script =
        "exec 3>file; rm file; head -c 3145728 /dev/zero >&3; sync; touch ../done; exec sleep 1000";
    let mut spec = test_node.spec("c", script);
    spec.working_dir = sandbox.clone();
    let launched = test_node.launch(&spec)?;
    test_node.eventually("the file is written", || {
        test_node.sandbox().join("done").exists()
    })?;
    let area = DiskArea {
        path: sandbox,
        quota_bytes: Some(2 * MB),
        excluded: Vec::new(),
    };
    let inspect = || {
        let areas = [area.clone()];
        test_node.with(|containers| {
            containers.inspect(&spec.name, Some(&launched.supervisor), &areas, None)
        })
    };
    let found = inspect()?;
    let used = found.disk.first().map_or(0, |usage| usage.used_bytes);
    check!((3 * MB..4 * MB).contains(&used), "{used}");
    check!(!found.breaches.is_empty(), "no breach");
    test_node.destroy(&spec, &launched)?;
    let found = inspect()?;
    check!(found.breaches.is_empty(), "{:?}", found.breaches);
    test_node.forget(&spec)
}

fn demand(mem: u64) -> Demand {
    Demand {
        cpus_millis: 100,
        mem_bytes: Some(mem * MB),
        ..Demand::default()
    }
}

fn memory_is_lowered_where_nobody_dies_of_it(test_node: &TestNode) -> Result<(), Failed> {
    // The command holds 50 MB of unreclaimable memory, in tail's buffer.
    let command = "(head -c 52428800 /dev/zero; echo ready >&2; exec sleep 1000) | tail >/dev/null";
    let mut spec = test_node.spec("c", command);
    spec.demand = demand(256);
    let launched = test_node.launch(&spec)?;
    test_node.eventually("fifty megabytes in use", || {
        test_node
            .usage(&spec)
            .is_ok_and(|usage| usage.memory.rss_bytes.unwrap_or(0) > 45 * MB)
    })?;
    let shrink =
        |mem| test_node.with(|containers| containers.shrink_memory(&spec.name, &demand(mem)));
    let limit = || test_node.usage(&spec).map(|usage| usage.memory.limit_bytes);
    same(shrink(512)?, Shrink::NotLower)?;
    same(
        shrink(128)?,
        Shrink::Done {
            limit_bytes: 128 * MB,
        },
    )?;
    same(limit()?, Some(128 * MB))?;
    let refused = shrink(32)?;
    check!(
        matches!(refused, Shrink::InUse { usage_bytes } if usage_bytes > 32 * MB),
        "{refused:?}"
    );
    same(limit()?, Some(128 * MB))?;
    same(
        test_node.with(|containers| containers.oom_kills(&spec.name).ok().flatten()),
        Some(0),
    )?;
    test_node.destroy(&spec, &launched)
}

fn revocable_containers_may_be_idle(test_node: &TestNode) -> Result<(), Failed> {
    let node = NodeOptions {
        revocable_cpu_idle: true,
        ..NodeOptions::default()
    };
    test_node.open_more("disk/du", &node)?;
    let mut spec = test_node.spec("c", "exec sleep 1000");
    spec.demand.cpus_revocable = true;
    let launched = test_node.launch(&spec)?;
    let state = || knob(test_node, &spec, Controller::Cpu, "cpu.idle");
    same(state()?, "1")?;
    let update = |revocable| {
        let demand = Demand {
            cpus_revocable: revocable,
            cpus_millis: 500,
            ..spec.demand
        };
        test_node.with(|containers| containers.update(&spec.name, &demand))
    };
    update(true)?;
    same(state()?, "1")?;
    let drift =
        |demand: &Demand| test_node.with(|containers| containers.verify(&spec.name, demand));
    same(drift(&spec.demand)?, Vec::new())?;
    update(false)?;
    same(state()?, "0")?;
    let found = drift(&spec.demand)?;
    check!(found.iter().any(|one| one.file == "cpu.idle"), "{found:?}");
    update(true)?;
    same(state()?, "1")?;
    test_node.destroy(&spec, &launched)
}

fn limits_are_compared_after_a_restart(test_node: &TestNode) -> Result<(), Failed> {
    test_node.open(|options| options.enable_cfs = true)?;
    let mut spec = test_node.spec("c", "exec sleep 1000");
    spec.demand.pids_limit = Some(Limit::At(50));
    let launched = test_node.launch(&spec)?;
    test_node.open(|options| options.enable_cfs = true)?;
    let verify =
        |demand: &Demand| test_node.with(|containers| containers.verify(&spec.name, demand));
    same(verify(&spec.demand)?, Vec::new())?;
    let groups = test_node.groups(&spec.name);
    groups.write(&KnobWrite::new(Controller::Pids, "pids.max", "max"))?;
    let found = verify(&spec.demand)?;
    let told: Vec<_> = found.iter().map(|one| (one.file, one.kind)).collect();
    same(told, vec![("pids.max", DriftKind::Differs)])?;
    test_node.with(|containers| containers.update(&spec.name, &spec.demand))?;
    same(verify(&spec.demand)?, Vec::new())?;
    let less = Demand {
        mem_bytes: Some(40 * MB),
        ..spec.demand
    };
    let found = verify(&less)?;
    check!(
        found.iter().any(|one| one.kind == DriftKind::Higher),
        "{found:?}"
    );
    test_node.destroy(&spec, &launched)
}

/// An isolator that runs after `cgroups/pids` and lowers its limit.
#[derive(Debug)]
struct Frugal;

impl Isolator for Frugal {
    fn name(&self) -> &'static str {
        "site/frugal"
    }

    fn controllers(&self) -> &'static [Controller] {
        &[Controller::Pids]
    }

    fn plan(&self, _demand: &Demand, _groups: &Groups, _observed: &Observed) -> Vec<KnobWrite> {
        vec![KnobWrite::new(Controller::Pids, "pids.max", 7)]
    }
}

fn an_isolator_of_the_callers_own_is_applied(test_node: &TestNode) -> Result<(), Failed> {
    let isolation = Isolation::default_for(test_node.host());
    test_node.open_custom(isolation, &NodeOptions::default(), vec![Box::new(Frugal)])?;
    let mut spec = test_node.spec("c", "exec sleep 1000");
    spec.demand.pids_limit = Some(Limit::At(50));
    let launched = test_node.launch(&spec)?;
    same(knob(test_node, &spec, Controller::Pids, "pids.max")?, "7")?;
    same(
        test_node.with(|containers| containers.verify(&spec.name, &spec.demand))?,
        Vec::new(),
    )?;
    test_node.destroy(&spec, &launched)
}

fn huge_pages_have_a_ceiling(test_node: &TestNode) -> Result<(), Failed> {
    if !test_node.host().offers(Controller::Hugetlb) {
        return Err("the v2 tree has no hugetlb controller".into());
    }
    let node = NodeOptions {
        hugetlb_bytes: Some(4 * MB),
        ..NodeOptions::default()
    };
    // The test restores the controllers of the machine's own root at the end.
    let tree = test_node.host().unified.as_ref().ok_or("no v2 tree")?;
    let control = tree.mount.join("cgroup.subtree_control");
    let before = fs::read_to_string(&control)?;
    let result = (|| {
        test_node.open_more("cgroups/hugetlb", &node)?;
        let (spec, launched) = test_node.sleeper("c")?;
        same(
            knob(test_node, &spec, Controller::Hugetlb, "hugetlb.2MB.max")?,
            (4 * MB).to_string(),
        )?;
        test_node.destroy(&spec, &launched)
    })();
    test_node.close();
    if !before.contains("hugetlb") {
        // The write fails while another process uses the controller, which may then keep it.
        let _ = fs::write(&control, "-hugetlb");
    }
    result
}

fn perf_event_needs_no_hierarchy_of_its_own(test_node: &TestNode) -> Result<(), Failed> {
    test_node.open_more("cgroups/perf_event", &NodeOptions::default())?;
    let (spec, launched) = test_node.sleeper("c")?;
    let groups = test_node.groups(&spec.name);
    let group = groups.get(Controller::PerfEvent).ok_or("no group")?;
    check!(group.dir.is_dir(), "{group:?}");
    test_node.destroy(&spec, &launched)
}
