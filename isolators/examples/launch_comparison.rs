//! A launch beside crun, runc and the bare system calls, taken in turns so that noise meets all alike.
//!
//! `cargo run --release -p meseta-isolators --example launch_comparison [rounds] [pause_ms]` as root; crun
//! and runc are Debian's packages of those names, and are left out where they are not installed. crun
//! refuses hybrid hosts, so both run in a mount namespace without the v2 tree, kept by one helper shell
//! whose cost is a fork and an exec. Every round launches `/bin/true` once by each; printed are
//! milliseconds at the minimum, the median and the 90th percentile, and the ratios of the medians.
#![expect(unsafe_code, reason = "the floor is made of bare system calls")]

mod bench;
#[path = "bench/once.rs"]
mod once;

use std::ffi::CString;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, ExitCode, Stdio};
use std::time::{Duration, Instant};

use bench::{AnyError, MEMORY_BYTES};
use meseta_isolators::{Host, Isolation};

fn main() -> ExitCode {
    bench::run(measure)
}

fn measure() -> Result<(), AnyError> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>());
    let rounds = args.next().transpose()?.unwrap_or(100);
    let pause = Duration::from_millis(args.next().transpose()?.unwrap_or(0));
    let folder = tempfile::tempdir()?;
    let host = Host::detect()?;
    let usual = bench::open(&host, Isolation::default_for(&host), folder.path(), "usual")?;
    let hardened = bench::open(
        &host,
        Isolation::hardened_for(&host),
        folder.path(),
        "hardened",
    )?;
    let floor = Floor::new(&host)?;
    let mut engines = Vec::new();
    for name in ["crun", "runc"] {
        match Engine::start(name, folder.path()) {
            Ok(engine) => engines.push(engine),
            Err(error) => eprintln!("{name} is left out: {error}"),
        }
    }
    let mut names = vec!["floor, exec".to_owned(), "floor, whole".to_owned()];
    for ours in ["meseta", "hardened"] {
        names.extend([format!("{ours}, exec"), format!("{ours}, whole")]);
    }
    names.extend(engines.iter().map(|engine| format!("{} run", engine.name)));
    let mut times = vec![Vec::new(); names.len()];
    for round in 0..rounds {
        let mut spent = Vec::with_capacity(names.len());
        std::thread::sleep(pause);
        spent.extend(floor.launch(round)?);
        for containers in [&usual, &hardened] {
            std::thread::sleep(pause);
            let [executed, ended, removed] = once::launch(containers, folder.path(), round)?;
            spent.extend([executed, executed + ended + removed]);
        }
        for engine in &mut engines {
            std::thread::sleep(pause);
            spent.push(engine.run()?);
        }
        for (all, one) in times.iter_mut().zip(spent) {
            all.push(one);
        }
    }
    report(&names, times);
    usual.close();
    hardened.close();
    Ok(())
}

fn report(names: &[String], mut times: Vec<Vec<Duration>>) {
    let mut medians = Vec::new();
    for (name, times) in names.iter().zip(&mut times) {
        times.sort_unstable();
        let at = |percent: usize| {
            let found = times.get(times.len() * percent / 100);
            found.map_or(0.0, |time| time.as_secs_f64() * 1000.0)
        };
        eprintln!(
            "{name:16} min {:7.2}  p50 {:7.2}  p90 {:7.2} ms",
            at(0),
            at(50),
            at(90)
        );
        medians.push(at(50));
    }
    for (name, median) in names.iter().zip(&medians).skip(2) {
        let base = if name.ends_with("exec") { 0 } else { 1 };
        eprintln!("{name:16} {:5.2} x {}", median / medians[base], names[base]);
    }
    for (name, median) in names.iter().zip(&medians).skip(6) {
        for ours in [2, 4] {
            eprintln!("{:16} {:5.2} x {name}", names[ours], medians[ours] / median);
        }
    }
}

/// The minimum of every launch: groups with limits, one clone with namespaces, attach, exec.
struct Floor {
    /// Parent folder of the groups, and the limits written in each.
    trees: Vec<(PathBuf, Vec<(&'static str, String)>)>,
}

impl Floor {
    fn new(host: &Host) -> Result<Self, AnyError> {
        let limits = |controller: &str| match controller {
            "cpu" => vec![
                ("cpu.shares", "102".to_owned()),
                ("cpu.cfs_quota_us", "10000".to_owned()),
            ],
            "memory" => vec![("memory.limit_in_bytes", MEMORY_BYTES.to_string())],
            "pids" => vec![("pids.max", "64".to_owned())],
            _ => Vec::new(),
        };
        let mut trees = Vec::new();
        for controller in ["cpu", "memory", "pids", "freezer"] {
            let tree = host.v1.iter().find(|tree| {
                let mut names = tree.controllers.iter().map(|one| one.name());
                names.any(|name| name == controller)
            });
            let tree = tree.ok_or("the floor program knows v1 hosts only")?;
            trees.push((tree.mount.clone(), limits(controller)));
        }
        Ok(Self { trees })
    }

    /// Launches; returns the times until exec, and until all is removed again.
    fn launch(&self, round: u64) -> Result<[Duration; 2], AnyError> {
        let program = c"/bin/true";
        let args = [program.as_ptr(), std::ptr::null()];
        let env = [std::ptr::null()];
        let began = Instant::now();
        let mut tasks = Vec::new();
        let mut dirs = Vec::new();
        for (tree, limits) in &self.trees {
            let dir = tree.join(format!("meseta-floor-{}-{round}", std::process::id()));
            std::fs::create_dir(&dir)?;
            for (file, value) in limits {
                std::fs::write(dir.join(file), value)?;
            }
            let file = dir.join("tasks");
            tasks.push(CString::new(file.to_string_lossy().as_bytes())?);
            dirs.push(dir);
        }
        let (reader, writer) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        let flags =
            libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
        let flags = libc::c_long::from(flags | libc::SIGCHLD);
        // SAFETY: without a stack of its own the child runs on a copy of ours, like after fork; it makes
        // only system calls, with pointers prepared before, and ends in exec or exit.
        let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
        if pid == 0 {
            // SAFETY: as above.
            unsafe {
                for file in &tasks {
                    let fd = libc::open(file.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                    libc::write(fd, c"0".as_ptr().cast(), 1);
                }
                libc::mount(
                    std::ptr::null(),
                    c"/".as_ptr(),
                    std::ptr::null(),
                    libc::MS_REC | libc::MS_SLAVE,
                    std::ptr::null(),
                );
                libc::mount(
                    c"proc".as_ptr(),
                    c"/proc".as_ptr(),
                    c"proc".as_ptr(),
                    0,
                    std::ptr::null(),
                );
                libc::execve(program.as_ptr(), args.as_ptr(), env.as_ptr());
                libc::_exit(127)
            }
        }
        drop(writer);
        let pid = i32::try_from(pid)?;
        let mut byte = [0_u8; 1];
        // SAFETY: the call writes at most one byte into a buffer of one byte; the loop waits for the end of the file.
        unsafe { libc::read(reader.as_raw_fd(), byte.as_mut_ptr().cast(), 1) };
        let executed = began.elapsed();
        nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None)?;
        for dir in &dirs {
            // A group is busy for a moment after its last process was reaped.
            while std::fs::remove_dir(dir).is_err() {
                std::thread::yield_now();
            }
        }
        Ok([executed, began.elapsed()])
    }
}

/// A container engine, run repeatedly by a shell that has unmounted the v2 tree for itself.
struct Engine {
    name: &'static str,
    shell: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Engine {
    fn start(name: &'static str, folder: &Path) -> Result<Self, AnyError> {
        let bundle = folder.join(format!("{name}-bundle"));
        std::fs::create_dir_all(bundle.join("rootfs"))?;
        let script = format!(
            "set -e; command -v {name} >/dev/null; cd {bundle}; {name} spec; \
             sed -i 's/\"terminal\": true/\"terminal\": false/; s/\"sh\"/\"\\/bin\\/true\"/' config.json; \
             for file in /bin/true $(ldd /bin/true | grep -o '/[^ ]*'); do \
             mkdir -p rootfs$(dirname $file); cp -L $file rootfs$file; done; \
             umount /sys/fs/cgroup/unified 2>/dev/null || true; echo ready; \
             while read order; do {name} run bench-$$ < /dev/null > out 2>&1 && echo done || cat out; done",
            bundle = bundle.display()
        );
        let mut shell = std::process::Command::new("unshare")
            .args(["-m", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let orders = shell.stdin.take().ok_or("no input")?;
        let answers = BufReader::new(shell.stdout.take().ok_or("no output")?);
        let mut engine = Self {
            name,
            shell,
            orders,
            answers,
        };
        engine.expect("ready")?;
        // One run outside the measurement: fills caches, and shows whether the engine works at all.
        engine.run()?;
        Ok(engine)
    }

    fn run(&mut self) -> Result<Duration, AnyError> {
        let began = Instant::now();
        writeln!(self.orders, "go")?;
        self.expect("done")?;
        Ok(began.elapsed())
    }

    fn expect(&mut self, word: &str) -> Result<(), AnyError> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        if line.trim() == word {
            return Ok(());
        }
        Err(format!("{} answered {line:?} instead of {word:?}", self.name).into())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
