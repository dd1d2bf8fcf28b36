//! Scenarios over the real binary: what users do, and what they must see.
//!
//! Each test names what it needs of the machine; where that is absent it is listed as ignored, with
//! the reason. Run one with `cargo test -p meseta-tests --test scenarios -- NAME` after
//! `cargo build`, since the daemons are the binary beside the tests.

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
/// The tries of a hostile task, which this program makes when it is executed in a container.
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
mod under_load;
mod units;

use std::process::ExitCode;

use meseta_tests::executor;
use meseta_tests::faults::filter;
use meseta_tests::trials::{self, anywhere};

/// Those that wait for most of their time, for three seconds to a minute each, and set no short time to what they see;
/// none of them has tasks that listen on ports, which those of another cluster on this host may be offered too.
const WAITING: &[&str] = &[
    "absences::agents_stopped_all_at_once_are_kept_and_a_single_one_is_unreachable_until_it_goes_on",
    "access::changed_credentials_and_rules_need_no_restart",
    "access::verbs_reach_an_agent_that_is_certified_by_name_alone",
    "bad_flags::a_master_that_answers_nothing",
    "broken_connections::an_order_that_is_cut_on_its_way_to_the_agent_runs_once_or_is_told_lost",
    "bursting::limits_that_others_change_are_set_again",
    "bursting::limits_whose_group_is_removed_are_told_and_others_held",
    "command_line::execute_uses_what_is_reserved_to_its_role_first",
    "connections::bodies_that_trickle_are_given_up",
    "execute::ends_a_task_at_its_timeout",
    "executors::pymesos_is_executor_and_scheduler",
    "executors::pymesos_reserves_and_its_executor_writes_on_a_volume",
    "failover::an_agent_leaves_a_leader_that_stands_still",
    "failover::followers_send_clients_to_the_leader",
    "faults::an_agent_killed_while_it_launches_loses_no_task",
    "full_disk::a_full_ext4_refuses_what_is_new_and_tells_of_all_that_ends",
    "full_disk::a_full_runtime_directory_fails_launches_and_keeps_every_end",
    "full_disk::an_ext4_without_inodes_refuses_what_is_new_and_tells_of_all_that_ends",
    "hostile_calls::ids_that_are_no_names_are_refused_and_reach_no_path_and_no_log_line",
    "ill_plugins::whatever_a_plug_in_does_offers_of_regular_resources_go_on",
    "job_examples::a_nightly_job_waits_for_its_time_and_runs_when_it_is_there",
    "leaders::an_agent_obeys_a_restored_registry_only_above_what_it_has_obeyed",
    "leaders::the_command_line_takes_a_list_and_follows_followers",
    "outside::a_disk_that_has_become_read_only_ends_no_task_and_is_named",
    "outside::a_launcher_that_is_stopped_is_replaced_and_keeps_no_agent_away",
    "outside::a_supervisor_that_is_stopped_holds_up_no_kill_and_tells_its_end_later",
    "outside::processes_that_others_move_out_of_their_groups_end_with_their_task",
    "overbearing::a_framework_that_went_away_has_its_time_and_no_more_over_a_restart_of_the_master",
    "oversubscription::the_load_controller_evicts_all_revocable_executors_and_nobody_else",
    "partitions::a_third_of_all_packets_and_a_slow_line_lose_no_agent_and_no_update",
    "partitions::an_agent_that_is_cut_off_is_unreachable_once_and_comes_back_with_its_task",
    "pauses::a_master_that_was_stopped_ends_no_framework_and_loses_no_agent",
    "placement::the_whitelist_is_read_again",
    "recovering::an_agent_that_cleans_up_kills_what_runs_ends_and_forgets_nothing",
    "resizing::a_limit_below_what_is_in_use_waits",
    "starved::an_agent_that_is_started_with_few_descriptors_beside_idle_clients_loses_no_task",
];

/// Groups whose tests judge how much a task gets, or how soon something happens: each of their tests has the machine alone.
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
        returned_memory
    ];
    trials::run(groups, WAITING, MEASURING)
}
