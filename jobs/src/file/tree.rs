//! A job file as a tree of values, each with its place in the text; read from TOML or JSON.
//!
//! Entered through [`from_toml`] and [`super::json::from_json`]. Knows no field of a job.

use toml::de::{DeTable, DeValue};

/// A value and the byte at which it begins.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) at: usize,
    pub(super) value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    Integer(i64),
    Float(f64),
    Flag(bool),
    Array(Vec<Node>),
    Table(Vec<Entry>),
    /// A value that no field accepts: a date of TOML, null of JSON, or a number out of range.
    Other(&'static str),
}

/// A key of a table and its value.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    /// The byte at which the key begins.
    pub(super) at: usize,
    pub(super) node: Node,
}

impl Node {
    /// Returns the kind of the value, with its article, for messages.
    pub(super) const fn kind(&self) -> &'static str {
        match self.value {
            Value::Text(_) => "a text",
            Value::Integer(_) => "a whole number",
            Value::Float(_) => "a number",
            Value::Flag(_) => "true or false",
            Value::Array(_) => "a list",
            Value::Table(_) => "a table",
            Value::Other(kind) => kind,
        }
    }

    /// Returns the value under `name` if this is a table that has it.
    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        let entry = self.entries().iter().find(|entry| entry.name == name)?;
        Some(&entry.node)
    }

    /// Returns the entries of a table, or an empty slice for other values.
    pub(super) fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Table(entries) => entries,
            _ => &[],
        }
    }

    /// Returns the items of a list, or an empty slice for other values.
    pub(super) fn items(&self) -> &[Self] {
        match &self.value {
            Value::Array(items) => items,
            _ => &[],
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns a number, with or without a fraction.
    pub(super) fn number(&self) -> Option<f64> {
        match self.value {
            #[expect(
                clippy::cast_precision_loss,
                reason = "amounts are bounded far below 2^53 where they are checked"
            )]
            Value::Integer(number) => Some(number as f64),
            Value::Float(number) => Some(number),
            _ => None,
        }
    }
}

/// Parses TOML; for an invalid text, returns the byte and the message of the parser.
pub(super) fn from_toml(text: &str) -> Result<Node, (usize, String)> {
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        (at, error.message().to_owned())
    })?;
    Ok(Node {
        at: 0,
        value: table_value(table.get_ref()),
    })
}

fn table_value(table: &DeTable<'_>) -> Value {
    let entries = table.iter().map(|(key, value)| Entry {
        name: key.get_ref().to_string(),
        at: key.span().start,
        node: node(value),
    });
    let mut entries: Vec<Entry> = entries.collect();
    entries.sort_by_key(|entry| entry.at);
    Value::Table(entries)
}

fn node(value: &toml::Spanned<DeValue<'_>>) -> Node {
    let value_of = |value: &DeValue<'_>| match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => {
            let number = i64::from_str_radix(number.as_str(), number.radix());
            number.map_or(Value::Other("a number beyond 64 bits"), Value::Integer)
        }
        DeValue::Float(number) => {
            let number = number.as_str().parse();
            number.map_or(Value::Other("a number out of range"), Value::Float)
        }
        DeValue::Boolean(flag) => Value::Flag(*flag),
        DeValue::Datetime(_) => Value::Other("a date or time"),
        DeValue::Array(items) => Value::Array(items.iter().map(node).collect()),
        DeValue::Table(table) => table_value(table),
    };
    Node {
        at: value.span().start,
        value: value_of(value.get_ref()),
    }
}
