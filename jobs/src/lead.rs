//! A scheduler's way to the lead among others, and what it does there.
//!
//! Whoever leads acts: the core with its store and its link to the master ([`Acting`]). While another scheduler leads,
//! questions are answered by an empty state, and nothing is said to a master.

use meseta_daemon::clock::Clock;
use meseta_etcd::leadership::election::{Candidate, Elected, Lost};
use meseta_etcd::leadership::{Fence, Role};
use meseta_etcd::store::{Keys, StoreError, keep_role};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::core::{Options, RestoreError, State};
use crate::link::Link;
use crate::service::{Inbox, Service};
use crate::store::{self, Records, Store};

/// Why a scheduler that shares its jobs with others ended.
#[derive(Debug, thiserror::Error)]
pub enum LeadError {
    /// The service manager starts it again, and then it follows.
    #[error("this scheduler leads no more: {0}")]
    Lost(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("failed to restore what is below {prefix} in etcd")]
    Restore {
        prefix: String,
        #[source]
        source: RestoreError,
    },
    #[error("etcd takes no more changes: {0}")]
    Writing(String),
}

impl From<Lost> for LeadError {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost.to_string())
    }
}

/// What a scheduler acts with, once it has a state.
pub(crate) struct Acting {
    pub(crate) inbox: Inbox,
    pub(crate) link: Link,
    pub(crate) clock: Clock,
    pub(crate) options: Options,
}

impl Acting {
    /// The state that these records are of.
    pub(crate) fn restore(&self, records: Records) -> Result<State, RestoreError> {
        State::restore(self.options.clone(), self.clock.now(), records)
    }

    /// Acts until `stop`; what was decided by then is durable.
    pub(crate) async fn run(self, state: State, store: Store, stop: CancellationToken) {
        let service = Service::new(state, store, self.clock, self.inbox);
        let linking = AbortOnDropHandle::new(tokio::spawn(self.link.run(stop.clone())));
        service.run(stop).await;
        if linking.await.is_err() {
            tracing::error!("the link to the master panicked");
        }
    }
}

/// A scheduler among others.
pub(crate) struct Candidacy {
    pub(crate) candidate: Candidate,
    pub(crate) keys: Keys,
    pub(crate) role: watch::Sender<Role>,
}

impl Candidacy {
    /// Follows until this scheduler is elected, then leads until `stop` or until it leads no more.
    pub(crate) async fn run(
        self,
        mut acting: Acting,
        stop: CancellationToken,
    ) -> Result<(), LeadError> {
        let nothing = self.restored(acting.restore(Records::new()))?;
        let elected = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = acting.inbox.stand_by(&nothing) => return Ok(()),
            elected = self.candidate.campaign(&self.role) => elected,
        };
        let fence = acting.link.fence.clone();
        let leading = self.lead(&elected, &fence, acting, &nothing, stop);
        self.candidate
            .act(&elected, &self.role, &fence, leading)
            .await
    }

    async fn lead(
        &self,
        elected: &Elected,
        fence: &Fence,
        mut acting: Acting,
        nothing: &State,
        stop: CancellationToken,
    ) -> Result<(), LeadError> {
        let opening = store::etcd::open(&self.candidate.client, &self.keys, elected, fence);
        let (records, store, writing) = tokio::select! {
            () = acting.inbox.stand_by(nothing) => return Ok(()),
            opened = opening => opened?,
        };
        let state = self.restored(acting.restore(records))?;
        tokio::select! {
            reason = keep_role(&self.role, fence, writing) => Err(LeadError::Writing(reason)),
            () = acting.run(state, store, stop) => Ok(()),
        }
    }

    fn restored(&self, state: Result<State, RestoreError>) -> Result<State, LeadError> {
        state.map_err(|source| LeadError::Restore {
            prefix: self.keys.prefix().to_owned(),
            source,
        })
    }
}
