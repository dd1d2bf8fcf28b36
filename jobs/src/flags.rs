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
    /// The master: `host:port`. Of several masters, with commas between, the scheduler finds the one that leads.
    #[arg(long, default_value = usual_master(), value_name = "HOST:PORT")]
    pub master: String,

    /// Address to listen on. Anything but loopback needs `--http_credentials` and TLS, or `--insecure`.
    /// On a machine without 127.0.0.1 the default is ::1.
    #[arg(long, default_value_t = usual_loopback(), value_parser = parse_ip, value_name = "ADDRESS")]
    pub ip: std::net::IpAddr,

    /// Port to listen on, for HTTP; 0 takes a free one.
    #[arg(long, default_value_t = 5070)]
    pub port: u16,

    /// Host name in the address of its page, to which the master's page links. Default: on loopback the
    /// address, else the machine's name.
    #[arg(long, value_name = "NAME")]
    pub hostname: Option<String>,

    /// Listen on an address other than loopback without authentication or encryption.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub insecure: bool,

    /// Authentication, authorization and TLS.
    #[command(flatten)]
    pub access: AccessFlags,

    /// Where the file of `--store=embedded` is, which must survive restarts.
    #[arg(long, default_value = "/var/lib/meseta/scheduler", value_name = "DIR")]
    pub work_dir: PathBuf,

    /// Where jobs and what is known of their tasks are kept: `embedded` (a file in the work directory), or `etcd`, which
    /// several schedulers share, of which one leads.
    #[arg(long, default_value = "embedded", value_name = "STORE")]
    pub store: String,

    /// How etcd is reached, for `--store=etcd`.
    #[command(flatten)]
    pub etcd: EtcdFlags,

    /// Go on with the jobs of the store in another cluster than before, where all their tasks start anew. Without this, a
    /// scheduler ends where the master is of another cluster.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1,
          require_equals = true, default_missing_value = "true")]
    pub adopt_cluster: bool,

    /// User of tasks whose job names none. Default: the one who runs the scheduler.
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,

    /// How long the agent of a service's task may be unreachable before the task is replaced. If it comes back
    /// afterwards, it is killed.
    #[arg(long, default_value = "1mins", value_parser = parse_duration, value_name = "DURATION")]
    pub service_unreachable_timeout: Duration,

    /// The same of a task of a batch or cron job, which might have succeeded there: a shorter time makes it likelier that
    /// a task succeeds twice.
    #[arg(long, default_value = "1days", value_parser = parse_duration, value_name = "DURATION")]
    pub batch_unreachable_timeout: Duration,
}
