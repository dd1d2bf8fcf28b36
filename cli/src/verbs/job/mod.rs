//! The verbs for jobs of `meseta scheduler`: `run`, `plan`, `jobs`, and `job` with the actions on one.
//!
//! All of them use the scheduler's HTTP API (`api.rs`); logs and commands in a task work like `meseta logs` and `meseta
//! exec`, through the master to the agent. Files:
//! - `diff.rs`: the differences between two versions; `follow.rs`: the progress of a job; `show.rs`: tables
//! - `release.rs`: the volume to release; `task.rs`: the selected task of a job; `stderr.rs`: the last lines of a failed
//!   task

mod api;
mod diff;
mod follow;
mod release;
mod show;
mod stderr;
mod task;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use clap::{Args, Subcommand, ValueHint};
use meseta_daemon::advertised::usual_address;
use meseta_jobs::file;
use meseta_jobs::spec::{JobSpec, Kind};
use serde_json::{Value, json};

use super::identity::IdentityFlags;
use super::items;
use super::watch::WatchFlag;
use crate::terminal;
use api::{SCHEDULER_PORT, Scheduler};

/// The scheduler's address: a flag of every verb of jobs.
#[derive(Debug, Clone, Args)]
struct SchedulerFlag {
    /// The scheduler, as `host:port` or `https://host:port`. Separate several schedulers of one cluster with
    /// commas.
    #[arg(
        long,
        global = true,
        env = "MESETA_SCHEDULER",
        default_value_t = usual_address(SCHEDULER_PORT)
    )]
    scheduler: String,
}

/// Flags of `meseta run`.
#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// The job file, in TOML or JSON (docs/jobs.md); `-` reads standard input.
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Return as soon as the scheduler has accepted the job.
    #[arg(long, short)]
    detach: bool,
    /// Return with 1 if the job is not healthy or complete after this time (such as 5mins). The job continues.
    #[arg(long, value_parser = meseta_resources::parse_duration, conflicts_with = "detach")]
    timeout: Option<Duration>,
    #[command(flatten)]
    scheduler: SchedulerFlag,
    // Read from the command line by `identity::install`.
    #[command(flatten)]
    identity: IdentityFlags,
    /// Print JSON: each change of the job on a line.
    #[arg(long)]
    json: bool,
}

/// Flags of `meseta plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanOptions {
    /// The job file, in TOML or JSON (docs/jobs.md); `-` reads standard input.
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,
    #[command(flatten)]
    scheduler: SchedulerFlag,
    // As in `RunOptions`.
    #[command(flatten)]
    identity: IdentityFlags,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Flags of `meseta jobs`.
#[derive(Debug, Args)]
pub(crate) struct ListOptions {
    #[command(flatten)]
    scheduler: SchedulerFlag,
    // As in `RunOptions`.
    #[command(flatten)]
    identity: IdentityFlags,
    /// Print the scheduler's own JSON instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    watch: WatchFlag,
}

/// Flags of `meseta job`.
#[derive(Debug, Args)]
pub(crate) struct JobOptions {
    #[command(subcommand)]
    verb: JobVerb,
    #[command(flatten)]
    scheduler: SchedulerFlag,
    #[command(flatten)]
    master: super::MasterFlag,
    /// Print JSON instead.
    #[arg(long, global = true)]
    json: bool,
}

impl JobOptions {
    /// Returns the master for the requests to it.
    fn checked_master(&self) -> anyhow::Result<&super::MasterFlag> {
        let given = &self.master.master;
        super::masters::parse(given).map_err(|why| anyhow!("--master={given}: {why}"))?;
        Ok(&self.master)
    }
}

#[derive(Debug, Subcommand)]
enum JobVerb {
    /// Show a job, its tasks, and why it waits.
    Status {
        name: String,
        #[command(flatten)]
        watch: WatchFlag,
    },
    /// Show the output of a task of the job.
    Logs {
        name: String,
        /// The instance or array task. Default: the first that runs, else the newest.
        #[arg(long)]
        index: Option<u32>,
        /// The file in the task's sandbox.
        #[arg(long, default_value = "stdout")]
        file: String,
        /// Follow the file until the task has ended.
        #[arg(long, short)]
        follow: bool,
    },
    /// Run a command in the container of a task of the job, and show the output.
    Exec {
        name: String,
        /// The instance or array task. Default: the first running task.
        #[arg(long)]
        index: Option<u32>,
        /// The command and its arguments, as in `meseta job exec web -- ls -l /`.
        #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
        arguments: Vec<String>,
    },
    /// Replace each instance, as an update does.
    Restart { name: String },
    /// Change the number of instances of a service.
    Scale {
        name: String,
        #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        count: u32,
        /// Also destroy the volumes of the instances that are too many.
        #[arg(long)]
        purge: bool,
    },
    /// Destroy the volume of an instance, which then starts with an empty volume.
    Release {
        name: String,
        /// The instance.
        index: u32,
        /// The id of the volume, as `meseta job volumes` lists it. Default: the present volume of the instance.
        #[arg(long, value_name = "ID")]
        volume: Option<String>,
    },
    /// List the volumes of all jobs, and the volumes that are yet to be released.
    Volumes,
    /// End the tasks of a job.
    Stop {
        name: String,
        /// Also forget the job, release its reservations and destroy its volumes.
        #[arg(long)]
        purge: bool,
    },
    /// Go back to a version of the job's file.
    Revert {
        name: String,
        /// The version (see `meseta job history`).
        // Under a name of its own: `version` is the flag that prints the program's.
        #[arg(id = "to_version", value_name = "VERSION")]
        version: u64,
    },
    /// Continue an update whose canaries are healthy.
    Promote { name: String },
    /// Move instances of a spread service from full racks to emptier racks.
    Rebalance { name: String },
    /// List the versions and events of a job.
    History { name: String },
    /// Print the job file of a version, as TOML, or as JSON with --json.
    Inspect {
        name: String,
        /// The version (see `meseta job history`). Default: the current version.
        #[arg(id = "of_version", value_name = "VERSION")]
        version: Option<u64>,
    },
    /// Show the differences between two versions of a job.
    Diff {
        name: String,
        /// The earlier version. Default: the version before the later version.
        from: Option<u64>,
        /// The later version. Default: the newest version.
        to: Option<u64>,
    },
}

pub(crate) fn run(options: &RunOptions) -> anyhow::Result<ExitCode> {
    let specs = read(&options.file)?;
    let scheduler = Scheduler::at(&options.scheduler.scheduler)?;
    let timeout = options.timeout.map(|timeout| (Instant::now(), timeout));
    let mut followed = Vec::new();
    for (spec, submitted) in specs.iter().zip(submit(&scheduler, &specs)?) {
        let version = submitted.get("version").and_then(Value::as_u64);
        let version = version.context("the scheduler's answer lacks the job's version")?;
        // A cron job waits for its time; there is nothing to follow.
        if !options.detach && !matches!(spec.kind, Kind::Cron(_)) {
            followed.push((full_name(spec, &submitted), version));
        } else if options.json {
            terminal::print_json(&submitted)?;
        } else {
            terminal::say(&format!("job {} is version {version}", spec.name));
        }
    }
    for (name, version) in followed {
        let ended = follow::follow(&scheduler, (&name, version), timeout, options.json)?;
        if ended != ExitCode::SUCCESS {
            return Ok(ended);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the unique name of the job: with its role unless that is the default.
fn full_name(spec: &JobSpec, submitted: &Value) -> String {
    let role = submitted.get("role").and_then(Value::as_str);
    let name = submitted.get("name").and_then(Value::as_str);
    match (role, name) {
        (Some(role), Some(name)) => format!("{role}/{name}"),
        _ => spec.name.clone(),
    }
}

/// Submits all jobs of a file at once, so that none is accepted if another is refused; returns the answer for each.
fn submit(scheduler: &Scheduler, specs: &[JobSpec]) -> anyhow::Result<Vec<Value>> {
    if let [spec] = specs {
        return Ok(vec![scheduler.post("/v1/jobs", &file::to_json(spec))?]);
    }
    let jobs: Vec<Value> = specs.iter().map(file::to_json).collect();
    let answer = scheduler.post("/v1/jobs", &json!({ "jobs": jobs }))?;
    let submitted = items(&answer, "jobs").to_vec();
    if submitted.len() != specs.len() {
        bail!(
            "the scheduler's answer does not cover all {} jobs",
            specs.len()
        );
    }
    Ok(submitted)
}

/// The exit codes of `meseta plan`, as Nomad's: for changes, and for a plan that is impossible now or unknown.
const PLAN_CHANGES: u8 = 1;
pub(crate) const PLAN_IMPOSSIBLE: u8 = 255;

/// Returns the exit code of a plan.
fn plan_code(plan: &Value) -> u8 {
    let number = |key: &str| plan.get(key).and_then(Value::as_u64).unwrap_or_default();
    let is_new = number("wants") > 0 || !items(plan, "changes").is_empty();
    match (number("fits") < number("wants"), is_new) {
        (true, _) => PLAN_IMPOSSIBLE,
        (false, _) if items(plan, "changes").is_empty() => 0,
        (false, true) => PLAN_CHANGES,
        (false, false) => 0,
    }
}

pub(crate) fn plan(options: &PlanOptions) -> anyhow::Result<ExitCode> {
    let specs = read(&options.file)?;
    let scheduler = Scheduler::at(&options.scheduler.scheduler)?;
    let mut code = 0;
    for spec in &specs {
        let plan = scheduler.post("/v1/jobs/plan", &file::to_json(spec))?;
        code = code.max(plan_code(&plan));
        if options.json {
            terminal::print_json(&plan)?;
            continue;
        }
        for line in show::plan(&spec.name, &plan) {
            terminal::say(&line);
        }
    }
    Ok(ExitCode::from(code))
}

pub(crate) fn list(options: &ListOptions) -> anyhow::Result<()> {
    let scheduler = Scheduler::at(&options.scheduler.scheduler)?;
    options.watch.run(|| {
        let jobs = scheduler.get("/v1/jobs")?;
        if options.json {
            return terminal::print_json(&jobs);
        }
        show::jobs(&jobs);
        Ok(())
    })
}

pub(crate) fn one(options: &JobOptions) -> anyhow::Result<ExitCode> {
    let scheduler = Scheduler::at(&options.scheduler.scheduler)?;
    let change = |name: &str, action: &str, body: Value| -> anyhow::Result<ExitCode> {
        let answer = scheduler.post(&format!("{}/{action}", api::path(name)?), &body)?;
        if options.json {
            terminal::print_json(&answer)?;
        } else {
            terminal::say(&format!(
                "job {name}: {action} is under way; `meseta job status {name}` shows it"
            ));
        }
        Ok(ExitCode::SUCCESS)
    };
    match &options.verb {
        JobVerb::Status { name, watch } => {
            let shown = watch.run(|| {
                let job = scheduler.whole_job(name)?;
                if options.json {
                    return terminal::print_json(&job);
                }
                show::status(&job);
                stderr::say_last(&scheduler, &job);
                Ok(())
            });
            shown.map(|()| ExitCode::SUCCESS)
        }
        JobVerb::History { name } => {
            let history = scheduler.get(&format!("{}/history", api::path(name)?))?;
            if options.json {
                terminal::print_json(&history)?;
            } else {
                show::history(&history);
            }
            Ok(ExitCode::SUCCESS)
        }
        JobVerb::Inspect { name, version } => {
            let inspected = scheduler.get(&api::file_path(name, *version)?)?;
            let job = inspected
                .get("job")
                .context("the scheduler's answer is not a job")?;
            if options.json {
                terminal::print_json(job)?;
            } else {
                let spec = file::from_json(&job.to_string());
                let spec = spec.map_err(|mistakes| anyhow!("{mistakes}"))?;
                terminal::say_lines(file::to_toml(&spec).trim_end());
            }
            Ok(ExitCode::SUCCESS)
        }
        JobVerb::Diff { name, from, to } => {
            let differences = diff::compare(&scheduler, name, (*from, *to))?;
            if options.json {
                terminal::print_json(&differences)?;
            } else {
                for line in diff::lines(&differences) {
                    terminal::say(&line);
                }
            }
            Ok(ExitCode::SUCCESS)
        }
        JobVerb::Logs {
            name,
            index,
            file,
            follow,
        } => {
            let master = options.checked_master()?;
            let job = scheduler.whole_job(name)?;
            let history = || scheduler.get(&format!("{}/history", api::path(name)?));
            let task = task::newest(&job, *index, history)?;
            let options = super::logs::Options::from_task(&task, file, *follow, master);
            super::logs::run(&options).map(|()| ExitCode::SUCCESS)
        }
        JobVerb::Exec {
            name,
            index,
            arguments,
        } => {
            let master = options.checked_master()?;
            let job = scheduler.whole_job(name)?;
            let task = task::running(&job, *index)?;
            super::exec::run(&super::exec::Options::from_task(&task, arguments, master))
        }
        JobVerb::Restart { name } => change(name, "restart", json!({})),
        JobVerb::Promote { name } => change(name, "promote", json!({})),
        JobVerb::Rebalance { name } => change(name, "rebalance", json!({})),
        JobVerb::Scale { name, count, purge } => {
            change(name, "scale", json!({ "count": count, "purge": purge }))
        }
        JobVerb::Release {
            name,
            index,
            volume,
        } => {
            let instance = (&**name, *index);
            let is_told = !options.json;
            let body = release::request(&scheduler, instance, volume.as_deref(), is_told)?;
            change(name, "release", body)
        }
        JobVerb::Volumes => {
            let volumes = scheduler.get("/v1/volumes")?;
            if options.json {
                terminal::print_json(&volumes)?;
            } else {
                show::volumes(&volumes);
            }
            Ok(ExitCode::SUCCESS)
        }
        JobVerb::Stop { name, purge } => change(name, "stop", json!({ "purge": purge })),
        JobVerb::Revert { name, version } => change(name, "revert", json!({ "version": version })),
    }
}

/// Reads the jobs of a file; reports each mistake on a line that editors understand.
fn read(path: &Path) -> anyhow::Result<Vec<JobSpec>> {
    let text = if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin()).context("failed to read standard input")?
    } else {
        std::fs::read_to_string(path)
            .with_context(|| format!("failed to read {}", path.display()))?
    };
    match file::all_from_text(&text) {
        Ok(specs) => Ok(specs),
        Err(mistakes) => {
            let told = mistakes.errors.iter();
            let told: Vec<String> = told
                .map(|mistake| format!("{}:{mistake}", path.display()))
                .map(|told| terminal::one_line(&told).into_owned())
                .collect();
            bail!("the job file has mistakes:\n{}", told.join("\n"))
        }
    }
}
