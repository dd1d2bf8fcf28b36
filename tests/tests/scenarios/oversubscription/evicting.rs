//! Tests of evictions: by the load of the machine and by pressure on its memory, of borrowers only.

use std::path::PathBuf;
use std::time::Duration;

use meseta_tests::framework::task;
use meseta_tests::revocable::{
    launch_and_decline_rest, revocable_framework, revocable_task, wait_for_revocable_offer,
};
use meseta_tests::{Cluster, Framework, kernel, wait};
use serde_json::{Value, json};

use super::{PATIENCE, cluster, fixed_flags, machine, metric, set};

pub(super) const LOAD: &str = r#"{
  "libraries": {
    "file": "/usr/local/lib64/libload_qos_controller.so",
    "modules": {
      "name": "org_apache_mesos_LoadQoSController",
      "parameters": [
        {
          "key": "load_threshold_5min",
          "value": "6"
        },
        {
	  "key": "load_threshold_15min",
	  "value": "4"
        }
      ]
    }
  }
}"#;

/// Starts two regular and two revocable tasks, each in its own container.
fn two_and_two(cluster: &Cluster) -> (Framework, Framework) {
    let mut regular = cluster.framework();
    let offer = regular.offer();
    let small = [("cpus", 0.1), ("mem", 32.0)];
    let tasks = ["r1", "r2"].map(|id| task(&offer, id, "exec sleep 600", &small));
    launch_and_decline_rest(&regular, &offer, &tasks);
    for id in ["r1", "r2"] {
        regular.until_state(id, "TASK_RUNNING");
    }
    let mut revocable_framework = revocable_framework(cluster);
    launch_two_revocable_tasks(&mut revocable_framework);
    assert_eq!(kernel::tasks_below(&cluster.cgroups_root).len(), 4);
    (regular, revocable_framework)
}

fn launch_two_revocable_tasks(revocable_framework: &mut Framework) {
    let offer = wait_for_revocable_offer(revocable_framework);
    let tasks = ["b1", "b2"].map(|id| revocable_task(&offer, id, "exec sleep 600", 2.0));
    revocable_framework.launch(&offer, &tasks);
    for id in ["b1", "b2"] {
        revocable_framework.until_state(id, "TASK_RUNNING");
    }
}

fn evicted(revocable_framework: &mut Framework, detector: &str) {
    for id in ["b1", "b2"] {
        let of_it = |event: &Value| {
            event["type"] == "UPDATE" && event["update"]["status"]["task_id"]["value"] == id
        };
        let event = revocable_framework
            .within(PATIENCE, &of_it)
            .expect("the end of its task");
        let status = event["update"]["status"].clone();
        revocable_framework.acknowledge(&status);
        assert_eq!(status["state"], "TASK_GONE", "{status:#}");
        assert_eq!(status["reason"], "REASON_CONTAINER_PREEMPTED", "{status:#}");
        assert_eq!(status["source"], "SOURCE_AGENT", "{status:#}");
        let message = status["message"].as_str().unwrap_or_default();
        assert!(
            message.starts_with("Container preempted by QoS correction"),
            "{message}"
        );
        assert!(message.contains(detector), "{message}");
    }
}

/// Checks that only the processes of regular containers are left, by the kernel's count.
fn only_the_regular_are_left(cluster: &Cluster) {
    let inside = |group: &PathBuf| {
        group
            .parent()
            .is_some_and(|parent| parent.ends_with(".revocable"))
    };
    wait::eventually("the evicted are gone", PATIENCE, || {
        let groups = kernel::groups_below(&cluster.cgroups_root);
        let count = kernel::tasks_below(&cluster.cgroups_root).len();
        (count == 2 && !groups.iter().any(inside)).then_some(())
    });
}

pub(super) fn load_controller_evicts_revocable_executors() {
    let dir = tempfile::tempdir().expect("a folder");
    let proc = machine(dir.path());
    let mut flags = fixed_flags();
    flags.extend([
        "--qos_controller=org_apache_mesos_LoadQoSController".to_owned(),
        "--qos_correction_interval_min=20secs".to_owned(),
        format!("--modules={LOAD}"),
        format!("--host_proc={}", proc.display()),
    ]);
    // A load at both thresholds is not above them, whatever the last minute was like.
    set(&proc, "loadavg", "99.00 6.00 4.00 1/80 4242\n");
    let cluster = cluster(flags);
    let (_regular, mut revocable_framework) = two_and_two(&cluster);
    let seen = |detector: &str, value: f64| {
        let series = format!("meseta_agent_qos_detector_value{{detector=\"{detector}\"}}");
        wait::eventually("a round of the controller", PATIENCE, || {
            (metric(&cluster, &series) == Some(value)).then_some(())
        });
    };
    seen("load-5min", 6.0);
    set(&proc, "loadavg", "0.10 5.50 3.90 1/80 4242\n");
    seen("load-15min", 3.9);
    assert_eq!(
        kernel::tasks_below(&cluster.cgroups_root).len(),
        4,
        "nobody was evicted"
    );
    set(&proc, "loadavg", "0.10 0.20 4.01 1/80 4242\n");
    let began = std::time::Instant::now();
    evicted(&mut revocable_framework, "load-15min");
    assert!(
        began.elapsed() > Duration::from_secs(5),
        "a round came {:?} after the last one, not 20 s",
        began.elapsed()
    );
    only_the_regular_are_left(&cluster);
    // New revocable tasks are subject to the other threshold.
    set(&proc, "loadavg", "0.10 0.10 0.10 1/80 4242\n");
    launch_two_revocable_tasks(&mut revocable_framework);
    set(&proc, "loadavg", "0.10 6.01 0.10 1/80 4242\n");
    evicted(&mut revocable_framework, "load-5min");
    only_the_regular_are_left(&cluster);
    for detector in ["load-15min", "load-5min"] {
        let labels = format!("{{detector=\"{detector}\",action=\"kill\"}}");
        let series = format!("meseta_agent_qos_corrections_total{labels}");
        assert_eq!(metric(&cluster, &series), Some(2.0), "{detector}");
    }
    let keys = cluster.agent().page("/metrics/snapshot").json();
    assert_eq!(keys["slave/executors_preempted"], json!(4.0));
    assert_eq!(keys["slave/tasks_gone"], json!(4.0));
}

/// Returns the meminfo of a machine of 1 GB with this available memory.
fn meminfo(available_mb: u64) -> String {
    let zero = [
        "Buffers",
        "Cached",
        "SwapCached",
        "Active",
        "Inactive",
        "SwapTotal",
        "SwapFree",
        "Dirty",
        "Writeback",
        "Mapped",
        "Slab",
        "Committed_AS",
        "VmallocTotal",
        "VmallocUsed",
        "VmallocChunk",
    ];
    let mut text = format!("MemTotal: {} kB\nMemFree: 0 kB\n", 1024 * 1024);
    text += &format!("MemAvailable: {} kB\n", available_mb * 1024);
    for name in zero {
        text += &format!("{name}: 0 kB\n");
    }
    text
}

pub(super) fn memory_pressure_kills_largest_revocable_task() {
    let dir = tempfile::tempdir().expect("a folder");
    let proc = machine(dir.path());
    set(&proc, "meminfo", &meminfo(900));
    let mut flags = fixed_flags();
    flags.extend([
        "--qos_controller=pressure".to_owned(),
        format!("--host_proc={}", proc.display()),
    ]);
    let cluster = cluster(flags);
    let mut regular = cluster.framework();
    let offer = regular.offer();
    let hold = |mb: u32| format!("head -c {mb}m /dev/zero | tail -c {mb}m | sleep 600");
    let tasks = [task(
        &offer,
        "r",
        &hold(40),
        &[("cpus", 0.1), ("mem", 128.0)],
    )];
    launch_and_decline_rest(&regular, &offer, &tasks);
    regular.until_state("r", "TASK_RUNNING");
    let mut revocable_framework = revocable_framework(&cluster);
    let offer = wait_for_revocable_offer(&mut revocable_framework);
    let mut tasks =
        [("small", 4), ("large", 30)].map(|(id, mb)| revocable_task(&offer, id, &hold(mb), 2.0));
    for task in &mut tasks {
        task["resources"][1]["scalar"]["value"] = json!(128.0);
    }
    revocable_framework.launch(&offer, &tasks);
    for id in ["small", "large"] {
        revocable_framework.until_state(id, "TASK_RUNNING");
    }
    let rest = wait_for_revocable_offer(&mut revocable_framework);
    wait::eventually("the large one has touched its memory", PATIENCE, || {
        let answer = cluster.agent().page("/monitor/statistics").json();
        let all = answer.as_array()?.clone();
        let large = all.iter().find(|one| one["executor_id"] == "large")?;
        let bytes = large["statistics"]["mem_rss_bytes"].as_u64()?;
        (bytes >= 29 << 20).then_some(())
    });
    // 84 of 100 are used: no more is oversubscribed, the offer is rescinded, no task dies.
    set(&proc, "meminfo", &meminfo(1024 * 16 / 100));
    revocable_framework.wait_until("the offer is rescinded", |event| {
        event["type"] == "RESCIND" && event["rescind"]["offer_id"] == rest["id"]
    });
    wait::eventually("the stop shows", PATIENCE, || {
        (metric(&cluster, "meseta_agent_oversubscribed_stopped") == Some(1.0)).then_some(())
    });
    assert_eq!(
        metric(&cluster, "meseta_agent_executors_preempted_total"),
        Some(0.0)
    );
    // The use is 88 of 100: about 80 MB too much. The largest revocable task is evicted first.
    set(&proc, "meminfo", &meminfo(1024 * 12 / 100));
    let status = revocable_framework.until_end("large", PATIENCE);
    assert_eq!(status["reason"], "REASON_CONTAINER_PREEMPTED", "{status:#}");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.contains("mem-watermark"), "{message}");
    // The machine is calm: oversubscription is allowed again, and the regular task was not affected.
    set(&proc, "meminfo", &meminfo(900));
    wait::eventually("it is over", PATIENCE, || {
        (metric(&cluster, "meseta_agent_oversubscribed_stopped") == Some(0.0)).then_some(())
    });
    let state = cluster.agent().page("/state").json();
    let frameworks = state["frameworks"].as_array().expect("frameworks");
    let runs = frameworks
        .iter()
        .flat_map(|f| f["executors"].as_array().cloned().unwrap_or_default());
    assert!(
        runs.into_iter().any(|executor| executor["id"] == "r"),
        "{state:#}"
    );
}
