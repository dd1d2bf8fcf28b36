//! Inspects values that the kernel does not count: sizes of folders, listening ports, changed limits, and processes
//! moved out of their groups.
//!
//! Inspects each container in turn; the flags set the intervals of the first two. The results serve the statistics, and
//! an exceeded limit ends its container if that is enforced. The work is slow and runs on a blocking thread, one
//! container after the other. The walk through folders runs on a thread for each container, so that a silent file
//! system delays only its own users.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use meseta_isolators::{Breach, ContainerName, DiskArea, Inspected, Listeners, PortInspection};
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_resources::ContainerId;
use tracing::{debug, info, warn};

use super::inspection_limits::BYTES_PER_MEGABYTE;
use super::{Containerizer, LiveContainer, interference, limit_drift};
use crate::checkpoint::{Layout, Limitation};
use crate::configuration::isolation::InspectionSettings;

/// Repeats the inspections for as long as the agent runs.
pub(crate) async fn run(containerizer: Containerizer, watch: InspectionSettings) {
    let walks = Arc::new(Walks::default());
    let disks = every(watch.disk, || {
        let (containerizer, walks) = (containerizer.clone(), walks.clone());
        move || measure(&containerizer, &walks, watch.enforce_disk)
    });
    let ports = every(watch.ports, || {
        let containerizer = containerizer.clone();
        move || inspect_ports(&containerizer, watch.enforce_ports)
    });
    let limits = every(Some(limit_drift::PERIOD), || {
        let containerizer = containerizer.clone();
        move || {
            for live in containerizer.live() {
                interference::look(&containerizer, &live);
                if live.own_limits {
                    limit_drift::compare(&containerizer, &live);
                }
            }
        }
    });
    tokio::join!(disks, ports, limits);
}

async fn every<W, F>(pause: Option<std::time::Duration>, work: W)
where
    W: Fn() -> F,
    F: FnOnce() + Send + 'static,
{
    let Some(pause) = pause else {
        return;
    };
    let mut ticks = tokio::time::interval(pause);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let _ = tokio::task::spawn_blocking(work()).await;
    }
}

/// The longest time that the walk through the folders of one container may delay those of others.
const WALK_WAIT: Duration = Duration::from_secs(5);

/// Containers with a walk through their folders in progress, and the results of late walks. A silent file system never
/// ends a walk: meanwhile its container is not measured, and no second thread enters it.
#[derive(Debug)]
struct Walks<T> {
    /// The results; `None` while the walk is in progress.
    found: Mutex<BTreeMap<ContainerId, Option<T>>>,
}

impl<T> Default for Walks<T> {
    fn default() -> Self {
        Self {
            found: Mutex::default(),
        }
    }
}

impl<T: Send + 'static> Walks<T> {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ContainerId, Option<T>>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a walk on its own thread and returns its result. `None` if the walk takes too long: a later call returns
    /// its result.
    fn walk(
        self: &Arc<Self>,
        container: &ContainerId,
        wait: Duration,
        walk: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        match self.lock().entry(container.clone()) {
            Entry::Occupied(entry) if entry.get().is_none() => return None,
            Entry::Occupied(entry) => return entry.remove(),
            Entry::Vacant(entry) => drop(entry.insert(None)),
        }
        let (tell, told) = mpsc::sync_channel(0);
        let (walks, walked) = (self.clone(), container.clone());
        let walking = std::thread::Builder::new()
            .name("disk-usage".to_owned())
            .spawn(move || {
                let found = walk();
                match tell.send(found) {
                    Ok(()) => drop(walks.lock().remove(&walked)),
                    Err(mpsc::SendError(late)) => {
                        walks.lock().insert(walked, Some(late));
                    }
                }
            });
        if walking.is_err() {
            self.lock().remove(container);
            return None;
        }
        let found = told.recv_timeout(wait).ok();
        if found.is_none() {
            warn!(
                container_id = %container,
                "measuring the disk usage of a container is late: its folders are large, or \
                 their file system does not answer"
            );
        }
        found
    }

    /// Forgets the results of late walks for containers that are gone.
    fn keep(&self, is_here: impl Fn(&ContainerId) -> bool) {
        self.lock()
            .retain(|container, found| found.is_none() || is_here(container));
    }
}

fn measure(containerizer: &Containerizer, walks: &Arc<Walks<Option<Inspected>>>, enforce: bool) {
    let mut disks = BTreeMap::new();
    for live in outer(containerizer) {
        let areas = areas(&live, containerizer.layout());
        let (this, walked) = (containerizer.clone(), live.clone());
        let walk = move || inspect(&this, &walked, &areas, None);
        let Some(found) = walks.walk(&live.container, WALK_WAIT, walk).flatten() else {
            continue;
        };
        disks.insert(live.container.clone(), found.disk.into());
        if enforce {
            end_over_limit(containerizer, &live, found.breaches);
        }
    }
    walks.keep(|container| containerizer.has(container));
    containerizer.measured().replace(disks);
}

/// The outermost containers; nested ones are inspected with their parents.
fn outer(containerizer: &Containerizer) -> impl Iterator<Item = Arc<LiveContainer>> {
    let live = containerizer.live().into_iter();
    live.filter(|live| live.container == live.run.container)
}

fn areas(live: &LiveContainer, layout: &Layout) -> Vec<DiskArea> {
    let inspection_limits = &live.inspection_limits;
    let sandbox = DiskArea {
        path: layout.sandbox(&live.run),
        quota_bytes: inspection_limits.sandbox_bytes,
        excluded: inspection_limits
            .volumes
            .iter()
            .map(|(path, _)| path.clone())
            .collect(),
    };
    let volumes = inspection_limits
        .volumes
        .iter()
        .map(|(path, bytes)| DiskArea {
            path: path.clone(),
            quota_bytes: Some(*bytes),
            excluded: Vec::new(),
        });
    std::iter::once(sandbox).chain(volumes).collect()
}

fn inspect_ports(containerizer: &Containerizer, enforce: bool) {
    let listeners = Listeners::default();
    // A nested container may listen on any port of its outermost container.
    let outer: BTreeMap<_, _> = outer(containerizer)
        .map(|live| (live.container.clone(), live.inspection_limits.ports.clone()))
        .collect();
    for live in containerizer.live() {
        let Some(ports) = outer.get(&live.run.container) else {
            continue;
        };
        let ports = PortInspection {
            allocated: ports,
            listeners: &listeners,
        };
        let found = inspect(containerizer, &live, &[], Some(ports));
        let breaches = found.map(|found| found.breaches).unwrap_or_default();
        if enforce {
            end_over_limit(containerizer, &live, breaches);
        } else if let Some(Breach::Ports { message, .. }) = breaches.first() {
            debug!(container_id = %live.container, message, "not enforced");
        }
    }
}

fn inspect(
    containerizer: &Containerizer,
    live: &LiveContainer,
    disk: &[DiskArea],
    ports: Option<PortInspection<'_>>,
) -> Option<Inspected> {
    let name = ContainerName::new(live.container.as_str()).ok()?;
    let containers = containerizer.containers();
    match containers.inspect(&name, Some(&live.supervisor), disk, ports) {
        Ok(found) => Some(found),
        // The container has probably just ended; the next inspection will show that.
        Err(error) => {
            debug!(container_id = %live.container, %error, "failed to inspect a container");
            None
        }
    }
}

fn end_over_limit(containerizer: &Containerizer, live: &LiveContainer, breaches: Vec<Breach>) {
    let Some(limitation) = breaches.into_iter().find_map(limitation) else {
        return;
    };
    info!(
        container_id = %live.container, message = limitation.message,
        "ending a container that is beyond its limits"
    );
    containerizer.limit(&live.container, limitation);
}

/// The limitation that reports an exceeded limit.
fn limitation(breach: Breach) -> Option<Limitation> {
    match breach {
        Breach::Disk { usage, message } => Some(Limitation {
            reason: Reason::ContainerLimitationDisk,
            resources: vec![megabytes("disk", usage.used_bytes)],
            message,
        }),
        Breach::Ports { ports, message } => Some(Limitation {
            reason: Reason::ContainerLimitation,
            resources: vec![pb::Resource {
                name: "ports".to_owned(),
                r#type: pb::value::Type::Ranges.into(),
                ranges: Some(pb::value::Ranges {
                    range: ports
                        .iter()
                        .map(|range| pb::value::Range {
                            begin: range.first.into(),
                            end: range.last.into(),
                        })
                        .collect(),
                }),
                ..pb::Resource::default()
            }],
            message,
        }),
        _ => None,
    }
}

/// An amount of memory or disk as a resource.
pub(super) fn megabytes(name: &str, bytes: u64) -> pb::Resource {
    #[expect(
        clippy::cast_precision_loss,
        reason = "megabytes for people, from a byte count"
    )]
    let value = bytes as f64 / BYTES_PER_MEGABYTE as f64;
    pb::Resource {
        name: name.to_owned(),
        r#type: pb::value::Type::Scalar.into(),
        scalar: Some(pb::value::Scalar { value }),
        ..pb::Resource::default()
    }
}

#[cfg(test)]
mod tests {
    use meseta_isolators::{DiskUsage, PortRange};

    use super::*;

    #[test]
    fn stuck_walk_blocks_no_other_walk() {
        let walks = Arc::new(Walks::default());
        let id = |name: &str| ContainerId::new(name).expect("an id");
        let (answer, wait) = mpsc::channel::<()>();
        let stuck = move || {
            let _ = wait.recv();
            1
        };
        assert_eq!(walks.walk(&id("stuck"), Duration::ZERO, stuck), None);
        assert_eq!(walks.walk(&id("other"), Duration::MAX, || 2), Some(2));
        let again = || panic!("a second thread would be left behind");
        assert_eq!(walks.walk(&id("stuck"), Duration::ZERO, again), None);
        drop(answer);
        let late = std::iter::repeat_with(|| {
            std::thread::yield_now();
            walks.lock().get(&id("stuck")).copied().flatten()
        });
        assert_eq!(late.flatten().next(), Some(1));
        assert_eq!(walks.walk(&id("stuck"), Duration::ZERO, again), Some(1));
        assert!(walks.lock().is_empty());
    }

    #[test]
    fn broken_limits_have_mesoss_reasons() {
        let disk = limitation(Breach::Disk {
            usage: DiskUsage {
                path: "/w".into(),
                used_bytes: 3 << 20,
                entries: 1,
                truncated: false,
                quota_bytes: Some(1 << 20),
            },
            message: "Disk usage (3145728B) exceeds quota (1048576B)".to_owned(),
        });
        let disk = disk.expect("a limitation");
        assert_eq!(disk.reason, Reason::ContainerLimitationDisk);
        assert_eq!(
            disk.resources[0].scalar.map(|scalar| scalar.value),
            Some(3.0)
        );
        let ports = limitation(Breach::Ports {
            ports: vec![PortRange {
                first: 80,
                last: 81,
            }],
            message: String::new(),
        });
        let ports = ports.expect("a limitation");
        assert_eq!(ports.reason, Reason::ContainerLimitation);
        let ranges = ports.resources[0].ranges.clone().expect("ranges").range;
        assert_eq!((ranges[0].begin, ranges[0].end), (80, 81));
    }
}
