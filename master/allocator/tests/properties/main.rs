//! Random command sequences against a simple model that shares no code with the allocator.
//!
//! Checked after every command: conservation, the charges of roles, and the order of roles and frameworks. Checked
//! for every cycle: no resource is offered twice; no offer exceeds a limit on the path; headroom is safe; every
//! servable guarantee is served; and no further offer is possible. Without quota every single offer equals the
//! model's.

mod checks;
mod commands;
mod model;
#[path = "../support/resources.rs"]
mod short;

use std::collections::BTreeSet;

use meseta_allocator::{Allocator, Options, Quota};
use meseta_resources::{AgentId, FrameworkId, Moment, Role};
use model::Model;
use proptest::prelude::*;

const ROLES: [&str; 6] = ["a", "a/x", "a/y", "b", "b/z/w", "c"];
const AGENTS: usize = 5;
const FRAMEWORKS: usize = 6;
/// The number of sequences per property; below, of commands in each: more than 100,000 commands in all.
const CASES: u32 = 110;
const COMMANDS: usize = 320;

/// The number of sequences, higher with `PROPERTY_CASES`.
fn cases() -> u32 {
    let requested = std::env::var("PROPERTY_CASES").ok();
    requested
        .and_then(|text| text.parse().ok())
        .unwrap_or(CASES)
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

    /// Removes everything: the allocator must equal a new one.
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

/// Explain and the cycle agree: on each agent, a framework without a blocker exists exactly when a cycle over that
/// agent alone makes an offer, and each offer goes to such a framework.
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
    fn explain_matches_next_allocation(
        seed in any::<u64>(),
        quota in any::<bool>(),
        commands in commands(),
    ) {
        explain_agrees(quota, seed, &commands);
    }

    #[test]
    fn same_seed_gives_same_answers(seed in any::<u64>(), commands in commands()) {
        let (mut one, mut other) = (World::new(true, seed), World::new(true, seed));
        for command in &commands {
            one.run(*command);
            other.run(*command);
            prop_assert_eq!(one.allocator.digest(), other.allocator.digest());
        }
        prop_assert_eq!(one.allocator.describe(), other.allocator.describe());
    }
}
