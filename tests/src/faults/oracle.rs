//! What must be so when a life is over: checkpoint, kernel and master say the same, and nothing is left over.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::calls;
use crate::{Cluster, http, kernel};

/// Descriptors of the agent above those that it had at first: connections, and those by which it hears of limits.
const DESCRIPTORS_MORE: usize = 40;
/// Checks of the tasks that go on, each with one before it that is being removed.
const CHECKS_MAX: usize = 6;

/// How everything was when only the tasks that go on were there.
#[derive(Debug)]
pub struct Baseline {
    standing: BTreeSet<String>,
    /// Processes of the tasks, and when they began; without those of checks.
    processes: BTreeSet<(i32, u64)>,
    /// The names of the containers' groups.
    containers: BTreeSet<String>,
    mounts: usize,
    runs: BTreeSet<PathBuf>,
    records: BTreeSet<PathBuf>,
    reserved: Value,
    descriptors: usize,
}

impl Baseline {
    pub fn of(cluster: &Cluster, standing: &[String]) -> Self {
        let agent = cluster.agent().page("/state").json();
        Self {
            standing: standing.iter().cloned().collect(),
            processes: lasting(cluster),
            containers: containers(cluster),
            mounts: mounts(cluster),
            runs: runs(cluster),
            records: records(cluster),
            reserved: agent["reserved_resources_full"].clone(),
            descriptors: descriptors(cluster),
        }
    }

    /// What is not as it was, after so many lives.
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
        let zombies = zombies(cluster.agent().pid());
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
        let dir = cluster.agent_dir(0);
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
            wrong.push(format!("the sandbox {} is still there", old.display()));
        }
        wrong
    }

    fn wrongs_told(&self, cluster: &Cluster) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut reserved = Vec::new();
        for (who, daemon) in [("master", &cluster.master), ("agent", cluster.agent())] {
            let Some(state) = page(&daemon.url, "/state") else {
                wrong.push(format!("the {who} does not answer"));
                continue;
            };
            differ(
                &mut wrong,
                &format!("tasks of the {who}"),
                &self.standing,
                &tasks(&state),
            );
        }
        if let Some(slaves) = page(&cluster.master.url, "/slaves") {
            let agent = &slaves["slaves"][0];
            if agent["active"] != true {
                wrong.push("the master has no active agent".to_owned());
            }
            reserved.push(("master", agent["reserved_resources_full"].clone()));
        }
        if let Some(state) = page(&cluster.agent().url, "/state") {
            reserved.push(("agent", state["reserved_resources_full"].clone()));
        }
        for (who, reserved) in reserved {
            if reserved != self.reserved {
                wrong.push(format!("to the {who} there is reserved {reserved}"));
            }
        }
        wrong
    }
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

/// Ids of all tasks in a master's or an agent's `/state` that have not ended.
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

/// The processes in containers but those that checks are made with, which come and go.
fn lasting(cluster: &Cluster) -> BTreeSet<(i32, u64)> {
    let sleeps = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with(b"sleep\0")
    };
    let pids = kernel::tasks_below(&cluster.cgroups_root);
    pids.into_iter()
        .filter(sleeps)
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

/// The folders of runs in the checkpoint.
fn runs(cluster: &Cluster) -> BTreeSet<PathBuf> {
    let is_run = |path: &PathBuf| path.parent().is_some_and(|above| above.ends_with("runs"));
    let all = below(&cluster.agent_dir(0).join("meta/slaves"), 7);
    all.into_iter().filter(is_run).collect()
}

/// What the runtime folder holds of containers but checks, which come and go; of those when they are too many.
fn records(cluster: &Cluster) -> BTreeSet<PathBuf> {
    let agents = entries(&cluster.agent_dir(0).join("run"));
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

/// Everything so many levels below a folder, without following links.
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

/// Children of a process that have ended and were not waited for.
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

/// What the agent has open, by kinds of files; without those of the kernel, which it keeps as long as it may.
fn open_files(cluster: &Cluster) -> BTreeMap<String, usize> {
    let pid = cluster.agent().pid();
    let mut kinds = BTreeMap::new();
    for one in entries(&PathBuf::from(format!("/proc/{pid}/fd"))) {
        let file = std::fs::read_link(one).unwrap_or_default();
        if file.starts_with("/sys") || file.starts_with("/proc") {
            continue;
        }
        let kind = calls::kind_of(&file, &cluster.agent_dir(0), &cluster.cgroups_root);
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}
