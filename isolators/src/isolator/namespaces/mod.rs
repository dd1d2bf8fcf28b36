//! namespaces/*: what a container does not share with the host. One file each.

mod cgroup;
mod ipc;
mod mnt;
mod net;
mod pid;
mod uts;

pub(super) use cgroup::Cgroup;
pub(super) use ipc::Ipc;
pub(super) use mnt::Mount;
pub(super) use net::Network;
pub(super) use pid::Pid;
pub(super) use uts::Uts;
