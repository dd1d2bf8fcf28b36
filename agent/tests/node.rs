//! The whole agent as a process, on the real kernel, against a simple master.
//!
//! This binary is also the agent under test (`node agent --flags`) and its launcher. It therefore has its own `main`.
//! Tests that need root are marked, and are skipped without root.

/// Tests by the names of their functions; tests that need root are marked.
macro_rules! tests {
    (@one root $name:ident) => { (stringify!($name), true, $name) };
    (@one $name:ident) => { (stringify!($name), false, $name) };
    ($($first:ident $(($second:ident))?),+ $(,)?) => { &[$(tests!(@one $first $($second)?)),+] };
}

#[path = "node/access.rs"]
mod access;
#[path = "node/api.rs"]
mod api;
#[path = "node/checks.rs"]
mod checks;
#[path = "node/executor.rs"]
mod executor;
#[path = "node/executors.rs"]
mod executors;
#[path = "node/floods.rs"]
mod floods;
#[path = "node/harness.rs"]
mod harness;
#[path = "node/intruders.rs"]
mod intruders;
#[path = "node/nested.rs"]
mod nested;
#[path = "node/tasks.rs"]
mod tasks;
#[path = "node/tenants.rs"]
mod tenants;
#[path = "node/trouble.rs"]
mod trouble;
#[path = "node/volumes.rs"]
mod volumes;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// The test's name, whether it needs root, and its function.
type Test = (&'static str, bool, fn());

fn main() -> ExitCode {
    if let Some(code) = meseta_agent::run_launcher_if_requested() {
        return code;
    }
    if std::env::args_os()
        .nth(1)
        .is_some_and(|arg| arg == "executor")
    {
        return executor::executor_main();
    }
    let mut args = std::env::args_os();
    if std::env::args_os().nth(1).is_some_and(|arg| arg == "call") {
        return intruders::call_main(args.skip(2));
    }
    if args.nth(1).is_some_and(|arg| arg == "agent") {
        return harness::agent_main(args);
    }
    meseta_tests::daemon::keep_umask_for_daemons();
    let lacks_root = meseta_tests::unless_root().is_some();
    let mut trials = Vec::new();
    let all = [
        tasks::TESTS,
        trouble::TESTS,
        access::TESTS,
        api::TESTS,
        executors::TESTS,
        checks::TESTS,
        intruders::TESTS,
        floods::TESTS,
        nested::TESTS,
        volumes::TESTS,
        tenants::TESTS,
    ];
    for (name, needs_root, test) in all.into_iter().flatten() {
        let trial = Trial::test(*name, || {
            test();
            Ok(())
        });
        trials.push(trial.with_ignored_flag(*needs_root && lacks_root));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
