//! The scheduler API: headers of calls, the stream, and input of hostile clients.

use super::*;
use bytes::Bytes;

/// In addition to the records in `tests/golden/scheduler-errors.jsonl`, which another test sends to a real master.
#[tokio::test]
async fn headers_decide_accepted_calls() {
    let router = master();
    let (_stream, stream_id, id) = subscribe(&router).await;
    let stream = ("Mesos-Stream-Id", stream_id.as_str());
    let credentials = ("Authorization", "Basic Tm9uZTpOb25l");
    let of = |call: &str| format!(r#"{{"framework_id":{{"value":"{id}"}},{call}}}"#);
    let binary = "Failed to parse body into Call protobuf";
    let accept = "Expecting 'Accept' to allow 'application/x-protobuf' or 'application/json'";
    for (headers, body, expected, text) in [
        (vec![PROTOBUF], "{}".to_owned(), 400, binary),
        // This check precedes that of the stream's id, which does not belong there.
        (
            vec![JSON, ("Accept", "text/html"), stream],
            SUBSCRIBE.to_owned(),
            406,
            accept,
        ),
        (
            vec![JSON, stream],
            of(r#""type":"DECLINE","decline":{}"#),
            202,
            "",
        ),
        (
            vec![JSON, stream, credentials],
            of(r#""type":"REVIVE""#),
            202,
            "",
        ),
    ] {
        let response = call(&router, &headers, &body).await;
        assert_eq!(response.status().as_u16(), expected, "{body}");
        let is_typed = response.headers().contains_key(header::CONTENT_TYPE);
        assert!(expected != 202 || !is_typed, "{body}");
        assert_eq!(text_of(response).await, text, "{body}");
    }
}

/// A registry in memory has another id at each start.
#[tokio::test]
async fn scheduler_learns_persistent_cluster_id() {
    for (is_forgotten, expected) in [(false, Some("c")), (true, None)] {
        let (router, _) = master_with(Recovered {
            epoch: 1,
            cluster_id: "c".to_owned(),
            is_forgotten,
            ..Recovered::default()
        });
        // Before it subscribes, which registers its framework.
        let told = page(&router, "/leader").await;
        assert_eq!(told["cluster_id"].as_str(), expected);
        let (stream, ..) = subscribe(&router).await;
        let told = stream.headers().get("meseta-cluster-id");
        assert_eq!(told.and_then(|id| id.to_str().ok()), expected);
    }
}

#[tokio::test]
async fn dropped_stream_disconnects_framework() {
    let router = master();
    let (response, stream_id, id) = subscribe(&router).await;
    drop(response);
    let body = format!(r#"{{"type":"REVIVE","framework_id":{{"value":"{id}"}}}}"#);
    // The end of the stream reaches the core in the background; ask until it has arrived.
    loop {
        let response = call(&router, &[JSON, ("Mesos-Stream-Id", &stream_id)], &body).await;
        if response.status() == StatusCode::FORBIDDEN {
            assert_eq!(text_of(response).await, "Framework is not subscribed");
            return;
        }
        assert_eq!(response.status(), StatusCode::ACCEPTED);
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn hostile_bodies_are_refused_without_effect() {
    let router = master();
    let deep = format!("{}{}", r#"{"a":"#.repeat(10_000), "}".repeat(10_000));
    let lists = "[".repeat(10_000);
    let protobuf = [0x1a, 0xff, 0x7f].repeat(10_000);
    let truncated = &SUBSCRIBE[..SUBSCRIBE.len() / 2];
    for path in ["/api/v1/scheduler", "/api/v1"] {
        for (content_type, body, status) in [
            (JSON, Body::from(deep.clone()), 400),
            (JSON, Body::from(lists.clone()), 400),
            (PROTOBUF, Body::from(protobuf.clone()), 400),
            (JSON, Body::from(truncated.to_owned()), 400),
            (JSON, Body::from(vec![0xff; 100]), 400),
            (JSON, Body::from(String::new()), 400),
            (JSON, Body::from("[]"), 400),
            (JSON, Body::from(vec![b' '; SCHEDULER_BODY_MAX + 1]), 413),
            (JSON, Body::from_stream(endless()), 413),
        ] {
            let response = send(&router, "POST", path, &[content_type], body).await;
            assert_eq!(response.status().as_u16(), status, "{path}");
            let text = text_of(response).await;
            assert!(!text.is_empty(), "says why");
            assert_eq!(text.contains("larger than"), status == 413, "{text}");
        }
    }
    let state = page(&router, "/state").await;
    assert_eq!(state["frameworks"], json!([]));
    let response = send(
        &router,
        "POST",
        "/api/v1",
        &[JSON],
        vec![b' '; BODY_MAX + 1],
    )
    .await;
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
}

/// A chunked body that never ends.
fn endless() -> impl tokio_stream::Stream<Item = Result<Bytes, std::io::Error>> {
    use tokio_stream::StreamExt;
    tokio_stream::iter(std::iter::repeat_with(|| Bytes::from(vec![b' '; 65_536]))).map(Ok)
}

/// A subscriber that reads nothing for the allowed time is closed, and its framework is disconnected.
#[tokio::test(start_paused = true)]
async fn stalled_subscriber_is_closed() {
    let router = master();
    let (stream, stream_id, id) = subscribe(&router).await;
    let tasks: Vec<_> = (0..100)
        .map(|number| json!({"task_id": {"value": format!("t{number}")}}))
        .collect();
    let reconcile = json!({"type": "RECONCILE", "framework_id": {"value": id},
        "reconcile": {"tasks": tasks}});
    let headers = [JSON, ("Mesos-Stream-Id", stream_id.as_str())];
    let taken = call(&router, &headers, &reconcile.to_string()).await;
    assert_eq!(taken.status(), StatusCode::ACCEPTED);
    tokio::time::sleep(crate::events::STALL_MAX).await;
    let revive = format!(r#"{{"type":"REVIVE","framework_id":{{"value":"{id}"}}}}"#);
    loop {
        let response = call(&router, &headers, &revive).await;
        if response.status() == StatusCode::FORBIDDEN {
            break;
        }
        tokio::task::yield_now().await;
    }
    drop(stream);
}
