//! Watches a running container: for the end of its supervisor, and for a reached memory limit.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use meseta_isolators::{
    ContainerName, Demand, ProcessIdentity, is_device_failure, is_shortage, note_repeated,
};
use meseta_resources::ContainerId;
use tracing::{debug, warn};

use super::exit_status::memory_limitation;
use super::readiness::{RegisteredEvent, any_event};
use super::state::LiveContainer;
use super::supervision::{self, AGAIN_MAX};
use super::{Containerizer, blocking, limitation_file};
use crate::checkpoint::Limitation;
use crate::core::Input;

/// The pace at which events of the kernel are handled.
#[derive(Clone, Copy, Debug)]
struct EventPace {
    /// The number of times that the counters are read for one event.
    looks: u32,
    between_looks: Duration,
    /// The pause before the next event is taken.
    pause: Duration,
}

/// Version 1 reports that memory has run out, and counts only after a process was killed.
const PACE_V1: EventPace = EventPace {
    looks: 20,
    between_looks: Duration::from_millis(25),
    pause: Duration::ZERO,
};

/// Version 2 reports after counting. It also reports up to a hundred times a second, without an end, while a container
/// at its limit of page cache reads or writes files, as most do in time.
const PACE_V2: EventPace = EventPace {
    looks: 1,
    between_looks: Duration::ZERO,
    pause: Duration::from_millis(250),
};

/// The polling interval for limits without a watch, for lack of descriptors.
const UNWATCHED_LIMIT_PAUSE: Duration = Duration::from_secs(5);

/// Checks the limitation at once and at each event, until the container reaches a limit. Without events, or after their
/// end, it polls.
async fn until_limit<L, E, Looking, Event>(
    pace: EventPace,
    mut look: L,
    mut next_event: Option<E>,
) -> meseta_isolators::Limitation
where
    L: FnMut() -> Looking,
    Looking: Future<Output = io::Result<Option<meseta_isolators::Limitation>>>,
    E: FnMut() -> Event,
    Event: Future<Output = io::Result<()>>,
{
    let mut looks = 1;
    loop {
        let mut is_known = true;
        for _ in 0..looks {
            match look().await {
                Ok(Some(limitation)) => return limitation,
                Ok(None) => is_known = true,
                Err(_) => {
                    note_repeated();
                    is_known = false;
                }
            }
            if looks > 1 {
                tokio::time::sleep(pace.between_looks).await;
            }
        }
        // The event may have been the only one.
        let Some(event) = next_event.as_mut().filter(|_| is_known) else {
            tokio::time::sleep(UNWATCHED_LIMIT_PAUSE).await;
            continue;
        };
        looks = pace.looks;
        tokio::time::sleep(pace.pause).await;
        if let Err(error) = event().await {
            warn!(%error, "failed to wait for the kernel's events of a limit; polling every few \
                seconds");
            next_event = None;
            looks = 1;
        }
    }
}

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
        // Runs separately, so that this future, which may wait for years, does not hold the memory that the end needs.
        let supervisor = Some(live.supervisor.clone());
        Box::pin(self.end(container, supervisor, live.demand)).await;
    }

    /// Completes when the container has reached a limit although its first process continues: for example, the kernel
    /// killed a child, now or while no agent was watching. Then the whole container must end.
    async fn over_a_limit(&self, live: &LiveContainer) -> Limitation {
        let container = &live.container;
        let name = ContainerName::new(container.as_str()).ok();
        let Some(name) = name else {
            return std::future::pending().await;
        };
        // A container that shares the limits of its parent is watched with the parent.
        if !self.has_own_memory_limit(&name).await {
            return std::future::pending().await;
        }
        let watch_permit = self.watch_permit();
        let events = match watch_permit {
            Some(_) => self.limit_events(container, &name).await,
            None => Vec::new(),
        };
        let pace = match self.inner.containers.counts_oom_kills_first(&name) {
            true => PACE_V2,
            false => PACE_V1,
        };
        let look = || {
            let (inner, name, demand) = (self.inner.clone(), name.clone(), live.demand);
            async move { blocking(move || inner.containers.limitation(&name, &demand)).await? }
        };
        let events = watch_permit.is_some().then_some(&*events);
        let limitation = until_limit(pace, look, events.map(|all| || any_event(all))).await;
        memory_limitation(limitation)
    }

    /// Whether a container has its own memory limit; waits until that can be read.
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

    /// The events of a reached limit; waits until there are descriptors for them.
    async fn limit_events(
        &self,
        container: &ContainerId,
        name: &ContainerName,
    ) -> Vec<RegisteredEvent> {
        loop {
            let (inner, watched) = (self.inner.clone(), name.clone());
            let watched = blocking(move || inner.containers.watch_limits(&watched)).await;
            let watched = match watched {
                Ok(watched) => {
                    watched.and_then(|all| all.into_iter().map(RegisteredEvent::new).collect())
                }
                Err(panic) => Err(std::io::Error::other(panic)),
            };
            match watched {
                Ok(events) => return events,
                Err(error) if is_shortage(&error) || is_device_failure(&error) => {
                    note_repeated();
                    tokio::time::sleep(AGAIN_MAX).await;
                }
                Err(error) => {
                    warn!(container_id = %container, %error, "failed to watch the limits of a \
                        container");
                    return Vec::new();
                }
            }
        }
    }

    /// Ends a container beyond a limit. The first limitation counts, also after a restart of the agent.
    pub(crate) fn limit(&self, container: &ContainerId, limitation: Limitation) {
        let Some(supervisor) = self.inner.table.limit(container, limitation.clone()) else {
            return;
        };
        let (this, container) = (self.clone(), container.clone());
        tokio::spawn(async move {
            let (inner, name) = (this.inner.clone(), ContainerName::new(container.as_str()));
            if let Ok(name) = name {
                let keep = move || limitation_file::keep(&inner.containers, &name, &limitation);
                let _ = blocking(keep).await;
            }
            this.end_limited(&container, &supervisor).await;
        });
    }

    /// Reads the ending of a container, destroys the rest and notifies the core.
    pub(super) async fn end(
        self,
        container: ContainerId,
        supervisor: Option<ProcessIdentity>,
        demand: Demand,
    ) {
        // A limitation read while the container lived is better than the rest of its group.
        let known = self.inner.table.begin_end(&container);
        let Ok(name) = ContainerName::new(container.as_str()) else {
            return;
        };
        let ending = self.read_ending(&container, &name, demand, known).await;
        self.destroy_until_gone(&name, supervisor).await;
        self.inner.table.remove(&container);
        self.forget_throttle(&container);
        debug!(container_id = %container, ?ending, "container ended");
        let input = Input::ContainerEnded { container, ending };
        self.inner.tell(input).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of looks within this time without a limit, while the kernel reports every ten milliseconds.
    async fn looks_within(within: Duration, pace: EventPace, is_watched: bool) -> u32 {
        let mut looks = 0;
        let look = || {
            looks += 1;
            std::future::ready(Ok(None))
        };
        let event = || async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Ok(())
        };
        let watching = until_limit(pace, look, is_watched.then_some(event));
        let found = tokio::time::timeout(within, watching).await;
        found.expect_err("there is none");
        looks
    }

    #[tokio::test(start_paused = true)]
    async fn looks_at_a_limit_are_paced() {
        let second = Duration::from_secs(1);
        assert_eq!(looks_within(second, PACE_V2, true).await, 4);
        // The first look, and the looks for two events.
        assert_eq!(looks_within(second, PACE_V1, true).await, 41);
        assert_eq!(looks_within(second, PACE_V2, false).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn failed_event_watch_becomes_polling() {
        let mut looks = 0;
        let look = || {
            looks += 1;
            let limitation = meseta_isolators::Limitation::Memory {
                oom_kills: 1,
                limit_bytes: None,
                max_usage_bytes: None,
                message: String::new(),
            };
            let is_met = looks == 3;
            async move {
                match looks {
                    1 => Err(io::ErrorKind::OutOfMemory.into()),
                    _ => Ok(is_met.then_some(limitation)),
                }
            }
        };
        let failing = || std::future::ready(Err(io::ErrorKind::Other.into()));
        let began = tokio::time::Instant::now();
        until_limit(PACE_V1, look, Some(failing)).await;
        assert_eq!(began.elapsed(), UNWATCHED_LIMIT_PAUSE);
        assert_eq!(looks, 3);
    }
}
