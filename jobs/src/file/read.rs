//! The conversion of a checked tree into a job: the combined meaning of fields.
//!
//! Entered through [`job`], after [`super::shape`] found no mistake. Sections are in `read/`: [`task`] the program,
//! [`life`] its end and restart, [`layout`] its place.

mod layout;
mod life;
mod task;

use std::collections::HashSet;

use super::fields::JOB;
use super::mistake::Collector;
use super::tree::Node;
use super::view::View;
use crate::spec::{GANG_MAX, JobSpec, NAME_CHARS_MAX, name_in};

/// Jobs that one job may start after: each launch gathers the addresses of all of them.
const AFTER_MAX: usize = 256;
/// Bytes of a job at most, beside its environment: it is stored with each of its versions, and launches carry it.
const JOB_BYTES_MAX: usize = 128 * 1024;

/// Reads the whole job. The result is only valid if no mistake was added.
pub(super) fn job(node: &Node, mistakes: &mut Collector) -> JobSpec {
    let file = View::new(&JOB, node);
    let (name, role) = name_and_role(&file, mistakes);
    let mut spec = JobSpec {
        kind: life::kind(&file, mistakes),
        count: file.integer("count").unwrap_or(1),
        priority: file
            .integer("priority")
            .and_then(|priority| u8::try_from(priority).ok())
            .unwrap_or_default(),
        task: task::template(&file, mistakes),
        constraints: layout::constraints(&file, mistakes),
        after: after(&file, (&role, &name), mistakes),
        gang: life::gang(&file),
        best_effort: file.flag("best_effort"),
        volume: layout::volume(&file, mistakes),
        labels: file.text_map("labels"),
        name,
        role,
    };
    if spec.gang.is_some() && spec.count > GANG_MAX {
        let message = format!("a gang cannot have {} tasks", spec.count);
        let cure = format!("write {GANG_MAX} at most, or remove [gang]");
        mistakes.add(file.place("count"), message, cure);
    }
    check_bytes(&mut spec, &file, mistakes);
    if file.has("volume") {
        check_volume(&spec, &file, mistakes);
    }
    spec
}

/// Checks the bytes of a job without its environment, which has a separate bound.
fn check_bytes(spec: &mut JobSpec, file: &View<'_>, mistakes: &mut Collector) {
    let env = std::mem::take(&mut spec.task.env);
    let bytes = spec.stored_bytes();
    spec.task.env = env;
    if bytes > JOB_BYTES_MAX {
        let message = format!("the job has {bytes} bytes beside `env`");
        let cure = format!("write {JOB_BYTES_MAX} at most, and fetch the rest with `uris`");
        mistakes.add(file.place("task"), message, cure);
    }
}

/// Reports fields that contradict the reservations for a volume.
fn check_volume(spec: &JobSpec, file: &View<'_>, mistakes: &mut Collector) {
    if spec.best_effort {
        mistakes.add(
            file.place("best_effort"),
            "a job on revocable resources cannot have a volume",
            "remove `best_effort` or [volume]",
        );
    }
    if spec.gang.is_some() {
        mistakes.add(
            file.place("gang"),
            "the instances of a gang cannot have volumes: each would wait for the agents of all",
            "remove [gang] or [volume]",
        );
    }
    if spec.role == "*" {
        mistakes.add(
            file.place(if file.has("role") { "role" } else { "volume" }),
            "the role `*` cannot have reservations, and so no volumes",
            "write a `role` at the top of the file, as `role = \"data\"`",
        );
    }
}

const NAME_CURE: &str =
    "write 1 to 100 of `a-z`, `0-9`, `-` and `.`, beginning with a letter or digit";

/// Returns the name of the job and its role. A role before the name is the job's role, or, if the job is in another one,
/// the role that it moves from: then it stays before the name.
fn name_and_role(file: &View<'_>, mistakes: &mut Collector) -> (String, String) {
    let name = file.text("name").unwrap_or_default();
    if name_in(&name).is_none() {
        let shown: String = name.chars().take(NAME_CHARS_MAX).collect();
        let message = format!("\"{shown}\" is not a job name");
        mistakes.add(file.place("name"), message, NAME_CURE);
    }
    let role = role(file, mistakes);
    match name.rsplit_once('/') {
        Some((before, alone)) if before == role || !file.has("role") => {
            (alone.to_owned(), before.to_owned())
        }
        _ => (name, role),
    }
}

fn role(file: &View<'_>, mistakes: &mut Collector) -> String {
    let role = file.text("role").unwrap_or_default();
    if let Err(error) = meseta_resources::Role::new(&role) {
        mistakes.add(
            file.place("role"),
            error.to_string(),
            "write a role as `meseta roles` lists them",
        );
    }
    role
}

fn after(file: &View<'_>, (role, name): (&str, &str), mistakes: &mut Collector) -> Vec<String> {
    let names = file.texts("after");
    if !is_within(AFTER_MAX, "after", names.len(), file, mistakes) {
        return Vec::new();
    }
    let (mut jobs, mut seen) = (Vec::new(), HashSet::new());
    let own = format!("{role}/");
    for (at, job) in names {
        let job = job.strip_prefix(&own).map_or(job.clone(), str::to_owned);
        let is_first = seen.insert(job.clone());
        if job == name {
            mistakes.add(at, "a job cannot wait for itself", "remove it from `after`");
        } else if name_in(&job).is_none() {
            mistakes.add(at, format!("\"{job}\" is not a job name"), NAME_CURE);
        } else if !is_first {
            let message = format!("`after` has \"{job}\" twice");
            mistakes.add(at, message, "keep one of the two");
        }
        jobs.push(job);
    }
    jobs
}

/// Whether a list is within its limit; adds a mistake otherwise.
fn is_within(
    most: usize,
    name: &'static str,
    found: usize,
    file: &View<'_>,
    mistakes: &mut Collector,
) -> bool {
    if found > most {
        let message = format!("`{name}` has {found} entries");
        mistakes.add(file.place(name), message, format!("write {most} at most"));
    }
    found <= most
}

/// Whether a path leads below the sandbox.
fn is_below_sandbox(path: &str) -> bool {
    let is_below = |part: &str| !part.is_empty() && part != "." && part != "..";
    path.split('/').all(is_below) && !path.contains('\0')
}

/// Whether an agent can fetch to a path: the path must be below the sandbox, as the agent reads it. An empty path is valid.
fn is_fetched_to(path: &str) -> bool {
    let mut parts = path.split('/');
    let is_name = |part: &str| !part.is_empty() && part != ".";
    let leads_out = path.starts_with('/') || parts.clone().any(|part| part == "..");
    path.is_empty() || (!leads_out && parts.any(is_name) && !path.contains('\0'))
}

/// Returns the only field of `choices` that the file sets; reports a mistake if it sets none or several.
fn only_one(
    view: &View<'_>,
    choices: &'static [&'static str],
    mistakes: &mut Collector,
) -> Option<&'static str> {
    let mut written = choices.iter().filter(|name| view.has(name));
    let listed = choices
        .iter()
        .map(|name| format!("`{name}`"))
        .collect::<Vec<_>>()
        .join(", ");
    match (written.next(), written.next()) {
        (Some(one), None) => return Some(one),
        (Some(one), Some(other)) => {
            let message = format!("{} has both `{one}` and `{other}`", view.title());
            mistakes.add(view.place(other), message, "keep one of the two");
        }
        (None, _) => {
            let message = format!("{} is incomplete", view.title());
            mistakes.add(view.at(), message, format!("add one of {listed}"));
        }
    }
    None
}
