//! Compiles `proto/` into Rust: types, gRPC, JSON in the Mesos dialect. No `protoc` needed.

mod json;
mod names;
mod schema;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use prost::Message as _;
use prost_types::DescriptorProto;
use prost_types::field_descriptor_proto::Type;

/// The root files: their imports are compiled with them.
const ROOTS: &[&str] = &[
    "mesos/v1/scheduler/scheduler.proto",
    "mesos/v1/executor/executor.proto",
    "mesos/v1/agent/agent.proto",
    "mesos/v1/master/master.proto",
    "meseta/v1/oversubscription.proto",
    "meseta/v1/operator.proto",
    "meseta/v1/registry.proto",
    "meseta/v1/scheduler.proto",
];

/// Rare and large submessages of messages that exist by the hundred thousand.
const BOXED: &[&str] = &[
    ".mesos.v1.Resource.disk",
    ".mesos.v1.TaskInfo.executor",
    ".mesos.v1.TaskInfo.container",
    ".mesos.v1.TaskInfo.health_check",
    ".mesos.v1.TaskInfo.check",
    ".mesos.v1.Task.container",
    ".mesos.v1.Task.health_check",
    ".mesos.v1.ExecutorInfo.container",
];

/// Submessages that stay encoded in Rust: there are very many, and their readers decode only the needed parts of each.
const ENCODED: &[(&str, &str)] = &[("Reregister", "tasks"), ("ReregisterPart", "tasks")];

/// Changes a field to bytes; on the wire a message and its bytes look the same.
fn leave_encoded(message: &mut DescriptorProto) {
    for field in &mut message.field {
        if ENCODED.contains(&(message.name.as_deref().unwrap_or_default(), field.name())) {
            field.set_type(Type::Bytes);
            field.type_name = None;
        }
    }
}

fn undeprecate(message: &mut DescriptorProto) {
    for field in &mut message.field {
        if let Some(options) = &mut field.options {
            options.deprecated = None;
        }
    }
    for value in message.enum_type.iter_mut().flat_map(|all| &mut all.value) {
        if let Some(options) = &mut value.options {
            options.deprecated = None;
        }
    }
    message.nested_type.iter_mut().for_each(undeprecate);
}

#[expect(clippy::print_stdout, reason = "the way to speak to cargo")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed=build");
    let out_dir = PathBuf::from(std::env::var("OUT_DIR")?);
    let mut descriptors = protox::compile(ROOTS, [Path::new("proto")])?;

    fs::write(out_dir.join("descriptors.bin"), descriptors.encode_to_vec())?;
    let types = schema::Types::collect(&descriptors)?;
    fs::write(out_dir.join("schema.rs"), schema::generate(&types))?;
    fs::write(out_dir.join("json.rs"), json::generate(&types)?)?;

    for file in &mut descriptors.file {
        if file.package() == "meseta.v1" {
            file.message_type.iter_mut().for_each(leave_encoded);
        }
    }

    // Deprecation decides what JSON shows. In Rust it would only be noise: old clients use the deprecated fields, which are still
    // served.
    for file in &mut descriptors.file {
        file.message_type.iter_mut().for_each(undeprecate);
    }
    let mut builder = tonic_prost_build::configure()
        .out_dir(&out_dir)
        .btree_map(".")
        // The generated `connect` constructor would collide with the rpc `Connect`; clients are made from a channel.
        .build_transport(false)
        .codec_path("crate::grpc::Codec")
        .compile_well_known_types(true)
        .include_file("modules.rs");
    for path in BOXED {
        builder = builder.boxed(path);
    }
    builder.compile_fds(descriptors)?;
    Ok(())
}
