//! The memory ceiling of all revocable work together while memory is short.
//!
//! Containers from before the shortage are limited to the least that they have held since, so that reclaimed memory is not
//! taken again. Containers that begin later add their allocation: a limit from their first sample would be next to nothing.
//! Invariant: unreadable values do not move the ceiling, and without containers there is no ceiling.

use std::collections::BTreeSet;

use meseta_resources::{ContainerId, Scalar};

use crate::numbers::MEGABYTE;
use crate::{ContainerUsage, ExecutorKey, UsageSample};

/// A container of an executor: a later container of the same executor does not inherit its limit.
type Name = (ExecutorKey, Option<ContainerId>);

#[derive(Clone, Debug, Default)]
pub(super) struct Ceiling {
    /// The state since memory became short.
    held: Option<Held>,
}

#[derive(Clone, Debug)]
struct Held {
    /// The containers that had begun when memory became short.
    containers: BTreeSet<Name>,
    /// The least memory that these have held together since.
    least_bytes: Option<u64>,
}

impl Ceiling {
    pub(super) fn observe(&mut self, sample: &UsageSample, is_short: bool) -> Option<u64> {
        if !is_short {
            self.held = None;
            return None;
        }
        let all: Vec<(Name, &ContainerUsage)> = sample
            .revocable()
            .map(|container| (name(container), container))
            .collect();
        // A container without any reading has only just begun, or has not begun yet.
        let begun = all.iter().filter(|(_, container)| container.at.is_some());
        let held = self.held.get_or_insert_with(|| Held {
            containers: begun.clone().map(|(name, _)| name.clone()).collect(),
            least_bytes: None,
        });
        let later = begun.filter(|(name, _)| !held.containers.contains(name));
        let allowances: Vec<u64> = later.map(|(_, later)| allowance_bytes(later)).collect();
        let mut earlier = all
            .iter()
            .filter(|(name, _)| held.containers.contains(name));
        let now = earlier.try_fold(0_u64, |sum, (_, container)| {
            Some(sum.saturating_add(container.at.and(container.memory_bytes)?))
        });
        let names: BTreeSet<&Name> = all.iter().map(|(name, _)| name).collect();
        held.containers.retain(|name| names.contains(name));
        held.least_bytes = match (now, held.least_bytes) {
            (Some(now), Some(before)) => Some(now.min(before)),
            (now, before) => now.or(before),
        };
        if held.containers.is_empty() && allowances.is_empty() {
            return None;
        }
        let least_bytes = held.least_bytes?;
        Some(
            allowances
                .into_iter()
                .fold(least_bytes, u64::saturating_add),
        )
    }
}

fn name(container: &ContainerUsage) -> Name {
    (container.key(), container.container.clone())
}

/// The allowance of a container that began while memory was short: its allocation, or its present memory if it has no
/// allocation.
fn allowance_bytes(container: &ContainerUsage) -> u64 {
    let given = container.allocated.mem().map(Scalar::to_f64);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "allocations are not negative; a float beyond the range saturates"
    )]
    let given = given.map(|megabytes| (megabytes * MEGABYTE) as u64);
    given.or(container.memory_bytes).unwrap_or(0)
}
