//! An agent with an executor of each kind, and the expectations after its start with a damaged file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use meseta_tests::audit::Kind;
use meseta_tests::daemon::free_port;
use meseta_tests::dice::Dice;
use meseta_tests::faults::calls;
use meseta_tests::framework::task;
use meseta_tests::observed::Observed;
use meseta_tests::{Setup, executor, http, kernel, wait};
use serde_json::{Value, json};

use super::damage::Harm;

const SMALL: &[(&str, f64)] = &[("cpus", 0.05), ("mem", 32.0), ("disk", 2.0)];
const LIMIT: Duration = Duration::from_secs(30);
/// The names of executors, with the tasks of each.
const EXECUTORS: [(&str, &[&str]); 5] = [
    ("plain", &["plain"]),
    ("other", &["other"]),
    ("stored", &["stored"]),
    ("grouped", &["grouped-a", "grouped-b"]),
    ("custom", &["custom-a", "custom-b"]),
];

/// The result of one damage.
#[derive(Debug, Default)]
pub(crate) struct Trial {
    /// Whether the log names the file.
    pub(crate) is_named: bool,
    /// Executors that were lost.
    pub(crate) lost: Vec<String>,
    pub(crate) wrong: Vec<String>,
    pub(crate) log: String,
}

impl Trial {
    pub(crate) fn summary(&self) -> String {
        let named = if self.is_named { "named" } else { "not named" };
        format!("{named}, lost {:?}, {} wrong", self.lost, self.wrong.len())
    }
}

pub(crate) struct Node {
    observed: Observed,
    agent: String,
    /// Live executors with the names of their tasks; each name is used once.
    live: BTreeMap<String, Vec<String>>,
    number: usize,
    /// The process of each task, with its start time.
    processes: BTreeMap<String, (i32, u64)>,
    /// The first contents of each file.
    old: BTreeMap<PathBuf, Vec<u8>>,
}

impl Node {
    pub(crate) fn start() -> Self {
        let observed = Observed::start(Setup {
            agent_flags: vec![
                "--resources=cpus:8;mem:4096;disk:4096;ports:[31000-31999]".to_owned(),
                "--executor_reregistration_timeout=5secs".to_owned(),
                "--gc_delay=1secs".to_owned(),
                "--disk_watch_interval=200ms".to_owned(),
                "--registration_backoff_factor=10ms".to_owned(),
            ],
            master_flags: vec!["--allocation_interval=50ms".to_owned()],
            agent_port: Some(free_port()),
            ..Setup::default()
        });
        let mut node = Self {
            agent: observed.cluster.agent_id(),
            observed,
            live: BTreeMap::new(),
            number: 0,
            processes: BTreeMap::new(),
            old: BTreeMap::new(),
        };
        node.launch_missing();
        node
    }

    fn launch_missing(&mut self) {
        let missing = EXECUTORS
            .iter()
            .filter(|(name, _)| !self.live.contains_key(*name));
        let missing: Vec<_> = missing.collect();
        if missing.is_empty() {
            return;
        }
        let least = [("cpus", 2.0), ("mem", 1024.0), ("disk", 256.0)];
        let agent = self.agent.clone();
        let Some((offer, offers)) = self.observed.offer_of(&agent, &least) else {
            return;
        };
        self.number += 1;
        let mut operations = Vec::new();
        for (executor, tasks) in missing {
            self.launch(&offer, executor, tasks, &mut operations);
        }
        self.observed.accept(&offers, &json!(operations));
        let ids: Vec<_> = self.live.values().flatten().cloned().collect();
        self.observed.until("all run", LIMIT, |observed| {
            ids.iter().all(|id| observed.containers.contains_key(id))
        });
        let new: Vec<_> = ids
            .into_iter()
            .filter(|id| !self.processes.contains_key(id))
            .collect();
        self.observed.stand(&new);
        self.processes.clone_from(&self.observed.standing);
        for path in self.files().into_values().flatten() {
            if let Ok(bytes) = std::fs::read(&path) {
                self.old.entry(path).or_insert(bytes);
            }
        }
    }

    fn launch(&mut self, offer: &Value, name: &str, tasks: &[&str], operations: &mut Vec<Value>) {
        let ids = tasks.iter().map(|task| format!("{task}-{}", self.number));
        let ids: Vec<_> = ids.collect();
        let executor = format!("{name}-{}", self.number);
        let mut made = Vec::new();
        for id in &ids {
            let gate = self.observed.gate(id);
            let kind = Kind::Exits(0);
            made.push(self.observed.make(offer, id, kind, None, &gate, SMALL));
        }
        match name {
            "grouped" => operations.push(self.observed.group(offer, &executor, &made)),
            "custom" => {
                let resources = task(offer, "x", "", SMALL)["resources"].clone();
                let framework = &self.observed.frameworks[0].id;
                let info = executor::info(&executor, framework, &resources);
                made.iter_mut().for_each(|one| executor::assign(one, &info));
                operations.push(json!({"type": "LAUNCH", "launch": {"task_infos": made}}));
            }
            "stored" => {
                let disk = json!({"name": "disk", "type": "SCALAR", "scalar": {"value": 8.0},
                    "reservations": [{"type": "DYNAMIC", "role": "dev"}]});
                let mut volume = disk.clone();
                volume["disk"] = json!({"persistence": {"id": executor},
                    "volume": {"mode": "RW", "container_path": "data"}});
                operations.push(json!({"type": "RESERVE", "reserve": {"resources": [disk]}}));
                operations.push(json!({"type": "CREATE", "create": {"volumes": [volume]}}));
                let resources = made[0]["resources"].as_array_mut().expect("resources");
                resources.push(volume);
                operations.push(json!({"type": "LAUNCH", "launch": {"task_infos": made}}));
            }
            _ => operations.push(json!({"type": "LAUNCH", "launch": {"task_infos": made}})),
        }
        self.live.insert(name.to_owned(), ids);
    }

    /// Returns all files that may be damaged, by their kinds.
    pub(crate) fn files(&self) -> BTreeMap<String, Vec<PathBuf>> {
        let dir = self.observed.cluster.agent_dir(0);
        let mut found: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        let mut folders = vec![dir.join("meta"), dir.join("run")];
        while let Some(folder) = folders.pop() {
            let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            for entry in entries {
                let path = entry.path();
                let is_left_out = ["reserve", "quarantine", "retired"]
                    .iter()
                    .any(|name| path.ends_with(name));
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() && !is_left_out => folders.push(path),
                    Ok(kind) if kind.is_file() => {
                        let kind = calls::kind_of(&path, &dir, &self.observed.cluster.cgroups_root);
                        found.entry(without_names(&kind)).or_default().push(path);
                    }
                    _ => {}
                }
            }
        }
        found.values_mut().for_each(|paths| paths.sort());
        found
    }

    /// Kills the agent, damages the file, and starts the agent; returns `None` if the file is unchanged.
    pub(crate) fn damaged(&mut self, path: &Path, harm: Harm, dice: &mut Dice) -> Option<Trial> {
        let owner = self.owner_of(path);
        let log = self.observed.cluster.agent().log.clone();
        self.observed.cluster.agents[0].kill();
        if !harm.apply(path, self.old.get(path), dice) {
            self.observed.cluster.respawn_agent(0);
            self.until_back();
            return None;
        }
        let log_begins = std::fs::metadata(&log).map_or(0, |data| data.len());
        let mut trial = Trial::default();
        let others = self.live.iter();
        let others = others.filter(|(name, _)| Some(*name) != owner.as_ref());
        let others: Vec<String> = others.flat_map(|(_, ids)| ids.clone()).collect();
        // The other tasks may only be reported as running.
        self.observed.standing.retain(|id, _| others.contains(id));
        self.observed.cluster.respawn_agent(0);
        if !self.until_back() {
            trial.wrong.push("the agent did not come back".to_owned());
        }
        let mut left = Vec::new();
        let is_settled = wait::holds(LIMIT, || {
            self.observed.take_events(Duration::from_millis(20));
            left = self.unsettled(&others);
            left.is_empty()
        });
        if !is_settled {
            trial.wrong.append(&mut left);
        }
        trial.wrong.append(&mut self.observed.wrong);
        self.forget_the_lost(&mut trial);
        let bytes = std::fs::read(&log).unwrap_or_default();
        let start = usize::try_from(log_begins)
            .expect("a length")
            .min(bytes.len());
        trial.log = String::from_utf8_lossy(&bytes[start..]).into_owned();
        trial.is_named = is_named(&trial.log, path);
        if trial.log.contains("panicked") {
            trial.wrong.push("the agent panicked".to_owned());
        }
        if trial.wrong.is_empty() {
            if let Some(owner) = owner {
                self.end(&owner);
            }
            self.launch_missing();
            trial.wrong.append(&mut self.observed.wrong);
        }
        Some(trial)
    }

    /// Returns the executor of a file, by the names of the executor and of containers in its path.
    fn owner_of(&self, path: &Path) -> Option<String> {
        let path = path.to_string_lossy();
        let is_in = |ids: &Vec<String>| {
            ids.iter().any(|id| {
                let container = &self.observed.containers[id];
                let names = [&container["value"], &container["parent"]["value"]];
                let is_named = |name: &Value| name.as_str().is_some_and(|name| path.contains(name));
                names.into_iter().any(is_named)
            })
        };
        let mut live = self.live.iter();
        live.find(|(_, ids)| is_in(ids))
            .map(|(name, _)| name.clone())
    }

    /// Waits for the agent's registration, and returns whether it came.
    fn until_back(&mut self) -> bool {
        wait::holds(LIMIT, || {
            self.observed.take_events(Duration::from_millis(10));
            let cluster = &self.observed.cluster;
            let metrics = http::try_get(&format!("{}/metrics", cluster.agent().url));
            metrics.is_ok_and(|page| page.text().contains("meseta_agent_registered 1"))
        })
    }

    /// Returns the unmet expectations: other tasks continue; the owner's tasks continue, or are gone and reported.
    fn unsettled(&self, others: &[String]) -> Vec<String> {
        let mut left = Vec::new();
        let Some((known, containers)) = self.tasks_of_agent().zip(self.containers_of_agent())
        else {
            return vec!["the agent does not answer".to_owned()];
        };
        for (id, (pid, born)) in &self.processes {
            let lives = kernel::start_time(*pid) == Some(*born);
            // A task whose container is about to be destroyed does not continue.
            let is_known = known.contains(id) && containers.contains(&self.container_of(id));
            if others.contains(id) && !(lives && is_known) {
                left.push(format!("{id} lives: {lives}, is known: {is_known}"));
            } else if lives != is_known {
                left.push(format!(
                    "{id}, of the file: lives: {lives}, is known: {is_known}"
                ));
            } else if !lives && !self.observed.is_over(id) {
                left.push(format!("the end of {id} was not told"));
            }
        }
        left
    }

    /// Returns the page of the running containers.
    fn containers_of_agent(&self) -> Option<String> {
        let url = format!("{}/containers", self.observed.cluster.agent().url);
        let answer = http::try_get(&url).ok()?;
        (answer.status == 200).then(|| answer.text())
    }

    /// Returns the id of the container of a task's executor.
    fn container_of(&self, id: &str) -> String {
        let container = &self.observed.containers[id];
        let outer = match container["parent"]["value"].as_str() {
            Some(outer) => outer,
            None => container["value"].as_str().unwrap_or_default(),
        };
        outer.to_owned()
    }

    fn tasks_of_agent(&self) -> Option<BTreeSet<String>> {
        let url = format!("{}/state", self.observed.cluster.agent().url);
        let answer = http::try_get(&url).ok()?;
        let state = (answer.status == 200).then(|| answer.json())?;
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let mut found = BTreeSet::new();
        for framework in list(&state["frameworks"]) {
            for executor in list(&framework["executors"]) {
                let tasks = list(&executor["tasks"]);
                found.extend(
                    tasks
                        .iter()
                        .filter_map(|one| Some(one["id"].as_str()?.to_owned())),
                );
            }
        }
        Some(found)
    }

    /// Ends the executors that lost a task.
    fn forget_the_lost(&mut self, trial: &mut Trial) {
        let ended = |ids: &Vec<String>| ids.iter().any(|id| self.observed.is_over(id));
        let lost = self.live.iter().filter(|(_, ids)| ended(ids));
        trial.lost = lost.map(|(name, _)| name.clone()).collect();
        for name in &trial.lost {
            self.end(name);
        }
        self.observed.standing.clone_from(&self.processes);
    }

    /// Ends an executor, of which nothing more is expected. An executor that continues with a damaged file ends too: it can
    /// survive one damage, and two would prove nothing about either.
    fn end(&mut self, name: &str) {
        for id in self.live.remove(name).into_iter().flatten() {
            self.processes.remove(&id);
            self.observed.standing.remove(&id);
            if !self.observed.is_over(&id) {
                self.observed.kill(&id);
            }
        }
    }
}

/// Returns the kind of a path without the names of executor and task.
fn without_names(kind: &str) -> String {
    let mut parts: Vec<&str> = kind.split('/').collect();
    for at in 1..parts.len() {
        if matches!(parts[at - 1], "executors" | "tasks") {
            parts[at] = "NAME";
        }
    }
    parts.join("/")
}

/// Whether a warning or an error names this file, or its folder.
fn is_named(log: &str, path: &Path) -> bool {
    let path = path.to_string_lossy();
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let container = folder.rsplit('/').next().unwrap_or_default();
    log.lines().any(|line| {
        let is_loud = line.contains("WARN") || line.contains("ERROR");
        is_loud && (line.contains(&*path) || line.contains(folder) || line.contains(container))
    })
}
