//! The ports that each of several agents offers: they share a machine, and no port may be offered twice.
//!
//! Invariant: an agent never offers fewer ports than when its directory was made, as it would not start with them.
//! Directories made for another number of agents may therefore offer a port twice.

use std::path::Path;

use anyhow::Context as _;

/// The first port that an agent offers by default.
const FIRST: u16 = 31_000;
const COUNT: u16 = 1_001;
/// The file in an agent's directory with its offered ports.
const RECORD: &str = "task_ports";

/// Returns the `--resources` of an agent, including its ports. `inherited` is the value in its environment, which the flag
/// replaces.
pub(super) fn resources_of_agent(
    which: (u16, u16),
    given: Option<&str>,
    inherited: Option<&str>,
    dir: &Path,
) -> anyhow::Result<Option<String>> {
    let said = given.or(inherited);
    Ok(match (of_agent(which, said, dir)?, said) {
        (None, _) => given.map(str::to_owned),
        (Some(ports), None) => Some(ports),
        (Some(ports), Some(said)) => Some(format!("{said};{ports}")),
    })
}

/// Returns the ports of one agent among `agents` for `--resources`; `None` if the given resources name ports, or if there
/// is one agent. An agent whose directory was made without the flag keeps its ports.
fn of_agent(
    (index, agents): (u16, u16),
    given: Option<&str>,
    dir: &Path,
) -> anyhow::Result<Option<String>> {
    let record = dir.join(RECORD);
    match std::fs::read_to_string(&record) {
        Ok(recorded) if !given.is_some_and(names_ports) => return Ok(Some(recorded)),
        _ if dir.exists() || agents < 2 || given.is_some_and(names_ports) => return Ok(None),
        _ => {}
    }
    let part = COUNT / agents;
    let first = FIRST + part * index;
    let ports = format!("ports:[{first}-{}]", first + part - 1);
    let written = std::fs::create_dir_all(dir).and_then(|()| std::fs::write(&record, &ports));
    written.with_context(|| format!("failed to write {}", record.display()))?;
    Ok(Some(ports))
}

/// Whether the resources name ports: JSON cannot be extended, nor can the name of a file.
fn names_ports(resources: &str) -> bool {
    let mut whole = ["[", "file://"].iter();
    whole.any(|begin| resources.trim_start().starts_with(begin))
        || resources
            .split(';')
            .any(|one| one.trim_start().starts_with("ports"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: all agents offered the same ports, and two instances on two agents had one port.
    #[test]
    fn agents_of_machine_offer_disjoint_ports() {
        let dir = tempfile::tempdir().expect("a directory");
        let of = |index, agents, given| {
            let own = dir.path().join(format!("{agents}-{index}"));
            of_agent((index, agents), given, &own).expect("written")
        };
        assert_eq!(of(0, 1, None), None);
        let thirds = [
            "ports:[31000-31332]",
            "ports:[31333-31665]",
            "ports:[31666-31998]",
        ];
        for (index, ports) in (0..).zip(thirds) {
            assert_eq!(of(index, 3, Some("cpus:2")), Some(ports.to_owned()));
            // The same agent keeps its ports, whatever the present number of agents.
            let own = dir.path().join(format!("3-{index}"));
            let again = of_agent((index, 2), None, &own).expect("read");
            assert_eq!(again, Some(ports.to_owned()));
        }
        assert_eq!(of(0, 2, Some("cpus:1; ports:[1-2]")), None);
        assert_eq!(of(1, 2, Some("[]")), None);
        assert_eq!(of(1, 2, Some("file:///resources")), None);
        let resources = |given, inherited| {
            let own = dir.path().join("3-0");
            resources_of_agent((0, 3), given, inherited, &own).expect("read")
        };
        let both = Some("cpus:2;ports:[31000-31332]".to_owned());
        assert_eq!(resources(Some("cpus:2"), Some("cpus:9")), both);
        // The flag with the ports would replace the value of the environment.
        assert_eq!(resources(None, Some("cpus:2")), both);
        assert_eq!(resources(None, Some("ports:[1-9]")), None);
        let named = resources(Some("ports:[1-9]"), None);
        assert_eq!(named.as_deref(), Some("ports:[1-9]"));
        // A directory of an earlier version has no record.
        assert_eq!(
            of_agent((0, 2), None, dir.path()).expect("nothing to do"),
            None
        );
    }
}
