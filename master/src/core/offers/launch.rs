//! Launches: single tasks, and task groups as a whole.
//!
//! Entered from the operations of an ACCEPT. Invariant: the master records a task and charges its resources before it
//! sends the launch to the agent.

use std::sync::Arc;

use meseta_proto::meseta::v1::{self as meseta, master_frame};
use meseta_proto::mesos::v1::offer::operation::LaunchGroup;
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_proto::mesos::v1::{TaskInfo, TaskState};
use meseta_resources::{ExecutorId, FrameworkId, Resources, TaskId};
use prost::Message;

use super::accept::{AcceptedOffers, shortened};
use crate::core::authorization;
use crate::core::master::MasterCore;
use crate::core::state::task::{self, ExecutorRecord, TaskRecord};
use crate::core::tasks::status::MasterTaskStatus;
use crate::core::validation::executor::ValidExecutor;
use crate::core::validation::part::shares_groups;
use crate::core::validation::{frame_size, group as group_validation, task as task_validation};

impl MasterCore {
    pub(in crate::core) fn launch(
        &mut self,
        id: &FrameworkId,
        accepted_offers: &mut AcceptedOffers,
        mut info: TaskInfo,
    ) {
        let (Some(framework), Some(agent)) = (
            self.frameworks.get(id),
            self.agents.get(&accepted_offers.agent),
        ) else {
            return;
        };
        let (bytes, valid) = match frame_size::of_task(framework, agent, &info).and_then(|bytes| {
            let valid = task_validation::validate(
                framework,
                agent,
                &mut info,
                &accepted_offers.role,
                &accepted_offers.available(),
            )?;
            Ok((bytes, valid))
        }) {
            Ok(valid) => valid,
            Err(reason) => {
                self.task_error(id, &info, Reason::TaskInvalid, reason);
                return;
            }
        };
        if let Err(reason) = authorization::launch(framework, &info, None) {
            self.task_error(id, &info, Reason::TaskUnauthorized, reason.to_string());
            return;
        }
        if !self.has_room(accepted_offers, bytes) {
            self.drop_launches(id, [&info]);
            return;
        }
        let framework_info = (*framework.terms.info).clone();
        let launch_executor = valid
            .executor
            .as_ref()
            .is_none_or(|executor| executor.is_new);
        let total = valid.total();
        if !self.take_from(id, accepted_offers, &total) {
            return;
        }
        self.charge_agent(id, accepted_offers, &total);
        let executor_id = valid.executor.as_ref().map(|executor| executor.id.clone());
        if let Some(executor) = valid.executor {
            self.record_executor(id, accepted_offers, executor);
        }
        self.record_task(
            id,
            accepted_offers,
            &info,
            (valid.task_id, valid.resources),
            executor_id,
        );
        let run = meseta::RunTask {
            framework: framework_info,
            task: info,
            launch_executor,
            resource_version_uuid: None,
            accepted_time: Some(self.now.unix.as_secs_f64()),
        };
        let agent = accepted_offers.agent.clone();
        self.frame(&agent, master_frame::Message::RunTask(run));
    }

    /// Launches the whole group, or sends the reason for each of its tasks.
    pub(in crate::core) fn launch_group(
        &mut self,
        id: &FrameworkId,
        accepted_offers: &mut AcceptedOffers,
        mut group: LaunchGroup,
    ) {
        if group.task_group.tasks.is_empty() {
            return;
        }
        let (Some(framework), Some(agent)) = (
            self.frameworks.get(id),
            self.agents.get(&accepted_offers.agent),
        ) else {
            return;
        };
        let (bytes, valid) =
            match frame_size::of_group(framework, agent, &group).and_then(|bytes| {
                let valid = group_validation::validate(
                    framework,
                    agent,
                    &mut group,
                    &accepted_offers.role,
                    &accepted_offers.available(),
                )?;
                Ok((bytes, valid))
            }) {
                Ok(valid) => valid,
                Err(reason) => {
                    let reason = shortened(reason.into());
                    for task in &group.task_group.tasks {
                        self.task_error(id, task, Reason::TaskGroupInvalid, reason.clone());
                    }
                    return;
                }
            };
        let executor = Some(&group.executor);
        let mut tasks = group.task_group.tasks.iter();
        if let Err(reason) =
            tasks.try_for_each(|task| authorization::launch(framework, task, executor))
        {
            let reason = shortened(reason.to_string());
            for task in &group.task_group.tasks {
                self.task_error(id, task, Reason::TaskGroupUnauthorized, reason.clone());
            }
            return;
        }
        if !self.has_room(accepted_offers, bytes) {
            self.drop_launches(id, &group.task_group.tasks);
            return;
        }
        let framework_info = (*framework.terms.info).clone();
        let launch_executor = valid.executor.is_new;
        let total = valid.total();
        if !self.take_from(id, accepted_offers, &total) {
            return;
        }
        self.charge_agent(id, accepted_offers, &total);
        let executor_id = valid.executor.id.clone();
        self.record_executor(id, accepted_offers, valid.executor);
        for (info, understood) in group.task_group.tasks.iter().zip(valid.tasks) {
            self.record_task(
                id,
                accepted_offers,
                info,
                understood,
                Some(executor_id.clone()),
            );
        }
        let run = meseta::RunTaskGroup {
            framework: framework_info,
            executor: group.executor,
            task_group: group.task_group,
            launch_executor,
            resource_version_uuid: None,
            accepted_time: Some(self.now.unix.as_secs_f64()),
        };
        let agent = accepted_offers.agent.clone();
        self.frame(&agent, master_frame::Message::RunTaskGroup(run));
    }

    /// Whether a launch of this size fits the call's limit for the agent; counts it if so. The first launch always
    /// fits, because it fits into a frame.
    fn has_room(&self, accepted_offers: &mut AcceptedOffers, bytes: usize) -> bool {
        let sent = accepted_offers.launch_bytes.saturating_add(bytes);
        let has_room =
            accepted_offers.launch_bytes == 0 || sent <= self.config.memory.launches_per_accept;
        if has_room {
            accepted_offers.launch_bytes = sent;
        }
        has_room
    }

    /// Drops tasks that would overfill the agent's queue, which would end its connection. Another ACCEPT may launch
    /// them.
    fn drop_launches<'a>(
        &mut self,
        id: &FrameworkId,
        tasks: impl IntoIterator<Item = &'a TaskInfo>,
    ) {
        let state = self.state_for(id, TaskState::TaskDropped);
        let message = format!(
            "The launches of one ACCEPT may take {} bytes on their way to the agent, each with the FrameworkInfo: launch \
             this one with another offer",
            self.config.memory.launches_per_accept
        );
        for task in tasks {
            let status = MasterTaskStatus {
                task_id: &task.task_id.value,
                agent_id: Some(&task.agent_id.value),
                state,
                reason: Reason::InvalidOffers,
                message: message.clone(),
            };
            self.send_master_status(id, status);
        }
    }

    /// Takes the resources of a launch; the validation has checked that they are available.
    fn take_from(
        &mut self,
        id: &FrameworkId,
        accepted_offers: &mut AcceptedOffers,
        total: &Resources,
    ) -> bool {
        let shared = total.shared();
        let more = match shared.is_empty() {
            true => shared,
            false => &shared - &accepted_offers.remaining.shared(),
        };
        if !more.is_empty() {
            // An additional copy of a volume that other tasks hold too.
            let charged = self.allocator.charge(&accepted_offers.agent, id, &more);
            self.agreed("holding one more copy of a shared volume", charged);
            accepted_offers.remaining += &more;
        }
        if accepted_offers.remaining.try_sub_assign(total).is_ok() {
            return true;
        }
        self.counters.invariant_violations += 1;
        false
    }

    fn charge_agent(
        &mut self,
        id: &FrameworkId,
        accepted_offers: &AcceptedOffers,
        total: &Resources,
    ) {
        if let Some(agent) = self.agents.get_mut(&accepted_offers.agent) {
            agent.charge(id, total);
        }
    }

    /// Adds an executor to the agent's record, if it is new.
    fn record_executor(
        &mut self,
        id: &FrameworkId,
        accepted_offers: &AcceptedOffers,
        executor: ValidExecutor,
    ) {
        if !executor.is_new {
            return;
        }
        let (Some(framework), Some(agent)) = (
            self.frameworks.get_mut(id),
            self.agents.get_mut(&accepted_offers.agent),
        ) else {
            return;
        };
        framework.add_on(&accepted_offers.agent);
        let record = ExecutorRecord {
            executor_id: executor.id.clone(),
            framework_id: id.clone(),
            agent_id: accepted_offers.agent.clone(),
            resources: executor.resources,
            user: task::user_of_executor(&executor.info),
            compared_bytes: task::bytes_without_resources(&executor.info),
            info: executor.info.encode_to_vec().into(),
        };
        Arc::make_mut(&mut agent.executors).insert((id.clone(), executor.id), Arc::new(record));
    }

    /// Adds a launched task to the agent's record.
    fn record_task(
        &mut self,
        id: &FrameworkId,
        accepted_offers: &AcceptedOffers,
        info: &TaskInfo,
        (task_id, resources): (TaskId, Resources),
        executor_id: Option<ExecutorId>,
    ) {
        let (Some(framework), Some(agent)) = (
            self.frameworks.get_mut(id),
            self.agents.get_mut(&accepted_offers.agent),
        ) else {
            return;
        };
        let record = TaskRecord {
            task_id: task_id.clone(),
            framework_id: framework.id.clone(),
            agent_id: accepted_offers.agent.clone(),
            is_launched: true,
            executor_id,
            role: accepted_offers.role.clone(),
            // All tasks share this role, and the allocation has no spare capacity.
            resources: resources.allocate(&accepted_offers.role),
            state: TaskState::TaskStaging,
            update_state: None,
            update_uuid: None,
            statuses: Vec::new(),
            user: task::user_of(info).map(Into::into),
            shares_groups: shares_groups(info.container.as_deref()),
            description: task::describe(info),
            unreachable_since: None,
        };
        framework.launched_on(&task_id, &accepted_offers.agent);
        framework.add_on(&accepted_offers.agent);
        agent.insert_task(record);
        self.counters.tasks_launched += 1;
        self.publish_task(&accepted_offers.agent, id, &task_id);
    }
}
