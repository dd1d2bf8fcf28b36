//! `meseta agent --check`: what this machine lacks for an agent with these flags, and how to mend it.
//!
//! [`check`] reads the machine and judges; nothing is changed, and an agent may be running meanwhile.
//! Judging is pure, over [`Facts`].

use std::fmt;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use meseta_daemon::error_chain::chain;
use meseta_isolators::{Controller, Host, Isolation, Mode};

use crate::configuration;
use crate::configuration::flags::Flags;
use crate::failure::Failure;
use crate::link::MasterAddress;
use crate::oversubscription::Configured;
use crate::run::narrow;

/// How bad a finding is.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub enum Severity {
    /// As it should be.
    Fine,
    /// The agent runs, and something is missing.
    Warning,
    /// The agent would not start, or no task would.
    Problem,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    pub what: String,
    /// What to do about it; empty if there is nothing to do.
    pub mend: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.severity {
            Severity::Fine => "ok",
            Severity::Warning => "warning",
            Severity::Problem => "PROBLEM",
        };
        write!(out, "{word:8} {}", self.what)?;
        if !self.mend.is_empty() {
            write!(out, "\n         -> {}", self.mend)?;
        }
        Ok(())
    }
}

/// The least kernel: pidfds, and `clone3` for all that is built on it.
const KERNEL_MIN: (u32, u32) = (5, 4);
/// With `cgroup.kill`, and `cpu.idle` a little later.
const KERNEL_GOOD: (u32, u32) = (5, 15);
/// Descriptors: sixteen for a container's control files and a few for its pipes, a thousand containers.
const DESCRIPTORS_GOOD: u64 = 65_536;
/// `vm.memfd_noexec` from here on forbids executing what has no name.
const MEMFD_NOEXEC_FORBIDS: u64 = 2;

/// What the launcher and the supervisors need, and what fails without.
const CAPABILITIES: [(&str, &str); 10] = [
    ("CAP_SYS_ADMIN", "namespaces and mounts"),
    ("CAP_SETUID", "tasks of other users"),
    ("CAP_SETGID", "tasks of other users"),
    ("CAP_SETPCAP", "bounding sets of tasks"),
    ("CAP_KILL", "ending tasks of other users"),
    ("CAP_CHOWN", "sandboxes of other users"),
    ("CAP_FOWNER", "cleaning sandboxes of other users"),
    ("CAP_DAC_OVERRIDE", "cleaning sandboxes of other users"),
    (
        "CAP_SYS_RESOURCE",
        "raising limits of tasks, short pressure windows",
    ),
    (
        "CAP_SYS_PTRACE",
        "sessions in containers of other users, network/ports",
    ),
];

/// What was read of the machine.
#[derive(Clone, Debug, Default)]
struct Facts {
    kernel: Option<(u32, u32)>,
    root: bool,
    /// Capabilities that are not held.
    missing_capabilities: Vec<&'static str>,
    memfd_noexec: Option<u64>,
    pressure: bool,
    descriptors_max: Option<u64>,
    work_dir: Option<Folder>,
    runtime_dir: Option<Folder>,
    /// Why the port cannot be listened on.
    port_taken: Option<String>,
    /// What is wrong with the way to the master.
    master_trouble: Option<Finding>,
}

/// A folder, or the nearest one above it that is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Folder {
    path: PathBuf,
    writable: bool,
    /// On a filesystem that a boot empties.
    volatile: bool,
    /// Others than the owner may write to it.
    open_to_others: bool,
}

/// Looks at the machine.
pub fn check(flags: &Flags) -> Vec<Finding> {
    let host = Host::detect().map_err(|error| error.to_string());
    let host = host.and_then(|mut host| {
        let narrowed = narrow(&mut host, &flags.cgroups_hierarchy);
        narrowed.map(|()| host).map_err(|error| error.to_string())
    });
    let mut findings = evaluate(&Facts::read(flags), flags);
    match &host {
        Ok(host) => findings.extend(evaluate_host(host, flags)),
        Err(error) => findings.push(problem(
            format!("cgroups cannot be used: {error}"),
            "mount them below --cgroups_hierarchy",
        )),
    }
    findings.extend(evaluate_access(flags));
    findings.extend(evaluate_flags(flags));
    findings
}

fn fine(what: impl Into<String>) -> Finding {
    Finding {
        severity: Severity::Fine,
        what: what.into(),
        mend: String::new(),
    }
}

fn warning(what: impl Into<String>, mend: impl Into<String>) -> Finding {
    Finding {
        severity: Severity::Warning,
        what: what.into(),
        mend: mend.into(),
    }
}

fn problem(what: impl Into<String>, mend: impl Into<String>) -> Finding {
    Finding {
        severity: Severity::Problem,
        what: what.into(),
        mend: mend.into(),
    }
}

impl Facts {
    fn read(flags: &Flags) -> Self {
        use rustix::process::{Resource, getrlimit};
        let root = rustix::process::geteuid().is_root();
        let release = rustix::system::uname();
        let number =
            |path: &str| -> Option<u64> { std::fs::read_to_string(path).ok()?.trim().parse().ok() };
        let listen = std::net::SocketAddr::new(flags.ip, flags.port);
        let runtime_dir = match &flags.runtime_dir {
            Some(given) => Some(given.clone()),
            None => root.then(|| PathBuf::from("/run/meseta/agent")),
        };
        Self {
            kernel: release.release().to_str().ok().and_then(version),
            root,
            missing_capabilities: missing_capabilities(),
            memfd_noexec: number("/proc/sys/vm/memfd_noexec"),
            pressure: Path::new("/proc/pressure/cpu").exists(),
            // No limit is the largest one.
            descriptors_max: Some(getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)),
            work_dir: Some(Folder::at(&flags.work_dir)),
            runtime_dir: runtime_dir.as_deref().map(Folder::at),
            port_taken: std::net::TcpListener::bind(listen)
                .err()
                .map(|error| error.to_string()),
            master_trouble: check_master(&flags.master),
        }
    }
}

impl Folder {
    fn at(wanted: &Path) -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let absolute = std::path::absolute(wanted).unwrap_or_else(|_| wanted.to_owned());
        let there = absolute.ancestors().find(|path| path.exists());
        let there = there.unwrap_or(Path::new("/"));
        let access = rustix::fs::access(there, rustix::fs::Access::WRITE_OK);
        let kind = rustix::fs::statfs(there).map(|stat| stat.f_type);
        let mode = std::fs::metadata(there).map(|data| data.permissions().mode());
        Self {
            path: absolute.clone(),
            writable: access.is_ok() && there.is_dir() && !kind.is_ok_and(is_the_kernels),
            volatile: kind.is_ok_and(is_volatile),
            // Of a folder that is not there yet the agent decides itself.
            open_to_others: there == absolute && mode.is_ok_and(|mode| mode & 0o022 != 0),
        }
    }
}

/// tmpfs and ramfs, by their numbers in linux/magic.h.
fn is_volatile(kind: rustix::fs::FsWord) -> bool {
    [0x0102_1994, 0x8584_58f6].contains(&(kind & 0xffff_ffff))
}

/// procfs, sysfs and the cgroup trees, by their numbers in linux/magic.h: root may write there, and nobody
/// may put a file there.
fn is_the_kernels(kind: rustix::fs::FsWord) -> bool {
    [0x9fa0, 0x6265_6572, 0x0027_e0eb, 0x6367_7270].contains(&(kind & 0xffff_ffff))
}

fn missing_capabilities() -> Vec<&'static str> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    let lacks = |name: &&str| {
        let wanted = meseta_isolators::CapabilitySet::from_names([*name]);
        wanted.is_ok_and(|wanted| wanted.bits() & effective == 0)
    };
    let names = CAPABILITIES.iter().map(|(name, _)| *name);
    names.filter(lacks).collect()
}

/// The version of a kernel release: `6.1.0-13-amd64` is 6.1.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn evaluate(facts: &Facts, flags: &Flags) -> Vec<Finding> {
    let mut findings = vec![evaluate_kernel(facts)];
    if facts
        .memfd_noexec
        .is_some_and(|set| set >= MEMFD_NOEXEC_FORBIDS)
    {
        findings.push(problem(
            "vm.memfd_noexec=2 forbids the launcher, which runs from a sealed copy in memory",
            "sysctl vm.memfd_noexec=1",
        ));
    }
    findings.push(if facts.root {
        fine("running as root")
    } else {
        warning(
            "not root: tasks would run as this user, without cgroups or namespaces",
            "run as root, or accept posix/cpu and posix/mem",
        )
    });
    for (name, purpose) in CAPABILITIES {
        if facts.root && facts.missing_capabilities.contains(&name) {
            findings.push(warning(
                format!("{name} is missing: no {purpose}"),
                "add it to CapabilityBoundingSet= of the agent's unit, if that is wanted",
            ));
        }
    }
    findings.push(if facts.pressure {
        fine("the kernel tells of pressure (PSI)")
    } else {
        warning(
            "no /proc/pressure: pressure is absent from metrics, the pressure controller sees nothing",
            "boot with psi=1, or a kernel with CONFIG_PSI",
        )
    });
    let descriptors = facts.descriptors_max.unwrap_or(0);
    findings.push(if descriptors >= DESCRIPTORS_GOOD {
        fine("descriptors: enough for thousands of containers")
    } else {
        warning(
            format!(
                "only {descriptors} descriptors: about {} containers are sampled cheaply",
                descriptors / 64
            ),
            format!(
                "LimitNOFILE=1024:1048576 in the agent's unit, or `ulimit -Hn {DESCRIPTORS_GOOD}`"
            ),
        )
    });
    if let Some(folder) = &facts.work_dir {
        findings.extend(evaluate_folder("work_dir", folder, true));
    }
    if let Some(folder) = &facts.runtime_dir {
        findings.extend(evaluate_folder("runtime_dir", folder, false));
    }
    let address = std::net::SocketAddr::new(flags.ip, flags.port);
    findings.push(match &facts.port_taken {
        None => fine(format!("{address} is free")),
        Some(why) => warning(
            format!("{address} cannot be listened on: {why}"),
            "end what uses it (an agent that runs already?), or give --ip and --port",
        ),
    });
    findings.extend(facts.master_trouble.clone());
    findings
}

/// Authentication flags, validated as at start-up.
fn evaluate_access(flags: &Flags) -> Option<Finding> {
    let settings = flags
        .access
        .settings(flags.ip, flags.insecure, flags.hostname.clone());
    let error = settings.build().err()?;
    let mend = if flags.ip.is_loopback() {
        "see docs/security.md"
    } else {
        "`meseta tls init` makes certificates, credentials and the flags that name them; see docs/security.md"
    };
    Some(problem(chain(&error), mend))
}

/// Whether the master can be found: an unresolvable name is a problem, one that does not answer may be starting.
fn check_master(text: &str) -> Option<Finding> {
    /// Time that a master has to take a connection.
    const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
    // What is no address at all is judged with the other flags.
    let address = MasterAddress::parse(text).ok()?;
    let addresses_of = |host_port: &String| {
        let found = host_port.to_socket_addrs();
        let found = found.map_err(|error| Failure::new(format!("{host_port}: {error}")))?;
        Ok(found.collect::<Vec<SocketAddr>>())
    };
    let known = address.resolve().and_then(|masters| {
        let found = masters.iter().map(addresses_of);
        let found: Result<Vec<_>, Failure> = found.collect();
        found.map(|found| (masters.join(", "), found.concat()))
    });
    let (host_port, addresses) = match known {
        Ok(known) => known,
        Err(why) => {
            return Some(problem(
                format!("--master={text}: there is no such master: {why}"),
                "give the host and port of a master, or a name that this machine can resolve",
            ));
        }
    };
    let mut refusals = addresses
        .iter()
        .map(|address| TcpStream::connect_timeout(address, CONNECT_TIMEOUT).err());
    let answers = refusals.any(|refusal| refusal.is_none());
    (!answers).then(|| {
        warning(
            format!("--master={text}: nothing answers at {host_port}"),
            "start the master, or open the way to it; the agent goes on trying",
        )
    })
}

fn evaluate_kernel(facts: &Facts) -> Finding {
    let Some(kernel) = facts.kernel else {
        return warning("the kernel's version is no number", "");
    };
    let text = format!("Linux {}.{}", kernel.0, kernel.1);
    if kernel < KERNEL_MIN {
        problem(
            format!("{text} is too old: pidfds and clone3 are needed"),
            format!("Linux {}.{} or newer", KERNEL_MIN.0, KERNEL_MIN.1),
        )
    } else if kernel < KERNEL_GOOD {
        warning(
            format!("{text} has no cgroup.kill and no idle groups; slower ways are taken"),
            format!("Linux {}.{} or newer", KERNEL_GOOD.0, KERNEL_GOOD.1),
        )
    } else {
        fine(text)
    }
}

fn evaluate_folder(flag: &str, folder: &Folder, lasting: bool) -> Vec<Finding> {
    let path = folder.path.display();
    if !folder.writable {
        return vec![problem(
            format!("--{flag}={path} cannot be written"),
            format!("make it writable for this user, or give another --{flag}"),
        )];
    }
    let mut findings = Vec::new();
    if lasting && folder.volatile {
        findings.push(warning(
            format!("--{flag}={path} is in memory: a boot empties it, and tasks are lost"),
            "put it on a disk",
        ));
    }
    if folder.open_to_others {
        findings.push(warning(
            format!("--{flag}={path} may be written by others than its owner"),
            format!("chmod go-w {path}"),
        ));
    }
    if findings.is_empty() {
        findings.push(fine(format!("--{flag}={path} can be written")));
    }
    findings
}

fn evaluate_host(host: &Host, flags: &Flags) -> Vec<Finding> {
    let mode = match host.mode {
        Mode::None => {
            return vec![warning(
                "no cgroups are mounted: nothing is limited, usage is summed over processes",
                "mount cgroup2 at /sys/fs/cgroup",
            )];
        }
        Mode::Legacy => "v1",
        Mode::Hybrid => "v1 with the unified tree beside it",
        Mode::Unified => "v2",
    };
    let mut findings = vec![fine(format!("cgroups: {mode}"))];
    if !host.privileged {
        return findings;
    }
    for (controller, purpose) in [
        (Controller::Cpu, "CPU weights and limits"),
        (Controller::Memory, "memory limits"),
        (Controller::Pids, "limits on processes"),
        (Controller::Blkio, "figures of block devices"),
    ] {
        if !host.offers(controller) {
            let name = controller.name();
            // Without the others a root agent has no isolation to speak of.
            let severity = match controller {
                Controller::Blkio => Severity::Warning,
                _ => Severity::Problem,
            };
            findings.push(Finding {
                severity,
                what: format!("controller {name} is not there: no {purpose}"),
                mend: format!(
                    "remove cgroup_disable={name} from the kernel's command line, and mount it"
                ),
            });
        }
    }
    if let Some(text) = &flags.isolation.isolation
        && let Ok(isolation) = Isolation::parse(text)
        && let Err(error) = isolation.check(host)
    {
        findings.push(problem(format!("--isolation: {error}"), "leave it out"));
    }
    if host.mode == Mode::Unified && Path::new("/run/systemd/system").is_dir() {
        findings.push(if flags.systemd_enable_support {
            fine("systemd: containers live in a scope of their own, restarts do not touch them")
        } else {
            warning(
                "--systemd_enable_support=false: cgroups are made behind systemd's back",
                "leave it out",
            )
        });
    }
    findings
}

/// What the agent would refuse to start with, in its own words.
fn evaluate_flags(flags: &Flags) -> Vec<Finding> {
    let master = MasterAddress::parse(&flags.master)
        .err()
        .map(|error| chain(&error));
    let read = configuration::read(flags).err().map(|error| chain(&error));
    let oversubscription = Configured::read(flags).err().map(|error| chain(&error));
    let wrong = [master, read, oversubscription].into_iter().flatten();
    wrong
        .map(|text| problem(text, "see `meseta agent --help`"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(more: &[&str]) -> Flags {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            flags: Flags,
        }
        let given = ["agent", "--check"].iter().chain(more);
        <Cli as clap::Parser>::try_parse_from(given)
            .expect("valid flags")
            .flags
    }

    fn good() -> Facts {
        Facts {
            kernel: Some((6, 1)),
            root: true,
            pressure: true,
            descriptors_max: Some(1 << 20),
            work_dir: Some(Folder {
                path: "/var/lib/meseta/agent".into(),
                writable: true,
                ..Folder::default()
            }),
            ..Facts::default()
        }
    }

    fn worst(facts: &Facts) -> (Severity, String) {
        let findings = evaluate(facts, &flags(&[]));
        let worst = findings.iter().max_by_key(|finding| finding.severity);
        let worst = worst.expect("some");
        (worst.severity, worst.to_string())
    }

    #[test]
    fn a_good_machine_has_nothing_to_mend() {
        let findings = evaluate(&good(), &flags(&[]));
        assert!(
            findings
                .iter()
                .all(|finding| finding.severity == Severity::Fine && finding.mend.is_empty()),
            "{findings:?}"
        );
    }

    #[test]
    fn each_trouble_says_what_to_do() {
        type Trouble = fn(&mut Facts);
        let troubles: [(Trouble, Severity, &str); 8] = [
            (
                |f| f.kernel = Some((4, 19)),
                Severity::Problem,
                "5.4 or newer",
            ),
            (
                |f| f.kernel = Some((5, 10)),
                Severity::Warning,
                "5.15 or newer",
            ),
            (
                |f| f.memfd_noexec = Some(2),
                Severity::Problem,
                "memfd_noexec=1",
            ),
            (|f| f.root = false, Severity::Warning, "run as root"),
            (
                |f| f.missing_capabilities = vec!["CAP_KILL"],
                Severity::Warning,
                "CapabilityBoundingSet",
            ),
            (|f| f.pressure = false, Severity::Warning, "psi=1"),
            (
                |f| f.descriptors_max = Some(1024),
                Severity::Warning,
                "LimitNOFILE",
            ),
            (
                |f| f.work_dir = Some(Folder::default()),
                Severity::Problem,
                "make it writable",
            ),
        ];
        for (trouble, severity, mend) in troubles {
            let mut facts = good();
            trouble(&mut facts);
            let (found, text) = worst(&facts);
            assert_eq!(found, severity, "{text}");
            assert!(text.contains(mend), "{text}");
        }
    }

    #[test]
    fn folders_are_judged_by_the_nearest_one_there() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let folder = Folder::at(&dir.path().join("a/b"));
        assert!(folder.writable && !folder.open_to_others);
        assert_eq!(folder.path, dir.path().join("a/b"));
        let open: std::fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(dir.path(), open).expect("set");
        assert!(Folder::at(dir.path()).open_to_others);
        let file = dir.path().join("file");
        std::fs::write(&file, "").expect("written");
        assert!(!Folder::at(&file.join("below")).writable);
    }

    /// Credentials and TLS are what such an address needs; to do without is not what is recommended.
    #[test]
    fn an_exposed_address_needs_credentials_and_tls() {
        assert_eq!(evaluate_access(&flags(&[])), None);
        assert_eq!(
            evaluate_access(&flags(&["--ip=0.0.0.0", "--insecure"])),
            None
        );
        let finding = evaluate_access(&flags(&["--ip=0.0.0.0"])).expect("a problem");
        assert_eq!(finding.severity, Severity::Problem);
        assert!(finding.what.contains("--credentials=FILE"), "{finding}");
        assert!(finding.mend.contains("meseta tls init"), "{finding}");
        assert!(!finding.mend.contains("--insecure"), "{finding}");
    }

    #[test]
    fn a_master_that_nobody_knows_is_a_problem_and_a_silent_one_a_warning() {
        let finding = check_master("nosuch.invalid:5050").expect("a problem");
        assert_eq!(finding.severity, Severity::Problem, "{finding}");
        assert!(finding.what.contains("nosuch.invalid"), "{finding}");
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = taken.local_addr().expect("an address").to_string();
        assert_eq!(check_master(&address), None);
        drop(taken);
        let finding = check_master(&address).expect("a warning");
        assert_eq!(finding.severity, Severity::Warning, "{finding}");
        let file = check_master("file:///no/such/file").expect("a problem");
        assert_eq!(file.severity, Severity::Problem, "{file}");
    }

    #[test]
    fn releases_are_read() {
        assert_eq!(version("6.1.0-13-amd64"), Some((6, 1)));
        assert_eq!(version("6.18.44-fc"), Some((6, 18)));
        assert_eq!(version("five"), None);
    }

    #[test]
    fn flags_that_make_no_sense_are_problems() {
        for (flag, named) in [
            ("--resources=cpus:much", "--resources"),
            ("--master=host:port:port", "--master"),
            ("--isolation=cgroups/everything", "unknown isolator"),
            ("--resource_estimator=crystal_ball", "crystal_ball"),
            ("--qos_controller=crystal_ball", "crystal_ball"),
            ("--modules={", "--modules"),
            ("--gc_disk_headroom=2", "--gc_disk_headroom"),
        ] {
            let found = evaluate_flags(&flags(&[flag]));
            let [one] = found.as_slice() else {
                panic!("{flag}: {found:?}");
            };
            assert_eq!(one.severity, Severity::Problem);
            assert!(one.what.contains(named), "{flag}: {one}");
            // Each cause once.
            assert_eq!(one.what.matches(named).count(), 1, "{flag}: {one}");
        }
        assert!(evaluate_flags(&flags(&[])).is_empty());
        assert!(!Folder::at(Path::new("/proc/meseta")).writable);
    }
}
