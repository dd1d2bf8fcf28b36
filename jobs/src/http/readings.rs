//! What is only read: events, discovery, metrics, health, version.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use http::StatusCode;
use meseta_daemon::authentication::Caller;
use meseta_daemon::server::stream_body;
use serde::Serialize;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;

use super::routes::ROUTES;
use super::{Permitted, Reply, sees};
use crate::core::{Event, JobView, State, Totals};
use crate::service::Handle;

/// Events that one reader may be behind before the stream waits for it.
const STREAM_QUEUE_MAX: usize = 64;

/// Events from now on. A reader that falls too far behind is cut off, and can see the history.
pub(super) async fn events(permitted: Permitted) -> Result<Reply, Reply> {
    let Permitted {
        context,
        caller,
        query,
        ..
    } = permitted;
    let mut events = context.handle.events();
    let wanted = query.get("job").map(str::to_owned);
    let (queue, lines) = mpsc::channel(STREAM_QUEUE_MAX);
    let shutdown = context.shutdown.clone();
    let body = stream_body(lines, shutdown.clone());
    tokio::spawn(async move {
        loop {
            let event = tokio::select! {
                () = queue.closed() => return,
                () = shutdown.cancelled() => return,
                event = events.recv() => event,
            };
            let event = match event {
                Ok(event) => event,
                Err(RecvError::Closed | RecvError::Lagged(_)) => return,
            };
            if wanted.as_ref().is_some_and(|job| *job != event.job) {
                continue;
            }
            if !is_seen(&context.handle, &caller, &event).await {
                continue;
            }
            let Ok(mut line) = serde_json::to_vec(&*event) else {
                continue;
            };
            line.push(b'\n');
            if queue.send(line.into()).await.is_err() {
                return;
            }
        }
    });
    Ok(Reply::lines(body))
}

async fn is_seen(handle: &Handle, caller: &Caller, event: &Arc<Event>) -> bool {
    if caller.approver.allows_everything() {
        return true;
    }
    let event = event.clone();
    let role = handle.read(move |state| state.role_of(&event.job).map(str::to_owned));
    matches!(role.await, Ok(Some(role)) if sees(caller, &role))
}

/// What the scheduler is to the master.
#[derive(Serialize)]
struct Subscription {
    subscribed: bool,
    /// The URL of the master that leads, or led when it last answered.
    master: Option<String>,
    framework_id: Option<String>,
}

pub(super) async fn subscription(permitted: Permitted) -> Result<Reply, Reply> {
    let context = &permitted.context;
    let looked = |state: &State| {
        (
            state.is_connected(),
            state.framework_id().map(str::to_owned),
        )
    };
    let (subscribed, framework_id) = context.handle.read(looked).await?;
    Ok(Reply::json(&Subscription {
        subscribed,
        master: context.leader.borrow().clone(),
        framework_id,
    }))
}

/// An entry of Prometheus's HTTP service discovery.
#[derive(Serialize)]
struct Target {
    targets: [String; 1],
    labels: BTreeMap<&'static str, String>,
}

pub(super) async fn http_sd(permitted: Permitted) -> Result<Reply, Reply> {
    let found = permitted
        .context
        .handle
        .read(|state| state.discovered())
        .await?;
    let seen = found.into_iter().filter(|one| permitted.sees(&one.role));
    let targets = seen.map(|one| Target {
        targets: [format!("{}:{}", one.hostname, one.port)],
        labels: BTreeMap::from([
            ("__meta_meseta_job", one.job),
            ("__meta_meseta_role", one.role),
            ("__meta_meseta_task_id", one.task_id),
            ("__meta_meseta_port", one.port_name),
            ("__meta_meseta_healthy", one.is_healthy.to_string()),
        ]),
    });
    Ok(Reply::json(&targets.collect::<Vec<_>>()))
}

pub(super) async fn metrics(permitted: Permitted) -> Result<Reply, Reply> {
    let handle = &permitted.context.handle;
    let read = handle.read(|state| (state.jobs(), state.totals(), state.is_connected()));
    let (jobs, totals, is_connected) = read.await?;
    Ok(Reply::prometheus(text(&jobs, totals, is_connected)))
}

fn text(jobs: &[JobView], totals: Totals, is_connected: bool) -> String {
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, value: u64| {
        // Writing to a String does not fail.
        let _ = write!(
            text,
            "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n"
        );
    };
    let sum = |count: fn(&JobView) -> usize| jobs.iter().map(count).sum::<usize>() as u64;
    metric(
        "meseta_scheduler_subscribed",
        "gauge",
        "Whether a master answers.",
        is_connected.into(),
    );
    metric(
        "meseta_scheduler_tasks_running",
        "gauge",
        "Tasks that run.",
        sum(|job| job.running),
    );
    metric(
        "meseta_scheduler_tasks_healthy",
        "gauge",
        "Tasks of services that are healthy.",
        sum(|job| job.healthy),
    );
    metric(
        "meseta_scheduler_tasks_pending",
        "gauge",
        "Tasks that wait to be launched.",
        sum(|job| job.pending),
    );
    for (name, help, value) in [
        (
            "meseta_scheduler_tasks_launched_total",
            "Tasks launched since the start.",
            totals.launched,
        ),
        (
            "meseta_scheduler_tasks_started_total",
            "Tasks that came to run.",
            totals.started,
        ),
        (
            "meseta_scheduler_tasks_succeeded_total",
            "Tasks that ended with success.",
            totals.succeeded,
        ),
        (
            "meseta_scheduler_tasks_failed_total",
            "Tasks that failed or were killed.",
            totals.failed,
        ),
        (
            "meseta_scheduler_tasks_lost_total",
            "Tasks that were lost with their agents, or preempted.",
            totals.lost,
        ),
        (
            "meseta_scheduler_tasks_strays_killed_total",
            "Tasks killed because nothing here knew them.",
            totals.strays_killed,
        ),
        (
            "meseta_scheduler_offers_unreadable_total",
            "Offers given back because they could not be read.",
            totals.unreadable_offers,
        ),
    ] {
        metric(name, "counter", help, value);
    }
    let mut states: BTreeMap<&str, u64> = BTreeMap::new();
    for job in jobs {
        *states.entry(job.state).or_default() += 1;
    }
    let _ = write!(
        text,
        "# HELP meseta_scheduler_jobs Jobs by state.\n# TYPE meseta_scheduler_jobs gauge\n"
    );
    for (state, count) in states {
        let _ = writeln!(text, "meseta_scheduler_jobs{{state=\"{state}\"}} {count}");
    }
    text
}

pub(super) async fn health(permitted: Permitted) -> Result<Reply, Reply> {
    let is_connected = permitted
        .context
        .handle
        .read(|state| state.is_connected())
        .await?;
    Ok(Reply::json(&json!({ "subscribed": is_connected })))
}

pub(super) async fn version(permitted: Permitted) -> Result<Reply, Reply> {
    let build = permitted.context.build;
    Ok(Reply::json(
        &build.version_view(meseta_proto::INTERFACE_VERSION),
    ))
}

pub(super) async fn openapi(permitted: Permitted) -> Result<Reply, Reply> {
    let mut paths = serde_json::Map::new();
    for route in ROUTES.list {
        let mut methods = serde_json::Map::new();
        for method in route
            .methods
            .iter()
            .filter(|method| **method != http::Method::HEAD)
        {
            let operation = json!({
                "summary": route.text,
                "responses": { StatusCode::OK.as_str(): { "description": "done" } },
            });
            methods.insert(method.as_str().to_lowercase(), operation);
        }
        paths.insert(route.path.to_owned(), methods.into());
    }
    let version = permitted.context.build.version;
    Ok(Reply::json(&json!({
        "openapi": "3.1.0",
        "info": { "title": "Meseta scheduler", "version": version },
        "paths": paths,
        "components": { "schemas": { "Job": crate::file::schema() } },
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_in_the_form_of_prometheus() {
        let totals = Totals {
            launched: 3,
            ..Totals::default()
        };
        let text = text(&[], totals, true);
        assert!(
            text.contains("\nmeseta_scheduler_tasks_launched_total 3\n"),
            "{text}"
        );
        let page = include_str!("../../../docs/metrics.md");
        let lines = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let names: Vec<&str> = lines.filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(names.len(), 12);
        for name in names {
            assert!(
                page.contains(&format!("| `{name}` |")),
                "{name} in docs/metrics.md"
            );
        }
    }
}
