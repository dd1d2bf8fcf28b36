//! The properties that hold after every command and for every cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meseta_allocator::Allocation;
use meseta_resources::{Resources, Role};

use super::model::{KINDS, Model};
use super::{ROLES, World, short};

impl World {
    pub(super) fn cycle(&mut self, a: u16, b: u16) {
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

    /// Checks that each offer consists of free resources and obeys the limits of every role above.
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

    /// Replays the cycle on the model. Without quota the model predicts every offer, given the next agent.
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

    /// A tick or a sweep leaves no resources that could be offered, and no guarantee that could be served.
    fn check_nothing_more(&self, offers: &[Allocation]) {
        let shared = |resources: &Resources| !resources.shared().is_empty();
        if offers.iter().any(|offer| shared(&offer.resources)) {
            // A cycle offers shared volumes once, together with the other resources.
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

    pub(super) fn check_state(&mut self) {
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
            let of_role = self.model.filters.iter();
            let of_role = of_role.filter(|filter| filter.role == role);
            // Declining the same resources twice makes one filter.
            let filters: BTreeSet<_> = of_role
                .map(|filter| (&filter.agent, &filter.framework, filter.refused.to_string()))
                .collect();
            // The next cycle drops expired filters.
            assert!(
                roles.get(&role).map_or(0, |view| view.filters) >= filters.len(),
                "filters of {role}"
            );
        }
        assert_eq!(self.allocator.order(), self.model.order());
    }
}
