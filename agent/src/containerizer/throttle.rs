//! Throttles and freezes revocable containers.
//!
//! A part of [`Containerizer`]. The kernel's files take no time to speak of, but each is written from a thread that
//! may block. Invariant: the newest request is written last.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meseta_daemon::error_chain::chain;
use meseta_isolators::{ContainerError, ContainerName};
use meseta_resources::ContainerId;
use tracing::{debug, warn};

use super::Containerizer;
use crate::core::Input;

/// Between two attempts at a thaw.
const THAW_AGAIN: Duration = Duration::from_secs(1);

/// Requested and not yet written.
#[derive(Debug, Default)]
struct PendingThrottle {
    /// Whether a container is to stand still.
    frozen: BTreeMap<ContainerId, bool>,
    /// Thousandths of a processor and bytes for all revocable containers.
    limits: Option<(Option<u64>, Option<u64>)>,
}

impl PendingThrottle {
    /// A thaw that failed is to be written again, unless something newer was asked for meanwhile.
    fn thaw_again(&mut self, container: &ContainerId) {
        self.frozen.entry(container.clone()).or_insert(false);
    }
}

/// Pending throttle requests and the lock under which they are written.
#[derive(Debug, Default)]
pub(super) struct ThrottleWriter {
    pending: Mutex<PendingThrottle>,
    retries: Mutex<Retries>,
}

/// Whether what failed is being tried again. Whoever writes holds it.
#[derive(Debug, Default)]
struct Retries {
    under_way: bool,
}

impl Retries {
    /// Notes how a write went; whether the writer is to try again, which one of them does at a time.
    fn note(&mut self, is_retry: bool, failed: bool) -> bool {
        let is_due = failed && (is_retry || !self.under_way);
        if is_retry || failed {
            self.under_way = failed;
        }
        is_due
    }
}

impl ThrottleWriter {
    fn pending(&self) -> MutexGuard<'_, PendingThrottle> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn retries(&self) -> MutexGuard<'_, Retries> {
        self.retries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What came of writing.
#[derive(Debug, Default)]
struct Written {
    /// Whether the writer is to try again.
    is_again: bool,
    /// Containers that were to stand still, and do not.
    not_frozen: Vec<ContainerId>,
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
        tokio::spawn(async move {
            let mut is_retry = false;
            loop {
                let written = this.write_pending(is_retry).await;
                for container in written.not_frozen {
                    this.inner.tell(Input::FreezeFailed { container }).await;
                }
                if !written.is_again {
                    return;
                }
                is_retry = true;
                tokio::time::sleep(THAW_AGAIN).await;
            }
        });
    }

    /// Writes what is still to be written, once.
    pub(crate) async fn flush_throttle(&self) {
        self.write_pending(false).await;
    }

    async fn write_pending(&self, is_retry: bool) -> Written {
        let this = self.clone();
        let written = tokio::task::spawn_blocking(move || this.write_pending_now(is_retry));
        written.await.unwrap_or_default()
    }

    fn write_pending_now(&self, is_retry: bool) -> Written {
        let throttle_writer = self.throttle_writer();
        // One after the other, each with the newest requests.
        let mut retries = throttle_writer.retries();
        let pending = std::mem::take(&mut *throttle_writer.pending());
        let (mut failed, mut not_frozen) = (false, Vec::new());
        for (container, frozen) in pending.frozen {
            if self.freeze_now(&container, frozen) {
                continue;
            }
            if frozen {
                not_frozen.push(container);
            } else {
                throttle_writer.pending().thaw_again(&container);
                failed = true;
            }
        }
        if let Some((cpus_millis, memory_ceiling_bytes)) = pending.limits {
            self.throttle_revocable_now(cpus_millis, memory_ceiling_bytes);
        }
        Written {
            is_again: retries.note(is_retry, failed),
            not_frozen,
        }
    }

    /// False if it should have been done, and was not.
    fn freeze_now(&self, container: &ContainerId, frozen: bool) -> bool {
        let Ok(name) = ContainerName::new(container.as_str()) else {
            return true;
        };
        match self.containers().freeze(&name, frozen) {
            Ok(true) => debug!(container_id = %container, frozen, "freezer set"),
            Ok(false) if frozen => {
                warn!(container_id = %container, "there is no freezer here");
                return false;
            }
            Ok(false) => {}
            // It is gone by now: there is nothing to hold.
            Err(error @ ContainerError::Unknown(_)) => {
                debug!(container_id = %container, error = %chain(&error), "freezer not set");
            }
            Err(error) => {
                warn!(container_id = %container, frozen, error = %chain(&error), "freezer not set");
                return false;
            }
        }
        true
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thaw_that_failed_is_tried_again_unless_something_newer_was_asked_for() {
        let [still, held] = ["still", "held"].map(|id| ContainerId::new(id).unwrap());
        let mut pending = PendingThrottle::default();
        pending.frozen.insert(held.clone(), true);
        pending.thaw_again(&still);
        pending.thaw_again(&held);
        assert_eq!(pending.frozen, [(still, false), (held, true)].into());
    }

    #[test]
    fn one_writer_at_a_time_tries_again() {
        let mut retries = Retries::default();
        assert!(retries.note(false, true));
        // Another request while the first is tried again, which fails as well, and one that does not.
        assert!(!retries.note(false, true));
        assert!(!retries.note(false, false));
        assert!(retries.note(true, true));
        assert!(!retries.note(true, false));
        assert!(retries.note(false, true));
    }
}
