//! Pages for reading: their paths, and their content in the wording of Mesos.

use super::*;

#[tokio::test]
async fn paths_resolve_like_mesos() {
    let router = master();
    for (path, status) in [
        ("/health", 200),
        ("/master/health", 200),
        ("/master/health/", 200),
        ("/state", 200),
        ("/master/frameworks/", 200),
        ("/metrics", 200),
        ("/metrics/snapshot", 200),
        ("/nosuch", 404),
        ("/master/nosuch", 404),
        ("/state.json", 404),
        ("/", 200),
        ("/ui/app.js", 200),
        ("/ui/nosuch.js", 404),
        ("/../x", 404),
        ("/state/../x", 404),
        ("/state/../state", 404),
        ("/redirect", 307),
        ("/redirect/x", 404),
        ("/api/v1/operator", 405),
        ("/master/mesos.internal.RegisterFrameworkMessage", 501),
        ("/quota", 200),
        ("/master/weights", 200),
        ("/maintenance/schedule", 200),
        ("/maintenance/status", 200),
        ("/machine/up", 405),
        ("/explain", 400),
        ("/files/read?path=/nosuch", 404),
        ("/files/browse", 400),
    ] {
        assert_eq!(get(&router, path).await.status().as_u16(), status, "{path}");
    }
    let redirect = get(&router, "/master/redirect").await;
    assert_eq!(redirect.headers()[header::LOCATION], "//127.0.0.1:5050");
    assert_eq!(
        text_of(get(&router, "/nosuch").await).await,
        "404 Not Found."
    );
    let internal = "/master/mesos.internal.RegisterFrameworkMessage";
    let text = text_of(get(&router, internal).await).await;
    assert!(text.contains("/api/v1/scheduler"), "{text}");
    for path in ["/api/v1", "/api/v1/operator", "/master/api/v1/operator/"] {
        let health = send(&router, "POST", path, &[JSON], r#"{"type": "GET_HEALTH"}"#).await;
        assert!(text_of(health).await.contains("get_health"), "{path}");
    }
    let long = format!("/{}", "x".repeat(request::URI_BYTES_MAX));
    assert_status(get(&router, &long).await, StatusCode::URI_TOO_LONG);
    for (method, path) in [
        ("DELETE", "/state"),
        ("PUT", "/health"),
        ("POST", "/metrics"),
    ] {
        let response = send(&router, method, path, &[], "").await;
        assert_eq!(
            response.status(),
            StatusCode::METHOD_NOT_ALLOWED,
            "{method} {path}"
        );
        assert!(response.headers().contains_key(header::ALLOW));
    }
    assert_status(
        send(&router, "POST", "/state", &[], "{}").await,
        StatusCode::OK,
    );
    let head = send(&router, Method::HEAD.as_str(), "/state", &[], "").await;
    assert_eq!(head.status(), StatusCode::OK);
}

#[tokio::test]
async fn idle_answers_match_mesos_values() {
    let router = master();
    let body = async |path: &str| -> Value {
        let response = get(&router, path).await;
        assert_eq!(
            response.headers()[header::CONTENT_TYPE],
            "application/json",
            "{path}"
        );
        json_of(response).await
    };
    let state = body("/state").await;
    assert_eq!(state["leader"], "master@127.0.0.1:5050");
    assert_eq!(state["activated_slaves"].to_string(), "0.0");
    let version = body("/version").await;
    assert!(
        version["version"]
            .as_str()
            .unwrap()
            .split('.')
            .all(|part| part.parse::<u32>().is_ok())
    );
    assert_eq!(
        body("/slaves").await,
        json!({"slaves": [], "recovered_slaves": []})
    );
    assert_eq!(body("/tasks").await, json!({"tasks": []}));
    assert_eq!(body("/flags").await, json!({"flags": {"port": "5050"}}));
    assert_eq!(body("/roles").await, json!({"roles": []}));
    let metrics = body("/metrics/snapshot").await;
    assert_eq!(metrics["master/elected"], 1.0);

    let jsonp = get(&router, "/version?jsonp=cb").await;
    assert_eq!(jsonp.headers()[header::CONTENT_TYPE], "text/javascript");
    let text = text_of(jsonp).await;
    assert!(text.starts_with("cb({") && text.ends_with("})"), "{text}");
}

#[tokio::test]
async fn invalid_task_page_queries_are_refused() {
    let router = master();
    for (query, status) in [
        ("", 200),
        ("?limit=-1&order=asc", 200),
        ("?limit=10&offset=5&order=desc", 200),
        ("?limit=x", 400),
        ("?offset=x", 400),
        ("?order=sideways", 400),
    ] {
        let response = get(&router, &format!("/tasks{query}")).await;
        assert_eq!(response.status().as_u16(), status, "{query}");
    }
}

#[tokio::test]
async fn recovered_agents_are_listed_separately() {
    use prost::Message;
    let info = meseta_proto::mesos::v1::AgentInfo {
        hostname: "node.example".to_owned(),
        ..meseta_proto::mesos::v1::AgentInfo::default()
    };
    let (router, _) = master_with(Recovered {
        epoch: 2,
        agents: vec![crate::core::AgentRecord {
            agent_id: "old-S0".to_owned(),
            info: info.encode_to_vec().into(),
        }],
        ..Recovered::default()
    });
    let page = get(&router, "/tasks?framework_id=f&task_id=t").await;
    let page = json_of(page).await;
    assert_eq!(page, json!({"tasks": [], "recovered_agents": ["old-S0"]}));
    let agents = json_of(operator(&router, r#"{"type":"GET_AGENTS"}"#).await).await;
    let mut watching = operator(&router, r#"{"type":"SUBSCRIBE"}"#).await;
    let first = record(&mut watching).await;
    for told in [&agents, &first["subscribed"]["get_state"]] {
        let agents = &told["get_agents"];
        assert_eq!(agents["agents"], json!([]));
        assert_eq!(agents["recovered_agents"][0]["hostname"], "node.example");
    }
}

#[tokio::test]
async fn explanation_requires_a_known_subject() {
    let router = master();
    let (_stream, _, id) = subscribe(&router).await;
    for (query, status) in [
        ("", 400),
        ("?framework_id=nosuch", 400),
        ("?role=%20", 400),
        ("?role=dev&slave_id=nosuch", 400),
        ("?role=dev", 200),
    ] {
        let response = get(&router, &format!("/explain{query}")).await;
        assert_eq!(response.status().as_u16(), status, "{query}");
    }
    let none = get(&router, &format!("/explain?framework_id={id}")).await;
    assert_eq!(text_of(none).await, r#"{"agents":0,"explanations":[]}"#);
}

/// A master with one agent, one framework and one running task, and their streams.
pub(super) async fn busy() -> (Router, impl Sized) {
    use meseta_proto::meseta::v1::master_frame;
    use meseta_proto::mesos::v1::TaskState;
    let (router, handle) = master_and_handle();
    let resources = "cpus:8;mem:8192;disk:10240;ports:[31000-32000]";
    let mut register = registration(resources);
    let limits = v1::agent_info::capability::Type::TaskResourceLimits;
    register.capabilities = vec![v1::agent_info::Capability {
        r#type: Some(limits.into()),
    }];
    let (connection, frames) = join(&handle, register).await;
    let body = r#"{"type":"SUBSCRIBE","subscribe":{"framework_info":{"user":"root","name":"golden",
        "roles":["dev"],"checkpoint":true,
        "capabilities":[{"type":"MULTI_ROLE"},{"type":"RESERVATION_REFINEMENT"}]}}}"#;
    let (mut stream, stream_id, framework) = subscribe_with(&router, body).await;
    let offer = record(&mut stream).await["offers"]["offers"][0].clone();
    let task = json!({
        "name": "golden", "task_id": {"value": "task-1"}, "agent_id": offer["agent_id"],
        "resources": [
            {"name": "cpus", "type": "SCALAR", "scalar": {"value": 0.5}},
            {"name": "mem", "type": "SCALAR", "scalar": {"value": 64}},
            {"name": "ports", "type": "RANGES", "ranges": {"range": [{"begin": 31000, "end": 31001}]}},
        ],
        "command": {"value": "sleep 100"},
        "limits": {"mem": {"value": "Infinity"}, "cpus": {"value": 2.0}},
        "labels": {"labels": [{"key": "a", "value": "b"}, {"key": "bare"}]},
        "discovery": {"visibility": "CLUSTER", "name": "gold",
            "ports": {"ports": [{"number": 80, "name": "http", "protocol": "tcp"}]}},
    });
    let accept = json!({
        "type": "ACCEPT", "framework_id": {"value": framework},
        "accept": {"offer_ids": [offer["id"]], "filters": {"refuse_seconds": 600},
            "operations": [{"type": "LAUNCH", "launch": {"task_infos": [task]}}]},
    });
    let headers = [JSON, ("Mesos-Stream-Id", stream_id.as_str())];
    assert_status(
        call(&router, &headers, &accept.to_string()).await,
        StatusCode::ACCEPTED,
    );
    let run = loop {
        let (_charge, frame) = frames.next().await.unwrap();
        if let Some(master_frame::Message::RunTask(run)) = frame.message {
            break run;
        }
    };
    let status = v1::TaskStatus {
        task_id: run.task.task_id,
        state: TaskState::TaskRunning.into(),
        timestamp: Some(1_795_226_383.993_578),
        uuid: Some(vec![7; 16]),
        container_status: Some(v1::ContainerStatus {
            container_id: Some(v1::ContainerId {
                value: "c".to_owned(),
                parent: None,
            }),
            executor_pid: Some(19_076),
            network_infos: vec![v1::NetworkInfo {
                ip_addresses: vec![v1::network_info::IpAddress {
                    ip_address: Some("10.0.0.9".to_owned()),
                    ..v1::network_info::IpAddress::default()
                }],
                ..v1::NetworkInfo::default()
            }],
            ..v1::ContainerStatus::default()
        }),
        ..v1::TaskStatus::default()
    };
    let update = meseta::StatusUpdate {
        framework_id: run.framework.id.unwrap(),
        status,
        latest_state: None,
    };
    handle
        .agent_frame(connection, agent_frame::Message::StatusUpdate(update))
        .await
        .unwrap();
    record(&mut stream).await;
    (router, (stream, frames))
}

#[tokio::test]
async fn running_task_is_shown_like_mesos() {
    let (router, _streams) = busy().await;
    let body = async |path: &str| -> Value { page(&router, path).await };
    let state = body("/master/state").await;
    let agent = &state["slaves"][0];
    assert_eq!(
        agent["used_resources"],
        json!({"cpus": 0.5, "mem": 64.0, "disk": 0.0, "gpus": 0.0, "ports": "[31000-31001]"})
    );
    assert_eq!(agent["pid"], "slave(1)@127.0.0.1:5051");
    let framework = &state["frameworks"][0];
    let task = &framework["tasks"][0];
    for (part, keys) in [
        (&state, "id hostname pid version"),
        (agent, "id hostname pid version"),
        (framework, "id name"),
        (task, "id name framework_id slave_id"),
    ] {
        for key in keys.split(' ') {
            assert!(!part[key].as_str().expect(key).is_empty(), "{key}: {part}");
        }
    }
    assert_eq!(state["version"], meseta_proto::INTERFACE_VERSION);
    assert_eq!(task["executor_id"], "");
    let labels = json!([{"key": "a", "value": "b"}, {"key": "bare"}]);
    assert_eq!(task["labels"], labels);
    let discovery = json!({"visibility": "CLUSTER", "name": "gold",
        "ports": {"ports": [{"number": 80, "name": "http", "protocol": "tcp"}]}});
    assert_eq!(task["discovery"], discovery);
    assert_eq!(task["limits"], json!({"cpus": 2.0, "mem": "Infinity"}));
    assert_eq!(
        task["statuses"],
        json!([{"state": "TASK_RUNNING", "timestamp": 1_795_226_383.993_578,
            "container_status": {"container_id": {"value": "c"},
                "network_infos": [{"ip_addresses": [{"protocol": "IPv4", "ip_address": "10.0.0.9"}]}]}}])
    );
    assert_eq!(body("/tasks?limit=-1").await["tasks"][0], *task);
    assert_eq!(body("/tasks?task_id=other").await["tasks"], json!([]));

    let slaves = body("/slaves").await;
    assert_eq!(
        slaves["slaves"][0]["used_resources_full"][0],
        json!({"name": "cpus", "type": "SCALAR", "scalar": {"value": 0.5}, "role": "*",
            "allocation_info": {"role": "dev"}})
    );
    let summary = body("/state-summary").await;
    assert_eq!(summary["slaves"][0]["TASK_RUNNING"], 1);
    assert_eq!(summary["frameworks"][0]["TASK_RUNNING"], 1);
    assert_eq!(summary["frameworks"][0]["slave_ids"], json!([agent["id"]]));
    assert_eq!(
        body("/roles").await["roles"],
        json!([{"name": "dev", "weight": 1.0,
            "quota": {"role": "dev", "guarantee": {}, "limit": {},
                "consumed": {"cpus": 0.5, "mem": 64.0, "ports": 2.0}},
            "resources": {"cpus": 0.5, "mem": 64.0, "ports": 2.0},
            "allocated": {"cpus": 0.5, "mem": 64.0, "ports": 2.0},
            "offered": {}, "reserved": {}, "frameworks": [framework["id"]]}])
    );
    let tasks = operator(&router, r#"{"type":"GET_TASKS"}"#).await;
    let tasks = json_of(tasks).await;
    let task = &tasks["get_tasks"]["tasks"][0];
    assert_eq!(task["labels"]["labels"], labels);
    assert_eq!(task["status_update_state"], "TASK_RUNNING");
    assert_eq!(task["resources"][0]["allocation_info"]["role"], "dev");
}

/// A browser keeps the headers of its cached answer: once the master acts again, the browser must not get 304 for the
/// outdated answer.
#[tokio::test]
async fn possibly_stale_answer_has_different_etag() {
    let open = Authentication::not_required("master");
    let mut context = context_of(open, Recovered::default(), &[]);
    let (standing, role) = watch::channel(Role::Leading);
    Arc::get_mut(&mut context).unwrap().handle.standing.role = role;
    let router = router(context);
    let state = async || {
        let answer = get(&router, "/weights").await;
        let is_marked = answer.headers().contains_key("meseta-stale");
        (is_marked, answer.headers()[header::ETAG].clone())
    };
    let (is_marked, fresh) = state().await;
    assert!(!is_marked);
    standing.send_replace(Role::Suspended {
        reason: "the lease is not renewed".to_owned(),
    });
    let (is_marked, stale) = state().await;
    assert!(is_marked);
    assert_ne!(stale, fresh);
    standing.send_replace(Role::Leading);
    let known = [("If-None-Match", stale.to_str().unwrap())];
    let again = send(&router, "GET", "/weights", &known, "").await;
    assert_status(again, StatusCode::OK);
}
