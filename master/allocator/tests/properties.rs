//! Random command sequences against a simple model that shares no code with the allocator.
//!
//! Checked after every command: conservation, what is charged to roles, and the order of roles and
//! frameworks. Checked for every cycle: nothing is offered twice; no limit on the path is exceeded;
//! headroom is safe; no guarantee that could be served is denied; and nothing more could have been
//! offered. Without quota every single offer is the one that the model makes.

#[path = "support/model.rs"]
mod model;
#[path = "support/resources.rs"]
mod short;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meseta_allocator::{
    AgentFacts, AgentSpec, Allocation, Allocator, FrameworkCapabilities, FrameworkSpec, Options,
    Quota,
};
use meseta_resources::{
    AgentId, Conversion, FrameworkId, Moment, ResourceName, Resources, Role, Scalar,
};
use model::{Filter, KINDS, Model, ModelAgent, ModelFramework};
use proptest::prelude::*;

const ROLES: [&str; 6] = ["a", "a/x", "a/y", "b", "b/z/w", "c"];
const AGENTS: usize = 5;
const FRAMEWORKS: usize = 6;
/// Sequences per property, and commands in each: 100,000 commands and more in all.
const CASES: u32 = 110;
const COMMANDS: usize = 320;

/// More of them with `PROPERTY_CASES`.
fn cases() -> u32 {
    let wanted = std::env::var("PROPERTY_CASES").ok();
    wanted.and_then(|text| text.parse().ok()).unwrap_or(CASES)
}

type Numbers = (u8, u16, u16, u16);

struct World {
    allocator: Allocator,
    model: Model,
    now: Moment,
    quota: bool,
}

fn role(index: u16) -> Role {
    Role::new(ROLES[usize::from(index) % ROLES.len()]).expect("a valid role")
}

fn agent(index: u16) -> AgentId {
    AgentId::new(&format!("agent{}", usize::from(index) % AGENTS)).expect("a valid id")
}

fn framework(index: u16) -> FrameworkId {
    FrameworkId::new(&format!("framework{}", usize::from(index) % FRAMEWORKS)).expect("a valid id")
}

/// Totals of all sorts, small enough that everything happens.
fn total(b: u16, c: u16) -> Resources {
    let mut text = format!("cpus:{};mem:{}", 1 + b % 7, 64 * (1 + c % 5));
    if b & 8 != 0 {
        text.push_str(&format!(";cpus({}):{}", role(c), 1 + b % 3));
    }
    if b & 16 != 0 {
        text.push_str(&format!(";mem(+{}):64;disk(+{}):30", role(c), role(c)));
    }
    if b & 32 != 0 {
        text.push_str(";disk:100");
    }
    if b & 64 != 0 {
        text.push_str(";cpus!:2");
    }
    if b & 128 != 0 {
        text.push_str(";ports:[1-20]");
    }
    if b & 256 != 0 {
        text.push_str(";cpus(+a+a/x):1.5");
    }
    if b & 512 != 0 {
        text.push_str(";gpus:1");
    }
    if b & 1024 != 0 {
        text.push_str(&format!(";disk({})[v{}]*:7", role(c), c % 4));
    }
    short::parse(&text)
}

impl World {
    fn new(quota: bool, seed: u64) -> Self {
        Self {
            allocator: Allocator::new(Options {
                seed,
                ..Options::default()
            }),
            model: Model::default(),
            now: Moment::ORIGIN,
            quota,
        }
    }

    fn run(&mut self, (op, a, b, c): Numbers) {
        match op % 20 {
            0 | 1 => self.add_agent(a, b, c),
            2 => self.remove_agent(a),
            3 | 4 => self.add_framework(a, b, c),
            5 => self.remove_framework(a),
            6 => self.toggle_framework(a, b),
            7 => self.suppress_or_revive(a, b),
            8 | 9 => self.give_back(a, b, c),
            10 => self.weigh(a, b),
            11 => self.set_quota(a, b, c),
            12 => self.change_total(a, b, c),
            13 => self.reserve(a, b),
            14 => self.convert(a, b),
            15 => self.toggle_agent(a, b),
            _ => self.cycle(a, b),
        }
        self.model.tidy(self.now);
        self.check_state();
    }

    fn add_agent(&mut self, a: u16, b: u16, c: u16) {
        let (id, total) = (agent(a), total(b, c));
        let spec = AgentSpec::new(AgentFacts::named("host"), total.clone());
        let known = self.model.agents.contains_key(&id);
        assert_eq!(self.allocator.add_agent(&id, spec).is_err(), known);
        if !known {
            self.model.agents.insert(
                id,
                ModelAgent {
                    total,
                    active: true,
                },
            );
        }
    }

    fn remove_agent(&mut self, a: u16) {
        let id = agent(a);
        let known = self.model.agents.remove(&id).is_some();
        assert_eq!(self.allocator.remove_agent(&id).is_ok(), known);
        self.model.held.retain(|key, _| key.0 != id);
        self.model.filters.retain(|filter| filter.agent != id);
    }

    fn spec(b: u16, c: u16) -> FrameworkSpec {
        let mut roles = BTreeSet::from([role(b)]);
        if c & 1 != 0 {
            roles.insert(role(b / 7));
        }
        let suppressed = if c & 64 != 0 {
            BTreeSet::from([role(b)])
        } else {
            BTreeSet::new()
        };
        let capabilities = FrameworkCapabilities {
            revocable_resources: c & 2 != 0,
            gpu_resources: c & 4 != 0,
            shared_resources: c & 8 != 0,
            multi_role: true,
            reservation_refinement: c & 16 != 0,
            region_aware: false,
        };
        FrameworkSpec {
            roles,
            suppressed,
            capabilities,
            ..Default::default()
        }
    }

    fn add_framework(&mut self, a: u16, b: u16, c: u16) {
        let (id, spec) = (framework(a), Self::spec(b, c));
        let mut active = true;
        if let Some(known) = self.model.frameworks.get(&id) {
            active = known.active;
            self.allocator
                .update_framework(&id, &spec)
                .expect("known and valid");
            // Roles left, and roles that are not suppressed any more, lose their filters.
            let suppressed = known.suppressed.clone();
            self.model.filters.retain(|filter| {
                let revived =
                    suppressed.contains(&filter.role) && !spec.suppressed.contains(&filter.role);
                filter.framework != id || (spec.roles.contains(&filter.role) && !revived)
            });
        } else {
            self.allocator
                .add_framework(&id, &spec, true, &BTreeMap::new())
                .expect("new and valid");
        }
        let FrameworkSpec {
            roles,
            suppressed,
            capabilities,
            ..
        } = spec;
        let entry = ModelFramework {
            roles,
            suppressed,
            capabilities,
            active,
        };
        self.model.frameworks.insert(id, entry);
    }

    fn remove_framework(&mut self, a: u16) {
        let id = framework(a);
        let known = self.model.frameworks.remove(&id).is_some();
        assert_eq!(self.allocator.remove_framework(&id).is_ok(), known);
        self.model.held.retain(|key, _| key.1 != id);
        self.model.filters.retain(|filter| filter.framework != id);
    }

    fn toggle_framework(&mut self, a: u16, b: u16) {
        let id = framework(a);
        let Some(known) = self.model.frameworks.get_mut(&id) else {
            return;
        };
        known.active = b & 1 != 0;
        if known.active {
            self.allocator.activate_framework(&id).expect("known");
        } else {
            self.allocator.deactivate_framework(&id).expect("known");
            self.model.filters.retain(|filter| filter.framework != id);
        }
    }

    fn suppress_or_revive(&mut self, a: u16, b: u16) {
        let (id, name) = (framework(a), role(b));
        let names = BTreeSet::from([name.clone()]);
        let known = self.model.frameworks.get_mut(&id);
        let Some(known) = known.filter(|known| known.roles.contains(&name)) else {
            assert!(self.allocator.suppress(&id, &names).is_err());
            return;
        };
        if b & 256 != 0 {
            known.suppressed.insert(name);
            self.allocator.suppress(&id, &names).expect("subscribed");
        } else {
            known.suppressed.remove(&name);
            self.allocator.revive(&id, &names).expect("subscribed");
            self.model
                .filters
                .retain(|filter| filter.framework != id || filter.role != name);
        }
    }

    /// A task ends, or an offer is declined: some or all of one holding.
    fn give_back(&mut self, a: u16, b: u16, c: u16) {
        let Some((key, held)) = self.holding(a) else {
            return;
        };
        let part = if b & 1 != 0 {
            held.clone()
        } else {
            held.filtered(|resource| (resource.name() == "cpus") == (c & 1 != 0))
        };
        let (on, id, name) = key.clone();
        let refuse = match b % 8 {
            2 | 3 => Some(Duration::from_secs(u64::from(c % 6))),
            4 | 5 => Some(Duration::from_secs(100)),
            _ => None,
        };
        self.allocator
            .recover_resources(self.now, &id, &on, &part.allocate(&name), refuse)
            .expect("held");
        if let Some(entry) = self.model.held.get_mut(&key) {
            *entry -= &part;
        }
        let subscribed = self.model.frameworks.get(&id);
        let subscribed =
            subscribed.is_some_and(|known| known.active && known.roles.contains(&name));
        let refuse = refuse.filter(|refuse| !refuse.is_zero() && subscribed && !part.is_empty());
        if let Some(refuse) = refuse {
            let expiry = self.now + refuse.max(Duration::from_secs(1));
            self.model.filters.push(Filter {
                framework: id,
                role: name,
                agent: on,
                refused: part,
                expiry,
            });
        }
    }

    fn holding(&self, a: u16) -> Option<((AgentId, FrameworkId, Role), Resources)> {
        let count = self.model.held.len();
        let at = usize::from(a).checked_rem(count)?;
        self.model
            .held
            .iter()
            .nth(at)
            .map(|(key, held)| (key.clone(), held.clone()))
    }

    fn weigh(&mut self, a: u16, b: u16) {
        let weight = [0.5, 1.0, 1.0, 2.0, 3.0][usize::from(b) % 5];
        self.allocator
            .update_weights(&[(role(a), weight)])
            .expect("valid");
        self.model.weights.insert(role(a), weight);
    }

    fn set_quota(&mut self, a: u16, b: u16, c: u16) {
        if !self.quota {
            return;
        }
        let mut quota = Quota::default();
        let (cpus, mem) = (ResourceName::cpus(), ResourceName::mem());
        if b & 3 != 0 {
            quota
                .guarantees
                .set(&cpus, Scalar::from_millis(i64::from(b % 9) * 500));
        }
        if b & 4 != 0 {
            quota
                .guarantees
                .set(&mem, Scalar::from_units(u64::from(c % 4) * 50));
        }
        if c & 8 != 0 {
            let least = quota.guarantees.get("cpus");
            quota
                .limits
                .set(&cpus, least + Scalar::from_millis(i64::from(c % 5) * 700));
        }
        if c & 16 != 0 {
            let least = quota.guarantees.get("mem");
            quota
                .limits
                .set(&mem, least + Scalar::from_units(u64::from(b % 3) * 64));
        }
        self.allocator
            .update_quota(&role(a), &quota)
            .expect("valid");
        if quota.is_default() {
            self.model.quotas.remove(&role(a));
        } else {
            self.model.quotas.insert(role(a), quota);
        }
    }

    fn change_total(&mut self, a: u16, b: u16, c: u16) {
        let id = agent(a);
        let Some(known) = self.model.agents.get_mut(&id) else {
            return;
        };
        if b & 2048 != 0 {
            known.total = known.total.unrevocable();
            let revocable = short::parse(&format!("cpus!:{}", c % 4));
            self.allocator
                .update_revocable_total(&id, &revocable)
                .expect("revocable");
            known.total += revocable;
        } else {
            known.total = total(b, c);
            self.allocator
                .update_agent(&id, None, Some(&known.total))
                .expect("known");
        }
    }

    /// An operator reserves, or takes a reservation back.
    fn reserve(&mut self, a: u16, b: u16) {
        let id = agent(a);
        if !self.model.agents.contains_key(&id) {
            return;
        }
        let (plain, reserved) = (
            short::parse("cpus:1"),
            short::parse(&format!("cpus(+{}):1", role(b))),
        );
        let (from, to) = if b & 128 != 0 {
            (plain, reserved)
        } else {
            (reserved, plain)
        };
        let possible = self.model.free(&id).contains(&from);
        let conversion = Conversion::new(from.clone(), to.clone());
        assert_eq!(
            self.allocator.update_available(&id, &[conversion]).is_ok(),
            possible
        );
        if let Some(known) = self.model.agents.get_mut(&id).filter(|_| possible) {
            known.total -= &from;
            known.total += to;
        }
    }

    /// A framework reserves what it holds, for its role.
    fn convert(&mut self, a: u16, b: u16) {
        let Some(((on, id, name), held)) = self.holding(a) else {
            return;
        };
        let (plain, reserved) = (
            short::parse("cpus:0.5"),
            short::parse(&format!("cpus(+{name}):0.5")),
        );
        let (from, to) = if b & 1 != 0 {
            (plain, reserved)
        } else {
            (reserved, plain)
        };
        // What an agent has lost since then cannot be turned into something that it has.
        let total = &self.model.agents[&on].total;
        if !total.contains(&from) {
            return;
        }
        let possible = held.contains(&from);
        let conversion = Conversion::new(from.allocate(&name), to.allocate(&name));
        assert_eq!(
            self.allocator
                .update_allocation(&id, &on, &[conversion])
                .is_ok(),
            possible
        );
        if possible {
            let entry = self.model.held.entry((on.clone(), id, name)).or_default();
            *entry -= &from;
            *entry += to.clone();
            if let Some(known) = self.model.agents.get_mut(&on) {
                known.total -= &from;
                known.total += to;
            }
        }
    }

    fn toggle_agent(&mut self, a: u16, b: u16) {
        let id = agent(a);
        let Some(known) = self.model.agents.get_mut(&id) else {
            return;
        };
        known.active = b & 3 != 0;
        if known.active {
            self.allocator.activate_agent(&id).expect("known");
        } else {
            self.allocator.deactivate_agent(&id).expect("known");
        }
    }

    fn cycle(&mut self, a: u16, b: u16) {
        self.now += Duration::from_millis(u64::from(a % 4) * 700);
        self.model.tidy(self.now);
        let before: Vec<i64> = KINDS
            .iter()
            .map(|kind| self.model.headroom(kind) - self.model.required(kind))
            .collect();
        let offers = match b % 3 {
            0 => self.allocator.allocate(self.now),
            1 => self.allocator.tick(self.now),
            _ => self.allocator.sweep(self.now),
        };
        if self.quota {
            self.check_offers(&offers);
            for (kind, before) in KINDS.iter().zip(before) {
                let after = self.model.headroom(kind) - self.model.required(kind);
                assert!(
                    after >= before.min(0),
                    "{kind}: surplus {before} became {after}"
                );
            }
        } else {
            self.replay(&offers);
        }
        if !b.is_multiple_of(3) {
            self.check_nothing_more(&offers);
        }
    }

    /// Each offer is of what is free, and within the limits of every role above.
    fn check_offers(&mut self, offers: &[Allocation]) {
        for offer in offers {
            let Allocation {
                framework,
                agent,
                role,
                resources,
            } = offer;
            let plain = resources.unallocate();
            let free = self.model.free(agent);
            assert!(
                free.contains(&plain),
                "{} of {}",
                short::write(&plain),
                short::write(&free)
            );
            assert!(self.model.agents[agent].active && self.model.is_subscribed(framework, role));
            for kind in KINDS {
                let regular = Model::regular(&plain, kind);
                let slack = self.model.slack(role, kind);
                assert!(
                    regular == 0 || regular <= slack,
                    "{role}: {regular} {kind}, {slack} left"
                );
            }
            self.model.hold(offer);
        }
    }

    /// Without quota the model knows every offer, once it is told which agent is next.
    fn replay(&mut self, offers: &[Allocation]) {
        let mut offers = offers.iter().peekable();
        let mut visited = BTreeSet::new();
        while let Some(next) = offers.peek() {
            let agent = next.agent.clone();
            assert!(visited.insert(agent.clone()), "{agent} is visited twice");
            let mut offered_shared = Resources::new();
            for (role, frameworks) in self.model.order() {
                for framework in frameworks {
                    let model = &self.model;
                    let expected =
                        model.offer(self.now, &agent, &framework, &role, &offered_shared);
                    let Some(expected) = expected else { continue };
                    let got = offers.next_if(|offer| {
                        offer.agent == agent && offer.framework == framework && offer.role == role
                    });
                    let Some(got) = got else {
                        panic!(
                            "{framework} in {role} should get {} of {agent}",
                            short::write(&expected)
                        );
                    };
                    assert_eq!(got.resources, expected.allocate(&role));
                    offered_shared += expected.shared();
                    self.model.hold(got);
                }
            }
            let more = offers.peek().filter(|offer| offer.agent == agent);
            assert!(more.is_none(), "not expected: {more:?}");
        }
    }

    /// A tick or a sweep leaves nothing that could be offered, and no guarantee that could be served.
    fn check_nothing_more(&self, offers: &[Allocation]) {
        let shared = |resources: &Resources| !resources.shared().is_empty();
        if offers.iter().any(|offer| shared(&offer.resources)) {
            // Shared volumes are offered once a cycle, together with what else there is.
            return;
        }
        let more = self.allocator.clone().sweep(self.now);
        assert!(more.is_empty(), "a sweep finds more: {more:?}");
        for role in self.model.quotas.keys() {
            self.check_guarantee(role);
        }
    }

    fn check_guarantee(&self, role: &Role) {
        for kind in ["cpus", "mem"] {
            let held_below = self.model.unsatisfied_below(role, kind);
            let missing = self.model.quotas[role].guarantees.get(kind).millis()
                - self.model.consumed(role, kind)
                - held_below;
            let claim = missing.min(self.model.slack(role, kind));
            let least = if kind == "cpus" { 10 } else { 32_000 };
            let ids = self.model.frameworks.keys();
            for id in ids.filter(|id| self.model.is_subscribed(id, role)) {
                for (agent, known) in self.model.agents.iter().filter(|(_, known)| known.active) {
                    let free = Model::regular(&self.model.free(agent), kind);
                    let filtered = self.model.filters.iter().any(|filter| {
                        filter.agent == *agent && filter.framework == *id && filter.role == *role
                    });
                    let capable = !known.total.has("gpus")
                        || self.model.frameworks[id].capabilities.gpu_resources;
                    assert!(
                        filtered || !capable || free.min(claim) < least,
                        "{role} misses {missing} {kind}, {id} could have {free} of {agent}"
                    );
                }
            }
        }
    }

    fn check_state(&mut self) {
        for id in self.model.agents.keys() {
            let (free, expected) = (
                self.allocator.available(id).expect("known"),
                self.model.free(id),
            );
            assert_eq!(
                free, expected,
                "free on {id}, of {:?}",
                self.model.agents[id].total
            );
        }
        let roles: BTreeMap<Role, _> = self
            .allocator
            .roles()
            .into_iter()
            .map(|view| (view.role.clone(), view))
            .collect();
        for name in ROLES {
            let role = Role::new(name).expect("a valid role");
            for kind in KINDS {
                let consumed = self.model.consumed(&role, kind);
                let view = roles.get(&role);
                let got = view.map_or(0, |view| view.consumed.get(kind).millis());
                assert_eq!(got, consumed, "{kind} consumed by {role}");
            }
            let filters = self
                .model
                .filters
                .iter()
                .filter(|filter| filter.role == role)
                .count();
            // Filters that have run out are dropped when the next cycle comes by.
            assert!(
                roles.get(&role).map_or(0, |view| view.filters) >= filters,
                "filters of {role}"
            );
        }
        assert_eq!(self.allocator.order(), self.model.order());
    }

    /// All gone: nothing is left but what a new allocator has.
    fn tear_down(mut self) {
        for index in 0..16 {
            self.remove_framework(index);
            self.remove_agent(index);
            self.allocator
                .update_weights(&[(role(index), 1.0)])
                .expect("valid");
            self.allocator
                .update_quota(&role(index), &Quota::default())
                .expect("valid");
        }
        let fresh = Allocator::new(Options::default());
        assert_eq!(self.allocator.describe(), fresh.describe());
        assert_eq!(self.allocator.digest(), fresh.digest());
    }
}

fn commands() -> impl Strategy<Value = Vec<Numbers>> {
    proptest::collection::vec(any::<Numbers>(), COMMANDS..COMMANDS + 20)
}

fn run(quota: bool, seed: u64, commands: &[Numbers]) {
    let mut world = World::new(quota, seed);
    for command in commands {
        world.run(*command);
    }
    world.tear_down();
}

/// Explain and the cycle agree: on each agent somebody has no blocker exactly when a cycle over that
/// agent alone makes an offer, and each offer went to one of those.
fn explain_agrees(quota: bool, seed: u64, commands: &[Numbers]) {
    let mut world = World::new(quota, seed);
    for (step, command) in commands.iter().enumerate() {
        world.run(*command);
        if !step.is_multiple_of(8) {
            continue;
        }
        for agent in world.model.agents.keys() {
            let mut open = BTreeSet::new();
            for (id, known) in &world.model.frameworks {
                for role in &known.roles {
                    let explained = world
                        .allocator
                        .explain(world.now, id, role, agent)
                        .expect("known");
                    if explained.blocker.is_none() {
                        assert!(!explained.offer.is_empty());
                        open.insert((id.clone(), role.clone()));
                    }
                }
            }
            let mut alone = world.allocator.clone();
            let offers = alone.sweep_agent(world.now, agent).expect("known");
            assert_eq!(
                offers.is_empty(),
                open.is_empty(),
                "{agent}: {offers:?} {open:?}"
            );
            for offer in offers {
                assert!(
                    open.contains(&(offer.framework.clone(), offer.role.clone())),
                    "{offer:?}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn every_offer_is_the_models(seed in any::<u64>(), commands in commands()) {
        run(false, seed, &commands);
    }

    #[test]
    fn quota_is_kept(seed in any::<u64>(), commands in commands()) {
        run(true, seed, &commands);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases() / 2))]

    #[test]
    fn explain_tells_what_happens(
        seed in any::<u64>(),
        quota in any::<bool>(),
        commands in commands(),
    ) {
        explain_agrees(quota, seed, &commands);
    }

    #[test]
    fn the_same_seed_gives_the_same_answers(seed in any::<u64>(), commands in commands()) {
        let (mut one, mut other) = (World::new(true, seed), World::new(true, seed));
        for command in &commands {
            one.run(*command);
            other.run(*command);
            prop_assert_eq!(one.allocator.digest(), other.allocator.digest());
        }
        prop_assert_eq!(one.allocator.describe(), other.allocator.describe());
    }
}
