//! A daemon as a child process: started, found by its endpoint file, killed in several ways.

use std::net::TcpListener;
use std::ops::Range;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::sys::stat::{Mode, umask};

use crate::http;
use crate::network::loopback;
use crate::wait::eventually;

/// The time from the start until the port answers.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Returns the path of the binary under test, next to the tests' own.
pub fn binary() -> PathBuf {
    let mut dir = std::env::current_exe().expect("this program has a file");
    dir.pop();
    if dir.ends_with("deps") || dir.ends_with("examples") {
        dir.pop();
    }
    let path = dir.join("meseta");
    assert!(
        path.is_file(),
        "{} is not built; run `cargo test --workspace`",
        path.display()
    );
    path
}

/// Runs a daemon that must refuse to start, and returns its output.
pub fn refused(verb: &str, dir: &Path, flags: &[&str]) -> String {
    let mut child = Command::new(binary())
        .arg(verb)
        .arg(format!("--work_dir={}", dir.display()))
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("meseta runs");
    let what = format!("{verb} {flags:?} is refused");
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eventually(&what, Duration::from_secs(15), || {
            child.try_wait().expect("wait")
        })
    }));
    let _ = child.kill();
    let Output { status, stderr, .. } = child.wait_with_output().expect("wait");
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert!(ended.is_ok(), "{what}, but it ran: {said}");
    assert!(!status.success(), "{what}, but it succeeded");
    assert!(!said.contains("panicked"), "{said}");
    said
}

#[derive(Debug)]
pub struct Daemon {
    child: Child,
    pub url: String,
    pub log: PathBuf,
}

impl Daemon {
    /// Starts `meseta VERB FLAGS` and waits until it has written its address.
    pub fn start(verb: &str, work_dir: &Path, flags: &[String]) -> Self {
        let level = "debug,h2=info,hyper=info,tower=info,hyper_util=info";
        Self::start_by(&[], None, verb, work_dir, flags, level)
    }

    /// Starts a daemon through another program, such as `prlimit --nofile=256`.
    pub fn start_under(prefix: &[String], verb: &str, work_dir: &Path, flags: &[String]) -> Self {
        let level = "debug,h2=info,hyper=info,tower=info,hyper_util=info";
        Self::start_by(prefix, None, verb, work_dir, flags, level)
    }

    /// Starts a daemon through another program, with this log level.
    pub fn start_under_logging(
        prefix: &[String],
        verb: &str,
        work_dir: &Path,
        flags: &[String],
        level: &str,
    ) -> Self {
        Self::start_by(prefix, None, verb, work_dir, flags, level)
    }

    /// Starts a daemon and waits until it answers at this address, without its endpoint file.
    pub fn start_at(url: &str, verb: &str, work_dir: &Path, flags: &[String]) -> Self {
        let mut daemon = Self::spawn_at(url, &[], verb, work_dir, flags);
        eventually(&format!("{verb} answers"), START_LIMIT, || {
            if let Ok(Some(status)) = daemon.child.try_wait() {
                panic!("{verb} ended ({status}):\n{}", daemon.log_text());
            }
            let answer = http::try_get(&format!("{url}/health")).ok()?;
            (answer.status == 200).then_some(())
        });
        daemon
    }

    /// Starts the daemon through another program, without waiting: it will listen at this address.
    pub fn spawn_at(
        url: &str,
        prefix: &[String],
        verb: &str,
        work_dir: &Path,
        flags: &[String],
    ) -> Self {
        let level = "debug,h2=info,hyper=info,tower=info,hyper_util=info";
        let log = work_dir.with_extension("log");
        Self {
            child: spawn(prefix, None, verb, work_dir, flags, level, &log),
            url: url.to_owned(),
            log,
        }
    }

    /// Starts a daemon with this log level.
    pub fn start_logging(verb: &str, work_dir: &Path, flags: &[String], level: &str) -> Self {
        Self::start_by(&[], None, verb, work_dir, flags, level)
    }

    /// Starts a daemon as a user, and as the group of the same number; needs root.
    pub fn start_as(user: u32, verb: &str, work_dir: &Path, flags: &[String]) -> Self {
        let level = "debug,h2=info,hyper=info,tower=info,hyper_util=info";
        Self::start_by(&[], Some(user), verb, work_dir, flags, level)
    }

    fn start_by(
        prefix: &[String],
        user: Option<u32>,
        verb: &str,
        work_dir: &Path,
        flags: &[String],
        level: &str,
    ) -> Self {
        std::fs::create_dir_all(work_dir).expect("a work directory");
        let endpoint = work_dir.join("endpoint");
        let _ = std::fs::remove_file(&endpoint);
        let log = work_dir.with_extension("log");
        let mut daemon = Self {
            child: spawn(prefix, user, verb, work_dir, flags, level, &log),
            url: String::new(),
            log,
        };
        daemon.url = eventually(&format!("{verb} listens"), START_LIMIT, || {
            if let Ok(Some(status)) = daemon.child.try_wait() {
                panic!("{verb} ended ({status}):\n{}", daemon.log_text());
            }
            std::fs::read_to_string(&endpoint)
                .ok()
                .map(|text| text.trim().to_owned())
        });
        daemon
    }

    pub fn address(&self) -> &str {
        self.url
            .trim_start_matches("http://")
            .trim_start_matches("https://")
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid")
    }

    pub fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Whether the process has ended.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Kills the process with SIGKILL, and waits for its end.
    pub fn kill(&mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait");
    }

    /// Ends the process with SIGTERM, and returns its exit status.
    pub fn terminate(&mut self, limit: Duration) -> ExitStatus {
        crate::kernel::kill(self.pid(), nix::sys::signal::Signal::SIGTERM);
        eventually("the daemon ends after SIGTERM", limit, || {
            self.child.try_wait().expect("wait")
        })
    }

    /// Ends the process with SIGTERM, or with SIGKILL after the limit; never panics.
    pub fn end(&mut self, limit: Duration) {
        crate::kernel::kill(self.pid(), nix::sys::signal::Signal::SIGTERM);
        if !crate::wait::holds(limit, || matches!(self.child.try_wait(), Ok(Some(_)))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    /// Returns the page at `path`, once the response is 200.
    pub fn page(&self, path: &str) -> http::Answer {
        let answer = http::get(&format!("{}{path}", self.url));
        assert_eq!(answer.status, 200, "GET {path}: {}", answer.text());
        answer
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.log_text());
        }
    }
}

/// Ports below those that Linux assigns by default to connections and for port 0: they stay free between two runs of a
/// daemon.
const FREE_PORTS: Range<u16> = 20_000..30_000;

static PORTS_GIVEN: AtomicUsize = AtomicUsize::new(0);

/// Returns a free port that no other test of this process receives.
pub fn free_port() -> u16 {
    // The ports are far from those of another suite that was started just before.
    let first = usize::try_from(std::process::id()).unwrap_or_default() * 97;
    let is_free = |port: &u16| TcpListener::bind((loopback(), *port)).is_ok();
    let mut candidates = FREE_PORTS.filter_map(|_| {
        let next = first + PORTS_GIVEN.fetch_add(1, Ordering::Relaxed);
        let port = FREE_PORTS.clone().nth(next % FREE_PORTS.len())?;
        is_free(&port).then_some(port)
    });
    candidates.next().expect("a port")
}

static ORIGINAL_UMASK: OnceLock<Mode> = OnceLock::new();

/// Uses the suite's own umask for daemons alone: other users can read the files that scenarios prepare for them.
pub fn keep_umask_for_daemons() {
    let given = umask(Mode::from_bits_truncate(0o022));
    ORIGINAL_UMASK.get_or_init(|| given);
}

/// Returns a command that runs a program with the original umask of the suite.
pub fn under_original_umask(program: &Path) -> Command {
    match ORIGINAL_UMASK.get() {
        Some(mask) if mask.bits() != 0o022 => {
            let mut command = Command::new("/bin/sh");
            let script = format!("umask {:o}; exec \"$0\" \"$@\"", mask.bits());
            command.arg("-c").arg(script).arg(program);
            command
        }
        _ => Command::new(program),
    }
}

fn spawn(
    prefix: &[String],
    user: Option<u32>,
    verb: &str,
    work_dir: &Path,
    flags: &[String],
    level: &str,
    log: &Path,
) -> Child {
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .expect("a log");
    let mut command = match prefix.split_first() {
        Some((program, args)) => {
            let mut command = Command::new(program);
            command.args(args).arg(binary());
            command
        }
        None => under_original_umask(&binary()),
    };
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MESETA_") {
            command.env_remove(name);
        }
    }
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    command
        .arg(verb)
        .arg(format!("--work_dir={}", work_dir.display()))
        .args(flags)
        .env("MESETA_LOG", level)
        .stdin(Stdio::null())
        .stdout(file.try_clone().expect("a descriptor"))
        .stderr(file)
        .spawn()
        .unwrap_or_else(|e| panic!("failed to start meseta {verb}: {e}"))
}
