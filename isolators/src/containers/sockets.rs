//! The owner of a socket on this machine: the container of the process that opened it.
//!
//! The kernel remembers the cgroup of version 2 in which a socket was opened, even after another process takes it over; this
//! module compares the group with the container's folder. Without a tree of version 2 or an answer of the kernel, a process
//! of the container must hold the socket. Invariant: a process that cannot be shown to be inside a container counts as
//! outside.

use std::collections::HashMap;
use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Containers;
use crate::cgroup::{Groups, SUPERVISORS, list_pids, subgroups};
use crate::identity::{ContainerName, ProcessIdentity};
use crate::{process_tree, sys};

/// The maximum number of descriptors to check in a process; a process with more does not count as a holder of the socket.
const DESCRIPTORS_MAX: usize = 65_536;

/// A socket, from the kernel's socket diagnostics.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Socket {
    pub inode: u32,
    /// The cgroup of version 2 in which the socket was opened.
    pub cgroup: Option<u64>,
}

/// The maximum number of remembered groups: of tasks, and of operators' sessions.
const KNOWN_GROUPS_MAX: usize = 1024;

/// Groups of the version 2 tree by their numbers, for a process that may not ask the kernel for the path of a group
/// (CAP_DAC_READ_SEARCH): otherwise each new connection would cost a walk through all groups of the machine. The kernel never
/// reuses a number, and a remembered path counts only while its folder has the number.
#[derive(Debug, Default)]
pub(super) struct KnownGroups(Mutex<HashMap<u64, PathBuf>>);

impl KnownGroups {
    /// The path of the group with this number; `None` if the group is gone.
    fn find(&self, mount: &Path, number: u64) -> Option<PathBuf> {
        match sys::cgroup_path(mount, number) {
            Ok(found) => found,
            // The kernel is too old to find a group by its number, or does not permit it.
            Err(_) => self.find_by_walking(mount, number),
        }
    }

    fn find_by_walking(&self, mount: &Path, number: u64) -> Option<PathBuf> {
        let has_number = |path: &Path| fs::metadata(path).is_ok_and(|found| found.ino() == number);
        let known = self.groups().get(&number).cloned();
        if let Some(path) = known.filter(|path| has_number(path)) {
            return Some(path);
        }
        let found = if has_number(mount) {
            Some(mount.to_owned())
        } else {
            group_below(mount, number)
        };
        let mut groups = self.groups();
        match &found {
            Some(path) => {
                if groups.len() >= KNOWN_GROUPS_MAX {
                    // The choice does not matter: repeated lookups find their groups again.
                    groups.clear();
                }
                groups.insert(number, path.clone());
            }
            None => drop(groups.remove(&number)),
        }
        found
    }

    fn groups(&self) -> MutexGuard<'_, HashMap<u64, PathBuf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Containers {
    /// Whether a socket was opened inside this very container, not in a nested one. `supervisor` is used on a machine without
    /// cgroups.
    pub fn opened(
        &self,
        name: &ContainerName,
        supervisor: Option<&ProcessIdentity>,
        socket: Socket,
    ) -> bool {
        let candidate = (name.clone(), supervisor.cloned());
        self.find_opened(std::iter::once(candidate), socket)
            .is_some()
    }

    /// The container among these that opened a socket. Where the kernel knows the group, it gets one request, however many
    /// containers there are.
    pub fn find_opened(
        &self,
        candidates: impl IntoIterator<Item = (ContainerName, Option<ProcessIdentity>)>,
        socket: Socket,
    ) -> Option<ContainerName> {
        let mut candidates = candidates.into_iter();
        let found = match (socket.cgroup, self.layout.unified_mount()) {
            (Some(cgroup), Some(mount)) => {
                let group = self.known_groups.find(mount, cgroup)?;
                candidates.find(|(name, _)| self.groups(name).leaf().as_ref() == Some(&group))
            }
            _ => candidates.find(|(name, supervisor)| {
                let groups = self.groups(name);
                is_held(socket, || members(&groups, supervisor.as_ref()))
            }),
        };
        found.map(|(name, _)| name)
    }

    /// Whether a socket may have been opened inside a container below the cgroups root, of this agent or another. True if the
    /// group is gone: a task can pass a socket to another before it ends. Where the kernel does not know the group, true if no
    /// process outside all containers is seen to hold the socket: a thread whose process has ended holds it unseen.
    pub fn opened_by_any(&self, socket: Socket) -> bool {
        let unified = self.layout.unified_root().zip(self.layout.unified_mount());
        if let (Some(cgroup), Some((root, mount))) = (socket.cgroup, unified) {
            return is_in_container(&root, self.known_groups.find(mount, cgroup).as_deref());
        }
        let roots = self.layout.root_dirs();
        let Some(root) = roots.first() else {
            return false;
        };
        let is_inside = |pid| {
            any_below(root, &|dir, _| {
                list_pids(dir).is_ok_and(|pids| pids.contains(&pid))
            })
        };
        !is_held_outside(Path::new("/proc"), socket, &is_inside)
    }
}

/// Whether a group of the version 2 tree belongs to a container, or is gone.
fn is_in_container(root: &Path, group: Option<&Path>) -> bool {
    let Some(path) = group else {
        return true;
    };
    path.strip_prefix(root).is_ok_and(|below| {
        let mut names = below.iter();
        below.iter().next().is_some() && names.all(|name| name != SUPERVISORS)
    })
}

/// Whether `found` is true for a folder of containers below `dir`; its arguments are the folder and its inode.
fn any_below(dir: &Path, found: &dyn Fn(&Path, u64) -> bool) -> bool {
    let mut folders = subgroups(dir).filter(|entry| entry.file_name() != SUPERVISORS);
    folders.any(|entry| {
        let path = entry.path();
        found(&path, entry.ino()) || any_below(&path, found)
    })
}

/// The group of this number below a folder, those of supervisors included.
fn group_below(dir: &Path, number: u64) -> Option<PathBuf> {
    subgroups(dir).find_map(|entry| match entry.ino() == number {
        true => Some(entry.path()),
        false => group_below(&entry.path(), number),
    })
}

/// Whether processes hold the socket, and all of these are outside containers.
fn is_held_outside(proc: &Path, socket: Socket, is_inside: &dyn Fn(i32) -> bool) -> bool {
    let processes = fs::read_dir(proc).into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut is_held = false;
    for pid in pids {
        let Some(holder) = Holder::find(proc, pid, socket) else {
            continue;
        };
        // A process that has ended in the meantime is on no list of a container, and does not count.
        if is_inside(pid) || !holder.lives() {
            return false;
        }
        is_held = true;
    }
    is_held
}

/// The processes of a container itself.
fn members(groups: &Groups, supervisor: Option<&ProcessIdentity>) -> Vec<i32> {
    if let Some(dir) = groups.process_dirs().first() {
        return list_pids(dir).unwrap_or_default();
    }
    let alive = supervisor.filter(|supervisor| supervisor.is_known_to_live());
    alive.map_or_else(Vec::new, |supervisor| {
        process_tree::descendants_of(Path::new("/proc"), supervisor.pid)
    })
}

/// Whether one of these processes holds the socket, and is still a member afterwards: its number may have gone to another
/// process in the meantime.
fn is_held(socket: Socket, members: impl Fn() -> Vec<i32>) -> bool {
    members().into_iter().any(|pid| {
        let holder = Holder::find(Path::new("/proc"), pid, socket);
        holder.is_some_and(|holder| members().contains(&pid) && holder.lives())
    })
}

/// A process that holds a socket. Its open procfs folder stays bound to this very process.
struct Holder(fs::File);

impl Holder {
    fn find(proc: &Path, pid: i32, socket: Socket) -> Option<Self> {
        let link = PathBuf::from(format!("socket:[{}]", socket.inode));
        let process = Self(fs::File::open(proc.join(pid.to_string())).ok()?);
        let tables = process_tree::file_tables_of(&process.path("")).into_iter();
        let descriptors = tables.flat_map(|table| fs::read_dir(table.join("fd")));
        let mut targets = descriptors
            .flat_map(|entries| entries.flatten())
            .take(DESCRIPTORS_MAX)
            .filter_map(|entry| fs::read_link(entry.path()).ok());
        targets.any(|target| target == link).then_some(process)
    }

    fn lives(&self) -> bool {
        fs::read(self.path("stat")).is_ok()
    }

    fn path(&self, file: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{file}", self.0.as_raw_fd()).into()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn inode_of(stream: &TcpStream) -> u32 {
        let link = fs::read_link(format!("/proc/self/fd/{}", stream.as_raw_fd())).expect("a link");
        let text = link.to_str().expect("text").to_owned();
        let number = text
            .strip_prefix("socket:[")
            .and_then(|rest| rest.strip_suffix(']'));
        number.expect("a socket").parse().expect("a number")
    }

    #[test]
    fn socket_lookup_finds_only_live_holder() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("an address")).expect("one");
        let socket = Socket {
            inode: inode_of(&stream),
            cgroup: None,
        };
        let own = i32::try_from(std::process::id()).expect("a pid");
        assert!(is_held(socket, || vec![own]));
        let asked = std::cell::Cell::new(0);
        let leaves = || {
            asked.set(asked.get() + 1);
            if asked.get() == 1 { vec![own] } else { vec![] }
        };
        assert!(!is_held(socket, leaves), "it left while it was looked at");
        assert!(!is_held(socket, || vec![1_999_999_999]));
        drop(stream);
        assert!(!is_held(socket, || vec![own]));
    }

    #[test]
    fn socket_is_outside_only_with_holder() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("an address")).expect("one");
        let socket = Socket {
            inode: inode_of(&stream),
            cgroup: None,
        };
        let own = i32::try_from(std::process::id()).expect("a pid");
        let is_held = |is_inside: &dyn Fn(i32) -> bool| {
            is_held_outside(Path::new("/proc"), socket, is_inside)
        };
        assert!(is_held(&|_| false));
        assert!(!is_held(&|pid| pid == own), "inside");
        drop(stream);
        // Another test's child holds all open descriptors between its clone and its exec.
        let began = std::time::Instant::now();
        while is_held(&|_| false) {
            assert!(began.elapsed().as_secs() < 30, "nobody holds it");
        }
    }

    #[test]
    fn cgroup_path_is_found_by_inode() {
        // The machine's own version 2 tree, if mounted.
        let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let mut mounts = mounts.into_iter();
        let Some(mount) = mounts.find(|mount| {
            mount.join("cgroup.procs").exists() && mount.join("cgroup.controllers").exists()
        }) else {
            return;
        };
        let number = fs::metadata(mount).expect("there").ino();
        let Ok(found) = sys::cgroup_path(mount, number) else {
            // Needs CAP_DAC_READ_SEARCH.
            return;
        };
        assert_eq!(found.as_deref(), Some(mount));
        assert_eq!(sys::cgroup_path(mount, u64::MAX >> 1).ok(), Some(None));
        let groups = KnownGroups::default();
        for find in [KnownGroups::find, KnownGroups::find_by_walking] {
            let found = find(&groups, mount, number);
            assert_eq!(found.as_deref(), Some(mount));
            assert!(!is_in_container(&mount.join("none"), found.as_deref()));
            let gone = find(&groups, mount, u64::MAX >> 1);
            assert!(
                is_in_container(&mount.join("none"), gone.as_deref()),
                "gone"
            );
        }
    }

    #[test]
    fn folder_search_skips_supervisor_groups() {
        let root = tempfile::tempdir().expect("a directory");
        let inode = |path: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(&path).expect("made");
            fs::metadata(path).expect("there").ino()
        };
        let inside = inode("instance/c1/+inner/leaf");
        let supervisors = inode("instance/.supervisors");
        assert!(any_below(root.path(), &|_, found| found == inside));
        assert!(!any_below(root.path(), &|_, found| found == supervisors));
        assert!(!any_below(Path::new("/nonexistent"), &|_, _| true));
        let groups = KnownGroups::default();
        let find = |number| groups.find_by_walking(root.path(), number);
        let top = fs::metadata(root.path()).expect("there").ino();
        for there in [top, inside, supervisors] {
            assert!(find(there).is_some());
        }
        let leaf = root.path().join("instance/c1/+inner/leaf");
        assert_eq!(find(inside).as_deref(), Some(&*leaf));
        assert!(is_in_container(root.path(), Some(&leaf)));
        let kept = root.path().join("instance/.supervisors");
        assert_eq!(find(supervisors).as_deref(), Some(&*kept));
        assert!(!is_in_container(root.path(), Some(&kept)));
        assert!(!is_in_container(root.path(), Some(root.path())));
        let moved = root.path().join("moved");
        fs::rename(root.path().join("instance"), &moved).expect("moved");
        assert_eq!(
            find(inside),
            Some(moved.join("c1/+inner/leaf")),
            "not where it was"
        );
        fs::remove_dir(moved.join("c1/+inner/leaf")).expect("removed");
        assert_eq!(find(inside), None, "it is gone");
        assert!(groups.groups().get(&inside).is_none());
    }
}
