//! A node whose power can be cut, with a master whose power stays.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::daemon::free_port;
use crate::small_disk::SmallDisk;
use crate::wait::eventually;
use crate::{Cluster, Setup, kernel};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The time for the last process that keeps a file system busy to end.
const UNMOUNTING: Duration = Duration::from_secs(20);

/// The file system that loses unsynced data.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Journal {
    /// A sync makes all earlier renames and creations durable.
    Ext4,
    /// A sync makes the changes of its file durable, and little else.
    Ext4FastCommit,
    /// A sync behaves as with fast commits; needs `mkfs.xfs`.
    Xfs,
}

impl Journal {
    /// Returns the program that creates the file system.
    pub fn program(self) -> &'static str {
        self.make()[0]
    }

    fn make(self) -> &'static [&'static str] {
        match self {
            Self::Ext4 => &["mkfs.ext4", "-q", "-F", "-m", "0"],
            Self::Ext4FastCommit => &["mkfs.ext4", "-q", "-F", "-m", "0", "-O", "fast_commit"],
            Self::Xfs => &["mkfs.xfs", "-q", "-f"],
        }
    }

    /// Returns a disk that writes no unsynced data before this time, in seconds: it is lost then.
    fn disk(self) -> SmallDisk {
        let options = match self {
            Self::Ext4 | Self::Ext4FastCommit => "loop,commit=600",
            Self::Xfs => "loop",
        };
        SmallDisk::Journaled {
            mib: 384,
            make: self.make(),
            options,
        }
    }
}

/// The data that still reaches the device when the power fails.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Flush {
    /// No data reaches the device, as with `NOLOGFLUSH`.
    Nothing,
    /// The pending journal, but no data: `LOGFLUSH`. Names of empty files are there.
    Journal,
}

impl Flush {
    fn flag(self) -> u32 {
        match self {
            Self::Journal => 1,
            Self::Nothing => 2,
        }
    }
}

nix::ioctl_read!(shut_down, b'X', 125, u32);

/// A cluster whose agent has a disk and a boot id of its own.
#[derive(Debug)]
pub struct Node {
    pub cluster: Cluster,
    boot_id: PathBuf,
    boots: usize,
    /// The folder of the boot id.
    _dir: TempDir,
}

/// Runs `act` on a thread with its own mounts: no other mount namespace keeps its file systems busy, and it keeps none of
/// another suite busy.
pub fn in_own_mounts<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    let outcome = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS).expect("mounts of its own");
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(None::<&str>, "/", None::<&str>, private, None::<&str>).expect("private ones");
            detach_below(&std::env::temp_dir());
            act()
        });
        thread.join()
    });
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Unmounts the file systems below a folder, in the caller's mount namespace alone.
fn detach_below(dir: &Path) {
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").expect("/proc is mounted");
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    for point in points.map(Path::new).filter(|point| *point != dir) {
        if point.starts_with(dir) {
            let _ = umount2(point, MntFlags::MNT_DETACH);
        }
    }
}

impl Node {
    /// Starts the whole node; must be called [`in_own_mounts`].
    pub fn open(journal: Journal) -> Self {
        let dir = TempDir::with_prefix("meseta-boot-").expect("a temporary directory");
        let boot_id = dir.path().join("boot_id");
        write_boot_id(&boot_id, 0);
        let bind = MsFlags::MS_BIND;
        mount(Some(&boot_id), BOOT_ID, None::<&str>, bind, None::<&str>).expect("a boot id");
        let cluster = Cluster::start(Setup {
            master_flags: vec!["--allocation_interval=50ms".to_owned()],
            agent_flags: [
                "--resources=cpus:16;mem:4096;disk:1024",
                "--gc_delay=1secs",
                "--disk_watch_interval=300ms",
                "--registration_backoff_factor=10ms",
            ]
            .map(str::to_owned)
            .to_vec(),
            agent_port: Some(free_port()),
            agent_disk: Some(journal.disk()),
            runtime_disk: Some(SmallDisk::Tmpfs("size=64m")),
            ..Setup::default()
        });
        Self {
            cluster,
            boot_id,
            boots: 0,
            _dir: dir,
        }
    }

    /// Cuts and restores the power; no agent runs yet.
    pub fn cut(&mut self, flush: Flush) {
        let work_dir = self.cluster.agent_dir(0);
        let root = File::open(&work_dir).expect("the work directory");
        let mut flag = flush.flag();
        self.stop_all();
        #[expect(unsafe_code, reason = "no crate knows this ioctl")]
        // SAFETY: the kernel reads one number, at this address.
        let shut = unsafe { shut_down(root.as_raw_fd(), &raw mut flag) };
        shut.expect("the file system is shut down");
        drop(root);
        self.cluster.agents[0].kill();
        kernel::remove_groups(&self.cluster.cgroups_root);
        for (dir, disk) in self.cluster.small_disks() {
            eventually("nobody uses the file system", UNMOUNTING, || match umount2(
                &dir,
                MntFlags::empty(),
            ) {
                Ok(()) => Some(()),
                Err(Errno::EBUSY) => None,
                Err(error) => panic!("{}: {error}", dir.display()),
            });
            let image = SmallDisk::image(&dir);
            eventually("the device is released", UNMOUNTING, || {
                (!is_on_loop(&image)).then_some(())
            });
            disk.mount_again(&dir);
        }
        self.boots += 1;
        write_boot_id(&self.boot_id, self.boots);
    }

    /// Stops all processes. Syncs in the kernel continue, and nobody learns whether the cut makes them fail or succeed.
    fn stop_all(&self) {
        kernel::kill(self.cluster.agent().pid(), Signal::SIGSTOP);
        for pid in kernel::processes_below(&self.cluster.cgroups_root) {
            kernel::kill(pid, Signal::SIGSTOP);
        }
    }

    /// Starts the agent without waiting.
    pub fn start(&mut self) {
        self.cluster.respawn_agent(0);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = umount2(BOOT_ID, MntFlags::MNT_DETACH);
    }
}

/// Writes in place: a file with another inode would not be the mounted one.
fn write_boot_id(path: &Path, boots: usize) {
    let id = format!("b0070000-0000-4000-8000-{boots:012}\n");
    fs::write(path, id).expect("written");
}

/// Whether a loop device has this image; a file system in use keeps the device.
fn is_on_loop(image: &Path) -> bool {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let mut files =
        devices.filter_map(|one| fs::read_to_string(one.path().join("loop/backing_file")).ok());
    files.any(|file| Path::new(file.trim_end()) == image)
}
