//! The events of a run: a hash over all steps, counts by kind, and on request the steps in words.
//!
//! Words cost more than the steps themselves, so they are made only for a described run; the hash shows that it is the same
//! run. Invariant: the hash depends on the events and on nothing else.

use std::collections::{BTreeMap, VecDeque};

/// Steps that the description of a broken promise contains.
const LAST_STEPS: usize = 100;

/// A kind of event: its class and its name.
pub type Happening = (&'static str, &'static str);

/// The number of events of each kind.
pub type Counts = BTreeMap<Happening, u64>;

#[derive(Debug, Default)]
pub(crate) struct Story {
    is_told: bool,
    /// The text that described steps must contain.
    about: String,
    hash: u64,
    step: u64,
    last: VecDeque<String>,
    counts: Counts,
    /// Whether no step has had an effect since the last question.
    is_idle: bool,
}

impl Story {
    pub(crate) fn new(is_told: bool, about: &str) -> Self {
        Self {
            is_told,
            about: about.to_owned(),
            hash: 0xcbf2_9ce4_8422_2325,
            ..Self::default()
        }
    }

    /// Starts the next step.
    pub(crate) fn begin(&mut self, step: u64) {
        self.step = step;
        self.is_idle = true;
    }

    /// Whether this step has had no effect.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// Notes an event: its subjects for the hash, and its description for people.
    pub(crate) fn note(&mut self, what: Happening, of: [u64; 2], words: impl FnOnce() -> String) {
        self.count(what);
        self.is_idle = false;
        self.mix(self.step);
        what.1.bytes().for_each(|byte| self.mix(u64::from(byte)));
        of.into_iter().for_each(|number| self.mix(number));
        self.tell(|| format!("{} {}", what.1, words()));
    }

    /// Adds words to this step, if the run is described.
    pub(crate) fn tell(&mut self, words: impl FnOnce() -> String) {
        if !self.is_told {
            return;
        }
        let words = words();
        if !words.contains(&self.about) {
            return;
        }
        if self.last.len() == LAST_STEPS {
            self.last.pop_front();
        }
        let words = brief(&words);
        self.last.push_back(format!("{}: {words}", self.step));
    }

    /// Counts an event without a step.
    pub(crate) fn count(&mut self, what: Happening) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn mix(&mut self, number: u64) {
        self.hash = (self.hash ^ number).wrapping_mul(0x100_0000_01b3);
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the last steps, one per line; empty if the run is not described.
    pub(crate) fn last_steps(&self) -> String {
        let last: Vec<_> = self.last.iter().map(String::as_str).collect();
        last.join("\n")
    }
}

/// Returns the words without absent fields, and limited in length.
fn brief(words: &str) -> String {
    const CHARS_MAX: usize = 500;
    let parts = words.split(", ").filter(|part| !part.contains(": None"));
    let parts: Vec<_> = parts.collect();
    parts.join(", ").chars().take(CHARS_MAX).collect()
}
