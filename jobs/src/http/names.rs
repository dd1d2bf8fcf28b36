//! The job that a client means: names are unique in a role, and a client knows nothing of jobs that it may not see.
//!
//! Entered through [`find`] for an existing job, and [`Target::from_context`] for a submitted job. Invariant: a job in a role that
//! the caller may neither see nor change gets the answer of a missing job.

use std::collections::HashSet;

use http::StatusCode;
use meseta_access::Action;
use meseta_daemon::authentication::Caller;
use percent_encoding::percent_decode_str;

use super::readers::Turn;
use super::{Context, Reply, permission, sees};
use crate::core::{Authorities, Authority, JobName, NamedJob, Refusal, State};
use crate::spec::{JobSpec, is_name};

/// Reads the name of a job from the parts of a path: the slash between role and name may be escaped.
pub(super) fn of_path(parts: &[&str]) -> String {
    let decoded = parts.iter().map(|part| percent_decode_str(part));
    let decoded: Vec<_> = decoded.map(|part| part.decode_utf8_lossy()).collect();
    decoded.join("/")
}

/// Returns true if the caller may know of jobs in a role.
fn knows(caller: &Caller, role: &str) -> bool {
    sees(caller, role)
        || caller
            .approver
            .allows(Action::RegisterFramework, Some(role))
}

/// Returns the key of the job of this name.
///
/// # Errors
///
/// The caller knows of no such job, or of several in different roles.
pub(super) async fn find(context: &Context, caller: &Caller, text: &str) -> Result<String, Reply> {
    let named = context.handle.read(look(text)).await?;
    choose(caller, text, named)
}

/// Finds the key of a job for a reader that has its turn.
pub(super) async fn find_in_turn(
    (context, caller): (&Context, &Caller),
    turn: Turn,
    text: &str,
) -> Result<(String, Turn), Reply> {
    let (named, turn) = turn.look(&context.handle, look(text)).await?;
    Ok((choose(caller, text, named)?, turn))
}

fn look(text: &str) -> impl FnOnce(&State) -> Vec<NamedJob> + Send + 'static {
    let JobName { name, .. } = JobName::read(text);
    move |state| match is_name(&name) {
        true => state.jobs_named(&name),
        false => Vec::new(),
    }
}

fn choose(caller: &Caller, text: &str, mut named: Vec<NamedJob>) -> Result<String, Reply> {
    let JobName { role, .. } = JobName::read(text);
    named.retain(|job| role.as_ref().is_none_or(|role| job.role == *role));
    named.retain(|job| knows(caller, &job.role));
    match named.len() {
        0 => Err(Reply::no_job(text)),
        1 => Ok(named.remove(0).key),
        _ => Err(ambiguous(StatusCode::CONFLICT, text, &named)),
    }
}

fn ambiguous(status: StatusCode, name: &str, jobs: &[NamedJob]) -> Reply {
    let full: Vec<_> = jobs.iter().map(|job| full_name(&job.role, name)).collect();
    let text = format!(
        "{} roles have a job {name:?}; give one of {}",
        jobs.len(),
        full.join(", ")
    );
    Reply::error(status, &text)
}

fn full_name(role: &str, name: &str) -> String {
    let (role, name) = (Some(role.to_owned()), name.to_owned());
    JobName { role, name }.to_string()
}

/// A submitted job, and the job whose next version it is.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) key: String,
    /// `None` if the job is new.
    pub(super) seen: Option<Authorities>,
    /// The specification. Names in its `after` have their roles where these differ from its own.
    pub(super) spec: JobSpec,
}

impl Target {
    /// Finds the job of a submission, and the jobs that the submission starts after. `beside` are the jobs submitted with
    /// it.
    ///
    /// # Errors
    ///
    /// The caller may not run it, or names an unknown role; or a name in `after` matches several jobs.
    pub(super) async fn from_context(
        context: &Context,
        caller: &Caller,
        mut spec: JobSpec,
        beside: &HashSet<(String, String)>,
    ) -> Result<Self, Reply> {
        permission::change(&caller.approver, &Authority::from_spec(&spec))?;
        let JobName { role: from, name } = JobName::read(&spec.name);
        spec.name = name;
        if let Some(from) = &from {
            // Check the role first: the answer must not reveal whether the role has such a job.
            caller.check(Action::RegisterFramework, Some(from))?;
        }
        for name in &mut spec.after {
            let JobName { role, name: alone } = JobName::read(name);
            match role {
                Some(role) if role == spec.role => *name = alone,
                Some(role) if !knows(caller, &role) => {
                    caller.check(Action::ViewRole, Some(&role))?;
                }
                _ => {}
            }
        }
        let is_beside = |name: &String| beside.contains(&(spec.role.clone(), name.clone()));
        let unknown = spec.after.iter().filter(|name| !is_beside(name));
        let unknown: Vec<String> = unknown.cloned().collect();
        let looked = spec.clone();
        let look = move |state: &State| {
            let key = state.key_for(&looked, from.as_deref())?;
            let seen = state.authorities_of(&key);
            let unknown = unknown.into_iter();
            let unknown = unknown.filter(|name| state.key_in(&looked.role, name).is_none());
            let elsewhere = unknown.map(|name| (state.jobs_named(&name), name));
            Ok::<_, Refusal>((key, seen, elsewhere.collect::<Vec<_>>()))
        };
        let (key, seen, elsewhere) = context.handle.read(look).await??;
        for (mut jobs, name) in elsewhere {
            jobs.retain(|job| knows(caller, &job.role));
            match jobs.as_slice() {
                [] => {}
                [job] => {
                    let mut names = spec.after.iter_mut();
                    if let Some(listed) = names.find(|listed| **listed == name) {
                        *listed = full_name(&job.role, &name);
                    }
                }
                several => {
                    let refused = StatusCode::BAD_REQUEST;
                    return Err(ambiguous(refused, &name, several));
                }
            }
        }
        Ok(Self { key, seen, spec })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slash_in_path_may_be_escaped() {
        for (parts, expected) in [
            (&["web"][..], "web"),
            (&["ads%2Fweb"], "ads/web"),
            (&["ads%2feu%2Fweb"], "ads/eu/web"),
            (&["ads", "eu", "web"], "ads/eu/web"),
            (&["%2A", "web"], "*/web"),
        ] {
            assert_eq!(of_path(parts), expected);
        }
    }
}
