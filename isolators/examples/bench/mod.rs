//! The shared parts of the measuring programs beside this folder: their setup and their containers.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use meseta_isolators::{
    Command, ContainerName, ContainerSpec, Containers, Demand, Destination, Host, Isolation,
    Options, TaskIsolation,
};

pub(crate) type AnyError = Box<dyn std::error::Error + Send + Sync>;

pub(crate) const MEMORY_BYTES: u64 = 64 << 20;

pub(crate) fn run(measure: impl FnOnce() -> Result<(), AnyError>) -> ExitCode {
    if let Some(code) = meseta_isolators::launcher::run_if_requested() {
        return code;
    }
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The cgroups root of this program alone, below every hierarchy.
pub(crate) fn cgroups_root() -> PathBuf {
    format!("meseta-bench-{}", std::process::id()).into()
}

pub(crate) fn open(
    host: &Host,
    isolation: Isolation,
    folder: &Path,
    name: &str,
) -> Result<Containers, AnyError> {
    let options = Options {
        runtime_dir: folder.join(name),
        cgroups_root: cgroups_root(),
        instance: ContainerName::new(name)?,
        isolation,
        enable_cfs: true,
        revocable_cpu_low_priority: true,
        limit_swap: false,
        pids_limit: Some(64),
        launch_timeout: Duration::from_secs(10),
    };
    Ok(Containers::open(host.clone(), options)?)
}

/// The specification of container `number`, which runs the program at a path with these arguments.
pub(crate) fn spec(
    number: u64,
    folder: &Path,
    program: &str,
    args: &[&str],
) -> Result<ContainerSpec, AnyError> {
    let args = [program].into_iter().chain(args.iter().copied());
    Ok(ContainerSpec {
        name: ContainerName::new(&format!("c{number}"))?,
        command: Command::Argv {
            program: program.into(),
            args: args.map(Into::into).collect(),
        },
        env: Vec::new(),
        working_dir: folder.to_owned(),
        credentials: None,
        stdout: Destination::file(folder, "out"),
        stderr: Destination::file(folder, "err"),
        hostname: None,
        rlimits: Vec::new(),
        demand: Demand {
            cpus_millis: 100,
            mem_bytes: Some(MEMORY_BYTES),
            ..Demand::default()
        },
        isolation: TaskIsolation::default(),
        inside: None,
    })
}
