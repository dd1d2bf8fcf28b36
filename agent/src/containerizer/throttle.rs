//! Throttles and freezes revocable containers.
//!
//! A part of [`Containerizer`]. Writing the kernel's files is fast, but each is written from a thread that may block.
//! Invariants: the newest request is written last. No container is frozen while a task, a nested container or a session
//! is launched in it, since a process that joins a frozen group never reaches its exec. A freeze does not wait for the
//! command of a check: the result of a check of a frozen container does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meseta_daemon::error_chain::chain;
use meseta_isolators::{ContainerError, ContainerName};
use meseta_resources::ContainerId;
use tracing::{debug, warn};

use super::Containerizer;
use crate::core::{Input, LaunchPlan};

/// The pause between two attempts at a thaw.
const THAW_AGAIN: Duration = Duration::from_secs(1);

/// Requests that are not written yet.
#[derive(Debug, Default)]
struct PendingThrottle {
    /// Whether each container is to be frozen.
    frozen: BTreeMap<ContainerId, bool>,
    /// Thousandths of a processor and bytes for all revocable containers.
    limits: Option<(Option<u64>, Option<u64>)>,
    /// Containers frozen by the last write.
    still: BTreeSet<ContainerId>,
    /// The number of launches in progress in a container. A freeze waits until there are none.
    launches: BTreeMap<ContainerId, usize>,
}

impl PendingThrottle {
    /// Queues a failed thaw again, unless a newer request exists.
    fn thaw_again(&mut self, container: &ContainerId) {
        self.frozen.entry(container.clone()).or_insert(false);
    }

    /// Takes the requests that are due now: a freeze waits for the launches in its container.
    fn take_due(&mut self) -> BTreeMap<ContainerId, bool> {
        let requested = std::mem::take(&mut self.frozen);
        let is_put_off = |(container, frozen): &(ContainerId, bool)| {
            *frozen && self.launches.contains_key(container)
        };
        let (put_off, due) = requested.into_iter().partition(is_put_off);
        self.frozen = put_off;
        due
    }

    /// Records the result of a write.
    fn note_written(&mut self, container: &ContainerId, frozen: bool) {
        match frozen {
            true => self.still.insert(container.clone()),
            false => self.still.remove(container),
        };
    }

    /// Marks a launch as begun. Returns whether the container must be thawed for it.
    fn begin_launch(&mut self, container: &ContainerId) -> bool {
        *self.launches.entry(container.clone()).or_default() += 1;
        self.still.contains(container)
    }

    /// Records a thaw for a launch. The container is frozen again afterwards, unless a newer request exists.
    fn thawed_for_launch(&mut self, container: &ContainerId) {
        self.still.remove(container);
        self.frozen.entry(container.clone()).or_insert(true);
    }

    /// Marks a launch as ended. Returns whether a freeze has waited for it.
    fn end_launch(&mut self, container: &ContainerId) -> bool {
        let launches = self.launches.get_mut(container);
        let left = launches.map_or(0, |launches| {
            *launches -= 1;
            *launches
        });
        if left > 0 {
            return false;
        }
        self.launches.remove(container);
        self.frozen.get(container) == Some(&true)
    }
}

/// Pending throttle requests and the lock under which they are written.
#[derive(Debug, Default)]
pub(super) struct ThrottleWriter {
    pending: Mutex<PendingThrottle>,
    retries: Mutex<Retries>,
}

/// The state of the retries. The writer holds its lock.
#[derive(Debug, Default)]
struct Retries {
    under_way: bool,
}

impl Retries {
    /// Records the result of a write. Returns whether the writer must try again; only one writer at a time does so.
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

/// The result of a round of writes.
#[derive(Debug, Default)]
struct Written {
    /// Whether the writer must try again.
    is_again: bool,
    /// Containers that could not be frozen.
    not_frozen: Vec<ContainerId>,
}

/// The result of one write to the freezer.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum FreezerWrite {
    Done,
    /// The container is gone: there is nothing to freeze.
    Gone,
    Failed,
}

/// A launch in a container. The container stays thawed until this is dropped.
#[derive(Debug)]
pub(crate) struct LaunchInside {
    containerizer: Containerizer,
    container: ContainerId,
}

impl Drop for LaunchInside {
    fn drop(&mut self) {
        let is_due = self
            .containerizer
            .throttle_writer()
            .pending()
            .end_launch(&self.container);
        // Without a runtime the agent is ending, and has thawed all frozen containers.
        if is_due && tokio::runtime::Handle::try_current().is_ok() {
            self.containerizer.write_throttle();
        }
    }
}

impl Containerizer {
    /// Begins the launch of a nested container, and thaws its executor's container for that time. `None` for the
    /// executor's own container. Blocking.
    pub(crate) fn launch_inside(&self, plan: &LaunchPlan) -> Option<LaunchInside> {
        let outer = &plan.run.container;
        if plan.container == *outer {
            return None;
        }
        let throttle_writer = self.throttle_writer();
        // Waits for a write in progress, which was requested earlier.
        let _written = throttle_writer.retries();
        let is_still = throttle_writer.pending().begin_launch(outer);
        let launch = LaunchInside {
            containerizer: self.clone(),
            container: outer.clone(),
        };
        if is_still && self.freeze_now(outer, false) == FreezerWrite::Done {
            throttle_writer.pending().thawed_for_launch(outer);
        }
        Some(launch)
    }

    /// Drops the requests for a container that is gone.
    pub(super) fn forget_throttle(&self, container: &ContainerId) {
        let mut pending = self.throttle_writer().pending();
        pending.frozen.remove(container);
        pending.still.remove(container);
    }

    /// Freezes or thaws a container.
    pub(super) fn freeze(&self, container: ContainerId, frozen: bool) {
        self.throttle_writer()
            .pending()
            .frozen
            .insert(container, frozen);
        self.write_throttle();
    }

    /// Limits all revocable containers together, or removes the limits.
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

    /// Writes the pending requests, once.
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
        // The writers run one after the other, each with the newest requests.
        let mut retries = throttle_writer.retries();
        let (due, limits) = {
            let mut pending = throttle_writer.pending();
            (pending.take_due(), pending.limits.take())
        };
        let (mut failed, mut not_frozen) = (false, Vec::new());
        for (container, frozen) in due {
            match self.freeze_now(&container, frozen) {
                FreezerWrite::Done => throttle_writer.pending().note_written(&container, frozen),
                FreezerWrite::Gone => {}
                FreezerWrite::Failed if frozen => not_frozen.push(container),
                FreezerWrite::Failed => {
                    throttle_writer.pending().thaw_again(&container);
                    failed = true;
                }
            }
        }
        if let Some((cpus_millis, memory_ceiling_bytes)) = limits {
            self.throttle_revocable_now(cpus_millis, memory_ceiling_bytes);
        }
        Written {
            is_again: retries.note(is_retry, failed),
            not_frozen,
        }
    }

    fn freeze_now(&self, container: &ContainerId, frozen: bool) -> FreezerWrite {
        let Ok(name) = ContainerName::new(container.as_str()) else {
            return FreezerWrite::Gone;
        };
        match self.containers().freeze(&name, frozen) {
            Ok(true) => {
                debug!(container_id = %container, frozen, "freezer set");
                FreezerWrite::Done
            }
            Ok(false) if frozen => {
                warn!(container_id = %container, "the freezer is missing");
                FreezerWrite::Failed
            }
            Ok(false) => FreezerWrite::Done,
            Err(error @ ContainerError::Unknown(_)) => {
                debug!(container_id = %container, error = %chain(&error), "freezer not set");
                FreezerWrite::Gone
            }
            Err(error) => {
                warn!(container_id = %container, frozen, error = %chain(&error), "freezer not set");
                FreezerWrite::Failed
            }
        }
    }

    fn throttle_revocable_now(&self, cpus_millis: Option<u64>, memory_ceiling_bytes: Option<u64>) {
        let containers = self.containers();
        match containers.throttle_revocable(cpus_millis) {
            Ok(true) => {}
            Ok(false) if cpus_millis.is_none() => {}
            Ok(false) => {
                warn!("failed to throttle revocable containers: cpu cgroups are missing")
            }
            Err(error) => warn!(error = %chain(&error), "failed to throttle revocable work"),
        }
        if let Err(error) = containers.limit_revocable_memory(memory_ceiling_bytes) {
            warn!(error = %chain(&error), "failed to set the memory limit of revocable containers");
        }
        // Their own limits may have been lowered by an earlier throttle, and are restored now.
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
    fn failed_thaw_yields_to_newer_request() {
        let [still, held] = ["still", "held"].map(|id| ContainerId::new(id).unwrap());
        let mut pending = PendingThrottle::default();
        pending.frozen.insert(held.clone(), true);
        pending.thaw_again(&still);
        pending.thaw_again(&held);
        assert_eq!(pending.frozen, [(still, false), (held, true)].into());
    }

    /// Regression: a launch into a container frozen meanwhile hung until its timeout.
    #[test]
    fn freeze_waits_for_the_launch() {
        let container = ContainerId::new("c").unwrap();
        let mut pending = PendingThrottle::default();
        let written = |pending: &mut PendingThrottle| {
            let due: Vec<_> = pending.take_due().into_iter().collect();
            for (container, frozen) in &due {
                pending.note_written(container, *frozen);
            }
            due.into_iter()
                .map(|(_, frozen)| frozen)
                .collect::<Vec<_>>()
        };
        pending.frozen.insert(container.clone(), true);
        assert_eq!(written(&mut pending), [true]);
        assert!(pending.begin_launch(&container), "it is thawed");
        pending.thawed_for_launch(&container);
        assert!(!pending.begin_launch(&container), "it runs");
        assert!(written(&mut pending).is_empty());
        assert!(!pending.end_launch(&container), "there is another");
        assert!(pending.end_launch(&container));
        assert_eq!(written(&mut pending), [true]);
        // A request during a launch waits for its end, and a thaw replaces the freeze that the launch delayed.
        assert!(pending.begin_launch(&container));
        pending.thawed_for_launch(&container);
        pending.frozen.insert(container.clone(), false);
        assert_eq!(written(&mut pending), [false]);
        pending.frozen.insert(container.clone(), true);
        assert!(written(&mut pending).is_empty());
        assert!(pending.end_launch(&container));
        assert_eq!(written(&mut pending), [true]);
        assert!(pending.launches.is_empty());
    }

    #[test]
    fn only_one_writer_retries() {
        let mut retries = Retries::default();
        assert!(retries.note(false, true));
        // Two other requests during the retry of the first: one fails as well, and one succeeds.
        assert!(!retries.note(false, true));
        assert!(!retries.note(false, false));
        assert!(retries.note(true, true));
        assert!(!retries.note(true, false));
        assert!(retries.note(false, true));
    }
}
