//! What is only read: events, discovery, metrics, health, version.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use meseta_daemon::authentication::Caller;
use meseta_daemon::server::stream_body;
use serde::Serialize;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;

use super::{Permitted, Reply, openapi, sees};
use crate::core::{Event, State};
use crate::metrics::{self, Measures};
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

/// Which scheduler leads, as of the one that is asked.
#[derive(Serialize)]
struct Leading {
    role: &'static str,
    leader: Option<String>,
    schedulers: Vec<String>,
    /// Why a leader may not act.
    reason: Option<String>,
}

pub(super) async fn leader(permitted: Permitted) -> Result<Reply, Reply> {
    let context = &permitted.context;
    let standing = &context.handle.standing;
    Ok(Reply::json(&Leading {
        role: standing.now().name(),
        leader: standing.leader(&context.address),
        schedulers: context.schedulers.borrow().clone(),
        reason: standing.suspended(),
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
    let role = handle.standing.now();
    let measures = handle.read(|state| Measures::of(state, role)).await?;
    match metrics::text(&measures) {
        Ok(text) => Ok(Reply::prometheus(text)),
        Err(error) => {
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            Err(Reply::error(status, &error.to_string()))
        }
    }
}

pub(super) async fn health(permitted: Permitted) -> Result<Reply, Reply> {
    let is_connected = permitted
        .context
        .handle
        .read(|state| state.is_connected())
        .await?;
    let role = permitted.context.handle.standing.now();
    Ok(Reply::json(
        &json!({ "role": role.name(), "subscribed": is_connected }),
    ))
}

pub(super) async fn version(permitted: Permitted) -> Result<Reply, Reply> {
    let build = permitted.context.build;
    Ok(Reply::json(
        &build.version_view(meseta_proto::INTERFACE_VERSION),
    ))
}

pub(super) async fn openapi(permitted: Permitted) -> Result<Reply, Reply> {
    let version = permitted.context.build.version;
    Ok(Reply::json(&openapi::description(version)))
}
