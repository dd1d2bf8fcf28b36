//! Obedience and discovery among several masters: by lists, by the answers of followers, by epochs.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use meseta_proto::leader::{Attempt, MasterSearch, named_leader};
use meseta_proto::meseta::v1::scheduler_client::SchedulerClient;
use meseta_proto::mesos::v1::FrameworkInfo;
use meseta_proto::mesos::v1::scheduler::{Event, call};
use meseta_tests::daemon::binary;
use meseta_tests::framework::framework_info;
use meseta_tests::http;
use meseta_tests::masters::{FAILOVER_LIMIT, Masters};
use meseta_tests::wait::eventually;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::failover::{Node, epoch_of, start_agent, subscribe, task_states, without_etcd};

meseta_tests::scenarios! {
    without_etcd:
        grpc_framework_follows_redirect_to_leader,
        agent_finds_leader_through_follower,
        verbs_find_leader_in_list,
        execute_leaves_paused_leader,
        agent_refuses_older_registry_epoch;
}

async fn subscribed_at(
    master: &str,
    subscribe: call::Subscribe,
) -> Result<Streaming<Event>, Status> {
    let endpoint = Channel::from_shared(format!("http://{master}")).expect("an address");
    let mut client = SchedulerClient::new(endpoint.connect_lazy());
    Ok(client.subscribe(subscribe).await?.into_inner())
}

/// Subscribes at the master that the search finds, and reads the first event.
async fn subscribed(search: &mut MasterSearch, framework: &FrameworkInfo) -> (String, Event) {
    for _ in 0..100 {
        let Attempt { master, pause } = search.next_attempt();
        tokio::time::sleep(pause).await;
        let subscribe = call::Subscribe {
            framework_info: framework.clone(),
            ..call::Subscribe::default()
        };
        match subscribed_at(&master, subscribe).await {
            Ok(mut events) => {
                search.succeeded(&master);
                let first = events.message().await.expect("an event");
                return (master, first.expect("an event"));
            }
            Err(status) => assert!(search.failed(&status), "{master}: {status}"),
        }
    }
    panic!("no master leads");
}

fn grpc_framework_follows_redirect_to_leader() {
    let mut masters = Masters::start(2, &[]);
    let leader = masters.leader();
    let follower = masters.all[1 - leader].address().to_owned();
    let leader_address = masters.all[leader].address().to_owned();
    let mut framework = FrameworkInfo {
        user: "root".to_owned(),
        name: "grpc".to_owned(),
        role: Some("web".to_owned()),
        failover_timeout: Some(600.0),
        ..FrameworkInfo::default()
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let request = call::Subscribe {
        framework_info: framework.clone(),
        ..call::Subscribe::default()
    };
    let refused = runtime.block_on(subscribed_at(&follower, request));
    let status = refused.expect_err("a follower takes no subscriptions");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert_eq!(named_leader(&status), Some(leader_address.as_str()));

    let list = format!("{follower},{leader_address}");
    let mut search = MasterSearch::parse(&list, 1).expect("a list");
    let (at, event) = runtime.block_on(subscribed(&mut search, &framework));
    assert_eq!(at, leader_address);
    let id = event.subscribed.expect("SUBSCRIBED").framework_id;
    // The leader is gone: the same search finds the next one.
    framework.id = Some(id.clone());
    masters.all[leader].kill();
    let (at, event) = runtime.block_on(subscribed(&mut search, &framework));
    assert_eq!(at, follower);
    assert_eq!(event.subscribed.expect("SUBSCRIBED").framework_id, id);
}

/// Returns the ids of the connected agents.
fn connected_agents(url: &str) -> Vec<String> {
    let page = http::get(&format!("{url}/slaves")).json();
    let agents = page["slaves"].as_array().cloned().unwrap_or_default();
    let connected = agents.iter().filter(|agent| agent["active"] == true);
    connected
        .filter_map(|agent| Some(agent["id"].as_str()?.to_owned()))
        .collect()
}

fn agent_finds_leader_through_follower() {
    let masters = Masters::start(2, &[]);
    let leader = masters.leader();
    let follower = masters.all[1 - leader].address();
    let agent = start_agent(&masters, follower);
    eventually("the agent is registered", FAILOVER_LIMIT, || {
        (connected_agents(&masters.all[leader].url).len() == 1).then_some(())
    });
    let log = agent.daemon.log_text();
    let (asked, leads) = (format!("{follower}: "), masters.all[leader].address());
    let is_refusal = |line: &str| line.contains(&asked) && line.contains(&format!("{leads} leads"));
    assert!(log.lines().any(is_refusal), "{log}");
}

fn meseta(arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(arguments).env_remove("MESETA_MASTER");
    command.output().expect("meseta runs")
}

/// Returns the output of a successful verb.
fn printed(arguments: &[&str]) -> String {
    let output = meseta(arguments);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {complaint}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn verbs_find_leader_in_list() {
    let mut masters = Masters::start(3, &[]);
    let leader = masters.leader();
    let list = format!("--master={}", masters.addresses());
    let follower = masters.all[(leader + 1) % 3].address().to_owned();
    let follower = format!("--master={follower}");
    printed(&["weights", "set", "web=2.5", &list]);
    for master in [&list, &follower] {
        let weights = printed(&["weights", master]);
        assert!(weights.contains("2.5"), "{master}: {weights}");
    }
    printed(&["weights", "set", "web=3.5", &follower]);
    // The verb waits, because right after a crash no master leads.
    masters.all[leader].kill();
    let weights = printed(&["weights", &list]);
    assert!(weights.contains("3.5"), "{weights}");

    let etcd = "--master=etcd://a:2379,b:2379/meseta";
    let refused = meseta(&["tasks", etcd]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("master1:5050,master2:5050"), "{said}");
    let dir = masters.dir.path().join("refused");
    let said = meseta_tests::daemon::refused("agent", &dir, &["--port=0", etcd]);
    assert!(said.contains("master1:5050,master2:5050"), "{said}");
}

/// A suspended leader keeps its connections, and a task with them its framework.
fn execute_leaves_paused_leader() {
    /// Another master leads after 8 s; the command notices the silence of the stream after 20 s.
    const LIMIT: Duration = Duration::from_secs(60);
    let masters = Masters::start(2, &[]);
    let leader = masters.leader();
    let url = masters.all[leader].url.clone();
    let _agent = start_agent(&masters, &masters.addresses());
    let end = masters.dir.path().join("end");
    let task = format!(
        "until [ -e {} ]; do sleep 0.1; done; echo ended",
        end.display()
    );
    let execute = Command::new(binary())
        .args(["execute", "--resources=cpus:0.1;mem:32", "--command", &task])
        .arg(format!("--master={}", masters.addresses()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("meseta runs");
    eventually("the task runs", FAILOVER_LIMIT, || {
        (task_states(&url) == ["TASK_RUNNING"]).then_some(())
    });
    kill(Pid::from_raw(masters.all[leader].pid()), Signal::SIGSTOP).expect("it stands still");
    let next = masters.leader_but(Some(leader));
    let frameworks = format!("{}/frameworks", masters.all[next].url);
    eventually("the framework is back", LIMIT, || {
        let page = http::get(&frameworks).json();
        (page["frameworks"][0]["connected"] == true).then_some(())
    });
    std::fs::write(&end, "").expect("written");
    let output = execute.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ended\n", "{said}");
}

/// Returns the epochs of an agent's registrations, in order.
fn epochs_of(agent: &Node) -> Vec<u64> {
    let log = agent.daemon.log_text();
    let registrations = log
        .lines()
        .filter(|line| line.contains("registered agent_id="));
    let epoch = |line: &str| {
        let (_, rest) = line.split_once(" epoch=")?;
        rest.split_whitespace().next()?.parse().ok()
    };
    registrations.filter_map(epoch).collect()
}

fn until_registered(agent: &Node, epoch: u64) {
    eventually("the agent is registered", FAILOVER_LIMIT, || {
        (epochs_of(agent).last() == Some(&epoch)).then_some(())
    });
}

/// Replaces etcd's data with a copy of other data.
fn copy(masters: &Masters, from: &str, to: &str) {
    let dir = masters.dir.path();
    let _absent = std::fs::remove_dir_all(dir.join(to));
    let status = Command::new("cp")
        .arg("-r")
        .args([dir.join(from), dir.join(to)])
        .status();
    assert!(status.expect("cp runs").success());
}

fn agent_refuses_older_registry_epoch() {
    let mut masters = Masters::start(1, &[]);
    masters.all[0].end(Duration::from_secs(20));
    masters.etcd.kill();
    copy(&masters, "etcd", "etcd-older");
    masters.etcd.restart();
    masters.restart(0);
    masters.leader();
    let url = masters.all[0].url.clone();
    let mut agent = start_agent(&masters, masters.all[0].address());
    until_registered(&agent, 2);
    let id = connected_agents(&url);
    let mut framework = subscribe(&url, &framework_info("web"));
    let offer = framework.offer();
    framework.launch_task(&offer, "t1", "sleep 1000", &[("cpus", 0.1), ("mem", 32.0)]);
    let running = framework.until_state("t1", "TASK_RUNNING");
    framework.acknowledge(&running);
    let record = masters
        .dir
        .path()
        .join("agent/meta/slaves/latest/slave.info");
    let read = || std::fs::read(&record).expect("the agent's record");
    let before = read();
    masters.restart(0);
    until_registered(&agent, 3);
    // An epoch that was not durable when the agent was killed was not obeyed.
    eventually("the epoch is durable", FAILOVER_LIMIT, || {
        (read() != before).then_some(())
    });

    agent.daemon.kill();
    masters.all[0].kill();
    masters.etcd.kill();
    copy(&masters, "etcd-older", "etcd");
    masters.etcd.restart();
    masters.restart(0);
    masters.leader();
    assert_eq!(epoch_of(&url), 2, "the restored registry is behind");
    agent.restart();
    until_registered(&agent, 4);
    assert_eq!(epoch_of(&url), 4);
    assert_eq!(connected_agents(&url), id);
    assert_eq!(task_states(&url), ["TASK_RUNNING"]);
    let log = masters.all[0].log_text();
    assert!(log.contains("restored from an older copy"), "{log}");
    // The higher epoch is durable.
    masters.restart(0);
    until_registered(&agent, 5);
    let epochs = epochs_of(&agent);
    assert!(epochs.is_sorted(), "{epochs:?}");
}
