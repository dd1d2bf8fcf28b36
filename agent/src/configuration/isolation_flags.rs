//! The isolation flags: rights of containers, measured limits, and reasons to end containers.

use std::path::PathBuf;
use std::time::Duration;

use clap::ArgAction;
use meseta_resources::{ByteSize, parse_duration};

/// How containers are kept apart; part of [`crate::Flags`].
#[derive(Clone, Debug, clap::Args)]
#[command(rename_all = "snake_case")]
pub struct IsolationFlags {
    /// Isolators, separated by commas. Default for root: cgroups, namespaces, capabilities, system
    /// call filter, device list and read-only kernel files, as far as this machine has them.
    #[arg(long, value_name = "NAMES")]
    pub isolation: Option<String>,

    /// Start although isolation is weaker than the flags say, or than root usually gives: without cgroups (in many
    /// containers), without CAP_SYS_ADMIN, or without a controller. Default: refuse and say what is missing.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub allow_weak_isolation: bool,

    /// Capabilities that every container begins with unless its task asks otherwise, as JSON:
    /// `{"capabilities": ["NET_RAW"]}`. Default: root's containers have the bounding set, others none.
    #[arg(long, value_name = "JSON", alias = "allowed_capabilities")]
    pub effective_capabilities: Option<String>,

    /// Capabilities that a container may have at most, likewise. Default: the effective ones if given,
    /// else CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, NET_BIND_SERVICE, SETGID, SETUID, SYS_CHROOT.
    #[arg(long, value_name = "JSON")]
    pub bounding_capabilities: Option<String>,

    /// Capabilities that reach other users or the node, by which users' tasks may ask for them, or tasks of
    /// which roles (`a/%` is every role below `a`), as JSON or `file:///path` of it: `{"grants": [{"users":
    /// ["www-data"], "roles": ["web"], "capabilities": ["SETUID"]}]}`. Default: only root's tasks may.
    #[arg(long, value_name = "JSON")]
    pub granted_capabilities: Option<String>,

    /// Paths of the machine that HOST_PATH volumes may show, with all below them, separated by colons; `/`
    /// is everything. Each is found with the rights of the task's user. Default: everything on loopback
    /// without authentication and TLS and with --insecure, nothing elsewhere.
    #[arg(long, value_name = "PATHS")]
    pub allowed_host_paths: Option<String>,

    /// Folder of system call profiles in the container engines' JSON format.
    #[arg(long, value_name = "DIR")]
    pub seccomp_config_dir: Option<PathBuf>,

    /// The profile in that folder for containers whose task names none. Default: a built-in list.
    #[arg(long, value_name = "NAME")]
    pub seccomp_profile_name: Option<String>,

    /// Let tasks ask to run without a system call filter (`linux_info.seccomp.unconfined`). Default: as
    /// Mesos on loopback without authentication and TLS and with `--insecure`, refused elsewhere.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub allow_unconfined_seccomp: Option<bool>,

    /// Refuse tasks that ask to share the host's process numbers. Default: as Mesos on loopback without
    /// authentication and TLS and with `--insecure`, where they may; refused elsewhere.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub disallow_sharing_agent_pid_namespace: Option<bool>,

    /// Refuse tasks that ask to share the host's System V and POSIX objects. Default: as Mesos on loopback
    /// without authentication and TLS and with `--insecure`, where they may; refused elsewhere.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub disallow_sharing_agent_ipc_namespace: Option<bool>,

    /// Size of a container's `/dev/shm` unless its task says.
    #[arg(long, default_value = "64MB", value_name = "SIZE")]
    pub default_container_shm_size: ByteSize,

    /// Device nodes that containers may use besides the usual ones, as JSON:
    /// `{"allowed_devices": [{"device": {"path": "/dev/fuse"}, "access": {"read": true}}]}`.
    #[arg(long, value_name = "JSON")]
    pub allowed_devices: Option<String>,

    /// Run containers with revocable CPUs only when the processor is otherwise idle, where the kernel supports it
    /// (`cpu.idle`).
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub revocable_cpu_idle: bool,

    /// Let `cgroups/cpu` count processes and threads of containers, for isolations without
    /// `cgroups/pids`, which always does.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub cgroups_cpu_enable_pids_and_tids_count: bool,

    /// End containers whose sandbox holds more than their `disk`; needs disk/du, which it switches on
    /// unless isolators are named.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub enforce_container_disk_quota: bool,

    /// Pause between two measures of what a container's folders hold (disk/du).
    #[arg(long, default_value = "15secs", value_parser = parse_duration, value_name = "DURATION")]
    pub container_disk_watch_interval: Duration,

    /// End containers that listen on TCP ports they were not given; needs network/ports, which it
    /// switches on unless isolators are named.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub enforce_container_ports: bool,

    /// Interval at which the ports that containers listen on are read (network/ports).
    #[arg(long, default_value = "30secs", value_parser = parse_duration, value_name = "DURATION")]
    pub container_ports_watch_interval: Duration,

    /// Check only ports that are the agent's own resource.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub check_agent_port_range_only: bool,

    /// Check only ports in these ranges, for example `[31000-32000]`.
    #[arg(long, value_name = "RANGES")]
    pub container_ports_isolated_range: Option<String>,
}
