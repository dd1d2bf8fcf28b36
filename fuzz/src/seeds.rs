//! Meaningful inputs, from which variations and libFuzzer begin. They include findings of libFuzzer.

use meseta_proto::mesos::v1::{agent, executor, master};
use meseta_proto::{WireMessage, json, meseta, protobuf};

pub(crate) fn bytes(all: &[&[u8]]) -> Vec<Vec<u8>> {
    all.iter().map(|one| one.to_vec()).collect()
}

/// The seed messages encoded in protobuf.
pub(crate) fn encoded<T: WireMessage>(all: &[&[u8]]) -> Vec<Vec<u8>> {
    let encode = |one: &&[u8]| {
        let message = json::from_slice::<T>(one).expect("a seed is understood");
        protobuf::to_vec(&message)
    };
    all.iter().map(encode).collect()
}

pub(crate) fn encoded_operator_calls() -> Vec<Vec<u8>> {
    let mut all = encoded::<master::Call>(OPERATOR_CALLS);
    all.extend(encoded::<agent::Call>(AGENT_CALLS));
    all
}

pub(crate) fn operator_calls() -> Vec<Vec<u8>> {
    bytes(&[OPERATOR_CALLS, AGENT_CALLS].concat())
}

pub(crate) fn encoded_frames() -> Vec<Vec<u8>> {
    let mut all = encoded::<meseta::v1::AgentFrame>(AGENT_FRAMES);
    all.extend(encoded::<meseta::v1::MasterFrame>(MASTER_FRAMES));
    all.push(OPERATION_IN_TWO_STATES.to_vec());
    all
}

pub(crate) fn encoded_executor_calls() -> Vec<Vec<u8>> {
    let mut all = encoded::<executor::Call>(EXECUTOR_CALLS);
    all.push(TASK_IN_TWO_STATES.to_vec());
    all
}

/// A finding of libFuzzer: a required enum that is known the first time and unknown the second time.
const TASK_IN_TWO_STATES: &[u8] =
    b"\x0a\x03\x0a\x01e\x12\x03\x0a\x01f\x18\x02\x2a\x0b\x0a\x09\x0a\x03\x0a\x01t\x10\x01\x10\x3d";
const OPERATION_IN_TWO_STATES: &[u8] = b"J\x22\x0a\x03\x0a\x01f\x12\x07\x10\x02\x1a\x01o\x103\x1a\x12\x0a\x10\x00\x00\x00\x00\x00\x00\x01s:\x06\x1a\x04\x07rue";

pub(crate) const CALLS: &[&[u8]] = &[
    br#"{"type":"SUBSCRIBE","subscribe":{"framework_info":{"user":"u","name":"n","roles":["a/b"],"failover_timeout":1e3,"capabilities":[{"type":"MULTI_ROLE"}],"offer_filters":{"a":{"min_allocatable_resources":{"quantities":[{"quantities":{"cpus":{"value":1}}}]}}}},"suppressed_roles":["a/b"],"offer_constraints":{"role_constraints":{"a/b":{"groups":[{"attribute_constraints":[{"selector":{"attribute_name":"x"},"predicate":{"text_matches":{"regex":"a+"}}}]}]}}}}}"#,
    br#"{"framework_id":{"value":"f"},"type":"ACCEPT","accept":{"offer_ids":[{"value":"o"}],"filters":{"refuse_seconds":4294967295},"operations":[{"type":"LAUNCH","launch":{"task_infos":[{"name":"t","task_id":{"value":"t"},"agent_id":{"value":"s"},"resources":[{"name":"cpus","type":"SCALAR","scalar":{"value":0.1}},{"name":"ports","type":"RANGES","ranges":{"range":[{"begin":1,"end":18446744073709551615}]}}],"command":{"value":"true","environment":{"variables":[{"name":"A","value":"b"}]}},"data":"AAEC","labels":{"labels":[{"key":"k"}]}}]}}]}}"#,
    br#"{"framework_id":{"value":"f"},"type":"ACKNOWLEDGE","acknowledge":{"agent_id":{"value":"s"},"task_id":{"value":"t"},"uuid":"AAAAAAAAAAAAAAAAAAAAAA=="}}"#,
    br#"{"framework_id":{"value":"f"},"type":"RECONCILE","reconcile":{"tasks":[{"task_id":{"value":"t"},"agent_id":null}]},"accept":null,"unknown":[1,{"a":"\u00e9\ud83d\ude00"}]}"#,
];

pub(crate) const EXECUTOR_CALLS: &[&[u8]] = &[
    br#"{"type":"SUBSCRIBE","executor_id":{"value":"e"},"framework_id":{"value":"f"},"subscribe":{"unacknowledged_updates":[],"unacknowledged_tasks":[{"name":"t","task_id":{"value":"t"},"agent_id":{"value":"s"}}]}}"#,
    br#"{"type":"UPDATE","executor_id":{"value":"e"},"framework_id":{"value":"f"},"update":{"status":{"task_id":{"value":"t"},"state":"TASK_RUNNING","source":"SOURCE_EXECUTOR","timestamp":1.5e9,"uuid":"AAAAAAAAAAAAAAAAAAAAAA=="}}}"#,
];

const OPERATOR_CALLS: &[&[u8]] = &[
    br#"{"type":"GET_METRICS","get_metrics":{"timeout":{"nanoseconds":"1"}}}"#,
    br#"{"type":"UPDATE_QUOTA","update_quota":{"force":true,"quota_configs":[{"role":"r","guarantees":{"cpus":{"value":1}},"limits":{"cpus":{"value":2}}}]}}"#,
    br#"{"type":"UPDATE_QUOTA","update_quota":{"quota_configs":[{"role":"r","guarantees":{"cpus":{"value":-0}}}]}}"#,
    br#"{"type":"CREATE_VOLUMES","create_volumes":{"agent_id":{"value":"s"},"volumes":[]}}"#,
];

const AGENT_CALLS: &[&[u8]] = &[
    br#"{"type":"LAUNCH_NESTED_CONTAINER","launch_nested_container":{"container_id":{"value":"a","parent":{"value":"b"}},"command":{"value":"c"}}}"#,
];

pub(crate) const BODIES: &[&[u8]] = &[
    br#"{"role":"r","guarantee":[{"name":"cpus","type":"SCALAR","scalar":{"value":1}}],"force":true}"#,
    br#"[{"role":"r","weight":2.5}]"#,
    br#"{"windows":[{"machine_ids":[{"hostname":"h","ip":"1.2.3.4"}],"unavailability":{"start":{"nanoseconds":1},"duration":{"nanoseconds":2}}}]}"#,
    br#"[{"hostname":"h"},{"ip":"::1"}]"#,
];

pub(crate) const RESOURCES: &[&[u8]] = &[
    br#"[{"name":"cpus","type":"SCALAR","scalar":{"value":0.0004},"role":"r"},{"name":"disk","type":"SCALAR","scalar":{"value":9},"reservations":[{"type":"STATIC","role":"a"},{"type":"DYNAMIC","role":"a/b","principal":"p","labels":{"labels":[{"key":"k","value":"v"}]}}],"disk":{"persistence":{"id":"i","principal":"p"},"volume":{"container_path":"p","mode":"RW"},"source":{"type":"MOUNT","mount":{"root":"/m"}}},"shared":{}}]"#,
    br#"[{"name":"ports","type":"RANGES","ranges":{"range":[{"begin":3,"end":5},{"begin":1,"end":2}]},"allocation_info":{"role":"r"}},{"name":"s","type":"SET","set":{"item":["a","b"]}},{"name":"cpus","type":"SCALAR","scalar":{"value":1e18},"revocable":{}}]"#,
    br#"[{"name":"cpus","type":"SCALAR","scalar":{"value":1},"reservations":[{"type":"STATIC","role":"a","principal":"p"}]}]"#,
];

pub(crate) const RESOURCE_TEXTS: &[&[u8]] = &[
    b"cpus:4;mem:2048;cpus(ads):8.5;ports:[31000-32000,1-2];zones:{a,b}",
    b"disk(a/b):0.001;gpus:2",
    br#"[{"name":"cpus","type":"SCALAR","scalar":{"value":1}}]"#,
];

pub(crate) const TEXTS: &[&[u8]] = &[
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

pub(crate) const RECORDS: &[&[u8]] = &[
    b"5\nhello0\n3\nabc",
    b"20\n{\"type\":\"HEARTBEAT\"}",
    b"99999999999999999999\n",
    b"x\n",
    b"20\n{\"tEype\":\nhello0\nabc}2",
];

pub(crate) const HEADERS: &[&[u8]] = &[
    b"application/json",
    b"application/x-protobuf;q=0.5, application/json;q=0.9, */*;q=0",
    b"text/html, application/*;q=1.000",
];

pub(crate) const ACLS: &[&[u8]] = &[
    br#"{"permissive":false,"register_frameworks":[{"principals":{"values":["a"]},"roles":{"values":["r","a/%"]}}]}"#,
    br#"{"run_tasks":[{"principals":{"type":"ANY"},"users":{"type":"NONE"}}],"teardown_frameworks":[]}"#,
];

pub(crate) const CLAIMS: &[&[u8]] = &[
    b"Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==",
    b"Basic Tm9uZTpOb25l",
    b"$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$aGFzaA",
];

pub(crate) const RATES: &[&[u8]] = &[
    br#"{"limits":[{"principal":"a","qps":5.5,"capacity":10},{"principal":"b"}],"aggregate_default_qps":2}"#,
];

pub(crate) const MODULE_SPECS: &[&[u8]] = &[
    b"noop",
    b"fixed",
    b"threshold",
    b"load",
    b"unix:///path.sock",
    b"http://host:5000",
    b"slack",
    b"max(fixed,slack)",
    b"((((((((",
];

pub(crate) const STEPS: &[&[u8]] = &[
    // Agents and frameworks register, tasks run and end, and calls acknowledge, reconcile and kill them.
    b"\x00\x00\x01\x00\x04\x00\x00\x01\x02\x05\x00\x01\x01\x06\x00\x01\x01\x05\x00\x01\x02\x06\x00\x01\x02\x07\x00",
    b"\x00\x00\x00\x01\x01\x00\x01\x01\x04\x00\x00\x05\x04\x01\x01\x06\x02\x00\x03\x00\x08\x05\x0c\x40\x03\x00\x02\x00",
    b"\x00\x00\x01\x00\x04\x00\x00\x03\x0b\x00\x0c\x02\x0b\x01\x0d\x00\x01\x0b\x06\x0c\x10\x0b\x07\x09\x00",
    // A REVIVE, a RECONCILE and nonsense, encoded.
    b"\x00\x00\x01\x00\x0e\x00\x09\x0a\x03\x0a\x01f\x10\x05\x2a\x00\x0e\x00\x0f\x0a\x03\x0a\x01f\x10\x09\x52\x07\x0a\x05\x0a\x03\x0a\x01t\x0f\x00\x05\xff\xff\xff\xff\xff",
];

const AGENT_FRAMES: &[&[u8]] = &[
    br#"{"register":{"agent_info":{"hostname":"h","port":5051,"resources":[{"name":"cpus","type":"SCALAR","scalar":{"value":4}}],"attributes":[{"name":"rack","type":"TEXT","text":{"value":"a"}}],"domain":{"fault_domain":{"region":{"name":"r"},"zone":{"name":"z"}}}},"version":"0.1.0","capabilities":[{"type":"MULTI_ROLE"}],"resource_version_uuid":"AAAAAAAAAAAAAAAAAAAAAA=="}}"#,
    br#"{"reregister":{"register":{"agent_info":{"hostname":"h","id":{"value":"m-S0"}},"version":"0.1.0"},"tasks":[{"name":"t","task_id":{"value":"t"},"framework_id":{"value":"f"},"agent_id":{"value":"m-S0"},"state":"TASK_RUNNING","resources":[{"name":"cpus","type":"SCALAR","scalar":{"value":1},"allocation_info":{"role":"a"}}]}],"frameworks":[{"user":"u","name":"n","id":{"value":"f"},"roles":["a"]}],"operations":[]}}"#,
    br#"{"status_update":{"framework_id":{"value":"f"},"status":{"task_id":{"value":"t"},"state":"TASK_FAILED","uuid":"AAAAAAAAAAAAAAAAAAAAAA==","data":"AA==","labels":{"labels":[{"key":"k"}]}},"latest_state":"TASK_FAILED"}}"#,
    br#"{"operation_update":{"framework_id":{"value":"f"},"status":{"operation_id":{"value":"o"},"state":"OPERATION_FINISHED","converted_resources":[]},"operation_uuid":{"value":"AAAAAAAAAAAAAAAAAAAAAA=="}}}"#,
    br#"{"executor_exited":{"framework_id":{"value":"f"},"executor_id":{"value":"e"},"status":9}}"#,
];

const MASTER_FRAMES: &[&[u8]] = &[
    br#"{"epoch":1,"run_task":{"framework":{"user":"u","name":"n"},"task":{"name":"t","task_id":{"value":"t"},"agent_id":{"value":"s"},"command":{"value":"true"},"health_check":{"type":"COMMAND","command":{"value":"true"}}},"launch_executor":false,"accepted_time":1.5}}"#,
    br#"{"epoch":2,"apply_operation":{"operation":{"type":"RESERVE","reserve":{"resources":[{"name":"cpus","type":"SCALAR","scalar":{"value":1},"reservations":[{"type":"DYNAMIC","role":"a"}]}]}},"operation_uuid":{"value":"AAAAAAAAAAAAAAAAAAAAAA=="}}}"#,
    br#"{"epoch":18446744073709551615,"drain":{"config":{"max_grace_period":{"nanoseconds":-1},"mark_gone":true}}}"#,
];
