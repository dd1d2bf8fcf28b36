//! Watches a running container: for the end of its supervisor, and for a memory limit that it runs into.

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
use super::state::{Entry, LiveContainer};
use super::supervision::{self, AGAIN_MAX};
use super::{Containerizer, blocking, limitation_file};
use crate::checkpoint::Limitation;
use crate::core::Input;

/// How an event of the kernel's is answered.
#[derive(Clone, Copy, Debug)]
struct EventPace {
    /// How often its counters are read for one.
    looks: u32,
    between_looks: Duration,
    /// Until the next one is taken.
    pause: Duration,
}

/// Version 1 speaks when memory has run out, and counts once a process was killed for that.
const PACE_V1: EventPace = EventPace {
    looks: 20,
    between_looks: Duration::from_millis(25),
    pause: Duration::ZERO,
};

/// Version 2 speaks once it has counted; but also, up to a hundred times a second for ever, where files are read or written in
/// a container whose page cache has reached its limit, as any does in time.
const PACE_V2: EventPace = EventPace {
    looks: 1,
    between_looks: Duration::ZERO,
    pause: Duration::from_millis(250),
};

/// How often limits are looked at that nobody watches for want of descriptors.
const UNWATCHED_LIMIT_PAUSE: Duration = Duration::from_secs(5);

/// Looks whether a container ran into a limit until it has: at once, and at each event. Where there are no events, or none
/// any more, it looks again and again.
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
            warn!(%error, "cannot wait for what the kernel tells of a limit; looking every few seconds");
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
                    warn!(container_id = %container, %error, "cannot watch a container's limits");
                    return Vec::new();
                }
            }
        }
    }

    /// Ends a container that runs beyond a limit; the first limit is the one that is told, by a later life of
    /// the agent too.
    pub(crate) fn limit(&self, container: &ContainerId, limitation: Limitation) {
        let supervisor = if let Some(entry) = self.inner.table().get_mut(container)
            && let Entry::Running(live) = entry
        {
            let supervisor = live.supervisor.clone();
            *entry = Entry::Limited(live.clone(), limitation.clone());
            supervisor
        } else {
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
        self.forget_throttle(&container);
        debug!(container_id = %container, ?ending, "container ended");
        let input = Input::ContainerEnded { container, ending };
        self.inner.tell(input).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often it looks in so long where there is no limit, and the kernel speaks every ten milliseconds.
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
    async fn a_container_at_its_limit_costs_a_few_looks_a_second() {
        let second = Duration::from_secs(1);
        assert_eq!(looks_within(second, PACE_V2, true).await, 4);
        // The first, and those for two events.
        assert_eq!(looks_within(second, PACE_V1, true).await, 41);
        assert_eq!(looks_within(second, PACE_V2, false).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn limits_are_looked_at_when_events_cannot_be_waited_for_any_more() {
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
