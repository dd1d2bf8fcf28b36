//! Checks and health checks: when a task is looked at, and what is told of what was seen.
//!
//! The shell does one look at a time ([`Probe`]); the core keeps the clock, counts failures and tells the
//! scheduler. A health check that fails too often in a row ends its task; a check never does. Invariants:
//! nothing is looked at before its delay or after a kill; only changes of a check are told, and of a
//! health check every failure that counts; that the agent could not look is no failure of the task.

use std::time::Duration;

use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::check_status_info as status_of;
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_resources::{ContainerId, Moment, Now};
use tracing::{info, warn};

use super::kill::grace_of_task;
use super::model::{Phase, Unit};
use super::{Action, AgentCore, Destination, LaunchPlan, Subject, Timer};
use crate::checkpoint::{KillCause, nested_id};

/// Two looks are never closer than this, whatever a task asks for.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// What no timeout means: long, but over some day.
const TIMEOUT_NONE: Duration = Duration::from_secs(3600);

/// One look at a task.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Names the answer.
    pub id: ProbeId,
    /// The container that is looked into.
    pub container: ContainerId,
    /// The task's user, with whose rights it is looked.
    pub user: String,
    /// How.
    pub look: Look,
    /// When it is given up.
    pub timeout: Duration,
}

/// Which look, counted from the agent's start.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct ProbeId(pub u64);

/// How a task is looked at, from where it runs.
#[derive(Clone, Debug)]
pub enum Look {
    /// By a command, in its container.
    Command(Box<LaunchPlan>),
    /// By a GET to this URL, following redirects.
    Http {
        /// The URL; its host is the loopback address.
        url: String,
    },
    /// By connecting.
    Tcp {
        /// To a loopback address.
        address: std::net::SocketAddr,
    },
}

/// What was seen.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Sight {
    /// The command ended with this code.
    ExitCode(i32),
    /// The server answered with this status.
    Status(u32),
    /// Whether the connection stood.
    Connected(bool),
    /// Nothing: it took too long, or there was nobody to answer.
    Nothing(String),
    /// The agent could not look, which says nothing of the task.
    NotTaken(String),
}

/// The two kinds of checks that one task can have.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub(super) enum Which {
    Health,
    Check,
}

/// How a task's checks stand.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// Since when it is looked at; the grace period counts from here.
    since: Option<Moment>,
    /// Whether it was ever found healthy.
    was_healthy: bool,
    /// Failures in a row.
    failures: u32,
    /// The look under way, per kind.
    looking: [Option<ProbeId>; 2],
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

struct Times {
    delay: Duration,
    interval: Duration,
    timeout: Duration,
}

fn times(info: &pb::TaskInfo, which: Which) -> Option<Times> {
    let (delay, interval, timeout) = match which {
        Which::Health => {
            let check = info.health_check.as_ref()?;
            (
                check.delay_seconds(),
                check.interval_seconds(),
                check.timeout_seconds(),
            )
        }
        Which::Check => {
            let check = info.check.as_ref()?;
            (
                check.delay_seconds(),
                check.interval_seconds(),
                check.timeout_seconds(),
            )
        }
    };
    let timeout = seconds(timeout);
    Some(Times {
        delay: seconds(delay),
        interval: seconds(interval).max(PAUSE_MIN),
        timeout: if timeout.is_zero() {
            TIMEOUT_NONE
        } else {
            timeout
        },
    })
}

impl AgentCore {
    /// Begins to look at a task that runs.
    pub(super) fn arm_checks(&mut self, now: Now, unit: &Unit) {
        self.change_task(&unit.task.key, |task| {
            task.watch = Watch {
                since: Some(now.moment),
                was_healthy: task.healthy == Some(true),
                ..Watch::default()
            };
        });
        for which in [Which::Health, Which::Check] {
            if let Some(times) = times(&unit.task.info, which) {
                let container = unit.container().id.clone();
                self.set_timer(now.moment + times.delay, Timer::Probe(container, which));
            }
        }
    }

    pub(super) fn probe_due(&mut self, container: &ContainerId, which: Which) {
        let Some(unit) = self.unit_of(container) else {
            return;
        };
        if unit.container().phase != Phase::Running || unit.container().kill.is_some() {
            return;
        }
        let Some(times) = times(&unit.task.info, which) else {
            return;
        };
        self.probes += 1;
        let id = ProbeId(self.probes);
        let Some(look) = self.look_at(&unit, which, id) else {
            return;
        };
        self.change_task(&unit.task.key, |task| {
            if let Some(looking) = task.watch.looking.get_mut(which as usize) {
                *looking = Some(id);
            }
        });
        let probe = Probe {
            id,
            container: container.clone(),
            user: unit.task.user.clone(),
            look,
            timeout: times.timeout,
        };
        self.show_now(
            Destination::Container(container.clone()),
            Action::Probe(Box::new(probe)),
        );
    }

    fn look_at(&self, unit: &Unit, which: Which, id: ProbeId) -> Option<Look> {
        let info = &*unit.task.info;
        if which == Which::Health {
            let check = info.health_check.as_ref()?;
            return match check.r#type() {
                pb::health_check::Type::Command => {
                    Some(self.look_by_command(unit, which, check.command.as_ref()?, id))
                }
                pb::health_check::Type::Http => {
                    let http = check.http.as_ref()?;
                    let host = loopback(http.protocol() == pb::network_info::Protocol::IPv6);
                    let scheme = http.scheme.as_deref().unwrap_or("http");
                    let path = http.path.as_deref().unwrap_or_default();
                    let address = address(host, http.port)?;
                    let url = format!("{scheme}://{address}{path}");
                    Some(Look::Http { url })
                }
                pb::health_check::Type::Tcp => {
                    let tcp = check.tcp.as_ref()?;
                    let host = loopback(tcp.protocol() == pb::network_info::Protocol::IPv6);
                    let address = address(host, tcp.port)?;
                    Some(Look::Tcp { address })
                }
                pb::health_check::Type::Unknown => None,
            };
        }
        let check = info.check.as_ref()?;
        match check.r#type() {
            pb::check_info::Type::Command => {
                let command = &check.command.as_ref()?.command;
                Some(self.look_by_command(unit, which, command, id))
            }
            pb::check_info::Type::Http => {
                let http = check.http.as_ref()?;
                let path = http.path.as_deref().unwrap_or_default();
                let address = address(loopback(false), http.port)?;
                let url = format!("http://{address}{path}");
                Some(Look::Http { url })
            }
            pb::check_info::Type::Tcp => Some(Look::Tcp {
                address: address(loopback(false), check.tcp.as_ref()?.port)?,
            }),
            pb::check_info::Type::Unknown => None,
        }
    }

    /// The check's command, as the task's user and with its environment, in its container.
    fn look_by_command(
        &self,
        unit: &Unit,
        which: Which,
        command: &pb::CommandInfo,
        id: ProbeId,
    ) -> Look {
        let mut info = (*unit.task.info).clone();
        let own = info.command.take().unwrap_or_default();
        let mut command = command.clone();
        let mut variables = own.environment.unwrap_or_default().variables;
        variables.extend(command.environment.unwrap_or_default().variables);
        command.environment = Some(pb::Environment { variables });
        info.command = Some(command);
        info.container = None;
        let inside = &unit.container().id;
        let kind = match which {
            Which::Health => "health-check",
            Which::Check => "check",
        };
        let container = nested_id(inside, &format!("{kind}-{}", id.0));
        Look::Command(Box::new(LaunchPlan {
            run: unit.executor.key.clone(),
            container: container.unwrap_or_else(|| inside.clone()),
            subject: Subject::Task(info.into()),
            user: unit.task.user.clone(),
            role: unit.task.role.clone(),
            demand: unit.container().demand,
            resources: unit.task.resources.clone(),
            volumes: Vec::new(),
            around: Vec::new(),
        }))
    }

    pub(super) fn probed(&mut self, now: Now, container: &ContainerId, id: ProbeId, sight: Sight) {
        let Some(unit) = self.unit_of(container) else {
            return;
        };
        let is_this = |which: &Which| {
            let looking = unit.task.watch.looking.get(*which as usize);
            looking.copied().flatten() == Some(id)
        };
        let Some(which) = [Which::Health, Which::Check].into_iter().find(is_this) else {
            return;
        };
        self.change_task(&unit.task.key, |task| {
            if let Some(looking) = task.watch.looking.get_mut(which as usize) {
                *looking = None;
            }
        });
        if unit.container().phase != Phase::Running || unit.container().kill.is_some() {
            return;
        }
        if let Some(times) = times(&unit.task.info, which) {
            let next = Timer::Probe(container.clone(), which);
            self.set_timer(now.moment + times.interval, next);
        }
        let unsure = match &sight {
            Sight::NotTaken(why) => Some(why.as_str()),
            Sight::Nothing(_) | Sight::Connected(false) if id.0 <= self.probes_paused => {
                Some("the agent stood still meanwhile")
            }
            _ => None,
        };
        if let Some(why) = unsure {
            warn!(task_id = %unit.task.key.task, why, "a task could not be looked at; trying again");
            return;
        }
        match which {
            Which::Health => self.judge_health(now, &unit, &sight),
            Which::Check => self.judge_check(now, &unit, &sight),
        }
    }

    fn judge_health(&mut self, now: Now, unit: &Unit, sight: &Sight) {
        let Some(check) = unit.task.info.health_check.as_ref() else {
            return;
        };
        let watch = &unit.task.watch;
        if is_well(sight) {
            let is_news = !watch.was_healthy || watch.failures > 0;
            self.change_task(&unit.task.key, |task| {
                task.watch.was_healthy = true;
                task.watch.failures = 0;
                task.healthy = Some(true);
            });
            if is_news {
                self.tell_check(now, unit, Reason::TaskHealthCheckStatusUpdated);
            }
            return;
        }
        let grace = seconds(check.grace_period_seconds());
        let since = watch.since.unwrap_or(now.moment);
        if !watch.was_healthy && now.moment.saturating_since(since) <= grace {
            info!(task_id = %unit.task.key.task, ?sight, "a failed health check does not count yet");
            return;
        }
        let failures = watch.failures.saturating_add(1);
        warn!(task_id = %unit.task.key.task, failures, ?sight, "a health check failed");
        self.change_task(&unit.task.key, |task| {
            task.watch.failures = failures;
            task.healthy = Some(false);
        });
        self.tell_check(now, unit, Reason::TaskHealthCheckStatusUpdated);
        if failures >= check.consecutive_failures()
            && let Some(unit) = self.unit_at(&unit.task.key)
        {
            self.kill(now, &unit, KillCause::Unhealthy, grace_of_task(&unit));
        }
    }

    fn judge_check(&mut self, now: Now, unit: &Unit, sight: &Sight) {
        let Some(mut status) = empty_status(&unit.task.info) else {
            return;
        };
        match sight {
            Sight::ExitCode(code) => {
                status.command = Some(status_of::Command {
                    exit_code: Some(*code),
                });
            }
            Sight::Status(code) => {
                status.http = Some(status_of::Http {
                    status_code: Some(*code),
                });
            }
            Sight::Connected(succeeded) => {
                status.tcp = Some(status_of::Tcp {
                    succeeded: Some(*succeeded),
                });
            }
            Sight::Nothing(why) | Sight::NotTaken(why) => {
                info!(task_id = %unit.task.key.task, why, "a check saw nothing");
            }
        }
        if unit.task.check_status.as_ref() == Some(&status) {
            return;
        }
        self.change_task(&unit.task.key, |task| task.check_status = Some(status));
        self.tell_check(now, unit, Reason::TaskCheckStatusUpdated);
    }

    fn tell_check(&mut self, now: Now, unit: &Unit, reason: Reason) {
        let Some(unit) = self.unit_at(&unit.task.key) else {
            return;
        };
        let running = pb::TaskState::TaskRunning;
        let mut status = self.executor_status(now, &unit, running, unit.container().pid);
        status.reason = Some(reason.into());
        self.update_task(now, &unit.task.key, status);
    }
}

fn is_well(sight: &Sight) -> bool {
    match sight {
        Sight::ExitCode(code) => *code == 0,
        Sight::Status(status) => (200..400).contains(status),
        Sight::Connected(connected) => *connected,
        Sight::Nothing(_) | Sight::NotTaken(_) => false,
    }
}

/// What is told of a check that has seen nothing yet: its type alone.
pub(super) fn empty_status(info: &pb::TaskInfo) -> Option<pb::CheckStatusInfo> {
    let kind = info.check.as_ref()?.r#type();
    Some(pb::CheckStatusInfo {
        r#type: Some(kind.into()),
        command: (kind == pb::check_info::Type::Command).then(Default::default),
        http: (kind == pb::check_info::Type::Http).then(Default::default),
        tcp: (kind == pb::check_info::Type::Tcp).then(Default::default),
    })
}

fn loopback(is_v6: bool) -> std::net::IpAddr {
    if is_v6 {
        std::net::Ipv6Addr::LOCALHOST.into()
    } else {
        std::net::Ipv4Addr::LOCALHOST.into()
    }
}

fn address(host: std::net::IpAddr, port: u32) -> Option<std::net::SocketAddr> {
    Some(std::net::SocketAddr::new(host, u16::try_from(port).ok()?))
}
