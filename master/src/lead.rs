//! A master's way to the lead and its time there, from the side of the process.
//!
//! While another master leads, questions are answered by an empty state ([`stand_by`]). Whoever leads keeps one value
//! up, its [`Role`], by its fence and by how writing to the registry goes ([`keep_role`]).

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::core::{Lsn, Recovered, Snapshot};
use crate::handle::{Inbox, Query};
use crate::leadership::election::{Candidate, Elected, Lost};
use crate::leadership::{Fence, Role, tell};
use crate::measures::Measures;
use crate::operation_outcomes::OperationOutcome;
use crate::registry::Registry;
use crate::registry::etcd::{self, Cluster, EtcdError, Keys, Writing};
use crate::service::Service;

/// Why a master that shares its cluster with others ended.
#[derive(Debug, thiserror::Error)]
pub enum LeadError {
    /// The service manager starts it again, and then it follows.
    #[error("this master leads no more: {0}")]
    Lost(String),
    #[error(transparent)]
    Registry(#[from] EtcdError),
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
        tracing::info!(lease = elected.lease, "elected: this master leads");
        let _following = self.role.send_replace(Role::Recovering);
        let fence = inbox.fence.clone();
        let ended = tokio::select! {
            lost = self.candidate.hold(&elected, &fence) => Err(LeadError::from(lost)),
            ended = self.lead(&elected, &fence, inbox, start, shutdown) => ended,
        };
        self.candidate.resign(&elected, &fence).await;
        ended
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
        Query::Outcome(_, answer) => {
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

/// Keeps the role up until nothing will be written any more; returns why.
async fn keep_role(
    role: &watch::Sender<Role>,
    fence: &Fence,
    mut writing: watch::Receiver<Writing>,
) -> String {
    loop {
        let is_open = fence.is_open();
        let new = match &*writing.borrow_and_update() {
            Writing::Ended(reason) => return reason.clone(),
            _ if !is_open => Role::fenced(),
            Writing::Stalled(reason) => suspended(reason),
            Writing::Works => Role::Leading,
        };
        if tell(role, new) {
            tracing::info!(role = role.borrow().name(), "role changed");
        }
        let fence_turned = async {
            if is_open {
                fence.ended().await;
            } else {
                fence.opened().await;
            }
        };
        let writing_changed = async {
            // A writer that has written all ends before the core does.
            if writing.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = fence_turned => {}
            () = writing_changed => {}
        }
    }
}

fn suspended(reason: &str) -> Role {
    Role::Suspended {
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use crate::leadership::fence::BootTime;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn the_role_changes_when_the_fence_and_the_writer_do() {
        let fence = Fence::closed_by(BootTime::of_runtime);
        let (written, writing) = watch::channel(Writing::default());
        let role = watch::Sender::new(Role::Recovering);
        let mut told = role.subscribe();
        let keeping = tokio::spawn({
            let fence = fence.clone();
            async move { keep_role(&role, &fence, writing).await }
        });
        let begun = Instant::now();
        let lease = suspended("its lease in etcd could not be renewed");
        let mut next = async |expected: Role| {
            let changed = tokio::time::timeout(SECOND * 60, told.changed()).await;
            changed.expect("the role changes").expect("it is kept");
            assert_eq!(*told.borrow_and_update(), expected);
        };
        next(lease.clone()).await;
        fence.extend(BootTime::of_runtime().after(8 * SECOND));
        next(Role::Leading).await;
        written.send_replace(Writing::Stalled("no space".to_owned()));
        next(suspended("no space")).await;
        written.send_replace(Writing::Works);
        next(Role::Leading).await;
        assert_eq!(begun.elapsed(), Duration::ZERO, "without waiting");
        next(lease.clone()).await;
        let open_for = begun.elapsed();
        assert!(
            open_for >= 8 * SECOND && open_for < 8 * SECOND + SECOND / 10,
            "{open_for:?}"
        );
        fence.extend(BootTime::of_runtime().after(8 * SECOND));
        next(Role::Leading).await;
        written.send_replace(Writing::Ended("another leads".to_owned()));
        assert_eq!(keeping.await.unwrap(), "another leads");
    }

    #[tokio::test(start_paused = true)]
    async fn a_writer_that_has_written_all_ends_no_role() {
        let fence = Fence::never();
        let (written, writing) = watch::channel(Writing::default());
        let role = watch::Sender::new(Role::Recovering);
        drop(written);
        let keeping = keep_role(&role, &fence, writing);
        let ended = tokio::time::timeout(SECOND * 60, keeping).await;
        assert!(ended.is_err());
        assert_eq!(*role.borrow(), Role::Leading);
    }
}
