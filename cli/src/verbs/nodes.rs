//! `meseta drain`, `deactivate`, `reactivate`, `mark-gone` and `maintenance`: the removal of agents.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use meseta_daemon::calendar;
use meseta_proto::mesos::v1::maintenance::{Schedule, Window};
use meseta_proto::mesos::v1::master::{Call, call};
use meseta_proto::mesos::v1::{AgentId, DurationInfo, MachineId, TimeInfo, Unavailability};
use serde_json::Value;

use super::execute::EXIT_TIMED_OUT;
use super::{MasterFlag, agent_id, agents, call_of, items, lenient, server, table, text};
use crate::terminal;

/// The pause between two queries for the state of a draining agent.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A single agent.
#[derive(Debug, Args)]
pub(crate) struct AgentOptions {
    /// The agent's id, or its host name if the name is unique (see `meseta agents`).
    agent: String,
    #[command(flatten)]
    master: MasterFlag,
}

#[derive(Debug, Args)]
pub(crate) struct DrainOptions {
    #[command(flatten)]
    agent: AgentOptions,
    /// Maximum time that a task has to end. Default: the time that the task asked for.
    #[arg(long = "max_grace_period", value_name = "DURATION", value_parser = lenient::duration)]
    max_grace_period: Option<Duration>,
    /// Mark the agent as gone after the drain: it must not come back.
    #[arg(long = "mark_gone")]
    mark_gone: bool,
    /// Return after the agent is drained. Fail if the agent cannot be drained, for example because it is
    /// unreachable.
    #[arg(long)]
    wait: bool,
    /// Wait at most this long, then exit with 124; the drain continues.
    #[arg(long, value_name = "DURATION", value_parser = lenient::duration, requires = "wait")]
    timeout: Option<Duration>,
}

/// Returns the id of the specified agent.
fn find(options: &AgentOptions) -> anyhow::Result<String> {
    let body = server::get_json(&options.master.master, "/slaves")?;
    let found = agents::find_anywhere(&body, &options.agent)?;
    // The master may know further ids that it does not list.
    Ok(found.unwrap_or_else(|| options.agent.clone()))
}

/// The progress of draining an agent.
#[derive(Debug, PartialEq)]
enum DrainProgress {
    Draining,
    /// The agent has not come back to the present leader, which knows nothing of its tasks before that.
    Awaited,
    Ended,
    /// The rest can end only if the agent comes back.
    Unreachable {
        since: String,
    },
    /// The agent is not drained and will not be.
    GivenUp(&'static str),
}

impl DrainProgress {
    /// Returns the progress of one agent in `/slaves`; `mark_gone` if draining also marks it gone.
    fn from_listed(listed: &Value, id: &str, mark_gone: bool) -> Self {
        let find = |list| items(listed, list).iter().find(|one| text(one, "id") == id);
        if let Some(agent) = find("slaves") {
            let state = agent.pointer("/drain_info/state").and_then(Value::as_str);
            return match state {
                Some("DRAINED") => Self::Ended,
                Some("DRAINING") => Self::Draining,
                _ => Self::GivenUp("was reactivated"),
            };
        }
        if find("recovered_slaves").is_some() {
            return Self::Awaited;
        }
        if let Some(agent) = find("unreachable_slaves") {
            let since = agent.get("unreachable_time").and_then(Value::as_f64);
            return Self::Unreachable {
                since: calendar::utc(since.unwrap_or_default()),
            };
        }
        match find("gone_slaves") {
            Some(_) if mark_gone => Self::Ended,
            Some(_) => Self::GivenUp("was marked gone"),
            None => Self::GivenUp("is no longer registered"),
        }
    }

    fn ask(master: &str, id: &str, mark_gone: bool) -> anyhow::Result<Self> {
        let path = format!("/slaves?slave_id={}", server::encoded(id));
        Ok(Self::from_listed(
            &server::get_json(master, &path)?,
            id,
            mark_gone,
        ))
    }
}

fn unreachable(id: &str, since: &str) -> String {
    format!(
        "agent {id} is unreachable since {since}: its tasks cannot be ended now; if it returns, \
         it drains first; `meseta mark-gone` gives it up"
    )
}

pub(crate) fn drain(options: &DrainOptions) -> anyhow::Result<ExitCode> {
    let id = find(&options.agent)?;
    let master = &options.agent.master.master;
    let max_grace_period = options.max_grace_period.map(|grace| {
        anyhow::Ok(meseta_proto::google::protobuf::Duration {
            seconds: i64::try_from(grace.as_secs())?,
            nanos: i32::try_from(grace.subsec_nanos())?,
        })
    });
    let body = call::DrainAgent {
        agent_id: agent_id(&id),
        max_grace_period: max_grace_period.transpose()?,
        mark_gone: Some(options.mark_gone),
    };
    let drain = Call {
        drain_agent: Some(body),
        ..call_of(call::Type::DrainAgent)
    };
    server::operate(master, &drain)?;
    if options.wait {
        return wait_until_drained(options, &id);
    }
    let progress = DrainProgress::ask(master, &id, options.mark_gone)?;
    terminal::say(&match progress {
        DrainProgress::Unreachable { since } => unreachable(&id, &since),
        _ => format!("agent {id} is draining; `meseta agents` shows how far it is"),
    });
    Ok(ExitCode::SUCCESS)
}

fn wait_until_drained(options: &DrainOptions, id: &str) -> anyhow::Result<ExitCode> {
    let master = &options.agent.master.master;
    let begun = std::time::Instant::now();
    let mut said = Vec::new();
    loop {
        let waiting = match DrainProgress::ask(master, id, options.mark_gone)? {
            DrainProgress::Ended => {
                terminal::say(&format!("agent {id} is drained"));
                return Ok(ExitCode::SUCCESS);
            }
            DrainProgress::Unreachable { since } => bail!(unreachable(id, &since)),
            DrainProgress::GivenUp(why) => bail!("agent {id} is not drained: it {why}"),
            DrainProgress::Draining => obstacles(&server::get_json(master, "/frameworks")?, id),
            DrainProgress::Awaited => {
                vec![format!("agent {id} has not come back to the master yet")]
            }
        };
        if waiting != said {
            for line in &waiting {
                terminal::say(line);
            }
            said = waiting;
        }
        let is_over = |timeout| begun.elapsed() >= timeout;
        if options.timeout.is_some_and(is_over) {
            terminal::note!("meseta: agent {id} is not drained yet; draining continues");
            return Ok(ExitCode::from(EXIT_TIMED_OUT));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Tasks of one framework that are named when they keep an agent from being drained.
const TASKS_NAMED_MAX: usize = 5;

/// Returns the obstacles of an agent's draining: tasks that have not ended, and ends that their frameworks have not
/// acknowledged.
fn obstacles(frameworks: &Value, agent: &str) -> Vec<String> {
    const ENDED: [&str; 8] = [
        "TASK_FINISHED",
        "TASK_FAILED",
        "TASK_KILLED",
        "TASK_ERROR",
        "TASK_LOST",
        "TASK_DROPPED",
        "TASK_GONE",
        "TASK_GONE_BY_OPERATOR",
    ];
    let mut lines = Vec::new();
    let mut running = 0;
    for framework in items(frameworks, "frameworks") {
        let here = items(framework, "tasks").iter();
        let here = here.filter(|task| text(task, "slave_id") == agent);
        let (ended, live): (Vec<_>, Vec<_>) =
            here.partition(|task| ENDED.contains(&text(task, "state").as_str()));
        running += live.len();
        let is_connected = framework.get("connected").and_then(Value::as_bool) == Some(true);
        // An absent framework acknowledges no intermediate step either.
        let ended = if is_connected {
            ended
        } else {
            [ended, live].concat()
        };
        if ended.is_empty() {
            continue;
        }
        let named: Vec<_> = ended
            .iter()
            .take(TASKS_NAMED_MAX)
            .map(|task| text(task, "id"))
            .collect();
        let more = match ended.len() - named.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let id = text(framework, "id");
        lines.push(format!(
            "framework {id} ({}{}) has not acknowledged the end of {}{more}; `meseta teardown {id}` frees it",
            text(framework, "name"),
            if is_connected { "" } else { ", not connected" },
            named.join(", ")
        ));
    }
    lines.insert(0, format!("{running} tasks left"));
    lines
}

pub(crate) fn deactivate(options: &AgentOptions) -> anyhow::Result<()> {
    let said = "gets no more work; `meseta reactivate` undoes it";
    operate(options, said, |agent_id| Call {
        deactivate_agent: Some(call::DeactivateAgent { agent_id }),
        ..call_of(call::Type::DeactivateAgent)
    })
}

pub(crate) fn reactivate(options: &AgentOptions) -> anyhow::Result<()> {
    operate(options, "gets work again", |agent_id| Call {
        reactivate_agent: Some(call::ReactivateAgent { agent_id }),
        ..call_of(call::Type::ReactivateAgent)
    })
}

pub(crate) fn mark_gone(options: &AgentOptions) -> anyhow::Result<()> {
    let said = "is gone; if it returns, it ends its tasks and stops";
    operate(options, said, |agent_id| Call {
        mark_agent_gone: Some(call::MarkAgentGone { agent_id }),
        ..call_of(call::Type::MarkAgentGone)
    })
}

/// Makes a call about one agent, and prints its effect.
fn operate(
    options: &AgentOptions,
    said: &str,
    call: impl FnOnce(AgentId) -> Call,
) -> anyhow::Result<()> {
    let id = find(options)?;
    server::operate(&options.master.master, &call(agent_id(&id)))?;
    terminal::say(&format!("agent {id} {said}"));
    Ok(())
}

/// Without an action: the machines in the schedule and their state.
#[derive(Debug, Args)]
pub(crate) struct MaintenanceOptions {
    #[command(subcommand)]
    action: Option<MaintenanceAction>,
    #[command(flatten)]
    master: MasterFlag,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum MaintenanceAction {
    /// Add a maintenance window: the master asks frameworks to leave these machines.
    Schedule {
        /// Host names, or `host/address` if both must match.
        #[arg(required = true)]
        machines: Vec<String>,
        /// Time from now until the window opens.
        #[arg(long = "start_in", default_value = "0secs", value_name = "DURATION", value_parser = lenient::duration)]
        start_in: Duration,
        /// Length of the window. Default: unlimited.
        #[arg(long, value_name = "DURATION", value_parser = lenient::duration)]
        duration: Option<Duration>,
    },
    /// Remove the whole schedule.
    Clear,
    /// Take scheduled machines down: their agents and tasks end.
    Down {
        #[arg(required = true)]
        machines: Vec<String>,
    },
    /// Bring machines that are down back into service.
    Up {
        #[arg(required = true)]
        machines: Vec<String>,
    },
}

fn machines(names: &[String]) -> Vec<MachineId> {
    let machine = |name: &String| {
        let (host, address) = match name.split_once('/') {
            Some((host, address)) => (host, Some(address.to_owned())),
            None => (name.as_str(), None),
        };
        MachineId {
            hostname: (!host.is_empty()).then(|| host.to_owned()),
            ip: address,
        }
    };
    names.iter().map(machine).collect()
}

pub(crate) fn maintenance(options: &MaintenanceOptions) -> anyhow::Result<()> {
    let master = &options.master.master;
    let Some(action) = &options.action else {
        return show_schedule(options);
    };
    match action {
        MaintenanceAction::Schedule {
            machines: names,
            start_in,
            duration,
        } => {
            let window = window_of(names, *start_in, *duration)?;
            server::post_json(master, "/maintenance/windows", &window)?;
        }
        MaintenanceAction::Clear => {
            server::operate(master, &clear_schedule())?;
        }
        MaintenanceAction::Down { machines: names } => {
            let machines = machines(names);
            let call = Call {
                start_maintenance: Some(call::StartMaintenance { machines }),
                ..call_of(call::Type::StartMaintenance)
            };
            server::operate(master, &call)?;
        }
        MaintenanceAction::Up { machines: names } => {
            let machines = machines(names);
            let call = Call {
                stop_maintenance: Some(call::StopMaintenance { machines }),
                ..call_of(call::Type::StopMaintenance)
            };
            server::operate(master, &call)?;
        }
    }
    terminal::say("done");
    Ok(())
}

fn window_of(
    names: &[String],
    start_in: Duration,
    duration: Option<Duration>,
) -> anyhow::Result<Window> {
    let nanoseconds = |time: Duration| {
        i64::try_from(time.as_nanos()).context("a time is too far in the future for the master")
    };
    let start = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let start = start.checked_add(start_in).unwrap_or(Duration::MAX);
    let duration = duration.map(nanoseconds).transpose()?;
    Ok(Window {
        machine_ids: machines(names),
        unavailability: Unavailability {
            start: TimeInfo {
                nanoseconds: nanoseconds(start)?,
            },
            duration: duration.map(|nanoseconds| DurationInfo { nanoseconds }),
        },
    })
}

fn clear_schedule() -> Call {
    Call {
        update_maintenance_schedule: Some(call::UpdateMaintenanceSchedule {
            schedule: Schedule::default(),
        }),
        ..call_of(call::Type::UpdateMaintenanceSchedule)
    }
}

fn show_schedule(options: &MaintenanceOptions) -> anyhow::Result<()> {
    let body = server::get_json(&options.master.master, "/maintenance/status")?;
    if options.json {
        return terminal::print_json(&body);
    }
    let schedule = server::get_json(&options.master.master, "/maintenance/schedule")?;
    let row = |id: &Value, state: &str| {
        let (from, duration) = window(&schedule, id);
        vec![
            text(id, "hostname"),
            text(id, "ip"),
            state.to_owned(),
            from,
            duration,
        ]
    };
    let none = Value::Null;
    let draining = items(&body, "draining_machines").iter();
    let draining = draining.map(|machine| row(machine.get("id").unwrap_or(&none), "draining"));
    let down = items(&body, "down_machines")
        .iter()
        .map(|id| row(id, "down"));
    table::print(
        &["HOSTNAME", "ADDRESS", "STATE", "FROM", "FOR"],
        draining.chain(down).collect(),
    );
    Ok(())
}

/// Returns the begin and duration of a machine's window in the schedule.
fn window(schedule: &Value, id: &Value) -> (String, String) {
    let same = |machine: &Value, key| machine.get(key) == id.get(key);
    let is_machine = |machine: &Value| same(machine, "hostname") && same(machine, "ip");
    let mut windows = items(schedule, "windows").iter();
    let window = windows.find(|window| items(window, "machine_ids").iter().any(is_machine));
    let nanoseconds = |path: &str| window?.pointer(path)?.as_u64().map(Duration::from_nanos);
    let from = nanoseconds("/unavailability/start/nanoseconds");
    let duration = nanoseconds("/unavailability/duration/nanoseconds");
    (
        from.map_or_else(|| "-".to_owned(), |from| calendar::utc(from.as_secs_f64())),
        match (from, duration) {
            (_, Some(duration)) => meseta_resources::format_duration(duration),
            (Some(_), None) => "no end is known".to_owned(),
            (None, None) => "-".to_owned(),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Regression: an agent that became unreachable while it drained was shown as drained.
    #[test]
    fn only_drained_agent_is_called_drained() {
        let agent = |drain_info: Value| json!({"slaves": [{"id": "S1", "drain_info": drain_info}]});
        let unreachable = DrainProgress::Unreachable {
            since: calendar::utc(60.0),
        };
        for (listed, expected) in [
            (agent(json!({"state": "DRAINING"})), DrainProgress::Draining),
            (agent(json!({"state": "DRAINED"})), DrainProgress::Ended),
            (
                agent(json!(null)),
                DrainProgress::GivenUp("was reactivated"),
            ),
            (
                json!({"slaves": [], "recovered_slaves": [{"id": "S1"}]}),
                DrainProgress::Awaited,
            ),
            (
                json!({"unreachable_slaves": [{"id": "S1", "unreachable_time": 60.0}]}),
                unreachable,
            ),
            (
                json!({"gone_slaves": [{"id": "S1"}]}),
                DrainProgress::GivenUp("was marked gone"),
            ),
            (
                json!({"slaves": []}),
                DrainProgress::GivenUp("is no longer registered"),
            ),
        ] {
            assert_eq!(
                DrainProgress::from_listed(&listed, "S1", false),
                expected,
                "{listed}"
            );
        }
        let gone = json!({"slaves": [], "gone_slaves": [{"id": "S1"}]});
        assert_eq!(
            DrainProgress::from_listed(&gone, "S1", true),
            DrainProgress::Ended
        );
    }

    #[test]
    fn drain_names_its_remaining_work() {
        let task = |id: &str, agent: &str, state: &str| json!({"id": id, "slave_id": agent, "state": state});
        let frameworks = json!({"frameworks": [
            {"id": "F1", "name": "away", "connected": false, "tasks": [
                task("t1", "S0", "TASK_KILLED"), task("t2", "S1", "TASK_KILLED")]},
            {"id": "F3", "name": "gone", "connected": false, "tasks": [task("t5", "S0", "TASK_RUNNING")]},
            {"id": "F2", "name": "busy", "connected": true, "tasks": [
                task("t3", "S0", "TASK_RUNNING"), task("t4", "S0", "TASK_KILLING")]},
        ]});
        let said = obstacles(&frameworks, "S0");
        assert_eq!(said[0], "3 tasks left");
        assert_eq!(
            said[1..],
            [
                "framework F1 (away, not connected) has not acknowledged the end of t1; `meseta teardown F1` frees it",
                "framework F3 (gone, not connected) has not acknowledged the end of t5; `meseta teardown F3` frees it",
            ]
        );
        assert_eq!(obstacles(&frameworks, "S9"), ["0 tasks left"]);
    }
}
