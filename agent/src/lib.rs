//! Meseta's node daemon: core, checkpoints, containerizer, HTTP.
//!
//! Entered through [`run`], with [`Flags`] and a [`RunEnv`]. The decisions are in [`core`], which is pure.
//! [`checkpoint`] stores the state that must survive a crash. `service` owns the core and passes its effects to the
//! components that act on the machine and the network. Invariant: no effect is visible outside before the state behind
//! it is durable, and the agent's own end touches no task unless an operator requested that.
//!
//! ```text
//! run.rs             start and end of the daemon
//! configuration/     the operator's settings, validated
//! service.rs         owns the core; handle.rs is the handle to it
//! core/              decides
//! checkpoint/        the state that survives a crash, and its writer thread
//! link/              the stream to the master
//! containerizer/     containers, from launch to end
//! spec/              the launch specification of a container
//! fetch/             fetches a task's URIs into its sandbox
//! task_connection.rs connections made for a task
//! nested/            containers requested through the API
//! monitor/           usage of containers and the machine
//! oversubscription/  estimators and QoS controllers
//! gc.rs              old sandboxes
//! http/              the API; routes.rs has its paths, permission.rs the permissions, context.rs the shared state of handlers
//! metrics.rs         every metric
//! ```

mod access_flags;
mod budgets;
mod byte_semaphore;
mod capability_grants;
mod check;
pub mod checkpoint;
mod clock;
mod configuration;
mod containerizer;
mod context;
pub mod core;
mod descriptors;
mod detect;
mod directories;
mod disk_report;
mod executor_connections;
mod executor_tokens;
mod failure;
mod fetch;
mod file_user;
mod folders;
mod gc;
mod handle;
mod health;
mod host_paths;
mod http;
mod link;
mod metrics;
mod monitor;
mod nested;
mod other_instances;
mod oversubscription;
mod permission;
mod run;
mod sandbox_files;
mod seccomp_profile;
mod service;
mod spec;
mod task_connection;

pub use access_flags::AccessFlags;
pub use check::{Finding, Severity, check, check_machine};
pub use configuration::flags::{Flags, Recover};
pub use configuration::{
    ConfigurationError, ContainerLogger, IsolationFlags, LogFlags, ReconfigurationPolicy,
    weak_isolation,
};
pub use directories::DirectoryError;
pub use executor_tokens::TokenError;
pub use health::Health;
pub use link::MasterAddressError;
pub use oversubscription::{ModulesError, OversubscriptionError};
pub use run::{CancellationToken, RunEnv, RunError, run};

/// The served paths, for tests that try them all.
pub fn routes() -> impl Iterator<Item = &'static str> {
    http::ROUTES.list.iter().map(|route| route.path)
}

/// Turns this process into the launcher of containers if it was started as one. Must be the first statement of any
/// `main` that calls [`run`], before any thread exists.
pub fn run_launcher_if_requested() -> Option<std::process::ExitCode> {
    meseta_isolators::launcher::run_if_requested()
}
