//! The declaration of the fields as JSON Schema, for editors and other programs.

use serde_json::{Map, Value, json};

use super::fields::{Field, Form, JOB, PROBES, Presence, RULES, Section, UNLIMITED};
use super::tree::{self, Node};

/// The JSON Schema of a job file, published as `docs/jobs.schema.json`.
#[must_use]
pub fn schema() -> Value {
    let mut schema = section(&JOB);
    if let Some(schema) = schema.as_object_mut() {
        let dialect = json!("https://json-schema.org/draft/2020-12/schema");
        schema.insert("$schema".to_owned(), dialect);
        schema.insert("title".to_owned(), json!("A job of meseta scheduler"));
    }
    schema
}

fn section(section: &Section) -> Value {
    let properties: Map<String, Value> = section
        .fields
        .iter()
        .map(|one| (one.name.to_owned(), field(one)))
        .collect();
    let required: Vec<&str> = section
        .fields
        .iter()
        .filter(|field| matches!(field.presence, Presence::Required))
        .map(|field| field.name)
        .collect();
    let mut schema = json!({
        "type": "object",
        "description": section.doc,
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    let choices: &[&str] = match section.title {
        "[task]" => &["command", "argv"],
        "[check]" => &PROBES,
        "[[constraints]]" => &RULES,
        _ => &[],
    };
    if !choices.is_empty() {
        let one_of: Vec<Value> = choices
            .iter()
            .map(|name| json!({ "required": [name] }))
            .collect();
        schema["oneOf"] = json!(one_of);
    }
    schema
}

fn field(field: &Field) -> Value {
    let mut schema = form(&field.form);
    schema["description"] = json!(field.doc);
    if let Presence::Default(text) = field.presence
        && let Ok(tree) = tree::from_toml(&format!("value = {text}"))
        && let Some(default) = tree.get("value").map(plain)
    {
        schema["default"] = default;
    }
    schema
}

fn form(form: &Form) -> Value {
    let texts = json!({ "type": "array", "items": { "type": "string" } });
    match form {
        Form::Text => json!({ "type": "string" }),
        Form::OneOf(choices) => json!({ "enum": choices }),
        Form::Texts => texts,
        Form::TextMap => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
        Form::AmountMap => json!({ "type": "object", "additionalProperties": amount() }),
        Form::Flag => json!({ "type": "boolean" }),
        Form::Integer { least, most } => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        Form::Amount => amount(),
        Form::AmountLimit => json!({ "anyOf": [amount(), { "const": UNLIMITED }] }),
        Form::Duration { .. } => duration(),
        Form::Size => size(),
        Form::SizeLimit => json!({ "anyOf": [size(), { "const": UNLIMITED }] }),
        Form::Section(below) => section(below),
        Form::Sections {
            section: below,
            short,
        } => {
            let item = match short {
                Some(_) => json!({ "anyOf": [{ "type": "string" }, section(below)] }),
                None => section(below),
            };
            json!({ "type": "array", "items": item })
        }
    }
}

fn amount() -> Value {
    json!({ "type": "number", "minimum": 0.001 })
}

fn duration() -> Value {
    json!({ "type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(ns|us|ms|secs|mins|hrs|days|weeks)$" })
}

fn size() -> Value {
    json!({ "type": "string", "pattern": "^[0-9]+([Kk][Bb]|[Mm][Bb]|[Gg][Bb]|[Tt][Bb]|[Bb])$" })
}

fn plain(node: &Node) -> Value {
    match &node.value {
        tree::Value::Text(text) => json!(text),
        tree::Value::Integer(number) => json!(number),
        tree::Value::Float(number) => json!(number),
        tree::Value::Flag(flag) => json!(flag),
        tree::Value::Array(items) => items.iter().map(plain).collect(),
        tree::Value::Table(entries) => entries
            .iter()
            .map(|entry| (entry.name.clone(), plain(&entry.node)))
            .collect(),
        tree::Value::Other(_) => Value::Null,
    }
}
