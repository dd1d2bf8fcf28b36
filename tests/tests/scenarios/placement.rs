//! The agents that each framework is offered: domains, the whitelist, offer constraints; and the permission to watch.

use std::io::Read as _;
use std::time::Duration;

use meseta_tests::framework::framework_info;
use meseta_tests::{Cluster, Framework, Setup, http, wait};
use serde_json::{Value, json};

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        remote_region_needs_region_aware,
        the_whitelist_is_read_again,
        excluded_agents_are_listed,
        extra_watcher_closes_oldest;
}

const LIMIT: Duration = Duration::from_secs(30);

fn domain(region: &str) -> String {
    format!(
        r#"--domain={{"fault_domain":{{"region":{{"name":"{region}"}},"zone":{{"name":"z1"}}}}}}"#
    )
}

fn resources() -> String {
    "--resources=cpus:4;mem:4096;disk:4096".to_owned()
}

/// Waits until the master's explanation of a framework's offers contains these words.
fn explained(cluster: &Cluster, framework: &Framework, words: &str) {
    let path = format!("/explain?framework_id={}", framework.id);
    wait::eventually(words, LIMIT, || {
        let page = cluster.master.page(&path).json();
        let reason = page["explanations"][0]["reason"].as_str()?.to_owned();
        reason.contains(words).then_some(())
    });
}

fn remote_region_needs_region_aware() {
    let cluster = Cluster::start(Setup {
        master_flags: vec![domain("eu")],
        agent_flags: vec![resources(), domain("us")],
        ..Setup::default()
    });
    let state = cluster.master.page("/state").json();
    for path in ["/domain", "/leader_info/domain"] {
        let found = state.pointer(&format!("{path}/fault_domain/region/name"));
        assert_eq!(found, Some(&json!("eu")), "{path}");
    }
    let region = "/domain/fault_domain/region/name";
    assert_eq!(state["slaves"][0].pointer(region), Some(&json!("us")));
    let agent = cluster.agent().page("/state").json();
    assert_eq!(agent.pointer(region), Some(&json!("us")));
    let near = cluster.subscribe(&framework_info("a"));
    explained(&cluster, &near, "another region");
    let mut info = framework_info("b");
    info["capabilities"] = json!([{"type": "MULTI_ROLE"}, {"type": "REGION_AWARE"}]);
    let mut far = cluster.subscribe(&info);
    let offer = far.offer();
    assert_eq!(offer.pointer(region), Some(&json!("us")), "{offer:#}");
}

fn the_whitelist_is_read_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("hosts");
    std::fs::write(&path, "elsewhere.example\n").expect("written");
    let cluster = Cluster::start(Setup {
        master_flags: vec![format!("--whitelist={}", path.display())],
        agent_flags: vec![resources(), "--hostname=here.example".to_owned()],
        ..Setup::default()
    });
    let mut framework = cluster.framework();
    explained(&cluster, &framework, "not on the whitelist");
    std::fs::write(&path, "elsewhere.example\nhere.example\n").expect("written");
    assert_eq!(framework.offer()["hostname"], "here.example");
}

fn excluded_agents_are_listed() {
    let cluster = Cluster::start(Setup {
        agent_flags: vec![resources(), "--attributes=rack:r1".to_owned()],
        ..Setup::default()
    });
    let framework = cluster.framework();
    let mut info = framework_info("dev");
    info["id"] = json!({"value": framework.id});
    let group = json!({"attribute_constraints": [{
        "selector": {"attribute_name": "rack"},
        "predicate": {"text_equals": {"value": "r2"}}}]});
    let answer = framework.call(json!({
        "type": "UPDATE_FRAMEWORK",
        "update_framework": {
            "framework_info": info,
            "offer_constraints": {"role_constraints": {"dev": {"groups": [group]}}}}}));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let page = "/hierarchical-allocator(1)/offer_constraints_debug";
    let shown = cluster.master.page(page).json();
    let agent = cluster.agent_id();
    let expected = json!({"frameworks": {&framework.id: {
        "suppressed_roles": [],
        "excluded_by_attribute_constraints": {"dev": [agent]}}}});
    assert_eq!(shown, expected);
}

fn extra_watcher_closes_oldest() {
    let cluster = Cluster::start(Setup {
        agents: 0,
        master_flags: vec!["--max_operator_event_stream_subscribers=1".to_owned()],
        ..Setup::default()
    });
    let url = format!("{}/api/v1", cluster.master.url);
    let subscribe = || {
        let mut stream = http::stream(&url, &json!({"type": "SUBSCRIBE"}));
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("the first event");
        stream
    };
    let mut first = subscribe();
    let second = subscribe();
    let mut rest = Vec::new();
    first.read_to_end(&mut rest).expect("the stream ends");
    let metrics: Value = cluster.master.page("/metrics/snapshot").json();
    assert_eq!(metrics["master/operator_event_stream_subscribers"], 1.0);
    drop(second);
}
