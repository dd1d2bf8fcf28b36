//! The machine facts that `--check` reads, except its cgroups.
//!
//! Entered through [`Facts::read`]. It changes nothing: it binds the port for a moment and only inspects files.

use std::io;
use std::path::{Path, PathBuf};

use crate::configuration::flags::Flags;
use crate::directories::instance_of;
use crate::other_instances::{self, Abandoned};

/// The capabilities that the launcher and the supervisors need, each with the feature that fails without it.
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

/// Facts about the machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) kernel: Option<(u32, u32)>,
    pub(super) root: bool,
    /// Capabilities that the process lacks.
    pub(super) missing_capabilities: Vec<&'static str>,
    pub(super) memfd_noexec: Option<u64>,
    pub(super) pressure: bool,
    pub(super) descriptors_max: Option<u64>,
    pub(super) work_dir: Option<Folder>,
    pub(super) runtime_dir: Option<Folder>,
    /// Containers still running that agents with other work directories left behind.
    pub(super) abandoned: Vec<Abandoned>,
    /// Whether an agent that uses this work directory listens on the port.
    pub(super) runs_already: bool,
    /// The reason why the address cannot be listened on, as kind and message.
    pub(super) listen_error: Option<(io::ErrorKind, String)>,
}

/// Free space of a filesystem for an unprivileged user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) free_bytes: u64,
    pub(super) total_bytes: u64,
    /// Files that can still be made; `None` where the filesystem does not count them.
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

/// A folder, or its nearest existing parent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    pub(super) writable: bool,
    /// Whether the folder is on a filesystem that a boot empties.
    pub(super) volatile: bool,
    /// Whether users other than the owner may write to the folder.
    pub(super) open_to_others: bool,
    /// Free space of the folder's filesystem.
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
            // An unlimited value counts as the largest limit.
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
    // An agent with this work directory recovers its containers, also if it had another name before.
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
            // The agent chooses the mode of a folder that does not exist yet.
            open_to_others: there == absolute && mode.is_ok_and(|mode| mode & 0o022 != 0),
            room: Room::at(there),
        }
    }
}

/// Whether a filesystem is tmpfs or ramfs, by the numbers in linux/magic.h.
fn is_volatile(kind: rustix::fs::FsWord) -> bool {
    [0x0102_1994, 0x8584_58f6].contains(&(kind & 0xffff_ffff))
}

/// Whether a filesystem is procfs, sysfs or a cgroup tree, by the numbers in linux/magic.h. Root has write permission
/// there, but nobody can create files.
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
