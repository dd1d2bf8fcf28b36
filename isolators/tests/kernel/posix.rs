//! Tests without cgroups and namespaces, as for a user other than root.

use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use meseta_isolators::{Credentials, ExitCause, KillRequest, LaunchStep};

use crate::Test;
use crate::test_node::{TestNode, expect_step, same};

pub(crate) const TESTS: &[(&str, Test)] = tests![
    exit_status_is_persisted,
    failure_is_told,
    a_user_may_name_itself,
    kill_reaches_daemons,
    usage_is_of_the_process_tree,
    destroy_ends_everything,
    restart_finds_the_container,
];

/// A shell that ignores SIGTERM, with a daemon that has left its session.
const WITH_DAEMON: &str =
    "(setsid sh -c 'echo forked; exec sleep 1000' &); trap '' TERM; while :; do sleep 1; done";

fn exit_status_is_persisted(test_node: &TestNode) -> Result<(), Failed> {
    let spec = test_node.spec("c", "echo out; echo err >&2; exit 3");
    let (record, output) = test_node.run(&spec)?;
    same(record.cause, ExitCause::Exited(3))?;
    same(output, "out\n")?;
    same(std::fs::read_to_string(spec.stderr.path())?, "err\n")
}

fn failure_is_told(test_node: &TestNode) -> Result<(), Failed> {
    let mut spec = test_node.spec("c", "true");
    spec.working_dir = test_node.sandbox().join("gone");
    expect_step(test_node.refusal(&spec), LaunchStep::WorkingDir)
}

fn a_user_may_name_itself(test_node: &TestNode) -> Result<(), Failed> {
    let mut spec = test_node.spec("c", "id -u");
    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    spec.credentials = Some(Credentials {
        uid: uid.as_raw(),
        gid: gid.as_raw(),
        groups: vec![gid.as_raw()],
    });
    same(test_node.run(&spec)?.1, format!("{uid}\n"))
}

fn kill_reaches_daemons(test_node: &TestNode) -> Result<(), Failed> {
    let (spec, launched) = test_node.launch_until(WITH_DAEMON, "forked")?;
    let began = Instant::now();
    let request = KillRequest {
        signal: 15,
        grace: Duration::from_millis(300),
    };
    test_node.with(|containers| containers.kill(&launched.supervisor, request))?;
    test_node.wait_cause(&spec, &launched, ExitCause::Signaled(9))?;
    check!(
        began.elapsed() < Duration::from_millis(2300),
        "{:?}",
        began.elapsed()
    );
    Ok(())
    // The end of the test checks that the daemon is gone.
}

fn usage_is_of_the_process_tree(test_node: &TestNode) -> Result<(), Failed> {
    let work = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo worked; exec sleep 1000";
    let (spec, launched) = test_node.launch_until(work, "worked")?;
    let read = || {
        test_node.with(|containers| {
            containers.usage(&spec.name, Some(&launched.supervisor), Duration::ZERO)
        })
    };
    let usage = read()?;
    same(usage.pids.processes, Some(1))?;
    check!(
        usage.cpu.user_secs.is_some_and(|secs| secs > 0.0),
        "{usage:?}"
    );
    check!(
        usage.memory.rss_bytes.is_some_and(|bytes| bytes > 0),
        "{usage:?}"
    );
    same(usage.memory.limit_bytes, None)?;
    test_node.destroy(&spec, &launched)?;
    check!(read().is_err(), "usage of a container that is gone");
    Ok(())
}

fn destroy_ends_everything(test_node: &TestNode) -> Result<(), Failed> {
    let (spec, launched) = test_node.launch_until(WITH_DAEMON, "forked")?;
    test_node.destroy(&spec, &launched)
}

fn restart_finds_the_container(test_node: &TestNode) -> Result<(), Failed> {
    let (spec, launched) = test_node.launch_until("echo ready; exec sleep 1000", "ready")?;
    test_node.close();
    test_node.open(|_| ())?;
    let found = test_node.with(|containers| containers.recover())?;
    same(found.len(), 1)?;
    same(found[0].supervisor.as_ref(), Some(&launched.supervisor))?;
    test_node.destroy(&spec, &launched)
}
