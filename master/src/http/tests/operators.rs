//! Calls of operators: the v1 API, and the forms and bodies of the older paths.

use meseta_proto::mesos::v1::master::Response;

use super::*;

#[tokio::test]
async fn every_call_answers_in_both_encodings() {
    let (router, _streams) = pages::busy().await;
    let ask = async |kind: &str, accept: &str| {
        let body = format!(r#"{{"type":"{kind}","get_metrics":{{}}}}"#);
        send(
            &router,
            "POST",
            "/api/v1",
            &[JSON, ("Accept", accept)],
            body,
        )
        .await
    };
    let health = ask("GET_HEALTH", "*/*").await;
    assert_eq!(health.headers()[header::CONTENT_TYPE], "application/json");
    assert_eq!(
        text_of(health).await,
        r#"{"type":"GET_HEALTH","get_health":{"healthy":true}}"#
    );
    for kind in QUESTIONS.split_whitespace().chain(["GET_METRICS"]) {
        let mut parts = Vec::new();
        for accept in ["application/json", "application/x-protobuf"] {
            let response = ask(kind, accept).await;
            assert_eq!(response.status(), StatusCode::OK, "{kind}");
            assert_eq!(response.headers()[header::CONTENT_TYPE], accept);
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let told: Response = match accept {
                "application/json" => meseta_proto::json::from_slice(&body).unwrap(),
                _ => meseta_proto::protobuf::from_slice(&body).unwrap(),
            };
            assert_eq!(told.r#type().as_str_name(), kind);
            parts.push(match told.get_metrics {
                // The values change; the keys stay.
                Some(metrics) => metrics.metrics.into_iter().map(|one| one.name).collect(),
                None => vec![meseta_proto::json::to_string(&told)],
            });
        }
        assert_eq!(parts[0], parts[1], "{kind}");
    }
    assert_status(
        ask("GET_HEALTH", "text/plain").await,
        StatusCode::NOT_ACCEPTABLE,
    );
    let response = operator(&router, r#"{"type":"GET_METRICS"}"#).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    let text = "Failed to validate master::Call: Expecting 'get_metrics' to be present";
    assert_eq!(text_of(response).await, text);
}

#[tokio::test]
async fn operators_see_offers_as_frameworks_do() {
    let (router, handle) = master_and_handle();
    let _streams = join(&handle, registration("cpus:8;mem:8192")).await;
    let body = r#"{"type":"SUBSCRIBE","subscribe":{"framework_info":{"user":"root","name":"golden",
        "roles":["dev"],
        "capabilities":[{"type":"MULTI_ROLE"},{"type":"RESERVATION_REFINEMENT"}]}}}"#;
    let (mut stream, _, _) = subscribe_with(&router, body).await;
    let offer = record(&mut stream).await["offers"]["offers"][0].clone();
    assert!(offer["url"].is_object(), "{offer}");
    let told = json_of(operator(&router, r#"{"type":"GET_FRAMEWORKS"}"#).await).await;
    let frameworks = &told["get_frameworks"]["frameworks"];
    assert_eq!(frameworks[0]["offers"], json!([offer]));
}

/// Each call on a cluster with one agent and one running task, before and after changes by an operator.
#[tokio::test]
async fn every_call_answers_current_state() {
    let (router, _streams) = pages::busy().await;
    let ask = async |kind: &str| -> Value {
        let question = json!({"type": kind, "get_metrics": {}}).to_string();
        let answer = json_of(operator(&router, question).await).await;
        answer[kind.to_lowercase()].clone()
    };
    let call = async |kind: &str, part: Value| {
        let call = json!({"type": kind, kind.to_lowercase(): part});
        let answer = operator(&router, call.to_string()).await;
        (answer.status().as_u16(), text_of(answer).await)
    };
    let done = (200, String::new());
    assert_eq!(ask("GET_HEALTH").await, json!({"healthy": true}));
    let version = ask("GET_VERSION").await;
    assert_eq!(version["version_info"]["version"], "1.12.0");
    let flags = json!([{"name": "port", "value": "5050"}]);
    assert_eq!(ask("GET_FLAGS").await["flags"], flags);
    let elected = json!({"name": "master/elected", "value": 1.0});
    let metrics = ask("GET_METRICS").await;
    assert!(metrics["metrics"].as_array().unwrap().contains(&elected));
    let leader = ask("GET_MASTER").await;
    assert!(leader["elected_time"].is_f64(), "{leader}");
    assert_eq!(leader["master_info"]["hostname"], "127.0.0.1");
    let agents = ask("GET_AGENTS").await;
    let agent = &agents["agents"][0];
    assert_eq!(
        (&agent["active"], &agent["deactivated"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(agent["total_resources"][0]["role"], "*", "{agent}");
    let frameworks = ask("GET_FRAMEWORKS").await;
    let framework = &frameworks["frameworks"][0];
    assert_eq!(
        (&framework["active"], &framework["connected"]),
        (&json!(true), &json!(true))
    );
    assert!(framework["allocated_resources"].is_array(), "{framework}");
    let tasks = ask("GET_TASKS").await;
    assert_eq!(tasks["tasks"][0]["task_id"]["value"], "task-1");
    assert_eq!(tasks["tasks"][0]["state"], "TASK_RUNNING");
    assert_eq!(tasks["completed_tasks"], json!([]));
    // A command task has no executor of its own in the list.
    assert_eq!(ask("GET_EXECUTORS").await, json!({"executors": []}));
    assert_eq!(ask("GET_OPERATIONS").await, json!({}));
    let state = ask("GET_STATE").await;
    assert_eq!(state["get_tasks"], tasks);
    assert_eq!(state["get_agents"]["agents"][0], *agent);
    let roles = ask("GET_ROLES").await;
    let id = &framework["framework_info"]["id"];
    let role = &roles["roles"][0];
    assert_eq!(
        (&role["name"], &role["weight"]),
        (&json!("dev"), &json!(1.0))
    );
    assert_eq!(role["frameworks"], json!([id]));
    assert_eq!(ask("GET_WEIGHTS").await, json!({}));
    assert_eq!(ask("GET_QUOTA").await, json!({"status": {}}));

    let quota = json!({"quota_request": {"role": "ops",
        "guarantee": [{"name": "cpus", "type": "SCALAR", "scalar": {"value": 1}}]}});
    assert_eq!(call("SET_QUOTA", quota).await, done);
    assert_eq!(ask("GET_QUOTA").await["status"]["infos"][0]["role"], "ops");
    let remove = json!({"role": "ops"});
    assert_eq!(call("REMOVE_QUOTA", remove.clone()).await, done);
    assert_eq!(call("REMOVE_QUOTA", remove).await.0, 400);
    let weights = json!({"weight_infos": [{"weight": 4.0, "role": "ops"}]});
    assert_eq!(call("UPDATE_WEIGHTS", weights.clone()).await, done);
    assert_eq!(ask("GET_WEIGHTS").await, weights);
    for kind in ["LIST_FILES", "READ_FILE"] {
        let nowhere = json!({"path": "/nosuch", "offset": 0});
        assert_eq!(call(kind, nowhere).await, (404, String::new()));
    }
    assert_eq!(call("TEARDOWN", json!({"framework_id": id})).await, done);
    let tasks = ask("GET_TASKS").await;
    assert_eq!(tasks["completed_tasks"][0]["task_id"]["value"], "task-1");
}

#[tokio::test]
async fn operator_subscription_streams_events() {
    let router = master();
    let mut watching = operator(&router, r#"{"type":"SUBSCRIBE"}"#).await;
    assert_eq!(watching.headers()[header::CONTENT_TYPE], "application/json");
    let first = record(&mut watching).await;
    assert_eq!(first["subscribed"]["heartbeat_interval_seconds"], 15.0);
    let beat = record(&mut watching).await;
    assert_eq!(beat, json!({"type": "HEARTBEAT"}));
}

#[tokio::test]
async fn teardown_ends_the_stream() {
    let router = master();
    for (body, text) in [
        ("unknown=1&FRAMEWORKID=f", "Missing 'frameworkId'"),
        ("frameworkId=", "No framework found"),
        ("frameworkId=..%2Fx&frameworkId=f", "No framework found"),
    ] {
        let response = send(&router, "POST", "/teardown", &[], body).await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        let told = text_of(response).await;
        assert!(told.starts_with(text), "{body}: {told}");
    }
    let (mut stream, _, id) = subscribe(&router).await;
    let response = send(
        &router,
        "POST",
        "/master/teardown",
        &[],
        format!("frameworkId={id}"),
    )
    .await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(stream.body_mut().frame().await.is_none(), "the stream ends");
}

#[tokio::test]
async fn invalid_weights_are_refused() {
    let router = master();
    let put = async |body: &str| {
        let response = send(&router, "PUT", "/weights", &[], body.to_owned()).await;
        (response.status(), text_of(response).await)
    };
    for (body, why) in [
        (r#"[{"role": "dev", "weight": "two"}]"#, "weight"),
        (
            r#"[{"weight": 2.0}]"#,
            "Role names cannot be the empty string",
        ),
        (r#"[{"role": "a b", "weight": 2.0}]"#, "role"),
        (r#"[{"role": "dev", "weight": 1e400}]"#, "weight"),
        (r#"[{"role": "dev", "weight": 2.0"#, "column"),
    ] {
        let (status, text) = put(body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}: {text}");
        assert!(text.contains(why), "{body}: {text}");
    }
    assert_eq!(text_of(get(&router, "/weights").await).await, "[]");
    let (status, _) = put(r#"[{"role": " dev ", "weight": 2.0}]"#).await;
    assert_eq!(
        status,
        StatusCode::OK,
        "white space around a role is no part of it"
    );
    let shown = text_of(get(&router, "/weights").await).await;
    assert_eq!(shown, r#"[{"weight":2.0,"role":"dev"}]"#);
}

#[tokio::test]
async fn logging_level_rises_temporarily() {
    let router = master();
    let level = async || {
        let response = operator(&router, r#"{"type":"GET_LOGGING_LEVEL"}"#).await;
        text_of(response).await
    };
    let is = |level: u32| {
        format!(r#"{{"type":"GET_LOGGING_LEVEL","get_logging_level":{{"level":{level}}}}}"#)
    };
    assert_eq!(level().await, is(0));
    let set = r#"{"type":"SET_LOGGING_LEVEL","set_logging_level":{"level":2,"duration":{"nanoseconds":3600000000000}}}"#;
    let answer = operator(&router, set).await;
    assert_eq!(
        (answer.status(), text_of(answer).await.as_str()),
        (StatusCode::OK, "")
    );
    assert_eq!(level().await, is(2));
    let negative = set.replace("3600000000000", "-1");
    let answer = operator(&router, negative).await;
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    let toggle = "/logging/toggle?level=1&duration=1hrs";
    let answer = get(&router, toggle).await;
    assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(answer.headers()["allow"], "POST");
    assert_eq!(level().await, is(2), "a GET changes nothing");
    let answer = send(&router, "POST", toggle, &[], "").await;
    assert_eq!(
        (answer.status(), text_of(answer).await.as_str()),
        (StatusCode::OK, "")
    );
    for (query, status, text) in [
        ("", 200, "1\n"),
        ("?level=1", 400, "Expecting 'duration=value' in query.\n"),
        (
            "?duration=1secs",
            400,
            "Expecting 'level=value' in query.\n",
        ),
    ] {
        let answer = get(&router, &format!("/logging/toggle{query}")).await;
        assert_eq!(
            (answer.status().as_u16(), text_of(answer).await.as_str()),
            (status, text)
        );
    }
    for query in ["?level=x&duration=1secs", "?level=1&duration=soon"] {
        let answer = get(&router, &format!("/logging/toggle{query}")).await;
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{query}");
        assert!(text_of(answer).await.starts_with("Invalid "), "{query}");
    }
}
