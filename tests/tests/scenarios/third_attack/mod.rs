//! A third attack, by an attacker who knows the defences: each check is an attempt of `docs/dev/third-attack.md`.
//!
//! - [`fleet`]: a secured cluster, and the attacker's rights in it;
//! - [`floods`]: calls with very long texts, without pause;
//! - [`job_tenants`]: what principals see of the jobs of each other;
//! - [`tenants`]: the information and access of principals with few rights.

mod fleet;
mod floods;
mod job_tenants;
mod tenants;

use meseta_tests::masters::Etcd;
use meseta_tests::wait::eventually;
use meseta_tests::{Missing, unless_installed, unless_root};

use crate::anywhere;
use floods::floods_of_long_names_are_cut;
use job_tenants::principals_read_their_own_jobs_alone;
use tenants::{
    hidden_ids_answer_as_unknown_ids, hidden_work_is_told_to_nobody,
    odd_paths_and_hosts_reach_nothing,
};

use fleet::{Fleet, LIMIT, Rogue, delete, etcd_flags, poison};

meseta_tests::scenarios! {
    with_etcd:
        poisoned_etcd_leaks_no_secret;
    anywhere:
        floods_of_long_names_are_cut;
    unless_root:
        hidden_work_is_told_to_nobody,
        hidden_ids_answer_as_unknown_ids,
        principals_read_their_own_jobs_alone,
        odd_paths_and_hosts_reach_nothing;
}

fn with_etcd() -> Missing {
    unless_installed("etcd").or_else(|| unless_installed("openssl"))
}

/// Waits until one of these daemons leads; returns it and the follower, which knows it.
fn leader_of(fleet: &Fleet, all: [usize; 2]) -> (usize, usize) {
    eventually("one leads and the other one knows it", LIMIT, || {
        let roles = all.map(|one| {
            let page = fleet.get(one, "admin", "/leader")?.json();
            let role = page["role"].as_str()?.to_owned();
            page["leader"].is_string().then_some(role)
        });
        match roles.each_ref().map(Option::as_deref) {
            [Some("leading"), Some("following")] => Some((all[0], all[1])),
            [Some("following"), Some("leading")] => Some((all[1], all[0])),
            _ => None,
        }
    })
}

/// Checks that a follower sends no client to the rogue node, whose address etcd holds as the leader's.
fn sends_nobody(fleet: &Fleet, follower: usize, paths: &[&str], rogue: &Rogue) {
    eventually("the follower has read etcd", LIMIT, || {
        let page = fleet.get(follower, "admin", "/leader")?.json();
        page["leader"].is_null().then_some(())
    });
    for path in paths {
        let answer = fleet.get(follower, "admin", path).expect("an answer");
        let said = answer.text();
        assert_eq!(answer.status, 503, "{path}: {said}");
        assert_eq!(answer.header("location"), None, "{path}");
        assert!(!said.contains(&rogue.address), "{path}: {said}");
    }
}

/// Checks that these daemons list each other and do not list the rogue node, once they have seen it.
fn lists_each_other_alone(fleet: &Fleet, all: &[usize], list: &str, rogue: &Rogue) {
    let before = rogue.handshakes();
    eventually(
        "each daemon asked the rogue node for its proof",
        LIMIT,
        || (rogue.handshakes() >= before + all.len()).then_some(()),
    );
    let mut expected: Vec<_> = all
        .iter()
        .map(|one| fleet.daemons[*one].address())
        .collect();
    expected.sort_unstable();
    for one in all {
        eventually("the daemons are listed", LIMIT, || {
            let page = fleet.get(*one, "admin", "/leader")?.json();
            let listed = page[list].as_array().expect("a list");
            let mut listed: Vec<_> = listed.iter().filter_map(|one| one.as_str()).collect();
            listed.sort_unstable();
            assert!(!listed.contains(&&*rogue.address), "{listed:?}");
            (listed == expected).then_some(())
        });
    }
}

/// An attacker with access to etcd names a node of the fleet as the leader. Its certificate is valid, but no master's.
fn poisoned_etcd_leaks_no_secret() {
    let mut fleet = Fleet::new();
    let etcd = Etcd::start(fleet.dir.path());
    let masters = etcd_flags(&etcd, "--registry=etcd");
    let masters = [(); 2].map(|()| fleet.start("master.example", "master", &masters));
    let (leader, follower) = leader_of(&fleet, masters);
    // Without an attack a follower redirects clients to the leader.
    let there = fleet.get(follower, "admin", "/state").expect("an answer");
    assert_eq!(there.status, 307, "{}", there.text());
    let leads = fleet.daemons[leader].address().to_owned();
    let location = there.header("location").unwrap_or_default().to_owned();
    assert_eq!(location, format!("//{leads}/state"));

    let rogue = Rogue::start(&fleet);
    // The node is no master among the others either, which people may try one by one.
    poison(&etcd, "/meseta/masters/0", &rogue.address);
    lists_each_other_alone(&fleet, &masters, "masters", &rogue);
    poison(&etcd, "/meseta/leader", &rogue.address);
    let paths = ["/state", "/redirect", "/master/tasks?x=y"];
    sends_nobody(&fleet, follower, &paths, &rogue);
    let master = fleet.daemons[follower].address().to_owned();
    let listed = fleet.verb("admin", &master, &["agents"]);
    assert!(!listed.status.success(), "{listed:?}");
    let agent = fleet.start("node1.example", "agent", &[format!("--master={master}")]);
    eventually("the agent was turned away", LIMIT, || {
        let log = fleet.daemons[agent].log_text();
        log.contains("has not proven yet").then_some(())
    });
    let log = fleet.daemons[agent].log_text();
    assert!(
        !log.contains(&rogue.address),
        "the agent was sent there: {log}"
    );

    // The same holds for schedulers of jobs, to which verbs send secrets too.
    let mut schedulers = etcd_flags(&etcd, "--store=etcd");
    schedulers.push(format!("--master={leads}"));
    schedulers.push("--user=nobody".to_owned());
    let schedulers = [(); 2].map(|()| fleet.start("master.example", "scheduler", &schedulers));
    let (_, follower) = leader_of(&fleet, schedulers);
    poison(&etcd, "/meseta-scheduler/schedulers/0", &rogue.address);
    lists_each_other_alone(&fleet, &schedulers, "schedulers", &rogue);
    poison(&etcd, "/meseta-scheduler/leader", &rogue.address);
    sends_nobody(&fleet, follower, &["/v1/jobs"], &rogue);
    let asked = fleet.daemons[follower].address().to_owned();
    let listed = fleet.verb("admin", &asked, &["jobs"]);
    assert!(!listed.status.success(), "{listed:?}");

    assert!(rogue.handshakes() > 0, "nobody looked at the rogue node");
    assert_eq!(rogue.sent(), "", "the rogue node was sent something");

    // The attack ends, and the next leader is found.
    delete(&etcd, "/meseta/leader");
    eventually("the follower leads, and has the agent", LIMIT, || {
        let all = fleet.verb("admin", &master, &["agents"]);
        let listed = String::from_utf8_lossy(&all.stdout).into_owned();
        listed.contains("node1.example").then_some(())
    });
    assert_eq!(rogue.sent(), "", "the rogue node was sent something");
}
