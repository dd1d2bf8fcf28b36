//! What the kernel does not count for us: how much folders hold, and who listens on which port.
//!
//! Looks at every container in turn, on the periods of the flags; what was found is kept for whoever
//! asks for statistics, and what breaks a limit ends its container where that is enforced. Slow work,
//! on a blocking thread, one container after the other.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use meseta_isolators::{Breach, ContainerName, DiskArea, DiskUsage, PortRange};
use meseta_proto::convert;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_resources::{ContainerId, DiskSourceKind, Resources};
use tracing::{debug, info};

use super::{Containerizer, LiveContainer};
use crate::checkpoint::{Layout, Limitation};
use crate::configuration::isolation::{InspectionSettings, port_ranges};
use crate::core::{LaunchPlan, Subject};

const BYTES_PER_MEGABYTE: u64 = 1 << 20;

/// What a container's resources let it hold and listen on.
#[derive(Clone, Debug, Default)]
pub(crate) struct InspectionLimits {
    /// What its sandbox may hold, in bytes; nothing was said if absent.
    pub(crate) sandbox_bytes: Option<u64>,
    /// Persistent volumes, each with what it may hold.
    pub(crate) volumes: Vec<(PathBuf, u64)>,
    pub(crate) ports: Vec<PortRange>,
}

impl InspectionLimits {
    pub(crate) fn of(resources: &Resources, layout: &Layout) -> Self {
        let mut inspection_limits = Self {
            ports: port_ranges(resources),
            ..Self::default()
        };
        for resource in resources.iter() {
            if resource.name().as_str() != "disk" {
                continue;
            }
            let Some(amount) = resource.scalar() else {
                continue;
            };
            let bytes = u64::try_from(amount.millis()).unwrap_or(0) / 1000 * BYTES_PER_MEGABYTE;
            let disk = resource.disk();
            let persistence = disk.and_then(|disk| disk.persistence.as_ref());
            match (persistence, resource.reservation_role()) {
                (Some(persistence), Some(role)) => {
                    // A disk of its own has its own end.
                    if !resource.is_disk_of(DiskSourceKind::Mount) {
                        let path = layout.volume(role, &persistence.id);
                        inspection_limits.volumes.push((path, bytes));
                    }
                }
                (Some(_), None) => {}
                (None, _) => {
                    let sum = inspection_limits
                        .sandbox_bytes
                        .unwrap_or(0)
                        .saturating_add(bytes);
                    inspection_limits.sandbox_bytes = Some(sum);
                }
            }
        }
        inspection_limits
    }

    /// Of what is launched. What is nested has no claim but to what is around it.
    pub(crate) fn of_plan(plan: &LaunchPlan, layout: &Layout) -> Self {
        match plan.subject {
            Subject::Nested(_) => Self::default(),
            _ => Self::of(&plan.resources, layout),
        }
    }

    /// Of resources that were checked when they were taken.
    pub(crate) fn of_messages(messages: &[pb::Resource], layout: &Layout) -> Self {
        let resources = convert::resources(messages).unwrap_or_default();
        Self::of(&resources, layout)
    }
}

/// What was last measured of each container's folders; the sandbox comes first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    disks: Arc<RwLock<BTreeMap<ContainerId, Arc<[DiskUsage]>>>>,
}

impl Measured {
    /// The folders of one container; nothing before the first look.
    pub(crate) fn of(&self, container: &ContainerId) -> Option<Arc<[DiskUsage]>> {
        let disks = self.disks.read().unwrap_or_else(PoisonError::into_inner);
        disks.get(container).cloned()
    }

    fn replace(&self, found: BTreeMap<ContainerId, Arc<[DiskUsage]>>) {
        *self.disks.write().unwrap_or_else(PoisonError::into_inner) = found;
    }
}

/// Looks for ever; returns at once where nothing is to be looked at.
pub(crate) async fn run(containerizer: Containerizer, watch: InspectionSettings) {
    let disks = every(watch.disk, || {
        let containerizer = containerizer.clone();
        move || measure(&containerizer, watch.enforce_disk)
    });
    let ports = every(watch.ports, || {
        let containerizer = containerizer.clone();
        move || inspect_ports(&containerizer, watch.enforce_ports)
    });
    tokio::join!(disks, ports);
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

fn measure(containerizer: &Containerizer, enforce: bool) {
    let mut disks = BTreeMap::new();
    for live in outer(containerizer) {
        let areas = areas(&live, containerizer.layout());
        let Some(found) = inspect(containerizer, &live, &areas, None) else {
            continue;
        };
        disks.insert(live.container.clone(), found.disk.into());
        if enforce {
            end_over_limit(containerizer, &live, found.breaches);
        }
    }
    containerizer.measured().replace(disks);
}

/// Those that are in no other; what is nested is looked at with what is around it.
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
    // What is nested may listen on what was given to all that share the outer container.
    let outer: BTreeMap<_, _> = outer(containerizer)
        .map(|live| (live.container.clone(), live.inspection_limits.ports.clone()))
        .collect();
    for live in containerizer.live() {
        let Some(ports) = outer.get(&live.run.container) else {
            continue;
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
    ports: Option<&[PortRange]>,
) -> Option<meseta_isolators::Inspected> {
    let name = ContainerName::new(live.container.as_str()).ok()?;
    let containers = containerizer.containers();
    match containers.inspect(&name, Some(&live.supervisor), disk, ports) {
        Ok(found) => Some(found),
        // It ended under our hands, most likely; the next look knows.
        Err(error) => {
            debug!(container_id = %live.container, %error, "could not inspect a container");
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

/// What is told of a broken limit.
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

/// An amount of memory or disk, as resources are written.
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
    use std::path::Path;

    use super::*;

    #[test]
    fn claims_are_read_from_resources() {
        let role = meseta_resources::Role::default();
        let text = "cpus:1;disk:100;ports:[31000-31001,31005-31005]";
        let resources = Resources::parse(text, &role).expect("sound");
        let inspection_limits = InspectionLimits::of(&resources, &Layout::new(Path::new("/w")));
        assert_eq!(inspection_limits.sandbox_bytes, Some(100 << 20));
        let ports: Vec<_> = inspection_limits
            .ports
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(ports, ["31000-31001", "31005-31005"]);
        let nothing = InspectionLimits::of(&Resources::default(), &Layout::new(Path::new("/w")));
        assert!(nothing.sandbox_bytes.is_none() && nothing.ports.is_empty());
    }

    #[test]
    fn a_volume_has_a_quota_of_its_own() {
        let volume = |source: Option<pb::resource::disk_info::Source>| pb::Resource {
            name: "disk".to_owned(),
            r#type: pb::value::Type::Scalar.into(),
            scalar: Some(pb::value::Scalar { value: 10.0 }),
            reservations: vec![pb::resource::ReservationInfo {
                r#type: Some(pb::resource::reservation_info::Type::Static.into()),
                role: Some("eng/db".to_owned()),
                ..pb::resource::ReservationInfo::default()
            }],
            disk: Some(Box::new(pb::resource::DiskInfo {
                persistence: Some(pb::resource::disk_info::Persistence {
                    id: "data".to_owned(),
                    principal: None,
                }),
                volume: Some(pb::Volume {
                    container_path: "data".to_owned(),
                    mode: pb::volume::Mode::Rw.into(),
                    ..pb::Volume::default()
                }),
                source,
            })),
            ..pb::Resource::default()
        };
        let inspection_limits = |source| {
            let resources = meseta_proto::convert::resources(&[volume(source)]).expect("sound");
            InspectionLimits::of(&resources, &Layout::new(Path::new("/w")))
        };
        let own = inspection_limits(None);
        assert_eq!(own.sandbox_bytes, None);
        let path = PathBuf::from("/w/volumes/roles/eng db/data");
        assert_eq!(own.volumes, [(path, 10 << 20)]);
        let mount = pb::resource::disk_info::Source {
            r#type: pb::resource::disk_info::source::Type::Mount.into(),
            mount: Some(pb::resource::disk_info::source::Mount {
                root: Some("/mnt".to_owned()),
            }),
            ..pb::resource::disk_info::Source::default()
        };
        assert!(
            inspection_limits(Some(mount)).volumes.is_empty(),
            "a disk of its own has its own end"
        );
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
