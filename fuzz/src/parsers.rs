//! Everything that turns bytes from outside into values: messages, streams, texts, headers.
//!
//! Each body says what must hold of what was understood: written and read again it is the same.

use std::str::FromStr;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, header};
use meseta_proto::convert::{self, Format};
use meseta_proto::mesos::v1::{self, agent, executor, maintenance, master, quota, scheduler};
use meseta_proto::{WireMessage, json, media, meseta, protobuf, recordio};
use meseta_resources::{
    AgentId, Attributes, ByteSize, ContainerId, FrameworkId, ResourceLimits, ResourceQuantities,
    Resources, Role, TaskId, format_duration, parse_duration,
};

/// Records longer than this are refused by the decoder.
const RECORD_MAX: usize = 1_024;

/// Every body with seeds.
pub const ALL: &[(&str, fn(&[u8]), &[&[u8]])] = &[
    ("scheduler_call_json", scheduler_call_json, CALLS),
    ("scheduler_call_protobuf", scheduler_call_protobuf, ENCODED),
    ("executor_call_json", executor_call_json, EXECUTOR_CALLS),
    ("executor_call_protobuf", executor_call_protobuf, ENCODED),
    ("operator_call_json", operator_call_json, OPERATOR_CALLS),
    ("operator_call_protobuf", operator_call_protobuf, ENCODED),
    ("frames_protobuf", frames_protobuf, ENCODED),
    ("operator_bodies", operator_bodies, BODIES),
    ("resource_messages", resource_messages, RESOURCES),
    ("resources_text", resources_text, RESOURCE_TEXTS),
    ("plain_texts", plain_texts, TEXTS),
    ("record_io", record_io, RECORDS),
    ("headers", headers, HEADERS),
];

const CALLS: &[&[u8]] = &[
    br#"{"type":"SUBSCRIBE","subscribe":{"framework_info":{"user":"u","name":"n","roles":["a/b"],"failover_timeout":1e3,"capabilities":[{"type":"MULTI_ROLE"}],"offer_filters":{"a":{"min_allocatable_resources":{"quantities":[{"quantities":{"cpus":{"value":1}}}]}}}},"suppressed_roles":["a/b"],"offer_constraints":{"role_constraints":{"a/b":{"groups":[{"attribute_constraints":[{"selector":{"attribute_name":"x"},"predicate":{"text_matches":{"regex":"a+"}}}]}]}}}}}"#,
    br#"{"framework_id":{"value":"f"},"type":"ACCEPT","accept":{"offer_ids":[{"value":"o"}],"filters":{"refuse_seconds":4294967295},"operations":[{"type":"LAUNCH","launch":{"task_infos":[{"name":"t","task_id":{"value":"t"},"agent_id":{"value":"s"},"resources":[{"name":"cpus","type":"SCALAR","scalar":{"value":0.1}},{"name":"ports","type":"RANGES","ranges":{"range":[{"begin":1,"end":18446744073709551615}]}}],"command":{"value":"true","environment":{"variables":[{"name":"A","value":"b"}]}},"data":"AAEC","labels":{"labels":[{"key":"k"}]}}]}}]}}"#,
    br#"{"framework_id":{"value":"f"},"type":"ACKNOWLEDGE","acknowledge":{"agent_id":{"value":"s"},"task_id":{"value":"t"},"uuid":"AAAAAAAAAAAAAAAAAAAAAA=="}}"#,
    br#"{"framework_id":{"value":"f"},"type":"RECONCILE","reconcile":{"tasks":[{"task_id":{"value":"t"},"agent_id":null}]},"accept":null,"unknown":[1,{"a":"\u00e9\ud83d\ude00"}]}"#,
];

const EXECUTOR_CALLS: &[&[u8]] = &[
    br#"{"type":"SUBSCRIBE","executor_id":{"value":"e"},"framework_id":{"value":"f"},"subscribe":{"unacknowledged_updates":[],"unacknowledged_tasks":[{"name":"t","task_id":{"value":"t"},"agent_id":{"value":"s"}}]}}"#,
    br#"{"type":"UPDATE","executor_id":{"value":"e"},"framework_id":{"value":"f"},"update":{"status":{"task_id":{"value":"t"},"state":"TASK_RUNNING","source":"SOURCE_EXECUTOR","timestamp":1.5e9,"uuid":"AAAAAAAAAAAAAAAAAAAAAA=="}}}"#,
];

const OPERATOR_CALLS: &[&[u8]] = &[
    br#"{"type":"GET_METRICS","get_metrics":{"timeout":{"nanoseconds":"1"}}}"#,
    br#"{"type":"UPDATE_QUOTA","update_quota":{"force":true,"quota_configs":[{"role":"r","guarantees":{"cpus":{"value":1}},"limits":{"cpus":{"value":2}}}]}}"#,
    br#"{"type":"LAUNCH_NESTED_CONTAINER","launch_nested_container":{"container_id":{"value":"a","parent":{"value":"b"}},"command":{"value":"c"}}}"#,
    br#"{"type":"CREATE_VOLUMES","create_volumes":{"agent_id":{"value":"s"},"volumes":[]}}"#,
];

const BODIES: &[&[u8]] = &[
    br#"{"role":"r","guarantee":[{"name":"cpus","type":"SCALAR","scalar":{"value":1}}],"force":true}"#,
    br#"[{"role":"r","weight":2.5}]"#,
    br#"{"windows":[{"machine_ids":[{"hostname":"h","ip":"1.2.3.4"}],"unavailability":{"start":{"nanoseconds":1},"duration":{"nanoseconds":2}}}]}"#,
    br#"[{"hostname":"h"},{"ip":"::1"}]"#,
];

const RESOURCES: &[&[u8]] = &[
    br#"[{"name":"cpus","type":"SCALAR","scalar":{"value":0.0004},"role":"r"},{"name":"disk","type":"SCALAR","scalar":{"value":9},"reservations":[{"type":"STATIC","role":"a"},{"type":"DYNAMIC","role":"a/b","principal":"p","labels":{"labels":[{"key":"k","value":"v"}]}}],"disk":{"persistence":{"id":"i","principal":"p"},"volume":{"container_path":"p","mode":"RW"},"source":{"type":"MOUNT","mount":{"root":"/m"}}},"shared":{}}]"#,
    br#"[{"name":"ports","type":"RANGES","ranges":{"range":[{"begin":3,"end":5},{"begin":1,"end":2}]},"allocation_info":{"role":"r"}},{"name":"s","type":"SET","set":{"item":["a","b"]}},{"name":"cpus","type":"SCALAR","scalar":{"value":1e18},"revocable":{}}]"#,
];

const RESOURCE_TEXTS: &[&[u8]] = &[
    b"cpus:4;mem:2048;cpus(ads):8.5;ports:[31000-32000,1-2];zones:{a,b}",
    b"disk(a/b):0.001;gpus:2",
    br#"[{"name":"cpus","type":"SCALAR","scalar":{"value":1}}]"#,
];

const TEXTS: &[&[u8]] = &[
    b"15secs",
    b"1.5mins",
    b"10GB",
    b"1024B",
    b"rack:abc;size:4.5;r:[1-3]",
    b"eng/dev/*",
    b"a.b.c",
    b"cpus:1;mem:0.5",
    b"0ns",
    b"9223372036secs",
];

const RECORDS: &[&[u8]] = &[
    b"5\nhello0\n3\nabc",
    b"20\n{\"type\":\"HEARTBEAT\"}",
    b"99999999999999999999\n",
    b"x\n",
];

const HEADERS: &[&[u8]] = &[
    b"application/json",
    b"application/x-protobuf;q=0.5, application/json;q=0.9, */*;q=0",
    b"text/html, application/*;q=1.000",
];

/// Small messages of several kinds, encoded; mutation makes others of them.
const ENCODED: &[&[u8]] = &[
    // A RECONCILE of one task; a KILL.
    b"\x0a\x03\x0a\x01f\x10\x09\x52\x09\x0a\x07\x0a\x03\x0a\x01t\x12\x00",
    b"\x0a\x03\x0a\x01f\x10\x06\x32\x05\x0a\x03\x0a\x01t",
    b"\x08\x01\x12\x0c\x0a\x0a\x0a\x01u\x12\x01n\x1a\x02\x0a\x00",
    b"\x08\x01",
    b"",
];

fn text_of<E: std::fmt::Display>(error: E) {
    assert!(!error.to_string().is_empty(), "an error says what is wrong");
}

/// JSON that was understood is the same after JSON and after protobuf.
fn json_message<T: WireMessage + PartialEq>(data: &[u8]) {
    match json::from_slice::<T>(data) {
        Ok(message) => {
            let written = json::to_vec(&message);
            let again: T = json::from_slice(&written).expect("what was written can be read");
            assert_eq!(json::to_vec(&again), written, "JSON and back");
            let encoded = protobuf::to_vec(&message);
            let again: T = protobuf::from_slice(&encoded).expect("what was encoded can be read");
            assert_eq!(protobuf::to_vec(&again), encoded, "protobuf and back");
        }
        Err(error) => text_of(error),
    }
}

/// Protobuf that was understood is the same after protobuf, and can be shown as JSON.
fn protobuf_message<T: WireMessage>(data: &[u8]) {
    match protobuf::from_slice::<T>(data) {
        Ok(message) => {
            let encoded = protobuf::to_vec(&message);
            let again: T = protobuf::from_slice(&encoded).expect("what was encoded can be read");
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

/// What agents and the master send each other.
pub fn frames_protobuf(data: &[u8]) {
    protobuf_message::<meseta::v1::AgentFrame>(data);
    protobuf_message::<meseta::v1::MasterFrame>(data);
}

/// The bodies of the older operator endpoints.
pub fn operator_bodies(data: &[u8]) {
    json_message::<quota::QuotaRequest>(data);
    json_message::<maintenance::Schedule>(data);
    let _refused = json::many_from_slice::<v1::WeightInfo>(data).map_err(text_of);
    let _refused = json::many_from_slice::<v1::MachineId>(data).map_err(text_of);
}

/// Resources survive both formats, and arithmetic gives back what it took.
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
    assert!((resources - resources).is_empty());
    let allocated = resources.unallocate().allocate(&Role::star());
    assert_eq!(allocated.unallocate(), resources.unallocate());
}

/// The texts that operators type, and the JSON that they may type instead.
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
        // Written with a limited number of digits.
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
    let _refused = ResourceLimits::from_str(text).map_err(text_of);
    let _refused = TaskId::new(text).map_err(text_of);
    let _refused = AgentId::new(text).map_err(text_of);
    let _refused = FrameworkId::new(text).map_err(text_of);
    let _refused = ContainerId::new(text).map_err(text_of);
}

/// The records of a stream do not depend on how it was cut into chunks.
pub fn record_io(data: &[u8]) {
    let whole = records(&[data]);
    let bytes: Vec<&[u8]> = data.chunks(1).collect();
    assert_eq!(whole, records(&bytes), "byte by byte");
    let thirds: Vec<&[u8]> = data.chunks(3).collect();
    assert_eq!(whole, records(&thirds), "three by three");
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

/// Media types and what is accepted.
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
