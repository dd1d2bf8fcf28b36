//! `/api/v1/executor`: the calls of frameworks' executors, in JSON and in protobuf.
//!
//! SUBSCRIBE is answered with a stream of events as RecordIO; every other call with 202 once the core has it. The
//! checks have Mesos's order and error messages.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Request, StatusCode};
use meseta_daemon::body;
use meseta_daemon::server::{Peer, stream_body};
use meseta_proto::Invalid;
use meseta_proto::budget::Budget;
use meseta_proto::media::{self, MediaType};
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::executor::{Call, Event, call, event};
use meseta_proto::mesos::v1::task_status::Source;
use meseta_proto::schema;
use meseta_resources::{ExecutorId, FrameworkId};
use prost::Message as _;
use tokio::sync::mpsc;

use super::executor_caller::{ExecutorCaller, register};
use super::routes::Permitted;
use super::{Reply, undecodable};
use crate::byte_semaphore::{ByteSemaphore, Permit, TooManyWaiters};
use crate::context::Context;
use crate::core::{ConnectionId, Executor, Input};
use crate::service::executor_streams::Events;

/// The interval of heartbeats for an executor that gets no other event.
const HEARTBEAT: Duration = Duration::from_secs(30 * 60);
/// Records that are encoded and not yet sent: each may be as large as a task group.
const RECORDS_MAX: usize = 1;
/// Characters of an id that an error repeats.
const ID_CHARACTERS_MAX: usize = 255;
/// The memory of a decoded call besides its body; only unusual calls need more.
const DECODED_BYTES_USUAL: usize = 64 * 1024;

pub(super) async fn call(permitted: Permitted) -> Result<Reply, Reply> {
    let Permitted {
        context, request, ..
    } = permitted;
    let context = &context;
    let peer = request.extensions().get::<Peer>().cloned();
    let caller = ExecutorCaller::from_context(context, request.headers(), peer.clone()).await?;
    let refuse = |error: media::Error| Reply::text(error.status(), &error.to_string());
    let content_type = media::content_type(request.headers(), &MediaType::MESSAGES);
    let content_type = content_type.map_err(refuse)?;
    let accept = media::accept(request.headers());
    let (mut permit, bytes) = read(context, &caller, request).await?;
    let (call, decoded) = decode(context, content_type, bytes, &mut permit)?;
    validate(&call).map_err(|error| {
        let text = format!("Failed to validate Executor::Call: {error}");
        Reply::text(StatusCode::BAD_REQUEST, &text)
    })?;
    let accept = match call.r#type() {
        call::Type::Subscribe => accept.map_err(refuse)?,
        // The ids may be unknown.
        call::Type::Heartbeat => return Ok(Reply::empty(StatusCode::ACCEPTED)),
        _ => MediaType::Json,
    };
    caller.check_named(&call)?;
    let found = find(context, &call).await;
    let (framework, executor) = caller.admit(context, found).await?;
    if let Some(peer) = &peer {
        register(context, &executor.key.container, peer).await;
    }
    if call.r#type() != call::Type::Subscribe && !executor.link.has_subscribed() {
        let text = "Executor is not subscribed";
        return Err(Reply::text(StatusCode::FORBIDDEN, text));
    }
    let container = executor.key.container.clone();
    let executor = executor.key.executor.clone();
    match (call.r#type(), call.subscribe, call.update, call.message) {
        (call::Type::Subscribe, Some(subscribe), _, _) => {
            let (group, sender) = (framework.as_str(), container.as_str());
            let permits = permits_for(&context.unacknowledged, group, sender, &subscribe);
            let call = (subscribe, permits);
            Ok(open_stream(context, framework, executor, call, (accept, permit)).await)
        }
        (call::Type::Update, _, Some(update), _) => {
            let bytes = update.status.encoded_len().max(decoded);
            let status = Box::new(update.status);
            let (group, sender) = (framework.as_str(), container.as_str());
            // A waiting update takes no capacity from calls to read, if it has a waiting place.
            let waiting = context.waiting.take(group, sender, bytes).await;
            let waiting = waiting.map_err(too_many_waiters)?;
            drop(permit);
            // The call is answered only then: an executor without an answer sends no further updates.
            let until_acknowledged = context.unacknowledged.take(group, sender, bytes).await;
            let until_acknowledged = until_acknowledged.map_err(too_many_waiters)?;
            drop(waiting);
            let input = Input::ExecutorUpdate {
                framework,
                executor,
                status,
                permit: until_acknowledged,
            };
            context.core.tell(input).await;
            Ok(Reply::empty(StatusCode::ACCEPTED))
        }
        (call::Type::Message, _, _, Some(message)) => {
            let input = Input::ExecutorMessage {
                framework,
                executor,
                data: message.data,
                permit,
            };
            context.core.tell(input).await;
            Ok(Reply::empty(StatusCode::ACCEPTED))
        }
        _ => Err(Reply::text(
            StatusCode::NOT_IMPLEMENTED,
            "Unknown executor call",
        )),
    }
}

/// Reads a call once there is room for its announced length; without a length it takes room as its bytes arrive.
async fn read(
    context: &Context,
    caller: &ExecutorCaller,
    request: Request<Body>,
) -> Result<(Permit, Bytes), Reply> {
    let announced = request.headers().get(http::header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let max = context.budgets.call_bytes_max();
    let announced = announced.unwrap_or_default().min(max);
    let (group, sender) = (caller.group(), caller.sender());
    let permit = context.reading.take(&group, &sender, announced).await;
    let mut permit = permit.map_err(too_many_waiters)?;
    let mut left = announced;
    let (parts, body) = request.into_parts();
    let read = body::read_into(&parts.headers, body, max, |bytes| {
        let more = bytes.saturating_sub(left);
        left = left.saturating_sub(bytes);
        permit.grow(more)
    });
    match read.await {
        Ok(bytes) => Ok((permit, bytes)),
        Err(error) => Err(Reply::text(error.status(), &error.to_string())),
    }
}

/// Decodes a call, and returns its decoded size, which may be many times that of its bytes. A much larger call needs
/// more room, if there is some.
fn decode(
    context: &Context,
    content_type: MediaType,
    bytes: Bytes,
    permit: &mut Permit,
) -> Result<(Call, usize), Reply> {
    let budget = Budget::new(context.budgets.call_bytes_max().saturating_mul(3));
    // With this charge no body exceeds the budget.
    let whole = budget.charge(bytes.len().max(1));
    let decoded = media::decode_charged(content_type, &bytes, &budget);
    let (call, charge) = decoded.map_err(|error| undecodable(&error))?;
    drop(whole);
    let decoded = charge.bytes();
    let expected = bytes.len() + bytes.len() / 4 + DECODED_BYTES_USUAL;
    permit
        .grow(decoded.saturating_sub(expected))
        .map_err(|error| undecodable(&error.into()))?;
    Ok((call, decoded))
}

fn too_many_waiters(error: TooManyWaiters) -> Reply {
    Reply::text(StatusCode::SERVICE_UNAVAILABLE, &error.to_string())
}

/// The executor that a call names.
async fn find(context: &Context, call: &Call) -> Result<(FrameworkId, Arc<Executor>), Reply> {
    let snapshot = context.snapshot().await?;
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

fn validate(call: &Call) -> Result<(), Invalid> {
    let expecting = |what: &str| Err(format!("Expecting '{what}' to be present").into());
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

fn validate_status(call: &Call, status: &pb::TaskStatus) -> Result<(), Invalid> {
    let executor = truncated_id(&call.executor_id.value);
    let framework = truncated_id(&call.framework_id.value);
    let Some(uuid) = &status.uuid else {
        return Err("Expecting 'uuid' to be present".into());
    };
    if uuid.len() != 16 {
        return Err("Not a valid UUID".into());
    }
    let told = status.executor_id.as_ref();
    if let Some(told) = told.filter(|told| told.value != call.executor_id.value) {
        let told = truncated_id(&told.value);
        return Err(format!(
            "ExecutorID in Call: {executor} does not match ExecutorID in TaskStatus: {told}"
        )
        .into());
    }
    if status.source.is_none() || status.source() != Source::Executor {
        return Err(format!(
            "Received Call from executor {executor} of framework {framework} with invalid source, \
             expecting 'SOURCE_EXECUTOR'"
        )
        .into());
    }
    if status.state() == pb::TaskState::TaskStaging {
        return Err(format!(
            "Received TASK_STAGING from executor {executor} of framework {framework} which is not \
             allowed"
        )
        .into());
    }
    Ok(())
}

/// The beginning of an id for an error message, since an invalid id may be long.
fn truncated_id(id: &str) -> &str {
    let end = id.char_indices().nth(ID_CHARACTERS_MAX);
    end.and_then(|(end, _)| id.get(..end)).unwrap_or(id)
}

/// Takes the permits of a subscriber's unacknowledged updates, without waiting: an executor repeats unacknowledged
/// updates at its next subscription.
fn permits_for(
    unacknowledged: &ByteSemaphore,
    group: &str,
    sender: &str,
    subscribe: &call::Subscribe,
) -> Vec<Option<Permit>> {
    let updates = subscribe.unacknowledged_updates.iter();
    let take = |bytes| unacknowledged.try_take(group, sender, bytes);
    updates
        .map(|update| take(schema::bytes_of(&update.status)))
        .collect()
}

async fn open_stream(
    context: &Arc<Context>,
    framework: FrameworkId,
    executor: ExecutorId,
    (subscribe, permits): (call::Subscribe, Vec<Option<Permit>>),
    (media, permit): (MediaType, Permit),
) -> Reply {
    let (connection, events) = context.streams.open();
    let input = Input::ExecutorSubscribed {
        connection,
        framework,
        executor,
        subscribe: Box::new(subscribe),
        permit,
        permits,
    };
    context.core.tell(input).await;
    let (sender, records) = mpsc::channel(RECORDS_MAX);
    let shared = context.clone();
    tokio::spawn(async move {
        forward(events, &sender, media, HEARTBEAT).await;
        drop(sender);
        close_stream(&shared, connection).await;
    });
    let body = stream_body(records, context.shutdown.clone());
    Reply::stream(media.as_str(), None, body)
}

async fn close_stream(context: &Context, connection: ConnectionId) {
    context.streams.close(connection);
    context.core.tell(Input::ExecutorGone { connection }).await;
}

/// Encodes events until the stream ends or nobody reads it, and sends heartbeats in longer pauses. The unsent events of
/// an ended stream are dropped at once, however long its connection stays open.
async fn forward(
    mut events: Events,
    records: &mpsc::Sender<Bytes>,
    media: MediaType,
    silence: Duration,
) {
    loop {
        let record = tokio::select! {
            biased;
            () = records.closed() => return,
            () = events.ended.cancelled() => return,
            queued = events.queue.recv() => {
                let Some(queued) = queued else { return };
                // The event counts as waiting until there is room for its record.
                let slot = events.ended.run_until_cancelled(records.reserve()).await;
                let Some(Ok(slot)) = slot else { return };
                slot.send(media::encode_record(media, queued.event()));
                continue;
            }
            () = tokio::time::sleep(silence) => media::encode_record(media, &Event {
                r#type: Some(event::Type::Heartbeat.into()),
                ..Event::default()
            }),
        };
        if records.send(record).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::Poll;

    use super::*;
    use crate::byte_semaphore::UNACKNOWLEDGED_BYTES;
    use crate::service::executor_streams::ExecutorStreams;

    #[tokio::test]
    async fn ended_stream_stops_forwarding() {
        let streams = ExecutorStreams::new(48 << 20);
        let (connection, events) = streams.open();
        let (sender, mut records) = mpsc::channel(1);
        for _ in 0..8 {
            let event = event::Error {
                message: "early".to_owned(),
            };
            streams.send(
                connection,
                Event {
                    error: Some(event),
                    ..Event::default()
                },
            );
        }
        let mut forwarding = Box::pin(forward(events, &sender, MediaType::Json, HEARTBEAT));
        let waits = is_waiting(forwarding.as_mut()).await;
        assert!(waits, "there is no room for the second record");
        let large = event::Error {
            message: "x".repeat(17 << 20),
        };
        streams.send(
            connection,
            Event {
                error: Some(large),
                ..Event::default()
            },
        );
        assert_eq!(streams.ended(), 1);
        forwarding.as_mut().await;
        drop(forwarding);
        assert!(records.recv().await.is_some());
        drop(sender);
        assert!(records.recv().await.is_none(), "nothing else was said");
    }

    #[test]
    fn resent_updates_take_room() {
        let semaphore = ByteSemaphore::new(UNACKNOWLEDGED_BYTES);
        let update = call::Update {
            status: pb::TaskStatus {
                data: Some(vec![0; 3 << 20]),
                ..pb::TaskStatus::default()
            },
        };
        let subscribe = |count| call::Subscribe {
            unacknowledged_updates: vec![update.clone(); count],
            ..call::Subscribe::default()
        };
        let taken = permits_for(&semaphore, "f", "a", &subscribe(4));
        let found: Vec<_> = taken.iter().map(Option::is_some).collect();
        assert_eq!(found, [true, true, false, false], "a sender's part");
        assert!(permits_for(&semaphore, "f", "a", &subscribe(1))[0].is_none());
        assert!(permits_for(&semaphore, "g", "b", &subscribe(1))[0].is_some());
        drop(taken);
        assert!(permits_for(&semaphore, "f", "a", &subscribe(1))[0].is_some());
    }

    #[test]
    fn error_truncates_quoted_ids() {
        let executor = |letter: &str| pb::ExecutorId {
            value: letter.repeat(7_900),
        };
        let call = Call {
            executor_id: executor("ä"),
            ..Call::default()
        };
        let status = pb::TaskStatus {
            uuid: Some(vec![0; 16]),
            executor_id: Some(executor("b")),
            ..pb::TaskStatus::default()
        };
        let error = validate_status(&call, &status)
            .expect_err("another executor's")
            .to_string();
        assert!(
            error.chars().count() < 3 * ID_CHARACTERS_MAX,
            "{}",
            error.len()
        );
        assert_eq!(truncated_id("short"), "short");
    }

    async fn is_waiting(mut forwarding: Pin<&mut impl Future<Output = ()>>) -> bool {
        std::future::poll_fn(|context| Poll::Ready(forwarding.as_mut().poll(context).is_pending()))
            .await
    }

    #[tokio::test]
    async fn silence_is_broken_by_heartbeats() {
        let streams = ExecutorStreams::new(48 << 20);
        let (_, events) = streams.open();
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
