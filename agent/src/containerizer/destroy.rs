//! Ends containers: sends signals, destroys cgroups, and removes their records from the machine.

use std::sync::atomic::Ordering;
use std::time::Duration;

use meseta_isolators::{
    ContainerName, DestroyOptions, KillRequest, ProcessIdentity, note_repeated,
};
use meseta_resources::ContainerId;
use tracing::{error, warn};

use super::container_table::Destroyable;
use super::{Containerizer, blocking};
use crate::failure::Failure;

/// The first pause before an incomplete destroy is tried again; doubles up to the maximum.
const DESTROY_RETRY_MIN: Duration = Duration::from_millis(200);
const DESTROY_RETRY_MAX: Duration = Duration::from_secs(30);
/// Attempts to remove a runtime folder: for two and a half minutes.
const FORGETS_MAX: u32 = 12;
/// The longest time that an ending container may hold a permit; a slower destroy continues without a permit.
const ENDING_QUICK: Duration = Duration::from_secs(1);
const SIGTERM: i32 = 15;
/// The time that a supervisor gets to end a container that exceeded a limit.
const LIMIT_KILL_PATIENCE: Duration = Duration::from_secs(5);

/// Repeats a request until it is delivered, while `goes_on` returns true.
async fn until_told<T, Asking>(
    ask: impl Fn() -> Asking,
    goes_on: impl Fn() -> bool,
    on_failure: impl Fn(std::io::Error),
) where
    Asking: Future<Output = std::io::Result<T>>,
{
    let mut pause = DESTROY_RETRY_MIN;
    while let Err(error) = ask().await {
        on_failure(error);
        note_repeated();
        tokio::time::sleep(pause).await;
        pause = pause.saturating_mul(2).min(DESTROY_RETRY_MAX);
        if !goes_on() {
            return;
        }
    }
}

impl Containerizer {
    pub(super) fn kill(&self, container: &ContainerId, grace: Duration) {
        let Some(supervisor) = self.inner.table.kill(container) else {
            return;
        };
        let (this, container) = (self.clone(), container.clone());
        tokio::spawn(async move { this.ask_until_told(&container, supervisor, grace).await });
    }

    /// Sends a kill to a supervisor until it is delivered, or the container has ended.
    async fn ask_until_told(
        &self,
        container: &ContainerId,
        supervisor: ProcessIdentity,
        grace: Duration,
    ) {
        let request = KillRequest {
            signal: SIGTERM,
            grace,
        };
        let ask = || {
            let (inner, supervisor) = (self.inner.clone(), supervisor.clone());
            async move { blocking(move || inner.containers.kill(&supervisor, request)).await? }
        };
        let goes_on = || self.inner.table.is_alive(container, &supervisor);
        until_told(ask, goes_on, |error| {
            error!(container_id = %container, %error, "failed to request a kill from a \
                supervisor; retrying");
        })
        .await;
    }

    /// Ends a container that exceeded a limit: through its supervisor, or, if that fails, by killing its cgroups.
    pub(super) async fn end_limited(&self, container: &ContainerId, supervisor: &ProcessIdentity) {
        self.kill(container, Duration::ZERO);
        tokio::time::sleep(LIMIT_KILL_PATIENCE).await;
        if self.inner.table.is_alive(container, supervisor) {
            warn!(container_id = %container, "the supervisor did not end a container beyond its \
                limits; destroying the container");
            self.destroy(container);
        }
    }

    pub(super) fn destroy(&self, container: &ContainerId) {
        let Ok(name) = ContainerName::new(container.as_str()) else {
            return;
        };
        let supervisor = match self.inner.table.destroyable(container) {
            Destroyable::Alive(supervisor) => Some(supervisor),
            Destroyable::Absent => None,
            Destroyable::Changing => return,
        };
        let this = self.clone();
        // The watch notices the end of the supervisor and notifies the core.
        tokio::spawn(async move { this.destroy_until_gone(&name, supervisor).await });
    }

    /// Destroys until nothing is left. A process that cannot die keeps its container alive, which is logged.
    pub(crate) async fn destroy_until_gone(
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
                "failed to destroy a container; retrying"
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

    /// Removes the runtime folder of a container. A failed removal is retried for some minutes; the next start removes
    /// the rest.
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
                    warn!(container_id = %name, %error, "failed to remove the runtime folder of \
                        a container");
                }
            }
            note_repeated();
            tokio::time::sleep(pause).await;
            pause = pause.saturating_mul(2).min(DESTROY_RETRY_MAX);
        }
    }

    /// Destroys a container without a checkpoint and removes its runtime folder.
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn kill_is_repeated_until_delivered() {
        for (works_at, lives_until, expected) in [(1, 9, 1), (4, 9, 4), (9, 3, 3)] {
            let asked = Cell::new(0);
            let ask = || {
                asked.set(asked.get() + 1);
                std::future::ready(match asked.get() >= works_at {
                    true => Ok(()),
                    false => Err(std::io::ErrorKind::WouldBlock.into()),
                })
            };
            until_told(ask, || asked.get() < lives_until, |_| ()).await;
            assert_eq!(asked.get(), expected, "{works_at} {lives_until}");
        }
    }
}
