//! The information that principals with few rights get about the work of others in a secured cluster, and the reach of
//! their requests.

use std::process::{Child, Command, Stdio};

use meseta_tests::daemon::binary;
use meseta_tests::http::Answer;
use meseta_tests::wait::eventually;
use serde_json::{Value, json};

use super::fleet::{Fleet, LIMIT};

/// A word in the name and the command of a task that only the administrator may see.
const CANARY: &str = "canary-7d1e";
/// Principals without rights over the task.
const OTHERS: [&str; 3] = ["ads", "node", "prometheus"];
/// Questions of the operator API of both daemons.
const QUESTIONS: [&str; 16] = [
    "GET_STATE",
    "GET_TASKS",
    "GET_FRAMEWORKS",
    "GET_EXECUTORS",
    "GET_CONTAINERS",
    "GET_OPERATIONS",
    "GET_AGENTS",
    "GET_AGENT",
    "GET_ROLES",
    "GET_QUOTA",
    "GET_WEIGHTS",
    "GET_FLAGS",
    "GET_METRICS",
    "GET_MASTER",
    "GET_MAINTENANCE_STATUS",
    "GET_LOGGING_LEVEL",
];

/// An operator's call about a container.
type CallOn<'a> = &'a dyn Fn(&str) -> Value;

/// A master, an agent, and an administrator's task in the role `eng` that runs as root.
struct Cluster {
    fleet: Fleet,
    master: usize,
    agent: usize,
    execute: Child,
    /// The ids of the framework, the task, the agent and the container.
    ids: [String; 4],
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.execute.kill();
        let _ = self.execute.wait();
    }
}

impl Cluster {
    fn start() -> Self {
        let mut fleet = Fleet::new();
        let master = fleet.start("master.example", "master", &[]);
        let address = fleet.daemons[master].address().to_owned();
        let agent = fleet.start("node1.example", "agent", &[format!("--master={address}")]);
        let home = fleet.path("principals/admin");
        let mut execute = Command::new(binary());
        execute
            .args([
                "execute",
                "--user=root",
                "--role=eng",
                "--resources=cpus:0.1;mem:32",
            ])
            .args(["--name", CANARY])
            .arg(format!("--command=: {CANARY}; exec sleep 600"))
            .env("MESETA_MASTER", &address)
            .env("MESETA_CA", home.join("ca.pem"))
            .env("MESETA_PRINCIPAL", "admin")
            .env("MESETA_SECRET_FILE", home.join("secret"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let execute = execute.spawn().expect("meseta runs");
        let ids = eventually("the task runs", LIMIT, || {
            let tasks = fleet.get(master, "admin", "/tasks")?.json();
            let task = &tasks["tasks"][0];
            let status = task["statuses"].as_array()?.last()?;
            let is_running = task["state"] == "TASK_RUNNING";
            let container = &status["container_status"]["container_id"]["value"];
            let ids = [
                &task["framework_id"],
                &task["id"],
                &task["slave_id"],
                container,
            ];
            let ids = ids.map(|id| id.as_str().unwrap_or_default().to_owned());
            (is_running && ids.iter().all(|id| !id.is_empty())).then_some(ids)
        });
        Self {
            fleet,
            master,
            agent,
            execute,
            ids,
        }
    }

    fn both(&self) -> [usize; 2] {
        [self.master, self.agent]
    }

    fn call(&self, daemon: usize, principal: &str, call: &Value) -> Answer {
        let url = format!("{}/api/v1", self.fleet.daemons[daemon].url);
        let secret = self.fleet.secret(principal);
        let who = Some((principal, secret.as_str()));
        let client = self.fleet.client();
        let answer = client.ask("POST", &url, who, &call.to_string());
        answer.expect("an answer")
    }

    /// Returns the words that identify the hidden work.
    fn words(&self) -> [&str; 3] {
        let [framework, _, _, container] = &self.ids;
        [CANARY, framework, container]
    }
}

/// Returns all readable paths of a daemon, from its description or the reference.
fn paths(cluster: &Cluster, daemon: usize) -> Vec<String> {
    let described = cluster.fleet.get(daemon, "admin", "/openapi.json");
    let described = described.filter(|answer| answer.status == 200);
    let Some(described) = described.map(|answer| answer.json()) else {
        let agents = [
            "/state",
            "/flags",
            "/containers",
            "/monitor/statistics",
            "/metrics",
            "/metrics/snapshot",
            "/files/debug",
            "/slave(1)/state",
        ];
        return agents.map(str::to_owned).to_vec();
    };
    let paths = described["paths"].as_object().expect("paths").iter();
    let read = paths.filter(|(path, methods)| methods.get("get").is_some() && !path.contains('{'));
    read.map(|(path, _)| path.clone()).collect()
}

pub(super) fn hidden_work_is_told_to_nobody() {
    let cluster = Cluster::start();
    let mut seen_by_admin = 0;
    for daemon in cluster.both() {
        let paths = paths(&cluster, daemon);
        assert!(paths.len() > 5, "{paths:?}");
        for path in &paths {
            let told = |principal: &str| {
                let answer = cluster.fleet.get(daemon, principal, path);
                answer.expect("an answer").text()
            };
            seen_by_admin += usize::from(told("admin").contains(CANARY));
            for principal in OTHERS {
                let text = told(principal);
                for word in cluster.words() {
                    assert!(!text.contains(word), "{principal} {path}: {word} in {text}");
                }
            }
        }
        for question in QUESTIONS {
            for principal in OTHERS {
                let text = cluster
                    .call(daemon, principal, &json!({"type": question}))
                    .text();
                for word in cluster.words() {
                    assert!(
                        !text.contains(word),
                        "{principal} {question}: {word} in {text}"
                    );
                }
            }
        }
    }
    assert!(seen_by_admin > 3, "{seen_by_admin} paths show the task");
}

/// Returns a response without the id in it.
fn without(id: &str, answer: &Answer) -> (u16, String) {
    (answer.status, answer.text().replace(id, "ID"))
}

pub(super) fn hidden_ids_answer_as_unknown_ids() {
    let cluster = Cluster::start();
    let [framework, task, agent, container] = &cluster.ids;
    // The fake ids have the length of the true ids, which the messages repeat.
    let nobody = |id: &str| -> String {
        let mut letters: Vec<char> = id.chars().collect();
        let last = letters.last_mut().expect("an id");
        *last = if *last == '8' { '9' } else { '8' };
        letters.into_iter().collect()
    };
    let [no_framework, no_task, no_container] = [framework, task, container].map(|id| nobody(id));
    let work_dir = cluster.fleet.dir.path().join("agent-1");
    let sandbox = |framework: &str| {
        let run = format!("frameworks/{framework}/executors/{task}/runs/latest/stdout");
        format!("{}/slaves/{agent}/{run}", work_dir.display())
    };
    let mut differ = Vec::new();
    for principal in OTHERS {
        let get = |daemon, path: &str| cluster.fleet.get(daemon, principal, path).expect("one");
        for (daemon, path, id, none) in [
            (
                cluster.master,
                "/frameworks?framework_id=",
                framework,
                &no_framework,
            ),
            (
                cluster.master,
                "/tasks?framework_id=",
                framework,
                &no_framework,
            ),
            (cluster.master, "/tasks?task_id=", task, &no_task),
            (
                cluster.master,
                "/explain?framework=",
                framework,
                &no_framework,
            ),
            (
                cluster.agent,
                "/files/browse?path=/framework/",
                framework,
                &no_framework,
            ),
        ] {
            let answers = [id, none].map(|id| without(id, &get(daemon, &format!("{path}{id}"))));
            if answers[0] != answers[1] {
                differ.push(format!("{principal} GET {path}: {answers:?}"));
            }
        }
        let answers = [framework.as_str(), no_framework.as_str()].map(|id| {
            let path = format!("/files/read?offset=0&path={}", sandbox(id));
            without(id, &get(cluster.agent, &path))
        });
        assert_eq!(answers[0].0, 403, "{principal} /files/read: {answers:?}");
        if answers[0] != answers[1] {
            differ.push(format!("{principal} /files/read: {answers:?}"));
        }
        let id = |id: &str| json!({"value": id});
        let calls: [(&str, CallOn<'_>); 6] = [
            (
                "WAIT_CONTAINER",
                &|c| json!({"type": "WAIT_CONTAINER", "wait_container": {"container_id": id(c)}}),
            ),
            (
                "KILL_CONTAINER",
                &|c| json!({"type": "KILL_CONTAINER", "kill_container": {"container_id": id(c)}}),
            ),
            (
                "REMOVE_CONTAINER",
                &|c| json!({"type": "REMOVE_CONTAINER", "remove_container": {"container_id": id(c)}}),
            ),
            (
                "ATTACH_CONTAINER_OUTPUT",
                &|c| json!({"type": "ATTACH_CONTAINER_OUTPUT", "attach_container_output": {"container_id": id(c)}}),
            ),
            ("LAUNCH_NESTED_CONTAINER", &|c| {
                json!({"type": "LAUNCH_NESTED_CONTAINER", "launch_nested_container": {
                "container_id": {"value": "n", "parent": id(c)}, "command": {"value": "true"}}})
            }),
            ("LAUNCH_NESTED_CONTAINER_SESSION", &|c| {
                json!({"type": "LAUNCH_NESTED_CONTAINER_SESSION", "launch_nested_container_session": {
                "container_id": {"value": "n", "parent": id(c)}, "command": {"value": "true"}}})
            }),
        ];
        for (name, call) in calls {
            let answers = [container, &no_container]
                .map(|id| without(id, &cluster.call(cluster.agent, principal, &call(id))));
            assert!((400..500).contains(&answers[0].0), "{name}: {answers:?}");
            if answers[0] != answers[1] {
                differ.push(format!("{principal} {name}: {answers:?}"));
            }
        }
        let teardown =
            |id: &str| json!({"type": "TEARDOWN", "teardown": {"framework_id": {"value": id}}});
        let answers = [framework, &no_framework]
            .map(|id| without(id, &cluster.call(cluster.master, principal, &teardown(id))));
        assert!((400..500).contains(&answers[0].0), "TEARDOWN: {answers:?}");
        if answers[0] != answers[1] {
            differ.push(format!("{principal} TEARDOWN: {answers:?}"));
        }
    }
    let tasks = cluster
        .fleet
        .get(cluster.master, "admin", "/tasks")
        .expect("one")
        .json();
    assert_eq!(tasks["tasks"][0]["state"], "TASK_RUNNING", "{tasks}");
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

pub(super) fn odd_paths_and_hosts_reach_nothing() {
    let cluster = Cluster::start();
    for daemon in cluster.both() {
        let url = &cluster.fleet.daemons[daemon].url;
        let client = cluster.fleet.client();
        let secret = cluster.fleet.secret("prometheus");
        let basic = meseta_access::basic::header("prometheus", secret.as_bytes());
        let process = if daemon == cluster.master {
            "master"
        } else {
            "slave(1)"
        };
        for path in [
            "/flags",
            "//flags",
            "/./flags",
            "/metrics/../flags",
            "/metrics/%2e%2e/flags",
            "/metrics%2f..%2fflags",
            "/metrics/..%5cflags",
            "/%66lags",
            "/flags/",
            "/flags;/metrics",
            "/flags?/metrics",
            "/flags%00/metrics",
            "/FLAGS",
            &format!("/{process}/flags"),
            &format!("/{process}/{process}/flags"),
            "/state",
            "/%73tate",
            "/slaves/../state",
        ] {
            let url = format!("{url}{path}");
            let by_nobody = client.send("GET", &url, &[], "").expect("an answer");
            assert!(
                (400..500).contains(&by_nobody.status),
                "{path}: {}",
                by_nobody.status
            );
            // A reader of metrics may only read metrics: lists are empty, and flags are hidden.
            let headers = [("authorization", basic.as_str())];
            let by_reader = client.send("GET", &url, &headers, "").expect("an answer");
            let text = by_reader.text();
            for word in cluster
                .words()
                .into_iter()
                .chain(["work_dir", "credentials"])
            {
                assert!(!text.contains(word), "{path}: {word} in {text}");
            }
        }
        let secret = cluster.fleet.secret("admin");
        let basic = meseta_access::basic::header("admin", secret.as_bytes());
        let authority = url.trim_start_matches("https://");
        for (headers, status) in [
            (vec![("host", authority)], 200),
            (vec![("host", "rebound.example")], 421),
            (vec![("host", "rebound.example:5050")], 421),
            (vec![("host", "127.0.0.1.rebound.example")], 421),
            (
                vec![("host", authority), ("x-forwarded-host", "rebound.example")],
                200,
            ),
            (
                vec![
                    ("host", authority),
                    ("origin", "https://rebound.example"),
                    ("sec-fetch-site", "cross-site"),
                ],
                403,
            ),
        ] {
            let mut all = headers.clone();
            all.extend([
                ("authorization", basic.as_str()),
                ("content-type", "application/json"),
            ]);
            let call = json!({"type": "SET_LOGGING_LEVEL", "set_logging_level": {
                "level": 0, "duration": {"nanoseconds": 1}}});
            let answer = client.send("POST", &format!("{url}/api/v1"), &all, &call.to_string());
            let answer = answer.expect("an answer");
            assert_eq!(answer.status, status, "{headers:?}: {}", answer.text());
        }
    }
}
