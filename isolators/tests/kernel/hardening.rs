//! What keeps a hostile task in: capabilities, system call filter, devices, read-only kernel files.

use std::collections::BTreeMap;
use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Instant;

use libtest_mimic::Failed;
use meseta_isolators::cgroup::Version;
use meseta_isolators::{
    CapabilityRequest, CapabilitySet, Command, ContainerSpec, Controller, Credentials,
    DestroyOptions, ExitCause, Inside, Isolation, LaunchError, LaunchStep, MountAction, MountStep,
    NodeOptions, Place, SeccompAction, SeccompChoice, SeccompProfile, TaskIsolation,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Test;
use crate::probe;
use crate::site::{PATIENCE, Site, chain, check, same};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("a_hostile_task_of_root_finds_no_way_out", hostile_root),
    ("a_hostile_task_of_a_user_finds_no_way_out", hostile_user),
    ("the_ways_out_are_open_without_isolators", open_ways),
    ("set_user_id_programs_give_nothing", set_user_id),
    ("capabilities_are_what_is_allowed", capabilities),
    ("system_call_filters_are_per_task", filters),
    ("cgroups_around_a_container_are_hidden", hidden_groups),
    (
        "cgroups_are_hidden_from_what_comes_after_the_tasks_end",
        hidden_after_the_end,
    ),
    (
        "a_working_directory_behind_a_descriptor_is_refused",
        magic_directory,
    ),
    (
        "changing_mounts_runs_nothing_that_the_container_shows",
        changing_mounts,
    ),
];

const NOBODY: u32 = 65534;

fn nobody() -> Option<Credentials> {
    Some(Credentials {
        uid: NOBODY,
        gid: NOBODY,
        groups: Vec::new(),
    })
}

/// All that keeps a task in, its own network too.
fn harden(site: &Site, node: &NodeOptions) -> Result<(), Failed> {
    let hardened = Isolation::hardened_for(site.host());
    let names: Vec<_> = hardened.names().chain(["namespaces/net"]).collect();
    site.open_custom(Isolation::parse(&names.join(","))?, node, Vec::new())
}

/// What the probe found, with what it needs set up for it: the names that stayed open, and the
/// lines of its status.
fn probed(
    site: &Site,
    mut spec: ContainerSpec,
    hardened: bool,
) -> Result<(Vec<String>, BTreeMap<String, String>), Failed> {
    let address = format!("meseta-{}", site.root().display());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&address)?)?;
    let shared = tempfile::NamedTempFile::new_in("/dev/shm")?;
    let groups = site.with(|containers| containers.groups(&spec.name));
    let dirs: Vec<_> = groups.process_dirs();
    // As the host names them, and where a cgroup namespace shows them; nowhere else are those the host's.
    let trees = site.host().trees().into_iter();
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
    spec.command = Command::Argv {
        program: site.probe()?.into(),
        args: ["probe", probe::MARK, "escapes"].map(Into::into).to_vec(),
    };
    let (record, output) = site.run(&spec)?;
    drop(listener);
    check(record.success(), || format!("{record:?}: {output}"))?;
    let lines = |kind: &'static str| {
        output
            .lines()
            .filter_map(move |line| line.strip_prefix(kind))
    };
    check(
        lines("blocked ").count() + lines("open ").count() > 40,
        || output.clone(),
    )?;
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
        check(found == expected, || {
            format!("{name} is {found}, not {expected}")
        })?;
    }
    Ok(())
}

fn hostile_root(site: &Site) -> Result<(), Failed> {
    harden(site, &NodeOptions::default())?;
    let (open, status) = probed(site, site.spec("c", ""), true)?;
    same(open, Vec::new())?;
    let standard = CapabilitySet::standard();
    expect_status(&status, standard, standard)
}

fn hostile_user(site: &Site) -> Result<(), Failed> {
    harden(site, &NodeOptions::default())?;
    let mut spec = site.spec("c", "");
    spec.credentials = nobody();
    let (open, status) = probed(site, spec, true)?;
    same(open, Vec::new())?;
    expect_status(&status, CapabilitySet::EMPTY, CapabilitySet::EMPTY)
}

/// The probe can tell: without the isolators most of it goes through.
fn open_ways(site: &Site) -> Result<(), Failed> {
    let (open, status) = probed(site, site.spec("c", ""), false)?;
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
        check(found, || format!("{name} is not open: {open:?}"))?;
    }
    let groups = site.with(|containers| containers.groups(&site.spec("c", "").name));
    let writable = groups.process_dirs().iter().all(|dir| {
        let file = dir.join("cgroup.procs").to_string_lossy().into_owned();
        open.contains(&file)
    });
    check(writable, || format!("{open:?}"))
}

fn set_user_id(site: &Site) -> Result<(), Failed> {
    harden(site, &NodeOptions::default())?;
    let program = site.sandbox().join("id");
    fs::copy("/usr/bin/id", &program)?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    fs::set_permissions(&program, mode)?;
    let mut spec = site.spec("c", "./id -u");
    spec.credentials = nobody();
    same(site.run(&spec)?.1, format!("{NOBODY}\n"))
}

fn capabilities(site: &Site) -> Result<(), Failed> {
    let allowed = CapabilitySet::from_names(["CHOWN", "KILL", "NET_BIND_SERVICE"])?;
    let node = NodeOptions {
        capabilities: allowed,
        ..NodeOptions::default()
    };
    site.open_more("linux/capabilities", &node)?;
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
    // Who, what is asked, and then CapEff, CapBnd, CapAmb.
    for (number, (user, task, effective, bounding, ambient)) in [
        (None, usual.clone(), allowed, allowed, none),
        (nobody(), usual, none, none, none),
        (None, ask(Some(kill), None), kill, kill, none),
        (None, ask(None, Some(none)), none, allowed, none),
        (nobody(), ask(None, Some(bind)), bind, bind, bind),
        (nobody(), granted(kill), kill, kill, kill),
    ]
    .into_iter()
    .enumerate()
    {
        let mut spec = site.spec(&format!("c{number}"), "grep Cap /proc/self/status");
        spec.credentials = user;
        let output = site.run_with(&spec, &task)?.1;
        for (name, set) in [
            ("CapEff", effective),
            ("CapBnd", bounding),
            ("CapAmb", ambient),
        ] {
            let line = format!("{name}:\t{}", hex(set));
            check(output.lines().any(|one| one == line), || {
                format!("{number}: no {line} in {output}")
            })?;
        }
    }
    let admin = CapabilitySet::from_names(["SYS_ADMIN"])?;
    for (user, task, named) in [
        (None, ask(Some(admin), None), "CAP_SYS_ADMIN"),
        (nobody(), ask(None, Some(kill)), "CAP_KILL"),
        (nobody(), ask(Some(kill), None), "CAP_KILL"),
    ] {
        let mut spec = site.spec("more", "true");
        spec.credentials = user;
        let refused = site.with(|containers| containers.launch_with(&spec, &task));
        check(
            matches!(&refused, Err(LaunchError::Invalid { reason, .. }) if reason.contains(named)),
            || format!("{refused:?}"),
        )?;
    }
    Ok(())
}

/// Neither the task nor what is put into its container learns where its groups are, and both find its limits.
fn hidden_groups(site: &Site) -> Result<(), Failed> {
    site.open_more("namespaces/cgroup", &NodeOptions::default())?;
    let seen = "cat /proc/self/cgroup /proc/self/mountinfo; readlink /proc/self/ns/cgroup";
    let outer = site.spec("outer", &format!("{seen}; exec sleep 1000"));
    let launched = site.launch(&outer)?;
    site.wait_output(&outer, "cgroup:[")?;
    let output = site.output(&outer);
    let namespace = output.lines().last().unwrap_or_default().to_owned();
    let ours = fs::read_link("/proc/self/ns/cgroup")?;
    check(*namespace != *ours.to_string_lossy(), || output.clone())?;
    let inside = Inside {
        supervisor: launched.supervisor.clone(),
        stdin: None,
        terminal: false,
    };
    let spec = site.spec("outer+in", seen);
    let inner = site
        .with(|c| c.launch_inside(&spec, &TaskIsolation::default(), &inside))
        .map_err(|error| Failed::from(chain(&error)))?;
    site.wait_end(&spec, &inner)?;
    let within = site.output(&spec);
    check(within.ends_with(&format!("{namespace}\n")), || {
        within.clone()
    })?;
    let root = site.root().to_string_lossy().into_owned();
    for text in [&output, &within] {
        check(!text.contains(&root), || text.clone())?;
    }
    let groups = site.with(|containers| containers.groups(&outer.name));
    let own = groups
        .dirs
        .iter()
        .filter(|group| group.version == Version::V1);
    check(
        own.clone().count() == 0 || output.contains("memory:/\n"),
        || output.clone(),
    )?;
    site.destroy(&spec, &inner)?;
    site.destroy(&outer, &launched)?;
    let memory = site.host().v1.iter();
    let memory = memory.filter(|tree| tree.controllers.contains(&Controller::Memory));
    for tree in memory {
        // The container's own limit, where programs look for it.
        let file = tree.mount.join("memory.limit_in_bytes");
        let spec = site.spec("limit", &format!("cat {}", file.display()));
        same(site.run(&spec)?.1, format!("{}\n", 64 << 20))?;
    }
    Ok(())
}

/// A check may be put into a container whose task has just ended, and whose supervisor has not noticed yet.
fn hidden_after_the_end(site: &Site) -> Result<(), Failed> {
    site.open_more("namespaces/cgroup", &NodeOptions::default())?;
    let outer = site.spec("outer", "echo runs; exec sleep 1000");
    let launched = site.launch(&outer)?;
    site.wait_output(&outer, "runs")?;
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
    let deadline = Instant::now() + PATIENCE;
    while !has_ended() && Instant::now() < deadline {
        std::thread::yield_now();
    }
    check(has_ended(), || "the task goes on".to_owned())?;
    let inside = Inside {
        supervisor: launched.supervisor.clone(),
        stdin: None,
        terminal: false,
    };
    let spec = site.spec("outer+in", "cat /proc/self/cgroup; echo seen");
    let inner = site
        .with(|c| c.launch_inside(&spec, &TaskIsolation::default(), &inside))
        .map_err(|error| Failed::from(chain(&error)))?;
    site.wait_end(&spec, &inner)?;
    kill(supervisor, Signal::SIGCONT)?;
    let within = site.output(&spec);
    let root = site.root().to_string_lossy().into_owned();
    check(
        within.ends_with("seen\n") && !within.contains(&root),
        || within.clone(),
    )?;
    site.destroy(&spec, &inner)?;
    site.destroy(&outer, &launched)
}

fn filters(site: &Site) -> Result<(), Failed> {
    site.open_more("linux/seccomp", &NodeOptions::default())?;
    let task = |seccomp| TaskIsolation {
        seccomp,
        ..TaskIsolation::default()
    };
    let status = "grep ^Seccomp: /proc/self/status";
    let usual = site.spec("usual", status);
    same(site.run(&usual)?.1, "Seccomp:\t2\n".to_owned())?;
    let free = site.spec("free", status);
    let output = site.run_with(&free, &task(SeccompChoice::Unconfined))?.1;
    same(output, "Seccomp:\t0\n".to_owned())?;
    let standard = SeccompProfile::standard(CapabilitySet::EMPTY);
    let no_rename = ["rename", "renameat", "renameat2"]
        .into_iter()
        .filter(|name| standard.allows(name))
        .try_fold(standard.clone(), SeccompProfile::refuse)?;
    let command = "echo x >one; mv one two && echo moved || echo refused";
    let spec = site.spec("own", command);
    let own = task(SeccompChoice::Profile(no_rename.clone()));
    same(site.run_with(&spec, &own)?.1, "refused\n".to_owned())?;
    let spec = site.spec("killed", "echo x >one; exec mv one two");
    let deadly = task(SeccompChoice::Profile(
        no_rename.otherwise(SeccompAction::Kill),
    ));
    same(
        site.run_with(&spec, &deadly)?.0.cause,
        ExitCause::Signaled(libc::SIGSYS),
    )?;
    // A filter that lets not even the exec through is a failed launch, not a lost one.
    let nothing = task(SeccompChoice::Profile(SeccompProfile::only([
        "write",
        "exit_group",
    ])?));
    let failed = site.with(|containers| containers.launch_with(&site.spec("no", "true"), &nothing));
    let told = matches!(
        &failed,
        Err(LaunchError::Step {
            step: LaunchStep::Exec,
            ..
        })
    );
    check(told, || format!("{failed:?}"))
}

fn magic_directory(site: &Site) -> Result<(), Failed> {
    for number in 0..64 {
        let mut spec = site.spec(&format!("c{number}"), "pwd");
        spec.working_dir = format!("/proc/self/fd/{number}").into();
        let failed = site.with(|containers| containers.launch(&spec));
        let told = matches!(
            &failed,
            Err(LaunchError::Step {
                step: LaunchStep::WorkingDir,
                ..
            })
        );
        check(told, || format!("{number}: {failed:?}"))?;
    }
    Ok(())
}

/// A container may cover programs that it sees: root's process that changes its mounts runs none.
fn changing_mounts(site: &Site) -> Result<(), Failed> {
    site.open_more("linux/capabilities", &NodeOptions::default())?;
    let (covered, trap) = (
        fs::canonicalize("/bin/sh")?,
        fs::canonicalize(site.sandbox())?.join("trap"),
    );
    let (script, ran) = (trap.with_extension("script"), trap.with_extension("ran"));
    fs::write(&trap, format!("#!/bin/bash {}\n", script.display()))?;
    fs::write(&script, format!("id -u > {}\n", ran.display()))?;
    fs::set_permissions(&trap, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let mut spec = site.spec("c", "");
    spec.credentials = nobody();
    spec.command = Command::Argv {
        program: "/bin/sleep".into(),
        args: ["sleep", "1000"].map(Into::into).to_vec(),
    };
    let task = TaskIsolation {
        mounts: vec![MountStep {
            path: covered,
            action: MountAction::Bind {
                source: Place {
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
    let launched = site.with(|containers| containers.launch_with(&spec, &task))?;
    let steps = vec![MountStep {
        path: "nothing".into(),
        action: MountAction::Unmount {
            beneath: Some(site.sandbox()),
        },
    }];
    let changed =
        site.with(|containers| containers.change_mounts(&spec.name, &launched.supervisor, steps));
    let covered_ran = fs::read_to_string(&ran).ok();
    let options = DestroyOptions::default();
    site.with(|containers| containers.destroy(&spec.name, Some(&launched.supervisor), options))?;
    changed?;
    check(covered_ran.is_none(), || {
        format!("a program of the container's ran as user {covered_ran:?}")
    })
}
