//! Launches on the real kernel: the environment of a task, and the reports of failures.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use libtest_mimic::Failed;
use meseta_isolators::cgroup::Version;
use meseta_isolators::{
    ContainerSpec, Credentials, Destination, ExitCause, LaunchError, LaunchStep, Limit, LogFile,
    MountAction, MountSource, MountStep, Rlimit, TaskIsolation,
};

use crate::Test;
use crate::test_node::{TestNode, argv, isolated, name, nobody, same};

pub(crate) const TESTS: &[(&str, Test)] = tests![
    exit_status_is_persisted,
    deadly_signals_are_persisted,
    namespaces_differ_from_the_hosts,
    hostname_is_the_containers_own,
    processes_of_the_host_are_invisible,
    task_is_in_its_own_cgroups,
    task_has_only_fds_0_to_2,
    no_new_privs_is_set,
    rlimits_are_set,
    oom_score_is_the_tasks_own,
    mounts_of_a_task_stay_inside,
    environment_is_exactly_what_was_given,
    signal_mask_and_dispositions_are_default,
    user_and_groups_are_changed,
    long_environment_arrives,
    missing_program_is_reported_with_errno,
    every_failing_step_is_named,
    symlinked_output_is_refused,
    output_follows_no_swapped_folder,
    output_is_a_plain_file_of_the_tasks_user,
    output_goes_where_the_agent_sees_it,
    a_name_in_use_is_refused,
    launcher_death_costs_no_container,
    supervisor_runs_from_a_sealed_image,
    supervisor_is_small,
    a_hundred_launches_leak_no_descriptor,
    groups_that_were_removed_are_made_again,
];

/// Another user removes the groups of a running agent.
fn groups_that_were_removed_are_made_again(test_node: &TestNode) -> Result<(), Failed> {
    let spec = test_node.spec("c", "exec sleep 1000");
    let groups = test_node.groups(&spec.name);
    for group in &groups.dirs {
        let above: Vec<_> = group.dir.ancestors().skip(1).take(2).collect();
        for dir in above.first().into_iter().flat_map(fs::read_dir) {
            for entry in dir.flatten().filter(|entry| entry.path().is_dir()) {
                // The launcher's own group stays.
                let _ = fs::remove_dir(entry.path());
            }
        }
        for dir in above {
            let _ = fs::remove_dir(dir);
        }
    }
    let unified = groups
        .dirs
        .iter()
        .find(|group| group.version == Version::V2);
    if let Some(instance) = unified.and_then(|group| group.dir.parent()) {
        check!(!instance.exists(), "{} is in use", instance.display());
    }
    let launched = test_node.launch(&spec)?;
    let again = groups.dirs.iter().all(|group| group.dir.is_dir());
    check!(again, "{groups:?}");
    test_node.destroy(&spec, &launched)
}

fn exit_status_is_persisted(test_node: &TestNode) -> Result<(), Failed> {
    for code in [0, 3, 255] {
        let spec = test_node.spec(&format!("exit{code}"), &format!("exit {code}"));
        let (record, _) = test_node.run(&spec)?;
        same(record.cause, ExitCause::Exited(code))?;
        same(record.success(), code == 0)?;
        same(record.kill_requested, false)?;
        let file = test_node
            .with(|containers| containers.runtime_dir(&spec.name))
            .join("status");
        check!(file.is_file(), "{} is no file", file.display());
    }
    Ok(())
}

fn deadly_signals_are_persisted(test_node: &TestNode) -> Result<(), Failed> {
    // 40 is a real-time signal, which has no name in most libraries.
    for signal in [9, 15, 11, 40] {
        let spec = test_node.spec(&format!("signal{signal}"), &format!("kill -{signal} $$"));
        same(test_node.run(&spec)?.0.cause, ExitCause::Signaled(signal))?;
    }
    Ok(())
}

fn namespaces_differ_from_the_hosts(test_node: &TestNode) -> Result<(), Failed> {
    let spec = test_node.spec(
        "c",
        "for n in pid mnt ipc uts; do readlink /proc/self/ns/$n; done",
    );
    let (_, output) = test_node.run(&spec)?;
    let inside: Vec<_> = output.lines().collect();
    same(inside.len(), 4)?;
    for (kind, inside) in ["pid", "mnt", "ipc", "uts"].into_iter().zip(inside) {
        let outside = fs::read_link(format!("/proc/self/ns/{kind}"))?;
        check!(inside.starts_with(kind), "{kind}: {inside}");
        check!(Path::new(inside) != outside, "{kind} is shared: {inside}");
    }
    Ok(())
}

fn hostname_is_the_containers_own(test_node: &TestNode) -> Result<(), Failed> {
    let before = nix::unistd::gethostname()?;
    let mut spec = test_node.spec("named", "uname -n");
    spec.hostname = Some("within".to_owned());
    test_node.prints(&spec, "within\n")?;
    let unnamed = test_node.spec("unnamed", "uname -n");
    same(
        test_node.run(&unnamed)?.1.trim().to_owned(),
        before.to_string_lossy().into_owned(),
    )?;
    same(nix::unistd::gethostname()?, before)
}

fn processes_of_the_host_are_invisible(test_node: &TestNode) -> Result<(), Failed> {
    let shown = "ls -d /proc/[0-9]*; cat /proc/1/comm; tr '\\0' ' ' < /proc/1/cmdline; true";
    let spec = test_node.spec("c", shown);
    let (_, output) = test_node.run(&spec)?;
    let processes = output
        .lines()
        .filter(|line| line.starts_with("/proc/"))
        .count();
    // The supervisor, the shell, ls.
    check!(processes <= 3, "{output}");
    check!(output.contains("meseta-init"), "{output}");
    check!(!output.contains("launcher.lock"), "{output}");
    Ok(())
}

fn task_is_in_its_own_cgroups(test_node: &TestNode) -> Result<(), Failed> {
    let spec = test_node.spec("c", "cat /proc/self/cgroup");
    let (_, output) = test_node.run(&spec)?;
    let groups = test_node.groups(&spec.name);
    let v1 = test_node
        .host()
        .v1
        .iter()
        .flat_map(|tree| &tree.controllers);
    // Groups of disabled isolators are those of the agent.
    let v1 = v1.filter(|one| {
        groups
            .get(**one)
            .is_some_and(|group| group.version == Version::V1)
    });
    let expected = format!("/{}/agent/c", test_node.root().display());
    for controller in v1 {
        let line = output.lines().find(|line| {
            line.split(':')
                .nth(1)
                .is_some_and(|c| c.split(',').any(|c| c == controller.name()))
        });
        let path = line.and_then(|line| line.splitn(3, ':').nth(2));
        same(path, Some(expected.as_str()))?;
    }
    if test_node.host().unified.is_some() {
        check!(
            output.contains(&format!("0::{expected}/leaf\n")),
            "{output}"
        );
    }
    Ok(())
}

fn task_has_only_fds_0_to_2(test_node: &TestNode) -> Result<(), Failed> {
    let spec = test_node.spec("c", "ls /proc/$$/fd; readlink /proc/$$/fd/0; true");
    test_node.prints(&spec, "0\n1\n2\n/dev/null\n")
}

fn no_new_privs_is_set(test_node: &TestNode) -> Result<(), Failed> {
    let spec = test_node.spec("c", "grep NoNewPrivs /proc/self/status");
    test_node.prints(&spec, "NoNewPrivs:\t1\n")
}

fn rlimit(resource: u32, soft: u64, hard: u64) -> Rlimit {
    Rlimit {
        resource,
        soft,
        hard,
    }
}

fn rlimits_are_set(test_node: &TestNode) -> Result<(), Failed> {
    let mut spec = test_node.spec("c", "ulimit -Sn; ulimit -Hn; ulimit -c");
    spec.rlimits = vec![rlimit(7, 77, 99), rlimit(4, 0, 0)];
    test_node.prints(&spec, "77\n99\n0\n")
}

fn oom_score_is_the_tasks_own(test_node: &TestNode) -> Result<(), Failed> {
    let mut spec = test_node.spec("c", "cat /proc/self/oom_score_adj");
    test_node.prints(&spec, "0\n")?;
    spec = test_node.spec("burst", "cat /proc/self/oom_score_adj");
    spec.demand.mem_limit = Some(Limit::Unlimited);
    let score: i32 = test_node.run(&spec)?.1.trim().parse()?;
    check!(
        (900..=1000).contains(&score),
        "{score} for a small task that may burst"
    );
    Ok(())
}

fn mounts_of_a_task_stay_inside(test_node: &TestNode) -> Result<(), Failed> {
    // The path as the host's table lists it.
    let inner = test_node.sandbox().canonicalize()?.join("inner");
    fs::create_dir(&inner)?;
    let command = "mount -t tmpfs none inner && echo x >inner/file && echo mounted; read x < gate";
    let gate = test_node.gate()?;
    let spec = test_node.spec("c", command);
    let launched = test_node.launch(&spec)?;
    test_node.wait_output(&spec, "mounted")?;
    check!(
        !inner.join("file").exists(),
        "the host sees the task's mount"
    );
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let is_seen = table.contains(&*inner.to_string_lossy());
    check!(!is_seen, "the mount is in the host's table");
    fs::write(gate, "\n")?;
    test_node.wait_end(&spec, &launched)?;
    test_node.destroy(&spec, &launched)
}

fn environment_is_exactly_what_was_given(test_node: &TestNode) -> Result<(), Failed> {
    let mut spec = test_node.spec("c", "");
    spec.command = argv("env", &["env"]);
    spec.env = vec![
        ("PATH".into(), "/usr/bin:/bin".into()),
        ("A".into(), "1 2=3".into()),
        ("EMPTY".into(), "".into()),
    ];
    test_node.prints(&spec, "PATH=/usr/bin:/bin\nA=1 2=3\nEMPTY=\n")
}

fn signal_mask_and_dispositions_are_default(test_node: &TestNode) -> Result<(), Failed> {
    let mut spec = test_node.spec("c", "");
    let args = ["grep", "-E", "Sig(Blk|Ign|Cgt)|ShdPnd", "/proc/self/status"];
    spec.command = argv("grep", &args);
    let (_, output) = test_node.run(&spec)?;
    for line in output.lines() {
        // grep itself catches nothing but stack overflows.
        let bits = line.rsplit('\t').next().unwrap_or_default();
        let clean = bits == "0000000000000000" || line.starts_with("SigCgt");
        check!(clean, "{output}");
    }
    same(output.lines().count(), 4)
}

fn user_and_groups_are_changed(test_node: &TestNode) -> Result<(), Failed> {
    let mut spec = test_node.spec("c", "id -u; id -g; id -G; umask");
    spec.credentials = Some(Credentials {
        uid: 65534,
        gid: 65533,
        groups: vec![65533, 1234],
    });
    test_node.prints(&spec, "65534\n65533\n65533 1234\n0022\n")?;
    let owner = fs::metadata(spec.stdout.path())?;
    same((owner.uid(), owner.gid()), (65534, 65533))
}

fn long_environment_arrives(test_node: &TestNode) -> Result<(), Failed> {
    let mut spec = test_node.spec("c", "printf %s \"$V0$V1$V2\" | wc -c");
    for number in 0..3 {
        spec.env
            .push((format!("V{number}").into(), "x".repeat(100_000).into()));
    }
    same(test_node.run(&spec)?.1.trim().to_owned(), "300000")
}

fn missing_program_is_reported_with_errno(test_node: &TestNode) -> Result<(), Failed> {
    let mut spec = test_node.spec("c", "");
    spec.command = argv("/no/such/program", &[]);
    let error = test_node.refusal(&spec);
    let Some(LaunchError::Step {
        step,
        source,
        detail,
        ..
    }) = error
    else {
        return Err(format!("{error:?}").into());
    };
    same(step, LaunchStep::Exec)?;
    same(source.raw_os_error(), Some(2))?;
    same(detail, "/no/such/program")?;
    let groups = test_node.groups(&spec.name);
    check!(!groups.exist(), "groups are left");
    let folder = test_node.with(|containers| containers.runtime_dir(&spec.name));
    check!(!folder.exists(), "the runtime folder is left");
    Ok(())
}

type Spoil<'a> = &'a dyn Fn(&mut ContainerSpec);

fn every_failing_step_is_named(test_node: &TestNode) -> Result<(), Failed> {
    let plain = test_node.sandbox().join("plain");
    fs::write(&plain, "#!/bin/sh\n")?;
    let sandbox = test_node.sandbox();
    let cases: [(&str, Spoil<'_>, LaunchStep, i32); 6] = [
        (
            "chdir",
            &|spec| spec.working_dir = sandbox.join("gone"),
            LaunchStep::WorkingDir,
            2,
        ),
        (
            "denied",
            &|spec| spec.command = argv(&plain, &[]),
            LaunchStep::Exec,
            13,
        ),
        (
            "unknown",
            &|spec| spec.command = argv("no-such-program", &[]),
            LaunchStep::Exec,
            2,
        ),
        (
            "stdout",
            &|spec| spec.stdout = Destination::file(&sandbox, "gone/out"),
            LaunchStep::OpenStdio,
            2,
        ),
        (
            "rlimit",
            &|spec| spec.rlimits = vec![rlimit(7, 10, 5)],
            LaunchStep::Rlimit,
            22,
        ),
        (
            "rlimit-number",
            &|spec| spec.rlimits = vec![rlimit(999, 1, 1)],
            LaunchStep::Rlimit,
            22,
        ),
    ];
    for (name, spoil, expected, errno) in cases {
        let mut spec = test_node.spec(name, "true");
        spoil(&mut spec);
        let error = test_node.refusal(&spec);
        let Some(LaunchError::Step { step, source, .. }) = &error else {
            return Err(format!("{}: {error:?}", spec.name).into());
        };
        same((*step, source.raw_os_error()), (expected, Some(errno)))?;
        let groups = test_node.groups(&spec.name);
        check!(!groups.exist(), "groups of {} are left", spec.name);
    }
    Ok(())
}

fn symlinked_output_is_refused(test_node: &TestNode) -> Result<(), Failed> {
    let spec = test_node.spec("c", "echo written");
    let victim = test_node.sandbox().join("victim");
    fs::write(&victim, "untouched")?;
    std::os::unix::fs::symlink(&victim, spec.stdout.path())?;
    refused_stdio(test_node.refusal(&spec), libc::ELOOP)?;
    same(fs::read_to_string(victim)?, "untouched")
}

fn refused_stdio(error: Option<LaunchError>, errno: i32) -> Result<(), Failed> {
    let refused = matches!(
        &error,
        Some(LaunchError::Step { step: LaunchStep::OpenStdio, source, .. })
            if source.raw_os_error() == Some(errno)
    );
    check!(refused, "{error:?}");
    Ok(())
}

/// Output through the supervisor, and output that the task writes itself.
pub(crate) fn both_ways() -> [TaskIsolation; 2] {
    let log = LogFile {
        bytes: 1 << 20,
        files: 1,
    };
    let carried = TaskIsolation {
        stdout_log: Some(log),
        stderr_log: Some(log),
        ..TaskIsolation::default()
    };
    [TaskIsolation::default(), carried]
}

/// The sandbox belongs to a task: any folder in it may be a link by now.
fn output_follows_no_swapped_folder(test_node: &TestNode) -> Result<(), Failed> {
    let outside = test_node.sandbox().with_file_name("outside");
    fs::create_dir_all(outside.join("c"))?;
    fs::write(outside.join("c/err"), "theirs")?;
    std::os::unix::fs::symlink(&outside, test_node.sandbox().join("containers"))?;
    for (number, task) in both_ways().into_iter().enumerate() {
        let mut spec = test_node.spec(&format!("c{number}"), "echo written");
        spec.stdout = Destination::file(&test_node.sandbox(), "containers/c/out");
        spec.stderr = Destination::file(&test_node.sandbox(), "containers/c/err");
        let error = test_node.with(|containers| containers.launch(&isolated(&spec, &task)));
        refused_stdio(error.err(), libc::ELOOP)?;
    }
    same(fs::read_dir(outside.join("c"))?.count(), 1)?;
    same(fs::read_to_string(outside.join("c/err"))?, "theirs")
}

/// Pipes block nothing, and files of other users stay theirs.
fn output_is_a_plain_file_of_the_tasks_user(test_node: &TestNode) -> Result<(), Failed> {
    let theirs = test_node.sandbox().with_file_name("theirs");
    fs::write(&theirs, "theirs")?;
    for (number, task) in both_ways().into_iter().enumerate() {
        for (kind, errno) in [
            ("fifo", libc::EINVAL),
            ("hard", libc::EMLINK),
            ("plain", libc::EPERM),
        ] {
            let name = format!("{kind}{number}");
            let mut spec = test_node.spec(&name, "echo written");
            spec.credentials = Some(nobody());
            spec.stderr = Destination::file(&test_node.sandbox(), &name);
            let path = spec.stderr.path();
            match kind {
                "fifo" => nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU)?,
                "hard" => fs::hard_link(&theirs, &path)?,
                _ => fs::write(&path, "root's")?,
            }
            let error = test_node.with(|containers| containers.launch(&isolated(&spec, &task)));
            refused_stdio(error.err(), errno)?;
            same(fs::metadata(&path)?.uid(), 0)?;
        }
    }
    same(fs::read_to_string(&theirs)?, "theirs")?;
    // Output appends to a file that the user owns already.
    let mut spec = test_node.spec("own", "echo written");
    spec.credentials = Some(nobody());
    fs::write(spec.stdout.path(), "before ")?;
    std::os::unix::fs::chown(spec.stdout.path(), Some(65534), Some(65534))?;
    test_node.prints(&spec, "before written\n")
}

/// A task has mounted a folder of its own over a folder on the output's path.
fn output_goes_where_the_agent_sees_it(test_node: &TestNode) -> Result<(), Failed> {
    let evil = test_node.sandbox().with_file_name("evil");
    fs::create_dir(&evil)?;
    let task = TaskIsolation {
        mounts: vec![MountStep {
            path: test_node.sandbox(),
            action: MountAction::Bind {
                source: MountSource {
                    beneath: None,
                    path: evil.clone(),
                    ..MountSource::default()
                },
                beneath: None,
                writable: true,
            },
        }],
        ..TaskIsolation::default()
    };
    let outer = test_node.spec("outer", "echo up; exec sleep 1000");
    let launched = test_node.launch_with(&outer, &task)?;
    test_node.wait_output(&outer, "up")?;
    let spec = test_node.spec("outer+in", "echo within");
    let inner = test_node.run_inside(&spec, &launched)?;
    same(test_node.output(&spec), "within\n")?;
    same(fs::read_dir(&evil)?.count(), 0)?;
    test_node.destroy(&spec, &inner)?;
    test_node.destroy(&outer, &launched)
}

fn a_name_in_use_is_refused(test_node: &TestNode) -> Result<(), Failed> {
    let spec = test_node.spec("c", "echo first; exec sleep 1000");
    let launched = test_node.launch(&spec)?;
    let again = test_node.refusal(&spec);
    check!(
        matches!(again, Some(LaunchError::Invalid { .. })),
        "{again:?}"
    );
    // The refusal does not affect the running container.
    check!(test_node.lives(&launched)?, "the first container is gone");
    test_node.destroy(&spec, &launched)
}

fn launcher_death_costs_no_container(test_node: &TestNode) -> Result<(), Failed> {
    let gate = test_node.gate()?;
    let spec = test_node.spec("c", "read line < gate; echo $line; exit 3");
    let launched = test_node.launch(&spec)?;
    let launcher = test_node.launcher()?;
    nix::sys::signal::kill(launcher, nix::sys::signal::Signal::SIGKILL)?;
    // A new launch finds the launcher dead and starts another.
    same(
        test_node.run(&test_node.spec("second", "exit 4"))?.0.cause,
        ExitCause::Exited(4),
    )?;
    check!(
        test_node.launcher()? != launcher,
        "the launcher was not replaced"
    );
    fs::write(&gate, "through\n")?;
    test_node.wait_cause(&spec, &launched, ExitCause::Exited(3))?;
    same(test_node.output(&spec), "through\n")
}

fn supervisor_runs_from_a_sealed_image(test_node: &TestNode) -> Result<(), Failed> {
    let (spec, launched) = test_node.sleeper("c")?;
    let exe = format!("/proc/{}/exe", launched.supervisor.pid);
    let target = fs::read_link(&exe)?;
    check!(
        target.to_string_lossy().contains("memfd:meseta-launcher"),
        "{target:?}"
    );
    let opened = fs::OpenOptions::new().write(true).open(&exe);
    check!(opened.is_err(), "the image can be opened for writing");
    test_node.destroy(&spec, &launched)
}

fn supervisor_is_small(test_node: &TestNode) -> Result<(), Failed> {
    let (spec, launched) = test_node.sleeper("c")?;
    let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", launched.supervisor.pid))?;
    let kilobytes: u64 = rollup
        .lines()
        .filter(|line| line.starts_with("Private_"))
        .filter_map(|line| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok())
        .sum();
    check!(kilobytes > 0 && kilobytes <= 1024, "{kilobytes} KB private");
    test_node.destroy(&spec, &launched)
}

fn a_hundred_launches_leak_no_descriptor(test_node: &TestNode) -> Result<(), Failed> {
    let count = || fs::read_dir("/proc/self/fd").map(Iterator::count);
    let launcher = test_node.launcher()?;
    let of_launcher = || fs::read_dir(format!("/proc/{launcher}/fd")).map(Iterator::count);
    test_node.run(&test_node.spec("warm", "true"))?;
    let before = of_launcher()?;
    for number in 0..100 {
        let spec = test_node.spec(&format!("c{number}"), "true");
        let launched = test_node.launch(&spec)?;
        test_node.wait_end(&spec, &launched)?;
        test_node.destroy(&spec, &launched)?;
        test_node.with(|containers| containers.forget(&name(&format!("c{number}"))))?;
    }
    same(of_launcher()?, before)?;
    // Other tests in this process hold some descriptors, but not a hundred.
    check!(count()? < 100, "descriptors are left open");
    Ok(())
}
