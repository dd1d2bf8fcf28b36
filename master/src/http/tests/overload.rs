//! Floods: a peer that sends or leaves unread more than its limit is refused or closed, and others continue.

use bytes::Bytes;
use meseta_daemon::owner::SocketOwner;
use meseta_daemon::server::Peer;
use meseta_proto::mesos::v1::scheduler::{Call, call};
use prost::Message as _;

use super::*;

const MEBIBYTE: usize = 1 << 20;

/// A master with the smallest memory budget.
fn small_master() -> (Router, Arc<Context>) {
    let open = Authentication::not_required("master");
    let context = context_of(open, Recovered::default(), &["--memory_budget=256MB"]);
    (router(context.clone()), context)
}

/// The id that the master assigned to an agent.
async fn id_of(frames: &events::Source<meseta::MasterFrame>) -> v1::AgentId {
    loop {
        let (_charge, frame) = frames.next().await.unwrap();
        if let Some(meseta::master_frame::Message::Registered(registered)) = frame.message {
            return registered.agent_id;
        }
    }
}

/// A message of a framework for an executor, with data of this size.
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

/// An acknowledgement, which may not be lost on its way to an agent.
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
async fn stalled_agent_is_dropped_and_freed() {
    let (router, context) = small_master();
    let (_events, stream, framework) = subscribe(&router).await;
    let (stopped, reading) = (
        join(&context.handle, registration("")).await.1,
        join(&context.handle, registration("")).await.1,
    );
    let (stopped_id, reading_id) = (id_of(&stopped).await, id_of(&reading).await);
    let budgets = &context.handle.budgets;
    // Messages that may be lost are lost, and leave half of the agent's room.
    for _ in 0..40 {
        let body = message(&framework, &stopped_id, MEBIBYTE / 16);
        assert_status(post(&router, &stream, body).await, StatusCode::ACCEPTED);
        let body = message(&framework, &reading_id, 64 * 1024);
        assert_status(post(&router, &stream, body).await, StatusCode::ACCEPTED);
        // The reading agent continues, and gets its messages.
        while reading.next().await.unwrap().1.encoded_len() <= 64 * 1024 {}
    }
    let unread = budgets.unread_frames();
    assert!(unread > 64 * 1024 && unread <= budgets.agent().limit() / 2 + 64 * 1024);
    // Messages that may not be lost fill the rest.
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

/// A body that begins with this many bytes and does not end before `end`.
fn unfinished(bytes: usize, end: &CancellationToken) -> Body {
    begun(vec![Bytes::from(vec![b'x'; bytes])], end)
}

fn begun(chunks: Vec<Bytes>, end: &CancellationToken) -> Body {
    let (records, receiver) = tokio::sync::mpsc::channel(1);
    let end = end.clone();
    tokio::spawn(async move {
        for chunk in chunks {
            if records.send(chunk).await.is_err() {
                return;
            }
        }
        end.cancelled().await;
    });
    meseta_daemon::server::stream_body(receiver, CancellationToken::new())
}

#[tokio::test]
async fn unfinished_bodies_stay_within_share() {
    let (router, context) = small_master();
    let (_events, stream, framework) = subscribe(&router).await;
    let end = CancellationToken::new();
    let budget = context.handle.budgets.peer(String::new());
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
    assert_status(post(&router, &stream, small).await, StatusCode::ACCEPTED);
    end.cancel();
    for slow in slow {
        assert_eq!(slow.await.unwrap(), StatusCode::BAD_REQUEST);
    }
    assert_eq!(budget.used(), 0);
    assert_status(post(&router, &stream, large).await, StatusCode::ACCEPTED);
}

/// Posts a request from a given address.
async fn post_from(router: &Router, peer: Peer, to: (&str, &str), body: Body) -> Response {
    let (path, kind) = to;
    let request = Request::post(path).header("Content-Type", kind);
    let mut request = request.body(body).unwrap();
    request.extensions_mut().insert(peer);
    router.clone().oneshot(request).await.unwrap()
}

/// A query of a user of this machine.
async fn ask_as(router: &Router, uid: u32, body: Body) -> StatusCode {
    let owner = SocketOwner {
        uid,
        inode: 1,
        cgroup: None,
    };
    let peer = Peer::owned("127.0.0.1:9".parse().unwrap(), Some(owner));
    let to = ("/api/v1", "application/json");
    post_from(router, peer, to, body).await.status()
}

/// A query with this many bytes of padding.
fn padded(bytes: usize) -> Body {
    Body::from(r#"{"type":"GET_HEALTH"}"#.to_owned() + &" ".repeat(bytes))
}

#[tokio::test(start_paused = true)]
async fn unfinished_bodies_leave_room_per_user() {
    let (router, context) = small_master();
    let end = CancellationToken::new();
    let mallory = context.handle.budgets.peer("user 1000".to_owned());
    let slow: Vec<_> = (0..90)
        .map(|_| {
            let (router, body) = (router.clone(), unfinished(MEBIBYTE / 2, &end));
            tokio::spawn(async move { ask_as(&router, 1000, body).await })
        })
        .collect();
    while mallory.used() < mallory.limit() {
        tokio::task::yield_now().await;
    }
    assert_eq!(ask_as(&router, 0, padded(MEBIBYTE)).await, StatusCode::OK);
    // Even small requests of that user pass, and once the others stall, large ones pass too.
    assert_eq!(ask_as(&router, 1000, padded(0)).await, StatusCode::OK);
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert_eq!(
        ask_as(&router, 1000, padded(MEBIBYTE)).await,
        StatusCode::OK
    );
    end.cancel();
    let mut given_up = 0;
    for slow in slow {
        given_up += usize::from(slow.await.unwrap() == StatusCode::REQUEST_TIMEOUT);
    }
    assert!((2..8).contains(&given_up), "{given_up}");
    assert_eq!(mallory.used(), 0);
}

/// A frame of an agent, of which this many bytes are sent, in pieces.
fn frame(agent: &meseta::AgentFrame, sent: usize) -> Vec<Bytes> {
    let length = u32::try_from(agent.encoded_len()).unwrap();
    let mut frame = [&[0][..], &length.to_be_bytes()].concat();
    agent.encode(&mut frame).unwrap();
    frame.truncate(sent);
    let chunks = frame.chunks(16 * 1024);
    chunks.map(Bytes::copy_from_slice).collect()
}

#[tokio::test(start_paused = true)]
async fn unfinished_frames_block_no_other_host() {
    let (_router, context) = small_master();
    let router = crate::grpc::router(&context).await;
    let mut register = registration("");
    register.agent_info.hostname = "h".repeat(2 * MEBIBYTE);
    let agent = meseta::AgentFrame {
        message: Some(agent_frame::Message::Register(register)),
    };
    let end = CancellationToken::new();
    let connect = |host: &str, sent: usize| {
        let body = begun(frame(&agent, sent), &end);
        let peer = Peer::at(format!("{host}:9").parse().unwrap());
        let router = router.clone();
        let to = ("/meseta.v1.AgentRegistry/Connect", "application/grpc");
        tokio::spawn(async move { post_from(&router, peer, to, body).await })
    };
    let frame_buffer = &context.handle.budgets.frame_buffer;
    let mut unfinished = Vec::new();
    for _ in 0..14 {
        unfinished.push(connect("10.0.0.1", 20_000).await.unwrap());
    }
    while frame_buffer.used() == 0 {
        tokio::task::yield_now().await;
    }
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert!(
        frame_buffer.used() <= frame_buffer.limit() / 2,
        "{}",
        frame_buffer.used()
    );
    let begun = tokio::time::Instant::now();
    let mut honest = connect("10.0.0.2", usize::MAX).await.unwrap();
    let answer = honest.body_mut().frame().await.unwrap().unwrap();
    assert!(answer.is_data(), "it was read, and refused for its size");
    assert!(begun.elapsed().as_secs() < 3);
    end.cancel();
}

#[tokio::test]
async fn decompression_bomb_is_refused() {
    let (router, context) = small_master();
    let (_events, stream, framework) = subscribe(&router).await;
    let task = r#"{"name":"","task_id":{"value":""},"agent_id":{"value":""}}"#;
    let body = format!(
        r#"{{"type":"ACCEPT","framework_id":{{"value":"{framework}"}},"accept":{{"offer_ids":[],
            "operations":[{{"type":"LAUNCH","launch":{{"task_infos":[{}]}}}}]}}}}"#,
        vec![task; 100_000].join(",")
    );
    let headers = [JSON, ("Mesos-Stream-Id", stream.as_str())];
    // The body never fits, whatever the others do.
    let refused = call(&router, &headers, &body).await;
    assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let empty = v1::TaskInfo::default().encode_to_vec().len();
    let message: Call = meseta_proto::json::from_slice(body.as_bytes()).unwrap();
    let encoded = message.encode_to_vec();
    assert!(encoded.len() < 100_000 * (empty + 16), "{}", encoded.len());
    let refused = post(&router, &stream, encoded).await;
    assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(context.handle.budgets.peer(String::new()).used(), 0);
}

#[tokio::test]
async fn excess_offer_constraints_send_error_event() {
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
async fn oversized_framework_info_is_refused() {
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

/// Occupies the only thread for blocking work. Returns a receiver for the begin, and a sender that ends it.
fn hold_thread() -> (
    tokio::sync::oneshot::Receiver<()>,
    std::sync::mpsc::Sender<()>,
) {
    let (told, begun) = tokio::sync::oneshot::channel();
    let (end, ending) = std::sync::mpsc::channel();
    tokio::task::spawn_blocking(move || {
        let _ = told.send(());
        let _ = ending.recv();
    });
    (begun, end)
}

/// Lets all other tasks run until they wait for the thread.
async fn settle() {
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
}

/// Disconnects while this call is at one of its steps on a separate thread, the first or the second.
async fn leave_at(step: usize, call: &'static str) {
    let (router, context) = small_master();
    let (begun, mut end) = hold_thread();
    begun.await.unwrap();
    let asking = tokio::spawn(async move { operator(&router, call).await });
    settle().await;
    for _ in 1..step {
        let (begun, next) = hold_thread();
        end.send(()).unwrap();
        begun.await.unwrap();
        end = next;
        settle().await;
    }
    let encoding = || context.buffered_responses.used().1;
    assert_eq!(encoding(), 1, "{call}: it is being made");
    asking.abort();
    drop(asking);
    settle().await;
    assert_eq!(encoding(), 1, "{call}: it is being made still, at {step}");
    end.send(()).unwrap();
    tokio::task::spawn_blocking(|| ()).await.unwrap();
    settle().await;
    assert_eq!(context.buffered_responses.used(), (0, 0), "{call}");
    assert_eq!(context.handle.budgets.initial_messages.used(), 0, "{call}");
}

#[test]
fn abandoned_large_answer_counts_until_rendered() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1);
    let runtime = runtime.build().unwrap();
    for (call, steps) in [
        (r#"{"type":"GET_STATE"}"#, 2),
        (r#"{"type":"GET_METRICS","get_metrics":{}}"#, 2),
        (r#"{"type":"GET_ROLES"}"#, 2),
        (r#"{"type":"GET_MAINTENANCE_STATUS"}"#, 2),
        (r#"{"type":"SUBSCRIBE"}"#, 1),
    ] {
        for step in 1..=steps {
            runtime.block_on(leave_at(step, call));
        }
    }
}

/// Requests a list repeatedly and disconnects during the search; returns the numbers of answers being read and
/// searched then.
async fn leave_lists(path: &'static str) {
    let (router, context) = small_master();
    let (begun, end) = hold_thread();
    begun.await.unwrap();
    for _ in 0..20 {
        let router = router.clone();
        let asking = tokio::spawn(async move { get(&router, path).await });
        settle().await;
        asking.abort();
        settle().await;
    }
    let (readers, finding) = context.renderer.used();
    assert_eq!(readers, 0, "{path}: all have left");
    let cores = std::thread::available_parallelism().unwrap().get();
    assert!(
        (1..=cores).contains(&finding),
        "{path}: {finding} are looked for"
    );
    end.send(()).unwrap();
    tokio::task::spawn_blocking(|| ()).await.unwrap();
    settle().await;
    assert_eq!(context.renderer.used(), (0, 0), "{path}");
}

#[test]
fn abandoned_list_counts_until_filtered() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1);
    let runtime = runtime.build().unwrap();
    for path in ["/tasks?limit=-1", "/roles"] {
        runtime.block_on(leave_lists(path));
    }
}

#[test]
fn every_list_takes_a_readers_place() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1);
    let runtime = runtime.build().unwrap();
    let takes = |path: &'static str| async move {
        let (router, context) = small_master();
        let (begun, end) = hold_thread();
        begun.await.unwrap();
        let asking = tokio::spawn(async move { get(&router, path).await });
        settle().await;
        let (readers, _) = context.renderer.used();
        end.send(()).unwrap();
        assert_eq!(asking.await.unwrap().status(), StatusCode::OK, "{path}");
        readers
    };
    for path in [
        "/slaves",
        "/roles",
        "/quota",
        "/weights",
        "/maintenance/schedule",
        "/maintenance/status",
    ] {
        assert_eq!(runtime.block_on(takes(path)), 1, "{path}");
    }
    assert_eq!(runtime.block_on(takes("/version")), 0);
}

#[tokio::test(start_paused = true)]
async fn endless_queries_delay_no_timer() {
    let (router, handle) = master_and_handle();
    let (mut stream, _, _) = subscribe(&router).await;
    let ask = |handle: Handle| async move {
        while handle.query(handle::Query::Policies).await.is_ok() {}
    };
    let asking: Vec<_> = (0..20).map(|_| tokio::spawn(ask(handle.clone()))).collect();
    settle().await;
    tokio::time::advance(crate::core::HEARTBEAT_INTERVAL).await;
    let mut told = None;
    for _ in 0..10_000 {
        tokio::select! {
            biased;
            event = record(&mut stream) => {
                told = Some(event);
                break;
            }
            () = tokio::task::yield_now() => {}
        }
    }
    assert_eq!(told, Some(json!({"type": "HEARTBEAT"})));
    asking.iter().for_each(tokio::task::JoinHandle::abort);
}
