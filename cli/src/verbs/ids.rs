//! Ids as people type them: whole, or a unique part.

use anyhow::bail;

/// The number of candidates that an error names.
const NAMED_MAX: usize = 5;

/// Whether `query` could mean this id: it equals the id, or its beginning, or its end behind a hyphen. A prefix that ends
/// within one of the numbers of ids does not count: `m1-S1` is not `m1-S10`.
pub(super) fn is_like(id: &str, query: &str) -> bool {
    let is_end = id
        .strip_suffix(query)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('-'));
    is_end || (id.starts_with(query) && !splits_number(id, query.len()))
}

/// Whether a number of the id continues behind its first `length` bytes: an agent's behind `-S`, one behind a dot as in the
/// ids of jobs' tasks, the last behind a hyphen, or the whole id. Digits elsewhere, as in a UUID, count as letters.
fn splits_number(id: &str, length: usize) -> bool {
    let Some((start, rest)) = id.split_at_checked(length) else {
        return false;
    };
    let before = start.trim_end_matches(|letter: char| letter.is_ascii_digit());
    let after = rest.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let is_within = before.len() < start.len() && after.len() < rest.len();
    let is_last = after.is_empty() && (before.is_empty() || before.ends_with('-'));
    let ends = after.is_empty() || after.starts_with(['.', '-']);
    is_within && ends && (is_last || before.ends_with('.') || before.ends_with("-S"))
}

/// Returns the id that `query` means: an equal one, or else the only similar one. Returns `None` if there is none. `what`
/// names the kind of id.
pub(super) fn resolve<'a>(
    ids: impl Iterator<Item = &'a str> + Clone,
    query: &str,
    what: &str,
) -> anyhow::Result<Option<String>> {
    if ids.clone().any(|id| id == query) {
        return Ok(Some(query.to_owned()));
    }
    let mut like: Vec<&str> = ids
        .filter(|id| !query.is_empty() && is_like(id, query))
        .collect();
    like.sort_unstable();
    like.dedup();
    match like.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some((*one).to_owned())),
        several => {
            let named: Vec<&str> = several.iter().take(NAMED_MAX).copied().collect();
            let rest = match several.len() - named.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            bail!(
                "{query:?} could be {} of {what}: {}{rest}; give more of the id",
                several.len(),
                named.join(", ")
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_matches_by_unique_part() {
        let ids = ["m1-S0", "m1-S1", "m1-S10", "m2-S2", "web.1", "web.12"];
        let found = |query| resolve(ids.iter().copied(), query, "agents");
        for (query, expected) in [
            ("m1-S1", Some("m1-S1")),
            ("S1", Some("m1-S1")),
            ("S10", Some("m1-S10")),
            ("m2", Some("m2-S2")),
            ("web.1", Some("web.1")),
            ("1", None),
            ("", None),
            ("nosuch", None),
        ] {
            let id = found(query).expect(query);
            assert_eq!(id.as_deref(), expected, "{query}");
        }
        let error = found("m1").expect_err("three").to_string();
        assert!(
            error.contains("3 of agents: m1-S0, m1-S1, m1-S10"),
            "{error}"
        );
    }

    #[test]
    fn whole_id_is_no_prefix() {
        for (id, query, expected) in [
            ("m1-S10", "m1-S1", false),
            ("m1-S10", "m1-S10", true),
            ("m1-S10", "m1-S", true),
            ("m1-S10", "S1", false),
            ("m1-10000", "m1-1000", false),
            ("web-12", "web-1", false),
            ("web-12", "web-", true),
            ("10", "1", false),
            ("web.12.0.0.1", "web.1", false),
            ("web.12.0.0.1", "web.12", true),
            ("web2.1.0.0.1", "web", true),
            // The digits of UUIDs are no numbers.
            ("3f91c0de-1234-4c11-9a6f-0a1b2c3d4e5f-S0", "3f9", true),
            (
                "3f91c0de-1234-4c11-9a6f-0a1b2c3d4e5f-S0",
                "3f91c0de-12",
                true,
            ),
            ("12345678-1234-4c11-9a6f-0a1b2c3d4e5f", "123", true),
            ("web.12ab34cd-1234-4c11-9a6f-0a1b2c3d4e5f", "web.1", true),
        ] {
            assert_eq!(is_like(id, query), expected, "{query} for {id}");
        }
    }
}
