//! The job file: TOML for people, JSON over HTTP, both with the same fields, and [`JobSpec`] from either.
//!
//! Entered through [`from_toml`] and [`from_json`]; the way back is [`to_json`] and [`to_toml`]. The fields are declared
//! in `fields.rs`, from which [`schema`] and the reference of `docs/jobs.md` are derived. Files:
//! - `tree.rs`, `json.rs`: text to a tree with places
//! - `shape.rs`: the tree against the declaration
//! - `view.rs`, `read.rs`: the tree as a job
//! - `write.rs`: a job as a tree
//! - `schema.rs`: the declaration as JSON Schema; `reference.rs`: as tables
//!
//! Invariant: a job that was read, written and read again is the same job.

mod fields;
mod json;
mod mistake;
mod read;
#[cfg(test)]
mod reference;
mod schema;
mod shape;
#[cfg(test)]
mod tests;
mod tree;
mod view;
mod write;

pub use mistake::{Mistake, Mistakes};
pub use schema::schema;
pub use write::{to_json, to_toml};

use mistake::Collector;
use tree::Node;

use crate::spec::JobSpec;

/// Bytes of a job file at most: no job that a person writes is longer.
pub const FILE_BYTES_MAX: usize = 1 << 20;

/// Reads a job file.
///
/// # Errors
/// Every mistake of the first kind that there is one of: of TOML, of fields, of what they mean together.
pub fn from_toml(text: &str) -> Result<JobSpec, Mistakes> {
    read(text, tree::from_toml, "this is not TOML")
}

/// Reads the JSON form of a job file.
///
/// # Errors
/// As [`from_toml`].
pub fn from_json(text: &str) -> Result<JobSpec, Mistakes> {
    read(text, json::from_json, "this is not JSON")
}

/// Reads JSON if the text begins as an object, and TOML otherwise.
///
/// # Errors
/// As [`from_toml`].
pub fn from_text(text: &str) -> Result<JobSpec, Mistakes> {
    if text.trim_start().starts_with('{') {
        from_json(text)
    } else {
        from_toml(text)
    }
}

fn read(
    text: &str,
    parse: impl Fn(&str) -> Result<Node, (usize, String)>,
    not_parsed: &str,
) -> Result<JobSpec, Mistakes> {
    let mut mistakes = Collector::default();
    if text.len() > FILE_BYTES_MAX {
        let cure = "keep large data out of the job, as files that `uris` name";
        mistakes.add(0, "the file is longer than 1 MB", cure);
        return Err(mistakes.finish(text));
    }
    let tree = parse(text).map_err(|(at, words)| {
        let mut mistakes = Collector::default();
        let words = words.lines().collect::<Vec<_>>().join(", ");
        mistakes.add(
            at,
            format!("{not_parsed}: {words}"),
            "correct the text here",
        );
        mistakes.finish(text)
    })?;
    shape::check(&fields::JOB, &tree, &mut mistakes);
    if !mistakes.is_empty() {
        return Err(mistakes.finish(text));
    }
    let spec = read::job(&tree, &mut mistakes);
    if mistakes.is_empty() {
        Ok(spec)
    } else {
        Err(mistakes.finish(text))
    }
}
