//! Probes of tasks: requests, results, and the state of a task's checks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use meseta_daemon::advertised::usual_loopback;
use meseta_resources::{ContainerId, HostPort, Moment};

use super::launch_plan::LaunchPlan;

/// A probe of a task.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The id that the result carries.
    pub id: ProbeId,
    /// The container of the probed task.
    pub container: ContainerId,
    /// The user of the task, whose rights the probe uses.
    pub user: String,
    pub method: ProbeMethod,
    /// The time after which the probe is cancelled.
    pub timeout: Duration,
}

/// Id of a probe, counted from the agent's start.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct ProbeId(pub u64);

/// The ids of the probes begun so far.
#[derive(Debug, Default)]
pub(super) struct ProbeIds {
    last: ProbeId,
    /// Probes up to this id were running during a pause of the agent, so their failures do not count.
    paused: ProbeId,
}

impl ProbeIds {
    /// The id of a new probe.
    pub(super) fn next(&mut self) -> ProbeId {
        self.last.0 += 1;
        self.last
    }

    /// The id of the last probe.
    pub(super) fn last(&self) -> ProbeId {
        self.last
    }

    /// Notes that the agent has just been paused.
    pub(super) fn note_pause(&mut self) {
        self.paused = self.last;
    }

    /// Whether a probe was running during a pause.
    pub(super) fn was_paused(&self, id: ProbeId) -> bool {
        id <= self.paused
    }
}

/// The method of a probe, which runs in the task's environment.
#[derive(Clone, Debug)]
pub enum ProbeMethod {
    /// A command in the task's container.
    Command(Box<LaunchPlan>),
    /// A GET request to a loopback address, following redirects.
    Http {
        scheme: String,
        host: ProbeHost,
        port: u16,
        path: String,
    },
    /// A connection to a port of a loopback address.
    Tcp { host: ProbeHost, port: u16 },
}

/// The loopback address that a probe connects to.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum ProbeHost {
    /// 127.0.0.1, named by the check.
    V4,
    /// `::1`, named by the check.
    V6,
    /// 127.0.0.1, or `::1` where the task's network has no 127.0.0.1; used if the check names neither.
    Usual,
}

impl ProbeHost {
    /// Returns the address as seen from this thread's network.
    #[must_use]
    pub fn ip(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::LOCALHOST.into(),
            Self::V6 => Ipv6Addr::LOCALHOST.into(),
            Self::Usual => usual_loopback(),
        }
    }

    /// Returns the URL of a path on that host.
    #[must_use]
    pub fn url(self, scheme: &str, port: u16, path: &str) -> String {
        HostPort::from(SocketAddr::new(self.ip(), port)).url(scheme, path)
    }
}

/// Result of a probe.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ProbeResult {
    /// The command ended with this code.
    ExitCode(i32),
    /// The server answered with this status.
    Status(u32),
    /// Whether the connection was established.
    Connected(bool),
    /// No answer: a timeout, or nothing listens.
    NoAnswer(String),
    /// The agent could not run the probe, which shows nothing about the task.
    NotRun(String),
}

/// The two kinds of checks of a task.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub(super) enum CheckKind {
    Health,
    Check,
}

/// State of a task's check and health check.
#[derive(Clone, Debug, Default)]
pub struct CheckState {
    /// The time of the first probe schedule; the grace period counts from here.
    since: Option<Moment>,
    /// Whether the task was ever found healthy.
    was_healthy: bool,
    /// Failures in a row.
    failures: u32,
    /// The probe in progress, per kind.
    in_flight: [Option<ProbeId>; 2],
    /// Whether the last result was not sent for lack of room, per kind.
    untold: [bool; 2],
}

impl CheckState {
    /// Creates the state of a task whose checks begin now.
    pub(super) fn begin(now: Moment, was_healthy: bool) -> Self {
        Self {
            since: Some(now),
            was_healthy,
            ..Self::default()
        }
    }

    /// Notes a probe in progress, or its end.
    pub(super) fn set_probe(&mut self, check_kind: CheckKind, id: Option<ProbeId>) {
        if let Some(in_flight) = self.in_flight.get_mut(check_kind as usize) {
            *in_flight = id;
        }
    }

    /// The kind of the check that a probe in progress belongs to.
    pub(super) fn kind_of(&self, id: ProbeId) -> Option<CheckKind> {
        let in_flight = |kind: &CheckKind| self.in_flight.get(*kind as usize).copied().flatten();
        let mut kinds = [CheckKind::Health, CheckKind::Check].into_iter();
        kinds.find(|kind| in_flight(kind) == Some(id))
    }

    /// Whether a success of the health check must be sent.
    pub(super) fn is_success_news(&self) -> bool {
        !self.was_healthy || self.failures > 0 || self.is_untold(CheckKind::Health)
    }

    /// Notes a success of the health check.
    pub(super) fn note_success(&mut self) {
        self.was_healthy = true;
        self.failures = 0;
    }

    /// Whether a failure of the health check does not count yet.
    pub(super) fn is_in_grace(&self, now: Moment, grace: Duration) -> bool {
        let since = self.since.unwrap_or(now);
        !self.was_healthy && now.saturating_since(since) <= grace
    }

    /// The failures of the health check in a row, with the next failure.
    pub(super) fn failures_with_next(&self) -> u32 {
        self.failures.saturating_add(1)
    }

    /// Notes a failure of the health check.
    pub(super) fn note_failure(&mut self) {
        self.failures = self.failures_with_next();
    }

    /// Whether the last result is still to be sent.
    pub(super) fn is_untold(&self, check_kind: CheckKind) -> bool {
        self.untold
            .get(check_kind as usize)
            .copied()
            .unwrap_or_default()
    }

    /// Notes whether the last result was sent.
    pub(super) fn note_told(&mut self, check_kind: CheckKind, is_told: bool) {
        if let Some(untold) = self.untold.get_mut(check_kind as usize) {
            *untold = !is_told;
        }
    }
}
