//! Scripts: commands at the start of a line, with their answers indented below. The match arms of the commands define
//! the rest.

mod members;
mod questions;
mod words;

use std::fmt::Write as _;

use meseta_allocator::{
    Allocation, Allocator, InverseAnswer, Options, Outstanding, Quota, SorterKind,
};
use meseta_resources::{Conversion, Moment, OfferId, ResourceLimits, ResourceName};

use super::resources::{parse, write};
use words::{
    Words, agent, amounts, domain, duration, framework, minimum, role, roles, unavailability, used,
};

type Answer = Result<String, meseta_allocator::Error>;

pub(crate) struct Script {
    options: Options,
    allocator: Option<Allocator>,
    now: Moment,
    /// Outstanding offers, for the rescind plans.
    offers: Vec<Outstanding>,
    made: usize,
}

/// Runs a script and returns it with the actual answers.
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
                let id = agent(words.at(1));
                let regular = self.allocator().agent_total(&id)?.unrevocable();
                let total = &regular + &parse(words.at(2));
                self.allocator()
                    .update_agent(&id, None, Some(&total))
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

    /// Runs the remaining commands: maintenance, time, cycles and queries.
    fn other_command(&mut self, line: &str, words: &Words<'_>) -> Answer {
        match words.at(0) {
            "unavailable" => {
                let id = agent(words.at(1));
                self.allocator()
                    .update_unavailability(&id, unavailability(words.at(2)))
                    .map(quiet)
            }
            "forget" => {
                let id = agent(words.at(1));
                self.allocator().forget_awaited(&id);
                Ok(String::new())
            }
            "inverse" => Ok(self.inverse_offers()),
            "answer" => self.answer(words),
            "recovery" => {
                let known: Vec<_> = words.plain[1..].iter().map(|id| agent(id)).collect();
                let now = self.now;
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
        let mut offers = self.allocator().inverse_offers(now, usize::MAX);
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
