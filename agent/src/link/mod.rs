//! The connection to the master: one gRPC stream, opened by the agent.
//!
//! Each attempt is a task of its own that says once that the link is up and once that it is down. What
//! the core sends goes into a queue that is bounded in bytes (`outgoing.rs`); a master that does not
//! take what cannot be kept back is dropped like one that does not answer.
//!
//! ```text
//! outgoing.rs  the queue of frames, bounded in bytes
//! ```

pub(crate) mod outgoing;

use std::net::SocketAddr;
use std::time::Duration;

use meseta_daemon::client;
use meseta_daemon::error_chain::chain;
use meseta_proto::budget::{Budget, waiting_bytes};
use meseta_proto::meseta::v1 as protocol;
use meseta_proto::meseta::v1::agent_registry_client::AgentRegistryClient;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::transport::Endpoint;
use tracing::{debug, info};

use crate::access_flags::Identity;
use crate::budgets::Budgets;
use crate::core::{Input, LinkAction, LinkId};
use crate::failure::Failure;
use outgoing::{Dropped, Outgoing, Queue, outgoing};

/// Time for the connection to stand.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection without any traffic is probed this often, and dropped after as long again.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Largest frame for the master: one update with its data is far below it.
const FRAME_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Where the master is looked for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum MasterAddress {
    HostPort(String),
    /// Where this file says, read anew for each attempt.
    File(std::path::PathBuf),
}

/// A `--master` that cannot be used.
#[derive(Debug, thiserror::Error, Eq, PartialEq)]
pub enum MasterAddressError {
    /// A kind of address that is not supported.
    #[error(
        "--master={0:?} names ZooKeeper, which is not supported: give host:port or file:///path"
    )]
    ZooKeeper(String),
    /// The text is not `host:port`.
    #[error("--master={0:?} is not host:port (for example 10.0.0.1:5050), nor file:///path")]
    Malformed(String),
}

impl MasterAddress {
    pub(crate) fn parse(text: &str) -> Result<Self, MasterAddressError> {
        if let Some(path) = text.strip_prefix("file://") {
            return if path.starts_with('/') {
                Ok(Self::File(path.into()))
            } else {
                Err(MasterAddressError::Malformed(text.to_owned()))
            };
        }
        if text.starts_with("zk://") {
            return Err(MasterAddressError::ZooKeeper(text.to_owned()));
        }
        let host_port = text.strip_prefix("master@").unwrap_or(text);
        check_host_port(host_port)
            .then(|| Self::HostPort(host_port.to_owned()))
            .ok_or_else(|| MasterAddressError::Malformed(text.to_owned()))
    }

    pub(crate) fn resolve(&self) -> Result<String, Failure> {
        match self {
            Self::HostPort(text) => Ok(text.clone()),
            Self::File(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
                let text = text.trim();
                let text = text.strip_prefix("http://").unwrap_or(text);
                let text = text.strip_prefix("https://").unwrap_or(text);
                check_host_port(text)
                    .then(|| text.to_owned())
                    .ok_or_else(|| {
                        Failure::new(format!("{} does not hold host:port", path.display()))
                    })
            }
        }
    }
}

fn check_host_port(text: &str) -> bool {
    if text
        .parse::<SocketAddr>()
        .is_ok_and(|address| address.port() != 0)
    {
        return true;
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    !host.is_empty() && host.chars().all(named) && port.parse::<u16>().is_ok_and(|port| port != 0)
}

/// The present connection to the master.
#[derive(Debug)]
pub(crate) struct Links {
    master: MasterAddress,
    identity: Identity,
    inputs: mpsc::Sender<Input>,
    dropped: Dropped,
    budgets: Budgets,
    /// Frames that wait for the core, of whatever connection.
    frames: Budget,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    link: LinkId,
    frames: Outgoing,
    task: JoinHandle<()>,
}

impl Links {
    pub(crate) fn new(
        master: MasterAddress,
        identity: Identity,
        inputs: mpsc::Sender<Input>,
        dropped: Dropped,
        budgets: Budgets,
    ) -> Self {
        Self {
            master,
            identity,
            inputs,
            dropped,
            budgets,
            frames: Budget::new(budgets.frames()),
            current: None,
        }
    }

    /// Carries out what concerns the link.
    pub(crate) fn carry_out(&mut self, action: LinkAction) {
        match action {
            LinkAction::Connect { link } => self.connect(link),
            LinkAction::Disconnect { link } => self.disconnect(link),
            LinkAction::Send { link, message } => self.send(link, *message),
        }
    }

    /// Tries once to reach the master.
    fn connect(&mut self, link: LinkId) {
        self.close();
        let (inputs, dropped) = (self.inputs.clone(), self.dropped.clone());
        let (frames, queue) = outgoing(link, inputs, dropped, self.budgets.outgoing());
        let attempt = Attempt {
            link,
            master: self.master.clone(),
            identity: self.identity.clone(),
            inputs: self.inputs.clone(),
            frame_bytes_max: self.budgets.frame_bytes_max(),
            waiting: self.frames.clone(),
        };
        let task = tokio::spawn(attempt.run(queue));
        self.current = Some(Current { link, frames, task });
    }

    /// Ends a connection, if it is the present one.
    fn disconnect(&mut self, link: LinkId) {
        if self
            .current
            .as_ref()
            .is_some_and(|current| current.link == link)
        {
            self.close();
        }
    }

    /// Sends on a connection, if it is the present one.
    fn send(&mut self, link: LinkId, message: protocol::agent_frame::Message) {
        let Some(current) = self.current.as_ref().filter(|current| current.link == link) else {
            return;
        };
        if !current.frames.send(message) {
            // It ended, which it says itself, or it does not read: then it may as well be gone.
            let inputs = self.inputs.clone();
            let reason = "the master does not take what it is sent".to_owned();
            self.close();
            tokio::spawn(async move {
                let _ = inputs.send(Input::LinkDown { link, reason }).await;
            });
        }
    }

    fn close(&mut self) {
        if let Some(current) = self.current.take() {
            current.task.abort();
        }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.close();
    }
}

struct Attempt {
    link: LinkId,
    master: MasterAddress,
    identity: Identity,
    inputs: mpsc::Sender<Input>,
    frame_bytes_max: usize,
    waiting: Budget,
}

impl Attempt {
    async fn run(self, queue: Queue) {
        let reason = match self.speak(queue).await {
            Ok(()) => "the master ended the connection".to_owned(),
            Err(reason) => reason.into(),
        };
        let link = self.link;
        let _ = self.inputs.send(Input::LinkDown { link, reason }).await;
    }

    async fn speak(&self, queue: Queue) -> Result<(), Failure> {
        let address = self.master.resolve()?;
        debug!(master = address, "connecting to the master");
        let scheme = if self.identity.is_encrypted() {
            "https"
        } else {
            "http"
        };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
            .map_err(|error| Failure::new(format!("{address}: {}", chain(&error))))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(true);
        // Read anew for each attempt, so that new certificates and secrets need no restart.
        let own =
            |error: &dyn std::error::Error| Failure::new(format!("{address}: {}", chain(error)));
        let encryption = self.identity.encryption().map_err(|error| own(&error))?;
        let authorization = self.identity.header().map_err(|error| own(&error))?;
        let channel = match encryption {
            None => endpoint.connect().await,
            Some(config) => {
                let connector = client::connector(config, CONNECT_TIMEOUT);
                endpoint.connect_with_connector(connector).await
            }
        };
        let channel = channel.map_err(|error| own(&error))?;
        info!(master = address, "connected to the master");
        let link = self.link;
        if self.inputs.send(Input::LinkUp { link }).await.is_err() {
            return Ok(());
        }
        let mut client = AgentRegistryClient::new(channel)
            .max_decoding_message_size(self.frame_bytes_max)
            .max_encoding_message_size(FRAME_BYTES_MAX);
        let refused =
            |status: tonic::Status| Failure::new(format!("{address}: {}", status_text(&status)));
        let mut request = tonic::Request::new(queue);
        if let Some(authorization) = authorization {
            let value = authorization.parse();
            let mut value: tonic::metadata::MetadataValue<_> =
                value.map_err(|_| Failure::new("--credential: it cannot be put in a header"))?;
            value.set_sensitive(true);
            request.metadata_mut().insert("authorization", value);
        }
        let response = client.connect(request).await;
        let mut frames = response.map_err(refused)?.into_inner();
        while let Some(frame) = frames.message().await.map_err(refused)? {
            // What finds no room waits with the master.
            let charge = self.waiting.charge_when_free(waiting_bytes(&frame)).await;
            let input = Input::Frame {
                link,
                frame: Box::new(frame),
                charge: Some(charge),
            };
            if self.inputs.send(input).await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn status_text(status: &tonic::Status) -> String {
    let mut text = status.code().to_string();
    if !status.message().is_empty() {
        text = format!("{text}: {}", status.message());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_master_are_checked() {
        for good in ["127.0.0.1:5050", "master.example:5050", "[::1]:5050", "m:1"] {
            assert_eq!(
                MasterAddress::parse(good),
                Ok(MasterAddress::HostPort(good.to_owned()))
            );
        }
        assert_eq!(
            MasterAddress::parse("file:///etc/master"),
            Ok(MasterAddress::File("/etc/master".into()))
        );
        for bad in [
            "",
            "host",
            "host:",
            ":5050",
            "host:0",
            "host:70000",
            "a b:1",
            "file://x",
        ] {
            assert!(
                matches!(
                    MasterAddress::parse(bad),
                    Err(MasterAddressError::Malformed(_))
                ),
                "{bad:?}"
            );
        }
        assert!(matches!(
            MasterAddress::parse("zk://a:2181/x"),
            Err(MasterAddressError::ZooKeeper(_))
        ));
    }
}
