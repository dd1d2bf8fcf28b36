//! The report: tables of the observations, and the broken promises.

use std::time::Duration;

use crate::bench::Tally;
use crate::consumption::Courses;
use crate::floods::Flood;
use crate::measured::Figures;
use crate::options::Options;

pub(crate) fn floods(tallies: &[(&Flood, Tally)]) {
    println!("\nwhat came of the floods");
    for (flood, tally) in tallies {
        println!("  {:20} {}", flood.name, tally.text());
    }
}

pub(crate) fn figures(figures: &Figures) {
    println!(
        "\n{:40} {:>7} {:>9} {:>9} {:>9}",
        "the measured framework, ms", "times", "p50", "p99", "longest"
    );
    let rows = [
        ("offer after REVIVE", &figures.offer_after_revive),
        ("offer after the end of a task", &figures.offer_after_end),
        ("ACCEPT to RUNNING, own node", &figures.own_running),
        (
            "ACCEPT to RUNNING with a fetch, flooded",
            &figures.guest_running,
        ),
        ("RUNNING to checked, flooded node", &figures.guest_checked),
        ("KILL to KILLED, flooded node", &figures.guest_killed),
        ("a job's submission to RUNNING", &figures.job_running),
    ];
    for (name, times) in rows {
        let mut times = times.clone();
        times.sort_unstable();
        let at = |percent: usize| {
            let index = (times.len() * percent / 100).min(times.len().saturating_sub(1));
            times.get(index).map_or(0.0, Duration::as_secs_f64) * 1e3
        };
        let count = times.len();
        println!(
            "  {name:38} {count:7} {:9.1} {:9.1} {:9.1}",
            at(50),
            at(99),
            at(100)
        );
    }
    if figures.failures_count > 0 {
        println!("  {} failures; the first:", figures.failures_count);
    }
    for failure in &figures.failures {
        println!("    {failure}");
    }
}

pub(crate) fn consumption(courses: &Courses) {
    println!(
        "\n{:9} {:>32} {:>32} {:>26}",
        "MiB", "resident: first, highest, after", "anonymous", "descriptors"
    );
    for (name, course) in courses {
        let samples = [&course.first, &course.highest, &course.last];
        let resident = samples.map(|sample| format!("{:9.1}", mib(sample.resident_kib)));
        let anonymous = samples.map(|sample| format!("{:9.1}", mib(sample.anonymous_kib)));
        let descriptors = samples.map(|sample| format!("{:7}", sample.descriptors));
        let [resident, anonymous, descriptors] =
            [resident, anonymous, descriptors].map(|three| three.join(" "));
        println!("{name:9} {resident:>32} {anonymous:>32} {descriptors:>26}");
    }
}

fn mib(kib: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let kib = kib as f64;
    kib / 1024.0
}

/// Returns the violations of the memory budgets.
pub(crate) fn over_budget(options: &Options, courses: &Courses) -> Vec<String> {
    let mut broken = Vec::new();
    for (name, course) in courses {
        let budget = match *name {
            "master" => &options.master_budget,
            "scheduler" => &options.scheduler_budget,
            _ => &options.agent_budget,
        };
        let highest = course.highest.resident_kib;
        if let Some(budget) = budget
            && highest > budget.kib
        {
            let highest = mib(highest);
            broken.push(format!(
                "{name} had {highest:.0} MiB resident, with a budget of {}",
                budget.text
            ));
        }
    }
    broken
}
