//! Connections that are cut at any byte, stall, repeat everything, or lead elsewhere: no action is done by half or twice,
//! and every disconnected peer comes back.

use std::io::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use meseta_tests::daemon::{Daemon, free_port};
use meseta_tests::framework::{framework_info, task};
use meseta_tests::proxy::{Proxy, Sender};
use meseta_tests::{
    Cluster, Encoding, Framework, Missing, Setup, http, unless_installed, unless_root, wait,
};
use serde_json::{Value, json};

meseta_tests::scenarios! {
    crate::anywhere:
        cut_launch_runs_at_most_once,
        cut_registration_completes_once,
        cut_order_runs_or_is_lost,
        dead_connection_is_noticed_task_continues,
        replayed_agent_frames_end_no_task,
        newer_of_two_schedulers_is_served;
    unless_hosts:
        master_is_found_after_dns_change;
}

fn unless_hosts() -> Missing {
    unless_root().or_else(|| unless_installed("unshare"))
}

const SMALL: &[(&str, f64)] = &[("cpus", 0.1), ("mem", 32.0)];
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the bytes of a framework's call on the wire.
fn wire_bytes(framework: &Framework, mut call: Value) -> Vec<u8> {
    call["framework_id"] = json!({"value": framework.id});
    let body = call.to_string();
    let head = format!(
        "POST /api/v1/scheduler HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Mesos-Stream-Id: {}\r\nContent-Length: {}\r\n\r\n",
        framework.stream_id,
        body.len()
    );
    (head + &body).into_bytes()
}

fn tasks_of(cluster: &Cluster) -> Vec<Value> {
    let tasks = cluster.master.page("/tasks").json();
    tasks["tasks"].as_array().expect("a list").clone()
}

fn cut_launch_runs_at_most_once() {
    let (cluster, mut framework, offer) = Cluster::with_offer();
    let info = task(&offer, "t", "exec sleep 600", SMALL);
    let accept = json!({"type": "ACCEPT", "accept": {"offer_ids": [offer["id"]],
        "operations": [{"type": "LAUNCH", "launch": {"task_infos": [info]}}]}});
    let bytes = wire_bytes(&framework, accept);
    let address = cluster.master.address();
    for end in 0..bytes.len() {
        let mut stream = TcpStream::connect(address).expect("connected");
        stream.write_all(&bytes[..end]).expect("sent");
    }
    let metrics = cluster.master.page("/metrics/snapshot").json();
    assert_eq!(metrics["master/messages_launch_tasks"].as_f64(), Some(0.0));
    assert_eq!(tasks_of(&cluster), Vec::<Value>::new());
    for status in ["202", "400"] {
        let mut raw = meseta_tests::raw::Raw::connect(address);
        raw.send(&bytes);
        let said = raw.head().status.to_string();
        // An update of the task, and not the answer, reports that an offer is used up.
        assert!(said == status || said == "202", "{said}");
    }
    framework.until_state("t", "TASK_RUNNING");
    assert_eq!(tasks_of(&cluster).len(), 1);
    framework.kill("t");
    framework.until_state("t", "TASK_KILLED");
}

/// A cluster whose agent uses a proxy to the master.
struct Between {
    cluster: Cluster,
    proxy: Proxy,
}

impl Between {
    fn start(master_flags: &[&str]) -> Self {
        let mut between = Self::without_agent(master_flags);
        between.start_agent();
        between.cluster.wait_for_agents(1);
        between
    }

    fn without_agent(master_flags: &[&str]) -> Self {
        let cluster = Cluster::start(Setup {
            agents: 0,
            master_flags: master_flags.iter().map(|flag| (*flag).to_owned()).collect(),
            ..Setup::default()
        });
        let proxy = Proxy::new(cluster.master.address());
        Self { cluster, proxy }
    }

    fn start_agent(&mut self) {
        let flags = agent_flags(&self.cluster, &self.proxy.address);
        let agent = Daemon::start("agent", &self.cluster.agent_dir(0), &flags);
        self.cluster.agents.push(agent);
    }
}

fn agent_flags(cluster: &Cluster, master: &str) -> Vec<String> {
    vec![
        "--port=0".to_owned(),
        format!("--master={master}"),
        format!(
            "--runtime_dir={}",
            cluster.agent_dir(0).join("run").display()
        ),
        format!("--cgroups_root={}", cluster.cgroups_root),
        "--resources=cpus:4;mem:4096;disk:4096".to_owned(),
        "--registration_backoff_factor=10ms".to_owned(),
        "--shutdown_tasks_on_exit".to_owned(),
    ]
}

fn agents(cluster: &Cluster) -> Vec<Value> {
    let slaves = cluster.master.page("/slaves").json();
    slaves["slaves"].as_array().expect("a list").clone()
}

fn cut_registration_completes_once() {
    let mut between = Between::without_agent(&[]);
    // An agent that forgot its id is known by its address.
    let port = format!("--port={}", free_port());
    let mut flags = agent_flags(&between.cluster, &between.proxy.address);
    flags[0] = port;
    let dir = between.cluster.agent_dir(0);
    // The preface and the settings of HTTP/2 have about sixty bytes; a registration is well below two thousand.
    for offset in [
        0, 1, 24, 60, 100, 150, 200, 300, 400, 500, 700, 1_000, 1_500,
    ] {
        between.proxy.cut_after(Sender::Client, offset);
        let before = between.proxy.count();
        // The agent makes its first attempt at once.
        let mut agent = Daemon::start("agent", &dir, &flags);
        wait::eventually("it is cut off, or registered", PATIENCE, || {
            let is_cut = between.proxy.count() > before && between.proxy.is_newest_over();
            (is_cut || agents(&between.cluster).len() == 1).then_some(())
        });
        agent.kill();
        assert!(agents(&between.cluster).len() <= 1, "after {offset} bytes");
    }
    between.proxy.mend();
    let agent = Daemon::start("agent", &dir, &flags);
    between.cluster.agents.push(agent);
    between.cluster.wait_for_agents(1);
    assert_eq!(agents(&between.cluster).len(), 1);
    let mut framework = between.cluster.framework();
    let offer = framework.offer();
    framework.launch_task(&offer, "t", "true", SMALL);
    framework.until_state("t", "TASK_FINISHED");
}

/// Returns how often a task began, by its file.
fn began(mark: &Path) -> usize {
    let text = std::fs::read_to_string(mark).unwrap_or_default();
    text.lines().count()
}

/// Returns the first state of a task that shows the result of its launch.
fn outcome(framework: &mut Framework, id: &str) -> String {
    loop {
        let status = framework.update(id);
        framework.acknowledge(&status);
        let state = status["state"].as_str().expect("a state");
        if !["TASK_STAGING", "TASK_STARTING"].contains(&state) {
            return state.to_owned();
        }
    }
}

fn cut_order_runs_or_is_lost() {
    let between = Between::start(&[]);
    let mut framework = between.cluster.framework();
    let mut outcomes = Vec::new();
    for bytes in [1, 9, 40, 150, 300, 350, 600] {
        let id = format!("t{bytes}");
        let mark = between.cluster.dir.path().join(&id);
        let command = format!("echo began >> {}; exec sleep 600", mark.display());
        let offer = crate::enforcement::standing_offer(&mut framework);
        between.proxy.cut_newest_after(Sender::Server, bytes);
        framework.launch_task(&offer, &id, &command, SMALL);
        let state = outcome(&mut framework, &id);
        if state == "TASK_RUNNING" {
            wait::eventually("it has begun", PATIENCE, || {
                (began(&mark) > 0).then_some(())
            });
            framework.kill(&id);
            framework.until_state(&id, "TASK_KILLED");
        } else {
            assert!(
                ["TASK_DROPPED", "TASK_LOST"].contains(&state.as_str()),
                "{state}"
            );
            assert_eq!(began(&mark), 0, "told {state}, and it ran");
        }
        assert!(began(&mark) <= 1, "it began twice");
        outcomes.push((bytes, state));
    }
    eprintln!("cut after so many bytes of what the master says: {outcomes:?}");
    assert!(outcomes.iter().any(|(_, state)| state != "TASK_RUNNING"));
}

/// Runs a lasting task; returns its process.
fn steady(framework: &mut Framework) -> i64 {
    let offer = framework.offer();
    let status = framework.run_task(&offer, "t", "exec sleep 600", SMALL);
    status["container_status"]["executor_pid"]
        .as_i64()
        .expect("a pid")
}

/// Returns the master's state of a task, and its process.
fn asked(framework: &mut Framework) -> Value {
    let question =
        json!({"type": "RECONCILE", "reconcile": {"tasks": [{"task_id": {"value": "t"}}]}});
    framework.accepted(question);
    let is_answer = |event: &Value| event["update"]["status"]["reason"] == "REASON_RECONCILIATION";
    framework.wait_until("an answer", is_answer)["update"]["status"].clone()
}

/// Checks that the task runs as the same process, and ends on request.
fn goes_on(framework: &mut Framework, pid: i64) {
    let status = asked(framework);
    assert_eq!(status["state"], "TASK_RUNNING", "{status:#}");
    assert!(Path::new(&format!("/proc/{pid}")).exists());
    framework.kill("t");
    framework.until_state("t", "TASK_KILLED");
}

fn dead_connection_is_noticed_task_continues() {
    let between = Between::start(&[
        "--agent_ping_timeout=1secs",
        "--max_agent_ping_timeouts=3",
        "--agent_removal_rate_limit=none",
    ]);
    let mut framework = between.cluster.framework();
    let pid = steady(&mut framework);
    let before = between.proxy.count();
    between.proxy.hold();
    let stood_still = Instant::now();
    wait::eventually("the agent connects anew", PATIENCE, || {
        (between.proxy.count() > before).then_some(())
    });
    let took = stood_still.elapsed();
    eprintln!("noticed after {took:?} of three pings a second apart");
    assert!(took < Duration::from_secs(15), "{took:?}");
    between.cluster.wait_for_agents(1);
    // Messages that were delayed all the while no longer count.
    between.proxy.release();
    goes_on(&mut framework, pid);
    assert_eq!(agents(&between.cluster).len(), 1);
}

/// Without TLS the replay counts as another agent of that address, which is away as soon as its connection ends.
fn replayed_agent_frames_end_no_task() {
    let between = Between::start(&[]);
    let id = between.cluster.agent_id();
    let mut framework = between.cluster.framework();
    let pid = steady(&mut framework);
    let said = between.proxy.said();
    assert!(said.len() > 500, "{} bytes", said.len());
    let is_active = |id: &str| {
        let all = agents(&between.cluster);
        let mut own = all.iter().filter(|agent| agent["id"] == id);
        own.any(|agent| agent["active"] == true)
    };
    for part in [said.len() / 3, said.len() / 2, said.len()] {
        let mut again = TcpStream::connect(between.cluster.master.address()).expect("connected");
        // The connection may be closed before all bytes are sent.
        let _ = again.write_all(&said[..part]);
        assert!(is_active(&id), "after {part} bytes");
    }
    between.cluster.wait_for_agents(1);
    assert!(is_active(&id));
    assert_eq!(tasks_of(&between.cluster).len(), 1);
    goes_on(&mut framework, pid);
    let offer = crate::enforcement::standing_offer(&mut framework);
    assert_eq!(offer["agent_id"]["value"], id.as_str());
    framework.launch_task(&offer, "after", "true", SMALL);
    framework.until_state("after", "TASK_FINISHED");
}

fn newer_of_two_schedulers_is_served() {
    let cluster = Cluster::default();
    let proxy = Proxy::new(cluster.master.address());
    let url = format!("http://{}/api/v1/scheduler", proxy.address);
    let mut cut_off = Framework::subscribe(&url, Encoding::Json, &framework_info("dev"));
    let offer = cut_off.offer();
    proxy.hold();
    let mut info = framework_info("dev");
    info["id"] = json!({"value": cut_off.id});
    let mut later = cluster.subscribe(&info);
    let served = later.offer();
    assert_ne!(served["id"], offer["id"], "an offer of two");
    proxy.release();
    let over = |event: &Value| event["type"] == "OFFERS";
    assert_eq!(cut_off.within(PATIENCE, &over), Err("the stream has ended"));
    // The earlier framework uses a stream that has ended.
    let info = task(&offer, "old", "true", SMALL);
    let answer = cut_off.call(
        json!({"type": "ACCEPT", "accept": {"offer_ids": [offer["id"]],
        "operations": [{"type": "LAUNCH", "launch": {"task_infos": [info]}}]}}),
    );
    assert!((400..500).contains(&answer.status), "{}", answer.text());
    later.launch_task(&served, "new", "true", SMALL);
    later.until_state("new", "TASK_FINISHED");
    let known = http::get(&format!("{}/tasks", cluster.master.url)).text();
    assert!(!known.contains("\"old\""), "{known}");
}

/// Gives the master's name a new address, for the agent only: a separate file is its `/etc/hosts`.
fn master_is_found_after_dns_change() {
    const NAME: &str = "master.meseta.test";
    let mut cluster = Cluster::start(Setup {
        agents: 0,
        ..Setup::default()
    });
    let (port, dir) = (free_port(), cluster.dir.path().join("named"));
    let hosts = cluster.dir.path().join("hosts");
    let lead_to = |address: &str| {
        std::fs::write(&hosts, format!("{address} {NAME}\n127.0.0.1 localhost\n"))
            .expect("written");
    };
    let start = |address: &str| {
        let flags = [format!("--ip={address}"), format!("--port={port}")];
        Daemon::start("master", &dir, &flags)
    };
    lead_to("127.0.0.2");
    cluster.master = start("127.0.0.2");
    let inside = format!(
        "mount --make-rprivate / && mount --bind {} /etc/hosts && exec \"$0\" \"$@\"",
        hosts.display()
    );
    let prefix = ["unshare", "--mount", "sh", "-c", &inside].map(str::to_owned);
    let flags = agent_flags(&cluster, &format!("{NAME}:{port}"));
    let agent = Daemon::start_under(&prefix, "agent", &cluster.agent_dir(0), &flags);
    cluster.agents.push(agent);
    cluster.wait_for_agents(1);
    let id = cluster.agent_id();
    cluster.master.kill();
    lead_to("127.0.0.3");
    cluster.master = start("127.0.0.3");
    cluster.wait_for_agents(1);
    assert_eq!(cluster.agent_id(), id);
}
