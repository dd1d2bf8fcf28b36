//! The connection to the master: one gRPC stream, opened by the agent.
//!
//! Each attempt is a separate task that reports once that the link is up and once that it is down. Frames from the core
//! go into a queue that is bounded in bytes (`outgoing.rs`). If a master does not read frames that cannot be held back,
//! the link is dropped like that to a silent master. Frames from the master have their own channel: its pings and kills
//! arrive, however many other inputs the core gets.
//!
//! ```text
//! address.rs   the address of the master
//! outgoing.rs  the queue of frames, bounded in bytes
//! reach.rs     the warning about an unreachable advertised address
//! ```

mod address;
pub(crate) mod outgoing;
pub(crate) mod reach;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use meseta_daemon::authentication::ClientIdentity;
use meseta_daemon::error_chain::chain;
use meseta_daemon::{client, leader};
use meseta_proto::budget::{Budget, waiting_bytes};
use meseta_proto::epoch::LedEpoch;
use meseta_proto::leader::named_leader;
use meseta_proto::meseta::v1 as protocol;
use meseta_proto::meseta::v1::agent_registry_client::AgentRegistryClient;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::transport::Endpoint;
use tracing::{debug, info, warn};

use crate::budgets::Budgets;
use crate::core::{Input, LinkAction, LinkId};
use crate::failure::Failure;
use crate::handle::INPUTS_MAX;
use crate::monitor::Samples;
pub(crate) use address::MasterAddress;
pub use address::MasterAddressError;
use outgoing::{Dropped, Outgoing, Queue, outgoing};
use reach::Reach;

/// Time for the master to handle the last message, and to end the connection.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for establishing the connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the master to report that it leads.
const TAKEN_TIMEOUT: Duration = Duration::from_secs(30);
/// An idle connection is probed at this interval, and dropped after as long again.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Largest frame for the master: an update with its data is far smaller.
const FRAME_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The present connection to the master.
#[derive(Debug)]
pub(crate) struct Links {
    master: MasterAddress,
    identity: ClientIdentity,
    /// The channel for events of the frame queue.
    inputs: mpsc::Sender<Input>,
    /// The channel on which the attempts report in order, and its receiver.
    tell: mpsc::Sender<Input>,
    heard: mpsc::Receiver<Input>,
    dropped: Dropped,
    budgets: Budgets,
    samples: Samples,
    reach: Reach,
    /// The capacity for frames that wait for the core, of any connection.
    frames: Budget,
    hint: Hint,
    current: Option<Current>,
}

/// The leader named by a master that does not lead itself; it is tried once.
#[derive(Clone, Debug, Default)]
struct Hint(Arc<Mutex<Option<String>>>);

impl Hint {
    fn take(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn note(&self, status: &tonic::Status) {
        if let Some(leader) = named_leader(status) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(leader.to_owned());
        }
    }
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
        identity: ClientIdentity,
        inputs: mpsc::Sender<Input>,
        dropped: Dropped,
        budgets: Budgets,
        (samples, reach): (Samples, Reach),
    ) -> Self {
        let (tell, heard) = mpsc::channel(INPUTS_MAX);
        Self {
            master,
            identity,
            inputs,
            tell,
            heard,
            dropped,
            budgets,
            samples,
            reach,
            hint: Hint::default(),
            frames: Budget::new(budgets.frames()),
            current: None,
        }
    }

    /// Carries out an action on the link.
    pub(crate) fn carry_out(&mut self, action: LinkAction) {
        match action {
            LinkAction::Connect { link } => self.connect(link),
            LinkAction::Disconnect { link } => self.disconnect(link),
            LinkAction::Send { link, message } => self.send(link, *message),
        }
    }

    /// Waits for up to `max` events from the master.
    pub(crate) async fn hear(&mut self, heard: &mut Vec<Input>, max: usize) {
        self.heard.recv_many(heard, max).await;
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
            inputs: self.tell.clone(),
            frame_bytes_max: self.budgets.frame_bytes_max(),
            waiting: self.frames.clone(),
            hint: self.hint.clone(),
            reach: self.reach.clone(),
        };
        let task = tokio::spawn(attempt.run(queue));
        self.current = Some(Current { link, frames, task });
    }

    /// Ends a connection, if it is the current one.
    fn disconnect(&mut self, link: LinkId) {
        if self
            .current
            .as_ref()
            .is_some_and(|current| current.link == link)
        {
            self.close();
        }
    }

    /// Sends on a connection, if it is the current one.
    fn send(&mut self, link: LinkId, mut message: protocol::agent_frame::Message) {
        if let protocol::agent_frame::Message::Pong(pong) = &mut message {
            pong.usage = self.samples.usage();
        }
        let Some(current) = self.current.as_ref().filter(|current| current.link == link) else {
            return;
        };
        if !current.frames.send(message) {
            // Either the connection has ended, which it reports itself, or the master does not read: then the link is
            // dropped.
            let inputs = self.tell.clone();
            let reason = "the master does not read from the connection".to_owned();
            self.close();
            tokio::spawn(async move {
                let _ = inputs.send(Input::LinkDown { link, reason }).await;
            });
        }
    }

    /// Waits until the master has ended the connection, as it does after an agent has unregistered, or until a timeout.
    pub(crate) async fn ended_by_master(&mut self) {
        let Some(mut current) = self.current.take() else {
            return;
        };
        if tokio::time::timeout(END_TIMEOUT, &mut current.task)
            .await
            .is_err()
        {
            warn!("the master has not confirmed in time that the agent unregistered");
            current.task.abort();
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
    identity: ClientIdentity,
    inputs: mpsc::Sender<Input>,
    frame_bytes_max: usize,
    waiting: Budget,
    hint: Hint,
    reach: Reach,
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
        // Read again for each attempt, so that new certificates and secrets need no restart.
        let masters = self.master.resolve()?;
        let encryption = self.identity.encryption(&masters)?;
        let address = match masters.as_slice() {
            [only] => self.hint.take().unwrap_or_else(|| only.clone()),
            several => leader::find(several, encryption.clone()).await?,
        };
        let others = leader::Others {
            address: address.clone(),
            masters,
            encryption: encryption.clone(),
        };
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
        let own =
            |error: &dyn std::error::Error| Failure::new(format!("{address}: {}", chain(error)));
        let authorization = self.identity.authorization().map_err(|error| own(&error))?;
        let channel = match encryption {
            None => endpoint.connect().await,
            Some(config) => {
                let connector = client::connector(config, CONNECT_TIMEOUT);
                endpoint.connect_with_connector(connector).await
            }
        };
        let channel = channel.map_err(|error| own(&error))?;
        let mut client = AgentRegistryClient::new(channel)
            .max_decoding_message_size(self.frame_bytes_max)
            .max_encoding_message_size(FRAME_BYTES_MAX);
        let refused = |status: tonic::Status| {
            self.hint.note(&status);
            Failure::new(format!("{address}: {}", status_text(&status)))
        };
        let silent =
            |leader: &str| Failure::new(format!("{address}: it is silent, and {leader} leads"));
        let request = authorized(queue, authorization)?;
        // A paused master accepts the connection later, possibly after another one became the leader.
        let response = tokio::select! {
            response = client.connect(request) => response.map_err(refused)?,
            leader = others.until_another_leads() => return Err(silent(&leader)),
            () = tokio::time::sleep(TAKEN_TIMEOUT) => {
                let waited = TAKEN_TIMEOUT.as_secs();
                return Err(Failure::new(format!("{address}: it does not take the connection within {waited} s")));
            }
        };
        info!(master = address, "connected to the master");
        self.reach.check(&address);
        let link = self.link;
        let led = LedEpoch::read(response.metadata());
        if self.inputs.send(Input::LinkUp { link, led }).await.is_err() {
            return Ok(());
        }
        let mut frames = response.into_inner();
        loop {
            let frame = tokio::select! {
                frame = frames.message() => frame.map_err(refused)?,
                leader = others.until_another_leads() => return Err(silent(&leader)),
            };
            let Some(frame) = frame else {
                return Ok(());
            };
            let is_ping = matches!(
                frame.message,
                Some(protocol::master_frame::Message::Ping(_))
            );
            // A frame without room waits at the master. A ping is small, and is answered in any state of the agent.
            let charge = match is_ping {
                true => None,
                false => Some(self.waiting.charge_when_free(waiting_bytes(&frame)).await),
            };
            let input = Input::Frame {
                link,
                frame: Box::new(frame),
                charge,
            };
            if self.inputs.send(input).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// Returns the request that opens the stream, with the value of its authorization header.
fn authorized(
    queue: Queue,
    authorization: Option<http::HeaderValue>,
) -> Result<tonic::Request<Queue>, Failure> {
    let mut request = tonic::Request::new(queue);
    if let Some(authorization) = authorization {
        let value = tonic::metadata::AsciiMetadataValue::try_from(authorization.as_bytes());
        let mut value = value.map_err(|_| {
            Failure::new("--credential: it contains characters that are invalid in a header")
        })?;
        value.set_sensitive(true);
        request.metadata_mut().insert("authorization", value);
    }
    Ok(request)
}

fn status_text(status: &tonic::Status) -> String {
    let mut text = status.code().to_string();
    if !status.message().is_empty() {
        text = format!("{text}: {}", status.message());
    }
    text
}
