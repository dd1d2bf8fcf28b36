//! Holding revocable containers back: carries freezes and throttles out.
//!
//! A part of [`Containerizer`]. The kernel's files take no time to speak of, but each is written from a
//! thread that may block. Invariant: the last wish is the last that is written.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use meseta_isolators::ContainerName;
use meseta_resources::ContainerId;
use tracing::{debug, warn};

use super::containerizer::Containerizer;
use super::writer::chain;

/// What is wished for and not written yet.
#[derive(Debug, Default)]
struct Wishes {
    /// Whether a container is to stand still.
    frozen: BTreeMap<ContainerId, bool>,
    /// Thousandths of a processor and bytes for all revocable containers.
    restraint: Option<(Option<u64>, Option<u64>)>,
}

/// The wishes, and whose turn it is to write them.
#[derive(Debug, Default)]
pub(super) struct Restraints {
    wishes: Mutex<Wishes>,
    turn: Mutex<()>,
}

impl Restraints {
    fn wishes(&self) -> MutexGuard<'_, Wishes> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Containerizer {
    /// Stops a container where it is, or lets it go on.
    pub(super) fn freeze(&self, container: ContainerId, frozen: bool) {
        self.restraints().wishes().frozen.insert(container, frozen);
        self.write_restraints();
    }

    /// Holds all revocable containers back together, or lets go.
    pub(super) fn restrain(&self, cpus_millis: Option<u64>, memory_ceiling_bytes: Option<u64>) {
        self.restraints().wishes().restraint = Some((cpus_millis, memory_ceiling_bytes));
        self.write_restraints();
    }

    fn write_restraints(&self) {
        let this = self.clone();
        tokio::task::spawn_blocking(move || {
            let restraints = this.restraints();
            // One after the other, each with the newest wishes.
            let _turn = restraints.turn();
            let wishes = std::mem::take(&mut *restraints.wishes());
            for (container, frozen) in wishes.frozen {
                this.freeze_now(&container, frozen);
            }
            if let Some((cpus_millis, memory_ceiling_bytes)) = wishes.restraint {
                this.restrain_now(cpus_millis, memory_ceiling_bytes);
            }
        });
    }

    fn freeze_now(&self, container: &ContainerId, frozen: bool) {
        let Ok(name) = ContainerName::new(container.as_str()) else {
            return;
        };
        match self.containers().freeze(&name, frozen) {
            Ok(true) => debug!(container_id = %container, frozen, "freezer set"),
            Ok(false) if frozen => warn!(container_id = %container, "there is no freezer here"),
            Ok(false) => {}
            // It may be gone by now; then there is nothing to hold.
            Err(error) => {
                debug!(container_id = %container, error = %chain(&error), "freezer not set");
            }
        }
    }

    fn restrain_now(&self, cpus_millis: Option<u64>, memory_ceiling_bytes: Option<u64>) {
        let containers = self.containers();
        match containers.throttle_revocable(cpus_millis) {
            Ok(true) => {}
            Ok(false) if cpus_millis.is_none() => {}
            Ok(false) => warn!("revocable work cannot be throttled here: there are no cpu cgroups"),
            Err(error) => warn!(error = %chain(&error), "failed to throttle revocable work"),
        }
        if let Err(error) = containers.squeeze_revocable(memory_ceiling_bytes) {
            warn!(error = %chain(&error), "failed to squeeze revocable work");
        }
        // Their own limits may have been lowered with an earlier throttle, and come back now.
        for live in self.live() {
            let Ok(name) = ContainerName::new(live.container.as_str()) else {
                continue;
            };
            if containers.is_held_with_revocable(&live.demand)
                && let Err(error) = containers.update(&name, &live.demand)
            {
                debug!(container_id = %live.container, error = %chain(&error), "limits not set");
            }
        }
    }
}
