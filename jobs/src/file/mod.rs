//! The job file: TOML for people, JSON over HTTP, both with the same fields, and [`JobSpec`] from either.
//!
//! Entered through [`from_toml`] and [`from_json`], and [`all_from_text`] for files of several jobs; [`to_json`] and
//! [`to_toml`] convert back. `fields.rs` declares the fields; [`schema`] and the reference of `docs/jobs.md` are derived
//! from it. Files:
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

pub use mistake::{MISTAKES_MAX, Mistake, Mistakes};
pub use schema::{job_schema, schema};
pub use write::{to_json, to_toml};

use std::borrow::Cow;
use std::collections::HashSet;

use mistake::Collector;
use tree::Node;

use crate::spec::JobSpec;

/// Jobs of one file at most.
const JOBS_MAX: usize = 1_000;
/// Bytes of a job file at most: no job that a person writes is longer.
pub const FILE_BYTES_MAX: usize = 1 << 20;

const NOT_TOML: &str = "this is not TOML";
const NOT_JSON: &str = "this is not JSON";
/// The name of the list in a file of several jobs.
const LIST: &str = "jobs";

/// Reads a job file.
///
/// # Errors
///
/// All mistakes of the first kind found: of TOML, of fields, or of their combination.
pub fn from_toml(text: &str) -> Result<JobSpec, Mistakes> {
    read(text, tree::from_toml, NOT_TOML)
}

/// Reads the JSON form of a job file.
///
/// # Errors
/// As [`from_toml`].
pub fn from_json(text: &str) -> Result<JobSpec, Mistakes> {
    read(text, json::from_json, NOT_JSON)
}

/// Reads JSON if the text begins as an object, and TOML otherwise.
///
/// # Errors
/// As [`from_toml`].
pub fn from_text(text: &str) -> Result<JobSpec, Mistakes> {
    if plain(text).trim_start().starts_with('{') {
        from_json(text)
    } else {
        from_toml(text)
    }
}

/// The contents of a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Submission {
    Job(Box<JobSpec>),
    /// The jobs of the list `jobs`, at least one.
    Jobs(Vec<JobSpec>),
}

/// Reads a file of one job, or of several in the list `jobs`; JSON or TOML as [`from_text`].
///
/// # Errors
///
/// As [`from_toml`], for all jobs.
pub fn all_from_text(text: &str) -> Result<Vec<JobSpec>, Mistakes> {
    Ok(match submission(text)? {
        Submission::Job(spec) => vec![*spec],
        Submission::Jobs(specs) => specs,
    })
}

/// Parses a file, and distinguishes a list of one job from a job.
///
/// # Errors
///
/// As [`from_toml`], for all jobs.
pub fn submission(text: &str) -> Result<Submission, Mistakes> {
    let text = &*plain(text);
    let (parse, not_parsed): (Parse, _) = match text.trim_start().starts_with('{') {
        true => (json::from_json, NOT_JSON),
        false => (tree::from_toml, NOT_TOML),
    };
    let tree = parsed(text, parse, not_parsed)?;
    let Some(list) = tree.get(LIST) else {
        return Ok(Submission::Job(Box::new(checked(text, &tree)?)));
    };
    let mut mistakes = Collector::default();
    let beside = tree.entries().iter().filter(|entry| entry.name != LIST);
    for entry in beside.take(MISTAKES_MAX) {
        let message = format!("`{}` is outside the list `jobs`", entry.name);
        mistakes.add(entry.at, message, "move it into one of the jobs");
    }
    if list.items().len() > JOBS_MAX {
        let message = format!("`jobs` has {} entries", list.items().len());
        mistakes.add(list.at, message, format!("write {JOBS_MAX} at most"));
        return Err(mistakes.finish(text));
    }
    if list.items().is_empty() {
        let cure = "write one or more jobs, each as [[jobs]]";
        mistakes.add(list.at, "`jobs` is not a list of jobs", cure);
    }
    for job in list.items() {
        shape::check(&fields::JOB, job, &mut mistakes);
    }
    if !mistakes.is_empty() {
        return Err(mistakes.finish(text));
    }
    let (mut specs, mut names) = (Vec::new(), HashSet::new());
    for job in list.items() {
        if mistakes.is_full() {
            break;
        }
        let spec = read::job(job, &mut mistakes);
        if !names.insert((spec.role.clone(), spec.name.clone())) {
            let message = format!("two jobs have the name \"{}\"", spec.name);
            mistakes.add(job.at, message, "rename one of the two");
        }
        specs.push(spec);
    }
    if mistakes.is_empty() {
        Ok(Submission::Jobs(specs))
    } else {
        Err(mistakes.finish(text))
    }
}

type Parse = fn(&str) -> Result<Node, (usize, String)>;

/// Returns a text of another system's editor without its byte order mark, and with the line ends that a shell reads.
fn plain(text: &str) -> Cow<'_, str> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match text.contains("\r\n") {
        true => Cow::Owned(text.replace("\r\n", "\n")),
        false => Cow::Borrowed(text),
    }
}

fn read(text: &str, parse: Parse, not_parsed: &str) -> Result<JobSpec, Mistakes> {
    let text = &*plain(text);
    checked(text, &parsed(text, parse, not_parsed)?)
}

fn parsed(text: &str, parse: Parse, not_parsed: &str) -> Result<Node, Mistakes> {
    if text.len() > FILE_BYTES_MAX {
        let mut mistakes = Collector::default();
        let cure = "keep large data out of the job, as files that `uris` name";
        mistakes.add(0, "the file is longer than 1 MB", cure);
        return Err(mistakes.finish(text));
    }
    parse(text).map_err(|(at, words)| {
        let mut mistakes = Collector::default();
        let words = words.lines().collect::<Vec<_>>().join(", ");
        mistakes.add(
            at,
            format!("{not_parsed}: {words}"),
            "correct the text here",
        );
        mistakes.finish(text)
    })
}

fn checked(text: &str, tree: &Node) -> Result<JobSpec, Mistakes> {
    let mut mistakes = Collector::default();
    shape::check(&fields::JOB, tree, &mut mistakes);
    if !mistakes.is_empty() {
        return Err(mistakes.finish(text));
    }
    let spec = read::job(tree, &mut mistakes);
    if mistakes.is_empty() {
        Ok(spec)
    } else {
        Err(mistakes.finish(text))
    }
}
