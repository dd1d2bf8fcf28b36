//! What is checkpointed, as protobuf messages of the agent's own.
//!
//! Mesos's messages are kept whole inside them. Field numbers are never reused; a reader of the
//! version before must still understand what is written.

use meseta_proto::meseta::v1::ObeyedEpoch;
use meseta_proto::mesos::v1::{
    AgentInfo, DrainConfig, ExecutorInfo, FrameworkInfo, TaskInfo, TaskStatus,
};

/// `slave.info`: who the agent is and what it told its master.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AgentRecord {
    /// As registered, `id` included.
    #[prost(message, required, tag = "1")]
    pub info: AgentInfo,
    /// The highest epoch that was obeyed of the cluster it was registered with last; absent if no master of it has
    /// named its cluster.
    #[prost(message, optional, tag = "2")]
    pub obeyed: Option<ObeyedEpoch>,
}

/// `drain.config`: how the agent is being drained; not there if it is not.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DrainRecord {
    /// As the master asked for it.
    #[prost(message, required, tag = "1")]
    pub config: DrainConfig,
}

/// `framework.info`: the newest the master told.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FrameworkRecord {
    /// As in the last launch or update.
    #[prost(message, required, tag = "1")]
    pub info: FrameworkInfo,
}

/// `task.info`: the intent to run a task, durable before anything of it happens.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TaskRecord {
    /// As the framework sent it.
    #[prost(message, required, tag = "1")]
    pub info: TaskInfo,
    /// The framework at that time, so that the loss of `framework.info` costs nothing. Empty where the executor has a
    /// record, which tells it for all its tasks; earlier versions wrote it with each.
    #[prost(message, required, tag = "2")]
    pub framework: FrameworkInfo,
    /// When the agent took it, nanoseconds since the Unix epoch.
    #[prost(uint64, tag = "3")]
    pub accepted_unix_ns: u64,
    /// The container of its own inside its executor's, for a task of the default executor.
    #[prost(string, optional, tag = "4")]
    pub nested_container: Option<String>,
    /// The group that it was launched with, by a name unique in its executor.
    #[prost(string, optional, tag = "5")]
    pub group: Option<String>,
    /// How many tasks that group has: with fewer on the disk nothing of it was begun.
    #[prost(uint32, tag = "6")]
    pub group_size: u32,
}

/// `executor.info`: an executor that is more than one command, durable before it is launched.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ExecutorRecord {
    /// As the framework sent it.
    #[prost(message, required, tag = "1")]
    pub info: ExecutorInfo,
    /// The framework at that time.
    #[prost(message, required, tag = "2")]
    pub framework: FrameworkInfo,
}

/// One record of `task.updates` or `executor.log`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LogRecord {
    #[prost(oneof = "LogEntry", tags = "1, 2, 3, 4, 5")]
    pub entry: Option<LogEntry>,
}

/// What happened to a task or an executor.
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
    /// A task was handed to its executor at this time, nanoseconds since the Unix epoch.
    #[prost(uint64, tag = "5")]
    Delivered(u64),
}

/// The process that keeps the container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Started {
    /// `pid start boot`, see `meseta_isolators::ProcessIdentity`.
    #[prost(string, tag = "1")]
    pub supervisor: String,
    /// The task's main process as the host numbers it; 0 if that is not known.
    #[prost(int32, tag = "2")]
    pub task_pid: i32,
    /// When, nanoseconds since the Unix epoch.
    #[prost(uint64, tag = "3")]
    pub at_unix_ns: u64,
    /// The same, nanoseconds since the supervisor's boot; earlier versions did not write it.
    #[prost(uint64, optional, tag = "4")]
    pub uptime_ns: Option<u64>,
}

/// A kill, with what remains of it after a restart.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct KillRequested {
    /// Time the task gets between the first signal and the last.
    #[prost(uint64, tag = "1")]
    pub grace_ns: u64,
    /// When it was asked for, nanoseconds since the Unix epoch.
    #[prost(uint64, tag = "2")]
    pub at_unix_ns: u64,
    /// The cause of the kill, a [`KillCause`].
    #[prost(enumeration = "KillCause", tag = "3")]
    pub cause: i32,
    /// When it was asked for, nanoseconds since the boot `boot_id`; earlier versions did not write it.
    #[prost(uint64, optional, tag = "4")]
    pub uptime_ns: Option<u64>,
    /// The boot that `uptime_ns` counts from.
    #[prost(string, optional, tag = "5")]
    pub boot_id: Option<String>,
}

/// Cause of a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum KillCause {
    /// The record does not name a cause.
    Unknown = 0,
    /// The framework, by KILL.
    Framework = 1,
    /// The clock: `TaskInfo.max_completion_time` is over.
    CompletionTime = 2,
    /// Its executor or framework was shut down.
    Shutdown = 3,
    /// The agent is being drained.
    Drain = 4,
    /// The agent itself ends and takes its tasks along.
    AgentExit = 5,
    /// Another task of its group did not finish well.
    Group = 6,
    /// Its health check failed too often in a row.
    Unhealthy = 7,
    /// It ran on revocable resources and was evicted in favour of regular work.
    Preempted = 8,
}

impl LogRecord {
    /// A record of one entry.
    pub fn of(entry: LogEntry) -> Self {
        Self { entry: Some(entry) }
    }
}
