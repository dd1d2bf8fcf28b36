//! Tests that say what they need of the machine: where that is absent they are listed as ignored, with the reason.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::{Missing, daemon};

/// How many tests that only wait are run at once.
const WAITING_AT_ONCE: usize = 6;

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

/// Runs what the command line names of these groups, each test as `GROUP::NAME`: first those of `waiting` side by side,
/// which hardly use the machine and judge nothing of it, then the others one at a time.
pub fn run(groups: &[(&str, &[Scenario])], waiting: &[&str]) -> ExitCode {
    daemon::keep_umask_for_daemons();
    let all = groups
        .iter()
        .flat_map(|(group, all)| all.iter().map(|scenario| trial(group, *scenario)));
    let (side_by_side, alone): (Vec<_>, Vec<_>) =
        all.partition(|trial| waiting.contains(&trial.name()));
    assert_eq!(
        side_by_side.len(),
        waiting.len(),
        "each of {waiting:?} is the name of a test"
    );
    let together = run_with(side_by_side, WAITING_AT_ONCE);
    // What a limit does can only be judged when nothing else wants the machine.
    let alone = run_with(alone, 1);
    if together && alone {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(101)
    }
}

/// Whether all of these that the command line names succeeded; it may also give another number of threads.
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
            body();
            Ok(Completion::Completed)
        }
    })
}
