//! Destroys a container, retrying with warnings until nothing is left.

use std::sync::atomic::Ordering;

use meseta_isolators::{ContainerName, DestroyOptions, ProcessIdentity};
use tracing::error;

use super::{Containerizer, DESTROY_RETRY_MAX, DESTROY_RETRY_MIN, ENDING_QUICK, blocking};
use crate::error_chain::chain;

impl Containerizer {
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
            error!(cause, "a container is not gone yet; trying again");
            tokio::time::sleep(pause).await;
            pause = pause.saturating_mul(2).min(DESTROY_RETRY_MAX);
        }
    }

    async fn destroy_once(
        &self,
        name: &ContainerName,
        supervisor: &Option<ProcessIdentity>,
        options: DestroyOptions,
    ) -> Result<(), String> {
        let inner = self.inner.clone();
        let (name, supervisor) = (name.clone(), supervisor.clone());
        let destroyed = blocking(move || {
            let destroyed = inner
                .containers
                .destroy(&name, supervisor.as_ref(), options);
            destroyed.map_err(|error| chain(&error))
        });
        destroyed
            .await
            .unwrap_or_else(|panic| Err(panic.to_string()))
    }
}
