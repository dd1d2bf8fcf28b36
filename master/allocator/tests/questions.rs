//! Questions: what is left out of an answer is not looked at either.

use std::collections::BTreeMap;

use meseta_allocator::{
    AgentFacts, AgentSpec, Allocator, Constraint, FrameworkSpec, OfferConstraints, Options,
    Predicate, Selector, SorterKind,
};
use meseta_resources::work_counter::entries_counted;
use meseta_resources::{AgentId, FrameworkId, Moment, Resources, Role};

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

/// A framework in many roles, which its constraints keep from all agents of a cluster.
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
fn a_role_of_very_many_is_found_at_once() {
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
                Some(std::time::Duration::from_secs(5)),
            );
            declined.expect("an offer that is out");
        });
        assert!(looked_at < 200, "{looked_at}");
    }
}

#[test]
fn no_more_agents_are_named_than_are_asked_for() {
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
fn no_more_roles_and_frameworks_are_explained_than_are_asked_for() {
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
    let none = allocator.explain_role(now, &role(1), &first, 0);
    assert_eq!(none, Ok(Vec::new()));
    let one = allocator.explain(now, &framework(), &role(1), &first);
    let of_role = allocator.explain_role(now, &role(1), &first, 5);
    assert_eq!(of_role, one.map(|one| vec![one]));
}

#[test]
fn a_random_order_of_very_many_roles_is_drawn_in_proportion_to_them() {
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
