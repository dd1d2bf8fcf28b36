//! Random writes of operators, and the required contents of the registry after them: each acknowledged value.
//!
//! [`Writes::next`] draws a write, [`Write::send`] sends it, [`Writes::record`] notes the answer, and [`Writes::check`]
//! compares a master's pages with it. A write without an answer may have taken effect or not, and may still do so later,
//! until [`Writes::settle`]. Invariant: a refused write changes nothing, an acknowledged one is there, and every present
//! value was written.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::dice::Dice;
use crate::http;

/// The time limit of a write.
const SEND_LIMIT: Duration = Duration::from_secs(10);
/// The number of roles, and of machines, in writes.
const NAMES: u64 = 6;
/// The prefix of all names in writes.
const PREFIX: &str = "kept-";
/// Shares of a tenth of a processor that one role reserves at most.
const SHARES_MAX: u32 = 3;
/// The last removed frameworks that one check tries.
const REMOVED_CHECKED: usize = 3;

/// A change by an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// A change of a role's weight, in halves.
    Weight {
        role: String,
        halves: u32,
    },
    /// A limit on a role's CPUs, or the removal of its quota.
    Quota {
        role: String,
        cpus: Option<u32>,
    },
    /// A replacement of the maintenance schedule.
    Schedule {
        machines: BTreeSet<String>,
    },
    Down {
        machine: String,
    },
    Up {
        machine: String,
    },
    /// A reservation of a tenth of the agent's processors for a role.
    Reserve {
        agent: String,
        role: String,
    },
    Unreserve {
        agent: String,
        role: String,
    },
    Deactivate {
        agent: String,
    },
    Reactivate {
        agent: String,
    },
    /// A subscription of a framework by this id, with its removal.
    Teardown {
        framework: String,
    },
}

/// The result of a write, as far as its sender knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Acknowledged,
    /// Refused with this status; from 500 on it may nevertheless have taken effect.
    Refused(u16),
    /// The answer did not come in time.
    Unknown,
}

/// The object of a value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Weight(String),
    Quota(String),
    Maintenance,
    Reserved(String),
    Deactivated,
    Removed(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mode {
    Draining,
    Down,
}

/// The value of a subject.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Setting {
    /// The halves of a weight, the CPUs of a quota, or the reserved tenths of a CPU; `None` if unset.
    Amount(Option<u32>),
    Flag(bool),
    /// The machines in the schedule.
    Machines(BTreeMap<String, Mode>),
}

/// The possible present values of a subject.
#[derive(Debug, Clone)]
struct Possible {
    settings: BTreeSet<Setting>,
    /// Writes without a response, which may still take effect.
    in_flight: Vec<Write>,
}

/// The random writes and their results.
#[derive(Debug)]
pub struct Writes {
    dice: Dice,
    agent: Option<String>,
    frameworks: u64,
    subjects: BTreeMap<Subject, Possible>,
    /// Frameworks with an acknowledged end, in order.
    removed: Vec<String>,
    counts: BTreeMap<(&'static str, &'static str), usize>,
}

impl Subject {
    /// Returns the value before any write.
    fn initial(&self) -> Setting {
        match self {
            Self::Weight(_) | Self::Quota(_) | Self::Reserved(_) => Setting::Amount(None),
            Self::Maintenance => Setting::Machines(BTreeMap::new()),
            Self::Deactivated | Self::Removed(_) => Setting::Flag(false),
        }
    }
}

impl Write {
    /// Returns the kind of the write, for reports.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Weight { .. } => "weight",
            Self::Quota { .. } => "quota",
            Self::Schedule { .. } => "schedule",
            Self::Down { .. } => "machine down",
            Self::Up { .. } => "machine up",
            Self::Reserve { .. } => "reserve",
            Self::Unreserve { .. } => "unreserve",
            Self::Deactivate { .. } => "deactivate",
            Self::Reactivate { .. } => "reactivate",
            Self::Teardown { .. } => "teardown",
        }
    }

    fn subject(&self) -> Subject {
        match self {
            Self::Weight { role, .. } => Subject::Weight(role.clone()),
            Self::Quota { role, .. } => Subject::Quota(role.clone()),
            Self::Schedule { .. } | Self::Down { .. } | Self::Up { .. } => Subject::Maintenance,
            Self::Reserve { role, .. } | Self::Unreserve { role, .. } => {
                Subject::Reserved(role.clone())
            }
            Self::Deactivate { .. } | Self::Reactivate { .. } => Subject::Deactivated,
            Self::Teardown { framework } => Subject::Removed(framework.clone()),
        }
    }

    /// Returns the value after the write, or `None` if the write must be refused.
    fn applied(&self, before: &Setting) -> Option<Setting> {
        match (self, before) {
            (Self::Weight { halves, .. }, _) => Some(Setting::Amount(Some(*halves))),
            (Self::Quota { cpus, .. }, _) => Some(Setting::Amount(*cpus)),
            (Self::Deactivate { .. } | Self::Teardown { .. }, _) => Some(Setting::Flag(true)),
            (Self::Reactivate { .. }, Setting::Flag(true)) => Some(Setting::Flag(false)),
            (Self::Reserve { .. }, Setting::Amount(shares)) => {
                Some(Setting::Amount(Some(shares.unwrap_or(0) + 1)))
            }
            (Self::Unreserve { .. }, Setting::Amount(shares)) => {
                let left = shares.filter(|shares| *shares > 0)? - 1;
                Some(Setting::Amount(Some(left).filter(|left| *left > 0)))
            }
            (_, Setting::Machines(machines)) => self.maintained(machines).map(Setting::Machines),
            _ => None,
        }
    }

    fn maintained(&self, before: &BTreeMap<String, Mode>) -> Option<BTreeMap<String, Mode>> {
        let mut after = before.clone();
        match self {
            Self::Schedule { machines } => {
                let is_down = |(_, mode): &(&String, &Mode)| **mode == Mode::Down;
                let mut down = before.iter().filter(is_down);
                if !down.all(|(machine, _)| machines.contains(machine)) {
                    return None;
                }
                let mode = |machine: &String| *before.get(machine).unwrap_or(&Mode::Draining);
                return Some(machines.iter().map(|m| (m.clone(), mode(m))).collect());
            }
            Self::Down { machine } if before.get(machine) == Some(&Mode::Draining) => {
                after.insert(machine.clone(), Mode::Down);
            }
            // A machine that is up again is removed from the schedule.
            Self::Up { machine } if before.get(machine) == Some(&Mode::Down) => {
                after.remove(machine);
            }
            _ => return None,
        }
        Some(after)
    }

    /// Makes the change at the master of this URL without a path.
    pub fn send(&self, url: &str) -> Outcome {
        let _subscribed = match self {
            Self::Teardown { framework } => match subscribe(url, framework) {
                Ok(Subscription::Open(events)) => Some(events),
                Ok(Subscription::Removed) | Err(_) => return Outcome::Unknown,
            },
            _ => None,
        };
        let headers = [("content-type", "application/json")];
        let body = self.call().to_string();
        let sent = http::post_within(
            SEND_LIMIT,
            &format!("{url}/api/v1"),
            &headers,
            body.as_bytes(),
        );
        match sent {
            Ok(answer) if (200..300).contains(&answer.status) => Outcome::Acknowledged,
            Ok(answer) => Outcome::Refused(answer.status),
            Err(_) => Outcome::Unknown,
        }
    }

    /// Returns the call of the operator API.
    fn call(&self) -> Value {
        let machine_ids = |machine: &String| json!([{"hostname": machine}]);
        let (kind, part) = match self {
            Self::Weight { role, halves } => (
                "UPDATE_WEIGHTS",
                json!({"weight_infos": [{"role": role, "weight": f64::from(*halves) / 2.0}]}),
            ),
            Self::Quota { role, cpus } => {
                let limits = cpus.map(|cpus| json!({"cpus": {"value": cpus}}));
                let mut config = json!({"role": role});
                if let Some(limits) = limits {
                    config["limits"] = limits;
                }
                ("UPDATE_QUOTA", json!({"quota_configs": [config]}))
            }
            Self::Schedule { machines } => (
                "UPDATE_MAINTENANCE_SCHEDULE",
                json!({"schedule": {"windows": windows(machines)}}),
            ),
            Self::Down { machine } => (
                "START_MAINTENANCE",
                json!({"machines": machine_ids(machine)}),
            ),
            Self::Up { machine } => (
                "STOP_MAINTENANCE",
                json!({"machines": machine_ids(machine)}),
            ),
            Self::Reserve { agent, role } => ("RESERVE_RESOURCES", share(agent, role)),
            Self::Unreserve { agent, role } => ("UNRESERVE_RESOURCES", share(agent, role)),
            Self::Deactivate { agent } => {
                ("DEACTIVATE_AGENT", json!({"agent_id": {"value": agent}}))
            }
            Self::Reactivate { agent } => {
                ("REACTIVATE_AGENT", json!({"agent_id": {"value": agent}}))
            }
            Self::Teardown { framework } => {
                ("TEARDOWN", json!({"framework_id": {"value": framework}}))
            }
        };
        json!({"type": kind, kind.to_lowercase(): part})
    }
}

fn windows(machines: &BTreeSet<String>) -> Value {
    // The time lies in the year 2030.
    let start = json!({"nanoseconds": 1_900_000_000_000_000_000_i64});
    let window = |machine| json!({"machine_ids": [{"hostname": machine}], "unavailability": {"start": start}});
    machines.iter().map(window).collect()
}

/// Returns a reserved tenth of a processor for a role.
fn share(agent: &str, role: &str) -> Value {
    json!({"agent_id": {"value": agent}, "resources": [{
        "name": "cpus", "type": "SCALAR", "scalar": {"value": 0.1},
        "reservations": [{"type": "DYNAMIC", "role": role}]}]})
}

/// The result of SUBSCRIBE with a certain id.
enum Subscription {
    /// Lasts as long as its stream is open.
    Open(Box<dyn std::io::Read>),
    /// The framework was removed, and its id is never assigned again.
    Removed,
}

fn subscribe(url: &str, framework: &str) -> Result<Subscription, String> {
    let info = json!({"user": "root", "name": framework, "roles": ["kept-frameworks"],
        "id": {"value": framework}, "failover_timeout": 600.0, "capabilities": [{"type": "MULTI_ROLE"}]});
    let call = json!({"type": "SUBSCRIBE", "framework_id": {"value": framework},
        "subscribe": {"framework_info": info, "suppressed_roles": ["kept-frameworks"]}});
    let mut events = http::try_stream(&format!("{url}/api/v1/scheduler"), &call)?;
    let mut heard = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        let count = events.read(&mut bytes).map_err(|error| error.to_string())?;
        heard.extend_from_slice(&bytes[..count]);
        let text = String::from_utf8_lossy(&heard);
        if text.contains("\"SUBSCRIBED\"") {
            return Ok(Subscription::Open(Box::new(events)));
        }
        if text.contains("Framework has been removed") {
            return Ok(Subscription::Removed);
        }
        if count == 0 {
            return Err(format!("the stream of {framework} ended after: {text}"));
        }
    }
}

impl Possible {
    /// Adds all settings that writes without an answer may have made.
    fn spread(&mut self) {
        for write in &self.in_flight {
            let more: Vec<_> = self
                .settings
                .iter()
                .filter_map(|setting| write.applied(setting))
                .collect();
            self.settings.extend(more);
        }
    }
}

impl Writes {
    pub fn new(seed: u64) -> Self {
        Self {
            dice: Dice::new(seed),
            agent: None,
            frameworks: 0,
            subjects: BTreeMap::new(),
            removed: Vec::new(),
            counts: BTreeMap::new(),
        }
    }

    /// Includes an agent in the writes: it is reserved in parts and sometimes deactivated.
    #[must_use]
    pub fn with_agent(mut self, id: &str) -> Self {
        self.agent = Some(id.to_owned());
        self
    }

    fn name(&mut self) -> String {
        format!("{PREFIX}{}", self.dice.roll(NAMES))
    }

    /// Returns the most likely value of a subject.
    fn likely(&self, subject: &Subject) -> Setting {
        let possible = self.subjects.get(subject);
        let first = possible.and_then(|possible| possible.settings.first());
        first.cloned().unwrap_or_else(|| subject.initial())
    }

    /// Returns the next write. Nearly all writes make sense after the earlier ones have been carried out.
    #[expect(
        clippy::should_implement_trait,
        reason = "it has no end and is not iterated over"
    )]
    pub fn next(&mut self) -> Write {
        let role = self.name();
        match (self.dice.roll(10), self.agent.clone()) {
            (0 | 1, _) => {
                let halves = 1 + u32::try_from(self.dice.roll(40)).unwrap_or(0);
                Write::Weight { role, halves }
            }
            (2 | 3, _) => {
                let cpus = u32::try_from(self.dice.roll(40)).unwrap_or(0);
                let cpus = Some(cpus).filter(|cpus| *cpus > 0);
                Write::Quota { role, cpus }
            }
            (4..=6, _) => self.maintenance(),
            (7, Some(agent)) => self.reservation(agent, role),
            (8, Some(agent)) => match self.likely(&Subject::Deactivated) {
                Setting::Flag(true) => Write::Reactivate { agent },
                _ => Write::Deactivate { agent },
            },
            _ => {
                self.frameworks += 1;
                let framework = format!("{PREFIX}framework-{}", self.frameworks);
                Write::Teardown { framework }
            }
        }
    }

    fn maintenance(&mut self) -> Write {
        let Setting::Machines(machines) = self.likely(&Subject::Maintenance) else {
            return self.next();
        };
        let (down, draining): (Vec<_>, Vec<_>) =
            machines.iter().partition(|(_, mode)| **mode == Mode::Down);
        match self.dice.roll(3) {
            0 if !draining.is_empty() => {
                let machine = self
                    .dice
                    .pick(&draining)
                    .map(|(machine, _)| (*machine).clone());
                Write::Down {
                    machine: machine.unwrap_or_default(),
                }
            }
            1 if !down.is_empty() => {
                let machine = self.dice.pick(&down).map(|(machine, _)| (*machine).clone());
                Write::Up {
                    machine: machine.unwrap_or_default(),
                }
            }
            _ => {
                let mut machines: BTreeSet<_> = down
                    .into_iter()
                    .map(|(machine, _)| machine.clone())
                    .collect();
                for _ in 0..self.dice.roll(NAMES) {
                    machines.insert(self.name());
                }
                Write::Schedule { machines }
            }
        }
    }

    fn reservation(&mut self, agent: String, role: String) -> Write {
        let shares = match self.likely(&Subject::Reserved(role.clone())) {
            Setting::Amount(shares) => shares.unwrap_or(0),
            _ => 0,
        };
        if shares > 0 && (shares >= SHARES_MAX || self.dice.roll(2) == 0) {
            Write::Unreserve { agent, role }
        } else {
            Write::Reserve { agent, role }
        }
    }

    /// Records the result of a write; the next write to the same subject is sent after that.
    pub fn record(&mut self, write: &Write, outcome: Outcome) {
        let how = match outcome {
            Outcome::Acknowledged => "acknowledged",
            Outcome::Refused(_) => "refused",
            Outcome::Unknown => "unknown",
        };
        *self.counts.entry((write.kind(), how)).or_default() += 1;
        let subject = write.subject();
        let initial = subject.initial();
        let possible = self.subjects.entry(subject).or_insert_with(|| Possible {
            settings: BTreeSet::from([initial]),
            in_flight: Vec::new(),
        });
        match outcome {
            Outcome::Acknowledged => {
                let applied = |setting| write.applied(setting);
                possible.settings = possible.settings.iter().filter_map(applied).collect();
                if let Write::Teardown { framework } = write {
                    self.removed.push(framework.clone());
                }
            }
            Outcome::Refused(status) if status < 500 => {}
            Outcome::Refused(_) | Outcome::Unknown => possible.in_flight.push(write.clone()),
        }
        possible.spread();
    }

    /// Returns how many writes of each kind were acknowledged, refused, or without an answer.
    pub fn counts(&self) -> &BTreeMap<(&'static str, &'static str), usize> {
        &self.counts
    }

    /// Checks that the master of this URL has all acknowledged values; the agent, if any, is registered.
    pub fn check(&self, url: &str) -> Result<(), String> {
        let found = self.read(url)?;
        for (subject, possible) in &self.subjects {
            if matches!(subject, Subject::Removed(_)) {
                continue;
            }
            let setting = found.get(subject).cloned();
            let setting = setting.unwrap_or_else(|| subject.initial());
            if !possible.settings.contains(&setting) {
                return Err(format!(
                    "{subject:?} is {setting:?}, and may be {:?} by what was acknowledged",
                    possible.settings
                ));
            }
        }
        let is_written = |subject: &&Subject| self.subjects.contains_key(*subject);
        if let Some((subject, setting)) = found.iter().find(|(subject, _)| !is_written(subject)) {
            return Err(format!(
                "{subject:?} is {setting:?}, which nobody has written"
            ));
        }
        for framework in self.removed.iter().rev().take(REMOVED_CHECKED) {
            if !matches!(subscribe(url, framework)?, Subscription::Removed) {
                return Err(format!("{framework} was removed and subscribes again"));
            }
        }
        Ok(())
    }

    /// Checks the pages, and takes the found values as certain: no write without an answer can take effect any more,
    /// because its receiver has ended.
    pub fn settle(&mut self, url: &str) -> Result<(), String> {
        self.check(url)?;
        let mut found = self.read(url)?;
        for (subject, possible) in &mut self.subjects {
            if matches!(subject, Subject::Removed(_)) {
                continue;
            }
            let setting = found.remove(subject).unwrap_or_else(|| subject.initial());
            possible.settings = BTreeSet::from([setting]);
            possible.in_flight.clear();
        }
        Ok(())
    }

    fn read(&self, url: &str) -> Result<BTreeMap<Subject, Setting>, String> {
        let page = |path: &str| -> Result<Value, String> {
            let answer = http::try_get(&format!("{url}{path}"));
            let answer = answer.map_err(|error| format!("GET {path}: {error}"))?;
            match answer.status {
                200 => Ok(answer.json()),
                status => Err(format!("GET {path}: {status}: {}", answer.text())),
            }
        };
        let mut found = BTreeMap::new();
        for one in list(&page("/weights")?) {
            if let Some(role) = kept(&one["role"]) {
                let halves = whole(&one["weight"], 2.0)?;
                found.insert(Subject::Weight(role), Setting::Amount(Some(halves)));
            }
        }
        for one in list(&page("/quota")?["configs"]) {
            if let Some(role) = kept(&one["role"]) {
                let cpus = whole(&one["limits"]["cpus"]["value"], 1.0)?;
                found.insert(Subject::Quota(role), Setting::Amount(Some(cpus)));
            }
        }
        let status = page("/maintenance/status")?;
        let mut machines = BTreeMap::new();
        for (name, mode) in [
            ("draining_machines", Mode::Draining),
            ("down_machines", Mode::Down),
        ] {
            for one in list(&status[name]) {
                let id = one.get("id").unwrap_or(one);
                if let Some(machine) = kept(&id["hostname"]) {
                    machines.insert(machine, mode);
                }
            }
        }
        if !machines.is_empty() {
            found.insert(Subject::Maintenance, Setting::Machines(machines));
        }
        if let Some(agent) = &self.agent {
            let slaves = page("/slaves")?;
            let mut agents = list(&slaves["slaves"]).iter();
            let agent = agents
                .find(|one| one["id"] == agent.as_str())
                .ok_or_else(|| format!("agent {agent} is not registered"))?;
            if agent["deactivated"] == true {
                found.insert(Subject::Deactivated, Setting::Flag(true));
            }
            let reserved = agent["reserved_resources"].as_object();
            for (role, resources) in reserved.into_iter().flatten() {
                if role.starts_with(PREFIX) {
                    let tenths = whole(&resources["cpus"], 10.0)?;
                    found.insert(
                        Subject::Reserved(role.clone()),
                        Setting::Amount(Some(tenths)),
                    );
                }
            }
        }
        Ok(found)
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns a name, if the test uses it.
fn kept(name: &Value) -> Option<String> {
    let name = name.as_str()?;
    name.starts_with(PREFIX).then(|| name.to_owned())
}

/// Returns a number as a multiple of a part of one.
fn whole(value: &Value, parts: f64) -> Result<u32, String> {
    let number = value
        .as_f64()
        .ok_or_else(|| format!("{value} is no number"))?
        * parts;
    let mut below = 0..=1_000_u32;
    let found = below.find(|whole| (f64::from(*whole) - number).abs() < 1e-6);
    found.ok_or_else(|| format!("{value} was never written"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(halves: u32) -> Write {
        Write::Weight {
            role: "kept-0".to_owned(),
            halves,
        }
    }

    fn from_writes(writes: &Writes, subject: &Subject) -> Vec<Setting> {
        let possible = writes.subjects.get(subject).map(|it| it.settings.clone());
        possible.unwrap_or_default().into_iter().collect()
    }

    #[test]
    fn unanswered_write_may_take_effect_later() {
        let subject = Subject::Weight("kept-0".to_owned());
        let amount = |halves| Setting::Amount(Some(halves));
        let mut writes = Writes::new(1);
        writes.record(&weight(1), Outcome::Acknowledged);
        writes.record(&weight(2), Outcome::Refused(400));
        assert_eq!(from_writes(&writes, &subject), [amount(1)]);
        writes.record(&weight(3), Outcome::Unknown);
        assert_eq!(from_writes(&writes, &subject), [amount(1), amount(3)]);
        writes.record(&weight(4), Outcome::Acknowledged);
        assert_eq!(from_writes(&writes, &subject), [amount(3), amount(4)]);
        writes.record(&weight(5), Outcome::Refused(503));
        assert_eq!(
            from_writes(&writes, &subject),
            [amount(3), amount(4), amount(5)]
        );
    }

    #[test]
    fn contradiction_leaves_no_possible_state() {
        let mut writes = Writes::new(1);
        let machines = BTreeSet::from(["kept-1".to_owned(), "kept-2".to_owned()]);
        let down = |machine: &str| Write::Down {
            machine: machine.to_owned(),
        };
        writes.record(&Write::Schedule { machines }, Outcome::Acknowledged);
        writes.record(&down("kept-1"), Outcome::Acknowledged);
        let expected = BTreeMap::from([
            ("kept-1".to_owned(), Mode::Down),
            ("kept-2".to_owned(), Mode::Draining),
        ]);
        let expected = Setting::Machines(expected);
        assert_eq!(from_writes(&writes, &Subject::Maintenance), [expected]);
        writes.record(&down("kept-3"), Outcome::Acknowledged);
        assert!(from_writes(&writes, &Subject::Maintenance).is_empty());
    }

    #[test]
    fn same_seed_draws_same_writes() {
        let draw = |seed| {
            let mut writes = Writes::new(seed).with_agent("a");
            let all: Vec<_> = (0..200)
                .map(|_| {
                    let write = writes.next();
                    writes.record(&write, Outcome::Acknowledged);
                    write
                })
                .collect();
            let kinds: BTreeSet<_> = all.iter().map(Write::kind).collect();
            assert_eq!(kinds.len(), 10, "{kinds:?}");
            all
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }
}
