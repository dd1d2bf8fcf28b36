//! Operators' requests to the core, authorized here: every change passes through this file.
//!
//! Invariant: an unauthorized request is refused before the core gets it, except quota set or removed by the legacy
//! calls, which the core validates first, in the order of the quota document; and every change, made or refused, is
//! one line of the audit log.

use std::collections::BTreeSet;
use std::sync::Arc;

use meseta_access::{Action as Permission, Forbidden};
use meseta_allocator::Explanation;
use meseta_daemon::authentication::Caller;
use meseta_proto::Invalid;
use meseta_proto::mesos::v1::offer::Operation;
use meseta_resources::Role;

use crate::closed::Closed;
use crate::core::{
    Administration, Answer, ExplainQuery, FrameworkView, Request, Snapshot, Visible,
};
use crate::handle::{Handle, Query};
use crate::permission;
use crate::view_cache::ViewScope;

impl Handle {
    /// Sends an operator's authorized request to the core; the answer comes when the change is durable.
    pub(crate) async fn administer(
        &self,
        caller: &Caller,
        administration: Administration,
    ) -> Result<Answer, Closed> {
        let (name, object) = permission::name(&administration);
        let permitted = permission::administration(caller, &administration);
        let request = Request::Administer {
            administration: Box::new(administration),
            approver: caller.approver.clone(),
        };
        self.audited(caller, name, &object, permitted, request)
            .await
    }

    /// Ends a framework, if the caller may end those of its principal.
    pub(crate) async fn teardown(
        &self,
        caller: &Caller,
        framework_id: String,
    ) -> Result<Answer, Closed> {
        let permitted = if caller.approver.allows_everything() {
            Ok(())
        } else {
            let principal = self.principal_of(&framework_id).await?;
            // A caller without any such permission learns nothing about existing frameworks.
            let principal = principal.unwrap_or_default();
            let permitted = caller.check(Permission::TeardownFramework, Some(&principal));
            permitted.map_err(Forbidden::without_object)
        };
        let object = framework_id.clone();
        let request = Request::Teardown {
            framework_id,
            caller: caller.clone(),
        };
        self.audited(caller, "TEARDOWN", &object, permitted, request)
            .await
    }

    /// The principal of a framework.
    pub(crate) async fn principal_of(&self, framework_id: &str) -> Result<Option<String>, Closed> {
        let id = framework_id.to_owned();
        self.query(|answer| Query::Principal(id, answer)).await
    }

    /// Applies an operation, if the caller has the right to all of its resources.
    pub(crate) async fn operate(
        &self,
        caller: &Caller,
        agent_id: String,
        operation: Operation,
    ) -> Result<Answer, Closed> {
        let name = permission::operation_name(&operation);
        let object = agent_id.clone();
        let permitted = permission::operation(caller, &operation);
        let request = Request::Operate {
            agent_id,
            operation: Box::new(operation),
            principal: caller.owned_principal(),
        };
        self.audited(caller, name, &object, permitted, request)
            .await
    }

    /// Requests a permitted change from the core, and writes one line of the audit log for it, made or refused.
    async fn audited(
        &self,
        caller: &Caller,
        name: &str,
        object: &str,
        permitted: Result<(), Forbidden>,
        request: Request,
    ) -> Result<Answer, Closed> {
        let answer = match permitted {
            Ok(()) => self.ask(request, None).await?,
            Err(forbidden) => Answer::Forbidden(forbidden.to_string()),
        };
        caller.audit(name, object, answer.outcome());
        Ok(answer)
    }

    /// Explains why a framework or role visible to the caller got no offer.
    pub(crate) async fn explain(
        &self,
        caller: &Caller,
        question: ExplainQuery,
    ) -> Result<Result<Vec<Explanation>, Invalid>, Closed> {
        let mut question = question;
        if !caller.approver.allows_everything() {
            let seen = self.view(caller, ViewScope::Cluster).await?;
            question.visible = Some(visible(&seen, &question));
        }
        self.query(|answer| Query::Explain(question, answer)).await
    }

    /// The state as far as the caller may see it.
    pub(crate) async fn view(
        &self,
        caller: &Caller,
        view_scope: ViewScope,
    ) -> Result<Arc<Snapshot>, Closed> {
        let snapshot = match view_scope {
            ViewScope::Policies => self.query(Query::Policies).await?,
            ViewScope::Cluster => self.query(Query::Snapshot).await?,
        };
        let views = &self.views;
        views.view(snapshot, &caller.approver, view_scope).await
    }
}

/// The frameworks and roles of a query that the caller may see.
fn visible(seen: &Snapshot, question: &ExplainQuery) -> Visible {
    let role = question
        .role
        .as_deref()
        .and_then(|role| Role::new(role).ok());
    let is_meant = |framework: &FrameworkView| match &question.framework_id {
        Some(id) => framework.id.as_str() == id,
        None => role
            .as_ref()
            .is_some_and(|role| framework.roles.contains(role)),
    };
    let frameworks = seen.frameworks.iter();
    let frameworks = frameworks.filter(|framework| is_meant(framework));
    let roles = match &role {
        Some(role) => BTreeSet::from([role]),
        None => frameworks.clone().flat_map(|one| &one.roles).collect(),
    };
    let roles = roles.into_iter();
    Visible {
        frameworks: frameworks.map(|framework| framework.id.clone()).collect(),
        roles: roles
            .filter(|role| seen.viewer_may_view_role(role))
            .cloned()
            .collect(),
    }
}
