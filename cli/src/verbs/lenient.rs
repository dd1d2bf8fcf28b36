//! Values in the form that people write: `3s` for `3secs`, `mem:1G` for `mem:1024`, and the nearest name of a resource.

use std::time::Duration;

use anyhow::{Context as _, bail};
use meseta_proto::convert;
use meseta_resources::{DurationError, Resources, Role};

/// Units of durations that Mesos does not know.
const UNITS: [(&str, &str); 8] = [
    ("s", "secs"),
    ("sec", "secs"),
    ("m", "mins"),
    ("min", "mins"),
    ("h", "hrs"),
    ("hr", "hrs"),
    ("d", "days"),
    ("w", "weeks"),
];

/// Parses a duration, with Mesos's units or shorter ones.
pub(crate) fn duration(text: &str) -> Result<Duration, DurationError> {
    let parse = meseta_resources::parse_duration;
    let error = match parse(text) {
        Ok(duration) => return Ok(duration),
        Err(error) => error,
    };
    let known = UNITS.iter().find_map(|(short, long)| {
        let number = text.strip_suffix(short)?;
        parse(&format!("{number}{long}")).ok()
    });
    known.ok_or(error)
}

/// Resources that are measured in MB.
const IN_MB: [&str; 2] = ["mem", "disk"];
/// The number of MB in each unit, as a factor of binary thousands.
const SIZES: [(&str, f64); 4] = [
    ("K", 1.0 / 1024.0),
    ("M", 1.0),
    ("G", 1024.0),
    ("T", 1024.0 * 1024.0),
];
/// Resources that every agent has, and their common wrong names.
const MISTAKEN: [(&str, &str); 11] = [
    ("cpu", "cpus"),
    ("core", "cpus"),
    ("cores", "cpus"),
    ("vcpus", "cpus"),
    ("memory", "mem"),
    ("mems", "mem"),
    ("ram", "mem"),
    ("disks", "disk"),
    ("storage", "disk"),
    ("port", "ports"),
    ("gpu", "gpus"),
];

/// Parses `name:value;...` with sizes in MB, given by this flag.
///
/// # Errors
///
/// For invalid resources, and for none at all.
pub(super) fn some_resources(flag: &str, text: &str) -> anyhow::Result<Resources> {
    let plain = resources(flag, text)?;
    let given = convert::parse_resources(&plain, &Role::star());
    let given = given.with_context(|| flag.to_owned())?;
    if given.is_empty() {
        bail!("{flag} is empty; give for example 'cpus:0.5;mem:64'");
    }
    Ok(given)
}

/// Returns `name:value;...` in the form of the daemons.
///
/// # Errors
///
/// For a name that is almost that of a resource: the wait for an offer with it would never end.
fn resources(flag: &str, text: &str) -> anyhow::Result<String> {
    // JSON needs no correction.
    if text.trim_start().starts_with(['[', '{']) {
        return Ok(text.to_owned());
    }
    let mut parts = Vec::new();
    for part in text.split(';') {
        let Some((name, value)) = part.split_once(':') else {
            parts.push(part.to_owned());
            continue;
        };
        let plain = name.split('(').next().unwrap_or_default().trim();
        if let Some((_, meant)) = MISTAKEN.iter().find(|(known, _)| *known == plain) {
            bail!("{flag}={text:?}: no agent offers {plain:?}; write {meant:?}");
        }
        match in_mb(plain, value.trim()) {
            Some(mb) => parts.push(format!("{name}:{mb}")),
            None => parts.push(part.to_owned()),
        }
    }
    Ok(parts.join(";"))
}

/// Returns a size with a unit as a number of MB; `None` for a value without a unit.
fn in_mb(name: &str, value: &str) -> Option<f64> {
    if !IN_MB.contains(&name) {
        return None;
    }
    let upper = value.to_ascii_uppercase();
    let upper = upper
        .strip_suffix("IB")
        .or(upper.strip_suffix('B'))
        .unwrap_or(&upper);
    let (number, factor) = SIZES
        .iter()
        .find_map(|(unit, factor)| Some((upper.strip_suffix(unit)?, *factor)))?;
    let number: f64 = number.trim().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_may_be_short() {
        for (text, seconds) in [
            ("3s", 3),
            ("3secs", 3),
            ("2m", 120),
            ("1.5h", 5400),
            ("1d", 86400),
            ("5mins", 300),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(duration("3ms"), Ok(Duration::from_millis(3)));
        for text in ["3", "s", "3x", "", "-3s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_may_have_units() {
        for (text, expected) in [
            ("cpus:1;mem:1G", "cpus:1;mem:1024"),
            ("mem:512MB;disk:2GiB", "mem:512;disk:2048"),
            ("mem:512K", "mem:0.5"),
            ("cpus:0.5;mem:64", "cpus:0.5;mem:64"),
            ("cpus:1G", "cpus:1G"),
            ("ports:[31000-31001]", "ports:[31000-31001]"),
            ("[{\"name\":\"cpu\"}]", "[{\"name\":\"cpu\"}]"),
            ("licences:2", "licences:2"),
        ] {
            assert_eq!(resources("--needs", text).expect(text), expected, "{text}");
        }
    }

    #[test]
    fn a_near_name_is_named() {
        for (text, word) in [("cpu:1", "\"cpus\""), ("cpus:1;memory:64", "\"mem\"")] {
            let error = resources("--needs", text).expect_err(text).to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
