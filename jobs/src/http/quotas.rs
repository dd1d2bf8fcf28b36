//! The quotas of roles and the sizes of agents, which the scheduler queries from the master when a reader wants to know why
//! a job waits.
//!
//! Entered through [`MasterQuotas::read`]. Invariant: one query at a time is in flight, and its result serves all readers
//! for [`FRESH`], also if there was no answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use meseta_daemon::authentication::{ClientIdentity, SettingsError};
use meseta_daemon::background;
use meseta_daemon::client::{self, Client};
use meseta_daemon::error_chain::chain;
use meseta_daemon::tls::TlsError;
use meseta_resources::{ResourceName, ResourceQuantities, Scalar};
use serde::Deserialize;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use crate::core::{Quotas, RoleQuota};

/// The maximum age of a result.
const FRESH: Duration = Duration::from_secs(5);
/// The longest age of a cached list of agents, which may be long.
const FRESH_AGENTS: Duration = Duration::from_secs(60);
/// The time that a reader waits for the master; without an answer the view has everything else.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// The longest accepted response: about 10,000 roles.
const BODY_BYTES_MAX: usize = 16 << 20;

/// The quotas, as read from the leading master.
#[derive(Debug)]
pub(crate) struct MasterQuotas {
    identity: ClientIdentity,
    /// The masters configured by the operator.
    masters: Vec<String>,
    /// The URL of the leading master, once there was one.
    leader: watch::Receiver<Option<String>>,
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    quotas: Option<(Instant, Arc<Quotas>)>,
    largest: Option<(Instant, Option<ResourceQuantities>)>,
}

/// The reason why the master gave no quotas.
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
        source: serde_json::Error,
    },
}

impl MasterQuotas {
    pub(crate) fn new(
        identity: ClientIdentity,
        masters: Vec<String>,
        leader: watch::Receiver<Option<String>>,
    ) -> Self {
        Self {
            identity,
            masters,
            leader,
            told: Mutex::default(),
        }
    }

    /// Returns the quotas of the roles that the scheduler's principal may see, or no quotas if the master does not show
    /// them.
    pub(super) async fn read(&self) -> Arc<Quotas> {
        let mut told = self.told.lock().await;
        if let Some((at, quotas)) = &told.quotas
            && at.elapsed() < FRESH
        {
            return quotas.clone();
        }
        let quotas = self.ask("roles", quotas_in).await;
        let quotas = quotas.unwrap_or_else(|error| {
            tracing::debug!(error = %chain(&error), "the master's answer has no quotas");
            Quotas::default()
        });
        let largest = told.largest.take();
        let largest = largest.filter(|(at, _)| at.elapsed() < FRESH_AGENTS);
        let (at, largest) = match largest {
            Some(largest) => largest,
            None => {
                let largest = self.ask("slaves", largest_in).await;
                let largest = largest.unwrap_or_else(|error| {
                    tracing::debug!(error = %chain(&error), "the master's answer has no agents");
                    None
                });
                (Instant::now(), largest)
            }
        };
        told.largest = Some((at, largest.clone()));
        let quotas = Arc::new(quotas.with_largest(largest));
        told.quotas = Some((Instant::now(), quotas.clone()));
        quotas
    }

    /// Requests a page of the master, and decodes it outside the runtime.
    async fn ask<T: Default + Send + 'static>(
        &self,
        page: &str,
        read: fn(&[u8]) -> Result<T, serde_json::Error>,
    ) -> Result<T, Untold> {
        let Some(leader) = self.leader.borrow().clone() else {
            return Ok(T::default());
        };
        let url = format!("{leader}/{page}");
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
        let reply = client.get(&url).await?;
        if !reply.status.is_success() {
            let (status, body) = (reply.status, reply.text());
            return Err(client::Error::Refused { url, status, body }.into());
        }
        // Decoding the quotas of very many roles takes long.
        let read = background::spawn(move || read(&reply.body)).await;
        read.map_err(Untold::Unread)?
            .map_err(|source| Untold::Answer { url, source })
    }
}

#[derive(Deserialize)]
struct Agents {
    slaves: Vec<AgentEntry>,
}

#[derive(Deserialize)]
struct AgentEntry {
    /// The agent's resources: amounts as numbers, ranges and sets as texts.
    #[serde(default)]
    resources: BTreeMap<String, serde_json::Value>,
}

/// Returns the largest amount of each resource on one agent, from an answer of `/slaves`; `None` without agents.
fn largest_in(body: &[u8]) -> Result<Option<ResourceQuantities>, serde_json::Error> {
    let Agents { slaves } = serde_json::from_slice(body)?;
    let mut largest = ResourceQuantities::default();
    for agent in &slaves {
        let numbers = agent.resources.iter();
        let numbers = numbers.filter_map(|(name, amount)| Some((name.clone(), amount.as_f64()?)));
        for (name, amount) in amounts(&numbers.collect()) {
            if amount > largest.get(name.as_str()) {
                largest.set(&name, amount);
            }
        }
    }
    Ok((!slaves.is_empty()).then_some(largest))
}

#[derive(Deserialize)]
struct Roles {
    roles: Vec<RoleEntry>,
}

#[derive(Deserialize)]
struct RoleEntry {
    name: String,
    #[serde(default)]
    quota: QuotaEntry,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct QuotaEntry {
    limit: BTreeMap<String, f64>,
    consumed: BTreeMap<String, f64>,
}

/// Reads the quotas in a response of `/roles`.
fn quotas_in(body: &[u8]) -> Result<Quotas, serde_json::Error> {
    let Roles { roles } = serde_json::from_slice(body)?;
    let limited = roles
        .into_iter()
        .filter(|role| !role.quota.limit.is_empty());
    let quotas = limited.map(|role| {
        let quota = RoleQuota {
            limits: amounts(&role.quota.limit).collect(),
            consumed: amounts(&role.quota.consumed).collect(),
        };
        (role.name, quota)
    });
    Ok(quotas.collect())
}

/// Returns the valid amounts: an invalid amount limits nothing.
fn amounts(named: &BTreeMap<String, f64>) -> impl Iterator<Item = (ResourceName, Scalar)> {
    named.iter().filter_map(|(name, amount)| {
        let name = ResourceName::new(name).ok()?;
        Some((name, Scalar::from_f64(*amount).ok()?))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::http::tests::master_with;

    #[test]
    fn only_limited_roles_are_read() {
        let body = serde_json::json!({ "roles": [
            { "name": "free", "weight": 1.0, "quota": { "role": "free", "guarantee": {}, "limit": {}, "consumed": { "cpus": 2.0 } } },
            { "name": "lim", "quota": { "role": "lim", "limit": { "cpus": 0.3, "odd": -1e300 }, "consumed": { "cpus": 0.3, "mem": 48.0 } } },
            { "name": "plain" },
        ] });
        let cpus = (ResourceName::cpus(), Scalar::from_millis(300));
        let mem = ResourceName::new("mem").expect("a name");
        let quota = RoleQuota {
            limits: [cpus.clone()].into_iter().collect(),
            consumed: [cpus, (mem, Scalar::from_units(48))].into_iter().collect(),
        };
        let expected: Quotas = [("lim".to_owned(), quota)].into_iter().collect();
        let read = quotas_in(body.to_string().as_bytes());
        assert_eq!(read.expect("it is read"), expected);
        assert!(quotas_in(b"{}").is_err());
    }

    #[test]
    fn largest_agent_is_read_per_resource() {
        let body = br#"{"slaves":[{"resources":{"cpus":2.0,"mem":64.0,"ports":"[1-2]"}},{"resources":{"cpus":1.5,"mem":128}},{}]}"#;
        let largest = largest_in(body).expect("it is read").expect("agents");
        let amount = |name| largest.get(name).to_f64();
        assert_eq!(
            (amount("cpus"), amount("mem"), amount("ports")),
            (2.0, 128.0, 0.0)
        );
        assert_eq!(largest_in(br#"{"slaves":[]}"#).expect("it is read"), None);
        assert!(largest_in(b"{}").is_err());
    }

    #[tokio::test]
    async fn one_answer_serves_all_readers() {
        for (status, is_told) in [(200, true), (403, false)] {
            let asked = Arc::new(AtomicUsize::new(0));
            let count = asked.clone();
            let answer = move || async move {
                count.fetch_add(1, Ordering::Relaxed);
                let status = http::StatusCode::from_u16(status).expect("a status");
                let quota = r#"{"limit":{"cpus":1},"consumed":{}}"#;
                (
                    status,
                    format!(r#"{{"roles":[{{"name":"lim","quota":{quota}}}]}}"#),
                )
            };
            let leader = master_with(answer).await;
            let (_leader, of_leader) = watch::channel(Some(leader));
            let quotas = MasterQuotas::new(ClientIdentity::default(), Vec::new(), of_leader);
            for _ in 0..3 {
                assert_eq!(*quotas.read().await != Quotas::default(), is_told);
            }
            assert_eq!(asked.load(Ordering::Relaxed), 1);
        }
    }

    #[tokio::test]
    async fn quotas_are_unknown_without_master() {
        let (_leader, of_leader) = watch::channel(None);
        let quotas = MasterQuotas::new(ClientIdentity::default(), Vec::new(), of_leader);
        assert_eq!(*quotas.read().await, Quotas::default());
    }
}
