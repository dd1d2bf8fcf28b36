//! Operators set and remove quotas, weights, reservations, volumes and windows while frameworks work and the master is
//! killed: acknowledged changes stay, and the books of every snapshot add up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use meseta_resources::{ResourceQuantities, Resources, Role};
use meseta_tests::dice::Dice;
use meseta_tests::framework::{framework_info, task};
use meseta_tests::state_check::StateCheck;
use meseta_tests::{Cluster, Encoding, Framework, Setup, http, wait};
use serde_json::{Value, json};

use crate::anywhere;
use crate::reservations::{dynamic, scalar, volume_of, with};

meseta_tests::scenarios! {
    anywhere:
        operator_settings_survive_under_load;
}

const AGENTS: usize = 3;
const ROUNDS: usize = 4;
const ACTIONS: usize = 30;
const EACH: &str = "cpus:2;mem:1024;disk:512";
/// The reserved MB of a role without a framework, from before any other reservation.
const KEPT_MB: f64 = 512.0;
/// The CPU limit of a role.
const CAPPED_CPUS: f64 = 1.0;
const LIMIT: Duration = Duration::from_secs(60);
/// The live tasks of a framework: enough to contend, few enough for a small machine.
const LIVE_MAX: usize = 3;

/// The state that the threads share.
struct Shared {
    url: String,
    capacity: ResourceQuantities,
    stop: AtomicBool,
    checks: AtomicUsize,
    launched: AtomicUsize,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits until a counter has grown by this much.
    fn more(&self, what: &str, counter: &AtomicUsize, by: usize) {
        let before = counter.load(Ordering::Relaxed);
        wait::eventually(what, LIMIT, || {
            (counter.load(Ordering::Relaxed) >= before + by).then_some(())
        });
    }
}

/// A guard that ends the threads, even if the test fails.
struct StopAtEnd<'a>(&'a Shared);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

fn operator_settings_survive_under_load() {
    let mut cluster = Cluster::start(Setup {
        agents: AGENTS,
        agent_flags: vec![format!("--resources={EACH};ports:[31000-31009]")],
        ..Setup::default()
    });
    let star = Role::star();
    let each = Resources::parse(&format!("{EACH};ports:[31000-31009]"), &star).expect("resources");
    let shared = Shared {
        url: cluster.master.url.clone(),
        capacity: each.quantities(),
        stop: AtomicBool::new(false),
        checks: AtomicUsize::new(0),
        launched: AtomicUsize::new(0),
    };
    let mut operator = Operator::new(&cluster);
    operator.begin();
    std::thread::scope(|threads| {
        let _stop = StopAtEnd(&shared);
        let checker = threads.spawn(|| check(&shared));
        for (seed, role) in [(11, "capped"), (12, "ads"), (13, "web")] {
            let shared = &shared;
            threads.spawn(move || work(shared, role, &mut Dice::new(seed)));
        }
        for _ in 0..ROUNDS {
            for _ in 0..ACTIONS {
                operator.act();
                shared.more("the books are looked at", &shared.checks, 1);
                assert!(!checker.is_finished(), "the books do not add up");
            }
            shared.more("frameworks get on", &shared.launched, 3);
            no_violations(&cluster);
            cluster.restart_master();
            operator.finds_everything(&cluster);
        }
        shared.more("frameworks get on", &shared.launched, 3);
    });
    operator.clear(&cluster);
    no_violations(&cluster);
}

fn no_violations(cluster: &Cluster) {
    let metrics = cluster.master.page("/metrics").text();
    let line = "\nmeseta_master_invariant_violations_total 0\n";
    assert!(
        metrics.contains(line),
        "the master found its own books wrong"
    );
}

/// Checks one snapshot after another until the end.
fn check(shared: &Shared) {
    while !shared.is_over() {
        let Some(state_check) = StateCheck::read(&shared.url) else {
            continue;
        };
        state_check.check(&shared.capacity);
        if let Some(free) = state_check.free(AGENTS) {
            let kept = free.get("mem").to_f64();
            assert!(
                kept >= KEPT_MB,
                "of what is kept for a role only {kept} MB are free"
            );
        }
        let roles = http::try_get(&format!("{}/roles", shared.url));
        if let Ok(roles) = roles.map(|answer| answer.json()) {
            limits_hold(&roles);
        }
        shared.checks.fetch_add(1, Ordering::Relaxed);
    }
}

fn limits_hold(roles: &Value) {
    for role in roles["roles"].as_array().into_iter().flatten() {
        let limits = role["quota"]["limit"].as_object().into_iter().flatten();
        for (name, limit) in limits {
            let consumed = role["quota"]["consumed"][name].as_f64().unwrap_or(0.0);
            let limit = limit.as_f64().expect("a number");
            assert!(consumed <= limit, "beyond its limit: {role:#}");
        }
    }
}

/// Runs a framework: takes its offers, gives some back, tries an offer twice, and comes back after the master.
fn work(shared: &Shared, role: &str, dice: &mut Dice) {
    let url = format!("{}/api/v1/scheduler", shared.url);
    let mut info = framework_info(role);
    let mut worker = Worker::default();
    while !shared.is_over() {
        let Ok(mut framework) = Framework::try_subscribe(&url, Encoding::Json, &info) else {
            continue;
        };
        info["id"] = json!({"value": framework.id});
        worker.session(&mut framework, shared, dice);
        if shared.is_over() {
            framework.teardown();
        }
    }
}

#[derive(Default)]
struct Worker {
    live: BTreeSet<String>,
    count: usize,
}

impl Worker {
    /// Works until the stream ends, or the run is over.
    fn session(&mut self, framework: &mut Framework, shared: &Shared, dice: &mut Dice) {
        while !shared.is_over() {
            match framework.within(Duration::from_millis(200), &|_| true) {
                Ok(event) => self.handle(framework, &event, shared, dice),
                Err("time is up") => {
                    let _ = framework.try_call(json!({"type": "REVIVE"}));
                    let _ = framework
                        .try_call(json!({"type": "RECONCILE", "reconcile": {"tasks": []}}));
                }
                Err(_) => return,
            }
        }
    }

    fn handle(&mut self, framework: &Framework, event: &Value, shared: &Shared, dice: &mut Dice) {
        let offers = event["offers"]["offers"].as_array().into_iter().flatten();
        for offer in offers {
            // The master may be killed during any of these steps.
            if dice.roll(4) == 0 || self.live.len() >= LIVE_MAX {
                let _ = framework.try_call(json!({"type": "DECLINE", "decline": {
                    "offer_ids": [offer["id"]], "filters": {"refuse_seconds": 0.1}}}));
            } else {
                self.launch(framework, offer, shared, dice);
            }
        }
        let status = &event["update"]["status"];
        if status.is_object() {
            self.updated(framework, status);
        }
    }

    fn launch(&mut self, framework: &Framework, offer: &Value, shared: &Shared, dice: &mut Dice) {
        self.count += 1;
        let id = format!("t{}-{}", self.count, framework.id);
        let cpus = if dice.roll(2) == 0 { 0.1 } else { 0.3 };
        let info = task(offer, &id, "sleep 0.2", &[("cpus", cpus), ("mem", 160.0)]);
        let accept = |info: &Value| {
            framework.try_call(json!({"type": "ACCEPT", "accept": {
                "offer_ids": [offer["id"]], "filters": {"refuse_seconds": 0.0},
                "operations": [{"type": "LAUNCH", "launch": {"task_infos": [info]}}]}}))
        };
        if accept(&info).is_ok() {
            self.live.insert(id.clone());
            shared.launched.fetch_add(1, Ordering::Relaxed);
        }
        // An offer can be used once.
        let again = with(info, "task_id", json!({"value": format!("again-{id}")}));
        let _ = accept(&again);
    }

    fn updated(&mut self, framework: &Framework, status: &Value) {
        let id = status["task_id"]["value"].as_str().expect("an id");
        let state = status["state"].as_str().expect("a state");
        if id.starts_with("again-") {
            assert_eq!(state, "TASK_DROPPED", "an offer was used twice: {status:#}");
            return;
        }
        let live = [
            "TASK_STAGING",
            "TASK_STARTING",
            "TASK_RUNNING",
            "TASK_KILLING",
        ];
        if !live.contains(&state) {
            self.live.remove(id);
        }
        if status.get("uuid").is_some() {
            let _ = framework.try_call(json!({"type": "ACKNOWLEDGE", "acknowledge": {
                "agent_id": status["agent_id"], "task_id": status["task_id"], "uuid": status["uuid"]}}));
        }
    }
}

/// An operator that remembers each response.
struct Operator {
    url: String,
    agents: Vec<String>,
    dice: Dice,
    quotas: BTreeMap<String, f64>,
    weights: BTreeMap<String, f64>,
    windows: Value,
    deactivated: BTreeSet<String>,
}

impl Operator {
    fn new(cluster: &Cluster) -> Self {
        let slaves = cluster.master.page("/slaves").json();
        let agents = slaves["slaves"].as_array().expect("agents").iter();
        Self {
            url: cluster.master.url.clone(),
            agents: agents
                .map(|agent| agent["id"].as_str().expect("an id").to_owned())
                .collect(),
            dice: Dice::new(7),
            quotas: BTreeMap::new(),
            weights: BTreeMap::new(),
            windows: json!({}),
            deactivated: BTreeSet::new(),
        }
    }

    /// Makes the first settings, before any other client comes.
    fn begin(&mut self) {
        self.quota("kept", "mem", KEPT_MB);
        self.quota("capped", "cpus", CAPPED_CPUS);
    }

    fn post(&self, path: &str, body: &str, codes: &[u16]) -> u16 {
        let answer = http::post(&format!("{}{path}", self.url), &[], body.as_bytes());
        let code = answer.status;
        assert!(
            codes.contains(&code),
            "{path} {body}: {code} {}",
            answer.text()
        );
        code
    }

    fn form(&self, path: &str, agent: &str, name: &str, resource: &Value, codes: &[u16]) {
        let body = format!("slaveId={agent}&{name}={}", json!([resource]));
        self.post(path, &body, codes);
    }

    fn call(&self, body: &Value, codes: &[u16]) -> u16 {
        let answer = http::post_json(&format!("{}/api/v1", self.url), body);
        let code = answer.status;
        assert!(codes.contains(&code), "{body}: {code} {}", answer.text());
        code
    }

    fn quota(&mut self, role: &str, name: &str, amount: f64) {
        let has = self.quotas.contains_key(role);
        let body = json!({"role": role, "guarantee": [scalar(name, amount)]}).to_string();
        self.post("/quota", &body, if has { &[400] } else { &[200] });
        self.quotas.entry(role.to_owned()).or_insert(amount);
    }

    fn act(&mut self) {
        let number = self.dice.roll(3);
        let agent = self.agents[usize::try_from(self.dice.roll(3)).expect("small")].clone();
        let (role, sub) = ("ads", "ads/sub");
        let part = dynamic("cpus", 0.2, role);
        let stack = json!([{"type": "DYNAMIC", "role": role}, {"type": "DYNAMIC", "role": sub}]);
        let refined = with(scalar("cpus", 0.1), "reservations", stack);
        let disk = dynamic("disk", 16.0, role);
        let volume = volume_of(disk.clone(), &format!("v{number}"));
        let moved = [202, 409];
        let changed = [202, 400, 409];
        match self.dice.roll(12) {
            0 => self.quota(&format!("spare{number}"), "mem", 16.0),
            1 => self.remove_quota(&format!("spare{number}")),
            2 => self.weigh(&format!("role{number}")),
            3 => self.form("/reserve", &agent, "resources", &part, &moved),
            4 => self.form("/unreserve", &agent, "resources", &part, &moved),
            5 => self.form("/reserve", &agent, "resources", &refined, &moved),
            6 => self.form("/unreserve", &agent, "resources", &refined, &moved),
            7 => self.form("/reserve", &agent, "resources", &disk, &moved),
            8 => self.form("/create-volumes", &agent, "volumes", &volume, &changed),
            9 => self.form("/destroy-volumes", &agent, "volumes", &volume, &changed),
            10 => self.schedule(number),
            _ => self.activity(&agent),
        }
    }

    fn remove_quota(&mut self, role: &str) {
        let had = self.quotas.remove(role).is_some();
        let answer = http::delete(&format!("{}/quota/{role}", self.url));
        assert_eq!(
            answer.status,
            if had { 200 } else { 400 },
            "{}",
            answer.text()
        );
    }

    fn weigh(&mut self, role: &str) {
        let weight = [0.5, 2.0, 3.25][usize::try_from(self.dice.roll(3)).expect("small")];
        let body = json!([{"role": role, "weight": weight}]).to_string();
        let answer = http::put(&format!("{}/weights", self.url), &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        self.weights.insert(role.to_owned(), weight);
    }

    fn schedule(&mut self, number: u64) {
        let window = json!({"windows": [{"machine_ids": [{"hostname": format!("elsewhere{number}")}],
            "unavailability": {"start": {"nanoseconds": 1_900_000_000_000_000_000_i64}}}]});
        self.windows = if number == 0 { json!({}) } else { window };
        self.post("/maintenance/schedule", &self.windows.to_string(), &[200]);
    }

    /// Deactivates the agent, with or without a drain, or reactivates it.
    fn activity(&mut self, agent: &str) {
        let id = json!({"value": agent});
        if self.deactivated.contains(agent) {
            // The agent may still be draining.
            let body = json!({"type": "REACTIVATE_AGENT", "reactivate_agent": {"agent_id": id}});
            if self.call(&body, &[200, 400]) == 200 {
                self.deactivated.remove(agent);
            }
            return;
        }
        let body = if self.dice.roll(2) == 0 {
            json!({"type": "DEACTIVATE_AGENT", "deactivate_agent": {"agent_id": id}})
        } else {
            json!({"type": "DRAIN_AGENT", "drain_agent": {"agent_id": id,
                "max_grace_period": {"seconds": 0}}})
        };
        self.call(&body, &[200]);
        self.deactivated.insert(agent.to_owned());
    }

    /// Checks that after a kill of the master all acknowledged settings are there, and effective.
    fn finds_everything(&self, cluster: &Cluster) {
        let page = |path: &str| cluster.master.page(path).json();
        let quotas: BTreeMap<String, f64> = page("/quota")["configs"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|config| {
                let amounts = config["guarantees"].as_object().expect("amounts");
                let amount = amounts.values().next().expect("one")["value"].as_f64();
                let role = config["role"].as_str().expect("a role").to_owned();
                (role, amount.expect("a number"))
            })
            .collect();
        assert_eq!(quotas, self.quotas);
        let weights: BTreeMap<String, f64> = page("/weights")
            .as_array()
            .into_iter()
            .flatten()
            .map(|one| {
                let role = one["role"].as_str().expect("a role").to_owned();
                (role, one["weight"].as_f64().expect("a number"))
            })
            .collect();
        assert_eq!(weights, self.weights);
        assert_eq!(page("/maintenance/schedule"), self.windows);
        let agents = wait::eventually("the agents are back", LIMIT, || {
            let slaves = page("/slaves")["slaves"].as_array()?.clone();
            (slaves.len() == AGENTS).then_some(slaves)
        });
        let deactivated: BTreeSet<String> = agents
            .iter()
            .filter(|agent| agent["deactivated"] == true)
            .map(|agent| agent["id"].as_str().expect("an id").to_owned())
            .collect();
        assert_eq!(deactivated, self.deactivated);
    }

    /// Removes everything, after which every agent has its original state.
    fn clear(&mut self, cluster: &Cluster) {
        let agent = |id: &str| {
            let slaves = cluster.master.page("/slaves").json();
            let mut slaves = slaves["slaves"].as_array().expect("agents").clone();
            slaves.retain(|agent| agent["id"] == id);
            slaves.pop().expect("an agent")
        };
        for id in self.agents.clone() {
            wait::eventually("nothing is used", LIMIT, || {
                let agent = agent(&id);
                (agent["used_resources"]["cpus"] == 0.0 && agent["used_resources"]["mem"] == 0.0)
                    .then_some(())
            });
            wait::eventually("nothing is reserved", LIMIT, || {
                self.give_back(&agent(&id), &id)
            });
            let agent = agent(&id);
            for (name, amount) in [("cpus", 2.0), ("mem", 1024.0), ("disk", 512.0)] {
                assert_eq!(agent["unreserved_resources"][name], amount, "{agent:#}");
            }
        }
        for role in self.quotas.keys().cloned().collect::<Vec<_>>() {
            self.remove_quota(&role);
        }
        assert_eq!(cluster.master.page("/quota").json(), json!({}));
    }

    /// Destroys a volume or removes a reservation; returns `Some` when there is none.
    fn give_back(&self, agent: &Value, id: &str) -> Option<()> {
        let reserved = agent["reserved_resources_full"]
            .as_object()
            .expect("an object");
        let resources = reserved
            .values()
            .flat_map(|all| all.as_array().into_iter().flatten());
        let mut resources: Vec<Value> = resources.cloned().collect();
        if resources.is_empty() {
            return Some(());
        }
        // Volumes come first, because they lie on reservations.
        resources.sort_by_key(|one| one.get("disk").is_none());
        let mut first = resources.swap_remove(0);
        // Of the two formats keep the one with the whole stack.
        for key in ["role", "reservation"] {
            first.as_object_mut().expect("an object").remove(key);
        }
        let (path, name) = match first.get("disk") {
            Some(_) => ("/destroy-volumes", "volumes"),
            None => ("/unreserve", "resources"),
        };
        self.form(path, id, name, &first, &[202]);
        None
    }
}
