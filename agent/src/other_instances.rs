//! Running containers without an agent beside this instance: those of an agent with another work directory.
//!
//! Agents share a runtime directory. Each has a folder in it, which it locks and into which it writes the name of its
//! work directory. This module changes nothing, and skips folders that it cannot inspect.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::directories::{INSTANCE_LOCK, INSTANCE_PORT, INSTANCE_PREFIX};

/// Folders inspected at most.
const INSTANCES_MAX: usize = 1_000;
/// Bytes read of the name of a work directory.
const NAME_BYTES_MAX: u64 = 4_096;

/// Tasks of other work directories that are reported: a task can have any number of processes.
const TASKS_MAX: usize = 16;
/// The largest part of a process's environment that is read.
const ENVIRONMENT_BYTES_MAX: u64 = 1 << 20;

/// Containers that another agent has left running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Abandoned {
    /// The other agent's folder in the runtime directory.
    pub(crate) folder: PathBuf,
    /// The other agent's work directory, if it wrote the name.
    pub(crate) work_dir: Option<String>,
    /// The number of its running containers.
    pub(crate) containers: usize,
}

impl Abandoned {
    pub(crate) fn what(&self) -> String {
        let work_dir = match &self.work_dir {
            Some(work_dir) => format!("{work_dir:?}"),
            None => format!("another directory ({})", self.folder.display()),
        };
        format!(
            "containers of an agent with --work_dir={work_dir} still run, and no agent manages \
             them ({})",
            self.containers
        )
    }

    /// The port that it listened on, if it wrote it.
    pub(crate) fn port(&self) -> Option<u16> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(self.folder.join(INSTANCE_PORT), flags, Mode::empty()).ok()?;
        let mut text = String::new();
        let mut noted = std::fs::File::from(file).take(NAME_BYTES_MAX);
        noted.read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }

    pub(crate) fn cure(&self) -> &'static str {
        "start an agent with that --work_dir, and with --recover=cleanup to end them"
    }
}

/// The containers that other agents than this instance have left in a runtime directory.
pub(crate) fn abandoned(runtime_dir: &Path, own: &str) -> Vec<Abandoned> {
    let entries = std::fs::read_dir(runtime_dir).into_iter().flatten();
    let names = entries.flatten().map(|entry| entry.file_name());
    let names = names.filter(|name| {
        let name = name.to_str().unwrap_or_default();
        name.starts_with(INSTANCE_PREFIX) && name != own
    });
    let folders = names.take(INSTANCES_MAX).map(|name| runtime_dir.join(name));
    folders.filter_map(left_in).collect()
}

fn left_in(folder: PathBuf) -> Option<Abandoned> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = match rustix::fs::open(folder.join(INSTANCE_LOCK), flags, Mode::empty()) {
        Ok(lock) => Some(lock),
        // Nobody can hold a missing lock.
        Err(Errno::NOENT) => None,
        Err(_) => return None,
    };
    if let Some(lock) = &lock {
        // Released at once: an agent that starts meanwhile waits for the lock.
        rustix::fs::flock(lock, FlockOperation::NonBlockingLockShared).ok()?;
    }
    let containers = meseta_isolators::living_containers(&folder);
    let mut name = Vec::new();
    if let Some(lock) = lock {
        let mut named = std::fs::File::from(lock).take(NAME_BYTES_MAX);
        named.read_to_end(&mut name).ok()?;
    }
    let name = String::from_utf8_lossy(&name).into_owned();
    (containers > 0).then(|| Abandoned {
        folder,
        work_dir: Some(name).filter(|name| !name.is_empty()),
        containers,
    })
}

/// Returns work directories of other agents with the same endpoint in this network whose tasks run, each with the pid of a
/// task. A task chooses its environment itself, so this justifies a warning only.
pub(crate) fn tasks_at(proc: &Path, endpoint: &str, own_work_dir: &Path) -> BTreeMap<PathBuf, i32> {
    let network = |process: &str| std::fs::read_link(proc.join(process).join("ns/net"));
    let Ok(own_network) = network("self") else {
        return BTreeMap::new();
    };
    let entries = std::fs::read_dir(proc).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let found = names.filter_map(|name| {
        let pid: i32 = name.parse().ok()?;
        let file = std::fs::File::open(proc.join(&name).join("environ")).ok()?;
        let mut environment = Vec::new();
        let mut limited = file.take(ENVIRONMENT_BYTES_MAX);
        limited.read_to_end(&mut environment).ok()?;
        let work_dir = work_dir_of_task(&environment, endpoint)?;
        let is_own = is_same(&work_dir, own_work_dir) || network(&name).ok()? != own_network;
        (!is_own).then_some((work_dir, pid))
    });
    found.take(TASKS_MAX).collect()
}

/// Returns the work directory of the agent that launched the process with this environment, if it has this endpoint.
fn work_dir_of_task(environment: &[u8], endpoint: &str) -> Option<PathBuf> {
    let variable = |name: &str| {
        let mut all = environment.split(|byte| *byte == 0);
        all.find_map(|one| one.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    };
    if variable("MESOS_AGENT_ENDPOINT")? != endpoint.as_bytes() {
        return None;
    }
    let sandbox = Path::new(std::ffi::OsStr::from_bytes(variable("MESOS_DIRECTORY")?));
    let mut above = sandbox.ancestors();
    let sandboxes = above.find(|folder| folder.ends_with("slaves"))?;
    sandboxes.parent().map(Path::to_owned)
}

fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    one == other || real(one) == real(other)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use meseta_isolators::{BootId, ProcessIdentity};
    use meseta_tests::wait::eventually;

    use super::*;
    use crate::directories::RuntimeFolder;

    /// Generous, for a busy machine.
    const VISIBLE_WITHIN: Duration = Duration::from_secs(60);

    fn us() -> ProcessIdentity {
        let pid = i32::try_from(std::process::id()).expect("a pid");
        ProcessIdentity {
            pid,
            start_ticks: meseta_tests::kernel::start_time(pid).expect("we run"),
            boot_id: BootId::current().expect("a boot"),
        }
    }

    /// Without root the runtime directory is in the work directory: an agent with another work directory saw no old task.
    #[test]
    fn foreign_tasks_at_endpoint_are_found() {
        let dir = tempfile::tempdir().expect("a folder");
        let [own, other] = ["own", "other"].map(|name| dir.path().join(name));
        // No other test has this address.
        let endpoint = format!("192.0.2.1:{}", std::process::id() % 60_000);
        let started = |work_dir: &Path, endpoint: &str| {
            let sandbox = work_dir.join("slaves/S0/frameworks/F/executors/e/runs/c");
            let mut command = std::process::Command::new("sleep");
            command.arg("600").env("MESOS_AGENT_ENDPOINT", endpoint);
            let child = command.env("MESOS_DIRECTORY", sandbox).spawn();
            child.expect("started")
        };
        let mut children = [
            started(&own, &endpoint),
            started(&other, "192.0.2.1:1"),
            started(&other, &endpoint),
        ];
        let pid = i32::try_from(children[2].id()).expect("a pid");
        // The kernel shows the environment of a new program a moment after the start of the program.
        for child in &children {
            let environment = format!("/proc/{}/environ", child.id());
            eventually("the environment is visible", VISIBLE_WITHIN, || {
                let bytes = std::fs::read(&environment).expect("readable");
                (!bytes.is_empty()).then_some(())
            });
        }
        let found = tasks_at(Path::new("/proc"), &endpoint, &own);
        for child in &mut children {
            child.kill().and_then(|()| child.wait()).expect("ended");
        }
        assert_eq!(found, BTreeMap::from([(other, pid)]));
        assert_eq!(work_dir_of_task(b"MESOS_AGENT_ENDPOINT=a:1", "a:1"), None);
    }

    /// Regression: after a corrected configuration or a moved disk, the earlier tasks were reported lost, and continued
    /// without a warning.
    #[test]
    fn containers_of_stopped_agents_are_reported() {
        let dir = tempfile::tempdir().expect("a folder");
        let note = |instance: &str, container: &str, supervisor: &ProcessIdentity| {
            let folder = dir.path().join(instance).join("containers").join(container);
            std::fs::create_dir_all(&folder).expect("made");
            std::fs::write(folder.join("supervisor"), supervisor.to_text()).expect("written");
        };
        let gone = ProcessIdentity {
            start_ticks: 1,
            ..us()
        };
        let path = dir.path().join("agent-1");
        let held = RuntimeFolder::take(path.clone(), Path::new("/old/work")).expect("taken");
        for (instance, container, supervisor) in [
            ("agent-1", "runs", us()),
            ("agent-1", "runs+inner", us()),
            ("agent-1", "ended", gone.clone()),
            ("agent-2", "ended", gone),
            ("agent-own", "runs", us()),
            ("agent-3", "runs", us()),
        ] {
            note(instance, container, &supervisor);
        }
        let found = || {
            let mut found = abandoned(dir.path(), "agent-own");
            found.sort_by(|one, other| one.folder.cmp(&other.folder));
            found
        };
        // A folder of a version that wrote no work directory.
        let unnamed = Abandoned {
            folder: dir.path().join("agent-3"),
            work_dir: None,
            containers: 1,
        };
        assert_eq!(found(), std::slice::from_ref(&unnamed));
        drop(held);
        let left = Abandoned {
            folder: path,
            work_dir: Some("/old/work".to_owned()),
            containers: 1,
        };
        assert_eq!(found(), [left.clone(), unnamed]);
        assert!(left.what().contains("\"/old/work\""), "{}", left.what());
        assert_eq!(abandoned(&dir.path().join("nowhere"), "agent-own"), []);
        assert_eq!(left.port(), None);
        let mut again =
            RuntimeFolder::take(left.folder.clone(), Path::new("/old/work")).expect("taken");
        again.note_port(5051);
        assert_eq!(left.port(), Some(5051));
        std::fs::remove_file(left.folder.join(INSTANCE_LOCK)).expect("removed");
        std::fs::remove_file(left.folder.join(INSTANCE_PORT)).expect("removed");
        assert!(again.restore().expect("made"));
        assert_eq!(left.port(), Some(5051), "noted again");
        std::fs::write(left.folder.join(INSTANCE_PORT), "what").expect("written");
        assert_eq!(left.port(), None);
    }
}
