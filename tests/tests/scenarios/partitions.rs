//! Network failures between master and agent: for a moment, for long, in one direction, for some packets. Hosts are
//! namespaces behind a bridge of this test.

use std::time::{Duration, Instant};

use meseta_tests::daemon::Daemon;
use meseta_tests::framework::{framework_info, task};
use meseta_tests::network::{self, Host};
use meseta_tests::{
    Encoding, Framework, Missing, http, kernel, unless_installed, unless_root, wait,
};
use serde_json::{Value, json};
use tempfile::TempDir;

meseta_tests::scenarios! {
    unless_network:
        partitioned_agent_returns_with_its_task;
    unless_lossy:
        packet_loss_loses_no_update;
}

fn unless_network() -> Missing {
    let programs = ["ip", "bridge", "setpriv", "nsenter"].into_iter();
    unless_root().or_else(|| programs.filter_map(unless_installed).next())
}

fn unless_lossy() -> Missing {
    let programs = ["nft", "tc"].into_iter();
    unless_network().or_else(|| programs.filter_map(unless_installed).next())
}

const SMALL: &[(&str, f64)] = &[("cpus", 0.1), ("mem", 32.0)];
const PATIENCE: Duration = Duration::from_secs(60);
const MASTER: u8 = 2;
const AGENT: u8 = 3;
/// Longer than the agent's timeout.
const LONGER: Duration = Duration::from_secs(9);
/// The time from the end of a fault until all is as before.
const RETURN_MAX: Duration = Duration::from_secs(15);

/// A master and an agent, each on its own host. The fields are dropped in this order.
struct Hosts {
    agent: Daemon,
    master: Daemon,
    agent_host: Host,
    master_host: Host,
    cgroups_root: String,
    _dir: TempDir,
}

impl Hosts {
    fn start(name: &str, master_flags: &[&str]) -> Self {
        let (master_host, agent_host) = (host(MASTER), host(AGENT));
        let dir = TempDir::with_prefix("meseta-test-").expect("a directory");
        let cgroups_root = format!("meseta-test-{}-{name}", std::process::id());
        let mut flags = at(&master_host, 5050);
        flags.extend(master_flags.iter().map(|flag| (*flag).to_owned()));
        let run = |host: &Host, verb: &str, flags: &[String]| {
            Daemon::start_under(&host.prefix(), verb, &dir.path().join(verb), flags)
        };
        let master = run(&master_host, "master", &flags);
        let mut flags = at(&agent_host, 5051);
        flags.extend([
            format!("--master={}", master.address()),
            format!("--runtime_dir={}", dir.path().join("run").display()),
            format!("--cgroups_root={cgroups_root}"),
            "--resources=cpus:4;mem:4096;disk:4096".to_owned(),
            "--shutdown_tasks_on_exit".to_owned(),
        ]);
        let agent = run(&agent_host, "agent", &flags);
        Self {
            agent,
            master,
            agent_host,
            master_host,
            cgroups_root,
            _dir: dir,
        }
    }

    fn framework(&self) -> Framework {
        let url = format!("{}/api/v1/scheduler", self.master.url);
        Framework::subscribe(&url, Encoding::Json, &framework_info("dev"))
    }

    fn lost(&self) -> f64 {
        let metrics = self.master.page("/metrics/snapshot").json();
        let name = "master/slave_unreachable_completed";
        metrics[name].as_f64().expect("a number")
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.agent.end(Duration::from_secs(10));
        kernel::remove_groups(&self.cgroups_root);
    }
}

fn host(number: u8) -> Host {
    Host::new(number).expect("a host")
}

fn at(host: &Host, port: u16) -> Vec<String> {
    vec![
        format!("--ip={}", host.address),
        format!("--port={port}"),
        format!("--hostname={}", host.address),
        "--insecure".to_owned(),
    ]
}

/// Runs a test in a separate network.
fn apart(test: fn()) {
    let thread = std::thread::spawn(move || {
        network::leave().expect("a network");
        network::make_bridge().expect("a bridge");
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// A lasting task, and its process.
struct Steady {
    pid: i32,
    born: Option<u64>,
}

impl Steady {
    fn run(framework: &mut Framework) -> Self {
        let offer = framework.offer();
        let status = framework.run_task(&offer, "t", "exec sleep 600", SMALL);
        let pid = status["container_status"]["executor_pid"].as_i64();
        let pid = i32::try_from(pid.expect("a pid")).expect("a pid");
        let born = kernel::start_time(pid);
        assert!(born.is_some());
        Self { pid, born }
    }

    fn goes_on(&self) {
        assert_eq!(
            kernel::start_time(self.pid),
            self.born,
            "another process, or none"
        );
    }
}

/// Returns the next reported state of a task, and acknowledges it.
fn next(framework: &mut Framework) -> Value {
    let status = framework.update("t");
    framework.acknowledge(&status);
    status["state"].clone()
}

/// Whether no update of a task came within this time.
fn is_quiet(framework: &mut Framework, lasting: Duration) -> bool {
    let of_task = |event: &Value| event["type"] == "UPDATE";
    match framework.within(lasting, &of_task) {
        Err(why) => why == "time is up",
        Ok(event) => {
            eprintln!("told: {event:#}");
            false
        }
    }
}

fn partitioned_agent_returns_with_its_task() {
    apart(|| {
        // The agent's timeout is eight seconds.
        let hosts = Hosts::start(
            "cut",
            &[
                "--agent_ping_timeout=1secs",
                "--max_agent_ping_timeouts=8",
                "--agent_removal_rate_limit=none",
            ],
        );
        let mut framework = hosts.framework();
        let steady = Steady::run(&mut framework);
        hosts.agent_host.isolate().expect("cut off");
        assert!(
            is_quiet(&mut framework, Duration::from_secs(2)),
            "for a moment"
        );
        hosts.agent_host.rejoin().expect("joined");
        assert!(is_quiet(&mut framework, LONGER), "after a moment");
        steady.goes_on();
        let (master, agent) = (hosts.master_host.address, hosts.agent_host.address);
        type Step<'a> = &'a dyn Fn() -> anyhow::Result<()>;
        let faults: [(&str, Step<'_>, Step<'_>); 3] = [
            ("both directions", &|| hosts.agent_host.isolate(), &|| {
                hosts.agent_host.rejoin()
            }),
            (
                "from the agent",
                &|| hosts.agent_host.lose_to(master),
                &|| hosts.agent_host.find_again(master),
            ),
            (
                "from the master",
                &|| hosts.master_host.lose_to(agent),
                &|| hosts.master_host.find_again(agent),
            ),
        ];
        for (number, (name, begin, end)) in faults.into_iter().enumerate() {
            begin().expect("begun");
            assert_eq!(next(&mut framework), "TASK_UNREACHABLE", "{name}");
            // The task is not lost a second time.
            assert!(is_quiet(&mut framework, LONGER), "{name}");
            end().expect("ended");
            let healed = Instant::now();
            assert_eq!(next(&mut framework), "TASK_RUNNING", "{name}");
            let took = healed.elapsed();
            eprintln!("{name}: back after {took:?}");
            assert!(took < RETURN_MAX, "{name}: {took:?}");
            steady.goes_on();
            let lost = f64::from(u32::try_from(number + 1).expect("a few"));
            assert!(
                (hosts.lost() - lost).abs() < 0.5,
                "{name}: {}",
                hosts.lost()
            );
        }
        framework.kill("t");
        framework.until_state("t", "TASK_KILLED");
    });
}

/// Runs a program on the host of the agent.
fn on(host: &Host, arguments: &[&str]) {
    let prefix = host.prefix();
    let status = std::process::Command::new(&prefix[0])
        .args(&prefix[1..])
        .args(arguments)
        .status();
    assert!(status.is_ok_and(|status| status.success()), "{arguments:?}");
}

/// Launches short tasks one after the other for a while; returns their number.
fn short_tasks(framework: &mut Framework, name: &str, lasting: Duration) -> usize {
    let began = Instant::now();
    let mut count = 0;
    while began.elapsed() < lasting {
        let offer = framework.offer();
        let id = format!("{name}-{count}");
        framework.launch(&offer, &[task(&offer, &id, "exit 3", SMALL)]);
        // A segment that was lost seven times in a row is resent after more than twenty seconds.
        let status = framework.until_end(&id, PATIENCE);
        assert_eq!(status["state"], "TASK_FAILED", "{status:#}");
        count += 1;
    }
    count
}

fn packet_loss_loses_no_update() {
    apart(|| {
        let hosts = Hosts::start("loss", &["--agent_removal_rate_limit=none"]);
        let mut framework = hosts.framework();
        let steady = Steady::run(&mut framework);
        let lose = "add table inet loss; \
            add chain inet loss input { type filter hook input priority 0; }; \
            add chain inet loss output { type filter hook output priority 0; }; \
            add rule inet loss input iif eth0 numgen random mod 100 < 30 drop; \
            add rule inet loss output oif eth0 numgen random mod 100 < 30 drop";
        on(&hosts.agent_host, &["nft", lose]);
        let lossy = short_tasks(&mut framework, "lossy", Duration::from_secs(12));
        on(&hosts.agent_host, &["nft", "delete table inet loss"]);
        let rate = ["rate", "64kbit", "burst", "8kb", "latency", "800ms"];
        let shape = ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf"];
        on(&hosts.agent_host, &[&shape[..], &rate[..]].concat());
        let slow = short_tasks(&mut framework, "slow", Duration::from_secs(5));
        eprintln!("{lossy} tasks with losses, {slow} over a slow line");
        assert!(lossy > 0 && slow > 0);
        steady.goes_on();
        assert!(hosts.lost() < 0.5);
        framework.accepted(
            json!({"type": "RECONCILE", "reconcile": {"tasks": [{"task_id": {"value": "t"}}]}}),
        );
        assert_eq!(framework.update("t")["state"], "TASK_RUNNING");
        let health = http::get(&format!("{}/health", hosts.master.url));
        assert_eq!(health.status, 200);
        wait::eventually("only one task is left", PATIENCE, || {
            (kernel::tasks_below(&hosts.cgroups_root).len() == 1).then_some(())
        });
    });
}
