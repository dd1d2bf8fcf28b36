//! The recommended controller: acts in steps, within seconds, and on no more than necessary.
//!
//! Detectors ([`detector`]) give the level of escalation. The steps are, in this order: nothing more is offered; all
//! revocable work together is throttled; the worst is frozen (never for memory, which freezing does not free); and, if that
//! was not enough, victims ([`victims`]) are killed: enough to close the computed gap, or a single one if the gap is unknown.
//! Invariant: no kill within a cool-down of the last one, none on an old or unreadable sample, and never a container without
//! revocable resources.

use std::collections::BTreeMap;
use std::time::Duration;

use meseta_resources::{FrameworkId, Moment, Scalar};

use crate::numbers::{bytes, sound};
use crate::rates::{Meter, Reading};
use crate::{
    Action, Assessment, ContainerUsage, Correction, DetectorReading, ExecutorKey, Explanation,
    Level, Pressure, QosController, Throttle, Unit, UsageSample,
};

mod ceiling;
mod config;
mod detector;
mod satisfaction;
mod victims;

use ceiling::Ceiling;
pub use config::PressureConfig;
use detector::{Detector, Need};
use satisfaction::Satisfaction;
use victims::{Candidate, by_cpu, by_memory, choose};

/// The use of revocable containers, and that of all others with the system.
#[derive(Clone, Copy, Debug)]
struct CpuUse {
    capacity: f64,
    revocable: f64,
    /// The use of regular work and the system: the host's use minus that of revocable work.
    rest: f64,
    /// Whether all revocable work could be read. If not, `rest` contains a part of it: good enough to hold revocable work back,
    /// not to kill.
    certain: bool,
}

/// The interval of samples while anything is oversubscribed. The second sample after a rise shows it whole, at the latest:
/// with this interval, relief comes within a second.
const INTERVAL_MAX: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct PressureController {
    config: PressureConfig,
    meter: Meter,
    cpu_util: Detector,
    psi_cpu: Detector,
    psi_mem_some: Detector,
    psi_mem_full: Detector,
    mem: Detector,
    satisfaction: Satisfaction,
    ceiling: Ceiling,
    quota: Option<Quota>,
    frozen: BTreeMap<ExecutorKey, Moment>,
    last_freeze: Option<Moment>,
    last_kill: Option<Moment>,
    last_victim: Option<FrameworkId>,
    last: Option<Moment>,
    standing: Assessment,
}

#[derive(Clone, Debug)]
struct Quota {
    cpus: f64,
    at: Moment,
    why: Explanation,
}

impl PressureController {
    pub(crate) const NAME: &'static str = "pressure";

    #[must_use]
    pub fn new(config: PressureConfig) -> Self {
        Self {
            meter: Meter::new(Duration::ZERO, config.stale_after),
            cpu_util: Detector::new("cpu-util", Unit::Share, config.cpu_util()),
            psi_cpu: Detector::new("psi-cpu", Unit::Percent, config.psi_cpu()),
            psi_mem_some: Detector::new("psi-mem-some", Unit::Percent, config.psi_mem_some()),
            psi_mem_full: Detector::new("psi-mem-full", Unit::Percent, config.psi_mem_full()),
            mem: Detector::new("mem-watermark", Unit::Share, config.mem()),
            satisfaction: Satisfaction::new(&config),
            ceiling: Ceiling::default(),
            quota: None,
            frozen: BTreeMap::new(),
            last_freeze: None,
            last_kill: None,
            last_victim: None,
            last: None,
            standing: Assessment::default(),
            config,
        }
    }

    fn cpu_use(&self, sample: &UsageSample) -> Option<CpuUse> {
        let capacity = sample.host.cpus.map(f64::from).filter(|cpus| *cpus > 0.0)?;
        let Reading::Fresh(host) = self.meter.host() else {
            return None;
        };
        let (mut revocable, mut certain) = (0.0, true);
        for container in sample.revocable() {
            let key = container.key();
            match self.meter.container(&key) {
                Reading::Fresh(used) => revocable += used,
                // The container has only just begun, and its use is negligible.
                _ if self.meter.is_first_reading(&key) => {}
                // The container has not begun yet, or has been unreadable for long: the agent fetches its files, or destroys it.
                Reading::Unknown if container.at.is_none() => {}
                Reading::Held(_) | Reading::Unknown => certain = false,
            }
        }
        let rest = (host - revocable).max(0.0);
        Some(CpuUse {
            capacity,
            revocable,
            rest,
            certain,
        })
    }

    /// Feeds every detector its value.
    fn detect(&mut self, sample: &UsageSample, used: Option<CpuUse>) {
        let at = sample.at;
        let host = &sample.host;
        let percent = |value: f64| sound(value);
        match used {
            Some(used) if !used.certain => {
                self.cpu_util.observe_at_most(at, used.rest / used.capacity)
            }
            used => self
                .cpu_util
                .observe(at, used.map(|used| used.rest / used.capacity)),
        }
        let psi_cpu = match host.regular_cpu_pressure {
            Some(pressure) => Some(pressure),
            None if self.config.psi_cpu_host => host.cpu_pressure,
            // No regular work remains that could wait, so the work held back for it may go on.
            None if sample.containers.iter().all(ContainerUsage::is_revocable) => {
                Some(Pressure::default())
            }
            None => None,
        };
        self.psi_cpu.observe(
            at,
            psi_cpu.and_then(|pressure| percent(pressure.some_avg10)),
        );
        let memory = host.memory.filter(|memory| memory.total_bytes > 0);
        let share = memory.map(|memory| bytes(memory.used_bytes()) / bytes(memory.total_bytes));
        self.mem.observe(at, share);
        let psi_mem = self.memory_stall(sample);
        self.psi_mem_some.observe(
            at,
            psi_mem.and_then(|pressure| percent(pressure.some_avg10)),
        );
        self.psi_mem_full.observe(
            at,
            psi_mem.and_then(|pressure| percent(pressure.full_avg10)),
        );
        let quota = self.quota.as_ref().map(|quota| quota.cpus);
        let requested = requested(sample);
        self.satisfaction.observe(
            at,
            quota,
            requested,
            used.filter(|used| used.certain).map(|used| used.revocable),
        );
    }

    /// The memory stall that revocable work causes. The stall of the whole machine also counts a container that waits at its own
    /// limit, regardless of free memory.
    fn memory_stall(&self, sample: &UsageSample) -> Option<Pressure> {
        let host = &sample.host;
        if host.regular_memory_pressure.is_some() {
            return host.regular_memory_pressure;
        }
        let is_alone = sample.containers.iter().all(ContainerUsage::is_revocable);
        if is_alone || self.mem.is_over_nothing() {
            return Some(Pressure::default());
        }
        host.memory_pressure
    }

    fn detectors(&self) -> [&Detector; 5] {
        [
            &self.mem,
            &self.psi_mem_full,
            &self.psi_mem_some,
            &self.cpu_util,
            &self.psi_cpu,
        ]
    }

    /// Throttles revocable work to the CPUs that regular work leaves.
    fn throttle(&mut self, at: Moment, used: Option<CpuUse>) {
        let config = &self.config;
        let cause = [&self.cpu_util, &self.psi_cpu]
            .into_iter()
            .find(|d| d.level() >= Level::Throttle);
        let Some(used) = used else { return };
        let floor = (config.throttle_floor * used.capacity).max(config.throttle_floor_cpus);
        let step = config.throttle_step * used.capacity;
        let fair = (config.throttle_share * used.capacity - used.rest).max(floor);
        match (cause, &mut self.quota) {
            (Some(cause), None) => {
                let why = cause.explain(at, Level::Throttle);
                self.quota = Some(Quota {
                    cpus: fair,
                    at,
                    why,
                });
            }
            (cause, Some(quota)) => {
                let elapsed = at.saturating_since(quota.at).as_secs_f64();
                let grown = quota.cpus + config.throttle_growth * used.capacity * elapsed;
                // Without a cause the throttle grows until it no longer binds, and is then lifted.
                let wanted = if cause.is_some() { fair } else { used.capacity };
                let next = if wanted < quota.cpus {
                    wanted
                } else {
                    wanted.min(grown)
                };
                if (next - quota.cpus).abs() >= step {
                    quota.cpus = next;
                    quota.at = at;
                }
                if let Some(cause) = cause {
                    quota.why = cause.explain(at, Level::Throttle);
                } else if quota.cpus >= used.capacity - step {
                    self.quota = None;
                }
            }
            (None, None) => {}
        }
    }

    /// The needs whose time has come, most urgent first.
    fn needs(&self, sample: &UsageSample, used: Option<CpuUse>) -> Vec<Need> {
        let at = sample.at;
        let mut needs = Vec::new();
        if let (Some(why), Some(memory)) = (self.mem.kill(at), sample.host.memory) {
            let target = self.config.mem_target * bytes(memory.total_bytes);
            needs.push(Need::memory(why, Some(bytes(memory.used_bytes()) - target)));
        }
        for detector in [&self.psi_mem_full, &self.psi_mem_some] {
            needs.extend(detector.kill(at).map(|why| Need::memory(why, None)));
        }
        let Some(used) = used.filter(|used| used.certain) else {
            return needs;
        };
        if let Some(why) = self.cpu_util.kill(at) {
            let target = self.config.cpu_util_target() * used.capacity;
            let gap = (used.rest + used.revocable - target).min(used.revocable);
            needs.push(Need::cpu(why, Some(gap)));
        }
        needs.extend(self.psi_cpu.kill(at).map(|why| Need::cpu(why, None)));
        needs.extend(self.satisfaction.kill(at));
        needs
    }

    /// Carries out the most urgent need for which an action is possible.
    fn correct(
        &mut self,
        sample: &UsageSample,
        used: Option<CpuUse>,
        needs: &[Need],
    ) -> Vec<Correction> {
        // The next need that freezing can meet begins with a freeze again, but not during the present one: a container that the
        // agent does not freeze, because it is ending, must not be requested for ever.
        if self.frozen.is_empty() && !needs.iter().any(Need::freezing_helps) {
            self.last_freeze = None;
        }
        for need in needs {
            let corrections = self.answer(sample, need);
            if !corrections.is_empty() {
                return corrections;
            }
        }
        self.end_of_freezing(sample, used).into_iter().collect()
    }

    fn answer(&mut self, sample: &UsageSample, need: &Need) -> Vec<Correction> {
        let at = sample.at;
        let candidates = match need {
            Need { memory: true, .. } => by_memory(sample, self.config.stale_after),
            Need { requests: true, .. } => victims::by_request(sample),
            Need { .. } => by_cpu(sample, &self.meter),
        };
        let chosen = choose(candidates, need.gap, self.last_victim.as_ref());
        if chosen.is_empty() {
            return Vec::new();
        }
        let may_freeze = self.config.freeze && need.freezing_helps();
        if may_freeze && self.last_freeze.is_none() {
            return self.freeze(at, need, &chosen);
        }
        let too_early =
            |last: Option<Moment>, wait| last.is_some_and(|last| at.saturating_since(last) < wait);
        let cool_down = self.config.cool_down(need.memory);
        if too_early(self.last_kill, cool_down)
            || (may_freeze && too_early(self.last_freeze, self.config.freeze_grace))
        {
            return Vec::new();
        }
        self.kill(at, need, &chosen)
    }

    fn freeze(&mut self, at: Moment, need: &Need, chosen: &[Candidate<'_>]) -> Vec<Correction> {
        self.last_freeze = Some(at);
        let freeze = |candidate: &Candidate<'_>| {
            self.frozen.insert(candidate.container.key(), at);
            Correction::from_container(candidate.container, Action::Freeze, need.explain(candidate))
        };
        chosen.iter().map(freeze).collect()
    }

    fn kill(&mut self, at: Moment, need: &Need, chosen: &[Candidate<'_>]) -> Vec<Correction> {
        self.last_kill = Some(at);
        self.last_victim = chosen
            .last()
            .map(|candidate| candidate.container.framework.clone());
        let kill = |candidate: &Candidate<'_>| {
            self.frozen.remove(&candidate.container.key());
            Correction::from_container(candidate.container, Action::Kill, need.explain(candidate))
        };
        chosen.iter().map(kill).collect()
    }

    /// Thaws a container when there is room again; kills a container that has been frozen for too long.
    fn end_of_freezing(
        &mut self,
        sample: &UsageSample,
        used: Option<CpuUse>,
    ) -> Option<Correction> {
        let at = sample.at;
        let oldest = self.frozen.iter().min_by_key(|(_, since)| **since);
        let (key, since) = oldest.map(|(key, since)| (key.clone(), *since))?;
        let used = used?;
        let container = sample
            .revocable()
            .find(|container| container.key() == key)?;
        if self.cpu_util.is_calm() && self.psi_cpu.is_calm() {
            self.frozen.remove(&key);
            let threshold = self.config.cpu_util_throttle;
            let share = used.rest / used.capacity;
            let why = Explanation::over(self.cpu_util.name(), share, threshold, Unit::Share);
            return Some(Correction::from_container(container, Action::Thaw, why));
        }
        let held = at.saturating_since(since);
        let cool_down = self.config.cool_down(false);
        let cooling = self
            .last_kill
            .is_some_and(|last| at.saturating_since(last) < cool_down);
        if held < self.config.freeze_max || cooling || !used.certain {
            return None;
        }
        self.last_kill = Some(at);
        self.last_victim = Some(container.framework.clone());
        self.frozen.remove(&key);
        let (held, max) = (held.as_secs_f64(), self.config.freeze_max.as_secs_f64());
        let why = Explanation::over("frozen", held, max, Unit::Seconds);
        Some(Correction::from_container(container, Action::Kill, why))
    }

    /// Adopts frozen containers after a restart. Forgets those that are gone, and those that the agent thawed so that they can
    /// end.
    fn reconcile_frozen(&mut self, sample: &UsageSample) {
        let mut frozen = BTreeMap::new();
        for container in sample.revocable() {
            let key = container.key();
            if container.frozen {
                let since = self.frozen.get(&key).copied();
                frozen.insert(key, since.unwrap_or(sample.at));
            }
        }
        self.frozen = frozen;
    }

    fn state(&self, sample: &UsageSample, memory_ceiling_bytes: Option<u64>) -> Assessment {
        let stopping = self
            .detectors()
            .into_iter()
            .find(|d| d.level() >= Level::Stop);
        let reading = |detector: &Detector| DetectorReading {
            detector: detector.name(),
            value: detector.value(),
            level: detector.level(),
        };
        let mut readings: Vec<DetectorReading> =
            self.detectors().into_iter().map(reading).collect();
        readings.push(self.satisfaction.reading());
        let quota = self.quota.as_ref();
        Assessment {
            stop_offering: stopping.map(|detector| detector.explain(sample.at, Level::Stop)),
            throttle: quota.map(|quota| Throttle {
                cpus: quota.cpus,
                why: quota.why.clone(),
            }),
            memory_ceiling_bytes,
            corrections: Vec::new(),
            readings,
        }
    }
}

/// The allocated cpus of revocable work.
fn requested(sample: &UsageSample) -> f64 {
    let cpus = |container: &ContainerUsage| container.allocated.revocable().cpus();
    sample
        .containers
        .iter()
        .filter_map(cpus)
        .map(Scalar::to_f64)
        .sum()
}

impl QosController for PressureController {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn interval_max(&self) -> Option<Duration> {
        Some(INTERVAL_MAX)
    }

    fn stale_after(&self) -> Option<Duration> {
        Some(self.config.stale_after)
    }

    fn assess(&mut self, sample: &UsageSample) -> Assessment {
        if self.last.is_some_and(|last| sample.at <= last) {
            // The sample is not new: the states stay in force, and no correction follows.
            return self.standing.clone();
        }
        self.meter.observe(sample);
        self.reconcile_frozen(sample);
        let used = self.cpu_use(sample);
        self.detect(sample, used);
        self.throttle(sample.at, used);
        let needs = self.needs(sample, used);
        let corrections = self.correct(sample, used, &needs);
        self.last = Some(sample.at);
        let is_short = self.mem.level() >= Level::Throttle;
        let ceiling = self.ceiling.observe(sample, is_short);
        self.standing = self.state(sample, ceiling);
        Assessment {
            corrections,
            ..self.standing.clone()
        }
    }
}

#[cfg(test)]
mod tests;
