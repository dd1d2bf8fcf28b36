//! The flags of Mesos against ours and the departures: every missing flag is listed, and no present flag is listed as
//! missing.

use std::collections::BTreeSet;
use std::ffi::OsString;

use super::{absent, command};

const FLAGS: &str = include_str!("../../../tests/mesos-flags.txt");
const DEPARTURES: &str = include_str!("../../../docs/departures.md");
const HEADING: &str = "## Flags of Mesos that are not here";

/// Returns the flags of a daemon of Mesos.
fn of_mesos(daemon: &str) -> BTreeSet<&'static str> {
    let lines = FLAGS.lines().filter_map(|line| line.split_once(' '));
    let of_daemon = lines.filter(|(whose, _)| *whose == daemon);
    of_daemon.map(|(_, flag)| flag).collect()
}

/// Returns our names, all that a command line may contain.
fn ours(daemon: &str) -> BTreeSet<String> {
    let mut command = command();
    command.build();
    let daemon = command.find_subcommand(daemon).expect("declared");
    let names = daemon.get_arguments().flat_map(|arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        let names = arg.get_long().into_iter().chain(aliases);
        names.map(str::to_owned).collect::<Vec<_>>()
    });
    names.collect()
}

/// Returns the flags that the departures page lists as missing.
fn departed(daemon: &str) -> BTreeSet<&'static str> {
    let (_, section) = DEPARTURES.split_once(HEADING).expect("the section");
    let rows = section.lines().filter_map(|line| {
        let mut cells = line.trim_matches('|').split(" | ");
        let (whose, flags) = (cells.next()?.trim(), cells.next()?);
        [daemon, "both"].contains(&whose).then_some(flags)
    });
    rows.flat_map(|flags| flags.split('`'))
        .filter_map(|piece| piece.strip_prefix("--"))
        .collect()
}

#[test]
fn mesos_flags_are_present_or_departed() {
    for daemon in ["master", "agent"] {
        let (ours, departed) = (ours(daemon), departed(daemon));
        let mesos = of_mesos(daemon);
        assert!(mesos.len() > 80, "{daemon}: the list is read");
        let missing: Vec<_> = mesos
            .iter()
            .filter(|flag| !ours.contains(**flag) && !departed.contains(*flag))
            .collect();
        assert!(
            missing.is_empty(),
            "{daemon}: neither here nor in docs/departures.md: {missing:?}"
        );
        let here: Vec<_> = departed
            .iter()
            .filter(|flag| ours.contains(**flag))
            .collect();
        assert!(
            here.is_empty(),
            "{daemon}: in docs/departures.md, and here: {here:?}"
        );
    }
}

/// A user who types a missing flag gets a replacement.
#[test]
fn every_absent_flag_has_a_replacement() {
    for daemon in ["master", "agent"] {
        for flag in departed(daemon) {
            let line = ["meseta", daemon, &format!("--{flag}=x")].map(OsString::from);
            let refused = super::parse(line.to_vec()).expect_err(flag).to_string();
            let instead = absent::replacement(flag).unwrap_or_else(|| panic!("--{flag}"));
            assert!(refused.contains(instead), "{refused}");
            assert!(refused.contains(&format!("'--{flag}")), "{refused}");
        }
    }
}

#[test]
fn departed_flags_exist_in_mesos() {
    let (master, agent) = (of_mesos("master"), of_mesos("agent"));
    for daemon in ["master", "agent"] {
        let unknown: Vec<_> = departed(daemon)
            .into_iter()
            .filter(|flag| !master.contains(flag) && !agent.contains(flag))
            .collect();
        assert!(unknown.is_empty(), "no flag of Mesos: {unknown:?}");
    }
}
