//! A custom isolator: no core dumps, and a quarter of the usual weight for every container.
//!
//! `cargo run -p meseta-isolators --example custom_isolator` as root runs a shell with this isolator. `docs/isolation.md`
//! explains the parts.

use std::process::ExitCode;
use std::time::Duration;

use meseta_isolators::cgroup::{Groups, Version};
use meseta_isolators::isolator::Observed;
use meseta_isolators::{
    Command, ContainerName, ContainerSpec, Containers, Controller, Demand, Destination,
    DestroyOptions, Host, Isolation, Isolator, KnobWrite, LaunchIsolation, NodeOptions, Options,
    Rlimit, TaskIsolation,
};

/// The value of `RLIMIT_CORE`.
const CORE: u32 = 4;

#[derive(Debug)]
struct Modest;

impl Isolator for Modest {
    fn name(&self) -> &'static str {
        "example/modest"
    }

    fn controllers(&self) -> &'static [Controller] {
        &[Controller::Cpu]
    }

    // Pure: the writes follow from the demand and from the observed values alone.
    fn plan(&self, demand: &Demand, groups: &Groups, _observed: &Observed) -> Vec<KnobWrite> {
        let Some(group) = groups.get(Controller::Cpu) else {
            return Vec::new();
        };
        let (file, per_cpu) = match group.version {
            Version::V1 => ("cpu.shares", 256),
            Version::V2 => ("cpu.weight", 25),
        };
        let weight = (per_cpu * demand.cpus_millis / 1000).max(2);
        vec![KnobWrite::new(Controller::Cpu, file, weight)]
    }

    fn launch(&self, _spec: &ContainerSpec, launch: &mut LaunchIsolation) -> Result<(), String> {
        launch.rlimits.push(Rlimit {
            resource: CORE,
            soft: 0,
            hard: 0,
        });
        Ok(())
    }
}

fn main() -> ExitCode {
    if let Some(code) = meseta_isolators::launcher::run_if_requested() {
        return code;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let host = Host::detect()?;
    let options = Options {
        runtime_dir: folder.path().join("run"),
        cgroups_root: format!("meseta-example-{}", std::process::id()).into(),
        instance: ContainerName::new("example")?,
        isolation: Isolation::default_for(&host),
        enable_cfs: false,
        revocable_cpu_low_priority: true,
        limit_swap: false,
        pids_limit: None,
        launch_timeout: Duration::from_secs(10),
    };
    let node = NodeOptions::default();
    let containers = Containers::open_with(host, options, &node, vec![Box::new(Modest)])?;
    let name = ContainerName::new("modest")?;
    let spec = ContainerSpec {
        name: name.clone(),
        command: Command::Shell("ulimit -c".to_owned()),
        env: Vec::new(),
        working_dir: folder.path().to_owned(),
        credentials: None,
        stdout: Destination::file(folder.path(), "out"),
        stderr: Destination::file(folder.path(), "err"),
        hostname: None,
        rlimits: Vec::new(),
        demand: Demand {
            cpus_millis: 1000,
            ..Demand::default()
        },
        isolation: TaskIsolation::default(),
        inside: None,
    };
    let launched = containers.launch(&spec)?;
    if let Some(pidfd) = containers.watch(&launched.supervisor)? {
        let pidfd = std::os::fd::AsFd::as_fd(&pidfd);
        let mut poll = [nix::poll::PollFd::new(pidfd, nix::poll::PollFlags::POLLIN)];
        nix::poll::poll(&mut poll, nix::poll::PollTimeout::NONE)?;
    }
    eprintln!(
        "core dumps: {}",
        std::fs::read_to_string(spec.stdout.path())?.trim()
    );
    let supervisor = Some(&launched.supervisor);
    containers.destroy(&name, supervisor, DestroyOptions::default())?;
    containers.forget(&name)?;
    Ok(())
}
