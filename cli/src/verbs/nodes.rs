//! `meseta drain`, `deactivate`, `reactivate`, `mark-gone` and `maintenance`: agents on their way out.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use meseta_proto::mesos::v1::maintenance::{Schedule, Window};
use meseta_proto::mesos::v1::master::{Call, call};
use meseta_proto::mesos::v1::{AgentId, DurationInfo, MachineId, TimeInfo, Unavailability};
use serde_json::Value;

use super::{MasterFlag, agents, items, server, table, text};

/// How often the state of a draining agent is asked for.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// One agent.
#[derive(Debug, Args)]
pub(crate) struct AgentOptions {
    /// The agent's id, or its host name if no other agent has it (see `meseta agents`).
    agent: String,
    #[command(flatten)]
    master: MasterFlag,
}

#[derive(Debug, Args)]
pub(crate) struct DrainOptions {
    #[command(flatten)]
    agent: AgentOptions,
    /// The longest that a task has to end. Default: the time that it asked for.
    #[arg(long = "max_grace_period", value_name = "DURATION", value_parser = duration)]
    max_grace_period: Option<Duration>,
    /// Once it is drained, the agent is gone for good and must not come back.
    #[arg(long = "mark_gone")]
    mark_gone: bool,
    /// Return only when the agent is drained.
    #[arg(long)]
    wait: bool,
}

fn duration(text: &str) -> Result<Duration, meseta_resources::DurationError> {
    meseta_resources::parse_duration(text)
}

/// The id of the agent that is meant.
fn find(options: &AgentOptions) -> anyhow::Result<String> {
    let body = server::get_json(&options.master.master, "/slaves")?;
    let recovered = items(&body, "recovered_slaves").iter();
    let all = items(&body, "slaves").iter().chain(recovered);
    let found = agents::find(all, &options.agent)?;
    // An unreachable agent is known by its id alone.
    Ok(found.unwrap_or_else(|| options.agent.clone()))
}

fn call(kind: call::Type) -> Call {
    Call {
        r#type: Some(kind.into()),
        ..Call::default()
    }
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
        agent_id: AgentId { value: id.clone() },
        max_grace_period: max_grace_period.transpose()?,
        mark_gone: Some(options.mark_gone),
    };
    let drain = Call {
        drain_agent: Some(body),
        ..call(call::Type::DrainAgent)
    };
    server::operate(master, &drain)?;
    if !options.wait {
        table::say(&format!(
            "agent {id} is draining; `meseta agents` shows how far it is"
        ));
        return Ok(ExitCode::SUCCESS);
    }
    let mut left = None;
    loop {
        let body = server::get_json(
            master,
            &format!("/slaves?slave_id={}", server::encoded(&id)),
        )?;
        let state = items(&body, "slaves")
            .first()
            .and_then(|agent| agent.pointer("/drain_info/state"))
            .and_then(Value::as_str);
        // A drained agent that is marked gone is listed no more.
        if state != Some("DRAINING") {
            table::say(&format!("agent {id} is drained"));
            return Ok(ExitCode::SUCCESS);
        }
        let tasks = tasks_on(master, &id)?;
        if left.replace(tasks) != Some(tasks) {
            table::say(&format!("{tasks} tasks left"));
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

fn tasks_on(master: &str, id: &str) -> anyhow::Result<usize> {
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
    let body = server::get_json(master, "/tasks?limit=-1")?;
    let tasks = items(&body, "tasks").iter();
    let here = tasks.filter(|task| text(task, "slave_id") == id);
    Ok(here
        .filter(|task| !ENDED.contains(&text(task, "state").as_str()))
        .count())
}

pub(crate) fn deactivate(options: &AgentOptions) -> anyhow::Result<ExitCode> {
    let value = find(options)?;
    let said = format!("agent {value} gets no more work; `meseta reactivate` undoes it");
    let body = call::DeactivateAgent {
        agent_id: AgentId { value },
    };
    let call = Call {
        deactivate_agent: Some(body),
        ..call(call::Type::DeactivateAgent)
    };
    server::operate(&options.master.master, &call)?;
    table::say(&said);
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn reactivate(options: &AgentOptions) -> anyhow::Result<ExitCode> {
    let value = find(options)?;
    let said = format!("agent {value} gets work again");
    let body = call::ReactivateAgent {
        agent_id: AgentId { value },
    };
    let call = Call {
        reactivate_agent: Some(body),
        ..call(call::Type::ReactivateAgent)
    };
    server::operate(&options.master.master, &call)?;
    table::say(&said);
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn mark_gone(options: &AgentOptions) -> anyhow::Result<ExitCode> {
    let value = find(options)?;
    let said = format!("agent {value} is gone; should it come back, it ends its tasks and stops");
    let body = call::MarkAgentGone {
        agent_id: AgentId { value },
    };
    let call = Call {
        mark_agent_gone: Some(body),
        ..call(call::Type::MarkAgentGone)
    };
    server::operate(&options.master.master, &call)?;
    table::say(&said);
    Ok(ExitCode::SUCCESS)
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
    /// Add a window to the schedule: frameworks are asked to leave these machines.
    Schedule {
        /// Host names, or `host/address` where both must fit.
        #[arg(required = true)]
        machines: Vec<String>,
        /// From now until the window opens.
        #[arg(long = "start_in", default_value = "0secs", value_name = "DURATION", value_parser = duration)]
        start_in: Duration,
        /// How long it lasts. Default: no end is known.
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        duration: Option<Duration>,
    },
    /// Call the whole schedule off.
    Clear,
    /// Take scheduled machines down: their agents and tasks end.
    Down {
        #[arg(required = true)]
        machines: Vec<String>,
    },
    /// Put machines that are down back to work.
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

pub(crate) fn maintenance(options: &MaintenanceOptions) -> anyhow::Result<ExitCode> {
    let master = &options.master.master;
    let Some(action) = &options.action else {
        show_schedule(options)?;
        return Ok(ExitCode::SUCCESS);
    };
    let call = match action {
        MaintenanceAction::Schedule {
            machines: names,
            start_in,
            duration,
        } => {
            let ask = call(call::Type::GetMaintenanceSchedule);
            let answer = server::operate(master, &ask)?.get_maintenance_schedule;
            let mut schedule = answer.context("the master sent no schedule")?.schedule;
            let start = SystemTime::now().duration_since(UNIX_EPOCH)? + *start_in;
            schedule.windows.push(Window {
                machine_ids: machines(names),
                unavailability: Unavailability {
                    start: TimeInfo {
                        nanoseconds: i64::try_from(start.as_nanos())?,
                    },
                    duration: duration
                        .map(|duration| {
                            anyhow::Ok(DurationInfo {
                                nanoseconds: i64::try_from(duration.as_nanos())?,
                            })
                        })
                        .transpose()?,
                },
            });
            update(schedule)
        }
        MaintenanceAction::Clear => update(Schedule::default()),
        MaintenanceAction::Down { machines: names } => Call {
            start_maintenance: Some(call::StartMaintenance {
                machines: machines(names),
            }),
            ..call(call::Type::StartMaintenance)
        },
        MaintenanceAction::Up { machines: names } => Call {
            stop_maintenance: Some(call::StopMaintenance {
                machines: machines(names),
            }),
            ..call(call::Type::StopMaintenance)
        },
    };
    server::operate(master, &call)?;
    table::say("done");
    Ok(ExitCode::SUCCESS)
}

fn update(schedule: Schedule) -> Call {
    Call {
        update_maintenance_schedule: Some(call::UpdateMaintenanceSchedule { schedule }),
        ..call(call::Type::UpdateMaintenanceSchedule)
    }
}

fn show_schedule(options: &MaintenanceOptions) -> anyhow::Result<()> {
    let body = server::get_json(&options.master.master, "/maintenance/status")?;
    if options.json {
        return table::print_json(&body);
    }
    let row =
        |id: &Value, state: &str| vec![text(id, "hostname"), text(id, "ip"), state.to_owned()];
    let none = Value::Null;
    let draining = items(&body, "draining_machines").iter();
    let draining = draining.map(|machine| row(machine.get("id").unwrap_or(&none), "draining"));
    let down = items(&body, "down_machines")
        .iter()
        .map(|id| row(id, "down"));
    table::print(
        &["HOSTNAME", "ADDRESS", "STATE"],
        draining.chain(down).collect(),
    );
    Ok(())
}
