//! The reservation document's requests and messages as printed. Requests with its errors are refused with their place
//! (scheduler calls in Mesos's words, which name the line); corrected requests run in the document's order. Principals
//! replace its placeholders.

use meseta_access::basic;
use meseta_tests::framework::framework_info;
use meseta_tests::{Cluster, Encoding, Framework, Setup, http, secure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::anywhere;
use crate::reservations::{offer_where, reserved_full};

meseta_tests::scenarios! {
    anywhere:
        operator_endpoints_work_with_credentials,
        refinement_by_named_principals_works;
}

const OPERATOR: (&str, &str) = ("operator_principal", "password");
const OTHER: (&str, &str) = ("other_principal", "password2");
const NOBODY: (&str, &str) = ("reader", "password3");

/// The printed text, with `<operator_principal>` or `<reserver_principal>` filled in.
const RESOURCES: &str = r#"[
        {
          "name": "cpus",
          "type": "SCALAR",
          "scalar": { "value": 8 },
          "reservations": [
            {
              "type": "DYNAMIC",
              "role": "ads",
              "principal": "operator_principal",
            }
          ]
        },
        {
          "name": "mem",
          "type": "SCALAR",
          "scalar": { "value": 4096 },
          "reservations": [
            {
              "type": "DYNAMIC",
              "role": "ads",
              "principal": "operator_principal",
            }
          ]
        }
      ]"#;

/// Returns the text without the commas after the last members.
fn corrected(printed: &str) -> String {
    let mut corrected = printed.to_owned();
    let ends = |text: &str, at: usize| {
        let next = text[at + 1..].trim_start().chars().next();
        matches!(next, Some('}' | ']'))
    };
    while let Some((at, _)) = corrected
        .match_indices(',')
        .find(|(at, _)| ends(&corrected, *at))
    {
        corrected.remove(at);
    }
    corrected
}

/// Sends `curl -i -u WHO -d slaveId=... -d resources='...' -X POST`: curl sends its data unchanged.
fn curl(
    cluster: &Cluster,
    who: Option<(&str, &str)>,
    path: &str,
    slave: &str,
    resources: &str,
) -> (u16, String) {
    let form = ("content-type", "application/x-www-form-urlencoded");
    let authorization = who.map(|(name, secret)| basic::header(name, secret.as_bytes()));
    let mut headers = vec![form];
    headers.extend(
        authorization
            .as_deref()
            .map(|value| ("authorization", value)),
    );
    let body = format!("slaveId={slave}&resources={resources}");
    let url = format!("{}{path}", cluster.master.url);
    let answer = http::post(&url, &headers, body.as_bytes());
    (answer.status, answer.text())
}

fn operator_endpoints_work_with_credentials() {
    let dir = TempDir::with_prefix("meseta-test-").expect("a folder");
    let file = dir.path().join("credentials");
    secure::credentials(&file, &[OPERATOR, OTHER, NOBODY]);
    let operators = json!({"values": [OPERATOR.0, OTHER.0]});
    let acls = json!({
        "reserve_resources": [
            {"principals": operators, "roles": {"values": ["ads"]}},
            {"principals": {"type": "ANY"}, "roles": {"type": "NONE"}}],
        "unreserve_resources": [
            {"principals": operators, "reserver_principals": {"values": [OPERATOR.0]}},
            {"principals": {"type": "ANY"}, "reserver_principals": {"type": "NONE"}}],
    });
    let cluster = Cluster::start(Setup {
        master_flags: vec![
            "--authenticate_http_readwrite".into(),
            format!("--credentials={}", file.display()),
            format!("--acls={acls}"),
        ],
        agent_flags: vec!["--resources=cpus:12;mem:6144;disk:1024".into()],
        ..Setup::default()
    });
    let slave = cluster.agent_id();
    let post = |who, path: &str, resources: &str| curl(&cluster, who, path, &slave, resources);
    let right = corrected(RESOURCES);
    for path in ["/master/reserve", "/master/unreserve"] {
        let (status, text) = post(Some(OPERATOR), path, RESOURCES);
        assert_eq!(status, 400, "{text}");
        // The mistake is the brace after the surplus first comma.
        assert!(text.contains("line 11, column 13"), "{path}: {text}");
        assert_eq!(post(None, path, &right).0, 401, "{path}");
        assert_eq!(post(Some((OPERATOR.0, "guess")), path, &right).0, 401);
        let (status, text) = post(Some(OPERATOR), path, "");
        assert_eq!(status, 400, "{text}");
    }
    // A name other than the caller's own, and a principal without permission, with any name.
    let (status, text) = post(Some(OTHER), "/master/reserve", &right);
    assert_eq!(status, 400, "{text}");
    assert!(text.contains("which does not match"), "{text}");
    let for_another = right.replace(OPERATOR.0, NOBODY.0);
    let (status, text) = post(Some(NOBODY), "/master/reserve", &for_another);
    assert_eq!(status, 403, "{text}");
    assert!(text.contains("reserve_resources"), "{text}");
    let (status, text) = post(Some(OPERATOR), "/master/unreserve", &right);
    assert_eq!(status, 409, "nothing is reserved yet: {text}");

    let taken = post(Some(OPERATOR), "/master/reserve", &right);
    assert_eq!(taken, (202, String::new()));
    let full = reserved_full(&cluster, "ads", 2);
    let expected: Value = serde_json::from_str(&right).expect("JSON");
    for (shown, asked) in full
        .as_array()
        .expect("a list")
        .iter()
        .zip(expected.as_array().expect("a list"))
    {
        for key in ["name", "type", "reservations"] {
            assert_eq!(shown[key], asked[key], "{full:#}");
        }
        assert_eq!(
            shown["scalar"]["value"].as_f64(),
            asked["scalar"]["value"].as_f64()
        );
    }
    let (status, text) = post(Some(OPERATOR), "/master/reserve", &right);
    assert_eq!(status, 409, "there are not 16 cpus: {text}");
    let (status, text) = post(Some(NOBODY), "/master/unreserve", &right);
    assert_eq!(status, 403, "{text}");
    // One part is for another operator than the reserver, and the rest follows.
    let part = right
        .replace("\"value\": 8", "\"value\": 3")
        .replace("4096", "96");
    let taken = post(Some(OTHER), "/master/unreserve", &part);
    assert_eq!(taken, (202, String::new()));
    let full = reserved_full(&cluster, "ads", 2);
    assert_eq!(full[0]["scalar"]["value"], 5.0);
    let rest = right
        .replace("\"value\": 8", "\"value\": 5")
        .replace("4096", "4000");
    let taken = post(Some(OPERATOR), "/master/unreserve", &rest);
    assert_eq!(taken, (202, String::new()));
    reserved_full(&cluster, "ads", 0);
}

/// Returns one resource as the document prints it, in an offer or an operation; `top` adds the refinement.
fn printed(name: &str, value: u32, top: bool) -> String {
    let top = if top {
        r#",
              {
                "type": "DYNAMIC",
                "role": "engineering/backend",
                "principal": "framework_principal",
              }"#
    } else {
        ""
    };
    format!(
        r#"
          {{
            "allocation_info": {{ "role": "engineering/backend" }},
            "name": "{name}",
            "type": "SCALAR",
            "scalar": {{ "value": {value} }},
            "reservations": [
              {{
                "type": "DYNAMIC",
                "role": "engineering",
                "principal": "principal",
              }}{top}
            ]
          }}"#
    )
}

fn value(printed: &str) -> Value {
    serde_json::from_str(&corrected(printed)).expect("JSON")
}

/// Whether an offer contains exactly this resource.
fn holds(offer: &Value, expected: &Value) -> bool {
    let resources = offer["resources"].as_array().into_iter().flatten();
    resources.into_iter().any(|one| {
        let amount = |one: &Value| one["scalar"]["value"].as_f64();
        ["name", "type", "reservations", "allocation_info"]
            .iter()
            .all(|key| one[*key] == expected[*key])
            && amount(one) == amount(expected)
    })
}

fn refinement_by_named_principals_works() {
    let cluster = Cluster::with_resources("cpus:12;mem:6144");
    let all = [("cpus", 12), ("mem", 6144)];
    let reserved = all.map(|(name, amount)| {
        json!({"name": name, "type": "SCALAR", "scalar": {"value": amount},
               "reservations": [{"type": "DYNAMIC", "role": "engineering", "principal": "principal"}]})
    });
    let slave = cluster.agent_id();
    let answer = curl(
        &cluster,
        None,
        "/master/reserve",
        &slave,
        &json!(reserved).to_string(),
    );
    assert_eq!(answer, (202, String::new()));
    let mut info = framework_info("engineering/backend");
    info["principal"] = json!("framework_principal");
    let url = cluster.scheduler_url();
    let mut framework = Framework::subscribe(&url, Encoding::Json, &info);
    let whole = all.map(|(name, amount)| value(&printed(name, amount, false)));
    let is_whole = |offer: &Value| whole.iter().all(|one| holds(offer, one));
    let offer = offer_where(&mut framework, "what is reserved to engineering", is_whole);
    assert_eq!(offer["allocation_info"]["role"], "engineering/backend");

    let refined = [("cpus", 8), ("mem", 4096)].map(|(name, amount)| printed(name, amount, true));
    let list = refined.join(",");
    let reserve = format!(
        r#"
    {{
      "type": "RESERVE",
      "reserve": {{
        "resources": [{list}
        ]
      }}
    }}"#
    );
    as_printed_then_corrected(&framework, &url, &offer, &reserve);
    let refined = refined.map(|one| value(&one));
    let is_refined = |offer: &Value| refined.iter().all(|one| holds(offer, one));
    let offer = offer_where(&mut framework, "the refinement", is_refined);
    reserved_full(&cluster, "engineering/backend", 2);
    // This text has a comma after the last resource too.
    let unreserve = reserve
        .replace("RESERVE", "UNRESERVE")
        .replace("\"reserve\"", "\"unreserve\"")
        .replace("\n        ]\n", ",\n        ]\n");
    as_printed_then_corrected(&framework, &url, &offer, &unreserve);
    offer_where(
        &mut framework,
        "everything reserved to engineering again",
        is_whole,
    );
    reserved_full(&cluster, "engineering", 2);
    reserved_full(&cluster, "engineering/backend", 0);
}

/// Accepts an offer with an operation: the printed form is refused with the place of its error, and the corrected form is
/// accepted.
fn as_printed_then_corrected(framework: &Framework, url: &str, offer: &Value, operation: &str) {
    let accept = |operation: &str| {
        let body = format!(
            r#"{{"type": "ACCEPT", "framework_id": {{"value": "{}"}}, "accept": {{
                "offer_ids": [{}], "filters": {{"refuse_seconds": 0.0}},
                "operations": [{operation}]}}}}"#,
            framework.id, offer["id"]
        );
        let headers = [
            ("content-type", "application/json"),
            ("mesos-stream-id", framework.stream_id.as_str()),
        ];
        let answer = http::post(url, &headers, body.as_bytes());
        (answer.status, answer.text(), body)
    };
    let (status, text, body) = accept(operation);
    assert_eq!(status, 400, "{text}");
    // A brace follows the member's comma.
    let slip = body.find(",\n              }").expect("a slip");
    let line = body[..slip].matches('\n').count() + 2;
    assert!(
        text.contains(&format!("at line {line} near: }}")),
        "line {line}: {text}"
    );
    let (status, text, _) = accept(&corrected(operation));
    assert_eq!(status, 202, "{text}");
}
