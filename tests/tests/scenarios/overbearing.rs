//! Greedy frameworks and executors: kept offers, endless calls and updates, countless names. Others get their share
//! meanwhile.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use meseta_tests::framework::{framework_info, task};
use meseta_tests::{Cluster, Framework, Setup, executor, http, kernel, unless_root, wait};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

meseta_tests::scenarios! {
    unless_root:
        talkative_executor_delays_nobody,
        greedy_framework_leaves_others_offers;
    crate::anywhere:
        very_many_roles_have_few_series,
        failover_timeout_survives_master_restart;
}

const SMALL: &[(&str, f64)] = &[("cpus", 0.1), ("mem", 32.0)];
const PATIENCE: Duration = Duration::from_secs(60);
/// Offers that may have been rescinded before one is accepted in time.
const OFFERS_MAX: usize = 20;

/// Runs tasks one after the other; returns their durations from ACCEPT to the end, sorted.
fn short_tasks(framework: &mut Framework, name: &str, count: usize) -> Vec<Duration> {
    let mut took: Vec<_> = (0..count)
        .map(|number| {
            let offer = framework.offer();
            let id = format!("{name}-{number}");
            let began = Instant::now();
            framework.launch_task(&offer, &id, "true", SMALL);
            framework.until_state(&id, "TASK_FINISHED");
            began.elapsed()
        })
        .collect();
    took.sort_unstable();
    took
}

/// Runs a task; returns its duration from ACCEPT to the end. Tries again if the offer was rescinded before.
fn short_task(framework: &mut Framework, name: &str) -> Duration {
    for attempt in 0..OFFERS_MAX {
        let offer = framework.offer();
        let id = format!("{name}-{attempt}");
        let began = Instant::now();
        framework.launch_task(&offer, &id, "true", SMALL);
        let status = framework.until_end(&id, PATIENCE);
        if status["state"] == "TASK_FINISHED" {
            return began.elapsed();
        }
        let has_run_out =
            status["state"] == "TASK_DROPPED" && status["reason"] == "REASON_INVALID_OFFERS";
        assert!(has_run_out, "{status:#}");
    }
    panic!("{name} is dropped again and again");
}

/// Returns the durations of this many answers of a daemon, sorted.
fn answers(url: &str, count: usize) -> Vec<Duration> {
    let mut took: Vec<_> = (0..count)
        .map(|_| {
            let began = Instant::now();
            assert_eq!(http::get(&format!("{url}/health")).status, 200);
            began.elapsed()
        })
        .collect();
    took.sort_unstable();
    took
}

fn talkative_executor_delays_nobody() {
    let cluster = Cluster::default();
    let mut other = cluster.framework();
    let before = short_tasks(&mut other, "before", 5);
    other.teardown();
    let agent = cluster.agent().pid();
    let resident = kernel::memory_kib(agent, "VmRSS").expect("it runs");
    let mut flooding = cluster.subscribe(&framework_info("flood"));
    let offer = flooding.offer();
    let resources = task(&offer, "x", "", SMALL)["resources"].clone();
    let info = executor::info("e", &flooding.id, &resources);
    let mut flood = task(&offer, "flood", executor::FLOOD, SMALL);
    executor::assign(&mut flood, &info);
    let mut other = cluster.framework();
    // Others get its unused resources.
    flooding.accepted(json!({"type": "ACCEPT", "accept": {
        "offer_ids": [offer["id"]], "filters": {"refuse_seconds": 3600.0},
        "operations": [{"type": "LAUNCH", "launch": {"task_infos": [flood]}}]}}));
    // The framework acknowledges none of the updates.
    let status = flooding.update("flood");
    assert_eq!(status["state"], "TASK_RUNNING", "{status:#}");
    let meanwhile = short_tasks(&mut other, "meanwhile", 8);
    let answered = answers(&cluster.agent().url, 100);
    let grown = kernel::memory_kib(agent, "VmRSS")
        .expect("it runs")
        .saturating_sub(resident);
    eprintln!(
        "a task takes {:?} before and {:?} (slowest {:?}) beside the flood; slowest answer {:?}; {grown} KiB more",
        before[2], meanwhile[4], meanwhile[7], answered[98],
    );
    assert!(meanwhile[7] < Duration::from_secs(10), "{meanwhile:?}");
    assert!(answered[98] < Duration::from_secs(3), "{answered:?}");
    assert!(grown < 64 << 10, "{grown} KiB");
    flooding.teardown();
    wait::eventually("the executor is gone", PATIENCE, || {
        kernel::tasks_below(&cluster.cgroups_root)
            .is_empty()
            .then_some(())
    });
    short_tasks(&mut other, "after", 2);
}

fn greedy_framework_leaves_others_offers() {
    const REVIVALS: usize = 5_000;
    let cluster = Cluster::start(Setup {
        master_flags: vec!["--offer_timeout=1secs".to_owned()],
        ..Setup::default()
    });
    let mut keeps = cluster.subscribe(&framework_info("keeps"));
    let kept = keeps.offer();
    // All resources were offered to the framework that keeps them.
    let mut other = cluster.framework();
    let rescinded =
        |event: &Value| event["type"] == "RESCIND" && event["rescind"]["offer_id"] == kept["id"];
    keeps.wait_until("the rescission", rescinded);
    short_task(&mut other, "first");
    // One call requests far more than permitted.
    let many: Vec<_> = (0..20_000)
        .map(|number| task(&kept, &format!("t{number}"), "true", SMALL))
        .collect();
    let answer = keeps.call(
        json!({"type": "ACCEPT", "accept": {"offer_ids": [kept["id"]],
        "operations": [{"type": "LAUNCH", "launch": {"task_infos": many}}]}}),
    );
    assert_eq!(answer.status, 400, "{}", answer.text());
    std::thread::scope(|scope| {
        let revives = move || {
            for _ in 0..REVIVALS {
                let answer = keeps.try_call(json!({"type": "REVIVE"}));
                assert!(answer.is_ok_and(|answer| [202, 429].contains(&answer.status)));
            }
        };
        let reviving = scope.spawn(revives);
        let mut slowest = Duration::ZERO;
        let mut count = 0;
        while !reviving.is_finished() || count < 3 {
            // The greedy framework has them for a second each time.
            let took = short_task(&mut other, &format!("meanwhile-{count}"));
            slowest = slowest.max(took);
            count += 1;
        }
        eprintln!("{count} tasks beside {REVIVALS} calls, the slowest took {slowest:?}");
        assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    });
}

fn very_many_roles_have_few_series() {
    const ROLES: usize = 3_000;
    const SERIES_MAX: usize = 20_000;
    let cluster = Cluster::default();
    let roles: Vec<_> = (0..ROLES).map(|number| format!("role-{number}")).collect();
    let mut info = framework_info("dev");
    info["roles"] = json!(roles);
    let _of_all = cluster.subscribe(&info);
    let _others: Vec<_> = (0..200)
        .map(|number| {
            let mut info = framework_info("dev");
            info["name"] = json!(format!("name-{number}"));
            cluster.subscribe(&info)
        })
        .collect();
    let text = cluster.master.page("/metrics").text();
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    let named: BTreeSet<_> = text
        .lines()
        .filter_map(|line| line.split("role=\"").nth(1)?.split('"').next())
        .collect();
    eprintln!("{series} series of {} roles", named.len());
    assert!(named.len() <= 1_000, "{} roles", named.len());
    assert!(series < SERIES_MAX, "{series} series");
    assert!(!text.contains("name-1"), "a framework's name is a label");
}

fn failover_timeout_survives_master_restart() {
    const TIME: Duration = Duration::from_secs(16);
    /// Less than the half that a timeout would have left if a restart in the middle reset it.
    const LATE_MAX: Duration = Duration::from_secs(7);
    let mut cluster = Cluster::start(Setup {
        // A new master waits for agents at least this long, and with them for frameworks.
        master_flags: vec!["--agent_reregister_timeout=2secs".to_owned()],
        ..Setup::default()
    });
    let mut info = framework_info("dev");
    info["failover_timeout"] = json!(TIME.as_secs());
    let mut framework = cluster.subscribe(&info);
    let offer = framework.offer();
    let status = framework.run_task(&offer, "t", "exec sleep 600", SMALL);
    let pid = status["container_status"]["executor_pid"].as_i64();
    let pid = i32::try_from(pid.expect("a pid")).expect("a pid");
    let born = kernel::start_time(pid).expect("it lives");
    let lives = || kernel::start_time(pid) == Some(born);
    let id = framework.id.clone();
    // The scheduler is stopped permanently: the connection exists until the master ends.
    kernel::kill(cluster.master.pid(), Signal::SIGKILL);
    drop(framework);
    cluster.restart_master();
    // A framework that is back in time has its whole timeout again.
    let mut again = info.clone();
    again["id"] = json!({"value": id});
    let framework = cluster.subscribe(&again);
    cluster.wait_for_agents(1);
    let url = cluster.scheduler_url();
    let leaving = Instant::now();
    disconnect(&cluster, framework, &again);
    let away = Instant::now();
    wait::holds(TIME / 2, || !lives());
    assert!(lives(), "ended after {:?}", away.elapsed());
    cluster.restart_master();
    let ended = wait::holds(TIME * 2, || !lives());
    let (took, at_most) = (away.elapsed(), leaving.elapsed());
    eprintln!("ended after {took:?} of {TIME:?}");
    assert!(ended, "it lives after {took:?}");
    assert!(at_most + Duration::from_secs(1) >= TIME, "{at_most:?}");
    assert!(
        took < TIME + LATE_MAX,
        "a restart gave it more time: {took:?}"
    );
    let refused = Framework::try_subscribe(&url, meseta_tests::Encoding::Json, &again);
    assert!(
        refused.is_err(),
        "a framework that is no more was taken back"
    );
}

/// Ends the stream of a framework, and waits until the master notices.
fn disconnect(cluster: &Cluster, framework: Framework, info: &Value) {
    let id = framework.id.clone();
    drop(framework);
    crate::pauses::leave(cluster, info);
    wait::eventually("the master knows", PATIENCE, || {
        let frameworks = cluster.master.page("/frameworks").json();
        let all = frameworks["frameworks"].as_array()?.clone();
        let own = all.iter().find(|one| one["id"] == id.as_str())?;
        (own["connected"] == false).then_some(())
    });
}
