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

/// What the node daemon can be told.
#[derive(Clone, Debug, clap::Args)]
#[command(rename_all = "snake_case")]
pub struct Flags {
    /// The master: `host:port`, or `file:///path` of a file that holds it. Of several masters, with commas between, the
    /// agent finds the one that leads.
    #[arg(
        long,
        value_name = "HOST:PORT",
        required = false,
        required_unless_present = "check",
        default_value_if("check", "true", usual_master())
    )]
    pub master: String,

    /// Look at this machine with these flags, say what is missing and how to mend it, and end: with
    /// 0 if an agent can run here, else with 1.
    #[arg(long, default_value_t = false, action = ArgAction::SetTrue)]
    pub check: bool,

    /// Address to listen on. Anything but loopback needs `--http_credentials` and TLS, or `--insecure`.
    /// On a machine without 127.0.0.1 the default is ::1.
    #[arg(long, default_value_t = usual_loopback(), value_parser = parse_ip, value_name = "ADDRESS")]
    pub ip: std::net::IpAddr,

    /// Port to listen on, for HTTP; 0 takes a free one.
    #[arg(long, default_value_t = 5051)]
    pub port: u16,

    /// Address told to the master and to tasks, when it is not the one listened on. With `--ip=0.0.0.0` or `--ip=::`,
    /// the default is the one from which this machine reaches the master.
    #[arg(long, value_parser = parse_advertised_ip, value_name = "ADDRESS")]
    pub advertise_ip: Option<std::net::IpAddr>,

    /// Port told to the master and to tasks, when it is not the one listened on.
    #[arg(long)]
    pub advertise_port: Option<u16>,

    /// Name told to the master. Default: the machine's, or the address on loopback.
    #[arg(long)]
    pub hostname: Option<String>,

    /// Listen on an address other than loopback without authentication or encryption.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub insecure: bool,

    /// Authentication, authorization and TLS.
    #[command(flatten)]
    pub access: crate::access_flags::AccessFlags,

    /// Where sandboxes and checkpoints are kept; must survive restarts and reboots.
    #[arg(long, default_value = "/var/lib/meseta/agent", value_name = "DIR")]
    pub work_dir: PathBuf,

    /// Where the state of running containers is kept; may vanish at a reboot. Default:
    /// /run/meseta/agent for root, else a folder in `--work_dir`.
    #[arg(long, value_name = "DIR")]
    pub runtime_dir: Option<PathBuf>,

    /// The node's resources as text (`cpus:4;mem:2048;cpus(ads):8`), JSON, or `file:///path` of
    /// either. What is not named is detected.
    #[arg(long, value_name = "RESOURCES")]
    pub resources: Option<String>,

    /// Role of resources that name none, and of those that are detected.
    #[arg(long, default_value = "*")]
    pub default_role: String,

    /// The node's attributes: `key:value;key:value`, or `file:///path` of them.
    #[arg(long, value_name = "ATTRIBUTES")]
    pub attributes: Option<String>,

    /// Region and zone of this machine as JSON, `{"fault_domain":{"region":{"name":"eu"},"zone":{"name":"rack1"}}}`,
    /// or `file:///path` of it. The master needs one too.
    #[arg(long, value_name = "JSON")]
    pub domain: Option<String>,

    /// Unit of the pauses between attempts to register; they double up to 15secs. The first
    /// attempt is made at once.
    #[arg(long, default_value = "1secs", value_parser = parse_duration, value_name = "DURATION")]
    pub registration_backoff_factor: Duration,

    /// Run tasks as the user that the task or its framework names. An agent without the rights of root
    /// refuses tasks of other users than its own; with false, all tasks run as the agent's user.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub switch_user: bool,

    /// How containers are kept apart.
    #[command(flatten)]
    pub isolation: IsolationFlags,

    /// What is kept of tasks' output.
    #[command(flatten)]
    pub logs: LogFlags,

    /// Where cgroup hierarchies are mounted.
    #[arg(long, default_value = "/sys/fs/cgroup", value_name = "DIR")]
    pub cgroups_hierarchy: PathBuf,

    /// The folder below each cgroup hierarchy that holds everything of ours.
    #[arg(long, default_value = "meseta", value_name = "PATH")]
    pub cgroups_root: PathBuf,

    /// On a machine of systemd with cgroup v2 alone, keep containers in a scope that systemd hands over
    /// (`<cgroups_root>-tasks.scope`), so that no restart of the agent's unit touches them. Needs a
    /// `--cgroups_root` of letters, digits and underscores.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub systemd_enable_support: bool,

    /// Cap a container at the CPUs it requested, even when it has no limit.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub cgroups_enable_cfs: bool,

    /// Count swap towards memory limits (cgroup v1).
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub cgroups_limit_swap: bool,

    /// Processes and threads a container may have; 0 sets no limit.
    #[arg(long, default_value_t = 4096, value_name = "COUNT")]
    pub cgroups_pids_limit: u64,

    /// Time for the processes of a container to be gone once killed, before it is tried again.
    #[arg(long, default_value = "10secs", value_parser = parse_duration, value_name = "DURATION")]
    pub cgroups_destroy_timeout: Duration,

    /// Give containers with revocable CPUs a low CPU weight.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub revocable_cpu_low_priority: bool,

    /// Pause between samples of what containers use; half a second at most while `pressure` watches oversubscribed
    /// resources.
    #[arg(long, default_value = "1secs", value_parser = parse_duration, value_name = "DURATION")]
    pub monitor_interval: Duration,

    /// Resource estimator: decides how much of the allocated but unused resources is oversubscribed: `noop`, `fixed`,
    /// `threshold`, `slack`, `nsigma`, `max(slack,threshold)`, a module name of Mesos's, or the address of a process
    /// that serves one, `unix:///path.sock` or `http://host:port`.
    #[arg(long, default_value = "noop", value_name = "NAME")]
    pub resource_estimator: String,

    /// QoS controller: takes oversubscribed resources back when regular tasks suffer: `noop`, `load`, `pressure`, a
    /// module name of Mesos's, or the address of a process that serves one.
    #[arg(long, default_value = "noop", value_name = "NAME")]
    pub qos_controller: String,

    /// Pause between two estimates told to the master; only another one is told.
    #[arg(long, default_value = "15secs", value_parser = parse_duration, value_name = "DURATION")]
    pub oversubscribed_resources_interval: Duration,

    /// Least pause between two rounds of corrections; 0 makes one with each sample. At most half of the `stale_after` of
    /// `pressure`, 1 minute.
    #[arg(long, default_value = "0ns", value_parser = parse_duration, value_name = "DURATION")]
    pub qos_correction_interval_min: Duration,

    /// Parameters of estimators and controllers as Mesos's JSON, or `file:///path` of it; may be
    /// repeated. Libraries are not loaded: names select what is built in.
    #[arg(long, value_name = "JSON")]
    pub modules: Vec<String>,

    /// Folder of files with such JSON, read in order of name.
    #[arg(long, value_name = "DIR")]
    pub modules_dir: Option<PathBuf>,

    /// Where the machine's load, memory and pressure are read for estimators and controllers.
    #[arg(long, default_value = "/proc", value_name = "DIR", hide = true)]
    pub host_proc: PathBuf,

    /// Variables for all tasks, as a JSON object of strings.
    #[arg(long, value_name = "JSON")]
    pub executor_environment_variables: Option<String>,

    /// Time an executor of a framework gets from its launch until it subscribes.
    #[arg(long, default_value = "1mins", value_parser = parse_duration, value_name = "DURATION")]
    pub executor_registration_timeout: Duration,

    /// Time executors get to shut down, told to tasks.
    #[arg(long, default_value = "5secs", value_parser = parse_duration, value_name = "DURATION")]
    pub executor_shutdown_grace_period: Duration,

    /// Time in which executors must be back after a restart of the agent, told to tasks.
    #[arg(long, default_value = "2secs", value_parser = parse_duration, value_name = "DURATION")]
    pub executor_reregistration_timeout: Duration,

    /// How long executors wait for the agent to be back, told to tasks.
    #[arg(long, default_value = "15mins", value_parser = parse_duration, value_name = "DURATION")]
    pub recovery_timeout: Duration,

    /// Time in which a source of fetched files may send nothing before the fetch fails.
    #[arg(long, default_value = "1mins", value_parser = parse_duration, value_name = "DURATION")]
    pub fetcher_stall_timeout: Duration,

    /// For how long sandboxes are kept after the end of what ran in them, on a disk with room.
    #[arg(long, default_value = "1weeks", value_parser = parse_duration, value_name = "DURATION")]
    pub gc_delay: Duration,

    /// Share of the disk that is to stay free: sandboxes go sooner as the disk fills up to it.
    #[arg(long, default_value_t = 0.1, value_name = "SHARE")]
    pub gc_disk_headroom: f64,

    /// Interval at which the disk's usage is read.
    #[arg(long, default_value = "1mins", value_parser = parse_duration, value_name = "DURATION")]
    pub disk_watch_interval: Duration,

    /// How long the disk of `--work_dir` may give no answer until the agent answers its master no more and becomes
    /// unreachable. From 30secs on the master offers nothing of the agent; 0 leaves it at that.
    #[arg(long, default_value = "10mins", value_parser = parse_duration, value_name = "DURATION")]
    pub disk_timeout: Duration,

    /// What may change between restarts: nothing (`equal`), or resources and attributes may grow and a domain may be
    /// named (`additive`).
    #[arg(long, value_enum, default_value_t = ReconfigurationPolicy::Additive, value_name = "POLICY")]
    pub reconfiguration_policy: ReconfigurationPolicy,

    /// What becomes of tasks of before: they are taken back (`reconnect`), or killed, and the agent ends (`cleanup`).
    #[arg(long, value_enum, default_value_t = Recover::Reconnect, value_name = "HOW")]
    pub recover: Recover,

    /// Refuse to start while a checkpoint cannot be read, instead of giving up what it is of.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub strict: bool,

    /// Completed executors that are shown per framework.
    #[arg(long, default_value_t = 150, value_name = "COUNT")]
    pub max_completed_executors_per_framework: usize,

    /// Memory for queues, requests in flight and history: unread events, unacknowledged updates, calls, answers,
    /// writes that wait for the disk, completed executors. At least 128MB; below 1GB the largest call and the largest
    /// message of the master's shrink with it.
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
