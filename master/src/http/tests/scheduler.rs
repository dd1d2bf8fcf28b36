//! The scheduler API: the status-code matrix, the stream, and what hostile clients send.

use super::*;
use bytes::Bytes;

/// Headers, body, status and text. `J` and `P` are the types that are understood, `S` is the stream's id, and
/// `$ID` the framework's.
const MATRIX: &str = r#"
- | {} | 400 Expecting 'Content-Type' to be present
text/plain | {} | 415 Expecting 'Content-Type' of application/json or application/x-protobuf
P | {} | 400 Failed to parse body into Call protobuf
J | {} | 400 Failed to validate scheduler::Call: Expecting 'type' to be present
J | {"type":"NOSUCH"} | 400 Failed to validate scheduler::Call: Expecting 'type' to be present
J | {"type":"REVIVE"} | 400 Failed to validate scheduler::Call: Expecting 'framework_id' to be present
J | {"type":"REVIVE","framework_id":{"value":"$ID"}} | 400 All non-subscribe calls should include the 'Mesos-Stream-Id' header
J X | {"type":"REVIVE","framework_id":{"value":"$ID"}} | 400 The stream ID 'x' included in this request didn't match the stream ID currently associated with framework ID $ID
J S | {"type":"REVIVE","framework_id":{"value":"nosuch"}} | 400 Framework cannot be found
J | {"type":"SUBSCRIBE"} | 400 Failed to validate scheduler::Call: Expecting 'subscribe' to be present
J | {"type":"SUBSCRIBE","subscribe":{"framework_info":{"name":"x"}}} | 400 Failed to convert JSON into Call protobuf: Missing required fields: subscribe.framework_info.user
J S | {"type":"SUBSCRIBE","subscribe":{"framework_info":{"user":"u","name":"x"}}} | 400 Subscribe calls should not include the 'Mesos-Stream-Id' header
J html | {"type":"SUBSCRIBE","subscribe":{"framework_info":{"user":"u","name":"x"}}} | 406 Expecting 'Accept' to allow 'application/x-protobuf' or 'application/json'
J html S | {"type":"SUBSCRIBE","subscribe":{"framework_info":{"user":"u","name":"x"}}} | 406 Expecting 'Accept' to allow 'application/x-protobuf' or 'application/json'
J | {"type":"SUBSCRIBE","framework_id":{"value":"$ID"},"subscribe":{"framework_info":{"user":"u","name":"x"}}} | 400 Failed to validate scheduler::Call: 'framework_id' differs from 'subscribe.framework_info.id'
J S | {"type":"KILL","framework_id":{"value":"$ID"}} | 400 Failed to validate scheduler::Call: Expecting 'kill' to be present
J S | {"type":"ACKNOWLEDGE","framework_id":{"value":"$ID"},"acknowledge":{"agent_id":{"value":"a"},"task_id":{"value":"t"},"uuid":"AAAA"}} | 400 Failed to validate scheduler::Call: Not a valid UUID
J S | {"type":"ACCEPT","framework_id":{"value":"$ID"}} | 400 Failed to validate scheduler::Call: Expecting 'accept' to be present
J S | {"type":"DECLINE","framework_id":{"value":"$ID"},"decline":{"offer_ids":[{"value":"nosuch"}]}} | 202
J S | {"type":"DECLINE","framework_id":{"value":"$ID"},"decline":{}} | 202
J S | {"type":"KILL","framework_id":{"value":"$ID"},"kill":{"task_id":5}} | 400 Failed to convert JSON into Call protobuf: Not expecting a JSON number for field 'task_id'
J S credentials | {"type":"REVIVE","framework_id":{"value":"$ID"}} | 202
"#;

#[tokio::test]
async fn the_status_code_matrix() {
    let router = master();
    let get = send(&router, "GET", "/api/v1/scheduler", &[], "").await;
    assert_eq!(get.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(get.headers()[header::ALLOW], "POST");
    assert_eq!(
        text_of(get).await,
        "405 Method Not Allowed. Expecting one of { 'POST' }, but received 'GET'."
    );
    let (_stream, stream_id, id) = subscribe(&router).await;
    let broken = call(&router, &[JSON], "{").await;
    assert_eq!(broken.status(), StatusCode::BAD_REQUEST);
    let text = "Failed to parse body into JSON: syntax error at line 1 near: ";
    assert_eq!(text_of(broken).await, text);
    let named = |name: &str| match name {
        "J" => JSON,
        "P" => PROTOBUF,
        "text/plain" => ("Content-Type", "text/plain"),
        "html" => ("Accept", "text/html"),
        "S" => ("Mesos-Stream-Id", stream_id.as_str()),
        "X" => ("Mesos-Stream-Id", "x"),
        "credentials" => ("Authorization", "Basic Tm9uZTpOb25l"),
        other => panic!("{other}"),
    };
    for case in MATRIX.trim().lines() {
        let case = case.replace("$ID", &id);
        let parts: Vec<&str> = case.split(" | ").collect();
        let [names, body, expected] = parts[..] else {
            panic!("{case}");
        };
        let names = names.split(' ').filter(|name| *name != "-");
        let headers: Vec<_> = names.map(named).collect();
        let response = call(&router, &headers, body).await;
        let status = response.status();
        let is_typed = response.headers().contains_key(header::CONTENT_TYPE);
        assert!(status != StatusCode::ACCEPTED || !is_typed, "{case}");
        let (expected, text) = expected.split_once(' ').unwrap_or((expected, ""));
        assert_eq!(status.as_str(), expected, "{case}");
        assert_eq!(text_of(response).await, text, "{case}");
    }
}

#[tokio::test]
async fn a_stream_has_the_headers_and_framing_that_clients_need() {
    let router = master();
    let (response, stream_id, _) = subscribe(&router).await;
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
    assert!(response.headers().get(header::CONTENT_LENGTH).is_none());
    assert!(uuid::Uuid::parse_str(&stream_id).is_ok());

    let mut response = call(
        &router,
        &[JSON, ("Accept", "application/x-protobuf")],
        SUBSCRIBE,
    )
    .await;
    assert_eq!(
        response.headers()[header::CONTENT_TYPE],
        "application/x-protobuf"
    );
    let frame = response.body_mut().frame().await.unwrap().unwrap();
    let chunk: Bytes = frame.into_data().unwrap();
    let mut decoder = meseta_proto::recordio::Decoder::new(1 << 20);
    decoder.push(&chunk);
    let record = decoder.next_record().unwrap().unwrap();
    let event: meseta_proto::mesos::v1::scheduler::Event =
        meseta_proto::protobuf::from_slice(&record).unwrap();
    assert!(event.subscribed.is_some());
}

#[tokio::test]
async fn a_stream_that_is_dropped_disconnects_its_framework() {
    let router = master();
    let (response, stream_id, id) = subscribe(&router).await;
    drop(response);
    let body = format!(r#"{{"type":"REVIVE","framework_id":{{"value":"{id}"}}}}"#);
    // The end of the stream travels to the core behind our back; ask until it has arrived.
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
async fn hostile_bodies_get_their_status_and_change_nothing() {
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
            assert!(!text_of(response).await.is_empty(), "says why");
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

/// A subscriber that takes nothing for as long as it may is closed, and its framework told off.
#[tokio::test(start_paused = true)]
async fn a_subscriber_that_does_not_read_is_closed() {
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
