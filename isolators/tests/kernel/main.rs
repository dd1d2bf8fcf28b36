//! The kernel side against the real kernel: launches, limits, ends.
//!
//! Each test has its own cgroups root and runtime folder, and its own [`test_node::TestNode`] whose end checks
//! that no process, group or mount is left. A test whose prerequisite is missing shows as ignored,
//! with the reason; it never passes silently.

/// Fails the test with a text unless the condition holds.
macro_rules! check {
    ($so:expr, $($text:tt)+) => {
        let so: bool = $so;
        if !so {
            return Err(format!($($text)+).into());
        }
    };
}

/// Tests under the names of their functions.
macro_rules! tests {
    ($($name:ident),+ $(,)?) => { &[$((stringify!($name), $name)),+] };
}

mod ending;
mod hardening;
mod hostile;
mod launching;
mod limits;
mod nested;
mod nested_usage;
mod posix;
mod probe;
mod resources;
mod revocable;
mod sampling;
mod starting;
mod test_node;

use std::path::Path;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use meseta_isolators::{Host, Mode};
use test_node::TestNode;

/// The cgroup trees of a test.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Trees {
    /// No cgroup trees and no namespaces.
    None,
    /// Only cgroup version 1 is mounted.
    Legacy,
    /// Limits by version 1, with the unified tree beside it.
    Hybrid,
    /// Only cgroup version 2 is mounted.
    Unified,
}

/// The tests that run with every kind of trees.
const ALL: &[&[(&str, Test)]] = &[
    nested::TESTS,
    nested_usage::TESTS,
    revocable::TESTS,
    launching::TESTS,
    starting::TESTS,
    limits::TESTS,
    ending::TESTS,
    hardening::TESTS,
    hostile::TESTS,
    resources::TESTS,
    sampling::TESTS,
];

type Test = fn(&TestNode) -> Result<(), Failed>;

fn main() -> ExitCode {
    if let Some(code) = meseta_isolators::launcher::run_if_requested() {
        return code;
    }
    if let Some(code) = probe::run_if_requested() {
        return code;
    }
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for (prefix, trees) in [
        ("legacy", Trees::Legacy),
        ("hybrid", Trees::Hybrid),
        ("unified", Trees::Unified),
    ] {
        for (name, test) in ALL.concat() {
            let trial = format!("{prefix}::{name}");
            trials.push(Trial::ignorable_test(trial, move || run(trees, name, test)));
        }
    }
    for (prefix, trees) in [("hybrid", Trees::Hybrid), ("unified", Trees::Unified)] {
        for (name, test) in resources::V2_TESTS {
            let trial = format!("{prefix}::{name}");
            trials.push(Trial::ignorable_test(trial, move || {
                run(trees, name, *test)
            }));
        }
    }
    for (name, test) in posix::TESTS {
        trials.push(Trial::ignorable_test(format!("posix::{name}"), move || {
            run(Trees::None, name, *test)
        }));
    }
    let names: Vec<String> = trials.iter().map(|trial| trial.name().to_owned()).collect();
    let documented = move || documented_tests_exist(&names).map(|()| Completion::Completed);
    trials.push(Trial::ignorable_test("documented_tests_exist", documented));
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Every test in `docs/isolation.md` exists, in this program or as a unit test of the crate.
fn documented_tests_exist(names: &[String]) -> Result<(), Failed> {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(crate_dir.join("../docs/isolation.md"))?;
    let mut source = String::new();
    let mut folders = vec![crate_dir.join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                source.push_str(&std::fs::read_to_string(path)?);
            }
        }
    }
    let quoted = page.split('`').skip(1).step_by(2);
    let mut count = 0;
    for name in quoted.filter(|quoted| quoted.contains("::") && !quoted.contains(['<', ' ', '\n']))
    {
        let unit = name.rsplit("::").next().unwrap_or_default();
        let is_unit = || source.contains(&format!("fn {unit}()"));
        let known = match name.split_once("::tests::") {
            Some(_) => is_unit(),
            None if name.starts_with("hostile::") => is_unit(),
            None if name.starts_with(|first: char| first.is_ascii_lowercase()) => {
                names.iter().any(|known| known == name) || name.starts_with("meseta_")
            }
            None => continue,
        };
        count += 1;
        if !known {
            return Err(format!("docs/isolation.md names {name}, which is no test").into());
        }
    }
    check!(count > 50, "only {count} names were found");
    Ok(())
}

/// The host restricted to these trees, or the reason why the machine lacks them.
fn host_as(trees: Trees) -> Result<Result<Host, String>, Failed> {
    let mut host = Host::detect()?;
    if trees == Trees::None {
        return Ok(Ok(host));
    }
    if !host.privileged {
        return Ok(Err("needs root with CAP_SYS_ADMIN".to_owned()));
    }
    let missing = match (trees, host.mode) {
        (Trees::Hybrid, Mode::Hybrid) | (Trees::Unified, Mode::Unified) => None,
        (Trees::Legacy, Mode::Hybrid | Mode::Legacy) => {
            host.unified = None;
            host.mode = Mode::Legacy;
            None
        }
        (_, found) => Some(format!("the machine's cgroups are mounted as {found:?}")),
    };
    let lacking = test_node::missing_controller(&host).map(|name| format!("no controller {name}"));
    Ok(missing.or(lacking).map_or(Ok(host), Err))
}

fn run(trees: Trees, name: &str, test: Test) -> Result<Completion, Failed> {
    let host = match host_as(trees)? {
        Ok(host) => host,
        Err(reason) => return Ok(Completion::ignored_with(reason)),
    };
    let test_node = TestNode::new(host, trees != Trees::None)?;
    let result = test(&test_node);
    let clean = test_node.finish();
    result?;
    clean.map_err(|left| Failed::from(format!("{name} left behind: {left}")))?;
    Ok(Completion::Completed)
}
