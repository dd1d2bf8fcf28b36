//! The mistakes of a job file: the place, the fault and the remedy of each.
//!
//! Invariant: a position is that of a character of the text, counted from 1, so that an editor finds it.

use std::collections::HashMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::spec::pattern::Pattern;

/// A mistake in the form of the command line and the HTTP API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mistake {
    /// Line of the text, from 1.
    pub line: usize,
    /// Character within the line, from 1.
    pub column: usize,
    /// The fault, without a full stop.
    pub message: String,
    /// The remedy, as an instruction.
    pub cure: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            line,
            column,
            message,
            cure,
        } = self;
        write!(f, "{line}:{column}: {message}; {cure}")
    }
}

/// All mistakes of a file, in the order of the text; at least one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mistakes {
    pub errors: Vec<Mistake>,
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.errors.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for Mistakes {}

/// Mistakes that are reported for one file: nobody reads more, and each takes time to find.
pub const MISTAKES_MAX: usize = 100;
/// Different regular expressions of one file: each is compiled.
pub(super) const PATTERNS_MAX: usize = 256;

/// The reason why a text is no valid pattern of a constraint.
#[derive(Clone, Copy, Debug)]
pub(super) enum PatternMistake {
    /// The text is an invalid or too large regular expression.
    Invalid,
    /// The file has [`PATTERNS_MAX`] other patterns.
    TooMany,
}

/// Collects mistakes by their byte in the text.
#[derive(Debug, Default)]
pub(super) struct Collector {
    found: Vec<(usize, String, String)>,
    /// The different texts of `matches` in the file; `None` for an invalid one.
    patterns: HashMap<String, Option<Pattern>>,
}

impl Collector {
    pub(super) fn add(&mut self, at: usize, message: impl Into<String>, cure: impl Into<String>) {
        if !self.is_full() {
            self.found.push((at, message.into(), cure.into()));
        }
    }

    /// Whether the list is full, so that a search for more mistakes is useless.
    pub(super) const fn is_full(&self) -> bool {
        self.found.len() >= MISTAKES_MAX
    }

    /// Compiles a regular expression of the file.
    ///
    /// # Errors
    /// The text is invalid, or the file has too many different patterns.
    pub(super) fn pattern(&mut self, text: &str) -> Result<Pattern, PatternMistake> {
        if !self.patterns.contains_key(text) {
            if self.patterns.len() >= PATTERNS_MAX {
                return Err(PatternMistake::TooMany);
            }
            self.patterns
                .insert(text.to_owned(), Pattern::parse(text).ok());
        }
        let known = self.patterns.get(text).cloned().flatten();
        known.ok_or(PatternMistake::Invalid)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns the mistakes with their positions in `text`, in order.
    pub(super) fn finish(mut self, text: &str) -> Mistakes {
        self.found.sort_by_key(|(at, ..)| *at);
        let located = self.found.into_iter().map(|(at, message, cure)| {
            let (line, column) = position(text, at);
            Mistake {
                line,
                column,
                message,
                cure,
            }
        });
        Mistakes {
            errors: located.collect(),
        }
    }
}

/// Returns the line and the column of a byte, both from 1; for a byte beyond the end, those of the end.
fn position(text: &str, at: usize) -> (usize, usize) {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    let before = &text[..at];
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (line, before[start..].chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_counts_lines_and_characters() {
        let text = "a = 1\nü = 2\n";
        for (at, expected) in [
            (0, (1, 1)),
            (4, (1, 5)),
            (6, (2, 1)),
            (8, (2, 2)),
            (99, (3, 1)),
        ] {
            assert_eq!(position(text, at), expected, "{at}");
        }
    }
}
