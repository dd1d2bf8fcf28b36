//! The agent's flags: declared once, with Mesos's names and value syntax.
//!
//! `cli` merges them from the command line, the environment and a file; help text and the flag reference derive from
//! the doc comments. This module only parses the values; [`crate::run`] does the checks that need to inspect the
//! machine.

use std::path::PathBuf;
use std::time::Duration;

use clap::ArgAction;
use meseta_daemon::advertised::{parse_advertised_ip, parse_ip, usual_loopback, usual_master};
use meseta_resources::{ByteSize, parse_duration};

use super::error::ConfigurationError;
use super::isolation_flags::IsolationFlags;
use super::log_flags::LogFlags;
use super::reconfiguration::ReconfigurationPolicy;

/// The flags of the node daemon.
#[derive(Clone, Debug, clap::Args)]
#[command(rename_all = "snake_case")]
pub struct Flags {
    /// The master: `host:port`, or `file:///path` to a file that holds the address. List several masters with
    /// commas; the agent finds the leader.
    #[arg(
        long,
        value_name = "HOST:PORT",
        required = false,
        required_unless_present = "check",
        default_value_if("check", "true", usual_master())
    )]
    pub master: String,

    /// Check this machine with these flags, print the missing features and their remedies, and exit: with 0 if an agent
    /// can run here, else with 1.
    #[arg(long, default_value_t = false, action = ArgAction::SetTrue)]
    pub check: bool,

    /// Address to listen on. An address other than loopback needs `--http_credentials` and TLS, or `--insecure`. On
    /// a machine without 127.0.0.1, the default is ::1.
    #[arg(long, default_value_t = usual_loopback(), value_parser = parse_ip, value_name = "ADDRESS")]
    pub ip: std::net::IpAddr,

    /// Port to listen on, for HTTP; 0 takes a free port.
    #[arg(long, default_value_t = 5051)]
    pub port: u16,

    /// Address that the agent tells the master and tasks, if it differs from the listening address. With
    /// `--ip=0.0.0.0` or `--ip=::`, the default is the address from which this machine reaches the master.
    #[arg(long, value_parser = parse_advertised_ip, value_name = "ADDRESS")]
    pub advertise_ip: Option<std::net::IpAddr>,

    /// Port that the agent tells the master and tasks, if it differs from the listening port.
    #[arg(long)]
    pub advertise_port: Option<u16>,

    /// Host name that the agent tells the master. Default: the machine's name, or the address on loopback.
    #[arg(long)]
    pub hostname: Option<String>,

    /// Listen on an address other than loopback without authentication or encryption.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub insecure: bool,

    /// Authentication, authorization and TLS.
    #[command(flatten)]
    pub access: crate::access_flags::AccessFlags,

    /// Directory of sandboxes and checkpoints; must survive restarts and reboots.
    #[arg(long, default_value = "/var/lib/meseta/agent", value_name = "DIR")]
    pub work_dir: PathBuf,

    /// Directory for the state of running containers; a reboot may clear it. Default: /run/meseta/agent for root,
    /// else a folder in `--work_dir`.
    #[arg(long, value_name = "DIR")]
    pub runtime_dir: Option<PathBuf>,

    /// The node's resources as text (`cpus:4;mem:2048;cpus(ads):8`), JSON, or `file:///path` to either. The agent
    /// detects all resources that the text does not name.
    #[arg(long, value_name = "RESOURCES")]
    pub resources: Option<String>,

    /// Role of resources without a role, and of detected resources.
    #[arg(long, default_value = "*")]
    pub default_role: String,

    /// The node's attributes: `key:value;key:value`, or `file:///path` to them.
    #[arg(long, value_name = "ATTRIBUTES")]
    pub attributes: Option<String>,

    /// Region and zone of this machine as JSON,
    /// `{"fault_domain":{"region":{"name":"eu"},"zone":{"name":"rack1"}}}`, or `file:///path` to it. The master
    /// needs a domain too.
    #[arg(long, value_name = "JSON")]
    pub domain: Option<String>,

    /// Initial pause between attempts to register; the pause doubles up to 15secs. The first attempt has no pause.
    #[arg(long, default_value = "1secs", value_parser = parse_duration, value_name = "DURATION")]
    pub registration_backoff_factor: Duration,

    /// Run each task as the user that the task or its framework names. An agent without root rights refuses tasks
    /// of other users. With false, all tasks run as the agent's user.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub switch_user: bool,

    /// Isolation of containers.
    #[command(flatten)]
    pub isolation: IsolationFlags,

    /// Storage of task output.
    #[command(flatten)]
    pub logs: LogFlags,

    /// Directory where the cgroup hierarchies are mounted.
    #[arg(long, default_value = "/sys/fs/cgroup", value_name = "DIR")]
    pub cgroups_hierarchy: PathBuf,

    /// Name of the agent's cgroup in each cgroup hierarchy.
    #[arg(long, default_value = "meseta", value_name = "PATH")]
    pub cgroups_root: PathBuf,

    /// On a machine with systemd and only cgroup v2, keep containers in a scope that systemd delegates
    /// (`<cgroups_root>-tasks.scope`), so that no restart of the agent's unit touches them. Needs a
    /// `--cgroups_root` of letters, digits and underscores.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub systemd_enable_support: bool,

    /// Limit a container to its requested CPUs, even if its task sets no limit.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub cgroups_enable_cfs: bool,

    /// Count swap towards memory limits (cgroup v1).
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub cgroups_limit_swap: bool,

    /// Maximum number of processes and threads of a container; 0 sets no limit.
    #[arg(long, default_value_t = 4096, value_name = "COUNT")]
    pub cgroups_pids_limit: u64,

    /// Time that the processes of a killed container have to end before the agent kills them again.
    #[arg(long, default_value = "10secs", value_parser = parse_duration, value_name = "DURATION")]
    pub cgroups_destroy_timeout: Duration,

    /// Give containers with revocable CPUs a low CPU weight.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub revocable_cpu_low_priority: bool,

    /// Pause between two samples of the containers' resource usage; at most half a second while `pressure` watches
    /// oversubscribed resources.
    #[arg(long, default_value = "1secs", value_parser = parse_duration, value_name = "DURATION")]
    pub monitor_interval: Duration,

    /// Resource estimator, which decides how many allocated but unused resources to oversubscribe: `noop`, `fixed`,
    /// `threshold`, `slack`, `nsigma`, `max(slack,threshold)`, a module name of Mesos, or the address of a plug-in
    /// process, `unix:///path.sock` or `http://host:port`.
    #[arg(long, default_value = "noop", value_name = "NAME")]
    pub resource_estimator: String,

    /// QoS controller, which takes oversubscribed resources back when regular tasks suffer: `noop`, `load`,
    /// `pressure`, a module name of Mesos, or the address of a plug-in process.
    #[arg(long, default_value = "noop", value_name = "NAME")]
    pub qos_controller: String,

    /// Pause between two estimates for the master. The agent sends only changed estimates.
    #[arg(long, default_value = "15secs", value_parser = parse_duration, value_name = "DURATION")]
    pub oversubscribed_resources_interval: Duration,

    /// Minimum pause between two rounds of corrections; 0 makes a round with each sample. The maximum is half of
    /// the `stale_after` of `pressure`, 1 minute.
    #[arg(long, default_value = "0ns", value_parser = parse_duration, value_name = "DURATION")]
    pub qos_correction_interval_min: Duration,

    /// Parameters of estimators and controllers as Mesos's JSON, or `file:///path` to it; may be repeated. The
    /// agent loads no libraries: names select built-in modules.
    #[arg(long, value_name = "JSON")]
    pub modules: Vec<String>,

    /// Directory of files in the format of `--modules`; the agent reads them in the order of their names.
    #[arg(long, value_name = "DIR")]
    pub modules_dir: Option<PathBuf>,

    /// Directory from which estimators and controllers read the machine's load, memory and pressure.
    #[arg(long, default_value = "/proc", value_name = "DIR", hide = true)]
    pub host_proc: PathBuf,

    /// Environment variables for all tasks, as a JSON object of strings.
    #[arg(long, value_name = "JSON")]
    pub executor_environment_variables: Option<String>,

    /// Time between the launch of a custom executor and its SUBSCRIBE call.
    #[arg(long, default_value = "1mins", value_parser = parse_duration, value_name = "DURATION")]
    pub executor_registration_timeout: Duration,

    /// Time that executors have to shut down; tasks see this value in their environment.
    #[arg(long, default_value = "5secs", value_parser = parse_duration, value_name = "DURATION")]
    pub executor_shutdown_grace_period: Duration,

    /// Time that executors have to reregister after a restart of the agent; tasks see this value in their
    /// environment.
    #[arg(long, default_value = "2secs", value_parser = parse_duration, value_name = "DURATION")]
    pub executor_reregistration_timeout: Duration,

    /// Time that executors wait for the agent to come back; tasks see this value in their environment.
    #[arg(long, default_value = "15mins", value_parser = parse_duration, value_name = "DURATION")]
    pub recovery_timeout: Duration,

    /// Time without data after which a fetch fails.
    #[arg(long, default_value = "1mins", value_parser = parse_duration, value_name = "DURATION")]
    pub fetcher_stall_timeout: Duration,

    /// Time for which the agent keeps the sandbox of an ended executor, if the disk has room.
    #[arg(long, default_value = "1weeks", value_parser = parse_duration, value_name = "DURATION")]
    pub gc_delay: Duration,

    /// Share of the disk to keep free: as the disk fills up to this share, the agent removes sandboxes sooner.
    #[arg(long, default_value_t = 0.1, value_name = "SHARE")]
    pub gc_disk_headroom: f64,

    /// Interval between two measurements of the disk's usage.
    #[arg(long, default_value = "1mins", value_parser = parse_duration, value_name = "DURATION")]
    pub disk_watch_interval: Duration,

    /// Time without an answer from the disk of `--work_dir` after which the agent stops answering its master and
    /// becomes unreachable. After 30secs, the master makes no more offers from the agent; with 0, the agent never
    /// becomes unreachable for this reason.
    #[arg(long, default_value = "10mins", value_parser = parse_duration, value_name = "DURATION")]
    pub disk_timeout: Duration,

    /// Permitted changes between two starts: none (`equal`), or more resources, more attributes and a first domain
    /// (`additive`).
    #[arg(long, value_enum, default_value_t = ReconfigurationPolicy::Additive, value_name = "POLICY")]
    pub reconfiguration_policy: ReconfigurationPolicy,

    /// Treatment of tasks from before the start: keep them (`reconnect`), or kill them and exit (`cleanup`).
    #[arg(long, value_enum, default_value_t = Recover::Reconnect, value_name = "HOW")]
    pub recover: Recover,

    /// Refuse to start if the agent cannot read a checkpoint. With false, the agent gives up the tasks of that
    /// checkpoint.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub strict: bool,

    /// Number of completed executors to show for each framework.
    #[arg(long, default_value_t = 150, value_name = "COUNT")]
    pub max_completed_executors_per_framework: usize,

    /// Memory for queues, requests in progress and history: unread events, unacknowledged updates, calls, answers,
    /// pending disk writes, completed executors. At least 128MB; below 1GB, the maximum size of calls and of the
    /// master's messages shrinks in proportion.
    #[arg(long, default_value = "1GB", value_name = "BYTES")]
    pub memory_budget: ByteSize,

    /// Launches that may be under way at once; the others wait.
    #[arg(long, default_value_t = 8, value_name = "COUNT", hide = true)]
    pub launches_at_once: usize,

    /// Kill all tasks and remove our cgroups when told to stop (for `meseta local`).
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", hide = true)]
    pub shutdown_tasks_on_exit: bool,
}

/// The treatment of tasks that ran before a start: a value of `--recover`.
// The flag's help says what each value means.
#[derive(Copy, Clone, Debug, Eq, PartialEq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Recover {
    Reconnect,
    Cleanup,
}

/// Returns the text of a flag, or of the file that it names.
pub(crate) fn text_of(flag: &'static str, value: &str) -> Result<String, ConfigurationError> {
    let Some(path) = value.strip_prefix("file://") else {
        return Ok(value.to_owned());
    };
    std::fs::read_to_string(path).map_err(|error| ConfigurationError::File {
        flag,
        path: path.to_owned(),
        why: error.to_string(),
    })
}
