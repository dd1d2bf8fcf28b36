//! Scripts: commands at the start of a line, what they answer indented below. Everything else is in
//! the commands' own match arms.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use meseta_allocator::{
    AgentCapabilities, AgentFacts, AgentSpec, Allocation, Allocator, Constraint, Domain,
    FrameworkCapabilities, FrameworkSpec, InverseAnswer, OfferConstraints, Options, Outstanding,
    Pattern, Predicate, Quota, Selector, SorterKind, Unavailability, check_capacity,
};
use meseta_resources::duration::parse_duration;
use meseta_resources::{
    AgentId, Attributes, Conversion, FrameworkId, Moment, OfferId, ResourceLimits, ResourceName,
    ResourceQuantities, Resources, Role, Scalar,
};

use super::resources::{parse, write};

type Answer = Result<String, meseta_allocator::Error>;

pub(crate) struct Script {
    options: Options,
    allocator: Option<Allocator>,
    now: Moment,
    /// Offers made and not given back, for the rescind plans.
    offers: Vec<Outstanding>,
    made: usize,
}

/// Runs a script and returns it with the answers that it got.
pub(crate) fn run(text: &str) -> String {
    let mut script = Script {
        options: Options::default(),
        allocator: None,
        now: Moment::ORIGIN,
        offers: Vec::new(),
        made: 0,
    };
    let mut transcript = String::new();
    for line in text.lines().filter(|line| !line.starts_with(' ')) {
        transcript.push_str(line.trim_end());
        transcript.push('\n');
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let answer = script
            .command(line)
            .unwrap_or_else(|error| format!("error: {error}"));
        for line in answer.lines() {
            let _ = writeln!(transcript, "  {line}");
        }
    }
    transcript
}

/// `key=value` words of a command.
struct Words<'a> {
    plain: Vec<&'a str>,
    named: BTreeMap<&'a str, &'a str>,
}

impl<'a> Words<'a> {
    fn new(line: &'a str) -> Self {
        let (mut plain, mut named) = (Vec::new(), BTreeMap::new());
        for word in line.split_whitespace() {
            // `=` inside of labels does not make a named word.
            match word.split_once('=') {
                Some((key, value)) if key.chars().all(|c| c.is_ascii_lowercase() || c == '_') => {
                    named.insert(key, value);
                }
                _ => plain.push(word),
            }
        }
        Self { plain, named }
    }

    fn at(&self, index: usize) -> &'a str {
        self.plain
            .get(index)
            .copied()
            .unwrap_or_else(|| panic!("{:?}: a word is missing", self.plain))
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        self.named.get(name).copied()
    }
}

fn role(text: &str) -> Role {
    Role::new(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn roles(text: Option<&str>) -> BTreeSet<Role> {
    text.into_iter()
        .flat_map(|text| text.split(','))
        .map(role)
        .collect()
}

fn agent(text: &str) -> AgentId {
    AgentId::new(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn framework(text: &str) -> FrameworkId {
    FrameworkId::new(&text.replace('/', "-")).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn duration(text: &str) -> Duration {
    parse_duration(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn amounts(text: &str) -> impl Iterator<Item = (ResourceName, Scalar)> {
    let items = text
        .split(';')
        .filter(|item| !item.is_empty() && *item != "-");
    items.map(|item| {
        let (name, amount) = item.split_once(':').unwrap_or_else(|| panic!("{item}"));
        let amount: f64 = amount.parse().unwrap_or_else(|_| panic!("{item}"));
        let amount = Scalar::from_f64(amount).unwrap_or_else(|error| panic!("{item}: {error}"));
        (ResourceName::new(name).expect("a name"), amount)
    })
}

/// `cpus:1;mem:2|cpus:3`; nothing for `any`.
fn minimum(text: &str) -> Vec<ResourceQuantities> {
    match text {
        "any" => Vec::new(),
        text => text.split('|').map(|one| amounts(one).collect()).collect(),
    }
}

fn domain(text: &str) -> Domain {
    let (region, zone) = text.split_once('/').unwrap_or_else(|| panic!("{text}"));
    Domain {
        region: region.into(),
        zone: zone.into(),
    }
}

fn unavailability(text: &str) -> Option<Unavailability> {
    (text != "none").then(|| Unavailability {
        start: duration(text),
        duration: None,
    })
}

/// `framework:role:resources`, more of them after `+++`.
fn used(text: Option<&str>) -> BTreeMap<FrameworkId, Resources> {
    let mut used: BTreeMap<FrameworkId, Resources> = BTreeMap::new();
    for item in text.into_iter().flat_map(|text| text.split("+++")) {
        let mut parts = item.splitn(3, ':');
        let mut part = || parts.next().unwrap_or_else(|| panic!("{item}"));
        let (id, role_name, resources) = (framework(part()), role(part()), parse(part()));
        *used.entry(id).or_default() += resources.allocate(&role_name);
    }
    used
}

/// `hostname=a,rack~r[0-9]|zone!=b`: `|` between groups, `,` between constraints; `=`, `!=`, `~`, `!~`,
/// `+` exists, `-` does not.
fn constraints(text: &str) -> OfferConstraints {
    let one = |item: &str| {
        let at = item
            .find(['=', '!', '~', '+', '-'])
            .unwrap_or_else(|| panic!("{item}"));
        let (name, rest) = item.split_at(at);
        let selector = match name {
            "hostname" => Selector::Hostname,
            "region" => Selector::Region,
            "zone" => Selector::Zone,
            name => Selector::Attribute(name.into()),
        };
        let pattern = |text: &str| Pattern::new(text).unwrap_or_else(|error| panic!("{error}"));
        let predicate = match rest.split_at(usize::from(rest.starts_with('!'))) {
            ("!", rest) if rest.starts_with('=') => Predicate::TextNotEquals(rest[1..].into()),
            ("!", rest) => Predicate::TextNotMatches(pattern(&rest[1..])),
            (_, "+") => Predicate::Exists,
            (_, "-") => Predicate::NotExists,
            (_, rest) if rest.starts_with('~') => Predicate::TextMatches(pattern(&rest[1..])),
            (_, rest) => Predicate::TextEquals(rest[1..].into()),
        };
        Constraint {
            selector,
            predicate,
        }
    };
    OfferConstraints {
        groups: text
            .split('|')
            .map(|group| group.split(',').map(one).collect())
            .collect(),
    }
}

impl Script {
    fn allocator(&mut self) -> &mut Allocator {
        let options = &self.options;
        self.allocator
            .get_or_insert_with(|| Allocator::new(options.clone()))
    }

    fn command(&mut self, line: &str) -> Answer {
        let words = Words::new(line);
        match words.at(0) {
            "options" => self.set_options(&words),
            "reset" => {
                (self.options, self.allocator) = (Options::default(), None);
                self.offers.clear();
                Ok(String::new())
            }
            "add" | "update" | "remove" | "activate" | "deactivate" => match words.at(1) {
                "agent" => self.agent_command(&words),
                "framework" => self.framework_command(&words),
                other => panic!("{line}: what is {other}?"),
            },
            "client" | "drop" | "hold" | "give" | "sleep" | "wake" | "swap" => {
                self.client_command(&words)
            }
            "revocable" => {
                let (id, total) = (agent(words.at(1)), parse(words.at(2)));
                self.allocator()
                    .update_revocable_total(&id, &total)
                    .map(changed)
            }
            "provider" => {
                let (id, total) = (agent(words.at(1)), parse(words.at(2)));
                self.allocator()
                    .add_provider(&id, &total, &used(words.get("used")))
                    .map(quiet)
            }
            "whitelist" => {
                let hosts = match words.at(1) {
                    "all" => None,
                    hosts => Some(hosts.split(',').map(Into::into).collect()),
                };
                self.allocator().update_whitelist(hosts);
                Ok(String::new())
            }
            "suppress" | "revive" => {
                let (id, names) = (framework(words.at(1)), roles(words.plain.get(2).copied()));
                let allocator = self.allocator();
                match words.at(0) {
                    "suppress" => allocator.suppress(&id, &names).map(quiet),
                    _ => allocator.revive(&id, &names).map(quiet),
                }
            }
            "weight" => {
                let weight = words.at(2).parse().unwrap_or_else(|_| panic!("{line}"));
                self.allocator()
                    .update_weights(&[(role(words.at(1)), weight)])
                    .map(quiet)
            }
            "quota" => self.quota(&words),
            "recover" => self.recover(&words),
            "convert" | "operate" => self.convert(&words),
            _ => self.other_command(line, &words),
        }
    }

    /// The rest: maintenance, time, cycles and questions.
    fn other_command(&mut self, line: &str, words: &Words<'_>) -> Answer {
        match words.at(0) {
            "unavailable" => {
                let id = agent(words.at(1));
                self.allocator()
                    .update_unavailability(&id, unavailability(words.at(2)))
                    .map(quiet)
            }
            "inverse" => Ok(self.inverse_offers()),
            "answer" => self.answer(words),
            "recovery" => {
                let (now, known) = (self.now, words.at(1).parse().expect("a number"));
                self.allocator().recover(now, known);
                Ok(String::new())
            }
            "time" => {
                self.now += duration(words.at(1));
                Ok(String::new())
            }
            "allocate" | "tick" | "sweep" => {
                let now = self.now;
                let allocator = self.allocator();
                let offers = match words.at(0) {
                    "allocate" => allocator.allocate(now),
                    "tick" => allocator.tick(now),
                    _ => allocator.sweep(now),
                };
                Ok(self.write_offers(offers))
            }
            "show" => self.show(words),
            "explain" => self.explain(words),
            "rescind" => Ok(self.rescind(words)),
            "capacity" => self.capacity(words),
            "frequencies" => Ok(self.frequencies(words.at(1).parse().expect("a number"))),
            other => panic!("{line}: what is {other}?"),
        }
    }

    fn set_options(&mut self, words: &Words<'_>) -> Answer {
        assert!(self.allocator.is_none(), "options come first");
        let sorter = |text| match text {
            "random" => SorterKind::Random,
            _ => SorterKind::Drf,
        };
        for (key, value) in &words.named {
            let options = &mut self.options;
            match *key {
                "interval" => options.allocation_interval = duration(value),
                "excluded" => {
                    options.fairness_excluded = value
                        .split(',')
                        .map(|name| ResourceName::new(name).expect("a name"))
                        .collect();
                }
                "min" => options.min_allocatable = minimum(value),
                "gpus" => options.filter_gpu_resources = *value == "filtered",
                "sorter" => {
                    options.role_sorter = sorter(value);
                    options.framework_sorter = sorter(value);
                }
                "domain" => options.domain = Some(domain(value)),
                "items" => options.share_items = *value == "shared",
                "seed" => options.seed = value.parse().expect("a number"),
                other => panic!("what is {other}?"),
            }
        }
        Ok(String::new())
    }

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

    fn agent_command(&mut self, words: &Words<'_>) -> Answer {
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

    fn framework_command(&mut self, words: &Words<'_>) -> Answer {
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

    /// The sorter's scenarios: a client is a role with one framework of the same name, which is given
    /// resources whether they are free or not.
    fn client_command(&mut self, words: &Words<'_>) -> Answer {
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

    fn quota(&mut self, words: &Words<'_>) -> Answer {
        let name = role(words.at(1));
        let mut quota = Quota::default();
        if let Some(both) = words.get("both") {
            quota.guarantees = amounts(both).collect();
            quota.limits = amounts(both).collect();
        }
        if let Some(text) = words.get("guarantees") {
            quota.guarantees = amounts(text).collect();
        }
        if let Some(text) = words.get("limits") {
            quota.limits = amounts(text).collect::<ResourceLimits>();
        }
        if let Some(text) = words.get("legacy") {
            quota = Quota::legacy(&parse(text))?;
        }
        if words.get("checked").is_some() {
            self.allocator().check_quota_tree(&name, &quota)?;
        }
        self.allocator().update_quota(&name, &quota).map(quiet)
    }

    /// `recover framework agent role resources|all [refuse=]`.
    fn recover(&mut self, words: &Words<'_>) -> Answer {
        let (id, on, name) = (
            framework(words.at(1)),
            agent(words.at(2)),
            role(words.at(3)),
        );
        let resources = match words.at(4) {
            "all" => {
                let mut held = self.allocator().held(&on)?;
                let held = held.remove(&id).unwrap_or_default();
                held.filtered(|resource| resource.allocation_role() == Some(&name))
            }
            text => parse(text).allocate(&name),
        };
        self.offers
            .retain(|offer| !(offer.agent == on && offer.framework == id));
        let refuse = words.get("refuse").map(duration);
        let now = self.now;
        self.allocator()
            .recover_resources(now, &id, &on, &resources, refuse)
            .map(quiet)
    }

    fn convert(&mut self, words: &Words<'_>) -> Answer {
        if words.at(0) == "operate" {
            let (on, from, to) = (agent(words.at(1)), parse(words.at(2)), parse(words.at(3)));
            return self
                .allocator()
                .update_available(&on, &[Conversion::new(from, to)])
                .map(quiet);
        }
        let (id, on, name) = (
            framework(words.at(1)),
            agent(words.at(2)),
            role(words.at(3)),
        );
        let part = |at| parse(words.at(at)).allocate(&name);
        let conversion = Conversion::new(part(4), part(5));
        self.allocator()
            .update_allocation(&id, &on, &[conversion])
            .map(quiet)
    }

    fn inverse_offers(&mut self) -> String {
        let now = self.now;
        let mut offers = self.allocator().inverse_offers(now);
        offers.sort_by(|a, b| (&a.framework, &a.agent).cmp(&(&b.framework, &b.agent)));
        let line = |offer: &meseta_allocator::InverseOffer| {
            let start = offer.unavailability.start.as_secs();
            format!("{} {} away at {start}s", offer.framework, offer.agent)
        };
        none_if_empty(offers.iter().map(line).collect())
    }

    fn answer(&mut self, words: &Words<'_>) -> Answer {
        let (on, id) = (agent(words.at(1)), framework(words.at(2)));
        let answer = match words.at(3) {
            "accept" => Some(InverseAnswer::Accept),
            "decline" => Some(InverseAnswer::Decline),
            _ => None,
        };
        let (now, refuse) = (self.now, words.get("refuse").map(duration));
        self.allocator()
            .update_inverse_offer(now, &on, &id, answer, refuse)
            .map(quiet)
    }

    fn write_offers(&mut self, offers: Vec<Allocation>) -> String {
        let mut lines: Vec<String> = Vec::new();
        for offer in offers {
            let Allocation {
                framework,
                agent,
                role,
                resources,
            } = offer;
            assert!(
                resources
                    .iter()
                    .all(|resource| resource.allocation_role() == Some(&role))
            );
            let text = write(&resources.unallocate());
            lines.push(format!("{framework} {role} {agent} {text}"));
            self.made += 1;
            let id = OfferId::new(&format!("o{}", self.made)).expect("an id");
            self.offers.push(Outstanding {
                id,
                framework,
                agent,
                role,
                resources,
            });
        }
        lines.sort_unstable();
        none_if_empty(lines)
    }

    fn show(&mut self, words: &Words<'_>) -> Answer {
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

    fn explain(&mut self, words: &Words<'_>) -> Answer {
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

    fn rescind(&mut self, words: &Words<'_>) -> String {
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
                allocator.rescind_for_quota(&name, &quota, &offers)
            }
            "weights" => allocator.rescind_for_weights(&roles(Some(words.at(2))), &offers),
            _ => {
                let wanted = parse(words.at(3));
                match allocator.rescind_for_operation(&agent(words.at(2)), &wanted, &offers) {
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
    fn capacity(&mut self, words: &Words<'_>) -> Answer {
        let request: ResourceQuantities = amounts(words.at(3)).collect();
        let name = role(words.at(2));
        let allocator = self.allocator();
        let capacity = allocator.quota_capacity(words.at(1) == "seed");
        let guaranteed = allocator.guaranteed(Some(&name));
        Ok(match check_capacity(&capacity, &guaranteed, &request) {
            Ok(()) => "enough".into(),
            Err(error) => error.to_string(),
        })
    }

    /// How often each role comes at each place, in hundredths.
    fn frequencies(&mut self, runs: u32) -> String {
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

fn quiet((): ()) -> String {
    String::new()
}

fn changed(changed: bool) -> String {
    if changed {
        String::new()
    } else {
        "no change".into()
    }
}

fn none_if_empty(lines: Vec<String>) -> String {
    if lines.is_empty() {
        "none".into()
    } else {
        lines.join("\n")
    }
}
