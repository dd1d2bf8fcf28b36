//! A master's way to the lead and its time there, from the side of the process.
//!
//! While another master leads, questions are answered by an empty state ([`stand_by`]). Whoever leads keeps one value
//! up, its [`Role`], by its fence and by how writing to the registry goes ([`keep_role`]).

use std::sync::Arc;

use meseta_etcd::leadership::election::{Candidate, Elected, Lost};
use meseta_etcd::leadership::{Fence, Role};
use meseta_etcd::store::{Cluster, Keys, StoreError, keep_role};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::core::{Lsn, Recovered, Snapshot};
use crate::handle::{Inbox, Query};
use crate::measures::Measures;
use crate::operation_outcomes::OperationOutcome;
use crate::registry::Registry;
use crate::registry::etcd;
use crate::service::Service;

/// Why a master that shares its cluster with others ended.
#[derive(Debug, thiserror::Error)]
pub enum LeadError {
    /// The service manager starts it again, and then it follows.
    #[error("this master leads no more: {0}")]
    Lost(String),
    #[error(transparent)]
    Registry(#[from] StoreError),
    #[error("the registry takes no more writes: {0}")]
    Writing(String),
}

impl From<Lost> for LeadError {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost.to_string())
    }
}

/// What a core starts with once its master leads.
pub(crate) struct Start {
    pub(crate) recovered: Recovered,
    pub(crate) registry: Box<dyn Registry>,
    pub(crate) persisted: watch::Receiver<Lsn>,
    pub(crate) inbox: Inbox,
}

/// A master among others.
pub(crate) struct Lead {
    pub(crate) candidate: Candidate,
    pub(crate) keys: Keys,
    pub(crate) cluster: Cluster,
    pub(crate) role: watch::Sender<Role>,
    /// What is shown while there is no core.
    pub(crate) nothing: Arc<Snapshot>,
}

impl Lead {
    /// Follows until this master is elected, then leads until `shutdown` or until it leads no more.
    pub(crate) async fn run(
        self,
        mut inbox: Inbox,
        start: impl FnOnce(Start) -> Service,
        shutdown: CancellationToken,
    ) -> Result<(), LeadError> {
        let elected = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = stand_by(&mut inbox.queries, &self.nothing) => return Ok(()),
            elected = self.candidate.campaign(&self.role) => elected,
        };
        let fence = inbox.fence.clone();
        let leading = self.lead(&elected, &fence, inbox, start, shutdown);
        self.candidate
            .act(&elected, &self.role, &fence, leading)
            .await
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

/// Answers questions while there is no core: nothing is known. Never returns while questions may come.
async fn stand_by(queries: &mut mpsc::Receiver<Query>, nothing: &Arc<Snapshot>) {
    while let Some(query) = queries.recv().await {
        answer(query, nothing);
    }
}

/// The asker may have left.
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
        Query::Principal(_, answer) => {
            let _unsent = answer.send(None);
        }
        Query::Excluded(answer) => {
            let _unsent = answer.send(Vec::new());
        }
        // Nobody gets that far: their answers are dropped, which says that the master ends.
        Query::Explain(..) | Query::Watch { .. } => {}
    }
}
