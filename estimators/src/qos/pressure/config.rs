//! The thresholds of the pressure controller, and their defaults.

use std::time::Duration;

use super::detector::{Clear, Thresholds};
use crate::config::Reader;
use crate::{ConfigError, Parameters};

/// Each field is a parameter of the same name. Shares are of the host's processors or memory.
#[derive(Clone, Debug, PartialEq)]
pub struct PressureConfig {
    /// Use of regular work and the system. Defaults: stop offering at 0.65, throttle at 0.70, kill at
    /// 0.85 after 5 s; each clears 0.05 below.
    pub cpu_util_stop: f64,
    pub cpu_util_throttle: f64,
    pub cpu_util_kill: f64,
    pub cpu_util_clear: f64,
    pub cpu_util_hold: Duration,
    /// Per cent of ten seconds in which some regular task waited for a processor. Defaults: 10, 20,
    /// 40 after 10 s; each clears at half.
    pub psi_cpu_stop: f64,
    pub psi_cpu_throttle: f64,
    pub psi_cpu_kill: f64,
    pub psi_cpu_hold: Duration,
    /// Take the whole host's stall where that of regular work alone is not known. Default: false, for
    /// revocable work of low weight waits by design.
    pub psi_cpu_host: bool,
    /// The same of memory: some task waited, or all did. Defaults: some 5 and 20, full 1 and 5; kill
    /// after 5 s.
    pub psi_mem_some_stop: f64,
    pub psi_mem_some_kill: f64,
    pub psi_mem_full_stop: f64,
    pub psi_mem_full_kill: f64,
    pub psi_mem_hold: Duration,
    /// Memory in use. Defaults: stop at 0.75, hold revocable work to what it has at 0.80, kill down to
    /// 0.80 at 0.85 after 1 s; each clears 0.02 below.
    pub mem_stop: f64,
    pub mem_throttle: f64,
    pub mem_kill: f64,
    pub mem_target: f64,
    pub mem_clear: f64,
    pub mem_hold: Duration,
    /// Best-effort satisfaction, the throttled quota by what was requested: killing down to `upper` if
    /// it is below `lower` over the window and now, while that much of the quota is used. Defaults:
    /// 0.40, 0.60, 0.90, 60 s.
    pub satisfaction_lower: f64,
    pub satisfaction_upper: f64,
    pub satisfaction_use: f64,
    pub satisfaction_window: Duration,
    /// All revocable work gets what regular work leaves of this share, but not less than the floor.
    /// Defaults: 0.70, 0.05 and 0.1 cpus; growing by 0.10 each second, in steps of at least 0.01.
    pub throttle_share: f64,
    pub throttle_floor: f64,
    pub throttle_floor_cpus: f64,
    pub throttle_growth: f64,
    pub throttle_step: f64,
    /// Freeze before killing for cpu, for so long at most, and see whether it helped. Defaults: true,
    /// 60 s, 3 s.
    pub freeze: bool,
    pub freeze_max: Duration,
    pub freeze_grace: Duration,
    /// Between two rounds of kills, by what the second one is for. Defaults: 20 s and 4 s.
    pub cpu_cool_down: Duration,
    pub mem_cool_down: Duration,
    /// Older readings are not believed, nor rates over longer gaps. Default: 60 s.
    pub stale_after: Duration,
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

impl Default for PressureConfig {
    fn default() -> Self {
        Self {
            cpu_util_stop: 0.65,
            cpu_util_throttle: 0.70,
            cpu_util_kill: 0.85,
            cpu_util_clear: 0.05,
            cpu_util_hold: secs(5),
            psi_cpu_stop: 10.0,
            psi_cpu_throttle: 20.0,
            psi_cpu_kill: 40.0,
            psi_cpu_hold: secs(10),
            psi_cpu_host: false,
            psi_mem_some_stop: 5.0,
            psi_mem_some_kill: 20.0,
            psi_mem_full_stop: 1.0,
            psi_mem_full_kill: 5.0,
            psi_mem_hold: secs(5),
            mem_stop: 0.75,
            mem_throttle: 0.80,
            mem_kill: 0.85,
            mem_target: 0.80,
            mem_clear: 0.02,
            mem_hold: secs(1),
            satisfaction_lower: 0.40,
            satisfaction_upper: 0.60,
            satisfaction_use: 0.90,
            satisfaction_window: secs(60),
            throttle_share: 0.70,
            throttle_floor: 0.05,
            throttle_floor_cpus: 0.1,
            throttle_growth: 0.10,
            throttle_step: 0.01,
            freeze: true,
            freeze_max: secs(60),
            freeze_grace: secs(3),
            cpu_cool_down: secs(20),
            mem_cool_down: secs(4),
            stale_after: secs(60),
        }
    }
}

impl PressureConfig {
    /// # Errors
    /// When a parameter is unknown or its value invalid, or thresholds are out of order.
    pub fn read(parameters: &Parameters) -> Result<Self, ConfigError> {
        let mut reader = Reader::new(super::PressureController::NAME, parameters)?;
        let mut config = Self::default();
        config.read_shares(&mut reader)?;
        config.read_percents(&mut reader)?;
        config.read_durations(&mut reader)?;
        reader.number(
            "throttle_floor_cpus",
            0.01..=f64::MAX,
            &mut config.throttle_floor_cpus,
        )?;
        reader.flag("psi_cpu_host", &mut config.psi_cpu_host)?;
        reader.flag("freeze", &mut config.freeze)?;
        config.check_order(&reader)?;
        reader.finish()?;
        Ok(config)
    }

    fn read_shares(&mut self, reader: &mut Reader<'_>) -> Result<(), ConfigError> {
        reader.share("cpu_util_stop", &mut self.cpu_util_stop)?;
        reader.share("cpu_util_throttle", &mut self.cpu_util_throttle)?;
        reader.share("cpu_util_kill", &mut self.cpu_util_kill)?;
        reader.share("cpu_util_clear", &mut self.cpu_util_clear)?;
        reader.share("mem_stop", &mut self.mem_stop)?;
        reader.share("mem_throttle", &mut self.mem_throttle)?;
        reader.share("mem_kill", &mut self.mem_kill)?;
        reader.share("mem_target", &mut self.mem_target)?;
        reader.share("mem_clear", &mut self.mem_clear)?;
        reader.share("satisfaction_lower", &mut self.satisfaction_lower)?;
        reader.share("satisfaction_upper", &mut self.satisfaction_upper)?;
        reader.share("satisfaction_use", &mut self.satisfaction_use)?;
        reader.share("throttle_share", &mut self.throttle_share)?;
        reader.share("throttle_floor", &mut self.throttle_floor)?;
        reader.share("throttle_growth", &mut self.throttle_growth)?;
        reader.share("throttle_step", &mut self.throttle_step)
    }

    fn read_percents(&mut self, reader: &mut Reader<'_>) -> Result<(), ConfigError> {
        let percent = 0.0..=100.0;
        reader.number("psi_cpu_stop", percent.clone(), &mut self.psi_cpu_stop)?;
        reader.number(
            "psi_cpu_throttle",
            percent.clone(),
            &mut self.psi_cpu_throttle,
        )?;
        reader.number("psi_cpu_kill", percent.clone(), &mut self.psi_cpu_kill)?;
        reader.number(
            "psi_mem_some_stop",
            percent.clone(),
            &mut self.psi_mem_some_stop,
        )?;
        reader.number(
            "psi_mem_some_kill",
            percent.clone(),
            &mut self.psi_mem_some_kill,
        )?;
        reader.number(
            "psi_mem_full_stop",
            percent.clone(),
            &mut self.psi_mem_full_stop,
        )?;
        reader.number("psi_mem_full_kill", percent, &mut self.psi_mem_full_kill)
    }

    fn read_durations(&mut self, reader: &mut Reader<'_>) -> Result<(), ConfigError> {
        let zero = Duration::ZERO;
        reader.duration("cpu_util_hold", zero, &mut self.cpu_util_hold)?;
        reader.duration("psi_cpu_hold", zero, &mut self.psi_cpu_hold)?;
        reader.duration("psi_mem_hold", zero, &mut self.psi_mem_hold)?;
        reader.duration("mem_hold", zero, &mut self.mem_hold)?;
        reader.duration(
            "satisfaction_window",
            secs(1),
            &mut self.satisfaction_window,
        )?;
        reader.duration("freeze_max", secs(1), &mut self.freeze_max)?;
        reader.duration("freeze_grace", zero, &mut self.freeze_grace)?;
        reader.duration("cpu_cool_down", secs(1), &mut self.cpu_cool_down)?;
        reader.duration("mem_cool_down", secs(1), &mut self.mem_cool_down)?;
        reader.duration("stale_after", secs(1), &mut self.stale_after)
    }

    fn check_order(&self, reader: &Reader<'_>) -> Result<(), ConfigError> {
        let rising = |values: &[f64]| values.is_sorted() && values.iter().all(|value| *value > 0.0);
        reader.require(
            rising(&[
                self.cpu_util_stop,
                self.cpu_util_throttle,
                self.cpu_util_kill,
            ]),
            "cpu_util_stop, cpu_util_throttle and cpu_util_kill must rise from above 0",
        )?;
        reader.require(
            rising(&[self.psi_cpu_stop, self.psi_cpu_throttle, self.psi_cpu_kill]),
            "psi_cpu_stop, psi_cpu_throttle and psi_cpu_kill must rise from above 0",
        )?;
        reader.require(
            rising(&[self.psi_mem_some_stop, self.psi_mem_some_kill])
                && rising(&[self.psi_mem_full_stop, self.psi_mem_full_kill]),
            "psi_mem_some_stop and psi_mem_some_kill must rise from above 0, as must those of full",
        )?;
        reader.require(
            rising(&[self.mem_stop, self.mem_throttle, self.mem_kill]),
            "mem_stop, mem_throttle and mem_kill must rise from above 0",
        )?;
        reader.require(
            self.mem_target <= self.mem_kill,
            "mem_target is above mem_kill",
        )?;
        reader.require(
            self.satisfaction_lower <= self.satisfaction_upper,
            "satisfaction_lower is above satisfaction_upper",
        )
    }

    pub(super) const fn cpu_util(&self) -> Thresholds {
        Thresholds {
            stop: self.cpu_util_stop,
            throttle: Some(self.cpu_util_throttle),
            kill: self.cpu_util_kill,
            clear: Clear::Below(self.cpu_util_clear),
            hold: self.cpu_util_hold,
            gap_max: self.stale_after,
        }
    }

    pub(super) const fn psi_cpu(&self) -> Thresholds {
        Thresholds {
            stop: self.psi_cpu_stop,
            throttle: Some(self.psi_cpu_throttle),
            kill: self.psi_cpu_kill,
            clear: Clear::Half,
            hold: self.psi_cpu_hold,
            gap_max: self.stale_after,
        }
    }

    pub(super) const fn psi_mem_some(&self) -> Thresholds {
        Thresholds {
            stop: self.psi_mem_some_stop,
            throttle: None,
            kill: self.psi_mem_some_kill,
            clear: Clear::Half,
            hold: self.psi_mem_hold,
            gap_max: self.stale_after,
        }
    }

    pub(super) const fn psi_mem_full(&self) -> Thresholds {
        Thresholds {
            stop: self.psi_mem_full_stop,
            kill: self.psi_mem_full_kill,
            ..self.psi_mem_some()
        }
    }

    pub(super) const fn mem(&self) -> Thresholds {
        Thresholds {
            stop: self.mem_stop,
            throttle: Some(self.mem_throttle),
            kill: self.mem_kill,
            clear: Clear::Below(self.mem_clear),
            hold: self.mem_hold,
            gap_max: self.stale_after,
        }
    }

    /// To where processors are freed once it has come to kills.
    pub(super) fn cpu_util_target(&self) -> f64 {
        (self.cpu_util_kill - self.cpu_util_clear).max(0.0)
    }

    pub(super) const fn cool_down(&self, memory: bool) -> Duration {
        if memory {
            self.mem_cool_down
        } else {
            self.cpu_cool_down
        }
    }
}
