//! Errors for invalid flags, and for flags that contradict the former configuration of the agent.

use meseta_isolators::IsolationError;

use super::reconfiguration::ReconfigurationPolicy;

/// A flag with an invalid value.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// The value of `--resources`.
    #[error("--resources is invalid: {0}")]
    Resources(String),
    /// The value of `--default_role`.
    #[error("--default_role is invalid: {0}")]
    DefaultRole(String),
    /// The value of `--attributes`.
    #[error("--attributes is invalid: {0}")]
    Attributes(String),
    /// The value of `--domain`.
    #[error("--domain is invalid: {0}")]
    Domain(String),
    /// The value of `--isolation`.
    #[error("--isolation is invalid")]
    Isolation(#[source] IsolationError),
    /// A flag of isolation, of log files, or of memory.
    #[error("--{flag} is invalid: {why}")]
    IsolationFlag { flag: &'static str, why: String },
    /// The isolation is weaker than requested.
    #[error(
        "isolation is too weak: {0}; provide the missing parts, name isolators with --isolation, or accept this \
         with --allow_weak_isolation"
    )]
    WeakIsolation(String),
    /// An isolator of `--isolation` needs a cgroup tree in which no group can be made.
    #[error("this machine cannot provide --isolation: {remedy}")]
    UnusableTrees {
        #[source]
        source: IsolationError,
        remedy: String,
    },
    /// The value of `--executor_environment_variables`.
    #[error("--executor_environment_variables is not a JSON object of strings: {0}")]
    Variables(String),
    /// A `file://` that cannot be read.
    #[error("--{flag} names {path}, which cannot be read: {why}")]
    File {
        flag: &'static str,
        path: String,
        why: String,
    },
    /// The value of `--resources` contradicts the existing reservations and volumes.
    #[error(
        "the resources {given} lack {missing}, which reservations or volumes of this agent use \
         ({checkpointed}): give at least the earlier resources, or move {path} away to lose the \
         reservations and volumes"
    )]
    Checkpointed {
        /// The resources in the configuration.
        given: String,
        /// The reservations and volumes made of the resources.
        checkpointed: String,
        /// The missing part of the resources.
        missing: String,
        path: String,
    },
    /// A flag that may not be zero.
    #[error("--{0} must be above 0")]
    Zero(&'static str),
    /// The value of `--gc_disk_headroom`.
    #[error("--gc_disk_headroom must be a share from 0 to 1, not {0}")]
    Headroom(f64),
    /// The value of `--hostname`.
    #[error("--hostname is invalid: {0:?}")]
    Hostname(String),
    /// The recorded configuration of the agent is unreadable.
    #[error(
        "failed to read the {what} that this agent was registered with ({why}): start the \
         version that wrote the record, or remove {latest} to start as a new agent, which ends \
         its tasks"
    )]
    UnreadableRecord {
        what: &'static str,
        why: String,
        /// The link that identifies this agent as the same.
        latest: String,
    },
    /// The recorded configuration does not match the new one.
    #[error(
        "the {what} of this agent changed from {before} to {now}, which \
         --reconfiguration_policy={policy} does not allow: restore the earlier value, or remove \
         {latest} to start as a new agent, which ends its tasks"
    )]
    Incompatible {
        what: &'static str,
        before: String,
        now: String,
        /// The policy in force.
        policy: ReconfigurationPolicy,
        /// The link that identifies this agent as the same.
        latest: String,
    },
}

/// The error for an invalid value of this flag.
pub(super) fn refused(flag: &'static str, why: impl Into<String>) -> ConfigurationError {
    ConfigurationError::IsolationFlag {
        flag,
        why: why.into(),
    }
}
