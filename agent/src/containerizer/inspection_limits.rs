//! The limits of a container for disk usage and ports, from its resources.

use std::path::PathBuf;

use meseta_isolators::PortRange;
use meseta_proto::convert;
use meseta_proto::mesos::v1 as pb;
use meseta_resources::{DiskSourceKind, Resources};

use crate::checkpoint::{Layout, volume_path};
use crate::configuration::isolation::port_ranges;
use crate::core::{LaunchPlan, Subject, megabytes_to_bytes};

pub(super) const BYTES_PER_MEGABYTE: u64 = 1 << 20;

/// The limits that a container's resources set for disk usage and ports.
#[derive(Clone, Debug, Default)]
pub(crate) struct InspectionLimits {
    /// The bytes that the sandbox may hold; `None` without a disk resource.
    pub(crate) sandbox_bytes: Option<u64>,
    /// Persistent volumes, each with its limit in bytes.
    pub(crate) volumes: Vec<(PathBuf, u64)>,
    pub(crate) ports: Vec<PortRange>,
}

impl InspectionLimits {
    pub(crate) fn from_resources(resources: &Resources, layout: &Layout) -> Self {
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
            let bytes = megabytes_to_bytes(u64::try_from(amount.millis()).unwrap_or(0));
            let disk = resource.disk();
            let persistence = disk.and_then(|disk| disk.persistence.as_ref());
            match persistence {
                Some(_) => {
                    // A disk of its own has its own size.
                    let path = volume_path(layout, resource);
                    let path = path.filter(|_| !resource.is_disk_of(DiskSourceKind::Mount));
                    let limited = path.map(|path| (path, bytes));
                    inspection_limits.volumes.extend(limited);
                }
                None => {
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

    /// The limits of a launch. A nested container only has the resources of its parent.
    pub(crate) fn of_plan(plan: &LaunchPlan, layout: &Layout) -> Self {
        match plan.subject {
            Subject::Nested(_) => Self::default(),
            _ => Self::from_resources(&plan.resources, layout),
        }
    }

    /// The limits of resources that were validated when the agent accepted them.
    pub(crate) fn of_messages(messages: &[pb::Resource], layout: &Layout) -> Self {
        let resources = convert::resources(messages).unwrap_or_default();
        Self::from_resources(&resources, layout)
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
        let inspection_limits =
            InspectionLimits::from_resources(&resources, &Layout::new(Path::new("/w")));
        assert_eq!(inspection_limits.sandbox_bytes, Some(100 << 20));
        let ports: Vec<_> = inspection_limits
            .ports
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(ports, ["31000-31001", "31005-31005"]);
        let nothing =
            InspectionLimits::from_resources(&Resources::default(), &Layout::new(Path::new("/w")));
        assert!(nothing.sandbox_bytes.is_none() && nothing.ports.is_empty());
    }

    #[test]
    fn volume_has_its_own_quota() {
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
            InspectionLimits::from_resources(&resources, &Layout::new(Path::new("/w")))
        };
        let own = inspection_limits(None);
        assert_eq!(own.sandbox_bytes, None);
        let path = PathBuf::from("/w/volumes/roles/eng db/data");
        assert_eq!(own.volumes, [(path, 10 << 20)]);
        let path = |root: &str| pb::resource::disk_info::Source {
            r#type: pb::resource::disk_info::source::Type::Path.into(),
            path: Some(pb::resource::disk_info::source::Path {
                root: Some(root.to_owned()),
            }),
            ..pb::resource::disk_info::Source::default()
        };
        // The location of the data, which is not below the work directory.
        for (root, volume) in [("/mnt", "/mnt"), ("disk", "/w/disk")] {
            let volume = Path::new(volume).join("volumes/roles/eng db/data");
            let on_disk = inspection_limits(Some(path(root))).volumes;
            assert_eq!(on_disk, [(volume, 10 << 20)]);
        }
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

    /// Regression: half a megabyte counted as none, and a task ended at its first file.
    #[test]
    fn parts_of_a_megabyte_count() {
        let layout = Layout::new(Path::new("/w"));
        for (disk, bytes) in [("0.5", 524_288), ("0.001", 1_048), ("1.5", 1_572_864)] {
            let role = meseta_resources::Role::default();
            let resources = Resources::parse(&format!("disk:{disk}"), &role).expect("sound");
            let limits = InspectionLimits::from_resources(&resources, &layout);
            assert_eq!(limits.sandbox_bytes, Some(bytes), "{disk}");
        }
    }
}
