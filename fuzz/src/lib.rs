//! The bodies of the fuzz targets and of the tests: functions of bytes, with seeds.
//!
//! A body panics when its input breaks a promise; refusing the input is fine.

pub mod access_inputs;
pub mod corpus;
pub mod master_core;
pub mod mutate;
pub mod parsers;
mod seeds;
pub mod specs;

use meseta_proto::mesos::v1::scheduler;

/// A function of bytes, with its target's name.
#[derive(Debug)]
pub struct Target {
    pub name: &'static str,
    pub body: fn(&[u8]),
    /// Inputs with a meaning for the body.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// The list of all targets.
pub const ALL: &[Target] = &[
    target("scheduler_call_json", parsers::scheduler_call_json, || {
        seeds::bytes(seeds::CALLS)
    }),
    target(
        "scheduler_call_protobuf",
        parsers::scheduler_call_protobuf,
        || seeds::encoded::<scheduler::Call>(seeds::CALLS),
    ),
    target("executor_call_json", parsers::executor_call_json, || {
        seeds::bytes(seeds::EXECUTOR_CALLS)
    }),
    target(
        "executor_call_protobuf",
        parsers::executor_call_protobuf,
        seeds::encoded_executor_calls,
    ),
    target(
        "operator_call_json",
        parsers::operator_call_json,
        seeds::operator_calls,
    ),
    target(
        "operator_call_protobuf",
        parsers::operator_call_protobuf,
        seeds::encoded_operator_calls,
    ),
    target(
        "frames_protobuf",
        parsers::frames_protobuf,
        seeds::encoded_frames,
    ),
    target("operator_bodies", parsers::operator_bodies, || {
        seeds::bytes(seeds::BODIES)
    }),
    target("resource_messages", parsers::resource_messages, || {
        seeds::bytes(seeds::RESOURCES)
    }),
    target("resources_text", parsers::resources_text, || {
        seeds::bytes(seeds::RESOURCE_TEXTS)
    }),
    target("plain_texts", parsers::plain_texts, || {
        seeds::bytes(seeds::TEXTS)
    }),
    target("record_io", parsers::record_io, || {
        seeds::bytes(seeds::RECORDS)
    }),
    target("headers", parsers::headers, || seeds::bytes(seeds::HEADERS)),
    target("acls", access_inputs::acls, || seeds::bytes(seeds::ACLS)),
    target(
        "basic_credentials",
        access_inputs::basic_credentials,
        || seeds::bytes(seeds::CLAIMS),
    ),
    target("rate_limits", access_inputs::rate_limits, || {
        seeds::bytes(seeds::RATES)
    }),
    target("module_specs", specs::module_specs, || {
        seeds::bytes(seeds::MODULE_SPECS)
    }),
    target("master_core", master_core::master_core, || {
        seeds::bytes(seeds::STEPS)
    }),
];

const fn target(name: &'static str, body: fn(&[u8]), seeds: fn() -> Vec<Vec<u8>>) -> Target {
    Target { name, body, seeds }
}
