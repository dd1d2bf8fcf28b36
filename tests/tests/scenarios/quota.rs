//! Tests of quota and weights as operators type them: the documents' requests, and a killed master.

use meseta_tests::Cluster;
use meseta_tests::cluster::Setup;
use meseta_tests::http::{self, Answer};
use serde_json::{Value, json};

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        the_documents_requests,
        document_mistakes_are_refused_with_place,
        weights_as_mesos_answers_them;
}

const REQUEST: &str = r#"{
  "role": "role1",
  "guarantee": [
    {
      "name": "cpus",
      "type": "SCALAR",
      "scalar": { "value": 12 }
    },
    {
      "name": "mem",
      "type": "SCALAR",
      "scalar": { "value": 6144 }
    }
  ]
}"#;

fn cluster() -> Cluster {
    Cluster::with_resources("cpus:16;mem:16384;disk:4096;ports:[31000-31999]")
}

fn post(cluster: &Cluster, path: &str, body: &str) -> Answer {
    http::post(
        &format!("{}{path}", cluster.master.url),
        &[],
        body.as_bytes(),
    )
}

fn get(cluster: &Cluster, path: &str) -> Value {
    let answer = http::get(&format!("{}{path}", cluster.master.url));
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

fn delete(cluster: &Cluster, path: &str) -> Answer {
    http::delete(&format!("{}{path}", cluster.master.url))
}

fn is_done(answer: &Answer) {
    assert_eq!((answer.status, answer.text()), (200, String::new()));
    assert_eq!(answer.header("content-type"), None);
}

fn the_documents_requests() {
    let cluster = cluster();
    assert_eq!(get(&cluster, "/quota"), json!({}));
    is_done(&post(&cluster, "/quota", REQUEST));
    let expected = json!([{"role": "role1", "guarantee": [
        {"name": "cpus", "type": "SCALAR", "scalar": {"value": 12.0}, "role": "*"},
        {"name": "mem", "type": "SCALAR", "scalar": {"value": 6144.0}, "role": "*"}]}]);
    assert_eq!(get(&cluster, "/quota")["infos"], expected);
    assert_eq!(
        get(&cluster, "/master/quota")["configs"],
        json!([{"role": "role1", "guarantees": {"cpus": {"value": 12.0}, "mem": {"value": 6144.0}},
            "limits": {"cpus": {"value": 12.0}, "mem": {"value": 6144.0}}}])
    );
    let forced = post(
        &cluster,
        "/quota",
        &REQUEST
            .replace("role1", "role2")
            .replacen('{', "{\n\"force\": true,", 1),
    );
    assert_eq!(forced.status, 200);
    let text = forced.text();
    assert!(text.starts_with("Quota of role 'role2' is set."), "{text}");
    assert!(
        text.contains("'cpus:24; mem:12288' exceed cluster capacity"),
        "{text}"
    );
    is_done(&delete(&cluster, "/quota/role1"));
    is_done(&delete(&cluster, "/master/quota/role2"));
    assert_eq!(get(&cluster, "/quota"), json!({}));
}

fn document_mistakes_are_refused_with_place() {
    let cluster = cluster();
    // The document prints a comma after the last member, and further text.
    let comma = REQUEST.replacen("{ \"value\": 6144 }", "{ \"value\": 6144 },", 1);
    let answer = post(&cluster, "/quota", &comma);
    assert_eq!(answer.status, 400);
    let text = answer.text();
    assert!(
        text.starts_with("Failed to parse set quota request JSON"),
        "{text}"
    );
    assert!(text.ends_with("(line 13, column 5)"), "{text}");
    // The ellipsis is in the document.
    let printed = r#"{   "force": true,   "role": "role1",   ... }"#;
    let text = post(&cluster, "/quota", printed).text();
    assert!(text.ends_with("(line 1, column 41)"), "{text}");
    let wrong_type = post(&cluster, "/quota", r#"{"role": "x", "guarantee": "all"}"#);
    assert_eq!(wrong_type.status, 400, "{}", wrong_type.text());
    assert_eq!(get(&cluster, "/quota"), json!({}), "nothing was changed");
}

fn weights_as_mesos_answers_them() {
    let cluster = Cluster::start(Setup {
        master_flags: vec!["--roles=dev,ops".into(), "--weights=ops=3".into()],
        ..Setup::default()
    });
    let log = cluster.master.log_text();
    let unweighted: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("has no weight"))
        .collect();
    assert!(
        matches!(unweighted.as_slice(), [one] if one.contains("role=dev")),
        "{unweighted:?}"
    );
    let put = |body: &str| http::put(&format!("{}/weights", cluster.master.url), body);
    is_done(&put(r#"[{"role": "dev", "weight": 2.5}]"#));
    let expected = json!([{"weight": 2.5, "role": "dev"}, {"weight": 3.0, "role": "ops"}]);
    assert_eq!(get(&cluster, "/weights"), expected);
    let unknown = put(r#"[{"role": "qa", "weight": 1}]"#);
    let text = "Failed to validate update weights request JSON: Unknown role 'qa'";
    assert_eq!((unknown.status, unknown.text().as_str()), (400, text));
    assert_eq!(get(&cluster, "/weights"), expected);
}
