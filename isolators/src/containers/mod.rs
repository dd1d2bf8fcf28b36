//! Public API of the crate: operations on containers, each a blocking call.
//!
//! [`Containers::open`] prepares this instance's groups and starts the launcher; `launch`, `update`, `usage`, `kill`,
//! `destroy` act on one container; `recover` and `sweep` are for the time after a restart. Every call may be made from any
//! thread, for different containers at once; the caller orders the calls for one container. Invariant: memory holds no state
//! that a restarted agent could not read back from the runtime folder and the kernel.

mod ended;
mod interference;
mod launching;
mod limits;
mod nested;
mod protection;
mod recovery;
mod revocable;
mod sampler;
mod sockets;
mod types;

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::time::{Duration, Instant};

use procfs::Current;

use crate::cgroup::{
    Controller, Destroy, DestroyOptions, Files, Groups, Host, Layout, Progress, list_pids,
    read_text,
};
use crate::demand::{Demand, Limit};
use crate::identity::{ContainerName, ProcessIdentity};
use crate::isolator::{Isolator, IsolatorOptions, NodeOptions, Observed};
use crate::launcher::{Launcher, LauncherOptions};
use crate::limit_event::LimitEvent;
use crate::shortage::again;
use crate::status::{self, ExitRecord, StatusError};
use crate::sys::{KillPayload, send_kill_request};

pub use interference::{Interference, Outside};
pub use limits::Shrink;
use limits::bytes_text;
use protection::Protection;
pub use recovery::living_containers;
pub use sampler::{SLOW_EVERY, Sampler};
use sockets::KnownGroups;
pub use sockets::Socket;
pub use types::{
    ContainerError, DestroyError, KillOutcome, KillRequest, Limitation, OpenError, Options,
    Recovered,
};

/// Folder of the containers in the runtime directory.
const CONTAINERS_DIR: &str = "containers";

/// Folder of the pipes of sessions in the runtime directory.
const SESSIONS_DIR: &str = "sessions";

/// Only the agent's user may read the saved state of running containers.
const FOLDER_MODE: u32 = 0o700;

/// Highest signal that a kill request may begin with: the classic ones.
const SIGNAL_MAX: u8 = 31;

/// Attempts to remove a group whose processes have gone, a millisecond apart.
const REMOVE_ATTEMPTS: u32 = 200;

#[derive(Debug)]
pub struct Containers {
    host: Host,
    runtime_dir: PathBuf,
    layout: Layout,
    isolators: Vec<Box<dyn Isolator>>,
    protection: Protection,
    launcher: Launcher,
    /// The lock on the notes of ended nested containers: exclusive to change them, shared to sum them up.
    ended: RwLock<()>,
    /// The known paths of groups in which sockets were opened.
    known_groups: KnownGroups,
}

impl Containers {
    /// Prepares the instance and starts its launcher.
    pub fn open(host: Host, options: Options) -> Result<Self, OpenError> {
        let opened = Self::open_with(host, options, &NodeOptions::default(), Vec::new())?;
        opened.ready()?;
        Ok(opened)
    }

    /// Opens like [`Containers::open`], with the settings of further isolators and with custom isolators of the caller, which
    /// come after those of [`Options::isolation`]. The launcher may still be starting: a launch waits for it, and
    /// [`Containers::ready`] reports its result.
    pub fn open_with(
        host: Host,
        options: Options,
        node: &NodeOptions,
        custom: Vec<Box<dyn Isolator>>,
    ) -> Result<Self, OpenError> {
        let isolation = options.isolation.resolved(&host);
        for asked in [&options.isolation, &isolation] {
            asked.check(&host).map_err(OpenError::Isolation)?;
        }
        let settings = IsolatorOptions {
            enable_cfs: options.enable_cfs,
            revocable_cpu_low_priority: options.revocable_cpu_low_priority,
            limit_swap: options.limit_swap,
            pids_limit: options.pids_limit,
            total_memory_bytes: procfs::Meminfo::current()
                .ok()
                .map(|memory| memory.mem_total),
        };
        let mut isolators = isolation.isolators(settings, node, &host.trees());
        isolators.extend(custom);
        let grouped = isolators.iter().any(|one| !one.controllers().is_empty());
        let layout = if isolation.needs_groups() || grouped {
            let mut needed: Vec<Controller> = isolators
                .iter()
                .flat_map(|one| one.controllers())
                .copied()
                .collect();
            needed.sort_unstable();
            needed.dedup();
            Layout::new(&host, &options.cgroups_root, &options.instance, &needed)
                .map_err(OpenError::Layout)?
        } else {
            Layout::none()
        };
        make_containers_dir(&options.runtime_dir)?;
        layout.create_instance().map_err(OpenError::Groups)?;
        revocable::prepare(&layout, settings.revocable_cpu_low_priority)
            .map_err(OpenError::Groups)?;
        let launcher = Launcher::start(LauncherOptions {
            runtime_dir: options.runtime_dir.clone(),
            launch_timeout: options.launch_timeout,
            supervisor_tasks: layout.supervisor_tasks(),
            supervisor_group: layout.supervisor_group(),
        });
        let runtime_dir = options.runtime_dir;
        // No session outlives its agent. A leftover blocks only a session of the same name.
        let _ = again(|| fs::remove_dir_all(runtime_dir.join(SESSIONS_DIR)));
        let protection = Protection::from_layout(&layout);
        match launcher {
            Ok(launcher) => Ok(Self {
                host,
                runtime_dir,
                layout,
                isolators,
                protection,
                launcher,
                ended: RwLock::default(),
                known_groups: KnownGroups::default(),
            }),
            Err(error) => {
                remove_instance(&layout);
                Err(OpenError::Launcher(error))
            }
        }
    }

    /// Waits until containers can be launched.
    pub fn ready(&self) -> Result<(), OpenError> {
        self.launcher.ready().map_err(OpenError::Launcher)
    }

    /// Whether the parent folder of all container folders exists: others may remove it beside the running agent.
    pub fn has_runtime_dir(&self) -> bool {
        self.runtime_dir.join(CONTAINERS_DIR).is_dir()
    }

    /// Restores the contents of a new runtime folder for launches. The agent also replaces the launcher: its lock, on which a
    /// later agent waits, must be in the new folder.
    pub fn restore_runtime_dir(&self) -> Result<(), OpenError> {
        make_containers_dir(&self.runtime_dir)?;
        self.launcher.stop();
        Ok(())
    }

    /// The launcher process, while there is one.
    pub fn launcher_pid(&self) -> Option<u32> {
        self.launcher.pid()
    }

    /// The container's groups, whether or not they exist. The kernel knows the place of a running container.
    pub fn groups(&self, name: &ContainerName) -> Groups {
        if let Some((outer, inner)) = name.nesting() {
            return self.groups(&outer).nested(inner);
        }
        let revocable = self.layout.revocable_container(name);
        if revocable.exist() {
            revocable
        } else {
            self.layout.container(name)
        }
    }

    /// The container's folder in the runtime directory.
    pub fn runtime_dir(&self, name: &ContainerName) -> PathBuf {
        self.runtime_dir.join(CONTAINERS_DIR).join(name.as_str())
    }

    pub fn update(&self, name: &ContainerName, demand: &Demand) -> Result<(), ContainerError> {
        self.update_without(name, demand, &[])
    }

    /// Updates the limits without these files, which [`Containers::verify`] found missing: their group was removed, or the
    /// container began under other isolators. All other files are set.
    pub fn update_without(
        &self,
        name: &ContainerName,
        demand: &Demand,
        missing: &[&str],
    ) -> Result<(), ContainerError> {
        let groups = self.groups(name);
        if groups.dirs.is_empty() {
            // Nothing is enforced here, so there is no limit to change.
            return Ok(());
        }
        if !groups.exist() {
            // All groups were removed from outside, and the caller knows it.
            return match missing.is_empty() {
                true => Err(ContainerError::Unknown(name.clone())),
                false => Ok(()),
            };
        }
        let mut observed = Observed {
            cpu_ceiling_us: revocable::ceiling(&groups),
            ..Observed::default()
        };
        for isolator in self.limiting(name) {
            isolator.observe(&groups, &mut observed);
        }
        for isolator in self.limiting(name) {
            let mut plan = isolator.plan(demand, &groups, &observed);
            plan.retain(|write| !missing.contains(&write.file));
            isolator
                .apply(&groups, &plan)
                .map_err(|source| ContainerError::Knob {
                    name: name.clone(),
                    source,
                })?;
        }
        self.protection.note(name, &groups);
        Ok(())
    }

    /// The isolators that hold this container's limits.
    fn limiting(&self, name: &ContainerName) -> impl Iterator<Item = &dyn Isolator> {
        let is_nested = name.nesting().is_some();
        let isolators = self.isolators.iter().map(AsRef::as_ref);
        isolators.filter(move |isolator| !is_nested || limits_nested(*isolator))
    }

    /// Requests the supervisor to end the container. Works for supervisors of earlier agents too.
    pub fn kill(
        &self,
        supervisor: &ProcessIdentity,
        request: KillRequest,
    ) -> io::Result<KillOutcome> {
        let signal = u8::try_from(request.signal)
            .ok()
            .filter(|signal| (1..=SIGNAL_MAX).contains(signal))
            .ok_or(io::ErrorKind::InvalidInput)?;
        let Some(pidfd) = supervisor.open()? else {
            return Ok(KillOutcome::AlreadyGone);
        };
        match send_kill_request(
            pidfd.as_fd(),
            KillPayload {
                signal,
                grace: request.grace,
            },
        ) {
            Ok(()) => Ok(KillOutcome::Delivered),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(KillOutcome::AlreadyGone),
            Err(error) => Err(error),
        }
    }

    /// A pidfd that becomes readable at the end of the supervisor; `None` if it has already ended.
    pub fn watch(&self, supervisor: &ProcessIdentity) -> io::Result<Option<OwnedFd>> {
        supervisor.open()
    }

    /// The exit record; `None` if there is no record. Call this after the supervisor has ended: `None` then means that the exit
    /// status is lost, which is a failure.
    pub fn exit_record(&self, name: &ContainerName) -> Result<Option<ExitRecord>, StatusError> {
        status::read_record(&self.runtime_dir(name))
    }

    /// Returns events that signal a possible limit in a running container, for example an out-of-memory kill of a child. The
    /// caller then reads [`Containers::limitation`]. Empty where nothing can be watched; must be armed again after a restart.
    pub fn watch_limits(&self, name: &ContainerName) -> io::Result<Vec<LimitEvent>> {
        let groups = self.groups(name);
        let watched = self
            .isolators
            .iter()
            .map(|isolator| isolator.watch(&groups));
        watched.filter_map(io::Result::transpose).collect()
    }

    /// Whether the container ran into a limit, from the kernel's own counters; call this before destroy. Takes the limit from the
    /// demand where the kernel no longer shows it. An error means that the agent was short of resources or that a device failed
    /// six times: the limitation of the container is unknown.
    pub fn limitation(
        &self,
        name: &ContainerName,
        demand: &Demand,
    ) -> io::Result<Option<Limitation>> {
        // A nested container shares the limit and the kills of its outer container, unless it has a limit of its own.
        let limited = &self.limited_with(name)?;
        let kills = match limited == name {
            true => self.oom_kills(name)?,
            false => self.oom_kills_of_nested(name, limited)?,
        };
        let groups = self.groups(limited);
        let (Some(memory), Some(oom_kills)) = (
            groups.get(Controller::Memory),
            kills.filter(|kills| *kills > 0),
        ) else {
            return Ok(None);
        };
        if self.is_partial_oom(limited)? {
            return Ok(None);
        }
        // Does not read all other nested containers: at the end of each of them that would be one read for each pair.
        let files = Files::passing();
        let usage = self.group_usage(limited, &self.source(&groups, None, &files));
        let usage = usage.map(|usage| usage.memory).unwrap_or_default();
        let demanded = match demand.mem_limit {
            Some(Limit::At(bytes)) => Some(bytes),
            Some(Limit::Unlimited) => None,
            None => demand.mem_bytes,
        };
        let limit_bytes = usage.limit_bytes.or(demanded);
        let statistics = read_text(&memory.dir, "memory.stat").unwrap_or_default();
        Ok(Some(Limitation::Memory {
            oom_kills,
            limit_bytes,
            max_usage_bytes: usage.max_usage_bytes,
            message: format!(
                "Memory limit exceeded: Requested: {} Maximum Used: {}\n\nMEMORY STATISTICS: \n{}",
                bytes_text(limit_bytes),
                bytes_text(usage.max_usage_bytes),
                statistics.trim_end()
            ),
        }))
    }

    /// Kills all remaining processes of the container and removes its groups; blocks up to the deadlines. Idempotent, and `Ok`
    /// for a container that never existed.
    pub fn destroy(
        &self,
        name: &ContainerName,
        supervisor: Option<&ProcessIdentity>,
        options: DestroyOptions,
    ) -> Result<(), DestroyError> {
        let groups = self.groups(name);
        let mut destroy = Destroy::new(groups.clone(), supervisor.cloned(), options);
        let began = Instant::now();
        loop {
            match destroy.step(began.elapsed()) {
                Progress::Done => break,
                Progress::Stuck(left) => {
                    return Err(DestroyError::Left {
                        name: name.clone(),
                        left,
                    });
                }
                Progress::Wait(pause) => std::thread::sleep(pause),
                Progress::Emptied => self.note_ending(name, &groups),
            }
        }
        self.note_gone(name);
        for isolator in self.isolators.iter().rev() {
            isolator.cleanup(&groups);
        }
        self.protection.forget(name);
        Ok(())
    }

    /// Removes the container's folder in the runtime directory, exit record included. Repeats the removal on a failing device.
    pub fn forget(&self, name: &ContainerName) -> io::Result<()> {
        let folder = self.runtime_dir(name);
        match again(|| fs::remove_dir_all(&folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Ends the launcher and removes the instance's empty groups and its runtime folder. Running containers continue, as after a
    /// crash of the agent. Dropping does the same.
    pub fn close(self) {
        drop(self);
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        self.launcher.stop();
        remove_instance(&self.layout);
        remove_runtime(&self.runtime_dir);
    }
}

fn make_containers_dir(runtime_dir: &Path) -> Result<(), OpenError> {
    let folder = runtime_dir.join(CONTAINERS_DIR);
    std::os::unix::fs::DirBuilderExt::mode(&mut fs::DirBuilder::new(), FOLDER_MODE)
        .recursive(true)
        .create(&folder)
        .map_err(|source| OpenError::RuntimeDir {
            path: folder,
            source,
        })
}

/// Whether the isolator limits nested containers separately: only processor and memory do.
fn limits_nested(isolator: &dyn Isolator) -> bool {
    let controllers = isolator.controllers().iter();
    let mut limiting =
        controllers.filter(|one| matches!(one, Controller::Cpu | Controller::Memory));
    limiting.next().is_some()
}

/// Removes the runtime folder when it holds no container's state, and our own folder above it.
fn remove_runtime(dir: &Path) {
    // Fails on a folder in use, as intended.
    if fs::remove_dir(dir.join(CONTAINERS_DIR)).is_ok() {
        let _ = fs::remove_file(dir.join("launcher.log"));
        let _ = fs::remove_file(dir.join("launcher.lock"));
        let _ = fs::remove_dir(dir.join(SESSIONS_DIR));
        let _ = fs::remove_dir(dir);
    }
}

/// Removes the instance's own folders, deepest first; those in use stay, which is no error.
fn remove_instance(layout: &Layout) {
    for dir in layout
        .supervisor_dirs()
        .iter()
        .chain(&layout.revocable_dirs())
    {
        remove_soon(dir);
    }
    for dir in layout.instance_dirs().iter().chain(&layout.root_dirs()) {
        // Not recursive: another agent may have a folder in the shared root.
        let _ = fs::remove_dir(dir);
    }
}

/// Removes a group whose last process has just been reaped and which may stay busy for a moment.
fn remove_soon(dir: &Path) {
    for _ in 0..REMOVE_ATTEMPTS {
        match fs::remove_dir(dir) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Ok(()) | Err(_) => return,
        }
        if list_pids(dir).is_ok_and(|pids| !pids.is_empty()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_use_mesos_format() {
        for (bytes, text) in [
            (0, "0B"),
            (64 << 20, "64MB"),
            (1536, "1536B"),
            (3 << 10, "3KB"),
            (1 << 40, "1TB"),
        ] {
            assert_eq!(bytes_text(Some(bytes)), text);
        }
        assert_eq!(bytes_text(None), "unknown");
    }
}
