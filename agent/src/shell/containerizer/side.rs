//! What is done for containers beside their launch and their end: fetching, resizing, looking at tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use meseta_isolators::{ContainerName, Demand, ProcessIdentity, Shrink};
use meseta_proto::mesos::v1 as pb;
use meseta_resources::{ContainerId, Resources};
use tracing::info;

use super::super::inspection::Claims;
use super::super::spec::{Prepared, container_spec};
use super::super::volumes;
use super::super::writer::chain;
use super::{Containerizer, Entry, Options, blocking};
use crate::core::{Input, LaunchPlan, Probe, Sight};
use crate::fetch;

/// How often a hard memory limit is tried again below which what runs does not fit.
const SHRINK_AGAIN: Duration = Duration::from_secs(5);

/// What a container is to have from now on.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) demand: Demand,
    pub(super) resources: Resources,
    pub(super) volumes: Vec<pb::Resource>,
}

impl Containerizer {
    /// Makes the sandbox and fetches into it what the command names.
    pub(super) async fn fetch(
        &self,
        plan: LaunchPlan,
        cancelled: Arc<AtomicBool>,
    ) -> Result<Prepared, String> {
        let inner = self.inner.clone();
        let fetched = blocking(move || {
            let prepared = container_spec(&inner.options, &plan)?;
            let uris = plan.command().map(|command| command.uris.as_slice());
            fetch::fetch(
                uris.unwrap_or_default(),
                &prepared.spec.working_dir,
                prepared.spec.credentials.as_ref(),
                fetch::Limits::default(),
                &cancelled,
            )
            .map_err(|error| error.to_string())?;
            Ok(prepared)
        });
        let fetched = fetched.await.unwrap_or_else(|panic| Err(panic.to_string()));
        let counter = match &fetched {
            Ok(_) => &self.inner.fetches_succeeded,
            Err(_) => &self.inner.fetches_failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        fetched
    }

    /// How containers are run here.
    pub(crate) fn options(&self) -> &Options {
        &self.inner.options
    }

    /// Who keeps a container that runs.
    pub(crate) fn supervisor_of(&self, container: &ContainerId) -> Option<ProcessIdentity> {
        match self.inner.table().get(container) {
            Some(Entry::Running(live)) => Some(live.supervisor.clone()),
            _ => None,
        }
    }

    /// Containers whose fetches succeeded, and failed.
    pub(crate) fn fetches(&self) -> (u64, u64) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (
            read(&self.inner.fetches_succeeded),
            read(&self.inner.fetches_failed),
        )
    }

    pub(super) fn resize(&self, container: ContainerId, wanted: Wanted) {
        if let Some(Entry::Running(live)) = self.inner.table().get_mut(&container) {
            live.demand = wanted.demand;
            live.claims = Claims::of(&wanted.resources, &self.inner.options.layout);
            live.volumes = Some(wanted.volumes);
        }
        let this = self.clone();
        tokio::spawn(async move {
            let failed = this.resize_now(&container).await.err();
            let resized = Input::Resized { container, failed };
            this.inner.tell(resized).await;
        });
    }

    /// Brings a container to what it is to have by now: of several resizes at once each finds what the
    /// last one wants.
    async fn resize_now(&self, container: &ContainerId) -> Result<(), String> {
        let turn = match self.inner.table().get(container) {
            Some(Entry::Running(live)) => live.turn.clone(),
            // What ends has no use for limits.
            _ => return Ok(()),
        };
        let mut may_have_volumes = turn.lock().await;
        let live = match self.inner.table().get(container) {
            Some(Entry::Running(live)) => live.clone(),
            _ => return Ok(()),
        };
        let name = ContainerName::new(container.as_str()).map_err(|error| chain(&error))?;
        let inner = self.inner.clone();
        let wanted = live.volumes.clone().unwrap_or_default();
        let with_volumes = *may_have_volumes || !wanted.is_empty();
        let has_some = !wanted.is_empty();
        let demand = live.demand;
        let asked = name.clone();
        let updated = blocking(move || {
            let (name, containers) = (asked, &inner.containers);
            let shrunk = containers
                .update(&name, &demand)
                .and_then(|()| containers.shrink_memory(&name, &demand));
            let shrunk = shrunk.map_err(|error| chain(&error))?;
            if !with_volumes {
                return Ok(shrunk);
            }
            let options = &inner.options;
            let layout = &options.layout;
            let site =
                volumes::Site::new(layout, &live.run, &live.container, options.rights.mounts);
            let wanted = volumes::of_resources(layout, &wanted).map_err(|error| chain(&error))?;
            let owner = volumes::owner(&site, options.switch_user)?;
            let (supervisor, owner) = (&live.supervisor, owner.as_ref());
            volumes::change(containers, &name, supervisor, &site, &wanted, owner)?;
            Ok(shrunk)
        });
        let shrunk = updated.await;
        let shrunk = shrunk.unwrap_or_else(|panic| Err(panic.to_string()))?;
        *may_have_volumes = has_some;
        if let Shrink::InUse { usage_bytes } = shrunk {
            info!(
                container_id = %container, usage_bytes, wanted_bytes = demand.mem_bytes,
                "more memory is in use than a container is to have; its limit is lowered when less is"
            );
            let this = self.clone();
            let container = container.clone();
            tokio::spawn(async move { this.shrink_later(container, name, demand).await });
        }
        Ok(())
    }

    pub(super) fn probe(&self, probe: Probe) {
        let supervisor = match self.inner.table().get(&probe.container) {
            Some(Entry::Running(live)) => Some(live.supervisor.clone()),
            _ => None,
        };
        let this = self.clone();
        tokio::spawn(async move {
            let (id, container) = (probe.id, probe.container.clone());
            let sight = match supervisor {
                Some(supervisor) => {
                    let place = this.inner.probe_places.acquire().await;
                    let inner = this.inner.clone();
                    let looked = blocking(move || {
                        super::super::probe::look(
                            &inner.containers,
                            &inner.options,
                            &probe,
                            &supervisor,
                        )
                    });
                    let looked = looked.await;
                    drop(place);
                    looked.unwrap_or_else(|panic| Sight::Nothing(panic.to_string()))
                }
                None => Sight::Nothing("its container does not run".to_owned()),
            };
            let probed = Input::Probed {
                container,
                id,
                sight,
            };
            this.inner.tell(probed).await;
        });
    }

    /// Lowers a hard memory limit once what runs fits below it; gives up when the container ends or is
    /// to have other limits.
    async fn shrink_later(self, container: ContainerId, name: ContainerName, demand: Demand) {
        loop {
            tokio::time::sleep(SHRINK_AGAIN).await;
            match self.inner.table().get(&container) {
                Some(Entry::Running(live)) if live.demand == demand => {}
                _ => return,
            }
            let (inner, asked) = (self.inner.clone(), name.clone());
            let shrunk = blocking(move || inner.containers.shrink_memory(&asked, &demand)).await;
            if !matches!(shrunk, Ok(Ok(Shrink::InUse { .. }))) {
                return;
            }
        }
    }
}
