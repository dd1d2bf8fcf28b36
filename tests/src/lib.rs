//! The harness: real daemons on loopback, a scheduler with both encodings, the kernel's view.
//!
//! Each test owns one [`Cluster`], whose drop kills the daemons, empties and removes the cgroups below a root of its own,
//! and deletes the work directory, even if the test failed. The rest of the machine stays untouched.

pub mod acknowledged;
pub mod agent_kills;
pub mod audit;
pub mod call_count;
pub mod cluster;
pub mod daemon;
pub mod dead_mount;
pub mod dice;
pub mod executor;
pub mod faults;
pub mod framework;
pub mod http;
pub mod interrupt;
pub mod jobs;
pub mod kernel;
pub mod leadership;
pub mod master_kills;
pub mod masters;
pub mod mutants;
pub mod network;
pub mod observed;
pub mod power_cuts;
pub mod priority;
pub mod proxy;
pub mod raw;
pub mod recorded_bytes;
pub mod recording;
pub mod revocable;
pub mod scheduler_kills;
pub mod secure;
pub mod simulated_agents;
pub mod small_disk;
pub mod state_check;
pub mod trials;
pub mod update_kills;
pub mod wait;

pub use cluster::{Cluster, Setup};
pub use framework::{Encoding, Framework};

/// The reason why a test cannot run here, if any.
pub type Missing = Option<String>;

/// Returns the reason if the process is not root.
pub fn unless_root() -> Missing {
    (!nix::unistd::Uid::effective().is_root()).then(|| "needs root".to_owned())
}

/// Returns the reason if a program is not installed.
pub fn unless_installed(program: &str) -> Missing {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()));
    (!found).then(|| format!("needs `{program}`, which is not installed"))
}
