//! cgroups/devices: which device nodes a container may make, read and write.
//!
//! Everything is denied but making any node (which says nothing of using it), the harmless character
//! devices, terminals, and what the operator adds. v1 has a list per group; on v2 a program attached to
//! the group decides, which `crate::sys` builds and attaches, and which lives as long as the group.

use std::fmt;
use std::str::FromStr;

use super::{Isolator, Observed};
use crate::cgroup::{Controller, Groups, KnobError, KnobWrite, Version};
use crate::demand::Demand;
use crate::sys::attach_device_program;

pub(super) const CONTROLLERS: [Controller; 2] = [Controller::Devices, Controller::Freezer];

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

/// Kinds of device nodes.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum DeviceKind {
    Character,
    Block,
}

/// One line of a device list: `c 1:3 rwm`.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct DeviceRule {
    pub kind: DeviceKind,
    /// Major number; `None` is any.
    pub major: Option<u32>,
    /// Minor number; `None` is any.
    pub minor: Option<u32>,
    /// Whether nodes may be read.
    pub read: bool,
    /// Whether nodes may be written.
    pub write: bool,
    /// Whether nodes may be made.
    pub mknod: bool,
}

/// A text is no line of a device list.
#[derive(Debug, thiserror::Error, Eq, PartialEq)]
#[error("{0:?} is no device rule: expected for example \"c 1:3 rwm\" or \"b 8:* r\"")]
pub struct DeviceRuleError(String);

impl FromStr for DeviceRule {
    type Err = DeviceRuleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let mut words = text.split_ascii_whitespace();
            let kind = match words.next()? {
                "c" => DeviceKind::Character,
                "b" => DeviceKind::Block,
                _ => return None,
            };
            let (major, minor) = words.next()?.split_once(':')?;
            let number = |text: &str| match text {
                "*" => Some(None),
                text => text.parse().ok().map(Some),
            };
            let access = words.next()?;
            let known = access.bytes().all(|one| b"rwm".contains(&one));
            if access.is_empty() || !known || words.next().is_some() {
                return None;
            }
            Some(Self {
                kind,
                major: number(major)?,
                minor: number(minor)?,
                read: access.contains('r'),
                write: access.contains('w'),
                mknod: access.contains('m'),
            })
        };
        parse().ok_or_else(|| DeviceRuleError(text.to_owned()))
    }
}

impl fmt::Display for DeviceRule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            DeviceKind::Character => 'c',
            DeviceKind::Block => 'b',
        };
        let number = |number: Option<u32>| number.map_or("*".to_owned(), |one| one.to_string());
        let access = [(self.read, 'r'), (self.write, 'w'), (self.mknod, 'm')];
        let access = access.into_iter().filter(|(on, _)| *on);
        let access: String = access.map(|(_, letter)| letter).collect();
        write!(
            out,
            "{kind} {}:{} {access}",
            number(self.major),
            number(self.minor)
        )
    }
}

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
        &CONTROLLERS
    }

    /// Only for a new group: the list does not depend on the demand, and v1 takes it back for no one.
    fn plan(&self, _demand: &Demand, groups: &Groups, observed: &Observed) -> Vec<KnobWrite> {
        let (Some(group), true) = (groups.of(Controller::Devices), observed.fresh) else {
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
            let group = groups.of(Controller::Devices);
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
    use super::super::testing::{group_of, plan_text};
    use super::*;

    #[test]
    fn rules_are_read_and_shown() {
        for text in USUAL.iter().chain(&["b 8:* r"]) {
            assert_eq!(text.parse::<DeviceRule>().expect(text).to_string(), *text);
        }
        for bad in [
            "",
            "c",
            "c 1 rwm",
            "d 1:3 r",
            "c 1:3",
            "c 1:3 x",
            "c 1:3 r w",
            "c -1:3 r",
        ] {
            let error = bad.parse::<DeviceRule>().expect_err("bad");
            assert_eq!(error, DeviceRuleError(bad.to_owned()));
        }
    }

    #[test]
    fn all_is_denied_before_anything_is_allowed() {
        let more = ["c 10:229 rw".parse().expect("good")];
        let isolator = Devices::new(&more);
        let none = Demand::default();
        let v1 = plan_text(
            &isolator,
            &none,
            &group_of(Version::V1, Controller::Devices),
            true,
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
            true,
        );
        assert_eq!(v2.lines().count(), USUAL.len() + 1);
        for version in [Version::V1, Version::V2] {
            let groups = group_of(version, Controller::Devices);
            assert_eq!(plan_text(&isolator, &none, &groups, false), "");
        }
    }
}
