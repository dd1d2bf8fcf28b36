//! The connection to the master: one gRPC stream, opened by the agent.
//!
//! Each attempt is a task of its own that says once that the link is up and once that it is down. What
//! the core sends goes into a queue that is bounded in bytes (`outgoing.rs`); a master that does not
//! take what cannot be kept back is dropped like one that does not answer. What is heard of the master has a channel
//! of its own: however much others tell the core, its pings and kills arrive.
//!
//! ```text
//! address.rs   where the master is looked for
//! outgoing.rs  the queue of frames, bounded in bytes
//! reach.rs     the warning about an advertised address that nobody reaches
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

/// Time for the master to act on what it was sent last, and to end the connection.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the connection to stand.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the master to say that it leads.
const TAKEN_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection without any traffic is probed this often, and dropped after as long again.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Largest frame for the master: one update with its data is far below it.
const FRAME_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The present connection to the master.
#[derive(Debug)]
pub(crate) struct Links {
    master: MasterAddress,
    identity: ClientIdentity,
    /// For what a queue has to say.
    inputs: mpsc::Sender<Input>,
    /// What the attempts tell of their connections, in order, and the end that it arrives at.
    tell: mpsc::Sender<Input>,
    heard: mpsc::Receiver<Input>,
    dropped: Dropped,
    budgets: Budgets,
    samples: Samples,
    reach: Reach,
    /// Frames that wait for the core, of whatever connection.
    frames: Budget,
    hint: Hint,
    current: Option<Current>,
}

/// The leader that a master has named which does not lead itself; it is tried once.
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

    /// Carries out what concerns the link.
    pub(crate) fn carry_out(&mut self, action: LinkAction) {
        match action {
            LinkAction::Connect { link } => self.connect(link),
            LinkAction::Disconnect { link } => self.disconnect(link),
            LinkAction::Send { link, message } => self.send(link, *message),
        }
    }

    /// Waits for what is heard of the master, up to so many things.
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
    fn send(&mut self, link: LinkId, mut message: protocol::agent_frame::Message) {
        if let protocol::agent_frame::Message::Pong(pong) = &mut message {
            pong.usage = self.samples.usage();
        }
        let Some(current) = self.current.as_ref().filter(|current| current.link == link) else {
            return;
        };
        if !current.frames.send(message) {
            // It ended, which it says itself, or it does not read: then it may as well be gone.
            let inputs = self.tell.clone();
            let reason = "the master does not take what it is sent".to_owned();
            self.close();
            tokio::spawn(async move {
                let _ = inputs.send(Input::LinkDown { link, reason }).await;
            });
        }
    }

    /// Waits until the master has ended the connection, as it does to an agent that has unregistered, or for long enough.
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
        // Read anew for each attempt, so that new certificates and secrets need no restart.
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
        let mut request = tonic::Request::new(queue);
        if let Some(authorization) = authorization {
            let value = tonic::metadata::AsciiMetadataValue::try_from(authorization.as_bytes());
            let mut value =
                value.map_err(|_| Failure::new("--credential: it cannot be put in a header"))?;
            value.set_sensitive(true);
            request.metadata_mut().insert("authorization", value);
        }
        // A master that stands still takes the connection later, which may be after another one led.
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
            // What finds no room waits with the master; a ping is small, and answered in whatever state the agent is.
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

fn status_text(status: &tonic::Status) -> String {
    let mut text = status.code().to_string();
    if !status.message().is_empty() {
        text = format!("{text}: {}", status.message());
    }
    text
}
