//! What `--check` reads of the machine, but for its cgroups.
//!
//! Entered through [`Facts::read`]. Nothing is changed: a port is bound for a moment, files are only looked at.

use std::io;
use std::path::{Path, PathBuf};

use crate::configuration::flags::Flags;
use crate::directories::instance_of;
use crate::other_instances::{self, Abandoned};

/// What the launcher and the supervisors need, and what fails without.
pub(super) const CAPABILITIES: [(&str, &str); 10] = [
    ("CAP_SYS_ADMIN", "namespaces and mounts"),
    ("CAP_SETUID", "tasks of other users"),
    ("CAP_SETGID", "tasks of other users"),
    ("CAP_SETPCAP", "bounding sets of tasks"),
    ("CAP_KILL", "ending tasks of other users"),
    ("CAP_CHOWN", "sandboxes of other users"),
    ("CAP_FOWNER", "cleaning sandboxes of other users"),
    ("CAP_DAC_OVERRIDE", "cleaning sandboxes of other users"),
    (
        "CAP_SYS_RESOURCE",
        "raising limits of tasks, short pressure windows",
    ),
    (
        "CAP_SYS_PTRACE",
        "sessions in containers of other users, network/ports",
    ),
];

/// What was read of the machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) kernel: Option<(u32, u32)>,
    pub(super) root: bool,
    /// Capabilities that are not held.
    pub(super) missing_capabilities: Vec<&'static str>,
    pub(super) memfd_noexec: Option<u64>,
    pub(super) pressure: bool,
    pub(super) descriptors_max: Option<u64>,
    pub(super) work_dir: Option<Folder>,
    pub(super) runtime_dir: Option<Folder>,
    /// What agents on other work directories have left running.
    pub(super) abandoned: Vec<Abandoned>,
    /// An agent that uses this work directory says that it listens on the port.
    pub(super) runs_already: bool,
    /// Why the address cannot be listened on, in kind and in words.
    pub(super) listen_error: Option<(io::ErrorKind, String)>,
}

/// Room on a filesystem for somebody without privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) free_bytes: u64,
    pub(super) total_bytes: u64,
    /// Files that can still be made; none where the filesystem does not count them.
    pub(super) free_files: Option<u64>,
}

impl Room {
    fn at(path: &Path) -> Option<Self> {
        let stat = rustix::fs::statvfs(path).ok()?;
        Some(Self {
            free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
            free_files: (stat.f_files > 0).then_some(stat.f_favail),
        })
    }
}

/// A folder, or the nearest one above it that is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    pub(super) writable: bool,
    /// On a filesystem that a boot empties.
    pub(super) volatile: bool,
    /// Others than the owner may write to it.
    pub(super) open_to_others: bool,
    /// Room on its filesystem.
    pub(super) room: Option<Room>,
}

impl Facts {
    pub(super) fn read(flags: &Flags) -> Self {
        use rustix::process::{Resource, getrlimit};
        let root = rustix::process::geteuid().is_root();
        let release = rustix::system::uname();
        let number =
            |path: &str| -> Option<u64> { std::fs::read_to_string(path).ok()?.trim().parse().ok() };
        let listen = std::net::SocketAddr::new(flags.ip, flags.port);
        let runtime_dir = match &flags.runtime_dir {
            Some(given) => Some(given.clone()),
            None => root.then(|| PathBuf::from("/run/meseta/agent")),
        };
        Self {
            kernel: release.release().to_str().ok().and_then(version),
            root,
            missing_capabilities: missing_capabilities(),
            memfd_noexec: number("/proc/sys/vm/memfd_noexec"),
            pressure: Path::new("/proc/pressure/cpu").exists(),
            // No limit is the largest one.
            descriptors_max: Some(getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)),
            work_dir: Some(Folder::at(&flags.work_dir)),
            runtime_dir: runtime_dir.as_deref().map(Folder::at),
            abandoned: runtime_dir
                .map(|runtime_dir| abandoned_by_others(&runtime_dir, &flags.work_dir))
                .unwrap_or_default(),
            runs_already: std::fs::read_to_string(flags.work_dir.join("endpoint"))
                .is_ok_and(|text| text.trim().ends_with(&format!(":{}", flags.port))),
            listen_error: std::net::TcpListener::bind(listen)
                .err()
                .map(|error| (error.kind(), error.to_string())),
        }
    }
}

fn abandoned_by_others(runtime_dir: &Path, work_dir: &Path) -> Vec<Abandoned> {
    let work_dir = std::fs::canonicalize(work_dir).unwrap_or_else(|_| work_dir.to_owned());
    let mut left = other_instances::abandoned(runtime_dir, &instance_of(&work_dir));
    // An agent on this one takes them back, whatever it was called before.
    left.retain(|left| left.work_dir.as_deref() != work_dir.to_str());
    left
}

impl Folder {
    pub(super) fn at(wanted: &Path) -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let absolute = std::path::absolute(wanted).unwrap_or_else(|_| wanted.to_owned());
        let there = absolute.ancestors().find(|path| path.exists());
        let there = there.unwrap_or(Path::new("/"));
        let access = rustix::fs::access(there, rustix::fs::Access::WRITE_OK);
        let kind = rustix::fs::statfs(there).map(|stat| stat.f_type);
        let mode = std::fs::metadata(there).map(|data| data.permissions().mode());
        Self {
            path: absolute.clone(),
            writable: access.is_ok() && there.is_dir() && !kind.is_ok_and(is_the_kernels),
            volatile: kind.is_ok_and(is_volatile),
            // Of a folder that is not there yet the agent decides itself.
            open_to_others: there == absolute && mode.is_ok_and(|mode| mode & 0o022 != 0),
            room: Room::at(there),
        }
    }
}

/// tmpfs and ramfs, by their numbers in linux/magic.h.
fn is_volatile(kind: rustix::fs::FsWord) -> bool {
    [0x0102_1994, 0x8584_58f6].contains(&(kind & 0xffff_ffff))
}

/// procfs, sysfs and the cgroup trees, by their numbers in linux/magic.h: root may write there, and nobody
/// may put a file there.
fn is_the_kernels(kind: rustix::fs::FsWord) -> bool {
    [0x9fa0, 0x6265_6572, 0x0027_e0eb, 0x6367_7270].contains(&(kind & 0xffff_ffff))
}

fn missing_capabilities() -> Vec<&'static str> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    let lacks = |name: &&str| {
        let wanted = meseta_isolators::CapabilitySet::from_names([*name]);
        wanted.is_ok_and(|wanted| wanted.bits() & effective == 0)
    };
    let names = CAPABILITIES.iter().map(|(name, _)| *name);
    names.filter(lacks).collect()
}

/// The version of a kernel release: `6.1.0-13-amd64` is 6.1.
pub(super) fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}
