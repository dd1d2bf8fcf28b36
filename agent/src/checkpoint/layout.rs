//! The paths of all files below `--work_dir`.
//!
//! ```text
//! meta/resources/resources_and_operations.state   reservations, volumes, operations
//! meta/resources_and_operations.copy              a copy of that record, in case it is lost
//! meta/boot_id, meta/instance, meta/estimator, meta/sandbox_ages
//! meta/executor_key, meta/executor_key.copy      the key that signs executors' tokens, twice
//! meta/slaves/latest -> <agent>
//! meta/slaves/<agent>/{slave.info,drain.config}
//! meta/slaves/<agent>/frameworks/<framework>/framework.info
//! meta/slaves/<agent>/frameworks/<framework>/executors/<executor>/runs/<container>/{executor.info,executor.log}
//! meta/slaves/<agent>/frameworks/<framework>/executors/<executor>/runs/<container>/tasks/<task>/{task.info,task.updates}
//! meta/reserve/…           room that is released on a full disk
//! meta/quarantine/…        unreadable files
//! meta/retired/…           trees to be removed
//! slaves/<agent>/frameworks/<framework>/executors/<executor>/runs/{latest -> <container>, <container>/}   sandboxes
//! volumes/roles/<role>/<persistence id>/   persistent volumes; a role's slashes are blanks here
//! slaves/…/runs/<container>/{containers/<child>/, tasks/<task> -> ../containers/<child>}   sandboxes of group tasks
//! ```
//! Ids are validated before: each is a single path component.

use std::path::{Path, PathBuf};

use meseta_resources::{AgentId, ContainerId, ExecutorId, FrameworkId, TaskId};

/// A run of an executor, the owner of a container.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct RunKey {
    /// The agent that runs the executor.
    pub agent: AgentId,
    /// The framework of the executor.
    pub framework: FrameworkId,
    /// The executor; for a command task the task's own id.
    pub executor: ExecutorId,
    /// The container of this run.
    pub container: ContainerId,
}

/// A task of a run.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct TaskKey {
    /// The run that the task belongs to.
    pub run: RunKey,
    pub task: TaskId,
}

/// The paths of one work directory.
#[derive(Clone, Debug)]
pub struct Layout {
    work_dir: PathBuf,
}

impl Layout {
    /// Creates the paths of this work directory.
    pub fn new(work_dir: &Path) -> Self {
        Self {
            work_dir: work_dir.to_owned(),
        }
    }

    /// The work directory itself.
    pub fn work_dir(&self) -> &Path {
        &self.work_dir
    }

    /// The folder of all checkpoints.
    pub fn meta(&self) -> PathBuf {
        self.work_dir.join("meta")
    }

    /// The file that the running agent locks.
    pub(crate) fn lock(&self) -> PathBuf {
        self.meta().join("lock")
    }

    /// The key that signs the tokens of executors.
    pub(super) fn executor_key(&self) -> PathBuf {
        self.meta().join("executor_key")
    }

    pub(super) fn executor_key_copy(&self) -> PathBuf {
        self.meta().join("executor_key.copy")
    }

    pub(super) fn boot_id(&self) -> PathBuf {
        self.meta().join("boot_id")
    }

    pub(super) fn instance(&self) -> PathBuf {
        self.meta().join("instance")
    }

    pub(super) fn estimator(&self) -> PathBuf {
        self.meta().join("estimator")
    }

    pub(super) fn sandbox_ages(&self) -> PathBuf {
        self.meta().join("sandbox_ages")
    }

    /// Room that is released on a full disk.
    pub(super) fn reserve(&self) -> PathBuf {
        self.meta().join("reserve")
    }

    /// The file that the agent writes from time to time to learn whether the disk answers.
    pub(super) fn probe(&self) -> PathBuf {
        self.meta().join(".probe")
    }

    pub(super) fn quarantine(&self) -> PathBuf {
        self.meta().join("quarantine")
    }

    pub(super) fn retired(&self) -> PathBuf {
        self.meta().join("retired")
    }

    pub(super) fn holdings(&self) -> PathBuf {
        self.meta()
            .join("resources")
            .join("resources_and_operations.state")
    }

    pub(super) fn holdings_copy(&self) -> PathBuf {
        self.meta().join("resources_and_operations.copy")
    }

    pub(crate) fn agents(&self) -> PathBuf {
        self.meta().join("slaves")
    }

    pub(crate) fn latest_agent(&self) -> PathBuf {
        self.agents().join("latest")
    }

    pub(crate) fn agent(&self, agent: &AgentId) -> PathBuf {
        self.agents().join(agent.as_str())
    }

    pub(crate) fn agent_info(&self, agent: &AgentId) -> PathBuf {
        self.agent(agent).join("slave.info")
    }

    pub(super) fn drain(&self, agent: &AgentId) -> PathBuf {
        self.agent(agent).join("drain.config")
    }

    pub(super) fn framework(&self, agent: &AgentId, framework: &FrameworkId) -> PathBuf {
        self.agent(agent)
            .join("frameworks")
            .join(framework.as_str())
    }

    pub(crate) fn framework_info(&self, agent: &AgentId, framework: &FrameworkId) -> PathBuf {
        self.framework(agent, framework).join("framework.info")
    }

    pub(super) fn run(&self, key: &RunKey) -> PathBuf {
        self.framework(&key.agent, &key.framework)
            .join("executors")
            .join(key.executor.as_str())
            .join("runs")
            .join(key.container.as_str())
    }

    pub(super) fn task(&self, key: &TaskKey) -> PathBuf {
        self.run(&key.run).join("tasks").join(key.task.as_str())
    }

    /// The folder of all sandboxes.
    pub fn sandboxes(&self) -> PathBuf {
        self.work_dir.join("slaves")
    }

    /// The folder of all persistent volumes that lie in the work directory.
    pub fn volumes(&self) -> PathBuf {
        self.work_dir.join("volumes")
    }

    /// The folder that holds all sandboxes of an executor's runs.
    pub fn sandbox_runs(&self, key: &RunKey) -> PathBuf {
        self.sandboxes()
            .join(key.agent.as_str())
            .join("frameworks")
            .join(key.framework.as_str())
            .join("executors")
            .join(key.executor.as_str())
            .join("runs")
    }

    /// The folder of a persistent volume.
    pub fn volume(&self, role: &meseta_resources::Role, id: &str) -> PathBuf {
        // The name of a role may have slashes, but never spaces.
        let role = role.as_str().replace('/', " ");
        self.volumes().join("roles").join(role).join(id)
    }

    /// The sandbox of one run.
    pub fn sandbox(&self, key: &RunKey) -> PathBuf {
        self.sandbox_runs(key).join(key.container.as_str())
    }

    /// The sandbox of a container of this run: the sandbox of the run itself, or of a nested container.
    pub fn sandbox_of(&self, key: &RunKey, container: &ContainerId) -> PathBuf {
        self.sandbox(key).join(inside(container))
    }
}

/// The relative path of a container's sandbox within the sandbox of its run, whose owner may put anything there. Empty
/// for the run's own container.
pub fn inside(container: &ContainerId) -> PathBuf {
    let nested = container.components().skip(1);
    nested.fold(PathBuf::new(), |path, child| {
        path.join("containers").join(child)
    })
}

/// Names of the files of an executor's run.
pub(super) const EXECUTOR_INFO: &str = "executor.info";
pub(super) const EXECUTOR_LOG: &str = "executor.log";
/// Names of the files of a task.
pub(super) const TASK_INFO: &str = "task.info";
pub(super) const TASK_UPDATES: &str = "task.updates";
