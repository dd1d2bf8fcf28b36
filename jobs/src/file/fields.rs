//! The fields of a job file, declared once: the check of shapes, the defaults, the JSON Schema and the tables of
//! `docs/jobs.md` are derived from the declarations. This file has their types, `fields/sections.rs` the declarations.

mod sections;

pub(super) use sections::JOB;

/// A table of the file.
#[derive(Debug)]
pub(super) struct Section {
    /// The title in messages and headings: `[task]`, or `the job` for the top of the file.
    pub(super) title: &'static str,
    /// The subject of the table, one sentence.
    pub(super) doc: &'static str,
    pub(super) fields: &'static [Field],
}

#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) form: Form,
    pub(super) presence: Presence,
    /// The meaning of the field, in sentences.
    pub(super) doc: &'static str,
}

#[derive(Debug)]
pub(super) enum Presence {
    Required,
    Optional,
    /// The value of an absent field, as TOML writes it.
    Default(&'static str),
}

/// The kind of value that a field accepts.
#[derive(Debug)]
pub(super) enum Form {
    Text,
    /// Accepts one of these texts.
    OneOf(&'static [&'static str]),
    Texts,
    /// A table of texts by name.
    TextMap,
    /// A table of amounts by name.
    AmountMap,
    Flag,
    Integer {
        least: i64,
        most: i64,
    },
    /// A number of thousandths above 0.
    Amount,
    /// Accepts an amount, or `"unlimited"`.
    AmountLimit,
    /// A number and a unit, such as `10secs`.
    Duration {
        may_be_zero: bool,
    },
    /// A whole number and a unit, `64MB`.
    Size,
    /// Accepts a size, or `"unlimited"`.
    SizeLimit,
    Section(&'static Section),
    /// A list of tables; with `short`, a text stands for a table with this field alone.
    Sections {
        section: &'static Section,
        short: Option<&'static str>,
    },
}

/// The value of [`Form::AmountLimit`] and [`Form::SizeLimit`] that means no limit.
pub(super) const UNLIMITED: &str = "unlimited";
pub(super) const KINDS: [&str; 3] = ["service", "batch", "cron"];
pub(super) const OVERLAPS: [&str; 3] = ["skip", "replace", "allow"];
pub(super) const CHECK_ADDRESSES: [&str; 2] = ["127.0.0.1", "::1"];
/// The fields of a constraint, of which a file sets exactly one.
pub(super) const RULES: [&str; 7] = [
    "equals",
    "not_equals",
    "in",
    "matches",
    "exists",
    "distinct",
    "spread",
];
/// The fields of a health check, of which a file sets exactly one.
pub(super) const PROBES: [&str; 3] = ["command", "http", "tcp"];

/// Field names of other schedulers, and the intended field.
pub(super) const SYNONYMS: [(&str, &str); 14] = [
    ("cmd", "command"),
    ("args", "argv"),
    ("cpu", "cpus"),
    ("memory", "mem"),
    ("gpu", "gpus"),
    ("environment", "env"),
    ("instances", "count"),
    ("replicas", "count"),
    ("type", "kind"),
    ("operator", "equals"),
    ("depends_on", "after"),
    ("timezone", "time_zone"),
    ("healthcheck", "check"),
    ("fetch", "uris"),
];

impl Section {
    pub(super) fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// Returns this table and all tables below it, in the order of the file.
    pub(super) fn all(&'static self) -> Vec<&'static Self> {
        let below = self.fields.iter().filter_map(|field| match field.form {
            Form::Section(section) | Form::Sections { section, .. } => Some(section.all()),
            _ => None,
        });
        std::iter::once(self).chain(below.flatten()).collect()
    }
}
