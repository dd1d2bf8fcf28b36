//! The three ways in which kill -9 loses a launch; reconciliation reports the truth.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use meseta_proto::mesos::v1::TaskStatus;
use meseta_proto::reconciler::{ReconcileIntervals, Reconciler};
use meseta_resources::time::Moment;
use meseta_tests::framework::framework_info;
use meseta_tests::{Cluster, Framework, Missing, kernel, unless_installed};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::anywhere;

meseta_tests::scenarios! {
    unless_curl:
        the_framework_dies_before_it_sends;
    anywhere:
        the_master_dies_before_it_receives,
        master_dies_before_forwarding_launch,
        master_dies_while_forwarding_launch;
}

/// The time for reconciliation to settle, including the agent's return.
const LIMIT: Duration = Duration::from_secs(90);

const INTENDED: [(&str, f64); 2] = [("cpus", 0.1), ("mem", 16.0)];

fn unless_curl() -> Missing {
    unless_installed("curl")
}

/// Reconciles a task as the reference reconciler does until a response comes, and returns the task's state.
fn truth(framework: &mut Framework, task: &str, agent: Option<&str>) -> String {
    let start = Instant::now();
    let mut reconciler = Reconciler::new(ReconcileIntervals {
        first_pause: Duration::from_millis(200),
        longest_pause: Duration::from_secs(2),
        ..ReconcileIntervals::default()
    });
    let now = || Moment::ORIGIN + start.elapsed();
    reconciler.track(task, agent);
    reconciler.start(now());
    while !reconciler.is_settled() {
        assert!(start.elapsed() < LIMIT, "{task} was not reconciled");
        while let Some(request) = reconciler.poll(now()) {
            framework.accepted(serde_json::to_value(request.into_call()).expect("JSON"));
        }
        let is_update = |event: &Value| event["type"] == "UPDATE";
        if let Ok(event) = framework.within(Duration::from_millis(50), &is_update) {
            let status: TaskStatus =
                serde_json::from_value(event["update"]["status"].clone()).expect("a status");
            reconciler.observe(now(), &status);
            framework.acknowledge(&event["update"]["status"]);
        }
    }
    let state = reconciler.state(task).expect("heard of");
    state.as_str_name().to_owned()
}

fn again(cluster: &Cluster, id: &str) -> Framework {
    let mut info = framework_info("dev");
    info["id"] = json!({"value": id});
    cluster.subscribe(&info)
}

/// Returns the agent's tasks with their states.
fn tasks_on_agent(cluster: &Cluster) -> BTreeMap<String, String> {
    let state = cluster.agent().page("/state").json();
    let frameworks = state["frameworks"].as_array().cloned().unwrap_or_default();
    let mut tasks = BTreeMap::new();
    for framework in frameworks {
        for executor in framework["executors"].as_array().into_iter().flatten() {
            for list in ["tasks", "queued_tasks"] {
                for task in executor[list].as_array().into_iter().flatten() {
                    let text = |key: &str| task[key].as_str().unwrap_or_default().to_owned();
                    tasks.insert(text("id"), text("state"));
                }
            }
        }
    }
    tasks
}

/// A process that is killed with SIGKILL when it is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("waited for");
    }
}

/// Starts a framework in a separate process, which holds an offer.
fn framework_process(cluster: &Cluster) -> (Process, String, String) {
    let call = json!({"type": "SUBSCRIBE", "subscribe": {"framework_info": framework_info("dev")}});
    let child = Command::new("curl")
        .args(["-sN", "-H", "Content-Type: application/json", "-d"])
        .arg(call.to_string())
        .arg(cluster.scheduler_url())
        .stdout(Stdio::piped())
        .spawn()
        .expect("curl runs");
    let mut process = Process(child);
    let mut output = process.0.stdout.take().expect("its output");
    // The last record does not end with a line feed.
    let mut seen = String::new();
    let after = |seen: &str, mark: &str| {
        let (text, _) = seen.split(mark).nth(1)?.split_once('"')?;
        Some(text.to_owned())
    };
    loop {
        let mut bytes = [0; 4096];
        let count = output.read(&mut bytes).expect("read");
        assert!(count > 0, "no offer in {seen}");
        seen += &String::from_utf8_lossy(&bytes[..count]);
        if let (Some(id), Some(agent)) = (
            after(&seen, "\"framework_id\":{\"value\":\""),
            after(&seen, "\"agent_id\":{\"value\":\""),
        ) {
            return (process, id, agent);
        }
    }
}

fn the_framework_dies_before_it_sends() {
    let cluster = Cluster::default();
    let (process, id, agent) = framework_process(&cluster);
    // The process has recorded the launch of "t", and dies.
    drop(process);
    let mut framework = again(&cluster, &id);
    assert_eq!(truth(&mut framework, "t", None), "TASK_UNKNOWN");
    assert_eq!(truth(&mut framework, "t", Some(&agent)), "TASK_GONE");
    assert!(tasks_on_agent(&cluster).is_empty());
    // The offered resources are free again.
    let offer = framework.offer();
    framework.launch_task(&offer, "t", "true", &INTENDED);
    framework.until_state("t", "TASK_FINISHED");
}

fn the_master_dies_before_it_receives() {
    let mut cluster = Cluster::default();
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let agent = offer["agent_id"]["value"]
        .as_str()
        .expect("an id")
        .to_owned();
    // The launch is on its way while no agent can accept it.
    cluster.master.kill();
    let id = framework.id.clone();
    drop(framework);
    cluster.restart_master();
    let mut framework = again(&cluster, &id);
    assert_eq!(truth(&mut framework, "t", Some(&agent)), "TASK_GONE");
    assert_eq!(truth(&mut framework, "t", None), "TASK_UNKNOWN");
    assert!(tasks_on_agent(&cluster).is_empty());
}

/// Launches `t` while the agent is stopped, and kills the master once it has accepted the call.
fn launch_into_the_void(cluster: &mut Cluster) -> (String, String) {
    let mut framework = cluster.framework();
    // An agent that has run a task has its id on disk, and comes back as the same agent.
    let offer = framework.offer();
    framework.launch_task(&offer, "first", "true", &INTENDED);
    framework.until_state("first", "TASK_FINISHED");
    let offer = framework.offer();
    kernel::kill(cluster.agent().pid(), Signal::SIGSTOP);
    framework.launch_task(&offer, "t", "exec sleep 600", &INTENDED);
    framework.accepted(json!({"type": "RECONCILE", "reconcile": {"tasks": []}}));
    assert_eq!(
        framework.update("t")["state"],
        "TASK_STAGING",
        "the master believes in it"
    );
    cluster.master.kill();
    let agent = offer["agent_id"]["value"]
        .as_str()
        .expect("an id")
        .to_owned();
    (framework.id.clone(), agent)
}

fn master_dies_before_forwarding_launch() {
    let mut cluster = Cluster::default();
    let (id, agent) = launch_into_the_void(&mut cluster);
    // Messages on the wire die with the agent, which comes back without the task.
    cluster.restart_agent(0);
    cluster.restart_master();
    let mut framework = again(&cluster, &id);
    assert_eq!(truth(&mut framework, "t", Some(&agent)), "TASK_GONE");
    assert_eq!(truth(&mut framework, "t", None), "TASK_UNKNOWN");
    assert!(tasks_on_agent(&cluster).is_empty());
}

fn master_dies_while_forwarding_launch() {
    let mut cluster = Cluster::default();
    let (id, agent) = launch_into_the_void(&mut cluster);
    kernel::kill(cluster.agent().pid(), Signal::SIGCONT);
    cluster.restart_master();
    let mut framework = again(&cluster, &id);
    // Both states are right, but master, agent and framework must agree.
    let state = truth(&mut framework, "t", Some(&agent));
    let on_agent = tasks_on_agent(&cluster);
    if state == "TASK_GONE" {
        assert!(on_agent.is_empty(), "{on_agent:?}");
    } else {
        assert!(
            ["TASK_STAGING", "TASK_STARTING", "TASK_RUNNING"].contains(&state.as_str()),
            "{state}"
        );
        assert!(on_agent.contains_key("t"), "{on_agent:?}");
        framework.kill("t");
        framework.until_state("t", "TASK_KILLED");
    }
}
