//! The errors that prevent the start of an agent, or end it, each with its remedy.

use std::net::SocketAddr;

use crate::checkpoint::ReadError;
use crate::configuration::ConfigurationError;
use crate::directories::DirectoryError;
use crate::link::MasterAddressError;
use crate::oversubscription::OversubscriptionError;

/// The reason why the daemon could not start, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A flag has an invalid value.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// The settings of oversubscription are invalid.
    #[error(transparent)]
    Oversubscription(#[from] OversubscriptionError),
    /// The value of `--master` is invalid.
    #[error(transparent)]
    Master(#[from] MasterAddressError),
    /// Authentication or TLS is missing or cannot be configured.
    #[error(transparent)]
    Authentication(#[from] meseta_daemon::authentication::SettingsError),
    /// The tokens that identify executors cannot be made.
    #[error(transparent)]
    Tokens(#[from] crate::executor_tokens::TokenError),
    /// The address cannot be listened on.
    #[error("failed to listen on {address}{}", listen_hint(source))]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    /// A directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The checkpoints exist but are unusable.
    #[error("failed to read the checkpoints")]
    Checkpoints(#[source] ReadError),
    /// Some of the checkpoints are damaged, and `--strict` forbids to give up their state.
    #[error(
        "{count} damaged checkpoint(s), the first {path} ({why}); with --strict=false the agent starts without its tasks, and keeps the file in meta/quarantine"
    )]
    Damaged {
        count: usize,
        path: std::path::PathBuf,
        /// The damage of the first checkpoint.
        why: String,
    },
    /// The work directory is empty, but containers launched from it are running.
    #[error(
        "{containers} container(s) of this agent run, and {work_dir} has no records of them: \
         mount the disk or restore the directory, or end the containers with --recover=cleanup \
         ({folder})"
    )]
    RecordsGone {
        containers: usize,
        work_dir: std::path::PathBuf,
        /// The folder of these containers.
        folder: std::path::PathBuf,
    },
    /// The former agent at this address left running containers, which no agent would manage.
    #[error(
        "{what}, and it listened on port {port} as this agent does: start it with that --work_dir, or {cure}"
    )]
    LeftBehind {
        what: String,
        port: u16,
        cure: &'static str,
    },
    /// The interface to the kernel could not be opened.
    #[error("failed to prepare for containers: {0}")]
    Containers(String),
    /// The containers of earlier agents could not be listed.
    #[error("failed to list earlier containers in the runtime directory and the cgroups")]
    ListContainers(#[source] std::io::Error),
    /// A thread or task of the agent ended unexpectedly.
    #[error("failed to {0}")]
    Internal(String),
    /// The master refused this agent.
    #[error("refused: {0}")]
    Refused(String),
}

/// The remedy if the address cannot be listened on; the cause is shown beside it.
fn listen_hint(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::AddrInUse => ": is another agent running? (--port=0 takes a free port)",
        std::io::ErrorKind::AddrNotAvailable => {
            ": give --ip an address of this machine (`ip -brief address` lists them)"
        }
        _ => "",
    }
}
