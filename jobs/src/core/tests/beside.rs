//! The scheduler beside another framework, at a master that divides agents by fair shares: gangs beside a greedy framework,
//! and the time until another framework gets the resources that jobs do not use.

use super::*;
use crate::core::tests::world::SLOTS;

/// A framework that takes all its offers, slot by slot.
struct Other {
    /// The number of slots that it wants now.
    wants: u32,
    /// The least seconds that each of its tasks takes; up to two more are added.
    lasts: u64,
    /// The tasks: their agents, and the seconds at which they end.
    tasks: Vec<(String, u64)>,
    /// The permitted share in percent of the scheduler's share.
    share: u32,
}

impl Other {
    fn new(wants: u32, lasts: u64, share: u32) -> Self {
        Self {
            wants,
            lasts,
            tasks: Vec::new(),
            share,
        }
    }
}

/// The observed offers that the scheduler held.
#[derive(Debug, Default)]
struct Held {
    /// Seconds that slots were held without use, summed over the slots.
    waste: u64,
    /// The largest number of slots held at once.
    most: u32,
    /// The longest uninterrupted time, in seconds.
    longest: u64,
    since: Option<u64>,
}

impl Held {
    fn note(&mut self, slots: u32, second: u64) {
        self.waste += u64::from(slots);
        self.most = self.most.max(slots);
        match (slots, self.since) {
            (0, _) => self.since = None,
            (_, None) => self.since = Some(second),
            (_, Some(_)) => {}
        }
        let held = self.since.map_or(0, |since| second - since + 1);
        self.longest = self.longest.max(held);
    }
}

/// Plays one second: tasks of the other framework end, free slots are divided, batches of the scheduler advance.
fn second(world: &mut World, other: &mut Other, now: u64, held: &mut Held) {
    other.tasks.retain(|(_, until)| *until > now);
    for _ in 0..8 {
        divide(world, other, now);
        while world.deliver() {}
        world.sync();
    }
    held.note(world.offered(), now);
    for _ in 0..SLOTS * 3 {
        world.advance(None);
    }
    while world.deliver() {}
    world.sync();
    world.pass(Duration::from_secs(1));
    world.check();
}

/// Offers all free slots of each agent to the framework with the smaller share, unless it wants nothing.
fn divide(world: &mut World, other: &mut Other, now: u64) {
    for agent in world.agents() {
        let taken = other.tasks.iter().filter(|(at, _)| *at == agent).count();
        let free = world.free(&agent, u32::try_from(taken).unwrap());
        if free == 0 {
            continue;
        }
        let its = u32::try_from(other.tasks.len()).unwrap();
        let ours = world.used() + world.offered();
        let is_its_turn = its * 100 < ours * other.share || !world.may_offer(&agent);
        if other.wants > 0 && is_its_turn {
            let takes = free.min(other.wants);
            other.wants -= takes;
            for _ in 0..takes {
                // Random ends keep the tasks from ending at the same time.
                let until = now + other.lasts + world.dice.below(3);
                other.tasks.push((agent.clone(), until));
            }
        } else if world.may_offer(&agent) {
            world.offer(&agent, free);
        }
    }
}

#[test]
fn two_gangs_run_beside_greedy_framework() {
    const HOLD: u64 = 20;
    for lasts in [1, 3, 7] {
        let mut world = World::new(lasts, 3);
        world.success_in_ten = 10;
        // The other framework would take all slots; the gangs' role has twice its weight, so eight of twelve slots are
        // theirs.
        let mut other = Other::new(u32::MAX, lasts, 50);
        let mut held = Held::default();
        let (mut runs, mut began, mut longest) = ([0_u64; 2], [0; 2], 0);
        let mut others = 0;
        for now in 0..1_200 {
            for (index, name) in ["one", "two"].into_iter().enumerate() {
                let state = world.state.job(name).map(|job| job.state);
                if matches!(state, None | Some("complete")) {
                    if state.is_some() {
                        runs[index] += 1;
                        longest = longest.max(now - began[index]);
                    }
                    began[index] = now;
                    submit(&mut world, gang(name, 8));
                }
            }
            second(&mut world, &mut other, now, &mut held);
            others += other.tasks.len();
        }
        // Both gangs run repeatedly. The bound on starvation is the other gang's turn, plus twice the time in which slots
        // become free.
        assert!(runs.iter().all(|runs| *runs >= 20), "{runs:?}, {lasts} s");
        assert!(longest <= 2 * HOLD + 3 * lasts, "{longest} s, {lasts} s");
        // No gang holds offers longer than permitted, nor more than it needs, including the whole agent of its last task.
        assert!(held.longest <= HOLD, "{held:?}, {lasts} s");
        assert!(held.most <= 12, "{held:?}");
        let waste_max = (runs[0] + runs[1] + 2) * HOLD * 12;
        assert!(held.waste <= waste_max, "{held:?} of {waste_max}");
        // The greedy framework is not starved either.
        assert!(others >= 1_200, "{others} slot-seconds, {lasts} s");
        assert!(world.launches.iter().all(|(_, size)| *size == 8));
    }
}

#[test]
fn gang_beyond_share_holds_more_rarely() {
    let mut world = World::new(3, 3);
    // Each framework has half of the slots: nine are never free for the gang, which gets at most eight, a whole agent
    // beyond four.
    let mut other = Other::new(u32::MAX, 3, 100);
    let mut held = Held::default();
    submit(&mut world, gang("one", 9));
    for now in 0..2_000 {
        second(&mut world, &mut other, now, &mut held);
    }
    assert_eq!(state_of(&world, "one"), "pending");
    assert!(held.longest <= 20, "{held:?}");
    assert!(held.waste <= 300 * 12, "{held:?} of 24000 slot-seconds");
}

#[test]
fn unused_offers_reach_another_framework() {
    // A role without work, a job that fits nowhere, and a job that runs.
    let idle = None;
    let mut blocked = service(2, 1, 1);
    blocked.task.requests.insert("cpus".to_owned(), 100.0);
    let running = Some(service(4, 1, 1));
    for (spec, free) in [(idle, 12), (Some(blocked), 12), (running, 8)] {
        let mut world = World::new(1, 3);
        if let Some(spec) = spec {
            submit(&mut world, spec);
        }
        let mut other = Other::new(0, 2, 100);
        let mut held = Held::default();
        for now in 0..60 {
            if now % 5 == 4 {
                other.wants = 12;
            }
            second(&mut world, &mut other, now, &mut held);
            // The offer comes within the interval of the request.
            if now % 5 == 4 && now > 10 {
                let got = other.tasks.len();
                assert_eq!(got, free, "second {now}");
                other.wants = 0;
            }
        }
        assert_eq!(held.waste, 0, "{held:?}");
    }
}
