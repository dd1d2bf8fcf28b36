//! The only binary, `meseta`: reads the command line and calls a daemon or a verb.
//!
//! Invariant: this crate decides nothing about a cluster. Daemons are `meseta-master`, `meseta-agent` and `meseta-jobs`;
//! verbs use their public APIs alone, and `images` the store of `meseta-images`.

#![warn(clippy::print_stderr)]

mod daemon;
mod estimate;
mod exit_code;
mod first_process;
mod flags;
mod fleet;
mod local;
mod logging;
mod memory;
mod registry;
mod service_manager;
mod terminal;
mod verbs;

use std::process::ExitCode;

fn main() -> ExitCode {
    // The launcher is this same binary, run again from a sealed copy: it must take over before any thread exists.
    if let Some(code) = meseta_agent::run_launcher_if_requested() {
        return code;
    }
    // So is the process that unpacks a layer of an image.
    if let Some(code) = meseta_images::unpack::run_if_requested() {
        return code;
    }
    if let Some(code) = first_process::run_if_first() {
        return code;
    }
    let parsed = match flags::parse(std::env::args_os().collect()) {
        Ok(parsed) => parsed,
        Err(refusal) => return refusal.report(),
    };
    // Exit code 1 means that a plan changes something.
    let is_plan = matches!(parsed.verb, flags::Verb::Plan(_));
    let outcome = match parsed.verb {
        flags::Verb::Master(flags) => daemon::master(*flags, parsed.view),
        flags::Verb::Agent(flags) => daemon::agent(*flags, parsed.view),
        flags::Verb::Scheduler(flags) => daemon::scheduler(*flags),
        flags::Verb::Local(options) => local::run(&options),
        flags::Verb::Etcd(options) => local::etcd::run(&options),
        flags::Verb::Execute(options) => verbs::execute::run(*options),
        flags::Verb::Agents(options) => verbs::agents::run(&options).map(done),
        flags::Verb::Tasks(options) => verbs::tasks::run(&options).map(done),
        flags::Verb::Task(options) => verbs::task::run(&options).map(done),
        flags::Verb::Frameworks(options) => verbs::frameworks::run(&options).map(done),
        flags::Verb::Offers(options) => verbs::offers::run(&options).map(done),
        flags::Verb::Top(options) => verbs::top::run(&options),
        flags::Verb::Estimate(options) => estimate::run(&options).map(done),
        flags::Verb::Roles(options) => verbs::roles::run(&options).map(done),
        flags::Verb::Quota(options) => verbs::quota::run(&options).map(done),
        flags::Verb::Weights(options) => verbs::roles::weights(&options).map(done),
        flags::Verb::Reservations(options) => verbs::reservations::list(&options).map(done),
        flags::Verb::Reserve(options) => verbs::reservations::reserve(&options).map(done),
        flags::Verb::Unreserve(options) => verbs::reservations::unreserve(&options).map(done),
        flags::Verb::Volumes(options) => verbs::volumes::run(&options).map(done),
        flags::Verb::Drain(options) => verbs::nodes::drain(&options),
        flags::Verb::Deactivate(options) => verbs::nodes::deactivate(&options).map(done),
        flags::Verb::Reactivate(options) => verbs::nodes::reactivate(&options).map(done),
        flags::Verb::MarkGone(options) => verbs::nodes::mark_gone(&options).map(done),
        flags::Verb::Maintenance(options) => verbs::nodes::maintenance(&options).map(done),
        flags::Verb::Explain(options) => verbs::explain::run(&options).map(done),
        flags::Verb::Run(options) => verbs::job::run(&options),
        flags::Verb::Plan(options) => verbs::job::plan(&options),
        flags::Verb::Jobs(options) => verbs::job::list(&options).map(done),
        flags::Verb::Job(options) => verbs::job::one(&options),
        flags::Verb::Logs(options) => verbs::logs::run(&options).map(done),
        flags::Verb::Exec(options) => verbs::exec::run(&options),
        flags::Verb::Kill(options) => verbs::kill::run(&options).map(done),
        flags::Verb::Names(options) => verbs::names::run(&options).map(done),
        flags::Verb::Teardown(options) => verbs::teardown::run(&options).map(done),
        flags::Verb::Credential(options) => verbs::credential::run(&options).map(done),
        flags::Verb::Doctor(options) => verbs::doctor::run(&options),
        flags::Verb::Tls(options) => fleet::run(&options).map(done),
        flags::Verb::Registry(options) => registry::run(&options).map(done),
        flags::Verb::Images(options) => verbs::images::run(&options).map(done),
        flags::Verb::Man { dir } => flags::man(&dir),
        flags::Verb::Completions { shell } => Ok(flags::completions(shell)),
    };
    let code = outcome.unwrap_or_else(|error| {
        terminal::note!("meseta: {error:#}");
        match is_plan {
            true => ExitCode::from(verbs::job::PLAN_IMPOSSIBLE),
            false => exit_code::after(&error, parsed.further_files),
        }
    });
    terminal::finish(code)
}

/// Returns success for a verb without further results.
fn done((): ()) -> ExitCode {
    ExitCode::SUCCESS
}
