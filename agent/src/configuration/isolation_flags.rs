//! The isolation flags: rights of containers, measured limits, and reasons to end containers.

use std::path::PathBuf;
use std::time::Duration;

use clap::ArgAction;
use meseta_resources::{ByteSize, parse_duration};

/// How containers are kept apart; part of [`crate::Flags`].
#[derive(Clone, Debug, clap::Args)]
#[command(rename_all = "snake_case")]
pub struct IsolationFlags {
    /// Isolators, separated by commas. Default for root: cgroups, namespaces, capabilities, system call filter,
    /// device list and read-only kernel files, if this machine supports them.
    #[arg(long, value_name = "NAMES")]
    pub isolation: Option<String>,

    /// Start even if isolation is weaker than the flags request, or weaker than usual for root: without cgroups (in
    /// many containers), without CAP_SYS_ADMIN, or without a controller. Default: refuse to start and list the
    /// missing features.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub allow_weak_isolation: bool,

    /// Initial capabilities of every container whose task sets none, as JSON: `{"capabilities": ["NET_RAW"]}`.
    /// Default: the bounding set for root's containers, no capability for others.
    #[arg(long, value_name = "JSON", alias = "allowed_capabilities")]
    pub effective_capabilities: Option<String>,

    /// Maximum capabilities of a container, as JSON like `--effective_capabilities`. Default: the effective
    /// capabilities if set, else CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, NET_BIND_SERVICE, SETGID, SETUID,
    /// SYS_CHROOT.
    #[arg(long, value_name = "JSON")]
    pub bounding_capabilities: Option<String>,

    /// Capabilities that reach other users or the node, with the users or roles whose tasks may ask for them (`a/%`
    /// is every role below `a`), as JSON or `file:///path` to it: `{"grants": [{"users": ["www-data"], "roles":
    /// ["web"], "capabilities": ["SETUID"]}]}`. Default: only root's tasks may ask.
    #[arg(long, value_name = "JSON")]
    pub granted_capabilities: Option<String>,

    /// Paths of the machine, with everything below them, that HOST_PATH volumes may mount, separated by colons; `/`
    /// allows all paths. The agent resolves each path with the rights of the task's user. Default: all paths on
    /// loopback without authentication and TLS and with --insecure; no path elsewhere.
    #[arg(long, value_name = "PATHS")]
    pub allowed_host_paths: Option<String>,

    /// Directory of seccomp profiles in the JSON format of container engines.
    #[arg(long, value_name = "DIR")]
    pub seccomp_config_dir: Option<PathBuf>,

    /// Profile in `--seccomp_config_dir` for containers whose task names no profile. Default: a built-in list.
    #[arg(long, value_name = "NAME")]
    pub seccomp_profile_name: Option<String>,

    /// Let tasks ask to run without a system call filter (`linux_info.seccomp.unconfined`). Default: allowed, as in
    /// Mesos, on loopback without authentication and TLS and with `--insecure`; refused elsewhere.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub allow_unconfined_seccomp: Option<bool>,

    /// Refuse tasks that ask to share the host's pid namespace. Default: allowed, as in Mesos, on loopback without
    /// authentication and TLS and with `--insecure`; refused elsewhere.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub disallow_sharing_agent_pid_namespace: Option<bool>,

    /// Refuse tasks that ask to share the host's System V and POSIX IPC objects. Default: allowed, as in Mesos, on
    /// loopback without authentication and TLS and with `--insecure`; refused elsewhere.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub disallow_sharing_agent_ipc_namespace: Option<bool>,

    /// Size of `/dev/shm` in containers whose task sets no size.
    #[arg(long, default_value = "64MB", value_name = "SIZE")]
    pub default_container_shm_size: ByteSize,

    /// Additional device nodes for containers, as JSON: `{"allowed_devices": [{"device": {"path": "/dev/fuse"},
    /// "access": {"read": true}}]}`.
    #[arg(long, value_name = "JSON")]
    pub allowed_devices: Option<String>,

    /// Run containers with revocable CPUs only when the processor is otherwise idle, if the kernel supports this
    /// (`cpu.idle`).
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub revocable_cpu_idle: bool,

    /// Let `cgroups/cpu` count the processes and threads of containers, for isolations without `cgroups/pids`,
    /// which always counts them.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub cgroups_cpu_enable_pids_and_tids_count: bool,

    /// End containers whose sandbox exceeds their `disk`. This needs disk/du; the flag adds disk/du if
    /// `--isolation` is not set.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub enforce_container_disk_quota: bool,

    /// Interval between two measurements of the disk use of a container (disk/du).
    #[arg(long, default_value = "15secs", value_parser = parse_duration, value_name = "DURATION")]
    pub container_disk_watch_interval: Duration,

    /// End containers that listen on TCP ports outside their resources. This needs network/ports; the flag adds
    /// network/ports if `--isolation` is not set.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub enforce_container_ports: bool,

    /// Interval between two checks of the ports that containers listen on (network/ports).
    #[arg(long, default_value = "30secs", value_parser = parse_duration, value_name = "DURATION")]
    pub container_ports_watch_interval: Duration,

    /// Check only the ports among the agent's own resources.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub check_agent_port_range_only: bool,

    /// Check only ports in these ranges, for example `[31000-32000]`.
    #[arg(long, value_name = "RANGES")]
    pub container_ports_isolated_range: Option<String>,
}
