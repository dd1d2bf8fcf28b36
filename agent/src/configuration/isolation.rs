//! Evaluates the isolation flags: isolators, rights of containers, measured and enforced limits.
//!
//! Reads the folder of system call profiles once, at the start: a task selects a profile by name, never by path.
//! Invariant: a flag without effect, because its isolator is off, is refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use meseta_isolators::{
    CapabilitySet, DeviceKind, DeviceRule, Host, Isolation, NodeOptions, PortRange, SeccompProfile,
};
use meseta_proto::Invalid;
use meseta_proto::mesos::v1 as pb;
use meseta_resources::{Ranges, Resources, Role};

use super::error::{ConfigurationError, refused};
use super::flags::{Flags, text_of};
use super::isolation_flags::IsolationFlags;
use super::weakness::{self, Request, Weakness};
use crate::capability_grants::CapabilityGrants;
use crate::host_paths::{self, HostPaths};
use crate::seccomp_profile;

/// Profiles in one folder: a folder with more is probably the wrong folder.
const PROFILES_MAX: usize = 256;

/// Mesos's names of isolators that have another name here, or that are always on.
const SPELLINGS: [(&str, &str); 6] = [
    ("filesystem/linux", "namespaces/mnt"),
    ("cgroups/io", "cgroups/blkio"),
    ("posix/disk", "disk/du"),
    ("process", "posix/cpu,posix/mem"),
    ("cgroups", "cgroups/cpu,cgroups/mem"),
    ("filesystem/posix", ""),
];

/// The rights that tasks may request.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskRights {
    /// The seccomp profiles by name.
    pub(crate) profiles: Arc<BTreeMap<String, SeccompProfile>>,
    /// Whether a task may share the host's process numbers.
    pub(crate) share_pid: bool,
    /// Whether a task may share the host's System V and POSIX objects.
    pub(crate) share_ipc: bool,
    /// Whether `linux/capabilities` is on.
    pub(crate) capabilities: bool,
    /// Whether `linux/seccomp` is on.
    pub(crate) seccomp: bool,
    /// Whether a task may disable its system call filter.
    pub(crate) unconfined: bool,
    /// Whether `filesystem/shm` is on.
    pub(crate) shm: bool,
    /// Whether `namespaces/ipc` is on.
    pub(crate) ipc: bool,
    /// Whether `namespaces/mnt` is on.
    pub(crate) mounts: bool,
    /// The users and roles that may have capabilities with effects outside the container.
    pub(crate) grants: Arc<CapabilityGrants>,
    /// The files of the machine that tasks may mount and fetch.
    pub(crate) host_paths: Arc<HostPaths>,
}

/// The periodic inspections, and whether each ends containers.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct InspectionSettings {
    /// The interval between measures of folders; `None` without `disk/du`.
    pub(crate) disk: Option<Duration>,
    /// Whether a folder over its quota ends its container.
    pub(crate) enforce_disk: bool,
    /// The interval between inspections of ports; `None` without `network/ports`.
    pub(crate) ports: Option<Duration>,
    /// Whether listening on a foreign port ends the container.
    pub(crate) enforce_ports: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct IsolationSettings {
    asked: Option<Isolation>,
    /// The options for all containers.
    pub(crate) node: NodeOptions,
    profiles: Arc<BTreeMap<String, SeccompProfile>>,
    /// Whether a task may disable its system call filter.
    unconfined: bool,
    /// Whether a task may share the host's process numbers, and its System V and POSIX objects.
    share_pid: bool,
    share_ipc: bool,
    grants: Arc<CapabilityGrants>,
    allowed_host_paths: Option<Vec<PathBuf>>,
    /// The flags that each need an isolator.
    requests: Vec<Request>,
    flags: IsolationFlags,
}

/// Evaluates the flags; `resources` are the agent's configured resources.
pub(crate) fn read(
    flags: &Flags,
    resources: &Resources,
) -> Result<IsolationSettings, ConfigurationError> {
    // Where everybody may run tasks as root, defaults stricter than Mesos's gain nothing.
    let is_open = flags.access.is_open(flags.ip, flags.insecure);
    let requests = weakness::requests(flags);
    let flags = &flags.isolation;
    for (flag, pause) in [
        (
            "container_disk_watch_interval",
            flags.container_disk_watch_interval,
        ),
        (
            "container_ports_watch_interval",
            flags.container_ports_watch_interval,
        ),
    ] {
        if pause.is_zero() {
            return Err(ConfigurationError::Zero(flag));
        }
    }
    let asked = flags
        .isolation
        .as_deref()
        .map(|text| Isolation::parse(&respelled(text)));
    let profiles = match &flags.seccomp_config_dir {
        Some(dir) => read_profiles(dir)?,
        None => BTreeMap::new(),
    };
    let node = NodeOptions {
        seccomp: default_profile(flags, &profiles)?,
        devices: read_devices(flags)?,
        shm_bytes: flags.default_container_shm_size.as_bytes(),
        revocable_cpu_idle: flags.revocable_cpu_idle,
        count_processes: flags.cgroups_cpu_enable_pids_and_tids_count,
        isolated_ports: isolated_ports(flags, resources)?,
        ..with_capabilities(flags)?
    };
    let given = flags.allowed_host_paths.as_deref();
    let allowed_host_paths =
        host_paths::allowed(given, is_open).map_err(|why| refused("allowed_host_paths", why))?;
    Ok(IsolationSettings {
        grants: Arc::new(read_grants(flags, node.capabilities)?),
        allowed_host_paths,
        requests,
        asked: asked.transpose().map_err(ConfigurationError::Isolation)?,
        node,
        profiles: Arc::new(profiles),
        unconfined: flags.allow_unconfined_seccomp.unwrap_or(is_open),
        share_pid: flags
            .disallow_sharing_agent_pid_namespace
            .map_or(is_open, |disallowed| !disallowed),
        share_ipc: flags
            .disallow_sharing_agent_ipc_namespace
            .map_or(is_open, |disallowed| !disallowed),
        flags: flags.clone(),
    })
}

fn respelled(text: &str) -> String {
    let names = text.split(',').map(str::trim).map(|name| {
        let ours = SPELLINGS.iter().find(|(theirs, _)| *theirs == name);
        ours.map_or(name, |(_, ours)| ours)
    });
    names.collect::<Vec<_>>().join(",")
}

/// The value of the capability flags. On the wire unknown names are ignored; in a flag they are errors.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedCapabilities {
    capabilities: Vec<String>,
}

fn with_capabilities(flags: &IsolationFlags) -> Result<NodeOptions, ConfigurationError> {
    let read = |flag: &'static str, text: &Option<String>| match text {
        Some(text) => serde_json::from_str::<NamedCapabilities>(text)
            .map_err(|error| error.to_string())
            .and_then(|named| {
                let names = named.capabilities.iter().map(String::as_str);
                CapabilitySet::from_names(names).map_err(|error| error.to_string())
            })
            .map(Some)
            .map_err(|why| refused(flag, why)),
        None => Ok(None),
    };
    let granted = read("effective_capabilities", &flags.effective_capabilities)?;
    let bounding = read("bounding_capabilities", &flags.bounding_capabilities)?;
    if let (Some(granted), Some(bounding)) = (granted, bounding)
        && !granted.is_within(bounding)
    {
        return Err(refused(
            "effective_capabilities",
            format!("{granted} is not a subset of the bounding capabilities {bounding}"),
        ));
    }
    let usual = NodeOptions::default();
    Ok(NodeOptions {
        capabilities: bounding.or(granted).unwrap_or(usual.capabilities),
        granted_capabilities: granted,
        ..usual
    })
}

fn read_grants(
    flags: &IsolationFlags,
    bounding: CapabilitySet,
) -> Result<CapabilityGrants, ConfigurationError> {
    let Some(value) = &flags.granted_capabilities else {
        return Ok(CapabilityGrants::default());
    };
    let flag = "granted_capabilities";
    let text = text_of(flag, value)?;
    CapabilityGrants::parse(&text, bounding).map_err(|why| refused(flag, why))
}

/// Capabilities by their names in the messages.
pub(crate) fn capability_set(info: &pb::CapabilityInfo) -> Result<CapabilitySet, Invalid> {
    use pb::capability_info::Capability;
    let names: Vec<_> = info
        .capabilities
        .iter()
        .map(|number| Capability::try_from(*number).unwrap_or(Capability::Unknown))
        .map(|one| one.as_str_name())
        .collect();
    CapabilitySet::from_names(names).map_err(Invalid::from_error)
}

fn read_profiles(dir: &Path) -> Result<BTreeMap<String, SeccompProfile>, ConfigurationError> {
    let flag = "seccomp_config_dir";
    let failed = |why: String| refused(flag, format!("{}: {why}", dir.display()));
    let entries = std::fs::read_dir(dir).map_err(|error| failed(error.to_string()))?;
    let mut profiles = BTreeMap::new();
    for entry in entries {
        let entry = entry.map_err(|error| failed(error.to_string()))?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if !entry.path().is_file() {
            continue;
        }
        if profiles.len() >= PROFILES_MAX {
            return Err(failed(format!("it holds more than {PROFILES_MAX} files")));
        }
        let profile = std::fs::read(entry.path())
            .map_err(Invalid::from_error)
            .and_then(|bytes| seccomp_profile::parse(&bytes))
            .map_err(|why| failed(format!("the profile {name:?} is invalid: {why}")))?;
        profiles.insert(name, profile);
    }
    Ok(profiles)
}

fn default_profile(
    flags: &IsolationFlags,
    profiles: &BTreeMap<String, SeccompProfile>,
) -> Result<Option<SeccompProfile>, ConfigurationError> {
    let Some(name) = &flags.seccomp_profile_name else {
        return Ok(None);
    };
    let flag = "seccomp_profile_name";
    if flags.seccomp_config_dir.is_none() {
        return Err(refused(
            flag,
            "give the directory of profiles with --seccomp_config_dir",
        ));
    }
    let profile = profiles.get(name).cloned();
    let missing = || {
        refused(
            flag,
            format!("{name:?} does not exist in --seccomp_config_dir"),
        )
    };
    profile.ok_or_else(missing).map(Some)
}

fn read_devices(flags: &IsolationFlags) -> Result<Vec<DeviceRule>, ConfigurationError> {
    let Some(text) = &flags.allowed_devices else {
        return Ok(Vec::new());
    };
    let flag = "allowed_devices";
    let list = meseta_proto::json::from_slice::<pb::DeviceWhitelist>(text.as_bytes())
        .map_err(|error| refused(flag, error.to_string()))?;
    let rules = list.allowed_devices.iter().map(device_rule);
    rules
        .collect::<Result<_, _>>()
        .map_err(|why| refused(flag, why))
}

fn device_rule(entry: &pb::DeviceAccess) -> Result<DeviceRule, Invalid> {
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
    let path = entry
        .device
        .path
        .as_deref()
        .ok_or("a device needs its path")?;
    let found = std::fs::metadata(path).map_err(|error| format!("{path}: {error}"))?;
    let kind = match found.file_type() {
        kind if kind.is_char_device() => DeviceKind::Character,
        kind if kind.is_block_device() => DeviceKind::Block,
        _ => return Err(format!("{path} is not a device").into()),
    };
    let number = found.rdev();
    let access = &entry.access;
    Ok(DeviceRule {
        kind,
        major: Some(rustix::fs::major(number)),
        minor: Some(rustix::fs::minor(number)),
        read: access.read(),
        write: access.write(),
        mknod: access.mknod(),
    })
}

fn isolated_ports(
    flags: &IsolationFlags,
    resources: &Resources,
) -> Result<Option<Vec<PortRange>>, ConfigurationError> {
    let flag = "container_ports_isolated_range";
    match &flags.container_ports_isolated_range {
        Some(_) if flags.check_agent_port_range_only => Err(refused(
            flag,
            "give either this or --check_agent_port_range_only",
        )),
        Some(text) => {
            let parsed = Resources::parse(&format!("ports:{text}"), &Role::default());
            let parsed = parsed.map_err(|error| refused(flag, error.to_string()))?;
            Ok(Some(port_ranges(&parsed)))
        }
        None if flags.check_agent_port_range_only => {
            let given = port_ranges(resources);
            // The range that the agent detects if no ports were given.
            let usual = || {
                vec![PortRange {
                    first: 31000,
                    last: 32000,
                }]
            };
            Ok(Some(if given.is_empty() { usual() } else { given }))
        }
        None => Ok(None),
    }
}

/// The ports among resources.
pub(crate) fn port_ranges(resources: &Resources) -> Vec<PortRange> {
    let ports = resources
        .iter()
        .filter(|resource| resource.name().as_str() == "ports")
        .filter_map(|resource| resource.value().as_ranges().cloned())
        .fold(Ranges::default(), |all, more| all.union(&more));
    let port = |number: u64| u16::try_from(number).unwrap_or(u16::MAX);
    let range = |range: meseta_resources::Range| PortRange {
        first: port(range.begin()),
        last: port(range.end()),
    };
    ports.iter().map(range).collect()
}

impl IsolationSettings {
    /// The isolators on this machine: the named isolators, or else all hardening isolators; and the isolators that the
    /// enforced limits need.
    pub(crate) fn isolation(&self, host: &Host) -> Result<Isolation, ConfigurationError> {
        let mut isolation = match &self.asked {
            Some(asked) => asked.clone(),
            None => Isolation::hardened_for(host),
        };
        for (flag, on, needs) in [
            (
                "enforce_container_disk_quota",
                self.flags.enforce_container_disk_quota,
                "disk/du",
            ),
            (
                "enforce_container_ports",
                self.flags.enforce_container_ports,
                "network/ports",
            ),
        ] {
            if !on || isolation.has(needs) {
                continue;
            }
            if self.asked.is_some() {
                return Err(refused(flag, format!("it needs {needs} in --isolation")));
            }
            isolation = isolation
                .and(needs)
                .map_err(ConfigurationError::Isolation)?;
        }
        Ok(isolation)
    }

    /// Describes where these isolators provide less than requested, or than usual for root. Refused unless the operator
    /// accepts the weakness.
    pub(crate) fn weakness(
        &self,
        isolation: &Isolation,
        host: &Host,
        is_root: bool,
    ) -> Result<Weakness, ConfigurationError> {
        let is_named = self.asked.is_some();
        // Named isolators are not replaced by others: without their trees the agent does not start.
        if let Err(source) = isolation.check(host)
            && !host.unusable.is_empty()
        {
            let remedy = weakness::unusable(host);
            return Err(ConfigurationError::UnusableTrees { source, remedy });
        }
        let found = Weakness::find(isolation, is_named, &self.requests, host, is_root);
        if found.grave.is_empty() || self.flags.allow_weak_isolation {
            return Ok(found);
        }
        Err(ConfigurationError::WeakIsolation(found.grave.join("; ")))
    }

    /// The rights that tasks may request under these isolators; `own` are the agent's files and folders.
    pub(crate) fn rights(&self, isolation: &Isolation, own: Vec<PathBuf>) -> TaskRights {
        let host_paths = HostPaths::new(self.allowed_host_paths.clone(), own);
        TaskRights {
            profiles: self.profiles.clone(),
            share_pid: self.share_pid,
            share_ipc: self.share_ipc,
            capabilities: isolation.has("linux/capabilities"),
            seccomp: isolation.has("linux/seccomp"),
            unconfined: self.unconfined,
            shm: isolation.has("filesystem/shm"),
            ipc: isolation.has("namespaces/ipc"),
            mounts: isolation.has("namespaces/mnt"),
            grants: self.grants.clone(),
            host_paths: Arc::new(host_paths),
        }
    }

    /// The inspections under these isolators.
    pub(crate) fn watch(&self, isolation: &Isolation) -> InspectionSettings {
        let flags = &self.flags;
        let disk = isolation.has("disk/du");
        let ports = isolation.has("network/ports");
        InspectionSettings {
            disk: disk.then_some(flags.container_disk_watch_interval),
            enforce_disk: flags.enforce_container_disk_quota,
            ports: ports.then_some(flags.container_ports_watch_interval),
            enforce_ports: flags.enforce_container_ports,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }

    fn settings(args: &[&str], resources: &str) -> Result<IsolationSettings, String> {
        let usual = ["agent", "--master=127.0.0.1:5050"];
        let line = Line::try_parse_from(usual.iter().chain(args));
        let flags = line.map_err(|error| error.to_string())?.flags;
        let resources = Resources::parse(resources, &Role::default()).expect("sound");
        read(&flags, &resources).map_err(|error| meseta_daemon::error_chain::chain(&error))
    }

    #[test]
    fn invalid_isolation_flags_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("bad.json"), "{}").expect("written");
        let bad = format!("--seccomp_config_dir={}", folder.path().display());
        for (args, complaint) in [
            (vec!["--isolation=cgroups/cpus"], "unknown isolator"),
            (vec!["--isolation=cgroups/cpu,cgroups/cpu"], "cgroups/cpu"),
            (
                vec!["--seccomp_profile_name=x"],
                "with --seccomp_config_dir",
            ),
            (vec!["--seccomp_config_dir=/nowhere"], "No such file"),
            (vec![bad.as_str()], "\"bad.json\" is invalid"),
            (
                vec!["--bounding_capabilities={\"capabilities\": [\"FLY\"]}"],
                "bounding_capabilities",
            ),
            (
                vec!["--effective_capabilities=[1"],
                "effective_capabilities",
            ),
            (
                vec![
                    "--granted_capabilities={\"grants\": [{\"users\": [\"a\"], \"capabilities\": [\"NET_RAW\"]}]}",
                ],
                "--granted_capabilities is invalid: grant 1: CAP_NET_RAW is not among",
            ),
            (
                vec!["--granted_capabilities=file:///nowhere"],
                "cannot be read",
            ),
            (vec!["--allowed_host_paths=data"], "not an absolute path"),
            (
                vec![
                    "--bounding_capabilities={\"capabilities\": [\"KILL\"]}",
                    "--effective_capabilities={\"capabilities\": [\"CHOWN\"]}",
                ],
                "not a subset",
            ),
            (
                vec![
                    "--allowed_devices={\"allowed_devices\": [{\"device\": {\"path\": \"/etc/passwd\"}, \"access\": {}}]}",
                ],
                "is not a device",
            ),
            (vec!["--container_disk_watch_interval=0secs"], "above 0"),
            (
                vec!["--container_ports_isolated_range=[5-"],
                "container_ports_isolated_range",
            ),
            (
                vec![
                    "--container_ports_isolated_range=[5-6]",
                    "--check_agent_port_range_only",
                ],
                "either",
            ),
        ] {
            let error = settings(&args, "").expect_err(complaint);
            assert!(error.contains(complaint), "{args:?}: {error}");
        }
        let named = settings(
            &["--isolation=linux/nnp", "--enforce_container_disk_quota"],
            "",
        );
        let host = Host::detect().expect("a host");
        let error = named
            .expect("read")
            .isolation(&host)
            .expect_err("no disk/du");
        assert!(error.to_string().contains("needs disk/du"), "{error}");
        let usual = settings(&["--enforce_container_ports"], "").expect("read");
        let isolation = usual.isolation(&host).expect("switched on");
        assert!(isolation.has("network/ports") && usual.watch(&isolation).enforce_ports);
    }

    #[test]
    fn missing_filter_needs_operator_permission() {
        let exposed = ["--ip=10.0.0.7"];
        for (args, allowed) in [
            (&[][..], true),
            (&["--allow_unconfined_seccomp=false"], false),
            (&exposed, false),
            (&["--ip=10.0.0.7", "--insecure"], true),
            (&["--ip=10.0.0.7", "--allow_unconfined_seccomp"], true),
        ] {
            let settings = settings(args, "").expect("sound");
            let isolation = Isolation::parse("linux/seccomp").expect("known");
            assert_eq!(
                settings.rights(&isolation, Vec::new()).unconfined,
                allowed,
                "{args:?}"
            );
        }
    }

    #[test]
    fn host_namespaces_need_operator_permission() {
        const PID: &str = "--disallow_sharing_agent_pid_namespace";
        const NO_PID: &str = "--disallow_sharing_agent_pid_namespace=false";
        const IPC: &str = "--disallow_sharing_agent_ipc_namespace";
        for (args, pid, ipc) in [
            (&[][..], true, true),
            (&[PID], false, true),
            (&[IPC], true, false),
            (&["--ip=10.0.0.7"], false, false),
            (&["--ip=10.0.0.7", "--insecure"], true, true),
            (&["--ip=10.0.0.7", NO_PID], true, false),
        ] {
            let settings = settings(args, "").expect("sound");
            let isolation = Isolation::parse("namespaces/pid").expect("known");
            let rights = settings.rights(&isolation, Vec::new());
            assert_eq!((rights.share_pid, rights.share_ipc), (pid, ipc), "{args:?}");
        }
    }

    #[test]
    fn authenticating_agent_is_strict_on_loopback() {
        for (args, is_open) in [
            (&["--ip=127.0.0.7"][..], true),
            (&["--ip=127.0.0.7", "--acls={}"], true),
            (&["--http_credentials=/f"], false),
            (&["--credential=/f"], false),
            (&["--ssl_cert_file=/f", "--ssl_key_file=/f"], false),
            (&["--ssl_ca_file=/f"], false),
            (&["--authenticate_http_readwrite"], false),
            (&["--authenticate_http_readonly=false"], true),
            (&["--http_credentials=/f", "--insecure"], true),
            (&["--authenticate_http_readonly", "--insecure"], false),
        ] {
            let settings = settings(args, "").expect("sound");
            let isolation = Isolation::parse("linux/seccomp").expect("known");
            let rights = settings.rights(&isolation, Vec::new());
            let shares = (rights.share_pid, rights.share_ipc, rights.unconfined);
            assert_eq!(shares, (is_open, is_open, is_open), "{args:?}");
            let shows = rights.host_paths.check_volume(Path::new("/srv"));
            assert_eq!(shows.is_ok(), is_open, "{args:?}");
        }
    }

    #[test]
    fn isolated_ports_default_to_agent_range() {
        let isolated = |args: &[&str], resources| {
            let settings = settings(args, resources).expect("sound");
            let ranges = settings.node.isolated_ports?;
            Some(ranges.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(isolated(&[], "ports:[1-2]"), None);
        let only = ["--check_agent_port_range_only"];
        assert_eq!(isolated(&only, ""), Some(vec!["31000-32000".to_owned()]));
        let given = isolated(&only, "ports:[1-2,7-9]");
        assert_eq!(given, Some(vec!["1-2".to_owned(), "7-9".to_owned()]));
        let range = ["--container_ports_isolated_range=[31000-31100]"];
        assert_eq!(
            isolated(&range, "ports:[1-2]"),
            Some(vec!["31000-31100".to_owned()])
        );
    }

    #[test]
    fn mesoss_spellings_are_understood() {
        let names = respelled("filesystem/linux, cgroups,filesystem/posix,cgroups/io");
        let isolation = Isolation::parse(&names).expect("known");
        let names: Vec<_> = isolation.names().collect();
        assert_eq!(
            names,
            [
                "cgroups/blkio",
                "cgroups/cpu",
                "cgroups/mem",
                "namespaces/mnt"
            ]
        );
    }
}
