//! Throttles and freezes revocable containers.
//!
//! A part of [`Containerizer`]. The kernel's files take no time to speak of, but each is written from a thread that
//! may block. Invariant: the newest request is written last.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use meseta_daemon::error_chain::chain;
use meseta_isolators::ContainerName;
use meseta_resources::ContainerId;
use tracing::{debug, warn};

use super::Containerizer;

/// Requested and not yet written.
#[derive(Debug, Default)]
struct PendingThrottle {
    /// Whether a container is to stand still.
    frozen: BTreeMap<ContainerId, bool>,
    /// Thousandths of a processor and bytes for all revocable containers.
    limits: Option<(Option<u64>, Option<u64>)>,
}

/// Pending throttle requests and the lock under which they are written.
#[derive(Debug, Default)]
pub(super) struct ThrottleWriter {
    pending: Mutex<PendingThrottle>,
    write_lock: Mutex<()>,
}

impl ThrottleWriter {
    fn pending(&self) -> MutexGuard<'_, PendingThrottle> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_lock(&self) -> MutexGuard<'_, ()> {
        self.write_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Containerizer {
    /// Stops a container where it is, or lets it go on.
    pub(super) fn freeze(&self, container: ContainerId, frozen: bool) {
        self.throttle_writer()
            .pending()
            .frozen
            .insert(container, frozen);
        self.write_throttle();
    }

    /// Holds all revocable containers back together, or lets go.
    pub(super) fn throttle_revocable(
        &self,
        cpus_millis: Option<u64>,
        memory_ceiling_bytes: Option<u64>,
    ) {
        self.throttle_writer().pending().limits = Some((cpus_millis, memory_ceiling_bytes));
        self.write_throttle();
    }

    fn write_throttle(&self) {
        let this = self.clone();
        tokio::task::spawn_blocking(move || {
            let throttle_writer = this.throttle_writer();
            // One after the other, each with the newest requests.
            let _write_lock = throttle_writer.write_lock();
            let pending = std::mem::take(&mut *throttle_writer.pending());
            for (container, frozen) in pending.frozen {
                this.freeze_now(&container, frozen);
            }
            if let Some((cpus_millis, memory_ceiling_bytes)) = pending.limits {
                this.throttle_revocable_now(cpus_millis, memory_ceiling_bytes);
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

    fn throttle_revocable_now(&self, cpus_millis: Option<u64>, memory_ceiling_bytes: Option<u64>) {
        let containers = self.containers();
        match containers.throttle_revocable(cpus_millis) {
            Ok(true) => {}
            Ok(false) if cpus_millis.is_none() => {}
            Ok(false) => {
                warn!("revocable containers cannot be throttled: there are no cpu cgroups")
            }
            Err(error) => warn!(error = %chain(&error), "failed to throttle revocable work"),
        }
        if let Err(error) = containers.limit_revocable_memory(memory_ceiling_bytes) {
            warn!(error = %chain(&error), "failed to set the memory limit of revocable containers");
        }
        // Their own limits may have been lowered with an earlier throttle, and come back now.
        for live in self.live() {
            let Ok(name) = ContainerName::new(live.container.as_str()) else {
                continue;
            };
            if containers.is_in_revocable_group(&live.demand)
                && let Err(error) = containers.update(&name, &live.demand)
            {
                debug!(container_id = %live.container, error = %chain(&error), "limits not set");
            }
        }
    }
}
