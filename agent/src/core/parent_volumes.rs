//! Selects the persistent volumes of the parent container that a task of a group uses.
//!
//! Pure. Invariant: a task gets at most as many of these volumes as it has paths into its parent's sandbox, with any
//! number of other tasks and volumes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::volume::source::sandbox_path;

/// The volumes of a container by their paths in its sandbox.
pub(super) struct ParentVolumes<'a> {
    volumes: &'a [pb::Resource],
    /// Indices into `volumes`; for several volumes at one path the first.
    by_path: BTreeMap<PathBuf, usize>,
}

impl<'a> ParentVolumes<'a> {
    pub(super) fn from_volumes(volumes: &'a [pb::Resource]) -> Self {
        let mut by_path = BTreeMap::new();
        for (at, volume) in volumes.iter().enumerate() {
            let disk = volume.disk.as_ref();
            let mount = disk.and_then(|disk| disk.volume.as_ref());
            if let Some(path) = mount.and_then(|mount| in_sandbox(&mount.container_path)) {
                by_path.entry(path).or_insert(at);
            }
        }
        Self { volumes, by_path }
    }

    /// For each path that a task requests in the sandbox of its parent, the first volume that contains the path.
    pub(super) fn seen_by(&self, task: &pb::TaskInfo) -> Vec<pb::Resource> {
        let container = task.container.iter();
        let volumes = container.flat_map(|container| &container.volumes);
        let places: BTreeSet<_> = volumes
            .filter_map(|volume| {
                let path = in_sandbox(path_in_parent(volume)?)?;
                let around = path.ancestors().filter_map(|path| self.by_path.get(path));
                around.min().copied()
            })
            .collect();
        let seen = places.into_iter();
        seen.filter_map(|at| self.volumes.get(at).cloned())
            .collect()
    }
}

fn path_in_parent(volume: &pb::Volume) -> Option<&str> {
    let given = volume.source.as_ref()?.sandbox_path.as_ref()?;
    (given.r#type() == sandbox_path::Type::Parent).then_some(&given.path)
}

/// The components of a path that stays in the sandbox.
fn in_sandbox(path: &str) -> Option<PathBuf> {
    let parts = Path::new(path).components();
    let parts = parts.filter(|part| *part != Component::CurDir);
    let parts = parts.map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    });
    let path: Option<PathBuf> = parts.collect();
    path.filter(|path| !path.as_os_str().is_empty())
}

#[cfg(test)]
mod tests {
    use meseta_proto::mesos::v1::resource::{DiskInfo, disk_info::Persistence};
    use meseta_proto::mesos::v1::volume::{Source, source::SandboxPath};

    use super::*;

    fn disk(id: &str, path: &str) -> pb::Resource {
        pb::Resource {
            disk: Some(Box::new(DiskInfo {
                persistence: Some(Persistence {
                    id: id.to_owned(),
                    principal: None,
                }),
                volume: Some(pb::Volume {
                    container_path: path.to_owned(),
                    ..pb::Volume::default()
                }),
                ..DiskInfo::default()
            })),
            ..pb::Resource::default()
        }
    }

    fn looking_into(paths: &[&str]) -> pb::TaskInfo {
        let volume = |path: &&str| pb::Volume {
            source: Some(Source {
                sandbox_path: Some(SandboxPath {
                    r#type: Some(sandbox_path::Type::Parent.into()),
                    path: (*path).to_owned(),
                }),
                ..Source::default()
            }),
            ..pb::Volume::default()
        };
        pb::TaskInfo {
            container: Some(Box::new(pb::ContainerInfo {
                volumes: paths.iter().map(volume).collect(),
                ..pb::ContainerInfo::default()
            })),
            ..pb::TaskInfo::default()
        }
    }

    #[test]
    fn task_sees_only_needed_parent_volumes() {
        let volumes: Vec<_> = (0..1000)
            .map(|number| disk(&number.to_string(), &format!("v/{number}")))
            .chain([disk("whole", "v"), disk("again", "./v/7"), disk("x", "/x")])
            .collect();
        let parent = ParentVolumes::from_volumes(&volumes);
        let seen = |paths: &[&str]| {
            let seen = parent.seen_by(&looking_into(paths)).into_iter();
            seen.map(|volume| {
                let persistence = volume.disk.and_then(|disk| disk.persistence);
                persistence.expect("a volume").id
            })
            .collect::<Vec<_>>()
        };
        assert_eq!(seen(&["v/7/a/b", "./v/7", "v/3"]), ["3", "7"]);
        assert_eq!(seen(&["v/none"]), ["whole"]);
        assert_eq!(seen(&["v", "v/none"]), ["whole"]);
        for path in ["a", "", "/x", "v/../v/7"] {
            assert!(seen(&[path]).is_empty(), "{path}");
        }
        assert!(parent.seen_by(&pb::TaskInfo::default()).is_empty());
    }
}
