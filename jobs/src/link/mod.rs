//! The framework's connection to the leading master: subscribed, read, and opened again when it ends.
//!
//! Entered through [`Link::run`]. A stream has its own queue of calls, so that a call of an earlier stream is never sent on
//! a later one. Invariant: a call that did not arrive ends its stream, after which the core queries the states of its
//! tasks; the core learns of each call that the master refuses.

pub(crate) mod calls;
mod outgoing;
mod queue;

use std::sync::Once;
use std::time::Duration;

use http::StatusCode;
use meseta_daemon::authentication::ClientIdentity;
use meseta_daemon::client::{self, Client, RecordStream};
use meseta_daemon::error_chain::chain;
use meseta_daemon::leader;
use meseta_etcd::leadership::Fence;
use meseta_proto::epoch::CLUSTER_ID;
use meseta_proto::leader::Backoff;
use meseta_proto::media::MediaType;
use meseta_proto::mesos::v1 as mesos;
use meseta_proto::mesos::v1::scheduler::{Event, event};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

pub(crate) use outgoing::Outgoing;
pub(crate) use queue::CallQueue;
use queue::Stream;

use crate::core::{Input, RoleSet, State};
use crate::placement::Offer;
use crate::service::FromLink;

pub(crate) const PATH: &str = "/api/v1/scheduler";
pub(crate) const MEDIA: MediaType = MediaType::Protobuf;
/// Heartbeats that may be missing before the stream counts as dead.
const HEARTBEATS_MISSED_MAX: f64 = 3.0;
/// The heartbeat interval of a master that sends none.
const HEARTBEAT_SECONDS: f64 = 15.0;
/// Bytes of a status update's message that are kept. A job keeps the last message of each task and a hundred events.
const MESSAGE_BYTES_MAX: usize = 1_024;
/// Bytes of the master's reason for a refused call that are kept.
const REASON_BYTES_MAX: usize = 512;

/// The identity with which the framework subscribes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Registration {
    pub(crate) framework_id: Option<String>,
    /// The id of the framework's cluster.
    pub(crate) cluster_id: Option<String>,
    pub(crate) roles: RoleSet,
    /// The user of tasks that specify no user.
    pub(crate) user: String,
    pub(crate) principal: Option<String>,
    /// The host that the scheduler runs on, as others see it.
    pub(crate) hostname: String,
    /// The address of the scheduler's web page.
    pub(crate) webui_url: String,
}

impl Registration {
    /// Returns the scheduler's address: `host:port`, or a URL if TLS is on.
    pub(crate) fn scheduler(&self) -> &str {
        let url = self.webui_url.trim_end_matches('/');
        url.strip_prefix("http://").unwrap_or(url)
    }

    /// Returns the registration with the current ids and roles of the state.
    pub(crate) fn with(&self, state: &State) -> Self {
        Self {
            framework_id: state.framework_id().map(str::to_owned),
            cluster_id: state.cluster_id().map(str::to_owned),
            roles: RoleSet {
                roles: state.roles(),
                suppressed: state.idle_roles(),
            },
            ..self.clone()
        }
    }
}

/// The reason why a stream ended, or did not begin.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    NoLeader(#[from] leader::NoLeader),
    #[error("failed to load the certificates")]
    Tls(#[source] meseta_daemon::tls::TlsError),
    #[error("failed to load the credential")]
    Credential(#[source] meseta_daemon::authentication::SettingsError),
    #[error(transparent)]
    Client(#[from] client::Error),
    #[error("the master's answer has no Mesos-Stream-Id")]
    NoStreamId,
    #[error("the master closed the stream")]
    Closed,
    #[error("the master has sent nothing for {0:?}")]
    Silent(Duration),
    #[error("the master is silent, and {0} leads")]
    AnotherLeads(String),
    #[error("failed to send a call to the master")]
    Call,
    #[error("the master ended the subscription: {0}")]
    Refused(String),
    #[error("the scheduler is ending")]
    Ending,
    #[error("the master belongs to another cluster")]
    OtherCluster(Unusable),
}

/// Reasons that end a scheduler: two schedulers would kill each other's tasks as strays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    #[error(
        "another scheduler has subscribed as the same framework: a copy of the store is in use \
         elsewhere. Stop one of the schedulers, or give each scheduler its own store"
    )]
    FailedOver,
    #[error(
        "the master {master} belongs to cluster {found}, and the jobs in the store belong to \
         cluster {stored}: correct --master, or give this cluster its own store (--work_dir, \
         --etcd_prefix). To continue these jobs in the other cluster, set --adopt_cluster once"
    )]
    OtherCluster {
        master: String,
        found: String,
        stored: String,
    },
}

/// The parts of a subscription.
pub(crate) struct Link {
    pub(crate) masters: Vec<String>,
    /// Accept another cluster as that of the jobs.
    pub(crate) adopts_cluster: bool,
    pub(crate) identity: ClientIdentity,
    pub(crate) registration: watch::Receiver<Registration>,
    pub(crate) events: mpsc::Sender<FromLink>,
    /// Receives the URL of each master that accepts the subscription.
    pub(crate) leader: watch::Sender<Option<String>>,
    /// The lease fence; while it is closed, no call is sent.
    pub(crate) fence: Fence,
    pub(crate) seed: u64,
}

impl Link {
    /// Keeps a subscription until `shutdown`.
    ///
    /// # Errors
    ///
    /// Another scheduler has subscribed as the same framework, or the master belongs to another cluster.
    pub(crate) async fn run(self, shutdown: CancellationToken) -> Result<(), Unusable> {
        let mut backoff = Backoff::new(self.seed);
        while !shutdown.is_cancelled() {
            let outcome = tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                outcome = self.subscribe_once(&mut backoff) => outcome,
            };
            let Err(error) = outcome;
            if matches!(error, Ended::Ending) {
                return Ok(());
            }
            if matches!(&error, Ended::Refused(why) if is_failover(why)) {
                tracing::error!(error = %chain(&error), "another scheduler has taken over the framework");
                return Err(Unusable::FailedOver);
            }
            if let Ended::OtherCluster(unusable) = error {
                tracing::error!(error = %unusable, "the master belongs to another cluster");
                return Err(unusable);
            }
            tracing::warn!(error = %chain(&error), "not subscribed to a master");
            let is_removed = matches!(&error, Ended::Refused(why) if is_removal(why));
            let told = match &error {
                _ if is_removed => Input::FrameworkRemoved,
                Ended::Refused(_) => Input::SubscriptionRefused,
                Ended::Client(client::Error::Refused { status, .. })
                    if matches!(*status, StatusCode::BAD_REQUEST | StatusCode::FORBIDDEN) =>
                {
                    Input::SubscriptionRefused
                }
                _ => Input::Disconnected,
            };
            if self.events.send(FromLink::Input(told)).await.is_err() {
                return Ok(());
            }
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = tokio::time::sleep(backoff.next_pause()) => {}
            }
        }
        Ok(())
    }

    /// Returns the reason not to act for jobs of this cluster, if the master that leads is of another one.
    pub(crate) async fn other_cluster(&self, stored: &str) -> Option<Unusable> {
        if self.adopts_cluster {
            return None;
        }
        let encryption = self.identity.encryption(&self.masters).ok()?;
        let leader = leader::find(&self.masters, encryption.clone()).await;
        let leader = leader.ok()?;
        let found = leader::cluster_of(&leader, encryption).await;
        match new_cluster(&leader, Some(stored), found) {
            Err(Ended::OtherCluster(unusable)) => Some(unusable),
            _ => None,
        }
    }

    /// Runs one stream, from the search for the leader to the end of the stream.
    async fn subscribe_once(
        &self,
        backoff: &mut Backoff,
    ) -> Result<std::convert::Infallible, Ended> {
        let encryption = self
            .identity
            .encryption(&self.masters)
            .map_err(Ended::Tls)?;
        let scheme = if encryption.is_some() {
            "https"
        } else {
            "http"
        };
        let leader = leader::find(&self.masters, encryption.clone()).await?;
        // Before SUBSCRIBE, which would register the framework in the other cluster.
        let registration = self.registration.borrow().clone();
        let stored = registration
            .cluster_id
            .as_deref()
            .filter(|_| !self.adopts_cluster);
        let found = leader::cluster_of(&leader, encryption.clone()).await;
        new_cluster(&leader, stored, found)?;
        let authorization = self.identity.authorization().map_err(Ended::Credential)?;
        let others = leader::Others {
            address: leader.clone(),
            masters: self.masters.clone(),
            encryption: encryption.clone(),
        };
        let options = client::Options::default();
        let client = match encryption {
            Some(config) => Client::with(options, config, authorization),
            None => Client::plaintext(options, authorization),
        };
        let leader = format!("{scheme}://{leader}");
        let url = format!("{leader}{PATH}");
        let call = client::Call::message(&url, MEDIA, &calls::subscribe(&registration));
        // A scheduler that no longer leads must not take the stream of the leader.
        self.fence.opened().await;
        let mut records = client.stream(call).await?;
        let stream_id = records.header("mesos-stream-id").ok_or(Ended::NoStreamId)?;
        let stream_id = stream_id.parse().map_err(|_| Ended::NoStreamId)?;
        let cluster = records.header(CLUSTER_ID).map(str::to_owned);
        if let Some(cluster) = new_cluster(&leader, stored, cluster)? {
            self.tell(FromLink::Input(Input::Cluster(cluster))).await?;
        }
        let first = next(&mut records, Duration::from_secs(30)).await?;
        let subscribed = match (first.subscribed, first.error) {
            (Some(subscribed), _) => subscribed,
            (None, Some(error)) => return Err(Ended::Refused(error.message)),
            (None, None) => return Err(Ended::Closed),
        };
        backoff.reset();
        let framework_id = subscribed.framework_id.value;
        tracing::info!(%framework_id, master = %leader, "subscribed");
        self.leader.send_replace(Some(leader));
        let seconds = subscribed
            .heartbeat_interval_seconds
            .unwrap_or(HEARTBEAT_SECONDS);
        let patience = Duration::try_from_secs_f64(seconds * HEARTBEATS_MISSED_MAX)
            .unwrap_or(Duration::from_secs(60));
        let broken = CancellationToken::new();
        let stream = Stream {
            client,
            url,
            stream_id,
            framework_id: framework_id.clone(),
            told: self.events.clone(),
            broken: broken.clone(),
            fence: self.fence.clone(),
        };
        self.tell(FromLink::Subscribed {
            framework_id,
            roles: registration.roles,
            calls: CallQueue::start(&stream),
        })
        .await?;
        let domain = subscribed.master_info.and_then(|info| info.domain);
        let fault_domain = domain.and_then(|domain| domain.fault_domain);
        let region = fault_domain.map(|domain| domain.region.name);
        self.tell(FromLink::Input(Input::MasterRegion(region)))
            .await?;
        let _end = broken.clone().drop_guard();
        loop {
            let event = tokio::select! {
                () = broken.cancelled() => return Err(Ended::Call),
                leader = others.until_another_leads() => return Err(Ended::AnotherLeads(leader)),
                event = next(&mut records, patience) => event?,
            };
            for input in inputs_of(event)? {
                self.tell(FromLink::Input(input)).await?;
            }
        }
    }

    async fn tell(&self, told: FromLink) -> Result<(), Ended> {
        self.events.send(told).await.map_err(|_| Ended::Ending)
    }
}

/// Returns the cluster of the jobs from now on, if it may be new. A master with its registry in memory sends none.
fn new_cluster(
    master: &str,
    stored: Option<&str>,
    found: Option<String>,
) -> Result<Option<String>, Ended> {
    match (stored, found) {
        (Some(stored), Some(found)) if stored == found => Ok(None),
        (Some(stored), Some(found)) => Err(Ended::OtherCluster(Unusable::OtherCluster {
            master: master.to_owned(),
            found,
            stored: stored.to_owned(),
        })),
        (_, found) => Ok(found),
    }
}

async fn next(records: &mut RecordStream, patience: Duration) -> Result<Event, Ended> {
    let event = tokio::time::timeout(patience, records.next_message::<Event>(MEDIA)).await;
    let event = event.map_err(|_| Ended::Silent(patience))??;
    event.ok_or(Ended::Closed)
}

static FIRST_UNREADABLE: Once = Once::new();

/// Returns the inputs of an event for the core, if any.
fn inputs_of(event: Event) -> Result<Vec<Input>, Ended> {
    let input = match event.r#type() {
        event::Type::Offers => return Ok(read_offers(event.offers.unwrap_or_default().offers)),
        event::Type::Rescind => event
            .rescind
            .map(|rescind| Input::Rescinded(rescind.offer_id.value)),
        // Without an executor, the failure is that of the agent.
        event::Type::Failure => event
            .failure
            .filter(|failure| failure.executor_id.is_none())
            .and_then(|failure| Some(Input::AgentLost(failure.agent_id?.value))),
        event::Type::Update => event.update.map(|mut update| {
            shorten(&mut update.status.message);
            Input::Update(Box::new(update.status))
        }),
        event::Type::UpdateOperationStatus => event.update_operation_status.map(|mut update| {
            shorten(&mut update.status.message);
            Input::OperationUpdate(Box::new(update.status))
        }),
        event::Type::Error => {
            let message = event.error.map(|error| error.message).unwrap_or_default();
            return Err(Ended::Refused(message));
        }
        _ => None,
    };
    Ok(input.into_iter().collect())
}

/// Cuts a message of an agent or an executor. The scheduler keeps the message of each task and event.
fn shorten(message: &mut Option<String>) {
    if let Some(text) = message
        .as_mut()
        .filter(|text| text.len() > MESSAGE_BYTES_MAX)
    {
        *text = shortened(text, MESSAGE_BYTES_MAX);
    }
}

/// Copies the beginning of a text, so that the memory of the rest is free.
fn shortened(text: &str, bytes_max: usize) -> String {
    let beginning = &text[..text.floor_char_boundary(bytes_max)];
    match beginning.len() < text.len() {
        true => format!("{beginning}..."),
        false => beginning.to_owned(),
    }
}

/// Converts offers for the core, and lists the unreadable ones to decline.
fn read_offers(offers: Vec<mesos::Offer>) -> Vec<Input> {
    let (mut read, mut unreadable) = (Vec::new(), Vec::new());
    for offer in offers {
        match Offer::from_message(&offer) {
            Ok(offer) => read.push(offer),
            Err(error) => {
                let id = offer.id.value;
                // The same agent's offers come repeatedly; the metric counts them.
                FIRST_UNREADABLE.call_once(|| {
                    tracing::warn!(offer_id = %id, error = %chain(&error), "failed to parse an offer; declining it");
                });
                unreadable.push(id);
            }
        }
    }
    let mut inputs = vec![Input::Offers(read)];
    if !unreadable.is_empty() {
        inputs.push(Input::UnreadableOffers(unreadable));
    }
    inputs
}

/// Returns true if an error of the master reports another stream of the framework. Only a second scheduler with the same
/// framework id can open that stream, so this scheduler ends.
#[must_use]
pub fn is_failover(message: &str) -> bool {
    message.to_lowercase().starts_with("framework failed over")
}

/// Whether the framework's id cannot be used again.
fn is_removal(message: &str) -> bool {
    let message = message.to_lowercase();
    message.starts_with("framework has been removed") || message.contains("completed framework")
}

#[cfg(test)]
mod tests {
    use meseta_proto::mesos::v1::TaskStatus;

    use super::*;

    #[test]
    fn master_of_another_cluster_is_refused() {
        let found = |stored, found: Option<&str>| {
            new_cluster("http://m:5050", stored, found.map(str::to_owned))
        };
        for (stored, told, new) in [
            (None, None, None),
            (None, Some("c"), Some("c")),
            (Some("c"), Some("c"), None),
            // A master with a registry in memory.
            (Some("c"), None, None),
        ] {
            let new_one = found(stored, told).expect("taken");
            assert_eq!(new_one.as_deref(), new, "{stored:?} {told:?}");
        }
        let refused = found(Some("c"), Some("d"));
        let Err(Ended::OtherCluster(unusable)) = refused else {
            panic!("{refused:?}");
        };
        let told = unusable.to_string();
        assert!(
            told.contains("http://m:5050 belongs to cluster d") && told.contains("to cluster c")
        );
        assert!(told.contains("--adopt_cluster"), "{told}");
    }

    #[test]
    fn update_message_is_shortened() {
        let status = || TaskStatus {
            message: Some("ä".repeat(100_000)),
            ..TaskStatus::default()
        };
        let update = Event {
            r#type: Some(event::Type::Update.into()),
            update: Some(event::Update { status: status() }),
            ..Event::default()
        };
        let inputs = inputs_of(update).expect("an input");
        let [Input::Update(status)] = inputs.as_slice() else {
            panic!("{inputs:?}");
        };
        let message = status.message.as_deref().unwrap_or_default();
        assert_eq!(message.len(), MESSAGE_BYTES_MAX + "...".len());
        assert!(message.starts_with('ä') && message.ends_with("..."));
    }

    #[test]
    fn only_framework_end_forgets_its_id() {
        for (message, removed) in [
            ("Framework has been removed", true),
            ("Framework failed over", false),
            ("Role 'x' is not allowed", false),
            ("Role 'removed-x' is not allowed", false),
        ] {
            assert_eq!(is_removal(message), removed, "{message}");
            let is_failed_over = message == "Framework failed over";
            assert_eq!(is_failover(message), is_failed_over, "{message}");
        }
    }
}
