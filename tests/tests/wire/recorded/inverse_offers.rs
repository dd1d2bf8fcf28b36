//! Maintenance from the view of frameworks: offers with their end, inverse offers, and the visible answers.

use std::time::Duration;

use meseta_tests::framework::framework_info;
use meseta_tests::recording::Events;
use meseta_tests::{Cluster, Encoding, Framework, http};
use serde_json::{Value, json};

use crate::{anywhere, recorded};

meseta_tests::scenarios! {
    anywhere:
        inverse_offer_matches_recording,
        maintenance_status_shows_answers;
}

/// Schedules all machines, or no machine.
fn schedule(cluster: &Cluster, windows: &Value) {
    let url = format!("{}/maintenance/schedule", cluster.master.url);
    let answer = http::post_json(&url, &json!({"windows": windows}));
    assert_eq!((answer.status, answer.text().as_str()), (200, ""));
}

fn window() -> Value {
    json!([{"machine_ids": [{"hostname": "127.0.0.1", "ip": "127.0.0.1"}],
        "unavailability": {"start": {"nanoseconds": 1_900_000_000_000_000_000_u64},
            "duration": {"nanoseconds": 3_600_000_000_000_u64}}}])
}

fn status(cluster: &Cluster) -> Value {
    cluster.master.page("/maintenance/status").json()
}

/// The recorded stream: RESCIND, OFFERS with their end, INVERSE_OFFERS, and back.
fn inverse_offer_matches_recording() {
    let cluster = recorded::cluster();
    let recorded = Events::read("scheduler-events.jsonl");
    let info = json!({"user": "root", "name": "golden"});
    let url = cluster.scheduler_url();
    let mut framework = Framework::subscribe(&url, Encoding::Json, &info);
    let offers = framework.wait_for("OFFERS");
    recorded.compare("offers of one role", &offers, &[]);
    schedule(&cluster, &window());
    let rescinded = framework.wait_for("RESCIND");
    recorded.compare("rescind", &rescinded, &[]);
    let first = &offers["offers"]["offers"][0]["id"];
    assert_eq!(&rescinded["rescind"]["offer_id"], first);
    let offers = framework.wait_for("OFFERS");
    let place = "/offers/offers/0/unavailability";
    recorded.compare("offers with unavailability", &offers, &[place]);
    let asked = framework.wait_for("INVERSE_OFFERS");
    let texts = [
        "/inverse_offers/inverse_offers/0/unavailability",
        "/inverse_offers/inverse_offers/0/url/path",
    ];
    recorded.compare("inverse offers", &asked, &texts);
    schedule(&cluster, &json!([]));
    let second = &offers["offers"]["offers"][0]["id"];
    assert_eq!(
        &framework.wait_for("RESCIND")["rescind"]["offer_id"],
        second
    );
    let taken_back = framework.wait_for("RESCIND_INVERSE_OFFER");
    recorded.compare("rescind inverse offer", &taken_back, &[]);
    let inverse = &asked["inverse_offers"]["inverse_offers"][0]["id"];
    let id = &taken_back["rescind_inverse_offer"]["inverse_offer_id"];
    assert_eq!(id, inverse);
    let offers = framework.wait_for("OFFERS");
    recorded.compare("offers of one role", &offers, &[]);
}

/// Responds to the next inverse offer.
fn answer(framework: &mut Framework, kind: &str, refuse_seconds: f64) -> Value {
    let event = framework.wait_for("INVERSE_OFFERS");
    let offer = event["inverse_offers"]["inverse_offers"][0].clone();
    let key = kind.to_lowercase();
    let mut call = json!({"type": kind});
    call[key] = json!({"inverse_offer_ids": [offer["id"]],
        "filters": {"refuse_seconds": refuse_seconds}});
    framework.accepted(call);
    offer
}

/// Returns a framework's answer, as operators see it on the page and by the call.
fn seen(cluster: &Cluster, framework: &Framework) -> Vec<String> {
    let page = status(cluster);
    let url = format!("{}/api/v1", cluster.master.url);
    let called = http::post_json(&url, &json!({"type": "GET_MAINTENANCE_STATUS"})).json();
    assert_eq!(called["get_maintenance_status"]["status"], page);
    let shown = &page["draining_machines"][0];
    assert_eq!(
        shown["id"],
        json!({"hostname": "127.0.0.1", "ip": "127.0.0.1"})
    );
    let all = shown["statuses"].as_array().cloned().unwrap_or_default();
    let own = all
        .iter()
        .filter(|one| one["framework_id"]["value"] == framework.id.as_str());
    own.map(|one| {
        assert!(one["timestamp"]["nanoseconds"].is_u64(), "{one}");
        one["status"].as_str().expect("a status").to_owned()
    })
    .collect()
}

fn maintenance_status_shows_answers() {
    let cluster = recorded::cluster();
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let small = [("cpus", 0.1), ("mem", 32.0)];
    framework.run_task(&offer, "t", "exec sleep 600", &small);
    let mut other = Framework::subscribe(
        &cluster.scheduler_url(),
        Encoding::Protobuf,
        &framework_info("other"),
    );
    assert_eq!(status(&cluster), json!({}));
    schedule(&cluster, &window());
    assert_eq!(seen(&cluster, &framework), [""; 0], "nobody has answered");

    // After a decline for no time, the master asks again; after an acceptance for an hour, it does not.
    let asked = answer(&mut framework, "DECLINE_INVERSE_OFFERS", 0.0);
    assert_eq!(asked["agent_id"], offer["agent_id"]);
    assert_eq!(asked["framework_id"]["value"], framework.id);
    assert_eq!(seen(&cluster, &framework), ["DECLINE"]);
    answer(&mut framework, "ACCEPT_INVERSE_OFFERS", 3600.0);
    assert_eq!(seen(&cluster, &framework), ["ACCEPT"]);
    let again = |event: &Value| event["type"] == "INVERSE_OFFERS";
    let silence = framework.within(Duration::from_millis(2_500), &again);
    assert!(silence.is_err(), "it has answered for an hour: {silence:?}");
    framework.accepted(json!({"type": "REVIVE"}));
    answer(&mut framework, "ACCEPT_INVERSE_OFFERS", 3600.0);

    // A framework that holds an offer of the agent gets an inverse offer too, and answers for itself.
    other.wait_for("OFFERS");
    answer(&mut other, "DECLINE_INVERSE_OFFERS", 3600.0);
    assert_eq!(seen(&cluster, &other), ["DECLINE"]);
    assert_eq!(seen(&cluster, &framework), ["ACCEPT"]);

    // An answer to a rescinded inverse offer changes nothing, and a new schedule has no answers.
    schedule(&cluster, &json!([]));
    framework.accepted(json!({"type": "ACCEPT_INVERSE_OFFERS",
        "accept_inverse_offers": {"inverse_offer_ids": [asked["id"]]}}));
    assert_eq!(status(&cluster), json!({}));
}
