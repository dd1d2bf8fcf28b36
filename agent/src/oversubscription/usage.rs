//! Converts a sample to the message for plug-ins. Pure.
//!
//! gRPC servers accept 4 MiB by default. Invariant: for any sizes of frameworks' data about executors, tasks and
//! reservations, the message names each executor with its allocation and usage. It omits the command and its
//! environment. With very many executors it contains fewer statistics.

use std::collections::BTreeMap;

use meseta_estimators::UsageSample;
use meseta_proto::convert::{self, Format};
use meseta_proto::meseta::v1 as wire;
use meseta_proto::mesos::v1 as pb;
use meseta_resources::{ContainerId, Resource, Resources};

use super::sample::labels;
use crate::clock::unix_now;
use crate::core::{Executor, Snapshot, Task};
use crate::monitor::Sample;
use crate::monitor::statistics::resource_statistics;

/// Bytes of all executors in a message, with their tasks, names and labels: the rest of the message is small.
const EXECUTORS_BYTES_MAX: usize = 3 << 20;
/// Bytes of all executors with their full statistics, which have priority over the limit above: together with the
/// machine's resources they are less than a server accepts. Beyond this limit only the statistics of CPU and memory
/// usage remain.
const STATISTICS_BYTES_MAX: usize = EXECUTORS_BYTES_MAX + (448 << 10);
/// Bytes of the machine's resources, with reservations and volumes.
const TOTAL_BYTES_MAX: usize = 512 << 10;
/// The most bytes of a field besides its content.
const FIELD_BYTES: usize = 8;

/// The data that Mesos passes to modules, and the machine's values.
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
            total: total(&snapshot.resources),
        },
        host: Some(host(&sample.host)),
    }
}

/// The machine's resources with reservations and volumes, unless these are too large.
fn total(all: &Resources) -> Vec<pb::Resource> {
    let told = resources(all);
    if bytes_of(&told) <= TOTAL_BYTES_MAX {
        return told;
    }
    resources(&amounts(all))
}

/// Describes all executors; then their tasks, and then details of both, the smallest first, while there is room.
fn executors(
    live: Vec<&Executor>,
    readings: &BTreeMap<ContainerId, Sample>,
    enable_cfs: bool,
) -> Vec<pb::resource_usage::Executor> {
    let mut described: Vec<_> = live
        .iter()
        .map(|executor| described(executor, readings.get(&executor.key.container), enable_cfs))
        .collect();
    if bytes_of(&described) > STATISTICS_BYTES_MAX {
        for executor in &mut described {
            executor.statistics = executor.statistics.as_ref().map(of_use);
        }
    }
    let mut room = EXECUTORS_BYTES_MAX.saturating_sub(bytes_of(&described));
    let mut with_tasks = Vec::new();
    for (index, executor) in live.iter().enumerate() {
        let tasks: Vec<_> = live_tasks(executor).map(bare).collect();
        with_tasks.push((bytes_of(&tasks), index, tasks));
    }
    with_tasks.sort_by_key(|(bytes, index, _)| (*bytes, *index));
    let mut details = Vec::new();
    for (bytes, index, tasks) in with_tasks {
        details.extend(Detail::of_executor(index, live[index]));
        if bytes > room {
            continue;
        }
        room -= bytes;
        described[index].tasks = tasks;
        let tasks = live_tasks(live[index]).enumerate();
        details.extend(tasks.flat_map(|(task, info)| Detail::of_task(index, task, info)));
    }
    details.sort_by_key(|detail| detail.bytes);
    for detail in details {
        let Some(left) = room.checked_sub(detail.bytes) else {
            break;
        };
        room = left;
        detail.put(&mut described);
    }
    described
}

/// Details of an executor or a task, besides its ids and amounts; of any size.
struct Detail<'a> {
    bytes: usize,
    executor: usize,
    /// The index of the task; `None` for the executor itself.
    task: Option<usize>,
    content: Content<'a>,
}

enum Content<'a> {
    /// The framework's names and labels.
    Words {
        name: String,
        source: &'a str,
        labels: Option<&'a pb::Labels>,
    },
    /// The allocated resources, with reservations and volumes.
    Resources {
        own: &'a [pb::Resource],
        allocated: Vec<pb::Resource>,
    },
}

impl<'a> Detail<'a> {
    fn of_executor(index: usize, executor: &'a Executor) -> [Self; 2] {
        let words = Content::Words {
            name: executor.name(),
            source: executor.source(),
            labels: labels(executor),
        };
        let info = executor.info.as_deref();
        let given = Content::Resources {
            own: info.map_or(&[], |info| &info.resources),
            allocated: resources(&executor.allocated()),
        };
        [words, given].map(|content| Self::new(index, None, content))
    }

    fn of_task(executor: usize, index: usize, task: &'a Task) -> [Self; 2] {
        let words = Content::Words {
            name: task.info.name.clone(),
            source: "",
            labels: task.info.labels.as_ref(),
        };
        let given = Content::Resources {
            own: &task.info.resources,
            allocated: Vec::new(),
        };
        [words, given].map(|content| Self::new(executor, Some(index), content))
    }

    fn new(executor: usize, task: Option<usize>, content: Content<'a>) -> Self {
        let bytes = match &content {
            Content::Words {
                name,
                source,
                labels,
            } => {
                let labels = labels.map_or(0, prost::Message::encoded_len);
                name.len() + source.len() + labels + 3 * FIELD_BYTES
            }
            Content::Resources { own, allocated } => bytes_of(own) + bytes_of(allocated),
        };
        Self {
            bytes,
            executor,
            task,
            content,
        }
    }

    fn put(self, described: &mut [pb::resource_usage::Executor]) {
        let executor = &mut described[self.executor];
        match (self.task, self.content) {
            (Some(task), Content::Words { name, labels, .. }) => {
                let task = &mut executor.tasks[task];
                (task.name, task.labels) = (name, labels.cloned());
            }
            (Some(task), Content::Resources { own, .. }) => {
                executor.tasks[task].resources = own.to_vec();
            }
            (
                None,
                Content::Words {
                    name,
                    source,
                    labels,
                },
            ) => {
                let info = &mut executor.executor_info;
                info.source = Some(source.to_owned());
                (info.name, info.labels) = (Some(name), labels.cloned());
            }
            (None, Content::Resources { own, allocated }) => {
                executor.executor_info.resources = own.to_vec();
                executor.allocated = allocated;
            }
        }
    }
}

/// The size of messages as a repeated field.
fn bytes_of<M: prost::Message>(messages: &[M]) -> usize {
    let sizes = messages.iter().map(|one| one.encoded_len() + FIELD_BYTES);
    sizes.sum()
}

fn live_tasks(executor: &Executor) -> impl Iterator<Item = &Task> {
    let tasks = executor.tasks.values().map(|task| &**task);
    tasks.filter(|task| !task.is_terminal())
}

fn bare(task: &Task) -> pb::resource_usage::executor::Task {
    pb::resource_usage::executor::Task {
        name: String::new(),
        id: task.info.task_id.clone(),
        resources: resources(&amounts(&task.resources)),
        labels: None,
    }
}

/// An executor without its tasks and its framework's texts.
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
            ..pb::ExecutorInfo::default()
        },
        allocated: resources(&amounts(&executor.allocated())),
        statistics: reading.map(|reading| resource_statistics(reading, enable_cfs)),
        container_id: pb::ContainerId {
            value: executor.key.container.to_string(),
            parent: None,
        },
        tasks: Vec::new(),
    }
}

/// The CPU and memory limits and usage of an executor.
fn of_use(all: &pb::ResourceStatistics) -> pb::ResourceStatistics {
    pb::ResourceStatistics {
        timestamp: all.timestamp,
        cpus_user_time_secs: all.cpus_user_time_secs,
        cpus_system_time_secs: all.cpus_system_time_secs,
        cpus_limit: all.cpus_limit,
        mem_total_bytes: all.mem_total_bytes,
        mem_rss_bytes: all.mem_rss_bytes,
        mem_limit_bytes: all.mem_limit_bytes,
        ..pb::ResourceStatistics::default()
    }
}

fn resources(resources: &Resources) -> Vec<pb::Resource> {
    convert::to_resources(resources, Format::PostRefinement).unwrap_or_default()
}

/// The total for each name, revocable or not, regardless of reservations and allocations.
fn amounts(resources: &Resources) -> Resources {
    let plain = resources.iter().map(|resource| {
        let amount = Resource::plain(resource.name().clone(), resource.value().clone());
        amount.with_revocable(resource.is_revocable())
    });
    plain.collect()
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
    use prost::Message as _;

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
    fn small_question_omits_only_executor_data() {
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

    /// Regression: the data of one framework about its executor and tasks made the message too large for any plug-in,
    /// and so disabled the controller for everybody.
    #[test]
    fn framework_cannot_oversize_the_question() {
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

    /// Regression: with 3,000 executors and more the message exceeded the limit of servers, and was never answered.
    #[test]
    fn many_executors_reduce_to_usage() {
        let told = |count: usize| {
            let executors: Vec<_> = (0..count)
                .map(|index| {
                    let id = format!("instance-of-some-service-of-some-framework-{index:022}");
                    with_task(executor(&id, 0, 10), &id, 10)
                })
                .collect();
            let mut reading = crate::metrics::containers::tests::sample();
            let usage = &mut reading.usage;
            usage.cpu.user_secs = Some(1.0);
            usage.cpu.system_secs = Some(1.0);
            usage.cpu.nr_periods = Some(1 << 30);
            usage.cpu.nr_throttled = Some(1 << 30);
            usage.cpu.throttled_secs = Some(1.0);
            usage.memory.total_memsw_bytes = Some(1 << 30);
            usage.memory.swap_bytes = Some(1 << 30);
            usage.memory.mapped_file_bytes = Some(1 << 30);
            usage.memory.unevictable_bytes = Some(1 << 30);
            usage.memory.kernel_bytes = Some(1 << 30);
            usage.memory.rss_bytes = Some(1 << 30);
            usage.memory.cache_bytes = Some(1 << 30);
            usage.io.reads = Some(1 << 40);
            usage.io.writes = Some(1 << 40);
            usage.io.read_bytes = Some(1 << 50);
            usage.io.write_bytes = Some(1 << 50);
            let readings = executors
                .iter()
                .map(|executor| (executor.key.container.clone(), reading.clone()));
            super::executors(executors.iter().collect(), &readings.collect(), true)
        };
        for (count, is_whole) in [(1_000, true), (10_000, false)] {
            let told = told(count);
            let bytes = bytes_of(&told);
            assert!(bytes + TOTAL_BYTES_MAX < 4 * MIB, "{count}: {bytes}");
            assert_eq!(told.len(), count);
            for one in &told {
                let statistics = one.statistics.as_ref().expect("what it uses");
                assert_eq!(statistics.mem_rss_bytes, Some(1 << 30));
                assert_eq!(statistics.cpus_user_time_secs, Some(1.0));
                assert_eq!(statistics.blkio_statistics.is_some(), is_whole);
                assert_eq!(statistics.mem_cache_bytes.is_some(), is_whole);
            }
        }
    }

    /// `cpus:1`, reserved with a label.
    fn reserved(label_bytes: usize) -> Resources {
        let cpus = pb::Resource {
            reservations: vec![pb::resource::ReservationInfo {
                r#type: Some(pb::resource::reservation_info::Type::Dynamic.into()),
                role: Some("dev".to_owned()),
                labels: labelled(label_bytes),
                ..Default::default()
            }],
            ..resources(&Resources::parse("cpus:1", &Role::star()).unwrap()).remove(0)
        };
        convert::resources(&[cpus]).unwrap()
    }

    fn cpus(told: &[pb::Resource]) -> f64 {
        let cpus = told.iter().filter(|one| one.name == "cpus");
        cpus.map(|one| one.scalar.map_or(0.0, |scalar| scalar.value))
            .sum()
    }

    /// Regression: the labels of a reservation alone had the same effect.
    #[test]
    fn reservations_cannot_oversize_the_question() {
        let mut large = executor("large", 0, 0);
        large.resources = reserved(4 * MIB);
        let mut small = executor("small", 0, 0);
        small.resources = reserved(10);
        let mut executors = vec![large, small];
        for index in 0..100 {
            let id = format!("e{index}");
            executors.push(with_task(executor(&id, 0, 10), "t", 10));
        }
        let told = told(&executors);
        assert!(bytes_of(&told) < MIB, "{}", bytes_of(&told));
        for one in &told {
            let is_with_task = one.tasks.len() == 1;
            assert_eq!(cpus(&one.allocated), if is_with_task { 3.0 } else { 1.0 });
        }
        assert_eq!(told[0].allocated[0].reservations, []);
        assert_eq!(told[1].allocated[0].reservations[0].labels, labelled(10));
        let last = &told.last().unwrap().tasks[0];
        assert_eq!(
            (last.name.as_str(), &last.labels),
            ("its name", &labelled(10))
        );
    }

    #[test]
    fn large_reservations_are_omitted_from_total() {
        let both = |label_bytes| {
            let unreserved = Resources::parse("cpus:2;mem:64", &Role::star()).unwrap();
            total(&(unreserved + reserved(label_bytes)))
        };
        let (small, large) = (both(10), both(5 * MIB));
        assert_eq!((small.len(), large.len()), (3, 2));
        assert_eq!((cpus(&small), cpus(&large)), (3.0, 3.0));
        assert!(bytes_of(&large) < 1024);
    }
}
