//! Hosts as network namespaces, joined by a bridge; links between them are cut and mended.
//!
//! The machine's own network stays untouched: the bridge and its ports are in a namespace of this process ([`leave`]), and
//! each host is a namespace that lasts as long as a process in it. Frames are lost silently, as on a broken wire: a
//! disabled port of the bridge forwards no frame, and frames to an unknown hardware address reach no host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::sched::CloneFlags;

use crate::wait::holds;
use crate::{Missing, unless_installed, unless_root};

const BRIDGE: &str = "br0";

/// The address of no host: packets to it are lost.
const NOBODYS_ADDRESS: &str = "02:00:00:00:ff:ff";

/// A state of a port of a bridge.
const DISABLED: &str = "0";
const FORWARDING: &str = "3";

/// The time limit for a new process to get its own namespace.
const NAMESPACE_LIMIT: Duration = Duration::from_secs(10);

/// Moves this thread, and all that it starts, to a network of its own; without other threads, the whole process.
pub fn leave() -> anyhow::Result<()> {
    nix::sched::unshare(CloneFlags::CLONE_NEWNET)
        .context("failed to make a network namespace; run this as root")?;
    ip(&["link", "set", "lo", "up"])
}

/// Runs a test in a separate network namespace, visible only to its thread and its children: no other test uses its ports.
///
/// # Panics
///
/// The namespace cannot be created, or the test panics.
pub fn alone(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name("network".to_owned());
    let body = move || {
        leave().expect("a network namespace");
        test();
    };
    let ended = thread.spawn(body).expect("a thread").join();
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}

/// Runs a test in a separate network namespace whose only loopback address is `::1`.
///
/// Every part of the harness uses the address of [`loopback`], which is also the daemons' default.
///
/// # Panics
///
/// The namespace cannot be created, or the test panics.
pub fn with_ipv6_alone(test: fn()) {
    alone(move || {
        ip(&["address", "delete", "127.0.0.1/8", "dev", "lo"]).expect("no IPv4");
        assert_eq!(loopback(), IpAddr::from(Ipv6Addr::LOCALHOST));
        test();
    });
}

/// Returns true if this process can create a network namespace for each test.
pub fn can_be_alone() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let made = || {
            std::thread::spawn(leave)
                .join()
                .is_ok_and(|made| made.is_ok())
        };
        unless_root().or_else(|| unless_installed("ip")).is_none() && made()
    })
}

/// Returns why this machine has no namespace for [`with_ipv6_alone`].
pub fn unless_ipv6_alone() -> Missing {
    let no_root = || unless_root().or_else(|| unless_installed("ip"));
    no_root().or_else(|| {
        let made = std::thread::spawn(|| -> anyhow::Result<()> {
            leave()?;
            ip(&["address", "delete", "127.0.0.1/8", "dev", "lo"])?;
            ensure!(loopback().is_ipv6(), "a new network has no ::1");
            Ok(())
        });
        let made = made.join().ok()?;
        made.err()
            .map(|error| format!("no network with ::1 alone: {error:#}"))
    })
}

/// Returns 127.0.0.1, or `::1` if this thread's network has no IPv4.
pub fn loopback() -> IpAddr {
    let v4 = IpAddr::from(Ipv4Addr::LOCALHOST);
    match TcpListener::bind((v4, 0)) {
        Ok(_) => v4,
        Err(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

/// Returns the URL of a port of [`loopback`], with an empty path.
pub fn loopback_url(port: u16) -> String {
    format!("http://{}", SocketAddr::new(loopback(), port))
}

/// Runs `ip` with these arguments in the network of this process.
pub fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    run("ip", arguments)
}

fn run(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let status = Command::new(program).args(arguments).status();
    let status = status.with_context(|| format!("failed to run `{program}`; install iproute2"))?;
    ensure!(
        status.success(),
        "`{program} {}`: {status}",
        arguments.join(" ")
    );
    Ok(())
}

/// Returns the address of a host; number 1 is this process.
pub fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, number)
}

/// Creates the bridge, at which this process has the first address; must be called after [`leave`].
pub fn make_bridge() -> anyhow::Result<()> {
    let own = format!("{}/24", address(1));
    ip(&["link", "add", BRIDGE, "type", "bridge"])?;
    ip(&["address", "add", &own, "dev", BRIDGE])?;
    ip(&["link", "set", BRIDGE, "up"])
}

/// A host at the bridge. Its namespace ends after its drop, with the last process in it.
#[derive(Debug)]
pub struct Host {
    /// The process that keeps the namespace while no other runs there; it ends with this process.
    holder: Child,
    pub address: Ipv4Addr,
    port: String,
}

impl Host {
    /// Creates the host of this number, from 2 on; the same thread must start its programs.
    pub fn new(number: u8) -> anyhow::Result<Self> {
        let holder = Command::new("setpriv")
            .args(["--pdeathsig=KILL", "unshare", "--net", "sleep", "infinity"])
            .stdin(Stdio::null())
            .spawn()
            .context("failed to run `setpriv`; install util-linux")?;
        let host = Self {
            holder,
            address: address(number),
            port: format!("host{number}"),
        };
        host.connect()?;
        Ok(host)
    }

    fn connect(&self) -> anyhow::Result<()> {
        // The namespace of this thread counts: other threads of this process may be elsewhere.
        let own = std::fs::read_link("/proc/thread-self/ns/net")?;
        let is_apart = || std::fs::read_link(self.namespace()).is_ok_and(|other| other != own);
        ensure!(holds(NAMESPACE_LIMIT, is_apart), "no network namespace");
        let pid = self.holder.id().to_string();
        let port = &self.port;
        let (veth, peer) = (["type", "veth"], ["peer", "name", "eth0", "netns", &pid]);
        ip(&[&["link", "add", port], &veth[..], &peer[..]].concat())?;
        ip(&["link", "set", port, "master", BRIDGE, "up"])?;
        let address = format!("{}/24", self.address);
        self.ip(&["link", "set", "lo", "up"])?;
        self.ip(&["address", "add", &address, "dev", "eth0"])?;
        self.ip(&["link", "set", "eth0", "up"])
    }

    fn namespace(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.holder.id()))
    }

    /// Returns the prefix of a command line that runs a program on this host, and ends it with this process.
    pub fn prefix(&self) -> Vec<String> {
        let network = format!("--net={}", self.namespace().display());
        ["setpriv", "--pdeathsig=KILL", "nsenter", &network]
            .map(str::to_owned)
            .into()
    }

    fn ip(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let network = format!("--net={}", self.namespace().display());
        run("nsenter", &[&[&network, "ip"], arguments].concat())
    }

    /// Cuts the host off from all others, in both directions.
    pub fn isolate(&self) -> anyhow::Result<()> {
        self.set_port(DISABLED)
    }

    /// Ends the effect of [`Self::isolate`].
    pub fn rejoin(&self) -> anyhow::Result<()> {
        self.set_port(FORWARDING)
    }

    fn set_port(&self, state: &str) -> anyhow::Result<()> {
        run(
            "bridge",
            &["link", "set", "dev", &self.port, "state", state],
        )
    }

    /// Loses packets to another host; packets from it still arrive.
    pub fn lose_to(&self, other: Ipv4Addr) -> anyhow::Result<()> {
        let to = other.to_string();
        let lost = ["lladdr", NOBODYS_ADDRESS, "dev", "eth0", "nud", "permanent"];
        self.ip(&[&["neighbor", "replace", &to], &lost[..]].concat())
    }

    /// Ends the effect of [`Self::lose_to`].
    pub fn find_again(&self, other: Ipv4Addr) -> anyhow::Result<()> {
        self.ip(&["neighbor", "delete", &other.to_string(), "dev", "eth0"])
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
