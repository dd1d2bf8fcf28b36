//! A single line of a container's device list, as v1 writes it: `c 1:3 rwm`.

use std::fmt;
use std::str::FromStr;

/// Kinds of device nodes.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum DeviceKind {
    Character,
    Block,
}

/// A rule of a device list: `c 1:3 rwm`.
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

/// The text is not a line of a device list.
#[derive(Debug, thiserror::Error, Eq, PartialEq)]
#[error("{0:?} is not a device rule: expected for example \"c 1:3 rwm\" or \"b 8:* r\"")]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_device_rule_is_refused() {
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
}
