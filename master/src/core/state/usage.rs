//! The resource usage of containers, as agents measure and report it with their pongs.
//!
//! Callers enter through [`Usage::reported`]. Invariant: a sum of many usages is finite, whatever an agent reports.
//! The usage is for people; the master decides nothing by it.

use meseta_proto::meseta::v1 as meseta;

/// A number of CPUs above that of any machine.
const CPUS_MAX: f64 = 100_000.0;
/// An amount of memory above that of any machine, in bytes: 1 PiB.
const MEM_BYTES_MAX: u64 = 1 << 50;

/// The CPUs and memory in use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// The average of the last ten seconds.
    pub cpus: f64,
    pub mem_bytes: u64,
}

impl Usage {
    /// Converts a reported usage; `None` for values that no machine can have.
    pub(in crate::core) fn reported(usage: &meseta::UsageTotal) -> Option<Self> {
        let (cpus, mem_bytes) = (usage.cpus?, usage.mem_bytes?);
        let is_sound = (0.0..=CPUS_MAX).contains(&cpus) && mem_bytes <= MEM_BYTES_MAX;
        is_sound.then_some(Self { cpus, mem_bytes })
    }

    pub(in crate::core) fn add(&mut self, other: Self) {
        self.cpus += other.cpus;
        self.mem_bytes = self.mem_bytes.saturating_add(other.mem_bytes);
    }
}
