//! The checkpoints, as protobuf messages of the agent.
//!
//! They contain Mesos's messages unchanged. Field numbers are never reused; an agent of the previous version must still
//! be able to read the records.

use meseta_proto::meseta::v1::ObeyedEpoch;
use meseta_proto::mesos::v1::{
    AgentInfo, DrainConfig, ExecutorInfo, FrameworkInfo, TaskInfo, TaskStatus,
};

/// `slave.info`: the identity of the agent and its registered description.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AgentRecord {
    /// The description as registered, including `id`.
    #[prost(message, required, tag = "1")]
    pub info: AgentInfo,
    /// The highest obeyed epoch of the last cluster that the agent registered with; absent if no master of it has named
    /// its cluster.
    #[prost(message, optional, tag = "2")]
    pub obeyed: Option<ObeyedEpoch>,
}

/// `drain.config`: the configuration of a drain; missing if the agent is not draining.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DrainRecord {
    /// The configuration from the master's request.
    #[prost(message, required, tag = "1")]
    pub config: DrainConfig,
}

/// `framework.info`: the newest description from the master.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FrameworkRecord {
    /// The description in the last launch or update.
    #[prost(message, required, tag = "1")]
    pub info: FrameworkInfo,
}

/// `task.info`: the intent to run a task, durable before the agent acts on it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TaskRecord {
    /// The task as the framework sent it.
    #[prost(message, required, tag = "1")]
    pub info: TaskInfo,
    /// The framework at that time, so that the loss of `framework.info` costs nothing. Empty if the executor has a
    /// record, which contains the framework for all its tasks. Earlier versions wrote it with each task.
    #[prost(message, required, tag = "2")]
    pub framework: FrameworkInfo,
    /// The time when the agent accepted the task, in nanoseconds since the Unix epoch.
    #[prost(uint64, tag = "3")]
    pub accepted_unix_ns: u64,
    /// The task's own container inside its executor's, for a task of the default executor.
    #[prost(string, optional, tag = "4")]
    pub nested_container: Option<String>,
    /// The group that the task was launched with; the name is unique in its executor.
    #[prost(string, optional, tag = "5")]
    pub group: Option<String>,
    /// The size of the group. With fewer tasks on disk, nothing of the group was begun.
    #[prost(uint32, tag = "6")]
    pub group_size: u32,
}

/// `executor.info`: an executor other than the built-in command executor, durable before its launch.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ExecutorRecord {
    /// The executor as the framework sent it.
    #[prost(message, required, tag = "1")]
    pub info: ExecutorInfo,
    /// The framework at that time.
    #[prost(message, required, tag = "2")]
    pub framework: FrameworkInfo,
}

/// A record of `task.updates` or `executor.log`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LogRecord {
    #[prost(oneof = "LogEntry", tags = "1, 2, 3, 4, 5")]
    pub entry: Option<LogEntry>,
}

/// An event of a task or an executor.
#[derive(Clone, PartialEq, prost::Oneof)]
#[expect(
    clippy::large_enum_variant,
    reason = "prost has no boxed oneof of derived messages here; entries are few and short-lived"
)]
pub enum LogEntry {
    /// The program was executed.
    #[prost(message, tag = "1")]
    Started(Started),
    /// A status update was made; it is kept until acknowledged.
    #[prost(message, tag = "2")]
    Update(TaskStatus),
    /// The update with this uuid was acknowledged.
    #[prost(bytes = "vec", tag = "3")]
    Acknowledged(Vec<u8>),
    /// A kill was requested.
    #[prost(message, tag = "4")]
    KillRequested(KillRequested),
    /// A task was handed to its executor at this time, in nanoseconds since the Unix epoch.
    #[prost(uint64, tag = "5")]
    Delivered(u64),
}

/// The process that supervises the container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Started {
    /// `pid start boot`, see `meseta_isolators::ProcessIdentity`.
    #[prost(string, tag = "1")]
    pub supervisor: String,
    /// The host pid of the task's main process; 0 if it is unknown.
    #[prost(int32, tag = "2")]
    pub task_pid: i32,
    /// The time of the start, in nanoseconds since the Unix epoch.
    #[prost(uint64, tag = "3")]
    pub at_unix_ns: u64,
    /// The time of the start, in nanoseconds since the supervisor's boot; earlier versions did not write it.
    #[prost(uint64, optional, tag = "4")]
    pub uptime_ns: Option<u64>,
}

/// A kill request, with the data for its continuation after a restart.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct KillRequested {
    /// The grace period between the first signal and the last.
    #[prost(uint64, tag = "1")]
    pub grace_ns: u64,
    /// The time of the request, in nanoseconds since the Unix epoch.
    #[prost(uint64, tag = "2")]
    pub at_unix_ns: u64,
    /// The cause of the kill, a [`KillCause`].
    #[prost(enumeration = "KillCause", tag = "3")]
    pub cause: i32,
    /// The time of the request, in nanoseconds since the boot `boot_id`; earlier versions did not write it.
    #[prost(uint64, optional, tag = "4")]
    pub uptime_ns: Option<u64>,
    /// The boot that `uptime_ns` counts from.
    #[prost(string, optional, tag = "5")]
    pub boot_id: Option<String>,
}

/// The cause of a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum KillCause {
    /// The record does not name a cause.
    Unknown = 0,
    /// The framework sent a KILL call.
    Framework = 1,
    /// The time `TaskInfo.max_completion_time` is over.
    CompletionTime = 2,
    /// The task's executor or framework was shut down.
    Shutdown = 3,
    /// The master drains the agent.
    Drain = 4,
    /// The agent ends and also ends its tasks.
    AgentExit = 5,
    /// Another task of the group failed or was killed.
    Group = 6,
    /// The health check of the task failed too often in a row.
    Unhealthy = 7,
    /// The agent evicted the task from revocable resources in favour of regular work.
    Preempted = 8,
}

impl LogRecord {
    /// A record with this entry.
    pub fn from_entry(entry: LogEntry) -> Self {
        Self { entry: Some(entry) }
    }
}
