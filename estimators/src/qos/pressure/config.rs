//! The thresholds of the pressure controller, and their defaults.

use std::time::Duration;

use super::detector::{Clear, Thresholds};
use crate::config::Reader;
use crate::{ConfigError, Parameters};

/// The parameters of the controller: each field has the name of its parameter. Shares are of the host's processors or memory.
#[derive(Clone, Debug, PartialEq)]
pub struct PressureConfig {
    /// Use of regular work and the system. Defaults: stop offering at 0.65, throttle at 0.70, kill at 0.85 after 5 s; each clears
    /// 0.05 below.
    pub cpu_util_stop: f64,
    pub cpu_util_throttle: f64,
    pub cpu_util_kill: f64,
    pub cpu_util_clear: f64,
    pub cpu_util_hold: Duration,
    /// The percentage of ten seconds in which some regular task waited for a processor. Defaults: 10, 20, 40 after 10 s; each
    /// clears at half.
    pub psi_cpu_stop: f64,
    pub psi_cpu_throttle: f64,
    pub psi_cpu_kill: f64,
    pub psi_cpu_hold: Duration,
    /// Whether to use the whole host's stall if that of regular work alone is unknown. Default: false, because revocable work of
    /// low weight waits by design.
    pub psi_cpu_host: bool,
    /// The memory pressure thresholds: some tasks waited, or all did. Defaults: some 5 and 20, full 1 and 5; kill after 5 s.
    pub psi_mem_some_stop: f64,
    pub psi_mem_some_kill: f64,
    pub psi_mem_full_stop: f64,
    pub psi_mem_full_kill: f64,
    pub psi_mem_hold: Duration,
    /// Memory in use. Defaults: stop at 0.75, limit revocable work to its present memory at 0.80, kill down to 0.80 at 0.85 after
    /// 1 s; each clears 0.02 below.
    pub mem_stop: f64,
    pub mem_throttle: f64,
    pub mem_kill: f64,
    pub mem_target: f64,
    pub mem_clear: f64,
    pub mem_hold: Duration,
    /// Best-effort satisfaction, the ratio of the throttled quota to the requests: kills down to `upper` if the ratio is below
    /// `lower` over the window and now, while that much of the quota is used. Defaults: 0.40, 0.60, 0.90, 60 s.
    pub satisfaction_lower: f64,
    pub satisfaction_upper: f64,
    pub satisfaction_use: f64,
    pub satisfaction_window: Duration,
    /// The share of the host from which revocable work gets the rest that regular work leaves, but no less than the floor.
    /// Defaults: 0.70, 0.05 and 0.1 cpus; growing by 0.10 each second, in steps of at least 0.01.
    pub throttle_share: f64,
    pub throttle_floor: f64,
    pub throttle_floor_cpus: f64,
    pub throttle_growth: f64,
    pub throttle_step: f64,
    /// Whether to freeze before killing for cpu, the longest freeze, and the time to wait for its effect. Defaults: true, 60 s, 3
    /// s.
    pub freeze: bool,
    pub freeze_max: Duration,
    pub freeze_grace: Duration,
    /// The pause between two rounds of kills, by the resource of the second one. Defaults: 20 s and 4 s.
    pub cpu_cool_down: Duration,
    pub mem_cool_down: Duration,
    /// The age above which readings are ignored, and the longest gap of a rate. Default: 60 s.
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

/// Reads parameters with the names of the fields that they set, in the order in which errors list them.
macro_rules! read_fields {
    ($reader:ident, $config:ident; $($kind:ident $within:tt: $($field:ident),+;)+) => {
        $($(read_fields!(@$reader $config $kind $within $field);)+)+
    };
    (@$reader:ident $config:ident $kind:ident ($($within:expr)?) $field:ident) => {
        $reader.$kind(stringify!($field), $($within,)? &mut $config.$field)?
    };
}

impl PressureConfig {
    /// # Errors
    /// When a parameter is unknown or its value invalid, or thresholds are out of order.
    pub fn read(parameters: &Parameters) -> Result<Self, ConfigError> {
        let mut reader = Reader::new(super::PressureController::NAME, parameters)?;
        let mut config = Self::default();
        read_fields!(reader, config;
            share(): cpu_util_stop, cpu_util_throttle, cpu_util_kill, cpu_util_clear;
            share(): mem_stop, mem_throttle, mem_kill, mem_target, mem_clear;
            share(): satisfaction_lower, satisfaction_upper, satisfaction_use;
            share(): throttle_share, throttle_floor, throttle_growth, throttle_step;
            number(0.0..=100.0): psi_cpu_stop, psi_cpu_throttle, psi_cpu_kill;
            number(0.0..=100.0): psi_mem_some_stop, psi_mem_some_kill, psi_mem_full_stop, psi_mem_full_kill;
            duration(Duration::ZERO): cpu_util_hold, psi_cpu_hold, psi_mem_hold, mem_hold;
            duration(secs(1)): satisfaction_window, freeze_max;
            duration(Duration::ZERO): freeze_grace;
            duration(secs(1)): cpu_cool_down, mem_cool_down, stale_after;
            number(0.01..=f64::MAX): throttle_floor_cpus;
            flag(): psi_cpu_host, freeze;
        );
        config.check_order(&reader)?;
        reader.finish()?;
        Ok(config)
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

    /// The use down to which kills free processors.
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
