//! network/ports: compares the listening ports of a container with its allocated ones.
//!
//! Reads procfs: the sockets of its processes, intersected with the listening ones of the host's network. Containers with a
//! network namespace of their own can listen on any port.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use super::{Breach, Inspected, Inspection, Isolator, Listeners, PortRange};
use crate::cgroup::list_pids;
use crate::process_tree::{descendants_of, file_tables_of, threads_of};

#[derive(Debug)]
pub(super) struct Ports {
    isolated: Option<Vec<PortRange>>,
}

impl Ports {
    pub(super) fn new(isolated: Option<Vec<PortRange>>) -> Self {
        Self { isolated }
    }
}

impl Isolator for Ports {
    fn name(&self) -> &'static str {
        "network/ports"
    }

    fn inspect(&self, inspection: &Inspection<'_>, found: &mut Inspected) -> io::Result<()> {
        let Some(ports) = inspection.ports else {
            return Ok(());
        };
        let listening = listening(inspection, ports.listeners)?;
        let breach = breach(&listening, ports.allocated, self.isolated.as_deref());
        found.listening.extend(listening);
        found.breaches.extend(breach.map(|ports| {
            let text: Vec<_> = ports.iter().map(PortRange::to_string).collect();
            let message = format!(
                "Container {} is listening on unallocated port(s): [{}]",
                inspection.name,
                text.join(", ")
            );
            Breach::Ports { ports, message }
        }));
        Ok(())
    }
}

/// The listening ports that were not allocated, as ranges. Pure.
fn breach(
    listening: &BTreeSet<u16>,
    allocated: &[PortRange],
    isolated: Option<&[PortRange]>,
) -> Option<Vec<PortRange>> {
    let mut ranges: Vec<PortRange> = Vec::new();
    for port in listening {
        let watched =
            isolated.is_none_or(|ranges| ranges.iter().any(|range| range.contains(*port)));
        if !watched || allocated.iter().any(|range| range.contains(*port)) {
            continue;
        }
        match ranges.last_mut() {
            Some(range) if range.last.checked_add(1) == Some(*port) => range.last = *port,
            _ => ranges.push(PortRange {
                first: *port,
                last: *port,
            }),
        }
    }
    (!ranges.is_empty()).then_some(ranges)
}

fn listening(inspection: &Inspection<'_>, listeners: &Listeners) -> io::Result<BTreeSet<u16>> {
    let proc = inspection.proc;
    let ours = std::fs::read_link(proc.join("self/ns/net"))?;
    let processes = processes(inspection).into_iter();
    let processes = processes.map(|pid| proc.join(pid.to_string()));
    // Any thread of the process may be in our network; the first thread may have ended.
    let is_in_ours = |process: &PathBuf| {
        let threads = threads_of(process);
        threads
            .iter()
            .any(|thread| network_of(thread).as_ref() == Some(&ours))
    };
    let processes: Vec<_> = processes.filter(is_in_ours).collect();
    if processes.is_empty() {
        return Ok(BTreeSet::new());
    }
    let sockets = listeners.read(proc)?;
    let mut ports = BTreeSet::new();
    for table in processes.iter().flat_map(|process| file_tables_of(process)) {
        // A process that has ended listens no more.
        let descriptors = std::fs::read_dir(table.join("fd")).into_iter().flatten();
        let targets = descriptors
            .flatten()
            .map(|entry| std::fs::read_link(entry.path()));
        let inodes = targets.flatten().filter_map(|target| socket_inode(&target));
        ports.extend(inodes.filter_map(|inode| sockets.get(&inode)));
    }
    Ok(ports)
}

fn processes(inspection: &Inspection<'_>) -> BTreeSet<i32> {
    let mut pids = BTreeSet::new();
    for dir in inspection.groups.process_dirs() {
        pids.extend(list_pids(&dir).unwrap_or_default());
    }
    if let (true, Some(supervisor)) = (pids.is_empty(), inspection.supervisor) {
        pids.extend(descendants_of(inspection.proc, supervisor.pid));
    }
    pids
}

fn network_of(thread: &Path) -> Option<PathBuf> {
    std::fs::read_link(thread.join("ns/net")).ok()
}

/// The number of the socket in a descriptor's link.
fn socket_inode(target: &Path) -> Option<u64> {
    let number = target.to_str()?.strip_prefix("socket:[")?;
    number.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u16, last: u16) -> PortRange {
        PortRange { first, last }
    }

    #[test]
    fn only_ports_of_others_are_told() {
        let listening = BTreeSet::from([22, 31000, 31001, 31005, 65535]);
        let given = [range(31000, 31000), range(65535, 65535)];
        assert_eq!(
            breach(&listening, &given, None),
            Some(vec![
                range(22, 22),
                range(31001, 31001),
                range(31005, 31005)
            ])
        );
        assert_eq!(
            breach(&listening, &[], Some(&[range(31000, 32000)])),
            Some(vec![range(31000, 31001), range(31005, 31005)])
        );
        assert_eq!(breach(&listening, &[range(0, u16::MAX)], None), None);
        assert_eq!(breach(&BTreeSet::new(), &[], None), None);
    }
}
