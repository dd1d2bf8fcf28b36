//! The places where tasks may run, their layout, and the volume that they return to.

use super::super::fields::RULES;
use super::super::mistake::{Collector, PATTERNS_MAX, PatternMistake};
use super::super::view::View;
use super::{is_below_sandbox, is_within, only_one};
use crate::spec::pattern::Pattern;
use crate::spec::{BUILT_IN_ATTRIBUTES, Constraint, Rule, Volume};

/// Constraints of a job, and values of one, at most: each offer is compared with all of them.
const CONSTRAINTS_MAX: usize = 64;
const VALUES_MAX: usize = 256;
/// Characters of an invalid regular expression that a message quotes.
const PATTERN_CHARS_TOLD: usize = 200;

pub(super) fn constraints(file: &View<'_>, mistakes: &mut Collector) -> Vec<Constraint> {
    let views = file.sections("constraints");
    if !is_within(CONSTRAINTS_MAX, "constraints", views.len(), file, mistakes) {
        return Vec::new();
    }
    let views = views.into_iter();
    views
        .filter_map(|view| constraint(&view, mistakes))
        .collect()
}

fn constraint(view: &View<'_>, mistakes: &mut Collector) -> Option<Constraint> {
    let attribute = view.text("attribute").unwrap_or_default();
    let is_unknown =
        attribute.starts_with('@') && !BUILT_IN_ATTRIBUTES.contains(&attribute.as_str());
    if is_unknown || attribute.is_empty() {
        let message = format!("attribute \"{attribute}\" does not exist");
        let cure = format!(
            "write an attribute of agents, or one of {}",
            BUILT_IN_ATTRIBUTES.join(", ")
        );
        mistakes.add(view.place("attribute"), message, cure);
    }
    let name = only_one(view, &RULES, mistakes)?;
    let text = || view.text(name).unwrap_or_default();
    let rule = match name {
        "equals" => Rule::Equals(text()),
        "not_equals" => Rule::NotEquals(text()),
        "in" => Rule::In(view.texts(name).into_iter().map(|(_, text)| text).collect()),
        "matches" => Rule::Matches(pattern(&text(), view.place(name), mistakes)?),
        "exists" if view.flag(name) => Rule::Exists,
        "exists" => Rule::NotExists,
        "distinct" => Rule::Distinct(view.integer(name).unwrap_or(1)),
        _ => Rule::Spread,
    };
    match &rule {
        Rule::In(values) if values.is_empty() => {
            mistakes.add(
                view.place(name),
                "`in` has no value, so no agent fits",
                "list one or more",
            );
        }
        Rule::In(values) if !is_within(VALUES_MAX, "in", values.len(), view, mistakes) => {}
        Rule::Spread if !view.flag(name) => {
            let cure = "write `spread = true`, or leave the constraint out";
            mistakes.add(view.place(name), "`spread` cannot be false", cure);
        }
        _ => {}
    }
    Some(Constraint { attribute, rule })
}

fn pattern(text: &str, at: usize, mistakes: &mut Collector) -> Option<Pattern> {
    match mistakes.pattern(text) {
        Ok(pattern) => return Some(pattern),
        Err(PatternMistake::Invalid) => {
            let pattern: String = text.chars().take(PATTERN_CHARS_TOLD).collect();
            let message = format!("\"{pattern}\" is not a regular expression");
            let cure = "correct it; the syntax is that of the Rust crate `regex`";
            mistakes.add(at, message, cure);
        }
        Err(PatternMistake::TooMany) => {
            let message = format!("the file has more than {PATTERNS_MAX} different `matches`");
            let cure = "write the values, with `in`, or divide the file";
            mistakes.add(at, message, cure);
        }
    }
    None
}

pub(super) fn volume(file: &View<'_>, mistakes: &mut Collector) -> Option<Volume> {
    file.written("volume")?;
    let view = file.section("volume");
    let path = view.text("path").unwrap_or_default();
    if ["stdout", "stderr"].contains(&path.split('/').next().unwrap_or_default()) {
        let message = format!("\"{path}\" is a file of each task");
        mistakes.add(
            view.place("path"),
            message,
            "write another path, as `\"data\"`",
        );
    }
    if !is_below_sandbox(&path) {
        let message = format!("\"{path}\" is not a path below the sandbox");
        mistakes.add(
            view.place("path"),
            message,
            "write a relative path without `..`, as `\"data\"`",
        );
    }
    Some(Volume {
        size_mb: view.size_mb("size")?,
        path,
    })
}
