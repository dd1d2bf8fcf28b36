//! What other people's readers dereference without asking: the keys and the types that Mesos's own page and
//! command line, mesos_exporter and mesos-dns want of our answers.

use std::time::Duration;

use meseta_tests::framework::task;
use meseta_tests::{Cluster, wait};
use serde_json::{Value, json};

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        find_every_key_with_the_type_that_they_want;
}

/// A path of keys, `0` for the first of a list, and what is found there.
type ExpectedField = (&'static str, fn(&Value) -> bool);

fn text(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty())
}

fn empty(value: &Value) -> bool {
    value == ""
}

fn all(page: &Value, what: &str, expected: &[ExpectedField]) {
    for (path, is) in expected {
        let pointer = format!("/{}", path.replace('.', "/"));
        let found = page.pointer(&pointer);
        assert!(
            found.is_some_and(is),
            "{what}: {path} is {found:?} in {page:#}"
        );
    }
}

fn find_every_key_with_the_type_that_they_want() {
    let (cluster, mut framework, offer) = Cluster::with_offer();
    let mut info = task(&offer, "t1", "sleep 1000", &[("cpus", 0.5), ("mem", 32.0)]);
    let ports = json!({"name": "ports", "type": "RANGES",
                       "ranges": {"range": [{"begin": 31000, "end": 31001}]}});
    info["resources"]
        .as_array_mut()
        .expect("resources")
        .push(ports);
    info["discovery"] = json!({"visibility": "CLUSTER", "name": "web",
        "ports": {"ports": [{"number": 31000, "name": "http", "protocol": "tcp"}]}});
    framework.launch(&offer, &[info]);
    framework.until_state("t1", "TASK_RUNNING");
    wait::eventually("a sample", Duration::from_secs(20), || {
        let page = cluster.agent().page("/monitor/statistics").json();
        page.as_array()
            .is_some_and(|all| !all.is_empty())
            .then_some(())
    });
    of_master(&cluster);
    of_agent(&cluster);
    let address = cluster.master.address();
    let state = cluster.master.page("/master/state").json();
    assert_eq!(state["leader"], format!("master@{address}"));
    let ports = &state["frameworks"][0]["tasks"][0]["resources"]["ports"];
    assert_eq!(ports, "[31000-31001]");
}

fn of_master(cluster: &Cluster) {
    let page = |path: &str| cluster.master.page(path).json();
    let numbers = Value::is_number;
    let state: &[ExpectedField] = &[
        ("id", text),
        ("version", text),
        ("flags", Value::is_object),
        ("start_time", numbers),
        ("elected_time", numbers),
        ("build_time", numbers),
        ("build_user", Value::is_string),
        ("activated_slaves", numbers),
        ("deactivated_slaves", numbers),
        ("unreachable_slaves", numbers),
        ("leader_info.hostname", text),
        ("leader_info.port", numbers),
        ("completed_frameworks", Value::is_array),
        ("slaves.0.id", text),
        ("slaves.0.pid", text),
        ("slaves.0.hostname", text),
        ("slaves.0.active", Value::is_boolean),
        ("slaves.0.deactivated", Value::is_boolean),
        ("slaves.0.registered_time", numbers),
        ("slaves.0.attributes", Value::is_object),
        ("slaves.0.resources.cpus", numbers),
        ("slaves.0.resources.gpus", numbers),
        ("slaves.0.resources.mem", numbers),
        ("slaves.0.resources.disk", numbers),
        ("slaves.0.resources.ports", text),
        ("slaves.0.used_resources.cpus", numbers),
        ("slaves.0.used_resources.gpus", numbers),
        ("slaves.0.used_resources.mem", numbers),
        ("slaves.0.used_resources.disk", numbers),
        ("frameworks.0.id", text),
        ("frameworks.0.name", text),
        ("frameworks.0.active", Value::is_boolean),
        ("frameworks.0.hostname", Value::is_string),
        ("frameworks.0.roles", Value::is_array),
        ("frameworks.0.resources.cpus", numbers),
        ("frameworks.0.used_resources.gpus", numbers),
        ("frameworks.0.offers", Value::is_array),
        ("frameworks.0.unreachable_tasks", Value::is_array),
        ("frameworks.0.completed_tasks", Value::is_array),
        ("frameworks.0.tasks.0.id", text),
        ("frameworks.0.tasks.0.name", text),
        ("frameworks.0.tasks.0.state", text),
        ("frameworks.0.tasks.0.slave_id", text),
        ("frameworks.0.tasks.0.framework_id", text),
        // Of a command task there is none, and the page looks for just that.
        ("frameworks.0.tasks.0.executor_id", empty),
        ("frameworks.0.tasks.0.role", text),
        ("frameworks.0.tasks.0.discovery.name", text),
        (
            "frameworks.0.tasks.0.discovery.ports.ports.0.number",
            numbers,
        ),
        ("frameworks.0.tasks.0.statuses.0.state", text),
        ("frameworks.0.tasks.0.statuses.0.timestamp", numbers),
        (
            "frameworks.0.tasks.0.statuses.0.container_status.network_infos.0.ip_addresses.0.ip_address",
            text,
        ),
        (
            "frameworks.0.tasks.0.statuses.0.container_status.container_id.value",
            text,
        ),
    ];
    all(&page("/master/state"), "/master/state", state);
    let slaves = state
        .iter()
        .copied()
        .filter(|(path, _)| path.starts_with("slaves."));
    all(&page("/slaves"), "/slaves", &slaves.collect::<Vec<_>>());
    all(
        &page("/tasks?order=asc&limit=-1"),
        "/tasks",
        &[
            ("tasks.0.id", text),
            ("tasks.0.framework_id", text),
            ("tasks.0.executor_id", empty),
            ("tasks.0.slave_id", text),
            (
                "tasks.0.statuses.0.container_status.container_id.value",
                text,
            ),
        ],
    );
    all(
        &page("/master/frameworks/"),
        "/master/frameworks/",
        &[
            ("frameworks.0.id", text),
            ("frameworks.0.active", Value::is_boolean),
        ],
    );
    all(
        &page("/master/roles"),
        "/master/roles",
        &[
            ("roles.0.name", text),
            ("roles.0.resources.cpus", numbers),
            ("roles.0.weight", numbers),
        ],
    );
    let metrics = page("/metrics/snapshot");
    for state in [
        "staging", "starting", "running", "killing", "finished", "killed", "failed", "lost",
    ] {
        let key = format!("master/tasks_{state}");
        assert!(metrics[&key].is_number(), "{key}");
    }
}

fn of_agent(cluster: &Cluster) {
    let page = |path: &str| cluster.agent().page(path).json();
    let numbers = Value::is_number;
    let state = page("/slave(1)/state");
    all(
        &state,
        "/slave(1)/state",
        &[
            ("id", text),
            ("pid", text),
            ("hostname", text),
            ("version", text),
            ("master_hostname", text),
            ("start_time", numbers),
            ("resources.cpus", numbers),
            ("resources.gpus", numbers),
            ("reserved_resources", Value::is_object),
            ("unreserved_resources.mem", numbers),
            ("attributes", Value::is_object),
            ("completed_frameworks", Value::is_array),
            ("frameworks.0.id", text),
            ("frameworks.0.roles", Value::is_array),
            ("frameworks.0.completed_executors", Value::is_array),
            ("frameworks.0.executors.0.id", text),
            ("frameworks.0.executors.0.source", Value::is_string),
            ("frameworks.0.executors.0.directory", text),
            ("frameworks.0.executors.0.container", text),
            ("frameworks.0.executors.0.resources.cpus", numbers),
            ("frameworks.0.executors.0.resources.gpus", numbers),
            ("frameworks.0.executors.0.tasks.0.id", text),
            ("frameworks.0.executors.0.tasks.0.resources.mem", numbers),
            ("frameworks.0.executors.0.queued_tasks", Value::is_array),
            ("frameworks.0.executors.0.completed_tasks", Value::is_array),
        ],
    );
    assert_eq!(
        state["version"],
        cluster.master.page("/version").json()["version"],
        "both speak one interface"
    );
    for path in ["/monitor/statistics", "/slave(1)/monitor/statistics"] {
        all(
            &page(path),
            path,
            &[
                ("0.executor_id", text),
                ("0.executor_name", Value::is_string),
                ("0.framework_id", text),
                ("0.source", Value::is_string),
                ("0.statistics.timestamp", numbers),
                ("0.statistics.cpus_user_time_secs", numbers),
                ("0.statistics.cpus_system_time_secs", numbers),
                ("0.statistics.mem_limit_bytes", numbers),
                ("0.statistics.mem_rss_bytes", numbers),
            ],
        );
    }
    let metrics = page("/metrics/snapshot");
    for state in [
        "staging", "starting", "running", "killing", "finished", "killed", "failed", "lost",
    ] {
        let key = format!("slave/tasks_{state}");
        assert!(metrics[&key].is_number(), "{key}");
    }
    let directory = state["frameworks"][0]["executors"][0]["directory"].as_str();
    let directory = directory.expect("a directory");
    all(
        &page(&format!("/files/browse?path={directory}")),
        "/files/browse",
        &[
            ("0.path", text),
            ("0.mode", text),
            ("0.nlink", numbers),
            ("0.uid", text),
            ("0.gid", text),
            ("0.size", numbers),
            ("0.mtime", numbers),
        ],
    );
    let size = page(&format!("/files/read?path={directory}/stdout&offset=-1"));
    assert_eq!(size, json!({"data": "", "offset": 0}));
}
