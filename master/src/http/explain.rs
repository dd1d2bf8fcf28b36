//! `/explain`: the reason why a framework or role got no offer of an agent. Mesos has no such endpoint.

use axum::response::IntoResponse;
use http::{StatusCode, header};
use meseta_allocator::Explanation;
use serde_json::json;

use super::responses::{crowded, text};
use super::routes::{Handled, Permitted};
use crate::core::ExplainQuery;
use crate::view_cache::ViewScope;

pub(super) async fn handle(permitted: Permitted) -> Handled {
    let query = permitted.query();
    let given = |name: &str| query.get(name).map(str::to_owned);
    let question = ExplainQuery {
        framework_id: given("framework_id"),
        role: given("role"),
        agent_id: given("slave_id").or_else(|| given("agent_id")),
        visible: None,
    };
    let (context, caller) = (&permitted.context, &permitted.caller);
    let turn = context.buffered_responses.acquire_moderate(caller).await;
    let _turn = turn.map_err(crowded)?;
    let is_about_one = question.agent_id.is_some();
    let explanations = context.handle.explain(caller, question).await?;
    let explanations = explanations.map_err(|invalid| text(StatusCode::BAD_REQUEST, invalid))?;
    let views: Vec<_> = explanations.iter().map(view).collect();
    // The number of explanations is limited, so many agents name only the first ones.
    let agents = match is_about_one {
        true => 1,
        false => {
            let snapshot = context.handle.view(caller, ViewScope::Cluster).await?;
            snapshot.agents.len()
        }
    };
    let body = json!({ "explanations": views, "agents": agents }).to_string();
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

fn view(explanation: &Explanation) -> serde_json::Value {
    let reason = match (&explanation.blocker, &explanation.withheld) {
        (Some(blocker), _) => blocker.to_string(),
        (None, Some(withheld)) => {
            format!(
                "others may come first, and a part of the free resources is kept back: \
                {withheld}"
            )
        }
        (None, None) => "nothing is in the way; others may come first".to_owned(),
    };
    json!({
        "framework_id": explanation.framework.as_str(),
        "role": explanation.role.as_str(),
        "slave_id": explanation.agent.as_str(),
        "blocked": explanation.blocker.is_some(),
        "reason": reason,
        "offer": explanation.offer.unallocate().to_string(),
        "available": explanation.available().map(|available| available.to_string()),
        "role_share": explanation.role_share,
        "framework_share": explanation.framework_share,
    })
}
