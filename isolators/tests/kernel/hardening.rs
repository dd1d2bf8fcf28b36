//! The barriers against a hostile task: capabilities, system call filter, devices, read-only kernel files.

use std::collections::BTreeMap;
use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use libtest_mimic::Failed;
use meseta_isolators::cgroup::Version;
use meseta_isolators::{
    CapabilityRequest, CapabilitySet, ContainerSpec, Controller, DestroyOptions, ExitCause,
    Isolation, LaunchError, LaunchStep, MountAction, MountSource, MountStep, NodeOptions,
    SeccompAction, SeccompChoice, SeccompProfile, TaskIsolation,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Test;
use crate::probe;
use crate::test_node::{TestNode, argv, expect_step, isolated, nobody, same};

pub(crate) const TESTS: &[(&str, Test)] = tests![
    a_hostile_task_of_root_finds_no_way_out,
    a_hostile_task_of_a_user_finds_no_way_out,
    the_ways_out_are_open_without_isolators,
    set_user_id_programs_give_nothing,
    capabilities_are_what_is_allowed,
    system_call_filters_are_per_task,
    cgroups_around_a_container_are_hidden,
    cgroups_are_hidden_from_what_comes_after_the_tasks_end,
    a_working_directory_behind_a_descriptor_is_refused,
    changing_mounts_runs_nothing_that_the_container_shows,
];

/// Enables all barriers around a task, including its own network.
fn harden(test_node: &TestNode, node: &NodeOptions) -> Result<(), Failed> {
    let hardened = Isolation::hardened_for(test_node.host());
    let names: Vec<_> = hardened.names().chain(["namespaces/net"]).collect();
    test_node.open_custom(Isolation::parse(&names.join(","))?, node, Vec::new())
}

/// The results of the probe, with the setup that it needs: the names of open ways, and the lines of its status.
fn probed(
    test_node: &TestNode,
    mut spec: ContainerSpec,
    hardened: bool,
) -> Result<(Vec<String>, BTreeMap<String, String>), Failed> {
    let address = format!("meseta-{}", test_node.root().display());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&address)?)?;
    let shared = tempfile::NamedTempFile::new_in("/dev/shm")?;
    let groups = test_node.groups(&spec.name);
    let dirs: Vec<_> = groups.process_dirs();
    // The trees' paths on the host, where a cgroup namespace shows the container's view; elsewhere those paths do not exist.
    let trees = test_node.host().trees().into_iter();
    let roots: Vec<_> = trees.filter(|_| hardened).map(|tree| tree.mount).collect();
    let dirs = dirs.iter().chain(&roots);
    let dirs: Vec<_> = dirs.map(|dir| dir.to_string_lossy()).collect();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(shared.path(), open)?;
    for (name, value) in [
        (probe::AGENT, std::process::id().to_string()),
        (probe::GROUPS, dirs.join(":")),
        (probe::ABSTRACT, address),
        (probe::KEY, "1".to_owned()),
        (probe::SHARED, shared.path().to_string_lossy().into_owned()),
    ] {
        spec.env.push((name.into(), value.into()));
    }
    spec.command = argv(test_node.probe()?, &["probe", probe::MARK, "escapes"]);
    let (record, output) = test_node.run(&spec)?;
    drop(listener);
    check!(record.success(), "{record:?}: {output}");
    let lines = |kind: &'static str| {
        output
            .lines()
            .filter_map(move |line| line.strip_prefix(kind))
    };
    check!(
        lines("blocked ").count() + lines("open ").count() > 40,
        "{output}"
    );
    let status = lines("status ").filter_map(|line| line.split_once(':'));
    let status = status.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Ok((
        lines("open ").map(str::to_owned).collect(),
        status.collect(),
    ))
}

fn hex(set: CapabilitySet) -> String {
    format!("{:016x}", set.bits())
}

fn expect_status(
    status: &BTreeMap<String, String>,
    held: CapabilitySet,
    bounding: CapabilitySet,
) -> Result<(), Failed> {
    let none = hex(CapabilitySet::EMPTY);
    for (name, expected) in [
        ("CapPrm", hex(held)),
        ("CapEff", hex(held)),
        ("CapInh", none.clone()),
        ("CapAmb", none),
        ("CapBnd", hex(bounding)),
        ("NoNewPrivs", "1".to_owned()),
        ("Seccomp", "2".to_owned()),
    ] {
        let found = status.get(name).cloned().unwrap_or_default();
        check!(found == expected, "{name} is {found}, not {expected}");
    }
    Ok(())
}

fn a_hostile_task_of_root_finds_no_way_out(test_node: &TestNode) -> Result<(), Failed> {
    harden(test_node, &NodeOptions::default())?;
    let (open, status) = probed(test_node, test_node.spec("c", ""), true)?;
    same(open, Vec::<String>::new())?;
    let standard = CapabilitySet::standard();
    expect_status(&status, standard, standard)
}

fn a_hostile_task_of_a_user_finds_no_way_out(test_node: &TestNode) -> Result<(), Failed> {
    harden(test_node, &NodeOptions::default())?;
    let mut spec = test_node.spec("c", "");
    spec.credentials = Some(nobody());
    let (open, status) = probed(test_node, spec, true)?;
    same(open, Vec::<String>::new())?;
    expect_status(&status, CapabilitySet::EMPTY, CapabilitySet::EMPTY)
}

/// The probe is reliable: without the isolators most attempts succeed.
fn the_ways_out_are_open_without_isolators(test_node: &TestNode) -> Result<(), Failed> {
    let (open, status) = probed(test_node, test_node.spec("c", ""), false)?;
    same(status.get("Seccomp").map(String::as_str), Some("0"))?;
    for name in [
        "unshare",
        "mount tmpfs",
        "bpf",
        "io_uring_setup",
        "AF_PACKET",
        "abstract socket",
        "shared file",
        "/proc/sys/kernel/core_pattern",
        "/dev/kmsg",
        "keyctl",
        "clone into a user namespace",
    ] {
        let found = open
            .iter()
            .any(|line| line.split(": ").next() == Some(name));
        check!(found, "{name} is not open: {open:?}");
    }
    let groups = test_node.with(|containers| containers.groups(&test_node.spec("c", "").name));
    let writable = groups.process_dirs().iter().all(|dir| {
        let file = dir.join("cgroup.procs").to_string_lossy().into_owned();
        open.contains(&file)
    });
    check!(writable, "{open:?}");
    Ok(())
}

fn set_user_id_programs_give_nothing(test_node: &TestNode) -> Result<(), Failed> {
    harden(test_node, &NodeOptions::default())?;
    let program = test_node.sandbox().join("id");
    fs::copy("/usr/bin/id", &program)?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    fs::set_permissions(&program, mode)?;
    let mut spec = test_node.spec("c", "./id -u");
    spec.credentials = Some(nobody());
    same(test_node.run(&spec)?.1, "65534\n")
}

fn capabilities_are_what_is_allowed(test_node: &TestNode) -> Result<(), Failed> {
    let allowed = CapabilitySet::from_names(["CHOWN", "KILL", "NET_BIND_SERVICE"])?;
    let node = NodeOptions {
        capabilities: allowed,
        ..NodeOptions::default()
    };
    test_node.open_more("linux/capabilities", &node)?;
    let ask = |bounding: Option<CapabilitySet>, effective: Option<CapabilitySet>| TaskIsolation {
        capabilities: CapabilityRequest {
            bounding,
            effective,
            granted: CapabilitySet::EMPTY,
        },
        ..TaskIsolation::default()
    };
    let granted = |set| {
        let mut task = ask(None, Some(set));
        task.capabilities.granted = set;
        task
    };
    let bind = CapabilitySet::from_names(["NET_BIND_SERVICE"])?;
    let kill = CapabilitySet::from_names(["KILL"])?;
    let none = CapabilitySet::EMPTY;
    let usual = ask(None, None);
    // The user, the request, and then CapEff, CapBnd, CapAmb.
    for (number, (user, task, effective, bounding, ambient)) in [
        (None, usual.clone(), allowed, allowed, none),
        (Some(nobody()), usual, none, none, none),
        (None, ask(Some(kill), None), kill, kill, none),
        (None, ask(None, Some(none)), none, allowed, none),
        (Some(nobody()), ask(None, Some(bind)), bind, bind, bind),
        (Some(nobody()), granted(kill), kill, kill, kill),
    ]
    .into_iter()
    .enumerate()
    {
        let mut spec = test_node.spec(&format!("c{number}"), "grep Cap /proc/self/status");
        spec.credentials = user;
        let output = test_node.run_with(&spec, &task)?.1;
        for (name, set) in [
            ("CapEff", effective),
            ("CapBnd", bounding),
            ("CapAmb", ambient),
        ] {
            let line = format!("{name}:\t{}", hex(set));
            check!(
                output.lines().any(|one| one == line),
                "{number}: no {line} in {output}"
            );
        }
    }
    let admin = CapabilitySet::from_names(["SYS_ADMIN"])?;
    for (user, task, named) in [
        (None, ask(Some(admin), None), "CAP_SYS_ADMIN"),
        (Some(nobody()), ask(None, Some(kill)), "CAP_KILL"),
        (Some(nobody()), ask(Some(kill), None), "CAP_KILL"),
    ] {
        let mut spec = test_node.spec("more", "true");
        spec.credentials = user;
        let refused = test_node.with(|containers| containers.launch(&isolated(&spec, &task)));
        check!(
            matches!(&refused, Err(LaunchError::Invalid { reason, .. }) if reason.contains(named)),
            "{refused:?}"
        );
    }
    Ok(())
}

/// The task and processes that enter its container do not see the place of their groups, and both see its limits.
fn cgroups_around_a_container_are_hidden(test_node: &TestNode) -> Result<(), Failed> {
    test_node.open_more("namespaces/cgroup", &NodeOptions::default())?;
    let seen = "cat /proc/self/cgroup /proc/self/mountinfo; readlink /proc/self/ns/cgroup";
    let outer = test_node.spec("outer", &format!("{seen}; exec sleep 1000"));
    let launched = test_node.launch(&outer)?;
    test_node.wait_output(&outer, "cgroup:[")?;
    let output = test_node.output(&outer);
    let namespace = output.lines().last().unwrap_or_default().to_owned();
    let ours = fs::read_link("/proc/self/ns/cgroup")?;
    check!(*namespace != *ours.to_string_lossy(), "{output}");
    let spec = test_node.spec("outer+in", seen);
    let inner = test_node.run_inside(&spec, &launched)?;
    let within = test_node.output(&spec);
    check!(within.ends_with(&format!("{namespace}\n")), "{within}");
    let root = test_node.root().to_string_lossy().into_owned();
    for text in [&output, &within] {
        check!(!text.contains(&root), "{text}");
    }
    let groups = test_node.groups(&outer.name);
    let own = groups
        .dirs
        .iter()
        .filter(|group| group.version == Version::V1);
    check!(
        own.clone().count() == 0 || output.contains("memory:/\n"),
        "{output}"
    );
    test_node.destroy(&spec, &inner)?;
    test_node.destroy(&outer, &launched)?;
    let memory = test_node.host().v1.iter();
    let memory = memory.filter(|tree| tree.controllers.contains(&Controller::Memory));
    for tree in memory {
        // The container's own limit, in the file that programs read.
        let file = tree.mount.join("memory.limit_in_bytes");
        let spec = test_node.spec("limit", &format!("cat {}", file.display()));
        same(test_node.run(&spec)?.1, format!("{}\n", 64 << 20))?;
    }
    Ok(())
}

/// A check may enter a container whose task has just ended, before its supervisor has noticed the end.
fn cgroups_are_hidden_from_what_comes_after_the_tasks_end(
    test_node: &TestNode,
) -> Result<(), Failed> {
    test_node.open_more("namespaces/cgroup", &NodeOptions::default())?;
    let outer = test_node.spec("outer", "echo runs; exec sleep 1000");
    let launched = test_node.launch(&outer)?;
    test_node.wait_output(&outer, "runs")?;
    let supervisor = Pid::from_raw(launched.supervisor.pid);
    kill(supervisor, Signal::SIGSTOP)?;
    let children = format!("/proc/{supervisor}/task/{supervisor}/children");
    let children = fs::read_to_string(children)?;
    let task: i32 = children.trim().parse()?;
    kill(Pid::from_raw(task), Signal::SIGKILL)?;
    let has_ended = || {
        let stat = fs::read_to_string(format!("/proc/{task}/stat")).unwrap_or_default();
        stat.contains(") Z ")
    };
    test_node.eventually("the task has ended", has_ended)?;
    let spec = test_node.spec("outer+in", "cat /proc/self/cgroup; echo seen");
    let inner = test_node.run_inside(&spec, &launched)?;
    kill(supervisor, Signal::SIGCONT)?;
    let within = test_node.output(&spec);
    let root = test_node.root().to_string_lossy().into_owned();
    check!(
        within.ends_with("seen\n") && !within.contains(&root),
        "{within}"
    );
    test_node.destroy(&spec, &inner)?;
    test_node.destroy(&outer, &launched)
}

fn system_call_filters_are_per_task(test_node: &TestNode) -> Result<(), Failed> {
    test_node.open_more("linux/seccomp", &NodeOptions::default())?;
    let task = |seccomp| TaskIsolation {
        seccomp,
        ..TaskIsolation::default()
    };
    let status = "grep ^Seccomp: /proc/self/status";
    let usual = test_node.spec("usual", status);
    test_node.prints(&usual, "Seccomp:\t2\n")?;
    let free = test_node.spec("free", status);
    let output = test_node
        .run_with(&free, &task(SeccompChoice::Unconfined))?
        .1;
    same(output, "Seccomp:\t0\n")?;
    let mut calls = test_node.spec("calls", "");
    calls.command = argv(test_node.probe()?, &["probe", probe::MARK, "calls"]);
    let bpf = libc::SYS_bpf;
    let x32 = 0x4000_0000 | libc::SYS_getpid;
    let errors = format!("{bpf:#x} 1\n0x1e0 38\n0xfa0 38\n{x32:#x} 38\n");
    test_node.prints(&calls, &errors)?;
    let standard = SeccompProfile::standard(CapabilitySet::EMPTY);
    let no_rename = ["rename", "renameat", "renameat2"]
        .into_iter()
        .filter(|name| standard.allows(name))
        .try_fold(standard.clone(), SeccompProfile::refuse)?;
    let command = "echo x >one; mv one two && echo moved || echo refused";
    let spec = test_node.spec("own", command);
    let own = task(SeccompChoice::Profile(no_rename.clone()));
    same(test_node.run_with(&spec, &own)?.1, "refused\n")?;
    let spec = test_node.spec("killed", "echo x >one; exec mv one two");
    let deadly = task(SeccompChoice::Profile(
        no_rename.otherwise(SeccompAction::Kill),
    ));
    same(
        test_node.run_with(&spec, &deadly)?.0.cause,
        ExitCause::Signaled(libc::SIGSYS),
    )?;
    // A filter that refuses even the exec causes a failed launch, not a lost one.
    let nothing = task(SeccompChoice::Profile(SeccompProfile::only([
        "write",
        "exit_group",
    ])?));
    let failed = test_node
        .with(|containers| containers.launch(&isolated(&test_node.spec("no", "true"), &nothing)));
    expect_step(failed.err(), LaunchStep::Exec)
}

fn a_working_directory_behind_a_descriptor_is_refused(test_node: &TestNode) -> Result<(), Failed> {
    for number in 0..64 {
        let mut spec = test_node.spec(&format!("c{number}"), "pwd");
        spec.working_dir = format!("/proc/self/fd/{number}").into();
        expect_step(test_node.refusal(&spec), LaunchStep::WorkingDir)?;
    }
    Ok(())
}

/// A container may cover programs that it sees: the root process that changes its mounts runs none of them.
fn changing_mounts_runs_nothing_that_the_container_shows(
    test_node: &TestNode,
) -> Result<(), Failed> {
    test_node.open_more("linux/capabilities", &NodeOptions::default())?;
    let (covered, trap) = (
        fs::canonicalize("/bin/sh")?,
        fs::canonicalize(test_node.sandbox())?.join("trap"),
    );
    let (script, ran) = (trap.with_extension("script"), trap.with_extension("ran"));
    fs::write(&trap, format!("#!/bin/bash {}\n", script.display()))?;
    fs::write(&script, format!("id -u > {}\n", ran.display()))?;
    fs::set_permissions(&trap, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let mut spec = test_node.spec("c", "");
    spec.credentials = Some(nobody());
    spec.command = argv("/bin/sleep", &["sleep", "1000"]);
    let task = TaskIsolation {
        mounts: vec![MountStep {
            path: covered,
            action: MountAction::Bind {
                source: MountSource {
                    beneath: None,
                    path: trap,
                    by_user: false,
                },
                beneath: None,
                writable: true,
            },
        }],
        ..TaskIsolation::default()
    };
    let launched = test_node.launch_with(&spec, &task)?;
    let steps = vec![MountStep {
        path: "nothing".into(),
        action: MountAction::Unmount {
            beneath: Some(test_node.sandbox()),
        },
    }];
    let changed = test_node
        .with(|containers| containers.change_mounts(&spec.name, &launched.supervisor, steps));
    let covered_ran = fs::read_to_string(&ran).ok();
    let options = DestroyOptions::default();
    test_node
        .with(|containers| containers.destroy(&spec.name, Some(&launched.supervisor), options))?;
    changed?;
    check!(
        covered_ran.is_none(),
        "a program of the container's ran as user {covered_ran:?}"
    );
    Ok(())
}
