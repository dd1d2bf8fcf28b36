//! The machine's load, memory, CPU time and stalls, from procfs.
//!
//! Read once for each sample. The folder is a parameter, so that a test can replace the machine. Unreadable values are
//! `None`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use meseta_estimators::{HostMemory, HostUsage, LoadAverage, Pressure};
use procfs::{FromRead as _, FromReadSI as _};

#[derive(Clone, Debug)]
pub(crate) struct HostReader {
    proc: PathBuf,
}

impl HostReader {
    pub(crate) fn at(proc: &Path) -> Self {
        Self {
            proc: proc.to_owned(),
        }
    }

    /// Reads the machine's current values, without the stalls of the regular containers.
    pub(crate) fn read(&self) -> HostUsage {
        let at = |name: &str| self.proc.join(name);
        let stat = procfs::KernelStats::from_file(at("stat"), procfs::current_system_info()).ok();
        let load = procfs::LoadAverage::from_file(at("loadavg")).ok();
        let memory = procfs::Meminfo::from_file(at("meminfo")).ok();
        let cpu = procfs::CpuPressure::from_file(at("pressure/cpu")).ok();
        let stalled = procfs::MemoryPressure::from_file(at("pressure/memory")).ok();
        HostUsage {
            cpus: stat
                .as_ref()
                .and_then(|stat| u32::try_from(stat.cpu_time.len()).ok()),
            cpu_time: stat.as_ref().map(|stat| busy(&stat.total)),
            load: load.map(|load| LoadAverage {
                one: hundredths(load.one),
                five: hundredths(load.five),
                fifteen: hundredths(load.fifteen),
            }),
            memory: memory.and_then(|memory| {
                Some(HostMemory {
                    total_bytes: memory.mem_total,
                    available_bytes: memory.mem_available?,
                })
            }),
            cpu_pressure: cpu.map(|cpu| Pressure {
                some_avg10: f64::from(cpu.some.avg10),
                full_avg10: 0.0,
            }),
            memory_pressure: stalled.map(|memory| Pressure {
                some_avg10: f64::from(memory.some.avg10),
                full_avg10: f64::from(memory.full.avg10),
            }),
            regular_cpu_pressure: None,
            regular_memory_pressure: None,
        }
    }
}

/// The time that all processors were busy. User time already includes guests; nobody here used the time that a
/// hypervisor took away.
fn busy(total: &procfs::CpuTime) -> Duration {
    let ticks = total.user
        + total.nice
        + total.system
        + total.irq.unwrap_or(0)
        + total.softirq.unwrap_or(0);
    let per_second = procfs::ticks_per_second().max(1);
    Duration::from_millis(ticks.saturating_mul(1000) / per_second)
}

/// Rounds to two decimals, as the kernel reports them; a wider float must not show more.
fn hundredths(load: f32) -> f64 {
    (f64::from(load) * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_machine_file_is_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let reader = HostReader::at(dir.path());
        assert_eq!(reader.read(), HostUsage::default());
        write("loadavg", "0.50 6.20 4.10 1/80 4242\n");
        write(
            "meminfo",
            "MemTotal: 2048 kB\nMemFree: 100 kB\nBuffers: 0 kB\nCached: 0 kB\nMemAvailable: 1024 kB\nSwapCached: 0 kB\nActive: 0 kB\nInactive: 0 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\nDirty: 0 kB\nWriteback: 0 kB\nMapped: 0 kB\nSlab: 0 kB\nCommitted_AS: 0 kB\nVmallocTotal: 0 kB\nVmallocUsed: 0 kB\nVmallocChunk: 0 kB\n",
        );
        write(
            "pressure/memory",
            "some avg10=7.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=1.25 avg60=0.00 avg300=0.00 total=1\n",
        );
        let host = reader.read();
        let load = LoadAverage {
            one: 0.5,
            five: 6.2,
            fifteen: 4.1,
        };
        assert_eq!(host.load, Some(load));
        let memory = host.memory.unwrap();
        assert_eq!(
            (memory.total_bytes, memory.used_bytes()),
            (2 << 20, 1 << 20)
        );
        let stalled = host.memory_pressure.unwrap();
        assert_eq!((stalled.some_avg10, stalled.full_avg10), (7.5, 1.25));
        assert_eq!((host.cpu_time, host.cpu_pressure), (None, None));
    }

    #[test]
    fn this_machine_is_read() {
        let host = HostReader::at(Path::new("/proc")).read();
        assert!(host.load.is_some() && host.memory.is_some(), "{host:?}");
        assert!(host.cpus.is_some_and(|cpus| cpus > 0), "{host:?}");
        assert!(
            host.cpu_time.is_some_and(|time| !time.is_zero()),
            "{host:?}"
        );
    }
}
