//! Finds isolation weaker than requested, or than the default for root's tasks.
//!
//! Entered through [`Weakness::find`] with the features of the machine; pure. Invariant: an agent whose isolation is
//! weaker than its flags require does not start, unless its operator accepts that.

use meseta_isolators::{Host, Isolation, Mode, UnusableCause};

use super::flags::Flags;

/// The reasons why the isolation is weaker than requested.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Weakness {
    /// Reasons not to start.
    pub(crate) grave: Vec<String>,
    /// Reasons for a warning.
    pub(crate) slight: Vec<String>,
}

/// A given flag that has no effect without an isolator.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct Request {
    flag: &'static str,
    isolator: &'static str,
}

/// The given flags that limit tasks by means of a single isolator.
pub(super) fn requests(flags: &Flags) -> Vec<Request> {
    let isolation = &flags.isolation;
    let given = [
        (
            "cgroups_enable_cfs",
            "cgroups/cpu",
            flags.cgroups_enable_cfs,
        ),
        (
            "cgroups_limit_swap",
            "cgroups/mem",
            flags.cgroups_limit_swap,
        ),
        (
            "seccomp_profile_name",
            "linux/seccomp",
            isolation.seccomp_profile_name.is_some(),
        ),
        (
            "effective_capabilities",
            "linux/capabilities",
            isolation.effective_capabilities.is_some(),
        ),
        (
            "bounding_capabilities",
            "linux/capabilities",
            isolation.bounding_capabilities.is_some(),
        ),
        (
            "allowed_devices",
            "cgroups/devices",
            isolation.allowed_devices.is_some(),
        ),
    ];
    let given = given.into_iter().filter(|(_, _, is_given)| *is_given);
    given
        .map(|(flag, isolator, _)| Request { flag, isolator })
        .collect()
}

impl Weakness {
    /// Compares the isolators in use with the given flags and, unless isolators were named, with the default for root.
    pub(super) fn find(
        isolation: &Isolation,
        is_named: bool,
        requests: &[Request],
        host: &Host,
        is_root: bool,
    ) -> Self {
        let unmet = requests.iter().filter(|one| !isolation.has(one.isolator));
        let unmet = unmet.map(|Request { flag, isolator }| {
            format!("--{flag} does nothing without the isolator {isolator}")
        });
        let mut weakness = Self {
            grave: unmet.collect(),
            slight: Vec::new(),
        };
        if is_root && !is_named {
            let (needed, hardening) = Isolation::lacking(host);
            let why = reason(host);
            let text = |names: &[&str]| format!("tasks are without {} ({why})", names.join(", "));
            if !needed.is_empty() {
                weakness.grave.push(text(&needed));
            }
            if !hardening.is_empty() {
                weakness.slight.push(text(&hardening));
            }
            // The remaining trees limit tasks, but kill and measure them less well.
            if !host.unusable.is_empty() && weakness.all().next().is_none() {
                weakness.slight.push(unusable(host));
            }
        }
        weakness
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &String> {
        self.grave.iter().chain(&self.slight)
    }
}

/// The reason why a host offers root less than other hosts do, and the remedy.
fn reason(host: &Host) -> String {
    if !host.privileged {
        "root lacks CAP_SYS_ADMIN here: start a container with `--privileged --cgroupns=host`"
            .to_owned()
    } else if !host.unusable.is_empty() {
        unusable(host)
    } else if host.mode == Mode::None {
        format!("no cgroups are mounted here: mount cgroup2 at /sys/fs/cgroup; {IN_NAMESPACES}")
    } else {
        "their cgroup controllers are not available here".to_owned()
    }
}

/// Cgroup trees that a message names.
const TREES_NAMED: usize = 2;

/// The remedy in network namespaces and containers, which often have no cgroups.
const IN_NAMESPACES: &str = "in a network namespace start the agent with `nsenter --net=/run/netns/NAME` instead of `ip netns \
                             exec`, and a container with `--privileged --cgroupns=host`";

/// Names the cgroup trees in which the agent can make no group, with the remedy.
pub(super) fn unusable(host: &Host) -> String {
    let of = |cause: UnusableCause| {
        let trees = host.unusable.iter().filter(|tree| tree.cause == cause);
        let mut trees: Vec<_> = trees.map(|tree| tree.mount.display().to_string()).collect();
        let more = trees.len().saturating_sub(TREES_NAMED);
        trees.truncate(TREES_NAMED);
        let named = trees.join(", ");
        match (trees.is_empty(), more) {
            (true, _) => None,
            (false, 0) => Some(named),
            (false, more) => Some(format!("{named} and {more} more")),
        }
    };
    let hidden = of(UnusableCause::Hidden).map(|trees| {
        format!("another mount, of /sys say, hides the cgroup trees {trees}: unmount it")
    });
    let read_only = of(UnusableCause::ReadOnly).map(|trees| {
        format!(
            "the cgroup trees {trees} are mounted read-only: make each writable with `mount -o remount,rw`"
        )
    });
    let found: Vec<_> = hidden.into_iter().chain(read_only).collect();
    format!("{}; {IN_NAMESPACES}", found.join("; "))
}

/// Describes how isolation on this machine is weaker than usual for root; `None` if it is not weaker.
pub fn weak_isolation() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        let text = "not root: tasks run as this user, without cgroups and namespaces";
        return Some(text.to_owned());
    }
    let host = Host::detect().ok()?;
    let isolation = Isolation::hardened_for(&host);
    let weakness = Weakness::find(&isolation, false, &[], &host, true);
    // Where one of the serious parts is missing, the hardening parts are missing too.
    let worst = match weakness.grave.is_empty() {
        true => weakness.slight,
        false => weakness.grave,
    };
    (!worst.is_empty()).then(|| worst.join("; "))
}

#[cfg(test)]
mod tests {
    use meseta_isolators::UnusableTree;

    use super::*;

    fn host(privileged: bool, mode: Mode) -> Host {
        Host {
            proc: "/proc".into(),
            mode,
            v1: Vec::new(),
            unified: None,
            unusable: Vec::new(),
            privileged,
        }
    }

    #[test]
    fn root_without_cgroups_warns_without_isolators() {
        let bare = host(true, Mode::None);
        let isolation = Isolation::hardened_for(&bare);
        let find = |is_named, is_root| Weakness::find(&isolation, is_named, &[], &bare, is_root);
        let found = find(false, true);
        assert!(found.grave[0].contains("cgroups/mem"), "{found:?}");
        assert!(
            found.grave[0].contains("no cgroups are mounted"),
            "{found:?}"
        );
        assert!(found.slight[0].contains("linux/capabilities"), "{found:?}");
        assert_eq!(find(true, true), Weakness::default());
        assert_eq!(find(false, false), Weakness::default());
        let hidden = Host {
            unusable: vec![UnusableTree {
                mount: "/sys/fs/cgroup/memory".into(),
                cause: UnusableCause::Hidden,
            }],
            ..bare.clone()
        };
        let found = Weakness::find(&isolation, false, &[], &hidden, true);
        let names_tree =
            |text: &String| text.contains("hides the cgroup trees /sys/fs/cgroup/memory:");
        assert!(found.grave.iter().all(names_tree), "{found:?}");
        assert!(found.grave[0].contains("nsenter --net="), "{found:?}");
        let powerless = host(false, Mode::Unified);
        let found = Weakness::find(&isolation, false, &[], &powerless, true);
        assert!(found.grave[0].contains("CAP_SYS_ADMIN"), "{found:?}");
    }

    #[test]
    fn flag_without_its_isolator_warns() {
        let requests = [Request {
            flag: "cgroups_enable_cfs",
            isolator: "cgroups/cpu",
        }];
        let find = |names: &str| {
            let isolation = Isolation::parse(names).expect("known");
            Weakness::find(&isolation, true, &requests, &host(true, Mode::None), true).grave
        };
        let none: Vec<String> = Vec::new();
        assert_eq!(find("cgroups/all"), none);
        assert!(find("posix/cpu,posix/mem")[0].contains("--cgroups_enable_cfs"));
    }
}
