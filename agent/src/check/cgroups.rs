//! The cgroup findings of `--check`: trees, controllers, delegation, swap accounting.
//!
//! [`CgroupFacts::read`] reads the machine; [`evaluate_host`] decides and is pure.

use std::path::Path;

use meseta_isolators::{Controller, Host, Isolation, Mode, UnusableCause};

use super::{Finding, Severity};
use crate::configuration::flags::Flags;

/// Facts about the cgroup trees beside [`Host`].
#[derive(Clone, Debug, Default)]
pub(super) struct CgroupFacts {
    /// The controllers that the kernel has enabled, for any user; `None` if the kernel does not list them.
    in_kernel: Option<Vec<Controller>>,
    swap: Swap,
    /// Whether the agent would run as root.
    is_root: bool,
    /// Whether systemd runs this machine.
    systemd: bool,
}

/// Whether memory limits count swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Swap {
    /// The machine has no swap, or its accounting is unknown.
    #[default]
    NotSeen,
    Accounted,
    NotAccounted,
}

impl CgroupFacts {
    pub(super) fn read(host: &Host) -> Self {
        let enabled = std::fs::read_to_string(host.proc.join("cgroups")).ok();
        Self {
            in_kernel: enabled.map(|text| enabled_controllers(&text)),
            swap: read_swap(host),
            is_root: rustix::process::geteuid().is_root(),
            systemd: Path::new("/run/systemd/system").is_dir(),
        }
    }
}

/// The controllers that `/proc/cgroups` says are enabled.
fn enabled_controllers(text: &str) -> Vec<Controller> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let enabled = lines.filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let name = fields.next()?;
        (fields.next_back()? == "1").then_some(name)
    });
    let enabled: Vec<&str> = enabled.collect();
    let is_enabled = |controller: &Controller| enabled.contains(&controller.name());
    Controller::ALL.into_iter().filter(is_enabled).collect()
}

fn read_swap(host: &Host) -> Swap {
    let swaps = std::fs::read_to_string(host.proc.join("swaps")).unwrap_or_default();
    // The first line is a heading.
    if swaps.lines().count() < 2 {
        return Swap::NotSeen;
    }
    let v1 = host.v1.iter();
    let v1 = v1.filter(|tree| tree.controllers.contains(&Controller::Memory));
    let v1 = v1.map(|tree| tree.mount.join("memory.memsw.limit_in_bytes"));
    // The root group of version 2 has no limits. Any group below it with a memory controller has limits.
    let v2 = host.unified.iter().filter_map(|tree| {
        let groups = std::fs::read_dir(&tree.mount).ok()?;
        let mut groups = groups.filter_map(|group| Some(group.ok()?.path()));
        let controlled = groups.find(|group| group.join("memory.max").exists())?;
        Some(controlled.join("memory.swap.max"))
    });
    match v1.chain(v2).next() {
        None => Swap::NotSeen,
        Some(limit) if limit.exists() => Swap::Accounted,
        Some(_) => Swap::NotAccounted,
    }
}

/// Whether the machine has swap that no memory limit counts.
pub(crate) fn is_swap_uncounted(host: &Host) -> bool {
    read_swap(host) == Swap::NotAccounted
}

pub(super) fn evaluate_host(host: &Host, facts: &CgroupFacts, flags: &Flags) -> Vec<Finding> {
    let is_accepted = flags.isolation.isolation.is_some()
        || flags.isolation.allow_weak_isolation
        || !facts.is_root;
    let unusable = evaluate_unusable(host, is_accepted);
    let mode = match host.mode {
        Mode::None if !unusable.is_empty() => return unusable,
        Mode::None => {
            if is_accepted {
                return vec![Finding::warning(
                    "no cgroups are mounted: the agent enforces no limits, and sums the usage of \
                     processes",
                    "mount cgroup2 at /sys/fs/cgroup",
                )];
            }
            return vec![Finding::problem(
                "no cgroups are mounted: the agent would enforce no limits, and does not start",
                "mount cgroup2 at /sys/fs/cgroup, or give --allow_weak_isolation",
            )];
        }
        Mode::Legacy => "v1",
        Mode::Hybrid => "v1 with the unified tree beside it",
        Mode::Unified => "v2",
    };
    let mut findings = vec![Finding::fine(format!("cgroups: {mode}"))];
    findings.extend(unusable);
    if !host.privileged {
        return findings;
    }
    findings.extend(evaluate_controllers(host, facts));
    findings.extend(evaluate_swap(facts.swap, flags.cgroups_limit_swap));
    if let Some(text) = &flags.isolation.isolation
        && let Ok(isolation) = Isolation::parse(text)
        && let Err(error) = isolation.check(host)
    {
        findings.push(Finding::problem(
            format!("--isolation: {error}"),
            "leave it out",
        ));
    }
    if host.mode == Mode::Unified && facts.systemd {
        findings.push(if flags.systemd_enable_support {
            Finding::fine(
                "systemd: containers run in a separate scope, and survive restarts of the agent",
            )
        } else {
            Finding::warning(
                "--systemd_enable_support=false: the agent creates cgroups without systemd's \
                 knowledge",
                "leave it out",
            )
        });
    }
    findings
}

/// Trees in which no group can be made.
fn evaluate_unusable(host: &Host, is_accepted: bool) -> Vec<Finding> {
    let of = |cause: UnusableCause| {
        let trees = host.unusable.iter().filter(|tree| tree.cause == cause);
        let trees: Vec<_> = trees.map(|tree| tree.mount.display().to_string()).collect();
        (!trees.is_empty()).then_some(trees)
    };
    let finding = |what: String, mend: String| match is_accepted {
        true => Finding::warning(what, mend),
        false => Finding::problem(what, mend),
    };
    let hidden = of(UnusableCause::Hidden).map(|trees| {
        finding(
            format!(
                "another mount hides the cgroup trees, so the agent cannot create groups: {}",
                trees.join(" ")
            ),
            "unmount it; in a network namespace start the agent with `nsenter --net=/run/netns/NAME`, as `ip netns exec` hides \
             /sys"
                .to_owned(),
        )
    });
    let read_only = of(UnusableCause::ReadOnly).map(|trees| {
        let first = trees.first().cloned().unwrap_or_default();
        finding(
            format!(
                "cgroup trees are mounted read-only, so the agent cannot create groups: {}",
                trees.join(" ")
            ),
            format!(
                "mount -o remount,rw {first}, likewise the others; start a container with \
                 writable trees (for example `--privileged \
                 --cgroupns=host`)"
            ),
        )
    });
    hidden.into_iter().chain(read_only).collect()
}

/// Missing controllers, each with the reason.
fn evaluate_controllers(host: &Host, facts: &CgroupFacts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (controller, purpose) in [
        (Controller::Cpu, "CPU weights and limits"),
        (Controller::Memory, "memory limits"),
        (Controller::Pids, "limits on processes"),
        (Controller::Blkio, "figures of block devices"),
    ] {
        if host.offers(controller) {
            continue;
        }
        // All except `blkio` are essential: without them a root agent has almost no isolation.
        let severity = match controller {
            Controller::Blkio => Severity::Warning,
            _ => Severity::Problem,
        };
        let in_kernel = facts.in_kernel.as_ref();
        let is_in_kernel = in_kernel.is_some_and(|enabled| enabled.contains(&controller));
        let (what, mend) = match &host.unified {
            Some(tree) if host.mode == Mode::Unified && is_in_kernel => {
                let (name, mount) = (controller.v2_name(), tree.mount.display());
                (
                    format!("controller {name} is not delegated to {mount}: no {purpose}"),
                    format!(
                        "Delegate=yes in the unit that this runs in; in a container, have the machine write \
                         +{name} to cgroup.subtree_control above its group, or share the machine's cgroup namespace"
                    ),
                )
            }
            _ => {
                let name = controller.name();
                (
                    format!("controller {name} is missing: no {purpose}"),
                    format!(
                        "remove cgroup_disable={name} from the kernel's command line, and mount \
                         the controller"
                    ),
                )
            }
        };
        findings.push(Finding {
            severity,
            what,
            mend,
        });
    }
    findings
}

fn evaluate_swap(swap: Swap, limit_swap: bool) -> Option<Finding> {
    const MEND: &str = "boot with swapaccount=1, or turn swap off (swapoff -a)";
    match swap {
        Swap::NotSeen => None,
        Swap::Accounted => Some(Finding::fine("swap counts towards limits of memory")),
        Swap::NotAccounted if limit_swap => Some(Finding::problem(
            "--cgroups_limit_swap: the kernel does not account swap",
            MEND,
        )),
        Swap::NotAccounted => Some(Finding::warning(
            "the kernel does not account swap: tasks can use swap without limit",
            MEND,
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use meseta_isolators::{Unified, UnusableTree, V1Hierarchy};

    use super::*;
    use crate::check::tests::flags;

    const ALL: [Controller; 4] = [
        Controller::Cpu,
        Controller::Memory,
        Controller::Pids,
        Controller::Blkio,
    ];

    fn unified(controllers: &[Controller]) -> Host {
        Host {
            proc: "/proc".into(),
            mode: Mode::Unified,
            v1: Vec::new(),
            unified: Some(Unified {
                mount: "/sys/fs/cgroup".into(),
                controllers: controllers.to_vec(),
            }),
            unusable: Vec::new(),
            privileged: true,
        }
    }

    fn troubles(host: &Host, facts: &CgroupFacts, more: &[&str]) -> Vec<Finding> {
        let findings = evaluate_host(host, facts, &flags(more)).into_iter();
        findings
            .filter(|one| one.severity > Severity::Fine)
            .collect()
    }

    #[test]
    fn sound_cgroup_tree_has_no_troubles() {
        let found = troubles(&unified(&ALL), &CgroupFacts::default(), &[]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn root_without_cgroups_fails_to_start() {
        let bare = Host {
            mode: Mode::None,
            unified: None,
            ..unified(&[])
        };
        let severity = |is_root, more: &[&str]| {
            let facts = CgroupFacts {
                is_root,
                ..CgroupFacts::default()
            };
            troubles(&bare, &facts, more)[0].severity
        };
        assert_eq!(severity(true, &[]), Severity::Problem);
        assert_eq!(severity(false, &[]), Severity::Warning);
        for accepted in ["--allow_weak_isolation", "--isolation=posix/cpu,posix/mem"] {
            assert_eq!(severity(true, &[accepted]), Severity::Warning);
        }
    }

    #[test]
    fn unusable_tree_is_named_with_remedy() {
        let facts = CgroupFacts {
            is_root: true,
            ..CgroupFacts::default()
        };
        let with = |cause| Host {
            mode: Mode::None,
            unified: None,
            unusable: vec![UnusableTree {
                mount: "/sys/fs/cgroup".into(),
                cause,
            }],
            ..unified(&[])
        };
        for (cause, cure) in [
            (UnusableCause::ReadOnly, "remount,rw"),
            (UnusableCause::Hidden, "nsenter"),
        ] {
            let found = troubles(&with(cause), &facts, &[]);
            assert_eq!(found[0].severity, Severity::Problem);
            assert!(found[0].what.ends_with(": /sys/fs/cgroup"));
            assert!(found[0].mend.contains(cure), "{}", found[0]);
            let accepted = troubles(&with(cause), &facts, &["--allow_weak_isolation"]);
            assert_eq!(accepted[0].severity, Severity::Warning);
        }
    }

    /// A controller missing from the kernel needs another remedy than a controller that is not delegated.
    #[test]
    fn missing_controller_differs_from_undelegated_controller() {
        let host = unified(&[Controller::Cpu, Controller::Pids, Controller::Blkio]);
        let facts = |in_kernel: &[Controller]| CgroupFacts {
            in_kernel: Some(in_kernel.to_vec()),
            ..CgroupFacts::default()
        };
        let found = troubles(&host, &facts(&ALL), &[]);
        assert!(
            found[0].what.contains("memory is not delegated"),
            "{found:?}"
        );
        assert!(found[0].mend.contains("Delegate=yes"), "{found:?}");
        let found = troubles(&host, &facts(&[Controller::Cpu]), &[]);
        assert!(found[0].mend.contains("cgroup_disable=memory"), "{found:?}");
        let legacy = Host {
            mode: Mode::Legacy,
            v1: vec![V1Hierarchy {
                mount: "/sys/fs/cgroup/cpu".into(),
                controllers: vec![Controller::Cpu],
            }],
            unified: None,
            ..unified(&[])
        };
        let found = troubles(&legacy, &facts(&ALL), &[]);
        assert!(found[0].mend.contains("mount the controller"), "{found:?}");
    }

    #[test]
    fn unaccounted_swap_blocks_swap_limits() {
        let facts = CgroupFacts {
            swap: Swap::NotAccounted,
            ..CgroupFacts::default()
        };
        let severity = |more: &[&str]| troubles(&unified(&ALL), &facts, more)[0].severity;
        assert_eq!(severity(&[]), Severity::Warning);
        assert_eq!(severity(&["--cgroups_limit_swap=true"]), Severity::Problem);
    }

    #[test]
    fn enabled_kernel_controllers_are_read() {
        let text = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t3\t50\t1\nmemory\t0\t1\t0\npids\t0\t1\t1\n";
        let found = enabled_controllers(text);
        assert!(found.contains(&Controller::Cpu) && found.contains(&Controller::Pids));
        assert!(!found.contains(&Controller::Memory));
    }

    #[test]
    fn swap_is_read_from_limited_group() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut host = unified(&ALL);
        host.proc = dir.path().join("proc");
        let mount = dir.path().join("cgroup");
        host.unified = Some(Unified {
            mount: mount.clone(),
            controllers: ALL.to_vec(),
        });
        let write = |path: PathBuf, text: &str| {
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        let swaps = host.proc.join("swaps");
        write(swaps.clone(), "Filename Type Size Used Priority\n");
        write(mount.join("system.slice/memory.max"), "max\n");
        assert_eq!(read_swap(&host), Swap::NotSeen, "there is no swap");
        write(
            swaps,
            "Filename Type Size Used Priority\n/swap file 1 0 -2\n",
        );
        assert_eq!(read_swap(&host), Swap::NotAccounted);
        write(mount.join("system.slice/memory.swap.max"), "max\n");
        assert_eq!(read_swap(&host), Swap::Accounted);
    }
}
