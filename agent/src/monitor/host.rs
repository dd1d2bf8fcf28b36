//! The machine and the agent itself, read from procfs through descriptors that stay open.
//!
//! Parsed by the procfs crate. Invariant: unreadable or invalid values are absent.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use procfs::{FromBufRead as _, FromRead as _, WithCurrentSystemInfo as _};

/// Values of the machine and the agent itself; unreadable values are absent.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostSample {
    /// The number of processors that are online.
    pub(crate) cpus: Option<u64>,
    /// Load over 1, 5 and 15 minutes.
    pub(crate) load: Option<[f64; 3]>,
    /// Time of all processors together, since boot, without idling and waiting for disks.
    pub(crate) cpu_busy_secs: Option<f64>,
    /// The memory of the whole machine.
    pub(crate) mem_total_bytes: Option<u64>,
    /// Memory that is not used at all.
    pub(crate) mem_free_bytes: Option<u64>,
    /// Memory available for new processes.
    pub(crate) mem_available_bytes: Option<u64>,
    /// Stall for lack of CPU time.
    pub(crate) cpu_pressure: HostPressure,
    /// Stall for lack of memory.
    pub(crate) memory_pressure: HostPressure,
    /// Stall for lack of disk throughput.
    pub(crate) io_pressure: HostPressure,
    /// CPU time of this process.
    pub(crate) own_cpu_secs: Option<f64>,
    /// Resident memory of this process.
    pub(crate) own_rss_bytes: Option<u64>,
    /// Open descriptors of this process.
    pub(crate) own_fds: Option<u64>,
    /// The duration of the sweep, including this reading.
    pub(crate) sweep: Option<Duration>,
}

/// Stall of the whole machine for lack of one resource; absent if the kernel does not report it.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub(crate) struct HostPressure {
    /// Some of the tasks were stalled.
    pub(crate) some: Option<Stall>,
    /// All of the tasks were stalled.
    pub(crate) full: Option<Stall>,
}

/// A line of a pressure file.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct Stall {
    /// Share of the last ten seconds, in per cent.
    pub(crate) avg10: f64,
    /// Seconds of stall since the boot (the `total` of PSI).
    pub(crate) total_secs: f64,
}

/// Reads the machine's values repeatedly.
#[derive(Debug)]
pub(crate) struct HostReader {
    stat: OpenFile,
    loadavg: OpenFile,
    meminfo: OpenFile,
    pressure: [OpenFile; 3],
    own_stat: OpenFile,
    fd_folder: PathBuf,
}

impl HostReader {
    /// Creates a reader for the machine of a procfs.
    pub(crate) fn at(proc: &Path) -> Self {
        let kept = |file: &str| OpenFile::new(proc.join(file));
        Self {
            stat: kept("stat"),
            loadavg: kept("loadavg"),
            meminfo: kept("meminfo"),
            pressure: ["pressure/cpu", "pressure/memory", "pressure/io"].map(kept),
            own_stat: kept("self/stat"),
            fd_folder: proc.join("self/fd"),
        }
    }

    /// Reads the values as of now.
    pub(crate) fn read(&mut self) -> HostSample {
        let stat = self.stat.text();
        let load = self
            .loadavg
            .text()
            .and_then(|text| procfs::LoadAverage::from_read(text.as_bytes()).ok());
        let memory = self
            .meminfo
            .text()
            .and_then(|text| procfs::Meminfo::from_buf_read(text.as_bytes()).ok());
        let own = self
            .own_stat
            .text()
            .and_then(|text| procfs::process::Stat::from_read(text.as_bytes()).ok());
        let [cpu, disk_and_memory @ ..] = &mut self.pressure;
        let [memory_stall, io] = disk_and_memory;
        let stall = |kept: &mut OpenFile| kept.text().as_deref().map(pressure).unwrap_or_default();
        HostSample {
            cpus: stat.as_deref().and_then(processors),
            load: load.map(|load| [load.one, load.five, load.fifteen].map(hundredths)),
            cpu_busy_secs: stat.as_deref().and_then(busy_secs),
            mem_total_bytes: memory.as_ref().map(|memory| memory.mem_total),
            mem_free_bytes: memory.as_ref().map(|memory| memory.mem_free),
            mem_available_bytes: memory.as_ref().and_then(|memory| memory.mem_available),
            cpu_pressure: stall(cpu),
            memory_pressure: stall(memory_stall),
            io_pressure: stall(io),
            own_cpu_secs: own
                .as_ref()
                .map(|own| seconds(own.utime.saturating_add(own.stime))),
            own_rss_bytes: own.as_ref().map(|own| own.rss_bytes().get()),
            own_fds: open_descriptors(&self.fd_folder),
            sweep: None,
        }
    }
}

/// A file of procfs that stays open.
#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    file: Option<File>,
}

impl OpenFile {
    fn new(path: PathBuf) -> Self {
        Self { path, file: None }
    }

    fn text(&mut self) -> Option<String> {
        let mut text = String::new();
        let mut file = match self.file.take() {
            Some(mut file) => {
                file.rewind().ok()?;
                file
            }
            None => File::open(&self.path).ok()?,
        };
        file.read_to_string(&mut text).ok()?;
        self.file = Some(file);
        Some(text)
    }
}

/// Processors whose time the kernel counts.
fn processors(stat: &str) -> Option<u64> {
    let is_one = |line: &&str| {
        line.strip_prefix("cpu")
            .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    let count = stat.lines().filter(is_one).count();
    u64::try_from(count).ok().filter(|count| *count > 0)
}

/// `cpu  user nice system idle iowait irq softirq steal ...`, in clock ticks.
fn busy_secs(stat: &str) -> Option<f64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line
        .split_ascii_whitespace()
        .map(|word| word.parse().ok())
        .collect::<Option<_>>()?;
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = ticks[..] else {
        return None;
    };
    // User time already includes guest time; stolen time belongs to other machines.
    Some(seconds(user + nice + system + irq + softirq))
}

fn pressure(text: &str) -> HostPressure {
    let of = |who: &str| {
        let line = text
            .lines()
            .find(|line| line.split(' ').next() == Some(who))?;
        let record = procfs::parse_pressure_record(line).ok()?;
        #[expect(
            clippy::cast_precision_loss,
            reason = "microseconds since boot stay below 2^53"
        )]
        let total_secs = record.total as f64 / 1e6;
        Some(Stall {
            avg10: hundredths(record.avg10),
            total_secs,
        })
    };
    HostPressure {
        some: of("some"),
        full: of("full"),
    }
}

/// The number of open descriptors. Since Linux 6.2 the folder's size is the number of its entries; before, the folder
/// must be read.
fn open_descriptors(folder: &Path) -> Option<u64> {
    let told = std::fs::metadata(folder).ok()?.len();
    if told > 0 {
        return Some(told);
    }
    u64::try_from(std::fs::read_dir(folder).ok()?.count()).ok()
}

/// Rounds to two decimals, as the kernel reports them; a wider float must not show more.
fn hundredths(figure: f32) -> f64 {
    (f64::from(figure) * 100.0).round() / 100.0
}

#[expect(
    clippy::cast_precision_loss,
    reason = "clock ticks stay far below 2^52"
)]
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / procfs::ticks_per_second() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn fixture(files: &[(&str, &str)]) -> tempfile::TempDir {
        let proc = tempfile::tempdir().expect("a temporary folder");
        for (file, text) in files {
            let path = proc.path().join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        }
        proc
    }

    #[test]
    fn reread_host_keeps_its_descriptors() {
        let proc = fixture(&[
            (
                "stat",
                "cpu  100 20 30 1000 50 1 2 7 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\ncpu1 1 1 1 1 1 1 1 1 0 0\n",
            ),
            ("loadavg", "0.25 1.50 3.75 2/345 6789\n"),
            (
                "pressure/memory",
                "some avg10=1.25 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=500000\n",
            ),
            // Before Linux 5.13 the file had a single line.
            (
                "pressure/cpu",
                "some avg10=9.00 avg60=0.00 avg300=0.00 total=1000000\n",
            ),
        ]);
        let mut reader = HostReader::at(proc.path());
        let host = reader.read();
        assert_eq!(host.cpus, Some(2));
        assert_eq!(host.load, Some([0.25, 1.5, 3.75]));
        assert_eq!(host.cpu_busy_secs, Some(1.53));
        let full = host.memory_pressure.full.expect("known");
        assert_eq!((full.avg10, full.total_secs), (0.5, 0.5));
        assert_eq!(host.cpu_pressure.some.map(|some| some.avg10), Some(9.0));
        assert_eq!(host.cpu_pressure.full, None);
        fs::write(proc.path().join("loadavg"), "2.00 1.50 3.75 2/345 6789\n").expect("written");
        assert_eq!(reader.read().load, Some([2.0, 1.5, 3.75]));
    }

    #[test]
    fn missing_or_invalid_values_are_absent() {
        let proc = fixture(&[
            ("stat", "cpu  1 2 x 4\nintr 1\n"),
            ("loadavg", "potatoes\n"),
            ("meminfo", "MemTotal: much kB\n"),
            ("pressure/cpu", "some avg10=x total=y\n"),
            ("self/stat", "1 (a"),
        ]);
        let host = HostReader::at(proc.path()).read();
        let shown = format!("{host:?}");
        let nothing = format!("{:?}", HostSample::default());
        assert_eq!(shown, nothing);
    }
}
