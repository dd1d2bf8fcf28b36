//! The check that a tree has the declared shape: names, types, ranges, required fields.
//!
//! Invariant: [`super::read`] reads a valid tree without a mistake of shape.

use std::collections::HashSet;

use meseta_resources::{ByteSize, parse_duration};

use super::fields::{Field, Form, JOB, Presence, SYNONYMS, Section, UNLIMITED};
use super::mistake::{Collector, MISTAKES_MAX};
use super::tree::{Node, Value};

/// The maximum of an amount: a double does not represent thousandths beyond it.
pub(super) const AMOUNT_MAX: f64 = 1e12;
/// Sizes in bytes: a megabyte, and a petabyte, which is exact in a double of megabytes.
const SIZE_MIN: u64 = 1 << 20;
const SIZE_MAX: u64 = 1 << 50;
/// The minimum likeness, from 0 to 1, of a misspelt name to a field.
const LIKENESS_MIN: f64 = 0.75;

/// Checks a table against its declaration.
pub(super) fn check(section: &'static Section, node: &Node, mistakes: &mut Collector) {
    if !matches!(node.value, Value::Table(_)) {
        let cure = format!("write a table of its fields: {}", names(section));
        mistakes.add(node.at, expected(section.title, "a table", node), cure);
        return;
    }
    let mut seen: HashSet<&str> = HashSet::new();
    for entry in node.entries() {
        if mistakes.is_full() {
            return;
        }
        if !seen.insert(&entry.name) {
            let message = format!("`{}` is written twice", entry.name);
            mistakes.add(entry.at, message, "keep one of the two");
            continue;
        }
        match section.field(&entry.name) {
            Some(field) => check_field(field, &entry.node, mistakes),
            None => {
                let message = format!("{} has no field `{}`", section.title, entry.name);
                mistakes.add(entry.at, message, unknown(section, &entry.name));
            }
        }
    }
    for field in section.fields {
        if matches!(field.presence, Presence::Required) && !seen.contains(field.name) {
            let message = format!("{} has no `{}`", section.title, field.name);
            mistakes.add(node.at, message, format!("add {}", example(field)));
        }
    }
}

/// Returns the remedy for an unknown name.
fn unknown(section: &'static Section, name: &str) -> String {
    let meant = SYNONYMS.iter().find(|(word, _)| *word == name);
    let meant = meant.map_or(name, |(_, field)| field);
    if section.field(meant).is_some() {
        return format!("write `{meant}`");
    }
    let elsewhere = JOB.all().into_iter();
    let elsewhere: Vec<&str> = elsewhere
        .filter(|other| other.field(meant).is_some())
        .map(|other| other.title)
        .collect();
    if !elsewhere.is_empty() {
        return format!("`{meant}` belongs in {}", elsewhere.join(" or "));
    }
    let by_likeness = |field: &&Field| strsim::jaro_winkler(field.name, name);
    let nearest = section
        .fields
        .iter()
        .max_by(|one, other| by_likeness(one).total_cmp(&by_likeness(other)));
    match nearest.filter(|field| by_likeness(field) >= LIKENESS_MIN) {
        Some(nearest) => format!("write `{}`", nearest.name),
        None => format!("its fields are {}", names(section)),
    }
}

fn names(section: &Section) -> String {
    let names: Vec<String> = section
        .fields
        .iter()
        .map(|field| format!("`{}`", field.name))
        .collect();
    names.join(", ")
}

fn expected(name: &str, form: &str, found: &Node) -> String {
    format!("{name} is {}, not {form}", found.kind())
}

/// Returns an example line of a missing field.
fn example(field: &Field) -> String {
    let value = match &field.form {
        Form::Text => "\"...\"",
        Form::Size => "\"1GB\"",
        Form::Section(section) => return section.title.to_owned(),
        _ => "...",
    };
    format!("`{} = {value}`", field.name)
}

fn check_field(field: &Field, node: &Node, mistakes: &mut Collector) {
    let name = format!("`{}`", field.name);
    let mut wrong = |form: &str, cure: String| {
        mistakes.add(node.at, expected(&name, form, node), cure);
    };
    match &field.form {
        Form::Section(section) => check(section, node, mistakes),
        Form::Sections { section, short } => check_sections(&name, section, *short, node, mistakes),
        Form::TextMap => check_texts_by_name(&name, node, mistakes),
        Form::AmountMap => check_amounts_by_name(&name, node, mistakes),
        Form::Texts => check_texts(&name, node, mistakes),
        Form::Text => {
            if node.text().is_none() {
                wrong("a text", format!("write `{} = \"...\"`", field.name));
            }
        }
        Form::Flag => {
            if !matches!(node.value, Value::Flag(_)) {
                wrong(
                    "true or false",
                    format!("write `{} = true` or `false`, without quotes", field.name),
                );
            }
        }
        Form::OneOf(choices) => check_choice(&name, choices, node, mistakes),
        Form::Integer { least, most } => check_integer(&name, (*least, *most), node, mistakes),
        Form::Amount => check_amount(&name, node, mistakes),
        Form::AmountLimit if node.text() == Some(UNLIMITED) => {}
        Form::AmountLimit => check_amount(&name, node, mistakes),
        Form::Duration { may_be_zero } => check_duration(&name, *may_be_zero, node, mistakes),
        Form::SizeLimit if node.text() == Some(UNLIMITED) => {}
        Form::Size | Form::SizeLimit => check_size(&name, node, mistakes),
    }
}

fn check_sections(
    name: &str,
    section: &'static Section,
    short: Option<&str>,
    node: &Node,
    mistakes: &mut Collector,
) {
    if !matches!(node.value, Value::Array(_)) {
        let cure = format!(
            "begin each with `[{}]`",
            section.title.trim_matches(['[', ']'])
        );
        let cure = cure.replace("`[", "`[[").replace("]`", "]]`");
        mistakes.add(node.at, expected(name, "a list of tables", node), cure);
    }
    for item in node.items() {
        if mistakes.is_full() {
            return;
        }
        if short.is_none() || item.text().is_none() {
            check(section, item, mistakes);
        }
    }
}

fn check_texts(name: &str, node: &Node, mistakes: &mut Collector) {
    let cure = "write a list of texts, `[\"a\", \"b\"]`";
    if !matches!(node.value, Value::Array(_)) {
        mistakes.add(node.at, expected(name, "a list of texts", node), cure);
    }
    let wrong = node.items().iter().filter(|item| item.text().is_none());
    for item in wrong.take(MISTAKES_MAX) {
        let message = format!("an item of {name} is {}, not a text", item.kind());
        mistakes.add(item.at, message, cure);
    }
}

fn check_texts_by_name(name: &str, node: &Node, mistakes: &mut Collector) {
    if !matches!(node.value, Value::Table(_)) {
        let cure = "write a table of texts, `{ NAME = \"value\" }`";
        mistakes.add(node.at, expected(name, "a table of texts", node), cure);
    }
    let wrong = node
        .entries()
        .iter()
        .filter(|entry| entry.node.text().is_none());
    for entry in wrong.take(MISTAKES_MAX) {
        let message = format!(
            "`{}` of {name} is {}, not a text",
            entry.name,
            entry.node.kind()
        );
        mistakes.add(entry.node.at, message, "put the value in quotes");
    }
}

fn check_amounts_by_name(name: &str, node: &Node, mistakes: &mut Collector) {
    if !matches!(node.value, Value::Table(_)) {
        let cure = "write a table of amounts, `{ name = 1 }`";
        mistakes.add(node.at, expected(name, "a table of amounts", node), cure);
    }
    for entry in node.entries() {
        if mistakes.is_full() {
            return;
        }
        check_amount(&format!("`{}`", entry.name), &entry.node, mistakes);
    }
}

fn check_choice(name: &str, choices: &[&str], node: &Node, mistakes: &mut Collector) {
    let quoted: Vec<String> = choices
        .iter()
        .map(|choice| format!("\"{choice}\""))
        .collect();
    let cure = format!("write one of {}", quoted.join(", "));
    match node.text() {
        Some(text) if choices.contains(&text) => {}
        Some(text) => mistakes.add(node.at, format!("{name} cannot be \"{text}\""), cure),
        None => mistakes.add(node.at, expected(name, "a text", node), cure),
    }
}

fn check_integer(name: &str, (least, most): (i64, i64), node: &Node, mistakes: &mut Collector) {
    let cure = format!("write a whole number from {least} to {most}");
    match node.value {
        Value::Integer(number) if (least..=most).contains(&number) => {}
        Value::Integer(number) => {
            mistakes.add(node.at, format!("{name} cannot be {number}"), cure);
        }
        _ => mistakes.add(node.at, expected(name, "a whole number", node), cure),
    }
}

fn check_amount(name: &str, node: &Node, mistakes: &mut Collector) {
    let cure = "write a number of thousandths above 0, as `0.5`";
    match node.number() {
        Some(number) if (0.001..=AMOUNT_MAX).contains(&number) => {
            let thousandths = number * 1000.0;
            if (thousandths - thousandths.round()).abs() > 1e-6 * thousandths.max(1.0) {
                let message = format!("{name} = {number} is finer than a thousandth");
                mistakes.add(node.at, message, "write three decimals at most");
            }
        }
        Some(number) => mistakes.add(node.at, format!("{name} cannot be {number}"), cure),
        None => mistakes.add(node.at, expected(name, "a number", node), cure),
    }
}

fn check_duration(name: &str, may_be_zero: bool, node: &Node, mistakes: &mut Collector) {
    let cure = "write a number and a unit (ms, secs, mins, hrs, days, weeks), as `\"10secs\"`";
    let Some(text) = node.text() else {
        mistakes.add(node.at, expected(name, "a duration", node), cure);
        return;
    };
    match parse_duration(text) {
        Ok(duration) if may_be_zero || !duration.is_zero() => {}
        Ok(_) => mistakes.add(
            node.at,
            format!("{name} cannot be zero"),
            "write `\"1secs\"` or more",
        ),
        Err(_) => mistakes.add(
            node.at,
            format!("{name} = \"{text}\" is not a duration"),
            cure,
        ),
    }
}

fn check_size(name: &str, node: &Node, mistakes: &mut Collector) {
    let cure = "write a whole number and a unit (KB, MB, GB, TB), as `\"64MB\"`";
    let Some(text) = node.text() else {
        let cure = match node.value {
            Value::Integer(number) => format!("write `\"{number}MB\"` if megabytes are meant"),
            _ => cure.to_owned(),
        };
        mistakes.add(node.at, expected(name, "a size with its unit", node), cure);
        return;
    };
    match text.parse::<ByteSize>() {
        Ok(size) if (SIZE_MIN..=SIZE_MAX).contains(&size.as_bytes()) => {}
        Ok(_) => {
            let message = format!("{name} cannot be \"{text}\"");
            mistakes.add(
                node.at,
                message,
                "write a size from `\"1MB\"` to `\"1024TB\"`",
            );
        }
        Err(_) => mistakes.add(node.at, format!("{name} = \"{text}\" is not a size"), cure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_matches_its_field_shape() {
        for section in JOB.all() {
            for field in section.fields {
                let Presence::Default(text) = field.presence else {
                    continue;
                };
                let tree = super::super::tree::from_toml(&format!("value = {text}")).expect(text);
                let mut mistakes = Collector::default();
                check_field(field, tree.get("value").expect("a value"), &mut mistakes);
                assert!(mistakes.is_empty(), "{} = {text}: {mistakes:?}", field.name);
            }
        }
    }
}
