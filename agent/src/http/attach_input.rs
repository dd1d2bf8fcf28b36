//! ATTACH_CONTAINER_INPUT: a stream of records for the standard input of one nested container.
//!
//! Entered through [`attach_input`]. Data is written in the order of its records. Controls (the size of the terminal, signs of life)
//! and the loss of the connection take effect at once, also while the container does not read. Invariant: behind the record that is
//! being written, about [`WAITING_BYTES_MAX`] of data wait at most; until there is room again, the stream is not read.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use meseta_daemon::authentication::Caller;
use meseta_daemon::body::{BodyError, Encoding, MinRate};
use meseta_proto::budget::{Budget, Charge, Exhausted};
use meseta_proto::media::{self, MESSAGE_CONTENT_TYPE, MediaType};
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::agent as api;
use meseta_proto::mesos::v1::agent::call::Type;
use meseta_proto::recordio::Decoder;
use tokio::time::Instant;

use super::containers::{bad, checked, looked_up, refuse, window_size};
use super::{Reply, undecodable};
use crate::context::Context;
use crate::nested::{Attached, NestedError};

/// Largest record of an input stream, if calls may be as large.
const RECORD_BYTES_MAX: usize = 1 << 20;
/// Data that waits behind a write while the stream is still read: far more than a person types, and as much as a pipe takes.
const WAITING_BYTES_MAX: usize = 64 << 10;
/// Bytes that a record counts for besides its data, so that small records are few, too.
const RECORD_COST_BYTES: usize = 64;
/// While a write waits, the stream is read only if it uses less than this part of the memory that its caller may use: a stream whose
/// memory is used up is refused, and one that is not read yet waits.
const LOOKAHEAD_SHARE: usize = 4;

pub(super) async fn attach_input(
    context: &Arc<Context>,
    caller: &Caller,
    request: Request<Body>,
) -> Result<Reply, Reply> {
    let media = media_of(request.headers())?;
    let mut body = request.into_body();
    let mut records = Records::new(context, caller, media);
    let mut attached: Option<(pb::ContainerId, Arc<Attached>)> = None;
    let mut pending = PendingInput::default();
    let mut is_open = true;
    loop {
        while pending.has_room(&records.budget) {
            let Some((call, charge)) = records.next()? else {
                break;
            };
            let input = call.attach_container_input;
            let input =
                input.ok_or_else(|| bad("Expecting 'attach_container_input' to be present"))?;
            match (&attached, input.container_id, input.process_io) {
                (None, Some(id), _) => {
                    checked(&id)?;
                    let kind = Type::AttachContainerInput;
                    let found = looked_up(context, caller, kind, &id).await?;
                    let one = found.attach_input().await;
                    let one = one.map_err(|error| refuse(&id, &error))?;
                    attached = Some((id, Arc::new(one)));
                }
                (None, None, _) => return Err(bad("Expecting 'container_id' to be present")),
                (Some((_, attached)), _, Some(io)) => {
                    take(attached, io, charge, &mut pending)?;
                    pending.begin(attached);
                }
                (Some(_), _, None) => return Err(bad("Expecting 'process_io' to be present")),
            }
        }
        let is_read = is_open && pending.has_room(&records.budget);
        if is_read {
            records.await_more(attached.is_some());
        } else if !is_open && pending.is_empty() {
            break;
        } else {
            records.rest();
        }
        tokio::select! {
            biased;
            written = pending.written() => {
                if let Some((id, attached)) = &attached {
                    written.map_err(|error| refuse(id, &error))?;
                    pending.begin(attached);
                }
            }
            () = ended(attached.as_ref()) => break,
            frame = body.frame(), if is_read => match frame {
                None => is_open = false,
                // The client is lost, and with it the data that waits.
                Some(Err(_)) => return Err(bad("Failed to read the body")),
                Some(Ok(frame)) => if let Some(bytes) = frame.data_ref() {
                    records.push(bytes)?;
                },
            },
            () = too_slow(records.min_rate), if is_read => return Err(slow()),
        }
    }
    Ok(Reply::empty(StatusCode::OK))
}

fn media_of(headers: &HeaderMap) -> Result<MediaType, Reply> {
    let media = headers
        .get(MESSAGE_CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(MediaType::parse)
        .filter(|media| MediaType::MESSAGES.contains(media))
        .ok_or_else(|| bad("Expecting 'Message-Content-Type' to be set for streaming requests"))?;
    if Encoding::from_headers(headers) != Ok(Encoding::Identity) {
        let text = "Expecting no 'Content-Encoding': a stream of records is taken as it is";
        return Err(Reply::text(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    Ok(media)
}

/// The records of a body, and the time that a client has for each.
struct Records {
    media: MediaType,
    decoder: Decoder,
    budget: Budget,
    /// The charge of bytes that are in no whole record yet.
    charge: Option<Charge>,
    /// The minimum rate. A client that attaches input may pause, but not before the first record, nor in the middle of one.
    min_rate: Option<MinRate>,
    /// Whether a record came since the client was waited for.
    has_taken: bool,
}

impl Records {
    fn new(context: &Context, caller: &Caller, media: MediaType) -> Self {
        let record_bytes_max = RECORD_BYTES_MAX.min(context.budgets.call_bytes_max());
        Self {
            media,
            decoder: Decoder::new(record_bytes_max),
            budget: context.body_of(caller),
            charge: None,
            min_rate: Some(MinRate::new(Instant::now())),
            has_taken: false,
        }
    }

    fn push(&mut self, bytes: &Bytes) -> Result<(), Reply> {
        let more = bytes.len();
        match &mut self.charge {
            Some(charge) => charge.grow(more).map_err(no_memory)?,
            None => self.charge = Some(self.budget.charge(more).map_err(no_memory)?),
        }
        self.decoder.push(bytes);
        let now = Instant::now();
        let min_rate = self.min_rate.get_or_insert_with(|| MinRate::new(now));
        min_rate.add(more);
        min_rate.rest(now);
        Ok(())
    }

    /// Returns the next whole record, and the charge of what it holds.
    fn next(&mut self) -> Result<Option<(api::Call, Charge)>, Reply> {
        let record = self.decoder.next_record();
        let Some(record) = record.map_err(|error| bad(&error.to_string()))? else {
            return Ok(None);
        };
        self.has_taken = true;
        let decoded = media::decode_charged::<api::Call>(self.media, &record, &self.budget);
        let decoded = decoded.map_err(|error| undecodable(&error))?;
        // Frames end at arbitrary positions, mostly within a record.
        if let Some(charge) = &mut self.charge {
            charge.shrink_to(self.decoder.buffered_bytes());
        }
        Ok(Some(decoded))
    }

    /// Counts the time of the client from now on, once there is no whole record any more.
    fn await_more(&mut self, is_attached: bool) {
        let has_taken = std::mem::take(&mut self.has_taken);
        if is_attached && self.decoder.finish().is_ok() {
            self.min_rate = None;
        } else if has_taken {
            self.min_rate = Some(MinRate::new(Instant::now()));
        }
        if let Some(min_rate) = &mut self.min_rate {
            min_rate.resume(Instant::now());
        }
    }

    /// Stops counting: the client may not send, as what it sent before waits to be written.
    fn rest(&mut self) {
        if let Some(min_rate) = &mut self.min_rate {
            min_rate.rest(Instant::now());
        }
    }
}

/// Data that was received and that the container has not read yet.
#[derive(Default)]
struct PendingInput {
    waiting: VecDeque<(Vec<u8>, Charge)>,
    waiting_bytes: usize,
    /// The write of the oldest data, until it ends.
    under_way: Option<Write>,
}

type Write = Pin<Box<dyn Future<Output = Result<(), NestedError>> + Send>>;

impl PendingInput {
    /// Returns whether another record may be taken from a stream with this budget.
    fn has_room(&self, budget: &Budget) -> bool {
        let is_cheap = budget.used() < budget.limit() / LOOKAHEAD_SHARE;
        self.is_empty() || self.waiting_bytes < WAITING_BYTES_MAX && is_cheap
    }

    fn is_empty(&self) -> bool {
        self.under_way.is_none() && self.waiting.is_empty()
    }

    fn push(&mut self, data: Vec<u8>, charge: Charge) {
        self.waiting_bytes += cost_bytes(&data);
        self.waiting.push_back((data, charge));
    }

    /// Begins to write the oldest data, unless a write is under way.
    fn begin(&mut self, attached: &Arc<Attached>) {
        if self.under_way.is_some() {
            return;
        }
        let Some((data, charge)) = self.waiting.pop_front() else {
            return;
        };
        self.waiting_bytes -= cost_bytes(&data);
        let attached = attached.clone();
        self.under_way = Some(Box::pin(async move {
            let _charge = charge;
            attached.write(&data).await
        }));
    }

    /// Completes when the write that is under way ends; never if there is none. A caller that stops waiting continues with the next
    /// call.
    async fn written(&mut self) -> Result<(), NestedError> {
        let Some(write) = &mut self.under_way else {
            return std::future::pending().await;
        };
        let written = write.await;
        self.under_way = None;
        written
    }
}

fn cost_bytes(data: &[u8]) -> usize {
    data.len() + RECORD_COST_BYTES
}

/// Waits for the end of the container; for ever before it is known.
async fn ended(attached: Option<&(pb::ContainerId, Arc<Attached>)>) {
    match attached {
        Some((_, attached)) => attached.ended().await,
        None => std::future::pending().await,
    }
}

/// Waits until the client is too slow; for ever if no bytes are expected.
async fn too_slow(min_rate: Option<MinRate>) {
    match min_rate {
        Some(min_rate) => tokio::time::sleep_until(min_rate.deadline()).await,
        None => std::future::pending().await,
    }
}

fn no_memory(exhausted: Exhausted) -> Reply {
    let error = BodyError::from(exhausted);
    Reply::text(error.status(), &error.to_string())
}

fn slow() -> Reply {
    let error = BodyError::Slow;
    Reply::text(error.status(), &error.to_string())
}

/// Carries out a control at once, and has data wait for its turn.
fn take(
    attached: &Attached,
    io: api::ProcessIo,
    charge: Charge,
    pending: &mut PendingInput,
) -> Result<(), Reply> {
    if let Some(data) = io.data {
        pending.push(data.data.unwrap_or_default(), charge);
        return Ok(());
    }
    // Heartbeats need no answer.
    let info = io.control.and_then(|control| control.tty_info);
    let Some(info) = info else {
        return Ok(());
    };
    let size = info.window_size;
    let size = size.ok_or_else(|| bad("Expecting 'tty_info.window_size' to be present"))?;
    let resized = attached.resize(window_size(size));
    resized.map_err(|error| bad(&format!("Unable to set the window size: {error}")))
}
