//! cgroups/devices: the device nodes that a container may make, read and write.
//!
//! Denies everything except making any node (without using it), the harmless character devices, terminals, and the operator's
//! additions. v1 has a list per group; on v2 a program attached to the group decides, which `crate::sys` builds and attaches,
//! and which lives as long as the group.

use super::{Isolator, Observed};
use crate::cgroup::{Controller, Groups, KnobError, KnobWrite, Version};
use crate::demand::Demand;
use crate::device_rule::DeviceRule;
use crate::sys::attach_device_program;

/// The plan's name for the v2 program; no control file begins with a parenthesis.
const PROGRAM: &str = "(device program)";

/// null, zero, full, random, urandom; tty0, tty1; tty, console, ptmx; tun; pseudo terminals.
const USUAL: [&str; 14] = [
    "c *:* m",
    "b *:* m",
    "c 1:3 rwm",
    "c 1:5 rwm",
    "c 1:7 rwm",
    "c 1:8 rwm",
    "c 1:9 rwm",
    "c 4:0 rwm",
    "c 4:1 rwm",
    "c 5:0 rwm",
    "c 5:1 rwm",
    "c 5:2 rwm",
    "c 10:200 rwm",
    "c 136:* rwm",
];

#[derive(Debug)]
pub(super) struct Devices {
    rules: Vec<DeviceRule>,
}

impl Devices {
    pub(super) fn new(more: &[DeviceRule]) -> Self {
        let usual = USUAL.iter().filter_map(|text| text.parse().ok());
        Self {
            rules: usual.chain(more.iter().copied()).collect(),
        }
    }
}

impl Isolator for Devices {
    fn name(&self) -> &'static str {
        "cgroups/devices"
    }

    fn controllers(&self) -> &'static [Controller] {
        &[Controller::Devices, Controller::Freezer]
    }

    /// Plans only for a new group: the list does not depend on the demand, and v1 never widens it again.
    fn plan(&self, _demand: &Demand, groups: &Groups, observed: &Observed) -> Vec<KnobWrite> {
        let (Some(group), true) = (groups.get(Controller::Devices), observed.fresh) else {
            return Vec::new();
        };
        let write = |file, value: String| KnobWrite::new(Controller::Devices, file, value);
        match group.version {
            Version::V1 => {
                let allowed = self.rules.iter();
                let allowed = allowed.map(|rule| write("devices.allow", rule.to_string()));
                let mut plan = vec![write("devices.deny", "a".to_owned())];
                plan.extend(allowed);
                plan
            }
            Version::V2 => {
                let lines: Vec<_> = self.rules.iter().map(DeviceRule::to_string).collect();
                vec![write(PROGRAM, lines.join("\n"))]
            }
        }
    }

    fn apply(&self, groups: &Groups, plan: &[KnobWrite]) -> Result<(), KnobError> {
        for write in plan {
            let group = groups.get(Controller::Devices);
            let Some(group) = group.filter(|_| write.file == PROGRAM) else {
                groups.write(write)?;
                continue;
            };
            let rules = write.value.lines().filter_map(|line| line.parse().ok());
            let attached = attach_device_program(&group.dir, &rules.collect::<Vec<_>>());
            attached.map_err(|source| KnobError::Write {
                path: group.dir.join(PROGRAM),
                value: write.value.clone(),
                source,
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{FRESH, group_of, plan_text};
    use super::*;

    #[test]
    fn rules_are_read_and_shown() {
        for text in USUAL.iter().chain(&["b 8:* r"]) {
            assert_eq!(text.parse::<DeviceRule>().expect(text).to_string(), *text);
        }
    }

    #[test]
    fn devices_are_denied_before_allowed() {
        let more = ["c 10:229 rw".parse().expect("good")];
        let isolator = Devices::new(&more);
        let none = Demand::default();
        let v1 = plan_text(
            &isolator,
            &none,
            &group_of(Version::V1, Controller::Devices),
            &FRESH,
        );
        assert!(
            v1.starts_with("devices.deny=a devices.allow=c *:* m"),
            "{v1}"
        );
        assert!(v1.ends_with("devices.allow=c 136:* rwm devices.allow=c 10:229 rw"));
        let v2 = plan_text(
            &isolator,
            &none,
            &group_of(Version::V2, Controller::Devices),
            &FRESH,
        );
        assert_eq!(v2.lines().count(), USUAL.len() + 1);
        for version in [Version::V1, Version::V2] {
            let groups = group_of(version, Controller::Devices);
            assert_eq!(
                plan_text(&isolator, &none, &groups, &Observed::default()),
                ""
            );
        }
    }
}
