//! The commands of the property test. Each runs on the allocator and on the model, and both must refuse the same
//! calls.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meseta_allocator::{AgentFacts, AgentSpec, FrameworkCapabilities, FrameworkSpec, Quota};
use meseta_resources::{
    AgentId, Conversion, FrameworkId, ResourceLimits, ResourceName, Resources, Role, Scalar,
};

use super::model::{Filter, ModelAgent, ModelFramework};
use super::{World, agent, framework, role, short};

/// Totals of all kinds, small enough that every case occurs.
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
    pub(super) fn add_agent(&mut self, a: u16, b: u16, c: u16) {
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

    pub(super) fn remove_agent(&mut self, a: u16) {
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

    pub(super) fn add_framework(&mut self, a: u16, b: u16, c: u16) {
        let (id, spec) = (framework(a), Self::spec(b, c));
        let mut active = true;
        if let Some(known) = self.model.frameworks.get(&id) {
            active = known.active;
            self.allocator
                .update_framework(&id, &spec)
                .expect("known and valid");
            // Former roles, and roles that are no longer suppressed, lose their filters.
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

    pub(super) fn remove_framework(&mut self, a: u16) {
        let id = framework(a);
        let known = self.model.frameworks.remove(&id).is_some();
        assert_eq!(self.allocator.remove_framework(&id).is_ok(), known);
        self.model.held.retain(|key, _| key.1 != id);
        self.model.filters.retain(|filter| filter.framework != id);
    }

    pub(super) fn toggle_framework(&mut self, a: u16, b: u16) {
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

    pub(super) fn suppress_or_revive(&mut self, a: u16, b: u16) {
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

    /// Returns some or all of a holding: a task ends, or an offer is declined.
    pub(super) fn give_back(&mut self, a: u16, b: u16, c: u16) {
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

    pub(super) fn weigh(&mut self, a: u16, b: u16) {
        let weight = [0.5, 1.0, 1.0, 2.0, 3.0][usize::from(b) % 5];
        self.allocator
            .update_weights(&[(role(a), weight)])
            .expect("valid");
        self.model.weights.insert(role(a), weight);
    }

    pub(super) fn set_quota(&mut self, a: u16, b: u16, c: u16) {
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
        if c & 96 == 96 {
            // Legacy quota: the guarantee is the limit.
            quota.limits = ResourceLimits::default();
            for (name, amount) in quota.guarantees.iter() {
                quota.limits.set(name, amount);
            }
            quota.legacy = true;
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

    pub(super) fn change_total(&mut self, a: u16, b: u16, c: u16) {
        let id = agent(a);
        let Some(known) = self.model.agents.get_mut(&id) else {
            return;
        };
        if b & 2048 != 0 {
            known.total = known.total.unrevocable();
            known.total += short::parse(&format!("cpus!:{}", c % 4));
        } else {
            known.total = total(b, c);
        }
        self.allocator
            .update_agent(&id, None, Some(&known.total))
            .expect("known");
    }

    /// An operator reserves, or unreserves.
    pub(super) fn reserve(&mut self, a: u16, b: u16) {
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

    /// A framework reserves held resources for its role.
    pub(super) fn convert(&mut self, a: u16, b: u16) {
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
        // A conversion cannot consume resources that the agent has lost since.
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

    pub(super) fn toggle_agent(&mut self, a: u16, b: u16) {
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
}
