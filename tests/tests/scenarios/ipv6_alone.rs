//! Scenarios of other groups on a machine whose only address is `::1`, and the effects of IPv6 alone: addresses in
//! brackets.
//!
//! Each runs in a network namespace of its own, which [`network::with_ipv6_alone`] makes.

use meseta_tests::network::{self, unless_ipv6_alone};
use meseta_tests::{Cluster, Missing, http};
use serde_json::Value;

use super::{clients, failover, job_examples, jobs, local};

meseta_tests::scenarios! {
    unless_ipv6_alone:
        addresses_stand_in_brackets = || on_ipv6(addresses_in_brackets),
        used_port_is_reported = || on_ipv6(local::used_port_is_reported),
        ctrl_c_leaves_nothing = || on_ipv6(local::ctrl_c_leaves_nothing),
        the_smallest_service_says_hello = || on_ipv6(job_examples::the_smallest_service_says_hello),
        array_gang_starts_whole = || on_ipv6(job_examples::array_gang_starts_whole),
        service_rolls_and_reverts_itself =
            || on_ipv6(jobs::service_rolls_and_reverts_itself);
    unless_python:
        database_keeps_volume_until_purge =
            || on_ipv6(job_examples::database_keeps_volume_until_purge),
        rolling_web_service_fails_no_request =
            || on_ipv6(job_examples::rolling_web_service_fails_no_request),
        the_example_in_python = || on_ipv6(clients::the_example_in_python);
    unless_etcd:
        killed_leader_is_replaced =
            || on_ipv6(failover::killed_leader_is_replaced),
        followers_send_clients_to_the_leader = || on_ipv6(failover::followers_send_clients_to_the_leader),
        scheduler_continues_after_leader_kill =
            || on_ipv6(jobs::scheduler_continues_after_leader_kill),
        three_masters_reelect_after_kill = || on_ipv6(local::three_masters_reelect_after_kill);
    unless_curl:
        the_example_in_curl = || on_ipv6(clients::the_example_in_curl);
    unless_pymesos:
        pymesos_runs_unmodified = || on_ipv6(clients::pymesos_runs_unmodified);
    unless_mesoshttp:
        mesoshttp_runs_unmodified = || on_ipv6(|| clients::requests("mesoshttp"));
    unless_avmesos:
        avmesos_runs_unmodified = || on_ipv6(|| clients::requests("avmesos"));
    unless_mesos_framework:
        mesos_framework_runs_unmodified = || on_ipv6(clients::mesos_framework_runs_unmodified);
}

fn on_ipv6(test: fn()) {
    network::with_ipv6_alone(test);
}

fn unless_python() -> Missing {
    unless_ipv6_alone().or_else(clients::unless_python)
}

fn unless_etcd() -> Missing {
    unless_ipv6_alone().or_else(failover::without_etcd)
}

fn unless_curl() -> Missing {
    unless_ipv6_alone().or_else(clients::unless_curl)
}

/// Returns the reason for clients that cut an address at its first colon.
fn takes_no_ipv6(client: &str) -> Missing {
    Some(format!(
        "{client} takes no IPv6 address: it cuts the master's at the first colon, and needs a name instead"
    ))
}

fn unless_pymesos() -> Missing {
    takes_no_ipv6("pymesos")
}

fn unless_mesoshttp() -> Missing {
    unless_ipv6_alone().or_else(clients::unless_mesoshttp)
}

fn unless_avmesos() -> Missing {
    unless_ipv6_alone().or_else(clients::unless_avmesos)
}

fn unless_mesos_framework() -> Missing {
    takes_no_ipv6("mesos-framework")
}

/// Checks the addresses that daemons, frameworks and tasks receive, and that the command line prints.
fn addresses_in_brackets() {
    let cluster = Cluster::default();
    let master = cluster.master.address().to_owned();
    let agent = cluster.agent().address().to_owned();
    assert!(master.starts_with("[::1]:"), "{master}");
    assert!(agent.starts_with("[::1]:"), "{agent}");
    let state = cluster.master.page("/state").json();
    let expect = |found: &Value, expected: &str| assert_eq!(found, expected, "{state}");
    expect(&state["pid"], &format!("master@{master}"));
    expect(&state["leader"], &format!("master@{master}"));
    expect(&state["hostname"], "::1");
    expect(&state["slaves"][0]["pid"], &format!("slave(1)@{agent}"));
    let own = http::get(&format!("{}/state", cluster.agent().url)).json();
    assert_eq!(own["pid"], format!("slave(1)@{agent}"));
    let redirect = http::get(&format!("{}/redirect", cluster.master.url));
    let location = redirect.header("location");
    assert_eq!(location, Some(format!("//{master}").as_str()));

    let mut framework = cluster.framework();
    let told = framework.subscribed["subscribed"]["master_info"].clone();
    assert_eq!(told["pid"], format!("master@{master}"));
    assert_eq!(told["address"]["ip"], "::1");
    // The field has no room for an IPv6 address.
    assert_eq!(told["ip"], 0);
    let offer = framework.offer();
    assert_eq!(offer["url"]["address"]["ip"], "::1");
    let shows = "env | grep -E '^(LIBPROCESS_IP|MESOS_AGENT_ENDPOINT|MESOS_SLAVE_PID)=' | sort";
    let amounts = [("cpus", 0.1), ("mem", 32.0)];
    framework.launch_task(&offer, "t", shows, &amounts);
    framework.until_state("t", "TASK_FINISHED");
    let logs = cluster.meseta("logs", &["t"]);
    let text = String::from_utf8_lossy(&logs.stdout);
    let expected = format!(
        "LIBPROCESS_IP=::1\nMESOS_AGENT_ENDPOINT={agent}\nMESOS_SLAVE_PID=slave(1)@{agent}\n"
    );
    assert_eq!(text, expected);
    let listed = cluster.meseta("agents", &[]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains(&agent), "{listed}");
}
