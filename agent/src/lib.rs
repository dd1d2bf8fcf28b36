//! Meseta's node daemon: core, checkpoints, containerizer, HTTP.
//!
//! Entered through [`run`], with [`Flags`] and a [`RunEnv`]. The decisions are in [`core`], which is
//! pure; what must survive a crash is in [`checkpoint`]; `service` owns the core and hands its effects
//! to what touches the machine and the network. Invariant: nothing is visible outside before what it says
//! is durable, and the agent's own end touches no task unless it was told so.
//!
//! ```text
//! run.rs             start and end of the daemon
//! configuration/     what the operator gives, checked
//! service.rs         owns the core; handle.rs is the way in to it
//! core/              decides
//! checkpoint/        what survives a crash, and the thread that writes it
//! link/              the stream to the master
//! containerizer/     containers, from launch to end
//! spec/              what a container is launched with
//! fetch/             what a task wants fetched into its sandbox
//! task_connection.rs connections that are made for a task
//! nested/            containers that are asked for over the API
//! monitor/           what containers and the machine use
//! oversubscription/  estimators and QoS controllers
//! gc.rs              old sandboxes
//! http/              the API; routes.rs has its paths, permission.rs who may what, context.rs what handlers share
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

/// The paths that are served, for tests that try them all.
pub fn routes() -> impl Iterator<Item = &'static str> {
    http::ROUTES.list.iter().map(|route| route.path)
}

/// Turns this process into the launcher of containers if it was started as one. Must be the first
/// statement of any `main` that calls [`run`], before any thread exists.
pub fn run_launcher_if_requested() -> Option<std::process::ExitCode> {
    meseta_isolators::launcher::run_if_requested()
}
