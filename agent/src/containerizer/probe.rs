//! Runs probes of tasks: by a command in the container, by HTTP, by TCP.
//!
//! Everything is looked at from where the task is: a command runs in its namespaces and groups, and the network is its
//! own. A probe that times out is cancelled and leaves nothing.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use meseta_daemon::error_chain::chain;
use meseta_isolators::{
    Containers, Credentials, DestroyOptions, ExitCause, Inside, LaunchError, LaunchStep,
    ProcessIdentity, is_device_failure, is_shortage,
};
use tracing::warn;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::time::Duration as UreqDuration;
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

use super::state::Entry;
use super::{Containerizer, blocking};
use crate::core::{Input, LaunchPlan, Probe, ProbeMethod, ProbeResult};
use crate::failure::Failure;
use crate::file_user::become_user;
use crate::spec::{LaunchSettings, check_output, logs_of, spec_inside};

/// How much of an answer is read; only its status counts.
const REDIRECTS_MAX: u32 = 10;

impl Containerizer {
    pub(super) fn probe(&self, probe: Probe) {
        let live = match self.inner.table().get(&probe.container) {
            Some(Entry::Running(live)) => Some(live.clone()),
            _ => None,
        };
        let this = self.clone();
        tokio::spawn(async move {
            let (id, container) = (probe.id, probe.container.clone());
            let result = match live {
                Some(live) => {
                    let permit = this.inner.probe_permits.take(&live.run.framework).await;
                    let supervisor = live.supervisor.clone();
                    let inner = this.inner.clone();
                    let probed_result = blocking(move || {
                        run(
                            &inner.containers,
                            &inner.options.settings,
                            &probe,
                            &supervisor,
                        )
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
) -> ProbeResult {
    let timeout = probe.timeout;
    match &probe.method {
        ProbeMethod::Command(plan) => {
            let seen = by_command(containers, settings, probe, plan, supervisor);
            seen.unwrap_or_else(|failure| ProbeResult::NotRun(failure.into()))
        }
        ProbeMethod::Http { url } => {
            let url = url.clone();
            over_its_network(settings, probe, supervisor, move || by_http(&url, timeout))
        }
        ProbeMethod::Tcp { address } => {
            let address = *address;
            over_its_network(settings, probe, supervisor, move || {
                match std::net::TcpStream::connect_timeout(&address, timeout) {
                    Err(error) if is_shortage(&error) => ProbeResult::NotRun(error.to_string()),
                    connected => ProbeResult::Connected(connected.is_ok()),
                }
            })
        }
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
        // Only one process can keep a file to its size, and that of the task's own output is another.
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
        warn!(error = %chain(&error), "a check's processes are not gone");
    }
    let _ = containers.forget(&spec.name);
    if !in_time? {
        return Ok(ProbeResult::NoAnswer("it took too long".to_owned()));
    }
    match record {
        Ok(Some(record)) => Ok(match record.cause {
            ExitCause::Exited(code) => ProbeResult::ExitCode(code),
            // As a shell tells it.
            ExitCause::Signaled(signal) => ProbeResult::ExitCode(signal.saturating_add(128)),
            ExitCause::LaunchFailed { step, .. } => {
                ProbeResult::NoAnswer(format!("its command could not be run: {step:?}"))
            }
        }),
        Ok(None) => Err(Failure::new("its command left no exit record")),
        Err(error) => Err(error.into()),
    }
}

/// Whether a launch failed for what the check itself asked for, and not for want of ours.
fn is_of_command(error: &LaunchError) -> bool {
    match error {
        LaunchError::Step { step, source, .. } => match step {
            // What the kernel refuses to the container's own groups.
            LaunchStep::CloneTask | LaunchStep::JoinCgroup | LaunchStep::Exec => true,
            LaunchStep::CloneSupervisor
            | LaunchStep::RecordIdentity
            | LaunchStep::JoinNamespaces => false,
            _ => !is_shortage(source) && !is_device_failure(source),
        },
        // As after its exec: what runs in the container may end whatever is put into it.
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

/// Looks as the task's user, from where the container's network is: whoever is asked takes it for the task.
fn over_its_network(
    settings: &LaunchSettings,
    probe: &Probe,
    supervisor: &ProcessIdentity,
    run_probe: impl FnOnce() -> ProbeResult + Send + 'static,
) -> ProbeResult {
    let user = settings
        .switch_user
        .then(|| Credentials::lookup(&probe.user));
    match user.transpose() {
        Ok(user) => in_its_network(supervisor, user, run_probe),
        Err(error) => ProbeResult::NotRun(chain(&error)),
    }
}

/// Looks from a thread of its own, which goes where the container's network is if that is elsewhere, and has the
/// user's rights from then on: the kernel remembers them of each socket that it opens.
fn in_its_network(
    supervisor: &ProcessIdentity,
    user: Option<Credentials>,
    run_probe: impl FnOnce() -> ProbeResult + Send + 'static,
) -> ProbeResult {
    let supervisor = supervisor.clone();
    let thread = std::thread::Builder::new()
        .name("check".to_owned())
        .spawn(move || {
            if let Err(error) = enter_network(&supervisor) {
                return ProbeResult::NotRun(format!("failed to enter its network: {error}"));
            }
            match become_user(user.as_ref()) {
                Ok(()) => run_probe(),
                Err(error) => ProbeResult::NotRun(format!("failed to become its user: {error}")),
            }
        });
    match thread.map(std::thread::JoinHandle::join) {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => ProbeResult::NotRun("the check's thread panicked".to_owned()),
        Err(error) => ProbeResult::NotRun(error.to_string()),
    }
}

fn enter_network(supervisor: &ProcessIdentity) -> std::io::Result<()> {
    let theirs = format!("/proc/{}/ns/net", supervisor.pid);
    let elsewhere = match (
        std::fs::read_link(&theirs),
        std::fs::read_link("/proc/thread-self/ns/net"),
    ) {
        (Ok(theirs), Ok(ours)) => theirs != ours,
        // What may not be looked at is not entered either.
        _ => false,
    };
    if !elsewhere {
        return Ok(());
    }
    let gone = || std::io::Error::from_raw_os_error(nix::libc::ESRCH);
    let pidfd = supervisor.open()?.ok_or_else(gone)?;
    Ok(nix::sched::setns(
        pidfd,
        nix::sched::CloneFlags::CLONE_NEWNET,
    )?)
}

fn by_http(url: &str, timeout: Duration) -> ProbeResult {
    // As Mesos, which asks curl not to look at certificates: the task is on this machine.
    let tls = ureq::tls::TlsConfig::builder()
        .disable_verification(true)
        .build();
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(timeout))
        .max_redirects(REDIRECTS_MAX)
        .http_status_as_error(false)
        .tls_config(tls)
        .proxy(None)
        .build();
    let connector = DefaultConnector::default();
    let agent = ureq::Agent::with_parts(config, connector, AddressResolver::default());
    match agent.get(url).call() {
        Ok(answer) => ProbeResult::Status(answer.status().as_u16().into()),
        Err(ureq::Error::Io(error)) if is_shortage(&error) => {
            ProbeResult::NotRun(error.to_string())
        }
        Err(error) => ProbeResult::NoAnswer(error.to_string()),
    }
}

/// Takes an address as it is; only a name, which an answer may lead to, is looked up by a thread that can be
/// abandoned. Without memory for a thread ureq panics.
#[derive(Debug, Default)]
struct AddressResolver {
    names: DefaultResolver,
}

impl Resolver for AddressResolver {
    fn resolve(
        &self,
        uri: &ureq::http::Uri,
        config: &ureq::config::Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let host = uri.host().unwrap_or_default();
        let address = host.trim_start_matches('[').trim_end_matches(']');
        let after = match address.parse::<std::net::IpAddr>() {
            Ok(_) => UreqDuration::NotHappening,
            Err(_) => timeout.after,
        };
        self.names
            .resolve(uri, config, NextTimeout { after, ..timeout })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by ENOMEM at the clone of a thread: the check's thread panicked.
    #[test]
    fn no_thread_is_needed_to_look_up_an_address() {
        let config = ureq::Agent::config_builder().build();
        // No thread answers in no time at all.
        let at_once = NextTimeout {
            after: UreqDuration::Exact(Duration::ZERO),
            ..NextTimeout::default()
        };
        let found = |url: &str| {
            let uri = url.parse().expect("a URL");
            let found = AddressResolver::default().resolve(&uri, &config, at_once);
            found.map(|found| found.first().copied())
        };
        for (url, address) in [
            ("http://127.0.0.1:81/x", "127.0.0.1:81"),
            ("http://[::1]/", "[::1]:80"),
        ] {
            let address = address.parse().expect("an address");
            assert_eq!(found(url).expect("an address"), Some(address), "{url}");
        }
    }
}
