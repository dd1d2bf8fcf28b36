//! Why a flag of the agent is refused, or does not go with what the agent was.

use meseta_isolators::IsolationError;

/// A flag makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// `--resources`.
    #[error("--resources is invalid: {0}")]
    Resources(String),
    /// `--default_role`.
    #[error("--default_role is invalid: {0}")]
    DefaultRole(String),
    /// `--attributes`.
    #[error("--attributes is invalid: {0}")]
    Attributes(String),
    /// `--domain`.
    #[error("--domain is invalid: {0}")]
    Domain(String),
    /// `--isolation`.
    #[error("--isolation is invalid")]
    Isolation(#[source] IsolationError),
    /// A flag of isolation, of what is kept of output, or of memory.
    #[error("--{flag} is invalid: {why}")]
    IsolationFlag {
        /// The flag.
        flag: &'static str,
        /// Why.
        why: String,
    },
    /// `--executor_environment_variables`.
    #[error("--executor_environment_variables is no JSON object of strings: {0}")]
    Variables(String),
    /// A `file://` that cannot be read.
    #[error("--{flag} names {path}, which cannot be read: {why}")]
    File {
        /// The flag.
        flag: &'static str,
        /// The file.
        path: String,
        /// Why.
        why: String,
    },
    /// `--resources` and what was reserved of them contradict each other.
    #[error(
        "the resources {given} do not hold {missing}, of which this agent has made reservations or \
         volumes ({checkpointed}): give at least what it had before, or, to lose them, move {path} \
         away"
    )]
    Checkpointed {
        /// What the configuration gives.
        given: String,
        /// What was made of it.
        checkpointed: String,
        /// What is missing of it.
        missing: String,
        /// The record's folder.
        path: String,
    },
    /// A flag that may not be zero.
    #[error("--{0} must be more than nothing")]
    Zero(&'static str),
    /// `--gc_disk_headroom`.
    #[error("--gc_disk_headroom is a share from 0 to 1, not {0}")]
    Headroom(f64),
    /// `--hostname`.
    #[error("--hostname is invalid: {0:?}")]
    Hostname(String),
    /// What the agent was does not go with what it is to be.
    #[error(
        "this agent was registered with other {what} ({before}) than it has now ({now}), which \
         --reconfiguration_policy={policy} does not allow: restore them, or remove \
         {latest} to come back as a new agent (its tasks will be ended)"
    )]
    Incompatible {
        /// What differs.
        what: &'static str,
        /// As it was.
        before: String,
        /// As it is.
        now: String,
        /// The policy in force.
        policy: String,
        /// The link that makes it the same agent.
        latest: String,
    },
}
