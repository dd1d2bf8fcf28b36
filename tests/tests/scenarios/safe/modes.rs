//! The surroundings of a task: folders, groups and limits, with any start of the agent.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use meseta_tests::{Cluster, Framework, http};
use nix::sys::stat::{Mode, umask};
use serde_json::{Value, json};

use super::{as_nobody, framework_of_nobody, open_cluster, sandbox, small};

/// Runs a task to its end; returns its output from the API.
fn printed(cluster: &Cluster, framework: &mut Framework, task: Value) -> String {
    let id = task["task_id"]["value"].as_str().expect("an id").to_owned();
    let offer = framework.offer();
    let mut task = task;
    task["agent_id"] = offer["agent_id"].clone();
    framework.launch(&offer, &[task]);
    framework.until_state(&id, "TASK_FINISHED");
    let path = format!(
        "/frameworks/{}/executors/{id}/runs/latest/stdout",
        framework.id
    );
    let url = &cluster.agent().url;
    let answer = http::get(&format!("{url}/files/read?path={path}&offset=0"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["data"].as_str().expect("text").to_owned()
}

/// Starts a cluster whose daemons have the strictest umask, as by the shipped units.
fn strict_cluster() -> Cluster {
    let before = umask(Mode::from_bits_truncate(0o077));
    let cluster = open_cluster(&[]);
    umask(before);
    cluster
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).expect("there").mode() & 0o7777
}

/// Runs a task that starts, writes its sandbox, is checked, reads its limits in the usual places, and whose output is read.
fn lives(cluster: &Cluster, framework: &mut Framework) -> String {
    let command = "echo made > file; cat file; id -u; mkdir folder; echo also > folder/file; \
        own=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup); \
        cat /sys/fs/cgroup/memory$own/memory.limit_in_bytes 2>/dev/null; \
        pwd";
    let text = printed(cluster, framework, small(&Value::Null, "t", command));
    assert!(text.starts_with("made\n"), "{text}");
    let sandbox = sandbox(cluster, framework, "t");
    assert!(
        text.trim_end().ends_with(&sandbox.display().to_string()),
        "{text}"
    );
    assert_eq!(mode(&sandbox), 0o750);
    assert_eq!(mode(&sandbox.join("stdout")), 0o644);
    text
}

pub(super) fn user_task_runs_under_any_umask() {
    let cluster = strict_cluster();
    let mut framework = framework_of_nobody(&cluster);
    let text = lives(&cluster, &mut framework);
    // On v2 the task is in a leaf of its container's group, which has no limits of its own.
    let limit = (32_u64 << 20).to_string();
    if Path::new("/sys/fs/cgroup/memory").is_dir() {
        assert!(text.lines().any(|line| line == limit), "{text}");
    }
    let agent = cluster.agent_dir(0);
    let run = sandbox(&cluster, &framework, "t");
    for folder in run.ancestors().skip(1).take_while(|path| **path != *agent) {
        assert_eq!(mode(folder), 0o711, "{}", folder.display());
    }
    for (path, expected) in [("meta", 0o700), ("meta/lock", 0o600), ("endpoint", 0o644)] {
        assert_eq!(mode(&agent.join(path)), expected, "{path}");
    }
}

pub(super) fn user_agent_runs_under_any_umask() {
    let cluster = strict_cluster();
    let mut framework = cluster.framework();
    lives(&cluster, &mut framework);
}

/// The ids of other frameworks, executors and containers are like passwords: they are not listed.
pub(super) fn tasks_see_no_foreign_ids() {
    // The isolators that are on by default on v2 alone.
    let isolation = "cgroups/cpu,cgroups/mem,cgroups/pids,filesystem/kernel,linux/nnp,\
        namespaces/cgroup,namespaces/ipc,namespaces/mnt,namespaces/pid,namespaces/uts,posix/rlimits";
    let cluster = open_cluster(&[&format!("--isolation={isolation}")]);
    let mut framework = framework_of_nobody(&cluster);
    let slaves = cluster.agent_dir(0).join("slaves");
    let command = format!(
        "ls {} && echo listed; cat /proc/self/cgroup /proc/self/mountinfo; echo done",
        slaves.display()
    );
    let mut task = small(&Value::Null, "t", &command);
    // The task may also show the output of a check.
    task["health_check"] = super::health("cat /proc/self/cgroup >&2");
    let text = printed(&cluster, &mut framework, task);
    assert!(text.ends_with("done\n"), "{text}");
    assert!(!text.contains("listed"), "{text}");
    assert!(!text.contains(&cluster.cgroups_root), "{text}");
    let run = sandbox(&cluster, &framework, "t");
    let errors = ["stderr", "health-check.log"]
        .map(|name| std::fs::read_to_string(run.join(name)).unwrap_or_default())
        .concat();
    assert!(!errors.contains(&cluster.cgroups_root), "{errors}");
    for folder in run
        .ancestors()
        .skip(1)
        .take_while(|path| path.starts_with(&slaves))
    {
        assert!(!as_nobody(folder, "ls"), "{}", folder.display());
    }
}

pub(super) fn core_files_need_request() {
    let cluster = open_cluster(&[]);
    let mut framework = framework_of_nobody(&cluster);
    let command = "ulimit -Sc; ulimit -Hc";
    let text = printed(
        &cluster,
        &mut framework,
        small(&Value::Null, "usual", command),
    );
    assert_eq!(text, "0\n0\n");
    let mut task = small(&Value::Null, "asks", command);
    task["container"] = json!({"type": "MESOS", "rlimit_info": {
        "rlimits": [{"type": "RLMT_CORE", "soft": 512_000, "hard": 1_024_000}]}});
    // The shell prints blocks of 512 bytes.
    assert_eq!(printed(&cluster, &mut framework, task), "1000\n2000\n");
}

fn without_a_filter(id: &str) -> Value {
    let mut task = small(&Value::Null, id, "grep ^Seccomp_filters: /proc/self/status");
    task["container"] = json!({"type": "MESOS", "linux_info": {"seccomp": {"unconfined": true}}});
    task
}

pub(super) fn unconfined_seccomp_needs_operator() {
    let cluster = open_cluster(&[]);
    let mut framework = framework_of_nobody(&cluster);
    let text = printed(&cluster, &mut framework, without_a_filter("t"));
    // A service manager's own filters also apply to the agent.
    let agent = std::fs::read_to_string(format!("/proc/{}/status", cluster.agent().pid()));
    let agent = agent.expect("the agent's status");
    let filters = agent
        .lines()
        .find(|line| line.starts_with("Seccomp_filters:"));
    assert_eq!(Some(text.trim_end()), filters);
    drop((framework, cluster));
    let cluster = open_cluster(&["--allow_unconfined_seccomp=false"]);
    let mut framework = framework_of_nobody(&cluster);
    let offer = framework.offer();
    let mut task = without_a_filter("t");
    task["agent_id"] = offer["agent_id"].clone();
    framework.launch(&offer, &[task]);
    let status = framework.until_state("t", "TASK_FAILED");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.contains("--allow_unconfined_seccomp"), "{status:#}");
}
