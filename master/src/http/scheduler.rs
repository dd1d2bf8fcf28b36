//! `/api/v1/scheduler`: receives calls and sends events.
//!
//! The checks have the order and wording of Mesos. The core decides everything about the framework itself.

use std::sync::Arc;

use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use meseta_daemon::authentication::Caller;
use meseta_daemon::background;
use meseta_daemon::body;
use meseta_daemon::server::stream_body;
use meseta_proto::Invalid;
use meseta_proto::budget::{Budget, Charge};
use meseta_proto::epoch::CLUSTER_ID;
use meseta_proto::media::{self, ChargedError, MESOS_STREAM_ID, MediaType};
use meseta_proto::mesos::v1::scheduler::Call;
use tokio::sync::mpsc;

use super::authentication;
use super::responses::{answered, text, undecodable};
use super::routes::{Handled, Permitted};
use crate::context::Context;
use crate::core::call::{Action, Checked, Subscribe, check};
use crate::core::{
    ConnectionId, Input, READ_AT_ONCE, Request, SubscribeRequest, authorization, is_answer,
};
use crate::events::{self, EventSource, STALL_MAX};
use crate::handle::{Command, Handle};

/// The number of encoded records that are not yet sent; events wait unencoded in the subscriber's queue.
const RECORDS_MAX: usize = 16;

/// The limit of encoded, unsent records in bytes, unless a single record is larger.
const RECORDS_BYTES_MAX: usize = 1024 * 1024;

/// The size above which reading a body would delay others noticeably.
const LARGE_BODY: usize = 256 * 1024;

pub(super) async fn handle(permitted: Permitted) -> Handled {
    let body_bytes_max = permitted.route.body_bytes_max;
    let (context, caller) = (&permitted.context, &permitted.caller);
    let (parts, request_body) = permitted.request.into_parts();
    let headers = parts.headers;
    let media = media::content_type(&headers, &MediaType::MESSAGES);
    let media = media.map_err(|error| text(error.status(), error.to_string()))?;
    let budget = context.request_of(caller);
    let read = body::read_charged(&headers, request_body, body_bytes_max, &budget).await;
    let (bytes, body_charge) = read.map_err(body::BodyError::response)?;
    let decoded = decode(media, bytes, budget).await;
    let (call, charge) = decoded.map_err(undecodable)?;
    drop(body_charge);
    let named = checked(call)
        .await
        .and_then(|checked| name_it(checked, caller));
    let checked = named.map_err(|error| {
        let message = format!("Failed to validate scheduler::Call: {error}");
        text(StatusCode::BAD_REQUEST, message)
    })?;
    match checked {
        Checked::Subscribe(call) => subscribe(context, caller, &headers, call, charge).await,
        Checked::Other {
            framework_id,
            action,
        } => {
            if let Err(wait) = context
                .call_rate_limit
                .take(&context.handle, &framework_id, caller)
                .await
            {
                return Err(authentication::too_many_requests(wait));
            }
            let stream_id = stream_id(&headers);
            let call = Request::Call {
                framework_id,
                stream_id,
                action,
                caller: caller.clone(),
            };
            let answer = context.handle.ask(call, Some(charge)).await?;
            Ok(answered(answer))
        }
    }
}

/// Checks a call; in the background if it has offer constraints.
async fn checked(call: Call) -> Result<Checked, Invalid> {
    let may_be_slow = call.subscribe.is_some() || call.update_framework.is_some();
    let check = || check(call).map_err(Invalid::from_error);
    if !may_be_slow {
        return check();
    }
    let checking = background::spawn(check).await;
    checking.map_err(Invalid::from_error)?
}

/// Sets the framework's principal to the caller's proven one.
fn name_it(mut checked: Checked, caller: &Caller) -> Result<Checked, Invalid> {
    let info = match &mut checked {
        Checked::Subscribe(call) => Some(&mut call.info),
        Checked::Other { action, .. } => match &mut **action {
            Action::UpdateFramework(call) => Some(&mut call.info),
            _ => None,
        },
    };
    info.map_or(Ok(()), |info| authorization::take_name(info, caller))?;
    Ok(checked)
}

/// Decodes a call; in the background if it is large.
async fn decode(
    media: MediaType,
    bytes: Bytes,
    budget: Budget,
) -> Result<(Call, Charge), ChargedError> {
    let is_large = bytes.len() > LARGE_BODY;
    let read = move || media::decode_charged::<Call>(media, &bytes, &budget);
    if !is_large {
        return read();
    }
    let reading = tokio::task::spawn_blocking(read).await;
    reading.map_err(|_| ChargedError::Interrupted)?
}

fn stream_id(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(MESOS_STREAM_ID)?;
    Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
}

async fn subscribe(
    context: &Arc<Context>,
    caller: &Caller,
    headers: &HeaderMap,
    call: Box<Subscribe>,
    charge: Charge,
) -> Handled {
    let media = media::accept(headers);
    let media = media.map_err(|error| text(error.status(), error.to_string()))?;
    if headers.contains_key(MESOS_STREAM_ID) {
        return Err(text(
            StatusCode::BAD_REQUEST,
            "Subscribe calls should not include the 'Mesos-Stream-Id' header",
        ));
    }
    let stream_id = uuid::Uuid::new_v4().to_string();
    let Ok(stream_header) = HeaderValue::from_str(&stream_id) else {
        return Err(text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "Failed to make a stream id",
        ));
    };
    if let Err(wait) = context.subscription_rate.take(caller.group()) {
        return Err(authentication::subscribed_too_often(wait));
    }
    let cluster = context.handle.cluster().await?;
    let connection = context.handle.new_connection();
    let (sink, source) = events::queue(context.handle.budgets.subscriber(), events::EVENTS_MAX);
    let source = source.fenced(&context.handle.standing.fence);
    let sink = sink.on(caller.connection.clone());
    let request = SubscribeRequest {
        connection,
        stream_id,
        call,
        caller: caller.clone(),
    };
    let subscribe = Command::Subscribe(request, sink, charge);
    context.handle.send(subscribe).await?;
    let (sender, records) = mpsc::channel(RECORDS_MAX);
    let handle = context.handle.clone();
    tokio::spawn(async move {
        forward(&handle, connection, source, &sender, media).await;
        drop(sender);
        leave(&handle, connection).await;
    });
    let mut response = Response::new(stream_body(records, context.shutdown.clone()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, media.header_value());
    headers.insert(MESOS_STREAM_ID, stream_header);
    // A scheduler with stored jobs distinguishes clusters by this header.
    if let Some(Ok(cluster)) = cluster.as_deref().map(HeaderValue::from_str) {
        headers.insert(CLUSTER_ID, cluster);
    }
    Ok(response)
}

/// Reports the end of a stream to the core. At shutdown the core may already be gone.
pub(crate) async fn leave(handle: &Handle, connection: ConnectionId) {
    if handle
        .tell(Input::SchedulerGone { connection })
        .await
        .is_err()
    {
        tracing::debug!(%connection, "stream ended after the core");
    }
}

/// Encodes events until either end closes, or the reader stalls.
async fn forward(
    handle: &Handle,
    connection: ConnectionId,
    source: EventSource,
    records: &mpsc::Sender<Bytes>,
    media: MediaType,
) {
    let mut answers = 0;
    let on_their_way = Budget::new(RECORDS_BYTES_MAX);
    loop {
        let event = tokio::select! {
            biased;
            () = records.closed() => return,
            event = source.next() => event,
        };
        let Some((charge, event)) = event else {
            return;
        };
        let record = charge.attach(media::encode_record(media, &*event));
        answers += usize::from(is_answer(&event));
        drop(event);
        let sending = async {
            let charge = on_their_way.charge_when_free(record.len()).await;
            records.send(charge.attach(record)).await
        };
        match tokio::time::timeout(STALL_MAX, sending).await {
            Ok(Ok(())) if answers >= READ_AT_ONCE => {
                let read = Input::AnswersRead {
                    connection,
                    answers: std::mem::take(&mut answers),
                };
                if handle.tell(read).await.is_err() {
                    return;
                }
            }
            Ok(Ok(())) => {}
            Ok(Err(_)) => return,
            Err(_) => {
                tracing::warn!("slow consumer: it read nothing in time; ending its stream");
                // The queue is full; the reader decides whether this still fits.
                let _dropped = records.try_send(media::encode_record(media, &events::stalled()));
                return;
            }
        }
    }
}
