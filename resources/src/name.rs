//! Names of resources; the well-known ones are shared, so that their comparison compares pointers.

use std::sync::{Arc, LazyLock};

pub const CPUS: &str = "cpus";
/// The resource `mem`, in megabytes.
pub const MEM: &str = "mem";
/// The resource `disk`, in megabytes.
pub const DISK: &str = "disk";
/// The resource `gpus`, in whole devices.
pub const GPUS: &str = "gpus";
pub const PORTS: &str = "ports";

pub(crate) const WELL_KNOWN: [&str; 5] = [CPUS, DISK, GPUS, MEM, PORTS];
static SHARED: LazyLock<[ResourceName; 5]> =
    LazyLock::new(|| WELL_KNOWN.map(|name| ResourceName(name.into())));

/// The name of a resource: not empty.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceName(Arc<str>);

/// The error of a resource without a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("Empty resource name")]
pub struct EmptyName;

impl ResourceName {
    /// # Errors
    /// When the name is empty.
    pub fn new(name: &str) -> Result<Self, EmptyName> {
        if name.is_empty() {
            return Err(EmptyName);
        }
        Ok(match Self::well_known(name) {
            Some(index) => SHARED[index].clone(),
            None => Self(name.into()),
        })
    }

    /// The position of the name in [`WELL_KNOWN`].
    pub(crate) fn well_known(name: &str) -> Option<usize> {
        WELL_KNOWN.iter().position(|known| *known == name)
    }

    #[must_use]
    pub fn cpus() -> Self {
        SHARED[0].clone()
    }

    #[must_use]
    pub fn disk() -> Self {
        SHARED[1].clone()
    }

    #[must_use]
    pub fn gpus() -> Self {
        SHARED[2].clone()
    }

    #[must_use]
    pub fn mem() -> Self {
        SHARED[3].clone()
    }

    #[must_use]
    pub fn ports() -> Self {
        SHARED[4].clone()
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the two share their text: true implies equality, false leaves it open.
    pub(crate) fn is_shared_with(&self, that: &Self) -> bool {
        Arc::ptr_eq(&self.0, &that.0)
    }

    /// Orders by text; recognizes a shared name at once.
    pub(crate) fn compare(&self, that: &Self) -> std::cmp::Ordering {
        if Arc::ptr_eq(&self.0, &that.0) {
            std::cmp::Ordering::Equal
        } else {
            self.cmp(that)
        }
    }
}

crate::display::text!(ResourceName, compared);
