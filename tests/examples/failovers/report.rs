//! The report: one line for each fault, and a table of all at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::fault::Fault;
use crate::run::Outcome;

fn seconds(time: Option<Duration>) -> String {
    time.map_or("-".to_owned(), |time| format!("{:.2}", time.as_secs_f64()))
}

/// Prints the outcome of a fault.
pub(crate) fn line(number: usize, outcome: &Outcome) {
    let recovery = &outcome.recovery;
    println!(
        "{number:4} {:14} served {:>6} s, framework {:>6} s, agents {:>6} s, whole {:>6} s{}",
        outcome.fault.name(),
        seconds(outcome.served),
        seconds(recovery.framework),
        seconds(recovery.agents),
        seconds(recovery.whole),
        outcome.remark,
    );
    for wrong in &outcome.wrong {
        println!("     WRONG {wrong}");
    }
}

/// Returns the smallest of the sorted values that this percentage does not exceed.
fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// Prints the figures of all faults, by kind.
pub(crate) fn table(outcomes: &[Outcome]) {
    let mut kinds: BTreeMap<Fault, Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes {
        kinds.entry(outcome.fault).or_default().push(outcome);
    }
    println!(
        "\nseconds until      count  wrong | a write: min    p50    p99    max | agents: p50    max | whole: p50    max"
    );
    for (fault, all) in kinds {
        let of = |time: fn(&Outcome) -> Option<Duration>| {
            let mut times: Vec<_> = all.iter().filter_map(|one| time(one)).collect();
            times.sort();
            times
        };
        let served = of(|one| one.served);
        let agents = of(|one| one.recovery.agents);
        let whole = of(|one| one.recovery.whole);
        let wrong = all.iter().filter(|one| !one.wrong.is_empty()).count();
        println!(
            "{:18} {:5} {wrong:6} |      {:>6} {:>6} {:>6} {:>6} |     {:>6} {:>6} |    {:>6} {:>6}",
            fault.name(),
            all.len(),
            seconds(served.first().copied()),
            seconds(percentile(&served, 50)),
            seconds(percentile(&served, 99)),
            seconds(served.last().copied()),
            seconds(percentile(&agents, 50)),
            seconds(agents.last().copied()),
            seconds(percentile(&whole, 50)),
            seconds(whole.last().copied()),
        );
    }
}
