//! Converts the state of the monitor and the core to an estimator's sample. Pure.
//!
//! Moments are on the boot's clock, so that the age of a container older than this agent is known. Invariant: every
//! executor with resources is in the sample, even if none of its values could be read.

use std::collections::BTreeMap;
use std::time::Duration;

use meseta_estimators::{ContainerUsage, HostUsage, UsageSample};
use meseta_isolators::{Limit, ProcessIdentity};
use meseta_proto::mesos::v1 as pb;
use meseta_resources::{ContainerId, Moment, Resources};

use crate::core::{Executor, Snapshot};
use crate::monitor::Sample;

/// Ticks per second of process start times, a constant of the kernel's interface.
const USER_HZ: u64 = 100;
const MILLIS_PER_CPU: f64 = 1000.0;
/// The label of an executor or a command task with its eviction priority; the lowest is evicted first.
const EVICTION_PRIORITY: &str = "eviction_priority";

/// The two clocks at one moment.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Clocks {
    /// The time since the machine was booted.
    pub(crate) boot: Duration,
    /// The time since the Unix epoch.
    pub(crate) unix: Duration,
}

impl Clocks {
    /// The present moment of the sample.
    pub(crate) fn now(self) -> Moment {
        Moment::ORIGIN + self.boot
    }

    /// Converts the wall clock time of a reading to the boot's clock.
    fn moment_of(self, unix: Duration) -> Moment {
        let ago = self.unix.saturating_sub(unix);
        let ahead = unix.saturating_sub(self.unix);
        Moment::ORIGIN + self.boot.saturating_sub(ago) + ahead
    }
}

/// Makes the sample of the node at one moment.
pub(crate) fn usage_sample(
    clocks: Clocks,
    host: HostUsage,
    snapshot: &Snapshot,
    readings: &BTreeMap<ContainerId, Sample>,
) -> UsageSample {
    let live = snapshot.executors().filter(|executor| executor.is_live());
    let containers = live.map(|executor| {
        let reading = readings.get(&executor.key.container);
        let frozen = snapshot.frozen.contains(&executor.key.container);
        container(clocks, executor, reading, frozen)
    });
    UsageSample {
        at: clocks.now(),
        total: snapshot.resources.clone(),
        host,
        containers: containers.collect(),
    }
}

fn container(
    clocks: Clocks,
    executor: &Executor,
    reading: Option<&Sample>,
    frozen: bool,
) -> ContainerUsage {
    let key = &executor.key;
    let mut usage = ContainerUsage::new(
        key.framework.clone(),
        key.executor.clone(),
        unallocated(&executor.allocated()),
    );
    usage.container = Some(key.container.clone());
    usage.frozen = frozen;
    usage.eviction_priority = eviction_priority(executor);
    let Some(Sample {
        container,
        usage: read,
        ..
    }) = reading
    else {
        return usage;
    };
    usage.at = Some(clocks.moment_of(read.timestamp));
    usage.started = started(&container.supervisor);
    let cpu = &read.cpu;
    usage.cpu_time = match (cpu.user_secs, cpu.system_secs) {
        (Some(user), Some(system)) => Duration::try_from_secs_f64(user + system).ok(),
        _ => None,
    };
    usage.memory_bytes = read.memory.rss_bytes;
    usage.memory_limit_bytes = read.memory.limit_bytes;
    usage.cpus_limit = match container.demand.cpus_limit {
        Some(Limit::Unlimited) => Some(f64::INFINITY),
        #[expect(clippy::cast_precision_loss, reason = "thousandths, far below 2^52")]
        Some(Limit::At(millis)) => Some(millis as f64 / MILLIS_PER_CPU),
        None => None,
    };
    usage
}

fn unallocated(resources: &Resources) -> Resources {
    resources.unallocate()
}

fn started(supervisor: &ProcessIdentity) -> Option<Moment> {
    let millis = supervisor.start_ticks.checked_mul(1000 / USER_HZ)?;
    Some(Moment::ORIGIN + Duration::from_millis(millis))
}

fn eviction_priority(executor: &Executor) -> i64 {
    labels(executor)
        .and_then(|labels| {
            labels
                .labels
                .iter()
                .find(|label| label.key == EVICTION_PRIORITY)
        })
        .and_then(|label| label.value.as_deref()?.trim().parse().ok())
        .unwrap_or(0)
}

/// The labels of an executor, or of the command for which it was made.
pub(super) fn labels(executor: &Executor) -> Option<&pb::Labels> {
    match (&executor.info, executor.command_task()) {
        (Some(info), _) => info.labels.as_ref(),
        (None, task) => task?.info.labels.as_ref(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_use_boot_clock() {
        let clocks = Clocks {
            boot: Duration::from_secs(100),
            unix: Duration::from_secs(1_000_000),
        };
        let at = |secs| Moment::ORIGIN + Duration::from_secs(secs);
        assert_eq!(clocks.now(), at(100));
        assert_eq!(clocks.moment_of(Duration::from_secs(999_990)), at(90));
        assert_eq!(clocks.moment_of(Duration::from_secs(1_000_002)), at(102));
        // If the wall clock was set back by more than the uptime, the reading counts as old; that is no error.
        assert_eq!(clocks.moment_of(Duration::from_secs(5)), at(0));
    }
}
