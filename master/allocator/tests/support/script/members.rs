//! Commands about agents, frameworks, and the sorter's clients.

use std::collections::BTreeMap;

use meseta_allocator::{
    AgentCapabilities, AgentFacts, AgentSpec, FrameworkCapabilities, FrameworkSpec,
};
use meseta_resources::{Attributes, Conversion, Resources};

use super::super::resources::parse;
use super::words::{
    Words, agent, constraints, domain, framework, minimum, role, roles, unavailability, used,
};
use super::{Answer, Script, changed, quiet};

impl Script {
    fn facts(words: &Words<'_>, mut facts: AgentFacts) -> AgentFacts {
        if let Some(host) = words.get("host") {
            facts.hostname = host.into();
        }
        if let Some(attributes) = words.get("attributes") {
            facts.attributes = attributes.parse::<Attributes>().expect("attributes");
        }
        if let Some(text) = words.get("domain") {
            facts.domain = Some(domain(text));
        }
        if let Some(text) = words.get("can") {
            facts.capabilities = AgentCapabilities {
                multi_role: text.contains("multi") || text == "all",
                hierarchical_role: text.contains("hierarchical") || text == "all",
                reservation_refinement: text.contains("refinement") || text == "all",
            };
        }
        facts
    }

    pub(super) fn agent_command(&mut self, words: &Words<'_>) -> Answer {
        let id = agent(words.at(2));
        match words.at(0) {
            "add" => {
                let facts = Self::facts(words, AgentFacts::named(id.as_str()));
                let mut spec = AgentSpec::new(facts, parse(words.at(3)));
                spec.used = used(words.get("used"));
                spec.unavailability = words.get("unavailable").and_then(unavailability);
                self.allocator().add_agent(&id, spec).map(quiet)
            }
            "update" => {
                let facts = ["host", "attributes", "domain", "can"];
                let facts = facts.iter().any(|name| words.get(name).is_some());
                let facts = facts.then(|| Self::facts(words, AgentFacts::named(id.as_str())));
                let total = words.get("total").map(parse);
                self.allocator()
                    .update_agent(&id, facts, total.as_ref())
                    .map(changed)
            }
            "remove" => {
                self.offers.retain(|offer| offer.agent != id);
                self.allocator().remove_agent(&id).map(quiet)
            }
            "activate" => self.allocator().activate_agent(&id).map(quiet),
            _ => self.allocator().deactivate_agent(&id).map(quiet),
        }
    }

    fn spec(words: &Words<'_>) -> FrameworkSpec {
        let with = words.get("with").unwrap_or("");
        let has = |name: &str| with.split(',').any(|word| word == name);
        let per_role = |name: &str| {
            let items = words
                .get(name)
                .into_iter()
                .flat_map(|text| text.split("+++"));
            items.map(|item| {
                let (name, rest) = item.split_once(':').unwrap_or_else(|| panic!("{item}"));
                (role(name), rest)
            })
        };
        FrameworkSpec {
            roles: roles(words.plain.get(3).copied()),
            suppressed: roles(words.get("suppressed")),
            capabilities: FrameworkCapabilities {
                revocable_resources: has("revocable"),
                gpu_resources: has("gpus"),
                shared_resources: has("shared"),
                multi_role: !has("single"),
                reservation_refinement: has("refinement"),
                region_aware: has("regions"),
            },
            min_allocatable: per_role("min")
                .map(|(role, text)| (role, minimum(text)))
                .collect(),
            constraints: per_role("only")
                .map(|(role, text)| (role, constraints(text)))
                .collect(),
        }
    }

    pub(super) fn framework_command(&mut self, words: &Words<'_>) -> Answer {
        let id = framework(words.at(2));
        match words.at(0) {
            "add" => {
                let active = words.get("active") != Some("no");
                let mut on_agents = BTreeMap::new();
                if let Some((name, rest)) = words.get("used").and_then(|text| text.split_once(':'))
                {
                    let (role_name, resources) = rest.split_once(':').expect("role:resources");
                    on_agents.insert(agent(name), parse(resources).allocate(&role(role_name)));
                }
                self.allocator()
                    .add_framework(&id, &Self::spec(words), active, &on_agents)
                    .map(quiet)
            }
            "update" => self
                .allocator()
                .update_framework(&id, &Self::spec(words))
                .map(quiet),
            "remove" => {
                self.offers.retain(|offer| offer.framework != id);
                self.allocator().remove_framework(&id).map(quiet)
            }
            "activate" => self.allocator().activate_framework(&id).map(quiet),
            _ => self.allocator().deactivate_framework(&id).map(quiet),
        }
    }

    /// A command of the sorter's scenarios: a client is a role with one framework of the same name, which gets
    /// resources whether they are free or not.
    pub(super) fn client_command(&mut self, words: &Words<'_>) -> Answer {
        let name = words.at(1);
        let (id, role_name) = (framework(name), role(name));
        let on = agent(words.get("on").unwrap_or("agent"));
        let now = self.now;
        let resources = |at: usize| parse(words.at(at)).allocate(&role_name);
        match words.at(0) {
            "client" => {
                let spec = FrameworkSpec {
                    roles: roles(Some(name)),
                    ..Default::default()
                };
                let active = words.get("active") != Some("no");
                self.allocator()
                    .add_framework(&id, &spec, active, &BTreeMap::new())
                    .map(quiet)
            }
            "drop" => self.allocator().remove_framework(&id).map(quiet),
            "hold" => {
                let used = BTreeMap::from([(id, resources(2))]);
                self.allocator()
                    .add_provider(&on, &Resources::new(), &used)
                    .map(quiet)
            }
            "give" => self
                .allocator()
                .recover_resources(now, &id, &on, &resources(2), None)
                .map(quiet),
            "swap" => {
                let conversion = Conversion::new(resources(2), resources(3));
                self.allocator()
                    .update_allocation(&id, &on, &[conversion])
                    .map(quiet)
            }
            "sleep" => self.allocator().deactivate_framework(&id).map(quiet),
            _ => self.allocator().activate_framework(&id).map(quiet),
        }
    }
}
