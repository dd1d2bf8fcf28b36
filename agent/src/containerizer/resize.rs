//! Changes the limits and volumes of running containers.
//!
//! Invariant: of several resizes the newest takes effect in the end. A hard memory limit is lowered once the usage is
//! below the new limit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use meseta_daemon::error_chain::chain;
use meseta_isolators::{ContainerError, ContainerName, Demand, Shrink, note_repeated};
use meseta_proto::mesos::v1 as pb;
use meseta_resources::{ContainerId, Resources};
use prost::Message as _;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::inspection_limits::InspectionLimits;
use super::{Containerizer, blocking, limit_drift};
use crate::core::Input;
use crate::failure::Failure;
use crate::spec::volumes;

/// Attempts at a resize, and the pause between them. A shortage in the agent or a disk error is no fault of the tasks,
/// which a failed resize would end.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

/// The interval between attempts to lower a hard memory limit below the current usage.
const SHRINK_AGAIN: Duration = Duration::from_secs(5);
/// The longest time that the end of a task waits for its memory to be taken back.
const SHRINK_WAIT: Duration = Duration::from_secs(1);

impl Containerizer {
    /// Sets the demand of a container from now on.
    pub(super) fn resize(
        &self,
        container: ContainerId,
        demand: Demand,
        resources: &Resources,
        volumes: Vec<pb::Resource>,
    ) {
        let limits = InspectionLimits::from_resources(resources, self.layout());
        self.inner
            .table
            .request(&container, demand, limits, volumes);
        let this = self.clone();
        tokio::spawn(async move {
            let failed = this.try_resizing(&container).await.err();
            let failed = failed.map(String::from);
            let resized = Input::Resized { container, failed };
            this.inner.tell(resized).await;
        });
    }

    async fn try_resizing(&self, container: &ContainerId) -> Result<(), Failure> {
        self.wait_for_volumes(container).await;
        let attempt = || self.resize_now(container);
        tried_again(container, attempt).await
    }

    /// Waits while data of destroyed volumes remains at the places of the container's new volumes, or their disks are
    /// silent: this must not end the tasks already running in the container.
    async fn wait_for_volumes(&self, container: &ContainerId) {
        let settings = &self.inner.options.settings;
        while let Some(further) = self.further_volumes_of(container).await {
            match volumes::emptied(&settings.places, &settings.layout, &further).await {
                Ok(()) => return,
                Err(error) => {
                    warn!(container_id = %container, error = %chain(&error), "a container waits for the directory of a volume");
                }
            }
        }
    }

    /// The volumes that a running container is to get in addition.
    async fn further_volumes_of(&self, container: &ContainerId) -> Option<Vec<pb::Resource>> {
        let live = self.inner.table.running(container)?;
        let wanted = live.volumes.as_ref()?;
        Some(beyond(&live.change_lock.lock().await.volumes, wanted))
    }

    /// Applies the current request to a container: of several concurrent resizes each applies the newest request.
    async fn resize_now(&self, container: &ContainerId) -> Result<(), Failure> {
        // An ending container needs no limits.
        let Some(before) = self.inner.table.running(container) else {
            return Ok(());
        };
        let mut applied = before.change_lock.lock().await;
        let Some(live) = self.inner.table.running(container) else {
            return Ok(());
        };
        let name = ContainerName::new(container.as_str())?;
        let inner = self.inner.clone();
        let volumes_requested = live.volumes.clone().unwrap_or_default();
        let with_volumes = applied.may_have_volumes || !volumes_requested.is_empty();
        let has_some = !volumes_requested.is_empty();
        let further = beyond(&applied.volumes, &volumes_requested);
        let taken = beyond(&volumes_requested, &applied.volumes);
        // If this step fails, the container certainly keeps the other volumes, which no step concerns.
        applied.volumes = beyond(&taken, &applied.volumes);
        let given = volumes_requested.clone();
        let demand = live.demand;
        // The container already runs without these limits, which was logged.
        let known = applied.missing_limits.clone();
        let (this, target) = (self.clone(), live.clone());
        let limits_set = blocking(move || limit_drift::update(&this, &target, known));
        applied.missing_limits = limits_set.await??;
        let asked = name.clone();
        let updated = blocking(move || {
            let (name, containers) = (asked, &inner.containers);
            if !with_volumes {
                return Ok(());
            }
            let settings = &inner.options.settings;
            let layout = &settings.layout;
            let context = volumes::VolumeContext::new(settings, &live.run, &live.container);
            volumes::make_ready(settings, &further)?;
            let volumes_requested = volumes::of_resources(layout, &volumes_requested)?;
            // Only volumes need the sandbox, which may have been removed from outside.
            let owner = match volumes_requested.is_empty() {
                true => None,
                false => volumes::owner(&context, settings.user_switching.is_on())?,
            };
            let (supervisor, owner) = (&live.supervisor, owner.as_ref());
            volumes::change(
                containers,
                &name,
                supervisor,
                &context,
                &volumes_requested,
                owner,
            )
        });
        let updated = updated.await;
        updated.unwrap_or_else(|panic| Err(panic.into()))?;
        applied.demand = demand;
        applied.may_have_volumes = has_some;
        applied.volumes = given;
        let attempted = self.shrink(container.clone(), name, demand);
        // The end of a task does not wait until the kernel has written all pages back.
        let _ = tokio::time::timeout(SHRINK_WAIT, attempted).await;
        Ok(())
    }

    /// Lowers a container's hard memory limit now, or as soon as the usage is below it. The returned receiver completes
    /// after the first attempt.
    pub(super) fn shrink(
        &self,
        container: ContainerId,
        name: ContainerName,
        demand: Demand,
    ) -> oneshot::Receiver<()> {
        let (first, attempted) = oneshot::channel();
        let this = self.clone();
        tokio::spawn(async move { this.shrink_until_done(container, name, demand, first).await });
        attempted
    }

    async fn shrink_until_done(
        self,
        container: ContainerId,
        name: ContainerName,
        demand: Demand,
        first: oneshot::Sender<()>,
    ) {
        let mut first = Some(first);
        let mut this = self;
        while this.demand_of(&container) == Some(demand) {
            let (inner, asked) = (this.inner.clone(), name.clone());
            let shrunk = blocking(move || inner.containers.shrink_memory(&asked, &demand)).await;
            if let Some(newer) = this.demand_of(&container).filter(|now| *now != demand) {
                // The limit was raised meanwhile, and this step may have lowered it again.
                let (inner, asked) = (this.inner.clone(), name.clone());
                let _ = blocking(move || inner.containers.update(&asked, &newer)).await;
                return;
            }
            match shrunk {
                Ok(Ok(Shrink::InUse { usage_bytes })) => {
                    if first.take().is_some() {
                        info!(
                            container_id = %container, usage_bytes, wanted_bytes = demand.mem_bytes,
                            "a container uses more memory than its new limit; the limit is lowered once it fits"
                        );
                    }
                }
                Ok(Ok(Shrink::Done { .. } | Shrink::NotLower)) | Err(_) => return,
                // The container began under other isolators, or is gone.
                Ok(Err(ContainerError::Unknown(_))) => return,
                Ok(Err(error)) => {
                    return warn!(container_id = %container, error = %chain(&error), "a memory limit is higher than requested");
                }
            }
            // The exit of the agent does not wait for this task.
            let others = Arc::downgrade(&this.inner);
            drop(this);
            tokio::time::sleep(SHRINK_AGAIN).await;
            let Some(inner) = others.upgrade() else {
                return;
            };
            this = Self { inner };
        }
    }

    /// The requested demand of a running container.
    pub(super) fn demand_of(&self, container: &ContainerId) -> Option<Demand> {
        Some(self.inner.table.running(container)?.demand)
    }
}

/// The volumes of `second` that are not in `first`.
fn beyond(first: &[pb::Resource], second: &[pb::Resource]) -> Vec<pb::Resource> {
    let first: BTreeSet<_> = first.iter().map(pb::Resource::encode_to_vec).collect();
    let second = second.iter();
    let beyond = second.filter(|one| !first.contains(&one.encode_to_vec()));
    beyond.cloned().collect()
}

/// Returns the first success, or the result of the last of [`ATTEMPTS`].
async fn tried_again<F: Future<Output = Result<(), Failure>>>(
    container: &ContainerId,
    mut attempt: impl FnMut() -> F,
) -> Result<(), Failure> {
    for _ in 1..ATTEMPTS {
        let Err(failure) = attempt().await else {
            return Ok(());
        };
        let cause = String::from(failure);
        warn!(container_id = %container, cause, "failed to resize a container; retrying");
        note_repeated();
        tokio::time::sleep(PAUSE).await;
    }
    attempt().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Layout, silent_disk};

    /// Regression: when the disk of an existing volume hung, the container waited for ever, and so did the ends of its
    /// tasks.
    #[tokio::test(start_paused = true)]
    async fn resize_waits_only_for_new_disks() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(&dir.path().join("w"));
        let (places, [had, new]) = silent_disk(&dir.path().join("disk"), ["a", "b"]);
        let resized = async |wanted: &[pb::Resource], had: &[pb::Resource]| {
            let further = beyond(had, wanted);
            volumes::emptied(&places, &layout, &further).await.is_ok()
        };
        let (had, both) = (vec![had.clone()], [had, new]);
        assert!(resized(&had, &had).await);
        assert!(resized(&[], &had).await);
        assert!(!resized(&both, &had).await);
        // The volumes of an adopted container are unknown.
        assert!(!resized(&had, &[]).await);
        assert_eq!(beyond(&had, &both), both[1..]);
        assert_eq!(beyond(&both, &had), []);
    }

    /// The number of attempts, the result, and the duration, if this number of attempts fails.
    async fn tried(failing: u32) -> (u32, Result<(), String>, Duration) {
        let container = ContainerId::new("c").expect("an id");
        let (began, mut made) = (tokio::time::Instant::now(), 0);
        let outcome = tried_again(&container, || {
            made += 1;
            std::future::ready(match made > failing {
                true => Ok(()),
                false => Err(Failure::new("no descriptors")),
            })
        });
        let outcome = outcome.await.map_err(String::from);
        (made, outcome, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn failed_resize_is_retried_then_reported() {
        assert_eq!(tried(0).await, (1, Ok(()), Duration::ZERO));
        assert_eq!(tried(1).await, (2, Ok(()), PAUSE));
        assert_eq!(
            tried(ATTEMPTS - 1).await,
            (ATTEMPTS, Ok(()), PAUSE * (ATTEMPTS - 1))
        );
        let (made, outcome, _) = tried(u32::MAX).await;
        assert_eq!(made, ATTEMPTS);
        assert_eq!(outcome, Err("no descriptors".to_owned()));
    }
}
