//! kill -9 of the master while an operator writes, or while tasks end: each acknowledged write is there afterwards, and
//! each end is reported.

use meseta_tests::{master_kills, unless_root, update_kills};

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        acknowledged_writes_survive_master_kills;
    unless_root:
        task_ends_stay_ordered_after_kills;
}

/// The example `master_kills` runs the same with many more kills.
fn acknowledged_writes_survive_master_kills() {
    let (writes, kills) = (40, 3);
    let report = master_kills::run(writes, kills, 3).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(report.serving.len(), kills);
    let acknowledged = report
        .counts
        .iter()
        .filter(|((_, how), _)| *how == "acknowledged");
    let acknowledged: usize = acknowledged.map(|(_, count)| count).sum();
    assert!(acknowledged >= writes / 2, "{:?}", report.counts);
}

/// The example `update_kills` runs the same with many more tasks.
fn task_ends_stay_ordered_after_kills() {
    let (tasks, kills) = (120, 3);
    let report = update_kills::run(tasks, kills).unwrap_or_else(|why| panic!("{why}"));
    eprintln!("{report:?}");
    assert_eq!(report.updates, 2 * tasks);
}
