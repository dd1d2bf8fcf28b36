//! Files as a task's user may open them.
//!
//! Invariant: what is opened here is opened with the rights on files of that user, on a thread that does
//! nothing else, and through none of the kernel's links that lead to what a process has open.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use meseta_isolators::Credentials;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

/// Gives this thread the user's rights on files, and only those: were it the user's in all respects,
/// the user could send signals to the agent through it.
pub(crate) fn become_user(owner: Option<&Credentials>) -> io::Result<()> {
    let Some(owner) = owner.filter(|_| rustix::process::geteuid().is_root()) else {
        return Ok(());
    };
    let groups: Vec<_> = owner
        .groups
        .iter()
        .map(|group| rustix::process::Gid::from_raw(*group))
        .collect();
    rustix::thread::set_thread_groups(&groups)?;
    // They answer with the identity before; asked for nobody's, they change nothing and tell it.
    nix::unistd::setfsgid(owner.gid.into());
    nix::unistd::setfsuid(owner.uid.into());
    let nobody = u32::MAX;
    let is = (
        nix::unistd::setfsuid(nobody.into()).as_raw(),
        nix::unistd::setfsgid(nobody.into()).as_raw(),
    );
    if is == (owner.uid, owner.gid) {
        Ok(())
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

/// Opens a path as this thread's user. Links that are files are followed; those of `/proc` that lead to
/// what a process has open or where it is are not: who may follow them is no matter of the user's.
pub(crate) fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(
        CWD,
        path,
        flags,
        Mode::empty(),
        resolve,
    )?)
}

/// Where an open file or folder is, without a link in the path.
pub(crate) fn path_of(opened: &OwnedFd) -> io::Result<PathBuf> {
    use std::os::fd::AsRawFd as _;
    std::fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd()))
}

/// Does something on a thread of its own that has the user's rights on files.
pub(crate) fn as_user<T: Send>(
    owner: Option<&Credentials>,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    std::thread::scope(|scope| {
        let working = std::thread::Builder::new()
            .name("files".to_owned())
            .spawn_scoped(scope, || {
                become_user(owner)?;
                work()
            })?;
        let panicked = |_| io::Error::other("the thread that opens files panicked");
        working.join().map_err(panicked)?
    })
}
