//! The addresses of the tasks of jobs: for service discovery, and for the tasks of jobs that start after them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meseta_resources::HostPort;

use super::job::{Job, Task};
use super::jobs::Jobs;
use super::names::{job_before, plain};
use crate::spec::JobSpec;

/// Bytes that addresses may add to the environment of one task, so that one ACCEPT can carry many tasks.
const ADDRESSES_BYTES_MAX: usize = 1_024;

#[cfg(test)]
thread_local! {
    /// Counts how often addresses were gathered.
    pub(super) static GATHERED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// A running task with ports, for service discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovered {
    pub job: String,
    /// The role in which the job has its name.
    pub role: String,
    pub task_id: String,
    pub hostname: String,
    pub port_name: String,
    pub port: u16,
    pub is_healthy: bool,
}

/// The ports of a task, if it runs.
pub(super) fn discovered(at: Duration, job: &Job, id: &str, task: &Task) -> Vec<Discovered> {
    if task.record.running.is_none() || task.killing.is_some() {
        return Vec::new();
    }
    let healthy_after = job.healthy_after(task.name.version);
    let ports = task.record.ports.iter().map(|(name, port)| Discovered {
        job: plain(&job.name).to_owned(),
        role: job.role().to_owned(),
        task_id: id.to_owned(),
        hostname: task.record.hostname.clone(),
        port_name: name.clone(),
        port: *port,
        is_healthy: task.is_healthy(at, healthy_after),
    });
    ports.collect()
}

/// Returns the addresses of the jobs that a job starts after, as `ADDRESSES_JOB_PORT`: the healthy ones separated by
/// commas, as many as [`ADDRESSES_BYTES_MAX`] permits.
pub(super) fn addresses_after(
    jobs: &Jobs,
    at: Duration,
    spec: &JobSpec,
) -> BTreeMap<String, String> {
    #[cfg(test)]
    GATHERED.set(GATHERED.get() + 1);
    let mut addresses: BTreeMap<String, String> = BTreeMap::new();
    let mut bytes = 0;
    let variables = variables_after(jobs, spec);
    for job in jobs_before(jobs, spec) {
        let mut tasks: Vec<&Task> = job.tasks.values().collect();
        tasks.sort_by_key(|task| task.name.index);
        for task in tasks {
            if !task.is_healthy(at, job.healthy_after(task.name.version)) {
                continue;
            }
            for (port, number) in &task.record.ports {
                let address = HostPort::new(task.record.hostname.as_str(), *number).to_string();
                let variable = variables.get(&(&*job.name, &**port)).cloned();
                let variable =
                    variable.unwrap_or_else(|| addresses_variable(plain(&job.name), port));
                bytes += address.len() + variable.len();
                if bytes > ADDRESSES_BYTES_MAX {
                    return addresses;
                }
                let known = addresses.entry(variable).or_default();
                if !known.is_empty() {
                    known.push(',');
                }
                known.push_str(&address);
            }
        }
    }
    addresses
}
/// Returns the jobs that a job starts after, as far as they exist.
fn jobs_before<'a>(jobs: &'a Jobs, spec: &'a JobSpec) -> impl Iterator<Item = &'a Job> {
    let names = spec.after.iter();
    names.filter_map(|name| job_before(jobs, spec, name))
}

/// Returns the variable of each port of the jobs that a job starts after. If two names collide, as those of `a-b` and
/// `a.b`, the later one in the list ends with its number.
fn variables_after<'a>(jobs: &'a Jobs, spec: &'a JobSpec) -> BTreeMap<(&'a str, &'a str), String> {
    let (mut variables, mut taken) = (BTreeMap::new(), BTreeSet::new());
    for job in jobs_before(jobs, spec) {
        let ports = job.spec().map(|spec| spec.task.ports.as_slice());
        for port in ports.unwrap_or_default() {
            let name = addresses_variable(plain(&job.name), port);
            let numbered = (2..).map(|number| format!("{name}_{number}"));
            let mut names = std::iter::once(name.clone()).chain(numbered);
            if let Some(free) = names.find(|name| !taken.contains(name)) {
                taken.insert(free.clone());
                variables.insert((&*job.name, &**port), free);
            }
        }
    }
    variables
}

/// Returns a variable's name, such as `ADDRESSES_WEB_HTTP` for the port `http` of the job `web`.
fn addresses_variable(job: &str, port: &str) -> String {
    let name = format!("{job}_{port}").to_ascii_uppercase();
    format!("ADDRESSES_{}", name.replace(['-', '.'], "_"))
}
