//! Volumes: files and folders of the machine mounted at a path in the container.
//!
//! [`of_plan`] and [`of_resources`] read the requested volumes; [`provide`] makes the mount points and returns the
//! mounts. These happen in the container's own mount namespace, so that the machine's mounts never change and nothing
//! needs a cleanup. Without such a namespace a link replaces the mount. Invariants: nothing is made outside of the
//! sandbox, whatever the task does to it meanwhile, and persistent data survives the container.

mod placement;
mod points;
mod readiness;
mod running;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use meseta_isolators::{Credentials, MountAction, MountSource, MountStep};
use meseta_proto::Invalid;
use meseta_proto::convert;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::volume::source::{Type as SourceType, sandbox_path};
use meseta_resources::{ContainerId, Resource, VolumeMode};
use rustix::fs::{AtFlags, FileType, OFlags, StatxFlags};
use tracing::warn;

use crate::checkpoint::{Layout, RunKey, StoreError, inside, volume_path};
use crate::core::{LaunchPlan, Subject, VOLUMES_MAX};
use crate::failure::Failure;
use crate::file_user;
use crate::host_paths::HostPaths;
use crate::spec::LaunchSettings;
use placement::{Point, placed};
use points::Kind;
pub(crate) use readiness::{emptied, make_ready};
pub(crate) use running::change;

/// Longest path that the kernel takes (`PATH_MAX` without its zero byte).
const PATH_BYTES_MAX: usize = 4095;

/// A volume cannot be provided.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeError {
    /// The mount point of the volume is not in the sandbox.
    #[error("{volume} is to be at {path:?}: give a relative path that stays in the sandbox")]
    Point { volume: String, path: String },
    /// The mount point of the volume is unusable.
    #[error("{volume} is to be at {path}: {reason}")]
    HostPath {
        volume: String,
        path: PathBuf,
        /// The reason why the path is unusable.
        reason: String,
    },
    #[error("the container has {count} volumes, more than {VOLUMES_MAX}")]
    TooMany { count: usize },
    /// Two volumes have the same mount point.
    #[error("{0} and {1} would hide each other")]
    Overlap(String, String),
    /// The volume is invalid, or unavailable on this agent.
    #[error("{volume}: {reason}")]
    Refused { volume: String, reason: String },
    /// Data of an earlier volume is still at its place.
    #[error(
        "the agent is still removing the data of a destroyed volume from {path}; try again later"
    )]
    InUse { path: PathBuf },
    /// The volume's disk has not answered, or was too busy.
    #[error(
        "the directory {path} of a volume was not ready in time: its disk does not answer or is \
         busy; try again later"
    )]
    Silent { path: PathBuf },
    /// The volume's directory is missing and cannot be made.
    #[error("failed to make the directory of {volume}")]
    NotMade {
        volume: String,
        #[source]
        source: StoreError,
    },
    /// A system call for a volume has failed.
    #[error("failed to {doing} {path}")]
    Io {
        /// The call, as a verb.
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> VolumeError {
    let path = path.to_owned();
    move |source| VolumeError::Io {
        doing,
        path,
        source,
    }
}

/// A volume of a container.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Volume {
    /// A name for error messages.
    name: String,
    from: Origin,
    /// The mount point, as requested.
    container_path: String,
    writable: bool,
}

/// The source of a volume.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Origin {
    /// A persistent volume, which belongs to its user, or to its first user if it is shared.
    Data { path: PathBuf, shared: bool },
    /// A path of the host, unchanged.
    Host(PathBuf),
    /// A path in a sandbox; a missing folder is made.
    Sandbox { beneath: PathBuf, path: PathBuf },
}

impl Volume {
    fn refused(&self, reason: impl Into<String>) -> VolumeError {
        refused(&self.name, reason)
    }
}

fn refused(volume: &str, reason: impl Into<String>) -> VolumeError {
    VolumeError::Refused {
        volume: volume.to_owned(),
        reason: reason.into(),
    }
}

/// Context in which volumes are mounted: sandbox, mount namespace, host path rules.
#[derive(Clone, Debug)]
pub(crate) struct VolumeContext {
    /// The sandbox of the outermost container, which only the agent can move.
    root: PathBuf,
    /// The container's own sandbox, relative to that.
    inside: PathBuf,
    /// Whether the container has a mount namespace of its own.
    mounts: bool,
    /// The host paths that the container may mount.
    host_paths: Arc<HostPaths>,
    /// The agent's disks of type MOUNT.
    mount_disks: Arc<[PathBuf]>,
}

impl VolumeContext {
    /// Creates the context for a container of this run.
    pub(crate) fn new(settings: &LaunchSettings, run: &RunKey, container: &ContainerId) -> Self {
        let rights = &settings.rights;
        Self {
            root: settings.layout.sandbox(run),
            inside: inside(container),
            mounts: rights.mounts,
            host_paths: rights.host_paths.clone(),
            mount_disks: settings.mount_disks.clone(),
        }
    }
}

/// The owner of a container's sandbox; `None` if users are not switched.
pub(crate) fn owner(
    context: &VolumeContext,
    switch_user: bool,
) -> Result<Option<Credentials>, Failure> {
    if !switch_user {
        return Ok(None);
    }
    let meta = fs::symlink_metadata(&context.root);
    let meta =
        meta.map_err(|error| Failure::new(format!("failed to stat the sandbox: {error}")))?;
    Ok(Some(Credentials {
        uid: meta.uid(),
        gid: meta.gid(),
        groups: Vec::new(),
    }))
}

/// The volumes of a container that is to be launched.
pub(crate) fn of_plan(layout: &Layout, plan: &LaunchPlan) -> Result<Vec<Volume>, VolumeError> {
    // The outer container of a group runs nothing; each of its tasks has its own volumes.
    if matches!(plan.subject, Subject::Group(_)) {
        return Ok(Vec::new());
    }
    let info = plan.container_info();
    let messages = info.map_or(&[][..], |info| info.volumes.as_slice());
    check_count(messages.len())?;
    let mut volumes = of_resources(layout, &plan.volumes)?;
    check_count(volumes.len() + messages.len())?;
    for message in messages {
        check_paths(message)?;
        volumes.push(of_message(layout, plan, message)?);
    }
    Ok(volumes)
}

/// Whether a container mounts paths of the host, whose file system may not answer.
pub(crate) fn has_host_paths(plan: &LaunchPlan) -> bool {
    let volumes = plan.container_info().map(|info| info.volumes.as_slice());
    let is_of_host = |volume: &pb::Volume| {
        let source = volume.source.as_ref();
        let in_source = source.is_some_and(|source| source.host_path.is_some());
        // A relative path is in the sandbox.
        let is_absolute = |path: &String| Path::new(path).is_absolute();
        // At an absolute path of the container it is mounted over an entry of the host.
        let is_over = is_absolute(&volume.container_path);
        in_source || volume.host_path.as_ref().is_some_and(is_absolute) || is_over
    };
    volumes.unwrap_or_default().iter().any(is_of_host)
}

/// Refuses paths that the kernel would refuse, before a folder is made for each of their components.
fn check_paths(message: &pb::Volume) -> Result<(), VolumeError> {
    let source = message.source.as_ref();
    let host_path = source.and_then(|source| source.host_path.as_ref());
    let sandbox_path = source.and_then(|source| source.sandbox_path.as_ref());
    let paths = [
        Some(&message.container_path),
        message.host_path.as_ref(),
        host_path.map(|given| &given.path),
        sandbox_path.map(|given| &given.path),
    ];
    let longest = paths.into_iter().flatten().map(String::len).max();
    match longest {
        Some(longest) if longest > PATH_BYTES_MAX => {
            let reason = format!("its path has {longest} bytes, more than {PATH_BYTES_MAX}");
            // The name of the volume would contain the path.
            Err(refused("a volume", reason))
        }
        _ => Ok(()),
    }
}

fn check_count(count: usize) -> Result<(), VolumeError> {
    match count > VOLUMES_MAX {
        true => Err(VolumeError::TooMany { count }),
        false => Ok(()),
    }
}

/// The persistent volumes among resources, which were validated when the agent accepted them.
fn persistent(messages: &[pb::Resource]) -> impl Iterator<Item = Resource> {
    let resources = messages
        .iter()
        .filter_map(|one| convert::resource(one).ok());
    resources.filter(Resource::is_persistent_volume)
}

/// Converts persistent volumes to mounts.
pub(crate) fn of_resources(
    layout: &Layout,
    messages: &[pb::Resource],
) -> Result<Vec<Volume>, VolumeError> {
    let mut volumes: Vec<Volume> = Vec::new();
    let mut seen = BTreeSet::new();
    for resource in persistent(messages) {
        let disk = resource.disk();
        let id = disk.and_then(|disk| disk.persistence.as_ref());
        let id = id.map(|persistence| persistence.id.to_string());
        let name = format!("persistent volume {}", id.unwrap_or_default());
        let mount = disk.and_then(|disk| disk.volume.as_ref());
        let path = volume_path(layout, &resource)
            .ok_or_else(|| refused(&name, "it is on a device and has no directory"))?;
        let volume = Volume {
            from: Origin::Data {
                path,
                shared: resource.is_shared(),
            },
            container_path: mount
                .map(|mount| mount.container_path.clone())
                .unwrap_or_default(),
            writable: mount.is_none_or(|mount| mount.mode == VolumeMode::ReadWrite),
            name,
        };
        // Several tasks of an executor may share it.
        if seen.insert(volume.clone()) {
            volumes.push(volume);
        }
    }
    Ok(volumes)
}

/// A volume that a container requests besides its resources.
fn of_message(
    layout: &Layout,
    plan: &LaunchPlan,
    message: &pb::Volume,
) -> Result<Volume, VolumeError> {
    let name = format!("volume {}", message.container_path);
    let source = message.source.as_ref();
    let kind = source.and_then(|source| source.r#type);
    let kind = kind.and_then(|kind| SourceType::try_from(kind).ok());
    let from = match (&message.host_path, kind, source) {
        (Some(path), _, _) if Path::new(path).is_absolute() => Origin::Host(path.into()),
        // The older field for this.
        (Some(path), _, _) => own_sandbox(layout, plan, &name, path, &message.container_path)?,
        (None, Some(SourceType::HostPath), Some(source)) => {
            let given = source.host_path.clone().unwrap_or_default();
            let mode = given.mount_propagation.unwrap_or_default().mode();
            if mode == pb::mount_propagation::Mode::Bidirectional {
                let reason = "mounts of a container cannot propagate to the machine";
                return Err(refused(&name, reason));
            }
            if !Path::new(&given.path).is_absolute() {
                let reason = format!("path '{}' in HOST_PATH volume is not absolute", given.path);
                return Err(refused(&name, reason));
            }
            Origin::Host(given.path.into())
        }
        (None, Some(SourceType::SandboxPath), Some(source)) => {
            let given = source.sandbox_path.clone().unwrap_or_default();
            match given.r#type() {
                sandbox_path::Type::Parent => parent_sandbox(layout, plan, &name, &given.path)?,
                sandbox_path::Type::Self_ => {
                    own_sandbox(layout, plan, &name, &given.path, &message.container_path)?
                }
                sandbox_path::Type::Unknown => {
                    return Err(refused(&name, "unknown SANDBOX_PATH volume type"));
                }
            }
        }
        (None, kind, _) => {
            let kind = kind.map_or("IMAGE", |kind| kind.as_str_name());
            let reason = format!("volumes of type {kind} are not supported by this agent");
            return Err(refused(&name, reason));
        }
    };
    Ok(Volume {
        name,
        from,
        container_path: message.container_path.clone(),
        writable: message.mode() == pb::volume::Mode::Rw,
    })
}

/// The components of a path that stays within its root; `None` if it does not, or is empty.
fn parts(path: &str) -> Option<PathBuf> {
    let mut parts = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => parts.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    (!parts.as_os_str().is_empty()).then_some(parts)
}

fn sandbox_parts(name: &str, path: &str) -> Result<PathBuf, VolumeError> {
    parts(path).ok_or_else(|| {
        let reason = format!("path '{path}' in SANDBOX_PATH volume does not stay in the sandbox");
        refused(name, reason)
    })
}

fn own_sandbox(
    layout: &Layout,
    plan: &LaunchPlan,
    name: &str,
    path: &str,
    container_path: &str,
) -> Result<Origin, VolumeError> {
    if !Path::new(container_path).is_absolute() {
        let reason = "'container_path' is relative for SANDBOX_PATH volume SELF type";
        return Err(refused(name, reason));
    }
    let own = inside(&plan.container);
    Ok(Origin::Sandbox {
        beneath: layout.sandbox(&plan.run),
        path: own.join(sandbox_parts(name, path)?),
    })
}

fn parent_sandbox(
    layout: &Layout,
    plan: &LaunchPlan,
    name: &str,
    path: &str,
) -> Result<Origin, VolumeError> {
    let own = inside(&plan.container);
    // The sandbox of the parent is two levels up: `containers` and the own name.
    let Some(above) = own.ancestors().nth(2) else {
        let reason = "SANDBOX_PATH volume PARENT type only works for nested container";
        return Err(refused(name, reason));
    };
    let path = sandbox_parts(name, path)?;
    // A mount in the parent's sandbox is visible in that container only: here the source of the mount is used.
    for volume in of_resources(layout, &plan.parent_volumes)? {
        let point = parts(&volume.container_path);
        let rest = point.and_then(|point| path.strip_prefix(point).ok().map(Path::to_owned));
        if let (Some(rest), Origin::Data { path: data, shared }) = (rest, volume.from) {
            if rest.as_os_str().is_empty() {
                return Ok(Origin::Data { path: data, shared });
            }
            return Ok(Origin::Sandbox {
                beneath: data,
                path: rest,
            });
        }
    }
    Ok(Origin::Sandbox {
        beneath: layout.sandbox(&plan.run),
        path: above.join(path),
    })
}

/// Provides the volumes of a sandbox: makes their mount points, and links where nothing can be mounted. Returns the
/// mounts.
pub(crate) fn provide(
    context: &VolumeContext,
    volumes: &[Volume],
    owner: Option<&Credentials>,
) -> Result<Vec<MountStep>, VolumeError> {
    let mut steps = Vec::new();
    for (point, volume) in placed(context, volumes)? {
        steps.extend(provide_one(context, &point, volume, owner)?);
    }
    Ok(steps)
}

fn provide_one(
    context: &VolumeContext,
    point: &Point,
    volume: &Volume,
    owner: Option<&Credentials>,
) -> Result<Option<MountStep>, VolumeError> {
    let (source, kind) = source_of(context, volume, owner)?;
    match point {
        Point::Host(path) => {
            let there = fs::metadata(path).map_err(failed("look at", path))?;
            if Kind::from_meta(&there) != kind {
                return Err(VolumeError::HostPath {
                    volume: volume.name.clone(),
                    path: path.clone(),
                    reason: "a file can be mounted on a file only, and a folder on a folder \
                        only"
                        .to_owned(),
                });
            }
            if source.beneath.is_none() && source.path == *path && volume.writable {
                // The source is visible there already.
                return Ok(None);
            }
            Ok(Some(bind(path.clone(), None, source, volume.writable)))
        }
        Point::Sandbox(path) => {
            let path = context.inside.join(path);
            let in_sandbox = context.root.join(&path);
            if context.mounts {
                points::make(&context.root, &path, kind, owner)
                    .map_err(failed("make a mount point for a volume at", &in_sandbox))?;
                let beneath = Some(context.root.clone());
                return Ok(Some(bind(path, beneath, source, volume.writable)));
            }
            if matches!(volume.from, Origin::Host(_)) {
                return Err(volume.refused(
                    "a host volume needs namespaces/mnt, which this agent's isolation lacks",
                ));
            }
            if !volume.writable {
                warn!(
                    volume = volume.name,
                    "a link replaces a read-only volume; tasks can write to the volume"
                );
            }
            let target = source.beneath.unwrap_or_default().join(source.path);
            points::link(&context.root, &path, &target, owner)
                .map_err(failed("link", &in_sandbox))?;
            Ok(None)
        }
    }
}

fn bind(path: PathBuf, beneath: Option<PathBuf>, source: MountSource, writable: bool) -> MountStep {
    MountStep {
        path,
        action: MountAction::Bind {
            source,
            beneath,
            writable,
        },
    }
}

/// Returns the path and the kind of a volume's source, prepared for its user.
fn source_of(
    context: &VolumeContext,
    volume: &Volume,
    owner: Option<&Credentials>,
) -> Result<(MountSource, Kind), VolumeError> {
    match &volume.from {
        Origin::Data { path, shared } => {
            let meta = fs::metadata(path).map_err(failed("find the volume", path))?;
            if let Some(owner) = owner
                && (!shared || meta.uid() == rustix::process::geteuid().as_raw())
            {
                std::os::unix::fs::chown(path, Some(owner.uid), Some(owner.gid))
                    .map_err(failed("give away", path))?;
            }
            let source = MountSource {
                path: path.clone(),
                ..MountSource::default()
            };
            Ok((source, Kind::Folder))
        }
        Origin::Host(path) => {
            host_source(context, path, owner).map_err(|reason| volume.refused(reason))
        }
        Origin::Sandbox { beneath, path } => {
            let kind = points::find_or_make(beneath, path)
                .map_err(failed("find a mount point in", &beneath.join(path)))?;
            let source = MountSource {
                beneath: Some(beneath.clone()),
                path: path.clone(),
                ..MountSource::default()
            };
            Ok((source, kind))
        }
    }
}

/// Resolves a path of the host with the rights of the task's user and the node's rules. At the mount the resolved path
/// is opened again, as the user and without following links.
fn host_source(
    context: &VolumeContext,
    path: &Path,
    owner: Option<&Credentials>,
) -> Result<(MountSource, Kind), Invalid> {
    let named = path.display();
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => format!("path '{named}' in HOST_PATH volume does not exist"),
        _ => format!("path '{named}' in HOST_PATH volume, opened as the task's user: {error}"),
    };
    let opened = file_user::as_user(owner, || file_user::open(path, OFlags::PATH));
    let opened = opened.map_err(failed)?;
    let kind = kind_of(&opened).map_err(failed)?;
    let real = file_user::path_of(&opened).map_err(failed)?;
    let allowed = context.host_paths.check_volume(&real);
    allowed.map_err(|why| format!("path '{named}' in HOST_PATH volume: {why}"))?;
    let source = MountSource {
        path: real,
        by_user: true,
        ..MountSource::default()
    };
    Ok((source, kind))
}

/// Returns the kind of an open file, from the kernel's cache without a query to a server. A kind never changes, and a
/// file system whose server does not answer may be mounted in a container.
fn kind_of(opened: &OwnedFd) -> io::Result<Kind> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(opened, "", flags, StatxFlags::TYPE)?;
    let mode = found.stx_mode.into();
    Ok(match FileType::from_raw_mode(mode) {
        FileType::Directory => Kind::Folder,
        _ => Kind::File,
    })
}

#[cfg(test)]
mod tests;
