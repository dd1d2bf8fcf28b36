//! Offer constraints: which agents a framework wants to hear of at all.
//!
//! A constraint compares one attribute of an agent. Groups are alternatives; all constraints of a group
//! must hold. Patterns match the whole text.
//!
//! This file and `spec` know each other: a framework is specified with constraints, which are held against the facts
//! that an agent is specified with.

use std::sync::Arc;

use meseta_resources::AttributeValue;
use regex::{Regex, RegexBuilder};

use crate::spec::AgentFacts;

/// What a compiled pattern may take.
pub const PATTERN_BYTES_MAX: usize = 64 * 1024;

/// What of an agent is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The first attribute of this name.
    Attribute(Arc<str>),
    Hostname,
    Region,
    Zone,
}

/// What must be true of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Predicate {
    Exists,
    NotExists,
    TextEquals(Arc<str>),
    TextNotEquals(Arc<str>),
    TextMatches(Pattern),
    TextNotMatches(Pattern),
}

/// A regular expression for a whole text.
#[derive(Clone, Debug)]
pub struct Pattern {
    source: Arc<str>,
    compiled: Regex,
}

/// Why a text is not a pattern.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the pattern '{pattern}' is not usable")]
pub struct PatternError {
    pattern: String,
    #[source]
    source: regex::Error,
}

#[derive(Clone, Debug, PartialEq)]
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
        let compiled = RegexBuilder::new(&format!(r"\A(?:{pattern})\z"))
            .size_limit(PATTERN_BYTES_MAX)
            // Each has caches of its own, which grow as it is used.
            .dfa_size_limit(PATTERN_BYTES_MAX)
            .build()
            .map_err(|source| PatternError {
                pattern: pattern.into(),
                source,
            })?;
        Ok(Self {
            source: pattern.into(),
            compiled,
        })
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.source
    }
}

impl PartialEq for Pattern {
    fn eq(&self, that: &Self) -> bool {
        self.source == that.source
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
            (Self::TextMatches(pattern), Found::Text(found)) => pattern.compiled.is_match(found),
            (Self::TextNotMatches(pattern), Found::Text(found)) => {
                !pattern.compiled.is_match(found)
            }
            (Self::TextEquals(_) | Self::TextMatches(_), Found::Nothing) => false,
            (Self::TextNotEquals(_) | Self::TextNotMatches(_), Found::Nothing) => true,
        }
    }
}
