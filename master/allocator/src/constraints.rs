//! Offer constraints: the agents whose offers a framework accepts.
//!
//! A constraint compares one attribute of an agent. Groups are alternatives; all constraints of a group must hold.
//! Patterns match the whole text.
//!
//! This file and `spec` know each other: the specification of a framework contains constraints, which are checked
//! against the facts in the specification of an agent.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use meseta_resources::AttributeValue;
use meseta_resources::work_counter::count_entries;
use regex::{Regex, RegexBuilder};
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson::{NFA, WhichCaptures};
use regex_automata::{Anchored, Input};
use regex_syntax::hir::{Hir, HirKind};

use crate::spec::AgentFacts;

/// The size limit of a compiled pattern in bytes. Frameworks send patterns, so each must stay small.
pub const PATTERN_BYTES_MAX: usize = 64 * 1024;

/// The memory limit of a pattern's tables in bytes. A table has one row for each state of the match.
const TABLE_BYTES_MAX: usize = 1 << 20;
/// The limit of temporary memory in bytes while one table is built.
const TABLE_WORK_BYTES_MAX: usize = 4 << 20;
/// The number of tables of one pattern: each text is checked by every table.
const TABLES_MAX: usize = 128;
/// The number of times that a table is replaced by tables of its alternatives.
const SPLITS_MAX: usize = 2;

/// The property of an agent that a constraint reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Selector {
    /// The first attribute of this name.
    Attribute(Arc<str>),
    Hostname,
    Region,
    Zone,
}

/// The condition on the selected property.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Predicate {
    Exists,
    NotExists,
    TextEquals(Arc<str>),
    TextNotEquals(Arc<str>),
    TextMatches(Pattern),
    TextNotMatches(Pattern),
}

/// A regular expression for a whole text. Each agent's text is checked in one pass: a match costs one step for each
/// byte of the text and each table, whatever the pattern. Without tables a match may cost as many steps as the
/// pattern has states.
#[derive(Clone, Debug)]
pub struct Pattern {
    source: Arc<str>,
    compiled: Arc<Compiled>,
}

#[derive(Debug)]
struct Compiled {
    /// A text matches if one of the tables accepts it.
    tables: Vec<Table>,
    /// For texts that the tables cannot decide: the pattern has `\b` and the text is not ASCII.
    regex: Option<Regex>,
}

type Table = dense::DFA<Vec<u32>>;

/// The reason why a text is not a valid pattern.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PatternError {
    #[error("the pattern '{pattern}' is not usable")]
    Regex {
        pattern: String,
        #[source]
        source: regex::Error,
    },
    #[error(
        "the pattern '{pattern}' is not usable: its match may be in too many states, more than tables of \
         {TABLE_BYTES_MAX} bytes hold, one for each of at most {TABLES_MAX} alternatives; repeat less after what may \
         match at several places (as '.{{0,40}}' does in '.*a.{{0,40}}'), or divide it into several patterns"
    )]
    States { pattern: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Constraint {
    pub selector: Selector,
    pub predicate: Predicate,
}

/// The constraints of one role; without any group, every agent passes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OfferConstraints {
    pub groups: Vec<Vec<Constraint>>,
}

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// If the text is not a regular expression, or is too large.
    pub fn new(pattern: &str) -> Result<Self, PatternError> {
        let whole = format!(r"\A(?:{pattern})\z");
        let unusable = |source| PatternError::Regex {
            pattern: pattern.into(),
            source,
        };
        let regex = RegexBuilder::new(&whole)
            .size_limit(PATTERN_BYTES_MAX)
            // Each table has caches of its own, which grow with use.
            .dfa_size_limit(PATTERN_BYTES_MAX)
            .build()
            .map_err(unusable)?;
        let parsed = regex_syntax::parse(&whole);
        let parsed = parsed.map_err(|error| unusable(regex::Error::Syntax(error.to_string())))?;
        let has_boundaries = parsed.properties().look_set().contains_word_unicode();
        let tables = tables(parsed).ok_or_else(|| PatternError::States {
            pattern: pattern.into(),
        })?;
        let regex = has_boundaries.then_some(regex);
        Ok(Self {
            source: pattern.into(),
            compiled: Arc::new(Compiled { tables, regex }),
        })
    }

    fn is_match(&self, text: &str) -> bool {
        let Compiled { tables, regex } = &*self.compiled;
        let input = Input::new(text).anchored(Anchored::Yes);
        let mut is_told = true;
        for table in tables {
            match table.try_search_fwd(&input) {
                Ok(Some(_)) => return true,
                Ok(None) => {}
                Err(_) => is_told = false,
            }
        }
        !is_told && regex.as_ref().is_some_and(|regex| regex.is_match(text))
    }

    /// The number of tables that check a text.
    #[must_use]
    pub fn tables(&self) -> usize {
        self.compiled.tables.len()
    }

    /// The approximate memory in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let regex = self.compiled.regex.as_ref();
        self.source.len()
            + size_of::<Compiled>()
            + self
                .compiled
                .tables
                .iter()
                .map(Table::memory_usage)
                .sum::<usize>()
            + regex.map_or(0, |_| PATTERN_BYTES_MAX / 4)
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.source
    }
}

/// Builds one table for the whole pattern or, if that is too large, one for each alternative: a single table has to
/// record which unanchored alternatives were passed, in any order. Returns `None` if these are too large as well.
fn tables(pattern: Hir) -> Option<Vec<Table>> {
    let mut tables = Vec::new();
    let mut rest = vec![pattern];
    let (mut bytes_left, mut splits_left) = (TABLE_BYTES_MAX, SPLITS_MAX);
    while let Some(next) = rest.pop() {
        if let Some(table) = table(&next, bytes_left) {
            bytes_left = bytes_left.saturating_sub(table.memory_usage());
            tables.push(table);
            continue;
        }
        splits_left = splits_left.checked_sub(1)?;
        let room = TABLES_MAX.checked_sub(tables.len() + rest.len())?;
        rest.extend(alternatives(&next, room)?);
    }
    Some(tables)
}

/// Builds a table of at most `bytes_max` bytes. If the pattern has `\b`, the table stops at characters outside ASCII.
fn table(pattern: &Hir, bytes_max: usize) -> Option<Table> {
    let captures = NFA::config().which_captures(WhichCaptures::None);
    let states = NFA::compiler().configure(captures).build_from_hir(pattern);
    let config = dense::Config::new()
        .start_kind(StartKind::Anchored)
        .accelerate(false)
        .unicode_word_boundary(true)
        .dfa_size_limit(Some(bytes_max))
        .determinize_size_limit(Some(TABLE_WORK_BYTES_MAX));
    let builder = dense::Builder::new().configure(config).clone();
    builder.build_from_nfa(&states.ok()?).ok()
}

/// Splits a pattern into several, one of which matches whenever the pattern does: one for each item of its longest
/// list of alternatives, with the parts before and after the list. Returns `None` if there is no list, or more than
/// `count_max` items.
fn alternatives(pattern: &Hir, count_max: usize) -> Option<Vec<Hir>> {
    let pattern = without_groups(pattern);
    let HirKind::Concat(parts) = pattern.kind() else {
        return None;
    };
    let lists = parts.iter().enumerate();
    let lists = lists.filter_map(|(place, part)| match part.kind() {
        HirKind::Alternation(list) => Some((place, list)),
        _ => None,
    });
    let (place, list) = lists.max_by_key(|(_, list)| list.len())?;
    let (before, after) = (&parts[..place], &parts[place + 1..]);
    let whole = |part| Hir::concat([before, std::slice::from_ref(part), after].concat());
    (list.len() <= count_max).then(|| list.iter().map(whole).collect())
}

/// Removes groups from the top level of a sequence.
fn without_groups(pattern: &Hir) -> Hir {
    match pattern.kind() {
        HirKind::Capture(group) => without_groups(&group.sub),
        HirKind::Concat(parts) => Hir::concat(parts.iter().map(without_groups).collect()),
        _ => pattern.clone(),
    }
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

/// The constraints of several roles, in which each different constraint is checked once per agent.
#[derive(Debug, Default)]
pub(crate) struct ConstraintsOfRoles<'a> {
    different: Vec<&'a Constraint>,
    /// The groups of each role, with the indices of their constraints.
    roles: Vec<Vec<Vec<usize>>>,
    /// The results for the agent checked last, filled on demand.
    holds: Vec<Option<bool>>,
}

impl<'a> ConstraintsOfRoles<'a> {
    #[expect(
        clippy::mutable_key_type,
        reason = "a pattern is compared by its text, and that does not change"
    )]
    pub(crate) fn from_roles(roles: impl Iterator<Item = &'a OfferConstraints>) -> Self {
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

    /// The indices of the roles that exclude the agent, in order.
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

/// The value that a selector found.
enum Found<'a> {
    Nothing,
    Text(&'a str),
    Other,
}

impl OfferConstraints {
    /// Whether the agent satisfies the constraints.
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
            // The scheduler judges attributes that are not text.
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
