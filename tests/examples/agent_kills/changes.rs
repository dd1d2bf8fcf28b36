//! Kills while tasks are launched, fetched, resized, collected and drained, in turn, beside long tasks.
//!
//! The first agent runs the long tasks; the second is drained, so no task of it may continue then.

use std::time::Duration;

use meseta_tests::audit::Kind;
use meseta_tests::dice::Dice;
use meseta_tests::faults::oracle::Baseline;
use meseta_tests::observed::{Observed, Outcome};
use meseta_tests::{Setup, kernel, wait};
use serde_json::{Value, json};

use super::slow_source;

const SMALL: &[(&str, f64)] = &[("cpus", 0.05), ("mem", 32.0), ("disk", 2.0)];
/// The resources that an offer needs for a round.
const ENOUGH: &[(&str, f64)] = &[("cpus", 2.0), ("mem", 1024.0), ("disk", 128.0)];
const LIMIT: Duration = Duration::from_secs(180);
const GROWER: &str = "grower-x";
/// The memory of an executor and a task in it, in MB.
const GROWER_MB: u64 = 32 + 32;
/// Files of a sandbox whose collection takes a while.
const FILES: usize = 2000;

/// The activity during which the agent is killed.
type Activity = fn(&mut Round<'_>) -> Option<()>;

const ACTIVITIES: [(&str, Activity); 5] = [
    ("launching", launching),
    ("fetching", fetching),
    ("resizing", resizing),
    ("collecting", collecting),
    ("draining", draining),
];

struct Round<'a> {
    observed: &'a mut Observed,
    number: usize,
    agents: &'a [String],
    source: &'a str,
    dice: &'a mut Dice,
    /// Tasks that must end within the round.
    ids: Vec<String>,
}

pub(crate) fn run(kills: usize, mut dice: Dice) -> Outcome {
    let mut observed = Observed::start(Setup {
        agents: 2,
        agent_flags: vec![
            "--resources=cpus:16;mem:8192;disk:4096;ports:[31000-31999]".to_owned(),
            "--gc_delay=1500ms".to_owned(),
            "--disk_watch_interval=200ms".to_owned(),
        ],
        ..Setup::default()
    });
    let agents: Vec<String> = observed.cluster.agents.iter().map(id_of).collect();
    let source = slow_source::start();
    let standing = launch_standing(&mut observed, &agents[0]);
    let baseline = Baseline::from_cluster(&observed.cluster, &standing);
    for number in 0..kills {
        let (what, activity) = ACTIVITIES[number % ACTIVITIES.len()];
        let mut round = Round {
            observed: &mut observed,
            number,
            agents: &agents,
            source: &source,
            dice: &mut dice,
            ids: Vec::new(),
        };
        activity(&mut round);
        let ids = std::mem::take(&mut round.ids);
        observed.until(
            &format!("round {number}, {what}: all are over"),
            LIMIT,
            |observed| ids.iter().all(|id| observed.is_over(id)),
        );
        observed.check_standing(&format!("after round {number}, {what}"));
    }
    let mut wrong = Vec::new();
    wait::holds(LIMIT, || {
        observed.take_events(Duration::from_millis(50));
        wrong = baseline.wrongs(&observed.cluster, kills + 2);
        wrong.is_empty()
    });
    observed.wrong.append(&mut wrong);
    observed.standing.clear();
    standing.iter().for_each(|id| observed.open_gate(id));
    observed.until("those that went on have ended", LIMIT, |observed| {
        standing.iter().all(|id| observed.is_over(id))
    });
    observed.judge()
}

/// Returns the id that the master has given an agent.
fn id_of(agent: &meseta_tests::daemon::Daemon) -> String {
    let state = agent.page("/state").json();
    state["id"].as_str().expect("an id").to_owned()
}

fn launch_standing(observed: &mut Observed, agent: &str) -> Vec<String> {
    let (offer, offers) = observed.offer_of(agent, ENOUGH).expect("an offer");
    let mut ids = Vec::new();
    let mut make = |observed: &mut Observed, id: &str, kind, group| {
        let gate = observed.gate(id);
        ids.push(id.to_owned());
        observed.make(&offer, id, kind, group, &gate, SMALL)
    };
    let single: Vec<_> = (0..8)
        .map(|number| {
            make(
                observed,
                &format!("standing-{number}x"),
                Kind::Exits(3),
                None,
            )
        })
        .collect();
    let grouped = make(observed, "standing-grower", Kind::Grouped, Some(usize::MAX));
    let group = observed.group(&offer, GROWER, &[grouped]);
    let launch = json!({"type": "LAUNCH", "launch": {"task_infos": single}});
    observed.accept(&offers, &json!([launch, group]));
    observed.until("all run", LIMIT, |observed| {
        ids.iter().all(|id| observed.containers.contains_key(id))
    });
    observed.stand(&ids);
    ids
}

impl Round<'_> {
    fn make(&mut self, offer: &Value, name: &str, kind: Kind, group: bool, nap: &str) -> Value {
        let id = format!("{name}-{}", self.number);
        let group = group.then_some(self.number);
        let made = self.observed.make(offer, &id, kind, group, nap, SMALL);
        self.ids.push(id);
        made
    }

    fn launch(&mut self, offers: &Value, tasks: &[Value]) {
        let launch = json!([{"type": "LAUNCH", "launch": {"task_infos": tasks}}]);
        self.observed.accept(offers, &launch);
    }

    /// Kills an agent at a random time within this limit.
    fn kill_within(&mut self, index: usize, limit_ms: u64) {
        let pause = Duration::from_millis(self.dice.roll(limit_ms));
        self.observed.take_events(pause);
        self.observed.restart_agent(index);
    }
}

fn launching(round: &mut Round<'_>) -> Option<()> {
    let (offer, offers) = round.observed.offer_of(&round.agents[0], ENOUGH)?;
    let single: Vec<_> = ["one", "two", "three", "four"]
        .map(|name| round.make(&offer, name, Kind::Exits(3), false, "sleep 0.1"))
        .to_vec();
    let grouped: Vec<_> = ["a", "b", "c"]
        .map(|name| round.make(&offer, name, Kind::Grouped, true, "sleep 0.1"))
        .to_vec();
    let name = format!("launched-{}", round.number);
    let group = round.observed.group(&offer, &name, &grouped);
    let launch = json!({"type": "LAUNCH", "launch": {"task_infos": single}});
    round.observed.accept(&offers, &json!([launch, group]));
    round.kill_within(0, 300);
    Some(())
}

fn fetching(round: &mut Round<'_>) -> Option<()> {
    let (offer, offers) = round.observed.offer_of(&round.agents[0], ENOUGH)?;
    let whole = format!("test $(wc -c < blob) = {} || exit 9", slow_source::BYTES);
    let tasks: Vec<_> = ["fetched", "fetched-too", "fetched-three"]
        .map(|name| {
            let mut one = round.make(&offer, name, Kind::Exits(0), false, &whole);
            one["command"]["uris"] = json!([{"value": round.source, "extract": false}]);
            one
        })
        .to_vec();
    round.launch(&offers, &tasks);
    round.kill_within(0, 700);
    Some(())
}

/// Adds tasks to a lasting executor, and ends them; then its limits are the original ones.
fn resizing(round: &mut Round<'_>) -> Option<()> {
    let (offer, offers) = round.observed.offer_of(&round.agents[0], ENOUGH)?;
    let mut groups = Vec::new();
    for name in ["grown", "grown-too"] {
        let one = round.make(&offer, name, Kind::Exits(0), false, "sleep 0.2");
        groups.push(round.observed.group(&offer, GROWER, &[one]));
    }
    round.observed.accept(&offers, &json!(groups));
    round.kill_within(0, 600);
    let ids = round.ids.clone();
    round
        .observed
        .until("what came to the group has ended", LIMIT, |observed| {
            ids.iter().all(|id| observed.is_over(id))
        });
    let outer = round.observed.containers.get("standing-grower")?["parent"]["value"].clone();
    let outer = outer.as_str()?.to_owned();
    round
        .observed
        .until("the limits are those of before", LIMIT, |observed| {
            memory_limit(observed, &outer) == Some(GROWER_MB << 20)
        });
    Some(())
}

fn memory_limit(observed: &Observed, container: &str) -> Option<u64> {
    let groups = kernel::groups_below(&observed.cluster.cgroups_root);
    let own = groups.iter().filter(|group| group.ends_with(container));
    let files =
        own.flat_map(|group| ["memory.limit_in_bytes", "memory.max"].map(|file| group.join(file)));
    files
        .filter_map(|file| std::fs::read_to_string(file).ok())
        .find_map(|text| text.trim().parse().ok())
}

/// Kills the agent during the collection of sandboxes with many files.
fn collecting(round: &mut Round<'_>) -> Option<()> {
    let (offer, offers) = round.observed.offer_of(&round.agents[0], ENOUGH)?;
    let many = format!("mkdir many; (cd many; seq {FILES} | xargs touch)");
    let tasks: Vec<_> = ["old", "old-too"]
        .map(|name| round.make(&offer, name, Kind::Exits(0), false, &many))
        .to_vec();
    round.launch(&offers, &tasks);
    let ids = round.ids.clone();
    round.observed.until("they have ended", LIMIT, |observed| {
        ids.iter().all(|id| observed.is_over(id))
    });
    round.kill_within(0, 1800);
    Some(())
}

fn draining(round: &mut Round<'_>) -> Option<()> {
    let agent = round.agents[1].clone();
    let (offer, offers) = round.observed.offer_of(&agent, ENOUGH)?;
    let mut single: Vec<_> = ["drained", "drained-too", "drained-slowly"]
        .map(|name| round.make(&offer, name, Kind::Drained, false, ""))
        .to_vec();
    let command = single[2]["command"]["value"].as_str()?;
    single[2]["command"]["value"] = json!(command.replace(
        "exec sleep 600",
        "trap '' TERM; while :; do sleep 0.1; done"
    ));
    single[2]["kill_policy"] = json!({"grace_period": {"nanoseconds": 1_000_000_000}});
    let grouped: Vec<_> = ["drained-a", "drained-b"]
        .map(|name| round.make(&offer, name, Kind::Drained, true, ""))
        .to_vec();
    let name = format!("drained-group-{}", round.number);
    let group = round.observed.group(&offer, &name, &grouped);
    let launch = json!({"type": "LAUNCH", "launch": {"task_infos": single}});
    round.observed.accept(&offers, &json!([launch, group]));
    let ids = round.ids.clone();
    round
        .observed
        .until("what is to be drained runs", LIMIT, |observed| {
            ids.iter().all(|id| observed.containers.contains_key(id))
        });
    let id = json!({"value": agent});
    let part = json!({"agent_id": id, "max_grace_period": {"seconds": 2}});
    let answer = round.observed.cluster.operate("DRAIN_AGENT", &part);
    assert_eq!(answer.status, 200, "{}", answer.text());
    round.kill_within(1, 1200);
    let is_drained = |observed: &Observed| {
        let slaves = observed.cluster.master.page("/slaves").json();
        let slaves = slaves["slaves"].as_array().cloned().unwrap_or_default();
        let slave = slaves.iter().find(|slave| slave["id"] == agent.as_str());
        slave.is_some_and(|slave| slave["drain_info"]["state"] == "DRAINED")
    };
    round
        .observed
        .until("the agent is drained", LIMIT, is_drained);
    let part = json!({"agent_id": id});
    let answer = round.observed.cluster.operate("REACTIVATE_AGENT", &part);
    if answer.status != 200 {
        round.observed.wrong.push(answer.text());
    }
    Some(())
}
