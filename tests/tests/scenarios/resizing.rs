//! Containers whose tasks come and go, and nested containers: limits in the kernel, and ports.

use std::time::Duration;

use meseta_tests::framework::task;
use meseta_tests::{Cluster, Framework, http, kernel, unless_root, wait};
use serde_json::{Value, json};

use crate::bursting::ContainerLimits;
use crate::enforcement::{statistics, with_flags};
use crate::probe;

meseta_tests::scenarios! {
    unless_root:
        group_limits_follow_tasks,
        limit_below_usage_waits,
        nested_limit_ends_own_task,
        ports_are_judged,
        ports_are_checked_after_restart,
        processes_are_counted_without_pids_isolator;
}

const MB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
const EXECUTOR: [(&str, f64); 3] = [("cpus", 0.1), ("mem", 32.0), ("disk", 8.0)];
const HARD: &[&str] = &["memory.limit_in_bytes", "memory.max"];
const WEIGHT: &[&str] = &["cpu.shares", "cpu.weight"];

fn launch_group(framework: &Framework, offer: &Value, executor: &str, tasks: &[Value]) {
    let resources = task(offer, "", "", &EXECUTOR)["resources"].clone();
    let executor = json!({
        "type": "DEFAULT", "executor_id": {"value": executor},
        "framework_id": {"value": framework.id}, "resources": resources,
    });
    let launch = json!({"type": "LAUNCH_GROUP", "launch_group": {
        "executor": executor, "task_group": {"tasks": tasks}}});
    framework.accepted(json!({"type": "ACCEPT", "accept": {
        "offer_ids": [offer["id"]], "operations": [launch], "filters": {"refuse_seconds": 0.0}}}));
}

/// Returns a task with its own cgroups.
fn apart(offer: &Value, id: &str, command: &str, cpus: f64, mem: f64) -> Value {
    let mut info = task(offer, id, command, &[("cpus", cpus), ("mem", mem)]);
    info["container"] = json!({"type": "MESOS", "linux_info": {"share_cgroups": false}});
    info
}

/// Waits until a task runs, and returns the names of its groups: the executor's, and its own.
fn running(framework: &mut Framework, id: &str) -> (String, String) {
    let status = framework.until_state(id, "TASK_RUNNING");
    let container = &status["container_status"]["container_id"];
    let name = |value: &Value| value["value"].as_str().expect("an id").to_owned();
    let own = format!("+{}", name(container));
    (name(&container["parent"]), own)
}

/// The numbers are those of Mesos for a group: the sum of the executor and its tasks.
fn group_limits_follow_tasks() {
    let mut cluster = Cluster::start(with_flags(&["--cgroups_enable_cfs"]));
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let one = apart(&offer, "one", "sleep 600", 0.1, 32.0);
    let mut two = apart(&offer, "two", "sleep 600", 0.1, 32.0);
    two["limits"] = json!({"cpus": {"value": 0.5}, "mem": {"value": 64.0}});
    launch_group(&framework, &offer, "e", &[one, two]);
    let (outer, first) = running(&mut framework, "one");
    let (_, second) = running(&mut framework, "two");
    let [outer, first, second] =
        [outer, first, second].map(|name| ContainerLimits::from_cluster(&cluster, &name));
    let knobs = |limits: &ContainerLimits| {
        let memory = (limits.soft_memory(), limits.hard_memory());
        (limits.cpu_quota_us(), memory)
    };
    let memory = |soft: u64, hard: u64| (Some(soft * MB), Some(hard * MB));
    assert_eq!(knobs(&outer), (Some(70_000), memory(96, 128)));
    assert_eq!(knobs(&first), (Some(10_000), memory(32, 32)));
    assert_eq!(knobs(&second), (Some(50_000), memory(32, 64)));
    let weight = outer.shares();
    assert!((300..=308).contains(&weight), "{weight}");
    // A third task comes and goes.
    let offer = framework.offer();
    let three = apart(&offer, "three", "sleep 600", 0.2, 64.0);
    launch_group(&framework, &offer, "e", &[three]);
    running(&mut framework, "three");
    assert_eq!(knobs(&outer), (Some(90_000), memory(160, 192)));
    framework.kill("three");
    framework.until_state("three", "TASK_KILLED");
    wait::eventually("its share is taken back", PATIENCE, || {
        (knobs(&outer) == (Some(70_000), memory(96, 128))).then_some(())
    });
    // Changes made while no agent ran are corrected.
    cluster.agents[0].kill();
    outer.write(HARD, &(512 * MB).to_string());
    second.write(WEIGHT, "777");
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    wait::eventually("all is set right", PATIENCE, || {
        let is_right = knobs(&outer) == (Some(70_000), memory(96, 128))
            && (100..=103).contains(&second.shares())
            && knobs(&second) == (Some(50_000), memory(32, 64));
        is_right.then_some(())
    });
    framework.kill("one");
    framework.until_state("one", "TASK_KILLED");
}

fn limit_below_usage_waits() {
    let cluster = Cluster::default();
    let mut framework = cluster.framework();
    let [begin, gate] = ["begin", "gate"].map(|name| cluster.dir.path().join(name));
    let offer = framework.offer();
    // The memory is 120 MB that cannot be reclaimed, from the first signal to the second.
    let until =
        |file: &std::path::Path| format!("while [ ! -e {} ]; do sleep 0.05; done", file.display());
    let hold = format!(
        "{}; (head -c 125829120 /dev/zero; {}) | tail >/dev/null; exec sleep 600",
        until(&begin),
        until(&gate)
    );
    let holds = task(&offer, "holds", &hold, &[("cpus", 0.1), ("mem", 64.0)]);
    launch_group(&framework, &offer, "e", &[holds]);
    let offer = framework.offer();
    let shrinking = task(
        &offer,
        "shrinking",
        "sleep 600",
        &[("cpus", 0.1), ("mem", 160.0)],
    );
    launch_group(&framework, &offer, "e", &[shrinking]);
    let (outer, _) = running(&mut framework, "shrinking");
    running(&mut framework, "holds");
    let outer = ContainerLimits::from_cluster(&cluster, &outer);
    assert_eq!(outer.hard_memory(), Some(256 * MB));
    std::fs::write(&begin, "").expect("written");
    wait::eventually("the memory is held", PATIENCE, || {
        let used = outer.number(&["memory.usage_in_bytes", "memory.current"])?;
        (used > 115 * MB).then_some(())
    });
    framework.kill("shrinking");
    framework.until_state("shrinking", "TASK_KILLED");
    // No task dies of it: only the request is smaller.
    assert_eq!(outer.hard_memory(), Some(256 * MB));
    assert_eq!(outer.soft_memory(), Some(96 * MB));
    std::fs::write(&gate, "").expect("written");
    wait::eventually("the limit is lowered", PATIENCE, || {
        (outer.hard_memory() == Some(96 * MB)).then_some(())
    });
    framework.kill("holds");
    framework.until_state("holds", "TASK_KILLED");
}

fn nested_limit_ends_own_task() {
    let (_cluster, mut framework, offer) = Cluster::with_offer();
    // Within the limit of the group, but beyond its own.
    let hog = "head -c 100m /dev/zero | tail -c 100m >/dev/null; exit $?";
    let hog = apart(&offer, "hog", hog, 0.1, 64.0);
    launch_group(&framework, &offer, "hogs", &[hog]);
    let offer = framework.offer();
    let calm = apart(&offer, "calm", "sleep 600", 0.1, 256.0);
    launch_group(&framework, &offer, "calm", &[calm]);
    let status = framework.until_state("hog", "TASK_FAILED");
    assert_eq!(
        status["reason"], "REASON_CONTAINER_LIMITATION_MEMORY",
        "{status:#}"
    );
    let message = status["message"].as_str().expect("a message");
    let begin = "Memory limit exceeded: Requested: 64MB";
    assert!(message.starts_with(begin), "{message}");
    running(&mut framework, "calm");
    framework.kill("calm");
    framework.until_state("calm", "TASK_KILLED");
}

fn listener(offer: &Value, id: &str, port: u16) -> Value {
    let program = std::env::current_exe().expect("a program");
    let command = format!("exec {} {} listen {port}", program.display(), probe::MARK);
    let mut info = task(offer, id, &command, &[("cpus", 0.1), ("mem", 64.0)]);
    if port > 0 {
        let range = json!({"name": "ports", "type": "RANGES",
                           "ranges": {"range": [{"begin": port, "end": port}]}});
        let resources = info["resources"].as_array_mut();
        resources.expect("resources").push(range);
    }
    info
}

/// Starts tasks that listen on allowed ports, on forbidden ports, and not at all: in groups, and alone.
fn listeners(framework: &mut Framework) {
    for (executor, id, port) in [("e", "good-nested", 31_017), ("f", "bad-nested", 0)] {
        let offer = framework.offer();
        launch_group(framework, &offer, executor, &[listener(&offer, id, port)]);
    }
    let offer = framework.offer();
    let silent = task(
        &offer,
        "silent",
        "sleep 600",
        &[("cpus", 0.1), ("mem", 64.0)],
    );
    let (good, bad) = (listener(&offer, "good", 31_018), listener(&offer, "bad", 0));
    framework.launch(&offer, &[silent, good, bad]);
}

fn only_the_bad_ones_end(framework: &mut Framework) {
    for id in ["bad", "bad-nested"] {
        let status = framework.until_state(id, "TASK_FAILED");
        assert_eq!(
            status["reason"], "REASON_CONTAINER_LIMITATION",
            "{status:#}"
        );
        let message = status["message"].as_str().expect("a message");
        let part = "is listening on unallocated port(s): [";
        assert!(message.contains(part), "{message}");
        let limited = &status["limitation"]["resources"][0]["name"];
        assert_eq!(limited, "ports", "{status:#}");
    }
    // The tasks were checked as often as the bad ones, and still exist.
    for id in ["silent", "good", "good-nested"] {
        framework.kill(id);
        framework.until_state(id, "TASK_KILLED");
    }
}

fn ports_are_judged() {
    let cluster = Cluster::start(with_flags(&[
        "--enforce_container_ports",
        "--container_ports_watch_interval=200ms",
    ]));
    let mut framework = cluster.framework();
    listeners(&mut framework);
    only_the_bad_ones_end(&mut framework);
}

fn ports_are_checked_after_restart() {
    let names = "--isolation=cgroups/cpu,cgroups/mem,namespaces/pid,namespaces/mnt,network/ports";
    let often = "--container_ports_watch_interval=200ms";
    let mut cluster = Cluster::start(with_flags(&[names, often]));
    let mut framework = cluster.framework();
    listeners(&mut framework);
    for id in ["good", "bad", "good-nested", "bad-nested"] {
        framework.until_state(id, "TASK_RUNNING");
    }
    // The ports are noticed and tolerated.
    wait::eventually("the ports are seen", PATIENCE, || {
        let log = cluster.agent().log_text();
        let part = "is listening on unallocated port(s)";
        (log.matches(part).count() >= 2).then_some(())
    });
    cluster.restart_agent_with(0, &["--enforce_container_ports"]);
    only_the_bad_ones_end(&mut framework);
}

fn processes_are_counted_without_pids_isolator() {
    let names = "--isolation=cgroups/cpu,cgroups/mem,namespaces/pid,namespaces/mnt";
    let mut cluster = Cluster::start(with_flags(&[names]));
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let resources = &[("cpus", 0.1), ("mem", 64.0)];
    let command = "sleep 600 & sleep 600";
    framework.run_task(&offer, "t", command, resources);
    wait::eventually("it is measured", PATIENCE, || {
        let found = statistics(&cluster);
        found["cpus_user_time_secs"].as_f64()?;
        assert_eq!(found["processes"], Value::Null, "{found:#}");
        Some(())
    });
    cluster.restart_agent_with(0, &["--cgroups_cpu_enable_pids_and_tids_count"]);
    cluster.wait_for_agents(1);
    wait::eventually("three processes are counted", PATIENCE, || {
        let url = format!("{}/monitor/statistics", cluster.agent().url);
        let answer = http::try_get(&url).ok()?;
        (answer.status == 200).then_some(())?;
        let found = answer.json()[0]["statistics"].clone();
        (found["processes"] == 3 && found["threads"] == 3).then_some(())
    });
    framework.kill("t");
    framework.until_state("t", "TASK_KILLED");
    assert_eq!(
        kernel::tasks_below(&cluster.cgroups_root),
        Vec::<i32>::new()
    );
}
