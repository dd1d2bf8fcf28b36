//! The open and permitted file descriptors of this process, for metrics.
//!
//! Each call reads the kernel; an unreadable value is `None`.

use std::path::Path;

/// Returns the number of open descriptors.
#[must_use]
pub fn open() -> Option<usize> {
    open_in(Path::new("/proc/self"))
}

/// Returns the number of open descriptors of the process with this folder in procfs.
#[must_use]
pub fn open_in(process: &Path) -> Option<usize> {
    let entries = std::fs::read_dir(process.join("fd")).ok()?;
    // One descriptor belongs to the folder itself, while it is read.
    Some(entries.count().saturating_sub(1))
}

/// Returns the current limit on open files.
#[must_use]
pub fn limit() -> Option<u64> {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Nofile).current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_below_its_descriptor_limit() {
        let (open, limit) = (open().unwrap(), limit().unwrap());
        assert!(open >= 3, "{open}");
        assert!(u64::try_from(open).unwrap() <= limit, "{open} of {limit}");
    }
}
