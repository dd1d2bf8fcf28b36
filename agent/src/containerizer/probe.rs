//! Runs probes of tasks: by a command in the container, by HTTP, by TCP.
//!
//! A probe runs in the environment of the task: a command in its namespaces and groups, a connection in its network. A
//! probe that times out, or whose task ends, is cancelled and leaves nothing behind.
//!
//! ```text
//! http.rs      HTTP checks
//! location.rs  targets of redirects
//! ```

mod http;
mod location;

use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use meseta_daemon::error_chain::chain;
use meseta_isolators::{
    Containers, Credentials, DestroyOptions, ExitCause, Inside, LaunchError, LaunchStep,
    ProcessIdentity, is_device_failure, is_shortage,
};
use tracing::warn;

use super::{Containerizer, blocking};
use crate::core::{Input, LaunchPlan, Probe, ProbeMethod, ProbeResult};
use crate::failure::Failure;
use crate::file_user::become_user;
use crate::spec::{LaunchSettings, check_output, logs_of, spec_inside};
use crate::task_connection::{NoLook, TaskLife, is_no_look};
use http::{Lookups, by_http};

impl Containerizer {
    pub(super) fn probe(&self, probe: Probe) {
        let live = self.inner.table.running(&probe.container);
        let this = self.clone();
        tokio::spawn(async move {
            let (id, container) = (probe.id, probe.container.clone());
            let result = match live {
                Some(live) => {
                    let permit = this.inner.probe_permits.take(&live.run.framework).await;
                    let supervisor = live.supervisor.clone();
                    let lookups = Lookups {
                        permits: this.inner.lookup_permits.clone(),
                        framework: live.run.framework.clone(),
                    };
                    let inner = this.inner.clone();
                    let probed_result = blocking(move || {
                        let settings = &inner.options.settings;
                        // A probe over the network launches nothing.
                        let is_launched = matches!(probe.method, ProbeMethod::Command(_));
                        if is_launched && let Err(failure) = inner.restore_runtime_folder() {
                            return ProbeResult::NotRun(failure.into());
                        }
                        run(&inner.containers, settings, &probe, &supervisor, lookups)
                    });
                    let probed_result = probed_result.await;
                    drop(permit);
                    probed_result.unwrap_or_else(|panic| ProbeResult::NotRun(panic.to_string()))
                }
                None => ProbeResult::NotRun("its container does not run".to_owned()),
            };
            let probed = Input::Probed {
                container,
                id,
                result,
            };
            this.inner.tell(probed).await;
        });
    }
}

/// Runs one probe. Blocking.
fn run(
    containers: &Containers,
    settings: &LaunchSettings,
    probe: &Probe,
    supervisor: &ProcessIdentity,
    lookups: Lookups,
) -> ProbeResult {
    let timeout = probe.timeout;
    match &probe.method {
        ProbeMethod::Command(plan) => {
            let seen = by_command(containers, settings, probe, plan, supervisor);
            seen.unwrap_or_else(|failure| ProbeResult::NotRun(failure.into()))
        }
        ProbeMethod::Http {
            scheme,
            host,
            port,
            path,
        } => {
            let (scheme, host, port, path) = (scheme.clone(), *host, *port, path.clone());
            over_its_network(settings, probe, supervisor, move |life| {
                by_http(&host.url(&scheme, port, &path), timeout, life, lookups)
            })
        }
        ProbeMethod::Tcp { host, port } => {
            let (host, port) = (*host, *port);
            over_its_network(settings, probe, supervisor, move |life| {
                by_tcp(SocketAddr::new(host.ip(), port), timeout, life)
            })
        }
    }
}

fn by_tcp(address: SocketAddr, timeout: Duration, life: &TaskLife) -> ProbeResult {
    match life.connect_within(address, timeout) {
        Err(error) if is_no_look(&error) => ProbeResult::NotRun(error.to_string()),
        connected => ProbeResult::Connected(connected.is_ok()),
    }
}

fn by_command(
    containers: &Containers,
    settings: &LaunchSettings,
    probe: &Probe,
    plan: &LaunchPlan,
    supervisor: &ProcessIdentity,
) -> Result<ProbeResult, Failure> {
    let inside = Inside {
        supervisor: supervisor.clone(),
        stdin: None,
        terminal: false,
    };
    let mut spec = spec_inside(settings, plan, &probe.container, inside)?;
    let log = logs_of(settings, plan)?.stderr;
    if log.is_some() {
        // Only one process can limit the size of a file, so the output of the check does not go to that of the task.
        spec.stdout = check_output(settings, plan, &probe.container);
        spec.stderr.clone_from(&spec.stdout);
    }
    spec.isolation.stdout_log = log;
    spec.isolation.stderr_log = log;
    let began = Instant::now();
    let launched = match containers.launch(&spec) {
        Err(error) if is_of_command(&error) => return Ok(ProbeResult::NoAnswer(chain(&error))),
        launched => launched?,
    };
    let ended = containers.watch(&launched.supervisor);
    let left = probe.timeout.saturating_sub(began.elapsed());
    let in_time = match ended {
        Ok(Some(pidfd)) => Ok(wait(&pidfd, left)),
        Ok(None) => Ok(true),
        Err(error) => Err(Failure::new(format!(
            "failed to wait for its command: {error}"
        ))),
    };
    let record = containers.exit_record(&spec.name);
    let destroyed = containers.destroy(
        &spec.name,
        Some(&launched.supervisor),
        DestroyOptions::default(),
    );
    if let Err(error) = destroyed {
        warn!(error = %chain(&error), "failed to destroy the processes of a check");
    }
    let _ = containers.forget(&spec.name);
    if !in_time? {
        return Ok(ProbeResult::NoAnswer("it took too long".to_owned()));
    }
    match record {
        Ok(Some(record)) => Ok(match record.cause {
            ExitCause::Exited(code) => ProbeResult::ExitCode(code),
            // The exit code of a signal, as in a shell.
            ExitCause::Signaled(signal) => ProbeResult::ExitCode(signal.saturating_add(128)),
            ExitCause::LaunchFailed { step, .. } => {
                ProbeResult::NoAnswer(format!("failed to run its command: {step:?}"))
            }
        }),
        Ok(None) => Err(Failure::new("its command left no exit record")),
        Err(error) => Err(error.into()),
    }
}

/// Whether the check's own command caused the failure, not a shortage in the agent.
fn is_of_command(error: &LaunchError) -> bool {
    match error {
        LaunchError::Step { step, source, .. } => match step {
            // Refused by the kernel for the container's own groups.
            LaunchStep::CloneTask | LaunchStep::JoinCgroup | LaunchStep::Exec => true,
            LaunchStep::CloneSupervisor
            | LaunchStep::RecordIdentity
            | LaunchStep::JoinNamespaces => false,
            _ => !is_shortage(source) && !is_device_failure(source),
        },
        // Processes in the container may kill any process that enters it, as after its exec.
        LaunchError::Killed { .. } => true,
        _ => false,
    }
}

fn wait(pidfd: &std::os::fd::OwnedFd, at_most: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let began = Instant::now();
    loop {
        let left = at_most.saturating_sub(began.elapsed());
        let Ok(timeout) = Timespec::try_from(left) else {
            return false;
        };
        let mut ends = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
        match poll(&mut ends, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(count) => return count > 0,
            Err(_) => return false,
        }
    }
}

/// Runs the probe as the task's user in the container's network, so that it looks like the task itself.
fn over_its_network(
    settings: &LaunchSettings,
    probe: &Probe,
    supervisor: &ProcessIdentity,
    run_probe: impl FnOnce(&TaskLife) -> ProbeResult + Send + 'static,
) -> ProbeResult {
    let user = settings.user_switching.credentials(&probe.user);
    let life = match supervisor.open() {
        Ok(Some(pidfd)) => TaskLife::from_supervisor(pidfd),
        Ok(None) => return ProbeResult::NotRun(NoLook::TaskEnded.to_string()),
        Err(error) => return ProbeResult::NotRun(format!("failed to find its task: {error}")),
    };
    match user {
        Ok(user) => in_its_network(supervisor, life, user, run_probe),
        Err(failure) => ProbeResult::NotRun(failure.into()),
    }
}

/// Runs the probe on its own thread. The thread enters the container's network if that is separate, and takes the
/// user's credentials: the kernel records them for each socket that the thread opens.
fn in_its_network(
    supervisor: &ProcessIdentity,
    life: TaskLife,
    user: Option<Credentials>,
    run_probe: impl FnOnce(&TaskLife) -> ProbeResult + Send + 'static,
) -> ProbeResult {
    let pid = supervisor.pid;
    let thread = std::thread::Builder::new()
        .name("check".to_owned())
        .spawn(move || {
            if let Err(error) = enter_network(pid, &life) {
                return ProbeResult::NotRun(format!("failed to enter its network: {error}"));
            }
            match become_user(user.as_ref()) {
                Ok(()) => run_probe(&life),
                Err(error) => ProbeResult::NotRun(format!("failed to become its user: {error}")),
            }
        });
    match thread.map(std::thread::JoinHandle::join) {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => ProbeResult::NotRun("the check's thread panicked".to_owned()),
        Err(error) => ProbeResult::NotRun(error.to_string()),
    }
}

fn enter_network(pid: i32, life: &TaskLife) -> std::io::Result<()> {
    let theirs = format!("/proc/{pid}/ns/net");
    let elsewhere = match (
        std::fs::read_link(&theirs),
        std::fs::read_link("/proc/thread-self/ns/net"),
    ) {
        (Ok(theirs), Ok(ours)) => theirs != ours,
        // A network that may not be inspected is not entered either.
        _ => false,
    };
    if !elsewhere {
        return Ok(());
    }
    Ok(nix::sched::setns(
        life.supervisor(),
        nix::sched::CloneFlags::CLONE_NEWNET,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a connection that nobody accepts blocked the check's slot for up to its timeout.
    #[test]
    fn tcp_check_ends_with_its_task() {
        let (ended, ends) = std::io::pipe().expect("a pipe");
        let life = TaskLife::from_supervisor(ended.into());
        drop(ends);
        // From a network for documentation: nothing answers, or there is no route.
        let address = "192.0.2.1:9".parse().expect("an address");
        let seen = by_tcp(address, Duration::from_secs(600), &life);
        let ended = ProbeResult::NotRun(NoLook::TaskEnded.to_string());
        assert!(
            [ended, ProbeResult::Connected(false)].contains(&seen),
            "{seen:?}"
        );
    }
}
