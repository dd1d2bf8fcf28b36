//! The life of an agent for each point: a start with long tasks, launches of every kind, kills, ends, a reservation, a
//! volume, and the collection of the earlier life's remains.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::injector::{Injector, Scene};
use super::ledger::{Fault, Point};
use super::oracle::Baseline;
use crate::audit::{self, Excuses, Kind, TaskRecord, is_terminal, observe};
use crate::daemon::free_port;
use crate::framework::task;
use crate::{Cluster, Framework, Setup, http, wait};

/// The time for which a killed agent looks alive, until its tracer has let it go: the master may have missed it for as
/// long.
const DYING: Duration = Duration::from_secs(1);
const SMALL: &[(&str, f64)] = &[("cpus", 0.1), ("mem", 32.0), ("disk", 8.0)];
/// The pause between two kills of one task, and between two looks at the agent.
const KILL_AGAIN: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(20);
/// The time for all updates of a life, on a busy machine.
const TELLING: Duration = Duration::from_secs(300);
/// The time for the original state to return afterwards.
const SETTLING: Duration = Duration::from_secs(180);
/// The number of ends in one life above which the agent does not recover.
const ENDS_MAX: usize = 12;

/// The result of a life.
#[derive(Debug)]
pub struct Outcome {
    /// The injected faults, each at a separate call.
    pub fired: Vec<(Point, Fault)>,
    /// The calls of the life, in their order.
    pub seen: Vec<Point>,
    pub wrong: Vec<String>,
    /// The number of times that the agent ended, by itself or killed.
    pub ends: usize,
    pub took: Duration,
    /// The log of the agent.
    pub log: String,
}

/// A cluster whose agent lives repeatedly, beside long tasks.
#[derive(Debug)]
pub struct Stage {
    cluster: Cluster,
    framework: Framework,
    marks: PathBuf,
    standing: Vec<String>,
    baseline: Option<Baseline>,
    number: usize,
    injector: Injector,
    /// The folder of the socket; dropped last.
    _dir: TempDir,
}

impl Stage {
    /// Starts everything and waits until the long tasks run.
    pub fn open() -> Self {
        let dir = TempDir::with_prefix("meseta-faults-").expect("a temporary directory");
        let injector = Injector::start(dir.path()).expect("a socket");
        let cluster = Cluster::start(Setup {
            master_flags: vec!["--allocation_interval=50ms".to_owned()],
            agent_flags: [
                "--resources=cpus:8;mem:4096;disk:4096;ports:[31000-31999]",
                "--gc_delay=2secs",
                "--disk_watch_interval=300ms",
                "--registration_backoff_factor=10ms",
            ]
            .map(str::to_owned)
            .to_vec(),
            agent_port: Some(free_port()),
            agent_prefix: injector.prefix(),
            ..Setup::default()
        });
        injector.set_scene(Scene {
            work_dir: cluster.agent_dir(0),
            log: cluster.agent().log.clone(),
            cgroups_root: cluster.cgroups_root.clone(),
        });
        let marks = cluster.dir.path().join("marks");
        std::fs::create_dir(&marks).expect("made");
        let framework = cluster.framework();
        let mut stage = Self {
            cluster,
            framework,
            marks,
            standing: Vec::new(),
            baseline: None,
            number: 0,
            injector,
            _dir: dir,
        };
        stage.stand();
        stage
    }

    /// Launches the long tasks: with checks of each kind, of a group, on a volume.
    fn stand(&mut self) {
        let offer = self.framework.offer();
        let (host, port) = split(self.cluster.master.address());
        let forever = "exec sleep 100000";
        let mut command = task(&offer, "standing-command", forever, SMALL);
        command["health_check"] = by_command();
        command["check"] = json!({"type": "COMMAND", "interval_seconds": 0.3, "delay_seconds": 0.0,
            "timeout_seconds": 300.0, "command": {"command": {"value": "exit 0"}}});
        let mut remote = task(&offer, "standing-remote", forever, SMALL);
        remote["health_check"] = json!({"type": "HTTP", "interval_seconds": 0.3, "delay_seconds": 0.0,
            "timeout_seconds": 300.0, "grace_period_seconds": 0.0, "consecutive_failures": 1,
            "http": {"scheme": "http", "port": port, "path": "/health", "statuses": [200]}});
        remote["check"] = json!({"type": "TCP", "interval_seconds": 0.3, "delay_seconds": 0.0,
            "timeout_seconds": 300.0, "tcp": {"port": port}});
        assert_eq!(host, "127.0.0.1", "checks are made there");
        let mut volume = task(&offer, "standing-volume", forever, SMALL);
        let resources = volume["resources"].as_array_mut().expect("resources");
        resources.push(volume_of(&disk(), "standing"));
        let grouped = ["standing-one", "standing-two"].map(|id| task(&offer, id, forever, SMALL));
        let operations = json!([
            {"type": "RESERVE", "reserve": {"resources": [disk()]}},
            {"type": "CREATE", "create": {"volumes": [volume_of(&disk(), "standing")]}},
            {"type": "LAUNCH", "launch": {"task_infos": [command, remote, volume]}},
            self.group(&offer, "standing-group", &grouped),
        ]);
        self.accept(&offer, &operations);
        for id in [
            "standing-command",
            "standing-remote",
            "standing-volume",
            "standing-one",
            "standing-two",
        ] {
            self.framework.until_state(id, "TASK_RUNNING");
            self.standing.push(id.to_owned());
        }
        let baseline = wait::eventually("all of them have begun", SETTLING, || {
            let baseline = Baseline::from_cluster(&self.cluster, &self.standing);
            // The processes are those of the tasks, and the one that keeps the group.
            (baseline.processes() > self.standing.len()).then_some(baseline)
        });
        self.baseline = Some(baseline);
    }

    fn group(&self, offer: &Value, id: &str, tasks: &[Value]) -> Value {
        let executor = json!({"type": "DEFAULT", "executor_id": {"value": id},
            "framework_id": {"value": self.framework.id},
            "resources": task(offer, "x", "", SMALL)["resources"]});
        json!({"type": "LAUNCH_GROUP", "launch_group": {
            "executor": executor, "task_group": {"tasks": tasks}}})
    }

    fn accept(&self, offer: &Value, operations: &Value) {
        self.framework.accepted(json!({"type": "ACCEPT", "accept": {
            "offer_ids": [offer["id"]], "operations": operations,
            "filters": {"refuse_seconds": 0.0}}}));
    }

    /// Delays each sync of the agent and its children from now on by this time.
    pub fn slow_syncs(&self, by: Duration) {
        self.injector.slow_syncs(by);
    }

    /// Returns the URL of the agent, which is the same in all lives.
    pub fn agent_url(&self) -> &str {
        &self.cluster.agent().url
    }

    /// Returns the key that signs executors' tokens, which is the same in all lives.
    pub fn executor_key(&self) -> Vec<u8> {
        let path = self.cluster.agent_dir(0).join("meta/executor_key");
        std::fs::read(path).expect("a key")
    }

    /// Plays one life with these faults.
    pub fn live(&mut self, faults: &[(Point, Fault)]) -> Outcome {
        let began = Instant::now();
        self.number += 1;
        let log_begins = std::fs::metadata(&self.cluster.agent().log).map_or(0, |data| data.len());
        self.injector.ledger().begin(faults.to_vec());
        // The time is read before the start: an agent may be registered a moment after it.
        let not_before = self.registered();
        self.cluster.respawn_agent(0);
        let mut life = Life {
            not_before,
            ..Life::default()
        };
        let is_error = |(_, fault): &(Point, Fault)| matches!(fault, Fault::Error { .. });
        life.excuses.launches_may_fail = faults.iter().any(is_error);
        self.play(&mut life);
        let mut ledger = self.injector.ledger();
        let seen = ledger.seen().to_vec();
        let fired = ledger.end();
        drop(ledger);
        let mut wrong = std::mem::take(&mut life.wrong);
        wrong.extend(audit::wrongs(&life.told, &self.marks, &life.excuses));
        wrong.extend(self.settle(&mut life));
        wrong.append(&mut life.wrong);
        let log = self.log_from(log_begins);
        if let Some(line) = log.lines().find(|line| line.contains("panicked")) {
            wrong.push(format!("the agent panicked: {line}"));
        }
        Outcome {
            fired,
            seen,
            wrong,
            ends: life.ends,
            took: began.elapsed(),
            log,
        }
    }

    fn log_from(&self, start: u64) -> String {
        let mut log = Vec::new();
        if let Ok(mut file) = OpenOptions::new()
            .read(true)
            .open(&self.cluster.agent().log)
            && file.seek(SeekFrom::Start(start)).is_ok()
        {
            let _ = file.read_to_end(&mut log);
        }
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Launches and kills until all updates have come.
    fn play(&mut self, life: &mut Life) {
        let end = Instant::now() + TELLING;
        let mut seen_alive = Instant::now();
        while !life.is_over() {
            if Instant::now() >= end {
                life.wrong
                    .push(format!("not all was told: {}", life.left()));
                return;
            }
            self.step(life, &mut seen_alive);
        }
    }

    /// Handles the next event, and restarts an agent that has ended.
    fn step(&mut self, life: &mut Life, seen_alive: &mut Instant) {
        let is_back = self.is_back(life);
        match self.framework.within(LOOK, &|_| true) {
            Ok(event) if event["type"] == "OFFERS" && is_back => self.offered(life, &event),
            Ok(event) if event["type"] == "OFFERS" => self.decline(&event),
            Ok(event) if event["type"] == "UPDATE" => {
                self.updated(life, &event["update"]["status"]);
            }
            Ok(_) | Err("time is up") => {}
            Err(why) => panic!("{why}"),
        }
        if self.cluster.agents[0].has_ended() {
            life.ends += 1;
            if life.ends > ENDS_MAX {
                self.injector.ledger().end();
                life.wrong
                    .push(format!("the agent ended {ENDS_MAX} times in one life"));
            }
            self.cluster.respawn_agent(0);
            let since = seen_alive.checked_sub(DYING).unwrap_or(*seen_alive);
            life.excuses.absences.push((since, Instant::now()));
        } else {
            *seen_alive = Instant::now();
        }
        for id in life.kills_due() {
            self.framework.kill(&id);
        }
    }

    /// Returns the time when the master last learned of the agent's start, in seconds; `None` before the first restart.
    fn registered(&self) -> Option<f64> {
        let slaves = http::try_get(&format!("{}/slaves", self.cluster.master.url)).ok()?;
        slaves.json()["slaves"][0]["reregistered_time"].as_f64()
    }

    /// Whether offers come from the agent that was started for this life.
    fn is_back(&mut self, life: &mut Life) -> bool {
        if !life.is_back && self.registered() != life.not_before {
            life.is_back = true;
            // Some offers belong to the agent's earlier process, and look the same.
            let is_offer = |event: &Value| event["type"] == "OFFERS";
            while let Ok(event) = self.framework.within(Duration::ZERO, &is_offer) {
                self.decline(&event);
            }
        }
        life.is_back
    }

    fn offered(&mut self, life: &mut Life, event: &Value) {
        for offer in event["offers"]["offers"].as_array().into_iter().flatten() {
            let undo = undo(offer);
            if !undo.is_empty() && life.told.values().all(TaskRecord::is_over) {
                self.accept(offer, &json!(undo));
            } else if life.told.is_empty() && is_enough(offer) {
                self.launch(life, offer);
            } else {
                self.framework.decline(offer, 0.1);
            }
        }
    }

    fn decline(&self, event: &Value) {
        for offer in event["offers"]["offers"].as_array().into_iter().flatten() {
            self.framework.decline(offer, 0.0);
        }
    }

    fn launch(&self, life: &mut Life, offer: &Value) {
        let mut make = |name: &str, kind: Kind, group: Option<usize>| {
            let id = format!("{name}-{}", self.number);
            let command = kind.script(&self.marks.join(&id), "sleep 0.3");
            life.told
                .insert(id.clone(), TaskRecord::launched(kind, group));
            task(offer, &id, &command, SMALL)
        };
        let mut exits = make("exits", Kind::Exits(3), None);
        exits["health_check"] = by_command();
        let killed = make("killed", Kind::KilledGently, None);
        let early = make("early", Kind::KilledEarly, None);
        let volume_id = format!("volume-{}", self.number);
        let mut volume = make("volume", Kind::Exits(0), None);
        let resources = volume["resources"].as_array_mut().expect("resources");
        resources.push(volume_of(&disk(), &volume_id));
        let one = make("one", Kind::Grouped, Some(1));
        let two = make("two", Kind::Grouped, Some(1));
        let operations = json!([
            {"type": "RESERVE", "reserve": {"resources": [disk()]}},
            {"type": "CREATE", "create": {"volumes": [volume_of(&disk(), &volume_id)]}},
            {"type": "LAUNCH", "launch": {"task_infos": [exits, killed, early, volume]}},
            self.group(offer, &format!("group-{}", self.number), &[one, two]),
        ]);
        self.accept(offer, &operations);
        self.kill(life, &format!("early-{}", self.number));
    }

    fn kill(&self, life: &mut Life, id: &str) {
        self.framework.kill(id);
        if let Some(told) = life.told.get_mut(id) {
            told.kill_asked = Some(Instant::now());
            life.killed.insert(id.to_owned(), Instant::now());
        }
    }

    fn updated(&self, life: &mut Life, status: &Value) {
        let id = status["task_id"]["value"].as_str().unwrap_or_default();
        self.framework.acknowledge(status);
        if self.standing.iter().any(|standing| standing == id) {
            life.wrong.extend(wrong_of_standing(status));
            return;
        }
        let Some(told) = life.told.get_mut(id) else {
            return;
        };
        if !told.record_update(status) {
            return;
        }
        if told.kind == Kind::KilledGently && status["state"] == "TASK_RUNNING" {
            self.kill(life, id);
        } else if is_terminal(status) && told.end.is_none() {
            told.end = Some(observe(&self.marks.join(id)));
        }
    }

    /// Waits until the original state is back; returns the differences.
    fn settle(&mut self, life: &mut Life) -> Vec<String> {
        let mut seen_alive = Instant::now();
        let mut wrong = Vec::new();
        wait::holds(SETTLING, || {
            self.step(life, &mut seen_alive);
            let baseline = self.baseline.as_ref().expect("taken at the start");
            wrong = baseline.wrongs(&self.cluster, self.number);
            wrong.is_empty()
        });
        wrong
    }
}

/// The progress of a life.
#[derive(Debug, Default)]
struct Life {
    /// The registration time of the earlier agent process, and whether the new one has registered.
    not_before: Option<f64>,
    is_back: bool,
    told: BTreeMap<String, TaskRecord>,
    /// The time of the last kill of each task.
    killed: BTreeMap<String, Instant>,
    excuses: Excuses,
    ends: usize,
    wrong: Vec<String>,
}

impl Life {
    fn is_over(&self) -> bool {
        !self.told.is_empty() && self.told.values().all(TaskRecord::is_over)
    }

    fn left(&self) -> String {
        let left = self.told.iter().filter(|(_, told)| !told.is_over());
        let left: Vec<&str> = left.map(|(id, _)| id.as_str()).collect();
        match self.told.is_empty() {
            true => "nothing was launched".to_owned(),
            false => left.join(", "),
        }
    }

    /// Returns the kills to send: a kill is lost with its agent.
    fn kills_due(&mut self) -> Vec<String> {
        let mut due = Vec::new();
        for (id, asked) in &mut self.killed {
            let is_over = self.told.get(id).is_none_or(TaskRecord::is_over);
            if !is_over && asked.elapsed() >= KILL_AGAIN {
                *asked = Instant::now();
                due.push(id.clone());
            }
        }
        due
    }
}

/// Returns the error in an update of a long task, if any.
fn wrong_of_standing(status: &Value) -> Option<String> {
    let is_right = status["state"] == "TASK_RUNNING"
        && status["healthy"] != false
        && matches!(
            status["check_status"]["command"]["exit_code"].as_i64(),
            None | Some(0)
        )
        && status["check_status"]["tcp"]["succeeded"] != false;
    let told = json!([
        status["task_id"]["value"],
        status["state"],
        status["reason"],
        status["message"],
        status["healthy"],
        status["check_status"]
    ]);
    (!is_right).then(|| format!("of a task that goes on it was told {told}"))
}

/// Releases a life's reservations, if the offer has them.
fn undo(offer: &Value) -> Vec<Value> {
    let mut operations = Vec::new();
    for resource in offer["resources"].as_array().into_iter().flatten() {
        if resource.get("reservations").is_none() {
            continue;
        }
        let mut bare = resource.clone();
        if let Some(fields) = bare.as_object_mut()
            && fields.remove("disk").is_some()
        {
            operations.push(json!({"type": "DESTROY", "destroy": {"volumes": [resource]}}));
        }
        operations.push(json!({"type": "UNRESERVE", "unreserve": {"resources": [bare]}}));
    }
    operations
}

/// Whether an offer has room for a life.
fn is_enough(offer: &Value) -> bool {
    let free = |name: &str| {
        let all = offer["resources"].as_array().into_iter().flatten();
        all.filter(|one| one["name"] == name && one.get("reservations").is_none())
            .filter_map(|one| one["scalar"]["value"].as_f64())
            .sum::<f64>()
    };
    free("cpus") >= 2.0 && free("mem") >= 1024.0 && free("disk") >= 512.0
}

fn disk() -> Value {
    json!({"name": "disk", "type": "SCALAR", "scalar": {"value": 16.0},
        "reservations": [{"type": "DYNAMIC", "role": "dev"}]})
}

fn volume_of(disk: &Value, id: &str) -> Value {
    let mut volume = disk.clone();
    volume["disk"] = json!({"persistence": {"id": id},
        "volume": {"mode": "RW", "container_path": "data"}});
    volume
}

/// Returns a health check by command that fails the task at the first failure.
fn by_command() -> Value {
    json!({"type": "COMMAND", "command": {"value": "true"}, "delay_seconds": 0.0,
        "interval_seconds": 0.3, "timeout_seconds": 300.0, "grace_period_seconds": 0.0,
        "consecutive_failures": 1})
}

fn split(address: &str) -> (&str, u16) {
    let (host, port) = address.rsplit_once(':').expect("a port");
    (host, port.parse().expect("a port"))
}
