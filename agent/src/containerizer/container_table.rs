//! The phase of each container, from its queue to its end.
//!
//! ```text
//! queued → launching → running → (limited) → ending → absent
//!      ↘ absent   ↘ absent
//! ```
//! Invariant: only the methods of [`ContainerTable`] change a phase. The table is consistent between any two calls.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meseta_daemon::server::CancellationToken;
use meseta_isolators::{Demand, ProcessIdentity};
use meseta_proto::mesos::v1 as pb;
use meseta_resources::ContainerId;

use super::inspection_limits::InspectionLimits;
use super::state::LiveContainer;
use crate::checkpoint::Limitation;
use crate::fetch::Cancel;

/// The phase of a container.
#[derive(Debug)]
enum Phase {
    /// The container waits for a launch permit, until it is cancelled.
    Queued {
        cancelled: CancellationToken,
    },
    /// The fetch or launch is in progress; the fetch can be cancelled.
    Launching {
        fetch: Arc<Cancel>,
    },
    Running(Arc<LiveContainer>),
    /// The container is being ended because of this limitation.
    Limited(Arc<LiveContainer>, Limitation),
    Ending,
}

impl Phase {
    /// The container, while its supervisor lives.
    fn alive(&self) -> Option<&Arc<LiveContainer>> {
        match self {
            Self::Running(live) | Self::Limited(live, _) => Some(live),
            Self::Queued { .. } | Self::Launching { .. } | Self::Ending => None,
        }
    }
}

/// A container that is to be destroyed.
#[derive(Debug)]
pub(super) enum Destroyable {
    Alive(ProcessIdentity),
    /// The container is not in the table; its rest may be on the machine.
    Absent,
    /// The container is queued, being launched or ending already.
    Changing,
}

/// The phases of all containers.
#[derive(Debug, Default)]
pub(super) struct ContainerTable {
    phases: Mutex<BTreeMap<ContainerId, Phase>>,
}

impl ContainerTable {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ContainerId, Phase>> {
        // The table is consistent between any two statements, so a panic elsewhere does no harm.
        self.phases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a container that waits for its launch. Returns the token that its kill cancels.
    pub(super) fn queue(&self, container: ContainerId) -> CancellationToken {
        let cancelled = CancellationToken::new();
        let queued = Phase::Queued {
            cancelled: cancelled.clone(),
        };
        self.lock().insert(container, queued);
        cancelled
    }

    /// Marks a queued container as launching and returns the handle that cancels its fetch; `None` if the container was
    /// killed.
    pub(super) fn begin_launch(&self, container: &ContainerId) -> Option<Arc<Cancel>> {
        match self.lock().get_mut(container) {
            Some(Phase::Queued { cancelled }) if cancelled.is_cancelled() => None,
            Some(phase @ Phase::Queued { .. }) => {
                let fetch = Arc::new(Cancel::default());
                *phase = Phase::Launching {
                    fetch: fetch.clone(),
                };
                Some(fetch)
            }
            _ => None,
        }
    }

    /// Marks a container as running.
    pub(super) fn start(&self, live: Arc<LiveContainer>) {
        let container = live.container.clone();
        self.lock().insert(container, Phase::Running(live));
    }

    /// Marks a running container as ended by a limitation. Returns its supervisor.
    pub(super) fn limit(
        &self,
        container: &ContainerId,
        limitation: Limitation,
    ) -> Option<ProcessIdentity> {
        let mut phases = self.lock();
        let phase = phases.get_mut(container)?;
        let Phase::Running(live) = phase else {
            return None;
        };
        let live = live.clone();
        let supervisor = live.supervisor.clone();
        *phase = Phase::Limited(live, limitation);
        Some(supervisor)
    }

    /// Marks a container as ending. Returns the limitation that ends it.
    pub(super) fn begin_end(&self, container: &ContainerId) -> Option<Limitation> {
        match self.lock().insert(container.clone(), Phase::Ending) {
            Some(Phase::Limited(_, limitation)) => Some(limitation),
            _ => None,
        }
    }

    /// Removes a container that has ended, or was not launched.
    pub(super) fn remove(&self, container: &ContainerId) {
        self.lock().remove(container);
    }

    /// Cancels the launch of a container, or returns the supervisor of a live one. The core repeats the kill of a
    /// launching container after it learns of the start; an ending container needs no kill.
    pub(super) fn kill(&self, container: &ContainerId) -> Option<ProcessIdentity> {
        match self.lock().get(container)? {
            Phase::Queued { cancelled } => {
                cancelled.cancel();
                None
            }
            Phase::Launching { fetch } => {
                fetch.cancel();
                None
            }
            phase => Some(phase.alive()?.supervisor.clone()),
        }
    }

    /// Notes the newest request for a running container.
    pub(super) fn request(
        &self,
        container: &ContainerId,
        demand: Demand,
        inspection_limits: InspectionLimits,
        volumes: Vec<pb::Resource>,
    ) {
        if let Some(Phase::Running(live)) = self.lock().get_mut(container) {
            let live = Arc::make_mut(live);
            live.demand = demand;
            live.inspection_limits = inspection_limits;
            live.volumes = Some(volumes);
        }
    }

    /// A running container that no limitation ends.
    pub(super) fn running(&self, container: &ContainerId) -> Option<Arc<LiveContainer>> {
        match self.lock().get(container) {
            Some(Phase::Running(live)) => Some(live.clone()),
            _ => None,
        }
    }

    /// Whether the container is alive with this supervisor.
    pub(super) fn is_alive(&self, container: &ContainerId, supervisor: &ProcessIdentity) -> bool {
        let phases = self.lock();
        let live = phases.get(container).and_then(Phase::alive);
        live.is_some_and(|live| live.supervisor == *supervisor)
    }

    /// Whether the container can be destroyed now.
    pub(super) fn destroyable(&self, container: &ContainerId) -> Destroyable {
        match self.lock().get(container) {
            None => Destroyable::Absent,
            Some(phase) => match phase.alive() {
                Some(live) => Destroyable::Alive(live.supervisor.clone()),
                None => Destroyable::Changing,
            },
        }
    }

    /// The live containers.
    pub(super) fn live(&self) -> Vec<Arc<LiveContainer>> {
        let phases = self.lock();
        phases.values().filter_map(Phase::alive).cloned().collect()
    }

    /// Whether a container exists in any phase.
    pub(super) fn contains(&self, container: &ContainerId) -> bool {
        self.lock().contains_key(container)
    }

    /// Whether no container exists.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}
