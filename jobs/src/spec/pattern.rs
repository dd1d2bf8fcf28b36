//! Regular expressions of constraints, which match a whole value or not at all.

use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex, PoisonError};

use regex::{Regex, RegexBuilder};

/// Bytes of a compiled pattern at most: patterns come from users.
const PATTERN_BYTES_MAX: usize = 1 << 20;
/// What most patterns take at most.
const SMALL_BYTES: usize = 32 << 10;
/// What the patterns take that are kept compiled, in units of [`SMALL_BYTES`]: 128 MB.
const KEPT_MAX: usize = 4_096;

/// Patterns that are kept compiled, the least recently used until there is no more room. It is asked for the same ones
/// with each offer, and compiling one takes as long as to compare thousands of values.
static KEPT: LazyLock<Mutex<Kept>> = LazyLock::new(Mutex::default);

#[derive(Debug, Default)]
struct Kept {
    by_text: HashMap<String, Compiled>,
    /// By when they were used last.
    by_use: BTreeMap<u64, String>,
    used: u64,
    size: usize,
}

#[derive(Debug)]
struct Compiled {
    /// None of what is no regular expression, or too large a one.
    pattern: Option<Regex>,
    size: usize,
    used: u64,
}

impl Kept {
    fn get(&mut self, text: &str) -> Option<Option<Regex>> {
        let compiled = self.by_text.get_mut(text)?;
        self.used += 1;
        let before = std::mem::replace(&mut compiled.used, self.used);
        if let Some(text) = self.by_use.remove(&before) {
            self.by_use.insert(self.used, text);
        }
        Some(compiled.pattern.clone())
    }

    fn put(&mut self, text: &str, pattern: Option<Regex>, size: usize) {
        self.used += 1;
        let used = self.used;
        let compiled = Compiled {
            pattern,
            size,
            used,
        };
        self.size += size;
        self.by_use.insert(used, text.to_owned());
        if let Some(before) = self.by_text.insert(text.to_owned(), compiled) {
            self.by_use.remove(&before.used);
            self.size -= before.size;
        }
        while self.size > KEPT_MAX
            && let Some((_, text)) = self.by_use.pop_first()
        {
            let forgotten = self.by_text.remove(&text);
            self.size -= forgotten.map_or(0, |one| one.size);
        }
    }
}

#[cfg(test)]
thread_local! {
    /// How many patterns were compiled.
    pub(crate) static COMPILED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The same as [`whole_value`], compiled once for as long as it is used; none of what is no pattern. And whether it was
/// compiled now.
pub(crate) fn kept(text: &str) -> (Option<Regex>, bool) {
    let lock = || KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = lock().get(text) {
        return (known, false);
    }
    let (pattern, size) = match limited(text, SMALL_BYTES) {
        Ok(small) => (Some(small), 1),
        Err(regex::Error::CompiledTooBig(_)) => {
            let large = limited(text, PATTERN_BYTES_MAX);
            (large.ok(), PATTERN_BYTES_MAX / SMALL_BYTES)
        }
        Err(_) => (None, 1),
    };
    lock().put(text, pattern.clone(), size);
    (pattern, true)
}

/// The pattern as one that matches a whole value.
///
/// # Errors
/// When it is no regular expression, or one that takes more than a megabyte.
pub fn whole_value(pattern: &str) -> Result<Regex, regex::Error> {
    limited(pattern, PATTERN_BYTES_MAX)
}

fn limited(pattern: &str, bytes_max: usize) -> Result<Regex, regex::Error> {
    // Alone first: a pattern such as `a)|(b` must not close the group that anchors it. That it is too large for nothing
    // at all says that it was understood, before anything is compiled.
    let alone = RegexBuilder::new(pattern).size_limit(0).build();
    if let Err(error @ regex::Error::Syntax(_)) = alone {
        return Err(error);
    }
    #[cfg(test)]
    COMPILED.set(COMPILED.get() + 1);
    RegexBuilder::new(&format!(r"\A(?:{pattern})\z"))
        .size_limit(bytes_max)
        .dfa_size_limit(bytes_max)
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_compiled_once_while_it_is_used_and_as_many_are_kept_as_there_is_room_for() {
        let (first, is_new) = kept("kept-[a-c]+");
        assert!(is_new && first.expect("a pattern").is_match("kept-abc"));
        let before = COMPILED.get();
        assert!(!kept("kept-[a-c]+").1);
        assert!(kept("kept-(").0.is_none());
        assert!(!kept("kept-(").1);
        assert!(COMPILED.get() <= before + 1);
        let mut table = Kept::default();
        for number in 0..200 {
            table.put(&number.to_string(), None, 32);
            assert!(table.get("0").is_some(), "it is used");
        }
        assert_eq!((table.size, table.by_text.len()), (KEPT_MAX, 128));
        assert_eq!(table.by_use.len(), 128);
        assert!(table.get("1").is_none());
    }

    #[test]
    fn a_pattern_matches_a_whole_value() {
        for (pattern, value, is_match) in [
            ("r1|r2", "r2", true),
            ("r1|r2", "r12", false),
            ("r.", "xr1", false),
            ("", "", true),
        ] {
            let compiled = whole_value(pattern).expect(pattern);
            assert_eq!(compiled.is_match(value), is_match, "{pattern} on {value}");
        }
        for wrong in ["(", "a)|(b", r"\w{1000}{1000}"] {
            assert!(whole_value(wrong).is_err(), "{wrong}");
        }
    }
}
