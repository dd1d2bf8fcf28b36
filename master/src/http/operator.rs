//! `/api/v1`: the operator API in JSON and protobuf.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{StatusCode, header};
use meseta_daemon::authentication::Caller;
use meseta_daemon::background;
use meseta_daemon::body;
use meseta_daemon::compression::Compressible;
use meseta_daemon::fair_semaphore::Permit;
use meseta_daemon::query;
use meseta_daemon::server::stream_body;
use meseta_proto::budget::Budget;
use meseta_proto::media::{self, MediaType};
use meseta_proto::mesos::v1::master::{Call, Response as Message};
use meseta_proto::recordio;
use tokio::sync::mpsc;

use super::responses::{answered, text, undecodable};
use super::routes::{Handled, Permitted};
use crate::buffered_response::{BufferedResponses, InitialMessage};
use crate::context::{Context, peer_of};
use crate::core::{HEARTBEAT_INTERVAL, Snapshot};
use crate::events::STALL_MAX;
use crate::handle::{Handle, Query, WatchStart};
use crate::operator::{self, CallOutcome, Checked, lists};
use crate::operator_messages::stream;
use crate::view_filter::EventFilter;

/// The number of encoded records that are not yet sent.
const RECORDS_MAX: usize = 16;

pub(super) async fn handle(permitted: Permitted) -> Handled {
    let body_bytes_max = permitted.route.body_bytes_max;
    let (context, caller) = (&permitted.context, &permitted.caller);
    let (parts, request_body) = permitted.request.into_parts();
    let media = media::content_type(&parts.headers, &MediaType::MESSAGES);
    let media = media.map_err(|error| text(error.status(), error.to_string()))?;
    let budget = context.request_of(caller);
    let read = body::read_charged(&parts.headers, request_body, body_bytes_max, &budget);
    let (bytes, body_charge) = read.await.map_err(body::BodyError::response)?;
    let decoded = media::decode_charged::<Call>(media, &bytes, &budget);
    let (call, _charge) = decoded.map_err(undecodable)?;
    drop((bytes, body_charge));
    let checked = operator::check(call);
    let (kind, call) = checked.map_err(|invalid| text(StatusCode::BAD_REQUEST, invalid))?;
    let accept = media::accept(&parts.headers);
    let accept = accept.map_err(|error| text(error.status(), error.to_string()))?;
    if matches!(call, Checked::Subscribe) {
        let has_state = query::Query::from_uri(&parts.uri).get("state") != Some("false");
        return subscribe(context, caller, accept, has_state).await;
    }
    let (response, permit) = match operator::execute(context, caller, kind, call).await? {
        CallOutcome::Done(answer) => return Ok(answered(answer)),
        CallOutcome::Response(response, permit) => (response, permit),
    };
    // The permit moves with the work, which continues when the client leaves.
    let encoded = background::spawn(move || (encode(accept, &response), permit)).await;
    let (body, permit) =
        encoded.map_err(|error| text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let kind = [(header::CONTENT_TYPE, accept.header_value())];
    let mut response = match permit {
        Some(permit) => (kind, permit.body(body.into())).into_response(),
        None => (kind, body).into_response(),
    };
    response.extensions_mut().insert(Compressible);
    Ok(response)
}

fn encode(accept: MediaType, response: &Message) -> Vec<u8> {
    if accept == MediaType::Json {
        return lists::response_json(response);
    }
    media::encode(accept, response)
}

/// Streams events, beginning with the whole state unless the reader declines it.
async fn subscribe(
    context: &Arc<Context>,
    caller: &Caller,
    media: MediaType,
    has_state: bool,
) -> Handled {
    let peer = peer_of(caller);
    let watching = context.handle.query(|answer| Query::Watch {
        peer,
        after: None,
        answer,
    });
    let watching = watching.await?;
    let (sender, records) = mpsc::channel(RECORDS_MAX);
    let buffered_responses = context.buffered_responses.clone();
    let (handle, caller) = (context.handle.clone(), caller.clone());
    let encode = move |snapshot: &Snapshot| {
        let event = stream::subscribed(snapshot, has_state);
        let record = match media {
            MediaType::Json => recordio::encode(&lists::subscribed(&event)),
            _ => media::encode_record(media, &event),
        };
        let bytes = record.len();
        (record, bytes)
    };
    tokio::spawn(async move {
        let left = sender.clone();
        tokio::select! {
            biased;
            () = left.closed() => {}
            () = forward(handle, watching, caller, sender, media, buffered_responses, encode) => {}
        }
    });
    let mut response = Response::new(stream_body(records, context.shutdown.clone()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, media.header_value());
    Ok(response)
}

/// Encodes events until either end closes, or the reader stalls.
async fn forward(
    handle: Handle,
    mut watching: WatchStart,
    caller: Caller,
    records: mpsc::Sender<Bytes>,
    media: MediaType,
    buffered_responses: BufferedResponses,
    encode: impl FnOnce(&Snapshot) -> (Bytes, usize) + Send + 'static,
) {
    let mut filter = EventFilter::new(caller.approver.clone());
    let Some(snapshot) = watching.snapshot.take() else {
        return;
    };
    let begun = buffered_responses.initial_message(&handle, snapshot, &caller, &mut filter, encode);
    let Some(InitialMessage { message, hold }) = begun.await else {
        return;
    };
    let heartbeat = media::encode_record(media, &stream::heartbeat());
    let stream = handle.budgets.stream();
    let unsent = hold.revoked().clone();
    let subscribed = Bytes::from_owner(ChargedRecord {
        bytes: message,
        _hold: hold,
    });
    let begun = tokio::time::timeout(STALL_MAX, records.send(subscribed)).await;
    if !matches!(begun, Ok(Ok(()))) || !send(&records, &stream, heartbeat.clone()).await {
        return;
    }
    let mut beats = tokio::time::interval(HEARTBEAT_INTERVAL);
    beats.reset();
    loop {
        let record = tokio::select! {
            biased;
            () = records.closed() => return,
            () = unsent.cancelled() => {
                if let Some(connection) = &caller.connection {
                    connection.close();
                }
                return;
            }
            event = watching.events.recv() => match event {
                Some((_, stream_event)) => match filter.apply(&stream_event) {
                    Some(event) => media::encode_record(media, &*event),
                    None => continue,
                },
                None => return,
            },
            _ = beats.tick() => heartbeat.clone(),
        };
        if !send(&records, &stream, record).await {
            return;
        }
    }
}

/// A record with its memory charge, until it is sent.
struct ChargedRecord {
    bytes: Bytes,
    _hold: Permit,
}

impl AsRef<[u8]> for ChargedRecord {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Sends a record, charged until the transport has sent it. Returns false if the reader has left or stalls, or if
/// others leave no room for so long.
async fn send(records: &mpsc::Sender<Bytes>, budget: &Budget, record: Bytes) -> bool {
    let sending = async {
        let charge = budget.charge_when_free(record.len()).await;
        records.send(charge.attach(record)).await
    };
    let sent = tokio::time::timeout(STALL_MAX, sending).await;
    matches!(sent, Ok(Ok(())))
}
