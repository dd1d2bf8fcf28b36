//! Fairness: weights, and the known properties of dominant-resource fairness.

use std::collections::{BTreeMap, BTreeSet};

use meseta_allocator::{
    AgentFacts, AgentSpec, Allocator, FrameworkCapabilities, FrameworkSpec, Options,
};
use meseta_resources::{AgentId, FrameworkId, Moment, Resources, Role};
use proptest::prelude::*;

fn role(name: &str) -> Role {
    Role::new(name).expect("a valid role")
}

fn framework(name: &str) -> FrameworkId {
    FrameworkId::new(name).expect("a valid id")
}

fn resources(text: &str) -> Resources {
    Resources::parse(text, &Role::star()).expect("valid resources")
}

fn in_role(name: &str) -> FrameworkSpec {
    FrameworkSpec {
        roles: BTreeSet::from([role(name)]),
        capabilities: FrameworkCapabilities {
            multi_role: true,
            ..Default::default()
        },
        ..Default::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Two roles with weights 1 and 3 that take everything reach dominant shares in the ratio 1 to 3.
    #[test]
    fn weights_are_met(
        agents in proptest::collection::vec((1_u32..8, 1_u32..64, 0_u32..9), 400..600),
        seed in any::<u64>(),
    ) {
        let mut allocator = Allocator::new(Options { seed, ..Options::default() });
        allocator.update_weights(&[(role("light"), 1.0), (role("heavy"), 3.0)]).expect("valid");
        for name in ["light", "heavy"] {
            let id = framework(name);
            allocator.add_framework(&id, &in_role(name), true, &BTreeMap::new()).expect("new");
        }
        for (index, (cpus, mem, disk)) in agents.iter().enumerate() {
            let id = AgentId::new(&format!("agent{index}")).expect("a valid id");
            let text = format!("cpus:{cpus};mem:{};disk:{}", mem * 256, disk * 100);
            let spec = AgentSpec::new(AgentFacts::named("host"), resources(&text));
            allocator.add_agent(&id, spec).expect("new");
        }
        let offers = allocator.allocate(Moment::ORIGIN);
        prop_assert_eq!(offers.len(), agents.len());
        // Shares are divided by the weight, so they must be equal.
        let shares = allocator.shares();
        let (light, heavy) = (shares.roles[&role("light")], shares.roles[&role("heavy")]);
        prop_assert!((light - heavy).abs() < 0.02, "light {light}, heavy {heavy}");
    }
}

/// The resources that a user in the DRF paper needs for one task.
#[derive(Clone, Debug)]
struct Demand {
    cpus: u32,
    mem: u32,
}

/// Progressive filling as in the paper, with offers: the whole cluster is on offer, the next user launches one task
/// and declines the rest, until no further task fits. Returns the number of tasks of each user.
fn fill(cpus: u32, mem: u32, demands: &[Demand], weights: &[f64]) -> Vec<u32> {
    let mut allocator = Allocator::new(Options::default());
    let names: Vec<String> = (0..demands.len())
        .map(|user| format!("user{user}"))
        .collect();
    for (name, weight) in names.iter().zip(weights) {
        allocator
            .update_weights(&[(role(name), *weight)])
            .expect("valid");
        let id = framework(name);
        allocator
            .add_framework(&id, &in_role(name), true, &BTreeMap::new())
            .expect("new");
    }
    let agent = AgentId::new("agent").expect("a valid id");
    let total = resources(&format!("cpus:{cpus};mem:{}", mem * 32));
    let spec = AgentSpec::new(AgentFacts::named("host"), total);
    allocator.add_agent(&agent, spec).expect("new");
    let mut tasks = vec![0; demands.len()];
    let mut now = Moment::ORIGIN;
    while let [offer] = allocator.tick(now).as_slice() {
        let user = names
            .iter()
            .position(|name| offer.role == name.as_str())
            .expect("one of them");
        let Demand { cpus, mem } = &demands[user];
        let task = resources(&format!("cpus:{cpus};mem:{}", mem * 32)).allocate(&offer.role);
        let mut rest = offer.resources.clone();
        let fits = rest.contains(&task);
        if fits {
            rest -= &task;
            tasks[user] += 1;
        } else {
            allocator
                .suppress(&offer.framework, &BTreeSet::new())
                .expect("known");
        }
        allocator
            .recover_resources(now, &offer.framework, &agent, &rest, None)
            .expect("held");
        now += std::time::Duration::from_secs(1);
    }
    tasks
}

/// The share of the resource of which a user has the largest part.
fn dominant(tasks: u32, demand: &Demand, cpus: u32, mem: u32) -> f64 {
    let part = |each: u32, all: u32| f64::from(tasks * each) / f64::from(all);
    part(demand.cpus, cpus).max(part(demand.mem, mem))
}

/// NSDI'11, the running example: 9 cpus and 18 GB; A needs <1, 4> per task, B <3, 1>. A gets 3 tasks and B 2, both
/// 2/3 of their dominant resource.
#[test]
fn the_papers_example() {
    let demands = [Demand { cpus: 1, mem: 4 }, Demand { cpus: 3, mem: 1 }];
    assert_eq!(fill(9, 18, &demands, &[1.0, 1.0]), [3, 2]);
    let shares = [
        dominant(3, &demands[0], 9, 18),
        dominant(2, &demands[1], 9, 18),
    ];
    assert_eq!(shares, [2.0 / 3.0, 2.0 / 3.0]);
}

/// The paper's example with twice the weight for B: B gets its third task first, and A gets the remainder.
#[test]
fn the_papers_example_weighted() {
    let demands = [Demand { cpus: 1, mem: 4 }, Demand { cpus: 3, mem: 1 }];
    let tasks = fill(90, 180, &demands, &[1.0, 2.0]);
    let shares = [
        dominant(tasks[0], &demands[0], 90, 180),
        dominant(tasks[1], &demands[1], 90, 180),
    ];
    assert!((shares[1] - 2.0 * shares[0]).abs() < 0.06, "{shares:?}");
}

/// Asset fairness fails the sharing incentive where DRF does not (the shape of the paper's Theorem 1 example): two
/// users of 30 and 30 units, <1, 3> and <1, 1>; each gets at least as much as from half of the cluster.
#[test]
fn the_papers_sharing_incentive_example() {
    let demands = [Demand { cpus: 1, mem: 3 }, Demand { cpus: 1, mem: 1 }];
    let tasks = fill(30, 30, &demands, &[1.0, 1.0]);
    for (user, tasks) in tasks.iter().enumerate() {
        let alone = (15 / demands[user].cpus).min(15 / demands[user].mem);
        assert!(
            *tasks >= alone,
            "user {user}: {tasks} tasks, {alone} with a half of its own"
        );
    }
}

fn demand() -> impl Strategy<Value = Demand> {
    (1_u32..5, 1_u32..5).prop_map(|(cpus, mem)| Demand { cpus, mem })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// No user would do better with an equal part of the cluster; whole tasks allow a deviation of the largest task's
    /// share.
    #[test]
    fn sharing_pays(
        demands in proptest::collection::vec(demand(), 2..5),
        (cpus, mem) in (20_u32..80, 20_u32..80),
    ) {
        let users = u32::try_from(demands.len()).expect("few");
        let tasks = fill(cpus, mem, &demands, &vec![1.0; demands.len()]);
        for (demand, tasks) in demands.iter().zip(&tasks) {
            let alone = (cpus / users / demand.cpus).min(mem / users / demand.mem);
            let largest = demands.iter().map(|demand| dominant(1, demand, cpus, mem));
            let largest = largest.fold(0.0, f64::max);
            let (got, alone) =
                (dominant(*tasks, demand, cpus, mem), dominant(alone, demand, cpus, mem));
            prop_assert!(got + largest >= alone, "{demand:?}: {got} of {alone}");
        }
    }

    /// No user would prefer another user's resources; deviations of one task of either are allowed.
    #[test]
    fn nobody_envies(
        demands in proptest::collection::vec(demand(), 2..5),
        (cpus, mem) in (20_u32..80, 20_u32..80),
    ) {
        let tasks = fill(cpus, mem, &demands, &vec![1.0; demands.len()]);
        for (mine, demand) in demands.iter().enumerate() {
            for (theirs, other) in demands.iter().enumerate() {
                // The other user may be one task ahead.
                let bundle = tasks[theirs].saturating_sub(1);
                let with_theirs =
                    (bundle * other.cpus / demand.cpus).min(bundle * other.mem / demand.mem);
                prop_assert!(
                    tasks[mine] + 1 >= with_theirs,
                    "{demand:?} has {} tasks and would have {with_theirs}", tasks[mine]
                );
            }
        }
    }

    /// A false demand for more of a resource brings no additional tasks.
    #[test]
    fn lying_does_not_pay(
        demands in proptest::collection::vec(demand(), 2..5),
        lie in (0_u32..4, 0_u32..4),
        (cpus, mem) in (20_u32..80, 20_u32..80),
    ) {
        let weights = vec![1.0; demands.len()];
        let honest = fill(cpus, mem, &demands, &weights)[0];
        let mut with_lie = demands.clone();
        with_lie[0] = Demand { cpus: demands[0].cpus + lie.0, mem: demands[0].mem + lie.1 };
        let lying = fill(cpus, mem, &with_lie, &weights)[0];
        // The last task that fits depends on rounding.
        prop_assert!(lying <= honest + 1, "{honest} tasks with the truth, {lying} with {lie:?} more");
    }
}
