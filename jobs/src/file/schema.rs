//! The declaration of the fields as JSON Schema, for editors and other programs.

use serde_json::{Map, Value, json};

use super::fields::{Field, Form, JOB, PROBES, Presence, RULES, Section, UNLIMITED};
use super::tree::{self, Node};
use super::{JOBS_MAX, LIST};

/// Returns the JSON Schema of a job file, of one job or of several, published as `docs/jobs.schema.json`.
#[must_use]
pub fn schema() -> Value {
    let job = json!({ "$ref": "#/$defs/Job" });
    let list = json!({
        "type": "object",
        "description": "Several jobs, each as [[jobs]].",
        "properties": {
            LIST: { "type": "array", "minItems": 1, "maxItems": JOBS_MAX, "items": job.clone() },
        },
        "required": [LIST],
        "additionalProperties": false,
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A file of jobs of meseta scheduler",
        "anyOf": [job, list],
        "$defs": { "Job": job_schema() },
    })
}

/// Returns the JSON Schema of one job.
#[must_use]
pub fn job_schema() -> Value {
    let mut schema = section(&JOB);
    schema["title"] = json!("A job of meseta scheduler");
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a file has exactly the fields that a schema names; other tests check the forms of the values.
    fn has_fields(schema: &Value, file: &Value) -> bool {
        if let Some(place) = schema["$ref"].as_str() {
            let place = place.trim_start_matches('#');
            return has_fields(super::schema().pointer(place).expect("a schema"), file);
        }
        if let Some(choices) = schema["anyOf"].as_array() {
            return choices.iter().any(|choice| has_fields(choice, file));
        }
        match (file, schema["properties"].as_object()) {
            (Value::Object(file), Some(properties)) => {
                let required = schema["required"].as_array().expect("a list");
                let has = |name: &Value| file.contains_key(name.as_str().expect("a name"));
                let fits = |(name, value): (&String, &Value)| {
                    properties
                        .get(name)
                        .is_some_and(|one| has_fields(one, value))
                };
                required.iter().all(has) && file.iter().all(fits)
            }
            (Value::Object(_), None) => schema["type"] == "object",
            (Value::Array(items), _) => {
                schema["type"] == "array"
                    && items.iter().all(|one| has_fields(&schema["items"], one))
            }
            _ => schema["type"] != "object" && schema["type"] != "array",
        }
    }

    #[test]
    fn schema_accepts_every_example() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/examples/jobs");
        let (mut seen, mut lists) = (0, 0);
        for entry in std::fs::read_dir(folder).expect("the examples") {
            let path = entry.expect("an example").path();
            let text = std::fs::read_to_string(&path).expect("text");
            let file = plain(&tree::from_toml(&text).expect("TOML"));
            assert!(has_fields(&schema(), &file), "{}", path.display());
            (seen, lists) = (seen + 1, lists + usize::from(file.get(LIST).is_some()));
        }
        assert!(seen > 5 && lists >= 2, "{seen}, {lists}");
        let job = json!({ "name": "a", "task": { "command": "true" } });
        assert!(has_fields(&schema(), &job));
        for wrong in [
            json!({ "jobs": [job], "name": "a" }),
            json!({ "jobs": { "name": "a" } }),
            json!({ "name": "a" }),
            json!({ "name": "a", "task": { "command": "true" }, "other": 1 }),
        ] {
            assert!(!has_fields(&schema(), &wrong), "{wrong}");
        }
    }
}
