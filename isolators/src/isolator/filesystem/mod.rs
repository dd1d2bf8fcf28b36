//! filesystem/*: the container's view of the kernel's own filesystems. One file each.

mod kernel;
mod shm;

pub(super) use kernel::Kernel;
pub(super) use shm::Shm;
