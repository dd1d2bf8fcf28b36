//! The etcd that several masters of `meseta local` share: the installed program, on loopback, with one member.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use meseta_daemon::advertised::usual_loopback;

use super::daemon::{AtItsEnd, Daemon};
use crate::daemon::end_with_parent;

/// The name of the program.
const PROGRAM: &str = "etcd";
/// The time limit for a look at its port.
const CONNECT_LIMIT: Duration = Duration::from_millis(100);

/// Flags of the hidden verb under which `meseta local` runs etcd.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Flags that etcd is given.
    #[arg(last = true)]
    flags: Vec<String>,
}

/// Replaces this process with etcd, which ends with the `meseta local` that started it.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    end_with_parent()?;
    let error = std::process::Command::new(PROGRAM)
        .args(&options.flags)
        .exec();
    Err(error).context("failed to run etcd")
}

/// Starts etcd below a directory, and waits until it listens.
pub(super) async fn start(dir: &Path) -> anyhow::Result<Daemon> {
    if installed().is_none() {
        bail!(
            "several masters share a registry in etcd, and `etcd` is not on the PATH: install it \
            (Debian: apt-get install etcd-server), or leave --masters out"
        );
    }
    let [client, peer] = free_addresses()?;
    let name = "etcd";
    let mut arguments = vec![name.to_owned(), "--".to_owned()];
    arguments.extend(flags(dir, client, peer));
    let mut etcd = Daemon::spawn(name, arguments, AtItsEnd::Again)?;
    etcd.url = etcd
        .until_it_listens(|| {
            let answers = TcpStream::connect_timeout(&client, CONNECT_LIMIT).is_ok();
            answers.then(|| format!("http://{client}"))
        })
        .await?;
    Ok(etcd)
}

fn flags(dir: &Path, client: SocketAddr, peer: SocketAddr) -> Vec<String> {
    vec![
        format!("--data-dir={}", dir.display()),
        format!("--listen-client-urls=http://{client}"),
        format!("--advertise-client-urls=http://{client}"),
        format!("--listen-peer-urls=http://{peer}"),
        format!("--initial-advertise-peer-urls=http://{peer}"),
        format!("--initial-cluster=default=http://{peer}"),
        "--auto-compaction-retention=1h".to_owned(),
        "--logger=zap".to_owned(),
        "--log-level=error".to_owned(),
    ]
}

/// Returns the path of the program.
fn installed() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut candidates = std::env::split_paths(&path).map(|dir| dir.join(PROGRAM));
    candidates.find(|candidate| candidate.is_file())
}

/// Returns two unused loopback addresses.
fn free_addresses() -> anyhow::Result<[SocketAddr; 2]> {
    let listen = || TcpListener::bind((usual_loopback(), 0)).context("failed to find a free port");
    let (client, peer) = (listen()?, listen()?);
    let address = |listener: &TcpListener| {
        let address = listener.local_addr();
        address.context("failed to find a free port")
    };
    Ok([address(&client)?, address(&peer)?])
}
