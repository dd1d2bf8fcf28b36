//! Floods of calls with very long texts: their traces in the logs are bounded in bytes.

use std::time::Duration;

use meseta_tests::framework::{framework_info, task};
use meseta_tests::{Cluster, Encoding, Framework};
use serde_json::json;

/// The number of frameworks that subscribe, each under a name of a megabyte.
const SUBSCRIPTIONS: usize = 60;
/// The number of failing launches, each with a URI of a megabyte.
const LAUNCHES: usize = 20;
/// Bytes that one of them may write to the logs of both daemons together, at the level `debug` of the tests.
const BYTES_FOR_EACH_MAX: usize = 16 << 10;

/// Returns the length of a log's longest line.
fn longest(log: &str) -> usize {
    log.lines().map(str::len).max().unwrap_or_default()
}

/// Regression: failing launches wrote 2.4 GB a minute to the agent's log, and subscriptions as much to the master's.
pub(super) fn floods_of_long_names_are_cut() {
    let cluster = Cluster::default();
    let logs = || [cluster.master.log_text(), cluster.agent().log_text()];
    let bytes = || logs().iter().map(String::len).sum::<usize>();
    let before = bytes();
    let mut framework = cluster.framework();
    let uri = format!("http://127.0.0.1:1/{}", "u".repeat(1 << 20));
    for index in 0..LAUNCHES {
        let offer = framework.offer();
        let mut task = task(
            &offer,
            &format!("t{index}"),
            "exit 0",
            &[("cpus", 0.1), ("mem", 32.0)],
        );
        task["command"]["uris"] = json!([{"value": uri}]);
        framework.call(json!({"type": "ACCEPT", "accept": {
            "offer_ids": [offer["id"]], "filters": {"refuse_seconds": 0.0},
            "operations": [{"type": "LAUNCH", "launch": {"task_infos": [task]}}]}}));
        let failed = framework.within(Duration::from_secs(60), &|event| {
            event["update"]["status"]["state"] == "TASK_FAILED"
        });
        framework.acknowledge(&failed.expect("it fails")["update"]["status"].clone());
    }
    framework.teardown();
    let launched = bytes();
    let written = launched - before;
    assert!(
        written < LAUNCHES * BYTES_FOR_EACH_MAX,
        "{written} bytes of launches"
    );

    let mut long = framework_info("dev");
    long["name"] = json!("n".repeat(1 << 20));
    for _ in 0..SUBSCRIPTIONS {
        // The framework's stream is closed at once.
        let url = cluster.scheduler_url();
        let _gone = Framework::try_subscribe(&url, Encoding::Json, &long);
    }
    let written = bytes() - launched;
    assert!(
        written < SUBSCRIPTIONS * BYTES_FOR_EACH_MAX,
        "{written} bytes of subscriptions"
    );
    for log in logs() {
        assert!(longest(&log) < 4_096, "{} bytes in a line", longest(&log));
    }
    for (daemon, name) in [(&cluster.master, "master"), (cluster.agent(), "agent")] {
        let page = daemon.page("/metrics").text();
        let family = format!("\nmeseta_{name}_log_lines_left_out_total ");
        assert!(page.contains(&family), "{family}");
    }
}
