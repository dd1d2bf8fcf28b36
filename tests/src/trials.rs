//! Tests that say what they need of the machine: where that is absent they are listed as ignored, with the reason.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::{Missing, daemon};

/// A test: its name, what it needs of the machine, what it does.
pub type Scenario = (&'static str, fn() -> Missing, fn());

/// The tests of a module: what they need of the machine, and the functions, after which they are named; `name = body`
/// gives another body.
#[macro_export]
macro_rules! scenarios {
    ($($need:path: $($test:path $(= $body:expr)?),+;)+) => {
        pub(crate) const ALL: &[$crate::trials::Scenario] =
            &[$($((stringify!($test), $need, $crate::scenarios!(@body $test $(= $body)?))),+),+];
    };
    (@body $test:path) => { $test };
    (@body $test:path = $body:expr) => { $body };
}

/// Modules of tests, as groups of their names.
#[macro_export]
macro_rules! groups {
    ($($($module:ident)::+),+ $(,)?) => {
        &[$((stringify!($($module)::+), $($module)::+::ALL)),+]
    };
}

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

fn trial(group: &str, (path, missing, body): Scenario) -> Trial {
    let name = path.rsplit("::").next().unwrap_or(path);
    let name = format!("{group}::{name}").replace(' ', "");
    Trial::ignorable_test(name, move || match missing() {
        Some(reason) => Ok::<_, Failed>(Completion::ignored_with(format!("not run: {reason}"))),
        None => {
            body();
            Ok(Completion::Completed)
        }
    })
}
