//! Fifty tasks of every kind continue through all kills: the same processes, no update except that they run, and each ends
//! by its own plan.
//!
//! Beside them: a session and a container nested in a task, which end with their agent; now and then the launcher or the
//! supervisor of a task is killed, or a task comes and goes.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::time::Duration;

use meseta_tests::audit::Kind;
use meseta_tests::dice::Dice;
use meseta_tests::executor;
use meseta_tests::faults::oracle::Baseline;
use meseta_tests::framework::task;
use meseta_tests::observed::{Observed, Outcome};
use meseta_tests::revocable::{revocable_framework, revocable_task, wait_for_revocable_offer};
use meseta_tests::{Framework, Setup, daemon::free_port, http, kernel, wait};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const SMALL: &[(&str, f64)] = &[("cpus", 0.05), ("mem", 32.0), ("disk", 2.0)];
const LIMIT: Duration = Duration::from_secs(60);
/// The number of kills between two full checks, at which a task comes and goes.
const LOOK_EACH: usize = 10;
const VOLUME_MB: f64 = 16.0;
const FIXED: &str = r#"{"libraries": [{"modules": [{"name": "org_apache_mesos_FixedResourceEstimator",
    "parameters": [{"key": "resources", "value": "cpus:4"}]}]}]}"#;

pub(crate) fn run(kills: usize, mut dice: Dice) -> Outcome {
    let mut observed = Observed::start(Setup {
        agent_flags: vec![
            "--resources=cpus:16;mem:8192;disk:4096;ports:[31000-31999]".to_owned(),
            "--executor_reregistration_timeout=30secs".to_owned(),
            "--resource_estimator=org_apache_mesos_FixedResourceEstimator".to_owned(),
            format!("--modules={FIXED}"),
            "--oversubscribed_resources_interval=200ms".to_owned(),
            "--gc_delay=2secs".to_owned(),
            "--disk_watch_interval=300ms".to_owned(),
        ],
        agent_port: Some(free_port()),
        ..Setup::default()
    });
    let agent = observed.cluster.agent_id();
    let ids = launch_all(&mut observed, &agent);
    let is_running = |observed: &Observed, id: &String| observed.containers.contains_key(id);
    observed.until("all run", LIMIT, |observed| {
        ids.iter().all(|id| is_running(observed, id))
    });
    observed.stand(&ids);
    let baseline = Baseline::from_cluster(&observed.cluster, &ids);
    for round in 0..kills {
        let session = nest(&observed, &ids[round % 8]);
        observed.take_events(Duration::from_millis(dice.roll(900)));
        if round % LOOK_EACH == LOOK_EACH / 2 {
            kill_launcher(&observed);
        }
        observed.restart_agent(0);
        drop(session);
        if round % LOOK_EACH == LOOK_EACH - 1 {
            observed.cluster.wait_for_agents(1);
            observed.check_standing(&format!("after {round} kills"));
            come_and_go(&mut observed, &agent, round);
        }
    }
    observed.check_standing("after all kills");
    settle(&mut observed, &baseline, kills);
    end_all(&mut observed, &ids);
    observed.judge()
}

/// Launches all tasks by kind, and returns their names.
fn launch_all(observed: &mut Observed, agent: &str) -> Vec<String> {
    let least = [("cpus", 8.0), ("mem", 4096.0), ("disk", 512.0)];
    let (offer, offers) = observed.offer_of(agent, &least).expect("an offer");
    let mut ids = Vec::new();
    let mut single = Vec::new();
    let mut operations = vec![json!({"type": "RESERVE", "reserve": {"resources":
        (0..6).map(|_| disk()).collect::<Vec<_>>()}})];
    let mut make = |observed: &mut Observed, id: String, kind, group, before: &str| {
        let nap = format!("{before}{}", observed.gate(&id));
        let made = observed.make(&offer, &id, kind, group, &nap, SMALL);
        ids.push(id);
        made
    };
    for number in 0..8 {
        let kind = [Kind::Exits(0), Kind::Exits(3)][number % 2];
        single.push(make(observed, format!("plain-{number}x"), kind, None, ""));
    }
    let port = observed.cluster.master.address().rsplit(':').next();
    let port: u16 = port.and_then(|port| port.parse().ok()).expect("a port");
    for number in 0..10 {
        let id = format!("checked-{number}x");
        let mut one = make(observed, id, Kind::Exits(0), None, "");
        check(&mut one, number, port);
        single.push(one);
    }
    for number in 0..6 {
        let id = format!("volume-{number}x");
        let keep = "echo kept > data/kept; ";
        let kind = Kind::Exits(4);
        let mut one = make(observed, id.clone(), kind, None, keep);
        let resources = one["resources"].as_array_mut().expect("resources");
        resources.push(volume(&id));
        operations.push(json!({"type": "CREATE", "create": {"volumes": [volume(&id)]}}));
        single.push(one);
    }
    for number in 0..4 {
        let resources = task(&offer, "x", "", SMALL)["resources"].clone();
        let framework = &observed.frameworks[0].id;
        let info = executor::info(&format!("custom-{number}x"), framework, &resources);
        for name in ["a", "b"] {
            let id = format!("custom-{number}{name}");
            let mut one = make(observed, id, Kind::Exits(5), None, "");
            executor::assign(&mut one, &info);
            single.push(one);
        }
    }
    operations.push(json!({"type": "LAUNCH", "launch": {"task_infos": single}}));
    for number in 0..5 {
        let mut tasks = Vec::new();
        for name in ["a", "b"] {
            let id = format!("group-{number}{name}");
            let mut one = make(observed, id, Kind::Grouped, Some(number), "");
            if number < 2 {
                one["container"] = json!({"type": "MESOS", "linux_info": {"share_cgroups": false}});
            }
            tasks.push(one);
        }
        operations.push(observed.group(&offer, &format!("group-{number}x"), &tasks));
    }
    observed.accept(&offers, &json!(operations));
    launch_revocable(observed, &mut ids);
    ids
}

fn launch_revocable(observed: &mut Observed, ids: &mut Vec<String>) {
    let mut batch = revocable_framework(&observed.cluster);
    let offer = wait_for_revocable_offer(&mut batch);
    let mut tasks = Vec::new();
    for number in 0..8 {
        let id = format!("revocable-{number}x");
        let nap = observed.gate(&id);
        let plain = observed.make(&offer, &id, Kind::Exits(6), None, &nap, SMALL);
        let command = plain["command"]["value"].as_str().expect("a command");
        tasks.push(revocable_task(&offer, &id, command, 0.1));
        ids.push(id);
    }
    batch.launch(&offer, &tasks);
    observed.frameworks.push(batch);
}

fn disk() -> Value {
    json!({"name": "disk", "type": "SCALAR", "scalar": {"value": VOLUME_MB},
        "reservations": [{"type": "DYNAMIC", "role": "dev"}]})
}

fn volume(id: &str) -> Value {
    let mut volume = disk();
    volume["disk"] = json!({"persistence": {"id": id},
        "volume": {"mode": "RW", "container_path": "data"}});
    volume
}

/// Gives a task a health check and a check, whose kinds alternate.
fn check(task: &mut Value, number: usize, port: u16) {
    let often = json!({"interval_seconds": 0.5, "delay_seconds": 0.0, "timeout_seconds": 120.0});
    let with = |mut part: Value, more: &Value| {
        for (name, value) in more.as_object().into_iter().flatten() {
            part[name] = value.clone();
        }
        part
    };
    let health = match number % 3 {
        0 => json!({"type": "COMMAND", "command": {"value": "true"}}),
        1 => json!({"type": "HTTP", "http": {"scheme": "http", "port": port, "path": "/health"}}),
        _ => json!({"type": "TCP", "tcp": {"port": port}}),
    };
    let strict = json!({"grace_period_seconds": 0.0, "consecutive_failures": 1});
    task["health_check"] = with(with(health, &often), &strict);
    let other = match number % 2 {
        0 => json!({"type": "TCP", "tcp": {"port": port}}),
        _ => json!({"type": "COMMAND", "command": {"command": {"value": "exit 0"}}}),
    };
    task["check"] = with(other, &often);
}

/// Opens a lasting session in a task, and nests a lasting container in it; returns `None` if the agent does not answer yet.
fn nest(observed: &Observed, id: &str) -> Option<impl std::io::Read + use<>> {
    let parent = observed.containers.get(id)?;
    let url = format!("{}/api/v1", observed.cluster.agent().url);
    let name = |what: &str| json!({"value": format!("{what}-{}", uuid()), "parent": parent});
    let command = json!({"value": "exec sleep 100000"});
    let nested = json!({"type": "LAUNCH_NESTED_CONTAINER",
        "launch_nested_container": {"container_id": name("nested"), "command": command}});
    let headers = [("content-type", "application/json")];
    let _ = http::try_post(&url, &headers, nested.to_string().as_bytes());
    let command = json!({"value": "echo here; exec sleep 100000"});
    let session = json!({"type": "LAUNCH_NESTED_CONTAINER_SESSION",
        "launch_nested_container_session": {"container_id": name("session"), "command": command}});
    let mut stream = http::try_stream(&url, &session).ok()?;
    // The session runs once it has sent a byte.
    let mut first = [0; 1];
    stream.read_exact(&mut first).ok()?;
    Some(stream)
}

fn uuid() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid").expect("a uuid");
    text.trim().to_owned()
}

fn kill_launcher(observed: &Observed) {
    let agent = observed.cluster.agent().pid();
    let of_agent = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.rsplit(") ").next().unwrap_or_default();
        rest.split(' ').nth(1) == Some(&agent.to_string())
    };
    let ours = kernel::processes_below(&observed.cluster.cgroups_root);
    for pid in ours.into_iter().filter(of_agent) {
        kernel::kill(pid, Signal::SIGKILL);
    }
}

/// Runs a task to its end, and kills the supervisor of another task, which ends that task alone.
fn come_and_go(observed: &mut Observed, agent: &str, round: usize) {
    let Some((offer, offers)) = observed.offer_of(agent, SMALL) else {
        return;
    };
    let (late, orphan) = (format!("late-{round}"), format!("orphan-{round}"));
    let one = observed.make(&offer, &late, Kind::Exits(0), None, "sleep 0.1", SMALL);
    let before: BTreeSet<i32> = supervisors(observed);
    let operations = json!([{"type": "LAUNCH", "launch": {"task_infos": [one]}}]);
    observed.accept(&offers, &operations);
    observed.until("a new task has ended", LIMIT, |observed| {
        observed.is_over(&late)
    });
    let Some((offer, offers)) = observed.offer_of(agent, SMALL) else {
        return;
    };
    let two = task(&offer, &orphan, "exec sleep 100000", SMALL);
    observed.accept(
        &offers,
        &json!([{"type": "LAUNCH", "launch": {"task_infos": [two]}}]),
    );
    let is_new = |observed: &Observed| supervisors(observed).difference(&before).next().copied();
    observed.until("the supervisor is there", LIMIT, |observed| {
        is_new(observed).is_some()
            && kernel::tasks_below(&observed.cluster.cgroups_root)
                .iter()
                .any(|pid| {
                    std::fs::read(format!("/proc/{pid}/cmdline"))
                        .is_ok_and(|line| line == b"sleep\x00100000\x00")
                })
    });
    if let Some(pid) = is_new(observed) {
        kernel::kill(pid, Signal::SIGKILL);
    }
}

/// Returns the supervisors of this cluster's containers, without the launcher.
fn supervisors(observed: &Observed) -> BTreeSet<i32> {
    let all = kernel::processes_below(&observed.cluster.cgroups_root);
    let tasks: BTreeSet<i32> = kernel::tasks_below(&observed.cluster.cgroups_root)
        .into_iter()
        .collect();
    let agent = observed.cluster.agent().pid();
    let is_launcher = |pid: i32| {
        let children = format!("/proc/{agent}/task/{agent}/children");
        let of_agent = std::fs::read_to_string(children).unwrap_or_default();
        of_agent
            .split_whitespace()
            .any(|child| child == pid.to_string())
    };
    all.into_iter()
        .filter(|pid| !tasks.contains(pid) && !is_launcher(*pid))
        .collect()
}

fn settle(observed: &mut Observed, baseline: &Baseline, number: usize) {
    let mut wrong = Vec::new();
    wait::holds(LIMIT, || {
        observed.take_events(Duration::from_millis(50));
        wrong = baseline.wrongs(&observed.cluster, number);
        wrong.is_empty()
    });
    observed.wrong.append(&mut wrong);
}

/// Ends all tasks, and checks that they leave nothing behind.
fn end_all(observed: &mut Observed, ids: &[String]) {
    observed.standing.clear();
    ids.iter().for_each(|id| observed.open_gate(id));
    observed.until("all have ended", LIMIT, |observed| {
        ids.iter().all(|id| observed.is_over(id))
    });
    for id in ids.iter().filter(|id| id.starts_with("volume-")) {
        let kept = observed
            .cluster
            .agent_dir(0)
            .join("volumes/roles/dev")
            .join(id);
        if std::fs::read_to_string(kept.join("kept")).ok().as_deref() != Some("kept\n") {
            observed
                .wrong
                .push(format!("the data of {id} is not there"));
        }
    }
    // The executors of frameworks outlive their tasks.
    let subscribed = std::mem::take(&mut observed.frameworks);
    subscribed.iter().for_each(Framework::teardown);
    let empty = wait::holds(LIMIT, || {
        kernel::tasks_below(&observed.cluster.cgroups_root).is_empty()
    });
    if !empty {
        let left = kernel::tasks_below(&observed.cluster.cgroups_root);
        observed
            .wrong
            .push(format!("processes are left in containers: {left:?}"));
    }
}
