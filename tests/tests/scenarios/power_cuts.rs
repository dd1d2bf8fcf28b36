//! The power of a busy node fails: earlier updates are true afterwards.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use meseta_tests::power_cuts::node::{Journal, in_own_mounts};
use meseta_tests::power_cuts::run::{self, Options};
use meseta_tests::{Missing, unless_installed, unless_root};

meseta_tests::scenarios! {
    unless_ext4:
        acknowledged_state_survives_power_cut;
}

fn unless_ext4() -> Missing {
    unless_root().or_else(|| unless_installed("mkfs.ext4"))
}

/// The example `power_cuts` does the same two hundred times.
fn acknowledged_state_survives_power_cut() {
    let options = Options {
        cuts: 3,
        seed: 11,
        journal: Journal::Ext4,
        keep: None,
        over: Arc::new(AtomicBool::new(false)),
    };
    let report = in_own_mounts(|| run::run(&options, |_| {}));
    assert!(
        report.wrong.is_empty(),
        "{:#?}\n{}",
        report.wrong,
        report.log
    );
    assert_eq!(report.cuts, 3);
    assert!(report.tasks >= 10, "{} tasks", report.tasks);
    assert!(report.operations >= 5, "{} operations", report.operations);
}
