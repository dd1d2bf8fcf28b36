//! The agents of the cluster, as the leading master lists them: for jobs that spread over more agents than the offers show.
//!
//! Entered through [`Cluster::run`], a loop that queries the master while a job needs the list. Invariant: at most one
//! query is in flight; without an answer the core continues with the list that it has.

use std::time::Duration;

use meseta_daemon::authentication::{ClientIdentity, SettingsError};
use meseta_daemon::background;
use meseta_daemon::client::{self, Client};
use meseta_daemon::error_chain::chain;
use meseta_daemon::tls::TlsError;
use meseta_proto::convert;
use meseta_proto::media::MediaType;
use meseta_proto::mesos::v1 as mesos;
use meseta_proto::mesos::v1::master;
use meseta_resources::Resources;
use prost::Message as _;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::core::{Input, State};
use crate::placement::Offer;
use crate::service::{FromLink, Handle};

/// The pause between two queries. Free resources change sooner, but then the agent is offered.
const INTERVAL: Duration = Duration::from_secs(5);
/// The pause between two checks whether a job needs the agents.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The longest time that the master may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// The longest accepted response: about 10,000 agents.
const BODY_BYTES_MAX: usize = 64 << 20;

/// The reason why the master gave no list.
#[derive(Debug, thiserror::Error)]
enum Untold {
    #[error("failed to load the certificates")]
    Tls(#[source] TlsError),
    #[error("failed to load the credential")]
    Credential(#[source] SettingsError),
    #[error(transparent)]
    Client(#[from] client::Error),
    #[error("failed to read the answer to its end")]
    Unread(#[source] tokio::task::JoinError),
    #[error("failed to parse the answer of {url}")]
    Answer {
        url: String,
        #[source]
        source: prost::DecodeError,
    },
}

/// Asks the master for the agents of the cluster.
pub(crate) struct Cluster {
    pub(crate) identity: ClientIdentity,
    /// The masters configured by the operator.
    pub(crate) masters: Vec<String>,
    /// The URL of the master, once there was one.
    pub(crate) leader: watch::Receiver<Option<String>>,
    pub(crate) core: Handle,
    pub(crate) told: mpsc::Sender<FromLink>,
}

impl Cluster {
    /// Sends the agents to the core until `shutdown`.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.ask_on() => {}
        }
    }

    async fn ask_on(&self) {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            if self.core.read(State::needs_agents).await != Ok(true) {
                continue;
            }
            match self.ask().await {
                Ok(Some(agents)) => {
                    let told = FromLink::Input(Input::Agents(agents));
                    if self.told.send(told).await.is_err() {
                        return;
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(error = %chain(&error), "the master's answer has no agents");
                }
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    async fn ask(&self) -> Result<Option<Vec<Offer>>, Untold> {
        let Some(leader) = self.leader.borrow().clone() else {
            return Ok(None);
        };
        let url = format!("{leader}/api/v1");
        let options = client::Options {
            connect_timeout: ANSWER_MAX,
            timeout: ANSWER_MAX,
            body_max_bytes: BODY_BYTES_MAX,
        };
        let authorization = self.identity.authorization().map_err(Untold::Credential)?;
        let client = match self
            .identity
            .encryption(&self.masters)
            .map_err(Untold::Tls)?
        {
            Some(config) => Client::with(options, config, authorization),
            None => Client::plaintext(options, authorization),
        };
        let call = master::Call {
            r#type: Some(master::call::Type::GetAgents.into()),
            ..master::Call::default()
        };
        let call = client::Call::message(&url, MediaType::Protobuf, &call);
        let reply = client.request(call).await?;
        if !reply.status.is_success() {
            let (status, body) = (reply.status, reply.text());
            return Err(client::Error::Refused { url, status, body }.into());
        }
        // Decoding the agents of a very large cluster takes long.
        let read = background::spawn(move || {
            let response = master::Response::decode(reply.body)?;
            Ok::<_, prost::DecodeError>(agents_in(response))
        });
        let read = read.await.map_err(Untold::Unread)?;
        read.map_err(|source| Untold::Answer { url, source })
            .map(Some)
    }
}

/// Returns the active agents of an answer, with their resources that are free for any role, offered or not.
fn agents_in(response: master::Response) -> Vec<Offer> {
    let agents = response.get_agents.unwrap_or_default().agents.into_iter();
    let agents = agents.filter(|agent| agent.active && agent.deactivated != Some(true));
    agents.filter_map(agent_of).collect()
}

fn agent_of(agent: master::response::get_agents::Agent) -> Option<Offer> {
    let resources = |wire: &[mesos::Resource]| convert::resources(wire).ok();
    let unreserved = |resources: Resources| {
        let resources = resources.unallocate();
        resources.filtered(|resource| resource.reservations().is_empty())
    };
    let total = unreserved(resources(&agent.total_resources)?);
    let used = unreserved(resources(&agent.allocated_resources)?);
    let info = agent.agent_info;
    let message = mesos::Offer {
        agent_id: info.id.unwrap_or_default(),
        hostname: info.hostname,
        attributes: info.attributes,
        domain: info.domain,
        ..mesos::Offer::default()
    };
    let offer = Offer::from_message(&message).ok()?;
    Some(offer.with_resources(&total - &used))
}

#[cfg(test)]
mod tests {
    use meseta_resources::Role;

    use super::*;

    #[test]
    fn agents_include_their_free_resources() {
        let resources = |text: &str| {
            let resources = Resources::parse(text, &Role::star()).expect("resources");
            convert::to_resources(&resources, convert::Format::PostRefinement).expect("a message")
        };
        let agent = |id: &str, active| master::response::get_agents::Agent {
            agent_info: mesos::AgentInfo {
                id: Some(mesos::AgentId {
                    value: id.to_owned(),
                }),
                hostname: format!("host-{id}"),
                ..mesos::AgentInfo::default()
            },
            active,
            total_resources: resources("cpus:4;mem:100"),
            allocated_resources: resources("cpus:1;mem:40"),
            offered_resources: resources("cpus:3;mem:60"),
            ..master::response::get_agents::Agent::default()
        };
        let mut draining = agent("c", true);
        draining.deactivated = Some(true);
        let response = master::Response {
            get_agents: Some(master::response::GetAgents {
                agents: vec![agent("a", true), agent("b", false), draining],
                ..master::response::GetAgents::default()
            }),
            ..master::Response::default()
        };
        let agents = agents_in(response);
        assert_eq!(agents.len(), 1, "{agents:?}");
        assert_eq!(
            (&*agents[0].agent_id, &*agents[0].hostname),
            ("a", "host-a")
        );
        let free = &agents[0].resources;
        assert_eq!(free.scalar("cpus").map(|cpus| cpus.to_f64()), Some(3.0));
        assert_eq!(free.scalar("mem").map(|mem| mem.to_f64()), Some(60.0));
    }
}
