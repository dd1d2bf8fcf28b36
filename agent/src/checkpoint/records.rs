//! What is checkpointed, as protobuf messages of the agent's own.
//!
//! Mesos's messages are kept whole inside them. Field numbers are never reused; a reader of the
//! version before must still understand what is written.

use meseta_proto::mesos::v1::{AgentInfo, FrameworkInfo, TaskInfo, TaskStatus};

/// `slave.info`: who the agent is and what it told its master.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AgentRecord {
    /// As registered, `id` included.
    #[prost(message, required, tag = "1")]
    pub info: AgentInfo,
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
    /// The framework at that time, so that the loss of `framework.info` costs nothing.
    #[prost(message, required, tag = "2")]
    pub framework: FrameworkInfo,
    /// When the agent took it, nanoseconds since the Unix epoch.
    #[prost(uint64, tag = "3")]
    pub accepted_unix_ns: u64,
}

/// One record of `task.updates`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LogRecord {
    /// What happened.
    #[prost(oneof = "LogEntry", tags = "1, 2, 3, 4")]
    pub entry: Option<LogEntry>,
}

/// What happened to a task.
#[derive(Clone, PartialEq, prost::Oneof)]
#[expect(
    clippy::large_enum_variant,
    reason = "prost has no boxed oneof of derived messages here; entries are few and short-lived"
)]
pub enum LogEntry {
    /// It was executed.
    #[prost(message, tag = "1")]
    Started(Started),
    /// A status update was made; it is kept until acknowledged.
    #[prost(message, tag = "2")]
    Update(TaskStatus),
    /// The update with this uuid was acknowledged.
    #[prost(bytes = "vec", tag = "3")]
    Acknowledged(Vec<u8>),
    /// Somebody wants it to end.
    #[prost(message, tag = "4")]
    KillRequested(KillRequested),
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
    /// Why: see [`KillCause`].
    #[prost(enumeration = "KillCause", tag = "3")]
    pub cause: i32,
}

/// Who wanted a task's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum KillCause {
    /// Not told.
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
}

impl LogRecord {
    /// A record of one entry.
    pub fn of(entry: LogEntry) -> Self {
        Self { entry: Some(entry) }
    }
}
