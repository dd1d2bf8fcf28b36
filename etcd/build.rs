//! Compiles the messages and the clients of etcd's services, and the servers for tests. No `protoc` needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["etcd.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_server(std::env::var_os("CARGO_FEATURE_TESTING").is_some())
        .bytes(".")
        .compile_fds(descriptors)?;
    Ok(())
}
