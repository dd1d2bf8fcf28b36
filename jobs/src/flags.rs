//! The scheduler's flags: declared once; help text and the flag reference derive from the doc comments.

use std::path::PathBuf;
use std::time::Duration;

use clap::ArgAction;
use meseta_daemon::advertised::{parse_ip, usual_loopback, usual_master};
use meseta_etcd::EtcdFlags;
use meseta_resources::parse_duration;

use crate::access_flags::AccessFlags;

/// The flags of the scheduler daemon.
#[derive(Clone, Debug, clap::Args)]
#[command(rename_all = "snake_case")]
pub struct Flags {
    /// The master: `host:port`. List several masters with commas; the scheduler finds the leader.
    #[arg(long, default_value = usual_master(), value_name = "HOST:PORT")]
    pub master: String,

    /// Address to listen on. An address other than loopback needs `--http_credentials` and TLS, or `--insecure`. On
    /// a machine without 127.0.0.1, the default is ::1.
    #[arg(long, default_value_t = usual_loopback(), value_parser = parse_ip, value_name = "ADDRESS")]
    pub ip: std::net::IpAddr,

    /// Port to listen on, for HTTP; 0 takes a free port.
    #[arg(long, default_value_t = 5070)]
    pub port: u16,

    /// Host name of the scheduler's web page, for links on the master's page. Default: the address on loopback,
    /// else the machine's name.
    #[arg(long, value_name = "NAME")]
    pub hostname: Option<String>,

    /// Listen on an address other than loopback without authentication or encryption.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub insecure: bool,

    /// Authentication, authorization and TLS.
    #[command(flatten)]
    pub access: AccessFlags,

    /// Directory of the file of `--store=embedded`; must survive restarts.
    #[arg(long, default_value = "/var/lib/meseta/scheduler", value_name = "DIR")]
    pub work_dir: PathBuf,

    /// Storage of jobs and the state of their tasks: `embedded` (a file in the work directory), or `etcd`. Several
    /// schedulers with one etcd elect a leader.
    #[arg(long, default_value = "embedded", value_name = "STORE")]
    pub store: String,

    /// Connection to etcd, for `--store=etcd`.
    #[command(flatten)]
    pub etcd: EtcdFlags,

    /// Continue with the jobs of the store in a different cluster. All tasks of the jobs start anew there. Default:
    /// exit if the master belongs to a different cluster.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub adopt_cluster: bool,

    /// User of tasks whose job names no user. Default: the user of the scheduler's process.
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,

    /// Time that the agent of a service's task may be unreachable before the scheduler replaces the task. If the
    /// old task comes back later, the scheduler kills the old task.
    #[arg(long, default_value = "1mins", value_parser = parse_duration, value_name = "DURATION")]
    pub service_unreachable_timeout: Duration,

    /// Time that the agent of a batch or cron task may be unreachable before the scheduler replaces the task. A
    /// shorter time makes it more likely that a task succeeds twice: there and at its new place.
    #[arg(long, default_value = "1days", value_parser = parse_duration, value_name = "DURATION")]
    pub batch_unreachable_timeout: Duration,
}
