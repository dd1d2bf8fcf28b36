//! The attempts of a hostile task, run inside a container: one line per attempt, `blocked` or `open`.
//!
//! The test program executes itself with [`MARK`]. No attempt does harm where it succeeds: files are opened and not written,
//! and calls have arguments that the kernel refuses after its access check.
#![expect(
    unsafe_code,
    reason = "the tries are system calls that no wrapper offers"
)]

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::ExitCode;

pub(crate) const MARK: &str = "--probe";

/// Variables that pass values from the test to the probe.
pub(crate) const AGENT: &str = "PROBE_AGENT";
pub(crate) const GROUPS: &str = "PROBE_GROUPS";
pub(crate) const ABSTRACT: &str = "PROBE_ABSTRACT";
pub(crate) const KEY: &str = "PROBE_KEY";
pub(crate) const SHARED: &str = "PROBE_SHARED";

/// Traces without stopping the traced process; the trace ends with the tracer.
const PTRACE_SEIZE: i32 = 0x4206;

/// Errnos of a denial; all others mean that the kernel checked the arguments.
const NO: [i32; 8] = [
    libc::EPERM,
    libc::EACCES,
    libc::ENOENT,
    libc::EROFS,
    libc::ESRCH,
    libc::ENOSYS,
    libc::ECONNREFUSED,
    libc::ELOOP,
];

pub(crate) fn run_if_requested() -> Option<ExitCode> {
    let mut args = std::env::args().skip(1);
    if args.next()? != MARK {
        return None;
    }
    let done = match args.next().as_deref() {
        Some("escapes") => escapes(),
        Some("loopback") => loopback(),
        Some("listen") => listen(args.next()),
        Some("listen-by-thread") => listen_by_thread(),
        Some("inherited") => inherited(),
        Some("calls") => calls(),
        _ => return Some(ExitCode::FAILURE),
    };
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stdout(), "failed: {error}");
            ExitCode::FAILURE
        }
    })
}

fn told(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

fn say(name: &str, result: io::Result<()>) -> io::Result<()> {
    let no = |error: &io::Error| error.raw_os_error().is_some_and(|one| NO.contains(&one));
    match result {
        Err(error) if no(&error) => writeln!(io::stdout(), "blocked {name}"),
        Err(error) => writeln!(io::stdout(), "open {name}: {error}"),
        Ok(()) => writeln!(io::stdout(), "open {name}"),
    }
}

/// Makes a system call by number.
fn call(number: libc::c_long, args: [libc::c_long; 5]) -> io::Result<()> {
    let [a, b, c, d, e] = args;
    // SAFETY: every caller passes numbers, null pointers or pointers that live over the call.
    if unsafe { libc::syscall(number, a, b, c, d, e) } < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn write(path: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path).map(drop)
}

fn read(path: &str) -> io::Result<()> {
    std::fs::File::open(path).map(drop)
}

fn escapes() -> io::Result<()> {
    let agent = told(AGENT);
    let pid: libc::c_long = agent.parse().unwrap_or(1);
    processes(&agent, pid)?;
    groups_and_mounts()?;
    descriptors()?;
    kernel_calls()?;
    sharing()?;
    // This attempt comes last: its success costs the rights that other attempts need.
    let user = libc::c_long::from(libc::CLONE_NEWUSER);
    say("clone into a user namespace", call_clone(user))?;
    say("unshare", call(libc::SYS_unshare, [user, 0, 0, 0, 0]))?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    for line in status.lines() {
        let name = line.split(':').next().unwrap_or_default();
        if name.starts_with("Cap") || matches!(name, "NoNewPrivs" | "Seccomp") {
            writeln!(io::stdout(), "status {}", line.replace('\t', ""))?;
        }
    }
    Ok(())
}

/// E80: other processes, the agent's above all, and ways to more rights.
fn processes(agent: &str, pid: libc::c_long) -> io::Result<()> {
    say("clone3", call(libc::SYS_clone3, [0; 5]))?;
    say("setns", call(libc::SYS_setns, [-1, 0, 0, 0, 0]))?;
    say("kill the agent", call(libc::SYS_kill, [pid, 0, 0, 0, 0]))?;
    let attach = libc::c_long::from(PTRACE_SEIZE);
    let ptrace = |pid| call(libc::SYS_ptrace, [attach, pid, 0, 0, 0]);
    say("ptrace the agent", ptrace(pid))?;
    say("ptrace the supervisor", ptrace(1))?;
    say(
        "read the agent's memory",
        call(libc::SYS_process_vm_readv, [pid, 0, 0, 0, 0]),
    )?;
    for file in ["mem", "environ", "root/etc/shadow", "fd/0"] {
        say(
            &format!("agent's {file}"),
            read(&format!("/proc/{agent}/{file}")),
        )?;
    }
    for file in ["mem", "environ", "root/etc/shadow", "fd/0"] {
        say(
            &format!("supervisor's {file}"),
            read(&format!("/proc/1/{file}")),
        )?;
    }
    // E83: what runs the supervisor.
    say("supervisor's program", write("/proc/1/exe"))
}

fn call_clone(flags: libc::c_long) -> io::Result<()> {
    let flags = flags | libc::c_long::from(libc::SIGCHLD);
    // SAFETY: like fork; the child, if there is one, leaves at once.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        // SAFETY: ends the child and runs nothing.
        0 => unsafe { libc::_exit(0) },
        child if child > 0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// E81: the limits themselves.
fn groups_and_mounts() -> io::Result<()> {
    for group in told(GROUPS).split(':').filter(|group| !group.is_empty()) {
        for file in [
            "cgroup.procs",
            "tasks",
            "notify_on_release",
            "memory.limit_in_bytes",
            "pids.max",
        ] {
            let path = format!("{group}/{file}");
            if std::path::Path::new(&path).exists() {
                say(&path, write(&path))?;
            }
        }
        say(
            &format!("{group}/new"),
            std::fs::create_dir(format!("{group}/new")),
        )?;
        let text = |text: &str| CString::new(text).map_err(io::Error::other);
        let (at, none) = (text(group)?, std::ptr::null());
        let flags = libc::MS_REMOUNT | libc::MS_BIND;
        // SAFETY: the path is NUL-terminated; a remount needs no more.
        let code = unsafe { libc::mount(none, at.as_ptr(), none, flags, std::ptr::null()) };
        let result = if code == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        };
        say(&format!("remount {group}"), result)?;
    }
    for (kind, name) in [
        (c"tmpfs", "tmpfs"),
        (c"cgroup2", "cgroup2"),
        (c"proc", "proc"),
    ] {
        // SAFETY: all strings are NUL-terminated.
        let code = unsafe {
            libc::mount(
                kind.as_ptr(),
                c"/mnt".as_ptr(),
                kind.as_ptr(),
                0,
                std::ptr::null(),
            )
        };
        let result = if code == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        };
        say(&format!("mount {name}"), result)?;
    }
    for path in [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/vm/panic_on_oom",
        "/proc/sysrq-trigger",
    ] {
        say(path, write(path))?;
    }
    let mut byte = [0];
    let kcore = std::fs::File::open("/proc/kcore").and_then(|mut file| file.read(&mut byte));
    let hidden = || io::Error::from_raw_os_error(libc::EPERM);
    say(
        "kcore",
        kcore.and_then(|read| if read == 0 { Err(hidden()) } else { Ok(()) }),
    )
}

/// No descriptor of the launcher is open here (E82).
fn descriptors() -> io::Result<()> {
    for number in 3..64 {
        let path = format!("/proc/self/fd/{number}");
        if let Err(error) = std::env::set_current_dir(&path) {
            if error.raw_os_error() != Some(libc::ENOENT) {
                say(&path, Err(error))?;
            }
        } else {
            say(&path, Ok(()))?;
        }
    }
    Ok(())
}

/// Tries the kernel's own interfaces (E88). Arguments that no kernel accepts show whether the calls are allowed.
fn kernel_calls() -> io::Result<()> {
    for (name, number) in [
        ("bpf", libc::SYS_bpf),
        ("perf_event_open", libc::SYS_perf_event_open),
        ("io_uring_setup", libc::SYS_io_uring_setup),
        ("userfaultfd", libc::SYS_userfaultfd),
        ("kexec_load", libc::SYS_kexec_load),
        ("add_key", libc::SYS_add_key),
        ("request_key", libc::SYS_request_key),
        ("keyctl", libc::SYS_keyctl),
        ("init_module", libc::SYS_init_module),
        ("open_by_handle_at", libc::SYS_open_by_handle_at),
        ("swapon", libc::SYS_swapon),
        ("syslog", libc::SYS_syslog),
        ("pidfd_getfd", libc::SYS_pidfd_getfd),
    ] {
        say(name, call(number, [-1, -1, -1, -1, -1]))?;
    }
    for (name, family) in [
        ("AF_PACKET", libc::AF_PACKET),
        ("AF_ALG", libc::AF_ALG),
        ("AF_VSOCK", libc::AF_VSOCK),
    ] {
        let raw = libc::c_long::from(libc::SOCK_RAW);
        let socket = call(libc::SYS_socket, [family.into(), raw, 0, 0, 0]);
        // A kernel without that family reports it only to a permitted caller.
        say(name, socket)?;
    }
    let typed = libc::c_long::try_from(libc::TIOCSTI).unwrap_or(0);
    say("TIOCSTI", call(libc::SYS_ioctl, [0, typed, 0, 0, 0]))?;
    say("/dev/kmsg", read("/dev/kmsg"))?;
    say("/dev/mem", read("/dev/mem"))
}

/// The errors of a call that the standard profile refuses, of calls that no table knows, and of an x32 call.
fn calls() -> io::Result<()> {
    const X32: libc::c_long = 0x4000_0000;
    for number in [libc::SYS_bpf, 480, 4_000, X32 | libc::SYS_getpid] {
        let errno = call(number, [-1; 5]).err();
        let errno = errno.and_then(|error| error.raw_os_error());
        writeln!(io::stdout(), "{number:#x} {}", errno.unwrap_or(0))?;
    }
    Ok(())
}

/// Tries resources that might be shared with others (E88).
fn sharing() -> io::Result<()> {
    let address = SocketAddr::from_abstract_name(told(ABSTRACT))?;
    say(
        "abstract socket",
        UnixStream::connect_addr(&address).map(drop),
    )?;
    let key = told(KEY).parse().unwrap_or(0);
    say("System V memory", call(libc::SYS_shmget, [key, 0, 0, 0, 0]))?;
    say("shared file", read(&told(SHARED)))
}

/// Connects to itself through `lo`, and prints the interfaces.
fn loopback() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut to = std::net::TcpStream::connect(listener.local_addr()?)?;
    let (mut from, _) = listener.accept()?;
    to.write_all(b"x")?;
    let mut byte = [0];
    from.read_exact(&mut byte)?;
    let table = std::fs::read_to_string("/proc/net/dev")?;
    let names = table.lines().filter_map(|line| line.split_once(':'));
    let names: Vec<_> = names.map(|(name, _)| name.trim()).collect();
    writeln!(io::stdout(), "through {}", names.join(","))
}

/// Listens until it is killed, on a given port or on a port of the kernel's choice.
fn listen(port: Option<String>) -> io::Result<()> {
    let port = port.unwrap_or_else(|| "0".to_owned());
    let listener = TcpListener::bind(format!("127.0.0.1:{port}"))?;
    writeln!(io::stdout(), "port {}", listener.local_addr()?.port())?;
    listener.accept().map(drop)
}

/// Listens in a thread with its own table of files, in a process whose first thread has ended.
fn listen_by_thread() -> io::Result<()> {
    let listening = std::thread::spawn(|| {
        let own_files = call(libc::SYS_unshare, [libc::CLONE_FILES.into(), 0, 0, 0, 0]);
        own_files.and_then(|()| listen(None))
    });
    call(libc::SYS_exit, [0; 5])?;
    // Not reached: this thread has ended.
    listening.join().map_err(|_| io::ErrorKind::Other)?
}

/// Prints inherited properties of this process that procfs does not show.
fn inherited() -> io::Result<()> {
    const SESSION: libc::c_long = -3;
    const KEYRING_ID: libc::c_long = 0;
    let asked = |number, args: [libc::c_long; 5]| {
        let [a, b, c, d, e] = args;
        // SAFETY: numbers and null pointers only.
        unsafe { libc::syscall(number, a, b, c, d, e) }
    };
    let mut policy = 0_i32;
    let policy_at = (&raw mut policy).addr() as libc::c_long;
    call(libc::SYS_get_mempolicy, [policy_at, 0, 0, 0, 0])?;
    let personality = asked(libc::SYS_personality, [0xffff_ffff, 0, 0, 0, 0]);
    let keyring = asked(libc::SYS_keyctl, [KEYRING_ID, SESSION, 0, 0, 0]);
    let thp = asked(
        libc::SYS_prctl,
        [libc::PR_GET_THP_DISABLE.into(), 0, 0, 0, 0],
    );
    let bits = asked(
        libc::SYS_prctl,
        [libc::PR_GET_SECUREBITS.into(), 0, 0, 0, 0],
    );
    writeln!(
        io::stdout(),
        "personality {personality} policy {policy} thp {thp} securebits {bits}\n{keyring}"
    )
}

/// Gives the calling thread attributes that no task may inherit, and restores them at the end.
pub(crate) struct Peculiar;

impl Peculiar {
    const NO_RANDOM_ADDRESSES: libc::c_long = 0x004_0000;
    const PREFER_LOCAL: libc::c_long = 4;
    const NO_ROOT_FIXUP: libc::c_long = 4;

    pub(crate) fn begin() -> io::Result<Self> {
        let this = Self;
        Self::set(
            Self::NO_RANDOM_ADDRESSES,
            Self::PREFER_LOCAL,
            Self::NO_ROOT_FIXUP,
        )?;
        Ok(this)
    }

    fn set(personality: libc::c_long, policy: libc::c_long, bits: libc::c_long) -> io::Result<()> {
        call(libc::SYS_personality, [personality, 0, 0, 0, 0])?;
        call(libc::SYS_set_mempolicy, [policy, 0, 0, 0, 0])?;
        call(
            libc::SYS_prctl,
            [libc::PR_SET_SECUREBITS.into(), bits, 0, 0, 0],
        )
    }
}

impl Drop for Peculiar {
    fn drop(&mut self) {
        let _ = Self::set(0, 0, 0);
    }
}

/// The session keyring of this process.
pub(crate) fn own_keyring() -> i64 {
    // SAFETY: numbers only.
    unsafe { libc::syscall(libc::SYS_keyctl, 0, -3, 0) }
}

/// Sets a resource limit of another process.
pub(crate) fn set_limit_of(pid: i32, resource: u32, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit64 {
        rlim_cur: soft,
        rlim_max: hard,
    };
    let limit = (&raw const limit).addr() as libc::c_long;
    let call_on = [pid.into(), resource.into(), limit, 0, 0];
    call(libc::SYS_prlimit64, call_on)
}

/// Makes another process run on the first processor alone, with the lowest priority for processor and disk.
pub(crate) fn hold_back(pid: i32) -> io::Result<()> {
    const IDLE_CLASS: libc::c_long = 3 << 13;
    const PROCESS: libc::c_long = 1;
    let first = 1_u64;
    let mask = (&raw const first).addr() as libc::c_long;
    call(libc::SYS_sched_setaffinity, [pid.into(), 8, mask, 0, 0])?;
    call(libc::SYS_setpriority, [0, pid.into(), 7, 0, 0])?;
    call(
        libc::SYS_ioprio_set,
        [PROCESS, pid.into(), IDLE_CLASS, 0, 0],
    )
}
