//! What is wanted of a container: what runs in it, as whom, with which resources.

use std::sync::Arc;

use meseta_isolators::Demand;
use meseta_proto::mesos::v1 as pb;
use meseta_resources::{ContainerId, Resources, Role};

use crate::checkpoint::RunKey;

/// What runs in a container.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A command task, alone in its executor's container.
    Task(Arc<pb::TaskInfo>),
    /// A task in a container inside its executor's.
    Nested(Arc<pb::TaskInfo>),
    /// An executor of the framework's own.
    Executor(Arc<pb::ExecutorInfo>),
    /// Nothing but the place in which the tasks of a default executor are.
    Group(Arc<pb::ExecutorInfo>),
}

/// A container, ready to be launched.
#[derive(Clone, Debug)]
pub struct LaunchPlan {
    /// Which run it belongs to.
    pub run: Arc<RunKey>,
    /// Its id; that of the run, or of one nested in it.
    pub container: ContainerId,
    /// What runs in it.
    pub subject: Subject,
    /// Whom it runs as.
    pub user: String,
    /// The role its resources are allocated to.
    pub role: Option<Role>,
    /// Requests and limits of resources.
    pub demand: Demand,
    /// What is behind them.
    pub resources: Resources,
    /// The persistent volumes in them, each as it was asked for: resources do not tell apart how often and
    /// where one is to be seen.
    pub volumes: Vec<pb::Resource>,
    /// Those of the container around it, whose sandbox it may look into.
    pub parent_volumes: Vec<pb::Resource>,
}

impl LaunchPlan {
    /// The command, as it was given.
    pub fn command(&self) -> Option<&pb::CommandInfo> {
        match &self.subject {
            Subject::Task(task) | Subject::Nested(task) => task.command.as_ref(),
            Subject::Executor(executor) => executor.command.as_ref(),
            Subject::Group(_) => None,
        }
    }

    /// How the framework wants the container to be.
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
