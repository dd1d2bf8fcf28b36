//! `/hierarchical-allocator(1)/offer_constraints_debug`: which agents each framework's offer constraints
//! rule out, as Mesos's allocator tells it.

use std::collections::BTreeMap;

use axum::response::{IntoResponse, Response};
use meseta_proto::transport::door::Caller;
use meseta_resources::{AgentId, FrameworkId, Role};
use serde::Serialize;

use super::Site;
use crate::view_cache::Extent;

#[derive(Serialize)]
struct Page<'a> {
    frameworks: BTreeMap<&'a str, Framework<'a>>,
}

#[derive(Serialize)]
struct Framework<'a> {
    suppressed_roles: Vec<&'a str>,
    excluded_by_attribute_constraints: BTreeMap<&'a str, Vec<&'a str>>,
}

/// Frameworks that the caller may not see are left out.
pub(super) async fn handle(site: &Site, caller: &Caller) -> Response {
    let seen = match site.handle.view(caller, Extent::Cluster).await {
        Ok(seen) => seen,
        Err(closed) => return closed.into(),
    };
    let excluded = match site.handle.excluded().await {
        Ok(excluded) => excluded,
        Err(closed) => return closed.into(),
    };
    let mut by_framework: BTreeMap<FrameworkId, BTreeMap<Role, Vec<AgentId>>> = excluded
        .into_iter()
        .map(|one| (one.framework, one.by_role))
        .collect();
    by_framework.retain(|id, _| seen.frameworks.iter().any(|framework| framework.id == *id));
    let frameworks = seen.frameworks.iter().filter_map(|framework| {
        let by_role = by_framework.get(&framework.id)?.iter();
        let by_role = by_role.map(|(role, agents)| {
            let agents = agents.iter().map(AgentId::as_str).collect();
            (role.as_str(), agents)
        });
        let shown = Framework {
            suppressed_roles: framework.suppressed.iter().map(Role::as_str).collect(),
            excluded_by_attribute_constraints: by_role.collect(),
        };
        Some((framework.id.as_str(), shown))
    });
    let page = Page {
        frameworks: frameworks.collect(),
    };
    axum::Json(page).into_response()
}
