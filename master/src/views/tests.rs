//! Views of a large cluster, whole and in parts.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use http_body_util::BodyExt as _;
use meseta_access::Approver;
use meseta_daemon::query::Query;
use meseta_proto::convert::parse_resources;
use meseta_proto::mesos::v1::{self, TaskStatus};
use meseta_resources::time::{Moment, Now};
use meseta_resources::{
    AgentId, ExecutorId, FrameworkId, ResourceName, Resources, Role, Scalar, TaskId,
};
use prost::Message as _;

use super::*;
use crate::chunked_response::{Renderer, rendered_bytes};
use crate::core::{
    AgentDigest, AgentProfile, Capabilities, Config, ExecutorRecord, MasterCore, Recovered,
    StatusRecord, TaskRecord,
};
use crate::metrics::{Measured, Metrics};

fn resources(text: &str) -> Resources {
    parse_resources(text, &Role::star()).unwrap()
}

fn framework_id(number: usize) -> FrameworkId {
    FrameworkId::new(&format!("m-{number:04}")).unwrap()
}

fn agent_id(number: usize) -> AgentId {
    AgentId::new(&format!("m-S{number:05}")).unwrap()
}

pub(crate) fn task(
    framework: usize,
    agent: usize,
    name: &str,
    state: TaskState,
) -> Arc<TaskRecord> {
    let status = TaskStatus {
        state: state.into(),
        timestamp: Some(1_795_226_383.25),
        ..TaskStatus::default()
    };
    let description = v1::Task {
        name: format!("{name} of \"{framework}\""),
        ..v1::Task::default()
    };
    Arc::new(TaskRecord {
        task_id: TaskId::new(name).unwrap(),
        framework_id: framework_id(framework),
        agent_id: agent_id(agent),
        is_launched: true,
        executor_id: None,
        role: Role::new("dev").unwrap(),
        resources: resources("cpus:0.5;mem:64"),
        state,
        update_state: Some(state),
        update_uuid: None,
        statuses: vec![StatusRecord {
            state,
            encoded: status.encode_to_vec().into(),
        }],
        user: None,
        shares_groups: true,
        description: description.encode_to_vec().into(),
        unreachable_since: None,
    })
}

fn agent(number: usize, frameworks: usize, tasks: usize) -> AgentView {
    let mut table = BTreeMap::new();
    for task_number in 0..tasks {
        let framework = (number + task_number) % frameworks;
        let name = format!("t-{number}-{task_number}");
        let record = task(framework, number, &name, TaskState::TaskRunning);
        let key = (record.framework_id.clone(), record.task_id.clone());
        table.insert(key, record);
    }
    let framework = framework_id(number % frameworks);
    let executor = ExecutorRecord {
        executor_id: ExecutorId::new("e").unwrap(),
        framework_id: framework.clone(),
        agent_id: agent_id(number),
        resources: resources("cpus:0.1"),
        user: None,
        info: v1::ExecutorInfo::default().encode_to_vec().into(),
        compared_bytes: 0,
    };
    let executors = [(
        (framework.clone(), executor.executor_id.clone()),
        Arc::new(executor),
    )];
    AgentView {
        profile: Arc::new(AgentProfile {
            info_bytes: 0,
            bytes: 0,
            reserved_bytes: 0,
            frame_bytes_max: 0,
            id: agent_id(number),
            info: v1::AgentInfo::default(),
            version: "0.1.0".to_owned(),
            capabilities: Vec::new(),
            address: v1::Address::default(),
            total: resources("cpus:8;mem:4096;ports:[31000-32000]"),
        }),
        connected: true,
        deactivation: None,
        registered: Duration::from_secs(1),
        reregistered: None,
        tasks: Arc::new(table),
        executors: Arc::new(executors.into()),
        operations: Arc::default(),
        used: Arc::new(BTreeMap::from([(framework, resources("cpus:0.5;mem:64"))])),
        offered: Resources::new(),
        inverse_replies: BTreeMap::new(),
        digest: AgentDigest::default(),
    }
}

fn framework(number: usize, completed: usize, unreachable: usize) -> FrameworkView {
    let records = |what: &str, count: usize, state| -> Arc<VecDeque<Arc<TaskRecord>>> {
        let record = |at| task(number, at, &format!("{what}-{at}"), state);
        Arc::new((0..count).map(record).collect())
    };
    FrameworkView {
        id: framework_id(number),
        info: Arc::new(v1::FrameworkInfo {
            name: format!("name \"{number}\""),
            ..v1::FrameworkInfo::default()
        }),
        capabilities: Capabilities::default(),
        roles: [Role::new("dev").unwrap()].into(),
        suppressed: [].into(),
        offer_constraints: None,
        active: true,
        connected: true,
        recovered: false,
        registered: Duration::from_secs(2),
        reregistered: None,
        unregistered: None,
        completed: records("done", completed, TaskState::TaskFinished),
        unreachable: records("lost", unreachable, TaskState::TaskUnreachable),
        counters: Arc::default(),
    }
}

/// A cluster with these numbers of agents and frameworks; every third framework has nothing, and the first very much.
pub(crate) fn many_frameworks(agents: usize, frameworks: usize) -> Arc<Snapshot> {
    let identity = Identity {
        id: "m".to_owned(),
        hostname: "master.example".to_owned(),
        ip: std::net::Ipv4Addr::LOCALHOST.into(),
        port: 5050,
        cluster: None,
        version: "1.12.0".to_owned(),
        build: Default::default(),
        domain: None,
    };
    let now = Now {
        moment: Moment::ORIGIN,
        unix: Duration::from_secs(1_795_226_383),
    };
    let mut core = MasterCore::new(Config::new(identity), Recovered::default(), now);
    let mut snapshot =
        crate::view_filter::filtered_snapshot(&core.snapshot(), &Approver::default());
    let agent = |number| Arc::new(agent(number, frameworks.div_ceil(2), 3));
    snapshot.agents = Arc::new((0..agents).map(agent).collect());
    let view = |number: usize| {
        let some = number % 3;
        let many = if number == 0 { 1_000 } else { some };
        Arc::new(framework(number, many, 2 * some))
    };
    snapshot.frameworks = Arc::new((0..frameworks).map(view).collect());
    snapshot.completed_frameworks = vec![view(frameworks), view(frameworks + 1)];
    Arc::new(snapshot)
}

fn documents(snapshot: &Arc<Snapshot>) -> Vec<(&'static str, Document)> {
    let all = Query::parse("limit=-1");
    let paging = Paging::from_query(&all).unwrap();
    let none = Query::default();
    vec![
        ("state", state(snapshot, None)),
        ("summary", summary(snapshot, true)),
        (
            "slaves",
            slaves(snapshot, AgentSelection::from_query(&none, &paging)),
        ),
        ("frameworks", frameworks(snapshot, None, true)),
        ("one framework", frameworks(snapshot, Some("m-0001"), true)),
        ("tasks", tasks(snapshot, &all, &paging)),
        (
            "metrics",
            Metrics::document(
                &Arc::default(),
                &Measured::from_snapshot(snapshot.clone()),
                true,
            ),
        ),
        ("roles", roles(snapshot)),
        ("quotas", quotas(snapshot)),
        ("weights", weight_list(snapshot)),
        ("schedule", schedule_list(snapshot)),
        ("maintenance", status_list(snapshot)),
    ]
}

/// Removes the system's own figures, which change between two answers.
fn steady(body: &[u8]) -> serde_json::Value {
    let mut body: serde_json::Value = serde_json::from_slice(body).unwrap();
    if let Some(object) = body.as_object_mut() {
        object.retain(|key, _| !key.starts_with("system/"));
    }
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn parallel_rendering_equals_serial_rendering() {
    let renderer = Renderer::default();
    for (agents, frameworks) in [(0, 1), (1, 1), (700, 200)] {
        let snapshot = many_frameworks(agents, frameworks);
        let documents = documents(&snapshot).into_iter().zip(documents(&snapshot));
        for ((name, parallel), (_, serial)) in documents {
            let reader = renderer
                .admit(&meseta_daemon::authentication::Caller::default())
                .await
                .unwrap();
            let body = renderer.answer(parallel, reader).await.unwrap();
            let rendered = body.collect().await.unwrap().to_bytes();
            let expected = rendered_bytes(serial);
            if name != "metrics" {
                assert!(rendered == expected, "{name} of {agents} agents");
            }
            assert_eq!(
                steady(&rendered),
                steady(&expected),
                "{name} of {agents} agents"
            );
        }
    }
}

#[test]
fn partial_renderings_concatenate_to_whole() {
    let snapshot = many_frameworks(4, 5);
    let row = Frameworks::row(&snapshot, snapshot.frameworks[1..].to_vec(), true);
    let mut all = Vec::new();
    row.render(0..row.len(), &mut all);
    for cut in 0..=row.len() {
        for other in [cut, row.len().min(cut + 3)] {
            let mut parts = Vec::new();
            for range in [0..cut, cut..other, other..row.len()] {
                row.render(range, &mut parts);
            }
            assert!(parts == all, "cut at {cut} and {other}");
        }
    }
}

#[test]
fn every_task_appears_in_its_list() {
    let mut snapshot = Arc::try_unwrap(many_frameworks(40, 6)).unwrap();
    snapshot.recovered_agents = vec![(agent_id(40), Arc::default())];
    let agents = Arc::get_mut(&mut snapshot.agents).unwrap();
    Arc::get_mut(&mut agents[0]).unwrap().offered = resources("cpus:2;mem:64");
    let snapshot = Arc::new(snapshot);
    let rendered = steady(&rendered_bytes(state(&snapshot, None)));
    let frameworks = rendered["frameworks"].as_array().unwrap();
    let count = |list: &str| -> Vec<usize> {
        let lists = frameworks
            .iter()
            .map(|one| one[list].as_array().unwrap().len());
        lists.collect()
    };
    assert_eq!(count("tasks").iter().sum::<usize>(), 40 * 3);
    assert_eq!(count("tasks")[3..], [0, 0, 0]);
    assert_eq!(count("completed_tasks"), [1_000, 1, 2, 0, 1, 2]);
    assert_eq!(count("unreachable_tasks"), [0, 2, 4, 0, 2, 4]);
    assert_eq!(count("executors").iter().sum::<usize>(), 40);
    assert_eq!(
        rendered["completed_frameworks"].as_array().unwrap().len(),
        2
    );
    let first = &frameworks[1]["unreachable_tasks"][1];
    assert_eq!(first["id"], "lost-1");
    assert_eq!(first["name"], "lost-1 of \"1\"");
    let summary = steady(&rendered_bytes(summary(&snapshot, true)));
    let of_first = &summary["frameworks"][0];
    assert_eq!(of_first["TASK_RUNNING"], count("tasks")[0]);
    assert_eq!(of_first["TASK_FINISHED"], 1_000);
    assert_eq!(of_first["slave_ids"].as_array().unwrap().len(), 40);
    let metrics = |has_frameworks| {
        let measured = Measured::from_snapshot(snapshot.clone());
        Metrics::document(&Arc::default(), &measured, has_frameworks)
    };
    let without = steady(&rendered_bytes(metrics(false)));
    assert_eq!(without["master/tasks_running"], 120.0);
    assert_eq!(without["master/slaves_recovered"], 1.0);
    assert_eq!(without["master/cpus_offered"], 2.0);
    assert_eq!(without["master/cpus_revocable_offered"], 0.0);
    let keys = without.as_object().unwrap().keys();
    assert_eq!(keys.filter(|key| key.contains("m-0000")).count(), 0);
    let metrics = steady(&rendered_bytes(metrics(true)));
    assert_eq!(metrics["master/tasks_running"], 120.0);
    let key = "master/frameworks/name%20%220%22/m-0000/tasks/active/task_running";
    assert_eq!(metrics[key], count("tasks")[0] as f64);
    let key = "master/frameworks/name%20%220%22/m-0000/roles/dev/suppressed";
    assert_eq!(metrics[key], 0.0);
}

#[test]
fn task_page_is_slice_of_list() {
    let snapshot = many_frameworks(40, 6);
    let ids = |query: &str| -> Vec<String> {
        let query = Query::parse(query);
        let paging = Paging::from_query(&query).unwrap();
        let page = steady(&rendered_bytes(tasks(&snapshot, &query, &paging)));
        let id = |task: &serde_json::Value| format!("{} {}", task["id"], task["framework_id"]);
        page["tasks"].as_array().unwrap().iter().map(id).collect()
    };
    let all = ids("limit=-1&order=asc");
    assert!(all.len() > 1_000);
    for order in ["asc", "desc"] {
        let mut expected = all.clone();
        if order == "desc" {
            expected.reverse();
        }
        for (offset, limit) in [
            (0, 1),
            (0, 7),
            (100, 50),
            (all.len() - 3, 10),
            (all.len(), 5),
        ] {
            let page = ids(&format!("limit={limit}&offset={offset}&order={order}"));
            let end = all.len().min(offset + limit);
            assert_eq!(page, expected[offset..end], "{order} {offset} {limit}");
        }
    }
    assert_eq!(ids("task_id=t-3-1").len(), 1);
}

#[test]
fn role_and_machine_lists_match_calls() {
    let json = |document| steady(&rendered_bytes(document));
    let empty = many_frameworks(0, 0);
    let none = [
        quotas(&empty),
        schedule_list(&empty),
        status_list(&empty),
        weight_list(&empty),
    ];
    assert_eq!(
        none.map(|document| json(document).to_string()),
        ["{}", "{}", "{}", "[]"]
    );
    let mut snapshot = Arc::try_unwrap(many_frameworks(3, 2)).unwrap();
    let role = |number| Role::new(&format!("r{number}")).unwrap();
    snapshot.weights = (0..300).map(|number| (role(number), 2.5)).collect();
    let amount = (
        ResourceName::new("cpus").unwrap(),
        Scalar::from_f64(2.0).unwrap(),
    );
    let quota = meseta_allocator::Quota {
        guarantees: [amount.clone()].into_iter().collect(),
        limits: [amount].into_iter().collect(),
        legacy: false,
    };
    snapshot.quotas = Arc::new((0..300).map(|n| (role(n), quota.clone())).collect());
    let machine = |number: usize| v1::MachineId {
        hostname: Some(format!("node{number}")),
        ..v1::MachineId::default()
    };
    let window = v1::maintenance::Window {
        machine_ids: (0..300).map(machine).collect(),
        ..v1::maintenance::Window::default()
    };
    let maintenance = Arc::make_mut(&mut snapshot.maintenance);
    maintenance.schedule.windows = vec![window.clone(), window];
    maintenance.down = (0..3).map(machine).collect();
    let snapshot = Arc::new(snapshot);
    let configs = serde_json::to_value(quota_status(&snapshot).configs).unwrap();
    let shown = json(quotas(&snapshot));
    assert_eq!(shown["configs"], configs);
    assert_eq!(shown["infos"].as_array().unwrap().len(), 300);
    let expected = serde_json::to_value(weights(&snapshot)).unwrap();
    assert_eq!(json(weight_list(&snapshot)), expected);
    let expected = serde_json::to_value(maintenance_schedule(&snapshot)).unwrap();
    assert_eq!(json(schedule_list(&snapshot)), expected);
    let expected = serde_json::to_value(maintenance_status(&snapshot)).unwrap();
    assert_eq!(expected["down_machines"].as_array().unwrap().len(), 3);
    assert_eq!(json(status_list(&snapshot)), expected);
    let shown = json(roles(&snapshot));
    let shown = shown["roles"].as_array().unwrap();
    let names = shown.iter().map(|role| role["name"].as_str().unwrap());
    let expected: Vec<Role> = tallies(&snapshot).into_keys().collect();
    assert!(names.eq(expected.iter().map(Role::as_str)));
    let dev = shown.iter().find(|role| role["name"] == "dev").unwrap();
    assert_eq!(dev["frameworks"], serde_json::json!(["m-0000", "m-0001"]));
}
