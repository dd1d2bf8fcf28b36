//! `meseta.v1.Operator`: the operator API with typed errors, and calls without an HTTP equivalent.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use meseta_daemon::authentication::Caller;
use meseta_daemon::background;
use meseta_daemon::fair_semaphore::Permit;
use meseta_proto::meseta::v1::operator_server::Operator;
use meseta_proto::meseta::v1::{
    AwaitOperationRequest, ExplainRequest, ExplainResponse, Explanation, Nothing, OperationTaken,
    QuotaOfRole, QuotaTreeResponse, WatchEvent, WatchRequest,
};
use meseta_proto::mesos::v1::maintenance::Window;
use meseta_proto::mesos::v1::master::call::{self, Type};
use meseta_proto::mesos::v1::master::{Call, response};
use meseta_proto::mesos::v1::{self, OperationStatus, value};
use meseta_resources::{ResourceName, Scalar};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::status_of;
use crate::buffered_response::{BufferedResponses, InitialMessage};
use crate::context::{Context, peer_of};
use crate::core::{
    Administration, Answer, ExplainQuery, Format, HEARTBEAT_INTERVAL, Snapshot, to_wire,
};
use crate::events::STALL_MAX;
use crate::handle::{Handle, Query, WatchStart};
use crate::operation_outcomes;
use crate::operator::{self, CallOutcome};
use crate::operator_messages::stream;
use crate::view_cache::ViewScope;
use crate::view_filter::EventFilter;
use crate::views;

/// The number of events taken from the queue and not yet sent.
const EVENTS_MAX: usize = 16;

#[derive(Debug)]
pub(super) struct Operators {
    context: Arc<Context>,
}

impl Operators {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self { context }
    }

    async fn execute(
        &self,
        caller: &Caller,
        kind: Type,
        call: Call,
    ) -> Result<CallOutcome, Status> {
        let call = Call {
            r#type: Some(kind.into()),
            ..call
        };
        let charge = super::charge(&self.context, caller, &call)?;
        let (kind, call) = operator::check(call).map_err(Status::invalid_argument)?;
        let outcome = operator::execute(&self.context, caller, kind, call).await;
        drop(charge);
        Ok(outcome?)
    }

    async fn add_window(
        &self,
        caller: &Caller,
        window: Window,
    ) -> Result<Response<Nothing>, Status> {
        let charge = super::charge(&self.context, caller, &window)?;
        let request = Administration::AddWindow(Box::new(window));
        let answer = self.context.handle.administer(caller, request).await?;
        drop(charge);
        status_of(answer).map(|()| Response::new(Nothing {}))
    }

    async fn explained(
        &self,
        caller: &Caller,
        request: ExplainRequest,
    ) -> Result<ExplainResponse, Status> {
        let question = ExplainQuery {
            framework_id: request.framework_id.map(|id| id.value),
            role: request.role,
            agent_id: request.agent_id.map(|id| id.value),
            visible: None,
        };
        let turn = self
            .context
            .buffered_responses
            .acquire_moderate(caller)
            .await;
        let _turn = turn.map_err(|crowded| Status::resource_exhausted(crowded.to_string()))?;
        let answers = self.context.handle.explain(caller, question).await?;
        let answers = answers.map_err(Status::invalid_argument)?;
        let explanations = answers.into_iter().map(|answer| Explanation {
            framework_id: answer.framework.into(),
            role: answer.role.to_string(),
            agent_id: answer.agent.into(),
            blocker: answer.blocker.map(|blocker| blocker.to_string()),
            withheld: answer.withheld.map(|withheld| withheld.to_string()),
            offer: to_wire(&answer.offer, Format::PostRefinement),
            role_share: answer.role_share,
            framework_share: answer.framework_share,
        });
        Ok(ExplainResponse {
            explanations: explanations.collect(),
        })
    }

    /// Waits for the outcome as long as the caller does.
    async fn awaited(
        &self,
        caller: &Caller,
        request: AwaitOperationRequest,
    ) -> Result<OperationStatus, Status> {
        let uuid = request.operation_uuid.value.as_slice().try_into();
        let uuid =
            uuid.map_err(|_| Status::invalid_argument("'operation_uuid' is not 16 bytes"))?;
        let outcome = |answer| Query::Outcome {
            uuid,
            approver: caller.approver.clone(),
            answer,
        };
        match self.context.handle.query(outcome).await? {
            operation_outcomes::OperationOutcome::Over(status) => Ok(*status),
            operation_outcomes::OperationOutcome::Pending(finished) => finished
                .await
                .map_err(|_| Status::unavailable("the master is shutting down")),
            operation_outcomes::OperationOutcome::Unknown => Err(Status::not_found(
                "operation not found: the uuid is unknown, the operation ended long ago, or you \
                 may not view it",
            )),
            operation_outcomes::OperationOutcome::Full => Err(Status::resource_exhausted(
                "too many callers wait for operations; try again later",
            )),
        }
    }

    async fn quotas(&self, caller: &Caller) -> Result<QuotaTreeResponse, Status> {
        let turn = self
            .context
            .buffered_responses
            .acquire_moderate(caller)
            .await;
        let turn = turn.map_err(|crowded| Status::resource_exhausted(crowded.to_string()))?;
        let snapshot = self.context.handle.view(caller, ViewScope::Cluster).await?;
        // The permit moves with the work, which continues when the caller leaves.
        let counting = background::spawn(move || {
            let quotas = quota_tree(&snapshot);
            drop(turn);
            quotas
        });
        counting
            .await
            .map_err(|error| Status::internal(error.to_string()))
    }

    async fn watched(&self, caller: Caller, request: WatchRequest) -> Result<Events, Status> {
        let master_id = self.context.identity.id.clone();
        // The event numbers of another master are meaningless here.
        let is_ours = request.master_id.as_ref() == Some(&master_id);
        // A filtered stream begins with the objects visible to its reader.
        let is_whole = caller.approver.allows_everything();
        let after = request.after.filter(|_| is_ours && is_whole);
        let peer = peer_of(&caller);
        let watching = self.context.handle.query(|answer| Query::Watch {
            peer,
            after,
            answer,
        });
        let watching = watching.await?;
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let (shutdown, buffered_responses) = (
            self.context.shutdown.clone(),
            self.context.buffered_responses.clone(),
        );
        let handle = self.context.handle.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => {}
                () = sender.closed() => {}
                () = forward(&handle, watching, &caller, &sender, &master_id, &buffered_responses) => {}
            }
        });
        Ok(Events { events, last: None })
    }
}

/// All quotas with their consumption.
fn quota_tree(snapshot: &Snapshot) -> QuotaTreeResponse {
    fn amounts<'a>(
        amounts: impl Iterator<Item = (&'a ResourceName, Scalar)>,
    ) -> BTreeMap<String, value::Scalar> {
        let scalar = |amount: Scalar| value::Scalar {
            value: amount.to_f64(),
        };
        amounts
            .map(|(name, amount)| (name.to_string(), scalar(amount)))
            .collect()
    }
    let tallies = views::tallies(snapshot);
    let roles = snapshot.quotas.iter().map(|(role, quota)| QuotaOfRole {
        role: role.to_string(),
        guarantees: amounts(quota.guarantees.iter()),
        limits: amounts(quota.limits.iter()),
        consumed: tallies
            .get(role)
            .map(|tally| amounts(tally.consumed.iter()))
            .unwrap_or_default(),
    });
    QuotaTreeResponse {
        roles: roles.collect(),
    }
}

/// An event; the first of a stream has the permit that it holds until it is sent.
type Sent = (Result<WatchEvent, Status>, Option<Permit>);

/// Events on their way to a watcher.
struct Events {
    events: mpsc::Receiver<Sent>,
    /// The permit of the event that the transport has taken. The transport polls for the next event once this event
    /// is sent.
    last: Option<Permit>,
}

impl Stream for Events {
    type Item = Result<WatchEvent, Status>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> Poll<Option<Self::Item>> {
        self.last = None;
        self.events.poll_recv(context).map(|next| {
            let (event, hold) = next?;
            self.last = hold;
            Some(event)
        })
    }
}

/// Sends events until either end closes, or the reader stalls.
async fn forward(
    handle: &Handle,
    mut watching: WatchStart,
    caller: &Caller,
    events: &mpsc::Sender<Sent>,
    master_id: &str,
    buffered_responses: &BufferedResponses,
) {
    let numbered = |sequence, event| WatchEvent {
        sequence,
        master_id: master_id.to_owned(),
        event,
    };
    let mut last = watching.last;
    let mut filter = EventFilter::new(caller.approver.clone());
    let mut unsent = CancellationToken::new();
    if let Some(snapshot) = watching.snapshot.take() {
        let make = |snapshot: &Snapshot| {
            let event = stream::subscribed(snapshot, true);
            let bytes = event.encoded_len();
            (event, bytes)
        };
        let begun = buffered_responses.initial_message(handle, snapshot, caller, &mut filter, make);
        let Some(InitialMessage { message, hold }) = begun.await else {
            return;
        };
        unsent = hold.revoked().clone();
        if !send(events, numbered(last, message), Some(hold)).await {
            return;
        }
    }
    let mut beats = tokio::time::interval(HEARTBEAT_INTERVAL);
    beats.reset();
    loop {
        let event = tokio::select! {
            biased;
            () = events.closed() => return,
            () = unsent.cancelled() => {
                if let Some(connection) = &caller.connection {
                    connection.close();
                }
                return;
            }
            event = watching.events.recv() => match event {
                Some((number, stream_event)) => {
                    last = number;
                    match filter.apply(&stream_event) {
                        Some(event) => numbered(number, event.into_owned()),
                        None => continue,
                    }
                }
                None => {
                    let status = Status::resource_exhausted("slow consumer");
                    // The reader decides whether this still fits.
                    let _dropped = events.try_send((Err(status), None));
                    return;
                }
            },
            _ = beats.tick() => numbered(last, stream::heartbeat()),
        };
        if !send(events, event, None).await {
            return;
        }
    }
}

async fn send(events: &mpsc::Sender<Sent>, event: WatchEvent, hold: Option<Permit>) -> bool {
    let sent = tokio::time::timeout(STALL_MAX, events.send((Ok(event), hold))).await;
    matches!(sent, Ok(Ok(())))
}

/// Converts the outcome to an empty response or an error.
fn done(outcome: CallOutcome) -> Result<Response<Nothing>, Status> {
    match outcome {
        CallOutcome::Done(answer) => status_of(answer).map(|()| Response::new(Nothing {})),
        CallOutcome::Response(..) => Ok(Response::new(Nothing {})),
    }
}

/// Converts the outcome to the uuid of the accepted operation or an error.
fn operation_taken(outcome: CallOutcome) -> Result<Response<OperationTaken>, Status> {
    let CallOutcome::Done(answer) = outcome else {
        return Err(Status::internal("the operation is missing from the answer"));
    };
    let operation_uuid = match &answer {
        Answer::Applied(uuid) => Some(v1::Uuid {
            value: uuid.to_vec(),
        }),
        _ => None,
    };
    status_of(answer).map(|()| Response::new(OperationTaken { operation_uuid }))
}

/// Generates queries from method, body and type of the answer, and requests from method and body.
macro_rules! mirror {
    (
        questions: $($question:ident $get:ident $Get:ident),* $(,)?;
        requests: $($request:ident $Body:ident),* $(,)?;
        operations: $($operation:ident $Change:ident),* $(,)?;
    ) => {
        #[tonic::async_trait]
        impl Operator for Operators {
            $(
                async fn $question(
                    &self,
                    request: Request<Nothing>,
                ) -> Result<Response<response::$Get>, Status> {
                    let caller = super::caller(&request)?;
                    let call = Call {
                        get_metrics: Some(call::GetMetrics::default()),
                        ..Call::default()
                    };
                    match self.execute(&caller, Type::$Get, call).await? {
                        CallOutcome::Response(response, permit) => {
                            let mut answer = Response::new(response.$get.unwrap_or_default());
                            if let Some(permit) = permit {
                                answer.extensions_mut().insert(permit.into_send_permit());
                            }
                            Ok(answer)
                        }
                        CallOutcome::Done(answer) => {
                            status_of(answer)?;
                            Err(Status::internal("the answer is missing"))
                        }
                    }
                }
            )*
            $(
                async fn $request(
                    &self,
                    request: Request<call::$Body>,
                ) -> Result<Response<Nothing>, Status> {
                    let caller = super::caller(&request)?;
                    let call = Call {
                        $request: Some(request.into_inner()),
                        ..Call::default()
                    };
                    done(self.execute(&caller, Type::$Body, call).await?)
                }
            )*

            $(
                async fn $operation(
                    &self,
                    request: Request<call::$Change>,
                ) -> Result<Response<OperationTaken>, Status> {
                    let caller = super::caller(&request)?;
                    let call = Call {
                        $operation: Some(request.into_inner()),
                        ..Call::default()
                    };
                    operation_taken(self.execute(&caller, Type::$Change, call).await?)
                }
            )*

            async fn add_maintenance_window(
                &self,
                request: Request<Window>,
            ) -> Result<Response<Nothing>, Status> {
                let caller = super::caller(&request)?;
                self.add_window(&caller, request.into_inner()).await
            }

            async fn await_operation(
                &self,
                request: Request<AwaitOperationRequest>,
            ) -> Result<Response<OperationStatus>, Status> {
                let caller = super::caller(&request)?;
                let awaited = self.awaited(&caller, request.into_inner()).await;
                awaited.map(Response::new)
            }

            async fn explain(
                &self,
                request: Request<ExplainRequest>,
            ) -> Result<Response<ExplainResponse>, Status> {
                let caller = super::caller(&request)?;
                let explained = self.explained(&caller, request.into_inner()).await;
                explained.map(Response::new)
            }

            async fn quota_tree(
                &self,
                request: Request<Nothing>,
            ) -> Result<Response<QuotaTreeResponse>, Status> {
                let caller = super::caller(&request)?;
                self.quotas(&caller).await.map(Response::new)
            }

            type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchEvent, Status>> + Send>>;

            async fn watch(
                &self,
                request: Request<WatchRequest>,
            ) -> Result<Response<Self::WatchStream>, Status> {
                let events = self.watched(super::caller(&request)?, request.into_inner()).await?;
                Ok(Response::new(Box::pin(events)))
            }
        }
    };
}

mirror! {
    questions:
        get_health get_health GetHealth,
        get_flags get_flags GetFlags,
        get_version get_version GetVersion,
        get_metrics get_metrics GetMetrics,
        get_state get_state GetState,
        get_agents get_agents GetAgents,
        get_frameworks get_frameworks GetFrameworks,
        get_executors get_executors GetExecutors,
        get_operations get_operations GetOperations,
        get_tasks get_tasks GetTasks,
        get_roles get_roles GetRoles,
        get_weights get_weights GetWeights,
        get_master get_master GetMaster,
        get_quota get_quota GetQuota,
        get_maintenance_status get_maintenance_status GetMaintenanceStatus,
        get_maintenance_schedule get_maintenance_schedule GetMaintenanceSchedule;
    requests:
        set_quota SetQuota,
        update_quota UpdateQuota,
        remove_quota RemoveQuota,
        update_weights UpdateWeights,
        update_maintenance_schedule UpdateMaintenanceSchedule,
        start_maintenance StartMaintenance,
        stop_maintenance StopMaintenance,
        drain_agent DrainAgent,
        deactivate_agent DeactivateAgent,
        reactivate_agent ReactivateAgent,
        mark_agent_gone MarkAgentGone,
        teardown Teardown;
    operations:
        reserve_resources ReserveResources,
        unreserve_resources UnreserveResources,
        create_volumes CreateVolumes,
        destroy_volumes DestroyVolumes,
        grow_volume GrowVolume,
        shrink_volume ShrinkVolume;
}
