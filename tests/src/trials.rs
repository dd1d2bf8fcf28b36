//! Tests that say what they need of the machine: where that is absent they are listed as ignored, with the reason.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::{Missing, daemon, network};

/// How many tests that only wait are run at once.
const WAITING_AT_ONCE: usize = 6;

/// How many other tests are run at once, where each has a network of its own.
const AT_ONCE: usize = 3;

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

/// Runs the tests that the command line names, each as `GROUP::NAME`: first those of `waiting` side by side, which hardly
/// use the machine and judge nothing of it; then some at a time, where each can have a network of its own; at last the
/// groups of `measuring` one test at a time, since a limit can be judged only when nothing else wants the machine.
///
/// # Panics
/// A name in `waiting` or `measuring` is that of no test or group.
pub fn run(groups: &[(&str, &[Scenario])], waiting: &[&str], measuring: &[&str]) -> ExitCode {
    daemon::keep_umask_for_daemons();
    for name in measuring {
        let known = groups.iter().any(|(group, _)| group == name);
        assert!(known, "{name} is the name of a group");
    }
    let all = groups
        .iter()
        .flat_map(|(group, all)| all.iter().map(|scenario| trial(group, *scenario)));
    let (side_by_side, rest): (Vec<_>, Vec<_>) =
        all.partition(|trial| waiting.contains(&trial.name()));
    assert_eq!(
        side_by_side.len(),
        waiting.len(),
        "each of {waiting:?} is the name of a test"
    );
    let group = |trial: &Trial| trial.name().split("::").next().map(str::to_owned);
    let (alone, rest): (Vec<_>, Vec<_>) = rest
        .into_iter()
        .partition(|trial| group(trial).is_some_and(|group| measuring.contains(&group.as_str())));
    let at_once = if network::can_be_alone() { AT_ONCE } else { 1 };
    let results = [
        run_with(side_by_side, WAITING_AT_ONCE),
        run_with(rest, at_once),
        run_with(alone, 1),
    ];
    if results == [true; 3] {
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
            if network::can_be_alone() {
                network::alone(body);
            } else {
                body();
            }
            Ok(Completion::Completed)
        }
    })
}
