//! Probes of tasks: what is asked, what is answered, and what a task's checks remember of it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use meseta_daemon::advertised::usual_loopback;
use meseta_resources::{ContainerId, HostPort, Moment};

use super::launch_plan::LaunchPlan;

/// One probe of a task.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The id that the result carries.
    pub id: ProbeId,
    /// The container that is looked into.
    pub container: ContainerId,
    /// The task's user, with whose rights it is looked.
    pub user: String,
    pub method: ProbeMethod,
    /// When it is given up.
    pub timeout: Duration,
}

/// Id of a probe, counted from the agent's start.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct ProbeId(pub u64);

/// How a task is probed, from where it runs.
#[derive(Clone, Debug)]
pub enum ProbeMethod {
    /// By a command, in its container.
    Command(Box<LaunchPlan>),
    /// By a GET to a loopback address, following redirects.
    Http {
        scheme: String,
        host: ProbeHost,
        port: u16,
        path: String,
    },
    /// By connecting to a port of a loopback address.
    Tcp { host: ProbeHost, port: u16 },
}

/// The loopback address that a probe connects to.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum ProbeHost {
    /// 127.0.0.1, which the check asks for.
    V4,
    /// `::1`, which the check asks for.
    V6,
    /// 127.0.0.1, or `::1` where the task's network has no 127.0.0.1: the check names neither.
    Usual,
}

impl ProbeHost {
    /// Returns the address as seen from the network that this thread is in.
    #[must_use]
    pub fn ip(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::LOCALHOST.into(),
            Self::V6 => Ipv6Addr::LOCALHOST.into(),
            Self::Usual => usual_loopback(),
        }
    }

    /// Returns the URL of a path there.
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
    /// Whether the connection stood.
    Connected(bool),
    /// No answer: a timeout, or nothing listens.
    NoAnswer(String),
    /// The agent could not run the probe; says nothing of the task.
    NotRun(String),
}

/// The two kinds of checks that one task can have.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub(super) enum CheckKind {
    Health,
    Check,
}

/// State of a task's check and health check.
#[derive(Clone, Debug, Default)]
pub struct CheckState {
    /// Since when it is looked at; the grace period counts from here.
    pub(super) since: Option<Moment>,
    /// Whether it was ever found healthy.
    pub(super) was_healthy: bool,
    /// Failures in a row.
    pub(super) failures: u32,
    /// The look under way, per kind.
    pub(super) in_flight: [Option<ProbeId>; 2],
    /// Whether there was no room for what the last look was to tell, per kind.
    pub(super) untold: [bool; 2],
}

impl CheckState {
    /// Whether what was seen last is still to be told.
    pub(super) fn is_untold(&self, check_kind: CheckKind) -> bool {
        self.untold
            .get(check_kind as usize)
            .copied()
            .unwrap_or_default()
    }

    pub(super) fn note_told(&mut self, check_kind: CheckKind, is_told: bool) {
        if let Some(untold) = self.untold.get_mut(check_kind as usize) {
            *untold = !is_told;
        }
    }
}
