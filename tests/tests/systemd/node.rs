//! The machine: its services, a framework, and two tasks that must stay untouched.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use meseta_tests::framework::{framework_info, task};
use meseta_tests::{Encoding, Framework, http, kernel, wait};
use serde_json::{Value, json};

pub(crate) const AGENT: &str = "meseta-agent.service";
pub(crate) const MASTER: &str = "meseta-master.service";
pub(crate) const SCOPE: &str = "meseta-tasks.scope";
const AGENT_URL: &str = "http://127.0.0.1:5051";
const MASTER_URL: &str = "http://127.0.0.1:5050";
const TREE: &str = "/sys/fs/cgroup/meseta.slice/meseta-tasks.scope";

/// A patience for an emulated machine on a busy host: these tests do not measure speed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// A container, as the agent and the kernel know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Container {
    pub(crate) id: String,
    pub(crate) pid: i32,
    pub(crate) start: u64,
    pub(crate) group: PathBuf,
}

/// The machine under test, with its services.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) framework: Framework,
    /// The containers that live through the scenario.
    pub(crate) lasting: Vec<Container>,
}

impl Node {
    /// Starts both services, and two tasks.
    pub(crate) fn prepare() -> Self {
        for unit in [MASTER, AGENT] {
            systemctl(&["start", unit]);
        }
        registered();
        let mut node = Self {
            framework: subscribe(&framework_info("vm")),
            lasting: Vec::new(),
        };
        node.launch_lasting();
        node
    }

    /// Launches the tasks that live through the scenario.
    pub(crate) fn launch_lasting(&mut self) {
        for name in ["lasting-1", "lasting-2"] {
            let container = self.launch(name, "exec sleep 100000", &[("cpus", 0.1), ("mem", 64.0)]);
            self.lasting.push(container);
        }
    }

    /// Waits for the unrequested end of a task.
    pub(crate) fn until_ended(&mut self, name: &str) {
        let is_end = |event: &Value| {
            let status = &event["update"]["status"];
            let state = status["state"].as_str().unwrap_or_default();
            let has_ended = ["TASK_FAILED", "TASK_KILLED", "TASK_LOST", "TASK_GONE"];
            status["task_id"]["value"] == name && has_ended.contains(&state)
        };
        let event = self.framework.within(PATIENCE, &is_end);
        let event = event.unwrap_or_else(|why| panic!("{name} has not ended: {why}"));
        self.framework.acknowledge(&event["update"]["status"]);
    }

    /// Subscribes the framework again, after its stream ended with the master.
    pub(crate) fn subscribe_again(&mut self) {
        let mut info = framework_info("vm");
        info["id"] = json!({"value": self.framework.id});
        self.framework = subscribe(&info);
    }

    /// Checks that the lasting tasks are unchanged; ends everything.
    pub(crate) fn finish(mut self) {
        registered();
        self.undisturbed();
        for name in ["lasting-1", "lasting-2"] {
            self.framework.kill(name);
            self.framework.until_state(name, "TASK_KILLED");
        }
        self.framework.teardown();
        for container in &self.lasting {
            wait::eventually("the group is gone", PATIENCE, || {
                (!container.group.exists()).then_some(())
            });
        }
    }

    /// Checks that the lasting containers have the same processes, in the same groups, inside the scope.
    pub(crate) fn undisturbed(&self) {
        for container in &self.lasting {
            assert_eq!(
                kernel::start_time(container.pid),
                Some(container.start),
                "{container:?}"
            );
            assert_eq!(group_of(container.pid), container.group);
            assert!(container.group.starts_with(TREE), "{container:?}");
        }
    }

    /// Launches a task, and waits until it runs.
    pub(crate) fn launch(
        &mut self,
        name: &str,
        command: &str,
        resources: &[(&str, f64)],
    ) -> Container {
        self.launch_limited(name, command, resources, Value::Null)
    }

    /// Launches a task with `TaskInfo.limits`.
    pub(crate) fn launch_limited(
        &mut self,
        name: &str,
        command: &str,
        resources: &[(&str, f64)],
        limits: Value,
    ) -> Container {
        let command = json!({"value": command, "shell": true});
        self.launch_with(
            name,
            resources,
            json!({"command": command, "limits": limits}),
        )
    }

    /// Launches a task with these fields of `TaskInfo`; null means no field.
    pub(crate) fn launch_with(
        &mut self,
        name: &str,
        resources: &[(&str, f64)],
        fields: Value,
    ) -> Container {
        let offer = self.offer();
        let mut task = task(&offer, name, "", resources);
        let fields = fields.as_object().expect("fields");
        for (field, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            task[field] = value.clone();
        }
        self.framework.launch(&offer, &[task]);
        self.framework.until_state(name, "TASK_RUNNING");
        container(&self.framework.id, name)
    }

    /// Returns an offer that was not rescinded when the agent went.
    fn offer(&mut self) -> Value {
        loop {
            let offer = self.framework.offer();
            if self.framework.has_outstanding(&offer) {
                return offer;
            }
        }
    }

    /// Kills a task of a scenario and waits for its end.
    pub(crate) fn kill(&mut self, container: &Container, name: &str) {
        self.framework.kill(name);
        self.framework.until_state(name, "TASK_KILLED");
        wait::eventually("the group is gone", PATIENCE, || {
            (!container.group.exists()).then_some(())
        });
    }
}

fn subscribe(info: &Value) -> Framework {
    let url = format!("{MASTER_URL}/api/v1/scheduler");
    Framework::subscribe(&url, Encoding::Json, info)
}

/// Returns the container of a task, from `/containers` and the kernel.
fn container(framework: &str, task: &str) -> Container {
    let body = http::get(&format!("{AGENT_URL}/containers")).json();
    let entry = body
        .as_array()
        .expect("a list")
        .iter()
        .find(|entry| entry["framework_id"] == framework && entry["executor_id"] == task)
        .unwrap_or_else(|| panic!("no container of {task}: {body:#}"))
        .clone();
    let pid = entry["status"]["executor_pid"].as_i64().expect("a pid");
    let pid = i32::try_from(pid).expect("a pid");
    Container {
        id: entry["container_id"].as_str().expect("an id").to_owned(),
        pid,
        start: kernel::start_time(pid).expect("it runs"),
        group: group_of(pid),
    }
}

/// Returns a container's own folder: its process is in the leaf below.
fn group_of(pid: i32) -> PathBuf {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it runs");
    let path = text.trim().strip_prefix("0::/").expect("v2 alone");
    let leaf = PathBuf::from("/sys/fs/cgroup").join(path);
    leaf.parent().expect("a container's folder").to_owned()
}

/// Runs `systemctl`, which must succeed.
pub(crate) fn systemctl(args: &[&str]) -> String {
    let output = Command::new("systemctl")
        .args(args)
        .output()
        .expect("systemctl runs");
    assert!(
        output.status.success(),
        "systemctl {args:?}: {}",
        said(&output)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn said(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

/// Returns a property of a unit.
pub(crate) fn property(unit: &str, name: &str) -> String {
    let text = systemctl(&["show", "--value", "-p", name, unit]);
    text.trim().to_owned()
}

/// Waits until a property of a unit has the expected value.
pub(crate) fn until_property(unit: &str, name: &str, matches: impl Fn(&str) -> bool) -> String {
    wait::eventually(&format!("{name} of {unit}"), PATIENCE, || {
        let value = property(unit, name);
        matches(&value).then_some(value)
    })
}

pub(crate) fn main_pid() -> i32 {
    property(AGENT, "MainPID").parse().expect("a pid")
}

/// Waits until the agent is registered, as systemd and the master see it.
pub(crate) fn registered() {
    until_property(AGENT, "StatusText", |text| text.starts_with("Registered"));
    wait::eventually("the master has its agent", PATIENCE, || {
        let answer = http::try_get(&format!("{MASTER_URL}/slaves")).ok()?;
        let agents = answer.json();
        let agents = agents["slaves"].as_array()?;
        agents
            .iter()
            .any(|agent| agent["active"] == Value::Bool(true))
            .then_some(())
    });
}

/// Returns a page of the agent.
pub(crate) fn agent_page(path: &str) -> http::Answer {
    let answer = http::get(&format!("{AGENT_URL}{path}"));
    assert_eq!(answer.status, 200, "GET {path}: {}", answer.text());
    answer
}

/// Returns the value of a key in a control file of `key value` lines.
pub(crate) fn counted(container: &Container, file: &str, key: &str) -> u64 {
    let text = knob(container, file);
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok())
        .unwrap_or_else(|| panic!("{key} in {text}"))
}

/// Returns a control file of a container.
pub(crate) fn knob(container: &Container, file: &str) -> String {
    let path = container.group.join(file);
    let text = std::fs::read_to_string(&path);
    text.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the value of a container's series with this prefix.
pub(crate) fn metric(container: &Container, name: &str, label: &str) -> Option<f64> {
    let page = agent_page("/metrics").text();
    let line = page.lines().find(|line| {
        line.starts_with(name) && line.contains(&container.id) && line.contains(label)
    })?;
    line.rsplit(' ').next()?.parse().ok()
}
