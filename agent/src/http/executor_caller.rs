//! Authenticates callers of the executor API.
//!
//! An executor presents the token of its container. An executor without token support, such as those of pymesos and
//! mesos-go, is identified by its connection: the kernel knows the container that opened it. Root and the agent's own
//! user, outside of containers, may act for any executor, since they have access to everything anyway. Invariant: a
//! caller without the right to act for an executor does not learn whether the executor exists.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::{HeaderMap, StatusCode, header};
use meseta_access::executor_token::{Claims, bearer};
use meseta_daemon::authentication::{Caller, Realm};
use meseta_daemon::owner::SocketOwner;
use meseta_daemon::server::Peer;
use meseta_proto::mesos::v1::executor::Call;
use meseta_resources::{ContainerId, FrameworkId};

use super::Reply;
use super::routes::{self, Route};
use crate::context::Context;
use crate::core::{Executor, ExecutorKind};

/// The challenge to authenticate, in Mesos's words.
const CHALLENGE: &str = "Bearer realm=\"mesos-agent-executor\"";

/// A caller of the executor API.
#[derive(Debug)]
pub(super) enum ExecutorCaller {
    /// The caller may act for any executor.
    Trusted,
    /// The caller has presented the token of an executor.
    Claimed(Claims),
    /// The caller opened its connection on this machine.
    Local(SocketOwner),
    /// The identity of the caller is unknown.
    Unknown,
}

impl ExecutorCaller {
    /// The sender against which the caller's bytes count.
    pub(super) fn sender(&self) -> String {
        match self {
            Self::Trusted => "trusted".to_owned(),
            Self::Claimed(claims) => format!("container {}", claims.container),
            Self::Local(owner) => match owner.cgroup {
                Some(group) => format!("group {group}"),
                None => format!("user {}", owner.uid),
            },
            Self::Unknown => "unknown".to_owned(),
        }
    }

    /// The group that shares room with the caller, as far as it is known before the call is read. All callers without a
    /// token form one group, so that many containers give no advantage.
    pub(super) fn group(&self) -> String {
        match self {
            Self::Claimed(claims) => format!("framework {}", claims.framework),
            Self::Trusted => self.sender(),
            Self::Local(_) | Self::Unknown => "without a token".to_owned(),
        }
    }

    /// Identifies the caller of a request; refuses a token that this agent did not make.
    pub(super) async fn from_context(
        context: &Context,
        headers: &HeaderMap,
        peer: Option<Peer>,
    ) -> Result<Self, Reply> {
        let Some(tokens) = &context.tokens else {
            return Ok(Self::Trusted);
        };
        let given = headers.get(header::AUTHORIZATION);
        if let Some(token) = given.and_then(|value| bearer(value.as_bytes())) {
            let claims = tokens.read(token);
            return claims.map(Self::Claimed).ok_or_else(unauthorized);
        }
        let Some(peer) = peer else {
            return Ok(Self::Unknown);
        };
        if context.authentication.trusts(&peer).await {
            return Ok(Self::Trusted);
        }
        Ok(peer.owner().map_or(Self::Unknown, Self::Local))
    }

    /// Refuses a token that names others than the call does.
    pub(super) fn check_named(&self, call: &Call) -> Result<(), Reply> {
        let Self::Claimed(claims) = self else {
            return Ok(());
        };
        if claims.framework != call.framework_id.value {
            return Err(not_claimed("fid", "framework ID"));
        }
        if claims.executor != call.executor_id.value {
            return Err(not_claimed("eid", "executor ID"));
        }
        Ok(())
    }

    /// Returns the executor found for a call, if the caller may act for it.
    pub(super) async fn admit(
        &self,
        context: &Context,
        found: Result<(FrameworkId, Arc<Executor>), Reply>,
    ) -> Result<(FrameworkId, Arc<Executor>), Reply> {
        let container = |executor: &Executor| executor.key.container.clone();
        match (self, found) {
            (Self::Trusted, found) => found,
            (Self::Claimed(claims), Ok((_, executor)))
                if claims.container != container(&executor).as_str() =>
            {
                Err(not_claimed("cid", "container ID"))
            }
            (Self::Claimed(_), found) => found,
            (Self::Local(owner), Ok((framework, executor))) => {
                let Some(containerizer) = context.containerizer.get() else {
                    return Err(unauthorized());
                };
                let containers = vec![container(&executor)];
                if containerizer.opened_in(containers, *owner).await.is_some() {
                    Ok((framework, executor))
                } else {
                    Err(unauthorized())
                }
            }
            (Self::Local(_) | Self::Unknown, Err(rejection)) if rejection.is_unavailable() => {
                Err(rejection)
            }
            (Self::Local(_), Err(_)) | (Self::Unknown, _) => Err(unauthorized()),
        }
    }
}

/// Identifies an executor that calls the operator API from its container, or with its token: as in Mesos, it may nest
/// containers in its own.
pub(super) async fn operator(
    context: &Context,
    route: &Route,
    headers: &HeaderMap,
    peer: Option<&Peer>,
) -> Option<Caller> {
    if route.path != routes::OPERATOR || context.tokens.is_none() {
        return None;
    }
    // The permitted origins of executors' calls are the same for all routes.
    let authentication = &context.authentication;
    let admitted = authentication.authenticate(Realm::Executor, headers, peer);
    admitted.await.ok()?;
    let caller = ExecutorCaller::from_context(context, headers, peer.cloned())
        .await
        .ok()?;
    if matches!(caller, ExecutorCaller::Trusted | ExecutorCaller::Unknown) {
        return None;
    }
    let snapshot = context.snapshot().await.ok()?;
    let mut executors = snapshot.executors();
    let container = match caller {
        ExecutorCaller::Claimed(claims) => {
            let executor = executors.find(|executor| {
                is_executor(executor) && executor.key.container.as_str() == claims.container
            });
            executor?.key.container.clone()
        }
        ExecutorCaller::Local(owner) => {
            let executors = executors.filter(|executor| is_executor(executor));
            let containers = executors.map(|executor| executor.key.container.clone());
            let containerizer = context.containerizer.get()?;
            containerizer.opened_in(containers.collect(), owner).await?
        }
        ExecutorCaller::Trusted | ExecutorCaller::Unknown => return None,
    };
    if let Some(peer) = peer {
        register(context, &container, peer).await;
    }
    let address = peer.map(|peer| peer.address);
    Some(Caller::of_executor(container.to_string(), address))
}

fn is_executor(executor: &Executor) -> bool {
    executor.kind == ExecutorKind::Custom && executor.is_live()
}

fn unauthorized() -> Reply {
    let text = "401 Unauthorized. An executor shows the token of its environment \
        (MESOS_EXECUTOR_AUTHENTICATION_TOKEN), or calls from inside its container";
    Reply::text(StatusCode::UNAUTHORIZED, text).challenge(CHALLENGE)
}

fn not_claimed(claim: &str, what: &str) -> Reply {
    let text = format!("The token does not contain a '{claim}' claim with the {what} of the call");
    Reply::text(StatusCode::FORBIDDEN, &text)
}

/// Notes that a caller has proven to be the executor in a container.
pub(super) async fn register(context: &Context, container: &ContainerId, peer: &Peer) {
    if !peer.is_unauthenticated() {
        return;
    }
    let Ok(snapshot) = context.snapshot().await else {
        return;
    };
    // The known containers, each of which is checked.
    let there: BTreeSet<_> = snapshot.executors().map(|one| &one.key.container).collect();
    context
        .executor_connections
        .register(container, peer, |container| there.contains(container));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokenless_callers_share_one_part() {
        let local = |cgroup| {
            ExecutorCaller::Local(SocketOwner {
                uid: 1000,
                inode: 1,
                cgroup,
            })
        };
        let [one, other] = [local(Some(7)), local(Some(8))];
        assert_ne!(one.sender(), other.sender());
        assert_eq!(one.group(), other.group());
        assert_eq!(one.group(), local(None).group());
        assert_ne!(one.group(), ExecutorCaller::Trusted.group());
    }
}
