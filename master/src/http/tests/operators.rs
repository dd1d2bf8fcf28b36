//! What operators ask and set: the v1 API, and the forms and bodies of the older paths.

use super::*;

#[tokio::test]
async fn every_question_is_answered_in_both_encodings_and_no_other() {
    let router = master();
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
        for accept in ["application/json", "application/x-protobuf"] {
            let response = ask(kind, accept).await;
            assert_eq!(response.status(), StatusCode::OK, "{kind}");
            assert_eq!(response.headers()[header::CONTENT_TYPE], accept);
        }
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
async fn operators_watch_what_happens() {
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
async fn weights_that_are_no_weights_are_refused() {
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
async fn the_logging_level_is_raised_for_a_while() {
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
