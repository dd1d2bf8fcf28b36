//! Compares the limits in force with the requested limits: a pure comparison of knobs.
//!
//! The kernel shows some values differently from the written text: rounded to pages, or `-1` as the largest number. Such
//! values count as equal. Write-only knobs are not compared.

use super::{Controller, KnobWrite, UNLIMITED_MIN_BYTES};

/// Memory limits are rounded down to pages, of 64 KiB at most.
const PAGE_MAX: u64 = 64 << 10;

/// Files that the kernel does not show as they were written.
const WRITE_ONLY: [&str; 3] = ["devices.allow", "devices.deny", "(device program)"];

/// The files that an update never lowers under a running task, so a higher value may be from an earlier demand.
const ONLY_RAISED: [&str; 3] = [
    "memory.limit_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.max",
];

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum DriftKind {
    /// The file holds another value.
    Differs,
    /// The file is missing.
    Missing,
    /// A hard memory limit is higher than requested; [`crate::Containers::shrink_memory`] lowers it.
    Higher,
}

/// A knob whose value differs from the requested value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Drift {
    pub controller: Controller,
    pub file: &'static str,
    pub requested: String,
    pub found: Option<String>,
    pub kind: DriftKind,
}

/// Compares the writes of a plan with the values from `read`.
pub(crate) fn drifts(
    requested: &[KnobWrite],
    mut read: impl FnMut(&KnobWrite) -> Option<String>,
) -> Vec<Drift> {
    let mut found = Vec::new();
    for (place, write) in requested.iter().enumerate() {
        let later = requested.iter().skip(place + 1);
        let overwritten = later.into_iter().any(|one| one.file == write.file);
        if overwritten || WRITE_ONLY.contains(&write.file) {
            continue;
        }
        let text = read(write).map(|text| text.trim().to_owned());
        let kind = match &text {
            None if write.optional => None,
            None => Some(DriftKind::Missing),
            Some(text) => difference(write, text),
        };
        found.extend(kind.map(|kind| Drift {
            controller: write.controller,
            file: write.file,
            requested: write.value.clone(),
            found: text,
            kind,
        }));
    }
    found
}

fn difference(write: &KnobWrite, found: &str) -> Option<DriftKind> {
    let (requested, held) = (value(&write.value), value(found));
    let (Value::Number(requested), Value::Number(held)) = (&requested, &held) else {
        return (requested != held).then_some(DriftKind::Differs);
    };
    let rounding = if write.controller == Controller::Memory {
        PAGE_MAX
    } else {
        1
    };
    if held <= requested && requested - held < rounding {
        None
    } else if held > requested && ONLY_RAISED.contains(&write.file) {
        Some(DriftKind::Higher)
    } else {
        Some(DriftKind::Differs)
    }
}

#[derive(Debug, Eq, PartialEq)]
enum Value<'a> {
    Number(u64),
    Text(&'a str),
}

/// Parses a value; an unlimited value is the highest of all.
fn value(text: &str) -> Value<'_> {
    match text {
        "-1" | "max" => Value::Number(u64::MAX),
        text => match text.parse() {
            Ok(number) if number >= UNLIMITED_MIN_BYTES => Value::Number(u64::MAX),
            Ok(number) => Value::Number(number),
            Err(_) => Value::Text(text),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(
        controller: Controller,
        file: &'static str,
        requested: &str,
        found: &str,
    ) -> Option<DriftKind> {
        let write = KnobWrite::new(controller, file, requested);
        let found = drifts(&[write], |_| Some(format!("{found}\n")));
        found.first().map(|drift| drift.kind)
    }

    #[test]
    fn equivalent_values_are_no_drift() {
        use Controller::{Cpu, Memory, Pids};
        use DriftKind::{Differs, Higher};
        let v1 = "memory.limit_in_bytes";
        for (controller, file, requested, found, expected) in [
            (Memory, v1, "-1", "9223372036854771712", None),
            (Memory, "memory.max", "max", "max", None),
            (Memory, "memory.max", "67108865", "67108864", None),
            (Memory, "memory.max", "67108864", "134217728", Some(Higher)),
            (Memory, v1, "67108864", "9223372036854771712", Some(Higher)),
            (Memory, "memory.max", "134217728", "67108864", Some(Differs)),
            (Memory, "memory.low", "33554432", "67108864", Some(Differs)),
            (Memory, "memory.max", "max", "67108864", Some(Differs)),
            (Cpu, "cpu.max", "50000 100000", "50000 100000", None),
            (Cpu, "cpu.max", "50000 100000", "max 100000", Some(Differs)),
            (Cpu, "cpu.shares", "512", "511", Some(Differs)),
            (Pids, "pids.max", "max", "max", None),
            (Pids, "pids.max", "64", "max", Some(Differs)),
        ] {
            assert_eq!(
                kind(controller, file, requested, found),
                expected,
                "{file} {requested} {found}"
            );
        }
    }

    #[test]
    fn missing_required_knob_is_drift() {
        let must = KnobWrite::new(Controller::Cpu, "cpu.shares", 2);
        let may = KnobWrite::optional(Controller::Cpu, "cpu.idle", 1);
        let blind = KnobWrite::new(Controller::Devices, "devices.deny", "a");
        let found = drifts(&[must, may, blind], |_| None);
        let kinds: Vec<_> = found.iter().map(|drift| (drift.file, drift.kind)).collect();
        assert_eq!(kinds, [("cpu.shares", DriftKind::Missing)]);
    }
}
