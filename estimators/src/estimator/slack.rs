//! The recommended estimator: oversubscribes resources that were promised to regular work and that, by its learned profile,
//! stay unused.
//!
//! The peak of regular work is the greater of two guesses: the use that executors seldom exceed (each alone, or all together
//! if that is less), and the present use of all plus a margin. The first knows the past, the second knows now. Invariant: a
//! peak is never below the use at the last sample plus the margin, and new or unreadable executors count at their limit.

use std::time::Duration;

use meseta_resources::{Moment, Resource, Resources};

use super::account::{Account, Kind, Regular, gate_is_shut, oversubscribed};
use super::checkpoint::{Decoder, Encoder};
use super::crowd::{Crowd, CrowdConfig, Member};
use super::forecaster::{Forecaster, ForecasterConfig};
use super::shaper::{Shaper, ShaperConfig};
use crate::config::Reader;
use crate::numbers::amount;
use crate::rates::{Meter, Reading};
use crate::revocable::revocable;
use crate::{
    CheckpointError, ConfigError, Estimate, Forecast, Gate, Parameters, ResourceEstimator,
    UsageSample,
};

const VERSION: u8 = 1;
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// The parameters of the estimator: each field has the name of its parameter, including those of `caps`.
#[derive(Clone, Debug, PartialEq)]
pub struct SlackConfig {
    /// Whether to oversubscribe memory too. Default: false, because memory cannot be taken back without killing.
    pub mem: bool,
    /// The percentile of the use in five minutes that an executor seldom exceeds. Default: 0.98.
    pub cpu_percentile: f64,
    /// A factor on the learned percentile. Default: 1.0, since the floor margin is enough (see `docs/estimators.md`).
    pub cpu_margin: f64,
    /// The half-life of cpu histories. Default: 12 h.
    pub cpu_half_life: Duration,
    /// The percentile, factor and half-life for memory. Defaults: 0.98, 1.10, 24 h.
    pub mem_percentile: f64,
    pub mem_margin: f64,
    pub mem_half_life: Duration,
    /// Whether the joint use of executors bounds the sum of their own peaks: they seldom peak at the same time. Defaults: true,
    /// 0.995, 1.10, 48 h; in effect only once a day of joint use is known.
    pub crowd: bool,
    pub crowd_percentile: f64,
    pub crowd_margin: f64,
    pub crowd_half_life: Duration,
    pub crowd_min_age: Duration,
    /// The margin kept free above the present use, as a share of the capacity. Default: 0.09.
    pub floor_margin: f64,
    /// The window over which use is averaged. Default: 10 s.
    pub rate_window: Duration,
    /// The length of a period, of which the highest average is remembered. Default: 5 min.
    pub fold: Duration,
    /// The age below which executors count at their limit. Default: 5 min.
    pub min_age: Duration,
    /// So do those of which fewer samples were seen. Default: 30.
    pub min_samples: u32,
    /// The age above which readings are ignored, and the longest gap of a rate. Default: 45 s.
    pub stale_after: Duration,
    /// The amounts kept for the system even when it uses less. Defaults: 0 cpus, 0 MB.
    pub reserved_cpus: f64,
    pub reserved_mem: f64,
    /// Whether to oversubscribe reserved, unallocated resources too. Default: false.
    pub unused_reservations: bool,
    pub caps: ShaperConfig,
}

impl Default for SlackConfig {
    fn default() -> Self {
        Self {
            mem: false,
            cpu_percentile: 0.98,
            cpu_margin: 1.0,
            cpu_half_life: 12 * HOUR,
            mem_percentile: 0.98,
            mem_margin: 1.10,
            mem_half_life: 24 * HOUR,
            crowd: true,
            crowd_percentile: 0.995,
            crowd_margin: 1.10,
            crowd_half_life: 48 * HOUR,
            crowd_min_age: 24 * HOUR,
            floor_margin: 0.09,
            rate_window: Duration::from_secs(10),
            fold: 5 * MINUTE,
            min_age: 5 * MINUTE,
            min_samples: 30,
            stale_after: Duration::from_secs(45),
            reserved_cpus: 0.0,
            reserved_mem: 0.0,
            unused_reservations: false,
            caps: ShaperConfig::default(),
        }
    }
}

impl SlackConfig {
    /// # Errors
    /// When a parameter is unknown or its value invalid.
    pub fn read(parameters: &Parameters) -> Result<Self, ConfigError> {
        let mut reader = Reader::new(Slack::NAME, parameters)?;
        let mut config = Self {
            caps: ShaperConfig::read(&mut reader)?,
            ..Self::default()
        };
        let second = Duration::from_secs(1);
        reader.flag("mem", &mut config.mem)?;
        reader.number("cpu_percentile", 0.5..=1.0, &mut config.cpu_percentile)?;
        reader.number("cpu_margin", 1.0..=10.0, &mut config.cpu_margin)?;
        reader.duration("cpu_half_life", MINUTE, &mut config.cpu_half_life)?;
        reader.number("mem_percentile", 0.5..=1.0, &mut config.mem_percentile)?;
        reader.number("mem_margin", 1.0..=10.0, &mut config.mem_margin)?;
        reader.duration("mem_half_life", MINUTE, &mut config.mem_half_life)?;
        reader.flag("crowd", &mut config.crowd)?;
        reader.number("crowd_percentile", 0.5..=1.0, &mut config.crowd_percentile)?;
        reader.number("crowd_margin", 1.0..=10.0, &mut config.crowd_margin)?;
        reader.duration("crowd_half_life", MINUTE, &mut config.crowd_half_life)?;
        reader.duration("crowd_min_age", Duration::ZERO, &mut config.crowd_min_age)?;
        reader.share("floor_margin", &mut config.floor_margin)?;
        reader.duration("rate_window", second, &mut config.rate_window)?;
        reader.duration("fold", second, &mut config.fold)?;
        reader.duration("min_age", Duration::ZERO, &mut config.min_age)?;
        reader.count("min_samples", 1_000_000, &mut config.min_samples)?;
        reader.duration("stale_after", second, &mut config.stale_after)?;
        reader.number("reserved_cpus", 0.0..=f64::MAX, &mut config.reserved_cpus)?;
        reader.number("reserved_mem", 0.0..=f64::MAX, &mut config.reserved_mem)?;
        reader.flag("unused_reservations", &mut config.unused_reservations)?;
        reader.finish()?;
        Ok(config)
    }

    fn model(&self, kind: Kind) -> Model {
        let (percentile, margin, half_life) = match kind {
            Kind::Cpus => (self.cpu_percentile, self.cpu_margin, self.cpu_half_life),
            Kind::Mem => (self.mem_percentile, self.mem_margin, self.mem_half_life),
        };
        let forecaster = ForecasterConfig {
            percentile,
            margin,
            half_life,
            fold: self.fold,
            min_age: self.min_age,
            min_samples: self.min_samples,
        };
        let folds = self
            .crowd_min_age
            .as_nanos()
            .div_ceil(self.fold.as_nanos().max(1));
        let crowd = CrowdConfig {
            percentile: self.crowd_percentile,
            margin: self.crowd_margin,
            half_life: self.crowd_half_life,
            fold: self.fold,
            min_folds: u32::try_from(folds).unwrap_or(u32::MAX).max(1),
        };
        Model {
            kind,
            forecaster: Forecaster::new(forecaster),
            crowd: Crowd::new(crowd),
            shaper: Shaper::new(self.caps.clone()),
        }
    }

    const fn reserved(&self, kind: Kind) -> f64 {
        match kind {
            Kind::Cpus => self.reserved_cpus,
            Kind::Mem => self.reserved_mem,
        }
    }
}

/// The learned and reported state of one resource.
#[derive(Clone, Debug)]
struct Model {
    kind: Kind,
    forecaster: Forecaster,
    crowd: Crowd,
    shaper: Shaper,
}

impl Model {
    fn member<'a>(&self, now: Moment, regular: &'a Regular) -> Member<'a> {
        let Regular {
            key,
            limit,
            used,
            started,
        } = regular;
        let learned_peak = match used {
            Reading::Unknown => None,
            Reading::Fresh(_) | Reading::Held(_) => {
                self.forecaster.learned_peak(now, key, *limit, *started)
            }
        };
        Member {
            key,
            limit: *limit,
            used: used.value(),
            learned_peak,
        }
    }
}

/// The slack estimator. A checkpoint is at most some 9 MB for each resource, with the longest possible names; usually some
/// 300 bytes for each executor.
#[derive(Clone, Debug)]
pub struct Slack {
    config: SlackConfig,
    meter: Meter,
    models: Vec<Model>,
    last: Option<Moment>,
}

impl Slack {
    pub(crate) const NAME: &'static str = "slack";

    #[must_use]
    pub fn new(config: SlackConfig) -> Self {
        let mut models = vec![config.model(Kind::Cpus)];
        if config.mem {
            models.push(config.model(Kind::Mem));
        }
        let meter = Meter::new(config.rate_window, config.stale_after);
        Self {
            config,
            meter,
            models,
            last: None,
        }
    }

    /// Learns from a sample and forecasts one resource; `None` if the node has none of this resource.
    fn forecast(
        &mut self,
        index: usize,
        sample: &UsageSample,
        shut: bool,
    ) -> Option<ModelForecast> {
        let model = self.models.get_mut(index)?;
        let reserved = self.config.reserved(model.kind);
        let account = Account::from_kind(model.kind, sample, &self.meter, reserved)?;
        let now = sample.at;
        for regular in &account.regular {
            if let Reading::Fresh(used) = regular.used {
                let (key, limit) = (&regular.key, regular.limit);
                model.forecaster.observe(now, key, limit, used);
            }
        }
        model.forecaster.forget(now);
        let crowd: Vec<Member<'_>> = account
            .regular
            .iter()
            .map(|regular| model.member(now, regular))
            .collect();
        if self.config.crowd {
            model.crowd.observe(now, &crowd);
        }
        let unlearned = crowd
            .iter()
            .filter(|one| one.learned_peak.is_none())
            .count();
        let learned = model.crowd.peak(&crowd);
        let peak = learned.max(account.used + self.config.floor_margin * account.capacity);
        let forecast = if shut {
            account.forecast(model.kind, peak, 0.0)
        } else {
            let lend_reservations = self.config.unused_reservations;
            account.settle(
                model.kind,
                sample,
                peak,
                lend_reservations,
                &mut model.shaper,
            )
        };
        Some(ModelForecast {
            forecast,
            blind: account.blind(),
            unlearned,
        })
    }
}

struct ModelForecast {
    forecast: Forecast,
    blind: Option<&'static str>,
    /// The number of executors of which too little is known.
    unlearned: usize,
}

/// The part of a total that is not oversubscribed yet.
pub(super) fn headroom(kind: Kind, sample: &UsageSample, total: f64) -> Option<Resource> {
    let free = amount(total - oversubscribed(kind, sample));
    let resource = match kind {
        Kind::Cpus => Resource::cpus(free),
        Kind::Mem => Resource::mem(free),
    };
    revocable(&resource)
}

impl ResourceEstimator for Slack {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn stale_after(&self) -> Option<Duration> {
        Some(self.meter.stale_after())
    }

    fn estimate(&mut self, sample: &UsageSample, gate: Gate) -> Estimate {
        let stale = self.last.is_some_and(|last| sample.at <= last);
        let mut shut = false;
        for model in &mut self.models {
            shut |= gate_is_shut(
                &mut model.shaper,
                self.last.unwrap_or(sample.at).max(sample.at),
                gate,
            );
        }
        let mut estimate = Estimate::from_oversubscribable(Resources::new());
        let mut free = Resources::new();
        if stale {
            for model in &self.models {
                free.extend(headroom(model.kind, sample, model.shaper.reported()));
            }
            estimate.held_back = Some("the sample is not newer than the last sample".into());
            estimate.oversubscribable = Some(free);
            return estimate;
        }
        self.last = Some(sample.at);
        self.meter.observe(sample);
        for index in 0..self.models.len() {
            let Some(kind) = self.models.get(index).map(|model| model.kind) else {
                continue;
            };
            let Some(model_forecast) = self.forecast(index, sample, shut) else {
                estimate.held_back = Some(format!("the capacity of {} is unknown", kind.name()));
                continue;
            };
            free.extend(headroom(kind, sample, model_forecast.forecast.total));
            if let Some(because) = model_forecast.blind {
                estimate.held_back = Some(because.into());
            } else if model_forecast.unlearned > 0 && estimate.held_back.is_none() {
                estimate.held_back = Some(format!(
                    "executors with too few samples count at their limit: {}",
                    model_forecast.unlearned
                ));
            }
            estimate.forecasts.push(model_forecast.forecast);
        }
        if shut {
            estimate.held_back = Some("a detector demands a stop, or demanded one recently".into());
        }
        estimate.oversubscribable = Some(free);
        estimate
    }

    fn checkpoint(&self, now: Moment) -> Vec<u8> {
        let mut bytes = Encoder::new(VERSION);
        bytes.count(self.models.len());
        for model in &self.models {
            bytes.bytes(model.kind.name().as_bytes());
            model.forecaster.encode(now, &mut bytes);
            model.crowd.encode(&mut bytes);
        }
        bytes.finish()
    }

    /// Drops the histories of a resource that is no longer oversubscribed. The total begins at zero.
    fn restore(&mut self, now: Moment, bytes: &[u8]) -> Result<(), CheckpointError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut decoder = Decoder::new(VERSION, bytes)?;
        let mut restored = self.models.clone();
        for _ in 0..decoder.count("resources", 2)? {
            let name = decoder.text("resource", 8)?;
            let kind = [Kind::Cpus, Kind::Mem]
                .into_iter()
                .find(|kind| kind.name() == name);
            let kind = kind.ok_or(CheckpointError::Invalid("resource"))?;
            let fresh = self.config.model(kind);
            let forecaster = fresh.forecaster.decode(now, &mut decoder)?;
            let crowd = fresh.crowd.decode(now, &mut decoder)?;
            if let Some(model) = restored.iter_mut().find(|model| model.kind == kind) {
                (model.forecaster, model.crowd) = (forecaster, crowd);
            }
        }
        decoder.finish()?;
        self.models = restored;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
