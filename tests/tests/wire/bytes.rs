//! Messages recorded from a genuine Mesos, in both encodings.
//!
//! Each line of `tests/golden/messages/*.jsonl` has a message's name, its JSON from the wire, and its binary form in
//! base64, which prost-reflect confirms. `MESETA_GOLDEN=write` writes missing binary forms.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use meseta_proto::media::MediaType;
use meseta_proto::mesos::v1::{agent, executor, master, scheduler};
use meseta_proto::{FILE_DESCRIPTOR_SET, WireMessage, json, media, protobuf};
use meseta_tests::recording;
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage};
use serde_json::{Value, json};

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        scheduler_events_match_byte_for_byte,
        executor_events_match_byte_for_byte,
        master_events_are_the_same_values,
        operator_answers_have_same_values,
        calls_are_read_without_loss,
        errors_have_same_words;
}

/// Both encodings of a message, read and written again.
struct RoundTrip {
    wire: Vec<u8>,
    text: String,
}

fn from_json<T: WireMessage + PartialEq + std::fmt::Debug>(text: &str) -> RoundTrip {
    let message: T = json::from_slice(text.as_bytes()).unwrap();
    let wire = protobuf::to_vec(&message);
    let again: T = protobuf::from_slice(&wire).unwrap();
    assert_eq!(again, message);
    let written = json::to_string(&message);
    let twice = json::to_string(&json::from_slice::<T>(written.as_bytes()).unwrap());
    assert_eq!(twice, written);
    RoundTrip {
        wire,
        text: written,
    }
}

fn from_wire<T: WireMessage>(wire: &[u8]) -> RoundTrip {
    let message: T = protobuf::from_slice(wire).unwrap();
    RoundTrip {
        wire: protobuf::to_vec(&message),
        text: json::to_string(&message),
    }
}

macro_rules! by_name {
    ($name:expr, $function:ident($($argument:expr),*)) => {
        match $name {
            "mesos.v1.scheduler.Call" => $function::<scheduler::Call>($($argument),*),
            "mesos.v1.scheduler.Event" => $function::<scheduler::Event>($($argument),*),
            "mesos.v1.executor.Call" => $function::<executor::Call>($($argument),*),
            "mesos.v1.executor.Event" => $function::<executor::Event>($($argument),*),
            "mesos.v1.agent.Call" => $function::<agent::Call>($($argument),*),
            "mesos.v1.agent.Response" => $function::<agent::Response>($($argument),*),
            "mesos.v1.master.Call" => $function::<master::Call>($($argument),*),
            "mesos.v1.master.Response" => $function::<master::Response>($($argument),*),
            "mesos.v1.master.Event" => $function::<master::Event>($($argument),*),
            other => panic!("no such message: {other}"),
        }
    };
}

/// Reads the same JSON by the canonical mapping, which has the same names as ours.
fn by_reflection(name: &str, text: &str) -> Vec<u8> {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap();
    let descriptor = pool.get_message_by_name(name).unwrap();
    let mut source = serde_json::Deserializer::from_str(text);
    let options = prost_reflect::DeserializeOptions::new().deny_unknown_fields(false);
    DynamicMessage::deserialize_with_options(descriptor, &mut source, &options)
        .unwrap()
        .encode_to_vec()
}

fn check(file: &str, same: impl Fn(&str, &str) -> bool) {
    let mut lines = recording::lines(file);
    for line in &mut lines {
        let (name, text) = (
            line["message"].as_str().unwrap(),
            line["text"].as_str().unwrap(),
        );
        let read = by_name!(name, from_json(text));
        assert!(same(text, &read.text), "{file}\n{text}\n{}", read.text);
        // Two encoders may order fields differently; decoded they are equal. A duration is an object in Mesos and a text in
        // the canonical mapping.
        if !text.contains("max_grace_period") {
            let vouched = by_name!(name, from_wire(&by_reflection(name, text)));
            assert_eq!(vouched.wire, read.wire, "{file}: {text}");
        }
        let Some(wire) = line["wire"].as_str() else {
            assert_eq!(
                std::env::var("MESETA_GOLDEN").as_deref(),
                Ok("write"),
                "{file}: no wire"
            );
            let wire = STANDARD.encode(&read.wire);
            *line = json!({"message": name, "text": text, "wire": wire});
            continue;
        };
        let wire = STANDARD.decode(wire).unwrap();
        assert_eq!(wire, read.wire, "{file}: {text}");
        let back = by_name!(name, from_wire(&wire));
        assert_eq!((back.wire, back.text), (wire, read.text));
    }
    if std::env::var("MESETA_GOLDEN").as_deref() == Ok("write") {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(recording::path(file), text).unwrap();
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Removes parts of Mesos answers that are written by hand, out of v0 messages: empty lists, and an agent's `checkpoint`,
/// which v1 does not have.
fn without_extras(value: Value) -> Value {
    match value {
        Value::Object(entries) => entries
            .into_iter()
            .filter(|(_, value)| value.as_array().is_none_or(|items| !items.is_empty()))
            .map(|(key, mut value)| {
                if key == "agent_info"
                    && let Some(entries) = value.as_object_mut()
                {
                    entries.remove("checkpoint");
                }
                (key, without_extras(value))
            })
            .collect(),
        Value::Array(items) => items.into_iter().map(without_extras).collect(),
        other => other,
    }
}

fn same_but_for_extras(given: &str, written: &str) -> bool {
    without_extras(parsed(given)) == parsed(written)
}

/// Returns the text with a uniform spelling of numbers: of two shortest spellings of one double, Mesos does not always
/// choose the nearer.
fn with_plain_numbers(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '"' => rest[1..].find('"').unwrap() + 2,
            '0'..='9' | '-' => rest.find([',', '}', ']']).unwrap(),
            other => other.len_utf8(),
        };
        let (token, after) = rest.split_at(end);
        match token.parse::<f64>() {
            Ok(number) if token.contains('.') => out.push_str(&format!("{number:?}")),
            _ => out.push_str(token),
        }
        rest = after;
    }
    out
}

fn same_to_the_letter(given: &str, written: &str) -> bool {
    assert!(
        !given.contains('\\'),
        "quotes are looked for, escapes are not"
    );
    with_plain_numbers(given) == with_plain_numbers(written)
}

fn scheduler_events_match_byte_for_byte() {
    check("messages/scheduler-events.jsonl", same_to_the_letter);
}

fn executor_events_match_byte_for_byte() {
    check("messages/executor-events.jsonl", same_to_the_letter);
}

fn master_events_are_the_same_values() {
    check("messages/master-events.jsonl", same_but_for_extras);
}

fn operator_answers_have_same_values() {
    check("messages/master-responses.jsonl", same_but_for_extras);
    check("messages/agent-responses.jsonl", same_but_for_extras);
}

/// Whether `whole` contains all of `part`, with numbers compared by value.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(key, value)| whole.get(key).is_some_and(|other| contains(other, value))),
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len()
                && whole
                    .iter()
                    .zip(part)
                    .all(|(whole, part)| contains(whole, part))
        }
        (Value::Number(whole), Value::Number(part)) => whole.as_f64() == part.as_f64(),
        _ => whole == part,
    }
}

fn calls_are_read_without_loss() {
    check("messages/calls.jsonl", |given, written| {
        let mut given = parsed(given);
        // A genuine Mesos drops this too.
        let fields = given.as_object_mut().unwrap();
        fields.retain(|_, value| !value.as_str().is_some_and(|name| name.contains("NOSUCH")));
        contains(&parsed(written), &given)
    });
}

fn read_error<T: WireMessage>(media: MediaType, body: &[u8]) -> String {
    media::decode::<T>(media, body)
        .map(|_| ())
        .unwrap_err()
        .to_string()
}

fn errors_have_same_words() {
    for line in recording::lines("messages/errors.jsonl") {
        let field = |name: &str| line[name].as_str().unwrap().to_owned();
        let media = MediaType::parse(&field("content_type")).unwrap();
        let body = field("body");
        let error = by_name!(
            field("message").as_str(),
            read_error(media, body.as_bytes())
        );
        assert_eq!(error, field("error"), "{body}");
    }
}
