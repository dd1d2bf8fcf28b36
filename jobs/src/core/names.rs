//! The names of jobs: a name is unique in its role, so `web` of the role `ads` is `ads/web`.
//!
//! The core knows a job by its key, which never changes: the name, followed by the role unless that is `*`, as `web@ads`.
//! The ids of tasks and volumes begin with the key, and so do the records of the store. A job stored before names were
//! unique in roles has its name alone as its key, in any role. Invariant: no two jobs of a role have the same name, and the
//! key of a new job reveals nothing about jobs in other roles.

use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

use super::input::{Record, Refusal};
use super::job::Job;
use super::jobs::Jobs;
use crate::spec::JobSpec;

/// Separates the name from the role in a key.
const ROLE_MARK: char = '@';
/// The mark before the number that distinguishes a key from the key of another job.
const NUMBER_MARK: char = '~';
/// Bytes of a role in a key: ids of tasks are names of directories, which have 255 bytes at most.
const ROLE_BYTES_MAX: usize = 100;
/// The role whose jobs have their name alone as their key.
const DEFAULT_ROLE: &str = "*";

/// The name of a job as a client writes it: `web`, or `ads/web` with its role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobName {
    pub role: Option<String>,
    pub name: String,
}

impl JobName {
    /// Parses a name: the part behind the last slash is the name, the part before it the role.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let (role, name) = match text.rsplit_once('/') {
            Some((role, name)) => (Some(role.to_owned()), name),
            None => (None, text),
        };
        Self {
            role,
            name: name.to_owned(),
        }
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.role {
            Some(role) => write!(f, "{role}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// A job with a given name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedJob {
    pub key: String,
    pub role: String,
}

/// The name of the job with this key, without its role.
pub(super) fn plain(key: &str) -> &str {
    let end = key.find([ROLE_MARK, NUMBER_MARK]);
    end.map_or(key, |end| &key[..end])
}

/// Returns the key of a new job.
fn key_of(role: &str, name: &str) -> Result<String, Refusal> {
    if role == DEFAULT_ROLE {
        return Ok(name.to_owned());
    }
    let mut key = format!("{name}{ROLE_MARK}");
    let before = key.len();
    for byte in role.bytes() {
        match byte {
            b'/' => key.push('+'),
            b'-' | b'_' | b'.' => key.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => key.push(char::from(byte)),
            // Writing to a text never fails.
            _ => drop(write!(key, "={byte:02X}")),
        }
    }
    if key.len() - before > ROLE_BYTES_MAX {
        return Err(Refusal::Invalid(format!(
            "role {role:?} is too long for the ids of tasks: {ROLE_BYTES_MAX} letters and digits at most"
        )));
    }
    Ok(key)
}

/// Returns the jobs of this name, each in its own role.
fn jobs_of_name<'a>(jobs: &'a Jobs, name: &str) -> impl Iterator<Item = (&'a str, &'a Job)> {
    let marked = |mark: char| {
        // The end lies behind all keys that begin with the name and the mark.
        let end = char::from_u32(u32::from(mark) + 1).unwrap_or(char::MAX);
        jobs.range(format!("{name}{mark}")..format!("{name}{end}"))
    };
    let alone = jobs.get_key_value(name);
    let all = alone.into_iter();
    let all = all.chain(marked(ROLE_MARK)).chain(marked(NUMBER_MARK));
    all.map(|(key, job)| (key.as_str(), job))
}

/// Returns the keys of the jobs of this name, with their roles.
pub(super) fn jobs_named(jobs: &Jobs, name: &str) -> Vec<NamedJob> {
    let named = jobs_of_name(jobs, name).map(|(key, job)| NamedJob {
        key: key.to_owned(),
        role: job.role().to_owned(),
    });
    named.collect()
}

/// Returns the key of the job of this name in a role.
pub(super) fn key_in<'a>(jobs: &'a Jobs, role: &str, name: &str) -> Option<&'a str> {
    let mut named = jobs_of_name(jobs, name);
    named.find_map(|(key, job)| (job.role() == role).then_some(key))
}

/// Returns the key of the submitted job: see [`State::key_for`](super::State::key_for).
pub(super) fn key_for(
    jobs: &Jobs,
    spec: &JobSpec,
    moves_from: Option<&str>,
) -> Result<String, Refusal> {
    let present = key_in(jobs, &spec.role, &spec.name);
    let moved = || key_in(jobs, moves_from?, &spec.name);
    if let Some(present) = present.or_else(moved) {
        return Ok(present.to_owned());
    }
    let key = key_of(&spec.role, &spec.name)?;
    // A job that has moved, or was stored before names had roles, may have the key.
    let numbered = (2..).map(|number: u32| format!("{key}{NUMBER_MARK}{number}"));
    let mut keys = std::iter::once(key.clone()).chain(numbered);
    let free = keys.find(|key| !jobs.contains_key(key));
    Ok(free.unwrap_or(key))
}

/// # Errors
/// Fails if another job than the one with this key has the name in the role.
pub(super) fn check_name(jobs: &Jobs, key: &str, role: &str) -> Result<(), Refusal> {
    let name = plain(key);
    match key_in(jobs, role, name) {
        Some(other) if other != key => Err(Refusal::Conflict(format!(
            "role {role:?} has another job {name:?} by now: stop it with purge first"
        ))),
        _ => Ok(()),
    }
}

/// Adds missing roles to the jobs in `after`, if a job is in another role: earlier, names were unique in the scheduler.
/// Returns the records of the changed jobs.
pub(super) fn name_in_roles(jobs: &mut Jobs) -> Vec<Record> {
    let mut changes = Vec::new();
    for (key, job) in &*jobs {
        let versions = job.record.versions.iter();
        for (number, version) in versions.filter(|_| !job.record.is_named_in_role) {
            let after: Vec<String> = version
                .spec
                .after
                .iter()
                .map(|name| with_role(jobs, &version.spec, name))
                .collect();
            if after != version.spec.after {
                changes.push((key.clone(), *number, after));
            }
        }
    }
    for (key, number, after) in changes {
        let job = jobs.get_mut(&key);
        if let Some(version) = job.and_then(|job| job.record.versions.get_mut(&number)) {
            version.spec = Arc::new(JobSpec {
                after,
                ..JobSpec::clone(&version.spec)
            });
        }
    }
    let mut records = Vec::new();
    let all = jobs.values_mut();
    for job in all.filter(|job| !job.record.is_named_in_role) {
        job.record.is_named_in_role = true;
        records.extend(job.records());
    }
    records
}

/// Returns a name in `after` with its role, if the only job of the name is in another role.
fn with_role(jobs: &Jobs, spec: &JobSpec, after: &str) -> String {
    let mut named = jobs_of_name(jobs, after);
    match (named.next(), named.next()) {
        (Some((_, job)), None) if job.role() != spec.role => format!("{}/{after}", job.role()),
        _ => after.to_owned(),
    }
}

/// Returns the job that an entry of `after` names: without a role, a job of the same role.
pub(super) fn job_before<'a>(jobs: &'a Jobs, spec: &JobSpec, after: &str) -> Option<&'a Job> {
    let JobName { role, name } = JobName::read(after);
    let key = key_in(jobs, role.as_deref().unwrap_or(&spec.role), &name)?;
    jobs.get(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_job_fits_file_name() {
        for (role, expected) in [
            ("*", "web.1"),
            ("ads", "web.1@ads"),
            ("ads/eu-1", "web.1@ads+eu-1"),
            ("a+b", "web.1@a=2Bb"),
            ("a@b~c", "web.1@a=40b=7Ec"),
        ] {
            let key = key_of(role, "web.1").expect("a key");
            assert_eq!((&*key, plain(&key)), (expected, "web.1"));
        }
        assert!(key_of(&"r".repeat(ROLE_BYTES_MAX), "web").is_ok());
        assert!(key_of(&"r".repeat(ROLE_BYTES_MAX + 1), "web").is_err());
        assert_eq!(plain("web~2"), "web");
    }

    #[test]
    fn name_is_behind_the_last_slash() {
        for (text, role, name) in [
            ("web", None, "web"),
            ("ads/web", Some("ads"), "web"),
            ("ads/eu/web", Some("ads/eu"), "web"),
            ("*/web", Some("*"), "web"),
        ] {
            let read = JobName::read(text);
            assert_eq!((read.role.as_deref(), &*read.name), (role, name));
            assert_eq!(read.to_string(), text);
        }
    }
}
