//! Permissions of calls and readers: no more than the call's type and the reader's roles allow.

use meseta_proto::convert;
use meseta_proto::meseta::v1::{AwaitOperationRequest, master_frame};
use meseta_proto::mesos::v1::agent_info::Capability;
use meseta_proto::mesos::v1::agent_info::capability::Type as AgentCapability;
use meseta_resources::{Operation, Reservation, Resources, Role};
use tempfile::TempDir;

use super::access::{Principals, READER, RIGHT, ask, begin, context_with};
use super::*;
use crate::core::Answer;

/// The bodies of changing calls.
const CHANGES: &str = r#""set_logging_level":{"level":3,"duration":{"nanoseconds":3600000000000}},
    "update_weights":{"weight_infos":[{"role":"ads","weight":2}]},
    "set_quota":{"quota_request":{"force":true,"role":"ads",
        "guarantee":[{"name":"cpus","type":"SCALAR","scalar":{"value":1}}]}},
    "update_maintenance_schedule":{"schedule":{"windows":[{"machine_ids":[{"hostname":"a"}],
        "unavailability":{"start":{"nanoseconds":1}}}]}}"#;

#[tokio::test]
async fn call_obeys_only_its_type() {
    let router = master();
    let call = async |kind: &str, more: &str| {
        let body = format!(r#"{{"type":"{kind}"{more}}}"#);
        let answer = operator(&router, body).await;
        let status = answer.status();
        assert_eq!(status, StatusCode::OK, "{kind}");
        let text = text_of(answer).await;
        serde_json::from_str::<Value>(&text).unwrap_or_default()
    };
    for kind in QUESTIONS.split_whitespace() {
        let answer = call(kind, &format!(",{CHANGES}")).await;
        assert_eq!(answer["type"], kind);
    }
    // A single change, with the bodies of all of them: only this one is made.
    call("UPDATE_WEIGHTS", &format!(",{CHANGES}")).await;
    let level = call("GET_LOGGING_LEVEL", "").await;
    assert_eq!(level["get_logging_level"]["level"], 0);
    let schedule = call("GET_MAINTENANCE_SCHEDULE", "").await;
    assert!(!schedule.to_string().contains("hostname"), "{schedule}");
    let quota = call("GET_QUOTA", "").await;
    assert!(!quota.to_string().contains("ads"), "{quota}");
    let weights = call("GET_WEIGHTS", "").await;
    assert!(weights.to_string().contains("ads"), "{weights}");
}

#[tokio::test]
async fn authorized_operation_is_the_applied_operation() {
    let acls = r#"{"permissive":true,"update_weights":[
        {"principals":{"values":["right"]},"roles":{"values":["ads"]}},
        {"principals":{"type":"NONE"},"roles":{"values":["ads"]}}]}"#;
    let (_dir, router, principals) = begin(acls);
    let put = (&Method::PUT, "/weights");
    for name in ["ads", " ads ", "\\tads", "ads\\n"] {
        let weights = format!(r#"[{{"role":"{name}","weight":2}}]"#);
        let set = ask(&router, &principals, READER, put, (&[], &weights)).await;
        assert_eq!(set.status(), StatusCode::FORBIDDEN, "{name:?}");
        let set = ask(&router, &principals, RIGHT, put, (&[], &weights)).await;
        assert_eq!(set.status(), StatusCode::OK, "{name:?}");
    }
    let read = (&Method::GET, "/weights");
    let shown = ask(&router, &principals, RIGHT, read, (&[], "")).await;
    assert_eq!(text_of(shown).await, r#"[{"weight":2.0,"role":"ads"}]"#);
}

fn parse(text: &str) -> Resources {
    convert::parse_resources(text, &Role::star()).unwrap()
}

/// An agent with static reservations of `ads` and `www`.
fn reserved() -> meseta::Register {
    let kinds = [
        AgentCapability::MultiRole,
        AgentCapability::HierarchicalRole,
        AgentCapability::ReservationRefinement,
        AgentCapability::ResourceProvider,
    ];
    let capable = |kind: AgentCapability| Capability {
        r#type: Some(kind.into()),
    };
    meseta::Register {
        capabilities: kinds.map(capable).to_vec(),
        ..registration("cpus:4;mem:1024;cpus(ads):2;cpus(www):1")
    }
}

#[tokio::test]
async fn events_hide_roles_hidden_in_lists() {
    let dir = TempDir::new().unwrap();
    let acls = r#"{"permissive":true,"view_roles":[
        {"principals":{"values":["reader"]},"roles":{"values":["www"]}},
        {"principals":{"values":["reader"]},"roles":{"type":"NONE"}}]}"#;
    let context = context_with(&dir, acls);
    let (handle, router) = (context.handle.clone(), router(context));
    let principals = Principals::new();
    let to = (&Method::POST, "/api/v1");
    let watch = r#"{"type":"SUBSCRIBE"}"#;
    let mut streams = Vec::new();
    for who in [READER, RIGHT] {
        let mut watching = ask(&router, &principals, who, to, (&[JSON], watch)).await;
        record(&mut watching).await;
        record(&mut watching).await;
        streams.push((who, watching));
    }
    let (_, frames) = join(&handle, reserved()).await;
    frames.next().await.expect("a frame that says it is in");
    let question = async |who: usize, kind: &str| -> Value {
        let body = format!(r#"{{"type":"{kind}"}}"#);
        let answer = ask(&router, &principals, who, to, (&[JSON], &body)).await;
        json_of(answer).await
    };
    for (who, watching) in &mut streams {
        let event = record(watching).await;
        assert_eq!(event["type"], "AGENT_ADDED");
        let told = &event["agent_added"]["agent"];
        let listed = question(*who, "GET_AGENTS").await;
        assert_eq!(*told, listed["get_agents"]["agents"][0]);
        assert_eq!(told.to_string().contains("ads"), *who == RIGHT, "{told}");
        assert!(told.to_string().contains("www"), "{told}");
    }
    let agents = question(RIGHT, "GET_AGENTS").await;
    let id = agents["get_agents"]["agents"][0]["agent_info"]["id"]["value"].as_str();
    for (role, seen) in [("ads", 0), ("www", 1)] {
        let role = Role::new(role).unwrap();
        let taken = parse("cpus:1").push_reservation(&Reservation::dynamic(role, Some("right")));
        let reserve = Operation::Reserve {
            source: Vec::new(),
            resources: taken.unwrap().iter().cloned().collect(),
        };
        let operation = convert::to_operation(&reserve);
        let (operator, id) = (Caller::default(), id.unwrap().to_owned());
        let answer = handle.operate(&operator, id, operation).await;
        assert!(matches!(answer, Ok(Answer::Applied(_))), "{answer:?}");
        let shown = question(READER, "GET_OPERATIONS").await;
        let shown = shown["get_operations"]["operations"].as_array();
        assert_eq!(shown.map_or(0, Vec::len), seen);
    }
    let all = question(RIGHT, "GET_OPERATIONS").await;
    let all = all["get_operations"]["operations"].as_array();
    assert_eq!(all.map_or(0, Vec::len), 2);
}

/// A message in gRPC's framing.
fn grpc_body(message: &impl prost::Message) -> Vec<u8> {
    let encoded = message.encode_to_vec();
    let length = u32::try_from(encoded.len()).unwrap();
    [&[0], &length.to_be_bytes()[..], &encoded].concat()
}

#[tokio::test]
async fn operation_outcome_requires_role_permission() {
    let dir = TempDir::new().unwrap();
    let acls = r#"{"permissive":true,"view_roles":[
        {"principals":{"values":["reader"]},"roles":{"type":"NONE"}}]}"#;
    let context = context_with(&dir, acls);
    let handle = context.handle.clone();
    let router = router(context.clone()).merge(crate::grpc::router(&context).await);
    let (_, frames) = join(&handle, reserved()).await;
    let registered = frames.next().await.expect("a frame that says it is in");
    let Some(master_frame::Message::Registered(registered)) = registered.1.message else {
        panic!("{registered:?}");
    };
    let ads = Reservation::dynamic(Role::new("ads").unwrap(), None);
    let taken = parse("cpus:1").push_reservation(&ads).unwrap();
    let reserve = Operation::Reserve {
        source: Vec::new(),
        resources: taken.iter().cloned().collect(),
    };
    let operation = convert::to_operation(&reserve);
    let answer = handle
        .operate(&Caller::default(), registered.agent_id.value, operation)
        .await;
    let Ok(Answer::Applied(uuid)) = answer else {
        panic!("{answer:?}");
    };
    let operation_uuid = v1::Uuid {
        value: uuid.to_vec(),
    };
    let body = grpc_body(&AwaitOperationRequest { operation_uuid });
    let principals = Principals::new();
    let asked = async |who: usize| {
        let headers = [
            ("Content-Type", "application/grpc"),
            principals.header(who).unwrap(),
        ];
        let path = "/meseta.v1.Operator/AwaitOperation";
        let response = send(&router, "POST", path, &headers, body.clone()).await;
        let status = response.headers().get("grpc-status");
        status.map(|status| status.to_str().unwrap().to_owned())
    };
    assert_eq!(asked(READER).await.as_deref(), Some("5"), "NOT_FOUND");
    // The operation is pending, so a caller that may see it waits.
    tokio::select! {
        biased;
        status = asked(RIGHT) => panic!("{status:?}"),
        () = tokio::task::yield_now() => {}
    }
}

#[tokio::test]
async fn reader_learns_its_own_permissions() {
    let acls = r#"{"permissive":false,
        "update_weights":[{"principals":{"values":["right"]},"roles":{"type":"ANY"}},
        {"principals":{"values":["reader"]},"roles":{"values":["www","www/%"]}}],
        "drain_agents":[{"principals":{"values":["right"]},"agents":{"type":"ANY"}}]}"#;
    let (_dir, router, principals) = begin(acls);
    let rights = async |who| {
        let to = (&Method::GET, "/rights");
        json_of(ask(&router, &principals, who, to, (&[], "")).await).await
    };
    let reader = rights(READER).await;
    assert_eq!(reader["principal"], "reader");
    let expected = json!({"others": false, "named": ["www", "www/%"]});
    assert_eq!(reader["actions"]["update_weights"], expected);
    let nothing = json!({"others": false, "named": []});
    assert_eq!(reader["actions"]["drain_agents"], nothing);
    let everything = json!({"others": true, "named": []});
    let right = rights(RIGHT).await;
    assert_eq!(right["actions"]["drain_agents"], everything);
    assert_eq!(right["actions"]["update_weights"], everything);
}

/// The limit of an answer counts only objects that its reader may see.
#[tokio::test]
async fn hidden_frameworks_use_no_explanation_slots() {
    const AGENTS: usize = 600;
    let dir = TempDir::new().unwrap();
    let acls = r#"{"permissive":true,"view_frameworks":[
        {"principals":{"values":["reader"]},"users":{"values":["mine"]}},
        {"principals":{"values":["reader"]},"users":{"type":"NONE"}}]}"#;
    let context = context_with(&dir, acls);
    let (handle, router) = (context.handle.clone(), router(context));
    let principals = Principals::new();
    let mut kept = Vec::new();
    for number in 0..AGENTS {
        let mut register = registration("cpus:1;mem:64");
        register.agent_info.hostname = format!("node{number}");
        let (_, frames) = join(&handle, register).await;
        frames.next().await.expect("a frame that says it is in");
        kept.push(frames);
    }
    let to = (&Method::POST, "/api/v1/scheduler");
    let mut streams = Vec::new();
    for user in ["theirs", "mine"] {
        let body = format!(
            r#"{{"type":"SUBSCRIBE","subscribe":{{"framework_info":{{"user":"{user}","name":"x",
            "roles":["ads"],"capabilities":[{{"type":"MULTI_ROLE"}}]}}}}}}"#
        );
        let mut stream = ask(&router, &principals, RIGHT, to, (&[JSON], &body)).await;
        let subscribed = record(&mut stream).await;
        let id = subscribed["subscribed"]["framework_id"]["value"].clone();
        streams.push((stream, id));
    }
    let explain = async |who| {
        let path = (&Method::GET, "/explain?role=ads");
        let answer = json_of(ask(&router, &principals, who, path, (&[], "")).await).await;
        assert_eq!(answer["agents"], AGENTS);
        answer["explanations"].as_array().unwrap().clone()
    };
    let all = explain(RIGHT).await;
    assert_eq!(all.len(), 1_000);
    let seen = explain(READER).await;
    assert!(seen.iter().all(|one| one["framework_id"] == streams[1].1));
    assert_eq!(seen.len(), AGENTS);
}

/// A reader with access to metrics only, such as Prometheus, used to see an empty cluster.
#[tokio::test]
async fn metrics_name_only_visible_objects() {
    let dir = TempDir::new().unwrap();
    let acls = r#"{"permissive":true,"view_frameworks":[
        {"principals":{"values":["reader"]},"users":{"type":"NONE"}}],"view_roles":[
        {"principals":{"values":["reader"]},"roles":{"type":"NONE"}}]}"#;
    let context = context_with(&dir, acls);
    let router = router(context);
    let principals = Principals::new();
    let to = (&Method::PUT, "/weights");
    let weights = r#"[{"role":"masked","weight":2}]"#;
    ask(&router, &principals, RIGHT, to, (&[], weights)).await;
    let to = (&Method::POST, "/api/v1/scheduler");
    let body = r#"{"type":"SUBSCRIBE","subscribe":{"framework_info":{"user":"u","name":"hidden","roles":["masked"],
        "capabilities":[{"type":"MULTI_ROLE"}]}}}"#;
    let mut stream = ask(&router, &principals, RIGHT, to, (&[JSON], body)).await;
    record(&mut stream).await;
    for (who, is_named) in [(READER, false), (RIGHT, true)] {
        let path = (&Method::GET, "/metrics/snapshot");
        let page = json_of(ask(&router, &principals, who, path, (&[], "")).await).await;
        assert_eq!(page["master/frameworks_connected"], 1.0);
        let to = (&Method::POST, "/api/v1");
        let call = r#"{"type":"GET_METRICS","get_metrics":{}}"#;
        let answer = ask(&router, &principals, who, to, (&[JSON], call)).await;
        let answer = json_of(answer).await;
        let metrics = answer["get_metrics"]["metrics"].as_array().unwrap();
        let of = |name: &str| metrics.iter().find(|one| one["name"] == name);
        assert_eq!(of("master/frameworks_connected").unwrap()["value"], 1.0);
        for told in [page.to_string(), answer.to_string()] {
            for name in ["hidden", "roles/masked/"] {
                assert_eq!(told.contains(name), is_named, "{name}: {told}");
            }
        }
    }
}
