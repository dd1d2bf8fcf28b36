//! Layouts of jobs: spread where the offers of one step show a part of the cluster, and distinct beside volumes.

use super::volumes::database;
use super::world::{Dice, SLOTS};
use super::*;
use crate::spec::{Constraint, Rule};

/// A cluster of racks, with a part used by other frameworks.
struct Racks {
    /// Slots that other frameworks use, on each agent.
    taken: BTreeMap<String, u32>,
    /// The seconds until which others hold the offers of an agent; some never give them back.
    held: BTreeMap<String, u64>,
    /// The number of slots that the role may have.
    limit: u32,
}

fn spread(count: u32) -> JobSpec {
    let mut spec = service(count, 1, 1);
    spec.constraints = vec![Constraint {
        attribute: "rack".to_owned(),
        rule: Rule::Spread,
    }];
    spec
}

/// Plays one second of a master that offers agents in random order, each with all its free resources within the quota.
fn second(world: &mut World, racks: &Racks, dice: &mut Dice, now: u64) {
    if now.is_multiple_of(5) {
        world.tell_agents(&racks.taken);
    }
    let mut agents = world.agents();
    for at in (1..agents.len()).rev() {
        let other = usize::try_from(dice.below(at as u64 + 1)).unwrap();
        agents.swap(at, other);
    }
    for agent in agents {
        let taken = racks.taken[&agent];
        let left = racks.limit.saturating_sub(world.used() + world.offered());
        let slots = world.free(&agent, taken).min(left);
        let is_held = now < racks.held[&agent];
        if slots > 0 && !is_held && world.may_offer(&agent) {
            world.offer(&agent, slots);
        }
    }
    while world.deliver() {}
    world.sync();
    for _ in 0..16 {
        world.advance(None);
    }
    while world.deliver() {}
    world.sync();
    world.pass(Duration::from_secs(1));
    while world.deliver() {}
    world.sync();
    world.check();
}

/// Returns the number of tasks on each rack, the fullest first.
fn counts(world: &World) -> Vec<u32> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let tasks = world.state.job("web").unwrap().tasks.unwrap();
    for task in tasks {
        *counts
            .entry(world.racks[&task.agent_id].clone())
            .or_default() += 1;
    }
    let mut counts: Vec<u32> = counts.into_values().collect();
    counts.sort_unstable_by(|one, other| other.cmp(one));
    counts
}

/// Returns the most even layout of this number of tasks over racks with these slots.
fn best(count: u32, room: &BTreeMap<String, u32>) -> Vec<u32> {
    let mut placed: BTreeMap<&str, u32> = room.keys().map(|rack| (&**rack, 0)).collect();
    for _ in 0..count {
        let free = placed
            .iter_mut()
            .filter(|(rack, count)| **count < room[**rack]);
        if let Some((_, count)) = free.min_by_key(|(_, count)| **count) {
            *count += 1;
        }
    }
    let mut counts: Vec<u32> = placed.into_values().filter(|count| *count > 0).collect();
    counts.sort_unstable_by(|one, other| other.cmp(one));
    counts
}

fn cluster(seed: u64) -> (World, Racks, Dice, BTreeMap<String, u32>) {
    let mut dice = Dice::new(seed + 1);
    for _ in 0..20 {
        dice.below(2);
    }
    let agents = 3 + dice.below(7);
    let mut world = World::new(seed, usize::try_from(agents).unwrap());
    let number = 2 + dice.below(3);
    let mut racks = Racks {
        taken: BTreeMap::new(),
        held: BTreeMap::new(),
        limit: u32::MAX,
    };
    let mut room: BTreeMap<String, u32> = BTreeMap::new();
    for (index, agent) in (0..).zip(world.agents()) {
        let rack = format!(
            "rack{}",
            if index < number {
                index
            } else {
                dice.below(number)
            }
        );
        world.racks.insert(agent.clone(), rack.clone());
        let taken = u32::try_from(dice.below(10).saturating_sub(5))
            .unwrap()
            .min(SLOTS);
        // Some slots are held for longer than any job waits.
        let held = match dice.below(6) {
            0 => u64::MAX,
            1 | 2 => dice.below(7),
            _ => 0,
        };
        if held != u64::MAX {
            *room.entry(rack).or_default() += SLOTS - taken;
        }
        racks.taken.insert(agent.clone(), taken);
        racks.held.insert(agent, held);
    }
    (world, racks, dice, room)
}

#[test]
fn random_clusters_reach_best_possible_spread() {
    for seed in 0..200 {
        let (mut world, mut racks, mut dice, room) = cluster(seed);
        let total: u32 = room.values().sum();
        if total == 0 {
            continue;
        }
        let count = 1 + u32::try_from(dice.below(total.min(12).into())).unwrap();
        // The limit is often the job's exact need.
        if dice.below(2) == 0 {
            racks.limit = count;
        }
        submit(&mut world, spread(count));
        let mut now = 0;
        while world.alive("web") < count as usize {
            second(&mut world, &racks, &mut dice, now);
            now += 1;
            assert!(now < 120, "seed {seed}: {} of {count}", world.alive("web"));
        }
        assert_eq!(counts(&world), best(count, &room), "seed {seed}: {room:?}");
    }
}

/// Without the master's list of agents, offers are used as they come.
#[test]
fn spread_without_cluster_waits_for_nothing() {
    let mut world = World::new(1, 3);
    for agent in world.agents() {
        world.racks.insert(agent.clone(), agent);
    }
    submit(&mut world, spread(3));
    world.offer("a0", 3);
    while world.deliver() {}
    world.sync();
    assert_eq!(world.alive("web"), 3);
}

/// Regression: a quota worth one agent left only ports of the others, which were offered beside it, and all tasks went to
/// one rack.
#[test]
fn spread_waits_for_agents_without_room() {
    let mut world = World::new(1, 3);
    for agent in world.agents() {
        world.racks.insert(agent.clone(), agent);
    }
    world.tell_agents(&BTreeMap::new());
    while world.deliver() {}
    submit(&mut world, spread(3));
    world.offer_together(&[("a0", 3), ("a1", 0), ("a2", 0)]);
    while world.deliver() {}
    world.sync();
    assert_eq!(world.alive("web"), 1);
    for agent in ["a1", "a2"] {
        world.offer(agent, 1);
        while world.deliver() {}
        world.sync();
    }
    assert_eq!(counts(&world), [1, 1, 1]);
}

/// Another framework held each offer for four seconds, and got the next offer of the agent as well.
#[test]
fn spread_waits_through_repeated_foreign_offers() {
    let mut world = World::new(1, 3);
    for agent in world.agents() {
        world.racks.insert(agent.clone(), agent);
    }
    world.tell_agents(&BTreeMap::new());
    while world.deliver() {}
    submit(&mut world, spread(3));
    for second in 0..17 {
        let agent = match second {
            16 => "a2",
            second if second % 2 == 0 => "a0",
            _ => "a1",
        };
        if world.may_offer(agent) {
            world.offer_in("r", agent, 2);
        }
        while world.deliver() {}
        world.sync();
        world.pass(Duration::from_secs(1));
        while world.deliver() {}
        world.sync();
        assert_eq!(
            world.alive("web"),
            [1, 2, 3][usize::from(second > 0) + usize::from(second == 16)]
        );
    }
    assert_eq!(counts(&world), [1, 1, 1]);
}

#[test]
fn uneven_job_names_missing_offers() {
    let mut world = World::new(1, 4);
    let racks = ["r1", "r2", "r3", "r4"];
    for (agent, rack) in world.agents().into_iter().zip(racks) {
        world.racks.insert(agent, rack.to_owned());
    }
    let taken = BTreeMap::from([("a3".to_owned(), SLOTS)]);
    world.tell_agents(&taken);
    while world.deliver() {}
    submit(&mut world, spread(3));
    let offer = |world: &mut World| {
        if world.may_offer("a0") && world.offered() == 0 && world.used() < 3 {
            world.offer("a0", 3 - world.used());
        }
        while world.deliver() {}
        world.sync();
        world.pass(Duration::from_secs(1));
        while world.deliver() {}
        world.sync();
    };
    offer(&mut world);
    // The first instance is as good there as anywhere; the others wait for other racks.
    assert_eq!(world.alive("web"), 1);
    for _ in 0..5 {
        offer(&mut world);
    }
    assert_eq!(world.alive("web"), 1);
    for _ in 0..25 {
        offer(&mut world);
    }
    assert_eq!(world.alive("web"), 3);
    let view = world.state.job_alone("web", &Quotas::default()).unwrap();
    let expected = "3 of 3 on rack r1: r2, r3 not offered; r4 full".to_owned();
    assert!(view.obstacles.contains(&expected), "{:?}", view.obstacles);
}

#[test]
fn rebalance_moves_to_newly_offered_racks() {
    let mut world = World::new(3, 3);
    for (agent, rack) in world.agents().into_iter().zip(["r1", "r2", "r3"]) {
        world.racks.insert(agent, rack.to_owned());
    }
    submit(&mut world, spread(3));
    world.offer("a0", 3);
    while world.deliver() {}
    world.sync();
    assert_eq!(counts(&world), [3]);
    for _ in 0..9 {
        world.advance(None);
    }
    world.calm(5, None);
    world.tell_agents(&BTreeMap::new());
    while world.deliver() {}
    let before = world.state.job("web").unwrap();
    let name = "web".to_owned();
    let id = world.request(Request::Rebalance { name });
    world.sync();
    assert!(matches!(world.answers.get(&id), Some(Ok(_))));
    for second in 0..60 {
        if second == 3 {
            world.crash();
            world.tell_agents(&BTreeMap::new());
        }
        world.calm(1, None);
        let job = world.state.job("web").unwrap();
        assert!(job.healthy >= 2, "{} healthy", job.healthy);
        assert!(world.alive("web") <= 4);
    }
    assert_eq!(counts(&world), [1, 1, 1]);
    let after = world.state.job("web").unwrap();
    assert_eq!((after.state, after.version), ("healthy", before.version));
    // One stays in place, and a further request moves nothing.
    let ids = |tasks: Option<Vec<crate::core::TaskView>>| -> Vec<String> {
        tasks
            .unwrap()
            .into_iter()
            .map(|task| task.task_id)
            .collect()
    };
    let (old, new) = (ids(before.tasks), ids(after.tasks));
    assert_eq!(new.iter().filter(|id| old.contains(id)).count(), 1);
    let name = "web".to_owned();
    world.request(Request::Rebalance { name });
    world.sync();
    world.calm(10, None);
    assert_eq!(ids(world.state.job("web").unwrap().tasks), new);
}

#[test]
fn rebalance_refuses_immovable_jobs() {
    let volumes = JobSpec {
        constraints: spread(2).constraints,
        ..database(2)
    };
    let gang = JobSpec {
        gang: gang("web", 2).gang,
        ..spread(2)
    };
    for (mut spec, expected) in [
        (volumes, "has volumes, which stay on their agents"),
        (gang, "is a gang, whose instances start together"),
        (service(2, 1, 0), "has no constraint with `spread`"),
        (batch("one", 1), "is not a service"),
    ] {
        let mut world = World::new(1, 1);
        spec.name = "one".to_owned();
        submit(&mut world, spec);
        assert!(!world.state.can_be_rebalanced("one"), "{expected}");
        let name = "one".to_owned();
        let id = world.request(Request::Rebalance { name });
        world.sync();
        let answer = world.answers.get(&id).expect("an answer");
        let refusal = answer.as_ref().expect_err("refused");
        assert!(format!("{refusal:?}").contains(expected), "{refusal:?}");
    }
    let mut world = World::new(1, 1);
    submit(&mut world, spread(2));
    assert!(world.state.can_be_rebalanced("web"));
}

/// Instances with and without a volume belong to one job.
#[test]
fn distinct_holds_across_volume_changes() {
    for seed in 0..10 {
        let mut world = World::new(seed, 3);
        let mut spec = service(2, 1, 0);
        spec.constraints = vec![Constraint {
            attribute: "@hostname".to_owned(),
            rule: Rule::Distinct(1),
        }];
        let without = spec.clone();
        spec.volume = database(1).volume;
        for (spec, is_last) in [
            (&without, false),
            (&spec, false),
            (&without, false),
            (&spec, true),
        ] {
            submit(&mut world, spec.clone());
            for _ in 0..480 {
                world.make_offers();
                while world.deliver() {}
                world.sync();
                let job = world.state.job("web").unwrap();
                let tasks = job.tasks.unwrap();
                let mut hosts: Vec<_> = tasks.iter().map(|task| &task.hostname).collect();
                hosts.sort();
                assert!(
                    hosts.windows(2).all(|pair| pair[0] != pair[1]),
                    "{seed}: {tasks:?}"
                );
                world.advance(None);
                world.pass(Duration::from_millis(125));
            }
            // Instances may return to their volumes only once other jobs have made room on the hosts.
            assert!(
                is_last || state_of(&world, "web") == "healthy",
                "seed {seed}"
            );
        }
    }
}
