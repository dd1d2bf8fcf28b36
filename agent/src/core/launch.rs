//! From the order to run a task to its first updates.
//!
//! The order is checked, the intent is made durable, the container is launched, and when its task was
//! executed STARTING and RUNNING are told. What cannot be run is answered with a terminal update that
//! says why; nothing is dropped in silence but a repetition of what runs already.

use std::sync::Arc;
use std::time::Duration;

use meseta_isolators::{Demand, ProcessIdentity};
use meseta_proto::convert;
use meseta_proto::meseta::v1 as wire;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::framework_info::capability::Type as FrameworkCapability;
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_resources::{ContainerId, ExecutorId, FrameworkId, Now, Resources, Role};
use tracing::{info, warn};

use super::demand::demand;
use super::model::{Executor, Framework, Phase, Task};
use super::registration::stream_key;
use super::states::{dropped_or_lost, has_capability};
use super::{Action, AgentCore, Destination, LaunchPlan, StreamKey, Timer};
use crate::checkpoint::{FrameworkRecord, LogEntry, RunKey, Started, TaskKey, TaskRecord, Write};

/// Why a task will not be run.
#[derive(Debug, Eq, PartialEq)]
struct Refusal {
    state: pb::TaskState,
    reason: Reason,
    message: String,
}

impl Refusal {
    fn invalid(message: impl Into<String>) -> Self {
        Self {
            state: pb::TaskState::TaskError,
            reason: Reason::TaskInvalid,
            message: message.into(),
        }
    }
}

impl AgentCore {
    pub(super) fn run_task(&mut self, now: Now, run: wire::RunTask) {
        let Some(stream) = run
            .framework
            .id
            .as_ref()
            .and_then(|id| stream_key(id, &run.task.task_id))
        else {
            return;
        };
        if self.executor_of_task(&stream).is_some() {
            // Answering would end the one that runs.
            warn!(
                framework_id = %stream.framework, task_id = %stream.task,
                "dropped the order to run a task that is here already"
            );
            return;
        }
        let is_partition_aware =
            has_capability(&run.framework, FrameworkCapability::PartitionAware);
        let accepted = self.check(&run.task, is_partition_aware);
        match accepted {
            Ok((resources, demand)) => self.accept_task(now, &stream, run, resources, demand),
            Err(refusal) => {
                let status = self.status(
                    now,
                    run.task.task_id.clone(),
                    refusal.state,
                    Source::Agent,
                    Some(refusal.reason),
                    Some(refusal.message),
                );
                self.answer_for_absent(now, &stream, status);
            }
        }
    }

    /// Everything that can be told of a task without touching the machine.
    fn check(
        &self,
        task: &pb::TaskInfo,
        is_partition_aware: bool,
    ) -> Result<(Resources, Demand), Refusal> {
        let ours = self.agent_id.as_ref().map(|id| id.as_str());
        if ours != Some(task.agent_id.value.as_str()) {
            return Err(Refusal::invalid(format!(
                "the task is for agent '{}', and this is agent '{}'",
                task.agent_id.value,
                ours.unwrap_or_default()
            )));
        }
        if task.executor.is_some() {
            return Err(Refusal::invalid(
                "tasks with an executor of their own are not supported by this agent yet",
            ));
        }
        let Some(command) = &task.command else {
            return Err(Refusal::invalid(
                "the task has neither a command nor an executor",
            ));
        };
        if command.value.as_deref().unwrap_or_default().is_empty() {
            return Err(Refusal::invalid("the task's command has no value"));
        }
        if !command.uris.is_empty() {
            return Err(Refusal::invalid(
                "fetching URIs is not supported by this agent yet",
            ));
        }
        if task.health_check.is_some() || task.check.is_some() {
            return Err(Refusal::invalid(
                "checks and health checks are not supported by this agent yet",
            ));
        }
        if let Some(container) = &task.container {
            check_container(container)?;
        }
        let resources = convert::resources(&task.resources).map_err(|error| {
            Refusal::invalid(format!("the task's resources are invalid: {error}"))
        })?;
        if let Some(unknown) = self.unknown_resource(&resources) {
            return Err(Refusal {
                state: dropped_or_lost(is_partition_aware),
                reason: Reason::ResourcesUnknown,
                message: format!("the task's {unknown} is not on this agent"),
            });
        }
        let demand =
            demand(&resources, &task.limits, self.options.enforceable).map_err(Refusal::invalid)?;
        Ok((resources, demand))
    }

    fn accept_task(
        &mut self,
        now: Now,
        stream: &StreamKey,
        run: wire::RunTask,
        resources: Resources,
        demand: Demand,
    ) {
        let Some(agent) = self.agent_id.clone() else {
            return;
        };
        // The executor of a command task is named after it.
        let Ok(executor) = ExecutorId::new(stream.task.as_str()) else {
            return;
        };
        let Ok(container) = ContainerId::new(&self.uuid().to_string()) else {
            return;
        };
        let key = Arc::new(RunKey {
            agent,
            framework: stream.framework.clone(),
            executor,
            container,
        });
        let task_key = Arc::new(TaskKey {
            run: (*key).clone(),
            task: stream.task.clone(),
        });
        info!(
            framework_id = %stream.framework, task_id = %stream.task,
            container_id = %key.container, resources = %resources, "task accepted"
        );
        let record = TaskRecord {
            info: run.task,
            framework: run.framework.clone(),
            accepted_unix_ns: unix_ns(now),
        };
        let task = Task {
            key: task_key.clone(),
            user: user_of(&record.info, &run.framework),
            role: role_of(&resources),
            resources,
            info: Arc::new(record.info.clone()),
            state: pb::TaskState::TaskStaging,
            statuses: Vec::new(),
            sent: None,
            orphaned: false,
        };
        self.hold_framework(&stream.framework, run.framework);
        self.persist(Write::Task {
            key: task_key,
            record: Box::new(record),
        });
        self.launch(&key, task, demand);
    }

    fn launch(&mut self, key: &Arc<RunKey>, task: Task, demand: Demand) {
        let Some(framework) = self.frameworks.get_mut(&key.framework) else {
            return;
        };
        let framework = Arc::make_mut(framework);
        let plan = LaunchPlan {
            run: key.clone(),
            task: task.info.clone(),
            user: task.user.clone(),
            role: task.role.clone(),
            checkpoint: framework.info.checkpoint.unwrap_or_default(),
            demand,
        };
        let executor = Executor {
            key: key.clone(),
            phase: Phase::Launching,
            supervisor: None,
            task_pid: None,
            kill: None,
            demand,
            task,
        };
        framework
            .executors
            .insert(key.executor.clone(), Arc::new(executor));
        self.containers.insert(
            key.container.clone(),
            (key.framework.clone(), key.executor.clone()),
        );
        self.show(
            Destination::Container(key.container.clone()),
            Action::Launch(Box::new(plan)),
        );
    }

    /// Takes a framework up, or its newer description.
    fn hold_framework(&mut self, id: &FrameworkId, info: pb::FrameworkInfo) {
        let known = self.frameworks.get(id).map(|held| held.info.clone());
        if known.is_some_and(|known| *known == info) {
            return;
        }
        let Some(agent) = self.agent_id.clone() else {
            return;
        };
        let shared = Arc::new(info.clone());
        match self.frameworks.get_mut(id) {
            Some(framework) => Arc::make_mut(framework).info = shared,
            None => {
                let framework = match self.take_completed_framework(id) {
                    Some(mut framework) => {
                        Arc::make_mut(&mut framework).info = shared;
                        framework
                    }
                    None => Arc::new(Framework::new(id.clone(), shared)),
                };
                self.frameworks.insert(id.clone(), framework);
            }
        }
        self.persist(Write::Framework {
            agent,
            framework: id.clone(),
            record: Box::new(FrameworkRecord { info }),
        });
    }

    fn take_completed_framework(&mut self, id: &FrameworkId) -> Option<Arc<Framework>> {
        let at = self
            .completed_frameworks
            .iter()
            .position(|framework| framework.id == *id)?;
        self.completed_frameworks.remove(at)
    }

    pub(super) fn update_framework(&mut self, now: Now, info: pb::FrameworkInfo) {
        let told = info.id.clone().unwrap_or_default().value;
        let Ok(id) = FrameworkId::new(&told) else {
            return;
        };
        if !self.frameworks.contains_key(&id) {
            return;
        }
        info!(framework_id = %id, "framework updated");
        self.hold_framework(&id, info);
        for key in self.updates.resend_of(now.moment, &id) {
            self.send_head(&key);
        }
    }

    pub(super) fn run_task_group(&mut self, now: Now, run: wire::RunTaskGroup) {
        let Some(framework) = run.framework.id.clone() else {
            return;
        };
        for task in run.task_group.tasks {
            let Some(stream) = stream_key(&framework, &task.task_id) else {
                continue;
            };
            let status = self.status(
                now,
                task.task_id,
                pb::TaskState::TaskError,
                Source::Agent,
                Some(Reason::TaskGroupInvalid),
                Some("task groups are not supported by this agent yet".to_owned()),
            );
            self.answer_for_absent(now, &stream, status);
        }
    }

    pub(super) fn started(
        &mut self,
        now: Now,
        container: &ContainerId,
        supervisor: ProcessIdentity,
        task_pid: i32,
    ) {
        let Some(executor) = self.executor_of(container) else {
            // Nobody's: what was launched must not live on.
            warn!(container_id = %container, "a container started that is not known");
            return self.show(
                Destination::Container(container.clone()),
                Action::Destroy {
                    container: container.clone(),
                },
            );
        };
        let key = executor.key.clone();
        self.log_start(now, &executor, &supervisor, task_pid);
        self.change_executor(&key, |executor| {
            executor.phase = Phase::Running;
            executor.supervisor = Some(supervisor);
            executor.task_pid = Some(task_pid);
        });
        if executor.kill.is_some() {
            return self.send_kill(now, &key, Duration::ZERO);
        }
        self.tell_running(now, &key);
        self.arm_completion_time(now, &key);
    }

    pub(super) fn log_start(
        &mut self,
        now: Now,
        executor: &Executor,
        supervisor: &ProcessIdentity,
        task_pid: i32,
    ) {
        self.persist(Write::Log {
            key: executor.task.key.clone(),
            entry: Box::new(LogEntry::Started(Started {
                supervisor: supervisor.to_text(),
                task_pid,
                at_unix_ns: unix_ns(now),
            })),
        });
    }

    /// Tells STARTING and RUNNING, as far as they were not told.
    pub(super) fn tell_running(&mut self, now: Now, key: &RunKey) {
        for state in [pb::TaskState::TaskStarting, pb::TaskState::TaskRunning] {
            let Some(executor) = self.executor_of(&key.container) else {
                return;
            };
            let mut told = executor.task.statuses.iter();
            if told.any(|status| status.state() == state) {
                continue;
            }
            let status = self.executor_status(now, &executor, state, executor.task_pid);
            self.update_task(now, key, status);
        }
    }

    /// A status that the executor of a command task would send.
    pub(super) fn executor_status(
        &mut self,
        now: Now,
        executor: &Executor,
        state: pb::TaskState,
        pid: Option<i32>,
    ) -> pb::TaskStatus {
        let task = executor.task.info.task_id.clone();
        let mut status = self.status(now, task, state, Source::Executor, None, None);
        status.executor_id = Some(pb::ExecutorId {
            value: executor.key.executor.to_string(),
        });
        status.container_status = Some(self.container_status(&executor.key.container, pid));
        status
    }

    fn container_status(&self, container: &ContainerId, pid: Option<i32>) -> pb::ContainerStatus {
        let address = pb::network_info::IpAddress {
            protocol: Some(pb::network_info::Protocol::IPv4.into()),
            ip_address: Some(self.options.container_ip.clone()),
        };
        pb::ContainerStatus {
            container_id: Some(pb::ContainerId {
                value: container.to_string(),
                parent: None,
            }),
            network_infos: vec![pb::NetworkInfo {
                ip_addresses: vec![address],
                ..pb::NetworkInfo::default()
            }],
            cgroup_info: None,
            executor_pid: pid.and_then(|pid| u32::try_from(pid).ok()),
        }
    }

    /// A task may not run longer than it said; counted from its start, over restarts of the agent.
    pub(super) fn arm_completion_time(&mut self, now: Now, key: &RunKey) {
        let Some(executor) = self.executor_of(&key.container) else {
            return;
        };
        let Some(longest) = &executor.task.info.max_completion_time else {
            return;
        };
        let longest = duration(longest);
        let running = i32::from(pb::TaskState::TaskRunning);
        let since = executor
            .task
            .statuses
            .iter()
            .find(|status| status.state == running)
            .and_then(|status| status.timestamp)
            .and_then(|timestamp| Duration::try_from_secs_f64(timestamp).ok())
            .unwrap_or(now.unix);
        let left = longest.saturating_sub(now.unix.saturating_sub(since));
        let container = key.container.clone();
        self.set_timer(now.moment + left, Timer::CompletionTime(container));
    }

    pub(super) fn launch_failed(&mut self, now: Now, container: &ContainerId, cause: String) {
        let Some(executor) = self.executor_of(container) else {
            return;
        };
        if executor.kill.is_some() {
            return self.finish_killed_during_launch(now, &executor);
        }
        self.counters.container_launch_errors += 1;
        self.finish_task(
            now,
            &executor.key,
            pb::TaskState::TaskFailed,
            Source::Agent,
            Some(Reason::ContainerLaunchFailed),
            Some(format!("Failed to launch container: {cause}")),
            None,
        );
    }
}

fn check_container(container: &pb::ContainerInfo) -> Result<(), Refusal> {
    let refuse = |what: &str| {
        Err(Refusal::invalid(format!(
            "{what} not supported by this agent yet"
        )))
    };
    if container.r#type == i32::from(pb::container_info::Type::Docker) {
        return refuse("containers of type DOCKER are");
    }
    if container
        .mesos
        .as_ref()
        .is_some_and(|mesos| mesos.image.is_some())
    {
        return refuse("container images are");
    }
    if !container.volumes.is_empty() {
        return refuse("volumes are");
    }
    if !container.network_infos.is_empty() {
        return refuse("container networks are");
    }
    if container.tty_info.is_some() {
        return refuse("terminals are");
    }
    Ok(())
}

/// Whom a task runs as: who its command says, or else its framework.
pub(super) fn user_of(task: &pb::TaskInfo, framework: &pb::FrameworkInfo) -> String {
    task.command
        .as_ref()
        .and_then(|command| command.user.clone())
        .unwrap_or_else(|| framework.user.clone())
}

/// The role that resources were allocated to.
pub(super) fn role_of(resources: &Resources) -> Option<Role> {
    resources
        .iter()
        .find_map(|resource| resource.allocation_role().cloned())
}

/// Mesos's durations may be negative, which means none.
pub(super) fn duration(info: &pb::DurationInfo) -> Duration {
    Duration::from_nanos(u64::try_from(info.nanoseconds).unwrap_or(0))
}

pub(super) fn unix_ns(now: Now) -> u64 {
    u64::try_from(now.unix.as_nanos()).unwrap_or(u64::MAX)
}

/// What a recovered task was given; it had been checked when it was taken.
pub fn demand_of(task: &pb::TaskInfo) -> Demand {
    let all = super::Enforceable {
        cpus: true,
        mem: true,
    };
    convert::resources(&task.resources)
        .map_err(|error| error.to_string())
        .and_then(|resources| demand(&resources, &task.limits, all))
        .unwrap_or_default()
}
