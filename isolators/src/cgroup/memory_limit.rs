//! The hard limit of memory: its files, and the limit in force.

use std::io;

use super::{GroupDir, Version, control_text};
use crate::demand::Limit;

/// v1 shows "no limit" as the largest page-aligned `i64`, whatever the page size.
pub(crate) const UNLIMITED_MIN_BYTES: u64 = (1 << 63) - (1 << 20);

/// Converts a number of bytes to a limit; numbers beyond the memory of any machine are [`Limit::Unlimited`].
pub(crate) fn limit_of(bytes: u64) -> Limit {
    match bytes {
        UNLIMITED_MIN_BYTES.. => Limit::Unlimited,
        bytes => Limit::At(bytes),
    }
}

/// The control files of the hard limit and of the charged memory.
pub(crate) const fn limit_files(version: Version) -> (&'static str, &'static str) {
    match version {
        Version::V1 => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        Version::V2 => ("memory.max", "memory.current"),
    }
}

/// The hard limit in force; `None` if the group has none of these files. Errors as in [`control_text`].
pub(crate) fn limit_in_force(group: &GroupDir) -> io::Result<Option<Limit>> {
    let (file, _) = limit_files(group.version);
    let text = control_text(&group.dir, file)?;
    Ok(text.and_then(|text| match text.trim() {
        "max" => Some(Limit::Unlimited),
        text => Some(limit_of(text.parse().ok()?)),
    }))
}
