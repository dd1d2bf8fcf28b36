//! Policies of operators: draining, and all settings that outlive the master.

use std::time::Duration;

use meseta_tests::framework::framework_info;
use meseta_tests::{Cluster, wait};
use serde_json::{Value, json};

use crate::anywhere;
use crate::enforcement::standing_offer;

meseta_tests::scenarios! {
    anywhere:
        a_drained_agent_ends_its_tasks,
        policies_survive_master_kill;
}

const LIMIT: Duration = Duration::from_secs(40);

fn page(cluster: &Cluster, path: &str) -> Value {
    cluster.master.page(path).json()
}

fn call(cluster: &Cluster, kind: &str, body: Value) {
    let answer = cluster.operate(kind, &body);
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

fn a_drained_agent_ends_its_tasks() {
    let cluster = Cluster::default();
    let id = json!({"value": cluster.agent_id()});
    let drain = |seconds: i64| {
        let part = json!({"agent_id": id, "max_grace_period": {"seconds": seconds}});
        let answer = cluster.operate("DRAIN_AGENT", &part);
        (answer.status, answer.text())
    };
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let stubborn = "trap '' TERM; echo up; while :; do sleep 0.1; done";
    framework.run_task(&offer, "t1", stubborn, &[("cpus", 0.1), ("mem", 32.0)]);
    assert_eq!(drain(1), (200, String::new()));
    let config = json!({"max_grace_period": {"nanoseconds": 1_000_000_000}, "mark_gone": false});
    // The drain lasts until the end of the task is acknowledged.
    wait::eventually("the agent says that it is drained", LIMIT, || {
        let state = cluster.agents[0].page("/state").json();
        let since = state["estimated_drain_start_time_seconds"].as_f64();
        (state["drain_config"] == config && since > Some(1.7e9)).then_some(())
    });
    let killed = framework.until_state("t1", "TASK_KILLED");
    assert_eq!(killed["reason"], "REASON_AGENT_DRAINING", "{killed}");
    let drained = json!({"state": "DRAINED", "config": config});
    wait::eventually("the agent is drained", LIMIT, || {
        let slaves = page(&cluster, "/slaves");
        (slaves["slaves"][0]["drain_info"] == drained).then_some(())
    });
    call(&cluster, "REACTIVATE_AGENT", json!({"agent_id": id}));
    // The drain rescinded the earlier offers.
    standing_offer(&mut framework);
    let text = "Failed to drain agent: 'max_grace_period' must not be negative";
    assert_eq!(drain(-1), (400, text.to_owned()));
}

fn policies_survive_master_kill() {
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
    // The setting is in force, not only shown: neither agent is offered until it is active again.
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
