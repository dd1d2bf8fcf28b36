//! Detects launches of an earlier agent that are still under way.
//!
//! Every launcher holds a shared lock on a file, and so does each supervisor until it has recorded its identity. An agent
//! that could take the lock exclusively sees all containers, and none appears later: otherwise a launcher that outlives its
//! agent by a moment could start a task that was reported as failed. The file names the launcher and its agent: a stopped
//! launcher does not see the end of its agent, and is killed.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::identity::{BootId, ProcessIdentity, start_ticks_of_stat};
use crate::sys;

/// The name of the file in the runtime folder.
pub(crate) const LOCK_FILE: &str = "launcher.lock";

/// The pause between two attempts to take a held lock.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The longest time that a launcher may take to see the end of its agent; it has one clone to end at most.
const END_TIMEOUT: Duration = Duration::from_secs(3);

fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    match options.create(true).write(true).truncate(false).open(path) {
        // A folder that a damaged disk has put in its place can be locked as well.
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => File::open(path),
        opened => opened,
    }
}

/// Takes the shared lock for the launcher; the lock lasts as long as the descriptor or a copy of it is open.
pub(super) fn share(path: &Path) -> io::Result<OwnedFd> {
    let file = open(path)?;
    file.lock_shared()?;
    // On a full disk the file stays empty: then later agents wait for an unknown launcher.
    let _ = name_holder(&file);
    Ok(file.into())
}

/// Writes the identities of this process and its parent.
fn name_holder(mut file: &File) -> io::Result<()> {
    let boot_id = BootId::current()?;
    let line = |pid: i32| {
        let stat = fs::read(format!("/proc/{pid}/stat"))?;
        let start_ticks = start_ticks_of_stat(&stat).ok_or(io::ErrorKind::InvalidData)?;
        let boot_id = boot_id.clone();
        let identity = ProcessIdentity {
            pid,
            start_ticks,
            boot_id,
        };
        io::Result::Ok(identity.to_text())
    };
    let us = line(nix::unistd::getpid().as_raw())?;
    let parent = line(nix::unistd::getppid().as_raw())?;
    file.set_len(0)?;
    file.write_all(format!("{us}\n{parent}\n").as_bytes())
}

/// Waits until no process holds the lock; returns whether that came in time.
pub(crate) fn wait_until_free(path: &Path, timeout: Duration) -> io::Result<bool> {
    wait(path, timeout, END_TIMEOUT)
}

fn wait(path: &Path, timeout: Duration, end_timeout: Duration) -> io::Result<bool> {
    let began = Instant::now();
    let file = open(path)?;
    let mut is_holder_ended = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if began.elapsed() >= timeout => return Ok(false),
            Err(TryLockError::WouldBlock) => {
                if !is_holder_ended && began.elapsed() >= end_timeout {
                    is_holder_ended = true;
                    // Otherwise the loop waits for it.
                    let _ = end_orphan(path);
                }
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }
}

/// Ends the launcher that the file names, if its agent has ended.
fn end_orphan(path: &Path) -> io::Result<()> {
    let text = fs::read_to_string(path)?;
    let mut named = text.lines().map(ProcessIdentity::from_text);
    let (Some(Some(launcher)), Some(Some(agent))) = (named.next(), named.next()) else {
        return Ok(());
    };
    if agent.open()?.is_some() {
        return Ok(());
    }
    match launcher.open()? {
        Some(launcher) => sys::send_signal(launcher.as_fd(), libc::SIGKILL),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    /// The limit allows for another test's child, which holds the lock as well between its clone and its exec.
    const LIMIT: Duration = Duration::from_secs(30);

    #[test]
    fn lock_wait_covers_every_copy() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join(LOCK_FILE);
        let one = share(&path).expect("shared");
        let other = share(&path).expect("shared");
        let copy = one.try_clone().expect("a copy");
        // The file names this process, whose parent lives.
        let free = |timeout| wait(&path, timeout, Duration::ZERO).expect("looked at");
        assert!(!free(Duration::ZERO));
        drop(one);
        drop(other);
        assert!(!free(Duration::ZERO), "a copy is left");
        let waiting = std::thread::spawn(move || drop(copy));
        assert!(free(LIMIT));
        waiting.join().expect("ended");
    }

    #[test]
    fn stopped_launcher_ends_after_its_agent() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join(LOCK_FILE);
        let identity = |pid: u32| {
            let stat = fs::read(format!("/proc/{pid}/stat")).expect("it lives");
            let identity = ProcessIdentity {
                pid: i32::try_from(pid).expect("a pid"),
                start_ticks: start_ticks_of_stat(&stat).expect("a start"),
                boot_id: BootId::current().expect("a boot"),
            };
            identity.to_text()
        };
        // A process that answers lives: it would see a signal before any later input.
        let echo = || {
            let mut command = Command::new("cat");
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
        };
        let (mut launcher, mut agent) = (echo().expect("begun"), echo().expect("begun"));
        let named = [identity(launcher.id()), identity(agent.id())].join("\n");
        let held = share(&path).expect("shared");
        fs::write(&path, named).expect("written");
        end_orphan(&path).expect("looked at");
        let (mut to, mut from) = (launcher.stdin.take(), launcher.stdout.take());
        let asked = to.as_mut().expect("piped").write_all(b"?");
        let answered = from.as_mut().expect("piped").read_exact(&mut [0]);
        asked
            .and(answered)
            .expect("its agent lives, and so does it");
        agent.kill().expect("killed");
        agent.wait().expect("it has ended");
        let free = |timeout| wait(&path, timeout, Duration::ZERO).expect("looked at");
        assert!(!free(Duration::from_millis(20)), "others hold it");
        // The process would end without a signal now.
        drop((to, from));
        let ended = launcher.wait().expect("it has ended");
        assert_eq!(ended.signal(), Some(libc::SIGKILL));
        drop(held);
        assert!(free(LIMIT));
    }

    #[test]
    fn lock_file_names_holder_and_parent() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join(LOCK_FILE);
        let _held = share(&path).expect("shared");
        let text = fs::read_to_string(&path).expect("written");
        let named = text.lines().map(ProcessIdentity::from_text);
        let pids: Vec<_> = named.map(|one| one.expect("an identity").pid).collect();
        let us = i32::try_from(std::process::id()).expect("a pid");
        assert_eq!(pids, [us, nix::unistd::getppid().as_raw()]);
    }

    #[test]
    fn folder_can_replace_lock_file() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let held = share(dir.path()).expect("shared");
        let free = |timeout| wait(dir.path(), timeout, Duration::ZERO).expect("looked at");
        assert!(!free(Duration::from_millis(20)));
        drop(held);
        assert!(free(LIMIT));
    }
}
