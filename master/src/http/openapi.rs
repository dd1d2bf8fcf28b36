//! `/openapi.json`: the v0 endpoints, described for programs.

use axum::response::{IntoResponse, Response};
use http::header;
use meseta_daemon::compression::Compressible;

const DESCRIPTION: &str = include_str!("../../../docs/openapi.json");

pub(super) fn answer() -> Response {
    let mut response = ([(header::CONTENT_TYPE, "application/json")], DESCRIPTION).into_response();
    response.extensions_mut().insert(Compressible);
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use http::Method;
    use meseta_access::{Action, PATHS};
    use meseta_daemon::routes::Need;
    use serde_json::Value;

    use super::super::routes::ROUTES;
    use super::*;

    /// The paths whose messages the protocol's own files describe.
    const BY_PROTOCOL: [&str; 2] = ["/api/v1", "/api/v1/scheduler"];

    fn described() -> Value {
        serde_json::from_str(DESCRIPTION).unwrap()
    }

    /// The methods of a path, in capitals; parameters of a path count for the path before them.
    fn methods_of(path: &str) -> BTreeSet<String> {
        let description = described();
        let paths = description["paths"].as_object().unwrap();
        let same = paths.iter().filter(|(known, _)| {
            let bare = known.split("/{").next().unwrap_or_default();
            bare == path
        });
        same.flat_map(|(_, methods)| methods.as_object().unwrap().keys())
            .map(|method| method.to_uppercase())
            .collect()
    }

    #[test]
    fn openapi_lists_exactly_the_endpoints() {
        for route in ROUTES.list {
            if BY_PROTOCOL.contains(&route.path) {
                continue;
            }
            let taken: BTreeSet<_> = route
                .methods
                .iter()
                .map(|method| method.as_str().to_owned())
                .collect();
            let is_read_only = route.methods.contains(&Method::HEAD);
            let expected: BTreeSet<_> = if is_read_only {
                BTreeSet::from(["GET".to_owned()])
            } else {
                taken
            };
            assert_eq!(
                methods_of(route.path),
                expected,
                "{} in docs/openapi.json",
                route.path
            );
        }
        for path in described()["paths"].as_object().unwrap().keys() {
            assert!(ROUTES.find(path).is_some(), "{path} is not an endpoint");
        }
    }

    #[test]
    fn reference_lists_exactly_the_endpoints() {
        let page = include_str!("../../../docs/endpoints.md");
        let of_master = page.split("## Master").nth(1).unwrap();
        let of_master = of_master.split("## Agent").next().unwrap();
        let rows = of_master.lines().filter(|line| line.starts_with("| `/"));
        let rows: String = rows.map(|row| format!("{row}\n")).collect();
        assert_eq!(rows, ROUTES.reference(), "docs/endpoints.md");
    }

    #[test]
    fn acls_know_all_get_endpoint_paths() {
        for route in ROUTES.list {
            if let Need::Permission(Action::GetEndpoint, path) = route.need {
                assert!(PATHS.contains(&path.unwrap()), "{}", route.path);
            }
        }
    }

    #[test]
    fn references_lead_somewhere() {
        let description = described();
        let mut left = vec![&description];
        while let Some(value) = left.pop() {
            match value {
                Value::Object(all) => {
                    if let Some(Value::String(reference)) = all.get("$ref") {
                        let pointer = reference.trim_start_matches('#');
                        assert!(description.pointer(pointer).is_some(), "{reference}");
                    }
                    left.extend(all.values());
                }
                Value::Array(all) => left.extend(all),
                _ => {}
            }
        }
    }
}
