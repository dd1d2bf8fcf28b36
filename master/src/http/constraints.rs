//! `/hierarchical-allocator(1)/offer_constraints_debug`: the agents excluded by each framework's offer constraints,
//! in the format of Mesos's allocator.

use std::collections::BTreeMap;

use axum::response::IntoResponse;
use meseta_resources::{AgentId, FrameworkId, Role};
use serde::Serialize;

use super::responses::crowded;
use super::routes::{Handled, Permitted};
use crate::handle::Query;
use crate::view_cache::ViewScope;

#[derive(Serialize)]
struct Page<'a> {
    frameworks: BTreeMap<&'a str, Framework<'a>>,
}

#[derive(Serialize)]
struct Framework<'a> {
    suppressed_roles: Vec<&'a str>,
    excluded_by_attribute_constraints: BTreeMap<&'a str, Vec<&'a str>>,
}

/// Answers without the frameworks that the caller may not see.
pub(super) async fn handle(permitted: Permitted) -> Handled {
    let Permitted {
        context, caller, ..
    } = permitted;
    let turn = context.buffered_responses.acquire_moderate(&caller).await;
    let _turn = turn.map_err(crowded)?;
    let view = context.handle.view(&caller, ViewScope::Cluster).await?;
    let excluded = context.handle.query(Query::Excluded).await?;
    let by_framework: BTreeMap<FrameworkId, BTreeMap<Role, Vec<AgentId>>> = excluded
        .into_iter()
        .map(|one| (one.framework, one.by_role))
        .collect();
    let frameworks = view.frameworks.iter().filter_map(|framework| {
        let by_role = by_framework.get(&framework.id)?.iter();
        let by_role = by_role.map(|(role, agents)| {
            let agents = agents.iter().map(AgentId::as_str).collect();
            (role.as_str(), agents)
        });
        let entry = Framework {
            suppressed_roles: framework.suppressed.iter().map(Role::as_str).collect(),
            excluded_by_attribute_constraints: by_role.collect(),
        };
        Some((framework.id.as_str(), entry))
    });
    let page = Page {
        frameworks: frameworks.collect(),
    };
    Ok(axum::Json(page).into_response())
}
