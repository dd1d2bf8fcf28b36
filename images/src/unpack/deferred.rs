//! Device files and opaque marks of a layer, which the parent process makes after the child.
//!
//! The child has no right to make either: a device file in its folder would give it the host's disks. Invariant: the paths
//! come from a child that a hostile layer may have taken over, so each lookup stays below the folder and follows no link.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};

use super::path::{clean, split};
use super::report::{Device, Report, unescape};
use super::tree::open_beneath;
use super::{Refusal, UnpackError};

/// The extended attribute by which a folder hides the folders of lower layers.
const OPAQUE: &str = "trusted.overlay.opaque";

/// Makes the device files and opaque marks of a report. The mark of the root is left out: overlayfs does not read it there.
pub(crate) fn apply_deferred(root: &OwnedFd, report: &Report) -> Result<(), UnpackError> {
    for device in &report.devices {
        make_device(root, device)?;
    }
    for path in report.opaque.iter().filter(|path| !path.is_empty()) {
        let path = valid_path(path)?;
        let failed = |errno| UnpackError::system("mark as opaque", &path, errno);
        let folder = open_beneath(root.as_fd(), &path).map_err(failed)?;
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
        let folder = rustix::fs::openat(&folder, ".", flags, Mode::empty()).map_err(failed)?;
        rustix::fs::fsetxattr(&folder, OPAQUE, b"y", XattrFlags::empty()).map_err(failed)?;
    }
    Ok(())
}

fn make_device(root: &OwnedFd, device: &Device) -> Result<(), UnpackError> {
    let path = valid_path(&device.path)?;
    let (folder, name) = split(&path);
    if !device.is_block && (device.major, device.minor) == (0, 0) {
        let problem = "is the device 0:0, which hides files of other layers";
        return Err(Refusal::for_path(problem, &path).into());
    }
    let failed = |errno| UnpackError::system("create the device", &path, errno);
    let folder = open_beneath(root.as_fd(), folder).map_err(failed)?;
    let before = rustix::fs::statat(&folder, "", AtFlags::EMPTY_PATH).map_err(failed)?;
    let kind = if device.is_block {
        FileType::BlockDevice
    } else {
        FileType::CharacterDevice
    };
    let mode = Mode::from_raw_mode(device.mode & 0o7777);
    let number = rustix::fs::makedev(device.major, device.minor);
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::mknodat(&folder, name, kind, mode, number).map_err(failed)?;
    let (uid, gid) = (Uid::from_raw(device.uid), Gid::from_raw(device.gid));
    rustix::fs::chownat(&folder, name, Some(uid), Some(gid), flags).map_err(failed)?;
    // The file was just made by this process, so it is no link. mknod's mode is without the bits of the umask.
    rustix::fs::chmodat(&folder, name, mode, AtFlags::empty()).map_err(failed)?;
    let (seconds, nanoseconds) = device.modified;
    rustix::fs::utimensat(
        &folder,
        name,
        &timestamps(seconds, nanoseconds.into()),
        flags,
    )
    .map_err(failed)?;
    // The folder keeps its time.
    let times = timestamps(
        before.st_mtime,
        i64::try_from(before.st_mtime_nsec).unwrap_or(0),
    );
    rustix::fs::utimensat(&folder, ".", &times, AtFlags::empty()).map_err(failed)
}

fn timestamps(tv_sec: i64, tv_nsec: i64) -> Timestamps {
    let time = Timespec { tv_sec, tv_nsec };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

fn valid_path(text: &str) -> Result<Vec<u8>, UnpackError> {
    let path = unescape(text).filter(|path| !path.is_empty());
    let path = path.filter(|path| clean(path).is_ok_and(|clean| clean == *path));
    path.ok_or_else(|| Refusal::for_path("is no path below the folder", text.as_bytes()).into())
}
