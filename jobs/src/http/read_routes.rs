//! The other read-only routes: events, discovery, metrics, health, version.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use http::StatusCode;
use meseta_daemon::authentication::Caller;
use meseta_daemon::server::stream_body;
use meseta_resources::HostPort;
use serde::Serialize;
use serde_json::json;
use tokio::sync::{broadcast, mpsc};
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::job_pages::ListWriter;
use super::{Permitted, Reply, openapi, sees};
use crate::core::{Discovered, Event, JobName, State};
use crate::metrics::{self, Measures};

/// Events that a reader may lag behind before the stream waits for it.
const STREAM_QUEUE_MAX: usize = 64;
/// Tasks whose ports are examined between two steps of the core.
const TASKS_PER_LOOK: usize = 5_000;
/// The approximate size of a target's text.
const TARGET_BYTES: usize = 320;
/// The pause between two heartbeats of a stream of events. A heartbeat is a space, with which the next line begins: JSON
/// permits that, so a client that reads line by line need not know heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Streams events from now on. A reader that falls too far behind is cut off, and can read the history.
pub(super) async fn events(permitted: Permitted) -> Result<Reply, Reply> {
    let Permitted {
        context,
        caller,
        query,
        ..
    } = permitted;
    let events = context.handle.events();
    let wanted = query.get("job").map(JobName::read);
    let (queue, lines) = mpsc::channel(STREAM_QUEUE_MAX);
    let shutdown = context.shutdown.clone();
    let body = stream_body(lines, shutdown.clone());
    tokio::spawn(async move {
        let mut stream = Stream::new(events, queue);
        loop {
            let event = tokio::select! {
                () = shutdown.cancelled() => return,
                event = stream.next() => event,
            };
            let Some(event) = event else {
                return;
            };
            if wanted.as_ref().is_some_and(|job| !is_of(&event, job)) {
                continue;
            }
            if !is_seen(&caller, &event) {
                continue;
            }
            if !stream.send(&event).await {
                return;
            }
        }
    });
    Ok(Reply::lines(body))
}

/// The events of one reader, and the channel to it.
struct Stream {
    events: broadcast::Receiver<Arc<Event>>,
    queue: mpsc::Sender<Bytes>,
    beats: Interval,
}

impl Stream {
    fn new(events: broadcast::Receiver<Arc<Event>>, queue: mpsc::Sender<Bytes>) -> Self {
        let mut beats = tokio::time::interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            events,
            queue,
            beats,
        }
    }

    /// Waits for the next event and sends heartbeats meanwhile; returns `None` once the reader has left or is too far
    /// behind.
    async fn next(&mut self) -> Option<Arc<Event>> {
        loop {
            tokio::select! {
                () = self.queue.closed() => return None,
                event = self.events.recv() => return event.ok(),
                _ = self.beats.tick() => {
                    // Without room, the reader has something to read.
                    let _ = self.queue.try_send(Bytes::from_static(b" "));
                }
            }
        }
    }

    /// Sends an event, and returns whether the reader is still there.
    async fn send(&self, event: &Event) -> bool {
        let Ok(mut line) = serde_json::to_vec(event) else {
            return true;
        };
        line.push(b'\n');
        self.queue.send(line.into()).await.is_ok()
    }
}

/// Returns true if an event belongs to a job with this name.
fn is_of(event: &Event, wanted: &JobName) -> bool {
    let JobName { role, name } = wanted;
    *name == event.job && (role.is_none() || *role == event.role)
}

/// Whether a caller may see the jobs of the event's role.
fn is_seen(caller: &Caller, event: &Event) -> bool {
    let is_of_seen_role = || event.role.as_deref().is_some_and(|role| sees(caller, role));
    caller.approver.allows_everything() || is_of_seen_role()
}

/// The framework at the master, as the health page shows it.
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
    let turn = context.readers.turn(&permitted.caller).await?;
    let ((subscribed, framework_id), _turn) = turn.look(&context.handle, looked).await?;
    Ok(Reply::json(&Subscription {
        subscribed,
        master: context.leader.borrow().clone(),
        framework_id,
    }))
}

/// The leading scheduler, from the view of the queried scheduler.
#[derive(Serialize)]
struct Leading {
    role: &'static str,
    leader: Option<String>,
    schedulers: Vec<String>,
    /// The reason why a leader may not act.
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

impl From<Discovered> for Target {
    fn from(one: Discovered) -> Self {
        Self {
            targets: [HostPort::new(one.hostname, one.port).to_string()],
            labels: BTreeMap::from([
                ("__meta_meseta_job", one.job),
                ("__meta_meseta_role", one.role),
                ("__meta_meseta_task_id", one.task_id),
                ("__meta_meseta_port", one.port_name),
                ("__meta_meseta_healthy", one.is_healthy.to_string()),
            ]),
        }
    }
}

pub(super) async fn http_sd(permitted: Permitted) -> Result<Reply, Reply> {
    let context = &permitted.context;
    let turn = context.readers.turn(&permitted.caller).await?;
    let (counts, mut turn) = turn.look(&context.handle, State::port_counts).await?;
    turn.reserve(permitted.seen_of(&counts) * TARGET_BYTES)
        .await?;
    let (mut json, mut last) = (ListWriter::alone(), None);
    loop {
        let looked = move |state: &State| state.discovered_behind(last.as_ref(), TASKS_PER_LOOK);
        let ((found, next), then) = turn.look(&context.handle, looked).await?;
        (turn, last) = (then, next);
        let seen = found.into_iter().filter(|one| permitted.sees(&one.role));
        json.add(&seen.map(Target::from).collect::<Vec<_>>())?;
        if last.is_none() {
            return turn.answer(json.end()).await;
        }
    }
}

pub(super) async fn metrics(permitted: Permitted) -> Result<Reply, Reply> {
    let context = &permitted.context;
    let turn = context.readers.turn(&permitted.caller).await?;
    let measures = Measures::from_handle(&context.handle).await?;
    drop(turn);
    let certificate_end = context.authentication.certificate_end();
    let process = metrics::Process::read(certificate_end, context.disk_report.silence().get());
    match metrics::text(&measures, process, &|role| permitted.sees(role)) {
        Ok(text) => Ok(Reply::prometheus(text)),
        Err(error) => {
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            Err(Reply::error(status, &error.to_string()))
        }
    }
}

pub(super) async fn health(permitted: Permitted) -> Result<Reply, Reply> {
    if let Some(problem) = permitted.context.disk_report.problem() {
        return Err(Reply::error(StatusCode::SERVICE_UNAVAILABLE, &problem));
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_sd_brackets_ipv6_hosts() {
        for (hostname, expected) in [("n1", "n1:31000"), ("fd00::7", "[fd00::7]:31000")] {
            let target = Target::from(Discovered {
                job: "web".to_owned(),
                role: "*".to_owned(),
                task_id: "web.0.1".to_owned(),
                hostname: hostname.to_owned(),
                port_name: "http".to_owned(),
                port: 31000,
                is_healthy: true,
            });
            assert_eq!(target.targets, [expected]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn quiet_stream_sends_hidden_keepalives() {
        let (told, events) = broadcast::channel(8);
        let (queue, mut lines) = mpsc::channel(STREAM_QUEUE_MAX);
        let passing = tokio::spawn(async move {
            let mut stream = Stream::new(events, queue);
            while let Some(event) = stream.next().await {
                assert!(stream.send(&event).await);
            }
        });
        for _ in 0..3 {
            let before = Instant::now();
            assert_eq!(lines.recv().await.as_deref(), Some(&b" "[..]));
            assert_eq!(before.elapsed(), HEARTBEAT);
        }
        let mut text = b"   ".to_vec();
        for job in ["a", "b"] {
            let event = Event {
                time: 1,
                job: job.to_owned(),
                role: None,
                task_id: None,
                agent_id: None,
                text: "running".to_owned(),
            };
            assert!(told.send(Arc::new(event)).is_ok());
        }
        drop(told);
        while let Some(line) = lines.recv().await {
            text.extend_from_slice(&line);
        }
        passing.await.expect("it ends with the events");
        let text = String::from_utf8(text).expect("text");
        let read = text.lines().map(serde_json::from_str);
        let read: Result<Vec<serde_json::Value>, _> = read.collect();
        let jobs = read.expect("each line is JSON");
        let jobs: Vec<_> = jobs.iter().map(|event| &event["job"]).collect();
        assert_eq!(jobs, ["a", "b"]);
    }
}
