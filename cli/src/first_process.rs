//! The start of a daemon as the first process of a container: the kernel gives it every orphan to reap.
//!
//! Entered through [`run_if_first`] before any thread exists. The first process then starts this binary again, passes
//! signals on to it, reaps all ended processes, and ends as the daemon does: a daemon itself waits for its own children
//! only.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, WaitOptions};
use tokio::signal::unix::{SignalKind, signal};

/// Verbs that run as long as their container.
const LONG_LIVED: [&str; 4] = ["agent", "local", "master", "scheduler"];

/// Signals that a daemon handles.
const PASSED_ON: [Signal; 6] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
];

/// The exit code of shells for a process that a signal ended, without the signal's number.
const SIGNALED: i32 = 128;

/// Runs a long-lived verb as a child, if this is the first process of its pid namespace.
pub(crate) fn run_if_first() -> Option<ExitCode> {
    if std::process::id() != 1 {
        return None;
    }
    let verb = std::env::args().nth(1)?;
    if !LONG_LIVED.contains(&verb.as_str()) {
        return None;
    }
    match run() {
        Ok(code) => Some(code),
        Err(error) => {
            crate::terminal::note!("meseta: failed to run as the first process: {error:#}");
            Some(ExitCode::FAILURE)
        }
    }
}

fn run() -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    runtime.block_on(async {
        // The watch starts before the child, whose end must not be missed.
        let mut ended = signal(SignalKind::child()).context("failed to watch SIGCHLD")?;
        let program = std::env::current_exe().context("failed to find this program")?;
        let mut command = Command::new(program);
        command.args(std::env::args_os().skip(1));
        let child = command.spawn().context("failed to start the daemon")?;
        let child = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let child = child.context("the daemon has no pid")?;
        for one in PASSED_ON {
            let mut received = signal(SignalKind::from_raw(one.as_raw()))
                .with_context(|| format!("failed to watch {one:?}"))?;
            tokio::spawn(async move {
                while received.recv().await.is_some() {
                    let _ = rustix::process::kill_process(child, one);
                }
            });
        }
        loop {
            if let Some(code) = reap_all(child)? {
                return Ok(code);
            }
            ended.recv().await;
        }
    })
}

/// Reaps all ended processes, and returns the exit code once the daemon is among them.
fn reap_all(daemon: Pid) -> anyhow::Result<Option<ExitCode>> {
    let mut code = None;
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == daemon => {
                code = Some(code_of(ExitStatus::from_raw(status.as_raw())));
            }
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(code),
            Err(error) => return Err(error).context("failed to wait for child processes"),
        }
    }
}

fn code_of(status: ExitStatus) -> ExitCode {
    let signaled = || {
        status
            .signal()
            .map(|signal| SIGNALED.saturating_add(signal))
    };
    let code = status.code().or_else(signaled);
    code.and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_match_the_daemon() {
        for (raw, code) in [(0, 0), (3 << 8, 3), (9, 137), (15, 143)] {
            let found = code_of(ExitStatus::from_raw(raw));
            assert_eq!(found, ExitCode::from(code), "{raw}");
        }
    }
}
