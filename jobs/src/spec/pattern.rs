//! Regular expressions of constraints, which match a whole value or not at all.
//!
//! [`Pattern::parse`] compiles the pattern of a file while reading the file, outside the core; a pattern of a stored job is
//! compiled while reading its record. Patterns with the same text share one compiled form while a job has it. Invariant: a
//! pattern never compiles when it is used, so that matching in the core costs only as much as its value is long.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

/// Size limits for the compilation of a pattern, the smallest first. Patterns come from users, so the last limit is final;
/// the earlier limits decide the charge of a pattern.
const SIZE_LIMITS: [usize; 4] = [8 << 10, 64 << 10, 256 << 10, 1 << 20];
/// A compiled pattern has an automaton for each direction and a cache for each, all within the size limit.
const AUTOMATA: usize = 4;

/// The compiled forms in use, by text.
static COMPILED: LazyLock<Mutex<HashMap<String, Weak<Compiled>>>> = LazyLock::new(Mutex::default);

/// A regular expression that matches whole values. Cheap to clone.
#[derive(Clone, Deserialize, Serialize)]
#[serde(from = "String", into = "String")]
pub struct Pattern(Arc<Compiled>);

#[derive(Debug)]
struct Compiled {
    text: String,
    /// `None` for a stored text that this version of the product refuses to compile; such a pattern matches no value.
    regex: Option<Regex>,
    /// An upper bound of the memory of `regex`.
    bytes: usize,
}

impl Drop for Compiled {
    fn drop(&mut self) {
        let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have compiled the same text again.
        if compiled
            .get(&self.text)
            .is_some_and(|one| one.strong_count() == 0)
        {
            compiled.remove(&self.text);
        }
    }
}

impl Pattern {
    /// Compiles a pattern, or shares the compiled form of the same text.
    ///
    /// # Errors
    /// Returns the error of a text that is not a regular expression, or needs more than a megabyte.
    pub fn parse(text: &str) -> Result<Self, regex::Error> {
        if let Some(shared) = shared(text) {
            return Ok(Self(shared));
        }
        let (regex, bytes) = compile(text)?;
        Ok(Self::share(text, Some(regex), bytes))
    }

    fn share(text: &str, regex: Option<Regex>, bytes: usize) -> Self {
        let new = Arc::new(Compiled {
            text: text.to_owned(),
            regex,
            bytes,
        });
        let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
        let present = compiled.get(text).and_then(Weak::upgrade);
        if present.is_none() {
            compiled.insert(text.to_owned(), Arc::downgrade(&new));
        }
        // `new` may be dropped here, and its drop takes the lock.
        drop(compiled);
        Self(present.unwrap_or(new))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    /// Returns whether the pattern matches the whole value.
    #[must_use]
    pub fn is_match(&self, value: &str) -> bool {
        self.0
            .regex
            .as_ref()
            .is_some_and(|regex| regex.is_match(value))
    }

    /// Returns an upper bound of the memory of the compiled pattern, which is charged to its job.
    #[must_use]
    pub fn compiled_bytes(&self) -> usize {
        self.0.bytes
    }
}

/// A pattern of a stored job. An invalid pattern matches no value.
impl From<String> for Pattern {
    fn from(text: String) -> Self {
        Self::parse(&text).unwrap_or_else(|_| Self::share(&text, None, 0))
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.as_str().to_owned()
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Pattern {}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Returns the valid compiled form of a text, if a job uses it.
fn shared(text: &str) -> Option<Arc<Compiled>> {
    let compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let shared = compiled.get(text).and_then(Weak::upgrade);
    drop(compiled);
    shared.filter(|one| one.regex.is_some())
}

/// Compiles a pattern with the smallest sufficient size limit, and returns an upper bound of its bytes.
fn compile(text: &str) -> Result<(Regex, usize), regex::Error> {
    // The text is parsed alone first: a pattern such as `a)|(b` must not close the anchoring group. With a limit of 0, a
    // valid text is refused as too large before any compilation.
    let alone = RegexBuilder::new(text).size_limit(0).build();
    if let Err(error @ regex::Error::Syntax(_)) = alone {
        return Err(error);
    }
    let anchored = format!(r"\A(?:{text})\z");
    let mut too_big = regex::Error::CompiledTooBig(0);
    for limit in SIZE_LIMITS {
        let mut builder = RegexBuilder::new(&anchored);
        match builder.size_limit(limit).dfa_size_limit(limit).build() {
            Ok(regex) => return Ok((regex, limit * AUTOMATA)),
            Err(error @ regex::Error::CompiledTooBig(_)) => too_big = error,
            Err(error) => return Err(error),
        }
    }
    Err(too_big)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_matches_whole_value() {
        for (pattern, value, is_match) in [
            ("r1|r2", "r2", true),
            ("r1|r2", "r12", false),
            ("r.", "xr1", false),
            ("", "", true),
        ] {
            let compiled = Pattern::parse(pattern).expect(pattern);
            assert_eq!(compiled.is_match(value), is_match, "{pattern} on {value}");
        }
        for wrong in ["(", "a)|(b", r"\w{1000}{1000}"] {
            assert!(Pattern::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn same_text_shares_one_compiled_form() {
        let text = "shared-[a-c]+";
        let first = Pattern::parse(text).expect("a pattern");
        let stored: Pattern = serde_json::from_str(&format!("{text:?}")).expect("a text");
        assert!(Arc::ptr_eq(&first.0, &stored.0));
        drop((first, stored));
        let compiled = COMPILED.lock().expect("no panic");
        assert!(!compiled.contains_key(text), "no job has it any more");
    }

    #[test]
    fn invalid_stored_pattern_matches_nothing() {
        let stored = Pattern::from("kept-(".to_owned());
        assert!(!stored.is_match("kept-("));
        assert_eq!(
            serde_json::to_string(&stored).expect("a text"),
            "\"kept-(\""
        );
        assert!(
            Pattern::parse("kept-(").is_err(),
            "a file with it is still refused"
        );
    }

    #[test]
    fn larger_pattern_is_charged_more() {
        let bytes = |text: &str| Pattern::parse(text).expect(text).compiled_bytes();
        assert!(bytes("rack-[0-9]+") < bytes(r"\w+"));
        assert!(bytes(r"\w+") < bytes(r"\w{10}"));
        assert!(bytes(r"\w{10}") <= 4 << 20);
    }
}
