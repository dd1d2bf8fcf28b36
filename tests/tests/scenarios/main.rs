//! Scenarios over the real binary: what users do, and what they must see.
//!
//! Each test names what it needs of the machine; where that is absent it is listed as ignored, with
//! the reason. Run one with `cargo test -p meseta-tests --test scenarios -- NAME` after
//! `cargo build`, since the daemons are the binary beside the tests.

mod access;
mod agent_endpoints;
mod bad_calls;
mod bad_flags;
mod bad_operations;
mod bad_requests;
mod browsers;
mod bursting;
mod clients;
mod command_line;
mod connections;
mod enforcement;
mod estimating;
mod every_endpoint;
mod execute;
mod executors;
mod faults;
mod hardening;
mod ill_plugins;
mod launching;
mod limits;
mod local;
mod logs;
mod metrics;
mod newcomer;
mod operator_grpc;
mod operators;
mod oversubscription;
mod pauses;
mod placement;
mod policies;
/// The tries of a hostile task, which this program makes when it is executed in a container.
#[path = "../../../isolators/tests/kernel/probe.rs"]
mod probe;
mod quota;
mod readers;
mod reservations;
mod reserved_use;
mod resizing;
mod restart;
mod returned_memory;
mod roles;
mod safe;
mod seed_reservations;
mod seeds;
mod shares;
mod shut;
mod starved;
mod task_exec;
mod under_load;
mod units;

use std::process::ExitCode;

use meseta_tests::trials::{self, Scenario, anywhere};

fn main() -> ExitCode {
    if let Some(code) = probe::run_if_requested() {
        return code;
    }
    trials::run(&[
        ("execute", execute::ALL),
        ("executors", executors::ALL),
        ("limits", limits::ALL),
        ("bursting", bursting::ALL),
        ("resizing", resizing::ALL),
        ("faults", faults::ALL),
        ("starved", starved::ALL),
        ("logs", logs::ALL),
        ("enforcement", enforcement::ALL),
        ("hardening", hardening::ALL),
        ("shares", shares::ALL),
        ("shut", shut::ALL),
        ("metrics", metrics::ALL),
        ("oversubscription", oversubscription::ALL),
        ("ill_plugins", ill_plugins::ALL),
        ("estimating", estimating::ALL),
        ("restart", restart::ALL),
        ("pauses", pauses::ALL),
        ("bad_flags", bad_flags::ALL),
        ("bad_calls", bad_calls::ALL),
        ("bad_operations", bad_operations::ALL),
        ("bad_requests", bad_requests::ALL),
        ("every_endpoint", every_endpoint::ALL),
        ("agent_endpoints", agent_endpoints::ALL),
        ("local", local::ALL),
        ("quota", quota::ALL),
        ("clients", clients::ALL),
        ("readers", readers::ALL),
        ("seeds", seeds::ALL),
        ("seed_reservations", seed_reservations::ALL),
        ("roles", roles::ALL),
        ("launching", launching::ALL),
        ("reservations", reservations::ALL),
        ("reserved_use", reserved_use::ALL),
        ("task_exec", task_exec::ALL),
        ("under_load", under_load::ALL),
        ("units", units::ALL),
        ("newcomer", newcomer::ALL),
        ("operators", operators::ALL),
        ("command_line", command_line::ALL),
        ("access", access::ALL),
        ("browsers", browsers::ALL),
        ("connections", connections::ALL),
        ("safe", safe::ALL),
        ("operator_grpc", operator_grpc::ALL),
        ("placement", placement::ALL),
        ("policies", policies::ALL),
        ("returned_memory", returned_memory::ALL),
    ])
}
