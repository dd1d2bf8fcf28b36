//! Limits through the whole agent: disk, memory while no agent runs; and ends that cannot be delayed.

use std::time::{Duration, Instant};

use meseta_tests::framework::task;
use meseta_tests::{Cluster, Framework, Setup, http, kernel, unless_root, wait};
use serde_json::{Value, json};

meseta_tests::scenarios! {
    unless_root:
        sandbox_over_quota_ends_task,
        disk_use_is_reported_without_enforcement,
        oom_while_agent_down_keeps_reason,
        stubborn_processes_are_killed,
        sigterm_reaches_every_container_process,
        isolators_may_change_between_two_runs,
        two_agents_keep_containers_apart;
}

const SMALL: &[(&str, f64)] = &[("cpus", 0.1), ("mem", 64.0)];
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn with_flags(flags: &[&str]) -> Setup {
    let mut setup = Setup::default();
    setup
        .agent_flags
        .extend(flags.iter().map(|flag| (*flag).to_owned()));
    setup
}

const FILL: &str = "head -c 32m /dev/zero > big; sync big; sleep 600";

fn sandbox_over_quota_ends_task() {
    let cluster = Cluster::start(with_flags(&[
        "--enforce_container_disk_quota",
        "--container_disk_watch_interval=200ms",
    ]));
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let resources = &[("cpus", 0.1), ("mem", 64.0), ("disk", 8.0)];
    framework.launch_task(&offer, "full", FILL, resources);
    let status = framework.until_state("full", "TASK_FAILED");
    assert_eq!(
        status["reason"], "REASON_CONTAINER_LIMITATION_DISK",
        "{status:#}"
    );
    let message = status["message"].as_str().expect("a message");
    assert!(
        message.starts_with("Disk usage (") && message.contains("exceeds quota (8388608B)"),
        "{message}"
    );
    let limited = &status["limitation"]["resources"][0];
    assert_eq!(limited["name"], "disk", "{status:#}");
    assert!(
        limited["scalar"]["value"].as_f64().expect("MB") > 8.0,
        "{status:#}"
    );
}

/// Returns the statistics of the only container.
pub(crate) fn statistics(cluster: &Cluster) -> Value {
    let answer = http::get(&format!("{}/monitor/statistics", cluster.agent().url));
    answer.json()[0]["statistics"].clone()
}

fn disk_use_is_reported_without_enforcement() {
    let names = "--isolation=cgroups/cpu,cgroups/mem,disk/du";
    let mut cluster = Cluster::start(with_flags(&[
        names,
        "--container_disk_watch_interval=200ms",
    ]));
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let resources = &[("cpus", 0.1), ("mem", 64.0), ("disk", 8.0)];
    framework.run_task(&offer, "full", FILL, resources);
    let over = |cluster: &Cluster| {
        wait::eventually("the use is told", PATIENCE, || {
            let found = statistics(cluster);
            let used = found["disk_used_bytes"].as_u64()?;
            assert_eq!(found["disk_limit_bytes"], 8 << 20);
            (used > 8 << 20).then_some(())
        });
    };
    over(&cluster);
    // The second agent did not see the container start.
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    over(&cluster);
    framework.kill("full");
    framework.until_state("full", "TASK_KILLED");
}

fn oom_while_agent_down_keeps_reason() {
    let mut cluster = Cluster::default();
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let gate = cluster.dir.path().join("gate");
    let command = format!(
        "while [ ! -e {} ]; do sleep 0.05; done; exec head -c 200m /dev/zero | tail -c 200m >/dev/null",
        gate.display()
    );
    framework.run_task(&offer, "hog", &command, SMALL);
    cluster.agents[0].kill();
    std::fs::write(&gate, "").expect("written");
    wait::eventually("the kernel has killed", PATIENCE, || {
        let groups = kernel::groups_below(&cluster.cgroups_root);
        let texts = groups
            .iter()
            .flat_map(|group| ["memory.oom_control", "memory.events"].map(|file| group.join(file)));
        let killed = texts
            .filter_map(|file| std::fs::read_to_string(file).ok())
            .any(|text| {
                text.lines()
                    .filter_map(|line| line.strip_prefix("oom_kill "))
                    .any(|count| count != "0")
            });
        killed.then_some(())
    });
    cluster.restart_agent(0);
    let status = framework.until_state("hog", "TASK_FAILED");
    assert_eq!(
        status["reason"], "REASON_CONTAINER_LIMITATION_MEMORY",
        "{status:#}"
    );
    let message = status["message"].as_str().expect("a message");
    assert!(
        message.starts_with("Memory limit exceeded: Requested: 64MB"),
        "{message}"
    );
}

fn stubborn_processes_are_killed() {
    let (cluster, mut framework, offer) = Cluster::with_offer();
    let ignore = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
    let twice = format!("(setsid sh -c \"{ignore}\" &) ; (setsid sh -c \"{ignore}\" &) ; {ignore}");
    let tasks = [
        ("ignores", ignore.to_owned()),
        ("twice", twice),
        ("stops", "echo ready; kill -STOP $$; sleep 600".to_owned()),
    ];
    let infos = tasks.iter().map(|(id, command)| {
        let mut info = task(&offer, id, command, SMALL);
        info["kill_policy"] = json!({"grace_period": {"nanoseconds": 500_000_000_u64}});
        info
    });
    framework.launch(&offer, &infos.collect::<Vec<_>>());
    for (id, _) in &tasks {
        framework.until_state(id, "TASK_RUNNING");
        let path = format!(
            "/frameworks/{}/executors/{id}/runs/latest/stdout",
            framework.id
        );
        let url = format!("{}/files/read?path={path}&offset=0", cluster.agent().url);
        wait::eventually("the task is ready", PATIENCE, || {
            let answer = http::get(&url);
            let ready = answer.status == 200 && answer.text().contains("ready");
            ready.then_some(())
        });
    }
    let began = Instant::now();
    for (id, _) in &tasks {
        framework.kill(id);
    }
    for (id, _) in &tasks {
        framework.until_state(id, "TASK_KILLED");
    }
    eprintln!(
        "gone {:?} after the kill; the grace was 0.5 s",
        began.elapsed()
    );
    // A task reported as killed is gone: it has no process, and no group of a container.
    assert_eq!(
        kernel::tasks_below(&cluster.cgroups_root),
        Vec::<i32>::new()
    );
    let groups = kernel::groups_below(&cluster.cgroups_root);
    let left: Vec<_> = groups.iter().filter(|group| is_container(group)).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Whether a group is of a container, whose name is a uuid.
pub(crate) fn is_container(group: &std::path::Path) -> bool {
    let name = group.file_name().unwrap_or_default().to_string_lossy();
    name.len() == 36 && name.matches('-').count() == 4
}

fn sigterm_reaches_every_container_process() {
    let (cluster, mut framework, offer) = Cluster::with_offer();
    // One process left its session and its parent, and one stays in the task's group, which ends after it.
    let wait = "while :; do sleep 0.05; done";
    let command = format!(
        "(setsid sh -c \"trap 'echo away; : > away; exit 0' TERM; echo ready; {wait}\" &); \
         trap 'until [ -e away ]; do sleep 0.05; done; echo here; exit 0' TERM; echo ready; {wait}"
    );
    let mut info = task(&offer, "t", &command, SMALL);
    info["kill_policy"] = json!({"grace_period": {"nanoseconds": 15_000_000_000_u64}});
    framework.launch(&offer, &[info]);
    framework.until_state("t", "TASK_RUNNING");
    let path = format!(
        "/frameworks/{}/executors/t/runs/latest/stdout",
        framework.id
    );
    let url = format!("{}/files/read?path={path}&offset=0", cluster.agent().url);
    wait::eventually("both are ready", PATIENCE, || {
        let answer = http::get(&url);
        (answer.text().matches("ready").count() == 2).then_some(())
    });
    framework.kill("t");
    framework.until_state("t", "TASK_KILLED");
    let text = http::get(&url).text();
    assert!(text.contains("away") && text.contains("here"), "{text}");
}

/// Returns an offer that outlived the restart of its agent, or is newer.
pub(crate) fn standing_offer(framework: &mut Framework) -> Value {
    loop {
        let offer = framework.offer();
        let rescinded = |event: &Value| {
            event["type"] == "RESCIND" && event["rescind"]["offer_id"] == offer["id"]
        };
        // Offers rescinded by the restart were rescinded before the agent was back; the event may still be under way.
        let heard = framework.within(Duration::from_secs(1), &rescinded);
        if heard.is_err() && framework.has_outstanding(&offer) {
            return offer;
        }
    }
}

fn isolators_may_change_between_two_runs() {
    let start = "--isolation=cgroups/cpu,namespaces/pid,namespaces/mnt";
    let mut cluster = Cluster::start(with_flags(&[start]));
    let mut framework = cluster.framework();
    let more = "--isolation=cgroups/cpu,cgroups/mem,cgroups/pids,namespaces/pid,namespaces/mnt";
    for (id, isolation) in [("forward", more), ("backward", start)] {
        let offer = standing_offer(&mut framework);
        framework.run_task(&offer, id, "sleep 600", SMALL);
        cluster.restart_agent_with(0, &[isolation]);
        cluster.wait_for_agents(1);
        // Tasks started under other isolators are still measured, and end.
        wait::eventually("the task is measured", PATIENCE, || {
            statistics(&cluster)["cpus_user_time_secs"].as_f64()
        });
        let offer = standing_offer(&mut framework);
        let next = format!("after-{id}");
        framework.launch_task(&offer, &next, "true", SMALL);
        framework.until_state(&next, "TASK_FINISHED");
        framework.kill(id);
        framework.until_state(id, "TASK_KILLED");
    }
}

fn two_agents_keep_containers_apart() {
    let mut setup = Setup {
        agents: 2,
        ..Setup::default()
    };
    // Each is identified by its own unique part.
    setup.agent_flags = vec!["--resources=cpus:2;mem:1024".to_owned()];
    let mut cluster = Cluster::start(setup);
    let mut framework = cluster.framework();
    let (mut agents, mut tasks) = (Vec::new(), Vec::new());
    while agents.len() < 2 {
        let offer = framework.offer();
        let agent = offer["agent_id"]["value"]
            .as_str()
            .expect("an id")
            .to_owned();
        if agents.contains(&agent) {
            framework.decline(&offer, 0.1);
            continue;
        }
        let id = format!("on-{}", agents.len());
        let status = framework.run_task(&offer, &id, "exec sleep 600", SMALL);
        let pid = status["container_status"]["executor_pid"].as_i64();
        tasks.push(i32::try_from(pid.expect("a pid")).expect("a pid"));
        agents.push(agent);
    }
    let born = |pids: &[i32]| {
        pids.iter()
            .map(|pid| kernel::start_time(*pid))
            .collect::<Vec<_>>()
    };
    let before = born(&tasks);
    assert!(before.iter().all(Option::is_some), "{tasks:?}");
    // One agent is killed, comes back, and looks for orphans: it finds only its own.
    cluster.restart_agent(0);
    cluster.wait_for_agents(2);
    assert_eq!(born(&tasks), before, "a container was touched");
    cluster.agents[0].end(PATIENCE);
    // The kill removed the agent's own container only.
    let left: Vec<_> = born(&tasks).into_iter().flatten().collect();
    assert_eq!(left.len(), 1, "{left:?} of {before:?}");
}
