//! Scenarios under a real systemd on cgroup v2: the promises of the units, and the enforcement of the kernel.
//!
//! They stop, kill and replace the installed services, so they run only if `tests/vm/run` permits it (by
//! `MESETA_TEST_MACHINE`), in a virtual machine of its own; elsewhere each is listed as ignored. Every scenario has two
//! tasks that live through it, as the same processes before and after.

#[path = "systemd/kernel.rs"]
mod kernel;
#[path = "systemd/node.rs"]
mod node;
#[path = "systemd/units.rs"]
mod units;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// The variable that permits the use of this machine, with the folder of its units.
const PERMISSION: &str = "MESETA_TEST_MACHINE";

/// A scenario on the node.
type Test = (&'static str, fn(&mut node::Node));

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // There is only one machine.
    arguments.test_threads = Some(1);
    let groups: [(&str, &[Test]); 2] = [("units", units::ALL), ("kernel", kernel::ALL)];
    let trials = groups
        .into_iter()
        .flat_map(|(group, all)| all.iter().map(move |test| trial(group, *test)))
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(group: &str, (name, body): Test) -> Trial {
    Trial::ignorable_test(format!("{group}::{name}"), move || {
        if std::env::var_os(PERMISSION).is_none() {
            return Ok::<_, Failed>(Completion::ignored_with(
                "not run: needs a machine of its own; tests/vm/run makes one",
            ));
        }
        let mut node = node::Node::prepare();
        body(&mut node);
        node.finish();
        Ok(Completion::Completed)
    })
}
