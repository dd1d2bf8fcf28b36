//! Operators' requests to the core, authorized here: every change passes through this file.
//!
//! Invariant: a refusal is answered before the core hears of the request, but for quota set or removed
//! in the older way, which the core validates first, as the quota document orders it; and every change, done
//! or refused, is one line of the audit log.

use std::sync::Arc;

use meseta_access::{Action as Permission, Forbidden};
use meseta_allocator::Explanation;
use meseta_daemon::authentication::Caller;
use meseta_proto::mesos::v1::offer::Operation;
use tokio::sync::oneshot;

use crate::closed::Closed;
use crate::core::{Answer, ExplainQuery, Request, Snapshot};
use crate::handle::{Command, Handle, Query};
use crate::permission;
use crate::view_cache::ViewScope;

impl Handle {
    /// An operator's request, if it is authorized; answered when it is durable.
    pub(crate) async fn administer(
        &self,
        caller: &Caller,
        request: Request,
    ) -> Result<Answer, Closed> {
        let (name, object) = permission::name(&request);
        if let Err(forbidden) = permission::request(caller, &request) {
            return Ok(refused(caller, name, &object, &forbidden));
        }
        let (answer, answered) = oneshot::channel();
        self.send(Command::Administer {
            request: Box::new(request),
            approver: caller.approver.clone(),
            answer,
        })
        .await?;
        let answer = answered.await.map_err(|_| Closed)?;
        caller.audit(name, &object, answer.outcome());
        Ok(answer)
    }

    /// Ends a framework, if the caller may end those of its principal.
    pub(crate) async fn teardown(
        &self,
        caller: &Caller,
        framework_id: String,
    ) -> Result<Answer, Closed> {
        if !caller.approver.allows_everything() {
            let principal = self.principal_of(&framework_id).await?;
            // A caller without any such permission learns nothing of which frameworks exist.
            let principal = Some(principal.unwrap_or_default());
            if let Err(forbidden) =
                caller.check(Permission::TeardownFramework, principal.as_deref())
            {
                return Ok(refused(caller, "TEARDOWN", &framework_id, &forbidden));
            }
        }
        let (answer, answered) = oneshot::channel();
        self.send(Command::Teardown {
            framework_id: framework_id.clone(),
            answer,
        })
        .await?;
        let answer = answered.await.map_err(|_| Closed)?;
        caller.audit("TEARDOWN", &framework_id, answer.outcome());
        Ok(answer)
    }

    /// The principal that a framework goes by.
    pub(crate) async fn principal_of(&self, framework_id: &str) -> Result<Option<String>, Closed> {
        let (answer, answered) = oneshot::channel();
        let framework_id = framework_id.to_owned();
        self.send(Command::Query(Query::Principal {
            framework_id,
            answer,
        }))
        .await?;
        answered.await.map_err(|_| Closed)
    }

    /// Reserves and so on, if the caller may do that to all of the resources.
    pub(crate) async fn operate(
        &self,
        caller: &Caller,
        agent_id: String,
        operation: Operation,
    ) -> Result<Answer, Closed> {
        let name = permission::operation_name(&operation);
        let object = agent_id.clone();
        if let Err(forbidden) = permission::operation(caller, &operation) {
            return Ok(refused(caller, name, &object, &forbidden));
        }
        let principal = caller.owned_principal();
        let (answer, answered) = oneshot::channel();
        self.send(Command::Operate {
            agent_id,
            operation: Box::new(operation),
            principal,
            answer,
        })
        .await?;
        let answer = answered.await.map_err(|_| Closed)?;
        caller.audit(name, &object, answer.outcome());
        Ok(answer)
    }

    /// Why somebody whom the caller may see got no offer.
    pub(crate) async fn explain(
        &self,
        caller: &Caller,
        question: ExplainQuery,
    ) -> Result<Result<Vec<Explanation>, String>, Closed> {
        let (answer, answered) = oneshot::channel();
        self.send(Command::Query(Query::Explain { question, answer }))
            .await?;
        let answer = answered.await.map_err(|_| Closed)?;
        if caller.approver.allows_everything() {
            return Ok(answer);
        }
        let seen = self.view(caller, ViewScope::Cluster).await?;
        Ok(answer.map(|mut explanations| {
            explanations.retain(|one| {
                let mut frameworks = seen.frameworks.iter();
                frameworks.any(|framework| framework.id == one.framework)
                    && seen.viewer_may_view_role(&one.role)
            });
            explanations
        }))
    }

    /// The state as far as the caller may see it.
    pub(crate) async fn view(
        &self,
        caller: &Caller,
        view_scope: ViewScope,
    ) -> Result<Arc<Snapshot>, Closed> {
        let snapshot = match view_scope {
            ViewScope::Policies => self.policies().await?,
            ViewScope::Cluster => self.snapshot().await?,
        };
        let views = &self.views;
        views.view(snapshot, &caller.approver, view_scope).await
    }
}

/// The answer to an unauthorized request.
fn refused(caller: &Caller, name: &str, object: &str, forbidden: &Forbidden) -> Answer {
    let text = forbidden.to_string();
    caller.audit(name, object, &text);
    Answer::Forbidden(text)
}
