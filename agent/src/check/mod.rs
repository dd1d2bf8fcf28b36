//! `meseta agent --check`: reports what this machine lacks for an agent with these flags, and how to repair it.
//!
//! [`check`] reads the machine and evaluates it. It changes nothing, and an agent may run at the same time. The
//! evaluation is pure, over [`Facts`] and [`CgroupFacts`].
//!
//! - [`facts`]: facts about the machine;
//! - [`cgroups`]: facts about its cgroups, and their evaluation.

mod cgroups;
mod facts;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use meseta_daemon::advertised::is_of_this_machine;
use meseta_daemon::authentication::SettingsError;
use meseta_daemon::error_chain::chain;
use meseta_daemon::tls::{self, FileError, TlsError};
use meseta_isolators::Host;

use crate::configuration::flags::Flags;
use crate::configuration::{self, Configuration};
use crate::failure::Failure;
use crate::link::MasterAddress;
use crate::link::reach::is_out_of_reach;
use crate::oversubscription::Configured;
use crate::run::{hostname_of, ip_to_advertise, narrow};
pub(crate) use cgroups::is_swap_uncounted;
use cgroups::{CgroupFacts, evaluate_host};
use facts::{CAPABILITIES, Facts, Folder, Room};

/// The severity of a finding.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub enum Severity {
    /// Nothing to repair here.
    Fine,
    /// The agent runs, but something is missing.
    Warning,
    /// The agent would not start, or would start no task.
    Problem,
}

/// The result of one inspection.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Finding {
    /// The severity of the finding.
    pub severity: Severity,
    pub what: String,
    /// The remedy; empty if nothing needs to be done.
    pub mend: String,
}

impl Finding {
    /// A finding without a trouble.
    pub fn fine(what: impl Into<String>) -> Self {
        Self::new(Severity::Fine, what, "")
    }

    /// A missing feature without which the agent still runs.
    pub fn warning(what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self::new(Severity::Warning, what, mend)
    }

    /// A missing requirement without which the agent or its tasks cannot run.
    pub fn problem(what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self::new(Severity::Problem, what, mend)
    }

    fn new(severity: Severity, what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            severity,
            what: what.into(),
            mend: mend.into(),
        }
    }
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

/// The oldest supported kernel: the agent needs pidfds, and `clone3` for process creation.
const KERNEL_MIN: (u32, u32) = (5, 4);
/// The oldest recommended kernel: it has `cgroup.kill`, and `cpu.idle` arrived a little later.
const KERNEL_GOOD: (u32, u32) = (5, 15);
/// Recommended descriptors: sixteen for the control files of a container and a few for its pipes, for a thousand
/// containers.
const DESCRIPTORS_GOOD: u64 = 65_536;
/// From this value on, `vm.memfd_noexec` forbids the execution of files without a name.
const MEMFD_NOEXEC_FORBIDS: u64 = 2;
/// Free space for the checkpoints of a busy node until the agent removes old sandboxes.
const ROOM_MIN_BYTES: u64 = 64 << 20;
/// Free space below this fraction of a filesystem, a twentieth, is a warning.
const ROOM_LOW_DIVISOR: u64 = 20;
/// Files in the sandboxes of a few tasks.
const FILES_MIN: u64 = 1_000;

/// Inspects the machine and the connection to the master.
pub fn check(flags: &Flags) -> Vec<Finding> {
    let mut findings = check_machine(flags);
    findings.extend(check_master(&flags.master));
    findings.extend(check_advertised(flags));
    findings
}

/// Inspects the machine alone.
pub fn check_machine(flags: &Flags) -> Vec<Finding> {
    let host = Host::detect().map_err(|error| error.to_string());
    let host = host.and_then(|mut host| {
        let narrowed = narrow(&mut host, &flags.cgroups_hierarchy);
        narrowed.map(|()| host).map_err(|error| error.to_string())
    });
    let mut findings = evaluate(&Facts::read(flags), flags);
    match &host {
        Ok(host) => findings.extend(evaluate_host(host, &CgroupFacts::read(host), flags)),
        Err(error) => findings.push(Finding::problem(
            format!("failed to use cgroups: {error}"),
            "mount them below --cgroups_hierarchy",
        )),
    }
    findings.extend(evaluate_access(flags));
    findings.extend(evaluate_certificate(flags));
    findings.extend(evaluate_flags(flags));
    findings
}

fn evaluate(facts: &Facts, flags: &Flags) -> Vec<Finding> {
    let mut findings = vec![evaluate_kernel(facts)];
    if facts
        .memfd_noexec
        .is_some_and(|set| set >= MEMFD_NOEXEC_FORBIDS)
    {
        findings.push(Finding::problem(
            "vm.memfd_noexec=2 forbids the launcher, which runs from a sealed copy in memory",
            "sysctl vm.memfd_noexec=1",
        ));
    }
    findings.push(if facts.root {
        Finding::fine("running as root")
    } else {
        Finding::warning(
            "not root: tasks would run as this user, without cgroups or namespaces",
            "run as root, or accept posix/cpu and posix/mem",
        )
    });
    for (name, purpose) in CAPABILITIES {
        if facts.root && facts.missing_capabilities.contains(&name) {
            findings.push(Finding::warning(
                format!("{name} is missing: no {purpose}"),
                "add it to CapabilityBoundingSet= of the agent's unit, if that is wanted",
            ));
        }
    }
    findings.push(if facts.pressure {
        Finding::fine("the kernel reports pressure (PSI)")
    } else {
        Finding::warning(
            "no /proc/pressure: metrics lack pressure, and the pressure controller has no input",
            "boot with psi=1, or a kernel with CONFIG_PSI",
        )
    });
    let descriptors = facts.descriptors_max.unwrap_or(0);
    findings.push(if descriptors >= DESCRIPTORS_GOOD {
        Finding::fine("descriptors: enough for thousands of containers")
    } else {
        Finding::warning(
            format!(
                "the open-file limit is {descriptors}: beyond about {} containers, measuring \
                 costs more CPU",
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
    let left = facts.abandoned.iter();
    findings.extend(left.map(|left| Finding::warning(left.what(), left.cure())));
    findings.push(evaluate_address(
        facts,
        SocketAddr::new(flags.ip, flags.port),
    ));
    findings
}

fn evaluate_address(facts: &Facts, address: SocketAddr) -> Finding {
    match &facts.listen_error {
        None => Finding::fine(format!("{address} is free")),
        // No other process can have the address.
        Some((io::ErrorKind::AddrNotAvailable, _)) => Finding::problem(
            format!(
                "no interface of this machine has --ip={}: the agent would not start",
                address.ip()
            ),
            "give --ip an address of this machine (`ip -brief address` lists them)",
        ),
        Some(_) if facts.runs_already => Finding::fine(format!(
            "{address}: the agent of this work directory listens already"
        )),
        Some((_, why)) => Finding::warning(
            format!("failed to listen on {address}: {why}"),
            "end the process that uses it (another agent?), or give another --ip or --port",
        ),
    }
}

/// Evaluates the flags of authentication and the credentials for the master, validated as at start-up.
fn evaluate_access(flags: &Flags) -> Option<Finding> {
    let settings = flags
        .access
        .settings(flags.ip, flags.insecure, flags.hostname.clone());
    let settings = settings.build().err();
    let error = settings.or_else(|| flags.access.identity().err())?;
    let mend = if is_denied(&error) {
        "run this as root or as the agent's user; else give that user the file"
    } else if flags.ip.is_loopback() {
        "see docs/security.md"
    } else {
        "`meseta tls init` makes certificates, credentials and the flags that name them; see docs/security.md"
    };
    Some(Finding::problem(chain(&error), mend))
}

/// Whether the current user may not read the file.
fn is_denied(error: &SettingsError) -> bool {
    let (SettingsError::File { cause, .. } | SettingsError::Tls(TlsError::File(cause))) = error
    else {
        return false;
    };
    let FileError::Read { source, .. } = cause else {
        return false;
    };
    source.kind() == io::ErrorKind::PermissionDenied
}

/// Whether the agent's certificate is valid for the name that the agent registers with.
fn evaluate_certificate(flags: &Flags) -> Option<Finding> {
    let path = flags.access.ssl_cert_file.as_deref()?;
    let hostname = hostname_of(flags);
    // The check of the authentication flags reports an unreadable certificate.
    if tls::is_for(path, &hostname).ok()? {
        return None;
    }
    let what = format!(
        "the certificate in {} is not for {hostname:?}, the name that this agent registers with",
        path.display()
    );
    let mend = "give the certificate's name with --hostname, or give the agent a certificate for \
        this name";
    Some(match flags.access.ssl_ca_file {
        Some(_) => {
            let what = format!("{what}: a master that requires certificates refuses it");
            Finding::problem(what, mend)
        }
        None => Finding::warning(what, mend),
    })
}

/// Whether the master can be found. An unresolvable name is a problem; a master that does not answer may be starting.
fn check_master(text: &str) -> Option<Finding> {
    /// Timeout for the connection to a master.
    const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
    // The check of the other flags reports an invalid address.
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
            return Some(Finding::problem(
                format!("--master={text}: this master does not exist: {why}"),
                "give the host and port of a master, or a name that this machine can resolve",
            ));
        }
    };
    let mut refusals = addresses
        .iter()
        .map(|address| TcpStream::connect_timeout(address, CONNECT_TIMEOUT).err());
    let answers = refusals.any(|refusal| refusal.is_none());
    (!answers).then(|| {
        Finding::warning(
            format!("--master={text}: nothing answers at {host_port}"),
            "start the master, or open the network path to it; the agent keeps trying",
        )
    })
}

/// Whether others can reach the address that the agent would advertise, judged by the addresses of its masters.
fn check_advertised(flags: &Flags) -> Option<Finding> {
    let master = MasterAddress::parse(&flags.master).ok()?;
    let advertised = ip_to_advertise(flags, flags.ip, &master);
    let masters = master.resolve().ok()?.into_iter();
    let masters = masters.filter_map(|one| one.to_socket_addrs().ok());
    let masters: Vec<_> = masters.flatten().map(|address| address.ip()).collect();
    is_out_of_reach(advertised, &masters, &is_of_this_machine).then(|| {
        Finding::warning(
            format!("the agent would advertise {advertised}, and its master is on another machine"),
            "give --ip or --advertise_ip an address at which other machines reach this machine",
        )
    })
}

fn evaluate_kernel(facts: &Facts) -> Finding {
    let Some(kernel) = facts.kernel else {
        return Finding::warning("the kernel's version is not a number", "");
    };
    let text = format!("Linux {}.{}", kernel.0, kernel.1);
    if kernel < KERNEL_MIN {
        Finding::problem(
            format!("{text} is too old: pidfds and clone3 are needed"),
            format!("Linux {}.{} or newer", KERNEL_MIN.0, KERNEL_MIN.1),
        )
    } else if kernel < KERNEL_GOOD {
        Finding::warning(
            format!("{text} has no cgroup.kill and no idle groups; the agent uses slower methods"),
            format!("Linux {}.{} or newer", KERNEL_GOOD.0, KERNEL_GOOD.1),
        )
    } else {
        Finding::fine(text)
    }
}

fn evaluate_folder(flag: &str, folder: &Folder, lasting: bool) -> Vec<Finding> {
    let path = folder.path.display();
    if !folder.writable {
        return vec![Finding::problem(
            format!("failed to write to --{flag}={path}"),
            format!("make it writable for this user, or give another --{flag}"),
        )];
    }
    let mut findings = Vec::new();
    let room = folder.room.filter(|_| lasting);
    findings.extend(room.and_then(|room| evaluate_room(flag, folder, room)));
    if lasting && folder.volatile {
        findings.push(Finding::warning(
            format!("--{flag}={path} is in memory: a reboot empties it, and tasks are lost"),
            "put it on a disk",
        ));
    }
    if folder.open_to_others {
        findings.push(Finding::warning(
            format!("users other than its owner can write to --{flag}={path}"),
            format!("chmod go-w {path}"),
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::fine(format!("--{flag}={path} can be written")));
    }
    findings
}

/// Whether there is free space for checkpoints and sandboxes.
fn evaluate_room(flag: &str, folder: &Folder, room: Room) -> Option<Finding> {
    let path = folder.path.display();
    let mend = "remove unneeded files (`df`, `du -x`), or use a larger file system";
    let megabytes = room.free_bytes >> 20;
    if room.free_files.is_some_and(|files| files < FILES_MIN) {
        let what =
            format!("--{flag}={path} is on a filesystem that can hold no more files (`df -i`)");
        return Some(Finding::problem(what, mend));
    }
    if room.free_bytes < ROOM_MIN_BYTES {
        let what = format!("--{flag}={path} is on a full filesystem: {megabytes} MB are free");
        return Some(Finding::problem(what, mend));
    }
    if room.free_bytes < room.total_bytes / ROOM_LOW_DIVISOR {
        let what = format!(
            "--{flag}={path} is on a filesystem that is nearly full: {megabytes} MB are free"
        );
        return Some(Finding::warning(what, mend));
    }
    None
}

/// The flags that the agent would refuse at the start, with its own error messages.
fn evaluate_flags(flags: &Flags) -> Vec<Finding> {
    let master = MasterAddress::parse(&flags.master)
        .err()
        .map(|error| chain(&error));
    let configuration = configuration::read(flags);
    let misnamed = configuration.iter().flat_map(Configuration::misnamed);
    let misnamed: Vec<_> = misnamed
        .map(|text| Finding::warning(text, "correct the name, or ignore this warning"))
        .collect();
    let kinds = configuration.as_ref().ok();
    let kinds = kinds.and_then(|configuration| configuration.check_kinds(0).err());
    let kinds = kinds.map(|error| {
        let remedy = "give fewer; only an agent that had as many before starts with them";
        Finding::warning(chain(&error), remedy)
    });
    let read = configuration.err().map(|error| chain(&error));
    let oversubscription = Configured::read(flags).err().map(|error| chain(&error));
    let wrong = [master, read, oversubscription].into_iter().flatten();
    wrong
        .map(|text| Finding::problem(text, "see `meseta agent --help`"))
        .chain(misnamed)
        .chain(kinds)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    pub(super) fn flags(more: &[&str]) -> Flags {
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
    fn sound_machine_has_no_troubles() {
        let findings = evaluate(&good(), &flags(&[]));
        assert!(
            findings
                .iter()
                .all(|finding| finding.severity == Severity::Fine && finding.mend.is_empty()),
            "{findings:?}"
        );
    }

    #[test]
    fn misnamed_resource_is_a_warning() {
        let found = |value: &str| evaluate_flags(&flags(&[&format!("--resources={value}")]));
        assert!(found("cpus:4;mem:100;licences:3").is_empty());
        let findings = found("cpu:4;mem:100");
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].severity, Severity::Warning);
        assert!(findings[0].to_string().contains("did you mean `cpus`"));
    }

    #[test]
    fn each_trouble_names_its_remedy() {
        type Trouble = fn(&mut Facts);
        let troubles: [(Trouble, Severity, &str); 11] = [
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
            (
                |f| f.work_dir.as_mut().expect("there").room = Some(room(1, 100)),
                Severity::Problem,
                "1 MB are free",
            ),
            (
                |f| f.listen_error = Some(in_use()),
                Severity::Warning,
                "give another --ip or --port",
            ),
            (
                |f| f.listen_error = Some((io::ErrorKind::AddrNotAvailable, String::new())),
                Severity::Problem,
                "ip -brief address",
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

    fn in_use() -> (io::ErrorKind, String) {
        (
            io::ErrorKind::AddrInUse,
            "Address already in use".to_owned(),
        )
    }

    fn room(free_mb: u64, total_mb: u64) -> Room {
        Room {
            free_bytes: free_mb << 20,
            total_bytes: total_mb << 20,
            free_files: Some(100_000),
        }
    }

    #[test]
    fn disk_room_counts_bytes_and_files() {
        let folder = Folder::default();
        let severity = |room| evaluate_room("work_dir", &folder, room).map(|one| one.severity);
        assert_eq!(severity(room(1_000, 10_000)), None);
        assert_eq!(severity(room(400, 10_000)), Some(Severity::Warning));
        assert_eq!(severity(room(63, 100)), Some(Severity::Problem));
        let no_files = Room {
            free_files: Some(0),
            ..room(1_000, 10_000)
        };
        assert_eq!(severity(no_files), Some(Severity::Problem));
        let uncounted = Room {
            free_files: None,
            ..room(1_000, 10_000)
        };
        assert_eq!(severity(uncounted), None);
    }

    #[test]
    fn port_of_running_agent_is_accepted() {
        let facts = Facts {
            runs_already: true,
            listen_error: Some(in_use()),
            ..good()
        };
        assert_eq!(worst(&facts).0, Severity::Fine);
    }

    #[test]
    fn missing_folders_use_nearest_existing_parent() {
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

    /// An exposed address needs credentials and TLS; `--insecure` is not recommended.
    #[test]
    fn exposed_address_needs_credentials_and_tls() {
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

    /// Regression: the agent would end at once, and the check found nothing.
    #[test]
    fn unreadable_credential_is_a_problem() {
        let finding = evaluate_access(&flags(&["--credential=/no/such/file"])).expect("a problem");
        assert_eq!(finding.severity, Severity::Problem);
        assert!(finding.what.contains("--credential"), "{finding}");
        let of = |kind: io::ErrorKind| SettingsError::File {
            flag: "credential",
            cause: FileError::Read {
                path: "/etc/meseta/agent/credential".into(),
                source: kind.into(),
            },
        };
        assert!(is_denied(&of(io::ErrorKind::PermissionDenied)));
        assert!(!is_denied(&of(io::ErrorKind::NotFound)));
    }

    /// Regression: the master refused the agent for ever, and the check found nothing.
    #[test]
    fn certificate_for_other_host_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("cert.pem");
        let names = vec!["node1.test".to_owned(), "127.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
        std::fs::write(&path, made.cert.pem()).expect("written");
        let certificate = format!("--ssl_cert_file={}", path.display());
        let key = format!("--ssl_key_file={}", path.display());
        let authority = format!("--ssl_ca_file={}", path.display());
        let found = |more: &[&str]| {
            let all = [certificate.as_str(), &key]
                .into_iter()
                .chain(more.iter().copied());
            evaluate_certificate(&flags(&all.collect::<Vec<_>>()))
        };
        for good in [
            "--hostname=node1.test",
            "--hostname=127.0.0.1",
            "--ip=127.0.0.1",
        ] {
            assert_eq!(found(&[good, &authority]), None, "{good}");
        }
        for bad in ["--hostname=node2.test", "--ip=127.0.0.2"] {
            let finding = found(&[bad, &authority]).expect("a problem");
            assert_eq!(finding.severity, Severity::Problem, "{finding}");
            assert!(finding.mend.contains("--hostname"), "{finding}");
            let finding = found(&[bad]).expect("a warning");
            assert_eq!(finding.severity, Severity::Warning, "{finding}");
        }
    }

    #[test]
    fn unknown_master_is_worse_than_silent() {
        let finding = check_master("nosuch.invalid:5050").expect("a problem");
        assert_eq!(finding.severity, Severity::Problem, "{finding}");
        assert!(finding.what.contains("nosuch.invalid"), "{finding}");
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = taken.local_addr().expect("an address").to_string();
        assert_eq!(check_master(&address), None);
        // Nothing will listen on this port: the kernel never assigns it as a free port.
        let finding = check_master("127.0.0.1:1").expect("a warning");
        assert_eq!(finding.severity, Severity::Warning, "{finding}");
        let file = check_master("file:///no/such/file").expect("a problem");
        assert_eq!(file.severity, Severity::Problem, "{file}");
    }

    #[test]
    fn releases_are_read() {
        assert_eq!(facts::version("6.1.0-13-amd64"), Some((6, 1)));
        assert_eq!(facts::version("6.18.44-fc"), Some((6, 18)));
        assert_eq!(facts::version("five"), None);
    }

    #[test]
    fn invalid_flags_are_problems() {
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
            // Each cause appears once.
            assert_eq!(one.what.matches(named).count(), 1, "{flag}: {one}");
        }
        assert!(evaluate_flags(&flags(&[])).is_empty());
        assert!(!Folder::at(Path::new("/proc/meseta")).writable);
    }
}
