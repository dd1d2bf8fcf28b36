//! The properties of a disk beyond its size: its source, and the volume on it.
//!
//! Two disks are the same when their source and the id of their persistence are. The mount point in a framework's container
//! and the creator do not distinguish volumes. Equality and order follow that.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use crate::Labels;

#[derive(Clone, Debug, Default)]
pub struct Disk {
    pub persistence: Option<Persistence>,
    pub volume: Option<Volume>,
    pub source: Option<DiskSource>,
}

/// The persistence that makes a volume outlive its task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Persistence {
    pub id: Arc<str>,
    pub principal: Option<Arc<str>>,
}

/// The mount of a volume in the container.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Volume {
    pub container_path: String,
    pub host_path: Option<String>,
    pub mode: VolumeMode,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum VolumeMode {
    ReadWrite,
    ReadOnly,
}

#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DiskSourceKind {
    /// A directory, which is divisible.
    Path,
    /// A file system of its own, which is indivisible.
    Mount,
    /// A block device, which is indivisible.
    Block,
    /// A disk without a file system or volume yet; indivisible once it has an id.
    Raw,
}

/// The source of a disk other than the agent's root disk.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DiskSource {
    pub kind: DiskSourceKind,
    /// The root of `Path` and `Mount` disks only.
    pub root: Option<String>,
    pub vendor: Option<String>,
    pub id: Option<String>,
    pub metadata: Labels,
    pub profile: Option<String>,
}

impl DiskSource {
    #[must_use]
    pub fn path(root: Option<&str>) -> Self {
        Self::new(DiskSourceKind::Path, root)
    }

    #[must_use]
    pub fn mount(root: Option<&str>) -> Self {
        Self::new(DiskSourceKind::Mount, root)
    }

    #[must_use]
    pub fn new(kind: DiskSourceKind, root: Option<&str>) -> Self {
        Self {
            kind,
            root: root.map(Into::into),
            vendor: None,
            id: None,
            metadata: Labels::default(),
            profile: None,
        }
    }
}

impl Disk {
    /// Whether this disk is indivisible: a file system, a device, a volume.
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        self.persistence.is_some()
            || self
                .source
                .as_ref()
                .is_some_and(|source| match source.kind {
                    DiskSourceKind::Path => false,
                    DiskSourceKind::Mount | DiskSourceKind::Block => true,
                    DiskSourceKind::Raw => source.id.is_some(),
                })
    }

    fn identity(&self) -> (Option<&DiskSource>, Option<&str>) {
        (
            self.source.as_ref(),
            self.persistence
                .as_ref()
                .map(|persistence| &*persistence.id),
        )
    }
}

impl PartialEq for Disk {
    fn eq(&self, that: &Self) -> bool {
        self.identity() == that.identity()
    }
}

impl Eq for Disk {}

impl PartialOrd for Disk {
    fn partial_cmp(&self, that: &Self) -> Option<Ordering> {
        Some(self.cmp(that))
    }
}

impl Ord for Disk {
    fn cmp(&self, that: &Self) -> Ordering {
        self.identity().cmp(&that.identity())
    }
}

impl fmt::Display for DiskSourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Path => "PATH",
            Self::Mount => "MOUNT",
            Self::Block => "BLOCK",
            Self::Raw => "RAW",
        })
    }
}

impl fmt::Display for DiskSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if self.id.is_some() || self.profile.is_some() {
            let text = |field: &Option<String>| field.clone().unwrap_or_default();
            let (vendor, id) = (text(&self.vendor), text(&self.id));
            write!(f, "({vendor},{id},{})", text(&self.profile))
        } else if let Some(root) = &self.root {
            write!(f, ":{root}")
        } else {
            Ok(())
        }
    }
}

impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host_path {
            None => f.write_str(&self.container_path),
            Some(host_path) => {
                let mode = match self.mode {
                    VolumeMode::ReadWrite => "rw",
                    VolumeMode::ReadOnly => "ro",
                };
                write!(f, "{host_path}:{}:{mode}", self.container_path)
            }
        }
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(source) = &self.source {
            write!(f, "{source}")?;
        }
        if let Some(persistence) = &self.persistence {
            let comma = if self.source.is_some() { "," } else { "" };
            write!(f, "{comma}{}", persistence.id)?;
        }
        if let Some(volume) = &self.volume {
            write!(f, ":{volume}")?;
        }
        Ok(())
    }
}
