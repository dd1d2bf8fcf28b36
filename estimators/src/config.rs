//! Parameters of modules: names and texts in, typed values out.
//!
//! Every estimator and controller reads its parameters with a [`Reader`]. Invariant: a key that no module reads is an error,
//! and so is a duplicate key; every number that passes is finite and inside the requested range.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use meseta_resources::Resources;

use crate::revocable::revocable;

/// The maximum edit distance of a suggested name.
const SUGGESTION_DISTANCE_MAX: usize = 3;

/// Keys and values in the order of a command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters(Vec<(String, String)>);

impl Parameters {
    pub fn iter(&self) -> std::slice::Iter<'_, (String, String)> {
        self.0.iter()
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Parameters {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        Self(
            pairs
                .into_iter()
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
        )
    }
}

/// Parameters by the name of their module.
pub type ModuleParameters = BTreeMap<String, Parameters>;

/// Errors in a name or a parameter.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    #[error("unknown {what} {name:?}{suggestion}; {help}")]
    UnknownName {
        what: &'static str,
        name: String,
        suggestion: Suggestion,
        help: String,
    },
    #[error("cannot read {spec:?}: {why}")]
    Spec { spec: String, why: String },
    #[error("{module}: unknown parameter {key:?}{suggestion}; known are {known}")]
    UnknownKey {
        module: &'static str,
        key: String,
        suggestion: Suggestion,
        known: String,
    },
    #[error("{module}: parameter {key:?} is given twice")]
    Duplicate { module: &'static str, key: String },
    #[error("{module}: parameter {key:?} is missing: {help}")]
    Missing {
        module: &'static str,
        key: &'static str,
        help: &'static str,
    },
    #[error("{module}: {key}={value:?} is not {expected}")]
    Value {
        module: &'static str,
        key: &'static str,
        value: String,
        expected: String,
    },
    #[error("{module}: {why}")]
    Contradiction { module: &'static str, why: String },
    #[error(
        "parameters for {first:?} and for {second:?}, two names of one module: keep one of \
        them"
    )]
    Ambiguous { first: String, second: String },
    #[error("{0:?} is the address of another process, not a built-in module")]
    Remote(String),
}

/// A known name similar to an unknown one, if any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suggestion(Option<String>);

impl Suggestion {
    /// Suggests the nearest of `known`.
    #[must_use]
    pub fn for_name<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        let near = known
            .into_iter()
            .map(|candidate| {
                (
                    distance(&name.to_lowercase(), &candidate.to_lowercase()),
                    candidate,
                )
            })
            .filter(|(edits, candidate)| {
                *edits <= SUGGESTION_DISTANCE_MAX && *edits < candidate.chars().count()
            })
            .min_by_key(|(edits, _)| *edits);
        Self(near.map(|(_, candidate)| candidate.to_owned()))
    }
}

impl fmt::Display for Suggestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(near) => write!(f, ", did you mean {near:?}?"),
            None => Ok(()),
        }
    }
}

/// The number of insertions, removals and replacements from one text to the other.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut next = vec![i + 1];
        for ((b, diagonal), above) in to.iter().zip(&row).zip(row.iter().skip(1)) {
            let left = next.last().copied().unwrap_or(usize::MAX - 1);
            next.push(
                (diagonal + usize::from(a != *b))
                    .min(above + 1)
                    .min(left + 1),
            );
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

/// Takes parameters one by one, and reports the remaining ones at the end.
#[derive(Debug)]
pub struct Reader<'a> {
    module: &'static str,
    left: BTreeMap<&'a str, &'a str>,
    asked: Vec<&'static str>,
}

impl<'a> Reader<'a> {
    /// # Errors
    /// When a key is given twice.
    pub fn new(module: &'static str, parameters: &'a Parameters) -> Result<Self, ConfigError> {
        let mut left = BTreeMap::new();
        for (key, value) in parameters.iter() {
            if left.insert(key.as_str(), value.as_str()).is_some() {
                return Err(ConfigError::Duplicate {
                    module,
                    key: key.clone(),
                });
            }
        }
        Ok(Self {
            module,
            left,
            asked: Vec::new(),
        })
    }

    fn take(&mut self, key: &'static str) -> Option<&'a str> {
        self.asked.push(key);
        self.left.remove(key)
    }

    fn wrong(&self, key: &'static str, value: &str, expected: impl Into<String>) -> ConfigError {
        let (module, value) = (self.module, value.to_owned());
        ConfigError::Value {
            module,
            key,
            value,
            expected: expected.into(),
        }
    }

    /// # Errors
    /// When the value is not a number in the range.
    pub fn number_opt(
        &mut self,
        key: &'static str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, ConfigError> {
        let Some(text) = self.take(key) else {
            return Ok(None);
        };
        match text.trim().parse::<f64>() {
            Ok(number) if number.is_finite() && range.contains(&number) => Ok(Some(number)),
            _ if *range.end() == f64::MAX => {
                Err(self.wrong(key, text, format!("a number of at least {}", range.start())))
            }
            _ => Err(self.wrong(
                key,
                text,
                format!("a number from {} to {}", range.start(), range.end()),
            )),
        }
    }

    /// # Errors
    /// As [`Reader::number_opt`].
    pub fn number(
        &mut self,
        key: &'static str,
        range: RangeInclusive<f64>,
        slot: &mut f64,
    ) -> Result<(), ConfigError> {
        if let Some(number) = self.number_opt(key, range)? {
            *slot = number;
        }
        Ok(())
    }

    /// Reads a share of a whole.
    ///
    /// # Errors
    /// When the value is not a number from 0 to 1.
    pub fn share(&mut self, key: &'static str, slot: &mut f64) -> Result<(), ConfigError> {
        self.number(key, 0.0..=1.0, slot)
    }

    /// # Errors
    /// When the value is not a whole number from 1 to `max`.
    pub fn count(
        &mut self,
        key: &'static str,
        max: u32,
        slot: &mut u32,
    ) -> Result<(), ConfigError> {
        let Some(text) = self.take(key) else {
            return Ok(());
        };
        match text.trim().parse::<u32>() {
            Ok(count) if (1..=max).contains(&count) => *slot = count,
            _ => return Err(self.wrong(key, text, format!("a whole number from 1 to {max}"))),
        }
        Ok(())
    }

    /// # Errors
    /// When the value is neither `true` nor `false`.
    pub fn flag(&mut self, key: &'static str, slot: &mut bool) -> Result<(), ConfigError> {
        match self.take(key) {
            None => {}
            Some("true") => *slot = true,
            Some("false") => *slot = false,
            Some(text) => return Err(self.wrong(key, text, "true or false")),
        }
        Ok(())
    }

    /// Reads a duration in Mesos's spelling, such as `15secs`.
    ///
    /// # Errors
    /// When the value is not a duration, or is shorter than `least`.
    pub fn duration(
        &mut self,
        key: &'static str,
        least: Duration,
        slot: &mut Duration,
    ) -> Result<(), ConfigError> {
        let Some(text) = self.take(key) else {
            return Ok(());
        };
        match meseta_resources::duration::parse_duration(text.trim()) {
            Ok(duration) if duration >= least => *slot = duration,
            _ => {
                let expected = format!("a duration of at least {least:?}, such as 15secs or 5mins");
                return Err(self.wrong(key, text, expected));
            }
        }
        Ok(())
    }

    /// Reads resources in Mesos's text form, all of which may be oversubscribed.
    ///
    /// # Errors
    /// When the value does not parse, or names a resource that cannot be revocable.
    pub fn resources_opt(&mut self, key: &'static str) -> Result<Option<Resources>, ConfigError> {
        let Some(text) = self.take(key) else {
            return Ok(None);
        };
        let parsed = Resources::parse(text, &meseta_resources::Role::star())
            .map_err(|error| self.wrong(key, text, format!("a list of resources: {error}")))?;
        let mut oversubscribed = Resources::new();
        for resource in &parsed {
            let fit = !resource.is_reserved() && !resource.is_persistent_volume();
            let marked = if fit { revocable(resource) } else { None };
            match marked {
                Some(resource) => oversubscribed.insert(resource),
                None => {
                    let expected = format!("unreserved: {resource} cannot be revocable");
                    return Err(self.wrong(key, text, expected));
                }
            }
        }
        Ok(Some(oversubscribed))
    }

    /// # Errors
    /// When a parameter was given that no module has read.
    pub fn finish(self) -> Result<(), ConfigError> {
        match self.left.keys().next() {
            None => Ok(()),
            Some(key) => Err(ConfigError::UnknownKey {
                module: self.module,
                key: (*key).to_owned(),
                suggestion: Suggestion::for_name(key, self.asked.iter().copied()),
                known: if self.asked.is_empty() {
                    "none".into()
                } else {
                    self.asked.join(", ")
                },
            }),
        }
    }

    /// Checks a condition between two parameters.
    ///
    /// # Errors
    /// When the condition does not hold.
    pub fn require(&self, holds: bool, why: &str) -> Result<(), ConfigError> {
        match holds {
            true => Ok(()),
            false => Err(ConfigError::Contradiction {
                module: self.module,
                why: why.to_owned(),
            }),
        }
    }
}
