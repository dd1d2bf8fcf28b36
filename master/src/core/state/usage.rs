//! What containers use, as agents measure and report it with their pongs.
//!
//! Entered through [`Usage::reported`]. Invariant: a sum of many is finite, whatever a node reports. No decision is made
//! by it: it is for people.

use meseta_proto::meseta::v1 as meseta;

/// More CPUs than a machine has.
const CPUS_MAX: f64 = 100_000.0;
/// More memory than a machine has, in bytes: 1 PiB.
const MEM_BYTES_MAX: u64 = 1 << 50;

/// CPUs and memory that are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// On average over the last ten seconds.
    pub cpus: f64,
    pub mem_bytes: u64,
}

impl Usage {
    /// What an agent reports; `None` for what no machine can have.
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
