//! `/openapi.json`: a description of the scheduler's API for programs.
//!
//! The description is `docs/jobs.openapi.json`, with the job file's schema inserted when it is served.

use serde_json::Value;

const DESCRIPTION: &str = include_str!("../../../docs/jobs.openapi.json");

/// Returns the description of this version of the scheduler.
pub(super) fn description(version: &str) -> Value {
    let mut description: Value = serde_json::from_str(DESCRIPTION).unwrap_or_default();
    for (place, value) in [
        ("/info", ("version", Value::from(version))),
        ("/components/schemas", ("Job", crate::file::job_schema())),
    ] {
        if let Some(Value::Object(of_place)) = description.pointer_mut(place) {
            of_place.insert(value.0.to_owned(), value.1);
        }
    }
    description
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use http::Method;
    use serde::Serialize;
    use serde_json::json;

    use super::super::job_pages::JobFile;
    use super::super::jobs::ACTIONS;
    use super::super::routes::ROUTES;
    use super::*;
    use crate::core::{
        Accepted, Event, FailedUpdateView, FailureView, History, JobView, PlaceView, PlanView,
        TaskView, UpdateView, VersionView, VolumeView,
    };

    /// Returns the described paths of a route, with their methods.
    fn described() -> Vec<(String, BTreeSet<String>)> {
        let description = description("1");
        let paths = description["paths"].as_object().expect("paths").iter();
        let methods = |all: &Value| {
            let all = all.as_object().expect("methods").keys();
            all.map(|method| method.to_uppercase()).collect()
        };
        paths
            .map(|(path, all)| (path.clone(), methods(all)))
            .collect()
    }

    #[test]
    fn openapi_describes_exactly_the_routes() {
        let mut routes = BTreeSet::new();
        for (path, methods) in described() {
            let route = ROUTES
                .find(&path)
                .unwrap_or_else(|| panic!("{path} is no route"));
            routes.insert(route.path);
            for method in &methods {
                let method: Method = method.parse().expect("a method");
                assert!(route.takes(&method), "{method} {path}");
            }
            if route.path == path {
                // A read-only route is described by its GET.
                let is_read_only = route.methods.contains(&Method::HEAD);
                let taken = route.methods.iter();
                let taken = taken.filter(|method| !is_read_only || **method == Method::GET);
                let taken: BTreeSet<_> = taken.map(|method| method.as_str().to_owned()).collect();
                assert_eq!(methods, taken, "{path}");
            }
        }
        let all: BTreeSet<_> = ROUTES.list.iter().map(|route| route.path).collect();
        assert_eq!(routes, all);
    }

    #[test]
    fn openapi_describes_exactly_the_changes() {
        let below: BTreeSet<String> = described()
            .into_iter()
            .filter(|(_, methods)| methods.contains("POST"))
            .filter_map(|(path, _)| path.strip_prefix("/v1/jobs/{name}/").map(str::to_owned))
            .collect();
        assert_eq!(below, ACTIONS.map(str::to_owned).into());
    }

    #[test]
    fn references_lead_somewhere() {
        let description = description("1");
        let mut left = vec![&description["paths"], &description["components"]["schemas"]];
        while let Some(value) = left.pop() {
            match value {
                Value::Object(all) => {
                    if let Some(Value::String(reference)) = all.get("$ref")
                        && let Some(pointer) = reference.strip_prefix('#')
                        && pointer.starts_with("/components")
                    {
                        assert!(description.pointer(pointer).is_some(), "{reference}");
                    }
                    left.extend(all.values());
                }
                Value::Array(all) => left.extend(all),
                _ => {}
            }
        }
    }

    /// Every answer has a schema, and every refusable request has error responses.
    #[test]
    fn answers_and_errors_have_schemas() {
        let description = description("1");
        for (path, methods) in description["paths"].as_object().expect("paths") {
            for (method, operation) in methods.as_object().expect("methods") {
                let responses = operation["responses"].as_object().expect("responses");
                assert!(responses.len() > 1, "{method} {path}");
                for (status, response) in responses.iter().filter(|(status, _)| *status != "401") {
                    let content = response["content"].as_object();
                    let has_schema = content.is_some_and(|content| {
                        content
                            .values()
                            .all(|of_type| of_type["schema"].is_object())
                    });
                    assert!(has_schema, "{method} {path} {status}");
                }
            }
        }
    }

    /// Checks that an answer has all required fields of its schema, and no unknown field.
    fn check(name: &str, answer: &impl Serialize) {
        let description = description("1");
        let schema = &description["components"]["schemas"][name];
        let answer = serde_json::to_value(answer).expect("JSON");
        let answer = answer.as_object().expect("an object");
        let properties = schema["properties"].as_object().expect("properties");
        for field in answer.keys() {
            assert!(properties.contains_key(field), "{name} has no {field}");
        }
        for field in schema["required"].as_array().expect("required") {
            let field = field.as_str().expect("text");
            assert!(answer.contains_key(field), "{name} lacks {field}");
        }
        // The samples have every field.
        for field in properties.keys() {
            assert!(answer.contains_key(field), "no {field} in the {name} here");
        }
    }

    #[test]
    fn answers_are_as_their_schemas_say() {
        let text = String::new;
        let update = UpdateView {
            from: 1,
            to: 2,
            state: "rolling",
        };
        let task = TaskView {
            task_id: text(),
            index: 0,
            attempt: 1,
            version: 1,
            run: 0,
            state: text(),
            healthy: true,
            agent_id: text(),
            hostname: text(),
            ports: [("http".to_owned(), 1)].into(),
            since: 1,
            reason: text(),
            message: text(),
        };
        let volume = VolumeView {
            key: String::new(),
            volume_id: text(),
            job: text(),
            role: text(),
            index: 0,
            agent_id: text(),
            hostname: text(),
            size_mb: 1.0,
            path: text(),
            state: "used",
        };
        let version = VersionView {
            version: 1,
            time: 1,
            count: 1,
            current: true,
            stable: true,
        };
        let event = Event {
            time: 1,
            job: text(),
            role: Some("r".to_owned()),
            task_id: Some(text()),
            agent_id: Some(text()),
            text: text(),
        };
        let place = PlaceView {
            hostname: text(),
            agent_id: text(),
            tasks: 1,
        };
        let failure = FailureView {
            task_id: text(),
            agent_id: text(),
            time: 1,
            text: text(),
            failures: 1,
            next_attempt: Some(2),
        };
        let failed_update = FailedUpdateView {
            version: 1,
            why: text(),
        };
        check("FailedUpdateView", &failed_update);
        check("UpdateView", &update);
        check("FailureView", &failure);
        let of_version = JobFile {
            version: 1,
            job: json!({}),
        };
        check("JobFile", &of_version);
        check("TaskView", &task);
        check("VolumeView", &volume);
        check("VersionView", &version);
        check("Event", &event);
        check("PlaceView", &place);
        let job = JobView {
            key: String::new(),
            name: text(),
            kind: "service",
            role: text(),
            version: 1,
            count: 1,
            running: 1,
            healthy: 1,
            pending: 0,
            failed: 0,
            succeeded: 0,
            state: "healthy",
            why: text(),
            obstacles: vec![text()],
            update: Some(update),
            failed_update: Some(failed_update),
            last_failure: Some(failure),
            next_run: Some(1),
            tasks: Some(vec![task]),
            volumes: vec![volume],
        };
        check("JobView", &job);
        let mut shown = serde_json::to_value(&job).expect("JSON");
        shown["actions"] = json!(["stop"]);
        shown["tasks_total"] = json!(1);
        shown["next"] = json!("0.0.1.1");
        check("Shown", &shown);
        check(
            "History",
            &History {
                versions: vec![version],
                events: vec![event],
            },
        );
        check(
            "PlanView",
            &PlanView {
                changes: Vec::new(),
                fits: 0,
                wants: 0,
                runs: 0,
                places: vec![place],
                obstacles: Vec::new(),
                may_be_limited: false,
            },
        );
        check(
            "Accepted",
            &Accepted {
                role: String::new(),
                name: text(),
                version: 1,
            },
        );
    }
}
