//! Scenarios over the real binary: the actions of users, and the required results.
//!
//! Each test declares its needs of the machine; without these it is listed as ignored, with the reason. Run one with `cargo
//! test -p meseta-tests --test scenarios -- NAME` after `cargo build`, since the daemons are the binary beside the tests.

mod absences;
mod access;
mod agent_endpoints;
mod agent_faults;
mod bad_flags;
mod broken_connections;
mod browsers;
mod bursting;
mod clients;
mod clocks;
mod command_line;
mod connections;
mod doctor;
mod enforcement;
mod estimating;
mod every_endpoint;
mod execute;
mod executors;
mod failover;
mod faults;
mod full_disk;
mod hardening;
mod hostile_calls;
mod hostile_peers;
mod hung_disk;
mod ill_plugins;
mod ipv6_alone;
mod job_examples;
mod job_failures;
mod job_stores;
mod jobs;
mod launching;
mod leaders;
mod limits;
mod local;
mod logs;
mod master_kills;
mod metrics;
mod newcomer;
mod odd_tasks;
mod operator_grpc;
mod outside;
mod overbearing;
mod oversubscription;
mod partitions;
mod pauses;
mod placement;
mod policies;
mod power_cuts;
/// The attacks of a hostile task, made by this program inside a container.
#[expect(dead_code, reason = "the tests of the isolators use the rest")]
#[path = "../../../isolators/tests/kernel/probe.rs"]
mod probe;
mod quota;
mod recovering;
mod reservations;
mod resizing;
mod restart;
mod returned_memory;
mod roles;
mod safe;
mod seed_reservations;
mod seeds;
mod shut;
mod starved;
mod third_attack;
mod under_load;
mod units;

use std::process::ExitCode;

use meseta_tests::executor;
use meseta_tests::faults::filter;
use meseta_tests::trials::{self, anywhere};

/// Groups with tests that measure a task's share, or a delay: each of their tests has the machine alone.
const MEASURING: &[&str] = &[
    "bursting",
    "connections",
    "enforcement",
    "estimating",
    "hostile_peers",
    "limits",
    "metrics",
    "odd_tasks",
    "overbearing",
    "oversubscription",
    "resizing",
    "returned_memory",
];

/// Tests of those groups that mostly wait and judge neither time nor load.
const WAITING: &[&str] = &[
    "bursting::changed_limits_are_restored",
    "bursting::limits_of_removed_group_are_reported",
    "connections::trickling_bodies_are_closed",
    "overbearing::failover_timeout_survives_master_restart",
    "oversubscription::load_controller_evicts_revocable_executors",
    "resizing::limit_below_usage_waits",
];

fn main() -> ExitCode {
    if let Some(code) = probe::run_if_requested()
        .or_else(filter::run_if_requested)
        .or_else(executor::run_if_requested)
    {
        return code;
    }
    let groups = meseta_tests::groups![
        absences,
        execute,
        executors,
        limits,
        bursting,
        resizing,
        faults,
        full_disk,
        agent_faults,
        power_cuts,
        master_kills,
        starved,
        outside,
        odd_tasks,
        overbearing,
        broken_connections,
        partitions,
        hostile_peers,
        hung_disk,
        hostile_calls,
        recovering,
        clocks,
        logs,
        doctor,
        enforcement,
        hardening,
        shut,
        metrics,
        oversubscription,
        ill_plugins,
        estimating,
        restart,
        failover,
        jobs,
        job_examples,
        job_failures,
        job_stores,
        ipv6_alone,
        leaders,
        pauses,
        bad_flags,
        every_endpoint,
        agent_endpoints,
        local,
        quota,
        clients,
        seeds,
        seed_reservations,
        roles,
        launching,
        reservations,
        under_load,
        units,
        newcomer,
        command_line,
        access,
        browsers,
        connections,
        safe,
        operator_grpc,
        placement,
        policies,
        returned_memory,
        third_attack
    ];
    trials::run(groups, MEASURING, WAITING)
}
