//! A sample as plug-ins see it. Pure.
//!
//! Servers of gRPC take 4 MiB unless they are told otherwise. Invariant: however much frameworks say of their executors and
//! tasks, each executor is named with what it was allocated and what it uses; what it runs, and how, is left out.

use std::collections::BTreeMap;

use meseta_estimators::UsageSample;
use meseta_proto::convert::{self, Format};
use meseta_proto::meseta::v1 as wire;
use meseta_proto::mesos::v1 as pb;
use meseta_resources::{ContainerId, Resources};
use prost::Message as _;

use super::sample::labels;
use crate::clock::unix_now;
use crate::core::{Executor, Snapshot, Task};
use crate::monitor::Sample;
use crate::monitor::statistics::resource_statistics;

/// Of all executors in a message, with their tasks, names and labels: the rest of it is small.
const EXECUTORS_BYTES_MAX: usize = 3 << 20;
/// What a field costs beside its content, at most.
const FIELD_BYTES: usize = 8;

/// What Mesos's modules are given, with the machine beside it.
pub(super) fn message(
    sample: &UsageSample,
    snapshot: &Snapshot,
    readings: &BTreeMap<ContainerId, Sample>,
    enable_cfs: bool,
) -> wire::Usage {
    let live = snapshot.executors().filter(|executor| executor.is_live());
    let live = live.map(|executor| &**executor);
    wire::Usage {
        timestamp: unix_now().as_secs_f64(),
        resources: pb::ResourceUsage {
            executors: executors(live.collect(), readings, enable_cfs),
            total: resources(&snapshot.resources),
        },
        host: Some(host(&sample.host)),
    }
}

/// All of them; then their tasks, and then names and labels, the smallest first, for as long as there is room.
fn executors(
    live: Vec<&Executor>,
    readings: &BTreeMap<ContainerId, Sample>,
    enable_cfs: bool,
) -> Vec<pb::resource_usage::Executor> {
    let mut described: Vec<_> = live
        .iter()
        .map(|executor| described(executor, readings.get(&executor.key.container), enable_cfs))
        .collect();
    let sizes = described.iter().map(|one| one.encoded_len() + FIELD_BYTES);
    let mut room = EXECUTORS_BYTES_MAX.saturating_sub(sizes.sum());
    let mut with_tasks = Vec::new();
    for (index, executor) in live.iter().enumerate() {
        let tasks: Vec<_> = live_tasks(executor).map(bare).collect();
        let sizes = tasks.iter().map(|task| task.encoded_len() + FIELD_BYTES);
        with_tasks.push((sizes.sum::<usize>(), index, tasks));
    }
    with_tasks.sort_by_key(|(bytes, index, _)| (*bytes, *index));
    let mut words = Vec::new();
    for (bytes, index, tasks) in with_tasks {
        words.push(Words::of_executor(index, live[index]));
        if bytes > room {
            continue;
        }
        room -= bytes;
        described[index].tasks = tasks;
        let tasks = live_tasks(live[index]).enumerate();
        words.extend(tasks.map(|(task, info)| Words::of_task(index, task, info)));
    }
    words.sort_by_key(Words::bytes);
    for words in words {
        let Some(left) = room.checked_sub(words.bytes()) else {
            break;
        };
        room = left;
        words.put(&mut described);
    }
    described
}

/// What a framework calls something, and its labels: of any size.
struct Words<'a> {
    executor: usize,
    /// None for the executor itself.
    task: Option<usize>,
    name: String,
    source: &'a str,
    labels: Option<&'a pb::Labels>,
}

impl<'a> Words<'a> {
    fn of_executor(index: usize, executor: &'a Executor) -> Self {
        Self {
            executor: index,
            task: None,
            name: executor.name(),
            source: executor.source(),
            labels: labels(executor),
        }
    }

    fn of_task(executor: usize, index: usize, task: &'a Task) -> Self {
        Self {
            executor,
            task: Some(index),
            name: task.info.name.clone(),
            source: "",
            labels: task.info.labels.as_ref(),
        }
    }

    fn bytes(&self) -> usize {
        let labels = self.labels.map_or(0, prost::Message::encoded_len);
        self.name.len() + self.source.len() + labels + 3 * FIELD_BYTES
    }

    fn put(self, described: &mut [pb::resource_usage::Executor]) {
        let executor = &mut described[self.executor];
        let labels = self.labels.cloned();
        match self.task {
            Some(task) => {
                let task = &mut executor.tasks[task];
                (task.name, task.labels) = (self.name, labels);
            }
            None => {
                let info = &mut executor.executor_info;
                info.source = Some(self.source.to_owned());
                (info.name, info.labels) = (Some(self.name), labels);
            }
        }
    }
}

fn live_tasks(executor: &Executor) -> impl Iterator<Item = &Task> {
    let tasks = executor.tasks.values().map(|task| &**task);
    tasks.filter(|task| !task.is_terminal())
}

fn bare(task: &Task) -> pb::resource_usage::executor::Task {
    pb::resource_usage::executor::Task {
        name: String::new(),
        id: task.info.task_id.clone(),
        resources: task.info.resources.clone(),
        labels: None,
    }
}

/// An executor without its tasks, and without what its framework says of it.
fn described(
    executor: &Executor,
    reading: Option<&Sample>,
    enable_cfs: bool,
) -> pb::resource_usage::Executor {
    let info = executor.info.as_deref();
    pb::resource_usage::Executor {
        executor_info: pb::ExecutorInfo {
            r#type: info.and_then(|info| info.r#type),
            executor_id: pb::ExecutorId {
                value: executor.key.executor.to_string(),
            },
            framework_id: Some(pb::FrameworkId {
                value: executor.key.framework.to_string(),
            }),
            resources: info.map_or_else(Vec::new, |info| info.resources.clone()),
            ..pb::ExecutorInfo::default()
        },
        allocated: resources(&executor.allocated()),
        statistics: reading.map(|reading| resource_statistics(reading, enable_cfs)),
        container_id: pb::ContainerId {
            value: executor.key.container.to_string(),
            parent: None,
        },
        tasks: Vec::new(),
    }
}

fn resources(resources: &Resources) -> Vec<pb::Resource> {
    convert::to_resources(resources, Format::PostRefinement).unwrap_or_default()
}

fn host(host: &meseta_estimators::HostUsage) -> wire::HostUsage {
    let load = host.load;
    let cpu = host.regular_cpu_pressure.or(host.cpu_pressure);
    let memory = host.regular_memory_pressure.or(host.memory_pressure);
    wire::HostUsage {
        cpus: host.cpus,
        cpu_time_secs: host.cpu_time.map(|time| time.as_secs_f64()),
        load_1min: load.map(|load| load.one),
        load_5min: load.map(|load| load.five),
        load_15min: load.map(|load| load.fifteen),
        mem_total_bytes: host.memory.map(|memory| memory.total_bytes),
        mem_available_bytes: host.memory.map(|memory| memory.available_bytes),
        cpu_pressure_some_avg10: cpu.map(|pressure| pressure.some_avg10),
        memory_pressure_some_avg10: memory.map(|pressure| pressure.some_avg10),
        memory_pressure_full_avg10: memory.map(|pressure| pressure.full_avg10),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use meseta_isolators::Demand;
    use meseta_resources::{AgentId, ExecutorId, FrameworkId, Role, TaskId};

    use super::*;
    use crate::checkpoint::{Lsn, RunKey, TaskKey};
    use crate::core::{CheckState, Container, ExecutorKind, ExecutorLink};

    const MIB: usize = 1 << 20;

    fn labelled(bytes: usize) -> Option<pb::Labels> {
        let label = pb::Label {
            key: "k".to_owned(),
            value: Some("v".repeat(bytes)),
        };
        Some(pb::Labels {
            labels: vec![label],
        })
    }

    fn executor(id: &str, data_bytes: usize, label_bytes: usize) -> Executor {
        let id = ExecutorId::new(id).unwrap();
        let container = ContainerId::new(&format!("c-{id}")).unwrap();
        Executor {
            key: Arc::new(RunKey {
                agent: AgentId::new("a").unwrap(),
                framework: FrameworkId::new("f").unwrap(),
                executor: id.clone(),
                container: container.clone(),
            }),
            kind: ExecutorKind::Custom,
            info: Some(Arc::new(pb::ExecutorInfo {
                executor_id: pb::ExecutorId {
                    value: id.to_string(),
                },
                name: Some("a name".to_owned()),
                data: Some(vec![0; data_bytes]),
                labels: labelled(label_bytes),
                ..pb::ExecutorInfo::default()
            })),
            user: "nobody".to_owned(),
            resources: Resources::parse("cpus:1", &Role::star()).unwrap(),
            role: None,
            container: Container::new(container, Demand::default()),
            tasks: BTreeMap::new(),
            completed: VecDeque::new(),
            completed_bytes: 0,
            orphaned: false,
            link: ExecutorLink::default(),
        }
    }

    fn with_task(mut executor: Executor, id: &str, label_bytes: usize) -> Executor {
        let id = TaskId::new(id).unwrap();
        let info = pb::TaskInfo {
            name: "its name".to_owned(),
            task_id: pb::TaskId {
                value: id.to_string(),
            },
            labels: labelled(label_bytes),
            ..pb::TaskInfo::default()
        };
        let key = TaskKey {
            run: (*executor.key).clone(),
            task: id.clone(),
        };
        let task = Task {
            key: Arc::new(key),
            order: 0,
            info: Arc::new(info),
            user: "nobody".to_owned(),
            resources: Resources::parse("cpus:2", &Role::star()).unwrap(),
            role: None,
            state: pb::TaskState::TaskRunning,
            statuses: Vec::new(),
            sent: None,
            nested: None,
            demand: Demand::default(),
            group: None,
            delivered: true,
            delivered_after: Lsn::default(),
            may_run_unknown: false,
            check_state: CheckState::default(),
            healthy: None,
            check_status: None,
            kill_asked: None,
            ended_bytes: 0,
        };
        executor.tasks.insert(id, Arc::new(task));
        executor
    }
    fn told(executors: &[Executor]) -> Vec<pb::resource_usage::Executor> {
        super::executors(executors.iter().collect(), &BTreeMap::new(), false)
    }

    #[test]
    fn what_is_small_is_told_whole_but_for_what_is_run() {
        let told = told(&[with_task(executor("e", 100, 10), "t", 10)]);
        let [one] = &told[..] else {
            panic!("{told:?}");
        };
        let info = &one.executor_info;
        assert_eq!(
            (info.name.as_deref(), info.data.as_ref()),
            (Some("a name"), None)
        );
        assert_eq!(info.labels, labelled(10));
        assert_eq!(one.allocated[0].scalar.map(|cpus| cpus.value), Some(3.0));
        let task = &one.tasks[0];
        assert_eq!(
            (task.id.value.as_str(), task.name.as_str()),
            ("t", "its name")
        );
        assert_eq!(task.labels, labelled(10));
    }

    /// Found by reading: what one framework said of its executor and tasks made the question too large for any plug-in, and
    /// switched the controller off for everybody.
    #[test]
    fn no_framework_makes_the_question_too_large_for_a_plug_in() {
        let mut executors = vec![executor("data", 5 * MIB, 5 * MIB)];
        for index in 0..2000 {
            let small = executor(&format!("e{index:04}"), 0, 4096);
            executors.push(with_task(small, "t", 4096));
        }
        executors.push(with_task(executor("last", 0, 10), "t", 10));
        let told = told(&executors);
        let message = pb::ResourceUsage {
            executors: told.clone(),
            total: Vec::new(),
        };
        assert!(
            message.encoded_len() <= EXECUTORS_BYTES_MAX,
            "{}",
            message.encoded_len()
        );
        assert!(
            message.encoded_len() > EXECUTORS_BYTES_MAX / 2,
            "there was room"
        );
        assert_eq!(told.len(), executors.len());
        assert!(told.iter().all(|one| !one.allocated.is_empty()));
        assert!(told[1..].iter().all(|one| one.tasks.len() == 1));
        assert_eq!(told[0].executor_info.labels, None);
        let last = told.last().unwrap();
        assert_eq!(
            last.executor_info.labels,
            labelled(10),
            "the small ones come first"
        );
        assert_eq!(last.tasks[0].labels, labelled(10));
    }
}
