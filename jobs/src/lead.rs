//! The candidacy of a scheduler among others, and its work as the leader.
//!
//! The leader acts: the core with its store and its link to the master ([`Acting`]). While another scheduler leads, an
//! empty state answers questions, and no call goes to a master. Invariant: the lease is renewed during a long step of the
//! core, as no step depends on it: calls and writes are checked against the lease where they leave. A core that stands
//! still gives the lease up.

use std::time::Duration;

use meseta_daemon::clock::Clock;
use meseta_etcd::leadership::election::{Candidate, Elected, Lost};
use meseta_etcd::leadership::{Fence, Role};
use meseta_etcd::store::{Keys, StoreError, keep_role};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::core::{MayRun, Options, RestoreError, State};
use crate::link::{Link, Unusable};
use crate::service::{Inbox, Service};
use crate::store::{self, Records, Store};

/// The time after which a core stands still, far above its longest step; another scheduler then leads instead.
pub(crate) const STEP_MAX: Duration = Duration::from_secs(60);

/// Between two comparisons of a follower's cluster with that of the jobs, and the longest that one takes.
const CLUSTER_CHECK: Duration = Duration::from_secs(10);

/// The reason why a scheduler that shares its jobs with others ended.
#[derive(Debug, thiserror::Error)]
pub enum LeadError {
    /// The service manager restarts the scheduler, which then follows.
    #[error("this scheduler no longer leads: {0}")]
    Lost(String),
    #[error("this scheduler no longer leads: its core has not ended a step for {0:?}")]
    StandsStill(Duration),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("failed to restore the data below {prefix} in etcd")]
    Restore {
        prefix: String,
        #[source]
        source: RestoreError,
    },
    #[error("etcd accepts no more changes: {0}")]
    Writing(String),
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

impl From<Lost> for LeadError {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost.to_string())
    }
}

/// The parts with which a scheduler acts, once it has a state.
pub(crate) struct Acting {
    pub(crate) inbox: Inbox,
    pub(crate) link: Link,
    pub(crate) clock: Clock,
    pub(crate) options: Options,
    /// The permissions of the submitters of versions.
    pub(crate) may_run: MayRun,
}

impl Acting {
    /// Returns the state of these records.
    pub(crate) fn restore(&self, records: Records) -> Result<State, RestoreError> {
        State::restore(self.options.clone(), self.clock.now(), records)
    }

    /// Restores the state on a thread of its own: a leader may leave many records.
    pub(crate) fn restore_apart(
        &self,
        records: Records,
    ) -> impl Future<Output = Result<State, RestoreError>> + use<> {
        let (options, clock) = (self.options.clone(), self.clock);
        let restore = move || State::restore(options, clock.now(), records);
        unless_panicked(tokio::task::spawn_blocking(restore))
    }

    /// Acts until `stop`; decisions made before are durable. If the future is dropped, the core ends after its step.
    ///
    /// The core has a thread of its own, as its steps may be long: even with one processor everything else continues beside
    /// it.
    ///
    /// # Errors
    ///
    /// Another scheduler has taken over the framework, or the master is of another cluster.
    pub(crate) async fn run(
        self,
        mut state: State,
        store: Store,
        stop: CancellationToken,
    ) -> Result<(), Unusable> {
        state.ask_rules(self.may_run);
        let service = Service::new(state, store, self.clock, self.inbox);
        let mut linking = AbortOnDropHandle::new(tokio::spawn(self.link.run(stop.clone())));
        let given_up = CancellationToken::new();
        let _give_up = given_up.clone().drop_guard();
        let runtime = Handle::current();
        // Decisions made before are written durably in both cases.
        let stop = stop.child_token();
        let core = tokio::task::spawn_blocking({
            let stop = stop.clone();
            move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = given_up.cancelled() => {}
                        () = service.run(stop) => {}
                    }
                });
            }
        });
        let mut core = std::pin::pin!(unless_panicked(core));
        let linked = tokio::select! {
            () = &mut core => None,
            linked = &mut linking => Some(linked),
        };
        let linked = match linked {
            Some(linked) => {
                if matches!(linked, Ok(Err(_))) {
                    stop.cancel();
                }
                core.await;
                linked
            }
            None => linking.await,
        };
        linked.unwrap_or_else(|_| {
            tracing::error!("the link to the master panicked");
            Ok(())
        })
    }
}

/// Returns the result of a thread, and continues its panic. Never returns if the runtime ended the thread before its start.
pub(crate) async fn unless_panicked<T>(thread: JoinHandle<T>) -> T {
    match thread.await.map_err(JoinError::try_into_panic) {
        Ok(given) => given,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => std::future::pending().await,
    }
}

/// The candidacy of a scheduler among others.
pub(crate) struct Candidacy {
    pub(crate) candidate: Candidate,
    pub(crate) keys: Keys,
    pub(crate) role: watch::Sender<Role>,
    /// The longest permitted step of the core: [`STEP_MAX`] except in tests.
    pub(crate) step_max: Duration,
}

impl Candidacy {
    /// Follows until this scheduler is elected, then leads until `stop` or until it loses the lead.
    pub(crate) async fn run(
        self,
        mut acting: Acting,
        stop: CancellationToken,
    ) -> Result<(), LeadError> {
        let nothing = self.restored(acting.restore(Records::new()))?;
        let elected = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = acting.inbox.stand_by(&nothing) => return Ok(()),
            elected = self.campaign(&acting.link) => elected?,
        };
        let fence = acting.link.fence.clone();
        let leading = self.lead(&elected, &fence, acting, &nothing, stop);
        self.candidate
            .act(&elected, &self.role, &fence, leading)
            .await
    }

    /// Campaigns, and ends where the jobs are of another cluster than the masters: a scheduler that followed would send its
    /// clients to that cluster.
    async fn campaign(&self, link: &Link) -> Result<Elected, Unusable> {
        if let Some(unusable) = self.other_cluster(link).await {
            return Err(unusable);
        }
        let until_other_cluster = async {
            loop {
                tokio::time::sleep(CLUSTER_CHECK).await;
                if let Some(unusable) = self.other_cluster(link).await {
                    return unusable;
                }
            }
        };
        tokio::select! {
            elected = self.candidate.campaign(&self.role) => Ok(elected),
            unusable = until_other_cluster => Err(unusable),
        }
    }

    /// Compares the cluster of the jobs with that of the masters, as far as both answer in time.
    async fn other_cluster(&self, link: &Link) -> Option<Unusable> {
        let comparing = async {
            let stored = store::etcd::cluster_of(&self.candidate.client, &self.keys).await?;
            link.other_cluster(&stored).await
        };
        let compared = tokio::time::timeout(CLUSTER_CHECK, comparing).await;
        compared.ok().flatten()
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
        let restoring = acting.restore_apart(records);
        let restored = tokio::select! {
            () = acting.inbox.stand_by(nothing) => return Ok(()),
            restored = restoring => restored,
        };
        let state = self.restored(restored)?;
        let busy = acting.inbox.busy.clone();
        tokio::select! {
            () = busy.beyond(self.step_max) => {
                tracing::error!(seconds = self.step_max.as_secs(), "the core does not progress; \
                    giving the leadership up");
                Err(LeadError::StandsStill(self.step_max))
            }
            reason = keep_role(&self.role, fence, writing) => Err(LeadError::Writing(reason)),
            acted = acting.run(state, store, stop) => Ok(acted?),
        }
    }

    fn restored(&self, state: Result<State, RestoreError>) -> Result<State, LeadError> {
        state.map_err(|source| LeadError::Restore {
            prefix: self.keys.prefix().to_owned(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use meseta_daemon::authentication::ClientIdentity;
    use meseta_etcd::leadership::election::LeaseTimes;
    use meseta_etcd::leadership::fence::BootTime;
    use meseta_etcd::leadership::{Leader, ProvenLeader, Standing};
    use meseta_etcd::testing::FakeEtcd;

    use super::*;
    use crate::link::Registration;
    use crate::service::{Ends, tests::options};

    /// A time far longer than a renewal takes.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// Returns a scheduler on its own etcd, and the handle to it.
    fn candidacy(etcd: &FakeEtcd, ttl: Duration) -> (Candidacy, Acting, crate::service::Handle) {
        let (role, of_role) = watch::channel(Role::Following(None));
        let fence = Fence::closed();
        let standing = Standing {
            role: of_role,
            fence: fence.clone(),
            proven: ProvenLeader::any(),
        };
        let ends = Ends::new(Registration::default(), standing);
        let keys = store::etcd::keys("/m/");
        let candidacy = Candidacy {
            candidate: Candidate {
                client: etcd.client(ttl),
                key: keys.leader(),
                me: Leader::default(),
                times: LeaseTimes { ttl },
                clock: BootTime::now,
            },
            keys,
            role,
            step_max: STEP_MAX,
        };
        let identity = ClientIdentity::new(None, None, None);
        let acting = Acting {
            inbox: ends.inbox,
            link: Link {
                masters: vec!["127.0.0.1:1".to_owned()],
                adopts_cluster: false,
                identity: identity.expect("no files"),
                registration: ends.registration,
                events: ends.link,
                leader: watch::Sender::default(),
                fence,
                seed: 1,
            },
            clock: Clock::new(),
            options: options(),
            may_run: MayRun::new(|_, _| true),
        };
        (candidacy, acting, ends.handle)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn lease_is_renewed_during_slow_step() {
        let etcd = FakeEtcd::start();
        // The lease is so long that it survives a short pause of the machine.
        let ttl = Duration::from_secs(10);
        let (candidacy, acting, handle) = candidacy(&etcd, ttl);
        let (fence, stop) = (acting.link.fence.clone(), CancellationToken::new());
        let running = tokio::spawn(candidacy.run(acting, stop.clone()));
        let mut role = handle.standing.role.clone();
        let led = role.wait_for(|role| *role == Role::Leading);
        led.await.expect("it leads");
        let (begun, is_reading) = tokio::sync::oneshot::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let reading = tokio::spawn(async move {
            let read = handle.read(move |_| {
                let _ = begun.send(());
                let _ = ended.recv();
            });
            read.await
        });
        is_reading.await.expect("it reads");
        // Only a renewal opens the fence again.
        for _ in 0..3 {
            fence.close();
            let opened = tokio::time::timeout(PATIENCE, fence.opened()).await;
            assert!(opened.is_ok(), "the lease is not renewed");
        }
        drop(end);
        assert_eq!(reading.await.expect("it ends"), Ok(()));
        stop.cancel();
        let led = running.await.expect("it ends");
        assert!(led.is_ok(), "{led:?}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn stalled_core_yields_lead_to_another() {
        let etcd = FakeEtcd::start();
        // A lease far longer than the test, so that it does not end by itself.
        let ttl = Duration::from_secs(3_600);
        let (mut first, acting, handle) = candidacy(&etcd, ttl);
        first.step_max = Duration::from_millis(100);
        let running = tokio::spawn(first.run(acting, CancellationToken::new()));
        let mut role = handle.standing.role.clone();
        let led = role.wait_for(|role| *role == Role::Leading);
        led.await.expect("it leads");
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let reading = tokio::spawn(async move {
            let read = handle.read(move |_| {
                let _ = ended.recv();
            });
            read.await
        });
        let led = tokio::time::timeout(PATIENCE, running).await;
        let led = led.expect("it gives up").expect("no panic");
        assert!(matches!(led, Err(LeadError::StandsStill(_))), "{led:?}");
        let (second, acting, handle) = candidacy(&etcd, ttl);
        let stop = CancellationToken::new();
        let running = tokio::spawn(second.run(acting, stop.clone()));
        let mut role = handle.standing.role.clone();
        let led = role.wait_for(|role| *role == Role::Leading);
        let led = tokio::time::timeout(PATIENCE, led).await;
        assert!(led.is_ok_and(|role| role.is_ok()), "the key is not free");
        drop(end);
        let _ = reading.await;
        stop.cancel();
        let led = running.await.expect("it ends");
        assert!(led.is_ok(), "{led:?}");
    }
}
