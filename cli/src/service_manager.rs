//! Notifications to systemd: readiness, status and watchdog pings of a daemon.
//!
//! The protocol is that of sd_notify(3), one datagram per message. The send never blocks, unlike in the crates for it: a
//! manager that does not read must not delay a daemon. Without `NOTIFY_SOCKET` nothing is sent. Watchdog pings are sent
//! only while the daemon's core answers.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::{debug, warn};

/// The pause between two health checks of a daemon; shorter if the watchdog requires it.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// Pings within one period of the watchdog, so that a late ping does not kill the daemon.
const PINGS_PER_PERIOD: u32 = 3;

/// A daemon that can report its health.
pub(crate) trait Daemon: Send + 'static {
    /// Returns a status line for people; `None` if the daemon does not answer.
    fn status(&self) -> impl Future<Output = Option<String>> + Send;
}

impl Daemon for meseta_agent::Health {
    async fn status(&self) -> Option<String> {
        meseta_agent::Health::status(self).await
    }
}

impl Daemon for meseta_master::Health {
    async fn status(&self) -> Option<String> {
        meseta_master::Health::status(self).await
    }
}

impl Daemon for meseta_jobs::Health {
    async fn status(&self) -> Option<String> {
        meseta_jobs::Health::status(self).await
    }
}

/// The variable with the manager's socket, a path or an abstract name.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";
/// The pause before an important message is repeated to a manager that does not read.
const SAY_AGAIN: Duration = Duration::from_millis(100);

/// Returns a channel on which the daemon reports its start; `None` without a service manager.
pub(crate) fn notify_when_started<D: Daemon>() -> Option<oneshot::Sender<D>> {
    let socket = std::env::var_os(SOCKET_VARIABLE)?;
    let watchdog = watchdog(|name| std::env::var(name).ok());
    let (sender, started) = oneshot::channel();
    tokio::spawn(async move {
        if let Ok(daemon) = started.await {
            report(daemon, socket, watchdog).await;
        }
    });
    Some(sender)
}

/// Notifies the manager of the first request to stop.
pub(crate) fn stopping() {
    if let Some(socket) = std::env::var_os(SOCKET_VARIABLE) {
        say(&socket, "STOPPING=1");
    }
}

/// Returns the watchdog period of the manager, if it watches this process.
fn watchdog(variable: impl Fn(&str) -> Option<String>) -> Option<Duration> {
    let whose = variable("WATCHDOG_PID");
    if whose.is_some_and(|pid| pid != std::process::id().to_string()) {
        return None;
    }
    let period = variable("WATCHDOG_USEC")?.parse().ok()?;
    (period > 0).then(|| Duration::from_micros(period))
}

async fn report<D: Daemon>(daemon: D, socket: OsString, watchdog: Option<Duration>) {
    let every = watchdog.map_or(ASK_EVERY, |period| ASK_EVERY.min(period / PINGS_PER_PERIOD));
    let mut ticks = tokio::time::interval(every.max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut said = daemon.status().await;
    let first = said.as_deref().unwrap_or("Started");
    while !say(&socket, &format!("READY=1\nSTATUS={first}")) {
        tokio::time::sleep(SAY_AGAIN).await;
    }
    loop {
        ticks.tick().await;
        let Some(status) = daemon.status().await else {
            warn!("the core does not answer; not notifying the watchdog");
            continue;
        };
        if watchdog.is_some() {
            say(&socket, "WATCHDOG=1");
        }
        if said.as_deref() != Some(&*status) && say(&socket, &format!("STATUS={status}")) {
            said = Some(status);
        }
    }
}

/// Sends a message; returns whether it was sent.
fn say(socket: &OsString, text: &str) -> bool {
    match send(socket, text) {
        Ok(()) => true,
        Err(error) => {
            debug!(%error, "the service manager does not listen");
            false
        }
    }
}

fn send(socket: &OsString, text: &str) -> io::Result<()> {
    let name = socket.as_bytes();
    let address = match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let datagram = UnixDatagram::unbound()?;
    datagram.set_nonblocking(true)?;
    datagram.send_to_addr(text.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Well(&'static str);

    impl Daemon for Well {
        async fn status(&self) -> Option<String> {
            Some(self.0.to_owned())
        }
    }

    #[test]
    fn watchdog_of_other_process_is_ignored() {
        let own = std::process::id().to_string();
        let found = |usec: Option<&str>, pid: Option<&str>| {
            let (usec, pid) = (usec.map(str::to_owned), pid.map(str::to_owned));
            watchdog(move |name| match name {
                "WATCHDOG_USEC" => usec.clone(),
                _ => pid.clone(),
            })
        };
        let secs = Some(Duration::from_secs(3));
        assert_eq!(found(Some("3000000"), None), secs);
        assert_eq!(found(Some("3000000"), Some(&own)), secs);
        assert_eq!(found(Some("3000000"), Some("1")), None);
        assert_eq!(found(Some("soon"), None), None);
        assert_eq!(found(Some("0"), None), None);
        assert_eq!(found(None, None), None);
    }

    #[tokio::test]
    async fn ready_precedes_the_watchdog_signals() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("notify");
        let manager = tokio::net::UnixDatagram::bind(&path).expect("bound");
        let watchdog = Some(Duration::from_millis(60));
        let reporting = tokio::spawn(report(Well("Well"), path.into(), watchdog));
        let mut said = Vec::new();
        let mut buffer = [0; 256];
        for _ in 0..3 {
            let length = manager.recv(&mut buffer).await.expect("received");
            said.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
        }
        reporting.abort();
        assert_eq!(said, ["READY=1\nSTATUS=Well", "WATCHDOG=1", "WATCHDOG=1"]);
    }
}
