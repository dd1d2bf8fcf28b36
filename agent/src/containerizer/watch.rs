//! Watches a running container: for the end of its supervisor, and for a memory limit that it runs into.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use meseta_isolators::{
    ContainerName, Demand, ProcessIdentity, is_device_failure, is_shortage, note_repeated,
};
use meseta_resources::ContainerId;
use tokio::io::unix::AsyncFd;
use tracing::{debug, warn};

use super::exit_status::memory_limitation;
use super::readiness::{any_event, register};
use super::state::{Entry, LiveContainer};
use super::supervision::{self, AGAIN_MAX};
use super::{Containerizer, blocking, limitation_file};
use crate::checkpoint::Limitation;
use crate::core::Input;

/// How often, and how far apart, the kernel's counters are read after it spoke of a limit.
const LIMIT_READS: u32 = 20;
const LIMIT_READ_PAUSE: Duration = Duration::from_millis(25);
/// How often limits are looked at that nobody watches for want of descriptors.
const UNWATCHED_LIMIT_PAUSE: Duration = Duration::from_secs(5);

impl Containerizer {
    /// Waits for the supervisor's end.
    pub(super) async fn watch(self, live: Arc<LiveContainer>) {
        let container = live.container.clone();
        {
            let ended = supervision::ended(&self, &container, &live.supervisor);
            tokio::pin!(ended);
            tokio::select! {
                () = &mut ended => {}
                limitation = self.over_a_limit(&live) => {
                    self.limit(&container, limitation);
                    ended.await;
                }
            }
        }
        // Apart, so that what waits for years has no room for what the end needs.
        let supervisor = Some(live.supervisor.clone());
        Box::pin(self.end(container, supervisor, live.demand)).await;
    }

    /// Completes when the container ran into a limit although its first process goes on: the kernel
    /// killed a child of it, say, now or while no agent watched. The whole container ends then.
    async fn over_a_limit(&self, live: &LiveContainer) -> Limitation {
        let container = &live.container;
        let name = ContainerName::new(container.as_str()).ok();
        let Some(name) = name else {
            return std::future::pending().await;
        };
        // What shares the limits of what is around it is watched with that.
        if !self.has_own_memory_limit(&name).await {
            return std::future::pending().await;
        }
        let watch_permit = self.watch_permit();
        let events = match watch_permit {
            Some(_) => self.limit_events(container, &name).await,
            None => Vec::new(),
        };
        let mut looks = 1;
        loop {
            let mut is_known = true;
            for _ in 0..looks {
                let (inner, name, demand) = (self.inner.clone(), name.clone(), live.demand);
                let met = blocking(move || inner.containers.limitation(&name, &demand)).await;
                match met {
                    Ok(Ok(Some(limitation))) => return memory_limitation(limitation),
                    Ok(Ok(None)) => is_known = true,
                    Ok(Err(_)) | Err(_) => {
                        note_repeated();
                        is_known = false;
                    }
                }
                if looks > 1 {
                    tokio::time::sleep(LIMIT_READ_PAUSE).await;
                }
            }
            // The event may have been the only one.
            if watch_permit.is_none() || !is_known {
                tokio::time::sleep(UNWATCHED_LIMIT_PAUSE).await;
                continue;
            }
            // The event comes when memory ran out, the count once a process was killed for it.
            looks = LIMIT_READS;
            if any_event(&events).await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Whether a container has a memory limit of its own, once that can be read.
    async fn has_own_memory_limit(&self, name: &ContainerName) -> bool {
        loop {
            let (inner, asked) = (self.inner.clone(), name.clone());
            match blocking(move || inner.containers.has_own_memory_limit(&asked)).await {
                Ok(Ok(own)) => return own,
                Ok(Err(_)) | Err(_) => note_repeated(),
            }
            tokio::time::sleep(AGAIN_MAX).await;
        }
    }

    /// What tells that a container may have run into a limit; once there are descriptors for it.
    async fn limit_events(
        &self,
        container: &ContainerId,
        name: &ContainerName,
    ) -> Vec<AsyncFd<OwnedFd>> {
        loop {
            let (inner, watched) = (self.inner.clone(), name.clone());
            let watched = blocking(move || inner.containers.watch_limits(&watched)).await;
            let watched = match watched {
                Ok(watched) => watched.and_then(|all| all.into_iter().map(register).collect()),
                Err(panic) => Err(std::io::Error::other(panic)),
            };
            match watched {
                Ok(events) => return events,
                Err(error) if is_shortage(&error) || is_device_failure(&error) => {
                    note_repeated();
                    tokio::time::sleep(AGAIN_MAX).await;
                }
                Err(error) => {
                    warn!(container_id = %container, %error, "cannot watch a container's limits");
                    return Vec::new();
                }
            }
        }
    }

    /// Ends a container that runs beyond a limit; the first limit is the one that is told, by a later life of
    /// the agent too.
    pub(crate) fn limit(&self, container: &ContainerId, limitation: Limitation) {
        if let Some(entry) = self.inner.table().get_mut(container)
            && let Entry::Running(live) = entry
        {
            *entry = Entry::Limited(live.clone(), limitation.clone());
        } else {
            return;
        }
        let (this, container) = (self.clone(), container.clone());
        tokio::task::spawn_blocking(move || {
            if let Ok(name) = ContainerName::new(container.as_str()) {
                limitation_file::keep(&this.inner.containers, &name, &limitation);
            }
            this.kill(&container, Duration::ZERO);
        });
    }

    /// Reads how a container ended, destroys what is left of it and tells the core.
    pub(super) async fn end(
        self,
        container: ContainerId,
        supervisor: Option<ProcessIdentity>,
        demand: Demand,
    ) {
        let before = self.inner.table().insert(container.clone(), Entry::Ending);
        let Ok(name) = ContainerName::new(container.as_str()) else {
            return;
        };
        // What was read while it lived says more than what is left of its group.
        let known = match before {
            Some(Entry::Limited(_, limitation)) => Some(limitation),
            _ => None,
        };
        let ending = self.read_ending(&container, &name, demand, known).await;
        self.destroy_until_gone(&name, supervisor).await;
        self.inner.table().remove(&container);
        debug!(container_id = %container, ?ending, "container ended");
        let input = Input::ContainerEnded { container, ending };
        self.inner.tell(input).await;
    }
}
