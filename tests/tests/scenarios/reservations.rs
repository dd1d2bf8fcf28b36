//! Reservations and volumes, live: the documents' own messages, and what master, agent and disk say
//! afterwards.

use std::time::Duration;

use meseta_tests::framework::{framework_info, task};
use meseta_tests::{Cluster, Encoding, Framework, Setup, http, wait};
use serde_json::{Value, json};

use crate::{Scenario, anywhere};

pub(crate) const ALL: &[Scenario] = &[
    (
        "a_framework_reserves_and_unreserves_as_documented",
        anywhere,
        documented,
    ),
    ("a_reservation_is_refined_and_given_back", anywhere, refined),
    ("operators_reserve_as_documented", anywhere, operators),
    ("operators_reserve_by_the_v1_api", anywhere, v1),
    ("a_volume_outlives_its_tasks_and_daemons", anywhere, volume),
    (
        "a_grown_and_shrunk_volume_keeps_its_data",
        anywhere,
        resized,
    ),
    (
        "fewer_resources_than_reserved_refuse_to_start",
        anywhere,
        fewer,
    ),
    (
        "named_operations_are_told_until_acknowledged",
        anywhere,
        feedback,
    ),
    (
        "ten_crashes_leave_everything_exactly_once",
        anywhere,
        crashes,
    ),
];

const LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn cluster(resources: &str) -> Cluster {
    Cluster::start(Setup {
        agent_flags: vec![format!("--resources={resources}")],
        ..Setup::default()
    })
}

/// Sends operations on an offer; what is left is offered again at once.
pub(crate) fn operate(framework: &Framework, offer: &Value, operations: Value) {
    framework.accepted(json!({"type": "ACCEPT", "accept": {
        "offer_ids": [offer["id"]], "operations": operations, "filters": {"refuse_seconds": 0.0}}}));
}

/// The next offers, until together they are what is wanted: one event may hold only a part.
pub(crate) fn offer_where(
    framework: &mut Framework,
    what: &str,
    wanted: impl Fn(&Value) -> bool,
) -> Value {
    let end = std::time::Instant::now() + LIMIT;
    loop {
        let offer = framework.offer();
        if wanted(&offer) {
            return offer;
        }
        assert!(
            std::time::Instant::now() < end,
            "no offer with {what}; the last: {offer:#}"
        );
        framework.decline(&offer, 0.0);
    }
}

/// How much of a name there is in an offer, of what `keep` accepts.
pub(crate) fn sum(resources: &Value, name: &str, keep: impl Fn(&Value) -> bool) -> f64 {
    let resources = resources.as_array().into_iter().flatten();
    resources
        .filter(|resource| resource["name"] == name && keep(resource))
        .filter_map(|resource| resource["scalar"]["value"].as_f64())
        .sum()
}

pub(crate) fn is(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6
}

pub(crate) fn agent_id(cluster: &Cluster) -> String {
    let slaves = cluster.master.page("/slaves").json();
    slaves["slaves"][0]["id"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// `reserved_resources_full` of the role, as master and agent show it, once they agree on `count`
/// entries.
pub(crate) fn reserved_full(cluster: &Cluster, role: &str, count: usize) -> Value {
    let look = || {
        let master = cluster.master.page("/slaves").json();
        let master = master["slaves"][0]["reserved_resources_full"][role].clone();
        let agent = cluster.agent().page("/state").json();
        let agent = agent["reserved_resources_full"][role].clone();
        let entries = master.as_array().map_or(0, Vec::len);
        (master == agent && entries == count).then_some(master)
    };
    wait::eventually("master and agent agree on what is reserved", LIMIT, look)
}

pub(crate) fn scalar(name: &str, value: f64) -> Value {
    json!({"name": name, "type": "SCALAR", "scalar": {"value": value}})
}

pub(crate) fn with(mut resource: Value, key: &str, value: Value) -> Value {
    resource[key] = value;
    resource
}

pub(crate) fn dynamic(name: &str, value: f64, role: &str) -> Value {
    let stack = json!([{"type": "DYNAMIC", "role": role}]);
    with(scalar(name, value), "reservations", stack)
}

pub(crate) fn volume_of(mut disk: Value, id: &str) -> Value {
    disk["disk"] = json!({"persistence": {"id": id},
                          "volume": {"mode": "RW", "container_path": "data"}});
    disk
}

/// The document's first example, word for word: 8 of 12 cpus, the format before refinement.
fn documented() {
    let cluster = cluster("cpus:12;mem:6144");
    let mut info = framework_info("engineering");
    info["principal"] = json!("framework-principal");
    info["capabilities"] = json!([{"type": "MULTI_ROLE"}]);
    let mut framework = Framework::subscribe(&cluster.scheduler_url(), Encoding::Json, &info);
    let offer = framework.offer();
    assert_eq!(offer["allocation_info"]["role"], "engineering");
    for resource in offer["resources"].as_array().expect("resources") {
        assert_eq!(resource["allocation_info"]["role"], "engineering");
        assert_eq!(resource["role"], "*", "{resource}");
    }
    let reserved = |name: &str, value: f64| {
        json!({"allocation_info": {"role": "engineering"}, "name": name, "type": "SCALAR",
               "scalar": {"value": value}, "role": "engineering",
               "reservation": {"principal": "framework-principal"}})
    };
    let eight = json!([reserved("cpus", 8.0), reserved("mem", 4096.0)]);
    operate(
        &framework,
        &offer,
        json!([{"type": "RESERVE", "reserve": {"resources": eight}}]),
    );
    let mine = |resource: &Value| {
        resource["role"] == "engineering"
            && resource["reservation"]["principal"] == "framework-principal"
            && resource.get("reservations").is_none()
    };
    let offer = offer_where(&mut framework, "the reservation", |offer| {
        is(sum(&offer["resources"], "cpus", mine), 8.0)
            && is(sum(&offer["resources"], "mem", mine), 4096.0)
    });
    let full = reserved_full(&cluster, "engineering", 2);
    assert_eq!(full[0]["reservations"][0]["type"], "DYNAMIC");
    assert_eq!(full[0]["role"], "engineering");
    // The operator's document: the same for all roles below.
    let operations = json!([{"type": "UNRESERVE", "unreserve": {"resources": eight}}]);
    operate(&framework, &offer, operations);
    offer_where(&mut framework, "everything unreserved", |offer| {
        let free = |resource: &Value| resource["role"] == "*";
        sum(&offer["resources"], "cpus", free) >= 8.0 - 1e-6
            && is(sum(&offer["resources"], "cpus", mine), 0.0)
    });
    wait::eventually("nothing is reserved", LIMIT, || {
        let state = cluster.agent().page("/state").json();
        (state["reserved_resources_full"] == json!({})).then_some(())
    });
}

/// The document's refinement: `engineering` to `engineering/backend` and back.
fn refined() {
    let cluster = cluster("cpus:12;mem:6144");
    let agent = agent_id(&cluster);
    let all = json!([
        dynamic("cpus", 12.0, "engineering"),
        dynamic("mem", 6144.0, "engineering")
    ]);
    let answer = post_form(
        &cluster,
        "/master/reserve",
        &agent,
        "resources",
        &all.to_string(),
    );
    assert_eq!(answer.status, 202, "{}", answer.text());
    let role = "engineering/backend";
    let mut framework = Framework::subscribe(
        &cluster.scheduler_url(),
        Encoding::Json,
        &framework_info(role),
    );
    let offer = framework.offer();
    assert_eq!(offer["allocation_info"]["role"], role);
    let cpus_and_mem = |resource: &&Value| resource["name"] == "cpus" || resource["name"] == "mem";
    let resources = offer["resources"].as_array().expect("resources");
    for resource in resources.iter().filter(cpus_and_mem) {
        assert!(resource.get("role").is_none() && resource.get("reservation").is_none());
        assert_eq!(
            resource["reservations"],
            json!([{"type": "DYNAMIC", "role": "engineering"}])
        );
    }
    let stack =
        json!([{"type": "DYNAMIC", "role": "engineering"}, {"type": "DYNAMIC", "role": role}]);
    let refine = |name: &str, value: f64| {
        let resource = with(scalar(name, value), "reservations", stack.clone());
        with(resource, "allocation_info", json!({"role": role}))
    };
    let eight = json!([refine("cpus", 8.0), refine("mem", 4096.0)]);
    operate(
        &framework,
        &offer,
        json!([{"type": "RESERVE", "reserve": {"resources": eight}}]),
    );
    let is_refined = |resource: &Value| resource["reservations"] == stack;
    let offer = offer_where(&mut framework, "the refinement", |offer| {
        is(sum(&offer["resources"], "cpus", is_refined), 8.0)
    });
    let full = reserved_full(&cluster, role, 2);
    assert!(
        full[0].get("role").is_none(),
        "only the stack can say it: {full}"
    );
    // One that knows nothing of refinement is offered the rest and never the refined part.
    framework.decline(&offer, 600.0);
    let mut info = framework_info(role);
    info["capabilities"] = json!([{"type": "MULTI_ROLE"}]);
    let mut old = Framework::subscribe(&cluster.scheduler_url(), Encoding::Json, &info);
    let seen = old.offer();
    assert!(
        is(sum(&seen["resources"], "cpus", |_| true), 4.0),
        "{seen:#}"
    );
    old.accepted(json!({"type": "TEARDOWN"}));
    framework.accepted(json!({"type": "REVIVE"}));
    let offer = offer_where(&mut framework, "the refinement again", |offer| {
        is(sum(&offer["resources"], "cpus", is_refined), 8.0)
    });
    let operations = json!([{"type": "UNRESERVE", "unreserve": {"resources": eight}}]);
    operate(&framework, &offer, operations);
    let full = reserved_full(&cluster, "engineering", 2);
    assert!(
        is(sum(&full, "cpus", |_| true), 12.0),
        "popped to its owner: {full}"
    );
}

fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// As `curl -d slaveId=... -d NAME=...` sends it.
pub(crate) fn post_form(
    cluster: &Cluster,
    path: &str,
    agent: &str,
    name: &str,
    value: &str,
) -> http::Answer {
    let body = format!("slaveId={agent}&{name}={}", percent(value));
    let headers = [("content-type", "application/x-www-form-urlencoded")];
    http::post(
        &format!("{}{path}", cluster.master.url),
        &headers,
        body.as_bytes(),
    )
}

/// The operators' part of the document, its placeholders filled and its commas corrected.
fn operators() {
    let cluster = cluster("cpus:12;mem:6144;disk:1024");
    let agent = agent_id(&cluster);
    let document = |cpus: f64, mem: f64, comma: &str| {
        format!(
            r#"[
              {{
                "name": "cpus", "type": "SCALAR", "scalar": {{ "value": {cpus} }},
                "reservations": [
                  {{ "type": "DYNAMIC", "role": "ads", "principal": "ops"{comma} }}
                ]
              }},
              {{
                "name": "mem", "type": "SCALAR", "scalar": {{ "value": {mem} }},
                "reservations": [
                  {{ "type": "DYNAMIC", "role": "ads", "principal": "ops"{comma} }}
                ]
              }}
            ]"#
        )
    };
    let post = |path: &str, name: &str, value: &str| post_form(&cluster, path, &agent, name, value);
    let raw = post("/master/reserve", "resources", &document(8.0, 4096.0, ","));
    assert_eq!(raw.status, 400, "as printed it has a comma too many");
    assert!(raw.text().contains("line 5"), "{}", raw.text());
    let answer = post("/master/reserve", "resources", &document(8.0, 4096.0, ""));
    assert_eq!((answer.status, answer.text().as_str()), (202, ""));
    let full = reserved_full(&cluster, "ads", 2);
    assert!(is(sum(&full, "cpus", |_| true), 8.0), "{full}");
    assert_eq!(full[0]["reservation"]["principal"], "ops");
    let roles = cluster.master.page("/roles").json();
    let ads = roles["roles"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|role| role["name"] == "ads");
    assert_eq!(
        ads.map(|role| role["reserved"].clone()),
        Some(json!({"cpus": 8.0, "mem": 4096.0}))
    );
    // A part, too much, the rest.
    assert_eq!(
        post("/unreserve", "resources", &document(3.0, 96.0, "")).status,
        202
    );
    let full = reserved_full(&cluster, "ads", 2);
    assert!(is(sum(&full, "cpus", |_| true), 5.0), "{full}");
    let answer = post("/unreserve", "resources", &document(6.0, 4000.0, ""));
    assert_eq!(answer.status, 409);
    assert!(
        answer
            .text()
            .ends_with("does not contain cpus(reservations: [(DYNAMIC,ads,ops)]):6"),
        "{}",
        answer.text()
    );
    assert_eq!(
        post("/unreserve", "resources", &document(5.0, 4000.0, "")).status,
        202
    );
    wait::eventually("nothing is reserved", LIMIT, || {
        let state = cluster.agent().page("/state").json();
        (state["reserved_resources_full"] == json!({})).then_some(())
    });
    refusals(&cluster, &agent);
}

/// What is refused, with which code, and that nothing changes by it.
fn refusals(cluster: &Cluster, agent: &str) {
    let before = cluster.agent().page("/state").json()["resources"].clone();
    let one = json!([dynamic("cpus", 1.0, "ads")]).to_string();
    let plain = json!([scalar("cpus", 1.0)]).to_string();
    let star = json!([dynamic("cpus", 1.0, "*")]).to_string();
    let much = json!([dynamic("cpus", 13.0, "ads")]).to_string();
    let free = json!([volume_of(scalar("disk", 64.0), "v")]).to_string();
    for (path, id, name, value, status, text) in [
        (
            "/reserve",
            "nosuch",
            "resources",
            &*one,
            400,
            "No agent found with specified ID",
        ),
        (
            "/reserve",
            agent,
            "nothing",
            &*one,
            400,
            "Missing 'resources' query parameter",
        ),
        (
            "/reserve",
            agent,
            "resources",
            "x",
            400,
            "Error parsing 'resources'",
        ),
        (
            "/reserve",
            agent,
            "resources",
            &*plain,
            400,
            "is not dynamically reserved",
        ),
        (
            "/reserve",
            agent,
            "resources",
            &*star,
            400,
            "role \"*\" cannot be reserved",
        ),
        (
            "/reserve",
            agent,
            "resources",
            &*much,
            409,
            "does not contain cpus:13",
        ),
        (
            "/reserve",
            agent,
            "resources",
            "[]",
            400,
            "Invalid resources",
        ),
        (
            "/unreserve",
            agent,
            "resources",
            &*plain,
            400,
            "is not dynamically reserved",
        ),
        (
            "/unreserve",
            agent,
            "resources",
            &*one,
            409,
            "does not contain",
        ),
        (
            "/create-volumes",
            agent,
            "volumes",
            &*free,
            400,
            "unreserved resources",
        ),
        (
            "/create-volumes",
            agent,
            "resources",
            &*free,
            400,
            "Missing 'volumes'",
        ),
        (
            "/destroy-volumes",
            agent,
            "volumes",
            &*free,
            400,
            "unreserved resources",
        ),
    ] {
        let answer = post_form(cluster, path, id, name, value);
        assert_eq!(answer.status, status, "{path} {value}: {}", answer.text());
        assert!(
            answer.text().contains(text),
            "{path} {value}: {}",
            answer.text()
        );
    }
    let answer = http::get(&format!("{}/reserve", cluster.master.url));
    assert_eq!(answer.status, 405);
    assert_eq!(cluster.agent().page("/state").json()["resources"], before);
}

fn v1() {
    let cluster = cluster("cpus:4;mem:1024;disk:1024");
    let agent = json!({"value": agent_id(&cluster)});
    let url = format!("{}/api/v1", cluster.master.url);
    let call = |kind: &str, body: Value| {
        let mut call = json!({"type": kind});
        call[kind.to_lowercase()] = body;
        http::post_json(&url, &call)
    };
    let disk = dynamic("disk", 64.0, "dev");
    let data = volume_of(disk.clone(), "v1");
    let grown = volume_of(dynamic("disk", 96.0, "dev"), "v1");
    for (kind, body) in [
        (
            "RESERVE_RESOURCES",
            json!({"agent_id": agent, "resources": [disk, dynamic("disk", 32.0, "dev")]}),
        ),
        (
            "CREATE_VOLUMES",
            json!({"agent_id": agent, "volumes": [data]}),
        ),
        (
            "GROW_VOLUME",
            json!({"agent_id": agent, "volume": data, "addition": dynamic("disk", 32.0, "dev")}),
        ),
        (
            "SHRINK_VOLUME",
            json!({"agent_id": agent, "volume": grown, "subtract": {"value": 16.0}}),
        ),
    ] {
        let answer = call(kind, body);
        assert_eq!(answer.status, 202, "{kind}: {}", answer.text());
    }
    let full = reserved_full(&cluster, "dev", 2);
    assert!(
        is(sum(&full, "disk", |one| one.get("disk").is_some()), 80.0),
        "{full}"
    );
    let answer = call(
        "DESTROY_VOLUMES",
        json!({"agent_id": agent, "volumes": [volume_of(dynamic("disk", 80.0, "dev"), "v1")]}),
    );
    assert_eq!(answer.status, 202, "{}", answer.text());
    let answer = call(
        "UNRESERVE_RESOURCES",
        json!({"agent_id": agent, "resources": [dynamic("disk", 96.0, "dev")]}),
    );
    assert_eq!(answer.status, 202, "{}", answer.text());
    let missing = http::post_json(&url, &json!({"type": "GROW_VOLUME"}));
    assert_eq!(missing.status, 400);
    assert!(
        missing
            .text()
            .contains("Expecting 'grow_volume' to be present")
    );
    wait::eventually("no operation is left", LIMIT, || {
        let answer = http::post_json(&url, &json!({"type": "GET_OPERATIONS"})).json();
        let left = answer["get_operations"]["operations"]
            .as_array()
            .map_or(0, Vec::len);
        (left == 0).then_some(())
    });
}

/// Where an agent keeps a volume.
fn volume_dir(cluster: &Cluster, role: &str, id: &str) -> std::path::PathBuf {
    cluster
        .dir
        .path()
        .join("agent-0/volumes/roles")
        .join(role)
        .join(id)
}

/// Runs a command that holds the volume until it has finished. An offer may be one that was taken back
/// meanwhile: then another is tried.
fn run_with(framework: &mut Framework, mut offer: Value, id: &str, command: &str, held: &Value) {
    for attempt in 0..10 {
        let id = format!("{id}{attempt}");
        let mut info = task(&offer, &id, command, &[("cpus", 0.1), ("mem", 32.0)]);
        let resources = info["resources"].as_array_mut().expect("resources");
        resources.push(held.clone());
        framework.launch(&offer, &[info]);
        loop {
            let status = framework.update(&id);
            framework.acknowledge(&status);
            match status["state"].as_str().unwrap_or_default() {
                "TASK_FINISHED" => return,
                "TASK_STARTING" | "TASK_RUNNING" => {}
                "TASK_DROPPED" => break,
                other => panic!("{id} is {other}: {status:#}"),
            }
        }
        offer = offer_with_volume(framework);
    }
    panic!("{id} is dropped again and again");
}

/// A framework with a volume `v` of 64 MB, and an offer that holds it.
fn with_volume(cluster: &Cluster) -> (Framework, Value, Value) {
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let disk = dynamic("disk", 64.0, "dev");
    let data = volume_of(disk.clone(), "v");
    let operations = json!([
        {"type": "RESERVE", "reserve": {"resources": [disk]}},
        {"type": "CREATE", "create": {"volumes": [data]}},
    ]);
    operate(&framework, &offer, operations);
    let offer = offer_with_volume(&mut framework);
    (framework, offer, data)
}

/// An offer of everything, the volume included.
fn offer_with_volume(framework: &mut Framework) -> Value {
    offer_where(framework, "the volume and cpus", |offer| {
        let is_volume = |one: &Value| one["disk"]["persistence"]["id"] == "v";
        sum(&offer["resources"], "disk", is_volume) > 1.0
            && sum(&offer["resources"], "cpus", |_| true) > 1.0
    })
}

fn volume() {
    let mut cluster = cluster("cpus:4;mem:1024;disk:1024");
    let (mut framework, offer, data) = with_volume(&cluster);
    let write = "echo treasure > data/file && test -s data/file";
    run_with(&mut framework, offer, "writes", write, &data);
    let dir = volume_dir(&cluster, "dev", "v");
    let on_disk = || std::fs::read_to_string(dir.join("file")).unwrap_or_default();
    assert_eq!(on_disk(), "treasure\n");
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    let offer = offer_with_volume(&mut framework);
    let read = "test \"$(cat data/file)\" = treasure && echo more >> data/file";
    run_with(&mut framework, offer, "reads", read, &data);
    cluster.restart_master();
    cluster.wait_for_agents(1);
    let mut info = framework_info("dev");
    info["id"] = json!({"value": framework.id});
    let mut framework = Framework::subscribe(&cluster.scheduler_url(), Encoding::Json, &info);
    let offer = offer_with_volume(&mut framework);
    assert_eq!(on_disk(), "treasure\nmore\n");
    let operations = json!([{"type": "DESTROY", "destroy": {"volumes": [data]}}]);
    operate(&framework, &offer, operations);
    wait::eventually("the data is gone", LIMIT, || (!dir.exists()).then_some(()));
    let full = reserved_full(&cluster, "dev", 1);
    assert!(
        full[0].get("disk").is_none(),
        "only the reservation is left: {full}"
    );
}

fn resized() {
    let cluster = cluster("cpus:4;mem:1024;disk:1024");
    let (mut framework, offer, data) = with_volume(&cluster);
    run_with(
        &mut framework,
        offer,
        "writes",
        "echo kept > data/file",
        &data,
    );
    let offer = offer_with_volume(&mut framework);
    let more = dynamic("disk", 32.0, "dev");
    let operations = json!([
        {"type": "RESERVE", "reserve": {"resources": [more]}},
        {"type": "GROW_VOLUME", "grow_volume": {"volume": data, "addition": more}},
    ]);
    operate(&framework, &offer, operations);
    let big = |one: &Value| one["disk"]["persistence"]["id"] == "v";
    let offer = offer_where(&mut framework, "a volume of 96 MB", |offer| {
        is(sum(&offer["resources"], "disk", big), 96.0)
    });
    let grown = volume_of(dynamic("disk", 96.0, "dev"), "v");
    let operations = json!([{"type": "SHRINK_VOLUME",
        "shrink_volume": {"volume": grown, "subtract": {"value": 80.0}}}]);
    operate(&framework, &offer, operations);
    offer_where(&mut framework, "a volume of 16 MB", |offer| {
        is(sum(&offer["resources"], "disk", big), 16.0)
    });
    reserved_full(&cluster, "dev", 2);
    let kept = std::fs::read_to_string(volume_dir(&cluster, "dev", "v").join("file"));
    assert_eq!(kept.unwrap_or_default(), "kept\n");
}

/// The agent does not start with less than what it has promised, and says so.
fn fewer() {
    let mut cluster = cluster("cpus:4;mem:1024");
    let agent = agent_id(&cluster);
    let three = json!([dynamic("cpus", 3.0, "dev")]).to_string();
    let answer = post_form(&cluster, "/reserve", &agent, "resources", &three);
    assert_eq!(answer.status, 202, "{}", answer.text());
    reserved_full(&cluster, "dev", 1);
    cluster.agents[0].kill();
    let dir = cluster.dir.path().join("agent-0");
    // As a new agent, so that only the reservations stand in the way.
    std::fs::remove_file(dir.join("meta/slaves/latest")).expect("removed");
    let start = |resources: &str| {
        std::process::Command::new(meseta_tests::daemon::binary())
            .arg("agent")
            .args([
                format!("--work_dir={}", dir.display()),
                format!("--runtime_dir={}", dir.join("run").display()),
                format!("--cgroups_root={}", cluster.cgroups_root),
                format!("--master={}", cluster.master.address()),
                "--port=0".to_owned(),
                format!("--resources={resources}"),
            ])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("the agent runs")
    };
    let mut child = start("cpus:2;mem:1024");
    let ended = wait::holds(LIMIT, || matches!(child.try_wait(), Ok(Some(_))));
    let _ = child.kill();
    let output = child.wait_with_output().expect("the agent ends");
    assert!(
        ended && !output.status.success(),
        "it runs with less than it promised"
    );
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(&output.stdout)
    );
    assert!(said.contains("do not hold cpus:3"), "{said}");
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    wait::eventually("the reservation is back", LIMIT, || {
        let slaves = cluster.master.page("/slaves").json();
        let slaves = slaves["slaves"].as_array()?.clone();
        let active = slaves.into_iter().find(|one| one["active"] == true)?;
        let dev = &active["reserved_resources_full"]["dev"];
        is(sum(dev, "cpus", |_| true), 3.0).then_some(())
    });
}

fn feedback() {
    let mut cluster = cluster("cpus:4;mem:1024");
    let info = framework_info("dev");
    let mut framework = Framework::subscribe(&cluster.scheduler_url(), Encoding::Protobuf, &info);
    let offer = framework.offer();
    let one = dynamic("cpus", 1.0, "dev");
    let operations = json!([
        {"type": "RESERVE", "id": {"value": "good"}, "reserve": {"resources": [one]}},
        {"type": "RESERVE", "id": {"value": "bad"}, "reserve": {"resources": [scalar("cpus", 1.0)]}},
    ]);
    operate(&framework, &offer, operations);
    let told = |framework: &mut Framework, id: &str| {
        let event = framework.wait_until(id, |event| {
            event["type"] == "UPDATE_OPERATION_STATUS"
                && event["update_operation_status"]["status"]["operation_id"]["value"] == id
        });
        event["update_operation_status"]["status"].clone()
    };
    let bad = told(&mut framework, "bad");
    assert_eq!(bad["state"], "OPERATION_ERROR");
    assert!(bad.get("uuid").is_none(), "{bad}");
    let good = told(&mut framework, "good");
    assert_eq!(good["state"], "OPERATION_FINISHED");
    // Not acknowledged: the agent keeps it over its own end and tells it again.
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    let again = told(&mut framework, "good");
    assert_eq!(again["uuid"], good["uuid"]);
    framework.accepted(json!({"type": "ACKNOWLEDGE_OPERATION_STATUS",
        "acknowledge_operation_status": {"agent_id": again["agent_id"],
            "operation_id": {"value": "good"}, "uuid": again["uuid"]["value"]}}));
    let url = format!("{}/api/v1", cluster.agent().url);
    wait::eventually("the agent forgets it", LIMIT, || {
        let answer = http::post_json(&url, &json!({"type": "GET_OPERATIONS"})).json();
        let left = answer["get_operations"]["operations"]
            .as_array()
            .map_or(0, Vec::len);
        (left == 0).then_some(())
    });
    framework.accepted(
        json!({"type": "RECONCILE_OPERATIONS", "reconcile_operations": {
        "operations": [{"operation_id": {"value": "good"}, "agent_id": again["agent_id"]}]}}),
    );
    assert_eq!(told(&mut framework, "good")["state"], "OPERATION_UNKNOWN");
}

/// kill -9 at ten points of a reserve, create, destroy, unreserve cycle, the agent and the master in
/// turn, before and after each operation could have arrived, and while the volume holds data.
fn crashes() {
    let mut cluster = cluster("cpus:4;mem:1024;disk:1024");
    let agent = agent_id(&cluster);
    let disk = dynamic("disk", 64.0, "dev");
    let data = volume_of(disk.clone(), "v");
    let dir = volume_dir(&cluster, "dev", "v");
    twice(&mut cluster, |cluster| {
        let codes = [202];
        asked(cluster, &agent, "/reserve", "resources", &disk, &codes);
    });
    settle(&cluster, &agent, &disk);
    exactly_once(&cluster, &dir, false);

    // The second time it is a repetition if the first one arrived, as is the last.
    let create = |cluster: &Cluster| {
        let codes = [202, 400];
        asked(cluster, &agent, "/create-volumes", "volumes", &data, &codes);
    };
    twice(&mut cluster, create);
    create(&cluster);
    exactly_once(&cluster, &dir, true);
    std::fs::write(dir.join("file"), "treasure").expect("written");

    twice(&mut cluster, |_| {});
    exactly_once(&cluster, &dir, true);
    let kept = std::fs::read_to_string(dir.join("file")).unwrap_or_default();
    assert_eq!(kept, "treasure", "the data is intact");

    let destroy = |cluster: &Cluster| {
        let codes = [202, 400];
        asked(
            cluster,
            &agent,
            "/destroy-volumes",
            "volumes",
            &data,
            &codes,
        );
    };
    twice(&mut cluster, destroy);
    destroy(&cluster);
    exactly_once(&cluster, &dir, false);

    let unreserve = |cluster: &Cluster| {
        let codes = [202, 409];
        asked(cluster, &agent, "/unreserve", "resources", &disk, &codes);
    };
    twice(&mut cluster, unreserve);
    unreserve(&cluster);
    wait::eventually("nothing is reserved", LIMIT, || {
        let state = cluster.agent().page("/state").json();
        let slaves = cluster.master.page("/slaves").json();
        (state["reserved_resources_full"] == json!({})
            && state["unreserved_resources"]["disk"] == 1024.0
            && slaves["slaves"][0]["reserved_resources_full"] == json!({}))
        .then_some(())
    });
}

/// Does it and kills the agent at once, then does it again and kills the master: what was asked for may
/// be on its way, half done, or done.
fn twice(cluster: &mut Cluster, work: impl Fn(&Cluster)) {
    work(cluster);
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    work(cluster);
    cluster.restart_master();
    cluster.wait_for_agents(1);
}

fn asked(cluster: &Cluster, agent: &str, path: &str, name: &str, resource: &Value, codes: &[u16]) {
    let value = json!([resource]).to_string();
    let answer = post_form(cluster, path, agent, name, &value);
    let code = answer.status;
    assert!(codes.contains(&code), "{path}: {code} {}", answer.text());
}

/// One reservation of 64 MB, with the volume or without, say master, agent and disk.
fn exactly_once(cluster: &Cluster, dir: &std::path::Path, has_volume: bool) {
    wait::eventually(
        "one reservation, and the volume if there is one",
        LIMIT,
        || {
            let full = reserved_full(cluster, "dev", 1);
            let is_volume = full[0].get("disk").is_some();
            let amount = sum(&full, "disk", |_| true);
            (is(amount, 64.0) && is_volume == has_volume && dir.exists() == has_volume)
                .then_some(())
        },
    );
}

/// Reservations add up, and one may have been lost: leaves exactly one.
fn settle(cluster: &Cluster, agent: &str, disk: &Value) {
    let value = json!([disk]).to_string();
    let reserved = wait::eventually("master and agent agree", LIMIT, || {
        let master = cluster.master.page("/slaves").json();
        let master = &master["slaves"][0]["reserved_resources_full"]["dev"];
        let state = cluster.agent().page("/state").json();
        let agent = &state["reserved_resources_full"]["dev"];
        (master == agent).then(|| sum(agent, "disk", |_| true))
    });
    let path = if is(reserved, 64.0) {
        return;
    } else if reserved < 64.0 {
        "/reserve"
    } else {
        "/unreserve"
    };
    let answer = post_form(cluster, path, agent, "resources", &value);
    assert_eq!(answer.status, 202, "{}", answer.text());
    wait::eventually("one of them is there", LIMIT, || {
        let state = cluster.agent().page("/state").json();
        let dev = &state["reserved_resources_full"]["dev"];
        is(sum(dev, "disk", |_| true), 64.0).then_some(())
    });
}
