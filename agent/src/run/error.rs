//! Why an agent does not start, or ends: each with what to give or to do instead.

use std::net::SocketAddr;

use crate::checkpoint::ReadError;
use crate::configuration::ConfigurationError;
use crate::directories::DirectoryError;
use crate::link::MasterAddressError;
use crate::oversubscription::OversubscriptionError;

/// Why the daemon could not start, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A flag makes no sense.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// What was given for oversubscription makes no sense.
    #[error(transparent)]
    Oversubscription(#[from] OversubscriptionError),
    /// `--master` makes no sense.
    #[error(transparent)]
    Master(#[from] MasterAddressError),
    /// Authentication or TLS is missing or cannot be configured.
    #[error(transparent)]
    Authentication(#[from] meseta_daemon::authentication::SettingsError),
    /// Executors cannot be told apart.
    #[error(transparent)]
    Tokens(#[from] crate::executor_tokens::TokenError),
    /// Nobody may listen there.
    #[error("failed to listen on {address}{}", listen_hint(source))]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    /// A directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The checkpoints are there but cannot be used.
    #[error("failed to read the checkpoints")]
    Checkpoints(#[source] ReadError),
    /// Some of the checkpoints are damaged, and nothing is to be given up.
    #[error(
        "{count} damaged checkpoint(s), the first {path} ({why}); with --strict=false the agent starts without what it is of, \
         and keeps the file in meta/quarantine"
    )]
    Damaged {
        count: usize,
        path: std::path::PathBuf,
        /// What is wrong with the first.
        why: String,
    },
    /// The work directory is empty, and containers that were launched from it run.
    #[error(
        "{containers} container(s) of this agent run, and {work_dir} has no records of them: mount the disk or put the directory \
         back, or end them with --recover=cleanup ({folder})"
    )]
    RecordsGone {
        containers: usize,
        work_dir: std::path::PathBuf,
        /// The folder of these containers.
        folder: std::path::PathBuf,
    },
    /// The agent that had this address left containers, which nobody would keep.
    #[error(
        "{what}, and it listened on port {port} as this agent does: start it with that --work_dir, or {cure}"
    )]
    LeftBehind {
        what: String,
        port: u16,
        cure: &'static str,
    },
    /// The kernel side could not be opened.
    #[error("failed to prepare for containers: {0}")]
    Containers(String),
    /// Which containers of before are on the machine cannot be told.
    #[error("failed to list the containers of before, in the runtime directory and the cgroups")]
    ListContainers(#[source] std::io::Error),
    /// A thread or a task of ours is gone.
    #[error("failed to {0}")]
    Internal(String),
    /// The master will not have this agent.
    #[error("refused: {0}")]
    Refused(String),
}

/// What to do where nobody can listen; the cause is told beside it.
fn listen_hint(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::AddrInUse => ": is another agent running? (--port=0 takes a free port)",
        std::io::ErrorKind::AddrNotAvailable => {
            ": give --ip an address of this machine (`ip -brief address` lists them)"
        }
        _ => "",
    }
}
