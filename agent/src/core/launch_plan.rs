//! The specification of a container: its command, user and resources.

use std::sync::Arc;

use meseta_isolators::Demand;
use meseta_proto::mesos::v1 as pb;
use meseta_resources::{ContainerId, Resources, Role};

use crate::checkpoint::RunKey;

/// The program in a container.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A command task, alone in its executor's container.
    Task(Arc<pb::TaskInfo>),
    /// A task in a container inside its executor's.
    Nested(Arc<pb::TaskInfo>),
    /// An executor of the framework's own.
    Executor(Arc<pb::ExecutorInfo>),
    /// An empty container that contains the tasks of a default executor.
    Group(Arc<pb::ExecutorInfo>),
}

/// A container, ready to be launched.
#[derive(Clone, Debug)]
pub struct LaunchPlan {
    /// The run that owns the container.
    pub run: Arc<RunKey>,
    /// The id of the container: that of the run, or of a nested container.
    pub container: ContainerId,
    /// The program in the container.
    pub subject: Subject,
    /// The user of the container's processes.
    pub user: String,
    /// The role its resources are allocated to.
    pub role: Option<Role>,
    /// Requests and limits of resources.
    pub demand: Demand,
    /// The resources behind the demand.
    pub resources: Resources,
    /// The persistent volumes of the container, as requested: the resources alone do not show how often and where a
    /// volume is mounted.
    pub volumes: Vec<pb::Resource>,
    /// The volumes of its parent container, whose sandbox the container may access.
    pub parent_volumes: Vec<pb::Resource>,
}

impl LaunchPlan {
    /// The command, as the framework sent it.
    pub fn command(&self) -> Option<&pb::CommandInfo> {
        match &self.subject {
            Subject::Task(task) | Subject::Nested(task) => task.command.as_ref(),
            Subject::Executor(executor) => executor.command.as_ref(),
            Subject::Group(_) => None,
        }
    }

    /// The framework's description of the container.
    pub fn container_info(&self) -> Option<&pb::ContainerInfo> {
        match &self.subject {
            Subject::Task(task) | Subject::Nested(task) => task.container.as_deref(),
            Subject::Executor(executor) | Subject::Group(executor) => executor.container.as_deref(),
        }
    }

    /// The executor, if it is the framework's.
    pub fn executor(&self) -> Option<&pb::ExecutorInfo> {
        match &self.subject {
            Subject::Executor(executor) | Subject::Group(executor) => Some(executor),
            Subject::Task(_) | Subject::Nested(_) => None,
        }
    }
}
