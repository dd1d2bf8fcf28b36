//! A master's election and its time as leader, from the view of the process.
//!
//! While another master leads, queries get an empty state ([`stand_by`]). The leader maintains a single value, its
//! [`Role`], by its fence and by the progress of writes to the registry ([`keep_role`]).

use std::sync::Arc;

use meseta_etcd::leadership::election::{Candidate, Elected, Lost};
use meseta_etcd::leadership::{Fence, Role};
use meseta_etcd::store::{
    Cluster, Keys, StoreError, is_of_cluster, keep_role, until_another_cluster,
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::core::{Lsn, Recovered, Snapshot};
use crate::handle::{Inbox, Query};
use crate::measures::Measures;
use crate::operation_outcomes::OperationOutcome;
use crate::registry::Registry;
use crate::registry::etcd;
use crate::service::Service;

/// The reason for the end of a master that shares its cluster with others.
#[derive(Debug, thiserror::Error)]
pub enum LeadError {
    /// The service manager starts the master again as a follower.
    #[error("this master no longer leads: {0}")]
    Lost(String),
    #[error(transparent)]
    Registry(#[from] StoreError),
    #[error("the registry accepts no more writes: {0}")]
    Writing(String),
}

impl From<Lost> for LeadError {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost.to_string())
    }
}

/// The state with which a core starts once its master leads.
pub(crate) struct Start {
    pub(crate) recovered: Recovered,
    pub(crate) registry: Box<dyn Registry>,
    pub(crate) persisted: watch::Receiver<Lsn>,
    pub(crate) inbox: Inbox,
}

/// A master among several.
pub(crate) struct Lead {
    pub(crate) candidate: Candidate,
    pub(crate) keys: Keys,
    pub(crate) cluster: Cluster,
    pub(crate) role: watch::Sender<Role>,
    /// The snapshot to show without a core.
    pub(crate) nothing: Arc<Snapshot>,
}

impl Lead {
    /// Follows until this master is elected, then leads until `shutdown` or until it loses the leadership. A master
    /// of another cluster does not follow: it could never lead.
    pub(crate) async fn run(
        self,
        mut inbox: Inbox,
        start: impl FnOnce(Start) -> Service,
        shutdown: CancellationToken,
    ) -> Result<(), LeadError> {
        let elected = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = stand_by(&mut inbox.queries, &self.nothing) => return Ok(()),
            elected = self.campaign() => elected?,
        };
        let fence = inbox.fence.clone();
        let leading = self.lead(&elected, &fence, inbox, start, shutdown);
        self.candidate
            .act(&elected, &self.role, &fence, leading)
            .await
    }

    /// Follows until this master is elected, or belongs to another cluster. The latter check precedes the election,
    /// if etcd answers and has a cluster name already.
    async fn campaign(&self) -> Result<Elected, StoreError> {
        let (client, keys, cluster) = (&self.candidate.client, &self.keys, &self.cluster);
        let first = is_of_cluster(client, keys, cluster).await;
        if let Err(another @ StoreError::AnotherCluster { .. }) = first {
            return Err(another);
        }
        tokio::select! {
            another = until_another_cluster(client, keys, cluster) => Err(another),
            elected = self.candidate.campaign(&self.role) => Ok(elected),
        }
    }

    async fn lead(
        &self,
        elected: &Elected,
        fence: &Fence,
        mut inbox: Inbox,
        start: impl FnOnce(Start) -> Service,
        shutdown: CancellationToken,
    ) -> Result<(), LeadError> {
        let (sender, persisted) = watch::channel(Lsn::default());
        let on_persisted = Box::new(move |lsn| {
            sender.send_replace(lsn);
        });
        let client = &self.candidate.client;
        let opening = etcd::open(
            client,
            &self.keys,
            &self.cluster,
            elected,
            fence,
            on_persisted,
        );
        let (recovered, registry, writing) = tokio::select! {
            () = stand_by(&mut inbox.queries, &self.nothing) => return Ok(()),
            opened = opening => opened?,
        };
        let service = start(Start {
            recovered,
            registry: Box::new(registry),
            persisted,
            inbox,
        });
        tokio::select! {
            reason = keep_role(&self.role, fence, writing) => Err(LeadError::Writing(reason)),
            () = service.run(shutdown) => Ok(()),
        }
    }
}

/// Answers queries with an empty state while there is no core. Returns only when no more queries can come.
async fn stand_by(queries: &mut mpsc::Receiver<Query>, nothing: &Arc<Snapshot>) {
    while let Some(query) = queries.recv().await {
        answer(query, nothing);
    }
}

/// The caller may have left.
fn answer(query: Query, nothing: &Arc<Snapshot>) {
    match query {
        Query::Snapshot(answer) | Query::Policies(answer) => {
            let _unsent = answer.send(nothing.clone());
        }
        Query::Measure(answer) => {
            let _unsent = answer.send((nothing.clone(), Measures::default()));
        }
        Query::Outcome { answer, .. } => {
            let _unsent = answer.send(OperationOutcome::Unknown);
        }
        Query::Principal(_, answer) | Query::Cluster(answer) => {
            let _unsent = answer.send(None);
        }
        Query::Excluded(answer) => {
            let _unsent = answer.send(Vec::new());
        }
        // No caller gets this far: dropping the channel tells it that the master ends.
        Query::Explain(..) | Query::Watch { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use meseta_daemon::clock::Clock;
    use meseta_etcd::leadership::election::LeaseTimes;
    use meseta_etcd::leadership::fence::BootTime;
    use meseta_etcd::leadership::{Leader, ProvenLeader, Standing};
    use meseta_etcd::store::Meta;
    use meseta_etcd::testing::FakeEtcd;
    use prost::Message as _;

    use super::*;
    use crate::budgets::Budgets;
    use crate::core::MasterCore;
    use crate::flags::tests::flags;
    use crate::handle::Handle;

    /// A follower of this cluster on an etcd of its own.
    fn lead(etcd: &FakeEtcd, cluster: &str) -> (Lead, Handle, Inbox) {
        let flags = flags(&[]);
        let identity = crate::run::identity(&flags, "127.0.0.1:5050".parse().unwrap());
        let options = flags.options().unwrap();
        let budgets = Budgets::from_total_bytes(options.memory_budget);
        let config = crate::run::config(&flags, options, identity);
        let mut core = MasterCore::new(config, Recovered::default(), Clock::new().now());
        let (ttl, keys) = (Duration::from_secs(8), Keys::new("/m"));
        let (role, told) = watch::channel(Role::Following(None));
        let lead = Lead {
            candidate: Candidate {
                client: etcd.client(ttl),
                key: keys.leader(),
                me: Leader::default(),
                times: LeaseTimes { ttl },
                clock: BootTime::of_runtime,
            },
            keys,
            cluster: Cluster {
                name: cluster.to_owned(),
                new_id: String::new(),
            },
            role,
            nothing: core.snapshot(),
        };
        let standing = Standing {
            role: told,
            fence: Fence::closed(),
            proven: ProvenLeader::any(),
        };
        let (handle, inbox) = Handle::new(budgets, standing);
        (lead, handle, inbox)
    }

    /// Found by giving one of three masters another `--cluster`: that master ended when the other two were gone.
    #[tokio::test(start_paused = true)]
    async fn foreign_cluster_master_exits_before_election() {
        for is_led in [true, false] {
            let etcd = FakeEtcd::start();
            let (lead, _handle, inbox) = lead(&etcd, "paris");
            let meta = Meta {
                name: "berlin".to_owned(),
                ..Meta::default()
            };
            etcd.put(&lead.keys.meta(), meta.encode_to_vec());
            if is_led {
                etcd.put(&lead.keys.leader(), "another master");
            }
            let led = lead.run(inbox, |_| panic!("it leads"), CancellationToken::new());
            let led = tokio::time::timeout(Duration::from_secs(60), led).await;
            let error = led.expect("it follows for ever").unwrap_err();
            assert!(error.to_string().contains("\"berlin\""), "{error}");
            assert_eq!(etcd.transactions().len(), 0, "it stood for election");
        }
    }
}
