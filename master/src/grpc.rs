//! The gRPC services: agents, and schedulers that prefer typed errors; the standard health and reflection services.

mod agents;
mod operators;
mod schedulers;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use meseta_daemon::authentication::Caller;
use meseta_daemon::body::BodyError;
use meseta_etcd::leadership::Elsewhere;
use meseta_proto::budget::{Charge, Exhausted};
use meseta_proto::leader::LEADER;
use meseta_proto::meseta::v1::agent_registry_server::AgentRegistryServer;
use meseta_proto::meseta::v1::operator_server::OperatorServer;
use meseta_proto::meseta::v1::scheduler_server::SchedulerServer;
use meseta_proto::schema::{self, WireMessage};
use tonic::Status;
use tonic::service::Routes;

use crate::context::{BODY_MAX, Context, SCHEDULER_BODY_MAX};
use crate::core::Answer;
use crate::http::{UNPROVEN, authentication};

/// The largest frame sent to an agent, in bytes.
const FRAME_MAX: usize = 64 * 1024 * 1024;
/// The largest frame from an agent, in bytes. Reregistrations come in parts of 4 MiB, unless a single record is
/// larger: an executor or task from a scheduler, with the agent's additions.
const AGENT_FRAME_MAX: usize = SCHEDULER_BODY_MAX + BODY_MAX;

/// The services, to be merged with the HTTP routes.
pub(crate) async fn router(context: &Arc<Context>) -> Router {
    let (handle, shutdown) = (&context.handle, &context.shutdown);
    let agents = AgentRegistryServer::new(agents::Agents::new(handle.clone(), shutdown.clone()))
        .max_decoding_message_size(AGENT_FRAME_MAX)
        .max_encoding_message_size(FRAME_MAX);
    let schedulers = SchedulerServer::new(schedulers::Schedulers::new(context.clone()))
        .max_decoding_message_size(SCHEDULER_BODY_MAX);
    let operators = OperatorServer::new(operators::Operators::new(context.clone()))
        .max_decoding_message_size(BODY_MAX);
    let (health, health_service) = tonic_health::server::health_reporter();
    health
        .set_serving::<AgentRegistryServer<agents::Agents>>()
        .await;
    health
        .set_serving::<SchedulerServer<schedulers::Schedulers>>()
        .await;
    health
        .set_serving::<OperatorServer<operators::Operators>>()
        .await;
    let mut routes = Routes::builder();
    routes
        .add_service(agents)
        .add_service(schedulers)
        .add_service(operators)
        .add_service(health_service);
    // Reflection lets tools list and call the services without the .proto files.
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(meseta_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    match (reflection().build_v1(), reflection().build_v1alpha()) {
        (Ok(current), Ok(older)) => {
            routes.add_service(current).add_service(older);
        }
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "gRPC reflection is not served");
        }
    }
    let routes = routes.routes().into_axum_router().reset_fallback();
    let leads = middleware::from_fn_with_state(context.clone(), if_leading);
    let routes = routes.layer(leads);
    authentication::authenticated(routes, context.clone())
}

/// Requires the leader for calls of this package; any master serves health and reflection.
async fn if_leading(
    State(context): State<Arc<Context>>,
    request: Request<Body>,
    next: Next,
) -> Response {
    if !request.uri().path().starts_with("/meseta.v1.") {
        return next.run(request).await;
    }
    let status = context
        .handle
        .standing
        .elsewhere()
        .map(|elsewhere| match elsewhere {
            Elsewhere::Leader(leader) => {
                let mut status = Status::unavailable(format!("{leader} leads"));
                if let Ok(address) = leader.parse() {
                    status.metadata_mut().insert(LEADER, address);
                }
                status
            }
            Elsewhere::Unproven => Status::unavailable(UNPROVEN),
            Elsewhere::Nobody => Status::unavailable("No master leads at the moment"),
            Elsewhere::Recovering => Status::unavailable("This master is reading the registry"),
        });
    match status {
        Some(status) => status.into_http(),
        None => next.run(request).await,
    }
}

/// The authenticated caller of a request.
fn caller<T>(request: &tonic::Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get::<Caller>().cloned();
    caller.ok_or_else(|| Status::internal("this method has no authentication"))
}

/// Charges a decoded call until it is done.
fn charge<T: WireMessage>(context: &Context, caller: &Caller, call: &T) -> Result<Charge, Status> {
    let (budget, bytes) = (context.request_of(caller), schema::bytes_of(call));
    // The budget accepts a single item of any size, so the charge grows from zero.
    let charge = budget.charge(0).and_then(|mut charge| {
        if bytes > budget.limit() {
            let max = budget.limit();
            return Err(Exhausted::Share {
                bytes,
                used: 0,
                max,
            });
        }
        charge.grow(bytes).map(|()| charge)
    });
    charge.map_err(|exhausted| BodyError::from(exhausted).status_of_grpc())
}

/// Converts the core's answer to a code and a text.
fn status_of(answer: Answer) -> Result<(), Status> {
    match answer {
        Answer::Accepted | Answer::Applied(_) | Answer::Done | Answer::Warned(_) => Ok(()),
        Answer::BadRequest(message) => Err(Status::invalid_argument(message)),
        Answer::Forbidden(message) => Err(Status::permission_denied(message)),
        Answer::NotFound(message) => Err(Status::not_found(message)),
        Answer::Conflict(message) => Err(Status::failed_precondition(message)),
        Answer::Unavailable(message) => Err(Status::unavailable(message)),
        Answer::NotImplemented(message) => Err(Status::unimplemented(message)),
    }
}
