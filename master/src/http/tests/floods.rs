//! Floods: whoever sends or leaves unread more than is kept for it is told or closed, and others go on.

use meseta_proto::meseta::v1::{self as meseta, agent_frame};
use meseta_proto::mesos::v1;
use meseta_proto::mesos::v1::scheduler::{Call, call};
use prost::Message as _;

use super::*;
use crate::events;

const MEBIBYTE: usize = 1 << 20;

/// A master with the least memory that it works with.
fn small_master() -> (Router, Arc<Site>) {
    let recovered = Recovered {
        epoch: 1,
        ..Recovered::default()
    };
    let site = site_of(Door::open("master"), recovered, &["--memory_budget=256MB"]);
    (router(site.clone()), site)
}

/// An agent of one CPU; its frames are read by whoever has its queue.
async fn agent(handle: &Handle) -> events::Source<meseta::MasterFrame> {
    let connection = handle.new_connection();
    let (sink, frames) = events::queue(handle.budgets.agent(), 1_024);
    handle
        .agent_connected(connection, sink, Caller::default())
        .await
        .unwrap();
    let register = meseta::Register {
        agent_info: v1::AgentInfo {
            hostname: "127.0.0.1".to_owned(),
            ..v1::AgentInfo::default()
        },
        version: "0.1.0".to_owned(),
        ..meseta::Register::default()
    };
    handle
        .agent_frame(connection, agent_frame::Message::Register(register))
        .await
        .unwrap();
    frames
}

/// The id that the master gave an agent.
async fn id_of(frames: &events::Source<meseta::MasterFrame>) -> v1::AgentId {
    loop {
        let (_charge, frame) = frames.next().await.unwrap();
        if let Some(meseta::master_frame::Message::Registered(registered)) = frame.message {
            return registered.agent_id;
        }
    }
}

/// A message of a framework for an executor, with so much data.
fn message(framework: &str, agent: &v1::AgentId, bytes: usize) -> Vec<u8> {
    Call {
        framework_id: Some(v1::FrameworkId {
            value: framework.to_owned(),
        }),
        r#type: Some(call::Type::Message.into()),
        message: Some(call::Message {
            agent_id: agent.clone(),
            executor_id: v1::ExecutorId {
                value: "e".to_owned(),
            },
            data: vec![b'x'; bytes],
        }),
        ..Call::default()
    }
    .encode_to_vec()
}

async fn post(router: &Router, stream: &str, body: impl Into<Body>) -> Response {
    let headers = [PROTOBUF, ("Mesos-Stream-Id", stream)];
    send(router, "POST", "/api/v1/scheduler", &headers, body).await
}

/// An acknowledgement, which is not lost on its way to an agent.
fn acknowledgement(framework: &str, agent: &v1::AgentId) -> Vec<u8> {
    Call {
        framework_id: Some(v1::FrameworkId {
            value: framework.to_owned(),
        }),
        r#type: Some(call::Type::Acknowledge.into()),
        acknowledge: Some(call::Acknowledge {
            agent_id: agent.clone(),
            task_id: v1::TaskId {
                value: "t".repeat(200),
            },
            uuid: vec![1; 16],
        }),
        ..Call::default()
    }
    .encode_to_vec()
}

#[tokio::test]
async fn an_agent_that_does_not_read_is_given_up_and_gives_everything_back() {
    let (router, site) = small_master();
    let (_events, stream, framework) = subscribe(&router).await;
    let (stopped, reading) = (agent(&site.handle).await, agent(&site.handle).await);
    let (stopped_id, reading_id) = (id_of(&stopped).await, id_of(&reading).await);
    let budgets = &site.handle.budgets;
    // What may be lost is lost, and leaves the agent half of its room.
    for _ in 0..40 {
        let body = message(&framework, &stopped_id, MEBIBYTE / 16);
        assert_eq!(
            post(&router, &stream, body).await.status(),
            StatusCode::ACCEPTED
        );
        let body = message(&framework, &reading_id, 64 * 1024);
        assert_eq!(
            post(&router, &stream, body).await.status(),
            StatusCode::ACCEPTED
        );
        // The other goes on, and gets what is for it.
        while reading.next().await.unwrap().1.encoded_len() <= 64 * 1024 {}
    }
    let unread = budgets.unread_frames();
    assert!(unread > 64 * 1024 && unread <= budgets.agent().limit() / 2 + 64 * 1024);
    // What may not be lost fills the rest.
    let posts_max = budgets.agent().limit() / 200;
    for _ in 0..posts_max {
        if budgets.unread_frames() < unread {
            break;
        }
        let body = acknowledgement(&framework, &stopped_id);
        post(&router, &stream, body).await;
    }
    stopped.ended().await;
    assert!(stopped.next().await.is_none(), "what it had is gone");
    assert_eq!(budgets.unread_frames(), 0);
}

/// A body that begins with so many bytes and does not end before `end`.
fn unfinished(bytes: usize, end: &CancellationToken) -> Body {
    let (records, receiver) = tokio::sync::mpsc::channel(1);
    let first = Bytes::from(vec![b'x'; bytes]);
    let end = end.clone();
    tokio::spawn(async move {
        if records.send(first).await.is_ok() {
            end.cancelled().await;
        }
    });
    meseta_proto::transport::server::stream_body(receiver, CancellationToken::new())
}

#[tokio::test]
async fn unfinished_bodies_take_no_more_than_their_share() {
    let (router, site) = small_master();
    let (_events, stream, framework) = subscribe(&router).await;
    let end = CancellationToken::new();
    let budget = site.handle.budgets.peer(String::new());
    let limit = budget.limit();
    let mut slow = Vec::new();
    for _ in 0..3 {
        let (router, stream) = (router.clone(), stream.clone());
        let body = unfinished(limit / 4, &end);
        slow.push(tokio::spawn(async move {
            post(&router, &stream, body).await.status()
        }));
    }
    while budget.used() < limit / 4 * 3 {
        tokio::task::yield_now().await;
    }
    let agent = v1::AgentId {
        value: "nosuch".to_owned(),
    };
    let large = message(&framework, &agent, limit / 3);
    let refused = post(&router, &stream, large.clone()).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers()[header::RETRY_AFTER], "1");
    assert_eq!(budget.used(), limit / 4 * 3, "a refused one takes nothing");
    let small = message(&framework, &agent, 100);
    assert_eq!(
        post(&router, &stream, small).await.status(),
        StatusCode::ACCEPTED
    );
    end.cancel();
    for slow in slow {
        assert_eq!(slow.await.unwrap(), StatusCode::BAD_REQUEST);
    }
    assert_eq!(budget.used(), 0);
    assert_eq!(
        post(&router, &stream, large).await.status(),
        StatusCode::ACCEPTED
    );
}

#[tokio::test]
async fn a_small_body_that_would_become_huge_is_refused() {
    let (router, site) = small_master();
    let (_events, stream, framework) = subscribe(&router).await;
    let task = r#"{"name":"","task_id":{"value":""},"agent_id":{"value":""}}"#;
    let body = format!(
        r#"{{"type":"ACCEPT","framework_id":{{"value":"{framework}"}},"accept":{{"offer_ids":[],
            "operations":[{{"type":"LAUNCH","launch":{{"task_infos":[{}]}}}}]}}}}"#,
        vec![task; 100_000].join(",")
    );
    let headers = [JSON, ("Mesos-Stream-Id", stream.as_str())];
    // It never fits, whatever the others do.
    let refused = call(&router, &headers, &body).await;
    assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let empty = v1::TaskInfo::default().encode_to_vec().len();
    let message: Call = meseta_proto::json::from_slice(body.as_bytes()).unwrap();
    let encoded = message.encode_to_vec();
    assert!(encoded.len() < 100_000 * (empty + 16), "{}", encoded.len());
    let refused = post(&router, &stream, encoded).await;
    assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(site.handle.budgets.peer(String::new()).used(), 0);
}

#[tokio::test]
async fn more_offer_constraints_than_can_be_compared_are_an_error_event() {
    let (router, _site) = small_master();
    let constraint = |number: usize| {
        format!(
            r#"{{"selector":{{"attribute_name":"rack"}},
                "predicate":{{"text_matches":{{"regex":"r{number}"}}}}}}"#
        )
    };
    let subscription = |number: usize| {
        let all: Vec<String> = (0..number).map(constraint).collect();
        format!(
            r#"{{"type":"SUBSCRIBE","subscribe":{{"framework_info":{{"user":"u","name":"x",
                "roles":["dev"],"capabilities":[{{"type":"MULTI_ROLE"}}]}},
                "offer_constraints":{{"role_constraints":{{"dev":{{"groups":[
                {{"attribute_constraints":[{}]}}]}}}}}}}}}}"#,
            all.join(",")
        )
    };
    let mut many = call(&router, &[JSON], &subscription(5_000)).await;
    let event = record(&mut many).await;
    let text = event["error"]["message"].as_str().unwrap();
    assert!(text.contains("5000 attribute constraints"), "{text}");
    let mut some = call(&router, &[JSON], &subscription(50)).await;
    assert_eq!(record(&mut some).await["type"], "SUBSCRIBED");
}

#[tokio::test]
async fn a_framework_that_says_too_much_of_itself_is_refused() {
    let (router, _site) = small_master();
    let subscription = |bytes: usize| {
        let label = "x".repeat(bytes);
        format!(
            r#"{{"type":"SUBSCRIBE","subscribe":{{"framework_info":{{"user":"u","name":"{label}"}}}}}}"#
        )
    };
    let mut large = call(&router, &[JSON], &subscription(100_000)).await;
    let event = record(&mut large).await;
    let text = event["error"]["message"].as_str().unwrap();
    assert!(text.contains("--memory_budget"), "{text}");
    let mut small = call(&router, &[JSON], &subscription(10_000)).await;
    assert_eq!(record(&mut small).await["type"], "SUBSCRIBED");
}
