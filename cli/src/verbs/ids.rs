//! Ids as people type them: whole, or the part that is told apart from all others.

use anyhow::bail;

/// How many of those that could be meant are named.
const NAMED_MAX: usize = 5;

/// The id that is meant: one that is the same, or else the only one that begins or, behind a hyphen, ends so. Nothing if
/// there is none like it. `what` says what it is an id of.
pub(super) fn resolve<'a>(
    ids: impl Iterator<Item = &'a str> + Clone,
    query: &str,
    what: &str,
) -> anyhow::Result<Option<String>> {
    if ids.clone().any(|id| id == query) {
        return Ok(Some(query.to_owned()));
    }
    let is_end = |id: &str| {
        id.strip_suffix(query)
            .is_some_and(|rest| rest.ends_with('-'))
    };
    let mut like: Vec<&str> = ids
        .filter(|id| !query.is_empty() && (id.starts_with(query) || is_end(id)))
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
    fn an_id_is_known_by_what_is_its_alone() {
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
}
