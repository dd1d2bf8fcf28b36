//! The check that alerts use metrics of the daemons that they concern, and not only of any daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Returns the metrics of each daemon, from the reference.
fn metrics(root: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let page = std::fs::read_to_string(root.join("docs/metrics.md")).expect("the reference");
    let sections = page.split("## `meseta ").skip(1);
    let of_daemon = |section: &str| {
        let (daemon, rows) = section.split_once('`').expect("a daemon");
        let rows = rows.lines().filter_map(|row| row.strip_prefix("| `"));
        let names = rows.filter_map(|row| Some(row.split_once('`')?.0.to_owned()));
        (daemon.to_owned(), names.collect())
    };
    sections.map(of_daemon).collect()
}

/// Returns the names of metrics with this prefix in a text.
fn named<'a>(text: &'a str, prefix: &str) -> BTreeSet<&'a str> {
    let is_of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let starts = text.match_indices(prefix).filter(|(at, _)| {
        let before = text.get(..*at).unwrap_or_default();
        !before.ends_with(is_of_name)
    });
    let name = |at: usize| {
        let rest = text.get(at..).unwrap_or_default();
        rest.split(|c| !is_of_name(c)).next().unwrap_or_default()
    };
    starts.map(|(at, _)| name(at)).collect()
}

/// Returns the name of a series in a test of rules, and the daemon of its job, if it names one.
fn of_daemon(series: &str) -> Option<(&str, &str)> {
    let (name, labels) = series.split_once('{')?;
    let (_, job) = labels.split_once("job=\"meseta-")?;
    let daemon = job.split(['"', '-']).next()?;
    Some((name, daemon))
}

/// Regression: an alert on descriptors was tested with a series that no agent has, and could not fire for one.
#[test]
fn alerts_name_measured_series() {
    let root = super::root();
    let metrics = metrics(&root);
    assert_eq!(metrics.len(), 3, "{:?}", metrics.keys());
    let has = |daemon: &str, name: &str| metrics.get(daemon).is_some_and(|all| all.contains(name));
    let mut wrong = Vec::new();
    for file in ["cluster", "oversubscription"] {
        let text = |kind: &str| {
            let path = root.join(format!("docs/alerts/{file}.{kind}.yml"));
            std::fs::read_to_string(path).expect("alerts")
        };
        let (rules, tests) = (text("rules"), text("test"));
        for daemon in metrics.keys() {
            let own = named(&rules, &format!("meseta_{daemon}_"));
            let of_every = named(&rules, "process_");
            let missing = own.union(&of_every).filter(|name| !has(daemon, name));
            wrong.extend(missing.map(|name| format!("{file}.rules.yml: {name} of {daemon}")));
        }
        let series = tests.lines().filter_map(|line| {
            let (_, series) = line.split_once("series: '")?;
            of_daemon(series)
        });
        let made_up = series.filter(|(name, daemon)| *name != "up" && !has(daemon, name));
        wrong.extend(made_up.map(|(name, daemon)| format!("{file}.test.yml: {name} of {daemon}")));
    }
    super::assert_none("not in docs/metrics.md", wrong);
}

#[test]
fn series_names_its_daemon() {
    let series = "process_max_fds{instance=\"n1\", job=\"meseta-agent\"}'";
    assert_eq!(of_daemon(series), Some(("process_max_fds", "agent")));
    assert_eq!(of_daemon("up{instance=\"n1\"}'"), None);
    let rule = "process_open_fds{} > 0.8 * process_max_fds or xprocess_no";
    let expected = BTreeSet::from(["process_max_fds", "process_open_fds"]);
    assert_eq!(named(rule, "process_"), expected);
}
