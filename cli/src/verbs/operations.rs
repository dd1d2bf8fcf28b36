//! Operations on an agent's resources: accepted by the master, then awaited until the agent's answer.
//!
//! The verbs use gRPC, where an operation has an id for queries of its outcome; Mesos's own endpoints answer before the
//! agent has received it.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use http::StatusCode;
use meseta_proto::leader::named_leader;
use meseta_proto::meseta::v1::operator_client::OperatorClient;
use meseta_proto::meseta::v1::{AwaitOperationRequest, OperationTaken};
use meseta_proto::mesos::v1::master::call;
use meseta_proto::mesos::v1::{OperationState, OperationStatus};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::masters::{Asked, at_leader};
use super::{address, hints, identity, server};
use crate::terminal;

/// The time without an answer of the agent before the command prints the reason of its wait.
const HINT_AFTER: Duration = Duration::from_secs(3);

#[derive(Debug, Args)]
pub(super) struct WaitFlag {
    /// Return after the master has accepted the operation, before the agent has applied it.
    #[arg(long = "no-wait", alias = "no_wait")]
    no_wait: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Operation {
    Reserve(call::ReserveResources),
    Unreserve(call::UnreserveResources),
    Create(call::CreateVolumes),
    Destroy(call::DestroyVolumes),
}

impl Operation {
    fn agent(&self) -> &str {
        let id = match self {
            Self::Reserve(call) => &call.agent_id,
            Self::Unreserve(call) => &call.agent_id,
            Self::Create(call) => &call.agent_id,
            Self::Destroy(call) => &call.agent_id,
        };
        &id.value
    }
}

/// Executes the operation, and prints `done` afterwards. `helps` returns the hint after a conflict.
pub(super) fn carry_out(
    masters: &str,
    operation: Operation,
    wait: &WaitFlag,
    done: &str,
    helps: impl FnOnce() -> Option<String>,
) -> anyhow::Result<()> {
    let agent = operation.agent().to_owned();
    let outcome = server::runtime()?.block_on(async {
        let (master, mut client, taken) = at_leader(masters, async |master| {
            let mut client = OperatorClient::new(identity::channel(&address::url(master, ""))?);
            let taken = take(&mut client, operation.clone()).await?;
            if taken.as_ref().is_err_and(|status| named_leader(status).is_some()) {
                let error = anyhow!("{master} does not lead");
                return Ok(Asked::Elsewhere(error));
            }
            Ok(Asked::Answered((master.to_owned(), client, taken)))
        })
        .await?;
        let taken = match taken {
            Ok(taken) => taken,
            Err(status) => return Err(refused(&master, &status, helps)),
        };
        if wait.no_wait {
            return Ok(None);
        }
        let operation_uuid = taken
            .operation_uuid
            .context("the master did not name the operation")?;
        let request = identity::signed(AwaitOperationRequest { operation_uuid })?;
        let mut answer = std::pin::pin!(client.await_operation(request));
        let answer = tokio::select! {
            answer = &mut answer => answer,
            () = tokio::time::sleep(HINT_AFTER) => {
                terminal::note!("waiting for agent {agent}; Ctrl-C ends the wait, and the \
                    operation continues");
                answer.await
            }
        };
        let lost = "the master accepted the operation, but does not know its result; see `meseta agents` and `meseta roles`";
        Ok(Some(answer.context(lost)?.into_inner()))
    })?;
    match outcome {
        None => terminal::say(
            "accepted; `meseta roles` and `meseta volumes` show the result once the agent has \
             applied it",
        ),
        Some(status) => check_status(&agent, &status).map(|()| terminal::say(done))?,
    }
    Ok(())
}

async fn take(
    client: &mut OperatorClient<Channel>,
    operation: Operation,
) -> anyhow::Result<Result<OperationTaken, Status>> {
    let taken = match operation {
        Operation::Reserve(call) => client.reserve_resources(identity::signed(call)?).await,
        Operation::Unreserve(call) => client.unreserve_resources(identity::signed(call)?).await,
        Operation::Create(call) => client.create_volumes(identity::signed(call)?).await,
        Operation::Destroy(call) => client.destroy_volumes(identity::signed(call)?).await,
    };
    Ok(taken.map(tonic::Response::into_inner))
}

/// Checks the status that the agent has reported.
fn check_status(agent: &str, status: &OperationStatus) -> anyhow::Result<()> {
    if status.state() == OperationState::OperationFinished {
        return Ok(());
    }
    let reason = status.message.as_deref().unwrap_or("no reason given");
    let reason = terminal::one_line(reason);
    bail!(
        "agent {agent} did not apply the operation, {}: {reason}",
        status.state().as_str_name()
    )
}

/// Returns a refusal, in the form of the HTTP API.
fn refused(master: &str, status: &Status, helps: impl FnOnce() -> Option<String>) -> anyhow::Error {
    let code = match status.code() {
        Code::InvalidArgument => StatusCode::BAD_REQUEST,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::FailedPrecondition => StatusCode::CONFLICT,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable if std::error::Error::source(status).is_some() => {
            let error = anyhow::Error::from(status.clone());
            return error.context(server::nothing_answers(master));
        }
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let hint = match code {
        StatusCode::CONFLICT => helps(),
        _ => None,
    };
    let known = || hints::after(code, status.message()).map(str::to_owned);
    server::refusal_with(master, code, status.message(), hint.or_else(known))
}
