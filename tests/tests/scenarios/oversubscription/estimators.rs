//! Oversubscribed resources: a fixed amount or the measured slack, for frameworks that accept them, over restarts.

use meseta_tests::revocable::{
    amount, is_revocable, revocable_framework, revocable_task, wait_for_revocable_offer,
};
use meseta_tests::{Cluster, kernel, wait};
use serde_json::json;

use super::{IDLE, PATIENCE, asleep, cluster, fixed_flags, machine, metric, set, slack_flags};

pub(super) fn fixed_estimate_goes_to_revocable_frameworks() {
    let cluster = cluster(fixed_flags());
    let mut plain = cluster.framework();
    let offer = plain.offer();
    assert_eq!(amount(&offer, "cpus", false), 4.0, "{offer:#}");
    assert!(
        offer["resources"]
            .as_array()
            .expect("resources")
            .iter()
            .all(|r| !is_revocable(r)),
        "{offer:#}"
    );
    plain.teardown();

    let mut revocable_framework = revocable_framework(&cluster);
    let offer = wait_for_revocable_offer(&mut revocable_framework);
    let resources = offer["resources"].as_array().expect("resources");
    let oversubscribed: Vec<_> = resources.iter().filter(|r| is_revocable(r)).collect();
    assert_eq!(oversubscribed.len(), 1, "{offer:#}");
    assert_eq!(oversubscribed[0]["revocable"], json!({}));
    assert_eq!(oversubscribed[0]["scalar"]["value"], json!(14.0));
    assert_eq!(
        amount(&offer, "cpus", false),
        4.0,
        "beside the regular ones: {offer:#}"
    );

    let master = |path: &str| cluster.master.page(path).json();
    for agent in [
        &master("/slaves")["slaves"][0],
        &master("/state")["slaves"][0],
    ] {
        assert_eq!(
            agent["resources"]["cpus_revocable"],
            json!(14.0),
            "{agent:#}"
        );
        assert_eq!(agent["resources"]["cpus"], json!(4.0), "{agent:#}");
    }
    assert_eq!(
        master("/metrics/snapshot")["master/cpus_revocable_total"],
        json!(14.0)
    );
    let agent = cluster.agent().page("/metrics/snapshot").json();
    assert_eq!(agent["slave/cpus_revocable_total"], json!(14.0));
    assert_eq!(
        metric(&cluster, "meseta_agent_revocable_resources{name=\"cpus\"}"),
        Some(14.0)
    );

    // The task uses 10 of them, and the total stays the same: no report is repeated.
    let task = revocable_task(&offer, "borrowed", "sleep 600", 10.0);
    revocable_framework.launch(&offer, &[task]);
    revocable_framework.until_state("borrowed", "TASK_RUNNING");
    let rest = wait_for_revocable_offer(&mut revocable_framework);
    assert_eq!(amount(&rest, "cpus", true), 4.0, "{rest:#}");
    assert_eq!(
        master("/metrics/snapshot")["master/cpus_revocable_used"],
        json!(10.0)
    );
    let role = master("/roles")["roles"]
        .as_array()
        .and_then(|all| all.iter().find(|role| role["name"] == "batch").cloned())
        .expect("the role");
    assert_eq!(role["allocated"]["cpus"], json!(10.0), "{role:#}");
    let charged = role["quota"]["consumed"]["cpus"].as_f64().unwrap_or(0.0);
    assert_eq!(
        charged, 0.0,
        "what is oversubscribed counts towards no quota: {role:#}"
    );
    assert_eq!(
        metric(&cluster, "meseta_agent_oversubscribed_updates_total"),
        Some(1.0)
    );

    // Oversubscribed resources can neither be reserved nor mixed with regular ones.
    let mut mixed = revocable_task(&rest, "mixed", "true", 1.0);
    let plain = json!({"name": "cpus", "type": "SCALAR", "scalar": {"value": 1.0},
                       "allocation_info": {"role": "batch"}});
    mixed["resources"]
        .as_array_mut()
        .expect("resources")
        .push(plain);
    revocable_framework.launch(&rest, &[mixed]);
    let status = revocable_framework.update("mixed");
    assert_eq!(status["state"], "TASK_ERROR", "{status:#}");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("Cannot use both revocable and non-revocable 'cpus'"),
        "{message}"
    );
    revocable_framework.teardown();
}

pub(super) fn revocable_tasks_survive_restarts() {
    let mut cluster = cluster(fixed_flags());
    let mut revocable_framework = revocable_framework(&cluster);
    let offer = wait_for_revocable_offer(&mut revocable_framework);
    revocable_framework.launch(
        &offer,
        &[revocable_task(&offer, "b", "exec sleep 600", 10.0)],
    );
    revocable_framework.until_state("b", "TASK_RUNNING");
    let before = kernel::tasks_below(&cluster.cgroups_root);
    assert_eq!(before.len(), 1);
    let total = |cluster: &Cluster| {
        wait::eventually("the total is told", PATIENCE, || {
            let agents = cluster.master.page("/slaves").json();
            let agent = &agents["slaves"][0];
            let told = agent["resources"]["cpus_revocable"] == json!(14.0)
                && agent["used_resources"]["cpus_revocable"] == json!(10.0);
            told.then_some(())
        });
    };
    total(&cluster);
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    total(&cluster);
    cluster.restart_master();
    cluster.wait_for_agents(1);
    total(&cluster);
    assert_eq!(
        kernel::tasks_below(&cluster.cgroups_root),
        before,
        "it goes on"
    );
}

pub(super) fn slack_is_oversubscribed_within_two_intervals() {
    let dir = tempfile::tempdir().expect("a folder");
    let proc = machine(dir.path());
    // Other processes here would reduce the slack.
    set(&proc, "stat", IDLE);
    let cluster = cluster(slack_flags(&proc));
    let _regular = asleep(&cluster);
    let mut revocable_framework = revocable_framework(&cluster);
    // It grows by steps, each of which rescinds the offer of the step before.
    wait::eventually("what the agent says is offered", PATIENCE, || {
        let offer = wait_for_revocable_offer(&mut revocable_framework);
        let oversubscribed = amount(&offer, "cpus", true);
        assert!(
            oversubscribed > 0.0 && oversubscribed <= 2.0,
            "no more than was promised and not used: {oversubscribed}"
        );
        let total = cluster.agent().page("/state").json();
        let said = &total["oversubscribed_resources"]["cpus_revocable"];
        (*said == json!(oversubscribed)).then_some(())
    });
    wait::eventually("the slack is told", PATIENCE, || {
        let slack = metric(&cluster, "meseta_agent_oversubscribed_slack{name=\"cpus\"}");
        slack.filter(|slack| *slack > 1.0)
    });
}
