//! `meseta.v1.Scheduler`: the same calls and events as over HTTP, into the same core.

use std::pin::Pin;
use std::sync::Arc;

use meseta_daemon::background;
use meseta_proto::meseta::v1::CallAccepted;
use meseta_proto::meseta::v1::scheduler_server::Scheduler;
use meseta_proto::mesos::v1::scheduler::call::Subscribe as SubscribeMessage;
use meseta_proto::mesos::v1::scheduler::{Call, Event};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status};

use crate::context::Context;
use crate::core::call::{CallError, Checked, Subscribe, check};
use crate::core::{
    self, Constraints, Input, READ_AT_ONCE, SubscribeRequest, authorization, is_answer,
};
use crate::events::{self, STALL_MAX, Waiting};
use crate::handle::Command;
use crate::http::leave;

/// The stream's id in the metadata, like `Mesos-Stream-Id` over HTTP.
const STREAM_ID: &str = "mesos-stream-id";

/// The number of events taken from the queue and not yet sent.
const EVENTS_MAX: usize = 16;

#[derive(Debug)]
pub(super) struct Schedulers {
    context: Arc<Context>,
}

impl Schedulers {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self { context }
    }
}

#[tonic::async_trait]
impl Scheduler for Schedulers {
    type SubscribeStream = Pin<Box<dyn Stream<Item = Result<Event, Status>> + Send>>;

    async fn subscribe(
        &self,
        request: Request<SubscribeMessage>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let caller = super::caller(&request)?;
        let mut message = request.into_inner();
        let charge = super::charge(&self.context, &caller, &message)?;
        if message.framework_info.name.is_empty() && message.framework_info.user.is_empty() {
            return Err(Status::invalid_argument(
                "Missing required fields: framework_info.user, framework_info.name",
            ));
        }
        authorization::take_name(&mut message.framework_info, &caller)
            .map_err(Status::invalid_argument)?;
        let constraints = message.offer_constraints.take();
        let constraints = match constraints {
            None => None,
            Some(given) => background::spawn(|| Arc::new(Constraints::from_message(given)))
                .await
                .map(Some)
                .map_err(|error| Status::internal(error.to_string()))?,
        };
        let call = Box::new(Subscribe {
            info: message.framework_info,
            suppressed_roles: message.suppressed_roles,
            offer_constraints: constraints,
        });
        let rate = &self.context.subscription_rate;
        rate.take(caller.group()).map_err(|wait| {
            Status::unavailable(format!(
                "too many subscriptions of this principal: try again in {wait:?}"
            ))
        })?;
        let stream_id = uuid::Uuid::new_v4().to_string();
        let metadata = MetadataValue::try_from(&stream_id)
            .map_err(|error| Status::internal(error.to_string()))?;
        let handle = self.context.handle.clone();
        let connection = handle.new_connection();
        let (sink, source) = events::queue(handle.budgets.subscriber(), events::EVENTS_MAX);
        let source = source.fenced(&handle.standing.fence);
        let sink = sink.on(caller.connection.clone());
        let request = SubscribeRequest {
            connection,
            stream_id,
            call,
            caller,
        };
        handle
            .send(Command::Subscribe(request, sink, charge))
            .await?;
        // Boxed, because the queue allocates room for all its items at once.
        let (sender, events) = mpsc::channel::<Result<Waiting<Event>, Status>>(EVENTS_MAX);
        let shutdown = self.context.shutdown.clone();
        tokio::spawn(async move {
            let mut answers = 0;
            loop {
                let event = tokio::select! {
                    biased;
                    () = shutdown.cancelled() => break,
                    () = sender.closed() => break,
                    event = source.next() => event,
                };
                let Some(event) = event else { break };
                answers += usize::from(is_answer(&event.1));
                match tokio::time::timeout(STALL_MAX, sender.send(Ok(event))).await {
                    Ok(Ok(())) if answers >= READ_AT_ONCE => {
                        let read = Input::AnswersRead {
                            connection,
                            answers: std::mem::take(&mut answers),
                        };
                        if handle.tell(read).await.is_err() {
                            break;
                        }
                    }
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => break,
                    Err(_) => {
                        let status = Status::resource_exhausted("slow consumer");
                        // The queue is full; the reader decides whether this still fits.
                        let _dropped = sender.try_send(Err(status));
                        break;
                    }
                }
            }
            drop(sender);
            leave(&handle, connection).await;
        });
        let events = ReceiverStream::new(events).map(|event| event.map(|(_charge, event)| *event));
        let mut response = Response::new(Box::pin(events) as Self::SubscribeStream);
        response.metadata_mut().insert(STREAM_ID, metadata);
        Ok(response)
    }

    async fn call(&self, request: Request<Call>) -> Result<Response<CallAccepted>, Status> {
        let caller = super::caller(&request)?;
        let stream_id = request
            .metadata()
            .get(STREAM_ID)
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let call = request.into_inner();
        let charge = super::charge(&self.context, &caller, &call)?;
        let checked = checked(call)
            .await?
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let Checked::Other {
            framework_id,
            action,
        } = checked
        else {
            return Err(Status::invalid_argument(
                "SUBSCRIBE is a separate method: use Subscribe",
            ));
        };
        let context = &self.context;
        if let Err(wait) = context
            .call_rate_limit
            .take(&context.handle, &framework_id, &caller)
            .await
        {
            let text = format!("too many calls; the next one may come in {wait:?}");
            return Err(Status::resource_exhausted(text));
        }
        let call = core::Request::Call {
            framework_id,
            stream_id,
            action,
            caller,
        };
        let answer = context.handle.ask(call, Some(charge)).await?;
        super::status_of(answer).map(|()| Response::new(CallAccepted {}))
    }
}

/// Checks a call; in the background if it has offer constraints.
async fn checked(call: Call) -> Result<Result<Checked, CallError>, Status> {
    if call.update_framework.is_none() {
        return Ok(check(call));
    }
    let checking = background::spawn(|| check(call)).await;
    checking.map_err(|error| Status::internal(error.to_string()))
}
