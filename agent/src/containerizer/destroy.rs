//! Ends containers: by a signal, by destroying their cgroups, and by removing what the machine kept of them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use meseta_isolators::{
    ContainerName, DestroyOptions, KillRequest, ProcessIdentity, note_repeated,
};
use meseta_resources::ContainerId;
use tracing::{error, warn};

use super::state::Entry;
use super::{Containerizer, blocking};
use crate::failure::Failure;

/// First pause before a destroy that left something is tried again; doubles up to the second.
const DESTROY_RETRY_MIN: Duration = Duration::from_millis(200);
const DESTROY_RETRY_MAX: Duration = Duration::from_secs(30);
/// How often a runtime folder is tried that cannot be removed: for two minutes and a half.
const FORGETS_MAX: u32 = 12;
/// How long one of these places may be held; what takes longer goes on without one.
const ENDING_QUICK: Duration = Duration::from_secs(1);
const SIGTERM: i32 = 15;

impl Containerizer {
    pub(super) fn kill(&self, container: &ContainerId, grace: Duration) {
        let supervisor = match self.inner.table().get_mut(container) {
            Some(Entry::Queued { cancelled }) => {
                cancelled.cancel();
                return;
            }
            Some(Entry::Running(live) | Entry::Limited(live, _)) => live.supervisor.clone(),
            Some(Entry::Launching { fetch }) => {
                // The core kills again what it hears to have started.
                fetch.cancel();
                return;
            }
            // What ends needs no kill.
            Some(Entry::Ending) | None => return,
        };
        let (inner, container) = (self.inner.clone(), container.clone());
        tokio::task::spawn_blocking(move || {
            let request = KillRequest {
                signal: SIGTERM,
                grace,
            };
            if let Err(error) = inner.containers.kill(&supervisor, request) {
                // Destroyed by the core's own timer if nothing else helps.
                error!(container_id = %container, %error, "failed to ask a supervisor for a kill");
            }
        });
    }

    pub(super) fn destroy(&self, container: &ContainerId) {
        let Ok(name) = ContainerName::new(container.as_str()) else {
            return;
        };
        let supervisor = match self.inner.table().get(container) {
            Some(Entry::Running(live) | Entry::Limited(live, _)) => Some(live.supervisor.clone()),
            Some(Entry::Queued { .. } | Entry::Launching { .. } | Entry::Ending) => return,
            None => None,
        };
        let this = self.clone();
        // The watch sees the supervisor's end and tells the core.
        tokio::spawn(async move { this.destroy_until_gone(&name, supervisor).await });
    }

    /// Destroys until nothing is left: a process that cannot die keeps its container alive, and says
    /// so in the log.
    pub(super) async fn destroy_until_gone(
        &self,
        name: &ContainerName,
        supervisor: Option<ProcessIdentity>,
    ) {
        let quick = DestroyOptions {
            freeze: ENDING_QUICK,
            empty: ENDING_QUICK,
            remove: ENDING_QUICK,
        };
        let permit = self.inner.destroy_permits.acquire().await;
        if self.destroy_once(name, &supervisor, quick).await.is_ok() {
            return;
        }
        drop(permit);
        let patient = DestroyOptions {
            empty: self.inner.options.destroy_timeout,
            ..DestroyOptions::default()
        };
        let mut pause = DESTROY_RETRY_MIN;
        while let Err(cause) = self.destroy_once(name, &supervisor, patient).await {
            let errors = &self.inner.destroy_errors;
            errors.fetch_add(1, Ordering::Relaxed);
            error!(
                cause = String::from(cause),
                "a container is not gone yet; trying again"
            );
            tokio::time::sleep(pause).await;
            pause = pause.saturating_mul(2).min(DESTROY_RETRY_MAX);
        }
    }

    async fn destroy_once(
        &self,
        name: &ContainerName,
        supervisor: &Option<ProcessIdentity>,
        options: DestroyOptions,
    ) -> Result<(), Failure> {
        let inner = self.inner.clone();
        let (name, supervisor) = (name.clone(), supervisor.clone());
        let destroyed = blocking(move || {
            let containers = &inner.containers;
            Ok(containers.destroy(&name, supervisor.as_ref(), options)?)
        });
        destroyed.await.unwrap_or_else(|panic| Err(panic.into()))
    }

    /// Removes what the runtime folder holds of a container. What cannot be removed is tried again for some minutes;
    /// what is left then goes at the next start.
    pub(super) fn forget(&self, container: ContainerId) {
        let Ok(name) = ContainerName::new(container.as_str()) else {
            return;
        };
        let this = self.clone();
        tokio::spawn(async move { this.forget_until_gone(name).await });
    }

    async fn forget_until_gone(&self, name: ContainerName) {
        let mut pause = DESTROY_RETRY_MIN;
        for _ in 0..FORGETS_MAX {
            let (inner, forgotten) = (self.inner.clone(), name.clone());
            let removed = blocking(move || inner.containers.forget(&forgotten)).await;
            match removed.unwrap_or_else(|panic| Err(std::io::Error::other(panic))) {
                Ok(()) => return,
                Err(error) => {
                    warn!(container_id = %name, %error, "a container's runtime folder is left over");
                }
            }
            note_repeated();
            tokio::time::sleep(pause).await;
            pause = pause.saturating_mul(2).min(DESTROY_RETRY_MAX);
        }
    }

    /// A container without a checkpoint is destroyed and forgotten.
    pub(crate) fn remove_orphan(
        &self,
        name: ContainerName,
        supervisor: Option<ProcessIdentity>,
    ) -> tokio::task::JoinHandle<()> {
        let this = self.clone();
        tokio::spawn(async move {
            this.destroy_until_gone(&name, supervisor).await;
            this.forget_until_gone(name).await;
        })
    }
}
