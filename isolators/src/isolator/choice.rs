//! The choice of isolators: names, defaults, exclusions and dependencies.

use std::collections::BTreeSet;

use super::namespaces::Namespace;
use super::{
    Isolator, IsolatorOptions, NodeOptions, blkio, capabilities, cpu, cpuset, devices, disk,
    filesystem, hugetlb, mem, namespaces, nnp, perf_event, pids, ports, posix, rlimits, seccomp,
};
use crate::cgroup::{CgroupTree, Controller, Host, Mode};

/// The enabled isolators (`--isolation`).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Isolation(BTreeSet<&'static str>);

/// Errors of an `--isolation` value.
#[derive(Debug, thiserror::Error, Eq, PartialEq)]
pub enum IsolationError {
    #[error("unknown isolator {name:?}; known are {known}")]
    Unknown {
        name: String,
        /// The names that are valid.
        known: String,
    },
    #[error("isolator {0:?} is given twice")]
    Twice(String),
    /// Two isolators handle the same resource.
    #[error("isolators {0:?} and {1:?} exclude each other")]
    Conflict(&'static str, &'static str),
    /// The isolator has no effect without another isolator.
    #[error("isolator {0:?} needs {1:?} too")]
    Needs(&'static str, &'static str),
    /// The isolator needs rights that we do not have.
    #[error("isolator {0:?} needs root with CAP_SYS_ADMIN; without, use posix/cpu,posix/mem")]
    Unprivileged(&'static str),
    /// The isolator needs a controller that the machine does not have.
    #[error("isolator {0:?} needs cgroup controller {name}, which is not mounted on this \
        machine", name = .1.name())]
    NoController(&'static str, Controller),
}

/// The names of all isolators.
pub const NAMES: [&str; 25] = [
    "cgroups/all",
    "cgroups/blkio",
    "cgroups/cpu",
    "cgroups/cpuset",
    "cgroups/devices",
    "cgroups/hugetlb",
    "cgroups/mem",
    "cgroups/perf_event",
    "cgroups/pids",
    "disk/du",
    "filesystem/kernel",
    "filesystem/shm",
    "linux/capabilities",
    "linux/nnp",
    "linux/seccomp",
    "namespaces/cgroup",
    "namespaces/ipc",
    "namespaces/mnt",
    "namespaces/net",
    "namespaces/pid",
    "namespaces/uts",
    "network/ports",
    "posix/cpu",
    "posix/mem",
    "posix/rlimits",
];

/// The default isolators of root.
const BY_DEFAULT: [&str; 9] = [
    "cgroups/cpu",
    "cgroups/mem",
    "cgroups/pids",
    "linux/nnp",
    "namespaces/ipc",
    "namespaces/mnt",
    "namespaces/pid",
    "namespaces/uts",
    "posix/rlimits",
];

/// The default isolators for other users.
const BY_DEFAULT_UNPRIVILEGED: [&str; 4] = ["linux/nnp", "posix/cpu", "posix/mem", "posix/rlimits"];

/// The isolators that [`Isolation::hardened_for`] adds.
const HARDENING: [&str; 8] = [
    "cgroups/blkio",
    "cgroups/cpuset",
    "cgroups/devices",
    "filesystem/kernel",
    "filesystem/shm",
    "linux/capabilities",
    "linux/seccomp",
    "cgroups/perf_event",
];

/// The isolators that need no privilege.
const UNPRIVILEGED: [&str; 7] = [
    "disk/du",
    "linux/nnp",
    "linux/seccomp",
    "network/ports",
    "posix/cpu",
    "posix/mem",
    "posix/rlimits",
];

/// The isolators that have no effect without another isolator.
const NEEDS: [(&str, &str); 3] = [
    ("filesystem/kernel", "namespaces/mnt"),
    ("filesystem/shm", "namespaces/mnt"),
    ("namespaces/cgroup", "namespaces/mnt"),
];

impl Isolation {
    /// Reads a comma-separated list of names.
    pub fn parse(text: &str) -> Result<Self, IsolationError> {
        let mut chosen = BTreeSet::new();
        for name in text
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
        {
            let known = NAMES.iter().find(|known| **known == name).ok_or_else(|| {
                IsolationError::Unknown {
                    name: name.to_owned(),
                    known: NAMES.join(", "),
                }
            })?;
            if !chosen.insert(*known) {
                return Err(IsolationError::Twice(name.to_owned()));
            }
        }
        for (one, other) in [
            ("cgroups/cpu", "posix/cpu"),
            ("cgroups/mem", "posix/mem"),
            ("cgroups/all", "posix/cpu"),
            ("cgroups/all", "posix/mem"),
        ] {
            if chosen.contains(one) && chosen.contains(other) {
                return Err(IsolationError::Conflict(one, other));
            }
        }
        for (one, needed) in NEEDS {
            if chosen.contains(one) && !chosen.contains(needed) {
                return Err(IsolationError::Needs(one, needed));
            }
        }
        Ok(Self(chosen))
    }

    /// The isolators that this host and user support: for root all but the posix fallbacks, as far as the controllers are there;
    /// the posix ones otherwise.
    pub fn default_for(host: &Host) -> Self {
        let privileged = host.privileged && host.mode != Mode::None;
        Self(if privileged {
            offered(&BY_DEFAULT, host).collect()
        } else {
            BTreeSet::from(BY_DEFAULT_UNPRIVILEGED)
        })
    }

    /// The default and, for root, the barriers against a hostile task: capabilities, system call filter, device list, read-only
    /// kernel filesystems, and accounting of disks, as far as the host offers them.
    pub fn hardened_for(host: &Host) -> Self {
        let mut isolation = Self::default_for(host);
        if isolation.needs_groups() {
            isolation.0.extend(offered(&HARDENING, host));
            // Each tree is mounted again for a container: a single one is cheap, the many of v1 cost a quarter of a launch.
            if host.mode == Mode::Unified {
                isolation.0.insert("namespaces/cgroup");
            }
        } else {
            isolation.0.insert("linux/seccomp");
        }
        isolation
    }

    /// The default isolators of root that this host lacks: first those without which tasks are unlimited or see each other, then
    /// the hardening ones.
    pub fn lacking(host: &Host) -> (Vec<&'static str>, Vec<&'static str>) {
        let given = Self::hardened_for(host);
        let missing = |names: &'static [&str]| {
            let names = names.iter().copied();
            names.filter(|name| !given.has(name)).collect()
        };
        (missing(&BY_DEFAULT), missing(&HARDENING))
    }

    /// Adds an isolator by name; an unknown name is an error.
    pub fn and(self, name: &str) -> Result<Self, IsolationError> {
        if self.has(name) {
            return Ok(self);
        }
        let mut names: Vec<&str> = self.names().collect();
        names.push(name);
        Self::parse(&names.join(","))
    }

    /// Replaces `cgroups/all` by the isolators that the host's controllers allow.
    pub fn resolved(&self, host: &Host) -> Self {
        let mut chosen = self.0.clone();
        if chosen.remove("cgroups/all") {
            chosen.extend(offered(&NAMES, host).filter(|name| is_of_all(name)));
        }
        Self(chosen)
    }

    /// Whether an isolator is enabled.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains(name) || (self.0.contains("cgroups/all") && is_of_all(name))
    }

    /// The names of the enabled isolators, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.0.iter().copied()
    }

    /// Checks that this host and user support the choice.
    pub fn check(&self, host: &Host) -> Result<(), IsolationError> {
        for name in self.names() {
            if !host.privileged && !UNPRIVILEGED.contains(&name) {
                return Err(IsolationError::Unprivileged(name));
            }
            let missing = controllers_of(name).iter().find(|one| !host.offers(**one));
            if let Some(missing) = missing {
                return Err(IsolationError::NoController(name, *missing));
            }
        }
        Ok(())
    }

    /// Whether any isolator keeps containers in cgroups.
    pub fn needs_groups(&self) -> bool {
        self.names().any(|name| name.starts_with("cgroups/"))
    }

    /// The isolators, in the order of their application; `trees` are this host's cgroup trees.
    pub fn isolators(
        &self,
        options: IsolatorOptions,
        node: &NodeOptions,
        trees: &[CgroupTree],
    ) -> Vec<Box<dyn Isolator>> {
        self.names()
            .filter_map(|name| build(name, options, node, trees))
            .collect()
    }
}

fn build(
    name: &str,
    options: IsolatorOptions,
    node: &NodeOptions,
    trees: &[CgroupTree],
) -> Option<Box<dyn Isolator>> {
    let cpu = || cpu::Cpu::new(options).with(node);
    Some(match name {
        "cgroups/blkio" => Box::new(blkio::Blkio),
        "cgroups/cpu" => Box::new(cpu()),
        "cgroups/cpuset" => Box::new(cpuset::Cpuset::new(node)),
        "cgroups/devices" => Box::new(devices::Devices::new(&node.devices)),
        "cgroups/hugetlb" => Box::new(hugetlb::Hugetlb::new(node.hugetlb_bytes)),
        "cgroups/perf_event" => Box::new(perf_event::PerfEvent),
        "disk/du" => Box::new(disk::DiskDu),
        "filesystem/kernel" => Box::new(filesystem::Kernel::new(trees)),
        "filesystem/shm" => Box::new(filesystem::Shm::new(node.shm_bytes)),
        "linux/capabilities" => Box::new(capabilities::Capabilities::new(node)),
        "linux/seccomp" => Box::new(seccomp::Seccomp::new(node)),
        "namespaces/net" => Box::new(Namespace::Network),
        "network/ports" => Box::new(ports::Ports::new(node.isolated_ports.clone())),
        "cgroups/mem" => Box::new(mem::Memory::new(options)),
        "cgroups/pids" => Box::new(pids::Pids::new(options)),
        "linux/nnp" => Box::new(nnp::NoNewPrivs),
        "namespaces/cgroup" => Box::new(namespaces::Cgroup::new(trees)),
        "namespaces/ipc" => Box::new(Namespace::Ipc),
        "namespaces/mnt" => Box::new(Namespace::Mount),
        "namespaces/pid" => Box::new(Namespace::Pid),
        "namespaces/uts" => Box::new(Namespace::Uts),
        "posix/cpu" => Box::new(posix::PosixCpu),
        "posix/mem" => Box::new(posix::PosixMem),
        "posix/rlimits" => Box::new(rlimits::Rlimits),
        _ => return None,
    })
}

/// Whether `cgroups/all` includes this isolator.
fn is_of_all(name: &str) -> bool {
    name.starts_with("cgroups/") && name != "cgroups/all" && NAMES.contains(&name)
}

/// The names whose controllers the host has.
fn offered(names: &'static [&str], host: &Host) -> impl Iterator<Item = &'static str> {
    let is_offered = |name: &&str| controllers_of(name).iter().all(|one| host.offers(*one));
    names.iter().copied().filter(is_offered)
}

fn controllers_of(name: &str) -> &'static [Controller] {
    if !name.starts_with("cgroups/") {
        return &[];
    }
    let built = build(
        name,
        IsolatorOptions::default(),
        &NodeOptions::default(),
        &[],
    );
    // `cgroups/all` keeps containers in groups, so the freezer is needed.
    built.map_or(&[Controller::Freezer], |built| built.controllers())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(privileged: bool, mode: Mode) -> Host {
        let v1 = Controller::ALL
            .into_iter()
            .filter(|_| mode == Mode::Legacy)
            .map(|one| crate::cgroup::V1Hierarchy {
                mount: "/x".into(),
                controllers: vec![one],
            })
            .collect();
        Host {
            proc: "/proc".into(),
            mode,
            v1,
            unified: None,
            unusable: Vec::new(),
            privileged,
        }
    }

    #[test]
    fn lacking_names_unsupported_isolators() {
        assert_eq!(
            Isolation::lacking(&host(true, Mode::Legacy)),
            (vec![], vec![])
        );
        let (needed, hardening) = Isolation::lacking(&host(true, Mode::None));
        assert!(needed.contains(&"cgroups/mem") && needed.contains(&"namespaces/pid"));
        assert!(!needed.contains(&"linux/nnp") && hardening.contains(&"linux/capabilities"));
        let mut partial = host(true, Mode::Legacy);
        let lacks = |tree: &crate::cgroup::V1Hierarchy| {
            let without = [Controller::Memory, Controller::Devices];
            !without.iter().any(|one| tree.controllers.contains(one))
        };
        partial.v1.retain(lacks);
        let lacking = Isolation::lacking(&partial);
        assert_eq!(lacking, (vec!["cgroups/mem"], vec!["cgroups/devices"]));
    }

    #[test]
    fn isolation_lists_parse_or_fail() {
        let isolation = Isolation::parse(" cgroups/cpu,namespaces/pid ,").expect("good");
        assert_eq!(
            isolation.names().collect::<Vec<_>>(),
            ["cgroups/cpu", "namespaces/pid"]
        );
        let error = Isolation::parse("cgroups/cpus").expect_err("unknown");
        assert!(
            error.to_string().contains("cgroups/cpu, cgroups/cpuset"),
            "{error}"
        );
        assert_eq!(
            Isolation::parse("linux/nnp,linux/nnp"),
            Err(IsolationError::Twice("linux/nnp".to_owned()))
        );
        assert_eq!(
            Isolation::parse("posix/mem,cgroups/mem"),
            Err(IsolationError::Conflict("cgroups/mem", "posix/mem"))
        );
    }

    #[test]
    fn the_default_fits_the_host() {
        for (privileged, mode, cgroups) in [
            (true, Mode::Legacy, true),
            (false, Mode::Legacy, false),
            (true, Mode::None, false),
        ] {
            let host = host(privileged, mode);
            let isolation = Isolation::default_for(&host);
            assert_eq!(isolation.needs_groups(), cgroups);
            assert_eq!(isolation.has("posix/cpu"), !cgroups);
            assert_eq!(isolation.check(&host), Ok(()));
        }
    }

    #[test]
    fn new_isolators_need_explicit_choice() {
        let host = host(true, Mode::Legacy);
        let usual: Vec<_> = Isolation::default_for(&host).names().collect();
        assert_eq!(usual, BY_DEFAULT);
        let hardened = Isolation::hardened_for(&host);
        assert!(hardened.has("linux/seccomp") && hardened.has("cgroups/devices"));
        assert_eq!(hardened.check(&host), Ok(()));
        let has_namespace = |mode| Isolation::hardened_for(&self::host(true, mode));
        assert!(!has_namespace(Mode::Legacy).has("namespaces/cgroup"));
        let unprivileged = self::host(false, Mode::Legacy);
        let hardened = Isolation::hardened_for(&unprivileged);
        assert!(hardened.has("linux/seccomp") && !hardened.has("linux/capabilities"));
        assert_eq!(hardened.check(&unprivileged), Ok(()));
    }

    #[test]
    fn cgroups_all_resolves_to_host_controllers() {
        let isolation = Isolation::parse("cgroups/all").expect("good");
        assert!(isolation.has("cgroups/mem") && isolation.needs_groups());
        let resolved = isolation.resolved(&host(true, Mode::Legacy));
        let all = [
            "cgroups/blkio",
            "cgroups/cpu",
            "cgroups/cpuset",
            "cgroups/devices",
            "cgroups/hugetlb",
            "cgroups/mem",
            "cgroups/perf_event",
            "cgroups/pids",
        ];
        assert_eq!(resolved.names().collect::<Vec<_>>(), all);
        let none = isolation.resolved(&host(true, Mode::None));
        assert_eq!(none.names().count(), 0);
        assert_eq!(
            isolation.check(&host(true, Mode::None)),
            Err(IsolationError::NoController(
                "cgroups/all",
                Controller::Freezer
            ))
        );
        assert_eq!(
            Isolation::parse("cgroups/all,posix/mem"),
            Err(IsolationError::Conflict("cgroups/all", "posix/mem"))
        );
        assert_eq!(
            Isolation::parse("filesystem/shm"),
            Err(IsolationError::Needs("filesystem/shm", "namespaces/mnt"))
        );
    }

    #[test]
    fn check_reports_unsupported_isolator() {
        let isolation = Isolation::parse("cgroups/mem").expect("good");
        assert_eq!(
            isolation.check(&host(false, Mode::Legacy)),
            Err(IsolationError::Unprivileged("cgroups/mem"))
        );
        assert_eq!(
            isolation.check(&host(true, Mode::None)),
            Err(IsolationError::NoController(
                "cgroups/mem",
                Controller::Memory
            ))
        );
    }

    #[test]
    fn every_name_matches_its_isolator() {
        let node = NodeOptions::default();
        // An alias, which is replaced before anything is built.
        for name in NAMES.into_iter().filter(|name| *name != "cgroups/all") {
            let built = build(name, IsolatorOptions::default(), &node, &[]).expect(name);
            assert_eq!(built.name(), name);
        }
    }

    #[test]
    fn cgroup_isolators_imply_controllers_and_freezer() {
        for name in NAMES {
            let own: &[Controller] = match name {
                "cgroups/blkio" => &[Controller::Blkio],
                "cgroups/cpu" => &[Controller::Cpu, Controller::Cpuacct],
                "cgroups/cpuset" => &[Controller::Cpuset],
                "cgroups/devices" => &[Controller::Devices],
                "cgroups/hugetlb" => &[Controller::Hugetlb],
                "cgroups/mem" => &[Controller::Memory],
                "cgroups/perf_event" => &[Controller::PerfEvent],
                "cgroups/pids" => &[Controller::Pids],
                _ => &[],
            };
            let freezer = name.starts_with("cgroups/").then_some(&Controller::Freezer);
            assert!(
                controllers_of(name).iter().eq(own.iter().chain(freezer)),
                "{name}"
            );
        }
    }
}
