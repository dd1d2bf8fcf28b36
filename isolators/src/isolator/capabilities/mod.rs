//! linux/capabilities: the root rights of a container.
//!
//! The operator's set is the bounding set of root's containers and their set at the start; containers of other users have
//! none, and cannot get any. A task may request less, or, not being root, parts of the operator's set by name; it can never
//! have more. Invariant: a container that is not root's has no capability in any set that affects other users or the node
//! ([`CAPABILITIES`]), unless the operator granted it.

mod table;

use std::fmt;
use std::str::FromStr;

use super::{ContainerSpec, Isolator, NodeOptions};
use crate::launcher::{CapabilitySets, LaunchIsolation};

pub use table::{CAPABILITIES, CapabilityEntry, Reach};

/// The default capabilities of root's containers: those for starting a service as another user and handling its own files.
/// Narrower than the default of container engines, because our containers see the host's files: no device nodes, no raw
/// sockets, no file capabilities.
const STANDARD: [caps::Capability; 9] = [
    caps::Capability::CAP_CHOWN,
    caps::Capability::CAP_DAC_OVERRIDE,
    caps::Capability::CAP_FOWNER,
    caps::Capability::CAP_FSETID,
    caps::Capability::CAP_KILL,
    caps::Capability::CAP_NET_BIND_SERVICE,
    caps::Capability::CAP_SETGID,
    caps::Capability::CAP_SETUID,
    caps::Capability::CAP_SYS_CHROOT,
];

#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct CapabilitySet(u64);

#[derive(Debug, thiserror::Error, Eq, PartialEq)]
#[error("unknown capability {0:?}")]
pub struct UnknownCapability(String);

impl CapabilitySet {
    pub const EMPTY: Self = Self(0);

    /// The default of the operator's set.
    pub fn standard() -> Self {
        Self(STANDARD.iter().fold(0, |all, one| all | one.bitmask()))
    }

    /// The capabilities that affect only the task that has them.
    pub fn of_the_task_alone() -> Self {
        let entries = CAPABILITIES.iter().enumerate();
        let alone = entries.filter(|(_, entry)| entry.reach == Reach::Task);
        Self(alone.fold(0, |bits, (number, _)| bits | 1 << number))
    }

    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Reads names, with or without `CAP_`, in any case.
    pub fn from_names<'a>(
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, UnknownCapability> {
        let mut set = 0;
        for name in names {
            let full = name.trim().to_ascii_uppercase();
            let full = full.strip_prefix("CAP_").unwrap_or(&full);
            let one = caps::Capability::from_str(&format!("CAP_{full}"))
                .map_err(|_| UnknownCapability(name.to_owned()))?;
            set |= one.bitmask();
        }
        Ok(Self(set))
    }

    /// Removes the capabilities that this process has lost for good, as a unit's `CapabilityBoundingSet=` removes them: the
    /// process could not pass them to a task.
    pub(super) fn within_reach(self) -> Self {
        let Ok(held) = caps::read(None, caps::CapSet::Bounding) else {
            return self;
        };
        let held = held.iter().fold(0, |bits, one| bits | one.bitmask());
        Self(self.0 & held)
    }

    pub(super) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The kernel's format: bit n for capability number n.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Whether the other set has all of this one.
    pub fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Whether the set has a capability of this name.
    pub fn has(self, name: &str) -> bool {
        Self::from_names([name]).is_ok_and(|one| one.is_within(self))
    }
}

impl fmt::Display for CapabilitySet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<_> = caps::all()
            .into_iter()
            .filter(|one| self.0 & one.bitmask() != 0)
            .map(|one| one.to_string())
            .collect();
        names.sort_unstable();
        out.write_str(&names.join(","))
    }
}

/// The capabilities that a task requests. Both sets must be within the operator's set, and for users other than root within
/// the capabilities that affect the task alone or were granted.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct CapabilityRequest {
    /// The upper limit for every program of the task.
    pub bounding: Option<CapabilitySet>,
    /// The set at the start of the task.
    pub effective: Option<CapabilitySet>,
    /// The grant of the operator to the task's user or role beyond capabilities that affect the task alone. The task has no
    /// influence on it.
    pub granted: CapabilitySet,
}

#[derive(Debug)]
pub(super) struct Capabilities {
    allowed: CapabilitySet,
    granted: Option<CapabilitySet>,
}

impl Capabilities {
    pub(super) fn new(node: &NodeOptions) -> Self {
        Self {
            allowed: node.capabilities.within_reach(),
            granted: node.granted_capabilities,
        }
    }

    fn sets(&self, root: bool, request: CapabilityRequest) -> Result<CapabilitySets, String> {
        let own = CapabilitySet::of_the_task_alone();
        let given = request.granted.union(self.granted.unwrap_or_default());
        for asked in [request.bounding, request.effective].into_iter().flatten() {
            let more = asked.without(self.allowed);
            if !more.is_empty() {
                return Err(format!("capabilities {more} are not allowed to tasks"));
            }
            let more = asked.without(own.union(given));
            if !root && !more.is_empty() {
                return Err(format!(
                    "capabilities {more} reach other users or the node, and this container is not \
                     root's: leave them out, or have the operator grant them to its user or role \
                     (--granted_capabilities)"
                ));
            }
        }
        let usual = match self.granted {
            Some(granted) => CapabilitySet(granted.0 & self.allowed.0),
            None if root => self.allowed,
            None => CapabilitySet::EMPTY,
        };
        // A request with only one of the two sets bounds or widens the other.
        let effective = request
            .effective
            .unwrap_or(CapabilitySet(request.bounding.unwrap_or(usual).0 & usual.0));
        let bounding = request
            .bounding
            .unwrap_or(CapabilitySet(usual.0 | effective.0));
        if !effective.is_within(bounding) {
            let more = CapabilitySet(effective.0 & !bounding.0);
            return Err(format!("capabilities {more} are not in the bounding set"));
        }
        Ok(CapabilitySets {
            bounding: bounding.0,
            effective: effective.0,
        })
    }
}

impl Isolator for Capabilities {
    fn name(&self) -> &'static str {
        "linux/capabilities"
    }

    fn launch(&self, spec: &ContainerSpec, launch: &mut LaunchIsolation) -> Result<(), String> {
        // Only root uses this isolator, so a container without a user of its own is root's.
        let root = spec.credentials.as_ref().is_none_or(|user| user.uid == 0);
        launch.capabilities = Some(self.sets(root, spec.isolation.capabilities)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &str) -> CapabilitySet {
        CapabilitySet::from_names(names.split(',').filter(|name| !name.is_empty())).expect("known")
    }

    #[test]
    fn names_are_read_and_shown() {
        assert_eq!(set("chown,CAP_KILL").to_string(), "CAP_CHOWN,CAP_KILL");
        assert_eq!(set("").to_string(), "");
        assert_eq!(
            CapabilitySet::from_names(["CHOWN", "FLY"]),
            Err(UnknownCapability("FLY".to_owned()))
        );
        assert!(!CapabilitySet::standard().has("SYS_ADMIN"));
        assert!(CapabilitySet::standard().has("CAP_CHOWN"));
    }

    #[test]
    fn capabilities_stay_within_operator_limits() {
        let node = NodeOptions {
            capabilities: set("CHOWN,KILL,SETUID"),
            ..NodeOptions::default()
        };
        let isolator = Capabilities::new(&node);
        let sets = |root, bounding: Option<&str>, effective: Option<&str>| {
            let request = CapabilityRequest {
                bounding: bounding.map(set),
                effective: effective.map(set),
                granted: set("CHOWN,KILL"),
            };
            isolator
                .sets(root, request)
                .map(|sets| (sets.bounding, sets.effective))
        };
        let bits = |bounding, effective| Ok((set(bounding).bits(), set(effective).bits()));
        let all = "CHOWN,KILL,SETUID";
        assert_eq!(sets(true, None, None), bits(all, all));
        assert_eq!(sets(false, None, None), bits("", ""));
        assert_eq!(sets(true, Some("KILL"), None), bits("KILL", "KILL"));
        assert_eq!(sets(false, Some("KILL"), None), bits("KILL", ""));
        assert_eq!(sets(true, None, Some("")), bits(all, ""));
        assert_eq!(sets(false, None, Some("KILL")), bits("KILL", "KILL"));
        assert!(sets(true, Some("SYS_ADMIN"), None).is_err());
        let error = sets(false, None, Some("SYS_PTRACE,KILL")).expect_err("too much");
        assert_eq!(
            error,
            "capabilities CAP_SYS_PTRACE are not allowed to tasks"
        );
        assert!(sets(true, Some("KILL"), Some("CHOWN")).is_err());
    }

    /// Tests each of the kernel's capabilities, with an operator who allows all of them to containers.
    #[test]
    fn dangerous_capabilities_need_root_or_grant() {
        let names = CAPABILITIES.map(|entry| entry.name);
        let all = CapabilitySet::from_names(names).expect("known");
        let isolator = Capabilities {
            allowed: all,
            granted: None,
        };
        for entry in CAPABILITIES {
            let one = set(entry.name);
            let request = |bounding, effective, granted| CapabilityRequest {
                bounding,
                effective,
                granted,
            };
            let none = CapabilitySet::EMPTY;
            for asked in [
                request(None, Some(one), none),
                request(Some(one), None, none),
                request(Some(one), Some(none), none),
                request(None, Some(one), all.without(one)),
            ] {
                assert!(isolator.sets(true, asked).is_ok(), "{asked:?}");
                let got = isolator.sets(false, asked);
                if entry.reach == Reach::Task {
                    assert!(got.is_ok(), "{asked:?}: {got:?}");
                } else {
                    let error = got.expect_err(entry.name);
                    assert!(
                        error.contains(&format!("CAP_{} reach", entry.name)),
                        "{error}"
                    );
                    assert!(error.contains("--granted_capabilities"), "{error}");
                }
            }
            // A granted capability is in effect if requested, and in no other set than requested.
            let granted = isolator.sets(false, request(None, Some(one), one));
            let bits = one.bits();
            let expected = CapabilitySets {
                bounding: bits,
                effective: bits,
            };
            assert_eq!(granted, Ok(expected));
            let unasked = isolator.sets(false, request(None, None, all));
            assert_eq!(unasked, Ok(CapabilitySets::default()));
        }
    }

    #[test]
    fn granted_capabilities_apply_to_every_container() {
        let node = NodeOptions {
            capabilities: set("CHOWN,KILL,NET_RAW"),
            granted_capabilities: Some(set("NET_RAW")),
            ..NodeOptions::default()
        };
        let isolator = Capabilities::new(&node);
        for root in [true, false] {
            let sets = isolator.sets(root, CapabilityRequest::default());
            let sets = sets.expect("granted");
            assert_eq!(sets.effective, set("NET_RAW").bits());
            assert_eq!(sets.bounding, set("NET_RAW").bits());
        }
    }
}
