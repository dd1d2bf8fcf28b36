//! Tests that say what they need of the machine: where that is absent they are listed as ignored, with the reason.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::{Missing, daemon};

/// A test: its name, what it needs of the machine, what it does.
pub type Scenario = (&'static str, fn() -> Missing, fn());

/// Needs nothing in particular of the machine.
pub fn anywhere() -> Missing {
    None
}

/// Runs what the command line names of these groups, each test as `GROUP::NAME`.
pub fn run(groups: &[(&str, &[Scenario])]) -> ExitCode {
    daemon::keep_umask_for_daemons();
    let mut arguments = Arguments::from_args();
    // One at a time: what a limit does can only be judged when nothing else wants the machine.
    arguments.test_threads = arguments.test_threads.or(Some(1));
    let trials = groups
        .iter()
        .flat_map(|(group, all)| all.iter().map(|scenario| trial(group, *scenario)))
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(group: &str, (name, missing, body): Scenario) -> Trial {
    Trial::ignorable_test(format!("{group}::{name}"), move || match missing() {
        Some(reason) => Ok::<_, Failed>(Completion::ignored_with(format!("not run: {reason}"))),
        None => {
            body();
            Ok(Completion::Completed)
        }
    })
}
