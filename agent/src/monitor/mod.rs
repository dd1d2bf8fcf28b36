//! Samples the usage of every container, once per interval, and keeps the last sample of each.
//!
//! The only module that reads usage from the kernel: scrapes, operators, estimators and controllers are answered from
//! [`Samples`]. A sample, and a container's history, end with its container.
//!
//! ```text
//! host.rs        the machine, from /proc
//! history.rs     a container's last minute
//! statistics.rs  a sample in Mesos's format
//! ```

mod history;
mod host;
pub(crate) mod statistics;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use meseta_daemon::error_chain::chain;
use meseta_isolators::{ContainerName, ContainerUsage, DiskUsage, Sampler};
use meseta_proto::meseta::v1::UsageTotal;
use meseta_resources::ContainerId;
use tracing::debug;

use crate::clock::unix_now;
use crate::containerizer::{Containerizer, LiveContainer};
use crate::descriptors::kept_open;
use history::History;
use host::HostReader;
pub(crate) use host::HostSample;

/// The last sample of one container.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) container: Arc<LiveContainer>,
    pub(crate) usage: ContainerUsage,
    /// The last measured disk usage of its folders, the sandbox first.
    pub(crate) disks: Option<Arc<[DiskUsage]>>,
    /// CPUs used on average over [`USED_WINDOW`].
    pub(crate) cpus_used: Option<f64>,
}

/// The window for [`Sample::cpus_used`].
const USED_WINDOW: Duration = Duration::from_secs(10);

/// The last sample of every running container, and of the machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    last: Arc<RwLock<Arc<BTreeMap<ContainerId, Sample>>>>,
    host: Arc<RwLock<Arc<HostSample>>>,
    history: Arc<RwLock<BTreeMap<ContainerId, History>>>,
    sweep: Arc<tokio::sync::Notify>,
    /// The requested milliseconds between two sweeps; 0 without a request.
    watched_ms: Arc<AtomicU64>,
}

impl Samples {
    /// Requests sweeps at most this far apart, or drops the request.
    pub(crate) fn watch(&self, interval_max: Option<Duration>) {
        let millis = interval_max.map_or(0, |interval| {
            u64::try_from(interval.as_millis())
                .unwrap_or(u64::MAX)
                .max(1)
        });
        self.watched_ms.store(millis, Ordering::Relaxed);
    }

    /// The interval from one sweep to the next.
    fn pace(&self, usual: Duration) -> Duration {
        match self.watched_ms.load(Ordering::Relaxed) {
            0 => usual,
            millis => usual.min(Duration::from_millis(millis)),
        }
    }

    /// Waits for the end of a sweep. A sweep that ended since the last wait counts.
    pub(crate) async fn swept(&self) {
        self.sweep.notified().await;
    }

    /// The samples of the last sweep.
    pub(crate) fn last(&self) -> Arc<BTreeMap<ContainerId, Sample>> {
        self.last
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The machine's values from the last sweep.
    pub(crate) fn host(&self) -> Arc<HostSample> {
        self.host
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The total usage of containers in the last sweep; `None` before the first. Nested containers count with their
    /// parents.
    pub(crate) fn usage(&self) -> Option<UsageTotal> {
        self.host().sweep?;
        let last = self.last();
        let outer = last
            .iter()
            .filter(|(container, _)| container.parent().is_none());
        let mut total = UsageTotal {
            cpus: Some(0.0),
            mem_bytes: Some(0),
        };
        for (_, sample) in outer {
            let memory = &sample.usage.memory;
            let mem_bytes = memory.rss_bytes.or(memory.total_bytes).unwrap_or_default();
            total.cpus = Some(total.cpus() + sample.cpus_used.unwrap_or_default());
            total.mem_bytes = Some(total.mem_bytes().saturating_add(mem_bytes));
        }
        Some(total)
    }

    fn replace(&self, host: HostSample, mut samples: BTreeMap<ContainerId, Sample>) {
        {
            let mut histories = self.history.write().unwrap_or_else(PoisonError::into_inner);
            histories.retain(|container, _| samples.contains_key(container));
            for (container, sample) in &mut samples {
                if !histories.contains_key(container) {
                    histories.insert(container.clone(), History::default());
                }
                if let Some(history) = histories.get_mut(container) {
                    history.push(&sample.usage);
                    sample.cpus_used = history.cpus_over(USED_WINDOW);
                }
            }
        }
        *self.host.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(host);
        *self.last.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(samples);
        self.sweep.notify_one();
    }
}

/// The descriptors not used for control files, at most: two for each container, and connections. If the process may
/// have only few descriptors, control files get an eighth of them.
const OTHER_DESCRIPTORS_MAX: u64 = 7_000;

/// Runs the sweeps for ever.
pub(crate) async fn run(containerizer: Containerizer, samples: Samples, interval: Duration) {
    let mut readers = Readers::new();
    let mut due = tokio::time::Instant::now();
    loop {
        tokio::time::sleep_until(due).await;
        // A late sweep delays the next sweeps: two at once would give no information.
        due = tokio::time::Instant::now() + samples.pace(interval);
        let containerizer = containerizer.clone();
        let sweep = move || {
            let began = Instant::now();
            let mut host = readers.host.read();
            let swept = sweep(&containerizer, &mut readers.sampler);
            host.sweep = Some(began.elapsed());
            (readers, host, swept)
        };
        match tokio::task::spawn_blocking(sweep).await {
            Ok((back, host, swept)) => {
                readers = back;
                samples.replace(host, swept);
            }
            Err(_) => readers = Readers::new(),
        }
    }
}

/// The files that stay open from one sweep to the next.
#[derive(Debug)]
struct Readers {
    host: HostReader,
    sampler: Sampler,
}

impl Readers {
    fn new() -> Self {
        use rustix::process::{Resource, getrlimit};
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self {
            host: HostReader::at(Path::new("/proc")),
            sampler: Sampler::new(kept_open(limit, OTHER_DESCRIPTORS_MAX)),
        }
    }
}

fn sweep(containerizer: &Containerizer, sampler: &mut Sampler) -> BTreeMap<ContainerId, Sample> {
    sampler.begin_sweep();
    let sample = |live: Arc<LiveContainer>| {
        let container = live.container.clone();
        let name = ContainerName::new(container.as_str()).ok()?;
        let containers = containerizer.containers();
        match sampler.sample(containers, &name, Some(&live.supervisor), unix_now()) {
            Ok(usage) => {
                let sample = Sample {
                    container: live,
                    usage,
                    disks: containerizer.measured().get(&container),
                    cpus_used: None,
                };
                Some((container, sample))
            }
            Err(error) => {
                // The container has probably just ended; the next sweep will show that.
                debug!(container_id = %container, error = %chain(&error), "no sample");
                None
            }
        }
    };
    // A collected tree is compact: after insertions one by one in order, half of its space would be unused.
    containerizer
        .live()
        .into_iter()
        .filter_map(sample)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_sum_excludes_nested_containers() {
        let samples = Samples::default();
        assert_eq!(samples.usage(), None);
        let sample = |at_secs: u32, cpus: f64, rss_bytes| {
            let mut sample = crate::metrics::containers::tests::sample();
            sample.usage.timestamp = Duration::from_secs(at_secs.into());
            sample.usage.cpu.user_secs = Some(cpus * f64::from(at_secs));
            sample.usage.cpu.system_secs = Some(0.0);
            sample.usage.memory.rss_bytes = rss_bytes;
            sample
        };
        let id = |text: &str| ContainerId::new(text).unwrap();
        let (outer, inner, other) = (id("a"), id("a").child("b").unwrap(), id("c"));
        for at in [100, 110] {
            let host = HostSample {
                sweep: Some(Duration::ZERO),
                ..HostSample::default()
            };
            let swept = [
                (outer.clone(), sample(at, 1.0, Some(100))),
                (inner.clone(), sample(at, 0.5, Some(40))),
                (other.clone(), sample(at, 0.25, None)),
            ];
            samples.replace(host, swept.into());
        }
        let usage = samples.usage().unwrap();
        assert!((usage.cpus() - 1.25).abs() < 1e-9, "{usage:?}");
        assert_eq!(
            usage.mem_bytes(),
            110,
            "all that is charged where no kinds are told"
        );
    }

    #[test]
    fn watchers_only_speed_up_sweeps() {
        let samples = Samples::default();
        let usual = Duration::from_secs(1);
        let half = Duration::from_millis(500);
        assert_eq!(samples.pace(usual), usual);
        samples.watch(Some(half));
        assert_eq!(samples.pace(usual), half);
        assert_eq!(samples.pace(half / 5), half / 5);
        samples.watch(None);
        assert_eq!(samples.pace(usual), usual);
    }
}
