//! What operators' documents and articles tell them to type, where no other scenario types it: word for word
//! with the placeholders filled, and with the slips as printed.

use meseta_tests::framework::framework_info;
use meseta_tests::{Cluster, Setup, http};
use serde_json::{Value, json};

use crate::anywhere;
use crate::reservations::{agent_id, reserved_full};

meseta_tests::scenarios! {
    anywhere:
        static_reservations_are_listed_and_offered_to_their_role,
        the_articles_reserve,
        custom_resources_are_offered_and_divided;
}

/// `curl -d NAME=VALUE ...`: what curl sends, as it is.
fn curl(cluster: &Cluster, method: &str, path: &str, data: &[&str]) -> http::Answer {
    let url = format!("{}{path}", cluster.master.url);
    let form = ("content-type", "application/x-www-form-urlencoded");
    match method {
        "POST" => http::post(&url, &[form], data.join("&").as_bytes()),
        "DELETE" => http::delete(&url),
        _ => http::get(&url),
    }
}

fn amount(resources: &Value, name: &str) -> Value {
    let all = resources.as_array().expect("resources");
    let found = all.iter().find(|resource| resource["name"] == name);
    found.expect("a resource")["scalar"]["value"].clone()
}

fn static_reservations_are_listed_and_offered_to_their_role() {
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
    // Nobody else is offered what is reserved.
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

fn the_articles_reserve() {
    let cluster = Cluster::with_resources("cpus:12;mem:6144;disk:1024");
    let slave = format!("slaveId={}", agent_id(&cluster));
    // As printed: an object for a list, and a comma after the last member.
    let printed = r#"resources={ { "name" : "cpus", "type" : "SCALAR", "scalar" : { "value" : 4 }, "role" : "role1", "reservation" : { "principal" : "ops" } }, { "name" : "mem", "type" : "SCALAR", "scalar" : { "value" : 4096 }, "role" : "role1", "reservation" : { "principal" : "ops" } }, }"#;
    let refused = curl(&cluster, "POST", "/master/reserve", &[&slave, printed]);
    assert_eq!(refused.status, 400);
    let text = refused.text();
    assert!(
        text.starts_with("Error parsing 'resources' query parameter"),
        "{text}"
    );
    assert!(text.contains("line 1, column 3"), "{text}");
    // A list, with the comma still there.
    let comma = printed.replace("={ {", "=[ {").replace("}, }", "}, ]");
    let refused = curl(&cluster, "POST", "/master/reserve", &[&slave, &comma]);
    assert_eq!(refused.status, 400);
    let place = format!("column {}", comma.len() - "resources=".len());
    assert!(
        refused.text().contains(&place),
        "{place}: {}",
        refused.text()
    );
    let nothing = cluster.master.page("/slaves").json();
    assert_eq!(nothing["slaves"][0]["reserved_resources_full"], json!({}));
    // Corrected, in the format of before refinement.
    let right = comma.replace("}, ]", "} ]");
    let taken = curl(&cluster, "POST", "/master/reserve", &[&slave, &right]);
    assert_eq!((taken.status, taken.text().as_str()), (202, ""));
    let full = reserved_full(&cluster, "role1", 2);
    assert_eq!(amount(&full, "cpus"), json!(4.0));
    assert_eq!(amount(&full, "mem"), json!(4096.0));
    assert_eq!(full[0]["reservation"], json!({"principal": "ops"}));
    assert_eq!(full[0]["role"], "role1");
}

/// The article's agent, in small, with resources of names of one's own.
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
