//! Opens files with the rights of a task's user.
//!
//! Invariant: a file is opened here with that user's rights on files, on a dedicated thread, and never through the
//! kernel's links to the open files of a process.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use meseta_isolators::Credentials;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

/// Gives this thread the user's rights on files, and only those: with the user's full identity, the user could send
/// signals to the agent through this thread.
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
    // The calls return the previous identity. With an invalid id they change nothing and return the current one.
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

/// Opens a path as this thread's user. Follows links that are files, but not the links in `/proc` to a process's open
/// files and folders: the user's rights do not decide who may follow those.
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

/// The path of an open file or folder, without links.
pub(crate) fn path_of(opened: &OwnedFd) -> io::Result<PathBuf> {
    use std::os::fd::AsRawFd as _;
    std::fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd()))
}

/// Runs a function on its own thread with the user's rights on files.
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
