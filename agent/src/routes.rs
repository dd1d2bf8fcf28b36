//! The paths that the agent serves, and the methods of each.

use http::Method;
use meseta_daemon::request::READ;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Health,
    Version,
    Flags,
    State,
    Statistics,
    Containers,
    Metrics,
    MetricsSnapshot,
    Browse,
    Read,
    Download,
    Debug,
    Operator,
    Executor,
    Libprocess,
}

pub(crate) const ROUTES: &[(&str, Route)] = &[
    ("/health", Route::Health),
    ("/version", Route::Version),
    ("/flags", Route::Flags),
    ("/state", Route::State),
    ("/monitor/statistics", Route::Statistics),
    ("/containers", Route::Containers),
    ("/metrics", Route::Metrics),
    ("/metrics/snapshot", Route::MetricsSnapshot),
    ("/files/browse", Route::Browse),
    ("/files/read", Route::Read),
    ("/files/download", Route::Download),
    ("/files/debug", Route::Debug),
    ("/api/v1", Route::Operator),
    ("/api/v1/executor", Route::Executor),
];

impl Route {
    /// The route of a path.
    pub(crate) fn find(path: &str) -> Option<Self> {
        if path.contains("/..") {
            return None;
        }
        let path = route(path);
        if path.starts_with("/mesos.internal.") {
            return Some(Self::Libprocess);
        }
        let found = ROUTES.iter().find(|(known, _)| *known == path);
        found.map(|(_, route)| *route)
    }

    /// The methods that are answered; none if any will do.
    pub(crate) fn methods(self) -> Option<&'static [Method]> {
        match self {
            Self::Operator | Self::Executor => Some(&[Method::POST]),
            Self::Libprocess => None,
            Self::Health
            | Self::Version
            | Self::Flags
            | Self::State
            | Self::Statistics
            | Self::Containers
            | Self::Metrics
            | Self::MetricsSnapshot
            | Self::Browse
            | Self::Read
            | Self::Download
            | Self::Debug => Some(READ),
        }
    }
}

/// The path without what names the process, as libprocess routes it.
fn route(path: &str) -> &str {
    let path = path.strip_suffix('/').unwrap_or(path);
    let path = path.strip_prefix("/slave(1)").unwrap_or(path);
    if path == "/api/v1/executor" || path.starts_with("/api/v1/executor/") {
        return "/api/v1/executor";
    }
    if path == "/api/v1" || path.starts_with("/api/v1/") {
        return "/api/v1";
    }
    path
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{READ, ROUTES, route};

    #[test]
    fn every_route_is_in_the_reference_with_its_methods_and_nothing_else_is() {
        let page = include_str!("../../docs/endpoints.md");
        let of_agent = page.split("## Agent").nth(1).expect("a part");
        let rows = of_agent
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
        let listed: BTreeSet<(&str, &str)> = rows
            .map(|(path, rest)| (path, rest.split(" |").next().unwrap_or_default()))
            .collect();
        let known = ROUTES.iter().map(|(path, route)| {
            let methods = route.methods().expect("a list");
            (*path, if methods == READ { "read" } else { "POST" })
        });
        assert_eq!(listed, known.collect(), "docs/endpoints.md");
    }

    #[test]
    fn paths_are_routed_as_libprocess_does() {
        for (path, routed) in [
            ("/state", "/state"),
            ("/state/", "/state"),
            ("/slave(1)/state", "/state"),
            ("/slave(1)/monitor/statistics", "/monitor/statistics"),
            ("/api/v1", "/api/v1"),
            ("/slave(1)/api/v1", "/api/v1"),
            ("/api/v1/operator", "/api/v1"),
            ("/slave(1)/api/v1/executor", "/api/v1/executor"),
            ("/api/v1x", "/api/v1x"),
            ("/", ""),
        ] {
            assert_eq!(route(path), routed, "{path}");
        }
    }
}
