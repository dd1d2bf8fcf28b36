//! What operators have laid down outlives the master, and changes under load lose and double nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use meseta_tests::framework::framework_info;
use meseta_tests::{Cluster, Framework, http, wait};
use serde_json::{Value, json};

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        everything_laid_down_outlives_a_kill_of_the_master,
        changes_under_load_lose_and_double_nothing;
}

const LIMIT: Duration = Duration::from_secs(40);

fn page(cluster: &Cluster, path: &str) -> Value {
    cluster.master.page(path).json()
}

fn call(cluster: &Cluster, kind: &str, body: Value) {
    let url = format!("{}/api/v1", cluster.master.url);
    let answer = http::post_json(&url, &json!({"type": kind, kind.to_lowercase(): body}));
    assert!(
        answer.status == 200 || answer.status == 202,
        "{kind}: {}",
        answer.text()
    );
}

fn laid_down(cluster: &Cluster) -> Value {
    let slaves = page(cluster, "/slaves");
    let of_agents: Vec<_> = slaves["slaves"]
        .as_array()
        .expect("agents")
        .iter()
        .map(|agent| json!({"id": agent["id"], "deactivated": agent["deactivated"], "drain": agent["drain_info"],
                            "reserved": agent["reserved_resources"]}))
        .collect();
    json!({"quota": page(cluster, "/quota"), "weights": page(cluster, "/weights"),
           "schedule": page(cluster, "/maintenance/schedule"), "status": page(cluster, "/maintenance/status"),
           "agents": of_agents})
}

fn registered(cluster: &Cluster, count: usize) {
    wait::eventually("the agents are back", LIMIT, || {
        let slaves = page(cluster, "/slaves");
        let all = slaves["slaves"].as_array()?;
        (all.len() == count).then_some(())
    });
}

fn everything_laid_down_outlives_a_kill_of_the_master() {
    let mut cluster = Cluster::with_agents(2);
    let slaves = page(&cluster, "/slaves");
    let id = |index: usize| slaves["slaves"][index]["id"].clone();
    call(
        &cluster,
        "SET_QUOTA",
        json!({"quota_request": {"role": "dev", "guarantee": [
        {"name": "cpus", "type": "SCALAR", "scalar": {"value": 1}}]}}),
    );
    call(
        &cluster,
        "UPDATE_WEIGHTS",
        json!({"weight_infos": [{"role": "ops", "weight": 3.0}]}),
    );
    call(
        &cluster,
        "RESERVE_RESOURCES",
        json!({"agent_id": {"value": id(0)}, "resources": [
        {"name": "cpus", "type": "SCALAR", "scalar": {"value": 1},
         "reservations": [{"type": "DYNAMIC", "role": "ads"}]}]}),
    );
    call(
        &cluster,
        "UPDATE_MAINTENANCE_SCHEDULE",
        json!({"schedule": {"windows": [
        {"machine_ids": [{"hostname": "elsewhere"}, {"hostname": "away"}],
         "unavailability": {"start": {"nanoseconds": 1_900_000_000_000_000_000_u64}}}]}}),
    );
    call(
        &cluster,
        "START_MAINTENANCE",
        json!({"machines": [{"hostname": "away"}]}),
    );
    call(
        &cluster,
        "DRAIN_AGENT",
        json!({"agent_id": {"value": id(0)}}),
    );
    call(
        &cluster,
        "DEACTIVATE_AGENT",
        json!({"agent_id": {"value": id(1)}}),
    );
    wait::eventually(
        "the agent is drained and has what is reserved",
        LIMIT,
        || {
            let agents = laid_down(&cluster)["agents"].clone();
            let agents = agents.as_array()?;
            let drained = agents
                .iter()
                .any(|agent| agent["drain"]["state"] == "DRAINED");
            let reserved = agents
                .iter()
                .any(|agent| agent["reserved"]["ads"]["cpus"] == 1.0);
            (drained && reserved).then_some(())
        },
    );
    let before = laid_down(&cluster);
    for _ in 0..2 {
        cluster.restart_master();
        registered(&cluster, 2);
        wait::eventually("everything is as it was", LIMIT, || {
            (laid_down(&cluster) == before).then_some(())
        });
    }
    // In force, not only shown: neither agent is offered until it is active again.
    let mut framework = cluster.subscribe(&framework_info("dev"));
    let offered = framework.within(Duration::from_secs(2), &|event: &Value| {
        event["type"] == "OFFERS"
    });
    assert!(offered.is_err(), "{offered:?}");
    call(
        &cluster,
        "REACTIVATE_AGENT",
        json!({"agent_id": {"value": id(1)}}),
    );
    let offer = framework.offer();
    assert_eq!(offer["agent_id"]["value"], id(1));
    let cpus = offer["resources"].as_array().expect("resources").iter();
    let cpus = cpus
        .filter(|one| one["name"] == "cpus")
        .filter_map(|one| one["scalar"]["value"].as_f64());
    assert!(
        (cpus.sum::<f64>() - 1.0).abs() < 1e-9,
        "no more than the quota: {offer:#}"
    );
}

/// Total of a resource of each agent: free, offered and used together must never be more.
fn state_is_consistent(cluster: &Cluster) {
    let slaves = page(cluster, "/slaves");
    for agent in slaves["slaves"].as_array().expect("agents") {
        for name in ["cpus", "mem", "disk"] {
            let amount = |key: &str| agent[key][name].as_f64().unwrap_or_default();
            let in_use = amount("used_resources") + amount("offered_resources");
            assert!(in_use <= amount("resources") + 1e-6, "{name}: {agent:#}");
            let reserved = agent["reserved_resources"]
                .as_object()
                .into_iter()
                .flatten();
            let reserved: f64 = reserved.filter_map(|(_, one)| one[name].as_f64()).sum();
            let split = reserved + amount("unreserved_resources");
            assert!(
                (split - amount("resources")).abs() < 1e-6,
                "{name}: {agent:#}"
            );
        }
    }
    let metrics = cluster.master.page("/metrics").text();
    assert!(
        metrics.contains("\nmeseta_master_invariant_violations_total 0\n"),
        "{metrics}"
    );
}

/// An operator that changes settings all the time; refusals are valid answers.
fn change(cluster: &Cluster, round: usize, agent: &Value) {
    let url = format!("{}/api/v1", cluster.master.url);
    let one = json!({"name": "cpus", "type": "SCALAR", "scalar": {"value": 0.5},
                     "reservations": [{"type": "DYNAMIC", "role": "dev"}]});
    let reservation = json!({"agent_id": {"value": agent}, "resources": [one]});
    let weight = if round.is_multiple_of(2) { 2.0 } else { 0.5 };
    let calls = [
        json!({"type": "SET_QUOTA", "set_quota": {"quota_request": {"role": "dev", "force": true, "guarantee": [
            {"name": "cpus", "type": "SCALAR", "scalar": {"value": 2}}]}}}),
        json!({"type": "RESERVE_RESOURCES", "reserve_resources": reservation}),
        json!({"type": "UPDATE_WEIGHTS", "update_weights": {"weight_infos": [{"role": "dev", "weight": weight}]}}),
        json!({"type": "UNRESERVE_RESOURCES", "unreserve_resources": reservation}),
        json!({"type": "REMOVE_QUOTA", "remove_quota": {"role": "dev"}}),
    ];
    for call in calls {
        // The master may be on its way down or up.
        if let Ok(answer) = http::try_post(
            &url,
            &[("content-type", "application/json")],
            call.to_string().as_bytes(),
        ) {
            assert!(
                [200, 202, 400, 409, 503].contains(&answer.status),
                "{call}: {}",
                answer.text()
            );
        }
    }
}

fn changes_under_load_lose_and_double_nothing() {
    let mut cluster = Cluster::with_agents(2);
    let slaves = page(&cluster, "/slaves");
    let totals = |slaves: &Value| {
        let all = slaves["slaves"].as_array().expect("agents").iter();
        all.map(|agent| agent["resources"].clone())
            .collect::<Vec<_>>()
    };
    let before = totals(&slaves);
    let agent = slaves["slaves"][0]["id"].clone();
    for kill in 0..2 {
        let framework = cluster.subscribe(&framework_info("dev"));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| run_tasks(framework, kill, &is_over));
            for round in 0..8 {
                change(&cluster, round, &agent);
                state_is_consistent(&cluster);
            }
            is_over.store(true, Ordering::Release);
        });
        cluster.restart_master();
        registered(&cluster, 2);
        state_is_consistent(&cluster);
    }
    // Whatever was still under way is over or taken back, and all is there as at the beginning.
    for _ in 0..2 {
        change(&cluster, 0, &agent);
    }
    wait::eventually("everything is free again", LIMIT, || {
        let slaves = page(&cluster, "/slaves");
        let all = slaves["slaves"].as_array()?;
        let idle = all.iter().all(|agent| {
            agent["used_resources"]["cpus"] == 0.0 && agent["offered_resources"]["cpus"] == 0.0
        });
        (idle && totals(&slaves) == before).then_some(())
    });
    state_is_consistent(&cluster);
}

/// Launches short tasks on whatever is offered, and ends with the framework's teardown.
fn run_tasks(mut framework: Framework, kill: usize, is_over: &AtomicBool) {
    let mut number = 0;
    while !is_over.load(Ordering::Acquire) {
        let matches = |event: &Value| event["type"] == "OFFERS" || event["type"] == "UPDATE";
        let Ok(event) = framework.within(Duration::from_millis(200), &matches) else {
            continue;
        };
        if event["type"] == "UPDATE" {
            framework.acknowledge(&event["update"]["status"]);
            continue;
        }
        for offer in event["offers"]["offers"].as_array().expect("offers") {
            let cpus = offer["resources"].as_array().expect("resources").iter();
            let free =
                cpus.filter(|one| one["name"] == "cpus" && one.get("reservations").is_none());
            let free: f64 = free.filter_map(|one| one["scalar"]["value"].as_f64()).sum();
            if free < 0.2 {
                framework.decline(offer, 0.0);
                continue;
            }
            number += 1;
            framework.launch_task(
                offer,
                &format!("t-{kill}-{number}"),
                "true",
                &[("cpus", 0.1), ("mem", 32.0)],
            );
        }
    }
    framework.teardown();
}
