//! The checks after a life: checkpoint, kernel and master agree, and nothing is left over.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::calls;
use crate::{Cluster, executor, http, kernel};

/// The permitted growth of the agent's descriptors: connections, and those that report limits.
const DESCRIPTORS_MORE: usize = 40;
/// Checks of the long tasks, each with an earlier one that is being removed.
const CHECKS_MAX: usize = 6;

/// Parts of the command lines of lasting processes: sleepers, scripts that leave marks, executors.
const LASTING: [&str; 3] = ["sleep\0", "/marks/", executor::ARGUMENT];

/// The original state with the long tasks alone.
#[derive(Debug)]
pub struct Baseline {
    standing: BTreeSet<String>,
    /// Processes of the tasks, and their start times; without those of checks.
    processes: BTreeSet<(i32, u64)>,
    /// The names of the containers' cgroups.
    containers: BTreeSet<String>,
    mounts: usize,
    runs: BTreeSet<PathBuf>,
    records: BTreeSet<PathBuf>,
    /// The reservations on each agent.
    reserved: Vec<Value>,
    descriptors: usize,
}

impl Baseline {
    pub fn from_cluster(cluster: &Cluster, standing: &[String]) -> Self {
        let states = cluster.agents.iter();
        let states = states.map(|agent| agent.page("/state").json());
        let reserved = states.map(|state| state["reserved_resources_full"].clone());
        Self {
            standing: standing.iter().cloned().collect(),
            processes: lasting(cluster),
            containers: containers(cluster),
            mounts: mounts(cluster),
            runs: runs(cluster),
            records: records(cluster),
            reserved: reserved.collect(),
            descriptors: descriptors(cluster),
        }
    }

    /// Returns the number of lasting processes, without shells that have just begun.
    pub fn processes(&self) -> usize {
        self.processes.len()
    }

    /// Returns the differences from the original state, after this many lives.
    pub fn wrongs(&self, cluster: &Cluster, number: usize) -> Vec<String> {
        let mut wrong = self.wrongs_in_kernel(cluster);
        wrong.extend(self.wrongs_on_disk(cluster, number));
        wrong.extend(self.wrongs_told(cluster));
        wrong
    }

    fn wrongs_in_kernel(&self, cluster: &Cluster) -> Vec<String> {
        let mut wrong = Vec::new();
        let lasting = lasting(cluster);
        differ(&mut wrong, "processes", &self.processes, &lasting);
        differ(
            &mut wrong,
            "groups of containers",
            &self.containers,
            &containers(cluster),
        );
        let mounts = mounts(cluster);
        if mounts != self.mounts {
            wrong.push(format!("{mounts} mounts, not {}", self.mounts));
        }
        let agents = cluster.agents.iter();
        let zombies: usize = agents.map(|agent| zombies(agent.pid())).sum();
        if zombies > 0 {
            wrong.push(format!("{zombies} children have not been waited for"));
        }
        let descriptors = descriptors(cluster);
        if descriptors > self.descriptors + DESCRIPTORS_MORE {
            let before = self.descriptors;
            let files = open_files(cluster);
            wrong.push(format!(
                "{descriptors} descriptors, not {before}: {files:?}"
            ));
        }
        wrong
    }

    fn wrongs_on_disk(&self, cluster: &Cluster, number: usize) -> Vec<String> {
        let mut wrong = Vec::new();
        differ(
            &mut wrong,
            "runs in the checkpoint",
            &self.runs,
            &runs(cluster),
        );
        differ(
            &mut wrong,
            "records of containers",
            &self.records,
            &records(cluster),
        );
        for dir in work_dirs(cluster) {
            wrong.extend(left_on_disk(&dir, number));
        }
        wrong
    }

    fn wrongs_told(&self, cluster: &Cluster) -> Vec<String> {
        let mut wrong = Vec::new();
        let slaves = page(&cluster.master.url, "/slaves").unwrap_or_default();
        let slaves = slaves["slaves"].as_array().cloned().unwrap_or_default();
        let mut of_agents = BTreeSet::new();
        for (agent, expected) in cluster.agents.iter().zip(&self.reserved) {
            let Some(state) = page(&agent.url, "/state") else {
                wrong.push("an agent does not answer".to_owned());
                continue;
            };
            of_agents.extend(tasks(&state));
            let slave = slaves.iter().find(|slave| slave["id"] == state["id"]);
            if slave.is_none_or(|slave| slave["active"] != true) {
                wrong.push("the master has no active agent".to_owned());
            }
            let views = [("agent", Some(&state)), ("master", slave)];
            for (who, view) in views {
                let reserved = view.map(|view| &view["reserved_resources_full"]);
                if reserved.is_some_and(|reserved| reserved != expected) {
                    wrong.push(format!("to the {who} there is reserved {reserved:?}"));
                }
            }
        }
        differ(
            &mut wrong,
            "tasks of the agents",
            &self.standing,
            &of_agents,
        );
        match page(&cluster.master.url, "/state") {
            Some(state) => differ(
                &mut wrong,
                "tasks of the master",
                &self.standing,
                &tasks(&state),
            ),
            None => wrong.push("the master does not answer".to_owned()),
        }
        wrong
    }
}

fn work_dirs(cluster: &Cluster) -> Vec<PathBuf> {
    let agents = 0..cluster.agents.len();
    agents.map(|index| cluster.agent_dir(index)).collect()
}

/// Returns the remains in a work directory that should have gone: sandboxes of executors `NAME-LIFE` go two lives later.
fn left_on_disk(dir: &Path, number: usize) -> Vec<String> {
    let mut wrong = Vec::new();
    for folder in ["meta/retired", "meta/quarantine"] {
        let left = entries(&dir.join(folder));
        if !left.is_empty() {
            wrong.push(format!("{folder} holds {left:?}"));
        }
    }
    let old = below(&dir.join("slaves"), 5).into_iter().find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let life = name.rsplit_once('-').and_then(|(_, end)| end.parse().ok());
        path.parent()
            .is_some_and(|above| above.ends_with("executors"))
            && life.is_some_and(|life: usize| life + 1 < number)
            && !entries(&path.join("runs")).is_empty()
    });
    if let Some(old) = old {
        let left = entries(&old.join("runs"));
        wrong.push(format!("the sandbox {} still has {left:?}", old.display()));
    }
    wrong
}

fn differ<T: Ord + std::fmt::Debug>(
    wrong: &mut Vec<String>,
    what: &str,
    before: &BTreeSet<T>,
    now: &BTreeSet<T>,
) {
    let more: Vec<&T> = now.difference(before).collect();
    let gone: Vec<&T> = before.difference(now).collect();
    if !more.is_empty() {
        wrong.push(format!("{what} that were not there: {more:?}"));
    }
    if !gone.is_empty() {
        wrong.push(format!("{what} that are gone: {gone:?}"));
    }
}

fn page(url: &str, path: &str) -> Option<Value> {
    let answer = http::try_get(&format!("{url}{path}")).ok()?;
    (answer.status == 200).then(|| answer.json())
}

/// Returns the ids of all tasks in the `/state` of a master or an agent that have not ended.
pub(crate) fn tasks(state: &Value) -> BTreeSet<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut found = BTreeSet::new();
    for framework in list(&state["frameworks"]) {
        let mut tasks = list(&framework["tasks"]);
        tasks.extend(list(&framework["unreachable_tasks"]));
        for executor in list(&framework["executors"]) {
            tasks.extend(list(&executor["tasks"]));
            tasks.extend(list(&executor["queued_tasks"]));
        }
        found.extend(
            tasks
                .iter()
                .filter_map(|task| Some(task["id"].as_str()?.to_owned())),
        );
    }
    found
}

/// Returns the processes in containers except those of checks, which come and go.
fn lasting(cluster: &Cluster) -> BTreeSet<(i32, u64)> {
    let is_lasting = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        LASTING.iter().any(|part| line.contains(part))
    };
    let pids = kernel::tasks_below(&cluster.cgroups_root);
    pids.into_iter()
        .filter(is_lasting)
        .filter_map(|pid| Some((pid, kernel::start_time(pid)?)))
        .collect()
}

fn containers(cluster: &Cluster) -> BTreeSet<String> {
    let groups = kernel::groups_below(&cluster.cgroups_root);
    let names = groups
        .iter()
        .filter_map(|group| group.file_name()?.to_str().map(str::to_owned));
    names
        .filter(|name| name.len() == 36 && name.matches('-').count() == 4)
        .collect()
}

fn mounts(cluster: &Cluster) -> usize {
    kernel::mounts_like(&cluster.dir.path().display().to_string()).len()
}

/// Returns the folders of runs in the checkpoint.
fn runs(cluster: &Cluster) -> BTreeSet<PathBuf> {
    let is_run = |path: &PathBuf| path.parent().is_some_and(|above| above.ends_with("runs"));
    let dirs = work_dirs(cluster);
    let all = dirs
        .iter()
        .flat_map(|dir| below(&dir.join("meta/slaves"), 7));
    all.filter(is_run).collect()
}

/// Returns the records of containers in the runtime folder. Checks come and go, so they count only when they are too many.
fn records(cluster: &Cluster) -> BTreeSet<PathBuf> {
    let dirs = work_dirs(cluster);
    let agents: Vec<_> = dirs
        .iter()
        .flat_map(|dir| entries(&dir.join("run")))
        .collect();
    let all = agents
        .iter()
        .flat_map(|agent| entries(&agent.join("containers")));
    let (mut checks, mut rest): (BTreeSet<_>, BTreeSet<_>) =
        all.partition(|record| record.to_string_lossy().contains("check-"));
    if checks.len() > CHECKS_MAX {
        rest.append(&mut checks);
    }
    rest
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Returns everything this many levels below a folder, without following links.
fn below(dir: &Path, levels: usize) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in entries(dir) {
        if levels > 1 && path.is_dir() && !path.is_symlink() {
            found.extend(below(&path, levels - 1));
        }
        found.push(path);
    }
    found
}

/// Counts the ended children of a process for which it has not waited.
fn zombies(parent: i32) -> usize {
    let pids = entries(Path::new("/proc"));
    let pids = pids
        .iter()
        .filter_map(|path| path.file_name()?.to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        fields.next() == Some("Z") && fields.next() == Some(&parent.to_string())
    })
    .count()
}

fn descriptors(cluster: &Cluster) -> usize {
    open_files(cluster).values().sum()
}

/// Returns the number of the agent's open files by kind, without kernel files, which it may keep open.
fn open_files(cluster: &Cluster) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    let agents = cluster.agents.iter();
    let folders = agents.map(|agent| PathBuf::from(format!("/proc/{}/fd", agent.pid())));
    for one in folders.flat_map(|folder| entries(&folder)) {
        let file = std::fs::read_link(one).unwrap_or_default();
        if file.starts_with("/sys") || file.starts_with("/proc") {
            continue;
        }
        let kind = calls::kind_of(&file, &cluster.agent_dir(0), &cluster.cgroups_root);
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}
