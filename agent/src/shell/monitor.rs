//! Samples what every container uses, once per interval, and keeps the last sample of each.
//!
//! The only place that reads usage from the kernel: scrapes and operators are answered from
//! [`Samples`]. A sample goes with its container.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use meseta_isolators::{ContainerName, ContainerUsage, DiskUsage};
use meseta_resources::ContainerId;
use tracing::debug;

use super::containerizer::{Containerizer, LiveContainer};
use super::writer::chain;

/// The last sample of one container.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Whose.
    pub(crate) container: LiveContainer,
    /// What it used.
    pub(crate) usage: ContainerUsage,
    /// What its folders held when they were last measured, the sandbox first.
    pub(crate) disks: Option<Arc<[DiskUsage]>>,
}

/// The machine and the agent itself; what could not be read is absent.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostSample {
    /// Processors online.
    pub(crate) cpus: Option<u64>,
    /// Load over 1, 5 and 15 minutes.
    pub(crate) load: Option<[f64; 3]>,
    /// All memory.
    pub(crate) mem_total_bytes: Option<u64>,
    /// Unused memory.
    pub(crate) mem_free_bytes: Option<u64>,
    /// Memory that could be had.
    pub(crate) mem_available_bytes: Option<u64>,
    /// CPU time of this process.
    pub(crate) own_cpu_secs: Option<f64>,
    /// Resident memory of this process.
    pub(crate) own_rss_bytes: Option<u64>,
    /// Open descriptors of this process.
    pub(crate) own_fds: Option<u64>,
}

impl HostSample {
    fn read() -> Self {
        use procfs::{Current as _, WithCurrentSystemInfo as _};
        let memory = procfs::Meminfo::current().ok();
        let load = procfs::LoadAverage::current().ok();
        let own = procfs::process::Process::myself().ok();
        let stat = own.as_ref().and_then(|own| own.stat().ok());
        let ticks = |stat: &procfs::process::Stat| stat.utime.saturating_add(stat.stime);
        let fds = own.as_ref().and_then(|own| own.fd_count().ok());
        Self {
            cpus: procfs::CpuInfo::current()
                .ok()
                .and_then(|cpus| u64::try_from(cpus.num_cores()).ok()),
            load: load.map(|load| [load.one, load.five, load.fifteen].map(hundredths)),
            mem_total_bytes: memory.as_ref().map(|memory| memory.mem_total),
            mem_free_bytes: memory.as_ref().map(|memory| memory.mem_free),
            mem_available_bytes: memory.as_ref().and_then(|memory| memory.mem_available),
            #[expect(
                clippy::cast_precision_loss,
                reason = "clock ticks stay far below 2^52"
            )]
            own_cpu_secs: stat
                .as_ref()
                .map(|stat| ticks(stat) as f64 / procfs::ticks_per_second() as f64),
            own_rss_bytes: stat.as_ref().map(|stat| stat.rss_bytes().get()),
            own_fds: fds.and_then(|fds| u64::try_from(fds).ok()),
        }
    }
}

/// The kernel gives two decimals; a wider float must not pretend to more.
fn hundredths(load: f32) -> f64 {
    (f64::from(load) * 100.0).round() / 100.0
}

/// The last sample of every container that runs, and of the machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    last: Arc<RwLock<Arc<BTreeMap<ContainerId, Sample>>>>,
    host: Arc<RwLock<HostSample>>,
}

impl Samples {
    /// All of them, as of the last sweep.
    pub(crate) fn last(&self) -> Arc<BTreeMap<ContainerId, Sample>> {
        self.last
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The machine, as of the last sweep.
    pub(crate) fn host(&self) -> HostSample {
        self.host
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn replace(&self, host: HostSample, samples: BTreeMap<ContainerId, Sample>) {
        *self.host.write().unwrap_or_else(PoisonError::into_inner) = host;
        *self.last.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(samples);
    }
}

/// Sweeps for ever.
pub(crate) async fn run(containerizer: Containerizer, samples: Samples, interval: Duration) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let containerizer = containerizer.clone();
        let sweep = move || (HostSample::read(), sweep(&containerizer));
        if let Ok((host, swept)) = tokio::task::spawn_blocking(sweep).await {
            samples.replace(host, swept);
        }
    }
}

fn sweep(containerizer: &Containerizer) -> BTreeMap<ContainerId, Sample> {
    let mut samples = BTreeMap::new();
    for live in containerizer.live() {
        let container = live.container.clone();
        let Ok(name) = ContainerName::new(container.as_str()) else {
            continue;
        };
        let timestamp = unix_now();
        let containers = containerizer.containers();
        match containers.usage(&name, Some(&live.supervisor), timestamp) {
            Ok(usage) => {
                let sample = Sample {
                    container: live,
                    usage,
                    disks: containerizer.measured().of(&container),
                };
                samples.insert(container, sample);
            }
            // It ended under our hands, most likely; the next sweep knows.
            Err(error) => debug!(container_id = %container, error = %chain(&error), "no sample"),
        }
    }
    samples
}

pub(crate) fn unix_now() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}
