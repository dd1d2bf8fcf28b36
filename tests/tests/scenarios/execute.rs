//! Tests of `meseta execute`: output, exit codes, isolation from the inside.

use std::process::Output;

use meseta_tests::{Cluster, unless_root};

use crate::anywhere;

meseta_tests::scenarios! {
    unless_root:
        prints_output_from_own_namespace;
    anywhere:
        exits_with_the_tasks_own_code,
        ends_a_task_at_its_timeout;
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn prints_output_from_own_namespace() {
    let cluster = Cluster::default();
    let command =
        "--command=echo hello; cat /proc/self/cgroup; echo pid $$; readlink /proc/self/ns/pid";
    let output = cluster.meseta("execute", &[command, "--resources=cpus:0.5;mem:64"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    assert!(text.starts_with("hello\n"), "{text}");
    // On v2 alone its own groups are the roots of its view.
    let v2_alone = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let is_own = |line: &&str| match v2_alone {
        true => line.ends_with(":/"),
        false => line.contains(&cluster.cgroups_root),
    };
    let groups: Vec<_> = text.lines().filter(is_own).collect();
    assert!(
        !groups.is_empty(),
        "not in a group below {}: {text}",
        cluster.cgroups_root
    );
    for controller in ["cpu", "memory", "pids"] {
        let own = groups.iter().any(|l| {
            let mut fields = l.split(':').skip(1);
            fields
                .next()
                .is_some_and(|names| names.is_empty() || names.split(',').any(|n| n == controller))
        });
        assert!(own, "no {controller} group of its own: {text}");
    }
    let host = std::fs::read_link("/proc/self/ns/pid").expect("a namespace");
    assert!(
        !text.contains(&host.display().to_string()),
        "in the host's pid namespace: {text}"
    );
    let pid = text
        .lines()
        .find_map(|l| l.strip_prefix("pid "))
        .expect("a pid");
    assert!(
        pid.parse::<u32>().is_ok_and(|pid| pid < 100),
        "a pid of the host: {text}"
    );
    assert!(
        stderr(&output).contains("TASK_FINISHED"),
        "{}",
        stderr(&output)
    );
}

fn exits_with_the_tasks_own_code() {
    let cluster = Cluster::default();
    let output = cluster.meseta(
        "execute",
        &["--command=exit 3", "--resources=cpus:0.1;mem:32"],
    );
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("TASK_FAILED"),
        "{}",
        stderr(&output)
    );
    let output = cluster.meseta(
        "execute",
        &["--command=kill -SEGV $$", "--resources=cpus:0.1;mem:32"],
    );
    assert_eq!(output.status.code(), Some(139), "{}", stderr(&output));
    let output = cluster.meseta(
        "execute",
        &["--command=echo oops >&2", "--resources=cpus:0.1;mem:32"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("oops"), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
}

fn ends_a_task_at_its_timeout() {
    let cluster = Cluster::default();
    // The limit is the command's, not the task's: the task has to be launched by then.
    let args = [
        "--command=sleep 600",
        "--resources=cpus:0.1;mem:32",
        "--timeout=8secs",
    ];
    let output = cluster.meseta("execute", &args);
    assert_eq!(output.status.code(), Some(124), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("TASK_KILLED"),
        "{}",
        stderr(&output)
    );
}
