//! The place of tasks on a machine with systemd and cgroup v2: a transient scope with delegation.
//!
//! systemd owns the tree and hands subtrees out. A service whose own group had enabled controllers and living children could
//! not be started again (219/CGROUP). Containers are therefore not below the agent's service but in `<root>-tasks.scope` of
//! `<root>.slice`. The agent requests this scope over D-Bus through busctl(1), a part of systemd. A process in a leaf of its
//! own keeps the scope when no task runs. Scope and process outlive the agent, and the agent requests a stopped scope again
//! ([`restore`]). Invariant: an existing scope is used unchanged, and only systemd makes a folder in its place.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::destroy::remove_tree;
use super::host::{Host, Mode, available_controllers};
use super::knob::list_pids;

/// systemd is the first process of this machine if this folder exists (sd_booted(3)).
const BOOTED: &str = "/run/systemd/system";
/// Leaf of the process that keeps the scope. No container's and no instance's name begins with a dot.
const PAUSE: &str = ".pause";
/// The longest wait for systemd, which moves the process in a few milliseconds; a booting machine is slower.
const SCOPE_TIMEOUT: Duration = Duration::from_secs(30);
const SCOPE_POLL: Duration = Duration::from_millis(5);

/// Errors of requesting the scope.
#[derive(Debug, thiserror::Error)]
pub enum ScopeError {
    #[error("failed to start `sleep infinity`, which keeps {scope}")]
    Pause {
        scope: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "systemd did not start {scope}: {reason} (--systemd_enable_support=false does without a \
         scope)"
    )]
    Refused {
        scope: String,
        /// The message of the failed program.
        reason: String,
    },
    /// systemd accepted the request and nothing happened.
    #[error("systemd did not create {path} within {SCOPE_TIMEOUT:?}")]
    Late { path: PathBuf },
    /// The folder of the process that keeps the scope.
    #[error("failed to keep {path}")]
    Leaf {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The slice and the scope for a cgroups root; `None` for a root that cannot be a unit's name: dashes would nest slices.
fn units(root: &Path) -> Option<(String, String)> {
    let name = root.to_str()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_name = !name.is_empty() && name.chars().all(plain);
    is_name.then(|| (format!("{name}.slice"), format!("{name}-tasks.scope")))
}

/// Ensures that there is a scope for tasks, and returns the cgroups root inside it, relative to the mount. `None` if the
/// machine does not run systemd with cgroup v2 alone, or if the root cannot be a unit's name. Controllers that the scope did
/// not get are removed from the host.
pub fn task_scope(host: &mut Host, root: &Path) -> Result<Option<PathBuf>, ScopeError> {
    let systemd = host.mode == Mode::Unified && host.privileged && Path::new(BOOTED).is_dir();
    let (Some((slice, scope)), true) = (units(root), systemd) else {
        return Ok(None);
    };
    let Some(unified) = &mut host.unified else {
        return Ok(None);
    };
    let relative = Path::new(&slice).join(&scope);
    let dir = unified.mount.join(&relative);
    if dir.is_dir() && !has_tasks(&dir) && !is_known(&scope) {
        // A folder of this name without a unit: `systemctl stop` would end nothing.
        let _ = remove(&dir);
    }
    if !is_kept(&dir) {
        make(&slice, &scope, &dir)?;
    }
    unified.controllers = available_controllers(&dir);
    Ok(Some(relative))
}

/// Restores the scope that [`task_scope`] returned as `root`, if it is gone because somebody stopped it.
pub(crate) fn restore(mount: &Path, root: &Path) -> Result<(), ScopeError> {
    let units = units_of(root).filter(|_| Path::new(BOOTED).is_dir());
    let Some((slice, scope)) = units else {
        return Ok(());
    };
    // Also if the folder exists: systemd makes it a moment before its process is in its leaf.
    make(&slice, &scope, &mount.join(root))
}

/// The slice and the scope with this folder.
fn units_of(root: &Path) -> Option<(String, String)> {
    let slice = root.parent()?.to_str()?;
    let (slice, scope) = units(Path::new(slice.strip_suffix(".slice")?))?;
    (Path::new(&slice).join(&scope) == root).then_some((slice, scope))
}

fn is_kept(scope: &Path) -> bool {
    scope.is_dir() && list_pids(&scope.join(PAUSE)).is_ok_and(|pids| !pids.is_empty())
}

/// Whether systemd has the unit; true unless systemd denies it.
fn is_known(scope: &str) -> bool {
    let asked = busctl(["GetUnit", "s", scope].map(str::to_owned));
    let Ok(output) = asked else {
        return true;
    };
    output.status.success() || !is_not_loaded(&String::from_utf8_lossy(&output.stderr))
}

/// Whether systemd's message means `org.freedesktop.systemd1.NoSuchUnit`.
fn is_not_loaded(said: &str) -> bool {
    said.contains(" not loaded")
}

/// Whether processes other than the keeper run in the scope; true if that cannot be read.
fn has_tasks(scope: &Path) -> bool {
    let keeper = scope.join(PAUSE);
    let Ok(folders) = folders_of(scope) else {
        return true;
    };
    let mut others = folders.iter().filter(|folder| **folder != keeper);
    others.any(|folder| !list_pids(folder).is_ok_and(|pids| pids.is_empty()))
}

/// Lists a folder and all folders below it.
fn folders_of(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut folders = vec![dir.to_owned()];
    let mut next = 0;
    while let Some(folder) = folders.get(next) {
        let entries: Vec<_> = fs::read_dir(folder)?.collect::<Result<_, _>>()?;
        let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        let within = entries.into_iter().filter(is_folder);
        folders.extend(within.map(|entry| entry.path()));
        next += 1;
    }
    Ok(folders)
}

/// Removes a folder in which only the keeper runs, with its subfolders.
fn remove(scope: &Path) -> io::Result<()> {
    let keeper = scope.join(PAUSE);
    for pid in list_pids(&keeper).unwrap_or_default() {
        let pid = nix::unistd::Pid::from_raw(pid);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
    }
    let began = Instant::now();
    while list_pids(&keeper).is_ok_and(|pids| !pids.is_empty()) && began.elapsed() < SCOPE_TIMEOUT {
        sleep(SCOPE_POLL);
    }
    remove_tree(scope).map_err(|(_, error)| error)
}

/// Serializes requests: only one of several launches that find the scope gone requests it.
static MAKING: Mutex<()> = Mutex::new(());

fn make(slice: &str, scope: &str, dir: &Path) -> Result<(), ScopeError> {
    let _one = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if is_kept(dir) {
        return Ok(());
    }
    let pid = start_pause(scope)?;
    let made = if dir.is_dir() {
        // The keeper was killed while tasks ran.
        Ok(())
    } else {
        ask(slice, scope, pid, busctl).and_then(|()| arrival(dir, pid))
    };
    let kept = made.and_then(|()| keep(dir, pid));
    if kept.is_err() {
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGKILL,
        );
        // Another agent may have made it at the same time.
        if is_kept(dir) {
            return Ok(());
        }
    }
    kept
}

/// Starts a process that does nothing, from a program that our upgrades do not replace.
fn start_pause(scope: &str) -> Result<i32, ScopeError> {
    use std::os::unix::process::CommandExt;
    let failed = |source| ScopeError::Pause {
        scope: scope.to_owned(),
        source,
    };
    let child = Command::new("sleep")
        .arg("infinity")
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    i32::try_from(child.id()).map_err(|_| failed(io::ErrorKind::InvalidData.into()))
}

/// Requests the scope from systemd by the method `StartTransientUnit` of org.freedesktop.systemd1(5). A failed scope that an
/// older version made without `CollectMode` keeps its name until it is reset.
fn ask(
    slice: &str,
    scope: &str,
    pid: i32,
    call: impl Fn(Vec<String>) -> io::Result<Output>,
) -> Result<(), ScopeError> {
    let refused = |reason: String| ScopeError::Refused {
        scope: scope.to_owned(),
        reason,
    };
    let not_run = |error| refused(format!("busctl, a part of systemd, did not run: {error}"));
    let mut told = call(request(slice, scope, pid)).map_err(not_run)?;
    if !told.status.success() {
        // A unit that has not failed stays as it is.
        let reset = call(["ResetFailedUnit", "s", scope].map(str::to_owned).into());
        if reset.is_ok_and(|reset| reset.status.success()) {
            told = call(request(slice, scope, pid)).map_err(not_run)?;
        }
    }
    if told.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&told.stderr);
    Err(refused(text.trim().to_owned()))
}

/// Calls a method of systemd's manager, with its name and its arguments for busctl(1).
fn busctl(call: impl IntoIterator<Item = String>) -> io::Result<Output> {
    const MANAGER: [&str; 3] = [
        "org.freedesktop.systemd1",
        "/org/freedesktop/systemd1",
        "org.freedesktop.systemd1.Manager",
    ];
    let timeout = format!("--timeout={}", SCOPE_TIMEOUT.as_secs());
    Command::new("busctl")
        .args(["--system", &timeout, "call"])
        .args(MANAGER)
        .args(call)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
}

/// The call that requests a scope with this process in it.
fn request(slice: &str, scope: &str, pid: i32) -> Vec<String> {
    let pid = pid.to_string();
    let properties: [&[&str]; 11] = [
        &["Description", "s", "Tasks of Meseta's agents"],
        &["Slice", "s", slice],
        &["Delegate", "b", "true"],
        &["CPUAccounting", "b", "true"],
        &["MemoryAccounting", "b", "true"],
        &["IOAccounting", "b", "true"],
        &["TasksAccounting", "b", "true"],
        // Without this, all tasks together would have the share of one service.
        &["TasksMax", "t", "18446744073709551615"],
        // systemd ends the scope in order at a shutdown of the machine.
        &["DefaultDependencies", "b", "true"],
        // Otherwise a scope that was stopped and failed would keep its name.
        &["CollectMode", "s", "inactive-or-failed"],
        &["PIDs", "au", "1", &pid],
    ];
    let count = properties.len().to_string();
    // The unit's name, the mode if it has a job, its properties, and no further units.
    let signature = "ssa(sv)a(sa(sv))";
    let mut all = vec!["StartTransientUnit", signature, scope, "fail", &count];
    all.extend(properties.concat());
    all.push("0");
    all.into_iter().map(str::to_owned).collect()
}

/// Waits until systemd has moved the process to the requested group.
fn arrival(dir: &Path, pid: i32) -> Result<(), ScopeError> {
    let began = Instant::now();
    loop {
        if list_pids(dir).is_ok_and(|pids| pids.contains(&pid)) {
            return Ok(());
        }
        if began.elapsed() > SCOPE_TIMEOUT {
            return Err(ScopeError::Late {
                path: dir.to_owned(),
            });
        }
        sleep(SCOPE_POLL);
    }
}

/// Moves the process out of the scope's own folder, which must divide its controllers.
fn keep(dir: &Path, pid: i32) -> Result<(), ScopeError> {
    let leaf = dir.join(PAUSE);
    let made = match fs::create_dir(&leaf) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    };
    made.and_then(|()| fs::write(leaf.join("cgroup.procs"), pid.to_string()))
        .map_err(|source| ScopeError::Leaf { path: leaf, source })
}

#[cfg(test)]
mod tests {
    use super::super::Controller;
    use super::super::host::tests::fixture;
    use super::*;

    #[test]
    fn unit_names_must_be_plain() {
        let both = Some(("meseta.slice".to_owned(), "meseta-tasks.scope".to_owned()));
        assert_eq!(units(Path::new("meseta")), both);
        for root in ["", "meseta-test-1", "a/b", "../x", "a.b"] {
            assert_eq!(units(Path::new(root)), None, "{root}");
        }
    }

    #[test]
    fn scope_request_property_count_is_exact() {
        let all = request("meseta.slice", "meseta-tasks.scope", 17);
        let at = all.iter().position(|one| one == "ssa(sv)a(sa(sv))");
        let rest = &all[at.expect("the signature") + 1..];
        assert_eq!(rest[..3], ["meseta-tasks.scope", "fail", "11"]);
        let mut rest = rest[3..].iter().map(String::as_str);
        let mut properties = Vec::new();
        for _ in 0..11 {
            let name = rest.next().expect("a name");
            let value = match rest.next().expect("a type") {
                "au" => rest.by_ref().take(2).last(),
                "s" | "b" | "t" => rest.next(),
                other => panic!("{name}: {other}"),
            };
            properties.push((name, value.expect("a value")));
        }
        assert_eq!(rest.collect::<Vec<_>>(), ["0"], "no further units");
        for expected in [
            ("Slice", "meseta.slice"),
            ("Delegate", "true"),
            ("PIDs", "17"),
        ] {
            assert!(properties.contains(&expected), "{properties:?}");
        }
    }

    /// Regression: from the folder alone an agent could not recognize a scope, and made the folder itself when systemd had
    /// removed it.
    #[test]
    fn scope_is_recognized_by_its_folder() {
        let both = Some(("meseta.slice".to_owned(), "meseta-tasks.scope".to_owned()));
        assert_eq!(units_of(Path::new("meseta.slice/meseta-tasks.scope")), both);
        for root in [
            "",
            "meseta",
            "meseta.slice",
            "a.slice/b-tasks.scope",
            "a/meseta.slice/meseta-tasks.scope",
        ] {
            assert_eq!(units_of(Path::new(root)), None, "{root}");
        }
        assert!(is_not_loaded(
            "Call failed: Unit meseta-tasks.scope not loaded.\n"
        ));
        assert!(!is_not_loaded(
            "Failed to connect to bus: No such file or directory\n"
        ));
    }

    /// Regression: a failed scope of an older version stayed loaded, and each launch failed until the machine was rebooted.
    #[test]
    fn failed_scope_is_reset_and_retried() {
        use std::cell::RefCell;
        use std::os::unix::process::ExitStatusExt as _;

        // Takes the exit codes of busctl, call by call; returns the called methods.
        let asked = |codes: &[i32]| {
            let called = RefCell::new(Vec::new());
            let call = |call: Vec<String>| {
                let code = codes[called.borrow().len()];
                called.borrow_mut().push(call[0].clone());
                Ok(Output {
                    status: std::process::ExitStatus::from_raw(code << 8),
                    stdout: Vec::new(),
                    stderr: b"Unit meseta-tasks.scope was already loaded\n".to_vec(),
                })
            };
            let had = ask("meseta.slice", "meseta-tasks.scope", 17, call);
            (had.map_err(|error| error.to_string()), called.into_inner())
        };
        let (start, reset) = ("StartTransientUnit", "ResetFailedUnit");
        assert_eq!(asked(&[0]), (Ok(()), vec![start.to_owned()]));
        let (had, called) = asked(&[1, 0, 0]);
        assert_eq!(
            (had, called),
            (Ok(()), [start, reset, start].map(str::to_owned).into())
        );
        for codes in [&[1, 0, 1][..], &[1, 1]] {
            let (had, called) = asked(codes);
            let why = had.expect_err("refused");
            assert!(why.contains("already loaded"), "{why}");
            assert_eq!(called.len(), codes.len());
        }
    }

    #[test]
    fn idle_scope_folder_is_removed_whole() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let scope = dir.path().join("x-tasks.scope");
        let group = |path: &str, pids: &str| {
            let folder = scope.join(path);
            fs::create_dir_all(&folder).expect("made");
            fs::write(folder.join("cgroup.procs"), pids).expect("written");
        };
        for path in ["", "meseta", "meseta/c1", "meseta/c1/leaf"] {
            group(path, "");
        }
        assert!(!has_tasks(&scope));
        group(PAUSE, "17\n");
        assert!(!has_tasks(&scope), "its keeper is no task");
        group("meseta/c1/leaf", "18\n");
        assert!(has_tasks(&scope));
        let all = folders_of(&scope).expect("read");
        assert_eq!(all.len(), 5);
        for folder in &all {
            fs::remove_file(folder.join("cgroup.procs")).expect("removed");
        }
        remove(&scope).expect("removed");
        assert!(!scope.exists());
    }

    #[test]
    fn scope_requires_pure_v2_host() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut host = fixture(dir.path(), &["cpu", "memory"], Some("pids"));
        let before = host.clone();
        let scope = task_scope(&mut host, Path::new("meseta")).expect("no error");
        assert_eq!(scope, None);
        assert_eq!(host, before);
        assert!(host.offers(Controller::Pids));
    }

    #[test]
    fn scope_is_kept_by_its_leaf() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        assert!(!is_kept(dir.path()));
        fs::create_dir(dir.path().join(PAUSE)).expect("made");
        assert!(!is_kept(dir.path()));
        keep(dir.path(), 17).expect("kept");
        assert!(is_kept(dir.path()));
    }
}
