//! Regular expressions of constraints, which match a whole value or not at all.

use regex::{Regex, RegexBuilder};

/// Bytes of a compiled pattern at most: patterns come from users.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// The pattern as one that matches a whole value.
///
/// # Errors
/// When it is no regular expression, or one that takes more than a megabyte.
pub fn whole_value(pattern: &str) -> Result<Regex, regex::Error> {
    // Alone first: a pattern such as `a)|(b` must not close the group that anchors it.
    Regex::new(pattern)?;
    RegexBuilder::new(&format!(r"\A(?:{pattern})\z"))
        .size_limit(PATTERN_BYTES_MAX)
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

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
