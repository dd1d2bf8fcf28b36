//! The words of a command, and their values; an invalid word ends the test.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meseta_allocator::{
    Constraint, Domain, OfferConstraints, Pattern, Predicate, Selector, Unavailability,
};
use meseta_resources::duration::parse_duration;
use meseta_resources::{
    AgentId, FrameworkId, ResourceName, ResourceQuantities, Resources, Role, Scalar,
};

use super::super::resources::parse;

/// `key=value` words of a command.
pub(super) struct Words<'a> {
    pub(super) plain: Vec<&'a str>,
    pub(super) named: BTreeMap<&'a str, &'a str>,
}

impl<'a> Words<'a> {
    pub(super) fn new(line: &'a str) -> Self {
        let (mut plain, mut named) = (Vec::new(), BTreeMap::new());
        for word in line.split_whitespace() {
            // A `=` inside of labels does not make a named word.
            match word.split_once('=') {
                Some((key, value)) if key.chars().all(|c| c.is_ascii_lowercase() || c == '_') => {
                    named.insert(key, value);
                }
                _ => plain.push(word),
            }
        }
        Self { plain, named }
    }

    pub(super) fn at(&self, index: usize) -> &'a str {
        self.plain
            .get(index)
            .copied()
            .unwrap_or_else(|| panic!("{:?}: a word is missing", self.plain))
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        self.named.get(name).copied()
    }
}

pub(super) fn role(text: &str) -> Role {
    Role::new(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub(super) fn roles(text: Option<&str>) -> BTreeSet<Role> {
    text.into_iter()
        .flat_map(|text| text.split(','))
        .map(role)
        .collect()
}

pub(super) fn agent(text: &str) -> AgentId {
    AgentId::new(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub(super) fn framework(text: &str) -> FrameworkId {
    FrameworkId::new(&text.replace('/', "-")).unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub(super) fn duration(text: &str) -> Duration {
    parse_duration(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub(super) fn amounts(text: &str) -> impl Iterator<Item = (ResourceName, Scalar)> {
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

/// A minimum: `cpus:1;mem:2|cpus:3`; empty for `any`.
pub(super) fn minimum(text: &str) -> Vec<ResourceQuantities> {
    match text {
        "any" => Vec::new(),
        text => text.split('|').map(|one| amounts(one).collect()).collect(),
    }
}

pub(super) fn domain(text: &str) -> Domain {
    let (region, zone) = text.split_once('/').unwrap_or_else(|| panic!("{text}"));
    Domain {
        region: region.into(),
        zone: zone.into(),
    }
}

pub(super) fn unavailability(text: &str) -> Option<Unavailability> {
    (text != "none").then(|| Unavailability {
        start: duration(text),
        duration: None,
    })
}

/// Used resources: `framework:role:resources`, further ones after `+++`.
pub(super) fn used(text: Option<&str>) -> BTreeMap<FrameworkId, Resources> {
    let mut used: BTreeMap<FrameworkId, Resources> = BTreeMap::new();
    for item in text.into_iter().flat_map(|text| text.split("+++")) {
        let mut parts = item.splitn(3, ':');
        let mut part = || parts.next().unwrap_or_else(|| panic!("{item}"));
        let (id, role_name, resources) = (framework(part()), role(part()), parse(part()));
        *used.entry(id).or_default() += resources.allocate(&role_name);
    }
    used
}

/// Constraints: `hostname=a,rack~r[0-9]|zone!=b`: `|` between groups, `,` between constraints; `=`, `!=`, `~`, `!~`,
/// `+` exists, `-` does not.
pub(super) fn constraints(text: &str) -> OfferConstraints {
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
