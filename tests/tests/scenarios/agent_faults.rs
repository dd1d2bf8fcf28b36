//! System calls of an agent fail, or are its last: no task ends of it, and nothing is left over.

use meseta_tests::faults::ledger::{Fault, Point};
use meseta_tests::faults::life::Stage;
use meseta_tests::unless_root;
use nix::errno::Errno;

meseta_tests::scenarios! {
    unless_root:
        a_fault_in_a_call_of_the_agent_ends_no_task;
}

const RUN: &str = "WORK/meta/slaves/ID-SN/frameworks/ID-N/executors/exits-N/runs/ID";
const RECORD: &str = "WORK/run/agent-N/containers/ID";

fn point(call: &str, file: &str) -> Point {
    Point::first(call, file).expect("a call that is looked at")
}

fn error(call: &str, file: &str, errno: Errno) -> (Point, Fault) {
    (point(call, file), Fault::Error { errno, times: 1 })
}

/// A few of the points that the example `agent_faults` goes through, all of which were met by a fault once.
fn a_fault_in_a_call_of_the_agent_ends_no_task() {
    let mut stage = Stage::open();
    let lives = [
        // Nothing of a run is durable yet but its folder.
        vec![(point("mkdir", RUN), Fault::KillAfter)],
        // What is said of a container that runs, and of one that has ended.
        vec![
            error("read", &format!("{RECORD}/supervisor"), Errno::EIO),
            error("read", &format!("{RECORD}/status"), Errno::EIO),
            error("getdents64", "WORK/run/agent-N/containers", Errno::EIO),
            error("unlinkat", &format!("{RECORD}/status"), Errno::EIO),
        ],
        // A check that cannot be made.
        vec![
            error("socket", "by check", Errno::EMFILE),
            error("clone3", "by checkpoints", Errno::ENOMEM),
        ],
    ];
    for faults in lives {
        let outcome = stage.live(&faults);
        assert!(
            outcome.wrong.is_empty(),
            "{faults:?}: {:#?}\n{}",
            outcome.wrong,
            outcome.log
        );
        for (point, _) in &faults {
            let is_met = outcome.fired.iter().any(|(met, _)| met == point);
            assert!(is_met, "{point} was not made");
        }
    }
}
