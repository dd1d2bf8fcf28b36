//! Offer constraints: which agents a framework wants to hear of at all.
//!
//! A constraint compares one attribute of an agent. Groups are alternatives; all constraints of a group
//! must hold. Patterns match the whole text.
//!
//! This file and `spec` know each other: a framework is specified with constraints, which are held against the facts
//! that an agent is specified with.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use meseta_resources::AttributeValue;
use meseta_resources::work_counter::count_entries;
use regex::{Regex, RegexBuilder};
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::{Anchored, Input};

use crate::spec::AgentFacts;

/// What a compiled pattern may take.
pub const PATTERN_BYTES_MAX: usize = 64 * 1024;

/// What the table of a pattern may take, which has a row for each state in which the match of a text may be.
const TABLE_BYTES_MAX: usize = 1 << 20;
/// What making the table may take beside it.
const TABLE_WORK_BYTES_MAX: usize = 4 << 20;

/// What of an agent is looked at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Selector {
    /// The first attribute of this name.
    Attribute(Arc<str>),
    Hostname,
    Region,
    Zone,
}

/// What must be true of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Predicate {
    Exists,
    NotExists,
    TextEquals(Arc<str>),
    TextNotEquals(Arc<str>),
    TextMatches(Pattern),
    TextNotMatches(Pattern),
}

/// A regular expression for a whole text. Every agent is held against it in one go, so that a match costs one step for each byte
/// of the text, whatever the pattern: without a table it may cost as many steps as the pattern has states.
#[derive(Clone, Debug)]
pub struct Pattern {
    source: Arc<str>,
    compiled: Arc<Compiled>,
}

#[derive(Debug)]
struct Compiled {
    table: dense::DFA<Vec<u32>>,
    /// For texts of which the table cannot tell: `\b` beside what is not ASCII.
    regex: Option<Regex>,
}

/// Why a text is not a pattern.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PatternError {
    #[error("the pattern '{pattern}' is not usable")]
    Regex {
        pattern: String,
        #[source]
        source: regex::Error,
    },
    #[error(
        "the pattern '{pattern}' is not usable: its match may be in too many states, more than a table of \
         {TABLE_BYTES_MAX} bytes holds; repeat less after what may match at several places"
    )]
    States { pattern: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Constraint {
    pub selector: Selector,
    pub predicate: Predicate,
}

/// The constraints of one role: without any group, everything passes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OfferConstraints {
    pub groups: Vec<Vec<Constraint>>,
}

impl Pattern {
    /// # Errors
    /// When it is not a regular expression, or one that is too large.
    pub fn new(pattern: &str) -> Result<Self, PatternError> {
        let whole = format!(r"\A(?:{pattern})\z");
        let regex = RegexBuilder::new(&whole)
            .size_limit(PATTERN_BYTES_MAX)
            // Each has caches of its own, which grow as it is used.
            .dfa_size_limit(PATTERN_BYTES_MAX)
            .build()
            .map_err(|source| PatternError::Regex {
                pattern: pattern.into(),
                source,
            })?;
        let (table, is_complete) = match table(&whole, false) {
            Ok(table) => (Some(table), true),
            Err(error) if error.is_size_limit_exceeded() => (None, true),
            Err(_) => (table(&whole, true).ok(), false),
        };
        let table = table.ok_or_else(|| PatternError::States {
            pattern: pattern.into(),
        })?;
        let regex = (!is_complete).then_some(regex);
        Ok(Self {
            source: pattern.into(),
            compiled: Arc::new(Compiled { table, regex }),
        })
    }

    fn is_match(&self, text: &str) -> bool {
        let Compiled { table, regex } = &*self.compiled;
        let input = Input::new(text).anchored(Anchored::Yes);
        let found = table.try_search_fwd(&input);
        found.map_or_else(
            |_| regex.as_ref().is_some_and(|regex| regex.is_match(text)),
            |end| end.is_some(),
        )
    }

    /// About what it takes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let regex = self.compiled.regex.as_ref();
        self.source.len()
            + size_of::<Compiled>()
            + self.compiled.table.memory_usage()
            + regex.map_or(0, |_| PATTERN_BYTES_MAX / 4)
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.source
    }
}

/// The table of a pattern; with `stops` one that tells nothing of texts with `\b` beside what is not ASCII.
fn table(pattern: &str, stops: bool) -> Result<dense::DFA<Vec<u32>>, Box<dense::BuildError>> {
    let config = dense::Config::new()
        .start_kind(StartKind::Anchored)
        .accelerate(false)
        .unicode_word_boundary(stops)
        .dfa_size_limit(Some(TABLE_BYTES_MAX))
        .determinize_size_limit(Some(TABLE_WORK_BYTES_MAX));
    let table = dense::Builder::new().configure(config).build(pattern);
    table.map_err(Box::new)
}

impl PartialEq for Pattern {
    fn eq(&self, that: &Self) -> bool {
        self.source == that.source
    }
}

impl Eq for Pattern {}

impl Hash for Pattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.source.hash(state);
    }
}

/// The constraints of several roles, of which each different one is held against an agent once.
#[derive(Debug, Default)]
pub(crate) struct ConstraintsOfRoles<'a> {
    different: Vec<&'a Constraint>,
    /// By role its groups, with the places of their constraints.
    roles: Vec<Vec<Vec<usize>>>,
    /// Of the agent that was looked at last, as far as they were asked.
    holds: Vec<Option<bool>>,
}

impl<'a> ConstraintsOfRoles<'a> {
    #[expect(
        clippy::mutable_key_type,
        reason = "a pattern is compared by its text, and that does not change"
    )]
    pub(crate) fn of(roles: impl Iterator<Item = &'a OfferConstraints>) -> Self {
        let mut all = Self::default();
        let mut places = HashMap::new();
        for constraints in roles {
            let mut place_of = |constraint| {
                *places.entry(constraint).or_insert_with(|| {
                    all.different.push(constraint);
                    all.different.len() - 1
                })
            };
            let groups = constraints.groups.iter();
            let groups = groups.map(|group| group.iter().map(&mut place_of).collect());
            all.roles.push(groups.collect());
        }
        all
    }

    /// The roles, in order, that rule the agent out.
    pub(crate) fn ruled_out(&mut self, agent: &AgentFacts) -> impl Iterator<Item = usize> {
        let Self {
            different,
            roles,
            holds,
        } = self;
        holds.clear();
        holds.resize(different.len(), None);
        let roles = roles.iter().enumerate();
        roles.filter_map(|(role, groups)| {
            let mut holds = |place: &usize| {
                *holds[*place].get_or_insert_with(|| different[*place].holds(agent))
            };
            let allows =
                groups.is_empty() || groups.iter().any(|group| group.iter().all(&mut holds));
            (!allows).then_some(role)
        })
    }
}

/// What a selector found.
enum Found<'a> {
    Nothing,
    Text(&'a str),
    Other,
}

impl OfferConstraints {
    /// Whether the agent passes.
    #[must_use]
    pub fn allow(&self, agent: &AgentFacts) -> bool {
        self.groups.is_empty()
            || self
                .groups
                .iter()
                .any(|group| group.iter().all(|constraint| constraint.holds(agent)))
    }
}

impl Constraint {
    fn holds(&self, agent: &AgentFacts) -> bool {
        count_entries(1);
        let found = match &self.selector {
            Selector::Hostname => Found::Text(&agent.hostname),
            Selector::Region => agent
                .domain
                .as_ref()
                .map_or(Found::Nothing, |domain| Found::Text(&domain.region)),
            Selector::Zone => agent
                .domain
                .as_ref()
                .map_or(Found::Nothing, |domain| Found::Text(&domain.zone)),
            Selector::Attribute(name) => match agent.attributes.get(name).next() {
                None => Found::Nothing,
                Some(AttributeValue::Text(text)) => Found::Text(text),
                Some(AttributeValue::Scalar(_) | AttributeValue::Ranges(_)) => Found::Other,
            },
        };
        self.predicate.holds(&found)
    }
}

impl Predicate {
    fn holds(&self, found: &Found<'_>) -> bool {
        match (self, found) {
            (Self::Exists, found) => !matches!(found, Found::Nothing),
            (Self::NotExists, found) => matches!(found, Found::Nothing),
            // What is not a text is for the scheduler to judge.
            (_, Found::Other) => true,
            (Self::TextEquals(text), Found::Text(found)) => &**text == *found,
            (Self::TextNotEquals(text), Found::Text(found)) => &**text != *found,
            (Self::TextMatches(pattern), Found::Text(found)) => pattern.is_match(found),
            (Self::TextNotMatches(pattern), Found::Text(found)) => !pattern.is_match(found),
            (Self::TextEquals(_) | Self::TextMatches(_), Found::Nothing) => false,
            (Self::TextNotEquals(_) | Self::TextNotMatches(_), Found::Nothing) => true,
        }
    }
}
