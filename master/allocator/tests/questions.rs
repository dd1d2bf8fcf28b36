//! Cost of calls: the allocator does not examine objects that its answer leaves out.

use std::collections::BTreeMap;
use std::time::Duration;

use meseta_allocator::{
    AgentFacts, AgentSpec, Allocator, Constraint, FrameworkCapabilities, FrameworkSpec,
    OfferConstraints, Options, Pattern, Predicate, Selector, SorterKind,
};
use meseta_resources::work_counter::entries_counted;
use meseta_resources::{
    AgentId, FrameworkId, Moment, ResourceName, ResourceQuantities, Resources, Role, Scalar,
};

const ROLES: usize = 500;
const AGENTS: usize = 40;

fn role(number: usize) -> Role {
    Role::new(&format!("r{number}")).expect("a valid role")
}

fn agent(number: usize) -> AgentId {
    AgentId::new(&format!("a{number}")).expect("a valid id")
}

fn framework() -> FrameworkId {
    FrameworkId::new("f").expect("a valid id")
}

/// A framework in many roles, whose constraints exclude all agents of a cluster.
fn cluster() -> Allocator {
    let mut allocator = Allocator::new(Options::default());
    let resources = Resources::parse("cpus:1;mem:64", &Role::star()).expect("valid resources");
    for number in 0..AGENTS {
        let spec = AgentSpec::new(AgentFacts::named("host"), resources.clone());
        let added = allocator.add_agent(&agent(number), spec);
        added.expect("a new agent");
    }
    let never = Constraint {
        selector: Selector::Attribute("rack".into()),
        predicate: Predicate::Exists,
    };
    let groups = vec![vec![never]];
    let constraints = (0..ROLES).map(|number| {
        let groups = groups.clone();
        (role(number), OfferConstraints { groups })
    });
    let spec = FrameworkSpec {
        roles: (0..ROLES).map(role).collect(),
        constraints: constraints.collect(),
        ..FrameworkSpec::default()
    };
    let added = allocator.add_framework(&framework(), &spec, true, &BTreeMap::new());
    added.expect("a new framework");
    allocator
}

fn counted<T>(ask: impl FnOnce() -> T) -> (T, u64) {
    let before = entries_counted();
    let answer = ask();
    (answer, entries_counted() - before)
}

#[test]
fn role_lookup_scales_to_many_roles() {
    let mut allocator = cluster();
    let spec = FrameworkSpec {
        roles: (0..ROLES).map(role).collect(),
        ..FrameworkSpec::default()
    };
    let ((), looked_at) = counted(|| {
        let updated = allocator.update_framework(&framework(), &spec);
        updated.expect("a known framework");
    });
    assert!(looked_at < 40 * 500, "{looked_at} for {ROLES} roles");
    let now = Moment::ORIGIN;
    let offers = allocator.allocate(now);
    assert_eq!(offers.len(), AGENTS);
    for offer in offers {
        let ((), looked_at) = counted(|| {
            let declined = allocator.recover_resources(
                now,
                &framework(),
                &offer.agent,
                &offer.resources,
                Some(Duration::from_secs(5)),
            );
            declined.expect("an offer that is out");
        });
        assert!(looked_at < 200, "{looked_at}");
    }
}

#[test]
fn explain_respects_agent_limit() {
    let allocator = cluster();
    let (excluded, looked_at) = counted(|| allocator.excluded(&framework(), 50));
    let excluded = excluded.expect("a known framework");
    assert_eq!(excluded.len(), ROLES);
    assert_eq!(excluded.values().map(Vec::len).sum::<usize>(), 50);
    let (all, of_all) = counted(|| allocator.excluded(&framework(), usize::MAX));
    let all = all.expect("a known framework");
    assert!(looked_at * 5 < of_all, "{looked_at} of {of_all}");
    let mut agents: Vec<AgentId> = (0..AGENTS).map(agent).collect();
    agents.sort_unstable();
    assert!(all.values().all(|excluded| *excluded == agents));
}

#[test]
fn explain_respects_role_and_framework_limits() {
    let allocator = cluster();
    let (now, first) = (Moment::ORIGIN, agent(0));
    let (explained, looked_at) =
        counted(|| allocator.explain_framework(now, &framework(), &first, 3));
    let explained = explained.expect("a known framework");
    let roles: Vec<&str> = explained.iter().map(|one| one.role.as_str()).collect();
    assert_eq!(roles, ["r0", "r1", "r10"]);
    let (all, of_all) =
        counted(|| allocator.explain_framework(now, &framework(), &first, usize::MAX));
    assert_eq!(all.map(|all| all.len()), Ok(ROLES));
    assert!(looked_at * 2 < of_all, "{looked_at} of {of_all}");
    let none = allocator.explain_role(now, &role(1), None, &first, 0);
    assert_eq!(none, Ok(Vec::new()));
    let one = allocator.explain(now, &framework(), &role(1), &first);
    let of_role = allocator.explain_role(now, &role(1), None, &first, 5);
    assert_eq!(of_role, one.map(|one| vec![one]));
    let among = |all: &[FrameworkId]| {
        let among = all.iter().cloned().collect();
        allocator.explain_role(now, &role(1), Some(&among), &first, 5)
    };
    assert_eq!(among(&[framework()]), of_role);
    let other = FrameworkId::new("unknown").expect("a valid id");
    assert_eq!(among(&[other]), Ok(Vec::new()));
}

#[test]
fn random_sort_of_roles_scales_linearly() {
    let cost = |roles: usize| {
        let mut allocator = Allocator::new(Options {
            role_sorter: SorterKind::Random,
            ..Options::default()
        });
        for number in 0..roles {
            let id = FrameworkId::new(&format!("f{number}")).expect("a valid id");
            let spec = FrameworkSpec {
                roles: [role(number)].into(),
                ..FrameworkSpec::default()
            };
            let added = allocator.add_framework(&id, &spec, true, &BTreeMap::new());
            added.expect("a new framework");
        }
        let resources = Resources::parse("cpus:1;mem:64", &Role::star()).expect("valid resources");
        let spec = AgentSpec::new(AgentFacts::named("host"), resources);
        allocator.add_agent(&agent(0), spec).expect("a new agent");
        let (offers, looked_at) = counted(|| allocator.tick(Moment::ORIGIN));
        assert_eq!(offers.len(), 1);
        looked_at
    };
    let (few, many) = (cost(100), cost(1_000));
    assert!(many < few * 15, "{few}, then {many}");
}

/// Adds a framework with this many roles, by their first letters; a framework with a minimum of its own also takes
/// gpus.
fn add_in_roles(allocator: &mut Allocator, name: &str, roles: usize, minimum: Option<f64>) {
    let role = |number: usize| Role::new(&format!("{name}{number:05}")).expect("a valid role");
    let roles = (0..roles).map(role);
    let minimum = minimum.map(|cpus| {
        let mut least = ResourceQuantities::new();
        least.set(
            &ResourceName::cpus(),
            Scalar::from_f64(cpus).expect("a valid scalar"),
        );
        least
    });
    let minimum_is_own = minimum.is_some();
    let minimums = minimum.map(|least| roles.clone().map(move |role| (role, vec![least.clone()])));
    let spec = FrameworkSpec {
        roles: roles.clone().collect(),
        capabilities: FrameworkCapabilities {
            gpu_resources: minimum_is_own,
            ..FrameworkCapabilities::default()
        },
        min_allocatable: minimums.into_iter().flatten().collect(),
        ..FrameworkSpec::default()
    };
    let id = FrameworkId::new(name).expect("a valid id");
    let added = allocator.add_framework(&id, &spec, true, &BTreeMap::new());
    added.expect("a new framework");
}

fn add_agents(allocator: &mut Allocator, number: usize, resources: &str) {
    let resources = Resources::parse(resources, &Role::star()).expect("valid resources");
    for number in 0..number {
        let spec = AgentSpec::new(AgentFacts::named("host"), resources.clone());
        allocator
            .add_agent(&agent(number), spec)
            .expect("a new agent");
    }
}

#[test]
fn skips_roles_unable_to_use_agent() {
    let cost = |roles: usize, resources: &str, minimum: Option<f64>| {
        let mut allocator = Allocator::new(Options::default());
        add_in_roles(&mut allocator, "never", roles, minimum);
        add_in_roles(&mut allocator, "useful", 1, Some(0.5));
        add_agents(&mut allocator, 2, resources);
        allocator.tick(Moment::ORIGIN);
        let useful = FrameworkId::new("useful").expect("a valid id");
        let mut looked_at = 0;
        for _ in 0..3 {
            // A task ends, and the cycle visits its agent.
            let held = allocator.held(&agent(0)).expect("it is known");
            let held = held.get(&useful).expect("the agent");
            let freed = allocator.recover_resources(Moment::ORIGIN, &useful, &agent(0), held, None);
            freed.expect("what it has");
            let offers;
            (offers, looked_at) = counted(|| allocator.allocate(Moment::ORIGIN));
            assert_eq!(offers.len(), 1, "whoever can use it has it");
            assert_eq!(offers[0].framework, useful);
        }
        looked_at
    };
    for (resources, minimum) in [("cpus:1;mem:64", Some(1e9)), ("cpus:1;mem:64;gpus:1", None)] {
        let (few, many) = (
            cost(100, resources, minimum),
            cost(2_000, resources, minimum),
        );
        assert!(many < few + 100, "{few}, then {many}");
    }
}

#[test]
fn lowered_minimum_revisits_skipped_roles() {
    let mut allocator = Allocator::new(Options::default());
    add_in_roles(&mut allocator, "f", 50, Some(2.0));
    add_agents(&mut allocator, 1, "cpus:1;mem:64;gpus:1");
    let id = FrameworkId::new("f").expect("a valid id");
    for _ in 0..2 {
        assert!(allocator.sweep(Moment::ORIGIN).is_empty());
    }
    let first = Role::new("f00007").expect("a valid role");
    let roles = (0..50).map(|number| Role::new(&format!("f{number:05}")).expect("a valid role"));
    let spec = FrameworkSpec {
        roles: roles.collect(),
        ..FrameworkSpec::default()
    };
    allocator.update_framework(&id, &spec).expect("it is known");
    assert!(allocator.tick(Moment::ORIGIN).is_empty(), "no gpus for it");
    let spec = FrameworkSpec {
        suppressed: spec
            .roles
            .iter()
            .filter(|role| **role != first)
            .cloned()
            .collect(),
        capabilities: FrameworkCapabilities {
            gpu_resources: true,
            ..FrameworkCapabilities::default()
        },
        ..spec
    };
    allocator.update_framework(&id, &spec).expect("it is known");
    let offers = allocator.allocate(Moment::ORIGIN);
    assert_eq!(offers.len(), 1);
    assert_eq!(offers[0].role, first);
}

#[test]
fn clears_filters_in_one_agent_pass() {
    const ROLES: usize = 100;
    const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
    let mut allocator = Allocator::new(Options::default());
    add_in_roles(&mut allocator, "f", ROLES, None);
    add_agents(&mut allocator, 50, "cpus:1;mem:64");
    let id = FrameworkId::new("f").expect("a valid id");
    let mut now = Moment::ORIGIN;
    for _ in 0..2 {
        let mut declined = 0;
        while declined < ROLES * 20 {
            now += Duration::from_secs(1);
            let offers = allocator.tick(now);
            assert!(!offers.is_empty());
            declined += offers.len();
            for offer in offers {
                let (agent, resources) = (&offer.agent, &offer.resources);
                let recovered = allocator.recover_resources(now, &id, agent, resources, Some(YEAR));
                recovered.expect("an offer that is out");
            }
        }
        let (revived, looked_at) = counted(|| allocator.revive(&id, &[].into()));
        revived.expect("it is known");
        assert!(looked_at < 30 * 100, "{looked_at}");
    }
    now += Duration::from_secs(1);
    assert_eq!(allocator.tick(now).len(), 50);
}

#[test]
fn shared_constraint_is_checked_per_agent() {
    let cost = |constraints: usize| {
        let mut allocator = Allocator::new(Options::default());
        add_agents(&mut allocator, 100, "cpus:1;mem:64");
        let named = |number: usize| Constraint {
            selector: Selector::Hostname,
            predicate: Predicate::TextNotMatches(
                Pattern::new(&format!("other{}", number % 2)).expect("a pattern"),
            ),
        };
        let constraints = (0..constraints).map(|number| {
            let groups = vec![vec![named(number), named(number + 1)]];
            (role(number), OfferConstraints { groups })
        });
        let spec = FrameworkSpec {
            roles: (0..ROLES).map(role).collect(),
            constraints: constraints.collect(),
            ..FrameworkSpec::default()
        };
        let add = || allocator.add_framework(&framework(), &spec, true, &BTreeMap::new());
        let (added, looked_at) = counted(add);
        added.expect("a new framework");
        looked_at
    };
    let (none, all) = (cost(0), cost(ROLES));
    assert!(all < none + 200 + 100 + 10 * 500, "{none}, then {all}");
}
