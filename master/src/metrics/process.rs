//! Resource usage of the master's own process: processor time, memory, descriptors.
//!
//! The values come from procfs on each request, as in every Prometheus client; unreadable values are left out.

use std::path::Path;

use meseta_daemon::descriptors;

/// Resource usage of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ProcessStats {
    pub(super) cpu_seconds: Option<f64>,
    pub(super) resident_bytes: Option<u64>,
    pub(super) open_fds: Option<usize>,
    pub(super) fds_max: Option<u64>,
    pub(super) threads: Option<u64>,
}

/// The ticks per second in which the kernel counts processor time, on every supported machine.
const TICKS_PER_SECOND: f64 = 100.0;

impl ProcessStats {
    /// Reads the values of this process.
    pub(super) fn read() -> Self {
        Self {
            fds_max: descriptors::limit(),
            ..Self::at(Path::new("/proc/self"))
        }
    }

    /// Reads the values of the process with this procfs folder.
    fn at(folder: &Path) -> Self {
        let text = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        let (stat, status) = (text("stat"), text("status"));
        // The name of the command may contain anything, and ends with the last parenthesis.
        let fields: Vec<&str> = match stat.rsplit_once(')') {
            Some((_, rest)) => rest.split_whitespace().collect(),
            None => Vec::new(),
        };
        // The field numbers of proc(5); the first field here has the number 3.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let ticks = field(14).zip(field(15));
        let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
        let kilobytes =
            line("VmRSS:").and_then(|rest| rest.trim().strip_suffix(" kB")?.parse().ok());
        Self {
            cpu_seconds: ticks
                .map(|(user, system)| super::to_f64(user + system) / TICKS_PER_SECOND),
            resident_bytes: kilobytes.map(|kilobytes: u64| kilobytes.saturating_mul(1_024)),
            open_fds: descriptors::open_in(folder),
            fds_max: None,
            threads: line("Threads:").and_then(|rest| rest.trim().parse().ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_read_from_procfs_folder() {
        let dir = tempfile::tempdir().unwrap();
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 12 0 99 1000000 300";
        std::fs::write(dir.path().join("stat"), stat).unwrap();
        let status = "Name:\ta\nVmRSS:\t    1200 kB\nThreads:\t12\n";
        std::fs::write(dir.path().join("status"), status).unwrap();
        std::fs::create_dir(dir.path().join("fd")).unwrap();
        for name in ["0", "1", "2"] {
            std::fs::write(dir.path().join("fd").join(name), "").unwrap();
        }
        let expected = ProcessStats {
            cpu_seconds: Some(2.0),
            resident_bytes: Some(1_200 * 1_024),
            open_fds: Some(2),
            fds_max: None,
            threads: Some(12),
        };
        assert_eq!(ProcessStats::at(dir.path()), expected);
        assert_eq!(
            ProcessStats::at(&dir.path().join("none")),
            ProcessStats::default()
        );
        let real = ProcessStats::read();
        assert!(
            real.resident_bytes > Some(0) && real.threads > Some(0),
            "{real:?}"
        );
    }
}
