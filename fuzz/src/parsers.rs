//! All parsers of bytes from outside: messages, streams, texts, headers.
//!
//! Each body states a property of accepted input: written and read again it is the same.

use std::str::FromStr;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, header};
use meseta_proto::convert::{self, Format};
use meseta_proto::mesos::v1::{self, agent, executor, maintenance, master, quota, scheduler};
use meseta_proto::{WireMessage, json, media, meseta, protobuf, recordio};
use meseta_resources::{
    AgentId, Attributes, ByteSize, ContainerId, FrameworkId, ResourceQuantities, Resources, Role,
    TaskId, format_duration, parse_duration,
};

/// The decoder's limit on records.
const RECORD_MAX: usize = 1_024;

fn text_of<E: std::fmt::Display>(error: E) {
    assert!(!error.to_string().is_empty(), "an error names the mistake");
}

/// Accepted JSON is the same after JSON and after protobuf.
fn json_message<T: WireMessage + PartialEq>(data: &[u8]) {
    match json::from_slice::<T>(data) {
        Ok(message) => {
            let written = json::to_vec(&message);
            let again: T = json::from_slice(&written).expect("the written text can be read");
            assert_eq!(json::to_vec(&again), written, "JSON and back");
            let encoded = protobuf::to_vec(&message);
            let again: T = protobuf::from_slice(&encoded).expect("the encoded bytes can be read");
            assert_eq!(json::to_vec(&again), written, "by way of protobuf");
        }
        Err(error) => text_of(error),
    }
}

/// Accepted protobuf is the same after protobuf, and can be shown as JSON.
fn protobuf_message<T: WireMessage>(data: &[u8]) {
    match protobuf::from_slice::<T>(data) {
        Ok(message) => {
            let encoded = protobuf::to_vec(&message);
            let again: T = protobuf::from_slice(&encoded).expect("the encoded bytes can be read");
            assert_eq!(protobuf::to_vec(&again), encoded, "protobuf and back");
            let shown = json::to_vec(&message);
            assert!(std::str::from_utf8(&shown).is_ok(), "JSON is UTF-8");
        }
        Err(error) => text_of(error),
    }
}

pub fn scheduler_call_json(data: &[u8]) {
    json_message::<scheduler::Call>(data);
}

pub fn scheduler_call_protobuf(data: &[u8]) {
    protobuf_message::<scheduler::Call>(data);
}

pub fn executor_call_json(data: &[u8]) {
    json_message::<executor::Call>(data);
}

pub fn executor_call_protobuf(data: &[u8]) {
    protobuf_message::<executor::Call>(data);
}

/// The operator API of both daemons.
pub fn operator_call_json(data: &[u8]) {
    json_message::<master::Call>(data);
    json_message::<agent::Call>(data);
}

pub fn operator_call_protobuf(data: &[u8]) {
    protobuf_message::<master::Call>(data);
    protobuf_message::<agent::Call>(data);
}

/// Frames between agents and the master.
pub fn frames_protobuf(data: &[u8]) {
    protobuf_message::<meseta::v1::AgentFrame>(data);
    protobuf_message::<meseta::v1::MasterFrame>(data);
}

/// The bodies of the older operator endpoints.
pub fn operator_bodies(data: &[u8]) {
    json_message::<quota::QuotaRequest>(data);
    json_message::<maintenance::Schedule>(data);
    json_message::<maintenance::Window>(data);
    let _refused = json::many_from_slice::<v1::WeightInfo>(data).map_err(text_of);
    let _refused = json::many_from_slice::<v1::MachineId>(data).map_err(text_of);
}

/// Resources survive both formats, and subtraction reverses addition.
pub fn resource_messages(data: &[u8]) {
    let Ok(messages) = json::many_from_slice::<v1::Resource>(data) else {
        return;
    };
    let resources = match convert::resources(&messages) {
        Ok(resources) => resources,
        Err(error) => return text_of(error),
    };
    let written = convert::to_resources(&resources, Format::PostRefinement).expect("any resource");
    assert_eq!(convert::resources(&written).expect("our own"), resources);
    if let Ok(older) = convert::to_resources(&resources, Format::PreRefinement) {
        assert_eq!(convert::resources(&older).expect("our own"), resources);
    }
    sums(&resources);
}

fn sums(resources: &Resources) {
    assert!(resources.contains(resources));
    let same = resources.clone();
    assert!((resources - &same).is_empty());
    let allocated = resources.unallocate().allocate(&Role::star());
    assert_eq!(allocated.unallocate(), resources.unallocate());
}

/// The texts that operators type, and the JSON that they may use instead.
pub fn resources_text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match convert::parse_resources(text, &Role::star()) {
        Ok(resources) => sums(&resources),
        Err(error) => text_of(error),
    }
}

/// Durations, sizes, attributes, quantities and names.
pub fn plain_texts(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(duration) = parse_duration(text) {
        // The text has a limited number of digits.
        let again = parse_duration(&format_duration(duration)).expect("our own text");
        assert!(again.abs_diff(duration) <= duration / 1_000 + Duration::from_nanos(1));
    }
    if let Ok(size) = ByteSize::from_str(text) {
        assert_eq!(ByteSize::from_str(&size.to_string()), Ok(size));
    }
    if let Ok(role) = Role::new(text) {
        assert_eq!(role.as_str(), text);
        assert_eq!(Role::new(text), Ok(role));
    }
    let _refused = Attributes::from_str(text).map_err(text_of);
    let _refused = ResourceQuantities::from_str(text).map_err(text_of);
    let _refused = TaskId::new(text).map_err(text_of);
    let _refused = AgentId::new(text).map_err(text_of);
    let _refused = FrameworkId::new(text).map_err(text_of);
    let _refused = ContainerId::new(text).map_err(text_of);
}

/// The records of a stream do not depend on its division into chunks.
pub fn record_io(data: &[u8]) {
    // An error shows as much of the stream as has arrived.
    let outcome = |chunks: &[&[u8]]| {
        let (found, error) = records(chunks);
        (found, error.as_ref().map(std::mem::discriminant))
    };
    let whole = outcome(&[data]);
    let bytes: Vec<&[u8]> = data.chunks(1).collect();
    assert_eq!(whole, outcome(&bytes), "byte by byte");
    let thirds: Vec<&[u8]> = data.chunks(3).collect();
    assert_eq!(whole, outcome(&thirds), "three by three");
    let record = recordio::encode(data.get(..RECORD_MAX).unwrap_or(data));
    let (again, error) = records(&[&record]);
    assert_eq!((again.len(), error), (1, None), "our own records are whole");
}

fn records(chunks: &[&[u8]]) -> (Vec<bytes::Bytes>, Option<recordio::Error>) {
    let mut decoder = recordio::Decoder::new(RECORD_MAX);
    let mut found = Vec::new();
    for chunk in chunks {
        decoder.push(chunk);
        loop {
            match decoder.next_record() {
                Ok(Some(record)) => found.push(record),
                Ok(None) => break,
                Err(error) => return (found, Some(error)),
            }
        }
    }
    (found, decoder.finish().err())
}

/// Media types and `Accept` headers.
pub fn headers(data: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(data) else {
        return;
    };
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, value.clone());
    headers.insert(header::ACCEPT, value);
    let _refused = media::content_type(&headers, &media::MediaType::MESSAGES).map_err(text_of);
    let _refused = media::accept(&headers).map_err(text_of);
}
