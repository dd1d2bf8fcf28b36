//! Tests that declare their needs of the machine: without these they are listed as ignored, with the reason.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::{Missing, daemon, network};

/// The number of tests in parallel, where each has its own network. Most tests wait most of the time.
const AT_ONCE: usize = 5;

/// A test: its name, its needs of the machine, its function.
pub type Scenario = (&'static str, fn() -> Missing, fn());

/// Defines the tests of a module: their needs of the machine, and the functions, which give the names; `name = body` sets
/// another body.
#[macro_export]
macro_rules! scenarios {
    ($($need:path: $($test:path $(= $body:expr)?),+;)+) => {
        pub(crate) const ALL: &[$crate::trials::Scenario] =
            &[$($((stringify!($test), $need, $crate::scenarios!(@body $test $(= $body)?))),+),+];
    };
    (@body $test:path) => { $test };
    (@body $test:path = $body:expr) => { $body };
}

/// Modules of tests as groups of test names.
#[macro_export]
macro_rules! groups {
    ($($($module:ident)::+),+ $(,)?) => {
        &[$((stringify!($($module)::+), $($module)::+::ALL)),+]
    };
}

/// Returns no reason: a test for every machine.
pub fn anywhere() -> Missing {
    None
}

/// Runs the tests that the command line names, each as `GROUP::NAME`: first some at once, where each can have a network of
/// its own; then those of the groups `measuring`, except the tests `waiting`, one at a time, since a limit can be judged
/// only on an idle machine.
///
/// # Panics
///
/// A name in `measuring` or `waiting` is no group or test.
pub fn run(groups: &[(&str, &[Scenario])], measuring: &[&str], waiting: &[&str]) -> ExitCode {
    daemon::keep_umask_for_daemons();
    for name in measuring {
        let known = groups.iter().any(|(group, _)| group == name);
        assert!(known, "{name} is the name of a group");
    }
    let (mut at_once, mut alone, mut found) = (vec![], vec![], 0);
    for (group, scenarios) in groups {
        for scenario in *scenarios {
            let trial = trial(group, *scenario);
            let is_waiting = waiting.contains(&trial.name());
            found += usize::from(is_waiting);
            if measuring.contains(group) && !is_waiting {
                alone.push(trial);
            } else {
                at_once.push(trial);
            }
        }
    }
    assert_eq!(
        found,
        waiting.len(),
        "each of {waiting:?} is the name of a test"
    );
    let threads = if network::can_be_alone() { AT_ONCE } else { 1 };
    let (at_once, alone) = (run_with(at_once, threads), run_with(alone, 1));
    if at_once && alone {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(101)
    }
}

/// Runs the tests that the command line names, and returns whether all succeeded; the command line may set another number
/// of threads.
fn run_with(trials: Vec<Trial>, threads: usize) -> bool {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(threads));
    let named = |trial: &Trial| {
        let matches = |text: &String| match arguments.exact {
            true => trial.name() == text,
            false => trial.name().contains(text.as_str()),
        };
        arguments.filter.as_ref().is_none_or(matches)
    };
    trials.iter().all(|trial| !named(trial)) || !libtest_mimic::run(&arguments, trials).has_failed()
}

fn trial(group: &str, (path, missing, body): Scenario) -> Trial {
    let name = path.rsplit("::").next().unwrap_or(path);
    let name = format!("{group}::{name}").replace(' ', "");
    Trial::ignorable_test(name, move || match missing() {
        Some(reason) => Ok::<_, Failed>(Completion::ignored_with(format!("not run: {reason}"))),
        None => {
            if network::can_be_alone() {
                network::alone(body);
            } else {
                body();
            }
            Ok(Completion::Completed)
        }
    })
}
