//! The limits of the unpacking process: its folder alone, no network, few capabilities.
//!
//! [`confine`] applies every limit that the kernel supports and reports them; a kernel without landlock still has the change of root.
//! Invariant: the process keeps its open descriptors only: the blob, the report and the folder.

use std::os::fd::BorrowedFd;

use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::report::Confinement;
use crate::sys;

/// Address space: the executable, and the window of zstd with 128 MiB.
const ADDRESS_BYTES_MAX: u64 = 1 << 30;
/// Open files: as many as nested folders, while a tree is removed.
const OPEN_FILES_MAX: u64 = 512;

/// Confines this process, which must have one thread only, to a folder.
pub(super) fn confine(folder: BorrowedFd<'_>) -> std::io::Result<Confinement> {
    for (resource, max) in [
        (Resource::Core, 0),
        (Resource::As, ADDRESS_BYTES_MAX),
        (Resource::Nofile, OPEN_FILES_MAX),
    ] {
        limit(resource, max)?;
    }
    rustix::thread::set_no_new_privs(true)?;
    let own_network = sys::unshare_network().is_ok();
    let own_root = rustix::process::fchdir(folder).is_ok() && rustix::process::chroot(".").is_ok();
    let landlock = sys::restrict_to_folder(folder)?;
    let fewer_capabilities = drop_capabilities().is_ok();
    Ok(Confinement {
        landlock,
        own_network,
        own_root,
        fewer_capabilities,
    })
}

/// Lowers a limit. A lower limit from outside stays.
fn limit(resource: Resource, max: u64) -> rustix::io::Result<()> {
    let lower = |current: Option<u64>| Some(current.map_or(max, |current| current.min(max)));
    let current = rustix::process::getrlimit(resource);
    let limits = Rlimit {
        current: lower(current.current),
        maximum: lower(current.maximum),
    };
    rustix::process::setrlimit(resource, limits)
}

/// Keeps the capabilities for files with any owner, mode and file capabilities. A layer needs no other one: the parent makes
/// device files.
fn drop_capabilities() -> rustix::io::Result<()> {
    let kept = CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::FOWNER
        | CapabilitySet::FSETID
        | CapabilitySet::SETFCAP;
    let current = rustix::thread::capabilities(None)?;
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: current.effective & kept,
            permitted: current.permitted & kept,
            inheritable: CapabilitySet::empty(),
        },
    )
}
