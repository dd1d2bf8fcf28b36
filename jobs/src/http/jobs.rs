//! Jobs over HTTP: submitted, planned and changed.

use std::collections::HashSet;
use std::time::Duration;

use http::{Method, StatusCode};
use meseta_access::Action;
use meseta_daemon::authentication::Caller;
use meseta_daemon::fair_semaphore::Permit;
use serde::{Deserialize, Serialize};

use super::names::{self, Target};
use super::routes::ROUTES;
use super::{Context, Permitted, Reply, job_pages, permission};
use crate::core::{Accepted, Authorities, Authority, JobName, Quotas, Refusal, Request, State};
use crate::file::{self, Mistakes, Submission};
use crate::spec::JobSpec;

/// Bytes of the body of a change other than a job's file.
const CHANGE_BYTES_MAX: usize = 4_096;

/// The time that a plan waits for offers, and for more offers after the first.
const OFFERS_WAIT_MAX: Duration = Duration::from_secs(2);
const OFFERS_PAUSE: Duration = Duration::from_millis(300);
const OFFERS_POLL: Duration = Duration::from_millis(50);

/// The path of all jobs.
pub(super) const PATH: &str = "/v1/jobs";

/// The actions on a job, below its path.
pub(super) const ACTIONS: [&str; 7] = [
    "scale",
    "restart",
    "stop",
    "revert",
    "promote",
    "rebalance",
    "release",
];

/// The response to several jobs, in their order.
#[derive(Serialize)]
struct Submitted<'a> {
    jobs: &'a [Accepted],
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scale {
    count: u32,
    #[serde(default)]
    purge: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Release {
    index: u32,
    volume_id: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Stop {
    purge: bool,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Revert {
    version: Option<u64>,
}

/// An object without fields.
#[derive(Deserialize, Default, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

pub(super) async fn answer(permitted: Permitted) -> Result<Reply, Reply> {
    let path = permitted.request.uri().path().to_owned();
    let below = ROUTES.segments_below(PATH, &path);
    let is_read = permitted.request.method() != Method::POST;
    match (is_read, below.as_slice()) {
        (true, []) => job_pages::list(permitted).await,
        (true, [name @ .., "history"]) if !name.is_empty() => {
            job_pages::history(permitted, &names::of_path(name)).await
        }
        (true, [name @ .., "file"]) if !name.is_empty() => {
            job_pages::job_file(permitted, &names::of_path(name)).await
        }
        (true, name) => job_pages::job(permitted, &names::of_path(name)).await,
        (false, []) => submit(permitted).await,
        (false, ["plan"]) => plan(permitted).await,
        (false, [name @ .., action]) if !name.is_empty() => {
            change(permitted, &names::of_path(name), action).await
        }
        _ => {
            let text = format!("{path} does not accept this method");
            Err(Reply::error(StatusCode::NOT_FOUND, &text))
        }
    }
}

async fn submit(permitted: Permitted) -> Result<Reply, Reply> {
    let Permitted {
        context,
        caller,
        request,
        ..
    } = permitted;
    let submitted = read_file(&context, &caller, request, file::submission).await?;
    let mut turn = Some(context.turn(&caller).await?);
    let (specs, is_list) = match submitted {
        Submission::Job(spec) => (vec![*spec], false),
        Submission::Jobs(specs) => (specs, true),
    };
    let beside = specs.iter().map(|spec| {
        let JobName { name, .. } = JobName::read(&spec.name);
        (spec.role.clone(), name)
    });
    let beside: HashSet<(String, String)> = beside.collect();
    let mut permitted = Vec::new();
    for mut spec in specs {
        name_user(&context, &caller, &mut spec);
        let authority = Authority::from_spec(&spec);
        permission::run(&caller.approver, &authority, &context.user)?;
        let target = Target::from_context(&context, &caller, spec, &beside).await?;
        if let Some(seen) = &target.seen {
            permission::replace(&caller.approver, &authority, seen, &context.user)?;
        }
        permitted.push(target);
    }
    // No job is accepted if another one is known to be refused.
    let specs = permitted.iter();
    let specs = specs.map(|target| (target.key.clone(), target.spec.clone()));
    let specs: Vec<(String, JobSpec)> = specs.collect();
    if let Some((name, refusal)) = (context.handle)
        .read(move |state| state.first_refusal(&specs))
        .await?
    {
        caller.audit("submit", &name, "refused");
        return Err(match is_list {
            false => refusal.into(),
            true => {
                let text = format!("{name:?}: {refusal}; no job of the list was accepted");
                Reply::error(Reply::from(refusal).status(), &text)
            }
        });
    }
    let mut jobs = Vec::new();
    for Target { key, seen, spec } in permitted {
        let name = spec.name.clone();
        let request = Request::Permitted {
            name: key,
            principal: caller.approver.principal().map(str::to_owned),
            seen,
            request: Box::new(Request::Submit(Box::new(spec))),
        };
        let turn = match turn.take() {
            Some(turn) => turn,
            None => context.turn(&caller).await?,
        };
        let answer = context.change(request, turn).await?;
        caller.audit("submit", &name, result_text(&answer));
        jobs.push(answer.map_err(|refusal| refused_after(&jobs, &name, refusal))?);
    }
    let first = jobs.first().filter(|_| !is_list);
    Ok(first.map_or_else(|| Reply::json(&Submitted { jobs: &jobs }), Reply::json))
}

/// Sets the submitter's own user for a job without a user, if the submitter may not use that of the scheduler.
fn name_user(context: &Context, caller: &Caller, spec: &mut JobSpec) {
    if spec.task.user.is_none() {
        spec.task.user = permission::own_user(&caller.approver, &context.user);
    }
}

/// Returns the answer when one of several jobs is refused: the jobs before it are accepted.
fn refused_after(taken: &[Accepted], name: &str, refusal: Refusal) -> Reply {
    if taken.is_empty() {
        return refusal.into();
    }
    let names: Vec<_> = taken.iter().map(|job| job.name.as_str()).collect();
    let text = format!(
        "{name:?}: {refusal}; accepted before it: {}",
        names.join(", ")
    );
    Reply::error(Reply::from(refusal).status(), &text)
}

async fn plan(permitted: Permitted) -> Result<Reply, Reply> {
    let Permitted {
        context,
        caller,
        request,
        ..
    } = permitted;
    let mut spec = read_file(&context, &caller, request, file::from_text).await?;
    name_user(&context, &caller, &mut spec);
    let turn = context.turn(&caller).await?;
    let Target { key, spec, .. } =
        Target::from_context(&context, &caller, spec, &HashSet::new()).await?;
    drop(turn);
    let place = context.changes.plan(&caller).await?;
    look_for_offers(&context, &caller, &spec.role).await?;
    drop(place);
    let turn = context.turn(&caller).await?;
    // The closure holds the turn: it runs in the core even if the client has left.
    let planned = |quotas: Quotas, turn: Permit| {
        let (key, spec) = (key.clone(), spec.clone());
        move |state: &State| {
            let plan = state.plan(&key, &spec, &quotas);
            (state.authorities_of(&key), plan, turn)
        }
    };
    let first = planned(Quotas::default(), turn);
    let (mut present, mut plan, turn) = context.handle.read(first).await?;
    if plan.may_be_limited {
        let all = context.quotas.read().await;
        let quotas = all.seen_of(&spec.role, |role| super::sees(&caller, role));
        (present, plan, _) = context.handle.read(planned(quotas, turn)).await?;
    }
    // The changes reveal the present version.
    if let Some(seen) = present {
        permission::change(&caller.approver, &seen.present)?;
    }
    Ok(Reply::json(&plan))
}

/// Requests the offers of a role again, and waits for them for a moment: remembered offers may be of lost agents, or used
/// by others since.
async fn look_for_offers(context: &Context, caller: &Caller, role: &str) -> Result<(), Reply> {
    let turn = context.turn(caller).await?;
    let until = tokio::time::Instant::now() + OFFERS_WAIT_MAX;
    let request = Request::LookForOffers {
        role: role.to_owned(),
    };
    let asked = context.handle.request_in_turn(request, turn);
    let asked = tokio::time::timeout(OFFERS_WAIT_MAX, asked).await;
    let Ok(Ok(Ok(Accepted { version: last, .. }))) = asked else {
        return Ok(());
    };
    let (mut before, mut since) = (0, tokio::time::Instant::now());
    while tokio::time::Instant::now() < until {
        let role = role.to_owned();
        let looked = context
            .handle
            .read(move |state| state.offers_since(&role, last));
        let Ok(Some(count)) = looked.await else {
            return Ok(());
        };
        if count != before {
            (before, since) = (count, tokio::time::Instant::now());
        }
        // The master makes all offers at once, or within a second.
        if count > 0 && since.elapsed() >= OFFERS_PAUSE {
            return Ok(());
        }
        tokio::time::sleep(OFFERS_POLL).await;
    }
    Ok(())
}

async fn change(permitted: Permitted, name: &str, action: &str) -> Result<Reply, Reply> {
    let Permitted {
        context,
        caller,
        request,
        ..
    } = permitted;
    let turn = context.turn(&caller).await?;
    let key = names::find(&context, &caller, name).await?;
    let seen = seen(&context, &key).await?;
    let seen = seen.ok_or_else(|| Reply::no_job(name))?;
    permission::change(&caller.approver, &seen.present)?;
    // The client may send its body slowly.
    drop(turn);
    let (parts, body) = request.into_parts();
    let bodies = &context.bodies;
    let read_whole = bodies.read(&caller, &parts.headers, body, CHANGE_BYTES_MAX);
    let (body, _charge) = read_whole.await?;
    let turn = context.turn(&caller).await?;
    let mut request = request_of(&key, action, &body)?;
    match &mut request {
        Request::Stop { .. } => {}
        Request::Revert { version, .. } => {
            let (wanted, asked) = (key.clone(), *version);
            let target = move |state: &State| state.revert_target(&wanted, asked);
            let (target, authority) = context.handle.read(target).await??;
            permission::run_existing(&caller.approver, &authority, &context.user)?;
            permission::replace(&caller.approver, &authority, &seen, &context.user)?;
            // The revert goes to the checked version, even if another became healthy since.
            *version = Some(target);
        }
        _ => {
            permission::run_existing(&caller.approver, &seen.present, &context.user)?;
            permission::replace(&caller.approver, &seen.present, &seen, &context.user)?;
        }
    }
    let request = Request::Permitted {
        name: key,
        principal: caller.approver.principal().map(str::to_owned),
        seen: Some(seen),
        request: Box::new(request),
    };
    let answer = context.change(request, turn).await?;
    caller.audit(action, name, result_text(&answer));
    Ok(Reply::json(&answer?))
}

async fn seen(context: &Context, name: &str) -> Result<Option<Authorities>, Reply> {
    let name = name.to_owned();
    let found = context
        .handle
        .read(move |state| state.authorities_of(&name));
    Ok(found.await?)
}

fn request_of(name: &str, action: &str, body: &[u8]) -> Result<Request, Reply> {
    let name = name.to_owned();
    Ok(match action {
        "scale" => {
            let Scale { count, purge } = read_body(body)?;
            Request::Scale { name, count, purge }
        }
        "restart" => {
            let Nothing {} = read_body(body)?;
            Request::Restart { name }
        }
        "stop" => {
            let Stop { purge } = read_body(body)?;
            Request::Stop { name, purge }
        }
        "revert" => {
            let Revert { version } = read_body(body)?;
            Request::Revert { name, version }
        }
        "promote" => {
            let Nothing {} = read_body(body)?;
            Request::Promote { name }
        }
        "rebalance" => {
            let Nothing {} = read_body(body)?;
            Request::Rebalance { name }
        }
        "release" => {
            let Release { index, volume_id } = read_body(body)?;
            Request::Release {
                name,
                index,
                volume_id,
            }
        }
        other => {
            let text = format!("unknown action {other:?}; known are {}", ACTIONS.join(", "));
            return Err(Reply::error(StatusCode::NOT_FOUND, &text));
        }
    })
}

fn read_body<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Reply> {
    let body = body.trim_ascii();
    let body = if body.is_empty() { b"{}" } else { body };
    // The decoder would accept a list as the fields in their order.
    if !body.starts_with(b"{") {
        let text = "the body is not a JSON object";
        return Err(Reply::error(StatusCode::BAD_REQUEST, text));
    }
    serde_json::from_slice(body).map_err(|error| {
        let text = format!("the body is invalid: {error}");
        Reply::error(StatusCode::BAD_REQUEST, &text)
    })
}

async fn read_file<T: Send + 'static>(
    context: &Context,
    caller: &Caller,
    request: http::Request<axum::body::Body>,
    read: fn(&str) -> Result<T, Mistakes>,
) -> Result<T, Reply> {
    // A caller who may change no job is refused before the file is read.
    let in_any_role = caller.approver.extent(Action::RegisterFramework, 1);
    if !in_any_role.unnamed && in_any_role.named.is_empty() {
        caller.check(Action::RegisterFramework, None)?;
    }
    let (parts, body) = request.into_parts();
    let bodies = &context.bodies;
    let read_whole = bodies.read(caller, &parts.headers, body, file::FILE_BYTES_MAX);
    let (body, charge) = read_whole.await?;
    context.files.read(caller, (body, Some(charge)), read).await
}

fn result_text<T>(answer: &Result<T, Refusal>) -> &'static str {
    match answer {
        Ok(_) => "done",
        Err(_) => "refused",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_is_an_object_or_empty() {
        for body in ["", " \n", "{}", " {\"purge\": false} "] {
            assert!(!read_body::<Stop>(body.as_bytes()).expect("read").purge);
        }
        // The decoder would accept a list as the fields in their order.
        for body in ["[]", "[true]", "null", "\"purge\"", "{\"purg\": true}", "{"] {
            let refused = read_body::<Stop>(body.as_bytes()).err().expect(body);
            assert_eq!(refused.status(), StatusCode::BAD_REQUEST, "{body}");
        }
    }
}
