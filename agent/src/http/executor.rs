//! `/api/v1/executor`: what executors of frameworks call, in JSON and in protobuf.
//!
//! SUBSCRIBE is answered with a stream of events as RecordIO; every other call with 202 once it is the
//! core's. The order of the checks is Mesos's, and so are their words.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Request, StatusCode};
use meseta_proto::media::{self, MediaType};
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::executor::{Call, Event, call, event};
use meseta_proto::mesos::v1::task_status::Source;
use meseta_proto::transport::server::stream_body;
use meseta_resources::{ExecutorId, FrameworkId};
use tokio::sync::mpsc;

use super::{Reply, Surface, body};
use crate::core::{ConnectionId, Executor, Input};

/// How often an executor that hears nothing else hears that the agent is there.
const HEARTBEAT: Duration = Duration::from_secs(30 * 60);
/// Records that are encoded and not yet sent.
const RECORDS_MAX: usize = 16;

/// Answers one call.
pub(super) async fn call(surface: &Arc<Surface>, request: Request<Body>) -> Result<Reply, Reply> {
    let refuse = |error: media::Error| Reply::text(error.status(), &error.to_string());
    let content_type = media::content_type(request.headers(), &MediaType::MESSAGES);
    let content_type = content_type.map_err(refuse)?;
    let accept = media::accept(request.headers());
    let bytes = body(request).await?;
    let call: Call = media::decode(content_type, &bytes)
        .map_err(|error| Reply::text(StatusCode::BAD_REQUEST, &error.to_string()))?;
    validate(&call).map_err(|error| {
        let text = format!("Failed to validate Executor::Call: {error}");
        Reply::text(StatusCode::BAD_REQUEST, &text)
    })?;
    let accept = match call.r#type() {
        call::Type::Subscribe => accept.map_err(refuse)?,
        // May hold ids that are nobody's.
        call::Type::Heartbeat => return Ok(Reply::empty(StatusCode::ACCEPTED)),
        _ => MediaType::Json,
    };
    let (framework, executor) = find(surface, &call).await?;
    if call.r#type() != call::Type::Subscribe && !executor.link.has_subscribed {
        let text = "Executor is not subscribed";
        return Err(Reply::text(StatusCode::FORBIDDEN, text));
    }
    let executor = executor.key.executor.clone();
    match (call.r#type(), call.subscribe, call.update, call.message) {
        (call::Type::Subscribe, Some(subscribe), _, _) => {
            Ok(open_stream(surface, framework, executor, subscribe, accept).await)
        }
        (call::Type::Update, _, Some(update), _) => {
            let status = Box::new(update.status);
            let input = Input::ExecutorUpdate {
                framework,
                executor,
                status,
            };
            surface.core.tell(input).await;
            Ok(Reply::empty(StatusCode::ACCEPTED))
        }
        (call::Type::Message, _, _, Some(message)) => {
            let input = Input::ExecutorMessage {
                framework,
                executor,
                data: message.data,
            };
            surface.core.tell(input).await;
            Ok(Reply::empty(StatusCode::ACCEPTED))
        }
        _ => Err(Reply::text(
            StatusCode::NOT_IMPLEMENTED,
            "Unknown executor call",
        )),
    }
}

/// The executor that a call names.
async fn find(surface: &Surface, call: &Call) -> Result<(FrameworkId, Arc<Executor>), Reply> {
    let snapshot = surface.snapshot().await?;
    let missing = |what: &str| {
        let text = format!("{what} cannot be found");
        Reply::text(StatusCode::BAD_REQUEST, &text)
    };
    let framework = snapshot.frameworks.get(call.framework_id.value.as_str());
    let framework = framework.ok_or_else(|| missing("Framework"))?;
    let executor = framework.executors.get(call.executor_id.value.as_str());
    let executor = executor.ok_or_else(|| missing("Executor"))?;
    Ok((framework.id.clone(), executor.clone()))
}

fn validate(call: &Call) -> Result<(), String> {
    let expecting = |what: &str| Err(format!("Expecting '{what}' to be present"));
    if call.r#type.is_none() {
        return expecting("type");
    }
    match call.r#type() {
        call::Type::Subscribe if call.subscribe.is_none() => expecting("subscribe"),
        call::Type::Message if call.message.is_none() => expecting("message"),
        call::Type::Update => match &call.update {
            Some(update) => validate_status(call, &update.status),
            None => expecting("update"),
        },
        _ => Ok(()),
    }
}

fn validate_status(call: &Call, status: &pb::TaskStatus) -> Result<(), String> {
    let (executor, framework) = (&call.executor_id.value, &call.framework_id.value);
    let Some(uuid) = &status.uuid else {
        return Err("Expecting 'uuid' to be present".to_owned());
    };
    if uuid.len() != 16 {
        return Err("Not a valid UUID".to_owned());
    }
    let told = status.executor_id.as_ref().map(|id| &id.value);
    if let Some(told) = told.filter(|told| *told != executor) {
        return Err(format!(
            "ExecutorID in Call: {executor} does not match ExecutorID in TaskStatus: {told}"
        ));
    }
    if status.source.is_none() || status.source() != Source::Executor {
        return Err(format!(
            "Received Call from executor {executor} of framework {framework} with invalid source, \
             expecting 'SOURCE_EXECUTOR'"
        ));
    }
    if status.state() == pb::TaskState::TaskStaging {
        return Err(format!(
            "Received TASK_STAGING from executor {executor} of framework {framework} which is not \
             allowed"
        ));
    }
    Ok(())
}

async fn open_stream(
    surface: &Arc<Surface>,
    framework: FrameworkId,
    executor: ExecutorId,
    subscribe: call::Subscribe,
    media: MediaType,
) -> Reply {
    let (connection, events) = surface.streams.open();
    let input = Input::ExecutorSubscribed {
        connection,
        framework,
        executor,
        subscribe: Box::new(subscribe),
    };
    surface.core.tell(input).await;
    let (sender, records) = mpsc::channel(RECORDS_MAX);
    let shared = surface.clone();
    tokio::spawn(async move {
        forward(events, &sender, media, HEARTBEAT).await;
        drop(sender);
        leave(&shared, connection).await;
    });
    let body = stream_body(records, surface.shutdown.clone());
    Reply::stream(media.as_str(), None, body)
}

async fn leave(surface: &Surface, connection: ConnectionId) {
    surface.streams.close(connection);
    surface.core.tell(Input::ExecutorGone { connection }).await;
}

/// Encodes events until either end is closed, with a sign of life in longer pauses.
async fn forward(
    mut events: mpsc::Receiver<Event>,
    records: &mpsc::Sender<Bytes>,
    media: MediaType,
    silence: Duration,
) {
    loop {
        let event = tokio::select! {
            biased;
            () = records.closed() => return,
            event = events.recv() => event,
            () = tokio::time::sleep(silence) => Some(Event {
                r#type: Some(event::Type::Heartbeat.into()),
                ..Event::default()
            }),
        };
        let Some(event) = event else { return };
        if records
            .send(media::encode_record(media, &event))
            .await
            .is_err()
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn silence_is_broken_by_heartbeats() {
        let (_events_in, events) = mpsc::channel(1);
        let (sender, mut records) = mpsc::channel(1);
        let silence = Duration::from_millis(1);
        tokio::spawn(async move {
            forward(events, &sender, MediaType::Json, silence).await;
        });
        for _ in 0..2 {
            let record = records.recv().await.expect("a record");
            assert!(record.ends_with(b"{\"type\":\"HEARTBEAT\"}"), "{record:?}");
        }
    }
}
