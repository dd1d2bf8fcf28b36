//! Pressure stall of regular containers that get less than they were allocated. Pure.
//!
//! The kernel counts, for each container, how long some of its tasks waited. A container that uses its allocation is
//! not deprived, even if it waits: it needs more than its share. A container that waits because of its own limits, or
//! those of its nested containers, is not deprived either. Invariant: a container with missing values is no reason to
//! act.

use std::collections::BTreeMap;
use std::time::Duration;

use meseta_estimators::{Pressure, UsageSample};
use meseta_isolators::PressureUsage;
use meseta_resources::{ContainerId, Moment};

/// The window of the averages, as in the kernel.
const WINDOW: Duration = Duration::from_secs(10);
/// The part of the allocation below which a container counts as unsatisfied; the rest is measurement error.
const SATISFIED: f64 = 0.95;
/// Unchanged stalls count as read again after this time, and then as zero.
const READ_ANEW_WITHIN: Duration = Duration::from_secs(6);
/// The part of a memory limit, in percent, from which the kernel reclaims from the container.
const FULL_PERCENT: u64 = 95;

/// Counters of one container.
#[derive(Copy, Clone, Debug)]
struct Reading {
    at: Moment,
    cpu_time: f64,
    cpu_some: f64,
    memory_some: f64,
    memory_full: f64,
    throttled: Option<f64>,
    is_at_memory_limit: bool,
}

impl Reading {
    /// Whether the stalls were not read again: they are read less often than the CPU time, and an increase then belongs
    /// to the whole time since.
    fn is_unchanged(&self, next: &Self) -> bool {
        let stalls = |one: &Self| (one.cpu_some, one.memory_some, one.memory_full);
        stalls(self) == stalls(next) && next.at.saturating_since(self.at) < READ_ANEW_WITHIN
    }
}

/// The kernel's counters of a container.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stalls {
    /// The time that it waited.
    pub(crate) pressure: PressureUsage,
    /// The time for which CPU limits throttled it or its nested containers, on all processors together. The kernel also
    /// counts throttled time as waiting.
    pub(crate) throttled_secs: Option<f64>,
    /// Whether the container or a nested one has reached its own memory limit, so that no other container is to blame.
    pub(crate) is_at_memory_limit: bool,
}

impl Stalls {
    /// Returns the counters from the monitor's readings, by outermost container.
    pub(crate) fn by_container<'a>(
        readings: impl Iterator<Item = (&'a ContainerId, &'a meseta_isolators::ContainerUsage)>,
    ) -> BTreeMap<ContainerId, Self> {
        let mut all: BTreeMap<ContainerId, Self> = BTreeMap::new();
        for (id, usage) in readings {
            let read = Self::from_usage(usage);
            let outermost = all.entry(id.root()).or_default();
            outermost.is_at_memory_limit |= read.is_at_memory_limit;
            // These values include those of nested containers.
            if id.parent().is_none() {
                outermost.pressure = read.pressure;
                outermost.throttled_secs = read.throttled_secs;
            }
        }
        all
    }

    fn from_usage(usage: &meseta_isolators::ContainerUsage) -> Self {
        let memory = &usage.memory;
        let is_at_memory_limit = match (memory.total_bytes, memory.limit_bytes) {
            (Some(total), Some(limit)) => total >= limit / 100 * FULL_PERCENT,
            _ => false,
        };
        Self {
            pressure: usage.pressure.clone(),
            throttled_secs: usage.cpu.throttled_secs,
            is_at_memory_limit,
        }
    }
}

/// Counters of the last [`WINDOW`], by container.
#[derive(Debug, Default)]
pub(crate) struct Deprived {
    last: BTreeMap<ContainerId, (Reading, Averages)>,
}

#[derive(Copy, Clone, Debug, Default)]
struct Averages {
    cpu_some: f64,
    memory_some: f64,
    memory_full: f64,
}

impl Deprived {
    /// The worst stalls of regular containers: processor, memory. `None` without known values.
    pub(crate) fn observe(
        &mut self,
        sample: &UsageSample,
        stalls: &BTreeMap<ContainerId, Stalls>,
    ) -> (Option<Pressure>, Option<Pressure>) {
        let before = std::mem::take(&mut self.last);
        for container in sample.containers.iter().filter(|one| !one.is_revocable()) {
            let (Some(id), Some(at), Some(cpu_time)) =
                (&container.container, container.at, container.cpu_time)
            else {
                continue;
            };
            let Some(reading) = stalls.get(id).and_then(|stalls| {
                Some(Reading {
                    at,
                    cpu_time: cpu_time.as_secs_f64(),
                    cpu_some: stalls.pressure.cpu_some_secs?,
                    memory_some: stalls.pressure.memory_some_secs.unwrap_or(0.0),
                    memory_full: stalls.pressure.memory_full_secs.unwrap_or(0.0),
                    throttled: stalls.throttled_secs,
                    is_at_memory_limit: stalls.is_at_memory_limit,
                })
            }) else {
                continue;
            };
            let promised = container.allocated.cpus().map_or(0.0, |cpus| cpus.to_f64());
            let earlier = before.get(id);
            if let Some(earlier) = earlier.filter(|(earlier, _)| earlier.is_unchanged(&reading)) {
                self.last.insert(id.clone(), *earlier);
                continue;
            }
            let averages = match earlier {
                Some((earlier, averages)) => averages.moved(earlier, &reading, promised),
                None => Averages::default(),
            };
            self.last.insert(id.clone(), (reading, averages));
        }
        if self.last.is_empty() {
            return (None, None);
        }
        let worst = |of: fn(&Averages) -> f64| {
            let all = self.last.values().map(|(_, averages)| of(averages) * 100.0);
            all.fold(0.0, f64::max)
        };
        let cpu = Pressure {
            some_avg10: worst(|a| a.cpu_some),
            full_avg10: 0.0,
        };
        let memory = Pressure {
            some_avg10: worst(|a| a.memory_some),
            full_avg10: worst(|a| a.memory_full),
        };
        (Some(cpu), Some(memory))
    }
}

impl Averages {
    /// Updates the averages in the way of the kernel's running averages.
    fn moved(self, from: &Reading, to: &Reading, promised: f64) -> Self {
        let elapsed = to.at.saturating_since(from.at).as_secs_f64();
        if elapsed <= 0.0 {
            return self;
        }
        let keep = (-elapsed / WINDOW.as_secs_f64()).exp();
        let rate = |from: f64, to: f64| ((to - from) / elapsed).clamp(0.0, 1.0);
        let used = (to.cpu_time - from.cpu_time) / elapsed;
        let is_full = to.is_at_memory_limit;
        let is_satisfied = used >= promised * SATISFIED;
        let cpu = if is_satisfied {
            0.0
        } else {
            let own = match (from.throttled, to.throttled) {
                (None, None) => 0.0,
                (Some(from), Some(to)) if from <= to => rate(from, to),
                // If the throttled time was missing once, all the waiting may have been throttling.
                _ => 1.0,
            };
            (rate(from.cpu_some, to.cpu_some) - own).max(0.0)
        };
        let memory = |from: f64, to: f64| if is_full { 0.0 } else { rate(from, to) };
        let mix = |old: f64, new: f64| old * keep + new * (1.0 - keep);
        Self {
            cpu_some: mix(self.cpu_some, cpu),
            memory_some: mix(self.memory_some, memory(from.memory_some, to.memory_some)),
            memory_full: mix(self.memory_full, memory(from.memory_full, to.memory_full)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meseta_estimators::ContainerUsage;
    use meseta_resources::{ExecutorId, FrameworkId, Resources, Role};

    fn sample(second: u64, cpus: &str, used: f64) -> UsageSample {
        let resources = Resources::parse(cpus, &Role::star()).unwrap();
        let mut container = ContainerUsage::new(
            FrameworkId::new("f").unwrap(),
            ExecutorId::new("e").unwrap(),
            resources,
        );
        let at = Moment::ORIGIN + Duration::from_secs(second);
        container.container = Some(ContainerId::new("c").unwrap());
        container.at = Some(at);
        container.cpu_time = Some(Duration::from_secs_f64(used));
        UsageSample {
            at,
            containers: vec![container],
            ..UsageSample::default()
        }
    }

    /// The kernel's counters after these seconds of waiting, and of throttling.
    fn stalled(secs: f64, throttled_secs: f64) -> BTreeMap<ContainerId, Stalls> {
        let pressure = PressureUsage {
            cpu_some_secs: Some(secs),
            memory_some_secs: Some(secs),
            ..PressureUsage::default()
        };
        let stalls = Stalls {
            pressure,
            throttled_secs: Some(throttled_secs),
            is_at_memory_limit: false,
        };
        [(ContainerId::new("c").unwrap(), stalls)].into()
    }

    fn after_a_minute(cpus: &str, used_per_second: f64) -> f64 {
        throttled_for_a_minute(cpus, used_per_second, 0.0)
    }

    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn throttled_for_a_minute(cpus: &str, used_per_second: f64, throttled: f64) -> f64 {
        let mut deprived = Deprived::default();
        let mut last = None;
        for second in 0..60 {
            let now = second as f64;
            (last, _) = deprived.observe(
                &sample(second, cpus, now * used_per_second),
                &stalled(now * 0.5, now * throttled),
            );
        }
        last.unwrap().some_avg10
    }

    #[test]
    fn waiting_below_promise_is_deprived() {
        let value = after_a_minute("cpus:2", 0.6);
        assert!((49.0..=51.0).contains(&value), "{value}");
    }

    #[test]
    fn usage_at_promise_is_not_deprived() {
        assert_eq!(after_a_minute("cpus:2", 2.0), 0.0);
        assert_eq!(after_a_minute("cpus:0.5", 1.5), 0.0);
    }

    #[test]
    fn without_figures_nothing_is_said() {
        let mut deprived = Deprived::default();
        assert_eq!(
            deprived.observe(&sample(1, "cpus:1", 0.0), &BTreeMap::new()),
            (None, None)
        );
    }
    /// Regression: a task throttled by its own limit, on an idle machine, had all revocable work killed.
    #[test]
    fn own_limit_is_not_deprivation() {
        assert!(throttled_for_a_minute("cpus:1", 0.7, 0.52) < 0.01);
        assert!(throttled_for_a_minute("cpus:1", 0.7, 2.1) < 0.01, "on all");
        let both = throttled_for_a_minute("cpus:1", 0.7, 0.2);
        assert!((29.0..=31.0).contains(&both), "the rest counts: {both}");
    }

    /// Regression: for one sweep the throttled time was unknown, and all the waiting was blamed on others.
    #[test]
    fn missing_limit_figures_cause_no_action() {
        let mut deprived = Deprived::default();
        for (second, throttled) in [Some(0.0), Some(0.5), None, Some(1.5), Some(0.2), Some(0.7)]
            .into_iter()
            .enumerate()
        {
            let second = u32::try_from(second).unwrap();
            let now = f64::from(second);
            let mut stalls = stalled(now * 0.5, 0.0);
            stalls
                .values_mut()
                .for_each(|one| one.throttled_secs = throttled);
            let sample = sample(second.into(), "cpus:1", now * 0.7);
            let (pressure, _) = deprived.observe(&sample, &stalls);
            let value = pressure.unwrap().some_avg10;
            assert!(value < 0.01, "{second}: {value}");
        }
    }

    /// Regression: a task at its own memory limit, in an executor below its limit, had revocable work killed.
    #[test]
    fn nested_limits_count_as_own() {
        let outer = ContainerId::new("c").unwrap();
        let inner = outer.child("task").unwrap();
        let deeper = inner.child("check").unwrap();
        let usage = |memory: (u64, u64), throttled_secs, some| {
            let mut usage = meseta_isolators::ContainerUsage::default();
            (usage.memory.total_bytes, usage.memory.limit_bytes) = (Some(memory.0), Some(memory.1));
            usage.cpu.throttled_secs = throttled_secs;
            usage.pressure.memory_some_secs = Some(some);
            usage
        };
        let other = ContainerId::new("d").unwrap();
        let readings = [
            (&outer, usage((100, 1000), Some(3.0), 7.0)),
            (&inner, usage((96, 100), Some(3.0), 5.0)),
            (&deeper, usage((0, 100), Some(1.0), 0.0)),
            (&other, usage((900, 1000), Some(4.0), 3.0)),
        ];
        let all = Stalls::by_container(readings.iter().map(|(id, usage)| (*id, usage)));
        let found = |id| {
            let stalls: &Stalls = &all[id];
            let some = stalls.pressure.memory_some_secs;
            (stalls.is_at_memory_limit, stalls.throttled_secs, some)
        };
        assert_eq!(all.len(), 2);
        assert_eq!(found(&outer), (true, Some(3.0), Some(7.0)));
        assert_eq!(found(&other), (false, Some(4.0), Some(3.0)));
    }
}
