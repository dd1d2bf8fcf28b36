//! kill -9 of the master while an operator writes: each write that was acknowledged is there afterwards.

use meseta_tests::master_kills;

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        acknowledged_writes_outlive_kills_of_the_master;
}

/// A few of what the example `master_kills` makes many of.
fn acknowledged_writes_outlive_kills_of_the_master() {
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
