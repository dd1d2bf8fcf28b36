//! Script commands that query the allocator: resources, order, and planned rescinds.

use std::collections::BTreeMap;

use meseta_allocator::Outstanding;
use meseta_resources::{FrameworkId, OfferId, ResourceQuantities, Resources, Role};

use super::super::resources::{parse, write};
use super::words::{Words, agent, amounts, framework, role, roles};
use super::{Answer, Script, none_if_empty};

impl Script {
    pub(super) fn show(&mut self, words: &Words<'_>) -> Answer {
        let allocator = self.allocator();
        Ok(match words.at(1) {
            "shares" => {
                let shares = allocator.shares();
                none_if_empty(
                    shares
                        .roles
                        .iter()
                        .map(|(role, share)| format!("{role} {share:.3}"))
                        .collect(),
                )
            }
            "order" => {
                let order = allocator.order();
                let names = order.iter().map(|(role, _)| role.to_string());
                none_if_empty(vec![names.collect::<Vec<_>>().join(" ")])
            }
            "frameworks" => {
                let order = allocator.order();
                let line = |(role, frameworks): &(Role, Vec<FrameworkId>)| {
                    let ids: Vec<String> = frameworks.iter().map(ToString::to_string).collect();
                    format!("{role}: {}", ids.join(" "))
                };
                none_if_empty(order.iter().map(line).collect())
            }
            "roles" => {
                let line = |role: &meseta_allocator::RoleView| {
                    format!(
                        "{} weight {} guarantees {} limits {} consumed {} reserved {} filters {} frameworks {}",
                        role.role,
                        role.weight,
                        role.quota.guarantees,
                        role.quota.limits,
                        role.consumed,
                        role.reserved,
                        role.filters,
                        role.frameworks.len()
                    )
                };
                none_if_empty(allocator.roles().iter().map(line).collect())
            }
            "total" => format!(
                "total {} allocated {}",
                allocator.total(),
                allocator.allocated()
            ),
            "allocated" => {
                let view = allocator.role(&role(words.at(2)));
                view.map_or_else(|| "nothing".into(), |view| view.allocated.to_string())
            }
            "free" => write(&allocator.available(&agent(words.at(2)))?),
            "held" => {
                let held = allocator.held(&agent(words.at(2)))?;
                let line = |(id, resources): (&FrameworkId, &Resources)| {
                    format!("{id} {}", write(&resources.unallocate()))
                };
                none_if_empty(held.iter().map(line).collect())
            }
            "cycles" => allocator.cycles().to_string(),
            "answers" => format!(
                "{:?}",
                allocator.inverse_offer_answers(&agent(words.at(2)))?
            ),
            "guaranteed" => allocator.guaranteed(None).to_string(),
            other => panic!("what is {other}?"),
        })
    }

    pub(super) fn explain(&mut self, words: &Words<'_>) -> Answer {
        let (id, name, on) = (
            framework(words.at(1)),
            role(words.at(2)),
            agent(words.at(3)),
        );
        let now = self.now;
        let explanation = self.allocator().explain(now, &id, &name, &on)?;
        Ok(match explanation.blocker {
            Some(blocker) => blocker.to_string(),
            None => format!(
                "would be offered {}",
                write(&explanation.offer.unallocate())
            ),
        })
    }

    pub(super) fn rescind(&mut self, words: &Words<'_>) -> String {
        let offers = self.offers.clone();
        let allocator = self.allocator();
        let plan = match words.at(1) {
            "request" => {
                let request: ResourceQuantities = amounts(words.at(3)).collect();
                allocator.rescind_for_request(&role(words.at(2)), &request, &offers)
            }
            "quota" => {
                let name = role(words.at(2));
                let quota = allocator
                    .role(&name)
                    .map(|view| view.quota)
                    .unwrap_or_default();
                allocator.rescind_for_quota(&name, &quota, offers.iter().map(Outstanding::view))
            }
            "weights" => allocator.rescind_for_weights(&roles(Some(words.at(2))), &offers),
            _ => {
                let requested = parse(words.at(3));
                match allocator.rescind_for_operation(&agent(words.at(2)), &requested, &offers) {
                    Some(plan) => plan,
                    None => return "no offers are enough".into(),
                }
            }
        };
        let line = |id: &OfferId| {
            let offer = offers
                .iter()
                .find(|offer| offer.id == *id)
                .expect("an offer of ours");
            let text = write(&offer.resources.unallocate());
            format!("{} {} {} {text}", offer.framework, offer.role, offer.agent)
        };
        none_if_empty(plan.iter().map(line).collect())
    }

    /// `capacity seed|head role request`.
    pub(super) fn capacity(&mut self, words: &Words<'_>) -> Answer {
        let request: ResourceQuantities = amounts(words.at(3)).collect();
        let name = role(words.at(2));
        let allocator = self.allocator();
        let capacity = allocator.quota_capacity(words.at(1) == "seed");
        let guaranteed = allocator.guaranteed(Some(&name));
        let total = &guaranteed + &request;
        Ok(match capacity.contains(&total) {
            true => "enough".into(),
            false => format!("'{total}' exceeds '{capacity}'"),
        })
    }

    /// The frequency of each role at each position, in hundredths.
    pub(super) fn frequencies(&mut self, runs: u32) -> String {
        let mut counts: BTreeMap<Role, Vec<u32>> = BTreeMap::new();
        for _ in 0..runs {
            let order = self.allocator().order();
            for (place, (role, _)) in order.iter().enumerate() {
                let places = counts
                    .entry(role.clone())
                    .or_insert_with(|| vec![0; order.len()]);
                places[place] += 1;
            }
        }
        let line = |(role, counts): (&Role, &Vec<u32>)| {
            let part = |count: &u32| format!("{:.2}", f64::from(*count) / f64::from(runs));
            format!(
                "{role} {}",
                counts.iter().map(part).collect::<Vec<_>>().join(" ")
            )
        };
        counts.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}
