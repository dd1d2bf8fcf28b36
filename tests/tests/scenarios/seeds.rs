//! Commands of operators' documents and articles that no other scenario types: word for word with the placeholders filled,
//! and with the printed mistakes.

use meseta_tests::framework::framework_info;
use meseta_tests::{Cluster, Setup};
use serde_json::{Value, json};

use crate::anywhere;
use crate::reservations::reserved_full;

meseta_tests::scenarios! {
    anywhere:
        static_reservations_are_offered_to_role,
        custom_resources_are_offered_and_divided;
}

fn amount(resources: &Value, name: &str) -> Value {
    let all = resources.as_array().expect("resources");
    let found = all.iter().find(|resource| resource["name"] == name);
    found.expect("a resource")["scalar"]["value"].clone()
}

fn static_reservations_are_offered_to_role() {
    let cluster = Cluster::with_resources("cpus:4;mem:2048;cpus(ads):8;mem(ads):4096");
    let full = reserved_full(&cluster, "ads", 2);
    assert_eq!(amount(&full, "cpus"), json!(8.0));
    assert_eq!(amount(&full, "mem"), json!(4096.0));
    assert_eq!(
        full[0]["reservations"],
        json!([{"type": "STATIC", "role": "ads"}])
    );
    let slaves = cluster.master.page("/slaves").json();
    let free = &slaves["slaves"][0]["unreserved_resources_full"];
    assert_eq!(amount(free, "cpus"), json!(4.0));
    assert_eq!(amount(free, "mem"), json!(2048.0));
    // Only the role is offered the reserved resources.
    let mut other = cluster.subscribe(&framework_info("web"));
    let offer = other.offer();
    assert_eq!(amount(&offer["resources"], "cpus"), json!(4.0));
    other.teardown();
    let mut ads = cluster.subscribe(&framework_info("ads"));
    let offered = ads.offer();
    let cpus = offered["resources"].as_array().expect("resources").iter();
    let cpus = cpus.filter(|resource| resource["name"] == "cpus");
    let cpus: f64 = cpus.filter_map(|one| one["scalar"]["value"].as_f64()).sum();
    assert!((cpus - 12.0).abs() < 1e-9, "{offered:#}");
}

/// The article's agent, in small, with custom resources.
fn custom_resources_are_offered_and_divided() {
    let attributes = "--attributes=rack:rack-2;datacenter:europe;os:ubuntuv14.4;hasGpu:true";
    let resources =
        "--resources=cpus:4;mem:1024;disk:921;ports:[21000-29000];bugs:{a,b,c};gpu(*):8";
    let cluster = Cluster::start(Setup {
        agent_flags: vec![resources.into(), attributes.into()],
        ..Setup::default()
    });
    let mut framework = cluster.framework();
    let found = |offer: &Value, name: &str| -> Value {
        let all = offer["resources"].as_array().expect("resources");
        let one = all.iter().find(|resource| resource["name"] == name);
        one.unwrap_or_else(|| panic!("no {name} in {offer:#}"))
            .clone()
    };
    let names = |offer: &Value| -> Vec<Value> {
        let all = offer["attributes"].as_array().expect("attributes").iter();
        all.map(|attribute| attribute["name"].clone()).collect()
    };
    let offer = framework.offer();
    assert_eq!(found(&offer, "gpu")["scalar"]["value"], 8.0);
    assert_eq!(found(&offer, "bugs")["set"]["item"], json!(["a", "b", "c"]));
    let ports = &found(&offer, "ports")["ranges"]["range"];
    assert_eq!(ports, &json!([{"begin": 21000, "end": 29000}]));
    assert_eq!(names(&offer), ["rack", "datacenter", "os", "hasGpu"]);
    let needs = [("cpus", 1.0), ("mem", 64.0), ("gpu", 3.0)];
    let mut task = meseta_tests::framework::task(&offer, "t1", "sleep 1000", &needs);
    let bug = json!({"name": "bugs", "type": "SET", "set": {"item": ["b"]}});
    task["resources"].as_array_mut().expect("a list").push(bug);
    framework.launch(&offer, &[task]);
    framework.until_state("t1", "TASK_RUNNING");
    let rest = framework.offer();
    assert_eq!(found(&rest, "gpu")["scalar"]["value"], 5.0);
    assert_eq!(found(&rest, "bugs")["set"]["item"], json!(["a", "c"]));
    assert_eq!(names(&rest), names(&offer), "attributes are not used up");
}
